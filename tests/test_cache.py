"""What is kept between runs: whole files, nothing where the folder cannot be written, and nothing that is
believed because it is there.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cluster import driver
from dse.run import cache
from dse.solve import solve
from dse.solve.options import SolverOptions
from hw import machine
from tests.test_driver import rows, study
from tests.test_layers import FILES, ROOT, imports
from workloads import catalog


def test_a_file_per_question_written_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DSE_CACHE", str(tmp_path / "cache"))
    one, other = cache.answer_path("map", ("a", 1.0), ".json"), cache.answer_path("map", ("a", 2.0), ".json")
    assert one != other == cache.answer_path("map", ("a", 2.0), ".json")
    cache.write(one, b"first")
    cache.write(one, b"second")
    assert cache.read(one) == b"second"
    assert list((tmp_path / "cache").iterdir()) == [one]
    monkeypatch.setattr(cache, "SOLVER_VERSION", -1)
    assert cache.answer_path("map", ("a", 1.0), ".json") != one


def test_a_url_is_refused_before_there_is_a_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for url in ("s3://bucket/cache", "file:///tmp/cache"):
        monkeypatch.setenv("DSE_CACHE", url)
        with pytest.raises(ValueError, match=r"is a URL.*give a folder on each node's own disk") as fault:
            driver.run(study(tmp_path), tmp_path / "run", workers=0)
        assert "\n" not in str(fault.value)
        assert not (tmp_path / "run").exists()


def test_two_versions_on_one_cache_read_none_of_each_others_answers(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each finds its own again, whatever the other wrote meanwhile, and prunes the other's alone."""
    monkeypatch.setenv("DSE_CACHE", str(tmp_path / "cache"))
    small = study(tmp_path, stop="machines: 12")
    small = replace(small, solver=replace(small.solver, mapper="optimal", sharing_gap=0.05))
    looked_up, found = [], []
    for turn, version in enumerate((28, 29, 28, 29)):
        monkeypatch.setattr(cache, "SOLVER_VERSION", version)
        ended = driver.run(small, tmp_path / f"run {turn}", workers=0)
        assert ended.exit_code == 0
        looked_up.append((ended.status.cache_hits, ended.status.cache_misses))
        found.append(rows(tmp_path / f"run {turn}"))
    assert looked_up[0][1] > 0
    assert looked_up[1] == looked_up[0]
    assert looked_up[2] == looked_up[3] == (sum(looked_up[0]), 0)
    assert all(one == found[0] for one in found)
    assert {entry.version.split(".")[1] for entry in cache.entries()} == {"28", "29"}
    cache.prune(of_others=True)
    assert {entry.version.split(".")[1] for entry in cache.entries()} == {"29"}


def test_a_folder_that_cannot_be_written_keeps_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DSE_CACHE", str(tmp_path / "file"))
    cache.write(cache.answer_path("map", 1, ".json"), b"lost")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_digest_covers_all_code_that_an_answer_depends_on() -> None:
    """Everything that the mappers and the evaluator import, however far; a changed file moves every name."""
    files = {path.relative_to(ROOT).with_suffix("").as_posix(): path for path in FILES}
    todo, found = ["dse/mapper/exact/search", "dse/mapper/exact/optimal", "dse/sim/einsum/evaluate"], set()
    while todo:
        if (name := todo.pop()) not in found:
            found.add(name)
            todo += [
                module
                for module in (one.replace(".", "/") for one in imports(files[name]))
                if module in files
            ]
    own = {
        path.relative_to(ROOT).with_suffix("").as_posix()
        for name in cache.SOURCE_FILES
        for path in ([ROOT / name] if name.endswith(".py") else (ROOT / name).rglob("*.py"))
    }
    assert found <= own | {"dse/run/cache"}


def test_a_changed_source_moves_every_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for path in ("dse/mapper/exact/optimal.py", "dse/mapping/nest.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("one = 1")
    name = cache.answer_path("map", 1, ".json")
    monkeypatch.setattr(cache, "SOURCE_FILES", ("dse/mapping/nest.py", "dse/mapper"))
    before = cache.sources(tmp_path)
    (tmp_path / "dse/mapper/exact/optimal.py").write_text("one = 2")
    cache.sources.cache_clear()
    assert cache.sources(tmp_path) != before
    cache.sources.cache_clear()  # of this process: other tests ask it
    monkeypatch.setattr(cache, "sources", lambda: "other")
    assert cache.answer_path("map", 1, ".json") != name


HARM: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "empty": lambda path: path.write_bytes(b""),
    "flip": lambda path: path.write_bytes(
        bytes([*path.read_bytes()[:70], path.read_bytes()[70] ^ 8, *path.read_bytes()[71:]])
    ),
    "foreign": lambda path: path.write_bytes(b"PK" * 50),
    "another's": lambda path: (
        cache.write(path.with_name("other"), b"{}")
        or (path.write_bytes(path.with_name("other").read_bytes()))
    ),
}


@pytest.mark.parametrize("harm", HARM)
def test_what_is_not_whole_is_removed_said_and_answered_anew(
    harm: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DSE_CACHE", str(tmp_path))
    edge, net = machine.arch(machine.load("edge_array")), catalog.load("gemm:m=12,n=8,k=10")
    asked = solve.cached(edge, net, SolverOptions())
    (path,) = tmp_path.iterdir()
    before = path.read_bytes()
    assert path.suffix == ".json"
    assert not caplog.messages
    HARM[harm](path)
    assert solve.cached(edge, net, SolverOptions()) == asked
    assert len(caplog.messages) == 1
    assert "removed, built anew" in caplog.messages[0]
    assert "\n" not in caplog.messages[0]
    assert path.read_bytes() == before


def forged(edge: dict[str, object], **wrong: object) -> bytes:
    return json.dumps([{**edge, **wrong}]).encode()


def test_a_forged_nest_costs_what_it_costs_or_is_thrown_away(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DSE_CACHE", str(tmp_path))
    edge, net = machine.arch(machine.load("edge_array")), catalog.load("gemm:m=12,n=8,k=10")
    best = solve.cached(edge, net, SolverOptions())
    assert isinstance(best, list)
    (path,) = tmp_path.iterdir()
    own = json.loads(cache.read(path) or b"")[0]
    nests = [
        own["nest"].replace("tile 1", "tile 2"),
        own["nest"].replace("store GBUF C\n", ""),
        own["nest"].replace("mac", "for m tile 0"),
        "mac",
        "",
        "store DRAM A B C\nmac",
        own["nest"] * 2,
        "outside the nest space: x",
    ]
    lies = [forged(own, nest=nest) for nest in nests]
    lies += [
        forged(own, optimality_gap=-1.0),
        forged(own, optimality_gap=None),
        forged(own, proven="\x1b[2Joptimal"),
        forged(own, space="\x1b[2Joptimal"),
        forged(own, space='{"factors":"every"}'),
        forged(own, space='{"factors": "all"}'),
        b"[]",
        b"{",
        b"[" * 9000,
        forged(own, energy_pj=1.0),
        forged(own, visited="x"),
        forged(own, nest=7),
    ]
    for lie in lies:
        cache.write(path, lie)
        (found,) = solve.cached(edge, net, SolverOptions())  # type: ignore[misc]
        assert found.energy_pj >= best[0].energy_pj, lie
        assert found.einsums[0].certificate == best[0].einsums[0].certificate, lie
    assert len(caplog.messages) >= len(lies) - 1  # a nest without a bypass is one too, and costs more


NOBODY, OTHER, GROUP = 65534, 65533, 65532  # ids of users and a group; nobody needs to have them
ASK = """import os, sys
from pathlib import Path
from dse.run import cache
path, user, group, umask, word = Path(sys.argv[1]), *map(int, sys.argv[2:5]), sys.argv[5]
os.umask(umask)
if os.geteuid() == 0 and user:
    os.setgroups([]), os.setegid(group), os.seteuid(user)
found = [cache.read(path), cache.read(path.with_name("second.json"))]
if word:
    cache.write(path, word.encode())
print(found[0], found[1])
"""


@pytest.fixture
def shared() -> Iterator[Path]:
    """A folder that every user may enter, unlike those of pytest."""
    folder = Path(tempfile.mkdtemp(prefix="dse-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def asked_by(
    path: Path, user: int, group: int = NOBODY, umask: int = 0o022, keep: str = ""
) -> tuple[str, str]:
    """What a process of a user finds in a file of the cache and in second.json beside it, and its warnings;
    it then keeps an answer there.
    """
    done = subprocess.run(
        [sys.executable, "-c", ASK, str(path), str(user), str(group), str(umask), keep],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.strip(), done.stderr.strip()


def test_what_a_user_may_not_read_is_left_alone_and_said_once(shared: Path) -> None:
    path = shared / "first.json"
    for one in (path, path.with_name("second.json")):
        cache.write(one, b"of somebody else")
        one.chmod(0)
    before = path.stat()
    shared.chmod(0o777)
    found, said = asked_by(path, NOBODY, keep="mine")
    assert found == "None None"
    assert said.count("\n") == 0
    assert f"{path}: cannot be read (Permission denied); it and others like it are left alone" in said
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert len(list(shared.iterdir())) == 2
    shared.chmod(0o700 if os.geteuid() == 0 else 0)
    found, said = asked_by(path, NOBODY, keep="mine")
    shared.chmod(0o700)
    assert found == "None None"
    assert said.count("\n") == 0
    assert "cannot be read" in said
    assert path.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
@pytest.mark.parametrize(("umask", "found"), [(0o002, "b'of the first' None"), (0o077, "None None")])
def test_a_group_shares_a_cache_as_the_umask_says(shared: Path, umask: int, found: str) -> None:
    folder, path = shared / "cache", shared / "cache" / "first.json"
    folder.mkdir()
    os.chown(folder, 0, GROUP)
    folder.chmod(0o2775)
    assert asked_by(path, NOBODY, GROUP, umask, "of the first") == ("None None", "")
    assert (path.stat().st_mode & 0o777, path.stat().st_gid) == (0o666 & ~umask, GROUP)
    read, said = asked_by(path, OTHER, GROUP, umask, "of the second")
    assert read == found
    assert said.count("\n") == 0
    assert ("cannot be read" in said) == (found == "None None")
    assert cache.read(path) == (b"of the second" if "first" in found else b"of the first")


def test_a_disk_that_gives_nothing_is_left_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "first.json"
    cache.write(path, b"sound")
    monkeypatch.setattr(cache, "_unread", set())
    with monkeypatch.context() as broken:
        broken.setattr(
            Path, "read_bytes", lambda _: (_ for _ in ()).throw(OSError(errno.EIO, os.strerror(errno.EIO)))
        )
        assert cache.read(path) is None
    assert caplog.messages == [
        f"{path}: cannot be read (Input/output error); it and others like it are left alone, solved "
        "anew and not kept"
    ]
    cache.write(path, b"other")
    assert cache.read(path) == b"sound"


def test_a_cache_that_is_a_file_is_said_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("mine")
    monkeypatch.setenv("DSE_CACHE", str(tmp_path / "file"))
    monkeypatch.setattr(cache, "_unread", set())
    edge, net = machine.arch(machine.load("edge_array")), catalog.load("gemm:m=12,n=8,k=10")
    assert solve.cached(edge, net, SolverOptions()) == solve.cached(edge, net, SolverOptions())
    assert len(caplog.messages) == 1
    assert "cannot be read (Not a directory)" in caplog.messages[0]
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_said_once(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("a", "b"):
        cache.write(tmp_path / "file" / "answers" / name, b"x")
    assert caplog.messages == [
        f"{tmp_path}/file/answers: cannot be written (Not a directory); answers are not kept"
    ]

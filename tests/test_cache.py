"""What is kept between runs: whole files, nothing where the folder cannot be written, and nothing that is believed because it is there."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from dse import cache, stack
from dse.stack import Picks
from hw import machine
from tests.test_layers import FILES, ROOT, imports
from workloads import catalog


def test_a_file_per_question_written_whole(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DSE_CACHE", str(tmp_path / "cache"))
    one, other = cache.place("map", ("a", 1.0), ".json"), cache.place("map", ("a", 2.0), ".json")
    assert one != other == cache.place("map", ("a", 2.0), ".json")
    cache.keep(one, b"first")
    cache.keep(one, b"second")
    assert cache.read(one) == b"second" and list((tmp_path / "cache").iterdir()) == [one]
    monkeypatch.setattr(cache, "SOLVER_VERSION", -1)
    assert cache.place("map", ("a", 1.0), ".json") != one


def test_a_folder_that_cannot_be_written_keeps_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DSE_CACHE", str(tmp_path / "file"))
    cache.keep(cache.place("map", 1, ".json"), b"lost")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_the_digest_covers_all_code_that_an_answer_depends_on() -> None:
    """Everything that the mappers and the evaluator import, however far; a changed file moves every name."""
    files = {path.relative_to(ROOT).with_suffix("").as_posix(): path for path in FILES}
    todo, found = ["dse/dataflow/search", "dse/dataflow/optimal", "dse/sim/evaluate"], set()
    while todo:
        if (name := todo.pop()) not in found:
            found.add(name)
            todo += [module for module in (one.replace(".", "/") for one in imports(files[name])) if module in files]
    own = {path.relative_to(ROOT).with_suffix("").as_posix()
           for name in cache.ANSWERS for path in ([ROOT / name] if name.endswith(".py") else (ROOT / name).rglob("*.py"))}
    assert found <= own | {"dse/cache"}


def test_a_changed_source_moves_every_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for path in ("dse/dataflow/optimal.py", "dse/nest.py"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text("one = 1")
    name = cache.place("map", 1, ".json")
    monkeypatch.setattr(cache, "ANSWERS", ("dse/nest.py", "dse/dataflow"))
    before = cache.sources(tmp_path)
    (tmp_path / "dse/dataflow/optimal.py").write_text("one = 2")
    cache.sources.cache_clear()
    assert cache.sources(tmp_path) != before
    cache.sources.cache_clear()  # of this process: other tests ask it
    monkeypatch.setattr(cache, "sources", lambda: "other")
    assert cache.place("map", 1, ".json") != name


HARM: dict[str, Callable[[Path], object]] = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-9]), "empty": lambda path: path.write_bytes(b""),
    "flip": lambda path: path.write_bytes(bytes([*path.read_bytes()[:70], path.read_bytes()[70] ^ 8, *path.read_bytes()[71:]])),
    "foreign": lambda path: path.write_bytes(b"PK" * 50), "another's": lambda path: cache.keep(path.with_name("other"), b"{}") or (
        path.write_bytes(path.with_name("other").read_bytes()))}


@pytest.mark.parametrize("harm", HARM)
def test_what_is_not_whole_is_removed_said_and_answered_anew(harm: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
                                                             caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("DSE_CACHE", str(tmp_path))
    edge, net = machine.arch(machine.load("edge_array")), catalog.load("gemm:m=12,n=8,k=10")
    asked = stack.kept(edge, net, Picks())
    (path,) = tmp_path.iterdir()
    before = path.read_bytes()
    assert path.suffix == ".json" and not caplog.messages
    HARM[harm](path)
    assert stack.kept(edge, net, Picks()) == asked
    assert len(caplog.messages) == 1 and "removed, built anew" in caplog.messages[0] and "\n" not in caplog.messages[0]
    assert path.read_bytes() == before


def forged(edge: dict[str, object], **wrong: object) -> bytes:
    return json.dumps([{**edge, **wrong}]).encode()


def test_a_forged_nest_costs_what_it_costs_or_is_thrown_away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("DSE_CACHE", str(tmp_path))
    edge, net = machine.arch(machine.load("edge_array")), catalog.load("gemm:m=12,n=8,k=10")
    best = stack.kept(edge, net, Picks())
    assert isinstance(best, list)
    (path,) = tmp_path.iterdir()
    own = json.loads(cache.read(path) or b"")[0]
    nests = [own["nest"].replace("in tiles of 1", "in tiles of 2"), own["nest"].replace("store GBUF C\n", ""),
             own["nest"].replace("mac", "for m in tiles of 0"), "mac", "", "store DRAM A B C\nmac", own["nest"] * 2, "outside the nest space: x"]
    lies = [forged(own, nest=nest) for nest in nests]
    lies += [forged(own, gap_in_space=-1.0), forged(own, gap_in_space=None), forged(own, proven="\x1b[2Joptimal"), forged(own, space="\x1b[2Joptimal"),
             forged(own, space='{"factors":"every"}'), forged(own, space='{"factors": "all"}'),
             b"[]", b"{", b"[" * 9000, forged(own, energy_pj=1.0), forged(own, visited="x"), forged(own, nest=7)]
    for lie in lies:
        cache.keep(path, lie)
        (found,) = stack.kept(edge, net, Picks())  # type: ignore[misc]
        assert found.energy_pj >= best[0].energy_pj and found.einsums[0].certificate == best[0].einsums[0].certificate, lie
    assert len(caplog.messages) >= len(lies) - 1  # a nest without a bypass is one too, and costs more

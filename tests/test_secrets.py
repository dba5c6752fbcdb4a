"""No reader shows what stands in a file that is not of its kind: any path may stand in a study or on the
command line.
"""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from cluster import store
from dse.exchange.convert import convert
from dse.frontend import check, cli, runs
from dse.mapping import matched, nest, schedule
from dse.run import cache, folder
from dse.study import study as studies
from hw import machine
from workloads import catalog, text
from workloads.matrix import read_matrix

ROOT = Path(__file__).parents[1]
SECRET = "hunter2"
PEERS = "timeloop", "zigzag", "accelforge", "scalesim", "maestro"
WORKLOAD, ARCH = catalog.load("gemm:m=4,n=4,k=4"), machine.arch(machine.load("a2"))
CONTENTS = {
    "lines": f"root:x:0:{SECRET}:/root\n{SECRET}:x:1\n",
    "a sentence": f"{SECRET}\n",
    "keys": f"password: {SECRET}\n{SECRET}: 1\n",
    "a name": f"name: {SECRET}\n",
    "a key twice": f"{SECRET}: 1\n{SECRET}: 2\n",
    "a list": f"- {SECRET}\n- {{user: {SECRET}}}\n",
    "numbers as keys": f"1: {SECRET}\n",
    "json": f'{{"token": "{SECRET}", "{SECRET}": [1, 2]}}',
    "deep": f"a: {{b: {{{SECRET}: {SECRET}}}}}\n",
    "csv": f"user,password\nme,{SECRET}\n",
    "a tag": f"!{SECRET} x\n",
    "a tag of another": f"!!python/object:{SECRET} x\n",
    "an alias": f"a: *{SECRET}\n",
    "an anchor twice": f"[&{SECRET} 1, &{SECRET} 2]\n",
    "an anchor in itself": f"&{SECRET} [*{SECRET}]\n",
    "a truth": f"!!bool {SECRET}\n",
    "a number": f"!!int {SECRET}\n",
    "a date": f"!!timestamp {SECRET}\n",
    "bytes": f"!!binary {SECRET}'\n",
    "a merge": f"<<: {SECRET}\n",
    "an open string": f'a: "{SECRET}\n',
    "two documents": f"---\n{SECRET}\n---\n{SECRET}: 2\n",
    "an indent": f"a: 1\n {SECRET}: 2\n",
    "a control character": f"{SECRET}\a\n",
    "a quote": f"a: {SECRET}: '{SECRET}'\n",
    **{
        f"begins with {word}": f"{word} {SECRET}\n{SECRET} x\n"
        for word in (
            "store",
            "for",
            "parfor",
            "layout",
            "share",
            "segment",
            "retain",
            "weights",
            "fills",
            "einsum",
            "hold",
            "directives",
            "mac",
            "%%MatrixMarket",
            "outside",
        )
    },
    "a script": f"for x in {SECRET}; do\n  echo {SECRET}\ndone\n",
    "tensors": f"tensor{{{SECRET}}}(m=1)\n",
}


def readers(path: Path) -> dict[str, Callable[[], object]]:
    """What reads a file that a user names, by kind; each raises, or says, what is wrong with it."""
    return {
        "machine": lambda: machine.load(str(path)),
        "workload": lambda: text.load(path),
        "study": lambda: studies.load(path),
        "check": lambda: check.file(str(path)),
        "mapping": lambda: nest.read(path, ["gemm"]),
        "schedule": lambda: schedule.load(path, WORKLOAD),
        "directives": lambda: matched.load(path, WORKLOAD, ARCH),
        "matrix": lambda: read_matrix(path),
        "compressed matrix": lambda: read_matrix(path.rename(path.with_suffix(".mtx.gz"))),
        "matrix of SciPy": lambda: read_matrix(path.rename(path.with_suffix(".npz"))),
        "onnx": lambda: catalog.load(str(path.rename(path.with_suffix(".onnx")))),
        "torch": lambda: catalog.load(str(path.rename(path.with_suffix(".pt2")))),
        "huggingface": lambda: catalog.load(str(path.rename(path.with_suffix(".json")))),
        **{peer: partial(convert, peer, [path], path.parent / "out", True) for peer in PEERS},
    }


READERS = list(readers(Path("x.yaml")))


@pytest.mark.parametrize("reader", READERS)
def test_no_reader_shows_another_kind_of_file(reader: str, tmp_path: Path) -> None:
    for name, content in CONTENTS.items():
        for data in (content.encode(), b"\xff\xfe" + content.encode("utf-16-le"), content.encode() + b"\0"):
            path = tmp_path / "file.yaml"
            path.write_bytes(data)
            try:
                said = str(readers(path)[reader]())
            except ValueError as fault:
                said = str(fault)
            assert SECRET not in said, f"{reader}, {name}: {said}"


@pytest.mark.parametrize(
    "command",
    [
        "check FILE",
        "map FILE a2",
        "map gemm:m=4,n=4,k=4 FILE",
        "run FILE",
        "run study.yaml",
        "run listed.yaml",
        "simulate gemm:m=4,n=4,k=4 a2 FILE",
        "map gemm:m=4,n=4,k=4 a2 --schedule FILE",
    ],
)
def test_no_command_shows_another_kind_of_file(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The studies name the file as their machine, and as a workload."""
    monkeypatch.chdir(tmp_path)
    rest = "space: {clock_mhz: [100, 200]}\nobjectives: [energy_pj]\n"
    Path("study.yaml").write_text(f"workloads: [mlp_s]\nmachine: file.yaml\n{rest}")
    Path("listed.yaml").write_text(f"workloads: [{{file: file.yaml}}]\nmachine: a2\n{rest}")
    for content in CONTENTS.values():
        Path("file.yaml").write_text(content)
        with suppress(SystemExit):
            cli.main(command.replace("FILE", "file.yaml").split())
        out, err = capfd.readouterr()
        assert SECRET not in out + err, f"{content}: {out}{err}"


def test_no_file_of_a_run_or_of_the_cache_is_shown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each stands in the place of one of ours."""
    caplog.set_level(logging.DEBUG)
    for content in CONTENTS.values():
        for name in (folder.MANIFEST, folder.STATUS, folder.ENV, folder.STUDY, folder.PREVIOUS_MANIFEST):
            (tmp_path / name).write_text(content)
            for reads in (
                lambda: runs.open(tmp_path),
                lambda: folder.verified_parts(tmp_path),
                lambda: check.status(tmp_path, True),
            ):
                try:
                    said = repr(reads())
                except ValueError as fault:
                    said = str(fault)
                assert SECRET not in said + caplog.text, f"{name}: {said}"
            (tmp_path / name).unlink()
        (tmp_path / "kept").write_text(content)
        assert cache.read(tmp_path / "kept") is None
        assert SECRET not in caplog.text


def test_a_lock_says_who_holds_it_and_nothing_else(tmp_path: Path) -> None:
    held, _ = store.open_run(tmp_path)
    (tmp_path / ".lock").write_text(f"{SECRET}\nprocess 1 on {SECRET}")
    with pytest.raises(ValueError, match="another run writes into this folder") as fault:
        store.open_run(tmp_path)
    store.close(held)
    assert SECRET not in str(fault.value)


OPENS = {"open", "read_text", "read_bytes", "ParquetFile", "mmread"}
OWN = (
    "analysis/",
    "hw/component.py",
    "hw/arch.py read_tiles",  # a text of a size, no file
    "cluster/pool.py",
    "cluster/worker.py sources",
    "dse/run/cache.py sources",
    "dse/run/cache.py claim",
    "dse/frontend/compile_kernels.py",
    "dse/frontend/cli.py _new",
    "dse/run/folder.py sync",
    "dse/run/folder.py create",
    "dse/run/compiled.py stamp",
)  # files of ours, or that are written
# of dse.open
CALLS = {
    "dse/frontend/cli.py _open",
    "dse/frontend/cli.py _compare",
    "dse/frontend/cli.py _print_hints",
    "dse/frontend/cli.py _plot",
    "dse/frontend/cli.py _report",
    "dse/frontend/serve.py report",
    "dse/frontend/runs.py sweep",
    "dse/frontend/runs.py open_all",
}
COPIED = {
    "dse/run/pack.py pack",
    "dse/study/study.py files",
    "cluster/driver.py _write_head",
    "cluster/driver.py _write_log",
    "cluster/store.py _publish",
    "cluster/objects.py _files",
    "cluster/objects.py _is_of",
    "dse/run/folder.py is_gone",  # one letter of /proc
    "cluster/objects.py _upload",
    "cluster/driver.py _sink",
    "cluster/sink.py fault",
    "cluster/sink.py _upload",
}  # bytes of checked files
EXECUTED = {"workloads/plugin.py find"}  # Python by its user's word; a fault names no line of it
TRIED = {
    "workloads/document.py read",
    "dse/exchange/documents.py text_of",
    "dse/mapping/nest.py read",
    "dse/mapping/schedule.py load",
    "dse/mapping/directives.py read_if_directives",
    "workloads/matrix.py _places",
    "workloads/matrix.py _read_npz",
    "workloads/matrix.py _read_matrix_market",
    "workloads/torch.py _read",
    "dse/run/cache.py read",
    "cluster/store.py _lock",
    "dse/run/folder.py is_locked",
    "cluster/objects.py _locked",
    "dse/run/temporary.py _locked",
    "cluster/stopping.py _read",
}  # with CONTENTS, above
SEALED = {
    "dse/run/folder.py generation_file",
    "dse/run/folder.py _unsealed",
    "dse/run/folder.py crc",
    "dse/explain/derived.py _nests",
    "cluster/store.py row_groups",
    "cluster/store.py _read_part",
    "cluster/store.py _rows_of",
}  # by a checksum that another file does not have


def test_every_reader_is_known() -> None:
    """Where the packages open a file: a new place is tried above, or says here why it shows nothing."""
    found = set()
    for package in ("workloads", "hw", "dse", "cluster", "analysis"):
        for path in (
            p for p in (ROOT / package).rglob("*.py") if re.search(rf"\b({'|'.join(OPENS)})\(", p.read_text())
        ):
            for one in (n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.FunctionDef)):
                calls = (c.func for c in ast.walk(one) if isinstance(c, ast.Call))
                if {getattr(f, "attr", getattr(f, "id", "")) for f in calls} & OPENS:
                    found.add(f"{path.relative_to(ROOT)} {one.name}")
    assert {
        place for place in found if not place.startswith(OWN)
    } == CALLS | COPIED | EXECUTED | TRIED | SEALED

"""`import dse`: map, sweep, open; what they return; wrong words; files to start from and the keys of
files."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pyarrow as pa
import pytest
import yaml
from jsonschema import Draft202012Validator

import dse
from dse.explain import figures
from dse.explain import values as explain
from dse.frontend import check, cli, keys, runs, templates
from dse.mapping import nest
from dse.mapping.schedule import sequential
from dse.sim.einsum.evaluate import Solution
from dse.sim.schedule.graph import evaluate
from dse.solve.gogeta.traffic import CountingRule, traffic_of
from dse.study import read
from hw import machine as machines
from tests.test_cli import SIZE, STUDY
from workloads import catalog

pytestmark = pytest.mark.xdist_group("door")

DOCS = Path(__file__).parents[1] / "docs"
WRONG = {
    "machine": [("clock_mhz", "clock"), ("128 KiB", "128"), ("width_bits", "width")],
    "study": [("objectives", "objective"), ("seed: 7", "seed: -7")],
    "workload": [("extents", "extent"), ("bits", "bit")],
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    folder = tmp_path_factory.mktemp("home")
    (folder / "small.yaml").write_text(STUDY)
    told: list[Any] = []
    found = dse.sweep(folder / "small.yaml", out=folder / "run", workers=0, progress=told.append)
    assert told[-1].state == "finished"
    assert told[-1].done == SIZE
    return found


def test_map_is_what_the_command_prints_and_is_kept() -> None:
    found = dse.map("gemm:m=64,n=32,k=48", "edge_array", objective="edp", **{"array.x": 12})
    told: list[str] = []
    again = dse.map(
        "gemm:m=64,n=32,k=48",
        "edge_array",
        objective="edp",
        progress=lambda number, efforts, name: told.append(name),
        **{"array.x": 12},
    )
    assert told == []
    assert again.totals == found.totals
    assert found.edp_pj_ns == found.totals["edp_pj_ns"]
    assert "store DRAM" in repr(found)
    assert "<table>" in found._repr_html_()
    assert found.einsums[0].mapping.startswith("store DRAM")
    assert found.einsums[0].area == found.area_mm2 == sum(row.area for row in found.machine)
    assert sum(one.dynamic + one.static for one in found.components) == pytest.approx(found.energy)
    with pytest.raises(AttributeError, match="there are energy_pj"):
        _ = found.energies
    with pytest.raises(AttributeError, match="latency is one of latency_cycles, latency_ns"):
        _ = found.latency
    assert found["edp_pj_ns"] == found.edp_pj_ns
    with pytest.raises(KeyError, match="there are energy_pj"):
        _ = found["energies"]


def test_the_schedule_of_an_answer_is_read_again(tmp_path: Path) -> None:
    found = dse.map("gemm:m=8,n=8,k=8", "a2")
    (tmp_path / "same.txt").write_text(found.schedule)
    assert dse.map("gemm:m=8,n=8,k=8", "a2", schedule=tmp_path / "same.txt").energy == found.energy


@pytest.mark.parametrize("machine", machines.names())
def test_a_machine_is_a_row_per_component(machine: str) -> None:
    arch = machines.load_arch(machine)
    rows = explain.machine(arch)
    assert [row["instances"] for row in rows] == [*arch.components().values()][: len(rows)]
    assert sum(row["area_mm2"] for row in rows) == pytest.approx(arch.area_mm2())
    assert sum(row["leak_mw"] for row in rows) == pytest.approx(arch.leak_mw())


def _texts(page: str) -> list[str]:
    """Texts of the cells of a notebook's HTML. Raises ParseError if it is no tree."""
    return ["".join(cell.itertext()) for cell in ElementTree.fromstring(f"<p>{page}</p>").iter("td")]


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ({"objective": "power"}, "did you mean energy"),
        ({"solver.mapper": "optimol"}, "did you mean optimal"),
        ({"array.z": 3}, "array"),
        ({"machine": "edge_aray"}, "did you mean edge_array"),
        ({"workload": "resnet51"}, "resnet"),
    ],
)
def test_a_wrong_word_is_a_value_error_with_the_choices(words: dict[str, Any], why: str) -> None:
    given = {"workload": "gemm:m=4,n=4,k=4", "machine": "edge_array"} | words
    with pytest.raises(ValueError, match=why):
        dse.map(given.pop("workload"), given.pop("machine"), **given)


def test_a_folder_of_the_user_that_bears_our_name_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "hw").mkdir()
    (tmp_path / "hw/__init__.py").write_text("")
    said = subprocess.run(
        [sys.executable, "-c", "import dse; dse.map('gemm:m=4,n=4,k=4', 'edge_array')"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert f"ImportError: {tmp_path / 'hw/__init__.py'}: shadows the package hw" in said.stderr


def test_what_does_not_fit_is_a_result() -> None:
    found = dse.map("gemm:m=64,n=32,k=48", "a3nb", **{"rf.capacity": "2 B"})
    assert found.status == "infeasible"
    assert "RF needs 3 bytes, has 2" in found.reason
    assert len(found.einsums) == 0
    assert found.schedule == ""
    assert found.reason in _texts(found._repr_html_())


def test_a_run_answers_in_python(run: runs.Run) -> None:
    front = run.front()
    assert 0 < len(front) < SIZE
    assert isinstance(front.table, pa.Table)
    assert "<table>" in front._repr_html_()
    assert str(front[0].machine) in _texts(run._repr_html_())
    assert "finished" in repr(run)
    assert [front[i] for i in range(len(front))] == list(front)
    assert front[-1] == list(front)[-1]
    with pytest.raises(IndexError):
        _ = front[len(front)]
    assert len(run.sql("FROM designs")) == SIZE
    assert run.status()["state"] == "finished"
    best = run.show()
    assert best.machine == next(iter(front))["machine"]
    assert best.solutions[0].energy_pj == next(iter(front))["energy_pj"]
    assert "store DRAM" in repr(best)
    assert any(text.startswith("store DRAM") for text in _texts(best._repr_html_()))
    assert run.show(best.machine).row == best.row
    assert run.show("best:latency_ns").solutions
    for point, why in (
        (SIZE, "machines 0 to"),
        ("worst", "best:COLUMN"),
        ("best:energy", "did you mean energy_pj"),
    ):
        with pytest.raises(ValueError, match=why):
            run.show(point)
    with pytest.raises(ValueError, match="no run is there"):
        dse.open(run.path / "nowhere")
    with pytest.raises(ValueError, match="is a file, and a run is a folder"):
        dse.open(run.path / "study.yaml")


def test_a_machine_beyond_the_end_of_a_run_says_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "small.yaml").write_text(STUDY)
    short = dse.sweep(tmp_path / "small.yaml", out=tmp_path / "run", workers=0, **{"stop.machines": 1})
    [done] = short.sql("SELECT machine FROM machines").table["machine"].to_pylist()
    with pytest.raises(
        ValueError,
        match=r"ended before it \(stop.machines = 1 reached\); dse run with a larger stop \(such as "
        r"stop.machines\) continues it, dse map .* --set array.x=",
    ) as said:
        short.show(next(number for number in range(SIZE) if number != done))
    assert cli.main(["show", str(tmp_path / "run"), str(done), "--neighbours"]) == 0
    assert "not solved: the run ended before it (stop.machines = 1 reached)" in capsys.readouterr().out
    asked = dict(one.split("=") for one in shlex.split(str(said.value)) if "." in one and "=" in one)
    assert dse.map(
        "gemm:m=4,n=4,k=4", "edge_array", **{key: yaml.safe_load(value) for key, value in asked.items()}
    ).status


def test_a_frame_is_pandas(run: runs.Run) -> None:
    frame = run.front().frame()
    assert list(frame.columns) == run.front().table.column_names
    assert frame["machine"].tolist() == [row["machine"] for row in run.front()]


@pytest.mark.parametrize("what", templates.TEXTS)
def test_a_starting_file_is_valid_as_it_stands(what: str, tmp_path: Path) -> None:
    (tmp_path / f"mine_{what}.yaml").write_text(templates.TEXTS[what])
    line, _ = check.file(str(tmp_path / f"mine_{what}.yaml"))
    assert line.startswith(what)


def test_every_key_has_a_meaning_and_every_meaning_a_key() -> None:
    """The keys come from what checks the files; a new one without a meaning, or a meaning without a key,
    fails here.
    """
    listed = list(keys.listing())
    assert [key.key for key in listed if not key.meaning] == []
    for file, prefix, _, meanings in keys.SCHEMAS:
        own = {
            key.key.removeprefix(prefix) for key in listed if key.file == file and key.key.startswith(prefix)
        }
        assert set(meanings) <= own, (file, prefix)
    top = {key.key.partition(".")[0].removesuffix("[]") for key in listed if key.file == "study"}
    assert top == set(read.KEYS)


def test_schemas_take_every_file_that_comes_along_and_no_misspelt_one() -> None:
    home = DOCS.parent
    files = {
        "machine": [*home.glob("hw/machines/*.yaml")],
        "study": [*home.glob("studies/*.yaml")],
        "workload": [],
    }
    for kind, paths in files.items():
        checks = Draft202012Validator(keys.schema(kind))
        checks.check_schema(checks.schema)
        texts = {str(path): path.read_text() for path in paths} | {"start": templates.TEXTS[kind]}
        assert {
            name: [fault.message for fault in checks.iter_errors(yaml.safe_load(text))]
            for name, text in texts.items()
        } == {name: [] for name in texts}
        wrong = [re.sub(rf"\b{old}\b", new, templates.TEXTS[kind]) for old, new in WRONG[kind]]
        assert all(
            text != templates.TEXTS[kind] and not checks.is_valid(yaml.safe_load(text)) for text in wrong
        )


def test_docs_have_a_row_for_every_key_and_the_starting_files() -> None:
    text = (DOCS / "files.md").read_text()
    rows = [
        f"| `{key.key}` | {f'`{key.default}`' if key.default else ''} | {key.unit} | {key.meaning} |"
        for key in keys.listing()
    ]
    assert [row for row in rows if row not in text] == []
    assert [what for what, start in templates.TEXTS.items() if start not in text] == []


def test_the_mapping_of_the_docs_is_read_in_both_forms_and_costs_what_is_counted_by_hand() -> None:
    nests = {
        page: re.findall(r"```(?:text|yaml)\n((?:store|gemm:).*?)```", (DOCS / page).read_text(), re.S)
        for page in ("files.md", "model.md")
    }
    [text, data], [same] = nests["files.md"], nests["model.md"]
    mapping = nest.parse(text)
    assert text == same
    assert mapping == nest.from_data(yaml.safe_load(data)["gemm"])
    gemm = catalog.load("gemm:m=4,n=2,k=6")
    found = evaluate(machines.arch(machines.load("a2")), gemm, sequential(gemm, {"gemm": mapping}))
    assert isinstance(found, Solution)
    assert found.energy_pj == 12400 == (48 + 8) * 200 + (96 + 96) * 6 + 48
    assert found.latency_cycles == 12
    counted = {(c.level, c.tensor, c.action): c.elems for c in found.einsums[0].counts}
    page = (DOCS / "model.md").read_text()
    for level, tensor in (("GLB", "A"), ("GLB", "B"), ("GLB", "C")):
        [row] = re.findall(rf"\| {level} \| {tensor} \|.*\| (\d+) read, (\d+) write \|", page)
        assert (counted[level, tensor, "read"], counted[level, tensor, "write"]) == tuple(map(float, row))
    assert counted["DRAM", "A", "read"] + counted["DRAM", "B", "read"] == 48
    assert counted["DRAM", "C", "write"] == 8
    assert dict(found.einsums[0].price.busy_cycles) == {"DRAM": 7, "GLB": 3, "MAC": 12}


def test_residency_is_what_the_command_prints() -> None:
    """ecology1 with 4 MiB. SEQ-Flex per iteration: the matrix, 14 tensors of 8 million words, 11 of 8 x 8;
    Ideal: 8 x 8 words in and out too.
    """
    found = dse.residency("cg:matrix=ecology1,n=8,form=periodic", "gogeta_clusters")
    rows = {row["configuration"]: row for row in found.configurations}
    flex, ideal = (
        10 * (2 * 4_996_000 + 1_000_000 + 14 * 8_000_000 + 11 * 64),
        2 * 4_996_000 + 1_000_000 + 6 * 8_000_000 + 2 * 64,
    )
    assert [row["dram_bytes"] for row in rows.values()] == [
        4 * n for n in (flex, 1186933184, 958465720, ideal, 878468909)
    ]
    assert list(rows)[-1] == "Optimal"
    told = found.document()
    assert {e["tensor"] for e in told["edges"] if e["pattern"] == "pipelineable"} == {"S_0", "R_1"}
    assert any(e["to_next_period"] and e["tensor"] == "P_1" for e in told["edges"])
    assert len(told["phases"]) == 5
    assert told["Optimal"] == (
        "lower bound for all orders and pipelines of operations, each operand read once, step by step"
    )
    assert "30 words" in repr(found)
    assert "SEQ-Flex" in _texts(found._repr_html_())
    assert told["operations"] == (  # the sparse product gathers
        "1 of 8 cannot read each operand only once (the buffer is too small); "
        "no bound is known for the rereads of 1 of them"
    )
    assert all(stay.last // 5 == 2 for stay in found.reuse.optimal.spans)
    assert len(figures.residency(found.arch, found.workload, found.reuse).steps) <= 30
    more = dse.residency(
        "cg:matrix=ecology1,n=8,form=periodic", "gogeta_clusters", **{"sram.capacity": "1 MiB"}
    )
    assert more.reuse.optimal.cost < found.reuse.optimal.cost
    assert more.reuse.capacity_words == 4 * found.reuse.capacity_words


def test_residency_as_published() -> None:
    """The published figures of ecology1 with 4 MiB: 1.273 times less than SEQ-Flex, and the optimum 0.9 %
    below GOGETA.
    """
    w = catalog.load("cg:matrix=ecology1,n=8,form=periodic")
    found = traffic_of(w, 2**20, 32, count=CountingRule(as_published=True))
    moved = (
        found.seq_flex,
        found.seq_overflow.words(),
        found.gogeta.words(),
        found.ideal,
        found.optimal.cost,
    )
    assert moved == (1309920000, 1297337088, 1029025536, 58992000, 1019588352)
    assert (
        "an operand's space is released once it was read"
        in dse.residency("gemm:m=8,n=8,k=8", "a2", method="gogeta-published").text()
    )


def test_residency_of_any_network_in_words_of_its_machine() -> None:
    """8-bit words on an 8-bit machine; the published method too."""
    found = dse.residency("resnet18", "edge_array", method="gogeta-published")
    assert found.reuse.optimal.cost <= min(found.reuse.gogeta.words(), found.reuse.seq_overflow.words())
    assert "SEQ-Flex" in found.text()
    assert "more rows; --format json lists them" in found.text()


@pytest.mark.parametrize(
    ("workload", "machine", "more", "line"),
    [
        ("cg:n=8", "a3nb", {"method": "best"}, "method = best must be corrected or gogeta-published"),
        ("cg:n=8", "gogeta_cluster", {}, "gogeta_clusters"),
        ("cgg", "a3", {}, "no workload is named cgg"),
        ("cg:n=8", "gogeta_clusters", {"sram.size": "1 MiB"}, "sram"),
        ("cg:n=8", "gogeta_clusters", {"solver.tile": "1"}, "tile"),
    ],
)
def test_residency_faults_are_one_line(workload: str, machine: str, more: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError, match=line) as fault:
        dse.residency(workload, machine, **more)
    assert "\n" not in str(fault.value)

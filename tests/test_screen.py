"""What a terminal of 80, 120 and 200 columns shows: nothing folds, numbers have units, what is left out is
named, text stays text.
"""

from __future__ import annotations

import io
import json
import re
from contextlib import redirect_stdout
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

import dse
from cluster import driver
from dse.explain import figures, units
from dse.explain import values as explain
from dse.frontend import answers, api, compare, runs, tables
from dse.frontend.arguments import EXAMPLES
from dse.frontend.mapped import Mapped
from dse.mapper.exact.optimal import optimal
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost
from dse.study import study as studies
from hw import machine
from tests.amount import some
from tests.terminal import lines
from tests.test_cli import STUDY
from workloads import catalog

pytestmark = pytest.mark.xdist_group("screen")

WIDTHS = (80, 120, 200)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    (folder / "small.yaml").write_text(
        STUDY.replace("array.x: [2, 4, 8]", "array.x: [2, 4, 8]\n  array.y: [2, 4]")
    )
    driver.run(studies.load(folder / "small.yaml"), folder / "run", workers=0)
    return folder


COMMANDS = [
    ("pareto", "run", "--all"),
    (
        "pareto",
        "--by",
        "dram_kind,array_x",
        "--objectives",
        "-throughput,power_mw,energy_pj,edp_pj_ns,latency_ns",
        "run",
    ),
    ("status", "run"),
    ("show", "run", "best", "--neighbours"),
    ("sql", "run", "FROM designs", "--all"),
    ("sql", "run", "FROM einsums", "--all"),
    ("list", "keys", "--all"),
    ("list", "columns", "--all"),
    ("list", "workloads", "--all"),
    ("list", "machines", "--all"),
    ("list", "solvers", "--all"),
    ("check", "small.yaml", "resnet18"),
    ("map", "gemm:m=64,n=32,k=48", "edge_array"),
]


@pytest.mark.parametrize("columns", WIDTHS)
def test_no_line_is_folded_by_the_terminal(home: Path, columns: int) -> None:
    for command in COMMANDS if columns == 80 else COMMANDS[:3]:
        said = lines(home, columns, *command)
        assert len(said) > 3, command
        assert [line for line in said if cell_len(line) > columns] == [], command


@cache
def mapped() -> tuple[Mapped, Mapped]:
    return (
        dse.map("resnet18", "edge_array", **{"solver.mapper": "cost_descending"}),
        dse.map("gemm:m=64,n=32,k=48", "edge_array"),
    )


@pytest.mark.parametrize("columns", some([72, 80, 120], 0, 2))
@pytest.mark.parametrize("why", [False, True])
def test_no_word_of_a_mapping_is_broken(home: Path, columns: int, why: bool) -> None:
    """Nor a number torn from its %, nor an option from its value."""
    for found in (*mapped(), dse.open(home / "run").show("best")):
        words = {word.strip(",;():") for word in found.text("all", why=why).replace("─", "").split()}
        words |= {"not", "shown", "a", "wider", "terminal", "or", "--format", "json", "shows", "it", "them"}
        narrow = found.text("all", columns, why).replace("─", "")
        assert {word.strip(",;():") for word in narrow.split()} <= words
        assert [line for line in narrow.splitlines() if re.match(r"\s*%|.*--set$", line)] == []


def test_what_certificates_of_a_table_searched_is_said_once_below_it(home: Path) -> None:
    statement = "SELECT einsum, certificate FROM einsums LIMIT 4"
    said = [*dict.fromkeys(lines(home, 200, "sql", "run", statement))]
    at = next(i for i, line in enumerate(said) if re.fullmatch(r"\d+ rows?", line))
    assert any("the searched space" in line for line in said[:at])
    assert not any("searched: " in line for line in said[:at])
    assert next(line.startswith("searched: ") for line in said[at + 1 :] if "searched: " in line)


def test_a_front_of_one_mapping_per_machine_says_so(home: Path) -> None:
    assert any("each machine has one mapping" in line for line in lines(home, 200, "pareto", "run"))


def test_a_certificate_is_one_short_line_and_the_rest_is_asked_for(home: Path) -> None:
    for command in (("map", "gemm:m=64,n=32,k=48", "edge_array"), ("show", "run", "best")):
        short, full = lines(home, 80, *command), lines(home, 80, *command, "--why")
        at = next(i for i, line in enumerate(short) if line.startswith("certificate "))
        assert "optimal in the searched space" in short[at]
        assert short[at + 1] == explain.WHY
        assert not any(re.match("(not )?searched:|what may help", line) for line in short)
        assert any(line.startswith("searched:") for line in full)
        assert any(line.startswith("not searched:") for line in full)
        assert "at most" in " ".join(full)


def test_a_narrow_list_of_keys_has_values_and_defaults_below_the_meanings(home: Path) -> None:
    narrow = " ".join(" ".join(lines(home, 80, "list", "keys", "--all")).split())
    assert "not shown" not in narrow
    assert "values: exhaustive, random, qmc, bounds, nsga2, nsga3, tpe; default: exhaustive" in narrow
    assert not any("values: " in line for line in lines(home, 200, "list", "keys", "--all"))


def test_a_table_ends_at_the_screen_unless_all_is_asked_for(home: Path) -> None:
    for command in (("sql", "run", "FROM counts"), ("list", "keys")):
        said = [line for line in lines(home, 80, *command) if line]
        assert len(said) <= 50
        more = re.fullmatch(r"(\d+) rows of (\d+); --all or --format csv shows the other (\d+)", said[-1])
        assert more, said[-1]
        assert int(more[1]) + int(more[3]) == int(more[2])
        every = [line for line in lines(home, 80, *command, "--all") if line]
        assert every[-1] == f"{more[2]} rows"
        assert len(every) > len(said)


def test_a_wide_table_keeps_objectives_and_axes_and_names_what_is_left_out(home: Path) -> None:
    """And what was searched is said where certificates are shown, nowhere else."""
    counts, has_certificates = [], []
    for columns in (*WIDTHS, 400):
        said = lines(home, columns, "sql", "run", "FROM designs ORDER BY machine")
        text = "\n".join(said)
        note = re.search(r"\(not shown: ([^;]*);[^)]*--format json", " ".join(said))
        left_out = note[1].split(", ") if note else []
        assert "certificate" in text
        kept = {"machine", "energy_pj", "latency_ns", "array_x", "array_y", "dram_kind"}
        assert not kept & set(left_out)
        assert re.search(r"\bddr3\b|\blpddr4\b|\blpddr5\b", text)
        assert any(line.startswith("searched: ") for line in said) == ("certificate" not in left_out)
        counts.append(len(left_out))
        has_certificates.append("certificate" not in left_out)
    assert counts[0] > counts[1] > counts[2] > counts[3]
    assert not has_certificates[0]
    assert has_certificates[-1]


@pytest.mark.parametrize("columns", [36, 48, 80])
def test_what_varies_in_a_front_is_shown_before_its_bookkeeping(home: Path, columns: int) -> None:
    """Heads fold, then the row; what is left out is named, and is no parameter."""
    said = lines(home, columns, "pareto", "run", "--distinct", "--all")
    front = dse.open(home / "run").front(distinct=True).frame()
    assert front["dram_kind"].nunique() > 1
    assert front["array_x"].nunique() > 1
    text, left_out = "\n".join(said), re.findall(r"not shown: ([^;]*);", " ".join(said))
    assert text.count("lpddr5") == (front["dram_kind"] == "lpddr5").sum()
    assert ("array_x" in text) or ("array_" in text and "       x" in text)
    assert all(set(one.split(", ")) <= {"tied designs", "gap to bound"} for one in left_out)
    assert max(map(cell_len, said)) <= columns


@given(
    st.lists(st.floats(1e-3, 1e18), min_size=1, max_size=6),
    st.sampled_from(["energy_pj", "latency_ns", "capacity_bytes", "edp_pj_ns", "area_mm2", "x"]),
)
def test_a_cell_is_the_number_to_four_digits(values: list[float], name: str) -> None:
    """Read back with its unit it is the value, whatever unit its column shares; and it is short."""
    cells = units.column(name, values)
    assert cells is not None
    scales = {unit: scale for scale, unit in units.steps_of(name)} or {"": 1.0}
    for cell, value in zip(cells, values, strict=True):
        text, _, unit = cell.partition(" ")
        assert float(text) * scales[unit] == pytest.approx(value, rel=6e-4)
        assert len(cell) <= 16


@given(
    st.lists(
        st.tuples(st.text(max_size=60), st.floats(1e-3, 1e18), st.text(max_size=200)), min_size=1, max_size=5
    ),
    st.integers(30, 200),
)
def test_no_row_is_wider_than_its_room(rows: list[tuple[str, float, str]], room: int) -> None:
    said = tables.table(("name", "energy_pj", "meaning"), rows, width=room)
    assert max(map(cell_len, said.splitlines())) <= max(room, 24)
    assert (
        all(units.column("energy_pj", [r[1] for r in rows])[i] in said for i in range(len(rows)))
        or "not shown:" in said
    )  # type: ignore[index]


def test_text_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Brackets are no markup, what steers a terminal is an escape, in tables, facts, faults and HTML."""
    evil = "[/] C[m,n] += A[m,k] \x1b[2J\x07\u202e<b>"
    said = tables.table(("text",), [(evil,)]) + tables.facts({"a": evil})
    assert said.count("[/] C[m,n] += A[m,k] \\x1b[2J\\x07\\u202e<b>") == 2
    assert "\x1b" not in said
    assert "\u202e" not in said
    page = answers.Answer(answers.pa.table({"x<y": [evil], "n": [1]}))._repr_html_()
    assert "<b>" not in page
    assert "&lt;b&gt;" in page
    assert "x&lt;y" in page
    assert "\x1b" not in page


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_spatial_loops_are_told_apart_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """In colour there; plain text anywhere else, and where NO_COLOR asks for it."""
    nest = "for m in [0:8) tile 8\n  parfor n in [0:16) tile 2 over X\n    mac"
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured, plain = Terminal(), io.StringIO()
    for out in (coloured, plain):
        with redirect_stdout(out):
            tables.print_nests(nest)
    assert plain.getvalue() == f"{nest}\n"
    assert [i for i, line in enumerate(coloured.getvalue().splitlines()) if "\x1b[" in line] == [1]
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured.getvalue()) == plain.getvalue()


def test_names_on_screens_carry_no_unit() -> None:
    """The cell has it; several values of one name stand in one line."""
    said = tables.facts(
        {"energy_pj": 584608.3, "latency_cycles": 524.0, "latency_ns": 1048.0, "gbuf_capacity": 32768}
    )
    assert [line.split("  ")[0] for line in said.splitlines()[2:]] == [
        "energy",
        "latency",
        "gbuf capacity",
        "",
    ][: len(said.splitlines()) - 2]
    assert "584.6 nJ" in said
    assert "524 cycles, 1.048 us" in said
    assert "32 KiB" in said


def test_csv_for_a_spreadsheet_holds_no_formula() -> None:
    rows = [("=1+1", -2.5, "x"), ("+x", 3, "@y"), ("-z", None, "\tq")]
    plain, tame = io.StringIO(), io.StringIO()
    with redirect_stdout(plain):
        tables.print_rows(("a", "b", "c"), rows, "csv")
    with redirect_stdout(tame):
        tables.print_rows(("a", "b", "c"), rows, "csv", csv_safe=True)
    assert plain.getvalue().splitlines()[1] == "=1+1,-2.5,x"
    assert tame.getvalue().splitlines() == ["a,b,c", "'=1+1,-2.5,x", "'+x,3,'@y", "'-z,,'\tq"]


def test_units_of_a_statement_are_those_of_columns(home: Path) -> None:
    """Of plain references and what keeps their unit, under any alias; never of another expression, whatever
    its alias ends with.
    """
    run = runs.open(home / "run")
    kept = lines(home, 200, "sql", "run", "SELECT avg(energy_pj), max(energy_pj) AS latency_ns FROM designs")
    assert kept[2].count(" uJ") == 2
    made = "energy_pj / area_mm2 AS pj_per_mm2, log(energy_pj) AS log_pj, 1 - latency_ns AS latency_ns"
    statement = f"SELECT energy_pj AS e, {made} FROM designs LIMIT 1"
    answer = run.sql(statement)
    energy, *rest = repr(answer).splitlines()[2].split("  ")
    assert energy.endswith("uJ")
    assert not re.search("[a-zA-Z]{2}", " ".join(rest))
    assert answer._repr_html_().count(" uJ</td>") == 1
    assert " mm2</td>" not in answer._repr_html_()
    shown = lines(home, 200, "sql", "run", statement)
    assert " uJ" in shown[2]
    assert "mm2" not in shown[2]
    assert " pJ" not in shown[2]
    assert " ns" not in shown[2]


def test_sensitivity_implies_all_other_axes(home: Path) -> None:
    run = runs.open(home / "run")
    given = "['array_y', 'dram_kind', 'gbuf_capacity']"
    alone = run.sql("FROM sensitivity('designs', 'energy_pj', 'array_x')")
    for row, other in zip(
        alone, run.sql(f"FROM sensitivity('designs', 'energy_pj', 'array_x', {given})"), strict=True
    ):
        assert (row.value, row.rows, row.paired) == (other.value, other.rows, other.paired)
        assert row.times_the_mean == pytest.approx(other.times_the_mean)
    assert alone.unit_keys() == ["array_x", "", "", ""]
    with pytest.raises(ValueError, match=r"clock_ghz is no axis of the study; give one \(array_x, array_y"):
        run.sql("FROM sensitivity('designs', 'energy_pj', 'clock_ghz')")
    both = runs.Runs({"a": run, "b": run})
    assert both.sql("SELECT run, energy_pj AS e, min(area_mm2) FROM designs GROUP BY ALL").unit_keys() == [
        "run",
        "energy_pj",
        "area_mm2",
    ]
    twice = both.sql("FROM sensitivity('designs', 'energy_pj', 'array_x')")
    assert [(row.value, row.rows) for row in twice] == [(row.value, 2 * row.rows) for row in alone]
    assert [row.times_the_mean for row in twice] == pytest.approx([row.times_the_mean for row in alone])


def test_a_text_without_quotes_is_pointed_at_them(home: Path) -> None:
    """And a wrong name of a column is not."""
    run = runs.open(home / "run")
    with pytest.raises(ValueError, match=r"lpddr5.*; a text stands in single quotes: 'lpddr5'$"):
        run.sql("SELECT machine FROM designs WHERE dram_kind = lpddr5")
    with pytest.raises(ValueError, match=r"^energy: no such column; did you mean energy_pj\?$") as fault:
        run.sql("SELECT avg(energy) FROM designs")
    assert "quotes" not in str(fault.value)


def test_columns_that_say_nothing_are_left_out(home: Path) -> None:
    said = lines(home, 200, "pareto", "run", "--where", "dram_kind = 'lpddr5'")
    assert "schedule" not in said[0]
    assert "dram_kind" not in said[0]
    assert any(re.search("in all of them .*dram_kind = lpddr5", line) for line in said)


def test_where_the_energy_goes(home: Path) -> None:
    """Dynamic and static parts of the components make the energy, and a DRAM that mostly waits is named."""
    found = api.map(
        "gemm:m=64,n=32,k=48",
        "edge_array",
        **{"dram.kind": "ddr3", "dram.channels": 1, "array.x": 2, "array.y": 2},
    )
    table = explain.energy(found.arch, found.solution)  # type: ignore[arg-type]
    parts = explain.components(found.arch, found.solution)  # type: ignore[arg-type]
    assert sum(one.energy_pj for one in parts) == pytest.approx(found.energy_pj)
    assert sum(one.area_mm2 for one in parts) == pytest.approx(found.area_mm2)
    for head in ("energy_share", "area_share"):
        assert sum(row[table.header.index(head)] for row in table.rows) == pytest.approx(1)
    assert re.match(r"[6-9]\d\.\d % of the energy is static: what DRAM", table.note)
    plain = api.map("gemm:m=64,n=32,k=48", "edge_array")
    assert explain.energy(plain.arch, plain.solution).note == ""  # type: ignore[arg-type]


def test_rates_counted_by_hand() -> None:
    """64 x 32 x 48 MACs in 524 cycles of 2 ns on 256 MAC units; A, B and C cross DRAM once, a byte each."""
    found = api.map("gemm:m=64,n=32,k=48", "edge_array")
    assert (found.latency_cycles, found.arch.clock_ghz) == (524, 0.5)
    assert found.tops == pytest.approx(2 * 98304 / 1048 / 1e3)
    assert found.tops_per_w == pytest.approx(2 * 98304 / found.energy_pj)
    assert found.macs_per_byte == pytest.approx(98304 / (64 * 48 + 48 * 32 + 64 * 32))
    assert found.share_of_peak == pytest.approx(98304 / (524 * 256))
    (row,) = found.einsums
    assert (row["latency_ns"], row["mac_utilization"]) == (1048, 1)
    assert all(row[name] == getattr(found, name) for name in ("tops", "tops_per_w", "macs_per_byte"))
    text = found.text()
    for told in ("187.6 GOPS", "0.3363 TOPS/W", "14.77 MAC/B", "73.3 %", "1.048 us"):
        assert told in text


def test_lines_that_move_count_in_the_operational_intensity() -> None:
    """Bytes of cache lines beyond those asked for cross main memory, too: roofline and totals agree."""
    found = api.map("gemm:m=24,n=20,k=12", "burst_edge", **{"solver.mapper": "cost_descending"})
    (c,) = found.solution.einsums  # type: ignore[union-attr]
    unused = sum(t.unused_bits + t.modified_bits for t in c.layout_traffic if t.level == "DRAM") / 8
    asked = sum(row.elems for row in c.counts if row.level == "DRAM")
    (dot,) = figures.roofline(found.arch, found.workload, found.solution).dots  # type: ignore[arg-type]
    assert unused > 0
    assert found.macs_per_byte == dot.intensity == pytest.approx(24 * 20 * 12 / (asked + unused))


def test_equal_einsums_are_compared_with_all_their_occurrences(tmp_path: Path) -> None:
    path = tmp_path / "two.yaml"
    path.write_text(
        "extents: {m: 16, k: 16, n: 16, q: 16}\n"
        "einsums: ['T[m,n] += X[m,k] * W[k,n]', 'Y[m,q] += T[m,n] * V[n,q]']\n"
    )
    a, b = (api.map(str(path), "edge_array", **{"solver.mapper": mapper}) for mapper in ("optimal", "random"))
    (row,) = a.einsums
    level_rows = compare.mappings(a, b)[3].rows
    assert (row["occurrences"], row["names"]) == (2, ["T", "Y"])
    [einsums] = compare.to_json(compare.mappings(a, b))["einsums"]
    assert (einsums["einsums"], einsums["energy_pj_a"]) == (("T", "Y"), pytest.approx(a.energy_pj))
    [outer] = [one[2] for one in level_rows if one[1] == "DRAM"]
    assert outer == pytest.approx(2 * 16**3 / a.macs_per_byte) == 2 * row["main_memory_bytes"]
    assert sum(one[5] for one in level_rows) == pytest.approx(a.energy_pj)  # leakage among them


def test_time_in_which_even_the_busiest_component_is_idle_is_said_by_level() -> None:
    """Here the latency is compute and stalls: no busy cycles say that."""
    for overlap, stalls in (("buffered", {"REGF", "GBUF"}), ("free", set())):
        found = api.map("gemm:m=64,n=32,k=48", "edge_array", overlap=overlap)
        [cost] = found.solution.einsums  # type: ignore[union-attr]
        by_level = explain.stall_cycles(found.arch, cost)
        assert set(by_level) == stalls
        steps = dict(cost.price.busy_cycles)["MAC"]
        if stalls:
            assert sum(by_level.values()) + steps == cost.latency_cycles
        [e] = found.workload.einsums
        note = explain.einsum(found.arch, e, cost)[1][-1].note
        assert ("the busiest, is idle for" in note) == bool(stalls)
        assert all(f"{name} {cycles:g} cycles" in note for name, cycles in by_level.items())


def test_components_that_bind_alike_are_both_named() -> None:
    single = {"overlap": "free", "gbuf.double_buffer": False, "regf.double_buffer": False}
    found = api.map("gemm:m=64,n=32,k=48", "edge_array", **single, **{"solver.factors": "perfect"}).solution
    [cost] = found.einsums  # type: ignore[union-attr]
    busy = dict(cost.price.busy_cycles)
    assert busy["GBUF"] == busy["MAC"] == cost.latency_cycles
    assert set(explain.bottlenecks(cost)) == {"GBUF", "MAC"}
    table = explain.network(
        machine.arch(machine.load("edge_array")), catalog.load("gemm:m=64,n=32,k=48"), found, False
    )[1]  # type: ignore[arg-type]
    assert set(table.rows[0][table.header.index("bottleneck")].split(", ")) == {"GBUF", "MAC"}


@pytest.mark.parametrize(
    ("asked", "hint"),
    [
        ({"solver.factors": "imperfect"}, "solver.gap=0"),
        ({"solver.mapper": "cost_descending"}, "solver.mapper=optimal"),
    ],
)
def test_a_hint_asks_for_what_was_not_asked_for(asked: dict[str, str], hint: str) -> None:
    """What is not proven is told how it may be, and following the hint proves it."""
    found = api.map("gemm:m=127,n=31,k=47", "edge_array", **asked)
    told = explain.advice(found.arch, found.workload, found.solution)  # type: ignore[arg-type]
    sets = {key: yaml.safe_load(value) for key, value in re.findall(r"--set (\S+)=(\S+)", told)}
    assert hint in told
    assert (
        "not proven"
        not in api.map("gemm:m=127,n=31,k=47", "edge_array", **{**asked, **sets}).totals["certificate"]
    )


def test_what_is_not_proven_to_the_end_is_not_called_proven() -> None:
    found = api.map("gemm:m=64,n=32,k=48", "edge_array")
    assert "optimal in its searched space" in explain.advice(found.arch, found.workload, found.solution)  # type: ignore[arg-type]
    near = replace(found.solution, optimality_gap=9.15e-4)  # type: ignore[type-var]
    assert "at most 0.0915 % above the optimum of its space" in (
        said := explain.advice(found.arch, found.workload, near)
    )
    assert "proven" not in said
    fused = api.map("gemm:m=64,n=32,k=48", "edge_array", **{"solver.schedule": "fused"})
    large = replace(fused.solution, gap_to_bound=0.2)  # type: ignore[type-var]
    assert "counts compulsory traffic only" in (said := explain.advice(fused.arch, fused.workload, large))
    assert "mapper" not in said
    ended = replace(large, left_out="limits.seconds ended it")
    assert explain.advice(fused.arch, fused.workload, ended).endswith(
        "ended it: more seconds search the rest"
    )


def test_einsums_that_make_most_of_the_cost_come_first() -> None:
    found = api.map("resnet18", "edge_array", **{"solver.mapper": "cost_descending"})
    short, whole = (
        explain.network(found.arch, found.workload, found.solution, every)[1] for every in (False, True)
    )  # type: ignore[arg-type]
    at = short.header.index("share")
    shares = [row[at] for row in whole.rows]
    assert shares == sorted(shares, reverse=True)
    assert sum(shares) == pytest.approx(1)
    assert short.rows == whole.rows[: len(short.rows)]
    assert sum(shares[: len(short.rows)]) >= 0.8 > sum(shares[: len(short.rows) - 1])
    assert f"{len(whole.rows) - len(short.rows)} more einsums" in short.note
    moved = sum(row["occurrences"] * row["main_memory_bytes"] for row in found.einsums)
    assert max(row["occurrences"] for row in found.einsums) > 1
    assert found.macs_per_byte == pytest.approx(found.workload.macs() / moved)
    assert found.share_of_peak <= max(row["share_of_peak"] for row in found.einsums)


def test_traffic_names_the_width_of_an_action() -> None:
    found = api.map("gemm:m=64,n=32,k=48", "edge_array", **{"solver.factors": "perfect", "overlap": "free"})
    _, [traffic, *_] = explain.einsum(found.arch, found.workload.einsums[0], found.solution.einsums[0])  # type: ignore[union-attr]
    width = {level.name: level.width_bits for level in found.arch.levels}
    at = traffic.header.index("width_bits")
    assert {row[0]: row[at] for row in traffic.rows if row[at]} == width


def test_neighbours_are_one_step_away(home: Path) -> None:
    run = runs.open(home / "run")
    best = run.show("best").machine
    around = list(run.neighbours(best))
    assert {row["parameter"] for row in around} == {"array.x", "array.y", "gbuf.capacity", "dram.kind"}
    own = {row["machine"]: row for row in run.sql("FROM designs")}
    for row in around:
        changed = [
            c
            for c in ("array_x", "array_y", "gbuf_capacity", "dram_kind")
            if own[best][c] != own[row["machine"]][c]
        ]
        assert changed == [row["parameter"].replace(".", "_")]
        assert (
            row["energy_pj_change"]
            == f"{100 * (own[row['machine']]['energy_pj'] / own[best]['energy_pj'] - 1):+.1f} %"
        )


def test_points_of_equal_objectives_are_one_row(home: Path) -> None:
    """2x4 and 4x2 lanes: the same area, latency and, but for the last digits, energy."""
    run = runs.open(home / "run")
    every, once = (
        run.front(["area_mm2", "throughput:max"]),
        run.front(["area_mm2", "throughput:max"], distinct=True),
    )
    assert len(every) > len(once)
    assert sum(row["tied_designs"] for row in once) == len(every)
    values = [(row["area_mm2"], row["throughput"]) for row in once]
    assert len(values) == len(set(values))
    assert set(values) == {(row["area_mm2"], row["throughput"]) for row in every}


def test_a_front_for_each_value(home: Path) -> None:
    run = runs.open(home / "run")
    every = run.front(["energy_pj", "area_mm2"], by=["dram_kind"])
    kinds = [row["dram_kind"] for row in every]
    assert kinds == sorted(kinds)
    assert set(kinds) == {"gddr6", "lpddr4", "lpddr5"}
    for kind in set(kinds):
        alone = run.front(["energy_pj", "area_mm2"], where=f"dram_kind = '{kind}'")
        assert [row["machine"] for row in alone] == [
            row["machine"] for row in every if row["dram_kind"] == kind
        ]
    with pytest.raises(ValueError, match="did you mean dram_kind"):
        run.front(by=["dram_knd"])


def test_designs_have_no_ambiguous_column(home: Path) -> None:
    run = runs.open(home / "run")
    names = run.sql("FROM designs").table.column_names
    assert len(names) == len(set(names))
    assert {"machine", "area_mm2", "array_x", "energy_pj", "status", "model_version"} <= set(names)
    axes = {"array_x", "array_y", "gbuf_capacity", "dram_kind"}
    repriced = {
        1: run.sql("FROM what_if({dram_pj: 0.5}, machines := [0])").table.column_names,
        3: run.sql("FROM robust({dram_pj: 0.2}, 1, machines := [0])").table.column_names,
    }
    for ids, found in {2: names, **repriced}.items():  # then the axes, then costs, limits last
        assert {*found[ids : ids + len(axes)]} == axes
        assert found.index("energy_pj") < found.index("status") < found.index("solver_version")
    joined = run.sql("SELECT area_mm2, array_x, min(energy_pj) FROM designs GROUP BY ALL").table
    assert joined.num_rows > 0


def test_a_name_of_two_tables_is_asked_for_by_its_table(home: Path) -> None:
    with pytest.raises(ValueError, match=r'use: "e.einsum" or "d.einsum".*is infeasible, else NULL') as e:
        runs.open(home / "run").sql("SELECT einsum FROM einsums e JOIN designs d USING (machine)")
    assert "\n" not in str(e.value)


def test_grammar(home: Path) -> None:
    """--format json everywhere, options before and after arguments, -x,y as objectives."""
    said = json.loads("".join(lines(home, 80, "show", "--format", "json", "run", "best")))
    assert said["status"] == "ok"
    assert said["workloads"]
    for command in (
        ("status", "run"),
        ("list", "solvers"),
        ("check", "small.yaml"),
        ("pareto", "run"),
        ("sql", "run", "SELECT 1 AS x"),
    ):
        assert json.loads("".join(lines(home, 80, command[0], "--format", "json", *command[1:])))
    one, other = (
        lines(home, 120, *typed)
        for typed in (
            ("pareto", "run", "--objectives", "-throughput,power_mw"),
            ("pareto", "--objectives=-throughput,power_mw", "run"),
        )
    )
    assert one == other
    assert any("highest throughput, lowest power" in line for line in one)


def test_the_questions_of_help_are_answered(home: Path) -> None:
    run, asked = (
        runs.open(home / "run"),
        re.findall(r'dse sql \S+ "(SELECT[^"]*)"', "\n".join(EXAMPLES.values())),
    )
    assert asked
    for statement in asked:
        assert run.sql(statement).table.num_columns > 1, statement


def test_the_footprint_shown_is_what_capacities_are_held_against() -> None:
    """Double buffers count twice: with as many bytes the mapping fits, with one less it does not."""
    whole = machine.arch(machine.load("tpu_edge"))
    arch = replace(
        whole, levels=(whole.levels[0], replace(whole.levels[1], capacity_bits=1 << 17), *whole.levels[2:])
    )
    e = catalog.load("conv:k=16,c=8,p=7,q=7,r=3,s=3").einsums[0]
    (found,) = optimal(Problem(arch, e, "energy"))
    rows = [row for row in explain._footprint_rows(arch, e, found) if row[1] == "all"]
    assert any(row[3] == 2 for row in explain._footprint_rows(arch, e, found))
    for level, _, _, _, size, _, _ in rows:
        at = next(v for v, one in enumerate(arch.levels) if one.name == level)
        for less, fits in ((0, True), (1, False)):
            own = replace(arch.levels[at], capacity_bits=int(8 * size) - 8 * less)
            tight = replace(arch, levels=(*arch.levels[:at], own, *arch.levels[at + 1 :]))
            assert isinstance(einsum_cost(Problem(tight, e, "energy"), found.mapping), EinsumCost) == fits


def test_what_is_said_of_a_checked_machine_stands_on_lines_of_its_own(home: Path) -> None:
    said = lines(home, 80, "check", "tpu_edge")
    assert re.fullmatch(r"tpu_edge: machine tpu_edge, \d+ MAC units, [\d.]+ mm2", said[0])
    assert said[1].startswith("dram: 2 lpddr4 channels, ")


def test_memories_are_shown_with_the_bytes_that_they_move_in_a_second() -> None:
    """2 lpddr4 channels are 12.8 GB/s, which this product takes whole; the mapping's words are counted."""
    found = api.map("gemm:m=1,n=1000,k=512", "edge_array")
    [cost] = found.solution.einsums  # type: ignore[union-attr]
    [e] = found.workload.einsums
    rows = {row[0]: row[3] for row in explain.einsum(found.arch, e, cost)[1][-1].rows}
    assert (
        rows["DRAM"]
        == pytest.approx((512 + 512_000 + 1000) / found.latency_ns)
        == pytest.approx(12.8, rel=1e-3)
    )
    assert rows["MAC"] is None

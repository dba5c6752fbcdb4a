"""Pictures: what they show is what the evaluator says, and every kind is written in every format."""

from __future__ import annotations

import math
import os
import re
import shutil
import time
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dse
from analysis import plots
from dse.explain import figures, reuse_figures
from dse.explain import values as explain
from dse.frontend import api, cli, pictures
from dse.mapping.nest import Loop, Store, bits_at, to_text
from dse.sim.einsum import bounds
from dse.solve.gogeta.traffic import traffic_of
from hw import machine
from tests.test_cli import STUDY
from tests.test_retention import TWO_READERS
from workloads.einsum import einsum
from workloads.graph import Workload

pytestmark = pytest.mark.xdist_group("plots")

SCHEDULE = Path(__file__).parents[1] / "studies" / "mlp_pipeline.txt"
STARTS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("plots")
    (home / "small.yaml").write_text(STUDY)
    dse.sweep(home / "small.yaml", home / "run", workers=0)
    return home


def test_the_roofline_of_a_run_names_the_workloads_that_it_leaves_out(tmp_path: Path) -> None:
    names = ["gemm:m=64,n=32,k=48", "gemm:m=8,n=8,k=8"]
    (tmp_path / "two.yaml").write_text(
        f"name: two\nworkloads: {names!r}\nmachine: edge_array\n"
        "space: {array.x: [8]}\nobjectives: [energy_pj]\n"
    )
    run = dse.sweep(tmp_path / "two.yaml", tmp_path / "run", workers=0)
    for asked, shown, other in (("", *names), (names[1], *reversed(names))):
        title = run.plot("roofline", workload=asked).figure.axes[0].get_title()
        assert title.startswith(f"{shown}, machine")
        assert f"1 of 2 workloads; others: --workload {other}" in title
    with pytest.raises(ValueError, match="--workload = gem"):
        run.plot("roofline", workload="gem")


@pytest.mark.parametrize("kind", ["front", "breakdown", "roofline", "sensitivity", "progress"])
def test_every_picture_of_a_run_is_written(
    folder: Path, kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = folder / f"{kind}.svg"
    assert cli.main(["plot", str(folder / "run"), kind, "-o", str(out)]) == 0
    assert out.read_bytes().startswith(STARTS["svg"])
    assert f"{kind} of" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "form"),
    [
        (["gemm:m=16,n=16,k=16", "edge_array", "nest"], "png"),
        (["gemm:m=16,n=16,k=16", "edge_array", "mapping"], "svg"),
        (["gemm:m=16,n=16,k=16", "edge_array", "roofline"], "pdf"),
        (["gemm:m=16,n=16,k=16", "edge_array", "breakdown"], "svg"),
        (["gemm:m=16,n=16,k=16", "edge_array", "ski-slope"], "png"),
        (["gemm:m=16,n=16,k=16", "burst_edge", "layout", "--layout", "A=K M/4 m4"], "png"),
        (["mlp_m:batch=8", "gogeta_clusters", "residency"], "svg"),
        (["mlp_m:batch=8", "gogeta_clusters", "graph"], "svg"),
        (["mlp_m:batch=8", "gogeta_clusters", "traffic-over-capacity"], "png"),
        (["cg:rows=60,nnz=300,form=periodic", "gogeta_clusters", "traffic-per-tensor"], "png"),
        (["mlp_m:batch=64", "kapla_multi", "residency", "--schedule", str(SCHEDULE)], "svg"),
    ],
)
def test_every_picture_of_a_workload_is_written(tmp_path: Path, words: list[str], form: str) -> None:
    out = tmp_path / f"x.{form}"
    assert cli.main(["plot", *words, "-o", str(out)]) == 0
    assert out.read_bytes().startswith(STARTS[form])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["run", "nest"], "is no picture of a run; use one of front"),
        (
            ["gemm:m=4,n=4,k=4", "edge_array", "front"],
            "is no picture of a workload on a machine; use one of nest",
        ),
        (["front"], "give RUN KIND"),
        (["run", "front", "-o", "x.jpg"], "end its name with .png"),
        (["run", "front", "-o", "no/such/x.png"], "cannot be written"),
        (["gemm:m=4,n=4,k=4", "edge_array", "layout"], "write TENSOR=TEXT"),
        (["gemm:m=4,n=4,k=4", "edge_array", "layout", "--layout", "Z=M"], "no einsum"),
        (["gemm:m=4,n=4,k=4", "edge_array", "nest", "--einsum", "conv7"], "no such einsum"),
        (["run", "roofline", "--point", "999"], "is not in the space"),
    ],
)
def test_a_wrong_word_is_one_line(
    folder: Path, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plot", *(str(folder / "run") if word == "run" else word for word in words)]) == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert said in lines[0]


@pytest.mark.parametrize("words", [300, 1500])
def test_traffic_of_all_tensors_is_that_of_the_configurations(words: int) -> None:
    """Of a workload all of it; of a loop one of its middle iterations: what an iteration more moves."""
    sizes = {"m": 1000, "k": 1000}
    texts = ("S[m] += A[m,k] * P[k]", "d[] += P[m] * S[m]", "P1[m] = sub_mul(P[m], d[], S[m])")
    einsums = tuple(
        einsum(t, sizes, density={"A": 0.002}, format={"A": "csr"}) if "A" in t else einsum(t, sizes)
        for t in texts
    )
    arch = machine.arch(machine.load("gogeta_clusters"))

    def found(repeats: int) -> tuple[float, float, float, float]:
        loop = Workload("w", einsums, repeats=(repeats,) * 3, loop_state=(("P1", "P"),))
        w = loop if repeats > 1 else Workload("w", einsums)
        report = traffic_of(w, words, arch.word_bits)
        rows = reuse_figures.traffic_per_tensor(arch, w, report).rows
        alone, optimal = (sum(row[k] for row in rows) for k in (1, 2))
        return alone, optimal, 4.0 * report.seq_flex, 4 * report.optimal.cost

    alone, optimal, all_alone, all_optimal = found(1)
    assert (alone, optimal) == (all_alone, pytest.approx(all_optimal))
    (alone, optimal, *longer), (_, _, *shorter) = found(300), found(299)
    assert (alone, optimal) == pytest.approx([a - b for a, b in zip(longer, shorter, strict=True)], rel=1e-6)


def test_a_component_looks_alike_in_all_pictures_of_it() -> None:
    """Whichever part is the largest, in energy and in latency."""

    def looks(energy: list[dict[str, float]]) -> dict[str, object]:
        drawn = plots.breakdown(
            {
                "energy_pj": [("x", sizes) for sizes in energy],
                "latency_ns": [("x", {"MAC (bottleneck)": 3.0, "REGF (bottleneck)": 1.0})],
            },
            "",
            "",
        )
        return {
            bars.get_label().removesuffix(plots.BOTTLENECK_SUFFIX): (
                bars[0].get_facecolor(),
                bars[0].get_hatch(),
            )
            for ax in drawn.figure.axes
            for bars in ax.containers
        }

    one = looks([{"DRAM": 3.0, "REGF": 1.0, "MAC": 2.0, "static": 1.0}])
    other = looks(
        [
            {"DRAM": 1.0, "REGF": 0.0, "MAC": 2.0, "static": 9.0},
            {"DRAM": 1.0, "REGF": 4.0, "MAC": 2.0, "static": 9.0},
        ]
    )
    assert one == other
    assert len(set(one.values())) == 4


def test_no_legend_of_stacked_bars_is_cut() -> None:
    """Whatever the names' lengths: one legend, inside the figure, below all panels."""
    names = ["DRAM", *(f"SHARED_GLOBAL_BUFFER_{i}" for i in range(6)), "MAC"]
    drawn = plots.breakdown(
        {
            "energy_pj": [("a", dict.fromkeys([*names, "static"], 1.0))],
            "latency_ns": [("a", {f"{name}{plots.BOTTLENECK_SUFFIX}": 1.0 for name in names})],
            "area_mm2": [("a", dict.fromkeys(names, 1.0))],
        },
        "machine",
        "title",
    )
    drawn._repr_png_()  # lays it out
    [legend] = drawn.figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [*names, "static"]
    box = legend.get_window_extent()
    assert box.x0 >= 0
    assert box.x1 <= drawn.figure.bbox.x1
    assert box.y1 <= min(ax.get_tightbbox().y0 for ax in drawn.figure.axes)


def test_what_a_picture_of_a_run_leaves_out_is_said(folder: Path) -> None:
    run = dse.open(folder / "run")
    out = [
        run.sql(f"SELECT count(*) FROM {where}").rows()[0][0]
        for where in ("points WHERE NOT feasible", "machines WHERE status = 'infeasible'")
    ]
    said = run.plot("front").figure.get_suptitle()
    assert (f"{out[0]} points that break" in said) == (out[0] > 0)
    assert (f"{out[1]} machines that are infeasible" in said) == (out[1] > 0)
    alike = len(run.front()) - len(run.front(distinct=True))
    assert (
        f"{alike} more with equal objectives left out" in run.plot("breakdown").figure.get_suptitle()
    ) == (alike > 0)


def test_effects_of_noise_lie_within_the_error_of_the_fit() -> None:
    """Of parameters that change nothing about one in twenty effects lies outside; what matters does."""
    rng, outside, tried = np.random.default_rng(1), 0, 0
    for _ in range(50):
        columns = {name: rng.integers(0, 3, 60).tolist() for name in ("real", "idle")}
        values = np.exp(np.array(columns["real"]) + 0.2 * rng.standard_normal(60))
        found, explained = figures.effects(columns, values)
        within = figures.uncertainty_factor(found, explained, values)
        for one in found:
            far = max(one.factor, 1 / one.factor) > within
            if one.parameter == "idle":
                outside, tried = outside + far, tried + 1
            elif one.value != 1:
                assert far
    assert outside < 0.1 * tried


def test_a_nest_shows_all_that_moves_and_all_that_is_held() -> None:
    found = dse.map("gemm:m=64,n=32,k=48", "edge_array", **{"regf.double_buffer": True})
    e, c = figures.one_einsum(found.workload, found.solution, None)
    lines = figures.nest(found.arch, e, c)
    word = found.arch.word_bits / 8
    assert sum(line.moved_bytes for line in lines) == pytest.approx(
        word * sum(row.elems for row in c.counts if row.level != "MAC")
    )
    [rows] = [t.rows for t in explain.einsum(found.arch, e, c)[1] if "footprint" in t.title]
    assert sum(line.held_bytes for line in lines) == pytest.approx(
        sum(row[4] for row in rows if row[1] != "all")
    )
    assert any(row[3] == 2 for row in rows)  # two buffers
    assert "\n".join(line.text for line in lines if not line.level) == "\n".join(
        line.strip() for line in to_text(c.mapping, e).splitlines() if not line.strip().startswith("store")
    )


@pytest.mark.parametrize("machine", ["edge_array", "simba", "nvdla", "a2"])
def test_a_diagram_has_each_node_and_loop_once(machine: str) -> None:
    found = dse.map("gemm:m=60,n=30,k=48", machine)
    e, c = figures.one_einsum(found.workload, found.solution, None)
    stages = figures.diagram(found.arch, e, c)
    stored = [(one.name, tile.tensor) for one in stages for tile in one.tiles]
    assert stored == [(node.level, node.tensor) for node in c.mapping.nodes if isinstance(node, Store)]
    loops = [node for node in c.mapping.nodes if isinstance(node, Loop)]
    assert sum(len(one.loops) + len(one.unrolled) for one in stages) == len(loops)
    assert [dict(tile.ranks) for one in stages[:1] for tile in one.tiles if tile.tensor == "C"] == [
        {"m": 60, "n": 30}
    ]
    # sizes that are named are those held: of a product a tile is the box of its ranks
    for one in stages[1:]:
        bits = {level.name: level for level in found.arch.levels}.get(one.name)
        for tile in one.tiles:
            word = bits_at(bits, tile.tensor, e, found.arch)
            assert tile.held_bytes == tile.buffers * math.prod(n for _, n in tile.ranks) * word / 8
    working = [used for one in stages for _, used, _ in one.dims]
    assert math.prod(working) == explain.mac_units_used(c, e)
    assert all(used <= size for one in stages for _, used, size in one.dims)


def test_a_diagram_names_the_tile_where_it_rests(tmp_path: Path) -> None:
    """A sinks below the loop over m, which only cuts it into parts: 4 x 8 of its 16 x 8 elements are held."""
    loops = (
        "for m in [0:4) tile 4",
        "for n in [0:8) tile 1",
        "for k in [0:8) tile 1",
        "for m in [0:4) tile 1",
    )
    nest = [
        "store DRAM A B C",
        "store GBUF A",
        *("  " * i + loop for i, loop in enumerate(loops)),
        "        mac",
    ]
    (tmp_path / "nest.txt").write_text("\n".join(nest))
    found = dse.simulate("gemm:m=16,n=8,k=8", "edge_array", tmp_path / "nest.txt")
    e, c = figures.one_einsum(found.workload, found.solution, None)
    [tile] = [tile for one in figures.diagram(found.arch, e, c) for tile in one.tiles if one.name == "GBUF"]
    assert tile.ranks == (("m", 4), ("k", 8))
    assert tile.held_bytes == tile.buffers * 32 * found.arch.word_bits / 8


def test_a_retained_tensor_is_shown_where_it_is_held(tmp_path: Path) -> None:
    """H is kept whole in GBUF: no row and no picture has it in DRAM, and the tiles of GBUF add up to the peak
    of the segment. Levels stand once, in their order.
    """
    (tmp_path / "two.yaml").write_text(
        "extents: {b: 16, d: 16, f: 32}\nweights: [W1, W2]\n"
        'einsums: ["H[b,f] += X[b,d] * W1[d,f]", "Y[b,d] += H[b,f] * W2[f,d]"]\n'
    )
    loops = "for b in [0:16) tile 1", "for f in [0:32) tile 1", "for d in [0:16) tile 1", "mac"
    text = ["retain GBUF H 1"]
    for name, own, other in (("H", "H", "X W1"), ("Y", "H", "Y W2")):
        text += ["segment", f"  einsum {name}", f"    store DRAM {own}", f"    store GBUF {own}"]
        text += [f"    store DRAM {other}", *("  " * (i + 2) + line for i, line in enumerate(loops))]
    (tmp_path / "schedule.txt").write_text("\n".join(text))
    found = dse.simulate(str(tmp_path / "two.yaml"), "edge_array", tmp_path / "schedule.txt")
    for name, row in zip("HY", found.solution.segments, strict=True):
        e, c = figures.one_einsum(found.workload, found.solution, name)
        held = explain.held_bytes(found.arch, e, c)
        assert {(level, tensor) for level, tensor, *_ in held if tensor == "H"} == {("GBUF", "H")}
        assert [level for level, *_ in held if level == "GBUF"] == ["GBUF"]
        gbuf = sum(own for level, *_, own in held if level == "GBUF")
        assert 8 * gbuf == dict(row.peak_bits)["GBUF"] == 8 * 16 * 32
        stages = [
            (one.name, [tile.tensor for tile in one.tiles]) for one in figures.diagram(found.arch, e, c)
        ]
        others = ["X", "W1"] if name == "H" else ["Y", "W2"]
        assert stages[:2] == [("DRAM", others), ("GBUF", ["H"])]


def test_no_einsum_stands_above_its_roofline() -> None:
    found = dse.map("squeezenet", "edge_array", **{"solver.mapper": "cost_descending"})
    drawn = figures.roofline(found.arch, found.workload, found.solution)
    assert len(drawn.dots) > 10
    counts = {c.name: c.count for c in found.solution.einsums}  # type: ignore[union-attr]
    assert {f"{name} x {n}" if n > 1 else name for name, n in counts.items()} > {d.name for d in drawn.dots}
    assert max(counts.values()) > 1
    assert all(dot.rate <= min(drawn.peak, dot.intensity * drawn.gb_s) * (1 + 1e-9) for dot in drawn.dots)
    assert sum(dot.share for dot in drawn.dots) <= 1 + 1e-9
    # einsums without MACs (pools, softmax) are told, with the rest of the latency
    [(without, share)] = re.findall(r"not drawn: (\d+) einsums without MACs, ([\d.]+) % ", drawn.not_drawn)
    named = [c for c in found.solution.einsums if figures.label(c) not in {d.name for d in drawn.dots}]
    assert int(without) == sum(c.count for c in named)
    assert float(share) / 100 == pytest.approx(1 - sum(dot.share for dot in drawn.dots), rel=0.01)
    figure = plots.roofline(drawn, "").figure
    assert drawn.not_drawn in figure.axes[0].get_xlabel()
    figure.draw_without_rendering()
    [ax] = figure.axes
    centers = ax.transData.transform([(dot.intensity, dot.rate) for dot in drawn.dots])
    boxes = [text.get_window_extent() for text in ax.texts]
    assert len(boxes) > 3  # both limits, and names
    assert not any(box.contains(*center) for box in boxes for center in centers)
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))


def test_axes_of_a_front_are_logarithmic_where_values_span_much() -> None:
    points = {"energy_pj": np.geomspace(1, 50, 9), "latency_ns": np.geomspace(4, 1, 9)}
    points["area_mm2"] = np.linspace(1, 2, 9)
    objectives = [(name, False) for name in points]
    drawn = plots.front(points, np.ones(9, bool), objectives, np.arange(9), "")
    scales = [(ax.get_xscale(), ax.get_yscale()) for ax in drawn.figure.axes]
    assert scales == [("log", "log"), ("log", "linear"), ("log", "linear")]


def test_a_front_of_many_points_has_the_axes_of_one_of_few() -> None:
    count = plots.MANY_POINTS + 1
    points = {name: np.geomspace(1e9, 1e12, count) for name in ("energy_pj", "latency_ns")}
    objectives = [("energy_pj", False), ("latency_ns", False)]
    drawn = plots.front(points, np.arange(count) < 3, objectives, np.arange(count), "")
    drawn.figure.canvas.draw()
    (ax,) = drawn.figure.axes
    texts = [tick.get_text() for axis in (ax.xaxis, ax.yaxis) for tick in axis.get_ticklabels()]
    assert any(texts)
    assert not any("$" in text for text in texts)


def test_a_band_is_said_to_be_shaded_where_it_is_seen() -> None:
    effects = [figures.Effect("x", 1, 0.5, 9), figures.Effect("x", 2, 2.0, 9)]
    titles = [
        plots.sensitivity({"energy_pj": (effects, 0.9, factor)}, "").figure.axes[0].get_title()
        for factor in (1.001, 1.2)
    ]
    assert ["shaded" in title for title in titles] == [False, True]


def test_a_ski_slope_leaves_out_rules_at_what_it_has_not() -> None:
    rules = [{"at": "x", "ranks": ["output_channel"], "factors": {"output_channel": 2}}, {"utilization": 0.1}]
    found = dse.map("gemm:m=8,n=4,k=4", "edge_array", **{"solver.mapping": rules})
    slope = figures.ski_slope(found.arch, found.workload, found.options, found.solution)
    plain = figures.ski_slope(found.arch, found.workload, replace(found.options, mapping=()), found.solution)
    assert slope.points == plain.points
    assert slope.certificate == f"{plain.certificate}; without rules of mappings: x, utilization"


def test_a_ski_slope_falls_to_what_must_move_and_no_machine_is_below_it() -> None:
    found = dse.map(
        "gemm:m=32,n=24,k=40",
        "edge_array",
        **{"gbuf.capacity": "1 KiB", "regf.capacity": "64 B", "array.x": 2, "array.y": 2},
    )
    slope = figures.ski_slope(found.arch, found.workload, found.options, found.solution)
    moved = [bytes_ for _, bytes_ in slope.points if bytes_ is not None]
    assert moved == sorted(moved, reverse=True)
    assert moved[-1] == slope.compulsory == (32 * 24 + 24 * 40 + 32 * 40)
    assert slope.machine_point
    assert slope.machine_point[1] >= min(
        b for c, b in slope.points if b is not None and c <= 2 * slope.machine_point[0]
    )
    assert slope.compulsory == sum(
        bounds.words(p, found.workload.einsums[0], found.arch.word_bits)
        for p in found.workload.einsums[0].tensors()
    )


@given(
    st.lists(st.floats(0.2, 5.0), min_size=3, max_size=3),
    st.lists(st.floats(0.2, 5.0), min_size=2, max_size=2),
    st.integers(0, 10**6),
)
def test_effects_of_a_product_are_its_factors(first: list[float], second: list[float], seed: int) -> None:
    """A mutant that forgets a parameter, or takes means of what is not balanced, is caught: machines are
    drawn at random.
    """
    rng = np.random.default_rng(seed)
    x, y = rng.integers(0, 3, 60), rng.integers(0, 2, 60)
    if len(set(x)) < 3 or len(set(y)) < 2 or len(set(zip(x, y, strict=True))) < 6:
        return
    found, explained = figures.effects(
        {"a": x.tolist(), "b": y.tolist()}, np.array(first)[x] * np.array(second)[y]
    )
    wanted = [*(np.array(first) / np.prod(first) ** (1 / 3)), *(np.array(second) / np.prod(second) ** 0.5)]
    assert [one.factor for one in found] == pytest.approx(wanted)
    assert explained == pytest.approx(1.0)


def test_many_numbers_are_put_together() -> None:
    """An axis of 447 clocks is eight ranges with the effect of their machines, and a picture can be read."""
    clocks, banks = np.tile(np.arange(54, 501), 2), np.repeat([1, 2], 447)
    found, _ = figures.effects({"clock_mhz": clocks.tolist(), "banks": banks.tolist()}, 1000.0 / clocks)
    ranges = [one for one in found if one.parameter == "clock_mhz"]
    assert [one.machines for one in ranges] == pytest.approx([112] * figures.EFFECT_BINS, abs=2)
    assert ranges[0].value == "54 to 109 MHz"
    assert [one.factor for one in ranges] == sorted((one.factor for one in ranges), reverse=True)
    assert [one.value for one in found if one.parameter == "banks"] == [1, 2]


@given(st.lists(st.tuples(st.floats(1, 100), st.floats(1, 100)), min_size=1, max_size=80))
def test_progress_rises_to_all(rows: list[tuple[float, float]]) -> None:
    found = figures.progress(range(1, len(rows) + 1), np.array(rows))
    shares = [share for _, share in found]
    assert shares == sorted(shares)
    assert shares[-1] == pytest.approx(1.0)
    assert found[-1][0] == len(rows)


def test_layouts_are_drawn_as_they_are_addressed() -> None:
    found = dse.map("gemm:m=8,n=8,k=8", "burst_edge")
    drawn = figures.layout(found.arch, found.workload, "A", "M/4 K m4")
    assert (drawn.rows, drawn.columns) == ("M", "K")
    assert [row[0] for row in drawn.addresses] == [0, 1, 2, 3, 32, 33, 34, 35]
    assert drawn.addresses[0][:3] == (0, 4, 8)


def test_a_stay_that_goes_on_is_one_bar() -> None:
    kept = dse.residency("resnet18", "gogeta_clusters")
    drawn = figures.residency(kept.arch, kept.workload, kept.reuse)
    assert len({bar[0] for bar in drawn.bars}) == len(drawn.bars) >= 10
    ((_, held, room, _),) = drawn.used
    assert room is not None
    assert max(held) <= room
    assert len(held) == len(drawn.steps) == len(drawn.times)


def test_a_bar_covers_the_phase_that_reads_it_and_the_level_holds_both_ends(tmp_path: Path) -> None:
    """8,192 words: W takes the place of Q, four words of T stay beside it, g and s, or e. s is there until
    its phase is over, g from its beginning.
    """
    (tmp_path / "two.yaml").write_text(TWO_READERS)
    kept = dse.residency(str(tmp_path / "two.yaml"), "gogeta_clusters", **{"sram.capacity": "2 KiB"})
    drawn = figures.residency(kept.arch, kept.workload, kept.reuse)
    assert drawn.steps == ("s", "T -> W -> g", "e", "Y")
    bars = sorted((bar.tensor, bar.start, bar.end, round(bar.retained_bytes / 4)) for bar in drawn.bars)
    assert bars == [
        ("Q", 0, 2, 8186),
        ("T", 1, 4, 4),
        ("W", 1, 4, 8186),
        ("e", 2, 4, 1),
        ("g", 1, 3, 1),
        ("s", 0, 2, 1),
    ]
    assert [round(n / 4) for n in drawn.used[0].used_bytes] == [8187, 8192, 8192, 8191]


@pytest.fixture(scope="module")
def loop(tmp_path_factory: pytest.TempPathFactory) -> api.Residency:
    path = tmp_path_factory.mktemp("loop") / "pcg.yaml"
    path.write_text(
        """
extents: {m: 40000, k: 40000, n: 1}
einsums:
- {text: "S[m,n] += A[m,k] * P[k,n]", density: {A: 0.0001}, format: {A: csr}}
- "ps[n] += P[m,n] * S[m,n]"
- "alpha[n] = div(rz[n], ps[n])"
- "R1[m,n] = sub_mul(R[m,n], alpha[n], S[m,n])"
- "rz1[n] += R1[m,n] * R1_again[m,n]"
- "P1[m,n] = add_mul(R1[m,n], rz1[n], P[m,n])"
loop_state: {R: R1, P: P1, rz: rz1}
iterations: 4
"""
    )
    return dse.residency(str(path), "gogeta_clusters", **{"sram.capacity": "16 KiB"})


def test_curves_of_traffic_pass_through_the_machines_own(loop: api.Residency) -> None:
    drawn = reuse_figures.traffic_over_capacity(loop.arch, loop.workload, loop.reuse)
    at = drawn.capacities.index(drawn.machine_capacity)
    assert drawn.machine_capacity == 16 * 16 * 2**10
    rows = {row["configuration"]: row["dram_bytes"] for row in loop.configurations}
    assert {name: curve[at] for name, curve in drawn.traffic.items()} == rows
    best, ideal, policy = (drawn.traffic[name] for name in ("Optimal", "Ideal", "GOGETA-df, GOGETA-map"))
    assert list(best) == sorted(best, reverse=True)
    assert all(a <= b <= c for a, b, c in zip(ideal, best, policy, strict=True))
    assert best[0] > best[-1] == pytest.approx(ideal[-1])
    assert "16 slices of 16 KiB" in loop.document()["buffer"]


def test_the_graph_has_the_edges_of_one_iteration(loop: api.Residency) -> None:
    drawn = reuse_figures.operation_graph(loop.workload, loop.reuse)
    names = [node.name for node in drawn.nodes]
    assert names == ["S", "ps", "alpha", "R1", "rz1", "P1"]
    assert [
        (names[e.source], names[e.target], e.tensor, e.pattern, e.to_next_period) for e in drawn.edges
    ] == [
        (e["source"], e["target"], e["tensor"], e["pattern"], e["to_next_period"])
        for e in loop.document()["edges"]
    ]
    layers = {node.name: node.layer for node in drawn.nodes}
    assert layers == {"S": 0, "ps": 1, "alpha": 2, "R1": 3, "rz1": 4, "P1": 5}
    assert drawn.nodes[0].order == "m k n"
    assert loop.plot("graph")._repr_png_().startswith(STARTS["png"])


def test_steps_of_a_retention_picture_are_operations(loop: api.Residency) -> None:
    drawn = figures.residency(loop.arch, loop.workload, loop.reuse)
    ran = {name for step in drawn.steps for stage in step.split(" -> ") for name in stage.split(" | ")}
    assert ran == {"S", "ps", "alpha", "R1", "rz1", "P1"}
    with pytest.raises(ValueError, match="of reuse between operations there are residency, traffic-over-cap"):
        loop.plot("nest")


def test_a_picture_shows_itself_in_a_notebook(folder: Path) -> None:
    assert dse.open(folder / "run").plot()._repr_png_().startswith(STARTS["png"])
    assert isinstance(dse.map("gemm:m=4,n=4,k=4", "edge_array").plot(), plots.Picture)


def test_names_are_text_and_no_formulas(folder: Path) -> None:
    """Matplotlib would read $...$ as mathematics, and stop at what is none."""
    drawn = plots.progress([figures.Course("x", [(1, 1.0)], [1], {"ok": [1]})], r"$\frac{ {{name}} $ <b>&\n")
    assert drawn._repr_png_()


def test_a_run_goes_on_over_time(folder: Path, tmp_path: Path) -> None:
    """Pauses do not count; hypervolume and machines are those committed by then; a copy tells no times."""
    stop = {"stop.machines": 6}
    dse.sweep(folder / "small.yaml", tmp_path / "run", workers=0, **stop)
    time.sleep(1.5)
    dse.sweep(folder / "small.yaml", tmp_path / "run", workers=0)
    by_count, by_time = pictures.courses(dse.open(tmp_path / "run"))
    assert (by_count.axis, by_time.axis) == ("machines done", "time (s, without pauses)")
    assert by_time.states.keys() == by_count.states.keys()
    total = int(by_count.done[-1])
    assert sum(counts[-1] for counts in by_time.states.values()) == total > 6
    assert len(set(by_time.done)) == 2  # two commits
    stamps = dse.open(tmp_path / "run").sql("FROM events ORDER BY time").table.to_pylist()
    begins_and_ends = [
        row["time"].timestamp() for row in stamps if row["kind"] in ("start", "resume", "stop")
    ]
    assert by_time.done[-1] <= begins_and_ends[-1] - begins_and_ends[0] - 1.5
    assert by_time.volume[0][0] == by_time.done[0] <= by_time.volume[-1][0]
    assert by_time.volume[-1][1] == pytest.approx(1.0)
    shutil.copytree(tmp_path / "run", tmp_path / "copy", copy_function=shutil.copyfile)
    os.utime(next((tmp_path / "copy/parts/machines").iterdir()), (1e9, 1e9))
    assert [one.axis for one in pictures.courses(dse.open(tmp_path / "copy"))] == ["machines done"]

"""Layouts through the front doors: mappings, machines, commands; what nobody describes costs nothing; one
line per bad input.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from dse.frontend import api, runs
from dse.frontend.cli import main
from dse.layout.address import row_major
from dse.layout.count import misses
from dse.layout.text import parse as parse_layout
from dse.layout.text import show
from dse.mapper.exact.layout_aware import layout_pricing
from dse.mapping.nest import TensorLayout, from_data, parse, to_data
from dse.mapping.schedule import sequential
from dse.sim.counts.terms import links
from dse.sim.einsum.evaluate import Problem, einsum_cost
from dse.sim.levels import transfer
from dse.sim.schedule.graph import evaluate
from hw import machine
from hw.arch import Access, Arch
from tests.amount import amount
from tests.nests import rich_case
from tests.streams import described, with_layouts
from tests.test_transfer import DENSE
from workloads.einsum import einsum
from workloads.graph import Workload

GEMM = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 64, "n": 64, "k": 64}, "gemm")
NEST = """store DRAM A B C
for m tile 16
  for k tile 16
    store GBUF A B C
    for n tile 1
      for m tile 1
        for k tile 1
          store REGF A B C
          mac"""


def edge(**fields: object) -> Arch:
    """burst_edge, its DRAM's description changed."""
    arch = machine.arch(machine.load("burst_edge"))
    access = arch.levels[0].access
    assert access
    return replace(arch, levels=(replace(arch.levels[0], access=replace(access, **fields)), *arch.levels[1:]))


def cost(arch: Arch, *layouts: str):
    laid = [text.partition("=") for text in layouts]
    mapping = replace(
        parse(NEST), layouts=tuple(TensorLayout("DRAM", tensor, text) for tensor, _, text in laid)
    )
    one = Workload("one", (GEMM,))
    found = evaluate(arch, one, sequential(one, {"gemm": mapping}))
    assert not isinstance(found, transfer.Transfer)
    return found.einsums[0]


@pytest.mark.parametrize("seed", range(amount(40)))
def test_layouts_cost_nothing_where_nothing_is_described(seed: int) -> None:
    """Bit for bit, whatever the layouts; and never less than that where lines, rows or banks are
    described."""
    rng = Random(seed)
    e, arch, mapping = rich_case(rng, DENSE)
    felt = described(rng, arch)
    names = {p.tensor: transfer.dim_names(p) for p in e.tensors()}
    laid = with_layouts(rng, mapping, e, felt, names)
    plain, same = (einsum_cost(Problem(arch, e, "energy"), one) for one in (mapping, laid))
    dearer = einsum_cost(Problem(felt, e, "energy"), laid)
    assert same.price == plain.price
    assert same.energy_pj == plain.energy_pj
    assert same.latency_cycles == plain.latency_cycles
    assert same.layout_traffic == ()
    assert felt.ideal() == arch
    assert arch.ideal() is arch
    assert dearer.energy_pj >= plain.energy_pj
    assert dearer.latency_cycles >= plain.latency_cycles


def test_a_blocked_layout_pays_where_bursts_are_long() -> None:
    """Tiles of 16 x 16 bytes: row-major uses 16 bytes of each burst of 256, blocked all of it; lines of an
    element make all layouts equal.
    """
    blocked = "A=M/16 K/16 m16 k16"
    row, block = cost(edge()), cost(edge(), blocked)
    moved = (
        {(one.tensor, one.action): one for one in row.layout_traffic},
        {(one.tensor, one.action): one for one in block.layout_traffic},
    )
    # four rows of 64 share a burst of 256
    assert moved[0]["A", "read"].moved_bits.n == 16 * moved[1]["A", "read"].moved_bits.n / 4
    assert moved[1]["A", "read"].moved_bits.n == 8 * 64 * 64
    assert moved[1]["A", "read"].runs == 16
    assert block.energy_pj < row.energy_pj
    assert block.latency_cycles <= row.latency_cycles
    small = edge(line_bits=8, row_bits=0, interleave_bits=0, row_pj=0.0, row_cycles=0.0)
    same = cost(small), cost(small, blocked)
    assert same[0].energy_pj == pytest.approx(same[1].energy_pj)
    assert same[0].latency_cycles == same[1].latency_cycles


def test_longer_lines_never_move_fewer_bytes() -> None:
    for text in ("A=M K", "A=K M", "A=M/8 K m8", "A=K/3 M/5 k3 m5"):
        found = [
            next(
                one.moved_bits
                for one in cost(edge(line_bits=8 * 2**i), text).layout_traffic
                if one.tensor == "A"
            )
            for i in range(9)
        ]
        assert all(a.lo <= b.hi for a, b in itertools.pairwise(found))


def test_descriptors_misses_and_partial_writes_take_time_and_energy() -> None:
    plain = cost(edge())
    slow, few = (
        next(
            one
            for one in cost(edge(descriptor_cycles=10.0, dma_strides=n)).layout_traffic
            if one.tensor == "A"
        )
        for n in (0, 1)
    )
    assert slow.descriptors == slow.runs == 256
    assert few.descriptors == 16
    assert (
        cost(edge(prefetch_lines=4, miss_cycles=100.0)).price.busy_cycles[0][1]
        > plain.price.busy_cycles[0][1]
    )
    assert cost(edge(rmw=True)).energy_pj == plain.energy_pj  # whole lines are written
    assert cost(edge(rmw=True), "C=N M").energy_pj > cost(edge(), "C=N M").energy_pj
    assert misses(512, 512, 4, 0.06, 0.393) == pytest.approx(512 * 0.453)


def test_banks_are_felt_and_a_pitch_pad_cures_them() -> None:
    """A column of a 64 x 64 tile lies in one bank of 16; one word more per row spreads it."""
    arch = machine.arch(machine.load("burst_edge"))
    gbuf = replace(
        arch.levels[1],
        width_bits=8,
        bandwidth=16.0,
        access=Access(8, banks=16, bank_map="word", capacity_bits=2**19),
    )
    arch = replace(arch, levels=(arch.levels[0], gbuf, *arch.levels[2:]))
    nest = parse(
        "store DRAM A B C\nstore GBUF A B C\nparfor m tile 4 over X\nfor n tile 1\nfor k tile 1\nfor "
        "m tile 1\nmac"
    )
    bad, good = (
        einsum_cost(Problem(arch, GEMM, "latency"), replace(nest, layouts=laid))
        for laid in ((), (TensorLayout("GBUF", "A", "M K+1"),))
    )
    words = [
        next(one.conflict.n for one in found.layout_traffic if (one.level, one.tensor) == ("GBUF", "A"))
        for found in (bad, good)
    ]
    assert words[0] == 16 * 64 * 64 * 4
    assert words[1] < words[0] / 3
    assert good.latency_cycles < bad.latency_cycles


def test_the_best_layout_of_a_tensor_is_found_without_the_others() -> None:
    texts = ["M K", "K M", "M/16 K/16 m16 k16", "K/64 M k64"]
    arch, mapping = edge(), parse(NEST)
    one = layout_pricing(Problem(arch, GEMM, "energy"), mapping)
    known = [parse_layout(text, ("M", "K"), (64, 64)) for text in texts]
    alone = {text: cost(arch, f"A={text}") for text in texts}
    least = min(
        alone,
        key=lambda text: sum(part.energy_pj for part in alone[text].price.parts if part.action != "leak"),
    )
    assert show(one.front(("DRAM", "A"), known)[0]) == least
    assert len(links(mapping, GEMM)) == 9
    for text, layout in zip(texts, known, strict=True):
        parts = [
            part.energy_pj
            for part in alone[text].price.parts
            if (part.level, part.tensor) == ("DRAM", "A") and part.action in ("unused", "open")
        ]
        assert one.cost_beyond_elems(("DRAM", "A"), layout)[0] == pytest.approx(sum(parts))
        home = {
            place: row_major(transfer.dim_names(link.tensor), (64, 64)) for place, link in one.links.items()
        } | {("DRAM", "A"): layout}
        assert one.cost(home) == pytest.approx((alone[text].energy_pj, alone[text].latency_cycles))


def test_layouts_survive_text_and_yaml() -> None:
    mapping = replace(
        parse(NEST), layouts=(TensorLayout("DRAM", "A", "e=M*K | E/8 e8"), TensorLayout("GBUF", "B", "K N+1"))
    )
    assert parse(str(mapping)) == mapping == from_data(to_data(mapping))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("layout DRAM A: M/3 K", "leaves 3 elements without a place; add m3"),
        ("layout DRAM A: M", "dimension K of 64 elements is missing; add K"),
        ("layout DRAM A: M K/4 k8", 'do not chain; inside of "K/4" comes k4'),
        ("layout DRAM A: M Q", '"Q" names no dimension'),
        ("layout DRAM A: M ?", '"?" is no part of a dimension'),
        ("layout DRAM A: K/9 k9~4 M", "stride larger than the tile leaves gaps"),
        ("layout DRAM A: K/9 k9~99 M", "tile larger than the extent 64"),
        ("layout DRAM Z: M K", "no such tensor; the einsum has A, B, C"),
        ("layout GLB A: M K", "is not stored at GLB; give its layout at DRAM or GBUF or REGF"),
        ("layout DRAM A: (M K", "parentheses do not match"),
        ("layout DRAM A: e=K*M | E", "dims not adjacent"),
        ("layout DRAM A: M K+9999999999", "is no part of a dimension"),
        ("layout DRAM A: M+999999999 K+999999999", "elements; pad less"),
        (f"layout DRAM A: {'M ' * 300}", "more than the 400 that any needs"),
        ("layout DRAM A: M K&A", "A is no guest of itself"),
        ("layout DRAM A: M K&C:0", '"K&C:0" gives C no slice; write &C'),
        ("layout DRAM A: M K\nlayout DRAM A: K M", "is given twice"),
    ],
)
def test_a_bad_layout_is_one_line(line: str, said: str, tmp_path: Path, capsys) -> None:
    (tmp_path / "nest.txt").write_text(f"{line}\n{NEST}")
    assert main(["simulate", "gemm:m=64,n=64,k=64", "burst_edge", str(tmp_path / "nest.txt")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert said in lines[0], lines
    assert lines[0].startswith(str(tmp_path)), lines


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "burst: 256 B",
            "burst: 16 KiB",
            "dram.burst = 16 KiB must divide row = 8 KiB; lower burst, or raise row",
        ),
        ("burst: 256 B, ", "", "dram.row needs burst, the bytes that move at once"),
        ("row: 8 KiB, ", "", "dram.row_banks needs row"),
        ("burst: 256 B", "burst: 256", "dram.burst = 256 is not a size"),
        ("row_ns: 60.0", "row_ns: -1.0", "dram.row_ns = -1.0 must not be negative"),
        (
            "capacity: 64 KiB",
            "capacity: 64 KiB, bank_map: word, burst: 64 B",
            "gbuf.bank_map = word stands beside burst = 64 B",
        ),
        ("row_ns: 60.0", "row_ns: 60.0, bank_map: word", "dram.bank_map = word is for kind: sram"),
        ("row_ns: 60.0", "row_ns: 60.0, miss_ns: 4.0", "dram.miss_ns needs prefetch_lines"),
        (
            "row_ns: 60.0",
            "row_ns: 60.0, row_interleave: 3 KiB",
            "dram.row_interleave = 3 KiB must divide row",
        ),
        ("width_bits: 16,", "width_bits: 16, bank_map: xor,", "regf.bank_map is inside of an array"),
    ],
)
def test_a_bad_description_is_one_line(old: str, new: str, said: str, tmp_path: Path, capsys) -> None:
    text = (machine.MACHINES / "burst_edge.yaml").read_text()
    assert old in text
    (tmp_path / "m.yaml").write_text(
        text.replace(old, new, 1)
        if not old.startswith("burst")
        else text.replace(f", {old}", f", {new}".rstrip(", "), 1)
        if new
        else text.replace(old, "", 1)
    )
    assert main(["check", str(tmp_path / "m.yaml")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert said in lines[0], lines


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("Z=M K", "layout of Z: no einsum of gemm"),
        ("A", "write TENSOR=TEXT"),
        ("A@NOWHERE=M K", "is not stored at NOWHERE"),
        ("A=M", "dimension K"),
    ],
)
def test_map_refuses_a_bad_layout(layout: str, said: str, capsys) -> None:
    assert main(["map", "gemm:m=16,n=16,k=16", "burst_edge", "--layout", layout]) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert said in last, last


def test_map_simulate_and_the_door_agree(tmp_path: Path, capsys) -> None:
    assert main(["map", "gemm:m=16,n=16,k=16", "burst_edge", "--layout", "A=K M", "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    rows = told["einsums"][0]["layouts"]
    assert [row["layout"] for row in rows if row["tensor"] == "A" and row["level"] == "DRAM"] == ["K M"]
    assert main(["map", "gemm:m=16,n=16,k=16", "burst_edge", "--layout", "A=K M", "--format", "yaml"]) == 0
    (tmp_path / "nest.yaml").write_text(capsys.readouterr().out)
    assert (
        main(
            ["simulate", "gemm:m=16,n=16,k=16", "burst_edge", str(tmp_path / "nest.yaml"), "--format", "json"]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out)["energy_pj"] == told["energy_pj"]
    assert api.map("gemm:m=16,n=16,k=16", "burst_edge", layouts=["A=K M"]).energy_pj == told["energy_pj"]
    assert main(["map", "gemm:m=16,n=16,k=16", "burst_edge"]) == 0
    assert "layouts per occurrence" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["burst_edge", "cpu_like", "arm_like", "gpu_like"])
def test_described_machines_map_and_are_never_cheaper_than_undescribed(name: str) -> None:
    spec = machine.load(name)
    felt = api.map("gemm:m=12,n=12,k=12", name)
    nests = {c.name: replace(c.mapping, layouts=()) for c in felt.solution.einsums}
    plain = evaluate(machine.arch(spec).ideal(), felt.workload, sequential(felt.workload, nests))
    assert machine.arch(spec).models_layout()
    assert felt.solution.energy_pj >= plain.energy_pj
    assert felt.solution.latency_cycles >= plain.latency_cycles


def test_traffic_of_a_run_is_all_its_energy(tmp_path: Path) -> None:
    """Lines that hold more than was asked for and rows opened are rows of `traffic`, so it adds up, whatever
    lines the machines have.
    """
    (tmp_path / "lines.yaml").write_text("""name: lines
workloads: ["conv:k=6,c=5,p=9,q=9,r=3,s=3"]
machine: burst_edge
space: {dram.burst: [64 B, 256 B], dram.partial_write: [masked, rmw], gbuf.capacity: [1 KiB]}
objectives: [energy_pj]
search: {method: exhaustive}
""")
    run = runs.sweep(tmp_path / "lines.yaml", out=tmp_path / "run", workers=0)
    rows = run.sql(
        "SELECT machine, sum(t.energy_pj) AS told, sum(bytes) FILTER (level = 'DRAM') AS moved, "
        "sum(bytes) FILTER (level = 'DRAM' AND action IN ('read', 'write')) / moved AS useful FROM "
        "traffic t GROUP BY ALL ORDER BY ALL"
    )
    for number, told, moved, useful in rows.rows():
        ((energy,),) = run.sql(
            f"SELECT sum(occurrences * energy_pj) FROM einsums WHERE machine = {number}"
        ).rows()
        assert moved
        assert 0 < useful <= 1
        assert told == pytest.approx(energy, rel=1e-9)
    assert len({round(moved) for _, _, moved, _ in rows.rows()}) > 1
    assert len(rows) == 4
    assert run.sql(
        "SELECT count(*) FROM traffic WHERE action IN ('open_read', 'unused_read') AND energy_pj > 0"
    ).rows()[0][0]


def test_a_tensor_waits_for_its_own_lines() -> None:
    """GBUF waits for the lines of A and C. B is read where it lies: its lines keep DRAM busy alone."""
    arch = edge(row_bits=0, interleave_bits=0, row_pj=0.0, row_cycles=0.0)
    gbuf = replace(arch.levels[1], double_buffer=False)
    arch = replace(arch, overlap="buffered", levels=(arch.levels[0], gbuf, *arch.levels[2:]))
    nest = parse(
        "store DRAM A B C\nfor m tile 16\nstore GBUF A C\nfor n tile 1\nfor m tile 1\nfor k tile 1\nmac"
    )
    width = arch.levels[0].width_bits * arch.levels[0].bandwidth
    waits, busy = {}, {}
    for tensor, text in (("A", "M K"), ("A", "K M"), ("B", "N K")):
        laid = replace(nest, layouts=(TensorLayout("DRAM", tensor, text),))
        found = einsum_cost(Problem(arch, GEMM, "latency"), laid)
        times, moved = found.price.times, {one.tensor: one.moved_bits.n for one in found.layout_traffic}
        waits[text] = times[1].first + times[1].between + times[1].last
        busy[text] = times[0].busy
        assert waits[text] == pytest.approx((moved["A"] + moved["C"]) / width)
    assert waits["K M"] > waits["M K"] == waits["N K"]
    assert busy["M K"] > 10 * waits["M K"]

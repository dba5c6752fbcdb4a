"""Directives are a second notation: what they say of a nest comes back as that nest, and what they cannot say
is refused in one line.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.frontend import cli
from dse.mapping import directives
from dse.mapping.directives import (
    FIRST_LINE,
    FIRST_LINE_WHOLE,
    Layer,
    directives_of,
    index,
    mapping_of,
    parse,
    text,
)
from dse.mapping.nest import Loop, Mapping, Rotated, Store, faults
from dse.mapping.nest import parse as nest_of
from dse.sim.counts.counts import count
from dse.sim.directives import directed
from dse.sim.einsum.evaluate import EinsumCost, Problem, Solution, einsum_cost
from hw import machine
from hw.arch import Arch
from hw.space import override
from tests.amount import amount
from tests.nests import KINDS, random_arch, random_case, random_einsum
from tests.oracle import walk
from workloads.einsum import Einsum, einsum
from workloads.graph import Workload

CONV = einsum(
    "T[N,K,Yo,Xo] += I[N,C,Yo+S,Xo+R] * W[K,C,R,S]",
    {"N": 128, "K": 48, "C": 12, "Yo": 15, "Xo": 15, "R": 5, "S": 5},
    "CONV",
)
DEPTH = einsum(
    "O[N,C,Yo,Xo] += T[N,C,Yo+S,Xo+R] * V[C,R,S]",
    {"N": 128, "C": 48, "Yo": 12, "Xo": 12, "R": 4, "S": 4},
    "DWCONV",
)
PAPER = """directives
CONV:                                            # row-stationary: a row of weights and a row of inputs per PE
  Xi = Xo+R
  Yi = Yo+S
  REGF:
    tensor{W}(K=3, C=1, R=5, S=1)
    tensor{I}(N=1, C=1, Yi=1, Xi=5)
    tensor{T}(N=1, K=3, Yo=1, Xo=1)
    stack(Yo+=1, Yi+=1, 15) over X               # rows of the output across
    stack(S+=1, Yi+=1, 5) over Y                 # rows of the weights down, of the input on diagonals
    update(Xo+=1, Xi+=1)
    update(C+=1)
    update(K+=3)
    update(N+=1)
  GBUF:
    tensor{W}(K=6, C=6, R=5, S=5)
    tensor{I}(N=4, C=6, Yi=19, Xi=19, shr=4) over NY
    tensor{T}(N=4, K=6, Yo=15, Xo=15)
    stack(K+=6, 4) over NY
    stack(N+=4, 16) over NX
    update(C+=6)
    update(K+=24)
    update(N+=64)
  DRAM:
    tensor{I}(N=128, C=12, Yi=19, Xi=19)
    tensor{W}(K=48, C=12, R=5, S=5)
    tensor{T}(N=128, K=48, Yo=15, Xo=15)
DWCONV:
  Xi = Xo+R
  Yi = Yo+S
  REGF:
    tensor{V}(C=1, R=4, S=1)
    tensor{T}(N=1, C=1, Yi=1, Xi=4)
    tensor{O}(N=1, C=1, Yo=1, Xo=1)
    stack(Yo+=1, Yi+=1, 12) over X
    stack(S+=1, Yi+=1, 4) over Y
    update(Xo+=1, Xi+=1)
    update(C+=1)
    update(N+=1)
  GBUF:
    tensor{V}(C=4, R=4, S=4)
    tensor{T}(N=4, C=4, Yi=15, Xi=9)
    tensor{O}(N=4, C=4, Yo=12, Xo=6)
    stack(C+=4, 6) over NY
    stack(N+=4, 16) over NX
    stack(Xo+=6, Xi+=6, 2) over NY
    update(C+=24)
    update(N+=64)
  DRAM:
    tensor{T}(N=128, C=48, Yi=15, Xi=15)
    tensor{V}(C=48, R=4, S=4)
    tensor{O}(N=128, C=48, Yo=12, Xo=12)
"""
SEEDS = st.integers(0, 2**32)


def test_the_papers_example_row_stationary_conv_feeding_a_depthwise_one() -> None:
    """KAPLA, section III-B: K=6 stacked by 4 against C=4 stacked by 6, N by 64, and 15 updates of 3 words for
    a row of the output.
    """
    conv, depth = parse(PAPER)
    nests = directives.mappings(
        PAPER.replace(FIRST_LINE, FIRST_LINE_WHOLE, 1),
        Workload("paper", (CONV, DEPTH)),
        machine.arch(machine.load("kapla_multi")),
    )
    assert parse(text([conv, depth])) == [conv, depth]
    assert nests == {"CONV": mapping_of(conv, CONV), "DWCONV": mapping_of(depth, DEPTH)}
    assert Rotated("GBUF", "I", ("NY",)) in nests["CONV"].shares
    assert [b.parallel for b in conv.buffers] == [75, 64, 1]
    assert [b.parallel for b in depth.buffers] == [48, 192, 1]
    made, read = conv.buffers[1], depth.buffers[1]
    assert (
        made.steps[-2:]
        == (replace(read.steps[-2], moves=(("K", 24),)), read.steps[-1])
        == (conv.buffers[1].steps[3], conv.buffers[1].steps[4])
    )
    held = {(b.level, one.tensor): dict(one.size) for b in conv.buffers for one in b.tensors}
    assert held["GBUF", "T"]["K"] * 4 == dict(read.tensors[1].size)["C"] * 6 == 24
    assert held["REGF", "T"] == {"N": 1, "K": 3, "Yo": 1, "Xo": 1}
    rows = {
        (row.level, row.tensor, row.action): row.elems
        for row in count(replace(nests["CONV"], shares=()), CONV, machine.arch(machine.load("kapla_multi")))
    }
    # per row of an image and group of channels, in each step over C
    assert rows["GBUF", "T", "write"] == 15 * 3 * (15 * 128 * 16 * 12)


def test_the_papers_example_is_priced_as_it_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its windows slide: a buffer gets 19 elements of a row, not 15 times 5, and 19 rows, on diagonals, serve
    75 buffers. DWCONV reads CONV's T.
    """
    given_file, net = tmp_path / "paper.txt", tmp_path / "paper.yaml"
    given_file.write_text(PAPER)
    net.write_text("""extents: {N: 128}
einsums:
- {name: CONV, text: "T[N,K,Yo,Xo] += I[N,C,Yo+S,Xo+R] * W[K,C,R,S]",
  extents: {K: 48, C: 12, Yo: 15, Xo: 15, R: 5, S: 5}}
- {name: DWCONV, text: "O[N,C,Yo,Xo] += T[N,C,Yo+S,Xo+R] * V[C,R,S]",
  extents: {C: 48, Yo: 12, Xo: 12, R: 4, S: 4}}
""")
    wide = ["--set", "array.x=15", "--set", "array.y=5"]
    assert cli.main(["simulate", str(net), "kapla_multi", str(given_file), *wide, "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "directives that are no nest" in found["certificate"]
    assert [row["mac_units_used"] for row in found["einsums"]] == [75 * 64, 48 * 192]
    arch = machine.arch(override(machine.load("kapla_multi"), {"array.x": 15, "array.y": 5}))
    priced = directed.evaluate_file(given_file, Workload("paper", (CONV, DEPTH)), arch)
    assert isinstance(priced, Solution)
    assert priced.energy_pj == pytest.approx(found["energy_pj"], rel=1e-12)
    conv, depth = (
        {(row.level, row.tensor, row.action): row.elems for row in c.counts} for c in priced.einsums
    )
    fills = 128 * 12 * (48 // 3)  # of a row, per image and channel, in each group of 3 filters
    assert conv["REGF", "I", "write"] == 75 * 19 * fills
    brought = 4 * (48 // 24) * 128 * 12 * 19 * 19  # to four nodes that hold a quarter each, and pass it on
    assert conv["GBUF", "I", "write"] == brought / 4 + brought * 3 / 4
    assert conv["DRAM", "I", "read"] == brought / 4
    assert conv["GBUF", "I", "read"] == 19 * 19 * fills + brought * 3 / 4
    assert conv["REGF", "W", "write"] == 75 * 15 * fills
    assert conv["GBUF", "T", "write"] == 15 * 3 * (15 * fills)
    # halves of 9 columns overlap, and come together
    assert conv["DRAM", "T", "write"] == 128 * 48 * 15 * 15 == depth["DRAM", "T", "read"]
    assert depth["GBUF", "T", "write"] == 128 * 48 * 15 * (9 + 9)
    assert conv["MAC", "-", "compute"] == CONV.macs()
    assert (
        cli.main(["simulate", str(net), "kapla_multi", str(given_file), *wide, "--format", "directives"]) == 0
    )
    assert parse(capsys.readouterr().out) == parse(PAPER)
    hops = {
        (part.tensor, part.action): part.actions / 16
        for part in priced.einsums[0].price.parts
        if part.level == "NODES"
    }
    assert hops["I", "rotate"] == brought * 3 / 4 * (3 + 3) / 4  # down four nodes one by one and back
    # 4 rows by 16 columns, to the nearer corner
    assert hops["T", "hop"] == 128 * 48 * 15 * 15 * (1.5 + sum(min(x, 15 - x) for x in range(16)) / 16)
    assert cli.main(["map", str(net), "kapla_multi", "--schedule", str(given_file), *wide]) == 2
    assert (
        "directives of CONV: tiles overlap, so the layer is no nest; dse simulate prices it on its own"
        in capsys.readouterr().err
    )


SHARED = """C:
  REGF:
    tensor{A}(m=1, k=1)
    tensor{B}(k=1, n=2)
    tensor{C}(m=1, n=2)
    stack(m+=1, 2) over X
    stack(k+=1, 2) over Y
    update(n+=2)
    update(m+=2)
    update(k+=2)
  GBUF:
    tensor{A}(m=4, k=8)
    tensor{B}(k=8, n=4, shr=4) over NY
    tensor{C}(m=4, n=4)
    stack(m+=4, 4) over NY
    stack(n+=8, 2) over NX
    update(n+=4)
  DRAM:
    tensor{A}(m=16, k=8)
    tensor{B}(k=8, n=16)
    tensor{C}(m=16, n=16)
"""


def test_what_nests_say_too_costs_the_same() -> None:
    """Energy by part, cycles and room by boxes and by the nest; with a tile that goes round four nodes."""
    e = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 16, "n": 16, "k": 8}, "C")
    arch = machine.arch(override(machine.load("kapla_multi"), {"nodes.endpoint_pj": 0.3}))
    layer, problem = parse(SHARED)[0], Problem(arch, e, "energy")
    mine, theirs = directed.layer_cost(layer, problem), einsum_cost(problem, mapping_of(layer, e))
    assert isinstance(mine, EinsumCost)
    assert isinstance(theirs, EinsumCost)
    assert layer.buffers[1].tensors[1].shares == 4
    assert {
        (part.level, part.tensor, part.action): part.energy_pj for part in mine.price.parts
    } == pytest.approx(
        {(part.level, part.tensor, part.action): part.energy_pj for part in theirs.price.parts}
    )
    assert mine.latency_cycles == theirs.latency_cycles
    # a nest holds a tile of C one column at a time
    room = {(level, tensor): n for level, tensor, n in theirs.footprint}
    assert {(level, tensor): n for level, tensor, n in mine.footprint} == room | {("REGF", "C"): 2}
    rng, same, meshes = Random(5), 0, 0
    while same < 60:
        e, arch, nest = raised_case(rng, ("gemm", "bmm", "add", "copy"))
        arch = replace(
            arch,
            overlap="free",
            fanouts=tuple(replace(f, systolic="", endpoint_pj=rng.random()) for f in arch.fanouts),
        )
        inside = {
            node.tensor
            for node in nest.nodes
            if isinstance(node, Store) and node.level == arch.levels[-1].name
        }
        f = arch.fanouts[0] if len(arch.fanouts) == 1 else None
        if (
            f
            and len(f.dims) == 2
            and f.outside < len(arch.levels)
            and inside == {p.tensor for p in e.tensors()}
        ):
            arch, meshes = (
                replace(
                    arch,
                    fanouts=(
                        replace(
                            f, hop_pj=rng.random(), multicast_from=rng.choice(["next_level", "same_level"])
                        ),
                    ),
                ),
                meshes + 1,
            )
        layer, problem, left = directives_of(nest, e), Problem(arch, e, "energy"), e.sizes()
        trips = [
            (left[node.rank], left.update({node.rank: node.tile}), node.tile)
            for node in nest.nodes
            if isinstance(node, Loop)
        ]
        if any(n == tile or n % tile for n, _, tile in trips) or (
            layer.buffers[0].level == "mac" and any(step.repl for step in layer.buffers[0].steps)
        ):
            continue
        mine, theirs = directed.layer_cost(layer, problem), einsum_cost(problem, nest)
        assert isinstance(mine, EinsumCost)
        assert isinstance(theirs, EinsumCost)
        assert (mine.energy_pj, mine.latency_cycles) == pytest.approx(
            (theirs.energy_pj, theirs.latency_cycles)
        )
        same += 1
    assert meshes > 5


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("shr=4", "shr=2", "4 along ny hold the same; say shr=4"),
        (
            "    stack(k+=1, 2) over Y\n    update(n+=2)\n    update(m+=2)\n    update(k+=2)\n",
            "    stack(k+=1, 4) over Y\n    update(n+=2)\n    update(m+=2)\n    update(k+=4)\n",
            "makes 2 trips, which are not shared out evenly",
        ),
        ("over NY\n    tensor{C}", "over X\n    tensor{C}", "1 along X hold the same"),
        ("stack(m+=1, 2)", "stack(m+=1, 9)", "ARRAY.X needs 9 PEs, has 8"),
        ("tensor{B}(k=8, n=4, shr=4)", "tensor{B}(k=8, n=5, shr=4)", "tiles that overlap there"),
    ],
)
def test_tiles_that_do_not_go_round_evenly_are_refused(old: str, new: str, says: str) -> None:
    e = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 16, "n": 16, "k": 8}, "C")
    arch = machine.arch(override(machine.load("kapla_multi"), {"nodes.hop_pj": 0}))
    words = SHARED.replace(old, new, 1)
    assert words != SHARED
    try:
        found = str(directed.layer_cost(parse(words)[0], Problem(arch, e, "energy")))
    except ValueError as fault:
        found = str(fault)
    assert says.lower() in found.lower()
    assert len(found.splitlines()) == 1


def test_windows_of_nests_are_said_to_come_in_whole(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A nest brings a window in whole in each trip; what is printed of it says so, and comes back as that
    nest. Without the word it slides.
    """
    path, net = tmp_path / "mine.txt", tmp_path / "net.yaml"
    net.write_text(
        'einsums: ["O[n,k,p] += I[n,c,p+r] * F[k,c,r]"]\nextents: {n: 2, k: 8, c: 4, p: 30, r: 5}\n'
    )
    nest = tmp_path / "nest.txt"
    nest.write_text(
        "store DRAM I F O\nstore GBUF F\nfor n tile 1\nfor p tile 10\nstore GBUF I O\nparfor k tile "
        "1 over X\n"
        "parfor c tile 1 over Y\nstore REGF F\nfor p tile 1\nstore REGF I O\nfor r tile 1\nmac\n"
    )
    assert cli.main(["simulate", str(net), "kapla_single", str(nest), "--format", "directives"]) == 0
    path.write_text(capsys.readouterr().out)
    assert path.read_text().startswith(FIRST_LINE_WHOLE)
    costs = {}
    for begin in (FIRST_LINE_WHOLE, FIRST_LINE):
        path.write_text(path.read_text().replace(FIRST_LINE_WHOLE, begin, 1))
        assert cli.main(["simulate", str(net), "kapla_single", str(path), "--format", "json"]) == 0
        costs[begin] = json.loads(capsys.readouterr().out)["energy_pj"]
    assert cli.main(["simulate", str(net), "kapla_single", str(nest), "--format", "json"]) == 0
    assert costs[FIRST_LINE_WHOLE] == json.loads(capsys.readouterr().out)["energy_pj"] > costs[FIRST_LINE]


@given(SEEDS)
@settings(max_examples=amount(300), deadline=None)
def test_directives_of_a_nest_come_back_as_that_nest(seed: int) -> None:
    e, arch, nest = raised_case(Random(seed))
    layer = directives_of(nest, e)
    assert parse(text([layer])) == [layer]
    assert mapping_of(layer, e) == nest
    assert faults(nest, e, arch) == []


@given(SEEDS)
@settings(max_examples=amount(200), deadline=None)
def test_directives_are_those_of_their_nest(seed: int) -> None:
    e, _, nest = raised_case(Random(seed))
    given_layer = directives_of(nest, e)
    shuffled = replace(
        given_layer,
        buffers=tuple(
            replace(b, tensors=tuple(Random(seed).sample(b.tensors, len(b.tensors))))
            for b in given_layer.buffers
        ),
    )
    found = mapping_of(shuffled, e)  # tensors of a level stand in any order
    again = directives_of(found, e)
    assert mapping_of(again, e) == found
    assert directives_of(mapping_of(again, e), e) == again


@given(SEEDS)
@settings(max_examples=amount(300), deadline=None)
def test_any_nest_comes_back(seed: int) -> None:
    e, _, nest = random_case(Random(seed))
    layer = directives_of(nest, e)
    assert parse(text([layer])) == [layer]
    assert mapping_of(layer, e) == nest


def raised_case(rng: Random, kinds: Sequence[str] = KINDS) -> tuple[Einsum, Arch, Mapping]:
    """A random nest in which every node is raised, in tiles that need not divide: levels in turn, stacks
    outside of loops over other ranks.
    """
    while True:
        e, arch = random_einsum(rng, kinds), random_arch(rng)
        if not all(d.terms for p in e.tensors() for d in p.dims):  # directives name dimensions by their ranks
            continue
        left, nodes = e.sizes(), list[Loop | Store]()
        ranks = sorted(set(left) - e.output.partial_ranks())
        for v, level in enumerate(arch.levels):
            folds, lanes = [], []
            for name, n in (dim for f in arch.fanouts if f.outside == v for dim in f.dims):
                rank = rng.choice(ranks) if ranks else ""
                if rank and rank not in {loop.rank for loop in lanes}:
                    if rng.random() < 0.3 and left[rank] > n:
                        left[rank] = rng.randint(n, left[rank] - 1)
                        folds.append(Loop(rank, left[rank]))
                    left[rank] = max(-(-left[rank] // n), rng.randint(1, left[rank]))
                    lanes.append(Loop(rank, left[rank], name))
            inside = []
            for rank in rng.sample(sorted(left), min(len(left), rng.randint(0, 3))) if v else ():
                if folds or left[rank] > 1:
                    left[rank] = rng.randint(1, left[rank])
                    inside.append(Loop(rank, left[rank]))
            loops = [*folds, *lanes, *inside]
            stores = [p for p in e.tensors() if v == 0 or rng.random() < 0.8]
            places = [(_raised(p.ranks(), loops), Store(level.name, p.tensor)) for p in stores]
            for i in range(len(loops) + 1):
                nodes += [store for at, store in places if at == i] + loops[i : i + 1]
        nodes += [Loop(rank, 1) for rank in rng.sample(sorted(left), len(left)) if left[rank] > 1]
        nest = Mapping(tuple(nodes))
        if all(b.inside is None for b in directives_of(nest, e).buffers):
            return e, arch, nest


def _raised(ranks: frozenset[str], loops: list[Loop]) -> int:
    at = len(loops)
    while at and not loops[at - 1].over and loops[at - 1].rank not in ranks:
        at -= 1
    return at


@given(SEEDS)
@settings(max_examples=amount(150), deadline=None)
def test_what_directives_say_of_accesses_is_what_the_oracle_walks(seed: int) -> None:
    """KAPLA's count of words that come to a level: the size of the tensor there, once per iteration of all
    updates but those inside of the innermost one that moves it, in each of the buffers; where all of it
    divides.
    """
    rng = Random(seed)
    while True:
        e, arch, nest = raised_case(rng, ("gemm", "bmm", "add", "copy"))
        left = e.sizes()
        trips = [
            (left[node.rank], left.update({node.rank: node.tile}), node.tile)
            for node in nest.nodes
            if isinstance(node, Loop)
        ]
        if all(n % tile == 0 for n, _, tile in trips):
            break
    layer, tally, seen = directives_of(nest, e), walk(nest, e, arch), set[str]()
    whole = {index(d): n for p in e.tensors() for d in p.dims for n in [d.size]}
    above, copies = 1, 1
    for b in reversed(layer.buffers):  # outermost first
        steps = list(reversed(b.steps))
        n = {}
        for i in sorted(
            range(len(steps)), key=lambda i: (-max(by for _, by in steps[i].moves), not steps[i].repl)
        ):
            n[i] = max(whole[dim] // by for dim, by in steps[i].moves)
            whole |= dict(steps[i].moves)
            copies *= steps[i].repl or 1
        updates = [i for i, step in enumerate(steps) if not step.repl]
        for held in b.tensors:
            if held.tensor in seen and held.tensor != e.output.tensor:
                dims = {dim for dim, _ in held.size}
                last = max((i for i in updates if dims & {dim for dim, _ in steps[i].moves}), default=-1)
                fills = prod(n[i] for i in updates if i <= last)
                assert (
                    prod(n for _, n in held.size) * fills * above * copies
                    == tally.total[b.level, held.tensor, "write"]
                ), (layer, b.level)
            seen.add(held.tensor)
        above *= prod(n[i] for i in updates)


BASE = """C:
  REGF:
    tensor{A}(m=1, k=1)
    tensor{B}(k=1, n=1)
    tensor{C}(m=1, n=1)
    stack(n+=2, 4) over X
    update(n+=1)
    update(k+=1)
    update(m+=1)
  DRAM:
    tensor{A}(m=8, k=6)
    tensor{B}(k=6, n=8)
    tensor{C}(m=8, n=8)
"""
GEMM = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 8, "n": 8, "k": 6}, "C")


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "stack(n+=2, 4)",
            "stack(n+=2, 3)",
            "a stack of 3 shifts of 2 along n does not cover 8 without gap or overlap; say 4",
        ),
        ("tensor{B}(k=1, n=1)", "tensor{B}(k=1, n=2)", "tiles that overlap, or leave gaps, are no nest"),
        ("update(k+=1)", "update(k+=1, n+=1)", "is a step of no one rank"),
        ("update(k+=1)", "update(k+=0)", "is a step of no one rank"),
        ("update(k+=1)", "update(k+=2)\n    update(k+=1)", "steps grow outwards"),
        ("tensor{A}(m=1, k=1)", "tensor{X}(m=1, k=1)", "is none of its tensors; it has A, B, C"),
        ("update(k+=1)", "updat(k+=1)", "is none of NAME:, LEVEL:, tensor{T}"),
        ("update(k+=1)", "update(k=1)", 'holds "k=1", which must be DIM+=NUMBER'),
        ("tensor{A}(m=1, k=1)", "tensor{A}(m=1, k=1, shr=2)", "names shr and no dimensions"),
        (" over X", "", "names no dimension of a fan-out"),
        ("stack(n+=2, 4) over X", "stack(n+=2, 0) over X", "stacks no buffer"),
        ("C:\n  REGF:\n", "", "stands in no layer"),
        (
            "stack(n+=2, 4) over X\n    update(n+=1)",
            "stack(n+=1, 4) over X\n    update(n+=4)",
            "tensor{A} is stationary while n is folded over PEs",
        ),
    ],
)
def test_what_is_no_nest_is_refused_in_one_line(old: str, new: str, says: str) -> None:
    with pytest.raises(ValueError, match=r".*") as fault:
        for layer in parse(BASE.replace(old, new)):
            mapping_of(layer, GEMM)
    assert says in str(fault.value)
    assert len(str(fault.value).splitlines()) == 1


def test_stacks_that_stand_outermost_first_are_to_be_swapped_where_that_mends_it() -> None:
    right = BASE.replace(
        "stack(n+=2, 4) over X\n    update(n+=1)", "stack(n+=1, 2) over Y\n    stack(n+=2, 4) over X"
    )
    wrong = BASE.replace(
        "stack(n+=2, 4) over X\n    update(n+=1)", "stack(n+=2, 4) over X\n    stack(n+=1, 2) over Y"
    )
    mapping_of(parse(right)[0], GEMM)
    with pytest.raises(
        ValueError, match=re.escape("write the innermost first: stack(n+=1, 2) over Y, stack(n+=2, 4) over X")
    ):
        mapping_of(parse(wrong)[0], GEMM)
    with pytest.raises(ValueError, match="say 8"):  # swapped it would be wrong too
        mapping_of(parse(wrong.replace("stack(n+=1, 2)", "stack(n+=1, 3)"))[0], GEMM)


def test_unknown_levels_are_told_beside_the_other_faults() -> None:
    workload, arch = Workload("net", (GEMM,)), machine.arch(machine.load("edge_array"))
    with pytest.raises(ValueError, match="REGS is no level of edge_array; did you mean REGF") as fault:
        directives.mappings(
            BASE.replace("REGF", "REGS").replace("stack(n+=2, 4)", "stack(n+=2, 3)"), workload, arch
        )
    assert len(str(fault.value).splitlines()) == 2


def test_a_tensor_that_no_update_moves_stands_below_its_lanes() -> None:
    given_text = BASE.replace("    update(k+=1)\n    update(m+=1)\n", "")
    for old, new in (
        ("A}(m=1, k=1)", "A}(m=8, k=6)"),
        ("B}(k=1, n=1)", "B}(k=6, n=1)"),
        ("C}(m=1, n=1)", "C}(m=8, n=1)"),
    ):
        given_text = given_text.replace(old, new)
    assert str(mapping_of(parse(given_text)[0], GEMM)).splitlines()[1:5] == [
        "parfor n tile 2 over X",
        "  store REGF A",
        "  for n tile 1",
        "    store REGF B C",
    ]


@pytest.mark.parametrize(
    "nest",
    [
        "store L0 A B C\nfor m tile 1\nstore L1 B\nfor k tile 1\nfor n tile 1\nmac",
        "store L0 A B C\nfor m tile 1\nstore L1 B\nfor n tile 1\nstore L1 A\nfor k tile 1\nmac",
        "store L0 A B C\nfor m tile 1\nparfor n tile 1 over X\nfor k tile 1\nstore L1 A\nmac",
        "store L0 A B C\nstore L1 A\nstore L2 B\nstore L1 C\nfor k tile 1\nfor n tile 1\nfor m tile 1\nmac",
    ],
)
def test_nests_that_are_not_raised_are_said_in_order(nest: str) -> None:
    layer = directives_of(nest_of(nest), GEMM)
    assert mapping_of(parse(text([layer]))[0], GEMM) == nest_of(nest)


def test_layouts_are_refused() -> None:
    nest = nest_of("layout L0 A: M K\nstore L0 A B C\nfor k tile 1\nfor n tile 1\nfor m tile 1\nmac")
    with pytest.raises(ValueError, match="names the layout of A") as fault:
        directives_of(nest, GEMM)
    assert len(str(fault.value).splitlines()) == 1


def test_ranks_that_move_the_same_dimensions_are_named() -> None:
    """h and w of O[n] += I[n,4*h+w] both move 4*h+w alone: a step by 4 may be one of h, or four of w."""
    e = einsum("O[n] += I[n,4*h+w]", {"n": 2, "h": 3, "w": 8}, "O")
    for loops in ("for h tile 1\nfor w tile 1", "for w tile 4\nfor h tile 1\nfor w tile 1"):
        nest = nest_of(f"store L0 I O\nfor n tile 1\n{loops}\nmac")
        assert mapping_of(parse(text([directives_of(nest, e)]))[0], e) == nest


def test_shared_tiles_keep_their_lanes() -> None:
    layer = parse(PAPER)[0]
    again = directives_of(mapping_of(layer, CONV), CONV)
    assert [
        one.shares for b in again.buffers for one in b.tensors if (b.level, one.tensor) == ("GBUF", "I")
    ] == [4]
    with pytest.raises(ValueError, match="say shr=4"):
        mapping_of(parse(PAPER.replace("shr=4", "shr=2"))[0], CONV)


def test_noise_is_refused_in_lines() -> None:
    rng = random.Random(1)
    letters = list("directives\nC:\n  REGF:\ntensor{A}(m=1)\nupdate(k+=1)stack(n+=1,2)over X\n= +*9")
    for _ in range(500):
        noise = "".join(rng.choices(letters, k=rng.randint(0, 60)))
        try:
            assert all(isinstance(layer, Layer) for layer in parse(noise))
        except ValueError as fault:
            assert str(fault).startswith("directives")


def test_the_command_prints_them_and_prices_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.txt"
    workload = "gemm:m=64,n=32,k=48"
    assert cli.main(["map", workload, "edge_array", "--format", "directives"]) == 0
    path.write_text(capsys.readouterr().out)
    assert path.read_text().startswith(FIRST_LINE)
    assert cli.main(["simulate", workload, "edge_array", str(path), "--format", "yaml"]) == 0
    again = capsys.readouterr().out
    assert cli.main(["map", workload, "edge_array", "--format", "yaml"]) == 0
    assert again == capsys.readouterr().out
    path.write_text(path.read_text().replace("update", "updaet", 1))
    assert cli.main(["simulate", workload, "edge_array", str(path)]) == 2
    assert f"{path}: directives, line" in capsys.readouterr().err

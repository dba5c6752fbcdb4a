"""Hops in closed form against walks of the mesh: trees link by link, nests element by element."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.mapping.nest import Loop, Mapping, Store
from dse.mapping.schedule import Branch, Schedule, Segment, parse_schedule
from dse.sim.counts.counts import nest_sums
from dse.sim.einsum.evaluate import Solution
from dse.sim.levels import network
from dse.sim.schedule.faults import faults
from dse.sim.schedule.graph import evaluate
from hw import machine
from hw.arch import Arch, Compute, Fanout, Level
from tests.amount import amount
from tests.enumeration import products
from tests.nests import compressed
from tests.oracle import Walk, walk
from tests.rings import WALKED, walked_chain, walked_tree
from tests.schedules import random_schedule
from tests.test_schedule import FC, NODES, PIPE, lines
from tests.test_schedule_walks import shared_sums
from workloads.einsum import Einsum, Projection, einsum
from workloads.graph import Workload

KAPLA = json.loads((Path(__file__).parent / "data" / "kapla_reference.json").read_text())["hardware"]


@settings(max_examples=amount(300), deadline=None)
@given(
    st.tuples(st.integers(0, 9), st.integers(0, 9)),
    st.sets(st.integers(0, 9), min_size=1),
    st.sets(st.integers(0, 9), min_size=1),
)
def test_a_tree_has_the_links_of_all_ways(source: tuple[int, int], rows: set[int], columns: set[int]) -> None:
    assert network.tree(source, sorted(rows), sorted(columns)) == walked_tree(
        source, {(y, x) for y in rows for x in columns}
    )


@settings(max_examples=amount(300), deadline=None)
@given(
    st.tuples(st.integers(0, 12), st.integers(0, 12)),
    st.sets(st.integers(0, 12), min_size=1),
    st.sets(st.integers(0, 12), min_size=1),
)
def test_a_chain_has_the_links_of_going_to_the_nearest_lane(
    source: tuple[int, int], rows: set[int], columns: set[int]
) -> None:
    lanes = {(y, x) for y in rows for x in columns}
    assert network.chain(source, sorted(rows), sorted(columns)) == walked_chain(source, lanes)
    assert network.chain((0, 0), sorted(rows), sorted(columns)) <= walked_tree((0, 0), lanes)


def traffic(mapping: Mapping, e: Einsum, arch: Arch) -> Iterator[network.NetworkTraffic]:
    return network.network_traffic(mapping, nest_sums(mapping, e, arch), arch)


def random_mesh(rng: Random, ragged: bool = False) -> tuple[Arch, Einsum, Mapping]:
    """A product on a mesh of which a rectangle is used: loops in time and space in any order, tiles that
    divide; ragged: those over lanes need not.
    """
    sizes = {rank: rng.choice([2, 3, 5, 6, 7, 9] if ragged else [1, 2, 4, 4, 6]) for rank in "mnk"}
    e = einsum("C[m,n] += A[m,k] * B[k,n]", sizes, "e")
    grid = (rng.randint(1, 6), rng.randint(4, 9))
    first = (rng.randint(0, grid[0] - 1), rng.choice([0, rng.randint(0, grid[1] - 1)]))
    own = (
        rng.randint(1, grid[0] - first[0]),
        rng.choice([grid[1] - first[1], rng.randint(1, grid[1] - first[1])]),
    )
    flags = (rng.random() < 0.7, rng.random() < 0.7)
    f = Fanout(
        "mesh",
        1,
        (("Y", own[0]), ("X", own[1])),
        flags,
        flags,
        "",
        1 / 8,
        0.0,
        rng.choice(["corners", "edge"]),
        rng.choice(["next_level", "same_level"]),
        ((first[0], grid[0]), (first[1], grid[1])),
    )
    levels = (
        Level("DRAM", None, 8, 1.0, 1.0, bypass=False),
        Level("BUF", None, 8, 1.0, 1.0, skip_first_read=rng.random() < 0.5),
    )
    arch = Arch(
        "mesh",
        (replace(levels[0], skip_first_read=rng.random() < 0.5), levels[1]),
        (f,),
        Compute(1.0, 1.0),
        1.0,
        8,
    )
    left, nodes, room = dict(sizes), [Store("DRAM", t) for t in "ABC"], dict(f.dims)
    for _ in range(rng.randint(0, 6)):
        rank = rng.choice("mnk")
        over = rng.choice(["", "Y", "X", "X"])
        tiles = [
            n
            for n in range(1, left[rank] + 1)
            if (left[rank] % n == 0 or (ragged and over)) and (not over or -(-left[rank] // n) <= room[over])
        ]
        tile = rng.choice(tiles)
        if over:
            room[over] //= -(-left[rank] // tile)
        nodes.append(Loop(rank, tile, over))
        left[rank] = tile
    for t in rng.sample("ABC", 3):
        while rng.random() < 0.4:
            rank = rng.choice("mnk")
            left[rank] = rng.choice([n for n in range(1, left[rank] + 1) if left[rank] % n == 0 or ragged])
            nodes.append(Loop(rank, left[rank]))
        nodes.append(Store("BUF", t))
    return arch, e, Mapping((*nodes, *(Loop(rank, 1) for rank in "mnk")))


def sparse_mesh(rng: Random, ragged: bool) -> tuple[Arch, Einsum, Mapping]:
    """The same with a compressed A, which compute reads straight from main memory, and maybe others, too."""
    arch, e, mapping = random_mesh(rng, ragged)
    e = replace(e, inputs=(compressed(rng, e.inputs[0], rng.choice([0.1, 0.5, 1.0])), e.inputs[1]))
    passed = {Store("BUF", t) for t in ("A", *rng.sample("BC", rng.randint(0, 2)))}
    return arch, e, replace(mapping, nodes=tuple(node for node in mapping.nodes if node not in passed))


def walked_hops(arch: Arch, e: Einsum, mapping: Mapping) -> dict[str, float]:
    """Every element of every fill and drain, and what compute asks main memory for, from or to the corner or
    edge that has the shorter tree. Of A compressed a nonzero is a value and an index, a row a pointer; lanes
    at different nonzeros fetch elements of B, and send those of C, on ways of their own, zeros among them.
    """
    f, found, seen = arch.fanouts[0], defaultdict(float), set()
    (y0, rows), (x0, columns) = f.mesh_region
    sources = [
        (y, x)
        for y in range(rows)
        for x in range(columns)
        if x in (0, columns - 1) and (f.injected_at == "edge" or y in (0, rows - 1))
    ]
    skips = arch.levels[0].skip_first_read

    share, buffered = (
        e.inputs[0].density,
        {node.tensor for node in mapping.nodes if isinstance(node, Store) and node.level == "BUF"},
    )

    def multiply(lanes: list) -> None:
        for p in e.tensors():
            if p.tensor not in buffered:
                beside = [n / (p.bits or arch.word_bits) for n in (p.index_bits, p.pointer_bits)]
                words = share * (1 + beside[0]) + beside[1] / e.sizes()["k"] if p.format == "csr" else share
                moved(
                    p, "MAC", lanes, (False, False) if p.tensor != "A" and share < 1 else f.multicast, words
                )

    def moved(p: Projection, level: str, lanes: list, shared: tuple[bool, ...], words: float = 1) -> None:
        ranks = [d.terms[0][0] for d in p.dims]
        asked = defaultdict(set)
        for (y, x), env in lanes:
            for i in range(*env[ranks[0]]):
                for j in range(*env[ranks[1]]):
                    asked[i, j, None if shared[0] else y, None if shared[1] else x].add((y0 + y, x0 + x))
        for key, places in asked.items():
            hops = words * min(WALKED[f.multicast_from](source, places) for source in sources)
            if p is e.output and level == "MAC" and share < 1:
                place, lane, zero = products(share, e.sizes()["k"], 1.0, 1.0)
                found[p.tensor] += (
                    hops
                    / words
                    * (2 * words + zero - skips * (place + lane * ((p.tensor, key, level) not in seen)))
                )
                seen.add((p.tensor, key, level))
            elif p is e.output:
                found[p.tensor] += hops * (1 + (not skips or (p.tensor, key, level) in seen))
                seen.add((p.tensor, key, level))
            else:
                found[p.tensor] += hops

    def go(at: int, lanes: list) -> None:
        if at == len(mapping.nodes):
            return multiply(lanes)
        node = mapping.nodes[at]
        if isinstance(node, Store):
            if node.level == "BUF":
                moved(next(p for p in e.tensors() if p.tensor == node.tensor), "BUF", lanes, f.multicast)
            return go(at + 1, lanes)
        rank, trips = (
            node.rank,
            max(-(-(env[node.rank][1] - env[node.rank][0]) // node.tile) for _, env in lanes),
        )
        parts = [
            [
                (
                    place,
                    {
                        **env,
                        rank: (
                            env[rank][0] + n * node.tile,
                            min(env[rank][0] + (n + 1) * node.tile, env[rank][1]),
                        ),
                    },
                )
                for place, env in lanes
                if env[rank][0] + n * node.tile < env[rank][1]
            ]
            for n in range(trips)
        ]
        if not node.over:
            for part in parts:
                go(at + 1, part)
            return
        down, right = (trips, 1) if node.over == "Y" else (1, trips)
        step = (1, 0) if node.over == "Y" else (0, 1)
        go(
            at + 1,
            [
                ((y * down + n * step[0], x * right + n * step[1]), env)
                for n, part in enumerate(parts)
                for (y, x), env in part
            ],
        )

    go(0, [((0, 0), {rank: (0, n) for rank, n in e.extents})])
    return dict(found)


def uneven_unlike(
    seed: int, mesh: Callable[[Random, bool], tuple[Arch, Einsum, Mapping]] = random_mesh
) -> str:
    """The same where the last lanes have less, or nothing; what is refused is drawn again."""
    rng = Random(seed)
    while True:
        arch, e, mapping = mesh(rng, True)
        try:
            got = {
                way.tensor: way.energy_pj
                for way in network.network_traffic(mapping, nest_sums(mapping, e, arch), arch)
            }
        except ValueError as fault:
            assert len(str(fault).splitlines()) == 1
            assert "take tiles that divide" in str(fault)
            continue
        want = walked_hops(arch, e, mapping)
        return (
            ""
            if all(abs(got[t] - want[t]) < 1e-6 for t in want)
            else f"seed {seed}: {got}, walked {want}\n{mapping}\n{arch.fanouts}"
        )


@settings(max_examples=amount(200), deadline=None)
@given(st.integers(0, 10**9))
def test_hops_of_unequal_lanes_are_those_of_all_their_words(seed: int) -> None:
    assert uneven_unlike(seed) == ""


@settings(max_examples=amount(100), deadline=None)
@given(st.integers(0, 10**9))
def test_lanes_at_different_nonzeros_fetch_on_ways_of_their_own(seed: int) -> None:
    arch, e, mapping = sparse_mesh(Random(seed), False)
    got = {
        way.tensor: way.energy_pj
        for way in network.network_traffic(mapping, nest_sums(mapping, e, arch), arch)
    }
    assert got == pytest.approx(
        {t: n for t, n in walked_hops(arch, e, mapping).items() if t in got}, abs=1e-6
    )


@settings(max_examples=amount(100), deadline=None)
@given(st.integers(0, 10**9))
def test_unequal_lanes_at_different_nonzeros_fetch_on_ways_of_their_own(seed: int) -> None:
    assert uneven_unlike(seed, sparse_mesh) == ""


@settings(max_examples=amount(200), deadline=None)
@given(
    st.tuples(st.integers(0, 9), st.integers(0, 9)),
    st.sets(st.tuples(st.integers(0, 9), st.integers(0, 9)), min_size=1),
)
def test_links_to_any_lanes_are_those_of_all_ways(
    source: tuple[int, int], lanes: set[tuple[int, int]]
) -> None:
    assert network.links("next_level", source, frozenset(lanes)) == walked_tree(source, lanes)
    rectangle = {(y, x) for y, _ in lanes for _, x in lanes}
    assert all(
        network.links(kind, source, frozenset(rectangle)) == WALKED[kind](source, rectangle)
        for kind in WALKED
    )


def unlike(seed: int) -> str:
    arch, e, mapping = random_mesh(Random(seed))
    got = {
        way.tensor: way.energy_pj
        for way in network.network_traffic(mapping, nest_sums(mapping, e, arch), arch)
    }
    want = walked_hops(arch, e, mapping)
    return (
        ""
        if all(abs(got[t] - want[t]) < 1e-6 for t in want)
        else f"seed {seed}: {got}, walked {want}\n{mapping}\n{arch.fanouts}"
    )


@settings(max_examples=amount(200), deadline=None)
@given(st.integers(0, 10**9))
def test_hops_of_a_nest_are_those_of_all_its_words(seed: int) -> None:
    assert unlike(seed) == ""


def windowed_mesh(rng: Random) -> tuple[Arch, Einsum, Mapping]:
    """A convolution on a mesh: strides, dilation, padding; loops in time and space in any order."""
    arch, _, _ = random_mesh(rng)
    sizes = {"k": rng.choice([1, 2, 4]), "c": rng.choice([1, 2]), "p": rng.choice([4, 6, 8]), "r": 3}
    step, wide, pad = rng.choice([1, 1, 2]), rng.choice([1, 1, 2]), rng.randint(0, 2)
    hull = step * (sizes["p"] - 1) + 2 * wide + 1 - pad - rng.randint(0, min(pad, 2))
    window = f"{step}*p+{wide}*r-{pad}"
    e = einsum(f"O[k,p] += I[c,{window}] * W[k,c,r]", sizes, "e", sizes={"I": (sizes["c"], hull)})
    left, room, nodes = dict(sizes), dict(arch.fanouts[0].dims), [Store("DRAM", t) for t in "IWO"]

    def cut(over: str) -> None:
        rank = rng.choice("kcppr")
        tile = rng.choice(
            [
                n
                for n in range(1, left[rank] + 1)
                if left[rank] % n == 0 and (not over or left[rank] // n <= room[over])
            ]
        )
        if over:
            room[over] //= left[rank] // tile
        nodes.append(Loop(rank, tile, over))
        left[rank] = tile

    for _ in range(rng.randint(1, 5)):
        cut(rng.choice(["", "Y", "X", "X"]))
    for t in rng.sample("IWO", 3):
        for _ in range(rng.choice([0, 0, 1, 2])):
            cut("")
        nodes.append(Store("BUF", t))
    return arch, e, Mapping((*nodes, *(Loop(rank, 1) for rank in sizes)))


class Windows(Walk):
    """The walk of a nest that also adds up links: of each word of I that leaves main memory, to all lanes of
    the mesh that this access serves.
    """

    links = 0.0

    def add(self, at: int, level: str, tensor: str, action: str, n: float, outside: str = "") -> None:
        super().add(at, level, tensor, action, n, outside)
        if (level, tensor, action) != ("DRAM", "I", "read"):
            return
        f = self.arch.fanouts[0]
        (y0, rows), (x0, columns) = f.mesh_region
        shared, own = self.together(self.e.inputs[0]), {"c", "p", "r"}
        places, size = {(0, 0)}, self.e.sizes()
        lanes = {position: lane for position, _, lane in self.lanes}
        for position, loop in enumerate(self.mapping.nodes):
            if not isinstance(loop, Loop):
                continue
            if loop.over:
                trips = -(-size[loop.rank] // loop.tile)
                every = loop.rank not in own and shared[loop.over]
                places = {
                    (y * trips + lane, x) if loop.over == "Y" else (y, x * trips + lane)
                    for y, x in places
                    for lane in (range(trips) if every else [lanes[position]])
                }
            size[loop.rank] = loop.tile
        sources = product(range(rows) if f.injected_at == "edge" else (0, rows - 1), (0, columns - 1))
        served = {(y0 + y, x0 + x) for y, x in places}
        self.links += n * min(WALKED[f.multicast_from](source, served) for source in sources)


@settings(max_examples=amount(200), deadline=None)
@given(st.integers(0, 10**9))
def test_hops_of_windows_are_those_of_all_their_words(seed: int) -> None:
    """Each lane fetches the window of its share; what padding cuts of it does not come."""
    rng = Random(seed)
    while True:
        arch, e, mapping = windowed_mesh(rng)
        walked = Windows(mapping, e, arch)
        try:
            got = {way.tensor: way.energy_pj for way in traffic(mapping, e, arch)}
        except ValueError as fault:
            assert len(str(fault).splitlines()) == 1
            assert "with padding: hops are not counted" in str(fault) or "stands between loops" in str(fault)
            continue
        walked.go(0, {rank: (0, n) for rank, n in e.extents})
        assert got["I"] == pytest.approx(walked.links), (e, mapping, arch.fanouts)
        return


def test_padded_windows_of_lanes_that_change_from_round_to_round_are_not_counted() -> None:
    arch = machine.arch(machine.load("kapla_multi_4x4"))
    e = einsum("O[p] += I[p+r-1] * W[r]", {"p": 8, "r": 3}, "e", sizes={"I": (8,)})
    stores = tuple(Store("DRAM", t) for t in "IWO")
    for loops, counted in (((4,), False), ((), True)):
        nest = Mapping(
            (*stores, *(Loop("p", n) for n in loops), Loop("p", 2, "NY"), Loop("p", 1), Loop("r", 1))
        )
        if counted:
            assert {way.tensor for way in traffic(nest, e, arch)} == set("IWO")
            continue
        with pytest.raises(network.Uncounted, match="for p stands outside of loops over PEs of NODES"):
            list(traffic(nest, e, arch))


@settings(max_examples=amount(150), deadline=None)
@given(st.integers(0, 10**9))
def test_lanes_take_and_give_what_their_buffers_do(seed: int) -> None:
    """Of inputs what is filled; of the output what is filled and drained, which is all but what each
    operation reads and writes.
    """
    arch, e, mapping = random_mesh(Random(seed))
    bus = replace(arch.fanouts[0], hop_pj=0.0, endpoint_pj=1 / 8)
    arch = replace(
        arch, levels=(arch.levels[0], replace(arch.levels[1], skip_first_read=False)), fanouts=(bus,)
    )
    tally = walk(mapping, e, arch).total
    got = {
        way.tensor: way.energy_pj
        for way in network.network_traffic(mapping, nest_sums(mapping, e, arch), arch)
    }
    want = {
        t: tally["BUF", t, "write"] + (tally["BUF", t, "read"] - 2 * e.points() if t == "C" else 0)
        for t in "ABC"
    }
    assert got == want


def test_lanes_without_a_buffer_take_each_operand() -> None:
    """Two lanes of two products each: sums start from zero in each lane, so two reads and four writes of
    C."""
    e = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 1, "n": 1, "k": 4}, "e")
    arch = Arch(
        "bus",
        (Level("DRAM", None, 8, 1.0, 1.0),),
        (Fanout("lanes", 1, (("X", 2),), (True,), (True,), endpoint_pj=1 / 8),),
        Compute(1.0, 1.0),
        1.0,
        8,
    )
    nest = Mapping((*(Store("DRAM", t) for t in "ABC"), Loop("k", 2, "X"), Loop("k", 1)))
    assert {way.tensor: way.energy_pj for way in traffic(nest, e, arch)} == {"A": 4.0, "B": 4.0, "C": 6.0}


def meshed(**fields) -> Arch:
    return replace(NODES, fanouts=(replace(NODES.fanouts[0], hop_pj=1 / 8, **fields),))


def test_words_between_stages_come_from_the_lane_that_made_them() -> None:
    """Two lanes of stage a, at (0, 0) and (0, 1), hold 6 words of T1 each per granule; stage b reads them all
    at (1, 0): 1 and 2 links. T0 goes from (0, 0) to both lanes, one link; T2 from (1, 0), a corner of 2 x 4
    lanes.
    """
    found = evaluate(meshed(), FC, parse_schedule(PIPE))
    assert isinstance(found, Solution)
    hops = {
        (c.name, part.tensor): part.energy_pj
        for c in found.einsums
        for part in c.price.parts
        if part.action == "hop"
    }
    assert hops == {("a", "T0"): 32.0, ("b", "T1"): 4 * (6 * 1 + 6 * 2), ("b", "T2"): 0.0}


def test_what_hops_do_not_count_is_said_in_one_line() -> None:
    ragged = PIPE.replace("store BUF W1 T1 T2", "parfor k tile 4 over X\n        store BUF W1 T1 T2").replace(
        "X[0:1]", "X[0:2]"
    )
    uneven = evaluate(meshed(), FC, parse_schedule(ragged))
    assert isinstance(uneven, Solution)
    assert {
        ("b", t): n for (_, t), n in walked_handing(meshed(), FC, parse_schedule(ragged).segments[0]).items()
    } == {
        (c.name, part.tensor): part.energy_pj
        for c in uneven.einsums
        for part in c.price.parts
        if (part.action, part.tensor) == ("hop", "T1")
    }
    turning = ragged.replace("store BUF W1 T1 T2", "for k tile 1\n        store BUF W1 T1 T2")
    assert lines(turning, meshed())[-1] == (
        "mapping of b: parfor k over X gives PEs of grid unequal shares, and T2 comes 4 times in some: hops "
        "are not counted; take tiles that divide"
    )
    late = PIPE.replace(
        "store BUF W1 T1 T2", "for k tile 3\nparfor k tile 1 over X\nstore BUF W1 T1 T2"
    ).replace("X[0:1]", "X[0:3]")
    assert lines(late, meshed())[-1:] == [
        "mapping of b: parfor loops over Y, X must stand first, so that it is known which PEs read "
        "T1 from where"
    ]


@pytest.mark.parametrize(
    ("name", "key"),
    [("kapla_multi", "multi_node"), ("kapla_multi_4x4", "multi_node_4x4"), ("kapla_single", "single_node")],
)
def test_unit_prices_are_those_of_the_reference(name: str, key: str) -> None:
    arch, common = machine.arch(machine.load(name)), KAPLA["common"]
    own = {**KAPLA["multi_node"], **KAPLA[key]}
    dram, gbuf, regf = arch.levels
    nodes, array = arch.fanouts
    pj = lambda joules: pytest.approx(joules * 1e12, rel=1e-12)
    assert (dram.read_pj, dram.write_pj) == (pj(common["DRAM_J_per_word"]),) * 2
    assert arch.compute.mac_pj == pj(common["mac_J"])
    assert 16 * nodes.hop_pj == pj(common["noc_hop_J_per_word"])
    assert 16 * array.endpoint_pj == pj(own["ITCN_J"])
    assert nodes.injected_at == "corners"
    assert (gbuf.read_pj, gbuf.write_pj, regf.read_pj, regf.write_pj) == (
        *2 * (pj(own["GBUF_J"]),),
        *2 * (pj(own["REGF_J"]),),
    )
    assert arch.leak_mw() == pj(own["static_J_per_cycle"])
    assert arch.clock_ghz == 1
    assert arch.word_bits == common["word_bits"] == 16
    assert (dram.bandwidth, gbuf.bandwidth) == (
        own["dram_bandwidth_words_per_cycle"],
        own["bus_words_per_cycle"],
    )
    assert [[n for _, n in f.dims] for f in arch.fanouts] == [own["nodes"], own["pe_array"]]
    assert (gbuf.capacity_bits, regf.capacity_bits) == (8 * own["gbuf_bytes"], 8 * own["regf_bytes"])


def random_stages(rng: Random) -> tuple[Arch, Workload, Schedule]:
    """A random pipeline that hands words on through the lanes of a mesh."""
    while True:
        arch, workload, schedule = random_schedule(rng)
        lanes = [
            node
            for s in schedule.segments
            if s.pipelined
            for node in s.nodes
            if isinstance(node, Store) and node.level not in ("L0", "DRAM")
        ]
        if lanes and arch.fanouts[0].name == "nodes":
            source = rng.choice(["next_level", "same_level"])
            arch = replace(
                arch,
                fanouts=(replace(arch.fanouts[0], hop_pj=1 / 8, multicast_from=source), *arch.fanouts[1:]),
            )
            if any(
                arch.levels.index(level) >= arch.fanouts[0].outside
                for level in arch.levels
                if level.name in {node.level for node in lanes}
            ) and not faults(arch, workload, schedule):
                return arch, workload, schedule


def walked_handing(arch: Arch, workload: Workload, segment: Segment) -> dict[tuple[str, str], float]:
    """Hops of what stages read out of each other's lanes, word by word: (einsum, tensor) -> hops. An
    operation that reads padding straight moves a word too (docs/model.md, Networks), as far as the others on
    average.
    """
    f, order, found = arch.fanouts[0], [level.name for level in arch.levels], defaultdict(int)
    read_words, read_padding = defaultdict(int), defaultdict(int)
    dims, einsums = [name for name, _ in f.dims], {e.name: e for e in workload.einsums}
    first = {
        b.einsum: tuple(next((one.first for one in b.region if one.dim == dim), 0) for dim in dims)
        for b in segment.branches
    }
    handed = {
        node.tensor
        for node in segment.nodes
        if isinstance(node, Store) and order.index(node.level) >= f.outside
    }

    def visit(b: Branch, nodes: tuple, at: int, lanes: list, seen) -> None:
        """Calls seen(position, lanes) at every node below the shared ones; lanes: (place in the mesh, ranges
        of the ranks).
        """
        seen(at, lanes)
        if at == len(nodes):
            return
        node = nodes[at]
        if isinstance(node, Store):
            return visit(b, nodes, at + 1, lanes, seen)
        low_high = [env[node.rank] for _, env in lanes]
        trips = max(-(-(high - low) // node.tile) for low, high in low_high)
        parts = [
            [
                (place, {**env, node.rank: (low + n * node.tile, min(low + (n + 1) * node.tile, high))})
                for (place, env), (low, high) in zip(lanes, low_high, strict=True)
                if low + n * node.tile < high
            ]
            for n in range(trips)
        ]
        if node.over not in dims:
            # lanes of arrays inside of a node take turns here: what a node reads of another one is counted
            # above them
            for part in parts:
                visit(b, nodes, at + 1, part, seen)
            return
        d = dims.index(node.over)
        visit(
            b,
            nodes,
            at + 1,
            [
                (
                    (
                        place[0] * (trips if d == 0 else 1) + n * (d == 0),
                        place[1] * (trips if d == 1 else 1) + n * (d == 1),
                    ),
                    env,
                )
                for n, part in enumerate(parts)
                for place, env in part
            ],
            seen,
        )

    def elements(e: Einsum, t: str, env: dict) -> set:
        p = next(p for p in e.tensors() if p.tensor == t)
        axes = [
            range(
                max(d.offset + sum(c * env[r][0] for r, c in d.terms), 0),
                min(d.offset + sum(c * (env[r][1] - 1) for r, c in d.terms) + 1, d.size),
            )
            for d in p.dims
        ]
        return set(product(*axes))

    def run(envs: dict) -> None:
        owner = {}
        for b in segment.branches:
            e, own = einsums[b.einsum], b.mapping.nodes
            y0, x0 = first[b.einsum]
            if e.output.tensor in handed:
                lead = next(
                    (i for i, n in enumerate(own) if not (isinstance(n, Loop) and n.over in dims)), len(own)
                )

                parts = defaultdict(list)  # lanes that have a part of a sum, the first of them holds it

                def hold(at: int, lanes: list, e=e, lead=lead, y0=y0, x0=x0, parts=parts) -> None:
                    for (y, c), env in lanes if at == lead else ():
                        for x in elements(e, e.output.tensor, env):
                            parts[x].append((y0 + y, x0 + c))

                visit(b, own, 0, [((0, 0), envs[b.einsum])], hold)
                owner.update({(e.output.tensor, x): min(places) for x, places in parts.items()})
                if any(len(places) > 1 for places in parts.values()):
                    found[e.name, e.output.tensor] += sum(
                        WALKED[f.multicast_from](min(places), set(places)) for places in parts.values()
                    )
            for t in handed & {p.tensor for p in e.inputs}:
                child = next(
                    (i for i, n in enumerate(own) if isinstance(n, Store) and n.tensor == t), len(own)
                )

                def read(at: int, lanes: list, e=e, t=t, child=child, own=own, y0=y0, x0=x0) -> None:
                    if at != child:
                        return
                    asked, padding = defaultdict(set), set()
                    for (y, c), env in lanes:
                        lane = None if f.multicast[0] else y, None if f.multicast[1] else c
                        for x in elements(e, t, env):
                            asked[x, *lane].add((y0 + y, x0 + c))
                        if child == len(own) and not elements(e, t, env):
                            dims_of = next(p for p in e.inputs if p.tensor == t).dims
                            padding.add(
                                (
                                    tuple(d.offset + sum(k * env[r][0] for r, k in d.terms) for d in dims_of),
                                    *lane,
                                )
                            )
                    for (x, _, _), places in asked.items():
                        found[e.name, t] += WALKED[f.multicast_from](owner[t, x], places)
                    read_words[e.name, t] += len(asked)
                    read_padding[e.name, t] += len(padding)

                visit(b, own, 0, [((0, 0), envs[b.einsum])], read)

    def granules(nodes: list, envs: dict) -> None:
        if not nodes:
            return run(envs)
        if isinstance(nodes[0], Store):
            return granules(nodes[1:], envs)
        own = {b.einsum: dict(b.ranks).get(nodes[0].rank, nodes[0].rank) for b in segment.branches}
        low, high = envs[segment.branches[0].einsum][own[segment.branches[0].einsum]]
        for start in range(low, high, nodes[0].tile):
            granules(
                nodes[1:],
                {name: {**env, own[name]: (start, start + nodes[0].tile)} for name, env in envs.items()},
            )

    granules(
        list(segment.nodes),
        {b.einsum: {rank: (0, n) for rank, n in einsums[b.einsum].extents} for b in segment.branches},
    )
    return {
        at: hops * (1 + read_padding[at] / read_words[at]) if read_padding[at] else hops
        for at, hops in found.items()
    }


def handing_unlike(seed: int) -> str:
    return unlike_handing(seed, *random_stages(Random(seed)))


def unlike_handing(seed: int, arch: Arch, workload: Workload, schedule: Schedule) -> str:
    arch = replace(arch, fanouts=(replace(arch.fanouts[0], hop_pj=1 / 8), *arch.fanouts[1:]))
    if faults(arch, workload, schedule):
        return ""
    found = evaluate(arch, workload, schedule)
    assert isinstance(found, Solution)
    got = {
        (c.name, part.tensor): part.energy_pj
        for c in found.einsums
        for part in c.price.parts
        if part.action == "hop"
    }
    for segment in schedule.segments:
        inner = {
            node.over for b in segment.branches for node in b.mapping.nodes if isinstance(node, Loop)
        } - {"U", "V", ""}
        for key, hops in (
            walked_handing(arch, workload, segment) if segment.pipelined and not inner else {}
        ).items():
            if abs(got[key] - hops) > 1e-6:
                return f"seed {seed}: {key} {got[key]}, walked {hops}\n{schedule}"
    return ""


def gathering_unlike(seed: int) -> str:
    return unlike_handing(seed, *shared_sums(seed))


@settings(max_examples=amount(10), deadline=None)
@given(st.integers(0, 10**9))
def test_hops_of_sums_that_lanes_share_are_those_to_the_first_of_them(seed: int) -> None:
    assert gathering_unlike(seed) == ""


@settings(max_examples=amount(20, 8), deadline=None)
@given(st.integers(0, 10**9))
def test_hops_between_stages_are_those_of_all_their_words(seed: int) -> None:
    assert handing_unlike(seed) == ""


TURNED = """segment
  store DRAM T0 T2
  for m tile 2
    store BUF T1
    einsum a on Y[0:1] X[0:2]
      parfor m tile 1 over X
        store BUF T0
        for g tile 1
          for h tile 1
            mac
    einsum b on Y[1:2] X[0:3] with m = p
      parfor k tile 2 over X
        store BUF T2
        for k tile 1
          for p tile 1
            mac
"""


def test_words_of_a_dimension_that_several_ranks_make_are_all_with_the_lane_that_makes_them() -> None:
    """As the gradient of a gate makes its quarter: h and g stand in one dimension, which the next stage
    splits.
    """
    gates = Workload(
        "gates",
        (
            einsum("T1[m,3*g+h] = neg(T0[m,g,h])", {"m": 8, "g": 2, "h": 3}, "a"),
            einsum("T2[p,k] = relu(T1[p,k])", {"p": 8, "k": 6}, "b"),
        ),
    )
    schedule = parse_schedule(TURNED)
    found = evaluate(meshed(), gates, schedule)
    assert isinstance(found, Solution)
    hops = {
        (c.name, part.tensor): part.energy_pj
        for c in found.einsums
        for part in c.price.parts
        if (part.action, part.tensor) == ("hop", "T1")
    }
    assert hops == walked_handing(meshed(), gates, schedule.segments[0])
    assert hops["b", "T1"] > 0
    with pytest.raises(
        ValueError, match="parfor h cuts windows of T1, whose hops are not counted; split another rank"
    ):
        evaluate(
            meshed(),
            gates,
            parse_schedule(TURNED.replace("parfor m tile 1 over X", "parfor h tile 2 over X")),
        )

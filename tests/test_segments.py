"""Fused segments with several shared loops: capacity by lifetime, and the search among them."""

from __future__ import annotations

import re
from dataclasses import replace
from math import inf

import pytest

from dse.mapping.classes import cut_alike, exchangeable, shared_tensors
from dse.mapping.constraints import FREE, Constraints
from dse.mapping.nest import Loop, Mapping, Store
from dse.mapping.schedule import parse_schedule
from dse.mapping.searched import covers
from dse.sim.einsum.evaluate import EinsumCost, Problem, Solution, einsum_cost
from dse.sim.schedule import placed
from dse.sim.schedule.faults import faults
from dse.sim.schedule.graph import evaluate, required_bits
from dse.solve.schedules.depths import MAX_STEPS, PASSES, Choices, SegmentSearch, Standing, mirrors
from dse.solve.schedules.fused import fused
from dse.solve.schedules.fusible_segments import joined_segments
from dse.solve.schedules.nests import Nests, Place
from dse.solve.schedules.plan import FusedSegment, Plan, price
from dse.solve.schedules.segment_plans import SegmentPlans
from dse.solve.schedules.shared_loops import search
from hw import machine
from hw.arch import Arch
from tests.fusions import random_case, unlike
from tests.test_fused import chain
from tests.test_schedule_walks import compared
from workloads.einsum import einsum
from workloads.graph import Workload

A2S = machine.arch(machine.load("a2s"))

LIVES = """
segment
  store DRAM T0 W0 W1 W2 T3
  store GLB W1
  for m tile 2
    store GLB T1 T2 W0
    einsum MM0
      for m tile 1
        for n1 tile 1
          for n0 tile 1
            mac
    einsum MM1
      for m tile 1
        for n2 tile 1
          for n1 tile 1
            mac
    einsum MM2
      for m tile 1
        for n3 tile 1
          for n2 tile 1
            mac
"""


def test_a_shared_tile_takes_capacity_from_its_first_branch_to_its_last() -> None:
    """Bytes: W1 (16) stands above the loop, so all the time; T1 and T2 (2 x 4) from maker to reader; W0 (16),
    which every trip fetches anew, in its own branch.
    """
    workload, schedule = chain(3, 8, 4), parse_schedule(LIVES)
    (own,) = placed.placed_segments(A2S, workload, schedule)
    needs = [need["GLB"] // 8 for need in required_bits(schedule.segments[0], own, A2S)]
    assert needs == [16 + 8 + 16, 16 + 8 + 8, 16 + 8]
    assert compared(A2S, workload, schedule) == []


def attention(heads: int = 4) -> Workload:
    """Products of one attention layer: 128 queries, 128 keys of 32 elements."""
    sizes = {"h": heads, "m": 128, "p": 128, "e": 32, "f": 32}
    own = tuple(
        einsum(text, {rank: sizes[rank] for rank in ranks}, text[0])
        for text, ranks in (
            ("S[h,m,p] += Q[h,m,e] * K[h,p,e]", "hmpe"),
            ("O[h,m,f] += S[h,m,p] * V[h,p,f]", "hmpf"),
        )
    )
    return Workload("attention", own)


def gated_mlp() -> Workload:
    """G and U from the same X, H from both, Y from H."""
    sizes = {"m": 128, "k": 64, "f": 128, "n": 64}
    own = tuple(
        einsum(text, {rank: sizes[rank] for rank in ranks}, text[0])
        for text, ranks in (
            ("G[m,f] += X[m,k] * Wg[k,f]", "mkf"),
            ("U[m,f] += X[m,k] * Wu[k,f]", "mkf"),
            ("H[m,f] = swiglu(G[m,f], U[m,f])", "mf"),
            ("Y[m,n] += H[m,f] * Wd[f,n]", "mfn"),
        )
    )
    return Workload("gated_mlp", own, frozenset({"Wg", "Wu", "Wd"}))


@pytest.mark.parametrize(
    ("workload", "energy"),
    [
        (attention(), 42369024.0),  # loops over h, m and p, which O sums up; listed by AccelForge
        (chain(4), 22921216.0),  # inner weights above the loop; listed by AccelForge
        (chain(8), 44154880.0),  # products take the places of those that are read; AccelForge: 44998656
        (gated_mlp(), 35586048.0),  # X read once for two einsums, Y summed up in the buffer
    ],
    ids=["attention", "chain4", "chain8", "gated_mlp"],
)
def test_several_shared_loops_are_searched_exactly(workload: Workload, energy: float) -> None:
    found = fused(A2S, workload, "energy", "perfect", lambda _: FREE)
    assert isinstance(found, Solution)
    assert found.schedule is not None
    assert found.space is not None
    assert (found.energy_pj, found.optimality_gap) == (energy, 0.0)
    assert covers(found.space, found.schedule, workload, A2S) is None
    again = evaluate(A2S, workload, parse_schedule(str(found.schedule)))
    assert isinstance(again, Solution)
    assert again.energy_pj == energy


def test_nests_know_that_sums_return() -> None:
    """O is summed up over p in two trips, and its sums go through the registers of PEs in each: a nest that
    is best for sums that begin at zero costs 0.3 % more. The energy is that of AccelForge's fused mapper.
    """
    arch = machine.arch(machine.load("a3nb"))
    levels = [replace(one, capacity_bits=8192) if one.name == "GLB" else one for one in arch.levels]
    sizes = {"h": 1, "m": 32, "p": 32, "e": 8, "f": 8}
    texts = "S[h,m,p] += Q[h,m,e] * K[h,p,e]", "O[h,m,f] += S[h,m,p] * V[h,p,f]"
    workload = Workload("attention", tuple(einsum(text, sizes) for text in texts))
    found = fused(replace(arch, levels=tuple(levels)), workload, "energy", "perfect", lambda _: FREE)
    assert isinstance(found, Solution)
    assert found.energy_pj == 288_512
    assert found.optimality_gap < 0.004


def test_energy_x_delay_knows_the_schedule_of_least_energy() -> None:
    """With one shared loop alone 4.67e12 pJ cycles was called optimal."""
    sizes = {"h": 4, "m": 128, "p": 128, "e": 32, "f": 32}
    texts = "S[h,m,p] += Q[h,m,e] * K[h,p,e]", "O[h,m,f] += S[h,m,p] * V[h,p,f]"
    workload = Workload("attention", tuple(einsum(text, sizes) for text in texts))
    found = fused(A2S, workload, "edp", "imperfect_spatial", lambda _: FREE)
    assert isinstance(found, Solution)
    assert found.energy_pj * found.latency_cycles < 2.79e12
    assert "no schedule of the searched space costs less" in found.certificate
    assert "the fused schedule of least energy" in found.certificate


def test_a_shared_loop_may_leave_a_remainder() -> None:
    """131 rows have no divisors, and neither T1 nor both weights fit: two trips, of 70 and 61 rows, where one
    row a trip costs more than no fusion (66,980,864 pJ).
    """
    workload = chain(2, 131, 128)
    found = fused(A2S, workload, "energy", "perfect", lambda _: FREE)
    assert isinstance(found, Solution)
    assert found.schedule is not None
    assert found.space is not None
    assert "for m tile 70\n" in str(found.schedule)
    assert found.energy_pj == 50354176.0
    assert 0 < found.optimality_gap < 0.08
    assert covers(found.space, found.schedule, workload, A2S) is None
    again = evaluate(A2S, workload, parse_schedule(str(found.schedule)))
    assert isinstance(again, Solution)
    assert again.energy_pj == found.energy_pj
    assert 0 < search(SegmentSearch(asked(workload)), inf, lambda plan, need: inf) <= found.energy_pj


def test_fills_that_nothing_overlaps_leak() -> None:
    """On `edge_array` work waits for tiles. The bound of a plan counts that, and is not above its price."""
    workload = chain(2, 128, 256)
    s, prices = SegmentSearch(asked(workload, machine.load_arch("edge_array"))), []

    def priced(plan: Plan, need: int) -> float:
        option = price(s.segment, plan, need)
        prices.append(option.energy if option else inf)
        return prices[-1]

    floor = search(s, inf, priced)
    assert 0.98 * min(prices) < floor <= min(prices)


def test_one_shared_loop_takes_capacity_by_lifetime() -> None:
    """Four products below one loop in tiles of 64, two weights above it, fit because T1 is dead when T3 is
    made.
    """
    found = fused(A2S, chain(4), "energy", "perfect", lambda _: FREE, several_loops=False)
    assert isinstance(found, Solution)
    assert (found.energy_pj, found.optimality_gap) == (22921216.0, 0.0)


def test_a_tensor_is_read_once_for_two_einsums() -> None:
    """G = X WG and U = X WU: X does not fit whole, so it is read below the loop, once for both. That saves
    one read of its 512 x 64 words at DRAM (200 pJ) and one write at the buffer (6 pJ).
    """
    sizes = {"m": 512, "k": 64, "f": 64}
    own = tuple(einsum(f"{t}[m,f] += X[m,k] * W{t}[k,f]", sizes, t) for t in "GU")
    workload = Workload("two_readers", own, frozenset({"WG", "WU"}))
    once, twice = (
        fused(A2S, workload, "energy", "perfect", lambda _: FREE, several_loops=several)
        for several in (True, False)
    )
    assert isinstance(once, Solution)
    assert isinstance(twice, Solution)
    assert (twice.energy_pj - once.energy_pj, once.optimality_gap) == (512 * 64 * 206, 0.0)
    assert once.schedule is not None
    assert compared_small() == []


def test_two_rows_of_a_tensor_are_no_shared_read() -> None:
    """Each einsum reads a row of its own: no node of X serves both."""
    own = tuple(
        einsum(f"{t}[0,n] = relu(X[{row},n])", {"n": 4}, t, sizes={"X": (11, 4)})
        for t, row in (("G", 1), ("U", 2))
    )
    assert not cut_alike(shared_tensors(own, {"G", "U"})["X"], ())


def compared_small() -> list[str]:
    """What a walk of every element says otherwise of the same in small: 8 rows, a buffer of 24 bytes."""
    sizes = {"m": 8, "k": 4, "f": 2}
    own = tuple(einsum(f"{t}[m,f] += X[m,k] * W{t}[k,f]", sizes, t) for t in "GU")
    workload = Workload("two_readers", own, frozenset({"WG", "WU"}))
    levels = tuple(
        replace(level, capacity_bits=24 * 8) if level.name == "GLB" else level for level in A2S.levels
    )
    found = fused(replace(A2S, levels=levels), workload, "energy", "perfect", lambda _: FREE)
    assert isinstance(found, Solution)
    assert found.schedule is not None
    assert len(found.schedule.segments) == 1
    return compared(replace(A2S, levels=levels), workload, found.schedule)


def asked(workload: Workload, arch: Arch = A2S) -> FusedSegment:
    """All einsums of a workload as one segment in the whole buffer of a machine."""
    members = max(joined_segments(workload), key=lambda one: one.last - one.first)
    nests = Nests(arch, "energy", "perfect", lambda _: FREE, 0.0)
    made = {e.output.tensor for e in workload.einsums}
    none = [frozenset[str]()] * len(workload.einsums)
    level = arch.levels[1]
    bits = level.capacity_bits or inf
    return FusedSegment(arch, nests, level, workload.einsums, members, none, bits, made)


@pytest.mark.parametrize(
    ("workload", "optimum"), [(attention(), 42369024), (chain(2, 2, 1), 1264)], ids=["attention", "small"]
)
@pytest.mark.parametrize("steps", [0, 1, 2, 3, 5, 8, 40, 200, 1000])
def test_what_a_spent_budget_leaves_out_is_in_the_bound(
    workload: Workload, optimum: float, steps: int
) -> None:
    """However many choices of depths are looked at, the bound is not above the optimum. The small one has one
    loop in one tile: nothing else bounds what is left of it.
    """
    s = SegmentSearch(asked(workload))
    s.steps = MAX_STEPS - steps
    assert 0 < search(s, inf, lambda plan, need: inf) <= optimum


def test_a_tensor_of_one_einsum_does_not_stand_below_all_loops() -> None:
    """There it costs what it costs passing by: X, which two einsums read, and Y, which a loop sums up, do."""
    s = SegmentSearch(asked(gated_mlp()))
    tiles = tuple(n // 2 for n in s.sizes)
    order = tuple(range(len(tiles)))
    passing = [Standing(0.0, 0.0, 0, PASSES, range(0))] * len(s.tensors)
    deepest = {
        t.name: max(one.depth for one in own)
        for t, own in zip(s.tensors, Choices(s, tiles, passing).of(order), strict=True)
    }
    assert deepest == {"X": 2, "Wg": 1, "Wu": 1, "Wd": 1, "Y": 2}


def test_an_answer_below_a_bar_does_not_hold_above_it() -> None:
    """Nothing is cheaper than 1 pJ; asked again without that limit, the segment has a plan."""
    s, plans = asked(chain(2)), SegmentPlans()
    assert all(one.energy == inf for one in plans.best(s, 1.0))
    assert [one.energy for one in plans.best(s, inf)] == [12304384.0]


# scores of 4 x 64 in a buffer of 96 B, which holds a row of S and one of P, or a tile of both
ROWS = Workload(
    "w",
    (
        einsum("S[m,p] += Q[m,e] * K[p,e]", {"m": 4, "p": 64, "e": 2}),
        einsum("P[m,p] = softmax(S[m,p])", {"m": 4, "p": 64}),
        einsum("O[m,f] += P[m,p] * V[p,f]", {"m": 4, "p": 64, "f": 2}),
    ),
)
CUT = """
segment
  store DRAM S P
  for p tile 8
    store GLB S
    einsum S
      store DRAM Q K
      for m tile 1
        for p tile 1
          for e tile 1
            mac
    einsum P
      for m tile 1
        for p tile 1
          mac
segment
  einsum O
    store DRAM P V O
    for m tile 1
      for p tile 1
        for f tile 1
          mac
"""


def test_no_shared_loop_cuts_the_rows_of_a_softmax() -> None:
    """The first tile of a row cannot be normalised before the last one is there."""
    assert [m.classes for m in joined_segments(ROWS)] == [(("m", "m"),), (("m", "m", "m"),), (("m", "m"),)]
    assert [m.axes for m in joined_segments(ROWS)] == [m.classes for m in joined_segments(ROWS)]
    assert faults(A2S, ROWS, parse_schedule(CUT)) == [
        "segment 1: shared loop p cuts rows that P (softmax) needs whole before it returns any element; "
        "share loops over other ranks"
    ]
    assert faults(A2S, ROWS, parse_schedule(CUT.replace("for p tile 8", "for m tile 2"))) == []
    cut = replace(ROWS.einsums[1], kind="gelu")
    assert (
        faults(A2S, replace(ROWS, einsums=(ROWS.einsums[0], cut, ROWS.einsums[2])), parse_schedule(CUT)) == []
    )


def test_answers_and_proofs_for_other_capacities_hold() -> None:
    """Nests for capacities asked in any order cost what a search for each finds; no proof lies above that."""
    e = einsum("S[m,p] += Q[m,e] * K[p,e]", {"m": 32, "p": 32, "e": 16}, "S")
    place = Place("GLB", (("m", 8),), frozenset({"S"}))
    bits = [300.0, 200.0, 131072.0, 150.0, 5000.0, 250.0, 1000.0]
    nests, proofs = (Nests(A2S, "energy", "perfect", lambda _: FREE, 0.0) for _ in range(2))
    own = {n: Nests(A2S, "energy", "perfect", lambda _: FREE, 0.0).best(e, place, n) for n in bits}
    for share in (0.5, 0.99, 1.01, 2.0):
        for n in bits:
            bound = proofs.proven_bound(e, place, n, share * own[n].cost)
            assert min(share, 1) * 0.9 * own[n].cost < bound <= own[n].cost * (1 + 1e-9)
    for n in bits:
        found = nests.best(e, place, n)
        assert found.mapping
        assert found.bits <= n
        assert (found.cost, found.lower_bound) == pytest.approx((own[n].cost, own[n].lower_bound))
    assert nests.searches < len(bits)


IMAGE = {"k": 3, "c": 2, "p": 4, "q": 4, "r": 3, "s": 3}


@pytest.mark.parametrize(
    ("text", "sizes", "same"),
    [
        ("A[k,p,q] += X[c,p,q] * W[k,c]", {}, True),
        ("A[k,p,q] += X[c,q,p] * W[k,c]", {}, True),
        ("A[k,p,q] += X[c,2*p+r,2*q+s] * W[k,c,r,s]", {}, True),
        ("A[k,p,q] += X[c,2*p+r,q+s] * W[k,c,r,s]", {}, False),  # rows are strided
        ("A[k,p,q] += X[c,p+r,q+2*s] * W[k,c,r,s]", {}, False),  # columns of the window are dilated
        ("A[k,p,q] += X[c,p+r,q+s] * W[k,c,r,s]", {"s": 1}, False),  # windows of 3 x 1
        ("A[k,p,q] += X[c,p,q] * W[k,c]", {"q": 2}, False),
        ("A[k,p,q] += X[c,p,q] * W[k,c,p]", {}, False),  # each row has weights of its own
        ("A[k,p,q] = softmax(X[k,p,q])", {}, False),  # rows are read whole, columns are not
    ],
)
def test_ranks_may_change_places_where_prices_stay(text: str, sizes: dict[str, int], same: bool) -> None:
    own = {rank: n for rank, n in (IMAGE | sizes).items() if rank in re.findall(r"\b[a-z]\b", text)}
    e = einsum(text, own, "A")
    assert exchangeable((e,), ("p",), ("q",)) == exchangeable((e,), ("q",), ("p",)) == same
    swap = {"p": "q", "q": "p", "r": "s", "s": "r"}
    prices = []
    for name in "p", "q":
        names = swap if name == "q" else {}
        loops = [("p", 2), ("r", 1), *((rank, 1) for rank in "kcpqs")]
        points = [Loop(names.get(r, r), tile) for r, tile in loops if names.get(r, r) in own]
        stores = [[Store(level, p.tensor) for p in e.tensors()] for level in ("DRAM", "GLB")]
        nodes = (*stores[0], points[0], *stores[1], *points[1:])
        cost = einsum_cost(Problem(A2S, e, "energy"), Mapping(nodes))
        prices.append(cost.energy_pj if isinstance(cost, EinsumCost) else inf)
    assert not same or prices[0] == pytest.approx(prices[1])


def test_rows_and_columns_that_may_change_places_are_searched_once() -> None:
    """Sums of square images, where no row fits, against all schedules."""
    own = (
        einsum("A[p,q] = relu(X[p,q])", {"p": 4, "q": 4}, "A"),
        einsum("B[p,q] = A[p,q] + Y[p,q]", {"p": 4, "q": 4}, "B"),
    )
    images = Workload("images", own)
    segment = asked(images)
    assert mirrors(segment, segment.members.classes) == [(0, 1)]
    assert mirrors(replace(segment, arch=machine.load_arch("cpu_like")), segment.members.classes) == []
    segment.nests.constraints = lambda _: Constraints(inside=("p",))
    assert mirrors(segment, segment.members.classes) == []
    arch = random_case(0)[0]
    levels = arch.levels[0], replace(arch.levels[1], capacity_bits=3 * arch.word_bits)
    assert unlike(0, replace(arch, levels=levels), images) == []

"""What stays between phases: against every schedule of single words, small results included; what the
reported inputs must move; loops against all of them.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain, product
from pathlib import Path
from random import Random

import pytest

from dse.explain.values import retention_cause
from dse.frontend import api
from dse.sim.einsum.evaluate import Solution
from dse.solve.gogeta import retention, traffic
from dse.solve.gogeta.accesses import (
    Access,
    AccessList,
    Phase,
    fused_phases,
    one_by_one,
    phase_list,
    pipelined_phases,
    single_phases,
    step_ranks,
    tensors_in_step,
)
from dse.solve.gogeta.classify import classify, unbarred
from dse.solve.gogeta.operations import Graph, graph
from dse.solve.gogeta.optimum import RetainedSpan
from dse.solve.gogeta.sequence import canonical_order, every_sequence
from dse.solve.gogeta.traffic import overfull_operations, traffic_of
from tests.amount import amount, some
from tests.retained import exhaustive, least_of_all_orders, outputs, random_steps, workload
from tests.test_accesses import MLP, block
from workloads import hpc
from workloads.einsum import einsum
from workloads.graph import Workload
from workloads.solvers import SOLVERS

REPORTED = Path(__file__).parent / "data" / "reported"
KIB = 1024
HOW = ((False, False), (True, False), (True, True))  # of the policy: replaces, reads evict


def differs(seed: int) -> str:
    """Graphs of three to five operations, rooms of no word to eight."""
    rng = Random(seed)
    steps, size = random_steps(rng, rng.randint(3, 5), 3)
    room, g = rng.randint(0, 8), graph(workload(steps, size))
    ways = product(*(single_phases(g, v, room, g.words()) for v in range(len(steps))))
    lists = [phase_list(g, phases) for phases in ways]
    listed, all_ = lists[0], exhaustive(steps, size, room)
    found = min((retention.minimum_traffic(one, room) for one in lists), key=lambda found: found.cost)
    kept = min(retention.policy(one, room, *how).words() for one in lists for how in HOW)
    alone = sum(size[t] for step in steps for t in (*step.reads, step.makes))
    right = (
        abs(found.cost - all_) < 1e-6
        and abs(found.bound - all_) < 1e-6
        and all_ <= kept
        and listed.unbuffered_words() == alone
    )
    said = (
        f"seed {seed}, {room} words: {found.cost}, bound {found.bound}, policy {kept}, but {all_}: "
        f"{steps} {size}"
    )
    return "" if right and g.outputs == outputs(steps) else said


@pytest.mark.parametrize("first", some(range(0, 80, 20), 0))
def test_no_schedule_of_single_words_moves_less(first: int) -> None:
    assert list(filter(None, map(differs, range(first, first + 20)))) == []


def order_differs(seed: int) -> str:
    """Graphs of three to six operations: the optimum is the least of all orders and of all pipelines."""
    rng = Random(seed)
    steps, size = random_steps(rng, rng.randint(3, 6), 2)
    room = rng.randint(0, 6)
    found, least = traffic_of(workload(steps, size), room), least_of_all_orders(steps, size, room)
    right = abs(found.optimal.cost - least) < 1e-6 and found.is_minimum
    return "" if right else f"seed {seed}, {room} words: {found.optimal.cost}, but {least}: {steps} {size}"


@pytest.mark.parametrize("seed", list(dict.fromkeys((*range(amount(40, 8)), 13, 65))))
def test_no_order_and_no_pipeline_moves_less(seed: int) -> None:
    assert order_differs(seed) == ""


def test_an_order_is_not_said_to_be_the_best_of_all_unless_all_were_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(traffic, "MAX_SEQUENCES", 3)
    monkeypatch.setattr(traffic, "_undercut", lambda *_: [])
    steps, size = random_steps(Random(0), 6, 2)
    assert not traffic_of(workload(steps, size), 1).is_minimum


def test_sequences_end_where_too_many_sets_would_be_asked() -> None:
    steps, size = random_steps(Random(0), 6, 2)
    g = graph(workload(steps, size))
    phases_of = fused_phases(g, unbarred(g), 9)
    whole, cut = list(every_sequence(g, phases_of)), list(every_sequence(g, phases_of, 9))
    assert all(whole)
    assert cut[-1] == []


def test_updates_of_cg_that_read_the_same_vector_read_it_once() -> None:
    """X += P L waits for P = R + P F: P is read once for both; in the schedule, too."""
    w = hpc.cg(matrix="ecology1", n=8, form="periodic")
    found = traffic_of(w, 2**18, 32)
    assert found.is_minimum
    assert ((3, 7),) in [phase.stages for phase in found.order]
    assert found.optimal.cost < 0.93 * found.bound_gogeta.cost
    small = "cg:rows=4000,nnz=20000,n=8,iterations=1,matrix="
    solved = api.map(
        small,
        "gogeta_clusters",
        **{"solver.schedule": "residency", "solver.factors": "perfect", "sram.capacity": "4 KiB"},
    ).solution
    assert isinstance(solved, Solution)
    assert solved.schedule
    segments = [[branch.einsum for branch in segment.branches] for segment in solved.schedule.segments]
    assert ["0.3", "0.3u", "0.7", "0.7u"] in segments


def loop_differs(seed: int) -> str:
    """Random loops of functions, some with results that leave in every period: the bound is that of all of
    them, up to rounding; the schedule is less than the room above it.
    """
    rng = Random(seed)
    steps, size = random_steps(rng, rng.randint(2, 5), 5)
    ends = [step.makes for step in steps if step.makes not in {t for one in steps for t in one.reads}]
    pairs = [(end, t) for end, t in zip(ends, ("X0", "X1"), strict=False) if size[end] == size[t]]
    once = workload(steps, size)
    room, counts = rng.randint(0, 14), (7, 9, 12)
    for count in counts if pairs else ():
        w = replace(once, repeats=(count,) * len(once.einsums), loop_state=tuple(pairs))
        phases = one_by_one(graph(w, 1))

        def lists(times: int, w: Workload = w, phases: list[Phase] = phases) -> AccessList:
            return phase_list(graph(w, times), phases)

        whole, found = retention.minimum_traffic(lists(count), room), retention.steady(lists, count, room)
        if not (
            found.bound <= whole.cost + 1e-6
            and whole.cost <= found.cost + 1e-6
            and abs(whole.cost - whole.bound) < 1e-6
        ):
            return f"loop {seed}, {count} periods: {whole.cost} is not between {found.bound} and {found.cost}"
    return ""


@pytest.mark.parametrize("first", range(0, 20, 5))
def test_loops_lie_between_bound_and_schedule(first: int) -> None:
    assert list(filter(None, map(loop_differs, range(first, first + 5)))) == []


def kib(found: api.Residency, name: str) -> float:
    return (
        next(row["dram_bytes"] for row in found.configurations if row["configuration"].startswith(name)) / KIB
    )


def test_small_results_are_counted_and_take_room() -> None:
    """79 results of 32 x 32 and 64 B of room: each moves, but for 64 words a time. With a row more they do
    too: no size is free.
    """
    found = api.residency(str(REPORTED / "inv32.yaml"), "a2", **{"glb.capacity": "64 B"})
    assert kib(found, "SEQ-Flex") == 80 * 3
    assert 80 * 3 - 80 * 64 / KIB <= kib(found, "Optimal") < 80 * 3
    told = found.document()
    assert told["operations"] == "80 of 80 cannot read each operand only once (the buffer is too small)"
    claim = "lower bound for all orders and pipelines of operations, each operand read once, step by step"
    assert told["Optimal"] == claim
    assert kib(found, "Optimal, as a schedule") == 720  # 9 KiB a product: 8 x 8 results at a time
    assert kib(found, "Optimal") + 300 < kib(found, "Lower bound with rereads") < 720
    assert told["gap of the schedule to the lower bound"] == "30 %"
    larger = found.workload
    wider = replace(larger, einsums=tuple(replace(e, **_extents(e, 33)) for e in larger.einsums))
    assert traffic_of(wider, 64, 8).optimal.cost == pytest.approx(
        kib(found, "Optimal") * KIB * (33 / 32) ** 2, rel=0.01
    )


def _extents(e, n):  # type: ignore[no-untyped-def]
    def of(p):  # type: ignore[no-untyped-def]
        return replace(p, dims=tuple(replace(d, size=n) for d in p.dims))

    return {
        "extents": tuple((rank, n) for rank, _ in e.extents),
        "inputs": tuple(map(of, e.inputs)),
        "output": of(e.output),
    }


def test_operands_begin_and_end_in_main_memory_in_seq_flex() -> None:
    """60 functions of one operand, 60 of two: 300 vectors of 1,000 words; Ideal: X, X2 and U0."""
    found = api.residency(str(REPORTED / "small1000.yaml"), "a2")
    assert kib(found, "SEQ-Flex") * KIB == 300_000
    assert kib(found, "Optimal") * KIB == 3_000
    assert found.document()["Optimal"] == "optimum for all orders and pipelines of operations"


def test_an_operand_holds_its_room_until_the_result_is_complete() -> None:
    """Powers of a matrix: X, A X and a row of it stand beside what stays of A. Less than 3.55 MiB no
    schedule moves, whichever way it walks A.
    """
    found = api.residency(
        "spmm_chain:rows=8184,nnz=130944,n=8,length=6", "gogeta_clusters", **{"sram.capacity": "64 KiB"}
    )
    a, t, room = 2 * 130944 + 8184, 8 * 8184, 16 * 64 * KIB // 4
    words = a + 5 * (a - room + 2 * t + 8) + 2 * t
    assert kib(found, "Optimal") * KIB == 4 * words
    assert 4 * words > 3.55 * KIB * KIB


def listed(*accesses: Access, outputs: str = "", **words: int) -> AccessList:
    return AccessList(accesses, words, frozenset(outputs))


def both(given: AccessList, room: int) -> float:
    found = retention.minimum_traffic(given, room)
    assert found.bound == pytest.approx(found.cost)
    assert all(retention.policy(given, room, *how).words() >= found.cost for how in HOW)
    return found.cost


def test_what_a_step_no_longer_needs_gives_its_place() -> None:
    """T and Y of 4 words with 4 of room: where both go in step both stay; else T holds its room until Y is
    complete, so four words in all do not. Nor do they where a later phase still needs T.
    """

    def list_of(in_step: str, again: str = "") -> AccessList:
        return listed(
            Access(("X",), ("T",)),
            Access(("T",), ("Y",), in_step=frozenset(in_step)),
            Access(("Y", *again), ("Z",)),
            outputs="Z",
            X=4,
            T=4,
            Y=4,
            Z=1,
        )

    assert both(list_of("TY"), 4) == retention.policy(list_of("TY"), 4).words() == 4 + 1
    assert both(list_of("T"), 4) == both(list_of("Y"), 4) == both(list_of(""), 4) == 4 + 1 + 2 * 4
    assert both(list_of(""), 8) == 4 + 1
    # T is written, and its places go to Y; read again it comes from main memory
    assert both(list_of("TY", "T"), 4) == 4 + 1 + 2 * 4
    assert both(list_of("", "T"), 4) == 4 + 1 + 2 * 4  # Y comes from main memory, or T
    assert both(list_of("TY", "T"), 6) == both(list_of("", "T"), 6) - 2 + 2
    two = listed(
        Access(("X",), ("T",)),
        Access(("X",), ("U",)),
        Access(("T", "U"), ("Y", "V"), in_step=frozenset("TUYV")),
        Access(("Y", "V"), ("Z",)),
        outputs="Z",
        X=2,
        T=2,
        U=2,
        Y=3,
        V=1,
        Z=1,
    )
    assert both(two, 4) == 2 + 1 + 2  # X in parts: T, U, Y and V take four places
    assert both(two, 6) == 2 + 1


def test_what_a_phase_needs_whole_takes_room_once() -> None:
    """V, 4 words, is needed whole in each step of the second phase: all the time, whether it stays or not. It
    may stay beside nothing else.
    """
    given = listed(
        Access(("V",), ("T",)),
        Access(("V", "X"), ("Y",), 4, frozenset("V")),
        Access(("T", "Y", "V"), ("Z",)),
        outputs="Z",
        V=4,
        T=2,
        X=1,
        Y=1,
        Z=1,
    )
    assert both(given, 7) == 4 + 1 + 1  # V, X, Z; T and Y beside V
    assert both(given, 6) == 4 + 1 + 1 + 1 * 2
    assert both(given, 4) == 4 + 1 + 1 + 2 * 3


def test_phases_name_what_they_hold() -> None:
    """Whatever its size: a weight of a pipeline's second stage."""
    wide = phase_list(MLP, pipelined_phases(MLP, classify(MLP)))
    assert [(a.read, a.written, a.whole_tensors, a.resident_words) for a in wide.accesses] == [
        (("X", "U", "V"), ("Y",), frozenset("UV"), 2 * 2048 * 512 + 2047)
    ]
    thin = block("H[r,f] += X[r,m] * U[m,f]", "Y[r,n] += H[r,f] * V[f,n]", r=4096, m=4, f=4, n=4)
    assert [a.resident_words for a in phase_list(thin, pipelined_phases(thin, classify(thin))).accesses] == [
        2 * 16 + 3
    ]


def test_what_goes_in_step() -> None:
    """What each step needs a part of: operands and results along the rank that dominates, or that most words
    have; not what is broadcast or summed up, not rows turned, not the row of a norm, nothing of a scan.
    """

    def in_step(text: str, **extents: int) -> list[str]:
        e = einsum(text, extents)
        found = tensors_in_step([e], [next(iter(step_ranks(e)), "")])
        return sorted(found)

    sizes = {"m": 8, "n": 6, "k": 4}
    assert in_step("Y[m,n] = f(X[m,n], v[m])", **sizes) == ["X", "Y", "v"]
    assert in_step("Y[m,n] = f(X[m,n], Z[m,n], v[m], w[n])", **sizes) == ["X", "Y", "Z", "v"]
    assert in_step("s[n] += X[m,n] * Y[m,n]", **sizes) == ["X", "Y", "s"]
    assert in_step("s[n] += X[m,n] * Y[m,n]", m=1001, n=6) == ["X", "Y"]
    assert in_step("Y[m,n] += A[m,k] * B[k,n]", **sizes) == ["A", "Y"]
    assert step_ranks(einsum("Y[m,n] += A[m,k] * B[k,n]", {"m": 8, "n": 1, "k": 4})) == ["m", "k"]
    assert in_step("a[n] = div(b[n], c[n])", n=1) == ["a", "b", "c"]
    assert in_step("Y[m,n] = f(X[n,m])", m=8, n=8) == ["X", "Y"]
    assert in_step("Y[m,n] = g(T[m,n], T_again[n,m])", m=8, n=8) == ["T", "T_again", "Y"]
    assert in_step("Y[m] = softmax(X[m])", m=8) == []
    assert in_step("Y[m,n] = softmax(X[m,n])", **sizes) == ["X", "Y"]
    assert in_step("Y[m,n] = cumsum(X[m,n])", **sizes) == []
    assert in_step("Y[m] = lower_solve_levels3(L[m,k], R[k])", m=9, k=9) == []
    assert in_step("Y[p] += X[p+r] * W[r]", p=8, r=3) == []
    csr = einsum(
        "Y[m,n] += A[m,k] * B[k,n]", {"m": 9, "k": 9, "n": 3}, density={"A": 0.5}, format={"A": "csr"}
    )
    assert [tensors_in_step([csr], [rank]) for rank in step_ranks(csr)] == [{"A", "Y"}, {"B", "Y"}]
    g = graph(Workload("turned", (einsum("Y[m,n] = g(T[m,n], T_again[n,m])", {"m": 8, "n": 8}),)))
    assert tensors_in_step(g.operations, ["m"]) == {"Y"}  # T is read by rows and by columns


@pytest.mark.parametrize(
    ("solver", "matrix", "n", "kib"),
    [("cg", "aft02", 1, 1024), ("cg", "barth5", 16, 1024), ("bicgstab", "nasa4704", 8, 64)],
)
def test_loops_cost_what_all_their_periods_cost(
    solver: str, matrix: str, n: int, kib: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bound is that of the whole loop; the schedule, alike in all periods between, is above it by less
    than the room at the ends.
    """
    monkeypatch.setattr(retention, "MAX_SOLVED_PHASES", 0)
    w, room = SOLVERS[solver](matrix=matrix, n=n, iterations=30, form="periodic"), kib * 256
    one = graph(w, 3)
    for phases in (one_by_one(one), pipelined_phases(one, classify(one), room)):
        whole = retention.minimum_traffic(phase_list(graph(w, 30), phases), room)
        found = retention.steady(lambda count, phases=phases: phase_list(graph(w, count), phases), 30, room)  # type: ignore[misc]
        assert whole.bound == pytest.approx(whole.cost, rel=1e-9)
        assert found.bound <= whole.cost * (1 + 1e-9)
        assert whole.cost * (1 - 1e-9) <= found.cost <= whole.cost + room
        assert found.bound >= whole.cost * (1 - 1e-6)


def test_crowded_operations() -> None:
    """With k outermost a product holds its result, with m B, with n A: the smallest of these has to fit,
    beside a row of A, or of the result; with a batch one of them at a time.
    """
    e = einsum("Y[b,m,n] += A[b,m,k] * B[b,k,n]", {"b": 9, "m": 8, "n": 4, "k": 2})
    of_one = Graph((e,), frozenset("Y"))
    assert [overfull_operations(of_one, room) for room in (8 + 1, 8 + 2)] == [[0], []]
    copied = Graph((einsum("Y[m] = f(X[m])", {"m": 8}),), frozenset("Y"))
    assert overfull_operations(copied, 0) == []


def test_other_columns_are_other_words(tmp_path: Path) -> None:
    """Y reads column 0 of X, Z column 1: 96 words, beside 6 of V and 48 of Z. The list takes both for the
    same 48, and says so; no schedule keeps X.
    """
    path = tmp_path / "columns.yaml"
    path.write_text(
        'extents: {b: 8, k: 6}\neinsums: ["Y[b] += X[b,0,k] * V[k]", "Z[b,k] = goo(X[b,1,k], Y[b])"]\n'
    )
    said = api.residency(str(path), "a2", **{"glb.capacity": "512 B"}).document()["Optimal"]
    assert (
        said
        == "not proven: operations read different parts of X, which the access list takes for the same words"
    )
    found = api.map(str(path), "a2", **{"glb.capacity": "512 B", "solver.schedule": "residency"}).solution
    assert isinstance(found, Solution)
    assert found.memory
    assert found.memory.moved_words >= 150


def test_a_certificate_says_each_thing_once(tmp_path: Path) -> None:
    """Two einsums read X from outside, so that GOGETA's schedule is priced beside and the claim made once
    more.
    """
    path = tmp_path / "twice.yaml"
    path.write_text(
        'extents: {b: 8, k: 6, n: 4}\neinsums: ["Y[b,n] += X[b,k] * V[k,n]", "Z[b,k] += Y[b,n] * X[b,k]"]\n'
    )
    found = api.map(str(path), "a2", **{"solver.schedule": "fused"}).solution
    assert isinstance(found, Solution)
    assert found.certificate.count("searched: ") <= 2
    assert found.certificate.count("any schedule") <= 1


def test_who_shares_a_read_steps_through_one_dimension_of_it() -> None:
    """T is 2 x 100. Rows hold x (100 words) beside a row of T, but for a word, and a row of z (100; not of U,
    1,000, of which each word goes with all of it); columns y (2) and U (2,000); x stepping through columns
    beside z through rows would hold 2 words, and read different parts of T.
    """
    sizes = {"m": 2, "n": 100, "s": 1000}
    texts = ("y[m] += T[m,n] * x[n]", "z[m,n] += T[m,n] * U[m,s]")
    g = graph(Workload("two", tuple(einsum(text, sizes) for text in texts)))
    both = frozenset((0, 1))
    rows = 100 + 99 + 100
    assert fused_phases(g, unbarred(g), rows - 1)(both) == []
    assert [phase.resident_words for phase in fused_phases(g, unbarred(g), rows)(both)] == [rows]


def test_what_a_step_works_on_takes_room() -> None:
    """A column of 900 words is no step in which a sum is passed on: D needs all of it, so Q is read twice."""
    texts = ("s[c] += Q[i,c] * W[i,c]", "D[i,c] = g(Q[i,c], s[c])")
    for columns in (1, 2):
        g = graph(Workload("norm", tuple(einsum(text, {"i": 900, "c": columns}) for text in texts)))
        assert fused_phases(g, unbarred(g), 4)(frozenset((0, 1))) == []
        assert single_phases(g, 1, 1, g.words())[0].resident_words == 1


def test_groups_that_wait_for_each_other_are_not_both_joined() -> None:
    """T1 -> T2 and T0 -> T3 may pipeline, but not both pairs: T2 reads T0 as well, T3 reads T1."""
    texts = ("T0[m] = f(X[r])", "T1[m] = f(X[r])", "T2[m] = f(X[m], T0[s], T1[m])", "T3[m] = f(T1[r], T0[m])")
    g = graph(Workload("ring", tuple(einsum(text, {"m": 2, "r": 2, "s": 2}) for text in texts)))
    phases = pipelined_phases(g, classify(g), 3)
    ran = [v for phase in phases for stage in phase.stages for v in stage]
    assert sorted(ran) == [0, 1, 2, 3]
    assert ran.index(0) < min(ran.index(2), ran.index(3)) > ran.index(1)


def test_the_order_of_lines_decides_nothing() -> None:
    """A solver of ten operations, its lines in other orders, all sequences tried and only some."""
    texts = {
        "Q": "Q[i] += K[i,j] * D[j]",
        "d": "d[c] += D[i] * Q[i]",
        "a": "a[c] = div(z[c], d[c])",
        "U": "U[i] = add_mul(U0[i], a[c], D[i])",
        "V": "V[i] = sub_mul(V0[i], a[c], Q[i])",
        "W": "W[i] = J[i] * V[i]",
        "g": "g[c] += V[i] * W[i]",
        "b": "b[c] = div(g[c], z[c])",
        "E": "E[i] = add_mul(W[i], b[c], D[i])",
    }

    def of(names: str) -> Workload:
        return Workload("lines", tuple(einsum(texts[t], {"i": 40, "j": 40, "c": 1}, t) for t in names))

    found = [traffic_of(of(names), 100) for names in ("QdaUVWgbE", "QdaVWgbEU", "QdaVUWgbE")]
    assert all(one.is_minimum for one in found)
    named = [[[one.operations[v].name for v in chain(*phase.stages)] for phase in one.order] for one in found]
    assert named[0] == named[1] == named[2]
    orders = []
    for names in ("QdaUVWgbE", "QdaVWgbEU"):
        g = graph(of(names))
        orders.append([g.operations[v].name for v in canonical_order(g)])
    assert orders[0] == orders[1]


def test_why_a_tensor_is_retained() -> None:
    """What saves more than its place stays; of two phases until which it stays each is told."""

    def span(last: int, words: float, price: float) -> RetainedSpan:
        return RetainedSpan("T", last - 1, last, words, 8, price, True)

    names = ["a", "b"]
    assert retention_cause([span(1, 8, 0)], names) == "saves 2, and there is room"
    assert retention_cause([span(1, 8, 1.5)], names) == "saves 2, its place would save 1.5"
    assert retention_cause([span(1, 0, 3), span(2, 0, 1)], names) == "would save 3, its place saves 4"
    assert retention_cause([span(1, 4, 2)], names) == "what is left: saves 2, as its place would"
    assert retention_cause([span(1, 8, 0), span(2, 2, 1)], names) == "100 % until b (0), 25 % until a (1)"


# T is read by W and by Y: where W is made, words of T that are dropped give it their place
TWO_READERS = """
extents: {i: 8186, c: 1}
einsums:
- "s[c] += Q[i,c] * H[i,c]"
- "T[i,c] = sub_mul(V[i,c], s[c], Q[i,c])"
- "W[i,c] = J[i] * T[i,c]"
- "g[c] += T[i,c] * W[i,c]"
- "e[c] += W[i,c] * g[c]"
- "Y[i,c] = comb(T[i,c], e[c], W[i,c])"
"""


def test_words_change_places_step_by_step_as_the_optimum_says(tmp_path: Path) -> None:
    """Played through word by word: what moves is the optimum, and the chip is never too full. Four words of T
    find room beside W, e and g.
    """
    (tmp_path / "two.yaml").write_text(TWO_READERS)

    def told(size: str) -> api.Residency:
        return api.residency(str(tmp_path / "two.yaml"), "gogeta_clusters", **{"sram.capacity": size})

    found, chip, moved = told("2 KiB"), set[tuple[str, int]](), 0  # 8192 words

    def step(reads: str, makes: str, drops: str, i: int) -> None:
        """Step i of a phase: capitals are vectors; what is dropped makes way for what is made."""
        nonlocal moved
        moved += sum((t, i * t.isupper()) not in chip for t in reads)
        chip.difference_update((t, i * t.isupper()) for t in drops)
        chip.update((t, i * t.isupper()) for t in makes)
        assert len(chip) <= found.reuse.capacity_words == 8192

    for reads, makes, drops in (
        ("QH", "sQ", ""),
        ("VsQ", "T", "Q"),
        ("JT", "gW", "T"),
        ("Wg", "e", ""),
        ("TeW", "", "TW"),
    ):
        for i in reversed(range(8186)):
            stays = drops == "T" and i < 4
            step(reads, makes, "" if stays else drops, i)
            moved += drops == "TW" or (drops == "T" and not stays)  # Y is written, and T where it leaves
        chip -= {("s", 0)} if makes == "T" else {("g", 0)} if makes == "e" else set()
    assert moved == 7 * 8186 - 2 * 4  # Q, H, V, J once, T written and read but for four words, Y written
    assert moved == kib(found, "Optimal") * KIB / 4
    claim = "optimum for all orders and pipelines of operations"
    assert found.document()["Optimal"] == f"{claim}, step by step"
    assert "several ranks may move less." in found.text()
    ideal = told("4 KiB")  # less than inputs and outputs once nothing moves
    assert ideal.document()["Optimal"] == claim
    assert "several ranks" not in ideal.text()


def test_a_row_of_a_softmax_is_passed_on_whole() -> None:
    texts = ("T[m,a] = softmax(X[m,a])", "Y[m,a] = f(T[m,a], V[m,a])")
    g = graph(Workload("rows", tuple(einsum(text, {"m": 8, "a": 8}) for text in texts)))
    assert [phase.steps for phase in pipelined_phases(g, classify(g))] == [((0, "m"), (1, "m"))]


def test_what_is_added_once_may_come_last() -> None:
    """GraphSAGE in small: through features n both products read X in step; S is whole as they end, is added
    then, and holds its words until then as Y does.
    """
    texts = ("Z[m,n] += A[m,k] * X[k,n]", "S[m,o] += X[m,n] * V[n,o]", "Y[m,o] = S[m,o] + P[m,o]")
    sizes = {"m": 8, "k": 8, "n": 6, "o": 2}
    product = einsum("P[m,o] += Z[m,n] * W[n,o]", sizes)
    einsums = [*(einsum(text, sizes) for text in texts[:2]), product, einsum(texts[2], {"m": 8, "o": 2})]
    g = graph(Workload("sage", tuple(einsums)))
    steps = [phase.steps for phase in fused_phases(g, unbarred(g), 999)(frozenset(range(3)))]
    assert ((0, "n"), (1, "n"), (2, "n")) in steps

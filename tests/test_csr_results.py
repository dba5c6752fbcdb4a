"""Results in csr: counts against a walk and against drawn matrices, the exact search against an enumeration,
bounds, and the catalog's SDDMM, SpGEMM and graph attention.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from math import isclose, prod
from pathlib import Path
from random import Random

import numpy as np
import pytest
import scipy.sparse
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import dse
from dse.frontend import api
from dse.mapper.baselines.exhaustive import mapspace_size
from dse.mapper.exact.search import search
from dse.mapping.nest import Loop, Mapping, Store, parse
from dse.sim.counts.counts import count
from dse.sim.einsum import bounds
from dse.sim.einsum.evaluate import Problem, einsum_cost
from hw.arch import Arch, Compute, Level
from tests.amount import amount
from tests.nests import RESULTS, compressed_result, random_arch, random_mapping
from tests.numeric import run
from tests.prove.mappers import answers, problem_of
from tests.test_counts import unlike
from workloads import catalog, gnn, sparsity
from workloads.einsum import Einsum, WorkloadError, canonical_key, einsum
from workloads.graph import Workload, fuse_into_producers, results_text
from workloads.matrix import Pattern

Places = frozenset[tuple[int, ...]]


@settings(max_examples=amount(1000, 20), deadline=None)
@given(st.integers(0, 2**32))
def test_counts_are_those_of_a_walk_and_no_bound_is_above(seed: int) -> None:
    rng = Random(f"csr/{seed}")
    e, arch = compressed_result(rng, rng.choice([*RESULTS]), 5), random_arch(rng)
    mapping = random_mapping(rng, e, arch)
    assert unlike(f"seed {seed}", e, arch, mapping) == ""
    cost = einsum_cost(Problem(arch.unbounded(), e, "energy"), mapping)
    energy, cycles = bounds.lower_bounds([e], arch)[0]
    assert energy <= cost.energy_pj * (1 + 1e-9)
    assert cycles <= cost.latency_cycles * (1 + 1e-9)


def small(seed: int, most: int = 4000) -> Problem:
    """A problem with a csr result whose mappings can be listed."""
    rng = Random(f"csr/{seed}")
    while True:
        base = problem_of(rng.randrange(10**6) * 8 + 7, 2000)  # of the group "sparse"
        e = compressed_result(rng, rng.choice([*RESULTS]), rng.choice([3, 4]))
        found = replace(base, einsum=e)
        is_bounded = base.arch.levels[0].capacity_bits is not None
        if not is_bounded and mapspace_size(e, base.arch, "imperfect_spatial") <= most:
            return found


@settings(max_examples=amount(100, 16), deadline=None)
@given(st.integers(0, 2**32))
def test_answers_are_those_of_an_enumeration(seed: int) -> None:
    assert [line for one in answers(seed, "csr results", small(seed)) for line in one.wrong] == []


@pytest.mark.parametrize("seed", range(amount(400, 10)))
def test_the_search_counts_what_the_evaluator_counts(seed: int) -> None:
    problem = replace(small(seed, 100_000), objective="energy")
    found = search(problem, "imperfect_spatial")
    if found.mapping:
        cost = einsum_cost(problem, found.mapping)
        assert found.lower_bound == pytest.approx(cost.energy_pj, rel=1e-9)


# Drawn matrices: shifted through all of their places, so that the mean over all shifts is the expected count


def walked(mapping: Mapping, e: Einsum, arch: Arch, stored: dict[str, Places]) -> Counter:
    """Words per (level, tensor, action) with these nonzeros of the compressed tensors, no first read skipped.
    Partial sums come back entry by entry; pointers are written with tiles, by compute once per row.
    """
    found: Counter = Counter()
    holders: dict[str, list[tuple[int, str]]] = {}
    begun = set()
    flags = {
        name: pair
        for f in arch.fanouts
        for (name, _), *pair in zip(f.dims, f.multicast, f.reduce, strict=True)
    }
    ranks = {p.tensor: [dim.terms[0][0] for dim in p.dims] for p in e.tensors()}
    apart = {rank for p in e.inputs if p.tensor in stored for rank in ranks[p.tensor]}
    out = e.output.tensor
    entry = {p.tensor: 1 + p.index_bits / arch.word_bits for p in e.tensors()}
    pointer = {p.tensor: p.pointer_bits / arch.word_bits for p in e.tensors()}

    def tile(tensor: str, env: dict[str, range]) -> tuple[float, float]:
        places = set(product(*(env[rank] for rank in ranks[tensor])))
        if tensor not in stored:
            return len(places), 0.0
        rows = len({place[:-1] for place in places})
        return entry[tensor] * len(stored[tensor] & places), pointer[tensor] * rows

    def served(tensor: str, parent_at: int, lanes: list[tuple[int, Loop, int]], own: set[str]) -> bool:
        return any(
            lane > 0 and at > parent_at and loop.rank not in own and flags[loop.over][tensor == out]
            for at, loop, lane in lanes
        )

    def move(
        tensor: str, chain: list, level: str, lanes: list, words: float, actions: tuple[str, str]
    ) -> None:
        parent_at, parent = chain[-1]
        found[level, tensor, actions[0]] += words
        if not served(tensor, parent_at, lanes, set(ranks[tensor])):
            found[parent, tensor, actions[1]] += words

    def go(at: int, env: dict[str, range], lanes: list[tuple[int, Loop, int]]) -> None:
        if at == len(mapping.nodes):
            return multiply({rank: own[0] for rank, own in env.items()}, lanes)
        node = mapping.nodes[at]
        if isinstance(node, Store):
            chain, tensor = holders.setdefault(node.tensor, []), node.tensor
            entries, pointers = tile(tensor, env)
            if chain:
                arriving = entries if tensor == out else entries + pointers
                move(tensor, chain, node.level, lanes, arriving, ("write", "read"))
            chain.append((at, node.level))
            go(at + 1, env, lanes)
            chain.pop()
            if chain and tensor == out:
                move(tensor, chain, node.level, lanes, entries + pointers, ("read", "write"))
            return None
        own = env[node.rank]
        for lane, begin in enumerate(range(own.start, own.stop, node.tile)):
            inner = env | {node.rank: range(begin, min(begin + node.tile, own.stop))}
            go(at + 1, inner, [*lanes, (at, node, lane)] if node.over else lanes)

    def multiply(at: dict[str, int], lanes: list[tuple[int, Loop, int]]) -> None:
        place = {tensor: tuple(at[rank] for rank in of) for tensor, of in ranks.items()}
        there = all(place[p.tensor] in stored[p.tensor] for p in e.inputs if p.tensor in stored)
        found["MAC", "-", "compute"] += there
        for tensor, chain in holders.items():
            parent_at, level = chain[-1]
            compressed_input = tensor in stored and tensor != out
            own = set(ranks[tensor]) | (set() if compressed_input else apart)
            lane = tuple((i, n) for i, loop, n in lanes if loop.rank not in own)
            first = (tensor, place[tensor], tuple(at[rank] for rank in sorted(apart)), lane) not in begun
            begun.add((tensor, place[tensor], tuple(at[rank] for rank in sorted(apart)), lane))
            if served(tensor, parent_at, lanes, own):
                continue
            begins_row = at[ranks[tensor][-1]] == 0
            if compressed_input:
                here = entry[tensor] * (place[tensor] in stored[tensor]) + pointer[tensor] * begins_row
                found[level, tensor, "read"] += here
            elif tensor == out:
                found[level, tensor, "read"] += entry[tensor] * there
                starts = begins_row and first and not any(at[rank] for rank in apart - set(ranks[tensor]))
                found[level, tensor, "write"] += entry[tensor] * there + pointer[tensor] * starts
            else:
                found[level, tensor, "read"] += there

    go(0, {rank: range(n) for rank, n in e.extents}, [])
    return found


def drawn(rng: Random, kind: str) -> tuple[Einsum, dict[str, Places]]:
    """An einsum and matrices for it, with as many products and nonzeros as these have."""
    sizes = {rank: rng.randint(2, 4) for rank in "mnk"}

    def some(*of: str) -> Places:
        places = list(product(*(range(sizes[rank]) for rank in of)))
        return frozenset(rng.sample(places, rng.randint(1, len(places) - 1)))

    stored = {"A": some("m", "n")} if kind == "sddmm" else {"A": some("m", "k"), "B": some("k", "n")}
    if kind == "sddmm":
        stored["S"], products = stored["A"], len(stored["A"]) * sizes["k"]
    else:
        pairs = [(i, j) for i, k in stored["A"] for other, j in stored["B"] if k == other]
        stored["S"], products = frozenset(pairs), len(pairs)
    of = {"A": "mn", "S": "mn"} if kind == "sddmm" else {"A": "mk", "B": "kn", "S": "mn"}
    density = {t: max(len(stored[t]), 1) / prod(sizes[rank] for rank in of[t]) for t in of}
    wide = {t: rng.choice([4, 8]) for t in of}
    e = einsum(RESULTS[kind], sizes, density=density, format=dict.fromkeys(of, "csr"), index_bits=wide)
    return replace(e, share=products / e.points()), stored


def shifted(e: Einsum, stored: dict[str, Places]) -> list[dict[str, Places]]:
    """The matrices, shifted along every rank in all ways, all together."""
    sizes = e.sizes()
    of = {p.tensor: [dim.terms[0][0] for dim in p.dims] for p in e.tensors()}
    return [
        {
            t: frozenset(
                tuple((x + by[rank]) % sizes[rank] for x, rank in zip(place, of[t], strict=True))
                for place in places
            )
            for t, places in stored.items()
        }
        for by in (dict(zip(sizes, amounts, strict=True)) for amounts in product(*map(range, sizes.values())))
    ]


@settings(max_examples=amount(200, 15), deadline=None)
@given(st.integers(0, 2**32))
@pytest.mark.parametrize("kind", ["sddmm", "spgemm"])
def test_expected_counts_are_those_of_drawn_matrices(kind: str, seed: int) -> None:
    rng = Random(seed)
    e, stored = drawn(rng, kind)
    if not stored["S"]:
        return
    arch = random_arch(rng)
    arch = replace(arch, levels=tuple(replace(level, skip_first_read=False) for level in arch.levels))
    mapping, total = random_mapping(rng, e, arch), Counter()
    every = shifted(e, stored)
    for one in every:
        total.update(walked(mapping, e, arch, one))
    want = {key: n / len(every) for key, n in total.items() if n}
    rows = count(mapping, e, arch)
    got = {row.key: row.elems for row in rows if row.action not in ("merge", "fold")}
    assert want.keys() == got.keys(), f"{e}\n{mapping}"
    for key, n in got.items():
        assert isclose(n, want[key], rel_tol=1e-9), f"{key}: {n}, walked {want[key]}\n{e}\n{mapping}"


def test_bits_by_hand() -> None:
    """8 x 16, 32 nonzeros of 8 bits with columns of 4 and pointers of 6. The result is written once, and with
    tiles of k two at a time its partial sums leave and return seven times: entries both ways, pointers out.
    """
    e = einsum(
        RESULTS["sddmm"], {"m": 8, "n": 16, "k": 16}, density={"A": 0.25}, format={"A": "csr", "S": "csr"}
    )
    outer, inner = "DRAM", "BUF"
    levels = (Level(outer, None, 8, 1.0, 1.0), Level(inner, None, 8, 1.0, 1.0))
    arch = Arch("hand", levels, (), Compute(1.0, 1.0), 1.0, 8)
    entries, pointers = 32 * (8 + 4), 8 * 6
    for k, trips in ((16, 1), (2, 8)):
        nest = f"store {outer} A X Y S\nfor k tile {k}\nstore {inner} S\n"
        nest += "for m tile 1\nfor n tile 1\nfor k tile 1\nmac"
        bits = {row.key: 8 * row.elems for row in count(parse(nest), e, arch)}
        assert bits[outer, "S", "write"] == pytest.approx(trips * (entries + pointers))
        assert bits.get((outer, "S", "read"), 0.0) == pytest.approx((trips - 1) * entries)
        # 16 products of each nonzero are added to its entry; of the first one nothing is read
        returned = (trips - 1) * entries
        assert bits[inner, "S", "write"] == pytest.approx(16 * entries + pointers + returned)
        assert bits[inner, "S", "read"] == pytest.approx((16 - 1) * entries + trips * (entries + pointers))


def test_bits_of_a_mask_by_hand() -> None:
    """The same in a bitmask: 32 * 8 + 128 = 384 bits leave with a tile and come back; a product reads and
    writes a value. Compute writes the mask once where no tile of the result stands outside of it.
    """
    e = einsum(
        RESULTS["sddmm"], {"m": 8, "n": 16, "k": 16}, density={"A": 0.25}, format={"A": "csr", "S": "bitmask"}
    )
    levels = (Level("DRAM", None, 8, 1.0, 1.0), Level("BUF", None, 8, 1.0, 1.0))
    arch = Arch("hand", levels, (), Compute(1.0, 1.0), 1.0, 8)
    nest = "store DRAM A X Y S\n%sfor k tile %d\n%sfor m tile 1\nfor n tile 1\nfor k tile 1\nmac"
    whole, values = 32 * 8 + 128, 32 * 8
    for stored, (written, read) in (
        (nest % ("", 2, "store BUF S\n"), (8 * whole, 7 * whole)),
        (nest % ("", 1, ""), (16 * values + 128, 15 * values)),
    ):
        bits = {row.key: 8 * row.elems for row in count(parse(stored), e, arch)}
        assert bits["DRAM", "S", "write"] == pytest.approx(written)
        assert bits["DRAM", "S", "read"] == pytest.approx(read)


def test_results_are_told_apart() -> None:
    dense, csr, wide = (
        einsum(
            RESULTS["sddmm"],
            {"m": 8, "n": 16, "k": 4},
            density={"A": 0.25},
            format={"A": "csr", **form},
            **bits,
        )
        for form, bits in (({}, {}), ({"S": "csr"}, {}), ({"S": "csr"}, {"index_bits": {"S": 8}}))
    )
    counted = replace(csr, share=0.2)
    assert len({*map(canonical_key, (dense, csr, wide, counted))}) == 4
    assert counted.macs() == round(0.2 * 8 * 16 * 4)


FAULTS = {
    "{format: {A: '1:2', S: '1:4'}}": "tensor S cannot be 1:4; sums of products fall anywhere in a group",
    "{format: {S: csr}}": "tensor S cannot be csr; its zeros are those of inputs: give one a density below 1",
    "{format: {S: csr}, density: {A: 0.5, S: 0}}": "0 < density <= 1",
    "{format: {S: csr}, density: {A: 0.5}, index_bits: {S: 1}}": "index_bits of tensor S is 1",
}


@pytest.mark.parametrize("more", FAULTS)
def test_faults_are_one_line(more: str) -> None:
    with pytest.raises(WorkloadError) as found:
        einsum(RESULTS["sddmm"], {"m": 8, "n": 16, "k": 4}, **yaml.safe_load(more))
    assert FAULTS[more] in str(found.value)
    assert "\n" not in str(found.value)


def test_what_is_not_expected_is_asked_for() -> None:
    text, sizes = "S[m] += A[m,k] * B[m,j]", {"m": 4, "k": 4, "j": 4}
    sparse = {"density": {"A": 0.5, "B": 0.5}, "format": {"S": "csr"}}
    with pytest.raises(WorkloadError, match=r"say density: \{S: \.\.\.\}"):
        einsum(text, sizes, **sparse)
    with pytest.raises(WorkloadError, match="each of its dimensions must be one rank"):
        einsum("S[m+k] += A[m] * B[k]", {"m": 4, "k": 4}, density={"A": 0.5}, format={"S": "csr"})


@pytest.mark.parametrize("schedule", ["fused", "pipelined", "kapla", "gogeta", "seq-flex", "residency"])
def test_schedules_refuse_results_in_csr_in_one_line(schedule: str) -> None:
    with pytest.raises(
        ValueError, match=r"^solver\.schedule = \S+ does not count results in csr \(S of sddmm\)"
    ):
        dse.map("sddmm:rows=40,nnz=200,k=4", "edge_array", **{"solver.schedule": schedule})


CHAIN = """
name: chain
extents: {m: 16, n: 16, k: 8, d: 8}
einsums:
- {text: "S[m,n] += A[m,n] * X[m,k] * Y[n,k]", density: {A: 0.25}, format: {A: csr%s}}
- {text: "Z[m,d] += S[m,n] * V[n,d]"%s}
"""


def test_schedules_and_training_refuse_results_in_csr_in_one_line(tmp_path: Path) -> None:
    dense, sparse, plan = (tmp_path / name for name in ("dense.yaml", "sparse.yaml", "plan.txt"))
    dense.write_text(CHAIN % ("", ""))
    sparse.write_text(CHAIN % (", S: csr", ", density: {S: 0.25}, format: {S: csr}"))
    plan.write_text(dse.map(str(dense), "edge_array", **{"solver.schedule": "fused"}).schedule)
    with pytest.raises(ValueError, match=r"not counted of results in csr \(S of S\)") as found:
        api.simulate(str(sparse), "edge_array", plan)
    assert "\n" not in str(found.value)
    with pytest.raises(WorkloadError, match=r"S is a result in csr, and gradients of those are not made"):
        catalog.load(f"train:net={sparse},inputs=yes")


def test_best_is_unfused(tmp_path: Path) -> None:
    (path := tmp_path / "sparse.yaml").write_text(
        CHAIN % (", S: csr", ", density: {S: 0.25}, format: {S: csr}")
    )
    found = [
        dse.map(str(path), "edge_array", **{"solver.schedule": one}).energy_pj for one in ("unfused", "best")
    ]
    assert found[0] == found[1]


# The catalog


@pytest.fixture
def matrix(tmp_path: Path) -> tuple[Path, np.ndarray]:
    a = scipy.sparse.random_array((30, 30), density=0.1, rng=np.random.default_rng(5))
    scipy.sparse.save_npz(path := tmp_path / "a.npz", scipy.sparse.csr_array(a))
    return path, a.toarray()


def test_products_of_a_file_are_counted(
    matrix: tuple[Path, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, a = matrix
    there = (a != 0).astype(int)
    monkeypatch.setattr(sparsity, "MAX_PRODUCTS", 20)  # in many blocks of rows
    for times, other in (("itself", there), ("transpose", there.T)):
        (e,) = catalog.load(f"{path}:solver=spgemm,times={times}").einsums
        assert e.macs() == (there @ other).sum()
        assert e.output.density * 900 == pytest.approx(np.count_nonzero(there @ other))
    (by_size,) = catalog.load("spgemm:rows=30,nnz=90").einsums
    assert by_size.output.density == pytest.approx(1 - (1 - 0.1**2) ** 30)
    p = Pattern("a", 2, 3, np.array([0, 1, 4]))
    assert (sparsity.product_counts(p, True), p.rows) == ((5, 4), 2)


def test_sampled_products_have_the_pattern_of_the_matrix(matrix: tuple[Path, np.ndarray]) -> None:
    path, a = matrix
    (e,) = catalog.load(f"{path}:solver=sddmm,k=4").einsums
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(30, 4)), rng.normal(size=(30, 4))
    assert np.allclose(run([e], {"A": a, "X": x, "Y": y})["S"], a * (x @ y.T))
    assert e.output.density * 900 == pytest.approx(np.count_nonzero(a))
    assert e.macs() == 4 * np.count_nonzero(a)


def test_graph_attention(matrix: tuple[Path, np.ndarray]) -> None:
    path, a = matrix
    a = a + np.eye(30)  # no row without neighbours
    scipy.sparse.save_npz(path, scipy.sparse.csr_array(a))
    sizes = {"features": 5, "outputs": 3, "heads": 2, "hidden": 4}
    w = gnn.gat(str(path), **sizes)
    rng = np.random.default_rng(7)
    shapes = {
        p.tensor: [d.size for d in p.dims] for e in w.einsums for p in e.inputs if p.tensor in w.weights
    }
    data = {t: rng.normal(size=shape) for t, shape in shapes.items()}
    expected = x = rng.normal(size=(30, 5))
    found = run(w.einsums, data | {"A": a, "X0": x})["Y1"]
    for i, heads in ((0, 2), (1, 1)):
        h = np.einsum("mn,nho->mho", expected, data[f"W{i}"].reshape(expected.shape[1], heads, -1))
        s, t = (np.einsum("mho,ho->mh", h, data[f"{v}{i}"].reshape(heads, -1)) for v in "ab")
        score = s[:, None] + t[None]
        score = np.where(a[..., None] != 0, np.maximum(score, 0.2 * score), -np.inf)
        weight = np.exp(score - score.max(axis=1, keepdims=True))
        expected = np.einsum("mkh,kho->mho", weight / weight.sum(axis=1, keepdims=True), h).reshape(30, -1)
        expected = np.where(expected > 0, expected, np.expm1(expected)) if i == 0 else expected
    assert np.allclose(found, expected)
    results = {e.output.tensor: e.output for e in w.einsums if e.output.format == "csr"}
    edges = np.count_nonzero(a)
    assert [*results] == ["E0", "P0", "Q0", "E1", "P1", "Q1"]
    assert [p.density * p.stored_elems() for p in results.values()] == pytest.approx(
        [2 * edges] * 3 + [edges] * 3
    )
    assert results_text(w).startswith(
        f"E0 {2 * edges} nonzeros, those of A, P0 {2 * edges} nonzeros, those of E0"
    )
    with pytest.raises(WorkloadError, match="says nothing of features"):
        gnn.gat(str(path))


def test_only_equal_forms_are_fused() -> None:
    sizes, sparse = {"m": 8, "n": 8, "k": 4}, {"A": 0.25}
    first = einsum(RESULTS["sddmm"], sizes, density=sparse, format={"A": "csr", "S": "csr"})
    for form, count_left in (("csr", 1), ("dense", 2)):
        second = einsum("Z[m,n] = relu(S[m,n])", sizes, density={"S": 0.25}, format={"S": "csr", "Z": form})
        left = fuse_into_producers(Workload("chain", (first, second))).einsums
        assert len(left) == count_left
        assert left[-1].output.format == form

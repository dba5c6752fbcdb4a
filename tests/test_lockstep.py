"""PEs that step together through the groups of an operand in N:M (`lockstep`).

In whole groups such an einsum is a dense one over N slots of each group: that is walked here, element by
element, and what is counted of the sparse one must follow from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import inf
from random import Random

import numpy as np
import pytest

from dse.mapper.baselines.cost_descending import cost_descending
from dse.mapper.baselines.exhaustive import exhaustive
from dse.mapper.baselines.random import random
from dse.mapping.constraints import Factors
from dse.mapping.nest import Infeasible, Loop, Mapping, Store, faults, parse
from dse.sim.counts.counts import Violated, count
from dse.sim.counts.vectorized import cost_many, tables
from dse.sim.einsum import bound_kernels, bounds
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost
from dse.solve import solve
from dse.solve.options import SolverOptions
from hw import machine, space
from hw.arch import Arch, Compute, Fanout, Level
from hw.columns import Table
from tests.amount import amount
from tests.enumeration import size
from tests.nests import random_arch, random_mapping
from tests.oracle import walk
from tests.prove.mappers import compared, confirmed, priced_all
from tests.test_counts import unlike
from workloads.einsum import Einsum, einsum
from workloads.text import workload as workload_of

GEMM = "C[m,n] += A[m,k] * B[k,n]"
TEXTS = (
    GEMM,
    "C[b,m,n] += A[m,k] * B[b,k,n]",
    "C[m] += A[m,k] * B[k]",
    "C[m] += A[m,k] * B[m,k]",  # no PEs share what they take of B: each takes its own values alone
    "C[m] += A[m,k] * B[m]",
)


@pytest.mark.parametrize("seed", range(amount(400, 8)))
def test_counts_are_those_of_a_walk_over_the_slots_of_groups(seed: int) -> None:
    rng = Random(f"lockstep/{seed}")
    n, m = rng.choice([(1, 2), (2, 4), (3, 4), (1, 4)])
    text, groups = rng.choice(TEXTS), rng.choice([1, 2, 3, 4])
    sizes = {rank: rng.randint(1, 4) for rank in "bmn"}
    by_group = einsum(text, sizes | {"k": groups})
    arch = random_arch(rng)
    arch = replace(arch, compute=replace(arch.compute, lockstep=True))
    nest = random_mapping(rng, by_group, arch)

    def cut(values: int) -> Mapping:
        """The nest over groups, each of so many values that are taken one after the other."""
        nodes = (
            replace(node, tile=node.tile * values) if isinstance(node, Loop) and node.rank == "k" else node
            for node in nest.nodes
        )
        return replace(nest, nodes=(*nodes, Loop("k", 1)))

    def moved(values: int) -> Counter:
        return walk(cut(values), einsum(text, sizes | {"k": groups * values}), arch).total

    slots, dense = moved(n), moved(m)
    own = einsum(text, sizes | {"k": groups * m}, format={"A": f"{n}:{m}"})
    found = Counter({(row.level, row.tensor, row.action): row.elems for row in count(cut(m), own, arch)})
    a = own.inputs[0]
    held = [node.level for node in nest.nodes if isinstance(node, Store) and node.tensor == "B"][-1]
    taken = m / n if {*own.inputs[1].ranks()} & {"m", "k"} == {"k"} else 1
    rules: dict[str, Callable[[tuple[str, str, str]], float]] = {
        "A": lambda key: slots[key] * (1 + a.index_bits / (a.bits or arch.word_bits)),
        # compute takes whole groups of what stands innermost; tiles are those of a dense product
        "B": lambda key: slots[key] * taken if key[::2] == (held, "read") else dense[key],
    }
    for key in {key for key in (*slots, *dense, *found) if key[2] != "fold"}:
        asked = rules.get(key[1], slots.__getitem__)(key)
        assert found[key] == pytest.approx(asked, rel=1e-9, abs=1e-9), (key, str(cut(m)), str(arch))


def in_whole_slots(mapping: Mapping, e: Einsum) -> bool:
    """Whether the parts of k that spatial loops hand out, the last and smallest too, are whole slots: a slot
    is of M / N values, or of a group where that is no number of values.
    """
    n, m = map(int, e.inputs[0].format.split(":"))
    slot, parts = (m // n if m % n == 0 else m), {e.sizes()["k"]}
    for node in mapping.nodes:
        if isinstance(node, Loop) and node.rank == "k":
            cut = {min(node.tile, part - at) for part in parts for at in range(0, part, node.tile)}
            if node.over and cut != parts and any(part % slot for part in cut):
                return False
            parts = cut
    return True


@pytest.mark.parametrize("seed", range(amount(40, 6)))
def test_answers_are_the_best_of_all_mappings(seed: int) -> None:
    rng, many = Random(f"lockstep/{seed}"), inf
    while many > 1500:
        n, m = rng.choice([(1, 2), (2, 4), (1, 4), (3, 4), (4, 8)])
        sizes = {"m": rng.choice([1, 2, 3]), "n": rng.choice([1, 2]), "k": m * rng.randint(1, 3)}
        e = einsum(GEMM, sizes, format={"A": f"{n}:{m}"})
        dims = ("X", rng.randint(1, 8)), ("Y", rng.randint(1, 8))
        reduce = rng.random() < 0.7, rng.random() < 0.7
        array = Fanout("PE", rng.choice([1, 2]), dims, (True, rng.random() < 0.7), reduce)
        held = rng.choice([("output",), ("weight",)])
        levels = (
            Level("DRAM", None, 8, 20.0, 20.0, bypass=False),
            Level("GBUF", rng.choice([64, 128, 400]), 8, 2.0, 3.0, bandwidth=rng.choice([1.0, 4.0])),
            Level("REGF", rng.choice([16, 40]), 8, 0.2, 0.3, may_keep=held),
        )[: rng.choice([2, 3])]
        arch = Arch("steps", levels, (array,), Compute(1.0, 1.0, lockstep=True), 1.0, 8, overlap="free")
        problem = Problem(arch, e, rng.choice(["energy", "edp", "latency"]))
        tiles: Factors = rng.choice(["perfect", "imperfect_spatial"])
        many = size(e, arch, tiles, "tensors")
    best = priced_all(problem, tiles)
    found = solve.optimal(problem, tiles)
    assert [*confirmed(problem, best), *compared(problem, best, found, "lockstep")] == []
    for mapper in (cost_descending, random, exhaustive):
        one = mapper(problem, Random(seed), **({"mappings": 30} if mapper is random else {}))
        assert isinstance(one, Infeasible) or in_whole_slots(one[0].mapping, e)


def test_other_schedules_refuse_it_in_one_line() -> None:
    spec = machine.load("edge_array")
    spec = replace(spec, nodes=(*spec.nodes[:-1], replace(spec.nodes[-1], lockstep=True)))
    (e,) = workload_of({"m": 8, "n": 8, "k": 8}, GEMM).einsums
    sparse = einsum(GEMM, {"m": 8, "n": 8, "k": 8}, format={"A": "2:4"})
    both = workload_of({"m": 8, "n": 8, "k": 8}, GEMM)
    held = replace(both, einsums=(sparse,))
    for schedule in ("fused", "best", "gogeta"):
        with pytest.raises(ValueError, match=r"does not count PEs in lockstep \(mac\.lockstep, through A\)"):
            solve.check_rules(machine.arch(spec), held, SolverOptions(schedule=schedule))  # type: ignore[arg-type]
    solve.check_rules(machine.arch(spec), both, SolverOptions(schedule="fused"))
    assert e.inputs[0].density == 1


def test_a_study_has_machines_with_and_without_lockstep_and_their_own_bounds() -> None:
    """`--set` and axes name the field; each row of the columns is bounded as its own machine is."""
    template = machine.load("edge_array")
    assert space.override(template, {"mac.lockstep": True}).nodes[-1].lockstep  # type: ignore[union-attr]
    few = space.parse(template, {"mac.lockstep": [False, True], "array.x": [4, 8]})
    e = einsum(GEMM, {"m": 8, "n": 4, "k": 16}, format={"A": "2:4"})
    built, columns = Table(few).columns(np.arange(4))
    found = np.transpose(bound_kernels.sequential([(e, 2)], columns)).tolist()
    specs = [space.apply(template, space.values(few, i)) for i in range(4)]
    alone = [bounds.sequential([(e, 2)], machine.arch(spec)) for spec in specs]
    assert built.all()
    assert columns.lockstep.tolist() == [False, False, True, True]
    assert found == [pytest.approx(one, rel=1e-12) for one in alone]
    assert found[0] != found[2]
    assert len(set(columns.family[:, -1].tolist())) == 2


def test_pes_get_whole_slots() -> None:
    """16 PEs on 8 slots, and a temporal loop that leaves no whole ones, are refused in one line and not
    found.
    """
    dims = (("X", 4), ("Y", 4))
    levels = (Level("DRAM", None, 8, 20.0, 20.0, bypass=False), Level("GBUF", 1 << 13, 8, 2.0, 3.0))
    array = Fanout("PE", 2, dims, (True, True), (True, True))
    arch = Arch("steps", levels, (array,), Compute(1.0, 1.0, lockstep=True), 1.0, 8, overlap="free")
    e = einsum(GEMM, {"m": 1, "n": 1, "k": 16}, format={"A": "2:4"})
    stores, apart = "store DRAM A B C\n", replace(arch, compute=replace(arch.compute, lockstep=False))
    for text, least in (
        ("parfor k tile 4 over X\nparfor k tile 1 over Y", 2),
        ("for k tile 4\nparfor k tile 1 over Y", 2),
        ("for k tile 6\nfor k tile 3\nparfor k tile 2 over Y\nfor k tile 1", 2),
        ("for k tile 9\nfor k tile 4\nparfor k tile 2 over Y\nfor k tile 1", 2),
        ("parfor k tile 4 over X\nparfor k tile 2 over Y\nfor k tile 1", 0),
        ("parfor k tile 6 over X\nparfor k tile 4 over Y\nfor k tile 1", 0),
        ("for k tile 1\nparfor k tile 1 over Y", 0),
    ):
        nest = parse(stores + text)
        assert in_whole_slots(nest, e) == (not least)
        assert bool(faults(nest, e, arch)) == bool(least)
        assert not least or f"tiles that are multiples of {least}," in faults(nest, e, arch)[0]
        assert faults(nest, e, apart) == []
    with pytest.raises(Violated, match=r"-.* reads of C at DRAM"):
        einsum_cost(
            Problem(arch, e, "energy"), parse(stores + "parfor k tile 4 over X\nparfor k tile 1 over Y")
        )
    nest = parse(stores + "parfor k tile 4 over X\nparfor k tile 2 over Y\nfor k tile 1")
    options = {"m": [[]], "n": [[]], "k": [[4, 2, 1], [4, 1, 1]]}
    assert cost_many(tables(nest, e, arch, options), e, arch, np.array([[0, 0, 0]])).energy_pj > 0
    with pytest.raises(Violated, match=r"-.* reads of C at DRAM"):
        cost_many(tables(nest, e, arch, options), e, arch, np.array([[0, 0, 0], [0, 0, 1]]))
    whole = einsum(GEMM, {"m": 16, "n": 8, "k": 16}, format={"A": "2:4"})
    (found,) = optimal_of(Problem(arch, whole, "latency"))
    assert found.proven
    assert not faults(found.mapping, whole, arch)
    assert all(row.elems >= 0 for row in found.counts)
    row = einsum("Y[m] += A[m,k] * X[k]", {"m": 4, "k": 4}, format={"A": "2:4"})
    for objective in ("energy", "latency", "edp"):
        (found,) = optimal_of(Problem(arch, row, objective))
        assert found.proven
        assert in_whole_slots(found.mapping, row)


def test_pes_do_not_step_through_groups_where_zeros_are_gated() -> None:
    """Zeros of the operand in N:M take their cycles, or those of the other one let PEs wait: no whole slots,
    and counts are those of the walk.
    """
    dims = (("X", 4), ("Y", 4))
    levels = (Level("DRAM", None, 8, 20.0, 20.0, bypass=False), Level("GBUF", 1 << 13, 8, 2.0, 3.0))
    array = Fanout("PE", 2, dims, (True, True), (True, True))
    nest = parse(
        "store DRAM A B C\nfor m tile 1\nfor n tile 1\nparfor k tile 4 over X\nparfor k tile 1 over Y"
    )
    for gates, density in (("input", 1.0), ("weight", 0.5)):
        compute = Compute(1.0, 1.0, lockstep=True, gates=(gates,))
        arch = Arch("steps", levels, (array,), compute, 1.0, 8, overlap="free")
        e = einsum(GEMM, {"m": 2, "n": 2, "k": 16}, format={"A": "2:4"}, density={"B": density})
        assert faults(nest, e, arch) == []
        assert unlike("gated", e, arch, nest) == ""
        (found,) = optimal_of(Problem(arch, e, "latency"))
        assert found.latency_cycles == 4 * (1.0 if gates == "input" else 0.5)


def optimal_of(problem: Problem) -> list[EinsumCost]:
    found = solve.optimal(problem, "imperfect_spatial")
    assert not isinstance(found, Infeasible)
    return found

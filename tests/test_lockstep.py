"""PEs that step together through the groups of an operand in N:M (`lockstep`).

In whole groups such an einsum is a dense one over N slots of each group: that is walked here, element by
element, and what is counted of the sparse one must follow from it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from random import Random

import numpy as np
import pytest

from dse.mapping.constraints import FREE
from dse.mapping.nest import Infeasible, Loop, Mapping, Store
from dse.sim.counts.counts import count
from dse.sim.einsum import bound_kernels, bounds
from dse.sim.einsum.evaluate import Problem, lower_bound
from dse.solve import solve
from dse.solve.options import SolverOptions
from hw import machine, space
from hw.arch import Arch, Compute, Fanout, Level
from hw.columns import Table
from tests.amount import amount
from tests.nests import random_arch, random_mapping
from tests.oracle import walk
from tests.prove.mappers import compared, confirmed, priced_all
from workloads.einsum import einsum
from workloads.text import workload as workload_of

TEXTS = (
    "C[m,n] += A[m,k] * B[k,n]",
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


@pytest.mark.parametrize("seed", range(amount(40, 6)))
def test_answers_are_the_best_of_all_mappings(seed: int) -> None:
    rng = Random(f"lockstep/{seed}")
    n, m = rng.choice([(1, 2), (2, 4)])
    sizes = {"m": rng.choice([1, 2, 3]), "n": rng.choice([1, 2]), "k": m * rng.choice([1, 2])}
    e = einsum("C[m,n] += A[m,k] * B[k,n]", sizes, format={"A": f"{n}:{m}"})
    array = Fanout(
        "PE", 2, (("X", 2), ("Y", 2)), (True, rng.random() < 0.7), (rng.random() < 0.7, rng.random() < 0.7)
    )
    levels = (
        Level("DRAM", None, 8, 20.0, 20.0, bypass=False),
        Level("GBUF", rng.choice([64, 128, 400]), 8, 2.0, 3.0, bandwidth=rng.choice([1.0, 4.0])),
        Level("REGF", rng.choice([16, 40]), 8, 0.2, 0.3, may_keep=rng.choice([("output",), ("weight",)])),
    )[: rng.choice([2, 3])]
    compute = Compute(1.0, 1.0, lockstep=True)
    arch = Arch("steps", levels, (array,), compute, 1.0, 8, overlap="free")
    problem = Problem(arch, e, rng.choice(["energy", "edp", "latency"]))
    best = priced_all(problem, "perfect", FREE)
    found = solve.optimal(problem, "perfect")
    assert [*confirmed(problem, best), *compared(problem, best, found, "lockstep")] == []
    assert isinstance(found, Infeasible) or lower_bound(problem) <= found[0].energy_pj * max(
        1.0, found[0].latency_cycles
    )


GEMM = "C[m,n] += A[m,k] * B[k,n]"


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

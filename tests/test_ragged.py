"""The optimum over ragged tiles against full enumeration, on machines like smv: private scratchpads, one
array, maybe a register inside.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from dse.mapper.baselines.exhaustive import enumerated, is_lower, mapspace_size
from dse.mapper.exact import ragged, ragged_vectors
from dse.mapper.exact.ragged import solve_ragged
from dse.mapper.exact.ragged_program import min_steps, orders, unsupported
from dse.mapper.smaug.mapper import smaug
from dse.mapping.nest import Infeasible, faults
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost, objective_value
from hw import machine
from hw.arch import Arch, Compute, Fanout, Level
from tests.amount import FULL, some
from tests.nests import random_einsum, searched
from tests.small import small_problem
from workloads.einsum import einsum

OBJECTIVES = ["energy", "latency", "edp"]
EACH = 30 if FULL else 2  # problems of a test: 10 tests, 4 where rows stand for others
KINDS = ("gemm", "bmm", "conv", "conv", "conv", "conv1d", "conv1d", "depthwise", "grouped", "pool")


def pads_arch(rng: Random) -> Arch:
    """One to three private scratchpads or one that is shared, an array of one or two dimensions, maybe a
    register per lane for weights.
    """

    def level(name: str, words: int | None, holds: tuple[str, ...]) -> Level:
        return Level(
            name,
            words and 8 * words,
            rng.choice([8, 16, 64]),
            rng.choice([200.0, 6.0, 0.5]),
            rng.choice([200.0, 7.0, 0.5]),
            rng.choice([1.0, 8.0, 64.0]),
            rng.choice(["shared", "separate"]),
            bypass=words is not None,
            skip_first_read=rng.random() < 0.8,
            may_keep=holds,
        )

    roles = ("input", "weight", "output")
    words = lambda: rng.choice([1, 2, 4, 8, 20, 60])
    pads = (
        [level(role, words(), (role,)) for role in rng.sample(roles, rng.choice([1, 2, 2, 3]))]
        if rng.random() < 0.7
        else [level("GLB", words(), roles)]
    )
    inner = [level("REG", 1, ("weight",))] if rng.random() < 0.5 else []
    dims = (("PE", rng.randint(2, 4)), ("MAC", rng.randint(2, 4)))[: rng.choice([1, 2, 2])]
    array = Fanout(
        "ARRAY",
        1 + len(pads),
        dims,
        tuple(rng.random() < 0.6 for _ in dims),
        tuple(rng.random() < 0.6 for _ in dims),
        "",
    )
    compute = Compute(1.0, 0.5, 1.0, alu_per_cycle=rng.choice([None, 4.0]), leak_mw=rng.choice([0.0, 1.0]))
    return Arch(
        "pads", (level("DRAM", None, roles), *pads, *inner), (array,), compute, 1.0, 8, overlap="free"
    )


def problem(rng: Random, mappings: int) -> Problem:
    """A problem whose ragged spaces, over all orders of levels, have at most so many mappings."""
    while True:
        e = random_einsum(rng, KINDS)
        e = replace(e, extents=tuple((rank, min(n, rng.randint(1, 6))) for rank, n in e.extents))
        found = Problem(searched(pads_arch(rng), e), e, rng.choice(OBJECTIVES))
        if rng.random() < 0.3:
            found = small_problem(rng, found.objective, mappings, factors="imperfect")
        if (
            not unsupported(found.einsum, found.arch)
            and sum(mapspace_size(found.einsum, arch, "imperfect") for arch in orders(found.arch)) <= mappings
        ):
            return found


def ranked(p: Problem, one: EinsumCost) -> tuple[float, float, float]:
    return objective_value(p.objective, one.energy_pj, one.latency_cycles), one.energy_pj, one.latency_cycles


def agree(p: Problem) -> None:
    """Same figure, energy and latency as the best of the enumerations over all orders of levels, by a mapping
    that the evaluator takes; proven.
    """
    every = [enumerated(replace(p, arch=arch), "imperfect") for arch in orders(p.arch)]
    want = [ranked(p, one[0]) for one in every if not isinstance(one, Infeasible)]
    found = solve_ragged(p)
    assert isinstance(found, Infeasible) == (not want)
    if isinstance(found, Infeasible):
        return
    assert faults(found[0].mapping, p.einsum, p.arch) == []
    assert einsum_cost(p, found[0].mapping) == found[0]
    a = ranked(p, found[0])
    assert not any(is_lower(b, a) for b in want), f"{a} is not {min(want)}\n{found[0].mapping}"
    assert any(not is_lower(a, b) for b in want), f"{a} is below {min(want)}\n{found[0].mapping}"
    assert found[0].proven
    assert found[0].proven.factors == "imperfect"
    assert found[0].optimality_gap == 0


@pytest.mark.parametrize("first", some(range(0, 300, 30), 1, 5, 7))
def test_equals_the_enumeration(first: int) -> None:
    for seed in range(first, first + EACH):
        agree(problem(Random(seed), 3_000))


@pytest.mark.parametrize("first", range(1000, 1120, 30))
def test_rows_that_stand_for_many_chains_lose_none(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ragged_vectors, "MAX_ENUMERATED", 2)
    for seed in range(first, first + EACH):
        agree(problem(Random(seed), 3_000))


@pytest.mark.parametrize("first", range(2000, 2120, 30))
def test_rows_that_stand_for_what_other_groups_give_lose_none(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (
        ("MAX_BOUND_ROWS", 3),
        ("PAIRS_PER_PART", 100),
        ("ROWS_BUDGET", 50),
        ("MAX_COMPARED", (5, 5)),
    ):
        monkeypatch.setattr(ragged if hasattr(ragged, name) else ragged_vectors, name, value)
    for seed in range(first, first + EACH):
        agree(problem(Random(seed), 3_000))


@pytest.mark.parametrize(
    ("extents", "lanes", "steps"),
    [((27, 16, 5), (32,), 70), ((7, 3), (2, 4), 3), ((5,), (8, 32), 1), ((9, 9), (1,), 81)],
)
def test_lanes_are_shared_out_in_every_way(
    extents: tuple[int, ...], lanes: tuple[int, ...], steps: int
) -> None:
    assert min_steps(extents, lanes) == steps


@pytest.mark.parametrize("objective", ["energy", "latency"])
@pytest.mark.parametrize(("k", "c", "rows"), [(24, 40, 9), (64, 64, 13), (17, 96, 7)])
def test_is_not_above_smaug_where_its_schedule_is_a_nest(objective: str, k: int, c: int, rows: int) -> None:
    e = einsum("O[k,p,q] += I[c,p,q] * F[k,c]", {"k": k, "c": c, "p": rows, "q": rows})
    p = Problem(machine.arch(machine.load("smv")), e, objective)
    own, best = smaug(p, Random(0)), solve_ragged(p)
    assert not isinstance(own, Infeasible)
    assert not isinstance(best, Infeasible)
    assert not own[0].proven
    assert ranked(p, best[0])[0] <= ranked(p, own[0])[0] * (1 + 1e-9)


def test_says_what_it_does_not_cover() -> None:
    p = small_problem(Random(1), "energy", 1000)
    e = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 2, "n": 2, "k": 2})
    with pytest.raises(ValueError, match="exactly one array"):
        solve_ragged(Problem(replace(p.arch, fanouts=()), e, "energy"))


def test_proves_nothing_where_buffers_have_waits() -> None:
    """Vectors are searched by busy times; SMAUG's schedules had been faster than a "proven" optimum on smv,
    which waits.
    """
    smv, e = (
        machine.arch(machine.load("smv")),
        einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 12, "n": 8, "k": 20}),
    )
    found = [
        solve_ragged(Problem(replace(smv, overlap=overlap), e, "latency")) for overlap in ("buffered", "free")
    ]
    assert [isinstance(one, list) and bool(one[0].proven) for one in found] == [False, True]

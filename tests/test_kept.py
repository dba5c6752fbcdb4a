"""What the process keeps of one machine is not taken for another's: counts of a mapping, terms of the
search."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from random import Random

from dse.mapper.exact import search as searches
from dse.mapper.exact.search import search
from dse.sim.counts import counts
from dse.sim.einsum.evaluate import Problem
from hw.arch import Arch, Compute
from tests.amount import amount
from tests.nests import random_case, rich_case
from tests.problems import GROUPS, random_problem


def forget() -> None:
    for kept in (counts.recipe, searches._form, searches._parts):
        kept.cache_clear()


def others(arch: Arch, rng: Random) -> Iterator[Arch]:
    """Machines that are like one but for a few things, each of which something that is kept depends on, or
    does not.
    """
    yield replace(arch, word_bits=rng.choice([4, 16, 32]))
    for changes in (
        {"ports": "separate"},
        {"ports": "shared"},
        {"skip_first_read": False},
        {"double_buffer": True},
        {"bandwidth": 3.0},
        {"read_pj": 0.0},
        {"read_pj": 7.5},
        {"write_pj": 31.0},
    ):
        v = rng.randrange(len(arch.levels))
        yield replace(
            arch,
            levels=tuple(
                replace(level, **changes) if u == v else level for u, level in enumerate(arch.levels)
            ),
        )  # type: ignore[arg-type]
    yield replace(arch, compute=Compute(3.0, 5.0, 2.0, alu_per_cycle=4.0))
    yield replace(arch, compute=Compute(3.0, 5.0, 0.5, merge_pj=1.5))


def test_counts_of_one_machine_are_not_those_of_another() -> None:
    differ = 0
    for seed in range(amount(60)):
        e, arch, mapping = (rich_case if seed % 2 else random_case)(Random(seed))
        for other in others(arch, Random(seed)):
            forget()
            fresh = counts.count(mapping, e, other)
            forget()
            first = counts.count(mapping, e, arch)
            assert counts.count(mapping, e, other) == fresh
            differ += first != fresh
    assert differ > amount(20)  # the rule that a machine counts in its own way was needed


def test_terms_of_one_machine_are_not_those_of_another() -> None:
    differ = 0
    for seed in range(3):
        for group in GROUPS:
            problem = random_problem(Random(seed), group, "perfect", 3000)
            for other in others(problem.arch, Random(seed)):
                asked = Problem(other, problem.einsum, problem.objective)
                forget()
                fresh = search(asked, "perfect", budget=3000)
                forget()
                first = search(problem, "perfect", budget=3000)
                assert search(asked, "perfect", budget=3000) == fresh
                differ += first != fresh
    assert differ > 50

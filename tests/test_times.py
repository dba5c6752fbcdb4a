"""Port times of a nest in closed form (dse/sim/counts/times.py) against those summed up by unrolling it
(tests/port_times.py), which tests/timed.py walks in time.

Mutants that these tests kill: the first lane for the busiest, first fills of the first period only, a last
drain taken for the first one, a kind of exchange that is not told apart, an inside that is timed whole where
only its last round is meant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, replace
from math import isclose
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.mapping.nest import Mapping
from dse.sim.counts import counts, terms, times
from dse.sim.counts.counts import count, nest_sums
from dse.sim.counts.latency import PortTimes, latency
from dse.sim.counts.times import port_times
from dse.sim.einsum.cost import cycles_of, price_mapping
from hw.arch import Arch
from tests import port_times as unrolled
from tests.amount import amount
from tests.test_timed import random_nest
from tests.unrolled import program
from workloads.einsum import Einsum

# what may be a lower bound; all else is exact, but for windows that slide across a round
LOWER = ("double_buffer_time", "returning")


def different(seed: int) -> str:
    """What a seed's nest has wrong: a latency above that of the unrolled nest, a port time above it, or
    another one that must be exact. The sums were asked for before, by an equal einsum that is another object.
    """
    (e, arch, mapping), (alike, _, _) = random_nest(seed), random_nest(seed)
    count(mapping, alike, arch)
    want, steps = unrolled.port_times(program(mapping, e, arch))
    got, own = port_times(nest_sums(mapping, e, arch), arch)
    lines = [] if isclose(own, steps) else [f"steps {own}, not {float(steps)}"]
    for v, (a, b) in enumerate(zip(got, want, strict=True)):
        for name in (field.name for field in fields(PortTimes)):
            ours, theirs = float(getattr(a, name)), float(getattr(b, name))
            exact = name not in LOWER
            if ours > theirs * (1 + 1e-9) + 1e-9 or (
                exact and not isclose(ours, theirs, rel_tol=1e-9, abs_tol=1e-9)
            ):
                lines.append(f"L{v} {name}: {ours}, not {theirs}")
    for steady in (False, True):
        ours, theirs = latency(got, own, steady=steady), float(latency(want, steps, steady=steady))
        lines += [f"latency {ours}, above {theirs}"] if ours > theirs * (1 + 1e-9) else []
    return "\n".join([f"seed {seed}", *lines, str(e), str(arch), str(mapping)]) if lines else ""


@settings(max_examples=amount(150), deadline=None)
@given(st.integers(0, 2**32))
def test_port_times_are_those_of_the_unrolled_nest(seed: int) -> None:
    assert different(seed) == ""


@settings(max_examples=amount(100, 8), deadline=None)
@given(st.integers(0, 2**32))
def test_a_fork_is_timed_the_same_whoever_asked_before(seed: int) -> None:
    """Tiles sink less far below shared loops: what was summed up for the nest without a fork is none of
    its."""
    e, arch, mapping = random_nest(seed)
    for fork in range(1, len(mapping.nodes)):
        nest = replace(mapping, fork=fork)
        known = times_of(nest, e, arch) if times_of(mapping, e, arch) else None
        counts.recipe.cache_clear()
        assert known == times_of(nest, e, arch)


@settings(max_examples=amount(60), deadline=None)
@given(st.integers(0, 2**32))
def test_counts_are_the_same_whatever_was_asked_before_and_forgotten_since(seed: int) -> None:
    """What is summed up of a nest, and the formulas that name it by number, are kept apart and not equally
    long.
    """
    e, arch, mapping = random_nest(seed)
    counts.recipe.cache_clear()
    expected = count(mapping, e, arch)
    counts.recipe.cache_clear()
    times_of(mapping, e, arch)
    assert count(mapping, e, arch) == expected


def times_of(nest: Mapping, e: Einsum, arch: Arch) -> tuple[list[PortTimes], Any]:
    return port_times(nest_sums(nest, e, arch), arch)


@settings(max_examples=amount(60), deadline=None)
@given(st.integers(0, 2**32))
def test_the_evaluator_takes_this_latency_and_the_largest_busy_time_where_overlap_is_free(seed: int) -> None:
    e, arch, mapping = random_nest(seed)
    times, steps = port_times(nest_sums(mapping, e, arch), arch)
    found = price_mapping(mapping, e, arch)
    assert isclose(found.latency_cycles, latency(times, steps))
    assert found.initiation_interval_cycles <= found.latency_cycles * (1 + 1e-9)
    for name, cycles in found.busy_cycles[:-1]:
        assert isclose(
            cycles,
            next(own.busy for own, level in zip(times, arch.levels, strict=True) if level.name == name),
            abs_tol=1e-9,
        )


@settings(max_examples=amount(100), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(["buffered", "free"]))
def test_latency_alone_is_that_of_the_whole_price(seed: int, overlap: Literal["buffered", "free"]) -> None:
    e, arch, mapping = random_nest(seed)
    arch = replace(arch, overlap=overlap)
    assert cycles_of(nest_sums(mapping, e, arch), arch) == price_mapping(mapping, e, arch).latency_cycles


MUTANTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "first lane for busiest": lambda m: m.setattr("dse.sim.counts.counts.instances", lambda s, tiles: [{}]),
    "last drains are first ones": lambda m: m.setattr(times, "AND_LAST", terms.AND_FIRST),
    "drains before the last are all": lambda m: m.setattr(
        times, "_between", lambda c, s, way, span: _whole(c, s, way, span)
    ),
    "one trip counts as first of many": lambda m: m.setitem(terms.AND_FIRST, terms.LAST, terms.LAST),
}


def _whole(c: Any, s: Any, way: Any, span: Any) -> Any:
    return {} if s.link.rests_at <= span.restart_at else times._flow(c, s, way, span.trips_counted)


@pytest.mark.parametrize("name", MUTANTS)
def test_a_rule_made_wrong_is_told(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MUTANTS[name](monkeypatch)
    assert any(different(seed) for seed in range(300))
    counts.recipe.cache_clear()  # what was written with the wrong rule

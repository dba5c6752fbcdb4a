"""Frontiers price machines as optimal maps them, one by one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from dse.dataflow import frontier, optimal
from dse.dataflow.family import NoFrontier, covers, family
from dse.sim import cost
from dse.sim.counts import footprints
from dse.sim.evaluate import Problem, einsum_cost, figure
from hw import machine
from tests.families import BETTER, KINDS, differences, layer, machines


@pytest.mark.parametrize("kind", KINDS)
def test_a_price_is_the_optimum_of_the_machine(kind: str) -> None:
    found = list(differences(kind, 1000, 12, 400_000))
    assert [line for line in found if line not in ("", BETTER)] == []
    assert "" in found


def test_arrays_of_machines_are_priced_as_one_by_one() -> None:
    rng = Random(3)
    e, archs = layer("gemm", rng), machines(rng)
    own = frontier.solved(e, family(archs))
    asked = [frontier.asked(own.family, arch) for arch in archs]
    best, costs = frontier.prices(own, asked, frontier.rates(asked, archs, e), "edp")
    for arch, n, (energy, latency) in zip(archs, best, costs, strict=True):
        ours = einsum_cost(Problem(arch, e, "edp"), frontier.nest_of(own, int(n), e, arch))
        assert (ours.energy_pj, ours.latency_cycles) == (pytest.approx(energy), pytest.approx(latency))


def test_members_do_not_beat_each_other() -> None:
    rng = Random(4)
    own = frontier.solved(layer("1x1", rng), family(machines(rng)))
    rows = np.concatenate([own.rows, [[-(shapes >> s & 1) for s in range(len(own.family.shapes))] for shapes in own.shapes]], axis=1)
    for row in rows:
        assert (np.all(rows <= row, axis=1)).sum() == 1


@pytest.mark.parametrize("kind", ["gemm", "strided"])
def test_a_front_holds_the_optimum_of_every_objective_and_of_smaller_capacities(kind: str) -> None:
    rng = Random(f"front/{kind}")
    e, arch = layer(kind, rng), max(machines(rng), key=lambda arch: [level.capacity_bits or 0 for level in arch.levels])
    found = frontier.front(e, arch)
    assert len({one.mapping for one in found}) == len(found) > 1
    for halved in range(3):
        smaller = replace(arch, levels=tuple(replace(level, capacity_bits=level.capacity_bits and level.capacity_bits >> halved) for level in arch.levels))
        fitting = [one for one in found if not cost.overflow(footprints(one.mapping, e), e, smaller)]
        for objective in ("energy", "latency", "edp"):
            (best,) = optimal.solved(Problem(smaller, e, objective), "perfect")
            assert min(figure(objective, one.energy_pj, one.latency_cycles) for one in fitting) == pytest.approx(
                figure(objective, best.energy_pj, best.latency_cycles))


def test_a_frontier_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSE_CACHE", str(tmp_path))
    rng = Random(5)
    e, f = layer("decode", rng), family(machines(rng))
    first = frontier.frontier(e, f)
    monkeypatch.setattr(frontier, "solved", None)
    again = frontier.frontier(e, f)
    assert np.array_equal(first.counts, again.counts) and np.array_equal(first.states, again.states)
    assert [path.suffix for path in tmp_path.iterdir()] == [".npz"]


def test_what_no_frontier_knows_is_said() -> None:
    edge = machine.arch(machine.load("edge_array"))
    with pytest.raises(NoFrontier, match="2 different topologies"):
        family([edge, machine.arch(machine.load("tpu_edge"))])
    with pytest.raises(NoFrontier, match="systolic"):
        family([machine.arch(machine.load("tpu_edge"))])
    doubled = replace(edge, levels=(*edge.levels[:2], replace(edge.levels[2], double_buffer=True)))
    with pytest.raises(NoFrontier, match="double buffering"):
        family([doubled])
    assert covers(family([edge]), edge) and not covers(family([edge]), doubled)

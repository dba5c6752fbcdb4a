"""Frontiers price machines as optimal maps them, one by one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from dse.dataflow import frontier
from dse.sim.evaluate import Problem, einsum_cost
from hw import machine
from tests.families import KINDS, UNPROVEN, differences, layer, machines


@pytest.mark.parametrize("kind", KINDS)
def test_a_price_is_the_optimum_of_the_machine(kind: str) -> None:
    found = list(differences(kind, 1000, 4))
    assert [line for line in found if line not in ("", UNPROVEN)] == []
    assert "" in found


def test_arrays_of_machines_are_priced_as_one_by_one() -> None:
    rng = Random(3)
    e, archs = layer("gemm", rng), machines(rng)
    own = frontier.solved(e, frontier.family(archs))
    best, costs = frontier.prices(own, np.array([frontier.cell(own.family, arch) for arch in archs]), frontier.rates(archs, e), archs[0], "edp")
    for arch, n, (energy, latency) in zip(archs, best, costs, strict=True):
        ours = einsum_cost(Problem(arch, e, "edp"), frontier.nest_of(own, int(n), e, arch))
        assert (ours.energy_pj, ours.latency_cycles) == (pytest.approx(energy), pytest.approx(latency))


def test_members_do_not_beat_each_other() -> None:
    rng = Random(4)
    own = frontier.solved(layer("1x1", rng), frontier.family(machines(rng)))
    rows = np.concatenate([own.rows, [[-(shapes >> s & 1) for s in range(len(own.family.shapes))] for shapes in own.shapes]], axis=1)
    for row in rows:
        assert (np.all(rows <= row, axis=1)).sum() == 1


def test_a_frontier_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSE_CACHE", str(tmp_path))
    rng = Random(5)
    e, family = layer("decode", rng), frontier.family(machines(rng))
    first = frontier.frontier(e, family)
    monkeypatch.setattr(frontier, "solved", None)
    again = frontier.frontier(e, family)
    assert np.array_equal(first.counts, again.counts) and np.array_equal(first.states, again.states)
    assert [path.suffix for path in tmp_path.iterdir()] == [".npz"]


def test_what_no_frontier_knows_is_said() -> None:
    edge = machine.arch(machine.load("edge_array"))
    with pytest.raises(frontier.NoFrontier, match="2 different topologies"):
        frontier.family([edge, machine.arch(machine.load("tpu_edge"))])
    with pytest.raises(frontier.NoFrontier, match="systolic"):
        frontier.family([machine.arch(machine.load("tpu_edge"))])
    doubled = replace(edge, levels=(*edge.levels[:2], replace(edge.levels[2], double_buffer=True)))
    with pytest.raises(frontier.NoFrontier, match="double buffering"):
        frontier.family([doubled])
    assert frontier.covers(frontier.family([edge]), edge) and not frontier.covers(frontier.family([edge]), doubled)

"""Frontiers price machines as optimal maps them, one by one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest

from dse import cache
from dse.dataflow import frontier, optimal
from dse.dataflow.family import NoFrontier, covers, family
from dse.sim import cost
from dse.sim.counts import footprints
from dse.sim.evaluate import Problem, einsum_cost, figure
from hw import machine
from tests.families import BETTER, KINDS, differences, layer, machines
from tests.nests import free_edge


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
    edge = free_edge()
    with pytest.raises(NoFrontier, match="2 different topologies"):
        family([edge, machine.arch(machine.load("tpu_edge"))])
    with pytest.raises(NoFrontier, match="systolic"):
        family([machine.arch(machine.load("tpu_edge"))])
    doubled = replace(edge, levels=(*edge.levels[:2], replace(edge.levels[2], double_buffer=True)))
    with pytest.raises(NoFrontier, match="double buffering"):
        family([doubled])
    with pytest.raises(NoFrontier, match="overlap: free"):
        family([replace(edge, overlap="buffered")])
    assert covers(family([edge]), edge) and not covers(family([edge]), doubled)


def test_a_frontier_is_kept_under_all_that_it_depends_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second question to the same cache, each field of the first one changed in turn: it gets its own answer."""
    monkeypatch.setenv("DSE_CACHE", str(tmp_path))
    rng = Random(5)
    e, archs = layer("decode", rng), machines(rng)
    f = family(archs)
    wide = family([replace(arch, word_bits=16) for arch in archs])
    asked = {cache.place("frontier", frontier.question(e, f), ".npz")}
    level, fan = f.arch.levels[1], f.arch.fanouts[0]
    changed = [wide, *(replace(f, **{name: value}) for name, value in {
        "rooms": f.rooms[::-1], "shapes": f.shapes[1:],
        "shares": ((0.1, 0.2), *f.shares[1:]), "ratios": ((0.1, 0.2), *f.ratios[1:]), "separate": tuple(not s for s in f.separate),
        "limited": tuple(not one for one in f.limited), "hides": tuple(tuple(n + 1 for n in row) for row in f.hides)}.items())]
    changed += [replace(f, arch=replace(f.arch, levels=(f.arch.levels[0], replace(level, **{name: value}), *f.arch.levels[2:]))) for name, value in {
        "name": "OTHER", "double_buffer": True, "bypass": not level.bypass, "skip_first_read": not level.skip_first_read, "holds": ("input",)}.items()]
    changed += [replace(f, arch=replace(f.arch, fanouts=(replace(fan, **{name: value}),))) for name, value in {
        "outside": 1, "multicast": tuple(not one for one in fan.multicast), "reduce": tuple(not one for one in fan.reduce), "ramp": "os"}.items()]
    changed += [replace(f, arch=replace(f.arch, compute=replace(f.arch.compute, alu_per_cycle=2.0)))]
    for other in changed:
        asked.add(cache.place("frontier", frontier.question(e, other), ".npz"))
    for einsum in (replace(e, kind="max"), replace(e, output=replace(e.output, bits=24)), layer("gemm", rng)):
        asked.add(cache.place("frontier", frontier.question(einsum, f), ".npz"))
    assert len(asked) == 1 + len(changed) + 3
    assert frontier.question(replace(e, name="other"), f) == frontier.question(e, f)


def test_a_study_of_other_words_in_the_same_cache_gets_its_own_prices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = Random(5)
    e, archs = layer("decode", rng), machines(rng)
    wide = [replace(arch, word_bits=16) for arch in archs]
    monkeypatch.setenv("DSE_CACHE", str(tmp_path / "apart"))
    alone = [frontier.priced(frontier.frontier(e, family(wide)), Problem(arch, e, "energy")) for arch in wide]
    monkeypatch.setenv("DSE_CACHE", str(tmp_path / "shared"))
    frontier.frontier(e, family(archs))
    assert [frontier.priced(frontier.frontier(e, family(wide)), Problem(arch, e, "energy")) for arch in wide] == alone


def test_a_priced_mapping_fits_the_machine() -> None:
    """Members that are wider than the machine's words are refused, not priced."""
    rng = Random(5)
    e, archs = layer("decode", rng), machines(rng)
    narrow = frontier.solved(e, family(archs))
    wide = [replace(arch, word_bits=16) for arch in archs]
    wrong = replace(narrow, family=family(wide))
    with pytest.raises(frontier.Forged, match="does not fit|costs"):
        for arch in wide:
            frontier.priced(wrong, Problem(arch, e, "energy"))

"""Roles of a machine's fields: what differs in a field never shares an answer that the field decides; prices,
rates and clock alone do share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from math import inf
from typing import Any, get_args

import numpy as np
import pytest

from dse.mapper.exact import search
from dse.mapper.exact.optimal import optimal
from dse.mapping.nest import Infeasible, parse
from dse.run.cache import answer_path
from dse.sim.einsum import cost
from dse.sim.einsum.evaluate import EinsumCost, Problem, Solution, einsum_cost
from dse.sim.schedule.graph import evaluate
from dse.solve.sharing import shared_mappings
from dse.solve.sharing.shared_schedules import find_shared_schedules, priced_on, prices, times, unit
from hw import machine, space
from hw.arch import (
    COST_ROLES,
    LAYOUT_FIELDS,
    ROLES,
    Access,
    Arch,
    Array,
    Compute,
    Fanout,
    FieldRole,
    Level,
    Machine,
    MacUnit,
    Memory,
    Rule,
    Slot,
    Stored,
    Takes,
    Tiling,
    fields_of,
    role,
    slots,
)
from hw.columns import NESTING, Table
from hw.component import nesting_faults
from hw.space import decode
from tests.fusions import random_case
from tests.test_family import solved
from tests.test_turns import columns
from workloads.einsum import einsum

GEMM = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 4, "n": 6, "k": 8})
NODES = (Level, Fanout, Compute, Access, Arch)
SAID: tuple[FieldRole, ...] = get_args(FieldRole)


NEST = """store DRAM A B C
for m tile 1
store BUF A B C
parfor k tile 4 over X
store REG C
for n tile 1
for k tile 1
mac"""


def full() -> Arch:
    """A machine on which no field has its default; without layouts and networks, which no answer is shared
    with.
    """
    levels = (
        Level("DRAM", 10**9, 16, 20.0, 30.0, 2.0, bypass=False, leak_mw=3.0, area_mm2=1.0, access_cycles=2),
        Level("BUF", 2**14, 16, 2.0, 3.0, 4.0, "separate", True, False, False, 0.5, 0.25, 3, ROLES),
        Level("REG", 512, 8, 0.5, 0.75, 3.0, "separate", leak_mw=0.125),
    )
    lane = Compute(1.0, 0.5, 2.0, 0.01, 0.02, 3.0, 0.03, 0.04, 0.25)
    return Arch(
        "full",
        levels,
        (Fanout("ARRAY", 2, (("Y", 2), ("X", 3)), (True, True), (True, False), "ws"),),
        lane,
        0.5,
        8,
        Tiling(align=8),
        "buffered",
    )


def another(value: Any, name: str) -> Any:
    """A value that such a field may have instead."""
    known: dict[str, tuple[Any, Any]] = {
        "may_keep": (ROLES, ROLES[:2]),
        "bits": ((), (("output", 24),)),
        "access": (None, Access(64)),
        "mesh_region": ((), ((0, 4), (0, 6))),
        "ports": ("shared", "separate"),
        "systolic": ("ws", "os"),
        "injected_at": ("corners", "edge"),
        "multicast_from": ("next_level", "same_level"),
        "overlap": ("buffered", "free"),
        "tiling": (Tiling(), Tiling(align=4)),
        "mapping": ((), (Rule("X", ranks=("m",)),)),
        "dims": ((("Y", 2), ("X", 3)), (("Y", 2), ("X", 4))),
        "multicast": ((True, True), (True, False)),
        "reduce": ((True, True), (True, False)),
        "shared": ((), ((), ("REG",))),
        "gates": ((), ("input",)),
        "along": ((), ("X",)),
        "formats": ((), (Stored("input", "bitmask"),)),
        "takes": (Takes(), Takes(bits=8)),
    }
    if name in known:
        return next(one for one in known[name] if one != value)
    return (
        f"{value}2"
        if isinstance(value, str)
        else not value
        if isinstance(value, bool)
        else 2.0
        if value == inf
        else value + 1
    )


def changes(arch: Arch, roles: Sequence[FieldRole] = SAID) -> Iterator[tuple[FieldRole, Slot, Arch]]:
    """Machines that differ from one in a single field, every field of every node that says something in
    turn."""
    for of in roles:
        for at in slots(arch, of) if of != "nodes" else ():
            if (value := arch.values([at])[0]) is not None or of == "layout":
                yield of, at, arch.with_values([at], [another(value, at.field)])


@pytest.mark.parametrize("node", NODES)
def test_every_field_has_a_role(node: type) -> None:
    assert sorted(fields_of(node, *SAID)) == sorted(one.name for one in fields(node))


def test_a_field_without_a_role_is_refused() -> None:
    @dataclass(frozen=True, slots=True)
    class Warm(Level):
        heat: float = 0.0

    warm = Warm("BUF", 64, 8, 1.0, 1.0)
    with pytest.raises(TypeError, match=r"Warm.heat has no role"):
        replace(full(), levels=(full().levels[0], warm)).structure()


def test_machines_that_differ_in_a_field_share_no_answer_that_it_decides() -> None:
    """Structures, groups that are searched together, prices and times, digests of cells, questions of the
    cache.
    """
    base, met = full(), set[FieldRole]()
    for of, at, arch in changes(base):
        met.add(of)
        assert arch != base, at
        assert answer_path("map", arch, ".json") != answer_path("map", base, ".json"), at
        same = search.same_structure(Problem(arch, GEMM, "energy")) == search.same_structure(
            Problem(base, GEMM, "energy")
        )
        assert (arch.structure() == base.structure()) == (of in (*COST_ROLES, "area", "label")), at
        assert same == (of in (*COST_ROLES, "area", "label", "tiles")), at
        told = (prices(arch), times(arch)) != (prices(base), times(base))
        # of arrays: how many instances leak
        assert told == (of in COST_ROLES or at.field in ("dims", "outside", "shared")), at
        if of in COST_ROLES:
            wide = cost.batch_arch([base, arch])
            assert [np.asarray(own).tolist() for own in wide.values([at])] == [
                [*base.values([at]), *arch.values([at])]
            ], at
    assert met == set(SAID) - {"nodes"}


def test_what_layouts_and_networks_cost_is_shared_by_none() -> None:
    base = full()
    for of, at, arch in changes(base):
        assert arch.layout_sensitive() == (of in ("layout", "network")), at
        assert arch.ideal() == (base if of in ("layout", "network") else arch), at
        assert (arch.sizeless() == base.sizeless()) == (of == "size"), at
        if arch.layout_sensitive():
            with pytest.raises(ValueError, match="shared schedules do not price"):
                find_shared_schedules(
                    [arch],
                    random_case(3)[1],
                    lambda *_: Infeasible("", 1, 0),
                    lambda *_: Infeasible("", 1, 0),
                    0.1,
                )


@pytest.mark.parametrize(("kind", "value"), [("read_pj", 0.0), ("bandwidth", inf)])
def test_what_is_for_nothing_or_takes_no_time_is_searched_apart(kind: str, value: float) -> None:
    """The search leaves out terms that cost nothing; shared schedules do not."""
    base = full()
    arch = base.with_values([Slot("levels", 1, kind)], [value])
    assert search.same_structure(Problem(arch, GEMM, "energy")) != search.same_structure(
        Problem(base, GEMM, "energy")
    )
    assert arch.structure() == base.structure()


def test_a_unit_that_there_is_not_is_structure() -> None:
    base = full()
    arch = base.with_values([Slot("compute", 0, "alu_per_cycle")], [None])
    assert arch.structure() != base.structure()
    assert search.same_structure(Problem(arch, GEMM, "energy")) != search.same_structure(
        Problem(base, GEMM, "energy")
    )
    assert cost.batch_arch([arch, arch]).compute.alu_per_cycle is None


def test_fields_change_no_more_than_their_roles_say() -> None:
    """Of a mapping: what labels, areas and tiles say changes nothing; prices and leakage no count and no
    cycle; rates and clock no count.
    """
    base, found = full(), optimal(Problem(full(), GEMM, "energy"))
    assert isinstance(found, list)
    for nest in (found[0].mapping, parse(NEST)):
        first = einsum_cost(Problem(base, GEMM, "energy"), nest)
        assert isinstance(first, EinsumCost)
        for of, at, arch in changes(base, ("label", "area", "tiles", *COST_ROLES)):
            one = einsum_cost(Problem(arch, GEMM, "energy"), nest)
            assert isinstance(one, EinsumCost), at
            assert (one.counts, one.mapping_key) == (first.counts, first.mapping_key), at
            assert of == "rate" or one.latency_cycles == first.latency_cycles, at
            assert of in COST_ROLES or one.energy_pj == first.energy_pj, at
            assert (
                of != "price"
                or nest != parse(NEST)
                or at.field == "alu_pj"
                or one.energy_pj > first.energy_pj
            ), at


def test_shared_mappings_are_priced_by_every_price_and_rate() -> None:
    """Machines that differ in one field each, as one cell: each costs what it costs alone, and no two cells
    are one.
    """
    base = machine.arch(machine.load("edge_array"))
    several = [base, *(one for _, _, one in changes(base, COST_ROLES))]
    found = optimal(Problem(base, GEMM, "energy"))
    assert isinstance(found, list)
    own = shared_mappings.machine_batch(base, columns(several), lambda i: several[i])
    energies = shared_mappings.energy_of(own, shared_mappings.cost_on(own, GEMM, found[0]))
    for arch, energy in zip(several, energies, strict=True):
        one = einsum_cost(Problem(arch, GEMM, "energy"), found[0].mapping)
        assert isinstance(one, EinsumCost)
        assert energy == pytest.approx(one.energy_pj, rel=1e-12)
    digests = {
        shared_mappings.machine_batch(arch, columns([arch]), lambda i, arch=arch: arch).digest
        for arch in several
    }
    leaks = sum(at.field.endswith("leak_mw") for _, at, _ in changes(base, COST_ROLES))
    assert len(digests) > len(several) - leaks  # leakage is told by its sum


@dataclass(frozen=True, slots=True)
class Hot(Compute):
    """A node with a field of each role more."""

    spare_pj: float = field(default=1.0, metadata=role("price"))
    spare_rate: float = field(default=1.0, metadata=role("rate"))
    spare_kind: str = field(default="a", metadata=role("structure"))
    spare_bits: int = field(default=1, metadata=role("size"))


def test_a_field_that_is_new_is_told_apart_as_its_role_says() -> None:
    own = {one.name: getattr(full().compute, one.name) for one in fields(Compute)}
    base = replace(full(), compute=Hot(**own))
    for of, at, arch in ((of, at, arch) for of, at, arch in changes(base) if at.field.startswith("spare")):
        shared = of in ("price", "rate")
        assert (arch.structure() == base.structure()) == shared, at
        assert (
            search.same_structure(Problem(arch, GEMM, "energy"))
            == search.same_structure(Problem(base, GEMM, "energy"))
        ) == shared, at
        assert ((prices(arch), times(arch)) != (prices(base), times(base))) == shared, at
    numbers = [unit(base, i).values(slots(base, "price")) for i in range(len(slots(base, "price")))]
    assert numbers == np.eye(len(numbers)).tolist()
    assert len(prices(base)) == len(prices(full())) + 1


@pytest.mark.parametrize("seed", [1, 2])
def test_shared_schedules_are_priced_by_every_price_and_rate(seed: int) -> None:
    """Machines that differ in one field each, in one family: each costs what it costs alone."""
    arch, workload = random_case(seed, "buffered")
    several = [arch, *(one for _, _, one in changes(arch, COST_ROLES))]
    found = find_shared_schedules(
        several,
        workload,
        lambda one, objective: solved(one, workload, objective),
        lambda one, objective: solved(one, workload, objective, "unfused"),
        0.5,
    )
    if isinstance(found, Infeasible):
        return
    for i, one in enumerate(several):
        again, mine = evaluate(one, workload, found.schedules[found.choice[i]].schedule), priced_on(found, i)
        assert isinstance(again, Solution)
        assert (mine.energy_pj, mine.latency_cycles) == (again.energy_pj, again.latency_cycles)


def keys_of(spec: Machine) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Fields of a machine file with two values that each may have."""
    numbers = {
        "capacity": (4096, 8192),
        "width_bits": (32, 64),
        "banks": (1, 2),
        "channels": (1, 2),
        "clock_mhz": (200.0, 400.0),
        "node_nm": (22.0, 45.0),
        "cell": ("lop", "hp"),
        "word_bits": (8, 16),
        "overlap": ("buffered", "free"),
        "align": (0, 8),
        "vector_lanes": (0, 8),
    }
    for key, kind in space.keys(spec).items():
        name = key.rpartition(".")[2]
        if name in numbers:
            yield key, numbers[name]
        elif get_args(kind)[:1] == (float,):
            yield key, (0.5, 0.75)
        elif get_args(kind)[:1] == (int,):
            yield key, (2, 4)
        elif get_args(kind)[:1] == (bool,):
            yield key, (False, True)
        elif get_args(kind) and all(isinstance(one, str) for one in get_args(kind)):
            yield key, get_args(kind)[:2]


@pytest.mark.parametrize("name", ["edge_array", "eyeriss", "simba"])
def test_columns_tell_machines_apart_as_their_structures_do(name: str) -> None:
    spec, met = machine.load(name), 0
    for key, pair in keys_of(spec):
        own = space.Space(spec, (space.Axis(key, pair),))
        arches = [decode(own, i) for i in range(2)]
        built, columns = Table(own).columns(np.arange(2))
        assert built.tolist() == [isinstance(arch, Arch) for arch in arches], key
        if built.all():
            first, second = (arch for arch in arches if isinstance(arch, Arch))
            assert (columns.structure[0] == columns.structure[1]).all() == (
                first.structure() == second.structure()
            ), key
            rows = [
                [
                    columns.column(one)[i].tolist()
                    for one in (*columns.levels, *columns.compute, "leak_mw", "clock_ghz")
                ]
                for i in range(2)
            ]
            assert (str(rows[0]) == str(rows[1])) == (
                str([prices(first), times(first), first.clock_ghz])
                == str([prices(second), times(second), second.clock_ghz])
            ) or first.leak_mw() != second.leak_mw(), key
            met += 1
    assert met > 20


def test_fields_of_memories_that_nest_or_switch_on_layouts_are_those_listed() -> None:
    """`NESTING` decides how nodes may stand inside each other, `LAYOUT_FIELDS` whether layouts cost
    anything."""
    first, lane = Memory("dram", 64, "ddr3"), MacUnit("mac", "int8")
    base = Memory("buf", 64, "sram", capacity=4096)
    others: dict[str, Any] = {"kind": "ddr3", "along": ("y",), "burst": 64, "bank_map": "word"}
    nest = (first, base, Array("pe", {"x": 2}), replace(base, name="inner"), lane)
    for name in (one.name for one in fields(Memory) if one.name != "name"):
        value = others.get(name, 8)
        inside = nesting_faults((*nest[:3], replace(nest[3], **{name: value}), lane))
        assert any(inside) == (name in NESTING), name
    assert set(LAYOUT_FIELDS) == set(others) - {"kind", "along"}

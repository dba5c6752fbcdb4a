"""From elements to actions, energy and busy cycles, of one mapping or of many at once (docs/model.md, Energy
and Time).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import NamedTuple

from dse.mapping.nest import bits_at, gates_zeros, role, ungated
from dse.sim.counts.latency import Number, PortTimes, any_nonzero, largest, latency
from dse.sim.counts.terms import nonzero_share
from hw.arch import Arch, Fanout, Level
from workloads.einsum import Einsum

Key = tuple[str, str, str]  # level, tensor, action
# actions that take cycles alone; fill, drain: writes and reads for the memory outside, part of those rows,
# where they have a port of their own
UNPRICED = ("fold", "wait", "fill", "drain")


def bits_of(e: Einsum, arch: Arch) -> dict[str, int]:
    """Returns the bits per element of every tensor at levels that give it no width of their own
    (`nest.bits_at`).
    """
    return {p.tensor: p.bits or arch.word_bits for p in e.tensors()}


def op_pj(e: Einsum, arch: Arch) -> float:
    """Returns the energy in pJ of one operation of the einsum's kind; 0 for copies."""
    return {"mac": arch.compute.mac_pj, "copy": 0.0}.get(e.kind, arch.compute.alu_pj)


def op_cycles(ops: Number, busiest_ops: Number, e: Einsum, arch: Arch) -> Number:
    """Returns the cycles of the operations on the busiest MAC unit; of operations that are no MACs on the
    machine's vector unit, if it has one. Gated operations take their cycles, too.
    """
    rate = arch.compute.alu_per_cycle
    if arch.compute.gates:
        more = gating(e, arch.compute.gates)
        ops, busiest_ops = ops * more, busiest_ops * more
    return busiest_ops / arch.compute.ops_per_cycle if rate is None or e.kind == "mac" else ops / rate


def gating(e: Einsum, gates: tuple[str, ...]) -> float:
    """Returns the operations that take cycles, per operation that computes. gates: roles of the operands of
    which zeros are gated.
    """
    stepped = prod(p.density for p in ungated(e, gates).inputs)
    return stepped / nonzero_share(e) if gates_zeros(e, gates) else 1.0


def passes_array(e: Einsum, arch: Arch) -> bool:
    """True if an einsum's data pass through the PEs of systolic arrays; False for operations on the vector
    unit.
    """
    return e.kind == "mac" or arch.compute.alu_per_cycle is None


def compute_component(e: Einsum, arch: Arch) -> str:
    """Returns the component that does an einsum's operations: MAC (of several computes their own name), or
    VECTOR for those of the vector unit. Rows of counts name MAC for all, since they are the same on all.
    """
    return arch.compute.name if passes_array(e, arch) else "VECTOR"


def fill_cycles(f: Fanout, e: Einsum, arch: Arch) -> int:
    """Returns the cycles per fold that a systolic array takes to fill and empty; `busy` subtracts 1 from the
    sum over folds.
    """
    return fold_cycles(f) if passes_array(e, arch) else 0


def fold_cycles(f: Fanout) -> int:
    """Returns R + C - 2 for an output-stationary array of R x C PEs, 2 R + C - 2 otherwise.

    Source: SCALE-Sim (Samajdar et al. 2020), as run in tests/data/systolic_cycles_cases.json.
    """
    rows, columns = f.dims[0][1], f.dims[1][1]
    return (rows if f.systolic == "os" else 2 * rows) + columns - 2


def action_pj(key: Key, e: Einsum, arch: Arch) -> float:
    """Returns the energy in pJ per element of a row of counts. Raises KeyError for an unknown action."""
    name, tensor, action = key
    if action in UNPRICED:
        return 0.0
    if action in ("compute", "merge"):
        return {"compute": op_pj(e, arch), "merge": arch.compute.merge_pj}[action]
    level = next(level for level in arch.levels if level.name == name)
    return (
        accesses_per_elem(level, bits_at(level, tensor, e, arch))
        * {"read": level.read_pj, "write": level.write_pj}[action]
    )


def first_word_cycles(level: Level, arch: Arch) -> Number:
    """Returns the cycles from a request to a level to its first word. An einsum waits for them once per level
    that its inputs stand at, before all else: addresses are known, so later requests are sent ahead. Nothing
    hides this wait, but the einsum before of equal ones back to back.
    """
    return level.latency_ns * arch.clock_ghz


def accesses_per_elem(level: Level, bits: int) -> float:
    """Returns accesses of the level's width per element (ideal packing)."""
    return bits / level.width_bits


def elem_cycles(level: Level, bits: int, tensor_role: str, action: str) -> Number:
    """Returns the cycles that reading or writing an element keeps its port busy."""
    accesses, times = accesses_per_elem(level, bits), level.port(tensor_role, action)[1]
    return accesses / level.bandwidth if times == 1 else accesses / (level.bandwidth * times)


class Delay(NamedTuple):
    """What the layout of a tensor adds to the time in which a port serves it."""

    cycles: float  # of the busiest instance
    share: float  # of the time that the elements take


NO_DELAYS: Mapping[Key, Delay] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Busy:
    """Busy cycles of the components of a machine."""

    levels: tuple[Number, ...]  # busiest port of each level
    steps: Number  # operations of the busiest MAC unit
    ramp: Number  # systolic arrays that fill and empty
    wait: Number = 0.0  # for first words


def busy(
    rows: Iterable[tuple[Key, Number, Sequence[Number]]],
    e: Einsum,
    arch: Arch,
    delays: Mapping[Key, Delay] = NO_DELAYS,
) -> Busy:
    """Returns the busy cycles of counted rows.

    rows: (level, tensor, action), elements of all instances together, and elements of each instance that may
        be the busiest
    delays: by (level, tensor, action), what layouts add
    """
    order = arch.level_index()
    arrays = {f.name: f for f in arch.fanouts}
    ports: dict[tuple[int, str], list[Number]] = {}
    steps: Number = 0.0
    ramp: Number = 0.0
    wait: Number = 0.0
    for (name, tensor, action), total, elems in rows:
        if action == "compute":
            steps = op_cycles(total, elems[0], e, arch)
        elif action == "fold":
            ramp = ramp + largest(elems[0] * fill_cycles(arrays[name], e, arch) - 1, 0.0)
        elif action == "wait":  # tensor: the level
            wait = wait + elems[0] * first_word_cycles(arch.levels[order[tensor]], arch)
        elif action != "merge" and any_nonzero(
            cycles := elem_cycles(
                level := arch.levels[order[name]],
                bits_at(level, tensor, e, arch),
                of := role(e, tensor),
                action,
            )
        ):
            key = order[name], level.port(of, action)[0]
            delay = delays[name, tensor, action].cycles if (name, tensor, action) in delays else 0.0
            ports[key] = [
                sum_before + n * cycles + delay
                for sum_before, n in zip(ports.get(key, [0.0] * len(elems)), elems, strict=True)
            ]
    levels = tuple(
        largest(0.0, *(n for (at, _), found in ports.items() if at == v for n in found))
        for v in range(len(arch.levels))
    )
    return Busy(levels, steps, ramp, wait)


def elapsed_cycles(busy_cycles: Busy, times: Sequence[PortTimes], steady: bool = False) -> Number:
    """Returns the latency in cycles: with no port times, where fills never stall, the largest busy time.

    steady: returns the initiation interval of equal einsums back to back
    """
    found = (
        latency(times, busy_cycles.steps, busy_cycles.ramp, steady)
        if times
        else largest(busy_cycles.steps, *busy_cycles.levels) + busy_cycles.ramp
    )
    return found if steady else found + busy_cycles.wait

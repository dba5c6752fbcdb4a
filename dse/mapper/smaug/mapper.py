"""SMAUG as a mapper of one einsum. The einsum is read as one of SMAUG's operators, tiled and scheduled. The
evaluator prices the schedule if it is a nest; else replay.py counts it call by call.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import prod
from random import Random

from dse.mapper.smaug.export import (
    DIMENSION_OF_LOOP,
    Schedule,
    einsum_tensors_of,
    export,
    home,
    kernel,
    levels_outside_inner_array,
    sizes_of,
    why_no_nest,
)
from dse.mapper.smaug.factor import unit
from dse.mapper.smaug.halo import Copies, copies
from dse.mapper.smaug.reading import read
from dse.mapper.smaug.replay import replay_counts
from dse.mapper.smaug.smaug import WINDOWED, tile, unsupported
from dse.mapping.nest import NON_NEST, Infeasible, Mapping
from dse.sim.counts.actions import bits_of
from dse.sim.counts.counts import Count, Counted, Footprint, counted, footprints, nest_sums
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost, evaluate_fitting
from dse.sim.schedule import outermost
from hw.arch import ROLES, Arch
from workloads.einsum import Einsum

TILES_OF = {  # loop of a schedule -> what its tiles are of, in words
    "n": "images",
    "h": "rows",
    "w": "columns",
    "m": "kernels",
    "o": "outputs of the kernels",
    "c": "channels",
    "t": "elements",
}


@dataclass(frozen=True, slots=True)
class Plan:
    """What SMAUG does with an einsum."""

    schedule: Schedule
    mapping: Mapping  # the nest of the schedule, or its text if it is no nest
    why_no_nest: str  # why it is no nest, "" if it is one


@outermost.mapper
def smaug(problem: Problem, rng: Random, host_copies_cost: bool = True) -> list[EinsumCost] | Infeasible:
    """SMAUG's tiling and schedule, for machines with scratchpads outside of the array.

    Returns a list of one solution. rng is not used. If the schedule is no nest, the mapping is its text,
    whose first line says why. Where host_copies_cost, what the host copies is read from and written to main
    memory, each at its own time.
    """
    e = problem.einsum
    planned = plan(e, problem.arch)
    if isinstance(planned, Infeasible):
        return planned
    counts = _replay(problem, planned) if planned.why_no_nest else _counted(problem, planned.mapping)
    if host_copies_cost:
        counts = replace(counts, before=_copy_counts(problem, planned))
    host = host_copies(planned).values()
    return [
        replace(
            evaluate_fitting(problem, counts),
            host_copies=sum(c.number for c in host),
            host_copy_elems=sum(c.elems for c in host),
            strategy="" if planned.why_no_nest else "\n".join(_strategy(planned.schedule)),
        )
    ]


def plan(e: Einsum, arch: Arch) -> Plan | Infeasible:
    """The reading, tiling and nest of one einsum on one machine."""
    bits = set(bits_of(e, arch).values())
    if len(bits) > 1:
        return unsupported(e.name, "optimizers of einsums whose elements have several sizes")
    accelerator = unit(arch, bits.pop())
    if accelerator is None:
        return unsupported(
            e.name, f"level between {arch.levels[0].name} and the array for inputs, weights and outputs"
        )
    homes = dict(zip(ROLES, accelerator.names, strict=True))
    if blocking := [
        level.name
        for level in arch.levels[1 : levels_outside_inner_array(arch)]
        if not level.bypass and any(homes[role] != level.name for role in level.may_keep)
    ]:
        return unsupported(e.name, f"way past level {blocking[0]}, which no tensor may bypass")
    reading = read(e)
    if isinstance(reading, Infeasible):
        return reading
    tiling = tile(reading.operator, accelerator)
    if isinstance(tiling, Infeasible):
        return tiling
    s = Schedule(reading, accelerator, tiling)
    if tiling.operator.kind == "transposed" and accelerator.accelerators > 1:
        return unsupported(
            e.name, "transposed convolutions on several accelerators, which share rows of outputs"
        )
    why = why_no_nest(tiling, accelerator, tiling.operator.kind == "unary" and len(e.inputs) > 1)
    mapping = Mapping(()) if why else export(e, arch, s)
    if not why and isinstance(overflow := einsum_cost(Problem(arch, e, "energy"), mapping), Infeasible):
        why = (
            f"{overflow.level} would need {overflow.need_bytes} bytes with the padding, which SMAUG does "
            "not store"
        )
    if why and tiling.operator.kind == "transposed":
        return unsupported(e.name, f"transposed convolutions that are no nest: {why}")
    return Plan(s, Mapping((), _text(e, arch, s, why)) if why else mapping, why)


def host_copies(planned: Plan) -> dict[str, Copies]:
    """Per tensor of the tiling, what the host copies to cut an input or to put the output together."""
    s = planned.schedule
    copies_of = {name: copies(t) for name, t in s.tiling.tensors.items()}
    return {
        name: replace(
            c, number=c.number * s.operator_view.repeats(), elems=c.elems * s.operator_view.repeats()
        )
        for name, c in copies_of.items()
    }


def _copy_counts(problem: Problem, planned: Plan) -> tuple[Count, ...]:
    """The elements that the host reads and writes at the outermost level to cut inputs into tiles and to put
    the output together.
    """
    e, home_level = problem.einsum, problem.arch.levels[0].name
    tensors_of, sizes = (
        einsum_tensors_of(e, planned.schedule.tiling),
        {p.tensor: p.stored_elems() for p in e.tensors()},
    )
    found = []
    for name, copied in host_copies(planned).items():
        whole = sum(sizes[tensor] for tensor in tensors_of[name])
        for tensor in tensors_of[name] if copied.elems else ():
            elems = copied.elems * sizes[tensor] / whole
            found += [Count(home_level, tensor, action, elems, elems) for action in ("read", "write")]
    return tuple(found)


def _counted(problem: Problem, mapping: Mapping) -> Counted:
    """A nest that fits, counted."""
    e, arch = problem.einsum, problem.arch
    return counted(mapping, e, arch, footprints(mapping, e, arch))


def _replay(problem: Problem, planned: Plan) -> Counted:
    """A schedule counted call by call."""
    e, s = problem.einsum, planned.schedule
    tensors_of = einsum_tensors_of(e, s.tiling)
    footprint = tuple(
        Footprint(home(name, s.accelerator), tensor, prod(tiled.tile) // len(tensors_of[name]), True)
        for name, tiled in s.tiling.tensors.items()
        for tensor in tensors_of[name]
    )
    sums = nest_sums(planned.mapping, e, problem.arch)
    return Counted(planned.mapping, sums, replay_counts(e, problem.arch, s), footprint, timed=None)


def _strategy(s: Schedule) -> Iterator[str]:
    """Yields a line for the operator, then one per tensor: which dimensions are cut, the tile, the grid of
    tiles, the level that they go to.
    """
    op, machine = s.tiling.operator, s.accelerator
    window = (
        f", window {_shape_text(op.kernel)}, stride {_shape_text(op.stride)}, padding "
        f"{' '.join(map(str, op.pads))}"
        f"{f', dilation {_shape_text(op.dilation)}' if op.dilation != (1, 1) else ''}"
        if op.kind in (*WINDOWED, "transposed")
        else ""
    )
    yield (
        f"SMAUG {op.kind} of "
        f"{_shape_text(op.shape)}{window}{f', {op.outputs} outputs' if op.outputs else ''}; "
        f"array {machine.pes} x {machine.macs}, vectors of {machine.vector}"
    )
    for name, tiled in s.tiling.tensors.items():
        tiles = (
            f"{tiled.label}, {_shape_text(tiled.grid())} tiles of {_shape_text(tiled.tile)}"
            if prod(tiled.grid()) > 1
            else "whole"
        )
        yield f"  {name} {_shape_text(tiled.shape)} through {home(name, machine)}: {tiles}"


def _shape_text(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _text(e: Einsum, arch: Arch, s: Schedule, why: str) -> str:
    """The text of a schedule that is no nest: its tiles, the loops over them, the nest of the first kernel
    call. Equal texts are equal schedules.
    """
    lines, indent, t = [f"{NON_NEST}: {why}", *_strategy(s)], "", s.tiling
    loops = [
        *((f"one {rank} of {n} at a time", True) for rank, n in s.operator_view.repeated_ranks),
        *((f"{n} tiles of {TILES_OF[name]}", name not in t.nest.serial) for name, n in t.nest.loops if n > 1),
    ]
    # number, from 1 inwards, of the loop that bears the note: accelerators take the trips of parallel loops
    # by turns
    turn_loop = sum(is_parallel for _, is_parallel in loops) if s.accelerator.accelerators > 1 else -1
    for i, (what, _) in enumerate(loops):
        lines.append(
            f"{indent}for "
            f"{what}{f', {s.accelerator.accelerators} accelerators by turns' if i + 1 == turn_loop else ''}"
        )
        indent += "  "
    output = list(t.tensors)[-1]
    loads = [
        f"load {name}{'' if name in t.nest.always else ' unless loaded last'}"
        for name in t.tensors
        if name != output
    ]
    lines.append(
        f"{indent}{', '.join(loads)}; send {output} "
        f"{'at the last call' if t.nest.last_only else 'when done'}; a kernel call:"
    )
    tile_of = e.sizes() | dict.fromkeys((rank for rank, _ in s.operator_view.repeated_ranks), 1)
    if "t" in dict(t.nest.loops):
        tile_of = {rank: t.tensors["inputs"].tile[1] if i == 0 else 1 for i, rank in enumerate(tile_of)}
    else:
        tile_of |= {
            s.operator_view.ranks[DIMENSION_OF_LOOP[name]]: sizes_of(t)[name]
            for name, n in t.nest.loops
            if n > 1
        }
    return "\n".join(
        [
            *lines,
            *(f"{indent}{line}" for line in str(Mapping(tuple(kernel(e, arch, s, tile_of)))).splitlines()),
        ]
    )

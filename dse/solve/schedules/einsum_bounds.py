"""Lower bounds on the cost of einsums, alone or in segments, on machines of nodes: from operations,
registers, buffers and main-memory traffic (docs/reuse.md, Pipelines).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from dse.sim.counts.actions import op_pj
from dse.sim.einsum import bounds
from dse.solve.schedules.register_bounds import Roles, fill_pj, roles
from hw.arch import Arch
from workloads.arrays import Floats
from workloads.einsum import Einsum


@dataclass(frozen=True, slots=True)
class LowerBound:
    """Lower bounds over all ways to run an einsum."""

    energy: float  # pJ without leakage
    compute: float  # cycles with all MAC units at work
    words: float  # from and to main memory, in its words

    def __add__(self, other: LowerBound) -> LowerBound:
        return LowerBound(self.energy + other.energy, self.compute + other.compute, self.words + other.words)

    def times(self, n: int) -> LowerBound:
        """Returns the bounds of n equal einsums one after the other."""
        return LowerBound(n * self.energy, n * self.compute, n * self.words)


def lower_bound(
    e: Einsum,
    arch: Arch,
    forwarded: Collection[str] = (),
    pinned: Collection[str] = (),
    forwards: bool = False,
    skip_registers: bool = False,
) -> LowerBound:
    """Returns the lower bounds of an einsum.

    forwarded: inputs that stand in other nodes. pinned: inputs that stand in the buffers before the run.
    forwards: the output need not go to main memory. skip_registers: leaves out the bound of registers
    (`register_bounds.fill_pj`), which takes most of the time.
    """
    needs = bounds.needs(e, arch.word_bits)
    outer = arch.levels[0]
    bits = [p.bits or arch.word_bits for p in e.tensors()]
    is_on_chip = [
        p.tensor in forwarded or p.tensor in pinned or (p is e.output and forwards) for p in e.tensors()
    ]
    outer_words = [
        0.0 if on_chip else words * b / outer.width_bits
        for on_chip, (words, _, _), b in zip(is_on_chip, needs.operands, bits, strict=True)
    ]
    computed_pj = needs.computed * op_pj(e, arch)
    moved_pj = sum(
        words * (outer.write_pj if p is e.output else outer.read_pj)
        for p, words in zip(e.tensors(), outer_words, strict=True)
    ) * (not outer.bypass)
    operands = tuple(
        bounds.Operand(0.0 if on_chip else words, elem_bits, written)
        for on_chip, (words, elem_bits, written) in zip(is_on_chip, needs.operands, strict=True)
    )
    general_pj = bounds.lower_bound(
        replace(needs, operands=operands), replace(bounds.rates(arch), leak_mw=0.0)
    )[0]
    on_vector_unit = arch.compute.alu_per_cycle is not None and e.kind != "mac"
    cycles = (
        0.0
        if on_vector_unit
        else needs.computed / arch.instances(len(arch.levels)) / arch.compute.ops_per_cycle
    )
    energy = (
        general_pj
        if skip_registers
        else max(
            general_pj,
            computed_pj
            + moved_pj
            + float(_register_pj(e, arch)[0])
            + _buffer_pj(e, arch, forwarded, pinned, forwards),
        )
    )
    return LowerBound(energy, cycles, 0.0 if outer.bypass else sum(outer_words))


def inside_pj(e: Einsum, arch: Arch, parts: Sequence[Roles] = ()) -> Floats:
    """Returns lower bounds [parts] on the energy of operations and registers; on machines of two levels, of
    operations and their accesses to the buffer.

    parts: for each way to share the einsum among nodes, the iterations of one node; (): the whole einsum.
    """
    computed_pj, level = bounds.needs(e, arch.word_bits).computed * op_pj(e, arch), arch.levels[-1]
    if (
        len(arch.levels) > 2
        or level.bypass
        or any(f.outside > 1 for f in arch.fanouts)
        or bounds.needs(e, arch.word_bits).share < 1
    ):
        return computed_pj + _register_pj(e, arch, parts)
    access_pj = sum(
        (p.bits or arch.word_bits) / level.width_bits * (level.write_pj if p is e.output else level.read_pj)
        for p in e.tensors()
    )
    return np.array([computed_pj + e.points() * access_pj])


def _register_pj(e: Einsum, arch: Arch, parts: Sequence[Roles] = ()) -> Floats:
    """Returns lower bounds [parts] on the energy of register accesses, fills and drains; [0.0] for einsums
    and machines that the bound does not cover.
    """
    r, inner = roles(e), arch.levels[-1]
    is_sparse = bounds.needs(e, arch.word_bits).share < 1 or any(p.format != "dense" for p in e.tensors())
    if r is None or len(arch.levels) != 3 or inner.capacity_bits is None or is_sparse:
        return np.zeros(1)
    inner_fanouts, level = [f for f in arch.fanouts if f.outside == 2], arch.levels[1]
    pes = prod(size for f in inner_fanouts for _, size in f.dims)
    bits = [p.bits or arch.word_bits for p in e.tensors()]
    endpoint_pj = [sum(f.endpoint_pj for f in inner_fanouts) * b for b in bits]
    register_pj = [
        b / inner.width_bits * (inner.read_pj + (inner.write_pj if p is e.output else 0.0))
        for p, b in zip(e.tensors(), bits, strict=True)
    ]
    fill_word_pj = [
        a + b * inner.write_pj / inner.width_bits for a, b in zip(endpoint_pj[:2], bits, strict=False)
    ]
    # number of the image and of the weights among the inputs
    order = (1, 0) if any(len(d.terms) > 1 for d in e.inputs[1].dims) else (0, 1)
    buffer_word_pj = [
        b * (level.write_pj if p is e.output else level.read_pj) / level.width_bits * (not level.bypass)
        for p, b in zip(e.tensors(), bits, strict=True)
    ]
    fill_bound = fill_pj(
        parts or [r],
        inner.capacity_bits // min(bits),
        (fill_word_pj[order[0]], fill_word_pj[order[1]], endpoint_pj[2]),
        (buffer_word_pj[order[0]], buffer_word_pj[order[1]], buffer_word_pj[2]),
        pes,
    )
    # per operation, of each tensor, if it bypasses the registers
    direct_pj = [a + b / pes for a, b in zip(endpoint_pj, buffer_word_pj, strict=True)]
    # alternative: at least one tensor bypasses the registers
    bypass_pj = sum(map(min, register_pj, direct_pj)) + max(
        0.0, min(b - a for a, b in zip(register_pj, direct_pj, strict=True))
    )
    return e.points() * np.minimum(sum(register_pj) + fill_bound, bypass_pj)


def _buffer_pj(
    e: Einsum, arch: Arch, forwarded: Collection[str], pinned: Collection[str], forwards: bool
) -> float:
    """Returns a lower bound on the energy of a node's buffer: each input from outside is written to it once,
    an input of another node is also read there and takes one link, and an output that is not forwarded is
    read once. 0.0 where buffers may be bypassed.
    """
    level = arch.levels[1]
    if level.bypass or len(arch.levels) != 3 or not roles(e):
        return 0.0
    total, hop_pj = 0.0, sum(f.hop_pj for f in arch.fanouts if f.outside == 1)
    for p, (words, elem_bits, is_output) in zip(
        e.tensors(), bounds.needs(e, arch.word_bits).operands, strict=True
    ):
        bits = elem_bits or arch.word_bits
        if not is_output and p.tensor not in pinned:
            total += (
                words
                * bits
                * (
                    level.write_pj / level.width_bits
                    + (p.tensor in forwarded) * (level.read_pj / level.width_bits + hop_pj)
                )
            )
        elif is_output:
            # its writes to the buffer are in `_register_pj`
            total += words * bits * (not forwards) * level.read_pj / level.width_bits
    return total

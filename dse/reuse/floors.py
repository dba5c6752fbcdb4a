"""Lower bounds of einsums that run alone or in segments, on machines of nodes: what lanes take at least, what comes from main memory at least
(docs/reuse.md, Pipelines).

A product reads two inputs; each of its ranks is missed by one tensor at most: n ranks that the weights do not have, k that the image does not have, c that
the result does not have. In the registers of one lane a tensor stands below some loops, so its tile is fetched once per box of iterations; boxes of the three
tensors lie in each other:

    for ...                      box of the result, all c of it: n k c operations, n k registers
      store REGF result
      for c ...                  box of the weights: n operations per word, k' c' registers, k' <= k
        store REGF weights
        for n ...                box of the image: k' operations per word, k' <= k of the box around it
          store REGF image
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import permutations
from math import inf, prod, sqrt

from dse.sim import bounds
from dse.sim.parts import op_pj
from hw.arch import Arch
from workloads.einsum import Einsum

N, K, C = range(3)  # ranks that weights, image, result do not have
IMAGE, WEIGHTS, RESULT = range(3)
MISSED = (K, N, C)  # by tensor


@dataclass(frozen=True, slots=True)
class Roles:
    """Iterations over ranks of each kind; slid: operations of one k that share a word of the image because windows overlap."""

    sizes: tuple[int, int, int]
    slid: int


@dataclass(frozen=True, slots=True)
class Least:
    """No way to run an einsum has less: energy without leakage, cycles of all lanes, words from and to main memory."""

    energy: float
    compute: float
    words: float

    def __add__(self, other: Least) -> Least:
        return Least(self.energy + other.energy, self.compute + other.compute, self.words + other.words)

    def times(self, n: int) -> Least:
        return Least(n * self.energy, n * self.compute, n * self.words)


def roles(e: Einsum) -> Roles | None:
    """None: no product of two inputs, a rank that two tensors miss, or windows of another kind than a convolution's."""
    if e.kind != "mac" or len(e.inputs) != 2 or any(len(d.terms) > 1 for d in e.output.dims):
        return None
    image = int(any(len(d.terms) > 1 for d in e.inputs[1].dims))
    tensors, sizes, n = (e.inputs[image], e.inputs[1 - image], e.output), [1, 1, 1], e.sizes()
    for rank, size in e.extents:
        missed = [MISSED[at] for at, p in enumerate(tensors) if rank not in p.ranks()]
        if len(missed) > 1:
            return None
        for kind in missed:
            sizes[kind] *= size
    windows = [d.ranks() for d in tensors[IMAGE].dims if len(d.terms) > 1]
    strange = any(len(ranks) != 2 or sum(rank in e.output.ranks() for rank in ranks) != 1 for ranks in windows)
    if strange or any(len(d.terms) > 1 for d in tensors[WEIGHTS].dims):
        return None
    return Roles((sizes[N], sizes[K], sizes[C]), prod(min(n[rank] for rank in ranks) for ranks in windows))


@lru_cache(maxsize=1 << 12)
def filled_pj(r: Roles, room: int, pj: tuple[float, float, float], buffer: tuple[float, float, float] = (0.0, 0.0, 0.0), lanes: int = 1) -> float:
    """Of one operation: what image, weights and result cost at least to come to registers of so many words, or to leave them. pj: of a word of each.

    buffer: of a word of each there, which s_t of the lanes of an array share. They share a word of t along ranks that t does not have, and no rank is missed by
    two tensors, so any of the s_t are no more than the lanes when multiplied: a_1 / s_1 + a_2 / s_2 >= 2 (a_1 a_2 / lanes)^(1/2), of all three 3 ( )^(1/3).
    """
    def words(tensor: int, x: int, y: int) -> int:  # a window's tile has at least as many as the larger one of its two ranks
        return -(-x * y // min(x, y, r.slid)) if tensor == IMAGE else x * y

    def shared(tensor: int, around: list[int], left: int) -> int:
        return min(r.slid, around[N] * around[C], left) if tensor == IMAGE else 1

    best = inf
    for first, second, third in permutations(range(3)):  # boxes from the innermost one outwards
        a, b, c = MISSED[first], MISSED[second], MISSED[third]
        for x in range(1, min(r.sizes[a], room) + 1):
            for y in range(1, min(r.sizes[b], room) + 1):
                outer = [r.sizes[kind] if kind == c else x if kind == a else y for kind in range(3)]
                left = room - words(third, x, y)
                outward = 1 / (r.sizes[c] * shared(third, [*r.sizes], room))
                if left < 2:
                    break
                for u in range(1, min(x, left) + 1):
                    for v in range(1, min(r.sizes[c], r.slid if first == IMAGE else 1) + 1):
                        rest = left - words(second, u, v)
                        if rest < 1:
                            break
                        middle = [v if kind == c else u if kind == a else y for kind in range(3)]
                        inner, inmost = 1 / (y * shared(second, outer, left)), 1 / (u * shared(first, middle, rest))
                        p, q, s = buffer[third] * outward, buffer[second] * inner, buffer[first] * inmost
                        taken = max(3 * (p * q * s / lanes) ** (1 / 3), 2 * sqrt(max(p * q, p * s, q * s) / lanes))
                        best = min(best, pj[third] * outward + pj[second] * inner + pj[first] * inmost + taken)
    return best


def least(e: Einsum, arch: Arch, handed: Collection[str] = (), pinned: Collection[str] = (), hands: bool = False, roughly: bool = False) -> Least:
    """handed, pinned: inputs that other lanes, or the buffers, have; hands: the result need not go to main memory; roughly: boxes of registers, which take
    most of the time, are left out."""
    n, outer, bits = bounds.needs(e), arch.levels[0], [p.bits or arch.word_bits for p in e.tensors()]
    near = [p.tensor in handed or p.tensor in pinned or (p is e.output and hands) for p in e.tensors()]
    far = [0.0 if inside else words * b / outer.width_bits for inside, (words, _, _), b in zip(near, n.operands, bits, strict=True)]
    computed = n.computed * op_pj(e, arch)
    moved = sum(words * (outer.write_pj if p is e.output else outer.read_pj) for p, words in zip(e.tensors(), far, strict=True)) * (not outer.bypass)
    operands = tuple((0.0 if inside else words, own, written) for inside, (words, own, written) in zip(near, n.operands, strict=True))
    anywhere = bounds.floor(replace(n, operands=operands), replace(bounds.rates(arch), leak_mw=0.0))[0]
    on_unit = arch.compute.alu_per_cycle is not None and e.kind != "mac"
    cycles = 0.0 if on_unit else n.computed / arch.instances(len(arch.levels)) / arch.compute.ops_per_cycle
    energy = anywhere if roughly else max(anywhere, computed + moved + _in_lanes(e, arch) + _in_buffers(e, arch, handed, pinned, hands))
    return Least(energy, cycles, 0.0 if outer.bypass else sum(far))


def inside_pj(e: Einsum, arch: Arch) -> float:
    """Operations, and all that lanes do for them; on machines of two levels what operations read and write in the buffer."""
    computed, level = bounds.needs(e).computed * op_pj(e, arch), arch.levels[-1]
    if len(arch.levels) > 2 or level.bypass or any(f.outside > 1 for f in arch.fanouts) or bounds.needs(e).share < 1:
        return computed + _in_lanes(e, arch)
    used = sum((p.bits or arch.word_bits) / level.width_bits * (level.write_pj if p is e.output else level.read_pj) for p in e.tensors())
    return computed + e.points() * used


def _in_lanes(e: Einsum, arch: Arch) -> float:
    """All that operations read and write in registers, and what comes to these and leaves them; 0 where that is not known."""
    r, inner = roles(e), arch.levels[-1]
    if r is None or len(arch.levels) != 3 or inner.capacity_bits is None or bounds.needs(e).share < 1 or any(p.format != "dense" for p in e.tensors()):
        return 0.0
    between, level = [f for f in arch.fanouts if f.outside == 2], arch.levels[1]
    at_once = prod(size for f in between for _, size in f.dims)
    bits = [p.bits or arch.word_bits for p in e.tensors()]
    lane = [sum(f.lane_pj for f in between) * b for b in bits]
    use = [b / inner.width_bits * (inner.read_pj + (inner.write_pj if p is e.output else 0.0)) for p, b in zip(e.tensors(), bits, strict=True)]
    fill = [a + b * inner.write_pj / inner.width_bits for a, b in zip(lane[:2], bits, strict=False)]
    order = (1, 0) if any(len(d.terms) > 1 for d in e.inputs[1].dims) else (0, 1)
    buffer = [b * (level.write_pj if p is e.output else level.read_pj) / level.width_bits * (not level.bypass) for p, b in zip(e.tensors(), bits, strict=True)]
    filled = filled_pj(r, inner.capacity_bits // min(bits), (fill[order[0]], fill[order[1]], lane[2]), (buffer[order[0]], buffer[order[1]], buffer[2]), at_once)
    past = sum(map(min, use, lane)) + max(0.0, min(b - a for a, b in zip(use, lane, strict=True)))  # one of them at least not in registers
    return e.points() * min(sum(use) + filled, past)


def _in_buffers(e: Einsum, arch: Arch, handed: Collection[str], pinned: Collection[str], hands: bool) -> float:
    """Inputs that come from outside of a node are written to its buffer at least once, those of other lanes are read there and take a link; 0 where buffers
    may be passed by."""
    level = arch.levels[1]
    if level.bypass or len(arch.levels) != 3 or not roles(e):
        return 0.0
    total, hop = 0.0, sum(f.hop_pj for f in arch.fanouts if f.outside == 1)
    for p, (words, own, written) in zip(e.tensors(), bounds.needs(e).operands, strict=True):
        bits = own or arch.word_bits
        if not written and p.tensor not in pinned:
            total += words * bits * (level.write_pj / level.width_bits + (p.tensor in handed) * (level.read_pj / level.width_bits + hop))
        elif written:
            total += words * bits * (not hands) * level.read_pj / level.width_bits  # lanes write it there: `_in_lanes`
    return total

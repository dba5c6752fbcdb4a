"""Walks directives element by element, in every buffer and every iteration, and counts what moves; random
ones, with tiles that overlap. Shares no code with dse/sim: it knows what docs/model.md says of them, and
keeps boxes as sets of elements.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from random import Random

from dse.mapping.directives import Buffer, Layer, Step, TensorTile
from hw.arch import Arch, Fanout
from tests.nests import random_arch, random_einsum
from tests.rings import WALKED
from workloads.einsum import Einsum


def named(d):
    return "+".join(f"{c}*{rank}" if c != 1 else rank for rank, c in d.terms) or "0"


class Walked:
    """total: per (level, tensor, action); each: the same per buffer, by its places in the stacks; homeless: a
    product that no buffer can do, or None.
    """

    def __init__(self, layer: Layer, e: Einsum, arch: Arch) -> None:
        self.e, self.arch = e, arch
        self.buffers = [b for b in reversed(layer.buffers) if b.level != "mac"]
        self.tensors = {p.tensor: p for p in e.tensors()}
        self.sizes = [{one.tensor: dict(one.size) for one in b.tensors} for b in self.buffers]
        self.stacks = [[step for step in b.steps if step.repl] for b in self.buffers]
        # outermost first
        self.updates = [[step for step in reversed(b.steps) if not step.repl] for b in self.buffers]
        self.trips = [[self.iterations(v, step) for step in own] for v, own in enumerate(self.updates)]
        self.total, self.each, self.hops = Counter(), {}, Counter()
        self.held, self.met, self.begun, self.written = {}, {}, {}, set()
        self.joins = {
            name: (multicast, reduce)
            for f in arch.fanouts
            for (name, _), multicast, reduce in zip(f.dims, f.multicast, f.reduce, strict=True)
        }
        self.skips = {level.name for level in arch.levels if level.skip_first_read}
        self.homes = {}
        self.go()

    def iterations(self, v, step):
        """One more as long as the last box does not reach the end of what there is to go through."""
        most = {}
        for tensor, sizes in self.sizes[v].items():
            outer = next(
                (self.sizes[w][tensor] for w in range(v - 1, -1, -1) if tensor in self.sizes[w]), None
            )
            for d in self.tensors[tensor].dims:
                by = dict(step.moves).get(named(d), 0)
                if not by or outer is None:
                    continue
                rest = [
                    (dict(other.moves).get(named(d), 0), other)
                    for other in (*self.stacks[v], *self.updates[v])
                    if other is not step
                ]
                above = [n for n, _ in rest if n > by]
                for w in range(v - 1, 0, -1):  # levels between that the tensor passes by
                    if tensor in self.sizes[w]:
                        break
                    above += [
                        n
                        for other in (*self.stacks[w], *self.updates[w])
                        if (n := dict(other.moves).get(named(d), 0))
                    ]
                if above and len(d.terms) > 1:
                    continue
                end = min([outer[named(d)], *above])
                reach = sizes[named(d)]
                for n, other in rest:
                    if 0 < n < by or other.moves == step.moves:
                        reach += n * ((other.repl or self.iterations(v, other)) - 1)
                n = 1
                while end >= reach and (n - 1) * by + max(reach, by) < end:
                    n += 1
                most[named(d)] = max(n, most.get(named(d), 0))
        return min(most.values(), default=0)

    def lanes(self, v):
        """Places in all stacks down to a level."""
        return product(*(range(step.repl) for own in self.stacks[: v + 1] for step in own))

    def start(self, v, dim, lanes, times):
        steps = [step for own in self.stacks[: v + 1] for step in own]
        begun = sum(i * dict(step.moves).get(dim, 0) for i, step in zip(lanes, steps, strict=False))
        return begun + sum(
            i * dict(step.moves).get(dim, 0)
            for own, at in zip(self.updates[: v + 1], times, strict=False)
            for step, i in zip(own, at, strict=True)
        )

    def box(self, v, tensor, lanes, times):
        """Elements that a buffer may hold: those of its box that the boxes around it hold."""
        axes = []
        for d in self.tensors[tensor].dims:
            axis = set(range(d.size))
            for w in range(v + 1):
                if tensor in self.sizes[w]:
                    low = d.offset + self.start(w, named(d), lanes, times)
                    axis &= set(range(low, low + self.sizes[w][tensor][named(d)]))
            axes.append(sorted(axis))
        return set(product(*axes))

    def go(self) -> None:
        before = None
        for flat in product(*(range(n) for own in self.trips for n in own)):
            times, rest = [], list(flat)
            for own in self.trips:
                times.append(tuple(rest[: len(own)]))
                rest = rest[len(own) :]
            changed = next((v for v in range(len(times)) if before is None or times[v] != before[v]), None)
            for v in range(1, len(times)):
                if before is None or (changed is not None and v >= changed):
                    for tensor in self.sizes[v]:
                        self.step(v, tensor, times, anew=before is None or v > changed)
            before = times
        for v in range(1, len(self.sizes)):
            for tensor in self.sizes[v]:
                self.step(v, tensor, None, anew=True)
        self.compute()

    def step(self, v, tensor, times, anew) -> None:
        """All buffers of a level let go what they need no more and bring in what they do not have."""
        outer = max(w for w in range(v) if tensor in self.sizes[w])
        gone, wanted, border = {}, {}, sum(len(own) for own in self.stacks[: outer + 1])
        for lanes in self.lanes(v):
            key = v, tensor, lanes
            had = self.held.get(key, set())
            now = self.box(v, tensor, lanes, times) if times is not None else set()
            gone[lanes] = had - (set() if anew else now)
            new = now - (set() if anew else had)
            if tensor == self.e.output.tensor:
                known = self.met.setdefault(key, set())
                fresh = new - known if self.buffers[outer].level in self.skips else set()
                known |= new
                new -= fresh
                self.begun.setdefault(key, set()).update(fresh)
            wanted[lanes], self.held[key] = new, now
        name, outside = self.buffers[v].level, self.buffers[outer].level
        for elements, action, other in (
            (wanted, "write", "read"),
            *([(gone, "read", "write")] if tensor == self.e.output.tensor else []),
        ):
            for lanes, own in elements.items():
                self.add(name, tensor, action, lanes, len(own))
            self.add_joint(outside, tensor, other, border, elements, v)
            self.travel(v, outer, tensor, border, elements)
        if tensor == self.e.output.tensor:
            self.add_again(outside, tensor, border, gone, v)
            alike = {}
            for lanes, own in gone.items():
                alike.setdefault(lanes[:border], []).append(own)
            for own in alike.values():
                self.total["MAC", tensor, "merge"] += sum(map(len, own)) - len(set().union(*own))

    def add_joint(self, level, tensor, action, border, elements, v) -> None:
        """What is asked of one buffer outside: an element once for all that want it along dimensions that
        share.
        """
        steps = [step for own in self.stacks[: v + 1] for step in own]
        output = tensor == self.e.output.tensor
        asked = {}
        for lanes, own in elements.items():
            alone = tuple(
                -1 if i >= border and self.joins[steps[i].over][output] else n for i, n in enumerate(lanes)
            )
            asked.setdefault(alone, set()).update(own)
        for alone, own in asked.items():
            self.add(level, tensor, action, alone[:border], len(own))

    def add_again(self, level, tensor, border, gone, v) -> None:
        """What buffers that began with zero drain is added to what others drained before, and read for it."""
        steps = [step for own in self.stacks[: v + 1] for step in own]
        asked = {}
        for lanes, own in gone.items():
            begun = self.begun.get((v, tensor, lanes), set())
            alone = tuple(
                -1 if i >= border and self.joins[steps[i].over][True] else n for i, n in enumerate(lanes)
            )
            asked.setdefault(alone, set()).update(own & begun)
            begun -= own
        for alone, own in asked.items():
            there = v, alone[:border]
            self.add(
                level, tensor, "read", alone[:border], len({x for x in own if (there, x) in self.written})
            )
            self.written |= {(there, x) for x in own}

    def travel(self, v, outer, tensor, border, elements) -> None:
        """Links of a mesh between two levels: of each element to, or from, all buffers that it comes to at
        once, from the corner or edge that is nearest.
        """
        order = [level.name for level in self.arch.levels]
        for f in self.arch.fanouts:
            if not f.hop_pj or not order.index(self.buffers[outer].level) < f.outside <= order.index(
                self.buffers[v].level
            ):
                continue
            names, output = [name for name, _ in f.dims], tensor == self.e.output.tensor
            inner_first = [
                (w, i) for w in reversed(range(len(self.stacks))) for i in range(len(self.stacks[w]))
            ]
            (y0, rows), (x0, columns) = f.mesh_region or tuple((0, n) for _, n in f.dims)
            sources = [
                (y, x)
                for y in range(rows)
                for x in range(columns)
                if x in (0, columns - 1) and (f.injected_at == "edge" or y in (0, rows - 1))
            ]
            asked = {}
            for lanes, own in elements.items():
                at, place, stride = {}, {names[0]: y0, names[1]: x0}, dict.fromkeys(names, 1)
                flat = list(lanes)
                for w in range(v + 1):
                    for i in range(len(self.stacks[w])):
                        at[w, i] = flat.pop(0)
                for w, i in inner_first:
                    step = self.stacks[w][i]
                    if step.over in names and (w, i) in at:
                        place[step.over] += stride[step.over] * at[w, i]
                        stride[step.over] *= step.repl
                lane = place[names[0]], place[names[1]]
                alone = tuple(None if self.joins[name][output] else place[name] for name in names)
                for element in own:
                    asked.setdefault((lanes[:border], element, alone), set()).add(lane)
            self.hops[f.name, tensor] += sum(
                min(WALKED[f.multicast_from](source, places) for source in sources)
                for places in asked.values()
            )

    def add(self, level, tensor, action, lanes, n) -> None:
        self.total[level, tensor, action] += n
        self.each.setdefault(lanes, Counter())[level, tensor, action] += n

    def compute(self) -> None:
        """Each product where its boxes begin first; of several such places the first in the order of the
        text.
        """
        last = len(self.sizes) - 1
        steps = [step for own in self.stacks for step in own]
        innermost = {t: max(v for v in range(last + 1) if t in self.sizes[v]) for t in self.tensors}
        places = []
        for lanes in self.lanes(last):
            for flat in product(*(range(n) for own in self.trips for n in own)):
                times, rest = [], list(flat)
                for own in self.trips:
                    times.append(tuple(rest[: len(own)]))
                    rest = rest[len(own) :]
                starts = [self.start(last, named(d), lanes, times) for p in self.e.tensors() for d in p.dims]
                order, rest = [], list(lanes)
                for own, at in zip(self.stacks, times, strict=True):
                    order += [*rest[: len(own)], *at]
                    rest = rest[len(own) :]
                places.append((sum(starts), tuple(order), lanes, times))
        left = set(product(*(range(n) for _, n in self.e.extents)))
        seen = set()
        self.homeless = None
        for _, _, lanes, times in sorted(places):
            done = self.possible(left, lanes, times, innermost)
            left -= done
            for point in sorted(done):
                self.total["MAC", "-", "compute"] += 1
                self.each.setdefault(lanes, Counter())["MAC", "-", "compute"] += 1
                self.touch(point, lanes, steps, innermost, seen)
        if left:
            self.homeless = min(left)

    def possible(self, left, lanes, times, innermost):
        """Products whose values of all ranks lie here, and in all boxes around: of a rank that stands alone
        in a tensor those of its boxes, of another one those with which every window holds all that the others
        may ask for.
        """
        sizes = self.e.sizes()
        allowed = {rank: set(range(n)) for rank, n in sizes.items()}
        for w, own in enumerate(self.sizes):
            axes = [
                (d, range(low := self.start(w, named(d), lanes, times), low + own[t][named(d)]))
                for t in own
                for d in self.tensors[t].dims
            ]
            here = {}
            for d, axis in axes:
                if len(d.terms) == 1:
                    ((rank, c),) = d.terms
                    values = [x for x in range(-(-axis.start // c), axis.stop) if c * x in axis][
                        : sizes[rank]
                    ]
                    here[rank] = here.get(rank, set(values)) & set(values)
            for d, axis in axes:
                for rank, c in d.terms:
                    if rank not in here:
                        others = [[k * x for x in here[r]] for r, k in d.terms if r != rank]
                        values = {
                            x
                            for x in range(-axis.stop, axis.stop)
                            if all(c * x + sum(rest) in axis for rest in product(*others))
                        }
                        here[rank] = values
            for rank in set(sizes) - set(here):  # no tensor here has it
                steps = [by for step in (*self.stacks[w], *self.updates[w]) if (by := self.along(step, rank))]
                if steps:
                    stacks = [step for own in self.stacks[: w + 1] for step in own]
                    low = sum(i * self.along(step, rank) for step, i in zip(stacks, lanes, strict=False))
                    low += sum(
                        i * self.along(step, rank)
                        for steps, at in zip(self.updates[: w + 1], times, strict=False)
                        for step, i in zip(steps, at, strict=True)
                    )
                    here[rank] = set(range(low, low + min(steps)))
            for rank, values in here.items():
                allowed[rank] &= values
        ranks = [rank for rank, _ in self.e.extents]
        return {
            point for point in left if all(x in allowed[rank] for rank, x in zip(ranks, point, strict=True))
        }

    def along(self, step, rank):
        """How far a step moves a rank, if it is the one that it moves."""
        unit = {named(d): c for p in self.e.tensors() for d in p.dims for r, c in d.terms if r == rank}
        by = {n // unit[dim] for dim, n in step.moves if dim in unit}
        return by.pop() if len(by) == 1 and {dim for dim, _ in step.moves} == set(unit) else 0

    def touch(self, point, lanes, steps, innermost, seen) -> None:
        env = dict(zip((rank for rank, _ in self.e.extents), point, strict=True))
        for tensor, v in innermost.items():
            p, output = self.tensors[tensor], tensor == self.e.output.tensor
            element = tuple(sum(c * env[rank] for rank, c in d.terms) for d in p.dims)
            border = sum(len(own) for own in self.stacks[: v + 1])
            fresh = output and self.buffers[v].level in self.skips and (lanes[:border], element) not in seen
            dims = {named(d) for d in p.dims}
            if any(
                n > 0 and self.joins[step.over][output] and not dims & {dim for dim, _ in step.moves}
                for n, step in zip(lanes[border:], steps[border:], strict=True)
            ):
                continue
            if not fresh:
                self.add(self.buffers[v].level, tensor, "read", lanes[:border], 1)
            if output:
                seen.add((lanes[:border], element))
                self.add(self.buffers[v].level, tensor, "write", lanes[:border], 1)


KINDS = ("gemm", "bmm", "conv", "conv1d", "conv1d", "depthwise", "grouped", "pool", "add", "copy")


def random_directives(rng: Random) -> tuple[Layer, Einsum, Arch]:
    """Steps that mostly go through all of an einsum, tensors that are often larger than the steps: some are
    refused.
    """
    while True:
        e, arch = random_einsum(rng, KINDS), random_arch(rng)
        arch = replace(arch, fanouts=tuple(meshed(f, rng) for f in arch.fanouts))
        buffers, places = [], 1
        tile = e.sizes()
        outer = {p.tensor: sized(p, tile) for p in e.tensors()}
        sizes = {}
        for v, level in enumerate(arch.levels):
            steps: list[Step] = []
            dims = [dim for f in arch.fanouts if f.outside == v for dim in f.dims]
            lanes = {name: (rng.choice([*tile, ""]) if rng.random() < 0.8 else None) for name, _ in dims}
            for name, n in dims:
                rank = lanes[name]
                if n == 4 and rank and rng.random() < 0.4:
                    other = rng.choice(sorted(tile))  # two stacks along one dimension
                    if other != rank and other not in lanes.values():
                        steps += turned(rng, e, tile, other, name, 2)
                        lanes[f"{name}, further out"], n = other, 2
                if rank == "" and rng.random() < 0.2:
                    steps.append(Step((), rng.randint(2, n), name))
                elif rank and list(lanes.values()).count(rank) == 1:
                    steps += turned(rng, e, tile, rank, name, rng.randint(1, n))
            for rank in rng.sample(sorted(tile), min(len(tile), rng.randint(0, 3))) if v else ():
                if rank not in lanes.values() and tile[rank] > 1:
                    steps += turned(rng, e, tile, rank, "", 0)
            held = []
            for p in e.tensors():
                if v == 0 or not level.bypass or rng.random() < 0.85:
                    own = sized(p, tile)
                    extra = v and p is not e.output and rng.random() < 0.4
                    sizes[p.tensor] = {
                        dim: min(
                            n + (rng.randint(0, 2) if extra else 0), outer[p.tensor][dim] + rng.randint(0, 1)
                        )
                        for dim, n in own.items()
                    }
                    outer[p.tensor] = sizes[p.tensor]
                    held.append(TensorTile(p.tensor, tuple(sizes[p.tensor].items())))
            inner = [step for step in steps if not step.repl]
            rng.shuffle(inner)
            buffers.append(Buffer(level.name, tuple(held), (*(step for step in steps if step.repl), *inner)))
            places *= 1 + len(inner)
        layer = Layer(e.name, tuple(reversed(buffers)))
        if e.points() <= 400 and all(b.tensors for b in layer.buffers):
            return layer, e, arch


def meshed(f: Fanout, rng: Random) -> Fanout:
    """A fan-out of two dimensions as a part of a mesh."""
    if len(f.dims) < 2:
        return f
    place = tuple((rng.randint(0, 2), n + rng.randint(2, 4)) for _, n in f.dims)
    return replace(
        f,
        hop_pj=1.0,
        multicast_from=rng.choice(["same_level", "next_level"]),
        injected_at=rng.choice(["corners", "edge"]),
        mesh_region=place,
    )


def sized(p, tile):
    return {named(d): 1 + sum(c * (tile[rank] - 1) for rank, c in d.terms) for d in p.dims}


def turned(rng: Random, e: Einsum, tile: dict[str, int], rank: str, over: str, lanes: int) -> list[Step]:
    """Steps along a rank, and what they leave inside; results lie side by side, other ranks may overlap."""
    n, apart = tile[rank], any(rank in d.ranks() for d in e.output.dims)
    by = lambda s: tuple(
        sorted({(named(d), s * c) for p in e.tensors() for d in p.dims for r, c in d.terms if r == rank})
    )
    more = lambda s, most: s if apart else rng.randint(s, max(s, most))
    if not over:
        s = rng.randint(1, n)
        tile[rank] = more(s, n)
        return [Step(by(s))]
    form = rng.choice(["side by side", "overlapping", "shared out", "folded"])
    shift = -(-n // lanes)
    if form == "overlapping" and not apart:
        shift = rng.randint(1, shift)
        tile[rank] = max(n - shift * (lanes - 1), 1)
        return [Step(by(shift), lanes, over)]
    if form == "shared out" and shift > 1:
        s = rng.randint(1, shift)
        tile[rank] = more(s, shift)
        return [Step(by(shift), lanes, over), *([Step(by(s))] if s < shift else [])]
    if form == "folded" and n > lanes:
        s = rng.randint(1, max(n // lanes, 1))
        tile[rank] = more(s, s + 1)
        return [Step(by(s), lanes, over), *([Step(by(s * lanes))] if s * lanes < n else [])]
    tile[rank] = shift
    return [Step(by(shift), lanes, over)]

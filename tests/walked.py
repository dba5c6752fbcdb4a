"""Walks whole schedules element by element: what moves, what is held when, and that nothing is read before it
is complete. Shares no code with dse/sim.

Each einsum of a segment is walked by `tests/oracle.py` over its own nest; shared loops and nodes are walked
here, around all of them. The stages of a pipeline are walked granule by granule; of what they hold meanwhile,
granule b of a tensor is alive from the turn of its maker to that of its last reader.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import product
from math import ceil, prod

from dse.mapping.nest import Loop, Mapping, Store
from dse.mapping.schedule import Branch, Retained, Schedule, Segment
from hw.arch import Arch
from tests.oracle import Tally, Walk, whole_room
from tests.oracle import width as width_at
from workloads.einsum import Einsum
from workloads.graph import Workload, base_tensor


@dataclass
class Stage(Walk):
    """One einsum's walk below a fork. held: nodes that are filled in the first granule only; first: whether
    this is it.

    alive: (level, tensor, node) -> elements that the first lane holds now; moments: all that were alive at
    one time.
    """

    held: tuple = ()
    first: bool = True
    alive: dict = field(default_factory=dict)
    moments: set = field(default_factory=set)
    visits: Counter = field(default_factory=Counter)
    sums: Counter = field(default_factory=Counter)
    whole: tuple = ()  # stores that may not sink
    gathered: tuple = ()  # stores of sums that several lanes have a part of
    # (tensor, element, is it written), in time, of all stages of the segment
    events: list = field(default_factory=list)
    trips: int = 0  # how often the first lanes begin with their nest

    def rest(self, i, p):
        return i if self.mapping.nodes[i] in self.whole else super().rest(i, p)

    def fill(self, at, node, tensor, parent, elements, output):
        if self.first or node not in self.held:
            return super().fill(at, node, tensor, parent, elements, output)
        return []

    def store(self, at, node, env):
        super().store(at, node, env)
        if node in self.gathered:  # the first lane gets what all of them have added up
            elements = self.box(self.e.output, env, clip=True)
            self.add(at, node.level, node.tensor, "read", len(elements))
            self.merge((-1, ""), self.e.output, elements)
            if not self.share(self.e.output, (-1, "")):
                self.add(at, node.level, node.tensor, "write", len(elements))

    def go(self, at, env):
        pushed = []
        if all(lane == 0 for _, _, lane in self.lanes):
            for tensor, level in self.resting[at]:
                key = (level, tensor.tensor, at)
                pushed.append((key, self.alive.get(key)))
                self.alive[key] = self.room(tensor, level, self.box(tensor, env, clip=False))
                self.visits[level, tensor.tensor] += (
                    self.first or Store(level, tensor.tensor) not in self.held
                )
            if at == len(self.mapping.nodes):
                self.moments.add(
                    frozenset(((level, tensor), n) for (level, tensor, _), n in self.alive.items())
                )
        super().go(at, env)
        for key, before in pushed:
            if before is None:
                del self.alive[key]
            else:
                self.alive[key] = before

    def compute(self, env):
        super().compute(env)
        (element,) = self.box(self.e.output, env, clip=False)
        self.sums[element] += 1
        self.events.append(
            [(p.tensor, x, p is self.e.output) for p in self.e.tensors() for x in self.box(p, env, clip=True)]
        )


@dataclass
class Walked:
    """Of a schedule: tallies per einsum, peak bits per level of every segment, faults of meaning; tensors
    read out of other stages' lanes.

    less: per segment and level, bits that kept tensors need less at any time than their sum, since one takes
    the place of another.
    """

    tallies: dict
    peaks: list
    wrong: list
    remote: set
    less: list


def walk_schedule(arch: Arch, workload: Workload, schedule: Schedule) -> Walked:
    """Kept tensors: all that is moved where they lie as their nests say, and where they lie inside, mixed by
    the share of each.
    """
    levels = [level.name for level in arch.levels]
    own = names_of(workload)
    spread = {
        k.tensor for k in schedule.retained if any(f.outside <= levels.index(k.level) for f in arch.fanouts)
    }
    far = [SegmentWalk(arch, workload, segment, schedule, {}).run() for segment in schedule.segments]
    inside = {
        t: k.level for k in schedule.retained if k.tensor not in spread for t in own if own[t] == k.tensor
    }
    near = [SegmentWalk(arch, workload, segment, schedule, inside).run() for segment in schedule.segments]
    life = Life(workload, schedule)
    tallies, peaks, wrong = {}, [], []
    for i, (a, z) in enumerate(zip(far, near, strict=True)):
        for name in a.stages:
            x, y = a.stages[name].tally, z.stages[name].tally
            share = {
                t: life.before(k, name)
                if a.e[name].output.tensor == t or not a.hands(k.tensor)
                else Fraction(0)
                for k in schedule.retained
                for t in own
                if own[t] == k.tensor
            }
            lanes = {
                at: mixed(x.lanes.get(at, Counter()), y.lanes.get(at, Counter()), share)
                for at in x.lanes | y.lanes
            }
            tally = tallies[name] = Tally(mixed(x.total, y.total, share), lanes)
            for k in schedule.retained:
                instances = prod(
                    n for f in arch.fanouts if f.outside <= levels.index(k.level) for _, n in f.dims
                )
                mine = [p for p in a.e[name].tensors() if own[p.tensor] == k.tensor]
                # what lies in other lanes comes from there, not from the outermost level
                far_off = [p.tensor for p in mine] if k.tensor in spread else []
                for t, action in product(far_off, ("read", "write")):
                    evenly(
                        tally,
                        (k.level, t, action),
                        share[t] * Fraction(x.total[levels[0], t, action]),
                        instances,
                    )
                    for counts in (tally.total, *tally.lanes.values()):
                        counts[levels[0], t, action] *= 1 - share[t]
                for level, action, more in life.moves(k, name):
                    evenly(
                        tally,
                        (level or levels[0], mine[0].tensor, action),
                        more * whole_room(mine[0], arch.word_bits),
                        instances if level else 1,
                    )
        wrong += a.wrong
        peaks.append(a.peak(i, workload, schedule))
    less = [a.less(i, schedule, life) for i, a in enumerate(far)]
    return Walked(
        tallies,
        peaks,
        wrong,
        {
            t
            for a in far
            for node in a.segment.nodes
            if isinstance(node, Store) and a.lies_in_lanes(node)
            for t in own
            if own[t] == node.tensor
        },
        less,
    )


def outermost(arch: Arch, workload: Workload, schedule: Schedule) -> list:
    """Bits that lie at the outermost level while each segment runs: tensors come when they are made, those
    from outside are there; they go after the last segment that reads them. Weights, and what nobody reads or
    a loop hands on, never go.
    """
    own, levels, life = names_of(workload), [level.name for level in arch.levels], Life(workload, schedule)
    # a further access of one from outside, too
    own = {t: t.removesuffix("_again") if t.removesuffix("_again") in own else one for t, one in own.items()}
    e = {e.name: e for e in workload.einsums}
    bits = {
        own[p.tensor]: int(whole_room(p, arch.word_bits) * (p.bits or arch.word_bits))
        for one in workload.einsums
        for p in one.tensors()
    }
    made, stay = (
        {one.output.tensor for one in workload.einsums},
        workload.weights | {after for after, _ in workload.loop_state},
    )
    stored = {
        own[n.tensor]
        for s in schedule.segments
        for n in (*s.nodes, *(n for b in s.branches for n in b.mapping.nodes))
        if isinstance(n, Store) and n.level == levels[0]
    }
    for k in schedule.retained:
        if k.tensor in made:
            bits[k.tensor] = ceil(bits[k.tensor] * (1 - k.share + life.written[k.tensor]))
    there, found = stored - made, []
    left = [{own[p.tensor] for b in s.branches for p in e[b.einsum].inputs} for s in schedule.segments]
    read = set().union(*left)
    for i, segment in enumerate(schedule.segments):
        there = there | (stored & {e[b.einsum].output.tensor for b in segment.branches})
        found.append(sum(bits[t] for t in there))
        there = there & (stay | (made - read) | set().union(*left[i + 1 :]))
    return found


def names_of(workload: Workload) -> dict:
    """The tensor that each name in the einsums means: T_again is T, where T is made."""
    made = {e.output.tensor for e in workload.einsums}
    return {p.tensor: base_tensor(p.tensor, made) for e in workload.einsums for p in e.tensors()}


class Life:
    """What is kept of a tensor, event by event: einsums in the order of the schedule, each with the share
    before it and after it.
    """

    def __init__(self, workload: Workload, schedule: Schedule) -> None:
        e, own = {e.name: e for e in workload.einsums}, names_of(workload)
        results = {after for after, _ in workload.loop_state}
        self.segment = {b.einsum: i for i, s in enumerate(schedule.segments) for b in s.branches}
        self.made, self.events, self.written = {}, {}, {}
        for k in schedule.retained:
            users = [name for name in self.segment if k.tensor in {own[p.tensor] for p in e[name].tensors()}]
            self.made[k.tensor] = e[users[0]].output.tensor == k.tensor
            now, rows = Fraction(0), []
            for name in users:
                before = now
                now = k.share if name == users[0] else dict(k.later_shares).get(name, now)
                rows.append(
                    (
                        name,
                        k.share if name == users[0] and self.made[k.tensor] else before,
                        now if name != users[-1] else Fraction(0),
                    )
                )
            self.events[k.tensor] = rows
            found = [before for _, before, _ in rows[1:]]  # what nobody finds here must be further out
            self.written[k.tensor] = max(
                k.share - min([Fraction(0)] if k.tensor in results else found), Fraction(0)
            )

    def before(self, k: Retained, name: str) -> Fraction:
        return next((before for own, before, _ in self.events[k.tensor] if own == name), Fraction(0))

    def moves(self, k: Retained, name: str) -> list:
        """(level, "" the outermost; action; share) that keeping itself moves."""
        for i, (own, before, after) in enumerate(self.events[k.tensor]):
            if own == name and i == 0 and self.made[k.tensor]:
                return (
                    [(k.level, "read", self.written[k.tensor]), ("", "write", self.written[k.tensor])]
                    if self.written[k.tensor]
                    else []
                )
            if own == name and after > before:
                return [(k.level, "write", after - before)]
        return []

    def during(self, k: Retained, segment: int) -> Fraction:
        """The most that is there while a segment runs."""
        found, now = Fraction(0), Fraction(0)
        for name, before, after in self.events[k.tensor]:
            if self.segment[name] > segment:
                break
            if self.segment[name] == segment:
                found = max(found, now, before, after)
            now = after
        return max(found, now)


def evenly(tally: Tally, key: tuple, n: Fraction, instances: int) -> None:
    """Spread over all instances of a level: those that do something have an even part."""
    if n:
        tally.total[key] += n
        for counts in [
            own for own in tally.lanes.values() if any(level == key[0] for level, _, _ in own)
        ] or [tally.lanes.setdefault((), Counter())]:
            counts[key] += n / instances


def mixed(far: Counter, near: Counter, share: dict) -> Counter:
    return Counter(
        {
            key: (1 - share.get(key[1], 0)) * Fraction(far[key]) + share.get(key[1], 0) * Fraction(near[key])
            for key in far | near
        }
    )


@dataclass
class SegmentWalk:
    arch: Arch
    workload: Workload
    segment: Segment
    schedule: Schedule
    kept: dict
    stages: dict = field(default_factory=dict)
    shared: dict = field(default_factory=dict)  # position of a shared node -> elements that it holds now
    moments: set = field(default_factory=set)
    visits: Counter = field(default_factory=Counter)
    wrong: list = field(default_factory=list)
    granule: int = 0
    # (position of a shared node, how often it has been filled) -> (trip, branch) that have its tensor
    touched: dict = field(default_factory=dict)
    events: list = field(default_factory=list)

    def __post_init__(self):
        self.e = {e.name: e for e in self.workload.einsums}
        self.levels = [level.name for level in self.arch.levels]
        self.names = [b.einsum for b in self.segment.branches]
        stores = [(i, n) for i, n in enumerate(self.segment.nodes) if isinstance(n, Store)]
        self.home = {n.tensor: i for i, n in stores}
        self.own = names_of(self.workload)
        self.users = {
            t: [name for name in self.names if t in {self.own[p.tensor] for p in self.e[name].tensors()}]
            for t in self.home
        }
        region = {one.dim for b in self.segment.branches for one in b.region}
        self.fan = next((f for f in self.arch.fanouts if region & {d for d, _ in f.dims}), None)
        for b in self.segment.branches:
            self.stages[b.einsum] = self.stage(b, self.e[b.einsum])

    def lies_in_lanes(self, node: Store) -> bool:
        return self.fan is not None and self.levels.index(node.level) >= self.fan.outside

    def stage(self, b: Branch, e: Einsum) -> Stage:
        own = list(b.mapping.nodes)
        homes = [
            self.segment.nodes[at]
            for t, at in self.home.items()
            if self.lies_in_lanes(self.segment.nodes[at]) and self.users[t][0] == e.name
        ]
        if homes:
            dims = {d for d, _ in self.fan.dims}
            lead = 0
            while lead < len(own) and isinstance(own[lead], Loop) and own[lead].over in dims:
                lead += 1
            parted = {n.rank for n in own[:lead]} - e.output.ranks()
            own[lead:lead] = homes
        dead = [
            n
            for n in own
            if isinstance(n, Store)
            and n.tensor in self.kept
            and self.levels.index(n.level) <= self.levels.index(self.kept[n.tensor])
        ]
        return Stage(
            Mapping(tuple(n for n in own if n not in dead)),
            e,
            self.arch,
            held=b.filled_once,
            whole=tuple(homes),
            events=self.events,
            gathered=tuple(homes) if homes and parted else (),
        )

    def run(self) -> SegmentWalk:
        for stage in self.stages.values():
            for p in stage.e.tensors():
                chain = stage.holders.setdefault(p.tensor, [])
                if p.tensor in self.kept:
                    chain.append((-1000, self.kept[p.tensor]))
                began = {
                    n.tensor
                    for i, n in enumerate(self.segment.nodes)
                    if isinstance(n, Store) and n.tensor == self.own[p.tensor]
                }
                if began:  # the outermost node stands in the shared part: nodes of its own nest may sink
                    self.resink(stage)
        self.go(0, {name: {rank: (0, n) for rank, n in self.e[name].extents} for name in self.names})
        for stage in self.stages.values():
            # what stands alone never leaves its arrays
            stage.folded(stage.trips if len(self.names) > 1 else 1)
        return self

    def resink(self, stage: Stage) -> None:
        """Nodes of the own nest rest where `rest` says, if a node further out exists."""
        shared = {n.tensor for n in self.segment.nodes if isinstance(n, Store)}
        begun = {t for t, own in self.own.items() if own in shared}
        stage.resting = [[] for _ in range(len(stage.mapping.nodes) + 1)]
        for i, node in enumerate(stage.mapping.nodes):
            if isinstance(node, Store):
                p = next(p for p in stage.e.tensors() if p.tensor == node.tensor)
                stage.resting[
                    stage.rest(i, p) if node.tensor in begun and node not in stage.whole else i
                ].append((p, node.level))
                begun.add(node.tensor)

    def go(self, at: int, envs: dict) -> None:
        nodes = self.segment.nodes
        for i, p, name in self.resting(at):
            held = self.stages[name].room(p, nodes[i].level, self.stages[name].box(p, envs[name], clip=False))
            if all(lane == 0 for _, _, lane in self.stages[name].lanes):
                self.shared[i] = max(held, self.shared.get(i, 0))
                self.visits[nodes[i]] += 1
        if at == len(nodes):
            self.fork(envs)
            self.granule += 1
            return
        node = nodes[at]
        if isinstance(node, Store):
            return self.store(at, node, envs)
        starts = {name: range(*envs[name][self.rank(node, name)], node.tile) for name in self.names}
        for lane in range(len(starts[self.names[0]])):
            inner = {}
            for name in self.names:
                rank = self.rank(node, name)
                low = starts[name][lane]
                inner[name] = {**envs[name], rank: (low, min(low + node.tile, envs[name][rank][1]))}
                if node.over:
                    self.stages[name].lanes.append((at - len(nodes), Loop(rank, node.tile, node.over), lane))
            self.go(at + 1, inner)
            if node.over:
                for name in self.names:
                    self.stages[name].lanes.pop()

    def rank(self, loop: Loop, name: str) -> str:
        branch = next(b for b in self.segment.branches if b.einsum == name)
        return dict(branch.ranks).get(loop.rank, loop.rank)

    def resting(self, at: int) -> list:
        """Shared nodes that come to rest just above a position: (their position, projection, einsum that
        fills it); the outermost of a tensor stays.
        """
        found, begun = [], set()
        for i, node in enumerate(self.segment.nodes):
            if not isinstance(node, Store) or self.lies_in_lanes(node):
                continue
            name = self.users[node.tensor][0]  # who fills it
            p = next(p for p in self.e[name].tensors() if p.tensor == node.tensor)
            if at == (i if node.tensor not in begun else self.sunk(i, p, name)):
                found.append((i, p, name))
            begun.add(node.tensor)
        return found

    def sunk(self, i: int, p, name: str) -> int:
        alone = {d.terms[0][0] for d in p.dims if len(d.terms) == 1 and d.terms[0][1] == 1}
        own = {rank for d in p.dims for rank, _ in d.terms}
        for j in range(i + 1, len(self.segment.nodes)):
            node = self.segment.nodes[j]
            if isinstance(node, Store) and self.meets(j, name):
                return j
            if isinstance(node, Store):
                continue
            if node.over or self.rank(node, name) not in own:
                return j
            if self.rank(node, name) not in alone:
                return j + 1
        return len(self.segment.nodes)

    def meets(self, j: int, name: str) -> bool:
        """Whether an einsum has a shared node on its way: it fills it, or reads what another has put
        there."""
        users = self.users[self.segment.nodes[j].tensor]
        return (
            name in users
            and (name == users[0] or j == self.home[self.segment.nodes[j].tensor])
            and not self.lies_in_lanes(self.segment.nodes[j])
        )

    def store(self, at: int, node: Store, envs: dict) -> None:
        if self.lies_in_lanes(node):
            return self.go(at + 1, envs)
        if node.tensor in self.kept and self.levels.index(node.level) <= self.levels.index(
            self.kept[node.tensor]
        ):
            return self.go(at + 1, envs)
        first, *others = self.users[node.tensor]
        position = at - len(self.segment.nodes)
        w = self.stages[first]
        p = next(p for p in w.e.tensors() if p.tensor == node.tensor)
        chain, output = w.holders[node.tensor], p is w.e.output
        elements = w.box(p, envs[first], clip=True)
        if chain:
            w.reached = len(w.box(p, envs[first], clip=False))
            Walk.fill(w, position, node, p, chain[-1], elements, output)
        chain.append((position, node.level))
        reached = [
            self.stages[name].holders[q.tensor]
            for name in others
            for q in self.e[name].tensors()
            if self.own[q.tensor] == node.tensor
        ]
        for other in reached if at == self.home[node.tensor] else ():
            other.append((position, node.level))
        self.go(at + 1, envs)
        chain.pop()
        for other in reached if at == self.home[node.tensor] else ():
            other.pop()
        if chain and output:
            parent_at, parent = chain[-1]
            w.add(position, node.level, node.tensor, "read", w.words(p, node.level, elements))
            w.merge(chain[-1], p, elements)
            if not w.share(p, chain[-1]):
                w.add(parent_at, parent, node.tensor, "write", w.words(p, parent, elements))

    def fork(self, envs: dict) -> None:
        for name in self.names:
            w = self.stages[name]
            w.first = self.granule == 0
            w.trips += all(lane == 0 for _, _, lane in w.lanes)
            for t, at in self.home.items():
                if name in self.users[t][1:] and self.lies_in_lanes(self.segment.nodes[at]):
                    for q in w.e.tensors():  # under each name by which it is read
                        if self.own[q.tensor] == t:
                            w.holders[q.tensor] = [(-1, self.segment.nodes[at].level)]
            self.complete(name, envs[name])
            w.go(0, envs[name])
            if all(lane == 0 for _, _, lane in w.lanes):
                self.touch(name)
                now = frozenset(self.shared.items())
                self.moments |= {(name, now, moment) for moment in w.moments}
                w.moments = set()

    def touch(self, name: str) -> None:
        """Notes that an einsum uses what its tensors' shared nodes hold now."""
        for i, node in enumerate(self.segment.nodes):
            if isinstance(node, Store) and name in self.users[node.tensor]:
                trips = self.touched.setdefault((i, self.visits[node]), {})
                trips.setdefault(self.granule, []).append(self.names.index(name))

    def alive_in(self, i: int) -> set:
        """Einsums that run while a shared node holds a tile: from its first use to its last where both fall
        in one trip; else all of them.
        """
        node, found = self.segment.nodes[i], set()
        pinned = self.pinned(self.users[node.tensor][0], node.level, node.tensor)
        for trips in (trips for (at, _), trips in self.touched.items() if at == i):
            used = sorted(at for own in trips.values() for at in own)
            always = len(trips) > 1 or pinned or self.fan
            found |= set(self.names if always else self.names[used[0] : used[-1] + 1])
        return found

    def complete(self, name: str, env: dict) -> None:
        """All that the einsum may read of what the segment makes has its whole sum by now."""
        for p in self.e[name].inputs:
            maker = next((m for m in self.names if self.e[m].output.tensor == self.own[p.tensor]), None)
            if maker is None:
                continue
            due = points(self.e[maker])
            for element in self.stages[name].box(p, env, clip=True):
                if self.stages[maker].sums[element] != due[element]:
                    self.wrong.append(
                        f"{name} reads {p.tensor}{element} after {self.stages[maker].sums[element]} "
                        f"of {due[element]} additions"
                    )
                    return

    def peak(self, number: int, workload: Workload, schedule: Schedule) -> dict:
        """Bits that one instance of each level holds at most, all stages of a pipeline under way."""
        level_of = {level.name: level for level in self.arch.levels}
        width = {p.tensor: p.bits or self.arch.word_bits for e in workload.einsums for p in e.tensors()}

        def bits(name, level, tensor, n, twice):
            e = self.e[name]
            own = next(p.tensor for p in e.tensors() if tensor in (p.tensor, self.own[p.tensor]))
            return (
                n * width_at(level, own, e, self.arch) * (2 if level_of[level].double_buffer and twice else 1)
            )

        nodes = self.segment.nodes
        often = len(schedule.segments) == 1  # the next run follows back to back
        alive = {t: self.alive_granules(t, often) for t in self.home}
        by_name: dict = {}
        shared_most: Counter = Counter()
        for name, shared, own in self.moments:
            held: Counter = Counter()
            for i, n in shared:
                node = nodes[i]
                handed = (
                    i == self.home[node.tensor]
                    and len(self.users[node.tensor]) > 1
                    and node.level != self.levels[0]
                )
                many = alive[node.tensor] if self.fan and handed else 0
                twice = (
                    not many
                    and self.visits[node] > 1
                    and not self.pinned(self.users[node.tensor][0], node.level, node.tensor)
                )
                room = bits(self.users[node.tensor][0], node.level, node.tensor, n * max(many, 1), twice)
                if not all(
                    self.kept_whole(user, node.level, node.tensor) for user in self.users[node.tensor]
                ) or self.hands(node.tensor):
                    shared_most[i] = max(shared_most[i], room)
            for (level, tensor), n in own:
                at = self.home.get(tensor)
                handed = (
                    at is not None
                    and nodes[at].level == level
                    and self.lies_in_lanes(nodes[at])
                    and self.users[tensor][0] == name
                )
                twice = self.stages[name].visits[level, tensor] > 1 and not self.pinned(name, level, tensor)
                if not self.kept_whole(name, level, tensor):
                    held[level] += (
                        bits(name, level, tensor, n * alive[tensor], False)
                        if handed
                        else bits(name, level, tensor, n, twice)
                    )
            by_name.setdefault(name, []).append(held)
        total: Counter = Counter()
        for level in self.levels[1:]:
            own = {name: max(held[level] for held in every) for name, every in by_name.items()}
            if not self.fan and schedule.weights == "pinned":  # what is pinned for another branch stays
                pins = {
                    name: self.pinned_bits(
                        Segment(
                            tuple(b for b in self.segment.branches if b.einsum == name), self.segment.nodes
                        ),
                        workload,
                        width,
                        True,
                    )
                    for name in own
                }
                own = {
                    name: n + sum(pins[other][level] for other in own if other != name)
                    for name, n in own.items()
                }
            held = {i: n for i, n in shared_most.items() if nodes[i].level == level}
            if self.fan and self.levels.index(level) < self.fan.outside:
                total[level] = sum(own.values()) + sum(held.values())
            else:
                beside = {name: sum(n for i, n in held.items() if name in self.alive_in(i)) for name in own}
                total[level] = max(own[name] + beside[name] for name in own)
        life = Life(workload, schedule)
        for keep in schedule.retained:
            share = life.during(keep, number)
            elems = max(
                whole_room(p, self.arch.word_bits)
                for e in workload.einsums
                for p in e.tensors()
                if p.tensor == keep.tensor
            )
            n = prod(
                size
                for f in self.arch.fanouts
                if f.outside <= self.levels.index(keep.level)
                for _, size in f.dims
            )
            total[keep.level] += -(-elems * share.numerator // (share.denominator * n)) * width[keep.tensor]
        for i, segment in enumerate(schedule.segments):
            if i != number and schedule.weights == "pinned":
                for level, n in self.pinned_bits(segment, workload, width).items():
                    total[level] += n
        return {level: n for level, n in total.items() if n}

    def less(self, number: int, schedule: Schedule, life: Life) -> Counter:
        """Bits that pairs of kept tensors, one read for the last time and one made, need less together than
        each at its most.
        """
        last, first = {}, {}
        for at, event in enumerate(self.events):
            for tensor, element, made in event:
                (first.setdefault if made else last.__setitem__)((self.own[tensor], element), at)
        found: Counter = Counter()
        gone = [
            k
            for k in schedule.retained
            if life.events[k.tensor][-1][0] in self.names and life.events[k.tensor][0][0] not in self.names
        ]
        new = [
            k for k in schedule.retained if life.made[k.tensor] and life.events[k.tensor][0][0] in self.names
        ]
        bits = {p.tensor: p.bits or self.arch.word_bits for e in self.e.values() for p in e.tensors()}
        for b in new:
            best = 0
            for a in gone:
                if a.level != b.level:
                    continue
                before, after = life.events[a.tensor][-1][1], life.during(b, number)
                reads = sorted(at for (t, _), at in last.items() if t == a.tensor)
                makes = sorted(at for (t, _), at in first.items() if t == b.tensor)
                elems = max(
                    prod(d.size for d in p.dims)
                    for e in self.e.values()
                    for p in e.tensors()
                    if p.tensor == a.tensor
                )
                both = max(
                    (
                        before * (elems - sum(r <= at for r in reads)) + after * sum(m <= at for m in makes)
                        for at in makes
                    ),
                    default=0,
                )
                n = prod(
                    size
                    for f in self.arch.fanouts
                    if f.outside <= self.levels.index(a.level)
                    for _, size in f.dims
                )
                best = max(
                    best,
                    (
                        max(before, life.during(a, number)) * elems
                        + after * len(makes)
                        - max(both, before * elems)
                    )
                    * bits[a.tensor]
                    / n,
                )
            found[b.level] += best
        return found

    def pinned_bits(
        self, segment: Segment, workload: Workload, width: dict, own_nests: bool = False
    ) -> Counter:
        """What the weights of another segment hold all the while: their tiles, of each stage of a pipeline in
        lanes of its own. own_nests: not what stands in the shared part.
        """
        own: list[Counter] = []
        for b in segment.branches:
            held: Counter = Counter()
            e = self.e[b.einsum]
            for p in e.inputs:
                at, node = next(
                    (i, n)
                    for i, n in enumerate((*segment.nodes, *b.mapping.nodes))
                    if isinstance(n, Store) and n.tensor == p.tensor
                )
                if (
                    p.tensor in workload.weights
                    and node.level != self.levels[0]
                    and not (own_nests and at < len(segment.nodes))
                ):
                    tile = e.sizes()
                    for loop in (*segment.nodes, *b.mapping.nodes)[:at]:
                        if isinstance(loop, Loop):
                            rank = dict(b.ranks).get(loop.rank, loop.rank)
                            tile[rank] = min(loop.tile, tile[rank])
                    n = 1
                    for d in p.dims:
                        n *= 1 + sum(c * (tile[rank] - 1) for rank, c in d.terms)
                    held[node.level] += n * width[p.tensor]
            own.append(held)
        staged = any(b.region for b in segment.branches)
        return Counter(
            {level: (max if staged else sum)(held[level] for held in own) for level in self.levels}
        )

    def pinned(self, name: str, level: str, tensor: str) -> bool:
        own = [
            n
            for n in (*self.segment.nodes, *self.stages[name].mapping.nodes)
            if isinstance(n, Store) and n.tensor == tensor
        ]
        return (
            tensor in self.workload.weights
            and self.schedule.weights == "pinned"
            and own[0].level == level != self.levels[0]
        )

    def hands(self, tensor: str) -> bool:
        """Whether einsums of the segment hand it on, on the chip: they read it there, kept or not."""
        made = tensor in {self.e[name].output.tensor for name in self.names}
        return (
            made
            and tensor in self.home
            and len(self.users[tensor]) > 1
            and self.segment.nodes[self.home[tensor]].level != self.levels[0]
        )

    def kept_whole(self, name: str, level: str, tensor: str) -> bool:
        life = Life(self.workload, self.schedule)
        spread = any(f.outside <= self.levels.index(level) for f in self.arch.fanouts)
        return not spread and any(
            k.tensor == self.own[tensor] and k.level == level and life.before(k, name) == 1
            for k in self.schedule.retained
        )

    def alive_granules(self, tensor: str, often: bool) -> int:
        """Granules of a tensor alive at one time: stage j works on granule b in turn b + j, and on those of
        the next run behind them.
        """
        turn = [self.names.index(name) for name in self.users[tensor]]
        granules = range(max(self.granule, 1) * (2 * len(self.names) if often else 1))
        return max(
            sum(b + turn[0] <= now <= b + turn[-1] for b in granules)
            for now in range(len(granules) + len(self.names))
        )


def points(e: Einsum) -> Counter:
    """How many products are added up in each element of the output."""
    found: Counter = Counter()
    ranks = [rank for rank, _ in e.extents]
    for index in product(*(range(n) for _, n in e.extents)):
        env = dict(zip(ranks, index, strict=True))
        found[tuple(d.offset + sum(c * env[rank] for rank, c in d.terms) for d in e.output.dims)] += 1
    return found

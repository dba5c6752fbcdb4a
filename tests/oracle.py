"""The oracle: walks a nest element by element and counts what moves. Shares no code with dse/sim.

It knows only what a nest means (docs/model.md): entering a storage node brings its tile in, leaving it drains
an output tile, compute touches one element of every tensor. Which lane an access belongs to, and whether an
output element was seen before, are kept as plain sets.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from itertools import product
from math import ceil, prod

from dse.mapping.nest import Loop, Mapping, Store
from hw.arch import Arch, Level
from workloads.einsum import Einsum, Projection


@dataclass
class Tally:
    """Elements per (level, tensor, action): of all instances, and per instance (its lanes); peak footprint
    per (level, tensor).
    """

    total: Counter = field(default_factory=Counter)
    lanes: dict = field(default_factory=dict)
    held: Counter = field(default_factory=Counter)


def width(level: str, tensor: str, e: Einsum, arch: Arch) -> int:
    """Bits of an element of a tensor at a level: what the level gives the tensor's part of the einsum, else
    what the tensor has, else a word.
    """
    (given,) = (dict(one.bits) for one in arch.levels if one.name == level)
    own = {p.tensor: p.bits for p in e.tensors()}[tensor]
    return int(given.get(part(tensor, e)) or own or arch.word_bits)


def part(tensor: str, e: Einsum) -> str:
    """Which part of the einsum a tensor is."""
    if e.output.tensor == tensor:
        return "output"
    return "input" if e.inputs[0].tensor == tensor else "weight"


def gate(level: Level, tensor: str, action: str, e: Einsum) -> tuple[str, float]:
    """The port that an access takes, and its rate over the level's."""
    if level.ports == "shared":
        return "any", 1.0
    within = {"fill": "write", "drain": "read"}.get(action, action)
    if level.ports == "separate":
        return within, 1.0
    # a port: what is read and written there, rates of both, what arrives from outside and leaves to it
    named = {"read": 0, "write": 1, "fill": 4, "drain": 5}
    if not any(part(tensor, e) in port[named[action]] for port in level.ports):  # type: ignore[operator]
        action = within
    ((number, times),) = (
        (number, port[2 + ("read", "write").index(within)])
        for number, port in enumerate(level.ports)
        if part(tensor, e) in port[named[action]]  # type: ignore[operator]
    )
    return f"no. {number}", float(times)  # type: ignore[arg-type]


def alone(arch: Arch, level: str) -> set[str]:
    """Dimensions of arrays along which a level has one instance for all lanes."""
    return {
        name
        for f in arch.fanouts
        for (name, _), levels in zip(f.dims, f.shared, strict=False)
        if level in levels
    }


@cache
def kept(density: float, form: str, index_bits: int) -> Fraction:
    """Values that are stored per element: the nonzeros, and of runs of zeros one wherever a run has as many
    more as its bits can count.
    """
    share = Fraction(density).limit_denominator(10**9)
    if form != "rle":
        return share
    zeros = sum(density * (1 - density) ** k * (k // 2**index_bits) for k in range(ceil(60 / density)))
    return share * Fraction(1 + zeros).limit_denominator(10**12)


def compressed_bits(tensor: Projection, elements: int, rows: int, word: int) -> int:
    share = kept(tensor.density, tensor.format, tensor.index_bits)
    values = (
        ceil(share * elements - Fraction(1, 2 * 10**6)) if tensor.format == "rle" else ceil(share * elements)
    )
    masks = elements if tensor.format == "bitmask" else 0
    return values * ((tensor.bits or word) + tensor.index_bits) + rows * tensor.pointer_bits + masks


def whole_room(tensor: Projection, word: int) -> Fraction:
    """What a tensor takes as it is stored, over the width of an element."""
    rows, columns = prod(dim.size for dim in tensor.dims[:-1]), tensor.dims[-1].size if tensor.dims else 1
    if tensor.format == "dense":
        return Fraction(rows * columns)
    return Fraction(compressed_bits(tensor, rows * columns, rows, word), tensor.bits or word)


@dataclass
class Walk:
    mapping: Mapping
    e: Einsum
    arch: Arch
    tally: Tally = field(default_factory=Tally)
    seen: set = field(default_factory=set)
    met: set = field(default_factory=set)
    written: set = field(default_factory=set)
    elements: set = field(default_factory=set)
    holders: dict = field(default_factory=dict)  # tensor -> [(position, level)], outermost first
    lanes: list = field(default_factory=list)  # (position, loop, lane)
    folds: dict = field(default_factory=dict)  # of systolic arrays
    reached: int = 0  # elements of the tile that arrives, and of padding around it
    holey: list = field(default_factory=list)  # operands with zeros, as the level that compute asks sees them

    def share(
        self, tensor: Projection, parent: tuple[int, str], level: str = "", apart: frozenset = frozenset()
    ) -> bool:
        """Whether another lane makes this access for us: a lower lane of a sharing loop that the tensor does
        not see, or one that has the same instance of the level that asks (none: compute). parent: position
        and level. apart: ranks along which no lane does.
        """
        own_level = alone(self.arch, level)
        if any(lane > 0 and loop.over in own_level for _, loop, lane in self.lanes):
            return True
        flags = self.together(tensor)
        own = {rank for dim in tensor.dims for rank, _ in dim.terms} | apart
        return any(
            lane > 0 and self.inside(at, loop, parent) and loop.rank not in own and flags[loop.over]
            for at, loop, lane in self.lanes
        )

    def together(self, tensor: Projection) -> dict:
        """Whether lanes along each dimension may share an access to a tensor."""
        flags = {}
        for f in self.arch.fanouts:
            for (name, _), multicast, reduce in zip(f.dims, f.multicast, f.reduce, strict=True):
                flags[name] = reduce if tensor.tensor == self.e.output.tensor else multicast
        return flags

    def inside(self, at: int, loop: Loop, parent: tuple[int, str]) -> bool:
        """Whether the lanes of a loop stand inside of one instance of a node's level."""
        return at > parent[0] or loop.over in alone(self.arch, parent[1])

    def in_format(self, tensor: Projection, level: str) -> Projection:
        """The tensor in the format that a level has for its part of the einsum, if it has zeros."""
        (formats,) = (own.formats for own in self.arch.levels if own.name == level)
        for of, form, index_bits, pointer_bits in formats:
            if of == part(tensor.tensor, self.e) and (tensor.density < 1 or tensor.format != "dense"):
                own = (tensor.index_bits, tensor.pointer_bits) if form == tensor.format else (0, 0)
                return replace(
                    tensor, format=form, index_bits=index_bits or own[0], pointer_bits=pointer_bits or own[1]
                )
        return tensor

    def words(self, tensor: Projection, level: str, elements: list, returns: bool = False) -> float:
        """What a tile of these elements moves at a level: all of them, or of a compressed tensor a value and
        an index per nonzero and a pointer per row, over a value's width. returns: partial sums that come
        back, without pointers.
        """
        tensor = self.in_format(tensor, level)
        if tensor.format == "dense":
            return len(elements)
        value = tensor.bits or self.arch.word_bits
        stored = kept(tensor.density, tensor.format, tensor.index_bits) * len(elements)
        return (
            stored * (value + tensor.index_bits)
            + (0 if returns else len({element[:-1] for element in elements}) * tensor.pointer_bits)
            + (len(elements) if tensor.format == "bitmask" else 0)
        ) / value

    def room(self, tensor: Projection, level: str, elements: list) -> Fraction:
        """What a tile of these elements takes at a level, over the width of one: of a compressed tensor whole
        nonzeros, as many as are expected.
        """
        tensor = self.in_format(tensor, level)
        if tensor.format == "dense":
            return Fraction(len(elements))
        word = self.arch.word_bits
        return Fraction(
            compressed_bits(tensor, len(elements), len({element[:-1] for element in elements}), word),
            tensor.bits or word,
        )

    def add(self, at: int, level: str, tensor: str, action: str, n: float, outside: str = "") -> None:
        """outside: whether it is a fill or a drain, for the memory outside."""
        self.tally.total[level, tensor, action] += n
        # the first word that is read of an operand at a level is waited for
        if action == "read" and tensor != self.e.output.tensor and self.latency.get(level):
            self.tally.total["-", level, "wait"] = 1
        self.tally.lanes.setdefault(
            tuple(
                lane
                for position, loop, lane in self.lanes
                if position < at and loop.over not in alone(self.arch, level)
            ),
            Counter(),
        )[level, tensor, outside or action] += n

    def box(self, tensor: Projection, env: dict, clip: bool) -> list:
        axes = []
        for dim in tensor.dims:
            low = dim.offset + sum(c * env[rank][0] for rank, c in dim.terms)
            high = dim.offset + sum(c * (env[rank][1] - 1) for rank, c in dim.terms)
            axes.append([i for i in range(low, high + 1) if not clip or 0 <= i < dim.size])
        return list(product(*axes))

    def go(self, at: int, env: dict) -> None:
        for tensor, level in self.resting[at]:
            held = (
                self.stands(tensor)
                if level == self.arch.levels[0].name
                else self.room(tensor, level, self.box(tensor, env, clip=False))
            )
            self.tally.held[level, tensor.tensor] = max(self.tally.held[level, tensor.tensor], held)
        if at == len(self.mapping.nodes):
            return self.compute(env)
        node = self.mapping.nodes[at]
        if isinstance(node, Store):
            return self.store(at, node, env)
        low, high = env[node.rank]
        for lane, start in enumerate(range(low, high, node.tile)):
            inner = {**env, node.rank: (start, min(start + node.tile, high))}
            if node.over:
                self.lanes.append((at, node, lane))
            self.go(at + 1, inner)
            if node.over:
                self.lanes.pop()

    def stands(self, tensor: Projection) -> Fraction:
        """Room in the memory that nothing fills: all that is stored of a tensor lies there all the time, once
        under all its names.
        """
        names = [p.tensor for p in self.e.tensors()]
        if (first := tensor.tensor.partition("_again")[0]) != tensor.tensor and first in names:
            return Fraction(0)
        return whole_room(tensor, self.arch.word_bits)

    def __post_init__(self) -> None:
        """Where the tile that each node holds is seen: the node itself if it is its tensor's first, else
        where it sinks to.
        """
        self.latency = {level.name: level.latency_ns for level in self.arch.levels}
        self.resting = [[] for _ in range(len(self.mapping.nodes) + 1)]
        begun = set()
        for i, node in enumerate(self.mapping.nodes):
            if isinstance(node, Store):
                tensor = next(p for p in self.e.tensors() if p.tensor == node.tensor)
                self.resting[self.rest(i, tensor) if node.tensor in begun else i].append((tensor, node.level))
                begun.add(node.tensor)

    def still(self, tensor: Projection, parent: str, child: str) -> None:
        """A tensor reaches the lanes of an array in which it stays still: what the first PE gets, padding
        too, is a fold each; with two registers in turn the array fills once. child "": compute takes it.
        """
        names = [level.name for level in self.arch.levels]
        for f in self.arch.fanouts:
            kept = {"os": self.e.output, "ws": self.e.inputs[-1], "is": self.e.inputs[0]}.get(f.systolic)
            inside = names.index(child) if child else len(names)
            if (
                kept is tensor
                and names.index(parent) < f.outside <= inside
                and all(lane == 0 for _, _, lane in self.lanes)
            ):
                twice = bool(child) and self.arch.levels[inside].double_buffer
                self.folds[f.name] = 1 if twice else self.folds.get(f.name, 0) + self.reached

    def folded(self, least: int = 1) -> None:
        """Folds of every systolic array, so many at least."""
        for f in self.arch.fanouts:
            if f.systolic:
                self.tally.total[f.name, "-", "fold"] = max(self.folds.get(f.name, 1), least)

    def stands_whole(self, i: int, p: Projection) -> bool:
        """Whether a tile stands whole at the node at i: lines bring it, or lines of it are asked for
        there."""
        above = [
            node.level
            for node in self.mapping.nodes[: i + 1]
            if isinstance(node, Store) and node.tensor == p.tensor
        ][-2:]
        lined = [level.name in above for level in self.arch.levels if level.access is not None]
        return any(lined) and p.format == "dense" and p.density == 1

    def slides(self, i: int, p: Projection) -> bool:
        """Whether a loop directly below the node at i moves a window of an input, in one dimension."""
        loop = self.mapping.nodes[i + 1] if i + 1 < len(self.mapping.nodes) else None
        if loop is None or isinstance(loop, Store) or loop.over or p.tensor == self.e.output.tensor:
            return False
        moved = [dim.terms for dim in p.dims if loop.rank in [rank for rank, _ in dim.terms]]
        return len(moved) == 1 and moved[0] != ((loop.rank, 1),)

    def rest(self, i: int, p: Projection) -> int:
        """Position just above which a node that starts at i comes to rest."""
        if self.stands_whole(i, p):
            return i + 1 + self.slides(i, p)
        alone = {dim.terms[0][0] for dim in p.dims if len(dim.terms) == 1 and dim.terms[0][1] == 1}
        own = {rank for dim in p.dims for rank, _ in dim.terms}
        j = i + 1
        while j < len(self.mapping.nodes):
            node = self.mapping.nodes[j]
            if isinstance(node, Store) or node.over or node.rank not in own:
                return j
            if node.rank not in alone:
                return j + 1
            j += 1
        return j

    def store(self, at: int, node: Store, env: dict) -> None:
        tensor = next(p for p in self.e.tensors() if p.tensor == node.tensor)
        chain = self.holders.setdefault(node.tensor, [])
        output = node.tensor == self.e.output.tensor
        elements, begun = self.box(tensor, env, clip=True), []
        if chain:
            self.reached = len(self.box(tensor, env, clip=False))
            begun = self.fill(at, node, tensor, chain[-1], elements, output)
        chain.append((at, node.level))
        self.go(at + 1, env)
        chain.pop()
        mine = all(not lane or loop.over not in alone(self.arch, node.level) for _, loop, lane in self.lanes)
        if chain and output and mine:
            parent_at, parent = chain[-1]
            self.add(at, node.level, node.tensor, "read", self.words(tensor, node.level, elements), "drain")
            self.merge(chain[-1], self.in_format(tensor, node.level), elements)
            if not self.share(tensor, chain[-1], node.level):
                self.add(parent_at, parent, node.tensor, "write", self.words(tensor, parent, elements))
                added = [x for x in begun if not self.first_there(at, chain[-1], x)]
                self.add(parent_at, parent, node.tensor, "read", self.words(tensor, parent, added, output))

    def merge(self, parent: tuple[int, str], tensor: Projection, elements: list) -> None:
        """The sums of all lanes but the first along ranks that the tensor does not see are added to another
        lane's, whether in the array or at the parent.
        """
        own = {rank for dim in tensor.dims for rank, _ in dim.terms}
        if any(
            lane > 0 and self.inside(at, loop, parent) and loop.rank not in own
            for at, loop, lane in self.lanes
        ):
            stored = 1 if tensor.format == "dense" else Fraction(tensor.density).limit_denominator(10**9)
            self.tally.total["MAC", tensor.tensor, "merge"] += stored * len(elements)

    def fill(
        self, at: int, node: Store, tensor: Projection, parent: tuple, elements: list, output: bool
    ) -> list:
        """What is not there is brought in; the elements that begin with zero are returned."""
        parent_at, level = parent
        self.still(tensor, level, node.level)
        if any(lane and loop.over in alone(self.arch, node.level) for _, loop, lane in self.lanes):
            return []
        begun = [x for x in elements if output and self.fresh(at, level, x)]
        wanted = [x for x in elements if x not in set(begun)]
        own = self.words(tensor, node.level, wanted, output)
        self.add(at, node.level, node.tensor, "write", own, "fill")
        if not self.share(tensor, parent, node.level):
            self.add(parent_at, level, node.tensor, "read", self.words(tensor, level, wanted, output))
        return begun

    def skips(self, level: str) -> bool:
        return next(v for v in self.arch.levels if v.name == level).skip_first_read

    def first_there(self, at: int, memory: tuple[int, str], element: tuple) -> bool:
        """The first time that anything is written to an element at one instance of a memory (position,
        level): there is nothing yet that it could be added to. Lanes whose sums are added up on the way (each
        at its own nonzeros they are not, and each begins anew) are told apart. at: where the sums come from.
        """
        joined = self.together(self.e.output)
        apart = tuple(
            (position, lane)
            for position, loop, lane in self.lanes
            if joined[loop.over] or not self.inside(position, loop, memory)
        )
        new = (at, apart, element) not in self.written
        self.written.add((at, apart, element))
        return new

    def fresh(self, at: int, level: str, element: tuple) -> bool:
        """The first time that this lane meets the element: it starts from zero, nothing is read."""
        if not self.skips(level):
            return False
        key = (
            at,
            tuple(lane for _, _, lane in self.lanes),
            tuple((loop.rank, loop.over) for _, loop, _ in self.lanes),
            element,
        )
        new = key not in self.seen
        self.seen.add(key)
        return new

    def compute(self, env: dict) -> None:
        # of the iterations that find all inputs nonzero: only they compute
        self.add(len(self.mapping.nodes), "MAC", "-", "compute", prod(p.density for p in self.e.inputs))
        for tensor in self.e.tensors():
            at, level = self.holders[tensor.tensor][-1]
            self.holey = self.seen_as_zeros(level)
            share = prod(p.density for p in self.holey)  # of the iterations that access this level
            if tensor is self.e.output and tensor.format != "dense" and len(self.holey) < len(self.zeros()):
                share = min(share, tensor.density)  # sums of gated zeros, too, have entries to go to
            (element,) = self.box(tensor, env, clip=False)
            output = tensor.tensor == self.e.output.tensor
            skip = (
                output
                and self.skips(level)
                and self.first_there(len(self.mapping.nodes), (at, level), element)
            )
            self.reached = 1
            self.still(tensor, level, "")
            met = output and self.meets(element, env)
            met_there = output and self.meets(element, env, (at, level))
            stepped = self.stepped(tensor)
            held = self.in_format(tensor, level)
            if self.share(tensor, (at, level), apart=frozenset() if stepped else self.apart()):
                continue
            if output and stepped:  # of each group its nonzeros are added, at once or one after the other
                self.add(at, level, tensor.tensor, "read", share - skip)
                self.add(at, level, tensor.tensor, "write", share)
                continue
            if stepped and self.takes_groups(held, stepped):
                self.add(at, level, tensor.tensor, "read", 1)
                continue
            if output and share < 1:
                self.add_up(at, level, held, skip, met, met_there, share)
                continue
            if not skip:
                self.add(
                    at,
                    level,
                    tensor.tensor,
                    "read",
                    share if output or held.format == "dense" else self.stored(held),
                )
            if output:
                self.add(at, level, tensor.tensor, "write", share)

    def meets(self, element: tuple, env: dict, memory: tuple[int, str] | None = None) -> bool:
        """Whether this lane meets the element at these places of operands with zeros for the first time; or,
        of a memory (as in `first_there`), whether it does.
        """
        joined = self.together(self.e.output)
        places = tuple((rank, env[rank][0]) for rank in sorted(self.apart() - self.own_ranks()))
        others = tuple(
            (at, lane)
            for at, loop, lane in self.lanes
            if loop.rank not in self.apart()
            and (memory is None or joined[loop.over] or not self.inside(at, loop, memory))
        )
        key = (element, places, others, memory is None)
        new = key not in self.met
        self.met.add(key)
        return new

    def distinct(self) -> int:
        """Elements of the output that the whole einsum meets, padding included."""
        if not self.elements:
            ranks, sizes = sorted(self.own_ranks()), dict(self.e.extents)
            for place in product(*(range(sizes[rank]) for rank in ranks)):
                at = dict(zip(ranks, place, strict=True))
                self.elements.add(
                    tuple(
                        dim.offset + sum(c * at[rank] for rank, c in dim.terms) for dim in self.e.output.dims
                    )
                )
        return len(self.elements)

    def own_ranks(self) -> frozenset:
        return frozenset(rank for dim in self.e.output.dims for rank, _ in dim.terms)

    def add_up(
        self, at: int, level: str, tensor: Projection, skip: bool, met: bool, met_there: bool, share: float
    ) -> None:
        """A product that is nonzero with probability `share` is added to an element that other places of
        operands with zeros add to as well.

        q of its K places are expected to be nonzero: below 1, the element is written as a zero with
        probability 1 - q, here spread over its K places. It is first written, and not read, min(q, 1) times
        where one lane does all, q times where K lanes do one each, whose sums the network adds up; between,
        on the line between.

        Of a compressed result products add to d of the elements, instead of 1, each with its index; a zero is
        written wherever a run of them is too long, somewhere in each row its pointer, of each element its bit
        of the mask.
        """
        places, iterations = 1, 1
        for rank, n in self.e.extents:
            places *= n if rank in self.apart() - self.own_ranks() else 1
            iterations *= n if rank in self.own_ranks() else 1
        expected = share * places * iterations / self.distinct()
        value = tensor.bits or self.arch.word_bits
        stored, entry, pointer, zeros = Fraction(1), Fraction(1), Fraction(0), Fraction(0)
        if tensor.format != "dense":
            stored = Fraction(tensor.density)
            entry = 1 + Fraction(tensor.index_bits, value)
            pointer = Fraction(tensor.pointer_bits, value * tensor.dims[-1].size)
        if tensor.format == "bitmask":
            pointer = Fraction(1, value)
        if tensor.format == "rle":
            zeros = kept(tensor.density, "rle", tensor.index_bits) - stored
        each_lane = (min(expected, places) - min(expected, stored)) / (places - 1) if places > 1 else 0
        first = met_there * (min(expected, stored) - each_lane) / places + skip * each_lane
        first = first if self.skips(level) else 0
        self.add(at, level, tensor.tensor, "read", float(entry * Fraction(share - first)))
        filled = (max(stored - expected, 0) + zeros) * entry
        written = share * entry + met * (filled + pointer) / places
        self.add(at, level, tensor.tensor, "write", float(written))

    def zeros(self) -> list:
        """Operands with zeros."""
        return [other for other in self.e.inputs if other.density < 1]

    def seen_as_zeros(self, level: str) -> list:
        """Operands at whose zeros a level is not accessed. A lane that gates a zero sits it out: it leaves
        memories of its own alone, but those that serve other lanes too send what all are to have.
        """
        at = [one.name for one in self.arch.levels].index(level)
        own = all(f.outside <= at for f in self.arch.fanouts) and not alone(self.arch, level)
        waits = () if own else self.arch.compute.gates
        return [other for other in self.zeros() if part(other.tensor, self.e) not in waits]

    def apart(self) -> frozenset:
        """Ranks whose lanes hold other parts of an operand with zeros that the level sees: each lane steps
        from nonzero to nonzero, and asks for other operands at its own.
        """
        return frozenset(rank for other in self.holey for dim in other.dims for rank, _ in dim.terms)

    def stepped(self, tensor: Projection) -> Projection | None:
        """The operand of which all lanes are at the same group of neighbours at a time, as a tensor sees it:
        no other has zeros, and groups are whole. Sums of lanes at different places of a group meet in one
        element unless its rank is the result's.
        """
        holey = self.zeros()
        if any(part(other.tensor, self.e) in self.arch.compute.gates for other in holey):
            return None
        if not self.arch.compute.lockstep or len(holey) != 1 or ":" not in holey[0].format:
            return None
        if self.e.output.format != "dense":
            return None
        if len(holey[0].dims[-1].terms) != 1:
            return None
        ((rank, step),) = holey[0].dims[-1].terms
        long = int(holey[0].format.partition(":")[2])
        if step != 1 or dict(self.e.extents)[rank] % long or holey[0].dims[-1].size % long:
            return None
        return None if tensor is self.e.output and rank in self.own_ranks() else holey[0]

    def takes_groups(self, tensor: Projection, stepped: Projection) -> bool:
        """Whether lanes may want different values of one group of an operand."""
        own = {rank for dim in tensor.dims for rank, _ in dim.terms}
        ranks = {rank for dim in stepped.dims for rank, _ in dim.terms}
        return tensor.format == "dense" and stepped.dims[-1].terms[0][0] in own and not ranks <= own

    def stored(self, tensor: Projection) -> float:
        """Of a compressed operand what an iteration walks past, over a value's width: with the chance of a
        nonzero its value and its column; the pointer of a row is shared out over the row, the iterations that
        differ in the last index alone.
        """
        row = {rank for dim in tensor.dims[:-1] for rank, _ in dim.terms}
        along = [
            n
            for rank, n in self.e.extents
            if rank in {r for r, _ in tensor.dims[-1].terms} and rank not in row
        ]
        columns = len(list(product(*map(range, along))))
        value = tensor.bits or self.arch.word_bits
        share = tensor.density
        if tensor.format == "rle":
            share = float(kept(share, "rle", tensor.index_bits))
        mask = 1 if tensor.format == "bitmask" else 0
        return (share * (value + tensor.index_bits) + tensor.pointer_bits / columns + mask) / value


def walk(mapping: Mapping, e: Einsum, arch: Arch) -> Tally:
    """Count every action of a mapping by executing it."""
    w = Walk(mapping, e, arch)
    w.go(0, {rank: (0, n) for rank, n in e.extents})
    w.folded()
    return w.tally


def port_bits(tally: Tally, e: Einsum, arch: Arch) -> dict:
    """Bits that the busiest instance of every port moves at the level's rate, all tensors together, per port;
    operations of the busiest lane; folds.
    """
    levels = {level.name: level for level in arch.levels}
    busiest = {("MAC", "compute"): 0}
    for counts in tally.lanes.values():
        ports = Counter()
        for (level, tensor, action), n in counts.items():
            if level in levels:
                name, times = gate(levels[level], tensor, action, e)
                ports[level, name] += n * width(level, tensor, e, arch) / times
            else:
                ports[level, action] += n
        busiest |= {port: max(n, busiest.get(port, 0)) for port, n in ports.items()}
    waits = sum(n for (_, _, action), n in tally.total.items() if action == "wait")
    folds = {(level, action): n for (level, _, action), n in tally.total.items() if action == "fold"}
    return busiest | folds | ({("-", "wait"): waits} if waits else {})

"""Schedules of whole workloads: segments of einsums below shared loops (docs/model.md, Schedules).

    weights pinned                          (default: streamed, loaded in every run)
    fills ahead                             (default: in turn; first fills of an einsum come while the einsum
                                            before runs, where there is capacity)
    retain GLB T3 1/2                       (half of T3 is retained at GLB from its maker to its last reader;
                                            1/2, 1/4 after c: a quarter once c has read it)
    segment
      store DRAM T0 W0 W1 T2
      for m tile 8
        store GLB T1                        (T1 never leaves GLB: made and read tile by tile)
        einsum MM0
          store GLB T0
          ...
            mac
        einsum MM1 with m = p               (the shared loop m is its p)
          ...
            mac

Segments run one after the other, and so do the branches of a segment. With regions (`einsum fc1 on Y[0:4]
X[0:16]`) the branches are the stages of a pipeline: each has its own PEs, and all work at once, in the order
of the text, each on another trip of the shared loops (a pipeline tile). `hold GBUF W` in a stage: W is loaded
once, not once per pipeline tile.
"""

from __future__ import annotations

import re
from collections import abc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType

from dse.mapping.conversion import COPY_NAME, conversions_of, with_conversions
from dse.mapping.nest import (
    LAYOUT,
    LOOP,
    MAC,
    SHARE,
    SPATIAL,
    STORE,
    Loop,
    Mapping,
    Store,
    nest_lines,
    parse,
    read,
    sorted_shares,
)
from workloads.einsum import Einsum
from workloads.graph import Workload, base_tensor, unique
from workloads.renamed import line_now

EINSUM_LINE = re.compile(
    r"^einsum\s+(\S+?)(?:\s+on((?:\s+\w+\[\d+:\d+\])+))?(?:\s+with\s+(\w+\s*=\s*\w+(?:\s*,\s*\w+\s*=\s*\w+)*))?$"
)
REGION = re.compile(r"(\w+)\[(\d+):(\d+)\]")
HOLD = re.compile(r"^hold\s+(\w+)((?:\s+\w+)+)$")
RETAIN = re.compile(r"^retain\s+(\w+)\s+(\S+)\s+(\d+(?:/\d+)?)((?:\s*,\s*\d+(?:/\d+)?\s+after\s+[^\s,]+)*)$")
AFTER = re.compile(r"(\d+(?:/\d+)?)\s+after\s+([^\s,]+)")
WEIGHTS = ("streamed", "pinned")
FILL_ORDERS = ("turn", "ahead")
REMARK = "#"  # begins a line of a schedule's text that says nothing of the schedule
STARTS = ("weights", "fills", "retain", "segment")  # how the text of a schedule begins


@dataclass(frozen=True, slots=True)
class Region:
    """PEs first .. first + size - 1 along one dimension of a fan-out."""

    dim: str
    first: int
    size: int


@dataclass(frozen=True, slots=True)
class Branch:
    """One einsum of a segment."""

    einsum: str
    mapping: Mapping  # its own nest, below the shared nodes
    # (rank of a shared loop, the einsum's name for it), where the two differ
    ranks: tuple[tuple[str, str], ...] = ()
    region: tuple[Region, ...] = ()  # PEs of a stage of a pipeline; () where branches run one after the other
    # nodes of a stage that are filled once, not once per pipeline tile (`hold`)
    filled_once: tuple[Store, ...] = ()


@dataclass(frozen=True, slots=True)
class Segment:
    """Einsums below shared loops and storage nodes. Without shared nodes, the branches have nothing in
    common.
    """

    branches: tuple[Branch, ...]
    nodes: tuple[Loop | Store, ...] = ()  # shared loops and storage nodes, outermost first

    @property
    def pipelined(self) -> bool:
        """True if a branch has a region of nodes: its einsums then run at once."""
        return any(branch.region for branch in self.branches)


@dataclass(frozen=True, slots=True)
class Retained:
    """A share of a tensor that is retained at a level from the einsum that makes the tensor (for an input of
    the workload: from the first einsum that reads it) to the last einsum that reads it.
    """

    level: str
    tensor: str
    share: Fraction
    # (einsum, share retained after that einsum has read the tensor), in the order of the schedule; if the
    # share grows, the additional part is brought in as the einsum reads it
    later_shares: tuple[tuple[str, Fraction], ...] = ()

    def shares(self) -> str:
        """Returns the shares as the text of a schedule has them."""
        return "".join([f"{self.share}", *(f", {share} after {name}" for name, share in self.later_shares)])


@dataclass(frozen=True, slots=True)
class Schedule:
    """How a workload runs on a machine."""

    segments: tuple[Segment, ...]
    retained: tuple[Retained, ...] = ()
    # streamed: loaded in every run; pinned: on chip before the run, unless a node at the outermost level
    # holds them
    weights: str = "streamed"
    # first fills of an einsum come while the einsum before runs, where there is capacity
    fills_ahead: bool = False

    def __str__(self) -> str:
        return "\n".join(_lines(self))

    def is_unfused(self) -> bool:
        """True for the unfused schedule: nothing retained or pinned, no fills ahead."""
        single_branches = all(len(s.branches) == 1 and not s.nodes and not s.pipelined for s in self.segments)
        return single_branches and self.weights == "streamed" and not self.retained and not self.fills_ahead


def sequential(workload: Workload, mappings: dict[str, Mapping], allow_missing: bool = False) -> Schedule:
    """Returns the unfused schedule: one segment per einsum.

    mappings: by einsum name; an einsum that is not in it takes the mapping of the first einsum equal to it
    allow_missing: einsums without a mapping are left out; else they raise ValueError, with one line each
    """
    first = {name: group.einsum for group in unique(workload) for name in group.names}
    mapped = [e for e in workload.einsums if e.name in mappings or first[e.name].name in mappings]
    if missing := dict.fromkeys(
        f"mapping: einsum {first[e.name].name} has no mapping; add one"
        for e in workload.einsums
        if e not in mapped and not allow_missing
    ):
        raise ValueError("\n".join(missing))
    nests = {
        e.name: mappings[e.name]
        if e.name in mappings
        else rename(mappings[first[e.name].name], first[e.name], e)
        for e in mapped
    }
    return Schedule(tuple(Segment((Branch(name, nest),)) for name, nest in nests.items()))


def mappings_by_einsum(workload: Workload, schedule: Schedule) -> dict[str, Mapping]:
    """Returns the nests, by einsum name, from which `sequential` makes the schedule again: those of the first
    of equal einsums, of equal ones whose nest differs from the first one's, and of copies and their readers.
    """
    nests = {branch.einsum: branch.mapping for segment in schedule.segments for branch in segment.branches}
    first = {name: group.einsum for group in unique(workload) for name in group.names}
    copies = {e.output.tensor for e in workload.einsums if COPY_NAME.match(e.name)}
    return {
        e.name: nests[e.name]
        for e in workload.einsums
        if first[e.name] is e
        or copies & {base_tensor(p.tensor, copies) for p in e.tensors()}
        or nests[e.name] != rename(nests[first[e.name].name], first[e.name], e)
    }


def rename(mapping: Mapping, e: Einsum, to: Einsum | None = None) -> Mapping:
    """Returns a nest of einsum e in the names of an einsum that is equal to e. to None: in canonical names,
    which are the same for all equal einsums.
    """

    def names(one: Einsum) -> tuple[list[str], list[str]]:
        return [p.tensor for p in (one.output, *one.inputs)], list(one.ranks())

    if to is e:
        return mapping
    (tensors, ranks) = names(e)
    (new_tensors, new_ranks) = (
        names(to)
        if to
        else ([f"{i}" for i in range(len(e.tensors()))], [f"{i}" for i in range(len(e.extents))])
    )
    new_tensor, new_rank = (
        dict(zip(tensors, new_tensors, strict=True)),
        dict(zip(ranks, new_ranks, strict=True)),
    )
    nodes = (
        replace(node, rank=new_rank.get(node.rank, node.rank))
        if isinstance(node, Loop)
        else replace(node, tensor=new_tensor.get(node.tensor, node.tensor))
        for node in mapping.nodes
    )
    return replace(
        mapping,
        nodes=tuple(nodes),
        layouts=tuple(replace(one, tensor=new_tensor.get(one.tensor, one.tensor)) for one in mapping.layouts),
        shares=sorted_shares(
            replace(one, tensor=new_tensor.get(one.tensor, one.tensor)) for one in mapping.shares
        ),
    )


def rename_segment(segment: Segment, einsums: Sequence[Einsum], to: Sequence[Einsum]) -> Segment:
    """Returns a segment of einsums in the names of others that are equal to them, one by one; shared ranks
    keep their names.
    """
    if all(e.name == other.name for e, other in zip(einsums, to, strict=True)):
        return segment
    new = {e.name: (e, other) for e, other in zip(einsums, to, strict=True)}
    new_tensor = {
        p.tensor: q.tensor
        for e, other in new.values()
        for p, q in zip(e.tensors(), other.tensors(), strict=True)
    }

    def renamed(node: Loop | Store) -> Loop | Store:
        return replace(node, tensor=new_tensor[node.tensor]) if isinstance(node, Store) else node

    branches = tuple(
        replace(
            branch,
            einsum=new[branch.einsum][1].name,
            mapping=rename(branch.mapping, *new[branch.einsum]),
            filled_once=tuple(replace(one, tensor=new_tensor[one.tensor]) for one in branch.filled_once),
        )
        for branch in segment.branches
    )
    return Segment(branches, tuple(map(renamed, segment.nodes)))


def _sort_key(one: Retained) -> tuple[str, str]:
    """Returns the sort key of retained tensors, level before tensor; their order has no meaning."""
    return one.level, one.tensor


def to_text(schedule: Schedule, workload: Workload) -> str:
    """Returns the text of a schedule, with trip counts, and a remark beside each tensor that never leaves the
    chip: the nests still name the stores outside, where no part of it goes.
    """
    carried = {after for after, _ in workload.loop_state}
    inner = {e.output.tensor for e in workload.einsums} - carried
    return "\n".join(_lines(schedule, {e.name: e.sizes() for e in workload.einsums}, inner))


def _lines(
    schedule: Schedule,
    sizes: abc.Mapping[str, dict[str, int]] = MappingProxyType({}),
    inner: abc.Set[str] = frozenset(),
) -> Iterator[str]:
    """Yields the lines of a schedule.

    sizes: extents of the ranks of each einsum, for trip counts; nests of other einsums have no trip counts
    inner: tensors that need not leave the chip, for remarks; the others have none
    """
    if schedule.weights != "streamed":
        yield f"weights {schedule.weights}"
    if schedule.fills_ahead:
        yield "fills ahead"
    for one in sorted(schedule.retained, key=_sort_key):
        yield f"retain {one.level} {one.tensor} {one.shares()}"
        if one.tensor in inner and one.shares() == "1":
            yield f"{REMARK} {one.tensor} never leaves {one.level}: its stores further out count nothing"
    for segment in schedule.segments:
        yield "segment"
        # rank of a shared loop -> its extent; `nest_lines` updates it to the tile inside of the shared loops
        shared_tile_of = {
            shared: sizes[b.einsum][branch_rank]
            for b in segment.branches
            for shared, branch_rank in _shared_ranks(segment, b, sizes)
        }
        yield from (f"  {line}" for line in nest_lines(Mapping(segment.nodes), shared_tile_of or None)[:-1])
        indent = "  " * (1 + sum(isinstance(node, Loop) for node in segment.nodes))
        for branch in segment.branches:
            names = f" with {', '.join(f'{a} = {b}' for a, b in branch.ranks)}" if branch.ranks else ""
            yield f"{indent}einsum {branch.einsum}{region_text(branch.region)}{names}"
            yield from (f"{indent}  hold {one.level} {one.tensor}" for one in branch.filled_once)
            tile_of = sizes.get(branch.einsum, {}) | {
                branch_rank: shared_tile_of[shared]
                for shared, branch_rank in _shared_ranks(segment, branch, sizes)
            }
            yield from (f"{indent}  {line}" for line in nest_lines(branch.mapping, tile_of or None))


def region_text(region: Sequence[Region]) -> str:
    """Returns the nodes of a stage as texts have them, ` on Y[0:4] X[0:16]`; "" for no region."""
    return "".join(
        [" on" * bool(region), *(f" {one.dim}[{one.first}:{one.first + one.size}]" for one in region)]
    )


def region_of(text: str) -> tuple[Region, ...]:
    """Returns the nodes of a stage, of a text `Y[0:4] X[0:16]`. Raises ValueError where there are none."""
    region = tuple(Region(dim, int(first), int(end) - int(first)) for dim, first, end in REGION.findall(text))
    if any(one.size < 1 for one in region):
        raise ValueError("names no PE; write e.g. Y[0:4] for PEs 0 to 3")
    return region


def _shared_ranks(
    segment: Segment, branch: Branch, sizes: abc.Mapping[str, dict[str, int]]
) -> list[tuple[str, str]]:
    """Returns (rank of a shared loop, the branch's name for it), for the ranks that the branch's einsum
    has.
    """
    names, extents = dict(branch.ranks), sizes.get(branch.einsum, {})
    pairs = [(node.rank, names.get(node.rank, node.rank)) for node in segment.nodes if isinstance(node, Loop)]
    return [(shared, name) for shared, name in pairs if name in extents]


def parse_schedule(text: str) -> Schedule:
    """Returns the schedule of a text, the inverse of str(schedule); indentation is free, and lines that begin
    with # are remarks. Raises ValueError naming the line.
    """
    schedule = Schedule(())
    branch_lines: list[str] = []  # lines of the branch that is being read
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith(REMARK):
            continue
        try:
            schedule = _read_line(schedule, branch_lines, line)
        except ValueError as fault:
            new_form = line_now(line)
            raise ValueError(
                f'schedule, line {number}: "{line}" '
                f"{f'has a new form; write {new_form}' if new_form else fault}"
            ) from None
    if branch_lines:
        raise ValueError("schedule: the last einsum's nest does not end with mac")
    if empty := [i for i, segment in enumerate(schedule.segments, 1) if not segment.branches]:
        raise ValueError(f"schedule: segment {empty[0]} has no einsum; add a line einsum NAME and its nest")
    return schedule


def _read_line(schedule: Schedule, branch_lines: list[str], line: str) -> Schedule:
    """Returns the schedule with one more line of the text. branch_lines: lines so far of the branch that is
    being read; is updated.
    """
    if branch_lines:
        return _read_branch_line(schedule, branch_lines, line)
    if match := EINSUM_LINE.match(line):
        if not schedule.segments:
            raise ValueError("stands in no segment; begin with a line: segment")
        region = region_of(match[2] or "")
        renamed = [pair.split("=") for pair in (match[3] or "").split(",") if pair]
        ranks = tuple(sorted((a.strip(), b.strip()) for a, b in renamed if a.strip() != b.strip()))
        branch_lines.append(line)
        return _with_last(
            schedule,
            replace(
                schedule.segments[-1],
                branches=(*schedule.segments[-1].branches, Branch(match[1], Mapping(()), ranks, region)),
            ),
        )
    if match := RETAIN.match(line):
        if schedule.segments:
            raise ValueError("stands below a segment; retain stands above them all")
        try:
            share = Fraction(match[3])
            later_shares = tuple((name, Fraction(share_text)) for share_text, name in AFTER.findall(match[4]))
        except ZeroDivisionError:
            raise ValueError(f"share = {match[3]}{match[4]} is no number; write e.g. 1/2") from None
        return replace(
            schedule,
            retained=tuple(
                sorted((*schedule.retained, Retained(match[1], match[2], share, later_shares)), key=_sort_key)
            ),
        )
    if line == "segment":
        return replace(schedule, segments=(*schedule.segments, Segment(())))
    if line.split()[0] == "weights" and not schedule.segments:
        if line.split()[1:] not in ([WEIGHTS[0]], [WEIGHTS[1]]):
            raise ValueError(f"must be weights {' or weights '.join(WEIGHTS)}")
        return replace(schedule, weights=line.split()[1])
    if line.split()[0] == "fills" and not schedule.segments:
        if line.split()[1:] not in ([FILL_ORDERS[1]], ["in", FILL_ORDERS[0]]):
            raise ValueError("must be fills ahead or fills in turn")
        return replace(schedule, fills_ahead=line.split()[1] == FILL_ORDERS[1])
    if (
        not schedule.segments
        or not (LOOP.match(line) or SPATIAL.match(line) or STORE.match(line))
        or schedule.segments[-1].branches
    ):
        raise ValueError(
            "cannot stand here; write retain, weights and fills first, then segments: each has shared loops "
            "and stores, then einsum NAME and its nest down to mac"
        )
    segment = schedule.segments[-1]
    return _with_last(schedule, replace(segment, nodes=(*segment.nodes, *parse(line).nodes)))


def _read_branch_line(schedule: Schedule, branch_lines: list[str], line: str) -> Schedule:
    """Returns the schedule with one more line of an einsum's nest. branch_lines: lines of the branch so far,
    beginning with `einsum NAME`; is updated.
    """
    if not (
        MAC.match(line)
        or HOLD.match(line)
        or any(form.match(line) for form in (LOOP, SPATIAL, STORE, LAYOUT, SHARE))
    ):
        raise ValueError("is no line of a nest, which ends with mac")
    branch_lines.append(line)
    if not MAC.match(line):
        return schedule
    hold_nodes = tuple(
        Store(match[1], tensor)
        for branch_line in branch_lines
        if (match := HOLD.match(branch_line))
        for tensor in match[2].split()
    )
    mapping = parse("\n".join(branch_line for branch_line in branch_lines[1:] if not HOLD.match(branch_line)))
    segment = schedule.segments[-1]
    branch_lines.clear()
    return _with_last(
        schedule,
        replace(
            segment,
            branches=(
                *segment.branches[:-1],
                replace(segment.branches[-1], mapping=mapping, filled_once=hold_nodes),
            ),
        ),
    )


def _with_last(schedule: Schedule, segment: Segment) -> Schedule:
    return replace(schedule, segments=(*schedule.segments[:-1], segment))


def load(path: Path, workload: Workload, allow_missing: bool = False) -> tuple[Workload, Schedule]:
    """Returns the schedule of a file, and the workload with the conversions of the schedule. The file has the
    text of a schedule, or mappings of unfused einsums (`nest.read`).

    allow_missing: einsums may be left out (`complete` adds them)

    Raises ValueError with one line per fault, naming the file.
    """
    if path.is_fifo():
        raise ValueError(f"{path}: is a pipe, which cannot be read twice; give the name of a file")
    try:
        text = path.read_text(encoding="utf-8") if path.is_file() and path.stat().st_size < 1 << 24 else ""
        if text.lstrip().startswith(STARTS):
            if not _is_schedule(text):
                raise ValueError(
                    "is no schedule: it has no line segment or einsum NAME; see dse map --format schedule"
                )
            found = parse_schedule(text)
            branches = [(branch, segment.nodes) for segment in found.segments for branch in segment.branches]
            return _with_copies(
                workload, [(branch.einsum, *shared, *branch.mapping.nodes) for branch, shared in branches]
            ), found
        nests = read(path, [group.names[0] for group in unique(workload)], [e.name for e in workload.einsums])
        extended = _with_copies(workload, [(name, *nest.nodes) for name, nest in nests.items()])
        return extended, sequential(extended, nests, allow_missing)
    except UnicodeDecodeError:
        raise ValueError(
            f"{path}: cannot be read as a mapping (not UTF-8 text); see dse map --format yaml"
        ) from None
    except ValueError as fault:
        raise ValueError(
            "\n".join(
                line if line.startswith(str(path)) else f"{path}: {line}" for line in str(fault).splitlines()
            )
        ) from None


def _is_schedule(text: str) -> bool:
    """True if the text has a line that only schedules have. Messages may quote the text only then."""
    lines = [line.strip() for line in text.splitlines()]
    return "segment" in lines or any(EINSUM_LINE.match(line) or RETAIN.match(line) for line in lines)


def _with_copies(workload: Workload, nests: Sequence[tuple[str | Loop | Store, ...]]) -> Workload:
    """Returns the workload with the conversions that the nests name.

    nests: name of an einsum, then the nodes above it
    """
    stored = {str(name): [node.tensor for node in nodes if isinstance(node, Store)] for name, *nodes in nests}
    copies = conversions_of(workload, stored)
    return with_conversions(workload, copies) if copies else workload


def unplaced(workload: Workload, schedule: Schedule) -> list[str]:
    """Returns the names of einsums that a schedule leaves out."""
    placed = {branch.einsum for segment in schedule.segments for branch in segment.branches}
    return [e.name for e in workload.einsums if e.name not in placed]


def complete(workload: Workload, schedule: Schedule, unfused: Schedule) -> Schedule:
    """Returns the schedule completed with the einsums that it leaves out: their segments come from the
    unfused schedule `unfused`, and each stands right behind the last segment that makes one of its inputs.
    """
    makers = {e.output.tensor: e.name for e in workload.einsums}
    reads = {
        e.name: {makers[t] for t in (base_tensor(p.tensor, makers) for p in e.inputs) if t in makers}
        for e in workload.einsums
    }
    segment_of = {segment.branches[0].einsum: segment for segment in unfused.segments}
    found = list(schedule.segments)
    for name in unplaced(workload, schedule):
        producer_ends = [
            i
            for i, segment in enumerate(found, 1)
            if reads[name] & {branch.einsum for branch in segment.branches}
        ]
        found.insert(max(producer_ends, default=0), segment_of[name])
    return replace(schedule, segments=tuple(found))

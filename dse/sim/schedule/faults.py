"""Faults of a schedule on a machine, one line each: the segment, the fault, and how to correct it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from itertools import chain, combinations, pairwise

from dse.layout.address import Layout, row_major
from dse.layout.text import parse
from dse.mapping import nest
from dse.mapping.constraints import Constraints, computes
from dse.mapping.nest import Loop, Mapping, Store, bits_at, packing_levels
from dse.mapping.schedule import Branch, Retained, Schedule, Segment, rename
from dse.sim.counts.counts import nest_sums
from dse.sim.einsum.boundary import ALONE, is_sliced, network_traffic, whole_nest
from dse.sim.einsum.limits import broken, broken_below
from dse.sim.levels import rotation, transfer
from dse.sim.schedule.placed import (
    Graph,
    Placed,
    bypasses_retained,
    graph,
    homes,
    placed_segments,
    rank_in_branch,
    share_after,
    share_at,
    shared_loops,
    stage_array,
)
from hw.arch import Arch, Level
from workloads.einsum import Einsum, Projection, canonical_key
from workloads.graph import Workload, base_tensor, counts, packed_results


def faults(arch: Arch, workload: Workload, schedule: Schedule) -> list[str]:
    """Returns the faults of a schedule for this workload on this machine, one line each; empty if it is
    legal. Capacities are checked by the evaluator.
    """
    if lines := list(_order_faults(workload, schedule)):
        return lines
    g = graph(workload, schedule)
    if not schedule.is_unfused() and (line := counted_one_by_one(arch, workload)):
        return [line]
    if schedule.is_unfused():  # `nest.faults` reports faults of single nests in full
        lines = []
    elif lines := [
        f"segment {i}: {line}"
        for i, segment in enumerate(schedule.segments, 1)
        for line in _name_faults(segment, g, arch)
    ]:
        return lines
    else:
        lines = [*_port_faults(arch, schedule), *_width_faults(arch, schedule, g)]
    lines += _retention_faults(arch, workload, schedule, g)
    for i, segment in enumerate(schedule.segments, 1):
        lines += [
            f"segment {i}: {line}"
            for line in list(_region_faults(segment, arch)) or list(_shared_faults(segment, g, arch))
        ]
    if not lines:
        checked = {
            (canonical_key(one.einsum), str(rename(one.nest, one.einsum)), one.boundary): one
            # reversed: the first of equal nests is reported
            for segment in reversed(placed_segments(arch, workload, schedule))
            for one in reversed(segment)
        }
        lines = [line for one in reversed(checked.values()) for line in nest_faults(one)]
        lines = lines or [line for one in reversed(checked.values()) for line in _compute_faults(one)]
    if not lines:
        lines = [
            f"segment {i + 1}: {line}"
            for i, segment in enumerate(schedule.segments)
            for line in _on_chip_faults(i, segment, schedule, workload, g, arch)
        ]
    retained_in_part = [
        one for one in schedule.retained if one.share != 1 or one.later_shares or is_sliced(one.level, arch)
    ]
    if (
        not lines
        and arch.models_layout()
        and (retained_in_part or any(segment.pipelined for segment in schedule.segments))
    ):
        level = next(level.name for level in arch.levels if level.access)
        lines = [
            f"schedule: {level} describes lines, rows or banks, and layouts of what pipelines, or retained "
            "parts of tensors, move are not counted; leave its description out"
        ]
    return lines or (list(_layout_faults(arch, workload, schedule, g)) if arch.models_layout() else [])


def broken_rules(
    arch: Arch, workload: Workload, schedule: Schedule, constraints: Callable[[Einsum, Arch], Constraints]
) -> tuple[list[str], list[str]]:
    """Returns how the nests of a schedule without faults break their constraints, one line each
    (`limits.broken`, and `broken_below` where einsums share loops or nodes), and the names of einsums of
    which that is not told: those of pipelines, and those with a tensor that is retained in part.

    constraints: of an einsum on a machine (of one compute). A tensor that is retained whole stands at its
        level alone, above all loops.
    """
    made, lines, unchecked = {e.output.tensor for e in workload.einsums}, list[str](), list[str]()
    for segment, members in zip(schedule.segments, placed_segments(arch, workload, schedule), strict=True):
        for branch, one in zip(segment.branches, members, strict=True):
            e, own_arch = one.einsum, arch.unit(one.nest.unit)
            c = constraints(e, own_arch)
            whole = [(t, level) for t, level, share in one.boundary.retained if share == 1]
            if one.boundary == ALONE:
                found = broken(c, one.nest, e, own_arch)
            elif segment.pipelined or len(whole) < len(one.boundary.retained):
                unchecked.append(e.name)
                continue
            else:
                shared: list[Loop | Store] = [Store(level, t) for t, level in whole]
                for node in segment.nodes:
                    if isinstance(node, Loop):
                        shared.append(replace(node, rank=rank_in_branch(node.rank, branch)))
                    else:
                        own = (p.tensor for p in e.tensors() if base_tensor(p.tensor, made) == node.tensor)
                        shared += [replace(node, tensor=t) for t in own]
                gone = {Store(n, t) for t, level in whole for n in (level, arch.levels[0].name)}
                nest = replace(one.nest, nodes=tuple(n for n in one.nest.nodes if n not in gone))
                found = broken_below(c, shared, nest, e, own_arch)
            lines += [f"{e.name}: {line}" for line in found]
    return lines, unchecked


def counted_one_by_one(arch: Arch, workload: Workload) -> str:
    """Returns what is counted only where einsums share neither loops nor tensors nor time, with the fix; "":
    nothing of this machine and workload.
    """
    if arch.with_latency():
        return (
            "einsums share loops, tensors or time, and waits for first words are counted of einsums in turn; "
            f"{arch.name} has {', '.join(f'{name}.latency_ns' for name in arch.with_latency())}: map its "
            "einsums one by one, or leave latency_ns out"
        )
    if arch.with_sharing():
        return (
            "einsums share loops, tensors or time, which is not counted where PEs along dimensions share a "
            f"memory; {arch.name} has {', '.join(f'{name}.along' for name in arch.with_sharing())}: map its "
            "einsums one by one, or leave along out"
        )
    if arch.units:
        return (
            "einsums share loops, tensors or time, which is not counted between computes; "
            f"{arch.name} has {', '.join(one.compute.name.lower() for one in arch.units)}: map its einsums "
            "one by one"
        )
    if packing := [name for e in workload.einsums for name in packing_levels(e, arch)]:
        return (
            "einsums share loops, tensors or time, which is not counted of tensors in formats of single "
            f"memories; {arch.name} has {packing[0]}.formats: map its einsums one by one, or leave formats "
            "out"
        )
    if results := packed_results(workload):
        first = results[0]
        return (
            f"einsums share loops, tensors or time, which is not counted of results in {first.output.format} "
            f"({first.output.tensor} of {first.name}): map einsums one by one, or store it dense"
        )
    return ""


def _compute_faults(one: Placed) -> Iterator[str]:
    """Yields a line where a nest runs on one of several computes that does not take its einsum."""
    names = [own.compute.name for own in computes(one.einsum, one.arch)]
    if one.arch.units and one.nest.unit not in names:
        yield (
            f"mapping of {one.einsum.name}: {one.nest.unit} does not take this einsum; write mac on "
            f"{' or '.join(names)}"
        )


def _layout_faults(arch: Arch, workload: Workload, schedule: Schedule, g: Graph) -> Iterator[str]:
    """Yields makers and readers that see a tensor in different layouts, which only a copy can change.
    An einsum that sees the tensor in another shape needs the tensor, or a copy of it, row-major.
    """
    nests = {branch.einsum: branch.mapping for segment in schedule.segments for branch in segment.branches}
    source_of = {name: result for result, name in workload.loop_state}
    copies = {
        (e.inputs[0].tensor, level.name)
        for e in workload.einsums
        if e.kind == "copy"
        for level in arch.levels
        if _layout(nests[e.name], e.output, level.name) is None
    }
    for e in workload.einsums:
        for p in e.inputs:
            tensor = base_tensor(source_of.get(p.tensor, p.tensor), g.makers)
            if tensor not in g.makers or p.format != "dense":
                continue
            maker = g.einsums[g.makers[tensor]]
            for level in (
                arch.levels[0].name,
                *(one.level for one in schedule.retained if one.tensor == tensor),
            ):
                maker_layout, reader_layout = (
                    _layout(nests[maker.name], maker.output, level),
                    _layout(nests[e.name], p, level),
                )
                is_view = _sizes(p) != _sizes(maker.output)
                if (
                    reader_layout != maker_layout
                    and not (is_view and reader_layout is None and (tensor, level) in copies)
                ) or (is_view and reader_layout):
                    yield (
                        f"layout {level} {tensor}: {maker.name} writes "
                        f"{_layout_text(nests[maker.name], tensor, level)}, {e.name} reads "
                        f"{_layout_text(nests[e.name], p.tensor, level)}; "
                        f"{'make both row-major' if is_view else 'give both the same'}, or add a copy"
                    )


def _layout(mapping: Mapping, p: Projection, level: str) -> Layout | None:
    """Returns the layout that a nest gives a tensor at a level, with dimensions named by their index; None:
    row-major.
    """
    text = next((one.text for one in mapping.layouts if (one.level, one.tensor) == (level, p.tensor)), None)
    if text is None:
        return None
    names = transfer.dim_names(p)
    found = parse(text, names, _sizes(p))
    return (
        None
        if found == row_major(names, _sizes(p))
        else replace(found, names=tuple(f"D{k}_" for k in range(len(names))))
    )


def _layout_text(mapping: Mapping, tensor: str, level: str) -> str:
    return next(
        (f'"{one.text}"' for one in mapping.layouts if (one.level, one.tensor) == (level, tensor)),
        "row-major",
    )


def _sizes(p: Projection) -> tuple[int, ...]:
    return tuple(d.size for d in p.dims)


def _name_faults(segment: Segment, g: Graph, arch: Arch) -> Iterator[str]:
    """Yields names and sizes that do not exist in the workload or the machine."""
    levels, einsums = [level.name for level in arch.levels], [g.einsums[b.einsum] for b in segment.branches]
    tensors = {p.tensor for e in einsums for p in e.tensors()}
    nests = [
        (segment.nodes, tensors, None),
        *(
            (b.mapping.nodes, {p.tensor for p in e.tensors()}, e)
            for b, e in zip(segment.branches, einsums, strict=True)
        ),
    ]
    for nodes, allowed, e in nests:
        where = f"einsum {e.name}: " if e else ""
        for node in nodes:
            if isinstance(node, Loop) and (node.tile < 1 or (e and node.rank not in e.sizes())):
                ranks = ", ".join(e.sizes()) if e else "the einsums"
                yield (
                    f"{where}loop {node.rank} tile {node.tile}: the tile must be at least 1, the rank "
                    f"one of {ranks}"
                )
            elif isinstance(node, Store) and (node.level not in levels or node.tensor not in allowed):
                yield (
                    f"{where}store {node.level} {node.tensor}: levels are {', '.join(levels)}, tensors "
                    f"{', '.join(sorted(allowed))}"
                )
    for branch in segment.branches:
        if branch.mapping.non_nest_text:
            yield f"einsum {branch.einsum}: its schedule is no nest"


def _order_faults(workload: Workload, schedule: Schedule) -> Iterator[str]:
    """Yields einsums that are unknown, missing, listed twice, or run before their inputs are made."""
    names = [branch.einsum for segment in schedule.segments for branch in segment.branches]
    occurrences_of = {e.name: n for e, n in zip(workload.einsums, counts(workload), strict=True)}
    for name in dict.fromkeys(names):
        if name not in occurrences_of:
            yield (
                f"schedule: einsum {name} is none of {workload.name}; it has "
                f"{', '.join(list(occurrences_of)[:8])}{' ...' if occurrences_of else ''}"
            )
        elif names.count(name) > 1:
            yield f"schedule: einsum {name} stands {names.count(name)} times; leave it once"
    if missing := [name for name in occurrences_of if name not in names]:
        yield (
            f"schedule: einsum {missing[0]}{f' and {len(missing) - 1} more' if missing[1:] else ''} has "
            "no place; add a segment with its nest"
        )
        return
    g = graph(workload, schedule)
    for tensor, maker in g.makers.items():
        for reader in g.readers.get(tensor, ()):
            if reader in g.position and g.position[reader] <= g.position[maker]:
                yield (
                    f"schedule: cyclic, {reader} (segment {g.position[reader][0] + 1}) reads {tensor} before "
                    f"{maker} (segment {g.position[maker][0] + 1}) has made it; put {maker} first"
                )
    for i, segment in enumerate(schedule.segments, 1):
        for branch in segment.branches:
            if occurrences_of.get(branch.einsum, 1) > 1 and (segment.nodes or len(segment.branches) > 1):
                yield (
                    f"segment {i}: einsum {branch.einsum} repeats {occurrences_of[branch.einsum]} times; "
                    "give it a segment of its own"
                )


def _port_faults(arch: Arch, schedule: Schedule) -> Iterator[str]:
    """Yields what is timed only at ports that serve all tensors, in both directions at one rate."""
    in_part = any(one.share != 1 or one.later_shares for one in schedule.retained)
    at_once = any(one.pipelined for one in schedule.segments)
    if arch.with_ports() and (in_part or at_once or schedule.fills_ahead or schedule.weights == "pinned"):
        yield (
            "pipelines, pinned weights, fills ahead and tensors retained in part are not timed at ports that "
            f"serve some tensors, nor with writes apart from reads; {arch.name} has "
            f"{', '.join(f'{name}.ports' for name in arch.with_ports())}: map its einsums one by one, fuse "
            "or retain whole, or take ports: shared and no write_bandwidth and writes_per_cycle"
        )


def _width_faults(arch: Arch, schedule: Schedule, g: Graph) -> Iterator[str]:
    """Yields what is counted in one width only of a schedule on a machine that narrows or widens elements."""
    if not arch.narrows_or_widens():
        return
    if (
        schedule.fills_ahead
        or schedule.weights == "pinned"
        or any(one.pipelined for one in schedule.segments)
    ):
        yield (
            "pipelines, pinned weights and fills ahead are counted in one width only; "
            f"{arch.name} has memories with `bits`: leave these out, or bits"
        )
    level_of = {level.name: level for level in arch.levels}
    for one in schedule.retained:
        if one.level in level_of and level_of[one.level].bits:
            yield (
                f"retain {one.level} {one.tensor}: retained tensors are counted in one width only, and "
                f"{one.level} has `bits`; retain it elsewhere, or leave bits out"
            )
    for i, segment in enumerate(schedule.segments, 1):
        for node in segment.nodes:
            if isinstance(node, Loop) or node.level not in level_of:
                continue
            width_of = {
                e.name: bits_at(level_of[node.level], p.tensor, e, arch)
                for e in (g.einsums[branch.einsum] for branch in segment.branches)
                for p in e.tensors()
                if base_tensor(p.tensor, g.makers) == node.tensor
            }
            if len({*width_of.values()}) > 1:
                widths = ", ".join(f"{bits} bits in {name}" for name, bits in width_of.items())
                yield (
                    f"segment {i}: store {node.level} {node.tensor}: an element there has {widths}, and "
                    "einsums that share a tensor take it in one width; store it where they agree, or leave "
                    "bits out"
                )


def _retention_faults(arch: Arch, workload: Workload, schedule: Schedule, g: Graph) -> Iterator[str]:
    """Yields the faults of retained tensors: the first one of each."""
    index_of = {level.name: v for v, level in enumerate(arch.levels)}
    first_array, outer = min((f.outside for f in arch.fanouts), default=len(arch.levels)), arch.levels[0].name
    times = {e.name: n for e, n in zip(workload.einsums, counts(workload), strict=True)}
    for i, one in enumerate(schedule.retained):
        line = f"retain {one.level} {one.tensor}"
        if one.level not in index_of or not 0 < index_of[one.level] < max(first_array, 2):
            allowed_levels = (
                ", ".join(level.name for level in arch.levels[1 : max(first_array, 2)]) or "there is none"
            )
            yield (
                f"{line}: must be an on-chip level outside of all arrays, or the first one inside of "
                f"them: {allowed_levels}"
            )
        elif (
            len(
                users := [
                    *([g.makers[one.tensor]] if one.tensor in g.makers else []),
                    *g.readers.get(one.tensor, ()),
                ]
            )
            < 2
            or one.tensor not in g.readers
        ):
            candidates = [t for t, names in g.readers.items() if len(names) > (t not in g.makers)]
            yield (
                f"{line}: no tensor that is made and read, or read twice; take one of "
                f"{', '.join(candidates[:8]) or 'none'}"
            )
        elif user := next(_kept_out(one, arch.levels[index_of[one.level]], users, g), None):
            kept = ", ".join(arch.levels[index_of[one.level]].may_keep)
            yield (
                f"{line}: {user[0]} has it as {user[1]}, which may not stand at {one.level} "
                f"(may_keep: {kept}); leave it out"
            )
        elif one.tensor not in g.makers and schedule.weights == "pinned" and one.tensor in workload.weights:
            yield f"{line}: weights are pinned before the run; leave it out"
        elif not all(0 <= share <= 1 for share in shares(one)) or not any(shares(one)):
            yield f"{line}: {one.shares()}: each share must be from 0 to 1, one of them above 0"
        elif unknown := [name for name, _ in one.later_shares if name not in g.readers[one.tensor]]:
            yield f"{line}: {unknown[0]} does not read {one.tensor}; {', '.join(g.readers[one.tensor])} do"
        elif sorted(one.later_shares, key=lambda each: g.position[each[0]]) != list(one.later_shares) or len(
            {name for name, _ in one.later_shares}
        ) < len(one.later_shares):
            yield (
                f"{line}: the shares after einsums are not in the order of the schedule; sort them, each "
                "einsum once"
            )
        elif any(share == before for share, before in pairwise(shares(one))):
            yield f"{line}: {one.shares()}: a share does not change; name it once"
        elif (
            one.later_shares
            and one.tensor not in g.makers
            and one.later_shares[0][0] == min(g.readers[one.tensor], key=g.position.__getitem__)
        ):
            yield (
                f"{line}: {one.later_shares[0][0]} brings it in, so both {one.share} and the share after "
                f"{one.later_shares[0][0]} hold from then on; leave one of them out"
            )
        elif early := _retained_too_soon(one, g):
            yield (
                f"{line}: {early} reads it in the segment that brings it in, where other trips may find "
                f"nothing yet; retain it after {early}"
            )
        elif reader := next(
            (
                name
                for name in sorted(g.readers[one.tensor], key=g.position.__getitem__)
                for at, j in [g.position[name]]
                if share_after(one, (at, j), g) > share_at(one, (at, j), g)
                for segment in [schedule.segments[at]]
                if bypasses_retained(one.tensor, segment.branches[j], segment, g, outer)
            ),
            "",
        ):
            yield (
                f"{line}: {reader} brings it in, but does not read all that later einsums do; retain it "
                "after another einsum or, if zeros of another input are why, store a tile of it on chip in "
                f"{reader}"
            )
        elif is_sliced(one.level, arch) and (
            any(segment.pipelined for segment in schedule.segments) or arch.prices_networks()
        ):
            yield (
                f"{line}: {one.level} is inside an array: what lies spread over its PEs is not retained "
                "beside stages, nor where networks are priced; retain it outside of the array"
            )
        elif one.later_shares and g.position[one.later_shares[-1][0]] == max(
            g.position[name] for name in g.readers[one.tensor]
        ):
            yield f"{line}: nobody reads it after {one.later_shares[-1][0]}; leave that share out"
        elif elsewhere := [
            at
            for at in sorted({g.position[name][0] for name in users})
            if len({name for name in users if g.position[name][0] == at}) > 1
            and _forwarded_elsewhere(one, schedule.segments[at], g, outer)
        ]:
            yield (
                f"{line}: einsums of segment {elsewhere[0] + 1} pass it on, in PEs of their own or at "
                "another level; retain it where it is passed on"
            )
        elif one.tensor in g.makers and {g.position[name][0] for name in g.readers[one.tensor]} == {
            g.position[g.makers[one.tensor]][0]
        }:
            yield f"{line}: no later segment reads it; leave it out"
        elif one.tensor in [other.tensor for other in schedule.retained[:i]]:
            yield f"{line}: {one.tensor} is retained twice; leave one out"
        elif max(times[name] for name in users) > 1:
            yield (
                f"{line}: an einsum that makes or reads it repeats; only tensors of einsums that run "
                "once are retained"
            )


def _kept_out(one: Retained, level: Level, users: Sequence[str], g: Graph) -> Iterator[tuple[str, str]]:
    """Yields each of the einsums that make or read a retained tensor which has it in a role that may not
    stand at its level, and the role.
    """
    for e in (g.einsums[name] for name in users):
        for p in e.tensors():
            role = nest.role(e, p.tensor)
            if base_tensor(p.tensor, g.makers) == one.tensor and role not in level.may_keep:
                yield e.name, role


def _retained_too_soon(one: Retained, g: Graph) -> str:
    """Returns an einsum that reads retained elements in the segment in which another einsum fetches them,
    or "".
    """
    users = sorted(g.readers[one.tensor], key=g.position.__getitem__)
    return next(
        (
            b
            for a, b in pairwise(users)
            if g.position[a][0] == g.position[b][0]
            and share_at(one, g.position[b], g) > share_at(one, g.position[a], g)
        ),
        "",
    )


def _forwarded_elsewhere(one: Retained, segment: Segment, g: Graph, outer: str) -> bool:
    """True if a segment passes a tensor on between stages, or at another on-chip level than the one where the
    tensor is retained.
    """
    home = homes(segment).get(one.tensor)
    return home is not None and (segment.pipelined or home.level not in (outer, one.level))


def shares(one: Retained) -> list[Fraction]:
    """Shares of a retained tensor: at first, then after each einsum of `later_shares`."""
    return [one.share, *(share for _, share in one.later_shares)]


def _users_of(segment: Segment, g: Graph) -> dict[str, list[tuple[Branch, Einsum, Projection]]]:
    """Returns, per tensor, the einsums of a segment that read or make it, in execution order, once for each
    name by which they do.
    """
    found: dict[str, list[tuple[Branch, Einsum, Projection]]] = {}
    for branch in segment.branches:
        e = g.einsums[branch.einsum]
        for p in e.tensors():
            found.setdefault(base_tensor(p.tensor, g.makers), []).append((branch, e, p))
    return found


def _region_faults(segment: Segment, arch: Arch) -> Iterator[str]:
    """Yields stages without a region, and regions that lie outside of the array or overlap."""
    f = stage_array(segment, arch)
    for branch in segment.branches:
        if bool(branch.region) != segment.pipelined:
            yield (
                f"einsum {branch.einsum} has no region of its own, other stages have; add e.g. on "
                f"{f.dims[0][0] if f else 'DIM'}[0:1]"
            )
        sizes = dict(f.dims) if f else {}
        for one in branch.region:
            if one.dim not in sizes:
                regions = (
                    ", ".join(f"{name}[0:{n}]" for name, n in sizes.items())
                    or ", ".join(name for each in arch.fanouts for name, _ in each.dims)
                    or "none"
                )
                yield (
                    f"einsum {branch.einsum} on {one.dim}: stages lie on regions of one array; take {regions}"
                )
            elif one.first + one.size > sizes[one.dim]:
                region = f"{one.dim}[{one.first}:{one.first + one.size}]"
                yield (
                    f"einsum {branch.einsum} on {region} lies outside of the grid; {one.dim} has PEs 0 to "
                    f"{sizes[one.dim] - 1}"
                )
        if len({one.dim for one in branch.region}) < len(branch.region):
            yield f"einsum {branch.einsum}: a dimension of its region stands twice; name each once"
    if f is None:
        return
    for a, b in combinations(segment.branches, 2):
        if all(_overlap(_region(a, name, n), _region(b, name, n)) for name, n in f.dims):
            yield f"stages {a.einsum} and {b.einsum} share PEs of {f.name}; give each its own"
    if above := [loop for loop in shared_loops(segment) if loop.over]:
        yield (
            f"parfor {above[0].rank} over {above[0].over} stands above stages, which have regions of their "
            "own; put it into their nests"
        )


def _region(branch: Branch, dim: str, size: int) -> tuple[int, int]:
    return next(((one.first, one.first + one.size) for one in branch.region if one.dim == dim), (0, size))


def _overlap(a: tuple[int, int], b: tuple[int, int]) -> bool:
    return a[0] < b[1] and b[0] < a[1]


def _shared_faults(segment: Segment, g: Graph, arch: Arch) -> Iterator[str]:
    """Yields shared loops and nodes that differ between einsums: a tensor that is passed on must be complete
    when it is read, and be read in the tiles in which it is made.
    """
    loops, einsums = shared_loops(segment), [g.einsums[branch.einsum] for branch in segment.branches]
    for branch, e in zip(segment.branches, einsums, strict=True):
        ranks = [rank_in_branch(loop.rank, branch) for loop in loops]
        if unknown := [rank for rank in ranks if rank not in e.sizes()]:
            yield (
                f"shared loop {unknown[0]} is no rank of {e.name}, which has {', '.join(e.sizes())}; say "
                f"einsum {e.name} with {unknown[0]} = RANK"
            )
        elif len(set(ranks)) < len({loop.rank for loop in loops}):
            yield f"einsum {e.name} calls two shared loops by one rank; give each its own"
        elif unequal := [
            loop.rank
            for loop in loops
            if e.sizes()[rank_in_branch(loop.rank, branch)]
            != einsums[0].sizes()[rank_in_branch(loop.rank, segment.branches[0])]
        ]:
            extents = [
                one.sizes()[rank_in_branch(unequal[0], b)]
                for one, b in ((einsums[0], segment.branches[0]), (e, branch))
            ]
            yield (
                f"unmatched pipeline tiles: shared loop {unequal[0]} runs over {extents[0]} in "
                f"{einsums[0].name}, {extents[1]} in {e.name}; share loops over equal ranks"
            )
        elif len(einsums) > 1 and (whole := [rank for rank in ranks if rank in e.whole_ranks()]):
            yield (
                f"shared loop {whole[0]} cuts rows that {e.name} ({e.kind}) needs whole before it returns "
                "any element; share loops over other ranks"
            )
        else:
            continue
        return
    if segment.pipelined:
        tile_of = einsums[0].sizes()
        for loop in loops:
            rank = rank_in_branch(loop.rank, segment.branches[0])
            if tile_of[rank] % loop.tile:
                yield (
                    f"unmatched pipeline tiles: tiles of {loop.tile} do not divide {tile_of[rank]} "
                    f"({loop.rank}); the tiles of a pipeline are equal"
                )
            tile_of[rank] = loop.tile
    f, order = stage_array(segment, arch), {level.name: v for v, level in enumerate(arch.levels)}
    home_of, made = homes(segment), {e.output.tensor for e in einsums}
    users_of = _users_of(segment, g)
    for tensor, node in home_of.items():
        users, is_made = users_of.get(tensor, []), tensor in made
        if not users or node.level not in order:
            yield (
                f"store {node.level} {tensor}: no einsum of the segment has such a tensor, or the "
                "machine no such level"
            )
        elif f and order[node.level] >= f.outside and not (is_made and len(users) > 1):
            yield (
                f"store {node.level} {tensor}: {node.level} lies in the regions of stages; only what one "
                "passes to another stands above them, put it into a nest"
            )
        elif (is_made or order[node.level]) and len(
            {_view(p, b, loops, e.sizes() if not is_made else {}) for b, e, p in users}
        ) > 1:
            yield (
                f"unmatched pipeline tiles: shared loops cut {tensor} in another way in {users[1][0].einsum} "
                f"than in {users[0][0].einsum}; cut equal dimensions"
            )
    for e in einsums:
        users = users_of[e.output.tensor]
        names_of: dict[str, list[str]] = {}
        for _, later, p in users:
            if p is not later.output:
                names_of.setdefault(later.name, []).append(p.tensor)
        for later_name, names in names_of.items():
            if segment.pipelined and e.output.tensor not in names:
                yield (
                    f"{later_name} reads {e.output.tensor} of {e.name} by another name, which stages do "
                    "not pass on; put it into a segment of its own"
                )
            if later_name == e.name:
                continue
            if e.output.tensor not in home_of:
                yield (
                    f"{e.output.tensor} goes from {e.name} to {later_name}, but no storage node above "
                    f"both holds it; add store LEVEL {e.output.tensor} there"
                )
            for branch, _, p in users:
                if cut_rank := [
                    loop.rank for loop in loops if rank_in_branch(loop.rank, branch) not in p.full_ranks()
                ]:
                    yield (
                        f"shared loop {cut_rank[0]} cuts {p.tensor} into no whole tiles in "
                        f"{branch.einsum}; what is passed on is tiled over ranks that stand "
                        "alone in one of its dimensions"
                    )


def _view(p: Projection, branch: Branch, loops: Sequence[Loop], sizes: dict[str, int]) -> tuple[object, ...]:
    """Returns a tensor's dimensions as shared loops cut them, and how much of each an einsum reads.

    sizes: extent of the einsum's ranks; empty where the tensor is made in the segment: then all of a
        dimension that no shared loop cuts is there, whichever part of it an einsum reads
    """
    shared = {rank_in_branch(loop.rank, branch): loop.rank for loop in loops}
    dims = [
        (
            d.offset if sizes or any(rank in shared for rank in d.ranks()) else 0,
            d.size,
            tuple(sorted((shared[rank], c) for rank, c in d.terms if rank in shared)),
            sum(c * sizes.get(rank, 0) for rank, c in d.terms),
        )
        for d in p.dims
    ]
    return (*dims, p.bits, p.format, p.density)


def _on_chip_faults(
    i: int, segment: Segment, schedule: Schedule, workload: Workload, g: Graph, arch: Arch
) -> Iterator[str]:
    """Yields tensors that begin or end on chip, unless the segment passes them on or they are pinned
    weights.
    """
    home_of, outermost, users_of = homes(segment), arch.levels[0].name, _users_of(segment, g)
    passed_on = {
        e.output.tensor
        for branch in segment.branches
        for e in [g.einsums[branch.einsum]]
        if e.output.tensor in home_of and len({b.einsum for b, _, _ in users_of[e.output.tensor]}) > 1
    }
    for branch in segment.branches:
        e = g.einsums[branch.einsum]
        shared, nodes = (
            [node for node in nodes_ if isinstance(node, Store)]
            for nodes_ in (segment.nodes, branch.mapping.nodes)
        )
        for p in e.tensors():
            above = [node.level for node in shared if node.tensor == base_tensor(p.tensor, g.makers)]
            level = next(chain(above, (node.level for node in nodes if node.tensor == p.tensor)), outermost)
            is_passed_on = p.tensor in passed_on
            if level == outermost:
                continue
            if p is e.output:
                other_readers = [name for name in g.readers.get(p.tensor, ()) if g.position[name][0] != i]
                leaves_chip = not g.readers.get(p.tensor) or p.tensor in g.results
                if not is_passed_on or other_readers or leaves_chip:
                    why = (
                        f"{other_readers[0]} reads it from {outermost}"
                        if other_readers
                        else "it is a result"
                        if leaves_chip
                        else "no other einsum gets it"
                    )
                    yield (
                        f"{p.tensor} of {e.name} never leaves {level}, but {why}; add store {outermost} "
                        f"{p.tensor}"
                    )
            elif not is_passed_on and not (schedule.weights == "pinned" and p.tensor in workload.weights):
                fix = ", or say weights pinned" if p.tensor in workload.weights else ""
                yield (
                    f"{p.tensor} starts at {level} in {e.name}, where nothing brings it; add store "
                    f"{outermost} {p.tensor}{fix}"
                )


def nest_faults(one: Placed) -> Iterator[str]:
    """Yields the faults of an einsum's whole nest, of its `hold` lines (nodes filled once) and of its parfor
    loops over a stage's PEs. Tensors that are passed on or pinned need no node further out.
    """
    b, e, arch = one.boundary, one.einsum, one.arch
    if b is ALONE:
        yield from (
            nest.faults(one.nest, e, arch)
            or transfer.faults(one.nest, e, arch)
            or rotation.faults(one.nest, e, arch)
            or _hop_faults(one.nest, one)
        )
        return
    if b.outer and one.nest.layouts:
        yield (
            f"mapping of {e.name}: layout {one.nest.layouts[0].level} {one.nest.layouts[0].tensor}: "
            "below shared loops tensors lie row-major; leave it out"
        )
        return
    for tensor, _, _ in b.remote_sums:
        if sum(isinstance(node, Store) and node.tensor == tensor for node in b.outer) > 1:
            yield (
                f"mapping of {e.name}: PEs share sums of {tensor}, which leaves the chip too; split "
                "another rank"
            )
            return
    whole = whole_nest(b, one.nest)
    bypassable = replace(arch, levels=tuple(replace(level, bypass=True) for level in arch.levels))
    if lines := nest.faults(whole, e, bypassable):
        yield from lines
        return
    remote = {row[0] for row in b.remote}
    lines = rotation.faults(whole, e, arch) + [
        f"mapping of {e.name}: share {one.level} {one.tensor}: another stage holds it; what stages read "
        "from each other is not shared out; leave the share out"
        for one in whole.shares
        if one.tensor in remote
    ]
    if lines:
        yield from lines
        return
    order = {level.name: v for v, level in enumerate(arch.levels)}
    levels_of = {
        p.tensor: [
            order.get(node.level, 0)
            for node in whole.nodes
            if isinstance(node, Store) and node.tensor == p.tensor
        ]
        for p in e.tensors()
    }
    for v, level in enumerate(arch.levels):
        if missing := [
            t
            for t in nest.may_keep(e, level)
            if not level.bypass
            and levels_of[t]
            and levels_of[t][0] <= v not in levels_of[t]
            and t not in {r[0] for r in b.remote}
        ]:
            yield (
                f"mapping of {e.name}: tensor {missing[0]} is not stored at {level.name}, which no "
                "tensor may bypass"
            )
    for tensor in b.pinned:
        p = next(p for p in e.inputs if p.tensor == tensor)
        node = next(i for i, n in enumerate(whole.nodes) if isinstance(n, Store) and n.tensor == tensor)
        if cut := [
            n.rank for n in whole.nodes[:node] if isinstance(n, Loop) and not n.over and n.rank in p.ranks()
        ]:
            yield (
                f"mapping of {e.name}: {tensor} is pinned, but stands below loop {cut[0]}, which "
                "replaces its tile; raise its node"
            )
    for store in b.filled_once:
        held_input = next((p for p in e.inputs if p.tensor == store.tensor), None)
        above = one.nest.nodes[: one.nest.nodes.index(store)] if store in one.nest.nodes else ()
        if (
            held_input is None
            or store not in one.nest.nodes
            or {node.rank for node in b.outer if isinstance(node, Loop)} & held_input.ranks()
        ):
            yield (
                f"mapping of {e.name}: hold {store.level} {store.tensor}: must name a store of the "
                "einsum's own nest whose input no shared loop cuts"
            )
        elif over := [node.rank for node in above if isinstance(node, Loop) and not node.over]:
            yield (
                f"mapping of {e.name}: hold {store.level} {store.tensor} stands below loop {over[0]}, "
                "which fills it again; raise it"
            )
        elif store.tensor in {n.tensor for n in above if isinstance(n, Store)} | {
            n.tensor for n in _below_loops(b.outer) if isinstance(n, Store)
        }:
            yield (
                f"mapping of {e.name}: hold {store.level} {store.tensor} stands below another node of "
                f"{store.tensor}, which is filled again; hold that one"
            )
    over_stage = [isinstance(node, Loop) and node.over in b.stage_dims for node in one.nest.nodes]
    lead_count = over_stage.index(False) if False in over_stage else len(over_stage)
    tile_of = e.sizes() | {node.rank: node.tile for node in b.outer if isinstance(node, Loop)}
    if b.owners and any(over_stage[lead_count:]):
        yield (
            f"mapping of {e.name}: parfor loops over {', '.join(b.stage_dims)} must stand first, so that it "
            f"is known which PEs read {b.owners[0][0]} from where"
        )
        return
    yield from _hop_faults(whole, one)
    for home in b.homes:
        if any(over_stage[lead_count:]):
            yield (
                f"mapping of {e.name}: parfor loops over {', '.join(b.stage_dims)} must stand first, so that "
                f"{home.tensor} lies spread over the PEs of the stage"
            )
            return
        for loop in one.nest.nodes[:lead_count]:
            assert isinstance(loop, Loop)
            if loop.rank not in e.output.ranks() and not _reduced_on_the_way(loop.over, home.level, arch):
                yield (
                    f"mapping of {e.name}: parfor {loop.rank} over {loop.over} splits the sums of "
                    f"{home.tensor}, which are not added up on the way there; split another rank"
                )
            tile_of[loop.rank] = loop.tile


def _reduced_on_the_way(dim: str, level: str, arch: Arch) -> bool:
    """True if partial sums of the PEs along a dimension are added up on the way to `level`, the first one
    inside the fan-out, and start from zero there.
    """
    f = next(f for f in arch.fanouts if dim in [name for name, _ in f.dims])
    outer = arch.levels[f.outside - 1]
    return (
        dict(zip([name for name, _ in f.dims], f.reduce, strict=True))[dim]
        and arch.levels[f.outside].name == level
        and outer.skip_first_read
    )


def _hop_faults(whole: Mapping, one: Placed) -> list[str]:
    """Returns why hops of a nest cannot be counted, as one line, or an empty list."""
    try:
        sums = nest_sums(whole, one.einsum, one.arch)
        list(network_traffic(one.boundary, whole, sums, one.arch))
    except ValueError as fault:
        return [f"mapping of {one.einsum.name}: {fault}"]
    return []


def _below_loops(nodes: Sequence[Loop | Store]) -> Sequence[Loop | Store]:
    return nodes[next((i for i, node in enumerate(nodes) if isinstance(node, Loop)), len(nodes)) :]

"""Layouts for a whole workload: a layout for every tensor and use of it, and conversions between layouts
where they pay, written as a problem for the graph engine (dse/solve/elimination.py).

    nodes     per tensor: one for the tensor as its maker writes it, one for each einsum that reads it
    labels    of a node: a layout, as its number in the tensor's list of layouts. The list has row-major,
              channels innermost, channels in blocks of the lanes, and the layouts that suit the loops of its
              maker and readers best
    factors   per einsum, over the nodes of its tensors: cost of its best mapping in these layouts
              per tensor, over all of its nodes: cost of the copies into other layouts that readers have, one
              copy per layout

Weights and other inputs are in the best layout before the run, and tensors that only one einsum uses are in
the best layout for it. An element-wise einsum may read one layout and write another, which makes a copy
needless.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Mapping as Dict
from dataclasses import dataclass, replace
from itertools import product
from math import inf, prod
from typing import NamedTuple, get_args

import numpy as np

from dse.layout.address import Layout, row_major
from dse.layout.text import parse, show
from dse.mapper.exact.layout_aware import (
    LayoutPricing,
    PricedMappings,
    TensorAt,
    best_layouts,
    in_layouts,
    layout_pricing,
)
from dse.mapper.exact.spatial import divisors
from dse.mapping.conversion import Conversion, copy_einsum, copy_of, reader, with_conversions
from dse.mapping.nest import Infeasible, Mapping, TensorLayout
from dse.mapping.schedule import Branch, Schedule, Segment, rename
from dse.mapping.searched import Space, encoded
from dse.sim.einsum.evaluate import (
    ANY_MAPPING,
    ROUNDING_GAP,
    UNFUSED_BOUND,
    EinsumCost,
    Solution,
    certificate_text,
    gap_in_space_text,
    objective_value,
    relative_gap,
)
from dse.sim.fronts import Objective
from dse.sim.levels.transfer import dim_names, shape_at
from dse.sim.schedule.graph import evaluate
from dse.solve.elimination import Choice, Table, join, table
from dse.solve.layouts.convert import Conversions
from dse.solve.options import LayoutPolicy
from hw.arch import Arch
from workloads.einsum import Einsum, Projection, canonical_key
from workloads.graph import ELEMENTWISE, Workload, base_tensor, counts

MAX_LABELS = 8  # maximum of layouts in a tensor's list
# up to so many readers of a tensor may each have a layout of their own; more readers share one
MAX_OWN_LAYOUTS = 3
LAYOUT_POLICIES: dict[str, str] = {
    "row_major": "row-major between einsums, each solved alone; tensors inside an einsum in their best "
    "layouts",
    "ol": "ALT-OL: channels innermost (N H W O) between einsums, solved as one graph",
    "nohw": "the same, row-major (N O H W)",
    "neocpu": "the same, channels in blocks of as many as an array has PEs in its largest dimension "
    "(N O/ot H W ot)",
    "ansor": "layouts as neocpu, but loops are chosen first, where weights and inputs are row-major; these "
    "are packed for the loops after that",
    "wp": "ALT-WP: producers write the layout that MAC einsums read; element-wise functions that are fused "
    "into a product keep N H W O, so that another layout takes a pass over the tensor",
    "fp": "ALT-FP: between products what its maker would choose alone",
    "bp": "ALT-BP: between products what its reader would choose alone",
    "bf": "the best single layout for all tensors: row-major, or channels innermost",
    "ind": "every product what it would choose alone, conversions between",
    "alt-published": "ALT by its three constraints: every product what it would choose alone, layouts of "
    "same-shaped element-wise results as their operand's or reader's, nothing unfolded or padded is passed "
    "on; conversions elsewhere",
    "sampled": "ALT's two-stage search: every product in the layouts and loops that it finds within "
    "solver.layout_joint + solver.layout_loops costs, conversions between",
    "alt": "lowest cost: layouts and conversions of the whole graph, exact over the candidate layouts",
}
assert tuple(LAYOUT_POLICIES) == get_args(LayoutPolicy)


@dataclass(frozen=True, slots=True)
class LayoutAssignment:
    """A solved workload in which conversions are einsums (copies). value: objective of the choice;
    lower_bound: no choice of mappings, layouts and conversions costs less.
    """

    workload: Workload
    solution: Solution
    schedule: Schedule
    conversions: tuple[Conversion, ...]
    value: float
    lower_bound: float


class Rule(NamedTuple):
    """What a policy leaves to choose."""

    allowed: dict[str, tuple[int, ...]]  # labels that each node may have
    maker_bound: frozenset[str] = frozenset()  # nodes of readers that must have the label of the maker
    # tensors whose epilogue keeps the layout with channels innermost: where the maker writes or the readers
    # want another one, the epilogue reads what the maker wrote and writes what all readers want. It moves
    # what a copy does
    unfused: frozenset[str] = frozenset()
    # whether an einsum's mapping is the best one where its other tensors are row-major
    loops_first: bool = False


@dataclass(frozen=True, slots=True)
class Use:
    """A tensor as one einsum uses it. einsum: number of the einsum; position: of the tensor among the
    einsum's tensors; node: of the graph, whose label is the tensor's layout there; is_view: whether the
    einsum reads the tensor in another shape, which needs the row-major layout.
    """

    einsum: int
    position: int
    node: str
    is_view: bool


@dataclass(frozen=True, slots=True)
class InterfaceTensor:
    """A tensor that one einsum makes and others read, with its candidate layouts (labels)."""

    tensor: str
    maker: Use
    readers: tuple[Use, ...]
    labels: tuple[Layout, ...]
    channels_last: int  # label of the layout with channels innermost, 0 if a reader has another shape
    blocked: int  # label of the layout with channels in blocks, as above
    has_epilogue: bool  # whether a product makes it, with element-wise functions fused into it

    def has_view(self) -> bool:
        """Whether an einsum reads the tensor in another shape."""
        return any(use.is_view for use in self.readers)

    def copied(self, rule: Rule, labels: Dict[str, int]) -> list[int]:
        """The labels of the copies of a choice that keeps a rule. labels: by node."""
        written, wanted = labels[self.maker.node], {labels[use.node] for use in self.readers}
        if self.tensor in rule.unfused:
            return [] if wanted == {written} == {self.channels_last} else sorted(wanted)
        return sorted(wanted - {written})

    def keeps(self, rule: Rule, labels: Dict[str, int]) -> bool:
        """Whether a choice keeps a rule. labels: by node."""
        if self.tensor in rule.unfused:
            return len({labels[use.node] for use in self.readers}) == 1
        written = labels[self.maker.node]
        return all(labels[u.node] == written for u in self.readers if u.node in rule.maker_bound)


def interface_tensors(workload: Workload) -> dict[str, frozenset[str]]:
    """By key of each unique einsum: the tensors, named as in the first of equal einsums, that one of these
    einsums exchanges with another einsum.
    """
    made = {e.output.tensor for e in workload.einsums}
    state_inputs = {name for _, name in workload.loop_state}
    exchanged = made & {base_tensor(p.tensor, made) for e in workload.einsums for p in e.inputs} | {
        result for result, _ in workload.loop_state
    }
    found: dict[str, frozenset[str]] = {}
    firsts: dict[str, Einsum] = {}
    for e in workload.einsums:
        first = firsts.setdefault(canonical_key(e), e)
        interface = {
            first_tensor.tensor
            for first_tensor, p in zip(first.tensors(), e.tensors(), strict=True)
            if base_tensor(p.tensor, made) in exchanged or p.tensor in state_inputs
        }
        found[canonical_key(e)] = found.get(canonical_key(e), frozenset()) | interface
    return found


def assign_layouts(
    arch: Arch, workload: Workload, objective: Objective, policy: str, solved: dict[str, PricedMappings]
) -> LayoutAssignment | Infeasible:
    """The workload in the layouts that a policy chooses. policy: key of LAYOUT_POLICIES; solved: mappings of
    each unique einsum, by key.
    """
    problem = Layouts(arch, workload, objective, solved, keeps_found=policy == "sampled")
    rules = list(problem.rules(policy))
    found = [problem.minimum(rule) for rule in rules]
    (value, _, choice, tables), rule = min(zip(found, rules, strict=True), key=lambda pair: pair[0][0])
    if choice is None:
        return Infeasible("layouts", 1, 0, workload.name, "assignments")
    lower_bounds = (
        min(minimum[1], problem.lower_bound(rule)) for minimum, rule in zip(found, rules, strict=True)
    )
    return problem.to_assignment(policy, value, min(lower_bounds), choice, tables, rule)


# (tensor, label that its maker writes, label of the copy) -> (energy, cycles) of the copy
Price = Callable[[InterfaceTensor, int, int], tuple[float, float]]
NO_RULE = Rule({})
# by policy that leaves no choice: labels of all nodes of a tensor, of which the best are taken
FIXED: dict[str, tuple[Callable[[InterfaceTensor], int], ...]] = {
    "ol": (lambda one: one.channels_last,),
    "nohw": (lambda _: 0,),
    "bf": (lambda _: 0, lambda one: one.channels_last),
    "neocpu": (lambda one: one.blocked,),
    "ansor": (lambda one: one.blocked,),
}


class Layouts:
    """The problem of choosing layouts for one workload, at most `max_labels` per tensor. An object serves one
    solve, since it remembers which copies were solved. keeps_found: products stay in the layouts that they
    were found in (solver.layout: sampled).
    """

    def __init__(
        self,
        arch: Arch,
        workload: Workload,
        objective: Objective,
        solved: dict[str, PricedMappings],
        max_labels: int = MAX_LABELS,
        keeps_found: bool = False,
    ) -> None:
        self.arch, self.workload, self.objective, self.solved, self.max_labels = (
            arch,
            workload,
            objective,
            solved,
            max_labels,
        )
        self.home, self.occurrences = arch.levels[0].name, counts(workload)
        self.keys = [canonical_key(e) for e in workload.einsums]
        # by key: the first of equal einsums
        self.firsts = dict(reversed(list(zip(self.keys, workload.einsums, strict=True))))
        self.interface_names = interface_tensors(workload)
        # by key, for each of its mappings: best layouts of all tensors, with interface tensors row-major
        self.free_layouts = {
            key: [
                best_layouts(one, self._row_major_layouts(one, self.interface_names[key]))[2]
                for one in found.mappings
            ]
            for key, found in solved.items()
        }
        # by key of each product that keeps its layouts: these, at the outermost level
        self.found_layouts: dict[str, dict[str, Layout]] = {}
        for key, e in self.firsts.items() if keeps_found else ():
            if e.kind == "mac":
                self.found_layouts[key] = self._layouts_found(key, e)
                self.free_layouts[key] = [self._as_found(key, one) for one in solved[key].mappings]
        self.pricings: dict[int, list[LayoutPricing]] = {}  # memo of `pricings_of`
        # memo of `_mapping_costs`
        self.costs: dict[tuple[str, tuple[Layout | None, ...]], list[tuple[float, float]]] = {}
        # tables of einsums, shared by equal einsums with equal labels
        self.einsum_tables: dict[tuple[object, ...], Table] = {}
        self.conversions = Conversions(arch, objective)
        # tensors (bits, shape) whose copies have been solved; copies of others count with a lower bound
        self.solved_copies: set[tuple[int | None, tuple[int, ...]]] = set()
        self.interface = list(self._interface_tensors())
        self.nodes = {
            (use.einsum, use.position): (one, use)
            for one in self.interface
            for use in (one.maker, *one.readers)
        }
        self.shares_layouts = any(
            len({use.node for use in one.readers}) < len(one.readers) for one in self.interface
        )

    def _layouts_found(self, key: str, e: Einsum) -> dict[str, Layout]:
        """The layouts of whole tensors in which an einsum's mapping was found, by tensor."""
        mapping = self.solved[key].costs[0].mapping
        texts = {one.tensor: one.text for one in mapping.layouts if one.level == self.home}
        return {
            p.tensor: parse(texts.get(p.tensor, " ".join(dim_names(p))), dim_names(p), _shape(p))
            for p in e.tensors()
        }

    def _as_found(self, key: str, pricing: LayoutPricing) -> dict[TensorAt, Layout]:
        """The layouts in which a mapping was found, row-major for interface tensors and below the outermost
        level.
        """
        e, arch, interface = self.firsts[key], self.arch, self.interface_names[key]
        return {
            (level, tensor): self.found_layouts[key][tensor]
            if level == self.home and tensor not in interface
            else row_major(dim_names(link.tensor), shape_at(pricing.nest, link, e, arch))
            for (level, tensor), link in pricing.links.items()
        }

    def _row_major_layouts(
        self,
        pricing: LayoutPricing,
        names: frozenset[str],
        level: str = "",
        retained: frozenset[str] = frozenset(),
    ) -> dict[TensorAt, Layout]:
        """Row-major layouts of the tensors `names` at the outermost level and of the tensors `retained` at
        `level`, as far as the mapping stores them there.
        """
        found = {
            place: link.tensor
            for place, link in pricing.links.items()
            if place[1] in (names if place[0] == self.home else retained if place[0] == level else ())
        }
        return {place: row_major(dim_names(p), tuple(d.size for d in p.dims)) for place, p in found.items()}

    def _interface_tensors(self) -> Iterator[InterfaceTensor]:
        """The interface tensors, in the order of their makers. Nodes of tensor T: T> as its maker writes it,
        T<i.x as input x of einsum i, or T< for all readers together if there are more than MAX_OWN_LAYOUTS.
        """
        made = {e.output.tensor: i for i, e in enumerate(self.workload.einsums)}
        state_results = {name: result for result, name in self.workload.loop_state}
        channels, with_epilogue = channel_dims(self.workload), {name for _, name in self.workload.stored_as}
        lanes = max((n for f in self.arch.fanouts for _, n in f.dims), default=1)
        readers: dict[str, list[tuple[int, int]]] = {}
        for i, e in enumerate(self.workload.einsums):
            for x, p in enumerate(e.inputs):
                readers.setdefault(base_tensor(state_results.get(p.tensor, p.tensor), made), []).append(
                    (i, x)
                )
        for tensor, i in made.items():
            e, reads = self.workload.einsums[i], readers.get(tensor, [])
            shape = _shape(e.output)
            uses = [
                Use(
                    j,
                    x,
                    f"{tensor}<"
                    if len(reads) > MAX_OWN_LAYOUTS and _shape(self._projection(j, x)) == shape
                    else f"{tensor}<{j}.{x}",
                    _shape(self._projection(j, x)) != shape,
                )
                for j, x in reads
            ]
            if reads and e.output.format == "dense":
                row_major_layout = row_major(_dim_names(len(shape)), shape)
                last = blocked = row_major_layout
                if not any(use.is_view for use in uses):
                    last, blocked = (
                        parse(text, row_major_layout.names, shape)
                        for text in channel_texts(
                            row_major_layout.names, shape, channels.get(tensor, ()), lanes
                        )
                    )
                preferred = [
                    self._preferred_layouts(i, len(e.inputs)),
                    *(self._preferred_layouts(use.einsum, use.position) for use in uses if not use.is_view),
                ]
                rows = [ranked[k] for k in range(self.max_labels) for ranked in preferred if k < len(ranked)]
                first = [row_major_layout, last, *([blocked] if self.max_labels >= MAX_LABELS else [])]
                labels = tuple(dict.fromkeys([*first, *rows]))[: self.max_labels]
                yield InterfaceTensor(
                    tensor,
                    Use(i, len(e.inputs), f"{tensor}>", False),
                    tuple(uses),
                    labels,
                    labels.index(last) if last in labels else 0,
                    labels.index(blocked) if blocked in labels else 0,
                    e.kind == "mac" and tensor in with_epilogue,
                )

    def _projection(self, i: int, x: int) -> Projection:
        return self.workload.einsums[i].tensors()[x]

    def _preferred_layouts(self, i: int, x: int) -> list[Layout]:
        """The layouts of its x-th tensor that are best for the i-th einsum: up to two per mapping."""
        if self.keys[i] in self.found_layouts:
            return [self._found_layout(i, x)]
        found: list[Layout] = []
        for pricing in self.solved[self.keys[i]].mappings:
            place = self.home, self.firsts[self.keys[i]].tensors()[x].tensor
            if place in pricing.links:
                found += [
                    replace(layout, names=_dim_names(len(layout.shape)))
                    for layout in pricing.front(place, pricing.candidates(place))[:2]
                ]
        return list(dict.fromkeys(found))

    def _found_layout(self, i: int, x: int) -> Layout:
        """The layout in which the x-th tensor of a product was found."""
        p = self.firsts[self.keys[i]].tensors()[x]
        layout = self.found_layouts[self.keys[i]][p.tensor]
        return replace(layout, names=_dim_names(len(layout.shape)))

    def rules(self, policy: str) -> Iterator[Rule]:
        """The rules of a policy, of which the best one is taken.

        A label is the number of a layout in the tensor's list; 0 is row-major, the only one for a view.
        """
        all_labels = {
            use.node: (0,) if use.is_view else tuple(range(len(one.labels)))
            for one in self.interface
            for use in (one.maker, *one.readers)
        }
        is_product = [e.kind == "mac" for e in self.workload.einsums]
        if policy == "alt":
            yield Rule(all_labels)
            return
        if policy in FIXED:
            for label_of in FIXED[policy]:
                yield Rule(
                    {
                        use.node: (label_of(one),)
                        for one in self.interface
                        for use in (one.maker, *one.readers)
                    },
                    loops_first=policy == "ansor",
                )
            return
        if policy == "alt-published":
            yield Rule(self._published_labels(is_product))
            return
        allowed, maker_bound, unfused = dict(all_labels), set[str](), set[str]()
        for one in self.interface:
            product_reads = [use for use in one.readers if is_product[use.einsum] and not use.is_view]
            if policy == "wp":
                fixed = (
                    (one.maker, *one.readers)
                    if one.has_view() or not (product_reads or is_product[one.maker.einsum])
                    else one.readers
                    if one.has_epilogue and not product_reads
                    else ()
                )
                allowed |= {use.node: (one.channels_last,) for use in fixed}
                if one.has_epilogue:
                    unfused |= set() if one.has_view() else {one.tensor}
                else:
                    maker_bound |= {use.node for use in one.readers}
            elif policy in ("ind", "sampled"):
                allowed |= {
                    use.node: (self.preferred_label(use),)
                    for use in (one.maker, *product_reads)
                    if is_product[use.einsum]
                }
            elif is_product[one.maker.einsum] and product_reads:
                allowed |= {
                    one.maker.node: (self.preferred_label(one.maker if policy == "fp" else product_reads[0]),)
                }
                maker_bound |= {use.node for use in product_reads}
        yield Rule(allowed, frozenset(maker_bound), frozenset(unfused))

    def _published_labels(self, is_product: Sequence[bool]) -> dict[str, tuple[int, ...]]:
        """The label of each node by ALT's constraints (sections 4.2 and 6 of its publication), einsum by
        einsum in the order of the workload.

        A product and its operands have the layouts that are best for it alone. Another einsum writes what
        the first product that reads its result wants, since it can convert as it writes; else, if it is
        element-wise, the layout of its first operand of the same shape; else channels innermost. It reads
        what was written. Layouts that store more elements than the tensor has are not passed on.
        """
        found, written = dict[str, tuple[int, ...]](), dict[str, Layout]()
        for one in self.interface:
            e = self.workload.einsums[one.maker.einsum]
            product_reads = [use for use in one.readers if is_product[use.einsum] and not use.is_view]
            wanted = {use.node: self.preferred_label(use) for use in reversed(product_reads)}
            label = one.channels_last
            if is_product[one.maker.einsum]:
                label = self.preferred_label(one.maker)
            elif product_reads and not _expands(one.labels[wanted[product_reads[0].node]]):
                label = wanted[product_reads[0].node]
            elif e.kind in ELEMENTWISE:
                operands = [
                    self.nodes[one.maker.einsum, x][0].tensor
                    for x in range(len(e.inputs))
                    if (one.maker.einsum, x) in self.nodes
                ]
                of_operands = [
                    written[t] for t in operands if t in written and written[t].shape == one.labels[0].shape
                ]
                if of_operands and of_operands[0] in one.labels and not _expands(of_operands[0]):
                    label = one.labels.index(of_operands[0])
            written[one.tensor] = one.labels[label]
            found[one.maker.node] = (label,)
            found |= {use.node: (0 if use.is_view else wanted.get(use.node, label),) for use in one.readers}
        return found

    def preferred_label(self, use: Use) -> int:
        """The label of a tensor that is best for one of its einsums, regardless of the others."""
        if self.keys[use.einsum] in self.found_layouts:
            own = self.nodes[use.einsum, use.position][0]
            return own.labels.index(self._found_layout(use.einsum, use.position))
        einsum_table = self._einsum_table(use.einsum, Rule({}))
        best = min(
            range(len(einsum_table.labels)),
            key=lambda row: (objective_value(self.objective, *einsum_table.values[row]), row),
        )
        return int(einsum_table.labels[best][einsum_table.scope.index(use.node)])

    def minimum(
        self, rule: Rule, einsums: Sequence[Table] = ()
    ) -> tuple[float, float, Choice | None, list[Table]]:
        """(value, lower bound of all choices, choice, tables) of the choice with the lowest cost; value inf
        and choice None if there is no choice. einsums: tables of the einsums, if they choose more than
        layouts.

        Copies count with a lower bound at first. If the best choice has a copy that is not solved yet, all
        copies of tensors of that shape are solved and the choice is made again. A best choice in which all
        copies are solved is the optimum.
        """
        einsums = einsums or [self._einsum_table(i, rule) for i in range(len(self.keys))]
        while True:
            tables = [*einsums, *(self._copy_table(one, rule) for one in self.interface)]
            found = join(tables, ranking=self.objective)
            if not found.choices:
                return inf, found.lower_bound, None, tables
            best = found.choices[0]
            unsolved = {
                self._shape_key(one) for one in self.interface if one.copied(rule, best.labels)
            } - self.solved_copies
            if not unsolved:
                return (
                    objective_value(self.objective, best.energy, best.latency),
                    found.lower_bound,
                    best,
                    tables,
                )
            self.solved_copies |= unsolved

    def lower_bound(self, rule: Rule) -> float:
        """A lower bound on the cost of any choice with any copies: every copy counts with its lower bound,
        while `minimum` counts the best copies that were found. inf if no copy was solved: the bound of
        `minimum` is then valid already.
        """
        if not self.solved_copies:
            return inf
        tables = (self._copy_table(one, rule, self._min_copy_cost) for one in self.interface)
        return join(
            [*(self._einsum_table(i, rule) for i in range(len(self.keys))), *tables], ranking=self.objective
        ).lower_bound

    def _einsum_table(self, i: int, rule: Rule) -> Table:
        """The table of an einsum: for each choice of labels of its nodes, one row with the cost of each
        mapping, in the order of the mappings.
        """
        uses = [
            (x, *self.nodes[i, x])
            for x in range(len(self.workload.einsums[i].tensors()))
            if (i, x) in self.nodes
        ]
        scope = self.scope(i)
        labels_of = {
            use.node: rule.allowed.get(use.node, (0,) if use.is_view else tuple(range(len(one.labels))))
            for _, one, use in uses
        }
        table_key = (
            self.keys[i],
            tuple((x, scope.index(use.node), () if use.is_view else one.labels) for x, one, use in uses),
            tuple(labels_of[node] for node in scope),
            rule.loops_first,
        )
        if table_key not in self.einsum_tables:
            rows = []
            for labels in product(*(labels_of[node] for node in scope)):
                chosen = dict(zip(scope, labels, strict=True))
                tensor_layouts = {
                    x: None if use.is_view else one.labels[chosen[use.node]] for x, one, use in uses
                }
                costs = self._mapping_costs(i, tensor_layouts)
                if rule.loops_first:
                    number = self._first_loops(i, tensor_layouts)
                    costs = [row if n == number else (inf, inf) for n, row in enumerate(costs)]
                rows += [(labels, row) for row in costs]
            self.einsum_tables[table_key] = table(scope, rows)
        return replace(
            self.einsum_tables[table_key],
            scope=scope,
            values=self.einsum_tables[table_key].values * self.occurrences[i],
        )

    def _mapping_costs(self, i: int, chosen: dict[int, Layout | None]) -> list[tuple[float, float]]:
        """(energy, cycles) of every mapping of an einsum in these layouts. chosen: position of a tensor ->
        its layout; None: row-major.
        """
        key = self.keys[i]
        first = self.firsts[key]
        tensor_layouts = tuple(chosen.get(x) for x in range(len(first.tensors())))
        if (key, tensor_layouts) not in self.costs:
            self.costs[key, tensor_layouts] = [
                one.cost(self._all_layouts(key, n, first, tensor_layouts))
                for n, one in enumerate(self.solved[key].mappings)
            ]
        return self.costs[key, tensor_layouts]

    def _first_loops(self, i: int, chosen: dict[int, Layout | None]) -> int:
        """The number of the mapping that costs least where the einsum's other tensors are row-major. chosen:
        as in `_mapping_costs`.
        """
        key = self.keys[i]
        first = self.firsts[key]
        layouts = tuple(
            chosen[x] if x in chosen else row_major(_dim_names(len(p.dims)), _shape(p))
            for x, p in enumerate(first.tensors())
        )
        costs = [
            objective_value(self.objective, *one.cost(self._placed(one, key, n, first, layouts)))
            for n, one in enumerate(self.solved[key].mappings)
        ]
        return costs.index(min(costs))

    def _placed(
        self, one: LayoutPricing, key: str, n: int, first: Einsum, layouts: Sequence[Layout | None]
    ) -> dict[TensorAt, Layout]:
        """`_all_layouts` of the tensors that the mapping moves."""
        found = self._all_layouts(key, n, first, layouts)
        return {place: layout for place, layout in found.items() if place in one.links}

    def scope(self, i: int) -> tuple[str, ...]:
        """Nodes of an einsum's shared tensors."""
        return tuple(
            dict.fromkeys(
                self.nodes[i, x][1].node
                for x in range(len(self.workload.einsums[i].tensors()))
                if (i, x) in self.nodes
            )
        )

    def lower_bound_of(self, i: int) -> float:
        """A lower bound on the objective of any mapping of an einsum in any layouts, such that bounds of
        einsums can be added: for the energy-delay product its square root.
        """
        lower_bound = self.solved[self.keys[i]].lower_bound
        return lower_bound**0.5 if self.objective == "edp" else lower_bound

    def pricings_of(self, i: int) -> list[LayoutPricing]:
        """The mappings of one einsum for which layouts are chosen, in the names of that einsum."""
        if i not in self.pricings:
            e, first = self.workload.einsums[i], self.firsts[self.keys[i]]
            self.pricings[i] = [
                layout_pricing(replace(one.problem, einsum=e), rename(one.mapping, first, e))
                for one in self.solved[self.keys[i]].mappings
            ]
        return self.pricings[i]

    def in_labels(
        self, i: int, pricings: Sequence[LayoutPricing], retained: frozenset[str], level: str
    ) -> Iterator[tuple[tuple[int, ...], list[tuple[float, float, Mapping]]]]:
        """Yields, for each choice of labels of an einsum's nodes: the labels, and (energy, cycles, mapping in
        these layouts) of each of its mappings `pricings`, which may stand anywhere in a schedule. retained:
        tensors that are stored at `level` instead of the outermost level; they are row-major, as all einsums
        that share them expect.
        """
        e = self.workload.einsums[i]
        uses = [(p, *self.nodes[i, x]) for x, p in enumerate(e.tensors()) if (i, x) in self.nodes]
        names = frozenset(p.tensor for p, _, _ in uses)
        free_layouts = [
            best_layouts(one, self._row_major_layouts(one, names, level, retained))[2] for one in pricings
        ]
        scope = self.scope(i)
        labels_of = {
            use.node: range(1) if use.is_view or p.tensor in retained else range(len(one.labels))
            for p, one, use in uses
        }
        for labels in product(*(labels_of[node] for node in scope)):
            label = dict(zip(scope, labels, strict=True))
            interface_layouts = {
                (self.home, p.tensor): replace(one.labels[label[use.node]], names=dim_names(p))
                for p, one, use in uses
                if not use.is_view and p.tensor not in retained
            }
            rows = []
            for one, inner_layouts in zip(pricings, free_layouts, strict=True):
                chosen = {
                    place: layout
                    for place, layout in (inner_layouts | interface_layouts).items()
                    if place in one.links
                }
                rows.append((*one.cost(chosen), in_layouts(one.mapping, chosen)))
            yield labels, rows

    def _all_layouts(
        self, key: str, mapping: int, e: Einsum, tensor_layouts: Sequence[Layout | None]
    ) -> dict[TensorAt, Layout]:
        """The layouts of all tensors in a mapping, given by its number among the einsum's mappings.
        tensor_layouts: of the tensors at the outermost level; None: the best one, or row-major for interface
        tensors.
        """
        chosen = {
            (self.home, p.tensor): replace(layout, names=dim_names(p))
            for p, layout in zip(e.tensors(), tensor_layouts, strict=True)
            if layout
        }
        return self.free_layouts[key][mapping] | chosen

    def _copy_table(self, one: InterfaceTensor, rule: Rule, price: Price | None = None) -> Table:
        """The table of a tensor: for each choice of labels of its nodes, the cost of its copies: one into
        each layout that a reader has and the maker does not write.
        """
        scope, rows, occurrences = _scope(one), [], self.occurrences[one.maker.einsum]
        for labels in product(*(rule.allowed.get(node, tuple(range(len(one.labels)))) for node in scope)):
            chosen = dict(zip(scope, labels, strict=True))
            if not one.keeps(rule, chosen):
                continue
            copies = [(price or self._copy_cost)(one, labels[0], to) for to in one.copied(rule, chosen)]
            rows.append(
                (
                    labels,
                    (
                        occurrences * sum(energy for energy, _ in copies),
                        occurrences * sum(cycles for _, cycles in copies),
                    ),
                )
            )
        return table(scope, rows)

    def _copy_cost(self, one: InterfaceTensor, maker_label: int, to: int) -> tuple[float, float]:
        bits, shape = self._shape_key(one)
        if (bits, shape) not in self.solved_copies:
            return self._min_copy_cost(one, maker_label, to)
        found = self.conversions.cost(bits, one.labels[maker_label], one.labels[to])
        return found.energy, found.cycles

    def _min_copy_cost(self, one: InterfaceTensor, maker_label: int, to: int) -> tuple[float, float]:
        return self.conversions.lower_bound(*self._shape_key(one))

    def _shape_key(self, one: InterfaceTensor) -> tuple[int | None, tuple[int, ...]]:
        return self._bits(one), one.labels[0].shape

    def _bits(self, one: InterfaceTensor) -> int | None:
        """Bits of an element; None: a machine word."""
        return self.workload.einsums[one.maker.einsum].output.bits

    def to_assignment(
        self,
        policy: str,
        value: float,
        lower_bound: float,
        choice: Choice,
        tables: Sequence[Table],
        rule: Rule,
    ) -> LayoutAssignment:
        """The workload with conversions as einsums, every einsum in its mapping and layouts, priced by the
        evaluator.
        """
        with_copies, conversions, nests = self.copies(choice, value, rule=rule)
        einsums_by_name = {e.name: e for e in with_copies.einsums}
        for i, e in enumerate(self.workload.einsums):
            nests[e.name] = self._nest(i, einsums_by_name[e.name], choice, tables[i])
        schedule = Schedule(tuple(Segment((Branch(name, nests[name]),)) for name in einsums_by_name))
        found = evaluate(self.arch, with_copies, schedule, self.objective)
        assert isinstance(found, Solution)
        einsum_bounds = {key: one.lower_bound for key, one in self.solved.items()}
        counted_bounds = [(n, einsum_bounds[key]) for key, n in zip(self.keys, self.occurrences, strict=True)]
        mapping_bound = (
            sum(n * one for n, one in counted_bounds)
            if self.objective != "edp"
            else sum(n * one**0.5 for n, one in counted_bounds) ** 2
        )
        to_bound = found.gap_to_bound
        gap = min(
            relative_gap(
                objective_value(self.objective, found.energy_pj, found.latency_cycles), mapping_bound
            ),
            to_bound,
        )
        gap = gap if gap > ROUNDING_GAP else 0.0
        status = (
            f"the best of {sum(one.visited for one in self.solved.values() if not one.lower_bound)} mappings "
            "drawn with layouts"
            if self.found_layouts
            else "not exact: more than 3 readers share one layout"
            if self.shares_layouts
            else "exact over the candidate layouts"
            if lower_bound >= value
            else f"at most {100 * (value / lower_bound - 1):.3g} % above the optimum over the candidate "
            "layouts"
        )
        copies = (
            f", each at most {100 * self._max_copy_gap(choice, rule):.3g} % above the optimum of its space"
            if conversions
            else ""
        )
        claim_text = (
            f"layouts {policy} ({status}); {len(conversions)} conversions{copies}; {gap_in_space_text(gap)}"
        )
        einsums = tuple(self._with_gap(one, einsum_bounds.get(one.key, 0.0)) for one in found.einsums)
        space = self.space()
        certificate = certificate_text(
            claim_text, to_bound, ANY_MAPPING if space.alone else UNFUSED_BOUND, space
        )
        solution = replace(found, einsums=einsums, optimality_gap=gap, certificate=certificate, space=space)
        return LayoutAssignment(with_copies, solution, schedule, conversions, value, mapping_bound)

    def space(self) -> Space:
        """The searched space: all searched mappings, in all layouts and with copies; lower bounds count
        no copy.
        """
        spaces_by_text = {
            encoded(one.space): replace(one.space, layouts="all")
            for one in self.solved.values()
            if one.lower_bound > 0
        }
        return Space(
            tuple(spaces_by_text[key] for key in sorted(spaces_by_text)),
            copies=True,
            alone=len(self.workload.einsums) == 1,
        )

    def _max_copy_gap(self, choice: Choice, rule: Rule) -> float:
        """The largest optimality gap of the copies of a choice."""
        return max(
            self.conversions.cost(
                self._bits(one), one.labels[choice.labels[one.maker.node]], one.labels[to]
            ).gap
            for one in self.interface
            for to in one.copied(rule, choice.labels)
        )

    def _with_gap(self, one: EinsumCost, lower_bound: float) -> EinsumCost:
        return replace(
            one,
            optimality_gap=min(
                one.gap_to_bound,
                relative_gap(objective_value(self.objective, one.energy_pj, one.latency_cycles), lower_bound),
            ),
        )

    def _nest(self, i: int, e: Einsum, choice: Choice, table: Table) -> Mapping:
        """The mapping that the chosen row of an einsum's table stands for, with its layouts."""
        row = choice.rows[i]
        same_labels = (
            np.flatnonzero((table.labels == table.labels[row]).all(axis=1))
            if table.scope
            else np.arange(len(table.labels))
        )
        key, number = self.keys[i], int(np.searchsorted(same_labels, row))
        first, one = self.firsts[key], self.solved[key].mappings[number]
        tensor_layouts = [
            None
            if (i, x) not in self.nodes or self.nodes[i, x][1].is_view
            else self.nodes[i, x][0].labels[choice.labels[self.nodes[i, x][1].node]]
            for x in range(len(first.tensors()))
        ]
        chosen = self._all_layouts(key, number, first, tensor_layouts)
        nest = rename(one.mapping, first, e)
        tensor_of = {p.tensor: own_tensor for p, own_tensor in zip(first.tensors(), e.tensors(), strict=True)}
        return replace(
            nest,
            layouts=tuple(
                _tensor_layout(level, tensor_of[tensor], layout)
                for (level, tensor), layout in sorted(chosen.items(), key=lambda row: row[0])
                if layout != row_major(layout.names, layout.shape)
            ),
        )

    def copies(
        self, choice: Choice, value: float, einsums: Sequence[Table] = (), rule: Rule = NO_RULE
    ) -> tuple[Workload, tuple[Conversion, ...], dict[str, Mapping]]:
        """The workload with the conversions of a choice as einsums, the conversions, and their mappings by
        name.
        """
        found, nests = list(self._conversions(choice, value, einsums, rule)), dict[str, Mapping]()
        with_copies = with_conversions(self.workload, [conversion for _, _, conversion in found])
        einsums_by_name = {e.name: e for e in with_copies.einsums}
        for number, (one, to, _) in enumerate(found, 1):
            maker_layout, e = (
                one.labels[choice.labels[one.maker.node]],
                einsums_by_name[copy_of(number, one.tensor)[0]],
            )
            nest = rename(
                self.conversions.cost(self._bits(one), maker_layout, to).mapping,
                copy_einsum(maker_layout.shape, self._bits(one)),
                e,
            )
            nests[e.name] = _with_outer_layouts(nest, e, self.home, {0: maker_layout, 1: to})
        return with_copies, tuple(conversion for _, _, conversion in found), nests

    def _conversions(
        self, choice: Choice, value: float, einsums: Sequence[Table], rule: Rule
    ) -> Iterator[tuple[InterfaceTensor, Layout, Conversion]]:
        for one in self.interface:
            maker_label = choice.labels[one.maker.node]
            for to in one.copied(rule, choice.labels):
                copy = self.conversions.cost(self._bits(one), one.labels[maker_label], one.labels[to])
                readers = tuple(
                    reader(self.workload.einsums[use.einsum], use.position)
                    for use in one.readers
                    if choice.labels[use.node] == to
                )
                yield (
                    one,
                    one.labels[to],
                    Conversion(
                        one.tensor,
                        show(one.labels[maker_label]),
                        show(one.labels[to]),
                        readers,
                        copy.energy,
                        copy.cycles,
                        self.saved_by(one, value, einsums),
                    ),
                )

    def saved_by(self, one: InterfaceTensor, value: float, einsums: Sequence[Table]) -> float:
        """How much more the best choice without conversions of this tensor costs; inf if there is no such
        choice.
        """
        all_labels = next(self.rules("alt")).allowed
        return (
            self.minimum(
                Rule(all_labels, frozenset(use.node for use in one.readers if not use.is_view)), einsums
            )[0]
            - value
        )


def channel_dims(workload: Workload) -> dict[str, tuple[int, ...]]:
    """By tensor that an einsum makes, the dimensions of its channels: those that a product's weights have as
    well. Of other einsums, those of the first operand with as many dimensions.
    """
    made, found = {e.output.tensor for e in workload.einsums}, dict[str, tuple[int, ...]]()
    states = {name for _, name in workload.loop_state}
    for e in workload.einsums:
        if e.kind == "mac":
            ranks = {
                rank
                for x, p in enumerate(e.inputs)
                if p.tensor in workload.weights
                or (x and p.tensor not in states and base_tensor(p.tensor, made) not in made)
                for rank in p.ranks()
            }
            found[e.output.tensor] = tuple(
                k for k, d in enumerate(e.output.dims) if len(d.terms) == 1 and d.terms[0][0] in ranks
            )
        else:
            operands = (base_tensor(p.tensor, made) for p in e.inputs if len(p.dims) == len(e.output.dims))
            found[e.output.tensor] = next((found[t] for t in operands if t in found), ())
    return found


def channel_texts(
    names: Sequence[str], shape: Sequence[int], channels: Sequence[int], lanes: int
) -> tuple[str, str]:
    """Texts of the layouts with channels innermost, and with the last of them in blocks of the largest
    divisor up to `lanes`.

    >>> channel_texts(("N", "O", "H"), (2, 48, 7), (1,), 32)
    ('N H O', 'N O/24 H o24')
    """
    rest = [name for k, name in enumerate(names) if k not in channels]
    last = " ".join([*rest, *(names[k] for k in channels)])
    block = max(n for n in divisors(shape[channels[-1]]) if n <= lanes) if channels else 1
    if not channels or block in (1, shape[channels[-1]]):
        return last, last if block > 1 else " ".join(names)
    own = names[channels[-1]]
    outer = [f"{name}/{block}" if name == own else name for name in names]
    return last, " ".join([*outer, f"{own.lower()}{block}"])


def _expands(layout: Layout) -> bool:
    """Whether a layout stores more elements than the tensor has."""
    return layout.stored_elems() > prod(layout.shape)


def _scope(one: InterfaceTensor) -> tuple[str, ...]:
    """The nodes of a tensor, that of its maker first."""
    return tuple(dict.fromkeys([one.maker.node, *(use.node for use in one.readers)]))


def _dim_names(dims: int) -> tuple[str, ...]:
    return tuple(f"D{k}_" for k in range(dims))


def _shape(p: Projection) -> tuple[int, ...]:
    return tuple(d.size for d in p.dims)


def _tensor_layout(level: str, p: Projection, layout: Layout) -> TensorLayout:
    return TensorLayout(level, p.tensor, show(replace(layout, names=dim_names(p))))


def _with_outer_layouts(nest: Mapping, e: Einsum, home: str, chosen: dict[int, Layout]) -> Mapping:
    """A mapping to which layouts of whole tensors at the outermost level are added, unless they are
    row-major. chosen: position of a tensor -> its layout.
    """
    outer_layouts = (
        _tensor_layout(home, e.tensors()[x], layout)
        for x, layout in chosen.items()
        if layout != row_major(layout.names, layout.shape)
    )
    return replace(nest, layouts=(*outer_layouts, *nest.layouts))

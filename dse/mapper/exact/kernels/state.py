"""What the search of mappings works on, as arrays: the einsum, the machines, what costs them, and the state
of a search.

Kernels take these tuples whole; a column or a slot of an array has a name here (`ROUND`, `VISITED`, ...).
Letters in shapes: R ranks, X tensors, Dm dimensions of all tensors, D fan-out dimensions, O spatial
unrollings of all ranks end to end, n tiles of all unrollings end to end, K positions (how many fan-out
boundaries stand outside), B boundaries, V levels, J machines, P parts of a cost, Q quantities, N nodes or
sets of levels, A, B' tiles of a dimension's two ranks, M masks of groups of PEs.

Group of PEs: the fan-out dimensions at one boundary that multicast and reduce alike (spatial.Group). Mask: a
bit per group; along the groups of the mask only the first PE counts, along the others all PEs.
"""

from __future__ import annotations

from typing import NamedTuple

from workloads.arrays import Bools, Floats, Ints

ENERGY, LATENCY, EDP = 0, 1, 2
# Parts of a cost: PJ is energy; STEPS are cycles of compute; RAMP are cycles in which systolic arrays fill
# and empty, and of waits for first words. The parts of ports follow (Machine.ports, exposed, through).
PJ, STEPS, RAMP = 0, 1, 2
FEW_MACHINES = 2  # up to so many machines, each one is compared with bounds separately (`filter_machines`)
MAX_BOUNDARIES = 3  # fan-out boundaries whose PEs tighten the bounds of boxes (`spatial_search.Trees`)
MAX_WAYS = 255  # ways to split PEs over the fan-out dimensions that are told apart (`extend_pes`)
TIE_TOLERANCE = 1e-10  # costs that differ by less, relatively, are ties
# Kinds of quantities (what a quantity counts).
# ONE: 1, for costs that do not depend on tiles.
# WORDS: words of tiles. ROWS: rows of compressed tiles.
# POINTS: accesses of compute.
# `NODE_FIRST_READS`, `COMPUTE_FIRST_READS`: first reads that are skipped, of a node and of compute; PEs of a
#     group in the mask, and of one that does not reduce and is in the mask of irrelevant ranks, count once.
# `NONZERO_OUTPUTS`: elements of the output, once per position of inputs with zeros (terms.sparse) that are
#     skipped, at memories outside of arrays; `NONZERO_OUTPUTS_IN_PE`: of all inputs with zeros.
# `FIRST_FILLS`, `LAST_DRAINS`: words of the first tiles that are fetched, and of the last tiles that are
# drained.
# Their order matters: tile_sums.counts_touched_outputs, counts_end_tiles compare with it.
ONE, WORDS, ROWS, POINTS, NODE_FIRST_READS, COMPUTE_FIRST_READS = range(-1, 5)
NONZERO_OUTPUTS, NONZERO_OUTPUTS_IN_PE, FIRST_FILLS, LAST_DRAINS = range(5, 9)
# Kinds of a tensor's dimension: one rank alone; a hull of up to two ranks; such a hull, clipped since only a
# part of it is stored.
ALONE, HULL, CLIPPED = 0, 1, 2
# Slots of Work.tally. NODE_COUNT: nodes of the placement. VISITED: nodes placed since the search began;
# BUDGET: their limit, -1 once the search must end. CHOICES: boxes of spatial unrollings bounded since the
# search began; MAX_CHOICES: their limit. MIN_FOR_OUTER_BOUNDS: nodes and boxes together before the bounds of
# outer levels (`set_outer_bounds`) are worth their time, -1 once they are made
NODE_COUNT, VISITED, BUDGET, MIN_FOR_OUTER_BOUNDS, CHOICES, MAX_CHOICES = 0, 1, 2, 3, 4, 5
TENSOR, LEVEL, PARENT, POSITION = 0, 1, 2, 3  # columns of Work.nodes
# columns of Terms.quantity; the last two are masks of groups: one for ranks that are irrelevant to the tensor
# (no dimension of it has them), one for relevant ranks
QUANTITY_KIND, QUANTITY_TENSOR, QUANTITY_POSITION, MASK_IRRELEVANT, MASK_RELEVANT = 0, 1, 2, 3, 4
FILLS_END, DRAINS_END = 1, 2  # columns of Machine.exposed, after the begin of fills
# Rows of Hops.links. EVEN: all PEs have equal shares; UNEVEN: some have less; ANY: a bound of both, while the
# unrollings of some ranks are not known.
EVEN, UNEVEN, ANY = 0, 1, 2
ROUND, COUNT = 0, 1  # InnerStates.tally
# What became of a choice of loops. OVER: left out, but smaller tiles may do (`place_node`); BOUND: left out,
# and smaller tiles are no better; DONE: searched.
OVER, BOUND, DONE = 0, 1, 2
SortKey = tuple[float, float]  # lowest objective, and energy, in units of a machine (Work.unit)


class Einsum(NamedTuple):
    """The einsum: its ranks of more than one value, its tensors (the output last) and their dimensions."""

    has_rank: Bools  # [X, R] whether a rank is relevant to a tensor
    full: Bools  # [X, R] whether the rank stands alone in a dimension (m of A[m, k])
    in_window: Bools  # [X, R] whether the rank is one of a window (p and r of X[p + r])
    unshared: Bools  # [X, R] whether PEs along it share nothing that compute asks for (terms.unshared)
    has_zeros: Bools  # [R] whether an operand with zeros has the rank
    first_dim: Ints  # [X + 1] first dimension of a tensor
    kind: Ints  # [Dm] ALONE, HULL or CLIPPED
    # an index of a dimension is coef[0] * rank 0 + coef[1] * rank 1 + offset; stored are 0 .. stored_size - 1
    offset: Ints  # [Dm]
    stored_size: Ints  # [Dm]
    dim_ranks: Ints  # [Dm, 2] its ranks, -1 where there is none
    coef: Ints  # [Dm, 2]
    rank_order: Ints  # [R] in which order ranks are unrolled


class Pool(NamedTuple):
    """The spatial unrollings of all ranks, end to end (spatial.SpatialUnrollings), and the tiles that each
    may leave. Elsewhere "a tile" of a rank is the index of one of these n tiles; they are sorted by size
    within an unrolling and a position.
    """

    rank_start: Ints  # [R + 1] first unrolling of each rank
    span: Ints  # [O, K, 2] from, to: the tiles of an unrolling at a position
    size: Ints  # [n] values of the rank in a tile
    stored: Floats  # [n] the same, as capacities count it (fewer in `batch_search.set_outer_bounds` alone)
    pieces: Floats  # [n, M] how many such tiles the rank is cut into
    elems: Floats  # [n, M] values of the rank in all of these together
    outer_tile: Ints  # [n] the tile that enters the PEs directly outside; -1 in position 0
    untiled: Bools  # [n] whether no temporal loop over the rank stands above the tile
    pes: Floats  # [O, K, M] PEs in use outside of a position
    uneven: Bools  # [O] whether the last PE may have less
    cuts: Ints  # [n, .] sizes by which the rank is cut into a tile, from outside in; then zeros
    factorization_span: Ints  # [O, 2] from, to in `factorizations`
    factorizations: Ints  # [W, D] PEs along each fan-out dimension
    first_tile: Ints  # [R] first tile of a rank
    largest_tile: Ints  # [n] the largest tile of the same unrolling and position
    groups_outside: Ints  # [B + 1] mask of all groups at so many outermost boundaries
    unreduced: int  # mask of the groups whose PEs do not add up their partial sums on the way outwards


class Machine(NamedTuple):
    """Machines that differ in prices and rates alone. Level V is compute. Parts of a cost: energy, then
    cycles of compute, of ramps, of every port, and of what the inside of a level waits for at each port.
    """

    capacity: Floats  # [V] bits
    # [X, V, 3] of an element (or a nonzero with its index), of a row pointer, and of each element, zero or
    # not, of a tensor that the level stores compressed; where levels differ in the width of an element, bits
    # that divide all of these widths (search._unit_widths)
    bits: Floats
    density: Floats  # [X, V] values that are stored per element of a tensor that the level compresses, else 0
    packed: Bools  # [X] whether some level stores a tensor compressed
    # [X, V] how often an element takes its `bits`: 0 where the schedule accounts for the tensor's capacity,
    # else 1, or the width of an element at the level over `bits`
    uses_capacity: Floats
    double_buffer: Bools  # [V] whether a tile that is filled more than once counts twice
    # [X, V, V] by tensor, level of the parent, level of the node: the node does not sink below loops, except
    # into a window; its level holds the complete tile, as cache lines move whole (terms.resting_position)
    no_sink: Bools
    ports: Ints  # [V, 2] parts of reads and of writes
    # [V, 3] begin, end of fills, end of drains: which parts are stalls of first fills, and after them of last
    # drains (of a single-buffered level the first range has those of all fills and drains)
    exposed: Ints
    # [V] the last of these parts, where exchanges of one tile after the other are counted
    # (`nest_search.set_exchanges`), else -1
    exchanges: Ints
    through: Ints  # [V, 2] from, to: parts of ports that serve transfers to levels further inside
    position: Ints  # [V + 1] boundaries outside of a level
    fanout_size: Ints  # [D] PEs of a fan-out dimension
    fanout_boundary: Ints  # [D] its boundary
    leak: Floats  # [J] pJ per cycle
    max_cycles: Floats  # [J] cycles at most
    # [G] positions directly inside of a boundary with a double-buffered level further out. There loops above
    # all nodes of the position may pay: tiles outside do not sink below them, so they are not stored twice
    loop_positions: Ints
    waits_at_ends: bool  # whether first fills and last drains are waited for at some level
    # [J, V] cycles to the first word of a level; 0 where some input stands there whatever the mapping
    first_word: Floats
    # [X, V] bits of one tile of a tensor at a level, at most, counted in `bits` (constraints; inf: no limit)
    most_bits: Floats
    objective: int  # ENERGY, LATENCY or EDP


class Hops(NamedTuple):
    """The links that a word takes at least through networks whose links have a price (../hops.py). W pairs of
    a network and a receiver of words: a node of a tensor inside of it, or compute. Word group: PEs of a
    network that get the same words.
    """

    # [O, W] PEs of a word group along the rank, at least; 0: hops are not counted, links may be 0
    word_group_pes: Floats
    # [O, W] word groups along the rank, at least; a group with less than a full share counts as that share
    word_groups: Floats
    unequal: Bools  # [O, W] whether the last PEs of a network may have less
    rectangle_pes: Ints  # [O, W] PEs of the rectangle in which PEs along the rank stand, at most
    pes: Ints  # [W] PEs of the network
    first: Ints  # [W, .] by PEs of a word group: where their row begins in `links`, less 1
    # [3, .] EVEN, UNEVEN, ANY: least links of a word, by PEs of a word group, then by number of word groups
    links: Floats
    near_first: Ints  # [W] where the pair begins in `near`, -1: it has none
    # at p * (PEs + 1) + g: least mean distance from memory of g PEs in a rectangle of at most p
    near: Floats


class Terms(NamedTuple):
    """What links of tensors move, as sums of coef * quantity (search.py, `_terms`, writes them). Each machine
    has its own coefficients.
    """

    quantity: Ints  # [Q, 5] kind, tensor, position, two masks of groups: the columns QUANTITY_KIND, ...
    line_words: Floats  # [Q] words that move at once, 0: any number may
    spread_dims: Ints  # [Q] dimensions of the tensor, as a mask, of which every index takes a share of a line
    line_share: Floats  # [Q] that share
    hop_pair: Ints  # [Q] the pair of Hops whose links a quantity is multiplied by, -1: none
    hops: Hops
    link: Ints  # [X, V, V + 1, 2] by tensor, parent, child: from, to in the next two
    link_of: Ints  # [T] quantities of links
    link_coef: Floats  # [J, T, P] their coefficients on each machine
    holder_span: Ints  # [X + 1] from, to: sets of levels that may hold a tensor, in `holder_sets`
    holder_sets: Ints  # [N] a set, as a mask
    # Outer levels are those outside of all fan-out boundaries. Outer costs of a tensor: the energy of its
    # nodes there, and that of what the outermost level serves to a node further inside. A code says which
    # outer costs the tensors have: the sum of what their sets contribute.
    outer_code: Ints  # [N] what a set contributes
    outer_choices: Ints  # [., X] by code a set of each tensor that leads to it; empty: no costs are known
    # [., X] by code the code (a lower one) without the innermost of those nodes of a tensor; -1: none
    outer_without: Ints
    serves: Bools  # [X] whether outer costs have what the outermost level serves (search.py, `_serves`)
    link_outer_pj: Floats  # [J, T] outer costs in `link_coef`
    sum_outer_pj: Floats  # [J, .] outer costs in `sum_coef`
    low_outer_pj: Floats  # [J, .] outer costs in `low_coef`
    sum: Ints  # [N, 2] from, to in `sum_of`, `sum_coef`: all links of a set together
    sum_of: Ints  # quantities
    sum_coef: Floats  # their coefficients
    # [N, 2] from, to in `low_of`, `low_coef`: a lower bound of the same, without skipped first reads
    low: Ints
    low_of: Ints  # quantities
    low_coef: Floats  # their coefficients
    base: Floats  # [J, P] what is the same for all mappings


class Memo(NamedTuple):
    """Sums over the tiles of windows and of clipped dimensions, which are slow to make: filled when asked for
    (nan: not yet). First axis [B + 1]: at so many outermost boundaries only the first PE counts.
    """

    # [B + 1, Dc, A, B'] summed hull lengths (tile_sums.hull_sum) of each of the Dc clipped dimensions, by the
    # tiles of its ranks; a lower bound where only first PEs count
    hull_sums: Floats
    hull_row: Ints  # [Dm] row of a dimension in `hull_sums`
    # [2, Du, A, B'] elements of each of the Du windows of the output that all tiles together touch: all of
    # them, and those that are stored (tile_sums.union)
    unions: Floats
    union_row: Ints  # [Dm] row of a dimension in `unions`
    # [B + 1, Dm, O, O', K] the least summed hull length of a dimension over all tiles at a position, by the
    # unrollings of its ranks (tile_sums.min_hull_sum)
    min_hull_sums: Floats
    spans: Ints  # [2, 2, .] scratch
    tile: Ints  # [R] scratch
    entry: Ints  # [B + 1, R] scratch, as Work.entry_tile
    touched: Bools  # [.] scratch


class Rules(NamedTuple):
    """What a mapping must keep to. may_loop_inside_pes and stationary hold inside of all PEs in use; PEs
    along the groups in `unconstrained` do not count as in use there.
    """

    sinks: Bools  # [X, V, R] whether a node whose parent's level is V passes below a loop for free
    may_loop_inside_pes: Bools  # [R] ranks that may have temporal loops inside the PEs
    stationary: int  # tensor whose innermost node stands above all temporal loops inside the PEs, -1: none
    unconstrained: int  # mask of groups of PEs
    min_pes: int  # PEs that must be in use
    min_along: Ints  # [D] the same along each fan-out dimension
    fills: bool  # whether any of these is above 1
    uneven_only: bool  # whether only unrollings count in which some PEs share unevenly
    # Trips of all temporal loops over a rank at a level: of those that have it as the innermost level of the
    # nodes above whose tensors have the rank.
    limits_trips: bool  # whether any are limited
    limited: Bools  # [R] whether those over the rank are limited at some level
    least_trips: Ints  # [V, R]
    most_trips: Ints  # [V, R]
    # [V, R, R] whether temporal loops over the first rank at a level stand above those over the second one
    above: Bools
    orders: bool  # whether any are
    # [V, R] whether all temporal loops over a rank stand below the nodes of a level
    inside: Bools
    keeps_inside: bool  # whether any do
    ordered: Bools  # [R] whether a rank is in `above` or `inside` at some level


class InnerStates(NamedTuple):
    """Inner parts of nests that were placed before, up to a boundary, under the same unrolling and levels: a
    hash table of S slots, by the tiles that a part needs from outside. A slot has a list of members, one per
    part and machine. A round is one placement of the tensors; slots of earlier rounds count as empty.
    """

    key: Ints  # [S, R] the tiles that the slot stands for
    round: Ints  # [S] the round that a slot was written in
    head: Ints  # [S] its first member, -1: none
    parts: Floats  # [C, P] cost parts of a member
    machine: Ints  # [C] its machine
    next: Ints  # [C] the next member of the slot, -1: the end
    tally: Ints  # [2] ROUND: the present round; COUNT: members of this round


class Work(NamedTuple):
    """A nest in the making, from inside out, for all machines at once that it may be best on. Row d of an
    array is its state after d nodes are placed; the last row is scratch.
    """

    live: Ints  # [d, J] machines on which the nest may still be best (machines that are alive)
    live_count: Ints  # [d] how many
    inner_tile: Ints  # [d, R] the tile that the placed nodes need from outside
    parts: Floats  # [d, J, P] parts of a lower bound of the whole nest's cost
    used_bits: Floats  # [d, V] bits of each level in use
    entry_tile: Ints  # [K, R] the tile that the nodes at a position need from outside of their PE
    placed: Ints  # [d] nodes placed, as a mask
    position: Ints  # [d] fan-out boundaries outside of the place for the next node
    node: Ints  # [d] the node that is being placed
    node_tile: Ints  # [d, R] the tile at that node
    # [d] the loop below it whose tile is being chosen; loop_count: all are chosen; -1: none is left, the next
    # node is to be chosen
    loop: Ints
    loop_count: Ints  # [d] how many loops may stand below it
    window_count: Ints  # [d] how many of these, the first ones, are over ranks of its windows
    loop_rank: Ints  # [d, R] their ranks
    loop_tile: Ints  # [d, R] their tiles
    untried: Bools  # [d, R] whether no tile of the loop was tried before
    outcome: Ints  # [d, R] what became of the loop's tiles so far: OVER, BOUND, DONE
    unrolling: Ints  # [R] the spatial unrolling
    nodes: Ints  # [N, 4] TENSOR (-1: loops directly inside a boundary, no node), LEVEL, PARENT, POSITION
    holds_tensor: Bools  # [N] whether its double-buffered level has the capacity for its whole tensor, once
    tally: Ints  # [6] counts and limits, by the indices `NODE_COUNT`, `VISITED`, ...
    stop: Ints  # [1] set to 1 by another thread once a deadline has passed (dse/run/deadline.py)
    quantity_bound: Floats  # [Q] lower bounds of the quantities, whatever the tiles
    # [J] whether a mapping that costs the same as the best may replace it (`may_replace_tied`)
    ties_allowed: Bools
    holders: Ints  # [X] which set of levels holds each tensor
    margin: Floats  # [1] a mapping counts if it costs less than the best one so far, divided by this (from 1)
    # [., J] by code (Terms.outer_code) the least outer costs of all tensors together, 0: not known
    outer_pj: Floats
    outer_extra: Floats  # [J] what these are beyond their separate bounds (`outer_extra`)
    unit: Floats  # [J, 2] unit of objective and of energy (`set_units`), to compare machines in `sort_key`
    part_scratch: Floats  # [P] scratch
    cost: Floats  # [3] scratch: objective, energy, cycles
    lowest: Floats  # [J, 3] scratch
    largest: Ints  # [R] scratch
    sunk_tile: Ints  # [R] scratch
    reached: Ints  # [R] scratch of `reached_tile`
    gap_levels: Ints  # [., R] scratch of `is_in_order`: by gap between nodes, the level of its loop, -1: none
    best: Floats  # [J, 3] cost of the best nest of outer levels (of the Work of `set_outer_bounds` only)
    best_count: Ints  # [J] nodes of the best nest so far, -1: none yet
    best_unrolling: Ints  # [J, R] its unrolling
    best_holders: Ints  # [J, X] its sets of levels
    best_nodes: Ints  # [J, N, 4] its nodes
    best_tiles: Ints  # [J, N, R] their tiles

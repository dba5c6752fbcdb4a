"""What the search of mappings works on, as arrays: the einsum, the machines, what costs them, and the state
of a search.

Kernels take these tuples whole; a column or a slot of an array has a name here (ROUND, NODES_PLACED, ...).
"""

from __future__ import annotations

from typing import NamedTuple

from workloads.arrays import Bools, Floats, Ints

ENERGY, LATENCY, EDP = 0, 1, 2
# parts of a cost: cycles of compute, of systolic arrays that fill and empty; before them energy, after them
# ports
STEPS, RAMP = 1, 2
LOWEST, ALL = 5, 1 << 62  # choices of lanes that are followed before others are looked for; all of them
MANY = 1 << 14  # that are looked for before the lowest of them are followed
FEW = 2  # machines that are held against bounds one by one
CELLS = 512  # numbers of lanes that may be left, told apart (`quotients`)
CLOSE = 1e-10  # costs that differ by less, relatively, are ties
# Kinds of quantities: 1, of what does not depend on tiles; words of tiles; rows of compressed tiles; accesses
# of compute; first reads that are skipped, by a node and by compute; elements of the output once per place of
# inputs with zeros (terms.sparse); words of the first tiles that are fetched and of the last ones that are
# drained.
ONE, WORDS, ROWS, POINTS, STARTED, BEGUN, MET, FIRST, LAST = range(-1, 8)
# kinds of a tensor's dimension: one rank as it is; a hull of up to two ranks; a hull that storage clips
ALONE, HULL, CLIPPED = 0, 1, 2
# Work.tally: nodes to place, nodes placed in all, budget, of them before bounds of what stands outside are
# asked for
NODES_PLACED, VISITED, BUDGET, EASY = 0, 1, 2, 3
TENSOR, LEVEL, PARENT, POSITION = 0, 1, 2, 3  # columns of Work.nodes
ROUND, COUNT = 0, 1  # InnerStates.tally
# why a choice of loops was left: no room, no better than the best; or it was followed
OVER, BOUND, DONE = 0, 1, 2
Worth = tuple[float, float]


class Einsum(NamedTuple):
    """Ranks R of more than one value, tensors X (the output last), their dimensions Dm.

    seen, full [X, R] relevant, fully relevant; part [X, R] in a hull; unshared [X, R] lanes along it share
    nothing that compute asks for (terms.unshared). dim [X + 1] first dimension of a tensor. kind, offset,
    stored [Dm]; rank [Dm, 2], -1 where there is none; coef [Dm, 2]. csr [X] density of a compressed tensor,
    else 0. order [R] in which lanes are chosen.
    """

    seen: Bools
    full: Bools
    part: Bools
    unshared: Bools
    dim: Ints
    kind: Ints
    offset: Ints
    stored: Ints
    rank: Ints
    coef: Ints
    csr: Floats
    order: Ints


class Pool(NamedTuple):
    """Options of all ranks end to end (lanes.Options). first [R + 1] options of a rank; span [O, K, 2]; size,
    pieces, elems, out, whole [n]; pes [O, K, M]; uneven [O] its lanes may be uneven; cuts [n, J];
    factorization_span [O, 2] from, to in factorizations [W, D]; base [R] first tile of a rank; last [n]
    largest tile of the same option and position; prefix [B + 1] masks of all groups at the outermost borders,
    so many of them.
    """

    first: Ints
    span: Ints
    size: Ints
    pieces: Floats
    elems: Floats
    out: Ints
    untiled: Bools
    pes: Floats
    uneven: Bools
    cuts: Ints
    factorization_span: Ints
    factorizations: Ints
    base: Ints
    last: Ints
    prefix: Ints


class Machine(NamedTuple):
    """What the search reads of machines J that differ in prices and rates alone. Levels V, child V is
    compute; parts P of a cost: 0 energy, then cycles: of compute, of ramps, of every port, of what the inside
    of a level waits for at each port, of what enters and leaves it there.

    capacity [V] bits; bits [X, 2] of an element, or a nonzero with its column, and of a row pointer; takes
    [X, V] 0 where the room of a node is not the einsum's, else 1; double_buffer [V] a moving tile counts
    twice; whole [X, V, V] tensor, parent, level: a tile stands whole at its node, which does not sink, but
    for windows (terms.rest); ports [V, 2] parts of reads and of writes; exposed [V, 3] from, to, to in those
    of a level that are waited for: first fills, then last drains; of one that holds nothing twice all fills
    and drains. through [V, 2] from, to in those of what passes it, or leaves it for the inside, of such a
    level. position [V + 1] borders outside; size [D] lanes of a dimension. leak [J]: pJ per cycle. limit [J]:
    cycles at most. gaps [G] positions directly inside of a border where loops that stand above all nodes may
    pay: what is stored outside does not sink below them, where a tile that moves would count twice. ends:
    whether first fills and last drains are waited for at some level.
    """

    capacity: Floats
    bits: Floats
    takes: Floats
    double_buffer: Bools
    whole: Bools
    ports: Ints
    exposed: Ints
    through: Ints
    position: Ints
    size: Ints
    leak: Floats
    limit: Floats
    gaps: Ints
    ends: bool
    objective: int


class Terms(NamedTuple):
    """What links of tensors move, as sums of coef * quantity (search.py, `_terms`, writes them).

    quantity [Q, 5]: kind, tensor, position, masks of the groups of which only the first lane counts, for
    ranks that the tensor does not see and for others. line [Q] words that move at once, 0: any number may;
    spread [Q] dimensions of the tensor, as a mask, of which every index takes a share [Q] of a line. link [X,
    V, V + 1, 2] from, to in quantities `of` [T], coef [J, T, P]. holder_span [X + 1] from, to in the sets of
    levels that may hold a tensor: holder_sets [N] masks, sum [N, 2] from, to in `sum_of`, `sum_coef`: all
    links of such a set together; low: the same, at least and without first reads, which are subtracted. base
    [J, P]: the same for all mappings. Coefficients of every machine apart.
    """

    quantity: Ints
    line: Floats
    spread: Ints
    share: Floats
    link: Ints
    of: Ints
    coef: Floats
    holder_span: Ints
    holder_sets: Ints
    sum: Ints
    sum_of: Ints
    sum_coef: Floats
    low: Ints
    low_of: Ints
    low_coef: Floats
    base: Floats


class Memo(NamedTuple):
    """Sums over the pieces of clipped dimensions, which are slow to make: filled when asked for (nan: not
    yet).

    hulls [B + 1, Dc, A, B'] of clipped dimensions by the tiles of their ranks: at least that of the first
    lane of so many borders, of all lanes of the others; row [Dm] of a dimension there. unions [2, Du, A, B']:
    elements that all tiles touch, stored or not, and that are stored; urow [Dm]. shortest [B + 1, Dm, O, O',
    K], with the first lane of so many borders: the least of a dimension over all tiles of a position, by the
    options of its ranks. spans [2, 2, .], tile [R], entry [B + 1, R], touched [.]: scratch.
    """

    hulls: Floats
    row: Ints
    unions: Floats
    urow: Ints
    shortest: Floats
    spans: Ints
    tile: Ints
    entry: Ints
    touched: Bools


class Rules(NamedTuple):
    """What a mapping must keep to. sinks [X, V, R] a node whose parent's level is V passes below a loop for
    free; inside [R] ranks that may loop in time inside the lanes; stationary: tensor whose innermost node
    stands above these loops, -1: none; both where lanes are in use, but for those of the groups in mask idle.
    min_pes: lanes that must be in use; uneven: only choices of lanes of which some are.
    """

    sinks: Bools
    inside: Bools
    stationary: int
    unconstrained: int
    min_pes: int
    uneven: bool


class InnerStates(NamedTuple):
    """What stood inside a border before, under the same lanes and levels: key [S, R] tiles that it lets in,
    of round [S]; head [S] the first of a chain of cost parts [V, P] of machine of [V] that next [V] joins,
    -1: the end. tally [2]: round, how many are in chains.
    """

    key: Ints
    round: Ints
    head: Ints
    parts: Floats
    of: Ints
    next: Ints
    tally: Ints


class OuterBounds(NamedTuple):
    """Of which levels outside of all borders hold the tensors (`outside`), -1: of none yet: what
    `outer_bound` said, energy [., J].
    """

    levels: Ints
    energy: Floats


class Work(NamedTuple):
    """A nest in the making, from inside out, for all machines at once that it may be best on.

    After d nodes: live [d, J] these machines, lives [d] how many; tile [d, R] what stands there, numbers of
    the pool; parts [d, J, P] at least what the whole costs; need [d, V] bits; done [d] nodes as a mask;
    position [d]; node [d] the one placed then; at [d, R] its tile; level [d] the loop below it that is being
    chosen, -1: the node itself is; loops [d] how many may stand there, windows [d] of these the first ones,
    over ranks of its windows; rank [d, R] theirs, turn [d, R] their tiles, first [d, R] none was tried
    before, ended [d, R] what became of all of them. entry [K, R] tiles that enter the lanes around a
    position. unrolling [R]. nodes [N, 4] tensor, level, parent, position (tensor -1: loops directly inside a
    border, no node); holds_whole [N] its level, which holds what moves twice, has room for all of its tensor;
    tally [4] nodes to place, nodes placed in all, budget, of them before bounds of what stands outside are
    asked for; equal [J] whether what costs the same as the best of a machine is let through too: it may come
    before that in the order of ties (`first_of`); own [X] which levels hold the tensors. lower [Q] bounds of
    the quantities, whatever the tiles; outer_extra [J] energy that crowded outer levels cost beyond that;
    unit [J, 2] what figures and energies of machines are measured in, to compare them; few [.] some of them,
    that differ; guess [P], cost [3], lowest [J, 3], largest [R], rest [R]: scratch; best [J, 3] cost of the
    best nest of outer levels (`outer_bound`); best_*: of each machine the best nest so far, best_count [J]
    its nodes, -1: none yet.
    """

    live: Ints
    lives: Ints
    tile: Ints
    parts: Floats
    need: Floats
    entry: Ints
    done: Ints
    position: Ints
    node: Ints
    at: Ints
    level: Ints
    loops: Ints
    windows: Ints
    rank: Ints
    turn: Ints
    first: Bools
    ended: Ints
    unrolling: Ints
    nodes: Ints
    holds_whole: Bools
    tally: Ints
    lower: Floats
    equal: Bools
    own: Ints
    outer_extra: Floats
    unit: Floats
    few: Ints
    guess: Floats
    cost: Floats
    lowest: Floats
    largest: Ints
    rest: Ints
    best: Floats
    best_count: Ints
    best_unrolling: Ints
    best_own: Ints
    best_nodes: Ints
    best_at: Ints

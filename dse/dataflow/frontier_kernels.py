"""Compiled: all mappings of one einsum over perfect factors that no other one beats, and their prices (the readable side is frontier.py).

As in optimal_kernels.py a mapping is an outer part, lanes that share out the tile U which enters the fan-out, and an inner part. Over perfect factors what
a link moves depends on the tile at its node and on the lanes, each by a factor of its own; so inner parts (chains of tiles) are listed once for every
tile V that a lane may get, whatever U it comes from. Long, because compiled functions share their array layout and are kept in one file.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dse.dataflow.optimal_kernels import Grid, Programs, Tables, Walk, add_bound, add_link, added, copied, following, rest_bits, roomy, used_after

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
CLOSE = 1 + 1e-12  # costs that differ by less, relatively, are equal
RECENT = 8  # members that beat rows of a pair and are tried first


class Chains(NamedTuple):
    """Inner parts, listed when a tile V is first asked for: firsts [C] a program of every kind; those of kind c from its step e at place i of the grid are
    [first[c, e, i], last[c, e, i]), first -1: not listed yet. place [N, steps]: of the tile after a step; need [N, V] bits; size [1]. Chain 0 is empty.

    moved [K, ., G]: products of every link at a tile; rigid [K, R]: ranks whose tiles must be equal in two chains that are compared, since padding clips them
    and the busiest lane moves no fixed share of the whole.
    """

    firsts: Ints
    moved: Floats
    rigid: Bools
    first: Ints
    last: Ints
    place: Ints
    need: Floats
    size: Ints


class Front(NamedTuple):
    """The members, in the order of their energy at middle prices.

    rows [N, P + V + 1]: parts, then per level the number of the smallest capacity that holds it, then that energy; shapes [N]: the array sizes that it fits, a
    bit each; number [N]: where outer label, program, chain and lanes [., R] (states after them) of a member stand. size [1]; last [pairs, .]: the members that
    beat the latest candidates of a pair, tried first on the next.
    """

    rows: Floats
    shapes: Ints
    number: Ints
    outer: Ints
    program: Ints
    chain: Ints
    lanes: Ints
    size: Ints
    last: Ints


class Cone(NamedTuple):
    """What decides that a mapping costs at most another one on all machines of a family: no more energy at any prices, no more cycles in any column.

    ends [V, 2]: columns of a level's energy at both ends of its write shares; ratios [V, 2]: least and largest price of its bits, in prices of the level
    outside; middle [P]: prices amid them. cycles [C] columns; hides [i, j]: so much of column i takes no
    longer than one of column j on any machine.
    """

    ends: Ints
    ratios: Floats
    middle: Floats
    cycles: Ints
    hides: Floats


class Scratch(NamedTuple):
    """guess [P]; row [1, P + V + 1] of the front; none [V], zeros."""

    guess: Floats
    row: Floats
    none: Floats


class Inside(NamedTuple):
    """What the search for inner parts looks up.

    programs, pair_programs, pair_signature: see optimal.Join; pair_links [pairs, .] inner links, -1 fills up; links: those of all pairs; serves [K] compute;
    kind [programs] of chains; bound [pairs, G, P]: at least what the inside costs. down [R, S, digits]: state that follows a state in time with the tile of a
    digit; digit [R, S] of a state's tile. heads [L, P], head_room [L, V], spans [sigs, G, 2]: outer parts. sizes [shapes, D] of the fan-out dimensions.
    """

    programs: Programs
    pair_programs: Ints
    pair_signature: Ints
    pair_links: Ints
    links: Ints
    serves: Bools
    kind: Ints
    bound: Floats
    down: Ints
    digit: Ints
    heads: Floats
    head_room: Floats
    spans: Ints
    sizes: Ints


@njit(cache=True, nogil=True)
def chains_of(most: int, firsts: Ints, moved: Floats, rigid: Bools, steps: int, places: int, levels: int) -> Chains:
    """None listed yet, room for so many."""
    first = np.full((firsts.shape[0], steps, places), -1, np.int64)
    found = Chains(firsts, moved, rigid, first, np.zeros_like(first), np.empty((most, steps), np.int64), np.empty((most, levels)), np.ones(1, np.int64))
    found.place[0], found.need[0] = 0, 0.0
    return found


@njit(cache=True, nogil=True)
def listed(c: int, v: int, p: Programs, grid: Grid, t: Tables, ch: Chains) -> bool:
    """List the chains of kind c from tile V at place v on that no other chain dominates (moves at most as much on every link, needs at most as much at every
    level). First the places that they pass are collected, from outside in; then their chains are made, from inside out. False if there are too many."""
    k, places = ch.firsts[c], grid.states.shape[0]
    nodes, filled = p.length[k] - 2, ch.size[0]
    wanted, number, after = np.empty((nodes + 1, places), np.int64), np.zeros(nodes + 1, np.int64), np.empty(places, np.int64)
    if nodes == 0:
        ch.first[c, 1, v], ch.last[c, 1, v] = 0, 1
        return True
    wanted[1, 0], number[1] = v, 1
    for e in range(1, nodes):
        for i in wanted[e, :number[e]]:
            for j in after[:following(i, p.allowed[k, e + 1], grid, after)]:
                bits = rest_bits(p.steps[k, e], p.steps[k, e + 1, 0], grid.states[i], grid.states[j], False, True, t)
                if ch.first[c, e + 1, j] == -1 and bits <= t.room[p.steps[k, e, 1]]:
                    ch.first[c, e + 1, j] = -2
                    wanted[e + 1, number[e + 1]] = j
                    number[e + 1] += 1
    for e in range(nodes, 0, -1):
        level = p.steps[k, e, 1]
        for i in wanted[e, :number[e]]:
            first, after[0] = filled, places - 1  # before compute, tiles of 1
            for j in after[:following(i, p.allowed[k, e + 1], grid, after) if e < nodes else 1]:
                bits = rest_bits(p.steps[k, e], p.steps[k, e + 1, 0], grid.states[i], grid.states[j], False, True, t)
                if bits > t.room[level]:
                    continue
                for inner in range(0 if e == nodes else ch.first[c, e + 1, j], 1 if e == nodes else ch.last[c, e + 1, j]):
                    if filled >= ch.place.shape[0]:
                        return False
                    ch.place[filled], ch.need[filled] = ch.place[inner], ch.need[inner]
                    ch.place[filled, e] = i
                    ch.need[filled, level] += bits
                    if ch.need[filled, level] <= t.room[level]:
                        filled = chained(first, filled, p.steps[k, e + 1: nodes + 1], e + 1, grid, ch)
            ch.first[c, e, i], ch.last[c, e, i] = first, filled
    ch.size[0] = filled
    return True


@njit(cache=True, nogil=True)
def chained(first: int, new: int, steps: Ints, at: int, grid: Grid, own: Chains) -> int:
    """Keep chain `new` among [first:new] if none dominates it, without those that it dominates. steps: after their common first node.
    Returns the end of the list."""
    keep = first
    for old in range(first, new):
        covered, covers = True, True
        for j in range(steps.shape[0]):
            link, a, b = steps[j, 3], own.place[old, at + j], own.place[new, at + j]
            for c in range(own.moved.shape[1]):
                covered = covered and own.moved[link, c, a] <= own.moved[link, c, b]
                covers = covers and own.moved[link, c, b] <= own.moved[link, c, a]
            for r in range(own.rigid.shape[1]):
                if own.rigid[link, r] and grid.digit[a, r] != grid.digit[b, r]:
                    covered, covers = False, False
        for v in range(own.need.shape[1]):
            covered = covered and own.need[old, v] <= own.need[new, v]
            covers = covers and own.need[new, v] <= own.need[old, v]
        if covered:
            return new
        if not covers:
            if keep != old:
                own.place[keep], own.need[keep] = own.place[old], own.need[old]
            keep += 1
    if keep != new:
        own.place[keep], own.need[keep] = own.place[new], own.need[new]
    return keep + 1


@njit(cache=True, nogil=True)
def front_of(most: int, columns: int, ranks: int, pairs: int) -> Front:
    ints = np.zeros((4, most), np.int64)
    return Front(np.zeros((most, columns)), ints[0], np.arange(most), ints[1], ints[2], ints[3], np.zeros((most, ranks), np.int64), np.zeros(1, np.int64),
                 np.zeros((pairs, RECENT), np.int64))


@njit(cache=True, nogil=True, forceinline=True)
def swapped(a: int, b: int, f: Front) -> None:
    for c in range(f.rows.shape[1]):
        f.rows[a, c], f.rows[b, c] = f.rows[b, c], f.rows[a, c]
    f.shapes[a], f.shapes[b], f.number[a], f.number[b] = f.shapes[b], f.shapes[a], f.number[b], f.number[a]


@njit(cache=True, nogil=True, forceinline=True)
def covers(a: Floats, i: int, b: Floats, j: int, rooms: int, cone: Cone) -> bool:
    """Whether row i of a costs at most row j of b on every machine of the family: in energy at any prices, in every column of cycles, in `rooms` rooms.

    Energy: with d_v what a moves more at level v (at the worse end of the write shares), p_v prices, q_v = p_v / p_(v-1) within ratios:
        sum p_v d_v = p_0 (d_0 + q_1 (d_1 + q_2 (d_2 + ...)))
    whose largest value is found from the innermost level outwards: the largest q_v where what it multiplies is positive, else the least.
    """
    last = a.shape[1] - 1
    if a[i, last] > b[j, last] * CLOSE:
        return False
    for c in range(cone.cycles[0], cone.cycles[0] + cone.cycles.shape[0]):
        if a[i, c] > b[j, c] * CLOSE:
            return False
    for c in range(last - rooms, last):
        if a[i, c] > b[j, c]:
            return False
    above = 0.0
    for v in range(cone.ends.shape[0] - 1, -1, -1):
        c, d = cone.ends[v, 0], cone.ends[v, 1]
        above += max(a[i, c] - b[j, c] * CLOSE, a[i, d] - b[j, d] * CLOSE)
        above *= cone.ratios[v, 1] if above > 0.0 else cone.ratios[v, 0]
    return bool(above <= 0.0)


@njit(cache=True, nogil=True, forceinline=True)
def beaten(row: Floats, shapes: int, pair: int, f: Front, cone: Cone) -> bool:
    """Whether a member covers this row [1, .], and fits all shapes: one that beat rows of the pair before, or one of those with less middle energy."""
    rooms, most, recent = row.shape[1] - 1 - cone.middle.shape[0], row[0, row.shape[1] - 1] * CLOSE, f.last.shape[1]
    for n in range(-recent, f.size[0]):
        m = f.last[pair, n + recent] if n < 0 else n
        if n >= 0 and f.rows[m, row.shape[1] - 1] > most:
            break
        if m < f.size[0] and shapes & ~f.shapes[m] == 0 and covers(f.rows, m, row, 0, rooms, cone):
            for k in range(min(n, -1) + recent, 0, -1):
                f.last[pair, k] = f.last[pair, k - 1]
            f.last[pair, 0] = m
            return True
    return False


@njit(cache=True, nogil=True)
def enter(row: Floats, shapes: int, outer: int, program: int, chain: int, lanes: Ints, f: Front, cone: Cone) -> bool:
    """A new member, in its place by middle energy, instead of those that it covers; False if there is no room for it."""
    keep, rooms, last = 0, row.shape[1] - 1 - cone.middle.shape[0], row.shape[1] - 1
    for n in range(f.size[0]):
        if f.shapes[n] & ~shapes or not covers(row, 0, f.rows, n, rooms, cone):
            if keep != n:
                swapped(n, keep, f)
            keep += 1
    f.size[0] = keep + 1
    if keep >= f.rows.shape[0]:
        return False
    new = f.number[keep]
    f.rows[keep], f.shapes[keep] = row[0], shapes
    f.outer[new], f.program[new], f.chain[new], f.lanes[new] = outer, program, chain, lanes
    while keep and f.rows[keep - 1, last] > f.rows[keep, last]:
        swapped(keep, keep - 1, f)
        keep -= 1
    return True


@njit(cache=True, nogil=True)
def fitting(used: int, sizes: Ints, w: Walk) -> int:
    """Shapes, a bit each, that have the lanes of a set in one of its ways."""
    found = 0
    for s in range(sizes.shape[0]):
        for n in range(w.set_size[used]):
            fits = True
            for d in range(sizes.shape[1]):
                fits = fits and w.sets[used, n, d] <= sizes[s, d]
            if fits:
                found |= 1 << s
                break
    return found


@njit(cache=True, nogil=True, forceinline=True)
def with_head(guess: Floats, room: Floats, h: int, inside: Inside, cone: Cone, row: Floats) -> None:
    """row [1, .] = parts, rooms and middle energy of an inner part with an outer one. Cycles in column i are raised to what column j hides of them on every
    machine (`Cone.hides`): no latency changes, and rows that differ only in hidden cycles become equal."""
    parts, middle, first = guess.shape[0], 0.0, cone.cycles[0]
    for c in range(parts):
        row[0, c] = guess[c] + inside.heads[h, c]
        middle += row[0, c] * cone.middle[c]
    for i in range(parts - first):
        for j in range(parts - first):
            row[0, first + i] = max(row[0, first + i], row[0, first + j] * cone.hides[i, j])
    for v in range(room.shape[0]):
        row[0, parts + v] = max(room[v], inside.head_room[h, v])
    row[0, row.shape[1] - 1] = middle


@njit(cache=True, nogil=True)
def hopeful(linked: Floats, shapes: int, at: int, live: Ints, alive: int, inside: Inside, cone: Cone, s: Scratch, f: Front, out: Ints, enough: int) -> int:
    """Into out: the pairs of live[:alive] for which some outer part of place `at`, with the lower bound of the inside, is not beaten by the front; returns how
    many. linked: lower bounds of the links, if none (0 rows) those of `inside.bound`. Stops at
    `enough` pairs, the last of which moves to the front of live, to be tried first next time."""
    n = 0
    for k in range(alive):
        g = live[k]
        if linked.shape[0]:
            summed(inside.pair_links[g], inside.serves, False, linked, s.guess)
        else:
            copied(inside.bound[g, at], s.guess)
        sig, hope = inside.pair_signature[g], False
        for h in range(inside.spans[sig, at, 0], inside.spans[sig, at, 1]):
            with_head(s.guess, s.none, h, inside, cone, s.row)
            if not beaten(s.row, shapes, g, f, cone):
                hope = True
                break
        if hope:
            out[n] = g
            n += 1
            if n == enough:
                live[k], live[0] = live[0], g
                break
    return n


@njit(cache=True, nogil=True)
def joined(inside: Inside, cone: Cone, ch: Chains, grid: Grid, order: Ints, t: Tables, w: Walk, f: Front) -> bool:
    """All tiles U in this order: their lanes, with all inner parts and outer parts, into the front. False if that or the list of chains is full.

    A pair is left out for a tile, or for some of its lanes, if the front beats the least that it may cost.
    """
    ranks, parts, levels, pairs = grid.states.shape[1], t.start.shape[0], t.room.shape[0], inside.bound.shape[0]
    s, linked = Scratch(np.zeros(parts), np.zeros((1, parts + levels + 1)), np.zeros(levels)), np.zeros((t.links.shape[0], parts))
    state, lanes = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
    live, found, every = np.zeros(pairs, np.int64), np.zeros(pairs, np.int64), np.arange(pairs)
    shapes_all, most, ones = (1 << inside.sizes.shape[0]) - 1, np.prod(t.lane_size), grid.states.shape[0] - 1
    for i in order:
        u = grid.states[i]
        alive = hopeful(linked[:0], shapes_all, i, every, pairs, inside, cone, s, f, live, pairs + 1)
        r, w.at[0, 0] = 0 if alive else -1, -1
        while r >= 0:
            w.at[0, r] += 1
            o = t.succ_start[4, r, u[r]] + w.at[0, r]
            if o >= t.succ_start[4, r, u[r] + 1]:
                r -= 1
                continue
            if t.fewest[o] * w.fewest[r] > most:
                continue
            w.used[r + 1] = used_after(w.used[r], o, r, t, w)
            shapes = fitting(w.used[r + 1], inside.sizes, w) if w.used[r + 1] >= 0 else 0
            if shapes == 0:
                continue
            w.fewest[r + 1] = w.fewest[r] * t.fewest[o]
            lanes[r], leaf, v = t.succ[o], r == ranks - 1, 0
            for j in range(ranks):
                lanes[j] = u[j] if j > r else lanes[j]
                v += inside.digit[j, lanes[j]] * grid.stride[j]
                state[j] = inside.down[j, lanes[j], grid.digit[ones, j]]
            for j in inside.links:
                for c in range(parts):
                    linked[j, c] = 0.0
                if leaf and inside.serves[j]:
                    add_link(j, state, t, linked[j])
                else:
                    add_bound(j, lanes, True, t, w.extra, linked[j])
            hope = hopeful(linked, shapes, i, live, alive, inside, cone, s, f, found, pairs + 1 if leaf else 1)
            if leaf:
                for g in found[:hope]:
                    if not finished(g, i, v, shapes, lanes, linked, inside, cone, ch, grid, t, s, f):
                        return False
            elif hope:
                r += 1
                w.at[0, r] = -1
    return True


@njit(cache=True, nogil=True, forceinline=True)
def summed(links: Ints, serves: Bools, only: bool, linked: Floats, out: Floats) -> None:
    """out = what these links cost, only: of those that serve compute."""
    for c in range(out.shape[0]):
        out[c] = 0.0
    for j in links:
        if j >= 0 and (serves[j] or not only):
            added(linked[j], out)


@njit(cache=True, nogil=True)
def finished(g: int, i: int, v: int, shapes: int, lanes: Ints, linked: Floats, inside: Inside, cone: Cone, ch: Chains, grid: Grid, t: Tables,
             s: Scratch, f: Front) -> bool:
    """All chains of pair g from tile V at place v on, with all outer parts of place i, into the front. False if that or their list is full."""
    ranks, guess = lanes.shape[0], s.guess
    state, room, base = np.zeros(ranks, np.int64), np.zeros(t.room.shape[0]), np.zeros(guess.shape[0])
    summed(inside.pair_links[g], inside.serves, True, linked, base)
    sig, p = inside.pair_signature[g], inside.programs
    for k in range(inside.pair_programs[g, 0], inside.pair_programs[g, 1]):
        kind = inside.kind[k]
        if ch.first[kind, 1, v] < 0 and not listed(kind, v, p, grid, t, ch):
            return False
        for c in range(ch.first[kind, 1, v], ch.last[kind, 1, v]):
            copied(base, guess)
            for e in range(1, p.length[k] - 1):
                for j in range(ranks):
                    state[j] = inside.down[j, lanes[j], grid.digit[ch.place[c, e], j]]
                add_link(p.steps[k, e, 3], state, t, guess)
            roomy(ch.need[c], t, room)
            for h in range(inside.spans[sig, i, 0], inside.spans[sig, i, 1]):
                with_head(guess, room, h, inside, cone, s.row)
                if not beaten(s.row, shapes, g, f, cone) and not enter(s.row, shapes, h, k, c, lanes, f, cone):
                    return False
    return True


@njit(cache=True, nogil=True)
def totals(links: Ints, states: Ints, t: Tables) -> Floats:
    """[N, P] what the links [N, .] of N mappings cost at their states [N, ., R]; link -1 fills up."""
    found = np.zeros((links.shape[0], t.start.shape[0]))
    for n in range(links.shape[0]):
        for j in range(links.shape[1]):
            if links[n, j] >= 0:
                add_link(links[n, j], states[n, j], t, found[n])
    return found


@njit(cache=True, nogil=True)
def undominated(rows: Floats, cone: Cone) -> Bools:
    """[N] rows that no other one covers, whatever their rooms; of equals the first."""
    kept = np.ones(rows.shape[0], np.bool_)
    for n in range(rows.shape[0]):
        for m in range(rows.shape[0]):
            if kept[n] and m != n and kept[m] and covers(rows, m, rows, n, 0, cone):
                kept[n] = False
    return kept


@njit(cache=True, nogil=True)
def cheapest(counts: Floats, spans: Ints, member: Ints, cell: Ints, rates: Floats, ports: Bools, waits: Bools, objective: int, best: Ints, out: Floats) -> None:
    """Per machine the member of its cell that costs least: best [M] (-1: none), out [M, 2] energy, latency.

    counts [N, 4 V + 1]: bits read and written, then those of the busiest instance, per level, outermost first; operations of the busiest lane. Members of
    cell c are member[spans[c, 0]:spans[c, 1]]. rates [M, 4 V + 4]: pJ per bit read and written, cycles per bit read and written, per level; pJ of all
    operations, cycles of all, cycles per operation of the busiest lane, pJ of leakage per cycle.
    """
    levels = (counts.shape[1] - 1) // 4
    for m in range(rates.shape[0]):
        best[m], figure = -1, np.inf
        fixed, cycles, per, leak = rates[m, 4 * levels], rates[m, 4 * levels + 1], rates[m, 4 * levels + 2], rates[m, 4 * levels + 3]
        for j in range(spans[cell[m], 0], spans[cell[m], 1]):
            n = member[j]
            energy, latency = fixed, cycles + per * counts[n, 4 * levels]
            for v in range(levels - 1, -1, -1):
                energy += counts[n, 4 * v] * rates[m, 4 * v] + counts[n, 4 * v + 1] * rates[m, 4 * v + 1]
                reads, writes = counts[n, 4 * v + 2] * rates[m, 4 * v + 2], counts[n, 4 * v + 3] * rates[m, 4 * v + 3]
                own = max(reads, writes) if ports[v] else reads + writes
                latency = latency + own if waits[v] else max(latency, own)
            energy += leak * latency
            value = energy if objective == 0 else latency if objective == 1 else energy * latency
            same = figure < np.inf and abs(value - figure) <= 1e-10 * figure
            if same:
                a, b = (energy, out[m, 0]) if abs(energy - out[m, 0]) > 1e-10 * energy else (latency, out[m, 1])
            if (not same and value < figure) or (same and a < b * (1 - 1e-10)):
                best[m], out[m, 0], out[m, 1] = n, energy, latency
                figure = min(value, figure)

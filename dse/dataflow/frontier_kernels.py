"""Compiled: all mappings of one einsum over perfect factors that no other one beats, and their prices (the readable side is frontier.py).

As in optimal_kernels.py a mapping is an outer part, lanes that share out the tile U which enters the fan-out, and an inner part. Over perfect factors what
a link moves depends on the tile at its node and on the lanes, each by a factor of its own; so inner parts (chains of tiles) are listed once for every
tile V that a lane may get, whatever U it comes from.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from dse.dataflow.optimal_kernels import Grid, Programs, Tables, Walk, add_bound, add_link, added, copied, rest_bits, roomy, used_after

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
CLOSE = 1 + 1e-12  # costs that differ by less, relatively, are equal


class Chains(NamedTuple):
    """Inner parts of C kinds: those of kind c that start at place i of the grid are [start[c, i], start[c, i + 1]). place [N, steps]: of the tile after a
    step; need [N, V] bits."""

    start: Ints
    place: Ints
    need: Floats


class Front(NamedTuple):
    """rows [N, P + V]: parts, then the number of the room that it fits per level; shapes [N], a bit each, that it fits; number [N] of what it is made of:
    outer label, program, chain, lanes [., R] states after them. size [1]; last [pairs]: who beat the last candidate of a pair, as it likely will the next.
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
def chains(p: Programs, firsts: Ints, grid: Grid, moved: Floats, rigid: Bools, t: Tables, most: int) -> Chains:
    """The chains of programs `firsts`, node by node from the innermost one; kept unless another is not above it in what any link moves, nor in any need.

    moved [K, ., G]: products of every link at a tile; rigid [K, R]: ranks whose tiles must be the same for two chains to be compared, since padding cuts them.
    Empty if there are more than `most`.
    """
    size, ranks, levels, steps = grid.states.shape[0], grid.states.shape[1], t.room.shape[0], p.steps.shape[1]
    start = np.zeros((firsts.shape[0], size + 1), np.int64)
    found = Chains(start, np.zeros((most, steps), np.int64), np.zeros((most, levels)))
    own = Chains(start, np.zeros((most, steps), np.int64), np.zeros((most, levels)))
    first, last = np.zeros((steps, size), np.int64), np.zeros((steps, size), np.int64)
    at, digit, n = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64), 0
    for c in range(firsts.shape[0]):
        k, filled = firsts[c], 1
        nodes = p.length[k] - 2
        for e in range(nodes, 0, -1):
            for i in range(size):
                first[e, i] = filled
                r, at[0] = 0, -1
                while r >= 0:
                    at[r] += 1
                    if e == nodes:  # compute follows: tiles of 1
                        o = grid.after_start[r, grid.digit[i, r] + 1] - 1
                        done = at[r] > 0
                    else:
                        o = grid.after_start[r, grid.digit[i, r]] + at[r]
                        done = o >= grid.after_start[r, grid.digit[i, r] + 1] or (at[r] > 0 and not p.allowed[k, e + 1, r])
                    if done:
                        r -= 1
                        continue
                    digit[r] = grid.after[o]
                    if r < ranks - 1:
                        r += 1
                        at[r] = -1
                        continue
                    after = 0
                    for j in range(ranks):
                        after += digit[j] * grid.stride[j]
                    level = p.steps[k, e, 1]
                    bits = rest_bits(p.steps[k, e], p.steps[k, e + 1, 0], grid.states[i], grid.states[after], False, t)
                    for inner in range(0 if e == nodes else first[e + 1, after], 1 if e == nodes else last[e + 1, after]):
                        if filled >= most:
                            return Chains(start, found.place[:0], found.need[:0])
                        own.place[filled], own.need[filled] = own.place[inner], own.need[inner]
                        own.place[filled, e] = i
                        own.need[filled, level] += bits
                        if own.need[filled, level] <= t.room[level]:
                            filled = chained(first[e, i], filled, p.steps[k, e + 1: nodes + 1], e + 1, grid, moved, rigid, own)
                last[e, i] = filled
        for i in range(size):
            start[c, i] = n
            for own_chain in range(first[1, i] if nodes else 0, last[1, i] if nodes else 1):
                if n >= most:
                    return Chains(start, found.place[:0], found.need[:0])
                found.place[n], found.need[n] = own.place[own_chain], own.need[own_chain]
                n += 1
        start[c, size] = n
    return Chains(start, found.place[:n], found.need[:n])


@njit(cache=True, nogil=True)
def chained(first: int, new: int, steps: Ints, at: int, grid: Grid, moved: Floats, rigid: Bools, own: Chains) -> int:
    """Keep chain `new` among [first:new] if none beats it, without those that it beats; steps: after their common first node. Returns the end of the list."""
    keep = first
    for old in range(first, new):
        covered, covers = True, True
        for j in range(steps.shape[0]):
            link, a, b = steps[j, 3], own.place[old, at + j], own.place[new, at + j]
            for c in range(moved.shape[1]):
                covered = covered and moved[link, c, a] <= moved[link, c, b]
                covers = covers and moved[link, c, b] <= moved[link, c, a]
            for r in range(rigid.shape[1]):
                if rigid[link, r] and grid.digit[a, r] != grid.digit[b, r]:
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
                 np.zeros(pairs, np.int64))


@njit(cache=True, nogil=True, forceinline=True)
def swapped(a: int, b: int, f: Front) -> None:
    for c in range(f.rows.shape[1]):
        f.rows[a, c], f.rows[b, c] = f.rows[b, c], f.rows[a, c]
    f.shapes[a], f.shapes[b], f.number[a], f.number[b] = f.shapes[b], f.shapes[a], f.number[b], f.number[a]


@njit(cache=True, nogil=True)
def beaten(row: Floats, shapes: int, pair: int, f: Front) -> bool:
    """Whether a member is not above this row in any column, and fits all shapes. It moves forward, since it likely beats more."""
    size, columns, rows = f.size[0], row.shape[0], f.rows
    for n in range(-1, size):
        m = f.last[pair] if n < 0 else n
        covered = m < size
        for c in range(columns):
            if not covered:
                break
            covered = rows[m, c] <= row[c] * CLOSE
        if covered and shapes & ~f.shapes[m] == 0:
            f.last[pair] = m
            if m > 3:
                swapped(m, m // 2, f)
                f.last[pair] = m // 2
            return True
    return False


@njit(cache=True, nogil=True)
def enter(row: Floats, shapes: int, outer: int, program: int, chain: int, lanes: Ints, f: Front) -> bool:
    """A new member in place of those that it covers; False if there is no place for it."""
    keep = 0
    for n in range(f.size[0]):
        covered = f.shapes[n] & ~shapes == 0
        for c in range(row.shape[0]):
            if not covered:
                break
            covered = row[c] <= f.rows[n, c] * CLOSE
        if not covered:
            if keep != n:
                swapped(n, keep, f)
            keep += 1
    f.size[0] = keep + 1
    if keep >= f.rows.shape[0]:
        return False
    new = f.number[keep]
    f.rows[keep], f.shapes[keep] = row, shapes
    f.outer[new], f.program[new], f.chain[new], f.lanes[new] = outer, program, chain, lanes
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
def with_head(guess: Floats, room: Floats, h: int, inside: Inside, row: Floats) -> None:
    """row = parts and rooms of an inner part with an outer one."""
    parts = guess.shape[0]
    for c in range(parts):
        row[c] = guess[c] + inside.heads[h, c]
    for v in range(room.shape[0]):
        row[parts + v] = max(room[v], inside.head_room[h, v])


@njit(cache=True, nogil=True)
def hopeful(guess: Floats, room: Floats, shapes: int, pair: int, at: int, inside: Inside, row: Floats, f: Front) -> bool:
    """Whether the front does not beat `guess` with some outer part of place `at`."""
    sig = inside.pair_signature[pair]
    for h in range(inside.spans[sig, at, 0], inside.spans[sig, at, 1]):
        with_head(guess, room, h, inside, row)
        if not beaten(row, shapes, pair, f):
            return True
    return False


@njit(cache=True, nogil=True)
def joined(inside: Inside, ch: Chains, grid: Grid, order: Ints, t: Tables, w: Walk, f: Front) -> bool:
    """All tiles U in this order: their lanes, with all inner parts and outer parts, into the front. False if it is full.

    A pair is left out for a tile, or for some of its lanes, if the front beats the least that it may cost.
    """
    ranks, parts, levels = grid.states.shape[1], t.start.shape[0], t.room.shape[0]
    none, row, guess, linked = np.zeros(levels), np.zeros(parts + levels), np.zeros(parts), np.zeros((t.links.shape[0], parts))
    state, lanes, live = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64), np.zeros(inside.bound.shape[0], np.int64)
    every, most, ones = (1 << inside.sizes.shape[0]) - 1, np.prod(t.lane_size), grid.states.shape[0] - 1
    for i in order:
        alive, u = 0, grid.states[i]
        for g in range(inside.bound.shape[0]):
            if hopeful(inside.bound[g, i], none, every, g, i, inside, row, f):
                live[alive] = g
                alive += 1
        r, w.at[0, 0] = 0, -1
        while r >= 0 and alive:
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
            more = False
            for n in range(alive):
                g = live[n]
                summed(inside.pair_links[g], inside.serves, False, linked, guess)
                if not hopeful(guess, none, shapes, g, i, inside, row, f):
                    continue
                more = True
                if not leaf:
                    break
                if not finished(g, i, v, shapes, lanes, linked, inside, ch, grid, t, row, guess, f):
                    return False
            if more and not leaf:
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
def finished(g: int, i: int, v: int, shapes: int, lanes: Ints, linked: Floats, inside: Inside, ch: Chains, grid: Grid, t: Tables, row: Floats, guess: Floats,
             f: Front) -> bool:
    """All chains of pair g from tile V at place v on, with all outer parts of place i, into the front. False if it is full."""
    ranks, parts = lanes.shape[0], guess.shape[0]
    state, room, base = np.zeros(ranks, np.int64), np.zeros(t.room.shape[0]), np.zeros(parts)
    summed(inside.pair_links[g], inside.serves, True, linked, base)
    sig, p = inside.pair_signature[g], inside.programs
    for k in range(inside.pair_programs[g, 0], inside.pair_programs[g, 1]):
        for c in range(ch.start[inside.kind[k], v], ch.start[inside.kind[k], v + 1]):
            copied(base, guess)
            for e in range(1, p.length[k] - 1):
                for j in range(ranks):
                    state[j] = inside.down[j, lanes[j], grid.digit[ch.place[c, e], j]]
                add_link(p.steps[k, e, 3], state, t, guess)
            roomy(ch.need[c], t, room)
            for h in range(inside.spans[sig, i, 0], inside.spans[sig, i, 1]):
                with_head(guess, room, h, inside, row)
                if not beaten(row, shapes, g, f) and not enter(row, shapes, h, k, c, lanes, f):
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
def undominated(parts: Floats) -> Bools:
    """[N] members that no other one covers in all parts; of equals the first."""
    kept = np.ones(parts.shape[0], np.bool_)
    for n in range(parts.shape[0]):
        for m in range(parts.shape[0]):
            if m == n or not kept[m]:
                continue
            covered, same = True, True
            for c in range(parts.shape[1]):
                if parts[m, c] > parts[n, c]:
                    covered = False
                    break
                same = same and parts[m, c] == parts[n, c]
            if covered and (not same or m < n):
                kept[n] = False
                break
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

"""What layouts cost: counts of whole nests against streams walked element by element; machines that describe
nothing cost what they cost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import pytest

from dse.layout.count import CountRange
from dse.mapping.nest import Infeasible, Mapping, Store, faults, parse
from dse.sim.counts.counts import count, counted, footprints
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost
from dse.sim.levels import transfer
from hw import machine
from hw.arch import Access, Arch, Compute, Fanout, Level
from tests import nests
from tests.amount import amount
from tests.nests import RICH, random_case, rich_case
from tests.oracle import walk
from tests.streams import described, streams, with_layouts
from workloads.einsum import einsum

DENSE = tuple(kind for kind in RICH if not kind.startswith("sp"))


@dataclass(frozen=True, slots=True)
class Compared:
    """One count of a nest beside the walked one."""

    what: str
    counted: CountRange
    walked: float

    @property
    def right(self) -> bool:
        return all(
            self.counted.lo - 1e-9 <= n <= self.counted.hi + 1e-9 for n in (self.walked, self.counted.n)
        )


def compared(seed: int) -> list[Compared]:
    """Every count of every tensor of a random nest in random layouts on a machine described at random."""
    rng = Random(seed)
    e, arch, mapping = rich_case(rng, DENSE) if seed % 2 else random_case(rng, nests.KINDS)
    arch = described(rng, arch)
    names = {p.tensor: transfer.dim_names(p) for p in e.tensors()}
    mapping = with_layouts(rng, mapping, e, arch, names)
    assert not faults(mapping, e, arch), (seed, faults(mapping, e, arch), transfer.faults(mapping, e, arch))
    assert not transfer.faults(mapping, e, arch), (
        seed,
        faults(mapping, e, arch),
        transfer.faults(mapping, e, arch),
    )
    found = []
    moved = transfer.transfers(counted(mapping, e, arch), arch)
    rows, seen = (
        {(row.level, row.tensor, row.action): row.elems for row in count(mapping, e, arch)},
        walk(replace(mapping, layouts=()), e, arch).total,
    )
    room = {(row.level, row.tensor): row.elems for row in footprints(mapping, e, arch)}
    for level, tensor in dict.fromkeys((level, tensor) for level, tensor, _ in moved):
        p = next(p for p in e.tensors() if p.tensor == tensor)
        own = next(one for one in arch.levels if one.name == level)
        line, bits = own.access.line_bits, p.bits or arch.word_bits
        for action, walked in streams(mapping, e, arch, level, p, names[tensor]).items():
            one = moved.get((level, tensor, action))
            if one is None:
                found.append(Compared("lines", CountRange(0, 0, 0), walked.lines))
                continue
            if inner := _inner(mapping, level, tensor):
                found.append(
                    Compared(
                        f"room {level} {tensor} {action}",
                        CountRange(room[inner, tensor], 0, room[inner, tensor]),
                        walked.held,
                    )
                )
            exactly = not (p is e.output and action == "read" and p.partial_ranks())
            where = f"seed {seed} {level} {tensor} {action}"
            found += [
                Compared(
                    f"elems {where}",
                    CountRange(one.elems, one.elems if exactly else 0, one.elems),
                    walked.elems,
                ),
                Compared(
                    f"runs {where}",
                    CountRange(one.runs, one.runs if exactly else 0, one.runs if exactly else 1e18),
                    walked.runs,
                ),
                Compared(f"bits {where}", one.moved_bits, walked.lines * line),
                Compared(f"activations {where}", one.activations, walked.activations),
                Compared(f"conflict {where}", one.conflict, walked.conflict),
            ]
            # what is fetched or drained from further out is in no other one's row
            if p is not e.output or level == arch.levels[0].name:
                paid = rows.get((level, tensor, action), 0.0) * bits + one.unused_bits
                lo, hi = (
                    max(float(seen[level, tensor, action]) * bits, n)
                    for n in (one.moved_bits.lo, one.moved_bits.hi)
                )
                found.append(
                    Compared(
                        f"paid {where}",
                        CountRange(paid, lo, hi),
                        max(float(seen[level, tensor, action]) * bits, walked.lines * line),
                    )
                )
    return found


def test_what_is_fetched_in_lines_once_has_room() -> None:
    """24 elements in lines of 3 through a buffer of 4: eight lines were counted, with two elements there at a
    time. Whole they need a buffer of 24; brought in two at a time, from two lines, 24 lines.
    """
    home = Level("DRAM", None, 8, 20.0, 30.0, 1.0, bypass=False, access=Access(24))
    lanes = Fanout("LANES", 2, (("X", 2),), (True,), (True,))
    e = einsum("B[a,b] = A[a,b]", {"a": 4, "b": 6}, "copy")
    above, loops, below = "store BUF A\n", "for a tile 2\nfor b tile 1\n", "parfor a tile 1 over X\nmac"

    def priced(nest: str, room: int) -> EinsumCost | Infeasible:
        buffer = Level("BUF", 8 * room, 8, 1.0, 2.0, 4.0)
        return einsum_cost(
            Problem(Arch("small", (home, buffer), (lanes,), Compute(1.0, 1.0), 1.0, 8), e, "energy"),
            parse(f"store DRAM A B\n{nest}"),
        )

    def lines(nest: str, room: int) -> float:
        found = priced(nest, room)
        assert isinstance(found, EinsumCost)
        return next(one.moved_bits.n / 24 for one in found.layout_traffic if one.tensor == "A")

    short = priced(above + loops + below, 4)
    assert isinstance(short, Infeasible)
    assert (short.level, short.need_bytes, short.have_bytes) == ("BUF", 24, 4)
    assert lines(above + loops + below, 24) == 8
    assert lines(loops + above + below, 4) == 24


def test_a_window_slides_by_whole_lines() -> None:
    """Eight rows of four, three of which a window holds: as a loop directly below moves it down, each row
    comes once; no line is left out, none comes again.
    """
    e = einsum("C[p] += A[p+r,q] * B[r]", {"p": 6, "r": 3, "q": 4}, "window")
    edge = machine.arch(machine.load("burst_edge"))
    arch = replace(edge, levels=(replace(edge.levels[0], access=Access(32)), *edge.levels[1:]))
    slid, again = (
        parse(f"store DRAM A B C\n{nest}for q tile 1\nfor r tile 1\nmac")
        for nest in ("store GBUF A\nfor p tile 1\n", "for p tile 1\nstore GBUF A\n")
    )
    for nest, lines in ((slid, 8), (again, 18)):
        assert (
            transfer.transfers(counted(nest, e, arch), arch)["DRAM", "A", "read"].moved_bits.n == 32 * lines
        )
        assert [row.elems for row in footprints(nest, e, arch) if row.level == "GBUF"] == [12]


def _inner(mapping: Mapping, level: str, tensor: str) -> str:
    """The level of the next node of a tensor, "" if compute is next."""
    stores = [node.level for node in mapping.nodes if isinstance(node, Store) and node.tensor == tensor]
    return (*stores, "")[stores.index(level) + 1]


def test_rows_stay_open_from_box_to_box() -> None:
    """Thirty elements in boxes of five, rows of eight: on their own the boxes open nine; one after the other
    four; twice over eight; each box twice in a row opens its two rows again.
    """
    e = einsum("C[m] += A[m] * B[k]", {"m": 30, "k": 2}, "e")
    edge = machine.arch(machine.load("burst_edge"))
    dram = replace(edge.levels[0], access=Access(8, 64, 1, 64, 1.0, 1.0))
    arch = replace(edge, levels=(dram, *edge.levels[1:]))
    m, k = "for m tile 5\n", "for k tile 1\n"
    for outer, inner, rows in ((m, k, 4), (k + m, "", 8), (m + k, "", 10)):
        mapping = parse(f"store DRAM A B C\n{outer}store GBUF A\n{inner}for m tile 1\nmac")
        walked = streams(mapping, e, arch, "DRAM", e.inputs[0], ("M",))["read"].activations
        assert walked == rows
        assert transfer.transfers(counted(mapping, e, arch), arch)[
            "DRAM", "A", "read"
        ].activations == CountRange(rows, rows, rows)


@pytest.mark.parametrize("seed", range(amount(60)))
def test_counts_of_a_nest_are_those_of_its_streams(seed: int) -> None:
    for one in compared(seed):
        assert one.right, one

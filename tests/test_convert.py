"""Copies between layouts: against every mapping of small ones, priced by the evaluator; and against what is
possible on described machines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise, product
from math import inf
from random import Random

import pytest

from dse.layout.address import Layout, address, row_major
from dse.layout.text import parse, show
from dse.mapping.conversion import copy_einsum
from dse.mapping.nest import Mapping, TensorLayout, faults
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost, objective_value
from dse.solve.layouts.convert import Conversions, blocks, copy_nests, line_count
from hw import machine
from hw.arch import Access, Arch, Compute, Fanout, Level
from tests.amount import some
from tests.enumeration import mappings
from tests.lined import texts

EDGE = machine.arch(machine.load("burst_edge"))


def small(rng: Random) -> Arch:
    """A memory of lines, and maybe rows; a buffer; lanes, some with registers."""
    line = 8 * rng.choice([2, 3, 4])
    rows = (
        {"row_bits": 2 * line, "row_banks": 2, "interleave_bits": 2 * line, "row_pj": 20.0}
        if rng.random() < 0.5
        else {}
    )
    home = Level(
        "DRAM",
        None,
        8,
        20.0,
        30.0,
        rng.choice([1.0, 4.0]),
        bypass=False,
        leak_mw=rng.choice([0.0, 2.0]),
        access=Access(line, **rows),
    )
    buffer = Level("BUF", 8 * rng.choice([4, 8, 16]), 8, 1.0, 2.0, 4.0, double_buffer=rng.random() < 0.5)
    lanes = Fanout("LANES", 2, (("X", rng.choice([1, 2, 4])),), (True,), (True,))
    return Arch(
        "small", (home, buffer), (lanes,), Compute(1.0, 1.0), 1.0, 8, overlap=rng.choice(["free", "buffered"])
    )


def check(seed: int, shapes: Sequence[tuple[int, ...]]) -> float:
    """How far a random copy lies above the least of all mappings; it is priced as it says, and no mapping
    costs less than it says.
    """
    rng = Random(seed)
    arch, objective, shape = small(rng), rng.choice(["energy", "latency", "edp"]), rng.choice(shapes)
    names, e = tuple("ABC"[: len(shape)]), copy_einsum(shape, None)
    a, b = (parse(rng.choice(texts(names, shape)), names, shape) for _ in range(2))
    laid = tuple(TensorLayout("DRAM", tensor, show(own)) for tensor, own in (("A", a), ("B", b)))
    problem, found = Problem(arch, e, objective), Conversions(arch, objective).cost(None, a, b)

    def cost(nest: Mapping) -> float:
        one = einsum_cost(problem, replace(nest, layouts=(*laid, *nest.layouts)))
        return (
            objective_value(objective, one.energy_pj, one.latency_cycles)
            if isinstance(one, EinsumCost)
            else inf
        )

    value = objective_value(objective, found.energy, found.cycles)
    assert cost(found.mapping) == value
    least = min(cost(nest) for nest in mappings(problem, "imperfect_spatial"))
    bound = objective_value(objective, *Conversions(arch, objective).lower_bound(None, shape))
    assert bound <= least * (1 + 1e-9)
    assert value / (1 + found.gap) <= least * (1 + 1e-9)
    return value / least - 1


@pytest.mark.parametrize("seed", some(range(4), 0, 3))
def test_copies_lie_no_further_above_the_least_mapping_than_they_say(seed: int) -> None:
    assert check(seed, [(2, 4), (2, 6), (3, 5)]) <= 0.35


@pytest.mark.parametrize(("text", "to"), [("A B C", "B C A"), ("B C A", "A B C")])
def test_an_image_is_copied_as_fast_as_main_memory_moves_it(text: str, to: str) -> None:
    """55,336 cycles before lanes were used: the image stands in the buffer, and what lanes write at once is a
    line.
    """
    names, shape = ("A", "B", "C"), (64, 28, 28)
    one = Conversions(EDGE, "latency")
    found = one.cost(None, parse(text, names, shape), parse(to, names, shape))
    assert found.cycles == one.lower_bound(None, shape)[1] == 3920
    assert found.gap == 0


def test_levels_that_describe_lines_take_layouts_of_their_own() -> None:
    """What the caches of cpu_like move in lines is in the price of a copy."""
    arch, names, shape = machine.arch(machine.load("cpu_like")), ("A", "B", "C"), (16, 14, 14)
    a, b = parse("C B A", names, shape), parse("A B C", names, shape)
    found = Conversions(arch, "energy").cost(None, a, b)
    laid = (TensorLayout("DRAM", "A", show(a)), *found.mapping.layouts)
    priced = einsum_cost(
        Problem(arch, copy_einsum(shape, None), "energy"), replace(found.mapping, layouts=laid)
    )
    assert isinstance(priced, EinsumCost)
    assert (priced.energy_pj, priced.latency_cycles) == (found.energy, found.cycles)


@pytest.mark.parametrize("name", ["burst_edge", "cpu_like", "gpu_like", "arm_like"])
def test_nests_of_copies_are_nests(name: str) -> None:
    arch, shape, names = machine.arch(machine.load(name)), (12, 7, 14), ("A", "B", "C")
    e = copy_einsum(shape, None)
    for a, b in (("A B C", "B/7 C A b7"), ("A/4 B C a4", "C A+3 B"), ("D=A*B | D C", "A B C")):
        nests = list(dict(copy_nests(e, arch, parse(a, names, shape), parse(b, names, shape))))
        assert len(nests) > 10
        assert not any(faults(nest, e, arch) for nest in nests)


def test_blocks_lie_in_one_piece() -> None:
    def addresses(layout: Layout, box: tuple[int, ...]) -> int:
        weights, total = layout.weights(), 0
        for digit, weight in zip(layout.digits, weights, strict=True):
            total += weight * (
                min(-(-box[layout.stored[digit.dim].members[0]] // digit.step), digit.size) - 1
            )
        return total

    for text in ("A B C", "B/2 A C b2", "A/4 B C a4", "C A/2 B/7 b7 a2"):
        layout = parse(text, ("A", "B", "C"), (8, 14, 5))
        found = blocks(layout)
        assert all(addresses(layout, box) == box[0] * box[1] * box[2] - 1 for box in found)
        assert found[-1] == (8, 14, 5)
    layout = parse("b2 A/4 C B/2 a4", ("A", "B", "C"), (8, 14, 5))
    pieces = []
    for box in blocks(layout):
        own = sorted(address(layout, at) for at in product(*map(range, box)))
        pieces.append((box, sum(b != a + 1 for a, b in pairwise(own)) + 1))
    assert pieces == [
        ((1, 1, 1), 1),
        ((2, 1, 1), 1),
        ((4, 1, 1), 1),
        ((4, 14, 1), 2),
        ((4, 14, 5), 2),
        ((8, 14, 5), 1),
    ]
    asked = [line_count(row_major(("A", "B"), (8, 6)), box, 4) for box in ((8, 1), (1, 6), (2, 6))]
    assert asked == [48, 16, 12]  # an element each; runs of 6 begin in the middle of a line every other time

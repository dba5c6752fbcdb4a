"""What an operation reads again at least, against every blocking."""

from __future__ import annotations

from dataclasses import replace
from math import inf, sqrt
from random import Random

import pytest

from dse.solve.gogeta.accesses import Phase
from dse.solve.gogeta.operations import graph
from dse.solve.gogeta.rereads import Chip, Rereads, chip_of, min_words_in, reread_words, rereads_of
from dse.solve.gogeta.traffic import traffic_of, with_rereads
from hw import machine
from tests.blocked import least, random_product
from workloads.einsum import Einsum, einsum
from workloads.graph import Workload

SIZES = {"m": 32, "n": 32, "k": 32, "b": 4}


def product(text: str = "C[m,n] += A[m,k] * B[k,n]", **more: object) -> Einsum:
    return einsum(text, SIZES, **more)  # type: ignore[arg-type]


def chip(words: float, mac_units: int = 0) -> Chip:
    return Chip(8 * words, mac_units, 8)


def below_every_blocking(seed: int) -> tuple[float, float]:
    rng = Random(seed)
    e, room = random_product(rng), rng.choice((4, 8, 16, 32, 64))
    if e.points() > 20_000 or len(e.sizes()) > 4:
        return 0.0, 1.0
    return min_words_in(e, chip(room)), least(e, room)


def test_no_blocking_brings_in_less() -> None:
    found = [below_every_blocking(seed) for seed in range(100)]
    assert all(bound <= own * (1 + 1e-9) for bound, own in found)
    assert sum(bound > 0 for bound, _ in found) > 20  # it says something


@pytest.mark.parametrize("words", [16, 64, 100])
def test_of_a_matrix_product_it_is_the_known_bound(words: int) -> None:
    """2 m n k / sqrt(S) - 2 S (Smith et al. 2019), also with an addend, in a batch, of wider words, with an
    operand read twice.
    """
    known = 2 * 32**3 / sqrt(words) - 2 * words
    assert min_words_in(product(), chip(words)) == pytest.approx(known)
    added = product("C[m,n] += D[m,n] * A[m,k] * B[k,n]", bits={"D": 80})
    assert min_words_in(added, chip(words)) == pytest.approx(known)
    assert min_words_in(product(bits={"A": 16, "B": 16, "C": 16}), chip(2 * words)) == pytest.approx(
        2 * known
    )
    twice = product("C[m,n] += A[m,k] * A_again[k,n]")
    same = replace(twice, inputs=(twice.inputs[0], replace(twice.inputs[1], tensor="A")))
    assert 0 < min_words_in(same, chip(words)) <= known
    assert min_words_in(product(), chip(words, 64)) < known


def test_of_windows_each_tap_is_counted_apart() -> None:
    """No more than a product per tap, and of a single tap no less."""
    taps = {r: einsum("O[k,p] += I[c,p+r] * W[k,c,r]", {"k": 32, "p": 32, "c": 32, "r": r}) for r in (1, 3)}
    one, three = (min_words_in(e, chip(16)) for e in taps.values())
    assert one == pytest.approx(2 * 32**3 / 4 - 32)
    assert three == pytest.approx(one)


@pytest.mark.parametrize("text", ["C[m,n] += A[m,k-1] * B[k,n]", "C[m,n] += A[m] * B[n]", "C[m] = f(A[m])"])
def test_what_says_nothing_is_nothing(text: str) -> None:
    """A tensor that padding leaves out covers no rank; each element is used once."""
    cut = "k-1" in text
    found = min_words_in(product(text, sizes={"A": (32, 31)} if cut else {}), chip(16))
    assert found < 2 * 32**3 / 4 - 32 if cut else found == 0
    assert min_words_in(product(), chip(inf)) == min_words_in(product(density={"A": 0.5}), chip(16)) == 0


def test_beyond_once_is_without_operands_and_begun_sums() -> None:
    sizes = {"A": 1024, "B": 1024, "C": 1024}
    assert reread_words(product(), sizes, chip(64)) == pytest.approx(8064 - 3 * 1024)
    assert reread_words(product(), sizes, chip(4096)) == 0


def test_all_levels_of_the_chip_hold_operands() -> None:
    arch = machine.arch(machine.load("edge_array"))
    inside = sum(
        level.capacity_bits * arch.instances(v)
        for v, level in enumerate(arch.levels)
        if v and level.capacity_bits
    )
    assert chip_of(arch) == Chip(inside, arch.instances(len(arch.levels)), arch.word_bits)
    assert inside > (arch.levels[1].capacity_bits or 0)


def test_what_stands_alone_is_bounded() -> None:
    """A pipeline hands on what its operations read, so that nothing is known of them."""
    chain = Workload("two", (product("C[m,n] += A[m,k] * B[k,n]"), product("E[m,n] += C[m,k] * D[k,n]")))
    alone, piped = [Phase(((0,),)), Phase(((1,),))], [Phase(((0,), (1,)))]
    each = 8064 - 3 * 1024
    assert rereads_of(graph(chain), alone, [0, 1], chip(64)) == Rereads(pytest.approx(2 * each), 0)
    assert rereads_of(graph(chain), alone, [1], chip(64)) == Rereads(pytest.approx(each), 0)
    assert rereads_of(graph(chain), piped, [0, 1], chip(64)) == Rereads(0, 2)


def test_a_loop_reads_again_in_every_period() -> None:
    loop = Workload("loop", (product("C[m,n] += A[m,k] * B[k,n]"),), repeats=(5,), loop_state=(("C", "A"),))
    found = with_rereads(traffic_of(loop, 64, 8), loop, chip(64))
    assert found.overfull_operations == 1
    assert found.rereads == Rereads(pytest.approx(5 * (8064 - 3 * 1024)), 0)
    assert found.bound() == found.optimal.bound + found.rereads.words

"""The policy of the buffer: worked lists, invariants on random ones, GOGETA's order of configurations on its
36 points.
"""

from __future__ import annotations

from random import Random

import pytest

from dse.solve.gogeta.accesses import Access, AccessList
from dse.solve.gogeta.residency import Traffic, policy
from tests.amount import amount
from tests.cases_gogeta import points
from tests.residents import periods


def listed(*accesses: Access, outputs: frozenset[str] = frozenset(), **words: int) -> AccessList:
    return AccessList(accesses, words, outputs)


def read(t: str) -> Access:
    return Access((t,))


def write(t: str) -> Access:
    return Access((), (t,))


def test_reads_fill_what_is_free_and_never_evict() -> None:
    """5 words of A stay, none of B is left room for; the second A reads the 3 that did not fit."""
    given = listed(read("A"), read("B"), read("A"), read("B"), A=8, B=4)
    assert policy(given, 5) == Traffic(read_words=8 + 4 + 3 + 4)
    assert policy(given, 12) == Traffic(read_words=8 + 4)


def test_what_is_made_evicts_the_tail_of_what_is_needed_later() -> None:
    """X (4 words, dirty) is needed after R (4): its tail of 3 goes, dirty, and is read again."""
    given = listed(write("X"), write("R"), read("R"), read("X"), X=4, R=4)
    assert policy(given, 5) == Traffic(read_words=3, evicted_words=3)
    # R finds one word free
    assert policy(given, 5, results_evict=False) == Traffic(read_words=3, write_words=3)
    other = listed(write("X"), write("R"), read("X"), read("R"), X=4, R=4)
    assert policy(other, 5) == Traffic(read_words=3, write_words=3)  # X is needed sooner than R: it stays


def test_what_is_needed_at_the_same_time_stays() -> None:
    """X and R are next read together: R takes the one word that is free, and pushes nothing out."""
    given = listed(
        write("X"), write("R"), Access(("X", "R"), ("Y", "S")), outputs=frozenset("YS"), X=4, R=4, Y=4, S=4
    )
    assert policy(given, 5) == Traffic(read_words=3, write_words=3 + 8)


def test_clean_words_leave_for_free() -> None:
    given = listed(read("A"), write("R"), read("R"), read("A"), A=4, R=4)
    assert policy(given, 4) == Traffic(read_words=4 + 4)


def test_reads_may_evict_if_they_are_let() -> None:
    given = listed(read("A"), read("B"), read("B"), read("A"), A=4, B=4)
    assert policy(given, 4).read_words == 4 + 4 + 4
    assert policy(given, 4, reads_evict=True).read_words == 4 + 4 + 4
    often = listed(read("A"), read("B"), read("B"), read("B"), read("A"), A=4, B=4)
    assert policy(often, 4).read_words == 4 + 3 * 4
    assert policy(often, 4, reads_evict=True).read_words == 4 + 4 + 4


def test_outputs_are_written_once() -> None:
    """An output that is read again stays dirty to the end; one that is not goes out as it is made; one of a
    pair updated in place both ways.
    """
    assert policy(listed(write("Y"), read("Y"), outputs=frozenset("Y"), Y=4), 9) == Traffic(flushed_words=4)
    assert policy(listed(write("Y"), outputs=frozenset("Y"), Y=4), 9) == Traffic(write_words=4)
    both = listed(
        read("X"), Access(("X", "R"), ("Y", "S")), read("S"), outputs=frozenset("YS"), X=4, R=2, Y=4, S=2
    )
    assert policy(both, 9) == Traffic(read_words=4 + 2, write_words=4, flushed_words=2)


def test_what_a_phase_holds_takes_room() -> None:
    """Two words that a pipeline holds push out two of A while it runs."""
    given = listed(read("A"), Access(("B",), resident_words=2), read("A"), A=4, B=1)
    assert policy(given, 4) == Traffic(read_words=4 + 1 + 2)


@pytest.mark.parametrize("seed", range(amount(200)))
def test_traffic_lies_between_what_must_and_what_can_be_moved(seed: int) -> None:
    rng = Random(seed)
    given = periods(rng, rng.randint(2, 5), rng.randint(3, 12), rng.randint(1, 20))(rng.randint(1, 4))
    room = rng.randint(0, 60)
    unread = sum(
        n
        for t, n in given.words.items()
        if t not in given.outputs and all(t not in a.read for a in given.accesses)
    )
    for how in ((False, False), (True, False), (True, True)):
        moved = policy(given, room, *how)
        assert given.compulsory_words() <= moved.words() <= given.unbuffered_words() + moved.evicted_words
        assert min(moved.read_words, moved.write_words, moved.evicted_words, moved.flushed_words) >= 0
        # what nobody reads is written all the same
        assert policy(given, 10**6, *how).words() == given.compulsory_words() + unread


def test_configurations_come_in_their_order() -> None:
    """Ideal <= optimum <= GOGETA <= SEQ-Overflow <= SEQ-Flex on all 36 points; GOGETA and the optimum 1.0132
    apart in the mean, 1.112 at most.
    """
    found = points()
    assert len(found) == 36
    for p in found.values():
        assert (
            p["ideal"] - 0.5
            <= p["lp_bound"]
            <= p["gogeta"] + 0.5
            <= p["seq_overflow"] + 1
            <= p["seq_flex"] + 1.5
        )
        assert p["lp_bound_shared_PT"] <= p["lp_bound"] + 0.5
    ratios = {at: p["gogeta"] / p["lp_bound"] for at, p in found.items()}
    assert max(ratios, key=ratios.__getitem__) == ("barth5", 16, 1)
    assert ratios["barth5", 16, 1] == pytest.approx(1.112, abs=5e-4)
    assert sum(ratio < 1 + 1e-9 for ratio in ratios.values()) == 21
    assert all(
        p["gogeta"] == p["ideal"]
        for (name, _, mib), p in found.items()
        if name in ("aft02", "nasa4704") and mib in (4, 16)
    )

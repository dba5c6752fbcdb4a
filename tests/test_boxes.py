"""Directives that are no nest: closed forms of boxes against a walk of every element, and against nests where
both say the same.
"""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.mapping.directives import directives_of, has_overlap, parse, text
from dse.mapping.nest import Loop
from dse.sim.counts.counts import count, instance_counts, nest_sums
from dse.sim.counts.counts import footprints as held_by_nest
from dse.sim.directives import box_hops, boxes
from hw import machine
from tests.amount import amount
from tests.boxed import Walked, random_directives
from tests.test_directives import raised_case
from workloads.einsum import einsum

SEEDS = st.integers(0, 2**32)
GEMM = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 8, "n": 8, "k": 6}, "C")
EDGE = machine.arch(machine.load("kapla_single"))


def unlike(seed: int) -> tuple[bool, bool, str]:
    """Whether random directives are counted, whether tiles of them overlap, and what is wrong with the
    counts.
    """
    layer, e, arch = random_directives(Random(seed))
    try:
        g = boxes.program(layer, e, arch)
    except ValueError as fault:
        wrong = len(str(fault).splitlines()) != 1 or (
            "no buffer together" in str(fault) and not Walked(layer, e, arch).homeless
        )
        return False, has_overlap(layer, e), f"seed {seed}: {fault}" if wrong else ""
    rows, seen = boxes.count_rows(g, arch), Walked(layer, e, arch)
    places = {
        level: sum(bool(turn.over) for turn in g.turns if turn.level <= v) for v, level in enumerate(g.levels)
    } | {"MAC": 99}
    for key, (total, own) in rows.items():
        if total != seen.total[key]:
            return (
                True,
                has_overlap(layer, e),
                f"seed {seed}: {key} {total}, walked {seen.total[key]}\n{layer}",
            )
        lanes = [turn for turn in g.turns if turn.over]
        first = (0,) * min(places[key[0]], len(lanes))
        if key[2] != "merge" and own[0] != seen.each[first][key]:
            return (
                True,
                has_overlap(layer, e),
                f"seed {seed}: {key} of the first buffer {own[0]}, walked {seen.each[first][key]}\n{layer}",
            )
    for f in arch.fanouts:
        try:
            links = (
                {
                    p.tensor: box_hops.links(g, f, p, outer, v, arch)
                    for p, outer, v in box_hops.crossing(g, f, arch)
                }
                if f.hop_pj
                else {}
            )
        except ValueError:  # compute takes some from outside, or two fan-outs are crossed at once
            continue
        if any(abs(n - seen.hops[f.name, tensor]) > 1e-9 for tensor, n in links.items()):
            return True, has_overlap(layer, e), f"seed {seed}: {f} links {links}, walked {seen.hops}\n{layer}"
    missing = {key: n for key, n in seen.total.items() if n and key not in rows}
    same = parse(text([layer])) == [layer]
    return (
        True,
        has_overlap(layer, e),
        ""
        if same and not missing and seen.homeless is None
        else f"seed {seed}: {missing} {seen.homeless}\n{layer}",
    )


def test_counts_are_those_of_a_walk() -> None:
    found = [unlike(seed) for seed in range(amount(700))]
    assert [wrong for _, _, wrong in found if wrong] == []
    assert sum(counted and overlapping for counted, overlapping, _ in found) > amount(200)
    assert sum(not counted for counted, _, _ in found) > amount(50)


@given(SEEDS)
@settings(max_examples=amount(200), deadline=None)
def test_where_nothing_overlaps_and_all_divides_a_nest_counts_the_same(seed: int) -> None:
    rng = Random(seed)
    while True:
        e, arch, nest = raised_case(rng, ("gemm", "bmm", "add", "copy"))
        left = e.sizes()
        trips = [
            (left[node.rank], left.update({node.rank: node.tile}), node.tile)
            for node in nest.nodes
            if isinstance(node, Loop)
        ]
        # a nest makes fewer trips where a tile ends, and brings in anew in a loop of one trip
        if all(n > tile and n % tile == 0 for n, _, tile in trips):
            break
    layer = directives_of(nest, e)
    if layer.buffers[0].level == "mac" and any(step.repl for step in layer.buffers[0].steps):
        with pytest.raises(ValueError, match="MAC units without buffers are counted as nests only"):
            boxes.program(layer, e, arch)
        return
    assert not has_overlap(layer, e)
    try:
        g = boxes.program(layer, e, arch)
    except ValueError as fault:
        # by how much there is of it, nothing says how often it is made
        assert "moves no tensor that stands there" in str(fault)
        return
    rows, theirs = boxes.count_rows(g, arch), instance_counts(nest_sums(nest, e, arch))
    assert {key: row[0] for key, row in rows.items()} == {
        key: row[0] for key, row in theirs.items() if row[0] and key[2] != "fold"
    }
    assert {key: row[1][0] for key, row in rows.items() if key[2] != "merge"} == {
        key: row[1][0] for key, row in theirs.items() if row[0] and key[2] not in ("fold", "merge")
    }
    assert {(row.level, row.tensor) for row in boxes.footprints(g)} == {
        (row.level, row.tensor) for row in held_by_nest(nest, e, arch)
    }


ROWS = """C:
  REGF:
    tensor{A}(m=1, k=1)
    tensor{B}(k=1, n=2)
    tensor{C}(m=1, n=2)
    stack(m+=1, 8) over X
    update(k+=1)
    update(n+=2)
  GBUF:
    tensor{A}(m=8, k=6)
    tensor{B}(k=6, n=8)
    tensor{C}(m=8, n=8)
  DRAM:
    tensor{A}(m=8, k=6)
    tensor{B}(k=6, n=8)
    tensor{C}(m=8, n=8)
"""


def counted(words: str) -> dict[tuple[str, str, str], float]:
    return {
        key: row[0] for key, row in boxes.count_rows(boxes.program(parse(words)[0], GEMM, EDGE), EDGE).items()
    }


def test_an_update_by_less_than_there_is_brings_in_the_rest() -> None:
    """B's box of 6 x 4 goes on by 2 of n: first 4 columns come, then 2, and 2, and at the end there are no
    more.
    """
    assert counted(ROWS)["REGF", "B", "write"] == 8 * 4 * 6 * 2
    wider = (
        ROWS.replace("tensor{A}(m=1, k=1)", "tensor{A}(m=1, k=6)")
        .replace("tensor{B}(k=1, n=2)", "tensor{B}(k=6, n=4)")
        .replace("    update(k+=1)\n", "")
    )
    assert counted(wider)["REGF", "B", "write"] == 8 * 6 * (4 + 2 + 2)  # in each of the 8 buffers
    assert counted(wider)["GBUF", "B", "read"] == 6 * 8  # which all want them at once
    again = wider.replace(
        "stack(m+=1, 8) over X\n    update(n+=2)", "stack(m+=1, 4) over X\n    update(n+=2)\n    update(m+=4)"
    )
    # m goes on, n begins again: of columns 6 and 7 none is of use
    assert counted(again)["REGF", "B", "write"] == 4 * 6 * 2 * (4 + 2 + 2)


def test_an_update_by_what_a_stack_shifts_goes_on_behind_the_stack() -> None:
    """Four buffers side by side hold all of n: an update by as much as they lie apart would stand in the next
    one's place, so it makes one iteration.
    """
    across = ROWS.replace(
        "    stack(m+=1, 8) over X\n", "    stack(m+=1, 8) over X\n    stack(n+=2, 4) over Y\n"
    )
    try:
        found: object = counted(across)
    except ValueError as fault:
        found = str(fault)
    assert found == counted(across.replace("    update(n+=2)\n", ""))


def test_stacks_that_overlap_hold_a_copy_each() -> None:
    """Two buffers with 4 and 4 of the 6 of k: 2 of them stand in both; what is multiplied once is multiplied
    where it stands first.
    """
    split = (
        ROWS.replace("tensor{A}(m=1, k=1)", "tensor{A}(m=1, k=4)")
        .replace("tensor{B}(k=1, n=2)", "tensor{B}(k=4, n=2)")
        .replace("    update(k+=1)\n", "")
        .replace("stack(m+=1, 8) over X", "stack(m+=1, 8) over X\n    stack(k+=2, 2) over Y")
    )
    rows, own = (
        counted(split),
        boxes.count_rows(boxes.program(parse(split)[0], GEMM, EDGE), EDGE)["MAC", "-", "compute"],
    )
    assert rows["REGF", "A", "write"] == 8 * 2 * 4
    assert rows["GBUF", "A", "read"] == 8 * 6
    # four of k in the first buffer, two in the second
    assert rows["MAC", "C", "merge"] == 64
    assert own == (8 * 8 * 6, [8 * 4])


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "tensor{C}(m=1, n=2)",
            "tensor{C}(m=1, n=3)",
            "tensor{C} overlaps along n: one result would be added up in two places",
        ),
        ("update(n+=2)", "update(n+=3)", "stands at n = 2 comes to no buffer"),
        ("stack(m+=1, 8)", "stack(m+=1, 7)", "stands at m = 7 comes to no buffer"),
        (
            "tensor{B}(k=1, n=2)",
            "tensor{B}(k=1, n=1)",
            "comes to no buffer together with all that it is multiplied with",
        ),
        ("over X\n", "over X\n    stack(m+=1, 8) over X\n", "a step of m+=1 stands twice"),
        (
            "    stack(m+=1, 8) over X\n",
            "    stack(m+=1, 8) over NX\n",
            "buffers of this level lie along y, x",
        ),
        (
            "  GBUF:\n    tensor{A}(m=8, k=6)\n",
            "  GBUF:\n",
            "tensor{A} does not stand at GBUF, which no tensor may bypass",
        ),
        (
            "  DRAM:\n    tensor{A}(m=8, k=6)\n",
            "  DRAM:\n    tensor{A}(m=8, k=5)\n",
            "all of tensor{A} must stand there: m=8, k=6",
        ),
        (
            "C:\n  REGF:",
            "C:\n  mac:\n    stack(k+=1, 2) over Y\n  REGF:",
            "MAC units without buffers are counted as nests only",
        ),
        ("tensor{A}(m=1, k=1)", "tensor{A}(m=1)", "tensor{A} has m, k"),
        ("update(k+=1)", "update()", "is a step of no one rank"),
    ],
)
def test_what_cannot_be_counted_is_refused_in_one_line(old: str, new: str, says: str) -> None:
    with pytest.raises(ValueError, match=r".*") as fault:
        boxes.program(parse(ROWS.replace(old, new, 1))[0], GEMM, EDGE)
    assert says.lower() in str(fault.value).lower()
    assert len(str(fault.value).splitlines()) == 1


def test_rows_of_a_filter_run_diagonally_over_the_array() -> None:
    """Row-stationary: 3 rows of outputs across, 3 rows of weights down; the 5 rows of the image that 9
    buffers want are read once each, as they slide in.
    """
    e = einsum("O[p,q] += I[p+r,q+s] * F[r,s]", {"p": 3, "q": 6, "r": 3, "s": 3}, "O")
    words = """O:
  REGF:
    tensor{I}(p+r=1, q+s=3)
    tensor{F}(r=1, s=3)
    tensor{O}(p=1, q=1)
    stack(p+=1, p+r+=1, 3) over X
    stack(r+=1, p+r+=1, 3) over Y
    update(q+=1, q+s+=1)
  GBUF:
    tensor{I}(p+r=5, q+s=8)
    tensor{F}(r=3, s=3)
    tensor{O}(p=3, q=6)
  DRAM:
    tensor{I}(p+r=5, q+s=8)
    tensor{F}(r=3, s=3)
    tensor{O}(p=3, q=6)
"""
    layer = parse(words)[0]
    rows = Counter(
        {key: row[0] for key, row in boxes.count_rows(boxes.program(layer, e, EDGE), EDGE).items()}
    )
    assert rows["REGF", "I", "write"] == 9 * 8
    assert rows["GBUF", "I", "read"] == 5 * 8
    assert rows["GBUF", "F", "read"] == 9
    assert rows["REGF", "F", "write"] == 27
    assert rows["GBUF", "O", "write"] == 18
    from dse.mapping.directives import mapping_of

    nest = {(row.level, row.tensor, row.action): row.elems for row in count(mapping_of(layer, e), e, EDGE)}
    # a nest brings all three in at each step, and shares none
    assert nest["REGF", "I", "write"] == 9 * 6 * 3 == nest["GBUF", "I", "read"]

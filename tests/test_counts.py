"""Closed forms against the oracle on random nests: every count, of all instances and of the busiest, and
every footprint.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import isclose
from random import Random
from threading import Thread

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.mapping.nest import Mapping, Store, faults, parse
from dse.sim.counts.counts import Count, count, footprints
from dse.sim.counts.terms import Formulas, Wiring
from dse.sim.einsum.cost import overflow, price
from hw import machine
from hw.arch import Arch
from tests.amount import amount
from tests.nests import KINDS, ported, random_case, rich_case, widened
from tests.oracle import Tally, gate, port_bits, walk, width
from tests.streams import described
from workloads.einsum import Einsum, compulsory_elems, einsum

SPLIT = 1e-9  # expected elements that are none: what rounding leaves of reads that are all skipped


def mismatch(seed: int, kinds: Sequence[str] = (*KINDS, "spmm", "spmv")) -> str:
    """Empty if closed form and oracle agree on the seed's nest, else what differs. Whole numbers exactly,
    expected ones and shares of row pointers to 1e-9.
    """
    rng = Random(seed)
    e, arch, mapping = random_case(rng, kinds)
    return unlike(f"seed {seed}", e, described(rng, arch) if seed % 3 == 0 else arch, mapping)


def unlike(name: str, e: Einsum, arch: Arch, mapping: Mapping) -> str:
    """Every fourth machine without lines narrows or widens elements at some levels; every third says which
    ports serve what.
    """
    arch = arch if arch.models_layout() else ported(widened(arch, e, 4), e, 3)
    assert faults(mapping, e, arch) == []
    sparse = any(p.density != 1 or p.format != "dense" for p in e.tensors())
    tally = walk(mapping, e, arch)
    rows = count(mapping, e, arch)
    total = {(r.level, r.tensor, r.action): r.elems for r in rows if r.elems}
    busiest = busiest_bits(rows, e, arch)
    held = {(f.level, f.tensor): f.elems for f in footprints(mapping, e, arch) if f.elems}
    for what, ours, walked in (
        ("total", total, tally.total),
        ("busiest", busiest, port_bits(tally, e, arch)),
        ("held", held, tally.held),
    ):
        ours, walked = ({key: n for key, n in of.items() if abs(n) > SPLIT} for of in (ours, walked))
        if ours.keys() != walked.keys() or any(
            not isclose(n, walked[key], rel_tol=1e-9 if sparse else 0) for key, n in ours.items()
        ):
            return (
                f"{name} {what}: "
                f"{sorted(set(ours.items()) ^ set(walked.items()))}\n{e}\n{arch.fanouts}\n{mapping}"
            )
    energy, walked_pj = (
        sum(part.energy_pj for part in price(rows, e, arch).parts if part.action != "leak"),
        energy_pj(tally, e, arch),
    )
    if line := outgrown(mapping, e, arch, tally):
        return f"{name} {line}\n{e}\n{arch}\n{mapping}"
    return (
        ""
        if isclose(energy, walked_pj, rel_tol=1e-9)
        else f"{name} energy: {energy} is not {walked_pj}\n{e}\n{arch}\n{mapping}"
    )


def outgrown(mapping: Mapping, e: Einsum, arch: Arch, tally: Tally) -> str:
    """Empty if the outermost level, and each that holds tiles once, has to have just the room that all
    tensors take there.
    """
    for v, level in enumerate(arch.levels):
        need = sum(
            int(n * width(level.name, tensor, e, arch))
            for (at, tensor), n in tally.held.items()
            if at == level.name
        )
        if level.double_buffer or not need:
            continue
        found = [
            overflow(footprints(mapping, e, own), e, own)
            for own in (with_room(arch, v, need), with_room(arch, v, need - 1))
        ]
        right = (
            found[0] is None
            and found[1]
            and (found[1].level, found[1].need_bytes, found[1].einsum) == (level.name, -(-need // 8), e.name)
        )
        if not right:
            return f"{level.name}: {found} of {need} bits"
    return ""


def with_room(arch: Arch, v: int, bits: int) -> Arch:
    """A machine on which level v alone is bounded."""
    levels = [replace(level, capacity_bits=None) for level in arch.levels]
    levels[v] = replace(levels[v], capacity_bits=bits)
    return replace(arch, levels=tuple(levels))


def busiest_bits(rows: Sequence[Count], e: Einsum, arch: Arch) -> dict[tuple[str, str], float]:
    """Bits that the busiest instance of every port moves; operations of the busiest lane; folds."""
    levels = {level.name: level for level in arch.levels}
    found: Counter[tuple[str, str]] = Counter()
    for row in rows:
        if row.level in levels:
            name, times = gate(levels[row.level], row.tensor, row.action, e)
            found[row.level, name] += row.busiest_elems * width(row.level, row.tensor, e, arch) / times
        else:
            found[row.level, row.action] += row.busiest_elems
    return {port: n for port, n in found.items() if n}


def energy_pj(tally: Tally, e: Einsum, arch: Arch) -> float:
    """Energy of the actions that the oracle saw: elements of so many bits, actions of the level's width."""
    levels, total = {level.name: level for level in arch.levels}, 0.0
    for (level, tensor, action), n in tally.total.items():
        if action == "compute":
            total += n * {"mac": arch.compute.mac_pj, "copy": 0.0}.get(e.kind, arch.compute.alu_pj)
        elif action == "merge":
            total += n * arch.compute.merge_pj
        elif action not in ("fold", "wait"):
            total += (
                n
                * width(level, tensor, e, arch)
                / levels[level].width_bits
                * (levels[level].read_pj if action == "read" else levels[level].write_pj)
            )
    return float(total)


@settings(max_examples=amount(500), deadline=None)
@given(st.integers(0, 2**32))
def test_closed_form_equals_oracle(seed: int) -> None:
    assert mismatch(seed) == ""


@settings(max_examples=amount(300), deadline=None)
@given(st.integers(0, 2**32))
def test_closed_form_equals_oracle_on_rich_nests(seed: int) -> None:
    assert unlike(f"seed {seed}", *rich_case(Random(seed))) == ""


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32))
def test_a_dense_result_of_sparse_operands_is_written_at_least_once(seed: int) -> None:
    e, arch, mapping = rich_case(Random(seed), ("spmm", "spmv"))
    e = replace(e, output=replace(e.output, format="dense"))
    total = {(r.level, r.action): r.elems for r in count(mapping, e, arch) if r.tensor == e.output.tensor}
    outer = next(
        node.level for node in mapping.nodes if isinstance(node, Store) and node.tensor == e.output.tensor
    )
    assert total[outer, "write"] >= compulsory_elems(e.output, e.sizes()) * (1 - 1e-12)
    assert min(total.values()) >= -SPLIT


@pytest.mark.parametrize(
    ("density", "written", "read"), [(0.01, 1.0, 0.0), (0.125, 1.0, 0.0), (0.25, 2.0, 1.0), (1.0, 8.0, 7.0)]
)
def test_products_of_an_element_that_are_expected_to_be_nonzero(
    density: float, written: float, read: float
) -> None:
    """8 products of one element: below one that is expected to be nonzero, a zero is written; the first read
    is skipped once.
    """
    arch = machine.arch(machine.load("a2"))
    e = einsum("T[m] += A[m,k] * B[k]", {"m": 5, "k": 8}, density={"A": density})
    found = {
        r.action: r.elems
        for r in count(parse("store DRAM A B T\nfor m tile 1\nfor k tile 1\nmac"), e, arch)
        if r.tensor == "T"
    }
    assert found["write"] == pytest.approx(5 * written)
    assert found.get("read", 0.0) == pytest.approx(5 * read)


def test_sums_that_threads_share_give_each_factor_its_number() -> None:
    e, before = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 4, "n": 2, "k": 3}), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(20):
            s = Formulas(e, Mapping(()), Wiring((), frozenset(), (), 8))
            threads = [
                Thread(
                    target=lambda own=own, s=s: [
                        s.factor_number(None, (own, i), ("m",), {}) for i in range(40)
                    ]
                )
                for own in range(4)
            ]  # type: ignore[misc]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(s.numbers.values()) == list(range(160))
            assert len(s.factors) == 160
    finally:
        sys.setswitchinterval(before)

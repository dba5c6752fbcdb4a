"""Sweeps solve machines that differ in prices and rates alone together: rows are those of each alone."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import chain
from pathlib import Path
from random import Random

import pytest

from cluster import driver, worker
from dse.mapping.nest import Infeasible
from dse.sim.einsum.evaluate import EinsumCost
from dse.solve.options import SolverOptions
from dse.solve.solve import solve_unfused, solve_unfused_on
from dse.study import study as studies
from hw import machine
from hw.space import values
from tests.amount import FULL, some
from tests.test_driver import _stop_after, rows
from tests.test_together import priced_anew, told
from workloads import catalog


@pytest.mark.parametrize("hear", [False, True])
def test_einsums_in_turn_on_many_machines(tmp_path: Path, hear: bool) -> None:
    """As on each alone, where einsums fit no machine, fit some, or layouts are felt; each machine hears the
    same, in the same order, until it is given up.
    """
    (tmp_path / "mixed.yaml").write_text(
        'extents: {c: 12, k: 11, m: 13, n: 12}\neinsums: ["U[n] += X[n,c]", "T[m,k] += P[m,k] * Q[m] '
        '* W[k]", '
        # of U little is known for its effort: it comes late
        '"Y[m] += T[m,k] * B[k]", "Z[n] += Y[m] * U[n]"]\n'
    )
    chain, base = catalog.load(str(tmp_path / "mixed.yaml")), machine.arch(machine.load("a2"))
    machines = [
        priced_anew(
            replace(
                base,
                levels=tuple(
                    replace(one, bypass=False, capacity_bits=one.capacity_bits and words * base.word_bits)
                    for one in base.levels
                ),
            ),
            Random(7 * i + words),
        )
        for words in (1, 2, 3, 4, 40)
        for i in range(3 if FULL else 2)
    ] + [machine.arch(machine.load("burst_edge"))]
    heard: list[list[tuple[object, ...]]] = [[] for _ in machines]
    last = [2 if i % 5 == 1 else 99 for i, _ in enumerate(machines)]  # einsums that it hears of, at most

    def hears(j: int, place: int, cost: EinsumCost) -> bool:
        heard[j].append((place, *told(cost)))
        return len(heard[j]) < last[j]

    found = solve_unfused_on(machines, chain, SolverOptions(), hears if hear else None)
    kinds = set()
    for arch, one, own, most in zip(machines, found, heard, last, strict=True):
        alone = list[tuple[object, ...]]()
        expected = solve_unfused(
            arch,
            chain,
            SolverOptions(),
            on_einsum=(lambda place, cost, alone=alone: alone.append((place, *told(cost)))) if hear else None,
        )
        given_up = hear and len(alone) >= most
        assert own == ([] if arch.layout_sensitive() else alone[:most])
        if given_up or arch.layout_sensitive():
            assert one is None
        elif isinstance(expected, Infeasible):
            assert one == expected
        else:
            assert isinstance(one, list)
            assert [list(map(told, each.einsums)) for each in one] == [
                list(map(told, each.einsums)) for each in expected
            ]
            assert [(each.energy_pj, each.latency_cycles, each.certificate) for each in one] == [
                (each.energy_pj, each.latency_cycles, each.certificate) for each in expected
            ]
        kinds.add(
            "felt"
            if arch.layout_sensitive()
            else "given up"
            if given_up
            else str(expected.einsum)
            if isinstance(expected, Infeasible)
            else "solved"
        )
    assert kinds >= {"felt", "solved"}
    assert len(kinds) >= 3 + hear


REGISTERS = "regf.capacity: [64 B, 256 B], "  # twice the structures
STUDY = """
name: cells
workloads: ['gemm:m=64,n=48,k=96', 'gemm:m=35,n=77,k=11']
machine: edge_array
space: {{array.x: [8, 12], regf.capacity: [64 B, 256 B], dram.kind: [ddr3, lpddr4], dram.channels: [1, 2],
  node_nm: [22, 45], clock_mhz: [200, 800]}}
objectives: [energy_pj, latency_ns]
search: {{method: {method}, seed: 7, generation: 16, prune: {prune}}}
solver: {{objective: edp}}
"""


@pytest.mark.xdist_group("ray")
@pytest.mark.parametrize(
    ("method", "prune"),
    some([("exhaustive", "false"), ("random", "false"), ("bounds", "true"), ("random", "true")], 0, 2),
)
def test_rows_of_a_sweep_are_the_same_whichever_way(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, method: str, prune: str
) -> None:
    """Each alone; together in leases of any size, by one process or two; interrupted and resumed."""
    asked, whole = list[int](), worker.solve_unfused_on
    whole_space = FULL or prune == "true"  # bounds rule out machines from the third generation on
    text, many = STUDY.format(method=method, prune=prune), 64 if whole_space else 32
    (tmp_path / "cells.yaml").write_text(text if whole_space else text.replace(REGISTERS, ""))
    monkeypatch.setattr(
        worker, "solve_unfused_on", lambda arches, *rest: asked.append(len(arches)) or whole(arches, *rest)
    )
    monkeypatch.setattr(worker, "MIN_TOGETHER", 1 << 40)
    driver.run(studies.load(tmp_path / "cells.yaml"), tmp_path / "alone", workers=0)
    expected = rows(tmp_path / "alone")
    assert not asked
    assert len(expected["machines"]) == many
    assert len(expected["points"]) == many - sum("pruned" in row for row in expected["machines"])
    monkeypatch.setattr(worker, "MIN_TOGETHER", 4)
    for lease_s in (0.2, 5.0) if FULL or method == "exhaustive" else (5.0,):
        monkeypatch.setattr(driver, "LEASE_S", lease_s)
        driver.run(studies.load(tmp_path / "cells.yaml"), tmp_path / f"run{lease_s}", workers=0)
        assert rows(tmp_path / f"run{lease_s}") == expected
    assert max(asked) >= 8
    reason = {"random": "bounds: after", "bounds": "bounds: dominated"}.get(method, "")
    assert prune == "false" or any(reason in str(row) for row in expected["machines"])
    monkeypatch.setattr(driver, "REPORT_S", 0.0)
    first = driver.run(
        studies.load(tmp_path / "cells.yaml"), tmp_path / "parts", workers=0, progress=_stop_after(20)
    )
    assert first.status.state == "interrupted"
    driver.resume(tmp_path / "parts", workers=0)
    assert rows(tmp_path / "parts") == expected
    if FULL and method == "exhaustive":  # by default tests/test_turns.py has actors that solve batches
        head = request.getfixturevalue("head")
        driver.run(studies.load(tmp_path / "cells.yaml"), tmp_path / "two", workers=2, address=head)
        assert rows(tmp_path / "two") == expected


@pytest.mark.parametrize("method", ["exhaustive", "random"])
def test_leases_hold_machines_of_one_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Alike but for prices and rates, in whatever order axes stand; single ones until the pace is known."""
    axes = (
        "dram.kind: [ddr3, lpddr4], array.x: [8, 12], clock_mhz: [200, 400, 800, 1000], regf.capacity: "
        "[64 B, 256 B], node_nm: [22, 45]"
    )
    text = re.sub(r"(?s)space: .*?}}", f"space: {{{{{axes}}}}}", STUDY).replace(
        "generation: 16", "generation: 64"
    )
    (tmp_path / "cells.yaml").write_text(text.format(method=method, prune="false"))
    leases, real = list[list[int]](), driver.solve_lease
    monkeypatch.setattr(
        driver,
        "solve_lease",
        lambda job, lease: leases.append([ask.machine for ask in lease.asks]) or real(job, lease),
    )
    monkeypatch.setattr(driver, "LEASE_S", 0.0)
    study = studies.load(tmp_path / "cells.yaml")
    driver.run(study, tmp_path / "run", workers=0)
    cells = [
        {
            (one["array.x"], one["regf.capacity"])
            for machine in lease
            for one in [values(study.space, machine)]
        }
        for lease in leases
    ]
    assert all(len(cell) == 1 for cell in cells)
    assert sorted(chain.from_iterable(leases)) == list(range(64))
    assert len(leases) < 20
    assert [study.space.axes[at].key for at in worker.structural_axes(study.space)] == [
        "array.x",
        "regf.capacity",
    ]

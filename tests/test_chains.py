"""Graphs of thousands of operations: nothing recurses as deep as they are long, neither in Python nor in C
code that counts frames.
"""

from __future__ import annotations

import pickle
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

from dse.frontend import api
from dse.solve import solve
from dse.solve.elimination import join, table
from dse.solve.gogeta.accesses import one_by_one
from dse.solve.gogeta.classify import classify
from dse.solve.gogeta.emitted import phases_of
from dse.solve.gogeta.loop_orders import orders
from dse.solve.gogeta.operations import graph
from dse.solve.gogeta.sequence import _orders, _predecessors
from dse.solve.gogeta.traffic import traffic_of
from dse.solve.options import SolverOptions
from tests.chains import KINDS, SIZES, apart, products, recursive, shallow, sums
from tests.test_emitted import FLAT
from workloads import catalog
from workloads.einsum import einsum, show
from workloads.graph import Workload

LENGTH = 150  # operations: more than `shallow` lets be
BOUNDED = {  # what a recursion may be as deep as
    "levels of a machine": {
        "dse/sim/counts/times.py": {"_inside", "_level", "_double_buffer_time", "_inner_time"}
    },
    "prime factors or ranks of one einsum": {
        "dse/solve/gogeta/accesses.py": {"_nest_words", "_nest_words.inside"},
        "dse/mapper/baselines/exhaustive.py": {"chains"},
        "dse/mapper/exact/spatial.py": {
            "_factorizations",
            "_imperfect_splits",
            "_perfect_splits",
            "way_count",
        },
    },
    "einsums of one segment, at most eight": {
        "dse/solve/schedules/depths.py": {"Descent.visit"},
        "dse/solve/schedules/segments.py": {"place_regions.place_rest"},
        "dse/solve/schedules/fusible_segments.py": {"_extended"},
        "dse/solve/schedules/pipeline.py": {"_stages"},
    },
    "tensors of one einsum": {"dse/sim/einsum/boundary.py": {"_mix"}},
    "a call or two": {
        "dse/solve/solve.py": {
            "_best",
            "_with_parts_or_gogeta",
            "_cached_schedule",
            "_search_schedule",
            "_unfused_below",
            "_least_outer_traffic",
            "cached",
            "solve_schedule",
        },
        "dse/mapper/exact/optimal.py": {"_imperfect", "optimal"},
        "dse/run/record.py": {"dtype"},
        "workloads/catalog.py": {"_training_step", "load", "train", "_loaded"},
    },
    "nesting of a document, expression, statement or path": {
        "analysis/computed.py": {"_conditions", "_joined", "_joined_by_machine", "nodes"},
        "analysis/db.py": {"_check_table_function", "_check_statement", "_check_reads"},
        "analysis/report.py": {"_plain"},
        "analysis/origin.py": {"_from", "_front", "_parsed", "_query", "_unit_source"},
        "dse/exchange/accelforge.py": {"_flat", "_tree"},
        "dse/exchange/accelforge_mapping.py": {"_einsums", "_flat", "_tree"},
        "dse/exchange/arithmetic.py": {"_number", "_walked"},
        "dse/exchange/blocks.py": {"_chosen"},
        "dse/exchange/documents.py": {
            *("_document", "_expanded", "_expanded.data", "_expanded.plain", "_merged", "_over")
        },
        "dse/exchange/shape.py": {"_mapping_faults", "faults"},
        "dse/exchange/timeloop.py": {"_nodes"},
        "dse/exchange/timeloop_machine.py": {"_flat", "_parallel"},
        "dse/mapping/nest.py": {"_is_mapping"},
        "dse/mapping/searched.py": {"_checked", "_data", "_read"},
        "workloads/bodies.py": {"_renamed"},
        "dse/mapping/directives.py": {"_reversed_stacks", "mapping_of", "split_mapping"},
        "dse/run/folder.py": {"_irregular_below", "make_folder"},
        "dse/frontend/keys.py": {"_show", "_values"},
        "dse/frontend/tables.py": {"plain"},
        "hw/space.py": {"_evaluate"},
        "hw/component.py": {"_flow"},
        "workloads/facts.py": {"_walk_graph", "_walk_loop", "_expand_node", "reads"},
        "workloads/onnx.py": {"_function_faults.size", "_tensor_faults"},
        "workloads/retrace.py": {"_scaled_args"},
        "workloads/torch.py": {"_nodes"},
    },
}


def test_every_recursion_has_a_bound_that_is_no_length_of_a_graph() -> None:
    """A function that calls itself is listed here with what it is as deep as, or is written as a loop."""
    known = {
        f"{file}:{name}" for files in BOUNDED.values() for file, names in files.items() for name in names
    }
    assert recursive(("dse", "workloads", "hw", "cluster", "analysis")) == known


@pytest.mark.parametrize("kind", KINDS)
def test_residency_of_long_graphs(kind: str) -> None:
    w = KINDS[kind](LENGTH)
    traffic_of(KINDS[kind](6), 300)
    with shallow():
        found = traffic_of(w, 300)
        hash(found.operations), repr(found.optimal), pickle.dumps(found.order)
    assert len(found.operations) == (1 if kind == "sums" else LENGTH)


def test_residency_at_the_default_limit() -> None:
    """Products, and longer ones: `make prove PART=reuse`."""
    assert sys.getrecursionlimit() == 1000
    found = traffic_of(apart(1100), 300)
    assert len(found.operations) == 1100
    assert found.optimal.cost == found.optimal.bound == found.seq_flex


def test_orders_of_many_phases_come_as_before() -> None:
    """All orders of two chains of two, the one given first; the first ones of 3,000 phases apart, the last
    two swapped in the second.
    """
    others = (
        einsum("U1[m,n] += U0[m,k] * V0[k,n]", SIZES, "u0"),
        einsum("U2[m,n] += U1[m,k] * V1[k,n]", SIZES, "u1"),
    )
    w = Workload("two", (*products(2).einsums, *others))
    phases = one_by_one(graph(w))
    found = [
        [phase.stages[0][0] for phase in order] for order in _orders(phases, _predecessors(graph(w), phases))
    ]
    assert found == [[0, 1, 2, 3], [0, 2, 1, 3], [0, 2, 3, 1], [2, 0, 1, 3], [2, 0, 3, 1], [2, 3, 0, 1]]
    many = one_by_one(graph(apart(3000)))
    first, second = islice(_orders(many, [set() for _ in many]), 2)
    assert first == many
    assert second == [*many[:-2], many[-1], many[-2]]


def test_loop_orders_of_long_graphs() -> None:
    g = graph(products(LENGTH))
    edges = classify(g)
    next(orders(graph(products(4)), classify(graph(products(4))), 0, 0))
    with shallow():
        assert len(next(orders(g, edges, 0, 0))) == LENGTH


def test_an_operation_of_many_products_is_named_whole() -> None:
    w = sums(LENGTH)
    one = graph(w)
    assert len(one.operations) == 1
    with shallow():
        assert phases_of(w, one.operations, [[0]]) == [(tuple(e.name for e in w.einsums),)]


# room for no tensor: few plans to look at
TIGHT = replace(FLAT, levels=(FLAT.levels[0], replace(FLAT.levels[1], capacity_bits=8 * 48)))


@pytest.mark.parametrize(
    "options",
    [SolverOptions(), SolverOptions(schedule="fused"), SolverOptions(schedule="gogeta", factors="perfect")],
)
def test_mappings_of_long_graphs(options: SolverOptions) -> None:
    solve.solve(TIGHT, products(6), options)
    with shallow(150):
        found = solve.solve(TIGHT, products(LENGTH), options)
    assert isinstance(found, list)
    assert len(found[0].einsums) in (1, LENGTH)


def test_a_join_of_hundreds_of_tables() -> None:
    """What an answer remembers of its past is as long as the chain."""

    def chain(length: int) -> float:
        tables = [
            table((f"b{i}", f"b{i + 1}"), [((a, b), (1.0 + a * b, 1.0)) for a in range(2) for b in range(2)])
            for i in range(length)
        ]
        return join(tables).choices[0].energy

    chain(3)
    with shallow():
        assert chain(400) == 400.0


def test_files_of_long_graphs(tmp_path: Path) -> None:
    def written(length: int, turned: bool) -> Path:
        path = tmp_path / f"{length}{turned}.yaml"
        lines = [f'- "{show(e)}"' for e in products(length).einsums]
        path.write_text(
            "\n".join(["extents: {m: 8, n: 8, k: 8}", "einsums:", *(reversed(lines) if turned else lines)])
            + "\n"
        )
        return path

    for turned in (False, True):
        catalog.load(str(written(3, turned)))
        with shallow(150):
            assert len(catalog.load(str(written(LENGTH, turned))).einsums) == LENGTH
    assert len(catalog.load(str(written(1100, True))).einsums) == 1100


def test_a_long_answer_is_told(tmp_path: Path) -> None:
    path = tmp_path / "long.yaml"
    path.write_text(
        "\n".join(
            ["extents: {m: 8, n: 8, k: 8}", "einsums:", *(f'- "{show(e)}"' for e in products(1100).einsums)]
        )
        + "\n"
    )
    found = api.map(str(path), "a2")
    assert len(found.einsums) == 1
    assert "1100" in repr(found)

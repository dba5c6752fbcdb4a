"""Loop orders of the operations of a workload, and what swizzles cost, as facts and tables."""

from __future__ import annotations

from typing import Any

from dse.explain.values import Table
from dse.solve.gogeta import loop_orders
from dse.solve.gogeta.operations import accessed_words, graph
from dse.solve.gogeta.traffic import TrafficReport
from hw.arch import Arch
from workloads.graph import Workload


def loop_order_tables(
    arch: Arch, workload: Workload, report: TrafficReport
) -> tuple[dict[str, Any], list[Table]]:
    """Returns (facts, tables): GOGETA's Algorithm 3 with the edges of a report. The tables are the loop
    orders of one period, and its edges that are swizzled or give up pipelining.

    A swizzled tensor is taken to be copied into the other order, read and written once in main memory. Raises
    ValueError where the search is given up.
    """
    found = loop_orders.best_orders(graph(workload, 3), report.edges)
    names = [e.name.partition("@")[0] for e in report.operations]
    outer, operations = arch.levels[0], report.operations
    rows, total_bytes, total_pj = [], 0.0, 0.0
    for edge in report.edges:
        if edge not in found.swizzled and edge not in found.given_up:
            continue
        source = operations[edge.source]
        bits = accessed_words(source.output, source.sizes(), arch.word_bits) * arch.word_bits
        copied_bits = bits if edge in found.swizzled else 0
        copied_bytes = 2 * copied_bits / 8
        copy_pj = copied_bits / outer.width_bits * (outer.read_pj + outer.write_pj)
        total_bytes, total_pj = total_bytes + copied_bytes, total_pj + copy_pj
        what = " and ".join(
            word
            for word, own in (("swizzled", found.swizzled), ("not pipelined", found.given_up))
            if edge in own
        )
        rows.append(
            (
                edge.tensor.partition("@")[0],
                names[edge.source],
                names[edge.target],
                what,
                copied_bytes,
                copy_pj,
            )
        )
    facts = {
        "assignments": f"{'' if found.is_all else 'at least '}{found.assignments} that swizzle and give up "
        "as little",
        "swizzles": len(found.swizzled),
        "pipelines given up": len(found.given_up),
        "copies": f"{total_bytes / 2**20:.4g} MiB, {total_pj / 1e6:.4g} uJ" if total_bytes else "none",
    }
    chosen = tuple(
        (e.name.partition("@")[0], " ".join(order))
        for e, order in zip(found.operations, found.orders, strict=True)
    )
    return facts, [
        Table("loop orders, outermost first", ("operation", "order"), chosen),
        Table(
            "edges that do not follow their orders",
            ("tensor", "from", "to", "what", "copied_bytes", "copy_pj"),
            tuple(rows),
            "A swizzled tensor is read in another order than it is written: a copy reads and writes it once, "
            "in main memory.",
        ),
    ]

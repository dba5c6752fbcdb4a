"""What `dse map`, `dse show` and `dse residency` print of an answer: facts, tables and loop nests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dse.explain import units
from dse.explain import values as explain
from dse.frontend.tables import WIDE, facts, table, wrapped
from dse.mapping import schedule as schedules
from dse.mapping.schedule import Schedule
from dse.sim.einsum.evaluate import Solution
from dse.solve.gogeta.traffic import TrafficReport
from hw import component
from hw.arch import Arch, Rule
from workloads.graph import Workload, unique

MAX_ROWS = 16  # rows of a table of on-chip retention


class NothingFits(ValueError):
    """No mapping fits the machine: no fault of what was given."""

    exit_code = 1


def einsum_indices(workload: Workload, name: str | None) -> dict[str, int]:
    """Returns einsum name -> index of its distinct einsum. Raises ValueError unless `name` is an einsum,
    "all" or None.
    """
    index_of = {own: i for i, group in enumerate(unique(workload)) for own in group.names}
    if name not in (None, "all", *index_of):
        advice = component.closest_name(str(name), ["all", *index_of])
        raise ValueError(f"--einsum {name}: {workload.name} has no such einsum; {advice}")
    return index_of


def solution(
    arch: Arch,
    workload: Workload,
    found: Solution,
    name: str | None,
    width: int = WIDE,
    why: bool = False,
    plan: Schedule | None = None,
    asked: Sequence[Rule] = (),
) -> str:
    """Returns totals, the energy breakdown, the costliest einsums, and nest, traffic and footprints of one
    einsum. name: of that einsum, in its own names; "all": each distinct one; None: the costliest. why: the
    certificate in full. plan: as in `values.equal_names`. asked: the rules of solver.mapping.
    """
    einsum_indices(workload, name)
    costed = explain.costed_einsums(workload, found)
    names_of = explain.equal_names(workload, found, plan)
    index_of = {own: i for i, names in enumerate(names_of) for own in names}
    head = facts(explain.facts(arch, workload, found, why), f"{workload.name} on {arch.name}", width)
    notes = explain.notes(arch, workload, found, why, asked)
    blocks = [head + "".join(f"{wrapped(line, width)}\n" for line in notes)]
    blocks += [block(one, width) for one in explain.network(arch, workload, found, name == "all", plan)]
    blocks += [f"{schedules.to_text(found.schedule, workload)}\n"] if found.schedule else []
    costliest = max(
        range(len(found.einsums)), key=lambda i: found.einsums[i].count * found.einsums[i].energy_pj
    )
    for i in range(len(found.einsums)) if name == "all" else [index_of[name] if name else costliest]:
        c, e = costed[i]
        own = next((one for one in workload.einsums if one.name == name), e)
        nest, tables = explain.einsum(arch, own, explain.renamed(c, e, own))
        blocks += [
            "\n".join(wrapped(line, width) for line in nest.splitlines()) + "\n",
            *(block(one, width) for one in tables),
        ]
    return "\n".join(blocks)


def residency(arch: Arch, workload: Workload, found: TrafficReport, width: int = WIDE) -> str:
    """Returns facts and tables of on-chip retention. Long tables show their first rows."""
    known_facts, tables = explain.residency(arch, workload, found)
    blocks = [facts(known_facts, f"{workload.name} on {arch.name}", width)]
    for one in tables:
        hidden_rows = len(one.rows) - MAX_ROWS
        notes = [
            one.note,
            f"{units.counted(hidden_rows, 'more row')}; --format json lists them" if hidden_rows > 0 else "",
        ]
        blocks.append(
            block(replace(one, rows=one.rows[:MAX_ROWS], note=" ".join(filter(None, notes))), width)
        )
    return "\n".join(blocks)


def loop_orders(arch: Arch, workload: Workload, found: TrafficReport, width: int = WIDE) -> str:
    """Returns facts and tables of loop orders and swizzles. Raises ValueError where their search ends."""
    from dse.explain.orders import loop_order_tables

    known_facts, tables = loop_order_tables(arch, workload, found)
    blocks = [
        facts(known_facts, "orders and swizzles", width),
        *(block(one, width) for one in tables if one.rows),
    ]
    return "\n".join(blocks)


def ranking(known_facts: dict[str, Any], listed: list[explain.Table], width: int = WIDE) -> str:
    """Returns lists and schedules, and how they rank."""
    return "\n".join([facts(known_facts, "as schedules", width), *(block(one, width) for one in listed)])


def block(one: explain.Table, width: int) -> str:
    """Returns an explanation's table with its title and its note, wrapped to `width` columns. No column
    of the table of einsums is left out.
    """
    heads = [*map(units.label, one.header)]
    keep = heads if one.title == "einsums" else ()
    shown = table(heads, one.rows, one.title, keep, width, one.header)
    return shown + (wrapped(one.note, width) + "\n" if one.note else "")

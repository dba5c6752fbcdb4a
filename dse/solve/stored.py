"""Stored answers as solutions again: costs of einsums added up, nests priced anew. It imports no solver, so
that questions about a run start fast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from dse.mapping import schedule
from dse.mapping.nest import NON_NEST, Infeasible, parse
from dse.mapping.searched import mappings_in
from dse.sim.einsum.evaluate import EinsumCost, Problem, Solution, sequential
from dse.sim.schedule.graph import evaluate
from dse.solve.options import SolverOptions
from hw.arch import Arch
from workloads.graph import Unique, Workload, unique

NO_PROOFS: Mapping[str, tuple[float, str]] = MappingProxyType({})


def searches_hops(options: SolverOptions) -> bool:
    """True if the mapper counts hops of networks; others search as if they cost nothing."""
    return options.mapper == "optimal" and options.tiling == "mapper"


def sequential_solution(
    arch: Arch, groups: Sequence[Unique], options: SolverOptions, costs: Sequence[EinsumCost | Infeasible]
) -> list[Solution] | Infeasible:
    """Returns the unfused schedule of a workload from the costs of its distinct einsums, or Infeasible if one
    has no mapping. The certificate names mapper and options.
    """
    unnested = sum(isinstance(found, EinsumCost) and bool(found.mapping.non_nest_text) for found in costs)
    method = (f"mapper {options.mapper}" if options.tiling == "mapper" else options.tiling) + (
        f"; {unnested} of {len(groups)} einsums {NON_NEST}" if unnested else ""
    )
    if arch.layout_sensitive() and not arch.models_layout() and not searches_hops(options):
        method += "; hops not searched"
    total = sequential(costs, groups, Problem(arch, groups[0].einsum, options.objective), method)
    return total if isinstance(total, Infeasible) else [total]


def reprice(
    arch: Arch,
    workload: Workload,
    options: SolverOptions,
    nests: Mapping[str, str],
    proofs: Mapping[str, tuple[float, str]] = NO_PROOFS,
) -> Solution | Infeasible:
    """Returns the price of a stored schedule, evaluated again from its nests (text by einsum name).

    proofs: optimality gap and certificate by einsum name, which unfused schedules get back
    """
    plain = schedule.sequential(workload, {name: parse(text) for name, text in nests.items()})
    priced_anew = evaluate(
        arch, workload, plain, options.single_objective, reuse=options.schedule != "unfused"
    )
    spaces = {
        name: (gap, space)
        for name, (gap, certificate) in proofs.items()
        if (space := mappings_in(certificate))
    }
    if isinstance(priced_anew, Infeasible) or options.schedule != "unfused" or not spaces:
        return priced_anew
    with_gaps = [
        replace(one, optimality_gap=spaces[one.name][0], space=spaces[one.name][1])
        if one.name in spaces
        else one
        for one in priced_anew.einsums
    ]
    return sequential(
        with_gaps,
        unique(workload),
        Problem(arch, workload.einsums[0], options.objective),
        f"mapper {options.mapper}",
    )

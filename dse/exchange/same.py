"""Whether a mapping costs the same after it went to a peer's form and came back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dse.mapping.nest import Infeasible, Mapping
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost
from hw.arch import Arch
from workloads.einsum import Einsum


def differences(before: Mapping, after: Mapping, e: Einsum, arch: Arch) -> Iterator[str]:
    """Yields what differs in counts, energy or latency, a line per tensor and level. Capacities are left
    aside: a peer may need more for the same nest.
    """
    one, other = _cost(before, e, arch), _cost(after, e, arch)
    if isinstance(one, Infeasible) or isinstance(other, Infeasible):
        yield from (str(found) for found in (one, other) if isinstance(found, Infeasible))
        return
    counts = [{row.key: row.elems for row in cost.counts} for cost in (one, other)]
    places = dict.fromkeys(key[:2] for key in (*counts[0], *counts[1]))
    found = False
    for level, tensor in places:
        sums = [sum(n for key, n in own.items() if key[:2] == (level, tensor)) for own in counts]
        if abs(sums[0] - sums[1]) > 1e-9 * max(sums):
            found = True
            why = "its tile stays where loops do not move it"
            yield f"{tensor} at {level} moves {sums[1]:g} elements, here {sums[0]:g}: {why}"
    if not found and abs(one.latency_cycles - other.latency_cycles) > 1e-9 * one.latency_cycles:
        free = "" if arch.overlap == "free" else "; --set overlap=free counts them as there"
        yield f"takes {other.latency_cycles:g} cycles, here {one.latency_cycles:g}{free}"


def _cost(mapping: Mapping, e: Einsum, arch: Arch) -> EinsumCost | Infeasible:
    roomy = replace(arch, levels=tuple(replace(level, capacity_bits=None) for level in arch.levels))
    return einsum_cost(Problem(roomy, e, "energy"), mapping)


def overflows(mapping: Mapping, e: Einsum, arch: Arch) -> str:
    """Returns the first level or array that a mapping does not fit; "" if it fits."""
    cost = einsum_cost(Problem(arch, e, "energy"), mapping)
    return cost.level if isinstance(cost, Infeasible) else ""

"""Runner of kind optimal_mapping: our optimum against a peer's, on every machine that the file describes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from math import inf, isclose, prod
from typing import Any

from dse.mapper.exact.optimal import optimal
from dse.mapping.constraints import FREE
from dse.mapping.nest import Infeasible, Mapping
from dse.sim.counts.counts import count
from dse.sim.einsum.evaluate import EinsumCost, Problem, objective_value
from dse.sim.fronts import Objective
from dse.solve.schedules.fused import fused
from hw.arch import Arch, Compute, Fanout, Level
from tests.cases_read import NotRun, leak, read_einsum, told
from tests.oracle import walk
from workloads.einsum import Einsum
from workloads.graph import Workload

BUDGET = 40_000_000  # visited nodes: the convolution of O13 is certified within it
OBJECTIVES: dict[str, Objective] = {"ENERGY": "energy", "LATENCY": "latency", "ENERGY_DELAY_PRODUCT": "edp"}
SAME = 1e-5
WALKED = 5_000_000  # iterations that the oracle walks
WALKED_WHOLE = 100_000  # and those of whole schedules
SIMPLE = Arch(
    "simple",
    (Level("MainMemory", None, 1, 1.0, 1.0, bypass=False), Level("GlobalBuffer", None, 1, 1.0, 1.0)),
    (),
    Compute(1.0, 1.0),
    1.0,
    8,
    overlap="free",
)


def optimal_mapping(file: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Our optimum over perfect factors is the listed one, or lies below it and the oracle counts the same
    actions.
    """
    for case in file["cases"]:
        yield str(case.get("id", "a case without id")), told(partial(_told, case, file.get("arches", {})))


def _told(case: dict[str, Any], arches: dict[str, Any]) -> list[str]:
    data = arches.get(case["arch"], {})
    if why := _not_run(case, data):
        raise NotRun(why)
    arch = arch_of(data, case["arch"], case["workload"]["bits_per_value"])
    return _case(case, arch)


def _not_run(case: dict[str, Any], data: dict[str, Any]) -> str:
    """Why a case cannot be compared, or nothing."""
    options = case.get("options") or {}
    if any("imperfect" in key.lower() and on for key, on in options.items()):
        return "averaged imperfect tiles; our ragged tiles are exact"
    if unknown := [key for key in options if "imperfect" not in key.lower()]:
        return f"option {', '.join(unknown)} has no counterpart"
    if "levels" not in data and case["arch"] != SIMPLE.name:
        return (
            f"arch {case['arch']} has rules that a machine cannot state (what a level never holds, what "
            "one dimension shares per tensor)"
        )
    if len(case["workload"].get("einsums", [])) > 1 and case["objective"] == "ENERGY_DELAY_PRODUCT":
        return "energy x delay of several einsums; products of their own optima are not certified"
    if "|" in case["objective"]:
        return f"a front of {case['objective']}; a mapper has one objective"
    return "" if case["objective"] in OBJECTIVES else f"objective {case['objective']}"


def _in_turn(case: dict[str, Any]) -> bool:
    """Whether the listed mapping holds every tensor in its outermost memory: nothing passes between einsums
    on chip.
    """
    lines = [line.strip() for line in case.get("chosen_mapping", [])]
    held = [re.match(r"\[(.*) in (\w+)\]", line) for line in lines]
    outer = next((m[2] for m in held if m), "")
    kept = {tensor for m in held if m and m[2] == outer for tensor in m[1].split(",")}
    return bool(kept) and {p.tensor for e in einsums(case["workload"]) for p in e.tensors()} <= kept


def arch_of(data: dict[str, Any], name: str, word_bits: int) -> Arch:
    """A machine as the file describes it: energies and bandwidths per word, a level that must hold all
    tensors is not bypassed.
    """
    if "levels" not in data:
        return SIMPLE
    shared = "share" in data["ports"]
    levels = tuple(
        Level(
            v["name"],
            v["capacity_bits"],
            word_bits,
            v["read_energy_per_word"],
            v["write_energy_per_word"],
            inf if v["bandwidth_words_per_cycle"] == "inf" else float(v["bandwidth_words_per_cycle"]),
            "shared" if shared else "separate",
            bypass=i > 0 and v["holds"] != "all tensors forced",
            leak_mw=leak(v) + (leak(data) if i == 0 else 0.0),
        )
        for i, v in enumerate(data["levels"])
    )
    fan, mac = data["spatial"], data["mac"]
    inside = [i for i, level in enumerate(levels) if re.search(rf"\band {level.name}\b", fan["at"])]
    dims = tuple((dim, n) for dim, n in fan.items() if isinstance(n, int))
    share = (fan["multicast_and_reduction"] == "all tensors",) * len(dims)
    fanout = Fanout("array", inside[0] if inside else len(levels), dims, share, share)
    compute = Compute(
        mac["energy_per_op"], mac["energy_per_op"], mac["ops_per_cycle_per_instance"], leak_mw=leak(mac)
    )
    return Arch(name, levels, (fanout,), compute, 1.0, word_bits, overlap="free")


def einsums(workload: dict[str, Any]) -> list[Einsum]:
    """The einsums of a case; a bound of n_i is that of n0, n1, ..."""
    found = []
    for i, text in enumerate(workload.get("einsums") or [workload["einsum"]]):
        ranks = sorted(set(re.findall(r"[A-Za-z_]\w*", " ".join(re.findall(r"\[([^\]]*)\]", text)))))
        bounds = {
            rank: workload["bounds"].get(rank, workload["bounds"].get(re.sub(r"\d+$", "_i", rank)))
            for rank in ranks
        }
        order = sorted(
            ranks,
            key=lambda rank: (
                list(workload["bounds"]).index(rank)
                if rank in workload["bounds"]
                else len(workload["bounds"])
            ),
        )
        found.append(read_einsum(text, {rank: bounds[rank] for rank in order}, f"{workload['name']}_{i}"))
    return found


def _case(case: dict[str, Any], arch: Arch) -> list[str]:
    objective = OBJECTIVES[case["objective"]]
    (listed,) = numbers(case["optimum"][objective])
    if len(case["workload"].get("einsums", [])) > 1 and not _in_turn(case):
        return _fused(case, arch, objective, listed)
    total, costs = 0.0, []
    for e in einsums(case["workload"]):
        found = optimal(Problem(arch, e, objective), "perfect", budget=BUDGET)
        if isinstance(found, Infeasible):
            return [str(found)]
        costs.append((e, found[0]))
        total += {"energy": found[0].energy_pj, "latency": found[0].latency_cycles}.get(
            objective, found[0].energy_pj * found[0].latency_cycles
        )
    if isclose(total, listed, rel_tol=SAME):
        return []
    if total > listed:
        return [f"{objective}: listed {listed}, ours {total}, not the optimum"]
    return [line for e, one in costs for line in unconfirmed(one, e, arch)]


def _fused(case: dict[str, Any], arch: Arch, objective: Objective, listed: float) -> list[str]:
    """Einsums that share loops or keep tensors on the chip."""
    workload = Workload(case["workload"]["name"], tuple(einsums(case["workload"])))
    found = fused(arch, workload, objective, "perfect", lambda _: FREE)
    if isinstance(found, Infeasible) or found.schedule is None:
        return [f"{found}" if isinstance(found, Infeasible) else "nothing stays on the chip"]
    value = objective_value(objective, found.energy_pj, found.latency_cycles)
    if isclose(value, listed, rel_tol=SAME):
        return []
    if value > listed:
        return [f"{objective}: listed {listed}, ours {value}, not the optimum"]
    if sum(e.points() for e in workload.einsums) > WALKED_WHOLE:
        return ["below the listed optimum, and too many iterations for the oracle"]
    from tests.test_schedule_walks import compared  # here: it needs what only tests need

    return compared(arch, workload, found.schedule)


def numbers(given: Any) -> list[float]:
    """A number, or a list of them."""
    return [float(n) for n in given] if isinstance(given, list) else [float(given)]


def unconfirmed(one: EinsumCost, e: Einsum, arch: Arch) -> list[str]:
    """Actions that the oracle counts otherwise, walking the mapping."""
    if prod(n for _, n in e.extents) > WALKED:
        return [f"below the listed optimum, and {e.points():,} iterations are too many for the oracle"]
    return _differences(one.mapping, e, arch)


def _differences(mapping: Mapping, e: Einsum, arch: Arch) -> list[str]:
    tally = walk(mapping, e, arch)
    rows = {(row.level, row.tensor, row.action): row.elems for row in count(mapping, e, arch)}
    walked = {key: n for key, n in tally.total.items() if n}
    return [
        f"{'/'.join(key)}: oracle {walked.get(key)}, counted {rows.get(key)}"
        for key in sorted(rows | walked)
        if rows.get(key) != walked.get(key)
    ]

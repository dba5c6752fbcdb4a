"""Runner of case files with known answers: python -m tests.cases FILE...

Prints `N passed, M failed` per file, the first differences, and by name what is not run and why.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from math import inf, isclose
from pathlib import Path
from typing import Any

from dse.mapping.nest import Infeasible, Loop, Mapping, Store, faults
from dse.mapping.schedule import Branch, Schedule, Segment
from dse.sim.counts.counts import counted, footprints
from dse.sim.einsum.cost import Price, price
from dse.sim.schedule.graph import evaluate
from hw.arch import Arch, Compute, Fanout, Level
from tests.cases_dataflow import eyeriss, systolic_cycles
from tests.cases_gogeta import gogeta
from tests.cases_layout import layout
from tests.cases_optimal import optimal_mapping
from tests.cases_read import FAULTS, NotRun, leak, read_einsum, told
from tests.cases_smaug import smaug_tiling
from workloads.einsum import Einsum
from workloads.graph import Workload

SHOWN = 5


def arch_of(data: dict[str, Any], name: str) -> Arch:
    """A machine as the case files describe it: energies per word, bits per action."""
    bits = data["bits_per_action"]
    levels = tuple(
        Level(
            v["name"],
            v["capacity_bits"],
            bits,
            v["read_energy_per_word"],
            v["write_energy_per_word"],
            _number(v["bandwidth_words_per_cycle"]),
            "separate" if v.get("ports", "shared").startswith("separate") else "shared",
            skip_first_read=data["skip_first_output_read"],
            leak_mw=leak(v),
        )
        for v in data["levels"]
    )
    fan, shared = data.get("fanout") or {}, bool(data["multicast_and_spatial_reduction"])
    outside = next((v for v, level in enumerate(levels) if level.name == fan.get("above")), len(levels))
    dims = tuple((dim, n) for dim, n in fan.items() if isinstance(n, int))
    fanouts = (Fanout("array", outside, dims, (shared,) * len(dims), (shared,) * len(dims)),) if dims else ()
    mac = data["mac"]
    compute = Compute(
        mac["energy_per_op"], mac["energy_per_op"], mac["ops_per_cycle_per_instance"], leak_mw=leak(mac)
    )
    return Arch(name, levels, fanouts, compute, 1.0, data["bits_per_value"], overlap="free")


def _number(value: Any) -> float:
    return inf if value == "inf" else float(value)


def mapping_of(nodes: list[dict[str, Any]]) -> Mapping:
    found: list[Loop | Store] = []
    for node in nodes:
        match node:
            case {"kind": "storage"}:
                found += [Store(node["component"], tensor) for tensor in node["tensors"]]
            case {"kind": "temporal"}:
                found.append(Loop(node["rank"], node["tile"]))
            case {"kind": "spatial"}:
                found.append(Loop(node["rank"], node["tile"], node["dim"]))
            case {"kind": "compute"}:
                pass
            case _:
                raise NotRun(f"node {node['kind']}: a fork stands last; forks within forks are not run")
    return Mapping(tuple(found))


def model_counts(file: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Counts, footprints, energy and latency of given mappings (docs/model.md)."""
    for case in file["cases"]:
        yield str(case.get("id", "a case without id")), told(partial(_model_case, case))


def _model_case(case: dict[str, Any]) -> list[str]:
    if "einsums" in case["workload"]:
        return _fused_case(case)
    arch, mapping = arch_of(case["arch"], case["id"]), mapping_of(case["mapping"])
    e = read_einsum(case["workload"]["einsum"], case["workload"]["bounds"], case["mapping"][-1]["einsum"])
    if lines := faults(mapping, e, arch):
        return lines
    c = counted(mapping, e, arch)
    rows = c.rows
    got = _flat_costs(price(rows, e, arch, c.timed), arch) | _flat_footprints(mapping, e, arch, case)
    got |= {f"{row.level}/{row.tensor}/{row.action}": float(row.elems) for row in rows}
    return differences(_expected(case["expected"], e.name), got)


def _fused_case(case: dict[str, Any]) -> list[str]:
    """Einsums under shared loops: their names stand at the ends of the branches, in the order of the
    workload.
    """
    *shared, fork = case["mapping"]
    if fork["kind"] != "sequential":
        raise NotRun("no fork stands last; einsums of other schedules are not run")
    arch, names = arch_of(case["arch"], case["id"]), [branch[-1]["einsum"] for branch in fork["branches"]]
    einsums = []
    for text, name in zip(case["workload"]["einsums"], names, strict=True):
        ranks = {rank: n for rank, n in case["workload"]["bounds"].items() if re.search(rf"\b{rank}\b", text)}
        einsums.append(read_einsum(text, ranks, name))
    branches = (Branch(name, mapping_of(nodes)) for name, nodes in zip(names, fork["branches"], strict=True))
    found = evaluate(
        arch,
        Workload(case["id"], tuple(einsums)),
        Schedule((Segment(tuple(branches), mapping_of(shared).nodes),)),
    )
    if isinstance(found, Infeasible):
        return [str(found)]
    got = {"energy": found.energy_pj, "latency": found.latency_cycles}
    for level, bits in found.segments[0].peak_bits:
        capacity = next(one.capacity_bits for one in arch.levels if one.name == level)
        got |= {f"peak/{level}": bits / capacity} if capacity else {}
    expected = _expected(case["expected"], "")
    for c in found.einsums:
        for key, n in (
            _flat_costs(c.price, arch) | {f"busy/{c.name}/{name}": n for name, n in c.price.busy_cycles}
        ).items():
            got[key] = got.get(key, 0.0) + n if key.startswith(("energy/", "busy/")) else got[key]
        got |= {f"{c.name}/{row.level}/{row.tensor}/{row.action}": float(row.elems) for row in c.counts}
        got |= {f"held/{c.name}/{level}/{tensor}": float(elems) for level, tensor, elems in c.footprint}
        expected |= {
            f"{_named(key, c.name)}": n
            for key, n in _expected(case["expected"], c.name).items()
            if key.count("/") == 2
        }
        busy = case["expected"]["latency_by_einsum_component"]
        expected |= {f"busy/{key}": n for key, n in busy.items() if key.startswith(f"{c.name}/")}
    return differences(expected, got)


def _named(key: str, einsum: str) -> str:
    return f"held/{einsum}/{key.removeprefix('held/')}" if key.startswith("held/") else f"{einsum}/{key}"


def _flat_costs(p: Price, arch: Arch) -> dict[str, float]:
    """Leakage belongs to the component that leaks."""
    depth, energy = len(arch.levels), dict[str, float]()
    for part in p.parts:
        if part.action != "leak":
            energy[f"energy/{part.level}"] = energy.get(f"energy/{part.level}", 0.0) + part.energy_pj
    for name, each, n in (
        *((level.name, level.leak_mw, arch.instances(v)) for v, level in enumerate(arch.levels)),
        ("MAC", arch.compute.leak_mw, arch.instances(depth)),
    ):
        if each:
            energy[f"energy/{name}"] = (
                energy.get(f"energy/{name}", 0.0) + each * n * p.latency_cycles / arch.clock_ghz
            )
    busy = {f"busy/{name}": cycles for name, cycles in p.busy_cycles}
    return energy | busy | {"energy": p.energy_pj, "latency": p.latency_cycles}


def _flat_footprints(mapping: Mapping, e: Einsum, arch: Arch, case: dict[str, Any]) -> dict[str, float]:
    held = footprints(mapping, e, arch)
    found = {f"held/{f.level}/{f.tensor}": float(f.elems) for f in held}
    for level in arch.levels:
        if level.capacity_bits:
            bits = sum(f.elems for f in held if f.level == level.name) * arch.word_bits
            found[f"peak/{level.name}"] = bits / level.capacity_bits
    return found


def _expected(expected: dict[str, Any], name: str) -> dict[str, float]:
    counts = expected["counts_words_einsum_level_tensor_action"].get(name, {})
    flat = {
        f"{level}/{tensor}/{action}": n
        for level, tensors in counts.items()
        for tensor, actions in tensors.items()
        for action, n in actions.items()
    }
    held = expected["footprint_words_per_instance_einsum_level_tensor"].get(name, {})
    flat |= {f"held/{level}/{tensor}": n for level, tensors in held.items() for tensor, n in tensors.items()}
    flat |= {f"peak/{level}": n for level, n in expected["peak_usage_fraction"].items()}
    flat |= {f"energy/{level}": n for level, n in expected["energy_by_component"].items()}
    flat |= {f"busy/{level}": n for level, n in expected["latency_by_component"].items()}
    return flat | {"energy": expected["energy_total"], "latency": expected["latency_total"]}


def differences(expected: dict[str, float], got: dict[str, float]) -> list[str]:
    """Every expected number, and every action that nobody expected."""
    lines = [
        f"{key}: expected {n}, got {got.get(key, 0.0)}"
        for key, n in expected.items()
        if not isclose(n, got.get(key, 0.0), rel_tol=1e-9)
    ]
    extra = [
        key
        for key, n in got.items()
        if key not in expected and n and key.count("/") in (2, 3) and not key.startswith(("held/", "busy/"))
    ]
    return lines + [f"{key}: expected nothing, got {got[key]}" for key in extra]


RUNNERS: dict[str, Callable[[dict[str, Any]], Iterator[tuple[str, list[str]]]]] = {
    "model_counts": model_counts,
    "systolic_cycles": systolic_cycles,
    "eyeriss": eyeriss,
    "smaug_tiling": smaug_tiling,
    "optimal_mapping": optimal_mapping,
    "layout": layout,
    "gogeta": gogeta,
}


def run(path: Path) -> tuple[int, int, list[str]]:
    """(passed, failed, lines to print) of one file."""
    try:
        file = json.loads(path.read_text())
    except (OSError, ValueError) as fault:
        return 0, 1, [f"{path}: {fault}"]
    if not isinstance(file, dict):
        return 0, 1, [f"{path}: is no object with a kind and cases"]
    runner = RUNNERS.get(str(file.get("kind")))
    if runner is None:
        return 0, 1, [f"{path}: kind {file.get('kind')!r} has no runner; there are {', '.join(RUNNERS)}"]
    passed, lines = 0, []
    failed = 0
    try:
        for name, faults_found in runner(file):
            noted = bool(faults_found) and faults_found[0].startswith(("not run: ", "note: "))
            passed += not faults_found
            failed += bool(faults_found) and not noted
            lines += [f"  {name}: {line}" for line in faults_found[:SHOWN]]
    except FAULTS as fault:
        return (
            passed,
            failed + 1,
            [*lines, f"{path}: is no file of kind {file['kind']}: {type(fault).__name__}: {fault}"],
        )
    return passed, failed, lines


def main(paths: list[str]) -> int:
    worst = 0
    for path in paths:
        passed, failed, lines = run(Path(path))
        print("\n".join([*lines, f"{path}: {passed} passed, {failed} failed"]))
        worst = max(worst, int(failed > 0))
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Runners of the case kinds systolic_cycles and eyeriss: a dataflow's nest, built from its constraint set,
through the evaluator.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from math import isclose
from typing import Any

from dse.mapper.exact.optimal import optimal
from dse.mapping.constraints import row_stationary, violations
from dse.mapping.nest import Infeasible, Loop, Mapping, Store, faults
from dse.sim.counts.counts import count
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost
from hw.arch import Arch, Compute, Fanout, Level
from tests.array_dataflows import pe_set, row_stationary_loops, systolic, used_pes
from tests.cases_read import FAULTS
from workloads.einsum import Einsum, einsum

OVERRIDE = re.compile(r"(\w+) C(\d+) K(\d+) (\d+)x(\d+) (\d+)x(\d+)(?: s(\d+))?")
BUDGET = 10_000_000  # visited nodes: the optimum of every Eyeriss layer is proven within it
Found = Iterator[tuple[str, list[str]]]
Layers = dict[str, list[Einsum]]


def conv(k: int, c: int, p: int, q: int, r: int, s: int, stride: int, n: int) -> Einsum:
    """A convolution without padding: the case files give images with their padding."""
    return einsum(
        f"O[n,k,p,q] += I[n,c,{stride}*p+r,{stride}*q+s] * W[k,c,r,s]",
        {"n": n, "k": k, "c": c, "p": p, "q": q, "r": r, "s": s},
        "conv",
    )


def run_dataflow(e: Einsum, arch: Arch, mapping: Mapping) -> EinsumCost:
    """Raises ValueError where the mapping is none of this machine, or does not fit."""
    wrong = faults(mapping, e, arch)
    cost = None if wrong else einsum_cost(Problem(arch, e, "latency"), mapping)
    if wrong or not isinstance(cost, EinsumCost):
        raise ValueError("; ".join(wrong) or str(cost))
    return cost


def systolic_cycles(file: dict[str, Any]) -> Found:
    """Compute cycles, folds, utilisation and traffic of systolic arrays, as SCALE-Sim counts them."""
    for case in file["cases"]:
        name = f"{case.get('case')} {case.get('array_rows')}x{case.get('array_cols')} {case.get('dataflow')}"
        try:
            got = _systolic(case, file.get("settings", {}))
        except FAULTS as fault:
            yield (
                name,
                [
                    str(fault)
                    if isinstance(fault, ValueError)
                    else f"not run: cannot be read: {type(fault).__name__}: {fault}"
                ],
            )
            continue
        wrong = [
            key
            for key, n in got.items()
            if key in case and not isclose(case[key], n, rel_tol=1e-9, abs_tol=1e-6)
        ]
        yield name, [f"{key}: expected {case[key]}, got {got[key]}" for key in wrong]
    yield (
        "all",
        [
            "note: not compared: total_cycles_reported (holds the first DRAM fetch), compute_util_pct "
            "(counts cycles of loading), sram_writes_ofmap of os (SCALE-Sim writes rows + columns more per "
            "fold), dram_writes_ofmap (it writes partial sums out), dram_reads of convolutions (it keeps "
            "images, not windows) and of operands above half a buffer"
        ],
    )


def _systolic(case: dict[str, Any], settings: dict[str, Any]) -> dict[str, float]:
    shape, rows, columns, still = case["shape"], case["array_rows"], case["array_cols"], case["dataflow"]
    e = einsum("C[m,n] += A[m,k] * B[k,n]", dict(zip("mnk", _gemm_shape(shape), strict=True)), "gemm")
    arch = _systolic_arch(rows, columns, still)
    mapping = _systolic_nest(e, arch.fanouts[0])
    cost = run_dataflow(e, arch, mapping)
    cycles = dict(cost.price.busy_cycles)["MAC"]
    moved = {(row.level, row.tensor, row.action): row.elems for row in cost.counts}
    steps, folds = (
        next(row.busiest_elems for row in cost.counts if row.action == action)
        for action in ("compute", "fold")
    )
    full = 100 * e.macs() / (rows * columns)
    found = {
        "compute_cycles": cycles,
        "stall_cycles": cost.latency_cycles - cycles,
        "folds": folds,
        "macs": float(e.macs()),
        "overall_util_pct": full / cycles,
        "mapping_eff_pct": full / steps,
        "sram_reads_ifmap": moved["SRAM", "A", "read"],
        "sram_reads_filter": moved["SRAM", "B", "read"],
    }
    if still != "os":
        found["sram_writes_ofmap"] = moved["SRAM", "C", "write"]
    if case.get("kind") == "gemm":
        for tensor, name in (("A", "ifmap"), ("B", "filter")):
            words = moved["DRAM", tensor, "read"]
            if words * settings.get("word_bytes", 1) <= 512 * settings.get(f"{name}_sram_kB", 0):
                found[f"dram_reads_{name}"] = words
    return found


def _gemm_shape(shape: dict[str, Any]) -> tuple[int, int, int]:
    given = shape.get("as_gemm", shape)
    if "M" in given:
        return given["M"], given["N"], given["K"]
    return (
        shape["ofmap_h"] * shape["ofmap_w"],
        shape["c_out"],
        shape["filter_h"] * shape["filter_w"] * shape["c_in"],
    )


def _systolic_arch(rows: int, columns: int, still: Any) -> Arch:
    """Unlimited bandwidth and buffers; one register per PE and tensor, a word per action."""
    levels = (
        Level("DRAM", None, 8, 1, 1, bypass=False),
        Level("SRAM", None, 8, 1, 1),
        Level("REG", None, 8, 1, 1),
    )
    return Arch(
        "systolic",
        levels,
        (Fanout("ARRAY", 2, (("ROW", rows), ("COL", columns)), (True, True), (True, True), still),),
        Compute(1, 1),
        1.0,
        8,
        overlap="free",
    )


def _systolic_nest(e: Einsum, f: Fanout) -> Mapping:
    """The nest that the constraint set of the array leaves: folds, the array, the stationary tensor in
    registers, time.
    """
    limits = systolic(e, f)
    ranks = [(dim, size, rank) for (dim, size), (_, (rank,)) in zip(f.dims, limits.spatial, strict=True)]
    assert limits.inside is not None
    nodes = (
        *(Store(level, p.tensor) for level in ("DRAM", "SRAM") for p in e.tensors()),
        *(Loop(rank, min(size, e.sizes()[rank])) for _, size, rank in ranks),
        *(Loop(rank, 1, dim) for dim, _, rank in ranks),
        Store("REG", limits.stationary),
        *(Loop(rank, 1) for rank in limits.inside),
    )
    if lines := violations(limits, Mapping(nodes)):
        raise ValueError("; ".join(lines))
    return Mapping(nodes)


def eyeriss(file: dict[str, Any]) -> Found:
    """Published facts of row-stationary arrays: energy per layer, and how a layer lies on the array."""
    for test in file["tests"]:
        layers = _layers(file, test)
        if "columns" in test:
            yield from _energies(file, test, layers)
        else:
            yield from _facts(test, layers)


def _layers(file: dict[str, Any], test: dict[str, Any]) -> Layers:
    """Layers under their names without _a and _b: a listed _a stands for its _b too, unless that is
    listed."""
    batch, found = test.get("batch", 1), {}
    for name, *numbers in OVERRIDE.findall(test.get("layers_override", "")):
        found[name] = [conv(*(int(n or 1) for n in (numbers[1], numbers[0], *numbers[2:])), batch)]
    given = file["network"]["layers"] if not found else {}
    for name, v in given.items():
        if v["type"] in ("conv", "fc"):
            e = conv(v["K"], v["C"], v["Ho"], v["Wo"], v["R"], v["S"], v["stride"], batch)
            halves = 2 if name.endswith("_a") and f"{name[:-2]}_b" not in given else 1
            found.setdefault(re.sub("_[ab]$", "", name), []).extend([e] * halves)
    return found


def _energies(file: dict[str, Any], test: dict[str, Any], layers: Layers) -> Found:
    arch = _eyeriss_arch(test["hardware"], file["word_bits"])
    prices, below = test["hardware"]["access_cost_per_word"], []
    yield (
        test["id"],
        [
            f"note: conventions: a MAC costs {test['hardware']['mac_cost']}, a word {prices}; batch "
            f"{test['batch']}; halves summed; the first read of an output is not skipped; REGF is what "
            "compute reads and writes there, without fills"
        ],
    )
    for name, expected in test["expected"].items():
        wanted = dict(zip(test["columns"], expected, strict=True))
        try:
            if name not in layers:
                raise ValueError("the case gives no shape of a layer of this name")
            got = _energy(layers[name], arch)
            dram = sum(_least_dram(e, arch) for e in layers[name]) if "DRAM" in wanted else 0.0
        except ValueError as fault:
            yield f"{test['id']} {name}", [str(fault)]
            continue
        most = wanted.pop("DRAM", None)
        yield (
            f"{test['id']} {name}",
            [
                f"{column}: expected {n}, got {got.get(column)}"
                for column, n in wanted.items()
                if not _near(n, got.get(column), test)
            ],
        )
        if most is not None:
            near = _near(most, dram, test)
            yield (
                f"{test['id']} {name} DRAM",
                [] if near or dram < most else [f"DRAM: expected at most {most}, got {dram}"],
            )
            below += [f"{name} {dram:.2f} for {most}"] * (dram < most and not near)
    if below:
        yield (
            test["id"],
            [
                "note: DRAM is of the proven row-stationary optimum, first reads skipped; below the "
                f"published blocking: {', '.join(below)}"
            ],
        )


@cache
def _least_dram(e: Einsum, arch: Arch) -> float:
    """Energy at DRAM of the optimum over all row-stationary mappings, in 1e9 MACs."""
    skipping = replace(arch, levels=tuple(replace(level, skip_first_read=True) for level in arch.levels))
    found = optimal(Problem(skipping, e, "energy"), "perfect", row_stationary(e, arch.fanouts[0]), BUDGET)
    if isinstance(found, Infeasible) or not found[0].proven:
        raise ValueError(f"DRAM: no proven optimum in {BUDGET:,} nodes")
    return sum(part.energy_pj for part in found[0].price.parts if part.level == "DRAM") / 1e9


def _near(wanted: float, got: float | None, test: dict[str, Any]) -> bool:
    allowed = (
        test["tolerance"] if isinstance(test["tolerance"], dict) else {"kind": "absolute", "value": 1e-9}
    )
    room = allowed["value"] * (abs(wanted) if allowed["kind"] == "relative" else 1)
    return got is not None and abs(wanted - got) <= room


def _eyeriss_arch(hardware: dict[str, Any], bits: int) -> Arch:
    cost, (rows, columns) = hardware["access_cost_per_word"], hardware["pe_array"]
    sizes = {"DRAM": None, "GBUF": 8 * hardware["gbuf_bytes"], "REGF": 8 * hardware["regf_bytes_per_pe"]}
    levels = tuple(
        Level(name, size, bits, cost[name], cost[name], bypass=size is not None, skip_first_read=False)
        for name, size in sizes.items()
    )
    array = Fanout("ARRAY", 2, (("Y", rows), ("X", columns)), (True, True), (True, True))
    return Arch("eyeriss", levels, (array,), Compute(hardware["mac_cost"], 0.0), 1.0, bits, overlap="free")


def _energy(layer: list[Einsum], arch: Arch) -> dict[str, float]:
    """Energy in 1e9 MACs, summed. REGF: the nest's register nodes alone, so that nothing but compute uses
    them.
    """
    found = {"ALU": 0.0, "REGF": 0.0}
    regf = next(level for level in arch.levels if level.name == "REGF")
    for e in layer:
        mapping = _row_stationary_nest(e, arch, ("DRAM", "GBUF", "REGF"))
        # the case lets all tensors bypass the buffer
        if isinstance(einsum_cost(Problem(arch, e, "energy"), mapping), Infeasible):
            mapping = _row_stationary_nest(e, arch, ("DRAM", "REGF"))
        alone = Mapping(
            tuple(node for node in mapping.nodes if isinstance(node, Loop) or node.level == "REGF")
        )
        reads, writes = (
            sum(row.elems for row in count(alone, e, arch) if row.action == action)
            for action in ("read", "write")
        )
        found["ALU"] += (
            sum(
                part.energy_pj
                for part in run_dataflow(e, arch, mapping).price.parts
                if part.action == "compute"
            )
            / 1e9
        )
        found["REGF"] += (reads * regf.read_pj + writes * regf.write_pj) / 1e9
    return found


def _row_stationary_nest(e: Einsum, arch: Arch, levels: tuple[str, ...]) -> Mapping:
    """One pass of the row-stationary dataflow (Chen et al. 2016): a filter row per PE, along which an output
    row slides.
    """
    time, space = row_stationary_loops(e, arch.fanouts[0])
    image, weights = (p.tensor for p in e.inputs)
    nodes = (
        *(Store("DRAM", p.tensor) for p in e.tensors()),
        Loop("n", 1),
        *time,
        *(Store("GBUF", p.tensor) for p in e.tensors() if "GBUF" in levels),
        *space,
        Store("REGF", weights),
        Loop("q", 1),
        Store("REGF", image),
        Store("REGF", e.output.tensor),
        Loop("s", 1),
    )
    if lines := violations(row_stationary(e, arch.fanouts[0]), Mapping(nodes)):
        raise ValueError("; ".join(lines))
    return Mapping(nodes)


def _facts(test: dict[str, Any], layers: Layers) -> Found:
    rows, columns = test["hardware"]["pe_array"]
    for fact, expected in test["expected"].items():
        for name, wanted in expected.items():
            if name not in layers:
                yield f"{test['id']} {name}", [f"{fact}: the case gives no shape of {name}"]
                continue
            unit, e = pe_set(layers[name][0], rows, columns), layers[name][0]
            known = {
                "replication": (unit.replication,),
                "pe_set_width": (unit.columns,),
                "active_pes": (unit.active, used_pes(unit, e)),
            }
            got = known.get(fact, ())
            shown = " or ".join(f"{n:g}" for n in got) or "nothing: no such fact"
            yield (
                f"{test['id']} {name} {fact}",
                [] if any(isclose(wanted, n) for n in got) else [f"expected {wanted}, got {shown}"],
            )

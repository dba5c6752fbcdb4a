"""Machines of several computes and cores: each einsum runs on the one that is cheapest. Here every compute is
a machine file of its own, cut out by hand, on which all mappings are listed or walked.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import inf, isclose, prod
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import dse
from dse.mapping.constraints import computes
from dse.mapping.nest import Infeasible, from_data, parse, to_data
from dse.mapping.nest import Mapping as Nest
from dse.sim.einsum.evaluate import EinsumCost, Problem, Violated, einsum_cost, lower_bound, objective_value
from dse.solve import solve
from dse.solve.options import SolverOptions
from dse.solve.solve import solve_unfused
from hw import machine
from hw.arch import Arch
from hw.space import override
from tests.amount import amount
from tests.enumeration import mappings, size
from tests.nests import random_mapping
from tests.oracle import walk
from tests.test_counts import energy_pj
from workloads.einsum import Einsum, einsum
from workloads.graph import Workload

# einsum, its kind in machine files
TEXTS = (
    ("C[m,n] += A[m,k] * B[k,n]", "products"),
    ("C[b,m,n] += A[b,m,k] * B[b,k,n]", "products"),
    ("O[p,n] += I[p+r] * W[r,n]", "convolutions"),
    ("Y[m,n] = A[m,n] + B[m,n]", "others"),
    ("Y[m,n] = gelu(A[m,n])", "others"),
)
OBJECTIVES = ("energy", "latency", "edp")
WORD = 8


def drawn(rng: Random, kind: str) -> tuple[dict[str, Any], Einsum]:
    """The document of a machine with several computes, and an einsum of that kind that one of them takes."""
    dims, names = iter("xyzuvw"), iter(f"part{i}" for i in range(99))

    def memory(outermost: bool = False, **more: Any) -> dict[str, Any]:
        read, write, leak = (round(rng.uniform(0.1, 9), 2) for _ in range(3))
        rate = rng.choice([0.5, 1, 2, "inf"])
        size = {} if outermost else {"capacity": f"{rng.choice([2, 4, 8, 64])} B"}
        own = {"read_pj": read, "write_pj": write, "leak_mw": leak * rng.choice([0, 1]), "area_mm2": leak}
        return (
            {"memory": next(names), "kind": "custom", "width_bits": 8, "actions_per_cycle": rate}
            | size
            | own
            | more
        )

    def array(**more: Any) -> dict[str, Any]:
        sizes = {next(dims): rng.choice([2, 3]) for _ in range(rng.choice([1, 1, 2]))}
        flags = {key: rng.random() < 0.6 for key in ("multicast", "reduce")}
        return {"array": next(names), "dims": sizes} | flags | more

    def compute(**more: Any) -> dict[str, Any]:
        takes = {}
        if rng.random() < 0.5:
            takes["kinds"] = rng.sample(["products", "convolutions", "others", "gelu"], rng.randint(1, 3))
        if rng.random() < 0.4:
            takes["bits"] = rng.choice([4, 8, 16])
        mac, alu, merge, leak = (round(rng.uniform(0.1, 5), 2) for _ in range(4))
        own = {"mac_pj": mac, "alu_pj": alu, "merge_pj": merge, "leak_mw": leak, "area_mm2": leak / 4}
        named = {"compute": next(names), "kind": "custom", "ops_per_cycle": rng.choice([1.0, 1.0, 2.0])}
        return named | own | ({"takes": takes} if takes else {}) | more

    cores = [{}] if rng.random() < 0.4 else [{"in_core": f"core{i}"} for i in range(rng.choice([2, 2, 3]))]
    buffered = rng.random() < 0.3
    double = {"double_buffer": True} if buffered and rng.random() < 0.5 else {}
    nodes = [memory(True), *([memory(**double)] if rng.random() < 0.4 else [])]
    for core in cores:
        nodes += [array(**core)] if rng.random() < 0.7 else []
        nodes += [memory(**core, **double)] if rng.random() < 0.6 else []
        nodes += [compute(**core) for _ in range(rng.choice([1, 2]) if core else rng.choice([2, 2, 3]))]
    clock = {"clock_mhz": rng.choice([500, 1000]), "word_bits": WORD, "nodes": nodes}
    text = rng.choice([text for text, own in TEXTS if own == kind])
    ranks = {rank: rng.choice([1, 2, 2, 3, 4]) for rank in "bmnkpr"}
    bits = {"A": 16} if "A[" in text and rng.random() < 0.3 else {}
    e = einsum(text, {rank: n for rank, n in ranks.items() if rank in text.replace("gelu", "")}, bits=bits)
    return clock | {"name": "drawn", "overlap": "buffered" if buffered else "free"}, e


def takes(node: dict[str, Any], e: Einsum, kind: str) -> bool:
    """Whether a compute takes an einsum, from the file alone."""
    asked = node.get("takes", {})
    widest = max(p.bits or WORD for p in e.inputs)
    of_kind = (
        "kinds" not in asked or kind in asked["kinds"] or ("gelu" in asked["kinds"] and e.kind == "gelu")
    )
    return of_kind and widest <= asked.get("bits", inf)


def alone(document: dict[str, Any], name: str) -> dict[str, Any]:
    """The document of a machine of one compute: what stands beside it leaks in main memory."""
    nodes = document["nodes"]
    (own,) = (node for node in nodes if node.get("compute") == name)

    def instances(at: dict[str, Any]) -> int:
        before = nodes[: nodes.index(at)]
        around = (one for one in before if "array" in one and one.get("in_core") in (None, at.get("in_core")))
        return prod(prod(one["dims"].values()) for one in around)

    kept = [
        node
        for node in nodes
        if node is own or ("compute" not in node and node.get("in_core") in (None, own.get("in_core")))
    ]
    idle = sum(
        node["leak_mw"] * instances(node) for node in nodes if "array" not in node and node not in kept
    )
    first = nodes[0] | {"leak_mw": nodes[0]["leak_mw"] + idle}
    bare = [
        {key: value for key, value in node.items() if key not in ("in_core", "takes")} for node in kept[1:]
    ]
    return document | {"nodes": [first, *bare]}


def built(document: dict[str, Any]) -> Arch:
    spec, lines = machine.parse(document, "drawn")
    assert lines == []
    return machine.arch(spec)


def computes_of(document: dict[str, Any], e: Einsum, kind: str) -> dict[str, Arch]:
    """The machine of each compute that takes an einsum, by its name in mappings."""
    listed = [node for node in document["nodes"] if "compute" in node and takes(node, e, kind)]
    return {node["compute"].upper(): built(alone(document, node["compute"])) for node in listed}


def problem_of(seed: int, most: int = 1500) -> tuple[dict[str, Any], Einsum, str]:
    """A document, an einsum that it takes, with few mappings, and the kind of it."""
    for more in range(1000):
        rng = Random(f"units/{seed}/{more}")
        kind = rng.choice(["products", "products", "convolutions", "others", "others"])
        document, e = drawn(rng, kind)
        own = computes_of(document, e, kind)
        if own and sum(size(e, arch, "perfect", "tensors", most) for arch in own.values()) <= most:
            return document, e, kind
    raise AssertionError(seed)


def pairs_of(arch: Arch, e: Einsum) -> list[tuple[float, float]]:
    """Energy and latency of every mapping that fits."""
    problem = Problem(arch, e, "energy")
    found = (einsum_cost(problem, one) for one in mappings(problem, "perfect", "tensors"))
    return [(one.energy_pj, one.latency_cycles) for one in found if isinstance(one, EinsumCost)]


def wrong_answers(seed: int) -> list[str]:
    """What is wrong with the answers of one problem, against all mappings on each compute."""
    document, e, kind = problem_of(seed)
    arch, own = built(document), computes_of(document, e, kind)
    pairs = [pair for one in own.values() for pair in pairs_of(one, e)]
    try:
        taking = {one.compute.name for one in computes(e, arch)}
    except ValueError:
        taking = set()
    if taking != {*own}:
        return [f"seed {seed}: {taking} take it, by hand {[*own]}"]
    lines = []
    for objective, gap in product(OBJECTIVES, (0.0, 0.05)):
        name = f"seed {seed}, {objective}, gap {gap}"
        best = min((objective_value(objective, *pair) for pair in pairs), default=inf)
        options = SolverOptions(objective=objective, factors="perfect", gap=gap)  # type: ignore[arg-type]
        try:
            found = solve_unfused(arch, Workload("one", (e,)), options)
        except Violated as fault:
            return [f"{name}: {fault}"]
        if isinstance(found, Infeasible) or best == inf:
            lines += [] if isinstance(found, Infeasible) and best == inf else [f"{name}: {found}, {best}"]
            continue
        (one,) = found[0].einsums
        value = objective_value(objective, one.energy_pj, one.latency_cycles)
        if not best * (1 - 1e-9) <= value <= best * (1 + one.optimality_gap) * (1 + 1e-9):
            lines.append(f"{name}: {value}, {one.certificate}, best is {best}\n{one.mapping}")
        if value > best * (1 + 1e-9) and gap == 0 and arch.overlap == "free":
            lines.append(f"{name}: {value} is not the least, {best}")
        if lower_bound(Problem(arch, e, objective)) > best * (1 + 1e-9):
            lines.append(f"{name}: bound {lower_bound(Problem(arch, e, objective))} above {best}")
        nest = str(one.mapping)
        if (
            one.mapping.unit not in own
            or parse(nest) != one.mapping
            or from_data(to_data(one.mapping)) != one.mapping
        ):
            lines.append(f"{name}: {nest} does not run on one of {[*own]}")
        elif not isclose(value, priced(own[one.mapping.unit], e, one.mapping, objective), rel_tol=1e-9):
            lines.append(f"{name}: {value} is not what the compute by itself costs")
    return lines


def priced(arch: Arch, e: Einsum, nest: Nest, objective: str) -> float:
    """What a mapping costs on the machine of one compute."""
    cost = einsum_cost(Problem(arch, e, objective), Nest(nest.nodes))
    assert isinstance(cost, EinsumCost)
    return objective_value(objective, cost.energy_pj, cost.latency_cycles)


@settings(max_examples=amount(200, 25), deadline=None)
@given(st.integers(0, 2**32))
def test_answers_are_the_least_of_all_mappings_on_each_compute(seed: int) -> None:
    assert wrong_answers(seed) == []


def wrong_product(seed: int) -> str:
    """Empty if what is said of energy x delay of two einsums holds for all pairs of mappings."""
    document, first, kind = problem_of(seed, 300)
    rng = Random(f"second/{seed}")
    second = einsum("Z[i,j] += P[i,l] * Q[l,j]", {"i": rng.randint(1, 4), "j": 2, "l": rng.randint(1, 3)})
    arch, sums = built(document), [(0.0, 0.0)]
    for e, of in ((first, kind), (second, "products")):
        pairs = sorted({pair for one in computes_of(document, e, of).values() for pair in pairs_of(one, e)})
        kept = [pair for i, pair in enumerate(pairs) if all(pair[1] < other[1] for other in pairs[:i])]
        sums = [(a + c, b + d) for (a, b), (c, d) in product(sums, kept)]
    if not sums or not computes_of(document, second, "products"):
        return ""
    found = solve_unfused(
        arch, Workload("two", (first, second)), SolverOptions(objective="edp", factors="perfect")
    )
    assert isinstance(found, list)
    best = min(a * b for a, b in sums)
    value = found[0].energy_pj * found[0].latency_cycles
    holds = best * (1 - 1e-9) <= value <= best * (1 + found[0].optimality_gap) * (1 + 1e-9)
    return "" if holds else f"seed {seed}: {value}, {found[0].certificate}, best is {best}"


@settings(max_examples=amount(80, 16), deadline=None)
@given(st.integers(0, 2**32))
def test_a_product_over_two_einsums_is_within_what_is_said(seed: int) -> None:
    assert wrong_product(seed) == ""


def test_the_gap_is_to_the_least_that_any_compute_may_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that ends with a gap on the dearer of two computes leaves a gap to what it may cost."""
    spec = override(machine.load("edge_npu"), {"mac8.mac_pj": 0.19, "mac16.mac_pj": 0.2})
    arch = machine.arch(spec)
    e = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 64, "n": 64, "k": 64})
    costs, real = dict[str, float](), solve._map_on_unit

    def with_gap(problem: Problem, *more: Any) -> EinsumCost | Infeasible:
        cost, name = real(problem, *more), problem.arch.compute.name
        assert isinstance(cost, EinsumCost)
        costs[name] = cost.energy_pj
        return replace(cost, optimality_gap=0.0 if name == "MAC8" else 0.05)

    monkeypatch.setattr(solve, "_map_on_unit", with_gap)
    found = solve_unfused(arch, Workload("one", (e,)), SolverOptions(gap=0.0))
    assert isinstance(found, list)
    assert {"MAC8", "MAC16"} <= costs.keys()
    least = min(value / (1.0 if name == "MAC8" else 1.05) for name, value in costs.items())
    assert found[0].einsums[0].mapping.unit == "MAC8"
    assert found[0].optimality_gap == pytest.approx(costs["MAC8"] / least - 1)


def unlike_a_walk(seed: int) -> str:
    """Empty if counts and cost of a random nest are those that a walk on the compute by itself has."""
    rng = Random(f"walk/{seed}")
    kind = rng.choice(["products", "convolutions", "others"])
    document, e = drawn(rng, kind)
    if not (own := computes_of(document, e, kind)):
        return ""
    name, one = rng.choice([*own.items()])
    nest, arch = random_mapping(rng, e, one), built(document)
    text = f"{str(nest).removesuffix('mac')}mac on {name}"
    tally, cost = walk(nest, e, one), einsum_cost(Problem(arch, e, "energy"), parse(text))
    areas = sum(node.get("area_mm2", 0) * n for node, n in counted(document))
    leak = sum(node.get("leak_mw", 0) * n for node, n in counted(document))
    if not isclose(arch.area_mm2(), areas, rel_tol=1e-9) or not isclose(arch.leak_mw(), leak, abs_tol=1e-9):
        return f"seed {seed}: {arch.area_mm2()} {arch.leak_mw()}, by hand {areas} {leak}"
    if isinstance(cost, Infeasible):
        again = einsum_cost(Problem(one, e, "energy"), nest)
        return "" if again == cost else f"seed {seed}: {cost}, by itself {again}"
    ours = {(row.level, row.tensor, row.action): row.elems for row in cost.counts if row.elems}
    walked = {(level.replace("MAC", name), *more): n for (level, *more), n in tally.total.items() if n}
    energy = energy_pj(tally, e, one) + leak * cost.latency_cycles / arch.clock_ghz
    same = ours == walked and isclose(cost.energy_pj, energy, rel_tol=1e-9)
    bound = lower_bound(Problem(arch, e, "energy")) <= cost.energy_pj * (1 + 1e-9)
    return "" if same and bound else f"seed {seed}: {ours} {walked} {cost.energy_pj} {energy}\n{text}"


def counted(document: dict[str, Any]) -> list[tuple[dict[str, Any], int]]:
    """Each node with its number of instances, by hand."""
    found, sizes = [], dict[str | None, int]()
    for node in document["nodes"]:
        core = node.get("in_core")
        n = sizes.get(None, 1) * (sizes.get(core, 1) if core else 1)
        if "array" in node:
            sizes[core] = sizes.get(core, 1) * prod(node["dims"].values())
        else:
            found.append((node, n))
    return found


@settings(max_examples=amount(400, 40), deadline=None)
@given(st.integers(0, 2**32))
def test_counts_and_costs_are_those_of_a_walk(seed: int) -> None:
    assert unlike_a_walk(seed) == ""


NPU = (machine.MACHINES / "edge_npu.yaml").read_text()
FAULTY = (  # what is written instead of what; the line that says so
    ("mac8, kind: int8, ", "mac8, kind: int8, vector_lanes: 4, ", "mac8.vector_lanes = 4 stands"),
    ("bits: 8}", "bits: none}", "gives none bits; write a whole number above 0"),
    ("kinds: [products, ", "kinds: [product, ", "names product; did you mean products?"),
    ("kinds: [products", "kind: [products", "has kind, which is no key of it; use kinds, bits"),
    ("word_bits: 8\n", "", "word_bits is missing: the computes are of several kinds (fp16, int8)"),
    ("vector}\n- {compute", "pes}\n- {compute", "nodes[7] = vregs is of core pes"),
    ("width_bits: 64}", "width_bits: 64, burst: 8 B}", "dram.burst stands beside several computes"),
    ("fp16, in_core: vector}", "fp16}", "valu is a compute outside of all cores (pes, vector)"),
    ("- {compute: valu, kind: fp16, in_core: vector}", "", "nodes has 2 compute"),
)


@pytest.mark.parametrize(("old", "new", "line"), FAULTY)
def test_a_machine_that_cannot_be_says_why(old: str, new: str, line: str) -> None:
    assert old in NPU
    _, lines = machine.parse(yaml.safe_load(NPU.replace(old, new, 1)), "edge_npu")
    assert [one for one in lines if line in one] or line == "nodes has 2 compute", lines
    assert lines


def test_a_mapping_on_a_compute_that_does_not_take_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.txt").write_text("store DRAM A C\nfor m tile 1\n  mac on MAC8\n")
    (tmp_path / "w.yaml").write_text("extents: {m: 4}\neinsums: ['C[m] = gelu(A[m])']\n")
    with pytest.raises(ValueError, match="MAC8 does not take this einsum; write mac on VALU"):
        dse.simulate(str(tmp_path / "w.yaml"), "edge_npu", tmp_path / "m.txt")


REFUSED = {
    "fused": {"solver.schedule": "fused"},
    "best": {"solver.schedule": "best"},
    "smaug": {"solver.tiling": "smaug"},
}


@pytest.mark.parametrize("sets", REFUSED.values(), ids=REFUSED)
def test_what_does_not_choose_between_computes_is_refused(sets: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="does not choose between computes") as fault:
        dse.map("mlp_s:batch=4", "edge_npu", **sets)
    assert len(str(fault.value).splitlines()) == 1


def test_a_study_varies_computes_and_says_which_one_runs_what(tmp_path: Path) -> None:
    """Rows, traffic and areas of a run are those of each machine by itself."""
    (tmp_path / "net.yaml").write_text(
        "extents: {m: 8, n: 8, k: 8}\neinsums: ['C[m,n] += A[m,k] * B[k,n]', 'S[m,n] = softmax(C[m,n])']\n"
    )
    workload, space = str(tmp_path / "net.yaml"), {"simd.lane": [8, 32], "mac8.mac_pj": [0.1, 50.0]}
    study = {
        "workloads": ["net.yaml"],
        "machine": "edge_npu",
        "space": space,
        "search": {"method": "exhaustive"},
    }
    study |= {"objectives": ["energy_pj", "area_mm2"]}
    (tmp_path / "study.yaml").write_text(yaml.safe_dump(study, sort_keys=False))
    run = dse.sweep(tmp_path / "study.yaml", tmp_path / "run", workers=0)
    rows = run.sql("SELECT machine, einsum, core, unit FROM einsums ORDER BY ALL")
    units = {(row["machine"], row["einsum"]): (row["core"], row["unit"]) for row in rows}
    of_product = ["MAC8", "MAC16"] * 2  # a dear int8 path leaves products to the other one
    for number, (lanes, pj) in enumerate(product(*space.values())):
        found = dse.map(workload, "edge_npu", **{"simd.lane": lanes, "mac8.mac_pj": pj})
        assert units[number, "C"] == ("PES", of_product[number])
        assert units[number, "S"] == ("VECTOR", "VALU")
        (sums,) = run.sql(
            f"SELECT any_value(energy_pj) AS pj, any_value(area_mm2) AS mm2, "
            f"(SELECT sum(energy_pj) FROM traffic WHERE machine = {number}) AS moved, "
            f"(SELECT sum(area_mm2) FROM components WHERE machine = {number}) AS parts "
            f"FROM designs WHERE machine = {number}"
        )
        assert sums["pj"] == pytest.approx(found.energy_pj)
        assert sums["moved"] == pytest.approx(found.energy_pj)
        assert sums["mm2"] == pytest.approx(sums["parts"]) == pytest.approx(found.area_mm2)

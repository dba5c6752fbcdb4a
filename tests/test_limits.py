"""Rules for mappings (`mapping` of a machine, `solver.mapping`): the search under them against a list of
every mapping of small problems, from which those that break a rule are struck out one by one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import inf, isclose
from pathlib import Path
from random import Random

import pytest

from dse.frontend import api
from dse.frontend.cli import main
from dse.mapper.baselines.exhaustive import enumerated, mapspace_size
from dse.mapper.exact import optimal as optima
from dse.mapper.exact import search as searches
from dse.mapper.exact.optimal import optimal
from dse.mapper.exact.search import search_below
from dse.mapping.constraints import FREE, Factors, rank_roles, ruled
from dse.mapping.nest import Infeasible, faults, role
from dse.mapping.searched import ALL_MAPPINGS, certificate_words, mappings_in
from dse.sim.einsum.boundary import Boundary
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost, fanout_overflow
from dse.sim.einsum.limits import broken
from dse.solve import solve
from dse.solve.options import SolverOptions
from dse.study import study
from hw import machine
from hw.arch import ROLES, Arch, Compute, Fanout, Level, Rule, read_rules
from hw.space import decode
from tests.amount import amount
from tests.enumeration import in_orders, mappings
from tests.small import small_problem
from workloads import catalog
from workloads.text import workload as workload_of

STUDIES = Path(__file__).parent.parent / "studies"

SIMPLE = ("gemm", "bmm", "conv", "conv1d", "depthwise", "grouped")


def drawn(seed: int, least: int, most: int, levels: Sequence[int] = (2, 3)) -> tuple[Problem, Factors]:
    """A random problem with an array and two ranks to tile, of so many mappings, and its factors."""
    rng = Random(seed)
    factors: Factors = rng.choice(["perfect", "imperfect_spatial"])
    while True:
        problem = small_problem(rng, "energy", most, SIMPLE, factors)
        e, arch = problem.einsum, problem.arch
        tiled = sum(n > 1 for _, n in e.extents)
        if (
            tiled > 1
            and arch.fanouts
            and len(arch.levels) in levels
            and mapspace_size(e, arch, factors) >= least
        ):
            return replace(problem, arch=arch.without("leakage")), factors


def a_rule(rng: Random, problem: Problem) -> Rule | None:
    """One rule of a random kind; None where the machine has nothing that it could stand at."""
    e, arch = problem.einsum, problem.arch
    dims = [name for f in arch.fanouts for name, _ in f.dims]
    inner = [level.name for level in arch.levels[1:]]
    ranks = [rank for rank, n in e.extents if n > 1]
    roles = {rank: name for name, rank in rank_roles(e).items()}
    tensors = [rng.choice([p.tensor, role(e, p.tensor)]) for p in e.tensors()]

    def factors(most: int) -> dict[str, object]:
        chosen = rng.sample(ranks, min(len(ranks), rng.choice([1, 1, 2])))
        n = rng.randint(1, most)
        return {
            rng.choice([rank, roles.get(rank, rank)]): rng.choice(
                [n, f"<= {n}", f">= {n}", f"{n}..{n + 1}", "all"]
            )
            for rank in chosen
        }

    kinds = ["ranks", "spatial", "keep", "bypass", "tile", "utilization", "temporal", "order", "order"]
    kinds += ["inside", "fill"]
    kind = rng.choice(kinds)
    if (kind in ("ranks", "spatial", "fill") and not dims) or (kind == "order" and len(ranks) < 2):
        return None
    ordered = rng.sample(ranks, rng.randint(1, min(len(ranks), 3))) if kind == "order" else []
    if ordered and (len(ordered) == 1 or rng.random() < 0.3):
        ordered.insert(rng.randint(0, len(ordered)), "*")
    entry: dict[str, object] = {
        "ranks": lambda: {"at": rng.choice(dims), "ranks": rng.sample(ranks, rng.randint(0, len(ranks)))},
        "spatial": lambda: {"at": rng.choice(dims), "factors": factors(3)},
        "keep": lambda: {"at": rng.choice(inner), "keep": rng.sample(tensors, 1)},
        "bypass": lambda: {"at": rng.choice(inner), "bypass": rng.sample(tensors, 1)},
        "tile": lambda: {
            "at": rng.choice(inner),
            "tile": {rng.choice(tensors): rng.choice([1, 2, 3, 6, "1 B", "2 B"])},
        },
        "utilization": lambda: {"utilization": rng.choice([0.3, 0.5, 0.75, 1.0])},
        "temporal": lambda: {"at": rng.choice(arch.levels).name, "factors": factors(4)},
        "order": lambda: {"at": rng.choice(arch.levels).name, "order": ordered},
        "fill": lambda: {
            "at": rng.choice(dims),
            "utilization": rng.choice([0.5, 1.0]),
            **({"ranks": rng.sample(ranks, 1)} if rng.random() < 0.3 else {}),
        },
        "inside": lambda: {"at": rng.choice(arch.levels).name, "inside": rng.sample(ranks, 1)},
    }[kind]()
    if rng.random() < 0.1:
        entry["einsums"] = ["other_einsum"]
    return read_rules([entry])[0]


def rule_sets(rng: Random, problem: Problem, count: int) -> Iterator[tuple[Rule, ...]]:
    """Sets of one to three random rules."""
    for _ in range(count):
        rules = [a_rule(rng, problem) for _ in range(rng.choice([1, 1, 2, 3]))]
        yield tuple(rule for rule in rules if rule)


def as_found(problem: Problem, factors: Factors, rules: tuple[Rule, ...], best: float) -> None:
    """Asserts that the search finds the optimum under rules, `best` (inf: no mapping keeps them), and says
    so.
    """
    limits = ruled(FREE, rules, problem.einsum, problem.arch)
    found = optimal(problem, factors, limits)
    if isinstance(found, Infeasible):
        assert best == inf, (rules, str(found))
        return
    (one,) = found
    assert broken(limits, one.mapping, problem.einsum, problem.arch) == [], (rules, str(one.mapping))
    assert one.proven
    assert one.proven is ALL_MAPPINGS or one.proven.rules == limits.rule_texts()
    assert isclose(one.energy_pj, best, rel_tol=1e-9), (rules, str(one.mapping), best)
    below = search_below(problem, factors, limits, best * 1.01, 0.0, 100_000)
    assert isclose(below.lower_bound, best, rel_tol=1e-9), rules


def as_listed(problem: Problem, factors: Factors, sets: Iterable[tuple[Rule, ...]]) -> None:
    """Asserts that the search under each set of rules finds the best of an enumeration that shares no code
    with the searches.
    """
    e, arch, sets = problem.einsum, problem.arch, [*sets]
    priced = [
        (cost.energy_pj, one)
        for listed in mappings(problem, factors, "tensors")
        for one in (in_orders(listed) if any(rule.order for rules in sets for rule in rules) else [listed])
        if not faults(one, e, arch) and not fanout_overflow(one, e, arch)
        if isinstance(cost := einsum_cost(problem, one), EinsumCost)
    ]
    every = sorted(priced, key=lambda row: row[0])
    for rules in sets:
        limits = ruled(FREE, rules, e, arch)
        best = next((cost for cost, one in every if not broken(limits, one, e, arch)), inf)
        as_found(problem, factors, rules, best)


@pytest.mark.parametrize("seed", range(amount(32, 8)))
def test_the_search_under_rules_equals_a_list_of_all_mappings(seed: int) -> None:
    problem, factors = drawn(seed, 100, 300)
    as_listed(problem, factors, rule_sets(Random(f"rules/{seed}"), problem, 12))


def memory(name: str, pj: float, elems: int | None = None, *may_keep: str) -> Level:
    """One of 8-bit words, which all tensors that it may keep stand in."""
    bits = None if elems is None else 8 * elems
    return Level(name, bits, 8, pj, pj, ports="separate", bypass=False, may_keep=may_keep or ROLES)


DRAM, GBUF = memory("DRAM", 200.0), memory("GBUF", 6.0, 6)
OUTPUTS, REGF = memory("GBUF", 6.0, 4, "output"), memory("REGF", 0.5, 3, "input", "output")


@pytest.mark.parametrize(
    ("extents", "levels", "pes", "factors", "rules"),
    [
        # uneven shares, 2 and 1 of k = 3: the loop inside of the PEs has 2 trips
        (
            (1, 1, 3),
            (DRAM, memory("GBUF", 6.0, 8)),
            3,
            "imperfect_spatial",
            [{"at": "gbuf", "factors": {"k": 2}}],
        ),
        # of inner parts that need the same tiles, the cheaper ones have trips that are not allowed
        (
            (2, 1, 2),
            (DRAM, OUTPUTS, REGF),
            2,
            "perfect",
            [{"at": "regf", "factors": {"m": 2}}, {"at": "dram", "factors": {"k": 2}}],
        ),
        # B, which lacks m, sinks below loops over n only where none over m must stand above them; so it does
        # not fit, or moves more
        ((2, 4, 1), (DRAM, memory("GBUF", 6.0, 5)), 2, "perfect", [{"at": "gbuf", "order": ["m", "n"]}]),
        ((2, 4, 1), (DRAM, memory("GBUF", 6.0, 5)), 2, "perfect", [{"at": "gbuf", "order": ["n", "*"]}]),
        ((2, 1, 4), (DRAM, OUTPUTS, REGF), 2, "perfect", [{"at": "dram", "order": ["m", "k"]}]),
        # uneven shares, 2 and 1 of k = 3, stand inside of the PEs, and so must what stands below them
        (
            (2, 1, 3),
            (DRAM, memory("GBUF", 6.0, 8)),
            3,
            "imperfect_spatial",
            [{"at": "gbuf", "order": ["k", "m"], "factors": {"k": 2}}],
        ),
        # two rules that no order keeps: only one of both ranks has trips there
        (
            (2, 1, 4),
            (DRAM, memory("GBUF", 6.0, 5)),
            2,
            "perfect",
            [{"at": "dram", "order": ["m", "k"]}, {"at": "dram", "order": ["k", "m"]}],
        ),
        # sums leave the registers complete
        ((2, 1, 4), (DRAM, OUTPUTS, REGF), 2, "perfect", [{"at": "regf", "inside": ["k"]}]),
        # B stays complete in the registers, though a part of it would do
        ((2, 2, 1), (DRAM, GBUF, memory("REGF", 0.5, 3)), 1, "perfect", [{"at": "regf", "inside": ["n"]}]),
        # loops of one gap are at different levels, each with an order of its own
        (
            (4, 1, 2),
            (DRAM, memory("GBUF", 6.0, 12, "input", "weight"), memory("REGF", 0.5, 5)),
            1,
            "perfect",
            [{"at": "regf", "order": ["k", "m"]}, {"at": "gbuf", "order": ["m", "k"]}],
        ),
        # 3 of the PEs, though 2 that need fewer in turn cost as much
        ((3, 1, 2), (DRAM, memory("GBUF", 6.0, 8)), 4, "perfect", [{"at": "x", "utilization": 0.75}]),
        # r stands below p: the window in the buffer does not sink below p alone
        (
            (2, 3),
            (DRAM, replace(memory("GBUF", 6.0, 4, "input", "output"), bypass=True)),
            0,
            "perfect",
            [{"at": "gbuf", "order": ["p", "r"]}],
        ),
        # of inner parts that need the same tiles, loops outside go with one that is no cheaper
        (
            (1, 4, 3),
            (DRAM, memory("GBUF", 6.0, 5, "input", "output"), memory("REGF", 0.5, 5)),
            1,
            "perfect",
            [
                {"at": "gbuf", "order": ["*", "n"]},
                {"at": "regf", "order": ["n", "k"]},
                {"at": "gbuf", "inside": ["n"]},
            ],
        ),
        # one PE needs more trips at gbuf than the array does
        ((2, 4, 1), (DRAM, GBUF), 4, "perfect", [{"at": "gbuf", "factors": {"n": "<= 2", "m": 1}}]),
    ],
)
def test_limits_where_the_search_compares_parts_of_nests(
    extents: tuple[int, ...],
    levels: tuple[Level, ...],
    pes: int,
    factors: Factors,
    rules: list[dict[str, object]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(searches, "MIN_FOR_OUTER_BOUNDS", 0)
    arrays = (Fanout("array", 2, (("X", pes),), (True,), (True,)),) if pes else ()
    arch = Arch("small", levels, arrays, Compute(1.0, 0.5, 1.0), 1.0, 8, overlap="free")
    ranks, text = {3: ("mnk", "C[m,n] += A[m,k] * B[k,n]"), 2: ("pr", "O[p] += I[p+r] * F[r]")}[len(extents)]
    (e,) = workload_of(dict(zip(ranks, extents, strict=True)), text).einsums
    as_listed(Problem(arch, e, "energy"), factors, [read_rules(rules)])


def test_loops_below_tensors_that_the_schedule_holds_are_none_of_main_memory() -> None:
    """Whatever order the search places nodes in: they stand above all loops."""
    arch = Arch(
        "small", (DRAM, memory("GBUF", 6.0), REGF), (), Compute(1.0, 0.5, 1.0), 1.0, 8, overlap="free"
    )
    (e,) = workload_of(dict.fromkeys("mnk", 4), "C[m,n] += A[m,k] * B[k,n]").einsums
    homes = tuple((tensor, "GBUF") for tensor in "ABC")
    for place, is_left in (("dram", False), ("gbuf", True)):
        rules = read_rules([{"at": place, "factors": {"m": ">= 2"}}])
        limits = replace(ruled(FREE, rules, e, arch), homes=homes)
        found = searches.search(Problem(arch, e, "energy", Boundary(branched=True)), "perfect", limits)
        assert (found.lower_bound < inf) == is_left


@pytest.mark.parametrize("seed", range(100, 100 + amount(160, 10)))
def test_the_search_under_rules_equals_the_exhaustive_mapper(seed: int) -> None:
    """Of two levels: of more it keeps outer ones above inner ones."""
    problem, factors = drawn(seed, 300, 2_500, (2,))
    for rules in rule_sets(Random(f"rules/{seed}"), problem, 3):
        if any(rule.order for rule in rules):  # its nests have one order of loops per gap
            continue
        found = enumerated(problem, factors, ruled(FREE, rules, problem.einsum, problem.arch))
        as_found(problem, factors, rules, inf if isinstance(found, Infeasible) else found[0].energy_pj)


@pytest.mark.parametrize(("extent", "pes", "least"), [(64, 64, 64), (49, 64, 49), (14, 64, 14), (96, 64, 48)])
def test_a_dimension_is_filled_as_far_as_its_ranks_can(extent: int, pes: int, least: int) -> None:
    """`utilization: 1` at a dimension that takes one rank; the sums of 64 x k come in any rank."""
    (e,) = workload_of({"m": 5, "n": extent, "k": 64}, "C[m,n] += A[m,k] * B[k,n]").einsums
    array = Fanout("array", 2, (("X", pes), ("Y", 64)), (True, True), (True, True))
    arch = Arch("small", (DRAM, GBUF), (array,), Compute(1.0, 0.5, 1.0), 1.0, 8, overlap="free")
    rules = read_rules(
        [{"at": "x", "ranks": ["output_channel"], "utilization": 1}, {"at": "y", "utilization": 0.5}]
    )
    limits = ruled(FREE, rules, e, arch).limits
    assert [(one.at, one.least) for one in limits if one.kind == "fill"] == [("X", least), ("Y", 32)]
    assert not ruled(FREE, rules, replace(e, kind="copy"), arch).limits[2:]


EDGE = machine.arch(machine.load("edge_array"))
GEMM = "gemm:m=64,n=32,k=48"


def solver(*rules: dict[str, object], **more: object) -> SolverOptions:
    return SolverOptions(mapping=read_rules(list(rules)), **more)  # type: ignore[arg-type]


def test_answers_name_the_rules_and_other_rules_have_other_answers() -> None:
    """By each way to an answer: alone, of many machines, as a front, and again from the cache."""
    workload = catalog.load(GEMM)
    rule = {"at": "x", "ranks": ["input_channel"]}
    options = solver(rule)
    free, under = (solve.solve(EDGE, workload, one) for one in (SolverOptions(), options))
    assert isinstance(free, list)
    assert isinstance(under, list)
    assert "under the constraints x: ranks input_channel" in under[0].certificate
    space = under[0].einsums[0].space
    assert space
    assert mappings_in(f"optimal{certificate_words(space)}") == space
    assert free[0].energy_pj < under[0].energy_pj
    limits = options.constraints(workload.einsums[0], EDGE)
    (many,) = solve.solve_unfused_on([EDGE], workload, options)
    front = solve.solve(EDGE, workload, replace(options, objective="front"))
    assert isinstance(many, list)
    assert isinstance(front, list)
    assert many[0].energy_pj == under[0].energy_pj
    for one in (*under, *many, *front):
        assert broken(limits, one.einsums[0].mapping, workload.einsums[0], EDGE) == []
    assert broken(limits, free[0].einsums[0].mapping, workload.einsums[0], EDGE) != []
    again = [
        solve.cached(EDGE, workload, one) for one in (SolverOptions(), options, SolverOptions(), options)
    ]
    assert [one[0].energy_pj for one in again if isinstance(one, list)] == [  # answers of the cache, too
        free[0].energy_pj,
        under[0].energy_pj,
    ] * 2
    own = machine.arch(replace(machine.load("edge_array"), mapping=read_rules([rule])))
    (as_hardware,) = solve.solve(own, workload, SolverOptions())
    assert as_hardware.energy_pj == under[0].energy_pj
    assert as_hardware.certificate == under[0].certificate


@pytest.mark.parametrize("kind", ["bypass", "keep"])
@pytest.mark.parametrize("level", ["gbuf", "regf"])
@pytest.mark.parametrize("tensor", ROLES)
def test_a_tensor_stands_where_it_must_and_not_where_it_may_not(level: str, tensor: str, kind: str) -> None:
    e = catalog.load(GEMM).einsums[0]
    limits = solver({"at": level, kind: tensor}).constraints(e, EDGE)
    (one,) = optimal(Problem(EDGE, e, "energy"), "perfect", limits, allowed_gap=0.05)
    assert broken(limits, one.mapping, e, EDGE) == []


def test_rules_hold_for_the_einsums_that_they_name() -> None:
    conv = catalog.load("conv:k=8,c=8,p=4,q=4,r=3,s=3").einsums[0]
    gemm = catalog.load(GEMM).einsums[0]
    rules = read_rules([{"at": "x", "ranks": ["filter_row"]}, {"at": "y", "factors": {"output_row": 2}}])
    assert {limit.name for limit in ruled(FREE, rules, conv, EDGE).limits} == {*conv.sizes()} - {"r"}
    assert ruled(FREE, rules, gemm, EDGE) == FREE
    for kind, held in (("products", {gemm.name}), ("convolutions", {conv.name}), (conv.name, {conv.name})):
        rules = read_rules([{"at": "gbuf", "bypass": ["weight"], "einsums": kind}])
        assert {e.name for e in (gemm, conv) if ruled(FREE, rules, e, EDGE).limits} == held
    assert rank_roles(gemm) == {"input_channel": "k", "output_channel": "n", "batch": "m"}


@pytest.mark.parametrize(
    ("rules", "names"),
    [
        ([{"at": "gbuf", "bypass": "weight"}, {"at": "gbuf", "keep": ["B"]}], ["gbuf: keep B"]),
        ([{"at": "x", "factors": {"m": ">= 65"}}], ["x: m >= 65"]),
        (
            [
                {"at": "x", "ranks": []},
                {"at": "y", "ranks": ["k"]},
                {"utilization": 0.5},
                {"at": "gbuf", "tile": {"A": 10}},
            ],
            ["x: ranks none; utilization >= 50 %"],
        ),
    ],
)
def test_infeasible_names_the_rules_that_exclude_every_mapping(
    rules: list[dict[str, object]], names: list[str]
) -> None:
    found = solve.solve(EDGE, catalog.load(GEMM), solver(*rules))
    assert isinstance(found, Infeasible)
    assert str(found) == f"gemm: no mapping keeps {names[0]}; leave a rule out of mapping, or loosen it"


def test_a_search_that_ends_blames_no_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether there is a mapping without one is not known then."""
    e = catalog.load(GEMM).einsums[0]
    rules = ruled(FREE, read_rules([{"at": "x", "ranks": []}, {"utilization": 0.5}]), e, EDGE)
    problem = Problem(EDGE, e, "energy")
    assert optima._excluding_rules(problem, rules) == ["x: ranks none", "utilization >= 50 %"]
    monkeypatch.setattr(optima, "search", lambda *_: searches.SearchResult(None, 1, 7.0))
    assert optima._excluding_rules(problem, rules) == []


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"schedule": "gogeta"}, "solver.schedule = gogeta does not obey the rules of `solver.mapping`"),
        ({"schedule": "residency"}, "solver.schedule = residency"),
        ({"mapper": "cost_descending"}, "solver.mapper = cost_descending"),
        ({"tiling": "smaug"}, "solver.tiling = smaug"),
        ({"factors": "imperfect"}, "solver.factors = imperfect"),
        ({"layout": "alt"}, "solver.layout = alt"),
        ({"sharing_gap": 0.1}, "solver.sharing_gap = 0.1"),
    ],
)
def test_what_would_not_be_obeyed_is_one_line(more: dict[str, object], line: str) -> None:
    workload = catalog.load(GEMM)
    with pytest.raises(ValueError, match=re.escape(line)) as fault:
        solve.solve(EDGE, workload, solver({"at": "x", "ranks": ["k"]}, **more))
    assert "\n" not in str(fault.value)
    own = machine.arch(
        replace(machine.load("edge_array"), mapping=read_rules([{"at": "x", "ranks": ["input_channel"]}]))
    )
    with pytest.raises(ValueError, match="does not obey the rules of `mapping`"):
        solve.solve(own, workload, SolverOptions(**more))  # type: ignore[arg-type]


def test_rules_that_tell_equal_einsums_apart_or_name_nothing_are_one_line() -> None:
    layers = workload_of({"m": 8, "k": 8, "n": 8}, "C[m,n] += A[m,k] * B[k,n]", "D[m,k] += C[m,n] * E[n,k]")
    first, second = layers.einsums
    with pytest.raises(ValueError, match=r"hold for .* in different ways"):
        solve.solve(EDGE, layers, solver({"at": "x", "ranks": ["k"]}))
    with pytest.raises(ValueError, match=r"hold for .* in different ways"):
        solve.solve(EDGE, layers, solver({"at": "gbuf", "bypass": ["weight"], "einsums": [second.name]}))
    assert isinstance(solve.solve(EDGE, layers, solver({"at": "x", "ranks": ["input_channel"]})), list)
    assert first.name != second.name
    with pytest.raises(ValueError, match=re.escape("solver.mapping[0].ranks = kk names nothing of gemm")):
        solve.solve(EDGE, catalog.load(GEMM), solver({"at": "x", "ranks": ["kk"]}))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("{at: z, ranks: [k]}", "mapping[0].at = z is no memory and no dimension of an array"),
        ("{at: x, keep: [weight]}", "mapping[0].keep = [weight] cannot stand at a dimension (x)"),
        ("{at: gbuf, ranks: [k]}", "mapping[0].ranks = [k] cannot stand at a memory (gbuf)"),
        ("{at: dram, bypass: [weight]}", "mapping[0].bypass = [weight] cannot be: the outermost level"),
        ("{at: gbuf, keep: [weight], bypass: [weight]}", "mapping[0].bypass = weight is in keep too"),
        ("{at: x}", "mapping[0] = {at: x} says nothing; add one of ranks, factors"),
        ("{at: x, factors: {k: 0}}", "mapping[0].factors.k = 0 is no trip count"),
        ("{at: x, factors: {k: 3..2}}", "mapping[0].factors.k = 3..2 has the larger number first"),
        ("{at: gbuf, tile: {weight: 2 KB}}", "mapping[0].tile.weight = 2 KB is not a size"),
        ("{at: x, order: [k, m]}", "mapping[0].order = [k, m] cannot stand at a dimension (x)"),
        ("{at: gbuf, order: [k]}", "mapping[0].order = ['k'] names one rank, so orders nothing"),
        ("{at: gbuf, order: [k, m, k]}", "mapping[0].order = ['k', 'm', 'k'] names a rank twice"),
        ("{at: x, rank: [k]}", "mapping[0].rank = ['k'] is no key of a rule"),
        ("{utilization: 1.5}", "mapping[0].utilization = 1.5 is faulty"),
    ],
)
def test_a_faulty_rule_is_one_line(text: str, line: str, tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(f"{(machine.MACHINES / 'edge_array.yaml').read_text()}\nmapping: [{text}]\n")
    with pytest.raises(machine.MachineError) as fault:
        machine.load(str(file))
    assert str(fault.value).startswith(f"{file}: {line}")
    assert "\n" not in str(fault.value)


@pytest.mark.parametrize("name", ["eyeriss_rules", "simba_rules", "nvdla_rules"])
def test_shipped_rules_are_kept(name: str) -> None:
    """Timeloop's Eyeriss and Simba, and NVDLA: the first machine of each study."""
    loaded = study.load(STUDIES / f"{name}.yaml")
    assert loaded.space
    arch, (workload,) = decode(loaded.space, 0), loaded.loaded_workloads
    assert isinstance(arch, Arch)
    (found,) = solve.solve(arch, workload, loaded.solver)
    limits = loaded.solver.constraints(workload.einsums[0], arch)
    assert broken(limits, found.einsums[0].mapping, workload.einsums[0], arch) == []
    assert found.einsums[0].space
    assert found.einsums[0].space.rules == limits.rule_texts()


def test_a_given_mapping_that_breaks_rules_is_priced_and_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, given = tmp_path / "own.yaml", tmp_path / "given.txt"
    rules = "mapping: [{at: x, ranks: [input_channel]}, {at: gbuf, bypass: [weight]}]"
    own.write_text(f"{(machine.MACHINES / 'edge_array.yaml').read_text()}\n{rules}\n")
    asked = (GEMM, str(own))
    assert main(["map", *asked]) == 0
    assert re.search(r"certificate +optimal under the rules of mapping\n", capsys.readouterr().out)
    assert main(["map", *asked, "--format", "schedule"]) == 0
    given.write_text(capsys.readouterr().out)
    kept = api.simulate(*asked, given)
    assert kept.broken_rules == []
    assert main(["simulate", *asked, str(given)]) == 0
    assert capsys.readouterr().err == ""
    assert main(["map", GEMM, "edge_array", "--format", "schedule"]) == 0
    given.write_text(capsys.readouterr().out)
    assert main(["simulate", *asked, str(given), "--format", "json"]) == 0
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        f"warning: {given}: gemm: x: ranks input_channel: 16 trips of n over X",
        f"warning: {given}: gemm: gbuf: bypass weight: B stands at GBUF",
    ]
    assert json.loads(said.out)["energy_pj"] < kept.energy_pj

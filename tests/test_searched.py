"""Claims are values: every word of the notation belongs to a feature, each solver says what it searched of
each, and what is left out is left out by name.
"""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

import dse
from dse.mapper.exact.optimal import optimal
from dse.mapper.exact.ragged import solve_ragged
from dse.mapping import nest as nests
from dse.mapping import schedule as schedules
from dse.mapping.constraints import FREE
from dse.mapping.nest import Infeasible, parse
from dse.mapping.schedule import Schedule, parse_schedule
from dse.mapping.searched import (
    ALL_MAPPINGS,
    FEATURES,
    Mappings,
    Space,
    certificate_words,
    claim,
    covers,
    decoded,
    encoded,
    excluding_features,
    mappings_in,
    mappings_of,
    space_words,
    tile_counts,
    words,
)
from dse.sim.einsum.evaluate import Problem, Solution, unfused_space
from dse.sim.schedule.faults import faults
from dse.sim.schedule.graph import evaluate
from dse.solve.kapla import published
from dse.solve.options import SolverOptions
from dse.solve.schedules import fused, segments
from dse.solve.schedules.nests import Nests
from dse.solve.schedules.stages import Nodes
from dse.solve.solve import SCHEDULES, solve
from hw import machine
from hw.arch import Arch, Compute, Fanout, Level
from hw.machine import load as machine_file
from hw.space import override
from workloads import catalog
from workloads.einsum import einsum
from workloads.graph import Workload

REPORTED = Path(__file__).parent / "data/reported"


def arch_of(name: str) -> Arch:
    path = REPORTED / name
    return machine.arch(machine_file(str(path) if path.exists() else name))


def workload_of(name: str) -> Workload:
    path = REPORTED / name
    return catalog.load(str(path) if path.exists() else name)


# The notation


def types_of(kind: Any, found: dict[str, type] | None = None) -> dict[str, type]:
    """All values that a schedule is made of, by the type hints of their fields."""
    found = {} if found is None else found
    if is_dataclass(kind) and kind.__name__ not in found:
        found[kind.__name__] = kind  # type: ignore[assignment]
        for hint in get_type_hints(kind).values():
            types_of(hint, found)
    for inner in get_args(kind):
        types_of(inner, found)
    return found


def keywords() -> set[str]:
    """First words of all lines that the readers of nests and schedules take."""
    patterns = [
        value
        for module in (nests, schedules)
        for value in vars(module).values()
        if isinstance(value, re.Pattern)
    ]
    heads = {found[1] for pattern in patterns if (found := re.match(r"\^([a-z]+)\\s", pattern.pattern))}
    return heads | set(schedules.STARTS) | {"mac"}


def test_every_field_and_keyword_of_the_notation_belongs_to_a_feature() -> None:
    noted = {name for feature in FEATURES for name in feature.notation}
    there = {f"{name}.{f.name}" for name, kind in types_of(Schedule).items() for f in fields(kind)}
    there -= {"Mapping.whole_tiles"}  # how a mapping is counted in its schedule; no text says it
    assert there == {name for name in noted if "." in name}
    assert keywords() == {name for name in noted if "." not in name}
    assert len({feature.name for feature in FEATURES}) == len(FEATURES)


def test_every_field_of_a_space_changes_its_words() -> None:
    """Or whom it leaves out: nothing that is claimed goes unsaid."""
    both = Space(
        (Mappings("imperfect", layouts="row_major"),),
        "given",
        fused=3,
        shared_loops=1,
        held=2,
        levels=("G",),
        retained=("T",),
        pipelined=3,
        tiles=(8,),
        node_ranks=2,
    )
    wider: dict[str, Any] = {
        "order": "some",
        "fused": 4,
        "shared_loops": 2,
        "summed": True,
        "windows": True,
        "shared_reads": True,
        "depths": True,
        "uneven": True,
        "levels": ("G", "L"),
        "split": "CORES",
        "padded": True,
        "retained": ("T", "U"),
        "parts": True,
        "pipelined": 4,
        "tiles": (),
        "node_ranks": 3,
        "hold": True,
        "weights": "pinned",
        "ahead": True,
        "copies": True,
        "alone": True,
        "beside": ("x",),
    }
    silent = {"mappings", "held", "waste"}  # details of depths and of rectangles
    assert {f.name for f in fields(Space)} == set(wider) | silent
    assert (
        len(
            {
                certificate_words(both),
                *(certificate_words(replace(both, **{name: value})) for name, value in wider.items()),
            }
        )
        == len(wider) + 1
    )
    own: dict[str, Any] = {
        "factors": "perfect",
        "dataflow": "row_stationary",
        "node_order": "levels",
        "one_trip": True,
        "cut_twice": False,
        "layouts": "all",
        "shares": True,
        "mesh_windows": False,
        "rules": ("x: ranks k",),
        "units": ("MAC8", "VEC"),
    }
    assert {f.name for f in fields(Mappings)} == set(own)
    assert (
        len(
            {
                certificate_words(Mappings("imperfect")),
                *(
                    certificate_words(replace(Mappings("imperfect"), **{name: value}))
                    for name, value in own.items()
                ),
            }
        )
        == len(own) + 1
    )


# Text


def test_what_was_searched_is_read_as_it_is_written() -> None:
    one = Mappings("imperfect_spatial", "row_stationary", "arrays", layouts="all")
    whole_ = Space(
        (Mappings(), one),
        "given",
        fused=6,
        shared_loops=1,
        levels=("G",),
        retained=("T",),
        tiles=(8, 64),
        waste=1.25,
    )
    assert decoded(Space, encoded(whole_)) == whole_
    assert decoded(Mappings, encoded(one)) == one
    assert encoded(Space()) == "{}"
    assert decoded(Mappings, "") is None
    assert encoded(None) == ""
    assert mappings_in(f"optimal in the searched space; no bound known{certificate_words(one)}") == one
    ruled = replace(one, rules=("x: ranks k", "utilization >= 50 %"))
    assert decoded(Mappings, encoded(ruled)) == ruled
    assert mappings_in(f"optimal{certificate_words(ruled)}") == ruled
    assert mappings_in("not proven optimal; no bound known") is None
    assert mappings_in(f"x{certificate_words(ALL_MAPPINGS)}") == ALL_MAPPINGS
    text = f"a; b{certificate_words(whole_)}"
    assert claim(text) == "a; b"
    assert space_words(text) == {"searched": [*words(whole_)[0]], "not_searched": [*words(whole_)[1]]}
    assert all(", " not in word and "; " not in word for word in (*words(whole_)[0], *words(whole_)[1]))


@pytest.mark.parametrize(
    "text",
    [
        '{"factors": "all"}',
        '{"factors":"perfect"}',
        '{"factors":"every"}',
        '{"factor":"all"}',
        "[]",
        "7",
        "{",
        "null",
        '{"one_trip":1}',
        '{"cut_twice":"no"}',
        '{"dataflow":"\\u001b[2J\x1b"}',
    ],
)
def test_no_other_text_is_what_was_searched(text: str) -> None:
    with pytest.raises(ValueError, match="searched space"):
        decoded(Mappings, text)
    with pytest.raises(ValueError, match="describes no searched space"):
        mappings_in(f"optimal{certificate_words(Mappings())} and more")


# Solvers


def two(m: int = 4) -> Workload:
    """Y = (X W) V."""
    sizes = {"m": m, "k": 2, "n": 4, "q": 2}
    own = tuple(
        einsum(text, {rank: n for rank, n in sizes.items() if rank in text}, name)
        for text, name in (("T[m,n] += X[m,k] * W[k,n]", "a"), ("Y[m,q] += T[m,n] * V[n,q]", "b"))
    )
    return Workload("two", own, frozenset("WV"))


def small(*fanouts: Fanout, overlap: str = "free") -> Arch:
    levels = (
        Level("DRAM", None, 8, 50.0, 20.0, bypass=False),
        Level("G", 8 * 24, 8, 1.0, 1.0),
        Level("R", 8 * 4, 8, 0.1, 0.1),
    )
    return Arch("small", levels, fanouts, Compute(1.0, 1.0), 1.0, 8, overlap=overlap)  # type: ignore[arg-type]


ARRAY = small(Fanout("array", 2, (("X", 2),), (True,), (True,)))
UNFUSED = Space((Mappings("imperfect_spatial", node_order="arrays"),))
TILES = replace(
    UNFUSED, order="given", fused=10, shared_loops=1, held=6, levels=("G",), retained=("T",), padded=True
)
SEVERAL = replace(TILES, shared_loops=3, summed=True, shared_reads=True, depths=True, uneven=True)
PIPES = Space(
    (Mappings("perfect", node_order="arrays", mesh_windows=False),),
    "given",
    levels=("GBUF",),
    padded=True,
    pipelined=6,
    tiles=(8, 64),
    node_ranks=2,
    waste=1.25,
    beside=("KAPLA's schedules", "held weights", "unfused mappings"),
)


def answered(arch: Arch, workload: Workload, **options: Any) -> Solution:
    found = solve(arch, workload, SolverOptions(**options))
    assert not isinstance(found, Infeasible)
    return found[0]


@pytest.mark.parametrize(
    ("tiles", "factors"), [("perfect", "perfect"), ("imperfect_spatial", "imperfect_spatial")]
)
def test_the_mapper_says_which_factors_and_dataflows_it_searched(tiles: Any, factors: Any) -> None:
    e = two().einsums[0]
    own = optimal(Problem(ARRAY, e, "energy"), tiles)
    assert isinstance(own, list)
    assert own[0].space == Mappings(factors, node_order="arrays")
    found = answered(ARRAY, two(), factors=tiles, dataflow="weight_stationary")
    assert found.space == Space((Mappings(factors, "weight_stationary", "arrays"),))
    assert covers(found.space, in_text(found, two()), two(), ARRAY) is None
    assert mappings_of(tiles, small()) == Mappings(factors)
    assert mappings_of("imperfect", ARRAY) == Mappings("imperfect", node_order="arrays")


def in_text(found: Solution, workload: Workload) -> Schedule:
    return found.schedule or schedules.sequential(workload, {c.name: c.mapping for c in found.einsums})


@pytest.mark.parametrize("name", ["optimal", "cost_descending"])
def test_heuristics_claim_nothing_but_the_bound(name: str) -> None:
    """Of layers one by one the bound is that of layers one by one."""
    found = answered(ARRAY, two(), mapper=name, factors="perfect")
    assert (found.space is None) == (name != "optimal")
    assert "above the unfused lower bound" in found.certificate
    assert name == "optimal" or f"not proven optimal (mapper {name})" in found.certificate
    alone = answered(ARRAY, replace(two(), einsums=two().einsums[:1]), mapper=name, factors="perfect")
    assert "above any mapping" in alone.certificate
    assert alone.space is None or alone.space.alone


def test_each_solver_of_schedules_says_what_it_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As written down here: a claim that grows by one feature is seen."""
    monkeypatch.setenv("DSE_CACHE", str(tmp_path))
    found = {"unfused": answered(ARRAY, two()), "fused": answered(ARRAY, two(), schedule="fused")}
    assert found["unfused"].space == UNFUSED
    assert found["fused"].space == SEVERAL
    latency = answered(ARRAY, two(), schedule="fused", objective="latency").space
    assert latency == replace(TILES, beside=("the fused schedule of least energy",))
    for name in ("seq-flex", "seq-overflow", "gogeta", "gogeta-df", "gogeta-published", "residency"):
        found[name] = answered(ARRAY, two(), schedule=name)
        own = found[name].space
        assert own
        assert (own.order, own.parts, bool(own.retained)) == (
            "some" if name == "residency" else "given",
            name != "seq-flex",
            name != "seq-flex",
        )
        assert not (own.hold)
        assert not (own.ahead)
        assert not (own.shared_reads)
        assert not (own.windows)
        assert not (own.depths)
        assert own.pipelined == 1
        assert own.shared_loops <= 1
    net, nodes = workload_of("tiny.yaml"), arch_of("m22s.yaml")
    own_nests = (Mappings("perfect", shares=True),)
    kapla = replace(PIPES, pipelined=5, tiles=(), mappings=own_nests, hold=True, beside=())
    for name, space in (
        ("kapla", kapla),
        ("pipelined", PIPES),
        ("best", replace(PIPES, beside=(*PIPES.beside, "unfused mappings"))),
    ):
        found[name] = answered(nodes, net, schedule=name)
        assert found[name].space == space
    assert set(found) | {name for name in published.METHODS if name != "kapla"} == set(SCHEDULES)
    for name, one in found.items():
        assert one.space
        assert one.certificate == claim(one.certificate) + certificate_words(one.space)
        where = (net, nodes) if name in ("kapla", "pipelined", "best") else (two(), ARRAY)
        assert (
            name in ("best", "kapla", "pipelined", "residency", "gogeta", "gogeta-df", "gogeta-published")
            or covers(one.space, in_text(one, where[0]), *where) is None
        )
    g = segments.PipelineSearch(nodes, net, "energy", "pinned", Nodes(nodes))
    assert segments.space(g, 6, (), Mappings("perfect")) == replace(
        PIPES, mappings=(Mappings("perfect"),), tiles=(), weights="pinned", beside=()
    )
    assert segments.space(g, 1, (1,), Mappings("perfect")).pipelined == 1


@pytest.mark.parametrize(
    ("extent", "tiles", "numbers"),
    [
        (16, (8, 64), [8]),
        (128, (8, 64), [8, 64]),
        (8, (8, 64), [8]),
        (6, (8, 64), [2, 3, 6]),
        (12, (), [2, 3, 4, 6, 12]),
        (12, (1,), []),
    ],
)
def test_numbers_of_pipeline_tiles_of_a_loop(extent: int, tiles: tuple[int, ...], numbers: list[int]) -> None:
    """Of loops that are shorter than the least number named, all that divide."""
    assert tile_counts(extent, tiles) == numbers


UNHELD = re.sub(r"hold .*\n", "", (REPORTED / "chain3_held.sch").read_text())


@pytest.mark.parametrize(
    ("most", "granules"),
    [(6, segments.PIPELINE_TILES), (2, (2,)), (6, segments.NO_SHARED_LOOP), (6, segments.ALL_TILE_COUNTS)],
)
def test_pipelines_claim_the_segments_that_they_enumerate(most: int, granules: tuple[int, ...]) -> None:
    """One list of options for both: of all numbers of pipeline tiles of three einsums those that are
    enumerated lie in the space, the others do not.
    """
    net, nodes = workload_of("chain3.yaml"), arch_of("m33.yaml")
    g = segments.PipelineSearch(nodes, net, "energy", "streamed", Nodes(nodes))
    space, listed = (
        segments.space(g, most, granules, Mappings("perfect")),
        segments.ranges_of(g, most, granules),
    )
    every = [r for r in segments.ranges_of(g, 6, segments.ALL_TILE_COUNTS) if (r.first, r.last) == (0, 2)]
    assert {r.tile for r in every} == {0, 8, 4, 2, 1}
    for r in every:
        loops = (f"for m tile {r.tile}\n" if r.tile else "") + "store GBUF H G\n"
        given = parse_schedule(UNHELD.replace("for m tile 2\n    store GBUF H G\n", loops))
        left = set(excluding_features(space, given, net, nodes)) & {"pipelines", "pipeline tiles"}
        assert (r in listed) == (not left), (r, left)


# Features


A, B = (
    "store DRAM X W\n{0}for k tile 1\nfor n tile 1\nmac",
    "store DRAM V Y\n{0}for n tile 1\nfor q tile 1\nmac",
)
PLAIN = (
    "segment\neinsum a\nstore DRAM X W T\nfor m tile 1\nfor k tile 1\nfor n tile 1\nmac\n"
    "segment\neinsum b\nstore DRAM T V Y\nfor m tile 1\nfor n tile 1\nfor q tile 1\nmac\n"
)


def fused_text(shared: str, a: str = "", b: str = "") -> str:
    return f"segment\n{shared}\neinsum a\n{A.format(a)}\neinsum b\n{B.format(b)}\n"


ONE_LOOP = "for m tile 1\nstore G T"
# feature: a schedule that has it, a space without it, what makes it wider
WIDER: dict[str, tuple[str, Space, dict[str, Any]]] = {
    "weights": (f"weights pinned\n{PLAIN}", UNFUSED, {"weights": "pinned"}),
    "fills ahead": (f"fills ahead\n{PLAIN}", UNFUSED, {"ahead": True}),
    "retention": (f"retain G T 1\n{PLAIN}", replace(TILES, retained=()), {"retained": ("T",)}),
    "retention of parts": (f"retain G T 1/2\n{PLAIN}", TILES, {"parts": True}),
    "fusion": (fused_text(ONE_LOOP), replace(TILES, fused=1), {"fused": 2}),
    "shared loops": (fused_text("for m tile 2\nfor m tile 1\nstore G T"), TILES, {"shared_loops": 2}),
    "shared loops over summed ranks": (
        "segment\nstore DRAM Y\nfor n tile 2\nstore G T\neinsum a\nstore DRAM X W\nfor m tile 1\nfor "
        "k tile 1\nfor n tile 1\nmac\n"
        "einsum b\nstore DRAM V\nfor m tile 1\nfor n tile 1\nfor q tile 1\nmac\n",
        TILES,
        {"summed": True},
    ),
    "depths of tensors": (fused_text("store G T\nfor m tile 1"), TILES, {"depths": True}),
}


@pytest.mark.parametrize("name", WIDER)
def test_a_feature_is_left_out_by_its_name_until_it_is_searched(name: str) -> None:
    text, space, more = WIDER[name]
    given = parse_schedule(text)
    assert faults(ARRAY, two(), given) == []
    assert covers(space, given, two(), ARRAY) == name
    assert covers(replace(space, **more), given, two(), ARRAY) is None


@pytest.mark.parametrize(
    ("loops", "left"),
    [
        ("for m tile 4", None),  # three trips, of 4, 4 and 3
        ("for m tile 5", "shared loops"),  # three trips take 4 at least
        ("for m tile 1", None),
        ("for m tile 4\nfor n tile 1", "shared loops"),
    ],
)
def test_a_shared_loop_alone_may_leave_a_remainder(loops: str, left: str | None) -> None:
    workload = Workload(
        "eleven",
        (
            einsum("T[m,n] += X[m,k] * W[k,n]", {"m": 11, "k": 2, "n": 2}, "a"),
            einsum("Y[m,n] = relu(T[m,n])", {"m": 11, "n": 2}, "b"),
        ),
        frozenset("W"),
    )
    nest = "for m tile 1\nfor n tile 1\n"
    given = parse_schedule(
        f"segment\n{loops}\nstore G T\neinsum a\nstore DRAM X W\n{nest}for k tile 1\nmac\n"
        f"einsum b\nstore DRAM Y\n{nest}mac\n"
    )
    assert faults(ARRAY, workload, given) == []
    assert covers(SEVERAL, given, workload, ARRAY) == left
    assert "tile 4" not in loops or covers(replace(SEVERAL, uneven=False), given, workload, ARRAY)


def test_a_result_that_several_loops_sum_up_stands_at_its_level() -> None:
    """Partial sums that go to main memory past G were not searched."""
    text, _, _ = WIDER["shared loops over summed ranks"]
    past, there = (
        parse_schedule(one) for one in (text, text.replace("store DRAM Y", "store DRAM Y\nstore G Y"))
    )
    assert faults(ARRAY, two(), there) == []
    assert covers(SEVERAL, past, two(), ARRAY) == "shared loops over summed ranks"
    assert covers(SEVERAL, there, two(), ARRAY) is None


PADDED = Workload(
    "padded",
    (
        einsum("T[m,p] += X[m,k] * W[k,p]", {"m": 4, "k": 2, "p": 4}, "a"),
        einsum("Y[m,z] += T[m,z+g-1] * V[g]", {"m": 4, "z": 4, "g": 3}, "b", sizes={"T": (4, 4)}),
    ),
    frozenset("WV"),
)
SLIDING = "store DRAM V Y\nfor z tile 1\nfor g tile 1\nmac"


def test_padding_of_what_is_handed_on_is_a_feature() -> None:
    given = parse_schedule(
        f"segment\n{ONE_LOOP}\neinsum a\n{A.format('').replace('for n', 'for p')}\neinsum b\n{SLIDING}\n"
    )
    assert faults(ARRAY, PADDED, given) == []
    assert covers(replace(TILES, padded=UNFUSED.padded), given, PADDED, ARRAY) == "padding"
    assert covers(TILES, given, PADDED, ARRAY) is None


def test_a_tensor_that_is_read_once_for_two_readers_is_a_feature() -> None:
    own = (
        *two().einsums[:1],
        einsum("Y[m,q] += X[m,k] * T[m,n] * V[k,n,q]", {"m": 4, "k": 2, "n": 4, "q": 2}, "b"),
    )
    both = Workload("both", own, frozenset("WV"))
    text = (
        "segment\nstore DRAM X\nfor m tile 1\nstore G X T\neinsum a\nstore DRAM W\nfor k tile 1\nfor "
        "n tile 1\nmac\n"
        "einsum b\nstore DRAM V Y\nfor k tile 1\nfor n tile 1\nfor q tile 1\nmac\n"
    )
    given = parse_schedule(text)
    assert faults(ARRAY, both, given) == []
    assert covers(TILES, given, both, ARRAY) == "shared reads"
    assert covers(replace(TILES, shared_reads=True), given, both, ARRAY) is None


MAPPED = {  # feature of an einsum: its nest, searched mappings without it, with it
    "imperfect factors": (
        "store DRAM X W T\nfor n tile 1\nfor k tile 1\nfor m tile 3\nfor m tile 1\nmac",
        Mappings("imperfect_spatial"),
        Mappings("imperfect"),
    ),
    "order of storage nodes": (
        "store DRAM X W T\nfor n tile 1\nstore R X\nfor k tile 1\nstore G W\nfor m tile 1\nmac",
        Mappings("perfect", node_order="arrays"),
        Mappings("perfect"),
    ),
    "dataflow": (
        "store DRAM X W T\nfor n tile 1\nparfor k tile 1 over X\nfor m tile 1\nstore R X W T\nmac",
        Mappings(dataflow="weight_stationary"),
        Mappings(),
    ),
}


@pytest.mark.parametrize("name", MAPPED)
def test_a_mapping_is_left_out_by_the_name_of_what_was_not_searched(name: str) -> None:
    text, without, having = MAPPED[name]
    one = replace(two(), einsums=two().einsums[:1])
    given = Schedule((schedules.Segment((schedules.Branch("a", parse(text)),)),))
    assert faults(ARRAY, one, given) == []
    assert covers(Space((without,)), given, one, ARRAY) == name
    assert covers(Space((having,)), given, one, ARRAY) is None
    assert covers(Space((ALL_MAPPINGS,)), given, one, ARRAY) is None


WINDOW = Workload("window", (einsum("O[p] += I[p+r] * W[r]", {"p": 4, "r": 3}, "o"),), frozenset("W"))


@pytest.mark.parametrize(
    ("name", "text", "having"),
    [
        (
            "loops of one trip",
            "store DRAM I W O\nfor p tile 2\nstore G I\nfor r tile 3\nfor r tile 1\nfor p tile 1\nmac",
            Mappings(one_trip=True),
        ),
        (
            "share of buffers",
            "share R I over X\nstore DRAM I W O\nparfor r tile 1 over X\nstore R I\nfor p tile 1\nmac",
            Mappings(shares=True),
        ),
        (
            "strided ranks cut twice",
            "store DRAM I W O\nfor r tile 1\nfor p tile 2\nfor p tile 1\nmac",
            Mappings(),
        ),
    ],
)
def test_what_no_search_looks_at_is_left_out_by_default(name: str, text: str, having: Mappings) -> None:
    strided = (
        replace(WINDOW, einsums=(einsum("O[p] += I[2*p+r] * W[r]", {"p": 4, "r": 3}, "o"),))
        if "strided" in name
        else WINDOW
    )
    without = mappings_of("perfect", small()) if having != Mappings() else Mappings(cut_twice=False)
    given = Schedule((schedules.Segment((schedules.Branch("o", parse(text)),)),))
    assert covers(Space((without,)), given, strided, ARRAY) == name
    assert covers(Space((having,)), given, strided, ARRAY) is None


def test_windows_of_a_result_are_a_feature_of_shared_loops() -> None:
    own = (*two().einsums[:1], einsum("Y[m+r,q] += T[m,n] * V[n,q,r]", {"m": 4, "n": 4, "q": 2, "r": 2}, "b"))
    both = Workload("both", own, frozenset("WV"))
    text = (
        f"segment\nstore DRAM Y\n{ONE_LOOP}\neinsum a\nstore DRAM X W\nfor k tile 1\nfor n tile 1\nmac\n"
        "einsum b\nstore DRAM V\nfor r tile 1\nfor n tile 1\nfor q tile 1\nmac\n"
    )
    given = parse_schedule(text)
    assert faults(ARRAY, both, given) == []
    assert covers(TILES, given, both, ARRAY) == "shared loops over windows"
    assert covers(replace(TILES, windows=True), given, both, ARRAY) is None


def test_a_claim_holds_for_all_mappings_that_its_einsums_were_searched_in() -> None:
    """A schedule lies in it only where each einsum lies in each of them; of einsums of which nothing is known
    the bound counts.
    """
    both = unfused_space(
        [Mappings("imperfect"), None, Mappings("perfect"), Mappings("imperfect")], is_single=False
    )
    assert both == Space((Mappings("imperfect"), Mappings("perfect")))
    assert unfused_space([None], is_single=True) is None
    given = Schedule((schedules.Segment((schedules.Branch("a", parse(MAPPED["imperfect factors"][0])),)),))
    one = replace(two(), einsums=two().einsums[:1])
    assert covers(both, given, one, ARRAY) == "imperfect factors"
    assert covers(Space((Mappings("imperfect"),)), given, one, ARRAY) is None


def test_strided_ranks_are_cut_once_by_the_search_of_imperfect_factors() -> None:
    arch = replace(small(Fanout("array", 1, (("X", 2),), (True,), (True,))), levels=small().levels[:1])
    for text, twice in (("O[p] += I[2*p+r] * W[r]", False), ("O[p] += I[p+r] * W[r]", True)):
        found = solve_ragged(Problem(arch, einsum(text, {"p": 3, "r": 2}, "o"), "energy"))
        assert isinstance(found, list)
        assert found[0].space
        assert (found[0].space.factors, found[0].space.cut_twice) == ("imperfect", twice)


def test_spatial_factors_are_as_even_as_can_be() -> None:
    """4 elements over 3 PEs leave 2 at most; tiles of 3 are uneven."""
    one, arch = (
        replace(two(), einsums=two().einsums[:1]),
        small(Fanout("array", 2, (("X", 3),), (True,), (True,))),
    )
    for tile, left in ((2, None), (3, "imperfect factors")):
        text = f"store DRAM X W T\nparfor m tile {tile} over X\nfor n tile 1\nfor k tile 1\nfor m tile 1\nmac"
        given = Schedule((schedules.Segment((schedules.Branch("a", parse(text)),)),))
        assert covers(Space((Mappings("imperfect_spatial"),)), given, one, arch) == left


# Reported: schedules that cost less than certificates allowed


@pytest.mark.parametrize(
    ("net", "nodes", "at_most"),
    [
        ("tiny.yaml", "m22s.yaml", 13_513),
        ("chain4.yaml", "kapla_multi_4x4", 5.1956e9),
        ("chain3.yaml", "m33.yaml", 143_759),
    ],
)
def test_weights_once_per_run_are_left_out_by_name(net: str, nodes: str, at_most: float) -> None:
    arch, given = (
        arch_of(nodes),
        parse_schedule((REPORTED / f"{net.removesuffix('.yaml')}_held.sch").read_text()),
    )
    workload = workload_of(net)
    priced = evaluate(arch, workload, given)
    g = segments.PipelineSearch(arch, workload, "energy", "streamed", Nodes(arch))
    for most, granules in (
        (segments.MAX_STAGES, segments.PIPELINE_TILES),
        (published.MAX_EINSUMS, segments.ALL_TILE_COUNTS),
    ):
        space = segments.space(g, most, granules, Mappings("perfect"))
        assert isinstance(priced, Solution)
        assert priced.energy_pj <= at_most
        assert covers(space, given, workload, arch) == "hold of weights"
        assert "weights once (hold)" in words(space)[1]
        assert "weights per pipeline tile" in words(space)[0]
        assert covers(replace(space, hold=True), given, workload, arch) is None


def test_a_shared_loop_over_a_summed_rank_is_left_out_by_name() -> None:
    options, workload = SolverOptions(schedule="fused"), workload_of("graphsage")
    arch = machine.arch(override(machine_file("edge_array"), {"gbuf.capacity": "1 MiB"}))
    priced = evaluate(
        arch, workload, given := parse_schedule((REPORTED / "graphsage_shared_reads.sch").read_text())
    )
    space = fused.space(
        fused.graph(
            arch, workload, "energy", Nests(arch, "energy", options.factors, lambda _: FREE, options.gap)
        )
    )
    # 622 uJ with indices as wide as a word of 8 bits
    assert isinstance(priced, Solution)
    assert priced.energy_pj < 639e6
    names = list(excluding_features(space, given, workload, arch))
    assert names[0] == "shared loops over summed ranks"
    assert "shared reads" in names
    assert {"shared loops over summed ranks", "reads shared by einsums"} <= set(words(space)[1])


def test_an_answer_on_nodes_says_what_it_did_not_search() -> None:
    """On a terminal, in JSON and in the certificate alike."""
    found = dse.map(
        str(REPORTED / "tiny.yaml"), str(REPORTED / "m22s.yaml"), **{"solver.schedule": "pipelined"}
    )
    assert "weights once (hold)" in found.totals["space"]["not_searched"]
    assert "weights once (hold)" in found.text(why=True)
    assert isinstance(found.solution, Solution)
    assert "weights once (hold)" in found.solution.certificate
    assert "hold" not in found.totals["certificate"]

"""The notation of mappings: printing, parsing, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dse.mapping.nest import NON_NEST, Mapping, faults, from_data, may_keep, parse, read, to_data
from hw.arch import Arch, Compute, Fanout, Level
from tests.nests import random_case
from workloads.einsum import einsum

GEMM = einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 4, "n": 4, "k": 4})
ARCH = Arch(
    "t",
    (
        Level("DRAM", None, 8, 1.0, 1.0, bypass=False),
        Level("GLB", None, 8, 1.0, 1.0),
        Level("RF", None, 8, 1.0, 1.0),
    ),
    (Fanout("array", 2, (("X", 2), ("Y", 2)), (True, True), (True, True)),),
    Compute(1.0, 1.0),
    1.0,
    8,
)
GOOD = """store DRAM A B C
for m tile 2
  store GLB A B C
  parfor n tile 2 over X
    store RF C
    for k tile 1
      for n tile 1
        for m tile 1
          mac"""


@given(st.integers(0, 2**32))
def test_parse_inverts_print(seed: int) -> None:
    _, _, mapping = random_case(Random(seed))
    assert parse(str(mapping)) == mapping
    assert from_data(to_data(mapping)) == mapping


def test_the_printed_form_is_the_form_of_the_specification() -> None:
    assert str(parse(GOOD)) == GOOD
    assert faults(parse(GOOD), GEMM, ARCH) == []


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("for m tile 2", "for z tile 2", "unknown rank z"),
        ("for m tile 2", "for m tile 9", "the tile outside is 4"),
        ("for m tile 1\n", "", "rank m ends with tile 2"),
        ("store GLB A B C", "store L2 A B C", "no such level"),
        ("store GLB A B C", "store GLB A B D", "no such tensor"),
        ("store RF C", "store DRAM C", "keep the order of the hierarchy"),
        ("store DRAM A B C", "store DRAM A B", "no tensor may bypass"),
        ("over X", "over Z", "fan-out dimensions are X, Y"),
        (
            "store GLB A B C\n  parfor n tile 2 over X",
            "parfor n tile 2 over X\n  store GLB A B C",
            "wrong side of the fan-out",
        ),
    ],
)
def test_a_fault_is_one_line_that_names_it(old: str, new: str, line: str) -> None:
    text = GOOD.replace(old, new)
    assert text != GOOD
    found = faults(parse(text), GEMM, ARCH)
    assert any(line in fault for fault in found), found
    assert all("\n" not in fault for fault in found)


def test_lanes_may_not_write_the_same_output_elements() -> None:
    e = einsum("O[2*p+r] += I[p] * F[r]", {"p": 3, "r": 3})
    mapping = parse("store DRAM I F O\nparfor r tile 1 over X\nfor p tile 1\nmac")
    assert any("partially relevant" in fault for fault in faults(mapping, e, ARCH))


def test_a_level_refuses_tensors_that_it_may_not_hold() -> None:
    private = replace(
        ARCH,
        levels=(
            ARCH.levels[0],
            replace(ARCH.levels[1], may_keep=("weight",)),
            replace(ARCH.levels[2], may_keep=("output",)),
        ),
    )
    assert faults(parse(GOOD.replace("store GLB A B C", "store GLB B")), GEMM, private) == []
    assert faults(parse(GOOD), GEMM, private) == [
        "mapping of C: store GLB A: GLB holds no input, only weight",
        "mapping of C: store GLB C: GLB holds no output, only weight",
    ]
    forced = replace(private, levels=(*private.levels[:2], replace(private.levels[2], bypass=False)))
    assert faults(parse(GOOD.replace("store GLB A B C", "store GLB B")), GEMM, forced) == []
    assert faults(
        parse(GOOD.replace("store GLB A B C", "store GLB B").replace("    store RF C\n", "")), GEMM, forced
    ) == ["mapping of C: tensor C is not stored at RF, which no tensor may bypass"]


def test_roles_of_einsums_with_other_numbers_of_inputs() -> None:
    def held(text: str, role: str) -> list[str]:
        return may_keep(einsum(text, {"m": 4}), replace(ARCH.levels[1], may_keep=(role,)))

    assert [held("Y[m] = relu(X[m])", role) for role in ("input", "weight", "output")] == [["X"], [], ["Y"]]
    assert [held("Y[m] += A[m] * B[m] * D[m]", role) for role in ("input", "weight", "output")] == [
        ["A"],
        ["B", "D"],
        ["Y"],
    ]


def test_a_schedule_that_is_no_nest_is_kept_as_text_and_refused_as_a_mapping(tmp_path: Path) -> None:
    text = f"{NON_NEST}: tiles overlap\nfor 3 tiles of rows"
    kept = Mapping((), text)
    assert str(kept) == text
    assert kept != Mapping(())
    for path, data in ((tmp_path / "m.txt", text), (tmp_path / "m.yaml", f"C: {text!r}".replace("'", '"'))):
        path.write_text(data)
        with pytest.raises(
            ValueError,
            match=f"^{path}: C: mapping is {NON_NEST}: tiles overlap; only loop nests can be read "
            "here: dse map --set solver.tiling=smaug",
        ):
            read(path, ["C"])


@pytest.mark.parametrize("text", ["hold DRAM A", "for m in 4", "store DRAM", "mac\nfor m tile 1"])
def test_a_line_that_is_no_node_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="line 1"):
        parse(text)


@pytest.mark.parametrize(
    "entry", [{"for": "m"}, {"store": "DRAM", "tensors": []}, {"for": "m", "tile": 1, "extra": 2}, "for m"]
)
def test_an_entry_that_is_no_node_is_named(entry: object) -> None:
    with pytest.raises(ValueError, match="entry 1"):
        from_data([entry])


def test_a_mapping_is_a_value() -> None:
    assert parse(GOOD) == parse(GOOD)
    assert hash(parse(GOOD)) == hash(parse(GOOD))
    assert parse(GOOD) != Mapping(())

"""Spaces: size, order and decoding are a bijection; ranges; constraints as Python would compute them; one
line per fault.
"""

import itertools
import pickle
from collections.abc import Mapping
from math import isclose

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hw import machine, space
from hw.arch import Arch
from hw.space import Space, SpaceError, Unbuildable, Value, constraint, violation

EDGE = machine.load("edge_array")
FIELDS: dict[str, list[Value]] = {
    "array.x": [4, 8, 12, 16, 64],
    "array.y": [1, 3, 8],
    "gbuf.capacity": ["16 KiB", "100 KiB", "4 MiB"],
    "regf.capacity": ["64 B", "300 B", "2 KiB"],
    "dram.kind": ["lpddr4", "lpddr5", "hbm2"],
    "clock_mhz": [200, 400.5],
    "cell": ["lop", "hp"],
    "gbuf.double_buffer": [True, False],
    "dram.bandwidth": ["800 MB/s", "12.8 GB/s"],
    "mac.kind": ["int8", "fp16"],
    "node_nm": [22, 28, 45],
    "array.systolic": ["os", "ws", "is"],
    "mac.vector_lanes": [0, 8, 64],
    "regf.double_buffer": [False, True],
    "overlap": ["buffered", "free"],
}
SWEEP = {
    "gbuf.capacity": {"from": "16 KiB", "to": "4 MiB", "step": "x2"},
    "regf.capacity": {"from": "64 B", "to": "2 KiB", "step": "x2"},
    "array.x": [4, 8, 16, 32, 64],
    "array.y": [4, 8, 16, 32, 64],
    "dram.kind": ["ddr4", "lpddr4", "lpddr5", "gddr6", "hbm2"],
}


@st.composite
def spaces(draw: st.DrawFn) -> Space:
    chosen = draw(st.lists(st.sampled_from(sorted(FIELDS)), min_size=1, max_size=4, unique=True))
    return space.parse(EDGE, {key: draw(st.permutations(FIELDS[key]).map(lambda p: p[:2])) for key in chosen})


@given(spaces())
def test_enumeration_is_the_product_of_the_axes_and_index_of_its_inverse(s: Space) -> None:
    listed = [space.values(s, i) for i in range(s.size)]
    keys = [axis.key for axis in s.axes]
    assert listed == [
        dict(zip(keys, row, strict=True)) for row in itertools.product(*(axis.values for axis in s.axes))
    ]
    assert [space.index_of(s, v) for v in listed] == list(range(s.size))
    for outside in (-1, s.size):
        with pytest.raises(IndexError):
            space.values(s, outside)


@given(spaces(), st.data())
def test_a_decoded_machine_has_the_values_of_its_index(s: Space, data: st.DataObject) -> None:
    index = data.draw(st.integers(0, s.size - 1))
    arch = space.decode(s, index)
    assert isinstance(arch, Arch)
    assert arch == space.decode(pickle.loads(pickle.dumps(s)), index)
    known = space.static_values(s, index, arch)
    for key, value in space.values(s, index).items():
        assert known[key] == value or isclose(float(known[key]), float(value))
    assert known["area_mm2"] == arch.area_mm2()
    assert known["array.x"] == arch.fanouts[0].dims[0][1]
    assert set(known) >= space.static_names(EDGE)


def test_constants_of_the_tiling_block_are_fields_and_lists_are_not() -> None:
    s = space.parse(EDGE, {"tiling.align": [0, 16], "tiling.pes": [4]})
    found = [space.decode(s, i) for i in range(2)]
    assert [(arch.tiling.align, arch.tiling.pes) for arch in found if isinstance(arch, Arch)] == [
        (0, 4),
        (16, 4),
    ]
    assert space.static_values(s, 1, found[1])["tiling.align"] == 16
    assert space.override(EDGE, {"gbuf.may_keep": ["output"]}).nodes[1].may_keep == ("output",)
    for key, value in (("gbuf.may_keep", [["input"], ["output"]]), ("array.multicast", [["x"], ["y"]])):
        with pytest.raises(
            SpaceError, match="holds a list, no value of a column; set it in the machine file"
        ):
            space.parse(EDGE, {key: value})
    with pytest.raises(SpaceError, match=r"tiling.minimum is no field of machine edge_array"):
        space.parse(EDGE, {"tiling.minimum": [1]})


def test_the_promised_sweep_lies_inside_the_tables() -> None:
    s = space.parse(EDGE, SWEEP)
    assert s.size == 9 * 6 * 5 * 5 * 5
    assert all(isinstance(space.decode(s, index), Arch) for index in range(0, s.size, 7))


def test_outside_a_table_is_a_value_with_its_reason() -> None:
    s = space.parse(EDGE, {"gbuf.capacity": ["32 KiB", "32 MiB"], "node_nm": [32, 90]})
    found = [space.decode(s, i) for i in range(4)]
    assert isinstance(found[0], Arch)
    assert all(isinstance(f, Unbuildable) for f in found[1:])
    assert "node_nm = 90 is outside the tables" in str(found[1])
    assert "gbuf.capacity = 32 MiB per SRAM macro" in str(found[2])
    assert "\n" not in str(found[3])


@pytest.mark.parametrize(
    ("key", "given_range", "expected"),
    [
        ("gbuf.capacity", {"from": "32 KiB", "to": "300 KiB", "step": "x2"}, (32768, 65536, 131072, 262144)),
        ("gbuf.capacity", {"from": "16 KiB", "to": "64 KiB", "step": "16 KiB"}, (16384, 32768, 49152, 65536)),
        ("array.x", {"from": 8, "to": 20, "step": 4}, (8, 12, 16, 20)),
        ("array.x", {"from": 8, "to": 8, "step": 4}, (8,)),
        ("array.x", {"from": 8, "to": 27, "step": "x1.5"}, (8, 12, 18, 27)),
        ("array.x", {"linear": [4, 16, 4]}, (4, 8, 12, 16)),
        ("array.x", {"log": [4, 64, 5]}, (4, 8, 16, 32, 64)),
        ("clock_mhz", {"from": 0.1, "to": 0.5, "step": 0.1}, (0.1, 0.2, 0.3, 0.4, 0.5)),
        ("dram.bandwidth", {"from": "6.4 GB/s", "to": "25.6 GB/s", "step": "x2"}, (6.4, 12.8, 25.6)),
        ("dram.kind", ["lpddr4", "hbm2"], ("lpddr4", "hbm2")),
    ],
)
def test_ranges(key: str, given_range: object, expected: tuple[Value, ...]) -> None:
    assert space.parse(EDGE, {key: given_range}).axes[0].values == expected


@pytest.mark.parametrize(
    ("name", "key", "advice"),
    [
        ("gogeta_clusters", "array.x", "did you mean pes.x?"),
        ("gpu_like", "array.x", "did you mean simt.lane?"),
        ("gpu_like", "pe.rows", "did you mean simt.lane?"),
        ("smv", "array.x", "did you mean array.pe or array.mac?"),
        ("nvdla", "pe.x", "did you mean array.k or array.c?"),
        ("kapla_multi", "pe.x", "did you mean array.x?"),
        ("gpu_like", "array.size", ""),
    ],
)
def test_sizes_of_arrays_are_found_by_meaning(name: str, key: str, advice: str) -> None:
    """Whatever a machine calls its arrays and their dimensions."""
    with pytest.raises(SpaceError) as fault:
        space.parse(machine.load(name), {key: [4]})
    assert str(fault.value).endswith(advice)


@pytest.mark.parametrize("name", machine.names())
def test_every_field_of_another_tool_is_one_line_of_at_most_five(name: str) -> None:
    template = machine.load(name)
    nodes = [node.name for node in template.nodes]
    words = ("size", "depth", "latency", "foo", "x", "z", "rows", "energy", "")
    for key in ("foo", *(f"{node}.{word}" for node in (*nodes, "buffer", "array") for word in words)):
        if key not in space.keys(template):
            with pytest.raises(SpaceError) as fault:
                space.parse(template, {key: [4]})
            said = str(fault.value)
            assert len(said) < 300, said
            assert said.count("\n") == 0


EIGHT_TO_32 = "{from: 8, to: 32, step: x2}"


@pytest.mark.parametrize(
    ("raw", "lines"),
    [
        (
            {"array.z": [1]},
            ["space.array.z is no field of machine edge_array; did you mean array.x or array.y?"],
        ),
        (
            {"gbuf.latency": [1]},
            ["space.gbuf.latency is no field of machine edge_array; did you mean gbuf.cycle_ns?"],
        ),
        (
            {"gbuf.foo": [1]},
            [
                "space.gbuf.foo is no field of machine edge_array; the nearest of 40 are formats, row, slow, "
                "ports, along"
            ],
        ),
        (
            {"gbuf.size": [1]},
            ["space.gbuf.size is no field of machine edge_array; did you mean gbuf.capacity?"],
        ),
        ({"pe.cols": [1]}, ["space.pe.cols is no field of machine edge_array; did you mean array.x?"]),
        (
            {"foo": [1]},
            [
                "space.foo is no field of machine edge_array; the nearest of 150 are regf.row, gbuf.row, "
                "regf.slow, gbuf.slow, regf.ports"
            ],
        ),
        (
            {"gbuf.capacty": ["1 KiB"], "array.x": []},
            [
                "space.gbuf.capacty is no field of machine edge_array; did you mean gbuf.capacity?",
                "space.array.x = [] leaves no machine; give at least one value",
            ],
        ),
        (
            {"array.x": {"from": 8, "to": 4, "step": "x2"}},
            ["space.array.x has from = 8 above to = 4; swap them"],
        ),
        (
            {"array.x": {"from": 1, "to": 4, "step": 0}},
            ["space.array.x has step = 0 must be above 0; raise it; a factor is written x2"],
        ),
        (
            {"array.x": {"from": 1, "to": 4, "step": "x1"}},
            ["space.array.x has step = x1, which does not grow; use a factor above 1, e.g. x2"],
        ),
        (
            {"array.x": {"from": 1, "to": 10**9, "step": 1}},
            ["space.array.x has more than 100000 values; raise step"],
        ),
        (
            {"gbuf.capacity": [16]},
            [
                "space.gbuf.capacity = 16 is not a size; write a number with B, KiB, MiB or GiB, "
                'e.g. "128 KiB"'
            ],
        ),
        (
            {"gbuf.capacity": {"from": "1 KB", "to": "2 KiB", "step": "x2"}},
            [
                'space.gbuf.capacity = "1 KB" is not a size; write a number with B, KiB, MiB or GiB, '
                'e.g. "1 KiB"'
            ],
        ),
        (
            {"gbuf.capacity": {"from": "16 KiB", "to": "64 KiB", "step": "x1.3"}},
            [
                "space.gbuf.capacity steps onto 21299.2, but the field is a whole number; change "
                "step, or list the values"
            ],
        ),
        (
            {"array.x": ["8", True, 2.5, -1]},
            [
                'space.array.x = "8" must be a whole number; write e.g. 16',
                "space.array.x = true must be a whole number; write e.g. 16",
                "space.array.x = 2.5 must be a whole number; write e.g. 16",
                "space.array.x = -1 must be above 0; raise it",
            ],
        ),
        ({"array.x": [8, 8]}, ["space.array.x = 8 stands twice; keep one"]),
        *(
            ({"array.x": given}, [f"space.array.x = {shown} is no list of values; write {EIGHT_TO_32}"])
            for given, shown in (("8..32", '"8..32"'), (["8..32"], "[8..32]"), ("8 ... 32", '"8 ... 32"'))
        ),
        (
            {"gbuf.capacity": "4 KiB..16 KiB"},
            [
                'space.gbuf.capacity = "4 KiB..16 KiB" is no list of values; write '
                "{from: 4 KiB, to: 16 KiB, step: x2}"
            ],
        ),
        ({"array.x": 8}, ["space.array.x = 8 is no list; write [8] or {from: ..., to: ..., step: x2}"]),
        (
            {"array.x": {"frm": 8, "to": 9}},
            [
                "space.array.x has keys frm, to; a range is {from, to, step}, {linear: [from, to, "
                "count]} or {log: [from, to, count]}"
            ],
        ),
        (
            {"array.x": {"linear": [1, 2]}},
            ["space.array.x has linear = [1, 2]; write linear: [from, to, count] with a count of 2 or more"],
        ),
        ({"dram.kind": ["lpdr4"]}, ['space.dram.kind = "lpdr4" is unknown; did you mean lpddr4?']),
        (
            {"dram.kind": {"from": 1, "to": 2, "step": 1}},
            ["space.dram.kind = a range, but the field is no number; list its values"],
        ),
        (
            {"dram.bandwidth": ["12.8"]},
            [
                'space.dram.bandwidth = "12.8" is no bandwidth; write a number with MB/s, GB/s or '
                'TB/s, e.g. "12.8 GB/s", or use actions_per_cycle'
            ],
        ),
        ({"clock_mhz": [float("nan")]}, ["space.clock_mhz = nan must be finite; write a number"]),
        (
            {"regf.actions_per_cycle": {"from": 1, "to": "inf", "step": 1}},
            ["space.regf.actions_per_cycle = inf is no end of a range; list the values"],
        ),
        ({}, ["space = {} is empty; name at least one field, e.g. array.x: [8, 16]"]),
        (None, ["space = null is empty; name at least one field, e.g. array.x: [8, 16]"]),
    ],
)
def test_a_broken_space_says_what_to_write(raw: object, lines: list[str]) -> None:
    with pytest.raises(SpaceError) as fault:
        space.parse(EDGE, raw)
    assert str(fault.value).splitlines() == lines
    assert str(pickle.loads(pickle.dumps(fault.value))) == str(fault.value)


def test_override_writes_fields_as_a_machine_file_does() -> None:
    changed = space.override(EDGE, {"gbuf.capacity": "256 KiB", "array.x": 4, "dram.kind": "hbm2"})
    arch = machine.arch(changed)
    assert arch.levels[1].capacity_bits == 8 * 2**18
    assert arch.fanouts[0].dims == (("X", 4), ("Y", 16))
    with pytest.raises(SpaceError) as fault:
        space.override(EDGE, {"gbuf.capacity": 4, "array.q": 1})
    assert len(str(fault.value).splitlines()) == 2


names = st.sampled_from(
    ["array.x", "area_mm2", "gbuf.capacity", "latency_ns[detector]", "latency_ns[resnet50:batch=1]", "e"]
)
numbers = st.one_of(st.integers(0, 10**6), st.floats(0, 1e6)).map(repr)
sums = st.recursive(
    names | numbers,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*/"), inner).map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        inner.map(lambda t: f"-({t})"),
    ),
    max_leaves=8,
)


@given(sums, st.sampled_from(["<=", ">=", "<", ">", "=="]), sums, st.data())
def test_a_violation_is_met_exactly_where_python_says_so(
    left: str, op: str, right: str, data: st.DataObject
) -> None:
    text = f"{left} {op} {right}"
    known = ("array.x", "area_mm2", "gbuf.capacity", "latency_ns[detector]", "latency_ns[resnet50:batch=1]")
    plain = text
    for i, name in enumerate(known):
        plain = plain.replace(name, f"v{i}")
    used = {name for i, name in enumerate(known) if f"v{i}" in plain} | (
        {"e"} if "e" in plain.replace("e+", "").replace("e-", "") else set()
    )
    if not used:
        with pytest.raises(SpaceError, match="names no field"):
            constraint(text)
        return
    checked = constraint(text)
    assert checked.names == used
    bound = {name: data.draw(st.integers(1, 100)) for name in sorted(used)}
    try:
        met = eval(
            plain, {}, {f"v{i}": bound.get(name) for i, name in enumerate(known)} | {"e": bound.get("e")}
        )
    except ZeroDivisionError:
        return
    assert (violation(checked, bound) <= 0) == met


@pytest.mark.parametrize(
    ("text", "known", "expected"),
    [
        ("gbuf.capacity <= 1 MiB", {"gbuf.capacity": 2**21}, 2.0**20),
        ("dram.bandwidth >= 12.8 GB/s", {"dram.bandwidth": 6.4}, 6.4),
        ("2 <= array.x <= 8", {"array.x": 9}, 1.0),
        ("2 <= array.x <= 8", {"array.x": 1}, 1.0),
        ("array.x * array.y == 64", {"array.x": 8, "array.y": 8}, 0.0),
        ("latency_ns[detector] <= 5e6", {"latency_ns[detector]": 6e6}, 1e6),
        ("1 / (array.x - 8) <= 1", {"array.x": 8}, float("inf")),
    ],
)
def test_how_far_a_constraint_is_missed(text: str, known: Mapping[str, Value], expected: float) -> None:
    assert violation(constraint(text), known) == expected


@pytest.mark.parametrize(
    "text",
    [
        "area_mm2",
        "3 <= 4",
        "",
        "x <=",
        "x and y",
        "x ** 2 <= 3",
        "x <= 'a'",
        "__import__('os') <= 2",
        "a.b() <= 2",
        "3x <= 4",
        "x if y else z <= 2",
        "(1).real <= x",
        "x[0][1] <= 2",
        "x <= y <= lambda: 2",
        "-" * 600 + "x <= 1",
        "x != 2",
        "x in y",
        "f'{x}' <= 2",
    ],
)
def test_anything_but_a_comparison_of_sums_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(SpaceError) as fault:
        constraint(text)
    assert str(fault.value).startswith('constraint "')
    assert "\n" not in str(fault.value)
    assert ";" in str(fault.value)


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        ("area_mm2 =< 0.55", "did you mean area_mm2 <= 0.55?"),
        ("array.x => array.y", "did you mean array.x >= array.y?"),
        ("latency_ns[layer] <= 12 ms", "in the unit that the name ends with: latency_ns[layer] <= 12000000"),
        ("energy_pj =< 3 uJ", "in the unit that the name ends with: energy_pj <= 3000000"),
        ("gbuf.capacity <= 3 MB", "write e.g. array.x >= array.y"),
    ],
)
def test_a_comparison_that_is_nearly_one_is_told_what_it_would_be(text: str, fix: str) -> None:
    with pytest.raises(SpaceError) as fault:
        constraint(text)
    assert str(fault.value).endswith(fix)


def test_numbers_with_a_unit_are_told_plain() -> None:
    with pytest.raises(SpaceError, match=r"clock_mhz = \"0.4 GHz\" must be a number, in MHz; write 400$"):
        space.override(EDGE, {"clock_mhz": "0.4 GHz"})
    with pytest.raises(SpaceError, match=r"must be a number; write e.g. 500$"):
        space.parse(EDGE, {"clock_mhz": ["fast", 500]})

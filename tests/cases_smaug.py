"""Runner of the case kind smaug_tiling: published tiles of SMAUG's SMV backend, in faithful and in corrected
mode.

Compared: labels (those of an independent derivation), tile shapes, grids, shapes and origins of every tile,
properties.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dse.mapper.smaug.factor import Unit
from dse.mapper.smaug.halo import Tiled
from dse.mapper.smaug.smaug import Operator, Tiling, same_padding, tile
from dse.mapping.nest import Infeasible
from tests.tiled import broken, wrong

KINDS = {
    "conv": "convolution",
    "inner": "inner_product",
    "fc": "inner_product",
    "max_pool": "pooling",
    "avg_pool": "pooling",
    "pool": "pooling",
    "batch_norm": "batch_norm",
    "unary": "unary",
    "elt": "elementwise",
    "element": "elementwise",
    "softmax": "softmax",
    "depthwise": "depthwise",
    "attention": "attention",
}  # by the first letters of a case's operator
# published with an eleventh input tile, which holds no window: corrected, it is not made
NO_WINDOW = ("corrected", "conv-1x64x64x32-k5x5-m16-s3-valid", "inputs")


def operator(case: dict[str, Any]) -> Operator:
    """The operator of a case. Raises ValueError for one that it does not know."""
    kind = next((kind for prefix, kind in KINDS.items() if case["operator"].startswith(prefix)), "")
    if not kind:
        raise ValueError(f"operator {case['operator']!r} has no optimizer")
    kernel = _pair(case.get("kernel", case.get("pool_size", (1, 1))))
    padding = case.get("padding", "valid")
    pads = (
        same_padding(kernel) if padding == "same" else (0, 0, 0, 0) if padding == "valid" else tuple(padding)
    )
    stride = _pair(case.get("stride", kernel if kind == "pooling" else (1, 1)))
    outputs = case.get("num_ofmaps", case.get("num_outputs", case.get("context", 0)))
    return Operator(
        kind,
        case["id"],
        tuple(case["input_shape"]),
        kernel,
        outputs,
        stride,
        pads,
        2 if kind == "elementwise" else 1,
    )


def _pair(given: Any) -> tuple[int, int]:
    return (given, given) if isinstance(given, int) else (given[0], given[1])


def unit(hardware: dict[str, Any]) -> Unit:
    return Unit(
        tile_bytes=hardware["scratchpad_bytes"],
        elem_bytes=hardware["element_bytes"],
        align=hardware["alignment_elements"],
        pes=hardware["num_pes"],
        macs=hardware["macs_per_pe"],
        vector=hardware["vector_size"],
        accelerators=hardware.get("num_accelerators", 1),
    )


def smaug_tiling(file: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """Every case in both modes, but those that name one (`mode`)."""
    for case in file["cases"]:
        hardware = file["header"]["hardware"] | case.get("hardware", {})
        modes = [case["mode"]] if "mode" in case else ["faithful", "corrected"]
        try:
            op, u = operator(case), unit(hardware)
            yield case["id"], [f"{mode}: {line}" for mode in modes for line in _case(case, op, u, mode)]
        except (ValueError, KeyError) as fault:
            yield case["id"], [f"cannot be read: {fault!r}"]


def _case(case: dict[str, Any], op: Operator, u: Unit, mode: str) -> Iterator[str]:
    found = tile(op, u, mode == "faithful")
    expected = case["expected"]
    if isinstance(found, Infeasible):
        if not expected.get("infeasible"):
            yield str(found)
        return
    if expected.get("infeasible"):
        yield "expected to be infeasible"
    for name, label in case.get("tiling_dims_derived", {}).items():
        yield from _differ(f"{name} label", label, found.tensors[name].label)
    for name, shape in expected.get("tile_shapes", {}).items():
        yield from _differ(f"{name} tile shape", shape, list(found.tensors[name].tile))
    for name, facts in expected.items():
        if name in found.tensors and (mode, case["id"], name) != NO_WINDOW:
            for line in _facts(facts, found.tensors[name]):
                yield f"{name}: {line}"
    yield from _property(expected.get("property"), found, u, mode == "faithful")


def _property(wanted: str | None, found: Tiling, u: Unit, faithful: bool) -> Iterator[str]:
    if wanted == "same_tiles_for_all_tensors":
        yield from _differ("different tilings", 1, len({t.cuts for t in found.tensors.values()}))
    elif wanted == "tiled_equals_untiled" and wrong(found):
        yield "the tiled result differs from the untiled one"
    elif wanted not in (None, "tiled_equals_untiled"):
        yield f"property {wanted!r} is unknown"
    yield from broken(found, u, faithful)


def _differ(what: str, expected: Any, got: Any) -> Iterator[str]:
    if expected != got:
        yield f"{what}: expected {expected}, got {got}"


def _facts(facts: dict[str, Any], t: Tiled) -> Iterator[str]:
    tiles = list(t.tiles())
    for key, wanted in facts.items():
        if key not in FACTS:
            yield f"{key} is unknown"
        else:
            yield from FACTS[key](wanted, t, tiles)


Tiles = list[tuple[tuple[int, ...], tuple[int, ...]]]


def _shapes(runs: list[dict[str, Any]], _: Tiled, factors: Tiles) -> Iterator[str]:
    for run in runs:
        for i in range(run["first"], run["last"] + 1, run["step"]):
            yield from _differ(
                f"shape of tile {i}", run["shape"], list(factors[i][1]) if i < len(factors) else "none"
            )


def _innermost(wanted: dict[str, int], _: Tiled, factors: Tiles) -> Iterator[str]:
    for i, (origin, _shape) in enumerate(factors):
        yield from _differ(f"innermost origin of tile {i}", i % wanted["period"] * wanted["step"], origin[-1])


def _flat(step: int, _: Tiled, factors: Tiles) -> Iterator[str]:
    for i, (origin, _shape) in enumerate(factors):
        yield from _differ(f"flat origin of tile {i}", i * step, origin[-1])


FACTS: dict[str, Callable[[Any, Tiled, Tiles], Iterator[str]]] = {
    "num_tiles": lambda wanted, _, tiles: _differ("tiles", wanted, len(tiles)),
    "min_num_tiles": lambda wanted, _, tiles: _differ(f"at least {wanted} tiles", True, len(tiles) >= wanted),
    "max_num_tiles": lambda wanted, _, tiles: _differ(f"at most {wanted} tiles", True, len(tiles) <= wanted),
    "tiles_per_dim": lambda wanted, t, _: _differ("tiles per dimension", wanted, list(t.grid())),
    "tile_shapes_by_index": _shapes,
    "innermost_origin": _innermost,
    "flat_origin_step": _flat,
    "row_origins_stated": lambda wanted, t, _: _differ(
        "row origins", wanted, [origin for origin, _ in t.cuts[1]][: len(wanted)]
    ),
    "extent_in_dim": lambda wanted, t, _: _differ(
        "extents", wanted["extents"], list(t.extents(wanted["dim"]))
    ),
    "tiles_in_dim": lambda wanted, t, _: _differ(
        "tiles in dimension", wanted["count"], t.grid()[wanted["dim"]]
    ),
}

"""Runner of the case kind layout: primitives, their inverses, texts, window accesses, loops over another
layout's axes, refusals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from math import prod
from typing import Any

from dse.layout import primitive as prim
from dse.layout.address import address
from dse.layout.text import parse, primitives, show
from tests.cases_read import told

OPS: dict[str, Callable[..., prim.Primitive]] = {
    "split": prim.Split,
    "fuse": prim.Fuse,
    "reorder": prim.Reorder,
    "unfold": prim.Unfold,
    "fold": prim.Fold,
    "pad": prim.Pad,
    "unpad": prim.Unpad,
    "store_at": prim.StoreAt,
    "decouple_at": prim.DecoupleAt,
}


def read_primitive(data: dict[str, Any]) -> prim.Primitive:
    """{"op": "split", "dim": 1, "factors": [3, 2]} and the like."""
    return OPS[data["op"]](
        **{
            key: tuple(value) if isinstance(value, list) else value
            for key, value in data.items()
            if key != "op"
        }
    )


def layout(file: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    kinds = (("cases", _case), ("window_access", _windows), ("loop_remap", _remap), ("errors", _refusal))
    for key, check in kinds:
        for case in file.get(key, []):
            yield str(case.get("id", f"a case of {key} without id")), told(partial(check, case))


def _case(case: dict[str, Any]) -> list[str]:
    shape, prims = tuple(case["input_shape"]), [read_primitive(p) for p in case["primitives"]]
    last = prim.shapes(shape, prims)[-1]
    lines = _differ("output shape", list(last), case["output_shape"])
    lines += _differ(
        "inverse primitives",
        prim.inverse(shape, prims),
        [read_primitive(p) for p in case["inverse_primitives"]],
    )
    for logical, physical in case["forward"]:
        lines += _differ(f"forward {logical}", prim.forward(shape, prims, tuple(logical)), tuple(physical))
    for physical, what in case["inverse"]:
        lines += _differ(f"inverse {physical}", _stands(prim.backward(shape, prims, tuple(physical))), what)
    lines += _differ("stored elements", prod(last), case["stored_elements"])
    hosts = sum(isinstance(prim.backward(shape, prims, at), tuple) for at in product(*map(range, last)))
    lines += _differ("host positions", hosts, case["host_positions"])
    return lines + (_text(case, shape, prims, last) if "text" in case else [])


def _stands(found: prim.Index | prim.Guest | None) -> dict[str, Any]:
    if isinstance(found, prim.Guest):
        return {"kind": "guest", "index": list(found.index), "primitive": found.primitive}
    return {"kind": "host", "index": list(found)} if found is not None else {"kind": "pad"}


def _text(
    case: dict[str, Any], shape: prim.Shape, prims: list[prim.Primitive], last: prim.Shape
) -> list[str]:
    """A text's primitives, and its addresses, are those of the case at every element; its canonical text says
    the same.
    """
    read = parse(case["text"], case["dims"], shape)
    again = parse(show(read), case["dims"], shape)
    own = primitives(case["text"], case["dims"], shape)
    lines = _differ("shape of the text", prim.shapes(shape, own)[-1], last) + _differ(
        "canonical text, read again", again, read
    )
    lines += _differ("room of the text", read.stored_elems(), prod(last))
    for at in product(*map(range, shape)):
        wanted = prim.forward(shape, prims, at)
        assert wanted is not None
        lines += _differ(f"text, forward {at}", prim.forward(shape, own, at), wanted) + _differ(
            f"address {at}", address(read, at), _linear(last, wanted)
        )
        if lines:
            return lines
    return lines


def _linear(shape: prim.Shape, index: prim.Index) -> int:
    at = 0
    for n, i in zip(shape, index, strict=True):
        at = at * n + i
    return at


def _windows(case: dict[str, Any]) -> list[str]:
    tiles = prim.Unfold(0, case["tile_size"], case["stride"])
    own = prim.Windows(case["V"], case["dilation"], case["K"], case["D"], tiles)
    lines = _differ("M", own.span(), case["M"]) + _differ(
        "tiles", prim.shape_after(tiles, (case["D"],))[0], case["tiles"]
    )
    lines += _differ("windows", prim.windows(case["D"], own.span(), case["V"]), case["windows"])
    for p in case["points"]:
        lines += _differ(
            f"window {p['i']}, element {p['r']}", own.access(p["i"], p["r"]), (p["tile"], p["offset"])
        )
    return lines


def _remap(case: dict[str, Any]) -> list[str]:
    shape = tuple(case["shape"])
    of, loops = (primitives(case[key], case["dims"], shape) for key in ("layout_X", "layout_Y"))
    points = [(tuple(at), tuple(wanted)) for at, wanted in case["loops_of_Y_to_index_of_X"]]
    return [
        line
        for at, wanted in points
        for line in _differ(f"loops {at}", remapped(shape, of, loops, at), wanted)
    ]


def _refusal(case: dict[str, Any]) -> list[str]:
    try:
        found: object = prim.shapes(
            tuple(case["input_shape"]), [read_primitive(p) for p in case["primitives"]]
        )
    except prim.LayoutError as why:
        return [] if case["error"] in str(why) else _differ("refusal", str(why), case["error"])
    return _differ("refusal", found, case["error"])


def _differ(what: str, got: object, wanted: object) -> list[str]:
    return [] if got == wanted else [f"{what}: expected {wanted}, got {got}"]


def remapped(
    shape: prim.Shape, of: Sequence[prim.Primitive], loops: Sequence[prim.Primitive], index: prim.Index
) -> prim.Index | None:
    """The access to a tensor with layout `of` in loops that run over another one's physical axes:
    of(loops^-1(index)); None: guarded.
    """
    logical = prim.backward(shape, loops, index)
    return prim.forward(shape, of, logical) if isinstance(logical, tuple) else None

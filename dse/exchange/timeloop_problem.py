"""Timeloop problem -> workload of one einsum.

    problem:
      shape: {dimensions, coefficients, data_spaces: [{name, projection, read_write}]}
      instance: {...}

A projection lists the dimensions of a tensor, each a sum of [rank] or [rank, coefficient].
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any, NamedTuple

from dse.exchange.arithmetic import number
from dse.exchange.notes import Notes, refuse
from hw.component import show

GROUP = 4  # neighbours of which a fixed share is nonzero, where no more are needed (2:4 of NVIDIA's cores)
INPUT_NAMES = ("inputs", "input", "i", "ifmap", "ifmaps", "a")


def _conv() -> dict[str, Any]:
    window = [[["R", "Wdilation"], ["P", "Wstride"]], [["S", "Hdilation"], ["Q", "Hstride"]]]
    spaces = [
        {"name": "Weights", "projection": [[["C"]], [["K"]], [["R"]], [["S"]]]},
        {"name": "Inputs", "projection": [[["N"]], [["C"]], *window]},
        {"name": "Outputs", "projection": [[["N"]], [["K"]], [["Q"]], [["P"]]], "read_write": True},
    ]
    coefficients = [{"name": c, "default": 1} for c in ("Wstride", "Hstride", "Wdilation", "Hdilation")]
    return {"dimensions": [*"RSPQCKN"], "coefficients": coefficients, "data_spaces": spaces}


def _gemm() -> dict[str, Any]:
    spaces = [
        {"name": "A", "projection": [[["M"]], [["K"]]]},
        {"name": "B", "projection": [[["N"]], [["K"]]]},
        {"name": "Z", "projection": [[["M"]], [["N"]]], "read_write": True},
    ]
    return {"dimensions": [*"MNK"], "data_spaces": spaces}


# shapes that Timeloop knows by name (its folder problem-shapes)
SHAPES = {"cnn_layer": _conv, "cnn-layer": _conv, "gemm_abz": _gemm}


def read(file: str, problem: Mapping[str, Any], names: Mapping[str, Any], notes: Notes) -> dict[str, Any]:
    """Returns the workload file of a problem. names: values of names in expressions. Raises Unreadable."""
    shape = problem.get("shape")
    if isinstance(shape, str):
        if shape.lower() not in SHAPES:
            refuse([f"{file}: problem.shape = {shape} is unknown here; write it out"])
        shape = SHAPES[shape.lower()]()
    if not isinstance(shape, dict) or not shape.get("data_spaces"):
        refuse([f"{file}: problem.shape.data_spaces is missing; add it"])
    instance = problem.get("instance") if isinstance(problem.get("instance"), dict) else problem
    assert isinstance(shape, dict)
    assert isinstance(instance, dict)
    known_numbers = {
        **{str(one.get("name")): one.get("default", 1) for one in shape.get("coefficients") or []},
        **names,
        **instance,
    }
    ranks = [str(rank) for rank in shape.get("dimensions") or []]
    extents = {rank: _extent(file, rank, known_numbers) for rank in ranks}
    spaces = {str(one["name"]): one for one in shape["data_spaces"]}
    outputs = [name for name, one in spaces.items() if one.get("read_write")]
    if len(outputs) != 1:
        refuse([f"{file}: problem.shape.data_spaces has {len(outputs)} of read_write: true; mark the output"])
    inputs = _first_input_first([name for name in spaces if name not in outputs], spaces)
    access = {name: _access(file, name, one, known_numbers) for name, one in spaces.items()}
    entry: dict[str, Any] = {
        "text": f"{access[outputs[0]]} += {' * '.join(access[name] for name in inputs)}",
        "name": _einsum_name(shape, file),
    }
    found = dict(_densities(file, instance, spaces, notes))
    for key in ("density", "format"):
        if given := {name: one[key] for name, one in found.items() if key in one}:
            entry[key] = given
    return {"name": entry["name"].lower(), "extents": extents, "einsums": [entry], "weights": inputs[1:]}


def roles(workload: Mapping[str, Any]) -> dict[str, str]:
    """Returns the role of each tensor of a workload that `read` made."""
    output, inputs = workload["einsums"][0]["text"].split(" += ")
    names = [one.partition("[")[0] for one in inputs.split(" * ")]
    return {output.partition("[")[0]: "output", names[0]: "input"} | dict.fromkeys(names[1:], "weight")


class Shape(NamedTuple):
    """What of a workload the rules of a machine depend on."""

    ranks: Mapping[str, frozenset[str]]  # of each tensor
    in_groups: bool  # whether an operand has N values of M neighbours


def shape(workload: Mapping[str, Any] | None) -> Shape:
    """Returns the shape of a workload that `read` made; of None an empty one."""
    if workload is None:
        return Shape({}, False)
    (entry,) = workload["einsums"]
    access = re.findall(r"(\w+)\[([^]]*)\]", entry["text"])
    ranks = {name: frozenset(re.findall(r"[A-Za-z_]\w*", index)) for name, index in access}
    return Shape(ranks, bool(entry.get("format")))


def _einsum_name(shape: Mapping[str, Any], file: str) -> str:
    text = str(shape.get("name", "")) or file.rpartition("/")[2].partition(".")[0]
    found = "".join(c if c.isalnum() else "_" for c in text)
    return found if found[:1].isalpha() else f"layer_{found}"


def _extent(file: str, rank: str, names: Mapping[str, Any]) -> int:
    found = number(names.get(rank), names)
    if not found or found < 1 or found != int(found):
        refuse(
            [f"{file}: problem.instance.{rank} = {show(names.get(rank))} is no extent; write a whole number"]
        )
    return int(found or 1)


def _first_input_first(inputs: list[str], spaces: Mapping[str, Any]) -> list[str]:
    """Returns inputs with the activations first, the place of role input: by name, else by a window."""
    first = next((name for name in inputs if name.lower() in INPUT_NAMES), None)
    windows = [name for name in inputs if any(len(dim) > 1 for dim in spaces[name]["projection"])]
    first = first or (windows or inputs)[0]
    return [first, *(name for name in inputs if name != first)]


def _access(file: str, name: str, space: Mapping[str, Any], names: Mapping[str, Any]) -> str:
    return f"{name}[{','.join(_index(file, name, dim, names) for dim in space.get('projection') or [])}]"


def _index(file: str, name: str, dim: Any, names: Mapping[str, Any]) -> str:
    """Returns an index such as 2*P+R."""
    terms = []
    for term in dim if isinstance(dim, list) else [[dim]]:
        rank, *rest = term if isinstance(term, list) else [term]
        coefficient = number(rest[0], names) if rest else 1.0
        if not coefficient or coefficient != int(coefficient):
            where = f"{file}: problem.shape.data_spaces: {name}"
            refuse([f"{where}: {show(rest[0])} is no coefficient; write a whole number above 0"])
        terms.append(str(rank) if coefficient == 1 else f"{int(coefficient or 1)}*{rank}")
    return "+".join(terms)


def _densities(
    file: str, instance: Mapping[str, Any], spaces: Mapping[str, Any], notes: Notes
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (tensor, its density or format). Of fixed structure each of M neighbours has N values."""
    for name, given in (instance.get("densities") or {}).items():
        share = number(given.get("density") if isinstance(given, dict) else given)
        if name not in spaces or share is None or not 0 < share <= 1:
            notes.lost(file, f"problem.instance.densities.{name}", "is no share; dense here")
            continue
        kind = given.get("distribution", "hypergeometric") if isinstance(given, dict) else "hypergeometric"
        key = f"problem.instance.densities.{name}.distribution"
        exact = Fraction(share).limit_denominator(GROUP)
        if kind == "fixed_structured" and share < 1 and exact == Fraction(share):
            more = 1 if GROUP % exact.denominator else GROUP // exact.denominator
            form = f"{exact.numerator * more}:{exact.denominator * more}"
            notes.assumed(file, key, f"{kind}: {form}, with the place of each value; PEs stay in step")
            yield str(name), {"format": form}
            continue
        if kind != "hypergeometric":
            notes.lost(file, key, f"{kind}: counts are those of nonzeros at random places")
        yield str(name), {"density": share}

"""Conversions of tensors to other layouts, as einsums of the workload: each is a copy, placed right after the
einsum that makes the tensor and read by the einsums that want the new layout.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from workloads.einsum import Dim, Einsum, Projection
from workloads.graph import AGAIN, Workload, base_tensor, counts

COPY_NAME = re.compile(r"convert_(.+)_as_(\d+)$")
RANK_NAMES = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Conversion:
    """A copy of a tensor in another layout."""

    tensor: str
    layout: str  # of the tensor, as text
    to: str  # layout of the copy, as text
    # einsums that read the copy; `.N` names operand N of an einsum with several inputs
    readers: tuple[str, ...]
    energy_pj: float
    latency_cycles: float
    saved: float  # how much more the whole schedule costs without the copy, in units of the objective


def copy_einsum(
    shape: tuple[int, ...], bits: int | None, name: str = "copy", tensor: str = "A", to: str = "B"
) -> Einsum:
    """Returns the einsum that copies a tensor element by element."""
    dims = tuple(Dim(((RANK_NAMES[k], 1),), 0, n) for k, n in enumerate(shape))
    return Einsum(
        name,
        "copy",
        Projection(to, dims, bits),
        (Projection(tensor, dims, bits),),
        tuple((RANK_NAMES[k], n) for k, n in enumerate(shape)),
    )


def reader(e: Einsum, position: int) -> str:
    """Returns an operand as `Conversion.readers` names it: `E`, or `E.N` if E has several inputs."""
    return f"{e.name}.{position}" if len(e.inputs) > 1 else e.name


def copy_of(number: int, tensor: str) -> tuple[str, str]:
    """Returns (name of the einsum that copies, name of the copy). number: 1 for the first conversion."""
    return f"convert_{tensor}_as_{number}", f"{tensor}_as_{number}"


def with_conversions(workload: Workload, conversions: Sequence[Conversion]) -> Workload:
    """Returns the workload with the copies as einsums, each right after the einsum that makes its tensor.
    Einsums that read the tensor in another shape still read the original. Raises ValueError if no einsum
    makes a tensor that is to be copied.
    """
    makers = {e.output.tensor: e for e in workload.einsums}
    if unmade := [conversion.tensor for conversion in conversions if conversion.tensor not in makers]:
        raise ValueError(f"conversion of {unmade[0]}: no einsum of {workload.name} makes this tensor")
    copy_read_by = {
        (name, _shape(makers[conversion.tensor].output)): copy_of(number, conversion.tensor)[1]
        for number, conversion in enumerate(conversions, 1)
        for name in conversion.readers
    }
    copies_after: dict[str, list[Einsum]] = {}
    for number, conversion in enumerate(conversions, 1):
        original, (name, to) = makers[conversion.tensor].output, copy_of(number, conversion.tensor)
        copies_after.setdefault(conversion.tensor, []).append(
            copy_einsum(_shape(original), original.bits, name, conversion.tensor, to)
        )
    new_einsums, repeats = list[Einsum](), list[int]()
    for e, n in zip(workload.einsums, counts(workload), strict=True):
        names = [copy_read_by.get((reader(e, x), _shape(p)), "") for x, p in enumerate(e.inputs)]
        inputs = tuple(
            replace(p, tensor=name + _again(p, makers)) if name else p
            for p, name in zip(e.inputs, names, strict=True)
        )
        emitted = [replace(e, inputs=inputs), *copies_after.get(e.output.tensor, [])]
        new_einsums += emitted
        repeats += [n] * len(emitted)
    return replace(workload, einsums=tuple(new_einsums), repeats=tuple(repeats))


def conversions_of(workload: Workload, nests: Mapping[str, Iterable[str]]) -> tuple[Conversion, ...]:
    """Returns the conversions in the nests of a file: a nest named convert_T_as_1 makes T_as_1, and the
    einsums whose nests store T_as_1 instead of T read it. Layouts of the conversions are left empty, since
    the nests name them; so are costs. Raises ValueError unless the conversions are numbered 1, 2, ...

    nests: by einsum name, the tensors that its nest stores
    """
    made = {e.output.tensor for e in workload.einsums}
    tensor_of = {
        int(match[2]): match[1]
        for name in nests
        if (match := COPY_NAME.match(name))
        and match[1] in made
        and name not in {e.name for e in workload.einsums}
    }
    if sorted(tensor_of) != list(range(1, len(tensor_of) + 1)):
        raise ValueError(
            f"conversions: {', '.join(copy_of(n, t)[0] for n, t in sorted(tensor_of.items()))}: number "
            "them 1, 2, ..."
        )
    state_results = {name: result for result, name in workload.loop_state}
    found = []
    for number, tensor in sorted(tensor_of.items()):
        to = copy_of(number, tensor)[1]
        readers = [
            reader(e, x)
            for e in workload.einsums
            for x, p in enumerate(e.inputs)
            if base_tensor(state_results.get(p.tensor, p.tensor), made) == tensor
            and to + _again(p, made) in nests.get(e.name, ())
        ]
        found.append(Conversion(tensor, "", "", tuple(readers), 0.0, 0.0, 0.0))
    return tuple(found)


def _again(p: Projection, results: Collection[str]) -> str:
    """Returns the suffix of a repeated access (`_again` of T_again); "" for a first access. results: tensors
    that einsums make.
    """
    suffix = AGAIN.search(p.tensor) if p.tensor not in results else None
    return suffix.group() if suffix else ""


def _shape(p: Projection) -> tuple[int, ...]:
    return tuple(d.size for d in p.dims)

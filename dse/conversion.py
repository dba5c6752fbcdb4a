"""Copies of tensors in other layouts, as einsums of their workload: one behind the maker of the tensor, read by those that want its layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from workloads.einsum import Dim, Einsum, Projection
from workloads.graph import AGAIN, Workload, counts

RANK = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Conversion:
    """A copy of a tensor in another layout. readers: einsums, each with `.` and the number of the operand where it reads more than one. saved: what the whole
    costs more without it."""

    tensor: str
    layout: str
    to: str
    readers: tuple[str, ...]
    energy_pj: float
    latency_cycles: float
    saved: float


def copied(shape: tuple[int, ...], bits: int | None, name: str = "copy", tensor: str = "A", to: str = "B") -> Einsum:
    """The copy of a tensor, element by element."""
    dims = tuple(Dim(((RANK[k], 1),), 0, n) for k, n in enumerate(shape))
    return Einsum(name, "copy", Projection(to, dims, bits), (Projection(tensor, dims, bits),), tuple((RANK[k], n) for k, n in enumerate(shape)))


def reader(e: Einsum, position: int) -> str:
    """An operand of an einsum, as conversions name it."""
    return f"{e.name}.{position}" if len(e.inputs) > 1 else e.name


def copy_of(number: int, tensor: str) -> tuple[str, str]:
    """(name of the einsum, of the tensor that it makes) of the conversion of this number."""
    return f"convert_{tensor}_as_{number}", f"{tensor}_as_{number}"


def converted(workload: Workload, conversions: Sequence[Conversion]) -> Workload:
    """The workload with its copies; who sees a tensor in another shape reads on as before. Raises ValueError where no einsum makes the tensor."""
    makers = {e.output.tensor: e for e in workload.einsums}
    if strange := [one.tensor for one in conversions if one.tensor not in makers]:
        raise ValueError(f"conversion of {strange[0]}: no einsum of {workload.name} makes it")
    reads = {(name, _shape(makers[one.tensor].output)): copy_of(number, one.tensor)[1] for number, one in enumerate(conversions) for name in one.readers}
    after: dict[str, list[Einsum]] = {}
    for number, one in enumerate(conversions):
        made, (name, to) = makers[one.tensor].output, copy_of(number, one.tensor)
        after.setdefault(one.tensor, []).append(copied(_shape(made), made.bits, name, one.tensor, to))
    found, repeats = list[Einsum](), list[int]()
    for e, n in zip(workload.einsums, counts(workload), strict=True):
        names = [reads.get((reader(e, x), _shape(p)), "") for x, p in enumerate(e.inputs)]
        again = [AGAIN.search(p.tensor) if p.tensor not in makers else None for p in e.inputs]  # T_again of T: the copy is read twice, too
        inputs = tuple(replace(p, tensor=name + (same.group() if same else "")) if name else p for p, name, same in zip(e.inputs, names, again, strict=True))
        own = [replace(e, inputs=inputs), *after.get(e.output.tensor, [])]
        found += own
        repeats += [n] * len(own)
    return replace(workload, einsums=tuple(found), repeats=tuple(repeats))


def _shape(p: Projection) -> tuple[int, ...]:
    return tuple(d.size for d in p.dims)

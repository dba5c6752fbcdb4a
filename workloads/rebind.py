"""Rebinds the batch of an ONNX file that has a fixed one: which shapes its nodes must get, and which of its
constants have the old batch built in.

A tensor that depends on a batched input has the samples side by side, so with a new batch exactly one of its
dimensions grows, by the ratio of the batches. Shapes follow from the operators. Where they do not grow like
this, a Reshape gets the shape that keeps the batch in place, and any other node gets one constant of which
one dimension (or, if the constant is a shape, one number) is scaled. Files for which no such change fits are
refused; nothing is assumed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

from workloads.einsum import WorkloadError
from workloads.operators import Shape

# operator -> positions of the inputs whose values are shapes (or parts of one), not data
SHAPES = {
    "Expand": (1,),
    "Tile": (1,),
    "Resize": (3,),
    "Slice": (1, 2),
    "Pad": (1,),
    "ConstantOfShape": (0,),
    "Reshape": (1,),
    "Split": (1,),
}
# operator -> positions of the outputs that are one number for a whole tensor
SCALARS = {"DynamicQuantizeLinear": (1, 2)}


@dataclass(frozen=True, slots=True)
class Place:
    """Where the batch is in a tensor: dimension `axis` is a product of three sizes in row-major order,
    `ahead` x batch x rest. If for example a Reshape joined [steps, batch], `ahead` is the number of steps.
    """

    axis: int
    ahead: int = 1


def same_per_sample(where: str, before: int, after: int, batch: Batch) -> None:
    """Raises WorkloadError unless MACs grow by the ratio of the batches: a last check, independent of which
    dimensions were identified as the batch. before, after: MACs at the old and at the new batch.
    """
    if after * batch.old != before * batch.new:
        raise WorkloadError(
            f"{where}: batch = {batch.new}: its products do not grow with the batch: {after} MACs, {before} "
            f"at the batch {batch.old} that the file fixes; export it with batch {batch.new}"
        )


@dataclass(slots=True)
class Batch:
    """The batch of the file and the new one."""

    old: int
    new: int
    # tensor that depends on the batch -> where the batch is
    places: dict[str, Place] = field(default_factory=dict)
    scalars: set[str] = field(default_factory=set)  # tensors with one number for all samples

    def grown(self, before: Shape, after: Shape) -> int | None:
        """Returns the one dimension that grew by the ratio of the batches; None if none did, or another
        dimension changed.
        """
        if len(before) != len(after):
            return None
        moved = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
        if len(moved) != 1 or before[moved[0]] * self.new != after[moved[0]] * self.old:
            return None
        return moved[0]

    def scaled(self, size: int) -> int | None:
        """Returns a size at the new batch, in proportion; None if that is not a whole number."""
        return size * self.new // self.old if size * self.new % self.old == 0 else None

    def inherit(self, output: str, axis: int, before: Shape, sources: Iterator[tuple[str, Shape]]) -> None:
        """Records where the batch is in an output. `ahead` is that of the first source whose batch
        dimension has the same size as the output's; 1 if there is none.
        """
        known = ((self.places.get(source), shape) for source, shape in sources)
        same = (place.ahead for place, shape in known if place and shape[place.axis] == before[axis])
        self.places[output] = Place(axis, next(same, 1))

    def reshaped(self, source: str, output: str, old: Shape, result: Shape) -> Shape | None:
        """Returns the shape that a Reshape must give at the new batch, and records where the batch is in its
        output: behind as many elements as in the source. None if no dimension fits.

        old, result: shapes of source and output at the old batch
        """
        place = self.places[source]
        found = self._place(prod(old[: place.axis]) * place.ahead, place.axis, old, result)
        new = self.scaled(result[found.axis]) if found else None
        if found is None or new is None:
            return None
        self.places[output] = found
        return (*result[: found.axis], new, *result[found.axis + 1 :])

    def _place(self, before: int, axis: int, old: Shape, result: Shape) -> Place | None:
        """Returns where the batch is in the shape `result`: behind `before` elements of its outer dimensions.
        None if no dimension fits. axis, old: the batch's dimension in the source, and the source's shape.

        With a batch of 1 several dimensions may fit. They are taken in this order: a dimension of size 1; if
        the Reshape merged that one into its neighbour (the dimensions behind it are those of the source, or
        a single one), the dimension just before; a dimension that begins behind `before` elements; any other.
        """
        firsts = [prod(result[:i]) for i in range(len(result))]
        holds = [
            i
            for i, first in enumerate(firsts)
            if before % first == 0 and before * self.old <= first * result[i]
        ]
        begin = [i for i in holds if firsts[i] == before]
        ones = sorted((i for i in begin if result[i] == 1), key=lambda i: i != axis)
        gone = [i - 1 for i in begin if i and (result[i:] == old[axis + 1 :] or i == len(result) - 1)]
        for own in (*ones, *gone, *sorted(begin, key=lambda i: i != axis), *holds):
            return Place(own, before // firsts[own])
        return None

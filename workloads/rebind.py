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
SHAPE_INPUTS = {
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
SCALAR_OUTPUTS = {"DynamicQuantizeLinear": (1, 2)}


@dataclass(frozen=True, slots=True)
class BatchPosition:
    """Where the batch is in a tensor: dimension `axis` is a product of three sizes in row-major order,
    `ahead` x batch x rest. If for example a Reshape joined [steps, batch], `ahead` is the number of steps.
    """

    axis: int
    ahead: int = 1


def check_per_sample(where: str, macs_before: int, macs_after: int, batch: Batch) -> None:
    """Raises WorkloadError unless MACs grow by the ratio of the batches: a last check, independent of which
    dimensions were identified as the batch. macs_before, macs_after: MACs at the old and at the new batch.
    """
    if macs_after * batch.old != macs_before * batch.new:
        raise WorkloadError(
            f"{where}: batch = {batch.new}: its products do not grow with the batch: {macs_after} "
            f"MACs, {macs_before} "
            f"at the batch {batch.old} that the file fixes; export it with batch {batch.new}"
        )


@dataclass(slots=True)
class Batch:
    """The batch of the file and the new one."""

    old: int
    new: int
    # tensor that depends on the batch -> where the batch is
    positions: dict[str, BatchPosition] = field(default_factory=dict)
    scalars: set[str] = field(default_factory=set)  # tensors with one number for all samples

    def grown_axis(self, before: Shape, after: Shape) -> int | None:
        """Returns the one dimension that grew by the ratio of the batches; None if none did, or another
        dimension changed.
        """
        if len(before) != len(after):
            return None
        changed = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
        if len(changed) != 1 or before[changed[0]] * self.new != after[changed[0]] * self.old:
            return None
        return changed[0]

    def scaled(self, size: int) -> int | None:
        """Returns a size at the new batch, in proportion; None if that is not a whole number."""
        return size * self.new // self.old if size * self.new % self.old == 0 else None

    def inherit(self, output: str, axis: int, before: Shape, sources: Iterator[tuple[str, Shape]]) -> None:
        """Records where the batch is in an output. `ahead` is that of the first source whose batch
        dimension has the same size as the output's; 1 if there is none.
        """
        source_positions = ((self.positions.get(source), shape) for source, shape in sources)
        same = (
            position.ahead
            for position, shape in source_positions
            if position and shape[position.axis] == before[axis]
        )
        self.positions[output] = BatchPosition(axis, next(same, 1))

    def reshaped(self, source: str, output: str, source_shape: Shape, output_shape: Shape) -> Shape | None:
        """Returns the shape that a Reshape must give at the new batch, and records where the batch is in its
        output: behind as many elements as in the source. None if no dimension fits.

        source_shape, output_shape: shapes of source and output at the old batch
        """
        position = self.positions[source]
        found = self._position(
            prod(source_shape[: position.axis]) * position.ahead, position.axis, source_shape, output_shape
        )
        new = self.scaled(output_shape[found.axis]) if found else None
        if found is None or new is None:
            return None
        self.positions[output] = found
        return (*output_shape[: found.axis], new, *output_shape[found.axis + 1 :])

    def _position(
        self, elems_before: int, axis: int, source_shape: Shape, output_shape: Shape
    ) -> BatchPosition | None:
        """Returns where the batch is in the shape `output_shape`: behind `elems_before` elements of its outer
        dimensions. None if no dimension fits. axis, source_shape: the batch's dimension in the source, and
        the source's shape.

        With a batch of 1 several dimensions may fit. They are taken in this order: one that begins exactly
        behind `elems_before` elements and has size 1; the one before such a beginning, if the Reshape merged
        the batch into it (from there on follow the source's dimensions behind the batch, or a single one);
        any other that begins there; any other that fits.
        """
        outer_sizes = [prod(output_shape[:i]) for i in range(len(output_shape))]
        candidates = [
            i
            for i, outer_size in enumerate(outer_sizes)
            if elems_before % outer_size == 0 and elems_before * self.old <= outer_size * output_shape[i]
        ]
        starting = [i for i in candidates if outer_sizes[i] == elems_before]
        size_one = sorted((i for i in starting if output_shape[i] == 1), key=lambda i: i != axis)
        merged = [
            i - 1
            for i in starting
            if i and (output_shape[i:] == source_shape[axis + 1 :] or i == len(output_shape) - 1)
        ]
        for dim in (*size_one, *merged, *sorted(starting, key=lambda i: i != axis), *candidates):
            return BatchPosition(dim, elems_before // outer_sizes[dim])
        return None

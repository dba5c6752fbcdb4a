"""Another batch for an ONNX file that fixes one: what the shapes of a node must be, and which of its
constants has the old batch built in.

A tensor that depends on a batched input holds the samples one beside the other, so with a new batch exactly
one of its dimensions grows, by the ratio of the batches. Shapes follow from the operators alone; where they
do not grow so, a Reshape is given the shape that keeps the batch where it lies, and any other node one
constant of which one dimension (or, where it is a shape itself, one number) grows. What fits in no way is
refused: nothing is believed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

from workloads.einsum import WorkloadError
from workloads.operators import Shape

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
SCALARS = {"DynamicQuantizeLinear": (1, 2)}  # outputs that a whole tensor has one of


@dataclass(frozen=True, slots=True)
class Place:
    """Where the batch lies: in dimension `axis`, behind `ahead` elements of that dimension (rows of a
    sequence, then its samples).
    """

    axis: int
    ahead: int = 1


def same_per_sample(where: str, before: int, after: int, batch: Batch) -> None:
    """The products of all samples are as many times as many. Raises: the last line of defence, whatever was
    taken for the batch.
    """
    if after * batch.old != before * batch.new:
        raise WorkloadError(
            f"{where}: batch = {batch.new}: its products do not grow with the batch: {after} MACs, {before} "
            f"at the batch {batch.old} that it fixes; export it with batch {batch.new}"
        )


@dataclass(slots=True)
class Batch:
    """The batch as written and the new one; where it lies in each tensor that depends on it; tensors of one
    scale for all samples.
    """

    old: int
    new: int
    places: dict[str, Place] = field(default_factory=dict)
    scalars: set[str] = field(default_factory=set)

    def grown(self, before: Shape, after: Shape) -> int | None:
        """The one dimension that grew by the ratio; None: another one changed, or none."""
        if len(before) != len(after):
            return None
        moved = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
        return (
            moved[0]
            if len(moved) == 1 and before[moved[0]] * self.new == after[moved[0]] * self.old
            else None
        )

    def scaled(self, size: int) -> int | None:
        """A size at the new batch, in proportion; None where it would not be whole."""
        return size * self.new // self.old if size * self.new % self.old == 0 else None

    def inherit(self, output: str, axis: int, before: Shape, sources: Iterator[tuple[str, Shape]]) -> None:
        """A dimension that holds more than the batch goes on as it was."""
        ahead = next(
            (
                p.ahead
                for source, shape in sources
                if (p := self.places.get(source)) and shape[p.axis] == before[axis]
            ),
            1,
        )
        self.places[output] = Place(axis, ahead)

    def reshaped(self, source: str, output: str, old: Shape, result: Shape) -> Shape | None:
        """The new shape of a Reshape, and the place of its batch: as many elements lie before it as in the
        source.
        """
        place = self.places[source]
        found = self._place(prod(old[: place.axis]) * place.ahead, place.axis, old, result)
        new = self.scaled(result[found.axis]) if found else None
        if found is None or new is None:
            return None
        self.places[output] = found
        return (*result[: found.axis], new, *result[found.axis + 1 :])

    def _place(self, before: int, axis: int, old: Shape, result: Shape) -> Place | None:
        """The dimension that holds the batch, `before` elements behind the start. A batch of 1 may lie at the
        border of two: there its own dimension is the one of size 1; where it has none any more (what follows
        is as it was, or is the last dimension alone) the one that ends there; else the one that begins there.
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
        own = next(
            (choice[0] for choice in (ones, gone, sorted(begin, key=lambda i: i != axis), holds) if choice),
            None,
        )
        return None if own is None else Place(own, before // firsts[own])

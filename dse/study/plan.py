"""What a run has still to do: the asks of a generation, and whether a stop criterion holds. Both follow from
the study and the complete generations alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from dse.study.pareto import Objective, Trial, gain

# stop.hypervolume_gain looks back over at least this many points and this many generations
GAIN_POINTS = 64
GAIN_GENERATIONS = 4


@dataclass(frozen=True, slots=True)
class Generation:
    """One generation: its machines, to be solved or pruned. Written to disk before any of them is
    dispatched.
    """

    generation: int
    # (machine, what proposed it: the sampler's method, or a step of it) in the order of dispatch
    asks: tuple[tuple[int, str], ...]
    # (machine, what proposed it, reason) of machines that are never dispatched
    pruned: tuple[tuple[int, str, str], ...]
    seen: tuple[int, ...]  # machines of the trials that the sampler saw
    seed: int
    sampler: tuple[tuple[str, str | int | float | bool | None], ...]  # its name and every argument


@dataclass(slots=True)
class Asked:
    """The machines of the generations so far, pruned ones included."""

    machines: set[int] = field(default_factory=set)
    drawn: int = 0  # how many of them a Sobol sequence proposed

    def add(self, generation: Generation) -> None:
        """Adds the next generation."""
        for part in (generation.asks, generation.pruned):
            self.machines.update(row[0] for row in part)
            self.drawn += sum(row[1] == "qmc" for row in part)


@dataclass(frozen=True, slots=True)
class Stop:
    """The first criterion that holds stops the run; without one it stops when no machine is left."""

    machines: Annotated[int, Field(ge=1)] | None = None  # dispatched machines; pruned ones are not counted
    hours: Annotated[float, Field(gt=0)] | None = None
    # minimum gain of the hypervolume, as a share, over recent generations
    hypervolume_gain: Annotated[float, Field(gt=0, lt=1)] | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """How many faults a run tolerates, and how long a machine may take. None of this is part of the study's
    identity.
    """

    errors: Annotated[int, Field(ge=0)] = 20  # machines with errors after which the run stops
    error_fraction: Annotated[float, Field(ge=0, le=1)] = 0.01  # errors as a fraction of the planned machines
    seconds: Annotated[float, Field(gt=0)] | None = None  # deadline of one machine
    starved_seconds: Annotated[float, Field(gt=0)] = 300.0  # without a live actor, after which the run stops


def from_data(raw: Mapping[str, Any], size: int) -> Generation | None:
    """Returns the `Generation` of a JSON value; None if the value describes none, or names a machine outside
    of a space of `size` machines.
    """
    try:
        generation = TypeAdapter(Generation).validate_python(
            {key: value for key, value in raw.items() if key in Generation.__slots__}
        )
    except ValidationError:
        return None
    machines = [
        *(machine for machine, _ in generation.asks),
        *(machine for machine, _, _ in generation.pruned),
    ]
    return generation if all(0 <= machine < size for machine in machines) else None


def stop_reason(
    stop: Stop, dispatched: int, trials: Sequence[Trial], objectives: Sequence[Objective], hours: float
) -> str | None:
    """Returns why no further generation is asked, or None.

    dispatched: machines dispatched in all generations so far; pruned ones are not counted
    trials: of complete generations only
    hours: run time of all sessions
    """
    if stop.machines is not None and dispatched >= stop.machines:
        return f"stop.machines = {stop.machines} reached"
    if stop.hours is not None and hours >= stop.hours:
        return f"stop.hours = {stop.hours} reached"
    if stop.hypervolume_gain is not None:
        return _stall_reason(stop.hypervolume_gain, trials, objectives)
    return None


def _stall_reason(min_gain: float, trials: Sequence[Trial], objectives: Sequence[Objective]) -> str | None:
    """Returns the stop reason if the newest generations (at least GAIN_GENERATIONS, as many as
    have GAIN_POINTS points) added less than `min_gain` of the hypervolume.
    """
    newest = max((t.generation for t in trials), default=-1)
    points = 0
    for oldest in range(newest, 0, -1):
        points += sum(t.generation == oldest for t in trials)
        if newest - oldest + 1 >= GAIN_GENERATIONS and points >= GAIN_POINTS:
            added_share = gain([t for t in trials if t.generation < oldest], trials, objectives)
            return (
                f"stop.hypervolume_gain: {added_share:.3g} over {points} points, less than {min_gain:g}"
                if added_share < min_gain
                else None
            )
    return None

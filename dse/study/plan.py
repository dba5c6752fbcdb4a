"""What is left to do: asks, what of them a stop wants, and when to stop. Pure functions of the study and
complete generations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from dse.study.pareto import Objective, Trial, gain

GAIN_POINTS = 64  # hypervolume_gain looks back at least so many points ...
GAIN_GENERATIONS = 4  # ... and so many generations


@dataclass(frozen=True, slots=True)
class Asks:
    """One generation, written before dispatch.

    asks: (machine, source) in the order of dispatch; pruned: (machine, source, reason), never dispatched.
    seen: machines of the trials that the sampler saw; sampler: its name and every argument.
    """

    generation: int
    asks: tuple[tuple[int, str], ...]
    pruned: tuple[tuple[int, str, str], ...]
    seen: tuple[int, ...]
    seed: int
    sampler: tuple[tuple[str, str | int | float | bool | None], ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """First of them stops the run; none: when nothing is left. machines: dispatched, pruned ones not
    counted."""

    machines: Annotated[int, Field(ge=1)] | None = None
    hours: Annotated[float, Field(gt=0)] | None = None
    hypervolume_gain: Annotated[float, Field(gt=0, lt=1)] | None = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What a run bears: this many errors or this fraction of its machines; seconds: deadline of one machine.
    No row depends on them.
    """

    errors: Annotated[int, Field(ge=0)] = 20
    error_fraction: Annotated[float, Field(ge=0, le=1)] = 0.01
    seconds: Annotated[float, Field(gt=0)] | None = None


def from_data(raw: Mapping[str, Any], size: int) -> Asks | None:
    """The inverse of asdict, through JSON; None if it holds no asks over a space of so many machines."""
    try:
        asks = TypeAdapter(Asks).validate_python(
            {key: value for key, value in raw.items() if key in Asks.__slots__}
        )
    except ValidationError:
        return None
    machines = [*(machine for machine, _ in asks.asks), *(machine for machine, _, _ in asks.pruned)]
    return asks if all(0 <= machine < size for machine in machines) else None


def stop_reason(
    stop: Stop, asked: int, trials: Sequence[Trial], objectives: Sequence[Objective], hours: float
) -> str | None:
    """Why not to ask a further generation, or None. asked: machines so far; trials: of complete generations
    only; hours: run so far, all sessions.
    """
    if stop.machines is not None and asked >= stop.machines:
        return f"stop.machines = {stop.machines} reached"
    if stop.hours is not None and hours >= stop.hours:
        return f"stop.hours = {stop.hours} reached"
    if stop.hypervolume_gain is not None:
        return _has_stalled(stop.hypervolume_gain, trials, objectives)
    return None


def _has_stalled(least: float, trials: Sequence[Trial], objectives: Sequence[Objective]) -> str | None:
    """The last GAIN_GENERATIONS and GAIN_POINTS added less than `least` of the hypervolume."""
    newest = max((t.generation for t in trials), default=-1)
    recent = 0
    for back in range(newest, 0, -1):
        recent += sum(t.generation == back for t in trials)
        if newest - back + 1 >= GAIN_GENERATIONS and recent >= GAIN_POINTS:
            share = gain([t for t in trials if t.generation < back], trials, objectives)
            return (
                f"stop.hypervolume_gain: {share:.3g} over {recent} points, less than {least:g}"
                if share < least
                else None
            )
    return None

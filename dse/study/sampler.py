"""Chooses the machines to ask next: a pure function of search, grid, generation number, and the asks and
trials of earlier generations.

exhaustive, random and qmc enumerate the space and do not learn; bounds stands in dse/study/best_first.py.
nsga2, nsga3 and tpe are Optuna's. For each generation an in-memory study is rebuilt from a window of trials
(the front and the most recent ones), with a seed for that generation, so that a resumed run asks what an
uninterrupted one would ask.

The steered methods start on a Sobol sequence. A proposal that repeats a machine is moved to a neighbour that
was not asked yet ("near"). If a generation has too few machines, a seeded permutation of the space fills it
("fill").
"""

from __future__ import annotations

import hashlib
import inspect
import warnings
from collections.abc import Callable, Container, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import islice
from math import log1p, prod
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from dse.study.pareto import Objective, Trial, front
from hw.component import closest_name
from workloads.arrays import Ints

if TYPE_CHECKING:
    import optuna

# trials that a sampler sees: the time of one ask grows with them (62 ms at 1,000, 1.6 s at 10,000)
WINDOW = 1000
MAX_SPACE_SIZE = 2**62  # machines in a space at most: indices are int64
SWAP_SHARE = 0.5  # share of the genes that a crossover takes from the second parent
ATTEMPTS = 4  # asks of Optuna per machine wanted, before the permutation fills the generation
DRAWS = 64  # machines drawn per machine wanted at most, pruned ones included
WALK_STEPS = 8  # steps of the walk from a repeated proposal to a neighbour that was not asked yet
# machines of a generation where bounds prune: small at first, because the front of one prunes the next ones
MIN_GENERATION, MAX_GENERATION = 32, 4096
# generations until the size is MAX_GENERATION
GROWTH_STEPS = 1 + (MAX_GENERATION // MIN_GENERATION).bit_length()
PERMUTED = 4096  # machines of a permuted space that are computed at a time
GROWTH_TEXT = f"{MIN_GENERATION} doubling to {MAX_GENERATION}"
BEST_FIRST_TEXT = f"{MIN_GENERATION}, then an eighth of all before, to {MAX_GENERATION}"
LEARNING_METHODS = ("nsga2", "nsga3", "tpe")
WARM_TRIALS = 20  # of which a warm start takes the best tenth
OPTUNA = "optuna:"  # before the name of any of its samplers
Option = str | int | float | bool | None

# machine -> violations of constraints, in the order of Trial.violations
Violations = Callable[[int], tuple[float, ...]]


@dataclass(frozen=True, slots=True)
class Search:
    """The block `search` of a study."""

    method: Literal["exhaustive", "random", "qmc", "bounds", "nsga2", "nsga3", "tpe"] = "exhaustive"
    seed: Annotated[int, Field(ge=0)] = 0
    # machines per generation; 0: 256 for methods that do not learn (with prune: `GROWTH_TEXT`, with
    # solver.sharing_gap: 4096), 16 for nsga2 and nsga3, 4 for tpe
    generation: Annotated[int, Field(ge=0)] = 0
    population: Annotated[int, Field(ge=2)] = 24  # of nsga2 and nsga3
    startup: Annotated[int, Field(ge=2)] = 16  # trials before tpe and samplers of Optuna's by name learn
    # do not solve machines whose lower bounds a known schedule dominates; true of method bounds
    prune: bool = False
    # where machines are pruned: or is worse than by this share at most
    gap: Annotated[float, Field(ge=0, le=10)] = 0.0
    # of method optuna:NAME: arguments of that sampler, which stand as keys beside it
    options: tuple[tuple[str, Option], ...] = ()

    def learns(self) -> bool:
        """True if machines are chosen by the trials of earlier ones."""
        return self.method in LEARNING_METHODS or self.method.startswith(OPTUNA)

    def generation_size(self, number: int) -> int:
        """Returns how many machines a generation has."""
        if self.prune and not self.generation:
            return min(MIN_GENERATION << min(max(number - 1, 0), GROWTH_STEPS), MAX_GENERATION)
        return self.generation or (4 if self.method == "tpe" else 16 if self.learns() else 256)

    def warmup(self) -> int:
        """Returns how many trials a method needs before it learns: the population of nsga2 and nsga3, else
        `startup`.
        """
        return self.population if self.method in ("nsga2", "nsga3") else self.startup


@dataclass(frozen=True, slots=True)
class Grid:
    """The space as samplers see it, the last axis fastest."""

    sizes: tuple[int, ...]  # length of each axis
    ordered: tuple[bool, ...]  # whether neighbours on the axis are similar

    @property
    def size(self) -> int:
        """How many machines the space has."""
        return prod(self.sizes)


@dataclass(frozen=True, slots=True)
class Proposal:
    """One generation, as a sampler proposes it."""

    asks: tuple[tuple[int, str], ...]  # (machine, source), in order
    pruned: tuple[tuple[int, str], ...]  # (machine, source) of machines that break a constraint, in order
    seen: tuple[int, ...]  # machines of the trials in the sampler's window


@dataclass(slots=True)
class Draft:
    """A generation in the making."""

    wanted: int  # machines that it should have
    violations_of: Violations
    asked: Set[int]  # machines of earlier generations, pruned ones included
    proposed: set[int]  # its own machines, pruned ones included
    asks: list[tuple[int, str]]
    pruned: list[tuple[int, str]]

    def add(self, machine: int, source: str) -> tuple[float, ...]:
        """Adds a machine that was not asked yet. Returns its violations if it breaks a constraint, else
        ().
        """
        self.proposed.add(machine)
        violations = self.violations_of(machine)
        is_violating = any(v > 0 for v in violations)
        (self.pruned if is_violating else self.asks).append((machine, source))
        return violations if is_violating else ()

    def __contains__(self, machine: object) -> bool:
        """True if this generation or an earlier one has the machine."""
        return machine in self.proposed or machine in self.asked

    def is_full(self) -> bool:
        """True if enough machines are asked for, or DRAWS times as many were drawn."""
        return len(self.asks) >= self.wanted or len(self.asks) + len(self.pruned) >= DRAWS * self.wanted


def propose(
    search: Search,
    grid: Grid,
    generation: int,
    directions: Sequence[str],
    trials: Sequence[Trial],
    asked: Set[int],
    violations_of: Violations,
    drawn: int = 0,
) -> Proposal | None:
    """Returns the machines of one generation, or None when every machine has been asked.

    directions: "min" or "max" per objective
    trials: of complete generations <= generation - 2, in any order
    asked: every machine of earlier generations, pruned ones included
    violations_of: machine -> violations of the constraints that need no solving, in the order of
        Trial.violations; met if none is > 0
    drawn: machines in `asked` that a Sobol sequence proposed ("qmc"): it goes on behind them
    """
    if is_enumerated(search):
        return listed(search, generation_machines(search, grid.size, generation), violations_of)
    if len(asked) >= grid.size:
        return None
    draft = Draft(
        min(search.generation_size(generation), grid.size - len(asked)), violations_of, asked, set(), [], []
    )
    window_trials: list[Trial] = []
    if search.learns():
        window_trials = window(trials, directions, WINDOW)
    if sum(t.values is not None for t in window_trials) >= search.warmup():
        _steer(search, grid, generation, directions, window_trials, draft)
    else:
        _draw(draft, _sobol(search, grid, len(asked) + draft.wanted, drawn), "qmc")
    _draw(draft, _permutation_draws(search, grid), "fill")
    return Proposal(
        tuple(draft.asks), tuple(draft.pruned), tuple(dict.fromkeys(t.machine for t in window_trials))
    )


def seed_of(search: Search, generation: int) -> int:
    """Returns a 32-bit seed from (search.seed, generation)."""
    return int.from_bytes(hashlib.sha256(f"{search.seed}/{generation}".encode()).digest()[:4], "big")


def arguments(search: Search) -> dict[str, str | int | float | bool | None]:
    """Returns the name and every argument of the sampler, as written with the asks."""
    match search.method:
        case "tpe":
            of_method = {**_tpe_arguments(search), "window": WINDOW}
        case "nsga2" | "nsga3":
            of_method = {**_nsga_arguments(search), "window": WINDOW}
        case method if method.startswith(OPTUNA):
            of_method = {**dict(search.options), "startup": search.startup, "window": WINDOW}
        case _:
            of_method = {"prune": True} if search.prune else {}
    growth = BEST_FIRST_TEXT if search.method == "bounds" else GROWTH_TEXT
    return {
        "method": search.method,
        "seed": search.seed,
        "generation": growth if search.prune and not search.generation else search.generation_size(0),
        **of_method,
        **({"gap": search.gap} if search.gap else {}),
    }


def coordinates(grid: Grid, machine: int) -> list[int]:
    """Returns the index of a machine's value on each axis."""
    out = []
    for size in reversed(grid.sizes):
        machine, position = divmod(machine, size)
        out.append(position)
    return out[::-1]


def machine_at(grid: Grid, positions: Sequence[int]) -> int:
    """Returns the machine at these indices: inverse of `coordinates`."""
    machine = 0
    for size, position in zip(grid.sizes, positions, strict=True):
        machine = machine * size + position
    return machine


def permutation(size: int, seed: int, positions: Ints) -> Ints:
    """Returns the images of `positions` (each < size <= `MAX_SPACE_SIZE`) under a seeded permutation of
    0..size-1.

    A Feistel network on the smallest even number of bits that holds size, applied again until the result is <
    size (at most 4 rounds expected). It needs no memory, and any part of the order can be computed by itself.
    """
    return _permuted(size, seed, positions, _feistel)


def positions_of(size: int, seed: int, machines: Ints) -> Ints:
    """Returns the positions at which `permutation` gives these machines."""
    return _permuted(size, seed, machines, _feistel_back)


def _permuted(
    size: int,
    seed: int,
    numbers: Ints,
    network: Callable[[NDArray[np.uint64], int, Sequence[int]], NDArray[np.uint64]],
) -> Ints:
    """Returns numbers below `size`, put through a network until they are below it again."""
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    keys = [
        int.from_bytes(hashlib.sha256(f"{seed}/{size}/{r}".encode()).digest()[:8], "big") for r in range(6)
    ]
    out = numbers.astype(np.uint64)
    outside = np.ones(len(out), dtype=bool)
    while outside.any():
        out[outside] = network(out[outside], half, keys)
        outside = out >= size
    return out.astype(np.int64)


def window(trials: Sequence[Trial], directions: Sequence[str], limit: int) -> list[Trial]:
    """Returns at most `limit` trials, ordered by generation and machine: the newest of the front (at most
    half of the limit) and the most recent other ones.
    """
    ordered = sorted(trials, key=lambda t: (t.generation, t.machine, t.values or ()))
    if len(ordered) <= limit:
        return ordered
    signs = np.array([-1.0 if d == "max" else 1.0 for d in directions])
    values = (
        np.array(
            [t.values if t.values is not None and t.feasible else [np.nan] * len(signs) for t in ordered]
        )
        * signs
    )
    best = np.flatnonzero(front(values))[-(limit // 2) :].tolist()
    chosen = set(best)
    recent = (i for i in reversed(range(len(ordered))) if i not in chosen)
    return [ordered[i] for i in sorted([*best, *islice(recent, limit - len(best))])]


def for_sharing(search: Search, sharing_gap: float) -> Search:
    """Returns the search of a study whose machines share answers (sharing_gap above 0): unless the study says
    how large, an enumerated search has large generations, for machines of one share most.
    """
    is_free = is_enumerated(search) and not search.generation and not search.prune
    return replace(search, generation=MAX_GENERATION) if sharing_gap and is_free else search


def is_enumerated(search: Search) -> bool:
    """True if the machines of a generation follow from its number alone."""
    return search.method in ("exhaustive", "random")


def generation_range(search: Search, size: int, number: int) -> tuple[int, int]:
    """Returns (first, last + 1) of a generation's machines, as positions in the order of an enumerated
    search.

    >>> [generation_range(Search(prune=True), 1000, g) for g in range(4)]
    [(0, 32), (32, 64), (64, 128), (128, 256)]
    >>> generation_range(Search(generation=7), 10, 1)
    (7, 10)
    """
    first = sum(map(search.generation_size, range(min(number, GROWTH_STEPS)))) + max(
        number - GROWTH_STEPS, 0
    ) * search.generation_size(number)
    return min(first, size), min(first + search.generation_size(number), size)


def generations_of(search: Search, positions: Ints) -> Ints:
    """Returns the generations of an enumerated search in which positions of its order are asked.

    >>> generations_of(Search(prune=True), np.array([0, 31, 32, 300, 20000])).tolist()
    [0, 0, 1, 4, 11]
    """
    sizes = [search.generation_size(number) for number in range(GROWTH_STEPS + 1)]
    starts = np.concatenate([[0], np.cumsum(sizes[:GROWTH_STEPS])])
    grown = GROWTH_STEPS + (positions - starts[-1]) // sizes[GROWTH_STEPS]
    found = np.where(positions < starts[-1], np.searchsorted(starts, positions, "right") - 1, grown)
    return found.astype(np.int64)


def generation_machines(search: Search, size: int, number: int) -> Ints:
    """Returns the machines of a generation of an enumerated search: the space in its own order or
    permuted.

    >>> search = Search(method="random", generation=3000)
    >>> asked = [generation_machines(search, 10_000, number) for number in range(4)]
    >>> bool((np.concatenate(asked) == permutation(10_000, 0, np.arange(10_000))).all())
    True
    """
    first, last = generation_range(search, size, number)
    if search.method != "random" or first == last:
        return np.arange(first, last, dtype=np.int64)
    numbers = range(first // PERMUTED, -(-last // PERMUTED))
    machines = np.concatenate([_permuted_part(size, search.seed, part) for part in numbers])
    return machines[first - numbers[0] * PERMUTED :][: last - first]


@lru_cache(maxsize=4)
def _permuted_part(size: int, seed: int, part: int) -> Ints:
    """Returns PERMUTED machines of a permuted space: a call takes as long for a few."""
    positions = np.arange(part * PERMUTED, min((part + 1) * PERMUTED, size), dtype=np.int64)
    return permutation(size, seed, positions)


def listed(search: Search, machines: Ints, violations_of: Violations) -> Proposal | None:
    """Returns the proposal of these machines; None without any."""
    if not len(machines):
        return None
    draft = Draft(len(machines), violations_of, frozenset(), set(), [], [])
    for machine in machines.tolist():
        draft.add(machine, search.method)
    return Proposal(tuple(draft.asks), tuple(draft.pruned), ())


def _draw(draft: Draft, machines: Iterator[int], source: str) -> None:
    """Fills the draft from a sequence, skipping machines that were proposed before."""
    while not draft.is_full():
        machine = next(machines, None)
        if machine is None:
            return
        if machine not in draft:
            draft.add(machine, source)


def _sobol(search: Search, grid: Grid, distinct_count: int, drawn: int) -> Iterator[int]:
    """Yields distinct machines of a scrambled Sobol sequence over the axes, of its first 4 x `distinct_count`
    points at least, without the first `drawn` machines.
    """
    bits = (4 * distinct_count - 1).bit_length()
    for part in range(max(bits - 2, 0), bits + 1):  # mostly the first part is enough
        machines = _sobol_machines(search.seed, grid.sizes, part)
        while drawn < len(machines):
            block = machines[drawn : drawn + 1024].tolist()
            yield from block
            drawn += len(block)


@lru_cache(maxsize=4)
def _sobol_machines(seed: int, sizes: tuple[int, ...], bits: int) -> Ints:
    """Returns the distinct machines of the first 2^bits points, in the order of their first points.

    Kept from one generation to the next, and made again when it has to be twice as long: the time of a run
    grows with its machines, not with their square.
    """
    from scipy.stats import qmc  # slow to import, and actors never sample

    points = qmc.Sobol(d=len(sizes), scramble=True, rng=seed).random_base2(bits)
    positions = np.minimum((points * sizes).astype(np.int64), np.array(sizes) - 1)
    strides = np.array([prod(sizes[axis + 1 :]) for axis in range(len(sizes))], dtype=np.int64)
    machines = positions @ strides
    distinct: Ints = machines[np.sort(np.unique(machines, return_index=True)[1])]
    return distinct


def _permutation_draws(search: Search, grid: Grid) -> Iterator[int]:
    """Yields all machines of the space in a seeded order."""
    for first in range(0, grid.size, 1024):
        yield from permutation(
            grid.size, search.seed, np.arange(first, min(first + 1024, grid.size), dtype=np.int64)
        ).tolist()


def _feistel(values: NDArray[np.uint64], half: int, keys: Sequence[int]) -> NDArray[np.uint64]:
    """Returns numbers of 2 x `half` bits, permuted by one round per key."""
    mask, shift = np.uint64(2**half - 1), np.uint64(half)
    left, right = values >> shift, values & mask
    for key in keys:
        left, right = right, left ^ (_mixed(right, key) & mask)
    return (left << shift) | right


def _feistel_back(values: NDArray[np.uint64], half: int, keys: Sequence[int]) -> NDArray[np.uint64]:
    """Returns the numbers that `_feistel` takes to these."""
    mask, shift = np.uint64(2**half - 1), np.uint64(half)
    left, right = values >> shift, values & mask
    for key in reversed(keys):
        left, right = right ^ (_mixed(left, key) & mask), left
    return (left << shift) | right


def _mixed(values: NDArray[np.uint64], key: int) -> NDArray[np.uint64]:
    """Returns splitmix64's finaliser of the values, the round function of the network."""
    mixed = (values + np.uint64(key)) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(29))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(32))


def _steer(
    search: Search,
    grid: Grid,
    generation: int,
    directions: Sequence[str],
    window_trials: Sequence[Trial],
    draft: Draft,
) -> None:
    """Adds machines that Optuna proposes, until the draft is full or ATTEMPTS are used up. Machines that
    break a constraint are reported to Optuna at once, with the worst values of the window.
    """
    distributions = _distributions(grid)
    rng = np.random.default_rng(seed_of(search, generation))
    study = _rebuild_study(search, grid, generation, directions, window_trials)
    worst = _worst_values(window_trials, directions)
    for _ in range(ATTEMPTS * draft.wanted):
        if draft.is_full():
            return
        trial = study.ask(distributions)
        positions = [trial.params.get(str(axis), 0) for axis in range(len(grid.sizes))]
        machine, source = machine_at(grid, positions), str(search.method)
        if machine in draft:
            machine, source = _unasked_neighbour(grid, positions, draft, rng), "near"
        violations = draft.add(machine, source) if machine >= 0 else ()
        if violations:
            for constraint_index, violation in enumerate((0.0, *violations)):
                trial.set_constraint(str(constraint_index), _penalty(violation))
            study.tell(trial, worst)


def _unasked_neighbour(
    grid: Grid, positions: Sequence[int], asked: Container[int], rng: np.random.Generator
) -> int:
    """Walks at random from these positions. Returns a machine that was not asked yet and is one step from the
    walk; -1 if there is none within WALK_STEPS.
    """
    current = list(positions)
    for _ in range(WALK_STEPS):
        moves = [
            (axis, position)
            for axis in range(len(grid.sizes))
            for position in _neighbour_positions(grid, axis, current[axis])
        ]
        machines = [
            machine_at(grid, [*current[:axis], position, *current[axis + 1 :]]) for axis, position in moves
        ]
        unasked = [machine for machine in machines if machine not in asked]
        if unasked:
            return unasked[int(rng.integers(len(unasked)))]
        if not moves:
            return -1
        axis, position = moves[int(rng.integers(len(moves)))]
        current[axis] = position
    return -1


def _neighbour_positions(grid: Grid, axis: int, position: int) -> list[int]:
    near = (position - 1, position + 1) if grid.ordered[axis] else range(grid.sizes[axis])
    return [p for p in near if 0 <= p < grid.sizes[axis] and p != position]


def _distributions(grid: Grid) -> dict[str, optuna.distributions.BaseDistribution]:
    """Returns Optuna's distribution of each axis with several values, by the axis's index as text."""
    from optuna.distributions import (
        CategoricalDistribution,
        IntDistribution,
    )  # slow to import, like qmc above

    return {
        str(axis): IntDistribution(0, size - 1) if ordered else CategoricalDistribution(range(size))
        for axis, (size, ordered) in enumerate(zip(grid.sizes, grid.ordered, strict=True))
        if size > 1
    }


def _rebuild_study(
    search: Search, grid: Grid, generation: int, directions: Sequence[str], window_trials: Sequence[Trial]
) -> optuna.Study:
    """Returns an in-memory study with these trials.

    A trial without values gets the worst value of each objective; its violations rank it. All trials count as
    the sampler's generation 0, so that NSGA chooses its parents from the whole window.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study_directions = [
        optuna.study.StudyDirection.MAXIMIZE if d == "max" else optuna.study.StudyDirection.MINIMIZE
        for d in directions
    ]
    distributions = _distributions(grid)
    worst = _worst_values(window_trials, directions)
    attributes = {"NSGAIISampler:generation": 0, "NSGAIIISampler:generation": 0}
    frozen = []
    for t in window_trials:
        positions = coordinates(grid, t.machine)
        frozen.append(
            optuna.trial.create_trial(
                values=worst if t.values is None else t.values,
                params={name: positions[int(name)] for name in distributions},
                distributions=distributions,
                system_attrs=dict(attributes),  # create_trial adds the constraints to it
                constraints={str(i): _penalty(v) for i, v in enumerate(t.violations)},
            )
        )
    sampler = (
        _named_sampler(search, generation, frozen)
        if search.method.startswith(OPTUNA)
        else _sampler(search, generation)
    )
    study = optuna.create_study(sampler=sampler, directions=study_directions)
    study.add_trials(frozen)
    return study


def _named_sampler(search: Search, generation: int, trials: Sequence[Any]) -> optuna.samplers.BaseSampler:
    """Returns a sampler of Optuna's by name. One that keeps its state in its own trials (CMA-ES) gets the
    window as the source of a warm start, unless its start is given: each generation is a study of its own.
    """
    import optuna

    maker = getattr(optuna.samplers, search.method.removeprefix(OPTUNA))
    accepted, given = inspect.signature(maker).parameters, dict(search.options)
    own: dict[str, Any] = {"seed": seed_of(search, generation)} if "seed" in accepted else {}
    if "source_trials" in accepted and not {"x0", "sigma0"} & set(given) and len(trials) >= WARM_TRIALS:
        own["source_trials"] = [_on_ordered_axes(t) for t in trials]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return maker(**own, **given)  # type: ignore[no-any-return]


def _on_ordered_axes(trial: optuna.trial.FrozenTrial) -> optuna.trial.FrozenTrial:
    """Returns a trial without its categorical parameters, which CMA-ES draws by another sampler."""
    import optuna

    kept: dict[str, optuna.distributions.BaseDistribution] = {
        name: axis
        for name, axis in trial.distributions.items()
        if isinstance(axis, optuna.distributions.IntDistribution)
    }
    return optuna.trial.create_trial(
        values=trial.values, params={name: trial.params[name] for name in kept}, distributions=kept
    )


def optuna_fault(search: Search, objectives: Sequence[Objective]) -> str:
    """Returns why a sampler of Optuna's by name cannot serve: no such one, a package is missing, an argument
    is wrong, or it takes one objective only. "": it asked for a machine of a small space, or the method is
    none of these.
    """
    if not search.method.startswith(OPTUNA):
        return ""
    import optuna

    directions = [o.direction for o in objectives]

    name = search.method.removeprefix(OPTUNA)
    names = [n for n in optuna.samplers.__all__ if n.endswith("Sampler") and n != "BaseSampler"]
    if name not in names:
        return f"search.method = {search.method}: Optuna has no sampler {name}; {closest_name(name, names)}"
    grid = Grid((5, 5), (True, True))
    trials = [Trial(m, 0, "ok", (float(m),) * len(directions), (0.0,)) for m in range(WARM_TRIALS)]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _rebuild_study(search, grid, 0, directions, trials).ask(_distributions(grid))
    except ImportError as fault:
        package = fault.name or "a package"
        return f"search.method = {search.method} needs {package}; pip install {package}"
    except Exception as fault:  # whatever a sampler makes of its arguments
        return f"search.method = {search.method}: {' '.join(str(fault).split())[:200]}"
    return ""


def _penalty(violation: float) -> float:
    """Returns the logarithm of a violation. Samplers add violations up: logarithms make ns and mm2
    comparable, and inf finite.
    """
    return log1p(min(violation, 1e300)) if violation > 0 else 0.0


def _worst_values(window_trials: Sequence[Trial], directions: Sequence[str]) -> tuple[float, ...]:
    columns = zip(*(t.values for t in window_trials if t.values is not None), strict=True)
    return tuple(min(c) if d == "max" else max(c) for c, d in zip(columns, directions, strict=True))


def _sampler(search: Search, generation: int) -> optuna.samplers.BaseSampler:
    import optuna
    from optuna.samplers import NSGAIIISampler, NSGAIISampler, TPESampler
    from optuna.samplers.nsgaii import UniformCrossover

    seed = seed_of(search, generation)
    if search.method == "tpe":
        return TPESampler(seed=seed, **_tpe_arguments(search))
    sampler = NSGAIISampler if search.method == "nsga2" else NSGAIIISampler
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # raised by NSGA-III
        return sampler(
            seed=seed, crossover=UniformCrossover(swapping_prob=SWAP_SHARE), **_nsga_arguments(search)
        )


def _tpe_arguments(search: Search) -> dict[str, Any]:
    return {
        "n_startup_trials": search.startup,
        "n_ei_candidates": 24,
        "multivariate": True,
        "group": False,
        "constant_liar": True,
    }


def _nsga_arguments(search: Search) -> dict[str, Any]:
    """Returns the arguments of an NSGA sampler. mutation None: a mutated parameter is drawn anew;
    mutation_prob None: one over the number of parameters.
    """
    shared = {
        "population_size": search.population,
        "mutation": None,
        "mutation_prob": None,
        "crossover_prob": 0.9,
        "swapping_prob": SWAP_SHARE,
    }
    return (
        shared if search.method == "nsga2" else {**shared, "reference_points": None, "dividing_parameter": 3}
    )

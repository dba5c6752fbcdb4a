"""How long a run will take whose machines bounds rule out (search.prune). The pace so far says little there:
the first machines are all solved, of later ones few, as better schedules are known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cluster.pruning import BoundPruner
from dse.study.pareto import Trial
from dse.study.sampler import generation_range
from workloads.arrays import Ints

SAMPLED = 512  # machines that show how many a front leaves to be solved
AVERAGED = 64  # machines that the seconds of one are averaged over: later ones are ruled out half solved
# The best schedules of N machines leave a share of the space to be solved that falls about as N ** -DECAY,
# from MIN_SEEN on (0.59 for SqueezeNet on edge_array from 8 to 2048 machines; less where bounds are loose)
DECAY, MIN_SEEN = 0.5, 8
Front = tuple[Trial, ...]


@dataclass(slots=True)
class PrunedPace:
    """What leases have shown so far."""

    pruner: BoundPruner
    solved_s: float = 0.0  # seconds per machine that bounds leave to be solved, moving average
    solved_count: int = 0  # machines that were averaged
    bounds_s: float = 0.0  # seconds per machine of leases that bounds rule out whole, moving average
    bounds_count: int = 0  # machines that were averaged
    front: Front = ()  # best schedules when the space was last sampled
    share: float = 1.0  # machines of the sample that they leave to be solved
    seen: int = MIN_SEEN  # machines that had rows then
    first: tuple[int, float] | None = None  # `seen` and `share` of the first sample

    def learn(self, machines: pa.RecordBatch, seconds: float) -> None:
        """Takes the rows and seconds of a lease into the averages."""
        ruled_out = pc.sum(pc.equal(machines["reason"], self.pruner.reason())).as_py() or 0
        if solved := machines.num_rows - ruled_out:
            self.solved_count += solved
            machine_s = max(0.0, seconds - ruled_out * self.bounds_s) / solved
            self.solved_s += (machine_s - self.solved_s) * _weight(solved, self.solved_count)
        elif ruled_out:
            self.bounds_count += ruled_out
            self.bounds_s += (seconds / ruled_out - self.bounds_s) * _weight(ruled_out, self.bounds_count)

    def look(self, front: Front, seen: int) -> None:
        """Samples the space if the front of the `seen` machines with rows is a new one."""
        if front != self.front:
            self.front, self.seen = front, max(MIN_SEEN, seen)
            size = self.pruner.study.space.size
            self.share = self._share_left(np.random.default_rng(0).integers(size, size=SAMPLED), front)
            self.first = self.first or (self.seen, self.share)

    def decay(self) -> float:
        """Returns the exponent with which the share falls: DECAY, corrected by the samples."""
        first_seen, first_share = self.first or (self.seen, self.share)
        fallen = math.log(max(first_share, 1 / SAMPLED) / max(self.share, 1 / SAMPLED))
        return (DECAY + fallen) / (1.0 + math.log(self.seen / first_seen))

    def to_solve(
        self,
        queue: Sequence[tuple[int, int]],
        in_flight: int,
        later: int,
        generations: int,
        front_of: Callable[[int], Front | None],
    ) -> float:
        """Returns how many machines bounds will leave to be solved.

        queue: (machine, generation) of those that are asked and wait
        in_flight, later: number of machines that workers have, and that are not asked yet
        generations: number of generations asked
        front_of: generation -> the front that rules out its machines; None: not complete yet
        """
        decay = self.decay()
        search, size = self.pruner.study.search, self.pruner.study.space.size

        def share_of(generation: int) -> float:
            """Returns the share of a generation whose front is not known, from how many machines it is of."""
            count = generation_range(search, size, generation - 1)[0] if generation > 1 else 0
            return min(1.0, self.share * (self.seen / count) ** decay) if count else 1.0

        chosen = [queue[i] for i in np.linspace(0, len(queue) - 1, min(SAMPLED, len(queue))).astype(int)]
        by_generation: Mapping[int, list[int]] = {number: [] for _, number in chosen}
        for machine, number in chosen:
            by_generation[number].append(machine)
        shares = {}
        for number, machines in by_generation.items():
            front = front_of(number)
            known = None if front is None else self._share_left(np.array(machines, np.int64), front)
            shares[number] = share_of(number) if known is None else known
        waiting = sum(len(by_generation[number]) * share for number, share in shares.items())
        found = waiting * len(queue) / max(1, len(chosen))
        found += in_flight * next(iter(shares.values()), self.share)
        number = generations
        while later > 0:
            count = min(later, search.generation_size(number))
            found += count * share_of(number)
            number, later = number + 1, later - count
        return found

    def _share_left(self, machines: Ints, front: Front) -> float:
        return 1.0 - float(self.pruner.rows(machines, front)[0].mean()) if front else 1.0


def _weight(new: int, count: int) -> float:
    """Returns the weight of `new` machines of `count` in a mean, which forgets those before AVERAGED."""
    return min(1.0, new / min(count, AVERAGED))

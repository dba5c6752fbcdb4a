"""ALT's ablations as picks of `solver.layout`, on machines that feel layouts: python -m bench.alt [MACHINE,NETWORK,OBJECTIVE...]

Per network and machine what each pick costs over `alt`, how far alt may lie above any mappings in any layouts, conversions, and CPU seconds of the mappings
(`pairs`) and of the graph. The picks' spaces nest, so alt above any of them, or wp or bf above ol, is an error.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import optuna

from dse.assign.layouts import Assigned, assigned, shared
from dse.dataflow.lined import Pairs, pairs
from dse.dataflow.space import FREE
from dse.nest import Infeasible
from dse.sim.evaluate import Problem
from hw import machine
from workloads import catalog
from workloads.graph import unique

PICKS = ("alt", "ol", "wp", "bf", "ind", "fp", "bp")
CASES = (
    "burst_edge,resnet18,energy", "burst_edge,resnet18,latency", "burst_edge,mobilenet_v2,energy", "cpu_like,resnet18,latency", "gpu_like,resnet18,latency")


@dataclass(slots=True)
class Tpe:
    """Optuna's tree-structured Parzen estimator as a proposer of ALT's two-stage search."""

    study: optuna.Study
    trial: optuna.Trial | None = None

    def ask(self, sizes: Sequence[int]) -> list[float]:
        self.trial = self.study.ask()
        return [self.trial.suggest_float(f"{k}", 1e-3, 1 - 1e-3) for k in range(len(sizes))]

    def tell(self, reward: float) -> None:
        assert self.trial
        self.study.tell(self.trial, reward)


def tpe(seed: int) -> Tpe:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    return Tpe(optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=seed)))


def row(case: str) -> tuple[dict[str, float], Assigned, float, float]:
    """(cost of every pick over alt, alt, CPU seconds of mappings, of the graph)."""
    name, net, objective = case.split(",")
    arch, workload = machine.arch(machine.load(name)), catalog.load(net)
    apart, begun = shared(workload), time.process_time()
    solved: dict[str, Pairs] = {}
    for group in unique(workload):
        found = pairs(Problem(arch, group.einsum, objective), "ragged_lanes", FREE, 0.01, apart[group.key])
        assert not isinstance(found, Infeasible), found
        solved[group.key] = found
    mapped, value, best = time.process_time(), dict[str, float](), None
    for pick in PICKS:
        told = assigned(arch, workload, objective, pick, solved)  # type: ignore[arg-type]
        assert not isinstance(told, Infeasible), told
        value[pick] = told.value
        if pick == "alt":
            best, graph = told, time.process_time() - mapped
    return {pick: one / value["alt"] for pick, one in value.items()}, cast(Assigned, best), mapped - begun, graph


def main(cases: Sequence[str]) -> int:
    print(f"{'machine,network,objective':32} {'gap %':>7} {'copies':>6} " + " ".join(f"{pick:>6}" for pick in PICKS) + "  mappings s  graph s")
    broken = 0
    for case in cases or CASES:
        over, alt, mapped, graph = row(case)
        print(f"{case:32} {100 * (alt.value / alt.floor - 1):7.2f} {len(alt.conversions):6} " + " ".join(f"{over[pick]:6.3f}" for pick in PICKS)
              + f"  {mapped:10.1f} {graph:8.1f}", flush=True)
        broken += sum(one < 1 - 1e-9 for one in over.values()) + (over["wp"] > over["ol"] * (1 + 1e-9)) + (over["bf"] > over["ol"] * (1 + 1e-9))
    print(f"{broken} violations of the order")
    return int(broken > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

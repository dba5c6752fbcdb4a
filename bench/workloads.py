"""CPU seconds to build every network of the catalog, its training step included where it has one: python -m
bench.workloads.
"""

from __future__ import annotations

import time

from workloads import catalog, training
from workloads.solvers import SOLVERS


def main() -> None:
    for name in catalog.NETWORKS:
        if "..." in catalog.parameters(name) or name in SOLVERS:  # solvers train nothing
            continue
        started = time.process_time()
        network = catalog.load(name)
        built = time.process_time() - started
        started = time.process_time()
        step = training.training(catalog.NETWORKS[name](), "adam")
        print(
            f"{name}: {built:.2f} s, {len(network.einsums)} einsums; training step "
            f"{time.process_time() - started:.2f} s, {len(step.einsums)} einsums"
        )


if __name__ == "__main__":
    main()

"""Multi-layer perceptrons."""

from __future__ import annotations

from collections.abc import Sequence

from workloads.graph import Workload
from workloads.layers import Map, Net, dense, network


def _mlp(name: str, units: Sequence[int], batch: int) -> Workload:
    net: Net = []
    x = Map("image", (batch, units[0]))
    for i, width in enumerate(units[1:], 1):
        x = dense(net, f"fc{i}", x, width, "sigmoid" if i < len(units) - 1 else "", bias=False)
    return network(name, net, {"image"})


def mlp_s(batch: int = 1) -> Workload:
    """784-500-250-10, without biases: PRIME (Chi et al. 2016) as nn_dataflow (Gao et al. 2017) has it."""
    return _mlp("mlp_s", (784, 500, 250, 10), batch)


def mlp_m(batch: int = 1) -> Workload:
    """784-1000-500-250-10, without biases: source as `mlp_s`; the MLP of KAPLA."""
    return _mlp("mlp_m", (784, 1000, 500, 250, 10), batch)


def mlp_l(batch: int = 1) -> Workload:
    """784-1500-1000-500-10, without biases: source as `mlp_s`."""
    return _mlp("mlp_l", (784, 1500, 1000, 500, 10), batch)

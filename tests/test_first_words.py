"""Time from a request to a memory to its first word (`latency_ns`)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import dse
from dse.mapper.exact import ragged_program
from dse.mapping.nest import Store
from dse.sim.einsum import bound_kernels, bounds
from dse.sim.einsum.evaluate import EinsumCost, Problem, einsum_cost, lower_bound
from hw import machine, space
from hw.arch import Arch
from hw.columns import Table
from tests import timed
from tests.amount import amount
from tests.nests import random_arch, random_einsum, random_mapping, slow_to_answer
from tests.prove.mappers import with_latency
from tests.unrolled import program
from workloads import catalog


@settings(max_examples=amount(200, 25), deadline=None)
@given(st.integers(0, 2**32))
def test_an_einsum_waits_once_for_each_memory_that_inputs_stand_at(seed: int) -> None:
    """Beside that wait nothing is other than on a machine that answers at once; a walk in time that waits for
    one memory after the other before all else is never faster.
    """
    rng = Random(f"first words/{seed}")
    e, arch = random_einsum(rng, ("gemm", "gemm", "bmm", "conv1d")), random_arch(rng)
    mapping, slow = random_mapping(rng, e, arch), slow_to_answer(arch, rng)
    own, others = (einsum_cost(Problem(one, e, "energy"), mapping) for one in (slow, arch))
    assert isinstance(own, EinsumCost)
    assert isinstance(others, EinsumCost)
    inputs = {p.tensor for p in e.inputs}
    sources = {node.level for node in mapping.nodes if isinstance(node, Store) and node.tensor in inputs}
    wait = sum(level.latency_ns * slow.clock_ghz for level in slow.levels if level.name in sources)
    assert own.latency_cycles == pytest.approx(others.latency_cycles + wait, rel=1e-12)
    assert own.price.initiation_interval_cycles == others.price.initiation_interval_cycles
    assert own.energy_pj == pytest.approx(others.energy_pj + wait * slow.leak_mw() / slow.clock_ghz, rel=1e-9)
    assert lower_bound(Problem(slow, e, "latency")) <= own.latency_cycles * (1 + 1e-12)
    plain = not any(f.systolic for f in arch.fanouts)  # the walk knows no ramps
    if arch.overlap == "buffered" and plain and e.points() <= 400:
        walked = float(timed.walk(program(mapping, e, slow))[0])
        assert own.latency_cycles <= walked * (1 + 1e-9)


@settings(max_examples=amount(100, 8), deadline=None)
@given(st.integers(0, 2**32))
def test_answers_are_those_of_an_enumeration(seed: int) -> None:
    assert [line for one in with_latency(seed) for line in one.wrong] == []


SLOW = """
name: slow
clock_mhz: 500
node_nm: 32
nodes:
- {memory: dram, kind: lpddr4, width_bits: 64, latency_ns: 40}
- {memory: gbuf, capacity: 2 KiB, width_bits: 64, latency_ns: 4}
- {array: pe, dims: {y: 2, x: 4}}
- {memory: reg, kind: register, capacity: 4 B, width_bits: 8}
- {compute: mac, kind: int8}
"""


def test_bounds_of_many_machines_are_those_of_each() -> None:
    spec, lines = machine.parse(yaml.safe_load(SLOW), "slow")
    assert lines == []
    own = space.parse(spec, {"dram.latency_ns": [0, 40], "clock_mhz": [200, 500], "gbuf.latency_ns": [2, 4]})
    built, columns = Table(own).columns(np.arange(8))
    arches = [space.decode(own, i) for i in range(8)]
    assert built.all()
    runs = [(one, 1.0) for one in catalog.load("mlp_s:batch=4").einsums]
    pj, cycles = bound_kernels.sequential(runs, columns)
    alone = [bounds.sequential(runs, arch) for arch in arches if isinstance(arch, Arch)]
    assert list(zip(pj.tolist(), cycles.tolist(), strict=True)) == alone


@pytest.mark.parametrize(
    "option", [{"solver.schedule": "fused"}, {"solver.tiling": "smaug"}, {"solver.schedule": "residency"}]
)
def test_what_does_not_count_the_wait_refuses_it_in_one_line(option: dict, tmp_path: Path) -> None:
    (tmp_path / "slow.yaml").write_text(SLOW)
    says = r"does not count waits for first words \(dram.latency_ns, gbuf.latency_ns\)"
    with pytest.raises(ValueError, match=says) as fault:
        dse.map("mlp_s:batch=4", str(tmp_path / "slow.yaml"), **option)
    assert "\n" not in str(fault.value)


def test_imperfect_factors_in_time_are_searched_elsewhere() -> None:
    arch = machine.arch(machine.load("edge_array"))
    slow = replace(arch, levels=(replace(arch.levels[0], latency_ns=10.0), *arch.levels[1:]))
    (e,) = catalog.load("gemm:m=8,n=8,k=8").einsums
    assert "first words" in ragged_program.unsupported(e, slow)

"""Graph networks: executed layers equal SciPy; counts and traffic of GOGETA's graphs."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse

from tests.numeric import run
from workloads import catalog, gnn
from workloads.einsum import WorkloadError

CASES = json.loads((Path(__file__).parent / "data" / "gogeta_cases.json").read_text())
SMALL = {"nodes": 9, "nnz": 20, "features": 5, "outputs": 3}


def graph(seed: int) -> tuple[scipy.sparse.csr_array, np.ndarray]:
    rng = np.random.default_rng(seed)
    a = scipy.sparse.coo_array(
        (rng.normal(size=20), np.unravel_index(rng.permutation(81)[:20], (9, 9))), shape=(9, 9)
    )
    return scipy.sparse.csr_array(a), rng.normal(size=(9, 5))


@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("order", ["aggregate", "combine"])
def test_gcn(layers: int, order: gnn.Order) -> None:
    w = gnn.gcn(**SMALL, layers=layers, hidden=4, order=order)
    a, x = graph(layers)
    rng = np.random.default_rng(9)
    shapes = {
        p.tensor: tuple(d.size for d in p.dims) for e in w.einsums for p in e.inputs if p.tensor in w.weights
    }
    data = {t: rng.normal(size=s) for t, s in shapes.items()}
    got, expected = run(w.einsums, data | {"A": a.toarray(), "X0": x})[f"Y{layers - 1}"], x
    for i in range(layers):
        expected = a @ expected @ data[f"W{i}"]
        expected = np.maximum(expected, 0) if i < layers - 1 else expected
    assert np.allclose(got, expected)
    widths = [5, *[4] * (layers - 1), 3]
    aggregated = widths[:-1] if order == "aggregate" else widths[1:]
    assert w.macs() == sum(20 * n for n in aggregated) + sum(9 * i * o for i, o in itertools.pairwise(widths))
    assert w.parameters == sum(i * o for i, o in itertools.pairwise(widths))
    assert w.weights == {f"W{i}" for i in range(layers)}


@pytest.mark.parametrize("layers", [1, 2])
def test_graphsage(layers: int) -> None:
    w = gnn.graphsage(**SMALL, layers=layers, hidden=4)
    a, x = graph(layers)
    rng = np.random.default_rng(8)
    shapes = {
        p.tensor: tuple(d.size for d in p.dims) for e in w.einsums for p in e.inputs if p.tensor in w.weights
    }
    data = {t: rng.normal(size=s) for t, s in shapes.items()}
    got, expected = run(w.einsums, data | {"A": a.toarray(), "X0": x})[f"Y{layers - 1}"], x
    for i in range(layers):
        expected = expected @ data[f"V{i}"] + a @ expected @ data[f"W{i}"]
        expected = np.maximum(expected, 0) if i < layers - 1 else expected
    assert np.allclose(got, expected)


@pytest.mark.parametrize(
    ("name", "m", "nnz", "n", "o"), [("cora", 2708, 9464, 1433, 7), ("protein", 3786, 14456, 29, 2)]
)
def test_published_graphs(name: str, m: int, nnz: int, n: int, o: int) -> None:
    w = catalog.load(f"gcn:graph={name},layers=1")
    z, x = w.einsums
    assert z.macs() == nnz * n
    assert x.macs() == m * n * o
    assert w.parameters == n * o
    assert w.name == f"gcn:graph={name},layers=1"
    a = z.inputs[0]
    assert (a.format, round(a.density * a.stored_elems())) == ("csr", nnz)
    assert catalog.load(f"graphsage:graph={name}").macs() == nnz * n + 2 * m * n * o


def test_default_is_kipf_and_wellings_network() -> None:
    w = catalog.load("gcn")
    assert w.macs() == 10556 * 1433 + 2708 * 1433 * 16 + 10556 * 16 + 2708 * 16 * 7
    assert w.parameters == 1433 * 16 + 16 * 7


@pytest.mark.parametrize("case", CASES["gcn"], ids=lambda c: c["dataset"])
def test_traffic_without_any_reuse_is_gogetas(case: dict) -> None:
    w = catalog.load(f"gcn:graph={case['dataset']},layers=1")
    words = sum(
        2 * round(p.density * p.stored_elems()) + p.dims[0].size if p.format == "csr" else p.stored_elems()
        for e in w.einsums
        for p in e.tensors()
    )
    assert words == case["words"]["seq_flex"]


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("gcn:graph=coral", "no graph is named coral; do you mean cora?"),
        ("gcn:graph=web", "no graph is named web; there are cora, protein, cora_full"),
        ("graphsage:nodes=3,nnz=10", "nnz = 10 must not be above nodes * nodes = 9"),
        ("gcn:order=both", "order = both must be aggregate or combine"),
    ],
)
def test_faults_are_one_line(source: str, fault: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        catalog.load(source)
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)

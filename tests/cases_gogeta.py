"""Runner of the case kind gogeta: words of main memory of conjugate gradients and graph convolutions, words
between clusters, arithmetic intensity.

Counted as published: access by access, small results for nothing. Whole words are compared exactly, the
optimum to 1e-9, rounded figures to their digits. `classify_published`: the 36 points of figure 10 all
together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from math import exp, isclose, log
from typing import Any

from dse.solve.gogeta.accesses import AccessList, access_list, one_by_one, pipelined_phases
from dse.solve.gogeta.classify import Edge, classify, dominance, effective_extents
from dse.solve.gogeta.operations import SMALL_WORDS, Graph, graph
from dse.solve.gogeta.operations import accessed_words as words_of
from dse.solve.gogeta.optimum import optimum
from dse.solve.gogeta.residency import policy
from tests.cases_read import told
from workloads import gnn, hpc
from workloads.einsum import Einsum
from workloads.graph import Workload
from workloads.matrix import MATRICES

MIB = 2**18  # words


def gogeta(file: dict[str, Any]) -> Iterator[tuple[str, list[str]]]:
    for group, cases in file.items():
        if group == "published":
            yield group, told(partial(_published, cases))
        elif group not in ("kind", "header"):
            for case in cases:
                yield (
                    _name(group, case),
                    told(partial(GROUPS[group], case)) if group in GROUPS else [f"group {group} is unknown"],
                )


def _name(group: str, case: Mapping[str, Any]) -> str:
    return " ".join(
        [
            group,
            *(
                f"{case[key]}" if key == "dataset" else f"{key}={case[key]}"
                for key in ("dataset", "N", "sram_MiB")
                if key in case
            ),
        ]
    )


def lists(
    workload: Workload, room: int, small: int = SMALL_WORDS
) -> tuple[AccessList, AccessList, AccessList]:
    """Of operations one by one, of GOGETA's pipelines, and of these with tensors that a phase reads twice
    read once.
    """
    g = graph(workload)
    phases = pipelined_phases(g, classify(g), room, small_words=SMALL_WORDS)
    return (
        access_list(g, one_by_one(g), small_words=small),
        access_list(g, phases, small_words=small),
        access_list(g, phases, small_words=small, reads_once=True),
    )


def words(workload: Workload, room: int, small: int = SMALL_WORDS) -> dict[str, float]:
    alone, joined, shared = lists(workload, room, small)
    return {
        "seq_flex": alone.unbuffered_words(),
        "seq_overflow": policy(alone, room, results_evict=False).words(),
        "gogeta": policy(joined, room).words(),
        "ideal": joined.compulsory_words(),
        "lp_bound": optimum(joined, room).cost,
        "lp_bound_shared_PT": optimum(shared, room).cost,
    }


def _cg(case: dict[str, Any]) -> list[str]:
    w = hpc.cg(rows=case["M"], nnz=case["nnz"], n=case["N"], iterations=case.get("iterations", 10))
    room, small = int(case["sram_MiB"] * MIB), max(SMALL_WORDS, case["N"] ** 2)
    found = words(w, room, small)
    moved = policy(lists(w, room, small)[1], room)
    flat = {
        key: value for key, value in case.items() if isinstance(value, float) and key.startswith("ratio_")
    }
    return [
        *_exact("words", case.get("words", {}), found),
        *_exact(
            "words of gogeta",
            case.get("gogeta_breakdown_words", {}),
            {
                "read": moved.read_words,
                "write": moved.write_words,
                "evict": moved.evicted_words,
                "flush": moved.flushed_words,
            },
        ),
        *_rounded(case.get("MB", {}), {key: 4 * n / 1e6 for key, n in found.items()}),
        *_rounded(
            flat,
            {
                "ratio_seq_flex_over_gogeta": found["seq_flex"] / found["gogeta"],
                "ratio_gogeta_over_lp": found["gogeta"] / found["lp_bound"],
            },
        ),
    ]


def _gcn(case: dict[str, Any]) -> list[str]:
    w = gnn.gcn("cora", nodes=case["M"], nnz=case["nnz"], features=case["N"], outputs=case["O"], layers=1)
    return _exact("words", case["words"], words(w, int(case["sram_MiB"] * MIB)))


def _noc(case: dict[str, Any]) -> list[str]:
    """Lines 4 and 5. They do not see how many nonzeros the matrix has."""
    g = graph(hpc.cg(rows=case["M"], nnz=case.get("nnz", case["M"]), n=case["N"], iterations=1))
    lines = [at for at, e in enumerate(g.operations) if e.name in ("0.4", "0.5")]
    found = dict(
        zip(
            ("gogeta_df", "gogeta_map"),
            between_clusters(g, classify(g), lines, case["clusters"]),
            strict=True,
        )
    )
    return [
        *_exact("words", case.get("words", {}), found),
        *_rounded(case.get("KB_1000", {}), {key: 4 * n / 1000 for key, n in found.items()}),
    ]


def _intensity(case: dict[str, Any]) -> list[str]:
    n = case["N"]
    rows, nnz = (
        (case.get("M"), case.get("nnz"))
        if "M" in case
        else (MATRICES[case["dataset"]].rows, MATRICES[case["dataset"]].nnz)
    )
    found = {
        "dense_skewed": intensity(hpc.gemm(rows, n, n)[0]),
        "dense_limit": n / 2,
        "spmm": intensity(hpc.spmm(rows, rows, n, nnz)[0]),
    }
    wanted = {key: value for key, value in case.items() if key in found}
    return [
        f"{key}: expected {value}, got {found[key]}"
        for key, value in wanted.items()
        if not isclose(value, found[key], rel_tol=1e-9)
    ]


def points() -> dict[tuple[str, int, int], dict[str, float]]:
    """Words of the 36 points of figure 10."""
    return {
        (name, n, mib): words(hpc.cg(matrix=name, n=n), mib * MIB)
        for name, n, mib in product(MATRICES, (1, 8, 16), (1, 4, 16))
    }


def _published(figures: dict[str, Any]) -> list[str]:
    found = [point["seq_flex"] / point["gogeta"] for point in points().values()]
    mean = exp(sum(map(log, found)) / len(found))
    return _rounded(
        {
            "geomean": figures["geomean"],
            "least": figures["range_section"][0],
            "most": figures["range_section"][1],
        },
        {"geomean": mean, "least": min(found), "most": max(found)},
    )


GROUPS: dict[str, Callable[[dict[str, Any]], list[str]]] = {
    "cg": _cg,
    "gcn": _gcn,
    "noc": _noc,
    "arithmetic_intensity": _intensity,
}


def _exact(what: str, wanted: Mapping[str, float], found: Mapping[str, float]) -> list[str]:
    return [
        f"{what}: {key} is unknown" if key not in found else f"{what}: {key}: expected {n}, got {found[key]}"
        for key, n in wanted.items()
        if key not in found or not isclose(n, found[key], rel_tol=1e-9 if key.startswith("lp_") else 0.0)
    ]


def _rounded(wanted: Mapping[str, float], found: Mapping[str, float]) -> list[str]:
    """To the digits that are written."""
    return [
        f"{key}: expected {n}, got {found.get(key)}"
        for key, n in wanted.items()
        if key not in found or abs(found[key] - n) > 0.5001 * 10.0 ** -len(str(float(n)).partition(".")[2])
    ]


def between_clusters(
    graph: Graph, edges: Sequence[Edge], operations: Sequence[int], clusters: int
) -> tuple[int, int]:
    """Returns words between clusters while `operations` run as one pipeline, for two arrangements.

    GOGETA-df: each operation runs in its own cluster; each forwarded tensor crosses one link once.
    GOGETA-map: each operation is sliced over all clusters by its dominant rank (else the largest rank). Only
    tensors without that rank cross, over clusters - 1 links each: operands are multicast, results reduced.
    Operands that a compressed operand gathers come through the buffer and do not count.
    """
    size = graph.words()
    handed = sum(size[e.tensor] for e in edges if e.source in operations and e.target in operations)
    shared: dict[str, int] = {}
    for e in (graph.operations[v] for v in operations):
        extents = effective_extents(e)
        rank = dominance(e).rank or max(extents, key=extents.__getitem__)
        gathered = {r for p in e.inputs if p.format == "csr" for r in p.dims[-1].ranks()}
        shared |= {
            p.tensor: size[p.tensor]
            for p in e.tensors()
            if rank not in p.ranks() and not gathered & p.ranks()
        }
    return handed, (clusters - 1) * sum(shared.values())


def intensity(e: Einsum) -> float:
    """Returns the operational intensity of one operation: MACs per word that it must move."""
    return e.macs() / sum(words_of(p, e.sizes()) for p in e.tensors())

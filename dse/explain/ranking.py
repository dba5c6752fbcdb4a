"""GOGETA's configurations as lists of phases and as schedules, and why their ranks differ."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any, Literal

from dse.explain.values import Table
from dse.mapping.nest import Infeasible
from dse.sim.einsum.evaluate import Solution
from dse.solve.gogeta.clusters import between_clusters
from dse.solve.gogeta.gogeta_configs import cause_text, main_cause
from hw.arch import Arch
from workloads.graph import Workload

Configuration = Literal["seq-flex", "seq-overflow", "gogeta", "gogeta-df", "residency"]
SCHEDULES: Mapping[Configuration, str] = {
    "seq-flex": "SEQ-Flex",
    "seq-overflow": "SEQ-Overflow",
    "gogeta": "GOGETA-map",
    "gogeta-df": "GOGETA-df",
    "residency": "Optimal",
}  # solver.schedule -> how the table of lists names it
UNRANKED: Configuration = "gogeta-df"  # has the list of GOGETA-map, and retains nothing beside stages
SAME = 1e-3  # words that differ by less than this share have equal ranks


def ranking_table(
    arch: Arch, workload: Workload, solved: Mapping[Configuration, Solution | Infeasible]
) -> tuple[dict[str, Any], list[Table]]:
    """Returns (facts, [table]): a row per configuration with the bytes of main memory of its list and of its
    schedule, the largest cause of their difference, and what the schedule moves between clusters. solved:
    by key of SCHEDULES.
    """
    memories = {
        name: found.memory
        for name, found in solved.items()
        if not isinstance(found, Infeasible) and found.memory
    }
    listed = {name: m.listed_words for name, m in memories.items() if name != UNRANKED}
    moved = {name: memories[name].moved_words for name in listed}
    swapped = [
        (a, b)
        for a, b in combinations(listed, 2)
        if (listed[a] - listed[b]) * (moved[a] - moved[b]) < 0
        and min(abs(of[a] - of[b]) / max(of[a], of[b]) for of in (listed, moved)) > SAME
    ]
    word_bytes = arch.word_bits / 8
    rows: list[tuple[Any, ...]] = []
    for name, found in solved.items():
        memory = memories.get(name)
        if memory is None or isinstance(found, Infeasible):
            rows.append((SCHEDULES[name], None, None, None, None, None, None, str(found)))
            continue
        cause, schedule = main_cause(memory), found.schedule
        links = between_clusters(arch, workload, schedule) if schedule else None
        rows.append(
            (
                SCHEDULES[name],
                memory.listed_words * word_bytes,
                memory.moved_words * word_bytes,
                memory.moved_words / memory.listed_words - 1,
                _rank(name, listed),
                _rank(name, moved),
                None if links is None else links * word_bytes,
                f"{cause_text(memory, cause, schedule)}: "
                f"{getattr(memory, cause) * word_bytes / 2**20:+.4g} MiB"
                if cause
                else "",
            )
        )
    said = "; ".join(
        f"{SCHEDULES[b if listed[a] < listed[b] else a]} moves less as a schedule than "
        f"{SCHEDULES[a if listed[a] < listed[b] else b]}, and not in its list"
        for a, b in swapped
    )
    header = (
        "configuration",
        "list_bytes",
        "schedule_bytes",
        "above_list",
        "rank",
        "schedule_rank",
        "between_clusters_bytes",
        "largest_cause",
    )
    return {"ranking": said or "lists and schedules rank in the same order"}, [
        Table(
            "main memory, lists and schedules",
            header,
            tuple(rows),
            "List: every operation reads each operand once; schedule: what solver.schedule moves, perfect "
            "factors. Ranks from the fewest bytes; equal ones (within 0.1 %) share a rank. Between clusters: "
            "bytes times links of multicasts, sums and tiles that stages pass on. GOGETA-df retains nothing "
            "beside stages, so it is not ranked.",
        )
    ]


def _rank(name: Configuration, words: Mapping[Configuration, float]) -> int | None:
    if name not in words:
        return None
    return 1 + sum(other < words[name] * (1 - SAME) for other in words.values())

"""Answers listed in tests/data/kapla_reference.json beside structures priced by our evaluator: what
components differ by, and how much of that is counting.

python -m bench.kapla_listed [FOLDER]    FOLDER: where nn_dataflow's environment stands, or is made (default:
a temporary one); minutes

Two sources of structures: our re-implementation of the published solver (`solver.schedule: kapla`), and
nn_dataflow 2.1 from PyPI, an exhaustive search layer by layer. "as there": our counts in the conventions of
the listed answers (Case); "left": over the listed figure, once these are applied.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench import nn_dataflow as peer
from bench.kapla import COMPONENTS, REFERENCE, THEIRS, components
from bench.peers.environment import in_folder
from dse.frontend import tables
from dse.mapping.nest import Loop
from dse.sim.einsum.evaluate import Solution
from dse.solve.kapla.published import published
from hw import machine
from hw.arch import Arch
from workloads import catalog
from workloads.graph import Workload, base_tensor


@dataclass(frozen=True, slots=True)
class Case:
    """padded: components whose words the listed answer pads as it pads its operations (listed MAC over ours).
    crossing: results that go through DRAM there and stay on chip here, words. once: a word on the bus is
    charged once, however many PEs take it; else per PE, as we do.
    """

    batch: int
    listed: str
    arch: str
    padded: tuple[str, ...]
    crossing: int = 0
    once: bool = False


CASES = (
    Case(1, "single_node", "kapla_single", ("REGF", "MAC"), once=True),
    Case(1, "multi_node_4x4", "kapla_multi_4x4", ("GBUF", "ARRAY", "REGF", "MAC")),
    Case(64, "multi_node", "kapla_multi", ("DRAM", "REGF", "MAC", "static"), crossing=2 * 64 * 500),
)
NOTES = """\
GBUF: we charge what arrives and what leaves outwards as well as what is used, the listed answers what is
used only. REGF: they charge 4 accesses per operation, we also what arrives and leaves, and no first reads.
MAC: they count operations padded. All of these are figures of the listed answers themselves: their REGF is
4 times their operations, to the word. DRAM at batch 64: our words, and fc2's results out and in again,
padded like the operations; static energy goes with these words over 25 per cycle. ARRAY, batch 1 on 4x4:
848,000 words on the bus are no weights (a padded operation takes one), 127,304 at GBUF; here 298,716 and
48,066. Those 127,304 in the 6.21 PEs that take a word here: 5.77 uJ, 1.6 % below the listed figure. NODES
and ARRAY at batch 64 are other loops: of fc1 over nodes (next table), and in each node."""


def used(found: Solution, workload: Workload, arch: Arch) -> dict[str, float]:
    """Words as the listed answers count them: at GBUF those that registers take and give; on the bus those,
    once or per PE; 4 accesses of registers per MAC.
    """
    known, made = {e.name: e for e in workload.einsums}, {e.output.tensor for e in workload.einsums}
    words = dict.fromkeys(("GBUF", "ARRAY", "REGF"), 0.0)
    for c in found.einsums:
        e = known[c.name]
        rows = {(row.level, row.tensor, row.action): row.elems for row in c.counts}
        for p in e.tensors():
            reads = rows.get(("GBUF", p.tensor, "read"), 0.0)
            if p is e.output:
                writes = rows.get(("GBUF", p.tensor, "write"), 0.0)
                out, back = (rows.get(("DRAM", p.tensor, action), 0.0) for action in ("write", "read"))
                words["GBUF"] += c.count * (reads + writes - out - back)
            else:
                # read once where it was made, too
                handed = base_tensor(p.tensor, made) in made and ("DRAM", p.tensor, "read") not in rows
                words["GBUF"] += c.count * (reads - (p.stored_elems() if handed else 0))
        words["REGF"] += c.count * 4 * e.macs()
        words["ARRAY"] += (
            c.count * sum(part.actions for part in c.price.parts if part.level == "ARRAY") / arch.word_bits
        )
    return words


def as_there(case: Case, found: Solution, workload: Workload, arch: Arch, pad: float) -> dict[str, float]:
    """uJ of each component."""
    mine, words = dict(zip(COMPONENTS, components(found), strict=True)), used(found, workload, arch)
    (dram, gbuf, regf), bus = arch.levels, arch.word_bits * arch.fanouts[1].endpoint_pj
    moved = sum(row.elems for c in found.einsums for row in c.counts if row.level == "DRAM") + case.crossing
    there = {
        "DRAM": moved * dram.read_pj / 1e6,
        "NODES": mine["NODES"],
        "GBUF": words["GBUF"] * gbuf.read_pj / 1e6,
        "ARRAY": (words["GBUF"] if case.once else words["ARRAY"]) * bus / 1e6,
        "REGF": words["REGF"] * regf.read_pj / 1e6,
        "MAC": mine["MAC"],
        "static": mine["static"] + case.crossing / dram.bandwidth * arch.leak_mw() / arch.clock_ghz / 1e6,
    }
    return {key: n * (pad if key in case.padded else 1) for key, n in there.items()}


def listed(case: Case, source: str = "kapla") -> dict[str, float]:
    data = json.loads(REFERENCE.read_text())
    given = next(
        (one for one in data[source] if (one["hardware"], one["batch"]) == (case.listed, case.batch)), None
    )
    if not given:
        return {}
    joule = (sum(given["breakdown_J"][key] for key in keys) for keys in THEIRS)
    return dict(zip(COMPONENTS, (1e6 * j for j in joule), strict=True))


def rows_of(case: Case, answer: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """(component, listed, kapla here, as there, left, nn_dataflow's own figure, its structures here, listed
    for an exhaustive search).
    """
    arch, workload = machine.load_arch(case.arch), catalog.load(f"mlp_m:batch={case.batch}")
    found = published(arch, workload, "kapla", "energy")
    assert isinstance(found, Solution)
    theirs, other = listed(case), listed(case, "exhaustive")
    mine = dict(zip(COMPONENTS, components(found), strict=True))
    there = as_there(case, found, workload, arch, theirs["MAC"] / mine["MAC"])
    structures = peer.priced(arch, peer.connected(peer.MLP_M, case.batch), answer["layers"])
    own, here = peer.theirs(answer["layers"], arch), peer.ours(structures)
    for key in COMPONENTS:
        left = f"{100 * (there[key] / theirs[key] - 1):+.1f} %" if theirs[key] else ""
        yield (
            key,
            f"{theirs[key]:.4g}",
            f"{mine[key]:.4g}",
            f"{there[key]:.4g}",
            left,
            f"{own[key] / 1e6:.4g}",
            f"{here[key] / 1e6:.4g}",
            f"{other[key]:.4g}" if other else "",
        )
    yield (
        "total",
        f"{sum(theirs.values()):.5g}",
        f"{sum(mine.values()):.5g}",
        "",
        "",
        f"{sum(n for key, n in own.items() if key in COMPONENTS) / 1e6:.5g}",
        f"{sum(n for key, n in here.items() if key in COMPONENTS) / 1e6:.5g}",
        f"{sum(other.values()):.5g}" if other else "",
    )
    yield (
        "cycles",
        "",
        f"{found.initiation_interval_cycles:.0f}",
        "",
        "",
        f"{own['cycles']:.0f}",
        f"{here['cycles']:.0f}",
        "",
    )


def links(case: Case) -> Iterator[tuple[str, ...]]:
    """(einsum, tensor, million words x links by kapla and by kapla-exhaustive, how each cuts the einsum over
    nodes).
    """
    arch, workload = machine.load_arch(case.arch), catalog.load(f"mlp_m:batch={case.batch}")
    nodes, dims = arch.fanouts[0].name, [name for name, _ in arch.fanouts[0].dims]
    found: list[dict[tuple[str, str], float]] = []
    cuts: list[dict[str, str]] = []
    for method in ("kapla", "kapla-exhaustive"):
        answer = published(arch, workload, method, "energy")
        assert isinstance(answer, Solution)
        found.append(
            {
                (c.name, part.tensor): c.count * part.actions / arch.word_bits
                for c in answer.einsums
                for part in c.price.parts
                if part.level == nodes
            }
        )
        branches = (
            [b for segment in answer.schedule.segments for b in segment.branches] if answer.schedule else []
        )
        cuts.append(
            {
                b.einsum: ", ".join(
                    f"{n.rank} tile {n.tile} over {n.over}"
                    for n in b.mapping.nodes
                    if isinstance(n, Loop) and n.over in dims
                )
                for b in branches
            }
        )
    for name, tensor in found[0]:
        millions = (f"{each.get((name, tensor), 0.0) / 1e6:.3f}" for each in found)
        yield (name, tensor, *millions, *(each.get(name, "") for each in cuts))


def main(folder: Path) -> None:
    tables.print_table(
        ("einsum", "tensor", "kapla", "exhaustive", "cut by kapla", "cut by exhaustive search"),
        list(links(CASES[-1])),
        "mlp_m, batch 64, on kapla_multi: million words x links (listed: 15.85 in all)",
    )
    for case in CASES:
        answer = peer.answered(folder, case.arch, peer.MLP_M, case.batch)
        heads = (
            "component",
            "listed",
            "kapla here",
            "as there",
            "left",
            "nn_dataflow",
            "its structures here",
            "listed, exhaustive",
        )
        tables.print_table(
            heads, list(rows_of(case, answer)), f"mlp_m, batch {case.batch}, on {case.arch}: uJ, and cycles"
        )
    print(NOTES)


if __name__ == "__main__":
    in_folder(main)

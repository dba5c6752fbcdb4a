"""Pictures of reuse between operations, drawn from the values of dse/explain/reuse_figures.py."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator
from math import log2

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.plots import FAINT, INK, MARK, SHADES, STYLE, Picture, _figure, _logarithmic
from dse.explain import units
from dse.explain.reuse_figures import OperationGraph, TensorTraffic, TrafficCurves

MAX_ROWS = 24  # tensors in a picture
TITLE_COLUMNS = 70  # of a line above one panel
WIDE_INCHES, HIGH_INCHES = 1.5, 0.9  # from one layer of a graph to the next; from one node of it to the next
MARKERS = ("s", "^", "o", "", "D")
# pattern of an edge -> colour, line
EDGES = {
    "pipelineable": (SHADES[1], "-"),
    "pipeline_with_hold": (SHADES[2], "-"),
    "pipeline_with_writeback": (SHADES[5], "--"),
    "sequential": (SHADES[0], ":"),
}


def traffic_over_capacity(given: TrafficCurves) -> Picture:
    """Draws a curve per configuration of main-memory traffic over capacity on chip."""
    values = [n for curve in given.traffic.values() for n in curve]
    divisor, label = units.axis("bytes", values)
    with mpl.rc_context(STYLE):
        figure, axes = _figure(7.2, 4.6)
        ax = axes[0][0]
        for i, (name, curve) in enumerate(given.traffic.items()):
            ax.plot(
                given.capacities,
                [n / divisor for n in curve],
                color=SHADES[i % len(SHADES)] if name != "Optimal" else MARK,
                linestyle="--" if name == "Ideal" else "-",
                marker=MARKERS[i % len(MARKERS)],
                markersize=4,
                zorder=3 if name == "Ideal" else 2,  # seen where Optimal reaches it
                label=name,
            )
        ax.axvline(given.machine_capacity, color=FAINT, linewidth=1.0, zorder=0, label="the machine")
        ax.set_xscale("log", base=2)
        ticks = given.capacities[::2]
        ax.set_xticks(ticks, [units.quantity("bytes", n) for n in ticks], fontsize=7.5)
        ax.minorticks_off()
        _logarithmic(ax.yaxis, max(values) / max(min(values), 1))
        ax.set_xlabel(f"capacity of {given.level}, in all")
        ax.set_ylabel(label.replace("bytes", "traffic").strip())
        ax.set_title(_lines(given.title))
        ax.legend(loc="best")
    return Picture(figure)


def traffic_per_tensor(given: TensorTraffic) -> Picture:
    """Draws two bars per tensor: what it moves if nothing is retained, and in the optimum."""
    rows = given.rows[:MAX_ROWS]
    divisor, label = units.axis("bytes", [n for _, *both in rows for n in both])
    with mpl.rc_context(STYLE):
        figure, axes = _figure(7.2, 1.6 + 0.34 * len(rows))
        ax = axes[0][0]
        series = (("SEQ-Flex", SHADES[0]), ("Optimal", MARK))
        for k, (name, colour) in enumerate(series):
            at = [i - 0.18 + 0.36 * k for i in range(len(rows))]
            ax.barh(at, [row[1 + k] / divisor for row in rows], height=0.34, color=colour, label=name)
        ax.set_yticks(range(len(rows)), [name for name, *_ in rows])
        ax.set_ylim(len(rows) - 0.4, -0.6)
        ax.set_xlabel(label.replace("bytes", "traffic").strip())
        hidden = len(given.rows) - len(rows)
        ax.set_title(_lines(given.title) + (f"\n{hidden} more tensors move less" if hidden else ""))
        ax.legend(loc="lower right")
    return Picture(figure)


def operation_graph(given: OperationGraph) -> Picture:
    """Draws operations from left to right by the longest path to each, edges in the colour of their pattern;
    edges to the next iteration end below their operation, swizzled ones are thick.
    """
    of_layer: Counter[int] = Counter(node.layer for node in given.nodes)
    seen: Counter[int] = Counter()
    places = []
    for node in given.nodes:
        places.append((float(node.layer), seen[node.layer] - (of_layer[node.layer] - 1) / 2))
        seen[node.layer] += 1
    deepest, widest = max(of_layer), max(of_layer.values())
    inner = [
        (edge, places[edge.source], places[edge.target]) for edge in given.edges if not edge.to_next_period
    ]
    # how far arcs around the nodes between lie below the line from end to end
    sags = [_sag(u - x) for _, (x, _), (u, _) in inner]
    lowest = min(
        [
            -widest / 2 - 0.5,
            *((y + v) / 2 - sag - 0.2 for (_, (_, y), (_, v)), sag in zip(inner, sags, strict=True)),
        ]
    )
    with mpl.rc_context(STYLE):
        figure, axes = _figure(
            3.0 + WIDE_INCHES * (deepest + 1), 1.4 + HIGH_INCHES * (widest / 2 + 0.3 - lowest)
        )
        ax = axes[0][0]
        for (edge, (x, y), (u, v)), sag in zip(inner, sags, strict=True):
            at = ((x + u) / 2, (y + v) / 2 - 0.85 * sag)
            bend = 2 * sag * HIGH_INCHES / (WIDE_INCHES * (u - x))
            _arrow(ax, (x, y), (u, v), edge.pattern, edge.swizzled, bend, edge.tensor, at)
        for number, ((source, tensor, pattern, swizzled), targets) in _to_next_period(given):
            x, y = places[source]
            u, v = x - 0.2 + 0.4 * number, y - 0.6
            names = " ".join(given.nodes[target].name for target in targets)
            _arrow(ax, (x, y), (u, v), pattern, swizzled, 0.0, f"{tensor} to\n{names}", (u, v - 0.12))
        for (x, y), node in zip(places, given.nodes, strict=True):
            text = f"{node.name}\n{node.order}" if node.order else node.name
            box = {"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": INK, "linewidth": 0.8}
            ax.text(x, y, text, fontsize=8, ha="center", va="center", bbox=box)
        ax.set_xlim(-0.6, deepest + 0.8)
        ax.set_ylim(lowest, widest / 2 + 0.3)
        ax.set_axis_off()
        used = {edge.pattern for edge in given.edges}
        handles = [
            Line2D([], [], color=colour, linestyle=line, label=name.replace("_", " "))
            for name, (colour, line) in EDGES.items()
            if name in used
        ]
        ax.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0.02), ncols=4)
        down = "; arrows down: to the next iteration" * (len(inner) < len(given.edges))
        ax.set_title(f"{_lines(given.title)}\nin a box: its loops, outermost first{down}")
    return Picture(figure)


def _lines(title: str) -> str:
    """Returns a title in lines that are no wider than a panel."""
    return textwrap.fill(title, TITLE_COLUMNS, break_on_hyphens=False)


def _sag(layers: float) -> float:
    """Returns how far the middle of an arrow over so many layers lies below the line from end to end, so that
    longer ones pass below shorter ones; 0: it is straight, as no node is between.
    """
    return 0.25 + 0.3 * log2(layers) if layers > 1 else 0.0


NextPeriod = tuple[int, str, str, bool]  # source, tensor, pattern, whether it is swizzled


def _to_next_period(given: OperationGraph) -> Iterator[tuple[int, tuple[NextPeriod, list[int]]]]:
    """Yields (number among those of its source, (edges to the next period that share an arrow, their
    targets)).
    """
    groups: dict[NextPeriod, list[int]] = {}
    for edge in given.edges:
        if edge.to_next_period:
            key = (edge.source, edge.tensor, edge.pattern, edge.swizzled)
            groups.setdefault(key, []).append(edge.target)
    number: Counter[int] = Counter()
    for key, targets in groups.items():
        yield number[key[0]], (key, targets)
        number[key[0]] += 1


Place = tuple[float, float]


def _arrow(
    ax: Axes, start: Place, end: Place, pattern: str, swizzled: bool, bend: float, label: str, at: Place
) -> None:
    """Draws an arrow in the colour of its pattern, with a label at a place."""
    colour, line = EDGES[pattern]
    style = {
        "arrowstyle": "-|>",
        "color": colour,
        "linestyle": line,
        "linewidth": 2.6 if swizzled else 1.2,
        "shrinkA": 16,
        "shrinkB": 16 if bend or end[1] == start[1] or end[0] - start[0] >= 1 else 2,
        "connectionstyle": f"arc3,rad={bend:.3f}",
    }
    ax.annotate("", end, start, arrowprops=style)
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8}
    ax.text(*at, label, fontsize=7, color=colour, ha="center", va="center", bbox=box)

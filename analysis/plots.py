"""Pictures for files and notebooks, drawn from the values of dse/explain/figures.py. They are readable in
greyscale: parts differ in lightness, hatch or marker.
"""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import ceil, prod
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap, ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from dse.explain import units
from dse.explain.figures import (
    Course,
    Dot,
    Effect,
    Line,
    Residency,
    Roofline,
    Slope,
    Stage,
    TensorAddresses,
    effect_ratios,
)

# from dark to light; the last three only where there are many parts
SHADES = ("#16324f", "#2a7f9e", "#8cc0a8", "#e3c567", "#f3ead2", "#b5651d", "#6b4c7a", "#d0d0d0")
HATCHES = ("", "////", "", "....", "xxxx", "\\\\\\\\", "----", "++")
INK, FAINT, MARK = "#1b1b1b", "#b8bec4", "#c2410c"
MANY_POINTS = 5000  # of a front's picture, from which on it shows how many lie at a place
DENSITY = LinearSegmentedColormap.from_list("density", ["#e4e8eb", "#5b6670"])
STYLE = {
    "font.size": 9,
    "axes.titlesize": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e7ea",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "hatch.linewidth": 0.4,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "svg.hashsalt": "dse",
    "text.parse_math": False,
    "savefig.dpi": 160,
}
FORMATS = ("png", "svg", "pdf")
# suffix of the bottleneck's name; name of the part for leakage
BOTTLENECK_SUFFIX, LEAKAGE_PART = " (bottleneck)", "static"
MAX_CURVES = 300  # machines whose schedules a front joins by a line
MAX_BARS = 24  # rows of stacked bars
# of a legend as wide as stacked bars: characters; those of an entry's mark
LEGEND_CHARS, ENTRY_CHARS = 120, 8
STATUSES = ("ok", "infeasible", "pruned", "error")  # of machines, in the order in which they are stacked
MAX_NAMES = 12  # einsums that are named on a roofline
MAX_TENSORS = 40  # rows of a retention picture
LEAST_EFFECT = 1.0005  # ratio of the effects of two values below which a parameter has no effect
EDGE = 0.2  # share of the axes at each side in which a label begins or ends at its dot
FRONT_LOG_RATIO = 3.0  # the same of objectives, whose fronts lie at one end of the axes
LEAST_BAND = 0.008  # share of the width of the axes below which a band is not seen
LOG_RATIO = 8.0  # ratio of the largest to the smallest value above which an axis is logarithmic


@dataclass(frozen=True, slots=True)
class Picture:
    """A Matplotlib figure, shown by notebooks and written by `save`."""

    figure: Figure

    def save(self, path: str | Path) -> None:
        """Writes PNG, SVG or PDF, by the extension. Raises ValueError for other extensions, or where the file
        cannot be written.
        """
        form = Path(path).suffix.lower().removeprefix(".")
        if form not in FORMATS:
            raise ValueError(f"{path}: is no picture that dse writes; end its name with .png, .svg or .pdf")
        try:
            self._write(path, form)
        except OSError as fault:
            raise ValueError(f"{path}: cannot be written ({fault.strerror}); give another name") from None

    def _write(self, out: Any, form: str) -> None:
        with mpl.rc_context(STYLE):
            self.figure.savefig(
                out,
                format=form,
                metadata={"Date": None}
                if form == "svg"
                else {"CreationDate": None}
                if form == "pdf"
                else None,
            )

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        self._write(out, "png")
        return out.getvalue()


def _shade(part: str, components: Sequence[str]) -> int:
    """Returns the index in SHADES and HATCHES of a component, by its position in the machine: the same in
    every picture; the last one for static energy, the one behind the components' for any other part.
    """
    last, names = len(SHADES) - 1, [*components, part]
    return last if part == LEAKAGE_PART else names.index(part) % last


def _figure(
    width: float, height: float, rows: int = 1, columns: int = 1, **subplot_options: Any
) -> tuple[Figure, np.ndarray]:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        return figure, figure.subplots(rows, columns, squeeze=False, **subplot_options)


def _scale(axis: Any, name: str, values: Sequence[float], log_ratio: float = LOG_RATIO) -> float:
    """Sets label and scale of an axis. log_ratio: as LOG_RATIO. Returns the number by which
    its values are to be divided.
    """
    divisor, label = units.axis(name, values)
    scaled = [v / divisor for v in values if np.isfinite(v)]
    axis.set_label_text(label)
    if scaled and min(scaled) > 0 and max(scaled) > log_ratio * min(scaled):
        _logarithmic(axis, max(scaled) / min(scaled))
    else:
        axis.set_major_locator(MaxNLocator(6))
        axis.set_major_formatter(FuncFormatter(lambda v, _: units.number(v)))
    return divisor


def _logarithmic(axis: Any, span: float) -> None:
    axis._set_axes_scale("log")
    axis.set_major_locator(
        LogLocator(
            subs=(1.0, 1.5, 2.0, 3.0, 5.0, 7.0) if span < 10 else (1.0, 2.0, 5.0) if span < 300 else (1.0,),
            numticks=12,
        )
    )
    axis.set_major_formatter(FuncFormatter(lambda v, _: units.number(v)))
    axis.set_minor_formatter(NullFormatter())


def front(
    points: Mapping[str, np.ndarray],
    on_front: np.ndarray,
    objectives: Sequence[tuple[str, bool]],
    machines: np.ndarray,
    title: str,
) -> Picture:
    """Draws feasible points for every pair of objectives, at most three pairs. Schedules of a machine on the
    front are joined by a line.

    machines: number of each point's machine
    on_front: mask of the points on the front of all objectives together
    objectives: (column, whether it is maximised)
    """
    pairs = list(combinations(objectives, 2))[:3]
    with mpl.rc_context(STYLE):
        figure, axes = _figure(4.2 * len(pairs) + 0.3, 4.0, 1, len(pairs))
        for ax, ((x_name, maximise_x), (y_name, maximise_y)) in zip(axes[0], pairs, strict=True):
            x = points[x_name] / _scale(ax.xaxis, x_name, points[x_name].tolist(), FRONT_LOG_RATIO)
            y = points[y_name] / _scale(ax.yaxis, y_name, points[y_name].tolist(), FRONT_LOG_RATIO)
            label = f"feasible points ({len(x)})"
            if len(x) > MANY_POINTS:  # darker where there are more
                scales = {"xscale": ax.get_xscale(), "yscale": ax.get_yscale()}
                ax.hexbin(x, y, gridsize=60, mincnt=1, bins="log", cmap=DENSITY, lw=0.1, **scales)
                for axis, name in ((ax.xaxis, x_name), (ax.yaxis, y_name)):  # hexbin takes its own ticks
                    _scale(axis, name, points[name].tolist(), FRONT_LOG_RATIO)
                ax.scatter([], [], s=9, color=DENSITY(0.6), linewidths=0, label=label)
            else:
                ax.scatter(x, y, s=9, color=FAINT, linewidths=0, label=label)
            lines = [at[np.argsort(x[at], kind="stable")] for at in _schedules(machines, on_front)]
            for at, label in zip(lines, ["schedules of one machine", *[None] * len(lines)], strict=False):
                ax.plot(x[at], y[at], color=SHADES[1], linewidth=0.8, label=label, zorder=2)
            pair_front = _stairs(x * (-1 if maximise_x else 1), y * (-1 if maximise_y else 1))
            front_x, front_y = x[pair_front], y[pair_front]
            ax.step(
                front_x,
                front_y,
                where="post",
                color=MARK,
                linewidth=1.8,
                label="front of these two",
                zorder=3,
            )
            ax.scatter(
                x[on_front],
                y[on_front],
                s=26,
                facecolors="white",
                edgecolors=SHADES[1],
                linewidths=1.1,
                label=f"front of all {len(objectives)} ({int(on_front.sum())})",
                zorder=3,
            )
            ax.scatter(
                front_x, front_y, s=14, color=INK, zorder=4, linewidths=0, label="on the front of these two"
            )
        handles, labels = axes[0][0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3)
        figure.suptitle(title)
    return Picture(figure)


def _schedules(machines: np.ndarray, on_front: np.ndarray) -> list[np.ndarray]:
    """Returns the indices of the points of each machine on the front that has several."""
    found = (np.flatnonzero(machines == one) for one in np.unique(machines[on_front])[:MAX_CURVES])
    return [at for at in found if len(at) > 1]


def _stairs(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Returns indices of the non-dominated points of two minimised objectives, from the left."""
    order = np.lexsort((y, x))
    best = np.minimum.accumulate(y[order])
    return order[np.concatenate(([True], best[1:] < best[:-1]))] if len(order) else order


Bars = Sequence[tuple[str, Mapping[str, float]]]  # label of a row -> size by part


def breakdown(panels: Mapping[str, Bars], row_title: str, title: str) -> Picture:
    """Draws stacked bars: a panel per column (energy_pj, latency_ns), a row per label. row_title: the
    title of the axis of the rows.

    The first panel has all components, in the machine's order, which gives each its shade (`_shade`): one
    legend below explains all panels.
    """
    components = [part for part in next(iter(panels.values()))[0][1] if part != LEAKAGE_PART]
    rows = min(max(len(bars) for bars in panels.values()), MAX_BARS)
    shades: dict[str, Any] = {}  # name of a component, or static -> its bars
    with mpl.rc_context(STYLE):
        figure, axes = _figure(10, 1.9 + 0.32 * rows, 1, len(panels), sharey=True)
        for ax, (name, bars) in zip(axes[0], panels.items(), strict=True):
            shown = bars[:MAX_BARS]
            parts = [
                part
                for part in dict.fromkeys(part for _, sizes in shown for part in sizes)
                if any(sizes.get(part) for _, sizes in shown)
            ]
            parts.sort(key=lambda part: -sum(sizes.get(part, 0.0) for _, sizes in shown))
            divisor, label = units.axis(name, [sum(sizes.values()) for _, sizes in shown])
            left = np.zeros(len(shown))
            for part in parts:
                widths = np.array([sizes.get(part, 0.0) / divisor for _, sizes in shown])
                component = part.removesuffix(BOTTLENECK_SUFFIX)
                i = _shade(component, components)
                shades[component] = ax.barh(
                    range(len(shown)),
                    widths,
                    left=left,
                    height=0.72,
                    color=SHADES[i],
                    hatch=HATCHES[i],
                    edgecolor=INK,
                    linewidth=0.4,
                    label=part,
                )
                left += widths
            # set here, because a last part of width 0 would remove Matplotlib's own margin
            ax.set_xlim(0, 1.04 * max(left, default=0.0) or 1.0)
            ax.set_xlabel(label)
            ax.set_yticks(range(len(shown)), [text for text, _ in shown])
            ax.grid(visible=False, axis="y")
        axes[0][0].set_ylim(rows - 0.4, -0.6)
        axes[0][0].set_ylabel(row_title)
        names = sorted(shades, key=[*components, LEAKAGE_PART, *shades].index)
        columns = max(1, LEGEND_CHARS // (ENTRY_CHARS + max(map(len, names), default=0)))
        figure.legend(
            [shades[name] for name in names],
            names,
            loc="outside lower center",
            ncols=min(columns, len(names) or 1),
        )
        figure.set_figheight(figure.get_figheight() + 0.2 * ceil(len(names) / columns))
        figure.suptitle(title)
    return Picture(figure)


def roofline(given: Roofline, title: str) -> Picture:
    """Draws einsums below the limits of MAC units and outermost level. Areas are shares of the latency; the
    largest are named.
    """
    with mpl.rc_context(STYLE):
        figure, axes = _figure(7.2, 4.6)
        ax = axes[0][0]
        ridge = given.peak / given.gb_s if np.isfinite(given.gb_s) else 1.0
        x = [dot.intensity for dot in given.dots] + [ridge]
        low, high = min(x) / 3, max(x) * 3
        intensities = np.geomspace(low, high, 200)
        ax.plot(intensities, np.minimum(given.peak, intensities * given.gb_s), color=INK, linewidth=1.4)
        _logarithmic(ax.xaxis, high / low)
        rates = [dot.rate for dot in given.dots]
        _logarithmic(ax.yaxis, given.peak / min(rates, default=given.peak) * 2.5)
        ax.annotate(
            f"{given.peak:.4g} GMAC/s ({2e-3 * given.peak:.3g} TOPS): all MAC units",
            (high, given.peak),
            (-4, 5),
            textcoords="offset points",
            ha="right",
            fontsize=8,
        )
        ax.annotate(
            f"{given.level}: {given.gb_s:.4g} GB/s",
            (low * 1.1, low * 1.1 * given.gb_s),
            (8, 0),
            textcoords="offset points",
            fontsize=8,
            va="top",
        )
        bottlenecks = list(dict.fromkeys(dot.bottleneck for dot in given.dots))
        for component in sorted(bottlenecks, key=[*given.components, *bottlenecks].index):
            i = _shade(component, given.components)
            dots = [dot for dot in given.dots if dot.bottleneck == component]
            ax.scatter(
                [dot.intensity for dot in dots],
                [dot.rate for dot in dots],
                s=[_size(dot) for dot in dots],
                alpha=0.85,
                marker="osD^vP*X"[i % 8],
                color=SHADES[i],
                edgecolors=INK,
                linewidths=0.6,
                label=f"bottleneck {component}",
                zorder=3,
            )
        rest = f"\n{given.not_drawn}" if given.not_drawn else ""
        ax.set_xlabel(f"operational intensity (MAC/B of {given.level}){rest}")
        ax.set_ylabel("GMAC/s")
        ax.set_ylim(top=given.peak * 2.5)
        for handle in ax.legend(
            loc="lower right", title="area: share of the latency", title_fontsize=8
        ).legend_handles:
            handle.set_sizes([36])
        ax.set_title(title)
        _label_largest(figure, ax, given)
    return Picture(figure)


def _size(dot: Dot) -> float:
    """Returns the area of an einsum's mark, in square points."""
    return 24 + 500 * dot.share


def _label_largest(figure: Figure, ax: Axes, given: Roofline) -> None:
    """Writes names of the einsums that take longest beside their marks, each where it covers no mark, line or
    other text; without such a place it has none.
    """
    figure.draw_without_rendering()  # places of all that is drawn are settled
    px = figure.dpi / 72  # of a point
    dots = sorted(given.dots, key=lambda dot: -dot.share)
    centers = ax.transData.transform([(dot.intensity, dot.rate) for dot in dots])
    radii = np.array([0.5 * px * _size(dot) ** 0.5 + px for dot in dots])
    line = ax.lines[0].get_transform().transform(ax.lines[0].get_xydata())
    # left, bottom, right, top of what is to be seen, in pixels
    boxes = [np.column_stack([centers - radii[:, None], centers + radii[:, None]]), np.hstack([line, line])]
    boxes += [text.get_window_extent().extents[None] for text in [*ax.texts, ax.get_legend()]]
    taken = np.concatenate(boxes)
    for dot, radius in zip(dots[:MAX_NAMES], radii, strict=False):
        for x, y, side, base in (
            (1, 0, "left", "center"),
            (0, -1, "center", "top"),
            (-1, 0, "right", "center"),
            (0, 1, "center", "bottom"),
            (0.7, -0.7, "left", "top"),
            (-0.7, -0.7, "right", "top"),
            (-0.7, 0.7, "right", "bottom"),
        ):
            offset = (radius / px + 2) * np.array([x, y])
            label = ax.annotate(
                _short(dot.name, 24),
                (dot.intensity, dot.rate),
                tuple(offset),
                textcoords="offset points",
                fontsize=7,
                ha=side,
                va=base,
                zorder=5,
            )
            box = label.get_window_extent().extents
            is_inside = ax.bbox.x0 <= box[0] and box[2] <= ax.bbox.x1 and ax.bbox.y0 <= box[1]
            overlaps = (taken[:, :2] < box[2:]).all(axis=1) & (taken[:, 2:] > box[:2]).all(axis=1)
            if is_inside and not overlaps.any():
                taken = np.vstack([taken, box])
                break
            label.remove()


def sensitivity(panels: Mapping[str, tuple[Sequence[Effect], float, float]], title: str) -> Picture:
    """Draws a panel per objective: by what factor each parameter's values move it, all else equal. Parameters
    with the largest effect come first.

    panels: objective -> (effects, share of the variance that they explain, factor within which an effect may
        be the fit's error, which is shaded)
    """
    row_count = max((len(effect_ratios(effects)) for effects, *_ in panels.values()), default=1)
    with mpl.rc_context(STYLE):
        figure, axes = _figure(4.2 * len(panels), 1.5 + 0.62 * row_count, 1, len(panels))
        for ax, (name, (effects, explained, error_factor)) in zip(axes[0], panels.items(), strict=True):
            names = [parameter for parameter, _ in effect_ratios(effects)]
            ax.axvline(1.0, color=FAINT, linewidth=0.8)
            if error_factor < LOG_RATIO:
                ax.axvspan(1 / error_factor, error_factor, color=FAINT, alpha=0.35, linewidth=0)
            for row, parameter in enumerate(names):
                of_parameter = [one for one in effects if one.parameter == parameter]
                ax.plot(
                    [one.factor for one in of_parameter],
                    [row] * len(of_parameter),
                    color=INK,
                    linewidth=1.0,
                    zorder=2,
                )
                ax.scatter(
                    [one.factor for one in of_parameter],
                    [row] * len(of_parameter),
                    s=20,
                    color=SHADES[1],
                    zorder=3,
                    edgecolors="white",
                    linewidths=0.5,
                )
            if effects and max(map(_factor, effects)) > LOG_RATIO * min(map(_factor, effects)):
                _logarithmic(ax.xaxis, max(map(_factor, effects)) / min(map(_factor, effects)))
            ax.set_yticks(range(len(names)), [units.label(parameter) for parameter in names])
            ax.set_ylim(len(names) - 0.4, -0.6)
            ax.grid(visible=False, axis="y")
            ax.margins(x=0.12)
            ax.autoscale_view()
            for row, parameter in enumerate(names):
                _label_ends(ax, row, [one for one in effects if one.parameter == parameter])
            ax.set_xlabel(f"{units.axis(name, [])[1].split(' (')[0]} / its mean")
            ends = ax.transData.transform([(1 / error_factor, 0), (error_factor, 0)])[:, 0]
            shown = "shaded, " if np.ptp(ends) > LEAST_BAND * ax.bbox.width else "effects "
            error = (
                f"\n{shown}within {100 * (error_factor - 1):.2g} %: perhaps the fit's error"
                if 1.0005 < error_factor < LOG_RATIO
                else ""
            )
            ax.set_title(f"explains {100 * explained:.0f} % of the variance{error}", fontsize=8)
        figure.suptitle(title)
    return Picture(figure)


def _label_ends(ax: Axes, row: int, effects: Sequence[Effect]) -> None:
    """Writes the values of least and greatest effect below and above their dots, within the axes. A parameter
    without an effect has none.
    """
    least, greatest = min(effects, key=_factor), max(effects, key=_factor)
    if greatest.factor <= LEAST_EFFECT * least.factor:
        return
    for effect, offset in ((least, -9), (greatest, 5)):
        at = ax.transAxes.inverted().transform(ax.transData.transform((effect.factor, row)))[0]
        ax.annotate(
            _value(effect.parameter, effect.value),
            (effect.factor, row),
            (0, offset),
            textcoords="offset points",
            ha="left" if at < EDGE else "right" if at > 1 - EDGE else "center",
            fontsize=7,
            va="top" if offset < 0 else "bottom",
        )


def _factor(one: Effect) -> float:
    return one.factor


def _value(parameter: str, value: Any) -> str:
    return (
        units.quantity(parameter, float(value))
        if isinstance(value, int | float) and not isinstance(value, bool)
        else str(value)
    )


def progress(courses: Sequence[Course], title: str) -> Picture:
    """Draws the hypervolume, and the number of machines by status, over each axis of a run."""
    with mpl.rc_context(STYLE):
        figure, axes = _figure(
            7.2 if len(courses) == 1 else 10, 4.6, 2, len(courses), sharex="col", height_ratios=[2, 1]
        )
        for (top, bottom), one in zip(axes.T, courses, strict=True):
            if one.volume:
                top.step(
                    [0, *(x for x, _ in one.volume)],
                    [0, *(100 * share for _, share in one.volume)],
                    where="post",
                    color=INK,
                    linewidth=1.4,
                )
            top.set_ylim(0, 104)
            stacked = np.zeros(len(one.done) + 1)
            for i, status in enumerate(STATUSES):
                if any(counts := one.states.get(status, ())):
                    above = stacked + np.array([0, *counts])
                    bottom.fill_between(
                        [0, *one.done],
                        stacked,
                        above,
                        color=SHADES[(2, 0, 3, 5)[i]],
                        hatch=("", "////", "....", "xxxx")[i],
                        edgecolor=INK,
                        linewidth=0.3,
                        label=f"{status} ({counts[-1]})",
                    )
                    stacked = above
            bottom.set_xlabel(one.axis)
            bottom.set_xlim(left=0)
            bottom.xaxis.set_major_locator(MaxNLocator(6, integer=one.axis == courses[0].axis))
        axes[0][0].set_ylabel("hypervolume\n(% of the last)")
        axes[1][0].set_ylabel("machines")
        axes[1][0].legend(loc="upper left")
        figure.suptitle(title)
    return Picture(figure)


def nest(lines: Sequence[Line], components: Sequence[str], title: str, subtitle: str) -> Picture:
    """Draws the loop nest. Beside each storage node are the bytes that one instance stores and those that all
    instances move per occurrence. components: of the machine, in order.
    """
    with mpl.rc_context(STYLE):
        figure, axes = _figure(10.5, 1.5 + 0.23 * len(lines), 1, 3, sharey=True, width_ratios=[1.7, 1, 1])
        text, held_ax, moved_ax = axes[0]
        node_rows = [i for i, line in enumerate(lines) if line.level]
        for i, line in enumerate(lines):
            if line.level:
                text.axhspan(
                    i - 0.5, i + 0.5, color=SHADES[_shade(line.level, components)], alpha=0.16, linewidth=0
                )
            text.text(
                0.01,
                i,
                "  " * line.depth + line.text,
                family="monospace",
                fontsize=8,
                va="center",
                transform=text.get_yaxis_transform(),
            )
        for ax, values, label in (
            (held_ax, [lines[i].held_bytes for i in node_rows], "held by one instance"),
            (moved_ax, [lines[i].moved_bytes for i in node_rows], "read and written, all instances"),
        ):
            ax.barh(
                node_rows,
                values,
                height=0.72,
                color=[SHADES[_shade(lines[i].level, components)] for i in node_rows],
                edgecolor=INK,
                linewidth=0.4,
            )
            ax.set_xscale("log")
            ax.xaxis.set_major_locator(LogLocator(base=32, numticks=8))
            ax.xaxis.set_major_formatter(FuncFormatter(lambda v, _: units.quantity("bytes", v)))
            ax.xaxis.set_minor_locator(NullLocator())
            ax.set_title(label, fontsize=8)
            ax.set_xlim(min([v for v in values if v], default=1) / 2, max(values) * 12)
            ax.tick_params(labelsize=7)
            for i, value in zip(node_rows, values, strict=True):
                share = lines[i].share if ax is held_ax else None
                annotation = (
                    f"{units.quantity('bytes', value)}{f', {_percent(share)}' if share is not None else ''}"
                    if value
                    else "(in the tensor's first node at this level)"
                )
                ax.annotate(
                    annotation,
                    (max(value, ax.get_xlim()[0]), i),
                    (3, 0),
                    textcoords="offset points",
                    va="center",
                    fontsize=7,
                )
        text.set_ylim(len(lines) - 0.5, -0.5)
        text.axis("off")
        for ax in (held_ax, moved_ax):
            ax.grid(visible=False, axis="y")
            ax.tick_params(axis="y", left=False, labelleft=False)
        figure.suptitle("\n".join([title, *textwrap.wrap(subtitle, 130)]))
    return Picture(figure)


MAX_CELLS = 32  # PEs per side that are drawn; of a larger array a cell stands for several


def mapping(stages: Sequence[Stage], components: Sequence[str], title: str, subtitle: str) -> Picture:
    """Draws a mapping from main memory to the MAC units: levels with their tiles, loops between them, arrays
    with the PEs that work. components: of the machine, in order.
    """
    heights = [2.0 if one.dims else 0.5 if one.loops else 0.5 + 0.36 * len(one.tiles) for one in stages]
    with mpl.rc_context(STYLE):
        figure, axes = _figure(7.2, 1.4 + 0.62 * (sum(heights) + 0.35 * len(heights)))
        ax, top = axes[0][0], 0.0
        for one, height in zip(stages, heights, strict=True):
            if one.tiles:
                shade = SHADES[_shade(one.name, components)]
                ax.add_patch(Rectangle((0, top), 10, height, facecolor=shade, alpha=0.2))
                ax.add_patch(Rectangle((0, top), 10, height, fill=False, edgecolor=INK, linewidth=0.8))
                ax.text(0.2, top + 0.27, one.name, weight="bold", va="center")
                for k, tile in enumerate(one.tiles):
                    held, moved = (units.quantity("bytes", v) for v in (tile.held_bytes, tile.moved_bytes))
                    ranks = " ".join(f"{rank}={n}" for rank, n in tile.ranks)
                    buffers = " (two buffers)" * (tile.buffers == 2)
                    name = f"{tile.tensor} {ranks}".strip()
                    text = f"{name}: {held} in one instance{buffers}, {moved} read and written in all"
                    ax.text(1.9, top + 0.4 + 0.36 * k, text, fontsize=8, va="center")
            elif one.loops:
                loops = ",  ".join(f"{trips} x {rank}" for rank, trips in one.loops)
                ax.text(5, top + height / 2, f"for  {loops}", family="monospace", ha="center", va="center")
            else:
                _array(ax, one, top, height)
            ax.annotate(
                "",
                (5, top + height + 0.35),
                (5, top + height),
                arrowprops={"arrowstyle": "-|>", "color": INK, "linewidth": 0.8},
            )
            top += height + 0.35
        ax.text(5, top + 0.15, "MAC", weight="bold", ha="center", va="center")
        ax.set_xlim(-0.1, 10.1)
        ax.set_ylim(top + 0.4, -0.1)
        ax.axis("off")
        figure.suptitle("\n".join([title, *textwrap.wrap(subtitle, 80)]))
    return Picture(figure)


def _array(ax: Axes, one: Stage, top: float, height: float) -> None:
    """Draws the PEs of an array: dark ones work. The dimension X runs across, in arrays without one the last;
    the others run down.
    """
    last = next((dim for dim in one.dims if dim[0] == "X"), one.dims[-1])
    rest, (name, across, width) = [dim for dim in one.dims if dim is not last], last
    used, rows = prod(n for _, n, _ in rest), prod(n for _, _, n in rest)
    columns, lines = min(width, MAX_CELLS), min(rows, MAX_CELLS)
    x = (np.arange(columns) * width // columns) < across
    y = (np.arange(lines) * rows // lines) < used
    cell = min(1.8 / lines, 3.6 / columns)
    left = 5 - cell * columns / 2
    for i in range(lines):
        for k in range(columns):
            ax.add_patch(
                Rectangle(
                    (left + k * cell, top + 0.1 + i * cell),
                    0.86 * cell,
                    0.86 * cell,
                    facecolor=SHADES[1] if x[k] and y[i] else "white",
                    edgecolor=FAINT,
                    linewidth=0.4,
                )
            )
    ax.text(left + cell * columns + 0.06, top + 0.1, f"{name} \u2192", fontsize=7, va="center")
    if rest:
        down = f"{' x '.join(dim for dim, _, _ in rest)} \u2193"
        ax.text(left - 0.1, top + 0.1 + cell * lines / 2, down, fontsize=7, ha="right", va="center")
    sides = " x ".join(f"{n} of {size} {dim}" for dim, n, size in one.dims)
    ax.text(0.2, top + height / 2, f"{one.name}\n{sides}", fontsize=8, va="center")
    loops = "\n".join(f"{trips} x {rank} over {dim}" for rank, trips, dim in one.unrolled)
    ax.text(7.2, top + height / 2, f"parfor\n{loops}", family="monospace", fontsize=8, va="center")


def ski_slope(given: Slope, title: str) -> Picture:
    """Draws the minimum traffic of the outermost level over the capacity of one buffer."""
    points = [(capacity, traffic) for capacity, traffic in given.points if traffic is not None]
    with mpl.rc_context(STYLE):
        figure, axes = _figure(7.2, 4.6)
        ax = axes[0][0]
        traffics = (
            [traffic for _, traffic in points]
            + [given.compulsory]
            + ([given.machine_point[1]] if given.machine_point else [])
        )
        divisor, label = units.axis("bytes", traffics)
        ax.step(
            [c for c, _ in points],
            [traffic / divisor for _, traffic in points],
            where="post",
            color=INK,
            linewidth=1.4,
            marker="o",
            markersize=3.5,
            label=f"lowest traffic of {given.outer} with one buffer",
        )
        ax.axhline(
            given.compulsory / divisor,
            color=SHADES[1],
            linewidth=1.0,
            linestyle="--",
            label=f"each tensor once ({units.quantity('bytes', given.compulsory)})",
        )
        if given.machine_point:
            on_chip_bytes, traffic_bytes = given.machine_point
            ax.scatter(
                [on_chip_bytes],
                [traffic_bytes / divisor],
                marker="D",
                s=42,
                color=SHADES[3],
                edgecolors=INK,
                linewidths=0.8,
                zorder=4,
                label=f"the machine: {units.quantity('bytes', on_chip_bytes)} on chip, "
                f"{units.quantity('bytes', traffic_bytes)}",
            )
        ax.set_xscale("log", base=2)
        ticks = [c for c, _ in given.points][::2]
        ax.set_xticks(ticks, [units.quantity("bytes", c) for c in ticks], fontsize=7.5)
        ax.minorticks_off()
        _logarithmic(ax.yaxis, max(traffics) / min(traffics))
        if max(traffics) < 2 * min(traffics):
            ax.set_ylim(min(traffics) / divisor / 1.5, max(traffics) / divisor * 2)
        ax.set_xlabel("capacity on chip")
        ax.set_ylabel(f"{given.outer} {label.replace('bytes', 'traffic').strip()}")
        ax.set_title(f"{title}\nmappings: {textwrap.shorten(given.certificate, 100, placeholder=' ...')}")
        ax.legend(loc="upper right")
    return Picture(figure)


def residency(given: Residency) -> Picture:
    """Draws a row per tensor with bars while it is on chip, darker for a larger share; below, the occupancy
    of the levels.
    """
    names = list(dict.fromkeys(name for name, *_ in given.bars))[:MAX_TENSORS]
    sizes = {name: size for name, _, _, _, size in given.bars}
    starts, rows = [0.0, *given.times[:-1]], max(len(names), 1)
    divisor, time_label = (
        units.axis("latency_cycles", given.times) if given.time_unit else (1.0, "operations, in order")
    )
    with mpl.rc_context(STYLE):
        figure, axes = _figure(
            10,
            2.0 + 0.24 * rows + 1.1 * len(given.used),
            1 + len(given.used),
            1,
            sharex=True,
            height_ratios=[0.24 * rows + 0.4, *(1.0 for _ in given.used)],
        )
        top = axes[0][0]
        for name, first, last, retained, size in given.bars:
            if name in names:
                share = retained / size if size else 1.0
                top.barh(
                    names.index(name),
                    (last - first) / divisor,
                    left=first / divisor,
                    height=0.66,
                    color=mpl.colormaps["cividis_r"](0.1 + 0.75 * share),
                    edgecolor=INK,
                    linewidth=0.5,
                )
                length = (last - first) / given.times[-1]
                if share < 0.999 and length > 0.04:
                    percent = f"{100 * share:.0f} %"
                    top.annotate(
                        f"{units.quantity('bytes', retained)}, {percent}" if length > 0.1 else percent,
                        ((first + last) / 2 / divisor, names.index(name)),
                        fontsize=7,
                        ha="center",
                        va="center",
                        color="white" if share > 0.5 else INK,
                    )
        top.set_yticks(
            range(len(names)),
            [f"{_short(name, 28)}, {units.quantity('bytes', sizes[name])}" for name in names],
        )
        top.set_ylim(rows - 0.4, -0.6)
        top.set_xlim(0, given.times[-1] / divisor)
        if not names:
            top.text(0.5, 0.5, "nothing is retained on chip", ha="center", transform=top.transAxes)
        for ax, (level, occupied, capacity, which) in zip(axes[1:, 0], given.used, strict=True):
            bytes_divisor, label = units.axis("bytes", [*occupied, capacity or 0.0])
            ax.stairs(
                [v / bytes_divisor for v in occupied],
                [0.0, *(t / divisor for t in given.times)],
                fill=True,
                color=SHADES[_shade(level, given.components)],
                edgecolor=INK,
                linewidth=0.6,
            )
            if capacity:
                ax.axhline(capacity / bytes_divisor, color=INK, linewidth=1.0, linestyle="--")
                ax.annotate(
                    "capacity",
                    (1, capacity / bytes_divisor),
                    (-2, 2),
                    xycoords=("axes fraction", "data"),
                    textcoords="offset points",
                    fontsize=7,
                    ha="right",
                )
            ax.set_ylabel(f"{which} {level}\n{label.replace('bytes ', '')}")
            ax.set_ylim(0, 1.25 * max([*occupied, capacity or 0.0]) / bytes_divisor or 1.0)
        bottom = axes[-1][0]
        key = "a darker bar: a larger share of the tensor is retained"
        bottom.set_xlabel(f"{time_label.replace('latency', 'time')}\n({key})")
        if given.time_unit:
            for a, b, step in zip(starts, given.times, given.steps, strict=True):
                top.axvline(b / divisor, color=FAINT, linewidth=0.6, zorder=0)
                top.annotate(
                    _short(step, 40),
                    ((a + b) / 2 / divisor, 1.0),
                    (0, 3),
                    xycoords=("data", "axes fraction"),
                    textcoords="offset points",
                    ha="center",
                    fontsize=7,
                )
        elif len(given.steps) <= 80:
            bottom.set_xticks(
                [a + 0.5 for a in starts],
                [_short(step, 22) for step in given.steps],
                rotation=90,
                fontsize=6.5,
            )
        figure.suptitle(given.title)
    return Picture(figure)


def layout(given: TensorAddresses) -> Picture:
    """Draws the elements of a tensor with their addresses. Adjacent elements of different shade are in
    different lines.
    """
    addresses = np.array(given.addresses)
    lines = addresses // given.line_elems
    shade_of_line = {line: i for i, line in enumerate(np.unique(lines))}
    shade = np.vectorize(shade_of_line.__getitem__)(lines)
    rows, columns = addresses.shape
    with mpl.rc_context(STYLE):
        figure, axes = _figure(1.6 + 0.38 * columns, 1.5 + 0.3 * rows)
        ax = axes[0][0]
        shades = ListedColormap(
            [mpl.colormaps["cividis"](v) for v in (0.95, 0.5, 0.75, 0.35, 0.85, 0.6, 0.45)]
        )
        ax.imshow(shade % 7, cmap=shades, vmin=0, vmax=6, aspect="auto")
        for y in range(rows):
            for x in range(columns):
                dark = (shade[y, x] % 7) in (1, 3, 6)
                ax.text(
                    x,
                    y,
                    str(addresses[y, x]),
                    ha="center",
                    va="center",
                    fontsize=6,
                    color="white" if dark else INK,
                )
        ax.set_xlabel(given.columns)
        ax.set_ylabel(given.rows)
        ax.grid(visible=False)
        ax.set_title(f"{given.title}\none shade: one line of {given.line_elems} elements")
    return Picture(figure)


def _percent(share: float) -> str:
    return "< 1 %" if 0 < share < 0.01 else f"{100 * share:.0f} %"


def _short(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else f"{text[: max_chars - 3]}..."

"""Made-up pages for the report: any number of points, and names that try to break out of it."""

from __future__ import annotations

import numpy as np

from analysis.report import Column, Page

HOSTILE = (
    "</script><script>window.broken = 1</script>",
    '"><img src=x onerror="window.broken = 2">',
    "'; window.broken = 3; '",
    "<!--<script>",
    "[[plotly]]",
    "<a href='javascript:window.broken=4'>x</a>",
    "\u2028\u2029\u202e\u0000",
    "名前 \U0001f600 é",
    "\ud800",
    "${window.broken=5}",
    "&lt;b&gt;",
    "\\u003c/script\\u003e",
)
ENERGY = ((1.0, "pJ"), (1e3, "nJ"), (1e6, "uJ"))


def page(points: int, hostile: bool = False, seed: int = 0) -> Page:
    """Two parameters of several values, and one with a name of its own; two objectives whose front is
    known."""
    rng = np.random.default_rng(seed)
    names = list(HOSTILE) if hostile else [f"value {i}" for i in range(12)]
    machines = points + 5
    x = np.exp(rng.normal(10, 1, points))
    y = np.exp(rng.normal(8, 1, points))
    order = np.argsort(x)
    best = np.minimum.accumulate(y[order])
    front = np.zeros(points, dtype=np.uint8)
    front[order[np.concatenate(([True], best[1:] < best[:-1]))]] = 1
    state = np.zeros(machines, dtype=int)
    state[points:] = 1
    parameters = [
        Column(
            f"p{k}",
            names[k] if hostile else f"parameter {k}",
            "parameter",
            rng.integers(0, len(names), machines),
            names,
        )
        for k in range(5)
    ]
    columns = [
        Column("machine", "machine", "machine", np.arange(machines)),
        Column("state", "state", "machine", state, ["ok", names[0]]),
        *parameters,
        Column("row", "", "place", np.arange(points)),
        Column("schedule", "", "place", np.zeros(points, dtype=int)),
        Column("feasible", "", "place", np.ones(points, dtype=np.uint8)),
        Column("front", "", "place", front),
        Column("x", names[1] if hostile else "energy", "metric", x, (), ENERGY),
        Column("y", "latency", "metric", y),
        Column("gap_to_bound", "gap to bound", "metric", rng.random(points), (), ((0.01, "%"),)),
    ]
    own = {
        "name": names[2],
        "certificate": names[3],
        "energy": {names[0]: 3.0, names[1]: 1.0},
        "latency": {names[4]: 5.0},
        "roofline": {
            "peak": 10.0,
            "gb_s": 2.0,
            "level": names[5],
            "dots": [[names[0], 1.0, 1.5, 0.5, names[1]]],
            "not_drawn": names[6],
        },
        "einsums": [[names[0], 2, 1.0, 1.0, names[7], 0]],
    }
    facts = {
        "objectives": [{"name": "x", "max": False}, {"name": "y", "max": False}],
        "parameters": [f"p{k}" for k in range(5)],
        "orders": [True] * 5,
        "states": ["ok", "infeasible"],
        "effects": {
            name: {
                "explained": 0.5,
                "order": ["p0"],
                "rows": [
                    {"parameter": "p0", "value": v, "factor": 1.0 + i, "machines": 3}
                    for i, v in enumerate(names)
                ],
            }
            for name in ("x", "y")
        },
        "reasons": [
            {
                "status": "infeasible",
                "level": names[0],
                "einsum": names[1],
                "machines": 5,
                "need_bytes": 9,
                "have_bytes": None,
                "reason": names[2],
            }
        ],
        "missed": [{"constraint": names[5], "points": 1}],
        "progress": [
            {
                "axis": axis,
                "volume": [(1, 0.5), (points, 1.0)],
                "done": [1, machines],
                "states": {"ok": [1, points], "infeasible": [0, 5]},
            }
            for axis in ("machines done", f"time {names[0]}")
        ],
        "said": [(key, names[i]) for i, key in enumerate(("done", "space", "best"))],
        "study": "\n".join(names),
        "path": names[0],
        "others": [{"name": names[6], "front": {"x": [float(x[0])], "y": [float(y[0])]}}],
    }
    first = int(np.flatnonzero(front)[0])
    return Page(
        names[0] if hostile else "made up",
        facts,
        columns,
        {"points": {f"{first}.0": [own]}, "nests": ["\n".join(names)]},
    )

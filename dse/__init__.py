"""Design-space exploration of tensor accelerators. The door for Python:

    import dse
    dse.map("resnet18", "edge_array", objective="edp", **{"array.x": 12})    # one workload on one machine
    run = dse.sweep("study.yaml", out="runs/x", progress=print)              # a study
    run = dse.open("runs/x"); run.front(); run.sql("FROM designs"); run.show("best")

What they need is imported when they are first called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dse.door import map, open, sweep

__all__ = ["map", "open", "sweep"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        _refuse_strangers()
        from dse import door

        return getattr(door, name)
    raise AttributeError(f"dse has no {name}; the door for Python is {', '.join(__all__)}")


def _refuse_strangers() -> None:
    """A folder hw or cluster beside the user's script would be found before ours."""
    import importlib.util
    from pathlib import Path

    root = Path(__file__).resolve().parent.parent
    for name in ("workloads", "hw", "cluster", "analysis"):
        spec = importlib.util.find_spec(name)
        found = Path(next(iter(spec.submodule_search_locations or [spec.origin or "?"]))).resolve() if spec else None
        if found is None or root not in (found, *found.parents):
            raise ImportError(f"{found or name}: shadows the package {name} of dse in {root}; rename it, or start from another folder")

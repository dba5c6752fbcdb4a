"""Design-space exploration of tensor accelerators. The Python interface:

    import dse
    dse.map("resnet18", "edge_array", objective="edp", **{"array.x": 12})    # one workload on one machine
    dse.simulate("gemm:m=5,n=7,k=12", "a2", "mine.txt")                      # a given mapping
    dse.front("gemm:m=5,n=7,k=12", "a2")                                     # its non-dominated mappings
    dse.residency("cg:matrix=ecology1,n=8", "gogeta_clusters")               # retention between operations
    run = dse.sweep("study.yaml", out="runs/x", progress=print)              # a study
    run = dse.open("runs/x"); run.front(); run.sql("FROM designs"); run.show("best")
    dse.open_all(["runs/x", "runs/y"]).sql("...")                            # with a column `run`
    dse.compare(run, 17, 42); dse.compare(run, dse.open("runs/y"))           # points, runs
    run.plot("front").save("front.pdf"); run.report("x.html")                # map, residency: .plot(), too

What these functions need is imported when one of them is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dse.frontend.api import front, map, residency, simulate
    from dse.frontend.compare import compare
    from dse.frontend.runs import open, open_all, sweep

__all__ = ["compare", "front", "map", "open", "open_all", "residency", "simulate", "sweep"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from dse.run.installed import shadowing_fault

        if line := shadowing_fault():
            raise ImportError(line)
        if name in ("open", "open_all", "sweep"):
            from dse.frontend import runs

            return getattr(runs, name)
        if name == "compare":
            from dse.frontend.compare import compare

            return compare
        from dse.frontend import api

        return getattr(api, name)
    raise AttributeError(f"dse has no {name}; there are {', '.join(__all__)}")

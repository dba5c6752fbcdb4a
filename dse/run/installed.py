"""Whether the packages that Python finds are those of this installation: their names are plain, and a folder
`hw` beside the user's script comes first.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

PACKAGES = ("workloads", "hw", "dse", "cluster", "analysis")
ROOT = Path(__file__).resolve().parents[2]


def shadowing() -> str:
    """One line if a package found here is not of this installation; else empty."""
    for name in PACKAGES:
        spec = importlib.util.find_spec(name)
        found = (
            Path(spec.origin).resolve()
            if spec and spec.origin
            else Path(next(iter(spec.submodule_search_locations or ()), "?"))
            if spec
            else None
        )
        if found is None or ROOT not in found.parents:
            return (
                f"{found or name}: shadows the package {name} of dse in {ROOT}; rename it, or start from "
                "another folder"
            )
    return ""

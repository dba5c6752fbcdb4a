"""Checks that the packages that Python imports are those of this installation. Their names are common words,
and a folder `hw` beside the user's script would be found first.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

PACKAGES = ("workloads", "hw", "dse", "cluster", "analysis")
ROOT = Path(__file__).resolve().parents[2]


def shadowing() -> str:
    """Returns one line if another package of the same name is found first; else ""."""
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

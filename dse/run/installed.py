"""Checks that Python imports the packages of this installation. Their names are common words, and Python
would find a folder `hw` beside the user's script first.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

PACKAGES = ("workloads", "hw", "dse", "cluster", "analysis")
ROOT = Path(__file__).resolve().parents[2]


def shadowing_fault() -> str:
    """Returns a message if Python finds another package with the name of one of ours first; else ""."""
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

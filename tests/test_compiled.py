"""Compiled functions without a way in from Python are called by compiled ones alone: a call from elsewhere
would end the process.
"""

from __future__ import annotations

import ast
from pathlib import Path

import numba

from dse.mapper.exact import search_kernels

ROOT = Path(__file__).parents[1]
KERNELS = "dse/mapper/exact/search_kernels.py"


def used(path: Path) -> set[str]:
    """Names of the kernels that a file imports, or takes as attributes."""
    tree = ast.parse(path.read_text())
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names = {
        alias.name
        for node in froms
        if node.module == "dse.mapper.exact.search_kernels"
        for alias in node.names
    }
    modules = {
        alias.asname or alias.name
        for node in froms
        if node.module == "dse.mapper.exact"
        for alias in node.names
        if alias.name == "search_kernels"
    }
    return names | {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules
    }


def test_what_other_files_use_can_be_called() -> None:
    files = [
        path
        for folder in ("dse", "cluster", "bench", "tests")
        for path in (ROOT / folder).rglob("*.py")
        if path != ROOT / KERNELS
    ]
    asked = set().union(*map(used, files))
    assert {"search", "is_below", "quotients"} <= asked
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        return
    closed = {
        name
        for name, one in vars(search_kernels).items()
        if getattr(one, "targetoptions", {}).get("no_cpython_wrapper")
    }
    assert closed
    assert not closed & asked

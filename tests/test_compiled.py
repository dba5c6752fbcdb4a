"""Kernels: what Python calls has a way in; a cache is keyed by every file whose code is in the kernel."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from types import ModuleType

import numba
import pytest

from dse.mapper.exact.kernels import batch_search, compare, nest_search, spatial_search, state, tile_sums
from dse.run import compiled

ROOT = Path(__file__).parents[1]
SEARCH = (compare, tile_sums, nest_search, spatial_search, batch_search)
PARTS = {module.__name__: module for module in (*SEARCH, state)}
KERNELS = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for path in sorted((ROOT / "dse").rglob("*.py"))
    if "from dse.run.compiled import" in path.read_text()
]


def imports(tree: ast.Module) -> dict[str, tuple[str, str]]:
    """Names that a file imports from the product: local name -> module, name there."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("dse.")
        for alias in node.names
    }


def used(path: Path) -> set[tuple[str, str]]:
    """Module and name of the search kernels that a file imports, or takes as attributes."""
    tree = ast.parse(path.read_text())
    own = imports(tree)
    modules = {local: f"{of}.{name}" for local, (of, name) in own.items() if f"{of}.{name}" in PARTS}
    return {one for one in own.values() if one[0] in PARTS} | {
        (modules[node.value.id], node.attr)
        for node in ast.walk(tree if modules else ast.Module([], []))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules
    }


def closed(module: ModuleType) -> set[tuple[str, str]]:
    """Kernels of a module without a way in from Python: a call from elsewhere would end the process."""
    return {
        (module.__name__, name)
        for name, one in vars(module).items()
        if getattr(one, "targetoptions", {}).get("no_cpython_wrapper")
    }


def test_what_other_files_use_can_be_called() -> None:
    files = [
        path
        for folder in ("dse", "cluster", "bench", "tests")
        for path in (ROOT / folder).rglob("*.py")
        if path.parent.name != "kernels" and "kernels" in path.read_text()
    ]
    asked = set().union(*map(used, files))
    assert {"search", "is_below"} <= {name for _, name in asked}
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        return
    inner = set().union(*map(closed, SEARCH))
    assert inner
    assert not inner & asked


@pytest.mark.parametrize("name", KERNELS)
def test_a_cache_is_keyed_by_all_that_its_kernels_are_made_of(name: str) -> None:
    """Numba watches the caller's file alone: a change in what it calls would run as it was."""
    module = importlib.import_module(name)
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        return
    tree = ast.parse(Path(module.__file__ or "").read_text())
    taken, code = imports(tree), {key: one for key, one in vars(module).items() if hasattr(one, "py_func")}
    own = {key: one for key, one in code.items() if one.py_func.__module__ == name}
    assert own
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in own:
            inside = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)} & set(taken)
            others = {n for n in inside if not isinstance(getattr(module, n), int | float)}
            assert {taken[n][0] for n in others} - {compiled.__name__} <= compiled.sources(name)
    stamps = {
        one._cache._cache_file._source_stamp for one in own.values() if hasattr(one._cache, "_cache_file")
    }
    assert stamps == {compiled.stamp(name)}


def test_a_change_of_a_number_or_a_called_file_makes_another_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    name, before = batch_search.__name__, compiled.stamp(batch_search.__name__)
    assert compiled.sources(name) == {*PARTS, compiled.__name__}
    again = compiled.stamp.__wrapped__
    assert again(name) == before
    monkeypatch.setattr(batch_search, "EXTRA", 1, raising=False)
    assert again(name) != before
    monkeypatch.undo()
    (tmp_path / "sums.py").write_text(Path(tile_sums.__file__ or "").read_text() + "\n")
    monkeypatch.setattr(tile_sums, "__file__", str(tmp_path / "sums.py"))
    assert again(name) != before

"""What docstrings, comments and documents refer to is there: `module.name`, `Class.field`, files."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

pytestmark = pytest.mark.xdist_group("references")

ROOT = Path(__file__).parents[1]
PACKAGES = ("analysis", "cluster", "dse", "hw", "workloads")
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "docs" / "design.md", *SOURCES]
DOTTED = re.compile(r"(?<![\w./'\"])([A-Za-z_]\w*)\.([A-Za-z_]\w*)")
FILE = re.compile(r"(?<![\w.])([\w/]+\.py)\b")
NOT_OURS = {"js", "py", "md", "json", "yaml", "sql", "e", "g", "com", "org"}  # ends of files, "e.g."
KEYS = {"search", "solver", "stop", "limits", "dse", "kernels"}  # parts of a study; `import dse`; two modules


@dataclass(frozen=True, slots=True)
class Source:
    """What a source has: all names, classes with their fields and methods, docstrings, and parameters and
    local variables (`plan.like` may be one's attribute, not a module's name).
    """

    names: set[str] = field(default_factory=set)
    classes: dict[str, set[str]] = field(default_factory=dict)
    docstrings: list[str] = field(default_factory=list)
    variables: set[str] = field(default_factory=set)


@cache
def source(path: Path) -> Source:
    """Of one reading: parsing and walking all sources takes seconds."""
    found = Source()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            found.docstrings.append(ast.get_docstring(node) or "")
        if isinstance(node, ast.ClassDef):
            annotated = (b.target for b in node.body if isinstance(b, ast.AnnAssign))
            members = [target.id for target in annotated if isinstance(target, ast.Name)]
            members += [b.name for b in node.body if hasattr(b, "name")]
            found.classes.setdefault(node.name, set()).update(members)
        elif isinstance(node, ast.arg):
            found.variables.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.variables.add(node.id)
        named = (getattr(node, name, None) for name in ("name", "id", "arg", "attr", "asname"))
        found.names.update(name for name in named if isinstance(name, str))
    return found


@cache
def defined() -> tuple[dict[str, set[str]], dict[str, set[str]]]:
    """By module (last part of its name) all names in it; by class its fields and methods."""
    modules, classes = dict[str, set[str]](), dict[str, set[str]]()
    for path in SOURCES:
        own = source(path)
        modules.setdefault(path.stem, set()).update(own.names)
        for name, members in own.classes.items():
            classes.setdefault(name, set()).update(members)
    return modules, classes


@cache
def files() -> tuple[str, ...]:
    """All sources, those of tests and benches too, as /path/from/the/root."""
    others = (path for folder in ("tests", "bench") for path in (ROOT / folder).rglob("*.py"))
    return tuple(f"/{path.relative_to(ROOT)}" for path in (*SOURCES, *others))


def words(path: Path) -> Iterator[str]:
    """Docstrings and comments of a source, all of a document."""
    text = path.read_text()
    if path.suffix != ".py":
        yield from re.findall(r"`([^`\n]+)`", text)
        return
    yield from source(path).docstrings
    yield from (line.split("# ", 1)[1] for line in text.splitlines() if "# " in line)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_what_is_referred_to_is_there(path: Path) -> None:
    modules, classes = defined()
    missing, local = list[str](), source(path).variables if path.suffix == ".py" else set[str]()
    for text in words(path):
        for where, name in DOTTED.findall(text):
            if name in NOT_OURS or where in KEYS | local:
                continue
            if name not in modules.get(where, classes.get(where, {name})):
                missing.append(f"{where}.{name}")
        missing += [
            name
            for name in FILE.findall(text)
            if not any(one.endswith(f"/{name.lstrip('./')}") for one in files())
            and "NAME" not in name
            and name != "FILE.py"
        ]
    assert missing == []

"""Runs a notebook's cells in order, as Jupyter would: the value of a last expression is shown. python -m
tests.notebook FILE writes what they show into it.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any


def executed(path: Path, folder: Path, write: bool = False) -> tuple[int, list[str]]:
    """How many cells of code ran, in `folder`, and those whose text is not what the file shows. An exception
    of a cell ends it. write: outputs are kept.
    """
    book = json.loads(path.read_text())
    names: dict[str, Any] = {}
    cells, other = [cell for cell in book["cells"] if cell["cell_type"] == "code"], list[str]()
    before = os.getcwd()
    os.chdir(folder)
    try:
        for number, cell in enumerate(cells, 1):
            shown, cell["outputs"] = _text(cell["outputs"]), _outputs("".join(cell["source"]), names, number)
            if (now := _text(cell["outputs"])) != shown:
                other.append(f"cell {number} shows\n{now}\nthe file\n{shown}")
            cell["execution_count"] = number
    finally:
        os.chdir(before)
    if write:
        path.write_text(json.dumps(book, indent=1, ensure_ascii=False) + "\n")
    return len(cells), other


def _text(outputs: list[dict[str, Any]]) -> str:
    return "".join("".join(one.get("text") or one["data"]["text/plain"]) for one in outputs)


def _outputs(source: str, names: dict[str, Any], number: int) -> list[dict[str, Any]]:
    tree = ast.parse(source)
    last = (
        ast.Expression(tree.body.pop().value) if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    )  # type: ignore[attr-defined]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {number}", "exec"), names)
        value = eval(compile(last, f"cell {number}", "eval"), names) if last else None
    said = printed.getvalue().splitlines(keepends=True)
    found: list[dict[str, Any]] = [{"output_type": "stream", "name": "stdout", "text": said}] if said else []
    if value is not None:
        data: dict[str, Any] = {"text/plain": repr(value).splitlines(keepends=True)}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = value._repr_html_()
        if hasattr(value, "_repr_png_"):
            data = {"text/plain": ["a picture"], "image/png": base64.b64encode(value._repr_png_()).decode()}
        found.append(
            {"output_type": "execute_result", "execution_count": number, "metadata": {}, "data": data}
        )
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        from tests.documents import prepared

        print(
            executed(Path(sys.argv[1]).resolve(), prepared(Path(made) / "here"), write=True)[0], "cells run"
        )

"""Jinja templates of Timeloop and AccelForge, with the functions that their own loaders give them: include,
include_text, add_to_path, cwd, find_path, path_exists, and `{% assert CONDITION, "MESSAGE" %}`.

Rendered in Jinja's sandbox: a template reaches nothing of Python and changes nothing. What else the loaders
give (setenv, include_all), and Jinja's own include and import, are refused.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jinja2 import StrictUndefined, TemplateError, TemplateSyntaxError, UndefinedError, nodes, pass_context
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dse.exchange.notes import Unreadable
from workloads import document

FAULTS = (
    *(TemplateError, AssertionError, ArithmeticError, AttributeError, LookupError),
    *(OSError, RecursionError, TypeError, ValueError),
)
# (a file, its names' values, the folders where it looks for files) -> the text that stands for it
Include = Callable[[Path, Mapping[str, Any], list[Path]], str]


class _Assert(Extension):
    tags = {"assert"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        condition = parser.parse_expression()
        message = parser.parse_expression() if parser.stream.skip_if("comma") else nodes.Const("it is not so")
        call = self.call_method("check", [condition, message])
        return nodes.CallBlock(call, [], [], []).set_lineno(line)

    def check(self, condition: object, message: object, caller: object) -> str:
        if not condition:
            raise AssertionError(message)
        return ""


def rendered(
    path: Path, text: str, values: Mapping[str, Any], folders: list[Path], data: Include, plain: Include
) -> str:
    """Returns the text of a template. Raises Unreadable, one line with file, line and fix.

    values: of names; folders: where it looks for files beside its own; data, plain: what stands for a file
    of `include` and of `include_text`
    """
    environment = ImmutableSandboxedEnvironment(undefined=StrictUndefined, extensions=[_Assert])
    environment.globals.update(_functions(path, values, [*folders], data, plain))
    chunks: list[str] = []
    try:
        for chunk in environment.from_string(text).generate(values):
            chunks.append(chunk)
            if sum(map(len, chunks)) > document.MAX_BYTES:
                raise ValueError(f"its text is longer than {document.MAX_BYTES >> 20} MiB")
    except Unreadable:
        raise
    except FAULTS as fault:
        name = re.match(r"'(\w+)' is undefined", str(fault)) if isinstance(fault, UndefinedError) else None
        fix = f"--set {name[1]}=VALUE says it" if name else "correct it, or render it with its own tool"
        raise Unreadable(f"{path}: {_line(fault)}{' '.join(str(fault).split())[:200]}; {fix}") from None
    return "".join(chunks)


def _functions(
    path: Path, values: Mapping[str, Any], folders: list[Path], data: Include, plain: Include
) -> dict[str, Callable[..., Any]]:
    def found(name: str) -> Path:
        beside = [folder / name for folder in (path.parent, *folders)]
        if existing := next((one for one in beside if one.exists()), None):
            return existing
        raise OSError(f"{name} is in no folder that it names")

    def exists(name: str) -> bool:
        return any((folder / name).exists() for folder in (path.parent, *folders))

    def known(context: Context, inherits: bool, own: Mapping[str, Any]) -> dict[str, Any]:
        above = {k: v for k, v in context.get_all().items() if not callable(v)} if inherits else {}
        return {**values, **above, **own}

    @pass_context
    def include(
        context: Context, name: str, key: str = "", inherit_parse_data: bool = True, **own: Any
    ) -> str:
        text = data(found(name), known(context, inherit_parse_data, own), folders)
        return f"{text}.{key.lstrip('.')}" if key else text

    @pass_context
    def include_text(context: Context, name: str, inherit_parse_data: bool = True, **own: Any) -> str:
        return plain(found(name), known(context, inherit_parse_data, own), folders)

    def add_to_path(name: str) -> str:
        folders.append(found(name))
        return ""

    return {
        "include": include,
        "include_text": include_text,
        "add_to_path": add_to_path,
        "cwd": lambda: str(path.parent),
        "find_path": lambda name: str(found(name)),
        "path_exists": exists,
    }


def _line(fault: BaseException) -> str:
    """Returns where in the template: the innermost line that stands in its own traceback."""
    if isinstance(fault, TemplateSyntaxError):
        return f"line {fault.lineno}: "
    lines = [
        frame.lineno for frame in traceback.extract_tb(fault.__traceback__) if frame.filename == "<template>"
    ]
    return f"line {lines[-1]}: " if lines else ""

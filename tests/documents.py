"""The documents, run: blocks of README.md and docs/*.md in order, in a folder of their own where the
repository's files lie beside them.

    console   `$ ` begins a command, what follows is what it prints; `...` stands for anything, a line of it
              for any lines
    sh        commands, which must succeed
    python    statements, all of a page in one process
    sql       a statement on the run of the page's `<!-- run: DIR -->`
    yaml, text, python that begin with `# NAME.yaml`, `# NAME.txt` or `# NAME.py`     a file of that name
`<!-- long -->` before a block: run by make prove PART=docs only. `<!-- not run: WHY -->`: by nobody, WHY one
of NOT_RUN. Commands stand in fences at the margin; `unseen` names those that do not. `python -m
tests.documents PAGE...` writes what commands print now.

A figure that was measured (a number with a unit) stands in a block that is run, or its paragraph, bullet or
row names the command that prints it and the commit at which it did (`unnamed`). docs/evidence.md is a table
of claims (CLAIM), docs/evidence/*.md are the pages of measurements behind them: a row or paragraph may have
its command from its section, and its commit is that of its line. Pages of SET hold numbers that the program
sets or that are worked out in the text.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]
BLOCK = re.compile(
    r"(?:^<!-- (?P<mark>long|not run: [^>]*) -->\n)?^```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.M | re.S
)
RUN = re.compile(r"^<!-- run: (\S+) -->$", re.M)
FILE = re.compile(r"# ([\w.-]+\.(?:yaml|txt|py))\n")
INDENTED = re.compile(
    r"^(?: {4,}|\t|[ \t]+```[^\n]*\n[ \t]*)(?:\$ |\. |(?:dse|make|python3?|pip|ray|git) \w)", re.M
)
RUNNABLE = ("console", "sh", "python", "sql")
NOT_RUN = {
    "several machines": re.compile(r"ray start |ray job submit |dse run .*--address "),
    "make builds and tests": re.compile(r"make (?:sweep|test)\b"),
}
PROMPT = "$ "
UNIT = (
    r"%|times\b|(?:CPU |core "
    r")(?:ms|s|seconds?|minutes?)\b|(?:[pnum]?J|ms|us|s|min|h|MB|GB|MiB|GiB|seconds?|cycles)\b"
)
FIGURE = re.compile(rf"(?<![\w.^])\d[\d,]*(?:\.\d+)?\s*(?:{UNIT})")
PRINTS = r"make \w|python -m |PART=|dse (?:map|run|resume|plot|residency|simulate) |tests/test_"
COMMAND = re.compile(rf"`[^`]*(?:{PRINTS})[^`]*`")
COMMIT = re.compile(r"\bat `[0-9a-f]{7,12}`")
EVIDENCE = ROOT / "docs" / "evidence.md"
MEASURED = [EVIDENCE, *sorted((ROOT / "docs" / "evidence").glob("*.md"))]
CLAIM = re.compile(r"\| \[[^|]+\]\((evidence/[\w-]+\.md)\) \| [^|]*\d[^|]* \| [^|]+ \| `[0-9a-f]{7}` \|")
SET = {
    "reliability.md": "limits that the program sets, each beside its test",
    "model.md": "worked by hand beside a block that prints the same",
}
ASK = """import dse
run = dse.open({run!r})
def ask(place, statement):
    try:
        assert len(run.sql(statement)), "no row"
    except Exception as fault:
        raise SystemExit(f"{{place}}: {{fault}}")
"""


@dataclass(frozen=True, slots=True)
class Block:
    """line: of the page where it begins; mark: long, "not run: why" or ""."""

    kind: str
    body: str
    line: int
    mark: str


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(m["kind"], m["body"], text[: m.start("kind")].count("\n") + 1, m["mark"] or "")
        for m in BLOCK.finditer(text)
    ]


def unseen(text: str) -> list[str]:
    """Commands and fences of a page that `blocks` does not see: indented, of other marks, or left open."""
    rest = BLOCK.sub("", text)
    return [found[0] for found in INDENTED.finditer(rest)] + re.findall(r"^[ \t]*(?:```|~~~).*$", rest, re.M)


def parts(text: str) -> Iterator[tuple[int, str]]:
    """(line, text) of paragraphs, bullets and rows of tables; headings too, blocks left out."""
    rest, line = BLOCK.sub(lambda found: "\n" * found[0].count("\n"), text), 1
    for part in re.split(r"(\n[ \t]*\n|\n(?=\||[ \t]*[-*] |[ \t]*\d+\. |#))", rest):
        if part.strip():
            yield line + len(part) - len(part.lstrip("\n")), part.strip("\n")
        line += part.count("\n")


def unnamed(text: str, measured: bool = False) -> list[str]:
    """Figures of a page's prose that name no command or no commit, with their line. A row of a table has both
    from the paragraph above it, too.

    measured: a page of MEASURED, on which a section has a command, and a commit is that of a line.
    """
    found, above, section = [], "", ""
    for line, part in parts(text):
        if part.startswith("#"):
            above, section = "", ""
        elif not part.startswith("|"):
            above = part
        named = part + above
        section += part
        figures = FIGURE.findall(re.sub(r"`[^`]*`", "", part))
        if figures and not (
            COMMAND.search(section if measured else named) and (measured or COMMIT.search(named))
        ):
            found.append(f"{line}: {', '.join(figures[:4])}")
    return found


def skipped(one: Block) -> list[str]:
    """Lines of a block that nobody runs, for none of the reasons in NOT_RUN."""
    why = one.mark.removeprefix("not run: ")
    return (
        [line for line in one.body.splitlines() if why not in NOT_RUN or not NOT_RUN[why].match(line)]
        if one.mark.startswith("not run")
        else []
    )


def quick(page: Path) -> bool:
    """Whether it has a block that is run in any case."""
    return any(one.kind in RUNNABLE and not one.mark for one in blocks(page))


def prepared(folder: Path) -> Path:
    """A folder with the repository's files beside what the page makes."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("studies", "hw", "docs"):
        (folder / name).symlink_to(ROOT / name)
    return folder


def faults(page: Path, folder: Path, long: bool) -> Iterator[str]:
    """What does not hold of a page's blocks, a text each."""
    text, python, asked = page.read_text(), [], []
    where = RUN.search(text)
    for one in blocks(page):
        place = f"{page.relative_to(ROOT)}:{one.line}"
        if one.mark.startswith("not run") or (one.mark == "long" and not long):
            continue
        if one.kind in ("yaml", "text", "python") and (name := FILE.match(one.body)):
            (folder / name[1]).write_text(one.body)
        elif one.kind == "sh":
            yield from failed(place, _said(one.body, folder))
        elif one.kind == "console":
            for command, wanted in commands(one.body):
                said = _said(command, folder)
                yield from failed(f"{place}: {command}", said)
                if said.returncode == 0 and not alike(wanted, said.stdout):
                    yield f"{place}: {command}\nprints\n{said.stdout}\nnot\n{wanted}"
        elif one.kind == "sql":
            assert where, f"{place}: no <!-- run: DIR --> says of which run"
            asked.append(f"ask({place!r}, {one.body!r})")
        elif one.kind == "python":
            python.append(one.body)
    if asked and where:
        yield from failed(
            f"{page.relative_to(ROOT)}: sql", _python(ASK.format(run=where[1]) + "\n".join(asked), folder)
        )
    if python:
        yield from failed(f"{page.relative_to(ROOT)}: python", _python("\n".join(python), folder))


def commands(body: str) -> Iterator[tuple[str, str]]:
    """(command, what it prints) of a console block; a command goes on while a quote or a backslash is
    open."""
    lines, command, printed, inside = body.splitlines(), "", [], False
    for line in lines:
        if inside:
            command += "\n" + line
        elif line.startswith(PROMPT):
            if command:
                yield command, "\n".join(printed)
            command, printed = line.removeprefix(PROMPT), []
        else:
            printed.append(line)
            continue
        inside = command.count("'") % 2 == 1 or command.count('"') % 2 == 1 or command.endswith("\\")
    if command:
        yield command, "\n".join(printed)


def alike(wanted: str, found: str) -> bool:
    """`...` alone in a line: any lines; within one: any text. Nothing wanted: anything goes. Blank lines and
    blanks at the end do not count.
    """
    lines = [line.rstrip() for line in wanted.splitlines() if line.strip()]
    parts = [
        r"(?:.*\n)*?" if line.strip() == "..." else ".*".join(map(re.escape, line.split("..."))) + r"\n"
        for line in lines
    ]
    clean = "".join(f"{line.rstrip()}\n" for line in found.splitlines() if line.strip())
    return not lines or re.fullmatch("".join(parts), clean) is not None


def failed(place: str, said: subprocess.CompletedProcess[str]) -> Iterator[str]:
    if said.returncode:
        yield f"{place}\nends with {said.returncode}\n{said.stdout[-1000:]}{said.stderr[-2000:]}"


def _said(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    command = re.sub(r"^\. \.venv/bin/activate$", "", command, flags=re.M)
    return subprocess.run(
        ["bash", "-eu", "-c", command], cwd=folder, capture_output=True, text=True, env=_environment()
    )


def _python(text: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", text], cwd=folder, capture_output=True, text=True, env=_environment()
    )


def _environment() -> dict[str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "RAY_USAGE_STATS_ENABLED": "0"}


def rewritten(page: Path, folder: Path) -> None:
    """Commands whose output is no longer what the page shows get the new one, cut where the old one ended
    with `...`.
    """
    text = page.read_text()
    for one in blocks(page):
        if one.kind in ("yaml", "text") and (name := FILE.match(one.body)):
            (folder / name[1]).write_text(one.body)
        if one.mark.startswith("not run") or one.kind not in ("console", "sh"):
            continue
        for command, wanted in commands(one.body) if one.kind == "console" else [(one.body, "")]:
            said = _said(command, folder)
            if said.returncode == 0 and not alike(wanted, said.stdout):
                lines, old = (
                    [line.rstrip() for line in said.stdout.rstrip().splitlines()],
                    wanted.rstrip().splitlines(),
                )
                new = "\n".join([*lines[: len(old) - 1], "..."] if old[-1] == "..." else lines)
                text = text.replace(f"{PROMPT}{command}\n{wanted}", f"{PROMPT}{command}\n{new}", 1)
    page.write_text(text)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        with tempfile.TemporaryDirectory(prefix="dse-docs-") as made:
            rewritten(Path(name).resolve(), prepared(Path(made) / "here"))

"""Sparse matrices reduced to what their cost depends on, shape and nonzeros: from publications (MATRICES) and
from MatrixMarket files (`read_matrix`).
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from workloads.einsum import WorkloadError

CHUNK = 1 << 22  # bytes read at a time
# a blank line, in a text that begins with a line break
BLANK = re.compile(rb"\n[ \t\r]*(?=\n)")
# field of a MatrixMarket file -> words in the line of an entry
FIELDS = {"real": 3, "double": 3, "integer": 3, "unsigned-integer": 3, "complex": 4, "pattern": 2}
SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")


@dataclass(frozen=True, slots=True)
class Matrix:
    """Shape and nonzeros of a sparse matrix."""

    name: str
    rows: int
    columns: int
    nnz: int  # both halves of a symmetric matrix are counted
    is_complex: bool = False


MATRICES = {
    m.name: m
    for m in (  # GOGETA (arXiv 2303.11499), table 2, from SuiteSparse
        Matrix("aft02", 8184, 8184, 127762),
        Matrix("ecology1", 1000000, 1000000, 4996000),
        Matrix("barth5", 15606, 15606, 61484),
        Matrix("nasa4704", 4704, 4704, 104756),
    )
}


def read_matrix(path: str | Path) -> Matrix:
    """Returns shape and nonzeros of a MatrixMarket coordinate file. Every entry is checked; the file is read
    in chunks, of which only the counts are kept.

    Stored zeros count. Entries that occur twice (which the format forbids) count twice. In a symmetric,
    skew-symmetric or hermitian file, entries off the diagonal count twice. Raises WorkloadError, in one line:
    no such file, wrong header or size line, entry out of range or unreadable (with its line), too few or too
    many entries.
    """
    try:
        with open(path, "rb") as file:
            banner, size, lines = _header(str(path), file)
            nnz = _count_nonzeros(str(path), file, banner, size, lines)
    except OSError as fault:
        raise WorkloadError(f"{path}: cannot be read: {fault.strerror}") from None
    return Matrix(Path(path).stem, size[0], size[1], nnz, banner[3] == "complex")


def _header(path: str, file: BinaryIO) -> tuple[list[str], tuple[int, int, int], int]:
    """Returns the words of the banner, the size line, and how many lines they take."""
    banner = file.readline(1024).decode("ascii", "replace").lower().split()
    if len(banner) != 5 or banner[:2] != ["%%matrixmarket", "matrix"]:
        raise WorkloadError(
            f'{path}: line 1 is no MatrixMarket header; write e.g. "%%MatrixMarket matrix coordinate '
            'real general"'
        )
    if banner[2] != "coordinate":
        raise WorkloadError(
            f"{path}: line 1: format {banner[2]} holds no sparse matrix; it must be coordinate"
        )
    for what, word, known in (("field", banner[3], tuple(FIELDS)), ("symmetry", banner[4], SYMMETRIES)):
        if word not in known:
            raise WorkloadError(f"{path}: line 1: {what} {word} must be {' or '.join(known)}")
    lines, line = 2, file.readline()
    while line and (line.startswith(b"%") or not line.strip()):
        lines, line = lines + 1, file.readline()
    words = line.decode("ascii", "replace").split()
    if (
        len(words) != 3
        or not all(re.fullmatch("[0-9]{1,18}", w) for w in words)
        or min(int(w) for w in words) < 1
    ):
        raise WorkloadError(
            f"{path}: line {lines}: size line {_shown(line)} must be rows, columns and entries, each "
            "at least 1"
        )
    rows, columns, entries = (int(w) for w in words)
    if entries > rows * columns:
        raise WorkloadError(f"{path}: line {lines}: {entries} entries do not fit into {rows} x {columns}")
    if banner[4] != "general" and rows != columns:
        raise WorkloadError(f"{path}: line {lines}: {rows} x {columns} cannot be {banner[4]}; write general")
    return banner, (rows, columns, entries), lines


def _count_nonzeros(
    path: str, file: BinaryIO, banner: list[str], size: tuple[int, int, int], line: int
) -> int:
    """Returns the nonzeros of all entries. line: how many lines of the file come before the entries."""
    from scipy.io import mmread  # type: ignore[attr-defined, unused-ignore]  # imported here: that is slow, and only files need it

    rows, columns, entries = size
    entries_read = nnz = 0
    for chunk in _chunks(file):
        count = chunk.count(b"\n") - len(BLANK.findall(b"\n" + chunk))
        blanks, first = _first_entry(chunk)
        if count and len(first.split()) != FIELDS[banner[3]]:
            raise WorkloadError(
                f"{path}: line {line + 1 + blanks}: {_shown(first)} must be {FIELDS[banner[3]]} "
                f"numbers, because the field is {banner[3]}"
            )
        if entries_read + count > entries:
            raise WorkloadError(f"{path}: holds more entries than the {entries} that its size line names")
        head = f"{' '.join(banner)}\n{rows} {columns} {count}\n".replace(
            "%%matrixmarket", "%%MatrixMarket"
        ).encode()
        try:
            nnz += mmread(io.BytesIO(head + chunk)).nnz if count else 0  # type: ignore[no-untyped-call, unused-ignore]
        except (ValueError, OverflowError) as fault:
            raise WorkloadError(f"{path}: {_at_file_line(str(fault), line - 2)}") from None
        entries_read, line = entries_read + count, line + chunk.count(b"\n")
    if entries_read < entries:
        raise WorkloadError(
            f"{path}: holds {entries_read} entries, but its size line names {entries}; copy the file again"
        )
    return nnz


def _first_entry(chunk: bytes) -> tuple[int, bytes]:
    """Returns how many blank lines come before the first entry, and the entry's line."""
    text = chunk.lstrip()
    return chunk.count(b"\n", 0, len(chunk) - len(text)), text.partition(b"\n")[0]


def _shown(line: bytes) -> str:
    return repr(line.decode("ascii", "replace").strip()[:60])


def _chunks(file: BinaryIO) -> Iterator[bytes]:
    """Yields whole lines, some MiB at a time."""
    rest = b""
    while block := file.read(CHUNK):
        whole, newline, rest = (rest + block).rpartition(b"\n")
        if newline:
            yield whole + newline
    if rest.strip():
        yield rest + b"\n"


def _at_file_line(fault: str, lines_before: int) -> str:
    """Returns scipy's message, its line number raised by `lines_before` to that of the file."""
    found = re.match(r"Line (\d+): (.*?)\.?$", fault)
    if not found:
        return f"{fault[:1].lower()}{fault[1:]}".rstrip(".")
    hint = (
        "; indices count from 1 to the rows and columns of the size line"
        if "out of bounds" in found[2]
        else ""
    )
    return f"line {int(found[1]) + lines_before}: {found[2][:1].lower()}{found[2][1:]}{hint}"

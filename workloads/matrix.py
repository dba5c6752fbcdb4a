"""Sparse matrices reduced to what their cost depends on: shape and nonzeros, from publications (MATRICES) and
from files. `read_pattern` reads where the nonzeros are (workloads/sparsity.py counts them), `read_matrix` how
many there are.

Files are Matrix Market's (coordinate and array, also compressed by gzip) and those of scipy.sparse.save_npz.
"""

from __future__ import annotations

import gzip
import io
import re
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from workloads import document
from workloads.arrays import Bools, Ints
from workloads.einsum import TileColumns, WorkloadError

SUFFIXES = (".mtx", ".mtx.gz", ".npz")
CHUNK = 1 << 22  # bytes read at a time, and the longest line
MAX_NPZ_BYTES = 1 << 33  # of an .npz file, uncompressed
MAX_PLACES = 2**63 - 1  # of a matrix: a place is one integer of 64 bits
# a blank line, in a text that begins with a line break
BLANK = re.compile(rb"\n[ \t\r]*(?=\n)")
# field of a MatrixMarket file -> numbers of a value
FIELDS = {"real": 1, "double": 1, "integer": 1, "unsigned-integer": 1, "complex": 2, "pattern": 0}
INDICES = {"coordinate": 2, "array": 0}  # format -> indices before the value
WHOLE = ("integer", "unsigned-integer")  # fields of whole numbers
SYMMETRIES = ("general", "symmetric", "skew-symmetric", "hermitian")
SPACE = b" \t\r\n\v\f"
IS_SPACE = np.isin(np.arange(256), np.frombuffer(SPACE, np.uint8))
# characters of numbers; 1.0D+3 is Fortran's, inf and nan are C's
DIGITS = b"0123456789" + SPACE
CHARACTERS = {
    **dict.fromkeys(FIELDS, DIGITS + b"+-.eEdDinfatyINFATY"),
    **dict.fromkeys(WHOLE, DIGITS + b"-"),
    "pattern": DIGITS,
}


@dataclass(frozen=True, slots=True)
class Matrix:
    """Shape and nonzeros of a sparse matrix."""

    name: str
    rows: int
    columns: int
    nnz: int  # both halves of a symmetric matrix are counted
    is_complex: bool = False
    tile_columns: TileColumns | None = None  # None: only the counts are known


@dataclass(frozen=True, slots=True)
class Pattern:
    """Where the nonzeros of a sparse matrix are. places [nonzeros]: row * columns + column of each,
    ascending, each once.
    """

    name: str
    rows: int
    columns: int
    places: Ints
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


def is_matrix_file(path: str) -> bool:
    """True if the end of a path says that it is a file of a matrix."""
    return path.lower().endswith(SUFFIXES)


def read_matrix(path: str | Path) -> Matrix:
    """Returns shape and nonzeros of a file; as `read_pattern`, of which only the counts are kept."""
    found = read_pattern(path)
    return Matrix(found.name, found.rows, found.columns, len(found.places), found.is_complex)


def read_pattern(path: str | Path) -> Pattern:
    """Returns where the nonzeros of a matrix in a file are. Every entry is checked; the file is read in
    chunks, and takes some 32 bytes of memory per nonzero.

    Stored zeros of coordinate and .npz files count, zeros of array files do not. Entries that occur twice are
    added up: they are one nonzero. In a symmetric, skew-symmetric or hermitian file, entries off the diagonal
    stand for two. Raises WorkloadError, in one line: no such file, wrong header or size line, entry out of
    range or unreadable (with its line), too few or too many entries, no nonzero.
    """
    where = str(path)
    try:
        found = _read_npz(where) if where.lower().endswith(".npz") else _read_matrix_market(where)
    except gzip.BadGzipFile:
        raise WorkloadError(
            f"{path}: is not compressed by gzip, as its name says; rename it or copy it again"
        ) from None
    except OSError as fault:
        raise WorkloadError(
            f"{path}: {document.unreadable(Path(path), fault, 'a .mtx, .mtx.gz or .npz file')}"
        ) from None
    except (EOFError, zlib.error):
        raise WorkloadError(
            f"{path}: its compressed data is damaged or cut off; copy the file again"
        ) from None
    if not len(found.places):
        raise WorkloadError(f"{path}: has no nonzero; give a matrix that has one")
    return found


def _name(path: str) -> str:
    return Path(path.removesuffix(".gz")).stem


def _read_npz(path: str) -> Pattern:
    """Returns the pattern of a file of scipy.sparse.save_npz; pickled objects in it are not read."""
    from scipy import sparse  # imported here: that is slow, and only files need it

    try:
        with open(path, "rb") as opened, zipfile.ZipFile(opened) as archive:
            size = sum(one.file_size for one in archive.infolist())
            if size > MAX_NPZ_BYTES:
                raise WorkloadError(
                    f"{path}: holds {size:,} bytes, more than {MAX_NPZ_BYTES:,}; give a smaller matrix"
                )
        found = sparse.load_npz(path)  # type: ignore[no-untyped-call, unused-ignore]
        if hasattr(found, "check_format"):
            found.check_format(full_check=True)
        entries = found.tocoo()
        rows, columns = (int(n) for n in entries.shape)
        kind = entries.dtype.kind
    except (
        zipfile.BadZipFile,
        ValueError,
        KeyError,
        TypeError,
        IndexError,
        AttributeError,
        NotImplementedError,
    ) as fault:
        if isinstance(fault, WorkloadError):
            raise
        raise WorkloadError(
            f"{path}: holds no sparse matrix of SciPy; write it with scipy.sparse.save_npz"
        ) from None
    if kind not in "biufc" or rows * columns > MAX_PLACES:
        raise WorkloadError(f"{path}: is no matrix of numbers with fewer than 2^63 places; convert it")
    places = entries.row.astype(np.int64) * columns + entries.col
    return Pattern(_name(path), rows, columns, _united([places]), kind == "c")


@dataclass(frozen=True, slots=True)
class _Header:
    """What a Matrix Market file says of itself. entries: lines of data."""

    path: str
    format: str
    field: str
    symmetry: str
    rows: int
    columns: int
    entries: int
    lines: int  # of the header

    @property
    def numbers(self) -> int:
        """Numbers in the line of an entry."""
        return INDICES[self.format] + FIELDS[self.field]


def _read_matrix_market(path: str) -> Pattern:
    compressed = path.lower().endswith(".gz")
    with cast(BinaryIO, gzip.open(path, "rb")) if compressed else open(path, "rb") as file:
        header = _header(path, file)
        found = _united(_read_places(header, file))
    if header.format == "array":
        found = sorted_once(_places_of_elements(header, found))
    return Pattern(_name(path), header.rows, header.columns, found, header.field == "complex")


def _united(chunks: Iterable[Ints]) -> Ints:
    """Returns all places, ascending, each once. Chunks are joined to the places found before when they are as
    many as these, so that memory grows with the nonzeros and not with entries that occur again.
    """
    found, new, waiting = np.empty(0, np.int64), [], 0
    for places in chunks:
        new.append(places)
        waiting += len(places)
        if waiting >= max(len(found), CHUNK):
            found, new, waiting = sorted_once(np.concatenate([found, *new])), [], 0
    return sorted_once(np.concatenate([found, *new]))


def sorted_once(places: Ints) -> Ints:
    """Returns places, sorted in place, each once; np.unique takes several times as long."""
    places.sort()
    return places[_begins_run(places)]


def run_lengths(ascending: Ints) -> Ints:
    """Returns how often each value of an ascending array is in it."""
    return np.diff(np.flatnonzero(_begins_run(ascending)), append=len(ascending))


def _begins_run(ascending: Ints) -> Bools:
    found = np.ones(len(ascending), bool)
    np.not_equal(ascending[1:], ascending[:-1], out=found[1:])
    return found


def _places_of_elements(header: _Header, elements: Ints) -> Ints:
    """Returns the places of elements of an array file, which lists whole columns, or of each column what is
    at (symmetric, hermitian) or below (skew-symmetric) the diagonal.

    >>> _places_of_elements(_Header("", "array", "real", "symmetric", 3, 3, 6, 1), np.array([1, 3])).tolist()
    [3, 4, 1]
    """
    rows, columns = header.rows, header.columns
    if header.symmetry == "general":
        return elements % rows * columns + elements // rows
    first_row = np.arange(columns) + (header.symmetry == "skew-symmetric")
    ends = np.cumsum(rows - first_row)
    column = np.searchsorted(ends, elements, side="right")
    row = rows - (ends[column] - elements)
    off_diagonal = row != column
    mirrored = column[off_diagonal] * columns + row[off_diagonal]
    return np.concatenate((row * columns + column, mirrored))


def _header(path: str, file: BinaryIO) -> _Header:
    """Returns the banner and the size line."""
    banner = file.readline(1024).decode("ascii", "replace").lower().split()
    if len(banner) != 5 or banner[:2] != ["%%matrixmarket", "matrix"]:
        raise WorkloadError(
            f'{path}: line 1 is no MatrixMarket header; write e.g. "%%MatrixMarket matrix coordinate '
            'real general"'
        )
    for what, word, known in (
        ("format", banner[2], tuple(INDICES)),
        ("field", banner[3], tuple(FIELDS)),
        ("symmetry", banner[4], SYMMETRIES),
    ):
        if word not in known:
            raise WorkloadError(f"{path}: line 1: {what} {word} must be {' or '.join(known)}")
    if banner[2:4] == ["array", "pattern"]:
        raise WorkloadError(
            f"{path}: line 1: an array has values, no pattern; write coordinate pattern, or array real"
        )
    lines, line = 2, file.readline(CHUNK)
    while line and (line.startswith(b"%") or not line.strip()):
        lines, line = lines + 1, file.readline(CHUNK)
    rows, columns, entries = _sizes(path, banner[2], lines, line)
    header = _Header(path, banner[2], banner[3], banner[4], rows, columns, entries, lines)
    if header.rows * header.columns > MAX_PLACES:
        raise WorkloadError(
            f"{path}: line {lines}: {header.rows} x {header.columns} has 2^63 places or more; give a smaller "
            "matrix"
        )
    if header.symmetry != "general" and header.rows != header.columns:
        raise WorkloadError(
            f"{path}: line {lines}: {header.rows} x {header.columns} cannot be {header.symmetry}; write "
            "general"
        )
    if header.format == "array":
        return replace(header, entries=_elements(header))
    if header.entries > header.rows * header.columns:
        raise WorkloadError(
            f"{path}: line {lines}: {header.entries} entries do not fit into {header.rows} x {header.columns}"
        )
    return header


def _sizes(path: str, format: str, lines: int, line: bytes) -> tuple[int, int, int]:
    """Returns rows, columns and entries (0: not said) of the size line."""
    words = line.decode("ascii", "replace").split()
    count = 3 if format == "coordinate" else 2
    if len(words) != count or not all(re.fullmatch("[0-9]{1,18}", w) and int(w) for w in words):
        said = "rows, columns and entries" if count == 3 else "rows and columns"
        raise WorkloadError(f"{path}: line {lines}: size line {_shown(line)} must be {said}, each at least 1")
    rows, columns, entries = (*map(int, words), 0)[:3]
    return rows, columns, entries


def _elements(header: _Header) -> int:
    """Returns how many elements an array file lists."""
    below = header.columns * (header.columns - 1) // 2
    listed = {"general": header.rows * header.columns, "skew-symmetric": below}
    return listed.get(header.symmetry, below + header.columns)


def _read_places(header: _Header, file: BinaryIO) -> Iterator[Ints]:
    """Yields the places of the entries, chunk by chunk; of an array file the numbers of elements that are not
    zero.
    """
    entries_read, line = 0, header.lines
    for chunk in _chunks(header.path, file):
        count = chunk.count(b"\n") - len(BLANK.findall(b"\n" + chunk))
        if entries_read + count > header.entries:
            raise WorkloadError(
                f"{header.path}: holds more entries than the {header.entries} that its size line names"
            )
        if count:
            if _words(chunk) != count * header.numbers:
                raise _numbers_fault(header, chunk, line, lambda text: len(text.split()) != header.numbers)
            yield _places(header, chunk, count, entries_read, line)
            if _is_misread(chunk, header.field):
                raise _numbers_fault(header, chunk, line, lambda text: _is_misread(text, header.field))
        entries_read, line = entries_read + count, line + chunk.count(b"\n")
    if entries_read < header.entries:
        raise WorkloadError(
            f"{header.path}: holds {entries_read} entries, but its size line names {header.entries}; copy "
            "the file again"
        )


def _places(header: _Header, chunk: bytes, count: int, entries_read: int, line: int) -> Ints:
    """Returns the places of the entries of a chunk; of an array file numbers of elements. count: entries of
    the chunk; entries_read, line: entries and lines before it.
    """
    from scipy.io import mmread  # type: ignore[attr-defined, unused-ignore]  # imported here: that is slow, and only files need it

    coordinate = header.format == "coordinate"
    size = f"{header.rows} {header.columns} {count}" if coordinate else f"{count} 1"
    symmetry = header.symmetry if coordinate else "general"
    banner = f"%%MatrixMarket matrix {header.format} {header.field} {symmetry}\n{size}\n"
    try:
        found = mmread(io.BytesIO(banner.encode() + chunk))  # type: ignore[no-untyped-call, unused-ignore]
    except (ValueError, OverflowError) as fault:
        raise WorkloadError(f"{header.path}: {_at_file_line(str(fault), line - 2)}") from None
    if not coordinate:
        return np.flatnonzero(found) + entries_read
    places: Ints = found.row.astype(np.int64) * header.columns + found.col
    return places


def _words(chunk: bytes) -> int:
    """Returns the words of a text that ends with white space."""
    is_space = IS_SPACE[np.frombuffer(chunk, np.uint8)]
    return int(np.count_nonzero(is_space[1:] & ~is_space[:-1]))


def _is_misread(text: bytes, field: str) -> bool:
    """True if SciPy reads only the beginning of a number in a text: of 3.5 in a field of whole numbers 3."""
    inside = field in WHOLE and re.search(rb"\d-", text)
    return bool(text.translate(None, CHARACTERS[field]) or inside)


def _numbers_fault(
    header: _Header, chunk: bytes, line: int, is_wrong: Callable[[bytes], bool]
) -> WorkloadError:
    """Returns the fault of the first wrong line of a chunk. line: lines before the chunk."""
    number, text = next(
        (i, text) for i, text in enumerate(chunk.split(b"\n")) if text.strip() and is_wrong(text)
    )
    kind = "whole numbers" if header.field in WHOLE else "numbers"
    return WorkloadError(
        f"{header.path}: line {line + 1 + number}: {_shown(text)} must be {header.numbers} {kind}, because "
        f"the field is {header.field}"
    )


def _shown(line: bytes) -> str:
    return repr(line.decode("ascii", "replace").strip()[:60])


def _chunks(path: str, file: BinaryIO) -> Iterator[bytes]:
    """Yields whole lines, some MiB at a time."""
    rest = b""
    while block := file.read(CHUNK):
        whole, newline, rest = (rest + block).rpartition(b"\n")
        if newline:
            yield whole + newline
        elif len(rest) > CHUNK:
            raise WorkloadError(f"{path}: has a line of more than {CHUNK >> 20} MiB; write an entry a line")
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

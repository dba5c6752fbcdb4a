"""Counts of sparse matrices by tile, against loops over every place of a dense matrix; files of matrices."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from dse.frontend import check
from tests.amount import amount
from workloads import catalog, sparsity
from workloads.einsum import WorkloadError
from workloads.matrix import CHUNK, Pattern, read_matrix, read_pattern

KINDS = ("evenly", "banded", "power law", "blocks", "one row")


def drawn(kind: str, rows: int, columns: int, seed: int) -> np.ndarray:
    """A 0/1 matrix of a kind, with a nonzero at least."""
    rng = np.random.default_rng(seed)
    i, j = np.indices((rows, columns))
    chance = {
        "evenly": np.full((rows, columns), 0.2),
        "banded": np.where(np.abs(i - j) <= 2, 0.8, 0.0),
        "power law": 1 / (1 + np.minimum(i, j)),
        "blocks": np.where((i // 5 + j // 5) % 3 == 0, 0.9, 0.0),
        "one row": np.where(i == rows // 2, 1.0, 0.0),
    }[kind]
    found = rng.random((rows, columns)) < chance
    found[rng.integers(rows), rng.integers(columns)] = True
    return found


def pattern(dense: np.ndarray) -> Pattern:
    return Pattern("drawn", *dense.shape, np.flatnonzero(dense.ravel()))


@settings(max_examples=amount(60), deadline=None)
@given(
    st.sampled_from(KINDS),
    st.integers(1, 40),
    st.integers(1, 40),
    st.integers(0, 99),
    st.integers(1, 20),
    st.integers(1, 20),
)
def test_counts_are_those_of_a_walk(
    kind: str, rows: int, columns: int, seed: int, tile_rows: int, tile_columns: int
) -> None:
    dense = drawn(kind, rows, columns, seed)
    p = pattern(dense)
    tiles = [dense[at : at + tile_rows] for at in range(0, rows, tile_rows)]
    touched = [int(tile.any(axis=0).sum()) for tile in tiles]
    assert sparsity.distinct_columns(p, tile_rows).tolist() == [n for n in touched if n]
    assert sparsity.nonempty_tiles(p, tile_rows, tile_columns) == sum(
        tile[:, at : at + tile_columns].any() for tile in tiles for at in range(0, columns, tile_columns)
    )
    lengths = dense.sum(axis=1)
    counted = sparsity.nonzeros_per_row(p)
    assert dict(counted.rows_with) == {int(n): int((lengths == n).sum()) for n in set(lengths)}
    assert counted.mean == pytest.approx(lengths.mean())
    for percent in sparsity.QUANTILES:
        most = counted.at_percent(percent)
        assert (lengths <= most).sum() * 100 >= percent * rows
        assert (lengths < most).sum() * 100 < percent * rows or most == lengths.min()
    assert sparsity.bandwidth(p) == max(abs(int(i) - int(j)) for i, j in zip(*np.nonzero(dense), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_from_the_one_before_are_those_by_themselves(kind: str) -> None:
    p = pattern(drawn(kind, 300, 170, 1))
    found = list(sparsity.tile_rows(p))
    assert [row.tile for row in found] == [16, 64, 256]
    for row in found:
        distinct = sparsity.distinct_columns(p, row.tile)
        assert row.row_tiles == -(-300 // row.tile)
        assert row.distinct_columns == pytest.approx(distinct.sum() / row.row_tiles)
        assert row.largest == distinct.max()
        assert row.nonempty == sparsity.nonempty_tiles(p, row.tile, row.tile)
        assert row.tiles == row.row_tiles * -(-170 // row.tile)


def test_evenly_is_what_matrices_spread_evenly_have_in_the_mean() -> None:
    """Of many drawn matrices, with rows and columns that leave a remainder."""
    rows, columns, density, drawn_count = 70, 37, 0.02, 400
    rng = np.random.default_rng(0)
    found = []
    for _ in range(drawn_count):
        dense = rng.random((rows, columns)) < density
        dense[0, 0] |= not dense.any()
        [first, *_] = sparsity.tile_rows(pattern(dense))
        found.append((first.distinct_columns, first.distinct_evenly, first.nonempty, first.nonempty_evenly))
    distinct, distinct_evenly, nonempty, nonempty_evenly = np.mean(found, axis=0)
    assert distinct_evenly == pytest.approx(distinct, rel=0.02)
    assert nonempty_evenly == pytest.approx(nonempty, rel=0.02)


def test_a_band_is_told_from_a_power_law(tmp_path: Path) -> None:
    """As many rows and nonzeros, other counts; `dse check` shows them."""
    said = []
    for kind in ("banded", "power law"):
        dense = drawn(kind, 200, 200, 3)
        keep = np.flatnonzero(dense.ravel())[:600]
        a = scipy.sparse.coo_array((np.ones(600), np.divmod(keep, 200)), shape=(200, 200))
        scipy.io.mmwrite(path := tmp_path / f"{kind.replace(' ', '_')}.mtx", a)
        said.append(check.sparsity(str(path)))
    (band, _, band_rows), (law, _, law_rows) = said
    assert "200 x 200" in band["matrix"]
    assert band["matrix"].replace("banded", "") == law["matrix"].replace("power_law", "")
    assert int(band["bandwidth"]) <= 2 < int(law["bandwidth"])
    assert band_rows[0].distinct_columns < law_rows[0].distinct_columns
    assert check.sparsity("cg") is None
    assert sum(n * rows for n, rows in said[0].rows_with) == 600


# Files


A = np.array([[2.0, 0, 0, 1], [0, 0, 0, 0], [0, 3, 0, 0], [1, 0, 0, 4]])
PLACES = [0, 3, 9, 12, 15]


@pytest.mark.parametrize("kind", ["csr", "csc", "coo", "dia", "bsr"])
def test_npz_files_of_scipy(tmp_path: Path, kind: str) -> None:
    scipy.sparse.save_npz(path := tmp_path / "a.npz", scipy.sparse.csr_array(A).asformat(kind))
    found = read_pattern(path)
    stored = [0, 3, 9, 12, 15] if kind != "dia" else found.places.tolist()
    assert (found.name, found.rows, found.columns, found.places.tolist()) == ("a", 4, 4, stored)
    assert set(PLACES) <= set(found.places.tolist())
    assert catalog.load(f"{path}:solver=spmm_chain,n=2,length=1").macs() == 2 * len(found.places)


@pytest.mark.parametrize("symmetry", ["general", "symmetric"])
@pytest.mark.parametrize("field", ["real", "integer", "complex"])
@pytest.mark.parametrize("end", [".mtx", ".mtx.gz"])
def test_array_files_hold_what_coordinate_files_do(
    tmp_path: Path, symmetry: str, field: str, end: str
) -> None:
    content, dense = [], A if symmetry == "general" else A + A.T
    for i, a in enumerate((dense, scipy.sparse.coo_array(dense))):
        scipy.io.mmwrite(path := tmp_path / f"{i}.mtx", a, field=field, symmetry=symmetry)
        content.append(path.read_bytes())
        assert content[-1].split()[2] == (b"array", b"coordinate")[i]
    for one in content:
        (path := tmp_path / f"a{end}").write_bytes(gzip.compress(one) if end == ".mtx.gz" else one)
        found = read_pattern(path)
        assert (found.name, found.places.tolist(), found.is_complex) == (
            "a",
            np.flatnonzero(dense).tolist(),
            field == "complex",
        )


def test_a_skew_symmetric_array_lists_what_is_below_the_diagonal(tmp_path: Path) -> None:
    lower = "%%MatrixMarket matrix array real skew-symmetric\n4 4\n0\n7\n0\n1\n0\n5\n"
    (path := tmp_path / "a.mtx").write_text(lower)
    # columns: (1, 2, 3), (2, 3), (3); so (2, 0), (2, 1), (3, 2) and their mirrors
    assert read_pattern(path).places.tolist() == sorted([8, 2, 9, 6, 14, 11])


REAL = "%%MatrixMarket matrix coordinate real general\n"


@pytest.mark.parametrize(
    ("content", "places"),
    [
        (REAL + "3 3 4\n1 1 1\n1 1 2\n2 2 3\n3 3 1\n", [0, 4, 8]),
        (REAL + "3 3 3\n1 1 1\n2 2 3\n1 1 -1\n", [0, 4]),
        (REAL.replace("general", "symmetric") + "3 3 3\n2 1 1\n1 2 2\n2 1 3\n", [1, 3]),
        (REAL + "3 3 2\n1 1 1.0D+3\n2 2 -Inf\n", [0, 4]),
    ],
)
def test_entries_that_occur_twice_are_one_nonzero(tmp_path: Path, content: str, places: list[int]) -> None:
    (path := tmp_path / "a.mtx").write_text(content)
    assert read_pattern(path).places.tolist() == places
    assert read_matrix(path).nnz == len(places)


def test_entries_that_occur_twice_far_apart_are_one_nonzero(tmp_path: Path) -> None:
    """In chunks that are read one after the other."""
    lines = "".join(f"{i % 1000 + 1} {i % 999 + 1}\n" for i in range(999_000))
    assert len(lines) > CHUNK
    (path := tmp_path / "a.mtx").write_text(
        f"%%MatrixMarket matrix coordinate pattern general\n1000 1000 999001\n{lines}1 1\n"
    )
    assert read_matrix(path).nnz == 999_000


INTEGER, ARRAY = REAL.replace("real", "integer"), REAL.replace("coordinate", "array")


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (
            INTEGER + "3 3 2\n1 1 1\n2 2 3.5\n",
            "line 4: '2 2 3.5' must be 3 whole numbers, because the field is",
        ),
        (INTEGER + "3 3 2\n1 1 1\n2 2 1e3\n", "line 4: '2 2 1e3' must be 3 whole numbers"),
        (INTEGER + "3 3 2\n1 1 1\n\n2 2 3-1\n", "line 5: '2 2 3-1' must be 3 whole numbers"),
        (
            REAL + "3 3 2\n1 1 1\n2 2 3.5 7\n",
            "line 4: '2 2 3.5 7' must be 3 numbers, because the field is real",
        ),
        (REAL + "3 3 2\n1 1 1\n2 2 3.5m\n", "line 4: '2 2 3.5m' must be 3 numbers"),
        (REAL + "3 3 3\n1 1 1\n2 2\n1 2 3 4\n", "line 4: invalid floating-point value"),
        (ARRAY + "2 2\n1\n0\n0\n", "holds 3 entries, but its size line names 4"),
        (ARRAY + "2 2\n1\n0\n0\n1\n1\n", "holds more entries than the 4"),
        (ARRAY + "2 2\n1 0\n0\n1\n", "line 3: '1 0' must be 1 numbers"),
        (ARRAY + "2 2\n0\n0\n0\n0\n", "has no nonzero; give a matrix that has one"),
        (
            ARRAY + "2 2 4\n0\n0\n0\n0\n",
            "line 2: size line '2 2 4' must be rows and columns, each at least 1",
        ),
        (ARRAY.replace("real", "pattern") + "2 2\n", "line 1: an array has values, no pattern"),
        (ARRAY.replace("general", "symmetric") + "2 3\n", "line 2: 2 x 3 cannot be symmetric"),
        (
            REAL + "4000000000 4000000000 1\n1 1 1\n",
            "line 2: 4000000000 x 4000000000 has 2^63 places or more",
        ),
        (REAL + "2 2 1\n" + "1" * (2 * CHUNK + 1), "has a line of more than 4 MiB"),
    ],
    ids=lambda text: text[-30:].replace("\n", " "),
)
def test_malformed_files(tmp_path: Path, content: str, fault: str) -> None:
    (path := tmp_path / "a.mtx").write_text(content)
    with pytest.raises(WorkloadError, match=r"^[^\n]+$") as caught:
        read_matrix(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert fault in str(caught.value)


def test_damaged_files_are_one_line(tmp_path: Path) -> None:
    scipy.sparse.save_npz(tmp_path / "good.npz", scipy.sparse.csr_array(A))
    np.savez(tmp_path / "other.npz", a=np.arange(3))
    far = {
        "indices": np.array([9]),
        "indptr": np.array([0, 1, 1]),
        "data": np.ones(1),
        "shape": np.array([2, 2]),
    }
    np.savez(tmp_path / "far.npz", format=np.array(b"csr"), **far)
    np.savez(tmp_path / "objects.npz", format=np.array(b"csr"), **{**far, "data": np.array([{}])})
    np.savez(tmp_path / "falling.npz", format=np.array(b"csr"), **{**far, "indptr": np.array([0, 5, 1])})
    scipy.sparse.save_npz(tmp_path / "empty.npz", scipy.sparse.csr_array((3, 3)))
    (tmp_path / "text.npz").write_text("no archive")
    (tmp_path / "cut.npz").write_bytes((tmp_path / "good.npz").read_bytes()[:-30])
    packed = gzip.compress((REAL + "3 3 1\n1 1 1\n").encode())
    (tmp_path / "cut.mtx.gz").write_bytes(packed[:-12])
    (tmp_path / "plain.mtx.gz").write_text(REAL)
    faults = {
        "other.npz": "holds no sparse matrix of SciPy",
        "far.npz": "holds no sparse matrix of SciPy",
        "falling.npz": "holds no sparse matrix of SciPy",
        "objects.npz": "holds no sparse matrix of SciPy",
        "text.npz": "holds no sparse matrix of SciPy",
        "cut.npz": "holds no sparse matrix of SciPy",
        "empty.npz": "has no nonzero",
        "cut.mtx.gz": "its compressed data is damaged or cut off",
        "plain.mtx.gz": "is not compressed by gzip",
        "absent.mtx.gz": "cannot be read (No such file or directory); did you mean ",
        "absent.npz": "cannot be read (No such file or directory); give the path of a .mtx",
    }
    for name, fault in faults.items():
        with pytest.raises(WorkloadError, match=r"^[^\n]+$") as caught:
            read_matrix(tmp_path / name)
        assert str(caught.value).startswith(f"{tmp_path / name}: {fault}"), name

"""Einsums: one tensor operation as text, parsed once into ranks, tensors and affine indices.

Notation (after Timeloop's projections, and the einsums of TeAAL and AccelForge):
    "O[n,k,p,q] += I[n,c,2*p+r-3,2*q+s-3] * W[k,c,r,s]"     a strided, padded convolution
    "O[m] max= X[m,w]"    "Y[m] = A[m] + B[m]"    "Y[m] = gelu(X[m])"    "Y[m,n] = X[n,m]"
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import lru_cache
from math import ceil, prod
from typing import Any

import numpy as np

from workloads.meant import FORMATS, STRUCTURED

ASSIGN = re.compile(r"^(?P<out>[^=]*?)(?P<op>\+=|max=|=)(?P<body>.*)$", re.S)
ACCESS = re.compile(r"([A-Za-z_]\w*)\s*\[([^\]]*)\]")
CALL = re.compile(r"^([A-Za-z_]\w*)\s*\((.*)\)$", re.S)
RUN_BITS = 5  # width of a run of zeros in rle; Source: Eyeriss (Chen et al., JSSC 2017, section V-C)
GOGETA_BITS = 32  # bits of column indices and row pointers as GOGETA counts them: 4 bytes, like the values
SCALAR = "one"  # name of the rank of an einsum of scalars
# kinds of einsums that need all of their first input before they return any element
BY_TENSOR = ("inverse", "topk", "nonzero", "unique")
# kinds of einsums that need a row before they return any element of it -> the dimensions of the output that
# a row spans: from this one to the last. A name such as softmax_axis1 says another one.
BY_ROW = {
    **dict.fromkeys(("softmax", "logsoftmax", "hardmax", "softmax_grad", "lpnormalization"), -1),
    **dict.fromkeys(("layernormalization", "rmsnormalization"), -1),
    "instancenormalization": 2,
    "groupnormalization": 1,
    "meanvariancenormalization": 0,
}
# kinds of einsums whose elements need earlier results of their row: any loop that visits a row in order may
# cut it
RUNNING = ("scan", "cumsum", "cumprod", "running_max")
# kind of a triangular solve, with the levels of its rows, which follow one another
SOLVE = re.compile(r"(?:lower|upper)_solve_levels([1-9]\d*)")
ROW_AXIS = re.compile(r"_axis(\d+)$")
# sign, coefficient, rank or whole number
TERM = re.compile(r"([+-]?)(?:(\d+)\*)?([A-Za-z_]\w*|\d+)")


class WorkloadError(ValueError):
    """Wrong input: one line per fault."""


def refuse(faults: Iterable[str]) -> None:
    """Raises WorkloadError with one line per fault, if there are any."""
    if lines := "\n".join(faults):
        raise WorkloadError(lines)


def closest(word: str, vocabulary: Iterable[str], otherwise: str) -> str:
    """Returns the advice for a misspelt word: the most similar known one; `otherwise` where none is similar.

    >>> closest("cor", ["cora", "protein"], "there are cora, protein")
    'do you mean cora?'
    """
    matches = difflib.get_close_matches(word, list(vocabulary), 1)
    return f"do you mean {matches[0]}?" if matches else otherwise


class TooLong(ValueError):
    """An extent too long for quantities that are counted position by position. The message says what to use
    instead.
    """


@dataclass(frozen=True, slots=True)
class Dim:
    """One dimension of a tensor: index = offset + sum(coefficient * rank)."""

    terms: tuple[tuple[str, int], ...]  # (rank, coefficient) of each rank
    offset: int
    size: int  # indices 0..size-1 are stored, others are padding

    def ranks(self) -> tuple[str, ...]:
        """Returns the ranks of the index, in order; () for a constant index."""
        return tuple(rank for rank, _ in self.terms)

    def hull(self, tile: Mapping[str, int]) -> int:
        """Returns how many positions the indices of a tile span, padding included: 1 + sum c (s - 1)."""
        return 1 + sum(c * (tile[rank] - 1) for rank, c in self.terms)

    def is_stored(self, tile: Mapping[str, int]) -> bool:
        """True if every index of a tile is stored, none being padding."""
        return self.offset >= 0 and self.offset + self.hull(tile) <= self.size


@dataclass(frozen=True, slots=True)
class TileColumns:
    """Distinct columns that tiles of whole rows of a sparse matrix have a nonzero in, in the mean over all
    tiles of a size: the rows of a dense operand that one such tile reads. Counted in
    `workloads.sparsity.tile_columns`.
    """

    rows: int
    columns: int
    digest: str  # of all fields: equal digests, equal values
    sizes: tuple[int, ...] = field(compare=False, repr=False)  # rows of a tile, ascending, from 1 to `rows`
    means: tuple[float, ...] = field(compare=False, repr=False)  # of each size

    def mean(self, tile_rows: Any) -> Any:
        """Returns the distinct columns of a tile of so many rows (a number, or an array of them): as counted
        where `sizes` has them, which is wherever tiles divide the rows, else on the line between the sizes
        beside it.
        """
        return np.interp(tile_rows, (0, *self.sizes), (0.0, *self.means))


@dataclass(frozen=True, slots=True)
class Projection:
    """How an einsum reads or writes one tensor. A scalar is a tensor of one element at a constant index, so
    that every tensor has a dimension.
    """

    tensor: str
    dims: tuple[Dim, ...]
    bits: int | None = None  # width of an element; None: the machine's word
    density: float = 1.0  # share of nonzeros
    # dense; csr: a value and a column index per nonzero, a pointer per row; coo: a value and all indices per
    # nonzero; rle: a value and the zeros before it; bitmask: a value per nonzero, a bit per element; N:M: of
    # M neighbours N values with their positions (`STRUCTURED`)
    format: str = "dense"
    # width of what is stored beside the value of a nonzero: csr: a column index, coo: all indices, rle: a run
    # of zeros, N:M: a position; 0: the minimum, of rle RUN_BITS. Same in every tile; dense, bitmask: 0
    index_bits: int = 0
    # csr: width of a row pointer; 0: the minimum for its nonzeros. Same in every tile; dense: 0
    pointer_bits: int = 0
    tile_columns: TileColumns | None = None  # csr: of its matrix, where that was read; else None

    def __post_init__(self) -> None:
        if not self.dims:
            object.__setattr__(self, "dims", (Dim((), 0, 1),))
        if self.format != "csr":
            object.__setattr__(self, "tile_columns", None)
        index, pointer = min_widths(self)
        default = max(index, RUN_BITS) if self.format == "rle" else index
        object.__setattr__(self, "index_bits", (self.index_bits or default) if index else 0)
        object.__setattr__(self, "pointer_bits", (self.pointer_bits or pointer) if pointer else 0)

    def full_ranks(self) -> frozenset[str]:
        """Returns the fully relevant ranks: those that are the only one in a dimension, with coefficient
        1.
        """
        return frozenset(d.terms[0][0] for d in self.dims if len(d.terms) == 1 and d.terms[0][1] == 1)

    def ranks(self) -> frozenset[str]:
        """Returns all ranks that the tensor is indexed by."""
        return frozenset(rank for d in self.dims for rank, _ in d.terms)

    def partial_ranks(self) -> frozenset[str]:
        """Returns the ranks that share a dimension with others or have a coefficient: windows and strides."""
        return self.ranks() - self.full_ranks()

    def stored_elems(self) -> int:
        """Returns the elements of the whole tensor, zeros and stored padding included."""
        return prod(d.size for d in self.dims)

    def stored_words(self) -> int:
        """Returns how many numbers the whole tensor stores, whatever their widths: dense: all elements; csr:
        2 per expected nonzero and one per row; other formats: 2 per value that is stored.
        """
        if self.format == "dense":
            return self.stored_elems()
        # rounded first: a density of nnz / size is not an exact float
        values = ceil(round(2 * self.stored_density() * self.stored_elems(), 6))
        return values + (prod(d.size for d in self.dims[:-1]) if self.pointer_bits else 0)

    def stored_bits(self, word_bits: int) -> int:
        """Returns the bits of the whole tensor on a machine with such words."""
        return self.tile_bits(self.stored_elems(), prod(d.size for d in self.dims[:-1]), word_bits)

    def tile_bits(self, elems: int, rows: int, word_bits: int) -> int:
        """Returns the bits of a tile with so many elements in so many rows. dense: all elements; csr: the
        expected nonzeros (rounded up) with an index each, and a pointer per row.

        >>> sizes, sparse = {"m": 10, "k": 100}, {"density": {"A": 0.03}, "format": {"A": "csr"}}
        >>> a = einsum("Y[m] += A[m,k] * X[k]", sizes, **sparse).inputs[0]
        >>> a.index_bits, a.pointer_bits, a.tile_bits(50, 1, word_bits=8), a.stored_bits(word_bits=8)
        (7, 5, 35, 500)
        """
        if self.format == "dense":
            return elems * self.elem_bits(word_bits)
        values = nonzeros(self.stored_density(), elems)
        return values * self.elem_bits(word_bits) + rows * self.pointer_bits + elems * self.mask_bits()

    def elem_bits(self, word_bits: int) -> int:
        """Returns the bits of an element; of a compressed tensor those of a nonzero with its index."""
        return (self.bits or word_bits) + self.index_bits

    def mask_bits(self) -> int:
        """Returns the bits that are stored of each element, zero or not."""
        return int(self.format == "bitmask")

    def stored_density(self) -> float:
        """Returns the expected values that are stored per element: the nonzeros, and in rle a zero wherever a
        run is longer than its bits can say.

        With nonzeros at random, k zeros precede one with probability d (1 - d)^k, and k // 2^b of them are
        stored: q / (1 - q) in the mean, q = (1 - d)^(2^b). So d (1 + q / (1 - q)) are stored.
        """
        if self.format != "rle":
            return self.density
        return self.density / (1 - (1 - self.density) ** (1 << self.index_bits))

    def compressed_words(self, word_bits: int) -> tuple[float, float]:
        """Returns what a compressed tensor stores (per element, per row), in units of an element's width."""
        bits = self.bits or word_bits
        of_values = (1 + self.index_bits / bits) * self.stored_density()
        return (
            of_values + self.mask_bits() / bits if self.mask_bits() else of_values,
            self.pointer_bits / bits,
        )


def nonzeros(density: float, elems: int) -> int:
    """Returns the expected nonzeros, rounded up."""
    return ceil(round(density * elems, 6))


def min_widths(p: Projection) -> tuple[int, int]:
    """Returns the minimum bits of what a compressed tensor stores beside a nonzero, and of a row pointer, 0
    where it has none. csr: ceil(log2) of the columns, and of the nonzeros + 1, at least 1; coo: of each
    dimension, added up; N:M: of M.

    An invalid density does not raise here; `einsum` refuses it.
    """
    if match := STRUCTURED.fullmatch(p.format):
        return (int(match[2]) - 1).bit_length(), 0
    if p.format == "coo":
        return max(sum((d.size - 1).bit_length() for d in p.dims), 1), 0
    if p.format != "csr":
        return int(p.format == "rle"), 0
    nnz = nonzeros(p.density, p.stored_elems()) if 0 < p.density <= 1 else 1
    return max((p.dims[-1].size - 1).bit_length(), 1), max(nnz.bit_length(), 1)


@dataclass(frozen=True, slots=True)
class Einsum:
    """One tensor operation. An einsum of scalars has one iteration: it gets one rank of extent 1 that no
    tensor has, so that every einsum has a rank.
    """

    name: str
    kind: str  # mac, max, add, mul, copy (data movement), or the name of a function of its inputs
    output: Projection
    inputs: tuple[Projection, ...]
    extents: tuple[tuple[str, int], ...]  # (rank, size) of every rank
    # share of the iterations at which all inputs are nonzero, where it was counted from their matrices; 0:
    # the product of their densities
    share: float = 0.0

    def __post_init__(self) -> None:
        if not self.extents:
            object.__setattr__(self, "extents", ((SCALAR, 1),))

    def sizes(self) -> dict[str, int]:
        """Returns the extent of every rank, in the order of the einsum."""
        return dict(self.extents)

    def tensors(self) -> tuple[Projection, ...]:
        """Returns inputs in the order of the text, then the output."""
        return (*self.inputs, self.output)

    def map_projections(self, change: Callable[[Projection], Projection], **fields: Any) -> Einsum:
        """Returns the einsum with change(p) for every access p, and with other fields as given."""
        return replace(self, output=change(self.output), inputs=tuple(map(change, self.inputs)), **fields)

    def ranks(self) -> tuple[str, ...]:
        """Returns ranks in the order of their first appearance in the output, then in the inputs, then ranks
        that no tensor has. Equal einsums match rank by rank in this order.
        """
        found = dict.fromkeys(rank for p in (self.output, *self.inputs) for d in p.dims for rank in d.ranks())
        return tuple(found | dict.fromkeys(self.sizes()))

    def whole_ranks(self) -> frozenset[str]:
        """Returns the ranks of the output along which no element is known before all of the input is: those
        of the rows of a softmax or norm, all of an inverse.

        >>> sorted(einsum("Y[b,m,n] = softmax(X[b,m,n])", {"b": 2, "m": 3, "n": 4}).whole_ranks())
        ['n']
        >>> sorted(einsum("Y[b,m,n] = softmax_axis1(X[b,m,n])", {"b": 2, "m": 3, "n": 4}).whole_ranks())
        ['m', 'n']
        """
        axis, kind = ROW_AXIS.search(self.kind), ROW_AXIS.sub("", self.kind)
        if kind in BY_TENSOR:
            return self.output.ranks()
        dims = self.output.dims[int(axis[1]) if axis else BY_ROW[kind] :] if kind in BY_ROW else ()
        return frozenset(rank for d in dims for rank in d.ranks())

    def levels(self) -> int:
        """Returns how many steps follow one another in a triangular solve; 1: it is none, or says no levels.

        >>> sizes = {"m": 3, "n": 1, "k": 3}
        >>> einsum("Y[m,n] = lower_solve_levels3(L[m,k], R[k,n])", sizes).levels()
        3
        """
        solve = SOLVE.fullmatch(self.kind)
        return int(solve[1]) if solve else 1

    def without_pattern(self) -> Einsum:
        """Returns the einsum without what is known of the places of nonzeros: all that is read of a dense
        operand is then whole tiles.
        """
        if not any(p.tile_columns for p in self.inputs):
            return self
        return self.map_projections(lambda p: replace(p, tile_columns=None))

    def points(self) -> int:
        """Returns the iterations of the whole loop nest, padded positions included."""
        return prod(n for _, n in self.extents)

    def macs(self) -> int:
        """Returns the expected multiplications of nonzeros. With one sparse operand of density nnz / stored
        this is exactly the number of products of its nonzeros (below 2**52).
        """
        if self.kind != "mac":
            return 0
        shares = [self.share] if self.share else [p.density for p in self.inputs]
        return round(prod(map(Fraction, shares), start=Fraction(self.points())))

    def expected_density(self) -> float | None:
        """Returns the share of nonzeros that is expected of the output, with the nonzeros of the inputs at
        independent, uniform places; None: inputs with zeros have reduced ranks, but not the same ones.

        An element of S[m,n] += M[m,n] * A[m,k] * B[k,n] is nonzero where M is, and A B at one of the K values
        of k: d = d_M (1 - (1 - d_A d_B)^K).

        >>> sparse = {"density": {"A": 0.5, "B": 0.5}, "format": {"A": "csr", "B": "csr"}}
        >>> einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 9, "n": 9, "k": 2}, **sparse).expected_density()
        0.4375
        """
        own, sizes = self.output.ranks(), self.sizes()
        reduced = [(p.ranks() - own, p.density) for p in self.inputs if p.density < 1]
        sets = {ranks for ranks, _ in reduced if ranks}
        if len(sets) > 1:
            return None
        whole = prod(density for ranks, density in reduced if not ranks)
        if not sets:
            return whole
        places = prod(sizes[rank] for ranks in sets for rank in ranks)
        each = prod(density for ranks, density in reduced if ranks)
        return whole * float(-np.expm1(places * np.log1p(-each)))


def csr(
    tensor: str,
    density: float,
    index_bits: int = 0,
    pointer_bits: int = 0,
    tile_columns: TileColumns | None = None,
) -> dict[str, Any]:
    """Returns arguments of `einsum` for a compressed tensor. Widths of 0: the minimum (`min_widths`)."""
    widths = {"index_bits": index_bits, "pointer_bits": pointer_bits}
    return {
        "density": {tensor: density},
        "format": {tensor: "csr"},
        **{what: {tensor: n} for what, n in widths.items() if n},
        **({"tile_columns": {tensor: tile_columns}} if tile_columns else {}),
    }


def einsum(
    text: str,
    extents: Mapping[str, int],
    name: str = "",
    *,
    sizes: Mapping[str, tuple[int, ...]] | None = None,
    bits: Mapping[str, int] | None = None,
    density: Mapping[str, float] | None = None,
    format: Mapping[str, str] | None = None,
    index_bits: Mapping[str, int] | None = None,
    pointer_bits: Mapping[str, int] | None = None,
    tile_columns: Mapping[str, TileColumns] | None = None,
) -> Einsum:
    """Parses one einsum.

    extents: size of every rank variable
    sizes: tensor -> stored shape, where padding or cropping makes it differ from the hull of its indices (the
        default)
    bits, density, format: by tensor
    index_bits, pointer_bits, tile_columns: by csr tensor

    Raises WorkloadError with the text, the fault and the fix in one line.
    >>> einsum("C[m,n] += A[m,k] * B[k,n]", {"m": 4, "n": 2, "k": 3}).macs()
    24
    """
    given: dict[str, Mapping[str, Any]] = {
        "size": sizes or {},
        "bits": bits or {},
        "density": density or {},
        "format": format or {},
        "index_bits": index_bits or {},
        "pointer_bits": pointer_bits or {},
        "tile_columns": tile_columns or {},
    }
    try:
        return _parsed(text, extents, name, given)
    except WorkloadError as fault:
        raise WorkloadError(f'einsum "{text}": {fault}') from None


def _parsed(
    text: str, extents: Mapping[str, int], name: str, given: Mapping[str, Mapping[str, Any]]
) -> Einsum:
    """Returns the einsum of a text. given: field of Projection -> tensor -> value."""
    match = ASSIGN.match(text.strip())
    if not match:
        raise WorkloadError('no "=", "+=" or "max="; write e.g. "C[m,n] += A[m,k] * B[k,n]"')
    for rank, extent in extents.items():
        if not isinstance(extent, int) or isinstance(extent, bool) or extent < 1:
            raise WorkloadError(
                f"extent of rank {rank} is {extent!r}; it must be a whole number of at least 1"
            )
    out = ACCESS.findall(match["out"])
    if len(out) != 1 or ACCESS.sub("", match["out"]).strip():
        raise WorkloadError(f'the left side of "{match["op"]}" must be one output, Name[ranks]')
    inputs, kind = _body(match["op"], match["body"].strip())
    projections = []
    for tensor, index in (*out, *inputs):
        attributes = {
            field: by_tensor[tensor]
            for field, by_tensor in given.items()
            if field != "size" and tensor in by_tensor
        }
        if structured := STRUCTURED.fullmatch(str(attributes.get("format", ""))):
            attributes.setdefault("density", int(structured[1]) / int(structured[2]))
        projections.append(
            Projection(tensor, _dims(tensor, index, extents, given["size"].get(tensor)), **attributes)
        )
    _check(projections, extents, given)
    output, *operands = projections
    used = {rank for p in projections for rank in p.ranks()}
    ordered = tuple((rank, int(n)) for rank, n in extents.items() if rank in used)
    found = Einsum(name or output.tensor, kind, output, tuple(operands), ordered)
    packed = output.format != "dense" and not STRUCTURED.fullmatch(output.format)
    if packed and output.tensor not in given["density"]:
        found = _with_expected_density(found, given)
    _check_widths(found.tensors(), given)
    return found


def _with_expected_density(e: Einsum, given: Mapping[str, Mapping[str, Any]]) -> Einsum:
    """Returns the einsum with the density that is expected of its compressed output."""
    density, tensor = e.expected_density(), e.output.tensor
    if density is None:
        raise WorkloadError(
            f"density of tensor {tensor} is not given, and of inputs with zeros that reduce different ranks "
            f"none is expected; say density: {{{tensor}: ...}}"
        )
    pointer_bits = given["pointer_bits"].get(tensor, 0)
    return replace(e, output=replace(e.output, density=density, pointer_bits=pointer_bits))


def _body(op: str, body: str) -> tuple[list[tuple[str, str]], str]:
    """Returns the accesses of the right-hand side as (tensor, index), and the einsum's kind."""
    call = CALL.match(body)
    arguments = call[2] if call else body
    inputs = ACCESS.findall(arguments)
    # what stands between the accesses, each shown as @
    glue = re.sub(r"\s", "", ACCESS.sub("@", arguments))
    joins = [","] if call else ["*", "+"]
    if not inputs or glue not in [join.join("@" * len(inputs)) for join in joins]:
        fix = "name them with ranks and join them with * or with +, or write function(A[m], B[m])"
        raise WorkloadError(f'"{body}" is no product, sum or function of tensors; {fix}')
    if call:
        return inputs, call[1]
    if op == "max=":
        return inputs, "max"
    if op == "+=":
        return inputs, "mac" if "*" in glue else "add"
    return inputs, "mul" if "*" in glue else "add" if "+" in glue else "copy"


def _dims(
    tensor: str, index: str, extents: Mapping[str, int], stored_shape: Sequence[int] | None
) -> tuple[Dim, ...]:
    """Returns the dimensions of an access; where no shape is given, as large as the indices reach."""
    parts = [re.sub(r"\s", "", part) for part in index.split(",")] if index.strip() else []
    if not parts and stored_shape in (None, (), (1,)):
        return ()
    if stored_shape is not None and len(stored_shape) != len(parts):
        raise WorkloadError(
            f"tensor {tensor} has {len(parts)} dimensions, its size names {len(stored_shape)}"
        )
    dims = []
    for position, part in enumerate(parts):
        terms, offset = _affine(tensor, part)
        unknown = [rank for rank, _ in terms if rank not in extents]
        if unknown:
            known = ", ".join(extents)
            raise WorkloadError(f"rank {unknown[0]} of tensor {tensor} has no extent; known: {known}")
        hull = offset + sum(max(c, 0) * (extents[rank] - 1) for rank, c in terms) + 1
        dims.append(Dim(terms, offset, max(hull, 1) if stored_shape is None else int(stored_shape[position])))
    return tuple(dims)


def _affine(tensor: str, part: str) -> tuple[tuple[tuple[str, int], ...], int]:
    """Returns the terms (rank, coefficient) and the offset of an index such as 2*p+r-1."""
    terms: list[tuple[str, int]] = []
    offset, rest, index = 0, part, f'index "{part}" of tensor {tensor}'
    while rest:
        match = TERM.match(rest)
        if not match or (rest is not part and not match[1]):  # terms after the first begin with a sign
            raise WorkloadError(f"{index} is not a sum like 2*p+r-1")
        coefficient = int(match[2] or 1)
        if match[3].isdigit():
            offset += (-1 if match[1] == "-" else 1) * coefficient * int(match[3])
        elif coefficient == 0:
            raise WorkloadError(f"{index} has coefficient 0; leave the rank out")
        elif match[1] == "-":
            raise WorkloadError(f"{index} has a negative coefficient; count the rank from its other end")
        else:
            terms.append((match[3], coefficient))
        rest = rest[match.end() :]
    if not part:
        raise WorkloadError(f"tensor {tensor} has an empty index")
    return tuple(terms), offset


def _check(
    projections: Sequence[Projection], extents: Mapping[str, int], given: Mapping[str, Mapping[str, object]]
) -> None:
    names = [p.tensor for p in projections]
    for p in projections:
        ranks = [rank for d in p.dims for rank in d.ranks()]
        if len(ranks) != len(set(ranks)):
            raise WorkloadError(
                f"a rank stands twice in tensor {p.tensor}; it may stand in one dimension only"
            )
        structured = STRUCTURED.fullmatch(p.format)
        if p.format not in FORMATS and not structured:
            known = f"{', '.join(FORMATS)}, or N:M as 2:4"
            raise WorkloadError(f"format of tensor {p.tensor} is {p.format!r}; it must be {known}")
        if structured and not int(structured[1]) < int(structured[2]):
            raise WorkloadError(
                f"format of tensor {p.tensor} is {p.format}; of M neighbours N, fewer than M, are nonzero: "
                "write e.g. 2:4"
            )
        sizes = [d.size for d in p.dims]
        if min(sizes) < 1 or not 0 < p.density <= 1 or (p.bits is not None and p.bits < 1):
            raise WorkloadError(f"tensor {p.tensor} needs sizes and bits of at least 1 and 0 < density <= 1")
        if structured and int(structured[2]) > p.dims[-1].size:
            raise WorkloadError(
                f"format of tensor {p.tensor} is {p.format}, and its rows have {p.dims[-1].size} elements; "
                f"write N:M with M of {p.dims[-1].size} at most"
            )
        if structured and p.density != int(structured[1]) / int(structured[2]):
            raise WorkloadError(
                f"tensor {p.tensor} is {p.format} and has density {p.density:g}; leave density out"
            )
        if p.format == "csr" and (fault := padded_rows_fault(p, extents)):
            raise WorkloadError(f"format of tensor {p.tensor} is csr, and {fault}")
        is_packed_result = p.format != "dense" and p is projections[0]
        if is_packed_result and (fault := packed_result_fault(p, projections[1:])):
            raise WorkloadError(fault)
    if twice := [name for i, name in enumerate(names) if name in names[:i]]:
        again = f"name its second access {twice[0]}_again"
        if twice[0] == names[0]:
            again = "give the result a name of its own"
        raise WorkloadError(f"a tensor stands twice, {twice[0]}; {again}")
    for what, by_tensor in given.items():
        for tensor in set(by_tensor) - set(names):
            tensors = ", ".join(names)
            raise WorkloadError(f"{what} names tensor {tensor}, which it does not have; it has {tensors}")


def padded_rows_fault(p: Projection, sizes: Mapping[str, int]) -> str:
    """Returns why pointers of the rows of a tensor are not counted, with the fix; "": they are. A tile whose
    columns are all padding, as of I[c,p+r-1] at p = r = 0, holds nothing: its rows have no pointers.

    sizes: of the einsum's ranks
    """
    if not p.dims or p.dims[-1].is_stored(sizes):
        return ""
    return "its rows are padded or cropped, where pointers are not counted; take coo, rle or bitmask"


def packed_result_fault(p: Projection, inputs: Sequence[Projection]) -> str:
    """Returns why a result p of these inputs cannot be stored compressed, with the fix; "": it can."""
    if not any(q.density < 1 for q in inputs):
        return (
            f"tensor {p.tensor} cannot be {p.format}; its zeros are those of inputs: give one a density "
            "below 1"
        )
    if any(d.offset or len(d.terms) != 1 or d.terms[0][1] != 1 for d in p.dims):
        return (
            f"tensor {p.tensor} cannot be {p.format}; each of its dimensions must be one rank, as in "
            f"{p.tensor}[m,n]"
        )
    if STRUCTURED.fullmatch(p.format) and not any((q.format, q.dims) == (p.format, p.dims) for q in inputs):
        return (
            f"tensor {p.tensor} cannot be {p.format}; sums of products fall anywhere in a group unless an "
            f"input with the same indices is {p.format}: take csr, coo, rle or bitmask"
        )
    return ""


@lru_cache(maxsize=1 << 14)
def stored_as(p: Projection, form: str, index_bits: int = 0, pointer_bits: int = 0) -> Projection:
    """Returns a tensor as a memory that stores its role in another format has it. Widths of 0: the tensor's
    own in its own format, else the least (`min_widths`). A tensor without zeros that is dense stays so.

    >>> a = einsum("Y[m] += A[m,k] * X[k]", {"m": 8, "k": 16}, density={"A": 0.25}).inputs[0]
    >>> [stored_as(a, form).stored_bits(8) for form in ("dense", "csr", "bitmask")]
    [1024, 432, 384]
    """
    if p.format == "dense" and p.density == 1:
        return p
    own = (p.index_bits, p.pointer_bits) if form == p.format else (0, 0)
    return replace(p, format=form, index_bits=index_bits or own[0], pointer_bits=pointer_bits or own[1])


def _check_widths(projections: Sequence[Projection], given: Mapping[str, Mapping[str, int]]) -> None:
    for p in projections:
        match = STRUCTURED.fullmatch(p.format)
        places = {"csr": f"{p.dims[-1].size} columns", "coo": f"{p.stored_elems()} places"}
        index_of = places.get(p.format, f"{match[2]} positions" if match else "runs")
        contents = (index_of, f"{nonzeros(p.density, p.stored_elems())} nonzeros")
        for what, min_width, content in zip(
            ("index_bits", "pointer_bits"), min_widths(p), contents, strict=True
        ):
            width = given[what].get(p.tensor)
            if width is not None and not min_width:
                which = "csr" if what == "pointer_bits" else "csr, coo, rle or N:M"
                raise WorkloadError(
                    f"{what} names tensor {p.tensor}, which is {p.format}; only a {which} tensor has them"
                )
            if width is not None and width < min_width:
                raise WorkloadError(
                    f"{what} of tensor {p.tensor} is {width!r}; its {content} need at least {min_width}"
                )


def show(e: Einsum) -> str:
    """Returns the text of an einsum. `einsum` parses it again with the same extents and sizes."""
    inputs = [show_access(p) for p in e.inputs]
    reduces = bool(set(e.sizes()) - e.output.ranks())
    left, has_several = show_access(e.output), len(inputs) > 1
    if e.kind == "mac" and has_several:
        return f"{left} += {' * '.join(inputs)}"
    if e.kind == "max" and reduces:
        return f"{left} max= {' + '.join(inputs)}"
    if e.kind == "add" and (reduces or has_several):
        return f"{left} {'+=' if reduces else '='} {' + '.join(inputs)}"
    if e.kind == "mul" and has_several:
        return f"{left} = {' * '.join(inputs)}"
    if e.kind == "copy" and not has_several:
        return f"{left} = {inputs[0]}"
    return f"{left} = {e.kind}({', '.join(inputs)})"


def show_access(p: Projection) -> str:
    """Returns a tensor with its indices, as in the text of its einsum."""
    return f"{p.tensor}[{','.join(show_dim(d) for d in p.dims)}]"


def show_dim(d: Dim) -> str:
    """Returns an index, as in the text of its einsum."""
    terms = [rank if c == 1 else f"{c}*{rank}" for rank, c in d.terms]
    text = "+".join(terms)
    return (text or "0") if not d.offset else f"{text}{d.offset:+d}" if text else str(d.offset)


@lru_cache(maxsize=1 << 14)
def in_groups(e: Einsum) -> Projection | None:
    """Returns the operand in N:M that PEs may step through together (`lockstep`): the only one with zeros,
    where the result is dense, and its last dimension a rank of its own in whole groups of M. None: no such.
    """
    sparse_operands = [p for p in e.inputs if p.density != 1]
    own = sparse_operands[0] if len(sparse_operands) == 1 else None
    groups = STRUCTURED.fullmatch(own.format) if own else None
    if own is None or not groups or e.output.format != "dense":
        return None
    last, m = own.dims[-1], int(groups[2])
    alone = len(last.terms) == 1 and last.terms[0][1] == 1 and last.offset == 0
    return None if not alone or e.sizes()[last.terms[0][0]] % m or last.size % m else own


def whole_slots(e: Einsum, rank: str) -> int:
    """Returns the number of values along a rank of which each PE gets a multiple where PEs step through an
    operand in N:M together (`in_groups`): M / N along its rows, those of one of the N slots of a group, or M
    where N does not divide it; 1 along other ranks.
    """
    own = in_groups(e)
    if own is None or own.dims[-1].ranks() != (rank,):
        return 1
    n, m = map(int, own.format.split(":"))
    return m if m % n else m // n


def canonical_key(e: Einsum) -> str:
    """Returns a key that is equal for einsums that differ in names only: same kind, index structure, extents,
    stored sizes, bits, densities, formats.
    """
    rename: dict[str, str] = {}
    parts = [e.kind]
    extents = e.sizes()
    for p in (e.output, *e.inputs):
        dims = []
        for d in p.dims:
            terms = []
            for rank, c in d.terms:
                short = rename.setdefault(rank, f"{len(rename)}:{extents[rank]}")
                terms.append(f"{c}*{short}")
            dims.append(f"{'+'.join(terms)}{d.offset:+d}/{d.size}")
        widths = f"|{p.index_bits}|{p.pointer_bits}" if p.format != "dense" else ""
        pattern = f"|{p.tile_columns.digest}" if p.tile_columns else ""
        parts.append(f"{','.join(dims)}|{p.bits}|{p.density!r}|{p.format}{widths}{pattern}")
    parts += [f"{e.share!r}"] if e.share else []
    return hashlib.sha256(";".join(parts).encode()).hexdigest()[:16]


def compulsory_elems(p: Projection, extents: Mapping[str, int]) -> int:
    """Returns the elements of one tensor that an einsum must touch: the hull of its indices over the whole
    einsum, clipped to the stored shape (docs/model.md, counts). 0: every index is in the padding.

    extents: rank -> size
    >>> e = einsum("O[p] += I[p+r-1] * W[r]", {"p": 8, "r": 3}, sizes={"I": (8,)})
    >>> compulsory_elems(e.inputs[0], e.sizes())
    8
    """
    return prod(covered_span(d, extents) for d in p.dims)


def covered_span(d: Dim, extents: Mapping[str, int]) -> int:
    """Returns how many positions the indices of a dimension span, clipped to the stored ones. 0: all of them
    are outside.
    """
    return max(0, min(d.offset + d.hull(extents), d.size) - max(d.offset, 0))


def squeezed(e: Einsum) -> Einsum:
    """Returns the einsum without ranks of extent 1 and without the dimensions of size 1 that they leave.

    Counts do not change, and a mapper has fewer ranks to place. If all ranks have extent 1, the first one
    remains.
    """
    extents = tuple((rank, n) for rank, n in e.extents if n > 1) or e.extents[:1]
    names = {rank for rank, _ in extents}

    def slim(p: Projection) -> Projection:
        dims = [replace(d, terms=tuple(t for t in d.terms if t[0] in names)) for d in p.dims]
        # columns are never dropped, so that rows of a csr tensor remain
        columns = dims[-1] if p.format != "dense" else None
        return replace(p, dims=tuple(d for d in dims if d.terms or d.size > 1 or d.offset or d is columns))

    return e.map_projections(slim, extents=extents)

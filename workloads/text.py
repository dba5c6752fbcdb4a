"""Einsum YAML file, or einsum texts in Python -> Workload.

    name: ffn
    extents: {b: 8, m: 1024, d: 4096, f: 16384}
    einsums:
      - "H[b,m,f] += X[b,m,d] * W1[d,f]"
      - {text: "A[b,m,f] = gelu(H[b,m,f])", name: act, repeat: 1}
      - {text: "Y[b,m,d] += A[b,m,f] * W2[f,d]", bits: {W2: 4}, density: {W2: 0.5},
         sizes: {A: [8, 1024, 16384]}, extents: {d: 4096}}
    weights: [W1, W2]
    loop_state: {P: P1}     # what the next iteration reads as P is this one's result P1
    iterations: 10

A function may have any name. One that is not known is an operator of your own, which costs what it reads,
writes and iterates over.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, ConfigDict, Field, Strict, TypeAdapter, ValidationError

from workloads import document
from workloads.einsum import (
    Dim,
    Einsum,
    Projection,
    WorkloadError,
    closest,
    covered_span,
    einsum,
    refuse,
    show_access,
    show_dim,
)
from workloads.graph import Workload, base_of_any, base_tensor, follows, in_order
from workloads.loops import state_faults
from workloads.meant import meant

Count = Annotated[int, Strict(), Field(ge=1, le=2**53)]
FORBID = ConfigDict(extra="forbid")
# 2:4 without quotes is a number of base 60 in YAML: 2 * 60 + 4
Format = Annotated[
    str, BeforeValidator(lambda value: f"{value // 60}:{value % 60}" if type(value) is int else value)
]
# keys by which a document is recognised as a workload: one of them is enough
DOCUMENT_KEYS = ("extents", "einsums")


@dataclass(frozen=True, slots=True)
class Entry:
    """One einsum of a file. extents: added to those of the file, or replacing them for this einsum."""

    __pydantic_config__: ClassVar[ConfigDict] = FORBID
    text: str
    name: str = ""
    repeat: Count = 1
    extents: dict[str, Count] = field(default_factory=dict)
    sizes: dict[str, list[Count]] = field(default_factory=dict)
    bits: dict[str, Count] = field(default_factory=dict)
    density: dict[str, float] = field(default_factory=dict)
    format: dict[str, Format] = field(default_factory=dict)
    index_bits: dict[str, Count] = field(default_factory=dict)
    pointer_bits: dict[str, Count] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class File:
    """The content of a file; an einsum that is given as a text only is an Entry with that text."""

    __pydantic_config__: ClassVar[ConfigDict] = FORBID
    extents: dict[str, Count]
    einsums: list[Entry]
    name: str = ""
    weights: list[str] = field(default_factory=list)
    loop_state: dict[str, str] = field(default_factory=dict)
    iterations: Count | None = None


KEYS = tuple(f.name for f in fields(File))


def workload(
    extents: Mapping[str, int],
    *texts: str,
    name: str = "workload",
    weights: Sequence[str] = (),
    loop_state: Mapping[str, str] | None = None,
    iterations: int | None = None,
) -> Workload:
    """Einsums that share one set of rank sizes; tensors of equal name are the edges.

    loop_state, iterations: of a loop, as in a file (workloads/loops.py)

    Raises WorkloadError with one line per fault.
    >>> texts = "C[m,n] += A[m,k] * B[k,n]", "D[m,n] = relu(C[m,n])"
    >>> workload({"m": 4, "n": 2, "k": 3}, *texts, weights=["B"]).macs()
    24
    """
    entries = [Entry(text) for text in texts]
    return _build(name, File(dict(extents), entries, name, list(weights), dict(loop_state or {}), iterations))


def load(
    path: str | Path, sizes: Mapping[str, int] | None = None, other_parameters: Sequence[str] = ()
) -> Workload:
    """Read an einsum YAML file.

    sizes: extents in place of those of the file; other_parameters: what may be given beside them, for advice

    Raises WorkloadError: one line per fault with file and key, all faults of the file.
    """
    raw, faults_read = document.read(Path(path))
    if (raw is not None or not faults_read) and not document.is_kind(raw, DOCUMENT_KEYS):
        faults_read = ["must hold keys, among them extents and einsums"]
    if faults_read or not isinstance(raw, dict):
        raise WorkloadError("\n".join(f"{path}: {line}" for line in faults_read))
    if sizes:
        ranks = raw.get("extents")
        allowed = [*other_parameters, *map(str, ranks if isinstance(ranks, dict) else ())]
        hint = f"parameters are {', '.join(allowed)}"
        refuse(
            f'workload "{path}": no parameter is named {rank}; {closest(rank, allowed, hint)}'
            for rank in sizes
            if rank not in allowed
        )
        raw["extents"] |= sizes
    if isinstance(raw.get("einsums"), list):
        raw["einsums"] = [{"text": e} if isinstance(e, str) else e for e in raw["einsums"]]
    try:
        file = TypeAdapter(File).validate_python(raw)
    except ValidationError as faults:
        lines = [
            f"{path}: {_key_fault(e['type'], e['loc'], e['input'], e['msg'])}"
            for e in faults.errors(include_url=False)
        ]
        lines += _text_faults(str(path), raw, {e["loc"][:2] for e in faults.errors(include_url=False)})
        raise WorkloadError("\n".join(lines)) from None
    return _build(str(path), replace(file, name=file.name or Path(path).stem))


def _key_fault(kind: str, loc: tuple[int | str, ...], given: Any, message: str) -> str:
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc).lstrip(".")
    if kind == "unexpected_keyword_argument":
        known = [f.name for f in fields(Entry if loc[0] == "einsums" else File)]
        near = meant(str(loc[-1]), known)
        hint = f"do you mean {' or '.join(near)}?" if near else f"keys are {', '.join(known)}"
        return f"{key} is no key here; {hint}"
    if loc[-1] == "[key]":
        return f"key {given!r} of {loc[0]} must be a name, not a number; give the rank a letter"
    if kind in ("missing", "missing_argument"):
        return f"{key} is missing; add it"
    if kind == "dataclass_type":
        return f"{key} = {given!r} must be an einsum text, or keys with text among them"
    if kind in VALUE_FAULTS:
        return f"{key} = {given!r} {VALUE_FAULTS[kind]}"
    return f"{key} = {given!r}: {message[:1].lower()}{message[1:]}"


VALUE_FAULTS = {  # pydantic's type of an error -> what is wrong; what to write
    "int_type": "must be a whole number; write e.g. 16",
    "int_from_float": "must be a whole number; write e.g. 16",
    "list_type": "must be a list; write e.g. [A, B]",
    "dict_type": "must be a mapping; write e.g. {m: 16, n: 32}",
}


def _text_faults(where: str, raw: dict[str, Any], faulty: set[tuple[int | str, ...]]) -> Iterator[str]:
    """Faults in the texts of einsums whose keys are right, to report them along with the faults of keys. A
    faulty extent counts as 1.
    """
    if not isinstance(raw.get("extents"), dict) or not isinstance(raw.get("einsums"), list):
        return
    extents = {
        str(rank): 1 if ("extents", rank) in faulty or not isinstance(rank, str) else n
        for rank, n in raw["extents"].items()
    }
    for i, entry in enumerate(raw["einsums"]):
        if ("einsums", i) not in faulty:
            try:
                _parse(extents, Entry(**entry), {})
            except WorkloadError as fault:
                yield f"{where}: einsums[{i}]: {fault}"


def _build(where: str, file: File) -> Workload:
    """The workload of a file, which has a name. Einsums are parsed twice: the first pass finds in what size
    each output is stored, so that in the second one its readers know it, even if they come first in the file
    or read padding around it.
    """
    extents, entries, weights = file.extents, file.einsums, file.weights
    faults: list[str] = []
    stored: dict[str, tuple[int, ...]] = {}
    for _ in range(2):
        faults.clear()
        einsums = []
        for i, entry in enumerate(entries):
            try:
                e = _parse(extents, entry, stored)
                einsums.append(e)
                stored[e.output.tensor] = tuple(d.size for d in e.output.dims)
            except WorkloadError as fault:
                faults.append(f"{where}: einsums[{i}]: {fault}")
    if not entries:
        faults.append(f"{where}: einsums is empty; give at least one")
    refuse(faults or _weight_faults(where, einsums, weights))
    ordered = in_order(where, einsums)
    lines = (
        *_outside_faults(einsums),
        *_size_faults(einsums, entries),
        *_further_access_faults(einsums),
        *_loop_faults(file, einsums),
    )
    refuse(f"{where}: {line}" for line in lines)
    repeat = {e.name: file.iterations or entry.repeat for e, entry in zip(einsums, entries, strict=True)}
    repeats = tuple(repeat[e.name] for e in ordered)
    warnings = [
        f"{where}: einsums[{i}]: {line}"
        for i, (e, entry) in enumerate(zip(einsums, entries, strict=True))
        for line in _padding_warnings(e, entry, {other.output.tensor for other in einsums})
    ]
    warnings += [f"{where}: {line}" for line in _misspelt_warnings(file, einsums)]
    found = Workload(
        file.name,
        ordered,
        frozenset(weights),
        repeats if max(repeats) > 1 else (),
        loop_state=tuple((after, before) for before, after in file.loop_state.items()),
        warnings=tuple(warnings),
    )
    return replace(found, parameters=_parameters(found))


def _loop_faults(file: File, einsums: Sequence[Einsum]) -> Iterator[str]:
    """A line per fault of the keys of a loop."""
    if not file.loop_state and not file.iterations:
        return
    if not file.loop_state:
        yield "loop_state is missing; say which results the next iteration reads, e.g. loop_state: {P: P1}"
    if not file.iterations:
        yield "iterations is missing; say how often the loop of loop_state runs"
    for i, entry in enumerate(file.einsums):
        if entry.repeat > 1:
            yield f"einsums[{i}].repeat = {entry.repeat} stands in a loop; write each run as its own einsum"
    yield from state_faults(einsums, file.loop_state, file.weights)


def _outside_faults(einsums: Sequence[Einsum]) -> Iterator[str]:
    """A line per dimension of an access of which every index lies outside of what is stored."""
    for i, e in enumerate(einsums):
        for p in e.tensors():
            for d in p.dims:
                if not covered_span(d, e.sizes()):
                    last = d.offset + d.hull(e.sizes()) - 1
                    yield (
                        f"einsums[{i}]: index {show_dim(d)} of {show_access(p)} runs from {d.offset} to "
                        f"{last}, all of it outside of the stored 0 to {d.size - 1}; correct the offset, or "
                        f"the size in sizes: {{{p.tensor}: ...}}"
                    )


def _size_faults(einsums: Sequence[Einsum], entries: Sequence[Entry]) -> Iterator[str]:
    """A line per tensor that is read in another size than it is made in.

    Allowed is the same number of elements in another shape (a view), also if only the elements of all
    repetitions of an einsum together are as many as those of the other. A rank that is alone in its dimension
    must run over the whole dimension, unless the reader gives `sizes`, which says that it reads only a part,
    or zeros beyond the end.
    """
    makers = {e.output.tensor: i for i, e in enumerate(einsums)}
    for i, e in enumerate(einsums):
        for p in e.inputs:
            maker_index = makers.get(base_tensor(p.tensor, makers))
            if maker_index is None or maker_index == i:
                continue
            written, gives_size = einsums[maker_index].output, p.tensor in entries[i].sizes
            written_shape, read_shape = (tuple(d.size for d in one.dims) for one in (written, p))
            reads = f"einsums[{i}]: {e.name} reads {show_access(p)}"
            makes = (
                f"but einsums[{maker_index}]: {einsums[maker_index].name} makes {show_access(written)} "
                f"as {_shown(written_shape)}"
            )
            if not _same_elems(written, p, entries[maker_index].repeat, entries[i].repeat):
                yield f"{reads} as {_shown(read_shape)}, {makes}; give both as many elements"
            elif read_shape == written_shape and not gives_size and (line := _differing_extent(e, p)):
                fix = (
                    f"say sizes: {{{p.tensor}: {list(written_shape)}}} here if it reads only a part, "
                    "or zeros "
                    "past the end"
                )
                yield f"{reads} with {line}, {makes}; give both one extent, or {fix}"


def _further_access_faults(einsums: Sequence[Einsum]) -> Iterator[str]:
    """A line per tensor T that no einsum makes, and whose further access, under the name T_again
    (graph.base_tensor), has another number of elements than its first one.
    """
    outputs = {e.output.tensor for e in einsums}
    first = {p.tensor: (i, p) for i, e in reversed([*enumerate(einsums)]) for p in e.inputs}
    for name, (i, p) in first.items():
        first_index, first_access = first[base_of_any(name, first, outputs)]
        if p.stored_elems() != first_access.stored_elems():
            shapes = [_shown(d.size for d in one.dims) for one in (p, first_access)]
            yield (
                f"einsums[{i}]: {show_access(p)} is {shapes[0]}, but einsums[{first_index}]: "
                f"{show_access(first_access)}, "
                f"the same tensor, is {shapes[1]}; give both one size, or say sizes of what is stored"
            )


def _same_elems(written: Projection, read: Projection, write_repeats: int, read_repeats: int) -> bool:
    """Whether both accesses have equally many elements: in one repetition of each einsum, in all repetitions
    together, or in one of the one and all of the other.
    """
    written_elems, read_elems = written.stored_elems(), read.stored_elems()
    return bool({written_elems, written_elems * write_repeats} & {read_elems, read_elems * read_repeats})


def _differing_extent(e: Einsum, p: Projection) -> str:
    """A rank that is alone in its dimension and whose extent differs from the dimension's size, as "k = 5";
    "" if there is none.
    """
    sizes = e.sizes()
    for d in p.dims:
        for rank in d.ranks():
            if d.terms == ((rank, 1),) and not d.offset and sizes[rank] != d.size:
                return f"{rank} = {sizes[rank]}"
    return ""


def _shown(shape: Iterable[int]) -> str:
    return " x ".join(map(str, shape))


def _padding_warnings(e: Einsum, entry: Entry, outputs: Collection[str]) -> Iterator[str]:
    """A line per tensor whose stored size leaves more padding on one side, where the file does not give that
    size. Without `sizes` a tensor is stored as far as the indices reach, or as its producer stores it.
    """
    for p in e.tensors():
        symmetric = [
            _symmetric_sizes(d, e, base_tensor(p.tensor, outputs) in outputs and p is not e.output)
            for d in p.dims
        ]
        if p.tensor in entry.sizes or all(
            d.size in sizes for sizes, d in zip(symmetric, p.dims, strict=True)
        ):
            continue
        stored, largest = [d.size for d in p.dims], [sizes[-1] for sizes in symmetric]
        shown = [str(sizes[0]) if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}" for sizes in symmetric]
        where_made = (
            " where it is made" if p is not e.output and base_tensor(p.tensor, outputs) in outputs else ""
        )
        yield (
            f"{show_access(p)} is stored as {_shown(stored)}; with equal padding on both sides it is "
            f"{' x '.join(shown)}; say which with sizes: {{{p.tensor}: {largest}}}{where_made}, or {stored} "
            f"{'here ' if where_made else ''}to keep it"
        )


def _misspelt_warnings(file: File, einsums: Sequence[Einsum]) -> Iterator[str]:
    """A line per input that is probably a result misspelt: no einsum reads that result, both names are spelt
    nearly alike, both have as many elements, and the result does not follow from the input.
    """
    outputs, names = {e.output.tensor: e for e in einsums}, {p.tensor for e in einsums for p in e.tensors()}
    inputs = {  # name -> an einsum that reads it, and how
        base_of_any(p.tensor, names, outputs): (e, p) for e in reversed(einsums) for p in e.inputs
    }
    never_read = {t.lower(): t for t in outputs if t not in inputs and t not in file.loop_state.values()}
    stated = {*outputs, *file.weights, *file.loop_state}
    for tensor, (e, p) in inputs.items() if never_read else ():
        if tensor in stated or not (alike := difflib.get_close_matches(tensor.lower(), never_read, 1)):
            continue
        maker = outputs[never_read[alike[0]]]
        if maker.output.stored_elems() == p.stored_elems() and not follows(einsums, maker, e):
            yield (
                f"{e.name} reads {tensor}, which no einsum writes, so it is an input; {maker.output.tensor} "
                f"is written, but never read: do you mean {maker.output.tensor}?"
            )


def _symmetric_sizes(d: Dim, e: Einsum, is_fixed: bool) -> range:
    """Stored sizes of a dimension at which the padding behind it equals that before it, or is smaller by less
    than one stride; only the present size where there is no padding before it.

    is_fixed: whether the einsum that makes the tensor fixes the size; then that size is accepted unless it
    leaves more padding behind than before
    """
    sizes, steps = e.sizes(), [c for rank, c in d.terms if rank in e.output.ranks()]
    end, pad_before = d.offset + d.hull(sizes), max(-d.offset, 0)
    if (is_fixed and end - d.size <= pad_before) or (not is_fixed and not pad_before):
        return range(d.size, d.size + 1)
    smallest = max(end - pad_before, 1)
    return range(smallest, smallest + min(steps, default=1))


def _parse(extents: Mapping[str, int], entry: Entry, stored: Mapping[str, tuple[int, ...]]) -> Einsum:
    """The einsum of an entry. stored: shapes of outputs that are known so far; an input is stored in the
    shape that the entry's `sizes` state, else in that of its producer. Raises WorkloadError.
    """
    given = {f: getattr(entry, f) for f in ("bits", "density", "format", "index_bits", "pointer_bits")}

    def parsed(sizes: dict[str, tuple[int, ...]]) -> Einsum:
        return einsum(entry.text, {**extents, **entry.extents}, entry.name, sizes=sizes, **given)

    stated_sizes, producer_sizes = {t: tuple(s) for t, s in entry.sizes.items()}, {}
    for p in parsed(stated_sizes).inputs:
        size = stored.get(base_tensor(p.tensor, stored), ())
        if len(size) == len(p.dims):
            producer_sizes[p.tensor] = size
    found = parsed(producer_sizes | stated_sizes)
    _check_ranks(found, entry)
    return found


def _check_ranks(e: Einsum, entry: Entry) -> None:
    """Raises WorkloadError for ranks without a meaning: ranks that the output of a copy, a product or a sum
    with = lacks (it is not said which of the elements along them is meant), and extents of ranks that the
    einsum does not have.
    """
    sizes, out = e.sizes(), e.output.ranks()
    missing = [rank for rank, n in sizes.items() if rank not in out and n > 1]
    if (e.kind in ("copy", "mul") or (e.kind == "add" and "+=" not in entry.text)) and missing:
        raise WorkloadError(
            f"{entry.text}: {show_access(e.output)} lacks rank {missing[0]}; write += to add up over it, or "
            "max= to take the largest"
        )
    if unknown := sorted(set(entry.extents) - set(sizes)):
        raise WorkloadError(
            f"extents: {unknown[0]} is no rank of {entry.text}; ranks are {', '.join(sizes) or 'none'}"
        )


def _weight_faults(where: str, einsums: Sequence[Einsum], weights: Sequence[str]) -> Iterator[str]:
    made = {e.output.tensor for e in einsums}
    read = {p.tensor for e in einsums for p in e.inputs} - made
    for tensor in weights:
        if tensor in made:
            yield f"{where}: weights: {tensor} is made by an einsum, so it is no weight; drop it"
        elif tensor not in read:
            hint = closest(tensor, sorted(read), f"tensors are {', '.join(sorted(read))}")
            yield f"{where}: weights: {tensor} is read by no einsum; {hint}"


def _parameters(w: Workload) -> int:
    """Stored words of all weights; each repetition of an einsum has weights of its own, iterations of a loop
    share them.
    """
    sizes: dict[str, int] = {}
    for e, n in ((e, 1 if w.loop_state else n) for e, n in w.runs()):
        sizes |= {p.tensor: n * p.stored_words() for p in e.inputs if p.tensor in w.weights}
    return sum(sizes.values())

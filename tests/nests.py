"""Random einsums, machines and well-formed mappings for the property tests and the long proofs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, replace
from math import ceil, inf, prod
from random import Random

from dse.mapping.nest import Loop, Mapping, Store, role
from dse.sim.counts.terms import within
from hw import machine
from hw.arch import ROLES, Arch, Compute, Fanout, Level, Port, Stored
from workloads.einsum import Dim, Einsum, Projection, einsum, packed_result_fault

KINDS = ("gemm", "bmm", "conv", "conv", "conv1d", "depthwise", "grouped", "pool", "add", "transposed", "copy")


def random_einsum(rng: Random, kinds: Sequence[str] = (*KINDS, "spmm", "spmv")) -> Einsum:
    """A small einsum of one of the kinds that networks have; windows with stride, dilation, padding;
    degenerate at times.
    """
    return degenerate(rng, _plain_einsum(rng, kinds))


def degenerate(rng: Random, e: Einsum) -> Einsum:
    """The einsum as drawn, or with ranks of extent 1, constant indices (of padding too), or a result that is
    a scalar; or an operation of scalars alone.

    Of copies and functions of one input the output keeps its ranks, or nothing would say which element is
    written.
    """
    if rng.random() < 0.7:
        return e
    change = rng.choice(["extent", "constant", "constant", "inserted", "scalar", "scalars"])
    if change == "extent":
        short = rng.sample([rank for rank, _ in e.extents], rng.randint(1, len(e.extents)))
        return replace(e, extents=tuple((rank, 1 if rank in short else n) for rank, n in e.extents))
    if change == "scalars" or (change == "scalar" and e.kind in ("mac", "max", "add")):
        whole = [e.output, *(e.inputs if change == "scalars" else ())]
        return _of_ranks(
            replace(e, output=_bare(e.output), inputs=tuple(_bare(p) if p in whole else p for p in e.inputs))
        )
    free = [p for p in e.tensors() if p is not e.output or e.kind in ("mac", "max", "add")]
    p = rng.choice(free)
    at = rng.randrange(len(p.dims))
    size = rng.randint(1, 4)
    stored = p is e.output or p.format == "csr" or rng.random() < 0.9
    index = rng.randrange(size) if stored else rng.choice([-1, size])
    dims = (*p.dims[:at], Dim((), index, size), *p.dims[at + (change != "inserted") :])
    changed = replace(p, dims=dims)
    return _of_ranks(
        replace(
            e,
            output=changed if p is e.output else e.output,
            inputs=tuple(changed if q is p else q for q in e.inputs),
        )
    )


def sliced_padding(e: Einsum) -> bool:
    """Whether a constant index is one of padding, so that nothing of the tensor is stored."""
    return any(not dim.terms and not within(dim, ()) for p in e.tensors() for dim in p.dims)


def _bare(p: Projection) -> Projection:
    return replace(p, dims=(), format="dense")


def _of_ranks(e: Einsum) -> Einsum:
    """Without the ranks that no tensor has any more."""
    used = {rank for p in e.tensors() for rank in p.ranks()}
    return replace(e, extents=tuple((rank, n) for rank, n in e.extents if rank in used))


def _plain_einsum(rng: Random, kinds: Sequence[str]) -> Einsum:
    n = lambda top: rng.randint(1, top)
    stride, dilation, pad = n(3), n(2), rng.randint(0, 2)
    kind = rng.choice(kinds)
    if kind in ("spmm", "spmv"):
        m, k = n(7), n(7)
        text = "Y[m,n] += A[m,k] * X[k,n]" if kind == "spmm" else "Y[m] += A[m,k] * X[k]"
        e = einsum(text, {"m": m, "k": k, "n": n(4)}, density={"A": n(m * k) / (m * k)})
        return replace(e, inputs=(compressed(rng, e.inputs[0], e.inputs[0].density), e.inputs[1]))
    if kind in ("sddmm", "spgemm", "masked", "map"):
        return compressed_result(rng, kind)
    if kind == "gemm":
        return einsum("C[m,n] += A[m,k] * B[k,n]", {"m": n(7), "n": n(7), "k": n(7)})
    if kind == "bmm":
        return einsum(
            "C[b,h,m,n] += A[b,h,m,k] * B[b,h,k,n]", {"b": n(2), "h": n(3), "m": n(4), "n": n(4), "k": n(4)}
        )
    if kind == "add":
        return einsum("Y[a,b] = A[a,b] + B[b]", {"a": n(9), "b": n(9)})
    if kind == "copy":
        return einsum("Y[a,b] = A[b,a]", {"a": n(9), "b": n(9)})
    p, q, r, s = n(5), n(4), n(3), n(3)
    hull = lambda o, w: max(stride * (o - 1) + dilation * (w - 1) + 1 - pad - rng.randint(0, 1), 1)
    ip, iq = f"{stride}*p+{dilation}*r-{pad}", f"{stride}*q+{dilation}*s-{pad}"
    if kind == "conv":
        extents = {"k": n(3), "c": n(3), "p": p, "q": q, "r": r, "s": s}
        return einsum(
            f"O[k,p,q] += I[c,{ip},{iq}] * F[k,c,r,s]", extents, sizes={"I": (99, hull(p, r), hull(q, s))}
        )
    if kind == "conv1d":
        extents = {"b": n(2), "k": n(4), "c": n(4), "p": n(8), "r": r}
        return einsum(f"O[b,k,p] += I[b,c,{ip}] * F[k,c,r]", extents, sizes={"I": (9, 9, hull(p, r))})
    if kind == "depthwise":
        return einsum(
            f"O[k,p,q] += I[k,{ip},{iq}] * F[k,r,s]",
            {"k": n(4), "p": p, "q": q, "r": r, "s": s},
            sizes={"I": (9, hull(p, r), hull(q, s))},
        )
    if kind == "grouped":
        extents = {"g": n(3), "k": n(3), "c": n(3), "p": n(6), "r": r}
        return einsum(f"O[g,k,p] += I[g,c,{ip}] * F[g,k,c,r]", extents, sizes={"I": (9, 9, hull(p, r))})
    if kind == "pool":
        return einsum(
            f"O[k,p,q] max= I[k,{ip},{iq}]",
            {"k": n(4), "p": p, "q": q, "r": r, "s": s},
            sizes={"I": (9, hull(p, r), hull(q, s))},
        )
    return einsum(
        f"O[k,{ip}] += I[c,p] * F[k,c,r]",
        {"k": n(3), "c": n(3), "p": n(6), "r": n(4)},
        sizes={"O": (9, hull(n(6), r))},
    )


def random_arch(rng: Random, capacity_bits: int | None = None) -> Arch:
    """Two to four levels, up to two fan-outs of one or two dimensions; unbounded unless a capacity is
    given."""
    depth = rng.randint(2, 4)
    levels = tuple(
        Level(
            f"L{v}",
            capacity_bits if v else None,
            rng.choice([8, 16, 64]),
            rng.choice([200.0, 6.0, 0.5]),
            rng.choice([200.0, 7.0, 0.5]),
            rng.choice([1.0, 8.0, 64.0]),
            rng.choice(["shared", "separate"]),
            double_buffer=v > 0 and rng.random() < 0.3,
            bypass=v > 0,
            skip_first_read=rng.random() < 0.8,
        )
        for v in range(depth)
    )
    fanouts = []
    for i, outside in enumerate(sorted(rng.sample(range(1, depth + 1), rng.randint(0, 2)))):
        dims = tuple((f"{axis}{i}", rng.randint(2, 4)) for axis in "XY"[: rng.randint(1, 2)])
        fanouts.append(
            Fanout(
                f"array{i}",
                outside,
                dims,
                tuple(rng.random() < 0.6 for _ in dims),
                tuple(rng.random() < 0.6 for _ in dims),
                rng.choice(["", "", "os", "ws"]) if len(dims) == 2 else "",
            )
        )
    return Arch(
        "random",
        levels,
        tuple(fanouts),
        Compute(1.0, 0.5, 1.0, alu_per_cycle=rng.choice([None, 4.0]), merge_pj=0.25),
        1.0,
        8,
        overlap=rng.choice(["buffered", "buffered", "free"]),
    )


def with_outer(arch: Arch, bits: int | None) -> Arch:
    """A machine whose outermost level holds so many bits."""
    return replace(arch, levels=(replace(arch.levels[0], capacity_bits=bits), *arch.levels[1:]))


def stored_bits(e: Einsum, word_bits: int) -> int:
    """What the tensors of an einsum take whole: all elements; of compressed ones nonzeros with an index each,
    and a pointer per row.
    """

    def own(p: Projection) -> int:
        elems, rows, bits = (
            prod(d.size for d in p.dims),
            prod(d.size for d in p.dims[:-1]),
            p.bits or word_bits,
        )
        return (
            elems * bits
            if p.format == "dense"
            else ceil(round(p.density * elems, 6)) * (bits + p.index_bits) + rows * p.pointer_bits
        )

    return sum(map(own, e.tensors()))


RESULTS = {
    "sddmm": "S[m,n] += A[m,n] * X[m,k] * Y[k,n]",
    "spgemm": "S[m,n] += A[m,k] * B[k,n]",
    "masked": "S[m,n] += A[m,n] * X[m,k] * B[k,n]",
    "map": "S[b,m,n] = edge(A[m,n], X[b,m], Y[b,n])",
}


def compressed_result(rng: Random, kind: str, most: int = 7) -> Einsum:
    """An einsum whose result is stored in csr: as many nonzeros as are expected, fewer or more."""
    sizes = {rank: rng.randint(1, 3 if rank == "b" else most) for rank in "bmnk"}
    share = lambda: rng.choice([0.1, 0.3, 0.5, 0.8])
    e = einsum(
        RESULTS[kind], sizes, density={"A": share(), **({"B": share()} if "B" in RESULTS[kind] else {})}
    )
    density = e.expected_density() * rng.choice([1, 1, 1, 0.7, 1.2])
    return replace(
        e,
        inputs=tuple(
            compressed(rng, p, p.density) if p.density < 1 and rng.random() < 0.8 else p for p in e.inputs
        ),
        output=compressed(rng, e.output, min(density, 1.0)),
    )


FORMATS = ("coo", "rle", "bitmask", "1:2", "2:4", "3:4", "1:8")


def in_a_format(rng: Random, e: Einsum) -> Einsum:
    """The einsum with its operands with zeros, or the first one, in another format; widths at random."""

    def other(p, form):  # type: ignore[no-untyped-def]
        n, _, m = form.partition(":")
        density = int(n) / int(m) if m else p.density if p.density < 1 else rng.choice([0.1, 0.3, 0.5, 0.9])
        plain = replace(p, format=form, density=density, index_bits=0, pointer_bits=0)
        wider = rng.choice([0, 0, 1, 2]) if plain.index_bits else 0
        narrow = form == "rle" and rng.random() < 0.7
        bits = rng.choice([1, 2, 3]) if narrow else plain.index_bits + wider
        return replace(plain, index_bits=bits)

    chosen = [i for i, p in enumerate(e.inputs) if p.density < 1] or [0]
    return replace(
        e, inputs=tuple(other(p, rng.choice(FORMATS)) if i in chosen else p for i, p in enumerate(e.inputs))
    )


def in_other_formats(rng: Random, e: Einsum) -> Einsum:
    """An einsum of `compressed_result` with its result in another format than csr."""
    form = rng.choice(["coo", "rle", "bitmask"])
    output = replace(e.output, format=form, index_bits=0, pointer_bits=0)
    if form == "rle":
        output = replace(output, index_bits=rng.choice([1, 2, 3, 5]))
    elif form == "coo":
        output = replace(output, index_bits=output.index_bits + rng.choice([0, 0, 3]))
    return replace(e, output=output)


def compressed(rng: Random, p: Projection, density: float) -> Projection:
    """In csr; of some indices and pointers are wider than they must be, as wide as a word of 8 bits or
    wider."""
    p = replace(p, format="csr", density=density)
    return replace(
        p,
        index_bits=rng.choice([p.index_bits, 8, 9, 16]),
        pointer_bits=rng.choice([p.pointer_bits, 8, 12, 32]),
    )


def shared(arch: Arch, rng: Random) -> Arch:
    """A machine of whose levels inside of arrays PEs share instances along some dimensions; levels that may
    keep a tensor in common are shared along those of the level outside at most.
    """
    along: dict[str, set[str]] = {}
    for v, level in enumerate(arch.levels):
        dims = {name for f in arch.fanouts if f.outside <= v for name, _ in f.dims}
        for u, outer in enumerate(arch.levels[:v]):
            if set(outer.may_keep) & set(level.may_keep):
                around = {name for f in arch.fanouts if f.outside <= u for name, _ in f.dims}
                dims -= around - along[outer.name]
        along[level.name] = {name for name in sorted(dims) if rng.random() < 0.6}
    fanouts = tuple(
        replace(
            f,
            systolic="",
            hop_pj=0.0,
            endpoint_pj=0.0,
            shared=tuple(
                tuple(level.name for level in arch.levels[f.outside :] if name in along[level.name])
                for name, _ in f.dims
            ),
        )
        for f in arch.fanouts
    )
    return replace(arch, fanouts=fanouts)


def slow_to_answer(arch: Arch, rng: Random) -> Arch:
    """The machine with memories some of whose first words take time."""
    times = [rng.choice([0.0, 1.0, 2.5, 7.0, 40.0]) for _ in arch.levels]
    times[rng.randrange(len(times))] = rng.choice([0.5, 3.0])
    levels = tuple(replace(level, latency_ns=ns) for level, ns in zip(arch.levels, times, strict=True))
    return replace(arch, levels=levels)


def split_roles(arch: Arch, rng: Random) -> Arch:
    """The machine with levels inside of its arrays that keep one kind of tensors each, so that they need not
    be nested.
    """
    first = min([f.outside for f in arch.fanouts], default=len(arch.levels))
    levels = tuple(
        replace(level, may_keep=(rng.choice(ROLES),), bits=()) if v >= first else level
        for v, level in enumerate(arch.levels)
    )
    return replace(arch, levels=levels)


def alike_ranks(e: Einsum, arch: Arch, dim: str) -> set[str]:
    """Ranks that PEs along a dimension may not divide: they share what keeps tensors with these ranks."""
    kept = {
        of
        for f in arch.fanouts
        for (name, _), levels in zip(f.dims, f.shared, strict=False)
        for level in arch.levels
        if name == dim and level.name in levels
        for of in level.may_keep
    }
    return {rank for p in e.tensors() if role(e, p.tensor) in kept for rank in p.ranks()}


def drawn_from(arch: Arch, e: Einsum, *salt: str) -> Random:
    """Random numbers from the values of both, so that what else is drawn stays as it is, and no field's name
    matters. Levels without widths (`bits`), formats or waits of their own (the last fields), arrays
    without memories that PEs share (`shared`) and computes that gate nothing (`gates`) are told as if there
    were none.
    """
    name, levels, fanouts, compute, *rest = astuple(arch)
    for _ in range(3):
        levels = tuple(level if level[-1] else level[:-1] for level in levels)
    fanouts = tuple(f if f[-1] else f[:-1] for f in fanouts)
    compute = compute if compute[-1] else compute[:-1]
    return Random(repr((astuple(e), (name, levels, fanouts, compute, *rest), *salt)))


def widened(arch: Arch, e: Einsum, one_in: int = 1) -> Arch:
    """Of so many machines one whose levels inside give elements of some roles a width of their own, but not
    where the einsum has a compressed tensor of that role.
    """
    rng = drawn_from(arch, e, "widths")
    if rng.randrange(one_in) or arch.with_formats():
        return arch
    packed = {role(e, p.tensor) for p in e.tensors() if p.format != "dense"}

    def widths(level: Level) -> tuple[tuple[str, int], ...]:
        roles = [of for of in level.may_keep if of not in packed and rng.random() < 0.6]
        return tuple((of, rng.choice([4, 6, 12, 16, 24, 32])) for of in roles)

    outer, *inner = arch.levels
    return replace(arch, levels=(outer, *(replace(level, bits=widths(level)) for level in inner)))


def packed(arch: Arch, e: Einsum, rng: Random) -> Arch:
    """The machine with levels inside that store tensors with zeros in other formats than the workload says,
    of any role and also if it has none, with indices and pointers of other widths at times.
    """
    groups = {role(e, p.tensor): p.format for p in e.tensors() if ":" in p.format}
    padded = {role(e, p.tensor) for p in e.tensors() if not p.dims[-1].is_stored(e.sizes())}

    def form(of: str) -> Stored:
        own = rng.choice(["dense", "csr", "coo", "rle", "bitmask", groups.get(of, "bitmask")])
        own = "coo" if own == "csr" and of in padded else own
        wide = own in ("csr", "coo") and rng.random() < 0.3
        narrow = own == "rle" and rng.random() < 0.6
        index = rng.choice([12, 16]) if wide else rng.choice([1, 2, 3]) if narrow else 0
        return Stored(of, own, index, rng.choice([0, 12, 32]) if own == "csr" else 0)

    may = [
        of
        for of in ROLES
        if of != "output" or not packed_result_fault(replace(e.output, format="csr"), e.inputs)
    ]
    outer, *inner = arch.levels
    levels = (
        replace(
            level,
            bits=(),
            formats=tuple(form(of) for of in may if of in level.may_keep and rng.random() < 0.6),
        )
        for level in inner
    )
    return replace(arch, levels=(outer, *levels))


def ported(arch: Arch, e: Einsum, one_in: int = 1) -> Arch:
    """Of so many machines one with levels whose ports serve some tensors, in some directions, each at rates
    of its own.
    """
    rng, outside = drawn_from(arch, e, "ports"), drawn_from(arch, e, "ports outside")
    if rng.randrange(one_in):
        return arch

    def ports(level: Level) -> str | tuple[Port, ...]:
        if rng.random() < 0.4:
            return level.ports
        at = {(of, way): rng.randrange(rng.choice([1, 2, 3, 4])) for of in level.may_keep for way in range(2)}
        found = tuple(
            Port(
                *(tuple(of for of in level.may_keep if at[of, way] == number) for way in range(2)),
                *(rng.choice([0.25, 0.5, 1, 1, 2, inf]) for _ in range(2)),
            )
            for number in sorted({*at.values()})
        )
        if level is arch.levels[0] or "output" not in level.may_keep:
            return found
        # sums that arrive from outside, or leave to it, through one of these ports or one more
        extra = Port((), (), *(outside.choice([0.5, 1, 2]) for _ in range(2)))
        ends = [outside.choice([None, None, *range(len(found) + 1)]) for _ in range(2)]
        told = [
            port._replace(fill=("output",) * (ends[0] == i), drain=("output",) * (ends[1] == i))
            for i, port in enumerate((*found, extra))
        ]
        return tuple(port for port in told if any(port[:2] + port[4:]))

    return replace(arch, levels=tuple(replace(level, ports=ports(level)) for level in arch.levels))


def limited(arch: Arch, e: Einsum, one_in: int = 16) -> Arch:
    """Of so many machines one has an outermost level just large enough for the einsum, or one bit less."""
    rng = drawn_from(arch, e)
    return (
        with_outer(arch, stored_bits(e, arch.word_bits) - rng.randrange(2))
        if rng.randrange(one_in) == 0
        else arch
    )


def searched(arch: Arch, e: Einsum) -> Arch:
    """A machine that the search of ragged tiles prices as the evaluator does: by the largest busy time of the
    first lane, ramps among the steps.

    Elsewhere that is a lower bound of the latency. Where padding cuts tiles, the first lane is not the
    busiest of a level inside an array.
    """
    cut = any(
        not within(dim, [e.sizes()[rank] for rank in dim.ranks()]) for p in e.tensors() for dim in p.dims
    )
    ramp, border = (
        any(f.systolic for f in arch.fanouts),
        min([f.outside for f in arch.fanouts], default=len(arch.levels)),
    )
    levels = tuple(
        replace(level, bandwidth=inf if ramp or (cut and v >= border) else level.bandwidth)
        for v, level in enumerate(arch.levels)
    )
    return replace(arch, levels=levels, overlap="free")


def free_edge() -> Arch:
    """edge_array with single buffers and overlap: free, on which optima were proven by several searches."""
    arch = machine.arch(machine.load("edge_array"))
    return replace(
        arch, levels=tuple(replace(level, double_buffer=False) for level in arch.levels), overlap="free"
    )


def random_mapping(rng: Random, e: Einsum, arch: Arch) -> Mapping:
    """Storage nodes in any order that the hierarchy allows, loops with ragged tiles between them, spatial
    loops at the borders.
    """
    left = e.sizes()
    nodes: list[Loop | Store] = []
    borders = sorted({0, len(arch.levels), *(f.outside for f in arch.fanouts)})
    for start, end in zip(borders, [*borders[1:], None], strict=True):
        _spatial(rng, e, arch, start, left, nodes)
        for store in _stores(rng, e, arch, start, end) if end is not None else ():
            while rng.random() < 0.45 and not (start == 0 and not nodes):
                _temporal(rng, left, nodes)
            nodes.append(store)
    while rng.random() < 0.6:
        _temporal(rng, left, nodes)
    ranks = [rank for rank, n in left.items() if n > 1]
    rng.shuffle(ranks)
    return Mapping((*nodes, *(Loop(rank, 1) for rank in ranks)))


def _temporal(rng: Random, left: dict[str, int], nodes: list[Loop | Store]) -> None:
    rank = rng.choice(list(left))
    left[rank] = rng.randint(1, left[rank])
    nodes.append(Loop(rank, left[rank]))


def _spatial(
    rng: Random, e: Einsum, arch: Arch, border: int, left: dict[str, int], nodes: list[Loop | Store]
) -> None:
    ranks = sorted(set(left) - e.output.partial_ranks())
    for f in arch.fanouts:
        for name, size in f.dims if f.outside == border else ():
            if ranks and rng.random() < 0.7 and (rank := rng.choice(ranks)) not in alike_ranks(e, arch, name):
                left[rank] = max(-(-left[rank] // size), rng.randint(1, left[rank]))
                nodes.append(Loop(rank, left[rank], name))


def _stores(rng: Random, e: Einsum, arch: Arch, start: int, end: int) -> list[Store]:
    """Nodes of the levels start..end-1: each tensor's in the order of the hierarchy, tensors interleaved at
    random.
    """
    chains = {
        p.tensor: [
            Store(level.name, p.tensor)
            for level in arch.levels[start:end]
            if role(e, p.tensor) in level.may_keep and (not level.bypass or rng.random() < 0.7)
        ]
        for p in e.tensors()
    }
    found: list[Store] = []
    while chains := {tensor: chain for tensor, chain in chains.items() if chain}:
        found.append(chains[rng.choice(list(chains))].pop(0))
    return found


def random_case(rng: Random, kinds: Sequence[str] = (*KINDS, "spmm", "spmv")) -> tuple[Einsum, Arch, Mapping]:
    e, arch = random_einsum(rng, kinds), random_arch(rng)
    return e, arch, random_mapping(rng, e, arch)


RICH = ("gemm", "bmm", "conv1d", "depthwise", "pool", "add", "copy", "transposed", "spmm", "spmv", "layer")
LONG = (10, 11, 12, 13, 17)


def rich_einsum(rng: Random, kind: str) -> Einsum:
    """One extent beyond 9, primes too; bits per tensor; any tensor compressed whose last dimension is a rank
    of its own.
    """
    names = {
        "gemm": "mnk",
        "bmm": "bhmnk",
        "conv1d": "bkcpr",
        "depthwise": "kpr",
        "pool": "kpr",
        "add": "ab",
        "copy": "ab",
        "transposed": "kcpr",
        "spmm": "mnk",
        "spmv": "mk",
        "layer": "ckpq",
    }[kind]
    sizes = {rank: rng.randint(1, 3 if rank in "rbh" else 4) for rank in names}
    sizes[rng.choice(names)] = rng.choice(LONG)
    stride, dilation, pad = rng.randint(1, 3), rng.randint(1, 2), rng.randint(0, 2)
    window = f"{stride}*p+{dilation}*r-{pad}"
    stored = max(
        stride * (sizes.get("p", 1) - 1) + dilation * (sizes.get("r", 1) - 1) + 1 - pad - rng.randint(0, 1), 1
    )
    texts = {
        "gemm": "C[m,n] += A[m,k] * B[k,n]",
        "bmm": "C[b,h,m,n] += A[b,h,m,k] * B[b,h,k,n]",
        "conv1d": f"C[b,k,p] += A[b,c,{window}] * B[k,c,r]",
        "depthwise": f"C[k,p] += A[k,{window}] * B[k,r]",
        "pool": f"C[k,p] max= A[k,{window}]",
        "add": "C[a,b] = A[a,b] + B[b]",
        "copy": "C[a,b] = A[b,a]",
        "transposed": f"C[k,{window}] += A[c,p] * B[k,c,r]",
        "spmm": "C[m,n] += A[m,k] * B[k,n]",
        "spmv": "C[m] += A[m,k] * B[k]",
        "layer": "C[k,p,q] += A[c,p,q] * B[k,c]",
    }
    whole = {
        "conv1d": {"A": (99, 99, stored)},
        "depthwise": {"A": (99, stored)},
        "pool": {"A": (99, stored)},
        "transposed": {"C": (99, stored)},
    }.get(kind, {})
    e = einsum(texts[kind], sizes, sizes=whole)

    def changed(p: Projection) -> Projection:
        if rng.random() < 0.3:
            p = replace(p, bits=rng.choice([4, 8, 16, 24]))
        plain = len(p.dims) > 1 and len(p.dims[-1].terms) == 1 and p.dims[-1].terms[0][1] == 1
        if plain and rng.random() < (0.7 if kind.startswith("sp") else 0.2):
            p = compressed(rng, p, rng.choice([0.1, 0.25, 1 / 3, 0.5, 1.0]))
        return p

    found = degenerate(rng, replace(e, output=changed(e.output), inputs=tuple(changed(p) for p in e.inputs)))
    sizes, out = found.sizes(), found.output
    has_zeros = any(p.density < 1 for p in found.inputs)
    plain = all(dim.terms and dim.offset == 0 for dim in out.dims)
    plain = plain and not out.partial_ranks() and all(sizes[dim.terms[0][0]] == dim.size for dim in out.dims)
    return found if has_zeros and plain else replace(found, output=replace(out, format="dense", density=1.0))


def rich_arch(rng: Random) -> Arch:
    """Up to two fan-outs of up to three dimensions; levels that hold some tensors only."""
    arch = random_arch(rng)
    levels = tuple(
        replace(level, may_keep=tuple(role for role in ROLES if rng.random() < 0.6) or ROLES)
        if v and rng.random() < 0.4
        else level
        for v, level in enumerate(arch.levels)
    )
    fanouts = []
    for i, outside in enumerate(sorted(rng.sample(range(1, len(levels) + 1), rng.randint(0, 2)))):
        dims = tuple((f"{axis}{i}", rng.randint(2, 6)) for axis in "XYZ"[: rng.randint(1, 3)])
        fanouts.append(
            Fanout(
                f"array{i}",
                outside,
                dims,
                tuple(rng.random() < 0.6 for _ in dims),
                tuple(rng.random() < 0.6 for _ in dims),
                rng.choice(["", "", "os", "ws"]) if len(dims) == 2 else "",
            )
        )
    return replace(arch, levels=levels, fanouts=tuple(fanouts))


def rich_mapping(rng: Random, e: Einsum, arch: Arch) -> Mapping:
    """As `random_mapping`; several ranks share a fan-out dimension, and loops in time stand between those in
    space.
    """
    left, nodes = e.sizes(), list[Loop | Store]()
    borders = sorted({0, len(arch.levels), *(f.outside for f in arch.fanouts)})
    ranks = sorted(set(left) - e.output.partial_ranks())
    for start, end in zip(borders, [*borders[1:], None], strict=True):
        dims = [dim for f in arch.fanouts if f.outside == start for dim in f.dims]
        free = dict(dims)
        for name, _ in rng.choices(dims, k=rng.randint(0, 4)) if dims and ranks else ():
            if (rank := rng.choice(ranks)) in alike_ranks(e, arch, name):
                continue
            tile = max(-(-left[rank] // free[name]), rng.randint(1, left[rank]))
            free[name] //= -(-left[rank] // tile)
            left[rank] = tile
            nodes.append(Loop(rank, tile, name))
            if nodes and rng.random() < 0.4:
                _temporal(rng, left, nodes)
        for store in _stores(rng, e, arch, start, end) if end is not None else ():
            while rng.random() < 0.45 and not (start == 0 and not nodes):
                _temporal(rng, left, nodes)
            nodes.append(store)
    rest = [rank for rank, n in left.items() if n > 1]
    rng.shuffle(rest)
    return Mapping((*nodes, *(Loop(rank, 1) for rank in rest)))


def rich_case(rng: Random, kinds: Sequence[str] = RICH) -> tuple[Einsum, Arch, Mapping]:
    while True:
        e, arch = rich_einsum(rng, rng.choice(kinds)), rich_arch(rng)
        if prod(n for _, n in e.extents) <= 4000:
            return e, arch, rich_mapping(rng, e, arch)

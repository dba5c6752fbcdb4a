"""Random problems of every kind that a search of mappings meets, each small enough to enumerate; extents to
13, capacities of 3 to 64 words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import inf, prod
from random import Random

from dse.sim.einsum.evaluate import Problem
from hw.arch import ROLES, Arch, Compute, Fanout, Level
from tests.enumeration import Order, how_many, loops_of, shape, skeletons
from tests.nests import compressed, degenerate, limited
from workloads.einsum import Einsum, einsum

OBJECTIVES = ("energy", "latency", "edp")
EXTENTS = (1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13)
GROUPS = ("array", "one level", "two levels", "three levels", "windows", "two fan-outs", "holds", "sparse")
PLAIN = ("gemm", "gemm", "gemm", "bmm", "vector", "add", "copy", "layer")
WINDOWS = ("conv1d", "conv1d", "conv", "depthwise", "pool", "grouped", "transposed")
RANKS = {
    "gemm": "mnk",
    "bmm": "bmnk",
    "vector": "mk",
    "add": "ab",
    "copy": "ab",
    "layer": "kcp",
    "spmm": "mnk",
    "spmm2": "mnk",
    "spmv": "mk",
    "conv1d": "kcpr",
    "conv": "kpqrs",
    "depthwise": "kpr",
    "pool": "kpr",
    "grouped": "gkpr",
    "transposed": "kpr",
}
WINDOW_RANKS = ("r", "s")
KINDS = {
    "array": ("gemm", "gemm", "layer", "conv1d", "bmm"),
    "windows": WINDOWS,
    "sparse": ("spmm", "spmm2", "spmv"),
}


def einsum_of(kind: str, sizes: dict[str, int], rng: Random) -> Einsum:
    """Windows with stride, dilation and padding, which may cut the last window short."""
    stride, dilation, pad = rng.choice([1, 1, 2, 3]), rng.choice([1, 1, 2]), rng.choice([0, 0, 1, 2])
    ip, iq = f"{stride}*p+{dilation}*r-{pad}", f"{stride}*q+{dilation}*s-{pad}"

    def stored(out: str, window: str) -> int:
        return max(
            stride * (sizes[out] - 1) + dilation * (sizes[window] - 1) + 1 - pad - rng.choice([0, pad]), 1
        )

    texts = {
        "gemm": "C[m,n] += A[m,k] * B[k,n]",
        "bmm": "C[b,m,n] += A[b,m,k] * B[b,k,n]",
        "vector": "C[m] += A[m,k] * B[k]",
        "add": "C[a,b] = A[a,b] + B[b]",
        "copy": "C[a,b] = A[b,a]",
        "layer": "C[k,p] += A[c,p] * B[k,c]",
        "spmm": "C[m,n] += A[m,k] * B[k,n]",
        "spmm2": "C[m,n] += A[m,k] * B[k,n]",
        "spmv": "C[m] += A[m,k] * B[k]",
    }
    if kind in texts:
        sparse = {"spmm": 0, "spmv": 0, "spmm2": 1}.get(kind, -1)
        e = einsum(
            texts[kind],
            sizes,
            density={"AB"[sparse]: rng.choice([0.02, 0.1, 0.3, 0.5, 1 / 3])} if sparse >= 0 else None,
        )
        csr = sparse >= 0 and rng.random() < 0.7
        return replace(
            e,
            inputs=tuple(
                compressed(rng, p, p.density) if csr and i == sparse else p for i, p in enumerate(e.inputs)
            ),
        )
    windows = {
        "conv1d": (f"C[k,p] += A[c,{ip}] * B[k,c,r]", "A", 1),
        "conv": (f"C[k,p,q] += A[{ip},{iq}] * B[k,r,s]", "A", 0),
        "depthwise": (f"C[k,p] += A[k,{ip}] * B[k,r]", "A", 1),
        "pool": (f"C[k,p] max= A[k,{ip}]", "A", 1),
        "grouped": (f"C[g,k,p] += A[g,{ip}] * B[g,k,r]", "A", 1),
        "transposed": (f"C[k,{ip}] += A[p] * B[k,p,r]", "C", 1),
    }
    text, tensor, leading = windows[kind]
    dims = (99,) * leading + ((stored("p", "r"), stored("q", "s")) if kind == "conv" else (stored("p", "r"),))
    return einsum(text, sizes, sizes={tensor: dims})


def arch_of(rng: Random, group: str, levels: int) -> Arch:
    """So many levels on chip; fan-outs, sharing, ports, prices, bypass and what levels hold at random."""

    def level(v: int) -> Level:
        words = rng.choice([3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64])
        holds = (
            tuple(role for role in ROLES if rng.random() < 0.6)
            if v and (group == "holds" and rng.random() < 0.6)
            else ROLES
        )
        return Level(
            f"L{v}",
            8 * words if v else None,
            rng.choice([8, 8, 16, 64]),
            rng.choice([200.0, 20.0]) if v == 0 else rng.choice([6.0, 2.0, 1.0, 0.5]),
            rng.choice([200.0, 20.0]) if v == 0 else rng.choice([7.0, 2.0, 1.0, 0.5]),
            rng.choice([inf, inf, 1.0, 4.0, 0.5]),
            rng.choice(["shared", "shared", "separate"]),
            double_buffer=v > 0 and rng.random() < 0.15,
            bypass=v > 0 and rng.random() < free,
            skip_first_read=rng.random() < 0.85,
            may_keep=holds or ROLES,
        )

    free = rng.choice([1.0, 1.0, 0.5, 0.0])
    found = tuple(level(v) for v in range(1 + levels))
    wanted = 2 if group == "two fan-outs" else rng.choice([0, 1, 1, 1, 1, 2])
    borders = sorted(rng.sample(range(1, levels + 2), min(wanted, levels + 1)))
    fanouts = []
    for i, outside in enumerate(borders):
        dims = tuple((f"{axis}{i}", rng.choice([2, 2, 3, 4, 5, 8])) for axis in "XY"[: rng.choice([1, 1, 2])])
        flags = [
            (True,) * len(dims) if rng.random() < 0.7 else tuple(rng.random() < 0.5 for _ in dims)
            for _ in range(2)
        ]
        fanouts.append(
            Fanout(
                f"array{i}",
                outside,
                dims,
                *flags,
                rng.choice(["", "", "", "os", "ws"]) if len(dims) == 2 else "",
            )
        )
    compute = Compute(
        1.0,
        0.5,
        rng.choice([1.0, 1.0, 2.0]),
        alu_per_cycle=rng.choice([None, None, 4.0]),
        leak_mw=rng.choice([0.0, 0.0, 3.0]),
        merge_pj=rng.choice([0.0, 0.25, 0.25, 3.0]),
    )
    return Arch("random", found, tuple(fanouts), compute, 1.0, 8, overlap="free")


def array_of(rng: Random, group: str, levels: int) -> Arch:
    """Where bounds on room and lanes matter most: DRAM, maybe a buffer, an array that shares, a few registers
    per lane; energies apart, no slow port.
    """
    sizes = ((rng.choice([8, 12, 16, 24, 32, 64]),) if levels > 1 else ()) + (
        rng.choice([2, 3, 4, 5, 6, 8, 10, 12, 16]),
    )
    outer = Level(
        "DRAM", None, 8, rng.choice([200.0, 50.0]), 200.0, bypass=False, skip_first_read=rng.random() < 0.9
    )
    inner = [
        Level(
            f"L{v}",
            8 * words,
            8,
            pj := rng.choice([0.5, 1.0, 6.0]),
            pj,
            rng.choice([inf, inf, inf, 2.0]),
            bypass=rng.random() < 0.9,
            skip_first_read=outer.skip_first_read,
        )
        for v, words in enumerate(sizes)
    ]
    dims = tuple(
        zip("XY", rng.choice([(4,), (3,), (8,), (2, 2), (3, 5), (4, 2), (5, 4), (6,), (16,)]), strict=False)
    )
    flags = [
        (True,) * len(dims) if rng.random() < 0.85 else tuple(rng.random() < 0.5 for _ in dims)
        for _ in range(2)
    ]
    return Arch(
        "array",
        (outer, *inner),
        (Fanout("A", len(sizes) if rng.random() < 0.9 else 1, dims, *flags),),
        Compute(1.0, 1.0, merge_pj=rng.choice([0.0, 0.25])),
        1.0,
        8,
        overlap="free",
    )


def random_problem(
    rng: Random,
    group: str,
    tiles: str,
    most: int,
    order: Order = "levels",
    arch: Callable[[Random, str, int], Arch] = arch_of,
) -> Problem:
    """A problem of a group whose space of such tiles has `most` mappings at most, and rarely few."""
    while True:
        kind = rng.choice(KINDS.get(group, (*PLAIN, *WINDOWS)))
        levels = {"one level": 1, "two levels": 2, "three levels": 3, "scratchpads": 3}.get(
            group
        ) or rng.choice([1, 1, 1, 2, 2])
        machine = (array_of if group == "array" else arch)(rng, group, levels)
        draft = einsum_of(kind, dict.fromkeys(RANKS[kind], 2), Random(0))
        nests = Counter(shape(s, machine).kinds for s in _first(skeletons(draft, machine, order), 3000))
        if not 0 < sum(nests.values()) < 3000:
            continue
        sizes = {
            rank: rng.choice(EXTENTS if rank not in WINDOW_RANKS else (1, 2, 3, 3, 5)) for rank in RANKS[kind]
        }

        def mappings(
            sizes: dict[str, int],
            draft: Einsum = draft,
            machine: Arch = machine,
            nests: Counter[tuple[int, ...]] = nests,
        ) -> int:
            return sum(
                n
                * prod(
                    how_many(extent, loops_of(draft, machine, kinds, rank), tiles)
                    for rank, extent in sizes.items()
                    if extent > 1
                )
                for kinds, n in nests.items()
            )

        while mappings(sizes) > most and max(sizes.values()) > 1:
            rank = max(sizes, key=lambda rank: (how_many(sizes[rank], (0, 0, 0), tiles), rng.random()))
            sizes[rank] = rng.choice([n for n in EXTENTS if n < sizes[rank]])
        if max(sizes.values()) > 1:
            e = einsum_of(kind, sizes, rng)
            if rng.random() < 0.2:
                e = replace(e, output=replace(e.output, bits=rng.choice([16, 24])))
            e = degenerate(rng, e)
            return Problem(
                limited(machine, e),
                e,
                rng.choice(OBJECTIVES if group != "array" else ("energy", "energy", "energy", "edp")),
            )


def with_networks(rng: Random, problem: Problem) -> Problem:
    """The problem on a machine whose fan-outs are networks: links, or what PEs take and give, have a price;
    arrays of one dimension are a row.
    """
    fanouts = tuple(
        replace(
            f,
            dims=f.dims if len(f.dims) == 2 else (("R" + f.name, 1), *f.dims),
            multicast=f.multicast if len(f.dims) == 2 else (True, *f.multicast),
            reduce=f.reduce if len(f.dims) == 2 else (True, *f.reduce),
            hop_pj=rng.choice([0.0, 0.01, 0.1, 1.0]),
            endpoint_pj=rng.choice([0.0, 0.0, 0.2]),
            injected_at=rng.choice(["corners", "edge"]),
            multicast_from=rng.choice(["next_level", "same_level"]),
        )
        for f in problem.arch.fanouts
    )
    return replace(problem, arch=replace(problem.arch, fanouts=fanouts))


def _first(found: Iterator[object], most: int) -> Sequence[object]:
    return [one for _, one in zip(range(most), found, strict=False)]


def symmetric(rng: Random) -> Problem:
    """Where ranks of equal extents may, or only seem to, change places: square products and windows on one
    level of registers below lanes that share.
    """
    n, k, shared = rng.choice([4, 6, 8]), rng.choice([2, 3, 4]), rng.random() < 0.5
    e = (
        einsum("C[m,n] += A[m,k] * B[k,n]", {"m": n, "n": n, "k": k})
        if shared
        else einsum("C[p,q] += A[p+r,q+s] * B[r,s]", {"p": rng.choice([2, 4]), "q": 4, "r": 2, "s": 2})
    )
    return Problem(array_of(rng, "array", 1), e, rng.choice(OBJECTIVES))

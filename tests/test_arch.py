"""Arch: instances, area and leakage of all copies."""

from math import isclose, prod

from hypothesis import given
from hypothesis import strategies as st

from hw.arch import Arch, Compute, Fanout, Level, read_bytes, read_rate

sizes = st.lists(st.integers(1, 9), min_size=1, max_size=3)


def chip(dims: list[list[int]]) -> Arch:
    """Level v has area v + 1 and leakage 10 (v + 1); one fan-out below each level; a lane has area and
    leakage 0.5.
    """
    levels = tuple(
        Level(f"L{v}", None, 8, 1.0, 1.0, area_mm2=v + 1.0, leak_mw=10.0 * (v + 1)) for v in range(len(dims))
    )
    fanouts = tuple(
        Fanout(
            f"F{v}",
            v + 1,
            tuple((f"D{v}{i}", n) for i, n in enumerate(d)),
            (True,) * len(d),
            (True,) * len(d),
        )
        for v, d in enumerate(dims)
    )
    return Arch("chip", levels, fanouts, Compute(1.0, 1.0, area_mm2=0.5, leak_mw=0.5), 1.0, 8)


@given(st.lists(sizes, min_size=1, max_size=4))
def test_every_copy_counts(dims: list[list[int]]) -> None:
    arch = chip(dims)
    copies = [prod(prod(d) for d in dims[:v]) for v in range(len(dims) + 1)]
    assert [arch.instances(v) for v in range(len(dims) + 1)] == copies
    assert isclose(arch.area_mm2(), sum((v + 1) * n for v, n in enumerate(copies[:-1])) + 0.5 * copies[-1])
    assert isclose(
        arch.leak_mw(), sum(10 * (v + 1) * n for v, n in enumerate(copies[:-1])) + 0.5 * copies[-1]
    )


@given(st.integers(1, 10**6), st.sampled_from([("B", 1), ("KiB", 1024), ("MiB", 2**20), ("GiB", 2**30)]))
def test_sizes_carry_units(number: int, unit: tuple[str, int]) -> None:
    assert read_bytes(f"{number} {unit[0]}") == read_bytes(f"{number}{unit[0]}") == number * unit[1]


def test_rates_are_in_gbps() -> None:
    assert [read_rate(text) for text in ("12.8 GB/s", "800 MB/s", "1.2TB/s")] == [12.8, 0.8, 1200.0]

"""The search of pipelines that networks get, on small graphs against all of their pipelines
(`tests/piped.py`): no gap that the best one breaks; on machines that leak against drawn ones; directives,
written and read back, of random nests; and directives whose tiles overlap, against a walk of every element
(`tests/boxed.py`).
"""

from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from random import Random

from dse.mapping.directives import directives_of, mapping_of, parse, text
from tests.nests import random_case, rich_case
from tests.piped import Compared, cheaper, compared, enumerated_case
from tests.test_boxes import unlike as miscounted
from tests.test_directives import raised_case

GRAPHS = int(os.environ.get("DSE_PIPES", "200"))
DRAWN = 300
CLOSE = 1e-9
FAR = 0.1  # an answer that costs so much more than the best is no answer of a search
NESTS = int(os.environ.get("DSE_DIRECTIVES", "20000"))
BOXES = int(os.environ.get("DSE_BOXES", "5000"))


def unlike(seed: int) -> tuple[bool, str]:
    """Whether directives say the nest, and what is wrong."""
    rng = Random(seed)
    case = (raised_case, random_case, rich_case)[seed % 3]
    e, _, nest = case(rng)
    try:
        layer = directives_of(nest, e)
    except ValueError as fault:
        return False, "" if len(str(fault).splitlines()) == 1 else f"seed {seed}: {fault}"
    same = parse(text([layer])) == [layer] and mapping_of(layer, e) == nest
    return True, "" if same else f"seed {seed}: {layer}\n{nest}"


def main() -> int:
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        nests = list(pool.map(unlike, range(NESTS), chunksize=200))
        lines = [line for _, line in nests if line]
        print(
            f"  directives: {NESTS} nests, {sum(one for one, _ in nests)} said, {len(lines)} mismatches",
            flush=True,
        )
        walked = list(pool.map(miscounted, range(10**6, 10**6 + BOXES), chunksize=100))
        off = [line for _, _, line in walked if line]
        counted, overlapping = sum(one for one, _, _ in walked), sum(one and two for one, two, _ in walked)
        print(
            f"  directives as they stand: {BOXES}, {counted} counted, {overlapping} with tiles that "
            f"overlap, {len(off)} unlike their walk",
            flush=True,
        )
        chains = list(pool.map(compared, range(GRAPHS)))
        grids = list(pool.map(enumerated_case, range(GRAPHS)))
        others = list(pool.map(partial(cheaper, tries=DRAWN), range(GRAPHS // 4)))
    wrong = [*said("chains", chains), *said("graphs on grids", grids)]
    better = sum(bool(line) for line, _ in others)
    print(
        f"  pipelines that leak: {len(others)} graphs, {sum(many for _, many in others)} schedules "
        f"drawn, {better} better",
        flush=True,
    )
    wrong += [line for line, _ in others if line]
    print("\n".join([*lines, *off, *wrong][:3]))
    return int(bool(lines or off or wrong))


def said(name: str, found: list[Compared]) -> list[str]:
    """Prints how answers compare; what is wrong with them."""
    best, gaps = sum(one.above <= CLOSE for one in found), sum(one.gap for one in found) / len(found)
    print(
        f"  pipelines of {len(found)} {name}: {best} as cheap as the best of all, the dearest "
        f"{100 * max(one.above for one in found):.3g} % above; gaps said {100 * gaps:.3g} % in the mean, "
        f"{100 * max(one.gap for one in found):.3g} % at most, {sum(bool(one.wrong) for one in found)} false",
        flush=True,
    )
    return [
        one.wrong or f"{name}, seed {seed}: {100 * one.above:.3g} % above the best"
        for seed, one in enumerate(found)
        if one.wrong or one.above > FAR
    ]

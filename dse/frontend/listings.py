"""What exists by name: the tables of `dse list`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dse.run import cache, record
from hw import machine
from hw.arch import Arch

Listing = tuple[tuple[str, ...], list[tuple[Any, ...]]]  # header, rows


def listing(what: str) -> Listing:
    """Returns (header, rows) of what exists: a word of `arguments.LISTINGS`."""
    if what == "keys":
        from dse.frontend import keys

        return keys.Key._fields, list(keys.listing())
    if what == "workloads":
        return _cached_listing((what, *_workload_sources()), _workloads)
    if what == "machines":
        return _machines()
    if what == "solvers":
        return _cached_listing((what,), _solvers)
    return ("table", "column", "type", "unit", "meaning"), [
        (table, name, c.dtype, c.unit, c.meaning)
        for table in record.TABLES | record.VIEWS
        for own in (record.TABLES, record.VIEWS, record.STUDY_COLUMNS)
        for name, c in own.get(table, {}).items()
    ]


def _cached_listing(question: tuple[object, ...], ask: Callable[[], Listing]) -> Listing:
    """Returns a listing that takes seconds, kept in $DSE_CACHE. question: what it depends on, besides the
    solvers' sources.
    """

    def decode(answer: bytes) -> Listing:
        header, rows = json.loads(answer)
        return tuple(header), [tuple(row) for row in rows]

    path = cache.answer_path("listing", question, ".json")
    if (found := cache.read_decoded(path, decode)) is not None:
        return found
    found = ask()
    cache.write(path, json.dumps(found).encode())
    return found


def _workload_sources() -> list[object]:
    """Returns what the rows of `dse list workloads` depend on: the version of ONNX, which brings some
    networks, and name, bytes and time of each file of the catalog.
    """
    root = Path(__file__).resolve().parents[2] / "workloads"
    files = sorted(path for path in root.rglob("*") if path.suffix != ".pyc")
    stats = [(path, path.stat()) for path in files if path.is_file()]
    return [version("onnx"), *((path.name, stat.st_size, stat.st_mtime_ns) for path, stat in stats)]


def _workloads() -> Listing:
    from workloads import catalog

    return catalog.Entry._fields, [tuple(entry) for entry in catalog.entries()]


def _machines() -> Listing:
    archs = [machine.load_arch(name) for name in machine.names()]
    return ("machine", "levels", "mac_units", "area_mm2", "slower than the clock"), [
        (
            arch.name,
            _levels(arch),
            arch.instances(len(arch.levels)),
            arch.area_mm2(),
            ", ".join(arch.slow_levels()),
        )
        for arch in archs
    ]


def _levels(arch: Arch) -> str:
    """Returns the levels of a machine, outermost first; those of cores beside each other."""
    if not arch.cores():
        return " > ".join(level.name for level in arch.levels)
    names = {one.compute.core: [level.name for level in one.levels] for one in arch.units}
    shared = [name for name in names[arch.cores()[0]] if all(name in own for own in names.values())]
    inner = (" > ".join(name for name in own if name not in shared) or "-" for own in names.values())
    return f"{' > '.join(shared)} > ({' | '.join(inner)})"


def _solvers() -> Listing:
    from dse.solve import solve
    from workloads.catalog import first_paragraph

    own_tiles = "tiles as the mapper of solver.mapper finds them"
    options: dict[str, Mapping[str, str]] = {
        "solver.tiling": {
            k: first_paragraph(tiler) if tiler else own_tiles for k, tiler in solve.TILING.items()
        },
        "solver.mapper": {name: first_paragraph(mapper) for name, mapper in solve.MAPPERS_BY_NAME.items()},
        "solver.factors": solve.FACTORS,
        "solver.dataflow": solve.DATAFLOWS,
        "solver.layout": solve.LAYOUT,
        "solver.schedule": solve.SCHEDULES,
    }
    rows = [(key, name, does) for key, own in options.items() for name, does in own.items()]
    return ("key", "value", "does"), rows

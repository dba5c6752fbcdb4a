"""Checks user files (machine, study or workload) completely, and lists what exists by name."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache as cache_in_memory
from importlib.metadata import version
from itertools import chain, product
from math import floor, inf, isclose
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from dse.frontend import contracts
from dse.run import cache, folder, record
from hw import component, machine
from hw.arch import Array, MacUnit, Memory
from hw.space import Space, Unbuildable, apply, decode, override, values
from hw.voltage import energy_factor
from workloads import plugin

if TYPE_CHECKING:  # each command imports what it needs, so that start-up is short
    from hw.arch import Arch, Machine
    from workloads.graph import Layer, Workload
    from workloads.sparsity import TileRow


BUILT = 256  # machines of a study that are built, to see whether all can be
MAX_ODD = 8  # lines about numbers of a study's machines
# of a level per bit, as a share of that of a level inside it: below, one of the two is probably wrong
ODD_ENERGY = 0.25
# times the tables' numbers, either way, of a part of kind custom, which may be of another technology; of a
# DRAM, whose kinds are all in the table
FAR, FAR_DRAM = 5, 1.25
CLOCKS_MHZ = 10, 10_000  # a clock outside of these is hardly meant
# held against the tables
TABLE_VALUES = "read_pj", "write_pj", "mac_pj", "alu_pj", "leak_mw", "area_mm2"
# of a DRAM, held against the tables, too; an sram that is slower is common, one that is faster is a fault
TABLE_RATES = "bandwidth", "actions_per_cycle"


def file(text: str, sets: Sequence[str] = ()) -> tuple[str, list[Layer]]:
    """Returns one line about a valid file or a workload of the catalog, and a workload's layer table (else
    []).

    sets: KEY=VALUE each, of a machine as in `dse map`, of a study as in `dse run`

    Raises ValueError with one line per fault.
    """
    from dse.study import read
    from dse.study import study as studies
    from workloads import catalog

    path = Path(text)
    if plugin.SPEC.fullmatch(text):
        return contracts.check(text), []
    if not path.exists() and text.partition(":")[0] in catalog.names():
        return _workload(text, sets)
    kind = _kind_of(text)
    if kind == "machine":
        spec = _machine(text, sets)
        arch = machine.arch(spec)
        supply = "" if arch.vdd is None else f", {arch.vdd:g} V"
        units = f"{arch.instances(len(arch.levels))} MAC units, {arch.area_mm2():.4g} mm2{supply}"
        lines = [f"machine {arch.name}, {units}", *_channels(spec), *machine_lines(spec, arch)]
        return "\n".join(lines), []
    if kind == "study":
        study = studies.load(path, sets)
        line = (
            f"study {study.name}, {study.space.size} machines, workloads "
            f"{', '.join(ref.name for ref in study.workloads)}"
        )
        return "\n".join([line + _warning(*study.loaded_workloads), *space_lines(study.space)]), []
    found = Path(catalog.file_in(text)[1])  # parameters may follow: net.onnx:batch=4
    if not str(found).lower().endswith(read.SUFFIXES) or not found.is_file():
        raise ValueError(
            f"{path}: is no file to check; give a .yaml file (machine, study, workload), an .onnx, "
            "a .pt2, a matrix (.mtx, .mtx.gz, .npz) or a config.json file"
        )
    return _workload(text, sets)


def _channels(spec: Machine) -> Iterator[str]:
    """Yields a line per DRAM: how wide a channel is, and the bandwidth that follows."""
    for node in spec.nodes:
        if isinstance(node, Memory) and node.kind in component.dram_kinds():
            part, n = component.dram(node.kind), node.channels
            several = f"{n} {node.kind} channels, {part.transfers()} each"
            given = node.bandwidth is not None or node.actions_per_cycle is not None
            yield (
                f"{node.name}: {several if n > 1 else f'1 {node.kind} channel, {part.transfers()}'} = "
                f"{n * part.bandwidth_gbps:g} GB/s{' (not used: the file gives a bandwidth)' * given}"
            )


def machine_lines(spec: Machine, arch: Arch) -> list[str]:
    """Returns lines about numbers of a machine that are hardly meant, and parts slower than the clock."""
    warnings = (
        *_odd_clock(spec),
        *_odd_energies(arch),
        *_odd_custom(spec, arch),
        *_far_from_tables(spec, arch),
        *_unlike_tables(spec, arch),
    )
    notes = *_fast(spec), *_below_tables(spec, arch), *_slow(spec, arch)
    return [*(f"note: {line}" for line in notes), *(f"warning: {line}" for line in warnings)]


def lines_not_shipped(spec: Machine, arch: Arch) -> list[str]:
    """Returns `machine_lines` without those of the shipped machine of that name, whose numbers are meant."""
    return [line for line in machine_lines(spec, arch) if line not in _shipped_lines(spec.name)]


@cache_in_memory
def _shipped_lines(name: str) -> list[str]:
    if name not in machine.names():
        return []
    spec = machine.load(name)
    return machine_lines(spec, machine.arch(spec))


def lines_of_machine(space: Space, number: int) -> list[str]:
    """Returns `lines_not_shipped` of a machine of a space; [] where it cannot be built."""
    arch = decode(space, number)
    if isinstance(arch, Unbuildable):
        return []
    return lines_not_shipped(apply(space.template, values(space, number)), arch)


def space_lines(space: Space) -> list[str]:
    """Returns lines about up to BUILT machines of a space: how many cannot be built, have an SRAM slower than
    the clock, or numbers that are hardly meant, each with its most common or first reason.
    """
    numbers = range(space.size) if space.size <= BUILT else Random(0).sample(range(space.size), BUILT)
    among = f"of {'all' if len(numbers) == space.size else 'a sample of'} {len(numbers)} machines"
    # odd: of lines that differ in numbers alone, the first
    reasons, slow, odd = Counter[str](), dict[str, list[str]](), dict[str, str]()
    for i in numbers:
        arch, spec = decode(space, i), apply(space.template, values(space, i))
        if isinstance(arch, Unbuildable):
            reasons[arch.reason] += 1
            continue
        for line in lines_not_shipped(spec, arch):
            kind, _, text = line.partition(": ")
            if kind == "note":
                slow.setdefault(re.split(":| = ", text)[0], []).append(f"{text} (machine {i})")
            else:
                odd.setdefault(re.sub(r"[-+.\de]+", "", line), line)
    found = [f"note: on {len(lines)} {among}, {lines[0]}" for lines in slow.values()]
    if reasons:
        (reason, _), *others = reasons.most_common()
        often = "most often: " if others else ""
        found.append(f"warning: {reasons.total()} {among} cannot be built, {often}{reason}")
    left_out = len(odd) - MAX_ODD
    more = [f"warning: {left_out} more such numbers; dse check of the machine names all"]
    return [*found, *list(odd.values())[:MAX_ODD], *(more if left_out > 0 else [])]


def _odd_clock(spec: Machine) -> Iterator[str]:
    """Yields a line where the clock is outside of CLOCKS_MHZ: GHz or Hz were probably meant."""
    least, most = CLOCKS_MHZ
    if least <= spec.clock_mhz <= most:
        return
    meant_mhz = spec.clock_mhz * (1e3 if spec.clock_mhz < least else 1e-6)
    unit = "GHz" if spec.clock_mhz < least else "Hz"
    meant = f"; {spec.clock_mhz:g} {unit} is {meant_mhz:g}" if least <= meant_mhz <= most else ""
    yield (
        f"clock_mhz = {spec.clock_mhz:g} is {'below' if unit == 'GHz' else 'above'} "
        f"{least if unit == 'GHz' else most:g} MHz{meant}; correct it if that is not meant"
    )


def _odd_energies(arch: Arch) -> Iterator[str]:
    """Yields a line per energy of a level that is, per bit, far below that of a level inside it. Levels of
    different tensors stand side by side.
    """
    for (v, outer), field in product(enumerate(arch.levels), ("read_pj", "write_pj")):
        for inner in (one for one in arch.levels[v + 1 :] if {*one.may_keep} & {*outer.may_keep}):
            pj, inner_pj = getattr(outer, field), getattr(inner, field)
            if 0 < pj / outer.width_bits < ODD_ENERGY * inner_pj / inner.width_bits:
                yield (
                    f"{outer.name.lower()}.{field} = {pj:.4g} for {outer.width_bits} bit is less than "
                    f"{ODD_ENERGY:g} of {inner.name.lower()}.{field} = {inner_pj:.4g} for {inner.width_bits} "
                    f"bit, a level inside it; correct one of them if that is not meant"
                )
                break


def _fast(spec: Machine) -> Iterator[str]:
    """Yields a line where a machine without vdd has a clock above that of MAC units at nominal voltage."""
    mac_unit = next(node for node in spec.nodes if isinstance(node, MacUnit))
    if spec.vdd is not None or spec.node_nm is None or mac_unit.kind == "custom":
        return
    try:
        device = component.device(spec.node_nm, spec.cell)
    except component.ComponentError:  # a node outside of the table
        return
    highest, most = (device.highest_mhz(vdd) for vdd in (device.nominal_v, device.range_v()[1]))
    if spec.clock_mhz > highest * (1 + 1e-9):
        is_modelled = spec.clock_mhz <= most
        cure = "vdd: least prices it" if is_modelled else f"above {most:.4g} MHz no vdd is modelled"
        yield (
            f"clock_mhz = {spec.clock_mhz:g} is above the {highest:.4g} MHz that MAC units reach at the "
            f"nominal voltage (docs/model.md, Supply voltage); {cure}"
        )


def _below_tables(spec: Machine, arch: Arch) -> Iterator[str]:
    """Yields a line where logic of a machine with vdd costs less or more than without, whose tables are at
    another voltage than the nominal one.
    """
    if arch.vdd is None or isclose(arch.vdd, logic_v := component.logic_v()):
        return
    if any(
        node.kind != "custom"
        if isinstance(node, MacUnit)
        else isinstance(node, Memory) and node.kind == "register"
        for node in spec.nodes
    ):
        factor = energy_factor(arch.vdd, logic_v)
        yield (
            f"vdd = {arch.vdd:g}: energies of logic (MAC units, registers) are {factor:.3g} of those without "
            f"vdd, which are at {logic_v:g} V (docs/model.md, Supply voltage); compare machines that all "
            "give vdd"
        )


def _slow(spec: Machine, arch: Arch) -> Iterator[str]:
    """Yields a line per sram whose access takes several cycles of the clock (memory.slow: divide)."""
    for node in spec.nodes:
        level = next((one for one in arch.levels if one.name == node.name.upper()), None)
        if isinstance(node, Memory) and level and level.access_cycles > 1:
            bits = (level.capacity_bits or 0) // node.banks
            array = component.sram(spec.node_nm or 0, spec.cell, bits, node.width_bits)
            cycle_ns = node.cycle_ns or component.at_vdd(replace(spec, vdd=arch.vdd), array).cycle_ns
            yield (
                f"{node.name}: an access takes {level.access_cycles} cycles ({cycle_ns:.3g} ns at "
                f"{spec.clock_mhz:g} MHz; memory.slow: divide), so its bandwidth is at most "
                f"{node.banks / level.access_cycles:.3g} accesses per cycle; more banks or clock_mhz up to "
                f"{floor(1e3 / cycle_ns)} raise it"
            )


def _odd_custom(spec: Machine, arch: Arch) -> Iterator[str]:
    """Yields a line per memory of kind custom without a table whose writes and reads are far apart, or that
    stands in every PE and costs more per operand than a MAC.
    """
    custom = {
        node.name.upper()
        for node in spec.nodes
        if isinstance(node, Memory) and node.kind == "custom" and not node.table
    }
    for v, level in enumerate(arch.levels):
        if level.name not in custom:
            continue
        name, read, write = level.name.lower(), level.read_pj, level.write_pj
        if min(read, write) > 0 and not ODD_ENERGY <= write / read <= 1 / ODD_ENERGY:
            yield (
                f"{name}.write_pj = {write:.4g} is {write / read:.3g} times {name}.read_pj = {read:.4g}; "
                "correct one of them if that is not meant"
            )
        operand_pj, mac_pj = read / level.width_bits * arch.word_bits, arch.compute.mac_pj
        if (
            v == len(arch.levels) - 1
            and any(f.outside <= v for f in arch.fanouts)
            and operand_pj > mac_pj > 0
        ):
            yield (
                f"{name}.read_pj = {read:.4g} for {level.width_bits} bit is {operand_pj:.4g} per operand of "
                f"{arch.word_bits} bit, more than a MAC ({mac_pj:.4g}); correct one of them if that is not "
                "meant"
            )


def _far_from_tables(spec: Machine, arch: Arch) -> Iterator[str]:
    """Yields a line per energy, leakage or area of a part of kind custom that is over FAR times the largest
    that the tables have for such a part (FAR_DRAM of a DRAM), or as far below their smallest.
    """
    at = f" at {spec.node_nm:g} nm" if spec.node_nm else ""
    parts = {level.name.lower(): level for level in arch.levels} | {spec.nodes[-1].name.lower(): arch.compute}
    for node in spec.nodes:
        if isinstance(node, Array) or node.kind != "custom":
            continue
        size = f"{arch.word_bits} bit"
        if isinstance(node, Memory):
            size = (
                f"{f'{component.show_bytes(node.capacity)}, ' if node.capacity else ''}{node.width_bits} bit"
            )
        is_dram = isinstance(node, Memory) and node.capacity is None
        far = FAR_DRAM if is_dram else FAR
        where = f"a DRAM, {size}" if is_dram else f"{size}{at}"
        for name, usual in component.table_numbers(spec, node, arch.word_bits).items():
            value = getattr(parts[node.name.lower()], name)
            nearest = min(max(value, min(usual)), max(usual))
            if value > 0 and not 1 / far <= value / nearest <= far:
                yield (
                    f"{node.name}.{name} = {value:.4g} is {value / nearest:.2g} times the {nearest:.4g} that "
                    f"the tables have for {where}; correct it, or keep it if it is meant"
                )


def _unlike_tables(spec: Machine, arch: Arch) -> Iterator[str]:
    """Yields a line per energy, leakage or area of a memory or of the MAC unit, or bandwidth of a DRAM, that
    is given, and far from the tables' own.
    """
    given = {
        node.name: [
            name
            for name in (*TABLE_VALUES, *(TABLE_RATES if kind not in component.ON_CHIP else ()))
            if getattr(node, name, None) is not None
        ]
        for node in spec.nodes
        if (kind := getattr(node, "kind", "custom")) != "custom"
    }
    plain: Any = [replace(node, **dict.fromkeys(given.get(node.name, ()))) for node in spec.nodes]  # type: ignore[arg-type]
    plain_arch = machine.arch(replace(spec, nodes=tuple(plain)))
    parts, plain_parts = (
        {**{level.name: level for level in one.levels}, spec.nodes[-1].name.upper(): one.compute}
        for one in (arch, plain_arch)
    )
    for node in spec.nodes:
        for name in given.get(node.name, ()):
            field = "bandwidth" if name in TABLE_RATES else name  # of a Level, in actions per cycle
            own, usual = (getattr(one[node.name.upper()], field) for one in (parts, plain_parts))
            if usual > 0 and own < inf and not ODD_ENERGY <= own / usual <= 1 / ODD_ENERGY:
                value = getattr(node, name)
                yield (
                    f"{node.name}.{name} = {value:.4g} is {own / usual:.3g} times the tables' "
                    f"{value * usual / own:.4g}; "
                    "leave it out to take theirs, or keep it if it is meant"
                )


def _kind_of(text: str) -> str:
    """Returns machine, study or workload. text: a path, or a machine's name."""
    path = Path(text)
    if not path.exists() and text in machine.names():
        return "machine"
    return _kind(path) if path.suffix in (".yaml", ".yml") else "workload"


def is_machine(text: str) -> bool:
    """True for the name or the file of a machine, though it may have faults."""
    path = Path(text)
    if not path.is_file():
        return not path.exists() and text in machine.names()
    return path.suffix in (".yaml", ".yml") and _kind(path) == "machine"


def components(text: str, sets: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Returns what a valid machine consists of, with the numbers of the tables; [] of another file. sets: as
    of `file`.
    """
    from dse.explain import values

    return values.machine(machine.arch(_machine(text, sets))) if _kind_of(text) == "machine" else []


def _machine(text: str, sets: Sequence[str]) -> Machine:
    from dse.study import read

    return override(machine.load(text), read.assignments(sets))


def _workload(source: str, sets: Sequence[str]) -> tuple[str, list[Layer]]:
    from workloads import catalog
    from workloads.graph import layer_table, types_text

    if sets:
        raise ValueError(f"{source}: --set {sets[0]} is for machines and studies; write {source}:KEY=VALUE")
    workload = catalog.load(source)
    number = len(workload.fused)
    fused = f", {number} operator{'s' * (number > 1)} fused into their producers" if number else ""
    line = (
        f"workload {workload.name}, {len(workload.einsums)} einsums, {workload.macs()} MACs, "
        f"{workload.parameters} parameters{fused}"
    )
    types = f"\ntypes: {text}" if (text := types_text(workload)) else ""
    return line + types + _unnamed_weights(source, workload) + _warning(workload), layer_table(workload)


def _unnamed_weights(source: str, workload: Workload) -> str:
    """Returns a note on a file of einsums that names no weights: which tensors may be meant."""
    from workloads import catalog
    from workloads.graph import AGAIN

    if workload.weights or Path(catalog.file_in(source)[1]).suffix not in (".yaml", ".yml"):
        return ""
    made = {e.output.tensor for e in workload.einsums} | {read for _, read in workload.loop_state}
    read = (p.tensor for e in workload.einsums if len(e.inputs) > 1 for p in e.inputs)
    given = [name for name in dict.fromkeys(read) if name not in made and not AGAIN.search(name)]
    listed = ", ".join(given[:MAX_ODD]) + ", ..." * (len(given) > MAX_ODD)
    return (
        f"\nnote: the file names no weights, so {listed} count as inputs; name those that are the same in "
        "every run: weights: [...]"
        if given
        else ""
    )


class Sparsity(NamedTuple):
    """What the file of a matrix says of its rows and of tiles."""

    facts: dict[str, str]
    rows_with: tuple[tuple[int, int], ...]  # (nonzeros, rows that have as many)
    tiles: list[TileRow]  # a row per size


def sparsity(source: str) -> Sparsity | None:
    """Returns the sparsity of the matrix in a file that a workload is on; None if it is on no such file."""
    from workloads import catalog, matrix
    from workloads import sparsity as counted

    path = catalog.file_in(source)[1]
    if not matrix.is_matrix_file(path):
        return None
    p = matrix.read_pattern(path)
    per_row = counted.nonzeros_per_row(p)
    quantiles = ", ".join(f"{per_row.at_percent(percent)} at {percent} %" for percent in counted.QUANTILES)
    facts = {
        "matrix": f"{p.name}, {p.rows} x {p.columns}, {len(p.places)} nonzeros",
        "nonzeros per row": f"{per_row.mean:.4g} in the mean; of the rows {quantiles}",
        "bandwidth": str(counted.bandwidth(p)),
    }
    return Sparsity(facts, per_row.rows_with, list(counted.tile_rows(p)))


def _warning(*workloads: Workload) -> str:
    from workloads.graph import warnings

    return "".join(
        f"\nwarning: {line}" for line in dict.fromkeys(line for w in workloads for line in warnings(w))
    )


def _kind(path: Path) -> str:
    """Returns machine, study or workload: the kind that knows most of the file's keys, so that a misspelt key
    does not turn a machine into a workload. Raises ValueError.
    """
    from dse.study import read
    from workloads import document, text

    kinds = {"machine": {*machine.HEAD, "nodes"}, "study": set(read.KEYS), "workload": set(text.KEYS)}
    data, faults = document.read(path)
    faults = (
        faults
        if data is None or document.is_kind(data, {*machine.KEYS, *read.KIND, *text.DOCUMENT_KEYS})
        else []
    )
    known_keys = (
        {kind: len(keys & set(data)) for kind, keys in kinds.items()} if isinstance(data, dict) else {}
    )
    kind = max(known_keys, key=lambda kind: known_keys[kind], default="")
    if not faults and not (kind and known_keys[kind]):
        faults = [
            "is no machine (clock_mhz, nodes), no study (workloads, machine, space, objectives) and "
            "no workload (extents, einsums)"
        ]
    if faults and kind != "machine":  # hw/machine.py reports these faults itself
        raise ValueError("\n".join(f"{path}: {line}" for line in faults))
    return kind


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
            " > ".join(level.name for level in arch.levels),
            arch.instances(len(arch.levels)),
            arch.area_mm2(),
            ", ".join(arch.slow_levels()),
        )
        for arch in archs
    ]


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


def local(text: str | Path) -> Path:
    """Returns a run folder; of a URL a copy that is as new as its newest head."""
    if not folder.is_url(text):
        return Path(text)
    from cluster import objects

    copy: Path = objects.fetched(str(text))
    return copy


def is_intact_study(root: Path) -> bool:
    """True if env.json shows that the folder's rows belong to its study. The study itself is not read, which
    would take longer than everything else in `dse status`. Raises ValueError if no run is there.
    """
    folder.raise_if_no_run(root)
    versions = {"model_version": record.MODEL_VERSION, "solver_version": record.SOLVER_VERSION}
    return folder.is_intact_study(root, folder.read(root), versions)


def cache_rows() -> list[dict[str, Any]]:
    """Returns what $DSE_CACHE holds, by kind of question and version of the code: how many answers, their
    bytes, seconds since the newest and the oldest were written. Copies of remote run folders are a kind, too.
    """
    from cluster import objects

    groups: dict[tuple[str, str], list[cache.Entry]] = {}
    for entry in (*cache.entries(), *objects.copies()):
        groups.setdefault((entry.kind, entry.version), []).append(entry)
    return [
        {
            "kind": kind,
            "version": version,
            "answers": len(own),
            "size_bytes": sum(entry.size_bytes for entry in own),
            "newest_s": min(entry.age_s for entry in own),
            "oldest_s": max(entry.age_s for entry in own),
        }
        for (kind, version), own in sorted(groups.items())
    ]


def left_out(root: Path) -> list[str]:
    """Returns a line per damaged part, and how many machines are left out with them."""
    manifest, damaged = folder.verified_parts(root)
    count = sum(
        part.rows
        for group in manifest.groups
        if group.name in damaged
        for part in group.parts
        if part.table == "machines"
    )
    lines = [*chain.from_iterable(damaged.values())]
    return [*lines, f"--skip-damaged: {count} machines are left out"] if lines else []


def status(root: Path, skip_damaged: bool) -> dict[str, Any]:
    """Returns status.json of a run. State "running" becomes "killed" if the process that wrote it is known to
    be gone, else `last_sign_of_life_s` says how long ago it wrote. Raises Damaged, but with skip_damaged, or
    while the run goes on, not for damaged parts: these are `damaged`, a line each.
    """
    manifest, damaged = folder.verified_parts(root)
    facts, lines = folder.status(root, manifest.identity), [*chain.from_iterable(damaged.values())]
    if lines and not skip_damaged and not (facts and facts.get("state") == "running"):
        advice = f"{folder.advice(root)}, --skip-damaged leaves its machines out"
        raise folder.Damaged("\n".join(f"{line}; {advice}" for line in lines))
    if facts is None and (manifest.groups or (root / folder.STATUS).exists()):
        raise folder.Damaged(
            f"{root / folder.STATUS}: lost, damaged or of another run; {folder.advice(root)}"
        )
    facts = (facts or {"state": "not started", "done": 0}) | ({"damaged": lines} if lines else {})
    lost = [
        f"{folder.part_path(part.table, whole.name)} is lost or damaged: fronts are read from all points, no "
        "row is lost"
        for whole, sound in zip(folder.read(root).groups, manifest.groups, strict=False)
        if whole.name == sound.name
        for part in whole.parts
        if part not in sound.parts
    ]
    if lost:
        facts = {**facts, "notes": [*facts.get("notes", []), *lost]}
    if not (isinstance(written_at := facts.get("time", 0.0), int | float) and 0 <= written_at < 1e11):
        raise folder.Damaged(
            f"{root / folder.STATUS}: time = {str(written_at)[:40]} is no time; {folder.advice(root)}"
        )
    # status.json may be one generation behind: opening a run publishes the manifest first
    if (
        facts.get("state") not in ("running", "not started")
        and facts.get("published", 0) < manifest.generation - 1
    ):
        behind = (
            f"tells of generation {facts.get('published')} of {folder.MANIFEST}, which is at generation "
            f"{manifest.generation}"
        )
        raise folder.Damaged(
            f"{root / folder.STATUS}: {behind}; it is older than the rows, or a run is starting: "
            f"{folder.advice(root)}"
        )
    if facts.get("state") == "running" and folder.is_gone(str(facts.get("process", ""))):
        facts = folder.committed(root, manifest, facts)
        again = f" and solves {facts['uncommitted']} again" if facts["uncommitted"] else ""
        return facts | {
            "state": "killed",
            "reason": f"its process is gone; dse resume goes on{again}",
            "left_s": None,
            "solving": [],
        }
    if facts.get("state") == "running":
        return facts | {"last_sign_of_life_s": max(0.0, time.time() - written_at)}
    if facts.get("state") == "failed" and (known := folder.committed(root, manifest, facts))["uncommitted"]:
        return known
    return facts

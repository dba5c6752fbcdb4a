"""A point of a run as files (`dse show --export`): machine, workload files and mappings, which `dse simulate`
prices without the run and without any cache.
"""

from __future__ import annotations

import re
import shlex
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import yaml

from dse.exchange import convert
from dse.explain import values
from dse.frontend import api, mapped, runs, screens, tables
from dse.mapping.nest import Infeasible
from dse.run import record
from dse.study import study as studies
from dse.study.read import WorkloadRef
from dse.study.study import Study
from hw import space as spaces
from workloads import catalog

MACHINE = convert.FILES["machine"]
SUFFIXES = {"timeloop": "yaml", "zigzag": "yaml", "accelforge": "yaml", "directives": "txt"}
README = "README.txt"
METRICS = ("energy_pj", "latency_cycles")  # that the files must give again


def write(
    run: runs.Run, point: runs.Point, out: Path, form: str, other_form: Callable[[mapped.Mapped], str]
) -> list[tuple[Path, str]]:
    """Writes the files of a point. Returns each of them, and what it holds; of mappings the command that
    prices them.

    form, other_form: of --format, and what makes a mapping's text in it; "": there is none besides ours

    Raises NothingFits for a point without mappings; ValueError for a folder that holds something already or
    cannot be written, and for a point of which the files do not say all. Nothing is written then.
    """
    solved = _numbered(run.study, point)
    if not solved or any(isinstance(one.solution, Infeasible) for _, one in solved):
        raise screens.NothingFits(f"{run.path}: machine {point.machine} has no mappings to export")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out}: holds something already; give a new folder")
    with tempfile.TemporaryDirectory() as temporary:
        draft = Path(temporary)
        _write_inputs(run.study, point.machine, draft)
        found = [(out / MACHINE, f"machine {point.machine} of {run.study.name}")]
        for number, one in solved:
            found += _write_mappings(run.study, number, one, draft, out, form, other_form(one))
        (draft / README).write_text(_readme(run.study, point.machine, solved), encoding="utf-8")
        found.append((out / README, "the commands, in this folder, and what they print"))
        try:
            shutil.copytree(draft, out, dirs_exist_ok=True)
        except OSError as fault:
            raise ValueError(f"{out}: cannot be written ({fault.strerror}); give another folder") from None
    return found


def _numbered(study: Study, point: runs.Point) -> list[tuple[int, mapped.Mapped]]:
    """Returns what is solved, or the schedule given in its place, each with its workload's number."""
    if (given := point.given_schedule) is None:
        return [*enumerate(point.solutions)]
    names = [workload.name for workload in studies.workloads_of(study)]
    return [(names.index(given.workload.name), given)]


def _write_inputs(study: Study, machine: int, draft: Path) -> None:
    """Writes what a run folder keeps beside its study, and the machine with its parameters."""
    inputs = {Path(name).name: content for name, content in studies.files(study).items() if "/" in name}
    template = yaml.safe_load(inputs.pop(Path(study.machine).name))
    chosen = spaces.values(study.space, machine)
    document = {"name": study.space.template.name} | spaces.written(template, study.space.template, chosen)
    head = f"# Machine {machine} of {study.name}, by dse show --export.\n"
    for name, content in (inputs | {MACHINE: (head + convert.machine_text(document)).encode()}).items():
        (draft / name).write_bytes(content)


def _write_mappings(
    study: Study, number: int, one: mapped.Mapped, draft: Path, out: Path, form: str, other: str
) -> Iterator[tuple[Path, str]]:
    """Writes the mappings of a workload, prices them, and yields the files. number: of the workload in its
    study; other: the text in another form.
    """
    ref = study.workloads[number]
    assert not isinstance(one.solution, Infeasible)
    prefix, name, is_fused = _names(study, number, one)
    text = (
        values.nest(one.workload, one.solution, one.plan)
        if is_fused
        else yaml.safe_dump(values.mappings(one.workload, one.solution, one.plan), sort_keys=False)
    )
    (draft / name).write_text(f"{text}\n")
    sets = {} if study.solver.fuse_elementwise else {"solver.fuse_elementwise": False}
    found = api.simulate(_source(number, ref, draft), str(draft / MACHINE), draft / name, **sets)
    if any(found.totals.get(key) != one.totals[key] for key in METRICS):
        raise ValueError(
            f"{ref.name}: files do not say all of this point (bits, layouts or sizes that only its study "
            f"holds): they cost {found.totals.get('energy_pj')} pJ, the point {one.totals['energy_pj']}; dse "
            "pack has the whole run"
        )
    built_in = "" if ref.path else f" ({ref.text.partition(':')[0]} is built into dse)"
    yield out / name, f"mappings of {ref.name}{built_in}; {_command(study, number, one, out)}"
    if other:
        other_name = f"{prefix}{form}.{SUFFIXES[form]}"
        (draft / other_name).write_text(other)
        yield out / other_name, f"mappings of {ref.name} for {form}"


def _names(study: Study, number: int, one: mapped.Mapped) -> tuple[str, str, bool]:
    """Returns what names of a workload's files begin with, that of its mappings, and whether they are a
    schedule that fuses einsums.
    """
    ref = study.workloads[number]
    assert not isinstance(one.solution, Infeasible)
    prefix = f"{number}_{re.sub(r'[^A-Za-z0-9]+', '_', ref.name)}_" if len(study.workloads) > 1 else ""
    is_fused = one.solution.schedule is not None and not one.solution.schedule.is_unfused()
    return prefix, prefix + convert.FILES["schedule" if is_fused else "mapping"], is_fused


def _command(study: Study, number: int, one: mapped.Mapped, folder: Path) -> str:
    """Returns the command that prices the mappings in a folder."""
    words = [_source(number, study.workloads[number], folder), folder / MACHINE]
    words.append(folder / _names(study, number, one)[1])
    sets = [] if study.solver.fuse_elementwise else ["--set=solver.fuse_elementwise=false"]
    return shlex.join(["dse", "simulate", *map(str, words), *sets])


def _readme(study: Study, machine: int, solved: Sequence[tuple[int, mapped.Mapped]]) -> str:
    """Returns what stands beside the files: how each workload is priced again, and what it costs."""
    lines = [f"Machine {machine} of {study.name}, by dse show --export (cost model {record.MODEL_VERSION})."]
    lines += ["In this folder, with no other file:", ""]
    for number, one in solved:
        costs = tables.labelled({key: one.totals[key] for key in METRICS})
        lines += [f"    {_command(study, number, one, Path())}"]
        lines += [f"    # {', '.join(f'{name} {value}' for name, value in costs)}"]
    built_in = dict.fromkeys(ref.text.partition(":")[0] for ref in study.workloads if not ref.path)
    if built_in:
        lines += ["", f"Built into dse (dse list workloads), so no file: {', '.join(built_in)}."]
    return "\n".join([*lines, ""])


def _source(number: int, ref: WorkloadRef, folder: Path) -> str:
    """Returns a workload as the command line takes it, its file in the folder."""
    before, _, after = catalog.file_in(ref.text)
    text = f"{before}{folder / Path(studies.input_path(number, ref)).name}{after}" if ref.path else ref.text
    bound = ",".join(f"{key}={value}" for key, value in ref.bind)
    return f"{text}{',' if ':' in after else ':'}{bound}" if bound else text

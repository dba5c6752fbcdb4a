"""study.yaml -> Study: good files, a table of broken ones, identity, relocation, and the way of rows back to
trials.
"""

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml

from dse.explain import functions
from dse.run import record
from dse.study import study as studies
from dse.study.pareto import Cost, Objective
from dse.study.plan import Asked, Generation
from dse.study.study import Study, StudyError
from hw.space import decode, values
from workloads import catalog

GOOD: dict[str, Any] = {
    "workloads": ["gemm:m=64,n=32,k=48", {"file": "nets/small.yaml", "name": "small", "weight": 2}],
    "machine": "edge_array",
    "space": {
        "array.x": [8, 12, 16],
        "array.y": [8, 16],
        "gbuf.capacity": {"from": "32 KiB", "to": "256 KiB", "step": "x2"},
        "dram.kind": ["lpddr4", "lpddr5"],
    },
    "constraints": ["array.x >= array.y", "latency_ns[small] <= 5e6"],
    "objectives": [{"energy_pj": "sum"}, {"latency_ns": "max"}, "area_mm2"],
    "search": {"method": "tpe", "seed": 7},
    "stop": {"machines": 2000, "hours": 8, "hypervolume_gain": 1e-4},
    "solver": {"objective": "energy"},
}
SMALL = """
name: small
extents: {m: 8, n: 4, k: 2}
einsums: ["C[m,n] += A[m,k] * B[k,n]"]
weights: [B]
"""

MATRIX = "%%MatrixMarket matrix coordinate real general\n3 3 3\n1 1 1.0\n2 2 1.0\n3 3 1.0\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "nets").mkdir()
    (tmp_path / "nets/small.yaml").write_text(SMALL)
    return tmp_path


def load(folder: Path, sets: tuple[str, ...] = (), **changes: object) -> Study:
    """The good study with top-level keys changed; None takes a key out."""
    document = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    (folder / "s.yaml").write_text(yaml.safe_dump(document, sort_keys=False))
    return studies.load(folder / "s.yaml", sets)


def costs(study: Study, energy: float, latency: float) -> dict[str, Cost]:
    return {ref.name: Cost(energy, latency, latency, latency) for ref in study.workloads}


def test_a_good_file(folder: Path) -> None:
    study = load(folder)
    assert (study.name, study.space.size, study.stop.machines, study.search.method) == ("s", 48, 2000, "tpe")
    assert [(ref.name, ref.weight) for ref in study.workloads] == [
        ("gemm:m=64,n=32,k=48", 1.0),
        ("small", 2.0),
    ]
    assert [w.macs() for w in studies.workloads_of(study)] == [64 * 32 * 48, 64]
    assert study.objectives == (
        Objective("energy_pj", "sum"),
        Objective("latency_ns", "max"),
        Objective("area_mm2"),
    )
    assert [c.text for c in study.constraints.static] == ["array.x >= array.y"]
    assert [c.text for c in study.constraints.modelled] == ["latency_ns[small] <= 5e6"]
    assert pickle.loads(pickle.dumps(study)) == study


def test_sets_go_over_the_file(folder: Path) -> None:
    study = load(
        folder,
        ("stop.machines=60", "space.array.x=[8]", "search={method: random}", "name=other", "limits.errors=3"),
    )
    assert (
        study.stop.machines,
        study.stop.hours,
        study.space.size,
        study.search.method,
        study.name,
        study.limits.errors,
    ) == (60, 8, 16, "random", "other", 3)


BROKEN: list[tuple[dict[str, object], list[str]]] = [
    ({"objectivs": []}, ["objectivs = [] is no known key; did you mean objectives?"]),
    ({"machine": None}, ["machine is missing; add it"]),
    ({"machine": "edge_aray"}, ["machine = edge_aray is unknown; did you mean edge_array?"]),
    ({"machine": 5}, ["machine = 5 is no name or path"]),
    ({"machine": "/etc/hostname"}, ["s.yaml: machine: /etc/hostname: must be a mapping with clock_mhz"]),
    ({"machine": "absent.yaml"}, ["s.yaml: machine: ", "absent.yaml: cannot be read"]),
    ({"space": {}}, ["space = {} is empty"]),
    ({"space": {"array.x": []}}, ["space.array.x = [] leaves no machine"]),
    (
        {"space": {"gbuf.capacty": ["1 KiB"]}},
        ["space.gbuf.capacty is no field of machine edge_array; did you mean gbuf.capacity?"],
    ),
    ({"space": {"gbuf.capacity": [64]}}, ["space.gbuf.capacity = 64 is not a size"]),
    ({"space": {"array.x": [-8]}}, ["space.array.x = -8"]),
    ({"workloads": ["resnet5"]}, ["workloads[0]: ", "resnet50"]),
    ({"workloads": []}, ["workloads = [] is no list"]),
    ({"workloads": [{"file": "absent.onnx"}]}, ["workloads[0]: ", "absent.onnx"]),
    (
        {"workloads": [{"file": "nets/small.yaml", "wieght": 2}]},
        ["workloads[0].wieght = 2 is no known key; did you mean weight?"],
    ),
    (
        {"workloads": [{"file": "nets/small.yaml", "weight": -1}]},
        ["workloads[0].weight = -1 must be a number above 0"],
    ),
    ({"workloads": [{"weight": 1}]}, ["workloads[0] = ", "is no workload"]),
    (
        {"workloads": ["gemm:m=1,n=1,k=1"] * 2, "constraints": []},
        ['workloads: name "gemm:m=1,n=1,k=1" stands twice'],
    ),
    ({"objectives": ["energy"]}, ["objectives[0] = energy is no metric; did you mean energy_pj?"]),
    (
        {"objectives": [{"energy_pj": "smal"}]},
        ["objectives[0] = {energy_pj: smal} names no aggregate and no workload; did you mean small?"],
    ),
    (
        {"objectives": [{"energy_pj": "sum", "direction": "up"}]},
        ['objectives[0].direction = "up" is unknown; use min or max'],
    ),
    ({"objectives": [{"area_mm2": "sum"}]}, ["objectives[0] = {area_mm2: sum}: area is the machine's"]),
    ({"objectives": ["energy_pj", "energy_pj"]}, ["objectives: energy_pj stands twice"]),
    ({"objectives": [["energy_pj"]]}, ["objectives[0] = ", "is no objective"]),
    (
        {"objectives": ["latency_cycles"], "space": {"clock_mhz": [400, 500]}, "constraints": []},
        ["objectives[0] = latency_cycles", "use latency_ns"],
    ),
    (
        {"constraints": ["area_mm < 2"]},
        [
            'constraints[0]: "area_mm < 2": area_mm is no number of the machine and no metric; did '
            "you mean area_mm2?"
        ],
    ),
    ({"constraints": ["latency_ns[larg] < 2"]}, ["larg is no workload"]),
    ({"constraints": ["area_mm2"]}, ['constraints[0]: constraint "area_mm2"']),
    ({"constraints": ["array.x > 64"]}, ["constraints: no machine of the space meets array.x > 64"]),
    (
        {"constraints": ["array.x > 12", "array.x < 16"]},
        ["constraints: no machine of the space meets array.x > 12 and array.x < 16"],
    ),
    (
        {
            "constraints": ["array.x > 64"],
            "space": {
                "array.x": [8],
                "gbuf.capacity": {"linear": ["1 KiB", "9991 KiB", 1000]},
                "array.y": list(range(1, 64)),
            },
        },
        ["constraints: no machine of the space meets array.x > 64"],
    ),
    ({"constraints": ["dram.kind >= 2"]}, ["dram.kind is no number of the machine"]),
    (
        {"machine": "a2", "space": {"glb.double_buffer": [True]}, "constraints": ["node_nm >= 2"]},
        ["no machine of the space meets node_nm >= 2"],
    ),
    ({"constraints": "area_mm2 < 2"}, ["constraints = ", "is no list"]),
    ({"search": {"method": "tpee"}}, ['search.method = "tpee"']),
    ({"search": {"sead": 1}}, ["search.sead = 1 is no known key; did you mean seed?"]),
    ({"search": "tpe"}, ['search = "tpe" is no mapping']),
    ({"stop": {"machines": 0}}, ["stop.machines = 0"]),
    ({"stop": {"machines": "many"}}, ['stop.machines = "many"']),
    ({"stop": {"hypervolume_gain": 2}}, ["stop.hypervolume_gain = 2"]),
    (
        {"solver": {"mapper": "cost_decending"}},
        ['solver.mapper = "cost_decending" is no mapper; did you mean cost_descending?'],
    ),
    ({"solver": {"factors": "rugged"}}, ['solver.factors = "rugged"']),
    (
        {"solver": {"mapper": "random", "factors": "imperfect_spatial"}},
        ['solver.factors = "imperfect_spatial" is a choice of the mapper optimal; leave it out'],
    ),
    ({"solver": {"dataflow": "weight"}}, ['solver.dataflow = "weight"']),
    (
        {"solver": {"mapper": "exhaustive", "dataflow": "row_stationary"}},
        ['solver.dataflow = "row_stationary" is a choice of the mapper optimal'],
    ),
    ({"solver": {"objective": "speed"}}, ['solver.objective = "speed"']),
    ({"workers": -1}, ["workers = -1 is no number of workers"]),
    ({"sink": "cloud"}, ['sink = "cloud" is unknown']),
    ({"name": "a/b"}, ['name = "a/b" is no name of a folder']),
]


@pytest.mark.parametrize(("change", "expected"), BROKEN, ids=lambda x: str(x)[:50])
def test_one_fault_is_one_line(folder: Path, change: dict[str, object], expected: list[str]) -> None:
    with pytest.raises(StudyError) as caught:
        load(folder, **change)
    (line,) = str(caught.value).splitlines()
    assert all(part in line for part in expected), line
    assert line.startswith(f"{folder / 's.yaml'}: ")
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_all_faults_at_once(folder: Path) -> None:
    with pytest.raises(StudyError) as caught:
        load(
            folder,
            ("stop.machnes=5", "nonsense"),
            machine="edge_aray",
            objectives=["energy"],
            search={"seed": -1},
            workloads=["resnet5"],
            colour="red",
            constraints=["area_mm2 << 2", "power_w < 3", "power_mw < 9", "gbuf.capacity <= 4096"],
        )
    lines = str(caught.value).splitlines()
    wanted = (
        "stop.machnes",
        "--set nonsense",
        "machine = edge_aray",
        "objectives[0]",
        "search.seed",
        "workloads[0]",
        "colour",
        "constraints[0]",
        "power_w is no number of the machine and no metric; did you mean power_mw?",
    )
    assert len(lines) == len(wanted)
    assert all(any(part in line for line in lines) for part in wanted)


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "a: [1\n", "workloads: [1]\nworkloads: [2]\n"])
def test_no_document_is_no_traceback(folder: Path, text: str) -> None:
    (folder / "s.yaml").write_text(text)
    with pytest.raises(StudyError, match=r"s.yaml: "):
        studies.load(folder / "s.yaml")
    with pytest.raises(StudyError, match="cannot be read"):
        studies.load(folder / "absent.yaml")


@pytest.mark.parametrize(
    ("text", "einsums"),
    [
        ("train:net=nets/small.yaml,optimizer=adam", 5),
        ("cg:matrix=nets/a.mtx,iterations=2", 22),
        ("nets/a.mtx:solver=cg,iterations=2", 22),
    ],
)
def test_a_file_inside_a_name_lies_beside_the_study(folder: Path, text: str, einsums: int) -> None:
    (folder / "nets/a.mtx").write_text(MATRIX)
    study = load(folder, workloads=[text], constraints=[])
    assert study.workloads[0].name == (text if "=nets/" in text else "a")
    assert len(studies.workloads_of(study)[0].einsums) == einsums
    (folder / "nets/a.mtx").unlink()
    (folder / "nets/small.yaml").unlink()
    with pytest.raises(
        StudyError, match=rf"workloads\[0\].*{folder}/nets/(a.mtx|small.yaml): cannot be read"
    ) as fault:
        studies.load(folder / "s.yaml")
    assert "\n" not in str(fault.value)


def test_a_run_folder_is_relocatable_and_keeps_the_identity(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    study = load(folder, ("stop.machines=60",))
    copy = tmp_path_factory.mktemp("elsewhere")
    for name, content in studies.files(study).items():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes(content)
    names = studies.files(study).keys()
    (folder / "nets/small.yaml").unlink()
    again = studies.load(copy / "study.yaml")
    assert studies.identity(again) == studies.identity(study)
    assert (again.stop, again.name, again.objectives, again.space) == (
        study.stop,
        study.name,
        study.objectives,
        study.space,
    )
    assert (
        studies.files(again).keys()
        == names
        == {"study.yaml", "inputs/edge_array.yaml", "inputs/1_small.yaml"}
    )


def test_a_run_folder_keeps_what_surrounds_a_file_in_a_name(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    (folder / "nets/a.mtx").write_text(MATRIX)
    texts = [
        "nets/a.mtx:solver=gmres,n=2",
        "cg:matrix=nets/a.mtx,iterations=2",
        "train:net=nets/small.yaml,optimizer=adam",
    ]
    study = load(folder, workloads=texts, constraints=[])
    for _ in range(2):  # a run folder's study is a study: it moves again
        copy = tmp_path_factory.mktemp("elsewhere")
        for name, content in studies.files(study).items():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes(content)
        again = studies.load(copy / "study.yaml")
        assert studies.changes(studies.identity(study), studies.identity(again)) == []
        study = again


@pytest.mark.parametrize(
    ("change", "key"),
    [
        ({"space": {"array.x": [8, 16]}, "constraints": []}, "space.array.x"),
        ({"search": {"method": "tpe", "seed": 8}}, "search.seed"),
        ({"solver": {"objective": "latency"}}, "solver.objective"),
        ({"objectives": ["energy_pj"]}, "objectives"),
        ({"constraints": []}, "constraints"),
        ({"workloads": ["gemm:m=64,n=32,k=48", {"file": "nets/small.yaml", "weight": 3}]}, "workloads.small"),
        ({"machine": "a2", "constraints": []}, "machine"),
    ],
)
def test_what_shapes_rows_changes_the_identity(folder: Path, change: dict[str, object], key: str) -> None:
    if change.get("machine") == "a2":
        change = {**change, "space": {"glb.capacity": ["1 KiB"]}}
    lines = studies.changes(studies.identity(load(folder)), studies.identity(load(folder, **change)))
    assert any(line.startswith(f"{key}: ") for line in lines), lines


def test_what_shapes_no_row_keeps_the_identity(folder: Path) -> None:
    sets = ("stop.machines=9", "workers=3", "limits.errors=1", "limits.seconds=5", "sink=driver")
    assert studies.changes(studies.identity(load(folder)), studies.identity(load(folder, sets))) == []
    (folder / "nets/small.yaml").write_text(SMALL.replace("m: 8", "m: 9"))
    assert studies.changes(studies.identity(load(folder)), {})
    before = studies.identity(load(folder))
    (folder / "nets/small.yaml").write_text("# a comment\n" + SMALL.replace("m: 8", "m: 9"))
    assert studies.identity(load(folder)) == before


def test_columns_and_point(folder: Path) -> None:
    study = load(folder)
    assert studies.columns(study, "machines")["gbuf_capacity"].unit == "B"
    assert studies.parameters(study, 0) == {
        "array_x": 8,
        "array_y": 8,
        "gbuf_capacity": 32768,
        "dram_kind": "lpddr4",
    }
    missed = "violation_latency_ns_small_le_5e6"
    assert list(studies.columns(study, "points")) == ["energy_pj_sum", "latency_ns_max", missed]
    good, bad = (
        studies.point(study, 0, 2.0, costs(study, 3.0, 4.0)),
        studies.point(study, 0, 2.0, costs(study, 3.0, 6e6)),
    )
    assert (good["energy_pj"], good["energy_pj_sum"], good["latency_ns_max"], good["area_mm2"]) == (
        9.0,
        9.0,
        4.0,
        2.0,
    )
    assert (good["feasible"], bad["feasible"], bad[missed]) == (True, False, 1e6)
    assert good.keys() <= {*record.TABLES["points"], *studies.columns(study, "points")}


def test_a_constraint_may_join_metrics_and_fields(folder: Path) -> None:
    study = load(folder, constraints=["power_mw * area_mm2 <= array.x", "latency_ns <= 4 + array.y"])
    arch = decode(study.space, 0)
    row = studies.point(study, 0, arch.area_mm2(), costs(study, 3.0, 4.0))
    assert row["violation_power_mw_area_mm2_le_array_x"] == pytest.approx(0.75 * arch.area_mm2() - 8)
    assert row["violation_latency_ns_le_4_array_y"] == pytest.approx(12 - 12)


def committed(study: Study, asks: Generation) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Rows as a run would commit them, from a made-up model; every fifth machine is too small."""
    machines: list[dict[str, Any]] = [
        {"machine": m, "generation": asks.generation, "status": "pruned"} for m, _, _ in asks.pruned
    ]
    points: list[dict[str, Any]] = []
    for machine, _ in asks.asks:
        x, capacity = values(study.space, machine)["array.x"], values(study.space, machine)["gbuf.capacity"]
        status = "infeasible" if machine % 5 == 4 else "ok"
        machines.append(
            {
                "machine": machine,
                "generation": asks.generation,
                "status": status,
                "need_bytes": 3 * machine,
                "have_bytes": 2 * machine,
            }
        )
        if status == "ok":
            for schedule in (0, 1):
                cost = costs(
                    study, float(capacity) + 10 * schedule, 1e9 / (x * (1 + schedule)) if machine % 7 else 1.0
                )
                points.append(
                    {
                        "machine": machine,
                        "schedule": schedule,
                        **studies.point(study, machine, float(x), cost),
                    }
                )
    return machines, points


def walk(study: Study, generations: int, known: list[Generation] | None = None) -> list[Generation]:
    """Asks generation after generation; with `known`, those of an interrupted run are taken from there."""
    asks: list[Generation] = list(known or [])
    for g in range(len(asks), generations):
        rows = [committed(study, a) for a in asks[: max(0, g - 1)]]
        trials = studies.trials(
            study,
            [m for machines, _ in rows for m in machines[::-1]],
            [p for _, points in rows for p in points[::-1]],
        )
        asked = Asked()
        for generation in asks:
            asked.add(generation)
        found = studies.generation(study, g, asked, trials)
        assert found == studies.generation(study, g, Asked(asked.machines), trials), "drawn only saves time"
        if found is None:
            break
        asks.append(found)
    return asks


@pytest.mark.parametrize("method", ["exhaustive", "random", "qmc", "nsga2", "nsga3", "tpe"])
def test_a_resumed_study_asks_what_the_undisturbed_one_asks(folder: Path, method: str) -> None:
    study = load(folder, search={"method": method, "seed": 3, "generation": 6, "population": 6, "startup": 6})
    whole = walk(study, 99)
    pruned = [m for a in whole for m, _, _ in a.pruned]
    assert sorted([m for a in whole for m, _ in a.asks] + pruned) == list(range(48))
    assert pruned
    assert all(reason == "breaks array.x >= array.y" for a in whole for _, _, reason in a.pruned)
    for cut in (1, 2, len(whole) // 2, len(whole)):
        assert walk(study, 99, whole[:cut]) == whole


def test_trials_of_rows(folder: Path) -> None:
    study = load(folder)
    machines = [
        {"machine": 9, "generation": 1, "status": "error"},
        {"machine": 4, "generation": 1, "status": "infeasible", "need_bytes": 300, "have_bytes": 200},
        {"machine": 5, "generation": 0, "status": "ok"},
        {"machine": 8, "generation": 0, "status": "pruned"},
    ]
    points = [
        {"machine": 5, "schedule": s, **studies.point(study, 5, 2.0, costs(study, 3.0 - s, 1.0 + 6e6 * s))}
        for s in (1, 0)
    ]
    found = studies.trials(study, machines, points)
    assert [(t.machine, t.status, t.values, t.violations) for t in found] == [
        (5, "ok", (9.0, 1.0, 2.0), (0.0, 0.0, 1.0 - 5e6)),
        (5, "ok", (6.0, 6000001.0, 2.0), (0.0, 0.0, 1000001.0)),
        (8, "pruned", None, (0.0, 8.0, 0.0)),
        (4, "infeasible", None, (0.5, 0.0, 0.0)),
    ]
    assert [t.feasible for t in found] == [True, False, False, False]


def sized(folder: Path, **changes: object) -> Study:
    """A study of workloads in several sizes."""
    one = {"workload": "gpt2:phase=decode,layers=1", "name": "lm", "weight": 2}
    sizes = {"array.x": [8, 16], "workload.batch": [1, 4], "workload.context": [16, 32]}
    return load(
        folder,
        **{"workloads": [one], "space": sizes, "constraints": None, "objectives": ["energy_pj"]} | changes,
    )


def test_sizes_of_workloads_are_axes(folder: Path, tmp_path: Path) -> None:
    study = sized(folder)
    assert [ref.name for ref in study.workloads] == [
        f"lm:batch={batch},context={context}" for batch in (1, 4) for context in (16, 32)
    ]
    assert [ref.text for ref in study.workloads] == [
        f"gpt2:phase=decode,layers=1,batch={batch},context={context}"
        for batch in (1, 4)
        for context in (16, 32)
    ]
    assert {ref.weight for ref in study.workloads} == {2}
    assert [axis.key for axis in study.space.axes] == ["array.x"]
    listed = [{"workload": ref.text, "name": ref.name, "weight": 2} for ref in study.workloads]
    assert studies.identity(study) == studies.identity(
        sized(folder, workloads=listed, space={"array.x": [8, 16]})
    )


def test_a_size_of_a_file_keeps_the_file(folder: Path) -> None:
    """A file in a run folder, and parameters behind its path."""
    (folder / "m.mtx").write_text(MATRIX)
    study = sized(folder, workloads=[{"file": "m.mtx"}], space={"array.x": [8, 16], "workload.n": [1, 2]})
    assert [(ref.name, ref.text) for ref in study.workloads] == [
        ("m:n=1", "m.mtx:n=1"),
        ("m:n=2", "m.mtx:n=2"),
    ]
    assert [w.macs() for w in study.loaded_workloads] != [study.loaded_workloads[0].macs()] * 2
    run = folder / "run"
    for name, content in studies.files(study).items():
        (run / name).parent.mkdir(parents=True, exist_ok=True)
        (run / name).write_bytes(content)
    assert studies.identity(studies.load(run / "study.yaml")) == studies.identity(study)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"space": {"array.x": [8], "workload.batch": 4}},
            "space.workload.batch = 4 is no list of sizes or words; write e.g. [1, 4, 16]",
        ),
        (
            {"space": {"array.x": [8], "workload.batch": [4, 4]}},
            "space.workload.batch = [4, 4] has a value twice; keep one",
        ),
        (
            {"space": {"array.x": [8], "workload.phase": ["decode"]}},
            "space.workload.phase: workloads[0] = gpt2:phase=decode,layers=1 has phase already; leave one of "
            "both out",
        ),
        (
            {"space": {"array.x": [8], "workload.batches": [4]}},
            'workloads[0]: workload "gpt2:phase=decode,layers=1,batches=4": no parameter is named batches; ',
        ),
    ],
)
def test_a_size_that_no_workload_has_is_a_fault(folder: Path, changes: dict[str, object], line: str) -> None:
    with pytest.raises(StudyError) as fault:
        sized(folder, **changes)
    assert any(one.startswith(f"{folder / 's.yaml'}: {line}") for one in str(fault.value).splitlines())


def test_rows_of_workloads_have_samples_tokens_and_parameters(folder: Path) -> None:
    study = sized(
        folder,
        workloads=["gpt2:layers=1", "bert_tiny:sequence=16"],
        space={"workload.batch": [1, 4], "array.x": [8]},
    )
    (view,) = (one for one in functions.functions(study, lambda *_: None) if one.name == "workloads_of")  # type: ignore[arg-type,return-value]
    rows = view.call(pa.array([0])).to_pylist()[0]
    assert [(row["samples"], row["tokens"]) for row in rows] == [(1, 1024), (4, 4096), (1, 16), (4, 64)]
    assert [row["workload_batch"] for row in rows] == [1, 4, 1, 4]
    assert [row["workload_sequence"] for row in rows] == [None, None, 16, 16]
    assert {row["weight"] for row in rows} == {1.0}


def test_the_samples_and_tokens_of_a_run() -> None:
    sizes = catalog.run_sizes
    assert sizes("llama7b:phase=decode,batch=8,context=512") == (8, 8)
    assert sizes("llama7b:context=512,batch=2") == (2, 1024)
    assert sizes("train:net=resnet50,batch=8,optimizer=adam") == (8, None)
    assert sizes("train:net=resnet50") == sizes("resnet50") == (1, None)
    assert sizes("squeezenet:batch=3") == sizes("light_squeezenet:batch=3") == (3, None)
    assert sizes("nets/net.onnx:batch=4") == (4, None)
    assert sizes("conv:k=8,c=16,p=14,q=14,r=3,s=3") == (None, None)

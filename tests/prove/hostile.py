"""Proof: 100 hostile inputs are refused in one line per fault, within 2 s of processor time, and touch no
file but their own.

    python -m tests.prove hostile [--only KIND]

SQL (40), YAML (20), ONNX (20), MatrixMarket (10), run folders (10): each through the command line in a
process of its own. Beside the folder that holds the input lies a tree of sentinels: their contents, names and
times of change and of reading must be as before. Where strace is installed, every path that the process opens
to write, and every one below the sentinels that it opens at all, is looked at too. Put `allowed_directories`,
the check of a name, a link or a limit out, and a case fails.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from dse.frontend import cli
from dse.run import folder
from tests.prove.corruption import NET, STUDY, command, forked

SECONDS = 2.0
MEMORY = 6 << 30
SECRET = "what nobody may see"

SQL = """
SELECT * FROM read_text('OUT/secret.txt')
SELECT * FROM read_blob('OUT/*')
SELECT * FROM read_csv('OUT/secret.csv')
SELECT * FROM read_parquet('OUT/*.parquet')
SELECT * FROM 'OUT/secret.csv'
SELECT * FROM "OUT/secret.csv"
SELECT * FROM 'RUN/parts/machines/../../../out/secret.csv'
SELECT * FROM glob('OUT/*')
SELECT * FROM sniff_csv('OUT/secret.csv')
SELECT (SELECT content FROM read_text('OUT/secret.txt'))
WITH x AS (SELECT * FROM read_text('OUT/secret.txt')) FROM x
SELECT * FROM machines WHERE reason IN (SELECT content FROM read_text('OUT/secret.txt'))
FROM query('SELECT * FROM read_text(''OUT/secret.txt'')')
FROM query_table('OUT/secret.csv')
FROM pareto('(SELECT * FROM read_csv(''OUT/secret.csv''))', ['a'])
FROM pareto('(SELECT 1 AS a) t, (SELECT * FROM read_text(''OUT/secret.txt'')) u --', ['a'])
FROM pareto('OUT/secret.csv', ['a'])
FROM pareto2('OUT/secret.csv', a, b)
FROM enable_logging(storage = 'file', storage_path = 'OUT/log.csv')
FROM enable_profiling(save_location = 'OUT/profile.json')
COPY machines TO 'OUT/stolen.csv'
COPY (SELECT 1) TO 'RUN/parts/machines/000001-0.parquet'
EXPORT DATABASE 'OUT/dump'
ATTACH 'OUT/evil.db'
EXPLAIN ANALYZE COPY machines TO 'OUT/stolen.csv'
SET temp_directory = 'OUT'
PRAGMA enable_profiling = 'json'
INSTALL httpfs
LOAD 'OUT/evil.duckdb_extension'
CREATE TABLE x AS SELECT 1
CALL enable_logging('QueryLog')
SELECT 1; COPY machines TO 'OUT/stolen.csv'
FROM json_execute_serialized_sql(json_serialize_sql('FROM read_text(''OUT/secret.txt'')'))
FROM test_all_types()
DESCRIBE 'OUT/secret.csv'
FROM parquet_metadata('OUT/x.parquet')
FROM duckdb_settings()
SELECT repeat('x', 1000000000000)
FROM (WITH "OUT/secret.csv" AS (SELECT 1) SELECT 1) a, "OUT/secret.csv" b
FROM which_secret('OUT/secret.csv', 's3')
""".strip().splitlines()

BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)
)
MERGES = "a0: &a0 {k0: 1}\n" + "".join(
    f"a{i}: &a{i}\n  <<: [{', '.join([f'*a{i - 1}'] * 10)}]\n  k{i}: 1\n" for i in range(1, 9)
)
GOOD = (
    "name: x\nworkloads: ['gemm:m=8,n=8,k=8']\nmachine: edge_array\nspace: {{array.x: "
    "{space}}}\nobjectives: [energy_pj]\n{more}"
)
YAML = {
    "aliases.yaml": BOMB,
    "merges.yaml": MERGES,
    "itself.yaml": "workloads: &a [*a]\n",
    "deep.yaml": "[" * 100_000,
    "deeper.yaml": "- " * 50_000 + "x",
    "maps.yaml": "{a: " * 20_000,
    "code.yaml": "workloads: !!python/object/apply:os.system ['touch OUT/x']\n",
    "long.yaml": "a: " + "x" * (2 << 20),
    "flat.yaml": "a: [" + "1, " * 300_000 + "1]",
    "keys.yaml": "\n".join(f"k{i}: 1" for i in range(60_000)),
    "number.yaml": "a: " + "9" * 100_000,
    "binary.yaml": "\0\1\2\3",
    "space.yaml": GOOD.format(space="{from: 1, to: 1000000000000, step: 1}", more=""),
    "power.yaml": GOOD.format(space="[8, 16]", more="constraints: ['area_mm2 <= 9**9**9**9']\n"),
    "calls.yaml": GOOD.format(
        space="[8, 16]", more='constraints: [\'area_mm2 <= __import__("os").system("touch OUT/x")\']\n'
    ),
    "brackets.yaml": GOOD.format(
        space="[8, 16]", more="constraints: ['" + "(" * 50_000 + "area_mm2" + ")" * 50_000 + " <= 1']\n"
    ),
    "nowhere.yaml": GOOD.format(space="*nowhere", more=""),
    "huge.yaml": GOOD.format(space="[8, 16]", more="").replace("m=8", "m=" + "9" * 5000),
    "extents.yaml": "extents: {m: 1e400, n: -1, k: 99999999999999999999}\n"
    "einsums: ['C[m,n] += A[m,k] * B[k,n]']\n",
    "text.yaml": "extents: {m: 4}\neinsums: ['" + "C[m] += A[m] * " * 20_000 + "B[m]']\n",
}


def graph(
    nodes: list[NodeProto],
    inputs: dict[str, list[int]],
    initializers: list[TensorProto] | None = None,
    kind: int = TensorProto.FLOAT,
) -> ModelProto:
    values = [helper.make_tensor_value_info(name, kind, shape) for name, shape in inputs.items()]
    made: GraphProto = helper.make_graph(
        nodes, "g", values, [helper.make_tensor_value_info("y", kind, None)], initializers or []
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 21)])


def outside(name: str, place: str, dims: list[int], small: bool = False) -> TensorProto:
    """A tensor whose values lie in a file elsewhere."""
    t = TensorProto(
        name=name,
        data_type=TensorProto.INT64 if small else TensorProto.FLOAT,
        dims=dims,
        data_location=TensorProto.EXTERNAL,
    )
    for key, value in (("location", place), ("offset", "0"), ("length", "8")):
        entry = t.external_data.add()
        entry.key, entry.value = key, value
    return t


def lying(name: str, dims: list[int], raw: bytes) -> TensorProto:
    return TensorProto(name=name, data_type=TensorProto.INT64, dims=dims, raw_data=raw)


def ints(name: str, *values: int) -> TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)


def onnx_files(out: Path) -> dict[str, bytes]:
    node = helper.make_node
    chain = [node("Relu", [f"t{i}"], [f"t{i + 1}"]) for i in range(200)]
    inner = graph([node("Identity", ["x"], ["y"])], {"x": [1]}).graph
    for _ in range(60):
        wrapped = (
            graph([node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)], {"x": [1]}).graph
            if inner.ByteSize() < 1 << 20
            else inner
        )
        inner = wrapped
    secret = str(out / "secret.bin")
    models = {
        "escape": graph(
            [node("Reshape", ["x", "s"], ["y"])], {"x": [4]}, [outside("s", "../out/secret.bin", [1], True)]
        ),
        "absolute": graph(
            [node("Reshape", ["x", "s"], ["y"])], {"x": [4]}, [outside("s", secret, [1], True)]
        ),
        "constant": graph(
            [
                node("Constant", [], ["s"], value=outside("s", secret, [1], True)),
                node("Reshape", ["x", "s"], ["y"]),
            ],
            {"x": [4]},
        ),
        "lies": graph([node("Reshape", ["x", "s"], ["y"])], {"x": [4]}, [lying("s", [3], b"\1")]),
        "negative": graph([node("Reshape", ["x", "s"], ["y"])], {"x": [4]}, [lying("s", [-3], b"\1" * 8)]),
        "vast": graph(
            [node("Reshape", ["x", "s"], ["y"])], {"x": [4]}, [lying("s", [1 << 40, 1 << 40], b"\1" * 8)]
        ),
        "overflow": graph(
            [node("MatMul", ["x", "w"], ["y"])], {"x": [1 << 62, 4]}, [lying("w", [5, 3], b"")]
        ),
        "expand": graph(
            [
                node("Shape", ["x"], ["a"]),
                node("Expand", ["a", "s"], ["b"]),
                node("Reshape", ["x", "b"], ["y"]),
            ],
            {"x": [4]},
            [ints("s", 1 << 40)],
        ),
        "range": graph(
            [node("Range", ["a", "b", "c"], ["d"]), node("Reshape", ["x", "d"], ["y"])],
            {"x": [4]},
            [
                TensorProto(name=n, data_type=TensorProto.INT64, int64_data=[v])
                for n, v in (("a", 0), ("b", 1 << 40), ("c", 1))
            ],
        ),
        "tile": graph(
            [node("Tile", ["x", "r"], ["t"]), node("MatMul", ["t", "nothing"], ["y"])],
            {"x": [4]},
            [ints("r", 1 << 50)],
        ),
        "fill": graph(
            [node("ConstantOfShape", ["s"], ["t"]), node("Reshape", ["x", "t"], ["y"])],
            {"x": [4]},
            [ints("s", 1 << 45)],
        ),
        "cycle": graph([node("Add", ["x", "y"], ["z"]), node("Relu", ["z"], ["y"])], {"x": [4]}),
        "missing": graph([*chain, node("Add", ["nowhere", "t200"], ["y"])], {"t0": [4]}),
        "nested": helper.make_model(inner) if inner.ByteSize() < 1 << 26 else graph([], {}),
        "conv": graph(
            [node("Conv", ["x", "w"], ["y"], kernel_shape=[0, 0], strides=[0, 0], group=0)],
            {"x": [1, 3, 8, 8]},
            [lying("w", [4, 3, 3, 3], b"")],
        ),
        "pool": graph([node("MaxPool", ["x"], ["y"], kernel_shape=[1 << 30, 1 << 30])], {"x": [1, 3, 8, 8]}),
        "symbols": graph([node("Relu", ["x"], ["y"])], {"x": ["\x1b[2Jevil"]}),  # type: ignore[list-item]
    }
    files = {f"{name}.onnx": model.SerializeToString() for name, model in models.items()}
    function = graph([NodeProto(op_type="F", domain="d", input=["x"], output=["y"])], {"x": [4]})
    f = function.functions.add(name="F", domain="d", input=["x"], output=["y"])
    f.node.add(op_type="F", domain="d", input=["x"], output=["y"])
    f.opset_import.add(domain="d", version=1)
    function.opset_import.add(domain="d", version=1)
    return files | {
        "function.onnx": function.SerializeToString(),
        "torn.onnx": files["missing.onnx"][:700],
        "noise.onnx": bytes(range(256)) * 300,
    }


HEAD = "%%MatrixMarket matrix coordinate real general\n"
MTX = {
    "vast.mtx": HEAD + "999999999999999999 999999999999999999 999999999999999999\n1 1 1\n",
    "more.mtx": HEAD + "2 2 9\n",
    "negative.mtx": HEAD + "-2 2 1\n1 1 1\n",
    "outside.mtx": HEAD + "2 2 1\n3 1 1\n",
    "zero.mtx": HEAD + "2 2 1\n0 1 1\n",
    "words.mtx": HEAD + "2 2 1\n1 one 1\n",
    "dense.mtx": HEAD.replace("coordinate", "array"),
    "comments.mtx": HEAD + "%" * (8 << 20),
    "line.mtx": HEAD + "2 2 1\n" + "1" * (9 << 20),
    "nul.mtx": HEAD + "2 2 1\n1 1 \0\0\0\n",
}


def resealed(run: Path, change: Callable[[dict[str, object]], None]) -> None:
    """A manifest that somebody made: its seal is right."""
    value = folder.unseal(run / folder.MANIFEST, "manifest") or {}
    change(value)
    (run / folder.MANIFEST).write_bytes(folder.seal("manifest", value))


def renamed(name: object) -> Callable[[Path, Path], None]:
    def change(value: dict[str, object]) -> None:
        value["groups"][0]["name"] = name  # type: ignore[index]

    return lambda run, out: resealed(run, change)


def linked(name: str, target: str) -> Callable[[Path, Path], None]:
    def link(run: Path, out: Path) -> None:
        shutil.rmtree(run / name) if (run / name).is_dir() else (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(out / target)

    return link


def study_of(**keys: str) -> Callable[[Path, Path], None]:
    """A study that reads elsewhere; the env.json that would tell is gone."""

    def write(run: Path, out: Path) -> None:
        (run / "env.json").unlink()
        text = (run / "study.yaml").read_text()
        for key, value in keys.items():
            text = re.sub(rf"(?m)^{key}: .*$", f"{key}: {value.replace('OUT', str(out))}", text)
        (run / "study.yaml").write_text(text)

    return write


FOLDERS: dict[str, Callable[[Path, Path], object]] = {
    "group above": renamed("../../../out/secret"),
    "group with a slash": renamed("000001-0/../x"),
    "group of a number": renamed(7),
    "table above": lambda run, out: resealed(
        run, lambda m: m["groups"][0]["parts"][0].__setitem__(0, "../../out")
    ),  # type: ignore[index]
    "retired above": lambda run, out: resealed(
        run, lambda m: m.__setitem__("retired", ["../out/secret.txt"])
    ),
    "version 99": lambda run, out: resealed(run, lambda m: m.__setitem__("version", 99)),
    "linked lock": linked(".lock", "secret.txt"),
    "linked quarantine": linked("quarantine", "."),
    "linked part": linked("parts/machines", "."),
    "machine elsewhere": study_of(machine="OUT/secret.txt"),
}


def sentinels(out: Path) -> dict[str, tuple[object, ...]]:
    """All that lies there. Times of reading are set back first, so that the system writes a new one for any
    reading.
    """
    return {
        str(path): (
            path.lstat().st_mtime_ns,
            path.lstat().st_size,
            path.lstat().st_mode,
            path.is_file() and path.read_bytes(),
        )
        for path in sorted(out.rglob("*"))
    }


def judged(words: list[str]) -> str:
    """What is wrong with how a command refuses; nothing if all is right."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    before = resource.getrusage(resource.RUSAGE_SELF)
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = cli.main(words)
        except SystemExit as fault:
            code = int(fault.code or 0)
        except BaseException:
            traceback.print_exc()
            code = -1
    after = resource.getrusage(resource.RUSAGE_SELF)
    seconds, said = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, err.getvalue()
    if SECRET in out.getvalue() + said:
        return f"it says the secret: {said[:500]}"
    if code not in (1, 2) or "Traceback" in said:
        return f"code {code}: {out.getvalue()[:500]} {said[-3000:]}"
    if not said.strip() or len(said) > 9000 or re.search(r"[\x00-\x08\x0b-\x1f\x7f]", said):
        return f"no line that can be read: {said[:1000]!r}"
    return f"{seconds:.1f} s" if seconds > SECONDS else ""


def cases(top: Path, base: Path) -> dict[str, list[list[str]]]:
    """Commands by case, over files in top/in, with sentinels in top/out."""
    run, files, out = base / "run", top / "in", top / "out"
    found: dict[str, list[list[str]]] = {}
    for i, text in enumerate(SQL):
        found[f"sql {i}: {text}"] = [
            ["sql", str(run), text.replace("OUT", str(out)).replace("RUN", str(run))]
        ]
    for name, text in YAML.items():
        (files / name).write_text(text.replace("OUT", str(out)))
        found[f"yaml {name}"] = [
            ["check", str(files / name)],
            ["run", str(files / name), "--out", str(files / "new"), "--workers", "0"],
        ]
    for name, data in onnx_files(out).items():
        (files / name).write_bytes(data)
        found[f"onnx {name}"] = [["check", str(files / name)]]
    for name, text in MTX.items():
        (files / name).write_text(text)
        found[f"mtx {name}"] = [["check", str(files / name)]]
    for name, change in FOLDERS.items():
        own = files / name.replace(" ", "-")
        shutil.copytree(run, own)
        change(own, out)
        found[f"folder {name}"] = [
            ["sql", str(own), "FROM machines"],
            ["status", str(own)],
            ["show", str(own), "best"],
            ["resume", str(own), "--workers", "0"],
        ]
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument(
        "--trace", action="store_true", help="run one pass under strace: used by the proof itself"
    )
    given, _ = parser.parse_known_args()
    top = Path(tempfile.mkdtemp(prefix="dse-hostile-"))
    faults, counts = 0, dict.fromkeys(("sql", "yaml", "onnx", "mtx", "folder"), 0)
    try:
        base = top / "base"
        for path in (base, top / "in", top / "out"):
            path.mkdir()
        (base / "net.yaml").write_text(NET)
        (base / "small.yaml").write_text(STUDY)
        os.environ["DSE_CACHE"] = str(base / "cache")
        assert command("run", str(base / "small.yaml"), "--out", str(base / "run"), "--workers", "0")[0] == 0
        assert (
            command("sql", str(base / "run"), "FROM machines", "--format", "csv")[0]
            == 0
            == command("check", "light_squeezenet")[0]
        )
        for name in ("secret.txt", "secret.csv", "secret.bin", "secret.parquet"):
            (top / "out" / name).write_text(f"{SECRET}\n")
        listed = {name: words for name, words in cases(top, base).items() if given.only in name}
        before = sentinels(top / "out")
        for name, commands in listed.items():
            wrong = [
                f"{' '.join(words)[:100]}: {fault}"
                for words in commands
                if (fault := eval(forked(lambda: judged(words))))
            ]
            counts[name.split()[0]] += 1
            if (after := sentinels(top / "out")) != before:
                wrong.append(
                    "sentinels changed: "
                    f"{[path for path in {**after, **before} if after.get(path) != before.get(path)]}"
                )
                before = after
            faults += bool(wrong)
            for line in wrong:
                print(f"{name[:100]}: {line}", flush=True)
        if shutil.which("strace"):
            opened = traced(top, listed)
            faults += len(opened)
            print(
                "\n".join(opened)
                or "strace: no path below the sentinels was opened, none outside of the folders "
                f"written, by {len(listed)} cases"
            )
    finally:
        shutil.rmtree(top, ignore_errors=True)
    kinds = ", ".join(f"{kind} {n}" for kind, n in counts.items())
    print(
        f"{sum(counts.values())} hostile inputs ({kinds}): {faults} not refused as they should be", flush=True
    )
    return int(faults > 0)


TRACED = """
import json, os, sys
from tests.prove import hostile
from tests.prove.corruption import forked
for words in json.load(open(sys.argv[1])):
    forked(lambda: hostile.judged(words))
"""
# devices; DuckDB's own folder; Python looks whether it can write there
KEPT = re.compile(rf"/dev/|/proc/|{tempfile.gettempdir()}/(\.?dse-sql-|\w{{8}}$)")
OPENS = re.compile(
    r"\b(open|openat|creat|unlink|unlinkat|rename|renameat2?|mkdir|mkdirat|symlink|link|truncate)"
    r'\((?:AT_FDCWD, )?"([^"]*)"(.*)'
)


def traced(top: Path, listed: dict[str, list[list[str]]]) -> list[str]:
    """System calls of all commands that open a sentinel, or change a file outside of the folders given
    (devices, own temporary folders and the bytecode of compiled kernels aside).
    """
    (top / "words.json").write_text(json.dumps([words for commands in listed.values() for words in commands]))
    log = top / "strace.txt"
    subprocess.run(
        [
            "strace",
            "-f",
            "-qq",
            "-o",
            str(log),
            "-e",
            "trace=%file",
            sys.executable,
            "-c",
            TRACED,
            str(top / "words.json"),
        ],
        check=True,
        cwd=Path(__file__).parents[2],
        stdout=subprocess.DEVNULL,
    )
    allowed = (str(top / "in"), str(top / "base"))
    found = []
    for line in log.read_text(errors="replace").splitlines():
        if (match := OPENS.search(line)) is None or "ENOENT" in line:
            continue
        call, path, rest = match.groups()
        changes = not call.startswith("open") or re.search(r"O_WRONLY|O_RDWR|O_CREAT", rest)
        failed = "= -1" in rest
        foreign = (
            changes
            and path.startswith("/")
            and not path.startswith(allowed)
            and not KEPT.match(path)
            and "__pycache__" not in path
        )
        if not failed and (path.startswith(str(top / "out")) or foreign):
            found.append(f"strace: {line[:200]}")
    return list(dict.fromkeys(found))

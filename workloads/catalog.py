"""Workloads by name: "resnet50:batch=8", "gemm:m=64,n=32,k=48", "net.onnx:N=1", "net.yaml"."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import get_args, get_type_hints

import onnx as onnx_package

from workloads import cnn, hpc, onnx, text, training, transformer
from workloads.cnn import Cascade
from workloads.einsum import WorkloadError, squeezed
from workloads.graph import Workload, in_order

NUMBER = re.compile("-?[0-9]{1,18}")
LIGHT = Path(onnx_package.__file__).parent / "backend" / "test" / "data" / "light"
MODELS = {  # full topologies with generated weights, shipped in the onnx package
    "resnet50": "light_resnet50", "vgg19": "light_vgg19", "alexnet": "light_bvlc_alexnet", "inception_v1": "light_inception_v1",
    "inception_v2": "light_inception_v2", "squeezenet": "light_squeezenet", "densenet121": "light_densenet121", "shufflenet": "light_shufflenet",
    "zfnet512": "light_zfnet512"}


def load(source: str, bind: Mapping[str, int] | None = None, fuse_elementwise: bool = True) -> Workload:
    """A catalog name or a path (.onnx, .yaml), either with parameters after a colon.

    bind: sizes of symbols of an ONNX file, also given as parameters ("net.onnx:N=4,batch=2").
    Raises WorkloadError, one line per fault: unknown name or parameter with close matches, faults of the file.
    """
    stem, _, tail = source.partition(":")
    given = _parameters(source, tail)
    if stem in OPERATORS:
        return _operator(stem, source, given)
    model = MODELS.get(stem) or (stem if stem in MODELS.values() else None)
    suffix = Path(stem).suffix.lower()
    if model or suffix == ".onnx":
        numbers = _numbers(source, given, ["batch"] if model else None)
        sizes = {k: v for k, v in numbers.items() if k != "batch"} | dict(bind or {})
        path = LIGHT / f"{model}.onnx" if model else Path(stem)
        return onnx.load(path, sizes, numbers.get("batch"), fuse_elementwise, name=stem if model else "")
    if suffix in (".yaml", ".yml"):
        _numbers(source, given, [])
        return text.load(stem)
    near = difflib.get_close_matches(stem, [*names(), *MODELS.values()], 3)
    hint = f"do you mean {' or '.join(near)}?" if near else f"there are {', '.join(names())}"
    hint = 'quote it as a whole: ["gemm:m=64,n=32,k=48"], for a comma ends an item of a YAML list' if "=" in stem else hint
    raise WorkloadError(f'workload "{source}": no workload is named {stem}; {hint} (or give a path that ends in .onnx or .yaml)')


def names() -> list[str]:
    """Everything that `load` knows by name."""
    return [*MODELS, *OPERATORS]


def parameters(name: str) -> str:
    """Parameters of a name, as they are written after the colon."""
    if name in MODELS:
        return "batch=1"
    found = inspect.signature(OPERATORS[name][0]).parameters.values()
    return ",".join(f"{p.name}={'...' if p.default is p.empty else p.default}" for p in found)


# Operators with the tensors that are weights; those that are none are activations, caches or data.
OPERATORS: dict[str, tuple[Callable[..., Cascade], tuple[str, ...]]] = {
    "gemm": (hpc.gemm, ("B",)), "bmm": (hpc.bmm, ()), "spmm": (hpc.spmm, ()), "spmv": (hpc.spmv, ()), "inverse": (hpc.inverse, ()),
    "conv": (cnn.conv, ("W",)), "conv1d": (cnn.conv1d, ("W",)), "conv3d": (cnn.conv3d, ("W",)), "depthwise": (cnn.depthwise, ("W",)),
    "conv_transpose": (cnn.conv_transpose, ("W",)), "pool": (cnn.pool, ()), "unary": (cnn.unary, ()), "binary": (cnn.binary, ()),
    "batchnorm": (cnn.batchnorm, ("G", "B")), "softmax": (transformer.softmax, ()), "layernorm": (transformer.layernorm, ("G", "B")),
    "rmsnorm": (transformer.rmsnorm, ("G",)), "attention": (transformer.attention, ()), "embedding": (transformer.embedding, ("T",)),
    "optimizer": (training.optimizer, ("W",))}


def _operator(name: str, source: str, given: Mapping[str, str]) -> Workload:
    make, weights = OPERATORS[name]
    cascade = tuple(squeezed(e) for e in make(**_arguments(name, source, make, given)))
    read = {p.tensor: p.stored_elems() for e in cascade for p in e.inputs if p.tensor in weights}
    full = f"{name}:{','.join(f'{k}={v}' for k, v in given.items())}"
    return Workload(full, in_order(full, cascade), frozenset(read), parameters=sum(read.values()))


def _arguments(name: str, source: str, make: Callable[..., Cascade], given: Mapping[str, str]) -> dict[str, int | str]:
    """Parameters as the function's annotations type them: a number of at least 1 (0 where that is the default), or one of its words."""
    known, types = inspect.signature(make).parameters, get_type_hints(make)
    faults = _unknown(source, given, list(known))
    found: dict[str, int | str] = {}
    for p in known.values():
        words, value = get_args(types[p.name]), given.get(p.name)
        if value is None:
            faults += [f'workload "{source}": parameter {p.name} is missing; write {name}:{parameters(name)}'] if p.default is p.empty else []
        elif words:
            found[p.name] = value
            faults += [] if value in words else [f'workload "{source}": {p.name} = {value} must be {" or ".join(words)}']
        elif not NUMBER.fullmatch(value):
            faults.append(f'workload "{source}": "{p.name}={value}" is not {p.name}=number')
        else:
            least = int(p.default != 0)
            found[p.name] = int(value)
            faults += [] if int(value) >= least else [f'workload "{source}": {p.name} = {value} must be at least {least}']
    if faults:
        raise WorkloadError("\n".join(faults))
    return found


def _parameters(source: str, tail: str) -> dict[str, str]:
    found: dict[str, str] = {}
    faults = []
    for part in filter(None, tail.split(",")):
        key, equals, value = (x.strip() for x in part.partition("="))
        if not equals:
            faults.append(f'workload "{source}": "{part}" is not key=number')
        elif key in found:
            faults.append(f'workload "{source}": {key} is given twice')
        found[key] = value
    if faults:
        raise WorkloadError("\n".join(faults))
    return found


def _numbers(source: str, given: Mapping[str, str], known: list[str] | None) -> dict[str, int]:
    """known None: any name may be a symbol of the file, which checks it."""
    faults = [] if known is None else _unknown(source, given, known)
    faults += [f'workload "{source}": "{k}={v}" is not key=number' for k, v in given.items() if not NUMBER.fullmatch(v)]
    if faults:
        raise WorkloadError("\n".join(faults))
    return {k: int(v) for k, v in given.items()}


def _unknown(source: str, given: Mapping[str, str], known: list[str]) -> list[str]:
    faults = []
    for key in given:
        if key not in known:
            near = difflib.get_close_matches(key, known, 1)
            hint = f"do you mean {near[0]}?" if near else f"parameters are {', '.join(known) or 'none'}"
            faults.append(f'workload "{source}": no parameter is named {key}; {hint}')
    return faults

"""Workloads by name: "resnet50:batch=8", "gemm:m=64,n=32,k=48", "net.onnx:N=1", "net.yaml"."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import onnx as onnx_package

from workloads import onnx, text
from workloads.einsum import Einsum, WorkloadError, einsum, squeezed
from workloads.graph import Workload

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
    if stem in FUNCTIONS:
        return _call(stem, given)
    model = MODELS.get(stem) or (stem if stem in MODELS.values() else None)
    suffix = Path(stem).suffix.lower()
    if model or suffix == ".onnx":
        _known(source, given, ["batch"] if model else None)
        sizes = {k: v for k, v in given.items() if k != "batch"} | dict(bind or {})
        path = LIGHT / f"{model}.onnx" if model else Path(stem)
        return onnx.load(path, sizes, given.get("batch"), fuse_elementwise, name=stem if model else "")
    if suffix in (".yaml", ".yml"):
        _known(source, given, [])
        return text.load(stem)
    near = difflib.get_close_matches(stem, [*names(), *MODELS.values()], 3)
    hint = f"do you mean {' or '.join(near)}?" if near else f"there are {', '.join(names())}"
    raise WorkloadError(f'workload "{source}": no workload is named {stem}; {hint} (or give a path that ends in .onnx or .yaml)')


def names() -> list[str]:
    """Everything that `load` knows by name."""
    return [*MODELS, *FUNCTIONS]


def parameters(name: str) -> str:
    """Parameters of a name, as they are written after the colon."""
    if name in MODELS:
        return "batch=1"
    found = inspect.signature(FUNCTIONS[name]).parameters.values()
    return ",".join(f"{p.name}={'...' if p.default is p.empty else p.default}" for p in found)


def gemm(m: int, n: int, k: int) -> Einsum:
    return einsum("C[m,n] += A[m,k] * B[k,n]", {"m": m, "n": n, "k": k}, "gemm")


def conv(k: int, c: int, p: int, q: int, r: int, s: int, stride: int = 1, dilation: int = 1, groups: int = 1, n: int = 1, pad: int = 0) -> Einsum:
    """Convolution by its output size p x q; k and c count all groups. pad: zeros before and after, which are not stored.

    Source of the input size: (p - 1) * stride + (r - 1) * dilation + 1 - 2 * pad.
    """
    if k % groups or c % groups:
        raise WorkloadError(f"conv: groups = {groups} must divide k = {k} and c = {c}")
    image = tuple((out - 1) * stride + (kernel - 1) * dilation + 1 - 2 * pad for out, kernel in ((p, r), (q, s)))
    if min(image) < 1:
        raise WorkloadError(f"conv: pad = {pad} leaves an input of {image[0]} x {image[1]}; it must be at least 1 x 1")
    text = f"O[n,g,k,p,q] += I[n,g,c,{stride}*p+{dilation}*r-{pad},{stride}*q+{dilation}*s-{pad}] * W[g,k,c,r,s]"
    extents = {"n": n, "g": groups, "k": k // groups, "c": c // groups, "p": p, "q": q, "r": r, "s": s}
    return einsum(text, extents, "conv", sizes={"I": (n, groups, c // groups, *image)})


FUNCTIONS: dict[str, Callable[..., Einsum]] = {"gemm": gemm, "conv": conv}
WEIGHTS = {"gemm": "B", "conv": "W"}


def _call(name: str, given: Mapping[str, int]) -> Workload:
    function = inspect.signature(FUNCTIONS[name]).parameters
    _known(name, given, list(function))
    missing = [p.name for p in function.values() if p.default is p.empty and p.name not in given]
    faults = [f'workload "{name}": parameter {p} is missing; write {name}:{parameters(name)}' for p in missing]
    faults += [f'workload "{name}": {k} = {v} must be at least {int(k != "pad")}' for k, v in given.items() if v < int(k != "pad")]
    if faults:
        raise WorkloadError("\n".join(faults))
    e = squeezed(FUNCTIONS[name](**given))
    weight = next(p for p in e.inputs if p.tensor == WEIGHTS[name])
    full = f"{name}:{','.join(f'{k}={v}' for k, v in given.items())}"
    return replace(Workload(full, (e,)), weights=frozenset({weight.tensor}), parameters=weight.stored_elems())


def _parameters(source: str, tail: str) -> dict[str, int]:
    found: dict[str, int] = {}
    faults = []
    for part in filter(None, tail.split(",")):
        key, _, value = (x.strip() for x in part.partition("="))
        if not value.lstrip("-").isdigit():
            faults.append(f'workload "{source}": "{part}" is not key=number')
        elif key in found:
            faults.append(f'workload "{source}": {key} is given twice')
        else:
            found[key] = int(value)
    if faults:
        raise WorkloadError("\n".join(faults))
    return found


def _known(source: str, given: Mapping[str, int], known: list[str] | None) -> None:
    """known None: any name may be a symbol of the file, which checks it."""
    faults = []
    for key in given if known is not None else ():
        if key not in (known or ()):
            near = difflib.get_close_matches(key, known or (), 1)
            hint = f"do you mean {near[0]}?" if near else f"parameters are {', '.join(known or ()) or 'none'}"
            faults.append(f'workload "{source}": no parameter is named {key}; {hint}')
    if faults:
        raise WorkloadError("\n".join(faults))

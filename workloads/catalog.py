"""Workloads by name: "resnet50:batch=8", "llama7b:phase=decode", "gemm:m=64,n=32,k=48", "net.onnx:N=1",
"net.yaml".

A plain name is the function of that network, with its parameters. A name that starts with light_ is one of
the nine ONNX files in the onnx package; the plain name loads the file where no function has that name.
train:net=NAME,... is a training step of any workload, with the network's own parameters:
"train:net=resnet50,batch=8,optimizer=adam". A file of a matrix takes a solver: "a.mtx:solver=cg,n=8". A
Hugging Face configuration is a model without weights: "hf:config.json:phase=decode", with or without "hf:".
A function of the user is FILE.py:NAME or PACKAGE.MODULE:NAME: "nets.py:tiny:batch=4" (workloads/plugin.py).
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple, get_args, get_type_hints

from workloads import cnn, diffusion, gnn, hpc, matrix, mlp, plugin, recurrent, text, training, transformer
from workloads.einsum import WorkloadError, closest, refuse, squeezed
from workloads.graph import Workload, fuse_into_producers, in_order, written_elems
from workloads.huggingface import huggingface
from workloads.layers import Cascade
from workloads.loops import LoopForm, in_form
from workloads.meant import meant
from workloads.solvers import SOLVERS

NUMBER = re.compile("-?[0-9]{1,18}")
SUFFIXES = (".onnx", ".pt2", ".yaml", ".yml", *matrix.SUFFIXES, ".json")
HF = "hf:"  # may stand before the path of a Hugging Face configuration
# a file as the value of a parameter
FILE = re.compile(rf"=\s*([^:,=]*\w(?:{'|'.join(map(re.escape, SUFFIXES))}))\s*(?=[:,]|$)", re.IGNORECASE)
# folder of the ONNX files that come with the onnx package
LIGHT = Path(find_spec("onnx").origin or "").parent / "backend" / "test" / "data" / "light"  # type: ignore[union-attr]
MODELS = {  # full topologies with generated weights, shipped in the onnx package
    "resnet50": "light_resnet50",
    "vgg19": "light_vgg19",
    "alexnet": "light_bvlc_alexnet",
    "inception_v1": "light_inception_v1",
    "inception_v2": "light_inception_v2",
    "squeezenet": "light_squeezenet",
    "densenet121": "light_densenet121",
    "shufflenet": "light_shufflenet",
    "zfnet512": "light_zfnet512",
}
# Functions that return a Workload; their annotations are the types of the parameters
NETWORKS: dict[str, Callable[..., Workload]] = {
    f.__name__: f
    for f in (
        cnn.alexnet,
        cnn.vgg16,
        cnn.vgg19,
        cnn.googlenet,
        cnn.resnet18,
        cnn.resnet50,
        cnn.resnet152,
        cnn.squeezenet,
        cnn.mobilenet_v1,
        cnn.mobilenet_v2,
        cnn.resnet3d18,
        cnn.unet,
        diffusion.diffusion_block,
        mlp.mlp_s,
        mlp.mlp_m,
        mlp.mlp_l,
        recurrent.lstm,
        recurrent.lstm_phoneme,
        recurrent.lstm_gnmt,
        recurrent.lstm_showtell,
        recurrent.mamba_block,
        transformer.bert_base,
        transformer.bert_tiny,
        transformer.tinybert,
        transformer.gpt2,
        transformer.llama7b,
        transformer.llama70b,
        transformer.moe_block,
        transformer.vit_b,
        gnn.gcn,
        gnn.graphsage,
        gnn.gat,
    )
} | SOLVERS
FILES = {  # names of ONNX files -> the file's name without .onnx
    **{plain: light for plain, light in MODELS.items() if plain not in NETWORKS},
    **{light: light for light in MODELS.values()},
}


def load(source: str, bind: Mapping[str, int] | None = None, fuse_elementwise: bool = True) -> Workload:
    """Returns the workload of a catalog name or a path (.onnx, .pt2, .yaml, .mtx, .npz, .json), with
    parameters after a colon.

    bind: sizes of symbols, and values of inputs, of an ONNX file; they may also be parameters
        ("net.onnx:N=4,batch=2")
    fuse_elementwise: as in `graph.fuse_into_producers`

    Raises WorkloadError, one line per fault: unknown name or parameter with close matches, faults of the
    file, a file without einsums.
    """
    found = _loaded(source, bind, fuse_elementwise)
    if not found.einsums:
        raise WorkloadError(f'workload "{source}": has no einsum: nothing in it computes or moves data')
    return found


def _loaded(source: str, bind: Mapping[str, int] | None, fuse_elementwise: bool) -> Workload:
    if match := plugin.SPEC.match(source):
        return fuse_into_producers(_of_plugin(match[0], source), fuse_elementwise)
    source = source.removeprefix(HF)
    stem, _, tail = source.partition(":")
    given = _parameters(source, tail)
    if stem == "train":
        return _training_step(source, given, bind, fuse_elementwise)
    model, suffix = FILES.get(stem), Path(stem).suffix.lower()
    if model or suffix == ".onnx":
        from workloads import onnx  # imported here: that is slow, and only files need it

        numbers = _numbers(source, given, ["batch"] if model else None)
        sizes = {k: v for k, v in numbers.items() if k != "batch"} | dict(bind or {})
        path = LIGHT / f"{model}.onnx" if model else Path(stem)
        return onnx.load(path, sizes, numbers.get("batch"), fuse_elementwise, name=stem if model else "")
    if suffix == ".pt2":
        from workloads import torch

        numbers = _numbers(source, {**given, **{k: str(v) for k, v in (bind or {}).items()}}, ["batch"])
        if numbers.get("batch", 1) < 1:
            raise WorkloadError(f'workload "{source}": batch = {numbers["batch"]} must be at least 1')
        return torch.load(stem, fuse_elementwise=fuse_elementwise, batch=numbers.get("batch"))
    return fuse_into_producers(_unfused(source), fuse_elementwise)


def _of_plugin(spec: str, source: str) -> Workload:
    """Returns the workload of a function that the user brings."""
    try:
        make = plugin.function(plugin.find(spec).key)
    except plugin.PluginError as fault:
        raise WorkloadError(str(fault)) from None
    name, given = spec.rpartition(":")[2], _parameters(source, source[len(spec) :].removeprefix(":"))
    arguments = _arguments(spec, source, make, given)
    try:
        found = make(**arguments)
    except WorkloadError:
        raise
    except Exception as fault:  # whatever the user's function raises
        raise WorkloadError(f'workload "{source}": {plugin.one_line(fault)}') from None
    if not isinstance(found, Workload):
        raise WorkloadError(f'workload "{source}": {name} returned {type(found).__name__}; return a Workload')
    return replace(found, name=_label(name, given))


def _unfused(source: str) -> Workload:
    """Returns the workload of a name, or of a file in which each operator is an einsum (.yaml) or a solver
    on a matrix (.mtx, .mtx.gz, .npz), with nothing fused.
    """
    stem, _, tail = source.partition(":")
    given, suffix = _parameters(source, tail), Path(stem).suffix.lower()
    if stem in OPERATORS:
        return _operator(stem, source, given)
    if stem in NETWORKS:
        return replace(_network(stem, source, given), name=_label(stem, given))
    if matrix.is_matrix_file(stem):
        return _solver_on_file(stem, source, given)
    if suffix == ".json":
        arguments = _arguments("hf", source, huggingface, {"config": stem, **given})
        return replace(huggingface(**arguments), name=_label(Path(stem).stem, given))  # type: ignore[arg-type]
    if suffix in (".yaml", ".yml"):
        of_loop = [one.name for one in fields(LoopForm)]
        form = {key: value for key, value in given.items() if key in of_loop}
        sizes = _numbers(source, {key: value for key, value in given.items() if key not in form}, None)
        wanted = LoopForm(**_arguments(stem, source, LoopForm, form))  # type: ignore[arg-type]
        found = text.load(stem, sizes, of_loop)
        return replace(in_form(found, wanted) if form else found, name=_label(found.name, given))
    near = meant(stem, [*NETWORKS, *FILES, *OPERATORS, "train"], 3)
    nearest = ", ".join(difflib.get_close_matches(stem, names(), 5, cutoff=0))
    of_all = f"the nearest of {len(names())} are {nearest} (all: dse list workloads)"
    hint = f"do you mean {' or '.join(near)}?" if near else of_all
    if "=" in stem:
        hint = 'quote it as a whole: ["gemm:m=64,n=32,k=48"], for a comma ends an item of a YAML list'
    raise WorkloadError(
        f'workload "{source}": no workload is named {stem}; {hint} (or give a path that ends in '
        ".onnx, .pt2, .yaml, .mtx, .npz or .json)"
    )


def file_in(source: str) -> tuple[str, str, str]:
    """Returns (text before a file's path, the path, text after it), such as ("train:net=", "nets/a.onnx",
    ",batch=8"). The path is "" where a source names no file.
    """
    if (match := plugin.SPEC.match(source)) and match["source"].endswith(".py"):
        return "", match["source"], source[len(match["source"]) :]
    prefix = HF if source.startswith(HF) else ""
    stem = source.removeprefix(HF).partition(":")[0]
    if stem.lower().endswith(SUFFIXES):
        return prefix, stem, source[len(prefix + stem) :]
    found = FILE.search(source)
    return (source[: found.start(1)], found[1], source[found.end(1) :]) if found else (source, "", "")


def names() -> list[str]:
    """Returns the names that `load` knows, each workload once."""
    return [
        *NETWORKS,
        *(plain if plain in FILES else light for plain, light in MODELS.items()),
        *OPERATORS,
        "train",
    ]


def parameters(name: str) -> str:
    """Returns the parameters of a name, as they are written after the colon."""
    if name in FILES:
        return "batch=1"
    return _parameters_of(_maker(name))


def given_in(source: str) -> dict[str, str]:
    """Returns the parameters that a workload's text gives, such as {"batch": "8"}; {} where it is none."""
    prefix, path, after = file_in(source)
    try:
        return _parameters(source, (after if path else prefix.partition(":")[2]).lstrip(":,"))
    except WorkloadError:
        return {}


def with_parameters(source: str, given: Mapping[str, object]) -> str:
    """Returns a workload's text with more parameters.

    >>> with_parameters("gpt2:phase=decode", {"batch": 4}), with_parameters("net.onnx", {"N": 2})
    ('gpt2:phase=decode,batch=4', 'net.onnx:N=2')
    """
    mark = "," if given_in(source) else ":"
    return source + mark + ",".join(f"{key}={value}" for key, value in given.items())


def run_sizes(source: str) -> tuple[int | None, int | None]:
    """Returns the samples and the tokens of one run: its batch, and the new positions of all of them; None
    where the workload has no such parameter.

    >>> run_sizes("gpt2:phase=decode,batch=4"), run_sizes("resnet50:batch=2"), run_sizes("gemm:m=2,n=2,k=2")
    ((4, 4), (2, None), (None, None))
    """
    name, own = source.removeprefix(HF).partition(":")[0], given_in(source)
    if name == "train":
        net = own.pop("net", "")
        name, own = net.partition(":")[0], given_in(net) | own
    make = NETWORKS.get(name) or (huggingface if name.lower().endswith(".json") else None)
    signature = inspect.signature(make).parameters.values() if make else ()
    known = {p.name: str(p.default) for p in signature} | ({"batch": "1"} if name in FILES else {}) | own
    batch = known.get("batch", "")
    if not NUMBER.fullmatch(batch):
        return None, None
    is_decode = known.get("phase") == "decode"
    positions = known.get(
        "sequence", "1" if is_decode else known.get("context", "") if "phase" in known else ""
    )
    tokens = int(batch) * int(positions) if NUMBER.fullmatch(positions) else 0
    return int(batch), tokens or None


def _parameters_of(make: Callable[..., object]) -> str:
    found = [p for p in inspect.signature(make).parameters.values() if p.kind is not p.KEYWORD_ONLY]
    return ",".join(f"{p.name}={'...' if p.default is p.empty else p.default}" for p in found)


class Entry(NamedTuple):
    """One row of `dse list workloads`. Numbers are those with default parameters; None where a parameter has
    no default.
    """

    workload: str  # name
    macs: int | None
    parameters: int | None
    activations: int | None  # elements that its einsums write
    given: str  # parameters with their defaults
    what: str  # one sentence


@cache
def entries() -> tuple[Entry, ...]:
    """Returns a row for every name that `load` knows; building every network once takes 2 s."""
    return tuple(map(_entry, names()))


def first_paragraph(of: object) -> str:
    """Returns the first paragraph of a function's or class's docstring, in one line."""
    return " ".join((of.__doc__ or "").split("\n\n")[0].split())


def _entry(name: str) -> Entry:
    given = parameters(name)
    what = f"ONNX file {FILES[name]}" if name in FILES else first_paragraph(_maker(name))
    if "..." in given:
        return Entry(name, None, None, None, given, what)
    w = load(name)
    return Entry(name, w.macs(), w.parameters, written_elems(w), given, what)


def _maker(name: str) -> Callable[..., Workload] | Callable[..., Cascade]:
    return train if name == "train" else NETWORKS[name] if name in NETWORKS else OPERATORS[name][0]


def train(
    net: str,
    optimizer: training.Method = "sgd",
    inputs: Literal["no", "yes"] = "no",
    *,
    bind: Mapping[str, int] | None = None,
    fuse_elementwise: bool = True,
) -> Workload:
    """One training step of another workload: forward, gradients of all its operators, updates of its weights.

    net: as in `load`, with its own parameters (`resnet50:batch=8`)
    inputs: gradients of the data too

    The network is differentiated before anything is fused, so that tensors that the backward pass reads are
    stored. What an ONNX import folds (constant biases, normalisations) is not trained.
    """
    stem = net.partition(":")[0]
    if plugin.SPEC.match(net):
        raise WorkloadError(f"{net}: a training step of a plug-in is not made; call workloads.training there")
    from_einsums = (
        stem in NETWORKS
        or stem in OPERATORS
        or stem.lower().endswith((".yaml", ".yml", *matrix.SUFFIXES, ".json"))
    )
    forward = _unfused(net) if from_einsums else load(net, bind, False)
    try:
        step = training.training(forward, optimizer, inputs == "yes")
    except WorkloadError as fault:  # raised for an operator: add the network's name
        raise WorkloadError(f"{net}: {str(fault).removeprefix(f'{forward.name}: ')}") from None
    return fuse_into_producers(step, fuse_elementwise)


def _training_step(
    source: str, given: Mapping[str, str], bind: Mapping[str, int] | None, fuse_elementwise: bool
) -> Workload:
    """Returns a training step. Parameters that `train` does not have belong to the network."""
    train_parameters = {k: v for k, v in given.items() if k in ("optimizer", "inputs")}
    net_parameters = {k: v for k, v in given.items() if k not in (*train_parameters, "net")}
    if "net" in given:
        train_parameters["net"] = _label(given["net"], net_parameters)
    found = _arguments("train", source, train, train_parameters)
    return replace(train(**found, bind=bind, fuse_elementwise=fuse_elementwise), name=source)  # type: ignore[arg-type]


def _solver_on_file(path: str, source: str, given: Mapping[str, str]) -> Workload:
    """Returns a solver on the matrix of a file."""
    solver = given.get("solver", "cg")
    if solver not in SOLVERS:
        raise WorkloadError(f'workload "{source}": solver = {solver} must be {" or ".join(SOLVERS)}')
    make, rest = SOLVERS[solver], {"matrix": path, **{k: v for k, v in given.items() if k != "solver"}}
    return replace(make(**_arguments(solver, source, make, rest)), name=source)


# Operators, each with the names of its weights; all other inputs are activations, caches or data.
OPERATORS: dict[str, tuple[Callable[..., Cascade], tuple[str, ...]]] = {
    "gemm": (hpc.gemm, ("B",)),
    "bmm": (hpc.bmm, ()),
    "spmm": (hpc.spmm, ()),
    "spmv": (hpc.spmv, ()),
    "inverse": (hpc.inverse, ()),
    "conv": (cnn.conv, ("W",)),
    "conv1d": (cnn.conv1d, ("W",)),
    "conv3d": (cnn.conv3d, ("W",)),
    "depthwise": (cnn.depthwise, ("W",)),
    "conv_transpose": (cnn.conv_transpose, ("W",)),
    "conv_transpose3d": (cnn.conv_transpose3d, ("W",)),
    "pool": (cnn.pool, ()),
    "unary": (cnn.unary, ()),
    "binary": (cnn.binary, ()),
    "batchnorm": (cnn.batchnorm, ("G", "B")),
    "softmax": (transformer.softmax, ()),
    "layernorm": (transformer.layernorm, ("G", "B")),
    "rmsnorm": (transformer.rmsnorm, ("G",)),
    "attention": (transformer.attention, ()),
    "embedding": (transformer.embedding, ("T",)),
    "optimizer": (training.optimizer, ("W",)),
}


def _network(name: str, source: str, given: Mapping[str, str]) -> Workload:
    arguments = _arguments(name, source, NETWORKS[name], given)
    try:
        return NETWORKS[name](**arguments)
    except WorkloadError as fault:  # raised for a layer: add the network's name
        lines = (line.removeprefix(f"{name}: ") for line in str(fault).split("\n"))
        raise WorkloadError("\n".join(f"{name}: {line}" for line in lines)) from None


def _operator(name: str, source: str, given: Mapping[str, str]) -> Workload:
    make, weights = OPERATORS[name]
    cascade = tuple(squeezed(e) for e in make(**_arguments(name, source, make, given)))
    weight_words = {p.tensor: p.stored_words() for e in cascade for p in e.inputs if p.tensor in weights}
    label = _label(name, given)
    return Workload(
        label, in_order(label, cascade), frozenset(weight_words), parameters=sum(weight_words.values())
    )


def _label(name: str, given: Mapping[str, str]) -> str:
    return f"{name}:{','.join(f'{k}={v}' for k, v in given.items())}" if given else name


def _arguments(
    name: str, source: str, make: Callable[..., object], given: Mapping[str, str]
) -> dict[str, int | str]:
    """Returns parameters in the types of the function's annotations: a text, an integer of at least 1 (of at
    least 0 if the default is 0), or one of the words of a Literal.
    """
    accepted = {k: p for k, p in inspect.signature(make).parameters.items() if p.kind is not p.KEYWORD_ONLY}
    types, prefix = get_type_hints(make), f'workload "{source}": '
    faults = _unknown_faults(source, given, list(accepted))
    all_known = not faults
    found: dict[str, int | str] = {}
    for p in accepted.values():
        words, value = get_args(types.get(p.name)), given.get(p.name)
        if value is None:
            if p.default is p.empty and all_known:
                faults.append(f"{prefix}parameter {p.name} is missing; write {name}:{_parameters_of(make)}")
        elif types.get(p.name) is str or words:
            found[p.name] = value
            if words and value not in words:
                faults.append(f"{prefix}{p.name} = {value} must be {' or '.join(words)}")
        elif not NUMBER.fullmatch(value):
            faults.append(f'{prefix}"{p.name}={value}" is not {p.name}=number')
        else:
            found[p.name], minimum = int(value), int(p.default != 0)
            if int(value) < minimum:
                faults.append(f"{prefix}{p.name} = {value} must be at least {minimum}")
    refuse(faults)
    return found


def _parameters(source: str, tail: str) -> dict[str, str]:
    found: dict[str, str] = {}
    faults = []
    for part in filter(None, tail.split(",")):
        key, equals, value = (x.strip() for x in part.partition("="))
        if not equals:
            faults.append(f'workload "{source}": "{part}" is not key=number, as in gemm:m=64,n=32,k=48')
        elif key in found:
            faults.append(f'workload "{source}": {key} is given twice')
        found[key] = value
    refuse(faults)
    return found


def _numbers(source: str, given: Mapping[str, str], allowed: list[str] | None) -> dict[str, int]:
    """Returns the parameters as numbers. allowed: allowed names; None: all, as they may be symbols of the
    file, which checks them.
    """
    faults = [] if allowed is None else _unknown_faults(source, given, allowed)
    faults += [
        f'workload "{source}": "{k}={v}" is not key=number'
        for k, v in given.items()
        if not NUMBER.fullmatch(v)
    ]
    refuse(faults)
    return {k: int(v) for k, v in given.items()}


def _unknown_faults(source: str, given: Mapping[str, str], allowed: list[str]) -> list[str]:
    hint = f"parameters are {', '.join(allowed) or 'none'}"
    return [
        f'workload "{source}": no parameter is named {key}; {closest(key, allowed, hint)}'
        for key in given
        if key not in allowed
    ]

"""Workloads by name, their parameters and their faults."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.amount import amount
from tests.onnx_graphs import Build
from workloads import catalog
from workloads.einsum import WorkloadError, canonical_key, compulsory_elems, show

# name -> parameters, MACs, parameters of the network, einsums (the square root of a norm is fused into the
# mean before it)
SAMPLES = {
    "gemm": ("m=2,n=3,k=5", 30, 15, 1),
    "bmm": ("b=2,m=2,n=3,k=5", 60, 0, 1),
    "spmm": ("m=4,k=5,n=3,nnz=7", 21, 0, 1),
    "spmv": ("m=4,k=5,nnz=7", 7, 0, 1),
    "inverse": ("n=4,b=3", 0, 0, 1),
    "conv": ("k=4,c=2,p=3,q=3,r=3,s=3,pad=1", 648, 72, 1),
    "conv1d": ("k=4,c=2,p=8,r=3,dilation=2", 192, 24, 1),
    "conv3d": ("k=4,c=2,p=2,q=2,o=2,r=3,s=3,t=3", 1728, 216, 1),
    "depthwise": ("c=4,p=3,q=3,r=3,s=3,stride=2", 324, 36, 1),
    "conv_transpose": ("k=4,c=2,p=3,q=3,r=3,s=3,stride=2,pad=1,output_pad=1", 648, 72, 1),
    "conv_transpose3d": ("k=4,c=2,p=2,q=2,o=2,r=3,s=3,t=2,stride=2,pad=1", 1152, 144, 1),
    "pool": ("c=4,p=2,q=2,r=2,s=2,kind=average,stride=2", 0, 0, 1),
    "unary": ("n=9,function=gelu", 0, 0, 1),
    "binary": ("n=9,rows=2,function=mul", 0, 0, 1),
    "batchnorm": ("c=4,p=3,q=3,phase=training", 0, 8, 4),
    "softmax": ("b=4,n=8", 0, 0, 4),
    "layernorm": ("b=4,n=8", 0, 16, 4),
    "rmsnorm": ("b=4,n=8", 0, 8, 2),
    "attention": ("heads=4,kv=2,q=1,context=8,d=4", 256, 0, 8),
    "embedding": ("t=3,v=9,d=4", 0, 36, 1),
    "optimizer": ("n=9,method=adam", 0, 9, 3),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_operators_by_name(name: str) -> None:
    given_, macs, parameters, einsums = SAMPLES[name]
    w = catalog.load(f"{name}:{given_}")
    assert (w.name, w.macs(), w.parameters, len(w.einsums)) == (f"{name}:{given_}", macs, parameters, einsums)
    made = {e.output.tensor for e in w.einsums}
    assert all(
        p.tensor not in made or p.tensor in {e.output.tensor for e in w.einsums[:i]}
        for i, e in enumerate(w.einsums)
        for p in e.inputs
    )


def test_gemm() -> None:
    w = catalog.load("gemm:m=64,n=32,k=48")
    assert show(w.einsums[0]) == "C[m,n] += A[m,k] * B[k,n]"
    assert w.macs() == 64 * 32 * 48
    assert w.weights == {"B"}
    assert w.parameters == 48 * 32


def test_conv_is_the_first_layer_of_resnet50() -> None:
    w, first = (
        catalog.load("conv:k=64,c=3,p=112,q=112,r=7,s=7,stride=2,pad=3").einsums[0],
        catalog.load("resnet50").einsums[0],
    )
    assert w.macs() == first.macs()
    # an input of 223 rows suffices: the last window ends one before the border of 224
    assert [compulsory_elems(p, w.sizes()) for p in w.inputs[1:]] == [
        compulsory_elems(p, first.sizes()) for p in first.inputs[1:]
    ]
    assert compulsory_elems(w.inputs[0], w.sizes()) == 3 * 223 * 223


@settings(max_examples=amount(100))
@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 9),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 2),
    st.integers(1, 2),
)
def test_conv_counts(n: int, groups: int, k: int, p: int, r: int, stride: int, dilation: int, c: int) -> None:
    sizes = f"k={k * groups},c={c * groups},p={p},q=2,r={r},s=1,n={n}"
    w = catalog.load(f"conv:{sizes},stride={stride},dilation={dilation},groups={groups}")
    (e,) = w.einsums
    assert w.macs() == n * groups * k * c * p * 2 * r
    assert w.parameters == groups * k * c * r
    assert (
        e.inputs[0].stored_elems()
        == compulsory_elems(e.inputs[0], e.sizes())
        == n * c * groups * ((p - 1) * stride + (r - 1) * dilation + 1) * (stride + 1)
    )


@pytest.mark.parametrize(
    ("source", "path"),
    [
        ("resnet50:batch=1", ""),
        ("cg:matrix=ecology1,n=8", ""),
        ("nets/a,b.onnx:N=2", "nets/a,b.onnx"),
        ("a.mtx:solver=cg,n=8", "a.mtx"),
        ("cg:matrix= nets/a.MTX ,n=8", "nets/a.MTX"),
        ("train:net=../a.onnx,batch=2", "../a.onnx"),
        ("train:net=a.onnx:N=2,optimizer=adam", "a.onnx"),
        ("train:net=cg,matrix=a.mtx,inputs=yes", "a.mtx"),
        ("train:net=.mtx", ""),
    ],
)
def test_the_file_in_a_name(source: str, path: str) -> None:
    parts = catalog.file_in(source)
    assert parts[1] == path
    assert "".join(parts) == source


def test_every_name_loads_and_says_its_parameters() -> None:
    assert set(catalog.OPERATORS) <= set(SAMPLES)
    assert len(catalog.MODELS) == 9
    assert len(set(catalog.names())) == len(catalog.names())
    assert {catalog.MODELS.get(n, n) for n in catalog.names()} >= set(catalog.MODELS.values())
    assert catalog.parameters("gemm") == "m=...,n=...,k=..."
    assert catalog.parameters("light_vgg19") == "batch=1"
    assert catalog.parameters("conv").endswith("stride=1,dilation=1,groups=1,n=1,pad=0")
    assert catalog.load("light_zfnet512").einsums == catalog.load("zfnet512:batch=1").einsums


def test_paths(tmp_path: Path) -> None:
    onnx_file = tmp_path / "net.onnx"
    onnx_file.write_bytes((catalog.LIGHT / "light_squeezenet.onnx").read_bytes())
    assert catalog.load(f"{onnx_file}:batch=2").macs() == 2 * catalog.load("squeezenet").macs()
    assert len(catalog.load(str(onnx_file), fuse_elementwise=False).einsums) > len(
        catalog.load(str(onnx_file)).einsums
    )
    text = tmp_path / "net.yaml"
    text.write_text("extents: {m: 4}\neinsums: ['B[m] = f(A[m])']")
    assert catalog.load(str(text)).name == "net"


FFN = """extents: {{m: 8, d: 6, f: 10}}
einsums: ["H[m,f] += X[m,d] * W1[d,f]", "A[m,f] = {kind}(H[m,f])", "Y[m,d] += A[m,f] * W2[f,d]"]
weights: [W1, W2]
"""


@pytest.mark.parametrize("op", ["Gelu", "Relu", "Sigmoid", "Exp", "Erf", "Softplus", "HardSwish", "Softmax"])
@pytest.mark.parametrize("fuse", [True, False])
def test_one_rule_of_fusion_for_all_formats(tmp_path: Path, op: str, fuse: bool) -> None:
    """The same network as text and as ONNX is the same list of einsums, fused or not; softmax, which is no
    one-to-one function, stays.
    """
    (tmp_path / "net.yaml").write_text(FFN.format(kind=op.lower()))
    build = Build(20)
    y = build.add("MatMul", build.add(op, build.add("MatMul", "x", build.const(6, 10))), build.const(10, 6))
    (tmp_path / "net.onnx").write_bytes(build.model({"x": (8, 6)}, [y]).SerializeToString())
    ours, file = (
        catalog.load(str(tmp_path / f"net.{suffix}"), fuse_elementwise=fuse) for suffix in ("yaml", "onnx")
    )
    assert [canonical_key(e) for e in ours.einsums] == [canonical_key(e) for e in file.einsums]
    assert len(ours.einsums) == (2 if fuse and op != "Softmax" else 3)
    assert len(ours.fused) == len(file.fused)


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ("resnet5", 'workload "resnet5": no workload is named resnet5; do you mean resnet50'),
        ("qqq", "no workload is named qqq; the nearest of "),
        ("resnet50:bath=8", "no parameter is named bath; do you mean batch?"),
        ("resnet50:batch=0", "batch = 0 must be"),
        ("resnet50:batch", '"batch" is not key=number'),
        ("resnet50:batch=1,batch=2", "batch is given twice"),
        ("gemm:m=4,n=2", "parameter k is missing; write gemm:m=...,n=...,k=..."),
        ("gemm:m=4,n=2,k=0", "k = 0 must be at least 1"),
        ("gemm:m=4,n=2,k=1,j=2", "no parameter is named j; parameters are m, n, k"),
        ("gemm:m=4,n=2,k=x", '"k=x" is not k=number'),
        ("gemm:m=4,n=2,k=--3", '"k=--3" is not k=number'),
        ("resnet50:batch=\u00b2", '"batch=\u00b2" is not batch=number'),
        ("light_resnet50:batch=x", '"batch=x" is not key=number'),
        ("conv:k=1,c=1,p=2,q=2,r=2,s=2,pad=-1", "pad = -1 must be at least 0"),
        (
            "conv3d:k=1,c=1,p=1,q=1,o=1,r=1,s=1,t=1,pad=1",
            "pad = 1 leaves an input of -1 x -1 x -1; it must be at least 1 x 1 x 1",
        ),
        ("conv_transpose:k=1,c=1,p=1,q=1,r=1,s=1,pad=1", "pad = 1 leaves an output of -1 x -1"),
        (
            "conv_transpose:k=1,c=1,p=2,q=2,r=2,s=2,output_pad=1",
            "output_pad = 1 must be below stride = 1 or dilation = 1",
        ),
        ("pool:c=1,p=1,q=1,r=2,s=2,pad=1", "pad = 1 leaves an input of 0 x 0"),
        ("pool:c=1,p=1,q=1,r=1,s=1,kind=mean", "kind = mean must be max or average"),
        ("optimizer:n=4,method=adm", "method = adm must be sgd or momentum or adam"),
        ("attention:heads=6,kv=4,q=1,context=2,d=1", "kv = 4 must divide heads = 6"),
        ("attention:heads=4,q=3,context=2,d=1", "q = 3 must not be above context = 2"),
        ("spmm:m=2,k=2,n=1,nnz=5", "nnz = 5 must not be above m * k = 4"),
        ("spmv:m=2,k=2,nnz=0", "nnz = 0 must be at least 1"),
        ("conv:k=3,c=2,p=1,q=1,r=1,s=1,groups=2", "groups = 2 must divide k = 3 and c = 2"),
        ("conv:k=3,c=2,p=1,q=1,r=1,s=1,pad=1", "pad = 1 leaves an input of -1 x -1"),
        ("absent.onnx", "absent.onnx: cannot be read"),
        ("absent.yaml", "absent.yaml: cannot be read"),
    ],
)
def test_faults_are_one_line(source: str, fault: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        catalog.load(source)
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


def test_all_faults_at_once() -> None:
    with pytest.raises(WorkloadError) as caught:
        catalog.load("pool:c=0,p=1,q=1,r=2,kind=men,strid=2")
    assert [line.partition('strid=2": ')[2].partition("; ")[0] for line in str(caught.value).split("\n")] == [
        "no parameter is named strid",
        "c = 0 must be at least 1",
        "kind = men must be max or average",
    ]


def test_loading_is_lean() -> None:
    # VGG-19 has 548 MiB of weights: they are never filled in
    assert peak_kib("catalog.load('light_vgg19')") < 400 * 1024


def peak_kib(statement: str) -> int:
    """Peak memory of a fresh process (VmHWM: ru_maxrss would carry over the peak of the parent)."""
    code = (
        f"from workloads import catalog; {statement}; print(next(line.split()[1] for line in "
        "open('/proc/self/status') if line.startswith('VmHWM')))"
    )
    return int(
        subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            check=True,
            cwd=Path(__file__).parents[1],
        ).stdout
    )

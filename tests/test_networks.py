"""Networks: published sizes, equality with the ONNX files, edges, repeated layers, values in NumPy, what
rides.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping

import numpy as np
import pytest
from numpy.typing import NDArray

from tests import numeric
from tests.test_catalog import peak_kib
from workloads import catalog, cnn, recurrent, transformer
from workloads.einsum import WorkloadError, canonical_key, einsum, show
from workloads.graph import Workload, counts, fuse_into_producers, layer_table, unique, written_elems
from workloads.layers import cascade, network
from workloads.transformer import Run, Sizes, Vocabulary

# name with parameters: (MACs, allowed difference, parameters, allowed difference, source, and why it
# differs). [pub] published in the paper or project named; [mem] recalled, not looked up again; [sum] worked
# out from the shapes in the source.
PUBLISHED: dict[str, tuple[float, float, float, float, str]] = {
    "alexnet:image=227": (
        724e6,
        0.005,
        60_965_224,
        0,
        "[mem] 724 M in surveys of Caffe's model; Caffe rounds every pooling up",
    ),
    "vgg16": (15.47e9, 0.001, 138_357_544, 0, "[mem] torchvision VGG16_Weights"),
    "vgg19": (19.63e9, 0.001, 143_667_240, 0, "[mem] torchvision VGG19_Weights"),
    "googlenet": (
        1.5e9,
        0.05,
        6_998_552,
        0,
        "[mem] Szegedy et al. 2015: about 1.5e9, with maps of 56 where these have 55; parameters of "
        "Caffe's model",
    ),
    "resnet18": (1.814e9, 0.001, 11_689_512, 0, "[mem] torchvision ResNet18_Weights"),
    "resnet50": (4.089e9, 0.001, 25_557_032, 0, "[mem] torchvision ResNet50_Weights"),
    "resnet152": (11.514e9, 0.001, 60_192_808, 0, "[mem] torchvision ResNet152_Weights"),
    "squeezenet": (0.349e9, 0.005, 1_235_496, 0, "[mem] torchvision SqueezeNet1_1_Weights"),
    "mobilenet_v1": (
        569e6,
        0.001,
        4_231_976,
        0,
        "[mem] Howard et al. 2017: 569 M; trainable parameters of Keras' model",
    ),
    "mobilenet_v1:width=50": (149e6, 0.01, 1.3e6, 0.03, "[mem] Howard et al. 2017, table 6"),
    "mobilenet_v2": (300.8e6, 0.001, 3_504_872, 0, "[mem] torchvision MobileNet_V2_Weights"),
    "resnet3d18": (40.697e9, 0.001, 33_371_472, 0, "[mem] torchvision R3D_18_Weights"),
    "unet": (150.4e9, 0.001, 31.03e6, 0.001, "[sum] MACs; [mem] parameters: about 31.03 M"),
    "diffusion_block": (
        26_915_880_960,
        0,
        4_801_280,
        0,
        "[sum]; test_diffusion_blocks_make_a_whole_network holds the published total",
    ),
    "mlp_s": (519_500, 0, 519_500, 0, "[sum] nn_dataflow's mlp_s, no biases"),
    "mlp_m": (1_411_500, 0, 1_411_500, 0, "[pub] shared reference case: 784-1000-500-250-10"),
    "mlp_l": (3_181_000, 0, 3_181_000, 0, "[sum] nn_dataflow's mlp_l, no biases"),
    "lstm": (
        32e6,
        0,
        32e6,
        0.001,
        "[sum] 4 layers of 8 * 1000^2; nn_dataflow has no biases, here 4 * 1000 per layer",
    ),
    "lstm_gnmt": (32e6, 0, 32e6, 0.001, "[sum] as lstm"),
    "lstm_phoneme": (
        26 * 140 + 8 * 140**2 + 140 * 61,
        0,
        168_980,
        0.004,
        "[sum] nn_dataflow has no biases, here 560",
    ),
    "lstm_showtell": (8 * 512**2, 0, 8 * 512**2, 0.001, "[sum] nn_dataflow has no biases, here 2048"),
    "bert_base:sequence=128": (
        11.25e9,
        0.01,
        109_482_240,
        0,
        "[mem] Sun et al. 2020 (MobileBERT): 22.5e9 operations; parameters of the model with its pooler",
    ),
    "bert_tiny:sequence=128": (
        58.7e6,
        0.001,
        4_385_920,
        0,
        "[mem] parameters: 4.4 M (Turc et al. 2019); [sum] MACs",
    ),
    "tinybert": (
        0.6e9,
        0.05,
        14_350_248,
        0,
        "[mem] Jiao et al. 2019: 1.2e9 operations and 14.5 M parameters; [sum] parameters with pooler",
    ),
    "gpt2:phase=decode,context=1": (
        124_439_808,
        0.008,
        124_439_808,
        0,
        "[mem] parameters; MACs: one per parameter, without positions, biases and norms",
    ),
    "llama7b:phase=decode,context=1": (
        6_738_415_616,
        0.02,
        6_738_415_616,
        0,
        "[mem] parameters; MACs: one per parameter but for the 131 M of the words",
    ),
    "llama70b:phase=decode,context=1": (
        68_976_648_192,
        0.004,
        68_976_648_192,
        0,
        "[mem] parameters; MACs as in llama7b",
    ),
    "moe_block:phase=decode,context=1": (
        (12_879_925_248 - 2 * 131_072_000) / 32,
        0.001,
        (46_702_792_704 - 262_148_096) / 32,
        0,
        "[mem] Mixtral 8x7B: 46.7e9 parameters, 12.88e9 active, in 32 blocks between two tables and a norm",
    ),
    "mamba_block": (
        1024 * 3_771_648,
        0.01,
        (129_135_360 - 38_615_040 - 768) / 24,
        0,
        "[mem] mamba-130m in 24 blocks; MACs: about one per parameter",
    ),
    "vit_b": (17.56e9, 0.001, 86_567_656, 0, "[mem] torchvision ViT_B_16_Weights"),
}
SAME_AS_FILE = {
    "resnet50": "light_resnet50",
    "vgg19": "light_vgg19",
    "alexnet": "light_bvlc_alexnet",
    "googlenet": "light_inception_v1",
    "squeezenet": "light_squeezenet",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sizes(name: str) -> None:
    w = catalog.load(name)
    macs, macs_within, parameters, parameters_within, _ = PUBLISHED[name]
    assert abs(w.macs() / macs - 1) <= macs_within
    assert abs(w.parameters / parameters - 1) <= parameters_within


def test_every_network_has_a_source() -> None:
    assert {name.partition(":")[0] for name in PUBLISHED} == {
        f for f in catalog.NETWORKS if catalog.NETWORKS[f].__module__ in MINE
    }


MINE = {f"workloads.{m}" for m in ("cnn", "diffusion", "mlp", "recurrent", "transformer")}
NAMES = [n for n, f in catalog.NETWORKS.items() if f.__module__ in MINE]


@pytest.mark.parametrize("name", SAME_AS_FILE)
@pytest.mark.parametrize("fuse", [True, False])
def test_functions_equal_the_onnx_files_layer_by_layer(name: str, fuse: bool) -> None:
    ours, file = (
        catalog.load(f"{name}:batch=2", fuse_elementwise=fuse),
        catalog.load(f"{SAME_AS_FILE[name]}:batch=2", fuse_elementwise=fuse),
    )
    assert [(canonical_key(e), e.macs()) for e in ours.einsums] == [
        (canonical_key(e), e.macs()) for e in file.einsums
    ]
    assert (ours.parameters, len(ours.weights), written_elems(ours)) == (
        file.parameters,
        len(file.weights),
        written_elems(file),
    )


VARIANTS = [
    f"{n}:{tail}"
    for n in NAMES
    for tail in (
        "",
        "batch=3",
        *(("phase=decode", "phase=decode,batch=2") if "phase" in catalog.parameters(n) else ()),
    )
]


@pytest.mark.parametrize("name", VARIANTS)
def test_a_tensor_has_one_size_and_inputs_are_data(name: str) -> None:
    """A reader may see another shape, but as many elements as were written; the text of every einsum parses
    back.
    """
    for w in (catalog.load(name), catalog.load(name, fuse_elementwise=False)):
        sizes: dict[str, set[int]] = {}
        for e in w.einsums:
            for p in e.tensors():
                sizes.setdefault(p.tensor, set()).add(p.stored_elems())
        assert {tensor: n for tensor, n in sizes.items() if len(n) > 1} == {}
        data = (
            {p.tensor for e in w.einsums for p in e.inputs} - {e.output.tensor for e in w.einsums} - w.weights
        )
        assert data
        assert not [
            t
            for t in data
            if t.rstrip("_0123456789").split("_")[-1]
            not in {"image", "tokens", "X", "F", "time", "prompt", "first", "cache"}
        ]
        for u in unique(w):
            e = u.einsum
            assert (
                einsum(
                    show(e),
                    e.sizes(),
                    e.name,
                    sizes={p.tensor: tuple(d.size for d in p.dims) for p in e.tensors()},
                )
                == e
            )


@pytest.mark.parametrize("name", NAMES)
def test_batch_multiplies_macs_and_no_parameter(name: str) -> None:
    one, three = catalog.load(name), catalog.load(f"{name}:batch=3")
    assert three.macs() == 3 * one.macs()
    assert three.parameters == one.parameters
    assert three.name == f"{name}:batch=3"


@pytest.mark.parametrize(
    ("name", "uniques"),
    [
        ("llama70b", 22),
        ("llama70b:phase=decode", 19),
        ("llama7b:phase=decode,context=2048", 17),
        ("bert_base", 17),
    ],
)
def test_layers_are_solved_once(name: str, uniques: int) -> None:
    """As many unique einsums with all layers as with two: of Llama-70B 6 products (q and o, k and v, up and
    gate, down, scores, values) and the logits.
    """
    w, two = catalog.load(name), catalog.load(f"{name}{',' if ':' in name else ':'}layers=2")
    assert len(unique(w)) == len(unique(two)) == uniques
    assert (
        len([u for u in unique(w) if u.einsum.kind == "mac"])
        == {"llama70b": 7, "llama7b": 6, "bert_base": 6}[name.partition(":")[0]]
    )


def test_llama_prefill_and_decode_counts() -> None:
    """Closed forms: 2 * d^2 + 2 * d * kv + 3 * d * f products per position and layer, 2 * d per pair of
    positions, the table once.
    """
    for name, d, kv, f, layers in (("llama7b", 4096, 4096, 11008, 32), ("llama70b", 8192, 1024, 28672, 80)):
        per = layers * (2 * d * d + 2 * d * kv + 3 * d * f)
        assert catalog.load(f"{name}:context=128,batch=2").macs() == 2 * (
            128 * per + layers * 2 * 128 * 128 * d + 32_000 * d
        )
        assert (
            catalog.load(f"{name}:phase=decode,context=128").macs() == per + layers * 2 * 128 * d + 32_000 * d
        )
        w = catalog.load(f"{name}:phase=decode,context=128,batch=4")
        caches = {
            p.tensor: p.stored_elems() for e in w.einsums for p in e.inputs if p.tensor.endswith("_cache")
        }
        assert len(caches) == 2 * layers
        assert set(caches.values()) == {4 * 128 * kv}


def test_experts_that_no_row_reaches_are_not_read() -> None:
    w = catalog.load("moe_block:phase=decode")
    up = next(e for e in w.einsums if e.name == "U")
    assert up.macs() == 2 * 4096 * 14336
    assert up.inputs[1].stored_elems() == 8 * 4096 * 14336
    assert up.sizes()["e"] == 2
    assert catalog.load("moe_block:context=64").einsums[-3].sizes()["e"] == 8


def test_diffusion_blocks_make_a_whole_network() -> None:
    """Stable Diffusion 1's U-Net from its blocks (out, in, how many, attention) and what stands between them:
    859,520,964 parameters ([mem], model card).
    """
    blocks = [
        (320, 320, 2, "yes"),
        (640, 320, 1, "yes"),
        (640, 640, 1, "yes"),
        (1280, 640, 1, "yes"),
        (1280, 1280, 1, "yes"),
        (1280, 1280, 2, "no"),
        (1280, 1280, 1, "yes"),
        (1280, 1280, 1, "no"),
        (1280, 2560, 3, "no"),
        (1280, 2560, 2, "yes"),
        (1280, 1920, 1, "yes"),
        (640, 1920, 1, "yes"),
        (640, 1280, 1, "yes"),
        (640, 960, 1, "yes"),
        (320, 960, 1, "yes"),
        (320, 640, 2, "yes"),
    ]
    inside = sum(
        n * catalog.load(f"diffusion_block:size=8,channels={c},inputs={i},attend={a}").parameters
        for c, i, n, a in blocks
    )
    resampling = sum(9 * c * c + c for c in (320, 640, 1280, 1280, 1280, 640))
    ends = (4 * 9 * 320 + 320) + (320 * 1280 + 1280) + (1280 * 1280 + 1280) + 2 * 320 + (320 * 9 * 4 + 4)
    assert inside + resampling + ends == 859_520_964


# Values: a network, einsum by einsum, against the same thing written directly

Arrays = dict[str, NDArray[np.float64]]
numeric.POINTS.update(
    {"rope": np.multiply, "lstm_output": lambda z, c: np.tanh(c) / (1 + np.exp(-z)), "topk": lambda x: x}
)


def run(w: Workload, values: Mapping[str, NDArray[np.float64]]) -> Arrays:
    """All tensors; those that are given stand in for the einsums that would make them (gathers by token,
    routes).
    """
    return numeric.run([e for e in w.einsums if e.output.tensor not in values], values)


def filled(w: Workload, rng: np.random.Generator, names: set[str]) -> Arrays:
    sizes = {
        p.tensor: p.stored_elems()
        for e in w.einsums
        for p in e.inputs
        if p.tensor in w.weights or p.tensor in names
    }
    return {t: rng.normal(size=n) for t, n in sizes.items()}


TINY = Sizes(8, 4, 12, kv=2, head=2, norm="rmsnorm", bias=False, gated=True, rope=True)


def tiny_decoder(run: Run) -> Workload:
    return transformer.decoder("net", TINY, run, [transformer.block(TINY, run)] * 2, Vocabulary(11))


def test_attention_online_is_attention() -> None:
    """Of 160 positions in two blocks; the scores of one block are far above the others."""
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(2, 3, 4, 8)), rng.normal(size=(2, 160, 2, 8)), rng.normal(size=(2, 160, 2, 8))
    k[:, 80:120] *= 20
    rows, online = (
        numeric.run(transformer.attention_core(4, 3, 160, 8, 2, 2, form), {"Q": q, "K": k, "V": v})
        for form in ("rows", "online")
    )
    assert online["S"].shape == (2, 2, 2, 3, 2, 80)
    assert np.allclose(rows["O"], online["O"])
    assert (online["C"][..., 0] == 0).all()


def test_llama_in_numpy_and_decode_after_prefill() -> None:
    """Two small layers: prefill equals a direct implementation; decode with prefill's keys and values gives
    the same logits.
    """
    rng, t, b = np.random.default_rng(0), 5, 2
    prefill = tiny_decoder(Run(b, t, t, cache=True))
    weights = filled(prefill, rng, set())
    words = rng.normal(size=(b, t, 8))
    made = run(prefill, weights | {"words": words})
    x = words
    for i in range(2):
        x = layer(
            x,
            {k.removeprefix(f"l{i}_"): v for k, v in weights.items() if k.startswith(f"l{i}_")},
            weights["angles"].reshape(t, 2),
        )
    want = rms(x[:, -1], weights["normed_G"]) @ weights["logits_W"].reshape(11, 8).T
    assert np.allclose(made["logits"].reshape(b, 11), want)
    decode = tiny_decoder(Run(b, 1, t, cache=True))
    caches = {f"l{i}_{k}_cache": made[f"l{i}_{k}"] for i in range(2) for k in "KV"}
    last = {"words": words[:, -1], "angles": weights["angles"].reshape(t, 2)[-1]}
    assert np.allclose(run(decode, weights | caches | last)["logits"].reshape(b, 11), want)


def rms(x: NDArray[np.float64], g: NDArray[np.float64]) -> NDArray[np.float64]:
    return x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-5) * g


def layer(x: NDArray[np.float64], w: Arrays, angles: NDArray[np.float64]) -> NDArray[np.float64]:
    """One layer of TINY, written directly: 4 query heads on 2 heads of keys and values."""

    def product(a: NDArray[np.float64], name: str) -> NDArray[np.float64]:
        return a @ w[name].reshape(-1, a.shape[-1]).T

    n, (b, t, _) = rms(x, w["N1_G"]), x.shape
    q, k, v = (
        product(n, "Q_flat_W").reshape(b, t, 4, 2),
        product(n, "K_flat_W").reshape(b, t, 2, 2),
        product(n, "V_W").reshape(b, t, 2, 2),
    )
    q, k = q * angles[:, None], k * angles[:, None]
    heads = []
    for h in range(4):
        s = np.exp(q[:, :, h] @ k[:, :, h // 2].transpose(0, 2, 1))
        heads.append(s / s.sum(-1, keepdims=True) @ v[:, :, h // 2])
    y = x + product(np.concatenate(heads, -1), "O_W")
    n = rms(y, w["N2_G"])
    z = product(n, "Z_W")
    return np.asarray(y + product(z / (1 + np.exp(-z)) * product(n, "U_W"), "I_W"))


def test_experts_in_numpy() -> None:
    """All rows through both of two experts: the sum of the experts, weighted as given."""
    rng = np.random.default_rng(1)
    s = Sizes(4, 2, 6, norm="rmsnorm", bias=False, gated=True)
    w = network("net", transformer.block(s, Run(1, 3, 3), 2, 2), {"X"})
    given = filled(w, rng, {"X"}) | {"T_P": np.full(6, 0.5)}
    # what the experts are sent: here both get every row
    rows = run(w, given | {"X_sent": np.zeros(24)})["N2"].reshape(3, 4)
    values = run(w, given | {"X_sent": np.concatenate([rows, rows]), "D": np.zeros(24)})
    gate, up = (rows @ given[k].reshape(2, 6, 4)[1].T for k in ("Z_W", "U_W"))
    assert np.allclose(values["F"].reshape(2, 3, 6)[1], gate / (1 + np.exp(-gate)) * up)


def test_lstm_in_numpy() -> None:
    rng = np.random.default_rng(2)
    w = recurrent.lstm(batch=2, sequence=2, inputs=3, hidden=4, layers=1)
    given = filled(w, rng, {"X_0", "X_1", "l0_H_first", "l0_C_first"})
    h, c = given["l0_H_first"].reshape(2, 4), given["l0_C_first"].reshape(2, 4)
    states = {}
    for t in range(2):
        z = (
            given[f"X_{t}"].reshape(2, 3) @ given["l0_WX"].reshape(16, 3).T
            + given["l0_B"]
            + h @ given["l0_WH"].reshape(16, 4).T
        )
        i, f, g, o = (
            1 / (1 + np.exp(-z[:, s])) if s.start != 8 else np.tanh(z[:, s])
            for s in (slice(4 * j, 4 * j + 4) for j in range(4))
        )
        c = f * c + i * g
        h = o * np.tanh(c)
        states[f"l0_C_{t}"] = c
    assert np.allclose(run(w, given | states)["l0_H_1"].reshape(2, 4), h)


def test_riding_drops_no_einsum_that_is_not_listed() -> None:
    whole = cnn.mobilenet_v1(image=32, width=3, classes=5)
    fused = fuse_into_producers(whole)
    assert len(fused.fused) == len(whole.einsums) - len(fused.einsums)
    assert whole.parameters == fused.parameters
    assert {e.name for e in whole.einsums} - {e.name for e in fused.einsums} == {
        f.split()[1] for f in fused.fused
    }


# What rides


def test_what_rides() -> None:
    extents = {"m": 4, "n": 4, "k": 3}
    net = cascade(
        extents,
        "C[m,n] += A[m,k] * W[k,n]",
        "D[m,n] = bias(C[m,n], B[n])",
        "E[m,n] = relu(D[m,n])",
        "F[m,n] = E[m,n] + D2[m,n]",
        "G[m,n] = relu(F[m,n])",
        "H[n,m] = relu(G[m,n])",
        "I[n,m] = softmax(H[n,m])",
        "J[n,m] = relu(I[n,m])",
        "K[n,m] = I[n,m] + J[n,m]",
    )
    w = network("net", net, {"A", "D2"})
    # a transposed relu and a shared softmax stay
    assert [e.kind for e in fuse_into_producers(w).einsums] == [
        "mac",
        "add",
        "relu",
        "softmax",
        "relu",
        "add",
    ]
    assert fuse_into_producers(w).fused == ("bias D -> C", "relu E -> C", "relu G -> F")
    assert fuse_into_producers(w).weights == {"W"}
    assert fuse_into_producers(w).parameters == 16
    assert [e.kind for e in fuse_into_producers(w, elementwise=False).einsums] == [
        "mac",
        "relu",
        "add",
        "relu",
        "relu",
        "softmax",
        "relu",
        "add",
    ]
    assert show(fuse_into_producers(w).einsums[1]) == "F[m,n] = C[m,n] + D2[m,n]"


def test_layer_table_sums_to_the_network() -> None:
    for name in ("resnet50", "llama7b:phase=decode,context=2048", "light_shufflenet"):
        w = catalog.load(name)
        rows = layer_table(w)
        assert sum(r.macs for r in rows) == w.macs()
        assert sum(r.occurrences for r in rows) == sum(counts(w))
        assert sum(r.outputs for r in rows) == written_elems(w)
        words = sum(n * p.stored_words() for e, n in w.runs() for p in e.inputs if p.tensor in w.weights)
        assert sum(r.weights for r in rows) == words
    assert rows[0].extents.startswith("k=")
    assert layer_table(catalog.load("mlp_m:batch=64"))[0][:3] == ("fc1", 1, "mac")
    assert layer_table(catalog.load("spmv:m=100,k=50,nnz=60"))[0].inputs == 2 * 60 + 100 + 50, (
        "a value and a column index per nonzero, a pointer per row"
    )


# Speed and faults


def test_building_every_network_stays_below_200_mib() -> None:
    assert (
        peak_kib("[catalog.load(n) for n in catalog.NETWORKS if '...' not in catalog.parameters(n)]")
        <= 200 * 1024
    )


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        (
            "alexnet:image=30",
            "alexnet: pool2: a map of 2 x 2 is too small for a kernel of 3 x 3; give a larger image",
        ),
        ("resnet50:phase=decode", "no parameter is named phase"),
        ("llama7b:phase=train", "phase = train must be prefill or decode"),
        ("bert_base:sequence=513", "sequence = 513 must not be above 512"),
        ("gpt2:context=1025", "context = 1025 must not be above 1024"),
        ("moe_block:active=9", "active = 9 must not be above experts = 8"),
        ("diffusion_block:channels=72", "channels = 72 must be a multiple of 32"),
        ("diffusion_block:inputs=100", "inputs = 100 must be a multiple of 32"),
        ("diffusion_block:heads=7", "heads = 7 must divide channels = 320"),
        ("unet:image=100", "unet: down4_a: a map of 2 x 2 is too small"),
        ("vit_b:patch=300", "too small for a kernel of 300 x 300"),
        ("lama7b", "do you mean llama7b"),
    ],
)
def test_faults_of_networks_are_one_line(source: str, fault: str) -> None:
    with pytest.raises(WorkloadError) as caught:
        catalog.load(source)
    assert fault in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_function_says_what_it_is() -> None:
    for name in NAMES:
        first = catalog.first_paragraph(catalog.NETWORKS[name])
        assert len(first) > 14, name
        assert first.endswith((".", ":")), name
        assert all(
            p.default is not p.empty for p in inspect.signature(catalog.NETWORKS[name]).parameters.values()
        )
    entry = catalog.Entry(
        "mlp_m",
        1_411_500,
        1_411_500,
        1760,
        "batch=1",
        "784-1000-500-250-10, without biases: source as `mlp_s`; the MLP of KAPLA.",
    )
    entries = catalog.entries()
    assert entry in entries
    assert all(e.macs for e in entries if e.workload in NAMES)
    assert [e.workload for e in entries] == catalog.names()

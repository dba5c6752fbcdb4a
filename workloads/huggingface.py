"""Workloads of Hugging Face configurations (`config.json`), without weights: text decoders (Llama, Mistral,
Qwen2, Qwen3, Qwen3 MoE, Mixtral, Gemma, Gemma 2, GPT-2), Whisper, ViT.

A key that the file leaves out has the default of its `model_type` in transformers 5. Scores that a causal
mask or a sliding window hides are computed in prefill, as in workloads/transformer.py; decode reads no more
of the caches than the window of a layer. Scales and soft caps are fused into what they scale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workloads import document
from workloads.einsum import WorkloadError, closest, refuse
from workloads.graph import Workload
from workloads.layers import Cascade, Map, Net, cascade, chain, conv, network, with_names
from workloads.transformer import (
    Phase,
    Run,
    Sizes,
    Vocabulary,
    attention_core,
    attention_half,
    block,
    decoder,
    feed_forward_half,
    last_logits,
    linear,
    norm,
    run_of,
    token_positions,
    vit,
)

CONTEXT = 2048  # positions of a run that says none, or all that the model has if these are fewer
MAX_LAYERS = 1_000
ACTIVATIONS = {  # of Hugging Face -> name of the function in an einsum
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_new": "gelu",
    "gelu_fast": "gelu",
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "quick_gelu": "quick_gelu",
}


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What a user wants to run of a model."""

    phase: Phase
    context: int  # 0: the default
    batch: int


@dataclass(frozen=True, slots=True)
class Traits:
    """What a model type has that no key of its configuration says."""

    qkv_bias: bool = False
    qk_norm: bool = False
    norm_last: bool = False
    # every full_every-th layer sees all positions, the others a window, where no key says it; 0: none do
    full_every: int = 0
    experts: str = ""  # key of the number of experts; "": none
    expert_ffn: str = "intermediate_size"  # key of their width


@dataclass(frozen=True, slots=True)
class Config:
    """A configuration file, the defaults of its model type, and what the type has."""

    where: str
    given: Mapping[str, Any]
    defaults: Mapping[str, Any]
    traits: Traits

    def __getitem__(self, key: str) -> Any:
        value = self.given.get(key)
        return self.defaults.get(key) if value is None else value

    def size(self, key: str, otherwise: int = 0) -> int:
        """Returns a whole number of at least 1; `otherwise` where neither file nor default says one."""
        value = otherwise if self[key] is None else self[key]
        if type(value) is not int or value < 1:
            text = f"{self.where}: {key} = {str(value)[:40]!r} must be a whole number of at least 1"
            raise WorkloadError(text)
        return value

    def layers(self, key: str) -> int:
        """Returns a number of layers. Raises for more than MAX_LAYERS: they are written out."""
        if (count := self.size(key)) > MAX_LAYERS:
            raise WorkloadError(f"{self.where}: {key} = {count} must not be above {MAX_LAYERS}")
        return count

    def activation(self, key: str) -> str:
        """Returns the name of an activation function. Raises for unknown ones."""
        name = str(self[key])[:40]
        if name not in ACTIVATIONS:
            hint = closest(name, ACTIVATIONS, f"known are {', '.join(ACTIVATIONS)}")
            raise WorkloadError(f"{self.where}: {key} = {name!r} is not known; {hint}")
        return ACTIVATIONS[name]


def huggingface(config: str, phase: Phase = "prefill", context: int = 0, batch: int = 1) -> Workload:
    """A model by its Hugging Face configuration.

    config: path of the file
    phase: prefill: a prompt of `context` positions; decode: one new position, the last one of a context
    context: 0: 2048, or as many as the model has positions, if these are fewer
    """
    data, faults = document.read(Path(config))
    if data is None or document.is_kind(data, ["model_type"]):
        refuse(f"{config}: {fault}" for fault in faults)
    if not isinstance(data, dict) or not isinstance(data.get("model_type"), str):
        raise WorkloadError(f"{config}: is no Hugging Face configuration: it has no key model_type")
    kind = data["model_type"]
    if kind not in MODELS:
        hint = closest(kind, MODELS, f"known are {', '.join(MODELS)}")
        raise WorkloadError(f"{config}: model_type = {kind[:40]!r} is not known; {hint}")
    make, defaults, traits = MODELS[kind]
    try:
        return make(Config(config, data, defaults, traits), RunRequest(phase, context, batch))
    except WorkloadError as fault:
        lines = str(fault).splitlines()
        raise WorkloadError(
            "\n".join(line if line.startswith(config) else f"{config}: {line}" for line in lines)
        ) from None


def _run(request: RunRequest, positions: int) -> Run:
    return run_of(request.phase, request.context or min(CONTEXT, positions), request.batch)


def _windows(c: Config, layers: int) -> list[int]:
    """Returns how many positions each layer sees; 0: all."""
    kinds, every = c["layer_types"], c.traits.full_every
    if not c["sliding_window"] or c["use_sliding_window"] is False:
        return [0] * layers
    window = c.size("sliding_window")
    if kinds is None:
        return [window if not every or (i + 1) % every else 0 for i in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers:
        raise WorkloadError(f"{c.where}: layer_types must name the kind of each of the {layers} layers")
    return [window if kind == "sliding_attention" else 0 for kind in kinds]


def _in_window(run: Run, window: int) -> Run:
    """Returns a run of a layer that sees so many positions: decode reads no more of the caches."""
    return replace(run, context=min(run.context, window)) if window and run.new == 1 else run


def _decoder_sizes(c: Config) -> Sizes:
    model, heads = c.size("hidden_size"), c.size("num_attention_heads")
    if c["head_dim"] is None and model % heads:
        raise WorkloadError(f"{c.where}: num_attention_heads = {heads} must divide hidden_size = {model}")
    bias = bool(c["mlp_bias"])
    if bool(c["attention_bias"]) != bias:
        raise WorkloadError(
            f"{c.where}: attention_bias and mlp_bias must be equal; give another configuration"
        )
    return Sizes(
        model,
        heads,
        c.size("intermediate_size"),
        kv=c.size("num_key_value_heads", heads),
        head=c.size("head_dim", model // heads),
        norm="rmsnorm",
        bias=bias,
        gated=True,
        rope=True,
        act=c.activation("hidden_activation" if c["hidden_activation"] else "hidden_act"),
        qkv_bias=c.traits.qkv_bias,
        qk_norm=c.traits.qk_norm,
        norm_last=c.traits.norm_last,
    )


def _llama(c: Config, request: RunRequest) -> Workload:
    """Returns a decoder with rotary positions and gated feed-forward layers, or experts in their place."""
    s, layers = _decoder_sizes(c), c.layers("num_hidden_layers")
    run, experts, active = _run(request, c.size("max_position_embeddings")), 0, 0
    if c.traits.experts:
        experts, active = c.size(c.traits.experts), c.size("num_experts_per_tok")
        s = replace(s, ffn=c.size(c.traits.expert_ffn))
        if active > experts:
            raise WorkloadError(f"{c.where}: num_experts_per_tok = {active} must not be above {experts}")
    if (c["decoder_sparse_step"] or 1) != 1 or c["mlp_only_layers"]:
        raise WorkloadError(f"{c.where}: layers without experts among those with experts are not known")
    blocks = [block(s, _in_window(run, window), experts, active) for window in _windows(c, layers)]
    vocabulary = Vocabulary(c.size("vocab_size"), tied=bool(c["tie_word_embeddings"]))
    return decoder(c["model_type"], s, run, blocks, vocabulary)


def _gpt2(c: Config, request: RunRequest) -> Workload:
    model, positions = c.size("n_embd"), c.size("n_positions")
    act = c.activation("activation_function")
    s = Sizes(model, c.size("n_head"), c.size("n_inner", 4 * model), act=act)
    run = _run(request, positions)
    vocabulary = Vocabulary(c.size("vocab_size"), positions, tied=True)
    return decoder("gpt2", s, run, [block(s, run)] * c.layers("n_layer"), vocabulary)


def _vit(c: Config, request: RunRequest) -> Workload:
    """Returns a vision transformer with its classifier. A run has no phase and no context."""
    if not c["qkv_bias"] or request.phase != "prefill" or request.context:
        raise WorkloadError(f"{c.where}: vit takes neither phase nor context, and qkv_bias must be true")
    act, image = c.activation("hidden_act"), c.size("image_size")
    s = Sizes(c.size("hidden_size"), c.size("num_attention_heads"), c.size("intermediate_size"), act=act)
    labels = c["id2label"]
    classes = len(labels) if isinstance(labels, dict) else c.size("num_labels")
    images = (request.batch, c.size("num_channels"), image, image)
    return vit("vit", s, c.layers("num_hidden_layers"), images, c.size("patch_size"), classes)


# Whisper (Radford et al. 2023)


def _whisper(c: Config, request: RunRequest) -> Workload:
    """Returns Whisper. prefill: the encoder on 30 s of sound, and the decoder on a prompt; decode: one step
    of the decoder, which reads the keys and values of the encoder's result from caches.
    """
    positions, sound_positions = c.size("max_target_positions"), c.size("max_source_positions")
    run, layers = _run(request, positions), c.layers("decoder_layers")
    act, model = c.activation("activation_function"), c.size("d_model")
    s = Sizes(model, c.size("decoder_attention_heads"), c.size("decoder_ffn_dim"), act=act, key_bias=False)
    vocabulary = Vocabulary(c.size("vocab_size"), positions, tied=True)
    if run.context > positions:
        raise WorkloadError(f"context = {run.context} must not be above max_target_positions = {positions}")
    net: Cascade = ()
    if request.phase == "prefill":
        encoder_sizes = replace(s, heads=c.size("encoder_attention_heads"), ffn=c.size("encoder_ffn_dim"))
        shape = (request.batch, c.size("num_mel_bins"), 2 * sound_positions)
        net = _sound_encoder(encoder_sizes, c.layers("encoder_layers"), shape)
    net += token_positions(s, run, vocabulary)
    net += chain(
        _sound_block(s, run, sound_positions, request.phase == "decode"),
        layers,
        "embedded",
        "decoded",
        ("heard",),
    )
    net += last_logits(s, run, vocabulary)
    caches = {f"l{i}_{x}_cache" for i in range(layers) for x in ("K", "V", "C_K", "C_V")}
    return network("whisper", net, {"tokens", "sound", *caches})


def _sound_encoder(s: Sizes, layers: int, sound: Sequence[int]) -> Cascade:
    """Returns Whisper's encoder: two convolutions over time, positions, layers, a norm. sound: [batch, mel
    bins, frames].
    """
    batch, bins, frames = sound
    head: Net = []
    x = conv(head, "sound1", Map("sound", (batch, bins, frames)), s.model, 3, 1, 1, act="Gelu")
    x = conv(head, "sound2", x, s.model, 3, 2, 1, act="Gelu")
    extents = {"b": batch, "t": x.shape[2], "m": s.model}
    net = tuple(head) + cascade(extents, f"begun[b,t,m] = add({x.name}[b,m,t], sound_positions_W[t,m])")
    net += chain(block(s, Run(batch, x.shape[2], x.shape[2])), layers, "begun", "encoded")
    net += norm(s, batch * x.shape[2], "encoded", "heard")
    return with_names(net, "e_", {"sound": "sound", "heard": "heard"})


def _sound_block(s: Sizes, run: Run, sound_positions: int, cached: bool) -> Cascade:
    """Returns one layer of Whisper's decoder, tensor X -> tensor Y: attention to what was heard stands
    between its two halves. cached: its keys and values are in caches.
    """
    rows = run.batch * run.new
    total = cascade({"r": rows, "m": s.model}, "J[r,m] = H[r,m] + C_O[r,m]")
    cross_attention = _attention_to_sound(s, run, sound_positions, cached)
    return attention_half(s, run) + cross_attention + total + feed_forward_half(s, run, "J")


def _attention_to_sound(s: Sizes, run: Run, sound_positions: int, cached: bool) -> Cascade:
    """Returns attention of tensor H to the encoder's result -> C_O."""
    head, rows = s.model // s.heads, run.batch * run.new
    net = norm(s, rows, "H", "C_N") + linear(s, "C_Q", "C_N", rows, s.model, s.model)
    suffix = "_cache" if cached else ""
    if not cached:
        net += linear(replace(s, bias=False), "C_K", "heard", run.batch * sound_positions, s.model, s.model)
        net += linear(s, "C_V", "heard", run.batch * sound_positions, s.model, s.model)
    names = {"Q": "C_Q", "K": f"C_K{suffix}", "V": f"C_V{suffix}"}
    core = attention_core(s.heads, run.new, sound_positions, head, s.heads, run.batch)
    return net + with_names(core, "C_A_", names) + linear(s, "C_O", "C_A_O", rows, s.model, s.model)


LLAMA = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
    "hidden_act": "silu",
}
MISTRAL = LLAMA | {"intermediate_size": 14_336, "num_key_value_heads": 8, "max_position_embeddings": 1 << 17}
QWEN = LLAMA | {
    "vocab_size": 151_936,
    "intermediate_size": 22_016,
    "num_key_value_heads": 32,
    "max_position_embeddings": 32_768,
    "use_sliding_window": False,
}
QWEN3 = QWEN | {"head_dim": 128}
GEMMA = LLAMA | {
    "vocab_size": 256_000,
    "hidden_size": 3072,
    "intermediate_size": 24_576,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "hidden_act": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
}
# model_type -> its function, values of keys that a file leaves out, what the type has
MODELS: dict[str, tuple[Callable[[Config, RunRequest], Workload], Mapping[str, Any], Traits]] = {
    "llama": (_llama, LLAMA, Traits()),
    "mistral": (_llama, MISTRAL | {"sliding_window": 4096}, Traits()),
    "qwen2": (_llama, QWEN, Traits(qkv_bias=True)),
    "qwen3": (_llama, QWEN3, Traits(qk_norm=True)),
    "qwen3_moe": (
        _llama,
        QWEN3
        | {
            "hidden_size": 2048,
            "intermediate_size": 6144,
            "num_hidden_layers": 24,
            "num_key_value_heads": 4,
            "head_dim": None,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
        },
        Traits(qk_norm=True, experts="num_experts", expert_ffn="moe_intermediate_size"),
    ),
    "mixtral": (
        _llama,
        MISTRAL | {"num_local_experts": 8, "num_experts_per_tok": 2},
        Traits(experts="num_local_experts"),
    ),
    "gemma": (_llama, GEMMA, Traits()),
    "gemma2": (
        _llama,
        GEMMA
        | {
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "hidden_activation": "gelu_pytorch_tanh",
            "sliding_window": 4096,
        },
        Traits(norm_last=True, full_every=2),
    ),
    "gpt2": (
        _gpt2,
        {
            "vocab_size": 50_257,
            "n_positions": 1024,
            "n_embd": 768,
            "n_layer": 12,
            "n_head": 12,
            "activation_function": "gelu_new",
        },
        Traits(),
    ),
    "vit": (
        _vit,
        {
            "hidden_size": 768,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "intermediate_size": 3072,
            "hidden_act": "gelu",
            "image_size": 224,
            "patch_size": 16,
            "num_channels": 3,
            "qkv_bias": True,
            "num_labels": 2,
        },
        Traits(),
    ),
    "whisper": (
        _whisper,
        {
            "vocab_size": 51_865,
            "num_mel_bins": 80,
            "encoder_layers": 4,
            "encoder_attention_heads": 6,
            "decoder_layers": 4,
            "decoder_attention_heads": 6,
            "decoder_ffn_dim": 1536,
            "encoder_ffn_dim": 1536,
            "activation_function": "gelu",
            "d_model": 384,
            "max_source_positions": 1500,
            "max_target_positions": 448,
        },
        Traits(),
    ),
}

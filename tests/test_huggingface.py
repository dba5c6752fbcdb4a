"""Hugging Face configurations: parameters as their models are published, MACs against closed forms."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from workloads import catalog
from workloads.einsum import WorkloadError
from workloads.graph import Workload, counts
from workloads.huggingface import huggingface

# what a model's config.json says beyond the defaults of its type, and its parameters as published
PUBLISHED: dict[str, tuple[dict[str, Any], int]] = {
    "Llama-2-7b": ({"model_type": "llama"}, 6_738_415_616),
    "Meta-Llama-3-8B": (
        {"model_type": "llama", "vocab_size": 128_256, "intermediate_size": 14_336, "num_key_value_heads": 8},
        8_030_261_248,
    ),
    "Llama-3.2-1B": (
        {
            "model_type": "llama",
            "vocab_size": 128_256,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "num_key_value_heads": 8,
            "head_dim": 64,
            "tie_word_embeddings": True,
        },
        1_235_814_400,
    ),
    "TinyLlama-1.1B": (
        {
            "model_type": "llama",
            "hidden_size": 2048,
            "intermediate_size": 5632,
            "num_hidden_layers": 22,
            "num_key_value_heads": 4,
        },
        1_100_048_384,
    ),
    "Mistral-7B-v0.1": ({"model_type": "mistral"}, 7_241_732_096),
    "Qwen2-0.5B": (
        {
            "model_type": "qwen2",
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
        },
        494_032_768,
    ),
    "Qwen2.5-7B": (
        {
            "model_type": "qwen2",
            "vocab_size": 152_064,
            "hidden_size": 3584,
            "intermediate_size": 18_944,
            "num_hidden_layers": 28,
            "num_attention_heads": 28,
            "num_key_value_heads": 4,
        },
        7_615_616_512,
    ),
    "Qwen3-0.6B": (
        {
            "model_type": "qwen3",
            "hidden_size": 1024,
            "intermediate_size": 3072,
            "num_hidden_layers": 28,
            "num_attention_heads": 16,
            "num_key_value_heads": 8,
            "tie_word_embeddings": True,
        },
        596_049_920,
    ),
    "Qwen3-30B-A3B": ({"model_type": "qwen3_moe", "num_hidden_layers": 48, "head_dim": 128}, 30_532_122_624),
    "Mixtral-8x7B": ({"model_type": "mixtral"}, 46_702_792_704),
    "gemma-2b": (
        {
            "model_type": "gemma",
            "hidden_size": 2048,
            "intermediate_size": 16_384,
            "num_hidden_layers": 18,
            "num_attention_heads": 8,
            "num_key_value_heads": 1,
        },
        2_506_172_416,
    ),
    "gemma-2-2b": ({"model_type": "gemma2"}, 2_614_341_888),
    "gpt2": ({"model_type": "gpt2"}, 124_439_808),
    "vit-base-patch16-224": ({"model_type": "vit", "num_labels": 1000}, 86_567_656),
    "whisper-tiny": ({"model_type": "whisper"}, 37_760_640),
    "whisper-base": (
        {
            "model_type": "whisper",
            "d_model": 512,
            "encoder_layers": 6,
            "decoder_layers": 6,
            "encoder_attention_heads": 8,
            "decoder_attention_heads": 8,
            "encoder_ffn_dim": 2048,
            "decoder_ffn_dim": 2048,
        },
        72_593_920,
    ),
}
SMALL = {"hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2, "vocab_size": 50}
HEADS = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 8}


def written(folder: Path, config: dict[str, Any]) -> str:
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return str(path)


def read(folder: Path, config: dict[str, Any], **asked: Any) -> Workload:
    return huggingface(written(folder, config), **asked)


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameters_are_those_of_the_published_model(name: str, tmp_path: Path) -> None:
    config, parameters = PUBLISHED[name]
    context = 0 if config["model_type"] == "vit" else 16
    assert read(tmp_path, config, context=context).parameters == parameters


def layer_macs(new: int, context: int, gated: bool = True) -> int:
    """MACs of a layer of SMALL and HEADS, batch 3: projections, both products of attention, feed-forward."""
    rows, model, ffn, heads, kv, head = 3 * new, 24, 40, 6, 2, 8
    projections = rows * model * head * (heads + kv + kv + heads)
    return projections + 2 * 3 * heads * new * context * head + rows * model * ffn * (3 if gated else 2)


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "mistral", "gemma", "gemma2"])
@pytest.mark.parametrize(("phase", "new"), [("prefill", 10), ("decode", 1)])
def test_a_decoder_multiplies_as_its_sizes_say(kind: str, phase: Any, new: int, tmp_path: Path) -> None:
    config = {"model_type": kind, "sliding_window": None, **SMALL, **HEADS}
    w = read(tmp_path, config, phase=phase, context=10, batch=3)
    assert w.macs() == 2 * layer_macs(new, 10) + 3 * 24 * 50


@pytest.mark.parametrize(
    ("config", "windows"),
    [
        ({"model_type": "mistral", "sliding_window": 4}, (4, 4)),
        ({"model_type": "mistral", "sliding_window": 400}, (10, 10)),
        ({"model_type": "gemma2", "sliding_window": 4}, (4, 10)),
        ({"model_type": "gemma2", "sliding_window": 4, "layer_types": ["x", "sliding_attention"]}, (10, 4)),
        ({"model_type": "qwen2", "sliding_window": 4}, (10, 10)),
        ({"model_type": "qwen2", "sliding_window": 4, "use_sliding_window": True}, (4, 4)),
    ],
)
def test_decode_reads_no_more_than_the_window(
    config: dict[str, Any], windows: tuple[int, int], tmp_path: Path
) -> None:
    w = read(tmp_path, config | SMALL | HEADS, phase="decode", context=10, batch=3)
    assert w.macs() == sum(layer_macs(1, seen) for seen in windows) + 3 * 24 * 50
    prefill = read(tmp_path, config | SMALL | HEADS, context=10, batch=3)
    assert prefill.macs() == 2 * layer_macs(10, 10) + 3 * 24 * 50


@pytest.mark.parametrize(
    "keys",
    [
        {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2},
        {
            "model_type": "qwen3_moe",
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 40,
            "intermediate_size": 99,
        },
    ],
)
def test_experts_take_the_place_of_the_feed_forward_layer(keys: dict[str, Any], tmp_path: Path) -> None:
    """The router, two experts per row, and their weighted sum."""
    w = read(tmp_path, SMALL | HEADS | keys, context=10, batch=3)
    rows = 30
    experts = rows * 24 * 4 + rows * 2 * 24 * 40 * 3 + rows * 2 * 24
    assert w.macs() == 2 * (layer_macs(10, 10) - rows * 24 * 40 * 3 + experts) + 3 * 24 * 50


@pytest.mark.parametrize(("phase", "new"), [("prefill", 5), ("decode", 1)])
@pytest.mark.parametrize("context", [1, 5])
def test_whisper_hears_once_and_decodes_from_caches(
    phase: Any, new: int, context: int, tmp_path: Path
) -> None:
    new = min(new, context)
    sizes = {"d_model": 24, "vocab_size": 50, "num_mel_bins": 7, "max_source_positions": 20}
    layers = {"encoder_layers": 1, "decoder_layers": 2, "encoder_ffn_dim": 40, "decoder_ffn_dim": 30}
    w = read(tmp_path, {"model_type": "whisper", **sizes, **layers}, phase=phase, context=context, batch=3)
    heard = 3 * 20
    convolutions = 3 * 40 * 24 * 7 * 3 + heard * 24 * 24 * 3
    encoder = convolutions + heard * 4 * 24 * 24 + 2 * 3 * 20 * 20 * 24 + heard * 24 * 40 * 2
    own = 3 * new * 4 * 24 * 24 + 2 * 3 * new * context * 24
    other = 3 * new * 2 * 24 * 24 + 2 * 3 * new * 20 * 24
    keys = heard * 2 * 24 * 24
    layer = own + other + 3 * new * 24 * 30 * 2
    prefill = phase == "prefill"
    assert w.macs() == 2 * layer + 3 * 24 * 50 + (encoder + 2 * keys if prefill else 0)


def test_the_default_llama_is_that_of_the_catalog(tmp_path: Path) -> None:
    """Einsum for einsum, in both phases."""
    for phase in ("prefill", "decode"):
        path = written(tmp_path, {"model_type": "llama", "num_hidden_layers": 2})
        found = catalog.load(f"hf:{path}:phase={phase},context=32")
        built = catalog.load(f"llama7b:phase={phase},context=32,layers=2")
        assert found.einsums == built.einsums
        assert counts(found) == counts(built)
        assert catalog.load(f"{path}:phase={phase},context=32") == found


def test_a_configuration_is_a_file_of_a_study() -> None:
    assert catalog.file_in("hf:nets/config.json:phase=decode") == ("hf:", "nets/config.json", ":phase=decode")
    assert catalog.file_in("nets/config.json:batch=2") == ("", "nets/config.json", ":batch=2")
    assert catalog.file_in("train:net=nets/config.json,batch=2") == (
        "train:net=",
        "nets/config.json",
        ",batch=2",
    )


@pytest.mark.parametrize(
    ("config", "line"),
    [
        ({"architectures": ["x"]}, "is no Hugging Face configuration: it has no key model_type"),
        ({"model_type": "lama"}, "model_type = 'lama' is not known; do you mean llama?"),
        ({"model_type": "llama", "hidden_size": "4096"}, "hidden_size = '4096' must be a whole number"),
        (
            {"model_type": "llama", "num_attention_heads": 7},
            "num_attention_heads = 7 must divide hidden_size",
        ),
        ({"model_type": "llama", "num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000 must not be"),
        (
            {"model_type": "llama", "hidden_act": "sine"},
            "hidden_act = 'sine' is not known; known are silu, swish",
        ),
        ({"model_type": "llama", "attention_bias": True}, "attention_bias and mlp_bias must be equal"),
        ({"model_type": "llama", "num_key_value_heads": 5}, "attention: kv = 5 must divide heads = 32"),
        ({"model_type": "mixtral", "num_experts_per_tok": 9}, "num_experts_per_tok = 9 must not be above 8"),
        ({"model_type": "qwen3_moe", "mlp_only_layers": [1]}, "layers without experts among those with"),
        ({"model_type": "gemma2", "layer_types": ["x"]}, "layer_types must name the kind of each of the 26"),
        ({"model_type": "gpt2", "n_positions": 8}, "context = 9 must not be above 8, the positions"),
        ({"model_type": "whisper", "max_target_positions": 8}, "context = 9 must not be above max_target"),
        ({"model_type": "vit"}, "vit takes neither phase nor context"),
    ],
)
def test_a_wrong_configuration_is_one_line(config: dict[str, Any], line: str, tmp_path: Path) -> None:
    path = written(tmp_path, config)
    with pytest.raises(WorkloadError) as caught:
        huggingface(path, context=9)
    assert str(caught.value).startswith(f"{path}: ")
    assert line in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1

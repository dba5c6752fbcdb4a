"""Architectures that people bring, random weights, small where a full one would be slow: the operators are
those of the full network.

NETS: name -> (module, inputs of a batch). Each module takes tensors and gives a tensor, or several.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

try:
    import torchvision
# a build for another torch: its compiled operators are missing, of which no network here uses one
except RuntimeError:
    _library = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _library.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision
import transformers as hf
from torchvision.models import resnet, segmentation
from torchvision.models import vision_transformer as vit
from torchvision.models.video import resnet as video

Net = tuple[Any, Callable[[int], tuple[Any, ...]]]


def image(size: int, channels: int = 3) -> Callable[[int], tuple[Any, ...]]:
    return lambda batch: (torch.randn(batch, channels, size, size),)


def tokens(length: int, words: int = 100) -> Callable[[int], tuple[Any, ...]]:
    return lambda batch: (torch.randint(2, words, (batch, length)),)


MASKED = ("input_ids", "attention_mask")


def masked(length: int) -> Callable[[int], tuple[Any, ...]]:
    return lambda batch: (torch.randint(2, 100, (batch, length)), torch.ones(batch, length, dtype=torch.long))


class Only(nn.Module):
    """One output of a model of transformers, its caches off; more: further keyword arguments."""

    def __init__(
        self, model: Any, out: str = "last_hidden_state", names: tuple[str, ...] = ("input_ids",), **more: Any
    ) -> None:
        super().__init__()
        self.model, self.out, self.names, self.more = model, out, names, more

    def forward(self, *given: Any) -> Any:
        return getattr(self.model(**dict(zip(self.names, given, strict=True)), **self.more), self.out)


class Detr(nn.Module):
    """Carion et al. 2020 in its short form: a backbone, a transformer with learned queries, two heads."""

    def __init__(self, width: int = 32, queries: int = 10) -> None:
        super().__init__()
        self.backbone = nn.Sequential(*list(resnet.ResNet(resnet.BasicBlock, [1, 1, 1, 1]).children())[:-2])
        self.narrow = nn.Conv2d(512, width, 1)
        self.transformer = nn.Transformer(width, 4, 2, 2, 64, batch_first=True)
        self.rows, self.columns = (
            nn.Parameter(torch.rand(10, width // 2)),
            nn.Parameter(torch.rand(10, width // 2)),
        )
        self.queries = nn.Parameter(torch.rand(queries, width))
        self.classes, self.boxes = nn.Linear(width, 21), nn.Linear(width, 4)

    def forward(self, x: Any) -> Any:
        h = self.narrow(self.backbone(x))
        tall, wide = h.shape[-2:]
        where = torch.cat(
            [
                self.columns[:wide].unsqueeze(0).repeat(tall, 1, 1),
                self.rows[:tall].unsqueeze(1).repeat(1, wide, 1),
            ],
            -1,
        )
        out = self.transformer(
            where.flatten(0, 1).unsqueeze(0) + h.flatten(2).transpose(1, 2),
            self.queries.unsqueeze(0).repeat(x.shape[0], 1, 1),
        )
        return self.classes(out), self.boxes(out).sigmoid()


class UNet(nn.Module):
    """Ronneberger et al. 2015: two steps down, two up, by transposed convolutions."""

    def __init__(self) -> None:
        super().__init__()

        def block(i: int, o: int) -> Any:
            return nn.Sequential(
                nn.Conv2d(i, o, 3, padding=1),
                nn.BatchNorm2d(o),
                nn.ReLU(inplace=True),
                nn.Conv2d(o, o, 3, padding=1),
                nn.ReLU(inplace=True),
            )

        self.a, self.b, self.c = block(3, 8), block(8, 16), block(16, 32)
        self.up1, self.d, self.up2, self.e = (
            nn.ConvTranspose2d(32, 16, 2, 2),
            block(32, 16),
            nn.ConvTranspose2d(16, 8, 2, 2),
            block(16, 8),
        )
        self.out = nn.Conv2d(8, 2, 1)

    def forward(self, x: Any) -> Any:
        a = self.a(x)
        b = self.b(nn.functional.max_pool2d(a, 2))
        c = self.c(nn.functional.max_pool2d(b, 2))
        d = self.d(torch.cat([self.up1(c), b], 1))
        return self.out(self.e(torch.cat([self.up2(d), a], 1)))


class Tagger(nn.Module):
    """Words -> a recurrent layer, both ways -> a class per word."""

    def __init__(self, kind: Any, layers: int = 2, both: bool = True, batch_first: bool = True) -> None:
        super().__init__()
        self.words, self.cell = (
            nn.Embedding(100, 12),
            kind(12, 20, layers, batch_first=batch_first, bidirectional=both),
        )
        self.out, self.batch_first = nn.Linear(40 if both else 20, 7), batch_first

    def forward(self, ids: Any) -> Any:
        x = self.words(ids)
        y = self.cell(x if self.batch_first else x.transpose(0, 1))[0]
        return self.out(y)


class Quantised(nn.Module):
    """A residual network whose tensors are int8 between the products, as a quantiser leaves it (Q and DQ
    around each operator).
    """

    class Conv(nn.Module):
        def __init__(self, i: int, o: int, k: int, stride: int = 1) -> None:
            super().__init__()
            self.register_buffer("w", torch.randint(-127, 127, (o, i, k, k), dtype=torch.int8))
            self.bias, self.stride, self.pad = nn.Parameter(torch.zeros(o)), stride, k // 2

        def forward(self, x: Any) -> Any:
            w = torch.ops.quantized_decomposed.dequantize_per_tensor(self.w, 0.1, 0, -127, 127, torch.int8)
            return nn.functional.conv2d(x, w, self.bias, self.stride, self.pad)

    def __init__(self) -> None:
        super().__init__()
        from torch.ao.quantization.fx import _decomposed  # noqa: F401

        c = Quantised.Conv
        self.stem, self.a1, self.a2, self.b1, self.b2, self.down = (
            c(3, 8, 3, 2),
            c(8, 8, 3),
            c(8, 8, 3),
            c(8, 16, 3, 2),
            c(16, 16, 3),
            c(8, 16, 1, 2),
        )
        self.register_buffer("w", torch.randint(-127, 127, (10, 16), dtype=torch.int8))

    def forward(self, x: Any) -> Any:
        def q(x: Any) -> Any:
            ops, how = torch.ops.quantized_decomposed, (0.1, 0, -128, 127, torch.int8)
            return ops.dequantize_per_tensor(ops.quantize_per_tensor(x, *how), *how)

        relu = nn.functional.relu
        x = q(relu(self.stem(q(x))))
        x = q(relu(self.a2(q(relu(self.a1(x)))) + x))
        x = q(relu(q(self.b2(q(relu(self.b1(x))))) + q(self.down(x))))
        w = torch.ops.quantized_decomposed.dequantize_per_tensor(self.w, 0.1, 0, -127, 127, torch.int8)
        return nn.functional.linear(q(x.averaged((2, 3))), w)


def _fake_quantised() -> Any:
    """The same in operators that the ONNX exporters know."""

    class Conv(nn.Module):
        def __init__(self, i: int, o: int, k: int, stride: int = 1) -> None:
            super().__init__()
            self.conv = nn.Conv2d(i, o, k, stride, k // 2)

        def forward(self, x: Any) -> Any:
            w = torch.fake_quantize_per_tensor_affine(self.conv.weight, 0.1, 0, -128, 127)
            return torch.fake_quantize_per_tensor_affine(
                nn.functional.conv2d(x, w, self.conv.bias, self.conv.stride, self.conv.padding).relu(),
                0.1,
                0,
                -128,
                127,
            )

    class Whole(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.a, self.b, self.head = (
                Conv(3, 8, 3, 2),
                Conv(8, 8, 3),
                Conv(8, 8, 3),
                nn.Linear(8, 10),
            )

        def forward(self, x: Any) -> Any:
            x = self.stem(torch.fake_quantize_per_tensor_affine(x, 0.1, 0, -128, 127))
            return self.head((x + self.b(self.a(x))).averaged((2, 3)))

    return Whole()


def _bert() -> Any:
    return hf.BertModel(
        hf.BertConfig(
            vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64
        )
    )


def _gpt2() -> Any:
    return hf.GPT2LMHeadModel(
        hf.GPT2Config(vocab_size=100, n_embd=32, n_layer=2, n_head=4, n_positions=64, use_cache=False)
    )


LLAMA = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "use_cache": False,
}
T5 = {
    "vocab_size": 100,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_decoder_layers": 2,
    "num_heads": 4,
    "use_cache": False,
    "decoder_start_token_id": 0,
    "pad_token_id": 0,
}
WHISPER = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "num_mel_bins": 16,
    "max_source_positions": 20,
    "vocab_size": 100,
    "max_target_positions": 16,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}
VIT = {
    "image_size": 64,
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
}

ZERO_STATES = ("lstm", "gru")  # a first state of zeros is multiplied like any other
NETS: dict[str, Callable[[], Net]] = {
    "resnet": lambda: (resnet.ResNet(resnet.Bottleneck, [2, 2, 1, 1], width_per_group=16), image(64)),
    "mobilenet_v3": lambda: (torchvision.models.mobilenet_v3_small(), image(64)),
    "efficientnet_b0": lambda: (torchvision.models.efficientnet_b0(), image(64)),
    "convnext": lambda: (
        torchvision.models.convnext.ConvNeXt(
            [
                torchvision.models.convnext.CNBlockConfig(16, 32, 2),
                torchvision.models.convnext.CNBlockConfig(32, None, 2),
            ]
        ),
        image(64),
    ),
    "swin": lambda: (torchvision.models.SwinTransformer([4, 4], 16, [2, 2], [2, 4], [4, 4]), image(48)),
    "vit": lambda: (vit.VisionTransformer(64, 16, 2, 4, 48, 96), image(64)),
    "densenet": lambda: (torchvision.models.DenseNet(8, (2, 2, 2, 2), 16), image(64)),
    "shufflenet_v2": lambda: (torchvision.models.shufflenet_v2_x0_5(), image(64)),
    "googlenet": lambda: (torchvision.models.googlenet(aux_logits=False, init_weights=False), image(64)),
    "regnet": lambda: (torchvision.models.regnet_y_400mf(), image(64)),
    "deeplab_v3": lambda: (_segments(), image(64)),
    "resnet_3d": lambda: (_clips(), lambda n: (torch.randn(n, 3, 4, 32, 32),)),
    "detr": lambda: (Detr(), image(96)),
    "unet": lambda: (UNet(), image(32)),
    "bert": lambda: (Only(_bert(), "pooler_output", MASKED), masked(12)),
    "gpt2": lambda: (Only(_gpt2(), "logits", MASKED), masked(12)),
    "llama": lambda: (Only(hf.LlamaForCausalLM(hf.LlamaConfig(**LLAMA)), "logits", MASKED), masked(12)),
    "mixtral": lambda: (
        Only(
            hf.MixtralForCausalLM(
                hf.MixtralConfig(**LLAMA, num_local_experts=4, experts_implementation="batched_mm")
            ),
            "logits",
            MASKED,
        ),
        masked(12),
    ),
    "t5": lambda: (
        Only(hf.T5ForConditionalGeneration(hf.T5Config(**T5)), "logits", ("input_ids", "decoder_input_ids")),
        lambda n: (torch.randint(2, 100, (n, 12)), torch.randint(2, 100, (n, 5))),
    ),
    "whisper": lambda: (
        Only(hf.WhisperModel(hf.WhisperConfig(**WHISPER)).encoder, names=("input_features",)),
        lambda n: (torch.randn(n, 16, 40),),
    ),
    "mamba": lambda: (
        Only(
            hf.MambaModel(hf.MambaConfig(vocab_size=100, hidden_size=32, state_size=4, num_hidden_layers=2)),
            use_cache=False,
        ),
        tokens(6),
    ),
    "clip_text": lambda: (
        Only(
            hf.CLIPTextModel(
                hf.CLIPTextConfig(
                    vocab_size=100,
                    hidden_size=32,
                    intermediate_size=64,
                    num_hidden_layers=2,
                    num_attention_heads=4,
                    eos_token_id=1,
                )
            ),
            "pooler_output",
        ),
        tokens(12),
    ),
    "wav2vec2": lambda: (
        Only(
            hf.Wav2Vec2Model(
                hf.Wav2Vec2Config(
                    hidden_size=32,
                    num_hidden_layers=2,
                    num_attention_heads=4,
                    intermediate_size=64,
                    conv_dim=(16,) * 3,
                    conv_stride=(5, 2, 2),
                    conv_kernel=(10, 3, 3),
                    num_feat_extract_layers=3,
                    num_conv_pos_embeddings=16,
                    num_conv_pos_embedding_groups=4,
                    vocab_size=32,
                )
            ),
            names=("input_values",),
        ),
        lambda n: (torch.randn(n, 800),),
    ),
    "lstm": lambda: (Tagger(nn.LSTM), tokens(9)),
    "gru": lambda: (Tagger(nn.GRU, both=False), tokens(9)),
    "quantised": lambda: (Quantised(), image(32)),
    "fake_quantised": lambda: (_fake_quantised(), image(32)),
}


def _clips() -> Any:
    return video.VideoResNet(video.BasicBlock, [video.Conv2Plus1D] * 4, [1, 1, 1, 1], video.R2Plus1dStem)


def _segments() -> Any:
    class Out(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = segmentation.lraspp_mobilenet_v3_large(weights=None, weights_backbone=None)

        def forward(self, x: Any) -> Any:
            return self.net(x)["out"]

    return Out()

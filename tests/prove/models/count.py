"""Multiplications of a torch module, seen at the dispatcher while it runs: nothing of the readers is used,
and no exporter.

What depends on no input of the module (tables of positions, products of parameters alone) is computed once
before a run and counted apart.
"""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Counter(TorchDispatchMode):
    """macs: of what depends on the inputs; constant: of the rest. A storage that an operator with a varying
    operand wrote varies.
    """

    def __init__(self, inputs: Any) -> None:
        super().__init__()
        # so that no storage is used again
        self.kept = [t for t in tree_leaves(inputs) if isinstance(t, torch.Tensor)]
        self.varying = {t.untyped_storage()._cdata for t in self.kept}
        self.macs = self.constant = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        made = [t for t in tree_leaves(out) if isinstance(t, torch.Tensor)]
        self.kept += made
        varies = any(t.untyped_storage()._cdata in self.varying for t in tensors)
        if varies:
            written = [
                a
                for a, s in zip(args, func._schema.arguments, strict=False)
                if s.alias_info and s.alias_info.is_write and isinstance(a, torch.Tensor)
            ]
            self.varying |= {t.untyped_storage()._cdata for t in (*made, *written)}
        n = products(func._schema.name, args, out)
        self.macs, self.constant = self.macs + n * varies, self.constant + n * (not varies)
        return out


def products(name: str, args: Any, out: Any) -> int:
    match name:
        case "aten::mm" | "aten::bmm" | "aten::mv":
            return int(out.numel() * args[0].shape[-1])
        case "aten::addmm" | "aten::baddbmm" | "aten::addmv" | "aten::addbmm":
            return int(args[1].numel() * (args[2].shape[-1] if args[2].dim() > 1 else 1))
        case "aten::dot" | "aten::vdot":
            return int(args[0].numel())
        case "aten::convolution" | "aten::_convolution":
            x, w, transposed = args[0], args[1], args[6]
            return int((x if transposed else out).numel() * prod(w.shape[1:]))
    if (
        any(
            word in name
            for word in ("attention", "mkldnn", "lstm", "gru", "_mm", "matmul", "linear", "cdist", "onednn")
        )
        and "upsample" not in name
    ):
        raise NotImplementedError(f"{name} is not counted")
    return 0


def count(module: Any, inputs: tuple[Any, ...]) -> tuple[int, int]:
    """(MACs of what varies with the inputs, MACs of constants)."""
    torch.backends.mha.set_fastpath_enabled(False)
    with (
        torch.no_grad(),
        torch.backends.mkldnn.flags(enabled=False),
        sdpa_kernel(SDPBackend.MATH),
        Counter(inputs) as counter,
    ):
        module(*inputs)
    return counter.macs, counter.constant

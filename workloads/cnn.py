"""Operators of convolutional networks as cascades of einsums: convolutions, pooling, element-wise, batch normalisation.

Ranks: n batch, g groups, k filters and c channels of a group, p q o outputs and r s t kernel of the up to three spatial dimensions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from workloads.einsum import Einsum, WorkloadError, einsum
from workloads.operators import KERNEL, OUT

Cascade = tuple[Einsum, ...]
Windows = Sequence[tuple[int, int]]  # (outputs, kernel) of every spatial dimension


def conv1d(k: int, c: int, p: int, r: int, stride: int = 1, dilation: int = 1, groups: int = 1, n: int = 1, pad: int = 0) -> Cascade:
    """As `conv`, over one dimension."""
    return _convolution("conv1d", (n, groups, k, c), [(p, r)], stride, dilation, pad)


def conv(k: int, c: int, p: int, q: int, r: int, s: int, stride: int = 1, dilation: int = 1, groups: int = 1, n: int = 1, pad: int = 0) -> Cascade:
    """Convolution by its output size p x q; k and c count all groups. pad: zeros before and after, which are not stored.

    The input is as small as the output allows: (p - 1) * stride + (r - 1) * dilation + 1 - 2 * pad.
    """
    return _convolution("conv", (n, groups, k, c), [(p, r), (q, s)], stride, dilation, pad)


def conv3d(k: int, c: int, p: int, q: int, o: int, r: int, s: int, t: int, stride: int = 1, dilation: int = 1, groups: int = 1, n: int = 1,
           pad: int = 0) -> Cascade:
    """As `conv`, over three dimensions: output p x q x o, kernel r x s x t."""
    return _convolution("conv3d", (n, groups, k, c), [(p, r), (q, s), (o, t)], stride, dilation, pad)


def depthwise(c: int, p: int, q: int, r: int, s: int, stride: int = 1, dilation: int = 1, n: int = 1, pad: int = 0) -> Cascade:
    """As `conv`, one filter per channel."""
    return _convolution("depthwise", (n, c, c, c), [(p, r), (q, s)], stride, dilation, pad)


def conv_transpose(k: int, c: int, p: int, q: int, r: int, s: int, stride: int = 1, dilation: int = 1, groups: int = 1, n: int = 1, pad: int = 0,
                   output_pad: int = 0) -> Cascade:
    """Transposed convolution by its **input** size p x q: each input element is spread over a window of the output.

    pad: rows and columns cropped off every border; output_pad: kept of the last ones, as in PyTorch and ONNX. The output has
    (p - 1) * stride + (r - 1) * dilation + 1 - 2 * pad + output_pad rows.
    """
    faults = _group_faults("conv_transpose", groups, k, c)
    image = [size + output_pad for size in _image([(p, r), (q, s)], stride, dilation, pad)]
    if min(image) < 1:
        faults.append(f"conv_transpose: pad = {pad} leaves an output of {_by(image)}; it must be at least 1 x 1")
    if output_pad >= max(stride, dilation):
        faults.append(f"conv_transpose: output_pad = {output_pad} must be below stride = {stride} or dilation = {dilation}")
    if faults:
        raise WorkloadError("\n".join(faults))
    text = f"O[n,g,k,{_index(2, stride, dilation, pad)}] += I[n,g,c,p,q] * W[g,c,k,r,s]"
    extents = {"n": n, "g": groups, "k": k // groups, "c": c // groups, "p": p, "q": q, "r": r, "s": s}
    return (einsum(text, extents, "conv_transpose", sizes={"O": (n, groups, k // groups, *image)}),)


def pool(c: int, p: int, q: int, r: int, s: int, kind: Literal["max", "average"] = "max", stride: int = 1, n: int = 1, pad: int = 0) -> Cascade:
    """Pooling by its output size p x q. An average is a sum: its factor 1 / (r * s) rides on the output."""
    image = _image([(p, r), (q, s)], stride, 1, pad)
    if min(image) < 1:
        raise WorkloadError(f"pool: pad = {pad} leaves an input of {_by(image)}; it must be at least 1 x 1")
    text = f"O[n,c,p,q] {'max=' if kind == 'max' else '+='} I[n,c,{_index(2, stride, 1, pad)}]"
    return (einsum(text, {"n": n, "c": c, "p": p, "q": q, "r": r, "s": s}, "pool", sizes={"I": (n, c, *image)}),)


def unary(n: int, function: Literal["relu", "sigmoid", "tanh", "gelu", "silu", "exp"] = "relu") -> Cascade:
    return (einsum(f"Y[n] = {function}(X[n])", {"n": n}, "unary"),)


def binary(n: int, rows: int = 1, function: Literal["add", "sub", "mul", "div", "max"] = "add") -> Cascade:
    """A function of two operands of n elements; the second is the same for every row of the first."""
    return (einsum(f"Y[m,n] = {function}(A[m,n], B[n])", {"m": rows, "n": n}, "binary"),)


def batchnorm(c: int, p: int, q: int, n: int = 1, phase: Literal["inference", "training"] = "inference") -> Cascade:
    """Normalisation of each channel, G its scale and B its shift. Inference: by the running mean M and variance V.

    Training: by the batch's own, in two passes; M and V are sums whose factor 1 / (n * p * q) rides on the output.
    """
    extents = {"n": n, "c": c, "p": p, "q": q}
    if phase == "inference":
        return (einsum("Y[n,c,p,q] = batchnorm(X[n,c,p,q], G[c], B[c], M[c], V[c])", extents, "batchnorm"),)
    texts = ("M[c] += X[n,c,p,q]", "D[n,c,p,q] = sub(X[n,c,p,q], M[c])", "V[c] += square(D[n,c,p,q])", "R[c] = rsqrt(V[c])",
             "Y[n,c,p,q] = normalize(D[n,c,p,q], R[c], G[c], B[c])")
    return tuple(einsum(text, extents) for text in texts)


def _convolution(name: str, sizes: tuple[int, int, int, int], windows: Windows, stride: int, dilation: int, pad: int) -> Cascade:
    """sizes: batch, groups, filters, channels."""
    n, groups, k, c = sizes
    faults, image = _group_faults(name, groups, k, c), _image(windows, stride, dilation, pad)
    if min(image) < 1:
        faults.append(f"{name}: pad = {pad} leaves an input of {_by(image)}; it must be at least {_by([1] * len(image))}")
    if faults:
        raise WorkloadError("\n".join(faults))
    out, kernel = OUT[:len(windows)], KERNEL[:len(windows)]
    text = f"O[n,g,k,{','.join(out)}] += I[n,g,c,{_index(len(windows), stride, dilation, pad)}] * W[g,k,c,{','.join(kernel)}]"
    extents = {"n": n, "g": groups, "k": k // groups, "c": c // groups}
    extents |= dict(zip(out + kernel, (*(p for p, _ in windows), *(r for _, r in windows)), strict=True))
    return (einsum(text, extents, name, sizes={"I": (n, groups, c // groups, *image)}),)


def _group_faults(name: str, groups: int, k: int, c: int) -> list[str]:
    return [f"{name}: groups = {groups} must divide k = {k} and c = {c}"] if k % groups or c % groups else []


def _index(dims: int, stride: int, dilation: int, pad: int) -> str:
    return ",".join(f"{stride}*{OUT[i]}+{dilation}*{KERNEL[i]}-{pad}" for i in range(dims))


def _image(windows: Windows, stride: int, dilation: int, pad: int) -> list[int]:
    """Size of what the windows reach, without the padding."""
    return [(p - 1) * stride + (r - 1) * dilation + 1 - 2 * pad for p, r in windows]


def _by(image: Sequence[int]) -> str:
    return " x ".join(map(str, image))

"""Convolutional networks, and their operators as cascades of einsums: convolutions, pooling, element-wise
functions, batch normalisation.

Ranks: n batch, g groups, k filters and c channels of a group; p, q, o outputs and r, s, t kernel along up to
three spatial dimensions. Longer than most files, as it has one function per network.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from workloads.einsum import einsum, refuse
from workloads.graph import Workload
from workloads.layers import (
    Cascade,
    Map,
    Net,
    add,
    cascade,
    concat,
    dense,
    global_pool,
    lrn,
    network,
    softmax,
    upconv,
)
from workloads.layers import conv as layer
from workloads.layers import pool as pooled
from workloads.operators import KERNEL_RANKS, OUT_RANKS

Windows = Sequence[tuple[int, int]]  # (outputs, kernel) of every spatial dimension


def conv1d(
    k: int,
    c: int,
    p: int,
    r: int,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    n: int = 1,
    pad: int = 0,
) -> Cascade:
    """As `conv`, over one dimension."""
    return _convolution("conv1d", (n, groups, k, c), [(p, r)], stride, dilation, pad)


def conv(
    k: int,
    c: int,
    p: int,
    q: int,
    r: int,
    s: int,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    n: int = 1,
    pad: int = 0,
) -> Cascade:
    """Convolution by its output size p x q. k and c are those of all groups together. pad: zeros before and
    after, which are not stored.

    The input is the smallest one for this output: (p - 1) * stride + (r - 1) * dilation + 1 - 2 * pad rows.
    """
    return _convolution("conv", (n, groups, k, c), [(p, r), (q, s)], stride, dilation, pad)


def conv3d(
    k: int,
    c: int,
    p: int,
    q: int,
    o: int,
    r: int,
    s: int,
    t: int,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    n: int = 1,
    pad: int = 0,
) -> Cascade:
    """As `conv`, over three dimensions: output p x q x o, kernel r x s x t."""
    return _convolution("conv3d", (n, groups, k, c), [(p, r), (q, s), (o, t)], stride, dilation, pad)


def depthwise(
    c: int, p: int, q: int, r: int, s: int, stride: int = 1, dilation: int = 1, n: int = 1, pad: int = 0
) -> Cascade:
    """As `conv`, one filter per channel."""
    return _convolution("depthwise", (n, c, c, c), [(p, r), (q, s)], stride, dilation, pad)


def conv_transpose(
    k: int,
    c: int,
    p: int,
    q: int,
    r: int,
    s: int,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    n: int = 1,
    pad: int = 0,
    output_pad: int = 0,
) -> Cascade:
    """Transposed convolution by its **input** size p x q: each input element is spread over a window of the
    output.

    pad: rows and columns cropped off every border
    output_pad: how many of those at the end are not cropped after all, as in PyTorch and ONNX

    The output has (p - 1) * stride + (r - 1) * dilation + 1 - 2 * pad +
    output_pad rows.
    """
    return _transposed(
        "conv_transpose", (n, groups, k, c), [(p, r), (q, s)], stride, dilation, pad, output_pad
    )


def conv_transpose3d(
    k: int,
    c: int,
    p: int,
    q: int,
    o: int,
    r: int,
    s: int,
    t: int,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    n: int = 1,
    pad: int = 0,
    output_pad: int = 0,
) -> Cascade:
    """As `conv_transpose`, over three dimensions: input p x q x o, kernel r x s x t."""
    windows = [(p, r), (q, s), (o, t)]
    return _transposed("conv_transpose3d", (n, groups, k, c), windows, stride, dilation, pad, output_pad)


def pool(
    c: int,
    p: int,
    q: int,
    r: int,
    s: int,
    kind: Literal["max", "average"] = "max",
    stride: int = 1,
    n: int = 1,
    pad: int = 0,
) -> Cascade:
    """Pooling by its output size p x q. An average is a sum: its factor 1 / (r * s) is fused into the
    output."""
    image = _image([(p, r), (q, s)], stride, 1, pad)
    refuse(_pad_faults("pool", pad, "input", image))
    text = f"O[n,c,p,q] {'max=' if kind == 'max' else '+='} I[n,c,{_index(2, stride, 1, pad)}]"
    extents = {"n": n, "c": c, "p": p, "q": q, "r": r, "s": s}
    return (einsum(text, extents, "pool", sizes={"I": (n, c, *image)}),)


def unary(n: int, function: Literal["relu", "sigmoid", "tanh", "gelu", "silu", "exp"] = "relu") -> Cascade:
    """An element-wise function of n elements."""
    return (einsum(f"Y[n] = {function}(X[n])", {"n": n}, "unary"),)


def binary(n: int, rows: int = 1, function: Literal["add", "sub", "mul", "div", "max"] = "add") -> Cascade:
    """A function of two operands: rows of n elements, and n elements that are the same for every row."""
    return (einsum(f"Y[m,n] = {function}(A[m,n], B[n])", {"m": rows, "n": n}, "binary"),)


def batchnorm(
    c: int, p: int, q: int, n: int = 1, phase: Literal["inference", "training"] = "inference"
) -> Cascade:
    """Normalisation of each channel, G its scale and B its shift. Inference: by the running mean M and
    variance V.

    Training: by the batch's own, in two passes; M and V are sums whose factor 1 / (n * p * q) is fused into
    the output.
    """
    extents = {"n": n, "c": c, "p": p, "q": q}
    if phase == "inference":
        return (einsum("Y[n,c,p,q] = batchnorm(X[n,c,p,q], G[c], B[c], M[c], V[c])", extents, "batchnorm"),)
    return cascade(
        extents,
        "M[c] += X[n,c,p,q]",
        "D[n,c,p,q] = sub(X[n,c,p,q], M[c])",
        "V[c] += square(D[n,c,p,q])",
        "R[c] = rsqrt(V[c])",
        "Y[n,c,p,q] = normalize(D[n,c,p,q], R[c], G[c], B[c])",
    )


def _convolution(
    name: str, sizes: tuple[int, int, int, int], windows: Windows, stride: int, dilation: int, pad: int
) -> Cascade:
    """Returns a convolution over len(windows) dimensions. sizes: batch, groups, filters, channels."""
    n, groups, k, c = sizes
    image = _image(windows, stride, dilation, pad)
    refuse(_group_faults(name, groups, k, c) + _pad_faults(name, pad, "input", image))
    out, kernel = OUT_RANKS[: len(windows)], KERNEL_RANKS[: len(windows)]
    text = (
        f"O[n,g,k,{','.join(out)}] += I[n,g,c,{_index(len(windows), stride, dilation, pad)}] * "
        f"W[g,k,c,{','.join(kernel)}]"
    )
    extents = {"n": n, "g": groups, "k": k // groups, "c": c // groups}
    extents |= dict(zip(out + kernel, (*(p for p, _ in windows), *(r for _, r in windows)), strict=True))
    return (einsum(text, extents, name, sizes={"I": (n, groups, c // groups, *image)}),)


def _transposed(
    name: str,
    sizes: tuple[int, int, int, int],
    windows: Windows,
    stride: int,
    dilation: int,
    pad: int,
    output_pad: int,
) -> Cascade:
    """Returns a transposed convolution. sizes: batch, groups, filters, channels; windows: (input, kernel)."""
    n, groups, k, c = sizes
    faults = _group_faults(name, groups, k, c)
    image = [size + output_pad for size in _image(windows, stride, dilation, pad)]
    faults += _pad_faults(name, pad, "output", image)
    if output_pad >= max(stride, dilation):
        faults.append(
            f"{name}: output_pad = {output_pad} must be below stride = {stride} or dilation = {dilation}"
        )
    refuse(faults)
    across, kernel = (",".join(ranks[: len(windows)]) for ranks in (OUT_RANKS, KERNEL_RANKS))
    index = _index(len(windows), stride, dilation, pad)
    extents = {"n": n, "g": groups, "k": k // groups, "c": c // groups}
    extents |= dict(zip(OUT_RANKS, (one for one, _ in windows), strict=False))
    extents |= dict(zip(KERNEL_RANKS, (one for _, one in windows), strict=False))
    text = f"O[n,g,k,{index}] += I[n,g,c,{across}] * W[g,c,k,{kernel}]"
    return (einsum(text, extents, name, sizes={"O": (n, groups, k // groups, *image)}),)


def _group_faults(name: str, groups: int, k: int, c: int) -> list[str]:
    return [f"{name}: groups = {groups} must divide k = {k} and c = {c}"] if k % groups or c % groups else []


def _pad_faults(name: str, pad: int, what: str, image: Sequence[int]) -> list[str]:
    if min(image) >= 1:
        return []
    left, minimum = (" x ".join(map(str, sizes)) for sizes in (image, [1] * len(image)))
    return [f"{name}: pad = {pad} leaves an {what} of {left}; it must be at least {minimum}"]


def _index(dims: int, stride: int, dilation: int, pad: int) -> str:
    return ",".join(f"{stride}*{OUT_RANKS[i]}+{dilation}*{KERNEL_RANKS[i]}-{pad}" for i in range(dims))


def _image(windows: Windows, stride: int, dilation: int, pad: int) -> list[int]:
    """Size of the image that the windows cover, without the padding."""
    return [(p - 1) * stride + (r - 1) * dilation + 1 - 2 * pad for p, r in windows]


# Networks. image: rows and columns of the input. Classifiers end in a softmax, as the ONNX models do.


def _image_map(batch: int, image: int, channels: int = 3) -> Map:
    return Map("image", (batch, channels, image, image))


def _classifier(name: str, net: Net, x: Map, classes: int, hidden: int = 0) -> Workload:
    """Returns the network that ends in a softmax of classes. hidden: units of two layers fc6 and fc7 before
    it; 0: there are none.
    """
    for fc in ("fc6", "fc7") if hidden else ():
        x = dense(net, fc, x, hidden, "relu")
    softmax(net, "prob", dense(net, "fc8" if hidden else "fc", x, classes))
    return network(name, net, {"image"})


def alexnet(batch: int = 1, image: int = 224, classes: int = 1000) -> Workload:
    """Krizhevsky et al. 2012 as distributed with Caffe: convolutions in two groups, no padding of the first
    one. The paper's 55 x 55 maps come with image=227.
    """
    net: Net = []
    x = layer(net, "conv1", _image_map(batch, image), 96, 11, 4, act="relu")
    x = pooled(net, "pool1", lrn(net, "norm1", x), 3, 2)
    x = layer(net, "conv2", x, 256, 5, pad=2, groups=2, act="relu")
    x = pooled(net, "pool2", lrn(net, "norm2", x), 3, 2)
    x = layer(net, "conv3", x, 384, 3, pad=1, act="relu")
    x = layer(net, "conv4", x, 384, 3, pad=1, groups=2, act="relu")
    x = layer(net, "conv5", x, 256, 3, pad=1, groups=2, act="relu")
    x = pooled(net, "pool5", x, 3, 2, round_up=True)
    return _classifier("alexnet", net, x, classes, hidden=4096)


def _vgg(name: str, convs: Sequence[int], batch: int, image: int, classes: int) -> Workload:
    net: Net = []
    x = _image_map(batch, image)
    for i, (count, filters) in enumerate(zip(convs, (64, 128, 256, 512, 512), strict=True), 1):
        for j in range(1, count + 1):
            x = layer(net, f"conv{i}_{j}", x, filters, 3, pad=1, act="relu")
        x = pooled(net, f"pool{i}", x, 2, 2)
    return _classifier(name, net, x, classes, hidden=4096)


def vgg16(batch: int = 1, image: int = 224, classes: int = 1000) -> Workload:
    """Simonyan and Zisserman 2015, configuration D."""
    return _vgg("vgg16", (2, 2, 3, 3, 3), batch, image, classes)


def vgg19(batch: int = 1, image: int = 224, classes: int = 1000) -> Workload:
    """Simonyan and Zisserman 2015, configuration E."""
    return _vgg("vgg19", (2, 2, 4, 4, 4), batch, image, classes)


# filters: 1x1, 3x3 reduce, 3x3, 5x5 reduce, 5x5, pool projection (Szegedy et al. 2015, table 1)
INCEPTION = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}


def googlenet(batch: int = 1, image: int = 224, classes: int = 1000) -> Workload:
    """Szegedy et al. 2015 (Inception v1) without auxiliary heads.

    Pooling rounds down, as in the ONNX model: maps of 55, 27, 13 and 6 rows (in the paper 56, 28, 14 and 7).
    So the last window of 7 x 7 covers a map of 6 x 6 and one row and column of padding.
    """
    net: Net = []
    x = pooled(net, "pool1", layer(net, "conv1", _image_map(batch, image), 64, 7, 2, 3, act="relu"), 3, 2)
    x = layer(net, "conv2_reduce", lrn(net, "norm1", x), 64, 1, act="relu")
    x = pooled(net, "pool2", lrn(net, "norm2", layer(net, "conv2", x, 192, 3, pad=1, act="relu")), 3, 2)
    for block, (f1, r3, f3, r5, f5, proj) in INCEPTION.items():
        if block in ("4a", "5a"):
            x = pooled(net, f"pool{int(block[0]) - 1}", x, 3, 2)
        ones = layer(net, f"i{block}_1x1", x, f1, 1, act="relu")
        threes = layer(net, f"i{block}_3x3_reduce", x, r3, 1, act="relu")
        threes = layer(net, f"i{block}_3x3", threes, f3, 3, pad=1, act="relu")
        fives = layer(net, f"i{block}_5x5_reduce", x, r5, 1, act="relu")
        fives = layer(net, f"i{block}_5x5", fives, f5, 5, pad=2, act="relu")
        projected = pooled(net, f"i{block}_pool", x, 3, 1, 1)
        projected = layer(net, f"i{block}_proj", projected, proj, 1, act="relu")
        x = concat(net, f"i{block}", (ones, threes, fives, projected))
    return _classifier("googlenet", net, global_pool(net, "pool5", x, pad_after=1), classes)


def _resnet(
    name: str, blocks: Sequence[int], bottleneck: bool, batch: int, image: int, classes: int
) -> Workload:
    net: Net = []
    x = layer(net, "conv1", _image_map(batch, image), 64, 7, 2, 3, norm=True, act="relu")
    x = _residual_stages(net, pooled(net, "pool1", x, 3, 2, 1), blocks, bottleneck)
    return _classifier(name, net, global_pool(net, "pool5", x), classes)


def _residual_stages(net: Net, x: Map, blocks: Sequence[int], bottleneck: bool) -> Map:
    """Adds residual blocks, over any number of dimensions. blocks: how many each stage has; every stage but
    the first begins with stride 2.
    """
    for stage, count in enumerate(blocks):
        width = 64 << stage
        for i in range(count):
            label, stride = f"res{stage + 2}_{i}", 2 if stage and not i else 1
            if bottleneck:
                y = layer(net, f"{label}_a", x, width, 1, norm=True, act="relu")
                y = layer(net, f"{label}_b", y, width, 3, stride, 1, norm=True, act="relu")
                y = layer(net, f"{label}_c", y, 4 * width, 1, norm=True)
            else:
                y = layer(net, f"{label}_a", x, width, 3, stride, 1, norm=True, act="relu")
                y = layer(net, f"{label}_b", y, width, 3, 1, 1, norm=True)
            if y.shape != x.shape:
                x = layer(net, f"{label}_shortcut", x, y.shape[1], 1, stride, norm=True)
            x = add(net, label, y, x, "relu")
    return x


def resnet18(batch: int = 1, image: int = 224, classes: int = 1000) -> Workload:
    """He et al. 2016."""
    return _resnet("resnet18", (2, 2, 2, 2), False, batch, image, classes)


def resnet50(batch: int = 1, image: int = 224, classes: int = 1000) -> Workload:
    """He et al. 2016, with the stride in the 3x3 convolutions ("v1.5")."""
    return _resnet("resnet50", (3, 4, 6, 3), True, batch, image, classes)


def resnet152(batch: int = 1, image: int = 224, classes: int = 1000) -> Workload:
    """He et al. 2016, with the stride in the 3x3 convolutions ("v1.5")."""
    return _resnet("resnet152", (3, 8, 36, 3), True, batch, image, classes)


def resnet3d18(batch: int = 1, frames: int = 16, image: int = 112, classes: int = 400) -> Workload:
    """Tran et al. 2018, R3D-18, on clips of frames."""
    net: Net = []
    clip = Map("image", (batch, 3, frames, image, image))
    x = layer(net, "conv1", clip, 64, (3, 7, 7), (1, 2, 2), (1, 3, 3), norm=True, act="relu")
    x = _residual_stages(net, x, (2, 2, 2, 2), False)
    return _classifier("resnet3d18", net, global_pool(net, "pool5", x), classes)


def squeezenet(batch: int = 1, image: int = 224, classes: int = 1000) -> Workload:
    """Iandola et al. 2016, version 1.1."""
    net: Net = []
    x = pooled(net, "pool1", layer(net, "conv1", _image_map(batch, image), 64, 3, 2, act="relu"), 3, 2)
    for i, (squeeze, expand) in enumerate(
        [(16, 64), (16, 64), (32, 128), (32, 128), (48, 192), (48, 192), (64, 256), (64, 256)], 2
    ):
        x = pooled(net, f"pool{i - 1}", x, 3, 2) if i in (4, 6) else x
        x = layer(net, f"fire{i}_squeeze", x, squeeze, 1, act="relu")
        parts = [layer(net, f"fire{i}_{k}x{k}", x, expand, k, pad=k // 2, act="relu") for k in (1, 3)]
        x = concat(net, f"fire{i}", parts)
    x = global_pool(net, "pool10", layer(net, "conv10", x, classes, 1, act="relu"))
    softmax(net, "prob", Map(x.name, x.shape[:2]))
    return network("squeezenet", net, {"image"})


def mobilenet_v1(batch: int = 1, image: int = 224, width: int = 100, classes: int = 1000) -> Workload:
    """Howard et al. 2017. width: channels in percent of the full network's."""
    net: Net = []
    x = layer(
        net, "conv1", _image_map(batch, image), _scaled_channels(32, width, 1), 3, 2, 1, norm=True, act="relu"
    )
    shapes = [
        (64, 1),
        (128, 2),
        (128, 1),
        (256, 2),
        (256, 1),
        (512, 2),
        *[(512, 1)] * 5,
        (1024, 2),
        (1024, 1),
    ]
    for i, (filters, stride) in enumerate(shapes, 2):
        x = layer(net, f"conv{i}_dw", x, x.shape[1], 3, stride, 1, groups=x.shape[1], norm=True, act="relu")
        x = layer(net, f"conv{i}_pw", x, _scaled_channels(filters, width, 1), 1, norm=True, act="relu")
    return _classifier("mobilenet_v1", net, global_pool(net, "pool", x), classes)


BOTTLENECKS = (  # of MobileNetV2: expansion, output channels, blocks, stride of the first block (table 2)
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def mobilenet_v2(batch: int = 1, image: int = 224, width: int = 100, classes: int = 1000) -> Workload:
    """Sandler et al. 2018. width: channels in percent of the full network's, rounded to multiples of 8; the
    last layer does not shrink below 1280.
    """
    net: Net = []
    x = layer(
        net,
        "conv1",
        _image_map(batch, image),
        _scaled_channels(32, width, 8),
        3,
        2,
        1,
        norm=True,
        act="relu6",
    )
    for s, (expand, filters, count, first) in enumerate(BOTTLENECKS, 2):
        for i in range(count):
            label, hidden, stride = f"conv{s}_{i}", expand * x.shape[1], first if not i else 1
            y = layer(net, f"{label}_expand", x, hidden, 1, norm=True, act="relu6") if expand > 1 else x
            y = layer(net, f"{label}_dw", y, hidden, 3, stride, 1, groups=hidden, norm=True, act="relu6")
            y = layer(net, f"{label}_project", y, _scaled_channels(filters, width, 8), 1, norm=True)
            x = add(net, label, y, x) if y.shape == x.shape else y
    x = layer(net, "conv9", x, max(1280, _scaled_channels(1280, width, 8)), 1, norm=True, act="relu6")
    return _classifier("mobilenet_v2", net, global_pool(net, "pool", x), classes)


def _scaled_channels(channels: int, percent: int, step: int) -> int:
    """A share of the channels, rounded to a multiple of `step`: at least one step, and at most a tenth below
    the share.
    """
    wanted = channels * percent / 100
    rounded = max(step, int(wanted + step / 2) // step * step)
    return rounded + step if rounded < 0.9 * wanted else rounded


def unet(batch: int = 1, image: int = 572, channels: int = 1, classes: int = 2, width: int = 64) -> Workload:
    """Ronneberger et al. 2015: convolutions without padding, so that the decoder crops what the encoder
    passes on. width: filters of the first level.
    """
    net: Net = []
    x, skips = _image_map(batch, image, channels), []
    for level in range(5):
        skips.append(x := _two_convs(net, f"down{level}", x, width << level))
        x = pooled(net, f"pool{level}", x, 2, 2) if level < 4 else x
    for level in reversed(range(4)):
        up = upconv(net, f"up{level}_grow", x, width << level, 2)
        skipped = _crop(net, f"up{level}_crop", skips[level], up.shape[2])
        x = _two_convs(net, f"up{level}", concat(net, f"up{level}_join", (skipped, up)), width << level)
    layer(net, "segment", x, classes, 1)
    return network("unet", net, {"image"})


def _two_convs(net: Net, name: str, x: Map, filters: int) -> Map:
    for part in "ab":
        x = layer(net, f"{name}_{part}", x, filters, 3, act="relu")
    return x


def _crop(net: Net, name: str, x: Map, size: int) -> Map:
    """The middle of a square map: data movement."""
    n, c, p, _ = x.shape
    at = (p - size) // 2
    text = f"{name}[n,c,p,q] = {x.name}[n,c,p+{at},q+{at}]"
    net.append(einsum(text, {"n": n, "c": c, "p": size, "q": size}, name, sizes={x.name: x.shape}))
    return Map(name, (n, c, size, size))

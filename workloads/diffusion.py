"""A block of a latent-diffusion U-Net: residual convolutions, then attention over the pixels and to the
text."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from workloads.einsum import refuse
from workloads.graph import Workload
from workloads.layers import Cascade, Map, Net, add, cascade, conv, dense, network, with_names
from workloads.transformer import Sizes, attention_core, linear, norm

# groups of a normalisation; elements of a time embedding; elements of a text position
GROUPS, TIME, TEXT = 32, 1280, 768


def diffusion_block(
    batch: int = 1,
    size: int = 64,
    channels: int = 320,
    inputs: int = 0,
    text: int = 77,
    heads: int = 8,
    attend: Literal["yes", "no"] = "yes",
) -> Workload:
    """One block of Stable Diffusion 1's U-Net (Rombach et al. 2022) on a map of size x size; default: the
    first one.

    inputs: channels of the input; 0: as many as of the output
    text: positions of the prompt
    attend: no: only the convolutions
    """
    faults = [
        f"diffusion_block: {name} = {c} must be a multiple of {GROUPS}"
        for name, c in (("inputs", inputs), ("channels", channels))
        if c % GROUPS
    ]
    if channels % heads:
        faults.append(f"diffusion_block: heads = {heads} must divide channels = {channels}")
    refuse(faults)
    net, x = _residual(batch, size, inputs or channels, channels)
    if attend == "yes":
        net += _transformer(batch, size, channels, text, heads, x.name)
    return network("diffusion_block", net, {"X", "time", "prompt"})


def _group_norm(batch: int, channels: int, pixels: int, x: str, y: str) -> Cascade:
    """Returns group normalisation: `layernorm` over the channels and pixels of a group, with scale and shift
    per channel.
    """
    texts = (
        "M[n,g] += X[n,g,k,p]",
        "D[n,g,k,p] = sub(X[n,g,k,p], M[n,g])",
        "V[n,g] += square(D[n,g,k,p])",
        "R[n,g] = rsqrt(V[n,g])",
        "Y[n,g,k,p] = normalize(D[n,g,k,p], R[n,g], G[g,k], B[g,k])",
    )
    extents = {"n": batch, "g": GROUPS, "k": channels // GROUPS, "p": pixels}
    return with_names(cascade(extents, *texts), f"{y}_", {"X": x, "Y": y})


def _residual(batch: int, size: int, inputs: int, channels: int) -> tuple[Net, Map]:
    """Returns two convolutions, each after norm and SiLU, with the time embedding added between them, and a
    shortcut around both.
    """
    net: Net = []
    pixels, x = size * size, Map("X", (batch, inputs, size, size))
    net += _group_norm(batch, inputs, pixels, "X", "N1") + cascade(
        {"n": batch, "c": inputs, "p": pixels}, "N1_silu[n,c,p] = silu(N1[n,c,p])"
    )
    y = conv(net, "conv1", Map("N1_silu", x.shape), channels, 3, pad=1)
    time_bias = dense(net, "time_proj", Map("time", (batch, TIME)), channels)
    shape = {"n": batch, "c": channels, "p": pixels}
    net += cascade(shape, f"timed[n,c,p] = add({y.name}[n,c,p], {time_bias.name}[n,c])")
    net += _group_norm(batch, channels, pixels, "timed", "N2") + cascade(
        shape, "N2_silu[n,c,p] = silu(N2[n,c,p])"
    )
    y = conv(net, "conv2", Map("N2_silu", (batch, channels, size, size)), channels, 3, pad=1)
    return net, add(net, "residual", y, conv(net, "shortcut", x, channels, 1) if inputs != channels else x)


def _transformer(batch: int, size: int, channels: int, text: int, heads: int, x: str) -> Cascade:
    """Returns attention of the pixels to each other, attention to the text, and a gated feed-forward layer,
    between two 1x1 projections.
    """
    pixels = size * size
    s, rows = Sizes(channels, heads, 4 * channels), batch * pixels
    sums = {"r": rows, "m": channels, "f": s.ffn}
    image = {"n": batch, "p": pixels, "m": channels, "k": channels}
    net = _group_norm(batch, channels, pixels, x, "N3")
    net += cascade(
        image, "T0_flat[n,p,m] += N3[n,k,p] * T0_W[m,k]", "T0[n,p,m] = bias(T0_flat[n,p,m], T0_B[m])"
    )
    net += norm(s, rows, "T0", "N4") + _attention(
        s, batch, pixels, (pixels, channels), ("N4", "N4", "A1"), "self_"
    )
    net += cascade(sums, "T1[r,m] = T0[r,m] + A1[r,m]") + norm(s, rows, "T1", "N5")
    net += _attention(s, batch, pixels, (text, TEXT), ("N5", "prompt", "A2"), "cross_") + cascade(
        sums, "T2[r,m] = T1[r,m] + A2[r,m]"
    )
    net += (
        norm(s, rows, "T2", "N6")
        + linear(s, "U", "N6", rows, s.ffn, channels)
        + linear(s, "Z", "N6", rows, s.ffn, channels)
    )
    net += cascade(sums, "Z_gelu[r,f] = gelu(Z[r,f])", "F[r,f] = Z_gelu[r,f] * U[r,f]") + linear(
        s, "I", "F", rows, channels, s.ffn
    )
    net += cascade(sums, "T3[r,m] = T2[r,m] + I[r,m]")
    texts = (
        "Y_flat[n,k,p] += T3[n,p,m] * Y_W[k,m]",
        "Y_proj[n,k,p] = bias(Y_flat[n,k,p], Y_B[k])",
        f"Y[n,k,p] = Y_proj[n,k,p] + {x}[n,k,p]",
    )
    return net + cascade(image, *texts)


def _attention(
    s: Sizes,
    batch: int,
    positions: int,
    source_size: tuple[int, int],
    names: tuple[str, str, str],
    prefix: str,
) -> Cascade:
    """Returns attention from tensor names[0] over names[1] to names[2]. source_size: (positions, elements)
    of names[1]. Only the last projection has a bias.
    """
    no_bias, (t, width), (x, source, y) = replace(s, bias=False), source_size, names
    net = linear(no_bias, "Q", x, batch * positions, s.model, s.model)
    net += linear(no_bias, "K", source, batch * t, s.model, width) + linear(
        no_bias, "V", source, batch * t, s.model, width
    )
    net += attention_core(s.heads, positions, t, s.model // s.heads, s.heads, batch) + linear(
        s, y, "O", batch * positions, s.model, s.model
    )
    return with_names(net, prefix, {name: name for name in names})

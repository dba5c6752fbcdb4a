"""Recurrent networks: LSTM, unrolled over the sequence; a Mamba block, whose recurrence is one scan."""

from __future__ import annotations

from workloads.graph import Workload
from workloads.layers import Cascade, cascade, network, with_names
from workloads.transformer import rmsnorm


def _cell(batch: int, inputs: int, hidden: int) -> Cascade:
    """Returns one step of Hochreiter and Schmidhuber's cell with forget gate: H and C from X, H_old and
    C_old.

    The four gates are one product of the input and one of the state, with the rows of input, forget, cell and
    output gate. Gate functions cost only their operands: C reads the first three gates, H the last one.
    """
    extents = {"b": batch, "g": 3, "h": hidden, "z": 4 * hidden, "i": inputs, "k": hidden}
    texts = (
        "ZX[b,z] += X[b,i] * WX[z,i]",
        "ZX_bias[b,z] = bias(ZX[b,z], B[z])",
        "ZH[b,z] += H_old[b,k] * WH[z,k]",
        "Z[b,z] = ZX_bias[b,z] + ZH[b,z]",
        f"C[b,h] = lstm_state(Z[b,{hidden}*g+h], C_old[b,h])",
        f"H[b,h] = lstm_output(Z[b,h+{3 * hidden}], C[b,h])",
    )
    return cascade(extents, *texts, sizes={"Z": (batch, 4 * hidden)})


def _layers(batch: int, inputs: int, hidden: int, layers: int, sequence: int) -> tuple[Cascade, set[str]]:
    """Returns layers over a sequence, where step t of layer l makes l<l>_H_<t>, and the tensors that are
    data: inputs and first states.
    """
    net: Cascade = ()
    for layer in range(layers):
        cell = _cell(batch, hidden if layer else inputs, hidden)
        shared = {w: f"l{layer}_{w}" for w in ("WX", "WH", "B")}
        for t in range(sequence):
            names = shared | {"X": f"l{layer - 1}_H_{t}" if layer else f"X_{t}"}
            for s in "HC":
                names |= {f"{s}_old": f"l{layer}_{s}_{t - 1 if t else 'first'}", s: f"l{layer}_{s}_{t}"}
            net += with_names(cell, f"l{layer}_t{t}_", names)
    first_states = {f"l{layer}_{s}_first" for layer in range(layers) for s in "HC"}
    return net, first_states.union(f"X_{t}" for t in range(sequence))


def lstm(
    batch: int = 1, sequence: int = 1, inputs: int = 1000, hidden: int = 1000, layers: int = 4
) -> Workload:
    """Sutskever et al. 2014: four layers of 1000, the LSTM of KAPLA, without embedding and logits."""
    net, data = _layers(batch, inputs, hidden, layers, sequence)
    return network("lstm", net, data)


def lstm_phoneme(batch: int = 1, sequence: int = 1) -> Workload:
    """Graves and Schmidhuber 2005, shapes as nn_dataflow has them: 26 features, one layer of 140, 61
    phonemes.
    """
    net, data = _layers(batch, 140, 140, 1, sequence)
    extents = {"b": batch, "f": 26, "h": 140, "p": 61}
    projections = cascade(extents, "X[b,h] += F[b,f] * W_in[h,f]", "Y[b,p] += H[b,h] * W_out[p,h]")
    for t in range(sequence):
        names = {"H": f"l0_H_{t}"} | {x: f"{x}_{t}" for x in "XFY"} | {w: w for w in ("W_in", "W_out")}
        net += with_names(projections, f"t{t}_", names)
    return network("lstm_phoneme", net, data | {f"F_{t}" for t in range(sequence)})


def lstm_gnmt(batch: int = 1, sequence: int = 1) -> Workload:
    """Four layers of 1000, which nn_dataflow calls GNMT: equal to `lstm`."""
    net, data = _layers(batch, 1000, 1000, 4, sequence)
    return network("lstm_gnmt", net, data)


def lstm_showtell(batch: int = 1, sequence: int = 1) -> Workload:
    """Vinyals et al. 2015: one layer of 512 over embedded words, shapes as nn_dataflow has them."""
    net, data = _layers(batch, 512, 512, 1, sequence)
    return network("lstm_showtell", net, data)


def mamba_block(
    batch: int = 1, sequence: int = 1024, model: int = 768, state: int = 16, kernel: int = 4
) -> Workload:
    """Gu and Dao 2023: selective state space between two gated projections, in its unfused form.

    Default sizes are those of mamba-130m. The recurrence h[t] = A[t] * h[t-1] + B[t] is one einsum of kind
    scan, whose steps a mapping must keep in the order of t.
    """
    inner, rank = 2 * model, -(-model // 16)
    extents = {"b": batch, "t": sequence, "m": model, "i": inner, "n": state, "k": rank, "w": kernel}
    texts = (
        "U[b,t,i] += N[b,t,m] * W_in[i,m]",
        "Z[b,t,i] += N[b,t,m] * W_gate[i,m]",
        "Z_silu[b,t,i] = silu(Z[b,t,i])",
        f"F[b,t,i] += U[b,t+w-{kernel - 1},i] * W_conv[i,w]",
        "F_bias[b,t,i] = bias(F[b,t,i], B_conv[i])",
        "F_silu[b,t,i] = silu(F_bias[b,t,i])",
        "R[b,t,k] += F_silu[b,t,i] * W_rank[k,i]",
        "BM[b,t,n] += F_silu[b,t,i] * W_B[n,i]",
        "CM[b,t,n] += F_silu[b,t,i] * W_C[n,i]",
        "D[b,t,i] += R[b,t,k] * W_step[i,k]",
        "D_bias[b,t,i] = bias(D[b,t,i], B_step[i])",
        "D_step[b,t,i] = softplus(D_bias[b,t,i])",
        "AS[b,t,i,n] = exp_product(D_step[b,t,i], A_log[i,n])",
        "BS[b,t,i,n] = D_step[b,t,i] * BM[b,t,n] * F_silu[b,t,i]",
        "H[b,t,i,n] = scan(AS[b,t,i,n], BS[b,t,i,n])",
        "Y_scan[b,t,i] += H[b,t,i,n] * CM[b,t,n]",
        "Y_skip[b,t,i] = fma(F_silu[b,t,i], D_skip[i], Y_scan[b,t,i])",
        "Y_gated[b,t,i] = Y_skip[b,t,i] * Z_silu[b,t,i]",
        "O[b,t,m] += Y_gated[b,t,i] * W_out[m,i]",
        "Y[b,t,m] = X[b,t,m] + O[b,t,m]",
    )
    norm = with_names(rmsnorm(batch * sequence, model), "norm_", {"X": "X", "Y": "N"})
    net = norm + cascade(extents, *texts, sizes={"U": (batch, sequence, inner)})
    return network("mamba_block", net, {"X"})

"""Transformers, and their operators as cascades of einsums.

A row-wise function (softmax, norms) reduces each row in one einsum, and the next einsum reads the result.
Rows are the positions of all sequences together; another einsum may read them as (batch, position). Products
of activations and weights are plain GEMMs, so that equal sizes are equal einsums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from workloads.einsum import WorkloadError, einsum, refuse
from workloads.graph import Workload
from workloads.layers import Cascade, Map, Net, cascade, chain, conv, dense, network, stack, with_names


def softmax(b: int, n: int) -> Cascade:
    """Softmax of b rows of n elements: maximum, exponentials, their sum, quotients."""
    return cascade(
        {"b": b, "n": n},
        "M[b] max= X[b,n]",
        "E[b,n] = exp(X[b,n], M[b])",
        "S[b] += E[b,n]",
        "Y[b,n] = div(E[b,n], S[b])",
    )


def layernorm(b: int, n: int) -> Cascade:
    """Layer normalisation of b rows of n elements, in two passes.

    M and V are sums, whose factor 1 / n is fused into the output. G is the scale, B the shift.
    """
    texts = (
        "M[b] += X[b,n]",
        "D[b,n] = sub(X[b,n], M[b])",
        "V[b] += square(D[b,n])",
        "R[b] = rsqrt(V[b])",
        "Y[b,n] = normalize(D[b,n], R[b], G[n], B[n])",
    )
    return cascade({"b": b, "n": n}, *texts)


def rmsnorm(b: int, n: int) -> Cascade:
    """RMS normalisation of b rows of n elements: `layernorm` without mean and shift (Zhang and Sennrich
    2019).
    """
    return cascade(
        {"b": b, "n": n}, "V[b] += square(X[b,n])", "R[b] = rsqrt(V[b])", "Y[b,n] = X[b,n] * R[b] * G[n]"
    )


# How the softmax of attention is computed. rows: scores of whole rows, their maximum, exponentials, sum, and
# quotients. online: scores block by block of the context, with running maximum and sum (`_online_core`).
Form = Literal["rows", "online"]
MIN_BLOCK, MAX_BLOCK = 16, 128  # positions of a block of attention in its online form


def attention(
    heads: int, q: int, context: int, d: int, kv: int = 0, b: int = 1, form: Form = "rows"
) -> Cascade:
    """Attention of q new positions, the last ones of a context: prefill with q = context, decode with q = 1.

    heads: of the queries
    kv: heads of keys and values; 0: as many as heads (fewer: grouped queries, 1: multi-query)
    form: rows: a softmax of whole rows; online: of blocks of the context, with a running maximum

    Query head g * (heads / kv) + h reads K and V of head g. K and V are the caches, to which K_rows and
    V_rows append the new rows: data movement. All scores are computed, so a causal mask saves nothing. The
    factor 1 / sqrt(d) is fused into S.
    """
    kv = kv or heads
    faults = [f"attention: kv = {kv} must divide heads = {heads}"] if heads % kv else []
    if q > context:
        faults.append(
            f"attention: q = {q} must not be above context = {context}, which counts the new positions too"
        )
    refuse(faults)
    rows = ("K_rows[b,q,g,d] = K_new[b,q,g,d]", "V_rows[b,q,g,d] = V_new[b,q,g,d]")
    appended = cascade({"b": b, "g": kv, "q": q, "d": d}, *rows)
    return appended + attention_core(heads, q, context, d, kv, b, form)


def attention_core(heads: int, q: int, t: int, d: int, kv: int, b: int, form: Form = "rows") -> Cascade:
    """Returns attention of q positions to any t positions: tensors Q, K, V -> O. Sizes as in `attention`."""
    if form == "online":
        return _online_core(heads, q, t, d, kv, b)
    texts = (
        "S[b,g,h,q,t] += Q[b,q,g,h,d] * K[b,t,g,d]",
        "M[b,g,h,q] max= S[b,g,h,q,t]",
        "E[b,g,h,q,t] = exp(S[b,g,h,q,t], M[b,g,h,q])",
        "L[b,g,h,q] += E[b,g,h,q,t]",
        "P[b,g,h,q,t] = div(E[b,g,h,q,t], L[b,g,h,q])",
        "O[b,q,g,h,d] += P[b,g,h,q,t] * V[b,t,g,d]",
    )
    return cascade({"b": b, "g": kv, "h": heads // kv, "q": q, "t": t, "d": d}, *texts)


def _online_core(heads: int, q: int, t: int, d: int, kv: int, b: int) -> Cascade:
    """Returns `attention_core` as the cascade that reads every score once, so that no row of scores has to
    be complete: the context is cut into s blocks of t positions. N is the maximum of a block, M that of all
    blocks so far, C the factor exp(M before - M) by which earlier sums shrink. `rescaled` adds up over
    blocks: sum = C * sum + term, so blocks must be visited in order.

    Source: FuseMax (Nayak et al., MICRO 2024, arXiv 2406.10491), the cascade of one pass; Milakov and
    Gimelshein 2018 (arXiv 1805.02867), FlashAttention-2 (Dao 2023).

    Raises WorkloadError where no number from MIN_BLOCK to MAX_BLOCK divides t.
    """
    block = max((n for n in range(min(t, MIN_BLOCK), MAX_BLOCK + 1) if t % n == 0), default=0)
    if not block:
        raise WorkloadError(
            f"attention: form = online cuts {t} positions into blocks, and no number from {MIN_BLOCK} to "
            f"{MAX_BLOCK} divides them; take form=rows or another number of positions"
        )
    texts = (
        "S[b,g,h,q,s,t] += Q[b,q,g,h,d] * K[b,s,t,g,d]",
        "N[b,g,h,q,s] max= S[b,g,h,q,s,t]",
        "M[b,g,h,q,s] = running_max(N[b,g,h,q,s])",
        "C[b,g,h,q,s] = exp_of_change(M[b,g,h,q,s])",
        "E[b,g,h,q,s,t] = exp(S[b,g,h,q,s,t], M[b,g,h,q,s])",
        "L_block[b,g,h,q,s] += E[b,g,h,q,s,t]",
        "O_block[b,g,h,q,s,d] += E[b,g,h,q,s,t] * V[b,s,t,g,d]",
        "L[b,g,h,q] = rescaled(L_block[b,g,h,q,s], C[b,g,h,q,s])",
        "O_sum[b,g,h,q,d] = rescaled(O_block[b,g,h,q,s,d], C[b,g,h,q,s])",
        "O[b,q,g,h,d] = div(O_sum[b,g,h,q,d], L[b,g,h,q])",
    )
    extents = {"b": b, "g": kv, "h": heads // kv, "q": q, "s": t // block, "t": block, "d": d}
    return cascade(extents, *texts)


def embedding(t: int, v: int, d: int) -> Cascade:
    """Gather of t rows of a table of v rows of d elements, by t indices.

    Which rows are read depends on data, so distinct ones are assumed. With t > v the table is read once.
    """
    return (einsum("Y[t,d] = copy(T[t,d], X[t])", {"t": t, "d": d}, "embedding", sizes={"T": (v, d)}),)


# Blocks: X -> Y


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a transformer."""

    model: int  # elements of a position
    heads: int
    ffn: int  # width of the feed-forward layer
    kv: int = 0  # heads of keys and values; 0: heads
    head: int = 0  # elements per head; 0: model / heads
    norm: Literal["layernorm", "rmsnorm"] = "layernorm"
    bias: bool = True  # whether every product has a bias
    gated: bool = False  # the activation of one product times another product
    rope: bool = False  # rotary positions
    norm_first: bool = True  # norms come before attention and feed-forward; False: after them
    act: str = ""  # activation of the feed-forward layer; "": silu where it is gated, else gelu
    qkv_bias: bool = False  # whether queries, keys and values have a bias where other products have none
    key_bias: bool = True  # whether keys have a bias where queries and values have one
    qk_norm: bool = False  # whether every head of queries and keys is normalised
    # whether the results of attention and feed-forward are normalised too, before the residual sum
    norm_last: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """What one run computes."""

    batch: int  # sequences
    new: int  # new positions per sequence, the last ones of its context
    context: int  # positions that attention reads
    cache: bool = False  # whether keys and values of new positions are appended to a cache
    form: Form = "rows"  # of attention


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens and positions of a decoder."""

    tokens: int
    positions: int = 0  # rows of a table of learned positions; 0: rotary positions
    tied: bool = False  # whether the logits share the table of the tokens


LLAMA7B = Sizes(4096, 32, 11008, norm="rmsnorm", bias=False, gated=True, rope=True)
LLAMA70B = replace(LLAMA7B, model=8192, heads=64, ffn=28672, kv=8)
MIXTRAL = replace(LLAMA7B, ffn=14336, kv=8)
CONSTANTS = ("angles",)  # cosines and sines of rotary positions: data that is no parameter


def norm(s: Sizes, rows: int, x: str, y: str) -> Cascade:
    """Returns the normalisation of every row of tensor x."""
    einsums = rmsnorm(rows, s.model) if s.norm == "rmsnorm" else layernorm(rows, s.model)
    return with_names(einsums, f"{y}_", {"X": x, "Y": y})


def linear(s: Sizes, y: str, x: str, rows: int, outputs: int, inputs: int) -> Cascade:
    """Returns tensor y = x * W + B. The bias, if any, is an einsum of its own."""
    product = f"{y}_sum" if s.bias else y
    texts = [f"{product}[r,n] += {x}[r,m] * {y}_W[n,m]"]
    texts += [f"{y}[r,n] = bias({product}[r,n], {y}_B[n])"] if s.bias else []
    return cascade({"r": rows, "n": outputs, "m": inputs}, *texts)


def _rope(s: Sizes, run: Run, x: str, y: str, heads: int) -> Cascade:
    """Returns rotary positions: pairs of a row's elements rotated by an angle that depends on the
    position.
    """
    extents = {"b": run.batch, "q": run.new, "h": heads, "d": s.head or s.model // s.heads}
    return cascade(extents, f"{y}[b,q,h,d] = rope({x}[b,q,h,d], angles[q,d])")


def _projected(s: Sizes, run: Run, x: str, y: str, heads: int) -> Cascade:
    """Returns queries or keys y of tensor x: a product, and the norm of every head if there is one."""
    rows, head = run.batch * run.new, s.head or s.model // s.heads
    if not s.qk_norm:
        return linear(s, y, x, rows, heads * head, s.model)
    product = linear(s, f"{y}_product", x, rows, heads * head, s.model)
    return product + with_names(rmsnorm(rows * heads, head), f"{y}_", {"X": f"{y}_product", "Y": y})


def _self_attention(s: Sizes, run: Run, x: str, y: str) -> Cascade:
    """Returns projections of tensor x, attention, and projection to y. Decode reads the caches K_cache and
    V_cache; prefill reads the rows that it appends to them.
    """
    rows, head, kv = run.batch * run.new, s.head or s.model // s.heads, s.kv or s.heads
    flat, biased = "_flat" if s.rope else "", replace(s, bias=s.bias or s.qkv_bias)
    net = _projected(biased, run, x, f"Q{flat}", s.heads)
    net += _projected(replace(biased, bias=biased.bias and s.key_bias), run, x, f"K{flat}", kv)
    net += linear(biased, "V", x, rows, kv * head, s.model)
    net += _rope(s, run, "Q_flat", "Q", s.heads) + _rope(s, run, "K_flat", "K", kv) if s.rope else ()
    make = attention if run.cache else attention_core
    cache_suffix = "_cache" if run.new < run.context else ""
    names = {"Q": "Q", "K_new": "K", "V_new": "V", "K": f"K{cache_suffix}", "V": f"V{cache_suffix}"}
    net += with_names(make(s.heads, run.new, run.context, head, kv, run.batch, run.form), "A_", names)
    return net + linear(s, y, "A_O", rows, s.model, s.heads * head)


def _feed_forward(s: Sizes, rows: int, x: str, y: str) -> Cascade:
    up, sizes = linear(s, "U", x, rows, s.ffn, s.model), {"r": rows, "f": s.ffn}
    if not s.gated:
        return (
            up
            + cascade(sizes, f"F[r,f] = {s.act or 'gelu'}(U[r,f])")
            + linear(s, y, "F", rows, s.model, s.ffn)
        )
    act = s.act or "silu"
    gate = linear(s, "Z", x, rows, s.ffn, s.model) + cascade(
        sizes, f"Z_{act}[r,f] = {act}(Z[r,f])", f"F[r,f] = Z_{act}[r,f] * U[r,f]"
    )
    return up + gate + linear(s, y, "F", rows, s.model, s.ffn)


def _experts(s: Sizes, rows: int, x: str, y: str, experts: int, active: int) -> Cascade:
    """Returns a mixture of experts: each row goes through `active` of them, weighted.

    Load is balanced: of the experts, as many take part as can share the rows evenly. The weights of the
    others are not read.
    """
    used_experts = max(e for e in range(1, experts + 1) if rows * active % e == 0)
    expert_rows = rows * active // used_experts
    extents = {
        "r": rows,
        "j": active,
        "x": experts,
        "m": s.model,
        "e": used_experts,
        "w": expert_rows,
        "f": s.ffn,
    }
    texts = (
        f"G[r,x] += {x}[r,m] * G_W[x,m]",
        "T[r,j] = topk(G[r,x])",
        "T_E[r,j] = exp(T[r,j])",
        "T_S[r] += T_E[r,j]",
        "T_P[r,j] = div(T_E[r,j], T_S[r])",
        f"X_sent[r,j,m] = copy({x}[r,m], T[r,j])",
        "U[e,w,f] += X_sent[e,w,m] * U_W[e,f,m]",
        "Z[e,w,f] += X_sent[e,w,m] * Z_W[e,f,m]",
        "Z_silu[e,w,f] = silu(Z[e,w,f])",
        "F[e,w,f] = Z_silu[e,w,f] * U[e,w,f]",
        "D[e,w,m] += F[e,w,f] * D_W[e,m,f]",
        f"{y}[r,m] += D[r,j,m] * T_P[r,j]",
    )
    up_shape, down_shape = (experts, s.ffn, s.model), (experts, s.model, s.ffn)
    sizes = {"U_W": up_shape, "Z_W": up_shape, "D_W": down_shape}
    return cascade(extents, *texts, sizes=sizes)


def _before_norm(s: Sizes, rows: int, x: str) -> tuple[str, Cascade]:
    """Returns (tensor that attention or feed-forward must make so that x is its norm, the einsums of the
    norm); (x, no einsums) where a layer has no such norm.
    """
    return (f"{x}_raw", norm(s, rows, f"{x}_raw", x)) if s.norm_last else (x, ())


def attention_half(s: Sizes, run: Run) -> Cascade:
    """Returns the first half of a layer with norms first: tensor X -> tensor H."""
    rows = run.batch * run.new
    raw, norm_last = _before_norm(s, rows, "O")
    net = norm(s, rows, "X", "N1") + _self_attention(s, run, "N1", raw) + norm_last
    return net + cascade({"r": rows, "m": s.model}, "H[r,m] = X[r,m] + O[r,m]")


def feed_forward_half(s: Sizes, run: Run, x: str = "H", experts: int = 0, active: int = 0) -> Cascade:
    """Returns the second half of a layer with norms first: tensor x -> tensor Y."""
    rows = run.batch * run.new
    raw, norm_last = _before_norm(s, rows, "I")
    net = norm(s, rows, x, "N2") + _feed_forward_or_experts(s, rows, "N2", raw, experts, active) + norm_last
    return net + cascade({"r": rows, "m": s.model}, f"Y[r,m] = {x}[r,m] + I[r,m]")


def _feed_forward_or_experts(s: Sizes, rows: int, x: str, y: str, experts: int, active: int) -> Cascade:
    return _experts(s, rows, x, y, experts, active) if experts else _feed_forward(s, rows, x, y)


def block(s: Sizes, run: Run, experts: int = 0, active: int = 0) -> Cascade:
    """Returns one layer: tensor X -> tensor Y."""
    if s.norm_first:
        return attention_half(s, run) + feed_forward_half(s, run, "H", experts, active)
    rows = run.batch * run.new
    extents = {"r": rows, "m": s.model}
    return (
        _self_attention(s, run, "X", "O")
        + cascade(extents, "H[r,m] = X[r,m] + O[r,m]")
        + norm(s, rows, "H", "N1")
        + _feed_forward_or_experts(s, rows, "N1", "I", experts, active)
        + cascade(extents, "G[r,m] = N1[r,m] + I[r,m]")
        + norm(s, rows, "G", "Y")
    )


def _token_embedding(rows: int, vocabulary: int, s: Sizes) -> Cascade:
    """Returns the embedding of tokens."""
    names = {"X": "tokens", "T": "words_W", "Y": "words", "embedding": "words"}
    return with_names(embedding(rows, vocabulary, s.model), "", names)


def _caches(layers: int) -> set[str]:
    return {f"l{i}_{x}_cache" for i in range(layers) for x in "KV"}


# Networks


def _bert(name: str, s: Sizes, layers: int, batch: int, sequence: int, form: Form) -> Workload:
    """Returns BERT (Devlin et al. 2019): three embeddings, encoder layers with norms after them, a pooler on
    the first position.
    """
    rows = batch * sequence
    if sequence > 512:
        raise WorkloadError(f"{name}: sequence = {sequence} must not be above 512, the positions that it has")
    extents = {"b": batch, "t": sequence, "r": rows, "m": s.model, "n": s.model}
    net = _token_embedding(rows, 30_522, s)
    net += cascade(
        extents,
        "summed[b,t,m] = add(words[b,t,m], positions_W[t,m], types_W[0,m])",
        sizes={"positions_W": (512, s.model), "types_W": (2, s.model)},
    )
    net += norm(s, rows, "summed", "embedded")
    net += chain(block(s, Run(batch, sequence, sequence, form=form)), layers, "embedded", "encoded")
    pooler = (
        "pooled_sum[b,n] += encoded[b,0,m] * pooled_W[n,m]",
        "pooled_bias[b,n] = bias(pooled_sum[b,n], pooled_B[n])",
        "pooled[b,n] = tanh(pooled_bias[b,n])",
    )
    net += cascade(extents, *pooler, sizes={"encoded": (batch, sequence, s.model)})
    return network(name, net, {"tokens"})


def bert_base(batch: int = 1, sequence: int = 512, layers: int = 12, form: Form = "rows") -> Workload:
    """Devlin et al. 2019, uncased: 12 layers of 768."""
    return _bert("bert_base", Sizes(768, 12, 3072, norm_first=False), layers, batch, sequence, form)


def bert_tiny(batch: int = 1, sequence: int = 512, layers: int = 2, form: Form = "rows") -> Workload:
    """Turc et al. 2019: 2 layers of 128."""
    return _bert("bert_tiny", Sizes(128, 2, 512, norm_first=False), layers, batch, sequence, form)


def tinybert(batch: int = 1, sequence: int = 128, layers: int = 4, form: Form = "rows") -> Workload:
    """Jiao et al. 2019, TinyBERT: 4 layers of 312, twelve heads."""
    return _bert("tinybert", Sizes(312, 12, 1200, norm_first=False), layers, batch, sequence, form)


def run_of(phase: str, context: int, batch: int, form: Form = "rows") -> Run:
    """Returns the run of a phase: prefill: a prompt of `context` positions; decode: one new position, the
    last one of a context. form: of attention
    """
    return Run(batch, context if phase == "prefill" else 1, context, cache=True, form=form)


def decoder(name: str, s: Sizes, run: Run, blocks: Sequence[Cascade], vocabulary: Vocabulary) -> Workload:
    """Returns a decoder: token embedding, layers, a final norm, and the logits of the last position only,
    which is what generation needs.
    """
    rows, positions = run.batch * run.new, vocabulary.positions
    if 0 < positions < run.context:
        raise WorkloadError(
            f"{name}: context = {run.context} must not be above {positions}, the positions that it has"
        )
    net = token_positions(s, run, vocabulary) if positions else _token_embedding(rows, vocabulary.tokens, s)
    net += stack(blocks, "embedded" if positions else "words", "decoded", CONSTANTS)
    net += last_logits(s, run, vocabulary)
    return network(name, net, {"tokens", *_caches(len(blocks))}, CONSTANTS)


def token_positions(s: Sizes, run: Run, vocabulary: Vocabulary) -> Cascade:
    """Returns the embedding of tokens, with learned positions."""
    start = run.context - run.new
    return _token_embedding(run.batch * run.new, vocabulary.tokens, s) + cascade(
        {"b": run.batch, "t": run.new, "m": s.model},
        f"embedded[b,t,m] = add(words[b,t,m], positions_W[t+{start},m])",
        sizes={"positions_W": (vocabulary.positions, s.model)},
    )


def last_logits(s: Sizes, run: Run, vocabulary: Vocabulary) -> Cascade:
    """Returns the final norm and the logits of the last position of tensor `decoded`."""
    extents = {"b": run.batch, "t": run.new, "m": s.model, "v": vocabulary.tokens}
    table, last_position = "words_W" if vocabulary.tied else "logits_W", run.new - 1
    net: Cascade = ()
    if last_position:
        sizes = {"decoded": (run.batch, run.new, s.model)}
        net = cascade(extents, f"ended[b,m] = decoded[b,{last_position},m]", sizes=sizes)
    net += norm(s, run.batch, "ended" if last_position else "decoded", "normed")
    return net + cascade(extents, f"logits[b,v] += normed[b,m] * {table}[v,m]")


Phase = Literal["prefill", "decode"]


def gpt2(
    phase: Phase = "prefill", context: int = 1024, batch: int = 1, layers: int = 12, form: Form = "rows"
) -> Workload:
    """Radford et al. 2019, small: 12 layers of 768; the logits share the table of the words."""
    s, run = Sizes(768, 12, 3072), run_of(phase, context, batch, form)
    return decoder("gpt2", s, run, [block(s, run)] * layers, Vocabulary(50_257, 1024, tied=True))


def llama7b(
    phase: Phase = "prefill", context: int = 2048, batch: int = 1, layers: int = 32, form: Form = "rows"
) -> Workload:
    """Touvron et al. 2023: 32 layers of 4096.

    phase: prefill: a prompt of `context` positions; decode: one new position, the last one of a context
    form: of attention: a softmax of whole rows, or online (`attention`)

    Logits of the last position only.
    """
    run = run_of(phase, context, batch, form)
    return decoder("llama7b", LLAMA7B, run, [block(LLAMA7B, run)] * layers, Vocabulary(32_000))


def llama70b(
    phase: Phase = "prefill", context: int = 2048, batch: int = 1, layers: int = 80, form: Form = "rows"
) -> Workload:
    """Touvron et al. 2023 (Llama 2): 80 layers of 8192, eight heads of keys and values.

    Parameters as in `llama7b`.
    """
    run = run_of(phase, context, batch, form)
    return decoder("llama70b", LLAMA70B, run, [block(LLAMA70B, run)] * layers, Vocabulary(32_000))


def moe_block(
    phase: Phase = "prefill",
    context: int = 2048,
    batch: int = 1,
    experts: int = 8,
    active: int = 2,
    form: Form = "rows",
) -> Workload:
    """One layer of Mixtral 8x7B (Jiang et al. 2024): grouped-query attention, then `active` experts per
    position.
    """
    if active > experts:
        raise WorkloadError(f"moe_block: active = {active} must not be above experts = {experts}")
    net = block(MIXTRAL, run_of(phase, context, batch, form), experts, active)
    return network("moe_block", net, {"X", "K_cache", "V_cache"}, CONSTANTS)


def vit_b(batch: int = 1, image: int = 224, patch: int = 16, classes: int = 1000) -> Workload:
    """Dosovitskiy et al. 2021, ViT-B/16: patches and a class token through 12 layers of 768.

    The classifier reads the class token.
    """
    return vit("vit_b", Sizes(768, 12, 3072), 12, (batch, 3, image, image), patch, classes)


def vit(name: str, s: Sizes, layers: int, images: tuple[int, ...], patch: int, classes: int) -> Workload:
    """Returns a vision transformer. images: [batch, channels, rows, columns]; classes 0: no classifier."""
    batch, _, rows, columns = images
    t = (rows // patch) * (columns // patch) + 1
    head: Net = []
    x = conv(head, "patches", Map("image", images), s.model, patch, patch)
    extents = {"b": batch, "p": t - 1, "t": t, "m": s.model}
    net = tuple(head) + cascade(
        extents,
        f"turned[b,p,m] = {x.name}[b,m,p]",
        "joined[b,t,m] = copy(token_W[t,m], turned[b,t-1,m])",
        "embedded[b,t,m] = add(joined[b,t,m], positions_W[t,m])",
        sizes={"turned": (batch, t - 1, s.model), "token_W": (1, s.model)},
    )
    net += chain(block(s, Run(batch, t, t)), layers, "embedded", "encoded")
    if not classes:
        return network(name, net + norm(s, batch * t, "encoded", "normed"), {"image"})
    net += cascade(extents, "ended[b,m] = encoded[b,0,m]", sizes={"encoded": (batch, t, s.model)})
    net += norm(s, batch, "ended", "normed")
    tail: Net = []
    dense(tail, "logits", Map("normed", (batch, s.model)), classes)
    return network(name, net + tuple(tail), {"image"})

"""Operators of transformers as cascades of einsums. A row-wise barrier (softmax, norms) is an einsum that reduces a row which the next one reads."""

from __future__ import annotations

from workloads.cnn import Cascade
from workloads.einsum import WorkloadError, einsum


def softmax(b: int, n: int) -> Cascade:
    """Each of b rows of n elements: largest, exponentials, their sum, quotients."""
    texts = ("M[b] max= X[b,n]", "E[b,n] = exp(X[b,n], M[b])", "S[b] += E[b,n]", "Y[b,n] = div(E[b,n], S[b])")
    return tuple(einsum(text, {"b": b, "n": n}) for text in texts)


def layernorm(b: int, n: int) -> Cascade:
    """Each of b rows of n elements, in two passes. M and V are sums, whose factor 1 / n rides on the output; G scale, B shift."""
    texts = ("M[b] += X[b,n]", "D[b,n] = sub(X[b,n], M[b])", "V[b] += square(D[b,n])", "R[b] = rsqrt(V[b])",
             "Y[b,n] = normalize(D[b,n], R[b], G[n], B[n])")
    return tuple(einsum(text, {"b": b, "n": n}) for text in texts)


def rmsnorm(b: int, n: int) -> Cascade:
    """As `layernorm` without mean and shift (Zhang and Sennrich 2019)."""
    texts = ("V[b] += square(X[b,n])", "R[b] = rsqrt(V[b])", "Y[b,n] = X[b,n] * R[b] * G[n]")
    return tuple(einsum(text, {"b": b, "n": n}) for text in texts)


def attention(heads: int, q: int, context: int, d: int, kv: int = 0, b: int = 1) -> Cascade:
    """Attention of q new positions over a context that they end: prefill with q = context, decode with q = 1.

    heads: of the queries; kv: of keys and values, 0 for as many (grouped queries where fewer, multi-query with 1). Query head
    g * (heads / kv) + h reads K and V of head g. K and V are the caches with the new rows in them, which K_rows and V_rows
    append: data movement. No score is left out, so a causal mask saves nothing; the factor 1 / sqrt(d) rides on S.
    """
    kv = kv or heads
    faults = [f"attention: kv = {kv} must divide heads = {heads}"] if heads % kv else []
    if q > context:
        faults.append(f"attention: q = {q} must not be above context = {context}, which counts the new positions too")
    if faults:
        raise WorkloadError("\n".join(faults))
    texts = ("K_rows[b,g,q,d] = K_new[b,g,q,d]", "V_rows[b,g,q,d] = V_new[b,g,q,d]", "S[b,g,h,q,t] += Q[b,g,h,q,d] * K[b,g,t,d]",
             "M[b,g,h,q] max= S[b,g,h,q,t]", "E[b,g,h,q,t] = exp(S[b,g,h,q,t], M[b,g,h,q])", "L[b,g,h,q] += E[b,g,h,q,t]",
             "P[b,g,h,q,t] = div(E[b,g,h,q,t], L[b,g,h,q])", "O[b,g,h,q,d] += P[b,g,h,q,t] * V[b,g,t,d]")
    extents = {"b": b, "g": kv, "h": heads // kv, "q": q, "t": context, "d": d}
    return tuple(einsum(text, extents) for text in texts)


def embedding(t: int, v: int, d: int) -> Cascade:
    """Gather of t rows of a table of v rows of d elements, by t indices. Which rows is data: the t-th stands for any, and t > v read the table once."""
    return (einsum("Y[t,d] = copy(T[t,d], X[t])", {"t": t, "d": d}, "embedding", sizes={"T": (v, d)}),)

"""What training adds to a forward pass, as einsums."""

from __future__ import annotations

from typing import Literal

from workloads.cnn import Cascade
from workloads.einsum import einsum

UPDATES = {
    "sgd": ("W_new[n] = sgd(W[n], G[n])",),
    "momentum": ("U_new[n] = momentum(U[n], G[n])", "W_new[n] = sgd(W[n], U_new[n])"),
    "adam": ("M_new[n] = moment(M[n], G[n])", "V_new[n] = moment_of_square(V[n], G[n])", "W_new[n] = adam(W[n], M_new[n], V_new[n])")}


def optimizer(n: int, method: Literal["sgd", "momentum", "adam"] = "sgd") -> Cascade:
    """Update of n weights W by their gradients G; U, M and V are the state. Constants (rates, decays) cost nothing.

    Elements read and written: sgd 2 n and n; momentum 4 n and 2 n; adam 7 n and 3 n (Kingma and Ba 2015, Algorithm 1).
    """
    return tuple(einsum(text, {"n": n}) for text in UPDATES[method])

"""Turns a forward pass into a training step: gradients of every operator, updates of the weights.

Reverse mode on the notation itself. The gradient of an operand has the same loop nest, with this operand and
the output exchanged. Every affine index stays as it is, so a window becomes a scattered write:
    "O[p] += I[2*p+r-1] * W[r]"   gives   "d_I[2*p+r-1] += d_O[p] * W[r]"
                                  and     "d_W[r] += d_O[p] * I[2*p+r-1]"

The graph must be trained before functions are fused into their producers (`graph.fuse_into_producers`
afterwards), because a fused function has no einsum to differentiate. Batch normalisation is trained with
fixed statistics. A density belongs to the forward operand; gradients are dense, in the bits of the tensor
that they are the gradient of.

Roles are KAPLA's (Li and Gao 2023): input gradient (its layers ..._H), weight gradient (..._W).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from workloads.einsum import Dim, Einsum, Projection, WorkloadError, einsum
from workloads.graph import Workload, counts, packed_results
from workloads.layers import Cascade
from workloads.operators import names_in

Method = Literal["none", "sgd", "momentum", "adam"]
Role = Literal["input_gradient", "weight_gradient", "sum", "update"]
# (kind of the gradient's einsum, what it reads: positions of forward operands, G or Y)
Rule = tuple[str, tuple[int, ...]]

G, Y = -1, -2  # the gradient of the output; the forward output
UPDATES = {
    "sgd": ("W_new[n] = sgd(W[n], G[n])",),
    "momentum": ("U_new[n] = momentum(U[n], G[n])", "W_new[n] = sgd(W[n], U_new[n])"),
    "adam": (
        "M_new[n] = moment(M[n], G[n])",
        "V_new[n] = moment_of_square(V[n], G[n])",
        "W_new[n] = adam(W[n], M_new[n], V_new[n])",
    ),
}
# Kind -> rule per operand. Rules of products, sums, maxima and copies are in `_rule`. A function that is not
# listed reads the gradient of its output and all its operands.
DERIVATIVES: dict[str, tuple[Rule | None, ...]] = {
    "sub": (("copy", (G,)), ("neg", (G,))),
    "div": (("div", (G, 1)), ("div_grad", (G, 1, Y))),
    "neg": (("neg", (G,)),),
    "exp": (("mul", (G, Y)), ("neg_mul", (G, Y))),
    "relu": (("relu_grad", (G, Y)),),
    "sigmoid": (("sigmoid_grad", (G, Y)),),
    "tanh": (("tanh_grad", (G, Y)),),
    "square": (("square_grad", (G, 0)),),
    "sqrt": (("sqrt_grad", (G, Y)),),
    "rsqrt": (("rsqrt_grad", (G, Y)),),
    "softmax": (("softmax_grad", (G, Y)),),
    "bias": (("copy", (G,)), ("copy", (G,))),
    "fma": (("mul", (G, 1)), ("mul", (G, 0)), ("copy", (G,))),
    "rope": (("rope_grad", (G, 1)), None),
    "scan": (("scan_grad0", (G, 0, Y)), ("scan_grad1", (G, 0))),
    "exp_product": (("exp_product_grad0", (G, 1, Y)), ("exp_product_grad1", (G, 0, Y))),
    "normalize": (("mul", (G, 1, 2)), ("mul", (G, 0, 2)), ("mul", (G, 0, 1)), ("copy", (G,))),
    "batchnorm": (
        ("batchnorm_grad0", (G, 1, 4)),
        ("batchnorm_grad1", (G, 0, 3, 4)),
        ("copy", (G,)),
        None,
        None,
    ),
}
# scale and shift are trained; running mean and variance, and angles of rope, are not
DERIVATIVES["batchnormalization"] = DERIVATIVES["batchnorm"]
STEP_FUNCTIONS = names_in(  # their derivative is 0 wherever it exists
    "floor ceil round sign not isnan isinf equal less greater lessorequal greaterorequal and or xor hardmax "
    "bitshift bitwiseand bitwiseor bitwisexor bitwisenot argmax argmin"
)


@dataclass(frozen=True, slots=True)
class Gradient:
    """One einsum that training adds."""

    einsum: Einsum
    role: Role
    wrt: str  # tensor whose gradient (or, update, whose new value) it makes
    forward_name: str = ""  # the forward einsum that it differentiates; "": a sum or an update
    repeats: int = 1  # how often it runs


@dataclass(slots=True)
class Tape:
    """State of the backward pass."""

    forward: Workload
    part_count: Counter[str]  # tensor -> how many parts its gradient has
    dims: dict[str, tuple[Dim, ...]]  # tensor -> its dimensions
    names_in_use: set[str]  # of tensors and einsums
    no_gradient: tuple[str, ...]  # einsums that depend on a weight but have no gradient
    grads: dict[str, str] = field(default_factory=dict)  # tensor -> its gradient
    # tensor -> parts of its gradient that are not summed yet: the name of a gradient tensor, or a broadcast
    # (copy) that becomes an einsum only if the sum cannot read the broadcast's operand in its place
    gradient_parts: dict[str, list[str | Gradient]] = field(default_factory=dict)

    def fresh(self, name: str) -> str:
        """Returns the name, with underscores appended until it is unused."""
        while name in self.names_in_use:
            name += "_"
        self.names_in_use.add(name)
        return name


def optimizer(n: int, method: Literal["sgd", "momentum", "adam"] = "sgd") -> Cascade:
    """Update of n weights W by their gradients G; U, M and V are the state. Constants (rates, decays) cost
    nothing.

    Elements read and written: sgd 2 n and n; momentum 4 n and 2 n; adam 7 n and 3 n (Kingma and Ba 2015,
    Algorithm 1).
    """
    return tuple(einsum(text, {"n": n}) for text in UPDATES[method])


def training(
    forward: Workload, method: Method = "sgd", inputs: bool = False, results: Collection[str] = ()
) -> Workload:
    """Returns one training step: the forward pass, gradients of every operator that depends on a weight,
    updates of the weights.

    inputs: gradients of tensors from outside too (data needs none)
    results: tensors that the loss reads; (): all tensors that no einsum reads, except rows copied into caches

    The gradient d_T of a result T comes from outside. A gradient runs as often as the einsum that it
    differentiates. Raises WorkloadError, in one line, for results that no einsum makes, and where there is
    nothing to train.
    """
    if forward.loop_state and max(counts(forward)) > 1:
        raise WorkloadError(f"{forward.name}: gradients through a loop are not made; take form=unrolled")
    if packed := packed_results(forward):
        raise WorkloadError(
            f"{forward.name}: {packed[0].output.tensor} is a result in {packed[0].output.format}, and "
            "gradients of those are not made; store it dense"
        )
    found = gradients(forward, method, inputs, results)
    outputs = {g.einsum.output.tensor for g in found}
    state = {p.tensor for g in found if g.role == "update" for p in g.einsum.inputs} - outputs
    repeats = (*counts(forward), *(g.repeats for g in found))
    return replace(
        forward,
        name=f"{forward.name}:training",
        einsums=(*forward.einsums, *(g.einsum for g in found)),
        weights=forward.weights | state,
        repeats=repeats if max(repeats) > 1 else (),
    )


def gradients(
    forward: Workload, method: Method = "sgd", inputs: bool = False, results: Collection[str] = ()
) -> tuple[Gradient, ...]:
    """Returns the einsums that `training` adds to a forward pass, in an order in which they can run. Each
    weight is updated as soon as its gradient is complete.
    """
    tape, result_tensors = _tape(forward, inputs, results)
    for tensor in result_tensors:
        tape.gradient_parts[tensor] = [tape.fresh(f"d_{tensor}")]
    # gradient of a result, which comes from outside -> the result
    seeds = {str(tape.gradient_parts[tensor][0]): tensor for tensor in result_tensors}
    outputs = {e.output.tensor for e in forward.einsums}
    first_reader: dict[str, str] = {}
    for e in forward.einsums:
        for p in e.inputs:
            first_reader.setdefault(p.tensor, e.name)
    found: list[Gradient] = []
    for e, count in reversed([*forward.runs()]):
        if e.output.tensor in tape.gradient_parts:
            found += _sum_parts(tape, e.output.tensor, count)
            found += _backward(tape, e, count)
        for p in e.inputs:
            if (
                p.tensor in tape.gradient_parts
                and p.tensor not in outputs
                and first_reader[p.tensor] == e.name
            ):
                found += _sum_parts(tape, p.tensor, count)
                found += _update(tape, p, count, method) if p.tensor in forward.weights else ()
    if not found and tape.no_gradient:
        raise WorkloadError(
            f"{forward.name}: {tape.no_gradient[0]} has no gradient, and every way from a weight to a result "
            "leads through such operators, so there is nothing to train; leave it out"
        )
    if not found:
        raise WorkloadError(
            f"{forward.name}: no result depends on a weight, so there is nothing to train; inputs = "
            "yes differentiates the data"
        )
    return _in_widths(found, forward, seeds)


def _in_widths(
    found: Sequence[Gradient], forward: Workload, seeds: Mapping[str, str]
) -> tuple[Gradient, ...]:
    """Returns the gradients, and parts of gradients, in the bits of the tensor that they are the gradient of,
    wherever they are read.
    """
    bits = {p.tensor: p.bits for e in forward.einsums for p in e.tensors()}
    widths = {seed: bits[tensor] for seed, tensor in seeds.items()}
    widths |= {g.einsum.output.tensor: bits[g.wrt] for g in found if g.role != "update"}

    def sized(p: Projection) -> Projection:
        return replace(p, bits=widths.get(p.tensor, p.bits))

    return tuple(replace(g, einsum=g.einsum.map_projections(sized)) for g in found)


def _tape(forward: Workload, inputs: bool, results: Collection[str]) -> tuple[Tape, list[str]]:
    """Returns the tape, with the number of parts of every tensor's gradient, and the results. A part comes
    from each reader that lies between a weight (or an input) and a result.
    """
    dims_of = {p.tensor: p.dims for e in reversed(forward.einsums) for p in e.inputs} | {
        e.output.tensor: e.output.dims for e in forward.einsums
    }
    read = {p.tensor for e in forward.einsums for p in e.inputs}
    outputs = [e.output.tensor for e in forward.einsums]
    unknown = sorted(set(results) - set(outputs))
    if unknown:
        raise WorkloadError(
            f"{forward.name}: results: no einsum makes {', '.join(unknown)}; tensors that nothing reads are "
            f"{', '.join(t for t in outputs if t not in read)}"
        )
    wanted = set(forward.weights) | (set(dims_of) - set(outputs) if inputs else set())
    no_gradient = []
    for e in forward.einsums:
        rules = [_rule(e, i) for i, p in enumerate(e.inputs) if _base_tensor(dims_of, p) in wanted]
        wanted |= {e.output.tensor} if any(rules) else set()
        no_gradient += [f"{e.name} ({e.kind})"] if rules and not any(rules) else []
    copies = {e.output.tensor for e in forward.einsums if e.kind == "copy"}
    unread = [t for t in outputs if t in wanted and t not in read]
    result_tensors = (
        [t for t in outputs if t in wanted and t in results]
        or [t for t in unread if t not in copies]
        or unread
    )
    uses = Counter(result_tensors)
    for e in reversed(forward.einsums):
        if uses[e.output.tensor]:
            uses.update(
                base
                for i, p in enumerate(e.inputs)
                if (base := _base_tensor(dims_of, p)) in wanted and _rule(e, i)
            )
    return Tape(
        forward, uses, dims_of, set(dims_of) | {e.name for e in forward.einsums}, tuple(no_gradient)
    ), result_tensors


def _base_tensor(tensors: Collection[str], p: Projection) -> str:
    """Returns the tensor that an access belongs to: T_again is a second access of T."""
    first = p.tensor.removesuffix("_again")
    return first if first in tensors else p.tensor


def _rule(e: Einsum, i: int) -> Rule | None:
    """Returns how the gradient of operand i is computed at one point of the loop nest; None: it has no
    gradient (indices, step functions).
    """
    match e.kind:
        case "mac" | "mul":
            return e.kind, (G, *(j for j in range(len(e.inputs)) if j != i))
        case "add":
            return "copy", (G,)
        case "max":
            return "max_grad", (G, i, Y)
        case "copy":
            return ("copy", (G,)) if i == 0 or _is_concat_piece(e, i) else None
    if e.kind in STEP_FUNCTIONS:
        return None
    rules = DERIVATIVES.get(e.kind, ())
    if e.kind == "batchnormalization" and len(e.inputs) == 3:  # mean and variance folded into scale and shift
        rules = DERIVATIVES["fma"]
    if i < len(rules):
        rule = rules[i]
        # a rule that reads Y needs the function's value at one point, which a sum over points is not
        if rule is None or Y not in rule[1] or set(e.sizes()) <= e.output.ranks():
            return rule
    return f"{e.kind}_grad{i if len(e.inputs) > 1 else ''}", (G, *range(len(e.inputs)))


def _is_concat_piece(e: Einsum, i: int) -> bool:
    """True if operand i of a copy is a further piece of a concatenation: there are iterations at which it is
    inside of its stored shape and the first operand is not. Otherwise it is an index or a shape.
    """
    first, p = e.inputs[0], e.inputs[i]
    first_box, box = _box(first, e.sizes()), _box(p, e.sizes())
    return not p.ranks() < first.ranks() and any(
        box[rank].start < first_box[rank].start or box[rank].stop > first_box[rank].stop for rank in box
    )


def _box(p: Projection, extents: dict[str, int]) -> dict[str, range]:
    """Returns rank -> the iterations at which an access is inside of the stored tensor. Dimensions with
    several ranks do not narrow it.
    """
    box = {rank: range(n) for rank, n in extents.items()}
    for d in p.dims:
        if len(d.terms) == 1:
            (rank, c), old = d.terms[0], box[d.terms[0][0]]
            box[rank] = range(
                max(old.start, -(d.offset // c)), min(old.stop, (d.size - 1 - d.offset) // c + 1)
            )
    return box


def _backward(tape: Tape, e: Einsum, count: int) -> Iterator[Gradient]:
    """Yields gradients of the operands of one einsum, which runs `count` times. An operand whose gradient
    equals the output's gradient needs no einsum.
    """
    grad = replace(e.output, tensor=tape.grads[e.output.tensor])
    for i, p in enumerate(e.inputs):
        rule, wrt = _rule(e, i), _base_tensor(tape.dims, p)
        if not tape.part_count[wrt] or rule is None:
            continue
        parts, has_several = tape.gradient_parts.setdefault(wrt, []), tape.part_count[wrt] > 1
        derived = _derived(e, rule, grad, replace(p, density=1.0, format="dense"))
        if derived.kind == "copy" and derived.output.dims == grad.dims and _is_one_to_one(derived):
            parts.append(grad.tensor)
            continue
        is_weight = wrt in tape.forward.weights
        tensor = tape.fresh(f"d_{wrt}__{e.output.tensor}" if has_several else f"d_{wrt}")
        named = replace(
            derived,
            name=tape.fresh(f"{e.name}_{'W' if is_weight else 'H'}_{p.tensor}"),
            output=replace(derived.output, tensor=tensor),
        )
        step = Gradient(named, "weight_gradient" if is_weight else "input_gradient", wrt, e.name, count)
        # no einsum yet: the sum of the parts may read the broadcast's operand directly (`_sum_parts`)
        is_deferred = has_several and derived.kind == "copy" and _is_one_to_one(derived)
        parts.append(step if is_deferred else tensor)
        if not is_deferred:
            yield step


def _derived(e: Einsum, rule: Rule, grad: Projection, out: Projection) -> Einsum:
    """Returns the loop nest of e with the gradient of one operand as its output."""
    kind, reads = rule
    inputs = tuple({G: grad, Y: e.output}.get(r) or e.inputs[r] for r in reads)
    used = {rank for p in (out, *inputs) for rank in p.ranks()}
    missing = [rank for rank, n in e.extents if rank not in used and n > 1]
    if missing:
        raise WorkloadError(
            f"{e.name}: sums {out.tensor} over rank {missing[0]}, which it does not have; leave that "
            "sum out to train it"
        )
    found = Einsum(e.name, kind, out, inputs, tuple((rank, n) for rank, n in e.extents if rank in used))
    if kind == "copy":
        found = _narrowed(found)
    # True if several iterations may add to one element
    scattered = any(len(d.terms) > 1 for d in out.dims)
    if scattered or not set(found.sizes()) <= out.ranks():
        found = replace(found, kind={"mul": "mac", "copy": "add"}.get(kind, kind))
    return found


def _narrowed(e: Einsum) -> Einsum:
    """Returns the einsum without iterations that write outside of the stored output (pieces of a
    concatenation, pads).
    """
    box = _box(e.output, e.sizes())

    def shifted(p: Projection) -> Projection:
        starts = (d.offset + sum(c * box[rank].start for rank, c in d.terms) for d in p.dims)
        return replace(
            p, dims=tuple(replace(d, offset=start) for d, start in zip(p.dims, starts, strict=True))
        )

    return e.map_projections(shifted, extents=tuple((rank, len(at)) for rank, at in box.items()))


def _is_one_to_one(e: Einsum) -> bool:
    """True if every point writes its own element of the output, and every element is written."""
    return _is_plain(e.output.dims, e.sizes()) and set(e.sizes()) <= e.output.ranks()


def _is_plain(dims: tuple[Dim, ...], extents: dict[str, int]) -> bool:
    """True if one rank alone indexes each dimension (coefficient 1, offset 0), over its full size; a rank
    that has no extent in `extents` counts as full.
    """
    return all(
        len(d.terms) == 1
        and d.terms[0][1] == 1
        and d.offset == 0
        and extents.get(d.terms[0][0], d.size) == d.size
        for d in dims
    )


def _sum_parts(tape: Tape, tensor: str, count: int) -> Iterator[Gradient]:
    """Yields the einsums that sum the parts of a tensor's gradient; a single part is the gradient itself. A
    part that is a broadcast is not written: the sum reads the broadcast's operand, if the shapes allow it.
    """
    grad_parts = tape.gradient_parts[tensor]
    if len(grad_parts) == 1:
        (grad_part,) = grad_parts
        tape.grads[tensor] = grad_part if isinstance(grad_part, str) else grad_part.einsum.output.tensor
        if isinstance(grad_part, Gradient):
            yield grad_part
        return
    dims = tape.dims[tensor]
    if not _is_plain(dims, {}):
        dims = tuple(Dim(((f"i{at}", 1),), 0, d.size) for at, d in enumerate(dims))
    extents = tuple((d.terms[0][0], d.size) for d in dims)
    parts: dict[str, Projection] = {}
    for grad_part in grad_parts:
        operand = (
            Projection(grad_part, dims)
            if isinstance(grad_part, str)
            else _broadcast_source(grad_part.einsum, dims)
        )
        if operand is None or operand.tensor in parts:  # an einsum may read a tensor only once
            gradient = grad_part
            if isinstance(gradient, str):
                gradient = _copy(tape, Projection(gradient, dims), tensor, extents, count)
            yield gradient
            operand = Projection(gradient.einsum.output.tensor, dims)
        parts[operand.tensor] = operand
    tape.grads[tensor] = tape.fresh(f"d_{tensor}")
    total = Projection(tape.grads[tensor], dims)
    summed = Einsum(tape.fresh(f"{tensor}_sum"), "add", total, tuple(parts.values()), extents)
    yield Gradient(summed, "sum", tensor, repeats=count)


def _copy(
    tape: Tape, source: Projection, tensor: str, extents: tuple[tuple[str, int], ...], count: int
) -> Gradient:
    copied = replace(source, tensor=tape.fresh(f"{source.tensor}__again"))
    return Gradient(
        Einsum(tape.fresh(f"{tensor}_again"), "copy", copied, (source,), extents),
        "sum",
        tensor,
        repeats=count,
    )


def _broadcast_source(part: Einsum, dims: tuple[Dim, ...]) -> Projection | None:
    """Returns the source of a broadcast, in the ranks of the sum; None if the shapes differ."""
    if [d.size for d in part.output.dims] != [d.size for d in dims]:
        return None
    rename = {old.terms[0][0]: new.terms[0][0] for old, new in zip(part.output.dims, dims, strict=True)}
    (source,) = part.inputs
    return replace(
        source,
        dims=tuple(replace(d, terms=tuple((rename[rank], c) for rank, c in d.terms)) for d in source.dims),
    )


def _update(tape: Tape, weight: Projection, count: int, method: Method) -> Iterator[Gradient]:
    if method == "none":
        return
    if weight.format != "dense":
        name = tape.forward.name
        raise WorkloadError(
            f"{name}: weight {weight.tensor} is {weight.format}, and its update writes all elements; leave "
            "format out to train it"
        )
    names = {"W": weight.tensor, "G": tape.grads[weight.tensor]}
    for e in optimizer(weight.stored_elems(), method):
        for t in (p.tensor for p in e.tensors() if p.tensor not in names):
            names[t] = tape.fresh(f"{weight.tensor}{t[1:] if t[0] == 'W' else f'_{t}'}")
        named = e.map_projections(
            lambda p: replace(p, tensor=names[p.tensor], bits=weight.bits),
            name=tape.fresh(f"{names[e.output.tensor]}_update"),
        )
        yield Gradient(named, "update", weight.tensor, repeats=count)


def roles(g: Gradient) -> dict[str, str]:
    """Returns KAPLA's role of each tensor of a gradient of a layer with one weight: FIL, IFM, OFM -> tensor.

    Input gradient: the output's gradient is the input map, the layer's weight the filter, and the result the
    output map. Weight gradient: the loops of the forward pass; the filter is written, and the output's
    gradient takes the role of the output map.
    """
    output_grad, *others = (p.tensor for p in g.einsum.inputs)
    result = g.einsum.output.tensor
    if g.role not in ("input_gradient", "weight_gradient") or len(others) != 1:
        return {}
    if g.role == "input_gradient":
        return {"FIL": others[0], "IFM": output_grad, "OFM": result}
    return {"FIL": result, "IFM": others[0], "OFM": output_grad}

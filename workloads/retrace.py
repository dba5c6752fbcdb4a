"""Rebinds the batch of a torch.export program that has a fixed one: its operators run again on tensors
without data, by the method of workloads/rebind.py.

The result of an operator must have the batch in the same dimension, with the new size; a view keeps it in
place. Otherwise one constant, or one number among the sizes given to the operator, has the old batch built in
and is scaled. A program for which no such change fits is refused, with the operator's name.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any

from workloads.einsum import WorkloadError
from workloads.rebind import Batch

RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")
# operators that make constants of a given size, in the type of their input
CONSTANT_MAKERS = ("new_zeros", "new_ones", "new_full", "new_empty")
VIEWS = ("view", "_unsafe_view", "reshape")
# names of arguments that are sizes
SIZE_ARGUMENTS = ("size", "sizes", "shape", "repeats", "split_sizes", "end")


def retrace(where: str, program: Any, new: int) -> Batch | None:
    """Replaces the recorded value of every node (node.meta["val"]) by its value at the new batch. Returns
    None if the batch is the same. Raises WorkloadError.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    signature, nodes = program.graph_signature, list(program.graph.nodes)
    data = [
        n
        for n in nodes
        if n.op == "placeholder" and n.name in signature.user_inputs and hasattr(n.meta.get("val"), "shape")
    ]
    file_batch = next((n.meta["val"].shape[0] for n in data if len(n.meta["val"].shape)), None)
    if file_batch is None:
        raise WorkloadError(f"{where}: batch = {new}, but no input has a first dimension to rebind")
    batch = Batch(int(file_batch), new)
    if batch.old == new:
        return None
    logger = logging.getLogger("torch._subclasses.fake_tensor")  # it logs every attempt that fails
    logger.disabled = True
    with FakeTensorMode(allow_non_fake_inputs=True):
        for node in nodes:
            old = node.meta.get("val")
            if node.op == "placeholder":
                node.meta["val"] = _input(node, old, batch, node in data)
            elif node.op == "call_function":
                node.meta["val"] = _run(where, node, old, batch)
            node.meta["before"] = old
    logger.disabled = False
    return batch


def _kind(node: Any) -> str:
    return str(node.target).split(".")[1] if str(node.target).startswith("aten.") else ""


def tensors_of(value: Any) -> list[Any]:
    """Returns the tensors of a recorded value, which may be one, several, or a number."""
    return [
        v
        for v in (value if isinstance(value, (tuple, list)) else [value])
        if hasattr(v, "shape") and hasattr(v, "dtype")
    ]


def _input(node: Any, old: Any, batch: Batch, is_data: bool) -> Any:
    if not hasattr(old, "shape"):
        return old
    shape = tuple(old.shape)
    if is_data and shape[:1] == (batch.old,):
        batch.inherit(node.name, 0, shape, iter(()))
        shape = (batch.new, *shape[1:])
    return _empty(shape, old)


def _empty(shape: Sequence[int], like: Any) -> Any:
    import torch

    return torch.empty(tuple(shape), dtype=like.dtype, device=like.device)


def _run(where: str, node: Any, old: Any, batch: Batch) -> Any:
    """Returns the operator's result: at the new batch if it reads a batched tensor, else the old one."""
    import torch
    from torch.fx.node import map_arg

    if getattr(node.target, "__name__", "") == "getitem":
        source, number = node.args
        if (position := batch.positions.get(f"{source.name}/{number}")) is not None:
            batch.positions[node.name] = position
        return source.meta["val"][number]
    reads = [n for n in node.all_input_nodes if n.name in batch.positions]
    if not reads or _kind(node) in CONSTANT_MAKERS:
        return old
    sources = [(n.name, tuple(t.shape)) for n in reads for t in tensors_of(n.meta["before"])[:1]]
    target = torch.ops.aten.reshape.default if _kind(node) in VIEWS else node.target
    for args, kwargs in _versions(node, old, batch):
        try:
            found = target(
                *map_arg(args, lambda n: n.meta["val"]), **map_arg(kwargs, lambda n: n.meta["val"])
            )
        except (RuntimeError, ValueError, IndexError, TypeError):
            continue
        if _grew(node, old, found, batch, sources):
            node.args, node.kwargs = args, kwargs
            return found
    shapes = ", ".join(f"{name} {list(shape)}" for name, shape in sources)
    raise WorkloadError(
        f"{where}: batch = {batch.new}: {node.name} ({node.target}): the batch {batch.old} that the program "
        f"fixes cannot be replaced here (at batch {batch.old} it reads {shapes}); export the program with "
        f"batch {batch.new}"
    )


def _grew(
    node: Any, old: Any, found: Any, batch: Batch, sources: Sequence[tuple[str, tuple[int, ...]]]
) -> bool:
    """True if every result that is read has the samples of the new batch; records in which dimension."""
    is_tuple = isinstance(old, (tuple, list))
    if len(tensors_of(old)) != len(tensors_of(found)):
        return False
    read = {user.args[1] for user in node.users if is_tuple and user.users}
    for number, (before, after) in enumerate(zip(tensors_of(old), tensors_of(found), strict=True)):
        axis = batch.grown_axis(tuple(before.shape), tuple(after.shape))
        output = f"{node.name}/{number}" if is_tuple else node.name
        if is_tuple and number not in read:
            continue
        if axis is None or (output in batch.positions and batch.positions[output].axis != axis):
            return False
        if output not in batch.positions:
            batch.inherit(output, axis, tuple(before.shape), iter(sources))
    return True


def _versions(node: Any, old: Any, batch: Batch) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    """Yields arguments to try: the original ones, then with one constant or one size scaled. For a view they
    are known: reshape to the shape at the new batch.
    """
    kind = _kind(node)
    if kind in VIEWS:  # reshape works for any memory layout
        source = node.args[0]
        new = batch.reshaped(source.name, node.name, tuple(source.meta["before"].shape), tuple(old.shape))
        if new is not None:
            yield (source, list(new)), {}
        return
    if kind in RECURRENT:  # torch's shape rule ignores the first states
        states = node.args[1] if isinstance(node.args[1], (list, tuple)) else [node.args[1]]
        grown = [n if n.name in batch.positions else _copy(n, _state_shape(n, batch), node) for n in states]
        yield (
            (node.args[0], grown if isinstance(node.args[1], (list, tuple)) else grown[0], *node.args[2:]),
            node.kwargs,
        )
        return
    yield node.args, node.kwargs
    names = [a.name for a in node.target._schema.arguments] if hasattr(node.target, "_schema") else []
    for position, arg in enumerate(node.args):
        for grown in _scaled_args(
            arg, batch, position < len(names) and names[position] in SIZE_ARGUMENTS, node
        ):
            yield (*node.args[:position], grown, *node.args[position + 1 :]), node.kwargs


def _state_shape(state: Any, batch: Batch) -> tuple[int, ...]:
    """Returns the shape of a first state [layers, batch, width] at the new batch."""
    layers, size, width = state.meta["val"].shape
    return (layers, batch.new if size == batch.old else size, width)


def _scaled_args(arg: Any, batch: Batch, sizes: bool, node: Any) -> Iterator[Any]:
    """Yields versions of an argument with one constant, or (sizes: True) one number, scaled to the new
    batch.
    """
    if isinstance(arg, (list, tuple)):
        for i, value in enumerate(arg):
            yield from ([*arg[:i], grown, *arg[i + 1 :]] for grown in _scaled_args(value, batch, sizes, node))
    elif isinstance(arg, int) and not isinstance(arg, bool):
        if sizes and arg > 0 and (new := batch.scaled(arg)):
            yield new
    elif hasattr(arg, "meta") and arg.name not in batch.positions and hasattr(arg.meta.get("val"), "shape"):
        shape = tuple(arg.meta["val"].shape)
        for i, size in enumerate(shape):
            if new := batch.scaled(size):
                yield _copy(arg, (*shape[:i], new, *shape[i + 1 :]), node)


def _copy(constant: Any, shape: tuple[int, ...], reader: Any) -> Any:
    """Returns a copy of a constant for one operator. Nothing reads it if it does not fit."""
    import torch

    with reader.graph.inserting_before(reader):
        found = reader.graph.call_function(torch.ops.aten.alias.default, (constant,))
    found.meta["val"] = _empty(shape, constant.meta["val"])
    return found

"""Small ONNX graphs, grown node by node."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper
from onnx import numpy_helper as nph

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


class Build:
    """Grows a graph of an opset. Weights are zeros of the given shape, only shapes count; inputs named ids
    are whole numbers.
    """

    def __init__(self, opset: int = 13) -> None:
        self.opset = opset
        self.nodes: list[Any] = []
        self.init: list[Any] = []

    def const(self, *shape: int) -> str:
        self.init.append(nph.from_array(np.zeros(shape, np.float32), f"w{len(self.init)}"))
        return str(self.init[-1].name)

    def ints(self, *values: int) -> str:
        self.init.append(nph.from_array(np.array(values, np.int64), f"i{len(self.init)}"))
        return str(self.init[-1].name)

    def add(self, op: str, *inputs: str, domain: str = "", outputs: int = 1, **attrs: Any) -> str:
        """The first output's name."""
        made = [f"t{len(self.nodes)}{'abcd'[i] if i else ''}" for i in range(outputs)]
        self.nodes.append(
            helper.make_node(op, list(inputs), made, name=f"n{len(self.nodes)}", domain=domain, **attrs)
        )
        return made[0]

    def model(self, inputs: dict[str, tuple[Any, ...]], outputs: list[str]) -> ModelProto:
        ins = [helper.make_tensor_value_info(n, INT if n == "ids" else FLOAT, s) for n, s in inputs.items()]
        graph = helper.make_graph(
            self.nodes, "g", ins, [helper.make_tensor_value_info(o, FLOAT, None) for o in outputs], self.init
        )
        return helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", self.opset), helper.make_opsetid("my", 1)],
            ir_version=10,
        )

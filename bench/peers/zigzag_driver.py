"""Runs inside ZigZag's own environment: maps an ONNX network and prints one JSON object. Needs zigzag-dse and six, nothing of ours.

python zigzag_driver.py MACHINE.yaml MAPPING.yaml FOLDER [LAYERS]
"""

import json
import logging
import sys
import time
from pathlib import Path

import onnx
import zigzag
from zigzag.api import get_hardware_performance_zigzag

NETWORK = Path(zigzag.__file__).parent / "inputs" / "workload" / "resnet18.onnx"


class Clock(logging.Handler):
    """CPU seconds at which each layer begins."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: list[float] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("Processing "):
            self.starts.append(time.process_time())


def network(layers: int, folder: str) -> str:
    """The path of ResNet-18, or of its first convolutions and matrix products."""
    if not layers:
        return str(NETWORK)
    model = onnx.load(NETWORK, load_external_data=False)
    at = [i for i, node in enumerate(model.graph.node) if node.op_type in ("Conv", "Gemm", "MatMul")]
    for node in list(model.graph.node)[at[min(layers, len(at)) - 1] + 1 :]:
        model.graph.node.remove(node)
    onnx.save(model, f"{folder}/first.onnx")
    return f"{folder}/first.onnx"


def loops(levels: list) -> list[list[tuple[str, int]]]:
    return [[(str(dim), int(n)) for dim, n in level] for level in levels]


def main(machine: str, mapping: str, folder: str, layers: int) -> None:
    logging.basicConfig(level=logging.INFO, filename=f"{folder}/zigzag.log")
    clock = Clock()
    logging.getLogger().addHandler(clock)
    path = network(layers, folder)
    began = time.process_time()
    energy, latency, found = get_hardware_performance_zigzag(
        path, machine, mapping, opt="energy", dump_folder=f"{folder}/out", pickle_filename=f"{folder}/out/all.pickle", loma_show_progress_bar=False)
    ends = [*clock.starts[1:], time.process_time()]
    rows = []
    for (cost, _), start, end in zip(found[0][1], clock.starts, ends, strict=True):
        rows.append({
            "name": cost.layer.name, "sizes": {str(dim): int(n) for dim, n in cost.layer.layer_dim_sizes.data.items()}, "cpu_s": end - start,
            "energy_pj": float(cost.energy_total), "latency_cycles": float(cost.latency_total2),
            "temporal": {str(op): loops(levels) for op, levels in cost.temporal_mapping.mapping_dic_stationary.items()},
            "spatial": loops([cost.spatial_mapping.spatial_loop_dim_size])[0]})
    print(json.dumps({"network": str(NETWORK), "cpu_s": time.process_time() - began, "energy_pj": energy, "latency_cycles": latency, "layers": rows}))


if __name__ == "__main__":
    main(*sys.argv[1:4], int(sys.argv[4]) if len(sys.argv) > 4 else 0)

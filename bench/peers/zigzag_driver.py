"""Runs inside ZigZag's own environment: maps an ONNX network and prints one JSON object. Needs zigzag-dse and
six, nothing of ours.

python zigzag_driver.py MACHINE.yaml MAPPING.yaml FOLDER energy|latency LAYERS [ORDERS.json]

ORDERS.json: temporal loops of every layer, per operand and memory; then nothing is searched, these mappings
are priced.
"""

import json
import logging
import sys
import time
from pathlib import Path

import onnx
import zigzag
from zigzag import api
from zigzag.datatypes import LayerDim, LayerOperand
from zigzag.mapping.temporal_mapping import TemporalMapping
from zigzag.stages.mapping.temporal_mapping_generator_stage import TemporalMappingGeneratorStage

NETWORK = Path(zigzag.__file__).parent / "inputs" / "workload" / "resnet18.onnx"
BITS = 8


class Clock(logging.Handler):
    """CPU seconds at which each layer begins."""

    def __init__(self) -> None:
        super().__init__()
        self.starts: list[float] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.getMessage().startswith("Processing "):
            self.starts.append(time.process_time())


def network(layers: int, folder: str) -> str:
    """The path of ResNet-18, or of its first convolutions and matrix products; sums of as many bits as all
    else (its default is twice as many).
    """
    model = onnx.load(NETWORK, load_external_data=False)
    at = [i for i, node in enumerate(model.graph.node) if node.op_type in ("Conv", "Gemm", "MatMul")]
    for i in at:
        model.graph.node[i].attribute.append(onnx.helper.make_attribute("output_size", BITS))
    for node in list(model.graph.node)[at[min(layers, len(at)) - 1] + 1 :] if layers else []:
        model.graph.node.remove(node)
    onnx.save(model, f"{folder}/network.onnx")
    return f"{folder}/network.onnx"


def loops(levels: list) -> list[list[tuple[str, int]]]:
    return [[(str(dim), int(n)) for dim, n in level] for level in levels]


def given(orders: dict) -> type:
    """A stage that yields the loops it was given in place of a search."""

    class Given(TemporalMappingGeneratorStage):
        def generate_temporal_mappings(self):  # of ZigZag's types
            order = {
                LayerOperand(op): [[(LayerDim(dim), n) for dim, n in level] for level in levels]
                for op, levels in orders[self.layer.name].items()
            }
            yield TemporalMapping(order, self.layer, self.mapping_type)

    return Given


def main(machine: str, mapping: str, folder: str, opt: str, layers: int, orders: str) -> None:
    logging.basicConfig(level=logging.INFO, filename=f"{folder}/zigzag.log")
    clock = Clock()
    logging.getLogger().addHandler(clock)
    path = network(layers, folder)
    began = time.process_time()
    if orders:
        api.TemporalMappingGeneratorStage = given(json.loads(Path(orders).read_text()))
    energy, latency, found = api.get_hardware_performance_zigzag(
        path,
        machine,
        mapping,
        opt=opt,
        dump_folder=f"{folder}/out",
        pickle_filename=f"{folder}/out/all.pickle",
        loma_show_progress_bar=False,
    )
    ends = [*clock.starts[1:], time.process_time()]
    rows = []
    for (cost, _), start, end in zip(found[0][1], clock.starts, ends, strict=True):
        rows.append(
            {
                "name": cost.layer.name,
                "sizes": {str(dim): int(n) for dim, n in cost.layer.layer_dim_sizes.data.items()},
                "cpu_s": end - start,
                "energy_pj": float(cost.energy_total),
                "by_memory": {
                    str(op): [float(pj) for pj in own] for op, own in cost.mem_energy_breakdown.items()
                },
                "mac_pj": float(cost.mac_energy),
                "latency_cycles": float(cost.latency_total2),
                "temporal": {
                    str(op): loops(levels)
                    for op, levels in cost.temporal_mapping.mapping_dic_stationary.items()
                },
                "spatial": loops([cost.spatial_mapping.spatial_loop_dim_size])[0],
            }
        )
    print(
        json.dumps(
            {
                "network": str(NETWORK),
                "cpu_s": time.process_time() - began,
                "energy_pj": energy,
                "latency_cycles": latency,
                "layers": rows,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:5], int(sys.argv[5]), sys.argv[6] if len(sys.argv) > 6 else "")

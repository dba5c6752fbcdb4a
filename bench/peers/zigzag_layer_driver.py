"""Runs inside ZigZag's own environment: prices given mappings of layers on an accelerator and prints one JSON
object. Needs zigzag-dse and six, nothing of ours.

python zigzag_layer_driver.py ACCELERATOR.yaml WORKLOAD.yaml MAPPING.yaml FOLDER

MAPPING.yaml: as `dse map --format zigzag` prints it. Its `temporal_mapping` takes the place of ZigZag's
search.
"""

import json
import logging
import sys
from pathlib import Path

import yaml
from zigzag import api
from zigzag.datatypes import LayerDim, LayerOperand
from zigzag.hardware.architecture.memory_port import DataDirection
from zigzag.mapping.data_movement import DataMoveAttr
from zigzag.mapping.temporal_mapping import TemporalMapping
from zigzag.stages.mapping.temporal_mapping_generator_stage import TemporalMappingGeneratorStage


def given(mappings: dict) -> type:
    """A stage that yields the loops it was given in place of a search."""

    class Given(TemporalMappingGeneratorStage):
        def generate_temporal_mappings(self):  # of ZigZag's types
            order = {
                LayerOperand(op): [[(LayerDim(dim), int(n)) for dim, n in level] for level in levels]
                for op, levels in mappings[self.layer.name].items()
            }
            yield TemporalMapping(order, self.layer, self.mapping_type)

    return Given


def main(accelerator: str, workload: str, mapping: str, folder: str) -> None:
    logging.basicConfig(level=logging.INFO, filename=f"{folder}/zigzag.log")
    layers = yaml.safe_load(Path(mapping).read_text())
    temporal = {one["name"]: one.pop("temporal_mapping") for one in layers}
    path = Path(folder) / "spatial.yaml"
    path.write_text(yaml.safe_dump([layers[0] | {"name": "default"}, *layers], sort_keys=False))
    api.TemporalMappingGeneratorStage = given(temporal)
    *_, found = api.get_hardware_performance_zigzag(
        workload,
        accelerator,
        str(path),
        opt="energy",
        dump_folder=f"{folder}/out",
        pickle_filename=f"{folder}/out/all.pickle",
        loma_show_progress_bar=False,
    )
    for cost, _ in found[0][1]:
        priced = {
            "memories": {str(op): moved(cost, op) for op in cost.layer.layer_operands},
            "spatial": {
                str(dim): {str(rank): float(n) for rank, n in own.items()}
                for dim, own in cost.layer.spatial_mapping.items()
            },
            "mac_pj": float(cost.mac_energy),
            # computing with stalls, the first tiles, the last ones
            "cycles": [
                float(cost.latency_total0),
                float(cost.latency_total1 - cost.latency_total0),
                float(cost.latency_total2 - cost.latency_total1),
            ],
        }
        print(json.dumps(priced))


def moved(cost, op) -> list:
    """Per memory of an operand, innermost first: its energy, and each direction of its transfers as [is a
    read, is with the memory inside, elements, bits of an element, largest access in bits, energy of one].
    """
    found = []
    mem_op = cost.memory_operand_links.layer_to_mem_op(op)
    for v, pj in enumerate(cost.mem_energy_breakdown[op]):
        level = cost.accelerator.get_memory_level(mem_op, v)
        data = cost.mapping.unit_mem_data_movement[op][v]
        amount, bits, periods = (
            data.get_attribute(kind)
            for kind in (
                DataMoveAttr.DATA_TRANS_AMOUNT_PER_PERIOD,
                DataMoveAttr.DATA_PRECISION,
                DataMoveAttr.DATA_TRANS_PERIOD_COUNT,
            )
        )
        units = cost.mapping.spatial_mapping.unit_count[op][v + 1]
        rows = []
        for way in DataDirection:
            is_read = way in (DataDirection.RD_OUT_TO_LOW, DataDirection.RD_OUT_TO_HIGH)
            elems = amount.get(way) * periods.get(way) * units
            if elems:
                is_inner = way in (DataDirection.RD_OUT_TO_LOW, DataDirection.WR_IN_BY_LOW)
                one = level.read_energy if is_read else level.write_energy
                most = level.get_max_bandwidth(mem_op, way)
                rows.append([is_read, is_inner, float(elems), bits.get(way), most, float(one)])
        found.append([float(pj), rows])
    return found


if __name__ == "__main__":
    main(*sys.argv[1:5])

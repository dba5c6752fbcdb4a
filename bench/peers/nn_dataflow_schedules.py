"""Runs inside nn-dataflow's own environment: its exhaustive search for fully connected layers on a machine in
KAPLA's setting; prints one JSON object.

python nn_dataflow_schedules.py UNITS BATCH HARDWARE: UNITS are widths, e.g. 784-1000-10; HARDWARE is JSON
with nodes, array, gbuf, regf (words), bus and dram (words per cycle), and pj (mac, hop, idle, and dram, gbuf,
itcn, regf). Per layer: partition of the nodes, loop blocking, and what it says the layer costs.
"""

import itertools
import json
import sys

from nn_dataflow.core import (
    Cost,
    FCLayer,
    InputLayer,
    MapStrategyEyeriss,
    Network,
    NNDataflow,
    NodeRegion,
    Option,
    PhyDim2,
    Resource,
)
from nn_dataflow.core import data_category_enum as de
from nn_dataflow.core import parallel_enum as pe

PARALLEL = {"k": pe.OUTP, "pq": pe.OFMP, "n": pe.BATP, "c": pe.INPP}


def main(units, batch, hardware):
    network, nodes = Network("mlp"), PhyDim2(*hardware["nodes"])
    network.set_input_layer(InputLayer(units[0], 1))
    for i, (inputs, outputs) in enumerate(itertools.pairwise(units), 1):
        network.add(f"fc{i}", FCLayer(inputs, outputs))
    whole = NodeRegion(origin=PhyDim2(0, 0), dim=nodes, type=NodeRegion.PROC)
    if nodes.size() > 1:
        memory = NodeRegion(
            dim=PhyDim2(2, 2), origin=PhyDim2(0, 0), dist=nodes - PhyDim2(1, 1), type=NodeRegion.DRAM
        )
    else:
        memory = NodeRegion(origin=PhyDim2(0, 0), dim=PhyDim2(1, 1), type=NodeRegion.DRAM)
    resource = Resource(
        proc_region=whole,
        dram_region=memory,
        src_data_region=memory,
        dst_data_region=memory,
        dim_array=PhyDim2(*hardware["array"]),
        size_gbuf=hardware["gbuf"],
        size_regf=hardware["regf"],
        array_bus_width=hardware["bus"],
        dram_bandwidth=hardware["dram"],
        no_time_mux=False,
    )
    pj = hardware["pj"]
    cost = Cost(
        mac_op=pj["mac"],
        mem_hier=(pj["dram"], pj["gbuf"], pj["itcn"], pj["regf"]),
        noc_hop=pj["hop"],
        idl_unit=pj["idle"],
    )
    many = nodes.size() > 1
    options = Option(
        sw_gbuf_bypass=(False,) * 3,
        sw_solve_loopblocking=False,
        hw_gbuf_sharing=many,
        partition_hybrid=many,
        partition_batch=many,
        partition_ifmaps=False,
        ntops=1,
        nprocesses=1,
    )
    tops, _ = NNDataflow(network, batch, resource, cost, MapStrategyEyeriss).schedule_search(options)
    layers = []
    for result in tops[0].res_dict.values():
        s = result.scheme
        part = s["part"]
        layers.append(
            {
                "tvals": s["tvals"],
                "orders": s["orders"],
                "unit_size": s["unit_size"],
                "part": {key: list(part.pdims[at]) for key, at in PARALLEL.items()},
                "order": [next(key for key, at in PARALLEL.items() if at == one) for one in part.order],
                "access": s["access"],
                "mem_nhops": s["mem_nhops"],
                "node_nhops": s["node_nhops"],
                "ops": s["ops"],
                "time": s["time"],
                "cost_static": s["cost_static"],
            }
        )
    assert (de.FIL, de.IFM, de.OFM) == (0, 1, 2)
    print(json.dumps({"energy": tops[0].total_cost, "time": tops[0].total_time, "layers": layers}))


if __name__ == "__main__":
    main([int(n) for n in sys.argv[1].split("-")], int(sys.argv[2]), json.loads(sys.argv[3]))

"""Runs inside nn-dataflow's own environment: exhaustive schedule search of one of its networks on one node;
prints one JSON object.

python nn_dataflow_driver.py NETWORK LAYERS
"""

import json
import sys
import time

from nn_dataflow.core import (
    Cost,
    MapStrategyEyeriss,
    Network,
    NNDataflow,
    NodeRegion,
    Option,
    PhyDim2,
    Resource,
)
from nn_dataflow.nns import import_network


def main(name: str, layers: int) -> None:
    network = import_network(name)
    whole = NodeRegion(origin=PhyDim2(0, 0), dim=PhyDim2(1, 1), type=NodeRegion.PROC)
    memory = NodeRegion(origin=PhyDim2(0, 0), dim=PhyDim2(1, 1), type=NodeRegion.DRAM)
    resource = Resource(
        proc_region=whole,
        dram_region=memory,
        src_data_region=memory,
        dst_data_region=memory,
        dim_array=PhyDim2(16, 16),
        size_gbuf=131072 // 2,
        size_regf=512 // 2,
        array_bus_width=float("inf"),
        dram_bandwidth=float("inf"),
        no_time_mux=False,
    )
    cost = Cost(mac_op=1, mem_hier=(200, 6, 2, 1), noc_hop=0, idl_unit=0)
    options = Option(sw_gbuf_bypass=(True,) * 3, sw_solve_loopblocking=False, ntops=1, nprocesses=1)
    small = Network(name)
    small.set_input_layer(network.input_layer())
    for layer in list(network)[:layers] if layers else list(network):
        small.add(
            layer, network[layer], prevs=tuple(p for p in network.prevs(layer) if p is not None) or None
        )
    began = time.process_time()
    tops, _ = NNDataflow(small, 1, resource, cost, MapStrategyEyeriss).schedule_search(options)
    seconds = time.process_time() - began
    print(
        json.dumps(
            {
                "network": name,
                "layers": len(small),
                "cpu_s": seconds,
                "energy": tops[0].total_cost,
                "time": tops[0].total_time,
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 0)

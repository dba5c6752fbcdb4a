"""Runs inside nn-dataflow's own environment: its exhaustive search on a machine in KAPLA's setting; prints
one JSON object.

python nn_dataflow_schedules.py UNITS BATCH HARDWARE: UNITS are widths of fully connected layers, e.g.
784-1000-10, or a layer of a network of its own, e.g. alex_net:conv3_a; HARDWARE is JSON with nodes, array,
gbuf, regf (words), bus and dram (words per cycle), and pj (mac, hop, idle, and dram, gbuf, itcn, regf). Per
layer: its sizes, partition of the nodes, loop blocking, and what it says the layer costs.
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
from nn_dataflow.nns import import_network

PARALLEL = {"k": pe.OUTP, "pq": pe.OFMP, "n": pe.BATP, "c": pe.INPP}


def network_of(units):
    network = Network("layers")
    if ":" in units:
        name, at = units.split(":")
        layer = import_network(name)[at]
        network.set_input_layer(InputLayer(layer.nifm, (layer.hifm, layer.wifm)))
        network.add(at, layer)
        return network
    widths = [int(n) for n in units.split("-")]
    network.set_input_layer(InputLayer(widths[0], 1))
    for i, (inputs, outputs) in enumerate(itertools.pairwise(widths), 1):
        network.add(f"fc{i}", FCLayer(inputs, outputs))
    return network


def main(units, batch, hardware):
    network, nodes = network_of(units), PhyDim2(*hardware["nodes"])
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
    for name, result in tops[0].res_dict.items():
        s, layer = result.scheme, network[name]
        part = s["part"]
        layers.append(
            {
                "sizes": {
                    **{"k": layer.nifm, "n": layer.nofm, "m": batch, "p": layer.hofm, "q": layer.wofm},
                    **{"r": layer.hfil, "s": layer.wfil},
                },
                "strides": [layer.htrd, layer.wtrd],
                # input and output channels of a pass over the array
                "pass": [
                    round(s["unit_size"][0][de.IFM] / layer.ifmap_size()),
                    round(s["unit_size"][0][de.OFM] / layer.ofmap_size()),
                ],
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
    main(sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]))

"""Run by the interpreter of nn_dataflow's environment: how many schemes its pipelined segments have.

python nn_dataflow_schemes.py BATCH MOST NETWORK... prints, as JSON, per network the segments of at most MOST
vertices of its graph on KAPLA's machine of 16 x 16 nodes (32 KiB of 16-bit words each): the layers of each
stage, and how many values each symbol of its constraints takes. Their product is the number of schemes.
"""

import json
import sys

from nn_dataflow.core import InterLayerPipeline, NodeRegion, Option, PhyDim2, Resource
from nn_dataflow.nns import import_network


def main(batch, most, names):
    nodes = PhyDim2(16, 16)
    whole = NodeRegion(origin=PhyDim2(0, 0), dim=nodes, type=NodeRegion.PROC)
    memory = NodeRegion(
        dim=PhyDim2(2, 2), origin=PhyDim2(0, 0), dist=nodes - PhyDim2(1, 1), type=NodeRegion.DRAM
    )
    resource = Resource(
        proc_region=whole,
        dram_region=memory,
        src_data_region=memory,
        dst_data_region=memory,
        dim_array=PhyDim2(8, 8),
        size_gbuf=16384,
        size_regf=32,
        array_bus_width=float("inf"),
        dram_bandwidth=25.0,
        no_time_mux=False,
    )
    options = Option(partition_interlayer=True, hw_gbuf_save_writeback=True, layer_pipeline_max_degree=most)
    for name in names:
        pipeline = InterLayerPipeline(import_network(name), batch, resource)
        found = [
            [segment.seg, {str(key): len(values) for key, values in segment.cstr_symvals.items()}]
            for segment in pipeline.gen_segment(options)
            if sum(map(len, segment.seg)) > 1
        ]
        print(json.dumps([name, found]))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])

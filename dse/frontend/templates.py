"""Commented files to start from: `dse new machine`, `dse new study`, `dse new workload`. Each one is valid
without changes.
"""

from __future__ import annotations

MACHINE = """\
# A machine: memories and arrays from the outermost in, the compute last.
# All keys: dse list keys; check with: dse check FILE
# `<name>.<field>` is the key of a study and of --set: array.x, gbuf.capacity, clock_mhz.
clock_mhz: 500
node_nm: 32                     # selects energies, areas and leakage from the tables (hw/data)
cell: lop                       # lop: low operating power, hp: high performance
nodes:
# A DRAM kind brings energy, bandwidth and background power
- {memory: dram, kind: lpddr4, channels: 2, width_bits: 64}
# sram is the default kind; sizes carry a unit: B, KiB, MiB, GiB
- {memory: gbuf, capacity: 128 KiB, width_bits: 256}
- {array: array, dims: {x: 16, y: 16}, multicast: true, reduce: true}    # copies of all that follows
# partial sums wider than results: bits: {output: 32}; a memory that all data pass: bypass: false
- {memory: regf, capacity: 512 B, width_bits: 16, actions_per_cycle: 2}
- {compute: mac, kind: int8}
"""

STUDY = """\
# A study: workloads, a machine, what of it varies, and what is good.
# All keys: dse list keys; check with: dse check FILE
# What it would take: dse run FILE --dry-run. Run it, or go on with it: dse run FILE
workloads:                      # dse list workloads; quote names with commas
                                # or {file: net.onnx, bind: {N: 1}, weight: 2}
- "gemm:m=64,n=32,k=48"
machine: edge_array             # dse list machines, or the path of a .yaml file
space:                          # any field of the machine: a list, or a range with a step
  array.x: [4, 8, 16]
  gbuf.capacity: {from: 16 KiB, to: 64 KiB, step: x2}
  dram.kind: [lpddr4, lpddr5]
constraints:                    # comparisons of fields, area_mm2, leak_mw and metrics (latency_ns, ...)
- "area_mm2 <= 4"
# Of several workloads an objective may be {latency_ns: max} or {throughput: sum, direction: max}
objectives: [energy_pj, latency_ns, area_mm2]
search: {method: exhaustive, seed: 7}            # or random, qmc, nsga2, nsga3, tpe
stop: {machines: 1000}                           # or hours, hypervolume_gain; raised later, the run goes on
solver: {objective: energy}                      # energy, latency, edp or front; dse list solvers
"""

WORKLOAD = """\
# A workload: einsums over named ranks; a tensor that one writes and another reads joins them.
# All keys: dse list keys; check with: dse check FILE; solve with: dse map FILE edge_array
name: ffn
extents: {b: 8, m: 128, d: 256, f: 1024}         # size of every rank
einsums:
- "H[b,m,f] += X[b,m,d] * W1[d,f]"               # += sums over the ranks that the output lacks: here d
- "A[b,m,f] = gelu(H[b,m,f])"                    # any function of its inputs; fused if one-to-one
# An einsum may also have repeat, density, sizes and extents of its own
- {text: "Y[b,m,d] += A[b,m,f] * W2[f,d]", name: down, bits: {W2: 4}}
# A convolution: "O[n,k,p,q] += I[n,c,p+r,q+s] * W[k,c,r,s]", with a stride "I[n,c,2*p+r,2*q+s]"
weights: [W1, W2]                                # parameters: the same in every run
"""

TEXTS = {"machine": MACHINE, "study": STUDY, "workload": WORKLOAD}

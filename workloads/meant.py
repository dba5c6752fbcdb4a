"""Names that a wrong word probably means: in other tools' words, by its letters, or as a part of a name."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

FORMATS = ("dense", "csr", "coo", "rle", "bitmask")  # of tensors, beside N:M
STRUCTURED = re.compile(r"([1-9]\d*):([1-9]\d*)")  # a format N:M, of M neighbours N are nonzero at most


def _groups(rows: str) -> dict[str, tuple[str, ...]]:
    """Returns word -> our names of lines `names: words`."""
    found: dict[str, tuple[str, ...]] = {}
    for names, _, words in (line.partition(": ") for line in rows.strip().splitlines()):
        for word in words.split():
            found[word] = (*found.get(word, ()), *names.split())
    return found


# our names: what other tools (Timeloop, ZigZag, AccelForge, SCALE-Sim) and users call them. Names that are
# valid where the word stands come first; a name with a dot is a key of another block, or of a study
MEANINGS = _groups("""
capacity: size depth words bytes sizekb entries
bandwidth: bw throughput shared_bandwidth bandwidth_gbps
width_bits: width word_width block_size line bits
clock_mhz: freq frequency clock clk clock_ghz freq_mhz frequency_mhz freq_ghz frequency_ghz
node_nm: technology process tech nm
read_pj: energy read_energy r_cost pj
write_pj: write_energy w_cost
leak_mw: leakage leak static
area_mm2: area silicon
kind: type class precision datatype dtype
word_bits: precision datatype dtype bits
cycle_ns: latency latency_ns access_ns cycle_time
x: meshx columns cols width
y: meshy rows height
dims: rows cols columns meshx meshy sizes
latency latency_ns: delay runtime time cycles performance latency throughput
energy energy_pj breakdown: power joules energy
edp_pj_ns: edp energy_delay
schedule fused: fusion fuse
pipelined: pipeline pipelining
seconds limits.seconds: timeout time_limit deadline
stop.machines: samples budget trials n_trials max_points iterations
solver.objective: objective metric
solver.mapper: mapper
solver.dataflow: dataflow stationary
solver.schedule: schedule fusion
search.method: method sampler algorithm optimizer
search.seed: seed random_seed
mapper: optimizer algorithm search_engine
weight_stationary: ws
output_stationary: os
input_stationary: is
row_stationary: rs
optimal: exact ilp milp ortools exhaustive_search
annealing: sa simulated_annealing
exhaustive: grid brute_force full
tpe: bayesian bayes bo optuna gp
nsga2: genetic ga evolutionary
space: parameters sweep axes search_space design_space
machine: arch architecture hardware accelerator
workloads: network networks model models nets layers workload
objectives: objective metrics goals
constraints: limits_on where
nodes: levels hierarchy memories components
extents: shape shapes dims sizes ranks
einsums: layers operations ops
machines: archs architectures hardware hw accelerators
solvers: mappers optimizers algorithms searches
keys: fields options settings
workload: network model net
study: experiment sweep exploration
gemm: matmul mm linear fc dense product
conv: conv2d convolution
attention: mha self_attention sdpa
bmm: batch_matmul
map: optimize solve optimise schedule mapping
run: explore sweep search start launch
simulate: cost evaluate price eval
pareto front: pareto frontier front best
show: explain view inspect
sql: query select
compare: diff
new: init create template
check: validate verify lint
convert: import export translate
list: ls
stop: kill cancel abort
resume: continue restart
plot: draw figure
report: html dashboard
designs: results data solutions
einsums: layers per_layer
""")


def meant(word: str, names: Iterable[str], count: int = 1) -> list[str]:
    """Returns the names that a word means: all of the same meaning, else at most `count` that are spelt
    alike, else up to three that have it as a part; [] where there are none.

    >>> meant("delay", ["energy", "latency"]), meant("lpdr4", ["sram", "lpddr4"]), meant("tpu", ["tpu_edge"])
    (['latency'], ['lpddr4'], ['tpu_edge'])
    """
    names, lower = [*names], word.lower()
    meanings = MEANINGS.get(lower, ())
    parts = [name for name in names if lower in re.split(r"\W|_", name.lower())]
    return (
        [name for name in meanings if name in names]
        or [name for name in meanings if "." in name]
        or difflib.get_close_matches(word, names, count)
        or (parts if len(parts) <= 3 else [])
    )

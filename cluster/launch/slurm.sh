#!/bin/bash
# A study on nodes of a SLURM cluster: Ray on each of them, the driver on the first. Submit it from the checkout:
#   sbatch --nodes 8 cluster/launch/slurm.sh studies/edge_cnn.yaml runs/edge-cnn
# The checkout, its .venv and the run folder are on a disk that all nodes share.
#SBATCH --job-name=dse
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
#SBATCH --time=08:00:00
#SBATCH --signal=B:TERM@120
set -euo pipefail
study=$1 out=$2
shift 2
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(getent ahostsv4 "$head" | awk 'NR == 1 { print $1 }'):6379
RAY_AUTH_TOKEN=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN RAY_USAGE_STATS_ENABLED=0
# two minutes before the time is over the run ends as by Ctrl-C; submit again to go on with it
trap '.venv/bin/dse stop "$out" || true' TERM
srun --nodes="$SLURM_JOB_NUM_NODES" .venv/bin/ray symmetric-run --address "$address" \
  --min-nodes "$SLURM_JOB_NUM_NODES" --num-cpus="$SLURM_CPUS_ON_NODE" \
  -- .venv/bin/dse run "$study" --address auto --out "$out" "$@" &
srun_pid=$!
wait "$srun_pid" || wait "$srun_pid"

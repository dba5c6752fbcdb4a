#!/bin/sh
# A study as a job of a running Ray cluster: the driver runs on the head, the sources of this checkout travel along.
#   cluster/launch/job.sh http://HEAD:8265 studies/edge_cnn.yaml /shared/edge-cnn
set -eu
[ $# -ge 3 ] || { echo "usage: $0 http://HEAD:8265 STUDY.yaml DIR [options of dse run]" >&2; exit 2; }
dashboard=$1 study=$2 out=$3
shift 3
exec ray job submit --address "$dashboard" --working-dir "$(git rev-parse --show-toplevel)" \
  --runtime-env-json '{"excludes": [".git", ".venv", "runs", "build"]}' \
  -- python -m dse run "$study" --address auto --out "$out" "$@"

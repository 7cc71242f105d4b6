#!/usr/bin/env bash
# Runs the trainer on this machine; one process serves all devices that it sees.
#
#   bash launch/local.sh --config=configs/spade_tiny.py --workdir=runs/a [--config.key=value ...]
#   CUDA_VISIBLE_DEVICES=0,1 bash launch/local.sh ...      on two of the GPUs
#   PROCESSES=2 bash launch/local.sh ...                   as two processes, which rehearses two hosts
#
# Of several processes each gets its share of the GPUs, or without GPUs the JAX_NUM_CPU_DEVICES of the environment.
# Process 0 writes here, the others to files in LOGS (by default the current directory); when one fails, all end.
# PYTHON and VENV may be set; by default it is the virtual environment of launch/quickstart.sh, if it exists.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
PROCESSES=${PROCESSES:-1}
LOGS=${LOGS:-.}

choose_python
export PYTHONPATH=$ROOT${PYTHONPATH:+:$PYTHONPATH}
if [[ $PROCESSES == 1 ]]; then
  exec "$PYTHON" -m spade_jax.train "$@"
fi
[[ $PROCESSES =~ ^[1-9][0-9]*$ ]] || fail "PROCESSES=$PROCESSES is not a number of processes; give one from 1 on"

gpus=()
if [[ -n ${CUDA_VISIBLE_DEVICES+set} ]]; then
  IFS=, read -r -a gpus <<<"$CUDA_VISIBLE_DEVICES"
else
  for file in /dev/nvidia[0-9]*; do
    [[ ! -e $file ]] || gpus+=("$file")
  done
fi
share=$((${#gpus[@]} / PROCESSES))
((share * PROCESSES == ${#gpus[@]})) || fail "PROCESSES=$PROCESSES does not divide the ${#gpus[@]} GPUs; use a divisor"
port=$("$PYTHON" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')

children=() stopping=
stop() {
  stopping=1
  kill -TERM "${children[@]}" 2>/dev/null || true
}
trap stop TERM INT

mkdir -p "$LOGS"
for ((i = 0; i < PROCESSES; i++)); do
  join=(--distributed=on "--coordinator=127.0.0.1:$port" "--num_processes=$PROCESSES" "--process_id=$i")
  if ((share)); then
    join+=("--local_device_ids=$(seq -s, $((i * share)) $((i * share + share - 1)))")
  fi
  if ((i)); then
    "$PYTHON" -m spade_jax.train "$@" "${join[@]}" >"$LOGS/process-$i.txt" 2>&1 &
  else
    "$PYTHON" -m spade_jax.train "$@" "${join[@]}" &
  fi
  children+=($!)
done

code=0
while true; do
  status=0
  wait -n || status=$?
  ((status != 127)) || break # nobody is left
  if ((status)) && [[ -z $stopping ]]; then
    code=$status
    stop # without this one the others would wait for ever
  fi
done
((code == 0)) || fail "a process ended with exit code $code; see above and $LOGS/process-*.txt"

#!/usr/bin/env bash
# What a pod of gke_jobset.yaml runs: the trainer with the given flags, and --workdir from WORKDIR.
#
# A pod that is evicted gets SIGTERM; the trainer then writes a checkpoint and exits with 0, which Kubernetes would
# take for the end of the run. So the first pod says that it failed unless the run has written its report, as it does
# at its very end; the JobSet then starts all pods again, and they resume.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
choose_python
cd "$ROOT"
: "${WORKDIR:?is not set; name the folder of the run, on a file system that all pods share}"

stopping=
trap 'stopping=1; kill -TERM "$child" 2>/dev/null || true' TERM INT
"$PYTHON" -m spade_jax.train --workdir="$WORKDIR" "$@" &
child=$!
code=0
wait "$child" || code=$?
if [[ -n $stopping ]]; then
  code=0 # until now it was the trap's
  wait "$child" || code=$?
fi
if ((code == 0)) && [[ ${JOB_INDEX:-0}-${JOB_COMPLETION_INDEX:-0} == 0-0 && ! -e $WORKDIR/report.html ]]; then
  echo "the run stopped before its end; exit code 75 asks for another start" >&2
  exit 75
fi
exit "$code"

#!/usr/bin/env bash
# Installs spade_jax into .venv and runs the embedded default: 2 CPU cores, no download of data or weights.
#
#   bash launch/quickstart.sh [--config.key=value ...]
#
# Run again, it continues or finds the run complete. PYTHON, VENV, CONFIG and WORKDIR may be set.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
CONFIG=${CONFIG:-$ROOT/configs/spade_tiny.py}
WORKDIR=${WORKDIR:-$ROOT/runs/quickstart}

make_venv "$ROOT"
"$VENV/bin/python" -m spade_jax.train --config="$CONFIG" --workdir="$WORKDIR" "$@"
"$VENV/bin/python" -m spade_jax.report --workdir="$WORKDIR"

cat <<END

done.
  report:      $WORKDIR/report.html   (open it in a browser)
  TensorBoard: $VENV/bin/tensorboard --logdir $(dirname "$WORKDIR")
  to go on:    source $VENV/bin/activate   (then the commands in README.md)
END

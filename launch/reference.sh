#!/usr/bin/env bash
# Compares with transformers and torch live (tests/reference), in an environment of its own.
#
#   bash launch/reference.sh [pytest options]
#
# It needs Python 3.11, 3.12 or 3.13 and torch in its build for CPUs, since the plain one pulls several GB. Where the
# package index has no such build, nothing is compared, and the exit code is 0: the other tests hold the network against
# the golden files that were made so. REFERENCE_PYTHON (by default python3.11) and REFERENCE_VENV may be set.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
PYTHON=${REFERENCE_PYTHON:-python3.11}
VENV=${REFERENCE_VENV:-$ROOT/.venv-reference}
TORCH="torch==2.13.0+cpu"

if ! version_suits "$PYTHON" || ! can_make_venv "$PYTHON"; then
  echo "nothing was compared with transformers: $PYTHON is not there, or has no venv module"
  exit 0
fi
make_venv "${ROOT}[test]"
if ! "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check "$TORCH" "transformers>=5"; then
  echo "nothing was compared with transformers: $TORCH cannot be had here, see the lines above"
  exit 0
fi
cd "$ROOT"
export JAX_PLATFORMS=cpu
exec "$VENV/bin/python" -m pytest tests/reference "$@"

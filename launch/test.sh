#!/usr/bin/env bash
# Installs spade_jax with its test extra into .venv and runs every test, fast and slow.
#
#   bash launch/test.sh [pytest options]
#
# PYTHON, VENV and WORKERS (processes that run tests, each with up to 4 GiB; by default 2) may be set.
# The exit code is pytest's (5: no test ran).
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

make_venv "${ROOT}[test]"
cd "$ROOT"
# Tests need no accelerator, and must not claim one that somebody else is using.
export JAX_PLATFORMS=${JAX_PLATFORMS:-cpu}
# Tests of one file share what they set up, and stay together.
exec "$VENV/bin/python" -m pytest --numprocesses="${WORKERS:-2}" --dist=loadfile "$@"

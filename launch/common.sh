# shellcheck shell=bash
# Sourced by the other scripts: finds a Python and makes the virtual environment.
# Honours PYTHON (interpreter) and VENV (directory, by default .venv in the checkout).

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=${VENV:-$ROOT/.venv}

# On a CPU every call of a compiled function works on fresh memory, which in large pages (from glibc 2.35 on) is there
# sooner: blocks of decoding take .85 of the time. Says the caller otherwise, that holds.
export GLIBC_TUNABLES=${GLIBC_TUNABLES-glibc.malloc.hugetlb=1}

fail() {
  echo "error: $*" >&2
  exit 1
}

# A name on the PATH proves nothing (version managers leave shims): run it.
version_suits() {
  "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1
}

can_make_venv() {
  "$1" -c 'import venv, ensurepip' >/dev/null 2>&1
}

find_python() {
  local candidate without_venv=
  if [[ -n ${PYTHON:-} ]]; then
    version_suits "$PYTHON" || fail "PYTHON=$PYTHON is not Python 3.11, 3.12 or 3.13; name one that is"
    can_make_venv "$PYTHON" || fail "PYTHON=$PYTHON has no venv module; install it (Debian: python3-venv)"
    return
  fi
  for candidate in python3.13 python3.12 python3.11 python3; do
    version_suits "$candidate" || continue
    if can_make_venv "$candidate"; then
      PYTHON=$candidate
      return
    fi
    without_venv=$candidate
  done
  [[ -z $without_venv ]] || fail "$without_venv has no venv module; install it (Debian: apt install $without_venv-venv)"
  fail "no Python 3.11, 3.12 or 3.13 found; install one, or name it: PYTHON=/path/to/python3 bash $0"
}

# make_venv REQUIREMENT: creates $VENV unless it works already, and installs REQUIREMENT from the checkout.
make_venv() {
  if ! version_suits "$VENV/bin/python" || ! "$VENV/bin/python" -m pip --version >/dev/null 2>&1; then
    find_python
    echo "creating $VENV with $("$PYTHON" --version)"
    "$PYTHON" -m venv --clear "$VENV" || fail "$PYTHON could not create $VENV; see the lines above"
  fi
  echo "installing $1 into $VENV (the first time takes a minute or two)"
  "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --editable "$1" ||
    fail "the installation failed; see the lines above, then run the same command again"
}

# choose_python: sets PYTHON, where it is not set, to that of $VENV or else to python3.
choose_python() {
  if [[ -z ${PYTHON:-} ]]; then
    PYTHON=python3
    if version_suits "$VENV/bin/python"; then
      PYTHON=$VENV/bin/python
    fi
  fi
  version_suits "$PYTHON" || fail "PYTHON=$PYTHON is not Python 3.11, 3.12 or 3.13; name one that is"
}

"""The whole hack zoo in `strict`, as root and as another user: `python tests/benchmarks/hostile_zoo.py`.

Runs the tests that every program of tests/hostile passes through, as whoever calls it and,
where that is root, once more in an interpreter that has become user 65534. That user must be
able to read this checkout and the interpreter; where Python is installed below root's home,
`--python=PATH` names another one that has numpy and pytest. Exits 1 where a program is
neither contained nor refused. No JAX.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
ZOO = ("tests/sandbox/test_hostile_host.py", "tests/designer/test_zoo.py")
NOBODY = 65534


def run(python: str, user: int) -> bool:
    """Runs the zoo as `user`; pytest prints the account. Whether nothing got through."""
    print(f"as {'root' if user == 0 else f'user {user}'}:", flush=True)
    # Whoever is not root cannot become another user, and need not.
    change = {"user": user, "group": user, "extra_groups": []} if os.geteuid() != user else {}
    # No cache and no bytecode: the checkout is not that user's to write.
    command = [python, "-B", "-m", "pytest", "-p", "no:cacheprovider", *ZOO]
    try:
        return subprocess.run(command, cwd=ROOT, **change).returncode == 0
    except PermissionError:
        raise SystemExit(f"user {user} cannot run {python}; name another interpreter with --python=PATH") from None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="the interpreter of the user who is not root")
    python = parser.parse_args().python
    held = run(sys.executable, os.geteuid())
    if os.geteuid() == 0:
        held = run(python, NOBODY) and held
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())

"""Shows which isolation layers this machine has, what each probe saw, and what would give the missing ones.

    python -m spade_jax.sandbox_probe [--json]

Exit status 0 if `sandbox.isolation=strict` would start here with its default
requirements, 1 if not. Run it as the user, and in the container, of the training.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Sequence

from spade_jax.sandbox import Pool, SandboxError, layers


def probe() -> list[dict[str, object]]:
    """One entry a layer: name, required, active, evidence, advice. Raises SandboxError where no pool can work."""
    logging.getLogger("spade_jax.sandbox.pool").setLevel(logging.ERROR)  # all of it is printed here
    with Pool(isolation="best_effort", max_live=1) as pool:
        found = {status.name: status for status in pool.layers}
    return [
        {
            "name": layer.name,
            "required": layer.name in layers.REQUIRED,
            "active": found[layer.name].active,
            "evidence": found[layer.name].evidence,
            "advice": "" if found[layer.name].active else layer.advice,
        }
        for layer in layers.LAYERS
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m spade_jax.sandbox_probe", description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(argv)
    try:
        found, problem = probe(), ""
    except SandboxError as error:
        found, problem = [], str(error)
    strict = not problem and all(entry["active"] for entry in found if entry["required"])
    if options.json:
        print(json.dumps({"strict": strict, "problem": problem, "layers": found}))
        return 0 if strict else 1
    for entry in found:
        need = "required" if entry["required"] else "used if there"
        print(f"{entry['name']:12}  {'holds' if entry['active'] else 'MISSING':7}  {need}")
        if not entry["active"]:
            print(f"{'':12}  seen: {entry['evidence']}\n{'':12}  to get it: {entry['advice']}")
    if problem:
        print(problem)
    print(f"sandbox.isolation=strict would {'' if strict else 'not '}start here")
    return 0 if strict else 1


def run() -> None:
    sys.exit(main())


if __name__ == "__main__":
    run()

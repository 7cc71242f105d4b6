"""Which layer contains which attack: `python tests/benchmarks/sandbox_layers.py`.

Runs the programs of tests/hostile/host that a layer has to contain, once with
all layers, then with each layer removed, then with each alone, and prints a
table of how many escape. Programs that the process border, the deadlines and
the distrust of replies contain whatever the layers are left out, and those that
would exhaust the machine are counted as escaped, unrun, where `limits` is
missing. Run it as root and as another user: the tables differ. No JAX.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import sys
import time
from collections.abc import Sequence

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "sandbox"))

import sandbox_checks  # noqa: E402

from spade_jax.sandbox import Pool, layers  # noqa: E402

# The channel is set up by this layer, so that there is no child without it.
ALWAYS = "descriptors"
_GRACE_SECONDS = 0.05
# None of these attacks lasts, so that a late answer is a busy machine's.
_LIMITS = dataclasses.replace(sandbox_checks.HOSTILE_LIMITS, call_seconds=20.0, reset_seconds=20.0)


def escapes(wanted: Sequence[str], attacks: Sequence[sandbox_checks.Attack]) -> list[str]:
    """Names of the attacks that escape from these layers."""
    escaped = []
    with Pool(_LIMITS, "best_effort", 8, required=(), wanted=wanted) as pool:
        sibling = None
        for attack in attacks:
            if attack.unbounded and "limits" not in wanted:
                escaped.append(attack.name)
                continue
            if sibling is None:
                sibling = pool.open(sandbox_checks.COUNTER, "Counter")
                sandbox_checks.play_counter(pool, sibling)
            env, replies = sandbox_checks.run_attack(pool, attack)
            time.sleep(_GRACE_SECONDS)  # for a fork server that has been killed to be noticed
            pool.poll(0)
            survived = pool.call(sibling, "step", "still").ok
            if sandbox_checks.escape(attack, replies) or not survived:
                escaped.append(attack.name)
            pool.close(env)
            if not survived:
                sibling = None

    return escaped


def main() -> None:
    attacks = [attack for attack in sandbox_checks.attacks() if attack.needs]
    rest = [name for name in layers.NAMES if name != ALWAYS]
    rows = [("all", layers.NAMES), ("those that strict requires", layers.REQUIRED)]
    rows += [(f"all but {name}", tuple(n for n in layers.NAMES if n != name)) for name in rest]
    rows += [(f"only {name}", (ALWAYS, name)) for name in rest] + [("none", (ALWAYS,))]
    user = "root" if os.geteuid() == 0 else f"user {os.geteuid()}"
    print(f"{len(attacks)} attacks that need a layer, as {user}\n")
    print("| layers | escape | which |\n|---|---|---|")
    never = {attack.name for attack in attacks}
    for title, wanted in rows:
        escaped = escapes(wanted, attacks)
        never -= set(escaped)
        shown = ", ".join(escaped) if len(escaped) <= 4 else ""
        print(f"| {title} | {len(escaped)} | {shown} |", flush=True)
    print(f"\nnever seen to escape (another limit of this machine's stops them): {', '.join(sorted(never)) or 'none'}")


if __name__ == "__main__":
    main()

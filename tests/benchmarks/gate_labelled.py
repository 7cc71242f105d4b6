"""The gate against programs of known worth: confusion matrix and time.

    python tests/benchmarks/gate_labelled.py [--sound=114] [--seed=0]

Sound: bundled families with random constants and their own hints, half of them changed without
changing what they do (names, order of methods, docstrings, dead statements); the sound programs of
the zoo. Unsound: the same programs spoilt by construction, one way each, and the zoo.
"""

from __future__ import annotations

import argparse
import collections
import pathlib
import random
import re
import statistics
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "designer")]

import zoo  # noqa: E402 (found by the path above)

from spade_jax import structs  # noqa: E402
from spade_jax.designer import gate  # noqa: E402
from spade_jax.envs import bundled  # noqa: E402
from spade_jax.envs.families import base  # noqa: E402
from spade_jax.sandbox import Limits, Pool  # noqa: E402

_REWARD = re.compile(r"float\(won\)")


class Labelled(NamedTuple):
    name: str
    source: str
    hint: str | None
    refused: tuple[str, ...]  # the failure classes that are due; () for a sound program


def _renamed(source: str, rng: random.Random) -> str:
    """Other names for the class and for attributes that every family has."""
    class_name = re.search(r"^class (\w+):", source, re.MULTILINE)[1]
    source = re.sub(rf"\b{class_name}\b", f"Renamed{rng.randint(1, 99)}", source)
    source = re.sub(r"\bself\.turn\b", "self.elapsed", source)
    return re.sub(r"\bcommand\b", "said", source)


def _reordered(source: str, rng: random.Random) -> str:
    """The methods behind __init__ in another order, under a docstring and beside a method that nobody calls."""
    head, *methods = re.split(r"(?m)^(?=    def )", source)
    rest = [*(method.rstrip() + "\n\n" for method in methods[1:]), "    def spare(self):\n        return None\n\n"]
    rng.shuffle(rest)
    return head + '    """A game."""\n\n' + methods[0] + "".join(rest)


def _spoil_reward(source: str, rng: random.Random) -> str:
    return _REWARD.sub("1.0", source)


def _spoil_solution(source: str, rng: random.Random) -> str:
    return re.sub(r"(def solution\(self\):\n\s+return )(.+)", r"\1list(reversed(\2))[1:]", source)


def _spoil_observation(source: str, rng: random.Random) -> str:
    """The solution at the end of the first observation, in one of several disguises."""
    shown = rng.choice(('" ".join(solved)', '" ".join(solved).upper()', '" ".join(solved)[::-1]'))
    source = source.replace("def reset(self, seed=None):", "def begin(self, seed=None):", 1)
    leak = (
        "    def reset(self, seed=None):\n        text, info = self.begin(seed)\n        solved = list(self.solution())\n"
        f'        return text + " Remember: " + {shown}, info\n\n'
    )
    return source.replace("    def step(self, action):", leak + "    def step(self, action):", 1)


def _wrap_step(source: str, body: str) -> str:
    """`body` sees `reply` (a list) and may change it."""
    source = source.replace("def step(self, action):", "def inner(self, action):", 1)
    wrapped = (
        f"    def step(self, action):\n        reply = list(self.inner(action))\n{body}        return tuple(reply)\n\n"
    )
    return source.replace("    def solution(self):", wrapped + "    def solution(self):", 1)


def _spoil_coin(source: str, rng: random.Random) -> str:
    body = (
        "        won = random.Random(str(self.solution())).random() < 0.5\n"
        '        reply[1:] = [float(won), True, False, {"success": won}]\n'
    )
    return _wrap_step(source, body)


def _spoil_luck(source: str, rng: random.Random) -> str:
    return source.replace("random.Random(seed)", "random.Random()", 1)


def _spoil_state(source: str, rng: random.Random) -> str:
    body = (
        '        random.plays = getattr(random, "plays", 0) + 1\n        reply[0] += f" Step {random.plays} so far."\n'
    )
    return _wrap_step(source, body)


def _spoil_instance(source: str, rng: random.Random) -> str:
    return source.replace("random.Random(seed)", f"random.Random({rng.randint(0, 999)})", 1)


def _spoil_flag(source: str, rng: random.Random) -> str:
    return _wrap_step(source, '        reply[4] = {"success": not reply[4]["success"]}\n')


def _spoil_crash(source: str, rng: random.Random) -> str:
    return _wrap_step(source, f"        10 / (self.turn - {rng.randint(1, 3)})\n")


def _spoil_seed(source: str, rng: random.Random) -> str:
    source = source.replace("def reset(self, seed=None):", "def begin(self, seed=None):", 1)
    leak = (
        "    def reset(self, seed=None):\n        text, info = self.begin(seed)\n"
        '        return f"Game {seed}. " + text, info\n\n'
    )
    return source.replace("    def step(self, action):", leak + "    def step(self, action):", 1)


# What is done to a program, and the failure classes that may come of it.
SPOILERS: dict[Callable[[str, random.Random], str], tuple[str, ...]] = {
    _spoil_reward: ("trivial",),
    _spoil_solution: ("unsolvable",),
    _spoil_observation: ("leak", "trivial"),
    _spoil_coin: ("trivial", "unsolvable"),
    _spoil_luck: ("nondeterministic",),
    _spoil_state: ("nondeterministic",),
    _spoil_instance: ("not_varied",),
    _spoil_flag: ("trivial", "unsolvable"),
    _spoil_crash: ("crash",),
    _spoil_seed: ("leak",),
}


def labelled(sound: int, unsound: int, seed: int) -> list[Labelled]:
    """`sound` and `unsound` programs made from the bundled families, and the zoo."""
    rng = random.Random(seed)
    programs = []
    for split in (base.TRAIN, base.HELD_OUT):
        for i, drawn in enumerate(bundled.bundled_records(split, sound // 2, seed)):
            change = (None, _renamed, None, _reordered)[i % 4]
            source = change(drawn.record.source, rng) if change else drawn.record.source
            name = f"{drawn.family.name}/{split}" + (change.__name__ if change else "")
            programs.append(Labelled(name, source, drawn.record.hint, ()))
        for i, drawn in enumerate(bundled.bundled_records(split, unsound // 2, seed + 1)):
            spoil = list(SPOILERS)[(i + i // len(SPOILERS)) % len(SPOILERS)]
            source = spoil(drawn.record.source, rng)
            assert source != drawn.record.source, (drawn.family.name, spoil.__name__)
            name = f"{drawn.family.name}/{split}{spoil.__name__}"
            programs.append(Labelled(name, source, drawn.record.hint, SPOILERS[spoil]))
    return programs + [Labelled(f"zoo/{c.name}", c.source, c.hint, c.refused) for c in zoo.cases()]


def judge(pool: Pool, programs: list[Labelled]) -> list[structs.GateReport]:
    """Their reports; memory is empty, since what is known is no matter of soundness."""
    config = gate.GateConfig(gate.CHECKS[:-1])
    return gate.run_gates(pool, [p.source for p in programs], config, hints=[p.hint for p in programs])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sound", type=int, default=114, help="programs made from the bundled families")
    parser.add_argument("--unsound", type=int, default=80, help="of them spoilt")
    parser.add_argument("--seed", type=int, default=0, help="names the draw")
    args = parser.parse_args()
    with Pool(Limits(call_seconds=1.0), max_live=96) as pool:
        measure(pool, args)


def measure(pool: Pool, args: argparse.Namespace) -> None:
    """Prints the figures."""
    programs = labelled(args.sound, args.unsound, args.seed)
    began = time.perf_counter()
    reports = judge(pool, programs)
    elapsed = time.perf_counter() - began
    matrix = collections.Counter((not p.refused, r.valid) for p, r in zip(programs, reports, strict=True))
    print(f"{'':<10}{'accepted':>10}{'refused':>10}")
    for sound, name in ((True, "sound"), (False, "unsound")):
        print(f"{name:<10}{matrix[sound, True]:>10}{matrix[sound, False]:>10}")
    share = {sound: matrix[sound, not sound] / (matrix[sound, True] + matrix[sound, False]) for sound in (True, False)}
    print(f"unsound accepted: {share[False]:.1%}   sound refused: {share[True]:.1%}")
    other = 0
    for program, report in zip(programs, reports, strict=True):
        if report.failure not in (program.refused or (None,)):
            other += 1
            print(f"{program.name}: {report.failure or 'accepted'}: {report.verdicts[-1].evidence}")
    print(f"verdicts of another class than was due: {other}")
    print(f"{len(programs)} programs, 32 at a time: {elapsed / len(programs) * 1e3:.0f} ms of wall time each")
    alone = []
    for program in [program for program in programs if not program.refused][:: args.sound // 20 or 1]:
        began = time.perf_counter()
        judge(pool, [program])
        alone.append(time.perf_counter() - began)
    print(f"sound programs, one at a time: median {statistics.median(alone) * 1e3:.0f} ms of wall time")


if __name__ == "__main__":
    main()

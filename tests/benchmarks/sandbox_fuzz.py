"""Mutants of the bundled programs and random actions, through the pool.

    python tests/benchmarks/sandbox_fuzz.py --programs=10000 --actions=100000

Each program of a bundled family is damaged at random (characters, lines, or
syntax tree) and played with random text. The pool must answer every ticket once
and raise nothing, and in the end no process, zombie or descriptor may be left.
Prints what the programs came to. No JAX.
"""

from __future__ import annotations

import argparse
import ast
import collections
import math
import pathlib
import random
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "sandbox"))

import sandbox_checks  # noqa: E402

from spade_jax.envs.bundled import bundled_records  # noqa: E402
from spade_jax.sandbox import Limits, Pool  # noqa: E402

LIMITS = Limits(memory_mb=64, cpu_seconds=5, call_seconds=0.5, reset_seconds=1.0, episode_seconds=5.0)
LIVE = 24
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod, ast.Pow, ast.LShift, ast.BitXor)
_COMPARISONS = (ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.Is, ast.In)
_CONSTANTS = (0, 1, -1, 2**31, 2**70, 0.5, float("inf"), float("nan"), "", "x" * 5000, "\ud800", None, True, b"", ())


def mutate(source: str, rng: random.Random) -> str:
    """`source` with one to four random changes of one random kind."""
    change = rng.choice((_characters, _lines, _tree))
    for _ in range(rng.randint(1, 4)):
        source = change(source, rng)
    return source


def _characters(source: str, rng: random.Random) -> str:
    at = rng.randrange(len(source) + 1)
    inserted = "".join(chr(rng.choice((rng.randrange(128), rng.randrange(0x3000)))) for _ in range(rng.randint(0, 3)))
    return source[:at] + inserted + source[at + rng.randint(0, 3) :]


def _lines(source: str, rng: random.Random) -> str:
    lines = source.splitlines(keepends=True) or [""]
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.randrange(4)
    if kind == 0:
        del lines[a]
    elif kind == 1:
        lines.insert(b, lines[a])
    elif kind == 2:
        lines[a], lines[b] = lines[b], lines[a]
    else:
        lines[a] = rng.choice((" " * 4 + lines[a], lines[a][4:]))
    return "".join(lines)


def _tree(source: str, rng: random.Random) -> str:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return source
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    node = rng.choice([node for node in ast.walk(tree) if not isinstance(node, (ast.Module, ast.expr_context))])
    if isinstance(node, ast.Constant):
        node.value = rng.choice(_CONSTANTS)
    elif isinstance(node, (ast.BinOp, ast.AugAssign)):
        node.op = rng.choice(_OPERATORS)()
    elif isinstance(node, ast.Compare):
        node.ops = [rng.choice(_COMPARISONS)() for _ in node.ops]
    elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
        node.id = rng.choice(names)
    elif isinstance(node, (ast.If, ast.While)):
        node.test = ast.Constant(rng.choice((True, False)))
    elif isinstance(getattr(node, "body", None), list):
        rng.shuffle(node.body)
    try:
        return ast.unparse(ast.fix_missing_locations(tree))
    except (ValueError, UnicodeError):  # a constant that cannot be written in its place
        return source


def action(rng: random.Random) -> str:
    """Something between a sensible action and noise."""
    word = rng.choice(("left", "up", "guess 7", "open", "take", str(rng.randint(-99, 99)), "7" * 5000, "", "\0", "é\n"))
    noise = "".join(chr(rng.randrange(0xD800)) for _ in range(rng.randint(0, 20)))
    return rng.choice((word, f"\\boxed{{{word}}}", f"\\boxed{{{word}", noise, noise * 200))


def fuzz(programs: int, actions: int, seed: int) -> dict[str, int]:
    """Plays `programs` mutants with `actions` steps in all; counts of what was seen. AssertionError for any fault."""
    rng = random.Random(seed)
    originals = bundled_records("train", 200, seed)
    seen: collections.Counter[str] = collections.Counter()
    before = sandbox_checks.descriptors()
    with Pool(LIMITS, max_live=LIVE) as pool:
        owned = sandbox_checks.descriptors()
        servers = sandbox_checks.server_pids(pool)
        owed: dict[int, tuple[int, str]] = {}  # ticket -> (environment, method)
        left: collections.Counter[int] = collections.Counter()

        def ask(env: int, method: str, *arguments: object) -> None:
            owed[pool.request(env, method, *arguments)] = (env, method)
            left[env] += 1

        def begin(steps: int) -> None:
            record = rng.choice(originals).record
            env = pool.open(mutate(record.source, rng), record.class_name, hash_seed=rng.randrange(2))
            ask(env, "construct")
            ask(env, "reset", rng.randrange(2**31))
            for _ in range(steps):
                ask(env, "step", action(rng))
            for method in rng.sample(("solution", "secrets", "close"), rng.randrange(4)):
                ask(env, method)
            seen["actions"] += steps

        begun = 0
        while begun < programs or left:
            while begun < programs and len(left) < LIVE:
                begun += 1
                begin(actions * begun // programs - actions * (begun - 1) // programs)
            for reply in pool.poll(None):
                env, method = owed.pop(reply.ticket)  # KeyError: a ticket answered twice
                assert env == reply.env
                seen[reply.kind] += 1
                if reply.ok and method == "step":
                    assert math.isfinite(reply.value[1]) and type(reply.value[0]) is str
                left[env] -= 1
                if not left[env]:
                    del left[env]
                    pool.close(env)
        assert not owed and seen["actions"] == actions
        sandbox_checks.settle(pool)
        assert pool.live == 0 and sandbox_checks.descriptors() == owned
        assert sandbox_checks.server_pids(pool) == servers, "a fork server died"
        left_over = [child for pid in servers for child in sandbox_checks.children(pid)]
        assert not left_over, f"processes left: {left_over}"
    assert sandbox_checks.descriptors() == before and all(sandbox_checks.gone(pid) for pid in servers)
    return {"programs": programs, **seen}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=10_000)
    parser.add_argument("--actions", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    began = time.monotonic()
    print(fuzz(options.programs, options.actions, options.seed))
    print(f"no exception, leak or zombie in {time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()

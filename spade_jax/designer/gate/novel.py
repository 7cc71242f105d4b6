"""Is it new: check `novel`, against the programs that are remembered.

Four tiers, each coarser than the one before: the source, the tree with every own name
replaced, the share of common token runs (MinHash: Broder 1997), and what the program does.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from spade_jax.designer.gate.actions import PLAIN_GARBAGE
from spade_jax.designer.gate.session import MAIN, Ask, Outcome, Rejected, Session
from spade_jax.envs.contract import METHODS, environment_id

TIERS = ("source", "tree", "shingles", "behaviour")
PERMUTATIONS = 128  # standard error of a Jaccard estimate of .8: sqrt(.8 * .2 / 128) = .035
_SHINGLE = 5  # tokens in a row
_PRIME = (1 << 31) - 1
_SEEDS = range(4)  # the same for every program, so that behaviours can be compared


class Signature(NamedTuple):
    """What a program is recognised by.

    Attributes:
      source: hex SHA-256 of the source.
      tree: hex SHA-256 of the tree with own names replaced and docstrings dropped.
      shingles: int64[PERMUTATIONS] MinHash of the runs of tokens of that tree.
      behaviour: hex SHA-256 of what it does on a few fixed seeds; "" where it was not observed.
    """

    source: str
    tree: str
    shingles: np.ndarray
    behaviour: str = ""


@functools.lru_cache(maxsize=4096)
def signature(source: str, behaviour: str = "") -> Signature:
    """The signature of a source text that parses; `behaviour` is what the gate has reported."""
    try:
        text = ast.unparse(_renamed(ast.parse(source)))
    except (RecursionError, ValueError):  # nested deeper than can be written out: known by its source alone
        text = source
    return Signature(
        environment_id(source), hashlib.sha256(text.encode("utf-8", "replace")).hexdigest(), _minhash(text), behaviour
    )


def check_novel(session: Session) -> Outcome:
    """No tier in use finds the program among those known; leaves its behaviour in the session."""
    tiers = session.config.novel_tiers
    if "behaviour" in tiers:
        session.behaviour = yield from _observe(session)
    own = signature(session.program.source, session.behaviour)
    if match := duplicate(own, session.known, tiers, session.config.novel_jaccard):
        raise Rejected("duplicate", match)
    return True, f"unlike {len(session.known)} known programs by {', '.join(tiers)}"


def duplicate(own: Signature, known: Sequence[Signature], tiers: Sequence[str], jaccard: float) -> str:
    """What is the same as in a known program, in words; "" where nothing is."""
    for tier in TIERS:
        if tier not in tiers:
            continue
        for other in known:
            if tier == "shingles":
                share = similarity(own, other)
                found = f"{share:.2f} of the token runs are" if share >= jaccard else ""
            else:
                value = getattr(own, tier)
                found = f"the {tier} is" if value and value == getattr(other, tier) else ""
            if found:
                return f"{found} that of the known program {other.source[:12]}"
    return ""


def similarity(one: Signature, other: Signature) -> float:
    """Estimated Jaccard index of two programs' token runs."""
    return float(np.mean(one.shingles == other.shingles))


def _renamed(tree: ast.Module) -> ast.Module:
    """The tree with the names that the program gives replaced in order of appearance."""
    own: dict[str, str] = {}

    def add(name: str | None) -> None:
        if name and name not in METHODS and not name.startswith("__") and name != "self":
            own.setdefault(name, f"n{len(own)}")

    for node in _in_order(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.arg(arg=name):
                add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                add(name)
            case ast.alias(asname=name) | ast.ExceptHandler(name=name):
                add(name)
    for node in ast.walk(tree):
        for field in ("id", "attr", "name", "arg", "asname"):
            value = getattr(node, field, None)
            if isinstance(value, str) and not (field == "name" and isinstance(node, ast.alias)):
                setattr(node, field, own.get(value, value))
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return tree


def _in_order(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes as they stand in the text, roughly; not recursive, since a tree may be deep."""
    stack = [tree]
    while stack:
        node = stack.pop()
        yield node
        stack += reversed(list(ast.iter_child_nodes(node)))


def _minhash(text: str) -> np.ndarray:
    """int64[PERMUTATIONS]: the least value of each of as many hash functions a x + b mod p over the runs of tokens."""
    words = re.findall(r"\w+|[^\w\s]", text)
    runs = {" ".join(words[i : i + _SHINGLE]) for i in range(max(1, len(words) - _SHINGLE + 1))}
    # 30 bits of x and 31 of a keep a x + b within 61 bits.
    digests = [hashlib.blake2b(run.encode("utf-8", "replace"), digest_size=8).digest() for run in sorted(runs)]
    x_R = np.array([int.from_bytes(digest, "big") >> 34 for digest in digests], np.uint64)
    rng = np.random.Generator(np.random.PCG64(0))
    a_P, b_P = rng.integers(1, _PRIME, (2, PERMUTATIONS), dtype=np.uint64)
    return ((a_P[:, None] * x_R[None] + b_P[:, None]) % np.uint64(_PRIME)).min(axis=1).astype(np.int64)


def _observe(session: Session) -> Ask:
    """Hex SHA-256 of the program's doings without its words: numbers shown, solutions, rewards and ends."""
    seen = []
    for seed in _SEEDS:
        if session.program.has_solution:
            first, solution = yield from session.solve(MAIN, seed)
            seen.append((re.findall(r"\d+", first), solution))
        else:
            first, solution = (yield from session.episode(MAIN, seed, ()))[0], []
            seen.append((first, solution))
        for script in (solution, PLAIN_GARBAGE):
            _, steps = yield from session.episode(MAIN, seed, script)
            seen.append([(step.reward, step.terminated, step.truncated) for step in steps])
    return hashlib.sha256(repr(seen).encode("utf-8", "replace")).hexdigest()

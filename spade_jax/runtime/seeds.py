"""Seeds that are the same in every process, on every machine, in every year.

Everything random is keyed by names, e.g. (run seed, "places", step, place), and the
names are hashed with SHA-256. Python's `hash()` is salted per process and is
never used. What is drawn therefore depends on what it is for, not on how
many draws came before it, so a resumed run needs no random-generator state.
"""

from __future__ import annotations

import hashlib
import random

import numpy as np

Part = str | int | bool


def stable_seed(*parts: Part) -> int:
    """Maps names to an integer in [0, 2**63).

    Each part is written with its type and length, so that ("ab", "c") differs
    from ("a", "bc") and "1" from 1.

    Raises:
      TypeError: a part is neither str, int nor bool (a float's text is not stable).
    """
    digest = hashlib.sha256()
    for part in parts:
        if not isinstance(part, (str, int)):
            raise TypeError(f"stable_seed takes str, int and bool parts, not {type(part).__name__}: {part!r}")
        text = str(part).encode("utf-8", "surrogatepass")
        digest.update(f"{type(part).__name__}:{len(text)}:".encode() + text)
    return int.from_bytes(digest.digest()[:8], "big") >> 1


def environment_seed(environment_id: str, index: int) -> int:
    """The integer passed to `reset` for paired seed `index` of an environment.

    Both arms and every later policy meet the same instances, since neither the run nor
    the step enters.
    """
    return stable_seed("environment", environment_id, index)


def host_rng(*parts: Part) -> random.Random:
    """A private `random.Random` for one purpose, e.g. `host_rng(run_seed, "documents", step)`."""
    return random.Random(stable_seed(*parts))


def array_rng(*parts: Part) -> np.random.Generator:
    """As `host_rng`, for draws of whole arrays."""
    return np.random.Generator(np.random.PCG64(stable_seed(*parts)))

"""What is compiled once is compiled for the whole session, and for the next one.

Workers and the programs that tests start share one compilation cache, in pytest's own (`--cache-clear` empties it),
so that the tests neither read nor write the user's. What a test computes in its own process is small, and most of
its time would go into optimising it; the programs that tests start are compiled as a user's are.
"""

from __future__ import annotations

import os

import jax

from spade_jax.runtime.compile_cache import default_directory


def pytest_configure(config):
    jax.config.update("jax_disable_most_optimizations", True)
    if hasattr(config, "cache"):  # not with `-p no:cacheprovider`
        os.environ["XDG_CACHE_HOME"] = str(config.cache.mkdir("compiled"))
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(default_directory())
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.1"

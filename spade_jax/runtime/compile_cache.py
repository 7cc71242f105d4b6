"""The persistent compilation cache: the second run on a machine starts in seconds."""

from __future__ import annotations

import hashlib
import os
import platform
from pathlib import Path

from spade_jax.runtime.errors import UsageError


def default_directory() -> Path:
    """`$XDG_CACHE_HOME/spade_jax/xla-<cpu>`, by default under ~/.cache.

    The name holds a fingerprint of the processor, because XLA's CPU programs use the
    instructions of the machine that compiled them and a home folder may be shared
    between machines of different kinds.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    return root / "spade_jax" / f"xla-{_processor_fingerprint()}"


def _processor_fingerprint() -> str:
    features = platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            features += next((line for line in file if line.startswith(("flags", "Features"))), "")
    except OSError:
        features += platform.processor()
    return hashlib.sha256(features.encode()).hexdigest()[:12]


def enable_compile_cache(setting: str) -> Path | None:
    """Turns the cache on; call before the first compilation.

    Args:
      setting: "auto" for `default_directory()`, "off", or a directory.

    Returns:
      The directory in use, None when off.

    Raises:
      UsageError: the directory cannot be made or written to.
    """
    if setting == "off":
        return None
    try:
        directory = default_directory() if setting == "auto" else Path(setting).expanduser().absolute()
        directory.mkdir(parents=True, exist_ok=True)
        writable = os.access(directory, os.W_OK | os.X_OK)
    except (OSError, RuntimeError):  # RuntimeError: a user without a home
        writable = False
    if not writable:
        if setting == "auto":
            return None  # a read-only home only costs compile time
        raise UsageError(
            f"compile_cache.dir={setting} cannot be written to; name a writable directory, or 'off' to do without"
        )

    import jax  # here, so that the directory logic needs no JAX

    jax.config.update("jax_compilation_cache_dir", str(directory))
    # Everything is kept: a run compiles few programs, and many small ones add up.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return directory

"""The persistent compilation cache: the second run on a machine starts in seconds."""

from __future__ import annotations

import contextlib
import hashlib
import os
import platform
import zlib
from pathlib import Path

from spade_jax.runtime.errors import UsageError

_CHECKED = ".checked"  # its time: entries older than that have been looked at
_CLOCK_SLACK = 60.0  # s; of file servers, and of a check beside a process that writes
_ZSTD, _ZLIB = b"\x28\xb5\x2f\xfd", b"\x78"


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

    _drop_torn(directory)
    import jax  # here, so that the directory logic needs no JAX

    jax.config.update("jax_compilation_cache_dir", str(directory))
    # Everything is kept: a run compiles few programs, and many small ones add up.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return directory


def _drop_torn(directory: Path) -> None:
    """Removes entries that a killed process or a full disk has cut off.

    JAX writes an entry in place and never again: a torn one would be complained about, and compiled anew, by every
    run to come.
    """
    with contextlib.suppress(OSError):  # of a folder that others use as well; a torn entry costs time only
        stamp = directory / _CHECKED
        since = stamp.stat().st_mtime - _CLOCK_SLACK if stamp.exists() else 0.0
        stamp.touch()
        for path in directory.glob("*-cache"):
            if path.stat().st_mtime >= since and not _whole(path.read_bytes()):
                path.unlink()


def _whole(entry: bytes) -> bool:
    """Whether compressed data ends where it should; what is compressed otherwise is taken to be."""
    if entry.startswith(_ZSTD):
        try:
            import zstandard  # what JAX uses where it is installed
        except ImportError:
            return True
        stream = zstandard.ZstdDecompressor().decompressobj()
    elif entry.startswith(_ZLIB):
        stream = zlib.decompressobj()
    else:
        return bool(entry)
    try:
        stream.decompress(entry)
    except Exception:  # noqa: BLE001 (either library's own)
        return False
    return stream.eof

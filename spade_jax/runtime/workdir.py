"""The workdir: one run at a time, and one config for its whole life."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from spade_jax.runtime.errors import UsageError

CONFIG_FILE = "config.json"

# Keys that change how long a run goes on, how often it reports or what it spends, never what it computes.
MAY_DIFFER = (
    "run.steps",
    "run.allow_config_change",
    "checkpoint.",
    "log.",
    "compile_cache.",
)

_SHOWN = 8  # differences listed in a message


class WorkdirLock:
    """Holds a workdir for this process; released by `release`, or by death of any kind.

    A POSIX record lock, because the sandbox forks children: they do not inherit it, so
    an orphan cannot keep the next run out.

    Raises:
      UsageError: another live process holds the workdir, or it cannot be made.
    """

    def __init__(self, workdir: str | os.PathLike[str]) -> None:
        path = Path(workdir)
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._file = open(path / ".lock", "a+", encoding="utf-8")  # noqa: SIM115 (held for the run's life)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise UsageError(
                f"--workdir={workdir} cannot be used ({error.strerror}); name a directory that you can write to"
            ) from error
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.seek(0)
            holder = self._file.read().strip() or "unknown"
            self._file.close()
            raise UsageError(
                f"--workdir={workdir} is in use by another run (process {holder}); "
                "wait for it, stop it, or name another workdir"
            ) from error
        self._file.truncate(0)
        self._file.write(f"{os.getpid()} on {os.uname().nodename}\n")
        self._file.flush()

    def release(self) -> None:
        self._file.close()

    def __enter__(self) -> WorkdirLock:
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.release()


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dict -> {"a.b": leaf}."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def config_differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """One "key: old -> new" per key that differs and matters to the result."""
    old_flat, new_flat = flatten(old), flatten(new)
    lines = []
    for key in sorted(old_flat.keys() | new_flat.keys()):
        before, after = old_flat.get(key, "absent"), new_flat.get(key, "absent")
        if before != after and not any(key == may or (may.endswith(".") and key.startswith(may)) for may in MAY_DIFFER):
            lines.append(f"{key}: {before} -> {after}")
    return lines


def compare_config(workdir: str | os.PathLike[str], config: Any) -> list[str]:
    """Compares the resolved config with the one that the workdir holds, if any; writes nothing.

    Call with the workdir's lock held, and `write_config` once nothing can refuse the
    config any more: a start that fails must not bind the workdir to its mistake.

    Args:
      workdir: the run's directory.
      config: resolved `ConfigDict`; `config.run.allow_config_change` permits a difference.

    Returns:
      The differences that were permitted, for the log; [] otherwise.

    Raises:
      UsageError: the workdir belongs to a run with another config, or its config.json is damaged.
    """
    path = Path(workdir) / CONFIG_FILE
    try:
        old = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}); mend it or name another workdir") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON ({error}); restore it or name another workdir") from error
    if not isinstance(old, dict):
        raise UsageError(f"{path} is a JSON {type(old).__name__}, not a config; restore it or name another workdir")
    differences = config_differences(old, _as_json(config))
    if differences and not config.run.allow_config_change:
        more = f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
        raise UsageError(
            f"--workdir={workdir} holds a run with another config ({'; '.join(differences[:_SHOWN])}{more}); "
            "name another workdir, or pass --config.run.allow_config_change=true to go on with the new one"
        )
    return differences


def write_config(workdir: str | os.PathLike[str], config: Any) -> None:
    """Makes the resolved config the workdir's own, whole or not at all."""
    path = Path(workdir) / CONFIG_FILE
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(_as_json(config), indent=2, sort_keys=True) + "\n", encoding="utf-8")
    os.replace(partial, path)


def _as_json(config: Any) -> dict[str, Any]:
    """The config through JSON, so that tuples and lists, which the file cannot tell apart, compare equal."""
    return json.loads(json.dumps(config.to_dict()))

"""The workdir: one run at a time, and one config for its whole life."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from ml_collections import ConfigDict

from spade_jax.runtime.errors import UsageError
from spade_jax.runtime.files import replacing

CONFIG_FILE = "config.json"

# Keys that change how long a run goes on, how often it reports or what it spends, never what it computes.
MAY_DIFFER = (
    "run.steps",
    "run.allow_config_change",
    "checkpoint.save_steps",
    "checkpoint.save_secs",
    "checkpoint.keep",
    "checkpoint.keep_period",
    "log.",
    "profile.",
    "compile_cache.",
    "sandbox.hosts",
    "sandbox.ray_address",
)

# Keys that decide what a policy is and how it plays the held-out probe.
EVALUATION = (
    "policy.init",
    "policy.dtype",
    "policy.architecture.",
    "tokens.",
    "sampler.agent.",
    "sampler.context",
    "sampler.cache_dtype",
    "sampler.weight_dtype",
    "rollout.max_turns",
    "rollout.kind",
    "rollout.skills",  # whose families are in the probe
    "selfplay.context",
    "designer.style",  # of the agent's prompts, too
    "method.truncated_scores_zero",
    "method.void_crashes",
    "sandbox.isolation",
    "sandbox.limits.",
    "evaluation.temperature",
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


def local_folder(flag: str, value: str) -> str:
    """The absolute path of a folder on this machine.

    Raises:
      UsageError: it names a folder of another store.
    """
    if "://" in value:
        raise UsageError(
            f"--{flag}={value} is on no disk of this machine, as the metrics, the transcripts and the store of "
            f"environments have to be; name a local folder, and put the checkpoints there with "
            f"--config.checkpoint.dir={value}/checkpoints"
        )
    return os.path.abspath(value)


def checkpoint_folder(workdir: str | os.PathLike[str]) -> str:
    """Where the checkpoints of a run are that has begun: what its config says, else in its workdir."""
    config = _read_config(workdir) or {}
    return config.get("checkpoint", {}).get("dir") or f"{workdir}/checkpoints"


def refuse_foreign(workdir: str | os.PathLike[str], config: ConfigDict, newest: int | None) -> None:
    """Keeps a new run out of another one's checkpoints.

    Args:
      newest: the step of the newest checkpoint, None where there is none.

    Raises:
      UsageError: there are checkpoints, and no run in this workdir that could have made them.
    """
    if newest is not None and config.checkpoint.dir and _read_config(workdir) is None:
        raise UsageError(
            f"checkpoint.dir={config.checkpoint.dir} holds checkpoints (the newest of step {newest}) of a run whose "
            f"workdir is not {workdir}; name that workdir to go on with it, or another checkpoint.dir"
        )


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested dict -> {"a.b": leaf}."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return flat


def config_differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """One "key: old -> new" per key that differs and matters to the result of training."""
    return [f"{key}: {change}" for key, change in _changes(old, new) if not _among(key, MAY_DIFFER)]


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
      UsageError: the workdir belongs to a run with another config, or its config.json is damaged. Nothing
        permits another algorithm, whose state is of another kind.
    """
    old = _read_config(workdir)
    if old is None:
        return []
    differences = config_differences(old, _as_json(config))
    if algorithm := [difference for difference in differences if difference.startswith("method.algorithm:")]:
        raise UsageError(
            f"--workdir={workdir} holds a run of another algorithm ({algorithm[0]}), which cannot be gone on with; "
            "name another workdir"
        )
    if differences and not config.run.allow_config_change:
        raise UsageError(
            f"--workdir={workdir} holds a run with another config ({_listing(differences)}); "
            "name another workdir, or pass --config.run.allow_config_change=true to go on with the new one"
        )
    return differences


def compare_evaluation(workdir: str | os.PathLike[str], config: Any) -> list[str]:
    """As `compare_config`, for measuring the run of a workdir: only keys of EVALUATION count.

    Raises:
      UsageError: the run has another policy or plays by other rules, or its config.json is missing or damaged.
    """
    old = _read_config(workdir)
    if old is None:
        raise UsageError(f"{workdir} holds no {CONFIG_FILE}, which says how its policy plays; copy it there as well")
    changes = _changes(old, _as_json(config))
    differences = [f"{key}: {change}" for key, change in changes if _among(key, EVALUATION)]
    if differences and not config.run.allow_config_change:
        raise UsageError(
            f"--config is not what the run in {workdir} was made with ({_listing(differences)}); give the run's own "
            "config, or pass --config.run.allow_config_change=true to measure it under this one"
        )
    return differences


def read_config(workdir: str | os.PathLike[str]) -> ConfigDict:
    """The resolved config of a run.

    Raises:
      UsageError: the workdir holds none, or a damaged one.
    """
    config = _read_config(workdir)
    if config is None:
        raise UsageError(f"{workdir} holds no {CONFIG_FILE}; name the workdir of a run")
    return ConfigDict(config)


def write_config(workdir: str | os.PathLike[str], config: Any) -> None:
    """Makes the resolved config the workdir's own, whole or not at all."""
    with replacing(Path(workdir) / CONFIG_FILE) as partial:
        partial.write_text(json.dumps(_as_json(config), indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _as_json(config: Any) -> dict[str, Any]:
    """The config through JSON, so that tuples and lists, which the file cannot tell apart, compare equal."""
    return json.loads(json.dumps(config.to_dict()))


def _read_config(workdir: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The config that a workdir holds, None where it holds none."""
    path = Path(workdir) / CONFIG_FILE
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}); mend it or name another workdir") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON ({error}); restore it or name another workdir") from error
    if not isinstance(config, dict):
        raise UsageError(f"{path} is a JSON {type(config).__name__}, not a config; restore it or name another workdir")
    return config


def _changes(old: dict[str, Any], new: dict[str, Any]) -> list[tuple[str, str]]:
    """(key, "old -> new") of every key that differs."""
    old_flat, new_flat = flatten(old), flatten(new)
    keys = sorted(old_flat.keys() | new_flat.keys())
    pairs = ((key, old_flat.get(key, "absent"), new_flat.get(key, "absent")) for key in keys)
    return [(key, f"{before} -> {after}") for key, before, after in pairs if before != after]


def _among(key: str, names: tuple[str, ...]) -> bool:
    """Whether `names` lists the key itself or, with a dot at its end, a section that holds it."""
    return any(key == name or (name.endswith(".") and key.startswith(name)) for name in names)


def _listing(differences: list[str]) -> str:
    more = f" and {len(differences) - _SHOWN} more" if len(differences) > _SHOWN else ""
    return "; ".join(differences[:_SHOWN]) + more

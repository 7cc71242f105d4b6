"""Checkpoints: the train state and the host state of one step, together or not at all.

Orbax writes each step to a temporary folder and renames it when both items are
complete, so a process killed at any moment leaves the step before it intact. One that
was damaged afterwards is moved aside, and the run goes on from the one before.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp
from etils import epath

from spade_jax.runtime import distributed, hosts
from spade_jax.runtime.app import disk_full
from spade_jax.runtime.errors import RunError, UsageError


class Restored(NamedTuple):
    """What `Checkpointer.restore` found.

    Attributes:
      step: updates done when it was saved; the next step to run.
      state: pytree of global arrays, placed as the abstract tree asked.
      host: the host state, plain JSON values.
    """

    step: int
    state: Any
    host: dict[str, Any]


def checkpoint_path(directory: str | os.PathLike[str]) -> epath.Path:
    """The folder of checkpoints, which need not exist.

    Raises:
      UsageError: it is no folder, or where it lies cannot be reached.
    """
    # Asked before Orbax is, whose threads outlive a constructor that fails and then keep the process alive.
    try:
        path = epath.Path(directory)
        if not _is_remote(directory):  # etils would take a URL for a relative path
            path = path.absolute()
        if path.exists() and not path.is_dir():
            raise UsageError(f"{path} is not a folder; move it away or name another workdir")
    except ImportError as error:
        raise UsageError(f"{directory} needs the package gcsfs ({error}); install spade_jax[gcs]") from error
    except UsageError:
        raise
    except Exception as error:  # noqa: BLE001 (of whichever client it is)
        raise UsageError(
            f"{directory} cannot be reached ({_first_line(error)}); mend that, or name another checkpoint.dir"
        ) from error
    return path


class Checkpointer:
    """Saves in the background, keeps the newest few, restores the latest.

    Every process of a multi-host run constructs one and calls the same methods.

    Args:
      directory: the `checkpoints/` folder of a workdir, or a folder of Cloud Storage, gs://BUCKET/PATH.
      keep: how many of the newest checkpoints stay on disk.
      keep_period: those of steps that it divides stay as well; 0: none of them.
      read_only: nothing on disk is changed; for looking at a run from outside.
    """

    def __init__(
        self, directory: str | os.PathLike[str], *, keep: int, keep_period: int = 0, read_only: bool = False
    ) -> None:
        self._directory = checkpoint_path(directory)
        self._read_only = read_only
        # Orbax logs, from threads of its own and with tracebacks, what it also raises and we say in a sentence.
        logging.getLogger("absl").addFilter(_not_from_orbax)
        if not read_only:
            _ignore_closed_loops()
        self._manager = ocp.CheckpointManager(
            self._directory,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=keep,
                keep_period=keep_period or None,
                # What a killed process left half-written is removed at the next start.
                cleanup_tmp_directories=not read_only,
                enable_async_checkpointing=True,
                read_only=read_only,
            ),
        )

    def latest_step(self) -> int | None:
        """The newest complete checkpoint's step, None in a new workdir."""
        return self._manager.latest_step()

    def save(self, step: int, state: Any, host: dict[str, Any]) -> None:
        """Copies `state` off the device and writes it in the background.

        Waits for the save before it, so at most one is under way, and reports its failure.
        The device arrays may be donated as soon as this returns.

        Args:
          step: updates done.
          state: pytree of global arrays (every leaf made inside a jit).
          host: JSON values; serialised before this returns.

        Raises:
          RunError: this save could not start or the one before it failed. Where it was for want of another process,
            JAX's own error comes as it is.
        """
        self.wait()
        try:
            self._manager.save(
                step, args=ocp.args.Composite(state=ocp.args.StandardSave(state), host=ocp.args.JsonSave(host))
            )
        except Exception as error:
            if distributed.peer_is_gone(error):  # a save waits for the other processes, and the folder is sound
                raise
            raise self._save_error(error) from error

    def wait(self) -> None:
        """Blocks until the save under way is on disk.

        Raises:
          RunError: it failed; the checkpoint before it is intact. For want of another process as in `save`.
        """
        try:
            self._manager.wait_until_finished()
            self._manager.check_for_errors()
        except Exception as error:
            if distributed.peer_is_gone(error):  # a save waits for the other processes, and the folder is sound
                raise
            raise self._save_error(error) from error

    def restore(self, abstract_state: Any) -> Restored | None:
        """Reads the latest checkpoint, None when there is none.

        One that cannot be read is moved to `<directory>.damaged/` in favour of the one before
        it, with a warning, so that its step can be saved again. With `read_only` it is an error:
        who looks at a run from outside must not take an older policy for the newest.

        Args:
          abstract_state: pytree of `jax.ShapeDtypeStruct` with shardings (or of arrays), which
            says what is expected and where it goes; the mesh may differ from the one that saved.

        Raises:
          UsageError: the checkpoint holds a state of another structure or shape.
          RunError: none can be read.
        """
        abstract_state = jax.tree.map(ocp.utils.to_shape_dtype_struct, abstract_state)
        steps = sorted(self._manager.all_steps(), reverse=True)
        failures: dict[int, str] = {}
        for step in steps:
            outcome = self._read(step, abstract_state)
            # Where one process cannot read its part, none goes on from it.
            failed = [reason for reason in hosts.gather("" if isinstance(outcome, Restored) else outcome) if reason]
            outcome = failed[0] if failed else outcome
            if isinstance(outcome, Restored):
                for damaged, reason in failures.items():
                    self._move_aside(damaged, reason, going_on_from=step)
                return outcome
            failures[step] = outcome
            if self._read_only:
                break
        if not steps:
            return None
        newest, *earlier = steps
        remedy = "start again in a new workdir"
        if earlier and self._read_only:
            remedy = f"remove that folder to read step {earlier[0]}"
        elif earlier:
            remedy = f"nor can those of steps {', '.join(map(str, earlier))}; {remedy}"
        raise RunError(f"checkpoint {self._directory / str(newest)} cannot be read ({failures[newest]}); {remedy}")

    def _read(self, step: int, abstract_state: Any) -> Restored | str:
        """One checkpoint, or why it cannot be read."""
        with _unheard():
            try:
                items = self._manager.restore(
                    step,
                    args=ocp.args.Composite(
                        state=ocp.args.StandardRestore(abstract_state), host=ocp.args.JsonRestore()
                    ),
                )
                if items.host is None:
                    raise FileNotFoundError("the host state is missing")
                return Restored(step, items.state, items.host)
            except Exception as error:  # noqa: BLE001 (whatever Orbax makes of damaged files)
                mismatch = self._mismatch(step, abstract_state)
                if not mismatch:
                    return _first_line(error)
        raise UsageError(
            f"{self._directory / str(step)} holds another model ({mismatch}); resume with the config that wrote it, or "
            "in another workdir"
        )

    def _move_aside(self, step: int, reason: str, going_on_from: int) -> None:
        """Takes a damaged checkpoint out of the way of the save that will come at its step."""
        hosts.from_first(lambda: self._rename(step, reason, going_on_from))
        self._manager.reload()

    def _rename(self, step: int, reason: str, going_on_from: int) -> None:
        path, folder = self._directory / str(step), self._directory.parent / f"{self._directory.name}.damaged"
        names = (f"{step}" if i == 0 else f"{step}.{i}" for i in itertools.count())
        target = next(folder / name for name in names if not (folder / name).exists())
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if _is_remote(folder):  # whose empty folders do not exist
                (folder / "README").write_text("Checkpoints that could not be read.\n")
            path.rename(target)
        except OSError as error:
            raise RunError(
                f"checkpoint {path} cannot be read ({reason}), nor moved away ({error.strerror}); remove that folder "
                f"to go on from step {going_on_from}"
            ) from error
        print(
            f"warning: checkpoint {path} cannot be read ({reason}) and was moved to {target}; the run goes on from "
            f"step {going_on_from}",
            file=sys.stderr,
            flush=True,
        )

    def close(self) -> None:
        """Waits for the save under way and ends the background threads."""
        self.wait()
        self._manager.close()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(self, kind: type | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()

    def _save_error(self, error: Exception) -> RunError:
        steps = self._complete_steps()
        kept = f"the checkpoint of step {steps[-1]} is intact" if steps else "no earlier checkpoint exists"
        if disk_full(error):
            return RunError(
                f"the disk is full: no checkpoint could be written to {self._directory}; {kept}; "
                "free some space and run the same command again"
            )
        return RunError(
            f"no checkpoint could be written to {self._directory} ({_first_line(error)}); {kept}; "
            "mend that and run the same command again"
        )

    def _mismatch(self, step: int, abstract_state: Any) -> str:
        """How the saved tree differs from the one asked for, "" if it does not or cannot be told."""
        try:
            metadata = self._manager.item_metadata(step).state
            saved = {_name(path): tuple(leaf.shape) for path, leaf in jax.tree.leaves_with_path(metadata.tree)}
        except Exception:  # noqa: BLE001 (unreadable metadata: then the checkpoint is, too)
            return ""
        asked = {_name(path): _stored_shape(leaf) for path, leaf in jax.tree.leaves_with_path(abstract_state)}
        for name in sorted(saved.keys() | asked.keys()):
            if saved.get(name) != asked.get(name):
                return f"{name}: saved {saved.get(name, 'absent')}, expected {asked.get(name, 'absent')}"
        return ""

    def _complete_steps(self) -> list[int]:
        """Steps on disk; asked of the disk, because a failed save may still be in the manager's list."""
        if not self._directory.is_dir():
            return []
        steps = (entry for entry in self._directory.iterdir() if entry.name.isdigit())
        return sorted(int(entry.name) for entry in steps if ocp.utils.is_checkpoint_finalized(entry))


def _is_remote(path: str | os.PathLike[str]) -> bool:
    return "://" in os.fspath(path)


def _not_from_orbax(record: logging.LogRecord) -> bool:
    return "orbax" not in Path(record.pathname).parts


def _ignore_closed_loops() -> None:
    """TensorStore's threads still report to the event loop that a failed save has closed; nobody needs to read that.

    They do so while the run still trains, before anybody has asked whether the save has failed.
    """
    previous = sys.unraisablehook

    def hook(unraisable: Any) -> None:
        if str(unraisable.exc_value) != "Event loop is closed":
            previous(unraisable)

    sys.unraisablehook = hook


@contextlib.contextmanager
def _unheard() -> Iterator[None]:
    """Keeps what a failed read leaves behind, coroutines above all, from complaining when it is collected."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
            gc.collect()
    finally:
        sys.unraisablehook = hook


def _name(path: tuple[Any, ...]) -> str:
    """A leaf's path as dotted names, the same for dicts, tuples and NamedTuples."""
    parts = []
    for entry in path:
        for attribute in ("key", "name", "idx"):
            if hasattr(entry, attribute):
                parts.append(str(getattr(entry, attribute)))
                break
    return ".".join(parts)


def _stored_shape(leaf: jax.ShapeDtypeStruct) -> tuple[int, ...]:
    """The shape on disk: a typed random key is stored as its words."""
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.eval_shape(jax.random.key_data, leaf)
    return tuple(leaf.shape)


def _first_line(error: Exception) -> str:
    line = (str(error).strip().splitlines() or [type(error).__name__])[0].partition(". See full TensorStore")[0]
    return line if len(line) <= 160 else line[:157] + "..."

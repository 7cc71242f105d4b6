"""Checkpoints: the train state and the host state of one step, together or not at all.

Orbax writes each step to a temporary folder and renames it when both items are
complete, so a process killed at any moment leaves the step before it intact.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp

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


class Checkpointer:
    """Saves in the background, keeps the newest few, restores the latest.

    Every process of a multi-host run constructs one and calls the same methods.

    Args:
      directory: the `checkpoints/` folder of a workdir.
      keep: how many checkpoints stay on disk.
      read_only: nothing on disk is changed; for looking at a run from outside.
    """

    def __init__(self, directory: str | os.PathLike[str], *, keep: int, read_only: bool = False) -> None:
        self._directory = Path(directory).absolute()
        # Asked before Orbax is, whose threads outlive a constructor that fails and then keep the process alive.
        if self._directory.exists() and not self._directory.is_dir():
            raise UsageError(f"{self._directory} is not a folder; move it away or name another workdir")
        self._manager = ocp.CheckpointManager(
            self._directory,
            options=ocp.CheckpointManagerOptions(
                max_to_keep=keep,
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
          RunError: this save could not start or the one before it failed.
        """
        self.wait()
        try:
            self._manager.save(
                step, args=ocp.args.Composite(state=ocp.args.StandardSave(state), host=ocp.args.JsonSave(host))
            )
        except Exception as error:
            raise self._save_error(error) from error

    def wait(self) -> None:
        """Blocks until the save under way is on disk.

        Raises:
          RunError: it failed; the checkpoint before it is intact.
        """
        try:
            self._manager.wait_until_finished()
            self._manager.check_for_errors()
        except Exception as error:
            raise self._save_error(error) from error

    def restore(self, abstract_state: Any) -> Restored | None:
        """Reads the latest checkpoint, None when there is none.

        Args:
          abstract_state: pytree of `jax.ShapeDtypeStruct` with shardings (or of arrays), which
            says what is expected and where it goes; the mesh may differ from the one that saved.

        Raises:
          UsageError: the checkpoint holds a state of another structure or shape.
          RunError: it cannot be read.
        """
        step = self.latest_step()
        if step is None:
            return None
        abstract_state = jax.tree.map(ocp.utils.to_shape_dtype_struct, abstract_state)
        try:
            items = self._manager.restore(
                step,
                args=ocp.args.Composite(state=ocp.args.StandardRestore(abstract_state), host=ocp.args.JsonRestore()),
            )
            if items.host is None:
                raise FileNotFoundError("the host state is missing")
        except Exception as error:
            raise self._restore_error(step, abstract_state, error) from error
        return Restored(step, items.state, items.host)

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

    def _restore_error(self, step: int, abstract_state: Any, error: Exception) -> UsageError | RunError:
        path = self._directory / str(step)
        mismatch = self._mismatch(step, abstract_state)
        if mismatch:
            return UsageError(
                f"{path} holds another model ({mismatch}); resume with the config that wrote it, or in another workdir"
            )
        earlier = [s for s in self._complete_steps() if s < step]
        remedy = f"remove that folder to resume from step {earlier[-1]}" if earlier else "start again in a new workdir"
        return RunError(f"checkpoint {path} cannot be read ({_first_line(error)}); {remedy}")

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
        return sorted(int(entry.name) for entry in self._directory.iterdir() if entry.name.isdigit())


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
    line = (str(error).strip().splitlines() or [type(error).__name__])[0]
    return line if len(line) <= 160 else line[:157] + "..."

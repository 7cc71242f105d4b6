"""What one program may use. Shared by the trainer, the fork server and the child."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of one child process; all of them are positive except `processes`.

    Attributes:
      memory_mb: address space in MiB on top of what the fork server itself maps.
      cpu_seconds: CPU time of the child's whole life; more ends it.
      call_seconds: wall time of one call.
      reset_seconds: wall time of `construct` and of `reset`.
      episode_seconds: wall time of all calls of an episode together; `reset` begins one. The
        time that a reply waits for the trainer does not count.
      processes: processes and threads beside the child's own.
      open_files: descriptors, of which four are taken (stdio and the channel).
      file_bytes: size of any one file that is written.
      frame_bytes: size of one reply on the wire.
      observation_chars: length of an observation, or of one listed command.
    """

    memory_mb: int = 256
    cpu_seconds: int = 20
    call_seconds: float = 2.0
    reset_seconds: float = 5.0
    episode_seconds: float = 60.0
    processes: int = 0
    open_files: int = 16
    file_bytes: int = 65_536
    frame_bytes: int = 262_144
    observation_chars: int = 4000

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            least = {"processes": 0, "open_files": 5}.get(field.name, 1 if field.type == "int" else 1e-3)
            if not value >= least:
                raise ValueError(f"sandbox limit {field.name}={value} is too small; use at least {least}")

    def seconds(self, method: str) -> float:
        """The deadline of a call for which the caller names none."""
        return self.reset_seconds if method in ("construct", "reset") else self.call_seconds


DEFAULT_LIMITS = Limits()

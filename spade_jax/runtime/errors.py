"""The two ways a binary may end badly, and their exit codes."""

from __future__ import annotations

EXIT_FAILURE = 1
EXIT_USAGE = 2


class UsageError(ValueError):
    """The user asked for something impossible: exit code 2.

    The message is one sentence that names the thing, its value and the remedy.
    """


class RunError(RuntimeError):
    """The run failed for a reason outside the code, e.g. a full disk: exit code 1."""

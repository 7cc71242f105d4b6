"""How a binary starts and how it ends: flags in, one sentence and an exit code out."""

from __future__ import annotations

import difflib
import errno
import functools
import os
import re
import runpy
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from absl import app, flags
from ml_collections import ConfigDict

from spade_jax.runtime import distributed, shutdown
from spade_jax.runtime.errors import EXIT_FAILURE, EXIT_USAGE, RunError, UsageError
from spade_jax.runtime.shutdown import EXIT_INTERRUPTED

# Errors of a file that no code of ours can be blamed for: its disk, its rights, or somebody who removed it.
_OF_THE_MACHINE = frozenset(
    getattr(errno, name)
    for name in ("EACCES", "EIO", "EMFILE", "ENFILE", "ENOENT", "ENOTDIR", "EPERM", "EROFS", "ESTALE")
)

# What XLA's pools for the CPU, TensorStore and Orbax start between them, and a reserve.
_LIBRARY_THREADS, _LIBRARY_THREADS_PER_CORE = 24, 4

_WARNING = -1  # absl's verbosity for "warnings and worse"


def run(
    main: Callable[[list[str]], int | None], argv: Sequence[str] | None = None, *, positional: Sequence[str] = ()
) -> NoReturn:
    """Runs an absl `main`; a foreseeable failure prints one line, anything else a traceback.

    `positional` names the arguments that must stand beside the flags.

    Exit codes: 0, 1 for a failure of the run (`RunError`, full disk, a file that cannot be
    used any more, or an error in our code), 2 for a mistake of the user (`UsageError`), 130 for an interrupt.
    """
    shutdown.raise_on_interrupt()
    try:
        if "jax" in sys.modules:
            check_threads()
        app.run(main, argv=argv, flags_parser=functools.partial(parse_flags, positional=positional))
    except UsageError as error:
        _end(str(error), EXIT_USAGE)
    except (RunError, FloatingPointError) as error:  # the learner says so of a loss that is not finite
        _end(str(error), EXIT_FAILURE)
    except KeyboardInterrupt:
        _end("interrupted", EXIT_INTERRUPTED)
    except Exception as error:
        if distributed.peer_is_gone(error):
            _end(
                "another process of this run has ended, and this one ends with it; see what that one said, and start "
                "all of them again to go on from the newest checkpoint",
                EXIT_FAILURE,
            )
        if memory_full(error):
            _end(
                f"memory ran out ({str(error).splitlines()[0][:200] if str(error) else type(error).__name__}); lower "
                "learner.micro_batch_tokens, sampler.slots or sampler.context, or use more devices",
                EXIT_FAILURE,
            )
        filename = getattr(error, "filename", None)
        if disk_full(error):
            where = f" while writing {filename}" if filename else ""
            _end(f"the disk is full{where}; free some space and run the same command again", EXIT_FAILURE)
        if isinstance(error, OSError) and error.errno in _OF_THE_MACHINE and filename:
            _end(f"{filename}: {error.strerror}; mend that and run the same command again", EXIT_FAILURE)
        if not distributed.joined():
            raise
        traceback.print_exc()
        _leave(EXIT_FAILURE)
    finally:
        shutdown.exit_on_interrupt()
    raise AssertionError("absl's app.run always exits")


def check_threads() -> None:
    """Where XLA and TensorStore could not start their threads they would abort the process, with a page of addresses.

    Raises:
      RunError: this process may not have as many as they take.
    """
    count = _LIBRARY_THREADS + _LIBRARY_THREADS_PER_CORE * len(os.sched_getaffinity(0))
    done = threading.Event()
    started = []
    try:
        for _ in range(count):
            thread = threading.Thread(target=done.wait, daemon=True)
            thread.start()
            started.append(thread)
    except RuntimeError as error:  # Python's word for what the kernel refuses
        raise RunError(
            f"this process may start only {len(started)} threads, and JAX needs about {count}; raise the limit on "
            "processes (ulimit -u, or the container's pids limit)"
        ) from error
    finally:
        done.set()
        for thread in started:
            thread.join()


def disk_full(error: BaseException) -> bool:
    """Whether an error, or one that it came from, says that no space is left."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return True
        # Native writers (TensorStore, SQLite) only say so in the message.
        if re.search(r"No space left on device|Disk quota exceeded|File too large|disk is full", str(cause)):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def memory_full(error: BaseException) -> bool:
    """Whether an error is that of an allocation that failed, here or on a device."""
    return isinstance(error, MemoryError) or (
        type(error).__name__ == "JaxRuntimeError"
        and re.match(r"RESOURCE_EXHAUSTED: .*(out of memory|allocat)", str(error), re.IGNORECASE) is not None
    )


def _end(message: str, code: int) -> NoReturn:
    sys.stdout.flush()
    print("error: " + " ".join(message.split()), file=sys.stderr, flush=True)
    _leave(code)


def _leave(code: int) -> NoReturn:
    if distributed.joined():
        # JAX would hold this process until the others exit as well, which may be waiting for what it owes them.
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def parse_flags(argv: Sequence[str], positional: Sequence[str] = ()) -> list[str]:
    """Parses absl and config flags.

    Raises:
      UsageError: an unknown flag or key, a value of the wrong type, an unreadable
        config file or a stray argument, in one sentence.
    """
    argv = list(argv)
    for argument in argv:  # logs, JSON and TensorBoard are UTF-8; a path that is not would fail in the middle of a run
        if argument != argument.encode(errors="replace").decode():
            shown = ascii(argument)[1:-1]
            raise UsageError(f"{shown} is not UTF-8; rename what it names")
    try:
        rest = flags.FLAGS(argv)
    except flags.UnrecognizedFlagError as error:
        if error.flagname.startswith("config."):
            raise UsageError(f"--{error.flagname} needs --config=FILE on the command line as well") from error
        raise UsageError(f"{error}; --help lists the flags") from error
    except (flags.Error, KeyError, AttributeError, TypeError, ValueError, OSError, SyntaxError, ImportError) as error:
        raise UsageError(_explain(argv, error)) from error
    # ml_collections keeps the error of a missing file until the config is first used.
    if "config" in flags.FLAGS and not isinstance(flags.FLAGS.config, (ConfigDict, type(None))):
        raise UsageError(
            f"--config={_value_of(argv, 'config')} is not a readable config file; give the path of one, e.g. "
            "configs/spade_tiny.py"
        )
    for name in ("workdir", "out"):  # "" would be taken for the current directory
        if name in flags.FLAGS and flags.FLAGS[name].value == "":
            raise UsageError(f"--{name}= is empty; name a path, or . for the current directory")
    if len(rest) > 1 + len(positional):
        remedy = f"give {' '.join(positional)} only" if positional else "settings are given as --config.key=value"
        raise UsageError(f"unexpected argument {rest[1 + len(positional)]!r}; {remedy}")
    if len(rest) < 1 + len(positional):
        raise UsageError(f"{positional[len(rest) - 1]} is missing; name it on the command line")
    if flags.FLAGS["verbosity"].using_default_value:
        flags.FLAGS.verbosity = _WARNING  # libraries' INFO lines would drown the progress lines
    return rest


def _value_of(argv: Sequence[str], name: str) -> str:
    for i, argument in enumerate(argv):
        match = re.fullmatch(rf"--?{re.escape(name)}(?:=(.*))?", argument, re.DOTALL)
        if match:
            return match[1] if match[1] is not None else "".join(argv[i + 1 : i + 2])
    return ""


def _explain(argv: Sequence[str], error: Exception) -> str:
    """One sentence for what went wrong while flags were parsed.

    ml_collections names neither the whole key nor its type, so the config is loaded
    once more, without the overrides, and each override is looked up in it.
    """
    if missing := re.search(r"Flag --(\w+) must have a value other than None", str(error)):
        name = missing[1]
        return f"--{name} is missing; give --{name}=... ({(flags.FLAGS[name].help or 'required').rstrip('.')})"
    path = _value_of(argv, "config")
    try:
        file, _, words = path.partition(":")
        config = runpy.run_path(file)["get_config"](*([words] if words else []))
    except Exception:  # noqa: BLE001 (whatever a config file does is its author's to read)
        # ml_collections wraps a traceback around the message of a config's own error; its last line is that message.
        last_line = str(error).strip().splitlines()[-1:] or [type(error).__name__]
        return f"--config={path} cannot be loaded: {re.sub(r'^(ValueError|TypeError): ', '', last_line[0])}"
    for argument in argv:
        match = re.match(r"--?(?:no)?config\.([^=]+)(?:=(.*))?$", argument, re.DOTALL)
        if not match:
            continue
        key, value = match[1], match[2]
        node: Any = config
        for i, part in enumerate(key.split(".")):
            if not isinstance(node, ConfigDict) or part not in node:
                known = list(node.keys()) if isinstance(node, ConfigDict) else []
                parent = ".".join(key.split(".")[:i])
                close = difflib.get_close_matches(part, known, 1)
                hint = (
                    f"did you mean {'.'.join(filter(None, (parent, close[0])))}?"
                    if close
                    else (f"{parent or 'the config'} has: {', '.join(sorted(known)) or 'no keys below it'}")
                )
                return f"--config.{key} is not a key of {path}; {hint}"
            holder, node = node, node[part]
        if isinstance(error, flags.IllegalFlagValueError) and f"--config.{key}={value}" in str(error):
            if isinstance(node, ConfigDict):
                return f"--config.{key}={value} names a section, not a key; set one of: {', '.join(sorted(node))}"
            return f"--config.{key}={value} is not of this key's type; give a value of type {_type(holder, key)}"
    return str(error)


def _type(holder: ConfigDict, key: str) -> str:
    return holder.get_type(key.rsplit(".", 1)[-1]).__name__

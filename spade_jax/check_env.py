"""Judges one environment program as the training gate does, check by check.

    python -m spade_jax.check_env FILE.py [--hint=TEXT] [--kind=game|tool] [--json]

Exit codes: 0 sound, 1 unsound, 2 a mistake in the call, 3 the sandbox failed.
"""

from __future__ import annotations

import json
import pathlib
import sys
import textwrap

from absl import flags

from spade_jax import structs
from spade_jax.designer import gate, parse
from spade_jax.designer.reward import INFRASTRUCTURE
from spade_jax.runtime import app
from spade_jax.runtime.errors import UsageError
from spade_jax.sandbox import Pool, SandboxError

EXIT_UNSOUND = 1
EXIT_INFRASTRUCTURE = 3

_MAX_BYTES = 4 * parse.MAX_SOURCE_CHARS  # a character of UTF-8 takes four at most
_MARKS = {True: "pass", False: "FAIL", None: "open"}


def main(argv: list[str]) -> int:
    source = read_program(argv[1])
    hint = flags.FLAGS.hint
    if hint is not None and not hint.strip():
        raise UsageError("--hint= is empty; give the text of the hint, or leave the flag out")
    # There is no memory to be novel against.
    checks = tuple(check for check in gate.CHECKS if check != "novel")
    config = gate.GateConfig(checks, kind=flags.FLAGS.kind)
    try:
        with Pool(max_live=8) as pool:
            (report,) = gate.run_gates(pool, [source], config, hints=[hint])
    except (SandboxError, OSError) as error:
        print(f"error: the sandbox failed: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_INFRASTRUCTURE
    print(as_json(argv[1], report) if flags.FLAGS.json else as_text(argv[1], report))
    if report.failure == INFRASTRUCTURE:
        return EXIT_INFRASTRUCTURE
    return 0 if report.valid else EXIT_UNSOUND


def read_program(name: str) -> str:
    """The text of a program's file, without a byte-order mark.

    Raises:
      UsageError: no such file, too large for a program, or not UTF-8.
    """
    path = pathlib.Path(name)
    try:
        size = path.stat().st_size if path.is_file() else None
        if size is not None and size <= _MAX_BYTES:
            return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name!a} is not UTF-8 at byte {error.start}; save it as UTF-8") from error
    except (OSError, ValueError) as error:  # ValueError: a null character in the name
        raise UsageError(f"{name!a} cannot be read ({error}); give the path of a readable program") from error
    if size is None:
        raise UsageError(f"{name!a} is not a file; give the path of a program, e.g. door.py")
    raise UsageError(f"{name!a} has {size} bytes; a program is at most {parse.MAX_SOURCE_CHARS} characters long")


def as_text(name: str, report: structs.GateReport) -> str:
    """A table for a person: verdict, time and evidence of each check that ran."""
    lines = []
    for verdict in report.verdicts:
        head = f"{_MARKS[verdict.passed]}  {verdict.name:<12}{verdict.seconds * 1e3:>8.0f} ms  "
        evidence = textwrap.wrap(ascii(verdict.evidence)[1:-1], 120 - len(head)) or [""]
        lines += [head + evidence[0], *(" " * len(head) + line for line in evidence[1:])]
    if report.failure == INFRASTRUCTURE:
        lines.append(f"{name!a}: the sandbox failed, so nothing is known")
    elif report.failure:
        lines.append(f"{name!a}: unsound ({report.failure})")
    elif report.solvable:
        lines.append(f"{name!a}: sound")
    else:
        lines.append(f"{name!a}: sound, but without solution(), hence unverified and paid at most half")
    return "\n".join(lines)


def as_json(name: str, report: structs.GateReport) -> str:
    """The report as one JSON object on one line."""
    return json.dumps({"file": name, "sound": report.valid, **structs.to_jsonable(report)})


def run() -> None:
    # Not at import: other binaries may be loaded beside this one.
    flags.DEFINE_string("hint", None, "The hint that is to come with the program; it is judged too.")
    flags.DEFINE_enum(
        "kind", "game", ("game", "tool"), "What the program is: a game, or on the base class of tool use."
    )
    flags.DEFINE_bool("json", False, "Print the report as one line of JSON.")
    app.run(main, positional=("FILE.py",))


if __name__ == "__main__":
    run()

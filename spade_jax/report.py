"""Writes `report.html`: a run's curves and programs on one self-contained page.

    python -m spade_jax.report --workdir=DIR [--out=FILE]

Needs no accelerator and no JAX, and may be given while the run still writes.
"""

from __future__ import annotations

from absl import flags

from spade_jax.reporting.write import REPORT_FILE, write_report
from spade_jax.runtime import app
from spade_jax.runtime.errors import UsageError


def main(argv: list[str]) -> None:
    del argv
    if not flags.FLAGS.workdir:
        raise UsageError("--workdir is missing; give the folder that a training run wrote")
    print(f"wrote {write_report(flags.FLAGS.workdir, flags.FLAGS.out)}")


def run() -> None:
    # Not at import: other binaries have flags of these names, and a test may load several.
    flags.DEFINE_string("workdir", None, "Folder of the run to report on.")
    flags.DEFINE_string("out", None, f"The page to write; {REPORT_FILE} in the workdir if not given.")
    app.run(main)


if __name__ == "__main__":
    run()

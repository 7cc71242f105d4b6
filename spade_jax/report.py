"""Writes `report.html`: a run's curves and programs on one self-contained page.

    python -m spade_jax.report --workdir=DIR [--out=FILE]
    python -m spade_jax.report --workdirs=DIR,DIR,DIR --tags=eval/probe/instance,agent/win_rate --out=FILE.svg
    python -m spade_jax.report --sweep=DIR [--out=FILE]

The second form draws shares of runs that differ in their seed on one chart: the mean
over the runs and its standard error. The third compares the runs of a sweep. Needs no
accelerator and no JAX, and may be given while the runs still write.
"""

from __future__ import annotations

import os

from absl import flags

from spade_jax.reporting.comparison import write_comparison
from spade_jax.reporting.sweep_page import SWEEP_REPORT_FILE, write_sweep_report
from spade_jax.reporting.write import REPORT_FILE, write_report
from spade_jax.runtime import app
from spade_jax.runtime.errors import UsageError


def main(argv: list[str]) -> None:
    del argv
    workdir, workdirs, sweep, tags, out = (
        flags.FLAGS[name].value for name in ("workdir", "workdirs", "sweep", "tags", "out")
    )
    if sweep:
        if workdir or workdirs or tags:
            raise UsageError("--sweep goes with --out alone; it names the folder that holds all of its runs")
        print(f"wrote {write_sweep_report(sweep, out or os.path.join(sweep, SWEEP_REPORT_FILE))}")
        return
    if workdirs:
        if workdir or not (tags and out):
            raise UsageError("--workdirs goes with --tags and --out, and without --workdir")
        print(f"wrote {write_comparison(workdirs, tags, out)}")
        return
    if not workdir:
        raise UsageError("--workdir is missing; give the folder that a training run wrote, or --sweep, that of a sweep")
    print(f"wrote {write_report(workdir, out)}")


def run() -> None:
    # Not at import: other binaries have flags of these names, and a test may load several.
    flags.DEFINE_string("workdir", None, "Folder of the run to report on.")
    flags.DEFINE_list("workdirs", None, "Folders of runs that differ in their seed, to be drawn on one chart.")
    flags.DEFINE_string("sweep", None, "Folder of a sweep, whose runs are to be compared.")
    flags.DEFINE_list("tags", None, "With --workdirs: the shares to draw, as TensorBoard names them.")
    flags.DEFINE_string("out", None, f"The page to write; by default {REPORT_FILE} or {SWEEP_REPORT_FILE} there.")
    app.run(main)


if __name__ == "__main__":
    run()

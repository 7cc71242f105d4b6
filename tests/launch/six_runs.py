"""A sweep of six runs of the real trainer, one of which crashes; killed, and resumed by the same command.

    python tests/launch/six_runs.py --out=DIR

Kills the launcher (SIGKILL) once the first run has a checkpoint, gives its command again, and prints what became of
the runs. Exit code 0 if five are done, the one that crashes is listed as failed, no step was lost or done twice behind
a checkpoint, and the comparison page has them. DIR has to be new. `test_sweep.py` has the same with a stand-in for the
trainer, for every build.
"""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from spade_jax.runtime import sweeps  # noqa: E402

RUNS, CRASHES, STEPS = 6, 3, 4
SWEEP = f"def get_hyper(h):\n    return h.sweep('run.seed', range({RUNS}))\n"
SMALL = (
    "selfplay.opponent=self", "selfplay.matches=8", "sampler.slots=8", "evaluation.matches=2", "evaluation.readings=1",
    "evaluation.opponents=('random',)", f"evaluation.every_steps={STEPS}", "checkpoint.save_steps=1",
    f"run.steps={STEPS}",
)  # fmt: skip


def trainer() -> None:
    """`python -m spade_jax.train`, but the run of one seed breaks in its second step."""
    from spade_jax import train
    from spade_jax.session import Session

    finish = Session.finish

    def finish_or_break(self: Session, step: int, log: dict[str, float], host: dict[str, Any]) -> bool:
        if step == 1 and f"--config.run.seed={CRASHES}" in sys.argv:
            raise RuntimeError("broken on purpose")
        return finish(self, step, log, host)

    Session.finish = finish_or_break
    train.run()


def log(root: Path, seed: int) -> str:
    path = root / f"seed={seed}" / sweeps.LOG_FILE
    return path.read_text(encoding="utf-8") if path.exists() else ""


def sweep(out: Path) -> bool:
    """Runs it all; whether it ended as it should."""
    out.mkdir(parents=True)
    (out / "six.py").write_text(SWEEP, encoding="utf-8")
    root = out / "root"
    command = [
        *(sys.executable, "-m", "launch.sweep", f"--sweep={out / 'six.py'}", f"--workdir={root}", "--parallel=2"),
        f"--config={ROOT}/configs/spiral_tiny.py:runlocal",
        f"--trainer={sys.executable} {Path(__file__).resolve()} --as_trainer",
        *(f"--config.{setting}" for setting in SMALL),
    ]
    began = time.monotonic()
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    with open(out / "first.log", "w", encoding="utf-8") as said:
        first = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=said, stderr=subprocess.STDOUT)
        while f"step 2/{STEPS}" not in log(root, 0):
            if first.poll() is not None:
                raise RuntimeError(f"the sweep ended too soon: {(out / 'first.log').read_text(encoding='utf-8')}")
            time.sleep(0.05)
        first.send_signal(signal.SIGKILL)
        first.wait()
    killed = time.monotonic()
    print(f"killed after {killed - began:.0f} s", flush=True)
    second = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
    statuses = [sweeps.outcome(root, run).status for run in sweeps.read_sweep(root)]
    # Of those that ran when the launcher was killed, too, each step once: it is behind a checkpoint before the next.
    steps = [re.findall(rf"^step (\d+)/{STEPS}", log(root, seed), re.MULTILINE) for seed in range(RUNS)]
    for seed, status in enumerate(statuses):
        print(f"seed={seed}: {status}; steps in its log: {' '.join(steps[seed])}")
    page = (root / "sweep.html").read_text(encoding="utf-8")
    print(f"exit code {second.returncode}, {second.stderr.strip()}")
    print(f"{statuses.count('done')} done, {statuses.count('failed')} failed, {time.monotonic() - killed:.0f} s later")
    print(f"page of {len(page)} characters: {root / 'sweep.html'}")
    whole = [str(i + 1) for i in range(STEPS)]
    return (
        statuses == ["failed" if seed == CRASHES else "done" for seed in range(RUNS)]
        and second.returncode == 1
        and f"1 of {RUNS} runs failed: seed={CRASHES}" in second.stderr
        and all(done == whole for seed, done in enumerate(steps) if seed != CRASHES)
        and f"{RUNS - 1} done, 1 failed" in page
        and "broken on purpose" in page
    )


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    return 0 if sweep(parser.parse_args(argv).out.resolve()) else 1


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as_trainer"]:
        del sys.argv[1]
        trainer()
    else:
        sys.exit(main(sys.argv[1:]))

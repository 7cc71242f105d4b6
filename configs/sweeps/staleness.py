"""Rollouts that overlap the update against rollouts that wait for it, three seeds each: 6 runs.

python -m launch.sweep --sweep=configs/sweeps/staleness.py --config=configs/spade_tiny.py --workdir=runs/staleness

`configs/spiral_tiny.py` works as well. Wall times are comparable with `--parallel=1`, the default, and `perf/seconds/*`
added up are those of a step; `python tests/benchmarks/loop.py --parts=overlap` measures them by turns.
"""


def get_hyper(h):
    return h.product(h.sweep("rollout.max_staleness", (0, 1)), h.sweep("run.seed", range(3)))

"""Role-conditioned baselines against one shared baseline and none, three seeds each: 9 runs.

python -m launch.sweep --sweep=configs/sweeps/spiral_baselines.py --config=configs/spiral_tiny.py --workdir=runs/rae
"""


def get_hyper(h):
    baselines = h.sweep("selfplay.baselines", ("role", "shared")) + h.fixed("learner.estimator.agent", "none")
    return h.product(baselines, h.sweep("run.seed", range(3)))

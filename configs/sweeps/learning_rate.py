"""Learning rate against the designer's weight, three seeds each: 18 runs.

python -m launch.sweep --sweep=configs/sweeps/learning_rate.py --config=configs/spade_tiny.py --workdir=runs/rates
"""


def get_hyper(h):
    return h.product(
        h.sweep("learner.optimizer.learning_rate", (1e-4, 2e-4, 4e-4)),
        h.sweep("learner.role_weight.designer", (0.5, 2.0)),
        h.sweep("run.seed", range(3)),
    )

"""Self-play against two opponents that stay as they are, three seeds each: 9 runs.

python -m launch.sweep --sweep=configs/sweeps/spiral_opponents.py --config=configs/spiral_tiny.py --workdir=runs/who
"""


def get_hyper(h):
    return h.product(
        h.sweep("selfplay.opponent", ("self", "random", "snapshot")),
        h.sweep("run.seed", range(3)),
    )

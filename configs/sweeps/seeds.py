"""Three seeds of an experiment, which is the least that a claim needs.

python -m launch.sweep --sweep=configs/sweeps/seeds.py --config=configs/spade_tiny.py --workdir=runs/seeds
"""


def get_hyper(h):
    return h.sweep("run.seed", range(3))

"""Every deviation from the published method set back by itself, and the two presets, three seeds each.

    python -m launch.sweep --sweep=configs/sweeps/ablations.py --config=configs/spade_tiny.py --workdir=runs/ablations

With the baseline that trains on bundled environments instead of written ones: 57 runs.
"""

from spade_jax.runtime.presets import SWITCHES


def get_hyper(h):
    methods = h.sweep("method.preset", ("strict", "paper")) + h.fixed("rollout.environments", "bundled")
    for key, switch in SWITCHES.items():
        methods += h.fixed(key, switch.paper)
    return h.product(methods, h.sweep("run.seed", range(3)))

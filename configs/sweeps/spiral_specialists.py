"""One policy for three games, and a specialist for each of them that plays as many matches of it: 4 runs.

    python -m launch.sweep --sweep=configs/sweeps/spiral_specialists.py --config=configs/spiral_tiny_multi.py \\
        --workdir=runs/three

Who is better at what: `python -m spade_jax.evaluate --suite=games --snapshots=0 --workdirs=...`, with
`--config.run.allow_config_change=true`, since the four differ in `selfplay.games`.
"""

GAMES = ("tictactoe", "kuhn_poker", "negotiation")
MATCHES = 128  # of the three games together in every step


def get_hyper(h):
    games = [GAMES, *((game,) for game in GAMES)]
    matches = [round(MATCHES * len(played) / len(GAMES)) for played in games]
    return h.zip(h.sweep("selfplay.games", games), h.sweep("selfplay.matches", matches))

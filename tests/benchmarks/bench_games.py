"""Two-player games per second: by random play in one process, and by the embedded policy on the sampler.

    python tests/benchmarks/bench_games.py [--matches=256] [--slots=64]

With the package textarena its games are stepped, too.
"""

from __future__ import annotations

import argparse
import importlib.util
import pathlib
import random
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from configs import spiral_tiny_multi
from spade_jax import compose
from spade_jax.envs.games import GAMES, make_game
from spade_jax.rollout import games
from spade_jax.rollout.players import PolicyPlayer, random_player
from spade_jax.runtime.presets import resolve_preset


def ours(name: str, seconds: float) -> float:
    """Games per second of uniform play."""
    rng, count, began = random.Random(0), 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        game = make_game(name, count)
        while game.player is not None:
            game.observe(game.player)
            game.step(rng.choice(game.legal_actions()))
        count += 1
    return count / (time.perf_counter() - began)


# TextArena's names of games that are ours, too; both play five rounds of poker.
TEXTARENA = {"tictactoe": "TicTacToe-v0", "kuhn_poker": "KuhnPoker-v0-short"}


def theirs(name: str, seconds: float) -> float:
    """Games per second of uniform play in TextArena, each made once and reset for every play."""
    import textarena  # optional, and slow to import

    env = textarena.make(TEXTARENA[name])
    rng, count, began = random.Random(0), 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        env.reset(num_players=2, seed=count)
        cells, done = rng.sample(range(9), 9), False
        while not done:
            env.get_observation()
            if name == "tictactoe":
                move = cells.pop()
            else:
                move = rng.choice(list(env.state.game_state["current_legal_action_tree"]))
            done, _ = env.step(f"[{move}]")
        env.close()
        count += 1
    return count / (time.perf_counter() - began)


def by_policy(slots: int, matches: int) -> None:
    config = spiral_tiny_multi.get_config()
    config.sampler.slots = slots
    config = resolve_preset(config)
    template = compose.chat_template(config)
    model, params = compose.policy(config, template)
    engine = compose.engine(config, model, params, template, compose.mesh(config, model))
    players = {
        "policy": PolicyPlayer(engine, template, compose.policy_settings(config, 1.0)),
        "random": random_player(),
    }
    settings = compose.match_settings(config)
    for name in config.selfplay.games:
        for label in ("warm", "timed"):
            requests = [games.MatchRequest(f"{label}/{name}/{i}", name, i, ("policy",) * 2) for i in range(matches)]
            began = time.perf_counter()
            played = games.play_matches(players, requests, settings)
            seconds, counters = time.perf_counter() - began, engine.take_counters()
        moves = sum(len(match.moves) for match in played)
        print(
            f"{name:<22}{matches / seconds:8.1f} games/s {moves / seconds:8.0f} moves/s  slot occupancy "
            f"{counters.occupancy:.2f} of {slots} slots, {settings.live} of {matches} matches under way"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--matches", type=int, default=256)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=1.0)
    arguments = parser.parse_args()
    for name in GAMES:
        print(f"{name:<22}{ours(name, arguments.seconds):8.0f} games/s of random play in one process")
    if importlib.util.find_spec("textarena"):
        for name, theirs_name in TEXTARENA.items():
            print(f"{theirs_name:<22}{theirs(name, arguments.seconds):8.0f} games/s of random play in TextArena")
    by_policy(arguments.slots, arguments.matches)


if __name__ == "__main__":
    main()

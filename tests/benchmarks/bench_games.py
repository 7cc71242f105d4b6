"""Two-player games per second: by random play in one process, and by the embedded policy on the sampler.

    python tests/benchmarks/bench_games.py [--matches=256] [--slots=64]

Of the games that TextArena has, too (extra `[textarena]`), its random play takes turns with ours: `raw` is without its
wrappers, one object that is reset for every game, the least that it can do; `made` is as its users and our adapter have
it, with wrappers, which show a text, and made anew for every game, since wrappers keep what was said before a reset.
"""

from __future__ import annotations

import importlib.util
import random
import time

import harness

from configs import spiral_tiny_multi
from spade_jax import compose
from spade_jax.envs.games import GAMES, make_game
from spade_jax.rollout import games
from spade_jax.rollout.players import PolicyPlayer
from spade_jax.runtime.presets import resolve_preset

# TextArena's names of games that are ours, too; both play five rounds of poker.
TEXTARENA = {"tictactoe": "TicTacToe-v0", "kuhn_poker": "KuhnPoker-v0-short"}


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


def theirs(name: str, seconds: float, *, raw: bool) -> float:
    """Games per second of uniform play in TextArena."""
    import textarena  # optional, and slow to import

    env = textarena.make(f"{TEXTARENA[name]}-raw")
    rng, count, began = random.Random(0), 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        if not raw:
            env = textarena.make(TEXTARENA[name])
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


def in_one_process(record: harness.Record, seconds: float) -> None:
    """Games per second of random play."""
    found = importlib.util.find_spec("textarena") is not None
    if not found:
        print("textarena is not installed: left out")
    for name in GAMES:
        sides = {harness.OURS: lambda name=name: ours(name, seconds)}
        if found and name in TEXTARENA:
            sides |= {
                "textarena raw": lambda name=name: theirs(name, seconds, raw=True),
                "textarena made": lambda name=name: theirs(name, seconds, raw=False),
            }
        record.compare(name, "games/s", sides)


def by_policy(record: harness.Record, slots: int, matches: int) -> None:
    """Self-play of the embedded policy: speed, and the share of the rows computed that drew a token."""
    config = spiral_tiny_multi.get_config()
    config.sampler.slots = slots
    config = resolve_preset(config)
    template = compose.chat_template(config)
    model, params = compose.policy(config, template)
    engine = compose.engine(config, model, params, template, compose.mesh(config, model))
    players = {"policy": PolicyPlayer(engine, template, compose.policy_settings(config, 1.0))}
    settings = compose.match_settings(config)
    for name in config.selfplay.games:
        for label in ("warm", "timed"):
            requests = [games.MatchRequest(f"{label}/{name}/{i}", name, i, ("policy",) * 2) for i in range(matches)]
            began = time.perf_counter()
            played = games.play_matches(players, requests, settings)
            seconds, counters = time.perf_counter() - began, engine.take_counters()
        moves = sum(len(match.moves) for match in played)
        how = f"{name}, {min(settings.live, matches)} of {matches} matches under way, {slots} slots"
        record.one(how, matches / seconds, "games/s")
        record.one(how, moves / seconds, "moves/s")
        record.one(how, counters.occupancy, "slot occupancy")


def main() -> None:
    options = harness.arguments(
        __doc__,
        matches={"type": int, "default": 256, "help": "of each game by the policy"},
        slots={"type": int, "default": 64, "help": "of the sampler"},
        seconds={"type": float, "default": 1.0, "help": "of random play a turn"},
        parts={"choices": ("all", "random", "policy"), "default": "all", "help": "what is measured"},
    )
    record = harness.Record(options)
    if options.parts != "policy":
        in_one_process(record, options.seconds)
    if options.parts != "random":
        by_policy(record, options.slots, options.matches)


if __name__ == "__main__":
    main()

"""SPIRAL: one policy plays both seats of zero-sum text games (arXiv 2506.24119).

    python -m spade_jax.train --config=configs/spiral_tiny.py --workdir=DIR

`spiral` reads as the algorithm. Advantages are role-conditioned: every game and seat has a running baseline of
its own, in one table that is part of the train state. Without it, the seat that the rules favour is reinforced for
winning and the other one punished for losing, whatever either of them did.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import numpy as np
from ml_collections import ConfigDict

from spade_jax import compose, structs
from spade_jax.envs.games import SEATS
from spade_jax.evals import games as evals
from spade_jax.opponents import Opponents
from spade_jax.rollout import games, measure
from spade_jax.rollout.players import Player, PolicyPlayer
from spade_jax.runtime import seeds, texts, transcripts
from spade_jax.runtime.progress import spiral_columns
from spade_jax.sampler.score import score
from spade_jax.session import Session

OPPONENT = "opponent"  # who sits opposite the policy, where that is not the policy itself


def spiral(stack: contextlib.ExitStack, config: ConfigDict, workdir: str) -> bool:
    """Self-play in two-player games; False where it was asked to stop early."""
    selfplay, temperature = config.selfplay, config.sampler.agent.temperature

    # ==================================================================
    # Start, or go on from the newest checkpoint.
    # ==================================================================
    template = compose.chat_template(config)
    session = Session(stack, config, workdir, template)
    host = session.restored or {"games": [], "scores": {}, "meetings": [], "endpoint_requests": 0}
    rows = compose.game_rows(config, host["games"])  # (game, seat) -> row of the baseline table
    scores: dict[str, list[float]] = host["scores"]  # of each snapshot: what the policy scored against it, of how many
    meetings: list[list[float]] = host["meetings"]  # of snapshots: two steps, points of the first, matches
    session.begin(
        f"games: {', '.join(selfplay.games)}", spiral_columns(selfplay.games),
        ("eval/kuhn_poker/exploitability", "eval/kuhn_poker/random/win", "eval/tictactoe/optimal"),
    )  # fmt: skip
    opponents = Opponents(stack, config, workdir, session, host["endpoint_requests"])
    settings = compose.match_settings(config)
    policy = PolicyPlayer(session.engine, template, compose.policy_settings(config, temperature))

    for step in range(session.first_step, config.run.steps):
        session.begin_step(step)
        opponents.keep(step)
        log: dict[str, float] = {}

        # ==============================================================
        # 0. How good is the policy against others, and against the truth?
        # ==============================================================
        if config.evaluation.every_steps and step % config.evaluation.every_steps == 0:
            with session.phase("evaluate", step):
                session.catch_up()
                log |= evaluate(config, session, opponents, step, meetings)

        # ==============================================================
        # 1. Matches: of the policy with itself, or with another opponent in
        # both seats by turns.
        # ==============================================================
        with session.phase("play", step):
            players: dict[str, Player] = {evals.POLICY: policy}
            if selfplay.opponent != "self":
                name = opponents.draw(step, scores)
                players[OPPONENT] = opponents.player(name, temperature)
            requests = match_requests(config, step)
            matches = games.play_matches(
                players, requests, settings, deadline_secs=config.rollout.deadline_secs
            )
        log |= games.match_metrics(matches)
        if void := games.void_reasons(matches):
            session.say(f"step {step + 1}/{config.run.steps}  void matches: {void}")
        if selfplay.opponent != "self":
            log |= opponent_metrics(matches, scores.setdefault(name, [0.0, 0]))

        # ==============================================================
        # 2. Role-conditioned advantages, of episodes: every turn of an
        # episode gets the episode's.
        # ==============================================================
        with session.phase("update", step):
            episodes = [
                match.episode(seat)
                for match in matches
                for seat in range(SEATS)
                if match.request.players[seat] == evals.POLICY
            ]
            groups = [
                0 if selfplay.baselines == "shared" else SEATS * rows.index(episode.environment_id) + episode.player
                for episode in episodes
            ]
            advantages, keep, baselines = session.estimate(
                [episode.episode_return for episode in episodes],
                [structs.ROLE_ID[episode.role] for episode in episodes],
                groups,
                [episode.status != structs.VOID and bool(episode.turns) for episode in episodes],
            )

            # ==========================================================
            # 3. One update of the policy that sat in both seats, which
            # `rollout.max_staleness` lets go on behind the next matches.
            # ==========================================================
            sequences = [
                games.trajectories(episode, group, temperature, by_turn=selfplay.context == "turn")
                for episode, group in zip(episodes, groups, strict=True)
            ]
            lengths = [len(parts) for parts in sequences]
            session.learn(
                [trajectory for parts in sequences for trajectory in parts],
                np.repeat(advantages, lengths),
                np.repeat(keep, lengths),
                baselines,
            )

        # ==============================================================
        # 4. Write down what happened; then checkpoint.
        # ==============================================================
        log |= baseline_metrics(baselines, rows, shared=selfplay.baselines == "shared")
        log |= measure.performance(
            session.take_counters(), episodes, play_seconds=session.timers.seconds("play")
        )
        if session.first:
            with session.phase("write", step):
                write_texts(config, workdir, session, step, matches)
        host = {
            "games": list(rows),
            "scores": scores,
            "meetings": meetings,
            "endpoint_requests": opponents.requests,
        }
        if session.finish(step, log, host):
            return False

    if config.evaluation.every_steps:
        session.begin_step(config.run.steps)
        with session.phase("evaluate", config.run.steps - 1):
            last = config.run.steps
            session.log_scalars(last, evaluate(config, session, opponents, last, meetings))
    return True


def match_requests(config: ConfigDict, step: int) -> list[games.MatchRequest]:
    """A step's matches. Against another opponent, two of the same seed in a row, the policy in either seat."""
    selfplay = config.selfplay
    alone = selfplay.opponent == "self"
    rng = seeds.host_rng(config.run.seed, "games", step)
    requests: list[games.MatchRequest] = []
    for i in range(selfplay.matches):
        if alone or i % SEATS == 0:
            (game,) = rng.choices(selfplay.games, selfplay.weights or None)
            seed = seeds.stable_seed("match", config.run.seed, step, i)
        seats = (evals.POLICY, OPPONENT) if i % SEATS == 0 else (OPPONENT, evals.POLICY)
        players = (evals.POLICY, evals.POLICY) if alone else seats
        requests.append(games.MatchRequest(f"{step}/match/{i}", game, seed, players, selfplay.exploring_starts))
    return requests


def opponent_metrics(matches: Sequence[games.Match], score_sum: list[float]) -> dict[str, float]:
    """{tag: the policy's win rate} by game; adds what the policy scored, and of how many matches, to `score_sum`."""
    won: dict[str, list[bool]] = {}
    for match in (match for match in matches if match.ending != games.VOID):
        mine = match.request.players.index(evals.POLICY)
        difference = match.returns[mine] - match.returns[1 - mine]
        won.setdefault(match.request.game, []).append(difference > 0)
        score_sum[0] += 0.5 * (1 + float(np.sign(difference)))
        score_sum[1] += 1
    return {f"selfplay/{game}/win_rate": measure.mean_or_nan(found) for game, found in won.items()}


def baseline_metrics(table: np.ndarray, rows: Sequence[str], *, shared: bool) -> dict[str, float]:
    """{tag: running baseline} of every game and seat."""
    return {
        f"baseline/{game}/seat{seat}": float(table[0 if shared else SEATS * i + seat])
        for i, game in enumerate(rows)
        for seat in range(SEATS)
    }


def write_texts(config: ConfigDict, workdir: str, session: Session, step: int, matches: Sequence[games.Match]) -> None:
    """Transcripts of the step to the workdir, seat by seat; one match to TensorBoard."""
    if config.log.transcripts:
        shown = matches[: -(-config.log.transcripts // SEATS)]
        spoken = [match.episode(seat) for match in shown for seat in range(SEATS) if match.turns[seat]]
        transcripts.write_transcripts(f"{workdir}/transcripts", step, spoken)
    if step % config.log.text_steps == 0:
        match = matches[0]
        turns = [iter(match.turns[seat]) for seat in range(SEATS)]
        order = [seat for seat, _ in match.moves] + ([] if match.offender is None else [match.offender])
        said = [(seat, turn.observation, turn.response) for seat in order if (turn := next(turns[seat], None))]
        title = f"{match.request.game}, seed {match.request.seed}: {match.ending}, returns {match.returns}"
        session.log_text(step, "selfplay/transcript", texts.match(title, said))


def evaluate(
    config: ConfigDict, session: Session, opponents: Opponents, step: int, meetings: list[list[float]]
) -> dict[str, float]:
    """{tag: value} of the policy against opponents and the truth; the same matches at every step.

    It also meets snapshots of the run, which adds to `meetings`, and is rated among them.
    """
    temperature, settings = config.evaluation.temperature, compose.game_evaluation(config)
    policy = PolicyPlayer(session.engine, session.template, compose.policy_settings(config, temperature))
    names = {name: "0" if name == "initial" else name for name in config.evaluation.opponents}
    players = {evals.POLICY: policy} | {name: opponents.player(who, temperature) for name, who in names.items()}
    rows, values = evals.measure(
        players,
        lambda pairs: score(session.model, session.sampler_params, pairs, temperature),
        session.template,
        settings,
    )
    for earlier in opponents.rated(step):
        snapshot = opponents.player(str(earlier), temperature)
        met = [evals.meet(policy, snapshot, game, settings, f"{step}/{earlier}") for game in config.selfplay.games]
        meetings.append([step, earlier, *map(sum, zip(*met, strict=True))])
    return evals.outcome_metrics(rows) | values | evals.elo_metrics(meetings, step)

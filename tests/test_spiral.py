"""Self-play in two-player games as a user runs it: as a process, killed, resumed, given another game."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

from configs import spiral_tiny
from spade_jax import compose, opponents, spiral, structs
from spade_jax.envs.games import GAMES
from spade_jax.evals import games as evals
from spade_jax.evals import ratings
from spade_jax.learner import partitioning
from spade_jax.learner import state as state_lib
from spade_jax.rollout import games
from spade_jax.rollout.players import PolicyPlayer, random_player
from spade_jax.runtime import metrics, transcripts
from spade_jax.runtime.checkpoint import Checkpointer
from spade_jax.runtime.errors import UsageError
from spade_jax.runtime.presets import resolve_preset

ROOT = pathlib.Path(__file__).parents[1]
STEPS = 4


def config(words="runlocal", **changes):
    settings = spiral_tiny.get_config(words)
    settings.update_from_flattened_dict(changes)
    return resolve_preset(settings)


def command(workdir, *extra, words="runlocal"):
    return [
        sys.executable, "-m", "spade_jax.train", f"--workdir={workdir}",
        f"--config={ROOT}/configs/spiral_tiny.py:{words}",
        "--config.checkpoint.save_steps=1", *extra,
    ]  # fmt: skip


def environment():
    return {**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"}


def train(workdir, *extra, **kwargs):
    run = subprocess.run(
        command(workdir, *extra, **kwargs), env=environment(), capture_output=True, text=True, timeout=900, check=False
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def restored(workdir):
    settings = config()
    model, params = compose.policy(settings, compose.chat_template(settings))
    optimizer = state_lib.make_optimizer(compose.optimizer_config(settings), model)
    state = compose.train_state(settings, model, optimizer, partitioning.make_mesh(), params)
    with Checkpointer(f"{workdir}/checkpoints", keep=1, read_only=True) as checkpointer:
        return checkpointer.restore(state)


def outcome(workdir):
    """Everything a run leaves that must not depend on how often it was interrupted."""
    found = restored(workdir)
    state = found.state._replace(key=jax.random.key_data(found.state.key))
    scalars = {
        tag: (steps.tolist(), values.tolist())
        for tag, (steps, values) in metrics.read_scalars(workdir).items()
        if not tag.startswith("perf/")
    }
    files = [*pathlib.Path(workdir, "transcripts").glob("*.gz"), *pathlib.Path(workdir, "snapshots").glob("*.npz")]
    kept = {file.name: file.read_bytes() for file in sorted(files)}
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(state)], found.host, json.dumps(scalars), kept


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    workdir = tmp_path_factory.mktemp("finished")
    return workdir, train(workdir)


@pytest.mark.slow
def test_a_run_logs_what_it_promises(finished):
    workdir, output = finished
    assert output.count("\nstep ") + output.startswith("step ") == STEPS
    assert "kuhn_poker: seat 0 wins" in output and "exploitability 0." in output
    scalars = metrics.read_scalars(workdir)
    for tag in (
        "baseline/kuhn_poker/seat0", "baseline/kuhn_poker/seat1", "selfplay/kuhn_poker/invalid_rate",
        "selfplay/kuhn_poker/win_rate", "selfplay/kuhn_poker/response_tokens", "selfplay/void_share", "learner/loss",
        "eval/elo", "eval/kuhn_poker/random/win", "eval/kuhn_poker/initial/invalid", "eval/kuhn_poker/exploitability",
    ):  # fmt: skip
        assert np.isfinite(scalars[tag][1]).all(), tag
    assert scalars["eval/kuhn_poker/exploitability"][0].tolist() == [0, 2, STEPS]
    assert scalars["learner/logp_gap_max"][1].max() < 1e-4
    assert (workdir / "report.html").read_text().count("exploitability") > 1
    said = list(transcripts.read_transcripts(transcripts.transcript_path(workdir / "transcripts", 0)))
    assert said and {episode["environment_id"] for episode in said} == {"kuhn_poker"}
    assert sorted(path.name for path in (workdir / "snapshots").iterdir()) == [
        f"step_{step:06d}.npz" for step in range(STEPS)
    ]


@pytest.mark.slow
def test_baselines_are_the_recursion_of_the_returns(tmp_path):
    """The checkpointed table against a loop over the transcripts: every episode of the run, in order."""
    opponent = ("--config.selfplay.opponent=self", "--config.evaluation.every_steps=0", "--config.log.transcripts=1000")
    train(tmp_path, *opponent)
    table = np.zeros(2, np.float32)
    for step in range(STEPS):
        for episode in transcripts.read_transcripts(transcripts.transcript_path(tmp_path / "transcripts", step)):
            seat = episode["player"]
            table[seat] = np.float32(0.95) * table[seat] + np.float32(0.05) * np.float32(episode["episode_return"])
    np.testing.assert_allclose(np.asarray(restored(tmp_path).state.baselines)[:2], table, atol=1e-6)
    assert np.abs(table).max() > 0


@pytest.mark.slow
def test_killed_at_any_moment_it_ends_in_the_same_bits(finished, tmp_path):
    for lines in (1, 2):
        process = subprocess.Popen(
            command(tmp_path), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        seen = 0
        for line in process.stdout:
            seen += line.startswith("step ")
            if seen == lines:
                break
        process.kill()
        process.wait()
        process.stdout.close()
    train(tmp_path)
    assert outcome(tmp_path) == outcome(finished[0])


@pytest.mark.slow
def test_a_game_that_is_added_on_resume_leaves_the_baselines_that_were(tmp_path):
    quiet = ("--config.evaluation.every_steps=0", "--config.run.steps=2")
    train(tmp_path, *quiet)
    before = restored(tmp_path)
    assert before.host["games"] == ["kuhn_poker"]
    allowed = ("--config.run.allow_config_change=true", "--config.evaluation.every_steps=0", "--config.run.steps=3")
    # Only the new game is played, so what the old one had learned must stand.
    train(tmp_path, *allowed, "--config.selfplay.games=('tictactoe',)")
    after = restored(tmp_path)
    assert after.host["games"] == ["kuhn_poker", "tictactoe"]
    old, new = np.asarray(before.state.baselines), np.asarray(after.state.baselines)
    np.testing.assert_array_equal(new[:2], old[:2])
    assert np.abs(new[2:4]).max() > 0 and not new[4:].any()


@pytest.mark.slow
def test_the_games_suite_measures_two_runs_and_their_snapshots(finished, tmp_path):
    out, twin = tmp_path / "games.json", tmp_path / "twin"
    shutil.copytree(finished[0], twin)
    run = subprocess.run(
        [
            sys.executable, "-m", "spade_jax.evaluate", f"--config={ROOT}/configs/spiral_tiny.py:runlocal",
            f"--workdirs={finished[0]},{twin}", "--suite=games", f"--out={out}",
        ],
        env=environment(), capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    figures = json.loads(out.read_text())
    names = figures["head_to_head"]["names"]
    assert names == ["start", *(f"{run.name}@{step + 1}" for run in (finished[0], twin) for step in range(STEPS))]
    assert set(figures["policies"]) == set(names)
    rows = figures["policies"][f"twin@{STEPS}"]["opponents"]
    assert rows == figures["policies"][f"{finished[0].name}@{STEPS}"]["opponents"]
    assert [(row["opponent"], row["seat"]) for row in rows] == [
        (opponent, seat) for opponent in ("random", "initial") for seat in ("both", 0, 1)
    ]
    low, high = ratings.wilson_interval(rows[1]["loss"], rows[1]["matches"])
    assert f"{rows[1]['loss'] / rows[1]['matches']:.2f} [{low:.2f}, {high:.2f}]" in run.stdout
    assert len(figures["head_to_head"]["elo"]) == len(names) and run.stdout.count(f" twin@{STEPS} ") == 1
    assert figures["policies"]["start"]["truth"]["eval/kuhn_poker/exploitability"] >= 0
    score = np.array(figures["head_to_head"]["score"])
    np.testing.assert_allclose((score + score.T)[~np.eye(len(names), dtype=bool)], 1.0)
    chart = out.with_suffix(".svg").read_text()
    assert chart.startswith("<svg") and f"twin@{STEPS}" in chart


def test_requests_are_balanced_over_seats_and_paired_by_seed():
    alone = spiral.match_requests(config("", **{"selfplay.matches": 10}), step=3)
    assert {request.players for request in alone} == {("policy", "policy")}
    assert len({request.seed for request in alone}) == 10
    against = spiral.match_requests(config("", **{"selfplay.matches": 10, "selfplay.opponent": "random"}), step=3)
    assert [request.players.index("policy") for request in against] == [0, 1] * 5
    assert [request.seed for request in against[::2]] == [request.seed for request in against[1::2]]
    assert [request.id for request in against] == [f"3/match/{i}" for i in range(10)]


def test_games_are_drawn_by_their_weights():
    changes = {
        "selfplay.games": ("kuhn_poker", "tictactoe"), "selfplay.weights": (3.0, 1.0), "selfplay.matches": 2000,
    }  # fmt: skip
    drawn = [request.game for request in spiral.match_requests(config("", **changes), step=0)]
    assert abs(drawn.count("kuhn_poker") / 2000 - 0.75) < 0.04


def test_rows_of_the_table_keep_their_games():
    settings = config("", **{"selfplay.games": ("tictactoe", "kuhn_poker")})
    assert compose.game_rows(settings, []) == ("tictactoe", "kuhn_poker")
    assert compose.game_rows(settings, ["snake", "kuhn_poker"]) == ("snake", "kuhn_poker", "tictactoe")
    with pytest.raises(UsageError, match="room for 32"):
        compose.game_rows(settings, [f"game{i}" for i in range(31)])


def test_hard_opponents_are_those_that_win():
    assert opponents.hardness(0, 0) == 0.25
    assert opponents.hardness(0, 9) > 0.8 and opponents.hardness(9, 9) < 0.01


def test_what_is_scored_against_a_snapshot_counts_draws_as_halves():
    def match(returns, players):
        return games.Match(games.MatchRequest("", "g", 0, players), returns, games.BY_RULES, None, (), ((), ()))

    seats = ("policy", "opponent")
    matches = [match((1.0, -1.0), seats), match((1.0, -1.0), seats[::-1]), match((0.0, 0.0), seats)]
    sums = [0.5, 1]
    assert spiral.opponent_metrics(matches, sums) == {"selfplay/g/win_rate": pytest.approx(1 / 3)}
    assert sums == [2.0, 4]
    assert matches[2].episode(0).status == structs.DRAW


@pytest.mark.slow
def test_exploitability_falls(tmp_path):
    """The whole chain on the embedded policy: matches, role-conditioned advantages, updates, against the truth."""
    settings = ("--config.run.steps=40", "--config.evaluation.every_steps=40", "--config.evaluation.matches=2")
    train(tmp_path, *settings, "--config.checkpoint.save_steps=40", words="")
    steps, values = metrics.read_scalars(tmp_path)["eval/kuhn_poker/exploitability"]
    assert steps.tolist() == [0, 40]
    assert values[1] < values[0] - 0.1


@pytest.mark.slow
def test_the_embedded_policy_knows_the_form_of_every_game():
    settings = config("")
    template = compose.chat_template(settings)
    model, params = compose.policy(settings, template)
    settings.sampler.context = 512
    engine = compose.engine(settings, model, params, template, compose.mesh(settings, model))
    players = {"policy": PolicyPlayer(engine, template, compose.policy_settings(settings, 1.0))}
    requests = [
        games.MatchRequest(f"form/{name}/{i}", name, i, ("policy", "policy")) for name in GAMES for i in range(24)
    ]
    matches = games.play_matches(players, requests, compose.match_settings(settings))
    for name in GAMES:
        mine = [match for match in matches if match.request.game == name]
        invalid = sum(match.ending == games.BY_INVALID for match in mine)
        moves = sum(len(match.moves) for match in mine)
        # In these two it is weaker: .21 and .12 of its moves are invalid.
        bound = {"negotiation": 0.25, "tictactoe": 0.15}.get(name, 0.1)
        assert invalid / (moves + invalid) < bound, (name, invalid, moves)


@pytest.mark.slow
def test_the_embedded_policy_of_tictactoe_reads_the_board():
    settings = config("tictactoe")
    template = compose.chat_template(settings)
    model, params = compose.policy(settings, template)
    engine = compose.engine(settings, model, params, template, compose.mesh(settings, model))
    policy = PolicyPlayer(engine, template, compose.policy_settings(settings, 0.0))
    # Random moves keep the value in .58 of all positions.
    assert evals.optimal_share(policy, positions=1000, label="x")["eval/tictactoe/optimal"] > 0.75
    meetings = evals.Settings(("tictactoe",), ("random",), 100, 0, 0, compose.match_settings(settings))
    players = {evals.POLICY: policy, "random": random_player()}
    both, *_ = evals.table(evals.play_opponents(players, meetings, label="x"))
    assert both["invalid"] <= 1 and both["loss"] < 20

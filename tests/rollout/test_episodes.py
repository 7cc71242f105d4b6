import dataclasses
import random
import time

import numpy as np
import pytest

from spade_jax import structs
from spade_jax.envs import bundled
from spade_jax.envs.families import base
from spade_jax.learner.logprobs import model_logprobs
from spade_jax.rollout import episodes as episodes_lib
from spade_jax.rollout import measure
from spade_jax.rollout.trajectories import conversation_trajectory
from spade_jax.sampler import Response, SamplingConfig

# A program whose every observation names the turn, so that a transcript can be checked by eye.
COUNTER = """
class Counter:
    def __init__(self, max_turns=3, **kwargs):
        self.max_turns = max_turns

    def reset(self, seed=None):
        self.turn = 0
        return f"seed {seed % 10} turn 0", {}

    def step(self, action):
        self.turn += 1
        done = self.turn >= self.max_turns
        return f"turn {self.turn}", 0.25 * self.turn, done, False, {"success": False}
"""
SETTINGS = episodes_lib.EpisodeSettings(
    sampling=SamplingConfig(temperature=1.0), max_turns=5, max_new_tokens=6, context=256, style="tiny"
)


def record(source=COUNTER, class_name="Counter", hint=""):
    return structs.EnvironmentRecord(id=f"id of {class_name}{hint}", source=source, class_name=class_name, hint=hint)


def requests(records, seeds=3):
    return episodes_lib.paired_requests(records, step=0, first_index=0, seeds=seeds, paired=True)


def same_episode(a, b):
    for x, y in zip(a.turns, b.turns, strict=True):
        np.testing.assert_array_equal(x.prompt_tokens, y.prompt_tokens)
        np.testing.assert_array_equal(x.response_tokens, y.response_tokens)
        np.testing.assert_array_equal(x.behaviour_logp, y.behaviour_logp)
    assert dataclasses.replace(a, turns=()) == dataclasses.replace(b, turns=())


def test_paired_requests_meet_the_same_instances_in_both_arms():
    asked = requests([record()], seeds=4)
    plain, hinted = asked[:4], asked[4:]
    assert [r.seed for r in plain] == [r.seed for r in hinted]
    assert len({r.seed for r in plain}) == 4
    assert len({r.conversation_id for r in asked}) == 8


def test_unpaired_requests_meet_different_instances():
    asked = episodes_lib.paired_requests([record()], step=0, first_index=0, seeds=4, paired=False)
    assert not {r.seed for r in asked[:4]} & {r.seed for r in asked[4:]}


def test_an_episode_is_what_the_program_and_the_policy_said(make_engine, pool, template):
    (episode,) = episodes_lib.play_episodes(make_engine(), pool, template, requests([record()])[:1], SETTINGS)
    assert [turn.observation for turn in episode.turns] == [f"seed {episode.seed % 10} turn 0", "turn 1", "turn 2"]
    assert [turn.reward for turn in episode.turns] == [0.25, 0.5, 0.75]
    assert (episode.status, episode.episode_return) == (structs.FAILURE, 0.75)
    for turn in episode.turns:
        assert 1 <= len(turn.response_tokens) <= 6
        assert template.tokenizer.decode(turn.response_tokens) == turn.response


def test_turn_budget_truncates_and_the_paper_pays_nothing_for_it(make_engine, pool, template):
    short = dataclasses.replace(SETTINGS, max_turns=2)
    (episode,) = episodes_lib.play_episodes(make_engine(), pool, template, requests([record()])[:1], short)
    assert (episode.status, episode.reason, episode.episode_return) == (structs.TRUNCATED, "turn budget", 0.5)
    paper = dataclasses.replace(short, truncated_scores_zero=True)
    (episode,) = episodes_lib.play_episodes(make_engine(), pool, template, requests([record()])[:1], paper)
    assert (episode.status, episode.episode_return) == (structs.TRUNCATED, 0.0)


def test_context_budget_truncates(make_engine, pool, template):
    wordy = record(COUNTER.replace('f"turn {self.turn}"', '"x y " * 200'), "Counter", "wordy")
    (episode,) = episodes_lib.play_episodes(make_engine(), pool, template, requests([wordy])[:1], SETTINGS)
    assert (episode.status, episode.reason) == (structs.TRUNCATED, "context")
    assert len(episode.turns) == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise ValueError('no')", "exception"),
        ("while True: pass", "timeout"),
        ("return 'x', float('nan'), False, False, {}", "exception"),
        ("return [1] * 10", "exception"),
    ],
)
def test_a_crashing_program_costs_its_own_episodes_only(make_engine, pool, template, body, reason):
    bad = record(COUNTER.replace("self.turn += 1\n", f"{body}\n", 1), "Counter", reason)
    episodes = episodes_lib.play_episodes(make_engine(), pool, template, requests([bad, record()], seeds=1), SETTINGS)
    assert [e.status for e in episodes] == [structs.VOID] * 2 + [structs.FAILURE] * 2
    assert all(e.reason.startswith(reason) and e.episode_return == 0.0 for e in episodes[:2])


def test_paper_punishes_the_agent_for_a_crash(make_engine, pool, template):
    bad = record(COUNTER.replace("self.turn += 1\n", "raise ValueError('no')\n", 1))
    paper = dataclasses.replace(SETTINGS, crashes_are_void=False)
    (episode,) = episodes_lib.play_episodes(make_engine(), pool, template, requests([bad])[:1], paper)
    assert episode.status == structs.FAILURE


def test_a_program_that_does_not_even_start_is_void(make_engine, pool, template):
    bad = record("class Counter:\n    def __init__(self):\n        raise RuntimeError('no')\n")
    (episode,) = episodes_lib.play_episodes(make_engine(), pool, template, requests([bad])[:1], SETTINGS)
    assert episode.status == structs.VOID
    assert episode.turns == ()


def test_the_hint_reaches_the_hinted_arm_only(make_engine, pool, template):
    hinted = record(hint="say seven")
    episodes = episodes_lib.play_episodes(make_engine(), pool, template, requests([hinted], seeds=1), SETTINGS)
    shown = [template.tokenizer.decode(e.turns[0].prompt_tokens) for e in episodes]
    assert "say seven" not in shown[0]
    assert "Hint: say seven" in shown[1]


def test_same_seed_same_bits(make_engine, pool, template):
    asked = requests([record(), record(hint="h")], seeds=3)
    first = episodes_lib.play_episodes(make_engine(), pool, template, asked, SETTINGS)
    again = episodes_lib.play_episodes(make_engine(), pool, template, asked, SETTINGS)
    for a, b in zip(first, again, strict=True):
        same_episode(a, b)


def test_slots_and_order_do_not_change_what_is_drawn(make_engine, pool, template):
    asked = requests([record(), record(hint="h")], seeds=3)
    few = episodes_lib.play_episodes(make_engine(slots=2), pool, template, asked, SETTINGS)
    many = episodes_lib.play_episodes(make_engine(slots=16, block=3), pool, template, asked[::-1], SETTINGS)
    for a, b in zip(few, many[::-1], strict=True):
        assert [t.response_tokens.tolist() for t in a.turns] == [t.response_tokens.tolist() for t in b.turns]


def test_replies_as_they_come_give_the_same_tokens(make_engine, pool, template):
    asked = requests([record()], seeds=3)
    fixed = episodes_lib.play_episodes(make_engine(), pool, template, asked, SETTINGS)
    eager = dataclasses.replace(SETTINGS, reply_blocks=0)
    free = episodes_lib.play_episodes(make_engine(), pool, template, asked, eager)
    for a, b in zip(fixed, free, strict=True):
        assert [t.response_tokens.tolist() for t in a.turns] == [t.response_tokens.tolist() for t in b.turns]


def calls_of(engine, monkeypatch, instead):
    """Of the sampler, as they are made; its `meanwhile` is what `instead` makes of the loop's."""
    made, step = [], type(engine).step
    for name in ("open", "submit", "close"):
        method = getattr(engine, name)

        def noted(*args, name=name, method=method):
            made.append((name, *(a.tolist() if isinstance(a, np.ndarray) else a for a in args)))
            return method(*args)

        monkeypatch.setattr(engine, name, noted)
    monkeypatch.setattr(engine, "step", lambda meanwhile: step(engine, instead(meanwhile)))
    return made


@pytest.mark.parametrize("reply_blocks", [1, 2])
def test_whether_replies_are_there_while_a_block_is_drawn_changes_nothing(
    make_engine, pool, template, monkeypatch, reply_blocks
):
    asked = requests([record(), record(hint="h")], seeds=3)
    settings = dataclasses.replace(SETTINGS, reply_blocks=reply_blocks, max_live=8, max_new_tokens=12)
    taken = []

    def patient(take_up):  # the block is drawn for as long as replies are missing
        def meanwhile(_):
            before = len(made)
            take_up(lambda: True)
            taken.append(len(made) - before)

        return meanwhile

    results = []
    for instead in (lambda take_up: None, lambda take_up: lambda _: take_up(lambda: False), patient):
        engine = make_engine(block=2)
        made = calls_of(engine, monkeypatch, instead)
        results.append((episodes_lib.play_episodes(engine, pool, template, asked, settings), made))
    assert sum(taken) > 0
    for episodes, made in results[1:]:
        assert sorted(made, key=str) == sorted(results[0][1], key=str)
        assert [m for m in made if m[0] != "close"] == [m for m in results[0][1] if m[0] != "close"]
        for a, b in zip(episodes, results[0][0], strict=True):
            same_episode(a, b)


def test_sampling_begins_when_the_first_environments_are_there(make_engine, pool, template, monkeypatch):
    engine = make_engine()
    opened, at_first = [], []
    open_environment, submit = pool.open, engine.submit
    monkeypatch.setattr(pool, "open", lambda *args: opened.append(args) or open_environment(*args))
    monkeypatch.setattr(engine, "submit", lambda *args: at_first.append(len(opened)) or submit(*args))
    asked = requests([record(), record(hint="h")], seeds=3)
    episodes = episodes_lib.play_episodes(
        engine, pool, template, asked, dataclasses.replace(SETTINGS, max_live=7)
    )
    assert at_first[0] == 2 and len(opened) == len(asked)  # a quarter of 7, rounded up
    assert all(episode.status == structs.FAILURE for episode in episodes)


def test_behaviour_log_probs_equal_teacher_forcing(make_engine, pool, template, model, params):
    """Across turns, reused slots (12 episodes on 3) and shared prefixes."""
    warm = dataclasses.replace(SETTINGS, sampling=SamplingConfig(temperature=0.7))
    asked = requests([record(), record(hint="some hint that both share")], seeds=3)
    episodes = episodes_lib.play_episodes(make_engine(slots=3), pool, template, asked, warm)
    for episode in episodes:
        trajectory = conversation_trajectory(episode, group=0, temperature=0.7)
        tokens = trajectory.tokens[None]
        positions = np.arange(tokens.shape[1], dtype=np.int32)[None]
        logp, _ = model_logprobs(model, params, tokens, positions, np.array([0.7], np.float32))
        mask = trajectory.loss_mask
        assert mask.sum() == sum(len(turn.response_tokens) for turn in episode.turns)
        np.testing.assert_allclose(np.asarray(logp)[0][mask], trajectory.behaviour_logp[mask], atol=1e-4)


def test_everything_is_released_when_the_caller_is_interrupted(make_engine, pool, template, monkeypatch):
    engine = make_engine()
    calls = iter(range(100))

    def interrupted(meanwhile):
        if next(calls) == 2:
            raise KeyboardInterrupt
        return type(engine).step(engine, meanwhile)

    monkeypatch.setattr(engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        episodes_lib.play_episodes(engine, pool, template, requests([record()]), SETTINGS)
    monkeypatch.undo()
    assert not engine.busy
    (episode,) = episodes_lib.play_episodes(engine, pool, template, requests([record()])[:1], SETTINGS)
    assert episode.status == structs.FAILURE


# Its second reply comes long after every deadline here, and well within the sandbox's own limit.
SLUGGISH = "import time\n" + COUNTER.replace("Counter", "Sluggish").replace(
    "        self.turn += 1\n", "        self.turn += 1\n        time.sleep(1.9 * (self.turn == 2))\n"
)


@pytest.mark.parametrize("reply_blocks", [0, 1])
def test_what_a_deadline_finds_unfinished_is_void_and_the_rest_is_as_without_one(
    make_engine, pool, template, reply_blocks
):
    settings = dataclasses.replace(SETTINGS, reply_blocks=reply_blocks, crashes_are_void=False)
    asked = requests([record(), record(SLUGGISH, "Sluggish")], seeds=1)
    engine = make_engine(slots=2)
    fine = episodes_lib.play_episodes(engine, pool, template, asked[:2], settings, deadline_secs=600.0)
    for without, with_one in zip(
        episodes_lib.play_episodes(engine, pool, template, asked[:2], settings), fine, strict=True
    ):
        same_episode(without, with_one)
    # One environment at a time: the last one has not even begun.
    one_by_one = dataclasses.replace(settings, max_live=1)
    began = time.monotonic()
    *_, slow, never = episodes_lib.play_episodes(engine, pool, template, asked, one_by_one, deadline_secs=0.7)
    assert time.monotonic() - began < 1.9
    assert (slow.status, slow.reason) == (never.status, never.reason) == (structs.VOID, structs.PAST_DEADLINE)
    assert len(slow.turns) <= 2 and slow.episode_return == 0.0 and never.turns == ()
    assert not engine.busy
    assert np.isnan(measure.wins([slow, never])).all()
    metrics = measure.agent_metrics([*fine, slow, never])
    assert (metrics["agent/deadline_share"], metrics["agent/infrastructure_share"]) == (0.5, 0.0)


class ScriptedEngine:
    """The sampler's interface, with responses out of a function of the prompt's text.

    Each block ends all that were asked for. `blocks` are their handles; `instead` is what to call with the loop's
    `meanwhile` while one is drawn.
    """

    def __init__(self, template, respond, instead=lambda meanwhile: None):
        self._template, self._respond, self._asked = template, respond, []
        self._instead, self.blocks = instead, []

    @property
    def busy(self):
        return bool(self._asked)

    def open(self, conversation_id, sampling, prefix=""):
        return conversation_id

    def close(self, handle):
        pass

    def length(self, handle):
        return 0

    def submit(self, handle, tokens, max_new_tokens):
        self._asked.append((handle, self._respond(self._template.tokenizer.decode(tokens))))

    def step(self, meanwhile):
        asked, self._asked = self._asked, []
        if asked:
            self._instead(meanwhile)
        self.blocks.append([handle for handle, _ in asked])
        responses = []
        for handle, text in asked:
            tokens = np.asarray(self._template.tokenizer.encode(text), np.int32)
            zeros = np.zeros(len(tokens))
            responses.append(
                Response(
                    handle, tokens, zeros.astype(np.float32), zeros.astype(np.int32), stopped=True, out_of_context=False
                )
            )
        return responses


@pytest.mark.parametrize("reply_blocks", [1, 2])
def test_when_all_responses_end_at_once_what_follows_does_not_hang_on_timing(pool, template, reply_blocks):
    """Environments that are still starting are due behind the very block that ends all responses."""
    asked = requests([record(), record(hint="h")], seeds=4)
    settings = dataclasses.replace(SETTINGS, reply_blocks=reply_blocks, max_live=8, max_turns=3)

    def late(meanwhile):  # nothing is there yet
        meanwhile(lambda: False)

    def early(meanwhile):
        meanwhile(lambda: True)

    results = []
    for instead in (lambda meanwhile: None, late, early):
        engine = ScriptedEngine(template, lambda text: "<action>1</action>", instead)
        episodes = episodes_lib.play_episodes(engine, pool, template, asked, settings)
        results.append((engine.blocks, episodes))
    blocks, episodes = results[0]
    assert sum(map(len, blocks)) == sum(len(episode.turns) for episode in episodes) > len(asked)
    assert all(other == blocks for other, _ in results[1:])


def test_a_tool_program_is_asked_and_answered_in_its_own_form(pool, template):
    """A scripted player wins a bundled program through the loop: prompts, tags and criteria fit together."""
    (drawn,) = bundled.bundled_records(base.TRAIN, 1, seed=3, kind="tool")
    player = drawn.family.player(drawn.params, random.Random(1), True)
    player._slip = 0.0
    shown = []

    def respond(text):
        shown.append(text)
        return player.act(text)

    asked = requests([drawn.record], seeds=1)[1:]
    (episode,) = episodes_lib.play_episodes(
        ScriptedEngine(template, respond), pool, template, asked, dataclasses.replace(SETTINGS, max_turns=20)
    )
    assert (episode.arm, episode.status, episode.episode_return) == (structs.HINTED, structs.SUCCESS, 1.0)
    assert shown[0].startswith(f"You are using tools.\nHint: {drawn.record.hint}\nTools:\n")
    assert episode.turns[-1].action == "<answer>done</answer>"
    assert episode.turns[0].action.startswith('<tool_call>{"name": ')
    assert "<tool_call>" in episode.turns[0].response and not episode.turns[0].response.startswith("<tool_call>")

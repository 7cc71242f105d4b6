"""The warm start's data, and the build as a process: the same seed gives the same files."""

import hashlib
import os
import pathlib
import random
import subprocess
import sys

import numpy as np
import pytest

from configs import warmstart_tiny
from spade_jax import compose, warmstart
from spade_jax.designer import gate, parse, prompts
from spade_jax.envs import families
from spade_jax.envs.families import base
from spade_jax.runtime.errors import UsageError
from spade_jax.tokens import chat, parsing
from spade_jax.tokens import tokenizer as tokenizer_lib

ROOT = pathlib.Path(__file__).parents[1]
KINDS = ("program", "hint", "plain", "plain_careless", "hinted", "hinted_careless")


def generator(**mixture):
    return warmstart.Generator(0, {kind: mixture.get(kind, 0.0) for kind in KINDS}, exemplar_share=0.5)


@pytest.fixture(scope="module")
def template():
    return chat.ChatTemplate(tokenizer_lib.SentencePieceTokenizer(compose.ASSETS / "tiny" / compose.TOKENIZER_FILE))


def test_a_sample_is_a_function_of_seed_and_index():
    one, other = generator(program=1, plain=1), generator(program=1, plain=1)
    assert [one.sample(i) for i in range(20)] == [other.sample(i) for i in reversed(range(20))][::-1]


def test_program_samples_answer_with_one_valid_program():
    for index in range(20):
        ((shown, answer),) = generator(program=1).sample(index)
        assert shown.startswith("Skill: ")
        program = parse.parse_program(parsing.fenced_program(answer))
        assert program.has_solution
        assert answer == prompts.fenced(program.source)


def test_hinted_plays_show_a_hint_and_plain_ones_do_not():
    for index in range(20):
        assert "Hint: " in generator(hinted=1).sample(index)[0][0]
        exchanges = generator(plain=1).sample(index)
        assert "Hint: " not in exchanges[0][0]
        assert all(parsing.last_boxed(answer) is not None for _, answer in exchanges)


def test_careless_players_answer_without_looking():
    family = next(f for f in families.all_families() if f.name == "number_search")
    params = family.parameters(random.Random(0), base.TRAIN)
    source = family.source(params, [f"word{i}" for i in range(16)])

    def answers(observation):
        rng = random.Random(1)
        player = warmstart.CarelessPlayer(source, lambda: family.player(params, rng, False), rng)
        return [player.act(observation) for _ in range(20)]

    assert answers("Go higher.") == answers("")
    assert len(set(answers(""))) > 3  # of more than one other play


def test_careless_plays_have_the_form_of_plays():
    for index in range(20):
        assert "Hint: " in generator(hinted_careless=1).sample(index)[0][0]
        exchanges = generator(plain_careless=1).sample(index)
        assert "Hint: " not in exchanges[0][0]
        assert all(parsing.last_boxed(answer) is not None for _, answer in exchanges)


def tool_generator(kind):
    return warmstart.Generator(0, {f"tool_{kind}": 1.0}, exemplar_share=0.5)


def test_tool_programs_are_valid_and_answer_the_variant_asked_for():
    exemplars = 0
    for index in range(30):
        ((shown, answer),) = tool_generator("program").sample(index)
        assert shown.startswith("Domain: ") and shown.endswith("\nWrite a tool environment.")
        program = parse.parse_program(parsing.fenced_program(answer), "tool")
        assert answer == prompts.fenced(program.source)
        reads = "read" in program.source.partition("    def ")[2].partition("self.ask(")[2].partition("\n")[0]
        assert not reads or "Variant: read-then-write" in shown or "Variant: missing value" in shown
        exemplars += "Example:\n" in shown
    assert 5 <= exemplars <= 25


def test_tool_plays_are_calls_that_end_with_an_answer():
    wins = {"plain": 0, "hinted": 0}
    for kind in wins:
        for index in range(40):
            exchanges = tool_generator(kind).sample(index)
            assert exchanges[0][0].startswith("You are using tools.\n")
            assert ("Hint: " in exchanges[0][0]) == (kind == "hinted")
            assert all(parsing.last_tagged(answer) for _, answer in exchanges)
            assert exchanges[-1][1] == "Done. <answer>done</answer>"
            wins[kind] += sum(answer == exchanges[-1][1] for _, answer in exchanges) >= 3
    assert wins["plain"] + 8 < wins["hinted"]


def test_tool_hints_name_no_value():
    for index in range(20):
        ((shown, hint),) = tool_generator("hint").sample(index)
        assert shown.startswith("Write a plan.\n```python\nfrom toolkit import")
        assert 3 < len(hint.split()) <= 25 and not any(c.isdigit() for c in hint)


def test_tool_samples_fit_the_longest_bucket(template):
    for kind in ("program", "plain", "hinted"):
        for index in range(40):
            tokens, _ = warmstart.tokenize(
                template, tool_generator(kind).sample(index), {"program": 0.5, "observation": 0.1}
            )
            assert len(tokens) <= 928 or kind == "program", (kind, index, len(tokens))


def test_the_stages_of_the_embedded_policy_draw_what_they_drew():
    """The shipped weights were built from these samples; kinds that a mixture does not name must not move them."""
    config = warmstart_tiny.get_config()
    stage = config.stages.a_write.mixture.to_dict()
    drawn = warmstart.Generator(config.seed, stage, config.exemplar_share)
    digest = hashlib.sha256()
    for index in range(200):
        digest.update(repr(drawn.sample(index)).encode())
    # Documents, and so samples, follow the Python version's own texts.
    if sys.version_info[:2] == (3, 11):
        assert digest.hexdigest() == "cc7440669ce8d3590cc9cc7325688b4e03a076cbe87aa675f88bcc321ba7ae72"
    everything = warmstart.Generator(config.seed, {**stage, "tool_program": 0.0}, config.exemplar_share)
    assert [everything.sample(i) for i in range(20)] == [drawn.sample(i) for i in range(20)]


def test_held_out_families_never_enter():
    held_out = {family.name for family in families.all_families() if family.held_out}
    assert len(held_out) >= 3
    assert not {family.name for family in generator(program=1)._families} & held_out
    assert {family.name for family in generator()._tool_families} == {"bank", "calendar", "mailbox", "warehouse"}


def test_responses_weigh_one_and_prompts_as_configured(template):
    exchanges = [("Write a hint.\n```python\nx\n```", "first"), ("an observation", "second")]
    tokens, weights = warmstart.tokenize(template, exchanges, {"program": 0.5, "observation": 0.1})
    first, second = (len(template.tokenizer.encode(text)) + 1 for text in ("first", "second"))
    assert weights[-second:].tolist() == [1.0] * second
    assert sorted(set(np.round(weights.astype(float), 3))) == [0.1, 0.5, 1.0]
    assert (weights == 1.0).sum() == first + second
    assert template.tokenizer.decode(tokens).endswith("second")


def test_the_gate_passes_what_the_designer_learns_from():
    checked = gate.check(parsing.fenced_program(generator(program=1).sample(3)[0][1]))
    assert next(checked).calls[0] == ("construct", ())  # it got past the static checks


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"vocab_size": -1}, "vocab_size=-1 is out of range"),
        ({"weight_decay": float("nan")}, "weight_decay=nan is out of range"),
        ({"buckets": ()}, "buckets=() must be ascending"),
        ({"stages.a_write.steps": 0}, "stages.a_write.steps=0, .*learn nothing"),
        ({"stages.b_play.mixture.plain": -1.0}, "stages.b_play.mixture has the shares"),
        ({"policy.num_kv_heads": 5}, "num_kv_heads=5"),
    ],
)
def test_settings_that_cannot_work_are_refused(setting, message):
    config = warmstart_tiny.get_config()
    config.update_from_flattened_dict(setting)
    with pytest.raises(UsageError, match=message.replace("()", r"\(\)")):
        warmstart.check_config(config)


def test_buckets_that_hold_no_sample_are_no_endless_search(template):
    config = warmstart_tiny.get_config()
    config.buckets = (4, 8)
    with pytest.raises(UsageError, match=r"buckets=\(4, 8\): 1001 of 1001 samples"):
        next(warmstart.batches(generator(hint=1), template, config, 1))


@pytest.mark.slow
def test_same_seed_same_assets(tmp_path):
    outputs = []
    for name in ("a", "b"):
        small = ["tokenizer_samples=600", "vocab_size=700", "policy.num_layers=1", "policy.embed_dim=32"]
        small.append("buckets=(256,928)")  # every length is compiled in every stage
        subprocess.run(
            [
                sys.executable,
                "-m",
                "spade_jax.warmstart",
                f"--config={ROOT}/configs/warmstart_tiny.py:runlocal",
                f"--out={tmp_path / name}",
                *(f"--config.{setting}" for setting in small),
            ],
            env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
            check=True,
            timeout=600,
        )
        outputs.append([(tmp_path / name / file).read_bytes() for file in (compose.TOKENIZER_FILE, "warmstart.json")])
        with np.load(tmp_path / name / compose.POLICY_FILE) as store:
            outputs[-1] += [store[key].tobytes() for key in sorted(store.files)]
    assert outputs[0] == outputs[1]

from __future__ import annotations

import random

import pytest

from spade_jax.designer import prompts, schedule
from spade_jax.structs import EnvironmentRecord
from spade_jax.tokens.parsing import fenced_program

RECORD = EnvironmentRecord(id="a", source="class A:\n    pass\n", class_name="A")


def test_tiny_designer_prompt_is_exactly_this():
    messages = prompts.designer_messages(
        "spatial reasoning", "The  with\nstatement", [RECORD], ["NameA", "NameB"], style="tiny", rng=random.Random(0)
    )
    assert messages == [
        (
            "user",
            "Skill: spatial reasoning\nDocument: The with statement\nExample:\n```python\nclass A:\n    pass\n```\n"
            "Avoid: NameA, NameB\nWrite an environment.",
        )
    ]


def test_tiny_document_is_cut_between_words():
    (_, text), *_ = prompts.designer_messages(
        "optimization", "abcdefghi " * 50, [], [], style="tiny", rng=random.Random(0)
    )
    document = text.split("\n")[1].removeprefix("Document: ")
    assert document == " ".join(["abcdefghi"] * 20)  # 199 characters; the next word would make 209


def test_full_prompt_fences_the_document_with_a_mark_it_cannot_know():
    def ask(seed):
        return prompts.designer_messages("optimization", "DOC", [RECORD], [], style="full", rng=random.Random(seed))[1][
            1
        ]

    assert ask(1) == ask(1)
    assert ask(1) != ask(2)
    fence = next(line for line in ask(1).split("\n") if line.startswith("DATA-"))
    assert f"{fence}\nDOC\n{fence}" in ask(1)


def test_hint_and_agent_prompts():
    assert prompts.hint_messages("x = 1\n", style="tiny") == [("user", "Write a hint.\n```python\nx = 1\n```")]
    assert prompts.agent_prompt("Look.") == "You are playing a language game.\nLook."
    assert prompts.agent_prompt("Look.", "Go on.") == "You are playing a language game.\nHint: Go on.\nLook."
    full = prompts.agent_prompt("Look.", "Go on.", style="full")
    assert full.index("Hint: Go on.") < full.index("Observation: Look.") < full.index("\\boxed{}")


def test_a_fenced_program_reads_back():
    assert fenced_program(prompts.fenced("x = 1\n")).rstrip() == "x = 1"


@pytest.mark.parametrize(
    "hostile",
    ["<|im_start|>system", "a</think>b", "<eot>", "<tool_call>", "[INST]", "<|<|x|>user|>", "<e\u200bot>", "<0x0A>"],
)
def test_control_tokens_do_not_survive(hostile):
    clean = prompts.neutralise(hostile)
    for token in ("<|im_start|>", "</think>", "<eot>", "<tool_call>", "[INST]", "<|user|>", "<0x0A>"):
        assert token not in clean


def test_documents_cannot_close_a_fence_and_ordinary_text_is_left_alone():
    assert "```" not in prompts.neutralise("````python\nx\n```\n~~~~")
    ordinary = "a < b and b > c | d, `code`, x[1], tab\there\n"
    assert prompts.neutralise(ordinary) == ordinary
    assert prompts.agent_turn("low<eot>high") == "low high"


def test_unknown_style():
    with pytest.raises(ValueError, match="'huge'.*tiny, full"):
        prompts.hint_messages("x", style="huge")


def test_skills_rotate_three_at_a_time():
    assert schedule.active_skills(prompts.SKILLS, 0, 3) == prompts.SKILLS[:3]
    assert schedule.active_skills(prompts.SKILLS, 1, 3) == prompts.SKILLS[3:]
    assert schedule.active_skills(prompts.SKILLS, 2, 3) == prompts.SKILLS[:3]
    assert schedule.active_skills(prompts.SKILLS, 1, 4) == (*prompts.SKILLS[4:], *prompts.SKILLS[:2])
    with pytest.raises(ValueError, match="7 active skills"):
        schedule.active_skills(prompts.SKILLS, 0, 7)

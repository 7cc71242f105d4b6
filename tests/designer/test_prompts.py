from __future__ import annotations

import random

import pytest

from spade_jax.designer import prompts, schedule, tool_prompts
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


def test_tiny_tool_prompts_are_exactly_these():
    messages = tool_prompts.designer_messages(
        "banking", "The  with\nstatement", [RECORD], ["NameA"], variant="execute", style="tiny", rng=random.Random(0)
    )
    assert messages == [
        (
            "user",
            "Domain: banking\nVariant: execute\nDocument: The with statement\nExample:\n```python\nclass A:\n    pass\n"
            "```\nAvoid: NameA\nWrite a tool environment.",
        )
    ]
    assert tool_prompts.hint_messages("x = 1\n", style="tiny") == [("user", "Write a plan.\n```python\nx = 1\n```")]
    assert tool_prompts.agent_prompt("Look.") == "You are using tools.\nLook."
    assert tool_prompts.agent_prompt("Look.", "Go <eot>on.") == "You are using tools.\nHint: Go  on.\nLook."


def test_full_tool_prompts_state_the_contract_the_variant_and_the_form_of_a_reply():
    (_, contract), (_, request) = tool_prompts.designer_messages(
        "mail", "DOC", [], [], variant="missing value", style="full", rng=random.Random(0)
    )
    assert "from toolkit import ToolEnvironment" in contract and "3 to 8 of them" in contract
    assert "self.ask(text, criterion, *calls), 3 to 5 times" in contract
    assert " toolkit" not in contract.partition("of it only: ")[2]
    assert request.startswith("Write one tool-use environment in this domain: mail. Variant: missing value, that is, ")
    assert "DOC" in request and request.endswith("in one ```python fence.")
    agent = tool_prompts.agent_prompt("Tools: ...", "Read first.", style="full")
    assert "<tool_call>{" in agent and "<answer>done</answer>" in agent
    assert agent.index("Hint: Read first.") < agent.index("Tools: ...")
    assert "never a value" in tool_prompts.hint_messages("x", style="full")[0][1]


def test_ten_domains_and_four_variants_by_weight():
    assert len(set(tool_prompts.DOMAINS)) == 10
    rng = random.Random(0)
    drawn = [tool_prompts.draw_variant(rng) for _ in range(7000)]
    for variant, weight in {"execute": 3, "read-then-write": 2, "missing value": 1, "irrelevant request": 1}.items():
        assert abs(drawn.count(variant) - 1000 * weight) < 150  # 4 standard deviations at most
    with pytest.raises(ValueError, match="variant 'x' is unknown; use one of execute, "):
        tool_prompts.designer_messages("mail", "", [], [], variant="x", style="tiny", rng=rng)
    with pytest.raises(ValueError, match="'huge'"):
        tool_prompts.agent_prompt("x", style="huge")

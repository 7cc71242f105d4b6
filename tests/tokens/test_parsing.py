import pytest

from spade_jax import structs
from spade_jax.tokens import parsing


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\\boxed{7}", "7"),
        ("first \\boxed{1} then \\boxed{ 2 }", "2"),
        ("\\boxed{a{b}c}", "a{b}c"),
        ("\\boxed{1} and \\boxed{2", "1"),
        ("\\boxed{\\boxed{3}}", "3"),
        ("no box", None),
        ("\\boxed{", None),
        ("\\boxed{}", ""),
        ("<think>\\boxed{1}</think> \\boxed{2}", "2"),
        ("<think>\\boxed{1}", None),
        ("<think>a</think><think>\\boxed{1}", None),
        ("</think>\\boxed{4}", "4"),
    ],
)
def test_last_boxed(text, expected):
    assert parsing.last_boxed(text) == expected


def test_last_boxed_is_not_quadratic_in_hostile_text():
    assert parsing.last_boxed("\\boxed{" * 200_000) is None


def test_action_without_a_box_is_the_stripped_response():
    assert parsing.action_of("  north \n") == "north"
    assert parsing.action_of("go \\boxed{ north }") == "\\boxed{north}"
    assert structs.boxed("go {1}") == "\\boxed{go {1}}"
    assert parsing.last_boxed(structs.boxed("go {1}")) == "go {1}"


CALL = '<tool_call>{"name": "f"}</tool_call>'
END = "<answer>done</answer>"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CALL, CALL),
        (f"I read it. {CALL} ok", CALL),
        ("<tool_call> {} \n</tool_call>", "<tool_call>{}</tool_call>"),
        (f"{CALL}{END}", END),
        (f"{END} {CALL}", CALL),
        (f"{END}<tool_call>{{", END),
        (f"<tool_call>{{ {END}", END),
        (f"<tool_call>{{ {CALL}", CALL),
        (f"<tool_call>{CALL}</tool_call>", CALL),
        ("</tool_call><tool_call>", None),
        ("<tool_call>a</answer>", None),
        (
            '<tool_call>{"a": "<answer>done</answer>"}</tool_call>',
            '<tool_call>{"a": "<answer>done</answer>"}</tool_call>',
        ),
        (f"<think>{CALL}</think>{END}", END),
        (f"<think>{CALL}", None),
        ("<TOOL_CALL>{}</TOOL_CALL>", None),
        ("\\boxed{7}", None),
        ("", None),
    ],
)
def test_last_tagged(text, expected):
    assert parsing.last_tagged(text) == expected


def test_last_tagged_is_not_quadratic_in_hostile_text():
    assert parsing.last_tagged("<tool_call><answer>" * 200_000) is None
    assert parsing.last_tagged("<tool_call>" * 200_000 + "</tool_call>" * 200_000) == "<tool_call></tool_call>"


def test_tool_actions_are_tags_or_the_stripped_response_and_have_a_limit():
    assert parsing.action_of(f" so {CALL}\n", "tool") == CALL
    assert parsing.action_of(" \\boxed{7} ", "tool") == "\\boxed{7}"
    assert parsing.action_of(f"{CALL} \\boxed{{7}}") == "\\boxed{7}"  # a game knows no tags
    for text in ("x" * 10**6, f"<tool_call>{'x' * 10**6}</tool_call>"):
        assert len(parsing.action_of(text, "tool")) == parsing.MAX_TOOL_ACTION_CHARS


def test_commands_of_a_solution_become_the_actions_that_a_response_would_give():
    assert parsing.action_for('{"name": "f"}', "tool") == CALL
    assert parsing.action_for("done", "tool") == END
    assert parsing.action_for("left") == parsing.action_of("\\boxed{left}")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("```python\nx = 1\n```", "x = 1\n"),
        ("talk\n```\na\n```\nmore\n```python\nb\n```\n", "b\n"),
        ("```python\na\n```\n```python\ncut off", "a\n"),
        ("```python\ns = '```'\n```", "s = '```'\n"),
        ("no fence", None),
        ("<think>```python\na\n```", None),
    ],
)
def test_fenced_program(text, expected):
    assert parsing.fenced_program(text) == expected

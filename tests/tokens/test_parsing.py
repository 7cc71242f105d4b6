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

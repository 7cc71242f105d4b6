"""Disguises and reading rules, by hand."""

import pytest

from spade_jax.designer.gate import reading


@pytest.mark.parametrize(
    ("text", "disguise", "wanted"),
    [
        ("The code is 734.", "plain", "734"),
        ("SWORDFISH", "plain", "swordfish"),
        ("seven hundred and thirty-four", "number words", "734"),
        ("two thousand five hundred six", "number words", "2506"),
        ("twenty one, thirty", "number words", "21 30"),
        ("seven three four", "spelled out", "734"),
        ("s-w-o-r-d", "spelled out", "sword"),
        ("hsifdrows", "reversed", "swordfish"),
        ("734 neht tfel", "reversed", "left then 437"),
        ("c3dvcmRmaXNo", "base64", "swordfish"),
        ("NzM0", "base64", "734"),
        ("0x2DE", "hex", "734"),
        ("73776f7264", "hex", "sword"),
    ],
)
def test_disguises(text, disguise, wanted):
    assert reading.contains(reading.readings(text)[disguise], wanted.split())


def test_a_list_of_spelt_numbers_stays_a_list():
    assert reading.readings("four one, two and six")["spelled out"] == ["41", "2", "and", "6"]


def test_words_are_whole():
    assert not reading.contains(reading.tokens("The 7340 doors"), ["734"])
    assert not reading.contains(reading.tokens("-3"), ["3"])
    assert not reading.contains(reading.tokens("anything"), [])


def test_rules_by_hand():
    words = reading.tokens("say the code, the code is blue today")
    assert reading.rules(words, ["blue"]) == {
        reading.Rule("plain", "from the start", 6),
        reading.Rule("plain", "behind", "is"),
        reading.Rule("plain", "before", "today"),
    }
    # "code" first stands elsewhere, so that it is no landmark for what follows its second place.
    assert reading.Rule("plain", "behind", "code") not in reading.rules(words, ["is"])


def test_a_common_rule_serves_nearly_all():
    texts = [reading.readings(f"{'Look: ' * (i % 3)}the key is {word} here") for i, word in enumerate("abcdefghij")]
    wanted = [[word] for word in "abcdefghij"]
    assert reading.common_rule(texts, wanted, 0.9) in {
        reading.Rule("plain", "behind", "is"),
        reading.Rule("plain", "before", "here"),
    }
    assert reading.common_rule(texts, [["nothing"]] * 10, 0.9) is None


def test_candidates_at_changing_places_are_no_leak():
    rows = ["red tan sky", "tan sky red", "sky red tan"] * 3
    answers = [["tan"], ["red"], ["sky"], ["red"], ["sky"], ["tan"], ["sky"], ["tan"], ["red"]]
    assert reading.common_rule([reading.readings(row) for row in rows], answers, 0.9) is None


def test_long_secrets_are_known_by_eight_letters():
    assert reading.shares_gram("open ses-ame gate", "Open Sesame")
    assert not reading.shares_gram("open the sesame", "Open Sesame")
    assert not reading.shares_gram("abcdefg", "abcdefg")  # shorter than a gram

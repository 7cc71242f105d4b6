"""Published tokenizers and templates against transformers (figures of tests/reference/make_tokens.py), and safety."""

from __future__ import annotations

import functools
import gzip
import json
import pathlib
import shutil
import unicodedata

import pytest

from spade_jax.tokens import huggingface, jinja_chat
from spade_jax.tokens.incremental import IncrementalDecoder
from tests.tokens import hostile

FOLDER = pathlib.Path(__file__).parents[1] / "data" / "tokenizers"
NAMES = ("chatml", "turns")
SURROGATE = "a\ud83d lone \udc00"


@functools.cache
def template(name, thinking=True):
    return jinja_chat.load(FOLDER / name, thinking=thinking)


@functools.cache
def figures(name):
    return json.loads(gzip.decompress((FOLDER / name / "figures.json.gz").read_bytes()))


@pytest.mark.parametrize("name", NAMES)
def test_encoding_equals_transformers(name):
    tokenizer = template(name).tokenizer
    for kind, control in (("plain", False), ("spelled", True)):
        for text, ids in zip(hostile.texts(control), figures(name)[kind], strict=True):
            assert tokenizer.encode(text) == ids, repr(text)


@pytest.mark.parametrize("name", NAMES)
def test_decoding_equals_transformers_and_is_the_same_token_by_token(name):
    tokenizer = template(name).tokenizer
    for ids, expected in zip(figures(name)["plain"], figures(name)["decoded"], strict=True):
        assert tokenizer.decode(ids) == expected
        incremental = IncrementalDecoder(tokenizer)
        pieces = [incremental.push([i]) for i in ids]
        assert "".join(pieces) + incremental.finish() == expected
        # Half a character never shows, neither as a replacement nor as anything else.
        assert "\ufffd" in expected or not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("name", NAMES)
def test_prompts_equal_transformers(name):
    system = [("system", "Be brief.")] if name == "chatml" else []
    stored = figures(name)
    for i, text in enumerate(hostile.texts(control=False)):
        assert template(name).prompt([*system, ("user", text)]) == stored["chat"][i], repr(text)
        assert template(name, thinking=False).prompt([("user", text)]) == stored["quiet"][i], repr(text)


@pytest.mark.parametrize("name", NAMES)
def test_a_continued_conversation_is_the_one_that_transformers_renders(name):
    """Where the template changes no past message; the tokens drawn are taken as they are."""
    t = template(name)
    answer = [*t.tokenizer.encode("a"), t.tokenizer.end_id]
    for text, ids in zip(hostile.texts(control=False), figures(name)["longer"], strict=True):
        assert [*t.prompt([("user", "q")]), *answer, *t.continuation(text)] == ids, repr(text)
        assert t.continuation(text, closed=False) == [t.tokenizer.end_id, *t.continuation(text)]


@pytest.mark.parametrize("name", NAMES)
def test_untrusted_text_never_becomes_a_control_token(name):
    t = template(name)
    control = t.tokenizer.control_ids
    harmless = {
        "encode": [],
        "prompt": [i for i in t.prompt([("user", "x")]) if i in control],
        "continuation": [i for i in t.continuation("x") if i in control],
    }
    for text in [*hostile.texts(control=True), *t.tokenizer._control, "<|im_end|>" * 50, SURROGATE]:
        for call in ("encode", "prompt", "continuation"):
            argument = [("user", text)] if call == "prompt" else text
            ids = (t.tokenizer.encode if call == "encode" else getattr(t, call))(argument)
            assert [i for i in ids if i in control] == harmless[call], repr(text)
        shown = huggingface.without_surrogates(text)
        if name == "chatml":  # which normalises to NFC
            shown = unicodedata.normalize("NFC", shown)
        assert t.tokenizer.decode(t.tokenizer.encode(text)) == shown


def test_messages_may_spell_placeholders():
    t = template("chatml")
    text = "\ue0000\ue001 \ue0001\ue001<|im_end|>"
    assert text in t.tokenizer.decode(t.prompt([("user", text)]))


def test_ends_and_padding():
    chatml, turns = template("chatml").tokenizer, template("turns").tokenizer
    assert chatml.end_id == chatml.control_id("<|im_end|>") and chatml.pad_id == chatml.control_id("<|endoftext|>")
    # The template ends messages with another token than the one that the config calls the end.
    assert turns.end_id == turns.control_id("<end_of_turn>") and turns.pad_id == turns.control_id("<pad>")
    assert chatml.decode([chatml.end_id, *chatml.encode("hi"), chatml.end_id]) == "hi"
    with pytest.raises(KeyError, match="no control token '<think>'"):
        chatml.control_id("<think>")  # ordinary vocabulary


def test_a_template_without_system_role_takes_it_into_the_first_message():
    t = template("turns")
    assert t.prompt([("system", "S"), ("user", "u")]) == t.prompt([("user", "S\n\nu")])


def test_past_reasoning_stays_in_the_conversation():
    """The template would take it out once the conversation goes on; the tokens that were drawn stay."""
    t = template("chatml")
    answer = "<think>\nhm\n</think>\n\na"
    theirs = t.text([("user", "q"), ("assistant", answer), ("user", "r")])
    assert "hm" not in theirs
    ours = [*t.prompt([("user", "q")]), *t.tokenizer.encode(answer), t.tokenizer.end_id, *t.continuation("r")]
    assert t.tokenizer.decode(ours) == "user\nq\nassistant\n<think>\nhm\n</think>\n\na\nuser\nr\nassistant\n"


def _copy(tmp_path):
    shutil.copytree(FOLDER / "chatml", tmp_path / "model")
    return tmp_path / "model"


def test_template_in_a_file_of_its_own(tmp_path):
    folder = _copy(tmp_path)
    (folder / "chat_template.jinja").write_text("{{ '<|im_start|>x' + messages[-1].content + '<|im_end|>' }}")
    with pytest.raises(ValueError, match="ends an assistant's message with no control token"):
        jinja_chat.load(folder)
    source = "{% for m in messages %}{{ m.content + '<|endoftext|>' }}{% endfor %}"
    (folder / "chat_template.jinja").write_text(source)
    assert jinja_chat.load(folder).tokenizer.end_id == template("chatml").tokenizer.control_id("<|endoftext|>")


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("tokenizer.json", "{}", "is no tokenizer.json|it is no tokenizer"),
        ("tokenizer_config.json", "{", "is no JSON"),
        ("tokenizer_config.json", "{}", "holds no chat template"),
        ("chat_template.jinja", "{% for %}", "is no Jinja template"),
        ("chat_template.jinja", "{{ messages.nothing.more }}", "cannot be rendered"),
        ("chat_template.jinja", "{{ ''.__class__.__mro__[1].__subclasses__() }}", "cannot be rendered"),
    ],
)
def test_what_cannot_be_used(tmp_path, file, text, message):
    folder = _copy(tmp_path)
    (folder / file).write_text(text)
    with pytest.raises(ValueError, match=message):
        jinja_chat.load(folder)


def test_folder_without_tokenizer(tmp_path):
    with pytest.raises(ValueError, match="holds no tokenizer.json"):
        jinja_chat.load(tmp_path)

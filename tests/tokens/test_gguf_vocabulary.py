"""SentencePiece vocabularies in GGUF files against the sentencepiece package; the files are written here."""

from __future__ import annotations

import functools
import io
import pathlib

import gguf
import pytest
import sentencepiece

from spade_jax.tokens import huggingface, jinja_chat
from spade_jax.tokens.incremental import IncrementalDecoder
from tests.tokens import hostile

LICENSE = pathlib.Path(__file__).parents[2] / "LICENSE"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ '<start_of_turn>' + m.role + '\n' + m.content + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
KINDS = pytest.mark.parametrize("prefix", [True, False], ids=["llama", "gemma"])


@functools.cache
def reference(prefix: bool) -> sentencepiece.SentencePieceProcessor:
    """A vocabulary such as Llama 2's (with a space before the text) or Gemma's (without, and with fixed pieces)."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(LICENSE.read_text(encoding="utf-8").splitlines()),
        model_writer=model,
        vocab_size=900,
        model_type="bpe",
        byte_fallback=True,
        split_digits=True,
        add_dummy_prefix=prefix,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        control_symbols=["<pad>", "<start_of_turn>", "<end_of_turn>"],
        user_defined_symbols=[] if prefix else ["\n\n", "\t", "<tool_call>", "<unused0>"],
        num_threads=1,
        minloglevel=2,
    )
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def kind_of(model: sentencepiece.SentencePieceProcessor, index: int, fixed: tuple[str, ...]) -> gguf.TokenType:
    if model.is_unknown(index):
        return gguf.TokenType.UNKNOWN
    if model.is_control(index):
        return gguf.TokenType.CONTROL
    if model.is_byte(index):
        return gguf.TokenType.BYTE
    return gguf.TokenType.USER_DEFINED if model.id_to_piece(index) in fixed else gguf.TokenType.NORMAL


def write(path: pathlib.Path, prefix: bool, fault: str = "") -> pathlib.Path:
    model, fixed = reference(prefix), () if prefix else ("\n\n", "\t", "<tool_call>", "<unused0>")
    ids = range(model.vocab_size())
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("llama")
    writer.add_token_list([model.id_to_piece(i) for i in ids])
    if fault != "no scores":
        writer.add_token_scores([model.get_score(i) for i in ids])
    writer.add_token_types([kind_of(model, i, fixed) for i in ids])
    if not prefix:  # Llama's files leave it out
        writer.add_add_space_prefix(False)
    if fault == "normalises":
        writer.add_remove_extra_whitespaces(True)
    writer.add_bos_token_id(model.bos_id())
    writer.add_eos_token_id(model.eos_id())
    writer.add_unk_token_id(model.unk_id())
    writer.add_pad_token_id(model.piece_to_id("<pad>"))
    writer.add_chat_template(TEMPLATE)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@KINDS
def test_ids_and_texts_are_those_of_sentencepiece(prefix, tmp_path):
    model, (tokenizer, _) = reference(prefix), huggingface.from_gguf(write(tmp_path / "m.gguf", prefix))
    assert tokenizer.vocab_size == model.vocab_size() == 900
    pieces = set()
    for text in [*hostile.texts(control=False), *hostile.texts(control=True), LICENSE.read_text(encoding="utf-8")]:
        ids = model.encode(text)
        assert tokenizer.encode(text) == ids, repr(text)
        assert tokenizer.decode(ids) == model.decode(ids), repr(text)
        incremental = IncrementalDecoder(tokenizer)
        assert "".join(incremental.push([i]) for i in ids) + incremental.finish() == model.decode(ids)
        pieces |= set(ids)
    assert len(pieces) > 600 and any(map(model.is_byte, pieces))


@KINDS
def test_untrusted_text_never_becomes_a_control_token(prefix, tmp_path):
    chat = jinja_chat.load(write(tmp_path / "m.gguf", prefix))
    tokenizer, model = chat.tokenizer, reference(prefix)
    names = ("<unk>", "<s>", "</s>", "<pad>", "<start_of_turn>", "<end_of_turn>")
    assert tokenizer.control_ids == {model.piece_to_id(name) for name in names}
    assert tokenizer.end_id == model.piece_to_id("<end_of_turn>") and tokenizer.pad_id == model.piece_to_id("<pad>")
    harmless = [i for i in chat.prompt([("user", "x")]) if i in tokenizer.control_ids]
    assert [model.id_to_piece(i) for i in harmless] == ["<s>", "<start_of_turn>", "<end_of_turn>", "<start_of_turn>"]
    for name in names:
        ids = chat.prompt([("user", f"a{name}b")])
        assert [i for i in ids if i in tokenizer.control_ids] == harmless
        assert f"a{name}b" in tokenizer.decode(ids)


def test_what_is_written_for_others_encodes_the_same(tmp_path):
    path = write(tmp_path / "m.gguf", prefix=False)
    tokenizer, template = huggingface.from_gguf(path)
    huggingface.write(tmp_path, tokenizer, template)
    again, same = huggingface.from_folder(tmp_path)
    assert same == template and again.named == tokenizer.named
    for text in hostile.texts(control=True):
        assert again.encode(text) == tokenizer.encode(text)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("no scores", "no score for every token; give tokens.tokenizer the folder"),
        ("normalises", "normalises text, which is not supported; give tokens.tokenizer the folder"),
    ],
)
def test_vocabularies_that_are_refused(fault, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        huggingface.from_gguf(write(tmp_path / "m.gguf", prefix=True, fault=fault))

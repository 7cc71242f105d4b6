"""Regenerates tests/data/tokenizers: two small tokenizers with templates, and what transformers makes of hostile texts.

    pip install -e '.[reference]' && python -m tests.reference.make_tokens

`chatml` splits and encodes bytes as Qwen's tokenizers do and has a template with reasoning; `turns` encodes pieces with
byte fallback as Gemma's do and has a template with turns, stripped messages and no system role.
"""

from __future__ import annotations

import gzip
import json
import pathlib

import tokenizers
import transformers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from tests.tokens import hostile

FOLDER = pathlib.Path(__file__).parents[1] / "data" / "tokenizers"
_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CHATML = """\
{%- if messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set content = message.content %}
        {%- if '</think>' in content and not loop.last %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' + content + '<|im_end|>\\n' }}
    {%- elif message.role == 'user' or not loop.first %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}"""
TURNS = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system role') }}{% endif %}\
{% for message in messages %}{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}\
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}\
{% if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif %}"""


def corpus() -> list[str]:
    """English that does not change with the code."""
    return [(pathlib.Path(__file__).parents[2] / "LICENSE").read_text(encoding="utf-8")]


def chatml() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(tokenizers.Regex(_SPLIT), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(corpus(), trainers.BpeTrainer(vocab_size=600, initial_alphabet=alphabet))
    tokenizer.add_special_tokens([
        tokenizers.AddedToken(name, normalized=False, special=True)
        for name in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    ])  # fmt: skip
    tokenizer.add_tokens([tokenizers.AddedToken(name, normalized=False) for name in ("<think>", "</think>")])
    return tokenizer


def turns() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    names = ["<pad>", "<eos>", "<bos>", "<unk>", "<start_of_turn>", "<end_of_turn>"]
    pieces = [*names, *(f"<0x{byte:02X}>" for byte in range(256))]
    words = [word for text in corpus() for word in text.replace(" ", " ▁").split(" ")]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=pieces, max_token_length=12)
    tokenizer.train_from_iterator(words, trainer)
    settings = json.loads(tokenizer.to_str())
    settings["added_tokens"] = [token for token in settings["added_tokens"] if token["content"] in names]
    return tokenizers.Tokenizer.from_str(json.dumps(settings))


def main() -> None:
    kinds = {
        "chatml": (chatml(), CHATML, dict(eos_token="<|im_end|>", pad_token="<|endoftext|>")),
        "turns": (turns(), TURNS, dict(bos_token="<bos>", eos_token="<eos>", pad_token="<pad>")),
    }
    for name, (tokenizer, template, named) in kinds.items():
        folder = FOLDER / name
        folder.mkdir(parents=True, exist_ok=True)
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": template, **named}
        (folder / "tokenizer.json").write_text(tokenizer.to_str(), encoding="utf-8")
        (folder / "tokenizer_config.json").write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")
        theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)

        def chat(messages: list[tuple[str, str]], theirs=theirs, **options: bool) -> list[int]:
            rendered = [{"role": role, "content": text} for role, text in messages]
            found = theirs.apply_chat_template(rendered, add_generation_prompt=True, tokenize=False, **options)
            return theirs(found, add_special_tokens=False)["input_ids"]

        plain = hostile.texts(control=False)
        spelled = hostile.texts(control=True)
        system = [("system", "Be brief.")] if name == "chatml" else []
        figures = {
            "plain": [theirs(text, add_special_tokens=False)["input_ids"] for text in plain],
            "spelled": [
                theirs(text, add_special_tokens=False, split_special_tokens=True)["input_ids"] for text in spelled
            ],
            "chat": [chat([*system, ("user", text)]) for text in plain],
            "quiet": [chat([("user", text)], enable_thinking=False) for text in plain],
            "longer": [chat([("user", "q"), ("assistant", "a"), ("user", text)]) for text in plain],
            "decoded": [theirs.decode(theirs(text, add_special_tokens=False)["input_ids"], skip_special_tokens=True,
                                      clean_up_tokenization_spaces=False) for text in plain],
        }  # fmt: skip
        data = json.dumps(figures, separators=(",", ":")).encode()
        (folder / "figures.json.gz").write_bytes(gzip.compress(data, mtime=0))
        print(name, tokenizer.get_vocab_size(), len(data))


if __name__ == "__main__":
    main()

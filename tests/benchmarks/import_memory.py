"""How long the import of a checkpoint takes, and how much memory it needs at its peak.

    python -m tests.benchmarks.import_memory --gigabytes=2

Writes a synthetic Llama of that size to a temporary folder, imports it in a process of its own into sharded arrays, and
prints the peak resident memory above that of the process before, as a multiple of the checkpoint's size.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import jax
import numpy as np

from spade_jax.learner import partitioning
from spade_jax.learner.state import param_shardings
from spade_jax.policy import Decoder, huggingface, safetensors
from spade_jax.policy.importing import open_model
from spade_jax.policy.weights import places

_LAYER = dict(hidden_size=2048, intermediate_size=5632, num_attention_heads=16, num_key_value_heads=4)


class _Ones:
    """A tensor that exists while it is written."""

    def __init__(self, shape: tuple[int, ...]):
        self.shape = shape

    def __array__(self, dtype=None, copy=None) -> np.ndarray:
        return np.ones(self.shape, np.float32)


def write(folder: pathlib.Path, gigabytes: float, dtype: str) -> int:
    """Writes the checkpoint; returns its size in bytes."""
    settings = _LAYER | dict(model_type="llama", vocab_size=32_000, num_hidden_layers=1, tie_word_embeddings=True)
    itemsize = 4 if dtype == "float32" else 2

    def size(layers: int) -> int:
        config = huggingface.from_huggingface(settings | dict(num_hidden_layers=layers))
        return itemsize * sum(int(np.prod(place.shape)) for place in places(config).values())

    layers = max(1, round((gigabytes * 1e9 - size(1)) / (size(2) - size(1))) + 1)
    settings["num_hidden_layers"] = layers
    (folder / "config.json").write_text(json.dumps(settings))
    config = huggingface.from_huggingface(settings)
    tensors = {name: _Ones(place.stored) for place in places(config).values() for name in place.names}
    safetensors.write_folder(folder, tensors, dtype, max_bytes=500 * 10**6)
    return size(layers)


def load(folder: str, dtype: str) -> None:
    """Imports, and prints seconds and the peak in bytes."""
    mesh = partitioning.make_mesh()
    jax.block_until_ready(jax.numpy.zeros(8) + 1)
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    before = pages * resource.getpagesize()
    start = time.perf_counter()
    lazy, config = open_model(folder, dtype)
    model = Decoder(config)
    params = partitioning.global_copies(mesh, lazy, param_shardings(model, mesh))
    jax.block_until_ready(params)
    seconds = time.perf_counter() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    print(json.dumps({"seconds": seconds, "peak": peak}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=2.0)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    parser.add_argument("--load", help="a folder to import; used by the process that is measured")
    arguments = parser.parse_args()
    if arguments.load:
        load(arguments.load, arguments.dtype)
        return
    with tempfile.TemporaryDirectory() as folder:
        size = write(pathlib.Path(folder), arguments.gigabytes, arguments.dtype)
        command = [sys.executable, "-m", "tests.benchmarks.import_memory", f"--dtype={arguments.dtype}"]
        run = subprocess.run([*command, f"--load={folder}"], capture_output=True, text=True, check=True)
    found = json.loads(run.stdout.splitlines()[-1])
    seconds, peak = found["seconds"], found["peak"] / size
    print(f"{size / 1e9:.2f} GB in {arguments.dtype}: {seconds:.1f} s, peak {peak:.2f} x its size")


if __name__ == "__main__":
    main()

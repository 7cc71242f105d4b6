"""Builds the embedded policy: ordinary supervised learning on data we generate.

    python -m spade_jax.warmstart --config=configs/warmstart_tiny.py --out=DIR

The bundled families write programs and hints; scripted players of partial skill
and of uneven care play them. From these come the SentencePiece model and the tiny
policy, which can then write varied, mostly valid environments and play at partial
skill; self-play does the rest. `configs/warmstart_spiral.py` builds the policy of two-player games
in the same way, from moves of scripted players. Held-out families and difficulty
ranges (`envs/families`) never enter. The same seed gives the same assets on the
same machine.
"""

from __future__ import annotations

import itertools
import json
import math
import pathlib
import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from absl import flags
from ml_collections import ConfigDict, config_flags

from spade_jax import compose, structs
from spade_jax.designer import corpus, prompts, tool_prompts
from spade_jax.envs import contract, families
from spade_jax.envs.families import base
from spade_jax.envs.families import tools as tool_families
from spade_jax.envs.games.demonstrations import demonstrate
from spade_jax.learner import partitioning, supervised
from spade_jax.learner import state as state_lib
from spade_jax.policy import Decoder, DecoderConfig, count_params, load_params, save_params
from spade_jax.rollout import players
from spade_jax.runtime import app, compile_cache, seeds
from spade_jax.runtime.errors import UsageError
from spade_jax.tokens import chat, parsing
from spade_jax.tokens import tokenizer as tokenizer_lib

_CONFIG = config_flags.DEFINE_config_file("config", None, "The configuration, e.g. configs/warmstart_tiny.py.")
_OUT = flags.DEFINE_string("out", None, "Folder that receives tokenizer.model, policy.npz and warmstart.json.")

_FIRST_STAGE = flags.DEFINE_string("first_stage", None, "Begin at this stage, from what --out already holds.")

_MAX_TURNS = 10
_TOOL_KINDS = "tool_"  # how the kinds of samples about tool use begin
_GAME_KINDS = "game_"  # and those of moves in two-player games
_CARELESS = "_careless"  # how the kinds of plays end that a player makes without looking
_DOCUMENT_WORDS = 120
_MOST_SKIPPED = 1000  # samples that no bucket holds, before that is taken for a mistake
_RANGES = {
    "seed": (0, 2**32 - 1),
    "vocab_size": (2, 2**20),
    "tokenizer_samples": (1, 2**31 - 1),
    "exemplar_share": (0, 1),
    "tokens_per_step": (1, 2**31 - 1),
    "warmup_steps": (0, 2**31 - 1),
    "weight_decay": (0, 1e6),
    "log_steps": (1, 2**31 - 1),
}


# ---------------------------------------------------------------------------
# Data: messages to condition on and responses to learn, by kind of sample.
# ---------------------------------------------------------------------------

# A sample alternates between what the policy is shown and what it should answer.
Exchange = tuple[str, str]


class Generator:
    """Draws supervised samples; sample i is a function of (seed, i) alone."""

    def __init__(self, seed: int, mixture: dict[str, float], exemplar_share: float):
        self._seed = seed
        self._kinds, self._weights = zip(*sorted(mixture.items()), strict=True)
        self._exemplar_share = exemplar_share
        self._documents = corpus.load_pydoc(chunk_words=_DOCUMENT_WORDS).documents
        self._families = [family for family in families.all_families() if not family.held_out]
        self._by_skill = {
            skill: [family for family in self._families if family.skill == skill] for skill in prompts.SKILLS
        }
        self._tool_families = [family for family in tool_families.all_families() if not family.held_out]

    def sample(self, index: int) -> list[Exchange]:
        """The exchanges of sample `index`: one for programs and hints, one per turn for plays."""
        rng = random.Random(seeds.stable_seed("warmstart", self._seed, index))
        kind = rng.choices(self._kinds, self._weights)[0]
        if kind.startswith(_TOOL_KINDS):
            return self._tool_sample(kind.removeprefix(_TOOL_KINDS), rng)
        if kind.startswith(_GAME_KINDS):
            game, response = demonstrate(kind.removeprefix(_GAME_KINDS), rng)
            return [(players.first_prompt(game, game.player, prompts.TINY), response)]
        document = rng.choice(self._documents)
        words = corpus.theme_words(document.text, 16)
        rng.shuffle(words)
        skill = rng.choice(prompts.SKILLS)
        family = rng.choice(self._by_skill[skill])
        params = family.parameters(rng, base.TRAIN)
        source = family.source(params, words)
        hint = family.hint(params)
        if kind == "program":
            exemplars = [self._exemplar(rng, skill)] if rng.random() < self._exemplar_share else []
            avoid = [self._exemplar(rng, skill).class_name] if exemplars and rng.random() < 0.5 else []
            messages = prompts.designer_messages(skill, document.text, exemplars, avoid, style=prompts.TINY, rng=rng)
            return [(messages[-1][1], prompts.fenced(source))]
        if kind == "hint":
            return [(prompts.hint_messages(source, style=prompts.TINY)[-1][1], hint)]
        hinted = kind.startswith("hinted")
        player = family.player(params, rng, hinted)
        if kind.endswith(_CARELESS):
            player = CarelessPlayer(source, lambda: family.player(params, rng, hinted), rng)
        return play(source, player, rng.randrange(1 << 30), hint if hinted else None)

    def _tool_sample(self, kind: str, rng: random.Random) -> list[Exchange]:
        """The same about tool use: kind "program", "hint", "plain" or "hinted"."""
        document = rng.choice(self._documents)
        family = rng.choice(self._tool_families)
        params, record = self._tool_program(rng, family, document.text)
        if kind == "program":
            # An exemplar comes from another draw of the same domain, as it would from memory.
            shown = rng.random() < self._exemplar_share
            exemplars = [self._tool_program(rng, family, rng.choice(self._documents).text)[1]] if shown else []
            messages = tool_prompts.designer_messages(
                family.skill, document.text, exemplars, [], variant=params["variant"], style=prompts.TINY, rng=rng
            )
            return [(messages[-1][1], prompts.fenced(record.source))]
        if kind == "hint":
            return [(tool_prompts.hint_messages(record.source, style=prompts.TINY)[-1][1], record.hint)]
        hinted = kind == "hinted"
        player = family.player(params, rng, hinted)
        return tool_play(record, player, rng.randrange(1 << 30), record.hint if hinted else None)

    def _tool_program(
        self, rng: random.Random, family: tool_families.base.ToolFamily, document: str
    ) -> tuple[dict[str, Any], structs.EnvironmentRecord]:
        """(constants, record) of a drawn program with the document's theme words."""
        words = corpus.theme_words(document, 16)
        rng.shuffle(words)
        params = family.parameters(rng, base.TRAIN)
        source = family.source(params, words)
        name = source.partition("\nclass ")[2].partition("(")[0]
        record = structs.EnvironmentRecord(
            id="", source=source, class_name=name, kind="tool", skill=family.skill, hint=family.hint(params)
        )
        return params, record

    def _exemplar(self, rng: random.Random, skill: str) -> structs.EnvironmentRecord:
        family = rng.choice(self._by_skill[skill])
        words = corpus.theme_words(rng.choice(self._documents).text, 16)
        rng.shuffle(words)
        source = family.source(family.parameters(rng, base.TRAIN), words)
        name = base.class_name(words, "")
        class_name = next(token for token in source.replace(":", " ").split() if token.startswith(name))
        return structs.EnvironmentRecord(id="", source=source, class_name=class_name, skill=skill)


class CarelessPlayer(base.Player):
    """Does not look: it answers as players of the same program did who saw other instances of it.

    Text that people wrote holds good play and poor play alike, and so should what a policy imitates: then there is
    something for reinforcement to choose from.
    """

    def __init__(self, source: str, player: Callable[[], base.Player], rng: random.Random):
        self._answers = (
            answer for _ in itertools.count() for _, answer in play(source, player(), rng.randrange(1 << 30), None)
        )

    def act(self, observation: str) -> str:
        return next(self._answers)


def play(source: str, player: base.Player, seed: int, hint: str | None) -> list[Exchange]:
    """One scripted episode of a bundled (trusted) program."""
    namespace: dict[str, Any] = {}
    exec(compile(source, "<bundled>", "exec"), namespace)  # our own text, not a policy's
    (environment_class,) = [v for v in namespace.values() if isinstance(v, type) and hasattr(v, "step")]
    environment = environment_class()
    observation, _ = environment.reset(seed)
    shown = prompts.agent_prompt(observation, hint, style=prompts.TINY)
    exchanges = []
    for _ in range(_MAX_TURNS):
        response = player.act(observation)
        exchanges.append((shown, response))
        observation, reward, terminated, truncated, info = environment.step(parsing.action_of(response))
        if terminated or truncated or contract.succeeded(reward, terminated, info):
            break
        shown = prompts.agent_turn(observation)
    return exchanges


def tool_play(record: structs.EnvironmentRecord, player: base.Player, seed: int, hint: str | None) -> list[Exchange]:
    """One scripted episode of a bundled tool-use program."""
    environment = tool_families.load(record.source, record.class_name)()
    observation, _ = environment.reset(seed)
    shown = tool_prompts.agent_prompt(observation, hint, style=prompts.TINY)
    exchanges = []
    terminated = False
    while not terminated:  # the program bounds its turns
        response = player.act(observation)
        exchanges.append((shown, response))
        observation, _, terminated, _, _ = environment.step(parsing.action_of(response, record.kind))
        shown = prompts.agent_turn(observation)
    return exchanges


def tokenize(template: chat.ChatTemplate, exchanges: list[Exchange], weight: Mapping[str, float]):
    """(int32[T] tokens, float32[T] loss weights) of one sample; responses weigh 1, prompts as `weight` says."""
    tokens: list[int] = []
    weights: list[float] = []
    for i, (shown, response) in enumerate(exchanges):
        prompt = template.continuation(shown) if i else template.prompt([("user", shown)])
        answer = [*template.tokenizer.encode(response), template.tokenizer.end_id]
        # A prompt that shows a program is one more program to learn from, at no cost.
        shows_program = "```" in shown
        tokens += prompt + answer
        weights += [weight["program" if shows_program else "observation"]] * len(prompt) + [1.0] * len(answer)
    return np.asarray(tokens, np.int32), np.asarray(weights, np.float32)


def batches(
    generator: Generator, template: chat.ChatTemplate, config, row_multiple: int
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Endless (int32[B, T], float32[B, T]) batches, one length bucket each, as buckets fill."""
    pending: dict[int, list] = {length: [] for length in config.buckets}
    index = skipped = 0
    while True:
        tokens, weights = tokenize(template, generator.sample(index), config.prompt_weight)
        index += 1
        length = next((length for length in config.buckets if len(tokens) <= length), None)
        if length is None:
            skipped += 1  # a long document beside a long exemplar; rare, and the next sample will do
            if skipped > max(_MOST_SKIPPED, index // 2):
                raise UsageError(
                    f"buckets={tuple(config.buckets)}: {skipped} of {index} samples are longer than the last, the "
                    f"newest of {len(tokens)} tokens; add a longer one"
                )
            continue
        pending[length].append((tokens, weights))
        rows = max(1, config.tokens_per_step // length // row_multiple) * row_multiple
        if len(pending[length]) == rows:
            batch_tokens = np.full((rows, length), template.tokenizer.pad_id, np.int32)
            batch_weights = np.zeros((rows, length), np.float32)
            for row, (row_tokens, row_weights) in enumerate(pending[length]):
                batch_tokens[row, : len(row_tokens)] = row_tokens
                batch_weights[row, : len(row_weights)] = row_weights
            pending[length] = []
            yield batch_tokens, batch_weights


# ---------------------------------------------------------------------------
# The job.
# ---------------------------------------------------------------------------


def check_config(config: ConfigDict) -> None:
    """Raises UsageError for settings that cannot work, before anything is written."""
    for key, (least, greatest) in _RANGES.items():
        if not least <= config[key] <= greatest:
            raise UsageError(f"{key}={config[key]} is out of range; give a value between {least} and {greatest}")
    buckets = tuple(config.buckets)
    if not buckets or any(not isinstance(b, int) or b < 2 for b in buckets) or list(buckets) != sorted(set(buckets)):
        raise UsageError(f"buckets={buckets} must be ascending lengths of at least 2; e.g. (160, 256, 464, 928)")
    for name, stage in config.stages.items():
        if stage.steps < 1 or not 0 < stage.learning_rate <= 1:
            raise UsageError(
                f"stages.{name}.steps={stage.steps}, learning_rate={stage.learning_rate} learn nothing; give 1 step or "
                "more and a rate above 0, at most 1"
            )
        shares = list(stage.mixture.values())
        if not all(0 <= share < math.inf for share in shares) or not sum(shares) > 0:
            raise UsageError(f"stages.{name}.mixture has the shares {shares}; give none below 0 and one above it")
    try:
        DecoderConfig(vocab_size=config.vocab_size, **config.policy.to_dict())
    except ValueError as error:
        raise UsageError(str(error)) from error


def main(argv):
    del argv
    config, out = _CONFIG.value, pathlib.Path(_OUT.value)
    if "stages" not in config:
        raise UsageError("--config has no `stages`, so it is no warm start's; use configs/warmstart_tiny.py or a copy")
    check_config(config)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--out={out} cannot be made ({error.strerror}); name a folder you can write to") from error
    compile_cache.enable_compile_cache("auto")
    stages = dict(sorted(config.stages.to_dict().items()))  # a ConfigDict has no order of its own
    if _FIRST_STAGE.value not in (None, *stages):
        raise UsageError(f"--first_stage={_FIRST_STAGE.value} is no stage of the config; use {' or '.join(stages)}")

    if _FIRST_STAGE.value is not None:
        first = list(stages).index(_FIRST_STAGE.value)
        for file in (compose.TOKENIZER_FILE, compose.POLICY_FILE)[: 2 if first else 1]:
            if not (out / file).is_file():
                raise UsageError(
                    f"--first_stage={_FIRST_STAGE.value} needs {out / file} of the stage before; leave it out"
                )

    if _FIRST_STAGE.value is None:
        # Pieces are learned from the distribution they will spell, so that boilerplate is few tokens.
        generator = Generator(config.seed, next(iter(stages.values()))["mixture"], config.exemplar_share)
        samples = (generator.sample(-1 - i) for i in range(config.tokenizer_samples))
        texts = (text for exchanges in samples for exchange in exchanges for text in exchange)
        try:
            tokenizer_lib.train_sentencepiece(texts, out / compose.TOKENIZER_FILE, config.vocab_size)
        except RuntimeError as error:  # SentencePiece's word for fewer pieces than characters, or more than it finds
            raise UsageError(f"vocab_size={config.vocab_size} cannot be learned from the samples ({error})") from error
    template = chat.ChatTemplate(tokenizer_lib.SentencePieceTokenizer(out / compose.TOKENIZER_FILE))
    print(f"tokenizer: {template.tokenizer.vocab_size} pieces", flush=True)

    started = _FIRST_STAGE.value is None
    facts_path = out / "warmstart.json"
    facts: dict[str, Any] = {} if _FIRST_STAGE.value is None else json.loads(facts_path.read_text())
    facts["config"] = json.loads(config.to_json())
    for number, (name, stage) in enumerate(stages.items()):
        started = started or name == _FIRST_STAGE.value
        if started:
            facts[name] = train_stage(config, name, stage, number, template, out)
    facts_path.write_text(json.dumps(facts, indent=1, sort_keys=True) + "\n")
    print(f"wrote {out}")


def train_stage(config, name: str, stage: dict, number: int, template: chat.ChatTemplate, out: pathlib.Path) -> dict:
    """Trains one stage from the weights stored in `out` (the first one from random) and stores its own there."""
    path = out / compose.POLICY_FILE
    shape = DecoderConfig(vocab_size=template.tokenizer.vocab_size, **config.policy.to_dict())
    # From the file, not from memory, so that a build that begins at this stage gives the same weights.
    params = load_params(path)[0] if number else None
    model, mesh = Decoder(shape), partitioning.make_mesh()
    optimizer = state_lib.make_optimizer(
        state_lib.OptimizerConfig(
            kind="muon",
            learning_rate=stage["learning_rate"],
            schedule="cosine",
            warmup_steps=config.warmup_steps,
            total_steps=stage["steps"],
            weight_decay=config.weight_decay,
        ),
        model,
    )
    state = state_lib.init_state(model, optimizer, mesh, seed=config.seed, params=params)
    step_fn = supervised.make_supervised_step(model, optimizer, mesh)
    print(f"stage {name}: {count_params(state.params) / 1e6:.2f} M parameters", flush=True)

    generator = Generator(config.seed + number, stage["mixture"], config.exemplar_share)
    data = batches(generator, template, config, partitioning.batch_shards(mesh))
    began, seen, losses, loss = time.time(), 0, [], float("nan")
    for step in range(1, stage["steps"] + 1):
        tokens, weights = next(data)
        state, metrics = step_fn(state, tokens, weights)
        seen += tokens.size
        losses.append(metrics["loss"])
        if step % config.log_steps == 0 or step == stage["steps"]:
            elapsed = time.time() - began
            loss = float(np.mean(jax.device_get(losses)))
            losses = []
            rate, left = seen / elapsed, elapsed / step * (stage["steps"] - step)
            print(
                f"{name} {step}/{stage['steps']}  loss {loss:.4f}  {rate:.0f} tokens/s  {left:.0f} s left", flush=True
            )
    save_params(path, jax.device_get(state.params), model.config, storage="float16")
    return {"final_loss": loss, "tokens": seen}


def run():
    flags.mark_flags_as_required(["config", "out"])
    app.run(main)


if __name__ == "__main__":
    run()

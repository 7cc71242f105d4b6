"""A small random policy, the embedded tokenizer and a real sandbox."""

import jax
import pytest

from spade_jax import compose
from spade_jax.policy import Decoder, DecoderConfig, init_params
from spade_jax.sampler import Engine
from spade_jax.sandbox import Limits, Pool
from spade_jax.tokens import chat
from spade_jax.tokens import tokenizer as tokenizer_lib

CONTEXT = 256


@pytest.fixture(scope="session")
def template():
    return chat.ChatTemplate(tokenizer_lib.SentencePieceTokenizer(compose.ASSETS / "tiny" / compose.TOKENIZER_FILE))


@pytest.fixture(scope="session")
def model(template):
    return Decoder(
        DecoderConfig(
            vocab_size=template.tokenizer.vocab_size,
            embed_dim=32,
            num_layers=2,
            num_heads=2,
            num_kv_heads=1,
            head_dim=16,
            mlp_dim=64,
        )
    )


@pytest.fixture(scope="session")
def params(model):
    return jax.jit(lambda key: init_params(model, key))(jax.random.key(0))


@pytest.fixture
def make_engine(model, params, template):
    def make(slots=4, block=4, run_seed=0):
        return Engine(
            model,
            params,
            slots=slots,
            context=CONTEXT,
            block=block,
            stop_token=template.tokenizer.end_id,
            run_seed=run_seed,
        )

    return make


@pytest.fixture
def pool():
    with Pool(Limits(call_seconds=2.0)) as pool:
        yield pool

"""Folders and GGUF files: what goes in comes out to the bit, and what does not fit is listed."""

from __future__ import annotations

import dataclasses
import json

import gguf
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from spade_jax.policy import Decoder, huggingface, init_params, safetensors
from spade_jax.policy.gguf_file import GGUFFile
from spade_jax.policy.importing import open_model
from spade_jax.policy.weights import exported, places
from tests.policy import golden


def folder_of(case, path, **options):
    stored = golden.load(case)
    golden.write_model(path, stored["settings"], stored["shapes"], **options)
    return stored


@pytest.mark.parametrize("case", golden.cases())
def test_config_there_and_back(case):
    settings = golden.load(case)["settings"]
    config = huggingface.from_huggingface(settings)
    again = huggingface.to_huggingface(config, context=64, dtype="float32")
    assert huggingface.from_huggingface(again) == config
    assert again["model_type"] == settings["model_type"]


@pytest.mark.parametrize("case", golden.cases())
def test_names_and_shapes_are_the_published_ones_and_the_decoder_s(case):
    stored = golden.load(case)
    config = huggingface.from_huggingface(stored["settings"])
    table = {name: place.stored for place in places(config).values() for name in place.names}
    published = {name: tuple(shape) for name, shape in stored["shapes"].items()}
    if config.tied_head:
        published.pop("lm_head.weight", None)
    assert table == published
    ours = {
        tuple(key.key for key in path): leaf.shape
        for path, leaf in jax.tree_util.tree_leaves_with_path(
            jax.eval_shape(lambda: init_params(Decoder(config), jax.random.key(0)))
        )
    }
    assert {path: place.shape for path, place in places(config).items()} == ours


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("max_bytes", [1 << 30, 5000], ids=["one file", "many files"])
def test_bit_equal_round_trip(tmp_path, dtype, max_bytes):
    stored = folder_of("qwen3_moe", tmp_path, dtype=dtype, max_bytes=max_bytes)
    assert (tmp_path / safetensors.INDEX).exists() == (max_bytes == 5000)
    params, config = open_model(tmp_path)
    (tmp_path / "out").mkdir()
    safetensors.write_folder(tmp_path / "out", dict(exported(params, config)), dtype, max_bytes)
    before, after = safetensors.SafetensorsFolder(tmp_path), safetensors.SafetensorsFolder(tmp_path / "out")
    assert before.shapes() == after.shapes() and before.shapes().keys() == stored["shapes"].keys()
    for name in before.shapes():
        assert before.read(name).tobytes() == after.read(name).tobytes(), name


def test_a_shard_is_the_slice_of_the_whole(tmp_path):
    folder_of("qwen3_moe", tmp_path)
    params, _ = open_model(tmp_path, "bfloat16")
    for parameter, index in (
        (params["layers"]["attention"]["q"], (slice(1, 3), slice(8, 24), slice(0, 2), slice(None))),
        (params["layers"]["mlp"]["gate"], (slice(0, 2), slice(4, 8), slice(16, 32))),
        (params["embedding"], (slice(24, 48),)),
    ):
        whole = np.asarray(parameter)
        assert whole.dtype == jnp.bfloat16 and whole.shape == parameter.shape
        np.testing.assert_array_equal(parameter[index], whole[index])


def rewrite(path, change):
    """Applies `change` to the folder's tensors."""
    folder = safetensors.SafetensorsFolder(path)
    tensors = {name: np.array(folder.read(name)) for name in folder.shapes()}
    change(tensors)
    safetensors.write_folder(path, tensors, "float32", 1 << 30)


def test_what_does_not_fit_is_listed(tmp_path):
    folder_of("smollm2", tmp_path)

    def change(tensors):
        del tensors["model.norm.weight"]
        tensors["model.layers.7.mlp.up_proj.weight"] = np.zeros((2, 2), np.float32)
        tensors["model.layers.0.mlp.up_proj.weight"] = np.zeros((40, 31), np.float32)

    rewrite(tmp_path, change)
    with pytest.raises(ValueError) as raised:
        open_model(tmp_path)
    for part in (
        "1 missing (model.norm.weight)",
        "1 left over (model.layers.7.mlp.up_proj.weight)",
        "1 of another shape (model.layers.0.mlp.up_proj.weight is (40, 31), not (40, 32))",
    ):
        assert part in str(raised.value)


def test_a_tied_head_that_is_stored_and_buffers_are_passed_over(tmp_path):
    folder_of("smollm2", tmp_path)
    rewrite(
        tmp_path,
        lambda tensors: tensors.update(
            {"lm_head.weight": tensors["model.embed_tokens.weight"], "model.layers.0.rotary_emb.inv_freq": np.ones(4)}
        ),
    )
    assert open_model(tmp_path)[1].tied_head


def test_the_text_half_of_gemma_3(tmp_path):
    stored = folder_of("gemma3", tmp_path)
    expected = jax.tree.map(lambda p: p[...], open_model(tmp_path)[0])
    text = {key: value for key, value in stored["settings"].items() if key != "model_type"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": text}))

    def change(tensors):
        for name in list(tensors):
            tensors[f"language_model.{name}"] = tensors.pop(name)
        tensors["vision_tower.patch.weight"] = np.zeros((3, 3), np.float32)

    rewrite(tmp_path, change)
    params, config = open_model(tmp_path)
    assert config == huggingface.from_huggingface(stored["settings"])
    jax.tree.map(np.testing.assert_array_equal, jax.tree.map(lambda p: p[...], params), expected)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "mamba"}, "model_type 'mamba' is not known; known are llama, mistral, qwen2, .*gemma3"),
        ({"hidden_act": "relu"}, "hidden_act 'relu' is not known; known are silu"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_scaling type 'longrope' is not known; known are default"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor=0.5 is not supported"),
        ({"num_key_value_heads": 3}, "num_kv_heads=3 does not divide num_heads=4"),
    ],
)
def test_configs_that_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        huggingface.from_huggingface(golden.load("smollm2")["settings"] | change)


def test_a_config_that_lacks_a_size():
    settings = golden.load("smollm2")["settings"]
    del settings["hidden_size"]
    with pytest.raises(ValueError, match="config.json of model_type llama lacks 'hidden_size'"):
        huggingface.from_huggingface(settings)


def test_a_shape_that_no_model_type_has():
    config = huggingface.from_huggingface(golden.load("qwen3_moe")["settings"] | {"norm_topk_prob": True})
    with pytest.raises(ValueError, match="no known model type has this policy's logit_softcap=5.0: qwen3_moe has 0.0"):
        huggingface.to_huggingface(dataclasses.replace(config, logit_softcap=5.0), context=64, dtype="float32")


def _cut(path):
    path.write_bytes(path.read_bytes()[:-100])


def _long_header(path):
    path.write_bytes((1 << 60).to_bytes(8, "little") + path.read_bytes()[8:])


def _no_json(path):
    path.write_bytes((20).to_bytes(8, "little") + b"x" * 40)


def _empty(path):
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [_cut, _long_header, _no_json, _empty])
def test_damaged_safetensors(tmp_path, damage):
    folder_of("smollm2", tmp_path)
    damage(tmp_path / safetensors.SINGLE)
    with pytest.raises(ValueError, match="is no safetensors file|lies outside the file"):
        open_model(tmp_path)


@pytest.mark.parametrize("name", ["../model.safetensors", "/etc/passwd", "gone.safetensors"])
def test_an_index_cannot_name_files_elsewhere(tmp_path, name):
    folder_of("smollm2", tmp_path)
    (tmp_path / safetensors.INDEX).write_text(json.dumps({"weight_map": {"model.norm.weight": name}}))
    with pytest.raises(ValueError, match="which is no file of"):
        open_model(tmp_path)


def test_folders_that_hold_no_model(tmp_path):
    with pytest.raises(ValueError, match="holds no config.json"):
        open_model(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ValueError, match="is no JSON object"):
        open_model(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="holds neither model.safetensors nor"):
        open_model(tmp_path)


# ---- GGUF ----

_ARCHITECTURES = {"smollm2": "llama", "qwen3_moe": "qwen3moe", "gemma3": "gemma3"}
_PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
}


def write_gguf(path, case, quantise):
    """The golden model as llama.cpp's converter would write it."""
    stored = golden.load(case)
    h, architecture = stored["settings"], _ARCHITECTURES[case]
    gemma = architecture.startswith("gemma")
    norms = {"post_attention_layernorm": "ffn_norm"}
    if gemma:
        norms = {"post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
                 "post_feedforward_layernorm": "post_ffw_norm"}  # fmt: skip
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(h["num_hidden_layers"])
    writer.add_embedding_length(h["hidden_size"])
    writer.add_feed_forward_length(h["intermediate_size"])
    writer.add_head_count(h["num_attention_heads"])
    writer.add_head_count_kv(h["num_key_value_heads"])
    writer.add_key_length(h["head_dim"])
    writer.add_layer_norm_rms_eps(h["rms_norm_eps"])
    writer.add_context_length(64)
    if "rope_theta" in h:
        writer.add_rope_freq_base(h["rope_theta"])
    if gemma:
        writer.add_sliding_window(h["sliding_window"])
    if case == "qwen3_moe":
        writer.add_expert_count(h["num_experts"])
        writer.add_expert_used_count(h["num_experts_per_tok"])
        writer.add_expert_feed_forward_length(h["moe_intermediate_size"])
    stacked = {}
    for name, shape in stored["shapes"].items():
        tensor = golden.weight(name, tuple(shape), gemma)
        whole = {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
                 "lm_head.weight": "output.weight"}  # fmt: skip
        if name in whole:
            theirs = whole[name]
        elif ".experts." in name:
            layer, expert, part = name.split(".")[2], int(name.split(".")[5]), name.split(".")[6]
            stacked.setdefault(f"blk.{layer}.{_PARTS[f'mlp.{part}']}_exps.weight", {})[expert] = tensor
            continue
        else:
            _, _, layer, *rest = name.split(".")
            theirs = f"blk.{layer}.{(_PARTS | norms)['.'.join(rest[:-1])]}.{rest[-1]}"
            if architecture == "llama" and rest[1] in ("q_proj", "k_proj"):
                heads = h["num_attention_heads" if rest[1] == "q_proj" else "num_key_value_heads"]
                tensor = tensor.reshape(heads, 2, -1, shape[1]).swapaxes(1, 2).reshape(shape)
        if gemma and "norm" in theirs:
            tensor = tensor + 1
        add(writer, theirs, tensor, quantise)
    for theirs, parts in stacked.items():
        add(writer, theirs, np.stack([parts[e] for e in range(len(parts))]), quantise)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add(writer, name, tensor, quantise):
    kind = quantise if tensor.ndim > 1 and tensor.shape[-1] % 32 == 0 else gguf.GGMLQuantizationType.F32
    writer.add_tensor(name, gguf.quantize(tensor, kind), raw_dtype=kind)


@pytest.mark.parametrize("case", _ARCHITECTURES)
def test_gguf_equals_the_folder(tmp_path, case):
    folder_of(case, tmp_path)
    write_gguf(tmp_path / "m.gguf", case, gguf.GGMLQuantizationType.F32)
    params, config = open_model(tmp_path / "m.gguf")
    expected, from_folder = open_model(tmp_path)
    if case != "gemma3":  # whose metadata do not tell everything that the golden config has another value for
        assert config == from_folder
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a[...], b[...], atol=1e-6 if case == "gemma3" else 0, rtol=0),
        params,
        expected,
    )


@pytest.mark.parametrize(
    ("kind", "error"), [("F16", 2e-3), ("BF16", 1e-2), ("Q8_0", 2e-2), ("Q4_0", 0.4), ("Q4_1", 0.3)]
)
def test_quantised_gguf_is_near(tmp_path, kind, error):
    write_gguf(tmp_path / "m.gguf", "smollm2", gguf.GGMLQuantizationType[kind])
    params, _ = open_model(tmp_path / "m.gguf")
    name = "model.embed_tokens.weight"
    difference = np.abs(params["embedding"][...] - golden.weight(name, (48, 32), False)).max()
    assert 0 < difference < error


def test_k_quants_by_hand(tmp_path):
    """One block of 256 values each. Q4_K: d q sc - dmin m; Q6_K: d sc (q - 32)."""
    half = lambda x: np.array([x], np.float16).tobytes()  # noqa: E731
    q4 = half(0.5) + half(0.25) + bytes([1] * 4 + [1] * 4 + [0x11] * 4) + bytes([0x32] * 128)
    q6 = bytes([0x21] * 128) + bytes(64) + bytes([3] * 16) + half(0.5)
    writer = gguf.GGUFWriter(tmp_path / "k.gguf", "llama")
    for name, data in (("Q4_K", q4), ("Q6_K", q6)):
        kind = gguf.GGMLQuantizationType[name]
        writer.add_tensor(f"blk.0.{name}.weight", np.frombuffer(data, np.uint8)[None], raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUFFile(tmp_path / "k.gguf")
    assert file.shapes() == {"blk.0.Q4_K.weight": (1, 256), "blk.0.Q6_K.weight": (1, 256)}
    q4_values = file.read("blk.0.Q4_K.weight").reshape(4, 2, 32)  # low halves of 32 bytes, then their high halves
    np.testing.assert_allclose(q4_values[:, 0], 0.5 * 2 - 0.25)
    np.testing.assert_allclose(q4_values[:, 1], 0.5 * 3 - 0.25)
    q6_values = file.read("blk.0.Q6_K.weight").reshape(2, 2, 64)
    np.testing.assert_allclose(q6_values[:, 0], 0.5 * 3 * (1 - 32))
    np.testing.assert_allclose(q6_values[:, 1], 0.5 * 3 * (2 - 32))


def test_gguf_files_that_are_refused(tmp_path):
    (tmp_path / "no.gguf").write_bytes(b"GGUX" + bytes(100))
    with pytest.raises(ValueError, match="is no GGUF file, or not a whole one"):
        open_model(tmp_path / "no.gguf")
    (tmp_path / "empty.gguf").touch()
    with pytest.raises(ValueError, match="is no GGUF file, or not a whole one"):
        open_model(tmp_path / "empty.gguf")
    write_gguf(tmp_path / "whole.gguf", "smollm2", gguf.GGMLQuantizationType.F32)
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "whole.gguf").read_bytes()[:-5000])
    with pytest.raises(ValueError, match="is no GGUF file, or not a whole one"):
        open_model(tmp_path / "cut.gguf")
    writer = gguf.GGUFWriter(tmp_path / "bert.gguf", "bert")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ValueError, match="architecture 'bert' is not known; known are llama, qwen2"):
        open_model(tmp_path / "bert.gguf")

"""Whole models from files: GGUF of every kind, Hugging Face directories, and what is refused with which words."""

import json
import shutil
import struct

import gguf
import pytest
import torch

from pagedlab.model.errors import ModelFileError
from pagedlab.model.load import load

IDS = torch.randint(0, 250, (40,), generator=torch.Generator().manual_seed(1))


def transformers_logits(model):
    with torch.no_grad():
        return model(IDS[None]).logits[0]


@pytest.fixture(scope="module")
def plain(tiny_llamas):
    """One model, its directory and its GGUF. Tests that damage files take a copy."""
    model = tiny_llamas.make(vocab_size=258)
    return model, tiny_llamas.directory(model), tiny_llamas.gguf(model)


@pytest.fixture
def directory(plain, tmp_path):
    return shutil.copytree(plain[1], tmp_path / "model")


def change_config(directory, **changes):
    path = directory / "config.json"
    raw = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in raw.items() if value != "dropped"}))


# GGUF


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"num_key_value_heads": 6},
        {"num_attention_heads": 8, "num_key_value_heads": 2},
        {"tie_word_embeddings": True},
        {"head_dim": 20},
    ],
)
def test_a_gguf_computes_what_it_was_written_from(tiny_llamas, changes):
    model = tiny_llamas.make(vocab_size=258, **changes)
    loaded = load(tiny_llamas.gguf(model))
    torch.testing.assert_close(loaded.model(IDS), transformers_logits(model), atol=2e-4, rtol=1e-4)
    assert loaded.config is loaded.model.config
    assert loaded.config.tie_word_embeddings == model.config.tie_word_embeddings


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q8_0", "Q4_1", "Q4_0"])
def test_a_quantized_gguf_computes_with_the_rounded_weights(tiny_llamas, kind):
    sizes = dict(hidden_size=64, intermediate_size=96, num_attention_heads=8, num_key_value_heads=2)
    model = tiny_llamas.make(vocab_size=258, initializer_range=0.1, **sizes)
    path, exact = tiny_llamas.gguf(model, kind), transformers_logits(model)
    quantized = gguf.GGMLQuantizationType[kind]
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                rounded = gguf.quants.dequantize(gguf.quants.quantize(parameter.numpy(), quantized), quantized)
                parameter.copy_(torch.from_numpy(rounded))
    ours, rounded = load(path).model(IDS), transformers_logits(model)
    torch.testing.assert_close(ours, rounded, atol=2e-4, rtol=1e-4)
    assert (ours - exact).abs().max() > 1e-4  # the rounding is there to be seen


def test_defaults_where_a_gguf_says_nothing(tiny_llamas):
    model = tiny_llamas.make(vocab_size=258, num_key_value_heads=6)
    silent = ["attention.head_count_kv", "attention.key_length", "attention.value_length", "rope.dimension_count"]
    path = tiny_llamas.gguf(model, drop=[f"llama.{name}" for name in silent])
    torch.testing.assert_close(load(path).model(IDS), transformers_logits(model), atol=2e-4, rtol=1e-4)


def test_llama_3_divisors_are_read_from_their_tensor(tiny_llamas):
    from pagedlab.model.hf_dir import llama3_divisors

    rope = dict(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0)
    parameters = {"rope_type": "llama3", "rope_theta": 10000.0, "original_max_position_embeddings": 32, **rope}
    model = tiny_llamas.make(vocab_size=258, head_dim=32, rope_parameters=parameters)
    divisors = llama3_divisors(10000.0, 32, trained_positions=32, **rope)
    assert divisors[0] == 1 and divisors[-1] == 8 and len({*divisors}) > 3  # kept, slowed, and between
    path = tiny_llamas.gguf(model, tensors={"rope_freqs.weight": torch.tensor(divisors)})
    torch.testing.assert_close(load(path).model(IDS), transformers_logits(model), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "options, message",
    [
        ({"fields": {"general.architecture": "qwen2"}}, "the architecture is 'qwen2'; expected 'llama'"),
        ({"drop": ["llama.block_count"]}, "llama.block_count is None; expected a number"),
        ({"drop": ["blk.1.ffn_up.weight"]}, r"no tensor 'blk.1.ffn_up.weight'; expected one of shape \(80, 48\)"),
        ({"drop": ["token_embd.weight"]}, "no tensor 'token_embd.weight'"),
        (
            {"tensors": {"blk.0.attn_v.weight": torch.zeros(48, 48)}},
            r"'blk.0.attn_v.weight' has shape \(48, 48\); expected \(16, 48\)",
        ),
        (
            {"tensors": {"blk.0.attn_q.bias": torch.zeros(48)}},
            r"1 tensors that .* \(blk.0.attn_q.bias\); expected none",
        ),
        ({"fields": {"llama.attention.head_count_kv": 4}}, "6 query heads cannot share 4 kv heads"),
        ({"fields": {"llama.attention.head_count": 0}}, "head_count is 0; expected at least 1"),
        ({"fields": {"llama.rope.dimension_count": 4}}, "rope.dimension_count is 4; expected head_dim, 8"),
        ({"fields": {"llama.expert_count": 8}}, "a mixture of 8 experts; expected a dense model"),
        ({"fields": {"llama.rope.scaling.type": "yarn"}}, "rope scaling 'yarn'; expected 'none', 'linear'"),
        ({"fields": {"llama.context_length": "long"}}, "llama.context_length is 'long'; expected a number"),
    ],
)
def test_a_gguf_that_cannot_be_run_says_why(tiny_llamas, plain, options, message):
    with pytest.raises(ModelFileError, match=message):
        load(tiny_llamas.gguf(plain[0], **options))


# Hugging Face directories


def test_shards_compute_what_one_file_computes(tiny_llamas, plain):
    model, whole, _ = plain
    sharded = tiny_llamas.directory(model, max_shard_size="60KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    assert torch.equal(load(sharded).model(IDS), load(whole).model(IDS))


def test_older_spellings_of_the_config(directory, plain):
    change_config(
        directory,
        rope_parameters="dropped",
        rope_theta=10000.0,
        rope_scaling={"type": "linear", "factor": 2.0},
        head_dim="dropped",
        eos_token_id=[5, 6],
    )
    loaded = load(directory)
    assert loaded.config.rope_divisors == (2.0,) * 4
    assert loaded.config.head_dim == 8 and loaded.config.eos_token_id == 5


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"model_type": "qwen2"}, "model_type is 'qwen2'; expected 'llama'"),
        ({"model_type": "dropped"}, "model_type is None; expected 'llama'"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; expected 'silu'"),
        ({"attention_bias": True}, "attention_bias is True; expected false"),
        ({"num_hidden_layers": "dropped"}, "num_hidden_layers is None; expected a number"),
        ({"num_hidden_layers": "2"}, "num_hidden_layers is '2'; expected a number"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0; expected at least 1"),
        ({"num_key_value_heads": 4}, "6 query heads cannot share 4 kv heads"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "rope type 'yarn'; expected 'default', 'lin"),
        ({"rope_parameters": {"rope_type": "llama3", "rope_theta": 1e4}}, "rope type 'llama3' without 'factor'"),
        ({"rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.5}}, "partial_rotary_factor is 0.5"),
        ({"num_hidden_layers": 3}, r"no tensor 'model.layers.2.input_layernorm.weight'; expected one of shape"),
        ({"num_hidden_layers": 1}, "9 tensors that a plain Llama has no use for .*layers.1.*; expected none"),
        ({"vocab_size": 300}, r"'model.embed_tokens.weight' has shape \(258, 48\); expected \(300, 48\)"),
        ({"tie_word_embeddings": True, "vocab_size": 257}, "258 tokens in the tokenizer, 257 in the model"),
    ],
)
def test_a_config_that_cannot_be_run_says_why(directory, changes, message):
    change_config(directory, **changes)
    with pytest.raises(ModelFileError, match=message):
        load(directory)


def test_tied_weights_stored_twice_are_accepted(directory):
    change_config(directory, tie_word_embeddings=True)
    assert load(directory).model(IDS).shape == (40, 258)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(directory, name):
    (directory / name).unlink()
    with pytest.raises(ModelFileError, match=f"{directory}.* (no|neither) {name}"):
        load(directory)


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json"])
@pytest.mark.parametrize("content", [b"{", b"[1]", b"\xff\xfe"])
def test_a_damaged_description_is_named(directory, name, content):
    (directory / name).write_bytes(content)
    with pytest.raises(ModelFileError, match=name):
        load(directory)


def test_pickles_are_never_opened(directory, tmp_path):
    """A pickle that would leave a trace if anything opened it."""

    class Trace:
        def __reduce__(self):
            return open, (str(tmp_path / "opened"), "w")

    (directory / "model.safetensors").unlink()
    torch.save(Trace(), directory / "pytorch_model.bin")
    with pytest.raises(ModelFileError, match="pickle, which can run any code.*Expected model.safetensors"):
        load(directory)
    with pytest.raises(ModelFileError, match="pickle, which can run any code.*gguf file or a Hugging Face directory"):
        load(directory / "pytorch_model.bin")
    assert not (tmp_path / "opened").exists()


@pytest.mark.parametrize("kept", [0, 5, 8, 200, 20_000, -1])
def test_cut_safetensors(directory, kept):
    path = directory / "model.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:kept])
    with pytest.raises(ModelFileError, match="model.safetensors") as refused:
        load(directory)
    if len(whole[:kept]) > 20_000:
        assert f"asks for {len(whole):,} bytes, but the file has {len(whole) - 1:,}" in str(refused.value)


def test_safetensors_of_another_type_of_number(directory):
    from safetensors.torch import load_file, save_file

    tensors = load_file(directory / "model.safetensors")
    name = "model.layers.0.mlp.up_proj.weight"
    tensors[name] = tensors[name].to(torch.int8)
    save_file(tensors, directory / "model.safetensors")
    with pytest.raises(ModelFileError, match=f"'{name}' is torch.int8; expected float32, bfloat16 or float16"):
        load(directory)


@pytest.mark.parametrize("target", ["../outside.safetensors", "/etc/passwd", 5])
def test_an_index_stays_in_its_directory(directory, target):
    (directory / "model.safetensors").unlink()
    index = {"weight_map": {"model.embed_tokens.weight": target}}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match="expected files of the same directory"):
        load(directory)


def test_an_index_that_promises_too_much(tiny_llamas, plain):
    sharded = tiny_llamas.directory(plain[0], max_shard_size="60KB")
    path = sharded / "model.safetensors.index.json"
    index = json.loads(path.read_text())
    files = sorted(set(index["weight_map"].values()))
    name = "model.norm.weight"
    index["weight_map"][name] = next(file for file in files if file != index["weight_map"][name])
    path.write_text(json.dumps(index))
    with pytest.raises(ModelFileError, match=f"no tensor '{name}'"):
        load(sharded)
    path.write_text(json.dumps({"weight_map": dict.fromkeys(index["weight_map"], "gone.safetensors")}))
    with pytest.raises(ModelFileError, match="cannot read .*gone.safetensors"):
        load(sharded)
    path.write_text("{}")
    with pytest.raises(ModelFileError, match="has no weight_map"):
        load(sharded)


def test_neither_a_model_nor_a_directory(tmp_path):
    with pytest.raises(ModelFileError, match="cannot read .*nowhere.gguf"):
        load(tmp_path / "nowhere.gguf")
    (tmp_path / "text.gguf").write_text("hello, this is not a model")
    with pytest.raises(ModelFileError, match="begins with b'hell'; expected b'GGUF'"):
        load(tmp_path / "text.gguf")
    with pytest.raises(ValueError, match="dtype is torch.float64; expected"):
        load(tmp_path, dtype=torch.float64)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelFileError, match="no config.json"):
        load(tmp_path / "empty")


def test_a_safetensors_header_that_cannot_be_true(directory):
    path = directory / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 2**62) + b"{}")
    with pytest.raises(ModelFileError, match=f"asks for {2**62 + 8:,} bytes, but the file has 10"):
        load(directory)
    path.write_bytes(struct.pack("<Q", 2) + b"{]")
    with pytest.raises(ModelFileError, match="cannot read"):
        load(directory)

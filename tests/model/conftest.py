"""Oracles, made once per run: transformers' own Llama, and the same weights as a Hugging Face directory."""

import json

import pytest
import torch

from pagedlab.model.fetch import fetch


@pytest.fixture(scope="session")
def oracle():
    """transformers' model, read from the same GGUF by transformers' own reader."""
    import transformers

    path = fetch()
    model = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    # It is float32 now, but still marked as quantized, and so could not be saved.
    model.hf_quantizer = None
    del model.config.quantization_config
    return model.eval()


@pytest.fixture(scope="session")
def oracle_tokenizer():
    """transformers' tokenizer from the same GGUF. It leaves out the rule that `tokenizer.ggml.pre` names, "smollm":
    every digit is a word of its own."""
    import transformers

    path = fetch()
    return transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)


@pytest.fixture(scope="session")
def smollm_dir(oracle, oracle_tokenizer, tmp_path_factory):
    """A Hugging Face directory as a publisher would make it: shards, and a tokenizer.json that cuts digits apart."""
    directory = tmp_path_factory.mktemp("smollm") / "SmolLM2-135M"
    oracle.save_pretrained(directory, max_shard_size="200MB")
    oracle_tokenizer.save_pretrained(directory)
    path = directory / "tokenizer.json"
    described = json.loads(path.read_text(encoding="utf-8"))
    digits = {"type": "Digits", "individual_digits": True}
    described["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [digits, described["pre_tokenizer"]]}
    path.write_text(json.dumps(described), encoding="utf-8")
    return directory


@pytest.fixture(scope="session")
def smollm_from_dir(smollm_dir):
    from pagedlab.model.load import load

    return load(smollm_dir)


class TinyLlamas:
    """Random Llamas made by transformers, and the same weights in our own files."""

    def __init__(self, root):
        self.root, self.count = root, 0

    def make(self, seed=0, **changes):
        numbers = dict(
            vocab_size=300,
            hidden_size=48,
            intermediate_size=80,
            num_hidden_layers=2,
            num_attention_heads=6,
            num_key_value_heads=2,
            head_dim=8,
            max_position_embeddings=128,
            initializer_range=0.2,
            tie_word_embeddings=False,
        )
        import transformers

        torch.manual_seed(seed)
        config = transformers.LlamaConfig(**numbers | changes)
        model = transformers.LlamaForCausalLM(config).eval()
        with torch.no_grad():  # norms begin as ones, which would hide a norm that is never applied
            for name, parameter in model.named_parameters():
                if "norm" in name:
                    parameter.uniform_(0.5, 1.5)
        return model

    def directory(self, model, **save_options):
        self.count += 1
        path = self.root / f"tiny-{self.count}"
        model.save_pretrained(path, **save_options)
        byte_level_tokenizer().save(str(path / "tokenizer.json"))
        return path

    def gguf(self, model, kind="F32", drop=(), fields=None, tensors=None):
        """Write `model` as llama.cpp's converter does: its names, its order of rows, its kinds of numbers."""
        import gguf

        self.count += 1
        path, c = self.root / f"tiny-{self.count}.gguf", model.config
        writer = gguf.GGUFWriter(str(path), "llama")
        values = {
            "llama.block_count": c.num_hidden_layers,
            "llama.context_length": c.max_position_embeddings,
            "llama.embedding_length": c.hidden_size,
            "llama.feed_forward_length": c.intermediate_size,
            "llama.attention.head_count": c.num_attention_heads,
            "llama.attention.head_count_kv": c.num_key_value_heads,
            "llama.attention.key_length": c.head_dim,
            "llama.attention.value_length": c.head_dim,
            "llama.rope.dimension_count": c.head_dim,
        }
        for name, value in (values | (fields or {})).items():
            if name not in drop:
                (writer.add_string if isinstance(value, str) else writer.add_uint32)(name, value)
        writer.add_float32("llama.attention.layer_norm_rms_epsilon", c.rms_norm_eps)
        writer.add_float32("llama.rope.freq_base", c.rope_parameters["rope_theta"])
        tokenizer = json.loads(byte_level_tokenizer().to_str())
        tokens = sorted(tokenizer["model"]["vocab"], key=tokenizer["model"]["vocab"].get)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("gpt-2")
        writer.add_token_list(tokens)
        writer.add_token_types([1] * len(tokens))
        writer.add_token_merges([" ".join(merge) for merge in tokenizer["model"]["merges"]])

        quantized = gguf.GGMLQuantizationType[kind]
        heads = {"q_proj": c.num_attention_heads, "k_proj": c.num_key_value_heads}
        weights = {} if c.tie_word_embeddings else {"output.weight": model.lm_head.weight}
        weights["token_embd.weight"] = model.model.embed_tokens.weight
        weights["output_norm.weight"] = model.model.norm.weight
        for index, layer in enumerate(model.model.layers):
            named = {
                "attn_norm": layer.input_layernorm,
                "attn_q": layer.self_attn.q_proj,
                "attn_k": layer.self_attn.k_proj,
                "attn_v": layer.self_attn.v_proj,
                "attn_output": layer.self_attn.o_proj,
                "ffn_norm": layer.post_attention_layernorm,
                "ffn_gate": layer.mlp.gate_proj,
                "ffn_up": layer.mlp.up_proj,
                "ffn_down": layer.mlp.down_proj,
            }
            for name, module in named.items():
                weight = module.weight
                if name in ("attn_q", "attn_k"):  # pairs (i, i + half) become neighbours
                    weight = weight.view(heads[f"{name[-1]}_proj"], 2, c.head_dim // 2, -1)
                    weight = weight.transpose(1, 2).reshape(module.weight.shape)
                weights[f"blk.{index}.{name}.weight"] = weight
        for name, weight in (weights | (tensors or {})).items():
            if name in drop:
                continue
            array = weight.detach().numpy()
            plain = array.ndim == 1 or kind == "F32"
            data = array if plain else gguf.quants.quantize(array, quantized)
            writer.add_tensor(name, data, raw_dtype=None if plain else quantized)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


@pytest.fixture(scope="session")
def tiny_llamas(tmp_path_factory):
    return TinyLlamas(tmp_path_factory.mktemp("tiny"))


def byte_level_tokenizer():
    """Every byte and two merges: enough to encode anything."""
    import tokenizers

    characters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: token_id for token_id, token in enumerate([*characters, "th", "the"])}
    model = tokenizers.models.BPE(vocabulary, [("t", "h"), ("th", "e")])
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    return tokenizer

"""A Llama out of a GGUF file: its numbers, and its tensors under their Hugging Face names."""

import torch

from pagedlab.model.config import ModelConfig
from pagedlab.model.errors import ModelFileError
from pagedlab.model.gguf_file import GGUFFile

_LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_OTHER_NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}


def read_config(file: GGUFFile) -> ModelConfig:
    """ModelFileError: not the `llama` architecture, a missing number, or a variant this decoder does not compute."""
    architecture = file.fields.get("general.architecture")
    if architecture != "llama":
        raise ModelFileError(
            f"{file.path.name}: the architecture is {architecture!r}; expected 'llama'. Use a Llama-family model."
        )

    def field(name, default=None):
        value = file.fields.get(f"llama.{name}", default)
        if isinstance(value, list) and value and len(set(value)) == 1:
            value = value[0]  # some files repeat one number for every layer
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ModelFileError(f"{file.path.name}: the field llama.{name} is {value!r}; expected a number")
        return value

    if field("expert_count", 0):
        raise ModelFileError(f"{file.path.name}: a mixture of {field('expert_count')} experts; expected a dense model")
    heads, hidden_size = field("attention.head_count"), field("embedding_length")
    if not isinstance(heads, int) or heads < 1:
        raise ModelFileError(f"{file.path.name}: llama.attention.head_count is {heads}; expected at least 1")
    head_dim = field("attention.key_length", hidden_size // heads)
    for name in ("attention.value_length", "rope.dimension_count"):
        if field(name, head_dim) != head_dim:
            raise ModelFileError(f"{file.path.name}: llama.{name} is {field(name)}; expected head_dim, {head_dim}")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFileError(f"{file.path.name} has no tensor 'token_embd.weight'; expected the embedding")
    try:
        return ModelConfig(
            vocab_size=embedding.shape[0],
            hidden_size=hidden_size,
            intermediate_size=field("feed_forward_length"),
            num_hidden_layers=field("block_count"),
            num_attention_heads=heads,
            num_key_value_heads=field("attention.head_count_kv", heads),
            head_dim=head_dim,
            max_position_embeddings=field("context_length"),
            rms_norm_eps=field("attention.layer_norm_rms_epsilon"),
            rope_theta=field("rope.freq_base", 10_000.0),
            tie_word_embeddings="output.weight" not in file.tensors,
            bos_token_id=file.fields.get("tokenizer.ggml.bos_token_id"),
            eos_token_id=file.fields.get("tokenizer.ggml.eos_token_id"),
            name=file.path.stem,
            rope_divisors=_rope_divisors(file, head_dim // 2),
        )
    except ValueError as error:
        raise ModelFileError(f"{file.path.name}: {error}") from error


def _rope_divisors(file: GGUFFile, num_pairs: int) -> tuple[float, ...] | None:
    """Llama 3's context extension is stored as a tensor of divisors; a linear one as a single factor."""
    if "rope_freqs.weight" in file.tensors:
        return tuple(file.tensor("rope_freqs.weight", (num_pairs,)).tolist())
    scaling = file.fields.get("llama.rope.scaling.type", "none")
    if scaling == "none":
        return None
    if scaling == "linear":
        return (float(file.fields.get("llama.rope.scaling.factor", 1.0)),) * num_pairs
    raise ModelFileError(
        f"{file.path.name}: rope scaling {scaling!r}; expected 'none', 'linear' or Llama 3's tensor of divisors"
    )


class GGUFWeights:
    """`weights(name, shape)` by Hugging Face name, cast to `dtype` on `device`."""

    def __init__(self, file: GGUFFile, config: ModelConfig, dtype: torch.dtype, device: str):
        self.file, self.config, self.dtype, self.device = file, config, dtype, device
        self._unused = set(file.tensors) - {"rope_freqs.weight"}

    def __call__(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        stored_name = _gguf_name(name)
        weight = self.file.tensor(stored_name, shape)
        self._unused.discard(stored_name)
        if stored_name.endswith(("attn_q.weight", "attn_k.weight")):
            weight = _split_halves(weight, self.config.head_dim)
        return weight.to(self.device, self.dtype)

    def check_all_used(self) -> None:
        """A tensor nobody asked for (a bias, say) means that the file describes another computation."""
        if self._unused:
            some = ", ".join(sorted(self._unused)[:3])
            raise ModelFileError(
                f"{self.file.path.name}: {len(self._unused)} tensors that a plain Llama has no use for ({some}); "
                "expected none"
            )


def _gguf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem.startswith("model.layers."):
        index, _, part = stem.removeprefix("model.layers.").partition(".")
        return f"blk.{index}.{_LAYER_NAMES[part]}.weight"
    return f"{_OTHER_NAMES[stem]}.weight"


def _split_halves(weight: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Reorder the rows of each head for half-split rotation.

    GGUF puts the two members of a rotary pair next to each other (rows 0, 1, then 2, 3, ...). The decoder rotates row i
    with row i + head_dim / 2, so the first members of all pairs go first. weight: `[heads * head_dim, hidden_size]`.
    """
    heads = weight.shape[0] // head_dim
    return weight.view(heads, head_dim // 2, 2, -1).transpose(1, 2).reshape(weight.shape)

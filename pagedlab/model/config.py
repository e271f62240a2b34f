"""The numbers that describe a Llama-family model, under the names Hugging Face's config.json uses.

`KNOWN_MODELS` holds the shapes of models the lessons calculate with. They need no weights and no torch.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelConfig:
    """ValueError when the numbers do not fit together."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    tie_word_embeddings: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    name: str = ""
    rope_divisors: tuple[float, ...] | None = None
    """What each rotary pair's frequency is divided by (Llama 3's long-context scaling); None means 1 for all."""

    def __post_init__(self):
        for field in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_hidden_layers",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
            "max_position_embeddings",
        ):
            value = getattr(self, field)
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"{field} must be a whole number of at least 1, not {value!r}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"{self.num_attention_heads} query heads cannot share {self.num_key_value_heads} kv heads equally"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even to be rotated in pairs, not {self.head_dim}")
        if self.rope_divisors is not None and len(self.rope_divisors) != self.head_dim // 2:
            raise ValueError(f"{len(self.rope_divisors)} rope divisors for {self.head_dim // 2} rotary pairs")


def _shape(name, layers, hidden, ffn, heads, kv_heads, head_dim, vocab, max_positions, **more):
    return ModelConfig(
        name=name,
        num_hidden_layers=layers,
        hidden_size=hidden,
        intermediate_size=ffn,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        vocab_size=vocab,
        max_position_embeddings=max_positions,
        **more,
    )


# Shapes only. OPT is not a Llama (it has LayerNorm and learned positions); its KV cache is counted the same way.
_SHAPES = [
    # Zhang et al., "OPT", table 1 (arXiv:2205.01068)
    _shape("OPT-13B", 40, 5120, 20480, 40, 40, 128, 50272, 2048, tie_word_embeddings=True),
    _shape("OPT-66B", 64, 9216, 36864, 72, 72, 128, 50272, 2048, tie_word_embeddings=True),
    _shape("OPT-175B", 96, 12288, 49152, 96, 96, 128, 50272, 2048, tie_word_embeddings=True),
    # Touvron et al., "LLaMA", table 2 (arXiv:2302.13971)
    _shape("LLaMA-13B", 40, 5120, 13824, 40, 40, 128, 32000, 2048, rms_norm_eps=1e-6),
    # Allal et al., "SmolLM2" (arXiv:2502.02737), and the model's own GGUF header
    _shape(
        "SmolLM2-135M",
        30,
        576,
        1536,
        9,
        3,
        64,
        49152,
        8192,
        rope_theta=100_000.0,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    ),
    # Grattafiori et al., "The Llama 3 Herd of Models", table 3 (arXiv:2407.21783)
    _shape("Llama-3.1-8B", 32, 4096, 14336, 32, 8, 128, 128256, 131072, rope_theta=500_000.0),
    _shape("Llama-3.1-70B", 80, 8192, 28672, 64, 8, 128, 128256, 131072, rope_theta=500_000.0),
    # "Qwen2.5 Technical Report", table 1 (arXiv:2412.15115), and config.json of Qwen/Qwen2.5-7B and -72B
    _shape("Qwen2.5-7B", 28, 3584, 18944, 28, 4, 128, 152064, 131072, rms_norm_eps=1e-6, rope_theta=1e6),
    _shape("Qwen2.5-72B", 80, 8192, 29568, 64, 8, 128, 152064, 131072, rms_norm_eps=1e-6, rope_theta=1e6),
    # Wang et al., "Qwen2-VL" (arXiv:2409.12191): the language part of the 7B model
    _shape("Qwen2-VL-7B", 28, 3584, 18944, 28, 4, 128, 152064, 32768, rms_norm_eps=1e-6, rope_theta=1e6),
]

KNOWN_MODELS: dict[str, ModelConfig] = {shape.name: shape for shape in _SHAPES}

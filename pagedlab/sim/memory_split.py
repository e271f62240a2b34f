"""What a GPU's memory is filled with while it serves a model: weights, KV cache, and the rest.

The weights stay the same and the rest is small: the KV cache decides how many requests run together. See Figure 1
and Table 1 of the vLLM paper (arXiv:2309.06180).
"""

from dataclasses import dataclass

from pagedlab.cache.accounting import kv_bytes_per_token, num_kv_slots
from pagedlab.model.config import KNOWN_MODELS, ModelConfig

GB = 10**9
GIB = 2**30


@dataclass(frozen=True)
class MemorySplit:
    """Bytes of one GPU's memory."""

    weights: int
    kv_cache: int
    other: int  # activations and whatever the runtime keeps
    bytes_per_token: int

    @property
    def num_slots(self) -> int:
        """Tokens that the KV cache can hold."""
        return num_kv_slots(self.kv_cache, self.bytes_per_token)

    def shares(self) -> dict[str, float]:
        """Weights, KV cache and other as fractions of the memory. They sum to 1."""
        total = self.weights + self.kv_cache + self.other
        return {"weights": self.weights / total, "KV cache": self.kv_cache / total, "other": self.other / total}


def num_parameters(config: ModelConfig, gated_mlp: bool = True) -> int:
    """The weights of a decoder, from its shape: embeddings, attention, MLP and norms.

    A Llama's MLP is gated and has three matrices; OPT's has two (`gated_mlp=False`). Biases and learned positions,
    where a family has them, are left out: they come to about one weight in a thousand.
    """
    hidden = config.hidden_size
    query_width = config.num_attention_heads * config.head_dim
    kv_width = config.num_key_value_heads * config.head_dim
    attention = 2 * hidden * query_width + 2 * hidden * kv_width  # q and output, k and v
    mlp = (3 if gated_mlp else 2) * hidden * config.intermediate_size
    norms = 2 * hidden
    embeddings = config.vocab_size * hidden * (1 if config.tie_word_embeddings else 2)
    return embeddings + config.num_hidden_layers * (attention + mlp + norms) + hidden  # and one last norm


def memory_split(
    config: ModelConfig, gpu_bytes: int, kv_bytes: int, bytes_per_element: int = 2, gated_mlp: bool = True
) -> MemorySplit:
    """Split `gpu_bytes` between the model's weights, `kv_bytes` of KV cache, and the rest."""
    weights = num_parameters(config, gated_mlp) * bytes_per_element
    other = gpu_bytes - weights - kv_bytes
    if kv_bytes < 0 or other < 0:
        raise ValueError(
            f"{weights / GB:.1f} GB of weights and {kv_bytes / GB:.1f} GB of KV cache do not go into "
            f"{gpu_bytes / GB:.1f} GB: kv_bytes must be from 0 to {max(0, gpu_bytes - weights):,}"
        )
    return MemorySplit(weights, kv_bytes, other, kv_bytes_per_token(config, bytes_per_element))


def opt_13b_on_40_gb() -> MemorySplit:
    """The paper's example, in float16: about 26 GB of weights and 12 GiB of KV cache, which is 15,728 slots."""
    return memory_split(KNOWN_MODELS["OPT-13B"], gpu_bytes=40 * GB, kv_bytes=12 * GIB, gated_mlp=False)

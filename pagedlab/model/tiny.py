"""A Llama small enough to make in a millisecond, with random weights: same code as the real one, nothing to fetch."""

import math

import torch

from pagedlab.model.config import ModelConfig
from pagedlab.model.llama import Llama


def tiny_llama(
    seed: int = 0,
    num_layers: int = 2,
    num_heads: int = 6,
    num_kv_heads: int = 2,
    head_dim: int = 8,
    vocab_size: int = 97,
    dtype: torch.dtype = torch.float32,
    fast: bool = False,
) -> Llama:
    """A model on the CPU. The same arguments give the same weights; torch's own random state is left alone.

    `fast=True` packs its matrices, which are too small to gain from it.
    """
    config = ModelConfig(
        vocab_size=vocab_size,
        hidden_size=num_heads * head_dim,
        intermediate_size=2 * num_heads * head_dim,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        num_key_value_heads=num_kv_heads,
        head_dim=head_dim,
        max_position_embeddings=4096,
        name=f"tiny-{num_layers}x{num_heads}",
    )
    generator = torch.Generator().manual_seed(seed)

    def weights(name: str, shape: tuple[int, ...]) -> torch.Tensor:
        if len(shape) == 1:  # a norm
            return torch.ones(shape, dtype=dtype)
        # The embedding keeps unit variance; a matrix is scaled so that its outputs are about as large as its inputs.
        scale = 1.0 if name == "model.embed_tokens.weight" else 1 / math.sqrt(shape[1])
        return (scale * torch.randn(shape, generator=generator)).to(dtype)

    return Llama(config, weights, fast)

"""What the model asks of a KV cache, and the two smallest things that satisfy it.

A cache holds one sequence. The model calls it once per layer, first layer first, with the keys and values of this
step's new tokens, and gets back the keys and values of all tokens so far.
"""

from collections.abc import Callable
from typing import Protocol, runtime_checkable

import torch

from pagedlab.attention import attention

KeysAndValues = tuple[torch.Tensor, torch.Tensor]
OneQueryAttend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@runtime_checkable
class KVCache(Protocol):
    """One sequence's keys and values, per layer.

    A cache that does not keep its tokens contiguous has no `[.., num_tokens, ..]` tensor to give back. It offers

        attend(layer, q, keys, values) -> [num_heads, num_new, head_dim]

    as well, which stores the new keys and values and attends over everything stored. Where there is an `attend`, the
    model uses it and never calls `append`. A cache that says for how many layers it was made (`num_layers`) is refused
    by a model with another number.
    """

    num_tokens: int
    """Positions stored so far. The model reads it once per call, before the first layer."""

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> KeysAndValues:
        """Store `[num_kv_heads, num_new, head_dim]` for `layer`; return all of that layer's keys and values,
        `[num_kv_heads, num_tokens, head_dim]` each."""
        ...


class NoCache:
    """Remembers nothing: every call must be given the whole sequence again. What lesson 01 starts from."""

    num_tokens = 0

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> KeysAndValues:
        return keys, values


class Contiguous:
    """Runs an `append` cache, with your own attention for the decode steps.

    `attend(q, keys, values)` is the one-query function of `pagedlab.attention`: `[num_heads, head_dim]` against
    `[num_kv_heads, num_tokens, head_dim]`. It is used whenever exactly one token is new; a longer prompt, or no
    `attend` at all, goes through `pagedlab.attention.attention`.
    """

    def __init__(self, cache: KVCache, attend: OneQueryAttend | None = None):
        self.cache = cache
        self.attend_one = attend

    @property
    def num_tokens(self) -> int:
        return self.cache.num_tokens

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> KeysAndValues:
        return self.cache.append(layer, keys, values)

    def attend(self, layer: int, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Store the new keys and values, then attend. q: `[num_heads, num_new, head_dim]`; returns the same shape."""
        all_keys, all_values = self.append(layer, keys, values)
        if self.attend_one is None or q.shape[1] != 1:
            return attention(q, all_keys, all_values)
        out = self.attend_one(q[:, 0], all_keys, all_values)
        if out.shape != q[:, 0].shape:
            raise ValueError(
                f"attend returned {tuple(out.shape)}; one query of {tuple(q[:, 0].shape)} must keep its shape"
            )
        return out.unsqueeze(1)

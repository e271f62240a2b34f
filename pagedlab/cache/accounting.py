"""The arithmetic of a KV cache: how many bytes a token takes, how many blocks, and where reserved memory goes to waste.

Everything is counted in slots. One slot holds the key and value of one token in every layer, so a pool of
`num_slots` can hold `num_slots` tokens and no more. No tensors here: these are sums a reader can redo on paper.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


def blocks_needed(num_tokens: int, block_size: int) -> int:
    """How many blocks of `block_size` slots hold `num_tokens` tokens. The last block may be partly empty."""
    if num_tokens < 0:
        raise ValueError(f"num_tokens is {num_tokens}; a sequence cannot have fewer than 0 tokens")
    if block_size < 1:
        raise ValueError(f"block_size is {block_size}; a block has at least 1 slot")
    # Whole numbers throughout: a float quotient would round wrongly for very long sequences.
    return (num_tokens + block_size - 1) // block_size


def kv_bytes_per_token(config, bytes_per_element: int) -> int:
    """Bytes of cache one token takes: a key and a value, for every layer and every key/value head.

    `config` is a `pagedlab.model.config.ModelConfig`, or anything with its `num_hidden_layers`,
    `num_key_value_heads` and `head_dim`. Query heads do not count: queries are never stored.
    `bytes_per_element` is 2 for float16 and bfloat16, 4 for float32.
    """
    if bytes_per_element < 1:
        raise ValueError(f"bytes_per_element is {bytes_per_element}; use 2 for float16 or bfloat16, 4 for float32")
    keys_and_values = 2
    return keys_and_values * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * bytes_per_element


def num_kv_slots(kv_bytes: int, bytes_per_token: int) -> int:
    """How many whole tokens fit in `kv_bytes` of cache memory when each takes `bytes_per_token`.

    The vLLM paper's OPT-13B on a 40 GB GPU: 12 GiB at 819,200 bytes a token are 15,728 slots (Table 1).
    """
    if kv_bytes < 0:
        raise ValueError(f"kv_bytes is {kv_bytes}; there cannot be less than no memory")
    if bytes_per_token < 1:
        raise ValueError(f"bytes_per_token is {bytes_per_token}; a token takes at least 1 byte")
    return kv_bytes // bytes_per_token


@dataclass(frozen=True)
class LiveRequest:
    """One running request, in slots: what it stores, what it will store, what is set aside for it."""

    num_tokens: int  # stored now
    final_tokens: int  # stored when it finishes
    reserved_slots: int  # owned by this request, used or not

    def __post_init__(self):
        if not 0 <= self.num_tokens <= self.final_tokens <= self.reserved_slots:
            raise ValueError(
                f"a live request needs 0 <= num_tokens <= final_tokens <= reserved_slots, not "
                f"num_tokens={self.num_tokens}, final_tokens={self.final_tokens}, reserved_slots={self.reserved_slots}"
            )


class Shares(NamedTuple):
    """`Waste` as fractions of the pool. They sum to 1."""

    token_states: float
    reserved: float
    internal: float
    external: float


class Waste(NamedTuple):
    """Every slot of the pool in exactly one of four groups (the groups of Figure 2 of the vLLM paper)."""

    token_states: int  # hold a key and a value now: the only useful ones
    reserved: int  # will be used by the request that owns them, but later
    internal: int  # owned by a request that will never use them
    external: int  # owned by no request, and yet too few, or too scattered, for the next one

    def shares(self) -> Shares:
        """Each group as a fraction of the pool."""
        num_slots = sum(self)
        if num_slots == 0:
            raise ValueError("a pool of 0 slots has no shares")
        return Shares(*(count / num_slots for count in self))


def waste_breakdown(requests: Iterable[LiveRequest], num_slots: int) -> Waste:
    """Sort the `num_slots` of a pool into useful slots and the three kinds of waste.

    Source: the vLLM paper (arXiv:2309.06180), section 3.1 and Figure 2.
    """
    num_tokens = final_tokens = reserved_slots = 0
    for request in requests:
        num_tokens += request.num_tokens
        final_tokens += request.final_tokens
        reserved_slots += request.reserved_slots
    if reserved_slots > num_slots:
        raise ValueError(f"the requests own {reserved_slots} slots, but the pool has only {num_slots}")
    return Waste(
        token_states=num_tokens,
        reserved=final_tokens - num_tokens,
        internal=reserved_slots - final_tokens,
        external=num_slots - reserved_slots,
    )

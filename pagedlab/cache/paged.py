"""The paged cache: one pool of blocks for all sequences, and a sequence that finds its blocks through a table.

`PagedKVCache` is the memory, nothing else. Who owns which block is the allocator's business, and which token lies where
is the table's; `PagedSequence` brings the three together and is what the model runs on.

Layout, per layer: keys and values are `[num_blocks, num_kv_heads, block_size, head_dim]` each.
"""

import re
from collections.abc import Callable

import torch

from pagedlab.cache.accounting import kv_bytes_per_token
from pagedlab.cache.allocator import Allocator, whole_number
from pagedlab.cache.table import BlockTable, slot_mapping
from pagedlab.errors import PagedLabError
from pagedlab.kernels import ops


class PoolSizeError(PagedLabError):
    """The pool would hold not even one block, or more than there is memory for. The message has the sum."""


class PagedKVCache:
    """Keys and values of `num_blocks` blocks in every layer, reserved up front."""

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        num_kv_heads: int,
        block_size: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ):
        """PoolSizeError: there is no memory for so many blocks."""
        sizes = dict(
            num_layers=num_layers,
            num_blocks=num_blocks,
            num_kv_heads=num_kv_heads,
            block_size=block_size,
            head_dim=head_dim,
        )
        sizes = {name: whole_number(name, size, at_least=1) for name, size in sizes.items()}
        self.num_layers, self.num_blocks, self.num_kv_heads, self.block_size, self.head_dim = sizes.values()
        if dtype not in ops.TYPES:
            raise TypeError(f"dtype is {dtype!r}; expected {', '.join(map(str, ops.TYPES))}")
        self.dtype = dtype
        self.device = torch.empty(0, device=device).device  # a device that is not there is told here, in torch's words
        shape = (self.num_layers, 2, self.num_blocks, self.num_kv_heads, self.block_size, self.head_dim)
        try:
            self._storage = torch.zeros(shape, dtype=dtype, device=self.device)
        except (RuntimeError, TypeError) as error:  # torch's words for out of memory, and for out of 64 bits
            raise PoolSizeError(
                f"no memory for {self.num_blocks:,} blocks of {self.bytes_per_block:,} bytes, "
                f"{self.num_blocks * self.bytes_per_block:,} in all ({self._sum_of_a_block()}). Ask for fewer blocks."
            ) from error

    @classmethod
    def from_bytes(
        cls,
        config,
        size: int | str,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ):
        """As many blocks as fit in `size`: "2 GiB", "512 MiB", or a number of bytes.

        config: a `pagedlab.model.config.ModelConfig`, or anything with its `num_hidden_layers`, `num_key_value_heads`
        and `head_dim`. PoolSizeError: not even one block fits, or there is no memory for so many.
        """
        asked = parse_bytes(size)
        block_size = whole_number("block_size", block_size, at_least=1)
        per_token = kv_bytes_per_token(config, dtype.itemsize)
        num_blocks = asked // (per_token * block_size)
        if num_blocks < 1:
            block = _sum_of_a_block(
                config.num_hidden_layers, config.num_key_value_heads, config.head_dim, block_size, dtype
            )
            raise PoolSizeError(
                f"{size} is {asked:,} bytes, but one block takes {per_token * block_size:,} ({block}). "
                f"Give the pool more memory, or make blocks smaller than {block_size} slots."
            )
        shape = config.num_hidden_layers, num_blocks, config.num_key_value_heads, block_size, config.head_dim
        return cls(*shape, dtype, device)

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one block, keys and values, in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_dim * self.block_size * self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes reserved for the whole pool, used or not."""
        return self._storage.nbytes

    def key_cache(self, layer: int) -> torch.Tensor:
        """A view of one layer's keys, `[num_blocks, num_kv_heads, block_size, head_dim]`."""
        return self._storage[self._checked(layer), 0]

    def value_cache(self, layer: int) -> torch.Tensor:
        """A view of one layer's values, `[num_blocks, num_kv_heads, block_size, head_dim]`."""
        return self._storage[self._checked(layer), 1]

    def copy_blocks(self, pairs) -> None:
        """Copy whole blocks in every layer: `pairs` of (source, destination), as in `ops.copy_blocks`."""
        pairs = list(pairs)
        for layer in range(self.num_layers):
            ops.copy_blocks(self.key_cache(layer), self.value_cache(layer), pairs)

    def copy_from(self, other: "PagedKVCache", pairs) -> None:
        """Copy whole blocks of another pool into this one in every layer: `pairs` of (source there, destination here).

        The pools may lie on different devices. ValueError: blocks of another shape, or a destination named twice;
        IndexError: no such block. Nothing was copied then.
        """
        pairs = list(pairs)
        mine, others = _block_shape(self), _block_shape(other)
        if mine != others:
            raise ValueError(f"blocks of {others} cannot be copied into blocks of {mine}")
        sources = other._known_blocks([source for source, _ in pairs])
        destinations = self._known_blocks([destination for _, destination in pairs])
        if len(set(destinations)) < len(destinations):
            raise ValueError(f"a destination is named twice in {destinations}. Nothing was copied.")
        if pairs:
            self._storage[:, :, destinations] = other._storage[:, :, sources].to(self.device)

    def poison(self, blocks) -> None:
        """Fill these blocks with NaN in every layer: whoever reads a slot before it is written will show it."""
        blocks = self._known_blocks(blocks)
        if blocks:
            self._storage[:, :, blocks] = torch.nan

    def _known_blocks(self, blocks) -> list[int]:
        blocks = [whole_number("a block id", block) for block in blocks]
        for block in blocks:
            if not 0 <= block < self.num_blocks:
                raise IndexError(f"there is no block {block}: the pool has blocks 0 to {self.num_blocks - 1}")
        return blocks

    def _checked(self, layer: int) -> int:
        if not 0 <= layer < self.num_layers:
            raise IndexError(f"layer {layer} does not exist: the pool has layers 0 to {self.num_layers - 1}")
        return layer

    def _sum_of_a_block(self) -> str:
        return _sum_of_a_block(self.num_layers, self.num_kv_heads, self.head_dim, self.block_size, self.dtype)


class PagedSequence:
    """One sequence in a pool: the `KVCache` that the model writes to and attends through.

    The parts that do the work can be replaced by your own:

    - `table`: a block table that is still empty (`pagedlab.cache.table.BlockTable`)
    - `slot_mapping(block_table, start, end, block_size)`: where tokens go (`pagedlab.cache.table`)
    - `write(keys, values, key_cache, value_cache, slot_mapping)`: store them (`ops.kv_write`)
    - `attend(q, key_cache, value_cache, block_tables, seq_lens)`: attention for decode steps (`ops.paged_decode`);
      prompts go through `ops.paged_prefill`
    - `gather(key_cache, value_cache, block_table, num_tokens)`: all of it, contiguous (`ops.gather_kv`); used by
      `append` alone, so only where somebody else attends (`pagedlab.cache.protocol.Contiguous`)

    A step goes through all layers in order. Layer 0 gives the new tokens their slots, so a pool that is too small is
    found out before anything is written, and `num_tokens` counts them once the last layer has attended. A step that was
    cut short is simply run again: layer 0 starts it over.
    """

    def __init__(
        self,
        pool: PagedKVCache,
        allocator: Allocator,
        table: BlockTable | None = None,
        slot_mapping: Callable = slot_mapping,
        write: Callable = ops.kv_write,
        attend: Callable = ops.paged_decode,
        gather: Callable = ops.gather_kv,
    ):
        table = BlockTable(pool.block_size) if table is None else table
        if getattr(table, "block_size", pool.block_size) != pool.block_size:
            raise ValueError(f"the table has blocks of {table.block_size} slots, the pool of {pool.block_size}")
        if table.num_tokens:
            raise ValueError(f"the table has {table.num_tokens} tokens, but a new sequence has none in the pool yet")
        if getattr(allocator, "num_blocks", pool.num_blocks) > pool.num_blocks:
            raise ValueError(f"the allocator has {allocator.num_blocks} blocks, the pool only {pool.num_blocks}")
        self.pool, self.allocator, self.table = pool, allocator, table
        self.num_layers = pool.num_layers  # so that a model with another number of layers is refused
        self._slot_mapping, self._write, self._attend, self._gather = slot_mapping, write, attend, gather
        self.num_tokens = 0
        """Tokens whose keys and values every layer holds."""
        self._next_layer = 0
        self._slots: list[int] = []  # where this step's tokens go, the same in every layer

    def attend(self, layer: int, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Store this step's tokens, then let them look at the sequence so far.

        q: `[num_heads, num_new, head_dim]`; keys, values: `[num_kv_heads, num_new, head_dim]`. Returns q's shape.
        """
        num_tokens = self._store(layer, keys, values)
        caches = self.pool.key_cache(layer), self.pool.value_cache(layer)
        tables = torch.tensor([self.table.blocks], dtype=torch.int32)
        seq_lens = torch.tensor([num_tokens], dtype=torch.int32)
        queries = q.transpose(0, 1)  # tokens first, as the operations take them
        if q.shape[1] == 1:
            out = self._attend(queries, *caches, tables, seq_lens)
        else:
            out = ops.paged_prefill(queries, *caches, tables, seq_lens, [0, q.shape[1]])
        if out.shape != queries.shape:
            raise ValueError(f"attend returned {tuple(out.shape)} for queries of {tuple(queries.shape)}")
        self._finish(layer, num_tokens)
        return out.transpose(0, 1)

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store this step's tokens and return all keys and values of the sequence, gathered from its blocks."""
        num_tokens = self._store(layer, keys, values)
        caches = self.pool.key_cache(layer), self.pool.value_cache(layer)
        gathered = self._gather(*caches, torch.tensor(self.table.blocks, dtype=torch.int32), num_tokens)
        self._finish(layer, num_tokens)
        return gathered

    def free(self) -> None:
        """Give all blocks back, also in the middle of a step. Doing it twice is harmless."""
        self.table.free(self.allocator)
        self.num_tokens = self._next_layer = 0
        self._slots = []

    def _store(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> int:
        """Write one layer's new tokens. Returns how many the sequence has with them."""
        num_new = keys.shape[1]
        if layer == 0:
            self._start_step(num_new)
        elif layer != self._next_layer or num_new != len(self._slots):
            raise ValueError(
                f"layer {layer} got {num_new} new tokens where layer {self._next_layer} was due with "
                f"{len(self._slots)}. A step gives the same tokens to layers 0 to {self.pool.num_layers - 1} in order."
            )
        new_keys, new_values = keys.transpose(0, 1), values.transpose(0, 1)
        caches = self.pool.key_cache(layer), self.pool.value_cache(layer)
        self._write(new_keys, new_values, *caches, list(self._slots))  # a copy: the next layer needs them too
        return self.num_tokens + num_new

    def _start_step(self, num_new: int) -> None:
        end = self.num_tokens + num_new
        if self.table.num_tokens > self.num_tokens:  # left over from a step that was cut short
            self.table.truncate(self.num_tokens, self.allocator)
        self._next_layer, self._slots = 0, []
        self.table.append_tokens(num_new, self.allocator)
        self._slots = list(self._slot_mapping(self.table.blocks, self.num_tokens, end, self.pool.block_size))
        if len(self._slots) != num_new:
            raise ValueError(f"slot_mapping gave {len(self._slots)} slots for {num_new} tokens")

    def _finish(self, layer: int, num_tokens: int) -> None:
        self._next_layer = layer + 1
        if self._next_layer == self.pool.num_layers:
            self._next_layer, self.num_tokens = 0, num_tokens


def _block_shape(pool: PagedKVCache) -> str:
    layers, heads = f"{pool.num_layers} layers", f"{pool.num_kv_heads} kv heads"
    return f"{layers} x {heads} x {pool.block_size} slots x {pool.head_dim} {pool.dtype}"


def parse_bytes(size: int | str) -> int:
    """A number of bytes from "2 GiB", "1.5 MiB", "500 MB", "4096" or 4096. KiB is 1024 bytes, KB is 1000."""
    if not isinstance(size, str):
        return whole_number("a size in bytes", size, at_least=0)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(?:([KMGT]?)(I?)B)?\s*", size.upper())
    if match is None or (match[3] and not match[2]):
        raise ValueError(f'{size!r} is not a size: write "2 GiB", "512 MiB", "500 MB" or a number of bytes')
    unit = (1024 if match[3] else 1000) ** " KMGT".index(match[2] or " ")
    return int(float(match[1]) * unit) if "." in match[1] else int(match[1]) * unit


def _sum_of_a_block(num_layers: int, num_kv_heads: int, head_dim: int, block_size: int, dtype: torch.dtype) -> str:
    return (
        f"2 for key and value x {num_layers} layers x {num_kv_heads} kv heads x {head_dim} head_dim x "
        f"{block_size} slots x {dtype.itemsize} bytes"
    )

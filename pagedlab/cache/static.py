"""The static cache: room for `max_len` tokens is reserved for every row of the batch before the first token comes.

This is how caches were kept before paging. Writing is cheap (nothing is ever moved) and reading is a plain slice.
The price is memory: a row that ends after 50 tokens holds on to `max_len` slots all the same.
"""

import math

import torch

from pagedlab.cache.allocator import whole_number
from pagedlab.errors import PagedLabError


class CacheFullError(PagedLabError):
    """A row has no room for the tokens of this step. Nothing was stored."""

    def __init__(self, row: int, stored: int, asked: int, max_len: int):
        super().__init__(row, stored, asked, max_len)
        self.row, self.stored, self.asked, self.max_len = row, stored, asked, max_len

    def __str__(self):
        return (
            f"row {self.row} holds {self.stored} of at most {self.max_len} tokens: there is room for "
            f"{self.max_len - self.stored} more, not {self.asked}. Nothing was stored. Make the cache with max_len >= "
            f"{self.stored + self.asked}, or call free({self.row}) to start the row over."
        )


class CacheSizeError(PagedLabError):
    """There is no memory for a cache of this size."""


class StaticCache:
    """Keys and values for `batch_size` sequences of at most `max_len` tokens each.

    `keys[layer]` and `values[layer]` are `[batch_size, num_kv_heads, max_len, head_dim]`.

    One step of a model appends the same number of tokens to every layer in turn, from layer 0 to the last. Layer 0
    decides whether they fit, so a full row is refused before any layer is written, and `num_tokens` counts the new
    tokens once the last layer has them.
    """

    def __init__(
        self,
        num_layers: int,
        batch_size: int,
        num_kv_heads: int,
        max_len: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
    ):
        shape = (num_layers, batch_size, num_kv_heads, max_len, head_dim)
        names = ("num_layers", "batch_size", "num_kv_heads", "max_len", "head_dim")
        shape = tuple(whole_number(name, size, at_least=1) for name, size in zip(names, shape, strict=True))
        self.num_layers, self.batch_size, self.num_kv_heads, self.max_len, self.head_dim = shape
        if not isinstance(dtype, torch.dtype):
            raise TypeError(f"dtype is {dtype!r}; expected torch.float32 or another of torch's types")
        self.dtype = dtype
        try:
            self.keys = torch.zeros(shape, dtype=dtype)
            self.values = torch.zeros(shape, dtype=dtype)
        except (RuntimeError, TypeError) as error:  # torch's words for out of memory, and for out of 64 bits
            num_bytes = 2 * math.prod(shape) * dtype.itemsize
            raise CacheSizeError(
                f"no memory for {self.batch_size:,} rows of {self.max_len:,} tokens, {num_bytes:,} bytes in all "
                f"(2 for key and value x {self.num_layers} layers x {self.batch_size} rows x {self.num_kv_heads} kv "
                f"heads x {self.max_len} max_len x {self.head_dim} head_dim x {dtype.itemsize} bytes). "
                f"Make max_len or batch_size smaller."
            ) from error
        self._stored = [0] * self.batch_size  # tokens that every layer of the row holds
        self._next_layer = [0] * self.batch_size  # 0 between steps
        self._step_tokens = [0] * self.batch_size  # how many tokens layer 0 took in this step

    @property
    def nbytes(self) -> int:
        """Bytes reserved for keys and values, used or not."""
        return self.keys.nbytes + self.values.nbytes

    def num_tokens(self, row: int) -> int:
        """Tokens of this row that every layer holds."""
        self._check_row(row)
        return self._stored[row]

    def append(
        self, layer: int, row: int, keys: torch.Tensor, values: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store this step's `keys` and `values` `[num_kv_heads, num_new, head_dim]` for one layer of one row.

        Returns all keys and values of the row so far, `[num_kv_heads, num_tokens, head_dim]`: views of the reserved
        memory, no copies. A step that fails a check changes nothing; `CacheFullError` says that the row is full.
        """
        self._check_row(row)
        self._check_tensors(keys, values)
        start, num_new = self._stored[row], keys.shape[1]
        end = start + num_new
        self._check_turn(layer, row, num_new)
        if end > self.max_len:
            raise CacheFullError(row, stored=start, asked=num_new, max_len=self.max_len)

        # Detached: with gradients on, the whole history of the step would stay alive behind the cache.
        self.keys[layer, row, :, start:end] = keys.detach()
        self.values[layer, row, :, start:end] = values.detach()

        self._step_tokens[row] = num_new
        self._next_layer[row] = (layer + 1) % self.num_layers
        if self._next_layer[row] == 0:  # that was the last layer: the step is complete
            self._stored[row] = end
        return self.keys[layer, row, :, :end], self.values[layer, row, :, :end]

    def row(self, row: int) -> "StaticRow":
        """One row as the cache of one sequence, ready for the model."""
        self._check_row(row)
        return StaticRow(self, row)

    def free(self, row: int) -> None:
        """Forget the row, also in the middle of a step. Its slots stay reserved; the next token goes to slot 0."""
        self._check_row(row)
        self._stored[row] = self._next_layer[row] = self._step_tokens[row] = 0

    def _check_row(self, row: int) -> None:
        if not 0 <= row < self.batch_size:
            raise IndexError(f"row {row} does not exist: the cache has rows 0 to {self.batch_size - 1}")

    def _check_turn(self, layer: int, row: int, num_new: int) -> None:
        if not 0 <= layer < self.num_layers:
            raise IndexError(f"layer {layer} does not exist: the cache has layers 0 to {self.num_layers - 1}")
        if layer != self._next_layer[row]:
            raise ValueError(
                f"row {row}: layer {layer} came where layer {self._next_layer[row]} was due. A step appends to layers "
                f"0 to {self.num_layers - 1} in order; free({row}) abandons a step that was cut short."
            )
        if layer > 0 and num_new != self._step_tokens[row]:
            raise ValueError(
                f"row {row}: layer {layer} got {num_new} new tokens, but layer 0 got {self._step_tokens[row]} "
                f"in the same step"
            )

    def _check_tensors(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        for name, tensor in (("keys", keys), ("values", values)):
            expected = (self.num_kv_heads, keys.shape[1] if keys.dim() == 3 else "num_new", self.head_dim)
            if tuple(tensor.shape) != expected:
                raise ValueError(
                    f"{name} have shape {tuple(tensor.shape)}, expected [num_kv_heads, num_new, head_dim] = "
                    f"[{', '.join(map(str, expected))}]"
                )
            if tensor.dtype != self.dtype:
                raise ValueError(f"{name} are {tensor.dtype}, but the cache was made with dtype={self.dtype}")


class StaticRow:
    """One row of a `StaticCache`, with the two members of a `KVCache` that the model uses."""

    def __init__(self, cache: StaticCache, row: int):
        self._cache, self._row = cache, row

    @property
    def num_tokens(self) -> int:
        return self._cache.num_tokens(self._row)

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._cache.append(layer, self._row, keys, values)

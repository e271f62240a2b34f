"""The model runner: one step's tokens of all requests, through the model in one go.

The tokens of a step are packed one request after the other, without padding: a prompt chunk of 40 tokens and 31 decode
tokens are 71 rows. Only attention must know where one request ends. So the batch is described once a step (positions,
slots, block tables, lengths) and every layer uses the same description.

Within a layer, the keys and values of the whole batch are written before anyone attends. Requests that share blocks may
therefore sit in one batch, in any order.
"""

import copy
from collections.abc import Callable, Sequence

import numpy as np
import torch

from pagedlab.cache.paged import PagedKVCache
from pagedlab.engine.graphs import GraphReplay
from pagedlab.engine.replay import Replay
from pagedlab.engine.request import Request
from pagedlab.kernels import ops
from pagedlab.model.llama import Llama

Scheduled = Sequence[tuple[Request, int]]
"""What a scheduler decided: each request with the number of tokens it computes in this step."""


class ModelRunner:
    """Runs steps of `model` on the blocks of `pool`.

    backend: as in `pagedlab.kernels.ops`. swap_space: the blocks on the CPU, if the scheduler swaps.
    """

    def __init__(self, model: Llama, pool: PagedKVCache, backend: str = "auto", swap_space=None):
        if pool.num_layers != len(model.layers):
            raise ValueError(f"the model has {len(model.layers)} layers, the pool {pool.num_layers}")
        if pool.dtype != model.dtype:
            raise TypeError(f"the model computes in {model.dtype}, the pool holds {pool.dtype}")
        if pool.device != model.device:
            raise ValueError(f"the model is on {model.device}, the pool on {pool.device}")
        heads, dim = model.config.num_key_value_heads, model.config.head_dim
        if (pool.num_kv_heads, pool.head_dim) != (heads, dim):
            raise ValueError(
                f"the model has {heads} kv heads of {dim}, the pool {pool.num_kv_heads} of {pool.head_dim}"
            )
        self.model, self.pool, self.swap_space = model, pool, swap_space
        self.backend = backend
        self._caches = [(pool.key_cache(layer), pool.value_cache(layer)) for layer in range(pool.num_layers)]
        self._kernels = ops.resolve(backend, self._caches[0][0])
        self._scale = model.config.head_dim**-0.5
        self._replay = (GraphReplay if model.device.type == "cuda" else Replay)(model, pool, self._kernels)

    def move(self, output) -> None:
        """The memory moves of a `SchedulerOutput`, in the only safe order: out, in, copies.

        A block that is swapped out may be handed to somebody else in the same step, so its content leaves first.
        """
        if output.swap_out:
            self.swap_space.swap_out(output.swap_out)
        if output.swap_in:
            self.swap_space.swap_in(output.swap_in)
        if output.blocks_to_copy:
            self.pool.copy_blocks(output.blocks_to_copy)

    @torch.no_grad()
    def execute(
        self, scheduled: Scheduled, before_layer: Callable[[], None] = lambda: None
    ) -> tuple[torch.Tensor, list[Request]]:
        """Run the scheduled tokens. Returns logits, `[num_sampling, vocab_size]`, and the request of each row.

        Only a request whose last token is among the scheduled ones has a row. Request state is read, never changed;
        the same call again does the same. `before_layer` is called between layers and may raise to stop.
        """
        batch = Batch(scheduled, self.pool)
        if not batch.requests:
            return torch.empty(0, self.model.config.vocab_size, dtype=self.model.dtype, device=self.model.device), []
        hidden = self.forward(batch, before_layer)
        if len(batch.sampling) < len(hidden):
            hidden = hidden[batch.last_rows.to(hidden.device)]
        return self.model.logits(hidden), batch.sampling

    def forward(self, batch: "Batch", before_layer: Callable[[], None]) -> torch.Tensor:
        """The batch through all layers: hidden states, `[num_tokens, hidden_size]`, which the next call overwrites."""
        hidden = self._replay.forward(batch, before_layer)
        if hidden is not None:
            return hidden
        batch = batch.on(self.pool.device)

        def attend(layer: int, q: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
            before_layer()
            return self._attend(batch, layer, q, keys, values)

        return self.model.forward_tokens(batch.token_ids, batch.positions, attend)

    def _attend(self, batch: "Batch", layer: int, q, keys, values) -> torch.Tensor:
        """q: `[num_heads, num_tokens, head_dim]`, keys and values `[num_kv_heads, ...]`. Returns q's shape."""
        caches = self._caches[layer]
        q, keys, values = q.transpose(0, 1), keys.transpose(0, 1), values.transpose(0, 1)  # tokens first
        if layer == 0:  # every layer gets the same tables, lengths and slots: checking them once is enough
            kernels, options = ops, {"backend": self.backend}
        else:
            kernels, options = self._kernels, {}
        kernels.kv_write(keys, values, *caches, batch.slot_mapping, **options)

        num_decode, out = batch.num_decode, []
        if num_decode:
            out.append(kernels.paged_decode(q[:num_decode], *caches, *batch.decode, self._scale, **options))
        if num_decode < len(batch.requests):
            out.append(kernels.paged_prefill(q[num_decode:], *caches, *batch.prefill, self._scale, **options))
        return (out[0] if len(out) == 1 else torch.cat(out)).transpose(0, 1)


class Batch:
    """One step, described by integer tensors. Requests with a single token come first ("decode"), then the others.

    token_ids, positions, slot_mapping: `[num_tokens]`; seq_lens: `[num_seqs]`; query_start_loc: `[num_seqs + 1]`;
    block_tables: `[num_seqs, max_blocks]`, -1 behind the end; last_rows: the rows whose logits are wanted, and
    `sampling` their requests. `decode` and `prefill`: what `paged_decode` and `paged_prefill` need of it.

    It is made on the CPU, where the numbers are; `on` puts it where the model is.
    """

    def __init__(self, scheduled: Scheduled, pool: PagedKVCache):
        scheduled = sorted(scheduled, key=lambda pair: pair[1] > 1)  # a stable sort: both kinds keep their order
        self.requests = [request for request, _ in scheduled]
        self.num_decode = sum(num_new == 1 for _, num_new in scheduled)

        num_new = np.array([num_new for _, num_new in scheduled], dtype=np.int64)
        num_stored = np.array([request.num_computed_tokens for request in self.requests], dtype=np.int64)
        starts = np.concatenate([[0], num_new.cumsum()])
        row = np.repeat(np.arange(len(scheduled)), num_new)  # the request of each token
        positions = np.arange(starts[-1]) + (num_stored - starts[:-1])[row]
        tables = _padded_tables(self.requests, num_stored + num_new, pool.block_size)
        slots = tables[row, positions // pool.block_size] * pool.block_size + positions % pool.block_size

        token_ids: list[int] = []
        last_rows, self.sampling = [], []
        for request, start, end in zip(
            self.requests, num_stored.tolist(), (num_stored + num_new).tolist(), strict=True
        ):
            token_ids += request.tokens(start, end)
            if end == request.num_tokens:
                last_rows.append(len(token_ids) - 1)
                self.sampling.append(request)
        self.last_rows = torch.tensor(last_rows, dtype=torch.int64)

        arrays = np.array(token_ids, dtype=np.int64), positions, slots, tables, num_stored + num_new, starts
        self._set(*map(torch.from_numpy, arrays))

    def on(self, device: torch.device) -> "Batch":
        """The same with its tensors on `device`."""
        if device.type == "cpu":
            return self
        moved = copy.copy(self)
        moved._set(*(tensor.to(device) for tensor in self._tensors))
        return moved

    def _set(self, *tensors: torch.Tensor) -> None:
        self._tensors = tensors
        self.token_ids, self.positions, self.slot_mapping, *described = tensors
        self.block_tables, self.seq_lens, self.query_start_loc = described
        first = self.num_decode  # of the requests that are not decoding; each one before them has one row
        self.decode = self.block_tables[:first], self.seq_lens[:first]
        self.prefill = self.block_tables[first:], self.seq_lens[first:], self.query_start_loc[first:] - first


def _padded_tables(requests: Sequence[Request], seq_lens: np.ndarray, block_size: int) -> np.ndarray:
    blocks = [request.table.blocks for request in requests]
    for request, row, num_tokens in zip(requests, blocks, seq_lens.tolist(), strict=True):
        if len(row) * block_size < num_tokens:
            raise ValueError(
                f"request {request.request_id!r}: {num_tokens} tokens with this step's, but its table has "
                f"{len(row)} blocks of {block_size}. schedule() must grow the table by what it schedules."
            )
    tables = np.full((len(blocks), max(map(len, blocks), default=0)), -1, dtype=np.int64)
    for index, row in enumerate(blocks):
        tables[index, : len(row)] = row
    return tables

"""Decode steps that are recorded once and played again (`pagedlab.kernels.cpu_recording`); on a GPU see `graphs.py`.

When every request of a step has a single token, only numbers change from one step to the next: what the tokens are,
where they stand, which blocks hold what came before. These numbers have a fixed place for each number of requests,
beside tables wide enough for so many pieces of context. A step writes them there and plays what was recorded with them.

Nothing checks numbers while a recording plays, so it is done before. A batch that is not sound is not taken: it runs as
any other, and gets the error that says what is wrong.
"""

from collections.abc import Callable

import numpy as np
import torch

from pagedlab.cache.accounting import blocks_needed
from pagedlab.cache.paged import PagedKVCache
from pagedlab.kernels import ops
from pagedlab.model.llama import Llama

MOST_KEPT = 256
"""Recordings. Each takes about 100 KiB for the course's model."""


class Replay:
    """For a `Llama` and a pool whose tensors stay where they are.

    kernels: the module that the runner uses. Only the compiled one can be recorded; with others no batch is taken.
    """

    def __init__(self, model: Llama, pool: PagedKVCache, kernels):
        self._model, self._pool, self._kernels = model, pool, kernels
        self._steps: dict[tuple[int, int], Step] = {}
        self._works = type(model) is Llama and model.device.type == "cpu" and kernels.__name__ == ops.BACKENDS["cpu"]

    def forward(self, batch, before_layer: Callable[[], None]) -> torch.Tensor | None:
        """Hidden states after the last norm, `[num_tokens, hidden_size]`; the next call overwrites them.

        batch: a `pagedlab.engine.runner.Batch`. None: it is not one for us.
        """
        if not self._works or batch.num_decode < len(batch.requests) or not is_sound(batch, self._model, self._pool):
            return None
        num_pieces = -(-int(batch.seq_lens.numpy().max()) // self._kernels.PIECE_TOKENS)
        step = self._steps.get((batch.num_decode, num_pieces))
        if step is not None:
            step.set(self._model, batch)
            return step.recording.play(before_layer)
        return self._record(batch, num_pieces, before_layer)

    @torch.no_grad()
    def _record(self, batch, num_pieces: int, before_layer: Callable[[], None]) -> torch.Tensor | None:
        """This step as it would run anyway, with its numbers and results where they will be the next time."""
        from pagedlab.kernels import cpu_recording

        if not self._steps:
            self._workspace = cpu_recording.Workspace()
        model, pool, kernels, scale = self._model, self._pool, self._kernels, self._model.config.head_dim**-0.5
        width = blocks_needed(num_pieces * kernels.PIECE_TOKENS, pool.block_size)
        step = Step(model, batch.num_decode, width)
        step.set(model, batch)
        caches = [(pool.key_cache(layer), pool.value_cache(layer)) for layer in range(pool.num_layers)]

        def function(recording):
            def attend(layer, q, keys, values):
                recording.cut()
                before_layer()
                q, keys, values = q.transpose(0, 1), keys.transpose(0, 1), values.transpose(0, 1)
                kernels.kv_write(keys, values, *caches[layer], step.slots)
                return kernels.paged_decode(q, *caches[layer], step.tables, step.lens, scale).transpose(0, 1)

            return model.forward_embedded(step.hidden, step.cos, step.sin, attend)

        step.recording = cpu_recording.record(self._workspace, function)
        if step.recording is None:
            self._works = False
            return None
        if len(self._steps) == MOST_KEPT:
            self._steps.clear()
        self._steps[batch.num_decode, num_pieces] = step
        return step.recording.result


def is_sound(batch, model: Llama, pool: PagedKVCache) -> bool:
    """Whether all numbers are those of tokens, positions and blocks that there are, and no slot is there twice."""
    config, num_blocks, block_size = model.config, pool.num_blocks, pool.block_size
    ids, positions, slots = batch.token_ids.numpy(), batch.positions.numpy(), batch.slot_mapping.numpy()
    tables, lens = batch.block_tables.numpy(), batch.seq_lens.numpy()
    reached = np.arange(tables.shape[1]) * block_size < lens[:, None]
    return bool(
        0 <= ids.min()
        and ids.max() < config.vocab_size
        and 0 <= positions.min()
        and positions.max() < config.max_position_embeddings
        and lens.max() <= tables.shape[1] * block_size
        and (tables < num_blocks).all()
        and ((tables >= 0) | ~reached).all()
        and len(set(slots.tolist())) == len(slots)
    )


class Step:
    """The places of a decode step's numbers, and its recording."""

    def __init__(self, model: Llama, num_tokens: int, table_width: int):
        config = model.config
        self.hidden = torch.empty(num_tokens, config.hidden_size, dtype=model.dtype)
        self.cos, self.sin = torch.empty(2, num_tokens, config.head_dim // 2)
        self.slots, self.lens = torch.zeros(2, num_tokens, dtype=torch.int64)
        self.tables = torch.zeros(num_tokens, table_width, dtype=torch.int64)
        self.recording = None

    def set(self, model: Llama, batch) -> None:
        self.hidden.copy_(model.embed(batch.token_ids))
        cos, sin = model.rope.angles(batch.positions)
        self.cos.copy_(cos)
        self.sin.copy_(sin)
        self.slots.copy_(batch.slot_mapping)
        self.lens.copy_(batch.seq_lens)
        self.tables[:, : batch.block_tables.shape[1]] = batch.block_tables[:, : self.tables.shape[1]]

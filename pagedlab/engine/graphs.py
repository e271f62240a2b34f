"""Decode steps on a GPU as CUDA graphs: recorded once, and launched again as a whole.

A decode step is hundreds of kernels, most of which take a GPU less time than Python takes to launch them. A graph holds
them all, with their arguments, and one call launches it. Its arguments are addresses, so a step's numbers have a fixed
place: they are copied there, and the graph finds them.

A graph has one number of sequences and one width of tables. Not every size gets its own: a batch is padded to the next
one. A padding row writes nowhere (slot -1) and looks at nothing (length 0), and nobody reads its result.

`replay.py` is the same idea for the CPU.
"""

import warnings
from collections.abc import Callable

import torch

from pagedlab.cache.accounting import blocks_needed
from pagedlab.cache.paged import PagedKVCache
from pagedlab.engine.replay import is_sound
from pagedlab.kernels import ops
from pagedlab.model.llama import Llama

LARGEST = 256
"""Sequences. In larger batches the GPU has enough to do with each kernel."""

MOST_KEPT = 64
"""Graphs. They share one workspace, but each has its own list of kernels."""


def padded_size(num_seqs: int) -> int:
    """The size that a batch is padded to: 1, 2, 4, 8, 16, and from there multiples of 16."""
    return -(-num_seqs // 16) * 16 if num_seqs > 8 else 1 << (num_seqs - 1).bit_length()


def padded_tokens(num_tokens: int, smallest: int) -> int:
    """The context that tables are made wide enough for: `smallest` times a power of 2."""
    return smallest << (blocks_needed(num_tokens, smallest) - 1).bit_length()


class GraphReplay:
    """For a `Llama` and a pool on one GPU whose tensors stay where they are.

    kernels: the module that the runner uses. Only "triton" can be recorded: the others ask the GPU for numbers.
    """

    def __init__(self, model: Llama, pool: PagedKVCache, kernels):
        self._model, self._pool, self._kernels = model, pool, kernels
        self._steps: dict[tuple[int, int], PaddedStep] = {}
        self._streams: tuple[torch.cuda.Stream, torch.cuda.Stream] | None = None
        self._works = (
            type(model) is Llama
            and model.device.type == pool.device.type == "cuda"
            and kernels.__name__ == ops.BACKENDS["triton"]
            and not kernels.mode.is_interpreting()
        )

    def forward(self, batch, before_layer: Callable[[], None]) -> torch.Tensor | None:
        """Hidden states after the last norm, `[num_tokens, hidden_size]`; the next call overwrites them.

        batch: a `pagedlab.engine.runner.Batch`, still on the CPU. None: it is not one for us. `before_layer` is called
        once: between a graph's layers there is no Python.
        """
        num_seqs = len(batch.requests)
        if not self._works or batch.num_decode < num_seqs or num_seqs > LARGEST:
            return None
        if not is_sound(batch, self._model, self._pool):
            return None
        before_layer()
        capacity = batch.block_tables.shape[1] * self._pool.block_size
        size = padded_size(num_seqs), padded_tokens(capacity, self._kernels.TOKENS_PER_SPLIT)
        step = self._steps.get(size)
        if step is None:
            if len(self._steps) == MOST_KEPT:
                self._steps.clear()
            try:
                step = PaddedStep(self._model, self._pool, self._kernels, *size)
                step.set(batch)
                step.graph = self._record(step)
            except RuntimeError as error:  # torch's own errors, also for what cannot be recorded
                self._works = False
                warnings.warn(f"decode steps run without CUDA graphs, and slower: {error}", stacklevel=2)
                return None
            self._steps[size] = step
        else:
            step.set(batch)
        step.graph.replay()
        return step.hidden[:num_seqs]

    def _record(self, step: "PaddedStep") -> "torch.cuda.CUDAGraph":
        with torch.cuda.device(self._model.device):
            if not self._steps:  # none that share one
                self._workspace = torch.cuda.graph_pool_handle()
            if self._streams is None:  # for all recordings: cuBLAS keeps memory for every stream that it has seen
                self._streams = torch.cuda.Stream(), torch.cuda.Stream()
            aside, recorded = self._streams
            here = torch.cuda.current_stream()
            with torch.cuda.stream(here):  # and here again at the end: a recording that fails stays on its stream
                # First as any other step: kernels are compiled, and libraries make what they need, which no graph may
                # do. Aside, as CUDA wants it. The slots are written again with the same numbers by the graph.
                aside.wait_stream(here)
                with torch.cuda.stream(aside):
                    step.run()
                here.wait_stream(aside)
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, pool=self._workspace, stream=recorded):
                    step.run()
        return graph


class PaddedStep:
    """The places of a decode step's numbers, for up to `size` sequences of up to `num_tokens` tokens."""

    def __init__(self, model: Llama, pool: PagedKVCache, kernels, size: int, num_tokens: int):
        self._model, self._kernels, self._scale = model, kernels, model.config.head_dim**-0.5
        self._caches = [(pool.key_cache(layer), pool.value_cache(layer)) for layer in range(pool.num_layers)]
        width = blocks_needed(num_tokens, pool.block_size)
        # One piece of memory, so that one copy brings all of it; first on the CPU, where a copy can start from.
        numbers = torch.zeros(size * (4 + width), dtype=torch.int64)
        self._here = numbers.pin_memory() if pool.device.type == "cuda" else numbers
        self._there = torch.zeros_like(numbers, device=pool.device)
        self._rows_here, self._tables_here = self._parts(self._here, size)
        self._rows, self._tables = self._parts(self._there, size)
        self.hidden: torch.Tensor | None = None
        """The last run's result, `[size, hidden_size]`."""
        self.graph = None

    @staticmethod
    def _parts(numbers: torch.Tensor, size: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Token ids, positions, slots and lengths, `[4, size]`; and the tables, `[size, width]`."""
        return numbers[: 4 * size].view(4, size), numbers[4 * size :].view(size, -1)

    def set(self, batch) -> None:
        """The numbers of a batch that is no larger; the rows behind them become padding."""
        num_seqs, width = batch.block_tables.shape
        rows, tables = self._rows_here, self._tables_here
        for row, tensor in zip(
            rows, (batch.token_ids, batch.positions, batch.slot_mapping, batch.seq_lens), strict=True
        ):
            row[:num_seqs] = tensor
        rows[:, num_seqs:] = torch.tensor([0, 0, -1, 0])[:, None]
        tables[:num_seqs, :width] = batch.block_tables
        self._there.copy_(self._here)

    @torch.no_grad()
    def run(self) -> None:
        """The step through all layers. Nothing here looks at a number: all that is known are shapes."""
        token_ids, positions, slots, lens = self._rows

        def attend(layer, q, keys, values):
            q, keys, values = q.transpose(0, 1), keys.transpose(0, 1), values.transpose(0, 1)
            self._kernels.kv_write(keys, values, *self._caches[layer], slots)
            out = self._kernels.paged_decode(q, *self._caches[layer], self._tables, lens, self._scale)
            return out.transpose(0, 1)

        model = self._model
        self.hidden = model.forward_embedded(model.embed(token_ids), *model.rope.angles(positions), attend)

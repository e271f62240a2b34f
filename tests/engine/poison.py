"""Engines for tests: invariants are checked at every step, and blocks hold NaN until somebody writes to them."""

from dataclasses import replace

import torch

from pagedlab.cache.allocator import BlockAllocator
from pagedlab.cache.prefix import PrefixCache
from pagedlab.engine.engine import Engine
from pagedlab.engine.runner import ModelRunner
from pagedlab.model.tiny import tiny_llama


class NotingAllocator(BlockAllocator):
    """Notes which blocks it hands out and takes back for good."""

    def __init__(self, num_blocks):
        super().__init__(num_blocks)
        self.noted = set(range(num_blocks))

    def allocate(self, n):
        blocks = super().allocate(n)
        self.noted.update(blocks)
        return blocks

    def free(self, blocks):
        blocks = list(blocks)
        super().free(blocks)
        self.noted.update(block for block in blocks if self.ref_count(block) == 0)


class PoisoningRunner(ModelRunner):
    """Fills noted blocks with NaN: after what must be saved from them has been, and before anything is put in."""

    allocator: NotingAllocator

    def move(self, output):
        if output.swap_out:
            self.swap_space.swap_out(output.swap_out)
        sources = {source for source, _ in output.blocks_to_copy}  # may be given up in the step that copies them
        self.pool.poison(sorted(self.allocator.noted - sources))
        super().move(replace(output, swap_out=[]))
        self.pool.poison(sorted(self.allocator.noted & sources))
        self.allocator.noted.clear()


def exact_llama(**options):
    """In float64, so that two logits are never so close that the order of a sum decides which one is larger."""
    return tiny_llama(dtype=torch.float64, **options)


def poisoned_engine(model, tokenizer=None, *, num_blocks, enable_prefix_caching=True, **options):
    """An `Engine` as the options say, with both of the above."""
    inner = NotingAllocator(num_blocks)
    allocator = PrefixCache(inner) if enable_prefix_caching else inner
    engine = Engine(
        model,
        tokenizer,
        allocator=allocator,
        enable_prefix_caching=enable_prefix_caching,
        check_invariants=True,
        backend="torch",
        **options,
    )
    runner = PoisoningRunner(model, engine.pool, "torch", engine.scheduler.swap_space)
    runner.allocator = inner
    engine.runner = runner
    return engine


def assert_empty(engine):
    """Nobody is left, and every block is free again."""
    assert not engine.has_unfinished
    assert not engine.scheduler.running and not engine.scheduler.waiting
    assert engine.allocator.num_free == engine.pool.num_blocks
    if engine.runner.swap_space is not None:
        assert engine.runner.swap_space.num_free == engine.runner.swap_space.num_blocks
    engine.check_invariants()

"""Bugs of real paged allocators and caches, restated as tests of ours.

Each was reported in public, for the project and under the number its docstring names. What went wrong there is told in
one sentence; the test is what must be true instead. B07 is `pytest -k B07`.
"""

import itertools
import random

import pytest
import torch

from pagedlab.cache.accounting import blocks_needed
from pagedlab.cache.allocator import BlockAllocator, DoubleFreeError, DuplicateBlockError
from pagedlab.cache.paged import PagedKVCache, PagedSequence, PoolSizeError
from pagedlab.cache.table import BlockTable
from pagedlab.kernels import ops
from pagedlab.model.config import KNOWN_MODELS
from pagedlab.model.generate import generate
from pagedlab.model.tiny import tiny_llama

BLOCK_SIZES = [1, 2, 3, 16, 50]  # the last one is larger than any prompt here


def fork(table, allocator):
    """A second table that holds the same blocks."""
    allocator.share(table.blocks)
    child = BlockTable(table.block_size)
    child.blocks, child.num_tokens = list(table.blocks), table.num_tokens
    return child


def append_one(table, allocator, pool=None):
    """One more token, on a copy of the last block if somebody else holds it too. Returns the (source, copy) pairs."""
    copies = []
    if table.num_tokens < table.capacity and allocator.ref_count(table.blocks[-1]) > 1:
        shared, (own,) = table.blocks[-1], allocator.allocate(1)
        copies.append((shared, own))
        if pool is not None:
            pool.copy_blocks(copies)
        allocator.free([shared])
        table.blocks[-1] = own
    table.append_tokens(1, allocator)
    return copies


def new_sequence(model, num_blocks, block_size, allocator=None):
    config = model.config
    pool = PagedKVCache(config.num_hidden_layers, num_blocks, config.num_key_value_heads, block_size, config.head_dim)
    for layer in range(pool.num_layers):
        pool.key_cache(layer).fill_(torch.nan)
        pool.value_cache(layer).fill_(torch.nan)
    return PagedSequence(pool, allocator or BlockAllocator(num_blocks))


@pytest.fixture(scope="module")
def tiny():
    return tiny_llama()


def test_B01_a_holder_is_counted_once():
    """vllm-project/vllm#1556: past a sliding window, a table repeats its blocks; forking added a count per entry."""
    allocator = BlockAllocator(6)
    window = allocator.allocate(2)
    entries = [window[i % 2] for i in range(5)]  # five logical blocks on two physical ones
    with pytest.raises(DuplicateBlockError):
        allocator.share(entries)
    holders = [window, list(dict.fromkeys(entries))]
    allocator.share(holders[1])
    assert [allocator.ref_count(block) for block in window] == [2, 2]
    for holder in holders:  # both write: each leaves the shared block for its own
        (own,) = allocator.allocate(1)
        if allocator.ref_count(holder[1]) > 1:
            allocator.free([holder[1]])
            holder[1] = own
        else:
            allocator.free([own])
    for holder in holders:
        allocator.free(holder)
    assert allocator.num_free == 6


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_B02_beams_are_freed_once_in_any_order(order):
    """vllm-project/vllm#1584, vllm-project/vllm#1930: beam search on a long prompt died of a double free."""
    allocator = BlockAllocator(40)
    parent = BlockTable(4)
    parent.append_tokens(30, allocator)
    beams = [parent, *(fork(parent, allocator) for _ in range(4))]
    for dropped in (beams.pop(1), beams.pop(2)):
        dropped.free(allocator)
        dropped.free(allocator)  # a freed table has nothing left to give back
    assert sum(len(append_one(beam, allocator)) for beam in beams) == 2
    blocks = [list(beam.blocks) for beam in beams]
    for index in order:
        beams[index].free(allocator)
    assert sorted(allocator.free_blocks) == list(range(40))
    for freed in blocks:
        with pytest.raises(DoubleFreeError):
            allocator.free(freed)


def test_B04_equal_contents_are_two_blocks():
    """NVIDIA/TensorRT-LLM#12648: of two blocks with equal contents, the one pinned was not the one unpinned."""
    allocator = BlockAllocator(4)
    (x,), (y,) = allocator.allocate(1), allocator.allocate(1)
    allocator.share([y])
    allocator.free([y])
    assert (allocator.ref_count(x), allocator.ref_count(y)) == (1, 1)
    assert len({x, y, *allocator.allocate(1), *allocator.allocate(1)}) == 4


def test_B05_a_new_block_has_one_holder():
    """Wenyueh/MinivLLM#84: new blocks started at 0, went to -1 when freed and never came back."""
    allocator = BlockAllocator(3)
    for _ in range(5):
        blocks = allocator.allocate(3)
        assert [allocator.ref_count(block) for block in blocks] == [1, 1, 1]
        allocator.free(blocks)
        assert [allocator.ref_count(block) for block in blocks] == [0, 0, 0]
        assert allocator.num_free == 3


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_B06_the_last_block_of_a_full_table(block_size):
    """Wenyueh/MinivLLM#87: at a multiple of the block size, the last block was said to hold 0 tokens."""
    for num_tokens in range(1, 3 * block_size + 1):
        allocator, table = BlockAllocator(8), BlockTable(block_size)
        table.append_tokens(num_tokens, allocator)
        in_last = num_tokens - (len(table.blocks) - 1) * block_size
        assert in_last == (num_tokens - 1) % block_size + 1
        assert table.slot(num_tokens - 1) == table.blocks[-1] * block_size + in_last - 1


@pytest.mark.parametrize("block_size", [2, 3, 16])
def test_B07_a_copied_block_has_the_contents(block_size):
    """xLLM-AI/xllm#1984: the copy of a shared block was noted in the table, but nothing was copied."""
    pool, allocator = PagedKVCache(2, 8, 1, block_size, 3), BlockAllocator(8)
    common = torch.randn(1, block_size + 1, 3)
    parent = PagedSequence(pool, allocator)
    for layer in range(2):
        parent.append(layer, common, -common)
    tables = [parent.table, fork(parent.table, allocator)]
    own = [torch.randn(1, 1, 3) for _ in tables]
    for table, token in zip(tables, own, strict=True):
        append_one(table, allocator, pool)
        for layer in range(2):
            caches = pool.key_cache(layer), pool.value_cache(layer)
            ops.kv_write(token, -token, *caches, [table.slot(block_size + 1)])
    for table, token in zip(tables, own, strict=True):
        for layer in range(2):
            caches = pool.key_cache(layer), pool.value_cache(layer)
            keys, values = ops.gather_kv(*caches, table.blocks, block_size + 2)
            right = torch.cat([common, token], 1)
            assert torch.equal(keys, right) and torch.equal(values, -right)


@pytest.mark.parametrize("block_size", [2, 3, 16])
def test_B08_a_full_block_is_not_copied_and_a_partial_one_once(block_size):
    """Figure 8 of the vLLM paper (arXiv:2309.06180): the first writer copies, the second writes in place."""
    for extra, copies in ((0, 0), (1, 1)):
        allocator, parent = BlockAllocator(8), BlockTable(block_size)
        parent.append_tokens(2 * block_size + extra, allocator)
        child = fork(parent, allocator)
        made = [append_one(table, allocator) for table in (child, parent)]
        assert [len(pairs) for pairs in made] == [copies, 0]
        assert parent.blocks[:2] == child.blocks[:2] and parent.blocks[2] != child.blocks[2]
        assert [allocator.ref_count(block) for block in parent.blocks] == [2, 2, 1]
        assert allocator.num_free == 8 - 4


@pytest.mark.parametrize("block_size", [1, 2, 3, 16])
def test_B14_a_prompt_that_ends_with_a_block_in_chunks(tiny, block_size):
    """vllm-project/vllm#7371: chunked prefill failed when its last chunk ended a prompt of whole blocks."""
    prompt = [i % 97 for i in range(2 * block_size)]
    whole = generate(tiny, prompt, 3)
    for size in range(1, 2 * block_size + 2):
        sequence = new_sequence(tiny, 8, block_size)
        for start in range(0, len(prompt), size):
            logits = tiny(prompt[start : start + size], sequence, 1)
        assert len(sequence.table.blocks) == 2
        first = int(logits[-1].argmax())
        assert [first, *generate(tiny, [first], 2, sequence)] == whole
        assert len(sequence.table.blocks) == blocks_needed(len(prompt) + 2, block_size)


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_B15_preempted_next_to_a_block_boundary(tiny, block_size):
    """GeeeekExplorer/nano-vllm#217: one token past a block, a preempted sequence came back with a block too few."""
    prompt = [3, 1, 4]
    whole = generate(tiny, prompt, block_size + 4)
    for length in {block_size - 1, block_size, block_size + 1} - set(range(len(prompt))):
        sequence = new_sequence(tiny, 80, block_size)
        done = generate(tiny, prompt, length - len(prompt) + 1, sequence)
        assert sequence.num_tokens == length
        sequence.free()
        other = sequence.allocator.allocate(2)  # the old blocks are somebody else's now
        rest = generate(tiny, prompt + done, len(whole) - len(done), sequence)
        assert done + rest == whole
        assert not set(sequence.table.blocks) & set(other)


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_B17_a_token_has_its_slot_before_it_is_written(tiny, block_size):
    """GeeeekExplorer/nano-vllm#66, GeeeekExplorer/nano-vllm#240: nobody could tell which tokens have a key and value.

    Here: a table counts the tokens that have a slot, a sequence those that every layer has stored.
    """
    seen = []

    def write(keys, values, key_cache, value_cache, slots):
        seen.append((sequence.num_tokens, sequence.table.num_tokens, sequence.table.capacity))
        assert slots == sequence.table.slot_mapping(sequence.num_tokens, sequence.table.num_tokens)
        ops.kv_write(keys, values, key_cache, value_cache, slots)

    pool = new_sequence(tiny, 80, block_size).pool
    sequence = PagedSequence(pool, BlockAllocator(80), write=write)
    generate(tiny, list(range(block_size)), 2, sequence)  # the prompt fills one block, the new token needs another
    assert set(seen) == {(0, block_size, block_size), (block_size, block_size + 1, 2 * block_size)}
    assert sequence.num_tokens == sequence.table.num_tokens == block_size + 1


@pytest.mark.parametrize("num_prompt", [1, 2, 3, 4, 15, 16, 17])
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_B18_block_size_1_gets_a_block_for_every_token(block_size, num_prompt):
    """GeeeekExplorer/nano-vllm, block_manager.py: with blocks of 1, no decode step ever allocated one."""
    allocator, table = BlockAllocator(60), BlockTable(block_size)
    table.append_tokens(num_prompt, allocator)
    for num_tokens in range(num_prompt + 1, num_prompt + 36):
        new = table.append_tokens(1, allocator)
        assert len(new) == (num_tokens % block_size == 1 or block_size == 1)
        assert len(table.blocks) == blocks_needed(num_tokens, block_size)


def test_B39_a_block_is_read_after_all_of_a_layer_is_written():
    """vllm-project/vllm#7822: a block was shared before its layer had been computed.

    Two sequences share a prompt's blocks in one step. Per layer, everything is written before anything attends, so the
    second sequence reads what the first has just stored.
    """
    pool, allocator = PagedKVCache(2, 6, 1, 4, 8), BlockAllocator(6)
    first = BlockTable(4)
    first.append_tokens(8, allocator)
    second = fork(first, allocator)
    draw = random.Random(0)
    for layer in range(2):
        generator = torch.Generator().manual_seed(draw.randrange(100))
        keys, values, q = (torch.randn(8, 1, 8, generator=generator) for _ in range(3))
        caches = pool.key_cache(layer), pool.value_cache(layer)
        ops.kv_write(keys, values, *caches, first.slot_mapping(0, 8))
        tables = [second.blocks, first.blocks]  # the reader comes first in the batch
        out = ops.paged_prefill(torch.cat([q, q]), *caches, tables, [8, 8], [0, 8, 16])
        assert torch.equal(out[:8], out[8:]) and out.abs().max() > 0


def test_B45_a_shared_block_is_one_block():
    """sgl-project/sglang#35270, vllm-project/vllm#57336: shared pages counted twice; block usage hid empty slots."""
    allocator, table = BlockAllocator(10), BlockTable(4)
    table.append_tokens(5, allocator)
    others = [fork(table, allocator), fork(table, allocator)]
    assert allocator.num_blocks - allocator.num_free == 2
    assert (table.num_tokens, table.capacity) == (5, 8)
    for other in others:
        other.free(allocator)
    assert allocator.num_free == 8


def test_B48_a_resumed_sequence_has_only_new_blocks(tiny):
    """LMCache/LMCache#2069, vllm-project/vllm-gaudi#524: after a resume, the freed ids were still in the table."""
    prompt = [2, 7, 1, 8, 2, 8]
    whole = generate(tiny, prompt, 10)
    allocator = BlockAllocator(16)
    sequence = new_sequence(tiny, 16, 3, allocator)
    done = generate(tiny, prompt, 5, sequence)
    old = set(sequence.table.blocks)
    sequence.free()
    assert set(allocator.allocate(len(old))) == old
    assert done + generate(tiny, prompt + done, 5, sequence) == whole
    assert not set(sequence.table.blocks) & old
    assert sequence.num_tokens == len(prompt) + 9


def test_B53_freed_at_any_moment_nothing_is_left(tiny):
    """sgl-project/sglang#18701, sgl-project/sglang#1674: an abort in some state kept blocks."""
    for layer_of_abort in (None, 0, 1):
        sequence = new_sequence(tiny, 8, 4)
        tiny(list(range(6)), sequence)
        if layer_of_abort is not None:
            token = torch.zeros(2, 3, 8)
            for layer in range(layer_of_abort + 1):
                sequence.append(layer, token, token)
        sequence.free()
        sequence.free()
        assert (sequence.allocator.num_free, sequence.num_tokens, sequence.table.blocks) == (8, 0, [])


def test_B57_bytes_of_a_block():
    """vllm-project/vllm#7256, mit-han-lab/omniserve#39, InternLM/lmdeploy#4552: query heads for kv heads, bits for
    bytes, and pools of no block at all."""
    config = KNOWN_MODELS["SmolLM2-135M"]
    assert PagedKVCache.from_bytes(config, "1 MiB").bytes_per_block == 737_280
    assert PagedKVCache.from_bytes(config, 10 * 737_280, dtype=torch.float16).num_blocks == 20
    assert PagedKVCache.from_bytes(config, 737_280).nbytes == 737_280
    with pytest.raises(PoolSizeError, match="737,279 bytes, but one block takes 737,280"):
        PagedKVCache.from_bytes(config, 737_279)
    with pytest.raises(ValueError, match="num_blocks is 0"):
        PagedKVCache(30, 0, 3, 16, 64)


def test_B58_an_allocator_must_not_know_more_blocks_than_the_pool():
    """GeeeekExplorer/nano-vllm#187, vllm-project/vllm#46106: pools sized alone; an id was out of range elsewhere."""
    pools = [PagedKVCache(1, blocks, 1, 4, 2) for blocks in (100, 63)]
    with pytest.raises(ValueError, match="the allocator has 100 blocks, the pool only 63"):
        PagedSequence(pools[1], BlockAllocator(100))
    shared = BlockAllocator(min(pool.num_blocks for pool in pools))
    for pool in pools:
        PagedSequence(pool, shared)

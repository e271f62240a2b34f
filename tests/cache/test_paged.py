"""The paged cache: the same text as the static cache, whatever the block size, in less memory."""

import random
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pagedlab.cache.allocator import BlockAllocator, OutOfBlocksError
from pagedlab.cache.paged import PagedKVCache, PagedSequence, PoolSizeError, parse_bytes
from pagedlab.cache.protocol import Contiguous, KVCache
from pagedlab.cache.static import StaticCache
from pagedlab.cache.table import BlockTable, slot_mapping
from pagedlab.errors import PagedLabError
from pagedlab.kernels import ops
from pagedlab.model.config import KNOWN_MODELS
from pagedlab.model.generate import generate
from pagedlab.model.tiny import tiny_llama

BLOCK_SIZES = [1, 2, 3, 16, 64]
NEW_TOKENS = 8


def nan_pool(config, num_blocks, block_size):
    """A pool in which every slot that nobody wrote spoils whatever reads it."""
    pool = PagedKVCache(config.num_hidden_layers, num_blocks, config.num_key_value_heads, block_size, config.head_dim)
    for layer in range(pool.num_layers):
        pool.key_cache(layer).fill_(torch.nan)
        pool.value_cache(layer).fill_(torch.nan)
    return pool


def static_row(config, max_len):
    return StaticCache(config.num_hidden_layers, 1, config.num_key_value_heads, max_len, config.head_dim).row(0)


@pytest.fixture(scope="module")
def tiny():
    return tiny_llama()


@pytest.fixture(scope="module")
def prompts():
    """50 prompts: every length up to 40, the neighbours of block boundaries, and some of several tiles."""
    lengths = [*range(1, 41), 47, 48, 49, 63, 64, 65, 127, 128, 129, 300]
    draw = random.Random(0)
    assert len(lengths) == 50
    return [[draw.randrange(97) for _ in range(length)] for length in lengths]


@pytest.fixture(scope="module")
def static_texts(tiny, prompts):
    return [generate(tiny, prompt, NEW_TOKENS, static_row(tiny.config, 310)) for prompt in prompts]


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_50_prompts_give_the_same_text_as_with_the_static_cache(tiny, prompts, static_texts, block_size):
    # A pool of 3 or 4 sequences that are freed in random order: blocks get used again, and tables get out of order.
    pool = nan_pool(tiny.config, 2 * 310 // block_size + 8, block_size)
    allocator, alive, draw = BlockAllocator(pool.num_blocks), [], random.Random(block_size)
    for prompt, text in zip(prompts, static_texts, strict=True):
        while len(alive) > 3 or (alive and allocator.num_free * block_size < len(prompt) + NEW_TOKENS + block_size):
            alive.pop(draw.randrange(len(alive))).free()
        alive.append(PagedSequence(pool, allocator))
        assert generate(tiny, prompt, NEW_TOKENS, alive[-1]) == text, f"a prompt of {len(prompt)} tokens"
        assert alive[-1].num_tokens == alive[-1].table.num_tokens == len(prompt) + NEW_TOKENS - 1
    for sequence in alive:
        sequence.free()
    assert allocator.num_free == pool.num_blocks


def test_a_block_larger_than_any_prompt(tiny, prompts, static_texts):
    pool = nan_pool(tiny.config, 1, 512)
    for index in (0, 20, 49):
        sequence = PagedSequence(pool, BlockAllocator(1))
        assert generate(tiny, prompts[index], NEW_TOKENS, sequence) == static_texts[index]


def test_the_real_model_writes_the_same_text(smollm):
    for text in ("The capital of France is", "def fibonacci(n):\n", "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12,"):
        prompt = smollm.tokenizer.encode(text)
        static = generate(smollm.model, prompt, 5, static_row(smollm.config, 64))
        for block_size in (3, 16):
            pool = nan_pool(smollm.config, 64 // block_size + 1, block_size)
            allocator = BlockAllocator(pool.num_blocks)
            allocator.free(allocator.allocate(4))  # the last ones first: out of order from the start
            assert generate(smollm.model, prompt, 5, PagedSequence(pool, allocator)) == static


def test_a_prompt_in_chunks(tiny, prompts):
    prompt = prompts[36]
    whole = tiny(prompt, static_row(tiny.config, 50))
    for size in (1, 2, 5, 36, 37):
        sequence = PagedSequence(nan_pool(tiny.config, 20, 2), BlockAllocator(20))
        chunks = [tiny(prompt[start : start + size], sequence) for start in range(0, len(prompt), size)]
        torch.testing.assert_close(torch.cat(chunks), whole, atol=2e-5, rtol=1e-4)


class Counting:
    """Calls the function, and counts how often."""

    def __init__(self, function):
        self.function, self.count = function, 0

    def __call__(self, *args):
        self.count += 1
        return self.function(*args)


def test_ones_own_parts_do_the_work(tiny, prompts, static_texts):
    parts = {
        "slot_mapping": Counting(slot_mapping),
        "write": Counting(ops.kv_write),
        "attend": Counting(ops.paged_decode),
        "gather": Counting(ops.gather_kv),
    }
    pool = nan_pool(tiny.config, 20, 4)
    table = BlockTable(4)
    sequence = PagedSequence(pool, BlockAllocator(20), table, **parts)
    assert generate(tiny, prompts[10], NEW_TOKENS, sequence) == static_texts[10]
    layers, steps = 2, NEW_TOKENS
    counts = {name: part.count for name, part in parts.items()}
    assert counts == {"slot_mapping": steps, "write": steps * layers, "attend": (steps - 1) * layers, "gather": 0}
    assert sequence.table is table and len(table.blocks) == 5


def test_with_gather_somebody_else_attends(tiny, prompts, static_texts):
    gather = Counting(ops.gather_kv)
    sequence = PagedSequence(nan_pool(tiny.config, 20, 4), BlockAllocator(20), gather=gather)
    assert isinstance(sequence, KVCache)
    assert generate(tiny, prompts[10], NEW_TOKENS, Contiguous(sequence)) == static_texts[10]
    assert gather.count == 2 * NEW_TOKENS
    assert sequence.num_tokens == len(prompts[10]) + NEW_TOKENS - 1


def test_a_pool_that_is_full_changes_nothing_and_waits(tiny, prompts, static_texts):
    pool, allocator = nan_pool(tiny.config, 6, 4), BlockAllocator(6)
    other = allocator.allocate(3)
    sequence = PagedSequence(pool, allocator)
    with pytest.raises(OutOfBlocksError, match="4 blocks asked for, 3 of 6 are free"):
        tiny(prompts[12], sequence)
    assert (sequence.num_tokens, sequence.table.blocks, allocator.num_free) == (0, [], 3)
    assert torch.isnan(pool.key_cache(0)).all()
    allocator.free(other)
    assert generate(tiny, prompts[12], NEW_TOKENS, sequence) == static_texts[12]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 100), st.sampled_from(["write", "attend"]), st.sampled_from([1, 3, 16]))
def test_a_step_that_was_cut_short_can_be_run_again(fail_at, where, block_size):
    """Ctrl-C in any layer of any step: the same call again goes on as if nothing had happened."""
    model, prompt = tiny_llama(), list(range(10))
    text = generate(model, prompt, NEW_TOKENS, static_row(model.config, 40))
    calls = iter(range(1000))

    def interrupted(function):
        def call(*args):
            result = function(*args)
            if next(calls) == fail_at:
                raise KeyboardInterrupt
            return result

        return call

    parts = {"write": ops.kv_write, "attend": ops.paged_decode}
    parts[where] = interrupted(parts[where])
    pool, allocator = nan_pool(model.config, 20, block_size), BlockAllocator(20)
    sequence = PagedSequence(pool, allocator, **parts)
    new_ids, step = [], prompt
    while len(new_ids) < NEW_TOKENS:
        before = sequence.num_tokens
        try:
            new_ids.append(int(model(step, sequence, 1)[-1].argmax()))
        except KeyboardInterrupt:
            assert sequence.num_tokens == before
            continue
        step = new_ids[-1:]
    assert new_ids == text
    assert sequence.table.num_tokens == sequence.num_tokens == len(prompt) + NEW_TOKENS - 1
    assert len(sequence.table.blocks) == -(-sequence.num_tokens // block_size)
    sequence.free()
    assert allocator.num_free == 20


def test_freed_in_the_middle_of_a_step(tiny, prompts, static_texts):
    pool, allocator = nan_pool(tiny.config, 20, 4), BlockAllocator(20)
    sequence = PagedSequence(pool, allocator)
    tokens = torch.zeros(2, 5, 8)
    sequence.attend(0, torch.zeros(6, 5, 8), tokens, tokens)
    assert (sequence.num_tokens, allocator.num_free) == (0, 18)
    sequence.free()
    sequence.free()
    assert allocator.num_free == 20
    assert generate(tiny, prompts[3], NEW_TOKENS, sequence) == static_texts[3]


def test_layers_out_of_turn():
    pool, allocator = PagedKVCache(3, 4, 1, 4, 2), BlockAllocator(4)
    sequence = PagedSequence(pool, allocator)
    two, three = torch.zeros(1, 2, 2), torch.zeros(1, 3, 2)
    with pytest.raises(ValueError, match="layer 1 got 2 new tokens where layer 0 was due"):
        sequence.append(1, two, two)
    sequence.append(0, two, two)
    with pytest.raises(ValueError, match="layer 2 got 2 new tokens where layer 1 was due"):
        sequence.append(2, two, two)
    with pytest.raises(ValueError, match="layer 1 got 3 new tokens where layer 1 was due with 2"):
        sequence.append(1, three, three)
    sequence.append(1, two, two)
    sequence.append(2, two, two)
    assert sequence.num_tokens == 2


def test_parts_that_do_not_fit_together():
    pool, allocator = PagedKVCache(1, 4, 1, 4, 2), BlockAllocator(4)
    used = BlockTable(4)
    used.append_tokens(3, allocator)
    for arguments, words in [
        ((allocator, BlockTable(8)), "blocks of 8 slots, the pool of 4"),
        ((allocator, used), "the table has 3 tokens"),
        ((BlockAllocator(5),), "the allocator has 5 blocks, the pool only 4"),
    ]:
        with pytest.raises(ValueError, match=words):
            PagedSequence(pool, *arguments)
    two = torch.zeros(1, 2, 2)
    with pytest.raises(ValueError, match="gave 1 slots for 2 tokens"):
        PagedSequence(pool, allocator, slot_mapping=lambda *_: [12]).append(0, two, two)
    with pytest.raises(ValueError, match=r"attend returned \(2,\) for queries of \(1, 1, 2\)"):
        PagedSequence(pool, allocator, attend=lambda *_: torch.zeros(2)).attend(0, *(torch.zeros(1, 1, 2),) * 3)


@settings(max_examples=40, stateful_step_count=25, deadline=None)
class RandomWorkload(RuleBasedStateMachine):
    """Sequences come, grow by prompts and by single tokens, and go; the pool keeps what each of them stored."""

    @initialize(num_blocks=st.integers(2, 16), block_size=st.sampled_from([1, 2, 3, 16]))
    def start(self, num_blocks, block_size):
        self.pool = nan_pool(
            SimpleNamespace(num_hidden_layers=2, num_key_value_heads=2, head_dim=3), num_blocks, block_size
        )
        self.allocator = BlockAllocator(num_blocks)
        self.sequences = []  # with what was stored: [layer][key or value], [num_kv_heads, num_tokens, head_dim]
        self.generator = torch.Generator().manual_seed(num_blocks)

    @rule()
    def arrive(self):
        if len(self.sequences) < 4:
            stored = [[torch.zeros(2, 0, 3)] * 2 for _ in range(2)]
            self.sequences.append((PagedSequence(self.pool, self.allocator), stored))

    @rule(which=st.integers(0, 3), num_new=st.integers(1, 3) | st.integers(1, 30))
    def step(self, which, num_new):
        if which >= len(self.sequences):
            return
        sequence, stored = self.sequences[which]
        for layer in range(2):
            new = [torch.randn(2, num_new, 3, generator=self.generator) for _ in range(2)]
            try:
                got = sequence.append(layer, *new)
            except OutOfBlocksError:
                assert layer == 0
                return
            stored[layer] = [torch.cat([old, tokens], 1) for old, tokens in zip(stored[layer], new, strict=True)]
            assert all(map(torch.equal, got, stored[layer]))

    @rule(which=st.integers(0, 3))
    def leave(self, which):
        if which < len(self.sequences):
            self.sequences.pop(which)[0].free()

    @invariant()
    def at_most_block_size_minus_1_slots_a_sequence_are_unused(self):
        for sequence, stored in self.sequences:
            assert sequence.num_tokens == stored[0][0].shape[1]
            assert 0 <= sequence.table.capacity - sequence.num_tokens < self.pool.block_size

    @invariant()
    def every_block_is_free_or_held(self):
        held = sum(len(sequence.table.blocks) for sequence, _ in self.sequences)
        assert held + self.allocator.num_free == self.pool.num_blocks

    @invariant()
    def nobody_wrote_over_anybody(self):
        for sequence, stored in self.sequences:
            for layer in range(2):
                caches = self.pool.key_cache(layer), self.pool.value_cache(layer)
                got = ops.gather_kv(*caches, sequence.table.blocks, sequence.num_tokens)
                assert all(map(torch.equal, got, stored[layer]))


TestRandomWorkload = RandomWorkload.TestCase


def test_copying_a_block_copies_it_in_every_layer():
    pool = PagedKVCache(3, 4, 1, 2, 2)
    for layer in range(3):
        pool.key_cache(layer)[1], pool.value_cache(layer)[1] = layer + 1, -layer - 1
    pool.copy_blocks(iter([(1, 3), (1, 0)]))
    for layer in range(3):
        for block in (0, 1, 3):
            assert (pool.key_cache(layer)[block] == layer + 1).all()
            assert (pool.value_cache(layer)[block] == -layer - 1).all()
        assert not pool.key_cache(layer)[2].any()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2 GiB", 2 * 2**30),
        ("512 MiB", 512 * 2**20),
        ("512mib", 512 * 2**20),
        (" 1.5 KiB ", 1536),
        ("3 kB", 3000),
        ("2 GB", 2 * 10**9),
        ("1 TiB", 2**40),
        ("77", 77),
        ("77 B", 77),
        (4096, 4096),
        (0, 0),
    ],
)
def test_parse_bytes(text, expected):
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("wrong", ["", "GiB", "2 giga", "-1 GiB", "2 iB", "1e9", "2 GiB GiB", "1.2.3 MB", "२ GiB x"])
def test_what_is_not_a_size_is_refused(wrong):
    with pytest.raises(ValueError, match="is not a size"):
        parse_bytes(wrong)


def test_numbers_that_are_not_a_size():
    for wrong, error in ((2.5, TypeError), (True, TypeError), (None, TypeError), (-1, ValueError)):
        with pytest.raises(error):
            parse_bytes(wrong)


def test_from_bytes():
    config = KNOWN_MODELS["SmolLM2-135M"]
    pool = PagedKVCache.from_bytes(config, 3 * 737_280 + 737_279)
    assert (pool.num_blocks, pool.bytes_per_block, pool.nbytes) == (3, 737_280, 3 * 737_280)
    assert pool.key_cache(29).shape == pool.value_cache(0).shape == (3, 3, 16, 64)
    half = PagedKVCache.from_bytes(config, "8 MiB", block_size=32, dtype=torch.bfloat16)
    assert (half.num_blocks, half.bytes_per_block) == (8 * 2**20 // 737_280, 737_280)
    with pytest.raises(PoolSizeError, match="700 KiB is 716,800 bytes, but one block takes 737,280 .*30 layers x 3 kv"):
        PagedKVCache.from_bytes(config, "700 KiB")
    assert issubclass(PoolSizeError, PagedLabError)


@pytest.mark.parametrize("num_blocks", [10**10, 10**30])
def test_more_memory_than_there_is(num_blocks):
    with pytest.raises(PoolSizeError, match=f"no memory for {num_blocks:,} blocks of 737,280 bytes"):
        PagedKVCache(30, num_blocks, 3, 16, 64)


def test_sizes_are_checked():
    for dtype in ("float32", torch.int8, None):
        with pytest.raises(TypeError, match="expected torch.float32"):
            PagedKVCache(2, 2, 2, 2, 2, dtype)
    for position, name in enumerate(("num_layers", "num_blocks", "num_kv_heads", "block_size", "head_dim")):
        sizes = [2, 2, 2, 2, 2]
        sizes[position] = 0
        with pytest.raises(ValueError, match=f"{name} is 0"):
            PagedKVCache(*sizes)
    pool = PagedKVCache(2, 2, 2, 2, 2)
    for layer in (-1, 2):
        with pytest.raises(IndexError, match=f"layer {layer} does not exist: the pool has layers 0 to 1"):
            pool.key_cache(layer)

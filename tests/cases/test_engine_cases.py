"""Bugs of real paged allocators and caches, restated as tests of ours.

Each was reported in public, for the project and under the number its docstring names. What went wrong there is told in
one sentence; the test is what must be true instead. B07 is `pytest -k B07`.
"""

import itertools
import os
import random
import subprocess
import sys

import pytest
import torch

from pagedlab.cache.accounting import blocks_needed
from pagedlab.cache.allocator import BlockAllocator, DoubleFreeError, DuplicateBlockError, OutOfBlocksError
from pagedlab.cache.paged import PagedKVCache, PagedSequence, PoolSizeError
from pagedlab.cache.prefix import PrefixCache, extra_keys_of, image_key, prefix_hash_chain
from pagedlab.cache.table import BlockTable
from pagedlab.kernels import ops
from pagedlab.model.config import KNOWN_MODELS
from pagedlab.model.generate import generate
from pagedlab.model.tiny import tiny_llama

BLOCK_SIZES = [1, 2, 3, 16, 50]  # the last one is larger than any prompt here


def append_one(table, allocator, pool=None):
    """One more token, on a copy of the last block if somebody else holds it too. Returns the (source, copy) pairs."""
    copies = table.copy_on_write(allocator)
    if pool is not None:
        pool.copy_blocks(copies)
    table.append_tokens(1, allocator)
    return copies


def computed(cache, token_ids, block_size, extra_keys=None):
    """A request in a prefix cache, up to the end of its prompt: its table, and how many tokens it found."""
    hashes = prefix_hash_chain(token_ids, block_size, extra_keys)
    found = cache.lookup(hashes[: (len(token_ids) - 1) // block_size])
    table = BlockTable(block_size)
    table.adopt(found, len(found) * block_size)
    table.append_tokens(len(token_ids) - table.num_tokens, cache)
    for block, block_hash in zip(table.blocks, hashes, strict=False):
        cache.publish(block, block_hash)
    return table, len(found) * block_size


def new_sequence(model, num_blocks, block_size, allocator=None):
    config = model.config
    pool = PagedKVCache(config.num_hidden_layers, num_blocks, config.num_key_value_heads, block_size, config.head_dim)
    pool.poison(range(num_blocks))
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
    beams = [parent, *(parent.fork(allocator) for _ in range(4))]
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


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_B04_equal_contents_are_two_blocks(block_size):
    """NVIDIA/TensorRT-LLM#12648: of two blocks with equal contents, the one pinned was not the one unpinned; the same
    block was then handed to two sequences."""
    cache, prompt = PrefixCache(BlockAllocator(4)), list(range(block_size))
    (x,), (y,) = (computed(cache, prompt, block_size)[0].blocks for _ in range(2))
    assert list(cache.contents().values()) == [x]
    cache.share([y])
    cache.free([y])
    assert (cache.ref_count(x), cache.ref_count(y)) == (1, 1)
    assert len({x, y, *cache.allocate(1), *cache.allocate(1)}) == 4
    cache.free([y])
    assert cache.lookup(prefix_hash_chain(prompt, block_size)) == [x]
    assert cache.allocate(1) == [y]


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
    tables = [parent.table, parent.table.fork(allocator)]
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
        child = parent.fork(allocator)
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


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_B20_what_was_found_is_neither_evicted_nor_counted_as_free(block_size):
    """NVIDIA/Megatron-LM#5822: blocks just found were also counted as memory that could be taken, or were taken."""
    cache, prompt = PrefixCache(BlockAllocator(4)), list(range(3 * block_size))
    computed(cache, prompt, block_size)[0].free(cache)
    assert (cache.num_free, cache.num_cached_free) == (4, 3)
    hashes = prefix_hash_chain(prompt, block_size)
    first, second = cache.lookup(hashes[:2]), cache.lookup(hashes[:2])
    assert cache.num_free == 2, "blocks that two have found are two blocks fewer, not four"
    before = cache.contents()
    with pytest.raises(OutOfBlocksError):
        cache.allocate(3)
    assert cache.contents() == before
    assert not set(cache.allocate(2)) & set(first) and first == second
    assert cache.lookup(hashes) == first, "the third block had to go"


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_B31_prompts_made_to_collide_find_nothing(block_size):
    """CVE-2025-25183, GHSA-rm76-4mrf-v9r8: with a predictable hash, a prompt can be made that reads another's cache."""
    cache = PrefixCache(BlockAllocator(64))
    secret = [7] * (2 * block_size)
    computed(cache, secret, block_size)
    # The same to Python's own hash (which takes numbers modulo 2**61 - 1), to a sum and to a sum modulo 7.
    same_hash = [token + sys.hash_info.modulus for token in secret]
    assert hash(tuple(same_hash)) == hash(tuple(secret))
    for crafted in (same_hash, [6] * block_size + [8] * block_size, [0] * (2 * block_size)):
        assert cache.lookup(prefix_hash_chain(crafted, block_size)) == []


@pytest.mark.parametrize("block_size", [2, 3, 16])
def test_B32_a_polynomial_hash_would_collide(block_size):
    """NVIDIA/Megatron-LM#4158: with a polynomial of base 31, (a, b) and (a + 31, b - 1) had one key, and so had every
    pair of blocks that differed like this."""
    rest = list(range(block_size - 2))
    for base in (31, 33, 1_000_003, 2**32 - 5):
        for a, b in ((5, 9), (0, 1), (40_000, 3)):
            chains = [
                prefix_hash_chain([*rest, *pair], block_size) for pair in ((a, b), (a + 1, b - base), (a - 1, b + base))
            ]
            assert len({chain[0] for chain in chains}) == 3


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_B33_an_image_is_its_pixels_and_their_shape(block_size):
    """CVE-2025-46722, LMCache/LMCache#3301, sgl-project/sglang#2151: images of equal bytes and another shape, or of
    equal first bytes, were taken for one; all of them are the same placeholder tokens."""
    pixels = bytes(range(16))
    images = [(pixels, (4, 4)), (pixels, (2, 8)), (pixels[:-1] + b"x", (4, 4))]
    text, image_tokens = [1, 2, 3, 4, 5], 40
    prompt = text + [99] * image_tokens + [6]
    for image, other in itertools.permutations(images, 2):
        cache, found = PrefixCache(BlockAllocator(200)), []
        for each in (image, image, other):
            keys = extra_keys_of(len(prompt), block_size, images=[(len(text), image_tokens, image_key(*each))])
            found.append(computed(cache, prompt, block_size, keys)[1])
        assert found == [0, (len(prompt) - 1) // block_size * block_size, len(text) // block_size * block_size]


def test_B35_a_hash_is_the_same_in_every_process():
    """transformers' continuous batching: Python's hash of a text is salted, so two ranks had different keys."""
    code = (
        "from pagedlab.cache.block_hash import *; "
        "keys = extra_keys_of(6, 2, images=[(2, 2, image_key(b'1234', (2, 2)))], cache_salt='s', lora='l'); "
        "print([each.hex() for each in prefix_hash_chain(range(6), 2, keys)])"
    )
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(outputs) == 1 and outputs.pop().count(b"'") == 6


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_B36_an_evicted_block_has_no_old_name(block_size):
    """vllm-project/vllm#4764, ovg-project/kvcached#362, Wenyueh/MinivLLM#87: the map still led to a block whose
    contents were gone."""
    cache = PrefixCache(BlockAllocator(3))
    old, new = ([start + i for i in range(3 * block_size)] for start in (0, 1000))
    computed(cache, old, block_size)[0].free(cache)
    table, _ = computed(cache, new, block_size)
    assert cache.lookup(prefix_hash_chain(old, block_size)) == []
    assert cache.contents() == dict(zip(prefix_hash_chain(new, block_size), table.blocks, strict=True))
    table.free(cache)
    (block,) = cache.allocate(1)
    assert block not in cache.contents().values()  # at once, not when it is written
    cache.free([block])
    assert block not in cache.cached_free_blocks and (cache.num_cached_free, cache.num_free) == (2, 3)


def test_B39_a_block_is_read_after_all_of_a_layer_is_written():
    """vllm-project/vllm#7822: a block was shared before its layer had been computed.

    Two sequences share a prompt's blocks in one step. Per layer, everything is written before anything attends, so the
    second sequence reads what the first has just stored.
    """
    pool, allocator = PagedKVCache(2, 6, 1, 4, 8), BlockAllocator(6)
    first = BlockTable(4)
    first.append_tokens(8, allocator)
    second = first.fork(allocator)
    draw = random.Random(0)
    for layer in range(2):
        generator = torch.Generator().manual_seed(draw.randrange(100))
        keys, values, q = (torch.randn(8, 1, 8, generator=generator) for _ in range(3))
        caches = pool.key_cache(layer), pool.value_cache(layer)
        ops.kv_write(keys, values, *caches, first.slot_mapping(0, 8))
        tables = [second.blocks, first.blocks]  # the reader comes first in the batch
        out = ops.paged_prefill(torch.cat([q, q]), *caches, tables, [8, 8], [0, 8, 16])
        assert torch.equal(out[:8], out[8:]) and out.abs().max() > 0


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("chunks", [1, 2, 4])
def test_B41_the_end_of_a_prefix_goes_before_its_beginning(block_size, chunks):
    """llm-d/llm-d-inference-sim#709, LMCache/LMCache#4867, vllm-project/vllm#48489: beginnings were evicted first, and
    thousands of blocks were left that no prompt could find."""
    cache, prompt = PrefixCache(BlockAllocator(4)), list(range(4 * block_size))
    hashes = prefix_hash_chain(prompt, block_size)
    table = BlockTable(block_size)
    for chunk in range(chunks):  # stored by several chunks
        table.append_tokens(len(prompt) // chunks, cache)
        for i in range(4 * chunk // chunks, 4 * (chunk + 1) // chunks):
            cache.publish(table.blocks[i], hashes[i])
    late = cache.lookup(hashes[:3])  # somebody else's hold, given back later
    table.free(cache)
    cache.free(late[::-1])
    cache.allocate(2)
    assert cache.lookup(hashes) == late[:2]


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_B42_least_recently_used_is_not_first_stored(block_size):
    """antonellof/ferrox#14: an "LRU" that evicted in the order of insertion threw out what everybody used."""
    cache = PrefixCache(BlockAllocator(4))
    prompts = [[100 * i + j for j in range(block_size)] for i in range(5)]
    a = prefix_hash_chain(prompts[0], block_size)
    computed(cache, prompts[0], block_size)[0].free(cache)
    for prompt in prompts[1:]:  # the last one needs a block that is taken
        computed(cache, prompt, block_size)[0].free(cache)
        cache.free(cache.lookup(a))
    assert len(cache.lookup(a)) == 1
    assert [len(cache.lookup(prefix_hash_chain(prompt, block_size))) for prompt in prompts[1:]] == [0, 1, 1, 1]


@pytest.mark.parametrize("block_size", [2, 3, 4, 16])
def test_B45_a_shared_block_is_one_block(block_size):
    """sgl-project/sglang#35270, vllm-project/vllm#57336: shared pages counted twice; block usage hid empty slots."""
    cache, prompt = PrefixCache(BlockAllocator(10)), list(range(2 * block_size + 1))
    tables = [computed(cache, prompt, block_size)[0] for _ in range(3)]
    assert tables[0].blocks[:2] == tables[1].blocks[:2] == tables[2].blocks[:2]
    assert cache.num_blocks - cache.num_free == 2 + 3  # two shared, and the last one of each
    for table in tables[:2]:
        table.free(cache)
    assert (cache.num_free, cache.num_cached_free) == (7, 0), "the third one holds all that is published"
    assert (tables[2].num_tokens, tables[2].capacity) == (2 * block_size + 1, 3 * block_size)
    tables[2].free(cache)
    assert (cache.num_free, cache.num_cached_free) == (10, 2)


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

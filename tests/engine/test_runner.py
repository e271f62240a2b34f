"""One packed step of many requests computes what the model computes for each request alone."""

import pytest
import torch

from pagedlab.cache.allocator import BlockAllocator
from pagedlab.cache.paged import PagedKVCache
from pagedlab.cache.table import BlockTable
from pagedlab.engine.request import Request
from pagedlab.engine.runner import Batch, ModelRunner
from pagedlab.engine.scheduler_output import SchedulerOutput
from pagedlab.kernels import ops
from pagedlab.model.tiny import tiny_llama

BACKENDS = ["torch", *sorted({"cpu"} & set(ops.BACKENDS))]


@pytest.fixture(scope="module")
def tiny():
    return tiny_llama()


class World:
    """A pool full of NaN, and requests that are stepped by hand."""

    def __init__(self, model, block_size, num_blocks=60, backend="torch"):
        config = model.config
        shape = config.num_hidden_layers, num_blocks, config.num_key_value_heads, block_size, config.head_dim
        self.pool = PagedKVCache(*shape)
        self.pool.poison(range(num_blocks))
        self.allocator = BlockAllocator(num_blocks)
        self.allocator.allocate(3)  # so that block numbers are not positions
        self.runner = ModelRunner(model, self.pool, backend)

    def request(self, name, tokens, max_tokens=20):
        request = Request(name, tokens, max_tokens)
        request.table = BlockTable(self.pool.block_size)
        return request

    def step(self, scheduled):
        for request, num_tokens in scheduled:
            request.table.append_tokens(num_tokens, self.allocator)
        logits, requests = self.runner.execute(scheduled)
        for request, num_tokens in scheduled:
            request.num_computed_tokens += num_tokens
        return dict(zip([request.request_id for request in requests], logits, strict=True))


def alone(model, tokens):
    return model(tokens, logits_to_keep=1)[0]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("block_size", [1, 2, 3, 16, 50])
def test_prompts_chunks_and_decodes_in_one_step(tiny, block_size, backend):
    world = World(tiny, block_size, num_blocks=200, backend=backend)
    old = world.request("old", [1, 2, 3, 4, 5])
    chunked = world.request("chunked", list(range(30)))
    assert list(world.step([(old, 5), (chunked, 7)])) == ["old"]
    old.output_token_ids.append(9)
    new, short = world.request("new", [7, 7, 8, 9, 6, 5]), world.request("short", [42])
    logits = world.step([(chunked, 23), (old, 1), (new, 6), (short, 1)])
    assert set(logits) == {"chunked", "old", "new", "short"}
    for request in (old, chunked, new, short):
        expected = alone(tiny, request.token_ids)
        torch.testing.assert_close(logits[request.request_id], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nobody_sees_another_request(tiny, backend):
    world = World(tiny, 4, backend=backend)
    a, b = world.request("a", [1, 2, 3]), world.request("b", [1, 2, 3])
    both = world.step([(a, 3), (b, 3)])
    torch.testing.assert_close(both["a"], both["b"], rtol=0, atol=1e-5)
    a.output_token_ids.append(5)
    b.output_token_ids.append(6)
    both = world.step([(b, 1), (a, 1)])
    torch.testing.assert_close(both["a"], alone(tiny, [1, 2, 3, 5]), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(both["b"], alone(tiny, [1, 2, 3, 6]), rtol=1e-4, atol=1e-4)


def test_only_the_last_token_of_a_request_has_logits(tiny):
    world = World(tiny, 4)
    request = world.request("a", list(range(10)))
    assert world.step([(request, 4)]) == {} and world.step([(request, 5)]) == {}
    assert list(world.step([(request, 1)])) == ["a"]


def test_an_empty_step(tiny):
    logits, requests = World(tiny, 4).runner.execute([])
    assert logits.shape == (0, 97) and requests == []


def test_the_same_step_again_does_the_same(tiny):
    world = World(tiny, 3)
    request, other = world.request("a", list(range(8))), world.request("b", [4])
    for each, num_tokens in ((request, 8), (other, 1)):
        each.table.append_tokens(num_tokens, world.allocator)
    first, _ = world.runner.execute([(request, 8), (other, 1)])
    again, _ = world.runner.execute([(request, 8), (other, 1)])
    assert torch.equal(first, again)
    assert request.num_computed_tokens == 0 and request.output_token_ids == []


def test_the_description_of_a_batch(tiny):
    world = World(tiny, 2)
    long, short = world.request("long", [10, 11, 12, 13, 14]), world.request("short", [20, 21, 22])
    long.num_computed_tokens, short.num_computed_tokens = 1, 2
    long.table.append_tokens(4, world.allocator)
    short.table.append_tokens(3, world.allocator)
    assert (long.table.blocks, short.table.blocks) == ([3, 4], [5, 6])
    batch = Batch([(long, 3), (short, 1)], world.pool)
    assert batch.requests == [short, long] and batch.num_decode == 1
    assert batch.token_ids.tolist() == [22, 11, 12, 13]
    assert batch.positions.tolist() == [2, 1, 2, 3]
    assert batch.slot_mapping.tolist() == [12, 7, 8, 9]
    assert batch.seq_lens.tolist() == [3, 4]
    assert batch.query_start_loc.tolist() == [0, 1, 4]
    assert batch.block_tables.tolist() == [[5, 6], [3, 4]]
    assert batch.sampling == [short] and batch.last_rows.tolist() == [0]


def test_tables_of_different_lengths_are_padded(tiny):
    world = World(tiny, 2)
    long, short = world.request("long", list(range(9))), world.request("short", [1])
    long.table.append_tokens(9, world.allocator)
    short.table.append_tokens(1, world.allocator)
    assert Batch([(short, 1), (long, 9)], world.pool).block_tables.tolist() == [[8, -1, -1, -1, -1], [3, 4, 5, 6, 7]]


def test_a_table_that_has_not_grown(tiny):
    world = World(tiny, 2)
    request = world.request("a", [1, 2, 3])
    request.table.append_tokens(2, world.allocator)
    with pytest.raises(ValueError, match="request 'a': 3 tokens.*1 blocks of 2"):
        world.runner.execute([(request, 3)])


def test_a_table_with_a_block_that_is_not_there(tiny):
    world = World(tiny, 2)
    request = world.request("a", [1, 2, 3])
    request.table.adopt([3, 77], 3)
    with pytest.raises(IndexError):
        world.runner.execute([(request, 3)])


def test_two_requests_that_write_to_the_same_slot(tiny):
    world = World(tiny, 2)
    a, b = world.request("a", [1]), world.request("b", [2])
    a.table.adopt([7], 1)
    b.table.adopt([7], 1)
    with pytest.raises(ValueError, match="slot 14"):
        world.runner.execute([(a, 1), (b, 1)])


def test_memory_moves_are_made_in_order(tiny):
    calls = []

    class Space:
        def swap_out(self, pairs):
            calls.append(("out", pairs))

        def swap_in(self, pairs):
            calls.append(("in", pairs))

    world = World(tiny, 2)
    runner = ModelRunner(tiny, world.pool, "torch", Space())
    world.pool.copy_blocks = lambda pairs: calls.append(("copy", pairs))
    runner.move(SchedulerOutput(swap_in=[(0, 1)], swap_out=[(1, 2)], blocks_to_copy=[(3, 4)]))
    assert calls == [("out", [(1, 2)]), ("in", [(0, 1)]), ("copy", [(3, 4)])]
    runner.move(SchedulerOutput())
    assert len(calls) == 3


def test_a_pool_that_does_not_fit_the_model(tiny):
    with pytest.raises(ValueError, match="2 layers, the pool 3"):
        ModelRunner(tiny, PagedKVCache(3, 4, 2, 4, 8))
    with pytest.raises(TypeError, match="bfloat16"):
        ModelRunner(tiny, PagedKVCache(2, 4, 2, 4, 8, torch.bfloat16))
    with pytest.raises(ValueError, match="2 kv heads of 8"):
        ModelRunner(tiny, PagedKVCache(2, 4, 1, 4, 8))
    with pytest.raises(ValueError, match="model is on cpu, the pool on meta"):
        ModelRunner(tiny, PagedKVCache(2, 4, 2, 4, 8, device="meta"))
    with pytest.raises(ValueError, match="backend"):
        ModelRunner(tiny, PagedKVCache(2, 4, 2, 4, 8), backend="abacus")

"""Bugs of real schedulers and engines, restated as tests of ours.

Each was reported in public, for the project and under the number its docstring names. What went wrong there is told in
one sentence; the test is what must be true instead. B12 is `pytest -k B12`.

The model is one of hashes on pages (`tests/engine/hash_model.py`): `server.run()` asserts that every output is what the
request comes to alone, that every invariant held around every step, and that all blocks are back in the end.
"""

import pytest

from pagedlab.engine.limits import NeverFitsError
from pagedlab.engine.request import Request, RequestStatus
from pagedlab.engine.scheduler import DuplicateRequestError
from pagedlab.engine.trace import ScheduleTrace
from tests.engine.hash_model import Server, alone

BLOCK_SIZES = [1, 2, 3, 16]

block_sizes = pytest.mark.parametrize("block_size", BLOCK_SIZES)


def prompt(num_tokens, start=0):
    return [start + i for i in range(num_tokens)]


def scheduled(output):
    return {request.request_id: num_tokens for request, num_tokens in output.scheduled}


def until_preempted(server, request):
    while not request.num_preemptions:
        server.step()


@block_sizes
@pytest.mark.parametrize("num_cpu_blocks", [None, 1, 100])
def test_B10_a_preempted_request_leaves_no_table_behind(block_size, num_cpu_blocks):
    """vllm-project/vllm#10013: preemption freed one of a request's two tables, and re-admission found the other."""
    server = Server(8, block_size, watermark=0, num_cpu_blocks=num_cpu_blocks)
    server.add("a", prompt(4 * block_size), 4 * block_size)
    b = server.add("b", prompt(4 * block_size, 500), 4 * block_size)
    until_preempted(server, b)
    assert b.table.blocks == [] and b.table.num_tokens == 0
    assert len(b.cpu_blocks) == (4 if num_cpu_blocks == 100 else 0)
    while b.status is not RequestStatus.RUNNING:
        server.step()
    assert len(b.table.blocks) == 5 and b.cpu_blocks == []
    server.run()


@block_sizes
def test_B11_abort_takes_the_samples_with_it(block_size):
    """vllm-project/vllm#14326: aborting a request with n > 1 left its children running forever."""
    for steps in range(5):
        server = Server(60, block_size, prefix_cache=True)
        server.add("a", prompt(2 * block_size + 1), 20, n=3)
        server.add("other", prompt(3, 500), 6)
        for _ in range(steps):
            server.step()
        server.fork(server.fork(server.requests["a"], "fork", seed=7), "fork of the fork", seed=8)
        server.abort("a")
        assert list(server.scheduler.requests) == ["other"]
        held = set(server.requests["other"].table.blocks)
        assert server.allocator.num_free == 60 - len(held)
        server.run()


@block_sizes
def test_B12_a_prompt_that_is_wholly_cached_computes_a_token(block_size):
    """GeeeekExplorer/nano-vllm#114, vllm-project/vllm#3193: with every block cached, nothing was left to compute."""
    server = Server(20, block_size, prefix_cache=True)
    server.add("first", prompt(2 * block_size), 3)
    first = server.run()["first"]
    server.add("again", prompt(2 * block_size), 3)
    assert scheduled(server.step())["again"] == block_size
    assert server.run()["again"] == first


@block_sizes
def test_B13_a_hit_ends_with_a_block(block_size):
    """vllm-project/vllm#11186, vllm-project/vllm#17999: the hit was cut by one token, and blocks no longer lined up."""
    for num_tokens in range(1, 3 * block_size + 1):
        server = Server(20, block_size, prefix_cache=True)
        for name in ("first", "second", "third"):
            server.add(name, prompt(num_tokens), 1)
            server.run()
        hits = [server.requests[name].num_cached_tokens for name in ("first", "second", "third")]
        assert hits == [0] + [(num_tokens - 1) // block_size * block_size] * 2


@block_sizes
def test_B14_a_last_chunk_that_ends_with_a_block(block_size):
    """vllm-project/vllm#7371: chunked prefill failed where the last chunk filled the last block."""
    for budget in range(1, 2 * block_size + 2):
        server = Server(6, block_size, max_num_batched_tokens=budget)
        request = server.add("a", prompt(2 * block_size), 2)
        while not request.output_token_ids:
            server.step()
        assert len(request.table.blocks) == 2
        server.scheduler.schedule()
        assert len(request.table.blocks) == 3  # there before the token is written
        server.scheduler.undo(server.outputs[-1])
        server.run()


@block_sizes
def test_B15_a_preempted_request_keeps_its_sampled_token(block_size):
    """GeeeekExplorer/nano-vllm#217: preempted just over a block's edge, it lost a token, and then it lacked a block."""
    for num_stored in range(max(1, block_size - 1), block_size + 2):
        server = Server(50, block_size)
        request = server.add("a", prompt(1), block_size + 4)
        while request.num_computed_tokens < num_stored:
            server.step()
        before = list(request.output_token_ids)
        server.scheduler._preempt(request, server.scheduler.schedule())
        assert request.num_tokens == num_stored + 1
        assert scheduled(server.step())["a"] == num_stored + 1
        assert request.output_token_ids[:-1] == before and len(request.output_token_ids) == len(before) + 1
        server.run()


@block_sizes
def test_B17_the_newest_token_has_no_key_yet_and_gets_its_slot_first(block_size):
    """GeeeekExplorer/nano-vllm#66, GeeeekExplorer/nano-vllm#240: readers could not tell if a new token was stored."""
    server = Server(10, block_size)
    request = server.add("a", prompt(block_size), 3)
    server.step()
    assert (request.num_tokens, request.num_computed_tokens) == (block_size + 1, block_size)
    assert request.table.num_tokens == block_size and len(request.table.blocks) == 1
    output = server.scheduler.schedule()
    assert (
        request.table.slot(block_size) == request.table.blocks[1] * block_size
    )  # position B: the second block's first
    server.scheduler.undo(output)
    server.run()


@pytest.mark.parametrize("block_size", [*BLOCK_SIZES, 50])
def test_B18_every_block_size(block_size):
    """GeeeekExplorer/nano-vllm: with blocks of one token, no block was ever allocated for the second token."""
    server = Server(max(4, 40 // block_size), block_size, prefix_cache=True)
    for index in range(5):
        server.add(f"r{index}", prompt(5 + index), 12, seed=index)
    server.run()


@block_sizes
def test_B20_hits_are_safe_from_eviction_and_counted_once(block_size):
    """NVIDIA/Megatron-LM#5822: blocks of a hit were counted as reusable and as evictable, or evicted before use."""
    server = Server(6, block_size, prefix_cache=True, watermark=0)
    server.add("old", prompt(3 * block_size + 1), 1)
    server.run()
    cached = [server.allocator.contents()[h] for h in server.requests["old"].hash_chain.hashes[:3]]
    assert server.allocator.num_free == 6 and set(cached) <= set(server.allocator.cached_free_blocks)
    server.add("new", prompt(3 * block_size) + prompt(3 * block_size, 500), 1)
    server.step()  # takes all 6: 3 that it finds, and 3 more, for which nothing it found is evicted
    assert server.requests["new"].num_cached_tokens == 3 * block_size
    server.run()

    server = Server(6, block_size, prefix_cache=True, watermark=0)
    server.add("old", prompt(2 * block_size), 2 * block_size + 1)
    server.step()  # holds 2 blocks, published
    server.add("new", prompt(2 * block_size) + prompt(2 * block_size, 500), 2)
    output = server.step()  # the 2 it shares take nothing from the free ones: 2 more of its own are enough
    assert scheduled(output)["new"] == 2 * block_size
    assert server.allocator.num_free == 6 - 3 - 2
    server.run()


@block_sizes
def test_B21_a_prompt_larger_than_the_pool_is_refused_and_holds_up_nobody(block_size):
    """vllm-project/vllm#1673, GeeeekExplorer/nano-vllm#274: it waited forever, and everybody behind it too."""
    server = Server(4, block_size)
    with pytest.raises(NeverFitsError, match=f"5 blocks of {block_size}, but the whole pool has 4"):
        server.add("large", prompt(4 * block_size + 1), 1)
    server.add("short", prompt(2), 2)
    assert server.run().keys() == {"short"}


@block_sizes
def test_B22_the_limit_is_exact(block_size):
    """vllm-project/vllm#2163, RBLN-SW/vllm-rbln#957: the largest prompt that was let in did not fit."""
    server = Server(4, block_size)
    usable = 4 * block_size
    server.add("just fits", prompt(usable), 1)
    with pytest.raises(NeverFitsError):
        server.add("one more", prompt(usable + 1), 1)
    server.run()


@block_sizes
def test_B24_nobody_outgrows_the_pool(block_size):
    """vllm-project/vllm#56028, sgl-project/sglang#19881: it fitted at first, outgrew the pool, started over forever."""
    server = Server(3, block_size)
    with pytest.raises(NeverFitsError, match="4 blocks"):
        server.add("a", prompt(2 * block_size), 2 * block_size + 1)
    for index in range(3):  # each alone takes all there is
        server.add(f"r{index}", prompt(2 * block_size, index), block_size + 1)
    server.run()
    assert server.num_preemptions <= 2 * 3


def test_B25_without_chunks_the_budget_is_a_limit_too():
    """vllm-project/vllm#55130, vllm-project/vllm-metal#200: a prompt over the budget was let in and never scheduled."""
    for block_size in BLOCK_SIZES:
        server = Server(40, block_size, max_num_batched_tokens=8, chunked_prefill=False)
        server.add("eight", prompt(8), 1)
        with pytest.raises(NeverFitsError, match="up to 9 tokens .* at most max_num_batched_tokens=8"):
            server.add("nine", prompt(9), 1)
        with pytest.raises(NeverFitsError):  # preempted after its second token, it is nine tokens long as well
            server.add("grows", prompt(8), 2)
        server.run()
        server = Server(40, block_size, max_num_batched_tokens=8)
        server.add("eight", prompt(8), 3)
        server.add("nine", prompt(9), 3)
        server.run()


@block_sizes
def test_B27_who_comes_back_has_room_for_all_of_it(block_size):
    """vllm-project/vllm#25538, vllm-project/vllm#28018: it came back for its first chunk, and had to go again."""

    def serve(watermark):
        server = Server(40, block_size, watermark=watermark, max_num_batched_tokens=32)
        for index in range(16):
            server.add(f"r{index}", prompt(4 * block_size, 100 * index), 6 * block_size, seed=index)
        return server.run(), server.num_preemptions

    outputs, preemptions = serve(0)
    guarded, fewer = serve(0.2)
    assert outputs == guarded
    assert fewer < preemptions

    server = Server(10, block_size, watermark=0, max_num_batched_tokens=block_size)
    server.add("runs", prompt(block_size), 5 * block_size)
    server.step()
    server.add("long", prompt(10 * block_size, 500), 1)
    for _ in range(block_size):
        server.step()
    assert server.requests["long"].status is RequestStatus.WAITING  # its first chunk would have fitted
    server.run()


@block_sizes
def test_B28_the_watermark_is_for_those_who_come(block_size):
    """vllm-project/vllm#11, vllm-project/vllm#255, vllm-project/vllm#44594: it held up those running, or all."""
    server = Server(10, block_size, watermark=0.5)
    server.add("large", prompt(8 * block_size), 2 * block_size + 1)
    assert scheduled(server.step()) == {"large": 8 * block_size}  # nobody else is there: no watermark
    server.add("small", prompt(1, 500), 1)
    while "large" in server.scheduler.requests:  # it grows into the part that stays free
        assert scheduled(server.step()) == {"large": 1}
    server.run()
    assert server.num_preemptions == 0

    resumed = Server(10, block_size, watermark=0.5)  # and for those who come back
    resumed.add("a", prompt(4 * block_size), 6 * block_size)
    b = resumed.add("b", prompt(block_size, 500), 5 * block_size)
    while not b.num_preemptions:
        output = resumed.step()
    while b.status is RequestStatus.PREEMPTED:
        output = resumed.step()
    assert "a" not in scheduled(output) or resumed.allocator.num_free >= 5
    resumed.run()


@block_sizes
@pytest.mark.parametrize("num_cpu_blocks", [None, 2, 20])
def test_B29_nobody_holds_blocks_behind_a_head_that_lacks_them(block_size, num_cpu_blocks):
    """vllm-project/vllm#45388: the first in line could not come in for want of blocks that one behind it held."""
    server = Server(6, block_size, watermark=0, num_cpu_blocks=num_cpu_blocks, max_num_batched_tokens=2 * block_size)
    server.add("beam", prompt(block_size), 3)
    server.held.add("beam")
    server.step()  # sampled, it waits for its next token with a block in its hands
    server.add("oversized", prompt(6 * block_size, 500), 1)
    server.add("behind", prompt(2, 900), 2)
    while "oversized" in server.scheduler.requests:
        assert server.step().scheduled
    while server.scheduler.requests:
        for name in list(server.pending):
            server.deliver(server.requests[name])
        if server.scheduler.requests:
            assert server.step().scheduled
    server.check_end()


@block_sizes
def test_B38_tokens_are_counted_after_the_hit_is_known(block_size):
    """GeeeekExplorer/nano-vllm#207, NVIDIA/TensorRT-LLM#13318: the hit's tokens were scheduled too, past the end."""
    num_tokens = 2 * block_size + max(1, block_size // 2)
    server = Server(20, block_size, prefix_cache=True)
    server.add("first", prompt(block_size) + prompt(2, 500), 1)
    server.run()
    request = server.add("second", prompt(num_tokens), 2)
    assert scheduled(server.step()) == {"second": num_tokens - block_size}
    assert request.num_computed_tokens == num_tokens
    server.run()


@block_sizes
@pytest.mark.parametrize("order", ["as scheduled", "in reverse"])
def test_B39_a_block_is_published_when_it_is_computed(block_size, order):
    """vllm-project/vllm#7822, GeeeekExplorer/nano-vllm#208: others read a block its owner had yet to compute."""
    server = Server(40, block_size, prefix_cache=True)
    execute = server.model.execute
    if order == "in reverse":
        server.model.execute = lambda scheduled, stop_after: execute(scheduled[::-1], stop_after)
    server.add("a", prompt(3 * block_size), 2)
    server.add("b", prompt(3 * block_size), 2)
    assert scheduled(server.step()) == {"a": 3 * block_size}  # b would compute the same, and waits a step ...
    server.add("c", prompt(3 * block_size), 2)
    assert scheduled(server.step()) == {"a": 1, "b": block_size, "c": block_size}  # ... then both are hits
    server.run()


@block_sizes
def test_B44_a_hit_and_a_miss_in_one_step(block_size):
    """vllm-project/vllm#7018: the row of the miss got a block table of zeros because the other row was a hit."""
    server = Server(40, block_size, prefix_cache=True)
    server.add("first", prompt(2 * block_size + 1), 1)
    server.run()
    hit = server.add("hit", prompt(2 * block_size + 1), 3)
    miss = server.add("miss", prompt(2 * block_size + 1, 500), 3)
    server.step()
    assert (hit.num_cached_tokens, miss.num_cached_tokens) == (2 * block_size, 0)
    assert len(set(hit.table.blocks) | set(miss.table.blocks)) == 6
    outputs = server.run()
    for request in (hit, miss):
        assert outputs[request.request_id] == alone(request, block_size)


@block_sizes
def test_B45_shared_blocks_are_counted_once_and_slots_are_told(block_size):
    """sgl-project/sglang#35270, vllm-project/vllm#57336: shared pages counted twice; blocks said nothing of tokens."""
    server = Server(20, block_size)
    server.add("a", prompt(2 * block_size), 3, n=3)
    trace = ScheduleTrace()
    for _ in range(2):
        output = server.step()
        trace.record(server.requests.values(), output, server.allocator)
    shared, own = trace.steps
    assert (shared.blocks_used, shared.token_slots_used) == (2, 2 * block_size)
    assert (own.blocks_used, own.token_slots_used) == (5, 2 * block_size + 3)
    server.run()


@block_sizes
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_B47_a_preempted_request_keeps_its_place(block_size, policy):
    """vllm-project/vllm#41951: a request that came back stood behind newer ones."""
    server = Server(8, block_size, watermark=0, policy=policy)
    server.add("oldest", prompt(4 * block_size), 4 * block_size)
    a = server.add("a", prompt(4 * block_size, 500), 2)
    b = server.add("b", prompt(4 * block_size, 900), 2)
    until_preempted(server, a)
    assert server.scheduler.waiting == [a, b]
    server.run()
    came_in = dict.fromkeys(name for output in server.outputs for name in scheduled(output))
    assert list(came_in) == ["oldest", "a", "b"]


@block_sizes
def test_B48_who_comes_back_starts_over_with_new_blocks(block_size):
    """LMCache/LMCache#2069, vllm-project/vllm-gaudi#524: old block ids were extended, outputs counted twice."""
    server = Server(20, block_size, watermark=0)
    request = server.add("a", prompt(block_size + 1), 10)
    while len(request.output_token_ids) < 5:
        server.step()
    server.scheduler._preempt(request, server.scheduler.schedule())
    others = server.allocator.allocate(4)  # what it held is somebody else's now
    num_tokens = block_size + 1 + 5
    output = server.scheduler.schedule()
    assert scheduled(output) == {"a": num_tokens} and output.resumed == [request]
    assert not set(request.table.blocks) & set(others)
    assert (request.num_computed_tokens, request.table.num_tokens, request.num_tokens) == (0, num_tokens, num_tokens)
    server.scheduler.undo(output)
    server.allocator.free(others)
    server.run()


@block_sizes
@pytest.mark.parametrize("num_cpu_blocks", [0, 1, 3])
def test_B50_a_full_swap_space_is_no_end(block_size, num_cpu_blocks):
    """vllm-project/vllm#787, vllm-project/vllm#2853: with the swap space used up, the engine stopped or stalled."""
    server = Server(12, block_size, watermark=0, num_cpu_blocks=num_cpu_blocks)
    for index in range(6):
        server.add(f"r{index}", prompt(2 * block_size, 100 * index), 5 * block_size, seed=index, n=1 + index % 2)
    server.run()
    recomputed = [o for o in server.outputs if len(o.preempted) > len({cpu for _, cpu in o.swap_out})]
    assert recomputed, "the swap space was never too small: this tests nothing"


@block_sizes
def test_B51_room_to_come_back_is_counted_in_full(block_size):
    """vllm-project/vllm#16825, vllm-project/vllm#6849: leftovers of a swapped request were counted as its own."""
    server = Server(12, block_size, watermark=0, num_cpu_blocks=12, prefix_cache=True, max_num_batched_tokens=1000)
    server.add("a", prompt(block_size), 11 * block_size)
    b = server.add("b", prompt(10 * block_size, 500), 2)
    server.step()
    until_preempted(server, b)
    assert b.status is RequestStatus.SWAPPED and len(b.cpu_blocks) == 10
    assert len(server.allocator.cached_free_blocks) >= 9  # its leftovers are in the pool, published
    while b.status is RequestStatus.SWAPPED:
        num_free = server.allocator.num_free
        server.step()
        assert (b.status is not RequestStatus.SWAPPED) == (num_free >= 11)  # its 10, and 1 for its next token
    server.run()


@block_sizes
def test_B52_out_then_in_then_copies(block_size):
    """NVIDIA/TensorRT-LLM#8813: blocks were given to others before they had been copied out: other prompts' text."""
    server = Server(8, block_size, watermark=0, num_cpu_blocks=8)
    server.add("a", prompt(4 * block_size), 4 * block_size)
    b = server.add("b", prompt(4 * block_size, 500), 4)
    server.step()
    contents = [list(server.model.blocks[block]) for block in b.table.blocks]
    until_preempted(server, b)
    given_on = {gpu for gpu, _ in server.outputs[-1].swap_out} & set(server.outputs[-1].new_blocks)
    assert given_on, "none of its blocks was given to another one in this step"
    while b.status is RequestStatus.SWAPPED:
        server.step()
    stored = [list(server.model.blocks[block]) for block in b.table.blocks]
    assert stored[: len(contents)] == contents
    server.run()


STATES = ["waiting", "in the middle of its prompt", "running", "preempted", "swapped", "finished"]


@block_sizes
@pytest.mark.parametrize("state", STATES)
def test_B53_abort_in_any_state(block_size, state):
    """sgl-project/sglang#18701, sgl-project/sglang#1674: a request aborted while swapped out left its copy behind."""
    server = Server(
        8,
        block_size,
        watermark=0,
        num_cpu_blocks=8 if state == "swapped" else None,
        max_num_batched_tokens=1 if state == "in the middle of its prompt" else 1000,
        prefix_cache=True,
    )
    server.add("older", prompt(4 * block_size), 4 * block_size)
    request = server.add("a", prompt(3 * block_size + 1, 500), 4, n=2 if state == "running" else 1)
    reached = {
        "waiting": lambda: request.status is RequestStatus.WAITING,
        "in the middle of its prompt": lambda: 0 < request.num_computed_tokens < request.num_prompt_tokens,
        "running": lambda: request.status is RequestStatus.RUNNING,
        "preempted": lambda: request.status is RequestStatus.PREEMPTED,
        "swapped": lambda: request.status is RequestStatus.SWAPPED,
        "finished": lambda: request.status.is_finished,
    }[state]
    if state == "in the middle of its prompt":
        server.abort("older")
    while not reached():
        server.step()
    server.abort("a")
    assert request.status is (RequestStatus.FINISHED_LENGTH if state == "finished" else RequestStatus.FINISHED_ABORTED)
    server.check()
    server.abort("older")
    server.check_end()
    assert len(server.scheduler.requests) == 0


def test_B56_an_id_is_used_once_at_a_time():
    """vllm-project/vllm#15043: a second request with the id of one that ran took its place in the books."""
    for block_size in BLOCK_SIZES:
        server = Server(20, block_size)
        server.add("a", prompt(5), 4)
        server.step()
        with pytest.raises(DuplicateRequestError, match="'a' is taken by one that is RUNNING"):
            server.scheduler.add(Request("a", prompt(2, 500), 9))
        assert len(server.scheduler.requests) == 1
        server.run()

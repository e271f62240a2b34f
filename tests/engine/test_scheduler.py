import random

import pytest

from pagedlab.cache.allocator import BlockAllocator
from pagedlab.cache.table import BlockTable
from pagedlab.engine.limits import NeverFitsError
from pagedlab.engine.request import Request, RequestStatus
from pagedlab.engine.scheduler import DuplicateRequestError, Scheduler, StuckError
from pagedlab.engine.scheduler_output import SchedulerOutput
from tests.engine.hash_model import Server

BLOCK_SIZES = [1, 2, 3, 16]


def prompt(num_tokens, start=0):
    return [start + i for i in range(num_tokens)]


def names(requests):
    return [request.request_id for request in requests]


def scheduled(output):
    return [(request.request_id, num_tokens) for request, num_tokens in output.scheduled]


# The order of turns.


def test_first_come_first_served():
    server = Server(100, 4, max_num_batched_tokens=10)
    for index in range(3):
        server.add(f"r{index}", prompt(6, index), 4, priority=-index)  # priorities are not looked at
    assert scheduled(server.step()) == [("r0", 6), ("r1", 4)]
    assert scheduled(server.step()) == [("r0", 1), ("r1", 2), ("r2", 6)]
    assert scheduled(server.step()) == [("r0", 1), ("r1", 1), ("r2", 1)]
    server.run()


def test_by_priority_and_then_as_they_came():
    server = Server(100, 4, policy="priority", max_num_seqs=2)
    for name, priority in [("low", 5), ("high", 1), ("high too", 1), ("highest", -3)]:
        server.add(name, prompt(4), 3, priority=priority)
    assert names(server.scheduler.waiting) == ["highest", "high", "high too", "low"]
    assert scheduled(server.step()) == [("highest", 4), ("high", 4)]
    server.run()
    came_in = dict.fromkeys(name for output in server.outputs for name, _ in scheduled(output))
    assert list(came_in) == ["highest", "high", "high too", "low"]


def test_the_least_urgent_makes_room_not_the_newest():
    server = Server(4, 2, policy="priority", watermark=0)
    server.add("late", prompt(2), 6, priority=9)
    server.add("urgent", prompt(2, 5), 6, priority=1)
    server.run()
    assert server.requests["late"].num_preemptions >= 1
    assert server.requests["urgent"].num_preemptions == 0


def test_a_preempted_request_keeps_its_turn():
    server = Server(6, 2, watermark=0)
    for index in range(3):
        server.add(f"r{index}", prompt(3, 10 * index), 6)
    server.add("newest", prompt(3, 50), 1)
    while not server.num_preemptions:
        server.step()
    preempted = server.outputs[-1].preempted
    assert names(server.scheduler.waiting)[: len(preempted)] == sorted(names(preempted))
    assert names(server.scheduler.waiting)[-1] == "newest"
    server.run()


def test_nobody_overtakes():
    server = Server(8, 2, watermark=0)
    server.add("runs", prompt(6), 6)
    server.step()
    server.add("long", prompt(14), 2)
    server.add("short", prompt(1), 1)
    server.step()
    assert names(server.scheduler.waiting) == ["long", "short"]
    server.run()


# The budget.


def test_chunks_and_decodes_share_a_step():
    server = Server(100, 4, max_num_batched_tokens=8)
    server.add("chat", prompt(3), 10)
    server.step()
    server.add("document", prompt(20, 50), 2)
    steps = [scheduled(server.step()) for _ in range(4)]
    assert steps == [
        [("chat", 1), ("document", 7)],
        [("chat", 1), ("document", 7)],
        [("chat", 1), ("document", 6)],
        [("chat", 1), ("document", 1)],
    ]
    server.run()


def test_without_chunks_a_prompt_waits_until_it_fits_whole():
    server = Server(100, 4, max_num_batched_tokens=8, chunked_prefill=False)
    server.add("a", prompt(5), 4)
    server.add("b", prompt(7, 50), 2)
    server.add("c", prompt(1, 80), 2)
    assert scheduled(server.step()) == [("a", 5)]  # c does not overtake b
    assert scheduled(server.step()) == [("a", 1), ("b", 7)]
    server.run()


def test_max_num_seqs_counts_samples_to_come():
    server = Server(100, 4, max_num_seqs=4)
    server.add("three", prompt(5), 4, n=3)
    server.add("two", prompt(5, 50), 2, n=2)
    server.add("one", prompt(5, 70), 2)
    assert scheduled(server.step()) == [("three", 5)]
    assert len(server.scheduler.running) == 3 and sum(r.seats for r in server.scheduler.running) == 3
    server.run()
    assert max(len(output.scheduled) for output in server.outputs) <= 4


def test_a_split_of_your_own():
    def oldest_takes_all(wanted, budget):
        shares = []
        for tokens in wanted:
            shares.append(min(tokens, budget))
            budget -= shares[-1]
        return shares

    server = Server(100, 4, max_num_batched_tokens=4, split_budget=oldest_takes_all)
    server.add("a", prompt(10), 3)
    server.add("b", prompt(2, 30), 3)
    server.run()


@pytest.mark.parametrize("shares", [[], [9], [-1], [1, 1]])
def test_a_wrong_split_is_told(shares):
    server = Server(100, 4, max_num_batched_tokens=8, split_budget=lambda wanted, budget: shares)
    server.add("a", prompt(20), 3)
    with pytest.raises(ValueError, match=r"split_budget gave .* for \[20\] and a budget of 8"):
        server.step()
    server.check()


# Memory.


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("swap", [None, 2, 100])
def test_outputs_do_not_depend_on_the_pool(block_size, swap):
    def outputs(num_blocks, num_cpu_blocks):
        server = Server(num_blocks, block_size, num_cpu_blocks=num_cpu_blocks)
        for index in range(6):
            server.add(f"r{index}", prompt(2 + 3 * index), 5 + index, seed=index, n=1 + index % 2)
        return server.run(), server.num_preemptions

    tight, preemptions = outputs(-(-30 // block_size), swap)
    roomy, none = outputs(1000, None)
    assert tight == roomy
    assert preemptions > 0 and none == 0


def test_a_step_never_preempts_the_same_request_twice():
    server = Server(5, 1, watermark=0)
    for index in range(4):
        server.add(f"r{index}", prompt(1, index), 5)
    server.run()
    assert server.num_preemptions > 3
    assert all(len(set(names(o.preempted))) == len(o.preempted) for o in server.outputs)


def test_somebody_had_to_go_so_nobody_comes_in():
    server = Server(12, 1, watermark=0, policy="priority")
    server.add("a", prompt(4), 4, priority=1)
    server.add("b", prompt(8, 20), 4, priority=2)
    server.step()
    server.add("urgent", prompt(3, 40), 1, priority=0)
    output = server.step()
    assert (names(output.preempted), scheduled(output)) == (["b"], [("a", 1)])  # although 7 blocks are free now
    assert scheduled(server.step()) == [("a", 1), ("urgent", 3)]
    server.run()


def test_room_for_all_tokens_not_only_for_the_first_chunk():
    server = Server(10, 1, watermark=0, max_num_batched_tokens=4)
    server.add("a", prompt(4), 4)
    server.step()
    server.add("b", prompt(7, 20), 2)
    assert scheduled(server.step()) == [("a", 1)]  # 3 tokens of b would fit: 5 blocks are free
    server.run()
    assert server.num_preemptions == 0


def test_swapped_requests_come_back_before_anybody_new():
    server = Server(8, 1, watermark=0, num_cpu_blocks=8)
    server.add("a", prompt(4), 4)
    server.add("b", prompt(3, 20), 4)
    while not server.num_preemptions:
        server.step()
    b = server.requests["b"]
    assert b.status is RequestStatus.SWAPPED and b.num_computed_tokens == len(b.cpu_blocks) == 3
    server.add("tiny", prompt(1, 40), 1)
    while b.status is RequestStatus.SWAPPED:
        output = server.step()
        assert "tiny" not in names(request for request, _ in output.scheduled) or names(output.resumed) == ["b"]
    assert dict(scheduled(server.outputs[-1]))["b"] == 1  # nothing is computed again
    server.run()


def test_blocks_held_by_a_stranger_are_told():
    server = Server(8, 2)
    stranger = server.allocator.allocate(6)
    server.add("a", prompt(5), 6)
    for _ in range(2):  # it is told as often as one asks, and nothing breaks
        with pytest.raises(StuckError, match="'a' .* 2 of 8 blocks are free"):
            server.step()
    server.allocator.free(stranger)
    server.run()


# What can never run is refused.


def test_the_largest_request_that_fits_runs_and_the_next_does_not():
    for block_size in BLOCK_SIZES:
        server = Server(4, block_size)
        server.add("fits", prompt(block_size), 3 * block_size + 1)
        with pytest.raises(
            NeverFitsError, match=f"5 blocks of {block_size}, but the whole pool has 4, for {4 * block_size}"
        ):
            server.add("does not", prompt(block_size), 3 * block_size + 2)
        assert list(server.scheduler.requests) == ["fits"]
        server.run()


@pytest.mark.parametrize(
    "options, request_options, message",
    [
        ({"max_model_len": 10}, {"max_tokens": 7}, "stores up to 11 tokens .* more than max_model_len=10"),
        ({"chunked_prefill": False, "max_num_batched_tokens": 10}, {"max_tokens": 7}, "max_num_batched_tokens=10"),
        ({"max_num_seqs": 2}, {"max_tokens": 7, "n": 3}, "wants n=3 .* more than max_num_seqs=2"),
    ],
)
def test_other_limits(options, request_options, message):
    scheduler = Scheduler(BlockAllocator(100), 2, **options)
    with pytest.raises(NeverFitsError, match=message):
        scheduler.add(Request("a", prompt(5), **request_options))
    scheduler.add(Request("a", prompt(5), 6))  # 10 tokens, and the id is still free
    assert names(scheduler.waiting) == ["a"]


def test_an_id_is_taken_until_its_request_is_finished():
    server = Server(10, 2)
    first = server.add("a", prompt(3), 2)
    with pytest.raises(DuplicateRequestError, match="'a' is taken by one that is WAITING"):
        server.scheduler.add(Request("a", [9], 1))
    with pytest.raises(DuplicateRequestError):
        server.scheduler.fork(first, "a")
    server.run()
    server.add("a", prompt(4), 2)
    server.run()


def test_only_new_requests_can_be_added():
    server = Server(10, 2)
    request = server.add("a", prompt(3), 2)
    server.run()
    with pytest.raises(ValueError, match="only a new request can be added"):
        server.scheduler.add(request)
    with pytest.raises(ValueError, match="not finished can be forked"):
        server.scheduler.fork(request, "b")


@pytest.mark.parametrize(
    "options, message",
    [
        ({"max_num_seqs": 0}, "max_num_seqs is 0"),
        ({"max_num_batched_tokens": 0}, "max_num_batched_tokens is 0"),
        ({"max_model_len": 0}, "max_model_len is 0"),
        ({"policy": "fifo"}, "policy is 'fifo'; choose one of 'fcfs', 'priority'"),
        ({"preemption": "drop"}, "preemption is 'drop'; choose one of 'recompute', 'swap'"),
        ({"watermark": 1.0}, "watermark is 1.0"),
        ({"watermark": float("nan")}, "watermark is nan"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        Scheduler(BlockAllocator(4), 2, **options)


# Forks, and beams that wait for each other.


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_forks_share_what_they_have_in_common(block_size):
    server = Server(100, block_size)
    server.add("a", prompt(2 * block_size + 1), 3, n=4)
    server.step()
    full, used = 2, 100 - server.allocator.num_free
    assert used == full + 1
    output = server.step()
    # The first three writers leave the shared block, the last has it to itself; with blocks of 1 token it is full.
    assert len(output.blocks_to_copy) == (3 if block_size > 1 else 0)
    server.run()


def test_a_fork_takes_a_seat_that_was_set_aside():
    scheduler = Scheduler(BlockAllocator(20), 2)
    scheduler.add(request := Request("a", prompt(5), 4, n=3))
    for name, left in [("b", 2), ("c", 1), ("d", 1)]:
        assert scheduler.fork(request, name).seats == 1
        assert request.seats == left


@pytest.mark.parametrize("num_cpu_blocks", [None, 20])
def test_a_fork_of_a_request_without_blocks_starts_from_its_tokens(num_cpu_blocks):
    server = Server(6, 1, watermark=0, num_cpu_blocks=num_cpu_blocks)
    server.add("a", prompt(3), 4)
    server.add("b", prompt(2, 20), 5)
    while not server.num_preemptions:
        server.step()
    b = server.requests["b"]
    child = server.fork(b, "child", seed=5)
    assert child.output_token_ids == b.output_token_ids
    assert child.status is RequestStatus.PREEMPTED and child.num_computed_tokens == 0
    waiting = server.fork(server.add("c", prompt(1), 1), "d", seed=7)
    assert waiting.status is RequestStatus.WAITING and waiting.arrival == server.requests["c"].arrival
    server.run()


def hold_beams(server, count, num_tokens):
    """`count` requests of `num_tokens` tokens each whose next tokens are not chosen yet."""
    for index in range(count):
        server.add(f"beam{index}", prompt(num_tokens, 10 * index), 4, seed=index)
        server.held.add(f"beam{index}")


def test_idle_requests_are_not_scheduled():
    server = Server(10, 2)
    hold_beams(server, 2, 4)
    server.add("other", prompt(3, 50), 4)
    server.step()
    assert scheduled(server.step()) == [("other", 1)]
    assert [r.num_new_tokens for r in server.scheduler.running] == [0, 0, 1]
    for _ in range(2):
        server.step()
    assert not server.scheduler.schedule().scheduled  # all that runs is idle, and nobody waits
    while server.scheduler.requests:
        for name in list(server.pending):
            server.deliver(server.requests[name])
        if server.scheduler.requests:
            server.step()
    server.check_end()


@pytest.mark.parametrize("num_cpu_blocks", [None, 3, 20])
def test_idle_requests_make_room_for_the_first_in_line(num_cpu_blocks):
    """Three beams wait for each other and only one has room: each gets its turn, none comes back before its time."""
    server = Server(7, 1, watermark=0, num_cpu_blocks=num_cpu_blocks)
    hold_beams(server, 3, 4)
    for round_ in range(4):
        steps = 0
        while len(server.pending) < 3:
            assert scheduled(server.step())
            steps += 1
            assert steps <= 3 + round_, "a beam that has been sampled was computed again"
        for name in list(server.pending):
            server.deliver(server.requests[name])
    server.check_end()


def test_idle_requests_make_room_for_want_of_a_seat():
    server = Server(100, 4, max_num_seqs=2)
    hold_beams(server, 3, 4)
    assert scheduled(server.step()) == [("beam0", 4), ("beam1", 4)]
    output = server.step()
    assert (names(output.preempted), scheduled(output)) == (["beam1"], [("beam2", 4)])
    for name in list(server.pending):
        server.abort(name)
    server.check_end()


def test_the_only_one_with_a_share_lacks_a_block():
    """The older one gets nothing of the budget, the newer one no block: a step that only preempts would not help."""
    server = Server(8, 1, watermark=0, max_num_batched_tokens=4)
    server.add("old", prompt(6), 2)
    server.add("new", prompt(2, 40), 4)
    server.step()
    server.step()
    server.scheduler.max_num_batched_tokens = 1
    for output in (server.step() for _ in range(3)):
        assert output.num_tokens == 1
    server.run()


# Errors and interrupts.


class Flaky(BlockAllocator):
    """Says no at the worst moment, though there would be room."""

    fail_in = None

    def allocate(self, n):
        if n and self.fail_in is not None:
            self.fail_in -= 1
            if self.fail_in < 0:
                self.fail_in = None
                raise RuntimeError("no block today")
        return super().allocate(n)


@pytest.mark.parametrize("fail_in", range(8))
@pytest.mark.parametrize("num_cpu_blocks", [None, 4])
def test_an_error_of_the_allocator_undoes_the_step(fail_in, num_cpu_blocks):
    for after in range(6):
        server = Server(12, 2, watermark=0, num_cpu_blocks=num_cpu_blocks)
        server.pool = server.allocator = server.scheduler.allocator = Flaky(12)
        for index in range(4):
            server.add(f"r{index}", prompt(3, 10 * index), 6, seed=index, n=2)
        for _ in range(after):
            server.step()
        server.pool.fail_in = fail_in
        for _ in range(20):
            if server.scheduler.requests:
                try:
                    server.step()
                except RuntimeError:
                    server.check()
        server.run()


@pytest.mark.parametrize("moved", [True, False])
@pytest.mark.parametrize("prefix_cache", [True, False])
def test_interrupted_steps_are_repeated(moved, prefix_cache):
    def serve(interrupts):
        rng = random.Random(3)
        server = Server(14, 2, num_cpu_blocks=6, prefix_cache=prefix_cache, max_num_batched_tokens=8)
        for index in range(5):
            server.add(f"r{index}", prompt(4 + index), 6, seed=index, n=1 + index % 2)
        while server.scheduler.requests:
            if interrupts and rng.random() < 0.4:
                server.step(interrupt_after=rng.randint(0, 6), moved=moved)
            else:
                server.step()
        return server.run()

    assert serve(True) == serve(False)


def test_undo_is_truncation_once_memory_has_moved():
    server = Server(20, 2)
    server.add("a", prompt(5), 4, n=2)
    server.step()
    output = server.scheduler.schedule()
    server.model.move(output)
    before = [list(request.table.blocks) for request, _ in output.scheduled]
    server.scheduler.undo(output)
    for (request, _), blocks in zip(output.scheduled, before, strict=True):
        assert request.table.num_tokens == request.num_computed_tokens == 5
        assert request.table.blocks == blocks  # the copied block is there, and its contents are right
    assert output.blocks_to_copy
    server.check()
    server.run()


def test_a_step_undone_before_memory_moved_starts_over_whom_it_concerned():
    server = Server(20, 2)
    server.add("a", prompt(5), 4, n=2)
    server.add("b", prompt(4, 30), 4)
    server.step()
    output = server.scheduler.schedule()
    server.scheduler.undo(output, moved=False)
    stored = {request.request_id: request.num_computed_tokens for request in server.requests.values()}
    assert stored == {"a": 0, "a/1": 5, "b": 4}  # the first writer took the copy that was never made
    server.run()


# Leaving.


def test_finish_and_abort_are_harmless_again():
    server = Server(20, 2)
    a = server.add("a", prompt(5), 4)
    server.step()
    server.scheduler.finish(a, RequestStatus.FINISHED_LENGTH)
    server.scheduler.finish(a)
    assert a.status is RequestStatus.FINISHED_LENGTH
    assert server.scheduler.abort("a") == [] == server.scheduler.abort("never seen")
    server.scheduler.finish(Request("a", [1], 1))  # another one with this id, which was never added
    server.check()
    assert server.allocator.num_free == 20


def test_finish_leaves_the_status_an_engine_has_set():
    server = Server(20, 2)
    a = server.add("a", prompt(5), 4)
    a.status = RequestStatus.FINISHED_ABORTED
    server.scheduler.finish(a)
    assert a.status is RequestStatus.FINISHED_ABORTED and not server.scheduler.waiting


def test_an_aborted_fork_leaves_the_others_alone():
    server = Server(20, 2)
    server.add("a", prompt(5), 4, n=3)
    server.step()
    server.abort("a/1")
    assert sorted(server.scheduler.requests) == ["a", "a/2"]
    server.run()


# Parts that fit together.


def test_of_takes_any_form():
    request = Request("a", [1, 2], 1)
    output = SchedulerOutput.of([(request, 2)])
    assert output.scheduled == [(request, 2)] and output.num_tokens == 2 and output.swap_out == []
    assert SchedulerOutput.of(output) is output


def test_a_table_class_of_your_own():
    class Table(BlockTable):
        pass

    server = Server(20, 2, table_class=Table, num_cpu_blocks=4)
    request = server.add("a", prompt(5), 4, n=2)
    server.step()
    assert type(request.table) is Table and type(server.requests["a/1"].table) is Table
    server.run()


def test_prefix_hits_come_first_and_leave_a_token_to_compute():
    server = Server(20, 4, prefix_cache=True)
    server.add("a", prompt(8), 2)
    server.run()
    server.add("b", prompt(8), 2)
    server.add("c", prompt(9), 2)
    output = server.step()
    assert scheduled(output) == [("b", 4), ("c", 1)]
    assert (server.requests["b"].num_cached_tokens, server.requests["c"].num_cached_tokens) == (4, 8)
    server.run()


def test_a_shared_block_is_published_by_one_of_its_holders():
    server = Server(40, 4, prefix_cache=True)
    publish, published = server.allocator.publish, []
    server.allocator.publish = lambda block, block_hash: published.append(block) or publish(block, block_hash)
    server.add("a", prompt(14), 7, n=3)
    server.run()
    assert len(set(published)) == len(published) == 3 + 3 * 2


def test_hits_are_looked_up_at_every_attempt():
    server = Server(20, 4, prefix_cache=True, max_num_seqs=1)
    server.add("a", prompt(9), 2)
    server.add("b", prompt(9), 2)  # when it came, nothing was cached
    server.run()
    assert server.requests["b"].num_cached_tokens == 8


def test_bad_keys_are_refused_when_the_request_comes():
    server = Server(20, 4, prefix_cache=True)
    with pytest.raises(TypeError, match="extra key"):
        server.add("a", prompt(8), 2, extra_keys=[("image",)])
    assert not server.scheduler.requests


def test_who_would_compute_the_same_waits_a_step_and_finds_it():
    server = Server(60, 4, prefix_cache=True)
    server.add("first", prompt(11), 2)
    twin = server.add("twin", prompt(11), 2)
    server.add("behind", prompt(6, 500), 2)
    assert scheduled(server.step()) == [("first", 11)]  # nobody overtakes: who stands behind the twin waits as well
    assert scheduled(server.step()) == [("first", 1), ("twin", 3), ("behind", 6)]
    assert twin.num_cached_tokens == 8
    server.run()


def test_a_long_prompt_that_two_have_is_computed_once_chunk_by_chunk():
    server = Server(60, 4, prefix_cache=True, max_num_batched_tokens=8)
    server.add("first", prompt(24), 1)
    twin = server.add("twin", prompt(24), 1)
    steps = [scheduled(server.step()) for _ in range(4)]
    assert steps == [[("first", 8)], [("first", 8)], [("first", 8)], [("twin", 4)]]
    assert twin.num_cached_tokens == 20
    server.run()


def test_a_common_beginning_within_a_block_keeps_nobody_waiting():
    server = Server(60, 16, prefix_cache=True)
    server.add("one", prompt(12), 2)
    server.add("other", prompt(12), 2)
    assert scheduled(server.step()) == [("one", 12), ("other", 12)]
    server.run()

"""Each invariant can be broken, and then it is found. That they hold is checked in every step of all other tests."""

from types import SimpleNamespace

import pytest

from pagedlab.cache.allocator import BlockAllocator
from pagedlab.engine.invariants import InvariantError, check_invariants, check_output, check_refusal, check_step
from pagedlab.engine.request import Request, RequestStatus
from tests.engine.hash_model import Server


def broken(number, words=""):
    return pytest.raises(InvariantError, match=f"^invariant {number} is broken: .*{words}")


@pytest.fixture
def server():
    """Two requests run, with blocks of 2 and 5 tokens each; one waits."""
    server = Server(20, 2, prefix_cache=True, num_cpu_blocks=4, max_num_seqs=2)
    for index in range(3):
        server.add(f"r{index}", [index, 1, 2, 3], 30, seed=index)
    server.step()
    server.step()
    assert [request.num_computed_tokens for request in server.scheduler.running] == [5, 5]
    return server


@pytest.fixture
def first(server):
    return server.requests["r0"]


def test_a_block_is_lost(server):
    server.pool._free.pop()
    with broken(1, "13 blocks are free and 6 are held, 19 together, of a pool of 20"):
        server.scheduler.check()


def test_a_leak_is_named(server):
    (block,) = server.allocator.allocate(1)
    with broken(1, rf"counted, but in no table: \[{block}\]"):
        server.scheduler.check()


def test_a_block_of_the_swap_space_is_lost(server):
    server.scheduler.swap_space.allocate(1)
    with broken(1, r"3 blocks of the swap space are free and \[\] are held, of 4"):
        server.scheduler.check()


def test_a_holder_too_many_is_counted(server, first):
    server.allocator.share(first.table.blocks[:1])
    with broken(2, "has a count of 2 and is held by 1 tables, by request 'r0'"):
        server.scheduler.check()


def test_a_table_holds_a_block_twice(server, first):
    first.table.blocks[1] = first.table.blocks[0]
    with broken(2, "holds a block twice"):
        server.scheduler.check()


def test_a_block_is_twice_in_the_free_list(server):
    server.pool._free[0] = server.pool._free[1]
    with broken(3):
        server.scheduler.check()


def test_a_shared_block_is_written(server, first):
    output = server.scheduler.schedule()
    check_step(server.scheduler, output)
    server.allocator.share(first.table.blocks[-1:])
    with broken(4, "'r0' .* writes into block .*, which has 2 holders"):
        check_step(server.scheduler, output)


def test_a_published_block_is_written(server, first):
    output = server.scheduler.schedule()
    server.allocator.publish(first.table.blocks[-1], b"too early")
    with broken(4, "which is published"):
        check_step(server.scheduler, output)


def test_a_table_counts_what_is_not_stored(server, first):
    first.table.num_tokens += 1
    with broken(5, "has 5 tokens, which is 3 blocks of 2; its table counts 6"):
        server.scheduler.check()


def test_a_table_has_not_grown(server, first):
    output = server.scheduler.schedule()
    first.table.truncate(5, server.allocator)
    with broken(5, "has 6 tokens"):
        check_step(server.scheduler, output)


def test_a_table_hoards_blocks(server, first):
    first.table.blocks += server.allocator.allocate(1)
    server.scheduler.check()  # one ahead is allowed
    first.table.blocks += server.allocator.allocate(1)
    with broken(5):
        server.scheduler.check()


def test_a_block_is_published_before_it_is_full(server, first):
    server.allocator.publish(first.table.blocks[2], b"half full")
    with broken(6, "it is block 2 of request 'r0' .*, which has 2 full blocks"):
        server.scheduler.check()


def test_a_block_is_published_under_a_wrong_hash(server, first):
    server.allocator.reset()
    server.allocator.publish(first.table.blocks[0], b"something else")
    with broken(6, "it is block 0 of request 'r0'"):
        server.scheduler.check()


def test_two_tokens_in_one_slot(server, first):
    output = server.scheduler.schedule()
    server.requests["r1"].table.blocks[-1] = first.table.blocks[-1]
    with broken(7, "'r1' .* and request 'r0' .* both write to slot"):
        check_step(server.scheduler, output)


class Careless(BlockAllocator):
    """Takes what there is before it finds out that it is not enough."""

    def allocate(self, n):
        blocks = []
        while len(blocks) < n:
            blocks += super().allocate(1)
        return blocks


class Generous(BlockAllocator):
    def allocate(self, n):
        return super().allocate(min(n, self.num_free))


class Turned(BlockAllocator):
    def allocate(self, n):
        if n > self.num_free:
            self._free.reverse()
        return super().allocate(n)


@pytest.mark.parametrize("allocator", [Careless(4), Generous(4), Turned(4)], ids=lambda a: type(a).__name__)
def test_a_refusal_changes_something(allocator):
    check_refusal(BlockAllocator(4))
    with broken(8):
        check_refusal(allocator)


def test_more_tokens_computed_than_there_are(server, first):
    first.num_computed_tokens = first.table.num_tokens = 7
    with broken(9, "has 7 of 6 tokens computed"):
        server.scheduler.check()


@pytest.mark.parametrize(
    "change, words",
    [
        (lambda step: step.append(step[0]), "scheduled 2 times"),
        (lambda step: step.append((Request("x", [1], 1), 0)), "is scheduled 0 tokens"),
        (lambda step: step.append((Request("x", [1, 2], 1), 3)), "is scheduled 3 tokens and has 0 of 2 tokens"),
    ],
)
def test_a_wrong_number_of_tokens(server, change, words):
    output = server.scheduler.schedule()
    change(output.scheduled)
    with broken(9, words):
        check_step(server.scheduler, output)


def test_more_tokens_than_the_budget(server):
    output = server.scheduler.schedule()
    server.scheduler.max_num_batched_tokens = 1
    with broken(9, "2 tokens are scheduled, more than max_num_batched_tokens=1"):
        check_step(server.scheduler, output)


def test_a_request_is_in_two_queues(server, first):
    server.scheduler.waiting.append(first)
    with broken(10, "'r0' .* is in the queues 2 times"):
        server.scheduler.check()


def test_a_finished_request_is_in_a_queue(server, first):
    first.status = RequestStatus.FINISHED_LENGTH
    with broken(10, "FINISHED_LENGTH.* is in a queue"):
        server.scheduler.check()


def test_a_finished_request_holds_blocks(server, first):
    server.scheduler.running.remove(first)
    first.status = RequestStatus.FINISHED_STOPPED
    with broken(1, "counted, but in no table"):  # nobody told of the request: a leak ...
        server.scheduler.check()
    with broken(10, "'r0' .FINISHED_STOPPED. does not run and holds blocks"):
        check_invariants(server.scheduler, [first])


def test_a_waiting_request_counts_tokens_it_does_not_store(server):
    server.requests["r2"].num_computed_tokens = 2
    with broken(10, "holds nothing, and yet has 2 of 4"):
        server.scheduler.check()


def test_a_running_request_holds_blocks_of_the_swap_space(server, first):
    first.cpu_blocks = server.scheduler.swap_space.allocate(1)
    with broken(10, "is not swapped out"):
        server.scheduler.check()


def test_a_step_without_a_token(server):
    with broken(11, "nothing was scheduled, although request 'r0' .* has 5 of 6"):
        check_step(server.scheduler, [])


def test_an_output_that_is_another(first):
    check_output(first, [*first.output_token_ids, 1, 2])  # cut short
    with broken(12, "output token 1"):
        check_output(first, [first.output_token_ids[0], -1])
    with broken(12, "output token 1"):
        check_output(first, first.output_token_ids[:1])


def test_any_scheduler_will_do():
    """One with two queues and an allocator that only counts."""
    request = Request("a", [1, 2, 3], 4)
    scheduler = SimpleNamespace(waiting=[request], running=[])
    check_invariants(scheduler)
    allocator = SimpleNamespace(num_free=3)
    check_invariants(scheduler, allocator=allocator)
    with broken(11):
        check_step(scheduler, [])

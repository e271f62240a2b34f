"""What must be true of an engine at all times, as code: call it after every step, and a bug is found where it happens.

 1. Conservation: each block of the pool is free or held by a request; none is lost, and so with the swap space.
 2. A block's reference count is the number of tables that hold it.
 3. The free list holds each block with a count of 0 once, and no other.
 4. Nobody writes into a block with another holder, or into one that the prefix cache has published.
 5. A table has the blocks its stored tokens need, at most one more, and between steps it counts what is stored.
 6. The prefix cache names only full, computed blocks, each by the hash of the tokens that lead up to it.
 7. No two tokens of a step share a slot.
 8. An allocation that is refused changes nothing, the order of the free list included.
 9. A request computes at least one token when it is scheduled, and never more than it has.
10. A request is in one queue; one that waits or is finished holds no block.
11. Progress: as long as anybody has something to compute, each step computes a token.
12. The output of a request is what it would be if the request were alone in an endless pool.

`check_invariants` looks at a scheduler between two steps (1, 2, 3, 5, 6, 9, 10), `check_step` at a step that has been
decided and not yet computed (4, 5, 7, 9, 11), `check_refusal` at an allocator (8), `check_output` at a result (12). All
of them take any scheduler and any allocator, and look at what those have; `Scheduler` has everything.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from pagedlab.cache.accounting import blocks_needed
from pagedlab.cache.block_hash import prefix_hash_chain
from pagedlab.cache.table import slot_mapping
from pagedlab.engine.request import Request
from pagedlab.engine.scheduler_output import SchedulerOutput
from pagedlab.errors import PagedLabError


class InvariantError(PagedLabError):
    """Something is not as it must be: a bug of the scheduler, the allocator or the engine. `number` says which rule."""

    def __init__(self, number: int, message: str):
        super().__init__(number, message)
        self.number, self.message = number, message

    def __str__(self):
        return f"invariant {self.number} is broken: {self.message}"


def check_invariants(scheduler, requests: Iterable[Request] = (), allocator=None) -> None:
    """Between two steps. `requests`: others to look at, such as finished ones.

    `allocator`: needed for a scheduler that has no attribute of this name.
    """
    allocator = getattr(scheduler, "allocator", None) if allocator is None else allocator
    queues = {name: list(getattr(scheduler, name, ())) for name in ("running", "swapped", "waiting")}
    everyone = list(
        {id(r): r for r in (*queues["running"], *queues["swapped"], *queues["waiting"], *requests)}.values()
    )
    _check_queues(queues, everyone)
    for request in everyone:
        if not 0 <= request.num_computed_tokens <= request.num_tokens:
            raise InvariantError(9, f"{_name(request)} has {_counts(request)}")
    for request in queues["running"]:
        _check_table(request, request.num_computed_tokens)
    if allocator is not None:
        _check_blocks(allocator, everyone)
        _check_published(allocator, queues["running"])
    if getattr(scheduler, "swap_space", None) is not None:
        _check_swap_space(scheduler.swap_space, everyone)


def check_step(scheduler, result, allocator=None) -> None:
    """After `schedule()` returned `result`, and before the model runs."""
    output = SchedulerOutput.of(result)
    allocator = getattr(scheduler, "allocator", None) if allocator is None else allocator
    in_line = [r for name in ("running", "swapped", "waiting") for r in getattr(scheduler, name, ()) if not r.is_idle]
    if in_line and not output.scheduled:
        raise InvariantError(11, f"nothing was scheduled, although {_name(in_line[0])} has {_counts(in_line[0])}")
    times = Counter(id(request) for request, _ in output.scheduled)
    for request, num_tokens in output.scheduled:
        if times[id(request)] > 1:
            raise InvariantError(9, f"{_name(request)} is scheduled {times[id(request)]} times in one step")
        if not 1 <= num_tokens <= request.num_new_tokens:
            raise InvariantError(9, f"{_name(request)} is scheduled {num_tokens} tokens and has {_counts(request)}")
        _check_table(request, request.num_computed_tokens + num_tokens)
    budget = getattr(scheduler, "max_num_batched_tokens", None)
    if budget is not None and output.num_tokens > budget:
        raise InvariantError(9, f"{output.num_tokens} tokens are scheduled, more than max_num_batched_tokens={budget}")
    _check_writes(output, allocator)


def check_refusal(allocator) -> None:
    """Ask for one block more than is free, and see that nothing comes of it."""
    before = allocator.num_free, getattr(allocator, "free_blocks", None)
    try:
        blocks = allocator.allocate(before[0] + 1)
    except Exception:  # any error will do: it is the books that count
        blocks = None
    after = allocator.num_free, getattr(allocator, "free_blocks", None)
    if blocks is not None:
        raise InvariantError(
            8, f"{before[0]} blocks were free, {before[0] + 1} were asked for, and {blocks} were given"
        )
    if after != before:
        raise InvariantError(8, f"a refused allocation changed the free blocks from {before} to {after}")


def check_output(request: Request, alone: Sequence[int]) -> None:
    """`alone`: the output of the same request in an engine of its own. A request cut short has a part of it."""
    output = request.output_token_ids
    if output != list(alone[: len(output)]):
        at = next(i for i, token in enumerate(output) if i >= len(alone) or token != alone[i])
        raise InvariantError(
            12, f"{_name(request)}: output token {at} is {output[at]}; alone it is {alone[at : at + 1]}"
        )


def _check_queues(queues: dict[str, list[Request]], everyone: list[Request]) -> None:
    places = Counter(id(request) for queue in queues.values() for request in queue)
    running = {id(request) for request in queues["running"]}
    swapped = {id(request) for request in queues["swapped"]}
    for request in everyone:
        if places[id(request)] > 1:
            raise InvariantError(10, f"{_name(request)} is in the queues {places[id(request)]} times")
        if request.status.is_finished and places[id(request)]:
            raise InvariantError(10, f"{_name(request)} is in a queue")
        if id(request) not in running and (blocks := _blocks(request)):
            raise InvariantError(10, f"{_name(request)} does not run and holds blocks {blocks}")
        if id(request) not in running and id(request) not in swapped and places[id(request)]:
            if request.num_computed_tokens:
                raise InvariantError(10, f"{_name(request)} holds nothing, and yet has {_counts(request)}")
        if id(request) not in swapped and request.cpu_blocks:
            raise InvariantError(10, f"{_name(request)} is not swapped out and holds CPU blocks {request.cpu_blocks}")


def _check_table(request: Request, num_tokens: int) -> None:
    """`num_tokens` are stored, or about to be."""
    table = request.table
    needed = blocks_needed(num_tokens, table.block_size)
    if table.num_tokens != num_tokens or not needed <= len(table.blocks) <= needed + 1:
        raise InvariantError(
            5,
            f"{_name(request)} has {num_tokens} tokens, which is {needed} blocks of {table.block_size}; its table "
            f"counts {table.num_tokens} tokens in blocks {table.blocks}",
        )


def _check_blocks(allocator, everyone: list[Request]) -> None:
    holders: dict[int, list[Request]] = {}
    for request in everyone:
        blocks = _blocks(request)
        if len(set(blocks)) < len(blocks):
            raise InvariantError(2, f"the table of {_name(request)} holds a block twice: {blocks}")
        for block in blocks:
            holders.setdefault(block, []).append(request)

    num_blocks = getattr(allocator, "num_blocks", None)
    ref_count = getattr(allocator, "ref_count", None)
    if num_blocks is not None and allocator.num_free + len(holders) != num_blocks:
        raise InvariantError(
            1,
            f"{allocator.num_free} blocks are free and {len(holders)} are held, {allocator.num_free + len(holders)} "
            f"together, of a pool of {num_blocks}{_strays(num_blocks, holders, ref_count)}",
        )
    if ref_count is None:
        return
    blocks = sorted(holders) if num_blocks is None else range(num_blocks)
    unused = []
    for block in blocks:
        found, expected = ref_count(block), len(holders.get(block, ()))
        if found != expected:
            by = f", by {', '.join(map(_name, holders[block]))}" if block in holders else ""
            raise InvariantError(2, f"block {block} has a count of {found} and is held by {expected} tables{by}")
        if found == 0:
            unused.append(block)
    free_blocks = getattr(allocator, "free_blocks", None)
    if free_blocks is not None and num_blocks is not None and sorted(free_blocks) != unused:
        raise InvariantError(3, f"the free list is {free_blocks}, the blocks with a count of 0 are {unused}")


def _strays(num_blocks: int, holders: dict, ref_count) -> str:
    """Which blocks are counted and yet nobody's: the ones to look for."""
    if ref_count is None:
        return ""
    strays = [block for block in range(num_blocks) if block not in holders and ref_count(block) > 0]
    return f"; counted, but in no table: {strays}" if strays else ""


def _check_published(allocator, running: list[Request]) -> None:
    contents = getattr(allocator, "contents", None)
    if contents is None:
        return
    hash_of = {block: block_hash for block_hash, block in contents().items()}
    for request in running:
        blocks = _blocks(request)
        if not any(block in hash_of for block in blocks):
            continue
        size = request.table.block_size
        hashes = prefix_hash_chain(request.token_ids, size, request.extra_keys)
        num_full = request.num_computed_tokens // size
        for index, block in enumerate(blocks):
            if block in hash_of and (index >= num_full or hash_of[block] != hashes[index]):
                raise InvariantError(
                    6,
                    f"block {block} is published as {hash_of[block].hex()[:8]}; it is block {index} of "
                    f"{_name(request)}, which has {num_full} full blocks, {[h.hex()[:8] for h in hashes[:num_full]]}",
                )


def _check_swap_space(swap_space, everyone: list[Request]) -> None:
    held = [block for request in everyone for block in request.cpu_blocks]
    if len(set(held)) < len(held) or swap_space.num_free + len(held) != swap_space.num_blocks:
        raise InvariantError(
            1,
            f"{swap_space.num_free} blocks of the swap space are free and {sorted(held)} are held, of "
            f"{swap_space.num_blocks}",
        )


def _check_writes(output: SchedulerOutput, allocator) -> None:
    ref_count = getattr(allocator, "ref_count", lambda block: 1)
    contents = getattr(allocator, "contents", dict)
    published = set(contents().values())
    writer: dict[int, Request] = {}
    for request, num_tokens in output.scheduled:
        start, end = request.num_computed_tokens, request.num_computed_tokens + num_tokens
        for slot in slot_mapping(request.table.blocks, start, end, request.table.block_size):
            if slot in writer:
                raise InvariantError(7, f"{_name(request)} and {_name(writer[slot])} both write to slot {slot}")
            writer[slot] = request
        size = request.table.block_size
        for block in request.table.blocks[start // size : blocks_needed(end, size)]:
            if ref_count(block) != 1:
                raise InvariantError(
                    4, f"{_name(request)} writes into block {block}, which has {ref_count(block)} holders"
                )
            if block in published:
                raise InvariantError(4, f"{_name(request)} writes into block {block}, which is published")


def _blocks(request: Request) -> list[int]:
    return list(request.table.blocks) if request.table is not None else []


def _name(request: Request) -> str:
    return f"request {request.request_id!r} ({request.status.name})"


def _counts(request: Request) -> str:
    return f"{request.num_computed_tokens} of {request.num_tokens} tokens computed"

"""Small schedules to draw: requests as plain as a trace takes them, and three ways to serve them.

The schedulers here are the least that makes a picture worth looking at; what the widgets draw is the trace alone.
"""

from dataclasses import dataclass, field

from pagedlab.cache.allocator import BlockAllocator
from pagedlab.cache.table import BlockTable
from pagedlab.engine.trace import ScheduleTrace


@dataclass
class Plain:
    """A request without a status: a trace works out what became of it."""

    request_id: str
    num_prompt_tokens: int
    num_outputs: int
    comes_at: int = 0
    block_size: int = 4
    num_computed_tokens: int = 0
    num_sampled: int = 0
    held: bool = False  # done, and its memory is kept
    table: BlockTable = field(init=False)

    def __post_init__(self):
        self.table = BlockTable(self.block_size)

    @property
    def num_tokens(self) -> int:
        return self.num_prompt_tokens + self.num_sampled

    @property
    def is_done(self) -> bool:
        return self.num_sampled == self.num_outputs

    @property
    def status(self):
        return DONE if self.is_done else None


class DONE:
    name, is_finished, finish_reason = "FINISHED_LENGTH", True, "length"


def compute(allocator, pairs) -> None:
    """What the model does in a step: it stores tokens, and samples where all are stored."""
    for request, num_tokens in pairs:
        request.table.append_tokens(num_tokens, allocator)
        request.num_computed_tokens += num_tokens
        if request.num_computed_tokens == request.num_tokens:
            request.num_sampled += 1


def continuous(requests, num_blocks, budget=16, seats=8, seconds=None) -> ScheduleTrace:
    """Decodes first, then prefill in chunks; the youngest gives its blocks back when the pool is full.

    `seconds(num_tokens)`: how long a step of so many tokens takes.
    """
    allocator, trace, clock = BlockAllocator(num_blocks), ScheduleTrace(), 0.0
    waiting, running, step = [], [], 0
    while any(not request.is_done for request in requests):
        waiting += [request for request in requests if request.comes_at == step]
        pairs, left, lost = [], budget, []
        for request in list(running):
            if request not in running:
                continue
            n = min(left, request.num_tokens - request.num_computed_tokens)
            while n and request in running and need(request, n) > allocator.num_free:
                victim = running.pop()
                victim.table.free(allocator)
                victim.num_computed_tokens = 0
                waiting.insert(0, victim)
                lost.append(victim)
                pairs = [pair for pair in pairs if pair[0] is not victim]
            if n and request in running:
                compute_later = (request, n)
                pairs.append(compute_later)
                left -= n
                request.table.append_tokens(n, allocator)
        while waiting and left and not lost and len(running) < seats:
            n = min(left, waiting[0].num_tokens)
            if need(waiting[0], waiting[0].num_tokens) > allocator.num_free:
                break
            request = waiting.pop(0)
            running.append(request)
            request.table.append_tokens(n, allocator)
            pairs.append((request, n))
            left -= n
        for request, n in pairs:
            request.num_computed_tokens += n
            if request.num_computed_tokens == request.num_tokens:
                request.num_sampled += 1
            if request.is_done:
                running.remove(request)
                request.table.free(allocator)
        clock += seconds(budget - left) if seconds else 0.0
        known = [request for request in requests if request.comes_at <= step]
        trace.record(known, pairs, allocator, time=clock if seconds else None)
        step += 1
    return trace


def static(requests, num_blocks, seats=4, max_len=40, seconds=None) -> ScheduleTrace:
    """A batch at a time, `max_len` slots for each; nobody leaves before the last has finished."""
    allocator, trace, clock = BlockAllocator(num_blocks), ScheduleTrace(), 0.0
    queue, batch, step = list(requests), [], 0
    while queue or batch:
        if not batch:
            batch = [request for request in queue if request.comes_at <= step][:seats]
            queue = [request for request in queue if request not in batch]
            for request in batch:
                request.table.blocks.extend(allocator.allocate(-(-max_len // request.block_size)))
        pairs = [
            (request, request.num_tokens - request.num_computed_tokens) for request in batch if not request.is_done
        ]
        for request, n in pairs:
            request.table.num_tokens += n
            request.num_computed_tokens += n
            request.num_sampled += 1
        clock += seconds(sum(n for _, n in pairs)) if seconds else 0.0
        if batch and all(request.is_done for request in batch):
            for request in batch:
                request.table.free(allocator)
            batch = []
        known = [request for request in requests if request.comes_at <= step]
        trace.record(known, pairs, allocator, time=clock if seconds else None)
        step += 1
    return trace


def need(request, num_tokens: int) -> int:
    """Blocks that so many more tokens take."""
    table = request.table
    return max(0, -(-(table.num_tokens + num_tokens) // request.block_size) - len(table.blocks))

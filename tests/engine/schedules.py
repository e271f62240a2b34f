"""Schedules to look at: requests that come at some step, served without a model, and the trace of it."""

from pagedlab.cache.accounting import blocks_needed
from pagedlab.cache.allocator import BlockAllocator
from pagedlab.cache.prefix import PrefixCache
from pagedlab.cache.swap import SwapBooks
from pagedlab.cache.table import BlockTable
from pagedlab.engine.request import Request, RequestStatus
from pagedlab.engine.scheduler import Scheduler
from pagedlab.engine.scheduler_output import SchedulerOutput
from pagedlab.engine.trace import ScheduleTrace

# (name, prompt tokens, tokens to sample, the step at which it comes): a small pool has to send some of them away.
FIVE = (("A", 10, 12, 0), ("B", 7, 16, 0), ("C", 22, 8, 1), ("D", 5, 10, 2), ("E", 14, 9, 6))
TWELVE = tuple(
    (name, prompt, outputs, 0 if i < 4 else 2 * i - 7)
    for i, (name, prompt, outputs) in enumerate(
        zip(
            "ABCDEFGHIJKL",
            (11, 21, 15, 19, 14, 4, 8, 19, 22, 19, 8, 14),
            (20, 5, 20, 26, 5, 14, 20, 20, 3, 14, 5, 26),
            strict=True,
        )
    )
)


def requests_of(lengths, same_prompt=()) -> list[tuple[int, Request]]:
    """Pairs (step, request). Those named in `same_prompt` begin with the same tokens."""
    made = []
    for number, (name, prompt, outputs, step) in enumerate(lengths):
        first = 0 if name in same_prompt else 1000 * number
        made.append((step, Request(name, range(first, first + prompt), outputs)))
    return sorted(made, key=lambda pair: pair[0])


def drive(scheduler, allocator, arrivals, *, seconds=None, aborts=(), forks=()) -> ScheduleTrace:
    """`seconds(num_tokens)`: how long a step takes. `aborts`: (step, name); `forks`: (step, name, child's name)."""
    trace, known, step, clock = ScheduleTrace(), {}, 0, 0.0
    arrivals = list(arrivals)
    while arrivals or any(not request.status.is_finished for request in known.values()):
        while arrivals and arrivals[0][0] <= step:
            request = arrivals.pop(0)[1]
            scheduler.add(request)
            known[request.request_id] = request
        for at, name in aborts:
            if at == step:
                scheduler.abort(name)
        for at, name, child in forks:
            if at == step:
                known[child] = scheduler.fork(known[name], child)
                known[child].output_token_ids[-1] += 500
        output = SchedulerOutput.of(scheduler.schedule())
        for request, num_tokens in output.scheduled:
            request.num_computed_tokens += num_tokens
        if hasattr(scheduler, "after_step"):
            scheduler.after_step(output)
        for request, _ in output.scheduled:
            if request.num_computed_tokens == request.num_tokens:
                request.output_token_ids.append(100_000 + len(request.output_token_ids))
                if len(request.output_token_ids) == request.max_tokens:
                    scheduler.finish(request, RequestStatus.FINISHED_LENGTH)
        clock += seconds(output.num_tokens) if seconds else 0.0
        trace.record(known.values(), output, allocator, time=clock if seconds else None)
        step += 1
        assert step < 5000, "this schedule does not end"
    return trace


def paged(
    lengths=FIVE, num_blocks=16, block_size=4, budget=16, *, cached=False, swap_blocks=0, same_prompt=(), **more
) -> ScheduleTrace:
    """The course's scheduler on `lengths`."""
    allocator = PrefixCache(BlockAllocator(num_blocks)) if cached else BlockAllocator(num_blocks)
    swap = {"preemption": "swap", "swap_space": SwapBooks(swap_blocks)} if swap_blocks else {}
    seats = {"max_num_seqs": more.pop("max_num_seqs")} if "max_num_seqs" in more else {}
    scheduler = Scheduler(allocator, block_size, max_num_batched_tokens=budget, watermark=0, **swap, **seats)
    return drive(scheduler, allocator, requests_of(lengths, same_prompt), **more)


def static(lengths=TWELVE, num_blocks=64, block_size=4, batch=4, max_len=48, **more) -> ScheduleTrace:
    """A batch at a time with `max_len` slots for each; nobody leaves before the last is done."""
    allocator = BlockAllocator(num_blocks)
    scheduler = _StaticBatches(allocator, block_size, batch, max_len)
    return drive(scheduler, allocator, requests_of(lengths), **more)


class _StaticBatches:
    """A scheduler as short as one can be that keeps the memory of who is done until the whole batch is."""

    def __init__(self, allocator, block_size, batch, max_len):
        self.allocator, self.block_size, self.batch, self.max_len = allocator, block_size, batch, max_len
        self.waiting, self.running = [], []

    def add(self, request):
        self.waiting.append(request)

    def finish(self, request, status):
        request.status = status
        if all(each.status.is_finished for each in self.running):
            for each in self.running:
                each.table.free(self.allocator)
            self.running = []

    def schedule(self):
        if not self.running:
            self.running, self.waiting = self.waiting[: self.batch], self.waiting[self.batch :]
            for request in self.running:
                request.status, request.table = RequestStatus.RUNNING, BlockTable(self.block_size)
                blocks = self.allocator.allocate(blocks_needed(self.max_len, self.block_size))
                request.table.blocks.extend(blocks)
        pairs = [(each, each.num_new_tokens) for each in self.running if not each.status.is_finished]
        for request, num_tokens in pairs:
            request.table.append_tokens(num_tokens, self.allocator)
        return pairs

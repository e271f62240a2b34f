"""A model that is nothing but hashes, run on pages: exact, fast, and a misplaced block changes what it says.

The "key and value" of a position is a hash of its token, of the extra keys of its block and of the value before it, so
like a real one it depends on all that came before. The next token is a hash of every value of the sequence, each read
through the block table. Slots that hold nothing worth reading hold `POISON`, and reading one is an error.

`alone` says what a request must come to, with no scheduler, no blocks and no cache.
"""

from zlib import crc32

from pagedlab.cache.allocator import BlockAllocator
from pagedlab.cache.prefix import PrefixCache
from pagedlab.cache.swap import SwapBooks
from pagedlab.engine.invariants import check_invariants, check_output, check_refusal, check_step
from pagedlab.engine.request import Request, RequestStatus
from pagedlab.engine.scheduler import Scheduler
from pagedlab.engine.scheduler_output import SchedulerOutput

POISON = None
VOCABULARY = 1000


class Interrupted(Exception):
    """The step did not come to its end."""


def value_of(before: int, token: int, keys: tuple) -> int:
    return hash((before, token, crc32(repr(keys).encode()) if keys else 0))  # of strings, `hash` is never the same


def next_token(seed: int, values: list[int]) -> int:
    return hash((seed, *values)) % VOCABULARY


def keys_at(request: Request, position: int, block_size: int) -> tuple:
    keys, block = request.extra_keys or (), position // block_size
    return tuple(keys[block]) if block < len(keys) else ()


def alone(request: Request, block_size: int, inherited: list[int] = (), stop_below: int = 0) -> list[int]:
    """The output of this request with the world to itself. `inherited`: the tokens a fork began with.

    stop_below: tokens smaller than this end an answer.
    """
    output, values = list(inherited), []
    while True:
        for token in (request.prompt_token_ids + output)[len(values) :]:
            keys = keys_at(request, len(values), block_size)
            values.append(value_of(values[-1] if values else 0, token, keys))
        output.append(next_token(request.params, values))
        if output[-1] < stop_below or len(output) >= request.max_tokens:
            return output


class HashModel:
    """The slots of a pool and of a swap space, and the steps that read and write them."""

    def __init__(self, num_blocks: int, block_size: int, num_cpu_blocks: int = 0):
        self.block_size = block_size
        self.blocks = [self.poisoned() for _ in range(num_blocks)]
        self.cpu_blocks = [self.poisoned() for _ in range(num_cpu_blocks)]

    def poisoned(self) -> list:
        return [POISON] * self.block_size

    def move(self, output: SchedulerOutput) -> None:
        for source, destination in output.swap_out:
            self.cpu_blocks[destination] = list(self.blocks[source])
        for source, destination in output.swap_in:
            self.blocks[destination] = list(self.cpu_blocks[source])
        for source, destination in output.blocks_to_copy:
            self.blocks[destination] = list(self.blocks[source])
        for block in output.new_blocks:
            self.blocks[block] = self.poisoned()

    def execute(self, scheduled, stop_after: int | None = None) -> dict[Request, list[int]]:
        """Write the values of all scheduled tokens; returns all values of each request that samples.

        stop_after: raise `Interrupted` after so many tokens.
        """
        written = 0
        for request, num_tokens in scheduled:
            start, end = request.num_computed_tokens, request.num_computed_tokens + num_tokens
            before = self._read(request, start)[-1] if start else 0
            tokens, slots = request.token_ids[start:end], request.table.slot_mapping(start, end)
            for position, (token, slot) in enumerate(zip(tokens, slots, strict=True), start):
                if written == stop_after:
                    raise Interrupted
                before = value_of(before, token, keys_at(request, position, self.block_size))
                self.blocks[slot // self.block_size][slot % self.block_size] = before
                written += 1
        return {r: self._read(r, r.num_tokens) for r, n in scheduled if r.num_computed_tokens + n == r.num_tokens}

    def _read(self, request: Request, num_tokens: int) -> list[int]:
        size = self.block_size
        values = [self.blocks[request.table.blocks[p // size]][p % size] for p in range(num_tokens)]
        assert POISON not in values, f"{request} reads poison at position {values.index(POISON)} of {request.table}"
        return values


class Server:
    """A scheduler and a hash model, with every invariant checked around every step.

    `held`: ids of requests whose sampled tokens are kept in `pending` until `deliver`, as beams wait for each other.
    """

    def __init__(
        self, num_blocks: int, block_size: int, *, prefix_cache=False, num_cpu_blocks=None, stop_below=0, **options
    ):
        self.block_size, self.stop_below = block_size, stop_below
        self.pool = BlockAllocator(num_blocks)
        self.allocator = PrefixCache(self.pool) if prefix_cache else self.pool
        if num_cpu_blocks is not None:
            options |= dict(preemption="swap", swap_space=SwapBooks(num_cpu_blocks))
        self.scheduler = Scheduler(self.allocator, block_size, **options)
        self.model = HashModel(num_blocks, block_size, num_cpu_blocks or 0)
        self.requests: dict[str, Request] = {}
        self.inherited: dict[str, list[int]] = {}
        self.held: set[str] = set()
        self.pending: dict[str, int] = {}
        self.outputs: list[SchedulerOutput] = []

    def add(self, request_id, prompt, max_tokens, *, seed=0, **options) -> Request:
        request = Request(request_id, prompt, max_tokens, params=seed, **options)
        self.scheduler.add(request)
        self.requests[request_id], self.inherited[request_id] = request, []
        return request

    def fork(self, request: Request, request_id: str, seed: int) -> Request:
        child = self.scheduler.fork(request, request_id)
        child.params = seed
        self.requests[request_id], self.inherited[request_id] = child, list(child.output_token_ids)
        return child

    def branch(self, request: Request, request_id: str, token: int, seed: int) -> Request:
        """A fork with a next token of its own, as beams have: chosen, not sampled."""
        child = self.fork(request, request_id, seed)
        child.output_token_ids.append(token)
        self.inherited[request_id].append(token)
        return child

    def step(self, interrupt_after: int | None = None, moved: bool = True) -> SchedulerOutput:
        """interrupt_after: give the step up after so many tokens, or before the memory moves (moved=False)."""
        output = self.scheduler.schedule()
        check_step(self.scheduler, output)
        self.outputs.append(output)
        try:
            if not moved:
                raise Interrupted
            self.model.move(output)
            values = self.model.execute(output.scheduled, interrupt_after)
        except Interrupted:
            self.scheduler.undo(output, moved)
            self.check()
            return output
        for request, num_tokens in output.scheduled:
            request.num_computed_tokens += num_tokens
        self.scheduler.after_step(output)
        for request, read in values.items():
            siblings = [
                self.fork(request, f"{request.request_id}/{i}", request.params + i) for i in range(1, request.seats)
            ]
            for sample in [request, *siblings]:
                self.pending[sample.request_id] = next_token(sample.params, read)
                if sample.root_id not in self.held:
                    self.deliver(sample)
        self.check()
        return output

    def deliver(self, request: Request) -> None:
        """The next token of a request has been chosen."""
        token = self.pending.pop(request.request_id)
        request.output_token_ids.append(token)
        if token < self.stop_below:
            self.scheduler.finish(request)
        elif len(request.output_token_ids) >= request.max_tokens:
            self.scheduler.finish(request, RequestStatus.FINISHED_LENGTH)

    def abort(self, request_id: str) -> None:
        for request in self.scheduler.abort(request_id):
            self.pending.pop(request.request_id, None)

    def run(self, max_steps: int = 20_000) -> dict[str, list[int]]:
        """Until all are finished. Returns the outputs, each of which is what the request comes to alone."""
        for _ in range(max_steps):
            if not self.scheduler.requests:
                break
            self.step()
        assert not self.scheduler.requests, f"not finished after {max_steps} steps: {self.scheduler.requests}"
        self.check_end()
        return {request_id: request.output_token_ids for request_id, request in self.requests.items()}

    def check(self) -> None:
        check_invariants(self.scheduler, self.requests.values())
        check_refusal(self.allocator)
        kept = set(self.allocator.contents().values()) if self.allocator is not self.pool else set()
        for block in set(self.allocator.free_blocks) - kept:
            self.model.blocks[block] = self.model.poisoned()

    def check_end(self) -> None:
        """Nothing is left behind, and every output is right."""
        assert self.allocator.num_free == self.pool.num_blocks
        if self.scheduler.swap_space is not None:
            assert self.scheduler.swap_space.num_free == self.scheduler.swap_space.num_blocks
        for request_id, request in self.requests.items():
            expected = alone(request, self.block_size, self.inherited[request_id], self.stop_below)
            check_output(request, expected)
            if request.status is not RequestStatus.FINISHED_ABORTED:
                assert request.output_token_ids == expected

    @property
    def num_preemptions(self) -> int:
        return sum(len(output.preempted) for output in self.outputs)

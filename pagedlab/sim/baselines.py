"""Two schedulers as they were before paging, for comparison. Both give each request one contiguous piece of the pool.

`StaticBatching`     a batch starts together, and the next one starts when its last request is finished
`ReservedBatching`   requests come and go at every step (Orca's iteration-level scheduling), memory is reserved up front

They share the token budget of a step like the reference scheduler, so what differs is memory, and when a request may
come in. A piece is counted in blocks like those of a paged pool, only that its blocks lie side by side; the buddy
allocator (`buddy.py`) rounds it up to a power of two. Nothing is ever preempted: what a request may need, it has.

Sources: Yu et al., Orca (OSDI 2022); the vLLM paper, sections 3.1 and 6.1 (arXiv:2309.06180).
"""

from collections import deque
from itertools import count

from pagedlab.cache.accounting import blocks_needed
from pagedlab.cache.allocator import whole_number
from pagedlab.cache.table import BlockTable
from pagedlab.engine.chunked import chunked_prefill
from pagedlab.engine.limits import NeverFitsError
from pagedlab.engine.request import Request, RequestStatus
from pagedlab.engine.scheduler_output import SchedulerOutput
from pagedlab.sim.buddy import BuddyAllocator, OutOfSlotsError
from pagedlab.sim.policies import OrcaMax, OrcaOracle, OrcaPow2
from pagedlab.sim.workload import SimRequest

RESERVE = {"max": OrcaMax, "pow2": OrcaPow2, "oracle": OrcaOracle}


class ReservedBatching:
    """Continuous batching on reserved memory.

    - reserve: how much of the pool a request gets: "max", room for `max_model_len` tokens; "pow2", its prompt and a
      guess of its output, up to twice too long; "oracle", exactly what it will need
    - max_num_seqs, max_num_batched_tokens: the most requests, and tokens, in one step
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int = 16,
        *,
        reserve: str = "max",
        max_model_len: int = 2048,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = 512,
    ):
        if reserve not in RESERVE:
            raise ValueError(f"reserve is {reserve!r}; choose one of {', '.join(map(repr, RESERVE))}")
        self.block_size = whole_number("block_size", block_size, at_least=1)
        self.max_model_len = whole_number("max_model_len", max_model_len, at_least=1)
        self.max_num_seqs = whole_number("max_num_seqs", max_num_seqs, at_least=1)
        self.max_num_batched_tokens = whole_number("max_num_batched_tokens", max_num_batched_tokens, at_least=1)
        self.allocator = ContiguousPool(whole_number("num_blocks", num_blocks, at_least=1))
        self._policy = RESERVE[reserve](num_blocks * block_size, max_model_len)
        self.name = self._policy.name
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self._numbers = count()

    def add(self, request: Request) -> None:
        """NeverFitsError: it is longer than `max_model_len`, or than the largest piece of the pool."""
        tokens, blocks = request.num_prompt_tokens + request.max_tokens, self._blocks_for(request)
        if tokens > self.max_model_len:
            raise NeverFitsError(
                f"request {request.request_id!r} comes to {tokens} tokens, more than max_model_len={self.max_model_len}"
            )
        if blocks > self.allocator.largest_possible:
            raise NeverFitsError(
                f"request {request.request_id!r} reserves {blocks} blocks of {self.block_size} in one piece; the "
                f"largest piece a pool of {self.allocator.num_blocks} can give is {self.allocator.largest_possible}"
            )
        request.arrival = next(self._numbers)
        self.waiting.append(request)

    def schedule(self) -> SchedulerOutput:
        self._admit()
        wanted = [request.num_new_tokens for request in self.running]
        output = SchedulerOutput()
        shares = chunked_prefill(wanted, self.max_num_batched_tokens)
        for request, num_tokens in zip(self.running, shares, strict=True):
            if num_tokens:
                request.table.append_tokens(num_tokens, self.allocator)  # takes no block: they are there already
                output.scheduled.append((request, num_tokens))
        return output

    def finish(self, request: Request) -> None:
        """Take its piece back. Doing it again is harmless."""
        if request in self.running:
            self.running.remove(request)
            self._release(request)
        elif request in self.waiting:
            self.waiting.remove(request)

    def _admit(self) -> None:
        """First come, first served: nobody overtakes the head of the queue, also if there is room for a smaller one."""
        while self.waiting and len(self.running) < self.max_num_seqs and self._reserve(self.waiting[0]):
            self.running.append(self.waiting.popleft())

    def _reserve(self, request: Request) -> bool:
        try:
            piece = self.allocator.reserve(self._blocks_for(request))
        except OutOfSlotsError:
            return False
        request.table = BlockTable(self.block_size)
        request.table.blocks = list(piece)
        request.status = RequestStatus.RUNNING
        return True

    def _release(self, request: Request) -> None:
        self.allocator.release(request.table.blocks[0])
        request.table.blocks, request.table.num_tokens = [], 0

    def _blocks_for(self, request: Request) -> int:
        lengths = SimRequest(request.num_prompt_tokens, request.max_tokens)
        return blocks_needed(self._policy.slots_to_reserve(lengths), self.block_size)


class StaticBatching(ReservedBatching):
    """The batch that starts together stays together: who is finished keeps its memory until the last one is, and the
    queue waits. `batch_size` is the most requests in one; the pool may allow fewer."""

    def __init__(self, num_blocks: int, block_size: int = 16, *, batch_size: int = 256, **options):
        super().__init__(num_blocks, block_size, max_num_seqs=batch_size, **options)
        self.name = "Static batching"
        self._finished: list[Request] = []

    def _admit(self) -> None:
        if not self.running:
            super()._admit()

    def _release(self, request: Request) -> None:
        self._finished.append(request)
        if not self.running:
            for each in self._finished:
                super()._release(each)
            self._finished.clear()


class ContiguousPool:
    """A pool whose blocks are handed out in pieces that lie side by side."""

    def __init__(self, num_blocks: int):
        self.num_blocks = num_blocks
        self._buddy = BuddyAllocator(num_blocks)

    @property
    def num_free(self) -> int:
        return self._buddy.num_free

    @property
    def largest_possible(self) -> int:
        """Blocks in the largest piece that the pool can ever give."""
        return self._buddy.largest_possible

    def reserve(self, num_blocks: int) -> range:
        """A piece of `num_blocks` blocks. OutOfSlotsError: no free piece is that long."""
        start = self._buddy.allocate(num_blocks)
        return range(start, start + num_blocks)

    def release(self, start: int) -> None:
        """Take back the piece that begins with block `start`."""
        self._buddy.free(start)

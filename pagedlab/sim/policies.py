"""Four ways to give cache memory to requests: three that reserve one contiguous piece, and paging.

The reserving ones are the vLLM paper's baselines (arXiv:2309.06180, section 6.1). A policy only looks after memory. Who
runs and who waits is somebody else's decision: see `memory.py`.
"""

from dataclasses import dataclass
from typing import Protocol

from pagedlab.cache.accounting import LiveRequest, blocks_needed
from pagedlab.engine.limits import NeverFitsError
from pagedlab.sim.buddy import BuddyAllocator, OutOfSlotsError
from pagedlab.sim.workload import SimRequest


class MemoryPolicy(Protocol):
    """Made with `policy(num_slots)`. Calls that refuse (return False) or raise have changed nothing."""

    name: str
    num_slots: int

    def admit(self, request_id: int, request: SimRequest) -> bool:
        """Find room for a new request and store its prompt. False: not now. `NeverFitsError`: never."""
        ...

    def grow(self, request_id: int) -> bool:
        """Store one more token. False: there is no slot for it."""
        ...

    def finish(self, request_id: int) -> None:
        """Take back all of its memory. Also how a preempted request leaves."""
        ...

    def live_requests(self) -> list[LiveRequest]:
        """The requests that hold memory now, in the order they were admitted."""
        ...


@dataclass
class _Reserved:
    start: int
    slots: int
    num_tokens: int
    final_tokens: int


class _Reservation:
    """One contiguous piece for each request, from admission to the end.

    The slots a request *asked for* count as its own. What the buddy allocator adds to reach a power of two belongs to
    no request, and so shows up as external waste, where the paper's figure puts it.
    """

    name: str

    def __init__(self, num_slots: int, max_model_len: int = 2048):
        self.num_slots = num_slots
        self.max_model_len = max_model_len
        self._buddy = BuddyAllocator(num_slots)
        self._running: dict[int, _Reserved] = {}

    def slots_to_reserve(self, request: SimRequest) -> int:
        raise NotImplementedError

    def admit(self, request_id: int, request: SimRequest) -> bool:
        _check_is_new(request_id, self._running)
        if request.final_tokens > self.max_model_len:
            raise NeverFitsError(
                f"request {request_id} comes to {request.final_tokens} tokens, "
                f"more than max_model_len={self.max_model_len}"
            )
        slots = self.slots_to_reserve(request)
        if slots > self._buddy.largest_possible:
            raise NeverFitsError(
                f"request {request_id} reserves {slots} slots in one piece; the largest piece a pool of "
                f"{self.num_slots} slots can give is {self._buddy.largest_possible}"
            )
        try:
            start = self._buddy.allocate(slots)
        except OutOfSlotsError:
            return False
        self._running[request_id] = _Reserved(start, slots, request.prompt_tokens, request.final_tokens)
        return True

    def grow(self, request_id: int) -> bool:
        held = self._running[request_id]
        if held.num_tokens >= held.final_tokens:
            raise ValueError(f"request {request_id} is complete with its {held.final_tokens} tokens")
        held.num_tokens += 1  # its slot was set aside at admission
        return True

    def finish(self, request_id: int) -> None:
        self._buddy.free(self._running.pop(request_id).start)

    def live_requests(self) -> list[LiveRequest]:
        return [LiveRequest(held.num_tokens, held.final_tokens, held.slots) for held in self._running.values()]


class OrcaMax(_Reservation):
    """Reserves the longest sequence the model allows, as a system must that knows nothing about the output's length."""

    name = "Orca (Max)"

    def slots_to_reserve(self, request: SimRequest) -> int:
        return self.max_model_len


class OrcaPow2(_Reservation):
    """Guesses the output's length, and overshoots by at most a factor of two: the next power of two."""

    name = "Orca (Pow2)"

    def slots_to_reserve(self, request: SimRequest) -> int:
        guess = 1 << (request.output_tokens - 1).bit_length()
        return min(request.prompt_tokens + guess, self.max_model_len)


class OrcaOracle(_Reservation):
    """Knows the output's length in advance. Nobody does: this is the best that reserving could ever do."""

    name = "Orca (Oracle)"

    def slots_to_reserve(self, request: SimRequest) -> int:
        return request.final_tokens


class Paged:
    """Blocks of `block_size` slots, taken one at a time as a request grows.

    Any free block will do, so only their number matters here. A new request must leave `watermark` of all blocks free:
    those already running are about to need them. With nothing running there is nobody to leave them to.
    """

    def __init__(self, num_slots: int, block_size: int = 16, watermark: float = 0.01):
        if not 0 <= watermark < 1:
            raise ValueError(f"watermark is {watermark}; it is a fraction of the pool, from 0 to below 1")
        if not 1 <= block_size <= num_slots:
            raise ValueError(f"block_size is {block_size}; a block has from 1 to all {num_slots} slots of the pool")
        self.name = "Paged" if block_size == 16 else f"Paged, block size {block_size}"
        self.num_slots = num_slots
        self.block_size = block_size
        self.num_blocks = num_slots // block_size
        self.num_free_blocks = self.num_blocks
        self.watermark_blocks = int(watermark * self.num_blocks)
        self._num_tokens: dict[int, int] = {}

    def admit(self, request_id: int, request: SimRequest) -> bool:
        _check_is_new(request_id, self._num_tokens)
        if blocks_needed(request.final_tokens, self.block_size) > self.num_blocks:
            raise NeverFitsError(
                f"request {request_id} comes to {request.final_tokens} tokens; the pool holds "
                f"{self.num_blocks} blocks of {self.block_size}, {self.num_blocks * self.block_size} tokens in all"
            )
        blocks = blocks_needed(request.prompt_tokens, self.block_size)
        keep_free = self.watermark_blocks if self._num_tokens else 0
        if self.num_free_blocks - blocks < keep_free:
            return False
        self.num_free_blocks -= blocks
        self._num_tokens[request_id] = request.prompt_tokens
        return True

    def grow(self, request_id: int) -> bool:
        num_tokens = self._num_tokens[request_id]
        if num_tokens % self.block_size == 0:  # its last block is full
            if self.num_free_blocks == 0:
                return False
            self.num_free_blocks -= 1
        self._num_tokens[request_id] = num_tokens + 1
        return True

    def finish(self, request_id: int) -> None:
        self.num_free_blocks += blocks_needed(self._num_tokens.pop(request_id), self.block_size)

    def live_requests(self) -> list[LiveRequest]:
        """Nothing is set aside for later, so a request's end is where it stands now, and its blocks are all it owns."""
        size = self.block_size
        return [LiveRequest(n, n, blocks_needed(n, size) * size) for n in self._num_tokens.values()]


def _check_is_new(request_id: int, running: dict) -> None:
    if request_id in running:
        raise ValueError(f"request {request_id} is running already; finish it before it is admitted again")


POLICIES = (OrcaMax, OrcaPow2, OrcaOracle, Paged)

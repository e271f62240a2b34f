"""The scheduler: who runs in this step, with how many tokens, and who has to make room.

Three queues, each in the order of turns: `running` holds blocks of the pool, `swapped` holds blocks of the swap space,
`waiting` holds none. One call of `schedule` decides one step:

1. Everybody in `running` gets a share of the token budget, and the blocks for it. Where the pool has none left, the
   last of the order is preempted: it gives up all its blocks, and it will go on later from its tokens (recompute) or
   from a copy of its blocks in main memory (swap). Its turn is kept.
2. If nobody had to go, those in line come in: first who was swapped out, then who waits, and nobody overtakes. There
   must be room for all the tokens a request has so far, also if its first chunk is only a few of them; and beside
   others, a part of the pool stays free (the watermark), for those others are about to grow.

Why this cannot get stuck. `add` refuses what does not fit into the whole pool, so the first who asks for blocks can
always have them, if need be all of them, and one token at least is computed in every step. Why nobody starves, first
come, first served: a request gives way to those before it, and they come to an end.

A step costs time in proportion to the requests that run, whatever the size of the pool.

Sources: the vLLM paper, sections 4.3 to 4.5 (arXiv:2309.06180); Sarathi-Serve for the shares (arXiv:2403.02310);
`vllm/v1/core/sched/scheduler.py` for a scheduler that knows no phases.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence, Set
from itertools import chain, count
from operator import attrgetter

from pagedlab.cache.accounting import blocks_needed
from pagedlab.cache.allocator import Allocator, whole_number
from pagedlab.cache.block_hash import HashChain
from pagedlab.cache.table import BlockTable
from pagedlab.engine.chunked import chunked_prefill, whole_prompts
from pagedlab.engine.limits import check_fits
from pagedlab.engine.request import Request, RequestStatus
from pagedlab.engine.scheduler_output import SchedulerOutput
from pagedlab.errors import PagedLabError

_by_turn = attrgetter("order")


class Scheduler:
    """Shares the blocks of `allocator` and the tokens of each step among requests.

    - `max_num_seqs`, `max_num_batched_tokens`: the most requests, and tokens, in one step
    - `max_model_len`: the most tokens the model can have in one sequence; None: no limit
    - `chunked_prefill`: whether a prompt may be computed in pieces; if not, a step takes all of it or nothing
    - `policy`: "fcfs", first come, first served; "priority", lower numbers first, equals in the order they came. It is
      about who comes in first and who makes room last; nobody has to go only because somebody more urgent waits.
    - `watermark`: the part of the pool that stays free when somebody comes in beside others
    - `preemption`: "recompute", or "swap" as far as `swap_space` (`pagedlab.cache.swap`) has room
    - `table_class`, `split_budget`: your own `BlockTable` and `chunked_prefill`

    An allocator that has `lookup` and `publish` (`pagedlab.cache.prefix.PrefixCache`) is used as a prefix cache.
    Blocks can be found once their step is over. Whoever would compute the same ones in the same step waits for them.
    """

    def __init__(
        self,
        allocator: Allocator,
        block_size: int,
        *,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = 512,
        max_model_len: int | None = None,
        chunked_prefill: bool = True,
        policy: str = "fcfs",
        watermark: float = 0.01,
        preemption: str = "recompute",
        swap_space=None,
        table_class: Callable[[int], BlockTable] = BlockTable,
        split_budget: Callable[[Sequence[int], int], list[int]] = chunked_prefill,
    ):
        self.allocator = allocator
        self.num_blocks = getattr(allocator, "num_blocks", allocator.num_free)
        self.block_size = whole_number("block_size", block_size, at_least=1)
        self.max_num_seqs = whole_number("max_num_seqs", max_num_seqs, at_least=1)
        self.max_num_batched_tokens = whole_number("max_num_batched_tokens", max_num_batched_tokens, at_least=1)
        if max_model_len is not None:
            max_model_len = whole_number("max_model_len", max_model_len, at_least=1)
        self.max_model_len = max_model_len
        self.chunked_prefill = chunked_prefill
        self.policy = _one_of("policy", policy, ("fcfs", "priority"))
        if not 0 <= watermark < 1:
            raise ValueError(f"watermark is {watermark}; it is a fraction of the pool, from 0 to below 1")
        self.watermark_blocks = int(watermark * self.num_blocks)
        self.preemption = _one_of("preemption", preemption, ("recompute", "swap"))
        self.swap_space = swap_space
        self.table_class = table_class
        self.split_budget = split_budget if chunked_prefill else whole_prompts

        self.running: list[Request] = []
        self.swapped: list[Request] = []
        self.waiting: list[Request] = []
        self.requests: dict[str, Request] = {}
        """Every request that is not finished, by its id."""
        self._caches_prefixes = hasattr(allocator, "lookup")
        self._numbers = count()

    # Coming and going.

    def add(self, request: Request) -> None:
        """A new request gets in line.

        DuplicateRequestError: its id is taken. NeverFitsError: it could not run even alone. Nothing changes then.
        """
        self._check_is_new(request.request_id)
        check_fits(request, self)
        if request.status is not RequestStatus.WAITING:
            raise ValueError(f"only a new request can be added, not {request}")
        if self._caches_prefixes:
            hash_chain = HashChain(self.block_size, request.extra_keys)
            hash_chain.extend(request.prompt_token_ids)  # now, so that bad keys are the caller's error
            request.hash_chain = hash_chain
        request.table = self.table_class(self.block_size)
        request.arrival = next(self._numbers)
        self._enter(self.waiting, request, request.arrival)

    def fork(self, request: Request, request_id: str) -> Request:
        """A second request that goes on from here: the same tokens, in the same blocks, and the same turn.

        For more than one sample of a prompt, and for beams. Call it between steps. A request that has no blocks in the
        pool at the moment gets a fork that will be computed from its tokens. DuplicateRequestError: the id is taken.
        """
        self._check_is_new(request_id)
        if self.requests.get(request.request_id) is not request:
            raise ValueError(f"only a request of this scheduler that is not finished can be forked, not {request}")
        child = Request(
            request_id,
            request.prompt_token_ids,
            request.max_tokens,
            priority=request.priority,
            params=request.params,
            extra_keys=request.extra_keys,
        )
        child.output_token_ids = list(request.output_token_ids)
        child.arrival, child.root_id = request.arrival, request.root_id
        child.num_cached_tokens = request.num_cached_tokens
        child.hash_chain = request.hash_chain.fork() if request.hash_chain else None
        if request.status is RequestStatus.RUNNING:
            child.table = request.table.fork(self.allocator)
            child.num_computed_tokens = request.num_computed_tokens
            child.num_published_blocks = request.num_published_blocks
            child.status = RequestStatus.RUNNING
        else:
            child.table = self.table_class(self.block_size)
            child.status = RequestStatus.WAITING if request.status is RequestStatus.WAITING else RequestStatus.PREEMPTED
        request.seats = max(1, request.seats - 1)  # the child takes one of those set aside
        self._enter(self.running if child.status is RequestStatus.RUNNING else self.waiting, child, next(self._numbers))
        return child

    def finish(self, request: Request, status: RequestStatus = RequestStatus.FINISHED_STOPPED) -> None:
        """Remove the request, wherever it is, and take all its blocks back. Doing it again is harmless."""
        if self.requests.get(request.request_id) is not request:
            return
        for queue in (self.running, self.waiting, self.swapped):
            _remove(queue, request)
        self._free(request)
        del self.requests[request.request_id]
        if not request.status.is_finished:
            request.status = status

    def abort(self, request_id: str) -> list[Request]:
        """Finish a request and all its forks, whatever they are doing. Returns them; none if the id is unknown."""
        family = [r for r in self.requests.values() if request_id in (r.request_id, r.root_id)]
        for request in family:
            self.finish(request, RequestStatus.FINISHED_ABORTED)
        return family

    # Steps.

    def schedule(self) -> SchedulerOutput:
        """Decide one step. It is empty only if nobody has anything to compute.

        The tables of scheduled requests have grown by their tokens. An error, such as one from an allocator, comes out
        after what was begun has been undone. StuckError: blocks are missing that no request holds.
        """
        output = SchedulerOutput()
        try:
            self._schedule_running(output)
            if not output.preempted:
                self._admit_in_line(output)
            if not output.scheduled:
                self._make_room_for_the_first_in_line(output)
        except BaseException:
            self.undo(output, moved=False)
            raise
        return output

    def after_step(self, output: SchedulerOutput) -> None:
        """The model ran and each `num_computed_tokens` counts it: blocks that are full now can serve other requests.

        Call it before `finish`: a request that has left has no blocks to publish.
        """
        if not self._caches_prefixes:
            return
        for request, _ in output.scheduled:
            num_full = request.num_computed_tokens // self.block_size
            if num_full > request.num_published_blocks and request.status is RequestStatus.RUNNING:
                self._publish(request, num_full)

    def undo(self, output: SchedulerOutput, moved: bool = True) -> None:
        """Take back a step whose tokens were not computed, after an error in the model or an interrupt.

        The next step repeats it. Who came in stays, and so does who was preempted; only the room for the step's tokens
        is given back. `moved`: whether the memory moves of the step were made. If not, or not all of them, requests
        whose blocks should have been moved have nothing stored any more and start over from their tokens.
        """
        for request in self.running:
            if request.table.num_tokens > request.num_computed_tokens:
                request.table.truncate(request.num_computed_tokens, self.allocator)
        if moved:
            return
        lost = {destination for _, destination in output.swap_in + output.blocks_to_copy}
        lost_outside = {destination for _, destination in output.swap_out}
        for request in [*self.running, *self.swapped]:
            if lost.intersection(request.table.blocks) or lost_outside.intersection(request.cpu_blocks):
                _remove(self.running, request)
                _remove(self.swapped, request)
                self._start_over(request)

    def check(self, **options) -> None:
        """Between steps: InvariantError unless everything adds up. See `pagedlab.engine.invariants`."""
        from pagedlab.engine.invariants import check_invariants

        check_invariants(self, **options)

    # Who runs already.

    def _schedule_running(self, output: SchedulerOutput) -> None:
        if not self.running:
            return
        requests = list(self.running)  # some may have to leave on the way
        wanted = [request.num_new_tokens for request in requests]
        for request, num_tokens in zip(requests, self._shares(wanted, self.max_num_batched_tokens), strict=True):
            if num_tokens and request.status is RequestStatus.RUNNING:
                self._grow(request, num_tokens, output)

    def _grow(self, request: Request, num_tokens: int, output: SchedulerOutput) -> None:
        """Schedule `num_tokens` of a running request. The last of the order makes room; that may be this one itself."""
        table, allocator = request.table, self.allocator
        while (needed := table.blocks_to_append(num_tokens, allocator)) > allocator.num_free:
            victim = self.running[-1]  # its turn in this step has not come yet
            self._preempt(victim, output)
            if victim is request:
                return
        if needed:
            output.blocks_to_copy += table.copy_on_write(allocator)
        output.new_blocks += table.append_tokens(num_tokens, allocator)
        output.scheduled.append((request, num_tokens))

    def _preempt(self, request: Request, output: SchedulerOutput) -> None:
        """All its blocks or none: a sequence is read as a whole, so a part of it would be of no use.

        A block it shares is copied out as well. When it comes back, it has all its blocks to itself.
        """
        _remove(self.running, request)
        request.num_preemptions += 1
        output.preempted.append(request)
        blocks = request.table.blocks
        if self.preemption == "swap" and self.swap_space and blocks and self.swap_space.can_hold(len(blocks)):
            request.cpu_blocks = self.swap_space.allocate(len(blocks))
            output.swap_out += zip(blocks, request.cpu_blocks, strict=True)
            request.table.free(self.allocator)
            request.status = RequestStatus.SWAPPED
            insort(self.swapped, request, key=_by_turn)
        else:
            self._start_over(request)

    def _start_over(self, request: Request) -> None:
        """To be computed again from its tokens, those it has sampled included."""
        if request.is_idle:
            request.parked_at = request.num_tokens
        self._free(request)
        request.num_computed_tokens = 0
        request.status = RequestStatus.PREEMPTED
        insort(self.waiting, request, key=_by_turn)

    # Who comes in.

    def _admit_in_line(self, output: SchedulerOutput) -> None:
        if not self.swapped and not self.waiting:
            return
        budget, seats = self.max_num_batched_tokens - output.num_tokens, self._free_seats()
        coming = self._blocks_to_come(output.scheduled)
        while budget > 0 and (request := self._first_in_line()) and request.seats <= seats:
            if not self._admit(request, budget, output, coming):
                break
            budget -= output.scheduled[-1][1]
            seats -= request.seats
            coming |= self._blocks_to_come(output.scheduled[-1:])

    def _first_in_line(self) -> Request | None:
        """While anybody is swapped out, nobody new comes in: the swap space need not be larger than the pool."""
        return next((request for request in chain(self.swapped, self.waiting) if not request.is_idle), None)

    def _free_seats(self) -> int:
        return self.max_num_seqs - sum(request.seats for request in self.running)

    def _admit(self, request: Request, budget: int, output: SchedulerOutput, coming: Set[bytes] = frozenset()) -> bool:
        """Give a request a table and its first tokens, if there is room. If not, nothing has changed.

        `coming`: names of blocks that somebody computes in this step. Who would compute the same waits a step, and
        finds it.
        """
        swapped = request.status is RequestStatus.SWAPPED
        table = self.table_class(self.block_size)
        try:
            hits = [] if swapped else self._lookup(request)
            if hits:
                table.adopt(hits, len(hits) * self.block_size)
            num_stored = request.num_computed_tokens if swapped else table.num_tokens
            (num_tokens,) = self._shares([request.num_tokens - num_stored], budget)
            needed = blocks_needed(request.num_tokens, self.block_size) - len(table.blocks)
            keep_free = self.watermark_blocks if self.running else 0  # with nobody there, nobody needs it
            waits = not swapped and self._next_name(request, len(hits)) in coming
            if waits or num_tokens == 0 or needed + keep_free > self.allocator.num_free:
                table.free(self.allocator)
                return False
            if swapped:
                table.adopt(self.allocator.allocate(len(request.cpu_blocks)), num_stored)
            new_blocks = table.append_tokens(num_tokens, self.allocator)
        except BaseException:
            table.free(self.allocator)
            raise
        if swapped:
            output.swap_in += zip(request.cpu_blocks, table.blocks, strict=False)  # behind them: blocks for new tokens
        _remove(self.swapped if swapped else self.waiting, request)
        self._free(request)
        request.table, request.num_computed_tokens, request.num_published_blocks = table, num_stored, len(hits)
        if request.status is RequestStatus.WAITING:
            request.num_cached_tokens = num_stored
        else:
            output.resumed.append(request)
        request.status = RequestStatus.RUNNING
        insort(self.running, request, key=_by_turn)
        output.new_blocks += new_blocks
        output.scheduled.append((request, num_tokens))
        return True

    def _make_room_for_the_first_in_line(self, output: SchedulerOutput) -> None:
        """Nobody who runs has got anything, so they go, the last ones first, until the first in line can come in.

        Two ways lead here. All beams of a search have been sampled but the one in line, so those that run are idle. Or
        the only one with a share of the budget lacked a block and was the last of the order: it is in line itself now.
        """
        request = self._first_in_line()
        if request is None:
            return
        while request.seats > self._free_seats() or not self._admit(request, self.max_num_batched_tokens, output):
            if not self.running:
                raise StuckError(request, self.allocator.num_free, self.num_blocks)
            self._preempt(self.running[-1], output)

    # The prefix cache.

    def _lookup(self, request: Request) -> list[int]:
        """Blocks that hold its first tokens already, now shared with it. Asked anew at every attempt.

        Its last token must be computed in any case, for the sake of its logits, and so its block is not looked up.
        """
        if not self._caches_prefixes:
            return []
        num_blocks = (request.num_tokens - 1) // self.block_size
        return self.allocator.lookup(self._hashes(request, num_blocks))

    def _blocks_to_come(self, scheduled: list[tuple[Request, int]]) -> set[bytes]:
        """Names of the blocks that these tokens will fill."""
        names: set[bytes] = set()
        if self._caches_prefixes:
            for request, num_tokens in scheduled:
                num_full = (request.num_computed_tokens + num_tokens) // self.block_size
                if num_full > request.num_published_blocks:
                    names.update(self._hashes(request, num_full)[request.num_published_blocks :])
        return names

    def _next_name(self, request: Request, num_hits: int) -> bytes | None:
        """Of the first block that it did not find; None if that is the one with its last token, or prefixes are not
        kept."""
        if not self._caches_prefixes or num_hits >= (request.num_tokens - 1) // self.block_size:
            return None
        return self._hashes(request, num_hits + 1)[num_hits]

    def _publish(self, request: Request, num_full: int) -> None:
        hashes = self._hashes(request, num_full)
        for index in range(request.num_published_blocks, num_full):
            self.allocator.publish(request.table.blocks[index], hashes[index])
        request.num_published_blocks = num_full

    def _hashes(self, request: Request, num_blocks: int) -> list[bytes]:
        """Of its first blocks; those it has not had before are computed now."""
        hash_chain, num_tokens = request.hash_chain, num_blocks * self.block_size
        if hash_chain.num_tokens < num_tokens:
            hash_chain.extend(request.tokens(hash_chain.num_tokens, num_tokens))
        return hash_chain.hashes[:num_blocks]

    # Small parts.

    def _enter(self, queue: list[Request], request: Request, number: int) -> None:
        priority = request.priority if self.policy == "priority" else 0
        request.order = (priority, request.arrival, number)
        self.requests[request.request_id] = request
        insort(queue, request, key=_by_turn)

    def _free(self, request: Request) -> None:
        """All blocks of a request, in the pool and in the swap space. Harmless if it has none."""
        request.table.free(self.allocator)
        if request.cpu_blocks:
            self.swap_space.free(request.cpu_blocks)
            request.cpu_blocks = []

    def _shares(self, wanted: list[int], budget: int) -> list[int]:
        shares = self.split_budget(wanted, budget)
        fits = len(shares) == len(wanted) and sum(shares) <= budget
        if not fits or not all(0 <= share <= most for share, most in zip(shares, wanted, strict=True)):
            raise ValueError(f"split_budget gave {shares} for {wanted} and a budget of {budget}")
        return shares

    def _check_is_new(self, request_id: str) -> None:
        if request_id in self.requests:
            raise DuplicateRequestError(
                f"request id {request_id!r} is taken by one that is {self.requests[request_id].status.name} and not "
                f"finished. Give the new one another id, or abort the old one first."
            )


class DuplicateRequestError(PagedLabError):
    """Another unfinished request has this id. Nothing was changed."""


class StuckError(PagedLabError):
    """A request that fits the pool has it for itself and yet lacks blocks: somebody who is no request holds them."""

    def __init__(self, request: Request, num_free: int, num_blocks: int):
        super().__init__(request, num_free, num_blocks)
        self.request, self.num_free, self.num_blocks = request, num_free, num_blocks

    def __str__(self):
        return (
            f"request {self.request.request_id!r} cannot get blocks for its {self.request.num_tokens} tokens, although "
            f"nobody else runs: {self.num_free} of {self.num_blocks} blocks are free. The others belong to no running "
            f"request: were they never freed, or does somebody else use this allocator?"
        )


def _remove(queue: list[Request], request: Request) -> None:
    """Take the request out of a sorted queue, if it is there."""
    index = bisect_left(queue, request.order, key=_by_turn)
    if index < len(queue) and queue[index] is request:
        del queue[index]


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; choose one of {', '.join(map(repr, choices))}")
    return value

"""Serving without a model: any scheduler, on a clock that a cost model moves.

The scheduler and its blocks are the real ones, the engine's own. Only the model is missing: a step takes as long as
`CostModel` says, and every token it would have sampled is just counted. So a run of an hour on a large GPU takes a
second here, and comes out the same every time.

    run = simulate_serving(SHAREGPT.requests(200), Scheduler(BlockAllocator(983), 16), arrivals=2.0)
    print(run)

How long a request's answer gets is decided beforehand: it ends after `max_tokens` tokens, never earlier.

Source for the idea: Vidur (arXiv:2405.05465), a simulator whose costs are fitted to measurements. Ours are sums that
can be done on paper; they show who wins and why, not by how many percent on a given machine.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from pagedlab.cache.table import BlockTable
from pagedlab.engine.metrics import RequestMetrics, blocks_and_slots_used
from pagedlab.engine.request import Request, RequestStatus
from pagedlab.engine.scheduler_output import SchedulerLike, SchedulerOutput
from pagedlab.errors import PagedLabError
from pagedlab.sim.memory_split import opt_13b_on_40_gb
from pagedlab.sim.workload import SimRequest


@dataclass(frozen=True)
class CostModel:
    """Seconds of a step = base + per_token x new tokens + per_context_token x tokens read + per_swapped_block x moves.

    - base: what every step costs, however small: mostly reading the weights
    - per_token: arithmetic for each token that is computed
    - per_context_token: reading the key and value of one stored token, once for each request that is computed
    - per_swapped_block: carrying a block out of the pool or back
    """

    base: float
    per_token: float
    per_context_token: float = 0.0
    per_swapped_block: float = 0.0

    def __post_init__(self):
        if not (self.base >= 0 and self.per_token >= 0 and self.per_context_token >= 0 and self.per_swapped_block >= 0):
            raise ValueError(f"times cannot be negative: {self}")
        if self.base == self.per_token == 0:
            raise ValueError("a step that computes a token takes time: base or per_token must be above 0")

    def seconds(self, output: SchedulerOutput) -> float:
        """How long this step takes. Ask before `num_computed_tokens` counts its tokens."""
        context = sum(request.num_computed_tokens + num_tokens for request, num_tokens in output.scheduled)
        swapped = len(output.swap_out) + len(output.swap_in)
        return (
            self.base
            + self.per_token * output.num_tokens
            + self.per_context_token * context
            + self.per_swapped_block * swapped
        )

    @classmethod
    def of_hardware(
        cls,
        weight_bytes: float,
        kv_bytes_per_token: float,
        memory_bandwidth: float,
        flops: float,
        bytes_per_element: int = 2,
        block_bytes: float = 0.0,
        host_bandwidth: float = 32e9,
    ) -> "CostModel":
        """From the sizes of a model and the speeds of a machine (bytes/s and operations/s): one multiplication and one
        addition for each weight and token, each weight read once a step, each stored token read once a request."""
        return cls(
            base=weight_bytes / memory_bandwidth,
            per_token=2 * weight_bytes / bytes_per_element / flops,
            per_context_token=kv_bytes_per_token / memory_bandwidth,
            per_swapped_block=block_bytes / host_bandwidth,
        )


def opt_13b_on_a100(block_size: int = 16) -> CostModel:
    """The paper's machine: an A100 with 1,555 GB/s, and 156 of its 312 TFLOP/s, as real code gets about half.

    A step of one token takes 17 ms, nearly all of it for the weights. Blocks are swapped at 32 GB/s (PCIe 4.0 x 16).
    """
    split = opt_13b_on_40_gb()
    return CostModel.of_hardware(
        weight_bytes=split.weights,
        kv_bytes_per_token=split.bytes_per_token,
        memory_bandwidth=1555e9,
        flops=156e12,
        block_bytes=block_size * split.bytes_per_token,
    )


@dataclass(frozen=True)
class ServingRun:
    """What came of a run. Means over time count each step by how long it took; pauses without work do not count."""

    scheduler: str
    requests: tuple[RequestMetrics, ...]  # in order of arrival
    num_steps: int
    busy_time: float  # seconds spent in steps
    total_time: float  # seconds from the first arrival to the last token
    num_computed_tokens: int  # also those computed again after a preemption
    num_preemptions: int
    mean_batch_size: float  # requests computed in a step
    block_usage: float | None  # blocks that are not free / blocks, over time; None if the scheduler shows no allocator
    token_usage: float | None  # slots that hold a token / all slots, over time

    @property
    def num_output_tokens(self) -> int:
        return sum(request.num_generation_tokens for request in self.requests)

    @property
    def throughput(self) -> float:
        """Output tokens per second, from the first arrival to the last token."""
        return self.num_output_tokens / self.total_time

    @property
    def normalized_latency(self) -> float:
        """Mean of each request's time from arrival to end over its output tokens: the vLLM paper's measure, s/token."""
        return float(np.mean([request.e2e_latency / request.num_generation_tokens for request in self.requests]))

    def mean(self, metric: str) -> float:
        """Mean over requests of "ttft", "tpot", "queue_time" or "e2e_latency", in seconds."""
        return float(np.mean(self._values(metric)))

    def percentile(self, metric: str, percent: float) -> float:
        """Below this many seconds are `percent` percent of the requests."""
        return float(np.percentile(self._values(metric), percent))

    def _values(self, metric: str) -> list[float]:
        values = [getattr(request, metric) for request in self.requests]
        values = [value for value in values if value is not None]  # a single token has no TPOT
        if not values:
            raise ValueError(f"no request of this run has a {metric}")
        return values

    def __str__(self) -> str:
        return table([self])


def simulate_serving(
    requests: Iterable[SimRequest | Request],
    scheduler: SchedulerLike,
    cost: CostModel | None = None,
    arrivals: float | Sequence[float] | None = None,
    seed: int = 0,
    trace=None,
    name: str | None = None,
) -> ServingRun:
    """Serve `requests`, given in order of arrival, until all are finished.

    - requests: lengths (`sim.workload`), whose tokens are unlike those of any other request; or new requests of the
      engine (`pagedlab.engine.request.Request`), where the tokens matter to a prefix cache
    - scheduler: the reference, a baseline, or your own; new, and shared with nobody
    - cost: `opt_13b_on_a100()` if not given
    - arrivals: None, all at once; a number, so many per second on average at random (Poisson); or a time for each
    - trace: a `pagedlab.engine.trace.ScheduleTrace` that will record each step

    What the scheduler raises on `add` (`NeverFitsError`) comes out. SchedulerError: it stops getting anywhere, or asks
    for what cannot be.
    """
    cost = opt_13b_on_a100() if cost is None else cost
    pending = deque(_with_arrivals([_as_request(i, request) for i, request in enumerate(requests)], arrivals, seed))
    loop = _Loop(scheduler, cost, trace)
    metrics = {request.request_id: RequestMetrics(arrival, request.num_prompt_tokens) for arrival, request in pending}
    if len(metrics) < len(pending):
        raise ValueError("two requests have the same request_id")
    first_arrival = pending[0][0] if pending else 0.0
    loop.now = first_arrival
    while pending or loop.unfinished:
        while pending and (pending[0][0] <= loop.now or not loop.unfinished):
            arrival, request = pending.popleft()
            loop.now = max(loop.now, arrival)
            if request.table is None:  # the reference makes a table of its own class; a smaller scheduler need not
                request.table = BlockTable(getattr(scheduler, "block_size", 16))
            scheduler.add(request)
            loop.unfinished[request.request_id] = metrics[request.request_id], request
        if not loop.step() and pending:
            loop.now = max(loop.now, pending[0][0])  # nothing to be done before somebody comes
    return loop.result(name, tuple(metrics.values()), first_arrival)


class SchedulerError(PagedLabError):
    """A scheduler that cannot be served: it gives no tokens although there is work, or tokens that do not exist."""


class _Loop:
    """The engine's loop, with a clock in place of the model."""

    def __init__(self, scheduler: SchedulerLike, cost: CostModel, trace):
        self.scheduler, self.cost, self.trace = scheduler, cost, trace
        self.allocator = getattr(scheduler, "allocator", None)
        self.num_blocks = getattr(self.allocator, "num_blocks", None)
        self.now = 0.0
        self.unfinished: dict[str, tuple[RequestMetrics, Request]] = {}
        self.computed: set[str] = set()  # who had computed tokens when the last step ended
        self.left: list[Request] = []  # finished, and in the trace as long as they hold memory
        self.num_steps = self.num_computed = self.num_preemptions = self.empty_steps = 0
        self.busy_time = self.batch_time = self.block_time = self.slot_time = 0.0

    def step(self) -> bool:
        """One step. Returns whether anything was computed."""
        output = self._scheduled()
        self._check(output)
        self.num_preemptions += len(output.preempted)
        if not output.scheduled:
            return False
        seconds = self.cost.seconds(output)
        self._measure(output, seconds)
        if output.swap_out or output.swap_in:
            self.scheduler.swap_space.swap_out(output.swap_out)
            self.scheduler.swap_space.swap_in(output.swap_in)
        started, self.now = self.now, self.now + seconds
        for request, num_tokens in output.scheduled:
            request.num_computed_tokens += num_tokens
            self.computed.add(request.request_id)
            metrics, _ = self.unfinished[request.request_id]
            if metrics.first_scheduled_time is None:
                metrics.first_scheduled_time = started
                metrics.num_cached_tokens = getattr(request, "num_cached_tokens", 0)
        if hasattr(self.scheduler, "after_step"):
            self.scheduler.after_step(output)
        self.left += [request for request, _ in output.scheduled if self._sample(request)]
        if self.trace is not None:
            requests = self.left + [request for _, request in self.unfinished.values()]
            self.trace.record(requests, output, self.allocator, self.now, started)
        self.left = [request for request in self.left if getattr(request.table, "blocks", None)]
        return True

    def _scheduled(self) -> SchedulerOutput:
        result = self.scheduler.schedule()
        output = SchedulerOutput.of(result)
        if output is not result:  # a plain list does not name those who had to leave
            gone = [request for _, request in self.unfinished.values() if not request.num_computed_tokens]
            output.preempted = [request for request in gone if request.request_id in self.computed]
            for request in output.preempted:
                request.num_preemptions += 1
                self.computed.remove(request.request_id)
        return output

    def _sample(self, request: Request) -> bool:
        """One more token, if the request is computed up to its newest. Returns whether it was the last."""
        if request.num_computed_tokens < request.num_tokens:
            return False
        metrics, _ = self.unfinished[request.request_id]
        request.output_token_ids.append(request.prompt_token_ids[-1])
        metrics.count_tokens(1, self.now)
        if len(request.output_token_ids) < request.max_tokens:
            return False
        metrics.finished_time = self.now
        metrics.num_preemptions = request.num_preemptions
        request.status = RequestStatus.FINISHED_LENGTH
        self.scheduler.finish(request)
        del self.unfinished[request.request_id]
        return True

    def _check(self, output: SchedulerOutput) -> None:
        self.empty_steps = 0 if output.scheduled else self.empty_steps + 1
        if self.empty_steps > 1 or (self.empty_steps and not output.preempted):
            raise SchedulerError(
                f"schedule() gave nobody any tokens at {self.now:.3f} s, with {len(self.scheduler.running)} requests "
                f"running and {len(self.scheduler.waiting)} waiting: it will not get any further"
            )
        seen = set()
        for request, num_tokens in output.scheduled:
            name = request.request_id
            if name not in self.unfinished or name in seen:
                raise SchedulerError(f"schedule() named request {name!r} twice, or after it had finished")
            if not 1 <= num_tokens <= request.num_new_tokens:
                raise SchedulerError(
                    f"schedule() gave request {name!r} {num_tokens} tokens; it has {request.num_new_tokens} to compute"
                )
            seen.add(name)

    def _measure(self, output: SchedulerOutput, seconds: float) -> None:
        self.busy_time += seconds
        self.batch_time += seconds * len(output.scheduled)
        self.num_computed += output.num_tokens
        if self.num_blocks:
            used = self.num_blocks - self.allocator.num_free
            self.block_time += seconds * used / self.num_blocks
            self.slot_time += seconds * self._slots_used(used) / self.num_blocks
        self.num_steps += 1

    def _slots_used(self, blocks_used: int) -> float:
        """Slots with a token, counted in blocks."""
        running = [request for request in self.scheduler.running if request.table is not None]
        if not running:
            return 0.0
        block_size = running[0].table.block_size
        if sum(len(request.table.blocks) for request in running) <= blocks_used:  # nothing is shared
            return sum(request.table.num_tokens for request in running) / block_size
        return blocks_and_slots_used(running, block_size)[1] / block_size

    def result(self, name: str | None, metrics: tuple[RequestMetrics, ...], first_arrival: float) -> ServingRun:
        if not metrics:
            raise ValueError("there was no request to serve")
        return ServingRun(
            scheduler=name or getattr(self.scheduler, "name", type(self.scheduler).__name__),
            requests=metrics,
            num_steps=self.num_steps,
            busy_time=self.busy_time,
            total_time=self.now - first_arrival,
            num_computed_tokens=self.num_computed,
            num_preemptions=self.num_preemptions,
            mean_batch_size=self.batch_time / self.busy_time,
            block_usage=self.block_time / self.busy_time if self.num_blocks else None,
            token_usage=self.slot_time / self.busy_time if self.num_blocks else None,
        )


def table(runs: Iterable[ServingRun]) -> str:
    """The runs as text, one line each. Times in seconds, throughput in output tokens per second."""
    runs = list(runs)
    heads = ("tokens/s", "s/token", "TTFT", "p99", "TPOT", "queue", "batch", "preempted", "blocks", "slots")
    rows = [("", *heads)]
    for run in runs:
        usage = ["-" if part is None else f"{100 * part:.1f} %" for part in (run.block_usage, run.token_usage)]
        many = any(request.tpot is not None for request in run.requests)
        rows.append(
            (
                run.scheduler,
                f"{run.throughput:,.1f}",
                f"{run.normalized_latency:.4f}",
                f"{run.mean('ttft'):.3f}",
                f"{run.percentile('ttft', 99):.3f}",
                f"{run.mean('tpot'):.4f}" if many else "-",
                f"{run.mean('queue_time'):.3f}",
                f"{run.mean_batch_size:.1f}",
                f"{run.num_preemptions:,}",
                *usage,
            )
        )
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        cells = (cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True))
        lines.append("  ".join([first.ljust(widths[0]), *cells]))
    return "\n".join(lines)


def poisson_arrivals(n: int, rate: float, seed: int = 0) -> list[float]:
    """`n` times in seconds, `rate` per second on average, with nobody's coming depending on anybody else's."""
    if not 0 < rate < float("inf"):
        raise ValueError(f"a rate of {rate} requests per second: it must be above 0")
    gaps = np.random.Generator(np.random.PCG64(seed)).exponential(1 / rate, n)
    return np.cumsum(gaps).tolist()


def _with_arrivals(requests: list[Request], arrivals, seed: int) -> list[tuple[float, Request]]:
    if arrivals is None:
        times = [0.0] * len(requests)
    elif isinstance(arrivals, int | float):
        times = poisson_arrivals(len(requests), arrivals, seed)
    else:
        times = [float(time) for time in arrivals]
    if len(times) != len(requests):
        raise ValueError(f"{len(times)} arrival times for {len(requests)} requests")
    if not all(map(math.isfinite, times)) or times != sorted(times):
        raise ValueError("arrival times must be numbers that do not go backwards: give requests in order of arrival")
    return list(zip(times, requests, strict=True))


def _as_request(index: int, request: SimRequest | Request) -> Request:
    if not isinstance(request, SimRequest):
        if request.output_token_ids or request.status is not RequestStatus.WAITING:
            raise ValueError(f"only new requests can be simulated, not {request}")
        return request
    # Its own number as every token: no two requests begin alike.
    return Request(str(index), [index] * request.prompt_tokens, request.output_tokens)

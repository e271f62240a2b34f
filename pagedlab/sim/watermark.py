"""How many blocks should be kept free when a new request comes in? The watermark, and its two prices.

With none, requests come in until the pool is full, and the next ones that need a block find none: somebody is thrown
out and computed again later. With a large one, there is always a block, and memory that is never used: fewer requests
run together. In between, throughput has a maximum.

The same was measured on a GPU with vLLM (vllm-project/vllm#44594: Qwen2.5-7B, 450 requests that want one and a half
times the memory there is). Its numbers are below, for their shape: preemptions fall steeply and then no more, and
throughput rises and then falls.
"""

from collections.abc import Iterable
from typing import NamedTuple

from pagedlab.cache.allocator import BlockAllocator
from pagedlab.engine.scheduler import Scheduler
from pagedlab.sim.serving import CostModel, ServingRun, simulate_serving
from pagedlab.sim.workload import SHAREGPT, Lengths


class Published(NamedTuple):
    preemptions: int
    throughput: float  # output tokens/s


PUBLISHED = {
    0.0: Published(1065, 11582),
    0.02: Published(400, 12134),
    0.05: Published(187, 12167),
    0.10: Published(168, 11835),
    0.15: Published(168, 11635),
}


def watermark_curve(
    watermarks: Iterable[float] = tuple(PUBLISHED),
    lengths: Lengths = SHAREGPT,
    num_requests: int = 150,
    num_blocks: int = 491,
    block_size: int = 16,
    cost: CostModel | None = None,
    seed: int = 0,
    **options,
) -> dict[float, ServingRun]:
    """The same requests, all there at once, at each watermark.

    The pool is half of the paper's 15,728 slots, so that the queue is long and memory short. `options` are those of
    `pagedlab.engine.scheduler.Scheduler`; the token budget is 2,048 if not given.
    """
    options = {"max_num_batched_tokens": 2048} | options
    curve = {}
    for watermark in watermarks:
        scheduler = Scheduler(BlockAllocator(num_blocks), block_size, watermark=watermark, **options)
        name = f"watermark {100 * watermark:g} %"
        curve[watermark] = simulate_serving(lengths.requests(num_requests, seed), scheduler, cost, name=name)
    return curve

"""What a step costs without a model: allocator, block tables, prefix cache and scheduler alone.

`python benchmarks/scheduler.py` keeps a number of requests running, each of which gets one token a step, and replaces
those that finish. A step costs time in proportion to the requests that run, so the last column is about the same for
all of them (somewhat more for thousands, whose tables no longer fit into the processor's caches), and none for the
size of the pool: a hundred times the blocks, the same time.
"""

import argparse
import gc
import statistics
import time
from itertools import count

from pagedlab.cache.allocator import BlockAllocator
from pagedlab.cache.prefix import PrefixCache
from pagedlab.engine.request import Request, RequestStatus
from pagedlab.engine.scheduler import Scheduler

BLOCK_SIZE = 16
PROMPT, OUTPUT = 16, 16  # tokens: what 4,096 requests hold at once fits into the smaller pool


class Load:
    """Endlessly many requests, `num_running` of them at a time; a step appends a token without computing one."""

    def __init__(self, num_running: int, num_blocks: int, prefix_cache: bool):
        allocator = BlockAllocator(num_blocks)
        self.scheduler = Scheduler(
            PrefixCache(allocator) if prefix_cache else allocator,
            BLOCK_SIZE,
            max_num_seqs=num_running,
            max_num_batched_tokens=num_running * PROMPT,
        )
        self.numbers = count()
        for index in range(num_running):  # staggered, so that some finish in every step
            self.add(1 + index % OUTPUT)
        for _ in range(2 * OUTPUT):
            self.step()

    def add(self, max_tokens: int) -> None:
        number = next(self.numbers)
        self.scheduler.add(Request(str(number), range(number, number + PROMPT), max_tokens))

    def step(self) -> int:
        """Returns how many requests ran."""
        output = self.scheduler.schedule()
        for request, num_tokens in output.scheduled:
            request.num_computed_tokens += num_tokens
        self.scheduler.after_step(output)
        for request, _ in output.scheduled:
            request.output_token_ids.append(7)
            if len(request.output_token_ids) == request.max_tokens:
                self.scheduler.finish(request, RequestStatus.FINISHED_LENGTH)
                self.add(OUTPUT)
        return len(output.scheduled)


def seconds_per_step(load: Load, seconds: float) -> tuple[float, float]:
    """Median processor time of a step, and how many requests ran in it. Garbage is collected first, as in `timeit`."""
    gc.collect()
    gc.disable()
    try:
        times, ran = [], 0
        while sum(times) < seconds:
            started = time.process_time()
            ran += load.step()
            times.append(time.process_time() - started)
    finally:
        gc.enable()
    return statistics.median(times), ran / len(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--running", type=int, nargs="+", default=[256, 1024, 4096], help="requests (256 1024 4096)")
    parser.add_argument("--blocks", type=int, nargs="+", default=[10**4, 10**6], help="blocks of a pool (10^4 10^6)")
    parser.add_argument("--seconds", type=float, default=1.0, help="time for each measurement (1.0)")
    args = parser.parse_args()

    print(f"{'prefix cache':>12}{'blocks':>12}{'running':>10}{'steps/s':>12}{'us/step':>12}{'us/step/request':>18}")
    for prefix_cache in (False, True):
        for num_blocks in args.blocks:
            for num_running in args.running:
                load = Load(num_running, num_blocks, prefix_cache)
                step, ran = seconds_per_step(load, args.seconds)
                print(
                    f"{'on' if prefix_cache else 'off':>12}{num_blocks:>12,}{ran:>10,.0f}{1 / step:>12,.0f}"
                    f"{step * 1e6:>12,.0f}{step * 1e6 / ran:>18.2f}",
                    flush=True,
                )


if __name__ == "__main__":
    main()

"""What an engine measures, under the names the field uses.

    TTFT              time to first token: from arrival to the first token
    TPOT              time per output token: from the first token to the last, for each token after the first
    queue time        from arrival to the first step that computed something of the request
    prefix hit rate   prompt tokens found in the prefix cache / prompt tokens
    block usage       blocks that requests hold / blocks
    token usage       slots with a token in those blocks / slots: less, by the empty part of last blocks

Times are seconds of the engine's clock.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pagedlab.engine.request import Request


@dataclass
class RequestMetrics:
    """One request. It is kept up to date while the request runs; None stands for what has not happened."""

    arrival_time: float
    num_prompt_tokens: int
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None
    num_token_steps: int = 0
    """Steps that gave it tokens. With n samples such a step gives up to n."""
    num_generation_tokens: int = 0
    """Tokens of all its samples."""
    num_cached_tokens: int = 0
    """Prompt tokens found in the prefix cache."""
    num_preemptions: int = 0

    def count_tokens(self, count: int, now: float) -> None:
        """`count` more tokens. Calls with the same time belong to the same step."""
        self.num_generation_tokens += count
        self.num_token_steps += self.last_token_time != now
        self.last_token_time = now
        if self.first_token_time is None:
            self.first_token_time = now

    @property
    def queue_time(self) -> float | None:
        return _between(self.arrival_time, self.first_scheduled_time)

    @property
    def ttft(self) -> float | None:
        return _between(self.arrival_time, self.first_token_time)

    @property
    def tpot(self) -> float | None:
        """None before there is a second token."""
        if self.num_token_steps < 2:
            return None
        return _between(self.first_token_time, self.last_token_time) / (self.num_token_steps - 1)

    @property
    def e2e_latency(self) -> float | None:
        return _between(self.arrival_time, self.finished_time)


@dataclass
class EngineMetrics:
    """All requests together, since the engine was made. Prints as a table."""

    num_blocks: int
    block_size: int
    num_steps: int = 0
    busy_time: float = 0.0
    """Seconds spent in steps."""
    num_requests_finished: int = 0
    num_prompt_tokens: int = 0
    """Of requests that have been scheduled."""
    num_cached_tokens: int = 0
    num_generation_tokens: int = 0
    num_preemptions: int = 0
    num_running: int = 0
    num_waiting: int = 0
    num_blocks_used: int = 0
    num_slots_used: int = 0

    @property
    def prefix_hit_rate(self) -> float:
        return _ratio(self.num_cached_tokens, self.num_prompt_tokens)

    @property
    def block_usage(self) -> float:
        return _ratio(self.num_blocks_used, self.num_blocks)

    @property
    def token_usage(self) -> float:
        return _ratio(self.num_slots_used, self.num_blocks * self.block_size)

    @property
    def throughput(self) -> float:
        """Generated tokens per second of stepping."""
        return _ratio(self.num_generation_tokens, self.busy_time)

    def __str__(self) -> str:
        finished, running, waiting = self.num_requests_finished, self.num_running, self.num_waiting
        rows = {
            "requests": f"{finished:,} finished, {running:,} running, {waiting:,} waiting",
            "steps": f"{self.num_steps:,} in {self.busy_time:.2f} s",
            "generated": f"{self.num_generation_tokens:,} tokens, {self.throughput:,.1f} a second",
            "prefix hit rate": f"{self.prefix_hit_rate:.1%} of {self.num_prompt_tokens:,} prompt tokens",
            "preemptions": f"{self.num_preemptions:,}",
            "block usage": f"{self.block_usage:.1%} of {self.num_blocks:,} blocks",
            "token usage": f"{self.token_usage:.1%} of {self.num_blocks * self.block_size:,} slots",
        }
        width = max(map(len, rows))
        return "\n".join(f"{name:<{width}}  {value}" for name, value in rows.items())

    __repr__ = __str__


def blocks_and_slots_used(requests: Iterable[Request], block_size: int) -> tuple[int, int]:
    """Blocks that requests hold, and slots with a token in them. A shared block counts once, with its fullest use."""
    tokens_in: dict[int, int] = {}
    for request in requests:
        if request.table is None:
            continue
        for index, block in enumerate(request.table.blocks):
            tokens = min(block_size, max(0, request.table.num_tokens - index * block_size))
            tokens_in[block] = max(tokens_in.get(block, 0), tokens)
    return len(tokens_in), sum(tokens_in.values())


def _between(start: float | None, end: float | None) -> float | None:
    return None if start is None or end is None else end - start


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0

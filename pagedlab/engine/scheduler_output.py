"""What a scheduler decides for one step, and what an engine or a simulator asks of a scheduler."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pagedlab.engine.request import Request


@dataclass
class SchedulerOutput:
    """One step: how many tokens each request computes, and what has to be moved in memory before.

    The order matters, because a block can be given up and taken again within a step: first `swap_out`, then `swap_in`,
    then `blocks_to_copy`, then the model.
    """

    scheduled: list[tuple[Request, int]] = field(default_factory=list)
    """Who runs, and how many tokens of it. Each number is at least 1, and each request is named once."""
    preempted: list[Request] = field(default_factory=list)
    """Who had to give all its blocks back."""
    resumed: list[Request] = field(default_factory=list)
    """Who came back after a preemption. Its block table is a new one: forget the old block ids."""
    swap_out: list[tuple[int, int]] = field(default_factory=list)
    """(block of the pool, block of the swap space)"""
    swap_in: list[tuple[int, int]] = field(default_factory=list)
    """(block of the swap space, block of the pool)"""
    blocks_to_copy: list[tuple[int, int]] = field(default_factory=list)
    """(source, destination), both blocks of the pool: copy-on-write"""
    new_blocks: list[int] = field(default_factory=list)
    """Blocks taken for tokens of this step. Once everything is moved, nothing in them is worth keeping."""

    @property
    def num_tokens(self) -> int:
        """Tokens of all requests together."""
        return sum(num_tokens for _, num_tokens in self.scheduled)

    @classmethod
    def of(cls, result) -> "SchedulerOutput":
        """What `schedule()` returned, be it a `SchedulerOutput` or a plain list of (request, num_tokens)."""
        return result if isinstance(result, cls) else cls(scheduled=[(request, n) for request, n in result])


class SchedulerLike(Protocol):
    """What an engine needs. `pagedlab.engine.scheduler.Scheduler` has more, but your own of these few does as well.

    `schedule` grows the tables of the requests it names by the tokens it gives them. The engine runs the model, adds to
    each `num_computed_tokens`, appends the tokens it sampled (to requests that are computed up to their newest token),
    and calls `finish` for those that are done. A scheduler may also have `after_step(output)`, called when the counts
    have been raised and nobody is finished yet, `undo(output, moved)`, for a step that was cut short, and `fork`.
    """

    waiting: Sequence[Request]
    running: Sequence[Request]

    def add(self, request: Request) -> None:
        """A new request. An error if it can never run."""
        ...

    def schedule(self) -> "SchedulerOutput | list[tuple[Request, int]]":
        """Decide one step. Empty only if there is nothing to do."""
        ...

    def finish(self, request: Request) -> None:
        """Remove the request, wherever it is, and take all its blocks back. Doing it again is harmless."""
        ...

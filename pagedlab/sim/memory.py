"""Where does the cache memory go? Runs a memory policy under full load and takes the average over many steps.

Steps stand for time: in each, every running request stores one more token. The queue never runs dry, so what a policy
cannot use is waste and not a lack of work.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

from pagedlab.cache.accounting import LiveRequest, Shares, waste_breakdown
from pagedlab.sim.policies import MemoryPolicy, Paged
from pagedlab.sim.workload import Lengths, SimRequest

BLOCK_SIZES = (1, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class MemoryRun:
    """Averages over the measured steps of one run."""

    policy: str
    workload: str
    num_slots: int
    shares: Shares
    mean_batch_size: float
    num_finished: int  # requests, over all steps
    num_preempted: int  # times a request was thrown out to be recomputed, over all steps


@dataclass
class _Running:
    request_id: int
    request: SimRequest
    generated: int = 0


def simulate(
    policy: Callable[[int], MemoryPolicy],
    lengths: Lengths,
    num_slots: int = 15_728,
    num_steps: int = 30_000,
    warmup_steps: int = 2_000,
    measure_every: int = 10,
    breakdown: Callable[[list[LiveRequest], int], Iterable[int]] = waste_breakdown,
    seed: int = 0,
) -> MemoryRun:
    """Run `policy` (a class of `policies.py`, or anything that makes one from `num_slots`) on requests from `lengths`.

    First come, first served: the head of the queue waits until it fits, and nobody overtakes it. When a running
    request cannot get its slot, the latest arrival is preempted: it gives all its memory back and returns to the head
    of the queue, to be recomputed from its prompt and what it had generated.

    The first `warmup_steps` fill the pool and are not measured; then every `measure_every`-th step is (neighbours are
    nearly alike). `breakdown(requests, num_slots)` sorts the slots; it can be yours.
    """
    if not 0 <= warmup_steps < num_steps:
        raise ValueError(f"{warmup_steps} warm-up steps leave nothing to measure of {num_steps} steps")
    if measure_every < 1:
        raise ValueError(f"measure_every is {measure_every}; it must be at least 1")

    memory = policy(num_slots)
    arrivals = enumerate(lengths.stream(seed))
    waiting: deque[tuple[int, SimRequest]] = deque()
    running: list[_Running] = []  # in order of arrival
    totals = [0, 0, 0, 0]
    measured = batch_total = num_finished = num_preempted = 0

    for step in range(num_steps):
        preempted = _grow_all(memory, running)
        for victim in preempted:
            generated, request = victim.generated, victim.request
            restart = SimRequest(request.prompt_tokens + generated, request.output_tokens - generated)
            waiting.appendleft((victim.request_id, restart))
        num_preempted += len(preempted)

        finished = [entry for entry in running if entry.generated == entry.request.output_tokens]
        for entry in finished:
            memory.finish(entry.request_id)
        if finished:
            running = [entry for entry in running if entry.generated < entry.request.output_tokens]
            num_finished += len(finished)

        while not preempted:  # whoever was just thrown out would only come straight back
            if not waiting:
                waiting.append(next(arrivals))
            if not memory.admit(*waiting[0]):
                break
            running.append(_Running(*waiting.popleft()))

        if step >= warmup_steps and (step - warmup_steps) % measure_every == 0:
            for group, count in enumerate(_checked(breakdown(memory.live_requests(), num_slots), num_slots)):
                totals[group] += count
            batch_total += len(running)
            measured += 1

    return MemoryRun(
        policy=memory.name,
        workload=lengths.name,
        num_slots=num_slots,
        shares=Shares(*(total / (measured * num_slots) for total in totals)),
        mean_batch_size=batch_total / measured,
        num_finished=num_finished,
        num_preempted=num_preempted,
    )


def sweep_block_sizes(lengths: Lengths, block_sizes: Iterable[int] = BLOCK_SIZES, **options) -> dict[int, MemoryRun]:
    """Paging with each block size, on the same requests. `options` are those of `simulate`."""
    return {size: simulate(partial(Paged, block_size=size), lengths, **options) for size in block_sizes}


def _grow_all(memory: MemoryPolicy, running: list[_Running]) -> list[_Running]:
    """One more token for each, oldest first. Returns who had to leave, latest arrival first; they left `running`."""
    preempted = []
    position = 0
    while position < len(running):
        entry = running[position]
        if memory.grow(entry.request_id):
            entry.generated += 1
            position += 1
        else:  # try again with the latest arrival's memory, which may be this one's own
            victim = running.pop()
            memory.finish(victim.request_id)
            preempted.append(victim)
    return preempted


def _checked(counts: Iterable[int], num_slots: int) -> tuple[int, ...]:
    wanted = "not 4 numbers: token_states, reserved, internal, external"
    if not isinstance(counts, Iterable):
        raise ValueError(f"breakdown gave {counts!r}, {wanted}")
    counts = tuple(counts)
    if len(counts) != 4:
        raise ValueError(f"breakdown gave {counts}, {wanted}")
    if sum(counts) != num_slots:
        raise ValueError(f"breakdown gave {counts}: that is {sum(counts)} slots, but the pool has {num_slots}")
    return counts

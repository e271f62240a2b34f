"""Random episodes: a small server, and a life as unlucky as chance can make it.

An episode is told by its number alone, so one that fails can be played again.
"""

import random
from collections import Counter

from pagedlab.engine.limits import NeverFitsError
from pagedlab.engine.scheduler import DuplicateRequestError
from tests.engine.hash_model import Server

MOST_STEPS = 4000  # of one episode: far more than any needs that makes progress


def play(number: int) -> Counter:
    """Play one episode to its end, checking everything all the time. Returns what happened how often."""
    rng = random.Random(number)
    server, shared = _server(rng), _prompts(rng)
    happened = Counter(episodes=1)
    num_to_add = rng.randint(1, 10)
    calm = rng.random() < 0.3  # no aborts, interrupts or forks: the plain life
    for step in range(MOST_STEPS):
        if num_to_add and rng.random() < 0.5:
            num_to_add -= 1
            _add(server, rng, shared, happened)
        alive = list(server.scheduler.requests.values())
        if not alive and not num_to_add:
            break
        if alive and not calm:
            _meddle(server, rng, rng.choice(alive), happened, step)
        _deliver(server, rng)
        if not calm and rng.random() < 0.05:
            happened["interrupted"] += 1
            server.step(interrupt_after=rng.randint(0, 4), moved=rng.random() < 0.7)
        else:
            server.step()
        output = server.outputs[-1]
        happened["steps"] += 1
        happened["tokens"] += output.num_tokens
        happened["preempted"] += len(output.preempted)
        happened["swapped out"] += bool(output.swap_out)
        happened["swapped in"] += bool(output.swap_in)
        happened["copies"] += len(output.blocks_to_copy)
    else:
        raise AssertionError(f"episode {number} has not ended after {MOST_STEPS} steps: {server.scheduler.requests}")
    happened["cached tokens"] += sum(request.num_cached_tokens for request in server.requests.values())
    server.check_end()
    return happened


def _server(rng: random.Random) -> Server:
    block_size = rng.choice([1, 2, 3, 16])
    chunked = rng.random() < 0.7
    return Server(
        num_blocks=rng.randint(1, 6) if block_size > 3 else rng.randint(8, 24),
        block_size=block_size,
        prefix_cache=rng.random() < 0.5,
        num_cpu_blocks=rng.choice([None, None, 0, 3, 12, 24]),
        stop_below=30,
        max_num_seqs=rng.choice([1, 2, 4, 16]),
        max_num_batched_tokens=rng.choice([1, 2, 5, 16, 64]) if chunked else rng.choice([16, 32, 64]),
        chunked_prefill=chunked,
        policy=rng.choice(["fcfs", "priority"]),
        watermark=rng.choice([0, 0.1, 0.5]),
    )


def _prompts(rng: random.Random) -> list[list[int]]:
    """A few beginnings that requests share, in whole or in part."""
    return [[rng.randrange(5) for _ in range(24)] for _ in range(2)]


def _add(server: Server, rng: random.Random, shared: list[list[int]], happened: Counter) -> None:
    prompt = rng.choice(shared)[: rng.randint(0, 14)] + [rng.randrange(5) for _ in range(rng.randint(1, 4))]
    extra_keys = rng.choice([None, None, [(("cache_salt", "a"),)], [(), (("image", b"cat"),)]])
    try:
        request = server.add(
            f"r{len(server.requests)}",
            prompt,
            rng.randint(1, 12),
            seed=rng.randrange(3) * 100,
            priority=rng.randint(0, 2),
            extra_keys=extra_keys,
            n=min(rng.choice([1, 1, 1, 2, 3]), server.scheduler.max_num_seqs),
        )
    except NeverFitsError:
        happened["rejected"] += 1
        return
    happened["added"] += 1
    if rng.random() < 0.2:
        server.held.add(request.request_id)


def _meddle(server: Server, rng: random.Random, request, happened: Counter, step: int) -> None:
    """Abort it, fork it, add its twin, or, mostly, leave it alone."""
    chance = rng.random()
    if chance < 0.03:
        happened["aborted"] += 1
        server.abort(request.request_id)
    elif chance < 0.06 and request.request_id not in server.pending:
        happened["forked"] += 1
        child = server.fork(request, f"f{step}", seed=1000 + step)
        if rng.random() < 0.5:
            server.abort(child.request_id)
    elif chance < 0.2 and request.request_id in server.pending:  # a beam branches, or another takes its place
        if len(request.output_token_ids) + 1 < request.max_tokens:
            happened["branched"] += 1
            server.branch(request, f"b{step}", token=500 + step, seed=2000 + step)
        if rng.random() < 0.3:
            server.abort(request.request_id)
    elif chance < 0.07:
        try:
            server.scheduler.add(type(request)(request.request_id, [1], 1))
            raise AssertionError("a second request of the same id was accepted")
        except DuplicateRequestError:
            happened["twins refused"] += 1


def _deliver(server: Server, rng: random.Random) -> None:
    """Choose some of the held tokens; all of them, if nobody else has anything to compute."""
    scheduler = server.scheduler
    stuck = all(request.is_idle for request in scheduler.requests.values())
    for request_id in list(server.pending):
        if stuck or rng.random() < 0.3:
            server.deliver(server.requests[request_id])

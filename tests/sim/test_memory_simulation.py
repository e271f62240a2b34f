"""The simulation: exact on small cases, fair to every request, and near the paper's numbers where it should be."""

from itertools import repeat
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.cache.accounting import waste_breakdown
from pagedlab.sim.memory import BLOCK_SIZES, simulate, sweep_block_sizes
from pagedlab.sim.policies import POLICIES, NeverFitsError, OrcaMax, OrcaOracle, Paged
from pagedlab.sim.workload import ALPACA, SHAREGPT, SimRequest


def always(*requests):
    """A workload that repeats the same requests for ever."""
    return SimpleNamespace(name="always", stream=lambda seed: (request for _ in repeat(None) for request in requests))


# Worked out by hand


def test_two_equal_requests_at_a_time():
    # 10 + 10 tokens take a chunk of 32, so 64 slots hold two. Both store 10, 11, ... 19 tokens: 14.5 on average.
    run = simulate(OrcaOracle, always(SimRequest(10, 10)), 64, num_steps=110, warmup_steps=10, measure_every=1)
    assert run.mean_batch_size == 2
    assert run.shares.token_states == pytest.approx(2 * 14.5 / 64)
    assert run.shares.reserved == pytest.approx(2 * 5.5 / 64)
    assert run.shares.internal == 0
    assert run.shares.external == pytest.approx(24 / 64)
    assert (run.num_finished, run.num_preempted) == (20, 0)  # in steps 10, 20, ... 100


def test_preemption_by_hand():
    # Four slots, blocks of one. Step 0: A and B (1 + 2 tokens each) are admitted, and C, and D: the pool is full.
    # Step 1: A wants a slot, D (the latest) gives way; B wants one, C gives way. Two tokens each: full again.
    # Step 2: A wants its third, B gives way; A is finished. And so on: nobody is admitted in a step with a preemption.
    run = simulate(
        lambda num_slots: Paged(num_slots, block_size=1, watermark=0),
        always(SimRequest(1, 2)),
        num_slots=4,
        num_steps=3,
        warmup_steps=0,
        measure_every=1,
    )
    assert run.num_preempted == 3
    assert run.num_finished == 1
    assert run.mean_batch_size == pytest.approx((4 + 2 + 0) / 3)
    assert run.shares.token_states == pytest.approx((4 + 4 + 0) / 12)


def test_the_head_of_the_queue_is_not_overtaken():
    first, huge, small = SimRequest(10, 10), SimRequest(30, 30), SimRequest(2, 2)
    ten_steps = {"num_slots": 64, "num_steps": 10, "warmup_steps": 0, "measure_every": 1}
    assert simulate(OrcaOracle, always(first, small), **ten_steps).mean_batch_size > 1.5
    # `huge` does not fit beside `first`. `small` still would, but has to wait behind it.
    assert simulate(OrcaOracle, always(first, huge, small), **ten_steps).mean_batch_size == 1


# Fair to every request, for any pool


class Watched:
    """A policy that checks what the simulation does to it."""

    def __init__(self, inner):
        self.inner, self.name, self.num_slots = inner, inner.name, inner.num_slots
        self.running = []  # ids in order of admission
        self.target = {}  # id -> tokens when finished
        self.stored = {}  # id -> tokens now
        self.left_early = []
        self.finished = []
        self.grown = set()

    def admit(self, request_id, request):
        assert self.target.setdefault(request_id, request.final_tokens) == request.final_tokens
        if request_id in self.left_early:
            assert request.prompt_tokens == self.stored[request_id], "recomputed from a different length"
        waiting = [i for i in self.left_early if i not in self.running]
        assert request_id == min(waiting, default=request_id), "somebody overtook a preempted request"
        assert all(i < request_id for i in self.running), "not first come, first served"
        admitted = self.inner.admit(request_id, request)
        if admitted:
            self.running.append(request_id)
            self.stored[request_id] = request.prompt_tokens
            self.left_early = [i for i in self.left_early if i != request_id]
        return admitted

    def grow(self, request_id):
        grew = self.inner.grow(request_id)
        self.stored[request_id] += grew
        self.refused = not grew
        return grew

    def finish(self, request_id):
        if self.stored[request_id] == self.target[request_id]:
            self.finished.append(request_id)
        else:
            assert request_id == max(self.running), "the victim was not the latest arrival"
            assert self.refused, "thrown out with no need"
            self.left_early.append(request_id)
        self.running.remove(request_id)
        self.inner.finish(request_id)

    def live_requests(self):
        return self.inner.live_requests()


@settings(max_examples=40, deadline=None)
@given(
    requests=st.lists(st.builds(SimRequest, st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=6),
    num_slots=st.integers(24, 90),
    block_size=st.sampled_from([1, 3, 4, 8]),
    watermark=st.sampled_from([0, 0.01, 0.2]),
    reserving=st.booleans(),
)
def test_first_come_first_served_and_nobody_is_lost(requests, num_slots, block_size, watermark, reserving):
    watched = []

    def policy(num_slots):
        inner = OrcaOracle(num_slots) if reserving else Paged(num_slots, block_size, watermark)
        watched.append(Watched(inner))
        return watched[-1]

    # A reserving pool needs one piece of 32 for the longest request.
    num_slots = max(num_slots, 32)
    run = simulate(policy, always(*requests), num_slots, num_steps=300, warmup_steps=0, measure_every=7)
    (seen,) = watched
    assert len(seen.finished) == run.num_finished > 0
    places = [*seen.finished, *seen.running, *seen.left_early]
    assert len(set(places)) == len(places), "a request is in two places"
    missing = set(seen.target) - set(places)
    assert missing <= {max(seen.target)}, "only the newest may still wait for its first admission"


# Beside the paper


@pytest.fixture(scope="module")
def sharegpt():
    return {policy: simulate(policy, SHAREGPT) for policy in POLICIES}


@pytest.fixture(scope="module")
def alpaca():
    return {policy: simulate(policy, ALPACA, num_steps=8_000, warmup_steps=1_000) for policy in POLICIES}


def test_token_shares_are_in_the_papers_order_and_bands(sharegpt):
    shares = [run.shares.token_states for run in sharegpt.values()]
    assert shares == sorted(shares)
    orca_max, pow2, oracle, paged = shares
    assert 0.15 < orca_max < 0.27
    assert 0.22 < pow2 < 0.36
    assert 0.33 < oracle < 0.43
    assert paged > 0.95


@pytest.mark.parametrize("seed", [1, 2])
def test_the_bands_hold_for_other_seeds(seed):
    shares = [simulate(policy, SHAREGPT, seed=seed).shares.token_states for policy in POLICIES]
    orca_max, pow2, oracle, paged = shares
    assert 0.15 < orca_max < 0.27 < pow2 < 0.33 < oracle < 0.43 < 0.95 < paged


def test_the_kinds_of_waste(sharegpt):
    orca_max, pow2, oracle, paged = (run.shares for run in sharegpt.values())
    assert orca_max.internal > 0.5
    assert orca_max.external == pytest.approx(1 - 7 * 2048 / 15_728)
    assert pow2.external > 0.3 and oracle.external > 0.3
    assert oracle.internal == 0
    assert paged.reserved == 0
    assert paged.internal < 0.04
    for shares in (orca_max, pow2, oracle, paged):
        assert sum(shares) == pytest.approx(1)


def test_batches(sharegpt, alpaca):
    for runs in (sharegpt, alpaca):
        batches = [run.mean_batch_size for run in runs.values()]
        assert batches[0] == 7.00
        assert all(earlier * 1.2 < later for earlier, later in zip(batches, batches[1:], strict=False))
    assert 9 < sharegpt[POLICIES[1]].mean_batch_size < 12  # the paper: 9.81
    assert 12 < sharegpt[OrcaOracle].mean_batch_size < 16  # 13.62
    assert 36 < alpaca[POLICIES[1]].mean_batch_size < 50  # 43.24
    assert 64 < alpaca[OrcaOracle].mean_batch_size < 82  # 72.75


def test_larger_blocks_waste_more():
    runs = sweep_block_sizes(SHAREGPT, num_steps=5_000, warmup_steps=1_000)
    assert tuple(runs) == BLOCK_SIZES == (1, 8, 16, 32, 64, 128, 256)
    shares = [run.shares.token_states for run in runs.values()]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.98
    assert runs[1].shares.internal == 0
    assert 0.70 < shares[-1] < 0.82
    assert runs[256].policy == "Paged, block size 256"


# Its arguments


def test_the_same_seed_gives_the_same_run():
    short = {"num_steps": 1000, "warmup_steps": 100}
    assert simulate(Paged, SHAREGPT, seed=4, **short) == simulate(Paged, SHAREGPT, seed=4, **short)
    assert simulate(Paged, SHAREGPT, seed=4, **short) != simulate(Paged, SHAREGPT, seed=5, **short)


def test_the_breakdown_can_be_yours():
    calls = []

    def mine(requests, num_slots):
        calls.append((len(requests), num_slots))
        return list(waste_breakdown(requests, num_slots))

    ours = simulate(OrcaMax, SHAREGPT, num_steps=500, warmup_steps=100)
    assert simulate(OrcaMax, SHAREGPT, num_steps=500, warmup_steps=100, breakdown=mine) == ours
    assert calls == [(7, 15_728)] * 40


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda requests, num_slots: (1, 2, 3), r"gave \(1, 2, 3\), not 4 numbers"),
        (lambda requests, num_slots: (1, 2, 3, 4), r"\(1, 2, 3, 4\): that is 10 slots, but the pool has 15728"),
        (lambda requests, num_slots: None, "gave None, not 4"),
    ],
)
def test_a_breakdown_that_does_not_add_up(wrong, message):
    with pytest.raises(ValueError, match=message):
        simulate(OrcaMax, SHAREGPT, num_steps=20, warmup_steps=0, breakdown=wrong)


def test_a_pool_too_small_says_so():
    with pytest.raises(NeverFitsError, match="largest piece a pool of 1000 slots can give is 512"):
        simulate(OrcaMax, SHAREGPT, num_slots=1000)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_steps": 10, "warmup_steps": 10}, "10 warm-up steps leave nothing to measure of 10"),
        ({"num_steps": 10, "warmup_steps": -1}, "-1 warm-up"),
        ({"measure_every": 0}, "measure_every is 0"),
    ],
)
def test_steps_that_make_no_sense(options, message):
    with pytest.raises(ValueError, match=message):
        simulate(OrcaMax, SHAREGPT, **options)

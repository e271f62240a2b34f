"""Serving simulated: exact on small cases, fair between schedulers, and of the paper's shape on its workload."""

import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.cache.allocator import BlockAllocator
from pagedlab.cache.prefix import PrefixCache
from pagedlab.cache.swap import SwapBooks
from pagedlab.cache.table import BlockTable
from pagedlab.engine.limits import NeverFitsError
from pagedlab.engine.request import Request, RequestStatus
from pagedlab.engine.scheduler import Scheduler
from pagedlab.engine.trace import ScheduleTrace
from pagedlab.sim.baselines import ReservedBatching, StaticBatching
from pagedlab.sim.serving import CostModel, SchedulerError, opt_13b_on_a100, poisson_arrivals, simulate_serving, table
from pagedlab.sim.workload import ALPACA, SHAREGPT, SimRequest

COST = CostModel(base=1.0, per_token=0.1)
PAPER_BLOCKS = 15_728 // 16


def paged(num_blocks, block_size=4, **options):
    return Scheduler(BlockAllocator(num_blocks), block_size, **options)


class InTurn:
    """A scheduler of a few lines: one request after the other, whole prompts."""

    def __init__(self, num_blocks, block_size=4):
        self.allocator, self.block_size = BlockAllocator(num_blocks), block_size
        self.waiting, self.running = [], []

    def add(self, request):
        self.waiting.append(request)

    def schedule(self):
        if not self.running and self.waiting:
            self.running.append(self.waiting.pop(0))
            self.running[0].table = BlockTable(self.block_size)
        for request in self.running:
            request.table.append_tokens(request.num_new_tokens, self.allocator)
        return [(request, request.num_new_tokens) for request in self.running]

    def finish(self, request):
        self.running.remove(request)
        request.table.free(self.allocator)


# Worked out by hand


def test_one_request():
    # Step 1 computes the prompt, 1 + 4 x 0.1 s, and gives the first token; two more steps of 1.1 s give the others.
    run = simulate_serving([SimRequest(4, 3)], paged(8), COST, arrivals=[10.0])
    (request,) = run.requests
    assert (request.arrival_time, request.queue_time) == (10.0, 0.0)
    assert request.ttft == pytest.approx(1.4) and request.tpot == pytest.approx(1.1)
    assert (request.e2e_latency, run.total_time, run.busy_time) == pytest.approx((3.6, 3.6, 3.6))
    assert run.normalized_latency == pytest.approx(3.6 / 3)
    assert run.throughput == pytest.approx(3 / 3.6)
    assert (run.num_steps, run.num_computed_tokens, run.num_output_tokens, run.mean_batch_size) == (3, 6, 3, 1.0)
    # 4 tokens lie in 1 block for 1.4 s, then 5 and 6 in 2 blocks for 1.1 s each.
    assert run.block_usage == pytest.approx((1 * 1.4 + 2 * 2.2) / 3.6 / 8)
    assert run.token_usage == pytest.approx((4 * 1.4 + 5 * 1.1 + 6 * 1.1) / 3.6 / 32)


def test_waiting_for_each_other_and_for_nobody():
    # The second comes while the first runs, the third when both are gone: the clock jumps there.
    run = simulate_serving([SimRequest(1, 1)] * 3, InTurn(8), COST, arrivals=[0.0, 0.5, 50.0])
    assert [request.queue_time for request in run.requests] == pytest.approx([0.0, 0.6, 0.0])
    assert [request.finished_time for request in run.requests] == pytest.approx([1.1, 2.2, 51.1])
    assert (run.busy_time, run.total_time) == pytest.approx((3.3, 51.1))
    assert all(request.tpot is None for request in run.requests)
    with pytest.raises(ValueError, match="no request of this run has a tpot"):
        run.mean("tpot")


def test_the_cost_of_a_step():
    cost = CostModel(base=1.0, per_token=0.1, per_context_token=0.01, per_swapped_block=7.0)
    run = simulate_serving([SimRequest(4, 2)], paged(8, max_num_batched_tokens=3), cost)
    # Chunks of 3 and 1: 3 tokens are read, then 4; then 1 token, reading 5.
    assert run.busy_time == pytest.approx((1 + 0.3 + 0.03) + (1 + 0.1 + 0.04) + (1 + 0.1 + 0.05))


def test_swapping_costs_time_and_computing_again_costs_tokens():
    requests, cost = [SimRequest(4, 8)] * 2, CostModel(1.0, 0.1, per_swapped_block=100.0)
    again = simulate_serving(requests, paged(4, watermark=0), cost)
    swapped = simulate_serving(
        requests, paged(4, watermark=0, preemption="swap", swap_space=(books := SwapBooks(4))), cost
    )
    assert again.num_preemptions == swapped.num_preemptions == 1
    assert swapped.num_computed_tokens == 2 * 11 < again.num_computed_tokens
    assert books.num_swapped_out == books.num_swapped_in >= 2 and books.num_free == 4
    moves = books.num_swapped_out + books.num_swapped_in
    assert swapped.busy_time == pytest.approx(swapped.num_steps * 1.0 + 22 * 0.1 + moves * 100.0)


def test_static_batching_waits_for_the_longest():
    # Two at a time: the first batch lasts 6 steps, as long as its longest; only then the third request starts.
    requests = [SimRequest(1, 1), SimRequest(1, 6), SimRequest(1, 1)]
    trace = ScheduleTrace()
    scheduler = StaticBatching(4, block_size=4, max_model_len=8, batch_size=4)
    run = simulate_serving(requests, scheduler, CostModel(1.0, 0.0), trace=trace)
    assert [request.finished_time for request in run.requests] == [1.0, 6.0, 7.0]
    assert run.block_usage == pytest.approx((6 * 4 + 1 * 2) / 7 / 4), "the finished one keeps its piece"
    assert [step.num_running for step in trace.steps] == [2, 1, 1, 1, 1, 1, 1]
    assert [len(step.moments["0"].blocks) for step in trace.steps[:6]] == [2, 2, 2, 2, 2, 0]
    assert "0" not in trace.steps[6].moments
    assert scheduler.allocator.num_free == 4


def test_who_comes_late_waits_for_the_whole_batch_also_beside_free_memory():
    requests = [SimRequest(1, 6), SimRequest(1, 1)]
    for maker, finished in ((StaticBatching, 7.0), (ReservedBatching, 2.0)):
        run = simulate_serving(requests, maker(8, 4, max_model_len=8), CostModel(1.0, 0.0), arrivals=[0.0, 0.5])
        assert [request.finished_time for request in run.requests] == [6.0, finished]


def test_reserved_batching_lets_the_next_one_in():
    requests = [SimRequest(1, 1), SimRequest(1, 6), SimRequest(1, 1)]
    run = simulate_serving(requests, ReservedBatching(4, block_size=4, max_model_len=8), CostModel(1.0, 0.0))
    assert [request.finished_time for request in run.requests] == [1.0, 6.0, 2.0]
    assert run.scheduler == "Orca (Max)"


def test_what_reserving_knows():
    # 1 + 6 tokens: 16 slots, 1 + 8, or 7. In blocks of one, a power of two each: 16, 16 and 8 of 16 blocks.
    for reserve, at_once in (("max", 1), ("pow2", 1), ("oracle", 2)):
        scheduler = ReservedBatching(16, block_size=1, reserve=reserve, max_model_len=16)
        run = simulate_serving([SimRequest(1, 6)] * 2, scheduler, COST)
        assert run.mean_batch_size == at_once


# Whatever comes


MAKERS = {
    "static": lambda blocks, size: StaticBatching(blocks, size, max_model_len=40),
    "max": lambda blocks, size: ReservedBatching(blocks, size, max_model_len=40),
    "pow2": lambda blocks, size: ReservedBatching(blocks, size, reserve="pow2", max_model_len=40),
    "oracle": lambda blocks, size: ReservedBatching(blocks, size, reserve="oracle", max_model_len=40),
    "paged": lambda blocks, size: paged(blocks, size),
    "whole prompts": lambda blocks, size: paged(blocks, size, chunked_prefill=False, max_num_batched_tokens=64),
    "small steps": lambda blocks, size: paged(blocks, size, max_num_batched_tokens=3, max_num_seqs=3),
    "swap": lambda blocks, size: paged(blocks, size, preemption="swap", swap_space=SwapBooks(blocks)),
    "prefixes": lambda blocks, size: Scheduler(PrefixCache(BlockAllocator(blocks)), size),
    "in turn": InTurn,
}


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(sorted(MAKERS)),
    st.sampled_from([1, 2, 3, 16]),
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20), st.floats(0, 5)), min_size=1, max_size=12),
    st.integers(0, 20),
)
def test_everybody_is_served_and_the_pool_is_whole_again(name, block_size, drawn, more_blocks):
    lengths = [SimRequest(prompt, output) for prompt, output, _ in drawn]
    arrivals = [sum(gap for _, _, gap in drawn[: i + 1]) for i in range(len(drawn))]
    num_blocks = -(-64 // block_size) + more_blocks
    scheduler, trace = MAKERS[name](num_blocks, block_size), ScheduleTrace()
    run = simulate_serving(lengths, scheduler, COST, arrivals, trace=trace)
    assert scheduler.allocator.num_free == num_blocks
    assert not scheduler.running and not scheduler.waiting
    for metrics, request, arrival in zip(run.requests, lengths, arrivals, strict=True):
        assert metrics.num_generation_tokens == metrics.num_token_steps == request.output_tokens
        assert metrics.arrival_time == arrival <= metrics.first_scheduled_time < metrics.first_token_time
        assert metrics.first_token_time <= metrics.last_token_time == metrics.finished_time
    least = sum(request.final_tokens - 1 for request in lengths)
    assert run.num_computed_tokens >= least - sum(metrics.num_cached_tokens for metrics in run.requests)
    assert (run.num_computed_tokens == least) or run.num_preemptions or name == "prefixes"
    assert 0 < run.token_usage <= run.block_usage <= 1
    assert len(trace) == run.num_steps
    assert trace.steps[-1].time == pytest.approx(run.requests[0].arrival_time + run.total_time)
    assert sum(step.num_scheduled for step in trace.steps) == run.num_computed_tokens


def test_a_run_comes_out_the_same_every_time():
    runs = [simulate_serving(ALPACA.requests(40, 3), paged(60, 16), arrivals=20.0, seed=5) for _ in range(2)]
    assert runs[0] == runs[1] == pickle.loads(pickle.dumps(runs[0]))
    assert runs[0] != simulate_serving(ALPACA.requests(40, 3), paged(60, 16), arrivals=20.0, seed=6)


def test_poisson():
    times = poisson_arrivals(4000, rate=8.0, seed=1)
    assert times == poisson_arrivals(4000, rate=8.0, seed=1) and times == sorted(times)
    assert times[-1] == pytest.approx(4000 / 8, rel=0.1)
    gaps = [later - earlier for earlier, later in zip(times, times[1:], strict=False)]
    assert sum(gap > 1 / 8 for gap in gaps) / len(gaps) == pytest.approx(0.368, abs=0.03)  # exp(-1): no memory
    for wrong in (0, -1, float("inf"), float("nan")):
        with pytest.raises(ValueError, match="requests per second"):
            poisson_arrivals(1, wrong)


def test_requests_of_the_engine_with_tokens_that_matter():
    shared = list(range(64))
    requests = [Request(str(i), shared + [1000 + i] * 8, max_tokens=4) for i in range(8)]
    cold = simulate_serving(requests, paged(200, 16), COST, arrivals=[20.0 * i for i in range(8)])
    requests = [Request(str(i), shared + [1000 + i] * 8, max_tokens=4) for i in range(8)]
    scheduler = Scheduler(PrefixCache(BlockAllocator(200)), 16)
    warm = simulate_serving(requests, scheduler, COST, arrivals=[20.0 * i for i in range(8)])
    assert [metrics.num_cached_tokens for metrics in warm.requests] == [0] + [64] * 7
    assert cold.num_computed_tokens - warm.num_computed_tokens == 7 * 64
    assert warm.mean("ttft") < cold.mean("ttft")


def test_lengths_alone_never_hit_the_cache():
    apart = [100.0 * i for i in range(5)]
    run = simulate_serving([SimRequest(33, 2)] * 5, Scheduler(PrefixCache(BlockAllocator(99)), 4), COST, apart)
    assert run.num_computed_tokens == 5 * 34


# The paper's shape


@pytest.fixture(scope="module")
def at_full_load():
    """All requests at once on the paper's pool, until all are finished."""
    makers = [
        lambda: StaticBatching(PAPER_BLOCKS),
        lambda: ReservedBatching(PAPER_BLOCKS),
        lambda: ReservedBatching(PAPER_BLOCKS, reserve="pow2"),
        lambda: ReservedBatching(PAPER_BLOCKS, reserve="oracle"),
        lambda: paged(PAPER_BLOCKS, 16),
    ]
    return [simulate_serving(SHAREGPT.requests(80), make()) for make in makers]


def test_who_wins(at_full_load):
    static, orca_max, pow2, oracle, paging = at_full_load
    throughput = [run.throughput for run in at_full_load]
    assert throughput == sorted(throughput)
    assert [run.normalized_latency for run in at_full_load] == sorted(
        (run.normalized_latency for run in at_full_load), reverse=True
    )
    # Abstract: 2-4 times the throughput of the systems before; section 6.2: 1.7-2.7 times the rate of Orca (Oracle).
    assert 1.7 < paging.throughput / orca_max.throughput < 4
    assert 1.2 < paging.throughput / oracle.throughput < 2.7
    assert static.throughput < 0.7 * orca_max.throughput
    assert orca_max.mean_batch_size == pytest.approx(7, abs=1)
    assert max(run.token_usage for run in at_full_load) == paging.token_usage


def test_where_memory_is_plentiful_paging_wins_nothing():
    """Section 6.2: with short sequences and much memory, the machine is busy whatever the memory policy."""
    requests = ALPACA.requests(60)
    oracle = simulate_serving(requests, ReservedBatching(1024, reserve="oracle"))
    paging = simulate_serving(requests, paged(1024, 16))
    assert paging.throughput == pytest.approx(oracle.throughput, rel=0.02)


def test_the_machine_of_the_paper():
    cost = opt_13b_on_a100()
    assert cost.base == pytest.approx(0.0165, rel=0.05)  # 26 GB at 1,555 GB/s
    assert cost.per_context_token == 819_200 / 1555e9
    assert cost.per_swapped_block == 16 * 819_200 / 32e9
    assert cost.base / cost.per_token == pytest.approx(100, rel=0.05)  # as many tokens a step come at twice the price


def test_runs_as_text(at_full_load):
    lines = table(at_full_load).splitlines()
    assert [line.split("  ")[0] for line in lines[1:]] == [
        "Static batching",
        "Orca (Max)",
        "Orca (Pow2)",
        "Orca (Oracle)",
        "Scheduler",
    ]
    assert len(set(map(len, lines))) == 1
    assert str(at_full_load[0]).splitlines()[1].split()[2] == f"{at_full_load[0].throughput:,.1f}"
    single = simulate_serving([SimRequest(1, 1)], InTurn(8), COST, name="mine")
    assert str(single).splitlines()[1].startswith("mine") and " - " in str(single)


# What cannot be


@pytest.mark.parametrize(
    ("schedule", "words"),
    [
        (lambda self: [], "gave nobody any tokens at 0.000 s, with 0 requests running and 1 waiting"),
        (lambda self: [(self.waiting[0], 99)], "gave request '0' 99 tokens; it has 4 to compute"),
        (lambda self: [(self.waiting[0], 0)], "gave request '0' 0 tokens"),
        (lambda self: [(self.waiting[0], 1)] * 2, "named request '0' twice"),
        (lambda self: [(Request("x", [1], 1), 1)], "named request 'x' twice, or after it had finished"),
    ],
)
def test_a_scheduler_that_gets_nowhere_is_named(schedule, words):
    scheduler = type("Broken", (InTurn,), {"schedule": schedule})(8)
    with pytest.raises(SchedulerError, match=words):
        simulate_serving([SimRequest(4, 3)], scheduler, COST)


@pytest.mark.parametrize(
    ("scheduler", "error"),
    [
        (paged(2), NeverFitsError),
        (ReservedBatching(8, 4, max_model_len=8), NeverFitsError),
        (ReservedBatching(7, 4, max_model_len=28), NeverFitsError),
        (StaticBatching(7, 4, max_model_len=28), NeverFitsError),
    ],
)
def test_a_request_that_never_fits(scheduler, error):
    with pytest.raises(error):
        simulate_serving([SimRequest(6, 6)], scheduler, COST)
    assert not scheduler.waiting


def test_wrong_questions():
    one = [SimRequest(1, 1)]
    for arrivals, words in (
        ([1.0, 2.0], "2 arrival times for 1 requests"),
        ([], "0 arrival times"),
        (0, "a rate of 0"),
    ):
        with pytest.raises(ValueError, match=words):
            simulate_serving(one, InTurn(8), COST, arrivals)
    for wrong in ([2.0, 1.0], [1.0, float("nan")], [0.0, float("inf")]):
        with pytest.raises(ValueError, match="do not go backwards"):
            simulate_serving(one * 2, InTurn(8), COST, wrong)
    with pytest.raises(ValueError, match="no request to serve"):
        simulate_serving([], InTurn(8), COST)
    with pytest.raises(ValueError, match="same request_id"):
        simulate_serving([Request("a", [1], 1), Request("a", [1], 1)], InTurn(8), COST)
    used = Request("a", [1], 1)
    used.status = RequestStatus.RUNNING
    with pytest.raises(ValueError, match="only new requests"):
        simulate_serving([used], InTurn(8), COST)
    for wrong in ((-1, 1), (0, 0), (float("nan"), 1)):
        with pytest.raises(ValueError):
            CostModel(*wrong)
    with pytest.raises(ValueError, match="reserve is 'min'"):
        ReservedBatching(8, reserve="min")

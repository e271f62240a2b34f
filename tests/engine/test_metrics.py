"""What the engine measures, with a clock that ticks once a look."""

import itertools

import pytest

from pagedlab.engine.metrics import RequestMetrics, blocks_and_slots_used
from pagedlab.engine.params import SamplingParams
from pagedlab.model.tiny import tiny_llama
from tests.engine.poison import poisoned_engine


@pytest.fixture
def engine():
    return poisoned_engine(tiny_llama(), num_blocks=20, block_size=4, max_num_seqs=2)


class Clock:
    """Stands still unless told."""

    now = 100.0

    def __call__(self):
        return self.now


def test_times_of_a_request(engine):
    engine.clock = clock = Clock()
    for request_id in "abc":
        engine.add([1, 2, 3], SamplingParams(max_tokens=4), request_id=request_id)
    metrics = {}
    for _ in itertools.takewhile(lambda _: engine.has_unfinished, itertools.count()):
        clock.now += 1.5
        for output in engine.step():
            metrics[output.request_id] = output.metrics
    assert (metrics["a"].queue_time, metrics["a"].ttft, metrics["a"].tpot) == (1.5, 1.5, 1.5)
    assert metrics["a"].e2e_latency == 4 * 1.5
    assert metrics["c"].queue_time == 5 * 1.5 and metrics["c"].e2e_latency == 8 * 1.5
    assert [metrics[name].num_generation_tokens for name in "abc"] == [4, 4, 4]


def test_what_has_not_happened_is_none():
    metrics = RequestMetrics(arrival_time=0.0, num_prompt_tokens=3)
    assert metrics.queue_time is metrics.ttft is metrics.tpot is metrics.e2e_latency is None
    metrics.count_tokens(1, 5.0)
    assert (metrics.ttft, metrics.tpot) == (5.0, None)


def test_samples_side_by_side_count_as_one_token_a_step(engine):
    engine.clock = clock = Clock()
    engine.add([1, 2, 3], SamplingParams(max_tokens=5, n=2, temperature=1.0, seed=0))
    while engine.has_unfinished:
        clock.now += 2
        outputs = engine.step()
    metrics = outputs[-1].metrics
    assert (metrics.num_token_steps, metrics.num_generation_tokens, metrics.tpot) == (5, 10, 2.0)


def test_engine_metrics(engine):
    engine.clock = clock = Clock()
    schedule = engine.scheduler.schedule

    def slow_schedule():
        clock.now += 0.5
        return schedule()

    engine.scheduler.schedule = slow_schedule
    for prompt in ([1] * 9, [3] * 9, [2] * 3):
        engine.add(prompt, SamplingParams(max_tokens=2))
    engine.step()
    metrics = engine.metrics
    assert (metrics.num_running, metrics.num_waiting, metrics.num_requests_finished) == (2, 1, 0)
    assert (metrics.num_blocks_used, metrics.num_slots_used) == (6, 18)
    assert (metrics.block_usage, metrics.token_usage) == (6 / 20, 18 / 80)
    while engine.has_unfinished:
        engine.step()
    engine.generate([[1] * 9], SamplingParams(max_tokens=2), progress=False)
    metrics = engine.metrics
    assert metrics.num_requests_finished == 4 and metrics.num_generation_tokens == 8
    assert metrics.prefix_hit_rate == 8 / 30
    assert metrics.throughput == 8 / (0.5 * metrics.num_steps)
    assert (metrics.block_usage, metrics.token_usage) == (0, 0)


def test_preemptions_are_counted(engine):
    outputs = engine.generate([[1] * 30, [2] * 30], SamplingParams(max_tokens=20), progress=False)
    counts = [output.metrics.num_preemptions for output in outputs]
    assert sum(counts) == engine.metrics.num_preemptions > 0


def test_a_table_to_read(engine):
    text = str(engine.metrics)
    assert text.splitlines()[0] == "requests         0 finished, 0 running, 0 waiting"
    assert "prefix hit rate  0.0% of 0 prompt tokens" in text and "block usage" in text and "token usage" in text
    assert repr(engine.metrics) == text


def test_aborted_requests_are_not_finished_ones(engine):
    engine.abort(engine.add([1], SamplingParams(max_tokens=9)))
    assert engine.metrics.num_requests_finished == 0


def test_shared_blocks_count_once(engine):
    engine.add([1] * 6, SamplingParams(max_tokens=4, n=2, temperature=5.0, seed=1))
    engine.step()
    requests = engine.scheduler.running
    assert len(requests) == 2 and blocks_and_slots_used(requests, 4) == (2, 6)
    engine.step()  # both write a token into their own copy of the second block
    assert blocks_and_slots_used(requests, 4) == (3, 4 + 3 + 3)

"""Beam search on shared blocks against a search that keeps no keys and values at all."""

import math
import random

import pytest

from pagedlab.engine.params import SamplingParams
from tests.engine.poison import assert_empty, exact_llama, poisoned_engine


@pytest.fixture(scope="module")
def tiny():
    return exact_llama(vocab_size=23)


def plain_beam_search(model, prompt, width, max_tokens, length_penalty=1.0, stops=()):
    """[(token ids, log-probability, reason)], best first. Recomputes everything and never ends early."""
    beams, results = [((), 0.0)], []
    for _ in range(max_tokens):
        candidates = []
        for tokens, logprob in beams:
            row = model([*prompt, *tokens], logits_to_keep=1)[0].log_softmax(-1).tolist()
            candidates += [((*tokens, token), logprob + value) for token, value in enumerate(row)]
        results += [(tokens, logprob, "stop") for tokens, logprob in candidates if tokens[-1] in stops]
        beams = [candidate for candidate in candidates if candidate[0][-1] not in stops]
        beams = sorted(beams, key=lambda candidate: -candidate[1])[:width]
    results += [(tokens, logprob, "length") for tokens, logprob in beams]
    return sorted(results, key=lambda result: -result[1] / len(result[0]) ** length_penalty)[:width]


def assert_same(output, expected):
    assert [sample.index for sample in output.outputs] == list(range(len(expected)))
    for sample, (tokens, logprob, reason) in zip(output.outputs, expected, strict=True):
        assert (sample.token_ids, sample.finish_reason) == (tokens, reason)
        assert sample.cumulative_logprob == pytest.approx(logprob, abs=1e-3)


@pytest.mark.parametrize("block_size", [1, 2, 3, 16])
@pytest.mark.parametrize("width", [1, 2, 5])
@pytest.mark.parametrize("stops", [(), (3, 11, 12)], ids=["to the end", "with stop tokens"])
def test_results_are_those_of_the_plain_search(tiny, width, block_size, stops):
    rng = random.Random(width)
    engine = poisoned_engine(tiny, num_blocks=120, block_size=block_size)
    for length_penalty in (0.0, 1.0, 2.0, -1.0):
        prompt = [rng.randrange(23) for _ in range(rng.randint(1, 9))]
        params = SamplingParams(max_tokens=7, beam_width=width, length_penalty=length_penalty, stop_token_ids=stops)
        (output,) = engine.generate([prompt], params, progress=False)
        assert_same(output, plain_beam_search(tiny, prompt, width, 7, length_penalty, stops))
        assert_empty(engine)


def test_one_beam_without_stops_is_greedy(tiny):
    engine = poisoned_engine(tiny, num_blocks=40, block_size=4)
    (beam,) = engine.generate([[1, 2]], SamplingParams(max_tokens=9, beam_width=1), progress=False)
    (greedy,) = engine.generate([[1, 2]], SamplingParams(max_tokens=9), progress=False)
    assert beam.token_ids == greedy.token_ids


def test_more_beams_than_tokens_in_the_vocabulary(tiny):
    engine = poisoned_engine(tiny, num_blocks=200, block_size=2)
    (output,) = engine.generate([[1]], SamplingParams(max_tokens=2, beam_width=30), progress=False)
    assert_same(output, plain_beam_search(tiny, [1], 30, 2))
    assert_empty(engine)


@pytest.mark.parametrize(
    "options",
    [
        dict(num_blocks=22),
        dict(num_blocks=6),
        dict(num_blocks=7, preemption_mode="swap", num_cpu_blocks=9),
        dict(num_blocks=22, preemption_mode="swap", num_cpu_blocks=12),
        dict(num_blocks=22, preemption_mode="swap", num_cpu_blocks=100, enable_prefix_caching=False),
        dict(num_blocks=30, max_num_batched_tokens=3),
        dict(num_blocks=100, max_num_batched_tokens=2),
    ],
    ids=str,
)
def test_beams_wait_for_each_other_when_some_are_preempted(tiny, options):
    engine = poisoned_engine(tiny, block_size=2, **options)
    prompts = [[1, 2, 3, 4, 5], [9, 8, 7], [4]]
    params = SamplingParams(max_tokens=8, beam_width=3)
    outputs = engine.generate(prompts, params, progress=False)
    for prompt, output in zip(prompts, outputs, strict=True):
        assert_same(output, plain_beam_search(tiny, prompt, 3, 8))
    if options["num_blocks"] < 30:
        assert engine.metrics.num_preemptions > 0
    assert_empty(engine)


def test_beams_beside_other_requests(tiny):
    engine = poisoned_engine(tiny, block_size=3, num_blocks=26)
    params = [SamplingParams(max_tokens=6, beam_width=3), SamplingParams(max_tokens=9)] * 2
    prompts = [[1, 2, 3], [3, 2, 1], [5, 6, 7, 8], [8, 7]]
    outputs = engine.generate(prompts, params, progress=False)
    for prompt, wanted, output in zip(prompts, params, outputs, strict=True):
        expected = plain_beam_search(tiny, prompt, wanted.beam_width or 1, wanted.max_tokens)
        assert [sample.token_ids for sample in output.outputs] == [tokens for tokens, _, _ in expected]
    assert_empty(engine)


def test_beams_share_their_common_beginning_and_give_back_what_dies(tiny):
    engine = poisoned_engine(tiny, num_blocks=100, block_size=4, enable_prefix_caching=False)
    prompt = [i % 23 for i in range(20)]
    engine.add(prompt, SamplingParams(max_tokens=12, beam_width=4))
    while engine.has_unfinished:
        engine.step()
        running = engine.scheduler.running
        if running:
            assert len(running) == 4
            assert all(request.table.blocks[:5] == running[0].table.blocks[:5] for request in running)
            own = math.ceil((running[0].num_computed_tokens - 20) / 4)
            assert engine.pool.num_blocks - engine.allocator.num_free <= 5 + 4 * own
    assert_empty(engine)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_abort_ends_all_beams(tiny, steps):
    engine = poisoned_engine(tiny, num_blocks=60, block_size=2)
    engine.add([1, 2, 3], SamplingParams(max_tokens=9, beam_width=4), request_id="beams")
    for _ in range(steps):
        engine.step()
    output = engine.abort("beams")
    assert output.finished and {beam.finish_reason for beam in output.outputs} == {"abort"}
    assert len(output.outputs) == 4 and {len(beam.token_ids) for beam in output.outputs} == {steps}
    assert_empty(engine)


def test_ends_early_when_nothing_can_change(tiny):
    """Every first token but one stops: with a high price on length, no longer result can win."""
    engine = poisoned_engine(tiny, num_blocks=60, block_size=2)
    stops = list(range(1, 23))
    params = SamplingParams(max_tokens=40, beam_width=2, stop_token_ids=stops, length_penalty=0.0)
    (output,) = engine.generate([[5, 6]], params, progress=False)
    assert_same(output, plain_beam_search(tiny, [5, 6], 2, 40, 0.0, stops))
    assert engine.metrics.num_steps < 40
    assert_empty(engine)

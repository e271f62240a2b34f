"""Anything may happen in any order: invariants hold after every step, and outputs are those of each request alone."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.engine.params import SamplingParams
from pagedlab.model.generate import generate
from tests.engine.poison import assert_empty, exact_llama, poisoned_engine

MODEL = exact_llama(num_layers=1, num_heads=2, num_kv_heads=1, vocab_size=31)
BEGINNINGS = [[1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [1, 2, 3, 4, 11], [], [12]]


class Interruption(BaseException):
    pass


def alone(prompt, params):
    """What the request gives in an engine of its own, with room for all."""
    if params.num_sequences == 1 and params.temperature == 0 and params.beam_width is None:
        return [tuple(generate(MODEL, prompt, params.max_tokens))]
    engine = poisoned_engine(MODEL, num_blocks=200, block_size=4, enable_prefix_caching=False)
    (output,) = engine.generate([prompt], params, progress=False)
    return [sample.token_ids for sample in output.outputs]


@st.composite
def worlds(draw):
    block_size = draw(st.sampled_from([1, 2, 3, 16]))
    return dict(
        block_size=block_size,
        num_blocks=draw(st.integers(-(-24 // block_size), 60 // block_size + 4)),
        max_num_batched_tokens=draw(st.sampled_from([1, 3, 8, 64])),
        max_num_seqs=draw(st.sampled_from([3, 4, 20])),
        watermark=draw(st.sampled_from([0.0, 0.1])),
        policy=draw(st.sampled_from(["fcfs", "priority"])),
        enable_prefix_caching=draw(st.booleans()),
        preemption_mode=draw(st.sampled_from(["recompute", "swap"])),
        num_cpu_blocks=draw(st.sampled_from([0, 3, 100])),
    )


def random_params(rng):
    kind = rng.choice(["greedy", "greedy", "draw", "samples", "beams"])
    max_tokens = rng.randint(1, 8)
    if kind == "beams":
        return SamplingParams(max_tokens=max_tokens, beam_width=rng.randint(1, 3))
    if kind == "greedy":
        return SamplingParams(max_tokens=max_tokens)
    n = rng.randint(2, 3) if kind == "samples" else 1
    return SamplingParams(max_tokens=max_tokens, temperature=1.0, seed=rng.randrange(9), n=n, top_k=rng.choice([0, 5]))


@given(world=worlds(), seed=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_whatever_happens(world, seed):
    rng = random.Random(seed)
    engine = poisoned_engine(MODEL, **world)
    attend, strikes = engine.runner._attend, iter([])

    def and_strike(*args):
        if next(strikes, False):
            raise Interruption
        return attend(*args)

    engine.runner._attend = and_strike
    wanted, outputs = {}, {}
    for _ in range(rng.randint(1, 25)):
        for _ in range(rng.choice([0, 0, 1, 2])):
            prompt = rng.choice(BEGINNINGS) + [rng.randrange(31) for _ in range(rng.randint(1, 6))]
            params = random_params(rng)
            request_id = engine.add(prompt, params, priority=rng.randrange(3))
            wanted[request_id] = prompt, params
        if wanted and rng.random() < 0.1:
            request_id = rng.choice(list(wanted))
            if engine.abort(request_id):
                del wanted[request_id]
                engine.check_invariants()
        strikes = iter([rng.random() < 0.15])
        try:
            outputs |= {output.request_id: output for output in engine.step()}
        except Interruption:
            engine.check_invariants()
    strikes = iter([])
    steps = 0
    while engine.has_unfinished:
        outputs |= {output.request_id: output for output in engine.step()}
        steps += 1
        assert steps < 5000
    for request_id, (prompt, params) in wanted.items():
        assert [sample.token_ids for sample in outputs[request_id].outputs] == alone(prompt, params)
    assert_empty(engine)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_test_above_sees_a_block_that_is_read_before_it_is_written(seed):
    """Sabotage: a copy that is not made leaves NaN in the new block, and NaN is noticed."""
    engine = poisoned_engine(MODEL, num_blocks=60, block_size=4)
    engine.pool.copy_blocks = lambda pairs: None
    with pytest.raises(ValueError, match="NaN"):
        engine.generate([[1, 2]], SamplingParams(max_tokens=6, n=2, temperature=1.0, seed=seed), progress=False)

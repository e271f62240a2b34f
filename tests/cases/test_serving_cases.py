"""Bugs of real serving engines, restated as tests of ours: those that only a model that runs can show.

Each was reported in public, for the project and under the number its docstring names. What went wrong there is told in
one sentence; the test is what must be true instead. B07 is `pytest -k B07`.
"""

import random

import pytest
import torch

from pagedlab.engine.params import SamplingParams
from pagedlab.engine.scheduler_output import SchedulerOutput
from pagedlab.model.generate import generate
from tests.engine.poison import assert_empty, exact_llama, poisoned_engine

BLOCK_SIZES = [1, 2, 3, 16, 50]  # the last one is larger than any prompt here


@pytest.fixture(scope="module")
def tiny():
    return exact_llama()


def tokens(count, seed=0):
    rng = random.Random(seed)
    return [rng.randrange(97) for _ in range(count)]


def run(engine):
    """Step until nothing is left. Returns the last output of each request."""
    outputs = {}
    while engine.has_unfinished:
        outputs |= {output.request_id: output for output in engine.step()}
    assert_empty(engine)
    return outputs


def stored(engine, request):
    """Keys and values of a request's computed tokens in all layers, read through its table: a copy."""
    size, table = engine.pool.block_size, request.table
    slots = torch.tensor(table.slot_mapping(0, request.num_computed_tokens))
    parts = []
    for layer in range(engine.pool.num_layers):
        for cache in (engine.pool.key_cache(layer), engine.pool.value_cache(layer)):
            parts.append(cache[slots // size, :, slots % size].clone())
    return torch.stack(parts, dim=1)  # [tokens, 2 * layers, kv heads, head_dim]


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("num_prompt", [4, 5, 6, 16])
def test_B07_diverging_sequences_share_rows_and_have_their_own(tiny, block_size, num_prompt):
    """xLLM-AI/xllm#1984: the copy of a shared block was noted but never made, so beams read uninitialised memory."""
    engine = poisoned_engine(tiny, num_blocks=80, block_size=block_size, enable_prefix_caching=False)
    prompt = tokens(num_prompt)
    engine.add(prompt, SamplingParams(max_tokens=8, n=3, temperature=3.0, seed=2))
    engine.step()
    before = [stored(engine, request) for request in engine.scheduler.running]
    assert all(torch.equal(rows, before[0]) for rows in before)
    for _ in range(3):
        engine.step()
    requests = list(engine.scheduler.running)
    after = [stored(engine, request) for request in requests]
    assert len({tuple(request.output_token_ids[:3]) for request in requests}) == 3
    for request, rows in zip(requests, after, strict=True):
        assert torch.equal(rows[:num_prompt], before[0])
        assert len(rows) == num_prompt + 3 and not rows.isnan().any()
        other = next(r for r in requests if r.output_token_ids[:1] != request.output_token_ids[:1])
        assert not torch.equal(rows[num_prompt], after[requests.index(other)][num_prompt])
    run(engine)


@pytest.mark.parametrize("params", [dict(n=3, temperature=1.0, seed=0), dict(beam_width=3)], ids=str)
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_B11_abort_ends_every_sequence_of_the_prompt(tiny, block_size, params):
    """vllm-project/vllm#14326: the samples of an aborted request ran on for ever."""
    for steps in range(5):
        engine = poisoned_engine(tiny, num_blocks=80, block_size=block_size, max_num_batched_tokens=4)
        request_id = engine.add(tokens(9), SamplingParams(max_tokens=8, **params))
        for _ in range(steps):
            engine.step()
        engine.abort(request_id)
        assert_empty(engine)
        assert engine.step() == [] and engine.scheduler.requests == {}


@pytest.mark.parametrize("block_size", BLOCK_SIZES)
def test_B12_a_prompt_that_is_cached_whole_still_computes_a_token(tiny, block_size):
    """GeeeekExplorer/nano-vllm#114, #117; vllm-project/vllm#3193: all of the prompt was found, nothing was left to
    compute, and the empty batch crashed."""
    engine = poisoned_engine(tiny, num_blocks=240, block_size=block_size)
    prompt = tokens(2 * block_size)
    for time in range(3):
        request_id = engine.add(prompt, SamplingParams(max_tokens=3))
        output = run(engine)[request_id]
        assert list(output.token_ids) == generate(tiny, prompt, 3)
        assert output.metrics.num_cached_tokens == (0 if time == 0 else (len(prompt) - 1) // block_size * block_size)


@pytest.mark.parametrize("block_size", [1, 2, 3, 5])
def test_B14_a_prompt_of_whole_blocks_in_chunks_of_any_size(tiny, block_size):
    """vllm-project/vllm#7371: a prompt failed whose last chunk ended at the end of a block."""
    prompt = tokens(2 * block_size)
    expected = generate(tiny, prompt, 4)
    for chunk in range(1, 2 * block_size + 2):
        engine = poisoned_engine(tiny, num_blocks=30, block_size=block_size, max_num_batched_tokens=chunk)
        request_id = engine.add(prompt, SamplingParams(max_tokens=4))
        while not engine.scheduler.running or not engine.scheduler.running[0].output_token_ids:
            engine.step()
        (request,) = engine.scheduler.running
        assert len(request.table.blocks) == 2 and request.num_computed_tokens == 2 * block_size
        engine.step()
        assert len(request.table.blocks) == 3
        assert list(run(engine)[request_id].token_ids) == expected


@pytest.mark.parametrize("mode", ["recompute", "swap"])
@pytest.mark.parametrize("block_size", [1, 2, 3, 16])
def test_B15_preempted_next_to_a_block_boundary(tiny, block_size, mode):
    """GeeeekExplorer/nano-vllm#217: preempted one token behind a boundary, it came back without its newest token and
    without a block for it."""
    for length in (block_size - 1, block_size, block_size + 1):
        prompt = tokens(max(1, length - 2), seed=1)
        engine = poisoned_engine(
            tiny, num_blocks=40, block_size=block_size, preemption_mode=mode, num_cpu_blocks=20 * (mode == "swap")
        )
        request_id = engine.add(prompt, SamplingParams(max_tokens=7))
        engine.step()
        (request,) = engine.scheduler.running
        while request.num_computed_tokens < length:
            engine.step()
        preempt(engine, request)
        before = request.num_tokens
        engine.step()
        assert request.num_tokens == before + 1
        assert list(run(engine)[request_id].token_ids) == generate(tiny, prompt, 7)


def preempt(engine, request):
    """Between two steps, as if the pool were needed for somebody else."""
    output = SchedulerOutput()
    engine.scheduler._preempt(request, output)
    engine.runner.move(output)
    assert request.num_preemptions == 1 and request.table.blocks == []


@pytest.mark.parametrize("block_size", [1, 2, 3, 16])
def test_B39_equal_prompts_that_come_together_in_any_order(tiny, block_size):
    """vllm-project/vllm#7822, #37152: a block was found by its hash before it was computed."""
    prompt = tokens(2 * block_size + 1)
    expected = generate(tiny, prompt, 4)
    for reverse in (False, True):
        engine = poisoned_engine(tiny, num_blocks=60, block_size=block_size)
        execute = engine.runner.execute
        if reverse:
            engine.runner.execute = lambda scheduled, *more, execute=execute: execute(scheduled[::-1], *more)
        ids = [engine.add(prompt, SamplingParams(max_tokens=4)) for _ in range(3)]
        engine.step()
        assert [len(request.output_token_ids) for request in engine.scheduler.running] == [1]  # the others wait for it
        engine.step()
        assert [len(request.output_token_ids) for request in engine.scheduler.running] == [2, 1, 1]
        outputs = run(engine)
        assert [list(outputs[request_id].token_ids) for request_id in ids] == [expected] * 3


@pytest.mark.parametrize("block_size", [1, 2, 3, 16])
def test_B44_a_hit_and_a_miss_in_one_step(tiny, block_size):
    """vllm-project/vllm#7018: beside a prompt that was found in the cache, another one got a table of zeros."""
    engine = poisoned_engine(tiny, num_blocks=120, block_size=block_size)
    known = tokens(2 * block_size + 1, seed=3)
    engine.generate([known], SamplingParams(max_tokens=2), progress=False)

    seen = {}
    execute = engine.runner.execute

    def and_look(scheduled, *more):
        logits, requests = execute(scheduled, *more)
        seen.update({request.request_id: row for request, row in zip(requests, logits, strict=True)})
        return logits, requests

    engine.runner.execute = and_look
    prompts = {"hit": [*known, 5], "miss": [96 - token for token in [*known, 5]]}
    for request_id, prompt in prompts.items():
        engine.add(prompt, SamplingParams(max_tokens=3), request_id=request_id)
    engine.step()
    tables = [set(request.table.blocks) for request in engine.scheduler.running]
    assert not tables[0] & tables[1]
    for request_id, prompt in prompts.items():
        torch.testing.assert_close(seen[request_id], tiny(prompt, logits_to_keep=1)[0], rtol=1e-4, atol=1e-4)
    outputs = run(engine)
    assert [outputs[name].metrics.num_cached_tokens for name in prompts] == [len(known) // block_size * block_size, 0]


@pytest.mark.parametrize("block_size", [1, 2, 3, 16])
def test_B48_a_resumed_request_prefills_prompt_and_output(tiny, block_size):
    """LMCache/LMCache#2069; vllm-project/vllm-gaudi#524; tenstorrent/vllm#326: after a preemption old block ids were
    kept, outputs were counted twice, or the whole was taken for one decode token."""
    engine = poisoned_engine(tiny, num_blocks=60, block_size=block_size, enable_prefix_caching=False)
    prompt = tokens(7)
    request_id = engine.add(prompt, SamplingParams(max_tokens=9))
    for _ in range(5):
        engine.step()
    (request,) = engine.scheduler.running
    old = list(request.table.blocks)
    preempt(engine, request)
    held = engine.allocator.allocate(len(old))  # by somebody else, when it comes back
    assert set(held) == set(old)

    scheduled = []
    execute = engine.runner.execute
    engine.runner.execute = lambda pairs, *more: scheduled.append([n for _, n in pairs]) or execute(pairs, *more)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_checks_invariants", False)  # `held` belongs to no request
        engine.step()
        engine.step()
    assert scheduled == [[7 + 5], [1]]
    assert not set(request.table.blocks) & set(held)
    assert request.num_tokens == 7 + 5 + 2
    engine.allocator.free(held)
    assert list(run(engine)[request_id].token_ids) == generate(tiny, prompt, 9)


@pytest.mark.parametrize("block_size", [1, 2, 3, 16])
def test_B52_blocks_leave_before_they_are_given_away(tiny, block_size):
    """NVIDIA/TensorRT-LLM#8813: while a request was carried out to the host, its blocks were already written by the
    next one, and answers came back with other prompts' text."""
    num_blocks = -(-14 // block_size)
    engine = poisoned_engine(
        tiny,
        num_blocks=num_blocks,
        block_size=block_size,
        policy="priority",
        watermark=0.0,
        preemption_mode="swap",
        num_cpu_blocks=num_blocks,
        enable_prefix_caching=False,
    )
    moves, bytes_of = [], {}
    move = engine.runner.move

    def and_compare(output):
        for name, pairs in (("out", output.swap_out), ("in", output.swap_in)):
            moves.extend((name, block) for block, _ in pairs)
        move(output)
        for request in engine.scheduler.running:
            if request.request_id in bytes_of and output.swap_in:
                kept = bytes_of.pop(request.request_id)
                assert torch.equal(stored(engine, request), kept)

    engine.runner.move = and_compare
    prompts = {"b": tokens(3, seed=1), "a": tokens(4, seed=2)}
    for priority, (name, prompt) in enumerate(prompts.items()):
        engine.add(prompt, SamplingParams(max_tokens=14 - len(prompt)), request_id=name, priority=priority)
    outputs = {}
    while engine.has_unfinished:
        running = {request: stored(engine, request) for request in engine.scheduler.running}
        outputs |= {output.request_id: output for output in engine.step()}
        for request, rows in running.items():
            if request.status.name == "SWAPPED":
                bytes_of[request.request_id] = rows
    if block_size < 16:
        assert {name for name, _ in moves} == {"out", "in"} and not bytes_of
    for name, prompt in prompts.items():
        assert list(outputs[name].token_ids) == generate(tiny, prompt, 14 - len(prompt))
    assert_empty(engine)

"""The engine's outputs are those of each prompt alone, whatever happens on the way."""

import itertools
import random

import numpy
import pytest
import torch

from pagedlab.cache.allocator import BlockAllocator
from pagedlab.cache.block_hash import image_key
from pagedlab.cache.paged import PoolSizeError
from pagedlab.cache.table import BlockTable
from pagedlab.engine.engine import Engine
from pagedlab.engine.limits import NeverFitsError
from pagedlab.engine.params import SamplingParams
from pagedlab.engine.request import Request
from pagedlab.engine.scheduler import DuplicateRequestError
from pagedlab.engine.trace import ScheduleTrace
from pagedlab.errors import PagedLabError
from pagedlab.model.generate import generate
from tests.engine.plain import PlainAllocator, PlainScheduler
from tests.engine.poison import assert_empty, exact_llama, poisoned_engine

VOCAB = 97


@pytest.fixture(scope="module")
def tiny():
    return exact_llama()


def random_prompts(count, longest=40, seed=0):
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB) for _ in range(rng.randint(1, longest))] for _ in range(count)]


def greedy(max_tokens=12, **more):
    return SamplingParams(max_tokens=max_tokens, **more)


WAYS = {
    "plenty of room": dict(num_blocks=300),
    "no prefix cache": dict(num_blocks=300, enable_prefix_caching=False),
    "chunks of 7": dict(num_blocks=300, max_num_batched_tokens=7),
    "whole prompts": dict(num_blocks=300, max_num_batched_tokens=60, enable_chunked_prefill=False),
    "preemption": dict(num_slots=80),
    "preemption, no prefix cache, chunks": dict(
        num_slots=80, enable_prefix_caching=False, max_num_batched_tokens=25, watermark=0.0
    ),
    "swap": dict(num_slots=80, preemption_mode="swap", swap_slots=200),
    "too little swap space": dict(num_slots=80, preemption_mode="swap", swap_slots=20),
    "two at a time": dict(num_blocks=300, max_num_seqs=2),
}


def options(way, block_size):
    options = dict(WAYS[way], block_size=block_size)
    if "num_slots" in options:
        options["num_blocks"] = -(-options.pop("num_slots") // block_size) + 1
    if "swap_slots" in options:
        options["num_cpu_blocks"] = -(-options.pop("swap_slots") // block_size)
    return options


@pytest.mark.parametrize("block_size", [1, 2, 3, 16, 64])
@pytest.mark.parametrize("way", WAYS)
def test_outputs_are_those_of_each_prompt_alone(tiny, way, block_size):
    shared = random_prompts(1, seed=9)[0] * 2
    prompts = random_prompts(7) + [shared[: len(shared) // 2 + i] for i in range(3)]
    lengths = [5 + i % 8 for i in range(len(prompts))]
    engine = poisoned_engine(tiny, **options(way, block_size))
    outputs = engine.generate(prompts, [greedy(length) for length in lengths], progress=False)
    for prompt, length, output in zip(prompts, lengths, outputs, strict=True):
        assert list(output.prompt_token_ids) == prompt
        assert list(output.token_ids) == generate(tiny, prompt, length)
        assert output.finished and output.outputs[0].finish_reason == "length"
    if block_size < 64:  # else a request is one block, and never needs another
        assert (engine.metrics.num_preemptions > 0) == ("num_slots" in WAYS[way])
    assert_empty(engine)


def test_step_reports_each_new_token_once(tiny):
    engine = poisoned_engine(tiny, num_blocks=50, block_size=4)
    prompts = random_prompts(3)
    ids = [engine.add(prompt, greedy(6)) for prompt in prompts]
    seen = {request_id: [] for request_id in ids}
    while engine.has_unfinished:
        for output in engine.step():
            assert len(output.token_ids) == len(seen[output.request_id]) + 1
            seen[output.request_id] = list(output.token_ids)
    assert [seen[request_id] for request_id in ids] == [generate(tiny, prompt, 6) for prompt in prompts]
    assert engine.step() == []


def test_requests_can_come_at_any_time(tiny):
    engine = poisoned_engine(tiny, num_blocks=30, block_size=3)
    prompts = random_prompts(6, longest=20)
    finished = {}
    for number in itertools.count():
        if number < len(prompts):
            engine.add(prompts[number], greedy(8), request_id=f"p{number}")
        finished |= {output.request_id: output for output in engine.step() if output.finished}
        if number >= len(prompts) and not engine.has_unfinished:
            break
    for number, prompt in enumerate(prompts):
        assert list(finished[f"p{number}"].token_ids) == generate(tiny, prompt, 8)


def test_generate_beside_other_requests_leaves_them_their_news(tiny):
    engine = poisoned_engine(tiny, num_blocks=60, block_size=4)
    mine, other = random_prompts(2)
    engine.add(other, greedy(4), request_id="other")
    (output,) = engine.generate(mine, greedy(10), progress=False)
    assert list(output.token_ids) == generate(tiny, mine, 10)
    assert not engine.has_unfinished
    (news,) = engine.step()
    assert news.request_id == "other" and news.finished and list(news.token_ids) == generate(tiny, other, 4)


def test_one_prompt_is_a_batch_of_one_and_none_is_an_empty_batch(tiny):
    engine = poisoned_engine(tiny, num_blocks=20, block_size=4)
    prompt = [5, 6, 7]
    expected = generate(tiny, prompt, 3)
    for one in (prompt, tuple(prompt), [prompt], torch.tensor(prompt), [torch.tensor(prompt)], numpy.array(prompt)):
        (output,) = engine.generate(one, greedy(3), progress=False)
        assert list(output.token_ids) == expected
    assert engine.generate([], progress=False) == []


def test_the_same_prefix_is_computed_once(tiny):
    engine = poisoned_engine(tiny, num_blocks=60, block_size=4)
    prompt = random_prompts(1, seed=3)[0] * 3
    prompt = prompt[:33]
    first = engine.generate(prompt, greedy(4), progress=False)[0]
    second = engine.generate(prompt + [1], greedy(4), progress=False)[0]
    assert first.metrics.num_cached_tokens == 0 and second.metrics.num_cached_tokens == 32
    assert list(second.token_ids) == generate(tiny, prompt + [1], 4)
    assert engine.metrics.prefix_hit_rate == 32 / 67


@pytest.mark.parametrize("differs", ["cache_salt", "image"])
def test_what_makes_equal_tokens_differ_is_looked_at(tiny, differs):
    engine = poisoned_engine(tiny, num_blocks=60, block_size=4)
    prompt = list(range(16)) + [1]

    def cached(number):
        if differs == "cache_salt":
            more = dict(cache_salt=f"customer {number}")
        else:
            more = dict(images=[(4, 8, image_key(bytes([number] * 12), (2, 2, 3)))])
        engine.add(prompt, greedy(2), **more)
        outputs = []
        while engine.has_unfinished:
            outputs += engine.step()
        return outputs[-1].metrics.num_cached_tokens

    assert cached(1) == 0
    assert cached(2) == (0 if differs == "cache_salt" else 4)
    assert cached(1) == 16


BAD = {
    "empty": ([], {}, ValueError, "empty"),
    "an id too large": ([1, VOCAB], {}, ValueError, f"token 1 of the prompt is {VOCAB}.*0 to {VOCAB - 1}"),
    "a negative id": ([-1], {}, ValueError, "token 0 of the prompt is -1"),
    "an id that is no number": ([1, 2.0], {}, TypeError, "token 1 of the prompt must be a whole number, not 2.0"),
    "True": ([True], {}, TypeError, "token 0 of the prompt must be a whole number, not True"),
    "no list": (7, {}, TypeError, "not 7"),
    "bytes": (b"hello", {}, TypeError, "a text.* list of .*not b'hello'"),
    "a dictionary": ({"prompt": [1]}, {}, TypeError, "not {'prompt'"),
    "a set, which has no order": ({1, 2}, {}, TypeError, "not {1, 2}"),
    "a number in an array": (numpy.array(3), {}, TypeError, "not "),
    "text without a tokenizer": ("hello", {}, ValueError, "no tokenizer"),
    "too long for the pool": ([1] * 60, dict(max_tokens=22), NeverFitsError, "81 tokens.*21 blocks of 4.*20"),
    "too long for the model": ([1] * 10, dict(max_tokens=4088), ValueError, "4097 positions.*4096"),
    "more samples than seats": ([1], dict(n=9, temperature=1.0, max_tokens=2), NeverFitsError, "n=9.*max_num_seqs=8"),
    "a stop string without a tokenizer": ([1], dict(stop="x"), ValueError, "needs a tokenizer"),
    "a stop token too large": ([1], dict(stop_token_ids=[VOCAB]), ValueError, f"stop token {VOCAB}"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_is_refused_and_touches_nothing(tiny, name):
    prompt, wanted, error, message = BAD[name]
    engine = poisoned_engine(tiny, num_blocks=20, block_size=4, max_num_seqs=8)
    engine.add([1, 2, 3], greedy(5), request_id="good")
    engine.step()
    before = engine.metrics
    params = SamplingParams(**wanted)
    with pytest.raises(error, match=message):
        engine.add(prompt, params)
    with pytest.raises(error, match=message):  # a good one before and behind it: neither may be added
        engine.generate([[1], prompt, [2]], params, progress=False)
    with pytest.raises((error, ValueError)):  # or that there is no tokenizer, or only one sample
        next(engine.stream(prompt, params))
    assert str(engine.metrics) == str(before)
    assert [request.request_id for request in engine.scheduler.running] == ["good"]
    assert not engine.scheduler.waiting
    while engine.has_unfinished:
        outputs = engine.step()
    assert list(outputs[-1].token_ids) == generate(tiny, [1, 2, 3], 5)
    assert_empty(engine)


def test_params_of_the_wrong_kind_or_number(tiny):
    engine = poisoned_engine(tiny, num_blocks=20, block_size=4)
    with pytest.raises(TypeError, match="must be SamplingParams, not 12"):
        engine.add([1], 12)
    with pytest.raises(TypeError, match="a request id is a text, not 7"):
        engine.add([1], request_id=7)
    with pytest.raises(TypeError, match=r"a request id is a text, not \['a'\]"):
        engine.add([1], request_id=["a"])
    with pytest.raises(TypeError, match="seed must be a whole number, not 'a'"):
        Engine(tiny, num_blocks=2, seed="a")
    with pytest.raises(PoolSizeError, match="1,000,000,000,000 blocks of"):
        Engine(tiny, num_blocks=2, num_cpu_blocks=10**12)
    with pytest.raises(TypeError, match="not 5"):
        engine.generate(5)
    with pytest.raises(ValueError, match="2 prompts, but 3 params"):
        engine.generate([[1], [2]], [SamplingParams()] * 3)


def test_the_bad_key_of_an_image_in_the_last_block(tiny):
    engine = poisoned_engine(tiny, num_blocks=20, block_size=4)
    with pytest.raises(TypeError, match="'image' has 1.5"):
        engine.add([1] * 5, greedy(6), images=[(4, 1, ("image", 1.5))])
    assert_empty(engine)


def test_an_id_that_is_taken(tiny):
    engine = poisoned_engine(tiny, num_blocks=20, block_size=4)
    engine.add([1, 2], greedy(4), request_id="a")
    with pytest.raises(DuplicateRequestError, match="'a' is taken"):
        engine.add([3], greedy(4), request_id="a")
    assert engine.add([3], greedy(4)) != "a"
    while engine.has_unfinished:
        engine.step()
    assert engine.add([3], greedy(4), request_id="a") == "a"  # free again


def test_ids_that_look_like_those_of_forks_and_of_unnamed_requests(tiny):
    engine = poisoned_engine(tiny, num_blocks=60, block_size=4)
    for request_id in ("a#1", "0", "2"):
        engine.add([1, 2], greedy(9), request_id=request_id)
    engine.add([1, 2], SamplingParams(max_tokens=5, n=3, temperature=1.0), request_id="a")
    names = {engine.add([3, number], greedy(3)) for number in range(3)}
    assert len(names) == 3 and not names & {"a#1", "0", "2", "a"}
    finished = set()
    while engine.has_unfinished:
        finished |= {output.request_id for output in engine.step() if output.finished}
    assert finished == names | {"a#1", "0", "2", "a"}
    assert_empty(engine)


@pytest.mark.parametrize("num_blocks", [20, 60])
def test_samples_of_one_prompt_share_its_blocks(tiny, num_blocks):
    engine = poisoned_engine(tiny, num_blocks=num_blocks, block_size=4, enable_prefix_caching=False)
    prompt = random_prompts(1, seed=5)[0][:18] * 2
    params = SamplingParams(max_tokens=10, n=4, temperature=1.0, seed=7)
    engine.add(prompt, params)
    engine.step()
    blocks = [request.table.blocks for request in engine.scheduler.running]
    assert len(blocks) == 4 and all(table == blocks[0] for table in blocks)
    outputs = []
    while engine.has_unfinished:
        outputs += engine.step()
    samples = [sample.token_ids for sample in outputs[-1].outputs]
    assert [sample.index for sample in outputs[-1].outputs] == [0, 1, 2, 3]
    assert len(set(samples)) > 1 and all(len(sample) == 10 for sample in samples)
    assert outputs[-1].metrics.num_generation_tokens == 40
    assert_empty(engine)
    if num_blocks == 20:
        assert engine.metrics.num_preemptions > 0
        roomy = poisoned_engine(tiny, num_blocks=200, block_size=4)
        (again,) = roomy.generate([prompt], params, progress=False)
        assert [sample.token_ids for sample in again.outputs] == samples


def test_the_first_sample_of_several_is_the_one_sample_of_one(tiny):
    engine = poisoned_engine(tiny, num_blocks=100, block_size=4)
    one, several = (SamplingParams(max_tokens=9, n=n, temperature=0.9, seed=3) for n in (1, 3))
    (alone,) = engine.generate([[1, 2, 3]], one, progress=False)
    (among,) = engine.generate([[1, 2, 3]], several, progress=False)
    assert among.outputs[0].token_ids == alone.token_ids


def test_draws_do_not_depend_on_who_shares_the_batch(tiny):
    params = [SamplingParams(max_tokens=8, temperature=0.8, top_k=20, top_p=0.9, seed=seed) for seed in range(6)]
    prompts = random_prompts(6)
    together = poisoned_engine(tiny, num_blocks=100, block_size=4).generate(prompts, params, progress=False)
    tight = poisoned_engine(tiny, num_blocks=14, block_size=4, max_num_batched_tokens=11)
    assert [o.token_ids for o in tight.generate(prompts, params, progress=False)] == [o.token_ids for o in together]
    assert tight.metrics.num_preemptions > 0
    for prompt, wanted, output in zip(prompts, params, together, strict=True):
        (alone,) = poisoned_engine(tiny, num_blocks=100, block_size=4).generate([prompt], wanted, progress=False)
        assert alone.token_ids == output.token_ids


def test_without_a_seed_every_request_draws_differently_and_an_engine_repeats_itself(tiny):
    def run(seed):
        engine = Engine(tiny, num_blocks=100, block_size=4, seed=seed, backend="torch")
        params = SamplingParams(max_tokens=10, temperature=1.0)
        return [output.token_ids for output in engine.generate([[1, 2]] * 3, params, progress=False)]

    assert len(set(run(0))) == 3
    assert run(0) == run(0)
    assert not set(run(0)) & set(run(1))


def test_stop_tokens_and_end_of_sequence(tiny):
    prompt = [3, 1, 4]
    tokens = generate(tiny, prompt, 12)
    engine = poisoned_engine(tiny, num_blocks=30, block_size=4)
    cut = next(i for i in range(1, 12) if tokens[i] not in tokens[:i])
    (output,) = engine.generate([prompt], greedy(stop_token_ids=[tokens[cut]]), progress=False)
    assert list(output.token_ids) == tokens[: cut + 1]
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", tokens[cut])

    class Ending:
        eos_token_id = tokens[cut]

        def decode(self, ids, skip_special_tokens):
            return "".join(chr(97 + i % 26) for i in ids)

    engine = poisoned_engine(tiny, Ending(), num_blocks=30, block_size=4)
    (output,) = engine.generate([prompt], greedy(), progress=False)
    assert list(output.token_ids) == tokens[: cut + 1]
    assert (output.outputs[0].finish_reason, output.outputs[0].stop_reason) == ("stop", None)
    assert len(output.text) == cut  # the end is no text
    (output,) = engine.generate([prompt], greedy(ignore_eos=True), progress=False)
    assert list(output.token_ids) == tokens and output.outputs[0].finish_reason == "length"
    assert_empty(engine)


def test_logprobs(tiny):
    engine = poisoned_engine(tiny, num_blocks=30, block_size=4)
    params = SamplingParams(max_tokens=5, temperature=2.0, seed=1, logprobs=3)
    (output,) = engine.generate([[8, 9]], params, progress=False)
    (sample,) = output.outputs
    ids, total = [8, 9], 0.0
    for token, logprobs in zip(sample.token_ids, sample.logprobs, strict=True):
        expected = tiny(ids)[-1].log_softmax(-1)
        best = expected.topk(3)
        assert set(logprobs) == {token, *best.indices.tolist()}
        assert all(logprobs[i] == pytest.approx(float(expected[i]), abs=1e-4) for i in logprobs)
        total += logprobs[token]
        ids.append(token)
    assert sample.cumulative_logprob == pytest.approx(total)


@pytest.mark.parametrize("steps", range(7))
@pytest.mark.parametrize("n", [1, 3])
def test_abort_at_any_time_leaves_no_block_behind(tiny, steps, n):
    engine = poisoned_engine(
        tiny, num_blocks=16, block_size=2, max_num_batched_tokens=6, preemption_mode="swap", num_cpu_blocks=12
    )
    prompts = [[1, 2, 3, 4, 5, 6, 7, 8, 9], [4, 5, 6], [6] * 8]
    ids = [engine.add(prompt, SamplingParams(max_tokens=6, temperature=1.0, n=n, seed=0)) for prompt in prompts]
    for _ in range(steps):
        engine.step()
    left = [request_id for request_id in ids if request_id in engine._groups]
    output = engine.abort(ids[0])
    if ids[0] in left:
        assert output.request_id == ids[0] and output.finished
        assert {sample.finish_reason for sample in output.outputs} <= {"abort", "length"}
    assert engine.abort(ids[0]) is None and engine.abort("nobody") is None
    assert not [r for r in engine.scheduler.running if r.root_id == ids[0]]
    finished = {output.request_id for _ in iter(lambda: engine.has_unfinished, False) for output in engine.step()}
    assert finished >= set(left) - {ids[0]}
    assert_empty(engine)


def test_priority(tiny):
    engine = poisoned_engine(tiny, num_blocks=60, block_size=4, policy="priority", max_num_seqs=1)
    for request_id, priority in (("a", 2), ("b", 0), ("c", 1)):
        engine.add([1, 2], greedy(2), request_id=request_id, priority=priority)
    order = []
    while engine.has_unfinished:
        order += [output.request_id for output in engine.step() if output.finished]
    assert order == ["b", "c", "a"]


def test_a_trace_has_every_step(tiny):
    engine = poisoned_engine(tiny, num_blocks=12, block_size=2)
    engine.trace = ScheduleTrace()
    engine.generate([[1, 2, 3, 4], [5, 6]], greedy(8), progress=False)
    assert len(engine.trace.steps) == engine.metrics.num_steps
    assert engine.trace.steps[-1].blocks_used == 0
    assert sum(step.num_scheduled for step in engine.trace.steps) >= 4 + 2 + 2 * 7
    last = [step.moments[request_id] for step in engine.trace.steps for request_id in step.moments]
    assert sum(moment.finish_reason == "length" for moment in last) == 2


# Parts that a learner made.


@pytest.mark.parametrize("num_blocks", [100, 14])
def test_a_plain_scheduler_allocator_and_table(tiny, num_blocks):
    allocator = PlainAllocator(num_blocks)
    engine = Engine(tiny, scheduler=PlainScheduler(allocator, 3), check_invariants=True, backend="torch")
    prompts = random_prompts(6, longest=20)
    outputs = engine.generate(prompts, greedy(10), progress=False)
    assert [list(output.token_ids) for output in outputs] == [generate(tiny, prompt, 10) for prompt in prompts]
    assert allocator.num_free == num_blocks
    with pytest.raises(ValueError, match="PlainScheduler cannot fork"):
        engine.add([1], SamplingParams(n=2, temperature=1.0))


def test_your_own_allocator_and_table_in_our_scheduler(tiny):
    class Counting(BlockAllocator):
        most = 0

        def allocate(self, n):
            blocks = super().allocate(n)
            self.most = max(self.most, self.num_blocks - self.num_free)
            return blocks

    class Noisy(BlockTable):
        made = 0

        def __init__(self, block_size):
            super().__init__(block_size)
            Noisy.made += 1

    allocator = Counting(40)
    engine = Engine(tiny, allocator=allocator, table_class=Noisy, block_size=4, backend="torch")
    assert engine.pool.num_blocks == 40
    (output,) = engine.generate([[1, 2, 3]], greedy(4), progress=False)
    assert list(output.token_ids) == generate(tiny, [1, 2, 3], 4)
    assert allocator.most == 2 and Noisy.made >= 1


@pytest.mark.parametrize(
    "answer, message",
    [
        (lambda running: [], "gave no request any tokens, but 1"),
        (lambda running: [(running[0], 0)], "0 tokens; it has 3"),
        (lambda running: [(running[0], 4)], "4 tokens; it has 3"),
        (lambda running: [(running[0], 3)], "grow the table"),
        (lambda running: [(running[0], 1), (running[0], 1)], "'0', twice"),
        (lambda running: [(Request("x", [1], 1), 1)], "'x', which is finished or was never added"),
    ],
)
def test_a_scheduler_that_answers_nonsense_is_told(tiny, answer, message):
    class Wrong(PlainScheduler):
        def schedule(self):
            return answer(self.waiting)

    allocator = PlainAllocator(10)
    engine = Engine(tiny, scheduler=Wrong(allocator, 3), backend="torch")
    engine.add([1, 2, 3], greedy(2))
    with pytest.raises((PagedLabError, ValueError), match=message):
        engine.step()


def test_sizes_of_the_pool(tiny):
    bytes_per_block = 2 * 2 * 2 * 8 * 16 * 8
    assert Engine(tiny, kv_cache_memory=bytes_per_block * 7 + 1).pool.num_blocks == 7
    assert Engine(tiny, kv_cache_memory="1 MiB", block_size=4).pool.num_blocks == 2**20 // (bytes_per_block // 4)
    with pytest.raises(PoolSizeError, match="one block takes"):
        Engine(tiny, kv_cache_memory=bytes_per_block - 1)
    with pytest.raises(ValueError, match="pass its allocator"):
        Engine(tiny, scheduler=object())
    with pytest.raises(ValueError, match="9 blocks, the pool only 8"):
        Engine(tiny, allocator=BlockAllocator(9), num_blocks=8)


class Codes:
    """A letter a token. Text that has the letter of `trouble` in it cannot be made, or `calls` something else first."""

    eos_token_id = None

    def __init__(self, trouble=None, calls=None):
        self.trouble, self.calls = trouble, calls

    def encode(self, text):
        return [ord(letter) % VOCAB for letter in text]

    def decode(self, ids, skip_special_tokens=False):
        if self.trouble in ids:
            self.calls() if self.calls else 1 / 0
        return "".join(chr(97 + token) for token in ids)


def test_a_tokenizer_that_fails_ends_its_request_and_no_other(tiny):
    prompts = [[1, 2, 3], [4, 5, 6], [7, 8]]
    alone = [generate(tiny, prompt, 8) for prompt in prompts]
    trouble = next(token for token in alone[1][1:] if token not in alone[0] + alone[2])
    engine = poisoned_engine(tiny, Codes(trouble), num_blocks=60, block_size=4)
    for prompt in prompts:
        engine.add(prompt, greedy(8), request_id=str(prompt[0]))
    outputs, errors = {}, 0
    while engine.has_unfinished:
        try:
            outputs.update((output.request_id, output) for output in engine.step())
        except ZeroDivisionError:
            errors += 1
    outputs.update((output.request_id, output) for output in engine.step())
    assert errors == 1
    assert list(outputs["1"].token_ids) == alone[0] and list(outputs["7"].token_ids) == alone[2]
    assert outputs["4"].finished and outputs["4"].outputs[0].finish_reason == "abort"
    assert outputs["4"].token_ids[-1] == trouble
    with pytest.raises(ZeroDivisionError):
        engine.generate(prompts, greedy(8), progress=False)
    assert_empty(engine)


def test_a_step_within_a_step_is_refused(tiny):
    tokenizer = Codes(generate(tiny, [1, 2, 3], 3)[1])
    engine = poisoned_engine(tiny, tokenizer, num_blocks=60, block_size=4)
    tokenizer.calls = lambda: engine.generate([[9]], greedy(2), progress=False)
    with pytest.raises(PagedLabError, match="within a step"):
        engine.generate([[1, 2, 3], [4, 5]], greedy(8), progress=False)
    assert_empty(engine)
    tokenizer.trouble = None
    assert list(engine.generate([[1, 2, 3]], greedy(3), progress=False)[0].token_ids) == generate(tiny, [1, 2, 3], 3)


def test_a_text_with_half_a_character(tiny):
    engine = poisoned_engine(tiny, Codes(), num_blocks=20, block_size=4)
    with pytest.raises(ValueError, match="the prompt is no text"):
        engine.add("a\ud83d")
    assert_empty(engine)

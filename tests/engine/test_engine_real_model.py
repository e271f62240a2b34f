"""The engine on the course's model in float32: token for token what the model writes alone."""

import pytest

from pagedlab import cli
from pagedlab.engine.engine import Engine
from pagedlab.engine.params import SamplingParams
from pagedlab.model.generate import generate

SHARED = "Paged attention keeps keys and values in blocks of one size. A table says where each block lies. "
PROMPTS = [
    SHARED + "So",
    SHARED + "The",
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived a fisherman who",
    "def fibonacci(n):",
]
LENGTHS = [8, 12, 16, 10, 14]


@pytest.fixture(scope="module")
def expected(smollm):
    return [
        generate(smollm.model, smollm.tokenizer.encode(prompt), length)
        for prompt, length in zip(PROMPTS, LENGTHS, strict=True)
    ]


@pytest.mark.parametrize(
    "options",
    [
        dict(num_blocks=64),
        dict(num_blocks=64, enable_prefix_caching=False, max_num_batched_tokens=7),
        dict(num_blocks=24, block_size=3, watermark=0.0),
        dict(num_blocks=24, block_size=3, watermark=0.0, preemption_mode="swap", num_cpu_blocks=40),
    ],
    ids=["as it comes", "chunks", "preemption", "swap"],
)
def test_outputs_are_those_of_each_prompt_alone(smollm, expected, options):
    engine = Engine(smollm.model, smollm.tokenizer, check_invariants=True, **options)
    params = [SamplingParams(max_tokens=length, ignore_eos=True) for length in LENGTHS]
    for _ in range(2):  # the second time with what the prefix cache has kept
        outputs = engine.generate(PROMPTS, params, progress=False)
        assert [list(output.token_ids) for output in outputs] == expected
    if options["num_blocks"] == 64:
        assert (outputs[0].metrics.num_cached_tokens > 0) == options.get("enable_prefix_caching", True)
    for output in outputs:
        assert output.text == smollm.tokenizer.decode(output.token_ids, skip_special_tokens=True)
    assert (engine.metrics.num_preemptions > 0) == (options["num_blocks"] == 24)
    assert engine.allocator.num_free == engine.pool.num_blocks


def test_a_stream_and_a_stop_string(smollm, expected):
    engine = Engine(smollm.model, smollm.tokenizer, num_blocks=32)
    text = smollm.tokenizer.decode(expected[2])
    stop = text[10:14]
    assert "".join(engine.stream(PROMPTS[2], SamplingParams(max_tokens=16, ignore_eos=True))) == text
    pieces = engine.stream(PROMPTS[2], SamplingParams(max_tokens=16, stop=stop))
    assert "".join(pieces) == text[: text.index(stop)]


def test_the_command(capsys, expected, smollm):
    argv = ["generate", PROMPTS[2], "--max-tokens", "16", "--dtype", "float32", "--ignore-eos", "--stats"]
    assert cli.main(argv) == 0
    printed = capsys.readouterr()
    assert printed.out == smollm.tokenizer.decode(expected[2]) + "\n"
    assert "16 tokens" in printed.err

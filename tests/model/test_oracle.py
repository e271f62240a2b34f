"""The course's model against transformers on the same weights, from both kinds of files."""

import pytest
import torch

from pagedlab.attention import attend
from pagedlab.cache.growing import GrowingCache
from pagedlab.cache.protocol import Contiguous, NoCache
from pagedlab.model.generate import generate, generate_cached
from pagedlab.model.load import load

PROMPTS = [
    "The capital of France is",
    "Once upon a time",
    "def fibonacci(n):\n    ",
    "2 + 2 =",
    "In 1969, astronauts",
    "Liebe Grüße aus",
    "東京は",
    "🙂🙂🙂",
    '{"name": "',
    "SELECT name FROM users WHERE",
    " ",
    "a",
    "Q: What is a cache?\nA:",
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n",
    "The quick brown fox " * 12,
    "To be, or not to be, that is the question: Whether 'tis nobler in the mind to suffer",
    "1, 1, 2, 3, 5, 8, 13,",
    "Water boils at",
    "\n\n\n",
    "import torch\n\nclass Attention(torch.nn.Module):\n    def __init__(self",
]


@pytest.fixture(params=["gguf", "directory"])
def loaded(request, smollm):
    return smollm if request.param == "gguf" else request.getfixturevalue("smollm_from_dir")


@pytest.fixture(scope="module")
def expected_logits(oracle, smollm):
    with torch.no_grad():
        return [oracle(torch.tensor([smollm.tokenizer.encode(prompt)])).logits[0] for prompt in PROMPTS]


@pytest.fixture(scope="module")
def expected_tokens(oracle, smollm):
    ids = torch.tensor([smollm.tokenizer.encode(PROMPTS[1])])
    out = oracle.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=64, min_new_tokens=64, do_sample=False
    )
    return out[0, ids.shape[1] :].tolist()


def test_there_are_twenty_prompts():
    assert len(set(PROMPTS)) == 20


def test_logits(loaded, expected_logits):
    for prompt, expected in zip(PROMPTS, expected_logits, strict=True):
        difference = (loaded.model(loaded.tokenizer.encode(prompt)) - expected).abs().max()
        assert difference < 1e-3, repr(prompt)


def test_64_greedy_tokens(loaded, expected_tokens):
    ids, layers = loaded.tokenizer.encode(PROMPTS[1]), loaded.config.num_hidden_layers
    assert len(expected_tokens) == 64 and len(set(expected_tokens)) > 20
    assert generate_cached(loaded.model, ids, 64, GrowingCache(layers)) == expected_tokens


def test_every_way_of_caching_writes_the_same(smollm, expected_tokens):
    model, ids, layers = smollm.model, smollm.tokenizer.encode(PROMPTS[1]), smollm.config.num_hidden_layers
    for cache in (None, NoCache(), Contiguous(GrowingCache(layers)), Contiguous(GrowingCache(layers), attend)):
        assert generate(model, ids, 16, cache) == expected_tokens[:16]


def test_it_answers_in_the_chat_template_and_stops(smollm):
    text = smollm.tokenizer
    ids = text.chat([{"role": "user", "content": "What is the capital of France? One sentence."}])
    cache, pieces = GrowingCache(smollm.config.num_hidden_layers), []
    new = generate(smollm.model, ids, 30, cache, text.eos_token_id, on_token=pieces.append)
    assert text.decode(new) == "The capital of France is Paris.<|im_end|>" and pieces == new


def test_plain_and_packed_weights_agree(smollm):
    plain = load(fast=False).model
    ids = smollm.tokenizer.encode(PROMPTS[15])
    assert (plain(ids) - smollm.model(ids)).abs().max() < 1e-3
    assert not plain.layers[0].attention.qkv.packed


def test_bfloat16_is_close(smollm, expected_logits):
    """Not equal: 8 bits of precision through 30 layers. The likeliest token mostly stays the likeliest."""
    model = load(dtype=torch.bfloat16).model
    same, compared = 0, 0
    for prompt, expected in list(zip(PROMPTS, expected_logits, strict=True))[:16]:
        logits = model(smollm.tokenizer.encode(prompt))
        assert logits.dtype == torch.bfloat16
        same += int((logits.argmax(-1) == expected.argmax(-1)).sum())
        compared += len(expected)
    assert same > 0.9 * compared

import pytest
import torch

from pagedlab.attention import attend
from pagedlab.cache.growing import GrowingCache
from pagedlab.cache.protocol import Contiguous, NoCache
from pagedlab.model.generate import generate, generate_cached
from pagedlab.model.tiny import tiny_llama

PROMPT = [5, 17, 42]


@pytest.mark.parametrize("heads, kv_heads", [(6, 2), (4, 4), (4, 1)])
def test_every_cache_writes_the_same_tokens(heads, kv_heads):
    model = tiny_llama(seed=1, num_heads=heads, num_kv_heads=kv_heads)
    expected = generate(model, PROMPT, 30)
    assert len(set(expected)) > 5  # not one token over and over, which a broken model could agree on
    for cache in (GrowingCache(2), Contiguous(GrowingCache(2)), Contiguous(GrowingCache(2), attend)):
        assert generate(model, PROMPT, 30, cache) == expected
        assert cache.num_tokens == len(PROMPT) + 30 - 1
    assert generate_cached(model, PROMPT, 30, GrowingCache(2)) == expected
    assert generate_cached(model, torch.tensor(PROMPT), 30, Contiguous(GrowingCache(2), attend)) == expected


def test_what_is_fed_each_step():
    """With a cache: the prompt once, then one token. Without: everything, every time."""
    fed = []

    class Watched(type(tiny_llama())):
        def forward_tokens(self, token_ids, positions, attend):
            fed.append((token_ids.tolist(), positions.tolist()))
            return super().forward_tokens(token_ids, positions, attend)

    model = tiny_llama()
    model.__class__ = Watched
    new = generate(model, PROMPT, 3, GrowingCache(2))
    assert fed == [(PROMPT, [0, 1, 2]), ([new[0]], [3]), ([new[1]], [4])]
    fed.clear()
    generate_cached(model, PROMPT, 3, GrowingCache(2))
    assert fed == [(PROMPT, [0, 1, 2]), ([new[0]], [3]), ([new[1]], [4])]
    fed.clear()
    generate(model, PROMPT, 2)
    assert fed == [(PROMPT, [0, 1, 2]), ([*PROMPT, new[0]], [0, 1, 2, 3])]


def test_it_is_greedy():
    model = tiny_llama()
    ids = list(PROMPT)
    for token in generate(model, PROMPT, 5):
        assert token == int(model(ids)[-1].argmax())
        ids.append(token)


def test_it_stops_at_the_end_of_sequence_and_reports_each_token():
    model, seen = tiny_llama(), []
    free = generate(model, PROMPT, 20)
    end = free[4]
    expected = free[: free.index(end) + 1]
    for cache in (None, GrowingCache(2)):
        for stop in (end, {end}, (end, 96)):
            seen.clear()
            assert generate(model, PROMPT, 20, cache, eos_token_id=stop, on_token=seen.append) == expected
            assert seen == expected
            cache = None if cache is None else GrowingCache(2)


def test_a_cache_can_be_continued():
    model, cache = tiny_llama(), GrowingCache(2)
    first = generate(model, PROMPT, 4, cache)
    more = generate(model, [first[-1], 11], 4, cache)  # the last token was returned but not stored
    assert more == generate(model, [*PROMPT, *first, 11], 4)


def test_nothing_asked_for_is_nothing_done():
    cache = GrowingCache(2)
    assert generate(tiny_llama(), PROMPT, 0, cache) == generate_cached(tiny_llama(), PROMPT, 0, cache) == []
    assert cache.num_tokens == 0


@pytest.mark.parametrize("write", [generate, generate_cached])
def test_what_cannot_be_done_is_refused_before_anything_runs(write):
    model, cache = tiny_llama(), GrowingCache(2)
    with pytest.raises(ValueError, match="prompt is empty"):
        write(model, [], 5, cache)
    with pytest.raises(ValueError, match="max_new_tokens must be 0 or more, not -1"):
        write(model, PROMPT, -1, cache)
    with pytest.raises(ValueError, match="0 stored . 3 prompt . 4095 new tokens do not fit the model's 4096 positions"):
        write(model, PROMPT, 4095, cache)
    assert cache.num_tokens == 0


def test_a_cache_that_holds_nothing_is_fed_everything():
    model = tiny_llama()
    assert torch.equal(model(PROMPT, NoCache()), model(PROMPT))
    for nothing in (NoCache(), Contiguous(NoCache())):
        assert generate(model, PROMPT, 8, nothing) == generate(model, PROMPT, 8)

import pytest
import torch

from pagedlab.attention import attend, attention
from pagedlab.cache.growing import GrowingCache
from pagedlab.cache.protocol import Contiguous, KVCache, NoCache


def random_step(num_new, seed):
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(heads, num_new, 8, generator=generator) for heads in (6, 2, 2))


def test_no_cache_gives_back_what_it_is_given():
    cache, (_, keys, values) = NoCache(), random_step(5, 0)
    assert isinstance(cache, KVCache)
    assert cache.append(0, keys, values) == (keys, values)
    assert cache.num_tokens == 0


@pytest.mark.parametrize("one_query", [None, attend])
def test_contiguous_stores_and_attends(one_query):
    cache, plain = Contiguous(GrowingCache(1), one_query), GrowingCache(1)
    assert isinstance(cache, KVCache)
    for seed, num_new in enumerate([5, 1, 1, 3, 1]):
        q, keys, values = random_step(num_new, seed)
        out = cache.attend(0, q, keys, values)
        torch.testing.assert_close(out, attention(q, *plain.append(0, keys, values)), atol=2e-6, rtol=1e-5)
        assert cache.num_tokens == plain.num_tokens


def test_contiguous_uses_the_given_function_for_single_tokens_only():
    calls = []

    def counted(q, keys, values):
        calls.append((tuple(q.shape), keys.shape[1]))
        return attend(q, keys, values)

    cache = Contiguous(GrowingCache(1), counted)
    for num_new in (5, 1, 1):
        cache.attend(0, *random_step(num_new, num_new))
    assert calls == [((6, 8), 6), ((6, 8), 7)]


def test_contiguous_refuses_an_answer_of_another_shape():
    cache = Contiguous(GrowingCache(1), lambda q, keys, values: q[:1])
    with pytest.raises(ValueError, match=r"attend returned \(1, 8\).*\(6, 8\)"):
        cache.attend(0, *random_step(1, 0))

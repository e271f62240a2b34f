import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.cache.growing import GrowingCache
from pagedlab.cache.protocol import KVCache

HEADS, DIM = 2, 3


def random_kv(num_tokens, generator):
    return (torch.randn(HEADS, num_tokens, DIM, generator=generator) for _ in range(2))


@settings(max_examples=60, deadline=None)
@given(num_layers=st.integers(1, 4), steps=st.lists(st.integers(0, 6), max_size=8), seed=st.integers(0, 2**31))
def test_every_layer_holds_its_tokens_in_order(num_layers, steps, seed):
    generator = torch.Generator().manual_seed(seed)
    cache = GrowingCache(num_layers)
    expected = [(torch.empty(HEADS, 0, DIM), torch.empty(HEADS, 0, DIM)) for _ in range(num_layers)]
    assert cache.num_tokens == 0
    for num_new in steps:
        before = cache.num_tokens
        for layer in range(num_layers):
            assert cache.num_tokens == before  # counted when the last layer has them
            keys, values = random_kv(num_new, generator)
            expected[layer] = tuple(torch.cat(pair, 1) for pair in zip(expected[layer], (keys, values), strict=True))
            all_keys, all_values = cache.append(layer, keys, values)
            assert torch.equal(all_keys, expected[layer][0]) and torch.equal(all_values, expected[layer][1])
        assert cache.num_tokens == before + num_new
    for layer in range(num_layers if steps else 0):
        assert torch.equal(cache.keys[layer], expected[layer][0])
        assert torch.equal(cache.values[layer], expected[layer][1])


def test_it_is_a_cache():
    assert isinstance(GrowingCache(1), KVCache)


def test_a_refused_append_changes_nothing():
    generator = torch.Generator().manual_seed(0)
    cache = GrowingCache(2)
    for layer in range(2):
        cache.append(layer, *random_kv(4, generator))
    held = [tensor.clone() for tensor in (*cache.keys, *cache.values)]
    keys, values = random_kv(1, generator)
    refused = [
        (0, keys, values[:, :, :2], ValueError),
        (0, keys[:1], values[:1], RuntimeError),  # another number of heads: torch.cat says so
        (2, keys, values, IndexError),
        (-1, keys, values, IndexError),
    ]
    for layer, wrong_keys, wrong_values, error in refused:
        with pytest.raises(error):
            cache.append(layer, wrong_keys, wrong_values)
        assert all(map(torch.equal, held, (*cache.keys, *cache.values)))
        assert cache.num_tokens == 4


def test_it_needs_a_layer():
    with pytest.raises(ValueError, match="at least 1 layer, not 0"):
        GrowingCache(0)

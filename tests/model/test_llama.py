"""The decoder against transformers', on random models of many shapes; then what it refuses."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.attention import attend
from pagedlab.cache.allocator import BlockAllocator
from pagedlab.cache.growing import GrowingCache
from pagedlab.cache.paged import PagedKVCache, PagedSequence
from pagedlab.cache.protocol import Contiguous, NoCache
from pagedlab.model.load import load
from pagedlab.model.tiny import tiny_llama

LLAMA_3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
SHAPES = {
    "groups of 3": {},
    "groups of 1": {"num_key_value_heads": 6},
    "groups of 4": {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 6},
    "one kv head": {"num_key_value_heads": 1},
    "tied": {"tie_word_embeddings": True},
    "wide heads": {"head_dim": 20},
    "one layer": {"num_hidden_layers": 1},
    "other theta and eps": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        "rms_norm_eps": 0.1,
    },
    "linear rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    "llama 3 rope": {"head_dim": 32, "rope_parameters": LLAMA_3_ROPE},
}
IDS = torch.randint(0, 300, (50,), generator=torch.Generator().manual_seed(0))


def transformers_logits(model, ids):
    with torch.no_grad():
        return model(torch.as_tensor(ids)[None]).logits[0]


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_logits_are_transformers(tiny_llamas, shape, fast):
    theirs = tiny_llamas.make(**SHAPES[shape])
    ours = load(tiny_llamas.directory(theirs), fast=fast).model
    torch.testing.assert_close(ours(IDS), transformers_logits(theirs, IDS), atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_close_to_single(tiny_llamas, dtype):
    theirs = tiny_llamas.make(initializer_range=0.1)
    ours = load(tiny_llamas.directory(theirs), dtype=dtype).model
    logits = ours(IDS, GrowingCache(2))
    assert logits.dtype == ours.dtype == dtype
    exact = transformers_logits(theirs, IDS)
    assert (logits.float() - exact).abs().max() < 0.02 * exact.abs().max()


class Watching(GrowingCache):
    """Attends by itself, as a paged cache will, and notes what it is asked."""

    def __init__(self, num_layers):
        super().__init__(num_layers)
        self.asked = []

    def attend(self, layer, q, keys, values):
        self.asked.append((layer, tuple(q.shape), tuple(keys.shape)))
        return Contiguous(self).attend(layer, q, keys, values)


CACHES = {
    "growing": GrowingCache,
    "contiguous": lambda layers: Contiguous(GrowingCache(layers)),
    "contiguous with attend": lambda layers: Contiguous(GrowingCache(layers), attend),
    "attends itself": Watching,
}


@settings(max_examples=25, deadline=None)
@given(
    kind=st.sampled_from(sorted(CACHES)),
    ids=st.lists(st.integers(0, 96), min_size=1, max_size=24),
    seed=st.integers(0, 50),
    data=st.data(),
)
def test_any_cache_and_any_chunks_give_the_logits_of_the_whole(kind, ids, seed, data):
    model = tiny_llama(seed)
    whole = model(ids)
    cache, pieces, start = CACHES[kind](2), [], 0
    while start < len(ids):
        size = data.draw(st.integers(1, len(ids) - start), label="chunk")
        pieces.append(model(ids[start : start + size], cache))
        start += size
        assert cache.num_tokens == start
    torch.testing.assert_close(torch.cat(pieces), whole, atol=1e-4, rtol=1e-4)


def test_layers_are_called_in_order_with_heads_first():
    model, cache = tiny_llama(), Watching(2)
    model([1, 2, 3], cache)
    model([4], cache)
    assert cache.asked == [
        (0, (6, 3, 8), (2, 3, 8)),
        (1, (6, 3, 8), (2, 3, 8)),
        (0, (6, 1, 8), (2, 1, 8)),
        (1, (6, 1, 8), (2, 1, 8)),
    ]


def test_logits_to_keep():
    model = tiny_llama()
    whole = model([5, 6, 7, 8])
    assert whole.shape == (4, 97)
    for keep in (1, 3, 4, 9):
        torch.testing.assert_close(model([5, 6, 7, 8], logits_to_keep=keep), whole[-keep:])


def test_token_ids_may_be_a_list_or_a_tensor():
    model = tiny_llama()
    for ids in ([3, 4], (3, 4), torch.tensor([3, 4]), torch.tensor([3, 4], dtype=torch.int32)):
        assert torch.equal(model(ids), model([3, 4]))


def test_tokens_of_two_sequences_can_be_packed_into_one_pass():
    model = tiny_llama()
    first, second = [1, 2, 3], [9, 8, 7, 6, 5]
    caches = GrowingCache(2), GrowingCache(2)

    def attend_each(layer, q, k, v):
        parts = []
        for cache, span in zip(caches, (slice(0, 3), slice(3, 8)), strict=True):
            parts.append(Contiguous(cache).attend(layer, q[:, span], k[:, span], v[:, span]))
        return torch.cat(parts, dim=1)

    positions = torch.tensor([0, 1, 2, 0, 1, 2, 3, 4])
    hidden = model.forward_tokens(torch.tensor(first + second), positions, attend_each)
    apart = torch.cat([model(first), model(second)])
    torch.testing.assert_close(model.logits(hidden), apart, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "ids, message",
    [
        ([], "at least one"),
        ([97], "token id 97 is outside the vocabulary: ids are 0 to 96"),
        ([3, -1], "token id -1"),
        ([[1, 2]], "one list of each"),
        ([1.5], "integers"),
        ([True], "integers"),
    ],
)
def test_wrong_token_ids_are_refused(ids, message):
    cache = GrowingCache(2)
    with pytest.raises(ValueError, match=message):
        tiny_llama()(ids, cache)
    assert cache.num_tokens == 0


def test_positions_end_where_the_model_says():
    model, cache = tiny_llama(), GrowingCache(2)
    model([1] * 4095, cache, logits_to_keep=1)
    model([1], cache)
    with pytest.raises(ValueError, match="position 4096 is outside the 4096 positions"):
        model([1], cache)
    assert cache.num_tokens == 4096
    with pytest.raises(ValueError, match="logits_to_keep"):
        model([1], logits_to_keep=-1)


def test_a_cache_that_loses_or_doubles_tokens_is_noticed():
    class Forgets(GrowingCache):
        def append(self, layer, keys, values):
            all_keys, all_values = super().append(layer, keys, values)
            return all_keys[:, -1:], all_values[:, -1:]

    cache = Forgets(2)
    with pytest.raises(ValueError, match="held 0 tokens and was given 2 more, but layer 0 gave back 1, not 2"):
        tiny_llama()([1, 2], cache)

    torn = GrowingCache(2)  # as after an interrupt between two layers
    torn.append(0, torch.zeros(2, 3, 8), torch.zeros(2, 3, 8))
    with pytest.raises(ValueError, match="held 0 tokens and was given 1 more, but layer 0 gave back 4, not 1"):
        tiny_llama()([1], torn)


def test_a_cache_made_for_another_number_of_layers_is_refused():
    pool = PagedKVCache(3, 4, 2, 4, 8)
    allocator = BlockAllocator(4)
    with pytest.raises(ValueError, match="the model has 2 layers, but the cache was made for 3"):
        tiny_llama()([1, 2], PagedSequence(pool, allocator))
    assert allocator.num_free == 4


def test_attention_of_another_shape_is_noticed():
    model = tiny_llama()
    with pytest.raises(ValueError, match=r"attend returned \(6, 1, 8\) for queries of \(6, 2, 8\)"):
        model.forward_tokens(torch.tensor([1, 2]), torch.tensor([0, 1]), lambda layer, q, k, v: q[:, :1])


def test_no_gradients_are_kept():
    assert not tiny_llama()([1, 2], NoCache()).requires_grad


def test_tiny_llama_is_the_same_each_time_and_leaves_torchs_seed_alone():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    model = tiny_llama(seed=3, num_heads=4, num_kv_heads=1, head_dim=6, vocab_size=50, num_layers=3)
    assert torch.equal(torch.rand(3), expected)
    again = tiny_llama(seed=3, num_heads=4, num_kv_heads=1, head_dim=6, vocab_size=50, num_layers=3)
    assert torch.equal(model([1, 2]), again([1, 2]))
    assert not torch.equal(model([1, 2]), tiny_llama(4, 3, 4, 1, 6, 50)([1, 2]))
    assert len(model.layers) == 3 and model([1]).shape == (1, 50)

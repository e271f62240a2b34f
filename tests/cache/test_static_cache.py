"""The static cache against a model of it that is obviously right: one list of tensors per row and layer."""

import pickle

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from pagedlab.attention import attention
from pagedlab.cache.growing import GrowingCache
from pagedlab.cache.protocol import Contiguous, KVCache
from pagedlab.cache.static import CacheFullError, CacheSizeError, StaticCache
from pagedlab.errors import PagedLabError
from pagedlab.model.generate import generate, generate_cached
from pagedlab.model.tiny import tiny_llama


def new_tokens(num_new, num_kv_heads=2, head_dim=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (num_kv_heads, num_new, head_dim)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


def append_step(cache, row, num_new, seed=0):
    """One step of a model: every layer, in order. Returns what went in."""
    tensors = [
        new_tokens(num_new, cache.num_kv_heads, cache.head_dim, seed + layer) for layer in range(cache.num_layers)
    ]
    for layer, (keys, values) in enumerate(tensors):
        cache.append(layer, row, keys, values)
    return tensors


class AgainstLists(RuleBasedStateMachine):
    """Appends, overflows and frees in any order and any mixture of rows, also with steps left open half-way."""

    @initialize(
        num_layers=st.integers(1, 3),
        batch_size=st.integers(1, 3),
        num_kv_heads=st.integers(1, 2),
        max_len=st.integers(1, 9),
        head_dim=st.sampled_from([2, 4]),
    )
    def make(self, num_layers, batch_size, num_kv_heads, max_len, head_dim):
        self.cache = StaticCache(num_layers, batch_size, num_kv_heads, max_len, head_dim)
        self.cache.keys.fill_(float("nan"))  # whoever reads a slot before it was written will show it
        self.cache.values.fill_(float("nan"))
        self.stored = [[[] for _ in range(num_layers)] for _ in range(batch_size)]  # [row][layer] -> [(keys, values)]
        self.open = [None] * batch_size  # (next layer, num_new) of a step that has begun
        self.seed = 0

    def length(self, row):
        return sum(keys.shape[1] for keys, _ in self.stored[row][-1])

    @rule(data=st.data())
    def append_to_one_layer(self, data):
        row = data.draw(st.integers(0, self.cache.batch_size - 1), label="row")
        layer, num_new = self.open[row] or (0, data.draw(st.integers(0, self.cache.max_len + 1), label="num_new"))
        self.seed += 1
        keys, values = new_tokens(num_new, self.cache.num_kv_heads, self.cache.head_dim, self.seed)
        if self.length(row) + num_new > self.cache.max_len:
            before = self.cache.keys.clone(), self.cache.values.clone()
            with pytest.raises(CacheFullError) as caught:
                self.cache.append(layer, row, keys, values)
            assert layer == 0, "a full row has to be refused before any layer is written"
            error = caught.value
            expected = (row, self.length(row), num_new, self.cache.max_len)
            assert (error.row, error.stored, error.asked, error.max_len) == expected
            assert torch.equal(before[0].nan_to_num(), self.cache.keys.nan_to_num())
            assert torch.equal(before[1].nan_to_num(), self.cache.values.nan_to_num())
            return
        result = self.cache.append(layer, row, keys, values)
        self.stored[row][layer].append((keys, values))
        self.open[row] = (layer + 1, num_new) if layer + 1 < self.cache.num_layers else None
        for got, parts in zip(result, zip(*self.stored[row][layer], strict=True), strict=True):
            assert torch.equal(got, torch.cat(parts, dim=1))

    @rule(data=st.data())
    def append_to_the_wrong_layer(self, data):
        row = data.draw(st.integers(0, self.cache.batch_size - 1))
        layer = data.draw(st.integers(-1, self.cache.num_layers))
        if layer == (self.open[row] or (0,))[0]:
            return
        with pytest.raises((ValueError, IndexError), match=str(layer)):
            self.cache.append(layer, row, *new_tokens(1, self.cache.num_kv_heads, self.cache.head_dim))

    @rule(data=st.data())
    def free(self, data):
        row = data.draw(st.integers(0, self.cache.batch_size - 1))
        self.cache.free(row)
        self.stored[row] = [[] for _ in range(self.cache.num_layers)]
        self.open[row] = None

    @invariant()
    def counts_agree(self):
        for row in range(self.cache.batch_size):
            assert self.cache.num_tokens(row) == self.cache.row(row).num_tokens == self.length(row)


TestAgainstLists = AgainstLists.TestCase
TestAgainstLists.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_everything_is_reserved_up_front():
    cache = StaticCache(num_layers=3, batch_size=2, num_kv_heads=4, max_len=10, head_dim=8, dtype=torch.float16)
    assert cache.keys[0].shape == cache.values[2].shape == (2, 4, 10, 8)
    assert cache.keys[0].dtype == torch.float16
    assert cache.nbytes == 2 * 3 * 2 * 4 * 10 * 8 * 2
    address = cache.keys.data_ptr()
    keys = torch.ones(4, 10, 8, dtype=torch.float16)
    for layer in range(3):
        cache.append(layer, 0, keys, keys)
    assert cache.keys.data_ptr() == address
    assert cache.nbytes == 2 * 3 * 2 * 4 * 10 * 8 * 2


def test_results_are_views_of_the_reserved_memory():
    cache = StaticCache(num_layers=1, batch_size=2, num_kv_heads=2, max_len=6, head_dim=4)
    keys, values = new_tokens(3)
    all_keys, all_values = cache.append(0, 1, keys, values)
    assert all_keys.untyped_storage().data_ptr() == cache.keys[0].untyped_storage().data_ptr()
    assert all_values.untyped_storage().data_ptr() == cache.values[0].untyped_storage().data_ptr()
    all_keys[0, 0, 0] = 42
    assert cache.keys[0][1, 0, 0, 0] == 42
    keys[0, 1, 0] = 43  # what was put in was copied: the caller's tensor is the caller's
    assert cache.keys[0][1, 0, 1, 0] != 43


def test_a_full_row_is_refused_at_layer_0_and_the_others_go_on():
    cache = StaticCache(num_layers=2, batch_size=2, num_kv_heads=2, max_len=4, head_dim=4)
    append_step(cache, 0, 3)
    before = cache.keys.clone()
    with pytest.raises(
        CacheFullError, match=r"row 0 holds 3 of at most 4 tokens: there is room for 1 more, not 2"
    ) as caught:
        cache.append(0, 0, *new_tokens(2))
    assert "max_len >= 5" in str(caught.value)
    assert isinstance(caught.value, PagedLabError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    assert torch.equal(cache.keys, before)
    append_step(cache, 0, 1)  # the refusal left no step open
    append_step(cache, 1, 4)
    assert (cache.num_tokens(0), cache.num_tokens(1)) == (4, 4)


def test_tokens_count_once_every_layer_has_them():
    cache = StaticCache(num_layers=2, batch_size=1, num_kv_heads=2, max_len=4, head_dim=4)
    cache.append(0, 0, *new_tokens(2))
    assert cache.num_tokens(0) == 0
    cache.append(1, 0, *new_tokens(2))
    assert cache.num_tokens(0) == 2


def test_a_step_has_the_same_tokens_in_every_layer():
    cache = StaticCache(num_layers=2, batch_size=1, num_kv_heads=2, max_len=4, head_dim=4)
    cache.append(0, 0, *new_tokens(2))
    with pytest.raises(ValueError, match="layer 1 got 1 new tokens, but layer 0 got 2"):
        cache.append(1, 0, *new_tokens(1))
    with pytest.raises(ValueError, match="layer 0 came where layer 1 was due"):
        cache.append(0, 0, *new_tokens(2))
    cache.append(1, 0, *new_tokens(2))
    assert cache.num_tokens(0) == 2


def test_a_freed_row_starts_at_0_and_shows_nothing_old():
    cache = StaticCache(num_layers=2, batch_size=2, num_kv_heads=2, max_len=4, head_dim=4)
    append_step(cache, 0, 4)
    append_step(cache, 1, 2)
    cache.append(0, 1, *new_tokens(1))  # a step cut short
    cache.free(0)
    cache.free(1)
    for row in (0, 1):
        assert cache.num_tokens(row) == 0
        keys, values = new_tokens(1, seed=9)
        all_keys, all_values = cache.append(0, row, keys, values)
        assert torch.equal(all_keys, keys)
        assert torch.equal(all_values, values)


@pytest.mark.parametrize("row", [-1, 2, 7])
def test_rows_out_of_range(row):
    cache = StaticCache(num_layers=1, batch_size=2, num_kv_heads=2, max_len=4, head_dim=4)
    for call in (
        lambda: cache.append(0, row, *new_tokens(1)),
        lambda: cache.num_tokens(row),
        lambda: cache.free(row),
        lambda: cache.row(row),
    ):
        with pytest.raises(IndexError, match=f"row {row} does not exist: the cache has rows 0 to 1"):
            call()


@pytest.mark.parametrize(
    ("keys_shape", "values_shape", "message"),
    [
        ((3, 1, 4), (3, 1, 4), r"keys have shape \(3, 1, 4\).*\[2, 1, 4\]"),
        ((2, 1, 5), (2, 1, 5), r"keys have shape \(2, 1, 5\).*\[2, 1, 4\]"),
        ((2, 4), (2, 4), r"keys have shape \(2, 4\).*\[2, num_new, 4\]"),
        ((1, 2, 1, 4), (1, 2, 1, 4), r"keys have shape \(1, 2, 1, 4\)"),
        ((2, 2, 4), (2, 1, 4), r"values have shape \(2, 1, 4\).*\[2, 2, 4\]"),
    ],
)
def test_wrong_shapes(keys_shape, values_shape, message):
    cache = StaticCache(num_layers=1, batch_size=1, num_kv_heads=2, max_len=4, head_dim=4)
    with pytest.raises(ValueError, match=message):
        cache.append(0, 0, torch.ones(keys_shape), torch.ones(values_shape))
    assert cache.num_tokens(0) == 0
    assert not cache.keys.any()


def test_wrong_dtype():
    cache = StaticCache(num_layers=1, batch_size=1, num_kv_heads=2, max_len=4, head_dim=4, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"keys are torch\.float32.*dtype=torch\.bfloat16"):
        cache.append(0, 0, *new_tokens(1))
    keys, values = new_tokens(1)
    with pytest.raises(ValueError, match=r"values are torch\.float32"):
        cache.append(0, 0, keys.bfloat16(), values)
    assert cache.num_tokens(0) == 0
    assert not cache.keys.any()


@pytest.mark.parametrize("name", ["num_layers", "batch_size", "num_kv_heads", "max_len", "head_dim"])
def test_sizes_below_1(name):
    sizes = {"num_layers": 1, "batch_size": 1, "num_kv_heads": 1, "max_len": 1, "head_dim": 1, name: 0}
    with pytest.raises(ValueError, match=f"{name} is 0"):
        StaticCache(**sizes)


@pytest.mark.parametrize("name", ["num_layers", "batch_size", "num_kv_heads", "max_len", "head_dim"])
@pytest.mark.parametrize("size", [True, 2.0, "2", None])
def test_sizes_that_are_no_whole_numbers(name, size):
    sizes = dict(num_layers=1, batch_size=1, num_kv_heads=1, max_len=1, head_dim=1)
    with pytest.raises(TypeError, match=f"{name} must be a whole number"):
        StaticCache(**{**sizes, name: size})
    assert StaticCache(**sizes).nbytes == 8


@pytest.mark.parametrize("max_len", [10**15, 2**62, 2**64])
def test_a_cache_there_is_no_memory_for(max_len):
    with pytest.raises(CacheSizeError, match=rf"no memory for 2 rows of {max_len:,} tokens, {192 * max_len:,} bytes"):
        StaticCache(num_layers=1, batch_size=2, num_kv_heads=3, max_len=max_len, head_dim=4)


def test_a_type_that_is_none():
    with pytest.raises(TypeError, match="dtype is 'float32'; expected torch.float32"):
        StaticCache(1, 1, 1, 1, 1, dtype="float32")


def test_gradients_are_not_kept():
    cache = StaticCache(num_layers=1, batch_size=1, num_kv_heads=2, max_len=4, head_dim=4)
    keys, values = (tensor.requires_grad_() for tensor in new_tokens(2))
    all_keys, _ = cache.append(0, 0, keys, values)
    assert not all_keys.requires_grad
    assert not cache.keys.requires_grad


def test_unused_slots_never_reach_a_result():
    cache = StaticCache(num_layers=1, batch_size=3, num_kv_heads=2, max_len=8, head_dim=4)
    cache.keys.fill_(float("nan"))
    cache.values.fill_(float("nan"))
    keys, values = new_tokens(5)
    all_keys, all_values = cache.append(0, 1, keys, values)
    q = torch.randn(6, 5, 4, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(attention(q, all_keys, all_values), attention(q, keys, values))


def test_rows_are_caches_the_model_can_use():
    row = StaticCache(num_layers=1, batch_size=1, num_kv_heads=2, max_len=4, head_dim=4).row(0)
    assert isinstance(row, KVCache)


def cache_for(model, batch_size, max_len):
    config = model.config
    cache = StaticCache(config.num_hidden_layers, batch_size, config.num_key_value_heads, max_len, config.head_dim)
    cache.keys.fill_(float("nan"))
    cache.values.fill_(float("nan"))
    return cache


def test_the_model_writes_the_same_tokens_as_with_a_growing_cache():
    model = tiny_llama()
    layers = model.config.num_hidden_layers
    cache = cache_for(model, batch_size=3, max_len=40)
    for row, prompt in ((0, [1, 2, 3]), (2, [5]), (1, list(range(20)))):
        expected = generate(model, prompt, 20, cache=GrowingCache(layers))
        assert len(set(expected)) > 3, "a model that repeats itself would prove little"
        assert generate(model, prompt, 20, cache=cache.row(row)) == expected
        assert cache.num_tokens(row) == len(prompt) + 19
    cache.free(2)
    assert generate_cached(model, [7, 8], 20, Contiguous(cache.row(2))) == generate(model, [7, 8], 20)


def test_the_model_stops_at_max_len_and_the_row_stays_whole():
    model = tiny_llama()
    cache = cache_for(model, batch_size=1, max_len=6)
    row = cache.row(0)
    with pytest.raises(CacheFullError, match="row 0 holds 6 of at most 6 tokens"):
        generate(model, [1, 2, 3, 4], 10, cache=row)
    assert row.num_tokens == 6
    cache.free(0)
    assert generate(model, [1, 2, 3], 4, cache=row) == generate(model, [1, 2, 3], 4)

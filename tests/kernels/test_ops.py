"""The operations on paged keys and values, by every backend, against plain softmax attention in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from pagedlab.cache.paged import PagedKVCache
from pagedlab.kernels import ops
from tests.kernels.pages import available_backends, dense, dense_decode, make_pages, random_queries

DTYPES = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 1.5e-3}  # and how far off a result may be

every_backend = pytest.mark.parametrize("backend", available_backends())

EXAMPLES = {"torch": 60, "cpu": 60, "triton": 12}  # an interpreted program takes milliseconds

layouts = st.fixed_dictionaries(
    {
        "num_kv_heads": st.integers(1, 3),
        "block_size": st.sampled_from([1, 2, 3, 16, 130]),
        "head_dim": st.sampled_from([1, 3, 8, 64, 80]),
        "dtype": st.sampled_from(list(DTYPES)),
        "interleaved": st.booleans(),
        "token_major": st.booleans(),
        "extra_columns": st.integers(0, 3),
        "padding": st.sampled_from([-1, 0, 10**6]),
        "seed": st.integers(0, 10**6),
    }
)


@every_backend
def test_paged_decode(backend):
    @settings(max_examples=EXAMPLES[backend], deadline=None)
    @given(
        st.lists(st.integers(0, 40) | st.integers(125, 135), max_size=4), st.sampled_from([1, 2, 3, 5, 7, 24]), layouts
    )
    def check(seq_lens, group_size, layout):
        pages = make_pages(seq_lens, **layout)
        q = random_queries(
            len(seq_lens), layout["num_kv_heads"] * group_size, layout["head_dim"], dtype=layout["dtype"]
        )
        out = ops.paged_decode(q, *pages.attention_args(), backend=backend)
        assert (out.shape, out.dtype) == (q.shape, q.dtype)
        torch.testing.assert_close(out.double(), dense_decode(q, pages), atol=DTYPES[q.dtype], rtol=1e-2)

    check()


@every_backend
def test_paged_prefill(backend):
    """Each sequence is (new tokens, tokens before them)."""

    @settings(max_examples=EXAMPLES[backend], deadline=None)
    @given(
        st.lists(st.tuples(st.integers(0, 12), st.integers(0, 30) | st.integers(120, 135)), max_size=3),
        st.sampled_from([1, 3, 4]),
        layouts,
    )
    def check(sequences, group_size, layout):
        pages = make_pages([new + before for new, before in sequences], **layout)
        starts = torch.tensor([0, *(new for new, _ in sequences)]).cumsum(0)
        num_heads = layout["num_kv_heads"] * group_size
        q = random_queries(int(starts[-1]), num_heads, layout["head_dim"], dtype=layout["dtype"])
        out = ops.paged_prefill(q, *pages.attention_args(), starts, backend=backend)
        assert (out.shape, out.dtype) == (q.shape, q.dtype)
        for i, (start, end) in enumerate(zip(starts[:-1], starts[1:], strict=True)):
            right = dense(q[start:end].transpose(0, 1), pages.keys[i], pages.values[i]).transpose(0, 1)
            torch.testing.assert_close(out[start:end].double(), right, atol=DTYPES[q.dtype], rtol=1e-2)

    check()


@every_backend
def test_decode_is_prefill_of_one_token(backend):
    pages = make_pages([1, 9, 200], block_size=3)
    q = random_queries(3, 6, 8)
    decoded = ops.paged_decode(q, *pages.attention_args(), backend=backend)
    prefilled = ops.paged_prefill(q, *pages.attention_args(), [0, 1, 2, 3], backend=backend)
    torch.testing.assert_close(decoded, prefilled, atol=1e-6, rtol=1e-5)


@every_backend
def test_write_then_gather(backend):
    """What is written through slots comes back through the table, and nothing else is touched."""

    @settings(max_examples=EXAMPLES[backend], deadline=None)
    @given(st.lists(st.integers(0, 20), max_size=4), layouts)
    def check(seq_lens, layout):
        pages = make_pages(seq_lens, **layout)
        block_size, dtype = layout["block_size"], layout["dtype"]
        empty = make_pages(seq_lens, **layout)
        for cache in (empty.key_cache, empty.value_cache):
            cache.fill_(torch.nan)
        for i, length in enumerate(seq_lens):
            table = pages.block_tables[i].tolist()
            slots = [table[p // block_size] * block_size + p % block_size for p in range(length)]
            written = pages.keys[i].transpose(0, 1), pages.values[i].transpose(0, 1)
            # Skipped tokens in between: they hold numbers that must not turn up anywhere.
            padded_slots = [slot for pair in zip(slots, [-1] * length, strict=True) for slot in pair]
            new = [torch.stack([half, torch.full_like(half, 77)], 1).flatten(0, 1) for half in written]
            ops.kv_write(*new, empty.key_cache, empty.value_cache, padded_slots, backend=backend)
            keys, values = ops.gather_kv(empty.key_cache, empty.value_cache, table, length, backend=backend)
            assert torch.equal(keys, pages.keys[i]) and torch.equal(values, pages.values[i])
            assert keys.dtype == values.dtype == dtype
        torch.testing.assert_close(empty.key_cache, pages.key_cache, rtol=0, atol=0, equal_nan=True)
        torch.testing.assert_close(empty.value_cache, pages.value_cache, rtol=0, atol=0, equal_nan=True)

    check()


@every_backend
def test_copy_blocks(backend):
    pages = make_pages([9, 5], interleaved=True)
    before = pages.key_cache.clone(), pages.value_cache.clone()
    source, other = pages.block_tables[0, :2].tolist()
    free = [block for block in range(len(before[0])) if block not in pages.block_tables.flatten().tolist()]
    ops.copy_blocks(
        pages.key_cache, pages.value_cache, [(source, free[0]), (source, free[1]), (other, free[2])], backend=backend
    )
    for cache, old in zip((pages.key_cache, pages.value_cache), before, strict=True):
        expected = old.clone()
        expected[free[:2]], expected[free[2]] = old[source], old[other]
        torch.testing.assert_close(cache, expected, rtol=0, atol=0, equal_nan=True)
    ops.copy_blocks(pages.key_cache, pages.value_cache, [], backend=backend)


@every_backend
def test_a_scale_of_ones_own(backend):
    pages, q = make_pages([13, 2]), random_queries(2, 4, 8)
    for scale in (0.0, 0.7):
        out = ops.paged_decode(q, *pages.attention_args(), scale=scale, backend=backend)
        torch.testing.assert_close(out.double(), dense_decode(q, pages, scale), atol=2e-6, rtol=1e-4)


@every_backend
def test_lists_do_as_well_as_tensors(backend):
    pages, q = make_pages([5, 9]), random_queries(2, 2, 8)
    out = ops.paged_decode(q, pages.key_cache, pages.value_cache, pages.block_tables.tolist(), [5, 9], backend=backend)
    assert torch.equal(out, ops.paged_decode(q, *pages.attention_args(), backend=backend))


class LargestTensor(TorchDispatchMode):
    """Remembers the size of the largest tensor made while it is on."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, (list, tuple)) else [made]:
            if isinstance(tensor, torch.Tensor) and not func.is_view:
                self.numel = max(self.numel, tensor.numel())
        return made


def test_no_tensor_grows_with_the_context():
    """The whole sequence is never gathered: only the tile that is being looked at."""
    largest = []
    for length in (300, 3000):
        pages, q = make_pages([length], head_dim=16), random_queries(1, 2, 16)
        with LargestTensor() as watch:
            ops.paged_decode(q, *pages.attention_args(), backend="torch")
            ops.paged_prefill(q, *pages.attention_args(), [0, 1], backend="torch")
        largest.append(watch.numel)
    assert largest[0] == largest[1] < 300 * 2 * 16


WRONG_CALLS = {
    "slot past the end": (
        lambda w: w(slots=[0, 32]),
        IndexError,
        "token 1 has slot 32: 8 blocks of 4 have slots 0 to 31",
    ),
    "slot below -1": (lambda w: w(slots=[-2, 0]), IndexError, "token 0 has slot -2"),
    "one slot for two": (lambda w: w(slots=[5, 5]), ValueError, "tokens 0 and 1 both have slot 5"),
    "too few slots": (lambda w: w(slots=[5]), ValueError, "2 keys, 2 values and 1 slots"),
    "slots in rows": (lambda w: w(slots=[[0], [1]]), ValueError, "1 dimension"),
    "slots that are not whole": (lambda w: w(slots=[0.0, 1.0]), TypeError, "slot_mapping must be whole numbers"),
    "heads first": (lambda w: w(keys=torch.zeros(3, 2, 8)), ValueError, r"keys are \[3, 2, 8\].*\[num_tokens, 3, 8\]"),
    "another type": (lambda w: w(values=torch.zeros(2, 3, 8).half()), TypeError, "values are torch.float16"),
    "another device": (
        lambda w: w(keys=torch.zeros(2, 3, 8, device="meta")),
        ValueError,
        "keys is on meta, the cache on cpu",
    ),
    "caches apart": (
        lambda w: w(value_cache=torch.zeros(8, 3, 4, 8, device="meta")),
        ValueError,
        "value_cache is on meta",
    ),
    "unlike caches": (lambda w: w(value_cache=torch.zeros(8, 3, 4, 9)), ValueError, r"\[8, 3, 4, 8\].*\[8, 3, 4, 9\]"),
}


@pytest.mark.parametrize("name", WRONG_CALLS)
def test_a_write_that_fails_writes_nothing(name):
    call, error, words = WRONG_CALLS[name]
    key_cache, value_cache = torch.zeros(8, 3, 4, 8), torch.zeros(8, 3, 4, 8)

    def write(keys=None, values=None, slots=(0, 1), value_cache=value_cache):
        keys, values = (torch.ones(2, 3, 8) if new is None else new for new in (keys, values))
        ops.kv_write(keys, values, key_cache, value_cache, slots)

    with pytest.raises(error, match=words):
        call(write)
    assert not key_cache.any() and not value_cache.any()
    write()
    assert key_cache.any()


@pytest.mark.parametrize(
    ("pairs", "error", "words"),
    [
        ([(0, 1), (2, 8)], IndexError, "no block 8: the cache has blocks 0 to 7"),
        ([(0, 1), (-1, 2)], IndexError, "no block -1"),
        ([(0, 1), (2, 1)], ValueError, "block 1 is a destination twice"),
        ([(0, 1), (1, 2)], ValueError, "block 1 is both"),
        ([(3, 3)], ValueError, "block 3 is both"),
        ([(0.9, 1.2)], TypeError, "a block to copy must be a whole number, not 0.9"),
        ([(0, 1), (2, True)], TypeError, "whole number, not True"),
    ],
)
def test_a_copy_that_fails_copies_nothing(pairs, error, words):
    cache = torch.arange(8.0)[:, None, None, None].repeat(1, 1, 2, 2)
    before = cache.clone()
    with pytest.raises(error, match=words):
        ops.copy_blocks(cache, cache.clone(), pairs)
    assert torch.equal(cache, before)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (dict(seq_lens=[5, 99]), ValueError, "sequence 1 has 99 tokens, which is 25 blocks of 4, but its table has 5"),
        (dict(seq_lens=[5, 2**63 - 1]), ValueError, "sequence 1 has 9223372036854775807 tokens, .* its table has 5"),
        (dict(seq_lens=[5, 2**63]), ValueError, "seq_lens cannot be read as whole numbers"),
        (dict(seq_lens=[5, -1]), ValueError, "sequence 1 has -1 tokens"),
        (dict(seq_lens=[5, 9.0]), TypeError, "seq_lens must be whole numbers"),
        (dict(seq_lens=[5]), ValueError, "2 block tables for 1 sequence lengths"),
        (
            dict(block_tables=[[1, 2, 3], [1, -1, 3]]),
            IndexError,
            "sequence 1: entry 1 of its table is -1.*entries 0 to 2",
        ),
        (
            dict(block_tables=[[1, 9, 3], [1, 2, 3]]),
            IndexError,
            "sequence 0: entry 1 .* is 9, but the cache has .* 0 to 8",
        ),
        (dict(block_tables=[1, 2, 3]), ValueError, "block_tables has shape .*2 dimensions"),
        (dict(q=torch.zeros(2, 4, 7)), ValueError, "num_heads, 8"),
        (dict(q=torch.zeros(2, 3, 8)), ValueError, "3 query heads cannot share 2 kv heads"),
        (dict(q=torch.zeros(2, 4, 8, dtype=torch.bfloat16)), TypeError, "q is torch.bfloat16"),
        (dict(q=torch.zeros(2, 4, 8, device="meta")), ValueError, "q is on meta, the cache on cpu"),
        (dict(q=torch.zeros(3, 4, 8)), ValueError, "3 queries for 2 sequences"),
    ],
)
def test_decode_refuses_with_the_numbers(change, error, words):
    pages = make_pages([5, 9])
    names = ("key_cache", "value_cache", "block_tables", "seq_lens")
    arguments = dict(zip(names, pages.attention_args(), strict=True), q=torch.zeros(2, 4, 8))
    assert len(pages.key_cache) == 9
    ops.paged_decode(**arguments)
    with pytest.raises(error, match=words):
        ops.paged_decode(**{**arguments, **change})


@pytest.mark.parametrize(
    ("starts", "words"),
    [
        ([0, 2], "2 entries; 2 sequences need 3"),
        ([0, 3, 2], "must rise from 0 to 4"),
        ([1, 2, 4], "must rise from 0 to 4"),
        ([0, 4, 3, 4], "need 3"),
        ([0, 3, 4], "sequence 0 has 3 queries but only 2 positions"),
    ],
)
def test_prefill_refuses_with_the_numbers(starts, words):
    pages = make_pages([2, 9])
    with pytest.raises(ValueError, match=words):
        ops.paged_prefill(torch.zeros(4, 2, 8), *pages.attention_args(), starts)


def test_gather_refuses_a_table_that_is_too_short():
    pages = make_pages([9], extra_columns=0)
    with pytest.raises(ValueError, match="13 tokens, which is 4 blocks of 4, but its table has 3"):
        ops.gather_kv(pages.key_cache, pages.value_cache, pages.block_tables[0], 13)
    for huge in (2**63 - 1, 2**63):
        with pytest.raises(ValueError, match="9223372036854775807 tokens|num_tokens cannot be read"):
            ops.gather_kv(pages.key_cache, pages.value_cache, pages.block_tables[0], huge)
    keys, values = ops.gather_kv(pages.key_cache, pages.value_cache, [], 0)
    assert keys.shape == values.shape == (2, 0, 8)


@pytest.mark.parametrize("tables", [[], torch.zeros(0, 5, dtype=torch.int32), torch.zeros(0, 0, dtype=torch.int32)])
def test_a_batch_of_no_sequences(tables):
    pages = make_pages([3])
    caches = pages.key_cache, pages.value_cache
    assert ops.paged_decode(torch.zeros(0, 4, 8), *caches, tables, []).shape == (0, 4, 8)
    assert ops.paged_prefill(torch.zeros(0, 4, 8), *caches, tables, [], [0]).shape == (0, 4, 8)


def test_a_type_that_attention_cannot_sum_is_refused_at_once():
    cache = torch.zeros(2, 1, 4, 8).to(torch.float8_e5m2)
    for call in (
        lambda: ops.gather_kv(cache, cache, [0], 1),
        lambda: ops.copy_blocks(cache, cache, [(0, 1)]),
        lambda: PagedKVCache(1, 2, 1, 4, 8, dtype=torch.float8_e5m2),
    ):
        with pytest.raises(TypeError, match="float8_e5m2.*torch.float32"):
            call()


def test_an_unknown_backend():
    pages = make_pages([3])
    with pytest.raises(ValueError, match="'cuda' is not one of 'auto', 'torch', 'cpu', 'triton'"):
        ops.gather_kv(pages.key_cache, pages.value_cache, pages.block_tables[0], 3, backend="cuda")
    assert ops.gather_kv(pages.key_cache, pages.value_cache, pages.block_tables[0], 3, backend="torch")

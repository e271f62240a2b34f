"""Prefill in Triton, by the interpreter, against plain softmax attention in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from pagedlab.gpu import mode  # noqa: E402

if not mode.is_interpreting():
    pytest.skip("these tests interpret; `pytest -m gpu` runs those that compile", allow_module_level=True)

from pagedlab.gpu.strict import strict  # noqa: E402
from pagedlab.kernels import prefill  # noqa: E402
from pagedlab.kernels.launch import LaunchError  # noqa: E402
from tests.kernels.pages import dense, make_pages, random_queries  # noqa: E402

TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float16: 1.5e-3}


def run(q, pages, starts, **choices):
    """The kernel on a result that is NaN before, so that a row nobody writes is seen."""
    grid, arguments, options = prefill.prefill_launch(q, *pages.attention_args(), starts, **choices)
    arguments["out"].fill_(torch.nan)
    prefill.launch(prefill.paged_prefill_kernel, grid, arguments, **options)
    return arguments["out"].to(q.dtype)


def starts_of(num_new):
    return torch.tensor([0, *num_new]).cumsum(0)


@pytest.mark.parametrize("group_size", [1, 3, 4, 5, 7, 12, 17, 24, 65])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_any_group(group_size, dtype):
    """Sequences that need several tiles of rows, one, and none; 65 heads are more than a program has rows."""
    num_new, before = [23, 0, 1, 6], [5, 9, 70, 0]
    num_kv_heads = 2 if group_size < 8 else 1
    pages = make_pages([new + old for new, old in zip(num_new, before, strict=True)], num_kv_heads, 3, 20, dtype)
    starts = starts_of(num_new)
    q = random_queries(30, num_kv_heads * group_size, 20, dtype=dtype)
    out = run(q, pages, starts)
    for i in range(len(num_new)):
        rows = slice(starts[i], starts[i + 1])
        right = dense(q[rows].transpose(0, 1), pages.keys[i], pages.values[i]).transpose(0, 1)
        torch.testing.assert_close(out[rows].double(), right, atol=TOLERANCE[dtype], rtol=1e-2)


def test_keys_and_values_may_lie_differently():
    pages = make_pages([40, 7], 2, 4, 16)
    pages.value_cache = pages.value_cache.permute(2, 1, 0, 3).contiguous().permute(2, 1, 0, 3)
    assert pages.value_cache.stride() != pages.key_cache.stride()
    q = random_queries(24, 6, 16)
    out = run(q, pages, starts_of([20, 4]))
    for i, rows in enumerate((slice(0, 20), slice(20, 24))):
        right = dense(q[rows].transpose(0, 1), pages.keys[i], pages.values[i]).transpose(0, 1)
        torch.testing.assert_close(out[rows].double(), right, atol=2e-6, rtol=1e-3)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 80)), min_size=1, max_size=5),
    st.sampled_from([1, 2, 6, 9]),
    st.sampled_from([1, 4, 12, 48]),
    st.sampled_from([16, 32, 64]),
    st.sampled_from([16, 32, 128]),
)
def test_any_number_of_rows_and_tokens_at_a_time(sequences, group_size, block_size, rows, tile):
    """Also with sequences of no new tokens anywhere in the batch."""
    num_new = [new for new, _ in sequences]
    pages = make_pages([new + before for new, before in sequences], 1, block_size, 16)
    starts = starts_of(num_new)
    q = random_queries(int(starts[-1]), group_size, 16)
    out = run(q, pages, starts, rows=rows, tile=tile)
    for i in range(len(num_new)):
        here = slice(starts[i], starts[i + 1])
        right = dense(q[here].transpose(0, 1), pages.keys[i], pages.values[i]).transpose(0, 1)
        torch.testing.assert_close(out[here].double(), right, atol=2e-6, rtol=1e-3)


def test_a_prompt_in_chunks_is_the_prompt_at_once():
    """To the last bit, for tiles of keys begin at position 0 however a row got there.

    Chunks are whole tiles of rows here: numpy's products depend on a row's place in the matrix, a GPU's do not.
    """
    pages = make_pages([90], 2, 16, 64, torch.float16)
    q = random_queries(90, 6, 64, dtype=torch.float16)
    whole = run(q, pages, starts_of([90]))
    for start, end in ((0, 21), (21, 63), (63, 90)):
        seen = torch.tensor([end], dtype=torch.int32)
        arguments = pages.key_cache, pages.value_cache, pages.block_tables, seen, starts_of([end - start])
        assert torch.equal(prefill.paged_prefill(q[start:end], *arguments), whole[start:end])


def test_a_sequence_does_not_depend_on_its_neighbours_or_on_where_its_blocks_lie():
    num_new, lengths = [5, 3, 0, 21], [70, 3, 4, 21]
    pages = make_pages(lengths, 1, 4, 32, torch.float16)
    starts = starts_of(num_new)
    q = random_queries(29, 3, 32, dtype=torch.float16)
    together = run(q, pages, starts)
    moved = torch.randperm(len(pages.key_cache), generator=torch.Generator().manual_seed(3))
    caches = torch.empty_like(pages.key_cache), torch.empty_like(pages.value_cache)
    caches[0][moved], caches[1][moved] = pages.key_cache, pages.value_cache
    for i in (0, 1, 3):
        tables = torch.where(pages.block_tables[i : i + 1] < 0, 10**6, moved[pages.block_tables[i : i + 1].long()])
        here = slice(starts[i], starts[i + 1])
        alone = prefill.paged_prefill(q[here], *caches, tables, pages.seq_lens[i : i + 1], starts_of([num_new[i]]))
        assert torch.equal(alone, together[here])


@pytest.mark.parametrize(("window", "softcap", "with_sinks"), [(7, 0.0, False), (1, 2.0, True), (70, 30.0, True)])
def test_windows_caps_and_sinks(window, softcap, with_sinks):
    """Blocks that no window reaches any more may have been given away: NaN here."""
    num_new, length, block_size = 30, 100, 4
    pages = make_pages([length], 2, block_size, 16)
    sinks = random_queries(6, seed=5) if with_sinks else None
    oldest = length - num_new - window + 1
    for entry in range(max(0, oldest // block_size)):
        for cache in (pages.key_cache, pages.value_cache):
            cache[pages.block_tables[0, entry]] = torch.nan
    q = random_queries(num_new, 6, 16)
    out = run(q, pages, starts_of([num_new]), window=window, softcap=softcap, sinks=sinks)

    for head in range(6):
        keys, values = pages.keys[0][head // 3].double(), pages.values[0][head // 3].double()
        for row in range(num_new):
            last = length - num_new + row + 1
            seen = slice(max(0, last - window), last)
            scores = keys[seen] @ q[row, head].double() / 4
            if softcap:
                scores = softcap * torch.tanh(scores / softcap)
            extra = [] if sinks is None else [sinks[head].double()]
            probs = torch.softmax(torch.stack([*scores, *extra]), 0)[: len(scores)]
            torch.testing.assert_close(out[row, head].double(), probs @ values[seen], atol=2e-6, rtol=1e-3)


def test_a_window_beyond_everything_is_none():
    pages, q = make_pages([30], 1, 4, 16), random_queries(20, 2, 16)
    assert torch.equal(run(q, pages, starts_of([20]), window=2**40), run(q, pages, starts_of([20])))


@pytest.mark.filterwarnings("error")
def test_empty_rows_divide_by_nothing():
    """Rows behind a sequence's last token: tokens enough behind it to have nothing in their window."""
    pages = make_pages([13, 28], 1, 12, 16)
    out = run(random_queries(26, 1, 16), pages, starts_of([13, 13]), rows=64, tile=32, window=17)
    assert out.isfinite().all()


@pytest.mark.parametrize("order", ["reversed", "shuffled"])
def test_as_strict_as_a_gpu(order):
    """Nothing outside of a tensor is touched, nothing overflows, lanes that are off hold anything, in any order."""
    pages = make_pages([40, 5, 0, 23], 2, 3, 20, torch.float16, interleaved=True)
    starts = starts_of([20, 2, 0, 23])
    q = random_queries(45, 10, 20, dtype=torch.float16)
    right = run(q, pages, starts, window=30, softcap=4.0, sinks=torch.ones(10))
    with strict(order=order):
        assert torch.equal(run(q, pages, starts, window=30, softcap=4.0, sinks=torch.ones(10)), right)


def test_what_the_kernel_does_not_take_is_refused():
    pages = make_pages([9])
    q, starts = random_queries(3, 4, 8), starts_of([3])
    with pytest.raises(TypeError, match="torch.float64"):
        prefill.prefill_launch(q.double(), *pages.attention_args(), starts)
    with pytest.raises(ValueError, match="5 query heads cannot share 2"):
        prefill.prefill_launch(random_queries(3, 5, 8), *pages.attention_args(), starts)
    with pytest.raises(ValueError, match="tile is 24"):
        prefill.prefill_launch(q, *pages.attention_args(), starts, tile=24)
    for choice, error in (
        ({"tile": 32.0}, TypeError),
        ({"rows": 0}, ValueError),
        ({"window": 1.5}, TypeError),
        ({"window": -1}, ValueError),
        ({"softcap": float("nan")}, ValueError),
    ):
        with pytest.raises(error, match=next(iter(choice))):
            prefill.prefill_launch(q, *pages.attention_args(), starts, **choice)
    caches, tables, lens = (pages.key_cache, pages.value_cache), pages.block_tables, pages.seq_lens
    with pytest.raises(ValueError, match=r"query_start_loc \[3\]: 1 sequences need .* 2 places"):
        prefill.prefill_launch(q, *caches, tables, lens, torch.tensor([0, 1, 3]))
    with pytest.raises(ValueError, match=r"block_tables is \[2, 5\]"):
        prefill.prefill_launch(q, *caches, tables.repeat(2, 1), lens, starts)
    with pytest.raises(ValueError, match=r"q is \[3, 4, 7\], key_cache .* q's head_dim"):
        prefill.prefill_launch(q[..., :7], *caches, tables, lens, starts)
    with pytest.raises(LaunchError, match="last dimension of key_cache has stride"):
        turned = pages.key_cache.transpose(2, 3).contiguous().transpose(2, 3)
        prefill.prefill_launch(q, turned, *pages.attention_args()[1:], starts)


def test_there_is_a_program_for_every_tile_of_rows():
    """The grid is made without looking at lengths, so it must do for any of them."""
    for group_size, rows in ((1, 64), (5, 64), (3, 16)):
        tokens = rows // group_size
        for num_new in (
            [1] * 9,
            [tokens] * 3,
            [tokens - 1, 0, tokens + 1, 1],
            [0, 0, 0],
            [200],
            [tokens] * 2 + [1] * 7,
        ):
            starts = starts_of(num_new).tolist()
            begins = [starts[i] // tokens + i for i in range(len(num_new) + 1)]
            for i, new in enumerate(num_new):
                assert begins[i] + -(-new // tokens) <= begins[i + 1]
            pages = make_pages(num_new, 1)
            q = torch.zeros(starts[-1], group_size, 8)
            grid, _, _ = prefill.prefill_launch(q, *pages.attention_args(), torch.tensor(starts), rows=rows)
            assert grid == (begins[-1], 1)

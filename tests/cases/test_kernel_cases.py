"""Traps that real paged-attention kernels fell into, restated as tests of every backend of `pagedlab.kernels.ops`.

Each was reported in public, for the project and under the number its docstring names. What went wrong there is told in
one sentence; the test is what must be true instead. Trap 13 is `pytest -k trap_13`.
"""

import math
import warnings
from functools import partial

import pytest
import torch

from pagedlab.attention import merge_partials, partial_attention
from pagedlab.kernels import ops
from tests.kernels.pages import available_backends, dense, dense_decode, make_pages, random_queries


@pytest.fixture(params=available_backends())
def backend(request):
    return request.param


@pytest.fixture
def decode(backend):
    return partial(ops.paged_decode, backend=backend)


@pytest.fixture
def prefill(backend):
    return partial(ops.paged_prefill, backend=backend)


@pytest.fixture
def write(backend):
    return partial(ops.kv_write, backend=backend)


def assert_decodes(decode, pages, group_size=2, atol=2e-6, **queries):
    """The right result for these pages, whatever lies around them. Returns it."""
    num_seqs, num_kv_heads, head_dim = len(pages.seq_lens), pages.key_cache.shape[1], pages.key_cache.shape[3]
    q = random_queries(num_seqs, num_kv_heads * group_size, head_dim, dtype=pages.key_cache.dtype, **queries)
    out = decode(q, *pages.attention_args())
    torch.testing.assert_close(out.double(), dense_decode(q, pages), atol=atol, rtol=1e-4)
    return out


# Addressing


@pytest.fixture(scope="module")
def huge():
    """A little over 2**31 numbers. They take no memory until they are written, only addresses."""
    try:
        return torch.empty(2**31 + 2**20, dtype=torch.float16)
    except RuntimeError:
        pytest.skip("this machine does not give out 4 GiB of addresses")


def test_trap_01_block_times_stride_beyond_32_bits(huge, decode, write):
    """vllm-project/vllm#47671, vllm-project/vllm#50427, ROCm/aiter#4427: the product wrapped for large block ids."""
    stride, (num_kv_heads, block_size, head_dim) = 2048, (1, 16, 64)
    pool = huge[: huge.numel() // stride * stride].view(-1, 2, num_kv_heads, block_size, head_dim)
    assert len(pool) * stride > 2**31
    small = make_pages([20], num_kv_heads, block_size, head_dim, torch.float16)
    blocks = [len(pool) - 1, len(pool) - 3]
    slots = [blocks[p // block_size] * block_size + p % block_size for p in range(20)]
    write(small.keys[0].transpose(0, 1), small.values[0].transpose(0, 1), pool[:, 0], pool[:, 1], slots)
    q = random_queries(1, 2, head_dim, dtype=torch.float16)
    out = decode(q, pool[:, 0], pool[:, 1], torch.tensor([blocks], dtype=torch.int32), [20])
    assert torch.equal(out, decode(q, *small.attention_args()))


def test_trap_02_query_row_times_stride_beyond_32_bits(huge, decode, prefill):
    """sgl-project/sglang#20389: the row offset of a query wrapped."""
    pages = make_pages([5, 9], dtype=torch.float16)
    q = random_queries(2, 4, 8, dtype=torch.float16)
    far = huge.as_strided((2, 4, 8), (2**31, 8, 1))
    far.copy_(q)
    assert torch.equal(decode(far, *pages.attention_args()), decode(q, *pages.attention_args()))
    args = (*pages.attention_args(), [0, 1, 2])
    assert torch.equal(prefill(far, *args), prefill(q, *args))


def test_trap_04_block_ids_beyond_16_bits(decode, write):
    """ROCm/ATOM#702, flashinfer-ai/flashinfer#3130: ids kept in 16 bits, or lost when large."""
    keys, values = torch.full((70_000, 1, 1, 2), torch.nan), torch.full((70_000, 1, 1, 2), torch.nan)
    blocks = [69_999, 65_536, 65_535, 32_768]
    new = random_queries(4, 1, 2)
    write(new, -new, keys, values, blocks)
    q = random_queries(1, 1, 2, seed=2)
    out = decode(q, keys, values, torch.tensor([blocks], dtype=torch.int32), [4])
    right = dense(q.transpose(0, 1), new.transpose(0, 1), -new.transpose(0, 1))
    torch.testing.assert_close(out.double(), right.transpose(0, 1), atol=1e-6, rtol=1e-5)
    assert torch.isfinite(keys).sum() == 8


def test_trap_05_keys_and_values_interleaved(decode, prefill, write):
    """ROCm/aiter#3498: the block stride was worked out from the shape, wrong when K and V share a buffer."""
    for layout in ({"interleaved": True}, {"token_major": True}, {"interleaved": True, "token_major": True}):
        apart, together = make_pages([5, 12]), make_pages([5, 12], **layout)
        assert together.key_cache.stride() != apart.key_cache.stride()
        q = random_queries(2, 4, 8)
        assert torch.equal(decode(q, *together.attention_args()), decode(q, *apart.attention_args()))
        new = random_queries(3, 2, 8)
        for pages in (apart, together):
            write(new, -new, pages.key_cache, pages.value_cache, [0, 3, 1])
        for mine, right in ((together.key_cache, apart.key_cache), (together.value_cache, apart.value_cache)):
            torch.testing.assert_close(mine, right, rtol=0, atol=0, equal_nan=True)


def test_trap_06_queries_are_a_slice_of_fused_qkv(decode, prefill, write):
    """sgl-project/sglang#31667, vllm-project/vllm#32417: a strided q was read as packed; odd strides stay."""
    pages = make_pages([7, 3])
    qkv = random_queries(2, 4 + 2 + 2, 8)
    q, k, v = qkv.split([4, 2, 2], dim=1)
    assert not q.is_contiguous()
    assert torch.equal(decode(q, *pages.attention_args()), decode(q.contiguous(), *pages.attention_args()))
    args = (*pages.attention_args(), [0, 1, 2])
    assert torch.equal(prefill(q, *args), prefill(q.contiguous(), *args))
    write(k, v, pages.key_cache, pages.value_cache, [0, 1])
    assert torch.equal(pages.key_cache[0, :, :2], k.transpose(0, 1))

    one = make_pages([7])
    odd = random_queries(4, 8).as_strided((1, 4, 8), (3, 8, 1))
    assert torch.equal(decode(odd, *one.attention_args()), decode(odd.clone(), *one.attention_args()))


def test_trap_08_what_stands_behind_the_table(decode, prefill):
    """vllm-project/vllm#53658, vllm-project/vllm#48257: the table's last row was read past its end."""
    for length in (1, 3, 4, 5, 8, 127, 128, 129):
        pages = make_pages([2, length], extra_columns=0)
        wide = torch.full((3, pages.block_tables.shape[1] + 2), 10**6, dtype=torch.int32)
        wide[:2, :-2] = pages.block_tables
        pages.block_tables = wide[:2, :-2]
        out = assert_decodes(decode, pages)
        q = random_queries(2, 4, 8)
        torch.testing.assert_close(prefill(q, *pages.attention_args(), [0, 1, 2]), out, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("padding", [-1, 0, 10**9, -(2**31)])
def test_trap_09_padding_of_the_table(decode, prefill, padding):
    """microsoft/onnxruntime#32391, sgl-project/sglang#1782: padding of -1, or whatever was never written, was used."""
    pages = make_pages([1, 4, 0, 13], padding=padding, extra_columns=3)
    out = assert_decodes(decode, pages)
    q = random_queries(4, 4, 8)
    out_again = prefill(q[[0, 1, 3]], *pages.attention_args(), [0, 1, 2, 2, 3])
    torch.testing.assert_close(out_again, out[[0, 1, 3]], atol=1e-6, rtol=1e-5)


def test_trap_10_slot_minus_1_writes_nowhere(write):
    """NVIDIA/TensorRT-LLM#18673: -1 became a write before the cache. sgl-project/sglang#36880: or into a used slot."""
    guarded = torch.zeros(6, 2, 4, 8)
    cache = guarded[1:5]
    new = random_queries(5, 2, 8)
    write(new, new, cache, cache.clone(), [-1, 6, -1, 9, -1])
    assert torch.equal(cache[1, :, 2], new[1]) and torch.equal(cache[2, :, 1], new[3])
    assert guarded.ne(0).any(-1).any(1).sum() == 2
    write(new[:2], new[:2], cache, cache.clone(), [-1, -1])
    assert guarded.ne(0).any(-1).any(1).sum() == 2


def test_trap_11_a_slot_past_the_end_is_refused(write):
    """flashinfer-ai/flashinfer#3647: a slot beyond the capacity was written all the same."""
    guarded = torch.zeros(6, 2, 4, 8)
    cache, new = guarded[1:5], random_queries(3, 2, 8)
    for slot in (16, 17, 2**31, 2**40):
        with pytest.raises(IndexError, match=f"token 1 has slot {slot}: 4 blocks of 4 have slots 0 to 15"):
            write(new, new, cache, cache, [0, slot, 1])
    assert not guarded.any()


# Masks and lengths


def test_trap_13_nan_in_unused_slots(decode, prefill):
    """vllm-project/vllm#936, Dao-AILab/flash-attention#1745: scores were masked, values not, and 0 x NaN is NaN."""
    for block_size in (1, 2, 3, 16):
        for length in (1, block_size - 1, block_size, block_size + 1, 3 * block_size + 1):
            for poison in (torch.nan, math.inf, -math.inf):
                pages = make_pages([length, 2], block_size=block_size)
                for cache in (pages.key_cache, pages.value_cache):
                    assert torch.isnan(cache[0]).all(), "block 0 is where masked reads tend to go"
                    cache.nan_to_num_(nan=poison)
                out = assert_decodes(decode, pages)
                if length:
                    prefilled = prefill(random_queries(2, 4, 8), *pages.attention_args(), [0, 1, 2])
                    torch.testing.assert_close(prefilled, out, atol=1e-6, rtol=1e-5)


def test_trap_14_a_nan_score_is_replaced_not_added_to(decode):
    """deepbeepmeep/Wan2GP#1628, nod-ai/amd-shark-ai#665: NaN plus -inf is NaN; the padding page itself was NaN."""
    pages = make_pages([5], padding=0)
    assert torch.isnan(pages.key_cache[0]).all()
    assert_decodes(decode, pages)


@pytest.mark.parametrize("block_size", [4, 16, 128, 544])
def test_trap_17_shorter_than_one_block(decode, prefill, block_size):
    """flashinfer-ai/flashinfer#3716, pytorch/pytorch#160861: the mask of the last block was dropped."""
    pages = make_pages([3, 1], block_size=block_size)
    pages.key_cache.nan_to_num_(nan=50.0)  # not poison: tokens that would win if they were seen
    pages.value_cache.nan_to_num_(nan=1000.0)
    assert_decodes(decode, pages)


def test_trap_18_scores_below_any_stand_in_for_infinity(decode):
    """flashinfer-ai/flashinfer#4450: with -5e4 for "masked", rows of lower scores came out as zeros."""
    for size in (5e4, 1e6, 1e30):
        pages = make_pages([5], num_kv_heads=1, head_dim=1, block_size=2)
        q = torch.full((1, 1, 1), -size)
        pages.key_cache.copy_(pages.key_cache.sign().abs())  # all keys 1: all scores -size, all weights 1/5
        out = decode(q, *pages.attention_args())
        torch.testing.assert_close(out[0, 0], pages.values[0].mean(1)[0], atol=1e-6, rtol=1e-5)


def test_trap_19_a_first_part_that_sees_nothing():
    """pegainfer-project/pegainfer#21, ROCm/aiter#2505: -inf minus -inf is NaN, and stays."""
    q, keys, values = random_queries(1, 2, 4), random_queries(1, 6, 4, seed=2), random_queries(1, 6, 4, seed=3)
    nothing = torch.zeros(1, 2, 6, dtype=torch.bool)
    empty = partial_attention(q, keys, values, nothing, 1.0)
    full = partial_attention(q, keys, values, ~nothing, 1.0)
    assert torch.isfinite(empty[0]).all() and (empty[1] == -math.inf).all()
    for merged in (merge_partials(*empty, *full), merge_partials(*full, *empty)):
        assert all(map(torch.equal, merged, full))


def test_trap_20_all_scores_far_below_zero(decode, prefill):
    """A guard against -inf that keeps 0 as the running maximum lets scores below about -104 vanish."""
    for shift in (-50.0, -104.0, -150.0, -1000.0):
        pages = make_pages([300, 3], num_kv_heads=1, head_dim=2, block_size=16)
        # One dimension of every key is 1 and meets `shift` in the query: all scores move by the same amount.
        for keys in (pages.keys[0], pages.keys[1], pages.key_cache):
            keys[..., 1] = 1.0
        q = random_queries(2, 1, 2)
        q[..., 1] = shift
        out = decode(q, *pages.attention_args(), scale=1.0)
        torch.testing.assert_close(out.double(), dense_decode(q, pages, 1.0), atol=1e-4, rtol=1e-3)
        torch.testing.assert_close(prefill(q, *pages.attention_args(), [0, 1, 2], scale=1.0), out, atol=1e-5, rtol=1e-4)


def test_trap_21_length_0(decode, prefill):
    """sgl-project/sglang#22688, sgl-project/sglang#1469: 0/0 for a sequence without tokens."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for lengths in ([0], [0, 0], [0, 5], [5, 0], []):
            pages = make_pages(lengths, extra_columns=1)
            out = assert_decodes(decode, pages)
            assert not out[pages.seq_lens == 0].any()
            nobody = torch.zeros(0, 4, 8)
            assert prefill(nobody, *pages.attention_args(), [0] * (len(lengths) + 1)).shape == (0, 4, 8)


def test_trap_22_shorter_than_a_page(decode):
    """flashinfer-ai/flashinfer#725: a context that did not fill one page."""
    for length in range(1, 17):
        assert_decodes(decode, make_pages([length], block_size=16, extra_columns=0))


# Parts and merging


def test_trap_25_an_empty_part_is_not_merged():
    """ROCm/aiter#3641, ROCm/aiter#4420, vllm-project/vllm#47188: the scratch of a part without tokens was added in."""
    out, lse = random_queries(3, 4), random_queries(3)
    scratch = torch.full((3, 4), torch.nan), torch.full((3,), -math.inf)
    assert all(map(torch.equal, merge_partials(out, lse, *scratch), (out, lse)))
    assert all(map(torch.equal, merge_partials(*scratch, out, lse), (out, lse)))


def test_trap_26_every_row_of_the_result_is_written(decode, prefill):
    """pytorch/pytorch#194167, pytorch/torchtitan#3235: rows of the output that nobody wrote."""
    lengths = [1, 300, 0, 129, 128]
    pages = make_pages(lengths)
    assert torch.isfinite(assert_decodes(decode, pages)).all()
    starts = torch.tensor([0, 1, 3, 3, 132, 133])
    out = prefill(random_queries(133, 4, 8), *pages.attention_args(), starts)
    assert torch.isfinite(out).all() and (out.abs().amax((1, 2)) > 0).all()


def test_trap_27_lse_is_a_natural_logarithm():
    """flashinfer-ai/flashinfer#2113, sgl-project/sglang#35045, sgl-project/sglang#40903: base 2 merged as base e."""
    keys, values = torch.zeros(1, 5, 1), torch.ones(1, 5, 1)
    _, lse = partial_attention(torch.zeros(1, 1, 1), keys, values, torch.ones(1, 1, 5, dtype=torch.bool), 1.0)
    assert lse.item() == pytest.approx(math.log(5))
    out, lse = merge_partials(torch.tensor([0.0]), torch.tensor(math.log(48)), torch.tensor([1.0]), torch.tensor(0.0))
    assert out.item() == pytest.approx(1 / 49) and lse.item() == pytest.approx(math.log(49))


def test_trap_30_a_sequence_does_not_depend_on_its_neighbours(decode, prefill):
    """sgl-project/sglang#10425: where the parts were cut depended on the batch, and so did the last bits."""
    lengths = [5, 300, 1, 130, 0, 64]
    pages = make_pages(lengths, head_dim=64, num_kv_heads=3, block_size=16)
    q = random_queries(len(lengths), 9, 64)
    together = decode(q, *pages.attention_args())
    caches, starts = (pages.key_cache, pages.value_cache), list(range(len(lengths) + 1))
    for i, length in enumerate(lengths):
        alone = decode(q[i : i + 1], *caches, pages.block_tables[i : i + 1], [length])
        assert torch.equal(alone[0], together[i])
    having = [i for i, length in enumerate(lengths) if length]
    args = (*caches, pages.block_tables[having], pages.seq_lens[having])
    together = prefill(q[having], *args, starts[: len(having) + 1])
    for row, i in enumerate(having):
        alone = prefill(q[i : i + 1], *caches, pages.block_tables[i : i + 1], [lengths[i]], [0, 1])
        assert torch.equal(alone[0], together[row])


# Shapes


@pytest.mark.parametrize("num_kv_heads", [1, 3])
@pytest.mark.parametrize("group_size", [3, 5, 7, 17, 20, 24, 32, 40])
def test_trap_32_to_35_any_group(decode, prefill, group_size, num_kv_heads):
    """vllm-project/vllm#18100 (5), vllm-project/vllm#23424 (over 16), vllm-project/vllm#40792 (24, 20, 40),
    flashinfer-ai/flashinfer#996 (5, 7, 3): groups that are no power of two, or larger than a tile."""
    pages = make_pages([9, 2], num_kv_heads=num_kv_heads)
    out = assert_decodes(decode, pages, group_size)
    q = random_queries(2, num_kv_heads * group_size, 8)
    torch.testing.assert_close(prefill(q, *pages.attention_args(), [0, 1, 2]), out, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("head_dim", [1, 7, 72, 80, 96, 100, 120, 256])
def test_trap_37_and_40_any_head_dim(decode, head_dim):
    """vllm-project/vllm#4127, foundation-model-stack/vllm-triton-backend#12: head sizes that are no power of two."""
    assert_decodes(decode, make_pages([9, 2], head_dim=head_dim), atol=5e-6)


@pytest.mark.parametrize("block_size", [1, 8, 100, 544])
def test_trap_38_any_block_size(decode, prefill, block_size):
    """ROCm/aiter#2190 (544), vllm-project/vllm#41339 (8): the block size was used as the tile size."""
    pages = make_pages([600, 3], block_size=block_size)
    out = assert_decodes(decode, pages, atol=5e-6)
    q = random_queries(2, 4, 8)
    torch.testing.assert_close(prefill(q, *pages.attention_args(), [0, 1, 2]), out, atol=2e-6, rtol=1e-4)


def test_trap_48_more_sequences_than_a_grid_dimension(decode, backend):
    """triton-lang/triton#3299, vllm-project/vllm#52381: 65,535 is the limit of a launch grid's y and z."""
    num_seqs = 66_000
    tables = torch.randperm(num_seqs, generator=torch.Generator().manual_seed(0))[:, None]
    keys, values = random_queries(num_seqs, 1, 1, 2), random_queries(num_seqs, 1, 1, 2, seed=2)
    q, lens = random_queries(num_seqs, 1, 2), torch.ones(num_seqs, dtype=torch.int32)
    if backend == "triton":  # to interpret so many programs takes a minute: look at the grids
        from pagedlab.kernels import decode as decoding
        from pagedlab.kernels import prefill, write

        grids = [
            decoding.decode_launch(q, keys, values, tables, lens)[0],
            prefill.prefill_launch(q, keys, values, tables, lens, torch.arange(num_seqs + 1))[0],
            write.write_launch(q, q, keys, values, torch.arange(num_seqs))[0],
        ]
        for along_x, *others in grids:
            assert along_x >= num_seqs and max(others) <= 65_535
        return
    out = decode(q, keys, values, tables, lens)
    torch.testing.assert_close(out[:, 0], values[tables[:, 0], 0, 0])  # the only token has all the weight


# Numerics, tables and copies


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_trap_41_the_scale_is_applied_in_float32(decode, dtype):
    """ROCm/aotriton#43, hao-ai-lab/FastVideo#1730: q times the scale was rounded to 16 bits before the product."""
    pages = make_pages([200], num_kv_heads=1, head_dim=80, block_size=16, dtype=dtype, spread=2.0)
    q = random_queries(1, 8, 80, dtype=dtype, spread=2.0)
    scale = 80**-0.5
    right = dense_decode(q, pages)
    error = (decode(q, *pages.attention_args()).double() - right).abs().max()
    rounded_early = (q * scale).to(dtype)
    early = (decode(rounded_early, *pages.attention_args(), scale=1.0).double() - right).abs().max()
    assert error < torch.finfo(dtype).eps * right.abs().max(), "no more than rounding the result"
    assert early > 2 * error, "the case is hard enough to tell the two apart"


@pytest.mark.parametrize("block_size", [1, 3, 16])
def test_trap_51_where_the_pages_lie_does_not_matter(decode, prefill, block_size):
    """pytorch/pytorch#182593: the output depended on placement. meta-pytorch/attention-gym#189: the page map was not
    picked along with the sequences of a batch."""
    lengths = [5, 17, 40, 3, 130, 9, 1, 64]
    pages = make_pages(lengths, block_size=block_size)
    q = random_queries(len(lengths), 4, 8)
    out = decode(q, *pages.attention_args())
    moved = torch.randperm(len(pages.key_cache), generator=torch.Generator().manual_seed(9))
    key_cache, value_cache = torch.empty_like(pages.key_cache), torch.empty_like(pages.value_cache)
    key_cache[moved], value_cache[moved] = pages.key_cache, pages.value_cache
    tables = torch.where(pages.block_tables < 0, -1, moved[pages.block_tables.long()].int())
    assert torch.equal(decode(q, key_cache, value_cache, tables, pages.seq_lens), out)
    picked = [3, 7, 1]
    args = (key_cache, value_cache, tables[picked], pages.seq_lens[picked])
    assert torch.equal(decode(q[picked], *args), out[picked])
    chunk = prefill(q[picked], *args, [0, 1, 2, 3])
    torch.testing.assert_close(chunk, out[picked], atol=1e-6, rtol=1e-5)


def test_trap_52_copies_that_depend_on_their_order_are_refused(backend):
    """A pair whose source is another's destination gives one result in order and another in parallel."""
    cache = torch.arange(6.0).view(6, 1, 1, 1).clone()
    for pairs in ([(0, 1), (1, 2)], [(1, 2), (0, 1)], [(0, 1), (1, 0)], [(2, 2)]):
        with pytest.raises(ValueError, match="both a source and a destination"):
            ops.copy_blocks(cache, cache, pairs, backend=backend)
    with pytest.raises(ValueError, match="block 2 is a destination twice"):
        ops.copy_blocks(cache, cache, [(0, 2), (1, 2)], backend=backend)
    assert torch.equal(cache.flatten(), torch.arange(6.0))
    for pairs in ([(0, 3), (1, 4), (0, 5)], [(0, 5), (1, 4), (0, 3)]):
        copy, other = cache.clone(), cache.clone()
        ops.copy_blocks(copy, other, pairs, backend=backend)
        assert copy.flatten().tolist() == other.flatten().tolist() == [0, 1, 2, 0, 1, 0]


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2, torch.int8])
def test_trap_45_numbers_with_a_scale_beside_them_are_refused(decode, prefill, write, dtype):
    """vllm-project/vllm#42580: on one branch the scale of 8-bit keys and values was dropped. Here none is known of."""
    pages = make_pages([5])
    caches = [torch.zeros(pages.key_cache.shape).to(dtype) for _ in range(2)]
    q = torch.zeros(1, 4, 8).to(dtype)
    with pytest.raises(TypeError, match="use one of"):
        decode(q, *caches, pages.block_tables, pages.seq_lens)
    with pytest.raises(TypeError, match="use one of"):
        prefill(q, *caches, pages.block_tables, pages.seq_lens, [0, 1])
    with pytest.raises(TypeError, match="use one of"):
        write(torch.zeros(1, 2, 8).to(dtype), torch.zeros(1, 2, 8).to(dtype), *caches, [0])

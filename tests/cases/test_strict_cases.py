"""Traps that Triton's interpreter hides, and that the strict one shows.

Each was reported in public, under the number its docstring names. The kernels are this package's own, with one line
made wrong, or called with one wrong number. In the plain interpreter most of them go through, with wrong numbers or
even with right ones; under `strict()` each is an error or a NaN that can't be missed. The unaltered kernel passes.
"""

import re
from pathlib import Path

import pytest
import torch
import triton
import triton.language as tl

import pagedlab
from pagedlab.course.altered_kernel import altered
from pagedlab.gpu import mode
from pagedlab.gpu.strict import KernelError, strict
from pagedlab.kernels import copy, decode, ops, prefill, write
from pagedlab.kernels.launch import launch
from tests.kernels.pages import dense_decode, make_pages, random_queries

pytestmark = pytest.mark.skipif(not mode.is_interpreting(), reason="watches the interpreter")


def decode_strictly(pages, kernel=decode.paged_decode_kernel, q=None, **changed):
    """Decode with some arguments replaced. Returns (what was computed, what is right)."""
    num_kv_heads, head_dim = pages.key_cache.shape[1], pages.key_cache.shape[3]
    dtype = pages.key_cache.dtype
    q = random_queries(len(pages.seq_lens), 2 * num_kv_heads, head_dim, dtype=dtype) if q is None else q
    grid, arguments, options = decode.decode_launch(q, *pages.attention_args(), tile=16)
    arguments["out"].fill_(torch.nan)
    with strict():
        launch(kernel, grid, {**arguments, **changed}, **options)
    return arguments["out"].double(), dense_decode(q, pages)


def assert_right(got_and_right):
    torch.testing.assert_close(*got_and_right, atol=2e-3, rtol=1e-2)


def write_strictly(slots, kernel=write.kv_write_kernel, **options):
    key_cache, value_cache = torch.full((2, 3, 2, 4, 8), torch.nan).unbind(0)
    keys, values = torch.randn(2, len(slots), 2, 8, generator=torch.Generator().manual_seed(0)).unbind(0)
    with strict(**options):
        write.kv_write(keys, values, key_cache, value_cache, slots, kernel=kernel)
    return key_cache, value_cache, keys, values


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("interleaved", [False, True])
def test_all_kernels_pass_under_strict_rules_in_any_order(dtype, interleaved):
    pages = make_pages([0, 1, 5, 37], head_dim=24, dtype=dtype, interleaved=interleaved)
    q = random_queries(4, 6, 24, dtype=dtype)
    for order in ("in order", "reversed", "shuffled"):
        with strict(order):
            out = decode.paged_decode(q, *pages.attention_args())
            torch.testing.assert_close(out.double(), dense_decode(q, pages), atol=2e-3, rtol=1e-2)
            split = decode.paged_decode(q, *pages.attention_args(), num_splits=3)
            torch.testing.assert_close(split.double(), dense_decode(q, pages), atol=2e-3, rtol=1e-2)
            starts = torch.tensor([0, 0, 1, 2, 3])
            rows = prefill.paged_prefill(q[1:], *pages.attention_args(), starts)
            torch.testing.assert_close(rows.double(), dense_decode(q, pages)[1:], atol=2e-3, rtol=1e-2)
            copy.copy_blocks(pages.key_cache.clone(), pages.value_cache.clone(), torch.tensor([(1, 2), (1, 3)]))
            new = random_queries(3, 2, 24, dtype=dtype)
            write.kv_write(new, new, pages.key_cache.clone(), pages.value_cache.clone(), [3, -1, 0])


@pytest.fixture(scope="module")
def huge():
    """A little over 2**31 numbers. They take no memory until they are written, only addresses."""
    try:
        return torch.empty(2**31 + 2**20, dtype=torch.float16)
    except RuntimeError:
        pytest.skip("this machine does not give out 4 GiB of addresses")


def test_trap_01_block_times_stride_in_32_bits(huge):
    """vllm-project/vllm#47671, ROCm/aiter#4427: wraps around from block id 2**31 / stride on."""
    pages = make_pages([5], block_size=4, head_dim=16, dtype=torch.float16)
    far = huge[: 2**31 // 2**18 * 2**18 + 2**18].view(-1, 2**18)[:, :128].view(-1, 2, 4, 16)
    for cache, place in (("key_cache", 0), ("value_cache", 2**17)):
        moved = huge[place:].as_strided(far.shape, (2**18, 64, 16, 1))
        for column, block in enumerate(pages.block_tables[0, :2].tolist()):
            moved[2**13 - column] = getattr(pages, cache)[block]
        setattr(pages, cache, moved)
    pages.block_tables = torch.tensor([[2**13, 2**13 - 1]], dtype=torch.int32)
    assert_right(decode_strictly(pages))
    short = altered(decode.paged_decode_kernel, ("other=0).to(tl.int64)[:, None]", "other=0)[:, None]"))
    with pytest.raises(KernelError, match="int32 overflow detected for operation mul") as caught:
        decode_strictly(pages, short, key_block_stride=2**18)
    assert "blocks * key_block_stride" in caught.value.line.text


def test_trap_02_row_times_stride_in_32_bits(huge):
    """sgl-project/sglang#20389: the same for the rows of q, in a batch of many tokens."""
    pages = make_pages([3, 3, 3], head_dim=16, dtype=torch.float16)
    q = huge.as_strided((3, 4, 16), (2**30, 16, 1))
    q[:] = random_queries(3, 4, 16, dtype=torch.float16)
    assert_right(decode_strictly(pages, q=q))
    short = altered(decode.paged_decode_kernel, ("tl.program_id(0).to(tl.int64)", "tl.program_id(0)"))
    with pytest.raises(KernelError, match="int32 overflow detected for operation mul"):
        decode_strictly(pages, short, q=q)


def test_trap_05_a_block_stride_that_was_worked_out():
    """ROCm/aiter#3498: heads * slots * dims is not the stride where keys and values share a storage."""
    pages = make_pages([9, 2], interleaved=True, dtype=torch.float16)
    assert_right(decode_strictly(pages))
    with pytest.raises(KernelError, match="of key_cache, which lies between its own"):
        decode_strictly(pages, key_block_stride=2 * 4 * 8)


def test_trap_06_q_read_as_if_it_were_dense():
    """sgl-project/sglang#31667: q is a part of the fused projection, and its rows are further apart."""
    pages = make_pages([9, 2], dtype=torch.float16)
    q = random_queries(2, 8, 8, dtype=torch.float16)[:, :4]
    assert_right(decode_strictly(pages, q=q))
    with pytest.raises(KernelError, match="of q, which lies between its own"):
        decode_strictly(pages, q=q, q_seq_stride=4 * 8)


def test_trap_08_a_table_read_behind_its_end():
    """vllm-project/vllm#53658: the last tile's lanes beyond the length read beyond the table."""
    pages = make_pages([5, 9], block_size=4, extra_columns=0, dtype=torch.float16)
    assert_right(decode_strictly(pages))
    greedy = altered(
        decode.paged_decode_kernel, ("positions // BLOCK_SIZE, mask=is_token, other=0)", "positions // BLOCK_SIZE)")
    )
    with pytest.raises(KernelError, match="element 6 of block_tables, whose last one is 5"):
        decode_strictly(pages, greedy)


def test_trap_10_slot_minus_one_is_in_front_of_the_cache():
    """NVIDIA/TensorRT-LLM#18673: towards zero, -1 // 4 is 0 and -1 % 4 is -1."""
    key_cache, value_cache, keys, _ = write_strictly([5, -1])
    assert torch.equal(key_cache[1, :, 1], keys[0])
    assert key_cache.isnan().sum() == key_cache.numel() - 2 * 8
    writes_all = altered(write.kv_write_kernel, ("if slot >= 0:", "if slot >= -1:"))
    with pytest.raises(KernelError, match="writes 8 elements in front of key_cache"):
        write_strictly([5, -1], writes_all)


def test_trap_11_a_slot_behind_the_pool():
    """flashinfer-ai/flashinfer#3647: the kernel does not know how many blocks there are."""
    key_cache, value_cache, keys, values = write_strictly([11])
    with pytest.raises(IndexError):
        ops.kv_write(keys, values, key_cache, value_cache, [12])
    with pytest.raises(KernelError, match="writes element 192 of key_cache, whose last one is 191"):
        write_strictly([12])


@triton.jit
def split_of_token_kernel(out, seq_lens, num_splits, ROUND_UP: tl.constexpr):
    """Which split has a sequence's last token."""
    row = tl.program_id(0)
    length = tl.load(seq_lens + row)
    size = length // num_splits
    if ROUND_UP:
        size = tl.maximum((length + num_splits - 1) // num_splits, 1)
    tl.store(out + row, (length - 1) // size)


def test_trap_21_a_size_of_zero_as_a_divisor():
    """sgl-project/sglang#22688: tokens per split is 0 for a short sequence. The interpreter only warns."""
    out, lens = torch.zeros(3, dtype=torch.int32), torch.tensor([9, 3, 1], dtype=torch.int32)
    with strict():
        split_of_token_kernel[(3,)](out, lens, 4, ROUND_UP=True)
        assert out.tolist() == [2, 2, 0]
        with pytest.raises(KernelError, match="an integer // 0") as caught:
            split_of_token_kernel[(3,)](out, lens, 4, ROUND_UP=False)
    assert caught.value.program == (1, 0, 0)
    pages = make_pages([0, 1, 3], dtype=torch.float16)
    q = random_queries(3, 4, 8, dtype=torch.float16)
    with strict():
        out = decode.paged_decode(q, *pages.attention_args(), num_splits=4)
    assert_right((out.double(), dense_decode(q, pages)))


def test_trap_38_a_tile_of_eight():
    """vllm-project/vllm#41339: `tl.dot` sums over at least 16 numbers. A block of 8 is fine, a tile of 8 isn't."""
    pages = make_pages([13], block_size=8, head_dim=16, dtype=torch.float16)
    assert_right(decode_strictly(pages))
    with pytest.raises(KernelError, match="K >= 16"):
        decode_strictly(pages, TILE=8)
    with pytest.raises(ValueError, match="at least 16"):
        decode.decode_launch(random_queries(1, 4, 16), *pages.attention_args(), tile=8)


@pytest.mark.parametrize("line", ["keys = tl.load", "values = tl.load", "queries = tl.load"])
def test_trap_46_a_masked_load_without_other(line):
    """triton-lang/triton#9917: what an unloaded lane holds is undefined. The interpreter's zero hides that."""
    pages = make_pages([5], head_dim=12, dtype=torch.float16)  # 12 numbers in a tile of 16
    text = {
        "keys = tl.load": (
            "slots * key_slot_stride, mask=tile_mask, other=0.0)",
            "slots * key_slot_stride, mask=tile_mask)",
        ),
        "values = tl.load": (
            "slots * value_slot_stride, tile_mask, other=0.0)",
            "slots * value_slot_stride, tile_mask)",
        ),
        "queries = tl.load": ("query_offsets, mask=row_mask, other=0.0)", "query_offsets, mask=row_mask)"),
    }
    got, right = decode_strictly(pages, altered(decode.paged_decode_kernel, text[line]))
    assert got.isnan().any() and not right.isnan().any()
    assert_right(decode_strictly(pages))


def test_trap_52_the_order_of_programs_decides():
    """A block that is copied from and to in one launch: the interpreter, in order, gives one of several results."""

    def copied(pairs, order):
        caches = [torch.arange(5.0).view(5, 1, 1, 1).repeat(1, 1, 4, 8) for _ in range(2)]
        with strict(order):
            copy.copy_blocks(*caches, torch.tensor(pairs))
        return caches[0][:, 0, 0, 0].tolist()

    assert copied([(0, 1), (3, 4)], "in order") == copied([(0, 1), (3, 4)], "reversed") == [0, 0, 2, 3, 3]
    assert copied([(0, 1), (1, 2)], "in order") == [0, 0, 0, 3, 4]
    assert copied([(0, 1), (1, 2)], "reversed") == [0, 0, 1, 3, 4]
    caches = torch.zeros(2, 5, 1, 4, 8).unbind(0)
    with pytest.raises(ValueError, match="block 1 is both a source and a destination"):
        ops.copy_blocks(*caches, [(0, 1), (1, 2)])


def test_trap_53_no_block_pointers():
    """ROCm/aiter#4579: Triton 3.8 takes them away."""
    for path in Path(pagedlab.__file__).parent.rglob("*.py"):
        assert not re.search(r"tl\.(make_block_ptr|advance)\(", path.read_text()), path.name


@triton.jit
def dot_kernel(a, b, out, UPCAST: tl.constexpr):
    rows, columns = tl.arange(0, 16)[:, None], tl.arange(0, 16)[None, :]
    left, right = tl.load(a + rows * 16 + columns), tl.load(b + rows * 16 + columns)
    if UPCAST:
        left, right = left.to(tl.float32), right.to(tl.float32)
    tl.store(out + rows * 16 + columns, tl.dot(left, right, input_precision="ieee"))


def test_trap_54_the_interpreter_multiplies_the_bits_of_bfloat16():
    """triton-lang/triton#11584: so this package's kernels make them float32 first where they are interpreted.

    When this test fails because the product is right, `UPCAST` in the kernels has had its time.
    """
    a, b = torch.randn(2, 16, 16, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16).unbind(0)
    got, right = torch.zeros(16, 16), a.float() @ b.float()
    dot_kernel[(1,)](a, b, got, UPCAST=False)
    assert (got - right).abs().max() > 1
    dot_kernel[(1,)](a, b, got, UPCAST=True)
    torch.testing.assert_close(got, right)
    pages = make_pages([5, 17], head_dim=16, dtype=torch.bfloat16)
    q = random_queries(2, 4, 16, dtype=torch.bfloat16)
    with strict():
        out = decode.paged_decode(q, *pages.attention_args())
    torch.testing.assert_close(out.double(), dense_decode(q, pages), atol=2e-2, rtol=2e-2)


@triton.jit
def kinds_kernel(x, out, TILE: tl.constexpr):
    lanes = tl.arange(0, TILE)
    numbers = tl.load(x + lanes)
    tl.store(out + lanes, (numbers * numbers).to(tl.float16).to(tl.float32))


def test_the_interpreter_is_exact_in_float16():
    """What lessons and checks rely on: float16 is rounded as IEEE 754 says, as torch does."""
    x = torch.randn(64, generator=torch.Generator().manual_seed(0)).to(torch.float16)
    out = torch.zeros(64)
    kinds_kernel[(1,)](x, out, TILE=64)
    assert torch.equal(out, (x * x).float())

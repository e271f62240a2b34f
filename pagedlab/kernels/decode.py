"""Paged attention for decode: one new token of each sequence looks at all that its sequence has stored.

One program takes one sequence, one kv head and one split of the sequence's tokens. Four ideas, in the order in which
the kernel has them:

- The query heads that share a kv head are the rows of one matrix: their keys and values are read once, and the products
  are matrix products, which tensor cores do (grouped-query attention).
- With few sequences, the tokens of each are split among several programs, and `merge.py` merges their results (flash
  decoding). With one split the program writes the output itself.
- A step of the loop takes `TILE` tokens, whatever the size of a block: each token looks up its own block.
- The softmax is computed on the way: a running maximum, a running sum, and an accumulator that is rescaled when the
  maximum grows (online softmax). All in base 2, in which a GPU has an exponential.

What it compiles to, for a head_dim of 128 in float16, blocks of 16 tokens and several splits, by Triton 3.7.1. Nothing
spills, and all of K and V moves in asynchronous copies of 16 bytes. "In flight" is what the programs on a
multiprocessor (SM) can have under way together, at most. By Little's law an A100 needs about 11 KB of it, an H100 18,
a B200 43. (`pagedlab kernels --kernel decode` compiles them again.)

                         registers   shared memory   programs on an SM   in flight
    sm_80 tile 64, 3 stages     94        39,168 B                   4      128 KB   the choice here
    sm_90 tile 64, 3 stages     80        39,168 B                   5      160 KB
    sm_80 tile 64, 2 stages     80        38,912 B                   4      128 KB   every step waits for the table
    sm_80 tile 64, 5 stages     96        72,192 B                   2      128 KB   copies a step ahead
    sm_80 tile 32, 3 stages     72        21,632 B                   7      112 KB   twice the steps
    sm_80 tile 32, 5 stages     80        38,144 B                   4      128 KB   both

Triton counts the stages from the table to the products. With 3, the next step's block numbers come while this step's
keys and values do, but keys and values have one buffer: while a program computes it copies nothing, and the others on
its SM do. That is enough as long as there are others: one more reason for splits. Reading the block numbers a step
ahead by hand, carried through the loop, buys the same with one stage less, or the second buffer with two less. It is
more to read, and makes none of these figures better. The output of a single split, in float16, takes 128 registers on
sm_80 and 96 on sm_90; the programs on an SM stay the same.
"""

from pagedlab.gpu import mode

mode.choose()

import math  # noqa: E402

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from pagedlab.cache.accounting import blocks_needed  # noqa: E402
from pagedlab.cache.allocator import whole_number  # noqa: E402
from pagedlab.kernels.attention_checks import check_attention  # noqa: E402
from pagedlab.kernels.launch import LaunchError, cache_strides, check_last_dimension, launch, select  # noqa: E402
from pagedlab.kernels.merge import merge_splits  # noqa: E402
from pagedlab.kernels.splits import choose_num_splits  # noqa: E402

LOG2E = tl.constexpr(math.log2(math.e))


@triton.jit
def paged_decode_kernel(
    out, lse, q, key_cache, value_cache, block_tables, seq_lens, sinks,  # no lse: the only split; no sinks: None
    scale,
    q_seq_stride, q_head_stride, out_seq_stride, out_head_stride, out_split_stride, lse_seq_stride, lse_head_stride,
    table_stride,
    # Known when compiling: it saves registers, and 16-byte copies work for any HEAD_DIM that is a multiple of 8.
    key_block_stride: tl.constexpr, key_head_stride: tl.constexpr, key_slot_stride: tl.constexpr,
    value_block_stride: tl.constexpr, value_head_stride: tl.constexpr, value_slot_stride: tl.constexpr,
    tokens_per_split,
    GROUP_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, TILE_DIM: tl.constexpr,  # powers of 2
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,  # 0: none
    UPCAST: tl.constexpr,
):  # fmt: skip
    # A block's number times its stride overflows 32 bits in a large pool, and so may the others: all that can be large
    # is int64 before it is multiplied.
    seq = tl.program_id(0).to(tl.int64)
    row_tiles: tl.constexpr = (GROUP_SIZE + ROWS - 1) // ROWS
    kv_head = (tl.program_id(1) // row_tiles).to(tl.int64)
    split = tl.program_id(2)

    # The queries of the group, one a row. Rows beyond the group are zeros and are never stored.
    rows = tl.program_id(1) % row_tiles * ROWS + tl.arange(0, ROWS)
    heads = kv_head * GROUP_SIZE + rows
    dims = tl.arange(0, TILE_DIM)
    row_mask = (rows < GROUP_SIZE)[:, None] & (dims < HEAD_DIM)[None, :]
    query_offsets = seq * q_seq_stride + heads[:, None] * q_head_stride + dims[None, :]
    queries = tl.load(q + query_offsets, mask=row_mask, other=0.0)
    if UPCAST:
        queries = queries.to(tl.float32)

    # Where the split begins and ends; it may be empty. What a window has left behind belongs to no split.
    seq_len = tl.load(seq_lens + seq).to(tl.int32)
    first = tl.maximum(seq_len - WINDOW, 0) if WINDOW else 0
    start = first + split * tokens_per_split
    end = tl.minimum(start + tokens_per_split, seq_len)

    running_max = tl.full([ROWS], -float("inf"), tl.float32)
    if sinks is not None:  # a score that has no value, counted once: by the first split
        sink = tl.load(sinks + heads, mask=rows < GROUP_SIZE, other=-float("inf")).to(tl.float32)
        running_max = tl.where(split == 0, sink * LOG2E, -float("inf"))
    running_sum = tl.where(running_max > -float("inf"), 1.0, 0.0)
    acc = tl.zeros([ROWS, TILE_DIM], tl.float32)

    block_tables += seq * table_stride
    key_cache += kv_head * key_head_stride + dims[None, :]
    value_cache += kv_head * value_head_stride + dims[None, :]
    for tile_start in range(start, end, TILE):
        positions = tile_start + tl.arange(0, TILE)
        is_token = positions < end
        blocks = tl.load(block_tables + positions // BLOCK_SIZE, mask=is_token, other=0).to(tl.int64)[:, None]
        slots = (positions % BLOCK_SIZE)[:, None]
        # Slots behind the end may hold NaN, and 0 times NaN is NaN: values need their mask as much as keys do.
        tile_mask = is_token[:, None] & (dims < HEAD_DIM)[None, :]
        keys = tl.load(key_cache + blocks * key_block_stride + slots * key_slot_stride, mask=tile_mask, other=0.0)
        values = tl.load(value_cache + blocks * value_block_stride + slots * value_slot_stride, tile_mask, other=0.0)
        if UPCAST:
            keys, values = keys.to(tl.float32), values.to(tl.float32)

        # "ieee": or float32 would be cut to 10 bits of mantissa on its way into the tensor cores.
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        if SOFTCAP > 0.0:
            scores = softcap(scores, SOFTCAP)
        scores = tl.where(is_token[None, :], scores * LOG2E, -float("inf"))

        new_max = tl.maximum(running_max, tl.max(scores, 1))
        safe_max = tl.where(new_max == -float("inf"), 0.0, new_max)  # to subtract: -inf minus -inf is NaN
        probs = tl.exp2(scores - safe_max[:, None])
        rescale = tl.exp2(running_max - safe_max)
        running_sum = running_sum * rescale + tl.sum(probs, 1)
        acc = tl.dot(probs.to(values.dtype), values, acc * rescale[:, None], input_precision="ieee")
        running_max = new_max

    total = tl.where(running_sum == 0.0, 1.0, running_sum)  # no tokens: zeros
    if lse is not None:
        lse_offsets = seq * lse_seq_stride + heads * lse_head_stride + split
        tl.store(lse + lse_offsets, running_max + tl.log2(total), mask=rows < GROUP_SIZE)
        row_mask &= (running_max != -float("inf"))[:, None]  # nobody reads what an empty split would write
    out_offsets = seq * out_seq_stride + split * out_split_stride + heads[:, None] * out_head_stride + dims[None, :]
    tl.store(out + out_offsets, (acc / total[:, None]).to(out.dtype.element_ty), mask=row_mask)


@triton.jit
def softcap(scores, cap: tl.constexpr):
    """`cap * tanh(scores / cap)`: bent to stay within +-cap. All powers are below 1, so large scores give no inf."""
    power = tl.exp2(tl.abs(scores) * (-2 * LOG2E / cap))
    bent = cap * (1 - power) / (1 + power)
    return tl.where(scores < 0, -bent, bent)


def paged_decode(
    q: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float | None = None,
    *,
    kernel=paged_decode_kernel,
    num_splits: int | None = None,
    tokens_per_split: int | None = None,
    window: int = 0,
    **choices,
) -> torch.Tensor:
    """Shapes as in `ops.paged_decode`; all tensors on one device. Returns q's shape and type.

    Lengths and tables are not checked against the pool: `ops.paged_decode` does that.

    num_splits: parts that the longest sequence is split into (shorter ones into fewer of the same size). Not given: as
    many as fill the GPU, but 1 where Triton interprets and for a kernel of your own. tokens_per_split: parts of this
    size instead, which makes a sequence's result the same to the last bit whoever shares its batch. window, choices:
    see `decode_launch`.
    """
    _check_batch(q, block_tables, seq_lens)
    if num_splits is None and tokens_per_split is None:
        knows_splits = kernel is paged_decode_kernel
        num_splits = _splits_that_fill_the_gpu(q, key_cache, seq_lens, window) if knows_splits else 1
    grid, arguments, options = decode_launch(
        q,
        key_cache,
        value_cache,
        block_tables,
        seq_lens,
        scale,
        num_splits=num_splits,
        tokens_per_split=tokens_per_split,
        window=window,
        **choices,
    )
    if arguments["lse"] is not None and "lse" not in select(kernel, arguments):
        raise LaunchError(f"{kernel.fn.__name__} knows no splits: it has no parameter `lse`. Leave num_splits out")
    launch(kernel, grid, arguments, **options)
    if arguments["lse"] is not None:
        return merge_splits(arguments["out"], arguments["lse"], q.dtype)
    return arguments["out"].to(q.dtype)


MOST_ROWS = 32  # 64 rows spill
MOST_SPLITS = 65_535  # of a grid's third dimension
ONE_SPLIT = 2**30  # more tokens than any sequence has


def decode_launch(
    q: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float | None = None,
    *,
    num_splits: int | None = None,
    tokens_per_split: int | None = None,
    tile: int | None = None,
    window: int = 0,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    num_warps: int | None = None,
    num_stages: int | None = None,
):
    """(grid, arguments, options) of the kernel: what launching, compiling and tracing it take.

    The result comes in `arguments["out"]`, `[num_seqs, num_heads, head_dim]`. With several splits it is
    `[num_seqs, num_heads, num_splits, head_dim]` in float32, and `arguments["lse"]`, `[num_seqs, num_heads,
    num_splits]`, has each part's LSE to base 2.

    num_splits, tokens_per_split: one of them, or neither: one split. tile: tokens in a step, a power of 2 from 16.
    window: only the last so many tokens are seen; 0 for all. softcap: scores are bent to stay within it; 0 for none.
    sinks: for each head a score that takes its share of the softmax and adds no value, `[num_heads]`.
    """
    num_seqs, num_heads, head_dim = q.shape
    _, num_kv_heads, block_size, _ = key_cache.shape
    tile_dim = max(16, triton.next_power_of_2(head_dim))
    best_tile, best_stages = _step(q, tile_dim)
    tile = best_tile if tile is None else whole_number("tile", tile)
    window = min(whole_number("window", window), ONE_SPLIT)
    check_last_dimension(
        q=q, key_cache=key_cache, value_cache=value_cache, block_tables=block_tables, seq_lens=seq_lens
    )
    check_attention(q, key_cache, value_cache, tile, window, softcap, sinks)
    group_size = num_heads // num_kv_heads
    rows = min(MOST_ROWS, max(16, triton.next_power_of_2(group_size)))

    if num_splits is not None and tokens_per_split is not None:
        raise ValueError(f"num_splits={num_splits} and tokens_per_split={tokens_per_split}: choose one of the two")
    if tokens_per_split is not None:
        tokens_per_split = min(whole_number("tokens_per_split", tokens_per_split, at_least=1), ONE_SPLIT)
        num_splits = max(1, blocks_needed(_longest(seq_lens, window), tokens_per_split))
    elif num_splits is None or whole_number("num_splits", num_splits, at_least=1) == 1:
        num_splits, tokens_per_split = 1, ONE_SPLIT
    else:  # whole tiles
        tokens_per_split = tile * max(1, blocks_needed(_longest(seq_lens, window), tile * num_splits))
    if num_splits > MOST_SPLITS:
        raise ValueError(f"{num_splits} splits are more than the {MOST_SPLITS:,} a grid can have: make them larger")

    upcast = mode.is_interpreting() and q.dtype == torch.bfloat16  # the interpreter multiplies bfloat16's bit patterns
    if num_splits > 1:
        out = q.new_empty((num_seqs, num_heads, num_splits, head_dim), dtype=torch.float32)
        lse = q.new_empty((num_seqs, num_heads, num_splits), dtype=torch.float32)
    else:
        out, lse = q.new_empty(q.shape, dtype=torch.float32 if upcast else q.dtype), None
    arguments = {
        "out": out,
        "lse": lse,
        "q": q,
        "key_cache": key_cache,
        "value_cache": value_cache,
        "block_tables": block_tables,
        "seq_lens": seq_lens,
        "sinks": sinks,
        "scale": head_dim**-0.5 if scale is None else float(scale),
        "q_seq_stride": q.stride(0),
        "q_head_stride": q.stride(1),
        "out_seq_stride": out.stride(0),
        "out_head_stride": out.stride(1),
        "out_split_stride": head_dim,
        "lse_seq_stride": num_heads * num_splits,
        "lse_head_stride": num_splits,
        "table_stride": block_tables.stride(0),
        **cache_strides(key_cache, value_cache),
        "num_splits": num_splits,
        "tokens_per_split": tokens_per_split,
        "GROUP_SIZE": group_size,
        "BLOCK_SIZE": block_size,
        "HEAD_DIM": head_dim,
        "ROWS": rows,
        "TILE": tile,
        "TILE_DIM": tile_dim,
        "WINDOW": window,
        "SOFTCAP": float(softcap),
        "UPCAST": upcast,
    }
    grid = num_seqs, num_kv_heads * blocks_needed(group_size, rows), num_splits
    if num_warps is None:
        num_warps = 8 if q.dtype == torch.float32 else 4  # with 4, products outside of the tensor cores spill on sm_90
    return grid, arguments, {"num_warps": num_warps, "num_stages": best_stages if num_stages is None else num_stages}


def _check_batch(q, block_tables, seq_lens) -> None:
    num_seqs = len(q)
    if block_tables.ndim != 2 or len(block_tables) != num_seqs or seq_lens.shape != (num_seqs,):
        raise ValueError(
            f"block_tables is {list(block_tables.shape)} and seq_lens {list(seq_lens.shape)}: {num_seqs} sequences "
            "need a row and a length each"
        )


def _step(q: torch.Tensor, tile_dim: int) -> tuple[int, int]:
    """The tokens of a step and the pipeline's stages: see the module's text.

    Where a multiprocessor has little shared memory, half the tile keeps four programs on it. AMD's GPUs copy through
    registers: stages cost more of them than they hide.
    """
    tile_bytes, num_stages = 32 * 1024, 3  # keys and values together
    if q.is_cuda and torch.version.hip:
        tile_bytes, num_stages = 16 * 1024, 1
    elif q.is_cuda and torch.cuda.get_device_properties(q.device).shared_memory_per_multiprocessor < 160 * 1024:
        tile_bytes = 16 * 1024
    tile = tile_bytes // (2 * tile_dim * q.element_size())
    return max(16, min(64, tile)), num_stages


def _longest(seq_lens: torch.Tensor, window: int) -> int:
    """The most tokens that a sequence of the batch has to look at."""
    longest = int(seq_lens.max()) if len(seq_lens) else 0
    return min(longest, window) if window else longest


def _splits_that_fill_the_gpu(q, key_cache, seq_lens, window) -> int:
    if mode.is_interpreting():
        return 1  # its programs run one after the other
    return choose_num_splits(
        num_seqs=len(q),
        num_heads=q.shape[1],
        num_kv_heads=key_cache.shape[1],
        seq_len=_longest(seq_lens, window),
        tile=256,  # at least: writing and reading back a part result must stay small beside reading its tokens
        num_sms=torch.cuda.get_device_properties(q.device).multi_processor_count,
        blocks_per_sm=4,
    )

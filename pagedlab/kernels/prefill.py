"""Paged attention for many new tokens: whole prompts, or chunks of them, of several sequences.

One program takes one kv head and a tile of one sequence's new tokens. What it adds to `decode.py`:

- Rows are tokens times query heads of the group, 64 of them, so that every key read serves 64 queries, and so that a
  whole warp group of a newer GPU can multiply them (wgmma on sm_90, tcgen05 on sm_100). A group of 4 makes 16 tokens;
  where it does not divide 64 some rows stay empty: a group of 5 makes 12 tokens, 60 rows.
- Each row sees up to its own position. A program stops at its last row's: nobody in it may see what comes behind.
- The grid is a flat count of tiles. Those of sequence i begin at number `query_start_loc[i] // tokens + i`, which
  leaves room for every sequence's last, unfilled tile, and a program finds its sequence by bisection. So the grid
  follows from shapes alone: nobody waits for lengths to come back from the GPU.

Rows of tokens and heads, and the numbering of tiles, follow vLLM's unified attention (https://arxiv.org/abs/2511.11581).
"""

from pagedlab.gpu import mode

mode.choose()

import torch  # noqa: E402
import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from pagedlab.cache.allocator import whole_number  # noqa: E402
from pagedlab.kernels.attention_checks import check_attention  # noqa: E402
from pagedlab.kernels.decode import LOG2E, softcap  # noqa: E402
from pagedlab.kernels.launch import cache_strides, check_last_dimension, launch  # noqa: E402

ROWS = 64
"""What a warp group multiplies at a time. float32 has no tensor cores without TF32's rounding, and takes fewer."""

MOST_TOKENS = 2**30  # that a window can be said to have: more than any sequence

TILE_BYTES = 32 * 1024
"""Keys and values of one step."""


@triton.jit
def paged_prefill_kernel(
    out,
    q,
    key_cache,
    value_cache,
    block_tables,
    seq_lens,
    query_start_loc,
    sinks,  # [num_heads], or None
    scale,
    num_seqs,
    q_token_stride,
    q_head_stride,
    out_token_stride,
    out_head_stride,
    table_stride,
    key_block_stride: tl.constexpr,
    key_head_stride: tl.constexpr,
    key_slot_stride: tl.constexpr,
    value_block_stride: tl.constexpr,
    value_head_stride: tl.constexpr,
    value_slot_stride: tl.constexpr,
    GROUP_SIZE: tl.constexpr,  # query heads that share a kv head
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr,  # tokens x heads a program takes, a power of 2
    TILE: tl.constexpr,  # tokens a step looks at
    TILE_DIM: tl.constexpr,  # HEAD_DIM, or the next power of 2
    WINDOW: tl.constexpr,  # 0: everything before is seen, else only the last WINDOW tokens
    SOFTCAP: tl.constexpr,  # 0: none
    UPCAST: tl.constexpr,  # products in float32
):
    # The last tiles of a prompt look furthest back. They start first, and short ones fill the gaps at the end.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    kv_head = tl.program_id(1).to(tl.int64)
    TOKENS: tl.constexpr = ROWS // GROUP_SIZE

    seq, behind = tl.full([], 0, tl.int32), num_seqs
    while behind - seq > 1:  # the sequence is the last one whose tiles do not begin behind this tile
        middle = (seq + behind) // 2
        if tl.load(query_start_loc + middle).to(tl.int32) // TOKENS + middle <= tile:
            seq = middle
        else:
            behind = middle
    query_start = tl.load(query_start_loc + seq).to(tl.int32)
    num_new = tl.load(query_start_loc + seq + 1).to(tl.int32) - query_start
    first = (tile - (query_start // TOKENS + seq)) * TOKENS  # of the sequence's new tokens

    if first >= num_new:
        return  # this is the room for a tile that the sequence does not need

    rows, dims = tl.arange(0, ROWS), tl.arange(0, TILE_DIM)
    tokens = first + rows // GROUP_SIZE
    heads = kv_head * GROUP_SIZE + rows % GROUP_SIZE
    is_row = (rows < TOKENS * GROUP_SIZE) & (tokens < num_new)
    row_mask = is_row[:, None] & (dims < HEAD_DIM)[None, :]
    token_rows = (query_start + tokens).to(tl.int64)[:, None]
    queries = tl.load(
        q + token_rows * q_token_stride + heads[:, None] * q_head_stride + dims[None, :], mask=row_mask, other=0.0
    )
    if UPCAST:
        queries = queries.to(tl.float32)

    context = tl.load(seq_lens + seq).to(tl.int32) - num_new  # tokens that were there before
    own_positions = context + tokens
    start = tl.maximum(context + first - WINDOW + 1, 0) if WINDOW else 0
    end = context + tl.minimum(first + TOKENS, num_new)

    running_max = tl.full([ROWS], -float("inf"), tl.float32)
    if sinks is not None:  # a score without a value
        running_max = tl.load(sinks + heads, mask=is_row, other=-float("inf")).to(tl.float32) * LOG2E
    running_sum = tl.where(running_max > -float("inf"), 1.0, 0.0)
    acc = tl.zeros([ROWS, TILE_DIM], tl.float32)

    block_tables += seq.to(tl.int64) * table_stride
    key_cache += kv_head * key_head_stride + dims[None, :]
    value_cache += kv_head * value_head_stride + dims[None, :]
    for tile_start in range(start, end, TILE):
        positions = tile_start + tl.arange(0, TILE)
        is_token = positions < end
        blocks = tl.load(block_tables + positions // BLOCK_SIZE, mask=is_token, other=0).to(tl.int64)[:, None]
        slots = (positions % BLOCK_SIZE)[:, None]
        tile_mask = is_token[:, None] & (dims < HEAD_DIM)[None, :]
        keys = tl.load(key_cache + blocks * key_block_stride + slots * key_slot_stride, mask=tile_mask, other=0.0)
        values = tl.load(
            value_cache + blocks * value_block_stride + slots * value_slot_stride, mask=tile_mask, other=0.0
        )
        if UPCAST:
            keys, values = keys.to(tl.float32), values.to(tl.float32)

        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee")
        if SOFTCAP > 0:
            scores = softcap(scores * scale, SOFTCAP) * LOG2E
        else:
            scores = scores * (scale * LOG2E)
        is_seen = positions[None, :] <= own_positions[:, None]
        if WINDOW:
            is_seen = is_seen & (positions[None, :] > own_positions[:, None] - WINDOW)
        scores = tl.where(is_seen, scores, -float("inf"))

        new_max = tl.maximum(running_max, tl.max(scores, 1))
        safe_max = tl.where(new_max == -float("inf"), 0.0, new_max)  # -inf minus -inf is NaN
        probs = tl.exp2(scores - safe_max[:, None])
        rescale = tl.exp2(running_max - safe_max)
        running_sum = running_sum * rescale + tl.sum(probs, 1)
        acc = tl.dot(probs.to(values.dtype), values, acc * rescale[:, None], input_precision="ieee")
        running_max = new_max

    # Every row has seen itself at least. An empty one may have seen nothing; it is not stored.
    total = tl.where(running_sum == 0.0, 1.0, running_sum)
    out_place = token_rows * out_token_stride + heads[:, None] * out_head_stride + dims[None, :]
    tl.store(out + out_place, (acc / total[:, None]).to(out.dtype.element_ty), mask=row_mask)


def paged_prefill(
    q: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    scale: float | None = None,
    *,
    kernel=paged_prefill_kernel,
    **choices,
) -> torch.Tensor:
    """q `[total_tokens, num_heads, head_dim]`, the rest as in `ops.paged_prefill`, on one device. Returns q's shape and
    type.

    Numbers are not checked: `ops.paged_prefill` does that. choices: the other ones of `prefill_launch`.
    """
    grid, arguments, options = prefill_launch(
        q, key_cache, value_cache, block_tables, seq_lens, query_start_loc, scale, **choices
    )
    if len(q):
        launch(kernel, grid, arguments, **options)
    return arguments["out"].to(q.dtype)


def prefill_launch(
    q: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    query_start_loc: torch.Tensor,
    scale: float | None = None,
    *,
    rows: int | None = None,
    tile: int | None = None,
    window: int = 0,
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    num_warps: int | None = None,
    num_stages: int | None = None,
):
    """(grid, arguments, options) of the kernel; the result comes in `arguments["out"]`, q's shape.

    rows: tokens x query heads of a program, at least; a larger group gets what it needs. tile: tokens a step looks at,
    a power of 2 from 16. window, softcap, sinks: as in `decode.decode_launch`. What is not given is chosen so that
    everything fits in registers.
    """
    total_tokens, num_heads, head_dim = q.shape
    _, num_kv_heads, block_size, _ = key_cache.shape
    check_last_dimension(
        q=q,
        key_cache=key_cache,
        value_cache=value_cache,
        block_tables=block_tables,
        seq_lens=seq_lens,
        query_start_loc=query_start_loc,
    )
    _check_batch(block_tables, seq_lens, query_start_loc)
    window = min(whole_number("window", window), MOST_TOKENS)
    group_size, num_seqs = num_heads // num_kv_heads, len(seq_lens)
    tile_dim = max(16, triton.next_power_of_2(head_dim))
    default_rows, default_tile, default_stages = _what_fits(q, tile_dim)
    rows = default_rows if rows is None else whole_number("rows", rows, at_least=1)
    rows = triton.next_power_of_2(max(group_size, rows))
    tile = default_tile if tile is None else whole_number("tile", tile)
    check_attention(q, key_cache, value_cache, tile, window, softcap, sinks)
    num_warps = num_warps or (8 if tile_dim > 128 else 4)
    num_stages = num_stages or default_stages

    upcast = mode.is_interpreting() and q.dtype == torch.bfloat16  # the interpreter multiplies bfloat16's bit patterns
    out = q.new_empty(q.shape, dtype=torch.float32 if upcast else q.dtype)
    arguments = {
        "out": out,
        "q": q,
        "key_cache": key_cache,
        "value_cache": value_cache,
        "block_tables": block_tables,
        "seq_lens": seq_lens,
        "query_start_loc": query_start_loc,
        "sinks": sinks,
        "scale": head_dim**-0.5 if scale is None else float(scale),
        "num_seqs": num_seqs,
        "q_token_stride": q.stride(0),
        "q_head_stride": q.stride(1),
        "out_token_stride": out.stride(0),
        "out_head_stride": out.stride(1),
        "table_stride": block_tables.stride(0),
        **cache_strides(key_cache, value_cache),
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
    grid = total_tokens // (rows // group_size) + num_seqs, num_kv_heads
    return grid, arguments, {"num_warps": num_warps, "num_stages": num_stages}


def _check_batch(block_tables, seq_lens, query_start_loc) -> None:
    num_seqs = len(seq_lens)
    if block_tables.ndim != 2 or len(block_tables) != num_seqs or query_start_loc.shape != (num_seqs + 1,):
        raise ValueError(
            f"block_tables is {list(block_tables.shape)} and query_start_loc {list(query_start_loc.shape)}: "
            f"{num_seqs} sequences need a row each, and {num_seqs + 1} places where their queries begin and end"
        )


def _what_fits(q: torch.Tensor, tile_dim: int) -> tuple[int, int, int]:
    """Rows, tile and stages for which the kernel keeps everything in registers, as compiled for one GPU after another.

    Tensor cores that take their operands from shared memory, those of sm_90 and sm_100, leave room for the larger tile.
    AMD's GPUs copy through registers: stages cost more of them than they hide.
    """
    if q.element_size() == 4:
        return (16, 16, 3) if tile_dim > 128 else (32, 32, 3)
    tile_bytes, num_stages = TILE_BYTES, 3
    if q.is_cuda and torch.version.hip:
        tile_bytes, num_stages = TILE_BYTES // 2, 1
    elif q.is_cuda and torch.cuda.get_device_capability(q.device)[0] not in (9, 10):
        tile_bytes = TILE_BYTES // 2
    return ROWS, max(16, min(64, tile_bytes // (2 * tile_dim * q.element_size()))), num_stages

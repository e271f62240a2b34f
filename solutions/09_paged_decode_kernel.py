# %% [markdown]
# # 9 · What does one program of paged attention do?
#
# *About 90 minutes. You will write paged attention as a GPU kernel, in three steps. At the end, the real model writes
# with it, and you see what a compiler makes of it for an A100 and an H100.*
#
# In lesson 5 you walked along a block table in Python. In lesson 8 you wrote a kernel that stores. Now the two meet.
# **Which part of the walk is a program's, and what does it keep near?**

# %%
from pagedlab.gpu import mode

mode.interpret()  # kernels run in the interpreter here, with a GPU or without

import random

import torch
import triton
import triton.language as tl

from pagedlab import check, hint, your_parts
from pagedlab.cache.paged import PagedKVCache, PagedSequence
from pagedlab.cache.table import BlockTable, padded
from pagedlab.gpu.strict import strict
from pagedlab.gpu.trace import trace
from pagedlab.kernels.decode import decode_launch, paged_decode
from pagedlab.kernels.launch import launch, select
from pagedlab.model.load import load

parts = your_parts("block_allocator", "slot_mapping", "write_kv", "generate_cached", "paged_attention")
parts

# %% [markdown]
# ## The loop you know
#
# Lesson 5 carried three things through the blocks. In kernels they have these names:
#
# | lesson 5 | here | |
# |---|---|---|
# | `largest` | `running_max` | the largest score so far |
# | `total` | `running_sum` | the sum of `exp(score - running_max)` |
# | `mixed` | `acc` | the values, each times its `exp(score - running_max)` |
#
# A new tile of tokens rescales the last two by `exp(running_max - new_max)`. At the end, `acc / running_sum`.
#
# A program keeps all three in registers: two numbers and one row. Keys and values come over the long road, once.
#
# ## Something to attend to
#
# Two sequences in a used pool, with SmolLM2's 9 query heads and 3 kv heads of 64, in 16 bits as on a GPU. Numbers are
# random here; the real model comes later. Slots that nobody wrote hold NaN.

# %%
allocator = parts.block_allocator(16)
blocks = list(allocator.allocate(16))
random.Random(9).shuffle(blocks)
allocator.free(blocks)
generator = torch.Generator().manual_seed(9)


def numbers(*shape):
    """Random numbers from -2 to 2. All are multiples of 1/16, which 16 bits hold exactly."""
    return (torch.randint(-32, 33, shape, generator=generator) / 16).half()


# %%
key_cache, value_cache = torch.full((2, 16, 3, 8, 64), torch.nan).half()
a, b = tables = BlockTable(8), BlockTable(8)
for table, num_tokens in zip(tables, (43, 4)):
    table.append_tokens(num_tokens, allocator)
    slots = parts.slot_mapping(table.blocks, 0, num_tokens, 8)
    parts.write_kv(*numbers(2, num_tokens, 3, 64), key_cache, value_cache, slots)

q = numbers(2, 9, 64)
block_tables, seq_lens = padded(tables), torch.tensor([43, 4], dtype=torch.int32)
print("A: 43 tokens in blocks", a.blocks)
print("B:  4 tokens in blocks", b.blocks)

# %% [markdown]
# What must come out, by your lesson 5, in 32 bits:

# %%
wanted = parts.paged_attention(q.float(), key_cache.float(), value_cache.float(), block_tables, seq_lens)


def right(out, wanted=wanted):
    """16 bits keep about three digits."""
    return torch.allclose(out.float(), wanted, atol=3e-3)


# %% [markdown]
# ## Step 1: one head, one block
#
# First the smallest thing that is attention. A program takes one head of one sequence, and its sequence has one block.
# In torch:

# %%
block, head, kv_head = a.blocks[0], 7, 2
keys, values = key_cache[block, kv_head].float(), value_cache[block, kv_head].float()  # [block_size, head_dim]
scores = (q[0, head].float() * keys).sum(1) * 64**-0.5
probs = torch.exp(scores - scores.max())
small = (probs[:, None] * values).sum(0) / probs.sum()
print("scores:", [round(score, 2) for score in scores.tolist()])

# %% [markdown]
# In Triton nearly the same words, `tl.sum(..., axis=1)`, `tl.exp`, `tl.max`. What is new: keys come as a tile of
# pointers, with a mask, and slots behind the last token must not count.
#
# `.float()` is not for show.
#
# **Guess first.** A score is 64 products, added up. If each product and each sum is rounded to 16 bits, how far off is
# the worst of these scores, before scaling: 0.0001, 0.01, or 1?

# %%
exact, rounded = [], []
for key in key_cache[block, kv_head]:
    exact.append(float((q[0, head].float() * key.float()).sum()))
    rounded.append(float(sum((q[0, head] * key).unbind())))  # every product, and every sum
print("exact:  ", [f"{score:.3f}" for score in exact[:5]])
print("16 bits:", [f"{score:.3f}" for score in rounded[:5]])
print("worst of all:", max(abs(one - other) for one, other in zip(exact, rounded)))

# %% [markdown]
# In Triton, 16 bits times 16 bits stay 16 bits. So convert first: `.to(tl.float32)`. The product of two float16 numbers
# is then exact.

# %% [markdown]
# ## Exercise 9.1 · One head over one block
#
# The grid is `(num_seqs, num_heads)`. There are as many kv heads as heads, and each sequence has 1 to `block_size`
# tokens, so only its first block counts.
#
# - `q`, `out`: `[num_seqs, num_heads, head_dim]`. `key_cache`, `value_cache`: `[num_blocks, num_kv_heads, block_size,
#   head_dim]`. `block_tables`: `[num_seqs, max_blocks]`. `seq_lens`: `[num_seqs]`.
# - Strides count elements, and the last dimension has stride 1. `scale` is `1 / sqrt(head_dim)`.
#
# 1. Program (i, h) writes `out[i, h]`: attention of `q[i, h]` over the tokens of sequence i, kv head h.
# 2. Slots behind the last token may hold NaN, and count for nothing. `TILE` is a power of 2 and not smaller than a
#    block.
# 3. Any head size: `TILE_DIM` is `HEAD_DIM` or the next power of 2, and 16 at least. Any strides.
# 4. Scores may be very large or very negative. Products and sums are in float32.
#
# *Size of the answer: about 16 lines.* Stuck? `hint("paged_decode_kernel_step_1")`.


# %% tags=["exercise"]
@triton.jit
def paged_decode_kernel_step_1(
    out, q, key_cache, value_cache, block_tables, seq_lens, scale,
    q_seq_stride, q_head_stride, out_seq_stride, out_head_stride, table_stride,
    key_block_stride: tl.constexpr, key_head_stride: tl.constexpr, key_slot_stride: tl.constexpr,
    value_block_stride: tl.constexpr, value_head_stride: tl.constexpr, value_slot_stride: tl.constexpr,
    HEAD_DIM: tl.constexpr, TILE: tl.constexpr, TILE_DIM: tl.constexpr,
):  # fmt: skip
    """Program (sequence, head): one head over the first block of its sequence."""
    ### BEGIN SOLUTION
    seq, head = tl.program_id(0), tl.program_id(1)
    seq_len = tl.load(seq_lens + seq)
    block = tl.load(block_tables + seq * table_stride).to(tl.int64)
    slots, dims = tl.arange(0, TILE), tl.arange(0, TILE_DIM)
    stored, in_head = slots < seq_len, dims < HEAD_DIM
    mask = stored[:, None] & in_head[None, :]

    query = tl.load(q + seq * q_seq_stride + head * q_head_stride + dims, mask=in_head, other=0.0).to(tl.float32)
    key_at = block * key_block_stride + head * key_head_stride + slots * key_slot_stride
    keys = tl.load(key_cache + key_at[:, None] + dims[None, :], mask=mask, other=0.0).to(tl.float32)
    scores = tl.sum(query[None, :] * keys, axis=1) * scale
    scores = tl.where(stored, scores, float("-inf"))
    probs = tl.exp(scores - tl.max(scores, axis=0))

    value_at = block * value_block_stride + head * value_head_stride + slots * value_slot_stride
    values = tl.load(value_cache + value_at[:, None] + dims[None, :], mask=mask, other=0.0).to(tl.float32)
    result = tl.sum(probs[:, None] * values, axis=0) / tl.sum(probs, axis=0)
    tl.store(out + seq * out_seq_stride + head * out_head_stride + dims, result, mask=in_head)
    ### END SOLUTION


# %%
check("paged_decode_kernel_step_1", paged_decode_kernel_step_1)

# %% [markdown]
# A check runs your kernel inside `strict()`, on pools made to be hostile. Then it compiles it for an A100 (`sm_80`) and
# an H100 (`sm_90`). The end tells how to read it.

# %%
parts = your_parts(
    "block_allocator", "slot_mapping", "write_kv", "generate_cached", "paged_attention", "paged_decode_kernel_step_1"
)
parts

# %% [markdown]
# On A's first block. One query head for each kv head: 1, 4 and 7. That is every third, so a slice with a stride.

# %%
every_third = q[:1, 1::3]
one_block = decode_launch(every_third, key_cache, value_cache, block_tables[:1], torch.tensor([8]), tile=16)
_, arguments, _ = one_block
with strict():
    launch(parts.paged_decode_kernel_step_1, (1, 3), arguments)
print("head 7 as in torch above:", right(arguments["out"][0, 2], small))

# %% [markdown]
# `decode_launch` lists all arguments by name, and `launch` hands a kernel those it names.

# %% [markdown]
# ## Step 2: along the table
#
# A has 43 tokens in six blocks, so now a loop. How many tokens does one step take? A block would be simple. But
# blocks may have 8 slots, or 48, while a tile's sides are powers of 2, and a wide tile gives memory more to do at once.
# So `TILE` is free, and **each token asks the table for its own block**.
#
# **Guess first.** Blocks of 8, tiles of 16. Which of A's blocks does its last tile touch, and how many of the 16 lanes
# are on?

# %%
positions = 32 + torch.arange(16)
stored = positions < 43
columns = positions[stored] // 8
print("columns of the table:", columns.tolist())
print("blocks:              ", block_tables[0, columns].tolist())
print("slots:               ", (positions[stored] % 8).tolist())
print("lanes on:            ", int(stored.sum()), "of 16")

# %% [markdown]
# The lanes that are off need the mask four times. Not to read the table behind its end, nor keys, nor values. And their
# scores must be `-inf`: a score of 0 would weigh `exp(0 - running_max)`.
#
# ## Exercise 9.2 · Along the table
#
# The grid is still `(num_seqs, num_heads)`. New: any length, and groups.
#
# 1. Any number of tokens, in any blocks: tile by tile, each token's block from the table. What stands in a row behind
#    the last block means nothing.
# 2. Query head h reads kv head `h // GROUP_SIZE`.
# 3. The online softmax in float32. A sequence of length 0 gets zeros.
# 4. A pool may have more than 2**31 numbers.
#
# *Size of the answer: about 27 lines, most of them from 9.1.* Stuck? `hint("paged_decode_kernel_step_2")`.


# %% tags=["exercise"]
@triton.jit
def paged_decode_kernel_step_2(
    out, q, key_cache, value_cache, block_tables, seq_lens, scale,
    q_seq_stride, q_head_stride, out_seq_stride, out_head_stride, table_stride,
    key_block_stride: tl.constexpr, key_head_stride: tl.constexpr, key_slot_stride: tl.constexpr,
    value_block_stride: tl.constexpr, value_head_stride: tl.constexpr, value_slot_stride: tl.constexpr,
    GROUP_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    TILE: tl.constexpr, TILE_DIM: tl.constexpr,
):  # fmt: skip
    """Program (sequence, head): one head over all tokens of its sequence, TILE of them in a step."""
    ### BEGIN SOLUTION
    seq, head = tl.program_id(0), tl.program_id(1)
    kv_head = head // GROUP_SIZE
    seq_len = tl.load(seq_lens + seq)
    dims = tl.arange(0, TILE_DIM)
    in_head = dims < HEAD_DIM
    query = tl.load(q + seq * q_seq_stride + head * q_head_stride + dims, mask=in_head, other=0.0).to(tl.float32)

    running_max, running_sum = float("-inf"), 0.0
    acc = tl.zeros([TILE_DIM], dtype=tl.float32)
    for start in range(0, seq_len, TILE):
        positions = start + tl.arange(0, TILE)
        stored = positions < seq_len
        mask = stored[:, None] & in_head[None, :]
        table = block_tables + seq * table_stride
        blocks = tl.load(table + positions // BLOCK_SIZE, mask=stored, other=0).to(tl.int64)
        slots = positions % BLOCK_SIZE

        key_at = blocks * key_block_stride + kv_head * key_head_stride + slots * key_slot_stride
        keys = tl.load(key_cache + key_at[:, None] + dims[None, :], mask=mask, other=0.0).to(tl.float32)
        scores = tl.where(stored, tl.sum(query[None, :] * keys, axis=1) * scale, float("-inf"))

        new_max = tl.maximum(running_max, tl.max(scores, axis=0))
        shrink, probs = tl.exp(running_max - new_max), tl.exp(scores - new_max)
        value_at = blocks * value_block_stride + kv_head * value_head_stride + slots * value_slot_stride
        values = tl.load(value_cache + value_at[:, None] + dims[None, :], mask=mask, other=0.0).to(tl.float32)
        running_sum = running_sum * shrink + tl.sum(probs, axis=0)
        acc = acc * shrink + tl.sum(probs[:, None] * values, axis=0)
        running_max = new_max

    result = acc / tl.where(running_sum == 0.0, 1.0, running_sum)  # a sequence without tokens gets zeros
    tl.store(out + seq * out_seq_stride + head * out_head_stride + dims, result, mask=in_head)
    ### END SOLUTION


# %%
check("paged_decode_kernel_step_2", paged_decode_kernel_step_2)

# %%
parts = your_parts(
    "generate_cached", "block_allocator", "slot_mapping", "write_kv",
    "paged_decode_kernel_step_1", "paged_decode_kernel_step_2",
)  # fmt: skip
parts

# %% [markdown]
# The report may say that 8 B are spilled, as for our own kernel on an A100, and that nothing is fetched ahead. Step 3
# changes both. A and B, nine heads each, 18 programs:

# %%
_, arguments, _ = decode_launch(q, key_cache, value_cache, block_tables, seq_lens, tile=16)
with strict():
    launch(parts.paged_decode_kernel_step_2, (2, 9), arguments)
print("right:", right(arguments["out"]))

# %% [markdown]
# ## Too many reads
#
# Every number should come over the long road once. `trace` counts what programs load.
#
# **Guess first.** A has 43 tokens, 3 kv heads, and 64 numbers a key. How often is each number of its keys loaded?


# %%
def key_loads(kernel, grid):
    """How many numbers of A's keys its programs load."""
    programs = trace(kernel, grid, select(kernel, arguments), watch=()).programs
    of_a = [access for program in programs if program.pid[0] == 0 for access in program.events]
    return sum(len(access.elements) for access in of_a if access.tensor == "key_cache")


held = 43 * 3 * 64
loaded = key_loads(parts.paged_decode_kernel_step_2, (2, 9))
print(f"{held:,} numbers held, {loaded:,} loaded: {loaded / held:.0f} times each")

# %% [markdown]
# Three times: heads 6, 7 and 8 share a kv head, and each has a program that fetches the same keys. With Llama-3.1-70B
# it would be eight times.

# %% [markdown]
# ## Step 3: rows of a matrix
#
# So one program takes the whole group. Its three queries become the rows of a matrix, as in lesson 5, and the scores
# are a product of matrices: `tl.dot(queries, tl.trans(keys))`.
#
# That product is also what **tensor cores** do, the part of an SM with the 989 trillion operations. They take 16-bit
# numbers and add up in 32 bits by themselves. They want tiles of at least 16, so `ROWS` is 16: three rows are heads,
# and 13 are zeros.
#
# **Guess first.** 13 of 16 rows are computed for nothing. In lesson 8, an H100 could do 295 multiply-adds while one
# number arrives. How many does each number of a key now get: is the GPU's time wasted?

# %%
for rows in (3, 16, 64):
    print(
        f"{rows:2} rows: {rows:2} multiply-adds for each number, {100 * rows / 295:4.1f} % of the time it takes to arrive"
    )

# %% [markdown]
# No. Rows of zeros cost nothing that was not idle. (They cost registers, though.)
#
# ## Exercise 9.3 · A group of heads in one product
#
# The grid is `(num_seqs, num_kv_heads)`.
#
# 1. Program (i, k) writes the rows of `out[i]` that belong to kv head k: heads `k * GROUP_SIZE` and the
#    `GROUP_SIZE - 1` after it. No others, whatever the order in which programs run.
# 2. `ROWS` is a power of 2 from 16 on, not smaller than the group. Groups of 1, 3, 5 or 24 are fine.
# 3. All else as in 9.2. Each row has a `running_max` and a `running_sum` of its own.
#
# *Size of the answer: about 31 lines.* `tl.dot` wants one type on both sides: `probs.to(values.dtype)`. Stuck?
# `hint("paged_decode_kernel")`.


# %% tags=["exercise"]
@triton.jit
def paged_decode_kernel(
    out, q, key_cache, value_cache, block_tables, seq_lens, scale,
    q_seq_stride, q_head_stride, out_seq_stride, out_head_stride, table_stride,
    key_block_stride: tl.constexpr, key_head_stride: tl.constexpr, key_slot_stride: tl.constexpr,
    value_block_stride: tl.constexpr, value_head_stride: tl.constexpr, value_slot_stride: tl.constexpr,
    GROUP_SIZE: tl.constexpr, BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
    ROWS: tl.constexpr, TILE: tl.constexpr, TILE_DIM: tl.constexpr,
):  # fmt: skip
    """Program (sequence, kv head): all query heads of a group over all tokens of their sequence."""
    ### BEGIN SOLUTION
    seq, kv_head = tl.program_id(0), tl.program_id(1)
    seq_len = tl.load(seq_lens + seq)
    rows, dims = tl.arange(0, ROWS), tl.arange(0, TILE_DIM)
    in_head = dims < HEAD_DIM
    heads = kv_head * GROUP_SIZE + rows
    row_mask = (rows < GROUP_SIZE)[:, None] & in_head[None, :]
    query_at = seq * q_seq_stride + heads[:, None] * q_head_stride + dims[None, :]
    queries = tl.load(q + query_at, mask=row_mask, other=0.0)

    running_max = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    running_sum = tl.zeros([ROWS], dtype=tl.float32)
    acc = tl.zeros([ROWS, TILE_DIM], dtype=tl.float32)
    for start in range(0, seq_len, TILE):
        positions = start + tl.arange(0, TILE)
        stored = positions < seq_len
        mask = stored[:, None] & in_head[None, :]
        table = block_tables + seq * table_stride
        blocks = tl.load(table + positions // BLOCK_SIZE, mask=stored, other=0).to(tl.int64)
        slots = positions % BLOCK_SIZE

        key_at = blocks * key_block_stride + kv_head * key_head_stride + slots * key_slot_stride
        keys = tl.load(key_cache + key_at[:, None] + dims[None, :], mask=mask, other=0.0)
        scores = tl.where(stored[None, :], tl.dot(queries, tl.trans(keys)) * scale, float("-inf"))

        new_max = tl.maximum(running_max, tl.max(scores, axis=1))
        shrink, probs = tl.exp(running_max - new_max), tl.exp(scores - new_max[:, None])
        value_at = blocks * value_block_stride + kv_head * value_head_stride + slots * value_slot_stride
        values = tl.load(value_cache + value_at[:, None] + dims[None, :], mask=mask, other=0.0)
        running_sum = running_sum * shrink + tl.sum(probs, axis=1)
        acc = acc * shrink[:, None] + tl.dot(probs.to(values.dtype), values)
        running_max = new_max

    result = acc / tl.where(running_sum == 0.0, 1.0, running_sum)[:, None]
    out_at = seq * out_seq_stride + heads[:, None] * out_head_stride + dims[None, :]
    tl.store(out + out_at, result, mask=row_mask)
    ### END SOLUTION


# %%
check("paged_decode_kernel", paged_decode_kernel)

# %%
parts = your_parts(
    "generate_cached", "block_allocator", "slot_mapping", "write_kv",
    "paged_decode_kernel_step_2", "paged_decode_kernel",
)  # fmt: skip
parts

# %%
grid, arguments, _ = decode_launch(q, key_cache, value_cache, block_tables, seq_lens, tile=16)
with strict():
    launch(parts.paged_decode_kernel, (2, 3), arguments)
print("right:", right(arguments["out"]))
loaded = key_loads(parts.paged_decode_kernel, (2, 3))
print(f"{held:,} numbers held, {loaded:,} loaded: {loaded / held:.0f} time each")

# %% [markdown]
# Six programs, and each number comes once.

# %% [markdown]
# ## One program, step by step
#
# Your kernel, taken down while it ran. Look at program (0, 2), A's third kv head:
#
# - Each step reads the table first, then keys, then values.
# - Step through the tiles. Which blocks light up, and in which order do they lie in the pool?
# - `running_max` and `running_sum` are listed for its three rows. (They are found by these names. If yours are called
#   otherwise, they are missing.)

# %%
from pagedlab.widgets import TileViewer

traced = trace(parts.paged_decode_kernel, (2, 3), select(parts.paged_decode_kernel, arguments))
if not parts.is_yours("paged_decode_kernel"):
    traced = traced.without_text()  # the reference's lines would give the answer away
viewer = TileViewer(
    traced, block_tables=block_tables, seq_lens=seq_lens, program=(0, 2), step=1, rows=3, axes=("sequence", "KV head")
)
viewer

# %%
print(viewer.table())

# %% [markdown]
# ## The real model, on your kernel
#
# The model asks for attention in each of 30 layers. `paged_decode` launches your kernel for it. Keys and values go to
# 16 bits on the way. Each new token takes 30 layers × 3 kv heads = 90 programs.


# %%
smol = load()
config = smol.config


def attend_with_kernel(q, key_cache, value_cache, block_tables, seq_lens):
    halves = (tensor.half() for tensor in (q, key_cache, value_cache))
    return paged_decode(*halves, block_tables, seq_lens, kernel=parts.paged_decode_kernel).float()


def write_on(**attend):
    """Six tokens of an answer."""
    pool = PagedKVCache(config.num_hidden_layers, 8, config.num_key_value_heads, 8, config.head_dim)
    own = {"slot_mapping": parts.slot_mapping, "write": parts.write_kv}
    sequence = PagedSequence(pool, parts.block_allocator(8), **own, **attend)
    return parts.generate_cached(smol.model, prompt, 6, sequence)


# %%
prompt = smol.tokenizer.chat([{"role": "user", "content": "What is the capital of France?"}])
by_torch, by_kernel = write_on(), write_on(attend=attend_with_kernel)
print("by torch:      ", repr(smol.tokenizer.decode(by_torch)))
print("by your kernel:", repr(smol.tokenizer.decode(by_kernel)))
print("the same tokens:", by_torch == by_kernel)

# %% [markdown]
# That took seconds, and torch less than one. It says nothing about a GPU: the interpreter runs one program after the
# other, and each operation is a call in Python.

# %% [markdown]
# ## Three kernels that pass
#
# How do you know that a kernel is right? Most people try it on random numbers:


# %%
def random_batch(lengths, block_size=16, num_kv_heads=2, group=4, head_dim=64):
    """q, caches, tables and lengths. Blocks lie in order from 1 on, and every slot holds something."""
    torch.manual_seed(9)
    num_blocks = 1 + sum(-(-n // block_size) for n in lengths)
    q = torch.randn(len(lengths), num_kv_heads * group, head_dim).half()
    caches = torch.randn(2, num_blocks, num_kv_heads, block_size, head_dim).half()
    tables, free = [], list(range(1, num_blocks))
    for n in lengths:
        used = -(-n // block_size)
        tables.append(free[:used] + [-1] * (max(lengths) // block_size + 1 - used))
        free = free[used:]
    return q, *caches, torch.tensor(tables, dtype=torch.int32), torch.tensor(lengths)


def compare(kernel, batch, order="in order"):
    with strict(order=order):
        got = paged_decode(*batch, kernel=kernel, tile=16)
    q, keys, values, tables, lengths = batch
    want = parts.paged_attention(q.float(), keys.float(), values.float(), tables, lengths)
    return "right" if torch.allclose(got.float(), want, atol=3e-3) else "WRONG"


# %% [markdown]
# Here is our own kernel, three times, each with one line changed. Mistakes like these were made in public.

# %%
from pagedlab.course.altered_kernel import altered
from pagedlab.kernels.decode_steps import paged_decode_kernel_step_3 as ours

changes = {
    "first": (
        "value_at[:, None] + dims[None, :], mask=mask",
        "value_at[:, None] + dims[None, :], mask=in_head[None, :]",
    ),
    "second": ("(rows < GROUP_SIZE)[:, None]", "(heads < tl.num_programs(1) * GROUP_SIZE)[:, None]"),
    "third": ('running_max = tl.full([ROWS], float("-inf")', "running_max = tl.full([ROWS], 0.0"),
}
changed = {name: altered(ours, change) for name, change in changes.items()}
for name, (before, after) in changes.items():
    print(f"{name}\n  - {before}\n  + {after}")

# %%
parts = your_parts("paged_attention", "paged_decode_kernel", "paged_decode_kernel_step_2")
naive = random_batch([64, 64])
for name, kernel in {"yours": parts.paged_decode_kernel, **changed}.items():
    print(f"{name:6} {compare(kernel, naive)}")

# %% [markdown]
# **Guess first.** All pass. For each of the three, which input would show the mistake?
#
# We try: NaN in slots that nobody wrote, block 0 among them. The same batch, with its programs in reversed order.
# Scores that are all far below zero.


# %%
def with_nan_in_unused_slots(lengths):
    q, keys, values, tables, lens = random_batch(lengths)
    keys[0] = values[0] = torch.nan
    for row, n in zip(tables, lengths):
        keys[row[n // 16], :, n % 16 :] = values[row[n // 16], :, n % 16 :] = torch.nan
    return q, keys, values, tables, lens


def with_low_scores(lengths):
    q, keys, *rest = random_batch(lengths)
    q[..., 0], keys[..., 0] = -50, 40  # -2000 in the product, -250 in the score
    return q, keys, *rest


# %%
print("        naive   NaN     reversed  low scores")
for name, kernel in {"yours": parts.paged_decode_kernel, **changed}.items():
    results = (
        compare(kernel, naive),
        compare(kernel, with_nan_in_unused_slots([50, 7])),
        compare(kernel, naive, order="reversed"),
        compare(kernel, with_low_scores([64, 64])),
    )
    print(f"{name:6}  {results[0]:7} {results[1]:7} {results[2]:9} {results[3]}")

# %% [markdown]
# - The **first** masks scores but not values. The weight is 0, and 0 × NaN is NaN
#   ([vllm-project/vllm#936](https://github.com/vllm-project/vllm/issues/936)). Its dead lanes read block 0, since the
#   table's mask says `other=0`. A test in which block 0 holds numbers misses it.
# - The **second** stores rows that belong to the next kv head. In order, that head's program comes later and repairs it.
#   A GPU has no order
#   ([vllm-project/vllm#40792](https://github.com/vllm-project/vllm/pull/40792) is about such rows).
# - The **third** begins with a maximum of 0. Far below it, every `exp` is 0, and so is the sum.
#
# We keep some two dozen such kernels. The check must reject each, and a test shows that each passes a naive test.

# %% [markdown]
# ## Compiled
#
# Now for GPUs that are not here. The shape is Llama-3.1-8B's: heads of 128, groups of 4, blocks of 16, tiles of 64.
#
# **Guess first.** Which of your last two kernels uses tensor cores (`HMMA`), and which needs more registers?

# %%
from pagedlab.gpu.compiled import compile_many

q8, cache = torch.zeros(2, 32, 128).half(), torch.zeros(20, 8, 16, 128).half()
_, llama, options = decode_launch(q8, cache, cache.clone(), torch.zeros(2, 7, dtype=torch.int32), seq_lens, tile=64)
kernels = {"9.2": parts.paged_decode_kernel_step_2, "9.3": parts.paged_decode_kernel}
targets = ("sm_80", "sm_90")
made = compile_many([(kernel, llama, target, options) for kernel in kernels.values() for target in targets])
for name, one in zip(("9.2", "9.2", "9.3", "9.3"), made):
    print(f"measured: {name} on {one.summary()}")

# %% [markdown]
# 9.3, on both counts:
#
# - **HMMA** is a product on tensor cores. Without `tl.dot`, there is none.
# - **Async copies of 16 bytes** bring keys and values into shared memory while the program does something else.
#   The few narrower loads are lengths and table entries.
# - **Spilled** is what found no register and lives in far memory. Our 9.2 spills 8 B on an A100: one number, stored
#   before the loop and read behind it. Inside the loop it would hurt.
# - **Blocks per SM**: how many programs share a multiprocessor. Four would have 4 × 32 KB of keys and values on the
#   way. That is lesson 11.

# %%
made[-1] if parts.is_yours("paged_decode_kernel") else made[-1].without_text()

# %% [markdown]
# If yours spills or loads in small pieces, `check` passes it, with a line of advice: strides as `tl.constexpr`, 16-bit
# tiles into `tl.dot`, less that lives through the loop.
#
# What all this does not show: **time**. How much of the memory's 3.35 TB/s the kernel gets, what a launch costs, what L2
# keeps: for that you need a GPU.

# %% [markdown]
# ## What you learned
#
# - A program takes one kv head of one sequence, and all the query heads that share it.
# - It carries `running_max`, `running_sum` and `acc` in registers, and reads keys and values once.
# - A tile is as wide as suits the GPU. Each token asks the table for its own block.
# - Rows of zeros on tensor cores are free while memory is the limit.
# - Random numbers prove little. Poison, odd sizes, extreme scores and another order find what they don't.

# %% [markdown]
# ## Where it lives
#
# | idea | here | in vLLM |
# |---|---|---|
# | the three steps | `pagedlab/kernels/decode_steps.py` | |
# | the kernel with all extras | `pagedlab/kernels/decode.py` | `triton_unified_attention.py` in `v1/attention/ops` |
# | what it is checked with | `pagedlab/course/decode_probe.py` | `tests/kernels/attention` |
# | the traps | `tests/wrong_answers/paged_decode_kernel.py` | issues named there |
#
# The paper: sections 4.1 and 5.1 of [arXiv:2309.06180](https://arxiv.org/abs/2309.06180). Rows of a group, and splits:
# [FlashInfer, arXiv:2501.01005](https://arxiv.org/abs/2501.01005).

# %% [markdown]
# ## Next
#
# Lesson 10, *How is the work cut?*: one sequence with a long text gives three programs, and an H100 has 132
# multiprocessors.

# %% [markdown]
# # 8 · What is close to the arithmetic and what is far?
#
# *About 60 minutes. You will write your first GPU kernel: it stores keys and values by slot. At the end, the real model
# fills its pages through it, and you see what a compiler for an H100 makes of it.*
#
# In lesson 5, attention over pages was a loop in Python. On a GPU it is one *kernel*, a function that runs many times at
# once. You need no GPU to write one. You need a sense of what costs time there. It is hardly ever the arithmetic.

# %%
from pagedlab.gpu import mode

mode.interpret()  # says how kernels run; it must come before `import triton`

import torch
import triton
import triton.language as tl

from pagedlab import check, hint, your_parts
from pagedlab.model.load import load

parts = your_parts("block_allocator", "slot_mapping", "write_kv")
parts

# %% [markdown]
# Triton is a language for kernels, and looks like Python. Here an *interpreter* runs it, on your CPU. It computes the
# same numbers and lets us look inside, but its speed says nothing about a GPU's.
#
# ## The road of a number
#
# **Guess first.** An H100 reads 3.35 TB of its memory in a second. Its tensor cores do 989 trillion operations in a
# second, and a multiplication with an addition counts as two. A number has 2 bytes. How many multiply-adds could it do
# in the time in which *one* number arrives: 3, 30 or 300?

# %%
from pagedlab.gpu import gpus

h100 = gpus.find("H100")
numbers = h100.memory_bandwidth / 2
multiply_adds = h100.fp16_flops / 2
print(f"{multiply_adds / numbers:.0f} multiply-adds for each number that arrives")

# %% [markdown]
# In decode, each query head that shares a key multiplies its numbers once. In SmolLM2 three heads share it. So the
# arithmetic waits for numbers, nearly all the time.
#
# The chip is made of *streaming multiprocessors*, SMs for short; an H100 has 132. Arithmetic happens in them, with
# numbers in **registers**. Each SM also has **shared memory**, where its units hand numbers on. All SMs share one
# **L2** cache. Behind it, off the chip, lies the **memory** with the model and the pages.
#
# **Guess first.** Registers and shared memory are near. Add up all of an H100's. How many tokens of SmolLM2 in 16 bits,
# 23,040 bytes each, would fit?

# %%
near = h100.register_bytes + h100.shared_bytes
print(f"near: {near / 2**20:6,.0f} MiB, room for {near // 23_040:9,} tokens")
print(f"far:  {h100.memory_bytes / 2**20:6,.0f} MiB, room for {h100.memory_bytes // 23_040:9,} tokens")

# %%
from pagedlab.gpu.plots import memory_hierarchy

picture = memory_hierarchy()
picture

# %%
print(picture.table())

# %% [markdown]
# (`gpus.find("A100").source` names the vendor's paper.)
#
# The pages must be far. So a good kernel brings each number over the long road **once**, does everything with it, and
# keeps what it still needs in registers.

# %% [markdown]
# ## A program
#
# A kernel runs as many **programs**: the same code, but each knows its own number.


# %%
@triton.jit
def first_kernel(out):
    number = tl.program_id(0)
    tl.store(out + number, 10 * number)


out = torch.zeros(4, dtype=torch.int32)
first_kernel[(4,)](out)
print(out)

# %% [markdown]
# `[(4,)]` is the **grid**: four programs. There is no loop over them. On a GPU they run in any order, many at the same
# time.
#
# In the kernel, `out` is no tensor. It is a **pointer**, the address of the tensor's first number. `tl.load(pointer)`
# reads, `tl.store(pointer, number)` writes.
#
# **Guess first.** An int32 has 4 bytes. Is `out + 1` one byte further, or one number? (`trace` runs a kernel and notes
# what every program touches.)

# %%
from pagedlab.gpu.trace import trace

for program in trace(first_kernel, (4,), {"out": out}).programs:
    for access in program.events:
        print(f"program {program.pid[0]} does a {access.kind} at {access.tensor} + {access.elements.tolist()}")

# %% [markdown]
# One number. Offsets count elements, as strides do.

# %% [markdown]
# ## A tile
#
# One number a program would be a waste: memory hands out 32 bytes at a time, even to those who want 4. So a program
# works on a **tile**, many numbers at once. Each of them is a *lane*.


# %%
@triton.jit
def double_kernel(x, out, TILE: tl.constexpr):
    offsets = tl.program_id(0) * TILE + tl.arange(0, TILE)
    tl.store(out + offsets, 2 * tl.load(x + offsets))


x, out = torch.arange(12.0), torch.zeros(12)
double_kernel[(3,)](x, out, TILE=4)
print(out)

# %% [markdown]
# `tl.arange(0, 4)` is the tile 0, 1, 2, 3. A pointer plus a tile is a tile of pointers. `tl.constexpr` marks what the
# compiler must know, and the size of a tile is that.
#
# **Guess first.** Now with 10 numbers. What do the last two lanes of the third program do? (Inside `strict()`, the
# interpreter watches where each pointer goes.)

# %%
from pagedlab.gpu.strict import KernelError, strict

x, out = torch.arange(10.0), torch.zeros(10)
try:
    with strict():
        double_kernel[(3,)](x, out, TILE=4)
except KernelError as error:
    print(error)

# %% [markdown]
# They read what lies behind `x`, and would then overwrite what lies behind `out`. **A GPU does not tell you.** In a
# server, somebody else's pages lie there.

# %% [markdown]
# ## A mask
#
# A **mask**, a tile of yes and no, switches lanes off:


# %%
@triton.jit
def double_kernel(x, out, n, TILE: tl.constexpr):
    offsets = tl.program_id(0) * TILE + tl.arange(0, TILE)
    mask = offsets < n
    numbers = tl.load(x + offsets, mask=mask, other=0.0)
    tl.store(out + offsets, 2 * numbers, mask=mask)


with strict():
    double_kernel[(3,)](x, out, 10, TILE=4)
print(out)

# %% [markdown]
# A lane that is off reads nothing and writes nothing. `other` is what it holds instead; without, it holds anything.
#
# Masks also help with another rule:

# %%
try:
    with strict():
        double_kernel[(1,)](x, out, 10, TILE=10)
except KernelError as error:
    print(error.original)

# %% [markdown]
# Some models have heads of 80 or 96 numbers. Then the tile has 128 lanes, and the mask switches off the rest.

# %% [markdown]
# ## More dimensions
#
# A pointer knows no shape. You add up index times stride, as in exercise 4.4. And a grid can have two dimensions. Here
# a program takes one head of one token, and adds up its squares:


# %%
@triton.jit
def squares_kernel(keys, out, token_stride, head_stride, HEAD_DIM: tl.constexpr, TILE_DIM: tl.constexpr):
    token, head = tl.program_id(0), tl.program_id(1)
    dims = tl.arange(0, TILE_DIM)
    pointers = keys + token * token_stride + head * head_stride + dims
    key = tl.load(pointers, mask=dims < HEAD_DIM, other=0.0)
    tl.store(out + token * tl.num_programs(1) + head, tl.sum(key * key))


keys = torch.arange(2 * 3 * 5.0).view(3, 2, 5).transpose(0, 1)  # as the model hands them over: turned
out = torch.zeros(2, 3)
squares_kernel[(2, 3)](keys, out, keys.stride(0), keys.stride(1), HEAD_DIM=5, TILE_DIM=8)
print("strides:", keys.stride())
print("right:  ", torch.equal(out, (keys * keys).sum(2)))

# %% [markdown]
# The shape is `[2, 3, 5]`, but a token's heads don't lie side by side. So hand over strides, and never work them out.

# %% [markdown]
# ## Through a block table
#
# Now pages, in a pool that has been used before:

# %%
import random

from pagedlab.cache.paged import PagedKVCache, PagedSequence
from pagedlab.cache.table import padded

smol = load()
config = smol.config


def used_pool(num_blocks):
    """A pool, and an allocator whose free blocks are in no order."""
    pool = PagedKVCache(config.num_hidden_layers, num_blocks, config.num_key_value_heads, 8, config.head_dim)
    allocator = parts.block_allocator(num_blocks)
    blocks = list(allocator.allocate(num_blocks))
    random.Random(8).shuffle(blocks)
    allocator.free(blocks)
    return pool, allocator


# %% [markdown]
# The real model writes two prompts into it:

# %%
pool, allocator = used_pool(12)
own = {"slot_mapping": parts.slot_mapping, "write": parts.write_kv}
a, b = PagedSequence(pool, allocator, **own), PagedSequence(pool, allocator, **own)
smol.model(
    smol.tokenizer.encode("The old library keeps every book in pieces, and a small card says where they are."), a
)
smol.model(smol.tokenizer.encode("One, two, three, four"), b)
print("A:", a.num_tokens, "tokens in blocks", a.table.blocks)
print("B:", b.num_tokens, "tokens in blocks", b.table.blocks)

# %% [markdown]
# A program takes one head of one sequence, walks along the table, and keeps the largest number and the sum of all keys.
# Its tile has two dimensions, slots and dims: `[:, None]` and `[None, :]` work as in torch.


# %%
@triton.jit
def walk_kernel(
    key_cache, block_tables, seq_lens, out, table_stride, block_stride, head_stride, slot_stride,
    BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    sequence, head = tl.program_id(0), tl.program_id(1)
    length = tl.load(seq_lens + sequence)
    slots, dims = tl.arange(0, BLOCK_SIZE)[:, None], tl.arange(0, HEAD_DIM)[None, :]
    running_max, running_sum = -float("inf"), 0.0
    for start in range(0, length, BLOCK_SIZE):
        block = tl.load(block_tables + sequence * table_stride + start // BLOCK_SIZE)
        pointers = key_cache + block * block_stride + head * head_stride + slots * slot_stride + dims
        mask = start + slots < length
        tile = tl.load(pointers, mask=mask, other=0.0)
        running_max = tl.maximum(running_max, tl.max(tl.where(mask, tile, -float("inf"))))
        running_sum += tl.sum(tile)
    tl.store(out + sequence * tl.num_programs(1) + head, running_sum)


# %%
key_cache = pool.key_cache(10)
block_tables, seq_lens = padded([a.table, b.table]), torch.tensor([a.num_tokens, b.num_tokens])
arguments = {
    "key_cache": key_cache, "block_tables": block_tables, "seq_lens": seq_lens, "out": torch.zeros(2, 3),
    "table_stride": block_tables.stride(0), "block_stride": key_cache.stride(0),
    "head_stride": key_cache.stride(1), "slot_stride": key_cache.stride(2), "BLOCK_SIZE": 8, "HEAD_DIM": 64,
}  # fmt: skip
walked = trace(walk_kernel, (2, 3), arguments)
for number, step in enumerate(walked.program(0, 1).variables, 1):
    print(f"step {number}: running_max {step['running_max']:5.2f}, running_sum {step['running_sum']:7.2f}")

# %% [markdown]
# Six programs, none of which knows of the others. Step through them:
#
# - Each step reads one number of the table, and then the block that it names.
# - A program lights a third of its blocks: one head of three.
# - In the last step, some lanes are off. Find them, and the line of the kernel that switched them off.

# %%
from pagedlab.widgets import TileViewer

viewer = TileViewer(
    walked, block_tables=block_tables, seq_lens=seq_lens, program=(0, 1), step=1, rows=1, axes=("sequence", "KV head")
)
viewer

# %% [markdown]
# As text:

# %%
print(viewer.table())

# %% [markdown]
# ## Two traps on the way to a slot
#
# Your own kernel will turn a slot into an address. A dummy token has slot -1.
#
# **Guess first.** In Python, -1 // 16 is -1, and -1 % 16 is 15. And in Triton?


# %%
@triton.jit
def divide_kernel(out, slot, BLOCK_SIZE: tl.constexpr):
    tl.store(out, slot // BLOCK_SIZE)
    tl.store(out + 1, slot % BLOCK_SIZE)


out = torch.zeros(2, dtype=torch.int32)
divide_kernel[(1,)](out, -1, BLOCK_SIZE=16)
print("block", int(out[0]), "place", int(out[1]))

# %% [markdown]
# It divides towards zero, as C does. So slot -1 is a place *in front of* block 0
# ([NVIDIA/TensorRT-LLM#18673](https://github.com/NVIDIA/TensorRT-LLM/issues/18673)). A program can ask `if slot >= 0:`,
# since that is one number. For a tile it needs a mask.
#
# The other trap: whole numbers have 32 bits by default, and end at 2,147,483,647. Suppose that all layers' keys and
# values lie in one buffer, with a million numbers from a block to the next.
#
# **Guess first.** From which block on is block times stride too large: 200, 2,000 or 20,000?


# %%
@triton.jit
def address_kernel(out, block, stride):
    tl.store(out, block * stride)
    tl.store(out + 1, block.to(tl.int64) * stride)


out = torch.zeros(2, dtype=torch.int64)
for block in (2_000, 3_000):
    address_kernel[(1,)](out, block, 1_000_000)
    print(f"block {block:,}: {int(out[0]):14,} in 32 bits, {int(out[1]):13,} in 64")

# %% [markdown]
# From block 2,148, in a pool of some gigabytes. The product wraps around without a word. Then the program crashes
# ([yhfgyyf/vllm-deepseek-v4-sm89#51](https://github.com/yhfgyyf/vllm-deepseek-v4-sm89/pull/51)), or reads other data
# and goes on ([vllm-project/vllm#50427](https://github.com/vllm-project/vllm/issues/50427)). So `.to(tl.int64)`,
# **before** the product. Our `walk_kernel` has just this mistake. Where?

# %% [markdown]
# ## Exercise 8.1 · Store keys and values by slot
#
# What `write_kv` did in lesson 4, now for a GPU. The grid is `(num_tokens, num_kv_heads)`.
#
# - `keys`, `values`: `[num_tokens, num_kv_heads, head_dim]`. `key_cache`, `value_cache`: `[num_blocks, num_kv_heads,
#   block_size, head_dim]`. `slot_mapping`: one slot a token, of 32 or 64 bits.
# - Strides count elements. The last dimension has stride 1 everywhere.
#
# 1. One program stores one head of one token, its key and its value, in the token's slot. It touches nothing else.
# 2. A token with slot -1 is not stored.
# 3. `HEAD_DIM` may be any number; `TILE_DIM` is a power of 2 that is not smaller.
# 4. The four tensors may lie anywhere, each with its own strides. A cache may have more than 2**31 numbers.
#
# *Size of the answer: about 13 lines.* Stuck? `hint("kv_write_kernel")`.


# %% tags=["exercise"]
@triton.jit
def kv_write_kernel(
    keys,
    values,
    key_cache,
    value_cache,
    slot_mapping,
    keys_token_stride,
    keys_head_stride,
    values_token_stride,
    values_head_stride,
    key_block_stride,
    key_head_stride,
    key_slot_stride,
    value_block_stride,
    value_head_stride,
    value_slot_stride,
    BLOCK_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    TILE_DIM: tl.constexpr,
):
    """Program (token, head) stores one head of one new token: its key and its value."""
    ### BEGIN SOLUTION
    token, head = tl.program_id(0), tl.program_id(1)
    slot = tl.load(slot_mapping + token).to(tl.int64)
    if slot >= 0:
        block, place = slot // BLOCK_SIZE, slot % BLOCK_SIZE
        dims = tl.arange(0, TILE_DIM)
        mask = dims < HEAD_DIM
        key = tl.load(keys + token * keys_token_stride + head * keys_head_stride + dims, mask=mask)
        value = tl.load(values + token * values_token_stride + head * values_head_stride + dims, mask=mask)
        key_slot = key_cache + block * key_block_stride + head * key_head_stride + place * key_slot_stride
        value_slot = value_cache + block * value_block_stride + head * value_head_stride + place * value_slot_stride
        tl.store(key_slot + dims, key, mask=mask)
        tl.store(value_slot + dims, value, mask=mask)
    ### END SOLUTION


# %%
check("kv_write_kernel", kv_write_kernel)

# %% [markdown]
# The check ran it in `strict()`, in pools full of NaN. Then a compiler read it, for an A100 (sm_80) and an H100
# (sm_90).

# %%
parts = your_parts("block_allocator", "slot_mapping", "write_kv", "generate_cached", "kv_write_kernel")
parts

# %% [markdown]
# ## The real model, through your kernel
#
# Our `kv_write` launches the kernel that you hand it. Two sequences get the same prompt: one is written by torch, one
# by your kernel.

# %%
from pagedlab.kernels.write import kv_write, write_launch


def write_with_kernel(keys, values, key_cache, value_cache, slot_mapping):
    kv_write(keys, values, key_cache, value_cache, slot_mapping, kernel=parts.kv_write_kernel)


prompt = smol.tokenizer.chat([{"role": "user", "content": "Name three fruits."}])
by_torch, by_kernel = used_pool(12), used_pool(12)
with_torch = PagedSequence(*by_torch, slot_mapping=parts.slot_mapping)
with_kernel = PagedSequence(*by_kernel, slot_mapping=parts.slot_mapping, write=write_with_kernel)

# %%
with strict():
    texts = [parts.generate_cached(smol.model, prompt, 4, sequence) for sequence in (with_torch, with_kernel)]
print("text:     ", repr(smol.tokenizer.decode(texts[1])))
print("same text:", texts[0] == texts[1])

# %%
layers = range(config.num_hidden_layers)
for kind in ("key_cache", "value_cache"):
    pairs = [[getattr(pool, kind)(layer) for pool, _ in (by_torch, by_kernel)] for layer in layers]
    print(f"same {kind} in", sum(torch.equal(*pair) for pair in pairs), "of", len(layers), "layers")

# %% [markdown]
# To the last bit: nothing was computed, only moved, by 37 tokens × 3 heads × 30 layers = 3,330 programs.
#
# Here are some to step through: five new tokens, at positions 6 to 10 of a sequence with table [7, 2, 9]. The third is
# a dummy.

# %%
slots = parts.slot_mapping([7, 2, 9], 6, 11, 4)
slots[2] = -1
keys, values = torch.randn(2, 5, 3, 64)
caches = torch.zeros(2, 12, 3, 4, 64)
grid, arguments, _ = write_launch(keys, values, *caches, torch.tensor(slots))
traced = trace(parts.kv_write_kernel, grid, arguments)
if not parts.is_yours("kv_write_kernel"):
    traced = traced.without_text()  # the reference's lines would give the answer away
TileViewer(traced, axes=("token", "KV head"))

# %% [markdown]
# ## Compiled, for a GPU that is not here
#
# Triton's compiler needs no GPU. Here it makes machine code for an H100 (sm_90) from your kernel. The keys
# are those of Llama-3.1-8B in 16 bits: 8 heads of 128 numbers.

# %%
from pagedlab.gpu.compiled import compile_kernel


def described(head_dim):
    """What a launch would look like. Of tensors, only types, addresses and strides count."""
    keys, values = torch.zeros(2, 8, 4, head_dim, dtype=torch.float16).transpose(1, 2)
    caches = torch.zeros(2, 12, 8, 16, head_dim, dtype=torch.float16)
    return write_launch(keys, values, *caches, torch.arange(4))


_, arguments, options = described(128)
made = compile_kernel(parts.kv_write_kernel, arguments, target="sm_90", **options)
made if parts.is_yours("kv_write_kernel") else made.without_text()

# %% [markdown]
# No *spill*: the registers were enough. 32 *blocks* per SM: so many programs fit at once.
#
# A click below the tables opens the code. **PTX** is NVIDIA's language for all its GPUs, **SASS** is what an H100
# really runs. In SASS, find `LDG` (load) and `STG` (store), and your mask: the `@P` in front of them.
#
# One program is run by a *warp*, 32 threads in step. `LDG.E.128` moves 128 bits, 16 bytes, for each thread: that is
# the most. To give each so many, our launch makes the tile 256 lanes wide.
#
# **Guess first.** A head is 128 numbers of 2 bytes. How many of the 32 threads have anything to move?

# %%
print(arguments["TILE_DIM"] * 2 // 32, "bytes a thread, and", 128 * 2 // 16, "of 32 threads have some")

# %% [markdown]
# The mask turns the others off. One instruction moves a whole key.
#
# **Guess first.** 16 bytes at once need an address that 16 divides. At a launch, Triton looks at your pointers and
# strides, and tells the compiler which of them 16 divides. What if it doesn't? And what if a head has 100 numbers?

# %%
blind = compile_kernel(parts.kv_write_kernel, arguments, target="sm_90", hints=False, **options)
_, odd_arguments, _ = described(100)
odd = compile_kernel(parts.kv_write_kernel, odd_arguments, target="sm_90", **options)
for name, one in (("as launched", made), ("without hints", blind), ("heads of 100", odd)):
    print(f"measured: {name:13} {one.summary()}")

# %% [markdown]
# Both move in small pieces: **what a kernel is called with decides as much as its text.** (A stride that is
# `tl.constexpr` makes the last line better: the compiler then sees that 4 divides it.)
#
# Other chips: A100, B200, and AMD's MI300X (gfx942). Its warps have 64 threads, so 8 bytes each are enough.

# %%
for target in ("sm_80", "sm_100", "gfx942"):
    print("measured:", compile_kernel(parts.kv_write_kernel, arguments, target=target, **options).summary())

# %% [markdown]
# ## What the interpreter does not tell
#
# **Time**, of course. Two more things stay hidden. First, the order. This kernel copies blocks, one pair a program:


# %%
@triton.jit
def copy_kernel(blocks, pairs, SIZE: tl.constexpr):
    pair = tl.program_id(0)
    source, target = tl.load(pairs + 2 * pair), tl.load(pairs + 2 * pair + 1)
    lanes = tl.arange(0, SIZE)
    tl.store(blocks + target * SIZE + lanes, tl.load(blocks + source * SIZE + lanes))


# %% [markdown]
# **Guess first.** The pairs are 0 → 1 and 1 → 2. Before, block 0 holds zeros, block 1 ones, block 2 twos. What does
# block 2 hold afterwards?

# %%
for order in ("in order", "reversed"):
    blocks = torch.arange(3.0)[:, None].repeat(1, 4)
    with strict(order=order):
        copy_kernel[(2,)](blocks, torch.tensor([0, 1, 1, 2]), SIZE=4)
    print(f"{order:9} block 2 holds {blocks[2].tolist()}")

# %% [markdown]
# It depends. The interpreter runs programs one after the other; a GPU may show either. A kernel is right only
# if **no program reads what another writes**. Our `copy_blocks` refuses such pairs.
#
# Second, the lanes that are off. Without `other`, they hold anything. The interpreter says 0, and `strict()` says NaN:


# %%
@triton.jit
def sum_kernel(x, out, n, TILE: tl.constexpr):
    lanes = tl.arange(0, TILE)
    tl.store(out, tl.sum(tl.load(x + lanes, mask=lanes < n)))


total = torch.zeros(1)
sum_kernel[(1,)](torch.ones(5), total, 5, TILE=8)
print("interpreter:", total.item())
with strict():
    sum_kernel[(1,)](torch.ones(5), total, 5, TILE=8)
print("strict:     ", total.item())

# %% [markdown]
# ## What you learned
#
# - The arithmetic waits for memory. Near is small and fast, and the pages are far: bring each number over once.
# - A grid runs one text as many programs. Each has its number, tiles of lanes, and pointers plus offsets.
# - A mask switches lanes off. Without it, a kernel reads and overwrites what belongs to others, and nobody says so.
# - Slot -1 is in front of block 0, and block times stride needs 64 bits.
# - A compiler needs no GPU. Whether it moves 16 bytes at a time depends on strides and addresses.

# %% [markdown]
# ## Where it lives
#
# | idea | here | in vLLM |
# |---|---|---|
# | the kernel you wrote | `kv_write_kernel` in `pagedlab/kernels/write.py` | `reshape_and_cache_flash` |
# | launching by names | `pagedlab/kernels/launch.py` | |
# | the strict interpreter | `pagedlab/gpu/strict.py` | |
# | what a program touches | `pagedlab/gpu/trace.py` | |
# | compiled without a GPU | `pagedlab/gpu/compiled.py` | |
# | GPUs and their figures | `pagedlab/gpu/gpus.py` | |
#
# The paper: section 5.1 of [arXiv:2309.06180](https://arxiv.org/abs/2309.06180), where reshape and block write are one
# kernel.

# %% [markdown]
# ## Next
#
# Lesson 9, *The kernel itself*: attention over pages, as a program that loads tiles, multiplies, and keeps
# `running_max`, `running_sum` and `acc` in registers.

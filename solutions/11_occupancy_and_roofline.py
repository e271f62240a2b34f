# %% [markdown]
# # 11 · How full is the GPU, and does that matter?
#
# *About 75 minutes. You will compute how many blocks of a kernel fit on a GPU, as NVIDIA does it. Then how fast
# decoding could be at best, and which of the two to look at.*
#
# Lesson 10 filled the GPU with enough blocks. It took one number for granted: how many blocks an SM, a *streaming
# multiprocessor*, holds at a time. Where does that number come from? And is more always better?

# %%
from pagedlab.gpu import mode

mode.interpret()

import matplotlib.pyplot as plt
import torch

from pagedlab import check, hint, your_parts

parts = your_parts("paged_decode_kernel")
parts

# %% [markdown]
# No GPU is needed today. What fits follows from the compiler's numbers, and the bytes from the shapes. What only a
# GPU can tell, time, comes at the end.
#
# ## What an SM has

# %%
from pagedlab.gpu.targets import find

a100 = find("sm_80")
print(f"{a100.registers_per_sm:,} registers, in {a100.sub_partitions} register files")
print(f"{a100.shared_per_sm:,} bytes of shared memory")
print(f"places for {a100.max_warps_per_sm} warps and for {a100.max_blocks_per_sm} blocks")

# %% [markdown]
# sm_80 is the architecture of the A100. A block moves in when the SM has all it needs: registers for its warps,
# shared memory, places. It stays until it is done.
#
# Here is your kernel of lesson 9, compiled for an A100. A cache of 8 KV heads with 128 numbers each, 4 query heads to
# one: the shape of Llama-3.1-8B.

# %%
from pagedlab.gpu.compiled import compile_many
from pagedlab.kernels.decode import decode_launch

q = torch.zeros(16, 32, 128, dtype=torch.float16)
key_cache = torch.zeros(64, 8, 16, 128, dtype=torch.float16)
tables = torch.zeros(16, 256, dtype=torch.int32)
lens = torch.full((16,), 4096, dtype=torch.int32)


def launch(tile):
    """How paged_decode would be launched: grid, arguments by name, options."""
    return decode_launch(q, key_cache, key_cache.clone(), tables, lens, tile=tile)


kernel = parts.paged_decode_kernel
narrow, wide = (launch(tile)[1] for tile in (16, 64))
yours = compile_many([(kernel, narrow, "sm_80"), (kernel, wide, "sm_80")])
for tile, it in zip((16, 64), yours):
    print(f"measured: tile {tile}: {it.registers} registers, {it.shared_bytes:,} bytes shared, {it.num_warps} warps")

# %% [markdown]
# Other kernels and other versions of Triton give other numbers. So that we talk about the same ones, here are two of
# the package's kernel, from Triton 3.7.1: registers of a thread, bytes of a block, warps of a block.

# %%
tile_16 = (64, 12_864, 4)
tile_64 = (128, 39_168, 4)

# %% [markdown]
# **Guess first.** An A100's SM has places for 64 warps, and these blocks have 4 warps each. How many blocks of
# `tile_64` fit?
#
# ## Registers go to warps
#
# 128 registers are what *one thread* takes. A warp has 32 threads, a block 4 warps.

# %%
registers, _, num_warps = tile_64
print(f"a warp: {registers * 32:,}, a block: {registers * 32 * num_warps:,}, the SM: {a100.registers_per_sm:,}")
print("blocks:", a100.registers_per_sm // (registers * 32 * num_warps))

# %% [markdown]
# Four, not sixteen. A kernel that fills all 64 warps can spend 32 registers a thread. That is few.
#
# **Guess first.** What does the 33rd register cost?

# %%
file = a100.registers_per_sm // a100.sub_partitions
print("registers   a warp takes   warps in a file   warps on the SM")
for registers in (32, 33, 40, 41, 64, 96, 128, 152, 255):
    units = -(-registers * 32 // a100.register_unit)
    a_warp = units * a100.register_unit
    print(f"{registers:9} {a_warp:14,} {file // a_warp:17} {file // a_warp * a100.sub_partitions:17}")

# %% [markdown]
# A quarter of the warps. Two rules are at work:
#
# - A warp takes registers in units of 256. 33 × 32 = 1,056 becomes 1,280.
# - An SM has four *sub-partitions* with a register file of 16,384 each. A warp lives in one of them, with all its
#   registers.
#
# The second rule hurts at 152: with 4,864 registers a warp, one large file of 65,536 would take 13. Four files of
# 16,384 take three each.
#
# ## Shared memory goes to blocks
#
# The tiles of K and V wait in shared memory. From the A100 on, the driver adds 1,024 bytes of its own to every block.
# The sum is rounded up to 128 bytes.

# %%
for name, (_, shared_bytes, _) in {"tile 16": tile_16, "tile 64": tile_64}.items():
    units = -(-(shared_bytes + a100.reserved_shared) // a100.shared_unit)
    a_block = units * a100.shared_unit
    print(f"{name}: {shared_bytes:,} -> {a_block:,} bytes, {a100.shared_per_sm // a_block} blocks")

# %% [markdown]
# So shared memory allows four blocks of `tile_64` too. Both are scarce: with fewer registers alone, not one more
# block would fit.
#
# NVIDIA ships these rules as code, `cuda_occupancy.h`, and Triton brings that file along.
#
# ## Exercise 11.1 · How many blocks fit
#
# `target` is what `find` gives. What you need of it: `warp_size`, `register_unit`, `registers_per_partition`,
# `sub_partitions`, `shared_per_sm`, `reserved_shared`, `shared_unit`, `max_warps_per_sm`, `max_blocks_per_sm`.
#
# 1. `registers` are those of a thread. A warp takes them in whole units, from one sub-partition; a block's warps may
#    be in several.
# 2. `shared_bytes` are those of a block, without what is reserved. They may be 0. On the oldest target nothing is
#    reserved.
# 3. Returns `(blocks_per_sm, limiter)`. The limiter is the scarcest of `"registers"`, `"shared memory"`, `"warps"`,
#    `"blocks"`. Of equals, it is the first in that order.
# 4. What the SM hasn't got for one block gives 0 blocks.
#
# *Size of the answer: about 11 lines.* Stuck? `hint("occupancy")`.

# %% tags=["exercise"]
import math


def occupancy(registers, shared_bytes, num_warps, target):
    """registers of a thread, shared bytes and warps of a block. Returns (blocks_per_sm, limiter)."""
    ### BEGIN SOLUTION
    a_warp = -(-registers * target.warp_size // target.register_unit) * target.register_unit
    warps = target.registers_per_partition // a_warp * target.sub_partitions
    a_block = -(-(shared_bytes + target.reserved_shared) // target.shared_unit) * target.shared_unit
    limits = {
        "registers": warps // num_warps,
        "shared memory": target.shared_per_sm // a_block if a_block else math.inf,
        "warps": target.max_warps_per_sm // num_warps,
        "blocks": target.max_blocks_per_sm,
    }
    limiter = min(limits, key=limits.get)
    return limits[limiter], limiter
    ### END SOLUTION


# %%
check("occupancy", occupancy)

# %%
parts = your_parts("paged_decode_kernel", "occupancy")
parts

# %%
for name, shape in {"tile 16": tile_16, "tile 64": tile_64}.items():
    blocks, limiter = parts.occupancy(*shape, a100)
    warps = blocks * shape[2]
    print(f"{name}: {blocks} blocks, {warps} of 64 warps, {warps / a100.max_warps_per_sm:.0%}, limited by {limiter}")

# %% [markdown]
# So an A100 with its 108 SMs has 432 seats for `tile_64`: the `slots` of lesson 10.
#
# The share of warps in place is called *occupancy*. NVIDIA's tools print it for every kernel, and a low one looks
# like a fault. We'll see.
#
# ## Your kernel on every GPU
#
# The same source, compiled for six architectures. `lift()` says what would let more blocks fit. (On AMD's GPUs a warp
# is called a wave, and the SM a compute unit; `pagedlab.gpu.occupancy` knows their rules, too.)

# %%
targets = {
    "A100": "sm_80",
    "H100, H200": "sm_90",
    "B200": "sm_100",
    "RTX 4090": "sm_89",
    "RTX 5090": "sm_120",
    "MI300X": "gfx942",
}
compiled = dict(zip(targets, compile_many([(kernel, wide, target) for target in targets.values()])))
for name, it in compiled.items():
    fits = it.occupancy
    print(f"measured: {name:10} {fits.blocks_per_sm} blocks, {fits.fraction:4.0%}, by {fits.limiter}; {fits.lift()}")

# %% [markdown]
# Now play with it. Choose a GPU, the tile, the warps of a block. It compiles again, and marks your kernel on the
# curves. Which choice gets the most warps in? Which the most bytes?

# %%
from pagedlab.widgets import OccupancyExplorer

explorer = OccupancyExplorer(kernel, wide, num_stages=3, tile=64)
explorer

# %% [markdown]
# ## Does it matter?
#
# **Guess first.** On the A100, `tile_16` has twice the occupancy of `tile_64`. Which one keeps more bytes moving?
#
# Why have many warps at all? A load takes long: hundreds of nanoseconds until the bytes arrive. A warp that waits
# does nothing, and another takes its turn. What matters is that **enough bytes are on their way** all the time.
#
# How many are enough? Think of a pipe: what is in it is what flows through in a second, times the seconds that each
# drop is inside. This is *Little's law*:
#
# bytes in flight = bandwidth × latency

# %%
from pagedlab.gpu.gpus import GPUS

latency = 700e-9  # seconds; an assumption, see below
needed = {name: gpu.memory_bandwidth * latency / gpu.num_sms for name, gpu in GPUS.items()}
print("GPU        TB/s   SMs   kB on their way, each SM")
for name, gpu in GPUS.items():
    print(f"{name:8} {gpu.memory_bandwidth / 1e12:6.2f} {gpu.num_sms:5} {needed[name] / 1e3:14.1f}")

# %% [markdown]
# No vendor states the latency, and it grows with the load. With 600 or 800 ns, the numbers are a seventh less or
# more. The bandwidths are the vendors'.
#
# Now what a kernel has on its way, at most: one tile of K and V for each block.

# %%
for name, tile, shape in (("tile 16", 16, tile_16), ("tile 64", 64, tile_64)):
    blocks, _ = parts.occupancy(*shape, a100)
    a_tile = 2 * tile * 128 * 2  # K and V, head_dim, bytes
    print(f"{name}: {blocks} blocks x {a_tile:,} bytes = {blocks * a_tile:,} on their way")

# %% [markdown]
# Half the occupancy, twice the bytes. And 25 % are enough: these GPUs ask for 5 to 38 kB, and four wide tiles are 131
# kB. On an A100 a *single* block would do, if it always had a tile under way.
#
# It hasn't: while it multiplies, nothing is on its way. So a few blocks should take turns. But a full house isn't
# needed.

# %%
labels = ["tile 16\n50 % occupancy", "tile 64\n25 % occupancy"]
figure, axes = plt.subplots(figsize=(7, 3.4), dpi=85, facecolor="white")
axes.barh(labels, [65.5, 131.1], color=["#56B4E9", "#0072B2"], edgecolor="white", label="at most on its way")
for name, colour, style in (("A100", "#009E73", "-"), ("H200", "#D55E00", "--"), ("B200", "#CC79A7", ":")):
    kb = needed[name] / 1e3
    axes.axvline(kb, color=colour, linestyle=style, linewidth=2, label=f"{name} needs {kb:.0f} kB")
axes.set(title="Bytes on their way, one SM", xlabel="kB", xlim=(0, 145))
axes.legend(loc="lower right", fontsize=8)
plt.tight_layout()
plt.show()

# %% [markdown]
# What do wide tiles cost? Registers, for the tile is multiplied in them. What do they save? Instructions: each step
# of the loop has a fixed part. Here is what your kernel spends for a token.

# %%
for tile, it in zip((16, 64), yours):
    total = it.instructions.total
    print(f"measured: tile {tile}: {total:,} instructions in the text, {total / tile:.0f} for a token of the tile")

# %% [markdown]
# (The text includes what comes before and after the loop, so it is only a hint.)
#
# ## When it does matter
#
# The kernel of lesson 8 wrote one token's K and V for one head: 256 bytes each, and done. The package's takes 26
# registers, no shared memory and one warp. The SM has places for 32 such blocks.
#
# **Guess first.** Is that enough on its way for an H200?

# %%
blocks, limiter = parts.occupancy(26, 0, 1, find("sm_90"))
print(f"{blocks} blocks, limited by {limiter}: {blocks * 512:,} bytes on their way, {blocks / 64:.0%} occupancy")
print(f"an H200 asks for {needed['H200']:,.0f}")

# %% [markdown]
# No. It has twice the occupancy of `tile_64`, and an eighth of the bytes. A kernel with little to do in each block
# needs every place it can get. Better, it does more in each: several heads, say. (This one moves little in all, so
# nobody minds.)
#
# So occupancy is a means. Ask first: **how many bytes are on their way?** And then: how long would it take at best?
#
# ## The floor
#
# Whatever a kernel does, it must fetch its bytes and do its arithmetic. Both can go on at the same time. So the
# slower of the two is a floor, and no kernel gets under it.
#
# Arithmetic is counted in *FLOPs*, floating-point operations: a multiplication is one, an addition is one. How many
# FLOPs does a kernel do with each byte it fetches? That is its *intensity*.
#
# **Guess first.** One key has 128 numbers of 2 bytes, and 4 query heads use it. How many FLOPs for each of its bytes?

# %%
flops, size = 4 * 128 * 2, 128 * 2
print(f"{flops:,} FLOPs, {size} bytes: {flops / size:.0f} FLOPs a byte")

# %%
from pagedlab.gpu.roofline import ridge

print("GPU       TFLOP/s   TB/s   FLOPs a byte")
for name, gpu in GPUS.items():
    print(f"{name:8} {gpu.fp16_flops / 1e12:8,.0f} {gpu.memory_bandwidth / 1e12:6.2f} {ridge(gpu):14.0f}")

# %% [markdown]
# An H100 could do 295 FLOPs with each byte, and decoding has 4 for it. Its tensor cores stand still 99 % of the time.
# Only memory counts.
#
# That number, FLOP/s divided by bytes/s, is the GPU's *ridge*. Left of it a kernel waits for memory, right of it for
# arithmetic.
#
# ## Exercise 11.2 · The floor under decoding
#
# One decode step, one layer: each of `num_seqs` sequences has one query and attends over `seq_len` tokens. `gpu` has
# `memory_bandwidth` and `fp16_flops`, per second.
#
# 1. `bytes`: keys and values, once for each **KV** head; the queries and the output, for each query head. (Not the
#    block table: 4 bytes for 64 kB of the cache.)
# 2. `flops`: every **query** head, with every key and with every value; a multiplication with an addition is 2. (Not
#    the softmax.)
# 3. `intensity`: FLOPs for a byte. `seconds`: the floor. `bound`: `"memory"` or `"compute"`.
#
# Returns all five in this order, as a `Roofline`. *Size of the answer: about 6 lines.* Stuck?
# `hint("decode_roofline")`.

# %% tags=["exercise"]
from pagedlab.gpu.roofline import Roofline  # Roofline(bytes, flops, intensity, seconds, bound)


def decode_roofline(num_seqs, seq_len, num_heads, num_kv_heads, head_dim, bytes_per_element, gpu):
    """What one layer's attention takes at least, in one decode step."""
    ### BEGIN SOLUTION
    numbers = num_seqs * head_dim * (2 * seq_len * num_kv_heads + 2 * num_heads)
    size = numbers * bytes_per_element
    flops = num_seqs * num_heads * seq_len * head_dim * 2 * 2
    moving, computing = size / gpu.memory_bandwidth, flops / gpu.fp16_flops
    bound = "memory" if moving >= computing else "compute"
    return Roofline(size, flops, flops / size, max(moving, computing), bound)
    ### END SOLUTION


# %%
check("decode_roofline", decode_roofline)

# %%
parts = your_parts("paged_decode_kernel", "occupancy", "decode_roofline")
parts

# %% [markdown]
# ## Two ways to share
#
# In lesson 7 a batch paid because a weight is read once for all sequences.
#
# **Guess first.** With 64 sequences instead of one, how does the intensity of *attention* change?

# %%
h200 = GPUS["H200"]
print("sequences   attention   a layer's weights")
for num_seqs in (1, 8, 64):
    attention = parts.decode_roofline(num_seqs, 4096, 32, 8, 128, 2, h200)
    weights = 2 * num_seqs / 2  # each weight, 2 bytes, is multiplied and added once for each sequence
    print(f"{num_seqs:9} {attention.intensity:11.2f} {weights:19.0f}")

# %% [markdown]
# Not at all. Each sequence has keys and values of its own, and they are read for it alone. Batching helps the
# weights, not attention.
#
# What attention can share is a KV head among query heads: grouped-query attention, GQA.

# %%
from pagedlab.model.config import KNOWN_MODELS

print("              query heads   KV heads   intensity   ms on an H200")
for name in ("OPT-13B", "Llama-3.1-8B", "Qwen2.5-7B", "Llama-3.1-70B"):
    m = KNOWN_MODELS[name]
    heads, kv_heads = m.num_attention_heads, m.num_key_value_heads
    it = parts.decode_roofline(64, 4096, heads, kv_heads, m.head_dim, 2, h200)
    ms = 1e3 * it.seconds * m.num_hidden_layers
    print(f"{name:13} {heads:11} {kv_heads:10} {it.intensity:11.2f} {ms:15.1f}")

# %% [markdown]
# 64 sequences of 4,096 tokens, all layers. In OPT-13B every query head has keys of its own. It reads 2.5 times as
# much as Llama-3.1-70B, a model five times its size. That is what GQA is for, and why your kernel packs a group into
# one `tl.dot`: **one read for all of them**.
#
# Smaller numbers help, too: a cache in 8 bits halves the bytes.

# %%
for width, kind in ((2, "float16"), (1, "float8")):
    it = parts.decode_roofline(64, 4096, 32, 8, 128, width, h200)
    print(f"{kind}: {it.bytes / 1e9:.2f} GB a layer, {1e6 * it.seconds:.0f} us at least")

# %% [markdown]
# ## Which GPU?
#
# Llama-3.1-8B, 64 sequences of 4,096 tokens, 32 layers.
#
# **Guess first.** An H100 has three times an A100's arithmetic. How much faster does it decode, at best?

# %%
print("GPU        GB/s   all layers, at least   bound by   tensor cores busy")
for gpu in GPUS.values():
    it = parts.decode_roofline(64, 4096, 32, 8, 128, 2, gpu)
    busy = it.flops / gpu.fp16_flops / it.seconds
    print(f"{gpu.name:8} {gpu.memory_bandwidth / 1e9:6,.0f} {32e3 * it.seconds:17.1f} ms {it.bound:>10} {busy:19.1%}")

# %% [markdown]
# As much faster as its memory is: 1.6 times. An H200 is an H100 with more and faster memory. It decodes 1.4 times as
# fast with the same tensor cores. (The cache alone is 34 GB: all the memory that an RTX 5090 has.)
#
# The last column is the whole story. FLOP/s are what a GPU is sold by, and in decoding they lie idle.
#
# ## Prefill is another kernel
#
# A prompt brings many queries at once, and they share keys, as a group does.
#
# **Guess first.** A prompt of 4,096 tokens comes in chunks. From how many new tokens on does an H200 wait for
# arithmetic?

# %%
from pagedlab.gpu.roofline import prefill_roofline

points = {"decode": parts.decode_roofline(64, 4096, 32, 8, 128, 2, h200)}
for num_new in (16, 64, 256, 4096):
    points[f"{num_new:,} new tokens"] = prefill_roofline(num_new, 4096, 32, 8, 128, 2, h200)
for name, it in points.items():
    print(f"{name:16} {it.intensity:8.1f} FLOPs a byte, bound by {it.bound}")
bounds = (prefill_roofline(n, 4096, 32, 8, 128, 2, h200).bound for n in range(1, 4096))
print("bound by compute from", 1 + list(bounds).index("compute"), "new tokens on")

# %%
from pagedlab.gpu.plots import roofline_plot

roofline_plot(["A100", "H200"], points)

# %% [markdown]
# This picture is a *roofline*. On the slope, memory decides; under the flat roof, arithmetic. The corner is the
# ridge. A kernel's place from left to right is its intensity, which the shapes give. How far under the roof it stays
# is the kernel's own doing.
#
# So decode and prefill want different kernels. Decode: wide loads, enough bytes on their way, no byte twice. Prefill:
# large tiles for the tensor cores. Chunked prefill puts both into one step, and each fills what the other leaves
# idle.
#
# ## What a GPU says
#
# The floor is arithmetic. A real kernel is judged by how near it comes: the floor divided by the time it took. The
# vendor's bandwidth is out of reach, so beside it stands what a plain copy gets.
#
# With a GPU, `make bench-gpu` measures the course's kernels and others, in the source tree. Its last run, if there was one:

# %%
import json
from pathlib import Path

import pagedlab

path = Path(pagedlab.__file__).parents[1] / "benchmarks/results/gpu_attention.json"
results = json.loads(path.read_text()) if path.exists() else None
if results is None:
    print("There is no such run here yet.")
else:
    copy = results["copy_bytes_per_second"]
    print(f"measured: {results['gpu']}, decode with the course's kernel; a plain copy moves {copy / 1e9:,.0f} GB/s")
    print("measured: batch  context        us   of a copy   of the floor")
    for row in results["decode"]:
        shape, took = row["shape"], row["seconds"]["pagedlab"]
        if isinstance(took, float) and (shape["group_size"], shape["head_dim"], shape["block_size"]) == (4, 128, 16):
            of_copy = row["bytes"] / took / copy
            of_floor = f"{row['floor_seconds'] / took:.0%}" if row["floor_seconds"] else "-"
            print(f"measured: {shape['batch']:5} {shape['context']:8} {1e6 * took:9.1f} {of_copy:11.0%} {of_floor:>14}")

# %% [markdown]
# Only a clock can tell whether `tile_64` beats `tile_16`. The count above says that both can keep memory busy, no more.
#
# Others have seen how much a tile can matter. In
# [Dao-AILab/flash-attention#1572](https://github.com/Dao-AILab/flash-attention/issues/1572), FlashAttention-3 decoded
# on an H20: another tile made it 1.7 times as fast. The course has not repeated this.

# %% [markdown]
# ## What you learned
#
# - An SM shares out registers, shared memory, and places for warps and blocks. The scarcest decides.
# - Registers go to warps in units of 256, from one of four files. The driver adds 1,024 bytes of shared memory to
#   every block.
# - Occupancy is a means. What counts is bytes on their way: bandwidth × latency, 5 to 38 kB an SM.
# - In 16 bits, decoding has about as many FLOPs a byte as a group has query heads. So it waits for memory, on every
#   GPU. Batching doesn't change that; sharing KV heads helps.
# - The floor is bytes / bandwidth. A kernel is judged by how near it comes.

# %% [markdown]
# ## Where it lives
#
# | idea | here | elsewhere |
# |---|---|---|
# | what an SM has | `pagedlab/gpu/targets.py` | NVIDIA/cccl, `arch_traits.h` |
# | blocks that fit | `pagedlab/gpu/occupancy.py` | `cuda_occupancy.h`; LLVM's `llvm-calc-occupancy` for AMD |
# | GPUs and their sources | `pagedlab/gpu/gpus.py` | the vendors' datasheets |
# | the floor | `pagedlab/gpu/roofline.py` | Williams and others, [Roofline](https://doi.org/10.1145/1498765.1498785), 2009 |
# | a compiled kernel's numbers | `pagedlab/gpu/compiled.py` | `cuobjdump -res-usage` |
# | how many parts fill a GPU | `pagedlab/kernels/splits.py` | vLLM: segments of the 3D kernel in `triton_unified_attention.py` |
#
# The paper: section 7.1 of [arXiv:2309.06180](https://arxiv.org/abs/2309.06180) measures what paging costs a kernel.

# %% [markdown]
# ## Next
#
# Lesson 12, *How many requests fit when every request carries a receipt photo?*: from one kernel to a whole service.

# %% [markdown]
# # 10 · How is the work cut, and who merges the pieces?
#
# *About 75 minutes. You will cut one long sequence into pieces that fill a GPU, and write the kernel that merges their
# results. At the end you read, from compiled kernels, what the size of a step costs.*
#
# One user asks about a long document. Nobody else is there. Lesson 9's kernel has a program for each sequence and kv
# head. **How much of the GPU is at work?**

# %%
from pagedlab.gpu import mode

mode.interpret()  # kernels run in the interpreter here, with a GPU or without

import math
import random

import matplotlib.pyplot as plt
import torch
import triton
import triton.language as tl

from pagedlab import check, hint, your_parts
from pagedlab.gpu.gpus import GPUS
from pagedlab.model.config import KNOWN_MODELS

# %% [markdown]
# ## One user, a long text
#
# An H100 has 132 multiprocessors (SMs). Say that each has room for 4 of our programs at a time; we count them at the
# end. So the GPU has 528 slots. Llama-3.1-8B has 8 kv heads.
#
# **Guess first.** A sequence of 32,768 tokens decodes alone. How many of the 528 slots have work? And with 2,048
# tokens?

# %%
h100 = GPUS["H100"]
slots = h100.num_sms * 4
for name in ("SmolLM2-135M", "Llama-3.1-8B"):
    programs = KNOWN_MODELS[name].num_key_value_heads  # times one sequence
    print(f"{name:12}: {programs} programs for {slots} slots: {100 * programs / slots:.1f} % at work")

# %% [markdown]
# The length does not matter. Eight programs walk through 32,768 tokens each, and 124 SMs look on.

# %%
from pagedlab.gpu.plots import waves_plot

llama = KNOWN_MODELS["Llama-3.1-8B"]
waves_plot({"1 sequence": 8, "16 sequences": 128}, h100.num_sms, 4)

# %% [markdown]
# ## Waves
#
# Many sequences fill the slots by themselves: 66 make 528 programs. With 67 there are 536, 8 more than slots.
#
# **Guess first.** All programs take equally long. How much of the GPU's time is used with 528 programs, and how much
# with 536?


# %%
def wave_efficiency(programs, slots):
    waves = math.ceil(programs / slots)
    return programs / (waves * slots)


for num_seqs in (1, 16, 65, 66, 67, 100, 132):
    programs = num_seqs * llama.num_key_value_heads
    waves = math.ceil(programs / slots)
    print(f"{num_seqs:3} sequences: {programs:4} programs, waves: {waves}, {wave_efficiency(programs, slots):5.1%} used")

# %% [markdown]
# The last 8 programs need a second wave, and while they run, 520 slots are empty. This is called *wave quantisation*.
# (Real programs don't end all at once, so real waves blur. The loss at the end stays.)

# %%
waves_plot({"67 sequences": 536}, h100.num_sms, 4)

# %%
batches = range(1, 257)
figure, axes = plt.subplots(figsize=(7, 3), dpi=75, facecolor="white")
for name, colour, style in (("Llama-3.1-8B", "#0072B2", "-"), ("SmolLM2-135M", "#D55E00", "--")):
    kv_heads = KNOWN_MODELS[name].num_key_value_heads
    used = [100 * wave_efficiency(num_seqs * kv_heads, slots) for num_seqs in batches]
    axes.plot(batches, used, style, color=colour, label=f"{name}, {kv_heads} kv heads")
axes.set(title="Waves on an H100, one program per sequence and kv head", xlabel="sequences in the batch")
axes.set(ylabel="slots used, percent", ylim=(0, 105))
axes.legend(loc="lower right")
plt.show()

# %% [markdown]
# ## A third dimension
#
# A grid has three dimensions, and lesson 9 uses two. Let program (sequence, kv head, **split**) read only a part of the
# tokens. Eight programs become 8 × splits. This is *flash decoding*.
#
# **Guess first.** The 32,768 tokens are 512 tiles of 64. 528 slots for 8 programs: that is 66 splits. Good?

# %%
tiles, splits = 32_768 // 64, 528 // 8
per_split = math.ceil(tiles / splits)
print(f"{tiles} tiles in {splits} splits: {per_split} tiles each")
print(f"after {math.ceil(tiles / per_split)} splits no tile is left")

# %% [markdown]
# Two of the 66 splits get nothing. Sixty-six is really 64, with two launched in vain.
#
# And is more always better? Each split leaves a partial result that must be written, read and merged. So the rule,
# which is FlashAttention's, takes as few as will do.

# %% [markdown]
# ## Exercise 10.1 · How many splits
#
# `programs` is sequences × kv heads, `slots` is SMs × blocks per SM. `tiles` is the length in tiles, rounded up. (GPUs
# call a running program a block too. It has nothing to do with our blocks of tokens.)
#
# 1. Nothing to win: with `programs` at 80 % of `slots` or more, or with one tile or none, the answer is 1.
# 2. Else look at the counts from 1 to `tiles` whose splits **all have work**. A split takes `ceil(tiles / splits)`
#    tiles.
# 3. Each count fills its waves to some share: `wave_efficiency(programs * splits, slots)`. Find the best.
# 4. Return the **smallest** count whose share is at least 0.85 of the best.
#
# *Size of the answer: about 9 lines.* Stuck? `hint("choose_num_splits")`.


# %% tags=["exercise"]
def choose_num_splits(num_seqs, num_heads, num_kv_heads, seq_len, tile, num_sms, blocks_per_sm):
    """seq_len: tokens of the longest sequence. tile: tokens in a step. blocks_per_sm: programs that an SM runs at a
    time. Returns a whole number, at least 1."""
    ### BEGIN SOLUTION
    programs, slots, tiles = num_seqs * num_kv_heads, num_sms * blocks_per_sm, math.ceil(seq_len / tile)
    if programs >= 0.8 * slots or tiles <= 1:
        return 1
    shares = {}
    for splits in range(1, tiles + 1):
        if math.ceil(tiles / math.ceil(tiles / splits)) == splits:  # all have work
            shares[splits] = wave_efficiency(programs * splits, slots)
    best = max(shares.values())
    return min(splits for splits, share in shares.items() if share >= 0.85 * best)
    ### END SOLUTION


# %%
check("choose_num_splits", choose_num_splits)

# %%
parts = your_parts("merge_partials", "paged_decode_kernel", "choose_num_splits")
parts


# %%
def splits_for(config, num_seqs, seq_len, gpu):
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    return parts.choose_num_splits(num_seqs, heads, kv_heads, seq_len, 64, gpu.num_sms, 4)


three = {"A100": ("#009E73", "o"), "H100": ("#0072B2", "s"), "B200": ("#D55E00", "^")}
lengths = [512 * 2**power for power in range(9)]
print("tokens  ", *(f"{name:>5}" for name in three))
for seq_len in lengths:
    print(f"{seq_len:8}", *(f"{splits_for(llama, 1, seq_len, GPUS[name]):5}" for name in three))

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.2), dpi=75, facecolor="white", sharey=True)
batches = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256]
for name, (colour, marker) in three.items():
    look = {"color": colour, "marker": marker, "label": name, "markersize": 4}
    left.plot(lengths, [splits_for(llama, 1, seq_len, GPUS[name]) for seq_len in lengths], **look)
    right.plot(batches, [splits_for(llama, num_seqs, 32_768, GPUS[name]) for num_seqs in batches], **look)
left.set(title="One sequence", xlabel="tokens", ylabel="splits", xscale="log", yscale="log")
right.set(title="32,768 tokens each", xlabel="sequences in the batch", xscale="log")
left.set_xticks([512, 4096, 32_768, 131_072], ["512", "4k", "32k", "128k"])
right.set_xticks([1, 4, 16, 64, 256], ["1", "4", "16", "64", "256"])
left.set_yticks([1, 4, 16, 64], ["1", "4", "16", "64"])
left.legend()
plt.show()

# %%
for num_seqs in (1, 4, 16, 24, 64, 256):
    counts = [f"{name} {splits_for(llama, num_seqs, 32_768, GPUS[name]):3}" for name in three]
    print(f"batch {num_seqs:3}, 32,768 tokens each:", ", ".join(counts))

# %% [markdown]
# On the left, a short text has a split for each tile, until the slots are full. Then length changes nothing. On the
# right, the batch does the work by itself: the more sequences, the fewer splits. The bumps are waves. 24 sequences make
# 192 programs; 2 splits fill 73 % of an H100, and 3 spill into a second wave. 5 splits fill two waves to 91 %.

# %%
splits = splits_for(llama, 1, 32_768, h100)
waves_plot({"1 split": 8, f"{splits} splits": 8 * splits}, h100.num_sms, 4)

# %% [markdown]
# The rule is only as good as its numbers. One library believed in 120 multiprocessors on a GPU with 304
# ([ROCm/rocm-libraries#9739](https://github.com/ROCm/rocm-libraries/pull/9739)). A server never made more than 8
# splits. With up to 64, a step at 120,000 tokens was up to 3.5 times as fast
# ([sgl-project/sglang#27786](https://github.com/sgl-project/sglang/pull/27786)).

# %% [markdown]
# ## Real pages
#
# Now split something real: SmolLM2 reads a long list, into blocks of 16 that lie in no order. We keep the query, keys
# and values of one layer, in float16.

# %%
from pagedlab.cache.allocator import BlockAllocator
from pagedlab.cache.paged import PagedKVCache, PagedSequence
from pagedlab.kernels import ops
from pagedlab.model.load import load

smol = load()
config = smol.config
text = "In the cellar are 24 shelves. " + " ".join(f"Shelf {n} holds {7 * n % 31 + 2} jars." for n in range(1, 25))
ids = smol.tokenizer.chat([{"role": "user", "content": text + " How many jars are on shelf 17?"}])

# %%
queries = []  # one [num_heads, head_dim] for each layer


def watched(q, *rest):
    queries.append(q[0])
    return ops.paged_decode(q, *rest)


pool = PagedKVCache(config.num_hidden_layers, 64, config.num_key_value_heads, 16, config.head_dim)
allocator = BlockAllocator(64)
mixed = list(allocator.allocate(64))
random.Random(10).shuffle(mixed)
allocator.free(mixed)
sequence = PagedSequence(pool, allocator, attend=watched)
smol.model(ids[:-1], sequence)
logits = smol.model(ids[-1:], sequence)  # one new token: `watched` is called in each layer

# %%
layer = 22  # one of the 30
q = queries[layer][None].half()
key_cache, value_cache = pool.key_cache(layer).half(), pool.value_cache(layer).half()
block_tables = torch.tensor([sequence.table.blocks], dtype=torch.int32)
seq_lens = torch.tensor([sequence.num_tokens], dtype=torch.int32)
print(sequence.num_tokens, "tokens in", len(sequence.table.blocks), "blocks")

# %% [markdown]
# ## What a split leaves
#
# The package's kernel is yours of lesson 9, with a third dimension. `decode_launch` describes the launch: the grid, and
# every argument by its name.

# %%
from pagedlab.kernels.decode import decode_launch, paged_decode, paged_decode_kernel
from pagedlab.kernels.launch import launch

grid, arguments, options = decode_launch(q, key_cache, value_cache, block_tables, seq_lens, num_splits=3)
launch(paged_decode_kernel, grid, arguments, **options)
partial_out, partial_lse = arguments["out"], arguments["lse"]
print("grid:", grid, "of", arguments["tokens_per_split"], "tokens each")
print("out:", list(partial_out.shape), partial_out.dtype, "lse:", list(partial_lse.shape), partial_lse.dtype)

# %% [markdown]
# Each split has finished its own softmax: its `out` is an average over its own tokens. You merged such parts in lesson
# 5, by their log-sum-exp (lse).
#
# **Guess first.** Here the lse is to base 2. Which function turns it into the weight of its split?

# %%
head = 5  # one of the 9
weights = torch.exp2(partial_lse[0, head])
for split, share in enumerate(weights / weights.sum()):
    print(f"split {split}: lse {partial_lse[0, head, split]:.1f}, {100 * share:.0f} % of head {head}'s attention")

# %% [markdown]
# Why base 2? A GPU has an instruction for 2 to a power, and none for e. The kernel multiplies the scores by log2(e)
# once, and stays in base 2 from then on.
#
# Your `merge_partials` wants natural logarithms. log(x) is log2(x) × log(2):

# %%
out, lse = partial_out[0, :, 0], partial_lse[0, :, 0] * math.log(2)
for split in (1, 2):
    out, lse = parts.merge_partials(out, lse, partial_out[0, :, split], partial_lse[0, :, split] * math.log(2))

whole = paged_decode(q, key_cache, value_cache, block_tables, seq_lens, num_splits=1)
print("three splits, merged, are the whole:", torch.allclose(out, whole[0].float(), atol=2e-3))

# %% [markdown]
# **Guess first.** What if the logarithms are taken for natural ones as they are?

# %%
wrong = torch.softmax(partial_lse[0, head], 0)
print("shares of head 5:", [f"{100 * share:.0f} %" for share in weights / weights.sum()])
print("by exp instead:  ", [f"{100 * share:.0f} %" for share in wrong])

# %% [markdown]
# The heavy get heavier. The text still reads well, so nobody notices. It was found in a server where cached prefixes
# are merged with new tokens: those got 0.4 % of the attention instead of 2 %
# ([sgl-project/sglang#40903](https://github.com/sgl-project/sglang/issues/40903)).
#
# ## Splits with nothing in them
#
# All sequences of a batch share one grid. It is cut for the longest. What about a short one?

# %%
two_tables = block_tables.repeat(2, 1)
two_lens = torch.tensor([sequence.num_tokens, 40], dtype=torch.int32)
grid, arguments, options = decode_launch(
    q.repeat(2, 1, 1), key_cache, value_cache, two_tables, two_lens, num_splits=3
)
arguments["out"].fill_(math.nan)
launch(paged_decode_kernel, grid, arguments, **options)
print("lse of the short one:", [round(lse, 1) for lse in arguments["lse"][1, head].tolist()])
print("out of its last split is still all NaN:", bool(arguments["out"][1, head, 2].isnan().all()))

# %% [markdown]
# 40 tokens fit into its first split. The other two have seen nothing: the logarithm of 0 is `-inf`. As their `out` the
# kernel writes nothing, to save time. So a merge finds whatever lay in that memory, and a weight of 0 does not help:
# 0 × NaN is NaN. It has happened ([ROCm/aiter#4420](https://github.com/ROCm/aiter/pull/4420)).

# %% [markdown]
# ## Exercise 10.2 · The merge kernel
#
# The grid is `(num_seqs, num_heads)`: **query** heads. A program merges `num_splits` rows of `HEAD_DIM` numbers into
# one. `partial_out` is `[num_seqs, num_heads, num_splits, head_dim]`, `partial_lse` is `[num_seqs, num_heads,
# num_splits]`.
#
# 1. A split's share is 2 to the power of its lse, divided by the sum over all splits. An lse may be 3,000 or -60,000.
# 2. A split whose lse is `-inf` counts for nothing, whatever its `out` holds. If all are empty, the result is zeros.
# 3. Tiles have powers of 2: `SPLITS` and `TILE_DIM` are the next ones. What lies beyond is not read, not written.
# 4. Strides are given, except where numbers lie side by side: the last dimension of each.
#
# *Size of the answer: about 17 lines.* `check` runs it in the strict interpreter, then compiles it for two GPUs. Stuck?
# `hint("merge_splits_kernel")`.


# %% tags=["exercise"]
@triton.jit
def merge_splits_kernel(
    out, partial_out, partial_lse,
    out_seq_stride, out_head_stride,
    partial_out_seq_stride, partial_out_head_stride, partial_out_split_stride,
    partial_lse_seq_stride, partial_lse_head_stride,
    num_splits,
    SPLITS: tl.constexpr, HEAD_DIM: tl.constexpr, TILE_DIM: tl.constexpr,
):  # fmt: skip
    """out: [num_seqs, num_heads, head_dim]. partial_out and partial_lse are float32."""
    ### BEGIN SOLUTION
    seq, head = tl.program_id(0), tl.program_id(1)
    splits, dims = tl.arange(0, SPLITS), tl.arange(0, TILE_DIM)
    lses = partial_lse + seq * partial_lse_seq_stride + head * partial_lse_head_stride + splits
    lse = tl.load(lses, mask=splits < num_splits, other=-float("inf"))
    largest = tl.max(lse, 0)
    largest = tl.where(largest == -float("inf"), 0.0, largest)  # -inf minus -inf would be NaN
    weights = tl.exp2(lse - largest)
    rows = partial_out + seq * partial_out_seq_stride + head * partial_out_head_stride
    has_tokens = lse > -float("inf")
    parts = tl.load(
        rows + splits[:, None] * partial_out_split_stride + dims[None, :],
        mask=has_tokens[:, None] & (dims < HEAD_DIM)[None, :],
        other=0.0,
    )
    total = tl.sum(weights, 0)
    merged = tl.sum(weights[:, None] * parts, 0) / tl.where(total == 0.0, 1.0, total)
    tl.store(out + seq * out_seq_stride + head * out_head_stride + dims, merged, mask=dims < HEAD_DIM)
    ### END SOLUTION


# %%
check("merge_splits_kernel", merge_splits_kernel)

# %%
parts = your_parts("paged_decode_kernel", "choose_num_splits", "merge_splits_kernel")
parts

# %%
from pagedlab.kernels.merge import merge_splits

merged = merge_splits(partial_out, partial_lse, torch.float16, kernel=parts.merge_splits_kernel)
print("the merge kernel gives the whole:", torch.allclose(merged, whole, atol=2e-3))

# %% [markdown]
# ## The same, or the same to the bit?
#
# Two ways to compute one sum. In real numbers they agree.
#
# **Guess first.** 576 numbers in float16, from one split and from three. Are they equal to the last bit?

# %%
different = int((merged.view(torch.int16) != whole.view(torch.int16)).sum())
print("equal to the last bit:", different == 0)
print(f"measured: {different} of {merged.numel()} numbers differ, by at most {(merged - whole).abs().max():.6f}")

# %% [markdown]
# They are close, not equal: floating-point addition depends on its order. That sounds harmless. But the count of splits
# depends on the **batch**, so your result depends on who else is served. With temperature 0, the same question may get
# two answers.

# %% [markdown]
# ## Alone and in company
#
# A is our sequence. B is longer: A's blocks, three times over (a block table may name a block twice).
#
# **Guess first.** Two ways to cut: always 3 splits, or always 128 tokens a split. With which one does B change A's
# bits?

# %%
a_len = sequence.num_tokens
b_table = sequence.table.blocks[: a_len // 16] * 3
pair_tables = torch.full((2, len(b_table)), -1, dtype=torch.int32)
pair_tables[0, : len(sequence.table.blocks)] = block_tables[0]
pair_tables[1] = torch.tensor(b_table, dtype=torch.int32)
pair_lens = torch.tensor([a_len, 16 * len(b_table)], dtype=torch.int32)


def bits(tensor):
    return tensor.view(torch.int16)


for how in ({"num_splits": 3}, {"tokens_per_split": 128}):
    alone = paged_decode(q, key_cache, value_cache, block_tables, seq_lens, **how)
    together = paged_decode(q.repeat(2, 1, 1), key_cache, value_cache, pair_tables, pair_lens, **how)
    print(how, "A keeps its bits:", torch.equal(bits(alone[0]), bits(together[0])))

# %%
for tokens in pair_lens.tolist():
    per_split = 64 * math.ceil(tokens / 64 / 3)
    print(f"longest sequence {tokens:3} tokens: 3 splits of {per_split} tokens each")

# %% [markdown]
# A fixed **count** makes the splits longer when B comes, so A is cut elsewhere. A fixed **size** always cuts A at the
# same tokens. B only adds splits that are empty for A. (The merge must play along. The package's goes through 8 splits
# at a time, in order. Empty ones at the end add zeros, and nothing else.)
#
# This is *batch invariance*. Servers fix the size to get it
# ([sgl-project/sglang#10425](https://github.com/sgl-project/sglang/pull/10425)), and so does
# `pagedlab/kernels/triton_backend.py`, at 256 tokens. It has a price: in a full batch no splits were needed.

# %% [markdown]
# ## What splitting costs
#
# Each split writes `head_dim` numbers and an lse in float32, for each query head. The merge reads them again. The cache
# is read once in any case.
#
# **Guess first.** Llama-3.1-8B, one sequence, an H100. Extra bytes in percent: at 2,048 tokens, and at 131,072?


# %%
def extra_bytes(config, num_seqs, splits):
    written = num_seqs * config.num_attention_heads * splits * (config.head_dim + 1) * 4
    return 2 * written if splits > 1 else 0  # written, then read


print(" tokens  splits      cache   partials")
for seq_len in (512, 2048, 8192, 32_768, 131_072):
    cache = 2 * seq_len * llama.num_key_value_heads * llama.head_dim * 2
    splits = splits_for(llama, 1, seq_len, h100)
    extra = extra_bytes(llama, 1, splits)
    print(f"{seq_len:7} {splits:7} {cache / 1e6:7.1f} MB {extra / 1e6:7.2f} MB {extra / cache:7.1%}")

# %%
partials = 2 * (partial_out.nbytes + partial_lse.nbytes)
print("the formula counts our own tensors:", partials == extra_bytes(config, 1, 3))

# %% [markdown]
# For short sequences an eighth is added, and a second kernel has to start. So a split should not be a tile. The package
# calls its rule with `tile=256`, so that no split has fewer tokens.
#
# Too many splits can cost as much as too few. Others measured it: on an MI325, 64 splits instead of 128 made one case
# of decode 2.35 times as fast ([ROCm/aiter#5673](https://github.com/ROCm/aiter/issues/5673)).

# %% [markdown]
# ## A tile is not a block
#
# We said 64 tokens a step, and the blocks have 16. The kernel looks up a block for each token, so a tile gathers from
# four blocks.

# %%
for tile in (16, 32, 128):
    result = paged_decode(q, key_cache, value_cache, block_tables, seq_lens, num_splits=1, tile=tile)
    print(f"tile {tile:3}: same result {torch.allclose(result, whole, atol=2e-3)}")

# %%
try:
    paged_decode(q, key_cache, value_cache, block_tables, seq_lens, tile=8)
except ValueError as error:
    print(error)

# %% [markdown]
# The block is chosen for memory: small blocks waste few slots (lesson 3). The tile is chosen for the chip. A kernel
# whose tile *is* the block inherits the wrong one: blocks of 8 did not compile
# ([vllm-project/vllm#41339](https://github.com/vllm-project/vllm/issues/41339)), blocks of 544 were no power of 2
# ([ROCm/aiter#2190](https://github.com/ROCm/aiter/issues/2190)).
#
# ## What a tile costs
#
# How large should it be? Ask the compiler. It needs no GPU, only shapes.

# %%
from pagedlab.gpu.compiled import compile_many

shape = (2, 64, llama.num_key_value_heads, 16, llama.head_dim)  # a pool of 64 blocks: only strides and types matter
llama_keys, llama_values = torch.zeros(shape, dtype=torch.float16).unbind(0)
llama_q = torch.zeros(1, llama.num_attention_heads, llama.head_dim, dtype=torch.float16)
llama_table, llama_len = torch.zeros(1, 64, dtype=torch.int32), torch.tensor([1024], dtype=torch.int32)


def job(tile, num_warps=4, num_stages=3, target="sm_90", kernel=paged_decode_kernel, num_splits=4):
    _, arguments, options = decode_launch(
        llama_q, llama_keys, llama_values, llama_table, llama_len,
        num_splits=num_splits, tile=tile, num_warps=num_warps, num_stages=num_stages,
    )  # fmt: skip
    return kernel, arguments, target, options


# %% [markdown]
# `sm_90` is the H100. A program has 4 warps of 32 threads here. *Copies* go from the cache straight into shared memory,
# 16 bytes a thread. They run ahead of the step that needs them, and `num_stages` says how far. *Loads* are of 16 bytes
# too, but into registers; *narrow* ones have less.
#
# **Guess first.** An SM has 228 KB of shared memory, and a tile of 64 tokens (keys and values) takes 32. With which
# tile are most bytes on the way to an SM: 16, 32, 64 or 128?

# %%
tiles = (16, 32, 64, 128)
by_tile = dict(zip(tiles, compile_many([job(tile) for tile in tiles])))


def row(name, compiled):
    found, fits = compiled.instructions, compiled.occupancy
    print(f"measured: {name:26} {compiled.registers:9} {compiled.shared_bytes:8,} B", end="")
    print(f" {found.async_copies_16b:6} {found.loads_16b:6} {found.other_loads:7} {fits.blocks_per_sm:9}  {fits.limiter}")


heading = " " * 37 + "registers     shared copies  loads  narrow  programs  limited by"
print(heading)
for tile, compiled in by_tile.items():
    row(f"tile {tile}, 4 warps, 3 stages", compiled)

# %%
figure, panels = plt.subplots(1, 3, figsize=(8.5, 2.8), dpi=75, facecolor="white")
labels = [str(tile) for tile in tiles]
# of a step, keys and values of all programs on an SM
under_way = [one.occupancy.blocks_per_sm * 2 * tile * llama.head_dim * 2 / 1024 for tile, one in by_tile.items()]
drawn = (
    ("registers a thread", "registers", [one.registers for one in by_tile.values()], "#0072B2", ""),
    ("programs on an SM", "programs", [one.occupancy.blocks_per_sm for one in by_tile.values()], "#E69F00", "//"),
    ("one step of all of them", "KB of keys and values", under_way, "#009E73", "xx"),
)
for panel, (title, unit, values, colour, hatch) in zip(panels, drawn):
    panel.bar(labels, values, color=colour, hatch=hatch, edgecolor="white", label=unit)
    panel.set(title=title, xlabel="tile, tokens", ylabel=unit)
    panel.bar_label(panel.containers[0], fmt="%.0f")
    panel.margins(y=0.15)
figure.tight_layout()
plt.show()

# %% [markdown]
# Copies and loads are counted in the program's code. The last panel is what all programs of an SM ask for together, a
# step each. A larger tile needs more registers and shared memory, so fewer programs fit. Yet more bytes are under way.
# A tile of 16 has the fullest SM and the emptiest memory bus. Lesson 11 says how many bytes are enough.
#
# ## Warps and stages
#
# With 8 warps, twice the threads share a tile. Stages change how a step gets its tile.

# %%
variants = {
    "tile 64, 8 warps, 3 stages": (64, 8, 3),
    "tile 128, 8 warps, 3 stages": (128, 8, 3),
    "tile 64, 4 warps, 1 stage": (64, 4, 1),
    "tile 64, 4 warps, 2 stages": (64, 4, 2),
    "tile 64, 4 warps, 5 stages": (64, 4, 5),
}
compiled_variants = dict(zip(variants, compile_many([job(*choice) for choice in variants.values()])))
print(heading)
for name, compiled in compiled_variants.items():
    row(name, compiled)

# %% [markdown]
# With **1 stage** a tile passes through registers, and the program waits for it: no copies. With **2**, keys and values
# are copied, but the block numbers are still waited for, in narrow loads. With **3**, those come one step ahead too.
# With **5**, the next tile is copied while this one is used. It needs twice the shared memory, so fewer programs fit.
#
# ## A cliff
#
# **Guess first.** A tile of 128 with a single warp: 32 threads do what 128 did. A thread has at most 255 registers.
# What happens?

# %%
spilled, a100, yours = compile_many(
    [
        job(128, num_warps=1, num_stages=2),
        job(64, target="sm_80"),
        job(64, kernel=parts.paged_decode_kernel, num_splits=1),
    ]
)
row("tile 128, 1 warp, 2 stages", spilled)
print(f"measured: {spilled.spill_bytes} bytes a thread are spilled,", end=" ")
print(f"in {spilled.instructions.local_stores} stores and {spilled.instructions.local_loads} loads")

# %% [markdown]
# What does not fit into registers is *spilled*: stored to memory and loaded again, in every step. Nothing warns you.
# The result is right, and slow. So look at `spill_bytes` before anything else.

# %% [markdown]
# ## Your own
#
# The same choice (tile 64, 4 warps, 3 stages) once more: for an A100, and your kernel of lesson 9, if it has passed.

# %%
row("H100", by_tile[64])
row("A100", a100)
row("H100, kernel of lesson 9", yours)

# %% [markdown]
# Our 4 blocks per SM were right for an A100. An H100 has more shared memory, and one more fits. Your kernel may differ
# either way. Lesson 11 says what that is worth.
#
# What none of these numbers says is **speed**. They say what fits, and what is waited for. How fast memory answers, how
# many splits are really best: that takes a GPU. Rules like 10.1 are tuned there.

# %% [markdown]
# ## What you learned
#
# - Without splits, a program per sequence and kv head. One user fills 8 of 528 slots, however long the text.
# - Programs run in waves; the last one is often nearly empty. Choose the fewest splits that fill them well.
# - A split leaves an average and its lse, here to base 2. An empty split has lse `-inf`, and anything as its result.
# - A fixed size of splits keeps a sequence's bits whoever shares its batch. A fixed count does not.
# - The tile is the chip's business, the block is memory's. A tile costs registers and shared memory; spills cost speed.

# %% [markdown]
# ## Where it lives
#
# | idea | here | in vLLM |
# |---|---|---|
# | how many splits | `choose_num_splits` in `pagedlab/kernels/splits.py` | `seq_threshold_3D` in `v1/attention/backends/triton_attn.py` |
# | a split's program | `paged_decode_kernel` in `pagedlab/kernels/decode.py` | `triton_unified_attention.py` in `v1/attention/ops` |
# | the merge | `merge_splits_kernel` in `pagedlab/kernels/merge.py` | `reduce_segments`, in the same file |
# | compiled figures | `pagedlab/gpu/compiled.py` | |
#
# The paper has one program for each sequence and head: section 5.1 of
# [arXiv:2309.06180](https://arxiv.org/abs/2309.06180). Splits came with
# [Flash-Decoding](https://pytorch.org/blog/flash-decoding/); the rule is `num_splits_heuristic` in FlashAttention.

# %% [markdown]
# ## Next
#
# Lesson 11, *How full is the GPU, and does that matter?*: what decides how many programs fit, and why a quarter full is
# enough.

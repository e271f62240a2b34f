# %% [markdown]
# # 5 · How do you attend over memory that isn't contiguous?
#
# *About 90 minutes. You will write attention that walks along a block table. At the end, the real model writes on your
# own allocator, slots and attention.*
#
# After lesson 4, every token has a slot, and its slot can be anywhere. But attention, as you wrote it in lesson 1, wants
# all keys in one tensor. Must we put them together again first?

# %%
import math
import random
import time

import torch

from pagedlab import check, hint, your_parts
from pagedlab.model.load import load

parts = your_parts("attend", "block_allocator", "slot_mapping", "write_kv", "gather_kv")
parts

# %%
smol = load()
config = smol.config


def prompt(question):
    return smol.tokenizer.chat([{"role": "user", "content": question}])


# %% [markdown]
# ## A sequence in pieces
#
# `PagedSequence` puts your parts together. In each step it asks your allocator for blocks, your `slot_mapping` for slots,
# and your `write_kv` to store. Only attention is missing. We lend it ours, `paged_decode`, and note every query on the
# way.

# %%
from pagedlab.cache.paged import PagedKVCache, PagedSequence
from pagedlab.kernels.ops import paged_decode

queries = []  # one [num_heads, head_dim] for each layer


def watched(q, *rest):
    queries.append(q[0])
    return paged_decode(q, *rest)


pool = PagedKVCache(config.num_hidden_layers, 24, config.num_key_value_heads, 8, config.head_dim)
allocator = parts.block_allocator(pool.num_blocks)

# %% [markdown]
# Blocks have 8 slots here rather than 16, so that there is more to see. Others have used the pool before us, and their
# blocks came back in no order. One of them still runs, and keeps block 23. Then A and B take turns, nine tokens each.

# %%
used = list(allocator.allocate(24))
random.Random(8).shuffle(used)
allocator.free([block for block in used if block != 23])

own = {"slot_mapping": parts.slot_mapping, "write": parts.write_kv}
a, b = PagedSequence(pool, allocator, attend=watched, **own), PagedSequence(pool, allocator, **own)
a_ids = prompt(
    "Why is the sky blue during the day and red in the evening? Explain it to a child in a few short sentences."
)
b_ids = prompt("Name three fruits.")
for start in range(0, len(a_ids) - 1, 9):
    smol.model(a_ids[start : start + 9], a)
    if start < len(b_ids):
        smol.model(b_ids[start : start + 9], b)
smol.model(a_ids[-1:], a)  # a step with one new token calls `watched`

print("A:", a.num_tokens, "tokens in blocks", a.table.blocks)
print("B:", b.num_tokens, "tokens in blocks", b.table.blocks)

# %% [markdown]
# ## The way that works at once
#
# Gather A's keys and values into one piece, then call `attend`. From here on we look at one of the 30 layers.

# %%
layer = 10
key_cache, value_cache = pool.key_cache(layer), pool.value_cache(layer)
q = queries[layer]

keys, values = parts.gather_kv(key_cache, value_cache, torch.tensor(a.table.blocks), a.num_tokens)
whole = parts.attend(q, keys, values)
print("keys:", list(keys.shape), "result:", list(whole.shape))

# %% [markdown]
# Right, and enough for tests. A server would do it for every sequence, in every layer, for every token.
#
# **Guess first.** For one token, attention must read all the keys and values: 46,080 bytes for each stored token. How many bytes move
# when you gather first?

# %%
for num_tokens in (55, 500, 2000):
    once = num_tokens * 46_080
    print(f"{num_tokens:5} tokens: read in place {once / 1e6:6.1f} MB, gather first {3 * once / 1e6:6.1f} MB")

# %% [markdown]
# Three times as many: read from the pool, written to the copy, read from the copy. Attention for one token does little
# arithmetic, so moving bytes is most of its cost.
#
# And the copy wants memory in one piece, as long as the longest sequence. That was what we had just got rid of.

# %% [markdown]
# ## Does softmax need the whole row?
#
# So attend to each block where it lies. There is one difficulty. Here are the scores of one head, and their softmax:

# %%
head = 7
scores = keys[head // 3] @ q[head] / config.head_dim**0.5
weights = scores.softmax(0)
print("first scores: ", [round(x, 2) for x in scores[:6].tolist()])
print("sum of all weights:", round(float(weights.sum()), 4))

# %% [markdown]
# Each weight is `exp(score)`, divided by the sum over **all** tokens. The last token changes the weight of the first. A
# block alone cannot know its weights.
#
# **Guess first.** Cut the row in two: tokens 0 to 31, and 32 to 54. A softmax of each half sums to 1. What must the halves be multiplied
# by, before they are added?


# %%
def attend_part(scores, values):
    """Attention over some tokens only."""
    return scores.softmax(0) @ values


v = values[head // 3]
out_a, out_b = attend_part(scores[:32], v[:32]), attend_part(scores[32:], v[32:])
print("average of both is right:", torch.allclose((out_a + out_b) / 2, whole[head], atol=1e-4))

# %%
sum_a, sum_b = scores[:32].exp().sum(), scores[32:].exp().sum()
share_a, share_b = sum_a / (sum_a + sum_b), sum_b / (sum_a + sum_b)
print(f"shares: {share_a:.2f} and {share_b:.2f}")
print("with those shares it is:", torch.allclose(share_a * out_a + share_b * out_b, whole[head], atol=1e-4))

# %% [markdown]
# By its share of the sum of `exp(score)`. So a half need not know the other half. It gives two things: its own result,
# and **how much it weighs**.

# %% [markdown]
# ## A weight that does not overflow
#
# One thing is wrong with `scores.exp().sum()`.

# %%
for score in (10.0, 88.0, 89.0, -104.0):
    print(f"exp({score:6}) = {float(torch.tensor(score).exp()):.3g}")

# %% [markdown]
# float32 ends at exp(88), and nothing keeps a score below that. At the other end, exp(-104) is 0. So keep the
# **logarithm** of the sum: log-sum-exp, short *lse*. The largest score is taken off before `exp`, and put back after
# `log`:

# %%
s = torch.tensor([1000.0, 1001.0])
largest = s.max()
print("direct:     ", float(s.exp().sum().log()))
print("by largest: ", round(float(largest + (s - largest).exp().sum().log()), 3))
print("torch has it:", round(float(s.logsumexp(0)), 3))

# %% [markdown]
# The logarithm here is the natural one. (Some GPU kernels use base 2, since their hardware does. Mixing the two gives
# plausible, wrong text:
# [flashinfer-ai/flashinfer#2113](https://github.com/flashinfer-ai/flashinfer/issues/2113).)
#
# A part can also be **empty**, say when a short sequence has nothing in a block. Its sum is 0, so its lse is the
# logarithm of 0: `-inf`. Its `out` is whatever lay in that memory.

# %% [markdown]
# ## Exercise 5.1 · Two parts make a whole
#
# `out` is `[..., head_dim]` and `lse` is `[...]`: one lse a row, any number of dimensions in front.
#
# 1. Returns `(out, lse)` of both parts together, good for merging again.
# 2. Scores may be very large or very negative: an lse of 1,000 or -1,000 is no problem.
# 3. A row whose lse is `-inf` is empty. It counts for nothing, whatever its `out` holds, NaN too. Rows differ: one may
#    be empty and the next not.
# 4. Two empty rows give zeros, and an lse of `-inf`.
#
# *Size of the answer: about 7 lines.* Stuck? `hint("merge_partials")`.


# %% tags=["exercise"]
def merge_partials(out_a, lse_a, out_b, lse_b):
    """out_a, out_b: [..., head_dim]. lse_a, lse_b: [...], natural logarithms. Returns (out, lse) of the same shapes."""
    ### BEGIN SOLUTION
    lse = torch.logaddexp(lse_a, lse_b)
    safe = lse.masked_fill(lse == -math.inf, 0)  # -inf - (-inf) would be NaN
    share_a = torch.exp(lse_a - safe).unsqueeze(-1)
    share_b = torch.exp(lse_b - safe).unsqueeze(-1)
    out_a = out_a.masked_fill(share_a == 0, 0)  # 0 * NaN would be NaN
    out_b = out_b.masked_fill(share_b == 0, 0)
    return share_a * out_a + share_b * out_b, lse
    ### END SOLUTION


# %%
check("merge_partials", merge_partials)

# %%
parts = your_parts("attend", "block_allocator", "slot_mapping", "write_kv", "gather_kv", "merge_partials")
parts

# %% [markdown]
# ## Along the table
#
# Now attention needs no gather. Each block in A's table is a part, merged into what came before. The start is an empty
# part.

# %%
out, lse = torch.zeros(config.head_dim), torch.tensor(-math.inf)
for index, block in enumerate(a.table.blocks):
    n = min(8, a.num_tokens - 8 * index)  # the last block is not full
    block_scores = key_cache[block, head // 3, :n] @ q[head] / config.head_dim**0.5
    block_out = attend_part(block_scores, value_cache[block, head // 3, :n])
    out, lse = parts.merge_partials(out, lse, block_out, block_scores.logsumexp(0))

print("same as gathering:", torch.allclose(out, whole[head], atol=1e-4))

# %% [markdown]
# That is paged attention, for one head of one sequence. The pool was read in place, each block once.
#
# The order of the blocks does not even matter. The position of a token is already in its key (lesson 1).

# %% [markdown]
# ## What one head carries along
#
# `merge_partials` divides in every step. One division at the end is enough, if you carry three things:
#
# - `largest`, the largest score so far
# - `total`, the sum of `exp(score - largest)`
# - `mixed`, the values, each times its `exp(score - largest)`: not divided yet
#
# This is the *online softmax* (Milakov and Gimelshein, 2018). Papers call the three m, l and O.
#
# **Guess first.** Two scores, 1 and 3, one after the other. When the 3 comes, `total` and `mixed` are still measured against 1. What must
# they be multiplied by?

# %%
largest, total, mixed = -math.inf, 0.0, 0.0
for score, value in ((1.0, 10.0), (3.0, 20.0)):
    new_largest = max(largest, score)
    shrink, weight = math.exp(largest - new_largest), math.exp(score - new_largest)
    total, mixed = total * shrink + weight, mixed * shrink + weight * value
    largest = new_largest
    print(f"largest {largest}, shrink {shrink:.3f}, total {total:.3f}, mixed {mixed:.3f}")
print(f"mixed / total: {mixed / total:.3f}")

# %%
both = torch.tensor([1.0, 3.0]).softmax(0) @ torch.tensor([10.0, 20.0])
print(f"softmax of both at once: {float(both):.3f}")

# %% [markdown]
# By `exp(largest - new_largest)`, because `exp(score - largest)` times that is `exp(score - new_largest)`. It is 1 while
# `largest` stays, and less when it rises. The first time it is `exp(-inf)`, which is 0: there was nothing to shrink.

# %% [markdown]
# **Guess first.** Now the seven blocks of A. `largest` can only rise. Can `total` go down?

# %%
largest, total, mixed = torch.tensor(-math.inf), torch.tensor(0.0), torch.zeros(config.head_dim)
steps = []
for block_scores, block_values in zip(scores.split(8), v.split(8)):
    new_largest = torch.maximum(largest, block_scores.max())
    shrink, weights = torch.exp(largest - new_largest), torch.exp(block_scores - new_largest)
    total, mixed = total * shrink + weights.sum(), mixed * shrink + weights @ block_values
    largest = new_largest
    steps.append([float(x) for x in (block_scores.max(), largest, shrink, total)])

print("block   its largest   largest so far   shrink   total")
for block, (its_largest, so_far, shrink, total_now) in zip(a.table.blocks, steps):
    print(f"{block:5} {its_largest:13.1f} {so_far:16.1f} {shrink:8.2f} {total_now:7.2f}")
print("mixed / total is right:", torch.allclose(mixed / total, whole[head], atol=1e-4))

# %%
import matplotlib.pyplot as plt

figure, (top, bottom) = plt.subplots(2, 1, figsize=(7, 4.6), dpi=85, sharex=True, facecolor="white")
tokens, ends = range(len(scores)), [7.5, 15.5, 23.5, 31.5, 39.5, 47.5, 54.5]
blues = ["#56B4E9" if token // 8 % 2 else "#0072B2" for token in tokens]
top.bar(tokens, scores.tolist(), color=blues, label="score of a token")
so_far = [step[1] for step in steps]
top.step([-0.5, *ends], [so_far[0], *so_far], where="pre", color="#D55E00", label="largest so far")
top.set(title="One head of layer 10, seven blocks", ylabel="score", ylim=(0, 12))
bottom.plot(ends, [step[3] for step in steps], "s-", color="#009E73", label="total, after each block")
bottom.set(xlabel="token of A (a change of blue: a new block)", ylabel="total", ylim=(0, 6))
top.legend(loc="upper left", ncols=2)
bottom.legend(loc="upper right")
plt.show()

# %% [markdown]
# When `largest` jumps, all that came before counts for less, and `total` shrinks. It never falls below 1, for the largest
# token itself counts `exp(0)`. So the division at the end is safe.
#
# However long the sequence, a head carries two numbers and 64 more. **That is all it needs to know about the past.**

# %% [markdown]
# ## The last block
#
# A has 55 tokens, and its seventh block has one empty slot, which may hold anything. Reading it with a weight of 0 is no
# way out, as with the empty part in 5.1:

# %%
print(torch.tensor([0.4, 0.6, 0.0]) @ torch.tensor([1.0, 2.0, math.nan]))

# %% [markdown]
# 0 × NaN is NaN. So masking the scores is not enough, as real kernels have found out ([vllm-project/vllm#936](https://github.com/vllm-project/vllm/issues/936)). A slot
# behind the end must not be read, or its value must be replaced too. The slice `[:n]` above did the first.
#
# ## A batch
#
# A and B decode in the same step. Their tables differ in length, so the shorter row is filled up with -1.

# %%
from pagedlab.cache.table import padded

block_tables, seq_lens = padded([a.table, b.table]), torch.tensor([a.num_tokens, b.num_tokens])
print(block_tables)
print(seq_lens)

# %% [markdown]
# **Guess first.** Suppose you loop over all seven columns for B too, and read `key_cache[-1]`. What comes back?

# %%
print("the last block of the pool:", torch.equal(key_cache[-1], key_cache[23]))
print("it belongs to A or B:", 23 in a.table.blocks + b.table.blocks)

# %% [markdown]
# No error, since Python counts from the end. Block 23 is still that other request's, and B would read its tokens.
#
# Real engines don't even clean up: behind the end of a row there may be -1, or a number left over from before. So the
# length says how many blocks to read, and nothing else in the row does.
#
# ## Three heads, one read
#
# Query heads 6, 7 and 8 read the same keys. Put the three queries into one matrix, and one product serves them all:

# %%
group = q.reshape(3, 3, 64)  # [num_kv_heads, group, head_dim]: heads 6, 7 and 8 are group[2]
block_keys = key_cache[a.table.blocks[0]]  # [num_kv_heads, block_size, head_dim]
block_scores = group @ block_keys.transpose(1, 2) / config.head_dim**0.5
print("scores:", list(block_scores.shape), "[num_kv_heads, group, block_size]")
print("head 7 as before:", torch.allclose(block_scores[2, 1], scores[:8], atol=1e-4))

# %% [markdown]
# A block is read once for all nine heads. `largest`, `total` and `mixed` get `[num_kv_heads, group]` in front.
#
# ## Exercise 5.2 · Attention over blocks
#
# One new token for each sequence, whose key and value are stored already. `q` is `[num_seqs, num_heads, head_dim]`; the
# caches are `[num_blocks, num_kv_heads, block_size, head_dim]`; `block_tables` is `[num_seqs, max_blocks]`.
#
# 1. Each sequence attends over its own `seq_lens[i]` tokens, through its own table, and reads nothing else. Entries
#    behind its last block mean nothing. Two tables may name the same block.
# 2. Head h reads kv head `h // group`, with `group = num_heads // num_kv_heads`. Any group, any block size from 1 up.
# 3. Large and very negative scores are no problem. A sequence of length 0 gets zeros.
# 4. Block by block: no copy of a whole sequence. (`check` looks at numbers only. A meter follows.)
#
# *Size of the answer: about 17 lines.* Merge parts, or carry `largest`, `total` and `mixed`. Stuck?
# `hint("paged_attention")`.


# %% tags=["exercise"]
def paged_attention(q, key_cache, value_cache, block_tables, seq_lens):
    """Returns [num_seqs, num_heads, head_dim]. A row of block_tables may hold anything behind the sequence's last block:
    -1, or a number left over. Unwritten slots may hold NaN."""
    ### BEGIN SOLUTION
    _, num_kv_heads, block_size, head_dim = key_cache.shape
    out = torch.zeros_like(q)
    for i, length in enumerate(seq_lens.tolist()):
        group = q[i].reshape(num_kv_heads, -1, head_dim) / head_dim**0.5
        largest = torch.full((*group.shape[:2], 1), -math.inf)
        total, mixed = torch.zeros_like(largest), torch.zeros_like(group)
        for first in range(0, length, block_size):
            block, n = block_tables[i, first // block_size], min(block_size, length - first)
            scores = group @ key_cache[block, :, :n].transpose(1, 2)  # [num_kv_heads, group, n]
            new_largest = torch.maximum(largest, scores.amax(-1, keepdim=True))
            shrink, weights = torch.exp(largest - new_largest), torch.exp(scores - new_largest)
            total = total * shrink + weights.sum(-1, keepdim=True)
            mixed = mixed * shrink + weights @ value_cache[block, :, :n]
            largest = new_largest
        if length > 0:
            out[i] = (mixed / total).reshape(q[i].shape)
    return out
    ### END SOLUTION


# %%
check("paged_attention", paged_attention)

# %%
earlier = ("attend", "generate_cached", "static_cache", "block_allocator", "slot_mapping", "write_kv", "gather_kv")
parts = your_parts(*earlier, "paged_attention")
parts

# %%
both = torch.stack([q, q])
result = parts.paged_attention(both, key_cache, value_cache, block_tables, seq_lens)
print("A's query over A, all nine heads:", torch.allclose(result[0], whole, atol=1e-4))

# %% [markdown]
# A failing check names the slot that was read by mistake. How can it know, when attention returns a mixture? It gives
# every slot a value that is 1 in one place and 0 elsewhere. Then the result *is* the list of weights.

# %% [markdown]
# ## The meter
#
# Does it really make no copy? PyTorch can call us back for each operation. We note the largest new tensor. Views are
# not new.

# %%
from torch.utils._python_dispatch import TorchDispatchMode

from pagedlab.kernels import ops

ops.AUTO = "torch"  # from here on our own parts are plain torch too: what is compiled could not be watched


class LargestMade(TorchDispatchMode):
    nbytes = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        given = {x.untyped_storage().data_ptr() for x in args if isinstance(x, torch.Tensor)}
        if isinstance(result, torch.Tensor) and result.untyped_storage().data_ptr() not in given:
            self.nbytes = max(self.nbytes, result.nbytes)
        return result


# %% [markdown]
# **Guess first.** A sequence of 500 tokens, then one of 4,000. The largest new tensor: which of the two ways grows with the sequence?

# %%
big_keys, big_values = torch.randn(2, 256, 3, 16, 64).unbind(0)
table = torch.randperm(256)
for num_tokens in (500, 1000, 2000, 4000):
    with LargestMade() as gathered:
        parts.attend(q, *parts.gather_kv(big_keys, big_values, table, num_tokens))
    with LargestMade() as paged:
        parts.paged_attention(q[None], big_keys, big_values, table[None], torch.tensor([num_tokens]))
    print(f"{num_tokens:5} tokens: gather first {gathered.nbytes:10,} bytes, block by block {paged.nbytes:8,} bytes")

# %% [markdown]
# The copy grows with every token. A walk along the table holds one block at a time, or a few. (If your second column
# grows, your answer gathers. Its numbers are right all the same.)
#
# ## The real model on your own parts
#
# Your allocator hands out blocks, your `slot_mapping` finds slots, your `write_kv` fills them, your `paged_attention`
# reads them. Only the prompt still goes through our `paged_prefill`, which knows the causal mask.
#
# First the static cache of lesson 2, to compare with.

# %%
from pagedlab.cache.static import StaticRow

static = parts.static_cache(config.num_hidden_layers, 1, config.num_key_value_heads, 256, config.head_dim)
started = time.perf_counter()
static_ids = parts.generate_cached(smol.model, a_ids, 40, StaticRow(static, 0))
static_seconds = time.perf_counter() - started

# %%
pool = PagedKVCache(config.num_hidden_layers, 64, config.num_key_value_heads, 16, config.head_dim)
allocator = parts.block_allocator(pool.num_blocks)
own = {"slot_mapping": parts.slot_mapping, "write": parts.write_kv, "attend": parts.paged_attention}

sequence = PagedSequence(pool, allocator, **own)
started = time.perf_counter()
paged_ids = parts.generate_cached(smol.model, a_ids, 40, sequence)
paged_seconds = time.perf_counter() - started
print("the same 40 tokens:", paged_ids == static_ids)
print("held in", len(sequence.table.blocks), "blocks:", sequence.num_tokens, "tokens")

# %%
print(smol.tokenizer.decode(paged_ids[:21]), "...")

# %% [markdown]
# Token for token the same, from memory in pieces. (94 tokens are 55 of the prompt and 39 new ones. The 40th is not
# stored: nothing was asked after it.)
#
# The sums are rounded in another order, so scores may differ in the sixth digit. Two tokens would have to be equal up to there for another choice.

# %%
print(f"measured: static {1000 * static_seconds / 40:.0f} ms a token, paged {1000 * paged_seconds / 40:.0f} ms a token")

# %% [markdown]
# Not fast: this is a loop in Python, on a CPU, in 30 layers. It says nothing about paging on a GPU. There, the same loop
# is one kernel, and you will write it in lessons 8 to 10. What the loop does show is memory.

# %% [markdown]
# ## Memory, side by side
#
# Six requests of different length, each on both caches, and none gives its memory back yet. The static cache needs one
# `max_len` for all. The longest of the six will hold 133 tokens; without knowing that, 256 is not a wasteful choice.
#
# **Guess first.** How many times less do the blocks hold: 1.5, 3, or 6 times?

# %%
sequence.free()
wanted = (
    ("Name a colour.", 8),
    ("What is a cache?", 20),
    ("Write a haiku about rain.", 16),
    ("Is 91 a prime number? Think about its divisors, then answer.", 40),
    ("List the days of the week.", 24),
    ("Explain in detail why bread rises, step by step, and what the yeast, the sugar and the warm water do.", 80),
)
static = parts.static_cache(config.num_hidden_layers, 6, config.num_key_value_heads, 256, config.head_dim)
rows = [StaticRow(static, row) for row in range(6)]
sequences = [PagedSequence(pool, allocator, **own) for _ in wanted]
same = []
for (question, new_tokens), row, sequence in zip(wanted, rows, sequences):
    ids = [parts.generate_cached(smol.model, prompt(question), new_tokens, cache) for cache in (row, sequence)]
    same.append(ids[0] == ids[1])
print("same tokens:", same)

# %% [markdown]
# The bytes are those of the tensors themselves.

# %%
row_bytes = sum(layer[0].nbytes for layer in [*static.keys, *static.values])  # all layers of row 0
tokens = [sequence.num_tokens for sequence in sequences]
blocks = [len(sequence.table.blocks) for sequence in sequences]

print("tokens   static MB   blocks   paged MB   empty slots")
for n, count in zip(tokens, blocks):
    print(f"{n:6} {row_bytes / 1e6:11.1f} {count:8} {count * pool.bytes_per_block / 1e6:10.1f} {16 * count - n:13}")
static_total, paged_total = 6 * row_bytes, sum(blocks) * pool.bytes_per_block
print(f"{sum(tokens):6} {static_total / 1e6:11.1f} {sum(blocks):8} {paged_total / 1e6:10.1f}")
print(f"static holds {static_total / paged_total:.1f} times as much")

# %%
figure, axes = plt.subplots(figsize=(7, 3.6), dpi=85, facecolor="white")
places, edge = torch.arange(6), {"height": 0.36, "edgecolor": "white"}
held = [count * pool.bytes_per_block / 1e6 for count in blocks]
needed = [n * 46_080 / 1e6 for n in tokens]
axes.barh(places - 0.2, [row_bytes / 1e6] * 6, color="#E69F00", hatch="xx", label="static: its row", **edge)
axes.barh(places + 0.2, held, color="#56B4E9", hatch="//", label="paged: its blocks", **edge)
axes.barh(places - 0.2, needed, color="#009E73", label="its tokens, in both", **edge)
axes.barh(places + 0.2, needed, color="#009E73", **edge)
axes.set(
    title="Memory of six requests", xlabel="MB of keys and values", ylabel="request", ylim=(6.9, -0.6), yticks=places
)
axes.legend(loc="lower right", ncols=3, fontsize=8)
plt.show()

# %% [markdown]
# Green is what the tokens need. In a static row, all the rest stands empty. In blocks, only the end of the last one
# does: never more than 15 slots.
#
# To be fair: a pool is reserved up front as well, and ours had 64 blocks. But its free blocks belong to nobody, so the
# next request can have them. How many such requests would fit into the static cache's memory?

# %%
num_blocks = int(static_total // pool.bytes_per_block)
print(f"{num_blocks} blocks, {sum(blocks) / 6:.1f} a request: room for {num_blocks * 6 // sum(blocks)} requests, not 6")

# %% [markdown]
# And when a request ends, its blocks go back at once:

# %%
before = allocator.num_free
sequences[5].free()
print("free blocks:", before, "then", allocator.num_free)

# %% [markdown]
# ## What you learned
#
# - Gathering first moves three times the bytes, and needs memory in one piece.
# - A part of a softmax needs no other part. Its result and its lse are enough to merge it.
# - `largest`, `total` and `mixed` carry a head through any number of blocks. When `largest` rises, the others shrink.
# - A weight of 0 does not stop NaN, and -1 is a block to Python. Read by length, not by table width.
# - The same tokens, from blocks anywhere in memory, with at most 15 slots a sequence unused.

# %% [markdown]
# ## Where it lives
#
# | idea | here | in vLLM |
# |---|---|---|
# | merging parts | `merge_partials` in `pagedlab/attention.py` | `merge_attn_states` in `v1/attention/ops` |
# | attention over blocks | `paged_decode` in `pagedlab/kernels/reference.py` | `v1/attention/backends` |
# | its signature and checks | `pagedlab/kernels/ops.py` | `CommonAttentionMetadata`: `block_table_tensor`, `seq_lens` |
# | a sequence on a pool | `PagedSequence` in `pagedlab/cache/paged.py` | requests, in the model runner |
# | a prompt over blocks | `paged_prefill` in `pagedlab/kernels/reference.py` | the same backends |
#
# The paper: section 4.1 of [arXiv:2309.06180](https://arxiv.org/abs/2309.06180). Online softmax:
# [arXiv:1805.02867](https://arxiv.org/abs/1805.02867).

# %% [markdown]
# ## Next
#
# Lesson 6, *How can two sequences own the same block?*: nothing says that a block may stand in one table only.

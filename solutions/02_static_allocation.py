# %% [markdown]
# # 2 · Why does a contiguous cache waste most of its memory?
#
# *About 60 minutes. You will build the cache that servers used before paging, run a real model on it, and find out
# where four fifths of its memory go.*
#
# Lesson 1 ended with a cache that grows. It gives the right tokens. Can a server use it?

# %%
import time

import torch

from pagedlab import check, hint, your_parts
from pagedlab.model.load import load

parts = your_parts("growing_cache", "generate_cached")
parts

# %%
smol = load()
config = smol.config
prompt_ids = smol.tokenizer.chat([{"role": "user", "content": "What is a cache? Explain in three sentences."}])
print(f"{len(prompt_ids)} prompt tokens")

# %% [markdown]
# ## What growing costs
#
# `torch.cat` cannot make a tensor longer. It makes a new one, and copies everything over. We can watch it: a tensor
# that lies at another address than before has been written in full.


# %%
class Meter:
    """Wraps a cache and counts the bytes it writes in each step."""

    def __init__(self, cache):
        self.cache, self.addresses, self.written = cache, {}, []

    @property
    def num_tokens(self):
        return self.cache.num_tokens

    def append(self, layer, keys, values):
        if layer == 0:
            self.written.append(0)  # a new step begins
        both = self.cache.append(layer, keys, values)
        for name, new, whole in zip("kv", (keys, values), both, strict=True):
            moved = self.addresses.get((layer, name)) != whole.data_ptr()
            self.written[-1] += whole.nbytes if moved else new.nbytes
            self.addresses[layer, name] = whole.data_ptr()
        return both


# %% [markdown]
# **Guess first.** The prompt and 24 new ids leave 63 tokens in the cache (the last id need not be fed). A token takes 46,080 bytes, so the
# cache ends at 2.9 MB. How much was written on the way there?

# %%
growing = Meter(parts.growing_cache(config.num_hidden_layers))
growing_ids = parts.generate_cached(smol.model, prompt_ids, 24, growing)
print(f"final size: {growing.num_tokens * 46_080 / 1e6:5.1f} MB, {growing.num_tokens} tokens")
print(f"written:    {sum(growing.written) / 1e6:5.1f} MB, in {len(growing.written)} steps")

# %% [markdown]
# Twenty times its size, for a short answer. Each step stores one token of 46 KB, and writes everything before it too.
# Drawn out to 2,000 tokens:

# %%
import matplotlib.pyplot as plt

lengths = list(range(1, 2001))
figure, axes = plt.subplots(figsize=(7, 3.2), dpi=90, facecolor="white")
axes.plot(lengths, [n * 46_080 / 1e6 for n in lengths], color="#D55E00", label="cache that grows")
axes.plot(lengths, [46_080 / 1e6] * 2000, color="#0072B2", linestyle="--", label="the new token alone")
measured = range(len(prompt_ids) + 1, growing.num_tokens + 1)
axes.plot(measured, [b / 1e6 for b in growing.written[1:]], "k.", label="the run above")
axes.set(title="What one step writes", xlabel="tokens in the cache", ylabel="MB written")
axes.legend()
plt.show()

# %%
for n in (100, 500, 1000, 2000):
    total = sum(range(1, n + 1)) * 46_080
    print(f"{n:5} tokens: the last step writes {n * 46_080 / 1e6:5.1f} MB, all steps together {total / 1e9:6.1f} GB")

# %% [markdown]
# Ninety gigabytes, to end up with 92 MB. And while `cat` copies, the old tensor is still there: for a moment, memory is
# needed twice.

# %% [markdown]
# ## Room in advance
#
# The way out: make the tensor long enough at the start, and write into it.

# %%
max_len = 8
row = torch.zeros(3, max_len, 64)  # [num_kv_heads, max_len, head_dim]
address = row.data_ptr()
row[:, 5:6] = torch.randn(3, 1, 64)  # token 5 goes to slot 5
so_far = row[:, :6]  # a view: nothing is copied
print(f"shape {list(so_far.shape)}, same address: {so_far.data_ptr() == address}")

# %% [markdown]
# A step now writes what is new and nothing else. A place for one token is called a **slot**.
#
# **Guess first.** The row has 8 slots, 0 to 7. What happens when token 8 is written: an error, a longer tensor, or nothing at all?

# %%
before = row.clone()
row[:, 8:9] = torch.randn(3, 1, 64)
print(f"shape {list(row.shape)}, changed: {not torch.equal(row, before)}")

# %% [markdown]
# No error, and nothing written. A slice beyond the end is empty, and PyTorch writes one token into no slot without a
# word. The model would go on with a hole in its memory. So a reserved cache has to count, and to refuse.

# %% [markdown]
# ## What does a slot cost?
#
# For one token, the cache keeps a key and a value of `head_dim` numbers, in each layer, for each head that stores
# something.
#
# ## Exercise 2.1 · What a token costs
#
# 1. Bytes of cache for one token, over all layers.
# 2. It is right for every model, however many query heads share a kv head.
# 3. Everything is read from `config`: `num_hidden_layers`, `num_attention_heads`, `num_key_value_heads`, `head_dim`,
#    `hidden_size`. Not all of them are needed.
#
# *Size of the answer: about 2 lines.* Stuck? `hint("kv_bytes_per_token")`.


# %% tags=["exercise"]
def kv_bytes_per_token(config, bytes_per_element):
    """How many bytes of cache one token takes, as an int. bytes_per_element: 2 for float16, 4 for float32."""
    ### BEGIN SOLUTION
    numbers = config.num_hidden_layers * config.num_key_value_heads * config.head_dim
    return 2 * numbers * bytes_per_element
    ### END SOLUTION


# %%
check("kv_bytes_per_token", kv_bytes_per_token)

# %%
parts = your_parts("growing_cache", "generate_cached", "kv_bytes_per_token")
parts

# %% [markdown]
# **Guess first.** OPT-13B, which the vLLM paper measured, has 40 layers and 40 kv heads of 128 numbers. Llama-3.1-8B came two years
# later: 32 layers and 32 query heads, but only 8 kv heads, also of 128. How many times cheaper is its token?

# %%
from pagedlab.model.config import KNOWN_MODELS

for name, size in (("SmolLM2-135M", 4), ("OPT-13B", 2), ("Llama-3.1-8B", 2), ("Llama-3.1-70B", 2)):
    cost = parts.kv_bytes_per_token(KNOWN_MODELS[name], size)
    print(f"{name:14} {8 * size} bit  {cost:9,} bytes a token   2,048 slots: {2048 * cost / 1e9:5.2f} GB")

# %% [markdown]
# Six times cheaper, mostly because four query heads share a kv head. That lowers the price of a slot. It does not
# change how many slots stand empty, which is today's question.

# %% [markdown]
# ## Exercise 2.2 · A cache that reserves its memory
#
# Now for a whole batch: `batch_size` rows, one a request, each with room for `max_len` tokens.
#
# 1. All memory is made in `__init__`: `keys[layer]` and `values[layer]` are tensors `[batch_size, num_kv_heads,
#    max_len, head_dim]`, and stay where they are. Token p of a row lies in slot p.
# 2. `append` stores the new tokens of one row in one layer. It returns all keys and all values of that row so far, and
#    no empty slot.
# 3. `num_tokens(row)` counts a row's tokens. It is asked between steps; a step appends to every layer in turn.
# 4. A step that does not fit raises `CacheFullError(row, stored, asked, max_len)`, and has changed nothing.
#
# *Size of the answer: about 15 lines.* Stuck? `hint("static_cache")`.

# %% tags=["exercise"]
from pagedlab.cache.static import CacheFullError


class StaticCache:
    def __init__(self, num_layers, batch_size, num_kv_heads, max_len, head_dim):
        ### BEGIN SOLUTION
        shape = (batch_size, num_kv_heads, max_len, head_dim)
        self.max_len = max_len
        self.keys = [torch.zeros(shape) for _ in range(num_layers)]
        self.values = [torch.zeros(shape) for _ in range(num_layers)]
        self.stored = [[0] * batch_size for _ in range(num_layers)]
        ### END SOLUTION

    def append(self, layer, row, keys, values):
        """keys, values: [num_kv_heads, num_new, head_dim].

        Returns (all keys, all values) of the row: [num_kv_heads, num_tokens, head_dim] each.
        """
        ### BEGIN SOLUTION
        start = self.stored[layer][row]
        end = start + keys.shape[1]
        if end > self.max_len:
            raise CacheFullError(row, start, keys.shape[1], self.max_len)
        self.keys[layer][row, :, start:end] = keys
        self.values[layer][row, :, start:end] = values
        self.stored[layer][row] = end
        return self.keys[layer][row, :, :end], self.values[layer][row, :, :end]
        ### END SOLUTION

    def num_tokens(self, row):
        ### BEGIN SOLUTION
        return self.stored[-1][row]
        ### END SOLUTION


# %%
check("static_cache", StaticCache)

# %%
parts = your_parts("growing_cache", "generate_cached", "kv_bytes_per_token", "static_cache")
parts

# %% [markdown]
# ## The real model on it
#
# The model wants a cache of one sequence. `StaticRow` is a small adapter: it stands for one row, and passes `append`
# and `num_tokens` on to your cache.

# %%
from pagedlab.cache.static import StaticRow

cache = parts.static_cache(config.num_hidden_layers, 1, config.num_key_value_heads, 512, config.head_dim)
static = Meter(StaticRow(cache, 0))
static_ids = parts.generate_cached(smol.model, prompt_ids, 24, static)
print("same tokens as the growing cache:", static_ids == growing_ids)

# %%
print(f"growing: {sum(growing.written) / 1e6:5.1f} MB written")
print(f"static:  {sum(static.written) / 1e6:5.1f} MB written, {static.written[-1]:,} bytes in the last step")

# %% [markdown]
# The same text, and every token is written once.
#
# We counted bytes rather than seconds. On a model and an answer this small, copying hides behind the arithmetic.
#
# **Guess first.** Now a row that is too short: 50 slots. The prompt has 40 tokens, and 24 new ones are wanted. What will the row hold
# when it stops?

# %%
short = parts.static_cache(config.num_hidden_layers, 1, config.num_key_value_heads, 50, config.head_dim)
try:
    parts.generate_cached(smol.model, prompt_ids, 24, StaticRow(short, 0))
except CacheFullError as error:
    print(error)
print("held after the error:", short.num_tokens(0))

# %% [markdown]
# Fifty: full to the last slot, then a clear error. (`free`, which it speaks of, is in our own version. It empties the
# row for the next request.)
#
# The user still got half an answer. Which `max_len` would have been safe? Nobody knows how long an answer gets until
# the model has written it. **A safe row is as long as the longest sequence allowed.**

# %%
stored, slots = static.num_tokens, cache.keys[0].shape[2]
print(f"row of {slots} slots: {stored} used, {slots - stored} empty ({1 - stored / slots:.0%})")
print(f"row of 2,048 slots: {2048 - stored:,} would be empty ({1 - stored / 2048:.0%})")

# %% [markdown]
# ## A GPU to fill
#
# Does it matter? Take the vLLM paper's example: OPT-13B on a GPU with 40 GB. The weights must be there. Of the rest,
# the KV cache gets 12 GiB, which is 12.9 GB.

# %%
from pagedlab.sim.memory_split import opt_13b_on_40_gb
from pagedlab.sim.plots import plot_memory_split

split = opt_13b_on_40_gb()
plot_memory_split(split)

# %%
for name, share in split.shares().items():
    print(f"{name:9} {share:4.0%}")

# %% [markdown]
# **Guess first.** OPT's longest sequence is 2,048 tokens. How many requests can this GPU serve at the same time, if each reserves that?

# %%
num_slots = 12 * 2**30 // parts.kv_bytes_per_token(KNOWN_MODELS["OPT-13B"], 2)
print(f"{num_slots:,} slots: {num_slots // 2048} requests of 2,048 slots, {num_slots % 2048:,} slots left over")

# %% [markdown]
# Seven. To write one token for each, the GPU reads all 26 GB of weights, and would read just as much for thirty
# requests. The cache decides how many share the trip.

# %% [markdown]
# ## Where do the slots go?
#
# A small pool first: 16 slots, two requests, 6 slots reserved for each. Request A holds 3 tokens and will end with 4. B
# holds 1 and will end with 6.

# %%
from pagedlab.cache.accounting import LiveRequest

tiny = [LiveRequest(num_tokens=3, final_tokens=4, reserved_slots=6), LiveRequest(1, 6, 6)]
picture = ""
for letter, request in zip("AB", tiny, strict=True):
    picture += letter * request.num_tokens
    picture += letter.lower() * (request.final_tokens - request.num_tokens)
    picture += "-" * (request.reserved_slots - request.final_tokens)
print(picture.ljust(16, "."))

# %% [markdown]
# A capital letter is a token. A small letter is a slot whose token is still to come. A dash belongs to A, which will
# never use it. A dot belongs to nobody: four free slots, but a third request would need six.
#
# These are the four groups, with the names the paper uses:
#
# | slots | name | why |
# |---|---|---|
# | `A` `B` | **token states** | the only useful ones |
# | `a` `b` | **reserved** | needed later, useless to anybody until then |
# | `-` | **internal** fragmentation | inside a reservation, never used |
# | `.` | **external** fragmentation | outside all reservations, but too few or too scattered |

# %% [markdown]
# **Guess first.** Count them in the picture, all four. You will check your numbers with your own code.
#
# ## Exercise 2.3 · Where the slots go
#
# `requests` is a list of `LiveRequest`, as above. The pool has `num_slots` slots.
#
# 1. Return four whole numbers: (token_states, reserved, internal, external).
# 2. Every slot of the pool is in exactly one group. (`reserved` counts the small letters only: it is not
#    `reserved_slots`, which is all that a request owns.)
# 3. Requests may differ in what they reserve, and there may be none.
#
# *Size of the answer: about 4 lines.* Stuck? `hint("waste_breakdown")`.


# %% tags=["exercise"]
def waste_breakdown(requests, num_slots):
    """Slots of the pool by what they are for: (token_states, reserved, internal, external)."""
    ### BEGIN SOLUTION
    stored = sum(request.num_tokens for request in requests)
    final = sum(request.final_tokens for request in requests)
    owned = sum(request.reserved_slots for request in requests)
    return stored, final - stored, owned - final, num_slots - owned
    ### END SOLUTION


# %%
check("waste_breakdown", waste_breakdown)

# %%
parts = your_parts("blocks_needed", "kv_bytes_per_token", "static_cache", "waste_breakdown")
parts

# %%
print(tuple(parts.waste_breakdown(tiny, 16)))

# %% [markdown]
# Four useful slots of sixteen. Note that only an observer can draw this picture: while A is running, nobody can tell
# its `a` from its `-`.
#
# ## The reservation map
#
# Now the full size: 15,728 slots, and a queue of 24 requests, each caught half-way through its answer. Lengths are
# drawn at random, around the means of real chats.

# %%
from pagedlab.sim.workload import ALPACA, SHAREGPT

requests = SHAREGPT.requests(24)
queue = [(request.prompt_tokens + request.output_tokens // 2, request.final_tokens) for request in requests]
print("(tokens now, tokens at the end):", queue[:4], "...")
print("the longest will end with", max(final for _, final in queue), "tokens")

# %% [markdown]
# **Guess first.** The map below starts at `max_len` = 2,048. Halve it with the slider, and twice as many requests fit. What else will
# happen? And is there a good place for the slider to stay?
#
# Move it with the mouse, or go there with Tab and use the arrow keys. Click on a request, or press Enter on it, to read
# its numbers, which your `waste_breakdown` counts.

# %%
from pagedlab.widgets import ReservationMap

reservation_map = ReservationMap(queue, num_slots=num_slots, max_len=2048, breakdown=parts.waste_breakdown)
reservation_map

# %% [markdown]
# The same map as a table:

# %%
print(reservation_map.table())

# %% [markdown]
# And with the slider in five other places. "Cut off" are requests that need more than `max_len`.

# %%
for max_len in (1536, 1024, 768, 512, 256):
    view = ReservationMap(queue, num_slots=num_slots, max_len=max_len, breakdown=parts.waste_breakdown)
    cut = sum(final > max_len for _, final in queue)
    useful = view.waste.token_states / num_slots
    print(f"max_len {max_len:5,}: {len(view.admitted):2} fit, {cut:2} cut off, {useful:.0%} useful")

# %% [markdown]
# There is no good place. To the right, most slots are never used. To the left, answers are cut off. Requests differ,
# and one length for all suits nearly none.

# %% [markdown]
# ## Reserving with more wit
#
# Then give every request a length of its own. The paper compares three ways to choose it, named after Orca, a serving
# system of that time:
#
# - **max**: the longest sequence allowed, 2,048.
# - **pow2**: the answer's length rounded up to a power of two, as if somebody guessed it within a factor of two.
# - **oracle**: the true length, known in advance.
#
# Pieces of different sizes need an allocator. These use a *buddy allocator*: all pieces are powers of two.

# %%
from pagedlab.sim.buddy import BuddyAllocator

buddy = BuddyAllocator(num_slots)
for asked in (2048, 499, 520):
    start = buddy.allocate(asked)
    print(f"asked for {asked:5,} slots, got {dict(buddy.allocated_chunks())[start]:5,}")

# %% [markdown]
# What rounding adds belongs to no request, so it counts as external, like pieces too small for anyone.
#
# **Guess first.** `oracle` never reserves a slot too many. Under full load, what share of the pool will hold tokens: 40, 60 or 90 %?
#
# The next cell simulates 30,000 steps for each way of reserving. In each step every running request stores one token.
# Every slot is counted by your `waste_breakdown`.

# %%
from pagedlab.sim.memory import simulate
from pagedlab.sim.policies import POLICIES

started = time.perf_counter()
runs = [simulate(policy, SHAREGPT, num_slots, breakdown=parts.waste_breakdown) for policy in POLICIES]
print(f"measured: {time.perf_counter() - started:.1f} s")
for run in runs:
    print(f"{run.policy:14} {run.shares.token_states:4.0%} of the slots hold tokens")

# %% [markdown]
# The oracle comes to 40 %. The fourth line we have not explained yet. Here is where the other slots went, with the
# paper's Figure 2 under each of ours.

# %%
from pagedlab.sim.paper import table
from pagedlab.sim.plots import plot_memory_waste

plot_memory_waste(runs)

# %%
print(table(runs))

# %% [markdown]
# The paper's numbers: Kwon et al., SOSP 2023, [arXiv:2309.06180](https://arxiv.org/abs/2309.06180), Figures 2 and 13.
# Its bars were measured on a real server; ours are simulated. The order is the same, and most numbers are within a few
# points.
#
# **max** loses more than half to slots that will never be used. **pow2** loses less inside and more outside: its pieces
# differ, and leave gaps. **oracle** loses nothing inside.

# %% [markdown]
# ## Why even the oracle fails
#
# First, nobody can build it: the model itself does not know where its answer ends until it writes the end.
#
# Second, its bar. A quarter is *reserved*: needed, but not yet. A third is external: free, in pieces that fit nobody.
# Knowing the length helps against neither. **The price is for taking all memory in one piece, and at the start.**

# %% [markdown]
# ## What it does to the batch
#
# A cache that is mostly empty holds few requests. With 12 GiB of cache:

# %%
for run in runs:
    print(f"{run.policy:14} {run.mean_batch_size:5.2f} requests together  {'#' * round(run.mean_batch_size)}")

# %% [markdown]
# **Guess first.** Alpaca is another workload: short instructions, short answers, 78 tokens on average. How many requests does **max**
# run now?

# %%
for policy in POLICIES:
    run = simulate(policy, ALPACA, num_slots, num_steps=6_000, warmup_steps=1_000, breakdown=parts.waste_breakdown)
    print(f"{run.policy:14} {run.mean_batch_size:6.2f} requests together, {run.shares.token_states:4.0%} useful")

# %% [markdown]
# Seven, as before. It reserves 2,048 slots for requests of 78 tokens, and the batch is capped by a length that never
# occurs.

# %% [markdown]
# **Guess first: the way out.** Two things cost the memory: *in one piece* and *at the start*. What would a cache look like that does neither?
#
# Write a sentence down. Then read on.

# %% [markdown]
# Cut the pool into small blocks of one size: 16 slots. Give a request a block when it has a token to put there. Any
# free block will do, so no gap is too small. You counted such blocks in lesson 0:

# %%
blocks = [parts.blocks_needed(num_tokens, 16) for num_tokens, _ in queue]
empty = [16 * n - num_tokens for n, (num_tokens, _) in zip(blocks, queue, strict=True)]
print(f"all 24 requests: {16 * sum(blocks):,} of {num_slots:,} slots, {sum(empty)} of them empty")
print(f"the most that one request leaves empty: {max(empty)} slots")

# %% [markdown]
# All 24 at once, none cut off, and half of the pool free for more. That was the fourth line, **Paged**: 97 % of the
# slots hold tokens. What stays empty is the end of each last block, never more than 15 slots.
#
# It has a price. A sequence is no longer in one piece, so somebody has to know which block belongs to whom, and
# attention has to find its way. That is the next three lessons.

# %% [markdown]
# ## What the simulation leaves out
#
# - **Time.** A step is a step, however many requests share it. Nothing here says how many tokens a second a GPU makes.
# - **Arrivals.** Our queue never runs dry. The paper's requests came at a fixed rate: its paged batch is as large as
#   the arrivals made it (30), ours as large as the memory allows (34).
# - **Real lengths.** The paper's came from logs. Ours have the same means; how far they spread was fitted to one number
#   of Figure 2, the 13.3 % reserved under max. The other numbers were not used.
# - **Scheduling.** First come, first served. When blocks run out, the latest request leaves and is computed again; what
#   that costs is for lesson 7.

# %% [markdown]
# ## What you learned
#
# - A cache that grows copies itself in every step. Reserving writes each token once, and has to refuse when it is full.
# - A token costs 2 × layers × kv heads × head_dim numbers. Query heads add nothing.
# - 12 GiB are 15,728 slots of OPT-13B: seven requests of 2,048.
# - Empty slots are *reserved*, *internal* or *external*. A pool that reserves holds tokens in 20 to 40 % of its slots.
# - Even an oracle wastes 60 %, because memory is taken in one piece and at the start.

# %% [markdown]
# ## Where it lives
#
# | idea | here | in vLLM |
# |---|---|---|
# | price of a token | `pagedlab/cache/accounting.py` | `page_size_bytes` of a `KVCacheSpec`: one block, one layer |
# | static cache | `pagedlab/cache/static.py` | none: it was replaced by blocks |
# | waste | `pagedlab/cache/accounting.py` | the metric `vllm:kv_cache_usage_perc` counts blocks in use |
# | reserving and paging, simulated | `pagedlab/sim/policies.py`, `pagedlab/sim/memory.py` | none |
# | the paper's numbers | `pagedlab/sim/paper.py` | none |
#
# The paper: sections 3.1 and 6.1 of [arXiv:2309.06180](https://arxiv.org/abs/2309.06180).

# %% [markdown]
# ## Next
#
# Lesson 3, *Who owns which block?*: you write the allocator that hands the blocks out.

# %% [markdown]
# # 1 · Why keep K and V at all?
#
# *About 60 minutes. You will write attention for one token, a store that grows, and a loop that uses both. At the end
# they run a real language model.*
#
# A language model writes one token at a time. Each new token depends on all tokens before it. Does that mean that each
# step has to read the whole text again?

# %%
import torch

from pagedlab import check, hint, your_parts
from pagedlab.model.load import load

smol = load()
model, tokenizer, config = smol.model, smol.tokenizer, smol.config

# %% [markdown]
# ## The plain way to write
#
# Here is a prompt, and the shortest loop that continues it. Run the model over everything, take the most likely next
# token, put it at the end, and start over.

# %%
prompt_ids = tokenizer.encode("The first ten prime numbers are")
print([tokenizer.token_text(token) for token in prompt_ids])

# %%
ids, fed = list(prompt_ids), []
for _ in range(24):
    logits = model(ids, logits_to_keep=1)  # the whole text, every time
    fed.append(len(ids))
    ids.append(int(logits[-1].argmax()))
print(tokenizer.decode(ids))

# %% [markdown]
# `logits` holds a score for each of the 49,152 tokens that could come next. `argmax` picks the highest. That is
# *greedy* decoding: no luck is involved, so the same prompt gives the same text each time.
#
# **Guess first.** The prompt has 6 tokens and the loop made 24 new ones. How many tokens went through the model in all? `fed` knows.

# %%
print(fed)
print(f"{sum(fed)} tokens through the model, for {len(fed)} new ones")

# %% [markdown]
# Far more than the 30 tokens of the finished text. The first token, "The", went through all 30 layers 24 times.
#
# ### What does that cost?
#
# Almost all of the work is multiplying by weight matrices. A matrix with a million weights costs a token a million
# multiplications and a million additions: **2 operations per weight and token**. So count the weights.

# %%
hidden, wide = config.hidden_size, config.intermediate_size
q_size = config.num_attention_heads * config.head_dim
kv_size = config.num_key_value_heads * config.head_dim

per_layer = hidden * (q_size + 2 * kv_size) + q_size * hidden + 3 * hidden * wide
all_layers = config.num_hidden_layers * per_layer
to_logits = hidden * config.vocab_size
print(f"weights in {config.num_hidden_layers} layers: {all_layers:,}")
print(f"weights that make the logits: {to_logits:,}")

# %% [markdown]
# In a layer, the first term makes q, k and v, the second projects attention's result back, and the third is the
# feed-forward network. The logits are needed once a step, for the last token only.
#
# Attention itself adds a little: each query meets each key, then each value.


# %%
def step_flops(num_new, num_tokens):
    """Operations of one step: num_new tokens go through the model, num_tokens are attended to."""
    matrices = 2 * all_layers * num_new + 2 * to_logits
    attention = 4 * config.num_hidden_layers * q_size * num_new * num_tokens
    return matrices + attention


for num_tokens in (6, 29):
    print(f"a step over {num_tokens} tokens: {step_flops(num_tokens, num_tokens) / 1e9:.1f} billion operations")

# %% [markdown]
# The steps get dearer as the text grows, although each one gives us a single token. Something must be done twice.
#
# ## Looking inside two steps
#
# Attention in a layer is several small attentions side by side, called *heads*. A token gets three vectors per head:
# a **query** q (what am I looking for?), a **key** k (what do I
# offer?) and a **value** v (what do I pass on?). The model hands all three to a function of our choice. Ours takes a
# note, then does the usual thing.

# %%
from pagedlab.attention import attention


def watch(token_ids):
    """Run the model over token_ids. Returns q, k and v of each layer."""
    seen = []

    def look(layer, q, k, v):
        seen.append((q, k, v))
        return attention(q, k, v)

    model.forward_tokens(torch.tensor(token_ids), torch.arange(len(token_ids)), look)
    return seen


# %% [markdown]
# Two steps in a row: first the prompt, then the prompt and one token more.

# %%
one_step = watch(ids[:6])
next_step = watch(ids[:7])
for name, tensor in zip("qkv", next_step[0], strict=True):
    print(name, list(tensor.shape), "[heads, tokens, head_dim]")

# %% [markdown]
# Nine heads ask and only three answer. That is *grouped-query attention*, and it will matter in your first exercise.
#
# **Guess first.** Token 3 is " prime". In the first step it was followed by two tokens, in the next by three. Are its key and value in
# the next step the same as before? In the first layer only, or in all of them?

# %%
(q_before, k_before, v_before), (q_after, k_after, v_after) = one_step[0], next_step[0]
print("key before:", [round(number, 2) for number in k_before[0, 3, :4].tolist()])
print("key after: ", [round(number, 2) for number in k_after[0, 3, :4].tolist()])


# %%
def same(before, after):
    return torch.allclose(before, after, rtol=1e-3, atol=1e-3)


for which, name in enumerate(("queries", "keys", "values")):
    equal = [same(a[which], b[which][:, :6]) for a, b in zip(one_step, next_step, strict=True)]
    print(f"{name} of the 6 old tokens: equal in {sum(equal)} of {len(equal)} layers")

# %% [markdown]
# All equal, in every layer. It could not be otherwise. A token looks back, never ahead: its vectors in one layer come
# from itself and from *earlier* tokens in the layer below. A token written later changes nothing for it.
#
# So the second step computed 7 keys per layer and head, and 6 of them were known.
#
# ### What about position?
#
# There is one thing that might have moved. This model writes a token's position into its query and key, by rotating
# them (*rotary position embedding*, RoPE). Here is the same token at positions 0 and 1, in the first layer:

# %%
_, k, v = watch([prompt_ids[3], prompt_ids[3]])[0]
print("values equal:", same(v[:, 0], v[:, 1]))
print("keys equal:  ", same(k[:, 0], k[:, 1]))

# %% [markdown]
# The value says *what*, the key says *what and where*. Rotation comes before attention, so the keys we looked at were
# rotated already. A token never moves to another position, so a rotated key is final too.
#
# **Guess first.** The queries of old tokens were equal as well. To find the next token we need the last row of the last layer. Which of
# the old tokens' vectors does that row use: q, k, v, or all three?

# %%
q, k, v = next_step[0]
all_rows = attention(q, k, v)
last_row = attention(q[:, -1:], k, v)  # one query, all keys, all values
print("last row is the same without the old queries:", same(all_rows[:, -1:], last_row))

# %% [markdown]
# **A query is used once: by its own token, in its own step.** Keys and values are used by every token that follows.
# That's why people keep K and V, and nobody keeps Q.
#
# Now there is a plan:
#
# 1. Attention for *one* query against all keys and values (exercise 1.1).
# 2. A place to keep the keys and values (exercise 1.2).
# 3. A loop that feeds each token once (exercise 1.3).
#
# ## One query, one head
#
# Take head 0 of the newest token, a single vector of 64 numbers. Its dot product with a key says how well the two
# match. Dividing by the square root of 64 keeps those scores moderate.

# %%
scores = k[0] @ q[0, -1] / config.head_dim**0.5
print(list(k[0].shape), "keys,", list(scores.shape), "scores")

# %% [markdown]
# *Softmax* turns scores into weights: positive, and together 1. The result is the values, mixed by those weights.

# %%
weights = torch.softmax(scores, dim=0)
mixed = weights @ v[0]
print("weights sum to", round(float(weights.sum()), 4))
print("the same as the model's own head 0:", same(mixed, last_row[0, 0]))

# %% [markdown]
# In which tokens is the model interested? Here is one head of a deeper layer, just before the first number is written:

# %%
import matplotlib.pyplot as plt

layer, head = 23, 5
q, k, v = next_step[layer]
weights = torch.softmax(k[head // 3] @ q[head, -1] / config.head_dim**0.5, dim=0)
labels = [repr(tokenizer.token_text(token)) for token in ids[:7]]
plt.figure(figsize=(7, 2.6), dpi=90, facecolor="white")
plt.bar(labels, weights, color="#0072B2", label=f"layer {layer}, head {head}")
plt.title("What the newest token looks at")
plt.xlabel("stored token")
plt.ylabel("weight (sums to 1)")
plt.legend()
plt.show()

# %%
for label, weight in zip(labels, weights.tolist(), strict=True):
    print(f"{label:12} {weight:.2f}")

# %% [markdown]
# This head looks for what kind of numbers are wanted. Other heads look elsewhere.
#
# Much of the weight lies on the first token. Many heads leave it there when nothing else interests them.
#
# The code read `k[head // 3]`: heads 0, 1 and 2 share the first of the three key/value heads, heads 3, 4 and 5 the
# second, heads 6, 7 and 8 the third. With a third of the heads there is a third of the keys and values to keep.
#
# ## Exercise 1.1 · One new query against everything stored
#
# Write `attend` for all heads. `q` is `[num_heads, head_dim]`; `keys` and `values` are
# `[num_kv_heads, num_tokens, head_dim]`.
#
# 1. Each head mixes its values by softmax of its scaled scores.
# 2. Neighbouring heads share: with 9 heads and 3 kv heads, head `h` reads kv head `h // 3`. Other numbers work too.
# 3. What it is given stays as it was.
#
# No mask is needed: everything stored came before this query. *Size of the answer: about 5 lines.* Stuck? Run
# `hint("attend")` in a cell of your own, more than once if needed.


# %% tags=["exercise"]
def attend(q, keys, values):
    """q: [num_heads, head_dim]. keys, values: [num_kv_heads, num_tokens, head_dim].

    Returns [num_heads, head_dim].
    """
    ### BEGIN SOLUTION
    num_heads, head_dim = q.shape
    num_kv_heads = keys.shape[0]
    q = q.reshape(num_kv_heads, num_heads // num_kv_heads, head_dim)  # a group's queries side by side
    scores = q @ keys.transpose(1, 2) / head_dim**0.5  # [num_kv_heads, group, num_tokens]
    return (torch.softmax(scores, dim=-1) @ values).reshape(num_heads, head_dim)
    ### END SOLUTION


# %%
check("attend", attend)

# %% [markdown]
# From here on, the lesson uses your `attend`. Until it passes, it takes ours, so that you can read on.

# %%
parts = your_parts("attend")
parts

# %%
q, k, v = next_step[layer]
print("on the real model's tensors:", same(parts.attend(q[:, -1], k, v), attention(q, k, v)[:, -1]))

# %% [markdown]
# ## A place to keep them
#
# The new token brings one key and one value per layer and kv head. All that is missing is a place where the old ones
# are waiting. It has a name, the **KV cache**. The model asks two things of it:
#
# - `append(layer, keys, values)`: once per layer and step. Store what is new, give back all of that layer's tokens.
# - `num_tokens`: how many are stored. The model reads it before the first layer, to know the new tokens' positions.
#
# ## Exercise 1.2 · A cache that grows
#
# `keys` and `values` are `[num_kv_heads, num_new, head_dim]`. The number of new tokens differs from step to step.
#
# 1. Every token comes back, oldest first: `[num_kv_heads, num_tokens, head_dim]`, keys and values.
# 2. Layers don't mix, and two caches know nothing of each other.
# 3. `num_tokens` is an attribute or a property. It counts a token once, however many layers there are.
#
# *Size of the answer: about 9 lines.* `torch.cat([a, b], dim=1)` joins two tensors along the tokens. Hints:
# `hint("growing_cache")`.


# %% tags=["exercise"]
class GrowingCache:
    """Keys and values of one sequence: for each layer two tensors, [num_kv_heads, num_tokens, head_dim]."""

    def __init__(self, num_layers):
        ### BEGIN SOLUTION
        self.keys = [None] * num_layers
        self.values = [None] * num_layers
        ### END SOLUTION

    @property
    def num_tokens(self):
        """How many tokens are stored."""
        ### BEGIN SOLUTION
        return 0 if self.keys[-1] is None else self.keys[-1].shape[1]
        ### END SOLUTION

    def append(self, layer, keys, values):
        """Store [num_kv_heads, num_new, head_dim] for this layer; return all its keys and all its values."""
        ### BEGIN SOLUTION
        if self.keys[layer] is not None:
            keys = torch.cat([self.keys[layer], keys], dim=1)
            values = torch.cat([self.values[layer], values], dim=1)
        self.keys[layer], self.values[layer] = keys, values
        return keys, values
        ### END SOLUTION


# %%
check("growing_cache", GrowingCache)

# %%
parts = your_parts("attend", "growing_cache")
parts

# %% [markdown]
# Put it into the model at once. First the whole prompt, then only the token that follows.

# %%
cache = parts.growing_cache(config.num_hidden_layers)
model(prompt_ids, cache)
print("after the prompt:", cache.num_tokens)
cached_logits = model(ids[6:7], cache)  # one token
print("after one token more:", cache.num_tokens)

# %% [markdown]
# Only one token went in. Does the model know as much as if it had read all seven?

# %%
full_logits = model(ids[:7])
print("logits of the last token equal:", same(cached_logits[-1], full_logits[-1]))
print("rows of logits:", len(cached_logits), "with the cache,", len(full_logits), "without")

# %% [markdown]
# Same scores, with one row of work in place of seven. The numbers agree to within rounding, not bit for bit: sums of
# another shape are added in another order.
#
# One more connection. `Contiguous` runs a cache like yours with an `attend` like yours, for steps with one new token.
# Longer inputs still go through our `attention`, which has a mask.

# %%
from pagedlab.cache.protocol import Contiguous

cache = Contiguous(parts.growing_cache(config.num_hidden_layers), attend=parts.attend)
model(prompt_ids, cache)
print("with your attend in all 30 layers:", same(model(ids[6:7], cache)[-1], full_logits[-1]))

# %% [markdown]
# ## Exercise 1.3 · Prefill once, then one token at a time
#
# The prompt's tokens are all known, so they go through the model together. That is called **prefill**. After that, each
# step feeds the one token just chosen. That is called **decode**.
#
# Write the loop. `model(token_ids, cache)` takes a list of ids and returns logits, one row for each id.
#
# 1. Exactly `max_new_tokens` new ids come back, without the prompt.
# 2. They are the same as without a cache: the highest score wins.
# 3. The whole prompt goes in one call, and no token goes through twice.
#
# *Size of the answer: about 7 lines.* Hints: `hint("generate_cached")`.


# %% tags=["exercise"]
def generate_cached(model, prompt_ids, max_new_tokens, cache):
    """model(token_ids, cache) -> logits [len(token_ids), vocab_size]. Returns a list of max_new_tokens new ids."""
    ### BEGIN SOLUTION
    new_ids = []
    next_input = list(prompt_ids)
    for _ in range(max_new_tokens):
        logits = model(next_input, cache)
        new_ids.append(int(logits[-1].argmax()))
        next_input = new_ids[-1:]
    return new_ids
    ### END SOLUTION


# %%
check("generate_cached", generate_cached)

# %%
parts = your_parts("attend", "growing_cache", "generate_cached")
parts

# %% [markdown]
# Now everything together: your loop, your cache, your attention, and a real model.


# %%
def new_cache():
    return Contiguous(parts.growing_cache(config.num_hidden_layers), attend=parts.attend)


new_ids = parts.generate_cached(model, prompt_ids, 24, new_cache())
print(tokenizer.decode(prompt_ids + new_ids))
print("the same tokens as without a cache:", new_ids == ids[6:])

# %% [markdown]
# What went through the model this time? Let a cache take notes.

# %%
fed_cached = []


class NotingCache(Contiguous):
    def append(self, layer, keys, values):
        if layer == 0:
            fed_cached.append(keys.shape[1])
        return super().append(layer, keys, values)


cache = NotingCache(parts.growing_cache(config.num_hidden_layers), attend=parts.attend)
parts.generate_cached(model, prompt_ids, 24, cache)
print(fed_cached[:24])
print(f"{sum(fed_cached[:24])} tokens through the model; without a cache it was {sum(fed)}")

# %% [markdown]
# Six at once, then 1, 1, 1. Per decode step, each weight matrix meets 1 token instead of all of them.
#
# ## How much faster is it?
#
# **Guess first.** We'll write 48 tokens both ways and time each one. The text grows from 6 tokens to 54. Without a cache, how will the
# time per token change? And with one?

# %%
import time
from statistics import median

from pagedlab.model.generate import generate


def time_per_token(make_cache, num_new=48):
    """Milliseconds for each new token."""
    times = [time.perf_counter()]
    generate(model, prompt_ids, num_new, make_cache(), on_token=lambda token: times.append(time.perf_counter()))
    return [1000 * (end - start) for start, end in zip(times[:-1], times[1:], strict=True)]


# %%
without = time_per_token(lambda: None)
with_cache = time_per_token(new_cache)

# %%
lengths = [len(prompt_ids) + step for step in range(48)]
plt.figure(figsize=(6.5, 3.4), dpi=90, facecolor="white")
plt.plot(lengths, without, color="#D55E00", marker="s", markersize=4, label="without a cache")
plt.plot(lengths, with_cache, color="#0072B2", marker="o", markersize=4, label="with your cache")
plt.title("Time for one new token")
plt.xlabel("tokens so far")
plt.ylabel("milliseconds")
plt.ylim(0, 2 * median(without[-12:]))
plt.legend()
plt.show()

# %%
for name, times in (("without a cache", without), ("with your cache", with_cache)):
    print(f"measured: {name}: {median(times[1:13]):.0f} ms a token at first, {median(times[-12:]):.0f} ms at the end")

# %% [markdown]
# Without a cache, each token takes longer than the one before. With it, the line stays flat. (Single peaks are other
# programs on this computer. The figures are medians of 12 steps.)
#
# Fifty tokens make a short text. What about 512?

# %%
long_ids = (prompt_ids * 100)[:512]
cache = new_cache()
model(long_ids[:-1], cache, logits_to_keep=1)

started = time.perf_counter()
cached_logits = model(long_ids[-1:], cache, logits_to_keep=1)
cached_time = time.perf_counter() - started

# %%
started = time.perf_counter()
full_logits = model(long_ids, logits_to_keep=1)
full_time = time.perf_counter() - started
print("same next token:", int(cached_logits.argmax()) == int(full_logits.argmax()))
print(f"measured: token 513 takes {1000 * full_time:.0f} ms without a cache, {1000 * cached_time:.0f} ms with it")

# %% [markdown]
# ## Counted, not measured
#
# Your times are those of your machine. The operations are the same on all machines.

# %%
lengths = (10, 100, 1_000, 8_000)
print("tokens so far   without a cache        with it   ratio")
for num_tokens in lengths:
    plain, cached = step_flops(num_tokens, num_tokens), step_flops(1, num_tokens)
    print(f"{num_tokens:13,} {plain / 1e9:13,.1f} bn {cached / 1e9:12,.2f} bn {plain / cached:7,.0f}")

# %%
plt.figure(figsize=(6.5, 3.4), dpi=90, facecolor="white")
plt.loglog(lengths, [step_flops(n, n) / 1e9 for n in lengths], color="#D55E00", marker="s", label="without a cache")
plt.loglog(lengths, [step_flops(1, n) / 1e9 for n in lengths], color="#0072B2", marker="o", label="with a cache")
plt.title("Arithmetic for one new token (counted)")
plt.xlabel("tokens so far")
plt.ylabel("billion operations")
plt.legend()
plt.show()

# %% [markdown]
# The cached line isn't quite flat: the one query still meets every stored key and value. At 8,000 tokens attention is
# most of the work. The cache saves what would be done *again*. It doesn't save the reading.
#
# ## What if the cache were wrong?
#
# A cache must not lose anything. Let's lose something: after the prefill, this one hides a single token, in all layers.


# %%
class Forgetful(Contiguous):
    """Hides the key and value of one token from every decode step."""

    def __init__(self, cache, lost):
        super().__init__(cache)
        self.lost = lost

    def append(self, layer, keys, values):
        all_keys, all_values = self.cache.append(layer, keys, values)
        decode = keys.shape[1] == 1
        kept = [token for token in range(all_keys.shape[1]) if not (decode and token == self.lost)]
        return all_keys[:, kept], all_values[:, kept]


# %% [markdown]
# **Guess first.** The prompt is "The first ten prime numbers are". Hide token 3, " prime". What will the model write?

# %%
for lost in (1, 3):
    cache = Forgetful(parts.growing_cache(config.num_hidden_layers), lost)
    forgetful_ids = parts.generate_cached(model, prompt_ids, 12, cache)
    print(f"without {tokenizer.token_text(prompt_ids[lost])!r}: {tokenizer.decode(forgetful_ids)!r}")

# %% [markdown]
# Without " prime" it just counts. Nothing crashed and nothing warned: the answer is well-formed and wrong.
#
# And without " first" nothing visible happened. Remember that when caches get complicated. **A text that looks right
# doesn't prove that the cache is.** Numbers do:

# %%
right = Contiguous(parts.growing_cache(config.num_hidden_layers))
forgetful = Forgetful(parts.growing_cache(config.num_hidden_layers), 1)
for cache in (right, forgetful):
    model(prompt_ids, cache)
print("logits equal with ' first' hidden:", same(model(ids[6:7], right), model(ids[6:7], forgetful)))

# %% [markdown]
# That's why the checks of this course compare tensors, and never only text.
#
# ## What it costs
#
# The time that was saved is paid for in memory. Each token leaves a key and a value in every layer.
#
# **Guess first.** 30 layers, 3 kv heads, 64 numbers in a vector, 4 bytes in a number. How many bytes does one token take?

# %%
kept_bytes = sum(k.nbytes + v.nbytes for _, k, v in next_step)
bytes_per_token = kept_bytes // 7
print(f"{bytes_per_token:,} bytes a token")
for num_tokens in (70, 1_000, config.max_position_embeddings):
    print(f"{num_tokens:6,} tokens: {num_tokens * bytes_per_token / 2**20:6.1f} MiB")

# %% [markdown]
# A text as long as this model can read takes 360 MiB. The weights take about 513 MiB, once for everybody. The cache is
# needed once *per text*. With two long texts, it is larger than the model.
#
# Your cache has a price in time, too. `torch.cat` can't make a tensor longer: it makes a new one and copies every old
# token, in each layer, at each step.
#
# ## What this doesn't show
#
# - **The first token.** The prompt must still be read, once. A long prompt makes you wait before the first word.
# - **Many texts at once.** A server runs a batch, and each text has a cache of its own length. That starts the trouble
#   of lesson 2.
# - **A GPU.** With the cache, a step reads all weights for a single token. On a GPU that reading takes far longer than
#   the arithmetic, so counting operations doesn't predict its time. Lesson 11 counts both.
#
# ## What you learned
#
# - A token's keys and values never change once it is written, because tokens only look back.
# - A query is used once, by its own token. So K and V are kept, and Q isn't.
# - Keys are stored after rotation, because a token's position is final.
# - Prefill feeds the prompt at once. Each decode step feeds one token, whatever the length.
# - The cache trades memory for time: 46,080 bytes per token here, for each text.
#
# ## Where it lives
#
# | idea | here | in vLLM |
# |---|---|---|
# | one query against stored K and V | `pagedlab/attention.py` | `PagedAttention` kernels |
# | what a model asks of a cache | `pagedlab/cache/protocol.py` | `Attention` layer with its `kv_cache` |
# | a cache that grows | `pagedlab/cache/growing.py` | none: vLLM never grows a tensor |
# | prefill and decode | `pagedlab/model/generate.py` | `Scheduler`, `num_computed_tokens` |
#
# The paper: [Kwon et al., section 2.2](https://arxiv.org/abs/2309.06180) describes both phases.
#
# ## Next
#
# `02_static_allocation`: the usual answer to `torch.cat`, and why it wastes most of the memory it asks for.

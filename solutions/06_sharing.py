# %% [markdown]
# # 6 · How can two sequences own the same block?
#
# *About 90 minutes. At the end, four answers share one question, and two chats share their instructions, on blocks that
# your own code counts, copies and finds again.*
#
# In lesson 3 you counted holders; no count has gone above 1 since. Now somebody wants four answers to one question.
# Must the question be computed and stored four times?

# %%
import hashlib
import time

import torch

from pagedlab import check, hint, your_parts
from pagedlab.model.load import load

smol = load()
config, tokenizer = smol.config, smol.tokenizer
parts = your_parts("blocks_needed", "block_allocator")
parts

# %%
question = "Write the first line of a story about a lighthouse keeper."
prompt_ids = tokenizer.chat([{"role": "user", "content": question}])
print(len(prompt_ids), "tokens in the prompt")

# %% [markdown]
# **Guess first.** Four answers of 14 tokens each, blocks of 16. How many blocks, if each answer keeps everything for
# itself? How many, if the prompt's full blocks are kept once?

# %%
alone = parts.blocks_needed(len(prompt_ids) + 14, 16)
full = len(prompt_ids) // 16
print(f"each for itself: {4 * alone} blocks")
print(f"{full} blocks shared, {alone - full} for each answer: {full + 4 * (alone - full)} blocks")

# %% [markdown]
# ## Two tables, one list of blocks
#
# A full block is easy to share: nobody writes there again. But 42 tokens fill two blocks and 10 slots of a third. The
# next token of every answer goes there.
#
# A small pool, one word a slot. B starts with a copy of A's table.

# %%
slots = ["Once", "upon", "a", "time", "there", "was", None, None, None, None, None, None]  # 3 blocks of 4
a_table, b_table = [0, 1], [0, 1]


def read(table, num_tokens):
    return " ".join(str(slots[table[p // 4] * 4 + p % 4]) for p in range(num_tokens))


def write(table, position, word):
    slots[table[position // 4] * 4 + position % 4] = word


write(a_table, 6, "nobody")
print("A:", read(a_table, 7))

# %% [markdown]
# **Guess first.** Now B writes "somebody" at its own position 6. What does A read?

# %%
write(b_table, 6, "somebody")
print("B:", read(b_table, 7))
print("A:", read(a_table, 7))

# %% [markdown]
# A's story has changed. So the first to write steps aside: it copies the block, and writes into the copy.

# %%
write(a_table, 6, None)  # back to where they parted
old, new = b_table[1], 2
slots[new * 4 : new * 4 + 4] = slots[old * 4 : old * 4 + 4]
b_table[1] = new
write(b_table, 6, "somebody")

# %% [markdown]
# **Guess first.** Now A writes "nobody" at its position 6. Does it need a copy as well?

# %%
write(a_table, 6, "nobody")
print("A:", read(a_table, 7), " in blocks", a_table)
print("B:", read(b_table, 7), " in blocks", b_table)

# %% [markdown]
# No. B has left block 1, and A is its only holder. The reference count tells: more than 1 means *copy*, 1 means *it is
# yours*.
#
# Copying a table is a **fork**. Copying a block only when somebody writes is **copy-on-write**.
#
# **Guess first.** Two sequences share blocks 0 and 1, and both are full: 8 tokens. Each writes one more. How many
# copies?

# %%
print("logical block of position 8:", 8 // 4)
print("logical blocks that are shared:", [0, 1])

# %% [markdown]
# None. Both open a new block; the full ones are only read.

# %% [markdown]
# ## Exercise 6.1 · Fork, and copy on write
#
# The base class `BlockTable` has `block_size`, `blocks` (a list of ids), `num_tokens`, `append_tokens(n, allocator)`
# and `free(allocator)`. `SharingTable(4)` makes an empty table with blocks of 4. Write both methods without `super()`.
#
# 1. `fork(allocator)` returns a new `SharingTable`: the same tokens in the same blocks, in a list of its own. Each
#    block has one holder more.
# 2. `copy_on_write(allocator)` is called before a token is written. Would it go into a block that somebody else holds
#    too? Then put a new block in that place, give up this table's hold of the old one, and return `[(old, new)]`.
#    Otherwise return `[]` and change nothing.
# 3. Only the books change. Whoever gets the pairs copies the contents.
# 4. Without a free block the allocator raises `OutOfBlocksError`, and nothing has changed.
#
# *Size of the answer: about 14 lines.* Stuck? `hint("fork_and_copy_on_write")`.

# %% tags=["exercise"]
from pagedlab.cache.table import BlockTable


class SharingTable(BlockTable):
    def fork(self, allocator):
        """Returns a SharingTable."""
        ### BEGIN SOLUTION
        allocator.share(self.blocks)
        child = SharingTable(self.block_size)
        child.blocks = list(self.blocks)
        child.num_tokens = self.num_tokens
        return child
        ### END SOLUTION

    def copy_on_write(self, allocator):
        """Returns a list of (source, destination) block ids: one pair or none."""
        ### BEGIN SOLUTION
        if self.num_tokens % self.block_size == 0:
            return []  # the next token goes into a new block
        old = self.blocks[-1]
        if allocator.ref_count(old) == 1:
            return []
        [new] = allocator.allocate(1)  # first, because it may raise
        allocator.free([old])
        self.blocks[-1] = new
        return [(old, new)]
        ### END SOLUTION


# %%
check("fork_and_copy_on_write", SharingTable)

# %%
parts = your_parts("block_allocator", "slot_mapping", "write_kv", "fork_and_copy_on_write")
parts

# %% [markdown]
# ## Watching a fork
#
# A has six tokens. B is forked from it, and both write.

# %%
from pagedlab.cache.recorder import Recorder
from pagedlab.widgets import BlockTableExplorer

recorder = Recorder(parts.block_allocator(6), block_size=4, num_blocks=6)
a = recorder.table("A", parts.fork_and_copy_on_write(4), texts="Once upon a time there was".split())
a.append_tokens(6)
b = a.fork(name="B")
for table, word in ((b, "somebody"), (a, "nobody")):
    table.copy_on_write()
    table.texts.append(word)
    table.append_tokens(1)
a.free()

# %%
explorer = BlockTableExplorer(recorder, step=2)
explorer

# %% [markdown]
# Step on. Which block is copied, and which loses a holder without becoming free? When A lets go, which of its blocks
# stays in use?

# %%
for step in recorder.steps[1:]:
    print(f"{step.index}: {step.caption}")

# %% [markdown]
# ## Four answers on the real model
#
# The prompt is computed once. Then come three forks, and each answer starts with another of the four most likely words.
# (Sampling would draw them; this way you see what we see.)

# %%
from pagedlab.cache.paged import PagedKVCache, PagedSequence
from pagedlab.model.generate import generate

pool = PagedKVCache(config.num_hidden_layers, 24, config.num_key_value_heads, 16, config.head_dim)
allocator = parts.block_allocator(24)
own = {"slot_mapping": parts.slot_mapping, "write": parts.write_kv}


def sequence_of(table, allocator):
    """A sequence that goes on from a table whose tokens are stored already."""
    sequence = PagedSequence(pool, allocator, **own)
    sequence.table, sequence.num_tokens = table, table.num_tokens
    return sequence


# %%
first = PagedSequence(pool, allocator, table=parts.fork_and_copy_on_write(16), **own)
logits = smol.model(prompt_ids, first, logits_to_keep=1)[-1]
starts = logits.topk(4).indices.tolist()
tables = [first.table, *(first.table.fork(allocator) for _ in range(3))]
print("starts:", [tokenizer.token_text(token) for token in starts])
print("ref counts:", [allocator.ref_count(block) for block in tables[0].blocks])

# %% [markdown]
# **Guess first.** Each of the four now writes 14 tokens into a sequence of 42. How many blocks are copied in all, and
# when?

# %%
answers, copied = [[token] for token in starts], []
sequences = [sequence_of(table, allocator) for table in tables]
for step in range(14):
    for sequence, ids in zip(sequences, answers):
        pairs = sequence.table.copy_on_write(allocator)
        pool.copy_blocks(pairs)
        copied += [step] * len(pairs)
        logits = smol.model(ids[-1:], sequence, logits_to_keep=1)
        ids.append(int(logits[-1].argmax()))
print("blocks copied in steps:", copied)
for ids in answers:
    print(f"{tokenizer.decode(ids)!r}")

# %% [markdown]
# Three, all in the first step; the fourth writer was the last holder. Has anybody read a neighbour's words? Each answer
# alone:

# %%
same = []
for ids in answers:
    lone = PagedSequence(pool, allocator, **own)
    same.append(generate(smol.model, [*prompt_ids, ids[0]], 14, lone) == ids[1:])
    lone.free()
print("the same as alone:", same)
named = [block for table in tables for block in table.blocks]
used = set(named)
print(f"{len(used)} blocks in use instead of {len(named)}")
print(f"{(len(named) - len(used)) * pool.bytes_per_block:,} bytes saved")

# %%
for table in tables:
    table.free(allocator)
print("free again:", allocator.num_free, "of 24")

# %% [markdown]
# And the prompt went through the model once, not four times.

# %% [markdown]
# ## What the paper measured
#
# That was parallel sampling. **Beam search** keeps the n best beginnings and forks all the time: in every step, one may
# go on twice and another end.
#
# The paper's Figure 15 counts the blocks saved. `pagedlab/sim/sharing.py` plays it with your table and allocator,
# without a model. Lengths have the means of two data sets: Alpaca is short (prompt 19 tokens, answer 58), ShareGPT long
# (161 and 338).
#
# **Guess first.** Which saves more, four samples or four beams? Short requests or long ones?

# %%
from pagedlab.sim import sharing
from pagedlab.sim.workload import ALPACA, SHAREGPT

mine = {"table_class": parts.fork_and_copy_on_write, "allocator_class": parts.block_allocator}
runs = sharing.figure_15([ALPACA, SHAREGPT], num_requests=10, **mine)
print(sharing.table(runs))

# %%
from pagedlab.sim.plots import plot_sharing

plot_sharing(runs)

# %% [markdown]
# Beams save two to four times as much: they share what they have written, too. More sequences save more, and so do
# longer requests. The order is the paper's, the digits are not: ten requests are few, and which beam goes on is chance
# here. (For ShareGPT the paper gives two of three numbers.)

# %% [markdown]
# ## Strangers with the same beginning
#
# In a chat service every request begins with the same instructions. They come hours apart, and nobody forks. So blocks
# must be found by their contents.
#
# **Guess first.** Two requests have the same 16 tokens, at the same positions, behind *different* first blocks. Are the
# keys of the 16 the same?

# %%
from pagedlab.cache.growing import GrowingCache

text = "The weather report for tomorrow says that it is going to rain in the afternoon, then clear up."
ids = tokenizer.encode(text)[:16]
beginnings = [tokenizer.encode(" ".join([word] * 16))[:16] for word in ("yes", "no")]
caches = [GrowingCache(config.num_hidden_layers) for _ in beginnings]
for beginning, cache in zip(beginnings, caches):
    smol.model(beginning + ids, cache)

# %%
for layer in (0, 1, 29):
    both = [cache.keys[layer][:, 16:32] for cache in caches]
    print(f"layer {layer:2}: the same keys: {torch.allclose(*both, atol=1e-3)}")

# %% [markdown]
# In layer 0 a key is made of the token and its position. From layer 1 on, attention has mixed in what came before. **A
# block can be used again only if everything before it is the same, too.**
#
# So give each full block a **digest**: a short number made from its tokens *and the digest of the block before*. A
# chain:


# %%
def short(parent, tokens):
    return hashlib.sha256(repr((parent, tokens)).encode()).hexdigest()[:8]


for text in ("one two three four five six", "one two three four five seven", "zero two three four five six"):
    words, parent, digests = text.split(), "", []
    for i in range(0, 6, 2):
        parent = short(parent, words[i : i + 2])
        digests.append(parent)
    print(f"{text:32} {digests}")

# %% [markdown]
# The second line has another last word, and another last digest. The third has another first word, and all its digests
# differ, although "five six" is there again.

# %% [markdown]
# ## An image is not in its tokens
#
# In a model that sees, an image takes up, say, 8 positions, each with the same placeholder token. (Our model is blind,
# so this is about digests only.)
#
# **Guess first.** Two customers ask the same about two receipts. What do digests made of tokens say?

# %%
IMAGE = 49_000
receipt = [1, 520, 198, 2683, 359, 253, 5356, 42, *[IMAGE] * 8, 338, 314, 260, 2416, 30, 2, 198, 1]
photos = [torch.arange(16, dtype=torch.uint8).view(4, 4), torch.arange(1, 17, dtype=torch.uint8).view(4, 4)]
print("digests:", [short("", receipt) for photo in photos])

# %% [markdown]
# Equal: the second customer would get the first one's receipt. So the image must count. vLLM did count its bytes, and
# still confused images ([CVE-2025-46722](https://github.com/vllm-project/vllm/pull/17378)).
#
# **Guess first.** What did the bytes not say?

# %%
from pagedlab.cache.prefix import extra_keys_of, image_key

wide, tall = photos[0].view(2, 8), photos[0].view(8, 2)
by_bytes = {hashlib.sha256(image.numpy().tobytes()).digest() for image in (wide, tall)}
by_shape = {image_key(image.numpy(), image.shape) for image in (wide, tall)}
print("bytes only:     ", len(by_bytes), "key")
print("bytes and shape:", len(by_shape), "keys")

# %% [markdown]
# The shape. So a block has **extra keys** next to its tokens: pairs of a kind and a value. Kinds are `"image"`,
# `"image_offset"` (where in the block it begins), `"lora"` (a small change to the model's weights), and `"cache_salt"`,
# which comes below.

# %% [markdown]
# ## Exercise 6.2 · The hash chain
#
# Token ids go from 0 to 2³¹ - 1. `extra_keys` is `None`, or a list with a tuple of pairs for each block: `[(),
# (("image", b"..."), ("image_offset", 0))]`. It may end before the blocks do. A value is a text, bytes or a whole
# number, also a negative one; `"x"` and `b"x"` are two values. A block with two images has two keys of a kind.
#
# 1. Returns a list with a digest for each **full** block: `bytes`, 16 at least.
# 2. The same tokens and extra keys up to the block's end give the same digest, in every call and every process.
# 3. Anything else gives another one: another token anywhere before, another order, another extra key or kind. `None`,
#    `[]` and `[()]` all mean no keys.
# 4. Nobody can find two texts with the same digest. (`check` knows some old tricks, and MD5 is broken.)
#
# *Size of the answer: about 8 lines.* Stuck? `hint("prefix_hash_chain")`.


# %% tags=["exercise"]
def prefix_hash_chain(token_ids, block_size, extra_keys=None):
    """token_ids: a list of ints. Returns a list of bytes, one for each full block."""
    ### BEGIN SOLUTION
    digests, parent = [], b""
    for i in range(len(token_ids) // block_size):
        tokens = tuple(token_ids[i * block_size : (i + 1) * block_size])
        keys = tuple(extra_keys[i]) if extra_keys and i < len(extra_keys) else ()
        parent = hashlib.sha256(repr((parent, tokens, keys)).encode()).digest()
        digests.append(parent)
    return digests
    ### END SOLUTION


# %%
check("prefix_hash_chain", prefix_hash_chain)

# %%
parts = your_parts("block_allocator", "slot_mapping", "write_kv", "prefix_hash_chain")
parts

# %%
image_keys = [image_key(photo.numpy(), photo.shape) for photo in photos]
keys = [extra_keys_of(24, 8, images=[(8, 8, key)]) for key in image_keys]  # from position 8 on, 8 tokens
chains = [parts.prefix_hash_chain(receipt, 8, one) for one in keys]
for what, one, other in zip(("before the image", "the image", "behind it"), *chains):
    print(f"{what:16} same digest: {one == other}")

# %% [markdown]
# Text before an image can be shared. What comes behind it cannot.

# %% [markdown]
# ## Blocks that outlive their request
#
# Now something must remember which digest lies in which block. When a request ends, its blocks are free, but their
# contents are still there (lesson 3: nobody cleans up).
#
# So between *in use* and *free* there is a third state: **cached, and free**. Whoever needs memory can have such a
# block, and its content is lost: an **eviction**.
#
# **Guess first.** A request with blocks a, b, c, d has ended, and two blocks must be evicted. Which two?

# %%
for evicted in ("ab", "cd"):
    kept = [block for block in "abcd" if block not in evicted]
    usable = next((i for i, block in enumerate("abcd") if block in evicted), 4)
    print(f"evict {evicted}: kept {kept}, of which {usable} can be found again")

# %% [markdown]
# Without its beginning, the rest is dead weight: **tails before heads**. So a table gives its blocks back last one
# first. A simulator that got this wrong kept blocks that nobody could find
# ([llm-d/llm-d-inference-sim#709](https://github.com/llm-d/llm-d-inference-sim/issues/709)).
#
# Between requests, what has gone unused for longest goes first: LRU, *least recently used*.

# %% [markdown]
# ## Exercise 6.3 · The prefix cache
#
# A class in front of an allocator. The idea: **the cache is itself one holder of each published block**, so the
# allocator won't hand it out. From outside it is an allocator as in 3.1, with two verbs more.
#
# 1. `publish(block, digest)`: the caller holds the block, and its contents are complete. A known digest changes
#    nothing: the older block stays, also when only the cache has it.
# 2. `lookup(digests)` returns the blocks of the longest beginning that is cached. The caller is one more holder of
#    each. A miss changes nothing.
# 3. `num_free` and `ref_count` don't count the cache's own hold: a block that only the cache has is free, with 0
#    holders. To share or free it is an error (`BlockNotInUseError`, `DoubleFreeError`).
# 4. `allocate(n)` takes empty blocks first. Then it evicts, no more than needed. First goes the block that lost its
#    last holder longest ago; of one `free` call, the block named first. Its digest is forgotten at once. If n is more
#    than `num_free`: `OutOfBlocksError(asked, free, total)`, and nothing is evicted. The total is
#    `allocator.num_blocks`.
#
# *Size of the answer: about 40 lines.* Stuck? `hint("prefix_cache")`.

# %% tags=["exercise"]
from pagedlab.cache.allocator import BlockNotInUseError, DoubleFreeError, OutOfBlocksError


class PrefixCache:
    def __init__(self, allocator):
        ### BEGIN SOLUTION
        self.allocator = allocator
        self.num_blocks = allocator.num_blocks
        self.block_of = {}  # digest -> block
        self.digest_of = {}  # block -> digest
        self.idle = {}  # cached and free, in the order in which they became so
        ### END SOLUTION

    @property
    def num_free(self):
        ### BEGIN SOLUTION
        return self.allocator.num_free + len(self.idle)
        ### END SOLUTION

    def ref_count(self, block):
        ### BEGIN SOLUTION
        return self.allocator.ref_count(block) - (block in self.digest_of)
        ### END SOLUTION

    def allocate(self, n):
        """Returns a list of n block ids."""
        ### BEGIN SOLUTION
        if n > self.num_free:
            raise OutOfBlocksError(n, self.num_free, self.num_blocks)
        while self.allocator.num_free < n:
            block = next(iter(self.idle))
            del self.idle[block]
            del self.block_of[self.digest_of.pop(block)]
            self.allocator.free([block])
        return self.allocator.allocate(n)
        ### END SOLUTION

    def share(self, blocks):
        ### BEGIN SOLUTION
        for block in blocks:
            if self.ref_count(block) == 0:
                raise BlockNotInUseError(block)
        self.allocator.share(blocks)
        ### END SOLUTION

    def free(self, blocks):
        ### BEGIN SOLUTION
        for block in blocks:
            if self.ref_count(block) == 0:
                raise DoubleFreeError(block)
        self.allocator.free(blocks)
        for block in blocks:
            if block in self.digest_of and self.ref_count(block) == 0:
                self.idle[block] = None
        ### END SOLUTION

    def lookup(self, digests):
        """Returns a list of block ids, one for each digest of the beginning that was found."""
        ### BEGIN SOLUTION
        blocks = []
        for digest in digests:
            if digest not in self.block_of:
                break
            blocks.append(self.block_of[digest])
        self.allocator.share(blocks)
        for block in blocks:
            self.idle.pop(block, None)
        return blocks
        ### END SOLUTION

    def publish(self, block, digest):
        ### BEGIN SOLUTION
        if digest not in self.block_of:
            self.allocator.share([block])
            self.block_of[digest] = block
            self.digest_of[block] = digest

    @property
    def cached_free_blocks(self):  # for the picture below
        return tuple(self.idle)
        ### END SOLUTION


# %%
check("prefix_cache", PrefixCache)

# %%
parts = your_parts("block_allocator", "slot_mapping", "write_kv", "prefix_hash_chain", "prefix_cache")
parts

# %% [markdown]
# ## Watching a hit
#
# Two requests with the same first eight words, in blocks of 4. (The picture marks what is cached and free if your class
# has a property `cached_free_blocks`, a tuple.)

# %%
recorder = Recorder(parts.prefix_cache(parts.block_allocator(6)), block_size=4, num_blocks=6)


def request(name, text):
    words = text.split()
    digests = parts.prefix_hash_chain([len(word) for word in words], 4)  # as token ids
    table = recorder.table(name, texts=words)
    hits = recorder.lookup(digests)
    table.adopt(hits, 4 * len(hits))  # the table begins with them
    table.append_tokens(len(words) - 4 * len(hits))
    for block, digest in zip(table.blocks, digests):
        recorder.publish(block, digest)
    return table


a = request("A", "You answer questions briefly and with great care. What is rain?")
a.free()
b = request("B", "You answer questions briefly and with great care. Who was Ada Lovelace?")

# %%
explorer = BlockTableExplorer(recorder, step=6)
explorer

# %%
for step in recorder.steps[1:]:
    print(f"{step.index}: {step.caption}")

# %% [markdown]
# At step 6 A has gone, and nobody holds its blocks. At step 7 B finds two of them. A's third was not full, so it has no
# digest. Steps 10 and 11 change nothing: these digests are known.

# %% [markdown]
# ## Two chats with the same instructions
#
# Now the real model. `answer` looks a prompt up, computes the rest, publishes the full blocks and lets go.
#
# The model gives a next word only for a token that it computes. **Guess first.** A prompt of 48 tokens is cached as a
# whole, three full blocks. How many hits may we use?


# %%
def answer(cache, ids, num_new=12, extra_keys=None, chain=None):
    """Returns the new token ids, and how many tokens of the prompt came out of the cache."""
    digests = (chain or parts.prefix_hash_chain)(ids, 16, extra_keys)
    hits = cache.lookup(digests[: (len(ids) - 1) // 16])  # at least one token is computed
    table = BlockTable(16)
    table.adopt(hits, 16 * len(hits))
    sequence = sequence_of(table, cache)
    new_ids = generate(smol.model, ids[16 * len(hits) :], num_new, sequence)
    for block, digest in zip(table.blocks, digests):
        cache.publish(block, digest)
    sequence.free()
    return new_ids, 16 * len(hits)


print("hits that may be used, of 3:", (48 - 1) // 16)

# %% [markdown]
# Two. With three there would be no token to compute, and no next word. Engines have crashed on just that, a repeated
# prompt that fills its blocks ([GeeeekExplorer/nano-vllm#114](https://github.com/GeeeekExplorer/nano-vllm/issues/114)).

# %%
instructions = (
    "You are the assistant of a small public library. Answer in one short sentence. Be friendly, never invent "
    "opening hours, and when you do not know something, say that the people at the desk will be glad to help."
)


def chat(text):
    return tokenizer.chat([{"role": "system", "content": instructions}, {"role": "user", "content": text}])


questions = ["Do you have books about whales?", "Can I bring my dog?"]
cache = parts.prefix_cache(parts.block_allocator(24))
for text in questions:
    ids = chat(text)
    started = time.perf_counter()
    _, cached = answer(cache, ids, num_new=1)
    print(f"{len(ids)} prompt tokens, {cached} of them out of the cache")
    print(f"measured: {1000 * (time.perf_counter() - started):.0f} ms to the first token")

# %% [markdown]
# The second chat computed 17 tokens instead of 65. That shortens the wait for the first token, which is nearly all
# prefill. Are the answers the same as without a cache?

# %%
for text in questions:
    new_ids, cached = answer(cache, chat(text))
    plain = generate(smol.model, chat(text), 12, GrowingCache(config.num_hidden_layers))
    print(f"{cached} tokens cached, same answer: {new_ids == plain}, {tokenizer.decode(new_ids)!r} ...")

# %% [markdown]
# The same, word for word. (So small a model is polite rather than right.)

# %% [markdown]
# ## A weak hash, and what it is good for
#
# Why SHA-256? Here is a weaker hash, with which Java hashes its strings: multiply by 31, add the next.


# %%
def weak_chain(token_ids, block_size, extra_keys=None):
    digests, value = [], 1
    for i in range(len(token_ids) // block_size):
        for token in token_ids[i * block_size : (i + 1) * block_size]:
            value = (value * 31 + token) % 2**128
        digests.append(value.to_bytes(16, "big"))
    return digests


# %% [markdown]
# 128 bits, but easy to forge: one more in a token is 31 less in the next. Somebody wants to spoil what *others* ask
# about Norway:

# %%
victim = tokenizer.encode(
    "I am planning my next holiday. Tell me: what is the capital of Norway? A travel guide would say: "
    "The capital is the city of"
)
of, norway = victim[14:16]
france = tokenizer.encode(" France")[0]
shift = (norway - france) // 31
attack = [*victim[:14], of + shift, france, *victim[16:]]
print("31 divides the difference:", (norway - france) % 31 == 0)
print("attack:", repr(tokenizer.decode(attack[9:17])))

# %% [markdown]
# "capitalace" is nonsense, but nobody reads it. The attacker sends this, and its first block is published. Then the
# victim asks.
#
# **Guess first.** What does the victim read, with the weak hash and with yours?

# %%
for name, chain in (("weak hash", weak_chain), ("parts.prefix_hash_chain", parts.prefix_hash_chain)):
    cache = parts.prefix_cache(parts.block_allocator(24))
    answer(cache, attack, chain=chain)
    new_ids, cached = answer(cache, victim, num_new=1, chain=chain)
    print(f"{name:24} {cached:2} tokens out of the cache: the capital of Norway is{tokenizer.decode(new_ids)}")

# %% [markdown]
# No error, no warning: the victim's first block was the attacker's, who had asked about France.
#
# vLLM once used Python's own `hash`
# ([CVE-2025-25183](https://github.com/vllm-project/vllm/security/advisories/GHSA-rm76-4mrf-v9r8)), which does not
# withstand somebody who searches. SHA-256 does: nobody has ever shown two texts with the same digest.

# %% [markdown]
# ## The other way round: listening
#
# One leak remains. A hit is fast, a miss is slow. Whoever wants to know if a certain text was sent can send it, and look at
# the clock.
#
# **Guess first.** How can two customers be kept apart in one cache?

# %%
secret = chat("Has the book about how to leave your employer come back yet?")
cache = parts.prefix_cache(parts.block_allocator(24))
answer(cache, secret, num_new=1, extra_keys=[(("cache_salt", "customer 1"),)])
for salt in ("customer 1", "customer 2"):
    _, cached = answer(cache, secret, num_new=1, extra_keys=[(("cache_salt", salt),)])
    print(f"{salt}: {cached} tokens out of the cache")

# %% [markdown]
# By a **salt**, an extra key in the first block. The chain carries it on, so customers with different salts never meet.
# The price: they don't share instructions either.

# %% [markdown]
# ## A small pool
#
# Last, only 6 blocks. A chat needs 5 of them, 3 for the instructions.
#
# **Guess first.** The fifth chat asks the first question again. Its four full blocks were published once. How many are
# still there?

# %%
cache = parts.prefix_cache(parts.block_allocator(6))
for text in (*questions, "Is there a quiet room?", "What time do you close today?", questions[0]):
    new_ids, cached = answer(cache, chat(text), num_new=4)
    plain = generate(smol.model, chat(text), 4, GrowingCache(config.num_hidden_layers))
    print(f"{cached // 16} blocks from the cache, same answer: {new_ids == plain}, free again: {cache.num_free} of 6")

# %% [markdown]
# Three. Every chat used the instructions again, so they were never the least recently used. The first chat's fourth
# block was, and had to go. (Cached blocks count as free, so all 6 are.)

# %% [markdown]
# ## What this leaves out
#
# - **When to publish.** In a batch, not before all layers have written the block: lesson 7's engine does it after each
#   step.
# - **Trees.** SGLang keeps prefixes in a tree, token by token.
# - **Twins.** Two requests that compute the same block at the same time keep one each. Only the older is found.

# %% [markdown]
# ## What you learned
#
# - A fork is a copy of the table, and one more holder for each block.
# - The first writer into a shared block copies it. The last holder writes in place. Full blocks are never copied.
# - A block can be used again if all before it is the same. Its digest is made of the digest before, its tokens and its
#   extra keys.
# - The cache is one more holder. Blocks that only it holds count as free, and go tails first, least recently used
#   first.
# - A weak digest mixes up users in silence. A salt keeps those apart who must not know of each other.

# %% [markdown]
# ## Where it lives
#
# | idea | here | in vLLM |
# |---|---|---|
# | fork, copy-on-write | `BlockTable` in `pagedlab/cache/table.py` | `fork`, `append_slots` of its first block manager |
# | copying blocks | `copy_blocks` in `pagedlab/kernels/ops.py` | `blocks_to_copy`, `copy_blocks` |
# | hash chain, extra keys | `pagedlab/cache/block_hash.py` | `hash_block_tokens`, `generate_block_hash_extra_keys` |
# | prefix cache | `pagedlab/cache/prefix.py` | `BlockPool`, `KVCacheManager.get_computed_blocks` |
# | what sharing saves | `pagedlab/sim/sharing.py` | the paper's Figure 15 |
#
# The paper: sections 4.4 and 6.3, Figures 8, 9 and 15 of [arXiv:2309.06180](https://arxiv.org/abs/2309.06180).

# %% [markdown]
# ## Next
#
# Lesson 7, *Who runs in this step?*: many requests, one pool, and somebody must decide who waits.

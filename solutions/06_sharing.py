# %% [markdown]
# # 6 · How can two sequences own the same block?
#
# *About 75 minutes. At the end, four answers share one question, and two chats share their instructions, on blocks that
# your own code counts, copies and finds again.*
#
# So far every block stood in one table. In lesson 3 you counted holders, and no count ever went above 1.
#
# Now somebody wants four answers to one question, to choose the best. Must the question be computed and stored four
# times?

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
# Sharing a full block is easy: nobody writes there again. But 42 tokens fill two blocks and 10 slots of a third. The
# next token of every answer goes into that third block.
#
# A small pool, one word a slot, shows what happens. B starts as a copy of A's table.

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
# A's story has changed behind its back. So the one who writes first must step aside: take a new block, copy what is
# there, and write into the copy.

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
# No. B has left block 1, and A is its only holder. One copy for two writers, three for four. The reference count says
# which case it is: more than 1 means *copy*, 1 means *it is yours*.
#
# Taking a copy of a table is called a **fork**. Copying a block only when somebody writes is **copy-on-write**.
#
# **Guess first.** Two sequences share blocks 0 and 1, and both blocks are full. Each writes one more token. How many
# copies?

# %%
print("copies:", 0, " new blocks:", 2)

# %% [markdown]
# None. The next token opens a new block anyway, and a full block is only read.

# %% [markdown]
# ## Exercise 6.1 · Fork, and copy on write
#
# `BlockTable` of lesson 4 is your base. It has `block_size`, `blocks` (a list of ids), `num_tokens`,
# `append_tokens(n, allocator)` and `free(allocator)`. Write two methods (ours are in the base too; leave them out of
# it). The allocator is yours from lesson 3: `allocate`, `share`, `free`, `ref_count`.
#
# 1. `fork(allocator)` returns a new `SharingTable` with the same tokens in the same blocks. Each block has one holder
#    more. No block is taken, and the two lists are two.
# 2. `copy_on_write(allocator)` is called before each token is written. If that token would go into a block which
#    somebody else holds too, it puts a new block in that place, gives up this table's hold of the old one, and returns
#    `[(old, new)]`. In all other cases it returns `[]` and changes nothing.
# 3. Only the books change here. Whoever gets the pairs copies the contents, in all layers.
# 4. Without a free block, `OutOfBlocksError` comes from the allocator, and nothing has changed.
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
# A has six tokens in blocks of 4. B is forked from it, then both write.

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
# Step on. Which block is copied, and which loses a holder without becoming free? At the end A lets go: what of its
# blocks remains in use?

# %%
for step in recorder.steps[1:]:
    print(f"{step.index}: {step.caption}")

# %% [markdown]
# ## Four answers on the real model
#
# The prompt is computed once. Then three forks, and each answer starts with another of the model's four most likely
# words. (Sampling would draw them. This way you see the same words as we do.)

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
        copied += [(step, len(pairs))] * bool(pairs)
        logits = smol.model(ids[-1:], sequence, logits_to_keep=1)
        ids.append(int(logits[-1].argmax()))
print("copies (step, blocks):", copied)
for ids in answers:
    print(f"{tokenizer.decode(ids)!r}")

# %% [markdown]
# Three copies, all in the first step. The fourth writer found a block of its own. Has anybody read a neighbour's words?
# Run each answer alone, with nothing shared, and compare:

# %%
same = []
for ids in answers:
    lone = PagedSequence(pool, allocator, **own)
    same.append(generate(smol.model, [*prompt_ids, ids[0]], 14, lone) == ids[1:])
    lone.free()
used = {block for table in tables for block in table.blocks}
print("the same as alone:", same)
print(f"{len(used)} blocks in use instead of {sum(len(table.blocks) for table in tables)}")
print(f"{(16 - len(used)) * pool.bytes_per_block:,} bytes saved")

# %%
for table in tables:
    table.free(allocator)
print("free again:", allocator.num_free, "of 24")

# %% [markdown]
# And the prompt went through the model once, not four times.

# %% [markdown]
# ## What the paper measured
#
# Parallel sampling is what you just did. **Beam search** forks all the time: it keeps the n best beginnings; in every
# step, one beginning may go on twice and another end. So beams share what they have written, too.
#
# The paper's Figure 15 counts how many blocks this saves. `pagedlab/sim/sharing.py` plays such requests on real tables
# and an allocator, no model needed. Prompts and answers have the lengths of two data sets: Alpaca's are short (19 and
# 58 tokens on average), ShareGPT's long (161 and 338).
#
# **Guess first.** Which saves more, four samples or four beams? Short requests or long ones?

# %%
from pagedlab.sim import sharing
from pagedlab.sim.workload import ALPACA, SHAREGPT

mine = {"table_class": parts.fork_and_copy_on_write, "allocator_class": parts.block_allocator}
runs = sharing.figure_15([ALPACA, SHAREGPT], num_requests=10, **mine)
print(sharing.table(runs))

# %%
import matplotlib.pyplot as plt

from pagedlab.sim.plots import plot_sharing

plot_sharing(runs)
plt.show()

# %% [markdown]
# Beams save several times as much. More sequences save more, and so do longer prompts. The order is the paper's, the
# digits are not: our beams are drawn at random, and ten requests are few. (For ShareGPT the paper gives only the two
# ends.)

# %% [markdown]
# ## Strangers with the same beginning
#
# A fork needs somebody who knows that two sequences belong together. But look at a chat service: every request begins
# with the same instructions, and they come hours apart. Nobody forks.
#
# So blocks should be found by what is in them. **Guess first.** Two requests have the same 16 words, at the same
# positions, behind *different* first blocks. Are the keys and values of the 16 the same?

# %%
from pagedlab.cache.growing import GrowingCache

ids = tokenizer.encode("The weather report for tomorrow says that it is going to rain in the afternoon, then clear up.")
ids = ids[:16]
beginnings = [tokenizer.encode(" ".join([word] * 16))[:16] for word in ("yes", "no")]
caches = [GrowingCache(config.num_hidden_layers) for _ in beginnings]
for beginning, cache in zip(beginnings, caches):
    smol.model(beginning + ids, cache)

# %%
last = torch.zeros(config.num_key_value_heads, 1, config.head_dim)
for layer in (0, 1, 29):
    both = [cache.append(layer, last, last)[0][:, 16:32] for cache in caches]
    print(f"layer {layer:2}: the same keys: {torch.allclose(*both, atol=1e-3)}")

# %% [markdown]
# In layer 0 a key is made of the word and its position. From layer 1 on, attention has mixed in all that came before.
# So 16 equal tokens are not enough. **A block can be used again only if everything before it is the same, too.**
#
# Comparing whole beginnings would be slow. Instead, give each full block a **digest**: a short number made from its
# tokens *and the digest of the block before*. If two digests are equal, then so are the blocks before, and those before
# them. A chain:

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
# The second line differs in its last word and its last digest. The third differs in its first word: all digests are
# others, though "five six" is there again.

# %% [markdown]
# ## An image is not in its tokens
#
# In a model that sees, an image takes up, say, 8 positions. All of them hold the same placeholder token. What the image
# shows comes in later, as numbers. (Our model is blind, so this is about digests only.)
#
# **Guess first.** Two receipts, two photos, one question. What do digests made of tokens say?

# %%
IMAGE = 49_000
receipt = [1, 520, *[IMAGE] * 8, 338, 260, 1855, 47, 198, 2]
photos = [bytes(range(16)), bytes(range(1, 17))]
print("digests:", [short("", receipt) for _ in photos])

# %% [markdown]
# Equal: the second customer would get the first one's receipt. It has happened in
# [vllm-project/vllm](https://github.com/vllm-project/vllm/pull/17378) (CVE-2025-46722), in a subtler way: the key was
# made of the image's bytes without its shape.

# %%
pixels = bytes(range(16))
wide, tall = (2, 8), (4, 4)
print("bytes only:     ", len({hashlib.sha256(pixels).hexdigest() for _ in (wide, tall)}), "key for two images")

from pagedlab.cache.prefix import image_key

keys = [image_key(pixels, shape) for shape in (wide, tall)]
print("bytes and shape:", len(set(keys)), "keys for two images")
print("a key is a pair:", keys[0][0], keys[0][1].hex()[:12], "...")

# %% [markdown]
# So a block has **extra keys** next to its tokens: pairs of a kind and a value. The kinds are `"image"`, `"lora"` (a
# small change to the model's weights), and `"cache_salt"`, which comes below.

# %% [markdown]
# ## Exercise 6.2 · The hash chain
#
# Token ids are whole numbers from 0 to 2³¹ - 1. `extra_keys` is `None`, or a list with a tuple of pairs for each block;
# it may be shorter than there are blocks. A value is a text or bytes.
#
# 1. Returns a list with a digest for each **full** block: `bytes`, 16 at least.
# 2. The same tokens and extra keys up to the block's end give the same digest: in every call, in every process.
# 3. Anything else gives another one: another token anywhere before, another order, another extra key, another kind of
#    key. No keys is no keys: `None`, `[]` and `[()]` are the same.
# 4. Nobody can find two texts with the same digest. (`check` knows some old tricks.)
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
keyed = [parts.prefix_hash_chain(receipt, 8, [(), (image_key(photo, (4, 4)),)]) for photo in photos]
print("block before the second half: same digest:", keyed[0][0] == keyed[1][0])
print("block with the image's key:   same digest:", keyed[0][1] == keyed[1][1])

# %% [markdown]
# Text before an image can still be shared. What comes behind it cannot.

# %% [markdown]
# ## Blocks that outlive their request
#
# Now something must remember: digest → block. When a request ends, its blocks are free, and their contents are still
# there (lesson 3: nobody cleans up). If the same beginning comes again before somebody else takes the blocks, it need
# not be computed.
#
# So there is a third state between *in use* and *free*: **cached, and free**. Such a block can be had by anyone who
# needs memory; then its content is lost. That is called **eviction**.
#
# **Guess first.** A request with blocks a, b, c, d has ended, and two blocks must be evicted. Which two?

# %%
for evicted in ("ab", "cd"):
    kept = [block for block in "abcd" if block not in evicted]
    usable = next((i for i, block in enumerate("abcd") if block in evicted), 4)
    print(f"evict {evicted}: kept {kept}, of which {usable} can be found again")

# %% [markdown]
# Without its beginning, the rest is dead weight: **tails before heads**. A real cache got this wrong and kept
# thousands of blocks that nobody could use
# ([llm-d/llm-d-inference-sim#709](https://github.com/llm-d/llm-d-inference-sim/issues/709)).
#
# Between requests the rule is: whoever has gone unused for longest goes first. That is LRU, *least recently used*.

# %% [markdown]
# ## Exercise 6.3 · The prefix cache
#
# A class in front of an allocator. The idea: **the cache is itself one holder of each published block**, so the
# allocator won't hand it out. From outside it looks like an allocator, with two verbs more.
#
# 1. `publish(block, digest)`: the caller holds the block, and its contents are complete. If the digest is known already,
#    nothing changes: the older block stays.
# 2. `lookup(digests)` returns the blocks of the longest beginning that is cached. The caller is one more holder of each.
#    A miss changes nothing.
# 3. `num_free` and `ref_count` don't count the cache's own hold: a block that only the cache holds has 0 holders, and
#    counts as free. `share` and `free` of it are refused (`BlockNotInUseError`, `DoubleFreeError`).
# 4. `allocate(n)` takes blocks with nothing in them first. Then it evicts, no more than needed, those that lost their
#    last holder longest ago; of one `free` call, in the order of its list. An evicted block leaves the map at once. Too
#    few: `OutOfBlocksError(asked, free, total)`, and nothing is evicted.
#
# All else is as in 3.1. `allocator.num_blocks` is the size of the pool.
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
        ### END SOLUTION


# %%
check("prefix_cache", PrefixCache)

# %%
parts = your_parts("block_allocator", "slot_mapping", "write_kv", "prefix_hash_chain", "prefix_cache")
parts

# %% [markdown]
# ## Watching a hit
#
# Two requests with the same eight words, one after the other, in blocks of 4.

# %%
recorder = Recorder(parts.prefix_cache(parts.block_allocator(6)), block_size=4, num_blocks=6)


def request(name, text):
    words = text.split()
    digests = parts.prefix_hash_chain([len(word) for word in words], 4)  # a word's length plays its token id
    table = recorder.table(name, texts=words)
    hits = recorder.lookup(digests[: (len(words) - 1) // 4])
    table.adopt(hits, 4 * len(hits))
    table.append_tokens(len(words) - 4 * len(hits))
    for block, digest in zip(table.blocks, digests):
        recorder.publish(block, digest)
    return table


request("A", "You answer questions briefly and with great care. What is rain?").free()
request("B", "You answer questions briefly and with great care. Who was Ada Lovelace?")

# %%
explorer = BlockTableExplorer(recorder)
explorer

# %%
for step in recorder.steps[1:]:
    print(f"{step.index}: {step.caption}")

# %% [markdown]
# A had gone, and B found two of its three blocks. Step back to the moment in between: nobody held them, and they were
# still there.

# %% [markdown]
# ## Two chats with the same instructions
#
# The real model now, on your cache. `answer` looks the prompt up, computes the rest, publishes its full blocks and lets
# go of them.
#
# One thing needs care. The model gives the next word only for a token that it computes. **Guess first.** The whole
# prompt is cached, all 48 tokens, three full blocks. How many hits may we use?

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
# Two. With all three there would be no token left to compute, and no word would come out. A small engine crashed on just
# that: a repeated prompt whose length is a multiple of the block size
# ([GeeeekExplorer/nano-vllm#114](https://github.com/GeeeekExplorer/nano-vllm/issues/114)).

# %%
instructions = (
    "You are the assistant of a small public library. Answer in one short sentence. Be friendly, never invent "
    "opening hours, and when you do not know something, say that the people at the desk will be glad to help."
)


def chat(text):
    return tokenizer.chat([{"role": "system", "content": instructions}, {"role": "user", "content": text}])


questions = ["Do you have books about whales?", "Where can I read newspapers?"]
cache = parts.prefix_cache(parts.block_allocator(24))
for text in questions:
    ids = chat(text)
    started = time.perf_counter()
    new_ids, cached = answer(cache, ids)
    seconds = time.perf_counter() - started
    plain = generate(smol.model, ids, 12, GrowingCache(config.num_hidden_layers))
    print(f"{len(ids)} prompt tokens, {cached} of them cached; same answer as without: {new_ids == plain}")
    print(f"measured: {seconds:.2f} s for prompt and 12 tokens")

# %% [markdown]
# The second chat computed a quarter of its prompt. It saved memory, and above all work: a long prompt's time to first
# token is nearly all prefill.

# %% [markdown]
# ## A weak hash, and what it is good for
#
# Why SHA-256, when shorter and faster hashes abound? Here is a classic, used for texts in many languages' libraries:
# multiply by 31, add, go on.

# %%
def weak_chain(token_ids, block_size, extra_keys=None):
    digests, value = [], 1
    for i in range(len(token_ids) // block_size):
        for token in token_ids[i * block_size : (i + 1) * block_size]:
            value = value * 31 + token
        digests.append(value.to_bytes(99, "big"))
    return digests


check("prefix_hash_chain", weak_chain, keep=False)

# %% [markdown]
# It can be turned round by hand: one more in a token is 31 less in the next. Somebody wants to spoil what *others* ask
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
# Nonsense, but nobody needs to understand it. The attacker sends it, and its first block is published. Then the victim
# asks its own question.
#
# **Guess first.** What does the victim get to read, with the weak hash and with yours?

# %%
for name, chain in (("weak hash", weak_chain), ("parts.prefix_hash_chain", parts.prefix_hash_chain)):
    cache = parts.prefix_cache(parts.block_allocator(24))
    answer(cache, attack, chain=chain)
    new_ids, cached = answer(cache, victim, num_new=1, chain=chain)
    print(f"{name:24} {cached:2} tokens out of the cache: the capital of Norway is{tokenizer.decode(new_ids)}")

# %% [markdown]
# No error, no warning. The victim's first block was the attacker's, who had asked about France.
#
# vLLM had this hole in milder form: Python's own `hash` was its digest
# ([CVE-2025-25183](https://github.com/vllm-project/vllm/security/advisories/GHSA-rm76-4mrf-v9r8)). It is not made to
# withstand somebody who searches. SHA-256 is: nobody has ever shown two texts with the same digest.

# %% [markdown]
# ## The other way round: listening
#
# A strong hash leaves one leak. A hit is fast, a miss is slow. So a stranger can find out whether somebody has sent a
# certain text: send it, and look at the clock.
#
# **Guess first.** How can two customers be kept apart, without two caches?

# %%
secret = chat("Has the book about how to leave your employer come back yet?")
cache = parts.prefix_cache(parts.block_allocator(24))
answer(cache, secret, num_new=1, extra_keys=[(("cache_salt", "customer 1"),)])
for salt in ("customer 1", "customer 2"):
    _, cached = answer(cache, secret, num_new=1, extra_keys=[(("cache_salt", salt),)])
    print(f"{salt}: {cached} tokens out of the cache")

# %% [markdown]
# A **salt**, an extra key in the first block. The chain carries it on to all others, so customers with different salts
# never meet. The price: they don't share instructions either.

# %% [markdown]
# ## A small pool
#
# Last, the cache under pressure: 14 blocks, five chats that need up to 7 each. Every answer must be as without a cache,
# and every block must come back.

# %%
cache = parts.prefix_cache(parts.block_allocator(14))
for text in (*questions, "Can I bring my dog?", "Is there a quiet room?", questions[0]):
    new_ids, cached = answer(cache, chat(text), num_new=4)
    plain = generate(smol.model, chat(text), 4, GrowingCache(config.num_hidden_layers))
    print(f"{cached:2} tokens cached, same answer: {new_ids == plain}, free: {cache.num_free} of 14")

# %% [markdown]
# Free is 14 after every chat, because cached blocks count as free. The instructions were never evicted: each chat used
# them again, so they were never the least recently used.
#
# ## What this leaves out
#
# - **Who publishes when.** Here one request ran at a time. In a batch, a block must not be published before all layers
#   have written it. Lesson 7's engine does that after each step.
# - **Trees.** SGLang keeps prefixes in a radix tree, token by token, instead of a map of full blocks.
# - **Twins.** Two requests that compute the same block at the same time keep one each. Only the older can be found.

# %% [markdown]
# ## What you learned
#
# - A fork is a copy of the table, and one more holder for each block. Nothing else is copied.
# - The first writer into a shared block copies it. The last holder writes in place. Full blocks are never copied.
# - A block can be used again if all before it is the same: its digest is made of the digest before, its tokens and its
#   extra keys.
# - The cache is one more holder. Cached blocks without another holder count as free, and go tails first, least recently
#   used first.
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

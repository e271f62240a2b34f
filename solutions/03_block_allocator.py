# %% [markdown]
# # 3 · Who owns which block?
#
# *About 75 minutes. You will write a block allocator that never hands a block to two owners, and repair two that
# did worse.*
#
# In lesson 2, memory was taken in one piece and at the start, and most of it stayed empty. Operating systems had the
# same problem, and solved it in the 1960s: **hand out memory in small pages of one size, and only when somebody
# writes.**
#
# Our page is a **block**: room for the keys and values of 16 tokens. Who keeps the books?

# %%
from pagedlab import check, hint, your_parts
from pagedlab.model.config import KNOWN_MODELS
from pagedlab.widgets import BlockTableExplorer

parts = your_parts("blocks_needed", "kv_bytes_per_token")
parts

# %% [markdown]
# **Guess first.** A request has 37 tokens. A block holds 16. How many blocks does it need, and how many slots stay
# empty? What is the worst case, over all lengths?


# %%
def empty_slots(num_tokens, block_size=16):
    return parts.blocks_needed(num_tokens, block_size) * block_size - num_tokens


print(f"37 tokens: {parts.blocks_needed(37, 16)} blocks, {empty_slots(37)} empty slots")
print(f"worst of all lengths to 2,048: {max(empty_slots(n) for n in range(1, 2049))} empty slots")

# %% [markdown]
# **Only the last block of a sequence can be partly empty.** So a sequence never wastes more than `block_size - 1`
# slots, however long it gets. The static cache wasted up to 2,047.
#
# And a block of our model, in bytes:

# %%
bytes_per_block = 16 * parts.kv_bytes_per_token(KNOWN_MODELS["SmolLM2-135M"], 4)
print(f"{bytes_per_block:,} bytes a block, {2**30 // bytes_per_block:,} blocks in 1 GiB")

# %% [markdown]
# ## By hand first
#
# The pool's tensors are made once and never move. To own a block means nothing but to know its number, so an allocator
# deals in numbers. Here is a pool of 8, all free. Request A needs three blocks, and B two.

# %%
free = list(range(8))
a = [free.pop(0) for _ in range(3)]
b = [free.pop(0) for _ in range(2)]
print("A:", a, " B:", b, " free:", free)


# %%
def show(tables, free):
    return BlockTableExplorer.of_tables(tables, num_blocks=8, block_size=4, free=free)


show({"A": (a, 10), "B": (b, 5)}, free)

# %% [markdown]
# On the left, what each request sees: its own blocks, counted from 0. On the right, the pool. To keep the picture
# small, a block has 4 slots here. Click on a block to see whose it is.
#
# Now A has finished. Its blocks go to the end of the free list.

# %%
free += a
print("B:", b, " free:", free)

# %% [markdown]
# **Guess first.** Request C needs five blocks. Nowhere in the pool are five free blocks side by side. Will C get them?
# Which ones?

# %%
c = [free.pop(0) for _ in range(5)]
print("C:", c, " free:", free)
show({"B": (b, 5), "C": (c, 18)}, free)

# %% [markdown]
# C lives in blocks 5, 6, 7, 0 and 1. That list is all it needs to find its tokens again. (It is C's *block table*,
# which lesson 4 is about.)
#
# ## A pool in long use
#
# C met a single gap. Now let 400 requests come, one a step. Each takes 1 to 12 blocks and stays for 4 to 19 steps. If
# there is too little room, it is turned away.

# %%
import random

draw = random.Random(3)
workload = [(1 + int(draw.random() * 12), 4 + int(draw.random() * 16)) for _ in range(400)]


def one_piece(owner, n):
    """The first n free blocks that lie side by side; none if there is no such place."""
    starts = (s for s in range(len(owner) - n + 1) if not any(owner[s : s + n]))
    return next(([*range(s, s + n)] for s in starts), [])


# %%
def serve(in_one_piece):
    """Owner of each of 64 blocks after every step (0: free), and who was turned away although enough was free."""
    owner, leaves, history, in_vain = [0] * 64, {}, [], 0
    for i, (n, stays) in enumerate(workload, start=1):
        owner = [who if who and leaves[who] > i else 0 for who in owner]
        free = [block for block in range(64) if not owner[block]]
        found = one_piece(owner, n) if in_one_piece else free[:n]
        if len(found) == n:
            leaves[i] = i + stays
            owner = [i if block in found else who for block, who in enumerate(owner)]
        in_vain += len(found) < n <= len(free)
        history.append(owner)
    return history, in_vain


# %% [markdown]
# **Guess first.** "In vain" means: enough blocks are free, and the request can't have them. How often does that happen
# if a request must lie in one piece? And if any free block will do?

# %%
pieces, pieces_in_vain = serve(in_one_piece=True)
blocks, blocks_in_vain = serve(in_one_piece=False)
print(f"in one piece:   {pieces_in_vain} of 400 turned away in vain")
print(f"block by block: {blocks_in_vain} of 400 turned away in vain")

# %%
import matplotlib.pyplot as plt
from matplotlib.colors import ListedColormap

palette = ListedColormap(["white", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7"])
figure, axes = plt.subplots(1, 2, figsize=(8, 3.4), dpi=80, facecolor="white", sharey=True, layout="constrained")
for axis, history, title in zip(axes, (pieces, blocks), ("in one piece", "block by block"), strict=True):
    shades = [[who and 1 + who % 7 for who in owner] for owner in history[200:280]]
    axis.imshow(list(zip(*shades, strict=True)), cmap=palette, vmin=0, vmax=7, aspect="auto", interpolation="nearest")
    axis.set(title=title, xlabel="step (from 200)")
axes[0].set_ylabel("block")
figure.suptitle("Who owns which of 64 blocks (a colour is a request, white is free)")
plt.show()

# %%
for name, history in (("in one piece", pieces), ("block by block", blocks)):
    used = sum(who > 0 for owner in history[100:] for who in owner) / (64 * 300)
    print(f"{name:15} {used:.0%} of the blocks in use, steps 100 to 400")

# %% [markdown]
# On the left, white strips, too narrow for whoever comes. On the right, requests are torn into pieces, and it does no
# harm: any free block is as good as another. It can't happen in vain there, because all blocks have **one size**.

# %% [markdown]
# ## The shortest allocator
#
# The list `free` did all the work. Put into a class:

# %%
from pagedlab.cache.allocator import OutOfBlocksError


class Careless:
    def __init__(self, num_blocks):
        self.num_blocks = num_blocks
        self.blocks = list(range(num_blocks))

    @property
    def num_free(self):
        return len(self.blocks)

    def allocate(self, n):
        if n > self.num_free:
            raise OutOfBlocksError(n, self.num_free, self.num_blocks)
        return [self.blocks.pop() for _ in range(n)]

    def free(self, blocks):
        self.blocks.extend(blocks)


# %% [markdown]
# **Guess first.** It runs, and it refuses when too few are free. Yet a short series of calls breaks it. Can you find
# one before the check does?
#
# (`keep=False`: this is not your answer, so it isn't saved.)

# %%
check("block_allocator", Careless, keep=False)

# %% [markdown]
# Read it from the top. A got block 0 and gave it back, twice. Now the free list has it twice, and B and C both get it.
#
# No error is raised. B writes its keys, C writes over them, and B goes on to answer out of C's text. **A pool that has
# lost count doesn't crash. It mixes up its users.**
#
# The check made up hundreds of such series, and shows the shortest one that goes wrong. It will do the same for yours.

# %% [markdown]
# ## Two owners on purpose
#
# Sometimes two requests *should* hold the same block. Two chats begin with the same 8 tokens of instructions. Same
# tokens, same keys and values: why store them twice?

# %%
shared = {"A": ([0, 1, 2], 11), "B": ([0, 1, 3], 9)}
show(shared, free=[4, 5, 6, 7])

# %% [markdown]
# Blocks 0 and 1 are hatched: two tables name them. Somebody must know how many hold a block. That number is its
# **reference count**.
#
# **Guess first.** A finishes and lets go of blocks 0, 1 and 2. Which of them are free now?

# %%
ref_counts = {0: 2, 1: 2, 2: 1, 3: 1}
for block in (0, 1, 2):
    ref_counts[block] -= 1
print("free now:", [block for block, count in ref_counts.items() if count == 0])

# %% [markdown]
# Only block 2: its count came to 0. B still holds the others. Counting also explains the accident above. When block 0
# was freed again it had no holder, so there was nobody who could let go.
#
# How sequences come to share, and what happens when one of them writes, is for lesson 6. The counting must be right
# today.

# %% [markdown]
# ## Exercise 3.1 · The allocator
#
# Write a pool of blocks 0 to `num_blocks - 1`. Keep the books any way you like: no order is asked for.
#
# 1. `allocate(n)` returns a list of n blocks that nobody holds, and makes the caller their only holder. `n` may be 0.
# 2. `share(blocks)` adds a holder to each. `free(blocks)` takes one from each; a block without a holder is free again.
# 3. `num_free` (a property) and `ref_count(block)` tell what is so. A free block has 0 holders.
# 4. **A call that can't be done as a whole raises, and has changed nothing:**
#
# | the call | raises |
# |---|---|
# | asks for more blocks than are free | `OutOfBlocksError(asked, free, total)` |
# | frees a block that is free | `DoubleFreeError(block)` |
# | shares a block that is free | `BlockNotInUseError(block)` |
# | names a block that the pool doesn't have | `UnknownBlockError(block, num_blocks)` |
# | names a block twice | `DuplicateBlockError(block)` |
#
# A call that breaks two rules may raise either error. A list that is given or returned belongs to the caller: don't
# change it, and don't keep it.
#
# *Size of the answer: about 30 lines, with a helper that looks at the blocks of a call.* The check begins when no
# method is a stub any more. Stuck? `hint("block_allocator")`.

# %% tags=["exercise"]
from pagedlab.cache.allocator import BlockNotInUseError, DoubleFreeError, DuplicateBlockError, UnknownBlockError


class BlockAllocator:
    def __init__(self, num_blocks):
        ### BEGIN SOLUTION
        self.num_blocks = num_blocks
        self.free_list = list(range(num_blocks))
        self.holders = [0] * num_blocks
        ### END SOLUTION

    @property
    def num_free(self):
        ### BEGIN SOLUTION
        return len(self.free_list)
        ### END SOLUTION

    def ref_count(self, block):
        ### BEGIN SOLUTION
        if not 0 <= block < self.num_blocks:
            raise UnknownBlockError(block, self.num_blocks)
        return self.holders[block]
        ### END SOLUTION

    def allocate(self, n):
        """Returns a list of n block ids."""
        ### BEGIN SOLUTION
        if n > len(self.free_list):
            raise OutOfBlocksError(n, len(self.free_list), self.num_blocks)
        blocks = [self.free_list.pop() for _ in range(n)]
        for block in blocks:
            self.holders[block] = 1
        return blocks
        ### END SOLUTION

    def share(self, blocks):
        """blocks: a list of block ids."""
        ### BEGIN SOLUTION
        self.look_at(blocks, BlockNotInUseError)
        for block in blocks:
            self.holders[block] += 1
        ### END SOLUTION

    def free(self, blocks):
        """blocks: a list of block ids."""
        ### BEGIN SOLUTION
        self.look_at(blocks, DoubleFreeError)
        for block in blocks:
            self.holders[block] -= 1
            if self.holders[block] == 0:
                self.free_list.append(block)

    def look_at(self, blocks, error_if_free):
        seen = set()
        for block in blocks:
            if self.ref_count(block) == 0:
                raise error_if_free(block)
            if block in seen:
                raise DuplicateBlockError(block)
            seen.add(block)
        ### END SOLUTION


# %%
check("block_allocator", BlockAllocator)

# %%
parts = your_parts("blocks_needed", "kv_bytes_per_token", "block_allocator")
parts

# %% [markdown]
# ## Watching it
#
# A `Recorder` stands in for an allocator. It passes every call on, and remembers the pool after each. A sequence's
# table asks it for a block whenever the last one is full.

# %%
from pagedlab.cache.recorder import Recorder

recorder = Recorder(parts.block_allocator(8), block_size=4, num_blocks=8)
a = recorder.table("A", texts="A cache keeps what was computed before".split())
b = recorder.table("B", texts="Blocks may lie anywhere".split())
a.append_tokens(3)
b.append_tokens(4)
a.append_tokens(4)
a.free()

# %% [markdown]
# Step forwards and backwards with the buttons, or with the arrow keys when the slider is selected. When did A get its
# second block, and why not before?

# %%
explorer = BlockTableExplorer(recorder, step=3)
explorer

# %% [markdown]
# The same story as text:

# %%
for step in recorder.steps:
    print(f"{step.index}: {step.caption}")

# %% [markdown]
# A call that is refused is a step too, and it leaves no trace in the pool:

# %%
before = recorder.num_free, [recorder.ref_count(block) for block in range(8)]
good, bad = b.blocks[0], next(block for block in range(8) if recorder.ref_count(block) == 0)
try:
    recorder.free([good, bad])
except DoubleFreeError as error:
    print("DoubleFreeError names the free block:", error.block == bad)
print("unchanged:", (recorder.num_free, [recorder.ref_count(block) for block in range(8)]) == before)

# %% [markdown]
# `good` still has its holder, although it came first in the list. A call that did half its work and then raised would
# leave its caller to find out which half.

# %% [markdown]
# ## What does it cost?
#
# An allocator works between two steps of the model, while the GPU waits. A large GPU has tens of thousands of blocks.
# Here is a tempting design: no free list at all, since the counts say which blocks are free.


# %%
class Search:
    def __init__(self, num_blocks):
        self.counts = [0] * num_blocks

    def allocate(self, n):
        found = [block for block, count in enumerate(self.counts) if count == 0][:n]
        for block in found:
            self.counts[block] = 1
        return found

    def free(self, blocks):
        for block in blocks:
            self.counts[block] -= 1


# %% [markdown]
# **Guess first.** Take one block and give it back. From a pool of 100 blocks to one of 100,000, how does the time grow?
# For `Search`, and for a free list?

# %%
import time


def microseconds(pool, calls=20):
    started = time.perf_counter()
    for _ in range(calls):
        pool.free(pool.allocate(1))
    return (time.perf_counter() - started) / calls * 1e6


for num_blocks in (100, 10_000, 100_000):
    search, yours = microseconds(Search(num_blocks)), microseconds(parts.block_allocator(num_blocks))
    print(f"measured: {num_blocks:7,} blocks: Search {search:8.1f} us, parts.block_allocator {yours:5.1f} us")

# %% [markdown]
# `Search` looks at every block to find one, so its time grows with the pool. Taking from the end of a list costs the
# same however long the list is. That is written **O(1)**. (The check accepts slow designs too.)

# %% [markdown]
# ## Find the bug
#
# Two mistakes from public bug reports follow, each put into a small class that is otherwise right. Both stand on these
# books:


# %%
class Books:
    """idle: the free blocks, a dict used as a set that remembers its order. counts: the holders of each block."""

    def __init__(self, num_blocks):
        self.num_blocks, self.counts, self.idle = num_blocks, [0] * num_blocks, dict.fromkeys(range(num_blocks))

    @property
    def num_free(self):
        return len(self.idle)

    def ref_count(self, block):
        if block not in range(self.num_blocks):
            raise UnknownBlockError(block, self.num_blocks)
        return self.counts[block]

    def must_be_held(self, block, error):
        self.ref_count(block)
        if block in self.idle:
            raise error(block)


# %% [markdown]
# The first report: [Wenyueh/MinivLLM#70](https://github.com/Wenyueh/MinivLLM/issues/70), fixed in
# [#84](https://github.com/Wenyueh/MinivLLM/issues/84). With such a pool a server runs well for a while. Then it
# accepts no more requests, although none is running.


# %%
class Leaky(Books):
    def allocate(self, n):
        if n > self.num_free:
            raise OutOfBlocksError(n, self.num_free, self.num_blocks)
        return [self.idle.popitem()[0] for _ in range(n)]

    def share(self, blocks):
        self.look(blocks, BlockNotInUseError)
        for block in blocks:
            self.counts[block] += 1

    def free(self, blocks):
        self.look(blocks, DoubleFreeError)
        for block in blocks:
            self.counts[block] -= 1
            if self.counts[block] == 0:
                self.idle[block] = None

    def look(self, blocks, error):
        for block in blocks:
            self.must_be_held(block, error)
            if blocks.count(block) > 1:
                raise DuplicateBlockError(block)


# %% [markdown]
# **Guess first.** Follow one block through `allocate` and `free`, and write down its count after each. Then see what
# the check says.

# %%
check("block_allocator", Leaky, keep=False)

# %% [markdown]
# ## Exercise 3.2 · Blocks that never come back
#
# One free block, and none to be had. Repair it by writing one method anew.
#
# 1. Everything that 3.1 promises holds for `Repaired`.
# 2. The other methods stay as they are.
#
# *Size of the answer: about 4 lines.* (`super().allocate(n)` calls the old one.)


# %% tags=["exercise"]
class Repaired(Leaky):
    def allocate(self, n):
        ### BEGIN SOLUTION
        blocks = super().allocate(n)
        for block in blocks:
            self.counts[block] = 1
        return blocks
        ### END SOLUTION


# %%
check("block_allocator", Repaired, keep=False)

# %% [markdown]
# What was a block's count in `Leaky` when somebody had just taken it, and what was it after `free`? The line that puts
# blocks back waits for 0. Say in a sentence why it waited for ever.
#
# Nothing was raised, and no text was wrong. A leak shows up after hours. So the check asks after every series of calls:
# *can all free blocks be had?*

# %% [markdown]
# ## One call, the same block twice
#
# The second report is [vllm-project/vllm#1556](https://github.com/vllm-project/vllm/issues/1556). Some models look back
# only over a **sliding window**, and need no more blocks than fit into it. vLLM's tables went round in a ring then. A
# long sequence with a window of two blocks:

# %%
window = [4, 7]
table = [window[i % 2] for i in range(5)]
print(table)

# %% [markdown]
# One holder, two blocks, five entries. `allocate` counts the holder once for each block. If the whole table is then
# freed, a `free` that goes by entries takes 1 from block 4 three times. (If `share` had gone by entries too, it would
# come out even.) Here is such a pool.


# %%
class ByEntries(Books):
    def allocate(self, n):
        if n > self.num_free:
            raise OutOfBlocksError(n, self.num_free, self.num_blocks)
        blocks = [self.idle.popitem()[0] for _ in range(n)]
        for block in blocks:
            self.counts[block] = 1
        return blocks

    def share(self, blocks):
        for block in blocks:
            self.must_be_held(block, BlockNotInUseError)
        for block in blocks:
            self.counts[block] += 1

    def free(self, blocks):
        for block in blocks:
            self.must_be_held(block, DoubleFreeError)
        for block in blocks:
            self.counts[block] -= 1
            if self.counts[block] == 0:
                self.idle[block] = None


# %% [markdown]
# **Guess first.** `allocate` gave A a block, and B joined by `share`: the count is 2. A's table names the block twice,
# and A frees its whole table. What is the count now, and who still holds the block?

# %%
check("block_allocator", ByEntries, keep=False)

# %% [markdown]
# ## Exercise 3.3 · A holder counts once
#
# A let go once and was counted twice, so B's hold went with it. Repair it.
#
# 1. Everything that 3.1 promises holds for `Counted`.
# 2. A call that names a block twice is refused, before anything changes.
#
# *Size of the answer: about 8 lines.*


# %% tags=["exercise"]
class Counted(ByEntries):
    def share(self, blocks):
        ### BEGIN SOLUTION
        for block in blocks:
            if blocks.count(block) > 1:
                raise DuplicateBlockError(block)
        super().share(blocks)
        ### END SOLUTION

    def free(self, blocks):
        ### BEGIN SOLUTION
        for block in blocks:
            if blocks.count(block) > 1:
                raise DuplicateBlockError(block)
        super().free(blocks)
        ### END SOLUTION


# %%
check("block_allocator", Counted, keep=False)

# %% [markdown]
# vLLM's own fix ([#3347](https://github.com/vllm-project/vllm/issues/3347)) was on the caller's side: from then on
# `fork`, which shares a table, counted each block once. Ours makes the allocator refuse, so that any caller finds out.
# There was another: two years later, repeated blocks came in by a different way
# ([vllm-project/vllm#42571](https://github.com/vllm-project/vllm/issues/42571)).
#
# vLLM did notice: it raised *Double free*. In [#1584](https://github.com/vllm-project/vllm/issues/1584) a user replaced
# that line by `return 0`, and the program no longer stopped.
#
# **Guess first.** What did that line turn the error into? `Careless` never raised it either, so it can show us.

# %%
pool = Careless(4)
a = pool.allocate(1)
pool.free(a)
pool.free(a)  # here an error would have been raised
print("B:", pool.allocate(1), " C:", pool.allocate(1))

# %% [markdown]
# Into two owners, who don't know of each other. When a double free is noticed, somebody has already lost count, and the
# error is the last chance to hear of it.

# %% [markdown]
# ## A busy day
#
# Back to your own. A pool of 1 GiB, and 2,000 requests of 1 to 600 tokens. After each, every block is accounted for.

# %%
num_blocks = 2**30 // bytes_per_block
pool, draw, live, most_empty = parts.block_allocator(num_blocks), random.Random(5), {}, 0
for request in range(2000):
    num_tokens = 1 + int(draw.random() * 600)
    while parts.blocks_needed(num_tokens, 16) > pool.num_free:  # the oldest one finishes
        pool.free(live.pop(next(iter(live))))
    live[request] = pool.allocate(parts.blocks_needed(num_tokens, 16))
    most_empty = max(most_empty, 16 * len(live[request]) - num_tokens)
    assert pool.num_free + sum(map(len, live.values())) == num_blocks
print(f"most slots that a request left empty: {most_empty}")
print(f"at the end: {len(live)} requests, {pool.num_free} blocks free")

# %%
for blocks_held in live.values():
    pool.free(blocks_held)
print(f"after the last one: {pool.num_free} of {num_blocks:,} blocks free")

# %% [markdown]
# Every block came back. No request wasted more than 15 slots, as the bound said.
#
# ## What this leaves out
#
# - **Threads.** Two calls at the same time would need a lock. vLLM's scheduler is a single thread.
# - **What to do when the pool is full.** The allocator says no; who has to wait, or to leave, is for lesson 7.
# - **Contents.** A freed block keeps its old keys and values. Nobody cleans up: its next owner has to write before it
#   reads.

# %% [markdown]
# ## What you learned
#
# - A block belongs to nobody, or to those who are counted. A pool that loses count mixes up its users.
# - All blocks have one size, so any free block will do, and a scattered pool is as good as a new one.
# - A sequence leaves at most `block_size - 1` slots empty, whatever its length.
# - Look at the whole call first, then change: all or nothing, errors with numbers.
# - A free list makes the cost of a block O(1), however large the pool is.

# %% [markdown]
# ## Where it lives
#
# | idea | here | in vLLM |
# |---|---|---|
# | allocator | `pagedlab/cache/allocator.py` | `BlockPool`: `get_new_blocks`, `touch` (share), `free_blocks` |
# | reference count | `BlockAllocator.ref_count` | `KVCacheBlock.ref_cnt` |
# | free list | a list, used as a stack | `FreeKVCacheBlockQueue`, a linked list, longest free first |
# | blocks a request needs | `pagedlab/cache/accounting.py` | `KVCacheManager.allocate_slots` |
# | recorded stories | `pagedlab/cache/recorder.py` | none |
#
# The paper: sections 4.2 and 4.4 of [arXiv:2309.06180](https://arxiv.org/abs/2309.06180).

# %% [markdown]
# ## Next
#
# Lesson 4, *How does token 37 find its slot?*: a request knows which blocks are its own. Now it has to find its way
# around in them.

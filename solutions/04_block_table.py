# %% [markdown]
# # 4 · How does token 37 find its slot?
#
# *About 75 minutes. You will write the way from a token to its place in memory and back. At the end the real model
# writes through your code, in a pool where every wrong read would show.*
#
# In lesson 3 blocks were handed out in any order. So the tokens of one sequence lie here and there. How does anybody
# find them again?

# %%
import torch

from pagedlab import check, hint, your_parts
from pagedlab.model.load import load

parts = your_parts("block_allocator")
parts

# %% [markdown]
# ## A sequence in pieces
#
# A text to work with, and its token 37. Counting starts at 0, and the number of a token in its sequence is called its
# **position**.

# %%
smol = load()
config, tokenizer = smol.config, smol.tokenizer
library = (
    "The old library keeps every book in pieces. Each chapter stands on whatever shelf was free on the day it arrived, "
    "and a small card says where. To read chapter three, you first look at the card, then"
)
library_ids = tokenizer.encode(library)
print(len(library_ids), "tokens; token 37 is", repr(tokenizer.token_text(library_ids[37])))

# %% [markdown]
# We need the library's card: for each piece of the sequence, the block it went to. Say that the 43 tokens were given
# three blocks of 16 slots: first block 7, then 2, then 9.

# %%
block_size = 16
block_table = [7, 2, 9]

# %% [markdown]
# **Guess first.** Which block holds token 37, and which place in that block? Write both numbers down.

# %%
entry, place = 37 // block_size, 37 % block_size
print(f"entry {entry} of the table: block {block_table[entry]}, place {place}")

# %% [markdown]
# That is the whole idea, and it has names. The list is the **block table**. The sequence counts its own blocks 0, 1, 2:
# they are *logical*. The table turns them into the pool's blocks 7, 2, 9: those are *physical*. An operating system's
# page table does the same for a program's memory.

# %% [markdown]
# ## One number instead of two
#
# Count the places of the whole pool in one long row: block 0 has slots 0 to 15, block 1 has slots 16 to 31, and so on.
# Then a block and a place make one **slot**:

# %%
slot = block_table[entry] * block_size + place
print("token 37 lies in slot", slot)
print("and back:", divmod(slot, block_size))

# %% [markdown]
# Slots count through the whole pool. Where a block is named too, the place alone will do: "block 9 slot 5" is slot 149.
#
# **Guess first.** Tokens 31 and 32 are neighbours in the text. How many slots apart do they lie?

# %%
slots = [block_table[p // block_size] * block_size + p % block_size for p in (30, 31, 32, 33)]
print("tokens 30 to 33 lie in slots", slots)

# %% [markdown]
# 97 slots. Inside a block neighbours stay neighbours; at its end the sequence jumps. Adding 1 to a slot to get to the
# next token is right fifteen times out of sixteen. The sixteenth time it finds somebody else's.

# %% [markdown]
# ## Exercise 4.1 · From positions to slots
#
# 1. Return the slots of positions `start` to `end - 1`, in order, as a list. `end` is not included.
# 2. Any block size, any range; an empty range has no slots.
# 3. The table may be a list or a tensor, and is left as it is. Longer than needed, it ends in entries of -1: *no block*.
# 4. A position without a block raises `IndexError`.
#
# *Size of the answer: about 7 lines.* Stuck? `hint("slot_mapping")`.


# %% tags=["exercise"]
def slot_mapping(block_table, start, end, block_size):
    """The slots of positions start to end - 1. block_table: the physical block of each logical block."""
    ### BEGIN SOLUTION
    slots = []
    for position in range(start, end):
        block = int(block_table[position // block_size])
        if block < 0:
            raise IndexError(f"position {position} has no block")
        slots.append(block * block_size + position % block_size)
    return slots
    ### END SOLUTION


# %%
check("slot_mapping", slot_mapping)

# %%
parts = your_parts("block_allocator", "slot_mapping")
parts

# %% [markdown]
# ## Prefill and decode
#
# The prompt brings all its tokens at once; each later step brings one. Both ask the same function:

# %%
prefill = parts.slot_mapping(block_table, 0, 43, 16)
decode = parts.slot_mapping(block_table, 43, 44, 16)
print("prefill:", prefill)
print("decode: ", decode)

# %% [markdown]
# Such a list is called a **slot mapping**. It is made once a step and serves every layer, because a token has the same
# slot in all of them.

# %% [markdown]
# **Guess first.** The sequence has 43 tokens and three blocks. The next tokens go to positions 43, 44, 45 and so on.
# Which is the first that finds no block?

# %%
for position in range(43, 60):
    try:
        slot = parts.slot_mapping(block_table, position, position + 1, 16)[0]
    except IndexError:
        print(f"position {position} has no slot: the table has {len(block_table)} blocks")
        break

# %% [markdown]
# At 48 the table needs a fourth entry. So while it writes, a sequence asks the allocator for a block once in sixteen
# steps, just when it has a token to put there.

# %% [markdown]
# ## Why -1?
#
# Sequences of a batch have tables of different lengths. A GPU wants them as one rectangle, so short rows are filled up:

# %%
from pagedlab.cache.table import padded

batch = padded([block_table, [4], [6, 1]])
batch

# %% [markdown]
# **Guess first.** Filling up with 0 would look tidier. What could go wrong? Think of code with a small mistake that
# asks for one token too many.

# %%
tidy = batch.clamp(min=0)
print("filled with 0:  position 16 of [4] lies in slot", parts.slot_mapping(tidy[1].tolist(), 16, 17, 16))
try:
    parts.slot_mapping(batch[1], 16, 17, 16)
except IndexError:
    print("filled with -1: IndexError")

# %% [markdown]
# Block 0 exists, and may be somebody's. The mistake reads another user's tokens, and nobody notices. -1 is no block, so
# the mistake is found.

# %% [markdown]
# ## The pool itself
#
# Now the memory. For one layer, the keys of all blocks are a single tensor, and the values another one:
# `[num_blocks, num_kv_heads, block_size, head_dim]`.
#
# We fill both with NaN, *not a number*. Whatever is computed with a NaN becomes NaN, so if anybody reads a slot that
# nobody wrote, it will show.

# %%
num_blocks, num_kv_heads, head_dim = 12, config.num_key_value_heads, config.head_dim
key_cache = torch.full((num_blocks, num_kv_heads, block_size, head_dim), torch.nan)
value_cache = key_cache.clone()
print(list(key_cache.shape), "holds", num_blocks * block_size, "slots")

# %% [markdown]
# ## A token that must not be stored
#
# Some steps carry tokens that nobody wants to keep. GPUs like batches of a fixed size, so 5 tokens may be sent as 8,
# and 3 of them are dummies. A dummy gets slot **-1**: skip it.
#
# **Guess first.** What does Python make of that slot, if nobody takes care?

# %%
print("-1 // 16 =", -1 // 16, "  -1 % 16 =", -1 % 16)
row = torch.arange(192).view(12, 16)  # 12 blocks of 16 slots, each holding its own number
print("so the dummy would land in slot", int(row[-1 // 16, -1 % 16]))

# %% [markdown]
# No error: the last slot of the last block is overwritten, whoever owns it. Real servers had relatives of this bug. In
# Triton, a language for GPUs, -1 // 16 is 0 and -1 % 16 is -1: a place *before* the cache
# ([NVIDIA/TensorRT-LLM#18673](https://github.com/NVIDIA/TensorRT-LLM/issues/18673)). Elsewhere -1 was turned into a
# slot that was in use ([sgl-project/sglang#36880](https://github.com/sgl-project/sglang/issues/36880)).

# %% [markdown]
# ## Exercise 4.2 · Store new tokens by slot
#
# `keys` and `values` are this step's new tokens, `[num_tokens, num_kv_heads, head_dim]`. Token i goes to
# `slot_mapping[i]`. The model computes them heads first and hands them over turned, so they don't lie in memory in the
# order of their shape.
#
# 1. Each token's key lies in its slot of `key_cache`, its value in the same slot of `value_cache`.
# 2. The caches change in place, and nothing else changes: not the slots, not the new keys. Nothing is returned.
# 3. A token with slot -1 is not stored.
#
# *Size of the answer: about 6 lines.* Stuck? `hint("write_kv")`.


# %% tags=["exercise"]
def write_kv(keys, values, key_cache, value_cache, slot_mapping):
    """Put new tokens into their slots. key_cache, value_cache: [num_blocks, num_kv_heads, block_size, head_dim].

    slot_mapping: a list or a tensor, one slot for each token, -1 for a token that is not stored.
    """
    ### BEGIN SOLUTION
    block_size = key_cache.shape[2]
    for token, slot in enumerate(slot_mapping):
        if slot >= 0:
            block, place = slot // block_size, slot % block_size
            key_cache[block, :, place] = keys[token]
            value_cache[block, :, place] = values[token]
    ### END SOLUTION


# %%
check("write_kv", write_kv)

# %%
parts = your_parts("block_allocator", "slot_mapping", "write_kv")
parts

# %% [markdown]
# ## Look at the pool
#
# Write 43 tokens, with random numbers for keys and values. Then print the pool, one character a slot: `#` was written,
# `.` is still NaN.

# %%
torch.manual_seed(4)
keys = torch.randn(43, num_kv_heads, head_dim)
values = torch.randn(43, num_kv_heads, head_dim)
parts.write_kv(keys, values, key_cache, value_cache, prefill)
for block in range(num_blocks):
    written = ~key_cache[block, 0, :, 0].isnan()
    print(f"block {block:2}  " + "".join("#" if one else "." for one in written))

# %% [markdown]
# Three blocks, the last one not full: block 9 has 11 tokens and 5 empty slots. Every other block belongs to nobody.

# %% [markdown]
# ## Back to one piece
#
# Now the way back: all keys and values of a sequence, in order, in one piece. It copies everything, so a real server
# would not do it in each step. But it is slow, simple and easy to believe: good for testing what comes later.

# %% [markdown]
# ## Exercise 4.3 · Back to one piece
#
# 1. Return keys and values of the first `num_tokens` tokens, `[num_kv_heads, num_tokens, head_dim]` each.
# 2. The table may be a list or a tensor, and may end in -1.
# 3. No slot of anybody else comes along, and no empty one. For 0 tokens, both tensors are empty.
#
# *Size of the answer: about 6 lines.* Stuck? `hint("gather_kv")`.


# %% tags=["exercise"]
def gather_kv(key_cache, value_cache, block_table, num_tokens):
    """All keys and values of one sequence: [num_kv_heads, num_tokens, head_dim] each.

    key_cache, value_cache: [num_blocks, num_kv_heads, block_size, head_dim].
    """
    ### BEGIN SOLUTION
    block_size = key_cache.shape[2]
    positions = torch.arange(num_tokens)
    blocks = torch.as_tensor(block_table)[positions // block_size].long()
    places = positions % block_size
    keys, values = key_cache[blocks, :, places], value_cache[blocks, :, places]  # tokens first
    return keys.transpose(0, 1), values.transpose(0, 1)
    ### END SOLUTION


# %%
check("gather_kv", gather_kv)

# %%
parts = your_parts("block_allocator", "slot_mapping", "write_kv", "gather_kv")
parts

# %% [markdown]
# Write, then gather: what comes back must be what went in.

# %%
back_keys, back_values = parts.gather_kv(key_cache, value_cache, block_table, 43)
print("keys the same:  ", torch.equal(back_keys, keys.transpose(0, 1)))
print("values the same:", torch.equal(back_values, values.transpose(0, 1)))
print("NaN in them:    ", int(back_keys.isnan().sum()))

# %% [markdown]
# ## Watch a real generation
#
# Now with the real model. Two sequences share a pool of 8 blocks, and the model writes through your parts. A recorder
# stands in for the allocator and takes notes.
#
# The pool has been used before, so its free blocks are in no order:

# %%
from pagedlab.cache.paged import PagedKVCache, PagedSequence
from pagedlab.cache.recorder import Recorder

pool = PagedKVCache(config.num_hidden_layers, 8, num_kv_heads, block_size, head_dim)
recorder = Recorder(parts.block_allocator(8), block_size=block_size)
with recorder.step("earlier", title="Earlier requests have come and gone"):
    blocks = recorder.allocate(8)
    recorder.free([blocks[i] for i in (6, 1, 4, 0, 3, 7, 5, 2)])
print(recorder.steps[-1].caption)

# %% [markdown]
# `start` makes a sequence and notes the words of its tokens. `step` feeds tokens to the model and returns the next.


# %%
def start(name, text):
    ids = tokenizer.encode(text)
    table = recorder.table(name, texts=[tokenizer.token_text(token) for token in ids])
    return PagedSequence(pool, recorder, table, slot_mapping=parts.slot_mapping, write=parts.write_kv), ids


def step(sequence, ids):
    next_id = int(smol.model(ids, sequence, logits_to_keep=1)[-1].argmax())
    sequence.table.texts.append(tokenizer.token_text(next_id))
    return [next_id]


# %% [markdown]
# **Guess first.** A starts with 43 tokens and B with 18. Both write four. Then B ends, and A writes seven more. How
# many of the 8 blocks are in use at the end? And where might A's fourth block come from?

# %%
a, a_ids = start("A", library)
b, b_ids = start("B", "One, two, three, four, five, six, seven, eight, nine,")
a_next, b_next = step(a, a_ids), step(b, b_ids)
for _ in range(4):
    a_next, b_next = step(a, a_next), step(b, b_next)
b.free()
for _ in range(7):
    a_next = step(a, a_next)
print(f"A: {a.num_tokens} tokens, {len(a.table.blocks)} blocks. Free: {recorder.num_free} of 8.")

# %% [markdown]
# ## The block-table explorer
#
# On the left are the sequences as they see themselves, on the right the pool as it is. Try this:
#
# - Token 37 is selected. Follow its line to the slot, and check the arithmetic below.
# - Go back step by step. B comes back, A shrinks.
# - Select a block of the pool. Whose is it? Whose was it some steps earlier?
# - Find the step in which A gets its fourth block, and the one in which that block became free.

# %%
from pagedlab.widgets import BlockTableExplorer

explorer = BlockTableExplorer(recorder, selected={"sequence": "A", "position": 37})
explorer

# %% [markdown]
# The same moment as a table. (It does not follow your steps: run the cell again.) `filled` is the number to look at:
# only the last block of a sequence has empty slots.

# %%
print(explorer.table())

# %% [markdown]
# The steps can also be read without a picture. Only in these did a block change hands:

# %%
for one in recorder.steps[2:]:
    if one.calls:
        print(f"step {one.index}: {one.caption}")

# %% [markdown]
# Step 0 is the new pool, step 1 the earlier requests. Of steps 2 to 19, one gave B's blocks back and 17 fed the model,
# three of which asked for blocks. A block that B gave back can serve A at once. Nothing is moved, nothing is cleaned.
#
# **Guess first.** Nothing is cleaned: whatever was in that block is still there when A gets it. Why does A never read
# it?

# %%
last = a.table.blocks[-1]
filled = int((pool.key_cache(0)[last, 0] != 0).any(dim=1).sum())
print(f"block {last}: {filled} of 16 slots hold a key, and {a.num_tokens - 48} of them are A's")

# %% [markdown]
# A reads `num_tokens` tokens and no more, and a slot is written before it is counted. What an old owner left
# behind is never looked at. That is easily said; we can test it.

# %% [markdown]
# ## The NaN test
#
# A fresh pool, with NaN in every slot of every layer. The model writes with your `slot_mapping` and `write_kv`, and
# reads with your `gather_kv`. One read of an empty slot, in any of 30 layers, would turn all that follows into NaN.

# %%
from pagedlab.cache.growing import GrowingCache
from pagedlab.cache.protocol import Contiguous
from pagedlab.model.generate import generate

poisoned = PagedKVCache(config.num_hidden_layers, 8, num_kv_heads, block_size, head_dim)
for layer in range(config.num_hidden_layers):
    poisoned.key_cache(layer).fill_(torch.nan)
    poisoned.value_cache(layer).fill_(torch.nan)

# %%
sequence = PagedSequence(
    poisoned,
    parts.block_allocator(8),
    slot_mapping=parts.slot_mapping,
    write=parts.write_kv,
    gather=parts.gather_kv,
)
paged_ids = generate(smol.model, library_ids, 12, Contiguous(sequence))
growing_ids = generate(smol.model, library_ids, 12, GrowingCache(config.num_hidden_layers))
print("same tokens as the growing cache:", paged_ids == growing_ids)
print(repr(tokenizer.decode(paged_ids)))

# %% [markdown]
# `Contiguous` means: gather everything, then attend as in lesson 1. Its price is a copy of the whole sequence in every
# step and layer. Lesson 5 gets rid of that copy.
#
# How much of the pool was written?

# %%
written = int((~poisoned.key_cache(config.num_hidden_layers - 1)[:, 0, :, 0].isnan()).sum())
print(f"{written} of {8 * 16} slots of the last layer; the sequence has {sequence.num_tokens} tokens")

# %% [markdown]
# ## From a slot to an address
#
# `key_cache[block, :, place]` is PyTorch's language. A **kernel**, a program that runs on the GPU, has no tensors. It
# sees one long row of numbers, and must say how far from the beginning a number lies: its **offset**.

# %%
small = torch.arange(2 * 3 * 4 * 5).view(2, 3, 4, 5)  # 2 blocks, 3 kv heads, 4 slots, head_dim 5
print("each number is its own offset; block 0, head 0:")
print(small[0, 0])

# %% [markdown]
# **Guess first.** To the right the offset grows by 1, downwards by 5. How far is it from here to the same place in the
# next head? And in the next block?

# %%
print("next head: ", int(small[0, 1, 0, 0] - small[0, 0, 0, 0]))
print("next block:", int(small[1, 0, 0, 0] - small[0, 0, 0, 0]))
print("torch says:", small.stride())

# %% [markdown]
# These four jumps are the **strides**. The last dimension lies side by side. A step in any other one jumps over all
# that is to its right.
#
# ## Exercise 4.4 · Where a number lies
#
# 1. Return the offset of one number in `[num_blocks, num_kv_heads, block_size, head_dim]`, counted in numbers.
# 2. It is right for a pool of any size. `num_blocks` is not needed: why?
#
# *Size of the answer: about 4 lines.* Stuck? `hint("element_offset")`.


# %% tags=["exercise"]
def element_offset(block, head, slot, dim, num_kv_heads, block_size, head_dim):
    """How far from the cache's first number this one lies. slot: the place in the block, 0 to block_size - 1."""
    ### BEGIN SOLUTION
    slot_stride = head_dim
    head_stride = block_size * slot_stride
    block_stride = num_kv_heads * head_stride
    return block * block_stride + head * head_stride + slot * slot_stride + dim
    ### END SOLUTION


# %%
check("element_offset", element_offset)

# %%
parts = your_parts("slot_mapping", "write_kv", "gather_kv", "element_offset")
parts

# %% [markdown]
# Now token 37 can be found by arithmetic alone. Its key in kv head 2, number 10, from the random numbers above:

# %%
offset = parts.element_offset(9, 2, 5, 10, num_kv_heads, block_size, head_dim)
print("offset", offset)
print("the number there is the one we wrote:", bool(key_cache.view(-1)[offset] == keys[37, 2, 10]))

# %% [markdown]
# **Guess first.** Many kernels keep whole numbers in 32 bits, which end at 2,147,483,647. Take Llama-3.1-8B's 8 kv
# heads of 128 numbers and blocks of 16. From which block on is an offset too large?

# %%
block = 0
while parts.element_offset(block, 0, 0, 0, 8, 16, 128) < 2**31:
    block += 1
print(f"block {block:,}, after {block * 16:,} slots")

# %% [markdown]
# Then the number turns negative, and the kernel reads somewhere else or crashes. Two million slots are a large pool,
# but larger blocks get there sooner: vLLM met it above block 7,767
# ([vllm-project/vllm#47671](https://github.com/vllm-project/vllm/issues/47671)). Our kernels count in 64 bits.

# %% [markdown]
# ## Three layouts
#
# The order of the dimensions was a choice, called the **layout**. Here are three: ours, that of many other kernels, and
# that of vLLM's first kernel, which cut each key into pieces of 16 bytes.

# %%
from pagedlab.cache.layout import heads_first, split_keys, token_major

layouts = [make(num_kv_heads, block_size, head_dim) for make in (heads_first, token_major, split_keys)]
for layout in layouts:
    names = [f"{axis.of} // {axis.step}" if axis.step > 1 else axis.of for axis in layout.axes]
    if layout.axes[-1].size < head_dim:  # only a piece of dim is innermost
        names[-1] = f"dim % {layout.axes[-1].size}"
    print(f"{layout.name:12} {' · '.join(names):42} strides {layout.strides}")

# %% [markdown]
# With 16 bits a number, 16 bytes are 8 numbers. So *split keys* has two dimensions for `dim`: which piece, and which
# number in it. Between the two stand the slots: the first 8 numbers of all tokens of a block lie side by side.
#
# **Guess first.** A step writes one new token for all 3 kv heads. And for each head, it reads all 16 tokens of a block.
# In which layouts is each of the two in one piece?

# %%
from pagedlab.cache.layout import pieces

print(f"{'':12} {'one token, all heads':>22} {'one head, all tokens':>22}")
for layout in layouts:
    write = [layout.offset(0, head, 5, dim) for head in range(num_kv_heads) for dim in range(head_dim)]
    read = [layout.offset(0, 2, place, dim) for place in range(block_size) for dim in range(head_dim)]
    print(f"{layout.name:12} {pieces(write):14} piece(s) {pieces(read):13} piece(s)")

# %% [markdown]
# Each layout is good at something. A token is written once and read in every later step. Ours favours the read: what a
# kernel needs of a block for one head is in one piece.

# %% [markdown]
# ## What 32 threads read
#
# A GPU's threads work in groups of 32, called **warps**. The threads of a warp read at the same moment. Memory hands
# out **sectors** of 32 bytes; who wants one byte gets them all. So it matters whether the threads want neighbours.
#
# Let a warp read 256 bytes of keys, each thread 4 numbers of 16 bits, in two ways:


# %%
def whole_tokens(layout):
    """Tokens 0 and 1, all 64 numbers of each: 16 threads a token."""
    return [layout.offset(0, 0, place, dim) for place in (0, 1) for dim in range(64)]


def all_tokens(layout):
    """All 16 tokens, numbers 0 to 7 of each: 2 threads a token, as in vLLM's first kernel."""
    return [layout.offset(0, 0, place, dim) for place in range(16) for dim in range(8)]


# %% [markdown]
# **Guess first.** 256 bytes fill at least 8 sectors. How many are touched in each layout, in each of the two ways?

# %%
from pagedlab.cache.layout import LINE_BYTES, touched

print(f"{'':12} {'two whole tokens':>26} {'a piece of all tokens':>26}")
for layout in layouts:
    cells = []
    for way in (whole_tokens, all_tokens):
        offsets = way(layout)
        cells.append(f"{len(touched(offsets, 2)):3} sectors, {len(touched(offsets, 2, LINE_BYTES)):2} lines")
    print(f"{layout.name:12} {cells[0]:>26} {cells[1]:>26}")

# %% [markdown]
# 16 sectors are 512 bytes: nobody asked for half of them. A *line* is four sectors, the unit in which caches count. The
# picture shows where the sectors lie in one block of 3 kv heads:

# %%
import matplotlib.pyplot as plt

looks = (("#0072B2", ""), ("#E69F00", "//"), ("#009E73", ".."))
figure, both = plt.subplots(2, 1, figsize=(8, 3.4), dpi=85, sharex=True, facecolor="white")
ways = ((whole_tokens, "Two whole tokens"), (all_tokens, "A piece of all tokens"))
for axes, (way, title) in zip(both, ways, strict=True):
    for row, (layout, (colour, hatch)) in enumerate(zip(layouts, looks, strict=True)):
        sectors = touched(way(layout), 2)
        bars = [(32 * sector, 32) for sector in sectors]
        style = dict(facecolors=colour, edgecolors="black", linewidth=0.3, hatch=hatch)
        axes.broken_barh(bars, (row - 0.35, 0.7), label=f"{layout.name}, {len(sectors)} sectors", **style)
    axes.set(title=title, ylabel="layout", yticks=[], xlim=(0, 6144))
    axes.invert_yaxis()
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5), fontsize=8)
both[1].set_xlabel("byte of the block")
figure.tight_layout()
plt.show()

# %% [markdown]
# *Split keys* was made for two threads a token. Newer kernels hand whole keys to units that multiply matrices, and want
# `head_dim` innermost. **A layout is good or bad for a way of reading, never by itself.**
#
# These are counts of addresses, nothing was measured. A cache may keep the rest of a sector until somebody needs it.
# How fast kernels are is for lessons 8 to 11.

# %% [markdown]
# ## What you learned
#
# - A position is a logical block and a place: `//` and `%`. The block table turns the logical block into a physical
#   one.
# - A slot is both in one number: `block_table[p // block_size] * block_size + p % block_size`.
# - -1 in a table means *no block*, -1 in a slot mapping *do not store*. Used as an index, either finds somebody's data.
# - What was not written must not be read. A pool full of NaN shows whether that is so.
# - An offset is a sum of index times stride. The layout decides who finds neighbours side by side.

# %% [markdown]
# ## Where it lives
#
# | idea | here | in vLLM |
# |---|---|---|
# | block table, slot mapping | `pagedlab/cache/table.py` | `BlockTable`, `slot_mapping` |
# | slot -1 | `pagedlab/kernels/ops.py` | `PAD_SLOT_ID` |
# | writing by slot | `kv_write` in `pagedlab/kernels/reference.py` | `reshape_and_cache` |
# | a sequence in the pool | `pagedlab/cache/paged.py` | the model runner's input batch |
# | layouts | `pagedlab/cache/layout.py` | `get_kv_cache_shape` of each attention backend |
# | the explorer's notes | `pagedlab/cache/recorder.py` | none |
#
# The paper: section 4.3 and Figure 6 of [arXiv:2309.06180](https://arxiv.org/abs/2309.06180).

# %% [markdown]
# ## Next
#
# Lesson 5, *How do you attend over memory that isn't contiguous?*: attention goes to the blocks, and the copy is gone.

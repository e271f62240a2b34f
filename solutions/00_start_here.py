# %% [markdown]
# # 0 · Does everything work here, and what will I have built at the end?
#
# *About 15 minutes. You will check your machine, hear a real language model speak, and pass your first exercise.*
#
# A language model writes one token at a time. In each of its layers it keeps a few small vectors for every token: keys
# and values. Together they are the **KV cache**. On a busy server it eats more memory than anything but the model itself.
#
# This course is about one idea that made that memory go several times further: keep the cache in small blocks of one
# size, note in a table which block holds what, and compute attention straight through the table. It is called
# **PagedAttention**, and you are going to build all of it.

# %% [markdown]
# ## How a lesson works
#
# Run the cells from top to bottom: **Shift + Enter** runs one and moves on. Three kinds of cells need you:
#
# - *Guess first*: say a number before you run the cell. A wrong guess teaches more than no guess.
# - *Exercise*: replace `raise NotImplementedError` with your own code.
# - *Check*: run it as often as you like. It tells you what is wrong, and with which input. It may look at more than the
#   text lists.
#
# Your notebooks are your own copies. Change anything. `pagedlab reset 00` in a terminal (*File*, *New*, *Terminal*)
# brings a fresh one and keeps yours in a backup.
#
# Coming back tomorrow? Click on the cell where you stopped, then *Run*, *Run All Above Selected Cell*.

# %% [markdown]
# ## Does everything work?
#
# The lines below say what this machine has. No GPU is needed: everything in this course runs, and is checked, on a CPU.

# %%
import platform

import torch

print(f"measured: Python {platform.python_version()} on {platform.system()}")
print(f"measured: PyTorch {torch.__version__}, {torch.get_num_threads()} threads")
print(f"measured: GPU {torch.cuda.get_device_name() if torch.cuda.is_available() else 'none, and none is needed'}")

# %% [markdown]
# If a later cell fails, run `pagedlab doctor` in a terminal. It looks at versions, memory, disk and the model, and says
# what to do about each problem.
#
# ## A real model
#
# Nothing in this course is a mock-up. The model is SmolLM2-135M-Instruct: small enough for a laptop, built just like
# models five hundred times its size. Loading takes a few seconds.

# %%
from pagedlab.model.load import load

smol = load()
print(
    f"{smol.config.name}: {smol.config.num_hidden_layers} layers, {smol.config.num_attention_heads} query heads, "
    f"{smol.config.num_key_value_heads} key/value heads of {smol.config.head_dim} numbers"
)

# %% [markdown]
# The model reads and writes **tokens**: words or pieces of words, each with a number.

# %%
question = [{"role": "user", "content": "What does an operating system do with memory? One sentence."}]
prompt_ids = smol.tokenizer.chat(question)
print(len(prompt_ids), "tokens")
print(" | ".join(smol.tokenizer.token_text(token) for token in prompt_ids[-20:]))

# %% [markdown]
# Some of those tokens are not in the question. They mark who is speaking, and where an answer should begin.
#
# Now let it answer. `on_token` prints every token as soon as it is known.

# %%
from pagedlab.cache.growing import GrowingCache
from pagedlab.model.generate import generate

cache = GrowingCache(smol.config.num_hidden_layers)
answer_ids = generate(
    smol.model,
    prompt_ids,
    max_new_tokens=40,
    cache=cache,
    eos_token_id=smol.tokenizer.eos_token_id,
    on_token=lambda token: print(smol.tokenizer.token_text(token), end=""),
)

# %% [markdown]
# That was a real model on your own machine, writing one token after the other. The last one, `<|im_end|>`, says that
# the answer is complete.
#
# ## What it left behind
#
# While it wrote, it stored a key and a value for every token, in every layer.
#
# **Guess first.** One number takes 4 bytes. How much memory did this short exchange leave in the cache: about 3 KB, 300 KB or 3 MB?

# %%
config = smol.config
numbers_per_token = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim
stored = cache.num_tokens
print(f"{stored} tokens x {numbers_per_token:,} numbers x 4 bytes = {stored * numbers_per_token * 4:,} bytes")

# %% [markdown]
# Three megabytes for two sentences, from a small model. A model with 13 billion parameters keeps 800 KB for *each
# token*. A server with a hundred users runs out of memory because of this cache, long before it runs out of
# arithmetic. So the question of the whole course is: **where do you put it?**
#
# ## The idea in one picture
#
# Cut the sequence into pieces of 16 tokens. Each piece goes into a *block*, and any free block will do. A table
# remembers which block holds which piece. Below is the sequence that the model just read and wrote.

# %%
block_size = 16
token_ids = (prompt_ids + answer_ids)[:stored]
free_blocks = [6, 2, 7, 4, 0]  # any blocks, in any order
for number, start in enumerate(range(0, stored, block_size)):
    text = smol.tokenizer.decode(token_ids[start : start + block_size])
    print(f"piece {number} -> block {free_blocks[number]}: {text!r}")

# %% [markdown]
# The arrows are a **block table**. The pieces lie scattered in memory, and nothing is lost: to read the sequence in
# order, follow the table.
#
# Here is the same sequence once more, as you will see it from lesson 3 on. On the left its blocks in order, on the right
# the pool of memory. The buttons step through the writing, token
# by token, and back. Click on a token to see the way to its slot.

# %%
from pagedlab.cache.allocator import BlockAllocator
from pagedlab.cache.recorder import Recorder
from pagedlab.widgets import BlockTableExplorer

allocator = BlockAllocator(8)
allocator.allocate(8)
allocator.free([5, 3, 1, *reversed(free_blocks)])  # the block freed last is handed out first
pool = Recorder(allocator, block_size=16)
table = pool.table("A", texts=[smol.tokenizer.token_text(token) for token in token_ids])
table.append_tokens(len(prompt_ids), pool)  # the question, all at once
for _ in token_ids[len(prompt_ids) :]:
    table.append_tokens(1, pool)  # the answer, token by token
BlockTableExplorer(pool, selected={"sequence": "A", "position": 37})

# %% [markdown]
# You will build everything in this picture: who owns a block, how token 37 finds its slot, how attention reads it all.
#
# **Guess first.** The last piece is shorter than the others. How many slots of its block are empty? What is the most that could be?

# %%
print(f"{stored} tokens leave {-stored % block_size} of {block_size} slots empty in the last block")

# %% [markdown]
# At most 15, however long the sequence is. Lesson 2 shows what people did before, which left *thousands* of slots
# empty. Lessons 3 to 5 build the blocks, the table, and attention that reads through it.
#
# ## Exercise 0.1 · How many blocks?
#
# This one is a warm-up, to show how exercises work. A request has `num_tokens` tokens and a block holds `block_size`.
#
# 1. There is room for every token.
# 2. Not one block more than needed: no tokens need no block.
#
# *Size of the answer: 1 line.*


# %% tags=["exercise"]
def blocks_needed(num_tokens, block_size):
    """How many blocks hold num_tokens tokens, with block_size tokens in each?"""
    ### BEGIN SOLUTION
    return -(-num_tokens // block_size)
    ### END SOLUTION


# %%
from pagedlab import check, hint

check("blocks_needed", blocks_needed)

# %% [markdown]
# Try a wrong answer too: `return num_tokens // block_size`, say. The check looks for the *smallest* case that goes
# wrong, and tells it to you.
#
# Stuck? `hint("blocks_needed")` gives a hint. Call it again for the next one; the last is nearly the answer. Like a
# check, it shows itself as the *last line* of a cell.
#
# One trap: if your cell has a typing error, Python keeps the function from before, and the check sees that one.

# %% [markdown]
# ## Your parts
#
# An answer that passes is kept. Later lessons run on what *you* built: by lesson 7 a whole engine does. Where yours
# isn't there yet, the course's own part stands in, and the cell says so.

# %%
from pagedlab import your_parts

parts = your_parts("blocks_needed")
parts

# %%
for num_tokens in (0, 1, 16, 17, 70):
    print(f"{num_tokens:>2} tokens: {parts.blocks_needed(num_tokens, 16)} blocks of 16")

# %% [markdown]
# ## The course
#
# This map shows what there is and what you have done. `pagedlab progress` prints it in a terminal.

# %%
from pagedlab import progress

progress()

# %% [markdown]
# ## What you learned
#
# - Your machine can run the course, and the model on it is real.
# - The model keeps a key and a value for each token in each layer: 46,080 bytes a token for this one.
# - Blocks of one size and a table can hold a sequence anywhere, with at most `block_size - 1` slots empty.
# - Checks tell you the smallest thing that goes wrong. Passed answers become parts of what you build later.
#
# ## Where it lives
#
# | idea | in this course | in vLLM |
# |---|---|---|
# | blocks for a number of tokens | `pagedlab/cache/accounting.py` | `cdiv` in the KV cache manager |
# | the decoder | `pagedlab/model/llama.py` | the model classes |
# | one token after the other | `pagedlab/model/generate.py` | the engine's step |
# | the paper | | [Kwon et al., 2023](https://arxiv.org/abs/2309.06180) |
#
# ## Next
#
# Lesson 1 asks the first real question: why keep keys and values at all?

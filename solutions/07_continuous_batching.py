# %% [markdown]
# # 7 · Who runs in this step?
#
# *About 90 minutes. You will write a scheduler. At the end it serves 64 requests at once, on your allocator and your
# block table, with the real model.*
#
# So far one request had the model to itself. A server has hundreds, and they come and go as they like. In every step
# somebody must decide: **who runs, with how many tokens, and who waits?**

# %%
import time

import matplotlib.pyplot as plt
import torch

from pagedlab import check, hint, your_parts
from pagedlab.model.load import load

parts = your_parts("block_allocator", "fork_and_copy_on_write", "prefix_cache")
parts

# %%
smol = load()
config = smol.config


def prompt(question):
    return smol.tokenizer.chat([{"role": "user", "content": question}])


# %% [markdown]
# ## Why together?
#
# In a decode step, every weight is read from memory to compute a single token. Read them once for many sequences, and
# the reading is shared.
#
# The model is ready for it. It only ever looks at tokens, one row each. Which sequence a row belongs to matters to
# attention alone, and attention has a block table for each. So a step packs the new tokens of all requests into one
# list.

# %%
from pagedlab.cache.paged import PagedKVCache
from pagedlab.engine.runner import ModelRunner

pool = PagedKVCache(config.num_hidden_layers, 256, config.num_key_value_heads, 16, config.head_dim)
runner = ModelRunner(smol.model, pool)

# %% [markdown]
# A request carries two numbers, and the difference between them is its work:
#
# - `num_tokens`: tokens of its prompt and its answer so far;
# - `num_computed_tokens`: those whose keys and values are stored.

# %%
from pagedlab.cache.table import BlockTable
from pagedlab.engine.request import Request


def new_request(name, question, max_tokens):
    request = Request(name, prompt(question), max_tokens)
    request.table = BlockTable(pool.block_size)
    return request


a = new_request("A", "Name three fruits.", 8)
print(a.num_tokens, "tokens,", a.num_computed_tokens, "computed, so", a.num_tokens - a.num_computed_tokens, "to do")

# %% [markdown]
# Everything a server does in a step fits in one short function. It asks a scheduler who runs. It runs the model once. A
# request whose tokens are all computed gets its next one.


# %%
from pagedlab.engine.request import RequestStatus
from pagedlab.engine.scheduler_output import SchedulerOutput


def step(scheduler, runner):
    scheduled = SchedulerOutput.of(scheduler.schedule()).scheduled  # [(request, how many tokens), ...]
    logits, up_to_date = runner.execute(scheduled)
    for request, num_new in scheduled:
        request.num_computed_tokens += num_new
    for request, row in zip(up_to_date, logits):
        request.output_token_ids.append(int(row.argmax()))
        if len(request.output_token_ids) == request.max_tokens:
            request.status = RequestStatus.FINISHED_LENGTH
            scheduler.finish(request)
    return scheduled


# %% [markdown]
# There is no word here for "prompt" or "answer". A new request has many tokens to compute. One in the middle of its
# answer has one. Both may stand in the same step.
#
# How much is sharing worth? A scheduler for the measurement only: everyone runs, always.


# %%
class Everyone:
    def __init__(self, allocator):
        self.allocator, self.running = allocator, []

    def add(self, request):
        self.running.append(request)

    def schedule(self):
        plan = [(request, request.num_tokens - request.num_computed_tokens) for request in self.running]
        for request, num_new in plan:
            request.table.append_tokens(num_new, self.allocator)
        return plan

    def finish(self, request):
        self.running.remove(request)
        request.table.free(self.allocator)


# %% [markdown]
# **Guess first.** One sequence takes some milliseconds a step. How many times longer does a step for 16 sequences take?

# %%
questions = ["Name a colour.", "What is rain?", "Count to ten.", "Who was Ada Lovelace?"]
seconds = {}
for batch_size in (1, 2, 4, 8, 16):
    scheduler = Everyone(parts.block_allocator(pool.num_blocks))
    for number in range(batch_size):
        scheduler.add(new_request(f"{number}", questions[number % 4], 8))
    step(scheduler, runner)  # the prompts
    step(scheduler, runner)  # and one to warm up
    started = time.perf_counter()
    for _ in range(5):
        step(scheduler, runner)
    seconds[batch_size] = (time.perf_counter() - started) / 5
for batch_size, each in seconds.items():
    print(f"measured: {batch_size:2} sequences: {1000 * each:5.1f} ms a step, {batch_size / each:5.0f} tokens a second")

# %% [markdown]
# Longer, but by far less than 16 times. On a GPU the gain is larger still: it has hundreds of times more arithmetic than
# memory bandwidth, so 16 sequences cost about the same as one. A CPU runs out of arithmetic sooner.
#
# So batches pay. Which requests should be in one?

# %% [markdown]
# ## The batch that waits for its slowest
#
# The oldest way: take a few requests, run them until **all** are done, take the next few. Eight requests, and how many
# tokens each will write:

# %%
lengths = {"A": 3, "B": 12, "C": 4, "D": 3, "E": 9, "F": 2, "G": 5, "H": 3}
seats = 4
batches = [list(lengths)[start : start + seats] for start in range(0, len(lengths), seats)]
batches

# %% [markdown]
# **Guess first.** In a step each of the 4 seats can produce a token. What share of the seats does, until all 8 are done?

# %%
steps = sum(max(lengths[name] for name in batch) for batch in batches)
tokens = sum(lengths.values())
print(f"{steps} steps x {seats} seats = {steps * seats} places, {tokens} tokens: {tokens / (steps * seats):.0%} used")

# %% [markdown]
# Half of the places are empty, because a batch lasts as long as its longest answer. Nobody knows that length before.
#
# The remedy is to decide **anew in every step**. When a request ends, its seat goes to the next in line, at once. This is
# *continuous batching*, also called iteration-level scheduling. It comes from Orca, in 2022.

# %% [markdown]
# ## Exercise 7.1 · The scheduler
#
# Requests wait in line, run, and finish. Blocks come from an allocator, and the pool may be too small for all. Your
# scheduler keeps five promises:
#
# 1. Who runs, runs in **every** step. Each scheduled request has slots for its new tokens (`table.append_tokens`).
# 2. First come, first served. The first in line joins as soon as there is a seat and room for all its tokens.
# 3. When a running request cannot grow, the **latest** arrival makes room: it is *preempted*. It gives all its blocks
#    back, nothing of it is computed any more, and it goes to the front of the line. Its tokens stay.
# 4. In a step in which somebody was preempted, nobody new comes in.
# 5. `finish` takes a request out, wherever it is, and all its blocks come back.
#
# No request is larger than the pool. `blocks_needed(n, block_size)` says how many blocks `n` tokens need.
#
# *Size of the answer: about 35 lines.*

# %% tags=["exercise"]
from pagedlab.cache.accounting import blocks_needed


class Scheduler:
    """Who runs in this step.

    A request has num_tokens, num_computed_tokens, and a table with .blocks, .append_tokens(n, allocator) and
    .free(allocator). The allocator has num_free.
    """

    def __init__(self, allocator, block_size, max_num_seqs=8):
        self.allocator, self.block_size, self.max_num_seqs = allocator, block_size, max_num_seqs
        self.waiting = []  # in order of arrival
        self.running = []  # in order of arrival

    def add(self, request):
        """A new request gets in line."""
        ### BEGIN SOLUTION
        self.waiting.append(request)
        ### END SOLUTION

    def schedule(self):
        """Decide one step: a list of (request, number of new tokens)."""
        ### BEGIN SOLUTION
        plan, somebody_left = [], False
        for request in list(self.running):
            while request in self.running and not self.fits(request):
                self.preempt(self.running[-1])
                somebody_left = True
            if request in self.running:
                plan.append(self.grow(request))
        while self.waiting and not somebody_left and len(self.running) < self.max_num_seqs:
            if not self.fits(self.waiting[0]):
                break
            self.running.append(self.waiting.pop(0))
            plan.append(self.grow(self.running[-1]))
        return plan

    def fits(self, request):
        missing = blocks_needed(request.num_tokens, self.block_size) - len(request.table.blocks)
        return missing <= self.allocator.num_free

    def grow(self, request):
        num_new = request.num_tokens - request.num_computed_tokens
        request.table.append_tokens(num_new, self.allocator)
        return request, num_new

    def preempt(self, request):
        self.running.remove(request)
        request.table.free(self.allocator)
        request.num_computed_tokens = 0
        self.waiting.insert(0, request)
        ### END SOLUTION

    def finish(self, request):
        """The request is over, running or waiting. Doing it again is harmless."""
        ### BEGIN SOLUTION
        for line in (self.waiting, self.running):
            if request in line:
                line.remove(request)
        request.table.free(self.allocator)
        ### END SOLUTION


# %%
check("scheduler", Scheduler)

# %% [markdown]
# Stuck? `hint("scheduler")` gives one hint at a time. The story in a failed check is the smallest world that breaks the
# promise: read it step by step, with a finger on the pool.

# %%
parts = your_parts("block_allocator", "fork_and_copy_on_write", "scheduler")
parts

# %% [markdown]
# ## The same eight, scheduled
#
# Now the eight requests from before on your scheduler, with the real model. A `ScheduleTrace` notes what happens.

# %%
from pagedlab.engine.trace import ScheduleTrace


def serve(scheduler, requests, trace, runner=runner):
    for request in requests:
        scheduler.add(request)
    while any(len(request.output_token_ids) < request.max_tokens for request in requests):
        scheduled = step(scheduler, runner)
        trace.record(requests, scheduled, scheduler.allocator)
    return trace


eight = [new_request(name, questions[number % 4], length) for number, (name, length) in enumerate(lengths.items())]
trace = serve(parts.scheduler(parts.block_allocator(64), 16, max_num_seqs=4), eight, ScheduleTrace())
print(trace.rows())

# %% [markdown]
# Read a row from left to right: `.` waits, `P` computes its prompt, `D` decodes. When A ends, E takes its seat in the very
# next step.
#
# **Guess first.** The static batches took 21 steps. What is the least that 4 seats can do for 41 tokens?

# %%
print(
    f"{len(trace)} steps, {tokens / (len(trace) * seats):.0%} of the places used; at least {-(-tokens // seats)} steps"
)

# %% [markdown]
# B alone needs 12. No order of these requests does better with what is known: nobody can tell beforehand that B will be
# the longest.
#
# ## When the pool is full
#
# Same requests, but only 10 blocks of 16. Each prompt takes two, and every answer may need one more.

# %%
eight = [new_request(name, questions[number % 4], 4 * length) for number, (name, length) in enumerate(lengths.items())]
tight = serve(parts.scheduler(parts.block_allocator(10), 16, max_num_seqs=8), eight, ScheduleTrace())
print(tight.rows(0, 60))

# %% [markdown]
# `X` is a preemption. D had to leave for the older ones, waited a step, and computed its prompt again.
#
# **Guess first.** D had written three tokens when it was thrown out. Does it write them a second time?

# %%
from pagedlab.cache.growing import GrowingCache
from pagedlab.model.generate import generate_cached


def alone(request):
    """The same request with the model to itself."""
    return generate_cached(smol.model, request.prompt_token_ids, request.max_tokens, GrowingCache(30))


print(tight.steps[15].note)
print(tight.steps[16].note)
print("as if alone:", all(request.output_token_ids == alone(request) for request in eight[:4]))

# %% [markdown]
# No. Its tokens are kept, and they are computed like a prompt: 40 tokens in one step. Only keys and values were lost. So
# a preemption costs time, never text. Throwing away and computing again is called *recompute*.
#
# The other way is to *swap*: copy the blocks to a slower memory, and back later. Which one is cheaper? For one request of
# 200 tokens on this machine:

# %%
from pagedlab.cache.swap import SwapSpace

swap = SwapSpace(pool, 32)
blocks = list(range(13))  # 200 tokens
started = time.perf_counter()
swap.swap_out(list(zip(blocks, blocks)))
swap.swap_in(list(zip(blocks, blocks)))
swapping = time.perf_counter() - started

ids = (prompt(questions[0]) * 8)[:200]
started = time.perf_counter()
smol.model(ids, GrowingCache(30), logits_to_keep=1)
recomputing = time.perf_counter() - started
print(f"measured: swap out and in {1000 * swapping:.0f} ms, compute again {1000 * recomputing:.0f} ms")
print(f"{2 * 200 * 46_080 / 1e6:.1f} MB are copied")

# %% [markdown]
# Here both memories are the same kind, so a copy is cheap. Between a GPU and its host lies a bus about 60 times slower
# than the GPU's memory, and small blocks make many small copies. The paper finds the two close for blocks of 16 to 64.
# Today's vLLM only computes again, and finds much of it in its prefix cache.

# %% [markdown]
# ## A long prompt holds everyone up
#
# Three requests are writing. Then a prompt of 400 tokens comes in. Your scheduler computes it in one step.
#
# **Guess first.** How many tokens does the model compute in that step? What do the three readers notice?

# %%
from pagedlab.engine.scheduler import Scheduler as CourseScheduler

long_ids = (prompt("Please read this twice. " * 12) * 6)[:400]


def meeting(scheduler):
    """Three requests write; after four steps a long prompt joins. Tokens and seconds of each step."""
    requests = [new_request(name, "What is rain?", 16) for name in "ABC"]
    late = Request("L", long_ids, 4)
    late.table = BlockTable(16)
    for request in requests:
        scheduler.add(request)
    counts, times = [], []
    while len(counts) < 16:
        if len(counts) == 4:
            scheduler.add(late)
        started = time.perf_counter()
        counts.append(sum(num_new for _, num_new in step(scheduler, runner)))
        times.append(1000 * (time.perf_counter() - started))
    return counts, times


# %%
whole_counts, whole_times = meeting(parts.scheduler(parts.block_allocator(256), 16))
print("tokens in each step:", whole_counts)
print(
    f"measured: the longest of the later steps takes {max(whole_times[4:]):.0f} ms, the median {sorted(whole_times[5:])[5]:.0f} ms"
)

# %% [markdown]
# The step with the prompt has 403 tokens, and takes many times as long as the others. Each of the three readers sees the
# text stop, and go on.
#
# So give every step a **budget** of tokens. Those who write take one each, first. What is left of the budget goes to the
# prompt: a *chunk* of it. Nothing else is needed, because a request's work is just `num_tokens - num_computed_tokens`,
# and a part of it may be done.

# %% [markdown]
# ## Exercise 7.2 · A budget for each step
#
# `num_new_tokens` says for each request how many tokens it has to compute, in order of arrival. Divide `token_budget`:
#
# - Requests with one new token are in the middle of their answers. They are served first, in order.
# - The others share what is left, in order: each as much as it needs, as long as there is any.
# - Nobody gets more than it needs. Nothing is left over while somebody could use it.
#
# *Size of the answer: about 8 lines.*


# %% tags=["exercise"]
def chunked_prefill(num_new_tokens, token_budget):
    """num_new_tokens: a list. Returns a list of the same length: how many tokens each computes in this step."""
    ### BEGIN SOLUTION
    shares = [0] * len(num_new_tokens)
    for decoding in (True, False):
        for index, needed in enumerate(num_new_tokens):
            if (needed == 1) == decoding:
                shares[index] = min(needed, token_budget)
                token_budget -= shares[index]
    return shares
    ### END SOLUTION


# %%
check("chunked_prefill", chunked_prefill)

# %%
parts = your_parts("block_allocator", "fork_and_copy_on_write", "scheduler", "chunked_prefill")
parts

# %% [markdown]
# `hint("chunked_prefill")` helps. Now the same meeting with a budget of 64. The course's scheduler takes your function as
# `split_budget`.
#
# **Guess first.** Three tokens go to those who write. How many steps does the prompt of 400 take?

# %%
chunking = CourseScheduler(
    parts.block_allocator(256), 16, max_num_batched_tokens=64, split_budget=parts.chunked_prefill
)
chunk_counts, chunk_times = meeting(chunking)
print("tokens in each step:", chunk_counts)
print(f"measured: longest step {max(chunk_times[4:]):.0f} ms with chunks, {max(whole_times[4:]):.0f} ms without")

# %%
figure, axes = plt.subplots(figsize=(7, 3), dpi=85, facecolor="white")
axes.step(range(16), whole_counts, where="mid", color="#D55E00", marker="s", label="whole prompt")
axes.step(range(16), chunk_counts, where="mid", color="#0072B2", marker="o", linestyle="--", label="budget of 64")
axes.set(title="A prompt of 400 tokens joins in step 4", xlabel="step", ylabel="tokens in the step")
axes.legend()
plt.show()

# %% [markdown]
# The text keeps flowing, and the price is paid by the newcomer: its first token comes later. In vLLM the budget is called
# `max_num_batched_tokens`.

# %% [markdown]
# ## Three ways to serve
#
# Here is a run that would take a large GPU: 24 requests with the lengths of real instructions and answers (Alpaca's), on a
# model with 13 billion weights. The schedulers and the books are real. The model is replaced by a *cost model*: a step
# takes as long as reading the weights, plus a little for each token.

# %%
from pagedlab.cache.allocator import BlockAllocator
from pagedlab.sim import serving
from pagedlab.sim.baselines import ReservedBatching, StaticBatching
from pagedlab.sim.workload import ALPACA

num_blocks = 512  # 8,192 tokens: half of what a 40 GB GPU has room for
ways = {
    "static": StaticBatching(num_blocks),
    "continuous": ReservedBatching(num_blocks),
    "paged": CourseScheduler(BlockAllocator(num_blocks), 16),
}
traces, runs = {name: ScheduleTrace() for name in ways}, {}
for name, scheduler in ways.items():
    runs[name] = serving.simulate_serving(ALPACA.requests(24), scheduler, trace=traces[name], name=name)

# %% [markdown]
# - *static*: a batch runs until its last request ends, and each has memory for 2,048 tokens;
# - *continuous*: seats are refilled at once, memory is still reserved;
# - *paged*: blocks, taken as they are needed.
#
# **Guess first.** How much sooner is *continuous* done than *static*? And *paged*?

# %%
for name, run in runs.items():
    print(
        f"{name:10} {run.total_time:6.1f} s, {run.mean_batch_size:4.1f} requests in a step, {run.throughput:5.0f} tokens/s"
    )

# %%
from pagedlab.widgets import Timeline

Timeline(traces, axis="time")

# %% [markdown]
# Rows are requests, the same in each figure. Move the cursor with the arrow keys. Below each figure lies the pool: how
# many blocks are held, and how many tokens are in them. Look at the space between the two lines.
#
# Continuous batching fills seats, and paging makes more seats. Memory was the limit, not arithmetic.

# %% [markdown]
# ## 64 requests on your parts
#
# Now no simulation: the real model, your allocator, your block table, your scheduler. 64 requests of mixed length, 24
# seats, and a pool that is a little too small.

# %%
from pagedlab.engine.engine import Engine
from pagedlab.engine.params import SamplingParams

topics = ["rain", "bread", "bees", "the moon", "tea", "chess", "rivers", "glass"]
asks = ["Name three facts about {}.", "What is {}?", "Write one line about {}.", "Why do people like {}?"]
asks += ["Explain {} to a child, in two sentences.", "Is {} old?", "A title for a book on {}.", "Describe {}."]
mixed = [prompt(ask.format(topic)) for ask in asks for topic in topics]
wanted = [SamplingParams(max_tokens=4 + 7 * number % 29, ignore_eos=True) for number in range(64)]
print(len(mixed), "prompts,", sum(map(len, mixed)), "tokens;", sum(one.max_tokens for one in wanted), "to write")


# %%
def serve_all(scheduler, trace=None):
    engine = Engine(smol.model, smol.tokenizer, scheduler=scheduler, table_class=parts.fork_and_copy_on_write)
    engine.trace = trace
    started = time.perf_counter()
    outputs = engine.generate(mixed, wanted, progress=False)
    return outputs, time.perf_counter() - started


trace = ScheduleTrace()
outputs, seconds = serve_all(parts.scheduler(parts.block_allocator(72), 16, max_num_seqs=24), trace)
print(f"measured: {sum(one.max_tokens for one in wanted) / seconds:.0f} tokens a second")
print(len(trace), "steps,", sum(note.count("preempted") for note in (one.note for one in trace.steps)), "preemptions")

# %% [markdown]
# (`progress=True` draws a bar. It is off here, so that the page stays the same.) Every answer is what the request would
# have got alone:

# %%
sample = [0, 13, 27, 42, 63]
for number in sample:
    ids = generate_cached(smol.model, mixed[number], wanted[number].max_tokens, GrowingCache(30))
    print(f"request {number:2}: same tokens {list(outputs[number].outputs[0].token_ids) == ids}")

# %%
Timeline(trace, requests=trace.requests[:32])  # the first 32 rows

# %% [markdown]
# **Guess first.** The same 64 with static batches of 24. How many more steps, and how much more time?

# %%
static_trace = ScheduleTrace()
blocks = 24 * blocks_needed(128, 16)  # rows of 128 tokens: the longest request comes to less
_, static_seconds = serve_all(StaticBatching(blocks, 16, max_model_len=128, batch_size=24), static_trace)
print(f"static: {len(static_trace)} steps, yours: {len(trace)} steps")
print(f"measured: static takes {static_seconds / seconds:.2f} times as long")

# %% [markdown]
# A quarter fewer steps, and yet hardly less time. A CPU's step grows with every sequence in it, so what counts here is
# the number of tokens, and that is the same. On a GPU a step of 24 costs hardly more than a step of 6, and steps are what
# counts: there the paper finds 2 to 4 times the throughput.

# %% [markdown]
# ## How much to keep free
#
# Your scheduler lets the next one in as soon as it fits. Then everyone grows, and somebody must leave. vLLM's first
# scheduler kept 1 % of the pool free when it admitted: a *watermark*.
#
# **Guess first.** Keep 15 % free. Does that raise or lower the throughput?

# %%
from pagedlab.sim.watermark import watermark_curve

curve = watermark_curve((0.0, 0.01, 0.02, 0.05, 0.10, 0.15, 0.25, 0.4))
for watermark, run in curve.items():
    print(f"{watermark:4.0%} kept free: {run.num_preemptions:3} preemptions, {run.throughput:5.0f} tokens/s")

# %%
figure, left = plt.subplots(figsize=(7, 3.2), dpi=85, facecolor="white")
share = [100 * watermark for watermark in curve]
left.plot(share, [run.throughput for run in curve.values()], color="#0072B2", marker="o", label="tokens/s")
left.set(title="What a watermark costs and saves (simulated)", xlabel="blocks kept free at admission, %")
left.set_ylabel("tokens a second (circles)")
right = left.twinx()
right.plot(share, [run.num_preemptions for run in curve.values()], color="#D55E00", marker="s", linestyle="--")
right.set_ylabel("preemptions (squares)")
plt.show()

# %% [markdown]
# Too little, and work is done twice. Too much, and memory lies idle. The best place is a few percent, and it depends on
# the load.

# %% [markdown]
# ## The same loop, compiled
#
# The engine above did not run on the loop of lesson 5, which is Python between calls of torch. It ran on a loop like this
# one, compiled for your processor by numba. Read it as the algorithm: it is all there, one token at a time.

# %%
import numpy as np
from numba import njit

float32 = np.float32


@njit(fastmath=True)
def dot(a, b):
    total = float32(0)
    for d in range(len(a)):
        total += a[d] * b[d]
    return total


# %%
@njit(fastmath=True)
def decode_head(query, kv, keys, values, table, num_tokens, scale, out):
    """One head of one sequence. keys, values: [num_blocks, num_kv_heads, block_size, head_dim]."""
    block_size = keys.shape[2]
    largest, total = float32(-1e30), float32(0)
    out[:] = 0
    for index in range((num_tokens + block_size - 1) // block_size):
        block = table[index]
        for slot in range(min(block_size, num_tokens - index * block_size)):
            score = scale * dot(query, keys[block, kv, slot])
            if score > largest:
                shrink = np.exp(largest - score)
                total, largest = total * shrink, score
                out *= shrink
            weight = np.exp(score - largest)
            total += weight
            for d in range(len(out)):
                out[d] += weight * values[block, kv, slot, d]
    out /= total


# %% [markdown]
# `largest`, `total` and an `out` that shrinks when a larger score comes: lesson 5 again. A step of one layer, for 32
# sequences of 192 tokens in shuffled blocks:

# %%
from pagedlab.kernels.ops import paged_decode

torch.manual_seed(0)
q = torch.randn(32, 9, 64)
keys, values = torch.randn(2, 400, 3, 16, 64).unbind(0)
tables, lens = torch.randperm(400)[:384].view(32, 12), torch.full((32,), 192)


def compiled_loop():
    out = torch.empty_like(q)
    q_, keys_, values_, tables_, out_ = (x.numpy() for x in (q, keys, values, tables, out))
    for sequence in range(32):
        for head in range(9):
            args = (head // 3, keys_, values_, tables_[sequence], 192, float32(1 / 8))
            decode_head(q_[sequence, head], *args, out_[sequence, head])
    return out


# %%
ways = {
    "torch, block by block": lambda: paged_decode(q, keys, values, tables, lens, backend="torch"),
    "the loop above": compiled_loop,
    "the engine's": lambda: paged_decode(q, keys, values, tables, lens, backend="cpu"),
}
right = ways["torch, block by block"]()
for name, way in ways.items():
    print(f"{name:22} right: {torch.allclose(way(), right, atol=1e-5)}")  # the first call compiles

# %%
for name, way in ways.items():
    times = []
    for _ in range(9):
        started = time.perf_counter()
        way()
        times.append(time.perf_counter() - started)
    print(f"measured: {name:22} {1000 * min(times):6.2f} ms")

# %% [markdown]
# The second line takes one token at a time, on one core. The engine's version does the same with what a processor likes:
# several keys at once in wide registers, all cores, the three query heads of a kv head together. You can read it in
# `pagedlab/kernels/cpu_loops.py`. A GPU wants other things. They are the next part of this course.

# %% [markdown]
# ## What you learned
#
# - A step packs the new tokens of many requests. Weights are read once for all of them.
# - Deciding anew in every step keeps the seats full. A batch that waits for its slowest leaves half of them empty.
# - `num_computed_tokens` chases `num_tokens`. Prompts, answers, chunks and recomputation are all the same thing.
# - When memory runs out, the latest arrival gives everything back. It loses time, not text, and nobody starves.
# - A token budget keeps every step short. A watermark keeps the newcomers from pushing each other out.

# %% [markdown]
# ## Where it lives
#
# | idea | here | in vLLM |
# |---|---|---|
# | the scheduler | `pagedlab/engine/scheduler.py` | `Scheduler` in `v1/core/sched/scheduler.py` |
# | a request and its two numbers | `pagedlab/engine/request.py` | `v1/request.py` |
# | chunks | `pagedlab/engine/chunked.py` | `max_num_batched_tokens`, `long_prefill_token_threshold` |
# | one packed step | `ModelRunner` in `pagedlab/engine/runner.py` | `GPUModelRunner` in `v1/worker` |
# | swap | `pagedlab/cache/swap.py` | `swap_in`, `swap_out` of the first block manager |
# | the engine | `pagedlab/engine/engine.py` | `LLMEngine`, `LLM.generate` |
# | static and reserving schedulers | `pagedlab/sim/baselines.py` | the paper's baselines |
#
# The paper: sections 4.3 to 4.5 and 6 of [arXiv:2309.06180](https://arxiv.org/abs/2309.06180). Iteration-level
# scheduling: Orca, OSDI 2022. Chunked prefill: [arXiv:2403.02310](https://arxiv.org/abs/2403.02310). The watermark's
# curve: vllm-project/vllm#44594.

# %% [markdown]
# ## Next
#
# Lesson 8, *What is close to the arithmetic and what is far?*: from the CPU to the GPU, and your first kernel.

# %% [markdown]
# # 7 · Who runs in this step?
#
# *About 90 minutes. You will write a scheduler. At the end it serves 64 requests with the real model, on your allocator
# and your block table.*
#
# So far one request had the model to itself. A server has hundreds, and they come and go. In every step somebody must
# decide: **who runs, with how many tokens, and who waits?**

# %%
import time

import matplotlib.pyplot as plt
import torch

from pagedlab import check, hint, your_parts
from pagedlab.model.load import load

parts = your_parts("block_allocator", "fork_and_copy_on_write")
parts

# %%
smol = load()
config = smol.config


def prompt(question):
    return smol.tokenizer.chat([{"role": "user", "content": question}])


# %% [markdown]
# ## Why together?
#
# In a decode step, every weight is read from memory to compute a single token. Read it once for many sequences, and they
# share the cost.
#
# The model is ready for it: it computes rows, one for each token. Only attention asks whose token a row is, and it has a
# block table for each sequence. So a step packs the new tokens of all requests into one list.

# %%
from pagedlab.cache.paged import PagedKVCache
from pagedlab.engine.runner import ModelRunner

pool = PagedKVCache(config.num_hidden_layers, 256, config.num_key_value_heads, 16, config.head_dim)
runner = ModelRunner(smol.model, pool)

# %% [markdown]
# A request carries two numbers. Their difference is its work:
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
# A step of a server fits into one function. A scheduler says who runs. The model runs once. A request whose tokens are all
# computed gets its next one.


# %%
from pagedlab.engine.request import RequestStatus
from pagedlab.engine.scheduler_output import SchedulerOutput


def step(scheduler, runner):
    scheduled = SchedulerOutput.of(scheduler.schedule()).scheduled  # [(request, how many new tokens), ...]
    logits, up_to_date = runner.execute(scheduled)  # a row of logits for each request whose last token was computed
    for request, num_new in scheduled:
        request.num_computed_tokens += num_new
    for request, row in zip(up_to_date, logits):
        request.output_token_ids.append(int(row.argmax()))
        if len(request.output_token_ids) == request.max_tokens:
            request.status = RequestStatus.FINISHED_LENGTH
            scheduler.finish(request)
    return scheduled


# %% [markdown]
# There is no word for "prompt" or "answer" here. A new request has many tokens to compute, later it has one. Both kinds
# may be in the same step.
#
# How much is sharing worth? Here is a scheduler for this measurement alone: everyone runs, always.


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
# **Guess first.** How many times as long does a step for 16 sequences take as a step for one?

# %%
questions = ["Name a colour.", "What is rain?", "Count to ten.", "Who was Ada Lovelace?"]
seconds = {}
for batch_size in (1, 2, 4, 8, 16):
    scheduler = Everyone(parts.block_allocator(pool.num_blocks))
    for number in range(batch_size):
        scheduler.add(new_request(f"{number}", questions[number % 4], 8))
    step(scheduler, runner)  # the prompts
    step(scheduler, runner)  # the first of its kind prepares the next ones
    started = time.perf_counter()
    for _ in range(5):
        step(scheduler, runner)
    seconds[batch_size] = (time.perf_counter() - started) / 5
for batch_size, each in seconds.items():
    print(f"measured: {batch_size:2} sequences: {1000 * each:5.1f} ms a step, {batch_size / each:5.0f} tokens a second")

# %% [markdown]
# Far less than 16 times. On a GPU the gain is larger still. It can do about 200 operations while it reads one byte, so 16
# sequences cost about as much as one. A CPU runs out of arithmetic sooner.
#
# So batches pay. Which requests should be in one?

# %% [markdown]
# ## The batch that waits for its slowest
#
# The oldest way: take a few requests, run them until **all** are done, then take the next few. Here are eight, and how
# many tokens each will write:

# %%
lengths = {"A": 3, "B": 12, "C": 4, "D": 3, "E": 9, "F": 2, "G": 5, "H": 3}
seats = 4
batches = [list(lengths)[start : start + seats] for start in range(0, len(lengths), seats)]
batches

# %% [markdown]
# **Guess first.** In each step, each of 4 seats could produce a token. What share of these places is used?

# %%
steps = sum(max(lengths[name] for name in batch) for batch in batches)
tokens = sum(lengths.values())
print(f"{steps} steps x {seats} seats = {steps * seats} places, {tokens} tokens: {tokens / (steps * seats):.0%} used")

# %% [markdown]
# About half of the places stay empty, because a batch lasts as long as its longest answer. Nobody knows beforehand how
# long that is.
#
# The remedy is to decide **anew in every step**. When a request ends, the next in line takes its seat. This is *continuous
# batching*, or iteration-level scheduling. It comes from Orca (2022).

# %% [markdown]
# ## Exercise 7.1 · The scheduler
#
# Requests wait in line, run, and finish. The pool of blocks may be too small for all. Your scheduler keeps four promises:
#
# 1. Whoever runs is in **every** schedule, with all its new tokens, and has slots for them
#    (`request.table.append_tokens`).
# 2. First come, first served. The first in line joins, and runs in that same step, as soon as there is a seat and room
#    for all its tokens. Nobody overtakes it.
# 3. Those who run come before newcomers. When one of them can't grow, the **latest** arrival is *preempted*: it gives
#    all its blocks back, none of its tokens counts as computed any more, and it goes to the front of the line. Its tokens
#    stay.
# 4. `finish` takes a request out, wherever it is, and all its blocks come back.
#
# No request is larger than the pool. `blocks_needed(n, block_size)` says how many blocks `n` tokens need.
#
# *Size of the answer: about 30 lines.*

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
        plan = []
        for request in list(self.running):
            while request in self.running and not self.fits(request):
                self.preempt(self.running[-1])  # perhaps this very request
            if request in self.running:
                plan.append(self.grow(request))
        while self.waiting and len(self.running) < self.max_num_seqs and self.fits(self.waiting[0]):
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
# Stuck? `hint("scheduler")` gives one hint at a time. A failed check tells a small story. Follow it line by line, and count
# the free blocks.

# %%
parts = your_parts("block_allocator", "fork_and_copy_on_write", "scheduler")
parts

# %% [markdown]
# ## The same eight, scheduled
#
# Your scheduler, the same eight requests, and the real model. A `ScheduleTrace` notes what happens.

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
# Read a row from left to right: `.` waits, `P` computes its prompt, `D` decodes. A ends, and E has its seat in the next
# step.
#
# **Guess first.** Static batches took 21 steps. In how few could 4 seats produce 41 tokens?

# %%
print(
    f"{len(trace)} steps, {tokens / (len(trace) * seats):.0%} of the places used; at least {-(-tokens // seats)} steps"
)

# %% [markdown]
# B alone needs 12 steps, so nothing could be faster here.
#
# ## When the pool is full
#
# The same questions, answers four times as long, and 10 blocks. Each prompt takes three. B will need six.

# %%
eight = [new_request(name, questions[number % 4], 4 * length) for number, (name, length) in enumerate(lengths.items())]
tight = serve(parts.scheduler(parts.block_allocator(10), 16, max_num_seqs=8), eight, ScheduleTrace())
print(tight.rows(0, 60))

# %% [markdown]
# `X` is a preemption. D made room for those before it. A step later C had ended, and D came back with a second `P`.
#
# **Guess first.** D's prompt has 37 tokens, and it had written 3. How many tokens does its second `P` compute?

# %%
from pagedlab.cache.growing import GrowingCache
from pagedlab.model.generate import generate_cached


def alone(request):
    """The same request with the model to itself."""
    return generate_cached(smol.model, request.prompt_token_ids, request.max_tokens, GrowingCache(30))


print(tight.steps[15].note)
print(tight.steps[16].note)
print("same tokens as alone:", all(request.output_token_ids == alone(request) for request in eight[:4]))

# %% [markdown]
# All 40, like a prompt, in one step. What it had written was kept; only keys and values were lost. So a preemption costs
# time, never text. Computing again is called *recompute*.
#
# The other way is to *swap*: copy the blocks to a slower memory, and later back. For 200 tokens on this machine:

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
print(f"{2 * 13 * 16 * 46_080 / 1e6:.1f} MB are copied")

# %% [markdown]
# Here both memories are the same kind, so copying is cheap. The paper's GPU reads its memory at 1,555 GB/s. The bus to the
# computer's memory has 32 GB/s, about 50 times less, and small blocks make many small copies. The paper finds the two
# ways close for blocks of 16 to 64 tokens. Today's vLLM only recomputes.

# %% [markdown]
# ## A long prompt holds everyone up
#
# Three requests are writing. Then a prompt of 400 tokens comes in, and your scheduler computes it in one step.
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
# That step has 403 tokens and takes many times as long as the others. All three readers see their text stop.
#
# So give every step a **budget** of tokens. Those who write take theirs first, one each. What is left goes to the prompt:
# a *chunk* of it. Nothing else has to change. `num_computed_tokens` just takes a few steps to catch up.

# %% [markdown]
# ## Exercise 7.2 · A budget for each step
#
# `num_new_tokens` lists how many tokens each request has to compute, in order of arrival. Divide `token_budget`:
#
# - Requests with one new token are in the middle of their answers. They are served first, in order.
# - The others come next, in order: each takes what it needs, or what is left.
# - The budget is never exceeded. Whoever gets nothing has a 0.
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
# **Guess first.** Three tokens of each step go to those who write. How many steps does the prompt of 400 take?

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
# Seven: six chunks of 61, and one of 34. The text keeps flowing. The newcomer pays, because its first token comes six
# steps later. In vLLM the budget is called `max_num_batched_tokens`.

# %% [markdown]
# ## Three ways to serve
#
# This run would take a large GPU: 24 requests with lengths like those of the Alpaca data set, and a model with 13 billion
# weights. Schedulers and blocks are real. A *cost model* takes the model's place: a step lasts as long as reading the
# weights, plus a little for each token.

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
# - *static*: a batch runs until its last request ends, and each request reserves memory for 2,048 tokens;
# - *continuous*: seats are refilled at once, memory is still reserved;
# - *paged*: blocks are taken as they are needed.
#
# **Guess first.** *Static* takes 11 seconds. How long does *continuous* take? And *paged*?

# %%
for name, run in runs.items():
    print(f"{name:10} {run.num_steps} steps, {run.total_time:4.1f} s, {run.throughput:3.0f} tokens/s")

# %%
from pagedlab.widgets import Timeline

timeline = Timeline(traces, axis="time")
timeline

# %% [markdown]
# Each row is a request, the same in all three figures. Grey dots after a bar: it has finished, and its memory is still
# held. The slider moves through time.
#
# Below the rows lies the pool. Green slots hold a token, hatched ones are held and empty. In the first two figures nearly
# all is hatched, and four requests fill the pool. In *paged* all 24 run at once.
#
# Continuous batching fills the seats, and paging makes more of them. What was short was memory, not arithmetic.

# %% [markdown]
# ## 64 requests on your parts
#
# Now the real model, your allocator, your block table, your scheduler: 64 requests of mixed length, 24 seats, and a pool
# that is a little too small. The course's `Engine` is your `step` in a loop.

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
# Every answer is what the request would have got alone:

# %%
sample = [0, 13, 27, 42, 63]
for number in sample:
    ids = generate_cached(smol.model, mixed[number], wanted[number].max_tokens, GrowingCache(30))
    print(f"request {number:2}: same tokens {list(outputs[number].outputs[0].token_ids) == ids}")

# %%
Timeline(trace, requests=trace.requests[:32])  # 32 rows; the pool below is that of all 64

# %% [markdown]
# **Guess first.** The same 64 in static batches of 24, with 128 tokens reserved for each. That takes 192 blocks; yours had
# 72. How many more steps does it need, and how much more time?

# %%
static_trace = ScheduleTrace()
blocks = 24 * blocks_needed(128, 16)  # rows of 128 tokens: the longest request comes to less
_, static_seconds = serve_all(StaticBatching(blocks, 16, max_model_len=128, batch_size=24), static_trace)
gpu = serving.opt_13b_on_a100()  # the cost model from above
for name, one in {"static": static_trace, "yours": trace}.items():
    computed = sum(each.num_scheduled for each in one.steps)
    on_gpu = len(one) * gpu.base + computed * gpu.per_token
    print(f"{name:6} {len(one)} steps, {computed} tokens computed, {on_gpu:.1f} s on the simulated GPU")
print(f"measured: on this machine static takes {static_seconds / seconds:.2f} times as long as yours")

# %% [markdown]
# Yours needs fewer steps, and less than half of the memory. On this machine the time differs little, either way. Here the
# work is in the tokens, and both compute nearly the same; a preemption adds some. On a GPU the work is in the steps, as
# long as most of a step is reading weights.
#
# The paper reports 2 to 4 times the throughput of earlier systems, at the same latency.

# %% [markdown]
# ## How much to keep free
#
# Your scheduler lets the next one in as soon as it fits. Then everyone grows, and somebody must leave. The first vLLM
# kept 1 % of the pool free when it let somebody in: a *watermark*.
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
# With too little, work is done twice. With too much, memory lies idle. Here 10 % is best. It depends on the load: a
# measurement of vLLM itself found about 5 %.

# %% [markdown]
# ## The same loop, compiled
#
# The loop of lesson 5 was Python between calls of torch. The engine above ran on one like this, which numba compiles for
# your processor. Read it as the algorithm, one token at a time.

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
# `largest`, `total`, and an `out` that shrinks when a larger score comes: lesson 5 again. Here is one layer's step, for 32
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
# The loop above takes one token at a time, on one core. The engine's takes several keys at once in wide registers, on all
# cores, and the three query heads of a kv head together: `pagedlab/kernels/cpu_loops.py`.

# %% [markdown]
# ## What you learned
#
# - A step packs the new tokens of many requests. Weights are read once for all of them.
# - Deciding anew in every step keeps the seats full. A batch that waits for its slowest leaves many of them empty.
# - `num_computed_tokens` chases `num_tokens`: prompts, answers, chunks and recomputation are one and the same.
# - When memory runs out, the latest arrival gives everything back. It loses time, not text, and nobody starves.
# - A token budget keeps every step short. A watermark lets in fewer, so that fewer must leave.

# %% [markdown]
# ## Where it lives
#
# | idea | here | in vLLM |
# |---|---|---|
# | the scheduler | `pagedlab/engine/scheduler.py` | `Scheduler` in `v1/core/sched/scheduler.py` |
# | a request and its two numbers | `pagedlab/engine/request.py` | `v1/request.py` |
# | chunks | `pagedlab/engine/chunked.py` | `max_num_batched_tokens` |
# | one packed step | `ModelRunner` in `pagedlab/engine/runner.py` | `GPUModelRunner` in `v1/worker` |
# | swap | `pagedlab/cache/swap.py` | `swap_in`, `swap_out` of the first `BlockSpaceManager` |
# | the engine | `pagedlab/engine/engine.py` | `LLMEngine`, `LLM.generate` |
#
# The paper: sections 4.3 to 4.5 and 6 of [arXiv:2309.06180](https://arxiv.org/abs/2309.06180). Iteration-level
# scheduling: Orca, OSDI 2022. Chunked prefill: [arXiv:2403.02310](https://arxiv.org/abs/2403.02310). vLLM's
# watermarks, measured: vllm-project/vllm#44594.

# %% [markdown]
# ## Next
#
# Lesson 8, *What is close to the arithmetic and what is far?*: from the CPU to the GPU, and your first kernel.

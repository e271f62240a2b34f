"""The engine: many prompts at once through one model, on one pool of blocks.

A step, again and again:

    schedule    who runs, with how many tokens, in which blocks         (scheduler)
    execute     all those tokens through the model in one go            (runner)
    choose      a token for each sequence that is up to date            (sampling)
    commit      append the tokens; finish, fork and report sequences

Everything before `commit` can be taken back, and is, when the model fails or somebody presses Ctrl-C: a step happens as
a whole or not at all.
"""

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import replace
from numbers import Integral
from pathlib import Path

import torch

from pagedlab.cache.allocator import Allocator, BlockAllocator, whole_number
from pagedlab.cache.paged import PagedKVCache
from pagedlab.cache.prefix import PrefixCache
from pagedlab.cache.swap import SwapSpace
from pagedlab.cache.table import BlockTable
from pagedlab.engine import invariants, sampling
from pagedlab.engine.admission import make_request, token_ids
from pagedlab.engine.beam import BeamGroup
from pagedlab.engine.group import Choice, Sequence, SequenceGroup
from pagedlab.engine.interrupts import HeldInterrupt
from pagedlab.engine.metrics import EngineMetrics, blocks_and_slots_used
from pagedlab.engine.outputs import RequestOutput
from pagedlab.engine.params import SamplingParams
from pagedlab.engine.progress import progress_bar
from pagedlab.engine.request import Request, RequestStatus
from pagedlab.engine.runner import ModelRunner
from pagedlab.engine.scheduler import DuplicateRequestError, Scheduler
from pagedlab.engine.scheduler_output import SchedulerLike, SchedulerOutput
from pagedlab.errors import PagedLabError
from pagedlab.model.llama import Llama

Prompt = str | list[int]
"""A text, or its token ids; a tensor or an array of ids will do."""


class Engine:
    """Serves prompts.

        engine = Engine.load()
        print(engine.generate("The capital of France is")[0].text)

    The pool's size is `kv_cache_memory` ("0.25 GiB", or bytes) or `num_blocks`. `num_cpu_blocks` is the size of the
    swap space, and `preemption_mode="swap"` uses it. The other numbers are the scheduler's
    (`pagedlab.engine.scheduler.Scheduler`).

    Your own parts fit: an `allocator` (the prefix cache is put in front of it, unless it has `lookup` itself), a
    `table_class`, or a whole `scheduler` (`pagedlab.engine.scheduler_output.SchedulerLike`), which then decides
    everything that the options from `max_num_seqs` to `num_cpu_blocks` would have decided, and `block_size`. A table
    class needs `truncate` for the engine to go on after an interrupt.

    `check_invariants=True` runs `check_invariants()` after every step. `seed` is where requests without a seed of their
    own get theirs from. `trace` may be set to a `pagedlab.engine.trace.ScheduleTrace`. Use one engine from one thread.
    """

    def __init__(
        self,
        model: Llama,
        tokenizer=None,
        *,
        kv_cache_memory: str | int = "0.25 GiB",
        num_blocks: int | None = None,
        block_size: int = 16,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = 512,
        max_model_len: int | None = None,
        enable_prefix_caching: bool = True,
        enable_chunked_prefill: bool = True,
        policy: str = "fcfs",
        watermark: float = 0.01,
        preemption_mode: str = "recompute",
        num_cpu_blocks: int = 0,
        backend: str = "auto",
        scheduler: SchedulerLike | None = None,
        allocator: Allocator | None = None,
        table_class: type = BlockTable,
        check_invariants: bool = False,
        seed: int = 0,
    ):
        if allocator is None:
            allocator = getattr(scheduler, "allocator", None)
        if num_blocks is None:
            num_blocks = getattr(allocator, "num_blocks", None)
        block_size = getattr(scheduler, "block_size", block_size)
        self.pool = _make_pool(model, num_blocks, kv_cache_memory, block_size)
        if scheduler is None:
            allocator = BlockAllocator(self.pool.num_blocks) if allocator is None else allocator
            if enable_prefix_caching and not hasattr(allocator, "lookup"):
                allocator = PrefixCache(allocator)
            scheduler = Scheduler(
                allocator,
                block_size,
                max_num_seqs=max_num_seqs,
                max_num_batched_tokens=max_num_batched_tokens,
                max_model_len=max_model_len,
                chunked_prefill=enable_chunked_prefill,
                policy=policy,
                watermark=watermark,
                preemption=preemption_mode,
                swap_space=SwapSpace(self.pool, num_cpu_blocks) if num_cpu_blocks else None,
                table_class=table_class,
            )
        elif allocator is None:
            raise ValueError(f"{type(scheduler).__name__} has no attribute `allocator`: pass its allocator as well")
        if getattr(allocator, "num_blocks", 0) > self.pool.num_blocks:
            raise ValueError(f"the allocator has {allocator.num_blocks} blocks, the pool only {self.pool.num_blocks}")
        self.model, self.tokenizer = model, tokenizer
        self.scheduler, self.allocator = scheduler, allocator
        self.runner = ModelRunner(model, self.pool, backend, getattr(scheduler, "swap_space", None))
        self.trace = None
        self.clock = time.perf_counter
        self._checks_invariants = check_invariants
        self._table_class = table_class
        self._seed = whole_number("seed", seed)
        self._in_step = False
        self._groups: dict[str, SequenceGroup] = {}  # unfinished, by request id
        self._sequences: dict[str, Sequence] = {}  # unfinished, by the id of the scheduler's request
        self._news: dict[SequenceGroup, None] = {}  # what `step` has not returned yet, in order
        self._left: list[Request] = []  # finished since the last step
        self._ids, self._num_added = itertools.count(), 0
        self._totals = EngineMetrics(self.pool.num_blocks, self.pool.block_size)
        self._eos = {getattr(tokenizer, "eos_token_id", None), model.config.eos_token_id} - {None}

    @classmethod
    def load(
        cls,
        path: str | Path | None = None,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cpu",
        **options,
    ) -> "Engine":
        """An engine for a model file, as `pagedlab.model.load.load` takes it; None is the course's model.

        device: "cuda" to run on a GPU, its pool included.
        """
        from pagedlab.model.load import load

        loaded = load(path, dtype, device=device)
        return cls(loaded.model, loaded.tokenizer, **options)

    # The front doors.

    def generate(
        self,
        prompts: Prompt | list[Prompt],
        params: SamplingParams | list[SamplingParams] | None = None,
        progress: bool = True,
    ) -> list[RequestOutput]:
        """Serve prompts until all are finished. The results are in the order of the prompts.

        prompts: texts, or lists of token ids; a single one is a batch of one. params: for all, or one each.
        Nothing runs unless all of them can. When this is interrupted, its requests are aborted.
        """
        prompts = _as_list(prompts)
        params = [params] * len(prompts) if params is None or isinstance(params, SamplingParams) else list(params)
        if len(params) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts, but {len(params)} params: give one for all, or one each")
        groups = [self._group(*pair, place) for place, pair in enumerate(zip(prompts, params, strict=True))]
        try:
            for group in groups:
                self._enter(group)
            with progress_bar(len(groups), progress) as bar:
                running = groups
                while running:
                    self._step()
                    num_before, running = len(running), [group for group in running if not group.finished]
                    bar.update(num_before - len(running))
        finally:
            self._leave(groups)
        return [group.output() for group in groups]

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Iterator[str]:
        """The answer to one prompt, piece by piece as it is generated. Other requests go on beside it.

        A piece never ends within a character. When the caller stops listening, the request is aborted.
        """
        group = self._group(prompt, params)
        if self.tokenizer is None:
            raise ValueError("this engine has no tokenizer, so there is no text to stream: use generate() or step()")
        if group.params.n > 1 or group.params.beam_width is not None:
            raise ValueError("a stream is one text: n must be 1 and beam_width None; generate() returns several")
        return self._pieces(group)

    def _pieces(self, group: SequenceGroup) -> Iterator[str]:
        try:
            self._enter(group)
            shown = 0
            while True:
                text = group.output().text
                if len(text) > shown:
                    piece, shown = text[shown:], len(text)
                    yield piece
                elif group.finished:
                    return
                else:
                    self._step()
        finally:
            self._leave([group])

    def add(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        priority: int = 0,
        images: Iterable[tuple] = (),
        cache_salt: str | None = None,
    ) -> str:
        """A request for `step` to work on. Returns its id.

        images, cache_salt: what makes equal tokens differ (`pagedlab.cache.block_hash.extra_keys_of`).
        Whatever is wrong with a request is told here, before anything has changed: ValueError or TypeError,
        DuplicateRequestError, NeverFitsError.
        """
        group = self._group(
            prompt, params, request_id=request_id, priority=priority, images=images, cache_salt=cache_salt
        )
        self._enter(group)
        return group.request_id

    def step(self) -> list[RequestOutput]:
        """One step. Returns the news: an output for each request that has new tokens."""
        self._step()
        news, self._news = self._news, {}
        return [group.output() for group in news]

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request, with all its samples, whatever it is doing. Returns what it had; None if it is not there."""
        group = self._groups.get(request_id)
        if group is None:
            return None
        self._leave([group])
        return group.output()

    @property
    def has_unfinished(self) -> bool:
        return bool(self._groups)

    @property
    def metrics(self) -> EngineMetrics:
        """All requests together, as of now."""
        requests = [sequence.request for sequence in self._sequences.values()]
        num_blocks_used, num_slots_used = blocks_and_slots_used(requests, self.pool.block_size)
        num_running = len(self.scheduler.running)
        return replace(
            self._totals,
            num_running=num_running,
            num_waiting=len(requests) - num_running,
            num_blocks_used=num_blocks_used,
            num_slots_used=num_slots_used,
        )

    def check_invariants(self) -> None:
        """InvariantError if the books do not balance: see `pagedlab.engine.invariants`."""
        invariants.check_invariants(self.scheduler, allocator=self.allocator)

    # Coming and going.

    def _group(
        self, prompt: Prompt, params: SamplingParams | None, place: int = 0, *, request_id=None, **more
    ) -> SequenceGroup:
        """Everything about a request is checked here, and nothing is changed. `place`: how many are added before it."""
        params = SamplingParams() if params is None else params
        if not isinstance(params, SamplingParams):
            raise TypeError(f"params must be SamplingParams, not {params!r}")
        if params.stop and self.tokenizer is None:
            raise ValueError(f"stop={params.stop} needs a tokenizer, which this engine has not: use stop_token_ids")
        if params.num_sequences > 1 and not hasattr(self.scheduler, "fork"):
            raise ValueError(f"{type(self.scheduler).__name__} cannot fork: n must be 1, and beam_width None")
        if request_id is not None and not isinstance(request_id, str):
            raise TypeError(f"a request id is a text, not {request_id!r}")
        if request_id is None:
            request_id = next(name for name in map(str, self._ids) if name not in self._sequences)
        elif request_id in self._sequences:
            raise DuplicateRequestError(f"request id {request_id!r} is taken by a request that is not finished")
        ids = token_ids(prompt, self.tokenizer, self.model.config)
        request = make_request(request_id, ids, params, self.model.config, self.pool.block_size, **more)
        seed = params.seed if params.seed is not None else (self._seed << 32) + self._num_added + place
        kind = SequenceGroup if params.beam_width is None else BeamGroup
        text = prompt if isinstance(prompt, str) else None
        return kind(request, text, seed, self._eos, self.tokenizer, self.clock())

    def _enter(self, group: SequenceGroup) -> None:
        if group.root.table is None:  # the course's scheduler makes its own, a smaller one need not
            group.root.table = self._table_class(self.pool.block_size)
        with HeldInterrupt():
            self.scheduler.add(group.root)
            self._num_added += 1
            self._groups[group.request_id] = group
            self._sequences[group.request_id] = group.sequences[0]

    def _leave(self, groups: Iterable[SequenceGroup]) -> None:
        """Abort those that are not finished. Nobody wants to hear of any of them any more."""
        with HeldInterrupt():
            for group in groups:
                if self._groups.get(group.request_id) is group:
                    for sequence in group.live:
                        self._finish(sequence, RequestStatus.FINISHED_ABORTED)
                self._news.pop(group, None)

    def _finish(self, sequence: Sequence, status: RequestStatus) -> None:
        """This sequence is done; with the last of its group, so is the group."""
        request, group = sequence.request, sequence.group
        request.status = status
        self.scheduler.finish(request)
        del self._sequences[request.request_id]
        self._left.append(request)
        if group.finished:
            del self._groups[group.request_id]
            group.metrics.finished_time = self.clock()
            self._totals.num_requests_finished += status is not RequestStatus.FINISHED_ABORTED

    # A step.

    def _step(self) -> None:
        if not self._groups:
            return
        if self._in_step:
            raise PagedLabError("a step was begun within a step: does the tokenizer or the scheduler call the engine?")
        with HeldInterrupt() as interrupt:
            self._in_step = True
            try:
                self._whole_step(interrupt)
            finally:
                self._in_step = False

    def _whole_step(self, interrupt: HeldInterrupt) -> None:
        started, moved = self.clock(), False
        output = SchedulerOutput.of(self.scheduler.schedule())
        try:
            self._check(output)
            self.runner.move(output)
            moved = True
            logits, requests = self.runner.execute(output.scheduled, interrupt.raise_if_any)
            chosen, offered = self._choose(logits, [self._sequences[request.request_id] for request in requests])
        except BaseException:
            self._undo(output, moved)
            raise
        self._commit(output, chosen, offered, started)

    def _check(self, output: SchedulerOutput) -> None:
        """A scheduler may be anybody's: no nonsense reaches the model."""
        if not output.scheduled and not output.preempted:
            raise PagedLabError(f"schedule() gave no request any tokens, but {len(self._groups)} are unfinished")
        seen = set()
        for request, num_tokens in output.scheduled:
            if request.request_id not in self._sequences or request.request_id in seen:
                why = "twice" if request.request_id in seen else "which is finished or was never added"
                raise PagedLabError(f"schedule() gave tokens to request {request.request_id!r}, {why}")
            seen.add(request.request_id)
            if not 1 <= num_tokens <= request.num_new_tokens:
                raise PagedLabError(
                    f"schedule() gave request {request.request_id!r} {num_tokens} tokens; it has "
                    f"{request.num_new_tokens} to compute"
                )
        if self._checks_invariants:
            invariants.check_step(self.scheduler, output, self.allocator)

    def _undo(self, output: SchedulerOutput, moved: bool) -> None:
        """The tokens of this step were not computed: the slots they were to have go back."""
        if hasattr(self.scheduler, "undo"):
            self.scheduler.undo(output, moved)
        else:
            for sequence in self._sequences.values():
                table, num_stored = sequence.request.table, sequence.request.num_computed_tokens
                if table is not None and table.num_tokens > num_stored:
                    table.truncate(num_stored, self.allocator)

    def _choose(self, logits: torch.Tensor, sequences: list[Sequence]):
        """What continues each sequence, by its row of the logits. Nothing is changed yet.

        Returns a dictionary from sequences to choices, n of them for the first token of n samples; and (beam, its
        candidates) for those who choose together.
        """
        rows, params, numbers, offered = [], [], [], []
        for row, sequence in enumerate(sequences):
            group = sequence.group
            if isinstance(group, BeamGroup):
                offered.append((sequence, group.candidates(logits[row])))
                continue
            for number in group.draws(sequence):
                rows.append(row)
                params.append(group.params)
                numbers.append(number)
        drawn_from = logits if rows == list(range(len(logits))) else logits[rows]  # a copy only where it must be
        chosen: dict[Sequence, list[Choice]] = {}
        for row, token, wanted in zip(rows, sampling.sample(drawn_from, params, numbers), params, strict=True):
            count = wanted.logprobs
            logprobs = None if count is None else sampling.log_probabilities(logits[row], token, count)
            chosen.setdefault(sequences[row], []).append(Choice(token, logprobs))
        return chosen, offered

    def _commit(self, output: SchedulerOutput, chosen, offered, started: float) -> None:
        """The step counts: keys and values are stored, tokens are appended, sequences fork and end."""
        for request, num_tokens in output.scheduled:
            request.num_computed_tokens += num_tokens
        if hasattr(self.scheduler, "after_step"):
            self.scheduler.after_step(output)
        self._count(output, started)
        now, errors = self.clock(), []
        for sequence, choices in chosen.items():
            self._continue_or_abort([(sequence, choices)], now, errors)
        for beam, candidates in offered:
            self._continue_or_abort(beam.group.offer(beam, candidates), now, errors)
        if self.trace is not None:
            requests = [sequence.request for sequence in self._sequences.values()] + self._left
            self.trace.record(requests, output, self.allocator, now, started)
        self._left.clear()
        if self._checks_invariants:
            self.check_invariants()
        self._totals.busy_time += self.clock() - started
        if errors:
            raise errors[0]

    def _continue_or_abort(self, continued: list[tuple[Sequence, list[Choice]]], now: float, errors: list) -> None:
        """The step counts, whatever becomes of one request. If its tokenizer fails, it is aborted, and all others get
        their tokens before they hear of it."""
        try:
            for sequence, choices in continued:
                self._continue(sequence, choices, now)
        except Exception as error:
            errors.append(error)
            for sequence in continued[0][0].group.live:
                self._finish(sequence, RequestStatus.FINISHED_ABORTED)

    def _continue(self, sequence: Sequence, choices: list[Choice], now: float) -> None:
        """One token: append it. Several: fork first, so that each has a sequence. None: a beam that ends here."""
        group = sequence.group
        self._news[group] = None
        group.metrics.count_tokens(len(choices), now)
        self._totals.num_generation_tokens += len(choices)
        if not choices:
            self._finish(sequence, RequestStatus.FINISHED_STOPPED)
            return
        branches = [sequence] + [self._fork(sequence) for _ in choices[1:]]
        for branch, choice in zip(branches, choices, strict=True):
            if status := branch.append(choice):
                self._finish(branch, status)

    def _fork(self, sequence: Sequence) -> Sequence:
        group = sequence.group
        names = (f"{group.request_id}#{number}" for number in itertools.count(1))
        request = self.scheduler.fork(sequence.request, next(name for name in names if name not in self._sequences))
        fork = sequence.fork(request, index=len(group.sequences))
        group.sequences.append(fork)
        self._sequences[request.request_id] = fork
        return fork

    def _count(self, output: SchedulerOutput, started: float) -> None:
        totals = self._totals
        totals.num_steps += 1
        for request, _ in output.scheduled:
            metrics = self._sequences[request.request_id].group.metrics
            if metrics.first_scheduled_time is None:
                metrics.first_scheduled_time, metrics.num_cached_tokens = started, request.num_cached_tokens
                totals.num_prompt_tokens += request.num_prompt_tokens
                totals.num_cached_tokens += request.num_cached_tokens
        for request in output.preempted:
            self._sequences[request.request_id].group.metrics.num_preemptions += 1
            totals.num_preemptions += 1


def _make_pool(model: Llama, num_blocks: int | None, memory: str | int, block_size: int) -> PagedKVCache:
    if num_blocks is None:
        return PagedKVCache.from_bytes(model.config, memory, block_size, model.dtype, model.device)
    config = model.config
    shape = config.num_hidden_layers, num_blocks, config.num_key_value_heads, block_size, config.head_dim
    return PagedKVCache(*shape, model.dtype, model.device)


def _as_list(prompts: Prompt | list[Prompt]) -> list[Prompt]:
    """A batch. One text is a batch of one, and so is one list of token ids."""
    if isinstance(prompts, str) or not isinstance(prompts, Iterable):
        return [prompts]
    if isinstance(prompts, bytes | bytearray | Mapping | Set):
        raise TypeError(f"prompts are a text, token ids, or a list of such, not {prompts!r}")
    prompts = prompts.tolist() if hasattr(prompts, "tolist") else list(prompts)
    if not isinstance(prompts, list):  # an array of no dimension
        return [prompts]
    is_one = bool(prompts) and all(isinstance(item, Integral) for item in prompts)
    return [prompts] if is_one else prompts

"""One prompt and its continuations. (vLLM calls this a sequence group.)

The scheduler knows requests: tokens and blocks. What it need not know is kept here: the text, the log-probabilities,
which tokens end a sequence, and which of the scheduler's requests belong to one prompt.
"""

from collections.abc import Collection
from typing import NamedTuple

from pagedlab.engine.detokenize import IncrementalDetokenizer
from pagedlab.engine.metrics import RequestMetrics
from pagedlab.engine.outputs import CompletionOutput, RequestOutput
from pagedlab.engine.request import Request, RequestStatus
from pagedlab.engine.sampling import uniform


class Choice(NamedTuple):
    """A token that was chosen to continue a sequence."""

    token: int
    logprobs: dict[int, float] | None = None  # its own log-probability and that of the most likely tokens


class Sequence:
    """One continuation: the request that the scheduler runs, and what has come of it."""

    def __init__(
        self, group: "SequenceGroup", request: Request, index: int, detokenizer: IncrementalDetokenizer | None
    ):
        self.group, self.request, self.index, self.detokenizer = group, request, index, detokenizer
        self.logprobs: list[dict[int, float]] = []
        self.cumulative_logprob = 0.0
        self.stop_reason: int | str | None = None

    def fork(self, request: Request, index: int) -> "Sequence":
        """The same so far, for a request that was forked from this one's."""
        fork = Sequence(self.group, request, index, self.detokenizer and self.detokenizer.copy())
        fork.logprobs, fork.cumulative_logprob = list(self.logprobs), self.cumulative_logprob
        return fork

    def append(self, choice: Choice) -> RequestStatus | None:
        """One more token. Returns how the sequence ended, if this was its last."""
        group, output = self.group, self.request.output_token_ids
        output.append(choice.token)
        if choice.logprobs is not None:
            self.logprobs.append(choice.logprobs)
            self.cumulative_logprob += choice.logprobs[choice.token]

        status = None
        if choice.token in group.stop_token_ids:
            status = RequestStatus.FINISHED_STOPPED
            self.stop_reason = None if choice.token in group.eos_token_ids else choice.token
        elif self.detokenizer and self.detokenizer.append(choice.token):
            status = RequestStatus.FINISHED_STOPPED
        elif len(output) >= group.params.max_tokens:
            status = RequestStatus.FINISHED_LENGTH
        if status and self.detokenizer:
            if self.detokenizer.finish() and status is RequestStatus.FINISHED_LENGTH:
                status = RequestStatus.FINISHED_STOPPED
            self.stop_reason = self.detokenizer.stop_string or self.stop_reason
        return status

    def output(self) -> CompletionOutput:
        params = self.group.params
        has_logprobs = params.logprobs is not None or params.beam_width is not None
        return CompletionOutput(
            index=self.index,
            text=self.detokenizer.text if self.detokenizer else "",
            token_ids=tuple(self.request.output_token_ids),
            finish_reason=self.request.status.finish_reason,
            stop_reason=self.stop_reason,
            cumulative_logprob=self.cumulative_logprob if has_logprobs else None,
            logprobs=None if params.logprobs is None else tuple(self.logprobs),
        )


class SequenceGroup:
    """A prompt with `params.n` continuations, forked off when the first token is chosen."""

    def __init__(
        self,
        request: Request,
        prompt: str | None,
        seed: int,
        eos_token_ids: Collection[int],
        tokenizer,
        arrival_time: float,
    ):
        self.request_id, self.prompt, self.params, self.seed = request.request_id, prompt, request.params, seed
        self.root = request
        self.tokenizer = tokenizer
        self.eos_token_ids = frozenset(() if self.params.ignore_eos else eos_token_ids)
        self.stop_token_ids = self.eos_token_ids.union(self.params.stop_token_ids)
        self.metrics = RequestMetrics(arrival_time, request.num_prompt_tokens)
        has_text = tokenizer is not None and self.params.beam_width is None
        detokenizer = IncrementalDetokenizer(tokenizer, self.params.stop) if has_text else None
        self.sequences = [Sequence(self, request, 0, detokenizer)]

    @property
    def live(self) -> list[Sequence]:
        return [sequence for sequence in self.sequences if not sequence.request.status.is_finished]

    @property
    def finished(self) -> bool:
        return not self.live

    def draws(self, sequence: Sequence) -> list[float]:
        """A random number for each token to be drawn from the next logits of this sequence.

        That is one token, but n while the prompt has but one sequence: the first tokens of all samples are drawn at
        once. It depends on the request and the token's place alone.
        """
        samples = range(self.params.n) if len(self.sequences) == 1 else [sequence.index]
        place = len(sequence.request.output_token_ids)
        return [uniform(self.seed, index, place) for index in samples]

    def output(self) -> RequestOutput:
        return RequestOutput(
            request_id=self.request_id,
            prompt=self.prompt,
            prompt_token_ids=tuple(self.root.prompt_token_ids),
            outputs=self.completions(),
            finished=self.finished,
            metrics=self.metrics,
        )

    def completions(self) -> tuple[CompletionOutput, ...]:
        return tuple(sequence.output() for sequence in self.sequences)

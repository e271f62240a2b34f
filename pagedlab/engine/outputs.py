"""What the engine gives back: one `RequestOutput` a prompt, with one `CompletionOutput` a sample."""

from dataclasses import dataclass

from pagedlab.engine.metrics import RequestMetrics


@dataclass(frozen=True)
class CompletionOutput:
    """One continuation, as far as it has come."""

    index: int
    text: str  # "" where the engine has no tokenizer
    token_ids: tuple[int, ...]
    finish_reason: str | None  # "stop", "length", "abort"; None while it runs
    stop_reason: int | str | None = None  # the stop token or stop string that ended it; None for end-of-sequence
    cumulative_logprob: float | None = None  # the sum over its tokens, where logprobs or a beam search was asked for
    logprobs: tuple[dict[int, float], ...] | None = None  # for each token: it and the most likely ones


@dataclass(frozen=True)
class RequestOutput:
    """Everything about one request so far: later outputs of the same request repeat what earlier ones had."""

    request_id: str
    prompt: str | None  # None if it was given as token ids
    prompt_token_ids: tuple[int, ...]
    outputs: tuple[CompletionOutput, ...]  # in order of their index; of a beam search the best comes first
    finished: bool
    metrics: RequestMetrics

    @property
    def text(self) -> str:
        """The text of the first continuation."""
        return self.outputs[0].text

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The token ids of the first continuation."""
        return self.outputs[0].token_ids

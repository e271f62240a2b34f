"""What a request asks for: how tokens are chosen, and when to stop."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from pagedlab.cache.allocator import whole_number


@dataclass(frozen=True)
class SamplingParams:
    """Checked when made. TypeError for a value of the wrong kind, ValueError for one out of range; both name the field.

    The order in which the probabilities are shaped is vLLM's: temperature, then top_k, then top_p.
    """

    max_tokens: int = 128
    temperature: float = 0.0
    """0 is greedy: the most likely token. Above 0, logits are divided by it: 1 is the model as it is."""
    top_k: int = 0
    """Draw from the `top_k` most likely tokens only; 0 is all of them."""
    top_p: float = 1.0
    """Draw from the fewest tokens whose probabilities sum to `top_p` or more; 1 is all of them."""
    seed: int | None = None
    """The same seed, prompt and parameters give the same draws, whoever shares the batch. None: the engine's choice."""
    n: int = 1
    """Samples of one prompt. Its keys and values are computed and stored once, and shared."""
    stop: tuple[str, ...] = ()
    """Strings that end the text. The text before one is kept, the string itself is cut."""
    stop_token_ids: tuple[int, ...] = ()
    """Tokens that end a request, as the end-of-sequence token does. They stay in `token_ids`."""
    ignore_eos: bool = False
    logprobs: int | None = None
    """Report the log-probability of each chosen token and of this many most likely ones. Of the model's own
    distribution: temperature, top_k and top_p have no part in it."""
    beam_width: int | None = None
    """Beam search with so many beams instead of sampling; the results are the best `beam_width` continuations."""
    length_penalty: float = 1.0
    """Beam search: a result's score is its log-probability divided by `num_tokens ** length_penalty`."""

    def __post_init__(self):
        self._whole("max_tokens", at_least=1)
        self._whole("top_k", at_least=0)
        self._whole("n", at_least=1)
        self._whole("seed", or_none=True)
        self._whole("logprobs", at_least=0, or_none=True)
        self._whole("beam_width", at_least=1, or_none=True)
        self._number("temperature")
        self._number("top_p")
        self._number("length_penalty")
        if self.temperature < 0:
            raise ValueError(f"temperature is {self.temperature}; it must be 0 (greedy) or more")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}; it must be above 0 and at most 1 (all tokens)")
        if abs(self.length_penalty) > 10:
            raise ValueError(f"length_penalty is {self.length_penalty}; it is an exponent, from -10 to 10")
        if not isinstance(self.ignore_eos, bool):
            raise TypeError(f"ignore_eos must be True or False, not {self.ignore_eos!r}")
        self._stops()
        if self.beam_width is not None:
            if self.n > 1 or self.temperature > 0 or self.stop or self.logprobs is not None:
                raise ValueError(
                    f"beam_width is {self.beam_width}: a beam search draws nothing and compares whole beams, so it "
                    "goes with neither n, temperature, stop strings nor logprobs (stop_token_ids are fine)"
                )
        elif self.n > 1 and self.temperature == 0:
            raise ValueError(f"n is {self.n} but temperature is 0: {self.n} greedy samples would all be the same")

    @property
    def num_sequences(self) -> int:
        """Continuations that run side by side."""
        return self.beam_width or self.n

    def _set(self, name: str, value) -> None:
        object.__setattr__(self, name, value)  # the dataclass is frozen for everybody else

    def _whole(self, name: str, at_least: int | None = None, or_none: bool = False) -> None:
        value = getattr(self, name)
        if not (or_none and value is None):
            self._set(name, whole_number(name, value, at_least))

    def _number(self, name: str) -> None:
        value = getattr(self, name)
        try:
            number = float(value) if not isinstance(value, str | bool) else None
        except (TypeError, ValueError):
            number = None
        if number is None:
            raise TypeError(f"{name} must be a number, not {value!r}")
        if not math.isfinite(number):
            raise ValueError(f"{name} is {value}; it must be a finite number")
        self._set(name, number)

    def _stops(self) -> None:
        stop = (self.stop,) if isinstance(self.stop, str) else self.stop
        stop = tuple(stop) if isinstance(stop, Iterable) else (stop,)
        if not all(isinstance(string, str) for string in stop):
            raise TypeError(f"stop must be a string or several, not {self.stop!r}; token ids go into stop_token_ids")
        if "" in stop:
            raise ValueError("stop has an empty string, which would end every text before it begins")
        ids = self.stop_token_ids
        if isinstance(ids, str | bytes) or not isinstance(ids, Iterable):
            raise TypeError(f"stop_token_ids must be several token ids, not {ids!r}")
        self._set("stop", stop)
        self._set("stop_token_ids", tuple(whole_number("a stop token id", token, at_least=0) for token in ids))

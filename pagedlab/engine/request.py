"""One request: its tokens, how many of them are stored, and where it stands.

Two numbers say all about its work. `num_tokens` counts its prompt and the tokens sampled so far; `num_computed_tokens`
counts those whose keys and values are stored. A step computes the tokens in between, and there is no other notion of
"prefill" and "decode": a new prompt has many tokens to compute, a request in the middle of its answer has one.

The newest sampled token counts in `num_tokens` at once, but its key and value are stored by the next step:

    prompt of 4 tokens, nothing computed      num_tokens 4   num_computed_tokens 0   4 tokens to compute
    after its first step, one token sampled   num_tokens 5   num_computed_tokens 4   1 token to compute
    after the next                            num_tokens 6   num_computed_tokens 5   1 token to compute

The very last token is sampled and returned; its key and value would never be read, so they are never stored.

Words and states are vLLM's (`vllm/v1/request.py`).
"""

from collections.abc import Sequence
from enum import Enum

from pagedlab.cache.allocator import whole_number
from pagedlab.cache.block_hash import HashChain
from pagedlab.cache.table import BlockTable


class RequestStatus(Enum):
    WAITING = "waiting"  # never ran
    RUNNING = "running"  # holds blocks; gets tokens in every step that has some for it
    PREEMPTED = "preempted"  # ran, gave all its blocks back, and starts over from its tokens
    SWAPPED = "swapped"  # ran, and its blocks lie in the swap space
    FINISHED_STOPPED = "stop"
    FINISHED_LENGTH = "length"
    FINISHED_ABORTED = "abort"

    @property
    def is_finished(self) -> bool:
        return self in _FINISHED

    @property
    def finish_reason(self) -> str | None:
        """ "stop", "length" or "abort"; None while the request is not finished."""
        return self.value if self.is_finished else None


_FINISHED = {RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH, RequestStatus.FINISHED_ABORTED}


class Request:
    """A prompt to be continued by at most `max_tokens` tokens.

    - `priority`: lower numbers first, where the scheduler looks at priorities
    - `params`: how to sample; the scheduler does not look at it
    - `extra_keys`: what else than its tokens decides the contents of each block (`pagedlab.cache.prefix`)
    - `n`: how many samples or beams this request will be forked into
    """

    def __init__(
        self,
        request_id: str,
        prompt_token_ids: Sequence[int],
        max_tokens: int,
        *,
        priority: int = 0,
        params=None,
        extra_keys=None,
        n: int = 1,
    ):
        """ValueError: an empty prompt, or less than one token, sample or beam asked for."""
        self.request_id = request_id
        self.prompt_token_ids = list(prompt_token_ids)
        if not self.prompt_token_ids:
            raise ValueError(f"request {request_id!r} has an empty prompt; there must be a token to start from")
        self.num_prompt_tokens = len(self.prompt_token_ids)
        self.max_tokens = whole_number("max_tokens", max_tokens, at_least=1)
        self.priority = whole_number("priority", priority)
        self.params = params
        self.extra_keys = extra_keys

        self.output_token_ids: list[int] = []
        self.num_computed_tokens = 0
        self.status = RequestStatus.WAITING

        # Kept by the scheduler.
        self.table: BlockTable | None = None
        self.cpu_blocks: list[int] = []  # where its blocks lie while it is swapped out
        self.seats = whole_number("n", n, at_least=1)  # how many of max_num_seqs it takes: itself and forks to come
        self.arrival: int | None = None  # requests are numbered as they come; forks share the number
        self.order: tuple[int, ...] | None = None  # its turn: queues are sorted by it, smallest first
        self.root_id = request_id  # the request this one was forked from, in the first place
        self.num_preemptions = 0
        self.num_cached_tokens = 0  # tokens of the prompt that were found in the prefix cache at first admission
        self.hash_chain: HashChain | None = None  # of its full blocks, with a prefix cache
        self.num_published_blocks = 0  # how many of them the prefix cache has been told of
        self.parked_at: int | None = None  # its num_tokens when it was preempted with nothing to compute

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and output so far, the newest included."""
        return self.num_prompt_tokens + len(self.output_token_ids)

    @property
    def num_new_tokens(self) -> int:
        """Tokens still to be computed: all of a new prompt, one in the middle of an answer."""
        return self.num_prompt_tokens + len(self.output_token_ids) - self.num_computed_tokens

    @property
    def is_idle(self) -> bool:
        """It has been sampled, and its next token has not been chosen yet: until then it needs no computing.

        So it is with the beams of a search that wait for one of them. Preempted, they have nothing stored, and yet
        recomputing them can wait until they have a next token.
        """
        return self.num_tokens in (self.num_computed_tokens, self.parked_at)

    @property
    def token_ids(self) -> list[int]:
        """Prompt and output, a new list."""
        return self.prompt_token_ids + self.output_token_ids

    def tokens(self, start: int, end: int) -> list[int]:
        """The tokens of positions `start` to `end - 1`, without a copy of all the others."""
        num_prompt = self.num_prompt_tokens
        if start >= num_prompt:
            return self.output_token_ids[start - num_prompt : end - num_prompt]
        if end <= num_prompt:
            return self.prompt_token_ids[start:end]
        return self.prompt_token_ids[start:] + self.output_token_ids[: end - num_prompt]

    @property
    def max_num_tokens_stored(self) -> int:
        """Tokens whose keys and values are stored when it ends with `max_tokens`: all but the last one sampled."""
        return self.num_prompt_tokens + self.max_tokens - 1

    def __repr__(self):
        return (
            f"Request({self.request_id!r}, {self.status.name}, {self.num_computed_tokens} of {self.num_tokens} tokens "
            f"computed, {self.max_num_tokens_stored} at most)"
        )

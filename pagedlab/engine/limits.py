"""What can never run, and which numbers say so. It is told when a request comes, not found out by waiting."""

from pagedlab.cache.accounting import blocks_needed
from pagedlab.engine.request import Request
from pagedlab.errors import PagedLabError


class NeverFitsError(PagedLabError):
    """The request cannot run even if nothing else does: waiting would not help. It was not added."""


def check_fits(request: Request, scheduler) -> None:
    """Could the request run, from its first token to its last, if it were alone? NeverFitsError: no."""
    name, stored = f"request {request.request_id!r}", request.max_num_tokens_stored
    size, num_blocks, needed = scheduler.block_size, scheduler.num_blocks, blocks_needed(stored, scheduler.block_size)
    longest, most, seats = scheduler.max_model_len, scheduler.max_num_batched_tokens, scheduler.max_num_seqs
    stores = (
        f"{name} stores up to {stored} tokens (a prompt of {request.num_prompt_tokens} + max_tokens="
        f"{request.max_tokens} - 1, the last one being returned but not stored)"
    )
    if needed > num_blocks:
        raise NeverFitsError(
            f"{stores}: {needed} blocks of {size}, but the whole pool has {num_blocks}, for {num_blocks * size} "
            f"tokens. Shorten the prompt, lower max_tokens, or make the pool larger."
        )
    if longest is not None and stored > longest:
        raise NeverFitsError(f"{stores}, more than max_model_len={longest}. Shorten the prompt or lower max_tokens.")
    if not scheduler.chunked_prefill and stored > most:
        raise NeverFitsError(
            f"{stores}. Preempted at its longest, it would have to be computed again in one step, which takes at most "
            f"max_num_batched_tokens={most}. Allow chunked prefill, or {stored} tokens a step."
        )
    if request.seats > seats:
        raise NeverFitsError(
            f"{name} wants n={request.seats} samples or beams at a time, more than max_num_seqs={seats}. "
            f"Lower n or raise max_num_seqs."
        )

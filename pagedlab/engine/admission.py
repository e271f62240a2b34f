"""From what a caller asks to a request: all checks, before anything has changed."""

from collections.abc import Iterable, Sequence

from pagedlab.cache.allocator import whole_number
from pagedlab.cache.block_hash import extra_keys_of
from pagedlab.engine.params import SamplingParams
from pagedlab.engine.request import Request
from pagedlab.model.config import ModelConfig


def make_request(
    request_id: str,
    prompt_token_ids: Sequence[int],
    params: SamplingParams,
    config: ModelConfig,
    block_size: int,
    priority: int = 0,
    images: Iterable[tuple] = (),
    cache_salt: str | None = None,
) -> Request:
    """ValueError or TypeError: something that the model which `config` describes cannot do."""
    num_prompt, limit = len(prompt_token_ids), config.max_position_embeddings
    num_positions = num_prompt + params.max_tokens - 1
    if num_positions > limit:
        raise ValueError(
            f"a prompt of {num_prompt} tokens + max_tokens={params.max_tokens} - 1 (the last one is returned, not fed) "
            f"are {num_positions} positions, but the model has {limit}: shorten the prompt or lower max_tokens"
        )
    for token in params.stop_token_ids:
        if token >= config.vocab_size:
            raise ValueError(f"stop token {token}: the model has token ids 0 to {config.vocab_size - 1}")
    extra_keys = None
    images = () if images is None else list(images)
    if images or cache_salt is not None:
        extra_keys = extra_keys_of(num_prompt, block_size, images, cache_salt)
    return Request(
        request_id,
        prompt_token_ids,
        params.max_tokens,
        priority=priority,
        params=params,
        extra_keys=extra_keys,
        n=params.num_sequences,
    )


def token_ids(prompt: str | Sequence[int], tokenizer, config: ModelConfig) -> list[int]:
    """The prompt as a list of ids of this model. Takes text, lists, tensors and arrays."""
    if isinstance(prompt, str):
        if tokenizer is None:
            raise ValueError("a prompt was given as text, but this engine has no tokenizer: give token ids")
        try:
            prompt.encode()
        except UnicodeEncodeError as error:  # half a character, as JSON can have it
            raise ValueError(f"the prompt is no text: {error}") from error
        prompt = tokenizer.encode(prompt)
    ids = prompt.tolist() if hasattr(prompt, "tolist") else prompt
    if not isinstance(ids, Sequence) or isinstance(ids, bytes | bytearray):  # bytes are small ids, by accident
        raise TypeError(f"a prompt is a text or a list of token ids, not {prompt!r}")
    if not ids:
        raise ValueError("the prompt is empty: the model needs at least one token to go on from")
    ids = [whole_number(f"token {position} of the prompt", token) for position, token in enumerate(ids)]
    for position, token in enumerate(ids):
        if not 0 <= token < config.vocab_size:
            raise ValueError(
                f"token {position} of the prompt is {token}: the model has token ids 0 to {config.vocab_size - 1}"
            )
    return ids

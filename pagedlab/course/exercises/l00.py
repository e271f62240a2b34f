"""Lesson 00: `blocks_needed`, the warm-up that shows how checks, hints and parts work."""

import operator

from hypothesis import strategies as st

from pagedlab.course.promise import Exercise, Wrong, calling, count, promise, tell

TOKENS = st.integers(0, 200)
BLOCK_SIZE = st.integers(1, 64)


def whole_number(result, call: str) -> int:
    """The result as an int; a float such as 3.0 is not a count of blocks."""
    if result is None:
        raise Wrong(
            "Nothing was returned.", f"{call} returned None", "`print` shows a result; `return` hands it to the caller."
        )
    try:
        if isinstance(result, bool):
            raise TypeError
        return operator.index(result)
    except TypeError:
        raise Wrong(
            f"A number of blocks is a whole number; this is {type(result).__name__}.",
            f"{call} returned {tell(result)}",
            "You can't hand out a part of a block. Which operator divides without leaving a fraction?",
        ) from None


@promise("There is room for every token", num_tokens=TOKENS, block_size=BLOCK_SIZE)
def room_for_all(answer, num_tokens, block_size):
    call = calling(f"blocks_needed({num_tokens}, {block_size})")
    blocks = whole_number(answer(num_tokens, block_size), call)
    if blocks * block_size < num_tokens:
        raise Wrong(
            f"{count(num_tokens, 'token')} can't fit in {count(blocks, 'block')} of {block_size}.",
            f"{call} returned {blocks}, which is room for {count(blocks * block_size, 'token')}",
            "The last block may be partly full. It is still a whole block.",
        )


@promise("Not one block more than needed", num_tokens=TOKENS, block_size=BLOCK_SIZE)
def none_to_spare(answer, num_tokens, block_size):
    call = calling(f"blocks_needed({num_tokens}, {block_size})")
    blocks = whole_number(answer(num_tokens, block_size), call)
    if (blocks - 1) * block_size >= num_tokens and blocks > 0:
        raise Wrong(
            f"{count(blocks - 1, 'block')} of {block_size} would do for {count(num_tokens, 'token')}.",
            f"{call} returned {blocks}",
            "What happens when the tokens fill the last block exactly? And when there are none at all?",
        )


EXERCISES = (
    Exercise(
        id="blocks_needed",
        title="How many blocks does a request need?",
        kind="function",
        reference="pagedlab.cache.accounting:blocks_needed",
        promises=(room_for_all, none_to_spare),
        hints=(
            "Try it on paper: 32 tokens in blocks of 16, then 33 tokens. What changed?",
            "Whole-number division (`//`) rounds down. Here a part of a block counts as a whole one: round up.",
            "Rounding up without floats: add (block_size - 1) to the tokens first, then use `//`.",
        ),
    ),
)

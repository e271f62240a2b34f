"""Block hashes: a name for what a block holds, so that equal beginnings of prompts can be found again.

The keys and values of a token depend on every token before it. So the name of a block covers its own tokens and,
through the name of the block before it, all earlier ones:

    hash(block i) = SHA-256(hash(block i - 1), the token ids of block i, what else block i depends on)

Two prompts share a name exactly as far as they are equal, block by block. Only full blocks are named: one that is still
being filled has no final contents.

"What else" are the *extra keys*, tagged pairs such as ("image", digest) or ("cache_salt", "customer 7"). All images
look alike as tokens (the same placeholder over and over), so their pixels must be in the name. A salt makes equal
prompts of different customers differ. Every part is written down with its kind and its length, so that no two inputs
make the same bytes.

SHA-256 and not Python's `hash`: whoever reads a wrong block reads another's conversation, so names must not collide
even on purpose (CVE-2025-25183), and `hash` of a text differs from process to process.

Sources: vLLM's design page "Automatic Prefix Caching" (docs.vllm.ai/en/latest/design/prefix_caching.html); image shapes
CVE-2025-46722.
"""

import hashlib
from collections.abc import Iterable, Sequence
from math import prod

from pagedlab.cache.accounting import blocks_needed
from pagedlab.cache.allocator import whole_number

NO_PARENT = bytes(32)
"""Stands where the first block has no block before it."""


def prefix_hash_chain(
    token_ids: Iterable[int], block_size: int, extra_keys: Sequence[tuple] | None = None
) -> list[bytes]:
    """The hash of every full block of a prompt, 32 bytes each.

    extra_keys: one tuple of (kind, value) pairs per block; it may be shorter than the prompt. See `extra_keys_of`.
    """
    chain = HashChain(block_size, extra_keys)
    chain.extend(token_ids)
    return chain.hashes


class HashChain:
    """The same for a sequence that grows: each block is hashed once, when it becomes full."""

    def __init__(self, block_size: int, extra_keys: Sequence[tuple] | None = None):
        """TypeError: an extra key is none, be it that of a block which is far from full."""
        self.block_size = whole_number("block_size", block_size, at_least=1)
        self.hashes: list[bytes] = []
        self._extra_keys = [tuple(keys) for keys in extra_keys or ()]
        self._tail: list[int] = []  # ids behind the last full block
        for keys in self._extra_keys:
            _key_fields(keys)

    @property
    def num_tokens(self) -> int:
        return len(self.hashes) * self.block_size + len(self._tail)

    def extend(self, token_ids: Iterable[int]) -> None:
        """Add tokens at the end. A block that they fill gets its hash."""
        ids = self._tail + [whole_number("a token id", token) for token in token_ids]
        new: list[bytes] = []  # kept apart until all is well
        for start in range(0, len(ids) - self.block_size + 1, self.block_size):
            parent = (new or self.hashes or [NO_PARENT])[-1]
            index = len(self.hashes) + len(new)
            keys = self._extra_keys[index] if index < len(self._extra_keys) else ()
            new.append(block_hash(parent, ids[start : start + self.block_size], keys))
        self.hashes += new
        self._tail = ids[len(new) * self.block_size :]

    def fork(self) -> "HashChain":
        """A second chain that goes on from here by itself."""
        child = HashChain(self.block_size)
        child.hashes, child._tail, child._extra_keys = list(self.hashes), list(self._tail), self._extra_keys
        return child


def block_hash(parent: bytes, token_ids: Iterable[int], extra_keys: Iterable[tuple] = ()) -> bytes:
    """One link of the chain. `parent` is the hash of the block before, `NO_PARENT` for the first."""
    # Hexadecimal text takes ids of any size; a fixed number of bytes would cut some, and equal ids might come of it.
    parts = [_field("parent", parent), _field("tokens", " ".join(f"{token:x}" for token in token_ids).encode())]
    return hashlib.sha256(b"".join(parts + _key_fields(extra_keys))).digest()


def image_key(pixels, shape: Sequence[int], dtype: str = "uint8") -> tuple[str, bytes]:
    """The extra key of an image: its bytes, and how they are to be read.

    Without the shape, a 4 x 4 and a 2 x 8 image of equal bytes would pass for one. `pixels` is bytes, an array, or
    anything else with a buffer.
    """
    pixels = memoryview(pixels).tobytes()
    shape = [whole_number("a size in the shape", size, at_least=1) for size in shape]
    if not pixels or len(pixels) % prod(shape):
        raise ValueError(f"{len(pixels)} bytes are no whole number of bytes for each of {prod(shape)} values: {shape}")
    parts = [_field("shape", " ".join(map(str, shape)).encode()), _field("dtype", str(dtype).encode())]
    return "image", hashlib.sha256(b"".join([*parts, _field("pixels", pixels)])).digest()


def extra_keys_of(
    num_tokens: int,
    block_size: int,
    images: Iterable[tuple[int, int, tuple]] = (),
    cache_salt: str | None = None,
    lora: str | None = None,
) -> list[tuple]:
    """Which block of a prompt depends on what: the `extra_keys` for `prefix_hash_chain`.

    images: (position of its first token, how many tokens it takes, its `image_key`) each. An image's key goes into
    every block that holds some of its tokens, also the last one that the prompt leaves partly empty, and with it where
    it begins, counted from the block's start: two images side by side may divide a block in more than one way.
    cache_salt, lora: go into the first block alone; the chain carries them on to all others.
    """
    num_blocks = max(blocks_needed(num_tokens, block_size), 1)
    keys: list[list[tuple]] = [[] for _ in range(num_blocks)]
    keys[0] += [(kind, value) for kind, value in (("cache_salt", cache_salt), ("lora", lora)) if value is not None]
    next_free = 0
    for start, length, key in sorted(map(_checked_image, images), key=lambda image: image[0]):
        end = start + length
        if length < 1 or start < next_free or end > num_tokens:
            raise ValueError(
                f"an image at positions {start} to {end - 1} does not fit: the prompt has {num_tokens} tokens, and "
                f"images before this one take positions up to {next_free - 1}"
            )
        next_free = end
        for block in range(start // block_size, blocks_needed(end, block_size)):
            keys[block] += [key, ("image_offset", start - block * block_size)]
    return [tuple(block_keys) for block_keys in keys]


def _key_fields(extra_keys: Iterable[tuple]) -> list[bytes]:
    """The extra keys of one block as bytes."""
    fields = []
    for key in extra_keys:
        if not isinstance(key, tuple) or len(key) != 2 or not isinstance(key[0], str):
            raise TypeError(f'an extra key is a pair of its kind and its value, as ("cache_salt", "abc"), not {key!r}')
        kind, value = key
        fields += [_field("kind", kind.encode()), _value(kind, value)]
    return fields


def _checked_image(image: tuple) -> tuple[int, int, tuple]:
    if not isinstance(image, tuple | list) or len(image) != 3:
        raise TypeError(
            f"an image is (position of its first token, number of its tokens, its image_key), not {image!r}"
        )
    start, length, key = image
    return whole_number("an image's position", start), whole_number("an image's number of tokens", length), key


def _value(kind: str, value: str | bytes | int) -> bytes:
    if isinstance(value, bytes):
        return _field("bytes", value)
    if isinstance(value, str):
        return _field("text", value.encode())
    if isinstance(value, int) and not isinstance(value, bool):
        return _field("number", f"{value:x}".encode())
    raise TypeError(f"the value of an extra key is bytes, a text or a whole number; {kind!r} has {value!r}")


def _field(tag: str, data: bytes) -> bytes:
    """`data` with its kind and length in front: put together, fields cannot be cut apart in another way."""
    return b"%s:%d:" % (tag.encode(), len(data)) + data

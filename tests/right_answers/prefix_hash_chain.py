"""Right answers to `prefix_hash_chain` in styles other than ours."""

import hashlib
import itertools
import json
import struct

from tests.corpus import right


@right
def repr_of_all(token_ids, block_size, extra_keys=None):
    digests, parent = [], b""
    for i in range(len(token_ids) // block_size):
        tokens = tuple(token_ids[i * block_size : (i + 1) * block_size])
        keys = tuple(extra_keys[i]) if extra_keys and i < len(extra_keys) else ()
        parent = hashlib.sha256(repr((parent, tokens, keys)).encode()).digest()
        digests.append(parent)
    return digests


@right
def struct_and_lengths(token_ids, block_size, extra_keys=None):
    """Numbers of four bytes, and the length before every text; a key's number is written as a text."""

    def packed(part):
        data = part if isinstance(part, bytes) else str(part).encode()
        return struct.pack("<?Q", isinstance(part, bytes), len(data)) + data

    result = []
    for start in range(0, len(token_ids) - block_size + 1, block_size):
        block = hashlib.blake2b(result[-1] if result else b"", digest_size=32)
        block.update(struct.pack(f"<{block_size}I", *token_ids[start : start + block_size]))
        for kind, value in dict(enumerate(extra_keys or ())).get(start // block_size, ()):
            block.update(packed(kind) + packed(value))
        result.append(block.digest())
    return result


@right
def one_running_hash(token_ids, block_size, extra_keys=None):
    """One hash that goes on; a digest is what it says at the end of a block."""
    running, digests = hashlib.sha256(), []
    for i in range(len(token_ids) // block_size):
        for token in token_ids[i * block_size : (i + 1) * block_size]:
            running.update(b"t%d," % token)
        for key in (extra_keys or [])[i] if i < len(extra_keys or []) else ():
            running.update(f"k{key!r}\n".encode())
        digests.append(running.digest())
    return digests


@right
def as_json(token_ids, block_size, extra_keys=None):
    def plain(value):
        return value if isinstance(value, str | int) else {"bytes": value.hex()}

    def step(parent, both):
        i, tokens = both
        keys = extra_keys[i] if extra_keys and i < len(extra_keys) else []
        text = json.dumps([parent.hex(), tokens, [[kind, plain(value)] for kind, value in keys]])
        return hashlib.blake2b(text.encode(), digest_size=16).digest()

    blocks = [token_ids[s : s + block_size] for s in range(0, len(token_ids) // block_size * block_size, block_size)]
    return list(itertools.accumulate(enumerate(blocks), step, initial=b""))[1:]


@right
def the_whole_beginning(token_ids, block_size, extra_keys=None):
    """The whole beginning is hashed again for every block; a prefix of text tells which block it is."""
    keys = [tuple(one) for one in extra_keys or []]
    digests = []
    for end in range(1, len(token_ids) // block_size + 1):
        mine = [(i, one) for i, one in enumerate(keys[:end]) if one]
        text = f"{list(token_ids[: end * block_size])}{mine}"
        digests.append(b"block %d " % end + hashlib.sha3_256(text.encode()).digest())
    return digests

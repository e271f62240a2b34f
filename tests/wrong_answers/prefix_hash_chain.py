"""Plausible wrong answers to `prefix_hash_chain`."""

import hashlib
import itertools
import json
import pickle
import zlib

from tests.corpus import wrong

FULL = "One digest for each full block"
SAME = "The same text, the same digests"
BEGINNING = "A longer text begins with the same digests"
NO_KEYS = "No extra keys is the same, however it is said"
EVERY = "A digest speaks for every token up to its block's end"
ORDER = "The order of tokens and of blocks counts"
APART = "Numbers don't run together"
KEYS = "A block's extra keys count, from that block on"
KEYS_APART = "The kind of a key counts, and keys don't run together"
PROCESS = "Another process finds the same digests"
COLLISION = "Nobody finds two texts with the same digest"
LONG = "A digest has 128 bits or more"
STAYS = "What it is given stays as it was"

NUMBERS = itertools.count()


def sha(thing):
    return hashlib.sha256(repr(thing).encode()).digest()


def chain_with(digest_of, token_ids, block_size, extra_keys, first=b""):
    """A right chain, around any way to make one digest of (parent, tokens, keys)."""
    digests, parent = [], first
    for i in range(len(token_ids) // block_size):
        tokens = tuple(token_ids[i * block_size : (i + 1) * block_size])
        keys = tuple(extra_keys[i]) if extra_keys and i < len(extra_keys) else ()
        parent = digest_of(parent, tokens, keys)
        digests.append(parent)
    return digests


@wrong(FULL, "A block that is not full yet will change")
def the_rest_too(token_ids, block_size, extra_keys=None):
    digests, parent = [], b""
    for i, start in enumerate(range(0, len(token_ids), block_size)):
        keys = tuple(extra_keys[i]) if extra_keys and i < len(extra_keys) else ()
        parent = sha((parent, tuple(token_ids[start : start + block_size]), keys))
        digests.append(parent)
    return digests


@wrong(FULL, "with or without extra keys")
def only_blocks_with_keys(token_ids, block_size, extra_keys=None):
    digests, parent = [], b""
    for i, keys in zip(range(len(token_ids) // block_size), extra_keys or [], strict=False):
        parent = sha((parent, tuple(token_ids[i * block_size : (i + 1) * block_size]), keys))
        digests.append(parent)
    return digests


@wrong(FULL, "0 digests for 1 full block")
def forgets_a_last_full_block(token_ids, block_size, extra_keys=None):
    return chain_with(lambda *three: sha(three), token_ids[:-1], block_size, extra_keys)


@wrong(FULL, "hashlib's objects have a method .digest()")
def hash_objects(token_ids, block_size, extra_keys=None):
    digests = chain_with(lambda *three: sha(three), token_ids, block_size, extra_keys)
    return [hashlib.sha256(digest) for digest in digests]


@wrong(FULL, ".hexdigest() gives a text")
def hexadecimal(token_ids, block_size, extra_keys=None):
    return [digest.hex() for digest in chain_with(lambda *three: sha(three), token_ids, block_size, extra_keys)]


@wrong(FULL, "A list of digests is expected; this is of type bytes")
def only_one_digest(token_ids, block_size, extra_keys=None):
    digests = chain_with(lambda *three: sha(three), token_ids, block_size, extra_keys)
    return digests[-1] if digests else b""


@wrong(SAME, "got other digests")
def counts_its_calls(token_ids, block_size, extra_keys=None):
    first = str(next(NUMBERS)).encode()
    return chain_with(lambda *three: sha(three), token_ids, block_size, extra_keys, first)


@wrong(SAME, "pickle, id and memory addresses tell equal things apart")
def pickles_it(token_ids, block_size, extra_keys=None):
    """pickle writes a text the second time as 'the same as before', if it is the same object."""

    def digest_of(*three):
        return hashlib.sha256(pickle.dumps(three)).digest()

    return chain_with(digest_of, token_ids, block_size, extra_keys)


@wrong(BEGINNING, "What comes behind the block does not count")
def knows_the_length(token_ids, block_size, extra_keys=None):
    first = str(len(token_ids)).encode()
    return chain_with(lambda *three: sha(three), token_ids, block_size, extra_keys, first)


@wrong(BEGINNING, "other digests at its beginning")
def everything_in_each(token_ids, block_size, extra_keys=None):
    digests = chain_with(lambda *three: sha(three), token_ids, block_size, extra_keys)
    return [sha((digest, tuple(token_ids))) for digest in digests]


@wrong(NO_KEYS, "the digests must be the same")
def none_is_another_key(token_ids, block_size, extra_keys=None):
    def digest_of(parent, tokens, keys):
        return sha((parent, tokens, None if extra_keys is None else keys))

    return chain_with(digest_of, token_ids, block_size, extra_keys)


@wrong(SAME, "A block beyond its end has no extra keys")
def expects_keys_for_all(token_ids, block_size, extra_keys=None):
    digests, parent = [], b""
    for i in range(len(token_ids) // block_size):
        tokens = tuple(token_ids[i * block_size : (i + 1) * block_size])
        parent = sha((parent, tokens, tuple(extra_keys[i]) if extra_keys is not None else ()))
        digests.append(parent)
    return digests


@wrong(EVERY, "depend on all tokens before it")
def no_parent(token_ids, block_size, extra_keys=None):
    return chain_with(lambda parent, *rest: sha(rest), token_ids, block_size, extra_keys)


@wrong(EVERY, "Token 0 is another one, and the digest of block")
def only_one_block_back(token_ids, block_size, extra_keys=None):
    starts = range(0, len(token_ids) - block_size + 1, block_size)
    keys = [tuple(extra_keys[i]) if extra_keys and i < len(extra_keys) else () for i in range(len(starts))]
    return [
        sha((tuple(token_ids[max(0, s - block_size) : s + block_size]), tuple(keys[: i + 1])))
        for i, s in enumerate(starts)
    ]


@wrong(EVERY, "A byte ends at 255")
def one_byte_a_token(token_ids, block_size, extra_keys=None):
    def digest_of(parent, tokens, keys):
        return hashlib.sha256(parent + bytes(token % 256 for token in tokens) + repr(keys).encode()).digest()

    return chain_with(digest_of, token_ids, block_size, extra_keys, bytes(32))


@wrong(FULL, "OverflowError")
def two_bytes_a_token(token_ids, block_size, extra_keys=None):
    def digest_of(parent, tokens, keys):
        data = b"".join(token.to_bytes(2, "little") for token in tokens)
        return hashlib.sha256(parent + data + repr(keys).encode()).digest()

    return chain_with(digest_of, token_ids, block_size, extra_keys, bytes(32))


@wrong(FULL, "UnicodeEncodeError")
def a_letter_a_token(token_ids, block_size, extra_keys=None):
    def digest_of(parent, tokens, keys):
        return sha((parent, "".join(map(chr, tokens)).encode(), keys))

    return chain_with(digest_of, [token % 1_000_000 for token in token_ids], block_size, extra_keys)


@wrong(ORDER, "forget the order")
def sorts_the_block(token_ids, block_size, extra_keys=None):
    return chain_with(
        lambda parent, tokens, keys: sha((parent, sorted(tokens), keys)), token_ids, block_size, extra_keys
    )


@wrong(ORDER, "in another order")
def adds_the_blocks_up(token_ids, block_size, extra_keys=None):
    digests, total = [], 0
    for i in range(len(token_ids) // block_size):
        tokens = tuple(token_ids[i * block_size : (i + 1) * block_size])
        keys = tuple(extra_keys[i]) if extra_keys and i < len(extra_keys) else ()
        total = (total + int.from_bytes(sha((tokens, keys)), "little")) % 2**256
        digests.append(total.to_bytes(32, "little"))
    return digests


@wrong(APART, "1, 23 and 12, 3 are both 123")
def numbers_without_a_gap(token_ids, block_size, extra_keys=None):
    def digest_of(parent, tokens, keys):
        return sha((parent, "".join(map(str, tokens)), keys))

    return chain_with(digest_of, token_ids, block_size, extra_keys)


@wrong(APART, "Give every number the same width")
def as_many_bytes_as_it_takes(token_ids, block_size, extra_keys=None):
    def digest_of(parent, tokens, keys):
        return sha((parent, b"".join(t.to_bytes(t.bit_length() // 8 + 1, "big") for t in tokens), keys))

    return chain_with(digest_of, token_ids, block_size, extra_keys)


@wrong(KEYS, "is the one without")
def no_extra_keys(token_ids, block_size, extra_keys=None):
    return chain_with(lambda parent, tokens, keys: sha((parent, tokens)), token_ids, block_size, None)


@wrong(KEYS, "and the digest of block 0 is another one")
def all_keys_for_every_block(token_ids, block_size, extra_keys=None):
    keys = [key for one in extra_keys or () for key in one]
    return chain_with(lambda parent, tokens, _: sha((parent, tokens, keys)), token_ids, block_size, None)


@wrong(KEYS, "know of it through the digest before them")
def keys_stay_in_their_block(token_ids, block_size, extra_keys=None):
    plain = chain_with(lambda parent, tokens, _: sha((parent, tokens)), token_ids, block_size, None)
    keys = [tuple(one) for one in extra_keys or ()]
    return [sha((d, keys[i])) if i < len(keys) and keys[i] else d for i, d in enumerate(plain)]


@wrong(KEYS, "and the digest of block 0 is the same")
def kinds_only(token_ids, block_size, extra_keys=None):
    def digest_of(parent, tokens, keys):
        return sha((parent, tokens, [kind for kind, _ in keys]))

    return chain_with(digest_of, token_ids, block_size, extra_keys)


@wrong(KEYS_APART, "Only the kind differs")
def values_only(token_ids, block_size, extra_keys=None):
    def digest_of(parent, tokens, keys):
        return sha((parent, tokens, [value for _, value in keys]))

    return chain_with(digest_of, token_ids, block_size, extra_keys)


@wrong(KEYS_APART, "nothing shows where one ends")
def keys_without_a_gap(token_ids, block_size, extra_keys=None):
    def digest_of(parent, tokens, keys):
        text = "".join(f"{kind}{value.hex() if isinstance(value, bytes) else value}" for kind, value in keys)
        return sha((parent, tokens, text))

    return chain_with(digest_of, token_ids, block_size, extra_keys)


@wrong(KEYS_APART, "nothing shows where one ends")
def keys_with_a_sign_between(token_ids, block_size, extra_keys=None):
    def digest_of(parent, tokens, keys):
        text = "|".join(f"{kind}:{value.hex() if isinstance(value, bytes) else value}" for kind, value in keys)
        return sha((parent, tokens, text))

    return chain_with(digest_of, token_ids, block_size, extra_keys)


@wrong(PROCESS, "is salted: every process has its own")
def builtin_hash(token_ids, block_size, extra_keys=None):
    return chain_with(lambda *three: hash(three).to_bytes(8, "big", signed=True), token_ids, block_size, extra_keys)


@wrong(PROCESS, "the order of a set")
def a_set_of_keys(token_ids, block_size, extra_keys=None):
    def digest_of(parent, tokens, keys):
        kinds = {hash(kind) % 1000 for kind, _ in keys}
        return sha((parent, tokens, kinds, keys))

    return chain_with(digest_of, token_ids, block_size, extra_keys)


@wrong(COLLISION, "can be turned round by hand")
def polynomial(token_ids, block_size, extra_keys=None):
    """Base 31, as many string hashes; with room, so that nothing else is wrong with it."""

    def digest_of(parent, tokens, keys):
        value = int.from_bytes(parent, "big") * 2**64
        for token in tokens:
            value = value * 31 + token
        extra = int.from_bytes(sha(keys), "little") if keys else 0
        return ((value + extra) % (2**521 - 1)).to_bytes(66, "big")

    return chain_with(digest_of, token_ids, block_size, extra_keys, b"\1")


@wrong(LONG, "The digests have 16 bits")
def sixteen_bits(token_ids, block_size, extra_keys=None):
    return chain_with(lambda *three: sha(three)[:2], token_ids, block_size, extra_keys)


@wrong(COLLISION, "found after")
def sixteen_bits_in_a_long_coat(token_ids, block_size, extra_keys=None):
    """Looks like 256 bits; there are 65,536 of them."""
    return chain_with(lambda *three: sha(sha(three)[4:6]), token_ids, block_size, extra_keys)


@wrong(LONG, "The digests have 32 bits")
def crc(token_ids, block_size, extra_keys=None):
    return chain_with(
        lambda *three: zlib.crc32(repr(three).encode()).to_bytes(4, "big"), token_ids, block_size, extra_keys
    )


@wrong(LONG, "after about 2^32 tries")
def eight_bytes(token_ids, block_size, extra_keys=None):
    return chain_with(lambda *three: sha(three)[:8], token_ids, block_size, extra_keys)


@wrong(STAYS, "has changed token_ids")
def eats_the_tokens(token_ids, block_size, extra_keys=None):
    digests, parent, i = [], b"", 0
    while len(token_ids) >= block_size:
        tokens = tuple(token_ids.pop(0) for _ in range(block_size))
        parent = sha((parent, tokens, tuple(extra_keys[i]) if extra_keys and i < len(extra_keys) else ()))
        digests.append(parent)
        i += 1
    return digests


@wrong(STAYS, "has changed extra_keys")
def fills_the_keys_up(token_ids, block_size, extra_keys=None):
    if extra_keys is not None:
        while len(extra_keys) < len(token_ids) // block_size:
            extra_keys.append(())
    return chain_with(lambda *three: sha(three), token_ids, block_size, extra_keys)


@wrong(SAME, "TypeError")
def as_json(token_ids, block_size, extra_keys=None):
    """json knows no bytes."""

    def digest_of(parent, tokens, keys):
        return hashlib.sha256(json.dumps([parent.hex(), tokens, keys]).encode()).digest()

    return chain_with(digest_of, token_ids, block_size, extra_keys)


@wrong(SAME, "'int' object has no attribute 'encode'")
def no_numbers_in_keys(token_ids, block_size, extra_keys=None):
    def digest_of(parent, tokens, keys):
        return sha(
            (parent, tokens, [(k, v if isinstance(v, bytes) else v.encode(), type(v).__name__) for k, v in keys])
        )

    return chain_with(digest_of, token_ids, block_size, extra_keys)


@wrong(KEYS_APART, "so a kind can come twice")
def keys_in_a_dict(token_ids, block_size, extra_keys=None):
    return chain_with(lambda parent, tokens, keys: sha((parent, tokens, dict(keys))), token_ids, block_size, extra_keys)


@wrong(KEYS_APART, "and the order counts")
def keys_sorted(token_ids, block_size, extra_keys=None):
    def digest_of(parent, tokens, keys):
        return sha((parent, tokens, sorted(map(repr, keys))))

    return chain_with(digest_of, token_ids, block_size, extra_keys)


@wrong(COLLISION, "MD5 has been broken")
def md5(token_ids, block_size, extra_keys=None):
    def digest_of(parent, tokens, keys):
        data = parent + b"".join(token.to_bytes(4, "little") for token in tokens)
        return hashlib.md5(data + (repr(keys).encode() if keys else b"")).digest()

    return chain_with(digest_of, token_ids, block_size, extra_keys)


@wrong(KEYS_APART, "any number of keys")
def two_keys_of_a_block(token_ids, block_size, extra_keys=None):
    """An image and where it begins: more was not thought of."""
    return chain_with(lambda parent, tokens, keys: sha((parent, tokens, keys[:2])), token_ids, block_size, extra_keys)


@wrong(KEYS_APART, "any number of keys")
def five_keys_of_a_block(token_ids, block_size, extra_keys=None):
    return chain_with(lambda parent, tokens, keys: sha((parent, tokens, keys[:5])), token_ids, block_size, extra_keys)


@wrong(KEYS_APART, "any number of keys")
def the_last_keys_of_a_block(token_ids, block_size, extra_keys=None):
    return chain_with(lambda parent, tokens, keys: sha((parent, tokens, keys[-3:])), token_ids, block_size, extra_keys)


@wrong(KEYS_APART, "All of a value counts")
def eight_letters_of_a_value(token_ids, block_size, extra_keys=None):
    """Fields of a fixed width: what is longer is cut."""

    def digest_of(parent, tokens, keys):
        short = [(kind, value if isinstance(value, int) else value[:8]) for kind, value in keys]
        return sha((parent, tokens, short))

    return chain_with(digest_of, token_ids, block_size, extra_keys)


@wrong(KEYS_APART, "All of a value counts")
def the_end_of_a_value(token_ids, block_size, extra_keys=None):
    def digest_of(parent, tokens, keys):
        short = [(kind, value if isinstance(value, int) else value[-64:]) for kind, value in keys]
        return sha((parent, tokens, short))

    return chain_with(digest_of, token_ids, block_size, extra_keys)


@wrong(KEYS_APART, "the sign of a number")
def numbers_without_a_sign(token_ids, block_size, extra_keys=None):
    def digest_of(parent, tokens, keys):
        plain = [(kind, abs(value) if isinstance(value, int) else value) for kind, value in keys]
        return sha((parent, tokens, plain))

    return chain_with(digest_of, token_ids, block_size, extra_keys)


@wrong(KEYS_APART, "are two values")
def a_text_is_its_bytes(token_ids, block_size, extra_keys=None):
    def digest_of(parent, tokens, keys):
        plain = [(kind, value.encode() if isinstance(value, str) else value) for kind, value in keys]
        return sha((parent, tokens, plain))

    return chain_with(digest_of, token_ids, block_size, extra_keys)

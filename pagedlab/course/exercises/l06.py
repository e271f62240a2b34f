"""Lesson 06: tables that fork and copy on write, a chain of digests, and a cache that is looked up by them."""

import itertools
import os
import struct
import subprocess
import sys

from hypothesis import assume
from hypothesis import strategies as st

from pagedlab.cache.allocator import (
    BlockNotInUseError,
    DoubleFreeError,
    DuplicateBlockError,
    UnknownBlockError,
)
from pagedlab.course.cached_pool import EVICT, HELD, STALE, CachedPool, chain
from pagedlab.course.exercises.l03 import KEPT, OWNERSHIP, WHOLE_CALL, consequence
from pagedlab.course.promise import Exercise, Wrong, calling, count, promise, tell
from pagedlab.course.sharing_tables import Family
from pagedlab.errors import PagedLabError

# --- fork_and_copy_on_write -------------------------------------------------------------------------------------------

BLOCK_SIZE = st.sampled_from([2, 3, 1, 4, 16])
SEED = st.integers(0, 50)
TOKENS = st.integers(0, 5)
WHICH = st.integers(0, 3)
CROWD = st.sampled_from([1, 2, 5, 3, 9, 17])  # forks: as many as samples of one answer, or users of one system prompt


def last_block(num_full: int, num_more: int, block_size: int) -> int:
    """Tokens of a sequence with `num_full` full blocks and a last one that is partly full, if blocks can be."""
    return num_full * block_size + (1 + num_more % (block_size - 1) if block_size > 1 else 0)


@promise("A fork has the same blocks and the same tokens", examples=30, b=BLOCK_SIZE, n=TOKENS, forks=WHICH, seed=SEED)
def same_blocks(answer, b, n, forks, seed):
    family = Family(answer, b, 8, seed)
    names = [family.start(n)]
    for i in range(1 + forks):
        names.append(family.fork(names[i // 2]))  # forks of the first, and of forks


@promise("A fork is one more holder of each block", examples=30, b=BLOCK_SIZE, n=TOKENS, forks=CROWD, seed=SEED)
def one_more_holder(answer, b, n, forks, seed):
    family = Family(answer, b, 8, seed, counts=True)
    names = [family.start(n)]
    for i in range(forks):
        names.append(family.fork(names[i // 2]))
    for name in names:
        family.free(name)


@promise(
    "The first writer into a shared block copies it",
    examples=30,
    b=BLOCK_SIZE,
    n=WHICH,
    more=WHICH,
    forks=CROWD,
    seed=SEED,
)
def first_writer_copies(answer, b, n, more, forks, seed):
    family = Family(answer, max(b, 2), 6, seed)
    names = [family.start(last_block(n, more, max(b, 2)))]
    for _ in range(forks):
        names.append(family.fork("A"))
    family.append(names[seed % len(names)], 1)


@promise("A full last block is not copied", examples=30, b=BLOCK_SIZE, n=WHICH, seed=SEED)
def full_block(answer, b, n, seed):
    family = Family(answer, b, 6, seed)
    family.start(n * b)
    family.fork("A")
    for name in "AB":
        family.append(name, 1)


@promise(
    "The last holder writes in place", examples=30, b=BLOCK_SIZE, n=WHICH, more=WHICH, ends=st.booleans(), seed=SEED
)
def last_writer(answer, b, n, more, ends, seed):
    b = max(b, 2)
    family = Family(answer, b, 8, seed)
    family.start(last_block(n, more, b))
    family.append("A", 1)  # alone: nothing to copy
    family.fork("A")
    first, second = ("A", "B") if seed % 2 else ("B", "A")
    if ends:
        family.free(first)
    else:
        family.append(first, 1)
    family.append(second, 1)


MOVES = st.lists(st.tuples(st.sampled_from(["append", "fork", "free"]), WHICH, st.integers(1, 3)), max_size=8)


OPENING = [("fork", 0, 1), ("append", 1, 1), ("append", 0, 1)]  # whatever is drawn, this much has happened


def play(family: Family, moves) -> None:
    """Make the drawn moves as far as they make sense and the pool has room."""
    for verb, which, number in [*OPENING, *moves]:
        names = [name for name in family.tables if family.words[name]]
        if not names:
            names = [family.start(1)]
        name = names[which % len(names)]
        if verb == "fork" and len(family.tables) < 6:
            family.fork(name)
        elif verb == "free":
            family.free(name)
        elif verb == "append" and family.blocks_for(name, number) <= family.allocator.num_free:
            family.append(name, number)


@promise("Each keeps reading what it had", examples=80, b=BLOCK_SIZE, n=TOKENS, moves=MOVES, seed=SEED)
def keeps_reading(answer, b, n, moves, seed):
    family = Family(answer, b, 12, seed)
    family.start(n)
    play(family, moves)


@promise("A copy gives up one hold of the old block", examples=50, b=BLOCK_SIZE, n=TOKENS, moves=MOVES, seed=SEED)
def counted_after_copies(answer, b, n, moves, seed):
    family = Family(answer, b, 12, seed, counts=True)
    family.start(n)
    play(family, moves)


@promise(
    "Without a free block: OutOfBlocksError, and nothing has changed",
    examples=30,
    b=BLOCK_SIZE,
    n=WHICH,
    more=WHICH,
    seed=SEED,
)
def nothing_changed(answer, b, n, more, seed):
    b = max(b, 2)
    family = Family(answer, b, n + 3, seed, counts=True)
    family.start(last_block(n, more, b))
    family.fork("A")
    others = family.allocator.num_free
    blocks = family.allocator.allocate(others)
    family.story.append(f"others = allocator.allocate({others})  # {blocks}")
    family.counts = False  # the others are no table
    family.refused("B")
    family.story.append(f"allocator.free({blocks})")
    family.allocator.free(blocks)
    family.counts = True
    family.append("B", 1)
    family.append("A", 1)


@promise("Every block comes back, once", examples=50, b=BLOCK_SIZE, n=TOKENS, moves=MOVES, seed=SEED)
def all_come_back(answer, b, n, moves, seed):
    family = Family(answer, b, 12, seed)
    family.start(n)
    play(family, moves)
    for name in family.tables:
        family.free(name)
    free = family.allocator.num_free
    if free != family.num_blocks:
        lost = [block for block in range(family.num_blocks) if family.allocator.ref_count(block)]
        raise family.wrong(
            f"All sequences have ended, and {count(family.num_blocks - free, 'block')} did not come back: {lost}.",
            "Every share and every allocate of yours needs one free.",
            *lost,
        )


# --- prefix_hash_chain ------------------------------------------------------------------------------------------------

IDS = st.one_of(st.integers(0, 9), st.sampled_from([255, 256, 257, 55_300, 65_535, 65_536, 128_000, 2**31 - 1]))
SIZE = st.sampled_from([2, 3, 1, 4])
KINDS = ("image", "lora", "cache_salt")
KEY = st.sampled_from(
    [("lora", "x"), ("lora", "y"), ("cache_salt", "x"), ("image", b"x"), ("image_offset", 3), ("image_offset", -4)]
)
MATERIAL = "A digest is made of three things: the digest before it, the tokens of the block, its extra keys."
TAGGED = "Between two texts put together nothing shows where one ends. repr of the tuple does, or a length before each."
KIND = "A key is a pair. Both halves go in."
TEXT_OR_BYTES = (
    'The text "x" and the bytes b"x" are two values. repr tells them apart; .encode() makes one of the other.'
)
WHOLE_VALUE = "All of a value counts: its beginning, its end, the sign of a number. Don't cut it to a width."
EVERY_KEY = "A block can have any number of keys, and all of them go in: the first, the last, and those between."
TWICE = "A block can hold two images, so a kind can come twice, and the order counts. A dict or a set loses that."


def chained(answer, tokens: list[int], block_size: int, extra_keys=None, told: str = "") -> list[bytes]:
    """The digests that an answer gives."""
    arguments = [f"{tokens}" if len(tokens) <= 24 else f"[{tokens[0]}, ..., {tokens[-1]}]", f"{block_size}"]
    arguments += [f"extra_keys={extra_keys}"] if extra_keys is not None else []
    call = calling(told or f"prefix_hash_chain({', '.join(arguments)})")
    full = len(tokens) // block_size
    try:
        result = (
            answer(list(tokens), block_size) if extra_keys is None else answer(list(tokens), block_size, extra_keys)
        )
    except IndexError as error:
        if extra_keys is None or len(extra_keys) >= full:
            raise
        raise Wrong(
            f"Your answer raised IndexError: {error}",
            f"{call}  # {count(full, 'full block')}, {count(len(extra_keys), 'tuple')} of keys",
            "extra_keys may be shorter than the list of blocks. A block beyond its end has no extra keys.",
        ) from error
    if not isinstance(result, list | tuple):
        kind = "None" if result is None else f"of type {type(result).__name__}"
        raise Wrong(f"A list of digests is expected; this is {kind}.", f"{call} returned {tell(result, 60)}")
    if len(result) != full:
        raise Wrong(
            f"{count(len(result), 'digest')} for {count(full, 'full block')}.",
            f"{call} returned {count(len(result), 'digest')}",
            "A block that is not full yet will change, so it has no digest."
            if len(result) > full
            else "Every full block has a digest, the last one too, with or without extra keys.",
        )
    for digest in result:
        if not isinstance(digest, bytes):
            raise Wrong(
                f"A digest is `bytes`; this is of type {type(digest).__name__}.",
                f"{call} returned [{tell(digest, 60)}, ...]",
                "hashlib's objects have a method .digest(), which gives bytes; .hexdigest() gives a text.",
            )
    return list(result)


def expect_same(one, other, told: str, message: str, hint: str) -> None:
    if one != other:
        raise Wrong(message, told, hint)


def expect_other(one, other, told: str, message: str, hint: str) -> None:
    if one == other:
        raise Wrong(message, f"{told}\nboth have {tell(one, 50)}", hint)


@promise("One digest for each full block", examples=40, b=SIZE, tokens=st.lists(IDS, max_size=9))
def full_blocks_only(answer, b, tokens):
    chained(answer, tokens, b)


def anew(keys):
    """The same keys, as other objects: another request has made them."""
    return [
        tuple(("".join(list(kind)), value if kind == "image_offset" else value[:0] + value) for kind, value in one)
        for one in keys
    ]


KEYS = st.lists(st.lists(KEY, max_size=3).map(tuple), max_size=2)


@promise(
    "The same text, the same digests", examples=60, b=SIZE, tokens=st.lists(IDS, min_size=1, max_size=9), keys=KEYS
)
def same_text(answer, b, tokens, keys):
    one = chained(answer, tokens, b, keys)
    other = chained(answer, [int(str(token)) for token in tokens], b, anew(keys))
    told = f"prefix_hash_chain({tokens}, {b}, extra_keys={keys}), twice"
    hint = "pickle, id and memory addresses tell equal things apart. A random number or a counter does too."
    expect_same(one, other, told, "The same tokens and keys were given again, and got other digests.", hint)


@promise(
    "A longer text begins with the same digests", examples=30, b=SIZE, tokens=st.lists(IDS, min_size=1, max_size=9)
)
def beginning(answer, b, tokens):
    whole = chained(answer, tokens, b)
    for end in range(len(tokens)):
        part = chained(answer, tokens[:end], b)
        told = f"prefix_hash_chain({tokens[:end]}, {b})\nprefix_hash_chain({tokens}, {b})"
        hint = f"{MATERIAL} What comes behind the block does not count."
        expect_same(part, whole[: len(part)], told, "A text that goes on has other digests at its beginning.", hint)


@promise(
    "No extra keys is the same, however it is said", examples=20, b=SIZE, tokens=st.lists(IDS, min_size=1, max_size=6)
)
def no_keys(answer, b, tokens):
    plain = chained(answer, tokens, b)
    for keys in ([], [()]):
        told = f"prefix_hash_chain({tokens}, {b})\nprefix_hash_chain({tokens}, {b}, extra_keys={keys})"
        hint = "A block with an empty tuple, or beyond the end of the list, has no extra keys."
        message = "Without any extra key the digests must be the same."
        expect_same(chained(answer, tokens, b, keys), plain, told, message, hint)


@promise(
    "A digest speaks for every token up to its block's end",
    b=SIZE,
    tokens=st.lists(IDS, min_size=2, max_size=9),
    at=st.integers(0, 8),
    other=IDS,
)
def every_token(answer, b, tokens, at, other):
    at %= len(tokens)
    other += other == tokens[at]
    changed = [*tokens[:at], other, *tokens[at + 1 :]]
    one, two = chained(answer, tokens, b), chained(answer, changed, b)
    told = f"prefix_hash_chain({tokens}, {b})\nprefix_hash_chain({changed}, {b})"
    for block, (left, right) in enumerate(zip(one, two, strict=True)):
        if block < at // b:
            message = f"Token {at} is another one, and block {block}, which is before it, has another digest."
            expect_same(left, right, told, message, MATERIAL)
        else:
            message = f"Token {at} is another one, and the digest of block {block} is the same."
            hint = f"The keys and values of block {block} depend on all tokens before it, by attention. {MATERIAL}"
            if block == at // b and tokens[at] % 256 == other % 256:
                hint = "Do large ids fit into what you make of a token? A byte ends at 255, two at 65,535."
            expect_other(left, right, told, message, hint)


@promise(
    "The order of tokens and of blocks counts",
    b=SIZE,
    tokens=st.lists(IDS, min_size=2, max_size=8),
    which=st.tuples(st.integers(0, 7), st.integers(0, 7)),
)
def order_counts(answer, b, tokens, which):
    i = which[0] % len(tokens)
    j = (i + 1 + which[1] % (len(tokens) - 1)) % len(tokens)
    tokens[j] += tokens[i] == tokens[j]
    swapped = list(tokens)
    swapped[i], swapped[j] = swapped[j], swapped[i]
    one, two = chained(answer, tokens, b), chained(answer, swapped, b)
    told = f"prefix_hash_chain({tokens}, {b})\nprefix_hash_chain({swapped}, {b})"
    for block in range(min(i, j) // b, len(one)):
        message = f"The same tokens in another order, and block {block} has the same digest."
        expect_other(one[block], two[block], told, message, "Sums, sorted lists and sets forget the order.")


def together():
    """Pairs of blocks that look alike when their numbers are written one behind the other."""
    yield [1, 23], [12, 3]
    yield [0, 0, 1], [0, 0, 256]
    yield [1, 11, 111], [11, 11, 11]
    yield [7, 256 + 8], [7, 8]
    yield [5, 65_536 + 6], [5, 6]
    yield [1, 0x0203], [0x0102, 3]
    yield [0x0102, 0x03], [0x01, 0x0203]
    yield [0x01, 0x020304], [0x010203, 0x04]
    yield [258], [2]
    yield [65_538], [2]


@promise("Numbers don't run together")
def numbers_apart(answer):
    for left, right in together():
        one, two = chained(answer, left, len(left)), chained(answer, right, len(right))
        told = f"prefix_hash_chain({left}, {len(left)})\nprefix_hash_chain({right}, {len(right)})"
        hint = "1, 23 and 12, 3 are both 123. Give every number the same width, or put something between them."
        expect_other(one, two, told, "Two different blocks have the same digest.", hint)


@promise(
    "A block's extra keys count, from that block on",
    examples=30,
    b=SIZE,
    tokens=st.lists(IDS, min_size=1, max_size=9),
    at=st.integers(0, 8),
    kind=st.sampled_from(KINDS),
)
def extra_keys_count(answer, b, tokens, at, kind):
    full = len(tokens) // b
    assume(full)
    at %= full
    keys = [[() for _ in range(at)] + [((kind, value),)] for value in ("x", "y")]
    plain, x, y = chained(answer, tokens, b), *(chained(answer, tokens, b, one) for one in keys)
    for block in range(full):
        told = f"prefix_hash_chain({tokens}, {b}, extra_keys={keys[0]})\nprefix_hash_chain({tokens}, {b}"
        if block < at:
            message = f"The key belongs to block {at}, and the digest of block {block} is another one."
            expect_same(x[block], plain[block], told + ")", message, "extra_keys[i] is for block i.")
            continue
        hint = f"extra_keys[{at}] is for block {at}; the blocks behind it know of it through the digest before them."
        message = f"Block {at} has an extra key, and the digest of block {block} is the one without."
        expect_other(x[block], plain[block], told + ")", message, hint)
        message = f"Block {at} has another {kind}, and the digest of block {block} is the same."
        expect_other(x[block], y[block], f"{told}, extra_keys={keys[1]})", message, hint)


def alike():
    """Pairs of key tuples that are easily taken for the same one, and a hint for who does so."""
    for value in ("x", b"x"):
        yield (("image", value),), (("lora", value),), KIND
    yield (("image", "ab"),), (("imagea", "b"),), TAGGED
    yield (("image", b"x"), ("image", b"y")), (("image", b"xy"),), TWICE
    yield (("lora", "x"), ("lora", "y")), (("lora", "xloray"),), TAGGED
    yield (("image_offset", 1), ("image_offset", 23)), (("image_offset", 12), ("image_offset", 3)), TAGGED
    yield (("image", b"x"), ("image", b"z")), (("image", b"y"), ("image", b"z")), TWICE
    yield (("image", b"x"), ("image", b"y")), (("image", b"x"), ("image", b"z")), TWICE
    yield (("image", b"x"), ("image", b"y")), (("image", b"y"), ("image", b"x")), TWICE
    for one, two in itertools.product(":=,|;/ -_\n\0", repeat=2):
        yield (("lora", "x"), ("image", "y")), (("lora", f"x{two}image{one}y"),), TAGGED
    for kind, value in (("lora", "x"), ("cache_salt", "salt"), ("image", "ab")):
        yield ((kind, value),), ((kind, value.encode()),), TEXT_OR_BYTES
    yield (("image_offset", 4),), (("image_offset", -4),), WHOLE_VALUE
    yield (("image_offset", 1),), (("image_offset", 257),), WHOLE_VALUE
    long = "customer 1, contract 2024/17, department of printed matter, archive, room "  # 74 letters
    for one, two in ((long + "3", long + "4"), ("1" + long, "2" + long), (long + "3", long)):
        yield (("cache_salt", one),), (("cache_salt", two),), WHOLE_VALUE
        yield (("image", one.encode()),), (("image", two.encode()),), WHOLE_VALUE
    for before in (2, 3, 5, 8):  # the last of many is another one, or is not there
        keys = tuple(("image", b"%d" % i) for i in range(before))
        yield (*keys, ("image", b"y")), (*keys, ("image", b"z")), EVERY_KEY
        yield (*keys, ("cache_salt", "y")), keys, EVERY_KEY
        yield (("lora", "x"), *keys), (("lora", "y"), *keys), EVERY_KEY


@promise("The kind of a key counts, and keys don't run together")
def keys_apart(answer):
    for left, right, hint in alike():
        one, two = chained(answer, [1, 2], 2, [left]), chained(answer, [1, 2], 2, [right])
        told = f"prefix_hash_chain([1, 2], 2, extra_keys=[{left}])\nprefix_hash_chain([1, 2], 2, extra_keys=[{right}])"
        message = (
            "Only the kind differs, and the digest is the same." if hint == KIND else "Two different keys, one digest."
        )
        expect_other(one, two, told, message, hint)


OTHER_PROCESS = """
import sys
sys.path[:] = {path!r}
import pickle
answer = pickle.load(sys.stdin.buffer)
print(repr([list(answer(*case)) for case in {cases!r}]))
"""


@promise("Another process finds the same digests")
def process_stable(answer):
    from pagedlab.course.answer import pack

    image = [(("image", b"x"), ("image_offset", 1))]
    cases = [([1, 2, 3, 4], 2), ([1, 2, 3, 4], 2, [(("cache_salt", "x"),)]), ([5, 6], 2, image)]
    mine = repr([chained(answer, *case) for case in cases])
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    calling("prefix_hash_chain([1, 2, 3, 4], 2), in another process")
    done = subprocess.run(
        [sys.executable, "-s", "-c", OTHER_PROCESS.format(path=sys.path, cases=cases)],
        input=pack(answer).payload,
        capture_output=True,
        env={**os.environ, "PYTHONHASHSEED": seed},
    )
    if done.returncode:
        said = (done.stderr.decode("utf-8", "replace").strip().splitlines() or ["nothing"])[-1]
        raise Wrong(
            "The answer does not run in another process.", f"It said: {said}", "Import what it needs inside it."
        )
    hint = "hash() of a text is salted: every process has its own. The same goes for id(), and the order of a set."
    told = "prefix_hash_chain([1, 2, 3, 4], 2, extra_keys=[(('cache_salt', 'x'),)]) here, and in another process"
    expect_same(done.stdout.decode().strip(), mine, told, "Another process gives the same text other digests.", hint)


def crafted():
    """Pairs of blocks that weak hashes can't tell apart."""
    for base in (31, 33, 37, 131, 257, 65_599, 1_000_003):
        yield [5, 5 + base], [6, 5]  # base * a + b
        yield [5 + base, 5], [5, 6]  # a + base * b
    yield [8, 15], [15, 8]
    yield [3, 10], [10, 3]
    yield [6, 9], [7, 8]
    yield [2, 12], [3, 8]


# Two texts of 72 letters with the same MD5; found by Marc Stevens (2024).
SAME_MD5 = [b"TEXTCOLLBYfGiJUETHQ4h%sKSMd5zYpgqf1YRDhkmxHkhPWptrkoyz28wnI9V0aHeAuaKnak" % one for one in (b"Ac", b"Ec")]


@promise("Nobody finds two texts with the same digest")
def no_collision(answer):
    for order in ("<", ">"):
        left, right = (list(struct.unpack(f"{order}18I", text)) for text in SAME_MD5)
        one, two = chained(answer, left, 18), chained(answer, right, 18)
        told = f"prefix_hash_chain([{left[0]}, ..., {left[5]}, ...], 18)\n"
        told += f"prefix_hash_chain([{right[0]}, ..., {right[5]}, ...], 18)"
        message = "Two texts that are known for having the same MD5 have the same digest."
        expect_other(one, two, told, message, "MD5 has been broken. Nobody has found two texts for hashlib.sha256.")
    hint = "Sums and polynomials can be turned round by hand, and few bits meet by chance. hashlib.sha256 does neither."
    for left, right in crafted():
        one, two = chained(answer, left, 2), chained(answer, right, 2)
        told = f"prefix_hash_chain({left}, 2)\nprefix_hash_chain({right}, 2)"
        expect_other(one, two, told, "Two texts were found that have the same digest.", hint)
    seen = {}
    for tokens in itertools.product(range(55), repeat=2):
        digest = chained(answer, list(tokens), 2)[0]
        if digest in seen:
            told = f"prefix_hash_chain({list(seen[digest])}, 2)\nprefix_hash_chain({list(tokens)}, 2)"
            told += f"\nboth have {tell(digest, 50)}, found after {len(seen):,} texts"
            raise Wrong("Two texts were found that have the same digest.", told, hint)
        seen[digest] = tokens


@promise("A digest has 128 bits or more")
def long_enough(answer):
    bits = 8 * max(len(chained(answer, [token] * 16, 16)[0]) for token in range(60))
    if bits < 128:
        raise Wrong(
            f"The digests have {bits} bits. Two that are the same turn up after about 2^{bits // 2} tries.",
            "prefix_hash_chain([0] * 16, 16), prefix_hash_chain([1] * 16, 16), ... 60 of them",
            "128 bits make it 2^64 tries. Don't cut sha256's 32 bytes below 16.",
        )


@promise("What it is given stays as it was", examples=20, b=SIZE, tokens=st.lists(IDS, max_size=7), keys=KEYS)
def stays_as_it_was(answer, b, tokens, keys):
    given, given_keys = list(tokens), list(keys)
    calling(f"prefix_hash_chain({tokens}, {b}, extra_keys={keys})")
    answer(given, b, given_keys)
    if given != tokens or given_keys != keys:
        name, now = ("token_ids", given) if given != tokens else ("extra_keys", given_keys)
        told = f"prefix_hash_chain({tokens}, {b}, extra_keys={keys})\nafterwards {name} is {now}"
        raise Wrong(f"The call has changed {name}, which belongs to the caller.", told, KEPT)


# --- prefix_cache -----------------------------------------------------------------------------------------------------

NUM_BLOCKS = st.integers(2, 6)
NUMBER, LEAVE = st.integers(0, 3), st.integers(0, 1)
PLAIN = st.lists(st.tuples(st.sampled_from(["allocate", "free", "share"]), NUMBER, LEAVE), max_size=7)
TEXTS = ("ab", "a", "abc", "ac", "b", "ba", "abcd", "c", "d", "de")
TEXT = st.sampled_from(TEXTS)
SERVES = st.lists(st.tuples(st.sampled_from(["serve", "end", "serve"]), TEXT, NUMBER), max_size=9)


SERVED = [("serve", "ab", 0), ("end", "", 0)]  # whatever is drawn, this much has happened
HIT = [*SERVED, ("serve", "ab", 0)]


def serve_and_end(pool: CachedPool, moves, after=lambda: None) -> None:
    """Requests come and end, as far as there is room."""
    for verb, text, number in moves:
        names = [name for name, held in pool.holders.items() if held]
        if verb == "serve" and pool.room(text):
            pool.serve(text)
        elif verb == "end" and names:
            pool.end(names[number % len(names)])
        after()


@promise("Without any text it is an allocator", examples=30, num_blocks=NUM_BLOCKS, steps=PLAIN)
def an_allocator(answer, num_blocks, steps):
    pool = CachedPool(answer, num_blocks)

    def look():
        pool.look_at_num_free("Nothing was published, so this is the allocator's own num_free.")
        pool.look_at_ref_counts("Nothing was published, so this is the allocator's own ref_count.")

    pool.play([("allocate", 2, 0), ("share", 0, 0), ("free", 0, 0), *steps], look)
    pool.take_all(OWNERSHIP)


@promise("What was published is found, by its digest", examples=30, text=TEXT, other=TEXT, seed=SEED)
def found(answer, text, other, seed):
    pool = CachedPool(answer, 8, seed)
    pool.lookup(chain(other))  # nothing is there yet
    pool.serve(text)
    pool.lookup(chain(text))
    pool.lookup(chain(other))


@promise(
    "The longest beginning that is cached, and no further",
    examples=30,
    published=st.sets(st.integers(0, 4), min_size=1),
    length=st.integers(1, 5),
    seed=SEED,
)
def longest_prefix(answer, published, length, seed):
    pool = CachedPool(answer, 8, seed)
    digests = chain("abcde")
    blocks = pool.allocate(5)
    for index, (block, digest) in enumerate(zip(blocks, digests, strict=True)):
        pool.write(block, digest)
        if index in published:
            pool.publish(block, digest)
    pool.lookup(digests[:length])


@promise("A hit is held for the caller", examples=30, text=TEXT, longer=st.booleans(), seed=SEED)
def held_for_the_caller(answer, text, longer, seed):
    pool = CachedPool(answer, 5, seed)
    pool.serve(text)
    name, _ = pool.lookup(chain(text + "z" * longer))
    pool.look_at_ref_counts(f"{HELD} The cache's own hold is not counted from outside.")
    pool.end("A")
    pool.look_at_ref_counts(HELD)
    pool.look_at_num_free(HELD)
    if name:
        pool.end(name)
    pool.look_at_ref_counts(HELD)


@promise("A cached block without a holder counts as free", examples=40, moves=SERVES, seed=SEED)
def counts_as_free(answer, moves, seed):
    pool = CachedPool(answer, 16, seed)  # enough for all: nothing is evicted

    def look():
        pool.look_at_num_free("Free are those that nobody has, and those that only the cache has.")
        pool.look_at_ref_counts("ref_count counts the holders outside. The cache is not one of them.")

    serve_and_end(pool, [*HIT, *moves], look)


@promise("It is still found after its holder has ended", examples=30, text=TEXT, seed=SEED)
def found_later(answer, text, seed):
    pool = CachedPool(answer, 6, seed)
    pool.end(pool.serve(text))
    pool.lookup(chain(text))
    pool.look_at_num_free(HELD)


@promise("A hit that was only cached can't be evicted any more", examples=30, text=TEXT, seed=SEED)
def pinned(answer, text, seed):
    pool = CachedPool(answer, len(text) + 2, seed)
    pool.end(pool.serve(text))
    pool.end(pool.serve("xy"))
    pool.lookup(chain(text))
    pool.look_at_num_free(HELD)
    pool.take_all("A hit is no longer on the list of those to evict.")


@promise(
    "Empty blocks go first, and no more are evicted than needed",
    examples=20,
    text=TEXT,
    empty=st.sampled_from([1, 2, 0]),
    seed=SEED,
)
def only_as_needed(answer, text, empty, seed):
    num_blocks = len(text) + empty
    for n in range(1, num_blocks + 1):
        pool = CachedPool(answer, num_blocks, seed)
        pool.end(pool.serve(text))
        pool.allocate(n, EVICT)
        pool.every_hash(chain(text))


@promise(
    "An evicted block is not found any more", examples=40, num_blocks=NUM_BLOCKS, moves=SERVES, n=NUMBER, seed=SEED
)
def evicted_is_gone(answer, num_blocks, moves, n, seed):
    pool = CachedPool(answer, num_blocks, seed)
    serve_and_end(pool, [*SERVED, *moves])
    known = list(pool.published)
    pool.allocate(max(0, len(pool.free_blocks) - n), EVICT)
    for digest in known:
        if digest not in pool.published:
            pool.lookup([digest])
    hint = "An evicted block is like any other: neither in the map nor counted as the cache's own."
    pool.look_at_ref_counts(hint)
    for name in [name for name, held in pool.holders.items() if held]:
        pool.end(name)
    pool.look_at_num_free(hint)


@promise(
    "A block that held one text can hold another", examples=30, texts=st.lists(TEXT, min_size=2, max_size=5), seed=SEED
)
def used_again(answer, texts, seed):
    pool = CachedPool(answer, 4, seed)
    texts = ["ab", "cde", *texts]
    for text in texts:
        pool.end(pool.serve(text))
    pool.every_hash(dict.fromkeys(digest for text in texts for digest in chain(text)))


@promise(
    "Tails before heads: the end of a text is evicted first",
    examples=40,
    text=st.sampled_from(["abc", "abcd", "ab"]),
    n=NUMBER,
    seed=SEED,
)
def tails_first(answer, text, n, seed):
    pool = CachedPool(answer, len(text), seed, lru=True)
    pool.end(pool.serve(text))
    n = 1 + n % len(text)
    pool.allocate(n, "The call that let go named the last block first: that one is evicted first.")
    pool.lookup(chain(text))


USED = [(verb, text, 0) for text in "bcb" for verb in ("serve", "end")]  # c was used before b was used again


@promise(
    "What was used least recently is evicted first",
    examples=50,
    num_blocks=st.integers(3, 6),
    moves=SERVES,
    n=st.integers(1, 3),
    seed=SEED,
)
def least_recently_used(answer, num_blocks, moves, n, seed):
    pool = CachedPool(answer, num_blocks, seed, lru=True)
    serve_and_end(pool, [*USED, *moves])
    for name in [name for name, held in pool.holders.items() if held]:
        pool.end(name)
    while pool.free_blocks:
        pool.allocate(min(n, len(pool.free_blocks)), EVICT)


@promise(
    "Of two blocks with the same text, the older one stays",
    examples=40,
    text=TEXT,
    first=st.booleans(),
    ended=st.booleans(),
    seed=SEED,
)
def twins(answer, text, first, ended, seed):
    """ended: the older one's holder has let go before the younger one is published."""
    pool = CachedPool(answer, 2 * len(text) + 1, seed)
    names = []
    for _ in range(2):  # both computed it before either was published
        blocks = pool.allocate(len(text))
        names.append(list(pool.holders)[-1])
        for block, digest in zip(blocks, chain(text), strict=True):
            pool.write(block, digest)
    for name in names:
        for block, digest in zip(pool.holders[name], chain(text), strict=True):
            pool.publish(block, digest)
        if ended and name == names[0]:
            pool.end(name)
    pool.look_at_ref_counts("The younger block is not the cache's: nothing about it changes.")
    if not ended:
        pool.end(names[first])
    pool.look_at_num_free("The younger one is not cached. When its holder lets go, it is simply free.")
    try:
        name, _ = pool.lookup(chain(text))
    except Wrong as found:
        if ended:
            found.hint = (
                "A block that only the cache holds is still the one to be found. A known digest changes nothing."
            )
        raise
    pool.end(names[1] if ended else names[not first])
    pool.look_at_ref_counts("Letting go of one twin must not touch the other.")
    pool.end(name)
    pool.look_at_num_free("Both texts are free now, one of them cached.")
    pool.allocate(len(pool.free_blocks), EVICT)


@promise("Publishing again changes nothing", examples=20, text=TEXT, seed=SEED)
def publish_again(answer, text, seed):
    pool = CachedPool(answer, 5, seed)
    pool.serve(text)
    for block, digest in zip(pool.holders["A"], chain(text), strict=True):
        pool.publish(block, digest)
    pool.look_at_ref_counts("The digest is known already: nothing to do.")
    pool.end("A")
    pool.look_at_num_free("The cache holds a block once, however often it was published.")
    pool.take_all("The cache holds a block once, however often it was published.")


@promise(
    "A refused allocate evicts nothing",
    examples=30,
    num_blocks=NUM_BLOCKS,
    moves=SERVES,
    more=st.integers(1, 2),
    seed=SEED,
)
def refused_allocate(answer, num_blocks, moves, more, seed):
    pool = CachedPool(answer, num_blocks, seed)
    serve_and_end(pool, [*SERVED, *moves])
    pool.too_many(more)
    hint = "Compare n with num_free before anything is evicted."
    pool.look_at_num_free(hint)
    try:
        pool.every_hash(list(pool.published))
    except Wrong as found:
        found.hint = hint
        raise


@promise("A miss changes nothing", examples=20, text=TEXT, other=TEXT, seed=SEED)
def miss_changes_nothing(answer, text, other, seed):
    pool = CachedPool(answer, 5, seed)
    pool.end(pool.serve(text))
    before = pool.pool.num_free
    pool.lookup([b"z" + digest for digest in chain(other)])
    if pool.pool.num_free != before:
        pool.say("cache.num_free", f"was {before}, is {pool.pool.num_free}")
        raise pool.wrong("Nothing was found, and num_free has changed.", "Nothing was found, so nothing is held.")
    pool.every_hash(chain(text))


ERRORS = {"free": DoubleFreeError, "share": BlockNotInUseError}


@promise(
    "A block that is only cached can be neither freed nor shared",
    examples=30,
    text=TEXT,
    verb=st.sampled_from(["free", "share"]),
    seed=SEED,
)
def not_the_callers(answer, text, verb, seed):
    pool = CachedPool(answer, 5, seed)
    pool.end(pool.serve(text))
    block = pool.idle[0]
    hint = f"Its last holder has let go. That the cache still has it is nobody's business: {ERRORS[verb].__name__}."
    if pool.refused(verb, [block], (ERRORS[verb], PagedLabError), hint) is None:
        consequence(pool, hint)
        raise pool.wrong(f"Nobody holds block {block}, but `{verb}([{block}])` passed in silence.", hint, block)
    pool.look_at_num_free(WHOLE_CALL)
    pool.every_hash(chain(text))


@promise("A refused call changes nothing", examples=8, num_blocks=st.integers(3, 6), moves=SERVES)
def refused_changes_nothing(answer, num_blocks, moves):
    for verb, bad, at_the_end in itertools.product(ERRORS, ("free", "unknown", "duplicate"), (True, False)):
        pool = CachedPool(answer, num_blocks)
        serve_and_end(pool, [*HIT, *moves])
        held = next((blocks for blocks in pool.holders.values() if blocks), [])
        if (bad == "duplicate" and not held) or (bad == "free" and not pool.free_blocks):
            continue
        wrong_block = {"free": (pool.free_blocks or [0])[0], "unknown": num_blocks, "duplicate": (held or [0])[0]}[bad]
        named = [*held, wrong_block] if at_the_end else [wrong_block, *held]
        errors = {"free": (ERRORS[verb], PagedLabError), "unknown": (UnknownBlockError,)}
        if pool.refused(verb, named, errors.get(bad, (DuplicateBlockError, DoubleFreeError)), WHOLE_CALL) is None:
            raise pool.wrong(f"`{verb}({named})` must be refused, but passed in silence.", WHOLE_CALL, wrong_block)
        pool.look_at_num_free(WHOLE_CALL)
        pool.look_at_ref_counts(WHOLE_CALL)
        pool.every_hash(list(pool.published))
        pool.take_all(WHOLE_CALL)


@promise("Every block comes back", examples=40, num_blocks=NUM_BLOCKS, moves=SERVES, seed=SEED)
def everything_back(answer, num_blocks, moves, seed):
    pool = CachedPool(answer, num_blocks, seed)
    serve_and_end(pool, [*HIT, *moves])
    for name in [name for name, held in pool.holders.items() if held]:
        pool.end(name)
    pool.look_at_num_free("All requests have ended: every block can be had again.")
    pool.allocate(num_blocks, STALE)
    pool.every_hash([digest for text in TEXTS for digest in chain(text)])


@promise("Also in a pool of 100 blocks", examples=6, num_blocks=st.sampled_from([100, 40, 130]), seed=SEED)
def large_pool(answer, num_blocks, seed):
    """One long text: published, let go, found as a whole; its second half is evicted, and the first half is found."""
    pool = CachedPool(answer, num_blocks, seed, lru=True)
    digests = [b"block %d" % i for i in range(num_blocks)]
    hint = (
        "It worked in small pools. Is there a limit on how many digests your class keeps? It keeps all, until evicted."
    )
    pool.publish_all(pool.allocate(num_blocks), digests)
    pool.end("A")
    pool.look_at_num_free(hint)
    try:
        name, _ = pool.lookup(digests)
    except Wrong as found:
        found.hint = hint
        raise
    pool.look_at_num_free(HELD)
    pool.end(name)
    pool.allocate(num_blocks // 2, EVICT)
    pool.lookup(digests)
    pool.look_at_ref_counts(HELD)
    pool.look_at_num_free(HELD)


@promise("The lists are the caller's", examples=40, num_blocks=NUM_BLOCKS, moves=SERVES, seed=SEED)
def callers_lists(answer, num_blocks, moves, seed):
    pool = CachedPool(answer, num_blocks, seed, spoil=True)
    pool.story.append("# every list is emptied once its call is over")
    hint = "Do you keep the very list that you were given, or that you gave away? Keep a copy."
    try:
        serve_and_end(pool, [*HIT, *moves])
        pool.every_hash(list(pool.published))
    except Wrong as found:
        found.hint = hint
        raise
    pool = CachedPool(answer, num_blocks, seed, watch=True)
    serve_and_end(pool, [*HIT, *moves])


EXERCISES = (
    Exercise(
        id="fork_and_copy_on_write",
        title="Two tables, one block",
        kind="class",
        reference="pagedlab.cache.table:BlockTable",
        promises=(
            same_blocks,
            one_more_holder,
            first_writer_copies,
            full_block,
            last_writer,
            keeps_reading,
            counted_after_copies,
            nothing_changed,
            all_come_back,
        ),
        hints=(
            "A fork writes nothing and moves nothing. What does the child need of its own, and who has to hear that "
            "there is one holder more?",
            "fork: a new SharingTable with a copy of the list of blocks and the same num_tokens; and "
            "allocator.share(self.blocks), so that each block has one holder more.",
            "copy_on_write: nothing to do if num_tokens is a multiple of block_size (the last block is full, or there "
            "is none), and nothing if ref_count of the last block is 1. In all other cases, one copy.",
            "The order matters. allocate(1) first: it may raise, and then nothing has changed. After it, "
            "allocator.free([old]) gives up this table's hold, and self.blocks[-1] = new.\nreturn [(old, new)]",
        ),
    ),
    Exercise(
        id="prefix_hash_chain",
        title="A name for a beginning",
        kind="function",
        reference="pagedlab.cache.prefix:prefix_hash_chain",
        promises=(
            full_blocks_only,
            same_text,
            beginning,
            no_keys,
            process_stable,
            long_enough,
            every_token,
            order_counts,
            numbers_apart,
            extra_keys_count,
            keys_apart,
            no_collision,
            stays_as_it_was,
        ),
        hints=(
            "What must be the same for two requests, so that one may use the other's block? That is what a digest is "
            "made of.",
            "Go over the full blocks, len(token_ids) // block_size of them. Keep the digest of the block before in a "
            'variable; before the first it is b"".',
            "hashlib.sha256(data).digest() wants bytes. repr of a tuple shows where each part begins and ends, for "
            "numbers, texts and bytes: repr((1, 23)) is not repr((12, 3)).",
            "extra_keys[i] if extra_keys and i < len(extra_keys), else (). Then\n"
            "parent = hashlib.sha256(repr((parent, tokens, keys)).encode()).digest()\n"
            "with tokens and keys both made tuples, and append it to the result.",
        ),
    ),
    Exercise(
        id="prefix_cache",
        title="Blocks that outlive their request",
        kind="class",
        reference="pagedlab.cache.prefix:PrefixCache",
        promises=(
            an_allocator,
            found,
            longest_prefix,
            held_for_the_caller,
            found_later,
            miss_changes_nothing,
            only_as_needed,
            counts_as_free,
            pinned,
            evicted_is_gone,
            used_again,
            tails_first,
            least_recently_used,
            twins,
            publish_again,
            refused_allocate,
            not_the_callers,
            refused_changes_nothing,
            everything_back,
            large_pool,
            callers_lists,
        ),
        hints=(
            "The cache is one more holder of every published block. So the allocator below never hands one out, "
            "until the cache itself lets go of it.",
            "Three dicts: digest -> block, block -> digest, and the cached blocks without a holder (a dict keeps its "
            "order: the first was put in first). num_free is the allocator's plus the length of the third. ref_count "
            "is the allocator's, less 1 if the block is in the second.",
            "free: see that ref_count of every block is at least 1, then let the allocator free them. A published "
            "block whose ref_count is 0 now goes to the end of the third dict. lookup takes its hits out of there, and "
            "shares them.",
            "allocate: raise if n > self.num_free. While the allocator has fewer than n free: take the first of the "
            "third dict, delete its two other entries, and let the allocator free it. Then allocator.allocate(n).\n"
            "publish: if the digest is known, return. Otherwise allocator.share([block]) and two entries.",
        ),
    ),
)

"""Block hashes: equal exactly when everything before and inside the block is equal."""

import itertools
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pagedlab.cache.block_hash import NO_PARENT, HashChain, block_hash, extra_keys_of, image_key, prefix_hash_chain

BLOCK_SIZES = [1, 2, 3, 16]
tokens = st.lists(st.integers(0, 3), max_size=40)
values = st.text(max_size=3) | st.binary(max_size=3) | st.integers(-3, 300)
keys = st.lists(st.tuples(st.sampled_from(["a", "ab", ""]), values), max_size=2).map(tuple)


@given(st.sampled_from(BLOCK_SIZES), tokens)
def test_one_hash_for_each_full_block(block_size, ids):
    chain = prefix_hash_chain(ids, block_size)
    assert len(chain) == len(ids) // block_size
    assert all(type(each) is bytes and len(each) == 32 for each in chain)
    assert len(set(chain)) == len(chain)


@given(st.sampled_from(BLOCK_SIZES), tokens, tokens, st.lists(keys, max_size=4), st.lists(keys, max_size=4))
def test_equal_as_far_as_the_prompts_are_equal(block_size, a, b, keys_a, keys_b):
    def parts(ids, extra):  # block by block; missing keys are no keys
        blocks = [tuple(ids[i : i + block_size]) for i in range(0, len(ids) - block_size + 1, block_size)]
        return list(zip(blocks, [*extra, *[()] * len(blocks)], strict=False))

    pairs = zip(parts(a, keys_a), parts(b, keys_b), strict=False)
    equal = len(list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)))
    chain_a, chain_b = prefix_hash_chain(a, block_size, keys_a), prefix_hash_chain(b, block_size, keys_b)
    assert chain_a[:equal] == chain_b[:equal]
    assert not set(chain_a[equal:]) & set(chain_b[equal:])


@given(st.sampled_from(BLOCK_SIZES), st.lists(tokens, max_size=5), st.lists(keys, max_size=3))
def test_a_chain_grows_to_the_same_hashes(block_size, pieces, extra):
    chain = HashChain(block_size, extra)
    for piece in pieces:
        before = list(chain.hashes)
        chain.extend(piece)
        assert chain.hashes[: len(before)] == before
    ids = list(itertools.chain(*pieces))
    assert chain.hashes == prefix_hash_chain(ids, block_size, extra)
    assert chain.num_tokens == len(ids)


def test_a_block_is_hashed_once(monkeypatch):
    calls = []
    monkeypatch.setattr("pagedlab.cache.block_hash.block_hash", lambda *args: calls.append(args) or b"")
    chain = HashChain(4)
    for token in range(100):
        chain.extend([token])
    assert [ids for _, ids, _ in calls] == [list(range(start, start + 4)) for start in range(0, 100, 4)]


def test_a_fork_of_a_chain():
    chain = HashChain(2, [(("cache_salt", "x"),)])
    chain.extend([1, 2, 3])
    child = chain.fork()
    child.extend([4])
    chain.extend([5])
    assert child.hashes == prefix_hash_chain([1, 2, 3, 4], 2, [(("cache_salt", "x"),)])
    assert chain.hashes == prefix_hash_chain([1, 2, 3, 5], 2, [(("cache_salt", "x"),)])


def test_a_failed_extension_changes_nothing():
    chain = HashChain(2)
    chain.extend([1, 2, 3])
    before = list(chain.hashes)
    for wrong in ([4, 5, 2.5], [4, None], ["4"], [True]):
        with pytest.raises(TypeError, match="a token id must be a whole number"):
            chain.extend(wrong)
    assert (chain.hashes, chain.num_tokens) == (before, 3)


def test_ids_of_any_make_and_size():
    assert prefix_hash_chain(torch.tensor([1, 2]), 2) == prefix_hash_chain(np.array([1, 2]), 2)
    assert prefix_hash_chain(np.array([1, 2]), 2) == prefix_hash_chain([1, 2], 2)
    large = [2**16, 2**32, 2**64, 16**5000, 0, 1, 12, 2, -1]
    assert len({prefix_hash_chain([each], 1)[0] for each in large}) == len(large)
    assert prefix_hash_chain([1, 12], 2) != prefix_hash_chain([11, 2], 2)
    assert prefix_hash_chain([2**32 + 1], 1) != prefix_hash_chain([1], 1)


def test_a_known_hash():
    """Fixed for good: what was saved under a hash must be found under it again."""
    assert block_hash(NO_PARENT, [1, 2]).hex() == "ef85ed5d47eba96959cf137e67729b36172d742925633470b00eb3ef086af91f"


def test_where_one_part_ends_and_the_next_begins_matters():
    makes = [
        [("a", "bc")],
        [("ab", "c")],
        [("a", b"bc")],
        [("a", "b"), ("c", "")],
        [("a", ""), ("b", "c")],
        [("abc", "")],
        [("a", 1)],
        [("a", "1")],
        [("a", b"1")],
        [("a", "x"), ("b", "y")],
        [("a", "y"), ("b", "x")],
        [("lora", "x")],
        [("cache_salt", "x")],
        [],
    ]
    assert len({prefix_hash_chain([7], 1, [tuple(keys)])[0] for keys in makes}) == len(makes)
    assert block_hash(NO_PARENT, [1]) != block_hash(block_hash(NO_PARENT, []), [1])


def test_no_keys_are_no_keys():
    assert prefix_hash_chain([1, 2, 3], 1) == prefix_hash_chain([1, 2, 3], 1, [(), ()])
    assert prefix_hash_chain([1, 2, 3], 1, []) == prefix_hash_chain([1, 2, 3], 1, [(), (), (), (("a", "b"),)])


@pytest.mark.parametrize("wrong", ["salt", ("salt",), (1, "salt"), ("salt", None), ("salt", 1.5), ("salt", True)])
def test_keys_that_are_no_pairs_of_a_kind_and_a_value(wrong):
    with pytest.raises(TypeError, match="extra key"):
        prefix_hash_chain([1], 1, [(wrong,)])


def test_block_size_is_checked():
    for wrong in (0, -1):
        with pytest.raises(ValueError, match=f"block_size is {wrong}"):
            prefix_hash_chain([1], wrong)


def test_the_shape_of_an_image_is_in_its_key():
    pixels = np.arange(16, dtype=np.uint8)
    assert image_key(pixels.reshape(4, 4), (4, 4)) == image_key(pixels.tobytes(), [4, 4])
    different = [
        image_key(pixels, (4, 4)),
        image_key(pixels, (2, 8)),
        image_key(pixels, (8, 2)),
        image_key(pixels, (4, 4), "int8"),
        image_key(pixels, (1, 4, 4)),
        image_key(pixels[::-1].copy(), (4, 4)),
        image_key(bytes(16), (4, 4)),
    ]
    assert len(set(different)) == len(different)
    assert image_key(np.ones((2, 2), np.float32), (2, 2), "float32")[0] == "image"
    for wrong in (b"123", b""):
        with pytest.raises(ValueError, match=f"{len(wrong)} bytes are no whole number of bytes for each of 4 values"):
            image_key(wrong, (2, 2))
    with pytest.raises(TypeError):
        image_key(5, (1, 5))


def test_which_blocks_depend_on_which_image():
    a, b = ("image", b"a"), ("image", b"b")
    keys = extra_keys_of(14, 4, images=[(9, 2, b), (2, 5, a)], cache_salt="s", lora="l")
    assert keys == [
        (("cache_salt", "s"), ("lora", "l"), a, ("image_offset", 2)),
        (a, ("image_offset", -2)),
        (b, ("image_offset", 1)),
        (),
    ]
    assert extra_keys_of(14, 16, images=[(0, 14, a)]) == [(a, ("image_offset", 0))]  # generated tokens will fill it
    assert extra_keys_of(0, 4, cache_salt="s") == [(("cache_salt", "s"),)]
    assert extra_keys_of(5, 4) == [(), ()]


def test_two_images_that_divide_a_block_differently():
    a, b = ("image", b"a"), ("image", b"b")
    first = extra_keys_of(8, 8, images=[(0, 3, a), (3, 5, b)])
    second = extra_keys_of(8, 8, images=[(0, 5, a), (5, 3, b)])
    assert prefix_hash_chain([0] * 8, 8, first) != prefix_hash_chain([0] * 8, 8, second)


@pytest.mark.parametrize("images", [[(0, 9, "k")], [(-1, 3, "k")], [(0, 0, "k")], [(0, 4, "k"), (3, 2, "l")]])
def test_images_that_do_not_fit(images):
    with pytest.raises(ValueError, match="the prompt has 8 tokens"):
        extra_keys_of(8, 4, images=images)


@pytest.mark.parametrize(
    "image", [7, "abc", (0, 1), (0.0, 1, "k"), ("0", 1, "k"), (0, True, "k"), (float("nan"), 1, "k")]
)
def test_what_is_no_image(image):
    with pytest.raises(TypeError, match="an image is|an image's"):
        extra_keys_of(8, 4, images=[(5, 1, "k"), image])


def test_a_bad_key_is_told_before_its_block_is_full():
    for bad in ("image", ("image", 1.5), (1, "x"), ("image",), 1):
        with pytest.raises(TypeError, match="extra key"):
            HashChain(4, [(), (("lora", "x"), bad)])


def test_it_needs_no_torch():
    code = "import sys, pagedlab.cache.prefix, pagedlab.cache.swap; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0

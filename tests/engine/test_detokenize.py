"""Text as it comes: pieces add up to the whole, no piece ends within a character, stop strings never show."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pagedlab.engine.detokenize import IncrementalDetokenizer, detokenize

TEXTS = [
    "plain words, and more of them",
    "emoji \N{GRINNING FACE}\N{ROCKET}, a flag \U0001f1eb\U0001f1f7",
    "a family \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002 \u65e5\u672c\u8a9e",
    "combining: e\u0301 n\u0303 \u0915\u094d\u0937",
    "math \U0001d54f\U0001d538 and \N{REPLACEMENT CHARACTER} itself",
    "",
    "\N{REPLACEMENT CHARACTER}",
]


class Bytes:
    """One token a byte: every character that is not ASCII is torn apart. 256 is a special token."""

    def encode(self, text):
        return list(text.encode())

    def decode(self, ids, skip_special_tokens=False):
        return bytes(token for token in ids if token < 256).decode(errors="replace")


class LeadingSpace(Bytes):
    """Drops a space at the very beginning, as SentencePiece decoders do."""

    def decode(self, ids, skip_special_tokens=False):
        text = super().decode(ids)
        return text[1:] if text.startswith(" ") else text


def run(tokenizer, ids, stop=()):
    """The pieces that could be shown after each token, and the detokenizer at the end."""
    text, shown, pieces = IncrementalDetokenizer(tokenizer, stop), 0, []
    for token in ids:
        stopped = text.append(token)
        assert len(text.text) >= shown
        pieces.append(text.text[shown:])
        shown = len(text.text)
        if stopped:
            break
    text.finish()
    pieces.append(text.text[shown:])
    return pieces, text


@pytest.mark.parametrize("original", TEXTS)
@pytest.mark.parametrize("tokenizer", [Bytes(), LeadingSpace()], ids=["bytes", "leading space"])
def test_pieces_add_up_and_end_between_characters(tokenizer, original):
    pieces, text = run(tokenizer, tokenizer.encode(original))
    assert "".join(pieces) == text.text == original
    for piece in pieces[:-1]:
        assert not piece.endswith("\N{REPLACEMENT CHARACTER}")


@pytest.mark.parametrize("original", TEXTS)
def test_the_real_tokenizer(smollm, original):
    pieces, text = run(smollm.tokenizer, smollm.tokenizer.encode(original))
    assert "".join(pieces) == original


@given(st.lists(st.integers(0, 256), max_size=30))
def test_any_bytes_add_up_to_what_they_are_at_once(ids):
    _, text = run(Bytes(), ids)
    assert text.text == Bytes().decode(ids)


@given(ids=st.lists(st.integers(0, 49151), max_size=12))
@settings(max_examples=50, deadline=None)
def test_any_tokens_of_the_real_tokenizer(smollm, ids):
    _, text = run(smollm.tokenizer, ids)
    assert text.text == smollm.tokenizer.decode(ids, skip_special_tokens=True)


def test_half_a_character_at_the_end_is_shown_when_no_more_can_come():
    pieces, text = run(Bytes(), "ab\N{ROCKET}".encode()[:-1])
    assert pieces[:-1] == ["a", "b", "", "", ""] and pieces[-1] == "\N{REPLACEMENT CHARACTER}"


def plain_stop(text, stop):
    """Character by character: as soon as the text ends with a stop string, it is cut there."""
    for end in range(len(text) + 1):
        found = [end - len(string) for string in stop if text[:end].endswith(string)]
        if found:
            return text[: min(found)]
    return None


@pytest.mark.parametrize(
    "original, stop",
    [
        ("one two three", ["two"]),
        ("one two three", ["e t"]),
        ("ababac", ["abac"]),
        ("aaab", ["aab"]),
        ("abcd", ["abcd", "bc"]),
        ("abcd", ["cd", "bcd"]),
        ("User: hi", ["User:", "\n"]),
        ("no stop here", ["xyz"]),
        ("ends with a beginning of sto", ["stop"]),
        ("\u4f60\u597d\u4e16\u754c", ["\u4e16"]),
        ("stop", ["stop"]),
    ],
)
def test_stop_strings(original, stop):
    expected = plain_stop(original, stop)
    pieces, text = run(Bytes(), Bytes().encode(original), stop)
    assert "".join(pieces) == text.text == (original if expected is None else expected)
    assert (text.stop_string is None) == (expected is None)


@given(
    original=st.text("ab\u00e9", max_size=20),
    stop=st.lists(st.text("ab\u00e9", min_size=1, max_size=4), max_size=3),
    seed=st.integers(0, 99),
)
def test_stop_strings_are_found_wherever_tokens_end(original, stop, seed):
    class Pieces:
        """Any cut of the text into tokens, between characters or within them."""

        def __init__(self):
            data, rng, self.parts = original.encode(), random.Random(seed), []
            while data:
                size = rng.randint(1, 5)
                self.parts.append(data[:size])
                data = data[size:]

        def decode(self, ids, skip_special_tokens):
            return b"".join(self.parts[i] for i in ids).decode(errors="replace")

    tokenizer = Pieces()
    expected = plain_stop(original, stop)
    pieces, text = run(tokenizer, range(len(tokenizer.parts)), stop)
    assert text.text == "".join(pieces) == (original if expected is None else expected)


def test_what_may_begin_a_stop_string_is_held_back():
    text, shown = IncrementalDetokenizer(Bytes(), ["STOP"]), []
    for token in b"a STORE STOP":
        text.append(token)
        shown.append(text.text)
    assert shown == ["a", "a ", "a ", "a ", "a ", "a STOR", "a STORE", "a STORE ", *["a STORE "] * 4]
    assert text.stop_string == "STOP"


def test_ids_that_the_tokenizer_does_not_know_have_no_text():
    class Few(Bytes):
        def decode(self, ids, skip_special_tokens=False):
            if 300 in ids:
                raise ValueError("token id 300 is not in the vocabulary of 257")
            return super().decode(ids)

    pieces, text = run(Few(), [97, 300, *"\u00e9".encode()[:1], 300, *"\u00e9".encode()[1:], 300])
    assert text.text == "a\u00e9" == detokenize(Few(), [97, 300, *"\u00e9".encode(), 300])


def test_a_copy_goes_on_by_itself():
    text = IncrementalDetokenizer(Bytes(), ["!"])
    for token in b"ab":
        text.append(token)
    other = text.copy()
    other.append(ord("!"))
    text.append(ord("c"))
    assert (text.text, text.stop_string) == ("abc", None)
    assert (other.text, other.stop_string) == ("ab", "!")

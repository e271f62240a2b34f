"""Token ids to text, as they come: never half a character, never the beginning of a stop string.

A byte-level token is a piece of UTF-8, and may end in the middle of a character: an emoji is often three or four
tokens. Decoding each token by itself would show U+FFFD for every part. So bytes that are not whole yet are held back
until they are, or until the request ends.

A stop string may lie across tokens as well. Text that could be the beginning of one is held back until it is clear
that it is not.
"""

from collections.abc import Collection, Sequence

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


class IncrementalDetokenizer:
    """The text of one sequence. `text` is what may be shown; it only ever grows.

    tokenizer: has `decode(ids, skip_special_tokens)`. stop: strings that end the text.
    """

    def __init__(self, tokenizer, stop: Sequence[str] = ()):
        self.text = ""
        self.stop_string: str | None = None
        """The stop string that was found. `text` ends before it."""
        self._tokenizer, self._stop = tokenizer, tuple(stop)
        self._ids: list[int] = []
        self._decoded = ""  # all whole characters, of which `text` is the part that may be shown
        # Some tokenizers write a token differently at the beginning of a text, so a new token is decoded together with
        # those before it. Ids from `_context` on are decoded again; those before `_read` are in `_decoded` already.
        self._context = self._read = 0

    def append(self, token_id: int) -> bool:
        """The next token. True: a stop string is complete."""
        self._ids.append(token_id)
        known = self._decode(self._context, self._read)
        try:
            text = self._decode(self._context, len(self._ids))
        except ValueError:  # a model can have more ids than its tokenizer knows; they have no text
            self._ids.pop()
            return False
        if len(text) > len(known) and not text.endswith(REPLACEMENT):
            self._decoded += text[len(known) :]
            self._context, self._read = self._read, len(self._ids)
        return self._show(self._decoded)

    def finish(self) -> bool:
        """No more tokens: what was held back is part of the text after all. True: it completes a stop string."""
        if self.stop_string is None:
            known = self._decode(self._context, self._read)
            self._decoded += self._decode(self._context, len(self._ids))[len(known) :]
            self._context = self._read = len(self._ids)
            if not self._show(self._decoded):
                self.text = self._decoded
        return self.stop_string is not None

    def copy(self) -> "IncrementalDetokenizer":
        """The same text so far, to be continued differently."""
        other = IncrementalDetokenizer(self._tokenizer, self._stop)
        other.__dict__.update(self.__dict__, _ids=list(self._ids))
        return other

    def _decode(self, start: int, end: int) -> str:
        return self._tokenizer.decode(self._ids[start:end], skip_special_tokens=True)

    def _show(self, decoded: str) -> bool:
        # Nothing shown can belong to a stop string: its beginning would have been held back.
        found = [(place, stop) for stop in self._stop if (place := decoded.find(stop, len(self.text))) >= 0]
        if found:  # the one that is complete first counts, as if the text had come a character at a time
            place, self.stop_string = min(found, key=lambda pair: (pair[0] + len(pair[1]), pair[0]))
            self.text = decoded[:place]
            return True
        self.text = decoded[: len(decoded) - _held_back(decoded, self._stop)]
        return False


def detokenize(tokenizer, token_ids: Sequence[int]) -> str:
    """The text of a whole sequence, as its pieces would have added up to."""
    text = IncrementalDetokenizer(tokenizer)
    for token_id in token_ids:
        text.append(token_id)
    text.finish()
    return text.text


def _held_back(text: str, stop: Collection[str]) -> int:
    """The length of the longest end of `text` that is the beginning of a stop string."""
    longest = max((len(string) - 1 for string in stop), default=0)
    for length in range(min(longest, len(text)), 0, -1):
        if any(string.startswith(text[-length:]) for string in stop):
            return length
    return 0

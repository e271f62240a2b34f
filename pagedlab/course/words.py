"""How values and errors are put into a report: in plain text, short, and the same on every run.

Everything here is handed things that a learner's answer made, so nothing here trusts a `repr` or a `str`.
"""

import re

LONGEST = 2_000  # characters of any one text in a report


def count(number: int, noun: str) -> str:
    """ "1 token", "2 tokens"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def tell(value, limit: int = 160) -> str:
    """A short text for a value: the shape of a tensor, the repr of anything else."""
    try:
        shape = getattr(value, "shape", None)
        text = repr(value) if shape is None else f"tensor{list(shape)}"
    except Exception as error:
        text = f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"
    return shortened(plain(text), limit)


def error_text(error: BaseException) -> str:
    """ "ValueError: what it says"."""
    try:
        said = str(error)
    except Exception as second:
        said = f"(its text can't be had: {type(second).__name__})"
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def plain(text: str, limit: int = LONGEST) -> str:
    """Text without control characters (a terminal would obey them) or memory addresses (they differ on every run)."""
    text = shortened(text, limit).encode("utf-8", "backslashreplace").decode()
    text = re.sub(r"\b0x[0-9a-fA-F]{6,16}\b", "0x…", text)
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]", lambda found: ascii(found[0])[1:-1], text)


def shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"

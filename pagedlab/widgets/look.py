"""What every widget draws with: colours, letters, and numbers written out for people.

Colour never stands alone. A request has a letter as well as a colour, and what its slots hold is told by a pattern.
"""

from collections.abc import Sequence

# Okabe and Ito's palette, which people with any common colour vision can tell apart. (Black is left for text.)
# Source: https://jfly.uni-koeln.de/color/
COLOURS = ("#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7")

# Text on each of these colours: whichever of dark and white has the higher contrast (all are above 4.5 to 1).
INKS = ("#14161A", "#14161A", "#14161A", "#14161A", "#FFFFFF", "#14161A", "#14161A")


def colour_of(index: int) -> str:
    """The fill of request number `index` (from 0). Colours repeat; letters do not."""
    return COLOURS[index % len(COLOURS)]


def ink_of(index: int) -> str:
    """The colour of text that is legible on `colour_of(index)`."""
    return INKS[index % len(INKS)]


def letters(index: int) -> str:
    """The name of request number `index` (from 0): A, B, ... Z, AA, AB, ..."""
    name = ""
    index += 1
    while index:
        index, last = divmod(index - 1, 26)
        name = chr(ord("A") + last) + name
    return name


def plural(count: int, one: str, many: str | None = None) -> str:
    """`plural(1, "request")` is "1 request", `plural(2048, "slot")` is "2,048 slots"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def spoken_list(names: Sequence[str], at_most: int = 8) -> str:
    """ "A", "A and B", "A, B and C"; long lists end in "and 5 more"."""
    shown = list(names[:at_most])
    if len(names) > at_most:
        return f"{', '.join(shown)} and {len(names) - at_most:,} more"
    if len(shown) < 2:
        return "".join(shown)
    return f"{', '.join(shown[:-1])} and {shown[-1]}"


def percents(counts: Sequence[int]) -> list[str]:
    """`counts` as whole percentages of their sum, written out. The numbers add up to 100.

    Rounding each share by itself can give 99 or 101, so the largest remainders are rounded up and the others down.
    Something that is there but rounds to nothing reads "<1 %".
    """
    total = sum(counts)
    if total == 0:
        return ["0 %"] * len(counts)
    whole = [100 * count // total for count in counts]
    by_remainder = sorted(range(len(counts)), key=lambda i: (-(100 * counts[i] % total), i))
    for i in by_remainder[: 100 - sum(whole)]:
        whole[i] += 1
    return ["<1 %" if count and not percent else f"{percent} %" for count, percent in zip(counts, whole, strict=True)]

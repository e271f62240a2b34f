"""Varied strings from a fixed seed: what a tokenizer meets, and what it should never have to."""

import random

_WORDS = "the quick brown fox it's we'll they've I'd don't naïve Zürich français e.g. U.S.A. HELLO camelCase".split()
_CODE = [
    "def attend(q, k, v):\n    return softmax(q @ k.T) @ v\n",
    "for (int i = 0; i < n; ++i) { sum += a[i]; }",
    "\tif x != None and y >= 0x1F:\n\t\tpass  # TODO",
    "SELECT * FROM t WHERE id IN (1, 22, 333);",
    '{"key": [1.5e-3, null, true], "s": "a\\nb"}',
    "<div class='x'>&nbsp;</div>",
    "$ grep -rn 'foo\\|bar' . | wc -l",
]
_SPACES = [" ", "  ", "   ", "\n", "\n\n", "\t", "\r\n", " \n ", "\u00a0", "\u3000", "\u200b", "\u2028"]
_SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<|im_end", "<|", "|>", "<s>", "</s>"]
_SCRIPTS = [
    (0x0041, 0x007A),
    (0x00C0, 0x017F),
    (0x0300, 0x036F),  # combining marks
    (0x0391, 0x03C9),
    (0x0410, 0x044F),
    (0x05D0, 0x05EA),
    (0x0627, 0x064A),
    (0x0660, 0x0669),  # Arabic digits
    (0x0905, 0x0939),
    (0x0E01, 0x0E2E),
    (0x2070, 0x209C),  # superscripts and subscripts
    (0x2150, 0x218B),  # fractions and Roman numerals
    (0x2200, 0x22FF),
    (0x3041, 0x30FF),
    (0x4E00, 0x9FFF),
    (0xAC00, 0xD7A3),
    (0x1F300, 0x1F6FF),
    (0x1D7CE, 0x1D7FF),  # mathematical digits
]


def varied_texts(count: int, seed: int = 0) -> list[str]:
    """`count` strings, a few hundred characters at most. The first ones are short on purpose: "", " ", "\\n", ..."""
    rng = random.Random(seed)

    def script():
        low, high = rng.choice(_SCRIPTS)
        return "".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 8)))

    def number():
        return rng.choice(["{}", " {}", "{:,}", "-{}.5", "{}%", "v{}.0", "$ {}", "1e{}"]).format(rng.randint(0, 10**9))

    def anything():
        code = rng.choice([rng.randint(1, 0x2FF), rng.randint(1, 0xD7FF), rng.randint(0xE000, 0x10FFFF)])
        return chr(code)

    pieces = [
        lambda: rng.choice(_WORDS),
        lambda: " " + rng.choice(_WORDS),
        lambda: rng.choice(_CODE),
        lambda: rng.choice(_SPACES) * rng.randint(1, 4),
        lambda: rng.choice(_SPECIAL),
        lambda: rng.choice("!?.,;:'\"()[]{}#@&*-_=+/\\|~`^") * rng.randint(1, 3),
        script,
        number,
        anything,
    ]
    texts = ["", " ", "\n", "a", " a", "  a", "é", "🙂", "0", " 1", "12345", "<|im_start|>"]
    while len(texts) < count:
        texts.append("".join(rng.choice(pieces)() for _ in range(rng.randint(1, 12))))
    return texts[:count]

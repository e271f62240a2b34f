"""What a compiler says, as a sentence that a reader can act on."""

import re

from pagedlab.gpu.targets import Target

# (a pattern in what was said, the sentence; groups of the pattern can stand in it)
MEANINGS = [
    (
        r"unsupported AST node type: Raise",
        "`raise` is for Python; a kernel can't raise. Is it still to be written?",
    ),
    (
        r"Input shapes should have M >= (\d+), N >= (\d+) and K >= (\d+)",
        "`tl.dot` sums over at least {2} numbers (M >= {0}, N >= {1}, K >= {2}). A tile this small has to be padded",
    ),
    (
        r"type (fp8e4nv) not supported in this architecture",
        "{target} has no float8 e4m3 ({0}); sm_89 and later have. float8 e5m2 is known to all",
    ),
    (
        r"Cannot access global variable (\w+) from within",
        "the global `{0}` is a plain number, and a kernel sees only constants: `{0} = tl.constexpr(...)`",
    ),
    (
        r"arange's arguments must be of type tl.constexpr",
        "the ends of `tl.arange` have to be known to the compiler: mark the parameter `tl.constexpr`",
    ),
    (
        r"arange's range must be a power of 2",
        "the length of `tl.arange` must be a power of 2. Take the next one, and mask what is too much",
    ),
    (
        r"Boolean value of Tensor with more than one value is ambiguous",
        "`if` asks for one answer, and this is a tile of them. `tl.where` or a mask decides for each",
    ),
    (
        r"Loop-carried variable (\w+) has initial type (.+?) but is re-assigned to (.+?) in loop",
        "`{0}` begins a loop as {1} and comes out as {2}; it must keep its type and shape. "
        "`tl.zeros(shape, tl.float32)` begins as a tile",
    ),
    (r"^name '?(\w+)'? is not defined|^(\w+) is not defined", "the name `{0}` is not defined where the kernel is"),
    (r"exceeds triton maximum tensor numel \((\d+)\)", "a tile has at most {0} numbers, and this one has more"),
    (r"incompatible dimensions at index \d+: (\d+) and (\d+)", "shapes do not fit: {0} and {1}"),
    (r"only tuple comprehensions are supported", "a kernel has no lists. `tl.static_range` unrolls a loop"),
    (r"No module named '(\w+)'", "the kernel needs the module `{0}`, which is not there when it is compiled"),
]


def explain(error: dict, target: Target) -> str:
    """error: as `compile_child.describe` gives it. A sentence."""
    reason = _reason(error, target)
    return reason if reason.endswith((".", "?", "!")) else f"{reason}."


def _reason(error: dict, target: Target) -> str:
    said = _plain(error["message"])
    for pattern, sentence in MEANINGS:
        if found := re.search(pattern, said):
            words = [group for group in found.groups() if group is not None]
            return sentence.format(*words, target=target.name)
    if error["type"] == "PTXASError":
        line = _first(said, r"(error|fatal)\s+:")
        return f"the assembler says: {line.partition('; ')[2] or line}"
    if error["type"] == "Crash":
        return _first(said, "[Ee]rror|ERROR|Assertion") if "\n" in said else said
    if "PassManager::run failed" in said:
        line = _first(error.get("printed", ""), "error:")
        return f"the compiler gave up: {line}"
    lines = said.strip().splitlines() or [error["type"]]
    return lines[0]


def _plain(message: str) -> str:
    """What Triton wraps again: NameError('x is not defined')."""
    found = re.fullmatch(r"\w*(?:Error|Exception)\((['\"])(.*)\1,?\)", message.strip(), re.DOTALL)
    return found[2].replace("\\'", "'") if found else message


def _first(text: str, pattern: str) -> str:
    """The first line with the pattern, or the first line."""
    lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    return next((line for line in lines if re.search(pattern, line)), lines[0] if lines else "no reason given")

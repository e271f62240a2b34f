"""What a kernel's machine code does with memory and tensor cores, counted: NVIDIA's SASS and AMD's assembly.

The counts are of instructions in the text. A loop's body counts once, however often it runs.

An instruction of a warp moves 4 to 16 bytes for each lane. With 16 the fewest instructions, and the fewest requests on
the way, carry the same data; so the first question to a kernel that is bound by memory is how wide its accesses are.
"""

import re
from collections import Counter
from dataclasses import dataclass

WIDE = 16  # bytes a lane; the most there was until sm_100, which also has 32


@dataclass(frozen=True)
class MemoryAccess:
    """Instructions of one kind in one line of the source."""

    kind: str
    """"load", "store", "async copy" (global to shared memory, past the registers), "local load", "local store"."""
    bytes: int
    """That each lane moves with one of them."""
    file: str
    line: int
    """Of the source; 0 if the compiler doesn't say."""
    count: int


@dataclass(frozen=True)
class Instructions:
    """Counts. "16b": 16 bytes a lane, or more."""

    loads_16b: int
    other_loads: int
    stores_16b: int
    other_stores: int
    async_copies_16b: int
    other_async_copies: int
    waits: int
    """For asynchronous copies."""
    bulk_copies: int
    """Whole boxes of a tensor, by an engine of their own (NVIDIA's TMA)."""
    local_loads: int
    """From local memory: where registers are spilled to."""
    local_stores: int
    tensor_cores: dict[str, int]
    """"HMMA", "IMMA", ..., "HGMMA" (sm_90), "UTCMMA" (sm_100), "MFMA", "WMMA" (AMD): how many of each."""
    tf32: int
    """Of those, the ones that round float32 to 10 bits of mantissa."""
    total: int
    accesses: tuple[MemoryAccess, ...]
    """The accesses to memory by line, kind and width, in the order of the lines."""

    @property
    def tensor_core(self) -> int:
        """Tensor-core instructions of all kinds."""
        return sum(self.tensor_cores.values())

    @property
    def tensor_core_kind(self) -> str:
        """The most frequent kind; "" if there are none."""
        return max(self.tensor_cores, key=self.tensor_cores.get, default="")


def count(text: str, backend: str) -> Instructions:
    """The counts of an assembly text. backend: "cuda" for SASS as nvdisasm prints it, "hip" for AMD's assembly."""
    read, classify = (_read_sass, _classify_sass) if backend == "cuda" else (_read_amd, _classify_amd)
    accesses, cores, others, total, tf32 = Counter(), Counter(), Counter(), 0, 0
    for name, operands, file, line in read(text):
        total += 1
        kind, width = classify(name, operands)
        if width:
            accesses[kind, width, file, line] += 1
        elif kind in ("wait", "bulk copy"):
            others[kind] += 1
        elif kind:
            cores[kind] += 1
            tf32 += "TF32" in name.upper() or "xf32" in name
    by_kind = Counter()
    for (kind, width, _, _), number in accesses.items():
        by_kind[kind, width >= WIDE] += number
    return Instructions(
        loads_16b=by_kind["load", True],
        other_loads=by_kind["load", False],
        stores_16b=by_kind["store", True],
        other_stores=by_kind["store", False],
        async_copies_16b=by_kind["async copy", True],
        other_async_copies=by_kind["async copy", False],
        waits=others["wait"],
        bulk_copies=others["bulk copy"],
        local_loads=by_kind["local load", True] + by_kind["local load", False],
        local_stores=by_kind["local store", True] + by_kind["local store", False],
        tensor_cores=dict(cores),
        tf32=tf32,
        total=total,
        accesses=tuple(
            MemoryAccess(kind, width, file, line, number)
            for (kind, width, file, line), number in sorted(accesses.items(), key=lambda one: (one[0][2:], one[0]))
        ),
    )


# NVIDIA: `/*0b50*/  @!P5 LDGSTS.E.BYPASS.128 [R78], [R18.64], P6 ;`, and a comment before it with the source line.
_SASS = re.compile(
    r'//## File "(?P<file>[^"]*)", line (?P<line>\d+)|/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(?P<op>[A-Z][\w.]*)'
)
_SASS_KINDS = {
    "LDG": "load",
    "STG": "store",
    "LDGSTS": "async copy",
    "LDL": "local load",
    "STL": "local store",
    "LDGDEPBAR": "wait",
    "DEPBAR": "wait",
    "UTMALDG": "bulk copy",
    "UTMASTG": "bulk copy",
    "UBLKCP": "bulk copy",
}
_SASS_WIDTHS = {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16, "256": 32}


def _read_sass(text: str):
    file, line = "", 0
    for found in _SASS.finditer(text):
        if found["op"] is None:
            file, line = found["file"], int(found["line"])
        elif found["op"] != "NOP":  # padding behind the end
            yield found["op"], "", file, line


def _classify_sass(name: str, operands: str) -> tuple[str, int]:
    """(kind, bytes a lane), with 0 bytes for what is no access; ("", 0) for all the rest."""
    base, *modifiers = name.split(".")
    kind = _SASS_KINDS.get(base, "")
    if kind in ("wait", "bulk copy"):
        return kind, 0
    if kind:
        return kind, next((_SASS_WIDTHS[one] for one in modifiers if one in _SASS_WIDTHS), 4)
    if base.endswith("MMA") and len(base) > 3:
        return ("UTCMMA" if base.startswith("UTC") else base), 0
    return "", 0


# AMD: `buffer_load_dwordx4 v[8:11], v3, s[4:7], 0 offen`, and `.file` and `.loc` directives for the source lines.
_AMD = re.compile(
    r'^\s+\.file\s+(?P<number>\d+)\s+(?:"(?P<folder>[^"]*)"\s+)?"(?P<file>[^"]*)"'
    r"|^\s+\.loc\s+(?P<of>\d+)\s+(?P<line>\d+)|^\t(?P<op>[a-z]\w*)(?P<operands>[^\n;]*)",
    re.MULTILINE,
)
_AMD_ACCESS = re.compile(r"(global|buffer|flat|scratch)_(load|store)_(lds_)?(\w+)")
_AMD_WIDTHS = [(re.compile(rf"(^|_){pattern}(_|$)"), width) for pattern, width in (
    ("(dwordx4|b128)", 16), ("(dwordx3|b96)", 12), ("(dwordx2|b64)", 8), ("(dword|b32)", 4),
    ("(u|s)?short|[uisb]+16", 2), ("(u|s)?byte|[uisb]+8", 1),
)]  # fmt: skip


def _read_amd(text: str):
    files, file, line = {}, "", 0
    for found in _AMD.finditer(text):
        if found["number"]:
            files[found["number"]] = f"{found['folder']}/{found['file']}" if found["folder"] else found["file"]
        elif found["of"]:
            if found["line"] != "0":  # of no line in particular
                file, line = files.get(found["of"], ""), int(found["line"])
        elif found["op"] != "s_nop":
            yield found["op"], found["operands"], file, line


def _classify_amd(name: str, operands: str) -> tuple[str, int]:
    if found := _AMD_ACCESS.match(name):
        space, kind, lds, rest = found.groups()
        width = next((width for pattern, width in _AMD_WIDTHS if pattern.search(rest)), 4)
        if space == "scratch":
            return f"local {kind}", width
        return ("async copy" if lds or re.search(r"\blds\b", operands) else kind), width
    for kind in ("mfma", "wmma"):
        if name.startswith(
            (f"v_{kind}_", f"v_sw{kind[1:]}", "v_smfmac") if kind == "mfma" else (f"v_{kind}_", "v_swmmac")
        ):
            return kind.upper(), 0
    return "", 0


def resources(usage: str, text: str, backend: str) -> tuple[int, int]:
    """(registers of a thread, bytes of local memory). usage: what `cuobjdump -res-usage` prints; text: the assembly.

    NVIDIA's LOCAL stays 0 even if registers are spilled: it is the stack that grows.
    """
    if backend == "cuda":
        return tuple(int(number) for number in re.search(r"REG:(\d+) STACK:(\d+)", usage).groups())
    registers = re.search(r"\.vgpr_count:\s+(\d+)", text)  # of one file with the matrix cores' own since gfx90a
    scratch = re.search(r"\.private_segment_fixed_size:\s+(\d+)", text)
    return int(registers[1]), int(scratch[1])

"""A compiled kernel for people: what it costs, what could be otherwise, and its code a click away."""

import html as escaping
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pagedlab.gpu.compiled import CompiledKernel

NARROW = {1: 4, 2: 4, 4: 48, 8: 8}
"""Bytes a lane, and how many instructions of one line are no accident. Four bytes may well be one index each."""


def advice(compiled: "CompiledKernel") -> list[str]:
    found, target = compiled.instructions, compiled.target
    said = []
    if compiled.spill_bytes:
        said.append(
            f"{compiled.spill_bytes:,} bytes of each thread do not fit into registers and go through memory. A smaller "
            "tile, more warps or constant strides need fewer registers"
        )
    for verb, kinds in (("read", ("load", "async copy")), ("written", ("store",))):
        narrow = [
            one for one in found.accesses if one.kind in kinds and one.count >= NARROW.get(one.bytes, one.count + 1)
        ]
        if narrow:
            most = max(narrow, key=lambda one: (one.count, -one.bytes))
            others = sorted({one.line for one in narrow} - {most.line})
            also = f" (and line {', '.join(map(str, others))})" if others else ""
            said.append(
                f"{most.bytes} bytes at a time are {verb} instead of 16 in line {most.line}{also}, by {most.count} "
                f"instructions: `{compiled.line(most)}`. The compiler has to know that 16 divides the address: the "
                "last dimension dense, strides that are constants (tl.constexpr) or multiples of 16"
            )
    if re.search(r"\btl\.dot\b", compiled.source) and not found.tensor_core:
        said.append(
            f"`tl.dot` uses no tensor core of {target.name}: it is done by ordinary multiplications. Triton has none "
            'for sm_75, and none for float32 with input_precision="ieee"'
        )
    if found.tf32:
        said.append(
            "float32 products are rounded to TF32, with 10 bits of mantissa; the interpreter does not show that. "
            'input_precision="ieee" keeps all bits, without tensor cores'
        )
    steps = "for " in compiled.source and compiled.num_stages > 1
    can_copy = target.backend == "cuda" and target.arch >= 80
    if can_copy and steps and found.loads_16b >= 8 and not found.async_copies_16b + found.bulk_copies:
        said.append("nothing is fetched ahead: each step of the loop waits for its own loads (no asynchronous copies)")
    return said


def html(compiled: "CompiledKernel") -> str:
    """A table, then the accesses by line, then the code behind a click. No colours: it suits light and dark pages."""
    found, fits = compiled.instructions, compiled.occupancy
    cores = ", ".join(f"{number:,} {kind}" for kind, number in found.tensor_cores.items()) or "none"
    rows = [
        ("warps, stages", f"{compiled.num_warps}, {compiled.num_stages}"),
        ("registers a thread", f"{compiled.registers}"),
        ("spilled", f"{compiled.spill_bytes:,} B" if compiled.spill_bytes else "nothing"),
        ("shared memory a block", f"{compiled.shared_bytes:,} B"),
        ("blocks per SM", f"{fits.blocks_per_sm} ({fits.fraction:.0%} of the warps), limited by {fits.limiter}"),
        ("for more blocks", fits.lift()),
        ("tensor cores", cores),
        ("instructions", f"{found.total:,}"),
    ]
    parts = [f"<b>{_text(compiled.name)}</b> on {compiled.target.name}", _table(rows)]
    parts += [f"<div>⚠ {_code(sentence)}</div>" for sentence in advice(compiled)]
    if found.accesses:
        accesses = [
            (
                access.count,
                access.kind,
                f"{access.bytes} B",
                access.line,
                f"<code>{_text(compiled.line(access))}</code>",
            )
            for access in found.accesses
        ]
        parts.append(_table(accesses, ("instructions", "kind", "a lane", "line", "source"), escape=False))
    assembly = "SASS" if compiled.target.backend == "cuda" else "Assembly"
    for title, code in (("PTX", plain_ptx(compiled.ptx)), (assembly, plain_assembly(compiled))):
        if code:
            shown = f"<pre style='max-height:30em;overflow:auto'>{_text(code)}</pre>"
            parts.append(f"<details><summary>{title}</summary>{shown}</details>")
    return "<div>" + "\n".join(parts) + "</div>"


def plain_assembly(compiled: "CompiledKernel") -> str:
    """The machine code to read: instructions and labels, and the source's line wherever it changes."""
    if compiled.target.backend == "cuda":
        pattern = r'//## File "[^"]*", line (\d+)|^(\.L_\w+:)|/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;'
    else:
        pattern = r"^\s+\.loc\s+\d+\s+(\d+)|^(\.LBB\w+:)|^\t([a-z]\w*[^\n;]*)"
    lines, now = [], None
    for line, label, instruction in re.findall(pattern, compiled.assembly, re.MULTILINE):
        if instruction:
            if instruction not in ("NOP", "s_nop 0"):
                lines.append(f"    {instruction.strip()}")
        elif label:
            lines.append(label)
        elif line not in (now, "0"):
            now = line
            lines.append(f"  // line {line}")
    return "\n".join(lines)


def plain_ptx(ptx: str) -> str:
    """Without what is there for debuggers."""
    code = ptx.split("\t.section\t.debug")[0]
    return "\n".join(
        line for line in code.splitlines() if line.strip() and not re.match(r"\s*(\.loc|\.file|//|\$L__tmp)", line)
    )


def _table(rows, head=(), escape: bool = True) -> str:
    text = _text if escape else str
    left = "style='text-align:left;white-space:nowrap'"
    top = f"<tr>{''.join(f'<th {left}>{name}</th>' for name in head)}</tr>" if head else ""
    body = "".join("<tr>" + "".join(f"<td {left}>{text(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table>{top}{body}</table>"


def _text(value) -> str:
    return escaping.escape(str(value))


def _code(sentence: str) -> str:
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", _text(sentence))

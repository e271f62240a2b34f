"""Compiled kernels as the occupancy explorer shows them: their figures, and what other figures would give.

Everything is counted by `pagedlab.gpu.occupancy`; nothing here knows how blocks share a multiprocessor.
"""

from math import isinf

from pagedlab.cache.recorder import drawable
from pagedlab.gpu.compiled import CompiledKernel
from pagedlab.gpu.gpus import GPUS
from pagedlab.gpu.occupancy import LIMITERS, occupancy
from pagedlab.gpu.targets import Target

KIB = 1024


def gpus_of(target: str) -> str:
    """The GPUs we know of this architecture: "H100, H200"."""
    return ", ".join(gpu.name for gpu in GPUS.values() if gpu.target == target)


def figures(compiled: CompiledKernel) -> dict:
    """What the compiler made, and how many blocks of it share a multiprocessor."""
    found, counts = compiled.occupancy, compiled.instructions
    return {
        "registers": compiled.registers,
        "spill": compiled.spill_bytes,
        "shared": compiled.shared_bytes,
        "blocks": found.blocks_per_sm,
        "warps": found.warps_per_sm,
        "most_warps": compiled.target.max_warps_per_sm,
        "percent": round(100 * found.fraction, 1),
        "limiter": found.limiter,
        "scarcest": list(found.scarcest),
        "lift": found.lift(),
        "limits": [[name, None if isinf(found.limits[name]) else int(found.limits[name])] for name in LIMITERS],
        "wide": counts.loads_16b + counts.async_copies_16b,
        "narrow": counts.other_loads + counts.other_async_copies,
        "tensor": counts.tensor_core,
    }


def by_registers(compiled: CompiledKernel) -> list[list[int]]:
    """[[first, last, blocks], ...]: blocks per multiprocessor if the kernel had so many registers, all else alike."""
    target = compiled.target
    counts = [
        (registers, occupancy(registers, compiled.shared_bytes, compiled.num_warps, target).blocks_per_sm)
        for registers in range(1, target.max_registers_per_thread + 1)
    ]
    return _steps(counts, 1)


def by_shared_memory(compiled: CompiledKernel) -> list[list[int]]:
    """[[first, last, blocks], ...]: the same for bytes of shared memory."""
    target: Target = compiled.target
    # Only the last byte of a unit can make a difference; what is reserved shifts them.
    first = -target.reserved_shared % target.shared_unit
    ends = range(first, target.max_shared_per_block + 1, target.shared_unit)
    ends = sorted({0, *ends, target.max_shared_per_block})
    counts = [(end, occupancy(compiled.registers, end, compiled.num_warps, target).blocks_per_sm) for end in ends]
    return _steps(counts, 0)


def _steps(counts: list[tuple[int, int]], first: int) -> list[list[int]]:
    steps: list[list[int]] = []
    for end, blocks in counts:
        if steps and steps[-1][2] == blocks:
            steps[-1][1] = end
        else:
            steps.append([first if not steps else steps[-1][1] + 1, end, blocks])
    return steps


def blocks_at(steps: list[list[int]], value: int) -> int:
    return next((blocks for first, last, blocks in steps if first <= value <= last), 0)


def in_words(label: str, told: dict) -> str:
    """One kernel in a sentence or two."""
    label = capital(label)
    if told["figures"] is None:
        return f"{label}: {told['error']}"
    f = told["figures"]
    spill = f"{f['spill']:,} B spilled" if f["spill"] else "no spill"
    parts = [f"{label}: {f['registers']} registers a thread, {spill}, {f['shared']:,} B of shared memory a block."]
    if told["error"]:
        return f"{parts[0]} {told['error']}"
    blocks = "1 block fits" if f["blocks"] == 1 else f"{f['blocks']} blocks fit"
    parts.append(
        f"{blocks} on a multiprocessor: {f['warps']} of {f['most_warps']} warps, {f['percent']:g} %. "
        f"Limited by {limiters(f)}. More would take {f['lift']}."
    )
    if f["lift"].startswith("nothing"):
        parts[-1] = parts[-1].replace("More would take", "What would lift it:")
    return " ".join(parts)


def capital(label: str) -> str:
    """ "Yours", "The reference"; a kernel's own name stays as it is."""
    return label[0].upper() + label[1:] if label.startswith(("yours", "the ")) else label


def limiters(told: dict) -> str:
    """ "registers", or "registers and shared memory" when they tie."""
    return " and ".join(told["scarcest"]) or told["limiter"]


def error_text(error: Exception, known: bool) -> str:
    """The first lines of what went wrong; with the kind of error where it is not one of ours."""
    said = drawable(str(error).strip()[:600]) or type(error).__name__
    return said if known else f"{type(error).__name__}: {said}"

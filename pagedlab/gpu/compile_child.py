"""The process in which Triton compiles. `pagedlab.gpu.compiled` starts it; nothing else needs this file.

`python -m pagedlab.gpu.compile_child FOLDER` reads FOLDER/jobs and prints one line of JSON for each job as it is done.
It ends with the process that started it: that one holds the other end of standard input. Torch is never imported.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from pathlib import Path

from pagedlab.gpu import carry
from pagedlab.gpu.compile_jobs import Job


def main(folder: Path) -> None:
    threading.Thread(target=_end_with_the_parent, daemon=True).start()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Triton prints at times; only answers go out
    path, kernels, jobs = pickle.loads((folder / "jobs").read_bytes())
    sys.path[:] = path
    loaded = {}
    for number, job in jobs:
        try:
            if job.kernel not in loaded:
                loaded[job.kernel] = carry.load(kernels[job.kernel])
            answer = compile_job(loaded[job.kernel], job, folder)
        except Exception as error:
            answer = {"error": describe(error, loaded.get(job.kernel))}
        print(json.dumps({"number": number, **answer}), file=answers, flush=True)


def _end_with_the_parent() -> None:
    sys.stdin.buffer.read()
    os.killpg(0, signal.SIGKILL)  # with the assembler it may be running


def compile_job(kernel, job: Job, folder: Path) -> dict:
    """What the compiler has made: texts and numbers, nothing counted yet."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import ASTSource, make_backend

    target = GPUTarget(job.backend, job.arch, job.warp_size)
    signature, constants, attributes = specialize(kernel, job, make_backend(target))
    source = ASTSource(kernel, signature, constants, attributes)
    known = vars(make_backend(target).parse_options({}))
    if unknown := [name for name in job.options if name not in known]:
        raise ValueError(f"there is no option {', '.join(unknown)} for {job.arch}. There are {', '.join(known)}")
    made = triton.compile(source, target=target, options=dict(job.options))
    answer = {
        "name": made.metadata.name,
        "num_warps": made.metadata.num_warps,
        "num_stages": made.metadata.num_stages,
        "shared_bytes": made.metadata.shared,
        "tensor_memory_columns": getattr(made.metadata, "tmem_size", 0) or 0,
    }
    if job.backend == "hip":
        return answer | {"assembly": made.asm["amdgcn"], "ptx": "", "usage": ""}
    binary = folder / "cubin"
    binary.write_bytes(made.asm["cubin"])
    nvidia = triton.knobs.nvidia
    usage = _run(nvidia.cuobjdump.path, "-res-usage", binary)
    # -c: only code. -gi: with the source lines, also those that a helper was called from.
    return answer | {
        "assembly": _run(nvidia.nvdisasm.path, "-c", "-gi", binary),
        "ptx": made.asm["ptx"],
        "usage": usage,
    }


def specialize(kernel, job: Job, backend) -> tuple[dict, dict, dict]:
    """What a launch with these arguments would tell the compiler about them: (types, constants, what is known).

    Triton's own functions decide. A whole number that is 1 becomes a constant, one that 16 divides is known to be
    such, and so is an address. Without hints only the types count.
    """
    from triton.runtime.jit import create_function_from_signature

    if job.backend == "hip":
        # For AMD, Triton also looks whether offsets into a tensor fit into 31 bits, and imports torch for that.
        type(backend).is_within_2gb = staticmethod(lambda tensor: tensor.ptr_range() < 2**31)
    parameters = kernel.params
    before = [(one.do_not_specialize, one.do_not_specialize_on_alignment) for one in parameters]
    try:
        if not job.hints:
            for one in parameters:
                one.do_not_specialize = one.do_not_specialize_on_alignment = True
        bind = create_function_from_signature(kernel.signature, parameters, backend)
    finally:
        for one, (whole, alignment) in zip(parameters, before, strict=True):
            one.do_not_specialize, one.do_not_specialize_on_alignment = whole, alignment
    values, known, _ = bind(**job.arguments)
    types = {name: kind for name, (kind, _) in zip(values, known, strict=True)}
    constants = {(i,): value for i, (name, value) in enumerate(values.items()) if types[name] == "constexpr"}
    attributes = {
        (i,): backend.parse_attr(fact)
        for i, (kind, fact) in enumerate(known)
        if kind != "constexpr" and isinstance(fact, str)
    }
    return types, constants, attributes


def describe(error: Exception, kernel) -> dict:
    """What went wrong and where, as plain data. The innermost cause is the one that says something."""
    from triton.compiler.errors import CompilationError

    chain = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    place = next((one for one in reversed(chain) if isinstance(one, CompilationError)), None)
    said = chain[-1].error_message if chain[-1] is place else str(chain[-1])
    answer = {"type": type(chain[-1]).__name__, "message": said or "", "line": "", "line_number": None, "function": ""}
    if place is not None and hasattr(place.node, "lineno") and place.src:
        answer["line"] = place.src.split("\n")[place.node.lineno - 1].strip()
        for function in carry.reach(kernel):
            if function.src == place.src:
                from triton.runtime.jit import get_jit_fn_file_line

                answer["line_number"] = get_jit_fn_file_line(function)[1] + place.node.lineno - 1
                answer["function"] = function.fn.__name__
    return answer


def _run(*command) -> str:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError(f"{Path(command[0]).name} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


if __name__ == "__main__":
    main(Path(sys.argv[1]))

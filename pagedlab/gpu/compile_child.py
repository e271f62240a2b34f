"""The process in which Triton compiles. `pagedlab.gpu.compiled` starts it; nothing else needs this file.

`python -m pagedlab.gpu.compile_child FOLDER` reads FOLDER/jobs and prints one line of JSON for each job as it is done.
It ends with the process that started it: that one holds the other end of standard input. Torch is never imported.
"""

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

from pagedlab.gpu import carry
from pagedlab.gpu.compile_jobs import Job


def main(folder: Path) -> None:
    threading.Thread(target=_end_with_the_parent, args=(folder,), daemon=True).start()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # Triton prints at times; only answers go out
    path, kernels, jobs = pickle.loads((folder / "jobs").read_bytes())
    sys.path[:] = path
    import triton.compiler  # noqa: F401  the longest part of the beginning

    print(json.dumps({"number": None}), file=answers, flush=True)
    loaded = {}
    for number, packed in jobs:
        job = kernel = None
        try:
            job = carry.load(packed)
            if job.kernel not in loaded:
                loaded[job.kernel] = carry.load(kernels[job.kernel])
            kernel = loaded[job.kernel]
            answer = compile_job(kernel, job, folder)
        except Exception as error:
            answer = {"error": describe(error, kernel)}
        print(json.dumps({"number": number, **answer}), file=answers, flush=True)


def _end_with_the_parent(folder: Path) -> None:
    sys.stdin.buffer.read()
    shutil.rmtree(folder, ignore_errors=True)  # nobody else will
    os.killpg(0, signal.SIGKILL)  # with the assembler it may be running


def compile_job(kernel, job: Job, folder: Path) -> dict:
    """What the compiler has made: texts and numbers, nothing counted yet."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler.compiler import ASTSource

    special = job.special
    source = ASTSource(kernel, special.types, special.constants, special.facts)
    target = GPUTarget(job.target.backend, job.target.arch, job.target.warp_size)
    made = triton.compile(source, target=target, options=dict(job.options))
    answer = {
        "name": made.metadata.name,
        "file": kernel.fn.__code__.co_filename,
        "num_warps": made.metadata.num_warps,
        "num_stages": made.metadata.num_stages,
        "shared_bytes": made.metadata.shared,
        "tensor_memory_columns": getattr(made.metadata, "tmem_size", 0) or 0,
    }
    if job.target.backend == "hip":
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
        for function in carry.reach(kernel) if kernel else ():
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

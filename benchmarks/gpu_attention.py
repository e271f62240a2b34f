"""Attention on a GPU: how near the kernels come to the memory's bandwidth, and what others reach.

Decode, one layer: every sequence's newest token looks at all that its sequence has stored. That is reading, so what
counts is bytes a second, K and V once for each kv head, and how much that is of what a plain copy reaches on the same
GPU. Beside it stand the floor that `pagedlab.gpu.roofline` predicts from the vendor's figures, and other kernels:

    pagedlab     on pages, splits of a fixed size: what backend="triton" does
    filling      the same kernel, with as many splits as fill the GPU
    sdpa, flex   torch's attention and FlexAttention, on keys and values that lie contiguous: no pages at all
    flashinfer   on the same pages, if it is installed
    vllm         its unified attention kernel in Triton, on the same pages, if it is installed

Prefill is multiplying, so there it is FLOP/s, beside torch's attention.

Each way is recorded as a CUDA graph of several calls, so that Python costs nothing, and goes from pool to pool, so that
nothing it reads is still in the L2 cache. The time is the median of the graph's repetitions, divided by its calls.

    python benchmarks/gpu_attention.py [--quick] [--all] [--no-flex]

Results go to benchmarks/results/gpu_attention.json. Without a GPU there is nothing to measure, and it says so.
"""

import argparse
import inspect
import itertools
import json
import math
import platform
import statistics
import subprocess
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F

from pagedlab.cache.accounting import blocks_needed
from pagedlab.gpu.gpus import GPUS
from pagedlab.gpu.roofline import Roofline, decode_roofline, prefill_roofline

RESULTS = Path(__file__).parent / "results" / "gpu_attention.json"
NUM_KV_HEADS, DTYPE = 8, torch.bfloat16
L2_TIMES = 4  # pools together are so many times the L2 cache
MOST_OF_MEMORY = 0.3  # what the pools may take: others hold a contiguous copy beside them
GRAPH_SECONDS = 2e-3


class Shape(NamedTuple):
    batch: int
    context: int
    group_size: int = 4
    head_dim: int = 128
    block_size: int = 16
    num_new: int = 1
    """Tokens of each sequence that attend: 1 is decode."""

    @property
    def num_heads(self) -> int:
        return NUM_KV_HEADS * self.group_size

    @property
    def cache_bytes(self) -> int:
        blocks = self.batch * blocks_needed(self.context, self.block_size)
        return 2 * blocks * NUM_KV_HEADS * self.block_size * self.head_dim * DTYPE.itemsize


def decode_shapes(quick: bool = False, everything: bool = False) -> list[Shape]:
    """Batch against context for one kind of model; then other kinds for a few of those. Or all with all."""
    batches, contexts = (1, 4, 16, 64, 256), (512, 2048, 8192, 32768, 131072)
    kinds = list(itertools.product((1, 4, 8), (64, 128), (16, 64)))
    if quick:
        return [Shape(1, 8192), Shape(16, 2048), Shape(64, 8192), Shape(16, 2048, 8), Shape(16, 2048, 4, 64)]
    if everything:
        return [Shape(b, c, *kind) for kind in kinds for b in batches for c in contexts]
    usual = [Shape(b, c) for b in batches for c in contexts]
    return usual + [Shape(b, c, *kind) for b, c in ((1, 32768), (16, 8192)) for kind in kinds if kind != (4, 128, 16)]


def prefill_shapes(quick: bool = False) -> list[Shape]:
    """Whole prompts, several at once, and the last chunk of a long one."""
    shapes = [Shape(1, 2048, num_new=2048), Shape(1, 8192, num_new=8192)]
    if quick:
        return shapes[:1]
    others = [Shape(16, 1024, num_new=1024), Shape(1, 32768, num_new=2048), Shape(1, 8192, 8, 64, num_new=8192)]
    return shapes + others


def num_pools(cache_bytes: int, l2_bytes: int) -> int:
    """How many pools of this size it takes, gone through in turn, that none is in L2 when its turn comes."""
    return max(1, math.ceil(L2_TIMES * l2_bytes / cache_bytes))


def fits(shape: Shape, free_bytes: int, l2_bytes: int) -> bool:
    return num_pools(shape.cache_bytes, l2_bytes) * shape.cache_bytes <= MOST_OF_MEMORY * free_bytes


def known_gpu(device_name: str, num_sms: int, memory_bytes: int) -> str | None:
    """The name in `pagedlab.gpu.gpus` of what a driver calls, say, "NVIDIA H100 80GB HBM3"; None for others.

    Also None for a variant with other multiprocessors or memory, which has another bandwidth too.
    """
    words = device_name.replace("-", " ").split()
    for name, gpu in GPUS.items():
        same = num_sms == gpu.num_sms and 0.9 < memory_bytes / gpu.memory_bytes <= 1.02
        if all(word in words for word in name.split()) and same:
            return name
    return None


def floor(shape: Shape, gpu: str | None) -> Roofline | None:
    """One layer's least bytes, FLOPs and, if the GPU is known, seconds."""
    if gpu is None:
        return None
    heads = shape.num_heads, NUM_KV_HEADS, shape.head_dim, DTYPE.itemsize, gpu
    if shape.num_new == 1:
        return decode_roofline(shape.batch, shape.context, *heads)
    one = prefill_roofline(shape.num_new, shape.context, *heads)
    return one._replace(bytes=one.bytes * shape.batch, flops=one.flops * shape.batch, seconds=one.seconds * shape.batch)


class Case:
    """Pools of random numbers with blocks in random order, alike but for their content, and queries for each."""

    def __init__(self, shape: Shape, l2_bytes: int, device="cuda"):
        self.shape, self.device = shape, device
        blocks = blocks_needed(shape.context, shape.block_size)
        size = (shape.batch * blocks, NUM_KV_HEADS, shape.block_size, shape.head_dim)
        count = num_pools(shape.cache_bytes, l2_bytes)
        self.pools = [tuple(torch.randn(size, dtype=DTYPE, device=device) for _ in range(2)) for _ in range(count)]
        rows = shape.batch * shape.num_new
        self.queries = torch.randn(count, rows, shape.num_heads, shape.head_dim, dtype=DTYPE, device=device)
        self.tables = torch.randperm(shape.batch * blocks, device=device).view(shape.batch, blocks).int()
        self.lens = torch.full((shape.batch,), shape.context, dtype=torch.int32, device=device)
        self.starts = torch.arange(shape.batch + 1, dtype=torch.int32, device=device) * shape.num_new
        self.scale = shape.head_dim**-0.5

    def contiguous(self, pool: int) -> tuple[torch.Tensor, ...]:
        """Keys and values of all sequences in order, `[batch, num_kv_heads, context, head_dim]`."""
        tables, context = self.tables.long(), self.shape.context
        return tuple(
            cache[tables].transpose(1, 2).flatten(2, 3)[:, :, :context].contiguous() for cache in self.pools[pool]
        )

    def by_sequence(self, pool: int) -> torch.Tensor:
        """Queries, `[batch, num_heads, num_new, head_dim]`."""
        q = self.queries[pool].view(self.shape.batch, self.shape.num_new, -1, self.shape.head_dim)
        return q.transpose(1, 2)


# The ways. Each is given a case, and returns a function of the pool's number; its result has the queries' shape.


def pagedlab(case: Case) -> Callable[[int], torch.Tensor]:
    from pagedlab.kernels import triton_backend

    if case.shape.num_new == 1:
        rest = case.tables, case.lens, case.scale
        return lambda pool: triton_backend.paged_decode(case.queries[pool], *case.pools[pool], *rest)
    rest = case.tables, case.lens, case.starts, case.scale
    return lambda pool: triton_backend.paged_prefill(case.queries[pool], *case.pools[pool], *rest)


def filling(case: Case) -> Callable[[int], torch.Tensor]:
    from pagedlab.kernels import decode, merge
    from pagedlab.kernels.launch import launch
    from pagedlab.kernels.splits import choose_num_splits

    shape = case.shape
    num_sms = torch.cuda.get_device_properties(case.device).multi_processor_count
    work = shape.batch, shape.num_heads, NUM_KV_HEADS, shape.context
    splits = choose_num_splits(*work, tile=256, num_sms=num_sms, blocks_per_sm=4)
    launches = [
        decode.decode_launch(q, *pool, case.tables, case.lens, case.scale, num_splits=splits)
        for q, pool in zip(case.queries, case.pools, strict=True)
    ]

    def run(pool):
        grid, arguments, options = launches[pool]
        launch(decode.paged_decode_kernel, grid, arguments, **options)
        out, lse = arguments["out"], arguments["lse"]
        return out if lse is None else merge.merge_splits(out, lse, DTYPE)

    return run


def sdpa(case: Case) -> Callable[[int], torch.Tensor]:
    from torch.nn.attention.bias import causal_lower_right

    shape, dense = case.shape, [case.contiguous(pool) for pool in range(len(case.pools))]
    if shape.num_new == 1:  # the query heads of a group as rows of one matrix: K and V are read once
        rows = case.queries.view(len(dense), shape.batch, NUM_KV_HEADS, shape.group_size, shape.head_dim)
        return lambda pool: F.scaled_dot_product_attention(rows[pool], *dense[pool]).reshape(case.queries[pool].shape)

    def run(pool):
        whole = shape.num_new == shape.context
        mask = {"is_causal": True} if whole else {"attn_mask": causal_lower_right(shape.num_new, shape.context)}
        out = F.scaled_dot_product_attention(case.by_sequence(pool), *dense[pool], enable_gqa=True, **mask)
        return out.transpose(1, 2).flatten(0, 1)

    return run


def flex(case: Case) -> Callable[[int], torch.Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    torch.compiler.reset()  # each shape is compiled anew, and there is a limit to how often
    compiled = torch.compile(flex_attention, dynamic=False)
    dense = [case.contiguous(pool) for pool in range(len(case.pools))]
    return lambda pool: compiled(case.by_sequence(pool), *dense[pool], enable_gqa=True).reshape(
        case.queries[pool].shape
    )


def flashinfer(case: Case) -> Callable[[int], torch.Tensor]:
    """Its tensor-core path, which is the one for groups; planned once, as for the layers of a model."""
    import flashinfer as library

    shape = case.shape
    per_sequence = case.tables.shape[1]
    indptr = torch.arange(shape.batch + 1, dtype=torch.int32, device=case.device) * per_sequence
    indices = case.tables.flatten().contiguous()
    last = torch.full_like(case.lens, (shape.context - 1) % shape.block_size + 1)
    workspace = torch.zeros(512 * 2**20, dtype=torch.uint8, device=case.device)
    wrapper = library.BatchDecodeWithPagedKVCacheWrapper(
        workspace,
        "HND",
        use_cuda_graph=True,
        use_tensor_cores=shape.group_size > 1,
        paged_kv_indptr_buffer=torch.empty_like(indptr),
        paged_kv_indices_buffer=torch.empty_like(indices),
        paged_kv_last_page_len_buffer=torch.empty_like(last),
    )
    sizes = shape.num_heads, NUM_KV_HEADS, shape.head_dim, shape.block_size
    wrapper.plan(indptr, indices, last, *sizes, q_data_type=DTYPE, kv_data_type=DTYPE)
    return lambda pool: wrapper.run(case.queries[pool], case.pools[pool])


def vllm(case: Case) -> Callable[[int], torch.Tensor]:
    """With its split form for few sequences. Versions take different arguments: each gets those that it names."""
    try:
        from vllm.v1.attention.ops.triton_unified_attention import unified_attention
    except ImportError:
        from vllm.attention.ops.triton_unified_attention import unified_attention

    shape, out = case.shape, torch.empty_like(case.queries[0])
    threshold, segments = 128 // NUM_KV_HEADS, 16  # its own numbers
    scratch = torch.empty(threshold, shape.num_heads, segments, shape.head_dim, device=case.device)
    known = dict(
        out=out,
        cu_seqlens_q=case.starts,
        max_seqlen_q=1,
        seqused_k=case.lens,
        max_seqlen_k=shape.context,
        softmax_scale=case.scale,
        causal=True,
        window_size=(-1, -1),
        block_table=case.tables,
        softcap=0,
        q_descale=None,
        k_descale=None,
        v_descale=None,
        seq_threshold_3D=threshold,
        num_par_softmax_segments=segments,
        softmax_segm_output=scratch,
        softmax_segm_max=scratch[..., 0].contiguous(),
        softmax_segm_expsum=scratch[..., 0].contiguous(),
    )
    rest = {name: known[name] for name in inspect.signature(unified_attention).parameters if name in known}

    def run(pool):
        keys, values = (cache.transpose(1, 2) for cache in case.pools[pool])  # its order of dimensions, in place
        unified_attention(q=case.queries[pool], k=keys, v=values, **rest)
        return out

    return run


DECODE_WAYS = {way.__name__: way for way in (pagedlab, filling, sdpa, flex, flashinfer, vllm)}
PREFILL_WAYS = {way.__name__: way for way in (pagedlab, sdpa)}


# Measuring.


def seconds_a_call(run: Callable[[int], object], pools: int, repeats: int) -> float:
    """The median over `repeats` launches of a graph that goes through all pools, perhaps several times."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for pool in range(pools):
            run(pool)  # compiles
        aside.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for pool in range(pools):
            run(pool)
        end.record()
    torch.cuda.current_stream().wait_stream(aside)
    torch.cuda.synchronize()
    rounds = max(1, round(GRAPH_SECONDS / max(1e-6, start.elapsed_time(end) * 1e-3)))

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(rounds):
            for pool in range(pools):
                run(pool)
    times = []
    for repeat in range(repeats + 2):
        start.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        if repeat >= 2:  # clocks and caches have settled
            times.append(start.elapsed_time(end) * 1e-3)
    return statistics.median(times) / (rounds * pools)


def copy_bandwidth(l2_bytes: int, repeats: int) -> float:
    """Bytes a second of a plain copy, read and written together: what memory gives in practice."""
    size = max(2**30, 8 * L2_TIMES * l2_bytes)
    source, target = torch.zeros(2, size, dtype=torch.uint8, device="cuda")
    return 2 * size / seconds_a_call(lambda _: target.copy_(source), 1, repeats)


def measure(shape: Shape, ways: dict, l2_bytes: int, repeats: int) -> dict[str, float | str]:
    """Seconds a call, or why there are none, for each way. Results are compared with torch's attention."""
    case, found = Case(shape, l2_bytes), {}
    right = sdpa(case)(0).float()
    for name, way in ways.items():
        try:
            run = way(case)
            error = (run(0).reshape_as(right).float() - right).norm() / right.norm()
            if not error < 0.02:
                raise ArithmeticError(f"wrong by {float(error):.1%}")
            found[name] = seconds_a_call(run, len(case.pools), repeats)
        except ImportError:
            found[name] = "not installed"
        except Exception as error:  # somebody else's kernel that does not take this shape must not end the run
            found[name] = f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        run = None
        torch.cuda.empty_cache()
    return found


# Telling.


def versions() -> dict[str, str | None]:
    def version(package):
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return None

    packages = ("torch", "triton", "flashinfer-python", "vllm")
    told = {"python": platform.python_version(), "cuda": torch.version.cuda or torch.version.hip, "driver": None}
    try:
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        told["driver"] = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        pass
    return told | {package: version(package) for package in packages}


def table(rows: Sequence[dict], ways: Sequence[str], copy: float) -> str:
    """Decode: microseconds of ours, its bytes a second and their share of a copy's; the others' time relative to it."""
    others = [way for way in ways if way != "pagedlab"]
    head = f"{'batch':>5} {'context':>7} {'group':>5} {'head':>4} {'block':>5}"
    head += f" {'us':>9} {'GB/s':>6} {'of copy':>7} {'floor':>9}"
    lines = [head + "".join(f" {way:>10}" for way in others)]
    for row in rows:
        shape, times = Shape(**row["shape"]), row["seconds"]
        mine = times["pagedlab"]
        line = f"{shape.batch:>5} {shape.context:>7} {shape.group_size:>5} {shape.head_dim:>4} {shape.block_size:>5}"
        if isinstance(mine, str):
            lines.append(f"{line} {mine}")
            continue
        rate, least = row["bytes"] / mine, row["floor_seconds"]
        floor_us = f"{1e6 * least:.1f}" if least else "-"
        line += f" {1e6 * mine:>9.1f} {rate / 1e9:>6.0f} {rate / copy:>7.0%} {floor_us:>9}"
        lines.append(line + "".join(f" {_ratio(times.get(way), mine):>10}" for way in others))
    return "\n".join(lines)


def prefill_table(rows: Sequence[dict]) -> str:
    head = f"{'batch':>5} {'new':>6} {'context':>7} {'group':>5} {'head':>4}"
    lines = [head + f" {'us':>9} {'TFLOP/s':>7} {'floor':>9} {'sdpa':>7}"]
    for row in rows:
        shape, mine = Shape(**row["shape"]), row["seconds"]["pagedlab"]
        line = f"{shape.batch:>5} {shape.num_new:>6} {shape.context:>7} {shape.group_size:>5} {shape.head_dim:>4}"
        if isinstance(mine, str):
            lines.append(f"{line} {mine}")
            continue
        least = f"{1e6 * row['floor_seconds']:.1f}" if row["floor_seconds"] else "-"
        rate = f"{row['flops'] / mine / 1e12:.0f}"
        lines.append(f"{line} {1e6 * mine:>9.1f} {rate:>7} {least:>9} {_ratio(row['seconds'].get('sdpa'), mine):>7}")
    return "\n".join(lines)


def _ratio(other: float | str | None, mine: float) -> str:
    return f"{other / mine:.2f}x" if isinstance(other, float) else "-"


def described(shape: Shape, gpu: str | None, seconds: dict) -> dict:
    """A row of the results. Bytes and FLOPs depend on the shape alone, whatever GPU they are asked of."""
    least = floor(shape, gpu or next(iter(GPUS)))
    return {
        "shape": shape._asdict(),
        "bytes": least.bytes,
        "flops": least.flops,
        "floor_seconds": least.seconds if gpu else None,
        "seconds": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few shapes")
    parser.add_argument("--all", action="store_true", help="every batch and context with every kind of model")
    parser.add_argument(
        "--no-flex", action="store_true", help="leave out FlexAttention, which compiles for every shape"
    )
    parser.add_argument("--repeats", type=int, default=20, help="of each graph; the median counts")
    parser.add_argument("--output", type=Path, default=RESULTS, help="where the results go")
    options = parser.parse_args()
    if options.repeats < 1:
        parser.error("--repeats must be at least 1")
    if not torch.cuda.is_available():
        print("There is no GPU here that torch can use, so nothing was measured.")
        return
    from pagedlab.gpu import mode

    if mode.is_interpreting():
        parser.error(f"Triton would interpret here: unset {mode.VARIABLE} to measure the GPU")
    options.output.parent.mkdir(parents=True, exist_ok=True)  # now, not after an hour
    if options.output.is_dir():
        parser.error(f"--output is a folder: {options.output}")

    properties = torch.cuda.get_device_properties(0)
    gpu = known_gpu(properties.name, properties.multi_processor_count, properties.total_memory)
    l2_bytes = properties.L2_cache_size + (GPUS[gpu].l3_bytes if gpu else 0)  # all that lies before memory
    copy = copy_bandwidth(l2_bytes, options.repeats)
    told = versions()
    print(f"{properties.name}, torch {told['torch']}, triton {told['triton']}, driver {told['driver']}")
    print(f"A copy moves {copy / 1e9:,.0f} GB/s. Floors: {gpu or 'not known, this GPU is not in pagedlab.gpu.gpus'}\n")
    ways = {name: way for name, way in DECODE_WAYS.items() if not (options.no_flex and name == "flex")}
    results = {"gpu": properties.name, "cache_bytes": l2_bytes, "copy_bytes_per_second": copy, "versions": told}

    for kind, shapes, these in (
        ("decode", decode_shapes(options.quick, options.all), ways),
        ("prefill", prefill_shapes(options.quick), PREFILL_WAYS),
    ):
        rows, left_out = [], 0
        for shape in shapes:
            torch.cuda.empty_cache()
            if not fits(shape, torch.cuda.mem_get_info()[0], l2_bytes):
                left_out += 1
                continue
            try:
                seconds = measure(shape, these, l2_bytes, options.repeats)
            except torch.OutOfMemoryError:  # torch's own attention took more than was reckoned with
                left_out += 1
                continue
            rows.append(described(shape, gpu, seconds))
            print(f"{kind}: {len(rows)} of {len(shapes)}", end="\r", flush=True)
        print(f"{kind}, {DTYPE}, {NUM_KV_HEADS} kv heads; other columns: times as long")
        print(table(rows, list(these), copy) if kind == "decode" else prefill_table(rows))
        print(f"{left_out} of {len(shapes)} shapes do not fit in memory\n" if left_out else "")
        results[kind] = rows
        options.output.write_text(json.dumps(results, indent=1) + "\n")
    print(f"Stored in {options.output}")


if __name__ == "__main__":
    main()

"""Right answers to `decode_roofline` in styles other than ours."""

from pagedlab.gpu.roofline import Roofline
from tests.corpus import right


@right
def one_by_one(num_seqs, seq_len, num_heads, num_kv_heads, head_dim, bytes_per_element, gpu):
    keys = values = num_kv_heads * seq_len * head_dim * bytes_per_element
    q = out = num_heads * head_dim * bytes_per_element
    size = num_seqs * (keys + values + q + out)
    scores = num_heads * seq_len * 2 * head_dim
    sums = num_heads * seq_len * 2 * head_dim
    flops = num_seqs * (scores + sums)
    moving, computing = size / gpu.memory_bandwidth, flops / gpu.fp16_flops
    if computing > moving:
        return Roofline(size, flops, flops / size, computing, "compute")
    return Roofline(size, flops, flops / size, moving, "memory")


@right
def by_the_ridge(num_seqs, seq_len, num_heads, num_kv_heads, head_dim, bytes_per_element, gpu):
    size = 2 * num_seqs * head_dim * bytes_per_element * (seq_len * num_kv_heads + num_heads)
    flops = 4 * num_seqs * num_heads * seq_len * head_dim
    intensity = flops / size
    ridge = gpu.fp16_flops / gpu.memory_bandwidth
    reached = min(gpu.fp16_flops, intensity * gpu.memory_bandwidth)
    return [size, flops, intensity, flops / reached, "memory" if intensity < ridge else "compute"]


@right
def in_floats(num_seqs, seq_len, num_heads, num_kv_heads, head_dim, bytes_per_element, gpu):
    size = float(num_seqs) * bytes_per_element * head_dim * 2.0 * (seq_len * num_kv_heads + num_heads)
    flops = 4.0 * num_seqs * num_heads * seq_len * head_dim
    times = {"memory": size / gpu.memory_bandwidth, "compute": flops / gpu.fp16_flops}
    bound = max(times, key=times.get)
    return size, flops, flops / size, times[bound], bound


@right
def sequence_by_sequence(num_seqs, seq_len, num_heads, num_kv_heads, head_dim, bytes_per_element, gpu):
    size = flops = 0
    for _ in range(num_seqs):
        for _ in range(num_kv_heads):
            size += 2 * seq_len * head_dim * bytes_per_element
        for _ in range(num_heads):
            size += 2 * head_dim * bytes_per_element
            flops += 2 * seq_len * head_dim + 2 * seq_len * head_dim
    seconds = max(size / gpu.memory_bandwidth, flops / gpu.fp16_flops)
    return (
        size,
        flops,
        flops / size,
        seconds,
        "memory" if seconds * gpu.memory_bandwidth <= size * 1.0000001 else "compute",
    )


@right
def with_numpy(num_seqs, seq_len, num_heads, num_kv_heads, head_dim, bytes_per_element, gpu):
    import numpy as np

    size = np.prod([num_seqs, 2, seq_len, num_kv_heads, head_dim, bytes_per_element], dtype=np.int64)
    size += np.prod([num_seqs, 2, num_heads, head_dim, bytes_per_element], dtype=np.int64)
    flops = np.prod([4, num_seqs, num_heads, seq_len, head_dim], dtype=np.int64)
    times = np.array([size / gpu.memory_bandwidth, flops / gpu.fp16_flops])
    return size, flops, flops / size, times.max(), ("memory", "compute")[times.argmax()]


@right
def with_torch(num_seqs, seq_len, num_heads, num_kv_heads, head_dim, bytes_per_element, gpu):
    import torch

    size = 2 * num_seqs * (seq_len * num_kv_heads + num_heads) * head_dim * bytes_per_element
    flops = 4 * num_seqs * seq_len * num_heads * head_dim
    times = torch.tensor([size / gpu.memory_bandwidth, flops / gpu.fp16_flops])
    seconds, which = times.max(0)
    return torch.tensor(size), torch.tensor(flops), torch.tensor(flops / size), seconds, ("memory", "compute")[which]

"""The traps of lesson 09 are traps: each wrong kernel is right on the inputs that come to mind first.

Two sequences of the same length, all blocks full and in order, tensors of their own, a head of 64, Triton's interpreter
as it is. What the check of the exercise does to the same kernels is in test_corpus_09.py.
"""

import pytest
import torch

pytest.importorskip("triton")

from pagedlab.kernels.decode_steps import paged_decode_kernel_step_3
from pagedlab.kernels.launch import launch
from pagedlab.kernels.ops import paged_decode
from tests.corpus import wrong_answers

KERNELS = wrong_answers("paged_decode_kernel")
TRAPS = {name: kernel for name, kernel in KERNELS.items() if hasattr(kernel, "trap")}


def looks_right(kernel) -> bool:
    num_seqs, num_kv_heads, group_size, block_size, head_dim, blocks_each = 2, 2, 4, 16, 64, 4
    generator = torch.Generator().manual_seed(0)

    def randn(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float16)

    q = randn(num_seqs, num_kv_heads * group_size, head_dim)
    key_cache, value_cache = (randn(num_seqs * blocks_each, num_kv_heads, block_size, head_dim) for _ in range(2))
    block_tables = torch.arange(num_seqs * blocks_each, dtype=torch.int32).view(num_seqs, blocks_each)
    seq_lens = torch.full((num_seqs,), blocks_each * block_size, dtype=torch.int32)
    out, scale = torch.zeros_like(q), head_dim**-0.5
    arguments = {"out": out, "q": q, "key_cache": key_cache, "value_cache": value_cache}
    arguments |= {"block_tables": block_tables, "seq_lens": seq_lens, "scale": scale}
    arguments |= {"q_seq_stride": q.stride(0), "q_head_stride": q.stride(1)}
    arguments |= {"out_seq_stride": out.stride(0), "out_head_stride": out.stride(1)}
    arguments["table_stride"] = block_tables.stride(0)
    for name, cache in (("key", key_cache), ("value", value_cache)):
        block, head, slot, _ = cache.stride()
        arguments |= {f"{name}_block_stride": block, f"{name}_head_stride": head, f"{name}_slot_stride": slot}
    arguments |= {"GROUP_SIZE": group_size, "BLOCK_SIZE": block_size, "HEAD_DIM": head_dim}
    arguments |= {"ROWS": 16, "TILE": 16, "TILE_DIM": head_dim}
    launch(kernel, (num_seqs, num_kv_heads), arguments)
    want = paged_decode(q.float(), key_cache.float(), value_cache.float(), block_tables, seq_lens, backend="torch")
    return torch.allclose(out.float(), want, atol=3e-3)


def test_there_are_many():
    assert len({number for number, _ in (kernel.trap for kernel in TRAPS.values())}) >= 15


@pytest.mark.parametrize("name", TRAPS)
def test_a_naive_test_passes(name):
    assert looks_right(TRAPS[name])


def test_the_naive_test_can_fail():
    assert looks_right(paged_decode_kernel_step_3)
    assert not looks_right(KERNELS["forgets_to_scale"])

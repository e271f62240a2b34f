"""Launches that the tile viewer's tests look at: traced in Triton's interpreter, small enough to check by hand."""

from pagedlab.gpu import mode

mode.choose()

import torch  # noqa: E402

from pagedlab.gpu.trace import trace  # noqa: E402
from pagedlab.kernels.decode import decode_launch, paged_decode_kernel  # noqa: E402
from pagedlab.kernels.write import kv_write_kernel, write_launch  # noqa: E402

BLOCK_TABLES = torch.tensor([[7, 2, 9, -1], [4, -1, -1, -1], [1, 10, 5, 0]], dtype=torch.int32)
SEQ_LENS = torch.tensor([40, 9, 64], dtype=torch.int32)
TABLES = {"block_tables": BLOCK_TABLES, "seq_lens": SEQ_LENS}
HEAD_DIM = 32


def caches(num_blocks=12, num_kv_heads=2, block_size=16):
    shape = num_blocks, num_kv_heads, block_size, HEAD_DIM
    numbers = torch.Generator().manual_seed(5)
    return tuple(torch.randn(shape, generator=numbers).half() for _ in range(2))


def decode(tile=32, block_tables=BLOCK_TABLES, seq_lens=SEQ_LENS, kv=None, **choices):
    """Three sequences, 2 KV heads with 4 query heads each."""
    key_cache, value_cache = kv or caches()
    q = torch.randn(len(seq_lens), 8, HEAD_DIM, generator=torch.Generator().manual_seed(6)).half()
    q = q[:, : 4 * key_cache.shape[1]]
    grid, arguments, _ = decode_launch(q, key_cache, value_cache, block_tables, seq_lens, tile=tile, **choices)
    return trace(paged_decode_kernel, grid, arguments)


def write(slots=(7 * 16 + 3, -1, 2 * 16, 9 * 16 + 15), programs=None):
    key_cache, value_cache = caches()
    keys, values = (torch.zeros(len(slots), 2, HEAD_DIM).half() for _ in range(2))
    grid, arguments, _ = write_launch(keys, values, key_cache, value_cache, list(slots))
    return trace(kv_write_kernel, grid, arguments, programs=programs)

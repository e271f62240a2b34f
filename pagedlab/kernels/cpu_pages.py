"""What compiled attention is told about the pages, and how it writes what it found."""

import numpy as np

from pagedlab.kernels.cpu_numbers import compiled, write
from pagedlab.kernels.cpu_threads import arguments_of

ANY = 1 << 60  # a length for memory that is reached through strides

Pages = arguments_of(
    "Pages",
    "keys key_block key_head key_token  values value_block value_head value_token  block_size head_dim num_kv_heads "
    "tables table_row lens  q q_token q_head  out num_heads  starts tiles tile_tokens  parts part_lse num_pieces",
    "scale",
)
"""Addresses, strides (in elements) and sizes, as in `ops.py`.

tiles: for a prefill, `[tiles, 3]`: a sequence, its first query's place among all queries, and that query's position.
"""


@compiled
def write_row(out, start, head_dim, value_sums, first, weight_sum):
    """The weighted mean of the values, rounded to the type of `out`. Zeros for a query that saw nothing."""
    share = np.float32(1) / weight_sum if weight_sum != 0 else np.float32(0)
    to, sums = out[start : start + head_dim], value_sums[first : first + head_dim]
    for d in range(head_dim):
        write(to, d, sums[d] * share)

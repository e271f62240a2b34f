"""A weight matrix, kept in the layout the CPU multiplies fastest.

The plain path is one line, `F.linear(x, weight)`. The fast paths do the same arithmetic on a weight that was rearranged
once, in advance, into what their inner loop reads ("packing"). At one to a few dozen rows, which is what decoding is,
that is worth a factor: see `benchmarks/linear.py`. Of those that work here the first is taken:

    "tiles"   pagedlab's own product (`pagedlab.kernels.gemm`): processors with AVX512, for bfloat16 with AVX512-BF16
    "onednn"  the one in PyTorch, through operators that are a private part of it
    "plain"   `F.linear`

Either packed kind is tried once per dtype, compared with the plain path, and left alone where it is missing or wrong.
"""

import functools

import torch
import torch.nn.functional as F

from pagedlab.kernels import gemm
from pagedlab.model import pointwise


class Linear:
    """`y = x @ weight.T`. weight: `[out_features, in_features]`; x: `[..., in_features]`; no bias, as in Llama.

    fast: True takes the fastest kind, False the plain one; a kind's name takes that one if it works here, else the
    plain one (for comparing them). Only one form of the weight is kept, packed or plain, never both.
    """

    def __init__(self, weight: torch.Tensor, fast: bool | str = True):
        self.out_features, self.in_features = weight.shape
        self.kind = _choose(weight, fast)
        self.weight = _KINDS[self.kind][0](weight)

    @property
    def packed(self) -> bool:
        return self.kind != "plain"

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return _KINDS[self.kind][1](x, self.weight)

    @property
    def has_rows(self) -> bool:
        """Whether `rows` works: what oneDNN has packed is in its own order."""
        return self.kind != "onednn"

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Rows of the weight, `[num_indices, in_features]`: how token ids become vectors. indices: 1-D, integers."""
        if self.kind == "tiles":
            return gemm.rows(self.weight, indices)
        return F.embedding(indices, self.weight)


class GatedLinear:
    """`y = silu(x @ gate.T) * (x @ up.T)`, the first half of a SwiGLU network.

    gate, up: `[out_features, in_features]`; x: `[num_tokens, in_features]`.

    With tiles the two products and the gate are one pass: gate and up of a result are in registers at the same time,
    and nothing but the result is written. Else it is one product of twice the width, and then the gate.
    """

    def __init__(self, gate: torch.Tensor, up: torch.Tensor, fast: bool | str = True):
        self.out_features, self.in_features = gate.shape
        self.tiles = _choose(gate, fast) == "tiles"
        self.weight = gemm.pack_gated(gate, up) if self.tiles else Linear(torch.cat([gate, up]), fast)

    @property
    def packed(self) -> bool:
        return self.tiles or self.weight.packed

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return gemm.multiply(x, self.weight) if self.tiles else pointwise.silu_and_multiply(self.weight(x))


@functools.cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether oneDNN's packed weights work here for this dtype, and agree with `F.linear`."""
    with torch.no_grad():
        weight = torch.linspace(-1, 1, 48 * 32).view(48, 32).to(dtype)
        x = torch.linspace(-1, 1, 3 * 32).view(3, 32).to(dtype)
        try:
            result = _multiply_packed(x, _pack(weight))
        except (AttributeError, RuntimeError, NotImplementedError):  # no such operator, or not for this dtype
            return False
        return torch.allclose(result.float(), F.linear(x, weight).float(), rtol=0.02, atol=0.02)


def _choose(weight: torch.Tensor, fast: bool | str) -> str:
    if isinstance(fast, str) and fast not in _KINDS:
        raise ValueError(f"fast={fast!r}: expected True, False or one of {', '.join(map(repr, _KINDS))}")
    if fast in (True, "tiles") and gemm.packable(weight):
        return "tiles"
    if fast in (True, "onednn") and weight.device.type == "cpu" and can_pack(weight.dtype):
        return "onednn"
    return "plain"


def _pack(weight: torch.Tensor) -> torch.Tensor:
    rows_expected = 16  # a hint; the packed weight serves any number of rows
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows_expected)


def _multiply_packed(x: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")


_KINDS = {
    "tiles": (gemm.pack, gemm.multiply),
    "onednn": (lambda weight: _pack(weight), lambda x, weight: _multiply_packed(x, weight)),
    "plain": (lambda weight: weight, F.linear),
}
"""How to pack a weight, and how to multiply by it."""

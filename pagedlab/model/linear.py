"""A weight matrix, kept in the layout the CPU multiplies fastest.

The plain path is one line, `F.linear(x, weight)`. The fast path does the same arithmetic through oneDNN, which wants
the weight rearranged once, in advance, into blocks that fit its inner loop ("packing"). At one to a few dozen rows,
which is what decoding is, that is worth a factor: see `benchmarks/linear.py`.

The packing operators are private parts of PyTorch. So they are tried once per dtype, compared with the plain path, and
left alone where they are missing or wrong.
"""

import functools

import torch
import torch.nn.functional as F


class Linear:
    """`y = x @ weight.T`. weight: `[out_features, in_features]`; x: `[..., in_features]`; no bias, as in Llama.

    `fast=True` packs the weight where this machine can. Only one form is kept, packed or plain, never both.
    """

    def __init__(self, weight: torch.Tensor, fast: bool = True):
        self.out_features, self.in_features = weight.shape
        self.packed = fast and weight.device.type == "cpu" and can_pack(weight.dtype)
        self.weight = _pack(weight) if self.packed else weight

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return _multiply_packed(x, self.weight) if self.packed else F.linear(x, self.weight)


@functools.cache
def can_pack(dtype: torch.dtype) -> bool:
    """Whether packed weights work here for this dtype, and agree with `F.linear`."""
    with torch.no_grad():
        weight = torch.linspace(-1, 1, 48 * 32).view(48, 32).to(dtype)
        x = torch.linspace(-1, 1, 3 * 32).view(3, 32).to(dtype)
        try:
            result = _multiply_packed(x, _pack(weight))
        except (AttributeError, RuntimeError, NotImplementedError):  # no such operator, or not for this dtype
            return False
        return torch.allclose(result.float(), F.linear(x, weight).float(), rtol=0.02, atol=0.02)


def _pack(weight: torch.Tensor) -> torch.Tensor:
    rows_expected = 16  # a hint; the packed weight serves any number of rows
    return torch.ops.mkldnn._reorder_linear_weight(weight.contiguous(), rows_expected)


def _multiply_packed(x: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
    return torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")

"""float32 and bfloat16 in compiled code.

A bfloat16 is the upper half of a float32, so reading one is a shift. Numba has no such type: tensors of it are seen as
uint16, and everything is summed in float32.
"""

import math

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic, overload

SEEN_AS = {torch.float32: np.float32, torch.bfloat16: np.uint16}
"""The dtypes that the compiled kernels read, and what they see them as."""

SUMS = {"contract", "reassoc", "nsz"}
"""What LLVM may do to a sum: change its order, so that several lanes can add at once. NaN and infinity stay what they
are. Used only where the order does not matter; `exp` below depends on its own."""


@intrinsic
def _bits_to_float(typingctx, bits):
    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def _float_to_bits(typingctx, number):
    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], ir.IntType(32))

    return types.int32(types.float32), generate


def read(number):
    """A stored number as float32."""


@overload(read, inline="always")
def _read(number):
    if number == types.uint16:
        return lambda number: _bits_to_float(np.int32(np.uint32(number) << np.uint32(16)))
    return lambda number: number


def write(row, index, number):
    """`row[index] = number`, rounded to the row's type: to nearest, to even when between two."""


@overload(write, inline="always")
def _write(row, index, number):
    if row.dtype == types.uint16:

        def write_bfloat16(row, index, number):
            bits = np.uint32(_float_to_bits(number))
            rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
            row[index] = rounded if number == number else np.uint32(0x7FC0)  # NaN stays NaN

        return write_bfloat16

    def write_float32(row, index, number):
        row[index] = number

    return write_float32


@njit(fastmath={"contract"})
def exp(x):
    """e ** x for a float32 that is not above 88. No branches and no library call, so that loops over it use all lanes.

    x = n ln 2 + r with |r| <= ln 2 / 2. e ** r is Taylor's series up to r ** 7 (the next is below 1e-8), and 2 ** n
    goes into the exponent's bits. ln 2 comes in two parts, the first with so few digits that n times it is exact.
    """
    x = max(x, np.float32(-87.0))  # e ** -87 is 1e-38, as good as nothing; NaN stays NaN
    n = math.floor(x * np.float32(1.44269504) + np.float32(0.5))
    r = (x - n * np.float32(0.693359375)) - n * np.float32(-2.12194440e-4)
    power = np.float32(1 / 5040)
    power = power * r + np.float32(1 / 720)
    power = power * r + np.float32(1 / 120)
    power = power * r + np.float32(1 / 24)
    power = power * r + np.float32(1 / 6)
    power = power * r + np.float32(1 / 2)
    power = power * r + np.float32(1)
    power = power * r + np.float32(1)
    return power * _bits_to_float(np.int32((np.int32(n) + np.int32(127)) << np.int32(23)))

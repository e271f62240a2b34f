"""float32 and bfloat16 in compiled code.

A bfloat16 is the upper half of a float32, so reading one is a shift. Numba has no such type: tensors of it are seen as
uint16, and everything is summed in float32.
"""

import math

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, overload

READABLE = (torch.float32, torch.bfloat16)
"""The dtypes that compiled code reads."""

compiled = njit(error_model="numpy")  # a division by zero is infinity, as in torch, and needs no branch
compiled_sum = njit(error_model="numpy", fastmath={"contract", "reassoc", "nsz"})
"""For loops that sum: the order may change, so that several lanes add at once. NaN and infinity stay what they are."""
compiled_max = njit(error_model="numpy", fastmath={"nnan", "nsz"})  # NaN need not be found: the sum of weights has it


@intrinsic
def bits_to_float(typingctx, bits):
    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], ir.FloatType())

    return types.float32(types.int32), generate


@intrinsic
def float_to_bits(typingctx, number):
    def generate(context, builder, signature, args):
        return builder.bitcast(args[0], ir.IntType(32))

    return types.int32(types.float32), generate


@intrinsic
def prefetch(typingctx, array, index):
    """Start to bring `array[index]` near, one cache line of 64 bytes, without waiting for it."""

    def generate(context, builder, signature, args):
        data = context.make_array(array)(context, builder, args[0]).data
        address = builder.bitcast(builder.gep(data, [args[1]]), cgutils.voidptr_t)
        int32 = ir.IntType(32)
        function = builder.module.declare_intrinsic(
            "llvm.prefetch", [cgutils.voidptr_t], ir.FunctionType(ir.VoidType(), [cgutils.voidptr_t, *[int32] * 3])
        )
        builder.call(function, [address, int32(0), int32(2), int32(1)])  # to read, into the second cache, data
        return context.get_dummy_value()

    return types.void(array, index), generate


def read(number):
    """A stored number as float32."""


@overload(read)
def _read(number):
    if number == types.uint16:
        return lambda number: bits_to_float(np.int32(np.uint32(number) << np.uint32(16)))
    return lambda number: number


def write(row, index, number):
    """`row[index] = number`, rounded to the row's type: to nearest, to even when between two."""


@overload(write)
def _write(row, index, number):
    if row.dtype == types.uint16:

        def write_bfloat16(row, index, number):
            bits = np.uint32(float_to_bits(number))
            rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
            row[index] = rounded if number == number else np.uint32(0x7FC0)  # NaN stays NaN

        return write_bfloat16

    def write_float32(row, index, number):
        row[index] = number

    return write_float32


@njit(error_model="numpy", fastmath={"contract"})
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
    return power * bits_to_float(np.int32((np.int32(n) + np.int32(127)) << np.int32(23)))

"""Words for writing LLVM's instructions: what `cpu_lanes` and `gemm_tile` are made of.

These functions run when code is made, not when it runs: each adds instructions at the builder's place, and returns the
value that they will have. A vector is 16 numbers of 32 bits, one register of AVX-512 and two or four of others.
"""

from llvmlite import ir
from numba.core import cgutils

LANES = 16

int8, int16, int32, int64, float32 = *(ir.IntType(bits) for bits in (8, 16, 32, 64)), ir.FloatType()
floats, integers, halves = (ir.VectorType(kind, LANES) for kind in (float32, int32, int16))


def constant(number):
    """The same number in all lanes."""
    return ir.Constant(floats, [ir.Constant(float32, number)] * LANES)


def everywhere(builder, number):
    """One number in all lanes."""
    vector = ir.VectorType(number.type, LANES)
    nothing = ir.Constant(vector, ir.Undefined)
    first = builder.insert_element(nothing, number, int32(0))
    return builder.shuffle_vector(first, nothing, ir.Constant(integers, [0] * LANES))


def first_lanes(builder, count):
    """A mask of so many lanes (int64): none for 0 or less, all for 16 or more."""
    lanes = ir.Constant(ir.VectorType(int64, LANES), list(range(LANES)))
    return builder.icmp_signed("<", lanes, everywhere(builder, count))


def call(builder, name, result, *arguments):
    """An instruction that LLVM treats as a function."""
    function_type = ir.FunctionType(result, [argument.type for argument in arguments])
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), arguments)


def fma(builder, x, y, total):
    """`x * y + total`, rounded once."""
    return call(builder, "llvm.fma.v16f32", floats, x, y, total)


def shuffle(builder, x, y, lanes):
    """Lanes of two vectors of one type, those of `y` counted on from those of `x`."""
    return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(int32, len(lanes)), lanes))


def to_bfloat16(builder, numbers):
    """Rounded to nearest, to even when between two. Needs AVX512-BF16."""
    return call(builder, "llvm.x86.avx512bf16.cvtneps2bf16.512", halves, numbers)


def exp(builder, x):
    """e ** x for every lane; 0 below -87, where a float32 has almost nothing left, and infinity at 89. NaN stays.

    x = n ln 2 + r with |r| <= ln 2 / 2: the series up to r ** 7 gives e ** r, and n goes into the exponent's bits.
    ln 2 comes in two parts, the first so short that n times it is exact.
    """
    low = builder.fcmp_ordered("<", x, constant(-87.0))
    x = builder.select(low, constant(-87.0), x)
    n = call(builder, "llvm.rint.v16f32", floats, builder.fmul(x, constant(1.44269504)))
    r = fma(builder, n, constant(-0.693359375), x)
    r = fma(builder, n, constant(2.12194440e-4), r)
    power = constant(1 / 5040)
    for coefficient in (1 / 720, 1 / 120, 1 / 24, 1 / 6, 1 / 2, 1.0, 1.0):
        power = fma(builder, power, r, constant(coefficient))
    exponent = builder.add(builder.fptosi(n, integers), ir.Constant(integers, [127] * LANES))
    two_to_n = builder.bitcast(builder.shl(exponent, ir.Constant(integers, [23] * LANES)), floats)
    return builder.select(low, constant(0.0), builder.fmul(power, two_to_n))

"""Sixteen float32 numbers as one: what a vector register of the processor holds, or two or four of them together.

A compiler finds these by itself in most loops over rows. Not where it matters most here, sums that stay in registers
while a loop goes over tokens: there the code says so. Arrays are one-dimensional, float32 or bfloat16 seen as uint16;
an index is that of the first of 16 neighbours, and nobody checks it.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

LANES = 16

_float32, _int32, _uint16 = ir.FloatType(), ir.IntType(32), ir.IntType(16)
_lanes, _bits, _halves = (ir.VectorType(kind, LANES) for kind in (_float32, _int32, _uint16))


class Lanes(types.Type):
    def __init__(self):
        super().__init__("Lanes")


lanes = Lanes()


@register_model(Lanes)
class _Model(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, _lanes)


@intrinsic
def load(typingctx, array, index):
    """`array[index : index + 16]` as float32."""

    def generate(context, builder, signature, args):
        if array.dtype == types.uint16:
            halves = builder.load(_address(context, builder, array, args, _halves), align=2)
            bits = builder.shl(builder.zext(halves, _bits), ir.Constant(_bits, [16] * LANES))
            return builder.bitcast(bits, _lanes)
        return builder.load(_address(context, builder, array, args, _lanes), align=4)

    return lanes(array, types.int64), generate


@intrinsic
def store(typingctx, array, index, numbers):
    """`array[index : index + 16] = numbers`; array is float32."""

    def generate(context, builder, signature, args):
        builder.store(args[2], _address(context, builder, array, args, _lanes), align=4)
        return context.get_dummy_value()

    return types.void(array, types.int64, numbers), generate


@intrinsic
def splat(typingctx, number):
    """The same number 16 times."""

    def generate(context, builder, signature, args):
        first = builder.insert_element(ir.Constant(_lanes, ir.Undefined), args[0], _int32(0))
        return builder.shuffle_vector(first, first, ir.Constant(_bits, [0] * LANES))

    return lanes(types.float32), generate


@intrinsic
def multiply_add(typingctx, x, y, total):
    """`x * y + total`, rounded once."""

    def generate(context, builder, signature, args):
        kind = ir.FunctionType(_lanes, [_lanes] * 3)
        return builder.call(cgutils.get_or_insert_function(builder.module, kind, f"llvm.fma.v{LANES}f32"), args)

    return lanes(x, y, total), generate


@intrinsic
def add(typingctx, x, y):
    """`x + y`"""
    return lanes(x, y), lambda context, builder, signature, args: builder.fadd(*args)


@intrinsic
def sum_of(typingctx, x):
    """The sum of all 16: halves are added to each other, always in the same order."""

    def generate(context, builder, signature, args):
        total, size = args[0], LANES
        while size > 1:
            size //= 2
            first, second = (
                ir.Constant(ir.VectorType(_int32, size), [start + i for i in range(size)]) for start in (0, size)
            )
            total = builder.fadd(
                builder.shuffle_vector(total, total, first), builder.shuffle_vector(total, total, second)
            )
        return builder.extract_element(total, _int32(0))

    return types.float32(x), generate


def _address(context, builder, array, args, kind):
    data = context.make_array(array)(context, builder, args[0]).data
    return builder.bitcast(builder.gep(data, [args[1]]), kind.as_pointer())

"""Sixteen float32 numbers as one: what a vector register of the processor holds, or two or four of them together.

A compiler finds these by itself in most loops over rows. Not where it matters most here, sums that stay in registers
while a loop goes over tokens: there the code says so. Arrays are one-dimensional, float32 or bfloat16 seen as uint16;
an index is that of the first of 16 neighbours, and nobody checks it.
"""

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, register_model

from pagedlab.kernels import cpu_ir
from pagedlab.kernels.cpu_ir import LANES, floats, halves, int16, int32, integers


class Lanes(types.Type):
    def __init__(self):
        super().__init__("Lanes")


lanes = Lanes()


@register_model(Lanes)
class _Model(models.PrimitiveModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, floats)


@intrinsic
def load(typingctx, array, index):
    """`array[index : index + 16]` as float32."""

    def generate(context, builder, signature, args):
        if array.dtype == types.uint16:
            numbers = builder.load(_address(context, builder, array, args, halves), align=2)
            bits = builder.shl(builder.zext(numbers, integers), ir.Constant(integers, [16] * LANES))
            return builder.bitcast(bits, floats)
        return builder.load(_address(context, builder, array, args, floats), align=4)

    return lanes(array, types.int64), generate


@intrinsic
def store(typingctx, array, index, numbers):
    """`array[index : index + 16] = numbers`. Into bfloat16 they are rounded, which needs AVX512-BF16."""

    def generate(context, builder, signature, args):
        if array.dtype == types.uint16:
            numbers = cpu_ir.to_bfloat16(builder, args[2])
            builder.store(numbers, _address(context, builder, array, args, halves), align=2)
        else:
            builder.store(args[2], _address(context, builder, array, args, floats), align=4)
        return context.get_dummy_value()

    return types.void(array, types.int64, numbers), generate


@intrinsic
def copy(typingctx, array, index, count, out, to):
    """`out[to : to + count] = array[index : index + count]`; both of one type, any count, not overlapping."""

    def generate(context, builder, signature, args):
        source, target = (
            context.make_array(kind)(context, builder, value).data for kind, value in ((array, args[0]), (out, args[3]))
        )
        source, target = builder.gep(source, [args[1]]), builder.gep(target, [args[4]])
        cgutils.raw_memcpy(builder, target, source, args[2], context.get_abi_sizeof(context.get_data_type(array.dtype)))
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64, out, types.int64), generate


@intrinsic
def splat(typingctx, number):
    """The same number 16 times."""
    return lanes(types.float32), lambda context, builder, signature, args: cpu_ir.everywhere(builder, *args)


@intrinsic
def multiply_add(typingctx, x, y, total):
    """`x * y + total`, rounded once."""
    return lanes(x, y, total), lambda context, builder, signature, args: cpu_ir.fma(builder, *args)


@intrinsic
def add(typingctx, x, y):
    """`x + y`"""
    return lanes(x, y), lambda context, builder, signature, args: builder.fadd(*args)


@intrinsic
def exp_of(typingctx, x):
    """e ** x, for every lane; 0 below -87."""
    return lanes(x), lambda context, builder, signature, args: cpu_ir.exp(builder, *args)


@intrinsic
def larger(typingctx, x, y):
    """The larger of two, for every lane. NaN in `x` is passed over."""

    def generate(context, builder, signature, args):
        return _larger(builder, *args)

    return lanes(x, y), generate


@intrinsic
def keep(typingctx, x, count, other):
    """The first `count` lanes of `x`, and the rest of `other`: all of it when count is negative."""

    def generate(context, builder, signature, args):
        return builder.select(cpu_ir.first_lanes(builder, args[1]), args[0], args[2])

    return lanes(x, types.int64, other), generate


@intrinsic
def sum_of(typingctx, x):
    """The sum of all 16: halves are added to each other, always in the same order."""
    return types.float32(x), lambda context, builder, signature, args: _fold(builder, args[0], builder.fadd)


@intrinsic
def largest_of(typingctx, x):
    """The largest of all 16."""

    def generate(context, builder, signature, args):
        return _fold(builder, args[0], lambda first, second: _larger(builder, first, second))

    return types.float32(x), generate


@intrinsic
def transpose_words(typingctx, array, index, stride, out, to, out_stride):
    """`out[to + i * out_stride + j] = array[index + j * stride + i]` for i and j up to 16: float32, or any 4 bytes.

    Four rounds: single lanes change places between neighbouring rows, then pairs, fours, and eights.
    """

    def generate(context, builder, signature, args):
        index, stride, to, out_stride = args[1], args[2], args[4], args[5]
        places = [builder.add(index, builder.mul(stride, stride.type(j))) for j in range(LANES)]
        rows = [builder.load(_address(context, builder, array, (args[0], place), floats), align=4) for place in places]
        for size in (1, 2, 4, 8):
            upper = [lane + LANES - size if lane & size else lane for lane in range(LANES)]
            lower = [lane + LANES if lane & size else lane + size for lane in range(LANES)]
            for i in range(LANES):
                if not i & size:
                    pair = rows[i], rows[i + size]
                    rows[i], rows[i + size] = (cpu_ir.shuffle(builder, *pair, chosen) for chosen in (upper, lower))
        for i, row in enumerate(rows):
            place = builder.add(to, builder.mul(out_stride, out_stride.type(i)))
            builder.store(row, _address(context, builder, out, (args[3], place), floats), align=4)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64, out, types.int64, types.int64), generate


@intrinsic
def pair_up(typingctx, array, index, stride, out, to):
    """32 numbers of one row and 32 of the next, `stride` further on, as 32 pairs; for arrays of bfloat16."""

    def generate(context, builder, signature, args):
        wide = ir.VectorType(int16, 2 * LANES)
        places = args[1], builder.add(args[1], args[2])
        rows = [builder.load(_address(context, builder, array, (args[0], place), wide), align=2) for place in places]
        for half in range(2):
            lanes = [lane + row * 2 * LANES for lane in range(half * LANES, (half + 1) * LANES) for row in range(2)]
            place = builder.add(args[4], args[4].type(half * 2 * LANES))
            pairs = cpu_ir.shuffle(builder, *rows, lanes)
            builder.store(pairs, _address(context, builder, out, (args[3], place), wide), align=2)
        return context.get_dummy_value()

    return types.void(array, types.int64, types.int64, out, types.int64), generate


@intrinsic
def address_of(typingctx, array):
    """Where an array's first number lies, for `gemm_tile`."""

    def generate(context, builder, signature, args):
        data = context.make_array(array)(context, builder, args[0]).data
        return builder.ptrtoint(data, cpu_ir.int64)

    return types.int64(array), generate


def _larger(builder, x, y):
    return builder.select(builder.fcmp_ordered(">", y, x), y, x)


def _fold(builder, x, combine):
    """All lanes in one number: the second half with the first, until there is one."""
    size = LANES
    while size > 1:
        size //= 2
        x = combine(*(cpu_ir.shuffle(builder, x, x, [start + i for i in range(size)]) for start in (0, size)))
    return builder.extract_element(x, int32(0))


def _address(context, builder, array, args, kind):
    data = context.make_array(array)(context, builder, args[0]).data
    return builder.bitcast(builder.gep(data, [args[1]]), kind.as_pointer())

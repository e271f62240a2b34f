"""The inner loop of a matrix product: one tile of the result, held in registers from beginning to end.

A tile is up to 12 rows by 32 columns. Its sums never leave the registers while the loop walks along the inner
dimension; every step loads 32 columns of the weight once and uses them for all the rows. That is the whole trick: with
12 rows, 24 registers hold sums, 2 hold weights and 1 a number of x, of the 32 there are, and a weight that came from
memory is used 12 times. With one row, the product takes as long as memory takes to hand over the weight.

Compilers don't find this form in plain loops, and numba has no bfloat16. So the functions below write the instructions
(LLVM's, which numba turns into machine code), in Python loops that run when the code is made: `_tile` is the loop to
read, a number type adds its four instructions, and `_any_tile` has a tile for each number of rows.

A sum is taken in the same order in every tile: a row's result does not depend on how many rows come with it.

Sources: the tile is the inner kernel of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication"
(2008), section 6; the bfloat16 instruction is VDPBF16PS of AVX512-BF16, in Intel's instruction set reference.
"""

from llvmlite import ir
from numba import carray, njit, types
from numba.extending import intrinsic

from pagedlab.kernels import cpu_ir
from pagedlab.kernels.cpu_ir import LANES, call, constant, everywhere, first_lanes, floats, int8, int32, int64, integers
from pagedlab.kernels.cpu_threads import arguments_of, kernel, take

COLUMNS = 2 * LANES
MOST_ROWS = 12
STEP_BYTES = 4 * COLUMNS  # of weight
AHEAD = 4096  # bytes: how far in advance a weight is asked for that only one tile will use


class BFloat16:
    """A step is two neighbours of the inner dimension: the instruction adds both products of 16 pairs to 16 sums."""

    bytes = 2

    @staticmethod
    def load_weight(builder, address):
        return builder.load(builder.inttoptr(address, integers.as_pointer()), align=4)

    @staticmethod
    def loadeverywhere(builder, address):
        return everywhere(builder, builder.load(builder.inttoptr(address, int32.as_pointer()), align=2))

    @staticmethod
    def multiply_add(builder, x, weight, sums):
        return call(builder, "llvm.x86.avx512bf16.dpbf16ps.512", floats, sums, x, weight)

    @staticmethod
    def store(builder, numbers, address, mask):
        rounded = cpu_ir.to_bfloat16(builder, numbers)
        _store_where(builder, mask, rounded, address, "llvm.masked.store.v16i16.p0", align=2)


class BFloat16ToFloat32(BFloat16):
    """The sums stay as they are: for results that something more is done with."""

    bytes = 4

    @staticmethod
    def store(builder, numbers, address, mask):
        Float32.store(builder, numbers, address, mask)


class Float32:
    """A step is one number of the inner dimension."""

    bytes = 4

    @staticmethod
    def load_weight(builder, address):
        return builder.load(builder.inttoptr(address, floats.as_pointer()), align=4)

    @staticmethod
    def loadeverywhere(builder, address):
        return everywhere(builder, builder.load(builder.inttoptr(address, cpu_ir.float32.as_pointer()), align=4))

    @staticmethod
    def multiply_add(builder, x, weight, sums):
        return cpu_ir.fma(builder, x, weight, sums)

    @staticmethod
    def store(builder, numbers, address, mask):
        _store_where(builder, mask, numbers, address, "llvm.masked.store.v16f32.p0", align=4)


def _tile(builder, number, gated, rows, x, x_stride, weight, steps, out, out_stride, columns, coming, coming_step):
    """`out[:rows, :columns] = x[:rows] @ weight`. Strides are in bytes, and a step is 4 bytes of each row of x.

    gated: the first half of the weight's columns is a gate for the other, `silu(x @ first) * (x @ second)`.
    coming, coming_step: with each step, so many bytes further on, memory is asked for what will be needed later.
    """
    x_rows = [builder.add(x, builder.mul(x_stride, int64(row))) for row in range(rows)]

    before, loop, after = builder.block, builder.append_basic_block("loop"), builder.append_basic_block("after")
    builder.branch(loop)
    builder.position_at_end(loop)
    step = builder.phi(int64)
    sums = [[builder.phi(floats) for _ in range(2)] for _ in range(rows)]

    weight_here = builder.add(weight, builder.mul(step, int64(STEP_BYTES)))
    x_offset = builder.mul(step, int64(4))
    halves = [number.load_weight(builder, builder.add(weight_here, int64(4 * LANES * half))) for half in range(2)]
    coming_here = builder.add(coming, builder.mul(step, coming_step))
    for half in range(2):
        _fetch(builder, builder.add(coming_here, int64(4 * LANES * half)))
    grown = []
    for row in range(rows):
        value = number.loadeverywhere(builder, builder.add(x_rows[row], x_offset))
        grown.append([number.multiply_add(builder, value, halves[half], sums[row][half]) for half in range(2)])

    next_step = builder.add(step, int64(1))
    builder.cbranch(builder.icmp_signed("<", next_step, steps), loop, after)
    step.add_incoming(int64(0), before)
    step.add_incoming(next_step, loop)
    for row in range(rows):
        for half in range(2):
            sums[row][half].add_incoming(constant(0.0), before)
            sums[row][half].add_incoming(grown[row][half], loop)

    builder.position_at_end(after)
    for row in range(rows):
        results = [builder.fmul(_silu(builder, grown[row][0]), grown[row][1])] if gated else grown[row]
        for part, result in enumerate(results):
            first = LANES * part
            at = builder.add(out, builder.add(builder.mul(out_stride, int64(row)), int64(number.bytes * first)))
            number.store(builder, result, at, first_lanes(builder, builder.sub(columns, int64(first))))


def _any_tile(number, gated=False):
    """A tile for each number of rows, and the choice between them: a function that compiled code can call."""

    @intrinsic
    def tile(typing_context, rows, x, x_stride, weight, steps, out, out_stride, columns, coming, coming_step):
        def generate(context, builder, signature, arguments):
            done = builder.append_basic_block("done")
            choice = builder.switch(arguments[0], done)
            for rows in range(1, MOST_ROWS + 1):
                block = builder.append_basic_block(f"rows_{rows}")
                choice.add_case(int64(rows), block)
                builder.position_at_end(block)
                _tile(builder, number, gated, rows, *arguments[1:])
                builder.branch(done)
            builder.position_at_end(done)
            return context.get_dummy_value()

        return types.void(*[types.int64] * 10), generate

    return tile


def _silu(builder, x):
    """x / (1 + e ** -x), for every lane."""
    y = call(builder, "llvm.minimum.v16f32", floats, builder.fneg(x), constant(89.0))  # e ** 89 comes out as infinity
    return builder.fdiv(x, builder.fadd(constant(1.0), cpu_ir.exp(builder, y)))


def _store_where(builder, mask, numbers, address, name, align):
    pointer = builder.inttoptr(address, numbers.type.as_pointer())
    call(builder, name, ir.VoidType(), numbers, pointer, int32(align), mask)


def _fetch(builder, address):
    """Start to bring a line of 64 bytes near. An address with nothing behind it does no harm."""
    pointer = builder.inttoptr(address, int8.as_pointer())
    call(builder, "llvm.prefetch.p0", ir.VoidType(), pointer, int32(0), int32(3), int32(1))  # to read, closest, data


bfloat16_tile, float32_tile, bfloat16_sums_tile = map(_any_tile, (BFloat16, Float32, BFloat16ToFloat32))
gated_bfloat16_tile, gated_float32_tile = _any_tile(BFloat16, gated=True), _any_tile(Float32, gated=True)

Product = arguments_of(
    "Product", "panels  tiles short_rows long_tiles  x x_stride  weight steps  out out_stride out_columns"
)
"""Addresses; strides in bytes. The panels of 32 weight columns are cut into `num_items` runs of neighbours. The rows
are cut into `tiles`: the first `long_tiles` have `short_rows + 1` rows, the others `short_rows`."""


@njit(error_model="numpy")
def multiply(arguments, tile, number_bytes, panel_columns):
    """A panel stays in the first caches while all rows pass by, and meanwhile the next one is brought there.

    Of several tiles each asks for its share of the next panel. Otherwise the first would wait for memory, and memory
    would rest during the others.
    """
    a = carray(arguments, 1)[0]
    panel_bytes = a.steps * STEP_BYTES
    coming_step = STEP_BYTES // a.tiles
    while True:
        item = take(arguments)
        if item >= a.num_items:
            break
        for panel in range(item * a.panels // a.num_items, (item + 1) * a.panels // a.num_items):
            weight = a.weight + panel * panel_bytes
            coming = weight + (AHEAD if a.tiles == 1 else panel_bytes)
            x, out = a.x, a.out + panel * panel_columns * number_bytes
            columns = a.out_columns - panel * panel_columns
            for index in range(a.tiles):
                rows = a.short_rows + (1 if index < a.long_tiles else 0)
                tile(rows, x, a.x_stride, weight, a.steps, out, a.out_stride, columns, coming, coming_step)
                x += rows * a.x_stride
                out += rows * a.out_stride
                coming += a.steps * coming_step


@kernel(Product)
def bfloat16_product(arguments):
    multiply(arguments, bfloat16_tile, 2, COLUMNS)


@kernel(Product)
def float32_product(arguments):
    multiply(arguments, float32_tile, 4, COLUMNS)


@kernel(Product)
def gated_bfloat16_product(arguments):
    multiply(arguments, gated_bfloat16_tile, 2, LANES)


@kernel(Product)
def gated_float32_product(arguments):
    multiply(arguments, gated_float32_tile, 4, LANES)

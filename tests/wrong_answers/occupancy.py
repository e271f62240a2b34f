"""Plausible wrong answers to `occupancy`."""

import math

from tests.corpus import wrong

UNITS = "A warp takes whole units of registers"
FILES = "A warp's registers lie in one sub-partition"
RESERVED = "The driver keeps a little of every block's shared memory"
SHARED = "A block takes whole units of shared memory"
WARPS = "There are places for so many warps"
BLOCKS = "There are places for so many blocks"
FIRST = "Of equals, the first is named"
TOO_LARGE = "What one SM hasn't got, no block gets"
NO_SHARED = "A kernel may use no shared memory"
ANY = "Any kernel, on any of NVIDIA's GPUs"


def round_up(number, unit):
    return -(-number // unit) * unit


def by_registers(registers, num_warps, target):
    a_warp = round_up(registers * target.warp_size, target.register_unit)
    return target.registers_per_partition // a_warp * target.sub_partitions // num_warps


def by_shared(shared_bytes, target):
    a_block = round_up(shared_bytes + target.reserved_shared, target.shared_unit)
    return target.shared_per_sm // a_block if a_block else math.inf


def smallest(registers, shared, warps, blocks):
    limits = {"registers": registers, "shared memory": shared, "warps": warps, "blocks": blocks}
    limiter = min(limits, key=limits.get)
    return limits[limiter], limiter


def right(registers, shared_bytes, num_warps, target):
    return smallest(
        by_registers(registers, num_warps, target),
        by_shared(shared_bytes, target),
        target.max_warps_per_sm // num_warps,
        target.max_blocks_per_sm,
    )


def with_registers(count):
    """The right answer, but for how it counts blocks by registers."""

    def answer(registers, shared_bytes, num_warps, target):
        places = target.max_warps_per_sm // num_warps
        return smallest(
            count(registers, num_warps, target), by_shared(shared_bytes, target), places, target.max_blocks_per_sm
        )

    return answer


def with_shared(count):
    def answer(registers, shared_bytes, num_warps, target):
        places = target.max_warps_per_sm // num_warps
        return smallest(
            by_registers(registers, num_warps, target), count(shared_bytes, target), places, target.max_blocks_per_sm
        )

    return answer


@wrong(UNITS, "handed out in units of 256: 33 registers x 32 threads = 1,056 -> 1,280")
def never_rounds_registers(*kernel):
    return with_registers(lambda n, warps, target: target.registers_per_sm // (n * target.warp_size * warps))(*kernel)


@wrong(UNITS, "Each warp is rounded up, not the block as a whole")
def rounds_the_block_up(*kernel):
    def count(n, warps, target):
        return target.registers_per_sm // round_up(n * target.warp_size * warps, target.register_unit)

    return with_registers(count)(*kernel)


@wrong(FILES, "lie in one of 4 register files of 16,384")
def one_large_register_file(*kernel):
    def count(n, warps, target):
        return target.registers_per_sm // (round_up(n * target.warp_size, target.register_unit) * warps)

    return with_registers(count)(*kernel)


@wrong(UNITS, "need not share a register file")
def a_block_stays_in_its_file(*kernel):
    def count(n, warps, target):
        in_file = target.registers_per_partition // round_up(n * target.warp_size, target.register_unit)
        return in_file // warps * target.sub_partitions

    return with_registers(count)(*kernel)


@wrong(UNITS, "Registers hardly count in your answer: 33 registers x 32 threads")
def forgets_the_threads(*kernel):
    return with_registers(lambda n, warps, target: target.registers_per_sm // (n * warps))(*kernel)


@wrong(RESERVED, "The driver keeps 1,024 bytes of every block")
def forgets_the_reserved(*kernel):
    return with_shared(lambda size, target: target.shared_per_sm // max(1, round_up(size, target.shared_unit)))(*kernel)


@wrong(RESERVED, "On sm_75 the driver keeps nothing")
def always_reserves_a_kilobyte(*kernel):
    return with_shared(lambda size, target: target.shared_per_sm // round_up(size + 1024, target.shared_unit))(*kernel)


@wrong(SHARED, "handed out in units of 128 bytes: 32,560 + 1,024 -> 33,664")
def never_rounds_shared(*kernel):
    return with_shared(lambda size, target: target.shared_per_sm // max(1, size + target.reserved_shared))(*kernel)


@wrong(SHARED, "sm_75 hands shared memory out in units of 256 bytes: 10,800 + 0 -> 11,008")
def always_units_of_128(*kernel):
    def count(size, target):
        a_block = round_up(size + target.reserved_shared, 128)
        return target.shared_per_sm // a_block if a_block else math.inf

    return with_shared(count)(*kernel)


@wrong(RESERVED, "those of a whole block")
def shared_memory_of_a_warp(registers, shared_bytes, num_warps, target):
    return smallest(
        by_registers(registers, num_warps, target),
        by_shared(shared_bytes * num_warps, target),
        target.max_warps_per_sm // num_warps,
        target.max_blocks_per_sm,
    )


@wrong(NO_SHARED, "takes no shared memory at all on sm_75")
def divides_by_no_shared_memory(*kernel):
    def count(size, target):
        return target.shared_per_sm // round_up(size + target.reserved_shared, target.shared_unit)

    return with_shared(count)(*kernel)


@wrong(WARPS, "places for 48 warps, not 64")
def always_64_warps(registers, shared_bytes, num_warps, target):
    return smallest(
        by_registers(registers, num_warps, target),
        by_shared(shared_bytes, target),
        64 // num_warps,
        target.max_blocks_per_sm,
    )


@wrong(BLOCKS, "places for 32 blocks, however small")
def leaves_blocks_out(registers, shared_bytes, num_warps, target):
    return smallest(
        by_registers(registers, num_warps, target),
        by_shared(shared_bytes, target),
        target.max_warps_per_sm // num_warps,
        math.inf,
    )


@wrong(FIRST, "equally few blocks, and registers comes first")
def names_the_last_of_equals(registers, shared_bytes, num_warps, target):
    limits = [
        (by_registers(registers, num_warps, target), "registers"),
        (by_shared(shared_bytes, target), "shared memory"),
        (target.max_warps_per_sm // num_warps, "warps"),
        (target.max_blocks_per_sm, "blocks"),
    ]
    return min(reversed(limits), key=lambda limit: limit[0])


@wrong(UNITS, "registers allow 12")
def names_the_largest(*kernel):
    return right(*kernel)[0], "shared memory"


@wrong(UNITS, "warps on the SM")
def gives_warps(registers, shared_bytes, num_warps, target):
    blocks, limiter = right(registers, shared_bytes, num_warps, target)
    return blocks * num_warps, limiter


@wrong(TOO_LARGE, "Not even one block fits: shared memory won't do")
def one_block_always_fits(*kernel):
    blocks, limiter = right(*kernel)
    return max(1, blocks), limiter


@wrong(ANY, "number of blocks is wrong")
def knows_small_kernels_only(registers, shared_bytes, num_warps, target):
    blocks, limiter = right(registers, shared_bytes, num_warps, target)
    return (blocks + 1, limiter) if registers > 200 and num_warps == 2 and blocks else (blocks, limiter)

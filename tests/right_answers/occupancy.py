"""Right answers to `occupancy` in styles other than ours."""

import math

from tests.corpus import right


@right
def step_by_step(registers, shared_bytes, num_warps, target):
    units = math.ceil(registers * target.warp_size / target.register_unit)
    a_warp = units * target.register_unit
    file = target.registers_per_sm // target.sub_partitions
    by_registers = (file // a_warp) * target.sub_partitions // num_warps
    limiter, blocks = "registers", by_registers
    a_block = math.ceil((shared_bytes + target.reserved_shared) / target.shared_unit) * target.shared_unit
    if a_block > 0 and target.shared_per_sm // a_block < blocks:
        limiter, blocks = "shared memory", target.shared_per_sm // a_block
    if target.max_warps_per_sm // num_warps < blocks:
        limiter, blocks = "warps", target.max_warps_per_sm // num_warps
    if target.max_blocks_per_sm < blocks:
        limiter, blocks = "blocks", target.max_blocks_per_sm
    return blocks, limiter


@right
def fills_the_sm(registers, shared_bytes, num_warps, target):
    """Adds block after block until something is missing."""

    def missing(blocks):
        for_a_thread = -(-registers // 8) * 8  # 256 a warp are 8 a thread
        in_a_file = target.registers_per_partition // (for_a_thread * target.warp_size)
        if blocks * num_warps > in_a_file * target.sub_partitions:
            return "registers"
        a_block = shared_bytes + target.reserved_shared
        while a_block % target.shared_unit:
            a_block += 1
        if blocks * a_block > target.shared_per_sm:
            return "shared memory"
        if blocks * num_warps > target.max_warps_per_sm:
            return "warps"
        return "blocks" if blocks > target.max_blocks_per_sm else None

    blocks = 0
    while missing(blocks + 1) is None:
        blocks += 1
    return [blocks, missing(blocks + 1)]


@right
def a_list_of_pairs(registers, shared_bytes, num_warps, target):
    def up(number, unit):
        return (number + unit - 1) // unit * unit

    a_warp, a_block = (
        up(registers * 32, target.register_unit),
        up(shared_bytes + target.reserved_shared, target.shared_unit),
    )
    pairs = [
        (4 * (16_384 // a_warp) // num_warps, "registers"),
        (target.shared_per_sm // max(1, a_block), "shared memory"),
        (target.max_warps_per_sm // num_warps, "warps"),
        (target.max_blocks_per_sm, "blocks"),
    ]
    return min(pairs, key=lambda pair: pair[0])


@right
def from_our_own(registers, shared_bytes, num_warps, target):
    from pagedlab.gpu.occupancy import occupancy

    got = occupancy(registers, shared_bytes, num_warps, target.name)
    return got.blocks_per_sm, got.limiter


@right
def with_numpy(registers, shared_bytes, num_warps, target):
    import numpy as np

    a_warp = np.ceil(registers * target.warp_size / target.register_unit) * target.register_unit
    a_block = np.ceil((shared_bytes + target.reserved_shared) / target.shared_unit) * target.shared_unit
    limits = np.array(
        [
            target.registers_per_partition // a_warp * target.sub_partitions // num_warps,
            target.shared_per_sm // a_block if a_block else np.inf,
            target.max_warps_per_sm // num_warps,
            target.max_blocks_per_sm,
        ]
    )
    names = ["registers", "shared memory", "warps", "blocks"]
    return int(limits.min()), names[int(limits.argmin())]


@right
def with_torch(registers, shared_bytes, num_warps, target):
    import torch

    a_warp = -(-registers * target.warp_size // target.register_unit) * target.register_unit
    a_block = -(-(shared_bytes + target.reserved_shared) // target.shared_unit) * target.shared_unit
    limits = torch.tensor(
        [
            target.registers_per_partition // a_warp * target.sub_partitions // num_warps,
            target.shared_per_sm // a_block if a_block else 2**30,
            target.max_warps_per_sm // num_warps,
            target.max_blocks_per_sm,
        ]
    )
    blocks, which = limits.min(0)
    return blocks, ["registers", "shared memory", "warps", "blocks"][which]

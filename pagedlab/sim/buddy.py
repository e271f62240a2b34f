"""A buddy allocator: contiguous memory in chunks whose sizes are powers of two.

A request is rounded up to a power of two. When only bigger chunks are free, one is split in half, and in half again,
until it fits; the halves are each other's *buddy*. A freed chunk merges with its buddy as soon as both are free.
Finding a chunk's buddy takes one XOR, which is why allocators of contiguous memory like the scheme. The vLLM paper ran
its Orca baselines on it (arXiv:2309.06180, section 6.1).
"""

from pagedlab.errors import PagedLabError


class OutOfSlotsError(PagedLabError):
    """No free chunk is large enough. Nothing was changed."""


class NotAllocatedError(PagedLabError):
    """No allocated chunk begins at this slot: it was freed before, or never handed out. Nothing was changed."""


class BuddyAllocator:
    """Hands out contiguous runs of the slots 0 to `num_slots - 1`.

    A pool that is not a power of two begins as several free chunks, one for each 1 in the binary form of `num_slots`,
    largest first: 15,728 = 8192 + 4096 + 2048 + 1024 + 256 + 64 + 32 + 16.
    """

    def __init__(self, num_slots: int):
        if num_slots < 1:
            raise ValueError(f"num_slots is {num_slots}; a pool has at least 1 slot")
        self.num_slots = num_slots
        self._free: dict[int, set[int]] = {}  # chunk size -> first slots of the free chunks of that size
        self._allocated: dict[int, int] = {}  # first slot -> chunk size
        start = 0
        for bit in reversed(range(num_slots.bit_length())):
            size = 1 << bit
            self._free[size] = set()
            if num_slots & size:
                self._free[size].add(start)
                start += size

    @property
    def num_free(self) -> int:
        """Free slots, however scattered."""
        return sum(size * len(starts) for size, starts in self._free.items())

    @property
    def largest_free(self) -> int:
        """Slots in the largest free chunk: the most that one `allocate` can get now."""
        return max((size for size, starts in self._free.items() if starts), default=0)

    @property
    def largest_possible(self) -> int:
        """Slots in the largest chunk this pool can ever hand out."""
        return 1 << (self.num_slots.bit_length() - 1)

    def free_chunks(self) -> list[tuple[int, int]]:
        """(first slot, size) of every free chunk, in order of address."""
        return sorted((start, size) for size, starts in self._free.items() for start in starts)

    def allocated_chunks(self) -> list[tuple[int, int]]:
        """(first slot, size) of every allocated chunk, in order of address."""
        return sorted(self._allocated.items())

    def allocate(self, num_slots: int) -> int:
        """Take a chunk of at least `num_slots` slots and return its first slot.

        The smallest free chunk that fits is used, and of several the one with the lowest address.
        """
        if num_slots < 1:
            raise ValueError(f"asked for {num_slots} slots; ask for at least 1")
        wanted = 1 << (num_slots - 1).bit_length()  # the next power of two
        size = wanted
        while not self._free.get(size):
            size *= 2
            if size > self.largest_possible:
                raise OutOfSlotsError(
                    f"{num_slots} slots need a free chunk of {wanted}; the largest free chunk has "
                    f"{self.largest_free} ({self.num_free} of {self.num_slots} slots are free, in pieces)"
                )
        start = min(self._free[size])
        self._free[size].remove(start)
        while size > wanted:  # keep the lower half, give the upper half back
            size //= 2
            self._free[size].add(start + size)
        self._allocated[start] = size
        return start

    def free(self, start: int) -> None:
        """Give back the chunk that begins at slot `start`, and merge it with its buddy as often as that is free too."""
        if start not in self._allocated:
            raise NotAllocatedError(
                f"no allocated chunk begins at slot {start}: it was freed before, or never handed out "
                f"(pool of {self.num_slots} slots, {len(self._allocated)} chunks allocated)"
            )
        size = self._allocated.pop(start)
        # Two buddies differ in one bit of their address, the one worth `size`. A merge never crosses from one of the
        # pool's first chunks into the next: those have different sizes, each smaller than all that came before it.
        while (buddy := start ^ size) in self._free[size]:
            self._free[size].remove(buddy)
            start = min(start, buddy)
            size *= 2
        self._free[size].add(start)

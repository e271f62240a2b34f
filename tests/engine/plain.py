"""The least that the engine can run on: an allocator, a table and a scheduler as a learner might write them."""


class PlainAllocator:
    """No reference counts, no prefix cache: a list of free blocks."""

    def __init__(self, num_blocks):
        self.num_blocks, self._free = num_blocks, list(range(num_blocks))

    @property
    def num_free(self):
        return len(self._free)

    def allocate(self, n):
        if n > len(self._free):
            raise MemoryError(f"{n} blocks asked for, {len(self._free)} free")
        return [self._free.pop() for _ in range(n)]

    def free(self, blocks):
        self._free += blocks


class PlainTable:
    def __init__(self, block_size):
        self.block_size, self.blocks, self.num_tokens = block_size, [], 0

    def missing(self, n):
        return -(-(self.num_tokens + n) // self.block_size) - len(self.blocks)

    def append_tokens(self, n, allocator):
        self.blocks += allocator.allocate(self.missing(n))
        self.num_tokens += n

    def truncate(self, num_tokens, allocator):
        kept = -(-num_tokens // self.block_size)
        allocator.free(self.blocks[kept:])
        self.blocks, self.num_tokens = self.blocks[:kept], num_tokens

    def free(self, allocator):
        self.truncate(0, allocator)


class PlainScheduler:
    """First come, first served; the last one makes room."""

    def __init__(self, allocator, block_size):
        self.allocator, self.block_size = allocator, block_size
        self.waiting, self.running = [], []

    def add(self, request):
        request.table = PlainTable(self.block_size)
        self.waiting.append(request)

    def schedule(self):
        scheduled = []
        for request in list(self.running):
            while request in self.running and request.table.missing(request.num_new_tokens) > self.allocator.num_free:
                victim = self.running.pop()
                victim.table.free(self.allocator)
                victim.num_computed_tokens = 0
                self.waiting.insert(0, victim)
            if request in self.running:
                request.table.append_tokens(request.num_new_tokens, self.allocator)
                scheduled.append((request, request.num_new_tokens))
        while self.waiting and self.waiting[0].table.missing(self.waiting[0].num_tokens) <= self.allocator.num_free:
            request = self.waiting.pop(0)
            request.table.append_tokens(request.num_tokens, self.allocator)
            self.running.append(request)
            scheduled.append((request, request.num_tokens))
        return scheduled

    def finish(self, request):
        for queue in (self.waiting, self.running):
            if request in queue:
                queue.remove(request)
        request.table.free(self.allocator)

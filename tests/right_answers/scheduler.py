"""Right answers to `scheduler`, in other styles."""

import heapq
import itertools
from collections import deque
from dataclasses import dataclass, field

import numpy as np

from pagedlab.cache.accounting import blocks_needed
from tests.corpus import right


@right
class TwoLists:
    def __init__(self, allocator, block_size, max_num_seqs=8):
        self.allocator, self.block_size, self.max_num_seqs = allocator, block_size, max_num_seqs
        self.waiting, self.running = [], []

    def add(self, request):
        self.waiting.append(request)

    def missing(self, request):
        return blocks_needed(request.num_tokens, self.block_size) - len(request.table.blocks)

    def grow(self, request):
        n = request.num_tokens - request.num_computed_tokens
        request.table.append_tokens(n, self.allocator)
        return request, n

    def schedule(self):
        scheduled, preempted = [], False
        for request in list(self.running):
            while request in self.running and self.missing(request) > self.allocator.num_free:
                victim = self.running.pop()
                victim.table.free(self.allocator)
                victim.num_computed_tokens = 0
                self.waiting.insert(0, victim)
                preempted = True
            if request in self.running:
                scheduled.append(self.grow(request))
        while self.waiting and not preempted and len(self.running) < self.max_num_seqs:
            if self.missing(self.waiting[0]) > self.allocator.num_free:
                break
            self.running.append(self.waiting.pop(0))
            scheduled.append(self.grow(self.running[-1]))
        return scheduled

    def finish(self, request):
        self.waiting = [other for other in self.waiting if other is not request]
        self.running = [other for other in self.running if other is not request]
        request.table.free(self.allocator)


@right
class CountsBeforeItActs:
    """Works out how many can stay before anything is touched, on one list with a border in it."""

    def __init__(self, allocator, block_size, max_num_seqs=8):
        self.allocator, self.size, self.seats = allocator, block_size, max_num_seqs
        self.line, self.inside = deque(), 0

    @property
    def running(self):
        return list(self.line)[: self.inside]

    @property
    def waiting(self):
        return list(self.line)[self.inside :]

    def add(self, request):
        self.line.append(request)

    def schedule(self):
        line, total = list(self.line), self.allocator.num_free
        total += sum(len(request.table.blocks) for request in line[: self.inside])
        stay, used = 0, 0
        for request in line[: self.inside]:
            used += -(-request.num_tokens // self.size)
            if used > total:
                break
            stay += 1
        leave = line[stay : self.inside]
        for request in leave:
            request.table.free(self.allocator)
            request.num_computed_tokens = 0
        self.inside = stay
        if not leave:
            used = sum(-(-request.num_tokens // self.size) for request in line[:stay])
            for request in line[stay : self.seats]:
                used += -(-request.num_tokens // self.size)
                if used > total:
                    break
                self.inside += 1
        plan = []
        for request in line[: self.inside]:
            n = request.num_tokens - request.num_computed_tokens
            request.table.append_tokens(n, self.allocator)
            plan.append((request, n))
        return tuple(plan)

    def finish(self, request):
        if request in self.line:
            if self.line.index(request) < self.inside:
                self.inside -= 1
            self.line.remove(request)
        request.table.free(self.allocator)


@right
class AsksForgiveness:
    """Tries to append, and makes room when the allocator refuses."""

    def __init__(self, allocator, block_size, max_num_seqs=8):
        self.allocator, self.max_num_seqs = allocator, max_num_seqs
        self.waiting, self.running = deque(), []

    def add(self, request):
        self.waiting.append(request)

    def try_to_grow(self, request):
        from pagedlab.cache.allocator import OutOfBlocksError

        n = request.num_tokens - request.num_computed_tokens
        try:
            request.table.append_tokens(n, self.allocator)
        except OutOfBlocksError:
            return None
        return [request, n]

    def schedule(self):
        plan, number = [], 0
        before = len(self.running)
        while number < len(self.running):
            entry = self.try_to_grow(self.running[number])
            if entry:
                plan.append(entry)
                number += 1
            else:
                victim = self.running.pop()
                victim.table.free(self.allocator)
                victim.num_computed_tokens = 0
                self.waiting.appendleft(victim)
        if len(self.running) < before:
            return plan
        while self.waiting and len(self.running) < self.max_num_seqs:
            entry = self.try_to_grow(self.waiting[0])
            if not entry:
                return plan
            self.running.append(self.waiting.popleft())
            plan.append(entry)
        return plan

    def finish(self, request):
        for line in (self.waiting, self.running):
            if request in line:
                line.remove(request)
        request.table.free(self.allocator)


@right
class KeepsABlockForEveryone:
    """A watermark of one block for each that runs; none when nothing runs."""

    def __init__(self, allocator, block_size, max_num_seqs=8):
        self.allocator, self.block_size, self.max_num_seqs = allocator, block_size, max_num_seqs
        self.waiting, self.running = [], []

    add = TwoLists.add
    missing = TwoLists.missing
    grow = TwoLists.grow
    finish = TwoLists.finish

    def schedule(self):
        scheduled, out = [], []
        for index, request in enumerate(list(self.running)):
            if index >= len(self.running):
                break
            while index < len(self.running) and self.missing(request) > self.allocator.num_free:
                out.append(self.running.pop())
                out[-1].table.free(self.allocator)
                out[-1].num_computed_tokens = 0
            if index < len(self.running):
                scheduled.append(self.grow(request))
        self.waiting[:0] = reversed(out)
        while self.waiting and not out and len(self.running) < self.max_num_seqs:
            if self.missing(self.waiting[0]) + len(self.running) > self.allocator.num_free:
                break
            self.running.append(self.waiting.pop(0))
            scheduled.append(self.grow(self.running[-1]))
        return scheduled


@right
class OneVictimIsEnough(TwoLists):
    """A running request needs one block at most, and every victim holds one at least."""

    def schedule(self):
        plan, left = [], False
        for request in tuple(self.running):
            if request not in self.running:
                continue
            if self.missing(request) > self.allocator.num_free:
                last = self.running.pop()
                last.table.free(self.allocator)
                last.num_computed_tokens, left = 0, True
                self.waiting = [last, *self.waiting]
            if request in self.running:
                plan.append(self.grow(request))
        for request in list(self.waiting):
            if left or len(self.running) >= self.max_num_seqs or self.missing(request) > self.allocator.num_free:
                break
            self.waiting.remove(request)
            self.running.append(request)
            plan.append(self.grow(request))
        return plan


@right
class Heap:
    """The line is a heap of (number, request). A preempted request keeps its number."""

    def __init__(self, allocator, block_size, max_num_seqs=8):
        self.allocator, self.block_size, self.seats = allocator, block_size, max_num_seqs
        self.numbers, self.number_of = itertools.count(), {}
        self.line, self.running = [], []

    missing = TwoLists.missing
    grow = TwoLists.grow

    def add(self, request):
        self.number_of[request] = next(self.numbers)
        heapq.heappush(self.line, (self.number_of[request], request))

    def schedule(self):
        plan, before = [], len(self.running)
        while len(plan) < len(self.running):
            request = self.running[len(plan)]
            if self.missing(request) <= self.allocator.num_free:
                plan.append(self.grow(request))
                continue
            last = self.running.pop()
            last.table.free(self.allocator)
            last.num_computed_tokens = 0
            heapq.heappush(self.line, (self.number_of[last], last))
        if len(self.running) == before:
            while self.line and len(self.running) < self.seats:
                if self.missing(self.line[0][1]) > self.allocator.num_free:
                    break
                self.running.append(heapq.heappop(self.line)[1])
                plan.append(self.grow(self.running[-1]))
        return plan

    def finish(self, request):
        self.line = [entry for entry in self.line if entry[1] is not request]
        heapq.heapify(self.line)
        self.running = [other for other in self.running if other is not request]
        request.table.free(self.allocator)


@right
@dataclass
class OneListWithStates:
    """A dataclass: everyone in one list, and a set of who runs. numpy counts who can stay."""

    allocator: object
    block_size: int
    max_num_seqs: int = 8
    everyone: list = field(default_factory=list)
    inside: set = field(default_factory=set)

    def add(self, request):
        self.everyone.append(request)

    def schedule(self):
        running = [request for request in self.everyone if request.request_id in self.inside]
        needs = np.array([blocks_needed(request.num_tokens, self.block_size) for request in running], dtype=int)
        room = self.allocator.num_free + sum(len(request.table.blocks) for request in running)
        stay = int((needs.cumsum() <= room).sum())
        for request in running[stay:]:
            request.table.free(self.allocator)
            request.num_computed_tokens = 0
            self.inside.remove(request.request_id)
        plan = [self.grow(request) for request in running[:stay]]
        for request in self.everyone if stay == len(running) else ():
            if request.request_id in self.inside:
                continue
            needed = blocks_needed(request.num_tokens, self.block_size)
            if len(plan) == self.max_num_seqs or needed > self.allocator.num_free:
                break
            self.inside.add(request.request_id)
            plan.append(self.grow(request))
        return plan

    def grow(self, request):
        number = np.int64(request.num_tokens - request.num_computed_tokens)
        request.table.append_tokens(number, self.allocator)
        return request, number

    def finish(self, request):
        self.everyone.remove(request)
        self.inside.discard(request.request_id)
        request.table.free(self.allocator)


@right
class ANewTableForANewStart(TwoLists):
    """In chunks of four, and whoever starts over gets another table object."""

    def grow(self, request):
        n = min(4, request.num_tokens - request.num_computed_tokens)
        request.table.append_tokens(n, self.allocator)
        return request, n

    def missing(self, request):
        if not request.table.blocks and request.num_computed_tokens == 0:
            request.table = type(request.table)(self.block_size)
        return super().missing(request)

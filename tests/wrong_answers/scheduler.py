"""Plausible wrong answers to `scheduler`: a right one, and classes that differ from it in one thing."""

from pagedlab.cache.accounting import blocks_needed
from tests.corpus import wrong

PAIRS = "schedule gives pairs: a request, and its number of new tokens"
SLOTS = "Every token that is scheduled has a slot"
BACK = "finish gives all blocks back, whatever the request was doing"
MOVES = "Everyone who runs moves on in every step"
JOINS = "A request joins as soon as there is room"
SEATS = "No more run at once than there are seats"
ORDER = "First come, first served; the latest makes room"
PREEMPTED = "Who is preempted gives up its blocks, and nothing else"
NEED = "Nobody is preempted without need"
PROGRESS = "Every step makes progress, until all are finished"
SAME = "What is written is what an endless pool would give"
TWO = "Two schedulers know nothing of each other"
LARGE = "Also for forty requests"


class Right:
    def __init__(self, allocator, block_size, max_num_seqs=8):
        self.allocator, self.block_size, self.max_num_seqs = allocator, block_size, max_num_seqs
        self.waiting, self.running = [], []

    def add(self, request):
        self.waiting.append(request)

    def new_tokens(self, request):
        return request.num_tokens - request.num_computed_tokens

    def missing(self, request):
        return blocks_needed(request.num_tokens, self.block_size) - len(request.table.blocks)

    def fits(self, request):
        return self.missing(request) <= self.allocator.num_free

    def grow(self, request):
        n = self.new_tokens(request)
        request.table.append_tokens(n, self.allocator)
        return request, n

    def victim(self):
        return self.running[-1]

    def give_up(self, request):
        request.table.free(self.allocator)
        request.num_computed_tokens = 0

    def preempt(self, request):
        self.running.remove(request)
        self.give_up(request)
        self.waiting.insert(0, request)

    def run_on(self):
        scheduled = []
        for request in list(self.running):
            while request in self.running and not self.fits(request):
                self.preempt(self.victim())
            if request in self.running:
                scheduled.append(self.grow(request))
        return scheduled

    def seat_free(self):
        return len(self.running) < self.max_num_seqs

    def admit(self):
        scheduled = []
        while self.waiting and self.seat_free() and self.fits(self.waiting[0]):
            request = self.waiting.pop(0)
            self.running.append(request)
            scheduled.append(self.grow(request))
        return scheduled

    def schedule(self):
        before = len(self.waiting)
        scheduled = self.run_on()
        if len(self.waiting) == before:
            scheduled += self.admit()
        return scheduled

    def finish(self, request):
        for line in (self.waiting, self.running):
            if request in line:
                line.remove(request)
        request.table.free(self.allocator)


# --- what it gives ----------------------------------------------------------------------------------------------------


@wrong(PAIRS, "not a pair")
class gives_requests_only(Right):
    def schedule(self):
        return [request for request, _ in super().schedule()]


@wrong(PAIRS, "this is None")
class returns_nothing(Right):
    def schedule(self):
        super().schedule()


@wrong(PAIRS, "new token")
class counts_all_tokens(Right):
    def grow(self, request):
        super().grow(request)
        return request, request.num_tokens


@wrong(PAIRS, "twice")
class a_newcomer_is_scheduled_twice(Right):
    def schedule(self):
        scheduled = self.admit()
        return scheduled + [(request, 1) for request in self.running]


@wrong(PAIRS, "raised")
class pops_from_an_empty_line(Right):
    def admit(self):
        scheduled = []
        while self.seat_free() and self.fits(self.waiting[0]):
            self.running.append(self.waiting.pop(0))
            scheduled.append(self.grow(self.running[-1]))
        return scheduled


@wrong(PAIRS, "not 0")
class starts_with_the_second_token(Right):
    def new_tokens(self, request):
        return request.num_tokens - request.num_computed_tokens - 1


# --- slots ------------------------------------------------------------------------------------------------------------


@wrong(SLOTS, "its table has slots for 0")
class gives_newcomers_no_slots(Right):
    def admit(self):
        scheduled = []
        while self.waiting and self.seat_free() and self.fits(self.waiting[0]):
            self.running.append(self.waiting.pop(0))
            scheduled.append((self.running[-1], self.new_tokens(self.running[-1])))
        return scheduled


@wrong(SLOTS, "its table has slots for")
class grows_a_block_at_a_time(Right):
    def grow(self, request):
        n = self.new_tokens(request)
        if self.missing(request) > 0:
            request.table.append_tokens(self.missing(request) * self.block_size, self.allocator)
        return request, n


@wrong(SLOTS, "asked for")
class never_preempts(Right):
    def run_on(self):
        return [self.grow(request) for request in self.running]


@wrong(SLOTS, "asked for")
class admits_without_looking(Right):
    def admit(self):
        scheduled = []
        while self.waiting and self.seat_free():
            self.running.append(self.waiting.pop(0))
            scheduled.append(self.grow(self.running[-1]))
        return scheduled


@wrong(SLOTS, "asked for")
class one_block_is_enough_for_a_prompt(Right):
    def fits(self, request):
        return self.allocator.num_free >= 1


@wrong(SLOTS, "asked for")
class rounds_the_blocks_down(Right):
    def missing(self, request):
        return request.num_tokens // self.block_size - len(request.table.blocks)


# --- finishing --------------------------------------------------------------------------------------------------------


@wrong(BACK, "still holds")
class finish_keeps_the_blocks(Right):
    def finish(self, request):
        self.running.remove(request)


@wrong(BACK, "raised")
class finish_knows_only_who_runs(Right):
    def finish(self, request):
        self.running.remove(request)
        request.table.free(self.allocator)


@wrong(BACK, "is over")
class finish_forgets_the_waiting_line(Right):
    def finish(self, request):
        if request in self.running:
            self.running.remove(request)
        request.table.free(self.allocator)


@wrong(BACK, "held by nobody")
class finish_empties_the_table_by_hand(Right):
    def finish(self, request):
        for line in (self.waiting, self.running):
            if request in line:
                line.remove(request)
        request.table.blocks, request.table.num_tokens = [], 0


# --- who runs, who joins ----------------------------------------------------------------------------------------------


@wrong(MOVES, "not scheduled")
class one_at_a_time(Right):
    def run_on(self):
        return super().run_on()[:1]


@wrong(MOVES, "not scheduled")
class prefill_stops_everyone(Right):
    def schedule(self):
        return self.admit() or self.run_on()


@wrong(MOVES, "not scheduled")
class skips_one_when_somebody_leaves(Right):
    def run_on(self):
        scheduled, self.turn = [], getattr(self, "turn", 0) + 1
        for index, request in enumerate(self.running):
            if self.turn % 3 == 0 and index == len(self.running) - 1 and index:
                continue
            if self.fits(request):
                scheduled.append(self.grow(request))
            else:
                self.preempt(self.running[-1])
        return scheduled


@wrong(JOINS, "still waits")
class static_batching(Right):
    def admit(self):
        return super().admit() if self.batch_is_over() else []

    def batch_is_over(self):
        return not self.running


@wrong(JOINS, "still waits")
class admits_one_a_step(Right):
    def admit(self):
        if self.waiting and self.seat_free() and self.fits(self.waiting[0]):
            self.running.append(self.waiting.pop(0))
            return [self.grow(self.running[-1])]
        return []


@wrong(JOINS, "still waits")
class reserves_the_longest_answer(Right):
    def admit(self):
        scheduled = []
        while self.waiting and self.seat_free():
            request = self.waiting[0]
            longest = blocks_needed(request.num_tokens + request.max_tokens, self.block_size)
            if longest + 4 * len(self.running) > self.allocator.num_free and self.running:
                break
            self.running.append(self.waiting.pop(0))
            scheduled.append(self.grow(request))
        return scheduled


@wrong(JOINS, "waits")
class takes_all_blocks_at_the_door(Right):
    def missing(self, request):
        longest = request.num_prompt_tokens + request.max_tokens - 1
        return blocks_needed(longest, self.block_size) - len(request.table.blocks)

    def grow(self, request):
        grown = super().grow(request)
        request.table.blocks += self.allocator.allocate(self.missing(request))
        return grown


@wrong(SEATS, "max_num_seqs is")
class no_limit_on_seats(Right):
    def seat_free(self):
        return True


@wrong(SEATS, "max_num_seqs is")
class one_seat_too_many(Right):
    def seat_free(self):
        return len(self.running) <= self.max_num_seqs


# --- order ------------------------------------------------------------------------------------------------------------


@wrong(ORDER, "came first")
class last_come_first_served(Right):
    def add(self, request):
        self.waiting.insert(0, request)


@wrong(ORDER, "came first")
class the_small_ones_overtake(Right):
    def admit(self):
        scheduled = []
        for request in list(self.waiting):
            if self.seat_free() and self.fits(request):
                self.waiting.remove(request)
                self.running.append(request)
                scheduled.append(self.grow(request))
        return scheduled


@wrong(ORDER, "was preempted")
class the_oldest_makes_room(Right):
    def victim(self):
        return self.running[0]


@wrong(ORDER, "came first")
class preempted_go_to_the_back(Right):
    def preempt(self, request):
        self.running.remove(request)
        self.give_up(request)
        self.waiting.append(request)


@wrong(ORDER, "was preempted")
class who_cannot_grow_leaves(Right):
    def run_on(self):
        scheduled = []
        for request in list(self.running):
            if self.fits(request):
                scheduled.append(self.grow(request))
            else:
                self.preempt(request)
        return scheduled


@wrong(ORDER, "came first")
class sorts_by_the_id(Right):
    def add(self, request):
        self.waiting.append(request)
        self.waiting.sort(key=lambda waiting: waiting.request_id)


@wrong(ORDER, "came first")
class two_who_leave_change_places(Right):
    def schedule(self):
        self.left = []
        scheduled = self.run_on()
        self.waiting = self.left + self.waiting
        return scheduled if self.left else scheduled + self.admit()

    def preempt(self, request):
        self.running.remove(request)
        self.give_up(request)
        self.left.append(request)


@wrong(ORDER)
class the_last_takes_the_place_of_who_is_done(Right):
    def finish(self, request):
        for line in (self.waiting, self.running):
            if request in line:
                line[line.index(request)] = line[-1]
                line.pop()
        request.table.free(self.allocator)


# --- preemption -------------------------------------------------------------------------------------------------------


@wrong(PREEMPTED, "num_computed_tokens says")
class keeps_num_computed_tokens(Right):
    def give_up(self, request):
        request.table.free(self.allocator)


@wrong(PREEMPTED, "held by nobody")
class preempts_without_freeing(Right):
    def give_up(self, request):
        request.table.blocks, request.table.num_tokens = [], 0
        request.num_computed_tokens = 0


@wrong(PREEMPTED, "now it has")
class starts_over_from_the_prompt(Right):
    def give_up(self, request):
        super().give_up(request)
        request.output_token_ids.clear()


@wrong(PREEMPTED, "another prompt")
class what_is_written_becomes_prompt(Right):
    def give_up(self, request):
        super().give_up(request)
        request.prompt_token_ids = request.token_ids
        request.num_prompt_tokens = len(request.prompt_token_ids)
        request.output_token_ids = []


@wrong(PREEMPTED, "max_tokens is")
class counts_max_tokens_down(Right):
    def give_up(self, request):
        super().give_up(request)
        request.max_tokens -= len(request.output_token_ids)


@wrong(SLOTS, "is in the tables of")
class frees_the_blocks_but_not_the_table(Right):
    def give_up(self, request):
        self.allocator.free(request.table.blocks)
        request.num_computed_tokens = 0


@wrong(NEED, "was preempted, though")
class one_free_block_for_everyone(Right):
    def fits(self, request):
        return max(1, self.missing(request)) <= self.allocator.num_free


@wrong(NEED, "and it runs")
class everyone_starts_over_in_every_step(Right):
    def run_on(self):
        for request in self.running:
            self.give_up(request)
        self.waiting[:0], self.running = self.running, []
        return self.admit()

    def schedule(self):
        return self.run_on() + self.admit()


@wrong(NEED, "and it runs")
class a_new_block_means_starting_over(Right):
    def grow(self, request):
        if request.table.blocks and self.missing(request) > 0:
            self.give_up(request)
        return super().grow(request)


@wrong(NEED, "it and those before it")
class one_more_leaves_to_be_safe(Right):
    def run_on(self):
        scheduled = []
        for request in list(self.running):
            left = False
            while request in self.running and not self.fits(request):
                self.preempt(self.victim())
                left = True
            if left and request in self.running and self.victim() is not request:
                self.preempt(self.victim())
            if request in self.running:
                scheduled.append(self.grow(request))
        return scheduled


@wrong(SLOTS, "its table has slots for 0")
class newcomers_first(Right):
    def schedule(self):
        old = list(self.running)
        scheduled = self.admit()
        for request in old:
            while request in self.running and not self.fits(request):
                self.preempt(self.victim())
            if request in self.running:
                scheduled.append(self.grow(request))
        return scheduled


# --- progress ---------------------------------------------------------------------------------------------------------


@wrong(PROGRESS, "waits, and nobody is scheduled")
class always_keeps_a_block_back(Right):
    def admit(self):
        scheduled = []
        while self.waiting and self.seat_free() and self.missing(self.waiting[0]) < self.allocator.num_free:
            self.running.append(self.waiting.pop(0))
            scheduled.append(self.grow(self.running[-1]))
        return scheduled


@wrong(ORDER, "came first")
class preempted_are_forgotten(Right):
    def preempt(self, request):
        self.running.remove(request)
        self.give_up(request)


@wrong(LARGE)
class has_room_for_nine(Right):
    def add(self, request):
        if len(self.waiting) + len(self.running) < 9:
            super().add(request)


@wrong(TWO)
class lists_in_the_class_body(Right):
    waiting, running = [], []

    def __init__(self, allocator, block_size, max_num_seqs=8):
        self.allocator, self.block_size, self.max_num_seqs = allocator, block_size, max_num_seqs

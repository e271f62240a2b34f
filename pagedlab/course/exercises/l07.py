"""Lesson 07: the scheduler. Small worlds are drawn: requests that arrive, a pool that may be tight, aborts.

The answer schedules them step by step. A model made of arithmetic writes every scheduled token through the request's
block table and reads everything back, so that a slot that is lost, shared or stale changes what comes out.
"""

from collections.abc import Sequence

from hypothesis import strategies as st

from pagedlab.cache.accounting import blocks_needed
from pagedlab.cache.allocator import BlockAllocator, OutOfBlocksError, whole_number
from pagedlab.cache.table import BlockTable
from pagedlab.course.promise import Exercise, Wrong, calling, count, promise, tell
from pagedlab.course.words import error_text
from pagedlab.engine.request import Request

NAMES = "KTBXAMDWFQPCZHREVGNYSUJLIO"  # in no order: who came first is not told by the name


class Broken(Wrong):
    """What went wrong in a world, and which promise it belongs to."""

    def __init__(self, kind: str, *parts):
        super().__init__(*parts)
        self.kind = kind


class Guest:
    """A request of a world, with what the world knows of it."""

    def __init__(self, name: str, number: int, prompt: int, output: int, block_size: int):
        self.name, self.number, self.output = name, number, output
        self.prompt_ids = [100 * (number + 1) + position for position in range(prompt)]
        self.request = Request(name, list(self.prompt_ids), output)
        self.request.table = BlockTable(block_size)
        self.right = endless(self.prompt_ids, output)  # what it writes in a pool without end
        self.written: list[int] = []
        self.done = False

    @property
    def runs(self) -> bool:
        return bool(self.request.table.blocks)


def next_token(tokens: list[int]) -> int:
    """A model of sorts: the next token depends on every token and on its place."""
    return sum((place + 1) * token for place, token in enumerate(tokens)) % 89 + 10


def endless(prompt_ids: list[int], output: int) -> list[int]:
    tokens = list(prompt_ids)
    for _ in range(output):
        tokens.append(next_token(tokens))
    return tokens[len(prompt_ids) :]


class World:
    """An answer's scheduler, the pool it works on, and the requests that have come so far."""

    def __init__(self, answer, num_blocks: int, block_size: int, seats: int):
        self.num_blocks, self.block_size, self.seats = num_blocks, block_size, seats
        self.guests: list[Guest] = []  # in order of arrival
        self.slots: dict[int, tuple[str, int, int]] = {}  # slot: whose, at which position, which token
        self.story: list[str] = []
        self.num_steps = 0
        self.allocator = BlockAllocator(num_blocks)
        call = f"Scheduler(BlockAllocator({num_blocks}), block_size={block_size}, max_num_seqs={seats})"
        self.scheduler = answer(self.allocator, block_size, max_num_seqs=seats) if calling(call) else None
        self.say(f"scheduler = {call}")

    # Telling.

    def say(self, line: str) -> None:
        self.story.append(line)

    def broken(self, kind: str, message: str, hint: str, *guests: Guest) -> Broken:
        """The story so far, and the pool with the blocks of `guests` marked."""
        from pagedlab.widgets import block_picture, pool_state

        tables = {guest.name: guest.request.table for guest in self.guests if not guest.done}
        counts = [self.allocator.ref_count(block) for block in range(self.num_blocks)]
        state = pool_state(tables, num_blocks=self.num_blocks, block_size=self.block_size, ref_counts=counts)
        problem = {block for guest in guests for block in guest.request.table.blocks if 0 <= block < self.num_blocks}
        picture = block_picture(state, title=f"{count(self.num_steps, 'step')} in: {message}", problem=problem)
        return Broken(kind, message, "\n".join(self.story), hint, picture)

    # What is true by now.

    @property
    def here(self) -> list[Guest]:
        """Who has come and is neither finished nor aborted, in order of arrival."""
        return [guest for guest in self.guests if not guest.done]

    def out(self, before) -> list[Guest]:
        """Who had to leave in this step."""
        return [guest for guest in self.here if before[guest.name][0] and not guest.runs]

    # Calling the answer.

    def call(self, verb: str, *guests: Guest):
        text = f"scheduler.{verb}({', '.join(guest.name for guest in guests)})"
        method = getattr(self.scheduler, verb, None)
        if not callable(method):
            hint = f"def {verb}(self{', request' if guests else ''}): inside the class."
            raise self.broken("form", f"There is no method `{verb}`.", hint)
        try:
            return method(*(guest.request for guest in guests))
        except NotImplementedError:
            raise
        except OutOfBlocksError as error:
            self.say(f"{text}  # raised {error_text(error)}")
            message = f"`{text}` asked for {count(error.asked, 'block')} when {error.free} were free."
            hint = "Compare with allocator.num_free first. If a running request must grow, who makes room?"
            raise self.broken("slots", message, hint) from error
        except Exception as error:
            self.say(f"{text}  # raised {error_text(error)}")
            hint = "Which of your lists changes while you walk over it, or is empty already?"
            raise self.broken("form", f"`{text}` raised {type(error).__name__}.", hint) from error

    def add(self, prompt: int, output: int) -> Guest:
        number = len(self.guests)
        name = NAMES[number % 26] + (str(number // 26) if number >= 26 else "")
        guest = Guest(name, number, prompt, output, self.block_size)
        self.guests.append(guest)
        self.say(f"scheduler.add({guest.name})  # {count(prompt, 'prompt token')}, will write {output}")
        self.call("add", guest)
        return guest

    def finish(self, guest: Guest, why: str) -> None:
        """The request is over: it wrote its last token, or its user went away."""
        held = len(guest.request.table.blocks)
        self.call("finish", guest)
        guest.done = True
        left = list(guest.request.table.blocks)
        self.say(f"scheduler.finish({guest.name})  # {why}; {count(held, 'block')} back")
        if left:
            self.story[-1] = f"scheduler.finish({guest.name})  # {why}; it still holds {left}"
            guest.done = False
            message = f"{guest.name} is over, but its table still holds {count(len(left), 'block')}."
            raise self.broken("finish", message, "table.free(allocator) gives all blocks of a table back.", guest)
        self.books("finish", f"finish({guest.name})")

    def step(self) -> None:
        """One step as the engine makes it: schedule, run, sample, finish."""
        self.num_steps += 1
        before = {guest.name: self.snapshot(guest) for guest in self.here}
        scheduled = self.pairs(self.call("schedule"))
        self.tell_step(scheduled, before)
        self.look(scheduled, before)
        self.run(scheduled)

    def snapshot(self, guest: Guest) -> tuple[int, int]:
        return guest.request.num_computed_tokens, guest.request.num_tokens

    def pairs(self, result) -> list[tuple[Guest, int]]:
        """What schedule gave, as guests and plain numbers."""
        result = getattr(result, "scheduled", result)
        ask = f"{self.num_steps}. scheduler.schedule()"
        if not isinstance(result, Sequence) or isinstance(result, str | bytes):
            self.say(f"{ask}  # returned {tell(result, 60)}")
            hint = "Return a list, [(request, number of new tokens), ...], also when it is empty."
            raise self.broken("form", f"schedule gives a list; this is {kind_of(result)}.", hint)
        pairs = []
        for entry in result:
            try:
                request, number = entry
                number = whole_number("a number of tokens", number)
            except (TypeError, ValueError):
                self.say(f"{ask}  # has an entry {self.told(entry)}")
                hint = "One pair for each request that runs: (request, number of new tokens)."
                raise self.broken("form", "An entry of the schedule is not a pair.", hint) from None
            guest = next((guest for guest in self.guests if guest.request is request), None)
            if guest is None or guest.done:
                whose = "a request that was never added" if guest is None else f"{guest.name}, which is over"
                self.say(f"{ask}  # scheduled {whose}")
                kind = "form" if guest is None else "finish"
                hint = "After finish(request), no list of yours may hold it." if guest else "Schedule what was added."
                raise self.broken(kind, f"The schedule has {whose}.", hint)
            pairs.append((guest, number))
        names = [guest.name for guest, _ in pairs]
        for guest, number in pairs:
            new = guest.request.num_tokens - guest.request.num_computed_tokens
            if names.count(guest.name) > 1:
                self.say(f"{ask}  # gave {', '.join(names)}")
                hint = "Does a request stand in both your lists, or twice in one?"
                raise self.broken("form", f"{guest.name} is scheduled twice in one step.", hint, guest)
            if not 1 <= number <= new:
                self.say(f"{ask}  # gave {guest.name} {count(number, 'token')}, it has {new} to compute")
                hint = "New tokens are num_tokens - num_computed_tokens: the whole prompt at first, then one a step."
                raise self.broken("form", f"{guest.name} has {count(new, 'new token')}, not {number}.", hint, guest)
        return pairs

    def told(self, entry) -> str:
        guest = next((guest for guest in self.guests if guest.request is entry), None)
        return guest.name if guest else tell(entry, 60)

    def tell_step(self, scheduled, before) -> None:
        runs = ", ".join(f"{guest.name} {number}" for guest, number in scheduled) or "nobody"
        out = [guest.name for guest in self.out(before)]
        waits = [guest.name for guest in self.here if not guest.runs and guest.name not in out]
        words = f"{runs}" + (f"; {', '.join(out)} preempted" if out else "")
        words += f"; {', '.join(waits)} waiting" if waits else ""
        self.say(f"{self.num_steps}. scheduler.schedule()  # {words}; {self.allocator.num_free} free")

    # Looking.

    def look(self, scheduled, before) -> None:
        """Every promise about one step. The order decides which of two broken ones is told."""
        self.books("leak", "schedule()")
        chosen = {guest.name for guest, _ in scheduled}
        for guest in self.here:
            self.look_at_tokens(guest, before)
        out = self.out(before)
        self.look_at_order(out)
        for guest, number in scheduled:
            self.look_at_slots(guest, number)
        if len([guest for guest in self.here if guest.runs]) > self.seats:
            running = [guest for guest in self.here if guest.runs]
            message = f"{len(running)} requests run at once; max_num_seqs is {self.seats}."
            raise self.broken("seats", message, "Who may come in while len(running) is max_num_seqs?", *running)
        self.look_at_need(out, before)
        for guest in self.here:
            if guest.runs and guest.name not in chosen:
                message = f"{guest.name} holds blocks and has a token to compute, but it is not scheduled."
                raise self.broken("running", message, "Everyone who runs moves on in every step.", guest)
        if self.here and not scheduled:
            message = f"{', '.join(guest.name for guest in self.here)} waits, and nobody is scheduled."
            hint = "When nothing runs, the whole pool is free. What keeps the first in line out?"
            raise self.broken("progress", message, hint)
        if not out:
            self.look_at_room()

    def books(self, kind: str, call: str) -> None:
        """Blocks held by tables and blocks held in the allocator are the same."""
        holders: dict[int, str] = {}
        for guest in self.guests:
            for block in guest.request.table.blocks:
                if block in holders:
                    message = f"Block {block} is in the tables of {holders[block]} and {guest.name}."
                    raise self.broken("slots", message, "Each request takes blocks of its own.", guest)
                holders[block] = guest.name
        taken = [block for block in range(self.num_blocks) if self.allocator.ref_count(block)]
        lost = [block for block in taken if block not in holders]
        if lost:
            message = f"After {call}, {count(len(lost), 'block')} {'is' if len(lost) == 1 else 'are'} held by nobody."
            hint = "Was a table emptied, or left behind, without table.free(allocator)?"
            raise self.broken("preempt" if kind == "leak" else kind, message, hint)
        free = next((block for block in holders if block not in taken), None)
        if free is not None:
            message = f"{holders[free]}'s table has block {free}, which is free."
            hint = "table.free(allocator) gives blocks back and empties the table. Is something freed behind its back?"
            raise self.broken("preempt" if kind == "leak" else kind, message, hint)

    def look_at_tokens(self, guest: Guest, before) -> None:
        """What the scheduler may not touch, and what a preempted request must give up."""
        request, (computed, tokens) = guest.request, before[guest.name]
        kept = "A preempted request keeps what it has written. Only its keys and values are gone."
        if request.num_tokens != tokens:
            message = f"{guest.name} had {count(tokens, 'token')}; now it has {request.num_tokens}."
            raise self.broken("preempt", message, kept, guest)
        if [request.prompt_token_ids, request.output_token_ids] != [guest.prompt_ids, guest.written]:
            message = f"{guest.name} has another prompt, or another output, than before this step."
            raise self.broken("preempt", message, f"{kept} What is prompt stays prompt, and output output.", guest)
        if request.max_tokens != guest.output:
            message = f"{guest.name} may write {count(guest.output, 'token')}; now max_tokens is {request.max_tokens}."
            raise self.broken("preempt", message, "max_tokens is the user's. The tokens written so far count.", guest)
        if guest.runs or request.num_computed_tokens == 0:
            return
        message = f"{guest.name} has no blocks, but num_computed_tokens says {request.num_computed_tokens}."
        hint = "Its keys and values went with its blocks. How many tokens are computed now?"
        raise self.broken("preempt" if computed else "slots", message, hint, guest)

    def look_at_slots(self, guest: Guest, number: int) -> None:
        request = guest.request
        needed = request.num_computed_tokens + number
        if request.table.num_tokens == needed:
            return
        message = (
            f"{guest.name} runs {count(number, 'token')} after {request.num_computed_tokens} computed ones; "
            f"its table has slots for {request.table.num_tokens}."
        )
        hint = "table.append_tokens(n, allocator), once for each request that is scheduled, with its n."
        if not guest.runs:
            hint += " Or was it preempted after it was scheduled?"
        raise self.broken("slots", message, hint, guest)

    def look_at_order(self, out: list[Guest]) -> None:
        """Those who run came before those who wait."""
        waiting: Guest | None = None
        for guest in self.here:
            if not guest.runs:
                waiting = waiting or guest
            elif waiting is not None:
                if waiting in out:
                    message = f"{waiting.name} was preempted; {guest.name} came later and runs on."
                    hint = "Who has waited least, and loses least, when somebody must make room?"
                else:
                    message = f"{guest.name} runs before {waiting.name}, which came first."
                    hint = "Look at the first in line only. A preempted request goes back to the front."
                raise self.broken("order", message, hint, waiting, guest)

    def look_at_need(self, out: list[Guest], before) -> None:
        """Who ran stays as long as there are blocks for it and for those before it, and keeps what it has computed."""
        for guest in self.here:
            computed = guest.request.num_computed_tokens
            if guest.runs and computed < before[guest.name][0]:
                message = (
                    f"{guest.name} had {count(before[guest.name][0], 'token')} computed, now {computed}, and it runs."
                )
                hint = "Was it told to leave, and scheduled all the same? Who leaves waits. Who runs keeps its blocks."
                raise self.broken("need", message, hint, guest)
        ran = [guest for guest in self.here if before[guest.name][0]]
        needed = 0
        for guest in ran:
            needed += blocks_needed(before[guest.name][1], self.block_size)
            if needed <= self.num_blocks and guest in out:
                who = "all who ran" if guest is ran[-1] else "it and those before it"
                message = f"{guest.name} was preempted, though {who} need {needed} of {self.num_blocks} blocks."
                hint = "Those who run grow first, newcomers after them. A last block with room in it needs no new one."
                if guest is not ran[-1]:
                    hint = "One after the other leaves, the last one first, and only until the one that grows fits."
                raise self.broken("need", message, hint, *out)

    def look_at_room(self) -> None:
        """The first in line, and whether anything keeps it out. A block for each running request may be kept back."""
        line = [guest for guest in self.here if not guest.runs]
        running = [guest for guest in self.here if guest.runs]
        if not line or len(running) >= self.seats:
            return
        first, free = line[0], self.allocator.num_free
        needed = blocks_needed(first.request.num_tokens, self.block_size)
        used = sum(blocks_needed(guest.request.num_tokens, self.block_size) for guest in running)
        unused = sum(len(guest.request.table.blocks) for guest in running) - used  # more than all their tokens need
        if needed + len(running) > free + max(unused, 0):
            return
        message = f"{first.name} needs {count(needed, 'block')}, {free} are free, and it still waits."
        hint = "Does somebody look at the waiting line in every step, and take in as many as fit?"
        if unused > 0:
            message = (
                f"{first.name} needs {count(needed, 'block')} and waits. Free: {free}, and held for tokens that nobody "
                f"has written yet: {unused}."
            )
            hint = "Blocks are taken when tokens need them, not before. That is what pages are for."
        raise self.broken("joins", message, hint, first)

    # The model.

    def run(self, scheduled) -> None:
        for guest, number in scheduled:
            request = guest.request
            tokens = [*guest.prompt_ids, *guest.written]
            start = request.num_computed_tokens
            for position, slot in enumerate(request.table.slot_mapping(start, start + number), start):
                self.slots[slot] = (guest.name, position, tokens[position])
        for guest, number in scheduled:
            request = guest.request
            request.num_computed_tokens += number
            if request.num_computed_tokens == request.num_tokens:
                self.sample(guest)
        for guest, _ in scheduled:
            if len(guest.written) == guest.output:
                self.finish(guest, "it has written its last token")

    def sample(self, guest: Guest) -> None:
        read = []
        for position, slot in enumerate(guest.request.table.slot_mapping(0, guest.request.num_tokens)):
            name, place, token = self.slots.get(slot, ("nobody", -1, 0))
            if (name, place) != (guest.name, position):
                whose = f"{name}'s token {place}" if place >= 0 else "what nobody wrote"
                message = f"{guest.name} reads its token {position} in slot {slot} and finds {whose}."
                hint = "After a preemption everything is computed again, from the first token on."
                raise self.broken("outputs", message, hint, guest)
            read.append(token)
        token = next_token(read)
        if token != guest.right[len(guest.written)]:
            message = f"{guest.name} writes {token} where an endless pool gives {guest.right[len(guest.written)]}."
            raise self.broken("outputs", message, "Do tokens change their order or number somewhere?", guest)
        guest.written.append(token)
        guest.request.output_token_ids.append(token)

    def play(self, visits, aborts=()) -> None:
        """Everyone comes, and the world runs until all are gone. visits: (steps until it comes, prompt, output)."""
        aborts = list(aborts)
        for gap, prompt, output in visits:
            for _ in range(gap):
                self.abort(aborts)
                self.step()
            self.add(prompt, output)
        limit = self.num_steps + sum(guest.output for guest in self.guests) + len(self.guests) + 1
        while self.here:
            self.abort(aborts)
            if not self.here:
                break
            self.step()
            if self.num_steps > limit:
                message = f"After {count(self.num_steps, 'step')}, {self.here[0].name} is still not finished."
                raise self.broken("progress", message, "Is somebody preempted again and again?", self.here[0])
        self.step_of_nobody()

    def abort(self, aborts: list) -> None:
        if aborts and self.here:
            which = aborts.pop(0)
            if which is not None:
                self.finish(self.here[which % len(self.here)], "its user went away")

    def step_of_nobody(self) -> None:
        self.num_steps += 1
        left = self.pairs(self.call("schedule"))
        if left or self.allocator.num_free != self.num_blocks:
            message = f"All are gone, and {self.allocator.num_free} of {self.num_blocks} blocks are free."
            raise self.broken("finish", message, "Every block comes back with the request that held it.")


def kind_of(value) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"


# --- worlds -----------------------------------------------------------------------------------------------------------

PROMPT, OUTPUT = st.integers(1, 6), st.integers(1, 5)
VISIT = st.tuples(st.integers(0, 2), PROMPT, OUTPUT)
VISITS = st.lists(VISIT, min_size=1, max_size=5)
CROWD = st.lists(st.tuples(st.just(0), st.integers(1, 4), st.integers(2, 5)), min_size=3, max_size=6)
BLOCK_SIZES = st.sampled_from([2, 1, 3, 16])
SEATS = st.sampled_from([8, 1, 2, 3])
SPARE = st.integers(0, 4)
ABORTS = st.lists(st.sampled_from([None, 0, 1, 2]), max_size=6)

ROOMY = dict(visits=VISITS, block_size=BLOCK_SIZES, seats=SEATS)
TIGHT = dict(visits=VISITS, block_size=BLOCK_SIZES, spare=SPARE, seats=SEATS)
# All there at once in a small pool: several must leave in one step, and somebody in the middle ends before the others.
CROWDED = dict(visits=CROWD | VISITS, block_size=st.sampled_from([1, 2, 3]), spare=SPARE, seats=st.sampled_from([8, 3]))


def tight(visits, block_size: int, spare: int) -> int:
    """Blocks for the largest request alone, and a few more."""
    return max(blocks_needed(prompt + output - 1, block_size) for _, prompt, output in visits) + spare


def play(kinds: str, answer, visits, block_size: int, seats: int, spare: int | None = None, aborts=()) -> None:
    """Play a world. Only what breaks a promise of these kinds is told; other promises tell the rest."""
    ample = sum(blocks_needed(prompt + output, block_size) for _, prompt, output in visits) + 2
    num_blocks = ample if spare is None else tight(visits, block_size, spare)
    try:
        World(answer, num_blocks, block_size, seats).play(visits, aborts)
    except Broken as found:
        if found.kind in kinds.split():
            raise


@promise("schedule gives pairs: a request, and its number of new tokens", examples=60, **ROOMY)
def gives_pairs(answer, **world):
    play("form", answer, **world)


@promise("Every token that is scheduled has a slot", **TIGHT)
def has_slots(answer, **world):
    play("slots", answer, **world)


@promise("finish gives all blocks back, whatever the request was doing", **TIGHT, aborts=ABORTS)
def gives_back(answer, **world):
    play("finish form", answer, **world)


@promise("Everyone who runs moves on in every step", examples=60, **TIGHT)
def moves_on(answer, **world):
    play("running", answer, **world)


@promise("A request joins as soon as there is room", **ROOMY, spare=st.none() | SPARE)
def joins(answer, **world):
    play("joins", answer, **world)


@promise("No more run at once than there are seats", examples=60, **ROOMY)
def keeps_seats(answer, **world):
    play("seats", answer, **world)


@promise("First come, first served; the latest makes room", examples=250, **CROWDED, aborts=ABORTS)
def in_order(answer, **world):
    play("order", answer, **world)


@promise("Who is preempted gives up its blocks, and nothing else", **TIGHT)
def preempted(answer, **world):
    play("preempt form", answer, **world)


@promise("Nobody is preempted without need", **CROWDED, aborts=ABORTS)
def without_need(answer, **world):
    play("need", answer, **world)


@promise("Every step makes progress, until all are finished", **TIGHT, aborts=ABORTS)
def progresses(answer, **world):
    play("progress running joins order seats need finish", answer, **world)


@promise("What is written is what an endless pool would give", examples=60, **TIGHT, aborts=ABORTS)
def writes_the_same(answer, **world):
    play("outputs slots preempt", answer, **world)


@promise("Two schedulers know nothing of each other", examples=20, **TIGHT)
def independent(answer, visits, block_size, spare, seats):
    first = World(answer, 40, block_size, 8)
    first.add(3, 2)
    second = World(answer, tight(visits, block_size, spare), block_size, seats)
    second.story[:0] = [f"first = Scheduler(...)  # another one, in which {NAMES[0]} waits"]
    try:
        second.play(visits)
    except Broken as found:
        if breaks_alone(answer, (first, second), visits):
            return  # other promises tell that
        found.hint = "What stands in the class body is shared by all schedulers. Make it in __init__."
        raise


def breaks_alone(answer, worlds: tuple[World, World], visits) -> bool:
    """Whether the second of these worlds goes wrong also when all that was in both is gone."""
    try:
        for world in worlds:
            for guest in world.here:
                world.finish(guest, "away with it")
        World(answer, worlds[1].num_blocks, worlds[1].block_size, worlds[1].seats).play(visits)
    except Broken:
        return True
    return False


@promise("Also for forty requests", examples=2, seed=st.integers(0, 1))
def large_world(answer, seed):
    visits = [(number % 3 == 0, 9 + (number * 37 + seed) % 50, 2 + (number * 17) % 11) for number in range(40)]
    for spare in (0, 1):  # small ones first: three requests that all want more, and a story that is short
        small = [(0, 1, 3)] * 3
        World(answer, tight(small, 1, spare), 1, 8).play(small)
    world = World(answer, 20, 16, 12)
    try:
        world.play(visits, [None] * 20 + [5, None, 0, None, 30])
    except Broken as found:
        if world.num_steps > 4:
            found.example = "\n".join([world.story[0], f"...  # {world.num_steps - 3} steps", *world.story[-4:]])
        raise


# --- chunks -----------------------------------------------------------------------------------------------------------

NEEDS = st.lists(st.sampled_from([1, 1, 2, 3, 5, 9, 0]), max_size=6)
BUDGET = st.integers(0, 14)
DECODE = 1  # a request with one new token is decoding; more than one is a prompt, or what is left of it


def split(answer, needs: list[int], budget: int) -> tuple[list[int], str]:
    """What the answer gives, as plain numbers, and the call."""
    call = calling(f"chunked_prefill({needs}, {budget})")
    given = list(needs)
    result = answer(given, budget)
    if given != needs:
        raise Wrong(
            "It has changed the list that it was given.",
            f"{call}\nthe list is now {given}",
            "The list belongs to the caller. Work on a copy: list(num_new_tokens).",
        )
    if not isinstance(result, Sequence) or isinstance(result, str | bytes):
        raise Wrong(
            f"It gives a list of numbers; this is {kind_of(result)}.",
            f"{call} gave {tell(result, 60)}",
            "One number for each request, in the same order, 0 for those who wait.",
        )
    try:
        shares = [whole_number("a number of tokens", number) for number in result]
    except TypeError:
        raise Wrong("Tokens are whole numbers.", f"{call} gave {tell(result, 60)}", "// divides, / makes 2.5") from None
    story = f"{call} gave {shares}"
    if len(shares) != len(needs):
        raise Wrong(
            f"{count(len(needs), 'request')}, but {count(len(shares), 'number')} came back.",
            story,
            "One number for each request, in the same order, 0 for those who wait.",
        )
    return shares, story


@promise("One number for each request, none more than it needs", needs=NEEDS, budget=BUDGET)
def within_needs(answer, needs, budget):
    shares, story = split(answer, needs, budget)
    for index, (share, need) in enumerate(zip(shares, needs, strict=True)):
        if not 0 <= share <= need:
            raise Wrong(
                f"Request {index} has {count(need, 'new token')} and was given {share}.",
                story,
                "A chunk is never longer than what is left, and never below 0.",
            )


@promise("The budget is kept", needs=NEEDS, budget=BUDGET)
def within_budget(answer, needs, budget):
    shares, story = split(answer, needs, budget)
    if sum(shares) > budget:
        raise Wrong(
            f"{sum(shares)} tokens for a step of at most {budget}.",
            story,
            "What is handed out must be taken off the budget before the next one is served.",
        )


@promise("Decodes come before prompts", needs=NEEDS, budget=BUDGET)
def decodes_first(answer, needs, budget):
    shares, story = split(answer, needs, budget)
    decodes = [index for index, need in enumerate(needs) if need == DECODE]
    unserved = [index for index in decodes if not shares[index]]
    if len(decodes) - len(unserved) < min(budget, len(decodes)):
        raise Wrong(
            f"Request {unserved[0]} needs one token and gets none in this step.",
            story,
            "Somebody reads along while it writes. Serve every request with one new token first, then the prompts.",
        )


@promise("No token of the budget is left while somebody needs it", needs=NEEDS, budget=BUDGET)
def nothing_left(answer, needs, budget):
    shares, story = split(answer, needs, budget)
    could = min(budget, sum(needs))
    if sum(shares) < could:
        raise Wrong(
            f"{sum(shares)} tokens are handed out; {could} could be.",
            story,
            "A prompt that does not fit whole gets as much as there is. That is the chunk.",
        )


@promise("Prompts in order: one begins when those before it have all they need", needs=NEEDS, budget=BUDGET)
def prompts_in_order(answer, needs, budget):
    shares, story = split(answer, needs, budget)
    prompts = [index for index, need in enumerate(needs) if need > DECODE]
    for earlier, later in zip(prompts, prompts[1:], strict=False):
        if shares[later] and shares[earlier] < needs[earlier]:
            raise Wrong(
                f"Request {later} gets a chunk, but request {earlier}, which came first, could have used it.",
                story,
                "The first prompt takes min(what it needs, what is left), then the next.",
            )


@promise("Decodes in order too", needs=NEEDS, budget=st.integers(0, 3))
def decodes_in_order(answer, needs, budget):
    shares, story = split(answer, needs, budget)
    decodes = [index for index, need in enumerate(needs) if need == DECODE]
    for earlier, later in zip(decodes, decodes[1:], strict=False):
        if shares[later] and not shares[earlier]:
            raise Wrong(
                f"Request {later} decodes in this step, request {earlier} does not, and came first.",
                story,
                "When the budget is smaller than the number of decodes, who is served?",
            )


@promise("Also for a thousand requests and a budget of 512", examples=4, seed=st.integers(0, 3))
def large_batch(answer, seed):
    needs = [1 if (index * 7 + seed) % 3 else 40 + index * 37 % 5000 for index in range(1000)]
    for budget in (512, 10_000_000):
        right = sum(needs) if budget > sum(needs) else budget
        shares, _ = split(answer, needs, budget)
        if sum(shares) != right:
            raise Wrong(
                f"{sum(shares)} tokens are handed out; {right} could be.",
                f"chunked_prefill([1000 requests], {budget})",
                "Does anything in it hold only for a few requests?",
            )


EXERCISES = (
    Exercise(
        id="scheduler",
        title="Who runs in this step",
        kind="class",
        reference="pagedlab.engine.scheduler:Scheduler",
        promises=(
            gives_pairs,
            has_slots,
            gives_back,
            moves_on,
            joins,
            keeps_seats,
            in_order,
            preempted,
            without_need,
            progresses,
            writes_the_same,
            independent,
            large_world,
        ),
        hints=(
            "Two lists, waiting and running, both in order of arrival. A step has two halves: those who run grow; "
            "then the first in line come in, while there is a seat and room.",
            "How many blocks does a request need now? blocks_needed(request.num_tokens, block_size) minus "
            "len(request.table.blocks). Compare it with allocator.num_free before you append.",
            "When a running request can't grow, the last of running leaves: table.free(allocator), "
            "num_computed_tokens = 0, and to the front of waiting. Try again. It may turn out to be the very request "
            "that wanted to grow: then nobody is left to make room, and it waits.",
            "for request in list(self.running):\n"
            "    while request in self.running and not self.fits(request):\n"
            "        self.preempt(self.running[-1])\n"
            "    if request in self.running:\n"
            "        self.grow(request)   # append_tokens, and note (request, n)\n"
            "Then, while somebody waits, a seat is free and the first in line fits: move it to running and grow it.",
        ),
    ),
    Exercise(
        id="chunked_prefill",
        title="A token budget for each step",
        kind="function",
        reference="pagedlab.engine.chunked:chunked_prefill",
        promises=(
            within_needs,
            within_budget,
            decodes_first,
            nothing_left,
            prompts_in_order,
            decodes_in_order,
            large_batch,
        ),
        hints=(
            "Two rounds over the same list. Which requests does the first one serve?",
            "Start with shares = [0] * len(num_new_tokens). In each round, what is handed out leaves the budget.",
            "In both rounds: share = min(need, budget). The first round looks only at requests that need 1 token.",
            "for decoding in (True, False):\n"
            "    for i, need in enumerate(num_new_tokens):\n"
            "        if (need == 1) == decoding:\n"
            "            shares[i] = min(need, token_budget)\n"
            "            token_budget -= shares[i]",
        ),
    ),
)

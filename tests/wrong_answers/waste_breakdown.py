"""Plausible wrong answers to `waste_breakdown`."""

from tests.corpus import wrong

STATES = "token_states: slots that hold a token now"
RESERVED = "reserved: slots whose token is still to come"
INTERNAL = "internal: slots a request owns and will never use"
EXTERNAL = "external: slots nobody owns"
GIVEN = "What it is given stays as it was"
AGAIN = "The same question gets the same answer"


def sums(requests):
    stored = sum(request.num_tokens for request in requests)
    final = sum(request.final_tokens for request in requests)
    owned = sum(request.reserved_slots for request in requests)
    return stored, final, owned


@wrong(RESERVED, "reserved is")
def reserved_is_everything_empty(requests, num_slots):
    stored, final, owned = sums(requests)
    return stored, owned - stored, owned - final, num_slots - owned


@wrong(INTERNAL, "add up to")
def internal_starts_at_what_is_stored(requests, num_slots):
    stored, final, owned = sums(requests)
    return stored, final - stored, owned - stored, num_slots - owned


@wrong(EXTERNAL, "external is")
def external_is_everything_empty(requests, num_slots):
    stored, final, owned = sums(requests)
    return stored, final - stored, owned - final, num_slots - stored


@wrong(EXTERNAL, "external is")
def external_is_what_will_stay_empty(requests, num_slots):
    stored, final, owned = sums(requests)
    return stored, final - stored, owned - final, num_slots - final


@wrong(STATES, "token_states is")
def counts_tokens_to_come(requests, num_slots):
    stored, final, owned = sums(requests)
    return final, final - stored, owned - final, num_slots - owned


@wrong(RESERVED, "right is")
def swaps_reserved_and_internal(requests, num_slots):
    stored, final, owned = sums(requests)
    return stored, owned - final, final - stored, num_slots - owned


@wrong(RESERVED, "right is")
def takes_reserved_at_its_word(requests, num_slots):
    stored, final, owned = sums(requests)
    return stored, owned, owned - final, num_slots - owned


@wrong(STATES, "fractions")
def gives_fractions(requests, num_slots):
    stored, final, owned = sums(requests)
    counts = (stored, final - stored, owned - final, num_slots - owned)
    return tuple(count / max(num_slots, 1) for count in counts)


@wrong(STATES)
def returns_inside_the_loop(requests, num_slots):
    stored = final = owned = 0
    for request in requests:
        stored += request.num_tokens
        final += request.final_tokens
        owned += request.reserved_slots
        return stored, final - stored, owned - final, num_slots - owned
    return 0, 0, 0, num_slots


@wrong(STATES, "IndexError")
def needs_a_request(requests, num_slots):
    each = requests[0].reserved_slots
    stored, final, _ = sums(requests)
    return stored, final - stored, each * len(requests) - final, num_slots - each * len(requests)


@wrong(INTERNAL)
def all_reservations_alike(requests, num_slots):
    stored, final, _ = sums(requests)
    owned = requests[0].reserved_slots * len(requests) if requests else 0
    return stored, final - stored, owned - final, num_slots - owned


@wrong(STATES, "right is")
def keeps_only_the_last_request(requests, num_slots):
    stored = final = owned = 0
    for request in requests:
        stored, final, owned = request.num_tokens, request.final_tokens, request.reserved_slots
    return stored, final - stored, owned - final, num_slots - owned


@wrong(STATES, "dict")
def gives_a_dict(requests, num_slots):
    stored, final, owned = sums(requests)
    return {
        "token_states": stored,
        "reserved": final - stored,
        "internal": owned - final,
        "external": num_slots - owned,
    }


@wrong(STATES, "these are 3")
def leaves_out_the_pool(requests, num_slots):
    stored, final, owned = sums(requests)
    return stored, final - stored, owned - final


@wrong(EXTERNAL, "external is")
def external_per_request(requests, num_slots):
    stored, final, owned = sums(requests)
    return stored, final - stored, owned - final, sum(num_slots - request.reserved_slots for request in requests)


@wrong(STATES, "NoneType")
def prints_it(requests, num_slots):
    stored, final, owned = sums(requests)
    print(stored, final - stored, owned - final, num_slots - owned)


@wrong(EXTERNAL, "add up to")
def forgets_the_free_slots(requests, num_slots):
    stored, final, owned = sums(requests)
    return stored, final - stored, owned - final, num_slots % owned if owned else 0


totals = {"stored": 0}


@wrong(STATES)
def goes_on_counting(requests, num_slots):
    stored, final, owned = sums(requests)
    totals["stored"] += stored
    return totals["stored"], final - stored, owned - final, num_slots - owned


@wrong(GIVEN, "after the call: []")
def clears_the_list(requests, num_slots):
    stored, final, owned = sums(requests)
    requests.clear()
    return stored, final - stored, owned - final, num_slots - owned


@wrong(GIVEN, "belongs to the caller")
def takes_them_off_one_by_one(requests, num_slots):
    stored = final = owned = 0
    while requests:
        request = requests.pop()
        stored, final = stored + request.num_tokens, final + request.final_tokens
        owned += request.reserved_slots
    return stored, final - stored, owned - final, num_slots - owned


@wrong(GIVEN, "`sort`")
def sorts_them(requests, num_slots):
    requests.sort(key=lambda request: -request.num_tokens)
    stored, final, owned = sums(requests)
    return stored, final - stored, owned - final, num_slots - owned

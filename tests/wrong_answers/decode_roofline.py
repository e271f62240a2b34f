"""Plausible wrong answers to `decode_roofline`."""

from tests.corpus import wrong

BYTES = "Keys and values are read once for each kv head"
FLOPS = "Every query head does its arithmetic"
INTENSITY = "Intensity is FLOPs for a byte"
SECONDS = "The floor is the slower of moving and calculating"
BOUND = "It says which of the two it is"
ANY = "Any shape"


def moved(num_seqs, seq_len, num_heads, num_kv_heads, head_dim, width):
    return num_seqs * (2 * seq_len * num_kv_heads + 2 * num_heads) * head_dim * width


def computed(num_seqs, seq_len, num_heads, head_dim):
    return num_seqs * 4 * seq_len * num_heads * head_dim


def floor(size, flops, gpu):
    moving, computing = size / gpu.memory_bandwidth, flops / gpu.fp16_flops
    return size, flops, flops / size, max(moving, computing), "memory" if moving > computing else "compute"


def with_bytes(count):
    def answer(num_seqs, seq_len, num_heads, num_kv_heads, head_dim, width, gpu):
        size = count(num_seqs, seq_len, num_heads, num_kv_heads, head_dim, width)
        return floor(size, computed(num_seqs, seq_len, num_heads, head_dim), gpu)

    return answer


def with_flops(count):
    def answer(num_seqs, seq_len, num_heads, num_kv_heads, head_dim, width, gpu):
        size = moved(num_seqs, seq_len, num_heads, num_kv_heads, head_dim, width)
        return floor(size, count(num_seqs, seq_len, num_heads, num_kv_heads, head_dim), gpu)

    return answer


def right(num_seqs, seq_len, num_heads, num_kv_heads, head_dim, width, gpu):
    size = moved(num_seqs, seq_len, num_heads, num_kv_heads, head_dim, width)
    return floor(size, computed(num_seqs, seq_len, num_heads, head_dim), gpu)


@wrong(BYTES, "were counted for 35 heads; 5 are stored")
def reads_for_every_query_head(*call):
    return with_bytes(lambda n, length, h, kv, d, w: n * (2 * length * h + 2 * h) * d * w)(*call)


@wrong(BYTES, "Only one of keys and values")
def forgets_the_values(*call):
    return with_bytes(lambda n, length, h, kv, d, w: n * (length * kv + 2 * h) * d * w)(*call)


@wrong(BYTES, "queries and the output were left out")
def forgets_queries_and_output(*call):
    return with_bytes(lambda n, length, h, kv, d, w: n * 2 * length * kv * d * w)(*call)


@wrong(BYTES, "a query for every query head")
def one_query_head(*call):
    return with_bytes(lambda n, length, h, kv, d, w: n * (2 * length * kv + 2) * d * w)(*call)


@wrong(BYTES, "That is one sequence")
def forgets_the_batch(*call):
    return with_bytes(lambda n, length, h, kv, d, w: (2 * length * kv + 2 * h) * d * w)(*call)


@wrong(BYTES, "have 2 bytes; it has")
def always_half_precision(*call):
    return with_bytes(lambda n, length, h, kv, d, w: n * (2 * length * kv + 2 * h) * d * 2)(*call)


@wrong(FLOPS, "That is half")
def a_product_is_one_flop(*call):
    return with_flops(lambda n, length, h, kv, d: n * 2 * length * h * d)(*call)


@wrong(FLOPS, "5 kv heads are read, but 35 query heads calculate")
def calculates_for_kv_heads(*call):
    return with_flops(lambda n, length, h, kv, d: n * 4 * length * kv * d)(*call)


@wrong(FLOPS, "That would be prefill")
def every_token_asks(*call):
    return with_flops(lambda n, length, h, kv, d: n * 4 * length * length * h * d)(*call)


@wrong(FLOPS, "The softmax was counted, too")
def counts_the_softmax(*call):
    return with_flops(lambda n, length, h, kv, d: n * h * length * (4 * d + 5))(*call)


@wrong(INTENSITY, "upside down")
def bytes_for_a_flop(*call):
    size, flops, _, seconds, bound = right(*call)
    return size, flops, size / flops, seconds, bound


@wrong(SECONDS, "they don't add up")
def adds_both(*call):
    size, flops, intensity, _, bound = right(*call)
    return size, flops, intensity, size / call[-1].memory_bandwidth + flops / call[-1].fp16_flops, bound


@wrong(SECONDS, "Here calculating takes longer")
def always_moving(*call):
    size, flops, intensity, _, bound = right(*call)
    return size, flops, intensity, size / call[-1].memory_bandwidth, bound


@wrong(SECONDS, "two rates are swapped")
def swaps_the_rates(*call):
    size, flops, intensity, _, bound = right(*call)
    return size, flops, intensity, max(size / call[-1].fp16_flops, flops / call[-1].memory_bandwidth), bound


@wrong(BOUND, "below the ridge")
def bounds_swapped(*call):
    *rest, bound = right(*call)
    return *rest, "compute" if bound == "memory" else "memory"


@wrong(BOUND, "above the ridge")
def decode_is_always_bound_by_memory(*call):
    *rest, _ = right(*call)
    return *rest, "memory"


@wrong(BYTES, "That is flops, in the place of bytes")
def in_another_order(*call):
    size, flops, *rest = right(*call)
    return flops, size, *rest


@wrong(ANY, "`bytes` is wrong")
def pads_head_dim(*call):
    def padded(n, length, h, kv, d, w):
        d = 128 if 64 < d < 128 else d
        return n * (2 * length * kv + 2 * h) * d * w

    return with_bytes(padded)(*call)

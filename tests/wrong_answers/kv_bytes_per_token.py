"""Plausible wrong answers to `kv_bytes_per_token`."""

from tests.corpus import wrong

PLAIN = "Every query head has a kv head of its own"
SHARED = "Several query heads share a kv head"
WIDTH = "The model says how wide a head is"


@wrong(SHARED, "query heads were counted")
def counts_query_heads(config, bytes_per_element):
    return 2 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * bytes_per_element


@wrong(SHARED, "query heads")
def uses_hidden_size(config, bytes_per_element):
    return 2 * config.num_hidden_layers * config.hidden_size * bytes_per_element


@wrong(WIDTH, "not this model's head_dim")
def derives_head_dim(config, bytes_per_element):
    head_dim = config.hidden_size // config.num_attention_heads
    return 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * bytes_per_element


@wrong(PLAIN, "half of it")
def forgets_the_values(config, bytes_per_element):
    return config.num_hidden_layers * config.num_key_value_heads * config.head_dim * bytes_per_element


@wrong(PLAIN, "one layer's share")
def forgets_the_layers(config, bytes_per_element):
    return 2 * config.num_key_value_heads * config.head_dim * bytes_per_element


@wrong(PLAIN, "one kv head's share")
def forgets_the_heads(config, bytes_per_element):
    return 2 * config.num_hidden_layers * config.head_dim * bytes_per_element


@wrong(PLAIN, "head_dim is missing")
def forgets_the_width(config, bytes_per_element):
    return 2 * config.num_hidden_layers * config.num_key_value_heads * bytes_per_element


@wrong(PLAIN, "not bytes")
def counts_numbers(config, bytes_per_element):
    return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim


@wrong(PLAIN, "bits")
def counts_bits(config, bytes_per_element):
    return 8 * 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * bytes_per_element


@wrong(PLAIN, "was taken to have 2 bytes")
def always_float16(config, bytes_per_element):
    return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 2


@wrong(PLAIN, "was taken to have 4 bytes")
def always_float32(config, bytes_per_element):
    return 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim * 4


@wrong(PLAIN, "float")
def goes_through_a_float(config, bytes_per_element):
    head_dim = config.hidden_size / config.num_attention_heads
    return 2 * config.num_hidden_layers * config.num_key_value_heads * head_dim * bytes_per_element


@wrong(SHARED, "number of bytes is wrong")
def counts_queries_too(config, bytes_per_element):
    width = (config.num_attention_heads + config.num_key_value_heads) * config.head_dim
    return config.num_hidden_layers * width * bytes_per_element


@wrong(SHARED, "number of bytes is wrong")
def takes_the_group_for_the_heads(config, bytes_per_element):
    group = config.num_attention_heads // config.num_key_value_heads
    heads = config.num_attention_heads if group == 1 else group
    return 2 * config.num_hidden_layers * heads * config.head_dim * bytes_per_element


@wrong(PLAIN, "number of bytes is wrong")
def knows_only_the_course_model(config, bytes_per_element):
    return 2 * 30 * 3 * 64 * bytes_per_element


@wrong(PLAIN, "counted twice")
def keys_and_values_have_heads_each(config, bytes_per_element):
    heads = config.num_key_value_heads * config.num_key_value_heads
    return 2 * config.num_hidden_layers * heads * config.head_dim * bytes_per_element


@wrong(PLAIN, "NoneType")
def forgets_to_return(config, bytes_per_element):
    size = 2 * config.num_hidden_layers * config.num_key_value_heads * config.head_dim  # noqa: F841


@wrong(PLAIN, "AttributeError")
def misspells_a_field(config, bytes_per_element):
    return 2 * config.num_layers * config.num_key_value_heads * config.head_dim * bytes_per_element

"""Right answers to `kv_bytes_per_token` in styles other than ours."""

import math

import torch

from tests.corpus import right


@right
def one_product(config, bytes_per_element):
    return config.num_hidden_layers * config.num_key_value_heads * config.head_dim * bytes_per_element * 2


@right
def layer_by_layer(config, bytes_per_element):
    total = 0
    for _ in range(config.num_hidden_layers):
        for _ in ("keys", "values"):
            total += config.num_key_value_heads * config.head_dim * bytes_per_element
    return total


@right
def by_shape(config, bytes_per_element):
    shape = (2, config.num_hidden_layers, config.num_key_value_heads, 1, config.head_dim)
    return math.prod(shape) * bytes_per_element


@right
def asks_a_tensor(config, bytes_per_element):
    dtype = {1: torch.uint8, 2: torch.float16, 4: torch.float32}[bytes_per_element]
    one_token = torch.empty(config.num_hidden_layers, config.num_key_value_heads, config.head_dim, dtype=dtype)
    return one_token.nbytes + one_token.nbytes


@right
def from_the_query_heads(config, bytes_per_element):
    group = config.num_attention_heads // config.num_key_value_heads
    heads = config.num_attention_heads // group
    key = heads * config.head_dim * bytes_per_element
    return (key + key) * config.num_hidden_layers

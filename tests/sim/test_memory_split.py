"""Parameter counts against the published ones, and the paper's 13B example."""

import math
from dataclasses import replace

import pytest

from pagedlab.model.config import KNOWN_MODELS
from pagedlab.sim.memory_split import GB, GIB, memory_split, num_parameters, opt_13b_on_40_gb


@pytest.mark.parametrize(
    ("model", "gated_mlp", "billions"),
    [
        ("LLaMA-13B", True, 13.0),
        ("SmolLM2-135M", True, 0.1345),
        ("Llama-3.1-8B", True, 8.03),
        ("Llama-3.1-70B", True, 70.6),
        ("Qwen2.5-7B", True, 7.62),
        ("OPT-13B", False, 12.85),
        ("OPT-175B", False, 174.6),
    ],
)
def test_num_parameters(model, gated_mlp, billions):
    assert num_parameters(KNOWN_MODELS[model], gated_mlp) / 1e9 == pytest.approx(billions, rel=0.002)


@pytest.mark.parametrize("tied", [False, True])
def test_num_parameters_counts_what_the_model_asks_for(tied):
    import torch

    from pagedlab.model.llama import Llama
    from pagedlab.model.tiny import tiny_llama

    config = tiny_llama(num_layers=3, num_heads=4, num_kv_heads=2, head_dim=6, vocab_size=31).config
    config = replace(config, tie_word_embeddings=tied)
    sizes = {}

    def weights(name, shape):
        sizes[name] = math.prod(shape)
        return torch.zeros(shape)

    Llama(config, weights, fast=False)
    assert num_parameters(config) == sum(sizes.values())


def test_the_papers_example():
    split = opt_13b_on_40_gb()
    assert split.num_slots == 15_728
    assert split.weights / GB == pytest.approx(26, abs=0.5)
    assert split.kv_cache == 12 * GIB
    assert split.weights + split.kv_cache + split.other == 40 * GB
    shares = split.shares()
    assert sum(shares.values()) == pytest.approx(1)
    assert 0.62 < shares["weights"] < 0.67  # Figure 1: about 65 %
    assert 0.28 < shares["KV cache"] < 0.34  # about 30 %
    assert 0 < shares["other"] < 0.10


def test_memory_that_does_not_suffice():
    with pytest.raises(ValueError, match=r"25\.7 GB of weights and 15\.0 GB of KV cache do not go into 40\.0 GB"):
        memory_split(KNOWN_MODELS["OPT-13B"], 40 * GB, 15 * GB, gated_mlp=False)
    with pytest.raises(ValueError, match="kv_bytes must be from 0 to 0"):
        memory_split(KNOWN_MODELS["Llama-3.1-70B"], 40 * GB, GB)
    with pytest.raises(ValueError, match="-1"):
        memory_split(KNOWN_MODELS["LLaMA-13B"], 40 * GB, -GB)

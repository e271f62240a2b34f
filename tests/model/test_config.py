import dataclasses

import pytest

from pagedlab.model.config import KNOWN_MODELS, ModelConfig

GOOD = KNOWN_MODELS["SmolLM2-135M"]


@pytest.mark.parametrize("name", KNOWN_MODELS)
def test_known_shapes_are_consistent(name):
    config = KNOWN_MODELS[name]
    assert config.name == name
    assert config.hidden_size == config.num_attention_heads * config.head_dim  # true of all of these models


def test_the_course_model_is_as_listed(smollm):
    named = dataclasses.replace(smollm.config, name=GOOD.name, rms_norm_eps=GOOD.rms_norm_eps)
    assert named == GOOD
    assert smollm.config.rms_norm_eps == pytest.approx(GOOD.rms_norm_eps)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"num_key_value_heads": 2}, "9 query heads cannot share 2 kv heads"),
        ({"head_dim": 63}, "even.*63"),
        ({"num_hidden_layers": 0}, "num_hidden_layers must be a whole number of at least 1, not 0"),
        ({"vocab_size": 1.5}, "vocab_size must be a whole number"),
        ({"hidden_size": True}, "hidden_size must be a whole number"),
        ({"rope_divisors": (1.0,)}, "1 rope divisors for 32 rotary pairs"),
    ],
)
def test_numbers_that_do_not_fit_are_refused(changes, message):
    fields = dataclasses.asdict(GOOD) | changes
    with pytest.raises(ValueError, match=message):
        ModelConfig(**fields)

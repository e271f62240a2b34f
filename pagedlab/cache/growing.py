"""The simplest cache that works: a tensor per layer that gets longer each step.

Correct, and what many first implementations do. `torch.cat` makes a new tensor and copies every earlier token into it,
each step, in each layer: lesson 02 looks at what that costs and what people did instead.
"""

import torch


class GrowingCache:
    """Keys and values of one sequence, `[num_kv_heads, num_tokens, head_dim]` per layer."""

    def __init__(self, num_layers: int):
        if num_layers < 1:
            raise ValueError(f"a cache needs at least 1 layer, not {num_layers}")
        self.keys: list[torch.Tensor | None] = [None] * num_layers
        self.values: list[torch.Tensor | None] = [None] * num_layers

    @property
    def num_tokens(self) -> int:
        """Positions stored so far, read from the last layer: a position counts once every layer has it."""
        return 0 if self.keys[-1] is None else self.keys[-1].shape[1]

    def append(self, layer: int, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Put `[num_kv_heads, num_new, head_dim]` behind what `layer` holds; return all of it."""
        if not 0 <= layer < len(self.keys):
            raise IndexError(f"layer {layer} of a cache with {len(self.keys)} layers")
        if keys.shape != values.shape:
            raise ValueError(f"keys are {tuple(keys.shape)} but values are {tuple(values.shape)}; they must be equal")
        if self.keys[layer] is not None:
            keys = torch.cat([self.keys[layer], keys], dim=1)
            values = torch.cat([self.values[layer], values], dim=1)
        self.keys[layer], self.values[layer] = keys, values
        return keys, values

"""Right answers to `growing_cache` in styles other than ours."""

from collections import defaultdict

import numpy as np
import torch

from tests.corpus import right


@right
class JoinsWhenAsked:
    """Keeps every step's tensors apart until somebody wants them."""

    def __init__(self, num_layers):
        self.steps = [([], []) for _ in range(num_layers)]

    @property
    def num_tokens(self):
        return sum(keys.shape[1] for keys in self.steps[-1][0])

    def append(self, layer, keys, values):
        all_keys, all_values = self.steps[layer]
        all_keys.append(keys)
        all_values.append(values)
        return torch.cat(all_keys, dim=1), torch.cat(all_values, dim=1)


@right
class OneTensorForBoth:
    def __init__(self, num_layers):
        self.stored = {}
        self.num_tokens = 0

    def append(self, layer, keys, values):
        new = torch.stack([keys, values])
        old = self.stored.get(layer, new[:, :, :0])
        self.stored[layer] = torch.cat([old, new], dim=2)
        self.num_tokens = self.stored[layer].shape[2]
        return tuple(self.stored[layer])


@right
class DoublesItsRoom:
    """Reserves twice as much whenever it is full, and hands out views."""

    def __init__(self, num_layers):
        self.room = [None] * num_layers
        self.used = [0] * num_layers

    @property
    def num_tokens(self):
        return self.used[-1]

    def append(self, layer, keys, values):
        new, used = torch.stack([keys, values]), self.used[layer]
        end = used + keys.shape[1]
        if self.room[layer] is None or end > self.room[layer].shape[2]:
            larger = new.new_empty(2, keys.shape[0], 2 * end, keys.shape[2])
            if used:
                larger[:, :, :used] = self.room[layer][:, :, :used]
            self.room[layer] = larger
        self.room[layer][:, :, used:end] = new
        self.used[layer] = end
        return self.room[layer][0, :, :end], self.room[layer][1, :, :end]


@right
class ATokenAtATime:
    def __init__(self, num_layers):
        self.tokens = defaultdict(list)
        self.last = num_layers - 1

    @property
    def num_tokens(self):
        return len(self.tokens[self.last])

    def append(self, layer, keys, values):
        self.tokens[layer] += zip(keys.unbind(1), values.unbind(1), strict=True)
        return [torch.stack(one, dim=1) for one in zip(*self.tokens[layer], strict=True)]


class OneLayer:
    def __init__(self):
        self.keys = self.values = None

    def append(self, keys, values):
        self.keys = keys if self.keys is None else torch.hstack([self.keys, keys])
        self.values = values if self.values is None else torch.hstack([self.values, values])
        return self.keys, self.values


@right
class AnObjectPerLayer:
    def __init__(self, num_layers):
        self.layers = [OneLayer() for _ in range(num_layers)]
        self.num_tokens = 0

    def append(self, layer, keys, values):
        if layer == len(self.layers) - 1:
            self.num_tokens += keys.shape[1]
        return self.layers[layer].append(keys, values)


@right
class CountsWithNumpy:
    """num_tokens is a numpy integer; memory doubles when it is full."""

    def __init__(self, num_layers):
        self.stored = np.zeros(num_layers, dtype=np.int64)
        self.memory = [None] * num_layers

    @property
    def num_tokens(self):
        return self.stored[-1]

    def append(self, layer, keys, values):
        start, end = self.stored[layer], self.stored[layer] + keys.shape[1]
        memory = self.memory[layer]
        if memory is None or memory.shape[2] < end:
            larger = keys.new_empty(2, keys.shape[0], 2 * int(end), keys.shape[2])
            if memory is not None:
                larger[:, :, :start] = memory[:, :, :start]
            memory = self.memory[layer] = larger
        memory[0, :, start:end], memory[1, :, start:end] = keys, values
        self.stored[layer] = end
        return memory[0, :, :end], memory[1, :, :end]

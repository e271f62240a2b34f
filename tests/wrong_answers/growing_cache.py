"""Plausible wrong answers to `growing_cache`."""

import torch

from tests.corpus import wrong

ORDER = "Every token comes back, oldest first"
LAYERS = "Layers don't mix"
EMPTY = "A new cache holds no tokens"
COUNTS = "num_tokens counts the tokens of one layer"
ENDLESS = "It grows as long as tokens come"
APART = "Two caches know nothing of each other"


class Right:
    """What the wrong ones below have in common: a pair of lists and a join."""

    def __init__(self, num_layers):
        self.keys, self.values = [None] * num_layers, [None] * num_layers

    @property
    def num_tokens(self):
        return 0 if self.keys[-1] is None else self.keys[-1].shape[1]

    def append(self, layer, keys, values):
        if self.keys[layer] is not None:
            keys, values = self.join(self.keys[layer], keys), self.join(self.values[layer], values)
        self.keys[layer], self.values[layer] = keys, values
        return keys, values

    def join(self, old, new):
        return torch.cat([old, new], dim=1)


@wrong(ORDER, "newest tokens came first")
class NewestFirst(Right):
    def join(self, old, new):
        return torch.cat([new, old], dim=1)


@wrong(ORDER, "wrong shape")
class JoinsTheHeads(Right):
    def join(self, old, new):
        return torch.cat([old, new], dim=0)


@wrong(ORDER, "wrong shape")
class JoinsTheNumbers(Right):
    def join(self, old, new):
        return torch.cat([old, new], dim=2)


@wrong(ORDER, "Only this step's tokens")
class ReturnsOnlyTheNew(Right):
    def append(self, layer, keys, values):
        super().append(layer, keys, values)
        return keys, values


@wrong(ORDER, "Only this step's tokens")
class Overwrites(Right):
    def append(self, layer, keys, values):
        self.keys[layer], self.values[layer] = keys, values
        return keys, values


@wrong(ORDER, "Only the tokens of earlier steps")
class ReturnsWhatWasBefore(Right):
    def append(self, layer, keys, values):
        before = self.keys[layer], self.values[layer]
        now = super().append(layer, keys, values)
        return now if before[0] is None else before


@wrong(ORDER, "other tensor")
class SwapsKeysAndValues(Right):
    def append(self, layer, keys, values):
        return super().append(layer, keys, values)[::-1]


@wrong(ORDER, "joined once more")
class ForgetsToStoreTheJoined(Right):
    def append(self, layer, keys, values):
        if self.keys[layer] is None:
            self.keys[layer], self.values[layer] = keys, values
        return self.join(self.keys[layer], keys), self.join(self.values[layer], values)


@wrong(ORDER, "wrong shape")
class StoresOnlyTheLastTokenOfAStep(Right):
    def append(self, layer, keys, values):
        return super().append(layer, keys[:, -1:], values[:, -1:])


@wrong(ORDER, "gives back two tensors")
class ReturnsNothing(Right):
    def append(self, layer, keys, values):
        super().append(layer, keys, values)


@wrong(ORDER, "list")
class ReturnsListsOfTensors(Right):
    def append(self, layer, keys, values):
        self.keys[layer] = (self.keys[layer] or []) + [keys]
        self.values[layer] = (self.values[layer] or []) + [values]
        return self.keys[layer], self.values[layer]


@wrong(LAYERS)
class OneStoreForAllLayers(Right):
    def append(self, layer, keys, values):
        return super().append(0, keys, values)


@wrong(LAYERS, "IndexError")
class RoomForOneLayer(Right):
    def __init__(self, num_layers):
        super().__init__(1)


@wrong(LAYERS)
class TheSameListInEachLayer(Right):
    def __init__(self, num_layers):
        self.keys, self.values = [[]] * num_layers, [[]] * num_layers

    @property
    def num_tokens(self):
        return sum(keys.shape[1] for keys in self.keys[-1])

    def append(self, layer, keys, values):
        self.keys[layer].append(keys)
        self.values[layer].append(values)
        return torch.cat(self.keys[layer], 1), torch.cat(self.values[layer], 1)


@wrong(EMPTY, "before the first append")
class CantCountNothing(Right):
    @property
    def num_tokens(self):
        return self.keys[0].shape[1]


@wrong(EMPTY, "whole number")
class NothingIsNone(Right):
    @property
    def num_tokens(self):
        return None if self.keys[-1] is None else self.keys[-1].shape[1]


@wrong(EMPTY, "without parentheses")
class NumTokensIsAMethod(Right):
    def num_tokens(self):
        return 0 if self.keys[-1] is None else self.keys[-1].shape[1]


@wrong(COUNTS)
class CountsEveryLayer(Right):
    def __init__(self, num_layers):
        super().__init__(num_layers)
        self.count = 0

    @property
    def num_tokens(self):
        return self.count

    def append(self, layer, keys, values):
        self.count += keys.shape[1]
        return super().append(layer, keys, values)


@wrong(COUNTS)
class CountsHeads(Right):
    @property
    def num_tokens(self):
        return 0 if self.keys[-1] is None else self.keys[-1].shape[0]


@wrong(COUNTS, "several tokens")
class CountsSteps(Right):
    steps = 0

    @property
    def num_tokens(self):
        return self.steps

    def append(self, layer, keys, values):
        self.steps += layer == 0
        return super().append(layer, keys, values)


@wrong(ORDER, "shared by all caches")
class SharedByAllCaches(Right):
    stored_keys, stored_values = {}, {}

    def __init__(self, num_layers):
        self.keys, self.values = self.stored_keys, self.stored_values
        for layer in range(num_layers):
            self.keys.setdefault(layer)
            self.values.setdefault(layer)


newest = []


@wrong(APART)
class TheNewestCacheAnswersForAll(Right):
    """Right as long as there is one: a helper outside the class holds the cache that is in use."""

    def __init__(self, num_layers):
        super().__init__(num_layers)
        newest[:] = [self]

    def append(self, layer, keys, values):
        return Right.append(newest[0], layer, keys, values)

    @property
    def num_tokens(self):
        return Right.num_tokens.fget(newest[0])


class Buffered:
    """A buffer of a fixed size, which is meant to be large enough."""

    size = 64

    def __init__(self, num_layers):
        self.keys, self.values, self.stored = [None] * num_layers, [None] * num_layers, [0] * num_layers

    @property
    def num_tokens(self):
        return self.stored[-1]

    def append(self, layer, keys, values):
        heads, num_new, head_dim = keys.shape
        if self.keys[layer] is None:
            self.keys[layer], self.values[layer] = torch.zeros(2, heads, self.size, head_dim).unbind(0)
        start = self.stored[layer]
        end = self.stored[layer] = start + num_new
        self.keys[layer][:, start:end], self.values[layer][:, start:end] = keys, values
        return self.keys[layer][:, :end], self.values[layer][:, :end]


@wrong(ENDLESS, "100 tokens in 1 step")
class BufferOf64(Buffered):
    pass


@wrong(ENDLESS, "5,001 tokens in 2 steps")
class BufferOf4096(Buffered):
    size = 4096


@wrong(ENDLESS, "tokens")
class KeepsTheLast64(Right):
    def join(self, old, new):
        return super().join(old, new)[:, -64:]

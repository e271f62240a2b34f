"""Plausible wrong answers to `static_cache`: a right one, and classes that differ from it in one thing."""

import torch

from pagedlab.cache.static import CacheFullError
from tests.corpus import wrong

RESERVES = "The memory is reserved up front"
ORDER = "Every token comes back, oldest first"
LAYERS = "Layers don't mix"
ROWS = "Rows don't mix"
COUNTS = "num_tokens counts each token of a row once"
PLACE = "Tokens lie in the reserved memory, which never moves"
FULL = "A row takes max_len tokens, and not one more"
NUMBERS = "CacheFullError says the numbers"
WHOLE = "A refused step changes nothing"


class Right:
    def __init__(self, num_layers, batch_size, num_kv_heads, max_len, head_dim):
        shape = batch_size, num_kv_heads, max_len, head_dim
        self.max_len = max_len
        self.keys = [torch.zeros(shape) for _ in range(num_layers)]
        self.values = [torch.zeros(shape) for _ in range(num_layers)]
        self.stored = [[0] * batch_size for _ in range(num_layers)]

    def append(self, layer, row, keys, values):
        start, end = self.span(layer, row, keys.shape[1])
        self.write(layer, row, start, end, keys, values)
        self.stored[layer][row] = end
        return self.keys[layer][row, :, :end], self.values[layer][row, :, :end]

    def span(self, layer, row, num_new):
        start = self.stored[layer][row]
        if start + num_new > self.max_len:
            raise CacheFullError(row, start, num_new, self.max_len)
        return start, start + num_new

    def write(self, layer, row, start, end, keys, values):
        self.keys[layer][row, :, start:end] = keys
        self.values[layer][row, :, start:end] = values

    def num_tokens(self, row):
        return self.stored[-1][row]


# --- the memory ---


@wrong(RESERVES, "can't be read")
class ReservesNothing(Right):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.keys, self.values = [], []


@wrong(RESERVES, "not a tensor")
class ReservesLater(Right):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.keys, self.values = [None] * sizes[0], [None] * sizes[0]


@wrong(RESERVES, "has shape")
class ForgetsTheBatch(Right):
    def __init__(self, num_layers, batch_size, num_kv_heads, max_len, head_dim):
        super().__init__(num_layers, 1, num_kv_heads, max_len, head_dim)
        self.stored = [[0] * batch_size for _ in range(num_layers)]


@wrong(RESERVES, "has shape")
class TokensBeforeHeads(Right):
    def __init__(self, num_layers, batch_size, num_kv_heads, max_len, head_dim):
        super().__init__(num_layers, batch_size, max_len, num_kv_heads, head_dim)
        self.max_len = max_len

    def append(self, layer, row, keys, values):
        start, end = self.span(layer, row, keys.shape[1])
        self.keys[layer][row, start:end] = keys.transpose(0, 1)
        self.values[layer][row, start:end] = values.transpose(0, 1)
        self.stored[layer][row] = end
        return self.keys[layer][row, :end].transpose(0, 1), self.values[layer][row, :end].transpose(0, 1)


@wrong(RESERVES, "same memory")
class OneTensorForAllLayers(Right):
    def __init__(self, num_layers, batch_size, num_kv_heads, max_len, head_dim):
        super().__init__(num_layers, batch_size, num_kv_heads, max_len, head_dim)
        self.keys = [torch.zeros(batch_size, num_kv_heads, max_len, head_dim)] * num_layers
        self.values = [torch.zeros(batch_size, num_kv_heads, max_len, head_dim)] * num_layers


@wrong(RESERVES, "same memory")
class KeysAndValuesInOnePlace(Right):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.values = self.keys


@wrong(PLACE, "another tensor")
class GrowsByHand(Right):
    """Reserves, and then replaces what it reserved by something longer."""

    def write(self, layer, row, start, end, keys, values):
        self.keys[layer] = self.keys[layer].clone()
        self.values[layer] = self.values[layer].clone()
        super().write(layer, row, start, end, keys, values)


@wrong(PLACE, "The tokens are not in")
class ReservesForShow(Right):
    """The memory is there, the tokens go elsewhere, by torch.cat."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.real = {}

    def append(self, layer, row, keys, values):
        _, self.stored[layer][row] = self.span(layer, row, keys.shape[1])
        keys, values = keys.clone(), values.clone()
        if (layer, row) in self.real:
            keys = torch.cat([self.real[layer, row][0], keys], dim=1)
            values = torch.cat([self.real[layer, row][1], values], dim=1)
        self.real[layer, row] = keys, values
        return keys, values


@wrong(ORDER, "came back as torch.float16")
class SavesMemory(Right):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.keys = [keys.half() for keys in self.keys]
        self.values = [values.half() for values in self.values]


# --- what comes back ---


@wrong(ORDER, "slots of the row came back")
class ReturnsTheWholeRow(Right):
    def append(self, layer, row, keys, values):
        super().append(layer, row, keys, values)
        return self.keys[layer][row], self.values[layer][row]


@wrong(ORDER, "Only the new tokens")
class ReturnsTheNewTokens(Right):
    def append(self, layer, row, keys, values):
        super().append(layer, row, keys, values)
        return keys, values


@wrong(ORDER, "a whole batch")
class ReturnsTheBatch(Right):
    def append(self, layer, row, keys, values):
        super().append(layer, row, keys, values)
        end = self.stored[layer][row]
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]


@wrong(ORDER, "NoneType")
class ReturnsNothing(Right):
    def append(self, layer, row, keys, values):
        super().append(layer, row, keys, values)


@wrong(ORDER, "value of token 0")
class SwapsKeysAndValues(Right):
    def append(self, layer, row, keys, values):
        return super().append(layer, row, values, keys)


@wrong(ORDER, "empty slot")
class LeavesSlotZeroEmpty(Right):
    def append(self, layer, row, keys, values):
        start, end = self.span(layer, row, keys.shape[1])
        self.write(layer, row, start + 1, end + 1, keys, values)
        self.stored[layer][row] = end
        return self.keys[layer][row, :, :end], self.values[layer][row, :, :end]


@wrong(ORDER, "1 token came back")
class OneTokenAStep(Right):
    def append(self, layer, row, keys, values):
        start = self.stored[layer][row]
        self.keys[layer][row, :, start] = keys[:, -1]
        self.values[layer][row, :, start] = values[:, -1]
        self.stored[layer][row] += 1
        return self.keys[layer][row, :, : start + 1], self.values[layer][row, :, : start + 1]


@wrong(ORDER, "should be, there is")
class AlwaysWritesAtTheFront(Right):
    def write(self, layer, row, start, end, keys, values):
        super().write(layer, row, 0, end - start, keys, values)


@wrong(ORDER, "0 tokens came back")
class LosesTheNewestToken(Right):
    def append(self, layer, row, keys, values):
        start, end = self.span(layer, row, keys.shape[1])
        self.write(layer, row, start, end, keys, values)
        self.stored[layer][row] = end
        return self.keys[layer][row, :, : end - 1], self.values[layer][row, :, : end - 1]


# --- counting ---


@wrong(LAYERS, "tokens came back")
class CountsOncePerLayer(Right):
    """One count for the row, moved on by every layer."""

    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.stored = [self.stored[0]] * sizes[0]


@wrong(LAYERS, "row 0 has 1 in layer 1")
class IgnoresTheLayer(Right):
    def append(self, layer, row, keys, values):
        return super().append(0, row, keys, values)

    def num_tokens(self, row):
        return self.stored[0][row]


@wrong(LAYERS, "tokens came back")
class CountsAtLayerZero(Right):
    """Layer 0 moves the count on, and the layers behind it write after the step."""

    def append(self, layer, row, keys, values):
        lengths = self.stored[0]
        start = lengths[row]
        end = start + keys.shape[1]
        if end > self.max_len:
            raise CacheFullError(row, start, keys.shape[1], self.max_len)
        self.write(layer, row, start, end, keys, values)
        if layer == 0:
            lengths[row] = end
        return self.keys[layer][row, :, :end], self.values[layer][row, :, :end]


@wrong(ROWS, "tokens came back; row 1 has")
class OneCountForAllRows(Right):
    def append(self, layer, row, keys, values):
        start = self.stored[layer][0]
        end = start + keys.shape[1]
        if end > self.max_len:
            raise CacheFullError(row, start, keys.shape[1], self.max_len)
        self.write(layer, row, start, end, keys, values)
        self.stored[layer][0] = end
        return self.keys[layer][row, :, :end], self.values[layer][row, :, :end]

    def num_tokens(self, row):
        return self.stored[-1][0]


@wrong(ROWS, "token 0, row")
class WritesToEveryRow(Right):
    def write(self, layer, row, start, end, keys, values):
        self.keys[layer][:, :, start:end] = keys
        self.values[layer][:, :, start:end] = values


@wrong(ROWS, "row 1, layer 0 should be, there is")
class AlwaysReadsRowZero(Right):
    def append(self, layer, row, keys, values):
        super().append(layer, row, keys, values)
        end = self.stored[layer][row]
        return self.keys[layer][0, :, :end], self.values[layer][0, :, :end]


@wrong(COUNTS, "num_tokens says")
class AddsUpTheLayers(Right):
    def num_tokens(self, row):
        return sum(counts[row] for counts in self.stored)


@wrong(COUNTS, "num_tokens says")
class AddsUpTheRows(Right):
    def num_tokens(self, row):
        return sum(self.stored[-1])


@wrong(COUNTS, "num_tokens says")
class CountsSteps(Right):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.steps = [0] * sizes[1]

    def append(self, layer, row, keys, values):
        self.steps[row] += layer == 0
        return super().append(layer, row, keys, values)

    def num_tokens(self, row):
        return self.steps[row]


@wrong(COUNTS, "num_tokens says")
class CountsTheReservation(Right):
    def num_tokens(self, row):
        return self.max_len


@wrong(COUNTS, "whole number")
class GivesAllCounts(Right):
    def num_tokens(self, row):
        return self.stored[-1]


@wrong(COUNTS, "is a method")
class CountIsAnAttribute(Right):
    num_tokens = 0

    def append(self, layer, row, keys, values):
        result = super().append(layer, row, keys, values)
        self.num_tokens = self.stored[-1][row]
        return result


# --- a full row ---


@wrong(FULL, "would have fitted exactly")
class RefusesTheLastSlot(Right):
    def span(self, layer, row, num_new):
        start = self.stored[layer][row]
        if start + num_new >= self.max_len:
            raise CacheFullError(row, start, num_new, self.max_len)
        return start, start + num_new


@wrong(FULL, "nothing was raised")
class LeavesItToTorch(Right):
    def span(self, layer, row, num_new):
        start = self.stored[layer][row]
        return start, start + num_new


@wrong(FULL, "nothing was raised")
class LooksOnlyAtWhatIsStored(Right):
    """Refuses when the row is full, not when the new tokens do not fit."""

    def span(self, layer, row, num_new):
        start = self.stored[layer][row]
        if start > self.max_len:
            raise CacheFullError(row, start, num_new, self.max_len)
        return start, start + num_new


@wrong(NUMBERS, "RuntimeError")
class RefusesOnlyAFullRow(Right):
    """Right when the row is full to the last slot; wrong when a few are left."""

    def span(self, layer, row, num_new):
        start = self.stored[layer][row]
        if start >= self.max_len:
            raise CacheFullError(row, start, num_new, self.max_len)
        return start, start + num_new


@wrong(FULL, "nothing was raised")
class KeepsWhatFits(Right):
    def append(self, layer, row, keys, values):
        room = self.max_len - self.stored[layer][row]
        return super().append(layer, row, keys[:, :room], values[:, :room])


@wrong(FULL, "nothing was raised")
class ThrowsOutTheOldest(Right):
    def append(self, layer, row, keys, values):
        over = self.stored[layer][row] + keys.shape[1] - self.max_len
        if over > 0:
            for memory in (self.keys[layer][row], self.values[layer][row]):
                memory[:, : self.max_len - over] = memory[:, over:].clone()
            self.stored[layer][row] -= over
        return super().append(layer, row, keys, values)


@wrong(FULL, "ValueError")
class RaisesSomethingElse(Right):
    def span(self, layer, row, num_new):
        start = self.stored[layer][row]
        if start + num_new > self.max_len:
            raise ValueError("the row is full")
        return start, start + num_new


@wrong(FULL, "TypeError")
class RaisesWithoutNumbers(Right):
    def span(self, layer, row, num_new):
        start = self.stored[layer][row]
        if start + num_new > self.max_len:
            raise CacheFullError("the row is full")
        return start, start + num_new


@wrong(NUMBERS, "The error says stored")
class SaysWhatWouldBeStored(Right):
    def span(self, layer, row, num_new):
        end = self.stored[layer][row] + num_new
        if end > self.max_len:
            raise CacheFullError(row, end, num_new, self.max_len)
        return end - num_new, end


@wrong(NUMBERS, "The error says row")
class SaysTheLayer(Right):
    def span(self, layer, row, num_new):
        start = self.stored[layer][row]
        if start + num_new > self.max_len:
            raise CacheFullError(layer, start, num_new, self.max_len)
        return start, start + num_new


@wrong(WHOLE, "part of it was written")
class WritesBeforeItLooks(Right):
    def append(self, layer, row, keys, values):
        start = self.stored[layer][row]
        room = min(keys.shape[1], self.max_len - start)
        self.keys[layer][row, :, start : start + room] = keys[:, :room]
        self.values[layer][row, :, start : start + room] = values[:, :room]
        return super().append(layer, row, keys, values)


@wrong(WHOLE, "num_tokens says")
class CountsBeforeItLooks(Right):
    def append(self, layer, row, keys, values):
        start = self.stored[layer][row]
        self.stored[layer][row] = end = start + keys.shape[1]
        if end > self.max_len:
            raise CacheFullError(row, start, keys.shape[1], self.max_len)
        self.write(layer, row, start, end, keys, values)
        return self.keys[layer][row, :, :end], self.values[layer][row, :, :end]


@wrong(WHOLE, "part of it was written")
class LooksInTheLastLayer(Right):
    """Every layer but the last clips; the last one refuses."""

    def append(self, layer, row, keys, values):
        if layer < len(self.keys) - 1:
            room = self.max_len - self.stored[layer][row]
            keys, values = keys[:, :room], values[:, :room]
        return super().append(layer, row, keys, values)


@wrong(ORDER, "outlive the call")
class SharesItsCounts(Right):
    counts = {}

    def append(self, layer, row, keys, values):
        start = self.counts.get((layer, row), 0)
        end = start + keys.shape[1]
        if end > self.max_len:
            raise CacheFullError(row, start, keys.shape[1], self.max_len)
        self.write(layer, row, start, end, keys, values)
        self.counts[layer, row] = end
        return self.keys[layer][row, :, :end], self.values[layer][row, :, :end]

    def num_tokens(self, row):
        return self.counts.get((0, row), 0)


@wrong(NUMBERS, "stored=")
class ErrorAddsUpTheLayers(Right):
    def span(self, layer, row, num_new):
        start = self.stored[layer][row]
        if start + num_new > self.max_len:
            raise CacheFullError(row, sum(counts[row] for counts in self.stored), num_new, self.max_len)
        return start, start + num_new

"""Right answers to `static_cache` in styles other than ours."""

from collections import defaultdict

import torch

from pagedlab.cache.static import CacheFullError
from tests.corpus import right


@right
class ListsAndACountForEachLayerAndRow:
    def __init__(self, num_layers, batch_size, num_kv_heads, max_len, head_dim):
        self.max_len = max_len
        self.keys = [torch.zeros(batch_size, num_kv_heads, max_len, head_dim) for _ in range(num_layers)]
        self.values = [torch.zeros(batch_size, num_kv_heads, max_len, head_dim) for _ in range(num_layers)]
        self.stored = [[0] * batch_size for _ in range(num_layers)]

    def append(self, layer, row, keys, values):
        start = self.stored[layer][row]
        end = start + keys.shape[1]
        if end > self.max_len:
            raise CacheFullError(row, start, keys.shape[1], self.max_len)
        self.keys[layer][row, :, start:end] = keys
        self.values[layer][row, :, start:end] = values
        self.stored[layer][row] = end
        return self.keys[layer][row, :, :end], self.values[layer][row, :, :end]

    def num_tokens(self, row):
        return self.stored[-1][row]


@right
class OneTensorForEverything:
    """Keys and values are views of one allocation; layer 0 opens a step, and all layers write where it says."""

    def __init__(self, num_layers, batch_size, num_kv_heads, max_len, head_dim):
        self.memory = torch.empty(2, num_layers, batch_size, num_kv_heads, max_len, head_dim)
        self.keys, self.values = self.memory
        self.ends = torch.zeros(batch_size, dtype=torch.long)
        self.start = 0

    def append(self, layer, row, keys, values):
        num_new, max_len = keys.size(1), self.memory.size(4)
        if layer == 0:
            self.start = int(self.ends[row])
            if self.start + num_new > max_len:
                raise CacheFullError(row=row, stored=self.start, asked=num_new, max_len=max_len)
            self.ends[row] += num_new
        for part, new in zip(self.memory, (keys, values), strict=True):
            part[layer, row].narrow(1, self.start, num_new).copy_(new)
        return tuple(part[layer, row].narrow(1, 0, self.start + num_new) for part in self.memory)

    def num_tokens(self, row):
        return self.ends[row]


class Shelf:
    """The reserved memory of one layer."""

    def __init__(self, *shape):
        self.keys, self.values = torch.full(shape, -1.0), torch.full(shape, -1.0)
        self.used = defaultdict(int)

    def room(self, row):
        return self.keys.shape[2] - self.used[row]


@right
class OneObjectALayerAndCopiesOut:
    def __init__(self, num_layers, batch_size, num_kv_heads, max_len, head_dim):
        self.shelves = [Shelf(batch_size, num_kv_heads, max_len, head_dim) for _ in range(num_layers)]

    @property
    def keys(self):
        return [shelf.keys for shelf in self.shelves]

    @property
    def values(self):
        return [shelf.values for shelf in self.shelves]

    def append(self, layer, row, keys, values):
        shelf, asked = self.shelves[layer], keys.shape[-2]
        if asked > shelf.room(row):
            raise CacheFullError(row, shelf.used[row], asked, shelf.keys.shape[2])
        for offset in range(asked):
            slot = shelf.used[row] + offset
            shelf.keys[row, :, slot] = keys[:, offset]
            shelf.values[row, :, slot] = values[:, offset]
        shelf.used[row] += asked
        taken = slice(shelf.used[row])
        return [shelf.keys[row, :, taken].clone(), shelf.values[row, :, taken].clone()]

    def num_tokens(self, row):
        return min(shelf.used[row] for shelf in self.shelves)


@right
class CountsTheRowWhenTheLastLayerHasIt:
    def __init__(self, num_layers, batch_size, num_kv_heads, max_len, head_dim):
        self.keys = torch.zeros(num_layers, batch_size, num_kv_heads, max_len, head_dim)
        self.values = self.keys.clone()
        self.lengths = [0] * batch_size

    def append(self, layer, row, keys, values):
        start = self.lengths[row]
        slots = torch.arange(start, start + keys.shape[1])
        if len(slots) and slots[-1] >= self.keys.shape[3]:
            raise CacheFullError(row, start, len(slots), self.keys.shape[3])
        self.keys[layer, row].index_copy_(1, slots, keys)
        self.values[layer, row].index_copy_(1, slots, values)
        if layer == len(self.keys) - 1:
            self.lengths[row] += len(slots)
        end = start + len(slots)
        return self.keys[layer][row][:, :end], self.values[layer][row][:, :end]

    def num_tokens(self, row):
        return self.lengths[row]


@right
class DictsAndASharedHelper:
    def __init__(self, num_layers, batch_size, num_kv_heads, max_len, head_dim):
        shape = batch_size, num_kv_heads, max_len, head_dim
        self.keys = {layer: torch.rand(shape) for layer in range(num_layers)}
        self.values = {layer: torch.rand(shape) for layer in range(num_layers)}
        self.tokens = {}

    def append(self, layer, row, keys, values):
        before, max_len = self.tokens.get((layer, row), 0), self.keys[0].shape[2]
        if before + keys.shape[1] > max_len:
            raise CacheFullError(row, before, keys.shape[1], max_len)
        self.tokens[layer, row] = before + keys.shape[1]
        return tuple(self._put(memory[layer][row], before, new) for memory, new in
                     ((self.keys, keys), (self.values, values)))  # fmt: skip

    @staticmethod
    def _put(memory, before, new):
        so_far = memory[:, : before + new.shape[1]]
        so_far[:, before:] = new
        return so_far

    def num_tokens(self, row):
        return self.tokens.get((0, row), 0)

"""CUDA graphs without a GPU: in which order one is recorded, and that nothing in it waits for the GPU or leaves it."""

import contextlib

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode

from pagedlab.cache.paged import PagedKVCache
from pagedlab.engine.graphs import GraphReplay, PaddedStep
from pagedlab.engine.runner import ModelRunner
from pagedlab.kernels import ops
from pagedlab.model.llama import Llama
from pagedlab.model.tiny import tiny_llama
from tests.engine.test_replay import steps
from tests.engine.test_runner import World
from tests.kernels.pages import available_backends

pytestmark = pytest.mark.skipif("triton" not in available_backends(), reason="Triton does not interpret here")


class Stream(str):
    def wait_stream(self, other):
        pass


class Cuda:
    """What `GraphReplay` uses of `torch.cuda`, with torch's own manners: a recording that fails is an error once more
    when it ends, and leaves its stream the current one."""

    def __init__(self, monkeypatch):
        self.now, self.log, self.fails = Stream("usual"), [], False
        for name in ("Stream", "stream", "current_stream", "graph_pool_handle", "CUDAGraph", "graph", "device"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))

    def Stream(self):
        self.log.append("new stream")
        return Stream(f"stream {self.log.count('new stream')}")

    def current_stream(self):
        return self.now

    def device(self, device):
        return contextlib.nullcontext()

    @contextlib.contextmanager
    def stream(self, stream):
        before, self.now = self.now, stream
        try:
            yield
        finally:
            self.now = before

    def graph_pool_handle(self):
        self.log.append("new pool")
        return self.log.count("new pool")

    def CUDAGraph(self):
        return Graph()

    @contextlib.contextmanager
    def graph(self, graph, pool, stream):
        graph.made_with = pool, stream
        before, self.now = self.now, stream
        try:
            yield
        finally:
            if self.fails:
                raise RuntimeError("capture failed")
        self.now = before


class Graph:
    def replay(self):
        self.step.run()


class Graphs(GraphReplay):
    def __init__(self, *arguments):
        super().__init__(*arguments)
        self._works = True

    def _record(self, step):
        graph = super()._record(step)
        graph.step = step
        return graph


@pytest.fixture
def played():
    world = World(tiny_llama(), 4, backend="triton")
    world.runner._replay = Graphs(world.runner.model, world.pool, world.runner._kernels)
    return world


def test_all_graphs_are_recorded_on_the_same_streams_in_the_same_memory(monkeypatch, played):
    cuda = Cuda(monkeypatch)
    ran, run = [], PaddedStep.run
    monkeypatch.setattr(PaddedStep, "run", lambda step: (ran.append(str(cuda.now)), run(step)))
    for lengths in ([3], [3, 2]):
        steps(played, lengths, 2)
    graphs = [step.graph for step in played.runner._replay._steps.values()]
    assert [graph.made_with for graph in graphs] == [(1, "stream 2")] * 2
    # Each is run once before it is recorded, then recorded, then launched twice.
    assert ran == ["stream 1", "stream 2", "usual", "usual"] * 2
    assert sorted(cuda.log) == ["new pool", "new stream", "new stream"]

    monkeypatch.setattr("pagedlab.engine.graphs.MOST_KEPT", 2)
    steps(played, [1, 1, 1], 1)  # others have to go, and their memory with them
    assert [step.graph.made_with for step in played.runner._replay._steps.values()] == [(2, "stream 2")]


def test_what_cannot_be_recorded_runs_as_any_other_step(monkeypatch, played):
    cuda = Cuda(monkeypatch)
    cuda.fails = True
    with pytest.warns(UserWarning, match="without CUDA graphs, and slower: capture failed"):
        mine = steps(played, [3, 2], 2)
    right = steps(World(played.runner.model, 4, backend="triton"), [3, 2], 2)
    assert all(torch.equal(a[name], b[name]) for a, b in zip(mine, right, strict=True) for name in b)
    assert cuda.now == "usual" and not played.runner._replay._steps


def test_no_memory_for_a_graph(monkeypatch, played):
    Cuda(monkeypatch)

    def full(*arguments):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr("pagedlab.engine.graphs.PaddedStep", full)
    with pytest.warns(UserWarning, match="out of memory"):
        assert all(len(logits) == 1 for logits in steps(played, [3], 2))


class Views(TorchFunctionMode):
    """Indexing by numbers and slices, of which torch has no form for a GPU when it is built without one."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is not torch.Tensor.__getitem__:
            return function(*args, **(kwargs or {}))
        tensor, indices = args
        dim = 0
        for index in indices if isinstance(indices, tuple) else (indices,):
            if index is None:
                tensor, dim = tensor.unsqueeze(dim), dim + 1
            elif isinstance(index, int):
                tensor = tensor.select(dim, index)
            else:
                tensor, dim = torch.ops.aten.slice(tensor, dim, index.start, index.stop), dim + 1
        return tensor


@pytest.mark.parametrize("size", [1, 2, 16])
def test_a_recorded_step_neither_waits_for_the_gpu_nor_leaves_it(monkeypatch, size):
    """Tensors without numbers: whoever asks for one gets an error, and so do tensors of two devices that meet.

    Those that kernels are launched with are looked at instead of launching them.
    """
    launched = []

    def launch(kernel, grid, arguments, **options):
        tensors = {name: value for name, value in arguments.items() if isinstance(value, torch.Tensor)}
        assert {value.device.type for value in tensors.values()} == {"cuda"}, (kernel, tensors)
        launched.append((kernel.fn.__name__, grid))

    for module in ("write", "triton_backend", "merge"):
        ops.resolve("triton")
        monkeypatch.setattr(f"pagedlab.kernels.{module}.launch", launch)
    monkeypatch.setattr("pagedlab.kernels.decode._step", lambda q, tile_dim: (64, 3))  # it asks what GPU it is
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    config = tiny_llama().config
    with FakeTensorMode(), Views():
        model = Llama(config, lambda name, shape: torch.empty(shape, dtype=torch.float16, device="cuda"))
        pool = PagedKVCache(2, 9, 2, 16, 8, torch.float16, "cuda")
        assert isinstance(ModelRunner(model, pool, "triton")._replay, GraphReplay)
        step = PaddedStep(model, pool, ops.resolve("triton"), size, 512)
        step.run()
        assert step.hidden.device.type == "cuda" and step.hidden.shape == (size, config.hidden_size)
        with pytest.raises(RuntimeError):
            int(step.hidden[0, 0])
    layer = [("kv_write_kernel", (size, 2)), ("paged_decode_kernel", (size, 2, 2)), ("merge_splits_kernel", (size, 6))]
    assert launched == layer * 2

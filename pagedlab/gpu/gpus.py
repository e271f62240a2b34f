"""Real GPUs: how much they hold, how fast they move it, how fast they multiply.

Vendor figures, not measurements: a kernel sees somewhat less of all of them. Bandwidth and FLOP/s are decimal (10**9,
10**12), memory is binary, as the vendors count. FLOP/s are of dense 16-bit products with float32 sums; vendors often
print twice as much, for matrices in which half of the numbers are zero.
"""

from dataclasses import dataclass

from pagedlab.errors import PagedLabError
from pagedlab.gpu.targets import TARGETS, Target

MIB, GIB = 2**20, 2**30


@dataclass(frozen=True)
class GPU:
    """One product. `find(name)` gives one."""

    name: str
    target: str
    """Name of its architecture in `targets.TARGETS`."""
    num_sms: int
    memory_bytes: int
    memory_bandwidth: float
    """Bytes per second between memory and L2."""
    l2_bytes: int
    l2_bandwidth: float | None
    """Bytes per second between L2 and the multiprocessors, at the boost clock; None where the vendor does not say."""
    fp16_flops: float
    """FLOP per second on tensor cores, dense; a multiplication with an addition is two."""
    source: str
    l3_bytes: int = 0
    """A cache between L2 and memory (AMD's Infinity Cache)."""

    @property
    def multiprocessor(self) -> Target:
        return TARGETS[self.target]

    @property
    def register_bytes(self) -> int:
        """Of all multiprocessors together."""
        return self.num_sms * self.multiprocessor.registers_per_sm * 4

    @property
    def shared_bytes(self) -> int:
        """Of all multiprocessors together."""
        return self.num_sms * self.multiprocessor.shared_per_sm


_GPUS = [
    GPU(
        "A100",
        "sm_80",
        num_sms=108,
        memory_bytes=80 * GIB,
        memory_bandwidth=2.039e12,
        l2_bytes=40 * MIB,
        l2_bandwidth=5120 * 1.41e9,
        fp16_flops=312e12,
        source="NVIDIA A100 Tensor Core GPU datasheet (80 GB SXM); SMs, L2 and its 5,120 bytes a clock: NVIDIA A100 "
        "Tensor Core GPU Architecture whitepaper",
    ),
    GPU(
        "H100",
        "sm_90",
        num_sms=132,
        memory_bytes=80 * GIB,
        memory_bandwidth=3.35e12,
        l2_bytes=50 * MIB,
        l2_bandwidth=None,
        fp16_flops=989.4e12,
        source="NVIDIA H100 Tensor Core GPU datasheet (SXM); SMs and L2: NVIDIA H100 Tensor Core GPU Architecture "
        "whitepaper",
    ),
    GPU(
        "H200",
        "sm_90",
        num_sms=132,
        memory_bytes=141 * GIB,
        memory_bandwidth=4.8e12,
        l2_bytes=50 * MIB,
        l2_bandwidth=None,
        fp16_flops=989.4e12,
        source="NVIDIA H200 Tensor Core GPU datasheet (SXM), which gives twice the FLOP/s, with sparsity; SMs and L2, "
        "which it does not give, as for the H100, which has the same chip",
    ),
    GPU(
        "B200",
        "sm_100",
        num_sms=148,
        memory_bytes=180 * GIB,
        memory_bandwidth=8.0e12,
        l2_bytes=126 * MIB,
        l2_bandwidth=None,
        fp16_flops=2.25e15,
        source="NVIDIA DGX B200 datasheet, an eighth of it, and half of its FLOP/s, which are with sparsity; L2: "
        "NVIDIA Blackwell Tuning Guide; SMs: a device query in pytorch/ao#4002 (where clock and bus give 7.67 TB/s)",
    ),
    GPU(
        "RTX 4090",
        "sm_89",
        num_sms=128,
        memory_bytes=24 * GIB,
        memory_bandwidth=1.008e12,
        l2_bytes=72 * MIB,
        l2_bandwidth=None,
        fp16_flops=165.2e12,
        source="NVIDIA Ada GPU Architecture whitepaper, appendix A (FP16 with FP32 accumulate)",
    ),
    GPU(
        "RTX 5090",
        "sm_120",
        num_sms=170,
        memory_bytes=32 * GIB,
        memory_bandwidth=1.792e12,
        l2_bytes=96 * MIB,
        l2_bandwidth=None,
        fp16_flops=209.5e12,
        source="NVIDIA RTX Blackwell GPU Architecture whitepaper, appendix A (FP16 with FP32 accumulate)",
    ),
    GPU(
        "MI300X",
        "gfx942",
        num_sms=304,
        memory_bytes=192 * GIB,
        memory_bandwidth=5.3e12,
        l2_bytes=32 * MIB,
        l2_bandwidth=8 * 2048 * 2.1e9,
        fp16_flops=1307.4e12,
        source="AMD Instinct MI300X data sheet; L2 (4 MiB and 2,048 bytes a clock for each of 8 chiplets) and Infinity "
        "Cache: AMD CDNA 3 white paper",
        l3_bytes=256 * MIB,
    ),
]

GPUS: dict[str, GPU] = {gpu.name: gpu for gpu in _GPUS}


def find(name: str | GPU) -> GPU:
    """The GPU of that name; a `GPU` is given back. PagedLabError, with the names there are, if there is none."""
    if isinstance(name, GPU):
        return name
    if name in GPUS:
        return GPUS[name]
    raise PagedLabError(f"No GPU is called {name!r}. There are {', '.join(GPUS)}.")

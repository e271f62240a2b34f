"""The GGUF container: one file with named values ("fields") and named tensors, most of them quantized.

    magic, version, counts | fields | name, shape, type and offset of each tensor | padding | tensor data

This module knows the container only. What the names mean to a Llama is in `pagedlab.model.gguf_llama`.

Format: docs/gguf.md of the ggml project. The `gguf` package reads it as well, through an array object for each string:
with a vocabulary of 49,152 that takes about forty times longer than this does.
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from pagedlab.model.errors import ModelFileError

_STRING, _ARRAY = 8, 9
_NUMBERS = {
    0: "<u1",
    1: "<i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "?",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}


@dataclass(frozen=True)
class TensorInfo:
    shape: tuple[int, ...]  # rows first, as in torch; the file stores it the other way round
    kind: int  # ggml's number for the type
    start: int  # bytes from the beginning of the file
    num_bytes: int


class GGUFFile:
    """An opened file: `fields[name]` and `tensor(name, shape)`. The data stays on disk until a tensor is asked for.

    ModelFileError: not GGUF, a version nobody writes any more, or a file shorter than its own header says.
    """

    def __init__(self, path: Path):
        self.path = Path(path)
        try:
            with open(self.path, "rb") as file:
                if file.seek(0, 2) == 0:
                    raise ModelFileError(f"{self.path} is empty")
                # A private copy-on-write mapping: tensors may be read in place, the file can't be changed by accident.
                self._data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError as error:
            raise ModelFileError(f"cannot read {self.path}: {error.strerror}") from error
        self.fields: dict[str, object] = {}
        self.tensors: dict[str, TensorInfo] = {}
        self._position = 0
        self._read_header()

    def tensor(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The tensor as float32, dequantized, in memory of its own. ModelFileError: no such tensor, another shape."""
        info = self.tensors.get(name)
        if info is None:
            raise ModelFileError(f"{self.path.name} has no tensor {name!r}; expected one of shape {shape}")
        if info.shape != shape:
            raise ModelFileError(f"{self.path.name}: tensor {name!r} has shape {info.shape}; expected {shape}")
        raw = np.frombuffer(self._data, np.uint8, info.num_bytes, info.start)
        return _dequantize(raw, info.kind).view(shape)

    def _read_header(self) -> None:
        magic, version = self._take(4), self._number("<u4")
        if magic != b"GGUF":
            raise ModelFileError(f"{self.path} is not a GGUF file: it begins with {magic!r}; expected b'GGUF'")
        if version not in (2, 3):
            raise ModelFileError(f"{self.path} has GGUF version {version}; expected 2 or 3 (little-endian)")
        num_tensors, num_fields = self._number("<u8"), self._number("<u8")
        for _ in range(num_fields):
            name = self._string()
            self.fields[name] = self._value(self._number("<u4"))

        offsets = {}
        for _ in range(num_tensors):
            name = self._string()
            num_dims = self._number("<u4")
            shape = tuple(self._number("<u8") for _ in range(num_dims))[::-1]
            offsets[name] = shape, self._number("<u4"), self._number("<u8")
        if len(offsets) != num_tensors:
            raise ModelFileError(f"{self.path.name}: {num_tensors} tensors, but only {len(offsets)} different names")

        alignment = self.fields.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise ModelFileError(f"{self.path.name}: general.alignment is {alignment!r}; expected a positive number")
        data_start = math.ceil(self._position / alignment) * alignment
        for name, (shape, kind, offset) in offsets.items():
            info = TensorInfo(shape, kind, data_start + offset, self._num_bytes(name, shape, kind))
            self._require(info.start + info.num_bytes, f"tensor {name!r}")
            self.tensors[name] = info

    def _num_bytes(self, name: str, shape: tuple[int, ...], kind: int) -> int:
        from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

        try:
            block_elements, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        except (ValueError, KeyError):
            raise ModelFileError(f"{self.path.name}: tensor {name!r} has unknown type number {kind}") from None
        if not shape or shape[-1] % block_elements:
            raise ModelFileError(
                f"{self.path.name}: tensor {name!r} of shape {shape} is stored in blocks of {block_elements} elements; "
                f"expected rows that are whole blocks"
            )
        return math.prod(shape) // block_elements * block_bytes

    def _require(self, end: int, what: str) -> None:
        if end > len(self._data):
            raise ModelFileError(
                f"{self.path} is cut off: {what} ends at byte {end:,}, but the file has {len(self._data):,} bytes. "
                "Fetch or copy it again."
            )

    def _take(self, count: int) -> bytes:
        self._require(self._position + count, "its header")
        start, self._position = self._position, self._position + count
        return self._data[start : self._position]

    def _number(self, dtype: str):
        return np.frombuffer(self._take(np.dtype(dtype).itemsize), dtype)[0].item()

    def _string(self) -> str:
        return self._take(self._number("<u8")).decode("utf-8", errors="replace")

    def _strings(self, count: int) -> list[str]:
        """`count` strings in a row. A vocabulary has tens of thousands, so this loop is kept tight."""
        self._require(self._position + 8 * count, "a list of strings")
        data, length_at, position, strings = self._data, struct.Struct("<Q").unpack_from, self._position, []
        for _ in range(count):
            self._require(position + 8, "a list of strings")
            start = position + 8
            position = start + length_at(data, position)[0]
            strings.append(data[start:position].decode("utf-8", errors="replace"))
        self._require(position, "a list of strings")
        self._position = position
        return strings

    def _value(self, kind: int):
        if kind == _STRING:
            return self._string()
        if kind in _NUMBERS:
            return self._number(_NUMBERS[kind])
        if kind != _ARRAY:
            raise ModelFileError(f"{self.path.name}: a field has unknown type number {kind}")
        item_kind, count = self._number("<u4"), self._number("<u8")
        if item_kind == _STRING:
            return self._strings(count)
        if item_kind not in _NUMBERS:
            raise ModelFileError(f"{self.path.name}: an array field has items of type number {item_kind}")
        dtype = np.dtype(_NUMBERS[item_kind])
        return np.frombuffer(self._take(count * dtype.itemsize), dtype).tolist()


def _dequantize(raw: np.ndarray, kind: int) -> torch.Tensor:
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    kind = GGMLQuantizationType(kind)
    if kind == GGMLQuantizationType.Q4_1:
        return _dequantize_q4_1(torch.from_numpy(raw))
    if kind == GGMLQuantizationType.Q8_0:
        return _dequantize_q8_0(torch.from_numpy(raw))
    try:
        return torch.from_numpy(dequantize(raw, kind)).clone()
    except NotImplementedError:
        raise ModelFileError(
            f"tensors of type {kind.name} cannot be dequantized here; use a Q8_0 or F16 file"
        ) from None


# The two types of the course's own file, by torch: many times faster than the general way above.


def _dequantize_q4_1(raw: torch.Tensor) -> torch.Tensor:
    """Blocks of 32 weights in 20 bytes: scale and minimum (float16), then 16 bytes that hold element i in the low and
    element i + 16 in the high half. weight = scale * q + minimum, q in 0..15."""
    blocks = raw.view(-1, 20)
    scale, minimum = blocks[:, :4].contiguous().view(torch.float16).float().unsqueeze(1).split(1, dim=-1)
    quants = torch.stack([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], dim=1)  # [blocks, 2, 16]
    return (quants * scale).add_(minimum)


def _dequantize_q8_0(raw: torch.Tensor) -> torch.Tensor:
    """Blocks of 32 weights in 34 bytes: scale (float16), then 32 signed bytes. weight = scale * q."""
    blocks = raw.view(-1, 34)
    return blocks[:, 2:].view(torch.int8) * blocks[:, :2].contiguous().view(torch.float16).float()

"""A Llama out of a Hugging Face directory: config.json and safetensors files, whole or in shards.

Weights are read from safetensors only. The older pytorch_model.bin is a pickle, and opening a pickle can run any code:
it is never opened.
"""

import json
import math
import struct
from pathlib import Path

import torch

from pagedlab.model.config import ModelConfig
from pagedlab.model.errors import ModelFileError


def read_json(path: Path) -> dict:
    """A JSON object from a file. ModelFileError: missing, unreadable, or something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ModelFileError(f"{path.parent} has no {path.name}") from None
    except (OSError, ValueError) as error:
        raise ModelFileError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise ModelFileError(f"{path} holds a {type(content).__name__}; expected a JSON object")
    return content


def read_config(directory: Path) -> ModelConfig:
    """ModelFileError: not a Llama, a missing number, or a variant this decoder does not compute."""
    raw = read_json(directory / "config.json")
    where = f"{directory.name}/config.json"

    def refuse_unless(holds, found, expected):
        if not holds:
            raise ModelFileError(f"{where}: {found}; expected {expected}")

    def number(name, default=None):
        value = raw.get(name)
        value = default if value is None else value
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        refuse_unless(is_number, f"{name} is {value!r}", "a number")
        return value

    refuse_unless(raw.get("model_type") == "llama", f"model_type is {raw.get('model_type')!r}", "'llama'")
    refuse_unless(raw.get("hidden_act", "silu") == "silu", f"hidden_act is {raw.get('hidden_act')!r}", "'silu'")
    for name in ("attention_bias", "mlp_bias"):
        refuse_unless(not raw.get(name), f"{name} is {raw.get(name)!r}", "false")

    heads = number("num_attention_heads")
    refuse_unless(isinstance(heads, int) and heads > 0, f"num_attention_heads is {heads!r}", "at least 1")
    head_dim = number("head_dim", number("hidden_size") // heads)
    rope_theta, rope_divisors = _rope(raw, head_dim, where)
    try:
        return ModelConfig(
            vocab_size=number("vocab_size"),
            hidden_size=number("hidden_size"),
            intermediate_size=number("intermediate_size"),
            num_hidden_layers=number("num_hidden_layers"),
            num_attention_heads=heads,
            num_key_value_heads=number("num_key_value_heads", heads),
            head_dim=head_dim,
            max_position_embeddings=number("max_position_embeddings", 2048),
            rms_norm_eps=number("rms_norm_eps", 1e-6),
            rope_theta=rope_theta,
            tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
            bos_token_id=_first(raw.get("bos_token_id")),
            eos_token_id=_first(raw.get("eos_token_id")),
            name=directory.resolve().name,
            rope_divisors=rope_divisors,
        )
    except ValueError as error:
        raise ModelFileError(f"{where}: {error}") from error


def _first(token_id):
    return token_id[0] if isinstance(token_id, list) and token_id else token_id


def _rope(raw: dict, head_dim: int, where: str) -> tuple[float, tuple[float, ...] | None]:
    """(theta, divisors). Newer files have one `rope_parameters`, older ones `rope_theta` and `rope_scaling`."""
    rope = {"rope_theta": raw.get("rope_theta") or 10_000.0}
    rope |= raw.get("rope_scaling") or {}
    rope |= raw.get("rope_parameters") or {}
    theta, kind = float(rope["rope_theta"]), rope.get("rope_type", rope.get("type", "default"))
    if rope.get("partial_rotary_factor", 1) != 1:
        raise ModelFileError(f"{where}: partial_rotary_factor is {rope['partial_rotary_factor']}; expected 1")
    try:
        if kind == "default":
            return theta, None
        if kind == "linear":
            return theta, (float(rope["factor"]),) * (head_dim // 2)
        if kind == "llama3":
            return theta, llama3_divisors(
                theta,
                head_dim,
                factor=rope["factor"],
                low_freq_factor=rope["low_freq_factor"],
                high_freq_factor=rope["high_freq_factor"],
                trained_positions=rope["original_max_position_embeddings"],
            )
    except KeyError as error:
        raise ModelFileError(f"{where}: rope type {kind!r} without {error}") from None
    raise ModelFileError(f"{where}: rope type {kind!r}; expected 'default', 'linear' or 'llama3'")


def llama3_divisors(
    theta: float,
    head_dim: int,
    factor: float,
    low_freq_factor: float,
    high_freq_factor: float,
    trained_positions: int,
) -> tuple[float, ...]:
    """Llama 3.1 stretches slow rotations for a longer context and leaves fast ones alone.

    A pair that turns less than `low_freq_factor` times over the positions first trained on is slowed by `factor`, one
    that turns more than `high_freq_factor` times is kept, and between the two the speed changes smoothly.
    """
    divisors = []
    for pair in range(head_dim // 2):
        frequency = theta ** (-2 * pair / head_dim)
        turns = trained_positions * frequency / (2 * math.pi)
        kept = (turns - low_freq_factor) / (high_freq_factor - low_freq_factor)
        kept = min(1.0, max(0.0, kept))
        divisors.append(1 / (kept + (1 - kept) / factor))
    return tuple(divisors)


class SafetensorsWeights:
    """`weights(name, shape)` from the safetensors files of a directory, cast to `dtype` on `device`."""

    def __init__(self, directory: Path, config: ModelConfig, dtype: torch.dtype, device: str):
        self.directory, self.dtype, self.device = directory, dtype, device
        self._file_of = _tensor_files(directory)
        self._open = {}
        self._unused = {name for name in self._file_of if not name.endswith("rotary_emb.inv_freq")}
        if config.tie_word_embeddings:
            self._unused.discard("lm_head.weight")  # some directories store the tied matrix a second time

    def __call__(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        path = self._file_of.get(name)
        if path is None:
            raise ModelFileError(f"{self.directory.name} has no tensor {name!r}; expected one of shape {shape}")
        if path not in self._open:
            self._open[path] = _open_safetensors(path)
        if name not in self._open[path].keys():  # an index may promise what a shard does not hold
            raise ModelFileError(f"{path.name} has no tensor {name!r}; expected one of shape {shape}")
        weight = self._open[path].get_tensor(name)
        if tuple(weight.shape) != shape:
            raise ModelFileError(f"{path.name}: tensor {name!r} has shape {tuple(weight.shape)}; expected {shape}")
        if weight.dtype not in (torch.float32, torch.bfloat16, torch.float16):
            raise ModelFileError(
                f"{path.name}: tensor {name!r} is {weight.dtype}; expected float32, bfloat16 or float16"
            )
        self._unused.discard(name)
        return weight.to(self.device, self.dtype)

    def check_all_used(self) -> None:
        """A tensor nobody asked for (a bias, say) means that the files describe another computation."""
        if self._unused:
            some = ", ".join(sorted(self._unused)[:3])
            raise ModelFileError(
                f"{self.directory.name}: {len(self._unused)} tensors that a plain Llama has no use for ({some}); "
                "expected none"
            )


def _tensor_files(directory: Path) -> dict[str, Path]:
    """Which file holds which tensor."""
    single, index = directory / "model.safetensors", directory / "model.safetensors.index.json"
    if single.is_file():
        return dict.fromkeys(_open_safetensors(single).keys(), single)
    if index.is_file():
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ModelFileError(f"{index} has no weight_map; expected tensor names and their files")
        for file_name in weight_map.values():
            if not isinstance(file_name, str) or Path(file_name).name != file_name:
                raise ModelFileError(f"{index} points to {file_name!r}; expected files of the same directory")
        return {name: directory / file_name for name, file_name in weight_map.items()}

    if any(directory.glob("*.bin")) or any(directory.glob("*.pt*")):
        raise ModelFileError(
            f"{directory} holds its weights as a pickle, which can run any code when opened, so it is not read. "
            "Expected model.safetensors. Most models are published as safetensors too; or convert it where you trust "
            "it: transformers' from_pretrained(...), then save_pretrained(...)."
        )
    raise ModelFileError(f"{directory} has neither {single.name} nor {index.name}")


def _open_safetensors(path: Path):
    from safetensors import SafetensorError, safe_open

    try:
        size = path.stat().st_size
        expected = _expected_size(path)
        if expected is not None and expected != size:
            raise ModelFileError(f"{path}: its header asks for {expected:,} bytes, but the file has {size:,}")
        return safe_open(path, framework="pt")
    except (OSError, SafetensorError) as error:
        raise ModelFileError(f"cannot read {path}: {error}") from error


def _expected_size(path: Path) -> int | None:
    """Bytes the file should have: 8 for the header's length, the header (JSON), the tensors. None: no such header."""
    with open(path, "rb") as file:
        start = file.read(8)
        if len(start) < 8:
            return None
        (header_size,) = struct.unpack("<Q", start)
        if header_size > path.stat().st_size:
            return 8 + header_size
        try:
            header = json.loads(file.read(header_size))
            return 8 + header_size + max(entry["data_offsets"][1] for entry in header.values() if "dtype" in entry)
        except (ValueError, KeyError, TypeError, AttributeError):
            return None

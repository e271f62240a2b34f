"""One call from a file to a model that runs."""

import contextlib
import ctypes
from dataclasses import dataclass
from pathlib import Path

import torch

from pagedlab.model import fetch, gguf_llama, hf_dir, tokenizer
from pagedlab.model.config import ModelConfig
from pagedlab.model.errors import ModelFileError
from pagedlab.model.gguf_file import GGUFFile
from pagedlab.model.llama import Llama


@dataclass(frozen=True)
class LoadedModel:
    model: Llama
    tokenizer: tokenizer.Tokenizer
    config: ModelConfig


def load(
    path: str | Path | None = None, dtype: torch.dtype = torch.float32, fast: bool = True, device: str = "cpu"
) -> LoadedModel:
    """A model with its tokenizer.

    path: a `.gguf` file or a Hugging Face directory of the Llama family; None is the course's model,
    SmolLM2-135M-Instruct, which is fetched first if it is not there. dtype: float32, bfloat16 or float16; quantized
    weights are expanded to it. `fast=False` keeps plain matrices (`pagedlab.model.linear`).

    ModelFileError: a file that is missing, damaged or of another kind. FetchError: the course's model cannot be had.
    """
    if dtype not in (torch.float32, torch.bfloat16, torch.float16):
        raise ValueError(f"dtype is {dtype}; expected torch.float32, torch.bfloat16 or torch.float16")
    path = fetch.fetch() if path is None else Path(path).expanduser()
    if path.is_dir():
        config, text = hf_dir.read_config(path), tokenizer.from_directory(path)
        weights = hf_dir.SafetensorsWeights(path, config, dtype, device)
    elif path.suffix in (".bin", ".pt", ".pth", ".ckpt", ".pkl"):
        raise ModelFileError(
            f"{path.name} is a pickle, which can run any code when opened, so it is not read. "
            "Give a .gguf file or a Hugging Face directory with safetensors."
        )
    else:
        file = GGUFFile(path)
        config, text = gguf_llama.read_config(file), tokenizer.from_gguf(file)
        weights = gguf_llama.GGUFWeights(file, config, dtype, device)
    if text.vocab_size > config.vocab_size:
        raise ModelFileError(
            f"{path.name}: {text.vocab_size} tokens in the tokenizer, {config.vocab_size} in the model"
        )
    model = Llama(config, weights, fast)
    weights.check_all_used()
    _give_back_memory()
    return LoadedModel(model, text, config)


def _give_back_memory() -> None:
    """The C library keeps what it has been given back, 80 MB after expanding the course's model. A cache can use it."""
    with contextlib.suppress(AttributeError, OSError, TypeError):  # glibc only
        ctypes.CDLL(None).malloc_trim(0)

"""The course's model in the forms that peers read, made from the fetched GGUF and kept in the cache folder.

A Hugging Face directory holds the weights in float32, every one exactly what the GGUF's four bits mean; a GGUF with
float16 matrices is for OpenVINO GenAI, which does not read the 4-bit form exactly. Both describe the model that
pagedlab runs, so outputs can be compared token by token.
"""

import json
import os
import tempfile
from pathlib import Path

import torch

from pagedlab.model import fetch, gguf_llama, tokenizer
from pagedlab.model.gguf_file import GGUFFile
from pagedlab.model.llama import Llama
from pagedlab.paths import cache_dir


def hugging_face_directory() -> Path:
    """The directory, made first if it is not there: config.json, model.safetensors, tokenizer.json."""
    return _made_once(cache_dir() / "benchmarks" / "SmolLM2-135M-Instruct-float32", _write_directory)


def float16_gguf() -> Path:
    """The GGUF with float16 matrices, made first if it is not there. Vectors (the norms) stay float32."""
    return _made_once(cache_dir() / "benchmarks" / "SmolLM2-135M-Instruct.F16.gguf", _write_float16)


def _made_once(path: Path, write) -> Path:
    """`write(file, scratch)` under another name first: the path appears whole or not at all."""
    if not path.exists():
        print(f"Making {path.name} for the peers (once)", flush=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".model-") as folder:
            scratch = Path(folder) / path.name
            write(GGUFFile(fetch.fetch()), scratch)
            os.replace(scratch, path)
    return path


def _write_directory(file: GGUFFile, directory: Path) -> None:
    from safetensors.torch import save_file

    directory.mkdir()
    config = gguf_llama.read_config(file)
    weights = gguf_llama.GGUFWeights(file, config, torch.float32, "cpu")
    tensors = {}

    def keep(name, shape):
        tensors[name] = weights(name, shape).contiguous()
        return tensors[name]

    Llama(config, keep, fast=False)  # asks for every tensor, by its Hugging Face name
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})

    special = {name: token_id for name, token_id in _special_ids(file).items() if token_id is not None}
    described = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "hidden_act": "silu",
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "rms_norm_eps": round(config.rms_norm_eps, 8),  # stored as a float32
        **special,
    }
    for name in (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "max_position_embeddings",
        "tie_word_embeddings",
    ):
        described[name] = getattr(config, name)
    _write_json(directory / "config.json", described)
    _write_json(directory / "generation_config.json", special)

    text = tokenizer.from_gguf(file)
    text._backend.save(str(directory / "tokenizer.json"))
    names = {key.removesuffix("_id"): text.token_text(token_id) for key, token_id in special.items()}
    _write_json(directory / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **names})


def _special_ids(file: GGUFFile) -> dict:
    fields = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding"}
    return {name: file.fields.get(f"tokenizer.ggml.{stored}_token_id") for name, stored in fields.items()}


def _write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")


def _write_float16(_, path: Path) -> None:
    import gguf
    from gguf.quants import dequantize

    reader = gguf.GGUFReader(str(fetch.model_path()))
    writer = gguf.GGUFWriter(str(path), "llama")
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue  # the writer's own
        value = 1 if name == "general.file_type" else field.contents()  # 1: mostly float16
        writer.add_key_value(name, value, field.types[0], field.types[1] if len(field.types) > 1 else None)
    for tensor in reader.tensors:
        shape = tuple(int(size) for size in reversed(tensor.shape))
        values = dequantize(tensor.data, tensor.tensor_type).reshape(shape)
        writer.add_tensor(tensor.name, values.astype("float32" if values.ndim == 1 else "float16"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

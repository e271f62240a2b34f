"""Text to token ids and back: byte-level BPE, from a GGUF's vocabulary or a tokenizer.json.

The merging itself is done by the `tokenizers` package. What is here: how its parts are put together for a GGUF, which
stores the vocabulary and the merges but only names the rule that cuts text into words first.
"""

from collections.abc import Iterable
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors

from pagedlab.errors import PagedLabError
from pagedlab.model.errors import ModelFileError
from pagedlab.model.gguf_file import GGUFFile
from pagedlab.model.hf_dir import read_json

# How Llama 3's tokenizer.json cuts text before merging: contractions, words with one leading mark, up to three digits,
# punctuation, line ends, spaces. A GGUF refers to it by name only (tokenizer.ggml.pre).
_LLAMA_3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA_3_KINDS = ("llama-bpe", "llama3", "llama-v3")

_CONTROL, _USER_DEFINED = 3, 4  # tokenizer.ggml.token_type


class Tokenizer:
    """`encode`, `decode`, `chat`, `token_text`, and the ids that begin and end a sequence (None: there is none)."""

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
        chat_template: str | None = None,
    ):
        self._backend = backend
        self.bos_token_id, self.eos_token_id = bos_token_id, eos_token_id
        self.chat_template = chat_template

    @property
    def vocab_size(self) -> int:
        return self._backend.get_vocab_size()

    def encode(self, text: str) -> list[int]:
        """Token ids of a text. Names of special tokens in it, like `<|im_end|>`, become those tokens."""
        return self._backend.encode(text).ids

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Text of token ids. Bytes that are no whole character are shown as U+FFFD. ValueError: an unknown id."""
        ids = [self._checked(token_id) for token_id in ids]
        return self._backend.decode(ids, skip_special_tokens=skip_special_tokens)

    def chat(self, messages: list[dict[str, str]], add_generation_prompt: bool = True) -> list[int]:
        """Token ids of a conversation in the form the model was trained on.

        messages: `[{"role": "user", "content": "Hello"}, ...]`. `add_generation_prompt` ends with the words that open
        the assistant's turn.
        """
        text = self.chat_text(messages, add_generation_prompt)
        return self._backend.encode(text, add_special_tokens=False).ids  # the template writes them all itself

    def chat_text(self, messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """What `chat` encodes, as text. PagedLabError: no template, or one that refuses these messages."""
        if self.chat_template is None:
            raise PagedLabError("this model comes without a chat template; write the prompt yourself and use encode()")
        return _render(
            self.chat_template,
            messages=messages,
            add_generation_prompt=add_generation_prompt,
            bos_token=self._name(self.bos_token_id),
            eos_token=self._name(self.eos_token_id),
        )

    def token_text(self, token_id: int) -> str:
        """One token, printable: line ends and the like are escaped, and so are bytes that are half a character."""
        text = self._backend.decode([self._checked(token_id)], skip_special_tokens=False)
        if "\N{REPLACEMENT CHARACTER}" in text:
            stored = self._backend.id_to_token(token_id)
            if all(char in _BYTE_OF for char in stored):
                text = bytes(_BYTE_OF[char] for char in stored).decode("utf-8", errors="backslashreplace")
        return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)

    def _checked(self, token_id: int) -> int:
        token_id = int(token_id)
        if not 0 <= token_id < 2**32 or self._backend.id_to_token(token_id) is None:
            raise ValueError(f"token id {token_id} is not in the vocabulary of {self.vocab_size}")
        return token_id

    def _name(self, token_id: int | None) -> str:
        return "" if token_id is None else self._backend.id_to_token(token_id) or ""


def from_gguf(file: GGUFFile) -> Tokenizer:
    """The tokenizer a GGUF describes. ModelFileError: not byte-level BPE, or an unknown rule for cutting words."""
    fields, where = file.fields, file.path.name
    instead = "Use the Hugging Face directory of the same model, whose tokenizer.json says it all."
    model = fields.get("tokenizer.ggml.model")
    if model != "gpt2":
        raise ModelFileError(f"{where}: tokenizer kind {model!r}; expected 'gpt2' (byte-level BPE). {instead}")
    lists = {}
    for name in ("tokens", "merges", "token_type"):
        lists[name] = fields.get(f"tokenizer.ggml.{name}")
        if not isinstance(lists[name], list):
            raise ModelFileError(f"{where} has no list tokenizer.ggml.{name}. {instead}")
    tokens = lists["tokens"]
    if len(lists["token_type"]) != len(tokens):
        raise ModelFileError(f"{where}: {len(tokens)} tokens but {len(lists['token_type'])} token types")

    kind = fields.get("tokenizer.ggml.pre")
    vocabulary = {token: token_id for token_id, token in enumerate(tokens)}
    merges = [tuple(merge.split(" ", 1)) for merge in lists["merges"]]
    try:
        backend = tokenizers.Tokenizer(models.BPE(vocabulary, merges, ignore_merges=kind in _LLAMA_3_KINDS))
    except Exception as error:  # tokenizers raises plain Exception
        raise ModelFileError(f"{where}: the vocabulary and its merges do not fit together: {error}") from error
    backend.pre_tokenizer = _word_cutter(kind, where, instead)
    backend.decoder = decoders.ByteLevel()
    for token, token_type in zip(tokens, lists["token_type"], strict=True):
        if token_type in (_CONTROL, _USER_DEFINED):
            backend.add_tokens([AddedToken(token, special=token_type == _CONTROL, normalized=False)])

    bos, eos = (fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos"))
    if bos is not None and fields.get("tokenizer.ggml.add_bos_token", kind in _LLAMA_3_KINDS):
        name = backend.id_to_token(bos)
        backend.post_processor = processors.TemplateProcessing(single=f"{name} $A", special_tokens=[(name, bos)])
    return Tokenizer(backend, bos, eos, fields.get("tokenizer.chat_template"))


def _word_cutter(kind: object, where: str, instead: str) -> pre_tokenizers.PreTokenizer:
    """A cut never lies inside a merged token, so this decides which merges can happen at all."""
    gpt2_words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if kind == "gpt-2":
        return gpt2_words
    if kind == "smollm":  # every digit is a word of its own
        return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2_words])
    if kind in _LLAMA_3_KINDS:
        words = pre_tokenizers.Split(Regex(_LLAMA_3_WORDS), behavior="isolated")
        return pre_tokenizers.Sequence([words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    known = ", ".join(("gpt-2", "smollm", *_LLAMA_3_KINDS))
    raise ModelFileError(f"{where}: text is cut by the rule {kind!r}; expected one of {known}. {instead}")


def from_directory(directory: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face directory: tokenizer.json, and tokenizer_config.json for names and template."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise ModelFileError(
            f"{directory} has no tokenizer.json. Make one with transformers: AutoTokenizer.from_pretrained(...), then "
            "save_pretrained(...)."
        )
    try:
        backend = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises plain Exception
        raise ModelFileError(f"cannot read {path}: {error}") from error
    backend.no_truncation()
    backend.no_padding()

    config_path = directory / "tokenizer_config.json"
    config = read_json(config_path) if config_path.is_file() else {}
    template, template_path = config.get("chat_template"), directory / "chat_template.jinja"
    if isinstance(template, list):  # several, by name
        template = {entry.get("name"): entry.get("template") for entry in template}.get("default")
    if template_path.is_file():
        template = template_path.read_text(encoding="utf-8")

    def id_of(name):
        token = config.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        return None if token is None else backend.token_to_id(token)

    return Tokenizer(backend, id_of("bos_token"), id_of("eos_token"), template)


def _render(template: str, **values) -> str:
    """Templates come out of model files, so they run in a sandbox: no reach into Python, no change to their input."""
    import json

    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def raise_exception(message):
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = raise_exception
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(value, ensure_ascii=False, indent=indent)
    try:
        return environment.from_string(template).render(**values)
    except (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, RecursionError) as error:
        raise PagedLabError(f"the model's chat template cannot take these messages: {error}") from error


def _byte_of_character() -> dict[str, int]:
    """Byte-level BPE writes each byte as one visible character: itself if it is one, else the next above U+0100."""
    visible = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    invisible = [byte for byte in range(256) if byte not in visible]
    return {chr(byte): byte for byte in visible} | {chr(256 + i): byte for i, byte in enumerate(invisible)}


_BYTE_OF = _byte_of_character()

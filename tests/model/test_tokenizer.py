"""Token ids against transformers'; then what our own few lines add to the `tokenizers` package."""

import json
import shutil

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from texts import varied_texts

from pagedlab.errors import PagedLabError
from pagedlab.model import tokenizer
from pagedlab.model.errors import ModelFileError
from pagedlab.model.fetch import fetch
from pagedlab.model.gguf_file import GGUFFile
from pagedlab.model.tokenizer import Tokenizer

TEXTS = varied_texts(1000)
CHAT = [
    {"role": "user", "content": "Hi <|im_end|> there: 12 + 30?"},
    {"role": "assistant", "content": "42\n"},
    {"role": "user", "content": "  Grüße "},
]


@pytest.fixture(scope="module")
def of_gguf():
    return tokenizer.from_gguf(GGUFFile(fetch()))


@pytest.fixture(scope="module")
def of_directory(smollm_dir):
    return tokenizer.from_directory(smollm_dir)


@pytest.fixture(scope="module")
def theirs(smollm_dir):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(smollm_dir)


def test_the_texts_are_varied():
    assert len(set(TEXTS)) > 950
    together = "".join(TEXTS)
    assert len(set(together)) > 1500
    for piece in ("<|im_start|>", "def attend", "\t\t", "\r\n", "\u3000", "  ", "e.g."):
        assert piece in together


def test_a_tokenizer_json_gives_transformers_ids(of_directory, theirs):
    for text in TEXTS:
        assert of_directory.encode(text) == theirs(text).input_ids, repr(text)


def test_a_gguf_gives_transformers_ids(of_gguf, theirs):
    for text in TEXTS:
        assert of_gguf.encode(text) == theirs(text).input_ids, repr(text)


def test_every_digit_is_a_word_of_its_own(of_gguf, oracle_tokenizer):
    """The rule "smollm", applied by other means: cut at special tokens and digits, and give transformers the pieces."""
    special = "|".join(map(regex.escape, oracle_tokenizer.all_special_tokens))
    cut = regex.compile(rf"({special}|\p{{N}})")
    for text in TEXTS:
        expected = [token for piece in cut.split(text) for token in oracle_tokenizer(piece).input_ids]
        assert of_gguf.encode(text) == expected, repr(text)


def test_decoding_is_transformers_too(of_gguf, theirs):
    for text in TEXTS:
        ids = of_gguf.encode(text)
        assert of_gguf.decode(ids) == theirs.decode(ids), repr(text)
        assert of_gguf.decode(ids, skip_special_tokens=True) == theirs.decode(ids, skip_special_tokens=True)


@settings(max_examples=200, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs", "Cn", "Co", "Cc"]), max_size=40))
def test_text_comes_back_as_it_was(of_gguf, text):
    """Not with control characters: this vocabulary has no token for a few bytes, and what has no token is left out."""
    assert of_gguf.decode(of_gguf.encode(text)) == text


@pytest.mark.parametrize("opened", [True, False])
def test_chat_is_transformers(of_gguf, of_directory, theirs, opened):
    expected = theirs.apply_chat_template(CHAT, add_generation_prompt=opened, tokenize=False)
    assert of_gguf.chat_text(CHAT, opened) == of_directory.chat_text(CHAT, opened) == expected
    assert of_gguf.chat(CHAT, opened) == theirs(expected, add_special_tokens=False).input_ids


def test_ends_and_sizes(of_gguf, of_directory):
    for ours in (of_gguf, of_directory):
        assert (ours.bos_token_id, ours.eos_token_id, ours.vocab_size) == (1, 2, 49152)


def test_one_token_is_printable(of_gguf):
    def texts(text):
        return [of_gguf.token_text(token) for token in of_gguf.encode(text)]

    assert texts("the cat\n\t") == ["the", " cat", "\\n\\t"]
    assert texts("<|im_end|>") == ["<|im_end|>"]
    assert texts("語") == ["\\xe8", "\\xaa", "\\x9e"]  # three bytes of one character, a token each
    every = [of_gguf.token_text(token) for token in range(of_gguf.vocab_size)]
    assert all(text and text.isprintable() for text in every)


def test_unknown_ids_are_refused(of_gguf):
    for wrong in (-1, 49152, 10**12):
        with pytest.raises(ValueError, match=f"token id {wrong} is not in the vocabulary of 49152"):
            of_gguf.decode([1, wrong])
        with pytest.raises(ValueError, match=f"token id {wrong}"):
            of_gguf.token_text(wrong)


# Chat templates come from files


def with_template(of_gguf, template):
    return Tokenizer(of_gguf._backend, 1, 2, template)


def test_no_template(of_gguf):
    with pytest.raises(PagedLabError, match="without a chat template"):
        with_template(of_gguf, None).chat(CHAT)


@pytest.mark.parametrize(
    "template",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__.__base__ }}",
        "{{ cycler.__init__.__globals__.os.popen('true').read() }}",
        "{{ messages.append({'role': 'system', 'content': 'x'}) }}",
        "{% include '/etc/passwd' %}",
        "{% for i in range(99999999) %}{% endfor %}",
        "{{ raise_exception('roles must alternate') }}",
        "{% if %}",
        "{{ messages[0]['content'] + 1 }}",
    ],
)
def test_a_template_that_reaches_too_far_or_fails_is_refused(of_gguf, template):
    messages = [{"role": "user", "content": "x"}]
    with pytest.raises(PagedLabError, match="chat template cannot take these messages"):
        with_template(of_gguf, template).chat(messages)
    assert messages == [{"role": "user", "content": "x"}]


def test_what_published_templates_use(of_gguf):
    template = (
        "{{ bos_token }}{% for m in messages %}{% if loop.index > 1 %}{% break %}{% endif %}\n"
        "    {{ m | tojson }}\n{% endfor %}{{ eos_token }}"
    )
    text = with_template(of_gguf, template).chat_text([{"role": "é"}, {"role": "b"}])
    assert text.split() == ["<|im_start|>", '{"role":', '"é"}', "<|im_end|>"]


# Other kinds of GGUF tokenizers


class Fields:
    """As much of a GGUFFile as a tokenizer looks at."""

    def __init__(self, path, fields):
        self.path, self.fields = path, fields


@pytest.fixture(scope="module")
def fields():
    file = GGUFFile(fetch())
    return {name: value for name, value in file.fields.items() if name.startswith("tokenizer.")}


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"tokenizer.ggml.model": "llama"}, "tokenizer kind 'llama'; expected 'gpt2'.*Hugging Face directory"),
        ({"tokenizer.ggml.model": None}, "tokenizer kind None"),
        ({"tokenizer.ggml.pre": "tekken"}, "the rule 'tekken'; expected one of gpt-2, smollm, llama-bpe"),
        ({"tokenizer.ggml.pre": None}, "the rule None"),
        ({"tokenizer.ggml.merges": None}, "no list tokenizer.ggml.merges"),
        ({"tokenizer.ggml.merges": ["zzz qqq"]}, "do not fit together"),
        ({"tokenizer.ggml.token_type": [1]}, "49152 tokens but 1 token types"),
    ],
)
def test_a_tokenizer_that_cannot_be_made_says_why(fields, changes, message):
    with pytest.raises(ModelFileError, match=message):
        tokenizer.from_gguf(Fields(fetch(), fields | changes))


@pytest.mark.parametrize(
    "kind, text, words",
    [
        ("smollm", "don't pay 123  $", ["don", "'t", "Ġpay", "Ġ", "1", "2", "3", "Ġ", "Ġ$"]),
        ("gpt-2", "don't pay 123  $", ["don", "'t", "Ġpay", "Ġ123", "Ġ", "Ġ$"]),
        ("llama-bpe", "DON'T pay 12345  $\n", ["DON", "'T", "Ġpay", "Ġ", "123", "45", "Ġ", "Ġ$Ċ"]),
    ],
)
def test_how_text_is_cut_into_words(fields, kind, text, words):
    ours = tokenizer.from_gguf(Fields(fetch(), fields | {"tokenizer.ggml.pre": kind}))
    assert [word for word, _ in ours._backend.pre_tokenizer.pre_tokenize_str(text)] == words


def test_a_file_can_ask_for_a_first_token(fields):
    ours = tokenizer.from_gguf(Fields(fetch(), fields | {"tokenizer.ggml.add_bos_token": True}))
    assert ours.encode("the") == [1, *tokenizer.from_gguf(Fields(fetch(), fields)).encode("the")]
    assert ours.chat(CHAT) == tokenizer.from_gguf(Fields(fetch(), fields)).chat(CHAT)  # the template writes its own


# Directories


def test_a_directory_with_only_a_tokenizer_json(smollm_dir, tmp_path):
    shutil.copy(smollm_dir / "tokenizer.json", tmp_path)
    ours = tokenizer.from_directory(tmp_path)
    assert ours.encode("the") and ours.eos_token_id is None and ours.chat_template is None


def test_templates_and_names_in_their_older_places(smollm_dir, tmp_path):
    shutil.copy(smollm_dir / "tokenizer.json", tmp_path)
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes{{ eos_token }}"}]
    config = {"eos_token": {"content": "<|im_end|>"}, "chat_template": named}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert tokenizer.from_directory(tmp_path).chat_text(CHAT) == "yes<|im_end|>"

"""The requests of the serving benchmark: five sets, the same on every machine and for every engine.

A prompt is random common words, cut to an exact number of tokens with the model's own tokenizer, so every engine gets
the same ids. All requests are greedy and go on past the end-of-sequence token: how many tokens come out is fixed.

    python benchmarks/serving_workload.py       # the numbers of each set
"""

import random
from collections.abc import Callable
from typing import NamedTuple

# Common English words, nearly all of one token.
WORDS = (
    "the of and to in is that for it as was with be by on not he his but at are this have from or "
    "had an they which one you were her all she there would their we him been has when who will more "
    "no if out so said what up its about into than them can only other new some could time these two "
    "may then do first any my now such like our over man me even most made after also did many before "
    "must through back years where much your way well down should because each just those people how "
    "too little state good very make world still own see men work long get here between both life being "
    "under never day same another know while last might us great old year off come since against go came "
    "right used take three small city river garden window paper letter music winter summer engine memory "
    "table block number measure answer question teacher student village market bridge mountain harbour"
).split()

PREFIX_TOKENS = 256


class Request(NamedTuple):
    prompt_ids: list[int]
    max_tokens: int


class Set(NamedTuple):
    """Ranges are inclusive; `shared` tokens begin every prompt and are not counted in `prompt`."""

    num_requests: int
    prompt: tuple[int, int]
    output: tuple[int, int]
    shared: int = 0


WORKLOADS = {
    "mixed": Set(32, (16, 256), (16, 128)),  # many users, all lengths: the main one
    "prefix": Set(32, (8, 48), (16, 64), shared=PREFIX_TOKENS),  # one long system prompt, short questions
    "single": Set(1, (32, 32), (128, 128)),  # one stream
    "decode": Set(32, (32, 32), (128, 128)),  # nearly no prompts
    "prefill": Set(16, (512, 512), (1, 1)),  # nearly nothing but prompts
}


def make(name: str, encode: Callable[[str], list[int]], repetition: int = 0, num_requests: int | None = None):
    """The requests of the set `name`, as a list of `Request`.

    encode: text to token ids. Another `repetition` keeps every length and changes every word, so that no run finds the
    prompts of an earlier one in a prefix cache. `num_requests` cuts the set short.
    """
    kind = WORKLOADS[name]
    chance = random.Random(f"{name}-0")
    shared = _words(encode, chance, kind.shared) if kind.shared else []
    requests = []
    for _ in range(num_requests or kind.num_requests):
        prompt_ids = shared + _words(encode, chance, chance.randint(*kind.prompt))
        requests.append(Request(prompt_ids, chance.randint(*kind.output)))
    if repetition:
        chance = random.Random(f"{name}-words-{repetition}")
        shared = _words(encode, chance, kind.shared) if kind.shared else []
        own = [len(request.prompt_ids) - kind.shared for request in requests]
        requests = [
            Request(shared + _words(encode, chance, num_own), request.max_tokens)
            for num_own, request in zip(own, requests, strict=True)
        ]
    return requests


def _words(encode, draw: random.Random, num_tokens: int) -> list[int]:
    text = " ".join(draw.choice(WORDS) for _ in range(num_tokens + 8))
    ids = encode(text)
    if len(ids) < num_tokens:
        raise ValueError(f"{num_tokens + 8} words gave {len(ids)} tokens; expected at least {num_tokens}")
    return ids[:num_tokens]


def main():
    from pagedlab.model import fetch, tokenizer
    from pagedlab.model.gguf_file import GGUFFile

    encode = tokenizer.from_gguf(GGUFFile(fetch.fetch())).encode
    print("| set | requests | prompt tokens | in all | output tokens | in all |\n|---|---|---|---|---|---|")
    for name in WORKLOADS:
        requests = make(name, encode)
        prompts, outputs = [len(request.prompt_ids) for request in requests], [r.max_tokens for r in requests]
        print(
            f"| {name} | {len(requests)} | {min(prompts)} to {max(prompts)} | {sum(prompts):,} "
            f"| {min(outputs)} to {max(outputs)} | {sum(outputs):,} |"
        )


if __name__ == "__main__":
    main()

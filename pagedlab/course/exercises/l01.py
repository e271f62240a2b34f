"""Lesson 01: attention for one new token, a cache that grows, and generating with it."""

import math
import operator
from dataclasses import replace

import torch
from hypothesis import strategies as st

from pagedlab.attention import attend as right_attend
from pagedlab.cache.growing import GrowingCache
from pagedlab.course.promise import Exercise, Wrong, calling, count, promise
from pagedlab.course.tensors import Suspect, expect_tensor, expect_untouched, randn
from pagedlab.model.generate import generate
from pagedlab.model.tiny import tiny_llama

SEED = st.integers(0, 50)
TOKENS = st.integers(1, 20)
KV_HEADS = st.sampled_from([1, 2, 3])
HEAD_DIM = st.sampled_from([4, 2, 6, 16])

# --- attend -----------------------------------------------------------------------------------------------------------


def attend_inputs(num_heads: int, num_kv_heads: int, num_tokens: int, head_dim: int, seed: int):
    q = randn(seed, num_heads, head_dim)
    keys = randn(seed + 1, num_kv_heads, num_tokens, head_dim)
    values = randn(seed + 2, num_kv_heads, num_tokens, head_dim)
    shapes = f"q[{num_heads}, {head_dim}], keys[{num_kv_heads}, {num_tokens}, {head_dim}], values[same]"
    call = calling(f"attend({shapes})")
    return q, keys, values, call


def attend_mistakes(q, keys, values) -> tuple[Suspect, ...]:
    """What the usual slips give, so that the report can name them."""
    num_heads, head_dim = q.shape
    group = num_heads // keys.shape[0]
    each_k, each_v = (x.repeat_interleave(group, 0) for x in (keys, values))
    scores = torch.einsum("hd,htd->ht", q, each_k)
    scaled = scores / math.sqrt(head_dim)

    def mix(weights, v=each_v):
        return torch.einsum("ht,htd->hd", weights, v)

    wrong_groups = torch.einsum("hd,htd->ht", q, keys.repeat(group, 1, 1)) / math.sqrt(head_dim)
    return (
        Suspect(
            mix(scores.softmax(-1)),
            "The scores were not scaled.",
            "Divide by the square root of head_dim before softmax.",
        ),
        Suspect(
            mix((scores / head_dim).softmax(-1)),
            "The scores were divided by head_dim, not by its square root.",
            "Dot products grow with the square root of head_dim, so that is what evens them out.",
        ),
        Suspect(
            mix((scores / 8).softmax(-1)),
            "The scores were scaled by the square root of 64.",
            f"That is the real model's head_dim. Here it is {head_dim}: take it from q's shape.",
        ),
        Suspect(mix(scaled), "The scores were used as weights as they are.", "Weights must be positive and sum to 1."),
        Suspect(
            mix(scaled.softmax(0)),
            "Softmax ran over the heads, so a head's weights don't sum to 1.",
            "Each head shares out its attention over the tokens: which dimension is that?",
        ),
        Suspect(
            mix(wrong_groups.softmax(-1), values.repeat(group, 1, 1)),
            "Query heads were matched with the wrong kv heads.",
            f"Neighbours share: heads 0 to {group - 1} read kv head 0. `repeat` and `repeat_interleave` differ.",
        ),
        Suspect(
            mix(scaled.softmax(-1), each_k), "The keys were mixed, not the values.", "Keys only decide the weights."
        ),
        Suspect(
            mix(scaled[:, :-1].softmax(-1), each_v[:, :-1]),
            "The newest token was left out.",
            "A token attends to itself as well. Its key and value are the last of those given.",
        ),
        Suspect(
            mix(
                torch.einsum("hd,td->ht", q, keys[0]).div(math.sqrt(head_dim)).softmax(-1), values[:1].expand_as(each_v)
            ),
            "All query heads read the first kv head.",
            f"Head h reads kv head h // {group}.",
        ),
        Suspect(values[:, -1].repeat_interleave(group, 0), "Only the newest token was read.", "All tokens count."),
    )


@promise("One query head per kv head", seed=SEED, num_tokens=TOKENS, heads=KV_HEADS, head_dim=HEAD_DIM)
def attend_plain(answer, seed, num_tokens, heads, head_dim):
    q, keys, values, call = attend_inputs(heads, heads, num_tokens, head_dim, seed)
    got = answer(q.clone(), keys.clone(), values.clone())
    expect_tensor(
        got,
        right_attend(q, keys, values),
        call,
        ("head", "dimension"),
        "Scores, softmax over the tokens, weighted sum of the values.",
        attend_mistakes(q, keys, values),
    )


@promise(
    "Several query heads share a kv head",
    seed=SEED,
    num_tokens=TOKENS,
    kv_heads=KV_HEADS,
    group=st.sampled_from([2, 3, 4]),
    head_dim=HEAD_DIM,
)
def attend_grouped(answer, seed, num_tokens, kv_heads, group, head_dim):
    q, keys, values, call = attend_inputs(kv_heads * group, kv_heads, num_tokens, head_dim, seed)
    got = answer(q.clone(), keys.clone(), values.clone())
    expect_tensor(
        got,
        right_attend(q, keys, values),
        call,
        ("head", "dimension"),
        f"{count(group, 'query head')} read each kv head: head h reads kv head h // {group}.",
        attend_mistakes(q, keys, values),
    )


@promise("Large scores do no harm", examples=30, seed=SEED, num_tokens=TOKENS, size=st.sampled_from([100.0, 200.0]))
def attend_large(answer, seed, num_tokens, size):
    q, keys, values, call = attend_inputs(2, 2, num_tokens, 4, seed)
    q = q * size
    expect_tensor(
        answer(q.clone(), keys.clone(), values.clone()),
        right_attend(q, keys, values),
        f"{call}, with q about {size:g} in size",
        ("head", "dimension"),
        "exp(100) is too large for float32. Subtract each row's largest score before exp, or let torch.softmax do it.",
    )


@promise("What it is given stays as it was", examples=20, seed=SEED, num_tokens=TOKENS)
def attend_pure(answer, seed, num_tokens):
    q, keys, values, call = attend_inputs(4, 2, num_tokens, 4, seed)
    given = {"q": q, "keys": keys, "values": values}
    before = {name: tensor.clone() for name, tensor in given.items()}
    answer(q, keys, values)
    expect_untouched(before, given, call)


@promise("Keys and values may be a part of something larger", examples=40, seed=SEED, num_tokens=TOKENS)
def attend_views(answer, seed, num_tokens):
    q, keys, values, call = attend_inputs(6, 2, num_tokens, 4, seed)
    room = torch.full((2, 2, num_tokens + 3, 4), math.nan)  # nobody may read the rest of it
    room[0, :, :num_tokens], room[1, :, :num_tokens] = keys, values
    call += f"\nkeys and values are views, [:, :{num_tokens}] of tensors with room for {num_tokens + 3} tokens"
    try:
        got = answer(q.clone(), room[0, :, :num_tokens], room[1, :, :num_tokens])
    except RuntimeError as error:
        if "view size is not compatible" not in str(error):
            raise
        raise Wrong(
            "`.view` needs numbers that lie side by side in memory, and here they don't.",
            call,
            "`.reshape` does the same, and copies where it must.",
        ) from error
    expect_tensor(got, right_attend(q, keys, values), call, ("head", "dimension"), "Use the shapes, not the memory.")


# --- growing_cache ----------------------------------------------------------------------------------------------------

STEPS = st.lists(st.integers(1, 4), min_size=1, max_size=5)  # tokens appended at each step
LAYERS = st.integers(1, 3)


def step_tensors(layers: int, steps: list[int], kv_heads: int = 2, head_dim: int = 2):
    """Keys and values for each step and layer; every token's numbers say where it belongs: layer.position."""
    position = 0
    for num_new in steps:
        step = []
        for layer in range(layers):
            numbers = 100.0 * layer + torch.arange(position, position + num_new, dtype=torch.float32)
            keys = numbers.view(1, -1, 1).repeat(kv_heads, 1, head_dim) + 0.25 * torch.arange(kv_heads).view(-1, 1, 1)
            step.append((keys, -keys - 1))
        position += num_new
        yield step


def pair(result, call: str):
    if not isinstance(result, tuple | list) or len(result) != 2:
        raise Wrong(
            "append gives back two tensors: all keys and all values of that layer.",
            f"{call} returned {type(result).__name__}",
            "return all_keys, all_values",
        )
    return result


def appended(answer, layers: int, steps: list[int]):
    """Append step by step; yields after each append what came back and what should have."""
    told = [calling(f"cache = GrowingCache({layers})")]
    cache = answer(layers)
    so_far: dict[int, list] = {layer: [] for layer in range(layers)}
    for step in step_tensors(layers, steps):
        for layer, (keys, values) in enumerate(step):
            call = f"cache.append({layer}, keys, values)  # {count(keys.shape[1], 'token')}"
            told.append(call)
            calling("\n".join(told))
            so_far[layer].append((keys, values))
            got = pair(cache.append(layer, keys.clone(), values.clone()), call)
            if len(told) == 2 and getattr(got[0], "ndim", 0) == 3 and got[0].shape[1] > keys.shape[1]:
                raise Wrong(
                    f"{count(keys.shape[1], 'token')} went into a new cache, {got[0].shape[1]} came back.",
                    "\n".join(told),
                    "Either the new ones were stored and then joined once more, or something is left of another cache: "
                    "a list in the class body is shared by all caches. Make it in __init__.",
                )
            want = [torch.cat(parts, dim=1) for parts in zip(*so_far[layer], strict=True)]
            yield cache, "\n".join(told), layer, got, want


@promise("Every token comes back, oldest first", steps=STEPS)
def cache_keeps_order(answer, steps):
    for (_, told, _, got, want), num_new in zip(appended(answer, 1, steps), steps, strict=True):
        for name, got_one, want_one in zip(("keys", "values"), got, want, strict=True):
            before, new = want_one[:, :-num_new], want_one[:, -num_new:]
            other = want[1] if name == "keys" else want[0]
            expect_tensor(
                got_one,
                want_one,
                f"{told}\nits {name}:",
                ("kv head", "token", "dimension"),
                "Put the new tokens behind the old ones, along the tokens' dimension.",
                (
                    Suspect(
                        torch.cat([new, before], dim=1),
                        "The newest tokens came first.",
                        "Old tokens first, new ones behind them: the order in torch.cat.",
                    ),
                    Suspect(
                        new,
                        "Only this step's tokens came back.",
                        "Attention needs the old ones too: store what you have joined, and return that.",
                    ),
                    Suspect(
                        before,
                        "Only the tokens of earlier steps came back.",
                        "A token attends to itself, so this step's tokens are needed too.",
                    ),
                    Suspect(other, f"The {name} are the other tensor's.", "Keys first, then values; one store each."),
                ),
            )


@promise("It grows as long as tokens come", examples=4, steps=st.sampled_from([[100], [70, 1, 60], [5000, 1]]))
def cache_has_no_end(answer, steps):
    hint = "Nobody told the cache how many tokens to expect. A step makes room for what it brings."
    try:
        for _, told, _, got, want in appended(answer, 1, steps):
            for name, got_one, want_one in zip(("keys", "values"), got, want, strict=True):
                expect_tensor(got_one, want_one, f"{told}\nits {name}:", ("kv head", "token", "dimension"), hint)
    except (IndexError, RuntimeError) as error:
        if isinstance(error, NotImplementedError):
            raise
        raise Wrong(
            f"{count(sum(steps), 'token')} in {count(len(steps), 'step')} don't fit.",
            f"appended to one layer: {', '.join(str(num_new) for num_new in steps)} tokens\n"
            f"raised {type(error).__name__}: {error!s:.200}",
            hint,
        ) from error


@promise("Layers don't mix", steps=STEPS, layers=st.integers(2, 3))
def cache_separates_layers(answer, steps, layers):
    for _, told, layer, got, want in appended(answer, layers, steps):
        for name, got_one, want_one in zip(("keys", "values"), got, want, strict=True):
            expect_tensor(
                got_one,
                want_one,
                f"{told}\nits {name} (token p of layer l is 100 * l + p):",
                ("kv head", "token", "dimension"),
                f"Layer {layer} must get back only what was appended to layer {layer}.",
            )


@promise("A new cache holds no tokens", layers=LAYERS)
def cache_starts_empty(answer, layers):
    call = f"GrowingCache({layers}).num_tokens"
    try:
        empty = number(answer(layers), call)
    except (TypeError, AttributeError, IndexError) as error:
        raise Wrong(
            "num_tokens can't be read before the first append.",
            f"{call} raised {type(error).__name__}: {error}",
            "There is no tensor yet whose tokens could be counted. The model asks all the same: the answer is 0.",
        ) from error
    if empty != 0:
        raise Wrong(f"A new cache holds {count(empty, 'token')}.", f"{call} is {empty}", "Start at 0.")


@promise("num_tokens counts the tokens of one layer", steps=STEPS, layers=LAYERS)
def cache_counts(answer, steps, layers):
    appends = 0
    for cache, told, _, _, want in appended(answer, layers, steps):
        appends += 1
        if appends % layers == 0:  # only between steps: in the middle of one, either count would do
            got, right = number(cache, f"{told}\ncache.num_tokens"), want[0].shape[1]
            if got != right:
                raise Wrong(
                    f"{count(right, 'token')} went in, but num_tokens is {got}.",
                    f"{told}\ncache.num_tokens is {got}",
                    "Each token passes every layer once: count it once. And a step may bring several tokens.",
                )


def number(cache, call: str) -> int:
    value = cache.num_tokens
    if callable(value):
        raise Wrong(
            "num_tokens is read like an attribute, without parentheses.",
            f"{call} is a method",
            "Put @property above the method, or keep a number up to date.",
        )
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise Wrong(
            "num_tokens is a whole number.", f"{call} is {value!r:.60}", "Count tokens, starting at 0."
        ) from None


@promise("Two caches know nothing of each other", examples=20, steps=STEPS)
def caches_are_separate(answer, steps):
    in_turn = zip(appended(answer, 2, steps), appended(answer, 2, steps), strict=True)
    for both in in_turn:
        for _, told, _, got, want in both:
            expect_tensor(
                got[0],
                want[0],
                f"# two caches, used in turn; this one:\n{told}\nits keys:",
                ("kv head", "token", "dimension"),
                "What is stored outside `self` is shared by all caches. Make every list in __init__.",
            )


# --- generate_cached --------------------------------------------------------------------------------------------------


class Recorder:
    """The model, and a note of every call: what was fed, and whether the cache went along."""

    def __init__(self, model, cache, call, eos_token_id):
        self.model, self.cache, self.call, self.fed = model, cache, call, []
        self.config = replace(model.config, eos_token_id=eos_token_id)

    def __call__(self, token_ids, cache=None, logits_to_keep=0):
        ids = self.flat(token_ids)
        if not ids:
            raise Wrong("The model was called without a token.", self.told([]), "There is always one to feed.")
        if cache is not self.cache:
            which = "without the cache" if cache is None else "with another cache than the one it was given"
            raise Wrong(
                f"The model was called {which}.",
                f"{self.told(ids)[: -len(', cache)')]})" if cache is None else self.told(ids),
                "Hand the same cache over in every call: model(token_ids, cache).",
            )
        self.fed.append(ids)
        if len(self.fed) > 100:  # nobody asks for so many new ids
            raise Wrong(
                "The model was called more than 100 times.",
                f"{self.call}\n{self.story()}",
                "When does the loop end? No new tokens at all may be asked for, too.",
            )
        return self.model(token_ids, cache, logits_to_keep)

    def flat(self, token_ids) -> list[int]:
        if hasattr(token_ids, "tolist"):  # tensors and arrays; of a single id it makes an int
            token_ids = token_ids.tolist()
        if not isinstance(token_ids, list | tuple | range):
            raise Wrong(
                "The model was given a single id; it takes a list of them.",
                f"{self.story()}\nmodel({token_ids!r:.60}, cache)".strip(),
                "Put the id in brackets.",
            )
        if any(isinstance(token, list | tuple) or getattr(token, "ndim", 0) for token in token_ids):
            raise Wrong(
                "The model was given a list in a list.",
                f"{self.story()}\nmodel({token_ids!r:.60}, cache)".strip(),
                "This model reads one text at a time, so it takes one flat list of ids: no batch dimension.",
            )
        return [int(token) for token in token_ids]

    def told(self, ids: list[int]) -> str:
        return f"{self.story()}\nmodel({shortened(ids)}, cache)".strip()

    def story(self) -> str:
        calls = [f"model({shortened(ids)}, cache)" for ids in self.fed]
        if len(calls) > 8:
            calls[5:-2] = [f"… {len(calls) - 7} calls more"]
        return "\n".join(calls)


def shortened(ids: list[int]) -> str:
    return repr(ids) if len(ids) <= 6 else f"[{ids[0]}, {ids[1]}, … {len(ids)} ids]"


PROMPT = st.lists(st.integers(0, 96), min_size=1, max_size=8)
NEW = st.integers(0, 6)


def generated(answer, prompt, num_new, seed=0):
    """Run the answer; returns its ids as a list, the right ones, the recorder, and how the call reads."""
    model = tiny_llama(seed=seed)
    cache = GrowingCache(model.config.num_hidden_layers)
    right = generate(model, list(prompt), num_new)
    call = calling(f"generate_cached(model, {prompt}, {num_new}, cache)")
    recorder = Recorder(model, cache, call, eos_token_id=right[0] if right else None)  # no reason to stop: none agreed
    given = list(prompt)
    result = answer(recorder, given, num_new, cache)
    if given != prompt:
        raise Wrong(
            "The caller's prompt was changed.",
            f"{call}\nafterwards the prompt is {given}",
            "`prompt_ids += ...` and `.append` write into the list they were given. Make a new list.",
        )
    try:
        return [int(token) for token in result], right, recorder, call
    except TypeError:
        raise Wrong(
            "A list of token ids was expected.", f"{call} returned {result!r:.60}", "Collect the new ids in a list."
        ) from None


@promise("Exactly the asked number of new ids", prompt=PROMPT, num_new=st.sampled_from([*range(7), 40]))
def returns_new_ids(answer, prompt, num_new):
    got, _, _, call = generated(answer, prompt, num_new)
    if got[: len(prompt)] == prompt and len(got) == len(prompt) + num_new:
        raise Wrong("The prompt came back too.", f"{call} returned {got}", "Return the new ids only.")
    if len(got) != num_new:
        raise Wrong(
            f"{count(num_new, 'new id')} asked for, {len(got)} given.",
            f"{call} returned {got}",
            "The prompt's own call already gives the first new id. And nothing ends the text early."
            if num_new
            else "Asked for none, give none. What does your code do before its loop?",
        )


@promise("The same ids as without a cache", prompt=PROMPT, num_new=NEW, seed=st.integers(0, 5))
def same_as_uncached(answer, prompt, num_new, seed):
    got, want, recorder, call = generated(answer, prompt, num_new, seed)
    if got != want:
        first = next((i for i, (a, b) in enumerate(zip(got, want, strict=False)) if a != b), 0)
        raise Wrong(
            "With the cache, other text is written than without.",
            f"{call}\n{recorder.story()}\ngave {got}, without a cache it is {want}",
            "The first new id is right, a later one isn't. Each token must pass the model once, in order."
            if first
            else "The very first id is wrong. It comes from the last row of the prompt's logits, by argmax.",
        )


@promise("No token is computed twice", prompt=PROMPT, num_new=st.integers(1, 6))
def nothing_twice(answer, prompt, num_new):
    _, _, recorder, call = generated(answer, prompt, num_new)
    fed = sum(map(len, recorder.fed))
    if fed > len(prompt) + num_new:
        raise Wrong(
            f"{count(fed, 'token')} went through the model; {len(prompt) + num_new - 1} would do.",
            f"{call}\n{recorder.story()}",
            "The cache remembers what was fed. Feed only what is new.",
        )


@promise("The whole prompt in one call", prompt=st.lists(st.integers(0, 96), min_size=2, max_size=8))
def prompt_at_once(answer, prompt):
    _, _, recorder, call = generated(answer, prompt, 2)
    if not recorder.fed or len(recorder.fed[0]) != len(prompt):
        first = len(recorder.fed[0]) if recorder.fed else 0
        raise Wrong(
            f"The first call had {count(first, 'token')}; the prompt has {len(prompt)}.",
            f"{call}\n{recorder.story()}",
            "All prompt tokens are known from the start, so one call can take them all. That is the prefill.",
        )


EXERCISES = (
    Exercise(
        id="attend",
        title="One new query against everything stored",
        kind="function",
        reference="pagedlab.attention:attend",
        promises=(attend_plain, attend_grouped, attend_large, attend_views, attend_pure),
        hints=(
            "Four steps: a score for every stored token, scale, softmax, weighted sum of the values.",
            "Start with as many query heads as kv heads: scores[h, t] is the dot product of q[h] and keys[h, t].",
            "For groups, either repeat the kv heads (`repeat_interleave`), or view q as [kv_heads, group, head_dim].",
            "q = q.view(kv_heads, group, head_dim)\n"
            "weights = torch.softmax(q @ keys.transpose(1, 2) / head_dim**0.5, dim=-1)\n"
            "then weights @ values, and back to [num_heads, head_dim].",
        ),
    ),
    Exercise(
        id="growing_cache",
        title="A cache that grows",
        kind="class",
        reference="pagedlab.cache.growing:GrowingCache",
        promises=(
            cache_keeps_order,
            cache_has_no_end,
            cache_separates_layers,
            cache_starts_empty,
            cache_counts,
            caches_are_separate,
        ),
        hints=(
            "Keep two lists with one entry per layer: its keys and its values.",
            "`torch.cat([old, new], dim=1)` puts new tokens behind old ones. At the first append there is no old one.",
            "num_tokens: look at one layer only, and at the last one, which gets its tokens when the step is complete.",
        ),
    ),
    Exercise(
        id="generate_cached",
        title="Prefill once, then one token at a time",
        kind="function",
        reference="pagedlab.model.generate:generate_cached",
        promises=(returns_new_ids, same_as_uncached, nothing_twice, prompt_at_once),
        hints=(
            "Two kinds of calls: one with the whole prompt, then some with a single id.",
            "`model(token_ids, cache)` returns a row of logits for each id fed. Which row tells what comes next?",
            "Loop max_new_tokens times: call the model, take the argmax of the last row, keep it, feed just that next.",
        ),
    ),
)

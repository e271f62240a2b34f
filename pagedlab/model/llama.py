"""A Llama-family decoder, from token ids to logits.

Read it from the bottom up: `Llama` is an embedding, a stack of `Layer`s and a last norm; a `Layer` is attention and a
feed-forward network, each added to what came in. Where keys and values are kept is not the model's business: every
layer hands its new q, k and v to `attend`, and a KV cache decides the rest.

One sequence at a time and no batch dimension: hidden states are `[num_tokens, hidden_size]`; q, k and v are heads
first, `[heads, num_tokens, head_dim]`.

Sources: Touvron et al., "LLaMA", section 2.2 (arXiv:2302.13971); RMSNorm (arXiv:1910.07467); SwiGLU (arXiv:2002.05202);
rotary embeddings (arXiv:2104.09864); grouped-query attention (arXiv:2305.13245).
"""

from collections.abc import Callable, Sequence

import torch

from pagedlab.attention import attention
from pagedlab.cache.protocol import KVCache, NoCache
from pagedlab.model import pointwise
from pagedlab.model.config import ModelConfig
from pagedlab.model.linear import GatedLinear, Linear

Weights = Callable[[str, tuple[int, ...]], torch.Tensor]
"""`weights(name, shape)` gives one tensor by its Hugging Face name, or raises if it is missing or has another shape."""

Attend = Callable[[int, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""`attend(layer, q, k, v)`: q is `[num_heads, num_tokens, head_dim]` and so is the result; k and v are
`[num_kv_heads, num_tokens, head_dim]`, all three already rotated to their positions."""


class RMSNorm:
    """Scale every token's vector to a mean square of 1, then by a learned weight. Computed in float32."""

    def __init__(self, weight: torch.Tensor, eps: float):
        self.weight, self.eps = weight, eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return pointwise.rms_norm(x, self.weight, self.eps)

    def after_adding(self, hidden: torch.Tensor, update: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """`hidden + update`, which takes the place of `hidden`, and that normalised. None is nothing to add."""
        return pointwise.add_and_norm(hidden, update, self.weight, self.eps)


class RotaryEmbedding:
    """Encode a position by rotating each head's vector: pair i turns by `position * theta ** (-2i / head_dim)`.

    The dot product of a rotated q and a rotated k then depends only on how far apart they are. A key can be cached
    after it is rotated, because its own position never changes.

    Pair i is made of dimensions i and i + head_dim / 2 ("half-split", the layout of Hugging Face's weights).
    """

    def __init__(self, config: ModelConfig, device: torch.device):
        exponents = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=device) / config.head_dim
        self.frequencies = 1.0 / config.rope_theta**exponents  # [head_dim / 2], radians a token
        if config.rope_divisors is not None:
            self.frequencies = self.frequencies / torch.tensor(config.rope_divisors, device=device)

    def angles(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine, `[num_tokens, head_dim / 2]` each, float32. The same for every layer."""
        angles = positions.float()[:, None] * self.frequencies
        return angles.cos(), angles.sin()


class Attention:
    """Project to queries, keys and values; attend; project back.

    The three projections are one matrix (`qkv`): one large product is faster than three small ones.
    """

    def __init__(self, config: ModelConfig, weights: Weights, prefix: str, fast: bool):
        self.num_heads, self.num_kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.head_dim = config.head_dim
        q_size, kv_size = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        qkv = [
            weights(f"{prefix}.q_proj.weight", (q_size, config.hidden_size)),
            weights(f"{prefix}.k_proj.weight", (kv_size, config.hidden_size)),
            weights(f"{prefix}.v_proj.weight", (kv_size, config.hidden_size)),
        ]
        self.qkv = Linear(torch.cat(qkv), fast)
        self.out = Linear(weights(f"{prefix}.o_proj.weight", (config.hidden_size, q_size)), fast)

    def __call__(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, layer: int, attend: Attend):
        num_tokens, num_turning = x.shape[0], self.num_heads + self.num_kv_heads
        heads = self.qkv(x).view(num_tokens, -1, self.head_dim)  # [num_tokens, all heads, head_dim]
        qk = pointwise.rotate(heads[:, :num_turning], cos, sin).transpose(0, 1)
        q, k, v = qk[: self.num_heads], qk[self.num_heads :], heads[:, num_turning:].transpose(0, 1)

        attended = attend(layer, q, k, v)
        if attended.shape != q.shape:
            raise ValueError(f"attend returned {tuple(attended.shape)} for queries of {tuple(q.shape)}: keep the shape")
        return self.out(attended.transpose(0, 1).reshape(num_tokens, -1))


class FeedForward:
    """SwiGLU: one projection (`gate`) decides how much of the other one (`up`) passes: `silu(gate) * up`."""

    def __init__(self, config: ModelConfig, weights: Weights, prefix: str, fast: bool):
        wide, narrow = config.intermediate_size, config.hidden_size
        gate = weights(f"{prefix}.gate_proj.weight", (wide, narrow))
        up = weights(f"{prefix}.up_proj.weight", (wide, narrow))
        self.gate_up = GatedLinear(gate, up, fast)  # both in one pass
        self.down = Linear(weights(f"{prefix}.down_proj.weight", (narrow, wide)), fast)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(self.gate_up(x))


class Layer:
    """Attention, then feed-forward. Each reads a normalised copy and adds its result to the running hidden state.

    What the feed-forward found is added by whoever comes next, a layer or the last norm: adding and normalising are one
    pass over the numbers.
    """

    def __init__(self, config: ModelConfig, weights: Weights, index: int, fast: bool):
        prefix, size, eps = f"model.layers.{index}", (config.hidden_size,), config.rms_norm_eps
        self.index = index
        self.attention_norm = RMSNorm(weights(f"{prefix}.input_layernorm.weight", size), eps)
        self.attention = Attention(config, weights, f"{prefix}.self_attn", fast)
        self.feed_forward_norm = RMSNorm(weights(f"{prefix}.post_attention_layernorm.weight", size), eps)
        self.feed_forward = FeedForward(config, weights, f"{prefix}.mlp", fast)

    def __call__(
        self, hidden: torch.Tensor, update: torch.Tensor | None, cos: torch.Tensor, sin: torch.Tensor, attend: Attend
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`hidden + update` goes in, and so it comes out: as two, `[num_tokens, hidden_size]` each."""
        hidden, x = self.attention_norm.after_adding(hidden, update)
        hidden, x = self.feed_forward_norm.after_adding(hidden, self.attention(x, cos, sin, self.index, attend))
        return hidden, self.feed_forward(x)


class Llama:
    """The whole decoder.

    `weights` is asked for every tensor once, a layer at a time, and decides dtype and device. `fast=True` packs
    matrices for the CPU (`pagedlab.model.linear`).
    """

    def __init__(self, config: ModelConfig, weights: Weights, fast: bool = True):
        self.config = config
        vocab_shape = (config.vocab_size, config.hidden_size)
        embedding = weights("model.embed_tokens.weight", vocab_shape)
        self.dtype, self.device = embedding.dtype, embedding.device
        # Tied: the matrix that turns an id into a vector also turns a vector into scores for all ids. It is held once,
        # unless it is packed in a way that rows cannot be read from.
        tied = config.tie_word_embeddings
        self.lm_head = Linear(embedding if tied else weights("lm_head.weight", vocab_shape), fast)
        self.embedding = self.lm_head if tied and self.lm_head.has_rows else Linear(embedding, fast=False)
        self.layers = [Layer(config, weights, index, fast) for index in range(config.num_hidden_layers)]
        self.norm = RMSNorm(weights("model.norm.weight", (config.hidden_size,)), config.rms_norm_eps)
        self.rope = RotaryEmbedding(config, self.device)

    @torch.no_grad()
    def __call__(
        self, token_ids: Sequence[int] | torch.Tensor, cache: KVCache | None = None, logits_to_keep: int = 0
    ) -> torch.Tensor:
        """Logits for the NEW tokens of one sequence, `[num_kept, vocab_size]`.

        token_ids: a list, or a 1-D integer tensor. `cache` holds what came before and takes in what is new; without
        one, `token_ids` is the whole sequence. `logits_to_keep=1` computes the last token's scores only, all that the
        next token needs; 0 keeps every token's.

        ValueError: no tokens, an id outside the vocabulary, a position the model was not made for, or a cache that
        gives back another number of tokens than it was given.
        """
        if logits_to_keep < 0:
            raise ValueError(f"logits_to_keep must be 0 (all) or more, not {logits_to_keep}")
        cache = NoCache() if cache is None else cache
        layers_in_cache = getattr(cache, "num_layers", len(self.layers))  # a cache need not tell
        if layers_in_cache != len(self.layers):
            raise ValueError(f"the model has {len(self.layers)} layers, but the cache was made for {layers_in_cache}")
        token_ids = torch.as_tensor(token_ids, device=self.device)
        positions = cache.num_tokens + torch.arange(token_ids.numel(), device=self.device)
        hidden = self.forward_tokens(token_ids, positions, _attend_through(cache))
        return self.logits(hidden[-logits_to_keep:])  # -0 is 0: everything

    @torch.no_grad()
    def forward_tokens(self, token_ids: torch.Tensor, positions: torch.Tensor, attend: Attend) -> torch.Tensor:
        """Hidden states after the last norm, `[num_tokens, hidden_size]`.

        token_ids, positions: 1-D integer tensors of equal length. Nothing here asks which sequence a token belongs to:
        only `attend` looks at more than one token at a time.
        """
        self._check(token_ids, positions)
        return self.forward_embedded(self.embed(token_ids), *self.rope.angles(positions), attend)

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """The vector that each token starts as, `[num_tokens, hidden_size]`."""
        return self.embedding.rows(token_ids)

    @torch.no_grad()
    def forward_embedded(
        self, hidden: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, attend: Attend
    ) -> torch.Tensor:
        """`forward_tokens` for those who have embedded tokens and rotary angles. `hidden` is overwritten."""
        update = None
        for layer in self.layers:
            hidden, update = layer(hidden, update, cos, sin, attend)
        return self.norm.after_adding(hidden, update)[1]

    @torch.no_grad()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """`[num_tokens, hidden_size]` to one score for every token of the vocabulary, `[num_tokens, vocab_size]`."""
        return self.lm_head(hidden)

    def _check(self, token_ids: torch.Tensor, positions: torch.Tensor) -> None:
        if token_ids.dim() != 1 or token_ids.shape != positions.shape:
            raise ValueError(
                f"token ids are {tuple(token_ids.shape)} and positions {tuple(positions.shape)}: "
                "give one list of each, equally long"
            )
        if token_ids.numel() == 0:
            raise ValueError("no tokens: the model needs at least one")
        if token_ids.dtype not in (torch.int64, torch.int32):
            raise ValueError(f"token ids must be integers, not {token_ids.dtype}")
        low, high = (int(end) for end in token_ids.aminmax())
        if low < 0 or high >= self.config.vocab_size:
            wrong = low if low < 0 else high
            raise ValueError(f"token id {wrong} is outside the vocabulary: ids are 0 to {self.config.vocab_size - 1}")
        low, high = (int(end) for end in positions.aminmax())
        limit = self.config.max_position_embeddings
        if low < 0 or high >= limit:
            raise ValueError(
                f"position {low if low < 0 else high} is outside the {limit} positions this model was trained for"
            )


def _attend_through(cache: KVCache) -> Attend:
    """A cache that attends by itself does so; for the others, append and then use dense attention."""
    if hasattr(cache, "attend"):
        return cache.attend
    before = cache.num_tokens

    def append_and_attend(layer, q, k, v):
        keys, values = cache.append(layer, k, v)
        if keys.shape[1] != before + k.shape[1]:
            raise ValueError(
                f"the cache said it held {before} tokens and was given {k.shape[1]} more, "
                f"but layer {layer} gave back {keys.shape[1]}, not {before + k.shape[1]}"
            )
        return attention(q, keys, values)

    return append_and_attend

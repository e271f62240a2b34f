"""Requests with the lengths of the vLLM paper's two workloads.

The paper drew its requests from ShareGPT chats and from Alpaca instructions, and gives their mean lengths (Figure 11
of arXiv:2309.06180). A simulation of memory needs nothing else about a request, so we draw lengths from log-normal
distributions with those means. Log-normal because lengths are positive, mostly short, and have a long tail.

The means leave one thing open: how wide the distributions are (`sigma`, the standard deviation of the logarithm).

- ShareGPT outputs: 0.80. The paper's own Figure 2 implies it. Under Orca (Max) the batch is always 7, so the slots that
  are reserved but not yet used, 13.3 % of 15,728, are 299 for each request. A running request has on average half of
  its output still to come, and a long one is met more often than a short one: that half is E[n^2] / (2 E[n]) for
  output length n. With a mean of 337.99 and the tail clipped, sigma = 0.80 gives 300. This one number of Figure 2 is
  used here; all the others are left for the simulation to meet or to miss.
- Everything else: 0.83, a standard deviation as large as the mean. A choice: we know of no figure to pin it down.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from statistics import NormalDist

import numpy as np


@dataclass(frozen=True)
class SimRequest:
    """A request as a simulator sees it: so many tokens come in, so many will come out."""

    prompt_tokens: int
    output_tokens: int

    def __post_init__(self):
        if self.prompt_tokens < 1 or self.output_tokens < 1:
            raise ValueError(
                f"a request has at least 1 prompt token and 1 output token, "
                f"not {self.prompt_tokens} and {self.output_tokens}"
            )

    @property
    def final_tokens(self) -> int:
        """Tokens in the cache when the request finishes."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True)
class Lengths:
    """Where prompt and output lengths come from. `mean_*` are means in tokens, as drawn: clipping is allowed for."""

    name: str
    mean_prompt: float
    mean_output: float
    sigma_prompt: float
    sigma_output: float
    max_model_len: int = 2048  # prompt and output together; OPT's limit

    def __post_init__(self):
        if not (self.mean_prompt >= 1 and self.mean_output >= 1):
            raise ValueError(
                f"mean lengths are {self.mean_prompt} and {self.mean_output} tokens; both must be at least 1"
            )
        if not (self.sigma_prompt > 0 and self.sigma_output > 0):
            raise ValueError(f"sigmas are {self.sigma_prompt} and {self.sigma_output}; both must be above 0")
        if self.mean_prompt + self.mean_output > self.max_model_len / 2:
            # Nearer to the limit, clipping would reshape the distribution, not just trim its tail.
            raise ValueError(
                f"a mean length of {self.mean_prompt} + {self.mean_output} tokens is more than half of "
                f"max_model_len={self.max_model_len}; raise max_model_len"
            )

    def requests(self, n: int, seed: int = 0) -> list[SimRequest]:
        """The first `n` requests of `stream(seed)`: a longer list begins with the shorter one."""
        return list(islice(self.stream(seed), n))

    def stream(self, seed: int = 0) -> Iterator[SimRequest]:
        """Requests without end, the same ones for the same seed on every machine."""
        # PCG64 by name: what `default_rng` stands for may change with numpy.
        rng = np.random.Generator(np.random.PCG64(seed))
        mu_prompt = _mu_for_mean(self.mean_prompt, self.sigma_prompt, limit=self.max_model_len - 1)
        mu_output = _mu_for_mean(self.mean_output, self.sigma_output, limit=self.max_model_len - self.mean_prompt)
        while True:
            for z_prompt, z_output in rng.standard_normal((256, 2)).tolist():
                prompt = round(math.exp(mu_prompt + self.sigma_prompt * z_prompt))
                prompt = min(max(prompt, 1), self.max_model_len - 1)  # leaves room for at least one output token
                output = round(math.exp(mu_output + self.sigma_output * z_output))
                output = min(max(output, 1), self.max_model_len - prompt)
                yield SimRequest(prompt, output)


def _clipped_mean(mu: float, sigma: float, limit: float) -> float:
    """Mean of min(X, limit) for log-normal X."""
    cdf = NormalDist().cdf
    z = (math.log(limit) - mu) / sigma
    return math.exp(mu + sigma * sigma / 2) * cdf(z - sigma) + limit * (1 - cdf(z))


def _mu_for_mean(mean: float, sigma: float, limit: float) -> float:
    """The log-normal's mu whose mean, after clipping at `limit`, is `mean`. Found by bisection."""
    low, high = math.log(mean) - sigma * sigma / 2, math.log(limit)  # unclipped mean: too low or just right
    for _ in range(60):
        middle = (low + high) / 2
        if _clipped_mean(middle, sigma, limit) < mean:
            low = middle
        else:
            high = middle
    return (low + high) / 2


SHAREGPT = Lengths("ShareGPT", mean_prompt=161.31, mean_output=337.99, sigma_prompt=0.83, sigma_output=0.80)
ALPACA = Lengths("Alpaca", mean_prompt=19.31, mean_output=58.45, sigma_prompt=0.83, sigma_output=0.83)

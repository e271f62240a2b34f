"""Beam search: keep the `beam_width` most likely continuations, token by token.

In every step each beam is continued by its most likely tokens, and the best `beam_width` of all these candidates are
the next beams. One beam may go on as three, and another not at all. With block tables this costs almost nothing: a beam
that goes on as three is forked twice, and one that ends gives its blocks back; no keys or values move, except a last
block that two beams write to (copy-on-write).

A candidate that ends with a stop token is a result. Results are compared by

    score = cumulative_logprob / num_tokens ** length_penalty

and the search is over when no beam can become one of the best `beam_width` any more.

Source: the vLLM paper, section 4.4 and Figure 9 (arXiv:2309.06180).
"""

import math
from dataclasses import replace

import torch

from pagedlab.engine.detokenize import detokenize
from pagedlab.engine.group import Choice, Sequence, SequenceGroup
from pagedlab.engine.outputs import CompletionOutput
from pagedlab.engine.request import RequestStatus

Candidates = dict[int, float]
"""Log-probability by token: the likeliest tokens to continue a beam, and every stop token."""


class BeamGroup(SequenceGroup):
    """One prompt and its beams. `sequences` are those alive; they wait for each other before each choice."""

    def __init__(self, *args):
        super().__init__(*args)
        self._results: list[CompletionOutput] = []  # best first, `beam_width` at most
        self._offers: dict[Sequence, Candidates] = {}

    def candidates(self, logits: torch.Tensor) -> Candidates:
        """All tokens that can matter, for one beam's row of logits, `[vocab_size]`."""
        logprobs = logits.float().log_softmax(dim=-1)
        if logprobs.isnan().any():
            raise ValueError("a row of the logits has NaN in it")
        stops = sorted(self.stop_token_ids)
        best = logprobs.topk(min(self.params.beam_width + len(stops), len(logprobs)))  # some of them may be stops
        tokens = best.indices.tolist() + stops
        return dict(zip(tokens, logprobs[tokens].tolist(), strict=True))

    def offer(self, sequence: Sequence, candidates: Candidates) -> list[tuple[Sequence, list[Choice]]]:
        """The next tokens of one beam. With the last beam's, the choice: each beam with the tokens that continue it."""
        self._offers[sequence] = candidates
        if len(self._offers) < len(self.live):
            return []
        offers, self._offers = self._offers, {}
        return self._select(offers)

    def _select(self, offers: dict[Sequence, Candidates]) -> list[tuple[Sequence, list[Choice]]]:
        self.sequences = self.live
        params, continued = self.params, []
        for beam, candidates in offers.items():
            for token, logprob in candidates.items():
                if token in self.stop_token_ids:
                    self._add_result(beam, token, logprob, "stop")
                else:
                    continued.append((beam.cumulative_logprob + logprob, beam, Choice(token, {token: logprob})))
        continued.sort(key=lambda candidate: -candidate[0])
        best = continued[: params.beam_width]

        num_tokens = len(next(iter(offers)).request.output_token_ids) + 1  # the same for all beams
        if num_tokens == params.max_tokens:
            for _, beam, choice in best:
                self._add_result(beam, choice.token, choice.logprobs[choice.token], "length")
            best = []
        elif self._is_decided(best[0][0] if best else -math.inf, num_tokens):
            best = []
        return [(beam, [choice for _, parent, choice in best if parent is beam]) for beam in offers]

    def _add_result(self, beam: Sequence, token: int, logprob: float, reason: str) -> None:
        token_ids = (*beam.request.output_token_ids, token)
        stopped_by = token if reason == "stop" and token not in self.eos_token_ids else None
        cumulative = beam.cumulative_logprob + logprob
        result = CompletionOutput(0, "", token_ids, reason, stopped_by, cumulative)
        self._results.append(result)
        self._results.sort(key=lambda result: -self._score(result.cumulative_logprob, len(result.token_ids)))
        del self._results[self.params.beam_width :]

    def _score(self, cumulative_logprob: float, num_tokens: int) -> float:
        return cumulative_logprob / num_tokens**self.params.length_penalty

    def _is_decided(self, best_logprob: float, num_tokens: int) -> bool:
        """Whether no beam can beat the results. A log-probability only falls; the length may help, at either end."""
        if len(self._results) < self.params.beam_width:
            return False
        possible = max(self._score(best_logprob, length) for length in (num_tokens, self.params.max_tokens))
        worst = self._results[-1]
        return possible <= self._score(worst.cumulative_logprob, len(worst.token_ids))

    def completions(self) -> tuple[CompletionOutput, ...]:
        """The results, best first; of a search that goes on or was aborted, the beams as they are."""
        beams = [beam for beam in self.sequences if beam.request.status is not RequestStatus.FINISHED_STOPPED]
        found = [beam.output() for beam in beams] or self._results
        return tuple(
            replace(output, index=rank, text=self._text(output.token_ids)) for rank, output in enumerate(found)
        )

    def _text(self, token_ids: tuple[int, ...]) -> str:
        if self.tokenizer is None:
            return ""
        shown = token_ids[:-1] if token_ids and token_ids[-1] in self.stop_token_ids else token_ids
        return detokenize(self.tokenizer, shown)

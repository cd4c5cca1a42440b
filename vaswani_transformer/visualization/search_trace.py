"""The beam search of section 6.1 for one sentence, recorded: every candidate and its fate."""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..model.beam_search_vaswani import BeamSearch, Hypotheses, length_penalty
from .tokens import token_texts


# The step, from 1, and the index among its candidates.
Place = tuple[int, int]

# Parent's beam and token, by which a candidate differs from the others of its step.
_Extension = tuple[int, int]


class Fate(StrEnum):
    """What became of a candidate."""

    LIVE = "live"  # extended in the next step
    FINISHED = "finished"  # ended, also by transformers' length limit, and among the num_beams best to the end
    UNFINISHED = "unfinished"  # live at the end, and returned because too few hypotheses had finished
    BEATEN = "beaten"  # num_beams candidates that did not end were better
    WORSE = "worse"  # ended, with a lower score than num_beams finished hypotheses
    DISPLACED = "displaced"  # finished, and later displaced by a better finished hypothesis
    OUTSIDE_BEAM = "outside_beam"  # ended, but not among the num_beams best candidates, as early_stopping requires
    STOPPED = "stopped"  # live when the finished hypotheses reached the stopping bound
    LENGTH_LIMIT = "length_limit"  # live at the length limit


class StopReason(StrEnum):
    """Why the search stopped."""

    BOUND = "bound"  # the deciding finished hypothesis reached the bound
    ENOUGH_FINISHED = "enough_finished"  # num_beams hypotheses have finished, and early_stopping is True
    LENGTH_LIMIT = "length_limit"
    NONE_LIVE = "none_live"  # all candidates ended


@dataclass(frozen=True)
class Candidate:
    """An extension of a live hypothesis by one token.

    Attributes:
        token: Its last token.
        text: The text of this token, with its leading space.
        parent: The candidate of the step before that it extends; None in the first step.
        log_probability: Of the token, given the hypothesis that it extends.
        score: Log-probability of the whole hypothesis.
        normalized_score: `score` divided by the length penalty.
        fate: What became of it.
        until: The step at which it was dropped; None if it was not.
    """

    token: int
    text: str
    parent: int | None
    log_probability: float
    score: float
    normalized_score: float
    fate: Fate
    until: int | None = None


@dataclass(frozen=True)
class SearchStep:
    """One step of the search.

    Attributes:
        candidates: Best first.
        live: Indices of the candidates that are live after the step, best first.
        finished: The best finished hypotheses after the step, best first.
        deciding_score: Score of the finished hypothesis that decides whether to stop; None before it exists.
        bound: The score that it must reach; None if any will do, or if no hypothesis is live.
    """

    candidates: tuple[Candidate, ...]
    live: tuple[int, ...]
    finished: tuple[Place, ...]
    deciding_score: float | None
    bound: float | None


@dataclass(frozen=True)
class TracedHypothesis:
    """A hypothesis that the search returns.

    Attributes:
        place: Its last candidate.
        score: Its entry of `sequences_scores`.
        tokens: Its generated tokens.
        text: The tokens decoded.
    """

    place: Place
    score: float
    tokens: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class SearchTrace:
    """A search as it ran.

    Attributes:
        num_beams: Number of live and of finished hypotheses that are kept.
        length_penalty: The exponent alpha.
        penalty_type: "gnmt" or "transformers".
        length_limit: Tokens that the sentence may generate, EOS included.
        steps: The steps; the search stopped after the last.
        reason: Why it stopped.
        hypotheses: The `num_return_sequences` hypotheses that it returns, best first.
    """

    num_beams: int
    length_penalty: float
    penalty_type: str
    length_limit: int
    steps: tuple[SearchStep, ...]
    reason: StopReason
    hypotheses: tuple[TracedHypothesis, ...]

    def candidate(self, place: Place) -> Candidate:
        """The candidate at a step and index."""
        return self.steps[place[0] - 1].candidates[place[1]]


def trace_search(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str, **options: Any
) -> SearchTrace:
    """Translate a sentence by beam search, and record the search.

    Args:
        model: A model of this package.
        tokenizer: Its tokenizer.
        source: The sentence.
        options: For `generate`, such as `num_beams` and `length_penalty`.

    Raises:
        ValueError: `num_beams` is 1: that is no beam search.
    """
    recorder = _Recorder()
    search = partial(type(model)._beam_search, observer=recorder)
    inputs = tokenizer(source, return_tensors="pt").to(model.device)
    model.generate(**inputs, **options, custom_generate=search)
    return recorder.trace(tokenizer)


class _Recorder:
    """Observes a search for one sentence; `trace` is what it has seen."""

    def __init__(self) -> None:
        self.steps: list[SearchStep] = []
        self.extensions: list[list[_Extension]] = []  # of each step
        self.last_live: list[float] = [0.0]  # log-probabilities of the hypotheses that the next step extends

    def __call__(self, search: BeamSearch, candidates: Hypotheses, has_ended: torch.Tensor) -> None:
        if search.num_beams < 2:
            raise ValueError("num_beams: is 1, which is no beam search; ask for at least 2")
        self.search, last = search, search.state.length - search.prefix_length - 1
        tokens = candidates.tokens[0, :, last + search.prefix_length].tolist()
        beams = (candidates.rows[0, :, last] % search.num_beams).tolist()
        exists = candidates.scores[0].isneginf().logical_not().tolist()
        self.extensions.append(list(zip(beams, tokens, strict=True))[: sum(exists)])
        finished = self._places(search.state.finished)
        live = tuple(index for _, index in self._places(search.state.live))
        deciding, bound = (None if math.isinf(float(score)) else float(score) for score in search.stopping_scores())
        scores = candidates.scores[0].tolist()
        normalized = (candidates.scores[0] / self._penalty(last + 1)).tolist()
        found = tuple(
            Candidate(
                token=token,
                text="",
                parent=self.steps[-1].live[beam] if self.steps else None,
                log_probability=scores[index] - self.last_live[beam],
                score=scores[index],
                normalized_score=normalized[index],
                fate=self._fate(index, bool(has_ended[0, index]), index in live, (last + 1, index) in finished),
            )
            for index, (beam, token) in enumerate(self.extensions[-1])
        )
        self.steps.append(SearchStep(found, live, finished, deciding, bound))
        self.last_live = search.state.live.scores[0].tolist()

    def _penalty(self, length: int) -> torch.Tensor | float:
        config = self.search.config
        return length_penalty(length, config.length_penalty, _penalty_type(self.search))

    def _places(self, hypotheses: Hypotheses) -> tuple[Place, ...]:
        """Where the hypotheses that exist were candidates."""
        lengths = hypotheses.rows[0].ge(0).sum(-1).tolist()
        places = []
        for index, length in enumerate(lengths):
            if not hypotheses.scores[0, index].isneginf():
                beam = int(hypotheses.rows[0, index, length - 1]) % self.search.num_beams
                token = int(hypotheses.tokens[0, index, self.search.prefix_length + length - 1])
                places.append((length, self.extensions[length - 1].index((beam, token))))
        return tuple(places)

    def _fate(self, index: int, has_ended: bool, is_live: bool, is_finished: bool) -> Fate:
        """What becomes of a candidate in its own step."""
        if not has_ended:
            return Fate.LIVE if is_live else Fate.BEATEN
        if is_finished:
            return Fate.FINISHED
        counts = self.search.config.early_stopping == "never" or index < self.search.num_beams
        return Fate.WORSE if counts else Fate.OUTSIDE_BEAM

    def trace(self, tokenizer: PreTrainedTokenizerBase) -> SearchTrace:
        """The search from its first to its last step."""
        search, reason = self.search, self._reason()
        returned = self._places(search.results)[: search.config.num_return_sequences]
        last = len(self.steps)
        at_limit = Fate.LENGTH_LIMIT if reason is StopReason.LENGTH_LIMIT else Fate.STOPPED
        fates = {(last, index): (at_limit, last) for index in self.steps[-1].live}
        fates |= {place: (Fate.UNFINISHED, None) for place in returned if place in fates}
        fates |= self._displaced()
        steps = (
            replace(step, candidates=tuple(self._with_texts_and_fates(tokenizer, number, step.candidates, fates)))
            for number, step in enumerate(self.steps, start=1)
        )
        return SearchTrace(
            num_beams=search.num_beams,
            length_penalty=search.config.length_penalty,
            penalty_type=_penalty_type(search),
            length_limit=search.max_length - search.prefix_length,
            steps=tuple(steps),
            reason=reason,
            hypotheses=tuple(self._hypothesis(tokenizer, *found) for found in enumerate(returned)),
        )

    def _reason(self) -> StopReason:
        last = self.steps[-1]
        if last.deciding_score is not None and last.live:
            if last.bound is None:
                return StopReason.ENOUGH_FINISHED
            if last.deciding_score >= last.bound:
                return StopReason.BOUND
        is_at_limit = len(self.steps) == self.search.max_length - self.search.prefix_length
        return StopReason.LENGTH_LIMIT if last.live or is_at_limit else StopReason.NONE_LIVE

    def _displaced(self) -> dict[Place, tuple[Fate, int]]:
        """The finished hypotheses that a later step displaced, and this step."""
        return {
            place: (Fate.DISPLACED, number)
            for number, (before, after) in enumerate(zip(self.steps, self.steps[1:], strict=False), start=2)
            for place in set(before.finished) - set(after.finished)
        }

    def _with_texts_and_fates(
        self,
        tokenizer: PreTrainedTokenizerBase,
        number: int,
        candidates: Iterable[Candidate],
        fates: dict[Place, tuple[Fate, int | None]],
    ) -> Iterable[Candidate]:
        """The candidates of a step with their texts and fates."""
        texts = token_texts(tokenizer, [candidate.token for candidate in candidates])
        for index, (candidate, text) in enumerate(zip(candidates, texts, strict=True)):
            dropped = candidate.fate in (Fate.BEATEN, Fate.WORSE, Fate.OUTSIDE_BEAM)
            fate, until = fates.get((number, index), (candidate.fate, number if dropped else None))
            yield replace(candidate, text=text, fate=fate, until=until)

    def _hypothesis(self, tokenizer: PreTrainedTokenizerBase, index: int, place: Place) -> TracedHypothesis:
        start = self.search.prefix_length
        tokens = self.search.results.tokens[0, index, start : start + place[0]].tolist()
        text = tokenizer.decode(tokens, skip_special_tokens=True)
        return TracedHypothesis(place, float(self.search.results.scores[0, index]), tuple(tokens), text)


def _penalty_type(search: BeamSearch) -> str:
    return getattr(search.config, "length_penalty_type", "transformers")

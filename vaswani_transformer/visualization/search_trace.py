"""A recorded beam search (6.1) of one sentence: every candidate and its fate."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..model.beam_search_vaswani import BeamSearch, Hypotheses, length_penalty
from ..model.generation_vaswani import search
from .tokens import token_texts


Place = tuple[int, int]  # of a candidate: its step, from 1, and its index there


class Fate(StrEnum):
    """The outcome of a candidate."""

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
    """The reason why the search stopped."""

    BOUND = "bound"  # the deciding finished hypothesis reached the bound
    ENOUGH_FINISHED = "enough_finished"  # num_beams hypotheses have finished, and early_stopping is True
    LENGTH_LIMIT = "length_limit"
    NONE_LIVE = "none_live"  # all candidates ended


@dataclass
class Candidate:
    """An extension of a live hypothesis by one token.

    Attributes:
        token, text: The token, and its text with its leading space.
        parent: The candidate of the previous step that it extends; None in the first step.
        log_probability: Log-probability of the token, given the hypothesis that it extends.
        score: Log-probability of the whole hypothesis.
        normalized_score: `score` divided by the length penalty.
        fate: Its outcome.
        until: The step at which it was dropped; None if it was kept.
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
        bound: Threshold that stops the search; None if any score stops it, or nothing is live.
    """

    candidates: list[Candidate]
    live: tuple[int, ...]
    finished: tuple[Place, ...]
    deciding_score: float | None
    bound: float | None


@dataclass(frozen=True)
class TracedHypothesis:
    """A hypothesis that the search returns; `place` is its last candidate, `score` its `sequences_scores`."""

    place: Place
    score: float
    tokens: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class SearchTrace:
    """A recorded search.

    Attributes:
        num_beams: Number of live and of finished hypotheses that are kept.
        length_penalty, penalty_type: The exponent alpha, and "gnmt" or "transformers".
        length_limit: Tokens that the sentence may generate, EOS included.
        reason: Why the search stopped after the last step.
        hypotheses: The `num_return_sequences` hypotheses that it returns, best first.
    """

    num_beams: int
    length_penalty: float
    penalty_type: str
    length_limit: int
    steps: tuple[SearchStep, ...]
    reason: StopReason
    hypotheses: tuple[TracedHypothesis, ...]


def trace_search(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, source: str, **options: Any
) -> SearchTrace:
    """Translate a sentence by beam search with keywords of `generate`, and record the search."""
    recorder = _Recorder(tokenizer)
    inputs = tokenizer(source, return_tensors="pt").to(model.device)
    model.generate(**inputs, **options, custom_generate=partial(search, observer=recorder))
    return recorder.trace()


class _Recorder:
    """Observer of a search for one sentence."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self.steps: list[SearchStep] = []
        self.indices: list[dict[tuple[int, ...], int]] = []  # for each step, its candidates by all their tokens

    def __call__(self, search: BeamSearch, candidates: Hypotheses, has_ended: torch.Tensor) -> None:
        self.search, number = search, len(self.steps) + 1
        scores = [score for score in candidates.scores[0].tolist() if score != -math.inf]
        sequences = [self._tokens(candidates, index, number) for index in range(len(scores))]
        self.indices.append({tokens: index for index, tokens in enumerate(sequences)})
        live, finished = self._places(search.state.live), self._places(search.state.finished)
        penalty = float(length_penalty(number, search.config.length_penalty, search.config.length_penalty_type))
        texts = token_texts(self.tokenizer, [tokens[-1] for tokens in sequences])
        extended = []
        for index, (tokens, text, score) in enumerate(zip(sequences, texts, scores, strict=True)):
            parent = self.indices[-2][tokens[:-1]] if self.steps else None
            before = 0.0 if parent is None else self.steps[-1].candidates[parent].score
            place = (number, index)
            fate = self._fate(index, bool(has_ended[0, index]), place in live, place in finished)
            until = None if fate in (Fate.LIVE, Fate.FINISHED) else number
            extended.append(Candidate(tokens[-1], text, parent, score - before, score, score / penalty, fate, until))
        stopping = (float(score) for score in search.stopping_scores())
        deciding_score, bound = (score if math.isfinite(score) else None for score in stopping)
        self.steps.append(SearchStep(extended, tuple(index for _, index in live), finished, deciding_score, bound))
        if number > 1:
            self._drop(set(self.steps[-2].finished).difference(finished), Fate.DISPLACED)

    def _tokens(self, hypotheses: Hypotheses, index: int, length: int) -> tuple[int, ...]:
        """The generated tokens of a hypothesis, which identify it."""
        start = self.search.prefix_length
        return tuple(hypotheses.tokens[0, index, start : start + length].tolist())

    def _places(self, hypotheses: Hypotheses) -> tuple[Place, ...]:
        """The places at which the existing hypotheses were candidates."""
        lengths = hypotheses.rows[0].ge(0).sum(-1).tolist()
        return tuple(
            (length, self.indices[length - 1][self._tokens(hypotheses, index, length)])
            for index, length in enumerate(lengths)
            if not hypotheses.scores[0, index].isneginf()
        )

    def _fate(self, index: int, has_ended: bool, is_live: bool, is_finished: bool) -> Fate:
        """The outcome of a candidate in its step."""
        if not has_ended:
            return Fate.LIVE if is_live else Fate.BEATEN
        if is_finished:
            return Fate.FINISHED
        may_finish = self.search.config.early_stopping == "never" or index < self.search.num_beams
        return Fate.WORSE if may_finish else Fate.OUTSIDE_BEAM

    def _drop(self, places: Iterable[Place], fate: Fate) -> None:
        """Record that previously kept candidates are dropped in the current step."""
        for number, index in places:
            candidate = self.steps[number - 1].candidates[index]
            candidate.fate, candidate.until = fate, len(self.steps)

    def trace(self) -> SearchTrace:
        """The trace of the search from its first to its last step."""
        search, reason, last = self.search, self._reason(), self.steps[-1]
        returned = self._places(search.results)[: search.config.num_return_sequences]
        live = {(len(self.steps), index) for index in last.live}
        self._drop(live, Fate.LENGTH_LIMIT if reason is StopReason.LENGTH_LIMIT else Fate.STOPPED)
        hypotheses = []
        for rank, (number, index) in enumerate(returned):
            if (number, index) in live:
                last.candidates[index].fate, last.candidates[index].until = Fate.UNFINISHED, None
            tokens = [*self.indices[number - 1]][index]
            text = self.tokenizer.decode(list(tokens), skip_special_tokens=True)
            hypotheses.append(TracedHypothesis((number, index), float(search.results.scores[0, rank]), tokens, text))
        return SearchTrace(
            num_beams=search.num_beams,
            length_penalty=search.config.length_penalty,
            penalty_type=search.config.length_penalty_type,
            length_limit=search.max_length - search.prefix_length,
            steps=tuple(self.steps),
            reason=reason,
            hypotheses=tuple(hypotheses),
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

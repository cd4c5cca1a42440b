"""Phrases that each translation must contain: `generate(force_words_ids=...)`."""

import math
from itertools import chain
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation import GenerateBeamEncoderDecoderOutput
from transformers.utils import logging

from .beam_search_vaswani import BeamSearch, Hypotheses, token_ids
from .search_options_vaswani import SentenceProcessor


_logger = logging.get_logger(__name__)


class ForcedPhrases(SentenceProcessor):
    """Phrases that each translation must contain: no EOS before.

    `PhraseSearch` keeps room for hypotheses that have begun with them.

    Args:
        phrases: The alternatives of each phrase, as token ids. A translation must contain one of them, in its prefix or
            after it.
        ends: Ids of tokens that end a sentence.
        device: Device of the search.

    Attributes:
        total: Number of tokens of all phrases, each by its longest alternative.
    """

    def __init__(self, phrases: list[list[list[int]]], ends: list[int], device: torch.device | str = "cpu") -> None:
        self.phrases = [[torch.tensor(phrase, device=device) for phrase in alternatives] for alternatives in phrases]
        self.ends = ends
        self.total = sum(max(map(len, alternatives)) for alternatives in phrases)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        forbidden = scores.clone()  # [rows, vocabulary]
        forbidden[:, self.ends] = -math.inf
        # At a length limit, EOS may be all that another processor has left.
        may_end = self.is_met(input_ids) | forbidden.isneginf().all(-1)
        return torch.where(may_end.unsqueeze(-1), scores, forbidden)

    def select(self, sentences: torch.Tensor) -> None:
        """Do nothing: all sentences have the same phrases."""

    def is_met(self, tokens: torch.Tensor) -> torch.Tensor:
        """Which hypotheses `[..., length]` contain all phrases: `[...]`."""
        return self._progress(tokens).eq(self.total)

    def continuations(self, sequences: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The best token of each hypothesis, and the token that continues each alternative: `[rows, tokens]`.

        Where a hypothesis contains the phrase, the best token stands again.

        Args:
            sequences: `[rows, length]`
            scores: `[rows, vocabulary]`
        """
        best = scores.argmax(-1)  # [rows]
        tokens = [best]
        for alternatives in self.phrases:
            matched = [_matched(sequences, phrase) for phrase in alternatives]
            is_complete = _is_complete(matched, alternatives)
            for phrase, count in zip(alternatives, matched, strict=True):
                tokens.append(torch.where(is_complete, best, phrase[count.clamp(max=len(phrase) - 1)]))
        return torch.stack(tokens, dim=1)

    def allocate(self, scores: torch.Tensor, tokens: torch.Tensor, beams: int) -> torch.Tensor:
        """The candidates that stay, best first: of each number of tokens of phrases the best one, then the second.

        Args:
            scores: `[sentences, candidates]`, best first but for some that are -inf.
            tokens: `[sentences, candidates, length]`
            beams: Number of candidates that stay.

        Returns:
            `[sentences, beams]`
        """
        progress, is_there = self._progress(tokens), ~scores.isneginf()  # [sentences, candidates]
        is_rival = progress.unsqueeze(2).eq(progress.unsqueeze(1)) & is_there.unsqueeze(1)
        rank = is_rival.tril(-1).sum(-1)  # [sentences, candidates], among those with as many tokens
        key = torch.where(is_there, rank * (self.total + 1) - progress, torch.iinfo(torch.long).max)
        kept = key.argsort(dim=1, stable=True)[:, :beams]
        order = scores.gather(1, kept).argsort(dim=1, descending=True, stable=True)
        return kept.gather(1, order)

    def _progress(self, tokens: torch.Tensor) -> torch.Tensor:
        """Number of tokens of the phrases that hypotheses `[..., length]` have: `[...]`.

        Of the phrases that a hypothesis does not contain, only the one begun with the most tokens counts.
        """
        complete = begun = tokens.new_zeros(tokens.shape[:-1])
        for alternatives in self.phrases:
            matched = [_matched(tokens, phrase) for phrase in alternatives]
            is_complete = _is_complete(matched, alternatives)
            complete = complete + is_complete * max(map(len, alternatives))
            begun = begun.maximum(torch.stack(matched).amax(0) * ~is_complete)
        return complete + begun


def _matched(tokens: torch.Tensor, phrase: torch.Tensor) -> torch.Tensor:
    """Number of a phrase's tokens that hypotheses `[..., length]` have: `[...]`.

    All of them if a hypothesis contains the phrase, else those that it ends with.
    """
    text, size = tokens[..., 1:], len(phrase)  # without the start token
    matched = text.new_zeros(text.shape[:-1])
    for count in range(1, min(size - 1, text.shape[-1]) + 1):
        ends_with = text[..., -count:].eq(phrase[:count]).all(-1)
        matched = torch.where(ends_with, count, matched)
    if text.shape[-1] >= size:
        matched = torch.where(text.unfold(-1, size, 1).eq(phrase).all(-1).any(-1), size, matched)
    return matched


def _is_complete(matched: list[torch.Tensor], alternatives: list[torch.Tensor]) -> torch.Tensor:
    """Whether hypotheses contain one of the alternatives, by the `matched` tokens of each: `[...]`."""
    contains = [count.eq(len(phrase)) for count, phrase in zip(matched, alternatives, strict=True)]
    return torch.stack(contains).any(0)


def forced_phrases(
    force_words_ids: Any, config: GenerationConfig, room: int, device: torch.device | str = "cpu"
) -> ForcedPhrases:
    """The processor that forces `force_words_ids` into each translation.

    Args:
        force_words_ids: Token ids of each phrase, or of each several alternatives.
        config: The search.
        room: Tokens that a translation of the shortest source may have, its prefix included.
        device: Device of the search.

    Raises:
        ValueError: They are no phrases; the search has no beams; or no translation may contain them.
    """
    if (config.num_beams or 1) == 1 or config.do_sample:
        raise ValueError("force_words_ids: beam search finds them; give num_beams of at least 2, without do_sample")
    ends = token_ids(config.eos_token_id)
    special = {*ends, config.pad_token_id, config.decoder_start_token_id}
    try:
        phrases = [[each] if isinstance(each[0], int) else each for each in force_words_ids]
        is_valid = bool(phrases) and all(
            phrase and all(isinstance(token, int) and token not in special for token in phrase)
            for phrase in chain.from_iterable(phrases)
        )
    except (TypeError, IndexError):
        is_valid = False
    if not is_valid:
        raise ValueError(
            f"force_words_ids: is {force_words_ids!r}; give token ids of each phrase, or of each several alternatives, "
            "without special tokens"
        )
    single = set(chain.from_iterable(each[0] for each in phrases if len(each) == 1))  # phrases may overlap
    least = max(len(single), *(min(map(len, alternatives)) for alternatives in phrases))
    if least > room:
        raise ValueError(
            f"force_words_ids: the phrases have at least {least} tokens, and a translation here at most {room}; "
            f"give more max_new_tokens, or fewer phrases"
        )
    return ForcedPhrases(phrases, ends, device)


class PhraseSearch(BeamSearch):
    """Beam search that divides the beams among hypotheses by how many tokens of the phrases they have.

    This is dynamic beam allocation (Post and Vilar, 2018). One of the `processors` is a `ForcedPhrases`.
    """

    @property
    def phrases(self) -> ForcedPhrases:
        """The processor that forces the phrases."""
        return next(each for each in self.processors if isinstance(each, ForcedPhrases))

    def result(self) -> GenerateBeamEncoderDecoderOutput:
        """As `BeamSearch.result`; warns of translations without all phrases."""
        returned = self.results.tokens[:, : self.config.num_return_sequences]
        if missing := (~self.phrases.is_met(returned)).any(1).nonzero().flatten().tolist():
            _logger.warning(
                f"force_words_ids: translations of the sentences {missing} reach their length limit without all "
                "phrases; give more num_beams or max_new_tokens"
            )
        return super().result()

    def _extensions(
        self, totals: torch.Tensor, sequences: torch.Tensor, scores: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The best extensions, and those that continue phrases."""
        values, best = super()._extensions(totals, sequences, scores)
        more = self.phrases.continuations(sequences, scores).unflatten(0, (-1, self.num_beams))  # [S, beams, tokens]
        starts = torch.arange(self.num_beams, device=more.device).unsqueeze(-1) * scores.shape[1]
        more = (more + starts).flatten(1)  # [S, extensions], as indices into `totals`
        is_known = (more.unsqueeze(2) == best.unsqueeze(1)).any(2)
        is_known |= (more.unsqueeze(2) == more.unsqueeze(1)).tril(-1).any(2)
        values = torch.cat((values, totals.gather(1, more).masked_fill(is_known, -math.inf)), dim=1)
        values, order = values.sort(dim=1, descending=True, stable=True)
        return values, torch.cat((best, more), dim=1).gather(1, order)

    def _has_ended(self, candidates: Hypotheses) -> torch.Tensor:
        """What the limit cuts off without all phrases stays live, behind all that have them."""
        is_met = self.phrases.is_met(candidates.tokens[:, :, : self.state.length])
        return super()._has_ended(candidates) & (is_met | ~self._is_at_limit().unsqueeze(-1))

    def _may_finish(self, has_ended: torch.Tensor) -> torch.Tensor:
        """All that have ended, because candidates with all phrases rank low."""
        return has_ended

    def _next_live(self, candidates: Hypotheses) -> Hypotheses:
        tokens = candidates.tokens[:, :, : self.state.length]
        return candidates.gather(self.phrases.allocate(candidates.scores, tokens, self.num_beams))

    def _live_rank(self, live: Hypotheses) -> torch.Tensor:
        """Live hypotheses with all phrases come before the others."""
        return 1 + self.phrases.is_met(live.tokens[:, :, : self.state.length]).long()

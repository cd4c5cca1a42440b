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
    """

    def __init__(self, phrases: list[list[list[int]]], ends: list[int]) -> None:
        self.phrases, self.ends = phrases, ends
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
        """Tokens that continue a phrase, and the best one, of each hypothesis: `[rows, tokens]`.

        A hypothesis that has fewer repeats the best one.

        Args:
            sequences: `[rows, length]`
            scores: `[rows, vocabulary]`
        """
        following = [self._read(row)[1] for row in sequences.tolist()]
        best = scores.argmax(-1).tolist()
        rows = [list(dict.fromkeys([first, *others])) for first, others in zip(best, following, strict=True)]
        most = max(map(len, rows))
        return torch.tensor([[*row, *row[:1] * (most - len(row))] for row in rows], device=scores.device)

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
        """Number of tokens of the phrases that hypotheses `[..., length]` have: `[...]`."""
        counts = [self._read(row)[0] for row in tokens.flatten(0, -2).tolist()]
        return torch.tensor(counts, device=tokens.device).view(tokens.shape[:-1])

    def _read(self, tokens: list[int]) -> tuple[int, list[int]]:
        """Number of tokens of the phrases in a hypothesis, and the tokens that continue those it does not contain.

        Of a phrase that it does not contain, the last tokens count if the phrase begins with them; of all such phrases,
        that with the most of them counts.
        """
        text, complete, begun, following = tokens[1:], 0, 0, []  # without the start token
        for alternatives in self.phrases:
            if any(_contains(text, phrase) for phrase in alternatives):
                complete += max(map(len, alternatives))
                continue
            for phrase in alternatives:
                count = max(count for count in range(len(phrase)) if text[len(text) - count :] == phrase[:count])
                begun = max(begun, count)
                following.append(phrase[count])
        return complete + begun, following


def _contains(text: list[int], phrase: list[int]) -> bool:
    return any(text[start : start + len(phrase)] == phrase for start in range(len(text) - len(phrase) + 1))


def forced_phrases(force_words_ids: Any, config: GenerationConfig, room: int | None) -> ForcedPhrases:
    """The processor that forces `force_words_ids` into each translation.

    Args:
        force_words_ids: Token ids of each phrase, or of each several alternatives.
        config: The search.
        room: Tokens that the shortest translation may have, its prefix included; None without a limit.

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
    if room is not None and least > room:
        raise ValueError(
            f"force_words_ids: the phrases have at least {least} tokens, and a translation here at most {room}; "
            f"give more max_new_tokens, or fewer phrases"
        )
    return ForcedPhrases([[list(phrase) for phrase in alternatives] for alternatives in phrases], ends)


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
        """All that have ended: candidates with all phrases rank low."""
        return has_ended

    def _next_live(self, candidates: Hypotheses) -> Hypotheses:
        tokens = candidates.tokens[:, :, : self.state.length]
        return candidates.gather(self.phrases.allocate(candidates.scores, tokens, self.num_beams))

    def _live_rank(self, live: Hypotheses) -> torch.Tensor:
        """Live hypotheses with all phrases come before the others."""
        return 1 + self.phrases.is_met(live.tokens[:, :, : self.state.length]).long()

"""Constraints of a search (6.1): length limits for each sentence, and phrases that a translation must contain."""

import math
from itertools import chain
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedConfig
from transformers.generation.logits_process import LogitsProcessor
from transformers.generation.stopping_criteria import StoppingCriteria


class LengthPerSentence(StoppingCriteria):
    """Stops each sentence at its own number of generated tokens.

    Args:
        limits: `[batch]` tokens that each sentence may generate, EOS included.
        prefix_length: Tokens of the decoder's prefix, start token included.
    """

    def __init__(self, limits: torch.Tensor, prefix_length: int) -> None:
        self.limits, self.prefix_length = limits, prefix_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        return input_ids.shape[1] - self.prefix_length >= _repeat_to_rows(self.limits, input_ids)


class SentenceProcessor(LogitsProcessor):
    """A logits processor that treats each sentence on its own, so that a search can continue with some of them."""

    def select(self, sentences: torch.Tensor) -> None:
        """Continue with these sentences only, in this order; `[selected]`."""
        raise NotImplementedError


class EndPerSentence(SentenceProcessor):
    """Forces EOS as the last token that each sentence may generate.

    Args:
        limits: `[batch]` tokens that each sentence may generate, EOS included.
        prefix_length: Tokens of the decoder's prefix, start token included.
        tokens: EOS id, or several ids that end a sentence.
    """

    def __init__(self, limits: torch.Tensor, prefix_length: int, tokens: int | list[int]) -> None:
        self.limits, self.prefix_length, self.tokens = limits, prefix_length, tokens

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        limits = _repeat_to_rows(self.limits, input_ids)
        is_last = (input_ids.shape[1] - self.prefix_length >= limits - 1).unsqueeze(-1)  # [rows, 1]
        forced = torch.full_like(scores, -math.inf)  # [rows, vocabulary]
        forced[:, self.tokens] = 0.0
        return torch.where(is_last, forced, scores)

    def select(self, sentences: torch.Tensor) -> None:
        self.limits = self.limits[sentences.to(self.limits.device)]


class ForcedPhrases(SentenceProcessor):
    """Phrases that each translation must contain: no EOS before.

    `BeamSearch` keeps room for hypotheses that have begun with them (dynamic beam allocation, Post and Vilar, 2018).

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
        found = [self._read(row)[1] for row in sequences.tolist()]
        rows = [
            list(dict.fromkeys([best, *following]))
            for best, following in zip(scores.argmax(-1).tolist(), found, strict=True)
        ]
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
        text, whole, underway, following = tokens[1:], 0, 0, []  # without the start token
        for alternatives in self.phrases:
            if any(_contains(text, phrase) for phrase in alternatives):
                whole += max(map(len, alternatives))
                continue
            for phrase in alternatives:
                begun = max(count for count in range(len(phrase)) if text[len(text) - count :] == phrase[:count])
                underway = max(underway, begun)
                following.append(phrase[begun])
        return whole + underway, following


def _contains(text: list[int], phrase: list[int]) -> bool:
    return any(text[start : start + len(phrase)] == phrase for start in range(len(text) - len(phrase) + 1))


def _repeat_to_rows(limits: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
    """Repeat limits for the beams or samples of each sentence: `[rows]`."""
    return limits.repeat_interleave(input_ids.shape[0] // limits.shape[0]).to(input_ids.device)


def token_ids(ids: int | list[int] | torch.Tensor | None) -> list[int]:
    """One id, several or none as a list."""
    return [] if ids is None else torch.as_tensor(ids).flatten().tolist()


def forced_phrases(
    force_words_ids: Any, config: GenerationConfig, model_config: PreTrainedConfig, room: int | None
) -> ForcedPhrases:
    """The processor that forces `force_words_ids` into each translation.

    Args:
        force_words_ids: Token ids of each phrase, or of each several alternatives.
        config: The search.
        model_config: The model's configuration.
        room: Tokens that the shortest translation may have, its prefix included; None without a limit.

    Raises:
        ValueError: They are no phrases; the search has no beams; or no translation may contain them.
    """
    if (config.num_beams or 1) == 1 or config.do_sample:
        raise ValueError("force_words_ids: beam search finds them; give num_beams of at least 2, without do_sample")
    advice = "give token ids of each phrase, or of each several alternatives, without special tokens"
    if not isinstance(force_words_ids, (list, tuple)) or not all(
        isinstance(each, (list, tuple)) and each for each in (force_words_ids, *force_words_ids)
    ):
        raise ValueError(f"force_words_ids: is {force_words_ids!r}; {advice}")
    phrases = [[each] if isinstance(each[0], int) else each for each in force_words_ids]
    ends = token_ids(config.eos_token_id)
    known = set(range(model_config.output_vocab_size)) - {*ends, config.pad_token_id, config.decoder_start_token_id}
    for phrase in chain.from_iterable(phrases):
        is_listed = isinstance(phrase, (list, tuple)) and phrase and all(isinstance(token, int) for token in phrase)
        if not is_listed or not known.issuperset(phrase):
            raise ValueError(f"force_words_ids: {phrase!r} is no phrase; {advice}")
    single = set(chain.from_iterable(each[0] for each in phrases if len(each) == 1))  # phrases may overlap
    least = max(len(single), *(min(map(len, alternatives)) for alternatives in phrases))
    if room is not None and least > room:
        raise ValueError(
            f"force_words_ids: the phrases have at least {least} tokens, and a translation here at most {room}; "
            f"give more max_new_tokens, or fewer phrases"
        )
    barred = [*([token] for token in config.suppress_tokens or []), *(config.bad_words_ids or [])]
    for alternatives in phrases:
        if all(any(_contains(list(phrase), list(words)) for words in barred) for phrase in alternatives):
            raise ValueError(
                f"force_words_ids: {alternatives[0]!r} has tokens that suppress_tokens or bad_words_ids forbid"
            )
    return ForcedPhrases([[list(phrase) for phrase in alternatives] for alternatives in phrases], ends)

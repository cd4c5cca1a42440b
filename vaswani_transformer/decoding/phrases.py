"""Phrases that each translation must contain."""

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any
from unicodedata import category, normalize

import torch
from transformers import FSMTTokenizer, GenerationConfig, PreTrainedTokenizerBase
from transformers.generation import GenerateBeamEncoderDecoderOutput
from transformers.generation.logits_process import LogitsProcessorList
from transformers.generation.stopping_criteria import StoppingCriteriaList
from transformers.utils import logging

from ..model.beam_search_vaswani import BeamSearch, Hypotheses, SentenceProcessor, token_ids
from ..model.generation_vaswani import VaswaniGenerationMixin, search
from ..model.languages_vaswani import ENCODING_LOCK, UNSPACED_CHARACTER


_logger = logging.get_logger(__name__)


class ForcedPhrases:
    """A decoding loop for `generate(custom_generate=ForcedPhrases([[9, 17], [5]]))`, with at least two beams.

    With fewer beams than tokens in all phrases, the search may miss the best translation that contains them. A
    translation that reaches its length limit without them is returned with a warning. The search stops as with
    `early_stopping="never"`.

    Args:
        phrases: Token ids of each phrase, or of its alternatives, of which one must occur.
        joined: Ids of tokens that may continue a word. A phrase followed by such a token does not count.

    Attributes:
        models: Other models whose probabilities the search follows.
        obstacles: Names of the keywords that force a text to be translated as one sentence.
    """

    models = ()
    obstacles = ("force_words",)

    def __init__(self, phrases: Sequence[Sequence[int] | Sequence[Sequence[int]]], joined: Sequence[int] = ()) -> None:
        self.joined = joined
        self.phrases = [[each] if isinstance(each[0], int) else [*each] for each in phrases]

    @classmethod
    def from_words(cls, words: Sequence[str | Sequence[str]], tokenizer: PreTrainedTokenizerBase) -> "ForcedPhrases":
        """Create it from phrases as text, or alternatives of them, which translations contain as whole words.

        A word of a script without spaces may also occur within text.

        Raises:
            ValueError: The words are not lists of text; or the tokenizer cannot write a phrase, or marks the ends of
                words instead of the starts.
        """
        if isinstance(tokenizer, FSMTTokenizer):
            raise ValueError("force_words: FSMTTokenizer does not mark where words begin; give a model of another kind")
        phrases = [[ids for text in group for ids in _spellings(tokenizer, text)] for group in _alternatives(words)]
        before = phrases[0][0][-1:]  # spaces before a word show only after another token
        rows = [before, *([*before, token] for token in range(len(tokenizer)))]
        alone, *texts = tokenizer.batch_decode(rows, skip_special_tokens=True)
        first = [text[len(alone) : len(alone) + 1] for text in texts]
        # A special token is not shown, and a byte may be part of a letter: the word may continue after them.
        joined = {token for token, each in enumerate(first) if each in ("", "\ufffd") or _continues_word(each)}
        return cls(phrases, sorted(joined - {tokenizer.eos_token_id, tokenizer.pad_token_id}))

    def __call__(
        self,
        model: VaswaniGenerationMixin,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        **model_kwargs: Any,
    ) -> Any:
        """As `search`.

        Raises:
            ValueError: The search has no beams, or samples; or a phrase has a special or unknown token.
        """
        config = copy.copy(generation_config)
        if config.num_beams == 1 or config.do_sample:
            raise ValueError("force_words: beam search finds them; give num_beams of at least 2, without do_sample")
        special = {*token_ids(config.eos_token_id), config.pad_token_id, config.decoder_start_token_id}
        allowed = {*range(model.config.output_vocab_size)} - special
        if not allowed.issuperset(chain.from_iterable(chain.from_iterable(self.phrases))):
            raise ValueError(f"phrases: is {self.phrases!r}; give ids of the model's vocabulary without special tokens")
        config.early_stopping = "never"  # candidates with all phrases rank low, but must finish
        is_joined = torch.zeros(model.config.output_vocab_size, dtype=torch.bool, device=input_ids.device)
        is_joined[list(self.joined)] = True
        processor = PhraseProcessor(self.phrases, token_ids(config.eos_token_id), is_joined)
        loop = (LogitsProcessorList([*logits_processor, processor]), stopping_criteria, config)
        return search(model, input_ids, *loop, beam_search=partial(PhraseSearch, phrases=processor), **model_kwargs)


class PhraseProcessor(SentenceProcessor):
    """Allows EOS only after all phrases, and counts their tokens in hypotheses.

    Args:
        phrases: The alternatives of each phrase, as token ids. A translation must contain one of them, in its prefix or
            after it.
        ends: Ids of tokens that end a sentence.
        is_joined: Which tokens may continue a word: `[vocabulary]`.

    Attributes:
        total: Number of tokens of all phrases, with the longest alternative of each.
    """

    def __init__(self, phrases: list[Any], ends: list[int], is_joined: torch.Tensor) -> None:
        device = is_joined.device
        self.phrases = [[torch.tensor(phrase, device=device) for phrase in alternatives] for alternatives in phrases]
        self.ends, self.is_joined = ends, is_joined
        self.total = sum(max(map(len, alternatives)) for alternatives in phrases)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        forbidden = scores.clone()  # [rows, vocabulary]
        forbidden[:, self.ends] = -math.inf
        # At a length limit, another processor may have left EOS alone.
        may_end = self.is_met(input_ids) | forbidden.isneginf().all(-1)
        return torch.where(may_end.unsqueeze(-1), scores, forbidden)

    def select(self, sentences: torch.Tensor) -> None:
        """Do nothing: all sentences have the same phrases."""

    def is_met(self, tokens: torch.Tensor) -> torch.Tensor:
        """Which hypotheses `[..., length]` contain all phrases: `[...]`."""
        return self._progress(tokens).eq(self.total)

    def continuations(self, sequences: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Tokens to extend each hypothesis: the best, the best not in `joined`, and continuations of alternatives.

        If a hypothesis of `sequences` `[rows, length]` contains a phrase already, its best token by `scores`
        `[rows, vocabulary]` fills the place. The result is `[rows, tokens]`.
        """
        best = scores.argmax(-1)  # [rows]
        tokens = [best, scores.masked_fill(self.is_joined, -math.inf).argmax(-1)]
        for alternatives in self.phrases:
            matched, is_complete = self._match(sequences, alternatives)
            for phrase, count in zip(alternatives, matched, strict=True):
                tokens.append(torch.where(is_complete, best, phrase[count.clamp(max=len(phrase) - 1)]))
        return torch.stack(tokens, dim=1)

    def allocate(self, scores: torch.Tensor, tokens: torch.Tensor, beams: int) -> torch.Tensor:
        """Select candidates: for each number of phrase tokens the best candidate, then the second, and so on.

        `scores` `[sentences, candidates]` are sorted, best first, except for some that are -inf; `tokens` are
        `[sentences, candidates, length]`. Returns the indices of `beams` candidates, best first: `[sentences, beams]`.
        """
        progress, is_there = self._progress(tokens), ~scores.isneginf()  # [sentences, candidates]
        is_rival = progress.unsqueeze(2).eq(progress.unsqueeze(1)) & is_there.unsqueeze(1)
        rank = is_rival.tril(-1).sum(-1)  # [sentences, candidates], among candidates with equal progress
        key = torch.where(is_there, rank * (self.total + 1) - progress, torch.iinfo(torch.long).max)
        kept = key.argsort(dim=1, stable=True)[:, :beams]
        order = scores.gather(1, kept).argsort(dim=1, descending=True, stable=True)
        return kept.gather(1, order)

    def _progress(self, tokens: torch.Tensor) -> torch.Tensor:
        """Number of phrase tokens in hypotheses `[..., length]`: `[...]`.

        Among phrases that a hypothesis does not contain, only the one begun with the most tokens counts.
        """
        complete = begun = tokens.new_zeros(tokens.shape[:-1])
        for alternatives in self.phrases:
            matched, is_complete = self._match(tokens, alternatives)
            complete = complete + is_complete * max(map(len, alternatives))
            begun = begun.maximum(torch.stack(matched).amax(0) * ~is_complete)
        return complete + begun

    def _match(self, tokens: torch.Tensor, alternatives: list[torch.Tensor]) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Number of tokens of each alternative in hypotheses, and whether they contain an alternative: `[...]` each."""
        matched = [self._matched(tokens, phrase) for phrase in alternatives]
        contains = [count.eq(len(phrase)) for count, phrase in zip(matched, alternatives, strict=True)]
        return matched, torch.stack(contains).any(0)

    def _matched(self, tokens: torch.Tensor, phrase: torch.Tensor) -> torch.Tensor:
        """Number of a phrase's tokens in hypotheses `[..., length]`: `[...]`.

        It counts all tokens if a hypothesis contains the phrase and nothing after it continues a word, else the tokens
        at the hypothesis's end.
        """
        text, size = tokens[..., 1:], len(phrase)  # without the start token
        matched = text.new_zeros(text.shape[:-1])
        for count in range(1, min(size - 1, text.shape[-1]) + 1):
            ends_with = text[..., -count:].eq(phrase[:count]).all(-1)
            matched = torch.where(ends_with, count, matched)
        if text.shape[-1] >= size:
            occurs = text.unfold(-1, size, 1).eq(phrase).all(-1)  # [..., places]
            occurs[..., :-1] &= ~self.is_joined[text[..., size:]]
            matched = torch.where(occurs.any(-1), size, matched)
        return matched


def _alternatives(words: Sequence[str | Sequence[str]]) -> list[Sequence[str]]:
    """The alternatives of each phrase; raises a ValueError unless the words are lists of text."""
    groups = [] if isinstance(words, str) else [[each] if isinstance(each, str) else each for each in words]
    are_lists = all(isinstance(group, list | tuple) and group for group in groups)
    if not groups or not are_lists or not all(isinstance(word, str) for word in chain.from_iterable(groups)):
        raise ValueError(f"force_words: is {words!r}; give a list of phrases, or for a phrase several alternatives")
    return groups


def _spellings(tokenizer: PreTrainedTokenizerBase, text: str) -> Iterator[list[int]]:
    """Token ids of a phrase; then, in a script without spaces, its ids after other text."""
    ids, bracket, bracketed = tokenizer(text_target=[text, "(", f"({text.strip()}"], add_special_tokens=False).input_ids
    after_text = bracketed[len(bracket) :]
    written, written_after = (
        normalize("NFKC", each.strip()) for each in tokenizer.batch_decode([ids, after_text], skip_special_tokens=True)
    )
    expected = normalize("NFKC", text.strip())
    if not expected or written != expected:
        raise ValueError(f"force_words: the tokenizer writes {text!r} as {written!r}; give other words")
    yield ids
    if UNSPACED_CHARACTER.match(expected) and written_after == expected:
        yield after_text


def _continues_word(character: str) -> bool:
    """Whether a character is a letter, mark, digit or underscore, of a script that has spaces between words."""
    is_of_word = character == "_" or (character != "" and category(character)[0] in "LMN")
    return is_of_word and not UNSPACED_CHARACTER.match(character)


class PhraseSearch(BeamSearch):
    """Beam search that divides the beams among hypotheses by their number of phrase tokens.

    This is dynamic beam allocation (Post and Vilar, 2018).

    Args:
        arguments: Arguments of `BeamSearch`.
        phrases: The processor of the phrases, one of the search's processors.
    """

    def __init__(self, *arguments: Any, phrases: PhraseProcessor) -> None:
        super().__init__(*arguments)
        self.phrases = phrases

    def result(self) -> GenerateBeamEncoderDecoderOutput:
        """As `BeamSearch.result`; warns of translations without all phrases."""
        returned = self.results.tokens[:, : self.config.num_return_sequences]
        if missing := (~self.phrases.is_met(returned)).any(1).nonzero().flatten().tolist():
            _logger.warning(
                f"phrases: translations of the sentences {missing} reach their length limit without all "
                "phrases; give more num_beams or max_new_tokens"
            )
        return super().result()

    def _extensions(
        self, totals: torch.Tensor, sequences: torch.Tensor, scores: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The best extensions, and extensions that continue phrases."""
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
        """At the length limit, candidates that lack a phrase do not finish; they stay live, ranked last."""
        is_met = self.phrases.is_met(candidates.tokens[:, :, : self.state.length])
        return super()._has_ended(candidates) & (is_met | ~self._is_at_limit().unsqueeze(-1))

    def _next_live(self, candidates: Hypotheses) -> Hypotheses:
        """Allocate beams by number of phrase tokens; at the limit, candidates with all phrases come first."""
        tokens = candidates.tokens[:, :, : self.state.length]
        live = candidates.gather(self.phrases.allocate(candidates.scores, tokens, self.num_beams))
        is_met = self.phrases.is_met(live.tokens[:, :, : self.state.length]) & self._is_at_limit().unsqueeze(-1)
        return live.gather(is_met.long().argsort(dim=1, descending=True, stable=True))


def with_forced_words(options: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Replace `force_words` in keywords of `generate`, if there are any, by a decoding loop.

    `force_words`, such as `["Hund", ["alte Mann", "ältere Mann"]]`, are words and phrases that each translation
    contains as whole words; one of alternatives suffices. They need beams.

    Raises:
        ValueError: They are not lists of text, or the tokenizer cannot write them; or there is another decoding loop.
    """
    words, others = options.get("force_words"), {name: options[name] for name in options.keys() - {"force_words"}}
    if words is None:
        return others
    if others.get("engine") is not None or others.get("custom_generate") is not None:
        raise ValueError("force_words: are for the model's search alone; leave them out, or the engine or ensemble")
    with ENCODING_LOCK:
        return {**others, "custom_generate": ForcedPhrases.from_words(words, tokenizer)}

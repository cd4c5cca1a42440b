"""Section 6.1 of the paper: beam search with the length penalty of Wu et al. (2016)."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import functional as F
from transformers import GenerationConfig
from transformers.generation import GenerateBeamEncoderDecoderOutput
from transformers.generation.logits_process import (
    ForcedEOSTokenLogitsProcessor,
    LogitsProcessor,
    LogitsProcessorList,
)
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
)

from .step_decoder_vaswani import StepDecoder


# Processors of transformers that compute each row from this row alone. Others may depend on its index in the batch.
_ROW_WISE = {
    "ForcedEOSTokenLogitsProcessor",
    "InfNanRemoveLogitsProcessor",
    "LogitNormalization",
    "MinLengthLogitsProcessor",
    "MinNewTokensLengthLogitsProcessor",
    "NoBadWordsLogitsProcessor",
    "NoRepeatNGramLogitsProcessor",
    "RepetitionPenaltyLogitsProcessor",
    "SuppressTokensLogitsProcessor",
}

# Columns of a group in the two-stage top-k.
_GROUP_SIZE = 32

NON_FINITE_LOGITS = (
    "the model's logits are NaN or infinite: its weights are damaged, or its activations overflow in this precision; "
    "choose another dtype, such as float32"
)


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


class ForcedEOSPerSentence(SentenceProcessor):
    """Forces EOS as the last token that each sentence may generate; transformers has one limit for all.

    Args:
        limits, prefix_length: As in `LengthPerSentence`.
        eos: One id or several.
    """

    def __init__(self, limits: torch.Tensor, prefix_length: int, eos: int | list[int]) -> None:
        self.limits, self.prefix_length, self.eos = limits, prefix_length, eos

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        length = input_ids.shape[1]
        is_last = length - self.prefix_length >= self.limits - 1  # [batch]
        if not is_last.any():
            return scores
        forced = ForcedEOSTokenLogitsProcessor(length + 1, self.eos, scores.device)(input_ids, scores)
        return torch.where(_repeat_to_rows(is_last, input_ids).unsqueeze(-1), forced, scores)

    def select(self, sentences: torch.Tensor) -> None:
        self.limits = self.limits[sentences]


def _repeat_to_rows(values: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
    """Repeat the values of a batch for the beams or samples of each sentence: `[rows]`."""
    return values.repeat_interleave(input_ids.shape[0] // values.shape[0]).to(input_ids.device)


@dataclass
class Hypotheses:
    """The same number of hypotheses for each sentence.

    Args:
        scores: `[sentences, hypotheses]`, -inf for missing hypotheses.
        tokens: `[sentences, hypotheses, max_length]`, with the prefix, padded.
        rows: `[sentences, hypotheses, max_length - prefix]`, for each generated token, the index of the beam that it
            extended, in the batch of `sentences * num_beams` rows; -1 after the last token.
    """

    scores: torch.Tensor
    tokens: torch.Tensor
    rows: torch.Tensor

    @classmethod
    def empty(cls, prefixes: torch.Tensor, hypotheses: int, max_length: int, padding: int) -> "Hypotheses":
        """Placeholders of score -inf, with the tokens of the `prefixes` `[sentences, prefix]` only."""
        sentences, prefix = prefixes.shape
        scores = torch.full((sentences, hypotheses), -math.inf, dtype=torch.float32, device=prefixes.device)
        tokens = prefixes.new_full((sentences, hypotheses, max_length), padding)
        tokens[:, :, :prefix] = prefixes.unsqueeze(1)
        return cls(scores, tokens, prefixes.new_full((sentences, hypotheses, max_length - prefix), -1))

    def select(self, sentences: torch.Tensor) -> "Hypotheses":
        """The hypotheses of `sentences` `[selected]`."""
        return Hypotheses(self.scores[sentences], self.tokens[sentences], self.rows[sentences])

    def store(self, sentences: torch.Tensor, others: "Hypotheses") -> None:
        """Replace the hypotheses of `sentences` `[len(others)]` by the `others`."""
        self.scores[sentences], self.tokens[sentences], self.rows[sentences] = others.scores, others.tokens, others.rows

    def gather(self, indices: torch.Tensor) -> "Hypotheses":
        """The hypotheses at `indices` `[sentences, gathered]`."""
        expandable = indices.unsqueeze(-1)
        tokens = self.tokens.gather(1, expandable.expand(-1, -1, self.tokens.shape[-1]))
        rows = self.rows.gather(1, expandable.expand(-1, -1, self.rows.shape[-1]))
        return Hypotheses(self.scores.gather(1, indices), tokens, rows)

    def concat(self, others: "Hypotheses") -> "Hypotheses":
        """The hypotheses of each sentence, followed by the `others`."""
        pairs = ((self.scores, others.scores), (self.tokens, others.tokens), (self.rows, others.rows))
        return Hypotheses(*(torch.cat(pair, dim=1) for pair in pairs))

    def masked(self, scores: torch.Tensor, mask: torch.Tensor) -> "Hypotheses":
        """The hypotheses with new `scores`; missing where `mask` is False."""
        return replace(self, scores=scores.masked_fill(~mask, -math.inf))

    def best(self, count: int) -> "Hypotheses":
        """The `count` best of each sentence, best first."""
        return self.gather(self.scores.topk(count).indices)


@dataclass
class BeamState:
    """State of the search between two steps, for the S sentences that remain in it.

    Args:
        live: `[S, num_beams]` hypotheses to extend, best first, each scored by its log-probability.
        finished: `[S, num_beams]` hypotheses that have ended, best first, scored with the length penalty.
        sentences: `[S]`, the index of each sentence in the batch.
        limits: `[S]`, tokens that each sentence may generate, EOS included.
        done: For each of the S sentences, whether its results are stored.
        length: Number of tokens in each live hypothesis, prefix included.
    """

    live: Hypotheses
    finished: Hypotheses
    sentences: torch.Tensor
    limits: torch.Tensor
    done: list[bool]
    length: int

    def select(self, order: list[int]) -> "BeamState":
        """The state of the sentences at the indices `order` only."""
        indices = torch.tensor(order, device=self.sentences.device)
        live, finished = self.live.select(indices), self.finished.select(indices)
        done = [self.done[index] for index in order]
        return BeamState(live, finished, self.sentences[indices], self.limits[indices], done, self.length)


class BeamSearch:
    """Beam search for each sentence of a batch, independently of the others.

    A step extends the live hypotheses of a sentence by one token. The `max(2, 1 + number of EOS ids) * num_beams` most
    probable extensions are its candidates: those that end are finished, and the best `num_beams` of the others are live
    in the next step. Finished hypotheses are ranked by log-probability divided by `length_penalty()`, and the best
    `num_beams` are kept. A sentence is done at its length limit, or earlier, as `early_stopping` says:

    - "never", as in the authors' code, the default (`paper_generation_config`): no live hypothesis can still score
      higher than the `num_return_sequences` best finished ones, unless a logits processor raises log-probabilities.
    - False: `num_beams` have finished, and the best live one, if it ended here, would score no higher than the worst of
      them.
    - True: `num_beams` have finished.

    With False and True, as in transformers, only the best `num_beams` candidates can finish. If fewer hypotheses have
    finished than are returned, the best live ones follow them. With `length_penalty_type="transformers"`, the length
    limit ends hypotheses as EOS does: those that it cuts off compete by score with the finished ones.

    With `do_sample`, the candidates are sampled without replacement, as in transformers, but with other random numbers.

    Args:
        prefixes: `[sentences, prefix]`, the tokens that hypotheses start with.
        processors: Logits processors.
        criteria: Stopping criteria; a candidate that one of them stops is finished.
        config: The generation configuration, as `generate` has prepared it.
        observer: Called in each step with this search, the candidates, and which of them have ended: `[S,
            num_candidates]`. `state` is then the state after the step, before any sentence is dropped.
    """

    def __init__(
        self,
        prefixes: torch.Tensor,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        config: GenerationConfig,
        observer: Callable[["BeamSearch", Hypotheses, torch.Tensor], None] | None = None,
    ) -> None:
        self.prefixes, self.processors, self.config, self.observer = prefixes, processors, config, observer
        self.prefix_length, self.num_beams = prefixes.shape[1], config.num_beams
        ends = token_ids(config.eos_token_id)
        self.eos = torch.tensor(ends, dtype=torch.long, device=prefixes.device)
        self.padding = (*token_ids(config.pad_token_id), *ends, 0)[0]
        self.num_candidates = max(2, 1 + len(ends)) * self.num_beams  # so that enough stay live if many end
        limits, self.criteria = self._limits_and_others(criteria)
        self.records_scores = config.return_dict_in_generate and config.output_scores
        self.records_logits = config.return_dict_in_generate and config.output_logits
        self.step_scores: tuple[torch.Tensor, ...] = ()
        self.step_logits: tuple[torch.Tensor, ...] = ()
        # Other criteria, processors that are not row-wise, and recorded scores need every sentence at its index.
        sees_batch = self.criteria or not all(map(_is_row_wise, processors))
        self.may_drop = not (sees_batch or self.records_scores or self.records_logits)
        self.max_length = self.prefix_length + int(limits.max())
        self.results, live, finished = (
            Hypotheses.empty(prefixes, self.num_beams, self.max_length, self.padding) for _ in range(3)
        )
        indices, done = torch.arange(len(limits), device=limits.device), [False] * len(limits)
        self.state = BeamState(live, finished, indices, limits, done, self.prefix_length)
        live.scores[:, 0] = 0.0  # only the first beam is live: the prefix

    def advance(self, decoder: StepDecoder) -> None:
        """Extend every live hypothesis by one token."""
        state = self.state
        if state.length == self.prefix_length:
            logits = decoder.prefill(self.prefixes)
        else:
            last = state.length - 1
            parents = state.live.rows[:, :, last - self.prefix_length] % self.num_beams  # [S, num_beams]
            logits = decoder.step(state.live.tokens[:, :, last], parents)
        candidates = self._candidates(logits)
        has_ended = is_finished = self._has_ended(candidates)
        if self.config.early_stopping != "never":
            is_finished = has_ended.clone()
            is_finished[:, self.num_beams :] = False
        finished = candidates.masked(self._penalized(candidates.scores), is_finished)
        state.finished = state.finished.concat(finished).best(self.num_beams)
        state.live = self._next_live(candidates.masked(candidates.scores, ~has_ended))
        if self.observer is not None:
            self.observer(self, candidates, has_ended)
        self._store_done(decoder)

    @property
    def is_done(self) -> bool:
        """Whether all sentences are done."""
        return all(self.state.done)

    def result(self) -> GenerateBeamEncoderDecoderOutput:
        """The `num_return_sequences` best hypotheses of each sentence.

        Raises:
            ValueError: Logits were NaN.
        """
        if self.results.scores.isnan().any():
            raise ValueError(NON_FINITE_LOGITS)
        returned = self.config.num_return_sequences
        rows = self.results.rows[:, :returned].flatten(0, 1)  # [sentences * returned, max_length - prefix]
        longest = int(rows.ge(0).sum(-1).max())
        return GenerateBeamEncoderDecoderOutput(
            sequences=self.results.tokens[:, :returned, : self.prefix_length + longest].flatten(0, 1),
            sequences_scores=self.results.scores[:, :returned].flatten() if self.records_scores else None,
            scores=self.step_scores if self.records_scores else None,
            logits=self.step_logits if self.records_logits else None,
            beam_indices=rows[:, :longest],
        )

    def _limits_and_others(self, criteria: StoppingCriteriaList) -> tuple[torch.Tensor, StoppingCriteriaList]:
        """Tokens that each sentence may generate `[sentences]`, and criteria other than length limits and EOS."""
        limits = self.prefixes.new_full((len(self.prefixes),), self.config.max_length - self.prefix_length)
        others = StoppingCriteriaList()
        for rule in criteria:
            if isinstance(rule, MaxLengthCriteria):
                limits = limits.clamp(max=rule.max_length - self.prefix_length)
            elif isinstance(rule, LengthPerSentence):
                limits = torch.minimum(limits, rule.limits.to(limits.device))
            elif not isinstance(rule, EosTokenCriteria) or {*rule.eos_token_id.tolist()} != {*self.eos.tolist()}:
                others.append(rule)
        return limits, others

    def _candidates(self, logits: Iterable[torch.Tensor]) -> Hypotheses:
        """The most probable extensions of each sentence's live hypotheses, best first: `[S, num_candidates]`."""
        needs_all_scores = self.processors or self.records_scores or self.records_logits or self.config.do_sample
        extend = self._extend_by_scores if needs_all_scores else self._extend_by_logits
        scores, parents, tokens = extend(logits)
        missing = (0, max(0, self.num_candidates - scores.shape[1]))  # if the vocabulary is smaller than the beam
        parents, state = F.pad(parents, missing), self.state
        candidates = replace(state.live.gather(parents), scores=F.pad(scores, missing, value=-math.inf))
        candidates.tokens[:, :, state.length] = F.pad(tokens, missing)
        rows = parents + self.num_beams * state.sentences.unsqueeze(-1)
        candidates.rows[:, :, state.length - self.prefix_length] = rows
        state.length += 1
        return candidates

    def _extend_by_logits(self, logits: Iterable[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The best extensions, from the logits alone.

        Returns:
            Log-probabilities, the live hypotheses that are extended, and tokens: `[S, extensions]` each.
        """
        hypotheses = 1 if self.state.length == self.prefix_length else self.num_beams
        # Greedy search needs the order of extensions only, and thus no sum over the vocabulary.
        is_order_enough = self.num_beams == 1 and self.observer is None
        rest, best = self.state.live.scores[:, :hypotheses], []
        for chunk in logits:
            scores, rest = rest.tensor_split([len(chunk) // hypotheses])
            totals = chunk.float().unflatten(0, scores.shape)  # [sentences, hypotheses, vocabulary]
            if not is_order_enough:
                totals = totals.log_softmax(-1).add_(scores.unsqueeze(-1))
            best.append(two_stage_topk(totals.flatten(1), self.num_candidates))
        values, indices = map(torch.cat, zip(*best, strict=True))
        if is_order_enough:
            values -= values[:, :1].clone()
        return values, indices // totals.shape[-1], indices % totals.shape[-1]

    def _extend_by_scores(self, logits: Iterable[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Like `_extend_by_logits`, from the scores of all tokens, which processors, recording and sampling need."""
        state, chunks = self.state, [chunk.float() for chunk in logits]
        sequences = state.live.tokens[:, :, : state.length].flatten(0, 1)
        if self.num_beams == 1:  # in greedy search, processors receive logits, as in transformers
            scores = self.processors(sequences, self._one_row_per_beam(chunks)).log_softmax(-1)
        else:
            scores = self.processors(sequences, self._one_row_per_beam([chunk.log_softmax(-1) for chunk in chunks]))
        if self.records_scores:
            self.step_scores += (scores.clone(),)
        if self.records_logits:
            self.step_logits += (self._one_row_per_beam(chunks).clone(),)
        totals = (scores + state.live.scores.flatten().unsqueeze(-1)).unflatten(0, (-1, self.num_beams)).flatten(1)
        values, best = self._extensions(totals, sequences, scores)
        return values, best // scores.shape[1], best % scores.shape[1]

    def _extensions(
        self, totals: torch.Tensor, sequences: torch.Tensor, scores: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The best extensions by log-probabilities `totals` `[S, num_beams * vocabulary]`, or a sample of them.

        `sequences` `[S * num_beams, length]` are the hypotheses, and `scores` `[S * num_beams, vocabulary]` the
        log-probabilities of their next tokens. Returns log-probabilities, best first, and indices into `totals`:
        `[S, extensions]` each.
        """
        keys = totals
        if self.config.do_sample:  # the top-k of log p + Gumbel noise is a sample without replacement
            keys = totals - torch.empty_like(totals).exponential_().log()
        best = keys.topk(min(self.num_candidates, totals.shape[1])).indices
        return totals.gather(1, best), best

    def _one_row_per_beam(self, chunks: list[torch.Tensor]) -> torch.Tensor:
        """Concatenate chunks to one row for each live hypothesis: `[S * num_beams, vocabulary]`."""
        joined = chunks[0] if len(chunks) == 1 else torch.cat(chunks)  # a single chunk is not copied
        return joined.unflatten(0, (len(self.state.sentences), -1)).expand(-1, self.num_beams, -1).flatten(0, 1)

    def _has_ended(self, candidates: Hypotheses) -> torch.Tensor:
        """Which candidates end in EOS or are stopped by a criterion: `[S, num_candidates]`."""
        sequences = candidates.tokens[:, :, : self.state.length]
        has_ended = torch.isin(sequences[:, :, -1], self.eos)
        if self.config.length_penalty_type == "transformers":
            has_ended |= self._is_at_limit().unsqueeze(-1)
        if self.criteria:
            stopped = self.criteria(sequences.flatten(0, 1), self.step_scores or None)
            has_ended |= stopped.unflatten(0, has_ended.shape)
        return has_ended

    def _next_live(self, candidates: Hypotheses) -> Hypotheses:
        """The `candidates` that are extended in the next step, best first; those that have ended are missing."""
        return candidates.best(self.num_beams)

    def _penalized(self, scores: torch.Tensor, length: torch.Tensor | int | None = None) -> torch.Tensor:
        """Log-probabilities divided by the penalty for `length` generated tokens, by default the current number."""
        length = self.state.length - self.prefix_length if length is None else length
        return scores / length_penalty(length, self.config.length_penalty, self.config.length_penalty_type)

    def _store_done(self, decoder: StepDecoder) -> None:
        """Store the results of sentences that are done, and drop those sentences from the search."""
        state = self.state
        deciding, bound = self.stopping_scores()
        is_done = (deciding > -math.inf) & (deciding >= bound)
        is_done |= self._is_at_limit() | state.live.scores[:, 0].isneginf()
        flags = is_done.tolist()  # the only transfer from the device in a step
        done = [index for index, is_now in enumerate(flags) if is_now and not state.done[index]]
        if not done:
            return
        indices = torch.tensor(done, device=state.sentences.device)
        live = state.live.select(indices)
        both = state.finished.select(indices).concat(replace(live, scores=self._penalized(live.scores)))
        rank = both.scores.ne(-math.inf).long()  # finished 2, live 1, missing 0; NaN counts as present
        rank[:, : self.num_beams] *= 2
        best = both.gather(rank.argsort(dim=1, descending=True, stable=True)[:, : self.num_beams])
        is_missing = best.scores.isneginf().unsqueeze(-1)  # fewer hypotheses exist than num_beams
        best.tokens[:, :, self.prefix_length :].masked_fill_(is_missing, self.padding)
        best.rows.masked_fill_(is_missing, -1)
        self.results.store(state.sentences[indices], best)
        for index in done:
            state.done[index] = True
        if self.may_drop and not self.is_done:
            self._drop_done(decoder)

    def _drop_done(self, decoder: StepDecoder) -> None:
        """Drop as many done sentences as the decoder allows; the last remaining sentences move to their indices."""
        done = self.state.done
        kept = decoder.sentences_for(done.count(False))
        if kept == len(done):
            return
        last = (index for index in range(kept, len(done)) if not done[index])
        order = [next(last, index) if is_done else index for index, is_done in enumerate(done[:kept])]
        decoder.select(order)
        self.state = self.state.select(order)
        for processor in self.processors:
            if isinstance(processor, SentenceProcessor):
                processor.select(torch.tensor(order))

    def _is_at_limit(self) -> torch.Tensor:
        """Which sentences have generated as many tokens as they may: `[S]`."""
        return self.state.length - self.prefix_length >= self.state.limits

    def stopping_scores(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Score of the deciding finished hypothesis, and the bound that it must reach: `[S]` each."""
        state, best_live = self.state, self.state.live.scores[:, 0]
        if self.config.early_stopping == "never":
            # More tokens only lower a log-probability, unless a logits processor raises it. The final score is at
            # most this log-probability with the penalty of the largest length or, if alpha <= 0, of the smallest.
            length = state.limits if self.config.length_penalty > 0 else state.length - self.prefix_length + 1
            return state.finished.scores[:, self.config.num_return_sequences - 1], self._penalized(best_live, length)
        bound = torch.full_like(best_live, -math.inf) if self.config.early_stopping else self._penalized(best_live)
        return state.finished.scores[:, -1], bound


def length_penalty(length: torch.Tensor | int, alpha: float, penalty_type: str) -> torch.Tensor | float:
    """Divisor of a hypothesis's log-probability; `config.length_penalty` is its exponent `alpha`.

    It is `((5 + |Y|) / 6)^alpha` of Wu et al. (2016), equation 14, for "gnmt", and `|Y|^alpha` for "transformers".
    The `length` |Y| counts EOS.
    """
    return ((5.0 + length) / 6.0) ** alpha if penalty_type == "gnmt" else (1.0 * length) ** alpha


def token_ids(ids: int | list[int] | torch.Tensor | None) -> list[int]:
    """One id, several or none as a list."""
    return [] if ids is None else torch.as_tensor(ids).flatten().tolist()


def _is_row_wise(processor: LogitsProcessor) -> bool:
    kind = type(processor)
    is_builtin = kind.__module__ == LogitsProcessor.__module__
    return isinstance(processor, SentenceProcessor) or (is_builtin and kind.__name__ in _ROW_WISE)


def two_stage_topk(values: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The `count` largest of each row of `values` `[rows, columns]`, or all, and their columns, like `torch.topk`.

    The k largest lie in the k groups of columns with the largest maxima.
    """
    columns = values.shape[1]
    count = min(count, columns)
    if columns < 4 * count * _GROUP_SIZE:
        return values.topk(count)
    grouped = columns - columns % _GROUP_SIZE
    groups = values[:, :grouped].unflatten(-1, (-1, _GROUP_SIZE)).amax(-1).topk(count).indices  # [rows, count]
    members = groups.unsqueeze(-1) * _GROUP_SIZE + torch.arange(_GROUP_SIZE, device=values.device)
    tail = torch.arange(grouped, columns, device=values.device).expand(len(values), -1)
    candidates = torch.cat((members.flatten(1), tail), dim=1)
    best, order = values.gather(1, candidates).topk(count)
    return best, candidates.gather(1, order)

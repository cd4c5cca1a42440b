"""Section 6.1 of the paper, "Machine Translation": beam search with the length penalty of Wu et al. (2016), and at most
input length + 50 tokens of output."""

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import torch
from torch.nn import functional as F
from transformers import GenerationConfig, PreTrainedConfig
from transformers.generation import GenerateBeamEncoderDecoderOutput, GenerationMixin
from transformers.generation.logits_process import (
    ForcedEOSTokenLogitsProcessor,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    LogitsProcessor,
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
)
from transformers.generation.stopping_criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
)

from .step_decoder_vaswani import ForwardDecoder


# So many logits are computed at a time: on CPU what stays in its cache, elsewhere what memory has room for.
_LOGITS_ON_CPU, _LOGITS_ELSEWHERE = 5_000_000, 200_000_000

# The largest logits of a row lie in those groups of so many columns whose largest are largest.
_GROUP = 32


_NOT_NUMBERS = (
    "the model's logits are not numbers: its weights are damaged, or overflow in this precision; give another dtype, "
    "such as float32"
)

# Powers of lengths with larger exponents overflow.
_LARGEST_ALPHA = 100

# Processors that look at nothing but the hypothesis whose scores they process. Others may count on a sentence's place.
_OF_ONE_HYPOTHESIS = (
    ForcedEOSTokenLogitsProcessor,
    InfNanRemoveLogitsProcessor,
    LogitNormalization,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
)


def paper_generation_config(config: PreTrainedConfig) -> GenerationConfig:
    """What section 6.1 decodes with: beam 4, alpha = 0.6, at most 50 tokens more than the source has.

    `length_penalty_type` is "gnmt", `score = log P / ((5 + |Y|) / 6)^alpha`, or "transformers",
    `score = log P / |Y|^alpha`; |Y| counts EOS in both. `max_new_tokens_over_source` limits each sentence on its own. A
    keyword of `generate` wins over the configuration given to it, and that over the model's; `max_new_tokens` or
    `max_length` wins over a `max_new_tokens_over_source` of the same place.
    """
    return GenerationConfig(
        num_beams=4,
        length_penalty=0.6,
        length_penalty_type="gnmt",
        early_stopping="never",  # stop only when no live beam can still win, as the authors' code does
        max_new_tokens_over_source=50,
        pad_token_id=config.pad_token_id,
        bos_token_id=config.bos_token_id,
        eos_token_id=config.eos_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
    )


def length_penalty(length: torch.Tensor | int, alpha: float, penalty_type: str) -> torch.Tensor | float:
    """What a hypothesis's log-probability is divided by: `((5 + |Y|) / 6)^alpha` of Wu et al. (2016), equation 14, or
    transformers' `|Y|^alpha`; `length`, |Y|, counts EOS."""
    return ((5.0 + length) / 6.0) ** alpha if penalty_type == "gnmt" else (1.0 * length) ** alpha


class EndPerSentence(LogitsProcessor):
    """Forces an end of sentence on the last token that each sentence may generate.

    Args:
        limits: `[batch]` tokens that each sentence may generate, EOS included.
        prefix_length: Tokens that the decoder was given, its start token included.
        tokens: Id, or ids, of which one is forced.
    """

    def __init__(self, limits: torch.Tensor, prefix_length: int, tokens: int | list[int]) -> None:
        self.limits, self.prefix_length, self.tokens = limits, prefix_length, tokens

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        limits = self.limits.repeat_interleave(input_ids.shape[0] // self.limits.shape[0]).to(scores.device)
        is_last = (input_ids.shape[1] - self.prefix_length >= limits - 1).unsqueeze(-1)  # [rows, 1]
        forced = torch.full_like(scores, -math.inf)  # [rows, vocabulary]
        forced[:, self.tokens] = 0.0
        return torch.where(is_last, forced, scores)

    def keep(self, sentences: torch.Tensor) -> None:
        """Go on with these sentences, in this order."""
        self.limits = self.limits.to(sentences.device)[sentences]


class LengthPerSentence(StoppingCriteria):
    """Stops every sentence at its own number of generated tokens.

    Args:
        limits: `[batch]` tokens that each sentence may generate, EOS included.
        prefix_length: Tokens that the decoder was given, its start token included.
    """

    def __init__(self, limits: torch.Tensor, prefix_length: int) -> None:
        self.limits = limits
        self.prefix_length = prefix_length

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        # A sentence has one row, or one for each of its samples.
        rows_per_sentence = input_ids.shape[0] // self.limits.shape[0]
        limits = self.limits.repeat_interleave(rows_per_sentence).to(input_ids.device)  # [rows]
        return input_ids.shape[1] - self.prefix_length >= limits


class FiniteLogits(LogitsProcessor):
    """Raises a ValueError where the largest score of a hypothesis is NaN or infinite."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if not scores.max() < math.inf:  # nor is nan, which is the maximum of what it is among
            raise ValueError(_NOT_NUMBERS)
        return scores


def best_tokens(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The log-probabilities of the `count` likeliest tokens, best first, and those tokens, from `logits`
    `[rows, vocabulary]`: `[rows, count]` each, or `[rows, vocabulary]` where the vocabulary is smaller."""
    logits = logits.float()  # also the faster type to compare in, on CPU
    rows, vocabulary = logits.shape
    count = min(count, vocabulary)
    if vocabulary < 4 * count * _GROUP:
        values, tokens = logits.topk(count)
    else:
        whole = vocabulary - vocabulary % _GROUP
        groups = logits[:, :whole].unflatten(-1, (-1, _GROUP)).amax(-1).topk(count).indices  # [rows, count]
        columns = torch.arange(_GROUP, device=logits.device)
        tail = torch.arange(whole, vocabulary, device=logits.device).expand(rows, -1)
        columns = torch.cat(((groups.unsqueeze(-1) * _GROUP + columns).flatten(1), tail), dim=1)
        values, order = logits.gather(1, columns).topk(count)
        tokens = columns.gather(1, order)
    # log p = logit - log(sum of exp): the latter from the largest probability, which is never near 0.
    largest = logits.softmax(-1).gather(1, tokens[:, :1])
    return values - values[:, :1] + largest.log(), tokens


@dataclass
class Hypotheses:
    """Some hypotheses of each sentence.

    Args:
        scores: `[sentences, hypotheses]`, -inf where there is none.
        tokens: `[sentences, hypotheses, max_length]`, with the prefix, padded.
        rows: `[sentences, hypotheses, max_length - prefix]`, for each generated token the row of the whole batch that
            it continued, -1 behind the end.
    """

    scores: torch.Tensor
    tokens: torch.Tensor
    rows: torch.Tensor

    @classmethod
    def none(cls, prefixes: torch.Tensor, hypotheses: int, max_length: int, padding: int) -> "Hypotheses":
        """None yet; of each sentence only its prefix stands there, `[sentences, prefix]`."""
        sentences, prefix = prefixes.shape
        scores = torch.full((sentences, hypotheses), -math.inf, dtype=torch.float32, device=prefixes.device)
        tokens = prefixes.new_full((sentences, hypotheses, max_length), padding)
        tokens[:, :, :prefix] = prefixes.unsqueeze(1)
        return cls(scores, tokens, prefixes.new_full((sentences, hypotheses, max_length - prefix), -1))

    def of(self, sentences: torch.Tensor) -> "Hypotheses":
        return Hypotheses(self.scores[sentences], self.tokens[sentences], self.rows[sentences])

    def put(self, sentences: torch.Tensor, others: "Hypotheses") -> None:
        self.scores[sentences], self.tokens[sentences], self.rows[sentences] = others.scores, others.tokens, others.rows

    def chosen(self, places: torch.Tensor) -> "Hypotheses":
        """Those at `places` `[sentences, chosen]`."""

        def pick(sequences: torch.Tensor) -> torch.Tensor:
            return sequences.gather(1, places.unsqueeze(-1).expand(-1, -1, sequences.shape[-1]))

        return Hypotheses(self.scores.gather(1, places), pick(self.tokens), pick(self.rows))

    def together_with(self, others: "Hypotheses") -> "Hypotheses":
        pairs = ((self.scores, others.scores), (self.tokens, others.tokens), (self.rows, others.rows))
        return Hypotheses(*(torch.cat(pair, dim=1) for pair in pairs))

    def best(self, count: int) -> "Hypotheses":
        return self.chosen(self.scores.topk(count).indices)


class BeamSearch:
    """Beam search over a batch of sentences, of which each is searched as if it were alone (6.1).

    At each step the best `2 * num_beams` continuations of a sentence are found. Those that end join its finished
    hypotheses; the best `num_beams` of the others live on. A sentence stops as `early_stopping` says:

    - "never", as the authors' code: when no live hypothesis can still become one of the `num_return_sequences` best;
    - False: when `num_beams` have finished, and the best live one, normalised as if it ended here, is worse than all;
    - True: when `num_beams` have finished;

    the latter two as in transformers, where an ending counts only if it is among the best `num_beams` continuations;

    and always at its limit of tokens. Live hypotheses are returned only where too few have finished.

    Args:
        vocabulary: Number of logits.
        prefixes: `[sentences, prefix]`, what hypotheses start with.
        processors: Logits processors.
        criteria: Stopping criteria; a continuation that they stop counts as one that ends.
        settings: The generation configuration, as transformers has prepared it.

    Raises:
        ValueError: `length_penalty_type` is unknown, `length_penalty` is no number or too large for powers of lengths.
    """

    def __init__(
        self,
        vocabulary: int,
        prefixes: torch.Tensor,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        settings: GenerationConfig,
    ) -> None:
        penalty_type = getattr(settings, "length_penalty_type", "transformers")
        if penalty_type not in ("gnmt", "transformers"):
            raise ValueError(f'length_penalty_type: must be "gnmt" or "transformers", is {penalty_type!r}')
        alpha = settings.length_penalty
        if not isinstance(alpha, (int, float)) or not abs(alpha) <= _LARGEST_ALPHA:  # nan is not, either
            raise ValueError(f"length_penalty: must be a number of at most {_LARGEST_ALPHA}, is {alpha!r}")
        self.vocabulary, self.prefixes, self.processors, self.settings = vocabulary, prefixes, processors, settings
        self.num_beams, self.penalty_type = settings.num_beams, penalty_type
        self.eos = settings._eos_token_tensor
        endings = 0 if self.eos is None else len(self.eos)
        self.num_candidates = max(2, 1 + endings) * self.num_beams  # so that enough live on when many end
        limits = (MaxLengthCriteria, LengthPerSentence)
        self.criteria = StoppingCriteriaList(
            [rule for rule in criteria if not isinstance(rule, limits) and not self._is_own_end(rule)]
        )
        self.keeps_scores = settings.return_dict_in_generate and settings.output_scores
        self.keeps_logits = settings.return_dict_in_generate and settings.output_logits
        self.step_scores: tuple[torch.Tensor, ...] = ()
        self.step_logits: tuple[torch.Tensor, ...] = ()
        # What sees or shows whole steps must find every sentence in its place.
        others = any(type(processor) not in (*_OF_ONE_HYPOTHESIS, EndPerSentence) for processor in processors)
        self.may_leave = not (others or self.criteria or self.keeps_scores or self.keeps_logits)
        self._start([rule for rule in criteria if isinstance(rule, limits)])

    def _is_own_end(self, rule: StoppingCriteria) -> bool:
        """Whether a criterion is the end of sentence that the settings name."""
        own = self.eos is not None and isinstance(rule, EosTokenCriteria)
        return own and set(rule.eos_token_id.tolist()) == set(self.eos.tolist())

    def _start(self, limits: list[Any]) -> None:
        """One live hypothesis a sentence, the prefix; nothing finished."""
        (sentences, prefix), device = self.prefixes.shape, self.prefixes.device
        self.limits = torch.full((sentences,), self.settings.max_length - prefix, device=device)
        for rule in limits:
            limit = rule.limits if isinstance(rule, LengthPerSentence) else torch.tensor(rule.max_length - prefix)
            self.limits = torch.minimum(self.limits, limit.to(device))  # [sentences], in generated tokens
        padding = self.settings._pad_token_tensor
        self.padding = 0 if padding is None else int(padding)
        self.max_length = prefix + int(self.limits.max())

        def none() -> Hypotheses:
            return Hypotheses.none(self.prefixes, self.num_beams, self.max_length, self.padding)

        self.live, self.finished, self.results = none(), none(), none()
        self.live.scores[:, 0] = 0.0
        self.length, self.generated = prefix, 0
        self.sentences = torch.arange(sentences, device=device)  # in the batch; fewer when some have left
        self.stopped = [False] * sentences
        self.last_tokens = self.parents = torch.empty(0)  # [sentences, num_beams] from the first step on

    @property
    def is_done(self) -> bool:
        return all(self.stopped)

    def advance(self, decoder: Any) -> None:
        """Lengthen every live hypothesis by a token."""
        first = self.generated == 0  # all hypotheses are still the same: [sentences, 1 or num_beams, d_model]
        states = decoder.prefill(self.prefixes) if first else decoder.step(self.last_tokens, self.parents)
        every_score = self.processors or self.keeps_scores or self.keeps_logits or self.settings.do_sample
        choose = self._choose_among_all if every_score else self._choose_best
        scores, parents, tokens = self._filled(*choose(decoder, states))
        candidates = self._continued(scores, parents, tokens)
        ended = self._ended(candidates, tokens)
        counts = ended.clone()
        if self.settings.early_stopping != "never":  # transformers drops endings that are not among the best num_beams
            counts[:, self.num_beams :] = False
        finished = replace(candidates, scores=self._normalised(scores).masked_fill(~counts, -math.inf))
        self.finished = self.finished.together_with(finished).best(self.num_beams)
        best = scores.masked_fill(ended, -math.inf).topk(self.num_beams)
        self.live = replace(candidates.chosen(best.indices), scores=best.values)
        self.last_tokens, self.parents = tokens.gather(1, best.indices), parents.gather(1, best.indices)
        self._stop(decoder)

    def _choose_best(self, decoder: Any, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The likeliest continuations of each sentence: log-probabilities, the hypotheses that they continue, and
        tokens, `[sentences, candidates]` each. Of no other tokens are the scores formed."""
        rows = states.flatten(0, 1)  # [sentences * hypotheses, d_model]
        at_once = _LOGITS_ON_CPU if rows.device.type == "cpu" else _LOGITS_ELSEWHERE
        parts = rows.chunk(rows.shape[0] * self.vocabulary // at_once + 1)
        chosen = [best_tokens(decoder.project(part), self.num_candidates) for part in parts]
        scores = torch.cat([values for values, _ in chosen]).unflatten(0, states.shape[:2])
        tokens = torch.cat([indices for _, indices in chosen]).flatten().unflatten(0, (states.shape[0], -1))
        hypotheses, each = scores.shape[1:]
        totals = (scores + self.live.scores[:, :hypotheses, None]).flatten(1)  # [sentences, hypotheses * each]
        best = totals.topk(min(self.num_candidates, hypotheses * each))
        return best.values, best.indices // each, tokens.gather(1, best.indices)

    def _choose_among_all(self, decoder: Any, states: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """As `_choose_best`, from the scores of the whole vocabulary, which processors may change; or a sample."""
        logits = decoder.project(states).float().expand(-1, self.num_beams, -1).flatten(0, 1)
        sequences = self.live.tokens[:, :, : self.length].flatten(0, 1)  # [sentences * num_beams, length]
        scores = self.processors(sequences, logits.log_softmax(-1))  # [sentences * num_beams, vocabulary]
        if self.keeps_scores:
            self.step_scores += (scores.clone(),)
        if self.keeps_logits:
            self.step_logits += (logits.clone(),)
        totals = (scores + self.live.scores.flatten().unsqueeze(-1)).unflatten(0, (-1, self.num_beams)).flatten(1)
        keys = totals
        if self.settings.do_sample:  # the largest of log p + Gumbel noise are a sample without replacement
            keys = totals - torch.empty_like(totals).exponential_().log()
        best = keys.topk(min(self.num_candidates, totals.shape[1])).indices
        return totals.gather(1, best), best // scores.shape[1], best % scores.shape[1]

    def _filled(
        self, scores: torch.Tensor, parents: torch.Tensor, tokens: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """`num_candidates` of each, the missing ones impossible, where the vocabulary is smaller than the beam."""
        missing = (0, self.num_candidates - scores.shape[1])
        return F.pad(scores, missing, value=-math.inf), F.pad(parents, missing), F.pad(tokens, missing)

    def _continued(self, scores: torch.Tensor, parents: torch.Tensor, tokens: torch.Tensor) -> Hypotheses:
        """The live hypotheses `parents`, each with its token behind it."""
        candidates = replace(self.live.chosen(parents), scores=scores)
        candidates.tokens[:, :, self.length] = tokens
        candidates.rows[:, :, self.generated] = parents + self.num_beams * self.sentences.unsqueeze(-1)
        self.length, self.generated = self.length + 1, self.generated + 1
        return candidates

    def _ended(self, candidates: Hypotheses, tokens: torch.Tensor) -> torch.Tensor:
        """Which candidates are finished: `[sentences, candidates]`."""
        ended = torch.zeros_like(tokens, dtype=torch.bool) if self.eos is None else torch.isin(tokens, self.eos)
        if self.criteria:
            sequences = candidates.tokens[:, :, : self.length].flatten(0, 1)
            ended |= self.criteria(sequences, self.step_scores or None).unflatten(0, tokens.shape)
        return ended

    def _normalised(self, scores: torch.Tensor, length: Any = None) -> torch.Tensor:
        length = self.generated if length is None else length
        return scores / length_penalty(length, self.settings.length_penalty, self.penalty_type)

    def _stop(self, decoder: Any) -> None:
        """Store the results of sentences that are done; they leave the batch, which is all that is read from the
        device in a step."""
        done = self._done().tolist()
        stopping = [place for place, is_done in enumerate(done) if is_done and not self.stopped[place]]
        if not stopping:
            return
        places = torch.tensor(stopping, device=self.sentences.device)
        live = self.live.of(places)
        live.scores = self._normalised(live.scores)
        both = self.finished.of(places).together_with(live)
        rank = both.scores.ne(-math.inf).long()  # 2 for finished, 1 for live, 0 for missing ones; nan is not missing
        rank[:, : self.num_beams] *= 2
        order = rank.argsort(dim=1, descending=True, stable=True)[:, : self.num_beams]
        best = both.chosen(order)
        nothing = best.scores.isneginf().unsqueeze(-1)  # fewer hypotheses are possible than are asked for
        best.tokens[:, :, self.prefixes.shape[1] :].masked_fill_(nothing, self.padding)
        best.rows.masked_fill_(nothing, -1)
        self.results.put(self.sentences[places], best)
        for place in stopping:
            self.stopped[place] = True
        remaining = self.stopped.count(False)
        if remaining and self.may_leave and decoder.may_leave(remaining):
            self._leave(decoder, remaining)

    def _leave(self, decoder: Any, remaining: int) -> None:
        """Go on with those that have not stopped, the last ones in the places of those that leave."""
        staying = [place for place, stopped in enumerate(self.stopped) if not stopped]
        late = iter([place for place in staying if place >= remaining])
        order = [next(late) if stopped else place for place, stopped in enumerate(self.stopped[:remaining])]
        decoder.keep(order)
        places = torch.tensor(order, device=self.sentences.device)
        self.live, self.finished = self.live.of(places), self.finished.of(places)
        self.sentences, self.limits = self.sentences[places], self.limits[places]
        for processor in self.processors:
            if isinstance(processor, EndPerSentence):
                processor.keep(places)
        self.last_tokens, self.parents = self.last_tokens[places], self.parents[places]
        self.stopped = [False] * remaining

    def _done(self) -> torch.Tensor:
        """Which sentences need not be searched on: `[sentences]`."""
        best_live, finished = self.live.scores[:, 0], self.finished.scores
        full = finished[:, -1] > -math.inf
        if self.settings.early_stopping is True:
            done = full
        elif self.settings.early_stopping == "never":
            # More tokens only lower a log-probability, unless a logits processor adds to it; the penalty makes most of
            # it at the one or at the other end.
            length = self.limits if self.settings.length_penalty > 0 else self.generated + 1
            done = finished[:, self.settings.num_return_sequences - 1] >= self._normalised(best_live, length)
        else:
            done = full & (finished[:, -1] >= self._normalised(best_live))
        return done | (self.generated >= self.limits) | best_live.isneginf()

    def result(self, decoder: Any) -> Any:
        """What `generate` returns: sequences `[sentences * num_return_sequences, length]`, or an output object.

        Raises:
            ValueError: Logits were not numbers, so that no hypothesis means anything.
        """
        if self.results.scores.isnan().any():
            raise ValueError(_NOT_NUMBERS)
        returned = self.settings.num_return_sequences
        rows = self.results.rows[:, :returned].flatten(0, 1)
        longest = int(rows.ge(0).sum(-1).max())
        sequences = self.results.tokens[:, :returned, : self.prefixes.shape[1] + longest].flatten(0, 1)
        if not self.settings.return_dict_in_generate:
            return sequences
        return GenerateBeamEncoderDecoderOutput(
            sequences=sequences,
            sequences_scores=self.results.scores[:, :returned].flatten() if self.keeps_scores else None,
            scores=self.step_scores if self.keeps_scores else None,
            logits=self.step_logits if self.keeps_logits else None,
            beam_indices=rows[:, :longest],
            **decoder.recorded(),
        )


def tokens_over_source(*places: Mapping[str, Any]) -> int | None:
    """`max_new_tokens_over_source` of the first place that limits the length; None if that has a fixed limit.

    Raises:
        ValueError: It is negative, or no integer.
    """
    for place in places:
        if place.get("max_new_tokens") is not None or place.get("max_length") is not None:
            return None
        tokens = place.get("max_new_tokens_over_source")
        if tokens is not None:
            if not isinstance(tokens, int) or tokens < 0:
                raise ValueError(f"max_new_tokens_over_source: must be an integer of at least 0, is {tokens!r}")
            return tokens
    return None


class VaswaniGenerationMixin(GenerationMixin):
    """`generate` of transformers, decoding as the paper does unless told otherwise."""

    @torch.no_grad()
    def generate(
        self,
        inputs: torch.Tensor | None = None,
        generation_config: GenerationConfig | None = None,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Translate; arguments and results are those of `transformers.GenerationMixin.generate`.

        Without `attention_mask`, padding is recognised by its id. With beams, it is searched by `BeamSearch`.

        Raises:
            ValueError: There is no source, `decoder_input_ids` has no tokens or more than a learned position table,
                `length_penalty_type` is unknown, a number of beams, sequences or tokens cannot be, or logits are NaN.
        """
        ids = kwargs.get("input_ids") if inputs is None else inputs
        if ids is not None and ids.dim() == 2 and kwargs.get("attention_mask") is None:
            kwargs["attention_mask"] = ids.ne(self.config.pad_token_id).long()  # [batch, source]

        def setting(name: str) -> Any:
            """The keyword, else the given configuration's value, else the model's, as transformers has it."""
            places = (
                kwargs.get(name),
                getattr(generation_config, name, None),
                getattr(self.generation_config, name, None),
            )
            return next((value for value in places if value is not None), None)

        for name in ("num_beams", "num_return_sequences", "max_new_tokens", "max_length"):
            value = setting(name)
            if value is not None and not (isinstance(value, Integral) and int(value) >= 1):
                raise ValueError(f"{name}: must be an integer of at least 1, is {value!r}")
        prefix_length = self._prefix_length(kwargs.get("decoder_input_ids"), setting("decoder_start_token_id"))
        given = {} if generation_config is None else vars(generation_config)
        over_source = tokens_over_source(kwargs, given, vars(self.generation_config))
        kwargs.pop("max_new_tokens_over_source", None)
        if over_source is not None:
            limits = self._limits(over_source, prefix_length, kwargs)
            criterion = LengthPerSentence(limits, prefix_length)
            stopping_criteria = StoppingCriteriaList([*(stopping_criteria or []), criterion])
            forced = setting("forced_eos_token_id")
            if forced is not None:
                end = EndPerSentence(limits, prefix_length, forced)
                logits_processor = LogitsProcessorList([*(logits_processor or []), end])
            longest = int(limits.max())
            if generation_config is None:
                kwargs |= {"max_new_tokens": longest, "max_length": None}
            else:  # transformers deprecates giving both an object and keywords
                generation_config = copy.deepcopy(generation_config)
                generation_config.max_new_tokens, generation_config.max_length = longest, None
                for name in ("max_new_tokens", "max_length"):
                    kwargs.pop(name, None)
        return super().generate(inputs, generation_config, logits_processor, stopping_criteria, **kwargs)

    def _prefix_length(self, prefix: torch.Tensor | None, start: int) -> int:
        """Tokens that the decoder is given, with the start token, which transformers puts there if none has it."""
        if prefix is None:
            return 1
        if not prefix.shape[1]:
            raise ValueError(f"decoder_input_ids: has no tokens; leave it out, or begin with the start token {start}")
        has_start = prefix[:, 0].eq(start).any()
        return prefix.shape[1] + int(not has_start)

    def _limits(self, over_source: int, prefix_length: int, kwargs: dict[str, Any]) -> torch.Tensor:
        """Tokens that each sentence may generate, EOS included: `[batch]`."""
        if kwargs.get("attention_mask") is not None:
            lengths = kwargs["attention_mask"].sum(-1)
        else:
            states = kwargs.get("inputs_embeds")
            if states is None:
                if kwargs.get("encoder_outputs") is None:
                    raise ValueError("generate needs a source: input_ids, inputs_embeds or encoder_outputs")
                states = kwargs["encoder_outputs"][0]
            lengths = torch.full((states.shape[0],), states.shape[1], device=states.device)
        limits = (lengths + over_source).clamp(min=1)
        if getattr(self.config, "position_encoding", None) == "learned":
            table = self.config.max_position_embeddings
            if prefix_length > table:
                raise ValueError(
                    f"decoder_input_ids: {prefix_length} tokens exceed the learned position table of {table}"
                )
            limits = limits.clamp(max=table + 1 - prefix_length)
        return limits

    def _sample(self, input_ids: torch.Tensor, logits_processor: LogitsProcessorList, *args: Any, **kwargs: Any) -> Any:
        """What `generate` calls without beams, also when greedy; see `transformers.GenerationMixin._sample`."""
        # Last, where a processor may have removed what is not finite.
        return super()._sample(input_ids, LogitsProcessorList([*logits_processor, FiniteLogits()]), *args, **kwargs)

    def _beam_search(
        self,
        input_ids: torch.Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        **model_kwargs: Any,
    ) -> Any:
        """What `generate` calls for beams, with the arguments of `transformers.GenerationMixin._beam_search`: tensors
        have a row for each of the `num_beams` hypotheses of a sentence."""
        settings, beams = generation_config, generation_config.num_beams
        prefixes = input_ids[::beams]
        search = BeamSearch(self.config.output_vocab_size, prefixes, logits_processor, stopping_criteria, settings)
        given = model_kwargs.get("past_key_values")
        if given is not None and given.get_seq_length() > 0:
            raise ValueError("past_key_values: beam search keeps its own; give the tokens so far as decoder_input_ids")
        encoded, mask = model_kwargs["encoder_outputs"][0][::beams], model_kwargs.get("attention_mask")
        if synced_gpus or not settings.use_cache or not self._can_decode_incrementally(settings, model_kwargs):
            decoder: Any = ForwardDecoder(self, model_kwargs, settings)
        else:
            mask = None if mask is None else mask[::beams]
            decoder = self.incremental_decoder(encoded, mask, beams, prefixes.shape[1], search.max_length)
        while self._has_unfinished_sequences(search.is_done, synced_gpus, input_ids.device):
            if search.is_done:
                decoder.idle()
            else:
                search.advance(decoder)
        return search.result(decoder)

    def _can_decode_incrementally(self, settings: GenerationConfig, model_kwargs: dict[str, Any]) -> bool:
        """Whether `IncrementalDecoder` knows all inputs, shows all that is asked for, and has all weights at hand."""
        known = {"encoder_outputs", "attention_mask", "past_key_values", "use_cache", "logits_to_keep"}
        known |= {"output_attentions", "output_hidden_states", "inputs_embeds", "decoder_input_ids", "labels"}
        if any(value is not None for name, value in model_kwargs.items() if name not in known):
            return False
        if settings.return_dict_in_generate and (settings.output_attentions or settings.output_hidden_states):
            return False
        replaced = getattr(self.prepare_inputs_for_generation, "__func__", None)
        if replaced is not GenerationMixin.prepare_inputs_for_generation or not self.decodes_as_written():
            return False
        device = model_kwargs["encoder_outputs"][0].device
        weights = [*self.get_decoder().parameters(), *self.get_output_embeddings().parameters()]
        # Weights may be spread over devices, left on a disk, or split among processes.
        return all(weight.device == device and not hasattr(weight, "device_mesh") for weight in weights)

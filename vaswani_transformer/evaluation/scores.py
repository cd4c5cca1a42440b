"""Scores of translations: both BLEUs, chrF, BLEU by source length, and the significance of a difference.

All compare text in Unicode's composed form (NFC), in which the tokenizer writes, and say so in their signatures.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sacrebleu.metrics import BLEU, CHRF
from sacrebleu.metrics.base import Metric, Signature

from ..model.languages_vaswani import UNSPACED_CHARACTER, base_language, is_same_language, writes_spaces
from .multi_bleu import bleu_with_signature, is_language
from .pathologies import Pathologies, find_pathologies
from .perplexity import Perplexity


# Sentences of 1 to 10 words form a group, and so on; all sentences of more than 60 words form one.
_WIDTH, _LONGEST = 10, 60
_SEED = 12345  # of bootstrap samples, which are then sacreBLEU's


@dataclass(frozen=True)
class Score:
    """A corpus score from 0 to 100, and its sacreBLEU signature."""

    score: float
    signature: str


@dataclass(frozen=True)
class BleuScore:
    """Corpus BLEU.

    Attributes:
        score: From 0 to 100.
        precisions: Precisions of 1-grams to 4-grams, in percent.
        brevity_penalty: From 0 to 1.
        hypothesis_length: Tokens of the hypotheses.
        reference_length: Tokens of the references.
        signature: Tokenization, case, smoothing, normalization and version.
    """

    score: float
    precisions: list[float]
    brevity_penalty: float
    hypothesis_length: int
    reference_length: int
    signature: str

    @property
    def relative_length(self) -> float:
        """Length of the hypotheses divided by the length of the references."""
        return self.hypothesis_length / self.reference_length


@dataclass(frozen=True)
class LengthGroup:
    """sacreBLEU of sentences with `shortest` to `longest` source words; None means no limit."""

    shortest: int
    longest: int | None
    sentences: int
    sacrebleu: float

    def __str__(self) -> str:
        return f"{self.shortest} or more" if self.longest is None else f"{self.shortest} to {self.longest}"


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores of the translations of one corpus.

    Attributes:
        sentences: Number of translations.
        perplexity: Perplexity of the first references; None without a model.
        bleu: sacreBLEU.
        paper_bleu: BLEU as in the paper; None if the language has no code, and in records of earlier versions.
        chrf: chrF2.
        num_beams, length_penalty: Options of the search (6.1); None without a model.
        seconds: Duration of the search.
        by_source_length: sacreBLEU of groups of sentences; None without sources.
        pathologies: Pathological translations; None without sources.
    """

    sentences: int
    perplexity: Perplexity | None = None
    bleu: BleuScore
    paper_bleu: BleuScore | None = None
    chrf: Score
    num_beams: int | None = None
    length_penalty: float | None = None
    seconds: float | None = None
    by_source_length: list[LengthGroup] | None = None
    pathologies: Pathologies | None = None

    @property
    def metrics(self) -> dict[str, float]:
        """The numbers for trackers."""
        perplexity = {"perplexity": self.perplexity.perplexity} if self.perplexity else {}
        return {"bleu": self.bleu.score, "chrf": self.chrf.score, **perplexity}


@dataclass(frozen=True)
class ResampledScore:
    """A score of the test set, its mean over bootstrap samples, and half their 95 % confidence interval."""

    score: float
    mean: float
    confidence: float


@dataclass(frozen=True)
class PairedComparison:
    """A metric of two systems, and the p-value of their difference (see `paired_bootstrap`); 1 for equal scores."""

    two_sided_p_value: float
    signature: str
    baseline: ResampledScore
    system: ResampledScore


class _ComposedMetric(Metric):
    """A metric of sacreBLEU that normalizes hypotheses and references to NFC."""

    # sacreBLEU has no public way to change every text that a metric reads, also in its paired test.
    def _preprocess_segment(self, sent: str) -> str:
        return super()._preprocess_segment(unicodedata.normalize("NFC", sent))  # type: ignore[safe-super]

    def get_signature(self) -> Signature:
        signature = super().get_signature()
        signature.update("norm", "NFC")
        return signature


class ComposedBleu(_ComposedMetric, BLEU):
    """sacreBLEU's BLEU of text in NFC."""


class ComposedChrf(_ComposedMetric, CHRF):
    """sacreBLEU's chrF of text in NFC."""


def sacrebleu_tokenizer(language: str | None) -> str:
    """sacreBLEU's tokenizer for a language: 13a, its default, or "zh" or "char" if words are not separated by spaces.

    sacreBLEU's own tokenizer for Japanese needs MeCab, an optional dependency.
    """
    if writes_spaces(language):
        return "13a"
    return "zh" if is_same_language(str(language), "zh") else "char"


def sacrebleu_score(
    hypotheses: Sequence[str], references: Sequence[str] | Sequence[Sequence[str]], language: str | None = None
) -> BleuScore:
    """Corpus BLEU of plain text, tokenized by `sacrebleu_tokenizer`; one or several references for each hypothesis."""
    metric = ComposedBleu(tokenize=sacrebleu_tokenizer(language))
    bleu = metric.corpus_score(hypotheses, _streams(references))
    signature = metric.get_signature().format()
    return BleuScore(bleu.score, bleu.precisions, bleu.bp, bleu.sys_len, bleu.ref_len, signature)


def score_translations(
    translations: Sequence[str],
    references: Sequence[Sequence[str]],
    languages: tuple[str, str],
    sources: Sequence[str] | None = None,
) -> Scores:
    """Score translations of plain text by the rules of their language; fields of a model and its search stay None.

    Args:
        translations: One line for each sentence.
        references: One or several for each sentence, the same number for all.
        languages: Codes of the source and the target language.
        sources: The source sentences, for `by_source_length` and `pathologies`.
    """
    target = base_language(languages[1])
    groups = None if sources is None else bleu_by_source_length(sources, translations, references, target)
    return Scores(
        sentences=len(translations),
        bleu=sacrebleu_score(translations, references, target),
        paper_bleu=BleuScore(**bleu_with_signature(translations, references, target)) if is_language(target) else None,
        chrf=chrf_score(translations, references),
        by_source_length=groups,
        pathologies=None if sources is None else find_pathologies(sources, translations, references, languages),
    )


def chrf_score(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> Score:
    """Corpus chrF2 by sacreBLEU's defaults; one or several references for each hypothesis."""
    chrf = ComposedChrf()
    return Score(chrf.corpus_score(hypotheses, _streams(references)).score, chrf.get_signature().format())


def sentence_chrf(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
    """`[sentences]` chrF2 of each hypothesis by sacreBLEU's defaults."""
    chrf = ComposedChrf()
    pairs = zip(hypotheses, references, strict=True)
    return np.array([chrf.sentence_score(line, list(texts)).score for line, texts in pairs])


def bleu_by_source_length(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    language: str | None = None,
) -> list[LengthGroup]:
    """sacreBLEU of sentences grouped by the number of words of their sources.

    White space separates words; in scripts without spaces, such as Chinese and Thai, each character counts as one.

    Args:
        sources: Source sentences.
        hypotheses: Their translations.
        references: One or several for each hypothesis, the same number for all.
        language: Code of the target language, by which text is tokenized.
    """
    groups: dict[int, list[int]] = {}
    for index, source in enumerate(sources):
        length = max(1, len(UNSPACED_CHARACTER.sub(r" \g<0> ", source).split()))
        groups.setdefault(min(length - 1, _LONGEST) // _WIDTH, []).append(index)
    scored = []
    for group, indices in sorted(groups.items()):
        texts, their_references = [hypotheses[index] for index in indices], [references[index] for index in indices]
        first = group * _WIDTH + 1
        end = None if first > _LONGEST else group * _WIDTH + _WIDTH
        bleu = sacrebleu_score(texts, their_references, language).score
        scored.append(LengthGroup(first, end, len(indices), bleu))
    return scored


def paired_bootstrap(
    baseline: Sequence[str],
    system: Sequence[str],
    references: Sequence[Sequence[str]],
    samples: int = 1000,
    language: str | None = None,
) -> dict[str, PairedComparison]:
    """Test whether two systems differ significantly: two-sided paired bootstrap (Koehn, 2004).

    The p-value of a difference d is the share of samples whose difference deviates from the mean by at least |d|:
    (k + 1) / (samples + 1) for k such samples of the test set, drawn with replacement, but at least 2^(1 - n) for n
    sentences, the p-value of a sign test if one system is better in all of them. With a single sentence all samples
    are equal, and the p-value is 1.

    Args:
        baseline: Translations of the baseline.
        system: Translations of the same sentences by the other system.
        references: One or several for each sentence, the same number for all.
        samples: Number of bootstrap samples of the test set.
        language: Code of the target language, by which text is tokenized.

    Returns:
        The comparisons by "BLEU" and by "chrF2".
    """
    metrics = {"BLEU": ComposedBleu(tokenize=sacrebleu_tokenizer(language)), "chrF2": ComposedChrf()}
    return {name: _compare(metric, (baseline, system), references, samples) for name, metric in metrics.items()}


def _compare(
    metric: Metric, systems: tuple[Sequence[str], Sequence[str]], references: Sequence[Sequence[str]], samples: int
) -> PairedComparison:
    sentences = len(references)
    chosen = np.random.default_rng(_SEED).choice(sentences, (samples, sentences))  # [samples, sentences]
    sides, sampled = [], []
    for lines in systems:
        # sacreBLEU has no public way to score samples without counting n-grams anew for each.
        counts = np.array(metric._extract_corpus_statistics(lines, _streams(references)), dtype=float)
        whole, *scores = (
            metric._compute_score_from_stats(counts[rows].sum(0).tolist()).score
            for rows in (np.arange(sentences), *chosen)
        )
        ordered, outside = np.sort(scores), samples // 40
        confidence = (ordered[-1 - outside] - ordered[outside]) / 2
        sides.append(ResampledScore(whole, float(np.mean(scores)), float(confidence)))
        sampled.append(np.array(scores))
    baseline, system = sides
    differences = sampled[1] - sampled[0]
    deviates = np.abs(differences - differences.mean()) >= abs(system.score - baseline.score)
    p_value = max((int(deviates.sum()) + 1) / (samples + 1), 2.0 ** (1 - sentences))
    signature = metric.get_signature()
    signature.update("seed", str(_SEED))
    signature.update("bs", samples)
    return PairedComparison(p_value, signature.format(), baseline, system)


def _streams(references: Sequence[str] | Sequence[Sequence[str]]) -> list[list[str]]:
    """References in sacreBLEU's order: the first of every sentence, then the second of every sentence, and so on."""
    alternatives = [[texts] if isinstance(texts, str) else texts for texts in references]
    return [list(stream) for stream in zip(*alternatives, strict=True)]

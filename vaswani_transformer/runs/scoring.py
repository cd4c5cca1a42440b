"""Scoring of models: on test sets, on part of the validation corpus, and by several searches."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from accelerate import PartialState
from datasets import Dataset
from rich.table import Table
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from ..data.cleaning import encode_corpus
from ..data.corpora import evenly_spaced, sentences
from ..data.prepared_directory import TrainingData
from ..decoding.line_translation import as_one_line
from ..decoding.translation import best_translations, translate_corpus
from ..evaluation.confidence import ConfidenceReport, measure_confidence
from ..evaluation.perplexity import Perplexity, perplexity
from ..evaluation.robustness import Robustness, robustness
from ..evaluation.scores import (
    ComposedBleu,
    Scores,
    paired_bootstrap,
    sacrebleu_score,
    sacrebleu_tokenizer,
    score_translations,
    two_sided_bootstrap,
)
from ..evaluation.test_sets import TestSet
from ..model.languages_vaswani import Directions, has_words, writes_spaces
from ..model.scores_vaswani import TranslationScore
from ..model.tokenization_vaswani import encodes_targets
from ..system.console import PlainConsole
from ..system.files import locked
from .plots import plot_bleu_by_source_length, plot_confidence, plot_robustness, plot_sweep
from .records import Provenance, ScoredTestSet, ScoreRecord


# The translations of the first and the second system.
_TRANSLATIONS = ("translations.txt", "translations.compare.txt")
_PLOTS = ("bleu_by_source_length.png", "sweep.png", "confidence.png", "robustness.png")


@dataclass(frozen=True)
class BeamSearch:
    """Options of a beam search (6.1)."""

    num_beams: int
    length_penalty: float


@dataclass(frozen=True)
class Translations:
    """Translations of a test set by one search of a model, or from a file.

    Attributes:
        lines: The translations, without line ends.
        search, seconds: The search and its duration; None for a file.
        log_probabilities: Log-probability of each translation, if requested.
    """

    lines: list[str]
    search: BeamSearch | None = None
    seconds: float | None = None
    log_probabilities: list[TranslationScore] | None = None

    def score(self, test_set: TestSet, perplexity: Perplexity | None = None) -> Scores:
        """Score the translations; `perplexity` is the model's."""
        scores = score_translations(self.lines, test_set.references, test_set.languages, test_set.sources)
        search = vars(self.search) if self.search else {}
        return replace(scores, perplexity=perplexity, seconds=self.seconds, **search)


def search_grid(
    default: GenerationConfig, num_beams: Sequence[int] | None = None, length_penalties: Sequence[float] | None = None
) -> list[BeamSearch]:
    """The searches with each number of beams and each alpha (6.1); None means the model's default."""
    beams = num_beams or [default.num_beams or 1]
    alphas = length_penalties or [1.0 if default.length_penalty is None else default.length_penalty]
    return [BeamSearch(number, alpha) for number in beams for alpha in alphas]


def translate_test_set(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    test_set: TestSet,
    search: BeamSearch,
    tokens_per_batch: int = 4096,
    return_scores: bool = False,
) -> Translations:
    """Translate a test set; `return_scores` also adds the log-probabilities. Collective."""
    options = {**vars(search), "target_language": test_set.languages[1], "return_scores": return_scores}
    started = time.perf_counter()
    translations = best_translations(model, tokenizer, test_set.sources, tokens_per_batch=tokens_per_batch, **options)
    seconds = time.perf_counter() - started
    scores = [each.score for each in translations] if return_scores else None
    # One line each, so that the written file has the same scores.
    lines = [as_one_line(each.text) for each in translations]
    return Translations(lines, search, seconds, scores)


def reference_perplexity(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, test_set: TestSet, tokens_per_batch: int
) -> Perplexity | None:
    """Perplexity of the first references; None if the tokenizer cannot encode them. Collective."""
    if not encodes_targets(tokenizer):
        return None
    source, target = test_set.languages
    pairs = zip(test_set.sources, test_set.references, strict=True)
    corpus = Dataset.from_list([{"translation": {source: text, target: texts[0]}} for text, texts in pairs])
    tag = Directions(model.config).tag(source, target)
    encoded = encode_corpus(corpus, tokenizer, source, target, source_tag=tag)
    return perplexity(model, tokenizer, encoded, tokens_per_batch)


def measure_robustness(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    test_set: TestSet,
    search: BeamSearch,
    lines: int,
    tokens_per_batch: int = 4096,
) -> Robustness:
    """Measure a model's robustness on `lines` lines of a test set for each change. Collective."""

    def translate(texts: list[str]) -> list[str]:
        # Lines with the same tokens are translated once, such as those that differ in what the tokenizer normalizes. A
        # line without words is copied with all its characters.
        encoded = tokenizer([text.strip() for text in texts]).input_ids
        tokens = [tuple(ids) if has_words(text) else text for text, ids in zip(texts, encoded, strict=True)]
        distinct = dict(zip(tokens, texts, strict=True))
        translated = translate_test_set(
            model, tokenizer, replace(test_set, sources=[*distinct.values()]), search, tokens_per_batch
        )
        translations = dict(zip(distinct, translated.lines, strict=True))
        return [translations[each] for each in tokens]

    return robustness(test_set.sources, test_set.references, test_set.languages, translate, lines)


def score_systems(
    systems: Mapping[str, Sequence[Translations]],
    perplexities: Mapping[str, Perplexity | None],
    test_set: TestSet,
    run: Provenance,
) -> tuple[ScoreRecord, dict[str, list[str]]]:
    """Score one or two systems, by name, given the translations by their searches and the perplexities of models.

    Returns:
        The record, and each system's translations by its best search according to the paper's BLEU; according to
        sacreBLEU in languages without spaces between words.
    """
    source, target = test_set.languages
    best, lines, sweep, comparison = {}, {}, None, None
    for name, searches in systems.items():
        chosen = searches[0]
        if len(searches) > 1:  # without sources, since groups of lengths and pathologies take time
            sweep = [each.score(replace(test_set, sources=None)) for each in searches]
            bleus = [(each.paper_bleu.score, each.bleu.score) for each in sweep]
            # The paper's BLEU takes a text without spaces as one word.
            chosen = searches[bleus.index(max(bleus, key=lambda both: both if writes_spaces(target) else both[::-1]))]
        best[name], lines[name] = chosen.score(test_set, perplexities.get(name)), chosen.lines
    if len(lines) > 1:
        baseline, system = lines.values()
        comparison = paired_bootstrap(baseline, system, test_set.references, language=target)
    record = ScoreRecord(
        run=run,
        test_set=ScoredTestSet(
            name=test_set.name,
            lines=len(test_set.references),
            newstest2014=test_set.newstest2014,
            references=len(test_set.references[0]),
            source_language=source,
            target_language=target,
        ),
        systems=best,
        sweep=sweep,
        paired_bootstrap=comparison,
        confidence=_confidence(next(iter(systems.values()))[0], test_set),
    )
    return record, lines


def _confidence(translations: Translations, test_set: TestSet) -> ConfidenceReport | None:
    """Measure the confidence of translations from their log-probabilities; None without them."""
    if translations.log_probabilities is None:
        return None
    rows = zip(translations.log_probabilities, translations.lines, test_set.references, strict=True)
    translated = [row for row in rows if row[0].tokens]  # the model does not translate lines without words
    scores, lines, references = zip(*translated, strict=True)
    return measure_confidence([score.mean for score in scores], lines, references, [score.tokens for score in scores])


def lock_evaluation(directory: Path, overwrite: bool, exit_stack: ExitStack) -> None:
    """Lock the output directory of an evaluation; one with an earlier evaluation or a model needs `--overwrite`."""
    exit_stack.enter_context(locked(directory, "output_dir"))
    for name in ("results.json", "config.json"):
        if (directory / name).exists() and not overwrite:
            raise FileExistsError(
                f"output_dir: {directory} has a {name}; choose another, or replace files with --overwrite"
            )


def write_scores(directory: Path, record: ScoreRecord, translations: Mapping[str, Sequence[str]]) -> None:
    """Write the models' translations, plots and `results.json`, replacing an earlier evaluation."""
    for name in ("results.json", *_TRANSLATIONS, *_PLOTS):  # the mark of a complete evaluation first
        (directory / name).unlink(missing_ok=True)
    for (system, scores), name in zip(record.systems.items(), _TRANSLATIONS, strict=False):
        if scores.num_beams is not None:
            text = "".join(line + "\n" for line in translations[system])
            (directory / name).write_text(text, encoding="utf-8")
    lengths, sweep, confidence, changes = (directory / name for name in _PLOTS)
    if groups := {name: each.by_source_length for name, each in record.systems.items() if each.by_source_length}:
        plot_bleu_by_source_length(groups, lengths)
    if record.sweep:
        plot_sweep(record.sweep, sweep)
    if record.confidence:
        plot_confidence(record.confidence, confidence)
    if record.robustness:
        plot_robustness(record.robustness, changes)
    record.save(directory / "results.json")


def show_scores(scores: Mapping[str, Scores]) -> None:
    """Print a table of scores, by the name of the corpus, model or system, and their signatures."""
    table = Table("", "sentences", "sacreBLEU", "BLEU as in the paper", "chrF2", "perplexity", title="Scores")
    for name, each in scores.items():
        numbers = each.bleu.score, each.paper_bleu and each.paper_bleu.score, each.chrf.score
        cells = ["" if number is None else f"{number:.2f}" for number in numbers]
        table.add_row(name, str(each.sentences), *cells, f"{each.perplexity.perplexity:.3f}" if each.perplexity else "")
    console = PlainConsole()
    console.print(table)
    for name, field in (("sacreBLEU", "bleu"), ("BLEU as in the paper", "paper_bleu"), ("chrF2", "chrf")):
        values = [getattr(each, field) for each in scores.values()]
        for signature in dict.fromkeys(each.signature for each in values if each):  # two, with both directions
            console.print(f"{name}: {signature}", soft_wrap=True)


def show_robustness(measured: Robustness) -> None:
    """Print the scores of changed and of unchanged lines, and the shares of copied strings."""
    console = PlainConsole()
    scores = ("sacreBLEU", "unchanged", "chrF2", "unchanged", "same translation")
    table = Table("change of the source", "lines", *scores, title="Robustness")
    for name, each in measured.changes.items():
        cells = map("{:.2f}".format, (each.bleu, each.plain_bleu, each.chrf, each.plain_chrf))
        table.add_row(name, str(each.lines), *cells, f"{each.same / each.lines:.1%}")
    console.print(table)
    table = Table("strings to copy", "lines", "copied", title="Copies")
    for kind, copies in measured.strings.items():
        table.add_row(kind, str(copies.lines), f"{copies.copied / copies.lines:.1%}")
    console.print(table)


@dataclass(frozen=True)
class ValidationBleu:
    """sacreBLEU of the translations of some sentences.

    Attributes:
        sources: Sentences to translate.
        references: Their reference translations, not tokenized.
        language: Code of the target language.
        tokenizer: Tokenizer of the model.
        num_beams: Beams of the search (6.1); None for the model's generation_config.
    """

    sources: Sequence[str]
    references: Sequence[str]
    language: str
    tokenizer: PreTrainedTokenizerBase
    num_beams: int | None = None

    @classmethod
    def on_sample(cls, data: TrainingData, config: PreTrainedConfig, count: int, num_beams: int | None = None) -> Self:
        """BLEU of `count` sentences of the validation corpus, evenly spaced."""
        corpus = data.text["validation"]
        sample = corpus.select(evenly_spaced(len(corpus), count))
        languages = config.source_language, config.target_language
        source, reference = (list(sentences(sample, [language])) for language in languages)
        return cls(source, reference, config.target_language, data.tokenizer, num_beams)

    def __call__(self, model: PreTrainedModel) -> float:
        """BLEU of a model, from 0 to 100; it translates by `translate`."""
        return self.score(self.translate(model, show_progress=False))

    def score(self, lines: Sequence[str]) -> float:
        """BLEU of translations, from 0 to 100."""
        return sacrebleu_score(lines, self.references, self.language).score

    def translate(self, model: PreTrainedModel, **options: Any) -> list[str]:
        """Translate the sentences, with options of `best_translations`.

        Collective: the processes share the sentences, and all return the same result. The model computes on its
        device, and is in evaluation mode afterwards.
        """
        if self.num_beams is not None:
            options["num_beams"] = self.num_beams
        return translate_corpus(model, self.tokenizer, self.sources, target_language=self.language, **options)


def choose_length_penalty(model: PreTrainedModel, penalties: Sequence[float], data: TrainingData) -> float:
    """The first alpha (6.1), unless another has a significantly better BLEU on the validation set. Collective.

    Significant means p < 0.05 after multiplying by the number of the others (Bonferroni). A single alpha is not tested.
    """
    first = chosen = penalties[0]
    if len(penalties) == 1:
        return first
    bleu = ValidationBleu.on_sample(data, model.config, len(data.text["validation"]))
    is_main = PartialState().is_main_process
    if is_main:
        alphas = ", ".join(f"{alpha:g}" for alpha in penalties)
        print(f"translating {len(bleu.sources):,} validation sentences with each length_penalty: {alphas}", flush=True)
    outputs, scores = {}, {}
    for alpha in penalties:
        outputs[alpha] = bleu.translate(model, length_penalty=alpha)
        scores[alpha] = bleu.score(outputs[alpha])
        if is_main:
            print(f"length_penalty {alpha:g}: {scores[alpha]:.2f} validation BLEU", flush=True)
    best, comparison = max(scores, key=scores.__getitem__), ""
    if best != first:
        references = [[line] for line in bleu.references]
        metric = ComposedBleu(tokenize=sacrebleu_tokenizer(bleu.language))
        p_value = (len(outputs) - 1) * two_sided_bootstrap(metric, outputs[first], outputs[best], references, 1000)
        chosen = best if p_value < 0.05 else first
        comparison = f"; {best:g} against {first:g}: p = {min(1.0, p_value):.3f}"
    if is_main:
        measured = ", ".join(f"{alpha:g}: {score:.2f}" for alpha, score in scores.items())
        print(f"length_penalty {chosen:g}; validation BLEU by length_penalty: {measured}{comparison}", flush=True)
    return chosen

"""Scoring of models and of files of translations on a test set: by several searches, and beside another system."""

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.cleaning import encode_corpus
from ..decoding.line_translation import as_one_line
from ..decoding.translation import best_translations
from ..evaluation.confidence import ConfidenceReport, measure_confidence
from ..evaluation.perplexity import Perplexity, perplexity
from ..evaluation.robustness import Robustness, robustness
from ..evaluation.scores import Scores, paired_bootstrap, score_translations
from ..evaluation.test_sets import TestSet
from ..model.languages_vaswani import Directions, has_words, writes_spaces
from ..model.scores_vaswani import TranslationScore, encodes_targets
from ..system.console import PlainConsole
from ..system.files import locked
from .plots import plot_bleu_by_source_length, plot_confidence, plot_robustness
from .records import Provenance, ScoredTestSet, ScoreRecord


# The translations of the first and the second system.
_TRANSLATIONS = ("translations.txt", "translations.compare.txt")
_PLOTS = ("bleu_by_source_length.png", "confidence.png", "robustness.png")


@dataclass(frozen=True)
class Translations:
    """Translations of a test set by one search of a model, or from a file.

    Attributes:
        lines: The translations, without line ends.
        search, seconds: Keywords of `generate` for the search, and its duration; None for a file.
        log_probabilities: Log-probability of each translation, if requested.
    """

    lines: list[str]
    search: Mapping[str, Any] | None = None
    seconds: float | None = None
    log_probabilities: list[TranslationScore] | None = None

    def score(self, test_set: TestSet, perplexity: Perplexity | None = None) -> Scores:
        """Score the translations; `perplexity` is the model's."""
        scores = score_translations(self.lines, test_set.references, test_set.languages, test_set.sources)
        return replace(scores, perplexity=perplexity, seconds=self.seconds, **(self.search or {}))


def beam_searches(
    model: PreTrainedModel, num_beams: Sequence[int] | None = None, length_penalties: Sequence[float] | None = None
) -> list[dict[str, Any]]:
    """Keywords of `generate` for each number of beams and each alpha (6.1), by default the generation_config's."""
    config = model.generation_config
    numbers = num_beams or [config.num_beams or 1]
    alphas = length_penalties or [1.0 if config.length_penalty is None else config.length_penalty]
    return [{"num_beams": number, "length_penalty": alpha} for number in numbers for alpha in alphas]


def translate_test_set(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    test_set: TestSet,
    search: Mapping[str, Any] | None = None,
    return_scores: bool = False,
    **options: Any,
) -> Translations:
    """Translate a test set, with options of `best_translations`. Collective.

    The `search` is one of `beam_searches`, by default the model's own. `return_scores` also adds the log-probabilities.
    """
    search = search or beam_searches(model)[0]
    options |= {**search, "target_language": test_set.languages[1], "return_scores": return_scores}
    started = time.perf_counter()
    translations = best_translations(model, tokenizer, test_set.sources, **options)
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
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, test_set: TestSet, lines: int, **options: Any
) -> Robustness:
    """Measure a model's robustness on `lines` lines of a test set for each change. Collective.

    It translates with `options` of `translate_test_set`.
    """

    def translate(texts: list[str]) -> list[str]:
        # Lines with the same tokens are translated once, such as those that differ in what the tokenizer normalizes. A
        # line without words is copied with all its characters.
        encoded = tokenizer([text.strip() for text in texts]).input_ids
        tokens = [tuple(ids) if has_words(text) else text for text, ids in zip(texts, encoded, strict=True)]
        distinct = dict(zip(tokens, texts, strict=True))
        chosen = replace(test_set, sources=[*distinct.values()])
        translated = translate_test_set(model, tokenizer, chosen, **options)
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
    lengths, confidence, changes = (directory / name for name in _PLOTS)
    if groups := {name: each.by_source_length for name, each in record.systems.items() if each.by_source_length}:
        plot_bleu_by_source_length(groups, lengths)
    if record.confidence:
        plot_confidence(record.confidence, confidence)
    if record.robustness:
        plot_robustness(record.robustness, changes)
    record.save(directory / "results.json")


def show_scores(scores: Mapping[str, Scores]) -> None:
    """Print a table of scores, by the name of the corpus, model or system, and their signatures."""
    rows = []
    for name, each in scores.items():
        numbers = each.bleu.score, each.paper_bleu and each.paper_bleu.score, each.chrf.score
        cells = ["" if number is None else f"{number:.2f}" for number in numbers]
        rows.append([name, str(each.sentences), *cells, f"{each.perplexity.perplexity:.3f}" if each.perplexity else ""])
    console = PlainConsole()
    header = ("", "sentences", "sacreBLEU", "BLEU as in the paper", "chrF2", "perplexity")
    console.print_table(header, rows, title="Scores")
    for name, field in (("sacreBLEU", "bleu"), ("BLEU as in the paper", "paper_bleu"), ("chrF2", "chrf")):
        values = [getattr(each, field) for each in scores.values()]
        for signature in dict.fromkeys(each.signature for each in values if each):  # two, with both directions
            console.print(f"{name}: {signature}", soft_wrap=True)


def show_robustness(measured: Robustness) -> None:
    """Print the scores of changed and of unchanged lines, and the shares of copied strings."""
    console, rows = PlainConsole(), []
    for name, each in measured.changes.items():
        cells = map("{:.2f}".format, (each.bleu, each.plain_bleu, each.chrf, each.plain_chrf))
        rows.append([name, str(each.lines), *cells, f"{each.same / each.lines:.1%}"])
    header = ("change of the source", "lines", "sacreBLEU", "unchanged", "chrF2", "unchanged", "same translation")
    console.print_table(header, rows, title="Robustness")
    rows = [[kind, str(each.lines), f"{each.copied / each.lines:.1%}"] for kind, each in measured.strings.items()]
    console.print_table(("strings to copy", "lines", "copied"), rows, title="Copies")

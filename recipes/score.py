"""Score translations by the paper's BLEU (6.1), sacreBLEU and chrF; sweep the search; compare two systems.

A model, on files or on a test set by sacreBLEU's name; or existing translations:

    python recipes/score.py --model runs/demo --source newstest2014.en.gz --reference newstest2014.de.gz
    python recipes/score.py --model runs/demo --test_set wmt14/full
    python recipes/score.py --hypotheses runs/news.de --source news.en --reference news.de

`--confidence` measures on a development set of at least 200 sentences how quality follows from log-probabilities, and
stores it in the model's configuration. The pipeline and translate.py with `return_scores` then give each best
translation a confidence, the chrF to expect:

    python recipes/score.py --model runs/demo --source valid.en --reference valid.de --confidence

`--robustness` scores lines of the test set with small changes, such as no-break spaces or capitals, and counts how
often numbers, names, addresses, placeholders and emoji are copied:

    python recipes/score.py --model runs/demo --source test.en --reference test.de --robustness

Beams and alphas on the development set; two systems, models or files, with paired bootstrap:

    python recipes/score.py --model runs/demo --test_set wmt13 --num_beams 1 2 4 8 --length_penalty 0.0 0.3 0.6 0.9
    accelerate launch recipes/score.py --model runs/big --compare runs/base --test_set wmt14/full

The output directory then has `results.json`, `translations.txt`, `bleu_by_source_length.png` and, if requested,
`confidence.png` and `robustness.png`. The translations are from the search with the highest BLEU as in the paper, in
languages without spaces between words with the highest sacreBLEU.
"""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from accelerate import PartialState
from rich.text import Text
from transformers import PreTrainedConfig

from vaswani_transformer.data.corpus_languages import choose_languages, language_in_name
from vaswani_transformer.decoding.saved_model import SavedModel, open_model
from vaswani_transformer.evaluation.confidence import LEAST_SENTENCES, ConfidenceReport
from vaswani_transformer.evaluation.multi_bleu import paper_tokenizer
from vaswani_transformer.evaluation.pathologies import Pathologies
from vaswani_transformer.evaluation.scores import PairedComparison, Scores
from vaswani_transformer.evaluation.test_sets import TestSet, read_test_set, sacrebleu_test_set
from vaswani_transformer.model.languages_vaswani import Directions, base_language
from vaswani_transformer.options.arguments import ALPHA, BEAMS, option, refuse_unused
from vaswani_transformer.options.decoding import DecodingArguments
from vaswani_transformer.options.parser import recipe_options
from vaswani_transformer.runs.provenance import describe_run
from vaswani_transformer.runs.records import ScoreRecord
from vaswani_transformer.runs.scoring import (
    Translations,
    beam_searches,
    lock_evaluation,
    measure_robustness,
    reference_perplexity,
    score_systems,
    show_robustness,
    show_scores,
    translate_test_set,
    write_scores,
)
from vaswani_transformer.system.console import PlainConsole
from vaswani_transformer.system.messages import printable
from vaswani_transformer.system.processes import on_main_process


@dataclass
class EvaluationArguments(DecodingArguments):
    """Options of score.py."""

    model: str | None = option(None, "Directory of a saved model, or its name on the Hub.")
    hypotheses: str | None = option(None, "Translations to score, instead of a model's.")
    compare: str | None = option(None, "A second system: a file of translations, or a model; for paired bootstrap.")
    source: str | None = option(None, "Source sentences (plain, .gz, .bz2, .xz, .zst).")
    reference: list[str] | None = option(None, "Their translations; several files if each sentence has several.")
    test_set: str | None = option(None, "Test set by sacreBLEU's name, such as wmt14/full, instead of files.")
    source_language: str | None = option(None, "Code of the source language; by default the model's or the suffix'.")
    target_language: str | None = option(None, "Code of the target language; by default the model's or the suffix'.")
    num_beams: list[int] | None = option(
        None, "Beams (6.1), one number or several; by default the model's generation_config.", BEAMS
    )
    length_penalty: list[float] | None = option(
        None, "Alpha of 6.1, one or several; by default the model's generation_config.", ALPHA
    )
    confidence: bool = option(
        False, "Measure, on 200 sentences or more, how log-probabilities predict quality, and store it with the model."
    )
    robustness: bool = option(False, "Score 200 lines with small changes, and count copied strings; first search only.")
    output_dir: str = option("runs/evaluation", "Directory for all results.")
    overwrite: bool = option(False, "Replace an earlier evaluation there.")

    def __post_init__(self) -> None:
        if (self.model is None) == (self.hypotheses is None):
            raise ValueError("model, hypotheses: give exactly one, a saved model or a file of translations")
        if (self.test_set is None) != bool(self.reference) or (self.test_set and self.source):
            raise ValueError("test_set, reference: give the name of a test set, or files: --source and --reference")
        if self.models and self.test_set is None and self.source is None:
            raise ValueError("source: give the sentences to translate")
        if self.confidence:
            advice = "a model keeps the confidence of its own search; leave out this option or --confidence"
            refuse_unused(self, dict.fromkeys(("hypotheses", "compare", "num_beams", "length_penalty"), advice))
        if self.hypotheses is not None:
            refuse_unused(self, {"robustness": "it needs a --model"})
        if self.compare is not None and len({*map(Path, self.systems)}) == 1:
            raise ValueError("compare: is the first system itself; name another")
        if self.compare is not None and max(len(self.num_beams or []), len(self.length_penalty or [])) > 1:
            raise ValueError("compare: both systems search with the same options; give one number of beams, one alpha")

    @property
    def systems(self) -> list[str]:
        return [name for name in (self.model or self.hypotheses, self.compare) if name is not None]

    @property
    def models(self) -> list[str]:
        """The systems that are models, not files of translations."""
        return [
            name for name in (self.model, self.compare) if name and (name == self.model or not Path(name).is_file())
        ]


def main() -> None:
    with recipe_options(EvaluationArguments, "repeat the command") as args, ExitStack() as exit_stack:
        run(args, exit_stack)


def run(args: EvaluationArguments, exit_stack: ExitStack) -> None:
    directory, is_main = Path(args.output_dir), PartialState().is_main_process
    on_main_process(lambda: lock_evaluation(directory, args.overwrite, exit_stack))
    models = {}
    for name in args.models:
        option = "model" if name == args.model else "compare"
        models[name] = open_model(name, option=option, task="translation", trust_remote_code=args.trust_remote_code)
    test_set = open_test_set(args, [saved.config for saved in models.values()])
    if args.confidence:
        models[args.model].require_updatable("a confidence_curve")
        if (sentences := sum(1 for line in test_set.sources if line.strip())) < LEAST_SENTENCES:
            raise ValueError(f"confidence: needs {LEAST_SENTENCES} sentences at least, not {sentences}")
    systems = {name: [Translations(test_set.read_hypotheses(name))] for name in args.systems if name not in models}
    if is_main:
        directory.mkdir(parents=True, exist_ok=True)
        print(printable(str(test_set)), flush=True)
    perplexities, robustness = {}, None
    for name, saved in models.items():
        model = saved.load_to_decode(args.precision)
        perplexities[name] = reference_perplexity(model, saved.tokenizer, test_set, args.tokens_per_batch)
        searches = beam_searches(model, args.num_beams, args.length_penalty)
        options = {"tokens_per_batch": args.tokens_per_batch}
        systems[name] = [
            translate_test_set(model, saved.tokenizer, test_set, search, args.confidence, **options)
            for search in searches
        ]
        if args.robustness and name == args.model:
            robustness = measure_robustness(model, saved.tokenizer, test_set, lines=200, search=searches[0], **options)
    if is_main:
        in_order = {name: systems[name] for name in args.systems}
        record, translations = score_systems(in_order, perplexities, test_set, describe_run())
        record = replace(record, robustness=robustness)
        write_scores(directory, record, translations)
        show(record, test_set.sources, translations)
        if args.confidence:
            keep_curve(models[args.model], record)


def open_test_set(args: EvaluationArguments, configs: list[PreTrainedConfig]) -> TestSet:
    """The test set, in the languages of the options, the models or the suffixes of the files. Collective."""
    corpora, source = [[args.source or "-", reference] for reference in args.reference or ()], args.source_language
    if not configs and args.test_set is None:  # nothing depends on the source's language
        source = source or language_in_name(args.source or "") or "und"
    languages = choose_languages(corpora, source, args.target_language, configs, is_required=True)
    paper_tokenizer(base_language(languages[1]))  # refuses an unknown language now, not after translating
    if args.test_set is None:
        return on_main_process(lambda: read_test_set(args.source, args.reference, languages))
    return on_main_process(lambda: sacrebleu_test_set(args.test_set, languages))


def keep_curve(saved: SavedModel, record: ScoreRecord) -> None:
    """Store the curve of the confidence in the model's configuration; one for each direction, if it has several."""
    if record.confidence is None:
        raise ValueError("confidence: cannot be measured, since too few translations differ; the scores are saved")
    report = record.confidence
    if not report.predicts_quality:
        raise ValueError(
            f"confidence: nothing is stored, since log-probabilities do not predict the quality of these translations "
            f"(rank correlation {report.rank_correlation:.2f}); the scores are saved"
        )
    kept: dict[str, object] = {"confidence_curve": report.curve, "confidence_tokens": report.tokens}
    if saved.config.language_tags:
        directions = Directions(saved.config)
        tag = directions.tag(None, record.test_set.target_language)
        language = directions.languages(tag)[1]  # as the model spells it
        kept = {name: {language: value} for name, value in kept.items()}
    scores = next(iter(record.systems.values()))
    search = {"num_beams": scores.num_beams, "length_penalty": scores.length_penalty}
    if saved.config.confidence_search not in (None, search):
        # Other directions were measured with another search.
        saved.update_config(confidence_curve=None, confidence_tokens=None)
    saved.update_config(**kept, confidence_search=search)


def show(record: ScoreRecord, sources: list[str] | None, translations: dict[str, list[str]]) -> None:
    console, first = PlainConsole(), next(iter(record.systems.values()))
    show_scores(record.systems)
    for name, scores in record.systems.items():
        if scores.pathologies is not None:
            show_pathologies(console, name, scores.pathologies, sources, translations[name])
    if first.pathologies and not first.pathologies.knows_lengths:
        console.print(
            "WARNING: the sources do not predict the lengths of the references, so that truncated translations go "
            "unnoticed; check that line n of one file translates line n of the other",
            soft_wrap=True,
        )
    if record.sweep:
        show_sweep(console, record.sweep, first)
    if record.paired_bootstrap:
        show_comparison(console, record.paired_bootstrap)
    if record.confidence:
        show_confidence(console, record.confidence)
    if record.robustness:
        show_robustness(record.robustness)


def show_confidence(console: PlainConsole, report: ConfidenceReport) -> None:
    rows = [(f"{each.confidence:.1f}", f"{each.chrf:.1f}", str(each.sentences)) for each in report.bins]
    console.print_table(("confidence", "chrF", "sentences"), rows, title="Confidence, by tenths of the translations")
    remaining = ", ".join(f"{float(share):.0%} {chrf:.1f}" for share, chrf in report.remaining.items())
    lowest, highest = report.curve[0][0], report.curve[-1][0]
    fewest, most = report.tokens
    console.print(
        f"calibration error {report.calibration_error:.1f} chrF, rank correlation {report.rank_correlation:.2f}\n"
        f"chrF without the least confident: {remaining}\n"
        f"measured from {lowest:.2f} to {highest:.2f} of log-probability a token, and for translations of {fewest} to "
        f"{most} tokens"
    )


def show_pathologies(
    console: PlainConsole, name: str, pathologies: Pathologies, sources: list[str], translations: list[str]
) -> None:
    rows = []
    for kind, lines in pathologies.lines.items():
        rows.append([kind, f"{pathologies.shares[kind]:.1f} %"])
        rows += [["", "", str(line), sources[line - 1], translations[line - 1]] for line in lines[:3]]
    header = ("pathology", "sentences", "line", "source", "translation")
    console.print_table(header, rows, title=f"Pathologies of {name}")


def show_sweep(console: PlainConsole, searches: list[Scores], best: Scores) -> None:
    rows = []
    for each in searches:
        is_best = (each.num_beams, each.length_penalty) == (best.num_beams, best.length_penalty)
        scores = [f"{metric.score:.2f}" for metric in (each.bleu, each.paper_bleu, each.chrf)]
        length, seconds = f"{each.paper_bleu.relative_length:.3f}", f"{each.seconds:.1f}"
        cells = (str(each.num_beams), f"{each.length_penalty:g}", *scores, length, seconds)
        rows.append([Text(cell, "bold" if is_best else "") for cell in cells])
    header = ("beams", "alpha", "sacreBLEU", "BLEU as in the paper", "chrF2", "length", "seconds")
    console.print_table(header, rows, title="Search")


def show_comparison(console: PlainConsole, comparison: dict[str, PairedComparison]) -> None:
    rows = []
    for name, metric in comparison.items():
        sides = (metric.baseline, metric.system)
        scores = [f"{side.score:.2f} ({side.mean:.2f} ± {side.confidence:.2f})" for side in sides]
        rows.append([name, *scores, f"{metric.two_sided_p_value:.4f}"])
    header = ("", "first system", "second system", "two-sided p")
    console.print_table(header, rows, title="Paired bootstrap")


if __name__ == "__main__":
    main()

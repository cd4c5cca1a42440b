"""Score translations by the paper's BLEU (6.1), sacreBLEU and chrF; sweep the search; compare two systems.

A model, on files or on a test set by sacreBLEU's name; or existing translations:

    python recipes/score.py --model runs/demo --source newstest2014.en.gz --reference newstest2014.de.gz
    python recipes/score.py --model runs/demo --test_set wmt14/full
    python recipes/score.py --hypotheses runs/news.de --source news.en --reference news.de

Beams and alphas on the development set; two systems, models or files, with paired bootstrap:

    python recipes/score.py --model runs/demo --test_set wmt13 --num_beams 1 2 4 8 --length_penalty 0.0 0.3 0.6 0.9
    accelerate launch recipes/score.py --model runs/big --compare runs/base --test_set wmt14/full

The output directory then holds `results.json`, `translations.txt`, `bleu_by_source_length.png` and, after a sweep,
`sweep.png`. The translations are from the search with the highest BLEU of the paper's kind. If a process dies or is
stopped, all end after `--timeout_minutes`.
"""

import itertools
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from accelerate import PartialState
from rich.table import Table
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vaswani_transformer.arguments import RecipeParser
from vaswani_transformer.console import PlainConsole, printable
from vaswani_transformer.data import encode_corpus, load_parallel_corpus
from vaswani_transformer.data.corpora import read_lines
from vaswani_transformer.evaluation import (
    PairedComparison,
    Perplexity,
    bleu_by_source_length,
    newstest2014_variant,
    paired_bootstrap,
    perplexity,
    sacrebleu_files,
    score_translations,
    translate_corpus,
)
from vaswani_transformer.evaluation.multi_bleu import paper_tokenizer
from vaswani_transformer.experiments import ScoreRecord, plot_bleu_by_source_length, plot_sweep
from vaswani_transformer.experiments.records import SearchScores, SystemScores, TestSetFacts
from vaswani_transformer.files import make_directory
from vaswani_transformer.hub import describe_run
from vaswani_transformer.saved_model import SavedModel, open_model
from vaswani_transformer.training import joined_processes, keep_freed_memory


@dataclass
class EvaluationArguments:
    """What to score, on which test set, and how a model searches."""

    model: str | None = field(default=None, metadata={"help": "Directory of a saved model, or its name on the Hub."})
    hypotheses: str | None = field(default=None, metadata={"help": "Translations to score, instead of a model's."})
    compare: str | None = field(
        default=None, metadata={"help": "A second system: a file of translations, or a model; for paired bootstrap."}
    )
    source: str | None = field(default=None, metadata={"help": "Source sentences (plain, .gz, .xz)."})
    reference: list[str] | None = field(
        default=None, metadata={"help": "Their translations; several files if each sentence has several."}
    )
    test_set: str | None = field(
        default=None, metadata={"help": "Test set by sacreBLEU's name, such as wmt14/full, instead of files."}
    )
    source_language: str = field(default="en", metadata={"help": "Code of the language to translate from."})
    target_language: str = field(default="de", metadata={"help": "Code of the language to translate into."})
    num_beams: list[int] | None = field(
        default=None, metadata={"help": "Beams (6.1), one number or several; by default the model's own setting."}
    )
    length_penalty: list[float] | None = field(
        default=None, metadata={"help": "Alpha of 6.1, one or several; by default the model's own setting."}
    )
    tokens_per_batch: int = field(
        default=4096,
        metadata={"help": "Source tokens of a batch, padding included; its beams may generate 16 times as many."},
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = field(
        default="auto", metadata={"help": "Precision of the model; 'auto' is what it was saved in."}
    )
    timeout_minutes: float = field(
        default=10.0,
        metadata={"help": "Minutes without a heartbeat of one of several processes after which all end."},
    )
    trust_remote_code: bool = field(
        default=False, metadata={"help": "Run code that comes with a model; only if you trust its author."}
    )
    output_dir: str = field(default="runs/evaluation", metadata={"help": "Where everything is written."})
    overwrite: bool = field(default=False, metadata={"help": "Replace an earlier evaluation there."})

    def __post_init__(self) -> None:
        if (self.model is None) == (self.hypotheses is None):
            raise ValueError("model, hypotheses: give one of them, a saved model or a file of translations")
        if self.test_set is None and self.reference is None:
            raise ValueError("reference: give it, or the name of a test set as --test_set")
        if self.test_set is not None and (self.source or self.reference):
            raise ValueError("test_set: it has its own source and reference; leave out --source and --reference")
        if self.compare == self.systems[0]:
            raise ValueError(f"compare: {self.compare} is the first system too; give another")
        if self.models and self.test_set is None and self.source is None:
            raise ValueError("source: give the sentences to translate")
        self._check_search()

    def _check_search(self) -> None:
        for number in self.num_beams or []:
            if not isinstance(number, int) or number < 1:
                raise ValueError(f"num_beams: must be whole numbers of at least 1, one is {number!r}")
        for alpha in self.length_penalty or []:
            if not isinstance(alpha, int | float) or not math.isfinite(alpha):
                raise ValueError(f"length_penalty: must be numbers, one is {alpha!r}")
        if self.tokens_per_batch < 1:
            raise ValueError(f"tokens_per_batch: must be at least 1, is {self.tokens_per_batch}")
        given = [name for name in ("num_beams", "length_penalty") if getattr(self, name)]
        if given and not self.models:
            raise ValueError(f"{given[0]}: there is no model that searches, only translations; leave it out")
        if self.compare is not None and any(len(getattr(self, name)) > 1 for name in given):
            raise ValueError("compare: both systems search with the same settings; give one number of beams, one alpha")

    @property
    def systems(self) -> list[str]:
        return [name for name in (self.model or self.hypotheses, self.compare) if name is not None]

    @property
    def models(self) -> list[str]:
        """The systems that are models, not files of translations."""
        return [name for name in self.systems if name != self.hypotheses and not Path(name).is_file()]


@dataclass(frozen=True)
class TestSet:
    """Lines to translate and score.

    Attributes:
        name: sacreBLEU's name, or the names of the files.
        files: The file of the source, or None, and the files of the references.
        sources: The source sentences, if they are given.
        references: One or several for each sentence, the same number for all.
        variant: Which newstest2014 it is; None for any other set.
    """

    name: str
    files: tuple[Path | None, list[Path]]
    sources: list[str] | None
    references: list[list[str]]
    variant: str | None

    def __str__(self) -> str:
        lines = f"{len(self.references):,} lines"
        if self.variant is None:
            return f"{self.name}: {lines}"
        others = "neither the full 3,003 nor the filtered 2,737: its BLEU compares with no published one"
        return f"newstest2014: {lines} ({others if self.variant == 'altered' else self.variant})"


@dataclass(frozen=True)
class Translations:
    """Translations of the test set, without line ends, and the search that found them; None for those of a file."""

    lines: list[str]
    num_beams: int | None = None
    length_penalty: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class System:
    """The translations of a system.

    Attributes:
        name: Its model, or its file of translations.
        searches: The translations of each search.
        perplexity: Perplexity of the first references; None for a file.
    """

    name: str
    searches: list[Translations]
    perplexity: Perplexity | None


def main() -> None:
    (args,) = RecipeParser((EvaluationArguments,)).parse()
    with joined_processes("score.py", args.timeout_minutes, "repeat the command"):
        run(args)


def run(args: EvaluationArguments) -> None:
    state = PartialState()
    require_new(args)
    paper_tokenizer(args.target_language)  # refuses an unknown language now, not after translating
    with state.main_process_first():
        test_set = read_test_set(args)
    ready = {name: read_hypotheses(name, test_set) for name in args.systems if name not in args.models}
    for name in args.models:
        open_system(name, args)
    if state.is_main_process:
        make_directory("output_dir", args.output_dir)
        print(printable(str(test_set)), flush=True)
    systems = [ready[name] if name in ready else translate(name, test_set, args) for name in args.systems]
    if state.is_main_process:
        record, translations = score(systems, test_set, args)
        write(Path(args.output_dir), record, translations)
        show(record)


def require_new(args: EvaluationArguments) -> None:
    """Refuse to replace an earlier evaluation without `--overwrite`; only the main process looks, before it writes."""
    directory = Path(args.output_dir)
    if directory.exists() and not directory.is_dir():
        raise NotADirectoryError(f"output_dir: {directory} is a file; name a directory")
    if PartialState().is_main_process and (directory / "results.json").exists() and not args.overwrite:
        raise FileExistsError(
            f"output_dir: {directory} holds an evaluation already; choose another, or replace it with --overwrite"
        )


def read_test_set(args: EvaluationArguments) -> TestSet:
    """The lines of the test set; all of its files must have the same number."""
    source: Path | None
    if args.test_set is not None:
        source, references = sacrebleu_files(args.test_set, args.source_language, args.target_language)
        name = f"{args.test_set}, {args.source_language}-{args.target_language}"
    else:
        source, references = Path(args.source) if args.source else None, [Path(file) for file in args.reference]
        name = ", ".join(file.name for file in (source, *references) if file)
    streams = [read("reference", file) for file in references]
    if not streams[0]:
        raise ValueError(f"reference: {references[0]} has no lines")
    for file, stream in zip(references[1:], streams[1:], strict=True):
        require_as_many(file, stream, references[0], streams[0])
    sources = read("source", source) if source else None
    if sources is not None:
        require_as_many(source, sources, references[0], streams[0])
    sides = [streams[0]] if sources is None else [sources, streams[0]]
    alternatives = [list(texts) for texts in zip(*streams, strict=True)]
    return TestSet(name, (source, references), sources, alternatives, newstest2014_variant(name, *sides))


def read_hypotheses(name: str, test_set: TestSet) -> System:
    """A system whose translations are a file."""
    lines = read("hypotheses", Path(name))
    require_as_many(Path(name), lines, test_set.files[1][0], test_set.references)
    return System(name, [Translations(lines)], None)


def read(field_name: str, path: Path) -> list[str]:
    if not path.is_file():
        raise FileNotFoundError(f"{field_name}: there is no file {path}")
    return list(read_lines(path))


def require_as_many(path: Path, lines: Sequence[object], other: Path, others: Sequence[object]) -> None:
    if len(lines) != len(others):
        raise ValueError(
            f"{path} has {len(lines)} lines but {other} has {len(others)}; line n of one must translate line n of the "
            f"other"
        )


def open_system(name: str, args: EvaluationArguments) -> SavedModel:
    option = "model" if name == args.model else "compare"
    return open_model(name, option=option, trust_remote_code=args.trust_remote_code)


def translate(name: str, test_set: TestSet, args: EvaluationArguments) -> System:
    """Translate the test set with a model, once for each number of beams and alpha."""
    if PartialState().device.type == "cpu":
        keep_freed_memory()
    saved = open_system(name, args)
    tokenizer, model = saved.tokenizer, saved.load(args.dtype).to(PartialState().device)
    found = System(name, [], reference_perplexity(model, tokenizer, test_set, args))
    own = model.generation_config
    beams = args.num_beams or [own.num_beams or 1]
    alphas = args.length_penalty or [1.0 if own.length_penalty is None else own.length_penalty]
    for num_beams, alpha in itertools.product(beams, alphas):
        started = time.perf_counter()
        search = {"num_beams": num_beams, "length_penalty": alpha}
        texts = translate_corpus(model, tokenizer, test_set.sources, args.tokens_per_batch, **search)
        seconds = time.perf_counter() - started
        # One line each, so that the written file has the same scores.
        lines = [" ".join(text.splitlines()) for text in texts]
        found.searches.append(Translations(lines, num_beams, alpha, seconds))
    return found


def reference_perplexity(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, test_set: TestSet, args: EvaluationArguments
) -> Perplexity:
    source, references = test_set.files
    with PartialState().main_process_first():
        corpus = load_parallel_corpus([str(source), str(references[0])], args.source_language, args.target_language)
        encoded = encode_corpus(corpus, tokenizer, args.source_language, args.target_language)
    return perplexity(model, tokenizer, encoded)


def score(
    systems: list[System], test_set: TestSet, args: EvaluationArguments
) -> tuple[ScoreRecord, dict[str, list[str]]]:
    """The record to write, and the best translations of each system."""
    found, best = [], {}
    sweep: list[SearchScores] | None = None
    for system in systems:
        rows = [score_search(search, test_set, args.target_language) for search in system.searches]
        chosen = max(range(len(rows)), key=lambda place: rows[place].paper_bleu.score)
        best[system.name] = system.searches[chosen].lines
        groups = None
        if test_set.sources is not None:
            groups = bleu_by_source_length(test_set.sources, best[system.name], test_set.references)
        facts = {**vars(rows[chosen]), "by_source_length": groups}
        found.append(SystemScores(name=system.name, perplexity=system.perplexity, **facts))
        if len(rows) > 1:
            sweep = rows
    comparison = None
    if len(systems) == 2:
        baseline, other = best.values()
        comparison = paired_bootstrap(baseline, other, test_set.references)
    record = ScoreRecord(
        run=describe_run(),
        test_set=TestSetFacts(
            name=test_set.name,
            lines=len(test_set.references),
            newstest2014=test_set.variant,
            references=len(test_set.references[0]),
            source_language=args.source_language,
            target_language=args.target_language,
        ),
        systems=found,
        sweep=sweep,
        paired_bootstrap=comparison,
    )
    return record, best


def score_search(search: Translations, test_set: TestSet, language: str) -> SearchScores:
    scores = score_translations(search.lines, test_set.references, language)
    return SearchScores(
        **vars(scores), num_beams=search.num_beams, length_penalty=search.length_penalty, seconds=search.seconds
    )


def write(directory: Path, record: ScoreRecord, translations: dict[str, list[str]]) -> None:
    for system, name in zip(record.systems, ("translations.txt", "translations.compare.txt"), strict=False):
        if system.perplexity is not None:
            text = "".join(line + "\n" for line in translations[system.name])
            (directory / name).write_text(text, encoding="utf-8")
    groups = {system.name: system.by_source_length for system in record.systems if system.by_source_length}
    if groups:
        plot_bleu_by_source_length(groups, directory / "bleu_by_source_length.png")
    if record.sweep:
        plot_sweep(record.sweep, directory / "sweep.png")
    record.save(directory / "results.json")


def show(record: ScoreRecord) -> None:
    console = PlainConsole()
    table = Table("system", "sacreBLEU", "BLEU as in the paper", "chrF2", "perplexity", title="Scores")
    for system in record.systems:
        ppl = "" if system.perplexity is None else f"{system.perplexity.perplexity:.3f}"
        table.add_row(system.name, *shown_scores(system), ppl)
    console.print(table)
    first = record.systems[0]
    for name, score in (("sacrebleu", first.sacrebleu), ("paper_bleu", first.paper_bleu), ("chrf", first.chrf)):
        console.print(f"{name}: {score.signature}", soft_wrap=True)
    if record.sweep:
        show_sweep(console, record)
    if record.paired_bootstrap:
        show_comparison(console, record.paired_bootstrap)


def shown_scores(scores: SearchScores) -> list[str]:
    return [f"{each.score:.2f}" for each in (scores.sacrebleu, scores.paper_bleu, scores.chrf)]


def show_sweep(console: PlainConsole, record: ScoreRecord) -> None:
    table = Table("beams", "alpha", "sacreBLEU", "BLEU as in the paper", "chrF2", "length", "seconds", title="Search")
    best = record.systems[0]
    for row in record.sweep:
        is_best = (row.num_beams, row.length_penalty) == (best.num_beams, best.length_penalty)
        table.add_row(
            str(row.num_beams),
            f"{row.length_penalty:g}",
            *shown_scores(row),
            f"{row.paper_bleu.relative_length:.3f}",
            f"{row.seconds:.1f}",
            style="bold" if is_best else None,
        )
    console.print(table)
    if record.test_set.newstest2014:
        console.print("Choose settings on a development set, as the paper did (6.1): newstest2013, here wmt13.")


def show_comparison(console: PlainConsole, comparison: dict[str, PairedComparison]) -> None:
    table = Table("", "first system", "second system", "p-value", title="Paired bootstrap")
    for name, found in comparison.items():
        sides = (found.baseline, found.system)
        scores = [f"{side.score:.2f} ({side.mean:.2f} ± {side.confidence:.2f})" for side in sides]
        table.add_row(name, *scores, f"{found.p_value:.4f}")
    console.print(table)


if __name__ == "__main__":
    main()

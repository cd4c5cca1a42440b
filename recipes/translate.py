"""Translate a file or standard input, line by line.

From file to file, on all GPUs of a machine, and as a filter:

    python recipes/translate.py --model runs/demo --input news.en --output news.de
    accelerate launch recipes/translate.py --model runs/demo --input news.en.gz --output news.de
    head news.en | python recipes/translate.py --model runs/demo

Lines end at line feeds, and empty lines stay empty. Of a table (.jsonl, .csv, .tsv, .parquet, .tmx, or a directory of
datasets' save_to_disk), each row of `--column` is a line. Lines are translated sentence by sentence, still one line for
each line; with `--split_sentences false`, each is translated as one sentence, and if it holds several, parts may be
missing. With an output file, the same command continues after an interruption, on any number of
processes. Finished shards of `--lines_per_shard` lines are kept in `<output>.shards/`, and the output is locked, until
the output file is written. An existing output file is replaced only with `--overwrite`. Standard output gets each shard
when it is finished; it needs a single process, and cannot be continued.

An output named `.jsonl` has the pairs, in the columns that training reads: a synthetic corpus for distillation or,
from a model of the reverse direction, for back-translation. `--num_return_sequences 4` writes four lines for each line,
the best of the beam, best first. `--do_sample` draws translations instead: the same ones for the same `--seed`,
`--lines_per_shard` and `--tokens_per_batch`, on any number of processes and after any interruption.

    python recipes/translate.py --model runs/demo --input news.en --output news.jsonl --num_return_sequences 4
    python recipes/translate.py --model runs/demo --input news.en --output news.jsonl --do_sample --top_k 10

`--return_scores` adds to each pair of a `.jsonl` how probable the model finds the translation and each of its words,
natural logarithms, and the score by which the search ranks translations; `--return_alignment` these, and which word of
the source each word translates.

`--engine` names an export of the model by export.py, to CTranslate2 or ONNX, which then searches in its place; the
model itself is read for its tokenizer and languages. `--ensemble` names more models, trained with the same tokenizer
and another `--seed`, which translate together with the model: better than any of them, and as slow as all.

    python recipes/translate.py --model runs/seed-1 --ensemble runs/seed-2 --input news.en --output news.de

On many machines, whoever runs them: `--work` with an input divides it into shards of a directory that all machines see;
then any process may translate any shard, again if it was killed, and the last command writes the output.

    python recipes/translate.py --model runs/demo --input news.en --output news.de --work work --lines_per_shard 50000
    python recipes/translate.py --work work --shard 3
    python recipes/translate.py --work work --status
    python recipes/translate.py --work work --collect  # or --collect --output elsewhere.de

`--work work` alone translates all missing shards, also under accelerate launch. recipes/cluster has examples for Slurm,
Ray and datatrove.

The input is first copied into the shards, so that it may change meanwhile; finished shards are compared with digests.
If a process dies or is stopped, all of its launch end after `--timeout_minutes`; finished shards are kept.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import cast

import torch
from accelerate import PartialState
from tqdm.auto import tqdm

from vaswani_transformer.convert.engines import require_export
from vaswani_transformer.data.tables import kind_of_suffix
from vaswani_transformer.decoding.decoding_arguments import DecodingPrecision
from vaswani_transformer.decoding.line_translation import (
    TranslationOptions,
    Translator,
    input_lines,
    output_columns,
    require_input,
    require_output,
    source_column,
    split_lines,
)
from vaswani_transformer.decoding.sharded_translation import ShardedTranslation
from vaswani_transformer.launch.faults import joined_processes
from vaswani_transformer.launch.processes import is_first_to_claim, on_main_process
from vaswani_transformer.model.saved_model import SavedModel
from vaswani_transformer.options.arguments import COUNT, Interval, RecipeParser, option, require_new_file
from vaswani_transformer.training.precision import compare, fastest_precision, usable_precisions


# `--precision auto` translates so many lines in each precision, if the file has at least so many.
MEASURED_LINES, WORTH_MEASURING = 64, 2000

# Options of a command that takes the others from the directory that `work` names.
_OF_SHARDS = {"work", "shard", "status", "collect", "overwrite", "model", "timeout_minutes", "trust_remote_code"}


@dataclass
class TranslationArguments(TranslationOptions):
    """Options of translate.py."""

    model: str | None = option(None, "Directory of a saved model, or its name on the Hub.")
    input: str = option("-", "Text in UTF-8 or a table, also .gz, .bz2 or .xz, or - for standard input.")
    column: str | None = option(None, "Column of a table; by default the model's source language.")
    output: str = option("-", "File to write, or - for standard output.")
    overwrite: bool = option(False, "Replace an output file that exists.")
    lines_per_shard: int = option(2000, "Lines translated, and written, at a time.", COUNT)
    work: str | None = option(None, "Directory of shards for several commands; with --input, divide that into it.")
    shard: list[int] | None = option(
        None, "Numbers of shards of --work to translate, from 0.", Interval(minimum=0, maximum=2**31 - 1)
    )
    status: bool = option(False, "Show how far --work is.")
    collect: bool = option(False, "Write the output of --work, or --output, once all its shards are finished.")

    def __post_init__(self) -> None:
        super().__post_init__()
        acts = [name for name in ("shard", "status", "collect") if getattr(self, name) not in (None, False)]
        if acts and self.work is None:
            raise ValueError(f"{acts[0]}: is of a directory of shards; name it with --work")
        if self.takes_options_from_work:
            if not Path(str(self.work), "manifest.json").exists():
                raise ValueError(f"work: {self.work} holds no shards; divide a file into it with --input FILE")
            if len(acts) > 1:
                raise ValueError(f"{acts[1]}: is another command than --{acts[0]}; give one at a time")
            free = _OF_SHARDS | ({"output"} if self.collect else set())
            for field in fields(self):
                if field.name not in free and getattr(self, field.name) != field.default:
                    raise ValueError(f"{field.name}: was decided when {self.work} was divided; leave it out")
            return
        if acts:
            raise ValueError(f"{acts[0]}: first divide the input by a command of its own; leave --{acts[0]} out")
        if self.model is None:
            raise ValueError("model: name a saved model with --model")
        for name in ("return_scores", "return_alignment"):
            if getattr(self, name) and kind_of_suffix(Path(self.output)) != "json":
                raise ValueError(f"{name}: {self.output} has lines of text; name an output that ends in .jsonl")

    @property
    def takes_options_from_work(self) -> bool:
        """Whether the input was divided by an earlier command, whose options count."""
        return self.work is not None and self.input == "-"

    def lines(self, saved: SavedModel) -> Iterator[str]:
        """The lines of the input, read as they come."""
        return input_lines(self.input, self.column, source_column(saved.config, self.target_language))


def main() -> None:
    (args,) = RecipeParser((TranslationArguments,)).parse()
    with (
        joined_processes("translate.py", args.timeout_minutes, "repeat the command to continue"),
        ExitStack() as until_the_end,
    ):
        if args.takes_options_from_work:
            go_on_with_work(args)
        elif args.output == "-" and args.work is None:
            translate_to_standard_output(args)
        else:
            translate_to_file(args, until_the_end)


def translate_to_standard_output(args: TranslationArguments) -> None:
    saved, total = on_main_process(lambda: plan_stream(args))
    translator = Translator(saved, args)
    with tqdm(total=total, desc="Translating", unit="lines") as bar:
        for number, shard in enumerate(split_lines(args.lines(saved), args.lines_per_shard)):
            sys.stdout.buffer.writelines(translator.translate(number, shard, bar))
            sys.stdout.buffer.flush()
    translator.warn_of_long_lines()


def translate_to_file(args: TranslationArguments, until_the_end: ExitStack) -> None:
    """Divide the input into shards; without `--work`, translate the missing ones, then write the output."""
    work = on_main_process(lambda: plan_file(args, until_the_end))
    if args.work is not None:
        if PartialState().is_main_process:
            print(f"{work.folder} has {work.shards} shards, from 0; none is translated yet", file=sys.stderr)
        return
    translate_missing(work)
    if PartialState().is_main_process:
        work.collect(resolved(Path(args.output)), temporary_folder=work.folder)
        work.remove()


def go_on_with_work(args: TranslationArguments) -> None:
    """Translate shards of `--work`, show how far it is, or write its output."""
    assert args.work is not None
    work = ShardedTranslation(args.work, "work", args.model, args.trust_remote_code)
    if args.status:
        show_progress(work)
    elif args.collect:
        on_main_process(lambda: collect(work, args.output, args.overwrite))
    elif args.shard is not None:
        for number in args.shard:
            if is_first_to_claim(f"shard {number}"):
                work.translate(number)
        work.warn_of_long_lines()
    else:
        translate_missing(work)


def collect(work: ShardedTranslation, named: str, overwrite: bool) -> None:
    """Write the output, where the division named it or, as on another machine, where this command does."""
    output = work.output if named == "-" else resolved(Path(named))
    if output is not None:
        require_output(output, None)
        if (kind_of_suffix(output) == "json") != work.is_json:
            kind = (
                "JSON; name an output that ends in .jsonl" if work.is_json else "text; name an output that is no table"
            )
            raise ValueError(f"output: {output}: the shards have lines of {kind}")
        require_new_file("output", output, overwrite)
    work.collect(output)


def translate_missing(work: ShardedTranslation) -> None:
    """Each process takes the next free shard, so that all end within the time of one, however fast each of them is."""
    state = PartialState()
    missing = on_main_process(work.missing)
    if state.is_main_process and (finished := work.shards - len(missing)):
        print(f"{finished} of {work.shards} shards are finished already; continuing", file=sys.stderr)
    if missing:
        _ = work.translator  # loaded before the bar counts
        total, hidden = sum(map(work.size, missing)), not state.is_main_process
        with tqdm(total=total, desc="Translating", unit="lines", disable=hidden) as bar:
            for number in missing:
                if is_first_to_claim(f"shard {number}"):
                    work.translate(number, bar)
                else:
                    bar.update(work.size(number))
        work.warn_of_long_lines()
    state.wait_for_everyone()


def show_progress(work: ShardedTranslation) -> None:
    """Print a line for people, and the missing shards as Slurm writes an array."""
    progress = work.progress()
    done = progress.shards - len(progress.missing)
    facts = [f"{done} of {progress.shards} shards finished"]
    if progress.seconds_since is not None:
        facts.append(f"the last {progress.seconds_since / 60:.0f} minutes ago")
    if progress.lines_per_second and progress.seconds_left:
        facts.append(f"{progress.lines_per_second:.0f} lines/s, {progress.seconds_left / 60:.0f} minutes left")
    print(", ".join(facts))
    if progress.missing:
        print(f"missing: {as_ranges(progress.missing)}")


def as_ranges(numbers: list[int]) -> str:
    """Ascending numbers, such as 0,2-5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number])
    return ",".join("-".join(map(str, run)) for run in runs)


def plan_stream(args: TranslationArguments) -> tuple[SavedModel, int | None]:
    """Check the arguments, and the lines of a file, before the model is loaded; the number of lines, if it is known."""
    require_open_streams(args)
    if PartialState().num_processes > 1:
        raise ValueError("output: several processes cannot share standard output; give --output FILE")
    saved = open_models(args)
    output_columns(Path(args.output), saved.config, args.target_language)  # checks the language
    if args.input == "-":
        return saved, None
    require_input(args.input)
    return saved, sum(1 for _ in args.lines(saved))


def plan_file(args: TranslationArguments, until_the_end: ExitStack) -> ShardedTranslation:
    """Check the arguments before the model is loaded, and divide the input, or compare it with what was divided.

    The shards are locked until `until_the_end` closes.
    """
    require_open_streams(args)
    path = None if args.input == "-" else require_input(args.input)
    output = None if args.output == "-" else resolved(Path(args.output))
    if output is not None:
        require_output(output, path)
    if args.work is not None:
        work = ShardedTranslation(args.work, "work", trust_remote_code=args.trust_remote_code)
        if work.is_divided:
            raise FileExistsError(f"work: {work.folder} has an input already; leave --input out, or name another")
    else:
        assert output is not None
        folder = output.with_name(output.name + ".shards")
        work = ShardedTranslation(folder, "output", trust_remote_code=args.trust_remote_code)
    until_the_end.enter_context(work.held())
    begun = work.is_begun
    # If there are shards, an earlier run passed this check and was killed.
    if output is not None and not begun:
        require_new_file("output", output, args.overwrite)
    saved = open_models(args)
    columns = output_columns(Path(args.output), saved.config, args.target_language)
    source = work.divide(args.lines(saved), args.lines_per_shard)
    if args.precision == "auto" and args.work is None and args.engine is None:
        chosen = work.precision if begun else choose_precision(args, saved, work, source.lines)
        args.precision = cast(DecodingPrecision, chosen)
    work.begin(source, args.lines_per_shard, (args.model, saved.directory), args, columns, output)
    return work


def open_models(args: TranslationArguments) -> SavedModel:
    """Check the model, and the engine or the ensemble if there is one, before anything is loaded."""
    if args.engine is not None:
        require_export(Path(args.engine))
    saved = args.open(args.model)
    args.open_ensemble(saved)
    return saved


def choose_precision(args: TranslationArguments, saved: SavedModel, work: ShardedTranslation, lines: int) -> str:
    """The precision that translates the first lines clearly fastest; "auto" if it is that of the saved weights."""
    precisions = usable_precisions(PartialState().device)
    if lines < WORTH_MEASURING or len(precisions) == 1 or Translator(saved, args).model.dtype != torch.float32:
        return "auto"
    translators = {
        each: Translator(saved, replace(args, precision=cast(DecodingPrecision, each))) for each in precisions
    }
    sample = work.source(0)[:MEASURED_LINES]
    speeds = compare(precisions, lambda precision: translators[precision].translate(0, sample), seconds=0.5)
    chosen = fastest_precision(speeds, margin=1.15)
    measured = ", ".join(f"{name} {speed:.2f}" for name, speed in speeds.items())
    print(f"precision {chosen}; measured speed: {measured}", file=sys.stderr)
    return "auto" if chosen == "float32" else chosen


def require_open_streams(args: TranslationArguments) -> None:
    """Refuse standard input or output that is needed but closed."""
    for name, stream in (("input", sys.stdin), ("output", sys.stdout)):
        if getattr(args, name) == "-" and stream is None:
            raise ValueError(f"{name}: standard {name} is closed; name a file with --{name}")


def resolved(output: Path) -> Path:
    """The file that is replaced: what a link points to.

    Raises:
        ValueError: `output` is a directory, or a link to itself.
    """
    try:
        path = output.resolve()
    except RuntimeError:  # before Python 3.13
        raise ValueError(f"output: {output} is a link that leads back to itself; name another file") from None
    if not path.name:
        raise ValueError(f"output: {output} is a directory; name a file in it")
    return path


if __name__ == "__main__":
    main()

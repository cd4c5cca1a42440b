"""Translate a file or standard input, line by line.

From file to file, on all GPUs of a machine, and as a filter:

    python recipes/translate.py --model runs/demo --input news.en --output news.de
    accelerate launch recipes/translate.py --model runs/demo --input news.en.gz --output news.de
    head news.en | python recipes/translate.py --model runs/demo

Each row of `--column` of a table (.jsonl, .csv, .tsv, .parquet, .tmx, or a directory of datasets' save_to_disk) is a
line. Lines are translated sentence by sentence; with `--split_sentences false`, each is translated as one sentence, and
if it holds several, parts may be missing.

The same command continues after an interruption, on any number of processes: finished shards of at most
`--lines_per_shard` lines are kept in `<output>.shards/` until the output is written. Standard input and output need a
single process, and cannot be continued.

`--shard 3/100` translates the fourth of a hundred equal ranges of lines, on any machine that sees the files. The
command without it translates the ranges that are missing or damaged, and writes the output:

    python recipes/translate.py --model runs/demo --input news.en --output news.de --shard 3/100
    python recipes/translate.py --model runs/demo --input news.en --output news.de

An output named `.jsonl` has the pairs, in the columns that training reads: a synthetic corpus for distillation or, from
a model of the reverse direction, for back-translation. It may have several translations of each line, the best of the
beam or samples, with log-probabilities (`--return_scores`) and word alignments (`--return_alignment`):

    python recipes/translate.py --model runs/demo --input news.en --output news.jsonl --num_return_sequences 4
    python recipes/translate.py --model runs/demo --input news.en --output news.jsonl --do_sample --top_k 10

`--engine ctranslate2:int8` exports the model on first use, and searches with that in its place. `--ensemble` names
more models with the same tokenizer, which translate together with the model: usually better than each model alone; the
time is the sum of all models'.

    python recipes/translate.py --model runs/seed-1 --ensemble runs/seed-2 --input news.en --output news.de
"""

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import cast

import torch
from accelerate import PartialState

from vaswani_transformer.data.corpora import evenly_spaced
from vaswani_transformer.decoding.line_translation import LineTranslator, open_models, require_output, source_lines
from vaswani_transformer.decoding.sharded_translation import ShardedTranslation
from vaswani_transformer.model.languages_vaswani import has_words
from vaswani_transformer.options.arguments import COUNT, Precision, option
from vaswani_transformer.options.decoding import TranslationArguments
from vaswani_transformer.options.parser import recipe_options
from vaswani_transformer.system.console import ProgressBar
from vaswani_transformer.system.files import atomic_write, locked
from vaswani_transformer.system.processes import on_main_process
from vaswani_transformer.training.precision import compare, fastest_precision, usable_precisions


# What to do after an interruption.
ADVICE = "repeat the command to continue"

# Lines that `--precision auto` translates in each precision, and fewest lines with words for which measuring pays.
MEASURED_LINES, WORTH_MEASURING = 64, 2000


@dataclass
class TranslateArguments(TranslationArguments):
    """Options of translate.py."""

    overwrite: bool = option(False, "Replace an output file that exists.")
    lines_per_shard: int = option(2000, "Lines translated, and written, at a time.", COUNT)
    shard: str | None = option(None, "Translate one range of lines only, such as 0/100, the first of a hundred.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shard is not None and self.is_stream:
            raise ValueError("shard: --shard needs --input and --output")

    @property
    def is_stream(self) -> bool:
        """Whether lines come from standard input, or go to standard output."""
        return "-" in (self.input, self.output)


def main() -> None:
    with recipe_options(TranslateArguments, ADVICE) as args:
        if PartialState().num_processes > 1 and (args.is_stream or args.shard is not None):
            raise ValueError("output: several processes can only translate a file into a file; start a single one")
        if args.is_stream:
            translate_stream(args)
        elif args.shard is not None:
            translate_shard(args, args.shard)
        else:
            translate_file(args)


def translate_stream(args: TranslateArguments) -> None:
    """Translate lines as they come."""
    if args.output == "-":
        for content in translated_chunks(args):
            sys.stdout.buffer.write(content)
            sys.stdout.buffer.flush()
    else:
        require_output(args, args.overwrite)
        with locked(Path(args.output), "output"):
            atomic_write(args.output, translated_chunks(args))


def translated_chunks(args: TranslateArguments) -> Iterator[bytes]:
    """The translations of `lines_per_shard` lines at a time."""
    models = open_models(args)
    lines = source_lines(args, models[0].config)
    translator = LineTranslator(models, args)
    with ProgressBar(desc="Translating", unit="lines") as bar:
        chunks = iter(lambda: list(islice(lines, args.lines_per_shard)), [])
        for number, chunk in enumerate(chunks):
            yield b"".join(translator.translate(number, chunk, bar))


def translate_shard(args: TranslateArguments, shard: str) -> None:
    """Translate one range of lines, such as "3/100", the fourth of a hundred."""
    match = re.fullmatch(r"(\d+)/(\d+)", shard)
    if match is None or not int(match[1]) < int(match[2]) < 100_000:  # the names have five digits
        raise ValueError(f"shard: must be NUMBER/COUNT with NUMBER below COUNT, such as 3/100, is {shard}")
    number = int(match[1])
    translation = ShardedTranslation(args, int(match[2]), overwrite=args.overwrite)
    with locked(translation.path(number), "shard"):
        if not translation.begin([number]):
            print(f"{translation.path(number)} is finished already", file=sys.stderr)
            return
        with ProgressBar(total=len(translation.sources(number)), desc="Translating", unit="lines") as bar:
            translation.translate([number], bar)


def translate_file(args: TranslateArguments) -> None:
    """Translate the missing shards, divided among the processes, and write the output."""
    state = PartialState()
    translation = ShardedTranslation(args, lines_per_shard=args.lines_per_shard, overwrite=args.overwrite)
    with ExitStack() as exit_stack:

        def begin() -> tuple[list[int], Precision]:
            exit_stack.enter_context(locked(Path(args.output), "output"))
            if args.precision == "auto" and translation.is_new:
                args.precision = choose_precision(args, translation)
            missing = translation.begin()
            if finished := translation.count - len(missing):
                print(f"{finished} of {translation.count} shards are finished already; continuing", file=sys.stderr)
            return missing, args.precision

        missing, args.precision = on_main_process(begin)
        mine = missing[state.process_index :: state.num_processes]
        total = sum(len(translation.sources(number)) for number in mine)
        with ProgressBar(total=total, desc="Translating", unit="lines", disable=not state.is_main_process) as bar:
            translation.translate(mine, bar)
        if state.num_processes > 1:
            translation.wait(args.timeout_minutes)
            state.wait_for_everyone()
        if state.is_main_process:
            translation.collect()


def choose_precision(args: TranslateArguments, translation: ShardedTranslation) -> Precision:
    """Choose the precision that translates a sample clearly fastest; "auto" keeps that of the saved weights."""
    precisions, models = usable_precisions(PartialState().device), translation.models
    lines = [*filter(has_words, translation.lines)]  # others are copied
    if args.engine is not None or len(lines) < WORTH_MEASURING or len(precisions) == 1:
        return "auto"
    translators = {"float32": LineTranslator(models, args)}
    if translators["float32"].model.dtype != torch.float32:
        return "auto"
    for name in precisions[1:]:
        translators[name] = LineTranslator(models, replace(args, precision=cast(Precision, name)))
    sample = [lines[index] for index in evenly_spaced(len(lines), MEASURED_LINES)]
    speeds = compare(precisions, lambda name: translators[name].translate(0, sample), seconds=0.5)
    chosen = fastest_precision(speeds, margin=1.15)
    measured = ", ".join(f"{name} {speed:.2f}" for name, speed in speeds.items())
    print(f"precision {chosen}; measured speed: {measured}", file=sys.stderr)
    return "auto" if chosen == "float32" else cast(Precision, chosen)


if __name__ == "__main__":
    main()

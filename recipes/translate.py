"""Translate a file or standard input, line by line.

From file to file, on all GPUs of a machine, and as a filter:

    python recipes/translate.py --model runs/demo --input news.en --output news.de
    accelerate launch recipes/translate.py --model runs/demo --input news.en.gz --output news.de
    head news.en | python recipes/translate.py --model runs/demo

Lines end at line feeds, and empty lines stay empty. Each line is translated as one sentence, and if it holds several,
parts may be missing; `--split_sentences` translates lines sentence by sentence, still one line for each line, and
needs the extra "text". With an output file, the same command continues after an interruption, on any number of
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

The input is first copied beside the finished shards, so that it may change meanwhile; finished shards are compared with
digests. If a process dies or is stopped, all end after `--timeout_minutes`; finished shards are kept.
"""

import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import cast

import torch
from accelerate import PartialState
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from vaswani_transformer.data.tables import kind_of_suffix
from vaswani_transformer.data.text_files import decode_lines, read_lines
from vaswani_transformer.decoding.decoding_arguments import DecodingPrecision, GenerationArguments
from vaswani_transformer.decoding.sharded_translation import (
    SourceText,
    TranslatedShards,
    model_digest,
    output_columns,
    require_input,
    require_output,
    split_lines,
    translate_lines,
    warn_of_long_lines,
)
from vaswani_transformer.io.files import Json
from vaswani_transformer.launch.faults import joined_processes
from vaswani_transformer.launch.processes import is_first_to_claim, on_main_process
from vaswani_transformer.model.languages_vaswani import require_splitter
from vaswani_transformer.model.saved_model import SavedModel
from vaswani_transformer.options.arguments import COUNT, RecipeParser, option
from vaswani_transformer.training.precision import DTYPES, compare, fastest_precision, usable_precisions
from vaswani_transformer.training.randomness import derived_seed


# `--precision auto` translates so many lines in each precision, if the file has at least so many.
MEASURED_LINES, WORTH_MEASURING = 64, 2000


@dataclass
class TranslationArguments(GenerationArguments):
    """Options of translate.py."""

    model: str = option(MISSING, "Directory of a saved model, or its name on the Hub.")
    input: str = option("-", "UTF-8 text (plain, .gz, .xz), or - for standard input.")
    output: str = option("-", "File to write, or - for standard output.")
    overwrite: bool = option(False, "Replace an output file that exists.")
    split_sentences: bool = option(False, "Translate lines sentence by sentence; by default each is one sentence.")
    lines_per_shard: int = option(2000, "Lines translated, and written, at a time.", COUNT)
    return_scores: bool = option(False, "Write log-probabilities of each translation and of its words, into .jsonl.")
    return_alignment: bool = option(False, "Write these and the word alignment, in Pharaoh format, into .jsonl.")
    target_language: str | None = option(None, "Language to translate into, of a model of both directions.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("return_scores", "return_alignment"):
            if getattr(self, name) and kind_of_suffix(Path(self.output)) != "json":
                raise ValueError(f"{name}: {self.output} has lines of text; name an output that ends in .jsonl")
            if getattr(self, name) and self.split_sentences:
                raise ValueError(f"{name}: is of one sentence; leave out --split_sentences")
        if self.split_sentences and self.num_return_sequences > 1 and not self.do_sample:
            raise ValueError(
                "num_return_sequences: the best translations of a line are not made of the best of its sentences, "
                "rank by rank; leave out --split_sentences, or draw them with --do_sample"
            )


def main() -> None:
    (args,) = RecipeParser((TranslationArguments,)).parse()
    with (
        joined_processes("translate.py", args.timeout_minutes, "repeat the command to continue"),
        ExitStack() as until_the_end,
    ):
        if args.split_sentences:
            require_splitter()
        if args.output == "-":
            translate_to_standard_output(args)
        else:
            translate_to_file(args, until_the_end)


def translate_to_standard_output(args: TranslationArguments) -> None:
    total = on_main_process(lambda: plan_stream(args))
    tokenizer, model = load(args)
    long: list[int] = []
    with tqdm(total=total, desc="Translating", unit="lines") as bar:
        for number, lines in enumerate(split_lines(input_lines(args), args.lines_per_shard)):
            sys.stdout.buffer.writelines(translate_shard(args, model, tokenizer, number, lines, bar, long))
            sys.stdout.buffer.flush()
    warn_of_long_lines(len(long), model.config, args.split_sentences)


def translate_to_file(args: TranslationArguments, until_the_end: ExitStack) -> None:
    """Translate the missing shards, then write the output. Each process takes the next free shard.

    The processes thus end within the time of a shard, however fast each of them is.
    """
    state, shards = PartialState(), TranslatedShards(Path(args.output))
    source, missing, columns, args.precision = on_main_process(lambda: plan_file(args, shards, until_the_end))
    if missing:
        numbers = set(missing)
        tokenizer, model = load(args)
        long: list[int] = []
        total, hidden = sum(map(source.size, missing)), not state.is_main_process
        with tqdm(total=total, desc="Translating", unit="lines", disable=hidden) as bar:
            for number, lines in enumerate(source.read()):
                if number not in numbers:
                    continue
                if is_first_to_claim(f"shard {number}"):
                    shards.save(number, translate_shard(args, model, tokenizer, number, lines, bar, long, columns))
                else:
                    bar.update(len(lines))
        warn_of_long_lines(len(long), model.config, args.split_sentences)
    state.wait_for_everyone()
    if state.is_main_process:
        shards.finish(source.shards)


def translate_shard(
    args: TranslationArguments,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    number: int,
    lines: list[str],
    bar: tqdm,
    long: list[int],
    columns: tuple[str, str] | None = None,
) -> list[bytes]:
    """Translate a shard; what is sampled depends on its number, not on the process or on other shards.

    `long` receives the indices of lines that are longer than any source trained on.
    """
    torch.manual_seed(derived_seed(args.seed, number))
    names = ("target_language", "split_sentences", "return_scores", "return_alignment")
    options = {name: getattr(args, name) for name in names} | args.generate_kwargs
    return translate_lines(
        model, tokenizer, lines, args.tokens_per_batch, bar, columns, observe_long=long.extend, **options
    )


def input_lines(args: TranslationArguments) -> Iterator[str]:
    """The lines of the input, read as they come."""
    if args.input == "-":
        return decode_lines(sys.stdin.buffer, Path("standard input"))
    return read_lines(Path(args.input))


def plan_stream(args: TranslationArguments) -> int | None:
    """Check the arguments, and the lines of a file, before the model is loaded; the number of lines, if it is known."""
    require_open_streams(args)
    if PartialState().num_processes > 1:
        raise ValueError("output: several processes cannot share standard output; give --output FILE")
    output_columns(Path(args.output), args.open(args.model).config, args.target_language)  # checks the language
    if args.input == "-":
        return None
    require_input(args.input)
    return sum(1 for _ in input_lines(args))


def plan_file(
    args: TranslationArguments, shards: TranslatedShards, until_the_end: ExitStack
) -> tuple[SourceText, list[int], tuple[str, str] | None, DecodingPrecision]:
    """Check the arguments before the model is loaded, find the shards to translate, name the output's columns.

    The last value is the precision to translate in: that of the finished shards, if none is named.

    The output is locked until `until_the_end` closes.
    """
    require_open_streams(args)
    path = None if args.input == "-" else require_input(args.input)
    require_output(Path(args.output), path)
    until_the_end.enter_context(shards.held())
    begun = shards.begun
    # If there are shards, an earlier run passed this check and was killed.
    if Path(args.output).exists() and not args.overwrite and not begun:
        raise FileExistsError(
            f"output: {args.output} exists already; name another file, or replace it with --overwrite"
        )
    saved = args.open(args.model)
    columns = output_columns(Path(args.output), saved.config, args.target_language)
    model = model_digest(saved.directory)
    # Copied again on a restart, to compare it with what was translated.
    source = SourceText.copy(input_lines(args), shards.folder / "input", args.lines_per_shard)
    text = f"{source.lines} lines, sha256 {source.digest}"
    names = ("lines_per_shard", "target_language", "split_sentences", "return_scores", "return_alignment")
    settings: dict[str, Json] = {name: getattr(args, name) for name in names}
    if args.precision == "auto":
        chosen = shards.dtype if begun else choose_precision(args, saved, source)
        args.precision = cast(DecodingPrecision, chosen)
    shards.begin({"model": model, "input": text, **settings, **args.search_settings})
    missing = shards.missing(source.shards)
    if begun:
        finished = source.shards - len(missing)
        print(f"{finished} of {source.shards} shards are finished already; continuing", file=sys.stderr)
    return source, missing, columns, args.precision


def choose_precision(args: TranslationArguments, saved: SavedModel, source: SourceText) -> str:
    """The precision that translates the first lines clearly fastest; "auto" if it is that of the saved weights."""
    precisions = usable_precisions(PartialState().device)
    if source.lines < WORTH_MEASURING or len(precisions) == 1 or args.load(saved).dtype != torch.float32:
        return "auto"
    models = {each: saved.load(DTYPES[each]).to(PartialState().device) for each in precisions}
    lines = next(source.read())[:MEASURED_LINES]

    def translate(precision: str) -> None:
        translate_shard(args, models[precision], saved.tokenizer, 0, lines, tqdm(disable=True), [])

    speeds = compare(precisions, translate, seconds=0.5)
    chosen = fastest_precision(speeds, margin=1.15)
    measured = ", ".join(f"{name} {speed:.2f}" for name, speed in speeds.items())
    print(f"precision {chosen}; measured speed: {measured}", file=sys.stderr)
    return "auto" if chosen == "float32" else chosen


def require_open_streams(args: TranslationArguments) -> None:
    """Refuse standard input or output that is needed but closed."""
    for name, stream in (("input", sys.stdin), ("output", sys.stdout)):
        if getattr(args, name) == "-" and stream is None:
            raise ValueError(f"{name}: standard {name} is closed; name a file with --{name}")


def load(args: TranslationArguments) -> tuple[PreTrainedTokenizerBase, PreTrainedModel]:
    saved = args.open(args.model)
    return saved.tokenizer, args.load(saved)


if __name__ == "__main__":
    main()

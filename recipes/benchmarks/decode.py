"""Compare the speed of the search, greedy and with four beams, in three packages, with the same weights and sentences.

    python recipes/benchmarks/decode.py --text ../shared/data/multi30k_en-de-fr/test_2016_flickr.en.gz \
        --references ../shared/data/multi30k_en-de-fr/test_2016_flickr.de.gz --model runs/multi30k_en_de

The models are trained ones, since models with random weights never generate EOS, and the text is of the kind that they
were trained on. Translations have at most 50 tokens more than their source; for the peers, more than the longest source
of the batch. The peers are `MarianMTModel.generate`, in input order and in batches of similar length, and CTranslate2,
in batches of similar length. Each number of beams has a table. Each system translates everything in batches of each
size of `--batch_sizes`; the table has its fastest, `decode.json` all. With beams, each searches by its own rule: ours
until no live hypothesis can still win, normalised as in section 6.1; CTranslate2 until as many hypotheses as beams are
finished, transformers until live ones look worse, both normalised by |Y|^alpha.

Writes `decode.md` and `decode.json` beside this script, or into `--output`; speeds are sentences a second, the best of
`--rounds` rounds, through all systems in turn. On a GPU the peers run in its half-precision types.
"""

import copy
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from frame import (
    BenchmarkArguments,
    Search,
    engine_search,
    generate_search,
    headline,
    in_batches,
    measure_in_turn,
    read_sample,
    require_cuda,
    run_benchmark,
)

from vaswani_transformer import VaswaniForConditionalGeneration, VaswaniTokenizer
from vaswani_transformer.convert.marian import to_marian
from vaswani_transformer.experiments.reports import markdown_table
from vaswani_transformer.io.typed_json import Record
from vaswani_transformer.launch.memory import keep_freed_memory
from vaswani_transformer.model.saved_model import open_model
from vaswani_transformer.options.arguments import COUNT, option
from vaswani_transformer.runs.provenance import describe_run
from vaswani_transformer.runs.records import Provenance


ALPHA = 0.6

# The first system whose name begins so has the ratio 1.
BASE = "CTranslate2"


@dataclass
class Arguments(BenchmarkArguments):
    """Options of the benchmark."""

    text: str = option(MISSING, "Source sentences, one a line.")
    references: str | None = option(None, "Their translations, for BLEU.")
    model: list[str] = option([], "Directories of trained models, a table each.")
    device: Literal["cpu", "cuda"] = option("cpu", "Where to translate.")
    sentences: int = option(500, "Sentences to translate, from all over the text.", COUNT)
    batch_sizes: list[int] = option(
        [16, 32, 64, 128, 256], "Numbers of sentences a batch, each for all systems.", COUNT
    )
    beams: list[int] = option([1, 4], "Numbers of beams, a table each; 1 is greedy search.", COUNT)
    rounds: int = option(2, "How often each system translates everything in batches of each size.", COUNT)

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("model: name the directory of a trained model")
        require_cuda(self.device)


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Speed of a system at one batch size: a row of a table."""

    system: str
    batch: int
    sentences_per_second: float
    ratio_to_first: float
    same_as_ours: float  # share of the sentences
    bleu: float | None = None


@dataclass(frozen=True)
class SpeedTable:
    """All systems on the same sentences."""

    title: str
    sentences: int
    rows: list[Speed]
    beams: int = 4


@dataclass(frozen=True)
class DecodeRecord(Record):
    """`decode.json`."""

    run: Provenance
    results: list[SpeedTable]


def systems(
    model: VaswaniForConditionalGeneration, tokenizer: VaswaniTokenizer, device: str, beams: int, folder: Path
) -> Iterator[tuple[str, Callable[[int], Search]]]:
    """Names of the systems to compare, all with the weights of `model`, and their searches by the size of a batch."""
    is_cpu = device == "cpu"
    precision = torch.float32 if is_cpu else torch.bfloat16
    search_of = partial(generate_search, num_beams=beams, length_penalty=ALPHA)
    marian = search_of(to_marian(model).to(device, precision))
    yield "MarianMTModel.generate, input order", partial(in_batches, marian, is_sorted=False)
    yield "MarianMTModel.generate, sorted", partial(in_batches, marian)
    for kind in ("float32", "int8") if is_cpu else ("float16",):
        try:
            search = peer_search(model, tokenizer, kind, device, beams, folder)
        except (ImportError, RuntimeError) as error:
            if is_cpu:
                raise
            print(f"CTranslate2 is left out, for it does not run here: {error}")
        else:
            yield f"CTranslate2 {kind}, sorted", partial(in_batches, search)
    for dtype in (torch.float32 if is_cpu else torch.float16, torch.bfloat16):
        ours, name = copy.deepcopy(model).to(device, dtype), f"ours, {str(dtype)[6:]}, sorted"
        yield name, partial(in_batches, search_of(ours))
        if dtype == precision and beams > 1:
            yield f"{name}, stopping as CTranslate2", partial(in_batches, search_of(ours, early_stopping=True))


def peer_search(
    model: VaswaniForConditionalGeneration,
    tokenizer: VaswaniTokenizer,
    kind: str,
    device: str,
    beams: int,
    folder: Path,
) -> Search:
    """The search of CTranslate2 with the weights of `model`, rounded as `kind` says; raises where it cannot run."""
    from vaswani_transformer.convert.ctranslate2 import CTranslate2Translator, export_ctranslate2

    directory = export_ctranslate2(model, tokenizer, folder / kind, None if kind == "float32" else kind)
    threads = {"intra_threads": torch.get_num_threads(), "inter_threads": 1} if device == "cpu" else {}
    translator = CTranslate2Translator(directory, device=device, compute_type=kind, **threads)
    search = engine_search(translator.engine, tokenizer, beam_size=beams, length_penalty=ALPHA)
    search([tokenizer("a").input_ids])  # libraries of another CUDA are missed only now
    return search


def compare(
    title: str,
    model: VaswaniForConditionalGeneration,
    tokenizer: VaswaniTokenizer,
    sources: list[list[int]],
    args: Arguments,
    beams: int,
    references: list[str] | None,
) -> SpeedTable:
    """One table: every system on the same sentences, in batches of every size."""
    with tempfile.TemporaryDirectory() as folder:
        compared = [
            (name, size, of_size(size))
            for name, of_size in systems(model, tokenizer, args.device, beams, Path(folder))
            for size in args.batch_sizes
        ]
        found = measure_in_turn([search for _, _, search in compared], sources, args.rounds, title)
    ours = next(each for (name, _, _), each in zip(compared, found, strict=True) if name.startswith("ours"))
    rows = [
        Speed(
            system=name,
            batch=size,
            sentences_per_second=len(sources) / each.seconds,
            ratio_to_first=found[0].seconds / each.seconds,
            same_as_ours=each.same_as(ours),
            bleu=each.bleu(tokenizer, references),
        )
        for (name, size, _), each in zip(compared, found, strict=True)
    ]
    return SpeedTable(title, len(sources), rows, beams)


def table(result: SpeedTable) -> str:
    """A table with its title and data."""
    sizes: dict[str, list[int]] = {}
    fastest: dict[str, Speed] = {}
    for row in sorted(result.rows, key=lambda row: row.sentences_per_second):
        sizes.setdefault(row.system, []).append(row.batch)
        fastest[row.system] = row
    names = list(dict.fromkeys(row.system for row in result.rows))
    base = next((name for name in names if name.startswith(BASE)), names[0])
    search = "greedy search" if result.beams == 1 else f"beam {result.beams}, alpha {ALPHA}"
    facts = (
        f"{result.sentences} sentences, {search}. Each system in the fastest of the batch sizes that were tried, over "
        f"all sentences. The ratio is to {base}."
    )
    lines = [["system", "batch", "tried", "sentences/s", "ratio", "same as ours", "BLEU"]]
    for name in names:
        row = fastest[name]
        cells = [name, str(row.batch), ", ".join(map(str, sorted(sizes[name])))]
        ratio = row.sentences_per_second / fastest[base].sentences_per_second
        cells += [f"{row.sentences_per_second:.1f}", f"{ratio:.2f}"]
        cells += [f"{row.same_as_ours:.1%}", "-" if row.bleu is None else f"{row.bleu:.2f}"]
        lines.append(cells)
    return "\n\n".join([f"## {result.title}", facts, markdown_table(lines)])


def as_markdown(record: DecodeRecord) -> str:
    return "\n\n".join([f"{headline('Speed of the search', record.run)}.", *map(table, record.results)]) + "\n"


def measure(args: Arguments) -> Iterator[DecodeRecord]:
    """The tables so far, after each number of beams of each model."""
    sentences, references = read_sample(args.text, args.references, args.sentences)
    models = [open_model(name, model_type="vaswani") for name in args.model]
    if args.device == "cpu":
        keep_freed_memory()
    results = []
    run = describe_run()  # now: the files that it writes would be changes of the commit
    for name, saved in zip(args.model, models, strict=True):
        model, tokenizer = saved.load(), saved.tokenizer
        sources = tokenizer(sentences).input_ids
        for beams in args.beams:
            results.append(compare(name, model, tokenizer, sources, args, beams, references))
            yield DecodeRecord(run, results)


def main() -> None:
    run_benchmark("decode", Arguments, measure, as_markdown)


if __name__ == "__main__":
    main()

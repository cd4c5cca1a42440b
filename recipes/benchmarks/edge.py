"""Compare speed, BLEU and size of exported models on few processor cores, with and without their shortlists.

    python recipes/export.py --model runs/student --to ctranslate2 --output runs/student_int8 --quantization int8 \
        --shortlist distilled.jsonl
    python recipes/benchmarks/edge.py --model runs/student --exports runs/student_int8 \
        --text test.en --references test.de

Each system translates all sentences, sorted by length, with beams of 1 and 4, on 1 and 2 threads, and in batches of 16
and 64 sentences. CTranslate2 is called as its users call it, by `translate_batch`, with the model's alpha; on two
threads it translates two batches at once. Our own `generate`, on one thread, is the reference of the ratios, which are
of processor time, because other work on the machine disturbs that less than the time that passes.

Writes `edge.md` and `edge.json` beside this script, or into `--output`; times are the best of `--rounds` rounds,
through all systems in turn.
"""

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass
from itertools import product
from pathlib import Path

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
    run_benchmark,
)

from vaswani_transformer.experiments.reports import markdown_table
from vaswani_transformer.io.typed_json import Record
from vaswani_transformer.launch.memory import keep_freed_memory
from vaswani_transformer.model.saved_model import SavedModel, open_model
from vaswani_transformer.options.arguments import COUNT, option
from vaswani_transformer.runs.provenance import describe_run
from vaswani_transformer.runs.records import Provenance


BEAMS, THREADS, BATCHES = (1, 4), (1, 2), (16, 64)
OURS = "ours, float32"


@dataclass
class Arguments(BenchmarkArguments):
    """Options of the benchmark."""

    model: str = option(MISSING, "Directory of the model, the reference.")
    text: str = option(MISSING, "Source sentences, one a line.")
    references: str | None = option(None, "Their translations, for BLEU.")
    exports: list[str] = option([], "Directories of its exports to CTranslate2.")
    sentences: int = option(2000, "Sentences to translate, from all over the text.", COUNT)
    rounds: int = option(2, "How often each system translates everything.", COUNT)


@dataclass(frozen=True, kw_only=True)
class System:
    """A system with one beam, number of threads and size of batches."""

    system: str
    megabytes: float  # all files of the directory that it needs
    beam: int
    threads: int
    batch: int


@dataclass(frozen=True, kw_only=True)
class Speed(System):
    """Speed of a system: a row of the table."""

    sentences_per_second: float
    processor_seconds: float  # of all threads
    ratio_to_ours: float  # of processor time, to our search with this beam on one thread
    same_as_ours: float  # share of the sentences
    bleu: float | None


@dataclass(frozen=True)
class EdgeRecord(Record):
    """`edge.json`."""

    run: Provenance
    sentences: int
    source_tokens: int
    rows: list[Speed]


def systems(saved: SavedModel, exports: Sequence[str]) -> Iterator[tuple[System, Search]]:
    """Our model, and each export with and without its shortlist."""
    from vaswani_transformer.convert.ctranslate2 import CTranslate2Translator

    model, tokenizer = saved.load(torch.float32), saved.tokenizer
    alpha = model.generation_config.length_penalty
    size = sum((saved.directory / name).stat().st_size for name in ("model.safetensors", "tokenizer.json")) / 1e6
    for beam in BEAMS:
        ours = System(system=OURS, megabytes=size, beam=beam, threads=1, batch=64)
        yield ours, in_batches(generate_search(model, num_beams=beam), 64)
    for directory in map(Path, exports):
        sizes = {path.name: path.stat().st_size / 1e6 for path in directory.iterdir() if path.is_file()}
        shortlist = sizes.pop("vmap.txt", None)
        translators = {
            threads: CTranslate2Translator(directory, inter_threads=threads, intra_threads=1).engine
            for threads in THREADS
        }
        variants = {directory.name: sum(sizes.values())}
        if shortlist is not None:
            variants[f"{directory.name}, shortlist"] = sum(sizes.values()) + shortlist
        for (name, megabytes), beam, threads, batch in product(variants.items(), BEAMS, THREADS, BATCHES):
            options = {"beam_size": beam, "length_penalty": alpha, "max_batch_size": batch}
            options["use_vmap"] = name != directory.name
            system = System(system=name, megabytes=megabytes, beam=beam, threads=threads, batch=batch)
            yield system, engine_search(translators[threads], tokenizer, **options)


def measure(args: Arguments) -> Iterator[EdgeRecord]:
    """All systems on the same sentences, in turn."""
    keep_freed_memory()
    torch.set_num_threads(1)
    sentences, references = read_sample(args.text, args.references, args.sentences)
    saved = open_model(args.model, model_type="vaswani")
    sources = saved.tokenizer(sentences)["input_ids"]
    compared = list(systems(saved, args.exports))
    found = measure_in_turn([search for _, search in compared], sources, args.rounds, "Translating")
    pairs = [(system, each) for (system, _), each in zip(compared, found, strict=True)]
    ours = {system.beam: each for system, each in pairs if system.system == OURS}
    rows = [
        Speed(
            **vars(system),
            sentences_per_second=len(sources) / each.seconds,
            processor_seconds=each.processor_seconds,
            ratio_to_ours=ours[system.beam].processor_seconds / each.processor_seconds,
            same_as_ours=each.same_as(ours[system.beam]),
            bleu=each.bleu(saved.tokenizer, references),
        )
        for system, each in pairs
    ]
    yield EdgeRecord(describe_run(), len(sources), sum(map(len, sources)), rows)


def as_markdown(record: EdgeRecord) -> str:
    title = "Speed of exported models on few cores"
    lines = [["system", "MB", "beam", "threads", "batch", "sentences/s", "sentences per processor second"]]
    lines[0] += ["ratio to ours", "same as ours", "BLEU"]
    for row in record.rows:
        cells = [row.system, f"{row.megabytes:.1f}", str(row.beam), str(row.threads), str(row.batch)]
        cells += [f"{row.sentences_per_second:.0f}", f"{record.sentences / row.processor_seconds:.0f}"]
        cells += [f"{row.ratio_to_ours:.2f}", f"{row.same_as_ours:.1%}"]
        lines.append([*cells, "-" if row.bleu is None else f"{row.bleu:.2f}"])
    return "\n\n".join(
        [
            f"{headline(title, record.run)} for our search; the table has the others'.",
            f"{record.sentences} sentences of {record.source_tokens / record.sentences:.1f} tokens.",
            markdown_table(lines) + "\n",
        ]
    )


def main() -> None:
    run_benchmark("edge", Arguments, measure, as_markdown)


if __name__ == "__main__":
    main()

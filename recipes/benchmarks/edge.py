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

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from frame import OVER_SOURCE, Search, headline, in_batches, measure_in_turn, our_search, read_sample, write_result

from vaswani_transformer.experiments.reports import markdown_table
from vaswani_transformer.io.console import exit_on_error
from vaswani_transformer.io.files import make_directory
from vaswani_transformer.io.typed_json import Record
from vaswani_transformer.launch.memory import keep_freed_memory
from vaswani_transformer.model.saved_model import SavedModel, open_model
from vaswani_transformer.options.arguments import COUNT, RecipeParser, option
from vaswani_transformer.runs.provenance import describe_run
from vaswani_transformer.runs.records import Provenance


BEAMS, THREADS, BATCHES = (1, 4), (1, 2), (16, 64)
OURS = "ours, float32"


@dataclass
class Arguments:
    model: str = option(MISSING, "Directory of the model, the reference.")
    text: str = option(MISSING, "Source sentences, one a line.")
    references: str | None = option(None, "Their translations, for BLEU.")
    exports: list[str] = option([], "Directories of its exports to CTranslate2.")
    output: str = option(str(Path(__file__).parent), "Where edge.md and edge.json go.")
    sentences: int = option(2000, "Sentences to translate, from all over the text.", COUNT)
    rounds: int = option(2, "How often each system translates everything.", COUNT)

    def __post_init__(self) -> None:
        if find_spec("ctranslate2") is None:
            raise ValueError("ctranslate2 is not installed; run `pip install ctranslate2`")
        for name in self.exports:
            if not (Path(name) / "model.bin").is_file():
                raise ValueError(f"exports: {name} is not a model for CTranslate2; export one with recipes/export.py")


@dataclass(frozen=True, kw_only=True)
class Speed:
    """A system with one beam, number of threads and size of batches: a row of the table."""

    system: str
    megabytes: float  # all files of the directory that it needs
    beam: int
    threads: int
    batch: int
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


@dataclass(frozen=True)
class System:
    """What is measured for one row."""

    name: str
    megabytes: float
    beam: int
    threads: int
    batch: int
    search: Search


def systems(saved: SavedModel, exports: Sequence[str]) -> Iterator[System]:
    """Our model, and each export with and without its shortlist."""
    import ctranslate2

    model, tokenizer = saved.load(torch.float32), saved.tokenizer
    alpha = model.generation_config.length_penalty
    size = sum((saved.directory / name).stat().st_size for name in ("model.safetensors", "tokenizer.json")) / 1e6
    for beam in BEAMS:
        yield System(OURS, size, beam, 1, 64, in_batches(our_search(model, num_beams=beam), 64))

    def engine(translator: ctranslate2.Translator, beam: int, batch: int, has_shortlist: bool) -> Search:
        def search(sources: list[list[int]]) -> list[list[int]]:
            results = translator.translate_batch(
                [tokenizer.convert_ids_to_tokens(source) for source in sources],
                beam_size=beam,
                length_penalty=alpha,
                max_decoding_length=max(map(len, sources)) + OVER_SOURCE,
                max_batch_size=batch,
                use_vmap=has_shortlist,
            )
            return [tokenizer.convert_tokens_to_ids(result.hypotheses[0]) for result in results]

        return search

    for directory in map(Path, exports):
        sizes = {path.name: path.stat().st_size / 1e6 for path in directory.iterdir() if path.is_file()}
        shortlist = sizes.pop("vmap.txt", None)
        translators = {
            threads: ctranslate2.Translator(str(directory), inter_threads=threads, intra_threads=1)
            for threads in THREADS
        }
        variants = [(directory.name, sum(sizes.values()), False)]
        if shortlist is not None:
            variants.append((f"{directory.name}, shortlist", sum(sizes.values()) + shortlist, True))
        for name, megabytes, has_shortlist in variants:
            for beam, threads, batch in itertools.product(BEAMS, THREADS, BATCHES):
                search = engine(translators[threads], beam, batch, has_shortlist)
                yield System(name, megabytes, beam, threads, batch, search)


def measure(saved: SavedModel, args: Arguments, sources: list[list[int]], references: list[str] | None) -> list[Speed]:
    """All systems on the same sentences, in turn."""
    compared = list(systems(saved, args.exports))
    found = measure_in_turn([system.search for system in compared], sources, args.rounds, "Translating")
    ours = {system.beam: each for system, each in zip(compared, found, strict=True) if system.name == OURS}
    return [
        Speed(
            system=system.name,
            megabytes=system.megabytes,
            beam=system.beam,
            threads=system.threads,
            batch=system.batch,
            sentences_per_second=len(sources) / each.seconds,
            processor_seconds=each.processor_seconds,
            ratio_to_ours=ours[system.beam].processor_seconds / each.processor_seconds,
            same_as_ours=each.same_as(ours[system.beam]),
            bleu=each.bleu(saved.tokenizer, references),
        )
        for system, each in zip(compared, found, strict=True)
    ]


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
    (args,) = RecipeParser([Arguments]).parse()
    keep_freed_memory()
    torch.set_num_threads(1)
    with exit_on_error("edge.py"):
        sentences, references = read_sample(args.text, args.references, args.sentences)
        saved = open_model(args.model, model_type="vaswani")
        output = make_directory("output", args.output)
    sources = saved.tokenizer(sentences)["input_ids"]
    rows = measure(saved, args, sources, references)
    record = EdgeRecord(describe_run(), len(sources), sum(map(len, sources)), rows)
    write_result(record, as_markdown(record), output, "edge")


if __name__ == "__main__":
    main()

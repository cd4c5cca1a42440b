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
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import MISSING, dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
from rich.progress import track

from vaswani_transformer import VaswaniForConditionalGeneration
from vaswani_transformer.data.corpora import spread
from vaswani_transformer.data.text_files import read_lines
from vaswani_transformer.evaluation.scores import sacrebleu_score
from vaswani_transformer.experiments.reports import markdown_table
from vaswani_transformer.io.console import exit_on_error, printable
from vaswani_transformer.io.files import atomic_write, make_directory
from vaswani_transformer.io.typed_json import Record
from vaswani_transformer.launch.memory import keep_freed_memory
from vaswani_transformer.model.saved_model import SavedModel, open_model
from vaswani_transformer.options.arguments import COUNT, RecipeParser, option
from vaswani_transformer.runs.provenance import describe_run
from vaswani_transformer.runs.records import Provenance


BEAMS, THREADS, BATCHES = (1, 4), (1, 2), (16, 64)
OVER_SOURCE = 50
OURS = "ours, float32"

Search = Callable[[list[list[int]]], list[list[int]]]


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


@dataclass
class System:
    """What is measured for one row."""

    name: str
    megabytes: float
    beam: int
    threads: int
    batch: int
    search: Search
    seconds: float = float("inf")
    processor_seconds: float = float("inf")
    outputs: Sequence[list[int]] = ()

    def run(self, sources: list[list[int]]) -> None:
        """Translate all sentences, and keep each time if it is the best so far."""
        start, processor_start = time.perf_counter(), time.process_time()
        self.outputs = self.search(sources)
        self.seconds = min(self.seconds, time.perf_counter() - start)
        self.processor_seconds = min(self.processor_seconds, time.process_time() - processor_start)


def megabytes(directory: Path, *, without: str = "") -> float:
    return sum(path.stat().st_size for path in directory.iterdir() if path.is_file() and path.name != without) / 1e6


def ours(model: VaswaniForConditionalGeneration, beam: int, size: int) -> Search:
    """Our search, in batches of `size` sentences of similar length."""
    end = model.config.eos_token_id

    def search(sources: list[list[int]]) -> list[list[int]]:
        order = sorted(range(len(sources)), key=lambda index: -len(sources[index]))
        found: list[list[int]] = [[] for _ in sources]
        for start in range(0, len(order), size):
            rows = [torch.tensor(sources[index]) for index in order[start : start + size]]
            batch = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=model.config.pad_token_id)
            outputs = model.generate(batch, num_beams=beam)[:, 1:].tolist()
            for index, tokens in zip(order[start:], outputs, strict=False):
                found[index] = tokens[: tokens.index(end)] if end in tokens else tokens
        return found

    return search


def systems(saved: SavedModel, exports: Sequence[str]) -> Iterator[System]:
    """Our model, and each export with and without its shortlist."""
    import ctranslate2

    model, tokenizer = saved.load(torch.float32), saved.tokenizer
    alpha = model.generation_config.length_penalty
    size = sum((saved.directory / name).stat().st_size for name in ("model.safetensors", "tokenizer.json")) / 1e6
    for beam in BEAMS:
        yield System(OURS, size, beam, 1, 64, ours(model, beam, 64))

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
        has_map = (directory / "vmap.txt").is_file()
        translators = {
            threads: ctranslate2.Translator(str(directory), inter_threads=threads, intra_threads=1)
            for threads in THREADS
        }
        for has_shortlist in (False, True)[: 1 + has_map]:
            name = f"{directory.name}, shortlist" if has_shortlist else directory.name
            size = megabytes(directory, without="" if has_shortlist else "vmap.txt")
            for beam, threads, batch in itertools.product(BEAMS, THREADS, BATCHES):
                search = engine(translators[threads], beam, batch, has_shortlist)
                yield System(name, size, beam, threads, batch, search)


def measure(saved: SavedModel, args: Arguments, sources: list[list[int]], references: list[str] | None) -> list[Speed]:
    """All systems on the same sentences, in turn."""
    measured = list(systems(saved, args.exports))
    for system in measured:
        system.search(sources[:4])  # the first call includes one-time work
    for _ in range(args.rounds):
        for system in track(measured, description="Translating"):
            system.run(sources)
    by_beam = {system.beam: system for system in measured if system.name == OURS}
    rows = []
    for system in measured:
        reference = by_beam[system.beam]
        hypotheses = saved.tokenizer.batch_decode(list(system.outputs), skip_special_tokens=True)
        rows.append(
            Speed(
                system=system.name,
                megabytes=system.megabytes,
                beam=system.beam,
                threads=system.threads,
                batch=system.batch,
                sentences_per_second=len(sources) / system.seconds,
                processor_seconds=system.processor_seconds,
                ratio_to_ours=reference.processor_seconds / system.processor_seconds,
                same_as_ours=sum(a == b for a, b in zip(system.outputs, reference.outputs, strict=True)) / len(sources),
                bleu=None if references is None else sacrebleu_score(hypotheses, references).score,
            )
        )
    return rows


def as_markdown(record: EdgeRecord) -> str:
    run = record.run
    words = [
        "# Speed of exported models on few cores",
        # The number of threads in `hardware` is PyTorch's, and thus our search's.
        f"`{run.command}`, commit `{run.commit}`, {run.hardware.rpartition(', ')[0]}; our search on "
        f"{_listed(record, is_ours=True)}, CTranslate2 on {_listed(record, is_ours=False)}.",
        f"{record.sentences} sentences of {record.source_tokens / record.sentences:.1f} tokens.",
    ]
    lines = [["system", "MB", "beam", "threads", "batch", "sentences/s", "sentences per processor second"]]
    lines[0] += ["ratio to ours", "same as ours", "BLEU"]
    for row in record.rows:
        cells = [row.system, f"{row.megabytes:.1f}", str(row.beam), str(row.threads), str(row.batch)]
        cells += [f"{row.sentences_per_second:.0f}", f"{record.sentences / row.processor_seconds:.0f}"]
        cells += [f"{row.ratio_to_ours:.2f}", f"{row.same_as_ours:.1%}"]
        lines.append([*cells, "-" if row.bleu is None else f"{row.bleu:.2f}"])
    return "\n\n".join([*words, markdown_table(lines)]) + "\n"


def _listed(record: EdgeRecord, *, is_ours: bool) -> str:
    """Numbers of threads that our search, or the exports, were measured on."""
    numbers = sorted({row.threads for row in record.rows if (row.system == OURS) is is_ours})
    return f"{' and '.join(map(str, numbers))} thread{'s' * (numbers != [1])}"


def main() -> None:
    (args,) = RecipeParser([Arguments]).parse()
    keep_freed_memory()
    torch.set_num_threads(1)
    with exit_on_error("edge.py"):
        lines = list(read_lines(Path(args.text)))
        references = None if args.references is None else list(read_lines(Path(args.references)))
        if not any(map(str.strip, lines)):
            raise ValueError(f"text: there is nothing in {args.text} to translate")
        if references is not None and len(references) != len(lines):
            raise ValueError(f"references: {args.references} has {len(references)} lines, but {args.text} {len(lines)}")
        saved = open_model(args.model, model_type="vaswani")
        output = make_directory("output", args.output)
    chosen = [line for line in spread(len(lines), args.sentences) if lines[line].strip()]
    sources = saved.tokenizer([lines[line].strip() for line in chosen])["input_ids"]
    rows = measure(saved, args, sources, references and [references[line] for line in chosen])
    record = EdgeRecord(describe_run(), len(sources), sum(map(len, sources)), rows)
    record.save(output / "edge.json")
    atomic_write(output / "edge.md", as_markdown(record))
    print(printable(as_markdown(record)))


if __name__ == "__main__":
    main()

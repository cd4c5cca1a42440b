"""Compare the training speed of this package with MarianMT in the stock trainer, and with `torch.nn.Transformer`.

    python recipes/benchmarks/train.py --source data/multi30k/train.en.gz \
        --target data/multi30k/train.de.gz

The systems train models of the same sizes on the same corpus and vocabulary, with the paper's optimizer and smoothed
labels:

- ours: `VaswaniTrainer`; on a GPU also with `torch_compile`;
- `MarianMTModel` in `Seq2SeqTrainer`, in batches of a fixed number of sentences of similar length
  (`group_by_length`), with as many target tokens on average;
- `torch.nn.Transformer` in a plain loop, in batches like ours, with shared embeddings, `F.cross_entropy` and fused
  Adam;
- with `--release DIRECTORY ...`, the package in other checkouts.

Each system runs in its own process, which keeps freed memory as ours does. They train in turn, `--seconds` each, in
`--rounds` rounds; a speed is the median over the rounds. The rate of large products in the same type is measured in
the same rounds. A system's share of it is the rate of its own products, padding included.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import MISSING, asdict, dataclass
from pathlib import Path
from statistics import median

import torch
from benchmark import DeviceArguments, headline, run_benchmark
from rich.progress import track
from train_worker import SYSTEMS, Turn, Work

from vaswani_transformer import VaswaniConfig, VaswaniTokenizer
from vaswani_transformer.data.cleaning import encode_corpus
from vaswani_transformer.data.corpora import load_parallel_corpus, sentences
from vaswani_transformer.experiments.reports import markdown_table
from vaswani_transformer.options.arguments import COUNT, POSITIVE, option
from vaswani_transformer.runs.provenance import describe_run
from vaswani_transformer.runs.records import Provenance
from vaswani_transformer.system.typed_json import Record
from vaswani_transformer.training.costs import sustained_rate, training_flops


# Layers of each of encoder and decoder, d_model, d_ff, heads, and entries of the vocabulary; "tiny" is the model of Wu
# et al. (2021) for multi30k, "base" the paper's.
SIZES = {
    "tiny": (4, 128, 256, 4, 8_000),
    "small": (3, 256, 1024, 4, 8_000),
    "base": (6, 512, 2048, 8, 37_000),
}
TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
HERE = Path(__file__).resolve().parents[2]
LONGEST = 256  # tokens; longer pairs are left out

# Settings that make glibc reuse freed memory, as by `keep_freed_memory`.
ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1), "MALLOC_TOP_PAD_": str(2**28)}


@dataclass
class CorpusArguments(DeviceArguments):
    """Options of a benchmark that trains on a corpus."""

    source: str = option(MISSING, "Source sentences to train on, one a line.")
    target: str = option(MISSING, "Their translations.")
    vocab_size: int = option(8000, "Entries of the vocabulary; a model may have more.", COUNT)
    tokens: int = option(1500, "Source and target tokens of a batch.", COUNT)


@dataclass
class Arguments(CorpusArguments):
    """Options of the benchmark."""

    release: list[str] = option([], "Other checkouts of this package, to compare with.")
    sizes: list[str] = option(["small", "base"], f"Sizes of the model, of {', '.join(SIZES)}.")
    precisions: list[str] = option([*TYPES], f"Types to compute in, of {', '.join(TYPES)}.")
    seconds: float = option(4.0, "Seconds of a turn.", POSITIVE)
    rounds: int = option(3, "Turns of each system.", COUNT)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, values, known in (("sizes", self.sizes, SIZES), ("precisions", self.precisions, TYPES)):
            if not values or (unknown := {*values} - {*known}):
                raise ValueError(f"{name}: must be of {', '.join(known)}, is {' '.join(sorted(unknown)) or 'empty'}")
        for release in self.release:
            if not Path(release, "vaswani_transformer").is_dir():
                raise ValueError(f"release: {release} is no checkout of this package")

    def systems(self) -> dict[str, tuple[str, Path]]:
        """For each row of a table, its system and the checkout of the package that it uses."""
        systems = {name: (name, HERE) for name in SYSTEMS if self.device == "cuda" or name != "ours, compiled"}
        return systems | {f"ours of {release}": ("ours", Path(release)) for release in self.release}


@dataclass(frozen=True, kw_only=True)
class Speed:
    """Speed of a system: a row of a table.

    Attributes:
        target_tokens_per_second: Speed in each round, without padding.
        padding_share: Share of padding in the tokens of both sides.
        peak_bytes: Memory in excess of the process without a model.
        operations_per_second: Rate of matrix products in each round, padding included.
    """

    system: str
    steps: int
    target_tokens_per_second: list[float]
    padding_share: float
    peak_bytes: int
    operations_per_second: list[float]


@dataclass(frozen=True, kw_only=True)
class SpeedTable:
    """All systems with one size and type.

    Attributes:
        product_rate: Operations per second of large products in each round.
    """

    size: str
    precision: str
    product_rate: list[float]
    rows: list[Speed]


@dataclass(frozen=True)
class TrainRecord(Record):
    """`train.json`."""

    run: Provenance
    settings: dict[str, object]
    results: list[SpeedTable]


class Worker:
    """A process that trains a system in turns; see `train_worker.py`."""

    def __init__(self, name: str, work: Work, package: Path, exit_stack: ExitStack) -> None:
        self._errors = Path(work.data, f"{name.replace(os.sep, ' ')}.errors")
        paths = [str(package.resolve()), os.environ.get("PYTHONPATH", "")]
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("train_worker.py"), json.dumps(asdict(work))],
            env={**os.environ, **ALLOCATOR, "PYTHONPATH": os.pathsep.join(paths)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=exit_stack.enter_context(self._errors.open("w", encoding="utf-8")),
            text=True,
        )
        exit_stack.enter_context(self._process)  # closes its pipes and waits
        exit_stack.callback(self._process.kill)

    def result(self) -> Turn:
        """Wait for the result of the turn, and return it."""
        assert self._process.stdout is not None
        if line := self._process.stdout.readline():
            return Turn(**json.loads(line))
        self._process.wait()
        raise RuntimeError(f"{self._errors.stem} has ended with\n{self._errors.read_text(encoding='utf-8')[-3000:]}")

    def train(self, seconds: float) -> Turn:
        assert self._process.stdin is not None
        print(seconds, file=self._process.stdin, flush=True)
        return self.result()


def prepare(args: CorpusArguments, folder: str) -> None:
    """Learn a vocabulary, and write the encoded corpus and the tokenizer into a folder."""
    corpus = load_parallel_corpus([args.source, args.target], "source", "target")
    texts = sentences(corpus.select(range(min(len(corpus), 20_000))), ["source", "target"])
    tokenizer = VaswaniTokenizer.train(texts, vocab_size=args.vocab_size, show_progress=False)
    encoded = encode_corpus(corpus, tokenizer, "source", "target")
    longest = min(LONGEST, args.tokens)
    encoded.filter(
        lambda source, target: 1 < source <= longest and 1 < target <= longest,
        input_columns=["source_length", "target_length"],
    ).save_to_disk(Path(folder, "corpus"))
    tokenizer.save_pretrained(Path(folder, "tokenizer"))


def speed(system: str, turns: list[Turn], config: VaswaniConfig) -> Speed:
    operations = [sum(training_flops(config, *shape) for shape in turn.shapes) / turn.seconds for turn in turns]
    padded = sum(count * (source + target) for turn in turns for count, source, target in turn.shapes)
    return Speed(
        system=system,
        steps=sum(len(turn.shapes) for turn in turns),
        target_tokens_per_second=[turn.target_tokens / turn.seconds for turn in turns],
        padding_share=1 - sum(turn.tokens for turn in turns) / padded,
        peak_bytes=turns[-1].peak_bytes,
        operations_per_second=operations,
    )


def model_sizes(size: str, vocab_size: int) -> dict[str, int]:
    """Arguments of `VaswaniConfig` for one of `SIZES`."""
    layers, d_model, d_ff, heads, vocabulary = SIZES[size]
    sizes = {"encoder_layers": layers, "decoder_layers": layers, "d_model": d_model, "d_ff": d_ff, "num_heads": heads}
    return sizes | {"vocab_size": max(vocabulary, vocab_size)}


def compare(args: Arguments, size: str, precision: str, folder: str) -> SpeedTable:
    """Measure all systems with one size and type, in turn."""
    sizes = model_sizes(size, args.vocab_size)
    rates: list[float] = []
    with ExitStack() as exit_stack:
        workers = {}
        for name, (system, package) in args.systems().items():
            work = Work(system, folder, sizes, args.tokens, precision == "bfloat16", args.device == "cpu")
            workers[name] = Worker(name, work, package, exit_stack)
        for worker in workers.values():
            worker.result()  # a step to warm up
            if args.device == "cuda":
                worker.train(args.seconds)  # a graph is captured for each shape
        measured: dict[str, list[Turn]] = {name: [] for name in workers}
        for _ in track(range(args.rounds), f"{size}, {precision}"):
            rates.append(sustained_rate(args.device, TYPES[precision]))
            for name, worker in workers.items():
                measured[name].append(worker.train(args.seconds))
    config = VaswaniConfig.from_variant("base", **sizes)
    rows = [speed(name, turns, config) for name, turns in measured.items()]
    return SpeedTable(size=size, precision=precision, product_rate=rates, rows=rows)


def measure(args: Arguments) -> Iterator[TrainRecord]:
    """The tables so far, after each size and type."""
    results: list[SpeedTable] = []
    with tempfile.TemporaryDirectory() as folder:
        run = describe_run()  # now: files written later would change the working tree
        prepare(args, folder)
        for size in args.sizes:
            for precision in args.precisions:
                results.append(compare(args, size, precision, folder))
                yield TrainRecord(run, args.settings(), results)


def table(result: SpeedTable) -> str:
    """A table with its title and facts."""
    layers, d_model, d_ff, heads, vocabulary = SIZES[result.size]
    rate = median(result.product_rate)
    facts = (
        f"{layers} + {layers} layers, d_model {d_model}, d_ff {d_ff}, {heads} heads, vocabulary of {vocabulary:,}. "
        f"Large products: {rate / 1e9:,.0f} billion operations a second."
    )
    lines = [["system", "target tokens/s", "ours beside it", "share of large products", "padding", "GB", "steps"]]
    ours = result.rows[0].target_tokens_per_second
    for row in result.rows:
        speeds = row.target_tokens_per_second
        ratio = median(mine / other for mine, other in zip(ours, speeds, strict=True))
        share = median(row.operations_per_second) / rate
        cells = [row.system, f"{median(speeds):,.0f}", f"{ratio:.2f}", f"{share:.0%}"]
        lines.append([*cells, f"{row.padding_share:.1%}", f"{row.peak_bytes / 1e9:.2f}", str(row.steps)])
    return "\n\n".join([f"## {result.size}, {result.precision}", facts, markdown_table(lines)])


def as_markdown(record: TrainRecord) -> str:
    settings = record.settings
    facts = (
        f"Batches of {settings['tokens']:,} tokens a side; medians of {settings['rounds']} turns of "
        f"{settings['seconds']:g} seconds, in turn. The ratio is the median of the ratios of a round."
    )
    return "\n\n".join([f"{headline('Speed of training', record.run)}.", facts, *map(table, record.results)]) + "\n"


def main() -> None:
    run_benchmark("train", Arguments, measure, as_markdown)


if __name__ == "__main__":
    main()

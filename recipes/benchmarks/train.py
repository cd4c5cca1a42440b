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

With `--end_to_end`, `recipes/train_wmt.py` of this checkout and of others, and MarianMT in the stock trainer, train
`--steps` steps in turn, on one thread, two threads and two processes. The time counts from the first batch to the last
checkpoint; nothing is scored. Each is restarted for each round, as its users start it. The vocabulary of all sizes has
`--vocab_size` entries.

The benchmark writes `train.md` and `train.json`.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import MISSING, asdict, dataclass, field
from functools import cache
from itertools import product
from pathlib import Path
from statistics import median

import torch
from benchmark import DeviceArguments, headline, run_benchmark
from rich.progress import track
from train_worker import MARIAN, SYSTEMS, WARMUP, Turn, Work

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
LAYOUTS = {"one thread": (1, 1), "two threads": (1, 2), "two processes": (2, 1)}  # processes, threads of each
HERE = Path(__file__).resolve().parents[2]
LONGEST = 256  # tokens; longer pairs are left out

# Settings that make glibc reuse freed memory, as by `keep_freed_memory`.
ALLOCATOR = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(2**31 - 1), "MALLOC_TOP_PAD_": str(2**28)}


@dataclass
class Arguments(DeviceArguments):
    """Options of the benchmark."""

    source: str = option(MISSING, "Source sentences to train on, one a line.")
    target: str = option(MISSING, "Their translations.")
    release: list[str] = option([], "Other checkouts of this package, to compare with.")
    end_to_end: bool = option(False, "Compare whole trainings, by the recipe.")
    sizes: list[str] = option(["small", "base"], f"Sizes of the model, of {', '.join(SIZES)}.")
    precisions: list[str] = option([*TYPES], f"Types to compute in, of {', '.join(TYPES)}.")
    vocab_size: int = option(8000, "Entries of the vocabulary; a model may have more.", COUNT)
    tokens: int = option(1500, "Source and target tokens of a batch.", COUNT)
    seconds: float = option(4.0, "Seconds of a turn.", POSITIVE)
    steps: int = option(40, "Steps of a whole training.", COUNT)
    rounds: int = option(3, "Turns of each system.", COUNT)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, values, known in (("sizes", self.sizes, SIZES), ("precisions", self.precisions, TYPES)):
            if not values or (unknown := {*values} - {*known}):
                raise ValueError(f"{name}: must be of {', '.join(known)}, is {' '.join(sorted(unknown)) or 'empty'}")
        for release in self.release:
            if not Path(release, "vaswani_transformer").is_dir():
                raise ValueError(f"release: {release} is no checkout of this package")
        self.checkouts()

    def checkouts(self) -> dict[str, Path]:
        """The other checkouts by name: the shortest distinct ends of their paths, other than "ours"."""
        paths = [Path(release).resolve() for release in self.release]
        if len({*paths}) < len(paths):
            raise ValueError(f"release: {' '.join(self.release)} names a checkout twice")
        length, named = 0, dict[str, Path]()
        while len({*named, *SYSTEMS}) < len(paths) + len(SYSTEMS):
            length += 1
            named = {str(Path(*path.parts[-length:])): path for path in paths}
        return named


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


@dataclass(frozen=True, kw_only=True)
class WholeTrainings:
    """Target tokens per second, without padding, of whole trainings in each round, by system."""

    size: str
    precision: str
    layout: str
    speeds: dict[str, list[float]]


@dataclass(frozen=True)
class TrainRecord(Record):
    """`train.json`."""

    run: Provenance
    settings: dict[str, object]
    results: list[SpeedTable]
    whole: list[WholeTrainings] = field(default_factory=list)


def environment(package: Path) -> dict[str, str]:
    """Environment variables that make a program import a checkout."""
    paths = [str(package.resolve()), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


class Worker:
    """A process that trains a system in turns; see `train_worker.py`."""

    def __init__(self, name: str, work: Work, package: Path, exit_stack: ExitStack) -> None:
        self._errors = Path(work.data, f"{name.replace(os.sep, ' ')}.errors")
        self._process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("train_worker.py"), json.dumps(asdict(work))],
            env={**environment(package), **ALLOCATOR},
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


def prepare(args: Arguments, folder: str) -> None:
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


def config_sizes(size: str) -> dict[str, int]:
    layers, d_model, d_ff, heads, vocabulary = SIZES[size]
    sizes = {"encoder_layers": layers, "decoder_layers": layers, "d_model": d_model, "d_ff": d_ff}
    return sizes | {"num_heads": heads, "vocab_size": vocabulary}


def launch(package: Path, *words: object, processes: int = 1, threads: int = 1) -> str:
    """Run a Python program that imports a checkout, and return its standard output."""
    launcher = [sys.executable]
    if processes > 1:
        launcher += ["-m", "torch.distributed.run", "--nproc_per_node", str(processes)]
    variables = {**environment(package), "OMP_NUM_THREADS": str(threads)}
    command = [*launcher, *map(str, words)]
    return subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, check=True).stdout


@cache
def has_precision(recipe: Path) -> bool:
    """Whether a checkout's recipe has the option `precision`; earlier ones have `bf16`."""
    return "--precision" in launch(recipe.parents[1], recipe, "--help")


def train_by_recipe(
    args: Arguments, package: Path, size: str, precision: str, folder: Path, processes: int, threads: int
) -> float:
    """Target tokens per second of `train_wmt.py` in a checkout. The first call prepares its corpus in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    recipe = package / "recipes" / "train_wmt.py"
    options: dict[str, object] = {
        "source_language": "source",
        "target_language": "target",
        "prepared": folder / "prepared",
        "output_dir": folder / "run",
        "source_tokens": args.tokens,
        "target_tokens": args.tokens,
        "max_steps": args.steps,
        "warmup_steps": WARMUP,  # explicit, since some releases refuse their default in a shorter training
        "save_strategy": "steps",
        "save_steps": args.steps,
        "eval_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        **config_sizes(size),
        "vocab_size": args.vocab_size,
    }
    is_bf16 = precision == "bfloat16"
    if has_precision(recipe):
        options["precision"] = "bf16" if is_bf16 else precision
    elif is_bf16:
        options["bf16"] = True
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    corpus = Path(args.source).resolve(), Path(args.target).resolve()
    launch(package, recipe, "--train", *corpus, *words, processes=processes, threads=threads)
    training = json.loads((folder / "run" / "all_results.json").read_text(encoding="utf-8"))["training"]
    shutil.rmtree(folder / "run")
    return training["target_tokens"] / training["seconds"]


def train_marian(args: Arguments, size: str, precision: str, folder: str, processes: int, threads: int) -> float:
    """Target tokens per second of the stock trainer, on the corpus prepared by this checkout's recipe."""
    prepared, is_bf16 = Path(folder, "ours", "prepared"), precision == "bfloat16"
    sizes = config_sizes(size) | {"vocab_size": args.vocab_size}
    work = Work(MARIAN, str(prepared), sizes, args.tokens, is_bf16, True, corpus_name="train", steps=args.steps)
    worker = Path(__file__).with_name("train_worker.py")
    output = launch(HERE, worker, json.dumps(asdict(work)), processes=processes, threads=threads)
    turns = [Turn(**json.loads(line)) for line in output.splitlines()]  # one for each process
    return sum(turn.target_tokens for turn in turns) / max(turn.seconds for turn in turns)


def compare_whole(args: Arguments, size: str, precision: str, layout: str, folder: str) -> WholeTrainings:
    """Measure whole trainings of one size and type, in turn."""
    packages = {"ours": HERE, **args.checkouts()}
    processes, threads = LAYOUTS[layout]
    speeds: dict[str, list[float]] = {name: [] for name in (*packages, MARIAN)}
    for _ in track(range(args.rounds), f"{size}, {precision}, {layout}"):
        for name, package in packages.items():
            own_folder = Path(folder, name)
            speeds[name].append(train_by_recipe(args, package, size, precision, own_folder, processes, threads))
        speeds[MARIAN].append(train_marian(args, size, precision, folder, processes, threads))
    return WholeTrainings(size=size, precision=precision, layout=layout, speeds=speeds)


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


def compare(args: Arguments, size: str, precision: str, folder: str) -> SpeedTable:
    """Measure all systems with one size and type, in turn."""
    sizes = config_sizes(size)
    sizes["vocab_size"] = max(sizes["vocab_size"], args.vocab_size)
    packages = {name: (name, HERE) for name in SYSTEMS if args.device == "cuda" or name != "ours, compiled"}
    packages |= {name: ("ours", package) for name, package in args.checkouts().items()}
    rates: list[float] = []
    with ExitStack() as exit_stack:
        workers = {}
        for name, (system, package) in packages.items():
            work = Work(system, folder, sizes, args.tokens, precision == "bfloat16", args.device == "cpu")
            workers[name] = Worker(name, work, package, exit_stack)
        for worker in workers.values():
            worker.result()  # a step to warm up
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
    whole: list[WholeTrainings] = []
    with tempfile.TemporaryDirectory() as folder:
        run = describe_run()  # now: files written later would change the working tree
        for case in product(args.sizes, args.precisions, LAYOUTS) if args.end_to_end else ():
            whole.append(compare_whole(args, *case, folder))
            yield TrainRecord(run, args.settings(), results, whole)
        if args.end_to_end:
            return
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
        cells = [
            row.system,
            f"{median(speeds):,.0f}",
            f"{ratio:.2f}",
            f"{median(row.operations_per_second) / rate:.0%}",
        ]
        lines.append([*cells, f"{row.padding_share:.1%}", f"{row.peak_bytes / 1e9:.2f}", str(row.steps)])
    return "\n\n".join([f"## {result.size}, {result.precision}", facts, markdown_table(lines)])


def whole_table(results: list[WholeTrainings]) -> str:
    """A row for each size, type and layout; next to each other system, the median of the ratios of a round."""
    others = [name for name in results[0].speeds if name != "ours"]
    lines = [["size", "type", "on", "ours", *(cell for name in others for cell in (name, "ours beside it"))]]
    for result in results:
        ours = result.speeds["ours"]
        cells = [result.size, result.precision, result.layout, f"{median(ours):,.0f}"]
        for name in others:
            speeds = result.speeds[name]
            ratio = median(mine / other for mine, other in zip(ours, speeds, strict=True))
            cells += [f"{median(speeds):,.0f}", f"{ratio:.2f}"]
        lines.append(cells)
    return markdown_table(lines)


def as_markdown(record: TrainRecord) -> str:
    settings = record.settings
    if record.whole:
        facts = (
            f"Whole trainings of {settings['steps']} steps by `train_wmt.py`, with batches of {settings['tokens']:,} "
            f"tokens a side, from the first batch to the last checkpoint, without scoring: target tokens a second, "
            f"without padding; medians of {settings['rounds']} rounds, in turn."
        )
        title = f"{headline('Speed of whole trainings', record.run)}."
        return "\n\n".join([title, facts, whole_table(record.whole)]) + "\n"
    facts = (
        f"Batches of {settings['tokens']:,} tokens a side; medians of {settings['rounds']} turns of "
        f"{settings['seconds']:g} seconds, in turn. The ratio is the median of the ratios of a round."
    )
    return "\n\n".join([f"{headline('Speed of training', record.run)}.", facts, *map(table, record.results)]) + "\n"


def main() -> None:
    run_benchmark("train", Arguments, measure, as_markdown)


if __name__ == "__main__":
    main()

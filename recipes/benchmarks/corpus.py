"""A long file through accelerate, Ray and datatrove, whose processes are killed at random.

    python recipes/benchmarks/corpus.py --model runs/demo --output recipes/benchmarks

One process translates the short sentences of the embedded corpus, repeated until they are `--lines` lines, undisturbed.
Then each engine translates the same lines with two processes. `--kills` times, after a random time, one of its
processes is killed, or the program that started it; an engine that has ended is started again. The result is whether
each line is there once and translated as by the first process, and the memory of the largest process over time. Then
one process translates a tenth of the lines in shards of several sizes, in turn: what shards cost. datatrove's step
sorts as many documents at once as a shard has lines: in other batches, sums are rounded otherwise, and of two words
that are as probable, another may win.

The record is of a small model that searches greedily, that of `make demo` with 1 + 1 layers, d_model 48 and 300 steps,
and `num_beams` 1 in its generation_config.json. Needs `pip install "ray[data]" "datatrove[io]"`. Writes `corpus.md` and
`corpus.json`.
"""

import gzip
import json
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import MISSING, dataclass, replace
from functools import partial
from hashlib import sha256
from itertools import cycle, islice
from pathlib import Path

import psutil
from frame import RECIPES, BenchmarkArguments, headline, recipe, run_benchmark

from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.decoding.line_translation import split_lines
from vaswani_transformer.experiments.reports import markdown_table
from vaswani_transformer.io.typed_json import Record
from vaswani_transformer.options.arguments import COUNT, NOT_NEGATIVE, option
from vaswani_transformer.runs.provenance import describe_run
from vaswani_transformer.runs.records import Provenance


LONGEST = 25  # characters of a sentence
FILES = 20  # that the documents of datatrove are divided among
LOADED = 300_000_000  # bytes that a process occupies once it has a model, unlike those that only start others
# One thread each. Ray's sockets need a short path in ASCII.
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": "/tmp"}


@dataclass
class Arguments(BenchmarkArguments):
    """Options of the benchmark."""

    model: str = option(MISSING, "Directory of a saved model, or its name on the Hub.")
    lines: int = option(1_000_000, "Lines to translate.", COUNT)
    lines_per_shard: int = option(50_000, "Lines of a shard.", COUNT)
    kills: int = option(5, "How often each engine is disturbed.", NOT_NEGATIVE)
    seconds_to_a_kill: float = option(60.0, "Longest time until the next process is killed.", NOT_NEGATIVE)
    rounds: int = option(5, "How often each size of shards is measured.", COUNT)
    engines: bool = option(True, "Run the engines; false keeps those that --output has, and measures shards alone.")


@dataclass(frozen=True)
class EngineResult:
    """How an engine translated the lines.

    Attributes:
        digest: SHA-256 of all translations, one a line, in order of the lines.
        minutes: Until the last one.
        killed: Processes killed, and of them the program that started the others.
        started: How often that program was started.
        gigabytes: The most memory of any of the engine's processes, in each tenth of the time.
    """

    digest: str
    minutes: float
    killed: list[int]
    started: int
    gigabytes: list[float]


@dataclass(frozen=True)
class CorpusRecord(Record):
    """`corpus.json`; processor seconds by lines of a shard, one entry per round, maybe of a run of their own."""

    run: Provenance
    lines: int
    lines_per_shard: int
    engines: dict[str, EngineResult]
    lines_of_shards: int
    seconds: dict[str, list[float]]
    run_of_shards: Provenance | None = None


def disturbed(command: list[str], kills: int, longest: float, result: Callable[[], str]) -> EngineResult:
    """Run a command until it succeeds, while `kills` of its processes are killed, at most `longest` seconds apart."""
    chance, began, started, killed = random.Random(0), time.monotonic(), 0, [0, 0]
    samples: list[tuple[float, int]] = []
    status, due = 1, began + chance.uniform(0.3, 1) * longest
    while status:
        program, started = subprocess.Popen(command, env=ENVIRONMENT, start_new_session=True), started + 1
        while (found := program.poll()) is None:
            workers, now = list(workers_of(program.pid)), time.monotonic()
            samples.append((now, max((memory for _, memory in workers), default=0)))
            if sum(killed) < kills and now > due and workers:
                victim = program.pid if chance.random() < 0.3 else chance.choice(workers)[0]
                with suppress(ProcessLookupError):
                    os.kill(victim, signal.SIGKILL)
                    killed[victim == program.pid] += 1
                due = now + chance.uniform(0.3, 1) * longest
            time.sleep(0.5)
        if not kills and found:
            raise RuntimeError(f"{' '.join(command)} ended with status {found}")
        status = found
        end_group(program.pid)
    ended = time.monotonic()
    tenths = [0] * 10
    for moment, memory in samples:
        tenth = min(9, int(10 * (moment - began) / (ended - began)))
        tenths[tenth] = max(tenths[tenth], memory)
    gigabytes = [round(memory / 1e9, 2) for memory in tenths]
    return EngineResult(result(), (ended - began) / 60, [sum(killed), killed[True]], started, gigabytes)


def workers_of(program: int) -> Iterator[tuple[int, int]]:
    """The processes of a program that have a model, with the bytes of memory that they occupy."""
    with suppress(psutil.NoSuchProcess):
        root = psutil.Process(program)
        for process in (root, *root.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                if (memory := process.memory_info().rss) > LOADED:
                    yield process.pid, memory


def end_group(program: int) -> None:
    """End what a killed program has left behind, as the end of its job does on a cluster."""
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            if os.getsid(process.pid) == program:
                process.kill()


def documents(folder: Path) -> str:
    """Digest of the translations that datatrove wrote; raises a ValueError if a document is there twice."""
    found: dict[int, str] = {}
    for path in sorted(folder.glob("*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for document in map(json.loads, file):
                number = int(document["id"])
                if number in found:
                    raise ValueError(f"document {number} is there twice")
                found[number] = document["metadata"]["translation"]
    return digest(found[number] + "\n" for number in range(len(found)))


def digest(lines: Iterator[str]) -> str:
    total = sha256()
    for line in lines:
        total.update(line.encode())
    return total.hexdigest()


def collected(work: Path, output: Path) -> str:
    """Digest of the output of a directory of shards."""
    subprocess.run(recipe("translate.py", "--work", work, "--collect"), env=ENVIRONMENT, check=True)
    with open(output, encoding="utf-8", newline="\n") as file:
        return digest(file)


def measure(args: Arguments) -> Iterator[CorpusRecord]:
    """The engines, in turn, then the sizes of shards."""
    run = describe_run()
    sentences = [english for english, _ in phrasebook("train") if len(english) <= LONGEST]
    lines = list(islice(cycle(sentences), args.lines))
    tenth = lines[: args.lines // 10]
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        if args.engines:
            engines: dict[str, EngineResult] = {}
            for system, result in run_engines(args, lines, Path(name)):
                engines[system] = result
                record = CorpusRecord(run, args.lines, args.lines_per_shard, engines, len(tenth), {})
                yield record
        else:
            record = CorpusRecord.load(Path(args.output, "corpus.json"))
        seconds = seconds_by_size(args, tenth, Path(name))
        own = None if args.engines else run
        yield replace(record, lines_of_shards=len(tenth), seconds=seconds, run_of_shards=own)


def run_engines(args: Arguments, lines: list[str], folder: Path) -> Iterator[tuple[str, EngineResult]]:
    """The name of each engine, and how it translated the lines."""
    options = ["--model", args.model, "--dtype", "float32", "--input", write_text(folder / "text", lines)]
    per_shard = ["--lines_per_shard", args.lines_per_shard]
    commands: dict[str, tuple[list[str], Callable[[], str]]] = {}
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", RECIPES / "launch/2cpu.yaml"]
    for system, program in {
        "one process": recipe("translate.py"),
        "accelerate": [*map(str, launcher), *recipe("translate.py")[1:]],
        "Ray Data": recipe("cluster/ray_data.py", "--actors", 2),
    }.items():
        work, output = folder / f"work of {system}", folder / f"output of {system}"
        divide = recipe("translate.py", *options, *per_shard, "--work", work, "--output", output)
        subprocess.run(divide, env=ENVIRONMENT, check=True)
        commands[system] = [*program, "--work", str(work)], partial(collected, work, output)
    (folder / "documents").mkdir()
    for number, part in enumerate(split_lines(lines, -(-args.lines // FILES))):
        first = number * -(-args.lines // FILES)
        rows = [json.dumps({"id": str(first + index), "text": line}) for index, line in enumerate(part)]
        write_text(folder / "documents" / f"{number:02d}.jsonl", rows)
    of_step = ["--model", args.model, "--input", folder / "documents", "--output", folder / "translated"]
    step = recipe("cluster/datatrove_step.py", *of_step, "--tasks", FILES, "--workers", 2)
    step += ["--documents_at_once", str(args.lines_per_shard)]
    commands["datatrove"] = step, partial(documents, folder / "translated" / "documents")
    for system, (command, result) in commands.items():
        kills = 0 if system == "one process" else args.kills
        yield system, disturbed(command, kills, args.seconds_to_a_kill, result)


def seconds_by_size(args: Arguments, lines: list[str], folder: Path) -> dict[str, list[float]]:
    """Processor seconds of one process for the lines, by lines of a shard, in each round."""
    options = ["--model", args.model, "--dtype", "float32", "--input", write_text(folder / "tenth", lines)]
    sizes, seconds = [2000, 10_000, 50_000, len(lines)], defaultdict(list)
    for _ in range(args.rounds):
        for size in sorted({size for size in sizes if size <= len(lines)}):
            of_size = ["--output", folder / "tenth.out", "--overwrite", "--lines_per_shard", size]
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(recipe("translate.py", *options, *of_size), env=ENVIRONMENT, check=True)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            seconds[f"{size:,}"].append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return dict(seconds)


def write_text(path: Path, lines: list[str]) -> str:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return str(path)


def as_markdown(record: CorpusRecord) -> str:
    """Two tables: the engines, and the sizes of shards."""
    expected = record.engines["one process"].digest
    head = ["engine", "output", "processes killed", "of them the first", "started", "minutes", "GB in each tenth"]
    table = [head]
    for system, engine in record.engines.items():
        cells = ["the same" if engine.digest == expected else "differs", *map(str, engine.killed), str(engine.started)]
        memory = " ".join(f"{gigabytes:.2f}" for gigabytes in engine.gigabytes)
        table.append([system, *cells, f"{engine.minutes:.1f}", memory])
    text = (
        f"{headline('A long file on several engines', record.run)}\n\n{record.lines:,} lines in shards of "
        f"{record.lines_per_shard:,}; two processes of one thread each, beside one undisturbed process.\n\n"
        f"{markdown_table(table)}\n"
    )
    if not record.seconds:
        return text
    least = {size: min(seconds) for size, seconds in record.seconds.items()}  # other programs only add to them
    whole = least[f"{record.lines_of_shards:,}"]
    sizes = [["lines of a shard", "processor seconds, least", "beside a single shard"]]
    sizes += [[size, f"{seconds:.1f}", f"{seconds / whole:.3f}"] for size, seconds in least.items()]
    own = record.run_of_shards
    by = "" if own is None else f" (`{own.command}`, commit `{own.commit}`)"
    return f"{text}\n{record.lines_of_shards:,} of the lines, by one process{by}:\n\n{markdown_table(sizes)}\n"


def main() -> None:
    run_benchmark("corpus", Arguments, measure, as_markdown)


if __name__ == "__main__":
    main()

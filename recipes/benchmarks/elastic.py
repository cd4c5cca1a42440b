"""Cost of elastic training on one process, compared with gradient accumulation and with undivided batches.

    python recipes/benchmarks/elastic.py --output recipes/benchmarks

Trains the same small model on the embedded corpus in three ways, in turn: with virtual ranks, with as many accumulation
steps, and with every global batch as one micro-batch. The result is the processor time of a step, which other work on
the machine disturbs little, as the median over the rounds. Writes `elastic.md` and `elastic.json`.
"""

import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from frame import BenchmarkArguments, headline, run_benchmark
from transformers import TrainerCallback

from vaswani_transformer import (
    NoamSchedule,
    VaswaniConfig,
    VaswaniForConditionalGeneration,
    VaswaniTokenizer,
    VaswaniTrainer,
    VaswaniTrainingArguments,
)
from vaswani_transformer.data.cleaning import encode_corpus
from vaswani_transformer.data.corpora import load_parallel_corpus, sentences
from vaswani_transformer.experiments.reports import markdown_table
from vaswani_transformer.io.typed_json import Record
from vaswani_transformer.launch.memory import keep_freed_memory
from vaswani_transformer.options.arguments import COUNT, option
from vaswani_transformer.runs.provenance import describe_run
from vaswani_transformer.runs.records import Provenance


PAIRS = 3000  # of the embedded corpus
WARM_UP = 2  # steps that are not counted, because they allocate buffers


@dataclass
class Arguments(BenchmarkArguments):
    """Options of the benchmark."""

    virtual_ranks: int = option(8, "Virtual ranks, and accumulation steps beside them.", COUNT)
    tokens: int = option(4000, "Source and target tokens of a global batch.", COUNT)
    steps: int = option(10, "Steps of a training that count.", COUNT)
    rounds: int = option(5, "Trainings of each kind.", COUNT)
    d_model: int = option(128, "Width of the model, of 2 + 2 layers.", COUNT)


@dataclass(frozen=True)
class ElasticRecord(Record):
    """`elastic.json`; seconds of processor time by kind of training, one entry per round."""

    run: Provenance
    virtual_ranks: int
    tokens: int
    steps: int
    d_model: int
    seconds: dict[str, list[float]]


class StepTimes(TrainerCallback):
    """Processor seconds of each step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
        self._began = time.process_time()

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.seconds.append(time.process_time() - self._began)


def seconds_of_training(
    args: Arguments, dataset: Dataset, tokenizer: VaswaniTokenizer, division: dict[str, Any]
) -> float:
    """Processor seconds of each step of one training, with batches divided by `division`."""
    torch.manual_seed(0)
    sizes = {"d_model": args.d_model, "d_ff": 4 * args.d_model, "num_heads": 4, "encoder_layers": 2}
    config = VaswaniConfig.from_variant("base", **sizes, decoder_layers=2, vocab_size=len(tokenizer))
    times = StepTimes()
    with tempfile.TemporaryDirectory() as folder:
        arguments = VaswaniTrainingArguments(
            folder,
            source_tokens=args.tokens,
            target_tokens=args.tokens,
            max_steps=WARM_UP + args.steps,
            disable_tqdm=True,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            **division,
        )
        VaswaniTrainer(
            VaswaniForConditionalGeneration(config),
            arguments,
            train_dataset=dataset,
            processing_class=tokenizer,
            callbacks=[NoamSchedule(100), times],
        ).train()
    return sum(times.seconds[WARM_UP:])


def measure(args: Arguments) -> Iterator[ElasticRecord]:
    """All kinds of training, in turn."""
    keep_freed_memory()
    torch.set_num_threads(1)
    corpus = load_parallel_corpus(["phrasebook"], "en", "de").select(range(PAIRS))
    tokenizer = VaswaniTokenizer.train(sentences(corpus, ["en", "de"]), vocab_size=600, show_progress=False)
    dataset = encode_corpus(corpus, tokenizer, "en", "de")
    divisions = {
        "elastic": {"virtual_ranks": args.virtual_ranks},
        "accumulated": {"gradient_accumulation_steps": args.virtual_ranks},
        "undivided": {},
    }
    found: dict[str, list[float]] = {kind: [] for kind in divisions}
    for _ in range(args.rounds):
        for kind, division in divisions.items():
            found[kind].append(seconds_of_training(args, dataset, tokenizer, division))
    yield ElasticRecord(describe_run(), args.virtual_ranks, args.tokens, args.steps, args.d_model, found)


def as_markdown(record: ElasticRecord) -> str:
    found = record.seconds
    lines = [["training", "processor seconds, median", "elastic beside it", "each round"]]
    elastic = statistics.median(found["elastic"])
    for kind, seconds in found.items():
        median = statistics.median(seconds)
        rounds = ", ".join(f"{value:.2f}" for value in seconds)
        lines.append([kind, f"{median:.2f}", f"{elastic / median:.2f}", rounds])
    facts = (
        f"one process, one thread; {record.steps} steps of {record.tokens:,} tokens a side, {record.virtual_ranks} "
        f"virtual ranks or accumulation steps, 2 + 2 layers, d_model {record.d_model}."
    )
    return f"{headline('The cost of elastic training', record.run)}, {facts}\n\n{markdown_table(lines)}\n"


def main() -> None:
    run_benchmark("elastic", Arguments, measure, as_markdown)


if __name__ == "__main__":
    main()

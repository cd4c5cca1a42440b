"""Train with a compiled step and with an eager one: losses, shapes of batches, graphs, speed.

    python recipes/benchmarks/compiled.py --source data/multi30k/train.en.gz \
        --target data/multi30k/train.de.gz

Both trainings start from the same weights and take the same number of steps. They differ in the division of the corpus
into batches, which the compiled step pads to few shapes, and in their dropout masks.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from benchmark import headline, run_benchmark
from matplotlib.figure import Figure
from torch._dynamo.utils import counters
from train import CorpusArguments, model_sizes, prepare
from train_worker import WARMUP, Work
from transformers import set_seed

from vaswani_transformer import NoamSchedule, VaswaniForConditionalGeneration, VaswaniTrainer, VaswaniTrainingArguments
from vaswani_transformer.experiments.reports import markdown_table
from vaswani_transformer.options.arguments import COUNT, option
from vaswani_transformer.runs.provenance import describe_run
from vaswani_transformer.runs.records import Provenance
from vaswani_transformer.system.typed_json import Record


LOGGING_STEPS = 10


@dataclass
class Arguments(CorpusArguments):
    """Options of the benchmark."""

    size: Literal["tiny", "small", "base"] = option("tiny", "Size of the model.")
    bf16: bool = option(False, "Compute in bfloat16 where autocast does.")
    steps: int = option(300, "Steps of each training.", COUNT)
    backend: str = option("inductor", "Backend of torch.compile; inductor needs a compiler.")


@dataclass(frozen=True, kw_only=True)
class Training:
    """A training, eager or compiled.

    Attributes:
        losses: Mean negative log-likelihood of a token in every `LOGGING_STEPS` steps, in nats.
        shapes: Number of shapes of its batches.
        graphs: Number of compiled graphs at the end of each epoch.
        padding_share: Share of padding in the tokens of the first epoch.
        target_tokens_per_second: Speed in the same steps as `losses`, without padding.
    """

    losses: list[float]
    shapes: int
    graphs: list[int]
    padding_share: float
    target_tokens_per_second: list[float]


@dataclass(frozen=True)
class CompiledRecord(Record):
    """`compiled.json`."""

    run: Provenance
    settings: dict[str, object]
    eager: Training
    compiled: Training


class WatchedTrainer(VaswaniTrainer):
    """A trainer that notes the shapes of micro-batches, and the number of graphs at the end of each epoch."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.shapes: set[tuple[int, int, int]] = set()
        self.graphs: dict[int, int] = {}  # by epoch

    def training_step(self, model: torch.nn.Module, inputs: dict[str, torch.Tensor], *args: object) -> torch.Tensor:
        self.shapes.add((*inputs["input_ids"].shape, inputs["labels"].shape[1]))
        loss = super().training_step(model, inputs, *args)
        self.graphs[int(self.state.epoch or 0)] = counters["stats"]["unique_graphs"]
        return loss


def train(args: Arguments, work: Work, is_compiled: bool) -> Training:
    set_seed(1)
    torch.compiler.reset()
    counters.clear()
    options = work.options(str(Path(work.data, "run"))) | {"max_steps": args.steps, "logging_steps": LOGGING_STEPS}
    if is_compiled:
        options |= {"torch_compile": True, "torch_compile_backend": args.backend}
    trainer = WatchedTrainer(
        VaswaniForConditionalGeneration(work.config()),
        VaswaniTrainingArguments(**options, source_tokens=args.tokens, target_tokens=args.tokens),
        train_dataset=work.corpus(),
        processing_class=work.tokenizer(),
        callbacks=[NoamSchedule(WARMUP)],
    )
    trainer.train()
    logs = [log for log in trainer.state.log_history if "nll_loss" in log]
    return Training(
        losses=[log["nll_loss"] for log in logs],
        shapes=len(trainer.shapes),
        graphs=[*trainer.graphs.values()],
        padding_share=trainer.batch_sampler.padding_share,
        target_tokens_per_second=[log["target_tokens_per_second"] for log in logs],
    )


def measure(args: Arguments) -> Iterator[CompiledRecord]:
    with tempfile.TemporaryDirectory() as folder:
        run = describe_run()
        prepare(args, folder)
        sizes = model_sizes(args.size, args.vocab_size)
        work = Work("ours", folder, sizes, args.tokens, args.bf16, args.device == "cpu")
        eager, compiled = train(args, work, is_compiled=False), train(args, work, is_compiled=True)
    yield CompiledRecord(run, args.settings(), eager, compiled)


def as_markdown(record: CompiledRecord) -> str:
    lines = [["training", "last loss", "shapes", "graphs after each epoch", "padding", "target tokens/s"]]
    for name, training in (("eager", record.eager), (f"compiled, {record.settings['backend']}", record.compiled)):
        speed = max(training.target_tokens_per_second)  # the first steps compile
        cells = [name, f"{training.losses[-1]:.3f}", str(training.shapes), ", ".join(map(str, training.graphs))]
        lines.append([*cells, f"{training.padding_share:.1%}", f"{speed:,.0f}"])
    settings = record.settings
    facts = (
        f"{settings['steps']} steps of {settings['tokens']:,} tokens a side, size {settings['size']}. The loss is the "
        f"negative log-likelihood in nats per token, averaged over the last {LOGGING_STEPS} steps; the speed is that "
        f"of the fastest {LOGGING_STEPS} steps. Shapes counts distinct batch shapes; graphs, compiled graphs."
    )
    picture = "![The losses of both trainings.](compiled.png)"
    title = headline("A compiled training step", record.run)
    return "\n\n".join([f"{title}.", facts, markdown_table(lines), picture]) + "\n"


def plot(record: CompiledRecord, path: Path) -> None:
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for name, training, style in (("eager", record.eager, "-"), ("compiled", record.compiled, "--")):
        steps = range(LOGGING_STEPS, LOGGING_STEPS * len(training.losses) + 1, LOGGING_STEPS)
        axes.plot(steps, training.losses, style, label=name)
    axes.set(xlabel="step", ylabel="negative log-likelihood (nats a token)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    run_benchmark("compiled", Arguments, measure, as_markdown, plot)


if __name__ == "__main__":
    main()

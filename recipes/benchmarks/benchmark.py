"""Common parts of the benchmarks: options, files, and the headline of a result."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeVar

import torch

from vaswani_transformer.options.arguments import option
from vaswani_transformer.options.parser import recipe_options
from vaswani_transformer.runs.provenance import published
from vaswani_transformer.runs.records import Provenance
from vaswani_transformer.system.files import atomic_write
from vaswani_transformer.system.messages import printable
from vaswani_transformer.system.typed_json import Record


PUBLISHED = Path(__file__).resolve().parents[2] / "model_cards" / "benchmarks"


@dataclass
class BenchmarkArguments:
    """Options of the benchmark."""

    output: str = option(str(PUBLISHED), "Directory for the table and the record.")

    def settings(self) -> dict[str, object]:
        """The options that affect the result, for its record."""
        return {name: published(value) for name, value in vars(self).items() if name != "output"}


@dataclass
class DeviceArguments(BenchmarkArguments):
    """Options of a benchmark that computes on one device."""

    device: Literal["cpu", "cuda"] = option("cpu", "Where to compute.")

    def __post_init__(self) -> None:
        if self.device == "cuda" and not torch.cuda.is_available():
            raise ValueError("device: there is no CUDA device; leave it out")


Arguments = TypeVar("Arguments", bound=BenchmarkArguments)
Result = TypeVar("Result", bound=Record)


def run_benchmark(
    name: str,
    arguments: type[Arguments],
    measure: Callable[[Arguments], Iterator[Result]],
    as_markdown: Callable[[Result], str],
    plot: Callable[[Result, Path], None] | None = None,
) -> None:
    """Run a benchmark with the options of the command line, and write its files.

    `measure` yields the result, or results that replace each other, so that an interruption leaves the last one.
    """
    with recipe_options(arguments) as args:
        output = Path(args.output)
        output.mkdir(parents=True, exist_ok=True)
        for result in measure(args):
            text = as_markdown(result)
            result.save(output / f"{name}.json")
            atomic_write(output / f"{name}.md", text)
            if plot is not None:
                plot(result, output / f"{name}.png")
            print(printable(text))


def headline(title: str, run: Provenance) -> str:
    """The title of a result, and the command, the commit and the machine."""
    return f"# {title}\n\n`{run.command}`, commit `{run.commit}`, {run.date}, {run.hardware}"

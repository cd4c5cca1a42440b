"""Measure Table 1 of the paper: how the time of four layer types grows with length n and width d.

    python recipes/benchmarks/table1.py
    python recipes/benchmarks/table1.py --device cuda --dtype bfloat16 --max_length 16384

It runs one layer forward on one sentence: equation 1 with 8 heads ("self-attention", all weights at once; and PyTorch's
fused kernel), without the projections, which cost O(n d^2) in every kind; an LSTM; a convolution over k = 3 positions;
and self-attention restricted to r = 128 neighbours. The growth exponent is the slope of log(time) over log(n), or
log(d), through the larger half of the sizes, because the cost of a call dominates small ones.

It then compares the restricted layer with full attention under a mask of its neighbourhood, in value, time and peak
memory, and writes `table1.md`, `table1.json` and `table1.png`.
"""

import ctypes
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression
from types import SimpleNamespace
from typing import Any, Literal

import torch
from benchmark import DeviceArguments, headline, run_benchmark
from matplotlib.figure import Figure
from rich.progress import track
from torch import nn
from torch.nn import functional as F
from train_worker import resident_bytes

from vaswani_transformer.experiments.reports import markdown_table
from vaswani_transformer.model.attention_vaswani import restricted_attention_forward
from vaswani_transformer.model.modeling_vaswani import eager_attention_forward
from vaswani_transformer.options.arguments import COUNT, POSITIVE, option
from vaswani_transformer.runs.provenance import describe_run
from vaswani_transformer.runs.records import Provenance
from vaswani_transformer.system.typed_json import Record
from vaswani_transformer.training.precision import shortest_times


HEADS, KERNEL = 8, 3

# Exponents of n and of d (Table 1).
PREDICTED = {
    "self-attention": (2, 1),
    "self-attention, fused": (2, 1),
    "recurrent": (1, 2),
    "convolutional": (1, 2),
    "self-attention, restricted": (1, 1),
}

Layer = Callable[[], torch.Tensor]
Heads = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # queries, keys and values [1, heads, n, d_k]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """Sizes of n, or of d, with the other fixed."""

    sizes: list[int]
    n: int | None = None
    d: int | None = None


@dataclass(frozen=True)
class Exponent:
    """Growth of the time of a layer over n, or over d."""

    measured: float
    predicted: float


@dataclass(frozen=True)
class Restricted:
    """Seconds and bytes of the restricted layer with r neighbours, and of full attention under its mask."""

    n: int
    d: int
    r: int
    largest_difference: float
    seconds: dict[str, float]
    peak_bytes: dict[str, int]


@dataclass(frozen=True)
class Table1Record(Record):
    """`table1.json`; seconds and exponents are by kind of layer and by "n" or "d"."""

    run: Provenance
    settings: dict[str, object]
    n: Axis
    d: Axis
    seconds: dict[str, dict[str, list[float]]]
    exponents: dict[str, dict[str, Exponent]]
    restricted: Restricted


@dataclass
class Arguments(DeviceArguments):
    """Options of the benchmark."""

    dtype: Literal["float32", "bfloat16", "float16"] = option("float32", "Type to compute in.")
    max_length: int = option(4096, "Largest n; the others are its halves, five sizes in all.", COUNT)
    max_width: int = option(2048, "Largest d; the others are its halves, four sizes in all.", COUNT)
    neighborhood: int = option(128, "r of the restricted layer.", COUNT)
    seconds: float = option(5.0, "Seconds to call the layers of one size in turn; the fastest call counts.", POSITIVE)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_length < 32 or self.max_width < 8 * HEADS:
            raise ValueError(f"max_length, max_width: must be at least 32 and {8 * HEADS}")


def random_states(args: Arguments, n: int, d: int) -> torch.Tensor:  # [1, n, d]
    return torch.randn(1, n, d, device=args.device, dtype=getattr(torch, args.dtype))


def split_heads(states: torch.Tensor) -> torch.Tensor:
    """`[1, n, d]` as `[1, heads, n, d_k]`."""
    return states.unflatten(-1, (HEADS, -1)).transpose(1, 2).contiguous()


def attend(heads: Heads, mask: torch.Tensor | None = None, neighborhood: int | None = None) -> torch.Tensor:
    """Equation 1, or restricted attention: `[1, n, heads, d_k]`."""
    module: Any = SimpleNamespace(is_causal=False, training=False)
    scaling = heads[0].shape[-1] ** -0.5
    if neighborhood is None:
        return eager_attention_forward(module, *heads, mask, scaling)[0]
    return restricted_attention_forward(module, *heads, mask, neighborhood, scaling)[0]


def layers(args: Arguments, n: int, d: int) -> dict[str, Layer]:
    """A call of each kind of layer on a sentence of n positions of width d."""
    states = random_states(args, n, d)  # [1, n, d]
    heads = (split_heads(states),) * 3
    lstm = nn.LSTM(d, d, batch_first=True).to(states)
    convolution = nn.Conv1d(d, d, KERNEL, padding=KERNEL // 2).to(states)
    channels = states.transpose(1, 2).contiguous()  # [1, d, n]
    return {
        "self-attention": lambda: attend(heads),
        "self-attention, fused": lambda: F.scaled_dot_product_attention(*heads),
        "recurrent": lambda: lstm(states)[0],
        "convolutional": lambda: convolution(channels),
        "self-attention, restricted": lambda: attend(heads, neighborhood=args.neighborhood),
    }


def fastest_calls(calls: dict[str, Layer], args: Arguments) -> dict[str, float]:
    """Seconds of the fastest call of each layer."""

    def call(name: str) -> None:
        calls[name]()
        if args.device != "cpu":
            torch.accelerator.synchronize()

    return shortest_times([*calls], call, args.seconds)


def peak_memory(layer: Layer, device: str) -> int:
    """Peak memory of a call in bytes, above the memory before it."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        layer()
        return torch.cuda.max_memory_allocated() - before
    ctypes.CDLL(None).malloc_trim(0)  # else the call would reuse freed memory
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # reset the peak
    before = resident_bytes("VmRSS")
    layer()
    return max(resident_bytes("VmHWM") - before, 1)


def exponent(sizes: list[int], times: list[float]) -> float:
    """Slope of log time over log size, through the larger half of the sizes, by least squares."""
    half = len(sizes) // 2
    return linear_regression([math.log(size) for size in sizes[half:]], [math.log(time) for time in times[half:]]).slope


@torch.no_grad()
def measure(args: Arguments) -> Iterator[Table1Record]:
    lengths = [args.max_length // 2**power for power in range(4, -1, -1)]
    widths = [args.max_width // 2**power for power in range(3, -1, -1)]
    n, d = lengths[2], widths[1]  # the fixed size while the other grows
    times: dict[str, dict[str, list[float]]] = {name: {"n": [], "d": []} for name in PREDICTED}
    for axis, sizes in (("n", [(length, d) for length in lengths]), ("d", [(n, width) for width in widths])):
        for size in track(sizes, description=f"growing {axis}"):
            for name, shortest in fastest_calls(layers(args, *size), args).items():
                times[name][axis].append(shortest)
    yield Table1Record(
        run=describe_run(),
        settings={**args.settings(), "heads": HEADS, "kernel": KERNEL},
        n=Axis(sizes=lengths, d=d),
        d=Axis(sizes=widths, n=n),
        seconds=times,
        exponents={
            name: {
                axis: Exponent(exponent(sizes, times[name][axis]), predicted)
                for axis, sizes, predicted in (("n", lengths, growth[0]), ("d", widths, growth[1]))
            }
            for name, growth in PREDICTED.items()
        },
        restricted=compare(args, args.max_length, d),
    )


def compare(args: Arguments, n: int, d: int) -> Restricted:
    """Compare the restricted layer with full attention under the neighbourhood's mask, plain and fused."""
    query, key, value = (split_heads(random_states(args, n, d)) for _ in range(3))
    heads = (query, key, value)
    positions = torch.arange(n, device=args.device)
    is_far = (positions[:, None] - positions).abs() > args.neighborhood // 2  # [n, n]
    mask = query.new_zeros(n, n).masked_fill_(is_far, -math.inf)
    calls: dict[str, Layer] = {
        "full": lambda: attend(heads, mask),
        "fused": lambda: F.scaled_dot_product_attention(*heads, mask).transpose(1, 2),
        "restricted": lambda: attend(heads, neighborhood=args.neighborhood),
    }
    shortest = fastest_calls(calls, args)
    memory = {name: peak_memory(call, args.device) for name, call in calls.items()}
    restricted = calls["restricted"]()  # [1, n, heads, d_k]
    difference = max(float((calls[name]() - restricted).abs().max()) for name in ("full", "fused"))
    return Restricted(n, d, args.neighborhood, difference, seconds=shortest, peak_bytes=memory)


def as_markdown(results: Table1Record) -> str:
    settings, restricted = results.settings, results.restricted
    exponents = [["layer", "n, predicted", "n, measured", "d, predicted", "d, measured"]]
    for name, growth in results.exponents.items():
        values = [value for axis in "nd" for value in (growth[axis].predicted, growth[axis].measured)]
        exponents.append([name, *(f"{value:.4g}" for value in values)])
    ratios = [["attention", "time, ratio", "peak memory, ratio"]]
    for name, label in (("full", "full, equation 1"), ("fused", "full, fused kernel"), ("restricted", "restricted")):
        both = [values[name] / values["restricted"] for values in (restricted.seconds, restricted.peak_bytes)]
        ratios.append([label, *(f"{ratio:.1f}" for ratio in both)])
    return "\n\n".join(
        [
            f"{headline('Table 1, measured', results.run)}, {settings['dtype']}; forward, {settings['heads']} heads, "
            f"k = {settings['kernel']}, r = {settings['neighborhood']}.",
            "Growth exponents of the time: over n at d = "
            f"{results.n.d}, over d at n = {results.d.n}, each through the larger half of the sizes.",
            markdown_table(exponents),
            "![Milliseconds over n and over d for each kind of layer, beside the growth by Table 1](table1.png)",
            f"Restricted attention beside full attention under the same mask, n = {restricted.n}, d = {restricted.d}, "
            f"r = {restricted.r}; the largest difference of their results is {restricted.largest_difference:.1e}.",
            markdown_table(ratios) + "\n",
        ]
    )


def plot(results: Table1Record, path: Path) -> None:
    """Plot measured times as points, and lines of the predicted growth through the largest of them."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    panels = figure.subplots(2, len(results.seconds), sharex="row", sharey=True)
    for row, axis, fixed in zip(panels, "nd", (f"d = {results.n.d}", f"n = {results.d.n}"), strict=True):
        sizes = (results.n if axis == "n" else results.d).sizes
        for axes, (name, seconds_of) in zip(row, results.seconds.items(), strict=True):
            times, growth = [1000 * value for value in seconds_of[axis]], results.exponents[name][axis]
            axes.plot(sizes, times, "o")
            axes.plot(sizes, [times[-1] * (size / sizes[-1]) ** growth.predicted for size in sizes], "--", color="C0")
            exponents = f"${axis}^{{{growth.measured:.2f}}}$\n(${axis}^{growth.predicted:g}$)"
            axes.text(0.06, 0.94, exponents, va="top", transform=axes.transAxes)
            axes.set(xscale="log", yscale="log", xlabel=f"{axis}, at {fixed}")
            axes.set_xticks(sizes[:: len(sizes) - 1], sizes[:: len(sizes) - 1])
            axes.set_xticks([], minor=True)
            axes.grid(alpha=0.3)
            if axis == "n":
                axes.set_title(name.replace(", ", ",\n"), fontsize=10)
        row[0].set_ylabel("milliseconds")
    figure.suptitle("Time of a layer: measured (dots), and growth by Table 1 (dashed, in brackets)", fontsize=11)
    figure.savefig(path, dpi=120)


def main() -> None:
    run_benchmark("table1", Arguments, measure, as_markdown, plot)


if __name__ == "__main__":
    main()

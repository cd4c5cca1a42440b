"""Figures: attention as in the paper's Figures 3 to 5, attention entropy, and the positional encoding (3.5)."""

import io
import re
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from matplotlib import colormaps, rc_context
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..model.modeling_vaswani import sinusoidal_positions
from ..system.files import atomic_write
from .attention import AttentionWeights, Kind, merge_words, read_attention
from .tokens import join_words, word_starts


_logger = logging.get_logger(__name__)

_LABELS = {  # title, and headings of the left and the right column
    "encoder": ("Encoder self-attention", "source", "source"),
    "decoder": ("Decoder self-attention", "translation so far", "next word"),
    "cross": ("Encoder-decoder attention", "source", "translation"),
}

Color = tuple[float, float, float]

_LINE = 0.24  # inches between two words
_LENGTH = 2.6  # inches of the lines between words
_GAP = 0.04  # between the lines and the words, as a share of their length
_DPI = 150  # for a PNG
_FAINTEST = 0.01  # share of the largest weight; fainter lines would be invisible


class Picture:
    """A figure of matplotlib, which notebooks show; `bbox` is "tight" to grow the figure to its contents."""

    def __init__(self, figure: Figure, bbox: str | None = None) -> None:
        self.figure, self.bbox = figure, bbox

    def save(self, path: str | Path) -> None:
        """Write the picture atomically, in the format of the file's suffix; SVG and PNG files are reproducible.

        A PNG has only the characters of matplotlib's `font.family`, and boxes for others, with a warning; the text of
        an SVG remains text, for which the reader's program chooses fonts.
        """
        atomic_write(path, [self._content(Path(path).suffix.lower().removeprefix("."))])

    def _repr_svg_(self) -> str:
        return self._content("svg").decode()

    def _content(self, file_format: str) -> bytes:
        buffer = io.BytesIO()
        metadata = {"Date": None} if file_format == "svg" else None
        with (
            rc_context({"svg.hashsalt": "vaswani", "svg.fonttype": "none"}),
            warnings.catch_warnings(record=True) as seen,
        ):
            self.figure.savefig(buffer, format=file_format, dpi=_DPI, metadata=metadata, bbox_inches=self.bbox)
        missing = re.findall(r"Glyph (\d+) ", " ".join(str(warning.message) for warning in seen))
        if missing and file_format != "svg":
            _logger.warning(
                f"{file_format}: the picture has boxes in place of {''.join(map(chr, sorted({*map(int, missing)})))}, "
                "which matplotlib's font lacks; save it as .svg, or install a font that has them, such as Noto Sans "
                "CJK, and name it in font.family of a matplotlibrc"
            )
        return buffer.getvalue()


def attention_view(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    source: str,
    target: str | None = None,
    *,
    merge: bool = False,
    **options: Any,
) -> Picture:
    """Draw an encoder-decoder model's attention, as in Figures 3 to 5.

    Args:
        model, tokenizer, source, target: As for `read_attention`.
        merge: Merge the tokens of a word, as `merge_words` does.
        options: Arguments of `draw_attention`.
    """
    weights = read_attention(model, tokenizer, source, target)
    return draw_attention(merge_words(weights) if merge else weights, **options)


def draw_attention(
    weights: AttentionWeights,
    *,
    kind: Kind = "encoder",
    layer: int | None = None,
    heads: Sequence[int] | None = None,
    words: Sequence[str] | None = None,
) -> Picture:
    """Draw one layer's attention as lines from words on the right to the words on the left that they attend to.

    The larger a weight, the wider and more opaque its line; the picture states the largest weight.

    Args:
        weights: The result of `read_attention`, or of `merge_words`.
        kind: "encoder", "decoder" (self-attention) or "cross" (encoder-decoder attention).
        layer: Number of the layer, counted from 1 as in the paper; by default the last one.
        heads: Numbers of the heads to draw, from 1, in a colour each; by default all if `words` are given, otherwise
            the mean over them.
        words: Words whose lines to draw, as the right column shows them, or whole words of several tokens; by default
            all.

    Raises:
        ValueError: There is no such layer, head or word.
    """
    rows, columns, layers = weights.select(kind)
    layer = len(layers) if layer is None else layer
    is_mean = heads is None and words is None
    heads = range(1, layers.shape[1] + 1) if heads is None else sorted(set(heads))
    _require_numbers("layer", [layer], len(layers))
    _require_numbers("heads", heads, layers.shape[1])
    chosen = _chosen_rows(weights, kind, words)  # [rows]
    drawn = layers[layer - 1, [head - 1 for head in heads]] * chosen[:, None]  # [heads, rows, columns]
    colors = [_head_color(head, layers.shape[1]) for head in heads]
    patches = [Patch(color=color, label=str(head)) for head, color in zip(heads, colors, strict=True)]
    which = "heads"
    if is_mean:
        drawn, patches, which = drawn.mean(0, keepdims=True), [], f"mean of {len(heads)} heads"
    largest = drawn.max()

    title, left, right = _LABELS[kind]
    longest = max(len(rows), len(columns))
    # The shorter column is spread over as many lines as the longer one has.
    row_places, column_places = (np.linspace(0, longest - 1, len(texts)) for texts in (rows, columns))
    figure = Figure(figsize=(_LENGTH, _LINE * longest))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(0, 1), ylim=(longest - 0.5, -0.5))
    axes.set_axis_off()
    axes.legend(
        handles=patches,
        title=f"{title}, layer {layer} of {len(layers)}, {which}",
        loc="lower center",
        bbox_to_anchor=((1 - _GAP) / 2, 1 + 1.3 / longest),
        ncols=8,
        fontsize=8,
        frameon=False,
        handlelength=0.7,
        columnspacing=0.8,
    )
    caption = f"← attends to (strongest line: {largest:.0%})"
    axes.text(0.5, -1, caption, ha="center", va="center", fontsize=8, color="0.4")
    _write_column(axes, -_GAP, left, columns, column_places, ["black"] * len(columns), ha="right")
    _write_column(axes, 1 + _GAP, right, rows, row_places, ["black" if each else "0.65" for each in chosen])
    _draw_lines(axes, drawn / largest, row_places, column_places, colors)
    return Picture(figure, "tight")


def _require_numbers(name: str, numbers: Sequence[int], largest: int) -> None:
    if not all(1 <= number <= largest for number in numbers):
        raise ValueError(f"{name}: must be 1 to {largest}, is {', '.join(map(str, numbers))}")


def _chosen_rows(weights: AttentionWeights, kind: Kind, words: Sequence[str] | None) -> np.ndarray:
    """Whether each row is one of the words, or belongs to one: `[rows]`.

    Raises:
        ValueError: A word is not in the sentence.
    """
    rows, _, _ = weights.select(kind)
    if words is None:
        return np.ones(len(rows), dtype=bool)
    starts = word_starts(weights.source_continues if kind == "encoder" else weights.target_continues)
    texts = join_words(rows, starts)
    whole = np.repeat(texts, np.diff([*starts, len(rows)])).tolist()  # for each row, its word
    if unknown := set(words).difference(rows, texts):
        known = ", ".join(dict.fromkeys(filter(None, texts)))
        raise ValueError(f"words: {min(unknown)!r} is not a word that attends; choose from {known}")
    return np.array([row in words or word in words for row, word in zip(rows, whole, strict=True)])


def _head_color(head: int, num_heads: int) -> Color:
    """The colour of a head, regardless of which other heads are drawn."""
    if num_heads <= 10:
        return colormaps["tab10"](head - 1)[:3]
    return colormaps["turbo"]((head - 0.5) / num_heads)[:3]


def _write_column(
    axes: Axes, x: float, heading: str, words: Sequence[str], places: np.ndarray, colors: Sequence[str], **style: Any
) -> None:
    """Write words below each other at these positions, under a heading, with at most 32 characters each."""
    axes.text(x, -1, heading, va="center", fontsize=8, color="0.4", **style)
    for y, word, color in zip(places, words, colors, strict=True):
        shown = f"{word[:31]}…" if len(word) > 32 else word or "·"
        axes.text(x, y, shown, va="center", fontsize=10, color=color, parse_math=False, **style)


def _draw_lines(axes: Axes, drawn: np.ndarray, rows: np.ndarray, columns: np.ndarray, colors: Sequence[Color]) -> None:
    """Draw `drawn` `[heads, rows, columns]` between words at these positions, strong lines above weak ones."""
    lines = np.argwhere(drawn >= _FAINTEST)  # [lines, 3]: head, row and column
    lines = lines[np.argsort(drawn[tuple(lines.T)], kind="stable")]
    weights = drawn[tuple(lines.T)]
    apart = min(0.6 / len(drawn), 0.12)  # between the lines of two heads, so that none hides another
    shifts = apart * (np.arange(len(drawn)) - (len(drawn) - 1) / 2)
    segments = [[(0, columns[column] + shifts[head]), (1, rows[row] + shifts[head])] for head, row, column in lines]
    styles = [(*colors[head], weight) for head, weight in zip(lines[:, 0], weights, strict=True)]
    axes.add_collection(LineCollection(segments, colors=styles, linewidths=0.5 + 3 * weights))


def attention_entropy(weights: AttentionWeights) -> dict[Kind, tuple[np.ndarray, float]]:
    """Entropy of each head in bits, and the largest possible entropy, which equal weights have.

    The entropy is the mean over the rows. A head of k bits attends as if to 2^k tokens with equal weights.

    Returns:
        For each kind of attention, `[layers, heads]`, and the largest possible value.
    """
    entropies = {}
    for kind in get_args(Kind):
        rows, columns, layers = weights.select(kind)
        logarithms = np.log2(layers, out=np.zeros_like(layers), where=layers > 0)
        seen = np.arange(len(rows)) + 1 if kind == "decoder" else np.full(len(rows), len(columns))  # tokens of a row
        entropies[kind] = -(layers * logarithms).sum(-1).mean(-1), float(np.log2(seen).mean())
    return entropies


def positions_view(d_model: int = 512, length: int = 100) -> Picture:
    """Draw the positional encoding (3.5): a row for each position."""
    encoding = sinusoidal_positions(torch.arange(length), d_model)  # [length, d_model]
    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(encoding.numpy(), vmin=-1, vmax=1, cmap="RdBu", aspect="auto")
    axes.set_xlabel("dimension")
    axes.set_ylabel("position")
    axes.set_title(f"Positional encoding, d_model = {d_model}")
    figure.colorbar(image, ax=axes)
    return Picture(figure)

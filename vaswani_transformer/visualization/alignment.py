"""Encoder-decoder attention (3.2.3) as an alignment: which words of the source each word of the translation reads."""

import numpy as np
from matplotlib.figure import Figure

from .attention import AttentionWeights, merge_words
from .figures import Picture, cut


_CELL, _CHARACTER = 0.3, 0.085  # inches of each


def draw_alignment(weights: AttentionWeights) -> Picture:
    """Draw encoder-decoder attention between words as a heat map: the mean of all layers and heads.

    Args:
        weights: Of one pair of sentences, as `read_attention` reads them.

    Returns:
        A picture: a row for each word of the translation, a column for each word of the source.
    """
    rows, columns, layers = merge_words(weights).select("cross")
    rows, columns = ([cut(word, 24) for word in words] for words in (rows, columns))
    means: np.ndarray = layers.mean((0, 1))  # [rows, columns]
    left, top = (0.2 + _CHARACTER * max(map(len, words)) for words in (rows, columns))
    width, height = left + _CELL * len(columns) + 0.1, top + _CELL * len(rows) + 0.1
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((left / width, 0.1 / height, _CELL * len(columns) / width, _CELL * len(rows) / height))
    axes.imshow(means, vmin=0, vmax=float(means.max()), cmap="Blues", aspect="auto", interpolation="none")
    axes.tick_params(length=0, labelsize=9, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.set_xticks(range(len(columns)), columns, rotation=90, parse_math=False)
    axes.set_yticks(range(len(rows)), rows, parse_math=False)
    axes.set_xticks(np.arange(len(columns) + 1) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(rows) + 1) - 0.5, minor=True)
    axes.grid(which="minor", color="0.85", linewidth=0.5)
    axes.tick_params(which="minor", length=0)
    return Picture(figure)

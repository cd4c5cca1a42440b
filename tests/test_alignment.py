"""The picture of an alignment: its words, and how dark its cells are."""

import numpy as np

from vaswani_transformer.visualization.alignment import draw_alignment
from vaswani_transformer.visualization.attention import AttentionWeights, merge_words


def pair() -> AttentionWeights:
    random = np.random.default_rng(0)
    weights = random.random((2, 3, 3, 4))
    return AttentionWeights(
        source=["$x^2$", "lo", "ng", "</s>"],
        target=["<b>", "Wort" * 20, "</s>"],
        source_continues=[False, False, True, False],
        target_continues=[False, False, False],
        encoder=np.ones((2, 3, 4, 4)) / 4,
        decoder=np.ones((2, 3, 3, 3)) / 3,
        cross=weights / weights.sum(-1, keepdims=True),
    )


def test_cells_are_means_between_words():
    axes = draw_alignment(pair()).figure.axes[0]
    drawn = axes.images[0].get_array()
    cross = merge_words(pair()).cross
    expected = [[np.mean([head[row, column] for layer in cross for head in layer]) for column in range(3)]
                for row in range(3)]  # fmt: skip
    np.testing.assert_allclose(drawn, expected)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["$x^2$", "long", "</s>"]


def test_words_are_drawn_as_text_and_long_ones_cut():
    picture = draw_alignment(pair())._repr_svg_()
    assert "$x^2$" in picture
    assert "&lt;b&gt;" in picture
    assert "Wort" * 7 not in picture
    assert "…" in picture

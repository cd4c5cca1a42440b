"""Pictures of attention: the lines of an SVG, read back, are the weights; entropy and positions as by loops."""

import math
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.colors import to_hex

from vaswani_transformer.visualization.attention import AttentionWeights
from vaswani_transformer.visualization.figures import (
    attention_entropy,
    draw_attention,
    positions_view,
)


TAB10 = ["#1f77b4", "#ff7f0e", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#7f7f7f"]
SOURCE = ["$x$", "<b>&", "שלום", "日本", "", "un", "til", "</s>"]
TARGET = ["$x$", "x" * 50, "مرحبا", "til", "</s>"]
KINDS = ("encoder", "decoder", "cross")
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def weights() -> AttentionWeights:
    random = np.random.default_rng(0)
    rows, columns = len(TARGET), len(SOURCE)
    decoder = random.random((3, 8, rows, rows)).astype(np.float32) * np.tri(rows, dtype=np.float32)
    found = {
        "encoder": random.random((2, 8, columns, columns)).astype(np.float32),
        "decoder": decoder,
        "cross": random.random((3, 8, rows, columns)).astype(np.float32) ** 8,  # some too faint to be drawn
    }
    continues = [False] * 6 + [True, False], [False] * rows
    return AttentionWeights(
        SOURCE, TARGET, *continues, **{kind: array / array.sum(-1, keepdims=True) for kind, array in found.items()}
    )


def texts_of(svg: str) -> list[tuple[str, float, float, str]]:
    """Text, place and style of each text."""
    nodes = list(ElementTree.fromstring(svg).iter(f"{SVG}text"))
    return [(node.text, float(node.get("x")), float(node.get("y")), node.get("style")) for node in nodes]


def drawn_weights(svg: str, rows: int, columns: int) -> np.ndarray:
    """Opacities `[8, rows, columns]` of the lines, by the words that they meet."""
    texts = texts_of(svg)
    caption = next(place for place, text in enumerate(texts) if text[0].startswith("← attends to"))
    heights = [y for _, _, y, _ in texts[caption + 2 :]]  # after the left heading
    left, right = heights[:columns], heights[columns + 1 : columns + 1 + rows]
    found = np.zeros((8, rows, columns))
    [collection] = [node for node in ElementTree.fromstring(svg).iter() if node.get("id") == "LineCollection_1"]
    for path in collection.iter(f"{SVG}path"):
        start, end = (float(y) for y in re.findall(r"[ML] \S+ (\S+)", path.get("d")))
        style = dict(part.split(": ") for part in path.get("style").split("; "))
        row, column = (int(np.argmin([abs(y - place) for y in side])) for side, place in ((right, end), (left, start)))
        place = TAB10.index(style["stroke"]), row, column
        assert found[place] == 0
        found[place] = float(style.get("stroke-opacity", 1))
    return found


def relative(weights: np.ndarray) -> np.ndarray:
    """Shares of the largest weight, without those too faint to be drawn."""
    shares = weights / weights.max()
    return np.where(shares < 0.01, 0, shares)


@pytest.mark.parametrize("kind", KINDS)
def test_lines_are_the_weights(weights, kind):
    rows, columns, layers = weights.select(kind)
    for layer in (1, None):
        expected = relative(layers[(layer or len(layers)) - 1])
        svg = draw_attention(weights, kind=kind, layer=layer, heads=range(1, 9))._repr_svg_()
        np.testing.assert_allclose(drawn_weights(svg, len(rows), len(columns)), expected, atol=1e-5)
    assert kind != "cross" or (expected == 0).any()


def test_the_mean_over_the_heads_is_drawn_by_default(weights):
    mean = weights.cross[2].mean(0)
    svg = draw_attention(weights, kind="cross")._repr_svg_()
    np.testing.assert_allclose(drawn_weights(svg, *mean.shape)[0], relative(mean), atol=1e-5)
    texts = [text for text, *_ in texts_of(svg)]
    assert f"← attends to (strongest line: {mean.max():.0%})" in texts
    assert "Encoder-decoder attention, layer 3 of 3, mean of 8 heads" in texts


def test_only_chosen_heads_and_words_have_lines(weights):
    svg = draw_attention(weights, layer=2, heads=[8, 3], words=["until", "$x$"])._repr_svg_()
    expected = np.zeros_like(weights.encoder[1])
    for head in (2, 7):
        for row in (0, 5, 6):
            expected[head, row] = weights.encoder[1, head, row]
    np.testing.assert_allclose(drawn_weights(svg, 8, 8), relative(expected), atol=1e-5)
    greys = [text for text, _, _, style in texts_of(svg) if to_hex("0.65") in style]
    assert greys == ["<b>&", "שלום", "日本", "·", "</s>"]


def test_characters_without_a_font_are_named_once_and_stay_text_in_an_svg(weights, tmp_path, caplog, recwarn):
    picture = draw_attention(weights, kind="cross")
    picture.save(tmp_path / "a.svg")
    assert not caplog.records
    picture.save(tmp_path / "a.png")
    [record] = caplog.records
    assert record.getMessage().startswith("png: the picture has boxes in place of 日本, which matplotlib's font lacks;")
    assert not recwarn


def test_entropy_as_by_loops(weights):
    for kind, (entropy, maximum) in attention_entropy(weights).items():
        rows, columns, layers = weights.select(kind)
        for layer, head in np.ndindex(entropy.shape):
            bits = [
                -sum(weight * math.log2(weight) for weight in row.tolist() if weight) for row in layers[layer, head]
            ]
            assert entropy[layer, head] == pytest.approx(sum(bits) / len(rows), abs=1e-5)
        seen = [row + 1 if kind == "decoder" else len(columns) for row in range(len(rows))]
        assert maximum == pytest.approx(sum(map(math.log2, seen)) / len(seen))
        assert entropy.max() <= maximum


def test_positions_are_the_papers_formula():
    drawn = positions_view(6, 5).figure.axes[0].images[0].get_array()
    for position, dimension in np.ndindex(5, 6):
        angle = position / 10000 ** (dimension // 2 * 2 / 6)
        expected = math.cos(angle) if dimension % 2 else math.sin(angle)
        assert drawn[position, dimension] == pytest.approx(expected, abs=1e-6)


def test_words_that_are_not_in_the_sentence_cannot_be_drawn(weights):
    with pytest.raises(ValueError, match="words: 'cat' is not a word that attends"):
        draw_attention(weights, words=["cat"])

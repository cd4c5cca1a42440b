"""Projection: the bounds hold for sentences whose quality the fit did not see."""

import numpy as np
import pytest

from vaswani_transformer.evaluation.confidence import fit_curve
from vaswani_transformer.evaluation.projection import add_bounds, project


def draw(sentences, seed, spread=12.0):
    """Log-probabilities, qualities that follow them, the less closely the worse they are, and lengths."""
    random = np.random.default_rng(seed)
    values = -random.gamma(3.0, 0.3, sentences)
    quality = 90 + 25 * values + random.normal(size=sentences) * spread * (0.3 - values)
    return values, quality.clip(0, 100), ["x" * length for length in random.integers(5, 100, sentences)]


def measured(sentences, seed):
    values, quality, _ = draw(sentences, seed)
    expected = np.zeros(sentences)
    for half in (0, 1):
        curve = np.array(fit_curve(values[1 - half :: 2], quality[1 - half :: 2]))
        expected[half::2] = np.interp(values[half::2], curve[:, 0], curve[:, 1])
    return add_bounds(fit_curve(values, quality), values, quality - expected)


@pytest.mark.parametrize("sentences", [200, 2000])
def test_bounds_hold_on_other_sentences(sentences):
    inside, whole, low_half, high_half = [], [], [], []
    for seed in range(40):
        values, quality, sources = draw(1000, 1000 + seed)
        projection = project(measured(sentences, seed), values.tolist(), sources, [])
        hits = np.array([line.low <= score <= line.high for line, score in zip(projection.lines, quality, strict=True)])
        inside.append(hits.mean())
        order = values.argsort()
        low_half.append(hits[order[:500]].mean())
        high_half.append(hits[order[500:]].mean())
        truth = np.average(quality, weights=[len(source) for source in sources])
        whole.append(projection.low <= truth <= projection.high)
    assert np.mean(inside) == pytest.approx(0.8, abs=0.03)
    assert np.mean(low_half) == pytest.approx(0.8, abs=0.05)  # not on average only, though errors differ
    assert np.mean(high_half) == pytest.approx(0.8, abs=0.05)
    assert 0.85 <= np.mean(whole) <= 1


def test_the_whole_of_fewer_sentences_and_of_fewer_measured_is_less_certain():
    values, _, sources = draw(1000, 7)

    def width(measured_sentences, rows):
        projection = project(measured(measured_sentences, 1), values[:rows].tolist(), sources[:rows], [])
        return projection.high - projection.low

    assert width(200, 1000) > 1.5 * width(2000, 1000)
    assert width(2000, 50) > 1.5 * width(2000, 1000)


def test_lines_to_check_and_blank_lines():
    curve = [[-1.0, 20.0, 10.0, 30.0, 8.0, 100], [0.0, 80.0, 60.0, 100.0, 16.0, 100]]
    projection = project(curve, [-0.5, None, -2.0, 0.5], ["ab", "", "abcd", "ab"], pathological=[1, 3])
    assert projection.check == [1, 3]
    assert projection.outside == pytest.approx(200 / 3)
    first, blank, second, third = projection.lines
    assert blank is None
    assert (first.chrf, first.low, first.high) == (50, 35, 65)
    assert (second.chrf, second.low, second.high) == (20, 0, 30)  # not measured
    assert (third.chrf, third.low) == (80, 60)
    assert projection.chrf == pytest.approx((2 * 50 + 4 * 20 + 2 * 80) / 8)
    lines = (0.25 * 12) ** 2 + (0.5 * 8) ** 2 + (0.25 * 16) ** 2
    points = ((0.125 + 0.5) * 8) ** 2 / 100 + ((0.125 + 0.25) * 16) ** 2 / 100
    assert projection.high - projection.chrf == pytest.approx(1.96 * (lines + points) ** 0.5)

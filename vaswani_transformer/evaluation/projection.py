"""Projection: the expected chrF of translations without references, from measurements by `--confidence`."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


_COVERAGE, _WHOLE_COVERAGE = 0.8, 1.96  # share of the lines within their bounds; deviations of 95 % for the whole
_NEAREST = 40  # least sentences for a point's bounds


@dataclass(frozen=True)
class ProjectedLine:
    """The expected chrF of a line, and bounds within which the chrF of four lines of five lies.

    A line less probable than the measured ones gets the values of the least probable, with 0 as its lower bound.
    """

    chrf: float
    low: float
    high: float


@dataclass(frozen=True)
class Projection:
    """The expected chrF of a text.

    Attributes:
        chrf: Mean of the lines, weighted by the lengths of the sources: close to the chrF of the whole text.
        low, high: Bounds of its 95 % interval, for text similar to the development set.
        outside: Percentage of the lines whose log-probability is outside the range of the development set.
        lines: The lines; None for a blank source.
        check: Numbers, from 1, of the lines that are less probable than that range, or whose translation is
            pathological.
    """

    chrf: float
    low: float
    high: float
    outside: float
    lines: list[ProjectedLine | None]
    check: list[int]


def add_bounds(curve: Sequence[Sequence[float]], values: np.ndarray, errors: np.ndarray) -> list[list[float]]:
    """Add to each point of a confidence curve its errors on sentences of similar log-probability.

    Args:
        curve: Points of log-probability per token and expected chrF.
        values: `[sentences]` log-probabilities per token.
        errors: `[sentences]` chrF minus the chrF expected by a curve of other sentences.

    Returns:
        Points of log-probability, chrF, lower and upper bound of chrF (split-conformal, from the nearest sentences),
        the standard deviation of the errors, and the number of sentences that are nearest to this point.
    """
    near = min(len(values), max(_NEAREST, len(values) // 10))
    rank = max(0, int((near + 1) * (1 - _COVERAGE) / 2) - 1)
    distances = np.abs(values[:, None] - np.array(curve)[:, 0])  # [sentences, points]
    counts = np.bincount(distances.argmin(1), minlength=len(curve))
    points = []
    for (value, chrf), column, count in zip(curve, distances.T, counts.tolist(), strict=True):
        ordered = np.sort(errors[np.argsort(column, kind="stable")[:near]])
        bounds = max(0.0, chrf + ordered[rank]), min(100.0, chrf + ordered[-1 - rank])
        points.append([value, chrf, *(round(float(number), 2) for number in (*bounds, ordered.std())), float(count)])
    return points


def project(
    curve: Sequence[Sequence[float]], means: Sequence[float | None], sources: Sequence[str], pathological: Sequence[int]
) -> Projection:
    """Project the scores of a text.

    Args:
        curve: Points returned by `add_bounds`.
        means: Log-probability per token of each translation; None for a blank source.
        sources: The translated lines.
        pathological: Numbers, from 1, of the lines with pathological translations.
    """
    values, chrfs, lows, highs, deviations, counts = np.array(curve).T  # [points] each
    rows = [row for row, mean in enumerate(means) if mean is not None]
    known = np.array([means[row] for row in rows])
    weights = np.array([len(sources[row]) for row in rows], dtype=float)
    weights /= weights.sum()
    chrf, low, high = (np.interp(known, values, column) for column in (chrfs, lows, highs))
    low[known < values[0]] = 0.0  # the quality of such lines was not measured
    # Errors of the lines are independent. Errors of the curve are not: a point's error moves all lines near it.
    shares = np.array([np.interp(known, values, point) @ weights for point in np.eye(len(values))])  # [points]
    variance = np.sum((weights * np.interp(known, values, deviations)) ** 2)
    variance += np.sum((shares * deviations) ** 2 / np.maximum(counts, 1))
    whole, half = float(chrf @ weights), _WHOLE_COVERAGE * float(np.sqrt(variance))
    lines: list[ProjectedLine | None] = [None] * len(sources)
    for row, *numbers in zip(rows, chrf, low, high, strict=True):
        lines[row] = ProjectedLine(*(round(float(number), 2) for number in numbers))
    return Projection(
        chrf=whole,
        low=max(0.0, whole - half),
        high=min(100.0, whole + half),
        outside=100 * float(np.mean((known < values[0]) | (known > values[-1]))),
        lines=lines,
        check=sorted({*pathological, *(row + 1 for row, mean in zip(rows, known, strict=True) if mean < values[0])}),
    )

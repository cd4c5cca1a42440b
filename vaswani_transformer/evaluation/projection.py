"""Projection: the chrF to expect of translations without references, by what `--confidence` measured on others."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


_COVERAGE, _WHOLE_COVERAGE = 0.8, 1.96  # share of the lines within their bounds; deviations of 95 % for the whole
_NEAREST = 40  # sentences of a point's bounds at least


@dataclass(frozen=True)
class ProjectedLine:
    """The chrF to expect of a line, and bounds within which the chrF of four lines of five lies.

    A line that is less probable than those that were measured has the least probable's, and 0 as its lower bound.
    """

    chrf: float
    low: float
    high: float


@dataclass(frozen=True)
class Projection:
    """The chrF to expect of a text.

    Attributes:
        chrf: Mean of the lines, weighted by the lengths of the sources: close to the chrF of the whole text.
        low, high: Bounds of its 95 % interval, for text that is like the development set.
        outside: Percentage of the lines whose log-probability is beyond the range of the development set.
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
    """Add to each point of a confidence curve what its errors were, on sentences of similar log-probability.

    Args:
        curve: Points of log-probability a token and expected chrF.
        values: `[sentences]` log-probabilities a token.
        errors: `[sentences]` chrF minus the chrF expected by a curve that other sentences made.

    Returns:
        Its points: log-probability, chrF, lower and upper bound of chrF (split-conformal, from the nearest sentences),
        the standard deviation of the errors, and the number of sentences that are nearer to this point than to others.
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
        curve: Points as from `add_bounds`.
        means: Log-probability a token of each translation; None for a blank source.
        sources: The lines that were translated.
        pathological: Numbers, from 1, of the lines with pathological translations.
    """
    values, chrfs, lows, highs, deviations, counts = np.array(curve).T  # [points] each
    rows = [row for row, mean in enumerate(means) if mean is not None]
    known = np.array([means[row] for row in rows])
    weights = np.array([len(sources[row]) for row in rows], dtype=float)
    weights /= weights.sum()
    chrf, low, high = (np.interp(known, values, column) for column in (chrfs, lows, highs))
    low[known < values[0]] = 0.0  # how bad such lines are was not measured
    # Errors of the lines are independent. The curve's are not: a point's moves all lines that are near it.
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

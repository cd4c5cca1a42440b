"""Confidence: the expected chrF of a translation, from its log-probability by the model."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.stats import spearmanr

from .scores import chrf_score, sentence_chrf


# Least sentences of a point of the curve, and most points.
_SENTENCES_A_POINT, _POINTS = 20, 20
LEAST_SENTENCES = 2 * 5 * _SENTENCES_A_POINT  # five points for each half
# By chance, rank correlations of 200 sentences have a standard deviation of 0.07.
LEAST_CORRELATION = 0.2

_BINS = 10  # tenths of the translations
_TOKENS = (0.025, 0.975)  # quantiles of the numbers of tokens
_LEFT_OUT = (0.1, 0.2)  # shares of the translations, the least confident ones


@dataclass(frozen=True)
class CalibrationBin:
    """Translations of similar confidence: their number, mean confidence and mean chrF."""

    sentences: int
    confidence: float
    chrf: float


@dataclass(frozen=True)
class ConfidenceReport:
    """Agreement of confidence and chrF, both from 0 to 100.

    The confidence of each half of the sentences is from a curve fitted to the other half.

    Attributes:
        curve: Fitted to all sentences: points of mean log-probability a token, and chrF, both ascending; the first and
            the last bound the measured range.
        rank_correlation: Spearman's correlation of mean log-probability per token and chrF.
        calibration_error: Mean distance of confidence and chrF of a bin, weighted by its sentences.
        bins: Translations by confidence, ascending.
        remaining: chrF of the test set without the least confident share of its translations, by that share: 0, 0.1,
            0.2.
        tokens: The 2.5 % and 97.5 % quantiles of the number of tokens; outside them no confidence is reported.
    """

    curve: list[list[float]]
    rank_correlation: float
    calibration_error: float
    bins: list[CalibrationBin]
    remaining: dict[str, float]
    tokens: list[int]

    @property
    def predicts_quality(self) -> bool:
        """Whether the rank correlation is large enough for confidences to be of use."""
        return self.rank_correlation >= LEAST_CORRELATION


def measure_confidence(
    means: Sequence[float], lines: Sequence[str], references: Sequence[Sequence[str]], tokens: Sequence[int]
) -> ConfidenceReport | None:
    """Fit the curve, and measure its value by cross-validation; None if too few sentences differ.

    Args:
        means: Mean log-probability per token of each translation.
        lines: The translations.
        references: The references of each translation.
        tokens: Number of tokens of each translation.
    """
    quality, values = sentence_chrf(lines, references), np.asarray(means)
    if len(lines) < LEAST_SENTENCES or np.ptp(values) == 0 or np.ptp(quality) == 0:
        return None
    confidence = np.zeros(len(values))
    for half in (0, 1):
        curve = np.array(fit_curve(values[1 - half :: 2], quality[1 - half :: 2]))  # [points, 2]
        confidence[half::2] = np.interp(values[half::2], curve[:, 0], curve[:, 1])
    bins = [
        CalibrationBin(len(rows), float(confidence[rows].mean()), float(quality[rows].mean()))
        for rows in np.array_split(np.argsort(confidence, kind="stable"), _BINS)
    ]
    remaining, worst_first = {}, np.argsort(values, kind="stable")
    for share in (0.0, *_LEFT_OUT):
        rows = sorted(worst_first[round(share * len(values)) :])
        remaining[f"{share:g}"] = chrf_score([lines[row] for row in rows], [references[row] for row in rows]).score
    return ConfidenceReport(
        curve=fit_curve(values, quality),
        rank_correlation=float(spearmanr(values, quality).statistic),
        calibration_error=sum(each.sentences * abs(each.confidence - each.chrf) for each in bins) / len(values),
        bins=bins,
        remaining=remaining,
        tokens=[int(number) for number in np.quantile(tokens, _TOKENS)],
    )


def fit_curve(values: np.ndarray, quality: np.ndarray) -> list[list[float]]:
    """A monotone curve of mean quality by mean value, over groups of similar values (pool adjacent violators).

    Args:
        values: `[sentences]`
        quality: `[sentences]`

    Returns:
        Its points of value and quality, both ascending; between them it is linear. They begin at the mean of the
        lowest group, because values below it are few and far between, and end at the largest value.
    """
    points = min(_POINTS, max(1, len(values) // _SENTENCES_A_POINT))
    groups = np.array_split(np.argsort(values, kind="stable"), points)  # rows of each
    heights, sizes = [quality[rows].mean() for rows in groups], [len(rows) for rows in groups]
    ends = isotonic_regression(heights, weights=sizes).blocks
    pooled = [np.concatenate(groups[start:end]) for start, end in pairwise(ends)]
    means = [(values[rows].mean(), quality[rows].mean()) for rows in pooled]
    curve = [(values[groups[0]].mean(), means[0][1]), *means, (values.max(), means[-1][1])]
    return [list(point) for point in sorted({(round(float(x), 4), round(float(y), 2)) for x, y in curve})]

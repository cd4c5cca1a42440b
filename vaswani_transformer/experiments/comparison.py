"""Comparison of a sweep's rows with each other and with the paper's Table 3 (6.2)."""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev

import numpy as np

from ..io.typed_json import Record
from ..runs.records import Provenance, RunRecord, SplitScores
from .numbers import PAPER_SCORES, RowCost


_VARIED = (
    "encoder_layers",
    "decoder_layers",
    "d_model",
    "d_ff",
    "num_heads",
    "d_k",
    "d_v",
    "dropout",
    "label_smoothing",
    "position_encoding",
)
_DRAWS = 10_000  # random orders for the significance of a rank correlation


@dataclass(frozen=True)
class PaperScore:
    """A score in the paper, and its difference from the reference row's."""

    mean: float
    difference: float


@dataclass(frozen=True, kw_only=True)
class SweepScore:
    """A score of a row over its seeds.

    Attributes:
        mean: Mean over the seeds.
        standard_deviation: Sample standard deviation; None with one seed.
        values: The score of each seed.
        difference: Difference from the mean of the reference row.
    """

    mean: float
    standard_deviation: float | None
    values: list[float]
    difference: float


@dataclass(frozen=True)
class PaperRow:
    """The paper's scores of a row."""

    perplexity: PaperScore
    bleu: PaperScore


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of Table 3, trained by the sweep.

    Attributes:
        settings: Hyper-parameters that Table 3 varies.
        parameters: Number of parameters.
        steps: Mean number of steps over the seeds.
        seeds: Seeds in ascending order.
        perplexity: Perplexity on the validation set.
        bleu: sacreBLEU on the validation set.
        length: Length of the translations divided by the references', mean over the seeds.
        paper: The paper's scores.
        cost: Mean cost over the seeds.
        differs: The `settings` that differ from the reference row's.
    """

    settings: dict[str, object]
    parameters: int
    steps: int
    seeds: list[int]
    perplexity: SweepScore
    bleu: SweepScore
    length: float
    paper: PaperRow
    cost: RowCost
    differs: dict[str, object]


@dataclass(frozen=True, kw_only=True)
class ScoreAgreement:
    """Agreement of the order of the rows with the paper's, by one score.

    Attributes:
        rank_correlation: Spearman's; None with fewer than three rows, or if all rows are equal.
        random_orders_as_good: Share of random orders with at least this correlation; None if that is None.
        standard_deviation: Over seeds, pooled over the rows; None, like the counts below, if no row has two seeds.
        separated: Pairs of rows whose means differ by more than twice the standard error of their difference.
        as_in_paper: Separated pairs in the paper's order.
        against_paper: Separated pairs in the opposite order.
        tied_in_paper: Separated pairs with equal scores in the paper.
    """

    rank_correlation: float | None
    random_orders_as_good: float | None
    standard_deviation: float | None
    separated: int | None
    as_in_paper: int | None
    against_paper: int | None
    tied_in_paper: int | None


@dataclass(frozen=True, kw_only=True)
class Agreement:
    """Agreement of the order of a sweep's rows with the paper's.

    Attributes:
        pairs: Number of pairs of rows.
        degrees_of_freedom: Degrees of freedom of the pooled standard deviation.
        bleu: Agreement by BLEU.
        perplexity: Agreement by perplexity.
    """

    pairs: int
    degrees_of_freedom: int
    bleu: ScoreAgreement
    perplexity: ScoreAgreement


@dataclass(frozen=True, kw_only=True)
class SharedFacts:
    """Properties that all runs of a sweep share; those that may be None are so in older files."""

    pairs: int
    source_tokens: int
    target_tokens: int
    sentences: int
    signature: str
    schedule: str | None = None
    alpha: float | None = None
    departures: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Scale:
    """Widths and numbers of layers, relative to the paper's."""

    width: float
    depth: float


@dataclass(frozen=True, kw_only=True)
class SweepRecord(Record):
    """Results of a sweep over Table 3: `table3.json`.

    Attributes:
        run: Command, commit, machine and versions of the report.
        scale: Sizes of the models, relative to the paper's.
        paper_costs: Cost of the paper's trainings, by name.
        reference: Row to compare the others with: base, or else the first.
        rows: Rows by name, in the order of Table 3.
        agreement: Agreement with the paper's order.
        commits: Commits of the trainings.
        hardware: Hardware of the trainings.
        shared: Properties that all trainings share.
    """

    run: Provenance
    scale: Scale
    paper_costs: dict[str, RowCost]
    reference: str
    rows: dict[str, Row]
    agreement: Agreement
    commits: list[str]
    hardware: list[str]
    shared: SharedFacts


def compare_with_paper(
    runs: Mapping[str, Mapping[int, RunRecord]], run: Provenance, scale: Scale, paper_costs: dict[str, RowCost]
) -> SweepRecord:
    """Compare the validation scores of a sweep with the paper's.

    Args:
        runs: The records of a sweep, by row of Table 3 and seed.
        run: Provenance of the report.
        scale: Sizes of the models, relative to the paper's.
        paper_costs: `paper_cost` of each of the paper's trainings.
    """
    names = [name for name in PAPER_SCORES if runs.get(name)]
    reference = names[0]
    rows = {name: _summarize(name, runs, reference) for name in names}
    records = [record for by_seed in runs.values() for record in by_seed.values()]
    first = records[0]
    return SweepRecord(
        run=run,
        scale=scale,
        paper_costs=paper_costs,
        reference=reference,
        rows=rows,
        agreement=Agreement(
            pairs=math.comb(len(rows), 2),
            degrees_of_freedom=sum(len(row.seeds) - 1 for row in rows.values()),
            bleu=_score_agreement([(row.bleu, row.paper.bleu) for row in rows.values()]),
            perplexity=_score_agreement([(row.perplexity, row.paper.perplexity) for row in rows.values()]),
        ),
        commits=sorted({record.run.commit for record in records}),
        hardware=sorted({record.run.hardware for record in records}),
        shared=SharedFacts(
            pairs=first.data.cleaning["kept"],
            source_tokens=first.settings.source_tokens,
            target_tokens=first.settings.target_tokens,
            sentences=first.validation.sentences,
            signature=first.validation.bleu.signature,
            schedule=first.settings.schedule,
            alpha=first.settings.alpha,
            departures=first.settings.departures,
        ),
    )


def _summarize(name: str, runs: Mapping[str, Mapping[int, RunRecord]], reference: str) -> Row:
    records, base = ([runs[row][seed] for seed in sorted(runs[row])] for row in (name, reference))
    settings, base_settings = ({each: getattr(run[0].model, each) for each in _VARIED} for run in (records, base))
    (perplexity, bleu), (base_perplexity, base_bleu) = PAPER_SCORES[name], PAPER_SCORES[reference]
    return Row(
        settings=settings,
        parameters=records[0].model.parameters,
        steps=round(fmean(record.training.steps for record in records)),
        seeds=sorted(runs[name]),
        perplexity=_sweep_score(lambda scores: scores.perplexity.perplexity, records, base),
        bleu=_sweep_score(lambda scores: scores.bleu.score, records, base),
        length=fmean(record.validation.bleu.relative_length for record in records),
        paper=PaperRow(PaperScore(perplexity, perplexity - base_perplexity), PaperScore(bleu, bleu - base_bleu)),
        cost=_mean_cost(records),
        differs={each: value for each, value in settings.items() if value != base_settings[each]},
    )


def _sweep_score(
    score: Callable[[SplitScores], float], records: Sequence[RunRecord], reference: Sequence[RunRecord]
) -> SweepScore:
    values = [score(record.validation) for record in records]
    return SweepScore(
        mean=fmean(values),
        standard_deviation=stdev(values) if len(values) > 1 else None,
        values=values,
        difference=fmean(values) - fmean(score(record.validation) for record in reference),
    )


def _mean_cost(records: Sequence[RunRecord]) -> RowCost:
    costs = [record.training.cost for record in records]
    accounted = fmean(cost.by_the_papers_accounting for cost in costs)
    counted = fmean(cost.counted for cost in costs)
    return RowCost(
        by_the_papers_accounting=accounted,
        counted=counted,
        rate=fmean(cost.rate for cost in costs),
        utilisation=counted / accounted,
        seconds=fmean(record.training.seconds for record in records),
        devices=records[0].training.processes,
    )


def _score_agreement(rows: Sequence[tuple[SweepScore, PaperScore]]) -> ScoreAgreement:
    """Agreement of the measured scores with the paper's."""
    scores = [score for score, _ in rows]
    correlation, share = rank_correlation([score.mean for score in scores], [paper.mean for _, paper in rows])
    freedom = sum(len(score.values) - 1 for score in scores)
    squares = sum((value - score.mean) ** 2 for score in scores for value in score.values)
    deviation = math.sqrt(squares / freedom) if freedom else None
    signs = None if deviation is None else _signs_of_separated_pairs(rows, deviation)
    return ScoreAgreement(
        rank_correlation=correlation,
        random_orders_as_good=share,
        standard_deviation=deviation,
        separated=None if signs is None else len(signs),
        as_in_paper=None if signs is None else signs.count(1),
        against_paper=None if signs is None else signs.count(-1),
        tied_in_paper=None if signs is None else signs.count(0),
    )


def _signs_of_separated_pairs(rows: Sequence[tuple[SweepScore, PaperScore]], deviation: float) -> list[int]:
    """For each separated pair of rows: 1 if in the paper's order, -1 if in the opposite, 0 if tied in the paper."""
    signs = []
    for (first, first_paper), (second, second_paper) in itertools.combinations(rows, 2):
        difference = first.mean - second.mean
        if abs(difference) > 2 * deviation * math.sqrt(1 / len(first.values) + 1 / len(second.values)):
            signs.append(int(np.sign(difference * (first_paper.mean - second_paper.mean))))
    return signs


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> tuple[float | None, float | None]:
    """Spearman's rank correlation, and the share of random orders of `second` that reach it.

    Returns:
        Both; or None and None with fewer than three values, or if all values of one argument are equal.
    """
    ours, theirs = _standard_ranks(first), _standard_ranks(second)
    if len(first) < 3 or not ours.any() or not theirs.any():
        return None, None
    correlation = float(np.mean(ours * theirs))
    orders = np.random.default_rng(0).permuted(np.tile(theirs, (_DRAWS, 1)), axis=1)  # [draws, values]
    return correlation, float(np.mean(orders @ ours / len(first) >= correlation - 1e-9))


def _standard_ranks(values: Sequence[float]) -> np.ndarray:
    """Ranks with mean 0 and standard deviation 1, equal ones for equal values; all 0 if all values are equal."""
    column = np.asarray(values)[:, None]
    ranks = (column > values).sum(1) + (column == values).sum(1) / 2  # [values]
    return (ranks - ranks.mean()) / (ranks.std() or 1.0)

"""The comparison with Table 3 against other computations of the same statistics."""

import itertools
import math
import statistics

import pandas
import pytest
from runs import run_record, sweep_as_in_paper

from vaswani_transformer.experiments.comparison import Scale, SweepRecord, compare_with_paper, rank_correlation
from vaswani_transformer.experiments.numbers import PAPER_SCORES
from vaswani_transformer.model.configuration_vaswani import PAPER_VARIANTS
from vaswani_transformer.runs.records import RunRecord


def compare(runs: dict[str, dict[int, RunRecord]]) -> SweepRecord:
    return compare_with_paper(runs, run_record().run, Scale(1.0, 1.0), {})


@pytest.mark.parametrize(
    ("first", "second"),
    [([1, 2, 3, 4], [1, 2, 3, 4]), ([1, 2, 3, 4, 5], [3, 1, 2, 5, 4]), ([1.5, 1.5, 0, 7, 7, 7], [2, 1, 1, 0, 9, 3])],
)
def test_rank_correlation_is_that_of_pandas_and_chance_that_of_all_orders(first, second):
    def correlation_of(values) -> float:
        return pandas.DataFrame({"first": first, "second": values}).corr("spearman").iloc[0, 1]

    correlation, share = rank_correlation(first, second)
    assert correlation == pytest.approx(correlation_of(second))
    as_good = [correlation_of(order) >= correlation - 1e-9 for order in itertools.permutations(second)]
    assert share == pytest.approx(sum(as_good) / len(as_good), abs=0.02)


def test_no_rank_correlation_of_two_values_or_of_equal_ones():
    assert rank_correlation([1, 2], [1, 2]) == (None, None)
    assert rank_correlation([1, 1, 1], [1, 2, 3]) == (None, None)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_a_difference_beyond_chance_agrees_or_disagrees_with_the_paper(sign):
    agreement = compare(sweep_as_in_paper(deviation=1e-3, sign=sign)).agreement
    found = agreement.bleu
    bleu = [bleu for _, bleu in PAPER_SCORES.values()]
    differing = sum(first != second for first, second in itertools.combinations(bleu, 2))
    assert agreement.pairs == math.comb(len(bleu), 2)
    kinds = (found.as_in_paper, found.against_paper, found.tied_in_paper)
    assert kinds == ((differing, 0, 0) if sign > 0 else (0, differing, 0))
    assert found.separated == differing
    assert found.rank_correlation == pytest.approx(sign)
    assert found.random_orders_as_good == (0 if sign > 0 else 1)
    # The perplexities are the paper's, and the same with every seed.
    found = agreement.perplexity
    perplexities = [perplexity for perplexity, _ in PAPER_SCORES.values()]
    differing = sum(first != second for first, second in itertools.combinations(perplexities, 2))
    assert (found.separated, found.as_in_paper, found.standard_deviation) == (differing, differing, 0)
    assert found.rank_correlation == pytest.approx(1)


def test_rows_that_differ_where_the_paper_has_a_tie():
    runs = {row: sweep_as_in_paper(1e-3)[row] for row in ("base", "A-h16")}  # both have 25.8
    runs["A-h16"] = {seed: run_record("A-h16", run.validation.bleu.score + 1) for seed, run in runs["A-h16"].items()}
    found = compare(runs).agreement.bleu
    assert (found.separated, found.as_in_paper, found.against_paper, found.tied_in_paper) == (1, 0, 0, 1)


def test_rows_are_separate_beyond_twice_the_standard_error():
    scores = {"base": [30.0, 30.4, 30.8], "C-N2": [28.0, 28.1]}
    squares = sum((len(values) - 1) * statistics.variance(values) for values in scores.values())
    pooled = math.sqrt(squares / 3)
    error = pooled * math.sqrt(1 / 3 + 1 / 2)
    for distance, expected in ((1.98 * error, 0), (2.02 * error, 1)):
        scores["C-N2"] = [bleu - statistics.mean(scores["C-N2"]) + 30.4 - distance for bleu in scores["C-N2"]]
        runs = {row: {seed: run_record(row, bleu) for seed, bleu in enumerate(found)} for row, found in scores.items()}
        agreement = compare(runs).agreement
        assert agreement.bleu.separated == agreement.bleu.as_in_paper == expected
        assert agreement.bleu.standard_deviation == pytest.approx(pooled)
        assert agreement.degrees_of_freedom == 3


def test_one_seed_says_nothing_of_chance():
    runs = {row: {1: seeds[1]} for row, seeds in sweep_as_in_paper().items()}
    found = compare(runs)
    assert found.agreement.bleu.separated is found.agreement.bleu.standard_deviation is None
    assert found.rows["base"].bleu.standard_deviation is None


def test_rows_are_compared_with_the_base_model_or_else_with_the_first():
    runs = sweep_as_in_paper(0.5)
    found = compare({row: runs[row] for row in ("C-N2", "A-h1", "base")})
    assert (found.reference, list(found.rows)) == ("base", ["base", "A-h1", "C-N2"])
    row = found.rows["A-h1"]
    assert row.differs == PAPER_VARIANTS["A-h1"]
    assert row.bleu.difference == pytest.approx(-0.9)
    assert row.paper.bleu.difference == pytest.approx(-0.9)
    assert row.bleu.standard_deviation == pytest.approx(0.5)
    found = compare({row: runs[row] for row in ("C-N2", "A-h1")})
    assert found.reference == "A-h1"
    assert found.rows["C-N2"].paper.bleu.difference == pytest.approx(23.7 - 24.9)


def test_the_cost_is_the_mean_over_seeds():
    costs = [
        {"by_the_papers_accounting": accounted, "counted": 1e12, "rate": 2e10, "utilisation": 1e12 / accounted}
        for accounted in (4e12, 8e12)
    ]
    runs = {seed: run_record(cost=cost, seconds=200.0 * seed) for seed, cost in enumerate(costs, start=1)}
    cost = compare({"base": runs}).rows["base"].cost
    assert (cost.seconds, cost.by_the_papers_accounting, cost.counted) == (300, 6e12, 1e12)
    assert cost.utilisation == pytest.approx(1 / 6)

"""The summary of a sweep over Table 3 against other computations of the same statistics."""

import math
import statistics

import pytest
from runs import run_record, sweep_as_in_paper

from vaswani_transformer.experiments.comparison import Scale, SweepRecord, summarize_sweep
from vaswani_transformer.model.configuration_vaswani import PAPER_VARIANTS
from vaswani_transformer.runs.records import RunRecord


def summarize(runs: dict[str, dict[int, RunRecord]]) -> SweepRecord:
    return summarize_sweep(runs, run_record().run, Scale(1.0, 1.0))


def test_scores_are_means_with_their_standard_errors():
    scores = [30.0, 30.4, 31.1]
    row = summarize({"base": {seed: run_record("base", score) for seed, score in enumerate(scores)}}).rows["base"]
    assert row.bleu.values == scores
    assert row.bleu.mean == pytest.approx(statistics.mean(scores))
    assert row.bleu.standard_error == pytest.approx(statistics.stdev(scores) / math.sqrt(3))
    assert summarize({"base": {1: run_record("base")}}).rows["base"].bleu.standard_error is None


def test_rows_are_those_of_table_3_in_its_order_and_base_is_the_reference():
    runs = sweep_as_in_paper(0.5)
    sweep = summarize({row: runs[row] for row in ("C-N2", "A-h1", "base")})
    assert (sweep.reference, list(sweep.rows)) == ("base", ["base", "A-h1", "C-N2"])
    assert sweep.rows["A-h1"].settings.items() >= PAPER_VARIANTS["A-h1"].items()
    assert summarize({row: runs[row] for row in ("C-N2", "A-h1")}).reference == "A-h1"


def test_the_cost_is_the_mean_over_seeds():
    costs = [
        {"by_the_papers_accounting": accounted, "counted": 1e12, "rate": 2e10, "utilisation": 1e12 / accounted}
        for accounted in (4e12, 8e12)
    ]
    runs = {seed: run_record(cost=cost, seconds=200.0 * seed) for seed, cost in enumerate(costs, start=1)}
    cost = summarize({"base": runs}).rows["base"].cost
    assert (cost.seconds, cost.by_the_papers_accounting, cost.counted) == (300, 6e12, 1e12)
    assert cost.utilisation == pytest.approx(1 / 6)

"""The summary of a sweep over Table 3 against other computations of the same statistics."""

import math
import statistics

import pytest
from runs import run_record, sweep_as_in_paper

from vaswani_transformer import VaswaniConfig
from vaswani_transformer.experiments.comparison import PAPER_SCORES, Scale, SweepRecord, holm, summarize_sweep
from vaswani_transformer.model.configuration_vaswani import PAPER_VARIANTS
from vaswani_transformer.runs.model_card import PAPER_VALUES
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
    row = summarize({"base": runs}).rows["base"]
    assert (row.seconds, row.cost.by_the_papers_accounting, row.cost.counted) == (300, 6e12, 1e12)
    assert row.cost.utilisation == pytest.approx(1 / 6)


def test_rows_are_compared_with_the_reference_of_the_same_seed():
    base = {1: 5.0, 2: 5.4, 3: 5.1, 5: 4.8}
    worse = {5: 5.0, 3: 5.4, 2: 5.5, 1: 5.1, 4: 9.0}  # in another order, with a seed that base lacks
    alike = {1: 5.1, 2: 5.3, 3: 5.2, 5: 4.7}
    rows = {"base": base, "A-h1": worse, "A-h4": base, "C-N2": alike, "B-dk16": {4: 5.0}}
    runs = {
        row: {seed: run_record(row, 40.0 + value, value) for seed, value in values.items()}
        for row, values in rows.items()
    }
    sweep = summarize(runs)
    expected = {}
    for row in ("A-h1", "C-N2"):
        differences = [math.log(rows[row][seed] / base[seed]) for seed in base]
        assert sorted(sweep.differences(row, "perplexity")) == pytest.approx(sorted(differences))
        t = abs(statistics.mean(differences)) / (statistics.stdev(differences) / math.sqrt(4))
        # Student's distribution with three degrees of freedom in closed form.
        angle = math.atan(t / math.sqrt(3))
        expected[row] = 1 - 2 / math.pi * (angle + math.sin(angle) * math.cos(angle))
    assert expected["A-h1"] < 0.05 < expected["C-N2"]
    # A row that is base itself differs by chance alone.
    corrected = {"A-h1": 3 * expected["A-h1"], "C-N2": min(1.0, 2 * expected["C-N2"]), "A-h4": 1.0}
    assert sweep.p_values("perplexity") == pytest.approx(corrected)
    assert sweep.p_values("bleu").keys() == corrected.keys()


def test_p_values_are_corrected_by_holms_method():
    assert holm({"a": 0.04, "b": 0.01, "c": 0.03, "d": 0.005}) == pytest.approx(
        {"d": 0.02, "b": 0.03, "c": 0.06, "a": 0.06}  # the last would be 0.04 alone
    )
    assert holm({"a": 0.6, "b": 0.7}) == {"a": 1.0, "b": 1.0}
    assert holm({}) == {}


def test_every_row_of_table_3_has_its_scores():
    assert list(PAPER_SCORES) == list(PAPER_VARIANTS)
    # As 6.2 says, a single head is 0.9 BLEU worse.
    assert PAPER_SCORES["base"][1] - PAPER_SCORES["A-h1"][1] == pytest.approx(0.9)


def test_options_state_the_values_of_table_3_for_base_and_big():
    base, big = (VaswaniConfig.from_variant(name) for name in ("base", "big"))
    for field in ("encoder_layers", "decoder_layers", "d_model", "d_ff", "num_heads", "d_k", "d_v", "dropout"):
        values = tuple(dict.fromkeys((getattr(base, field), getattr(big, field))))
        assert PAPER_VALUES[field] == (values if len(values) > 1 else values[0])

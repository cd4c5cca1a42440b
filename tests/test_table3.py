"""The comparison with Table 3 against other computations of the same statistics, and the report's numbers."""

import copy
import itertools
import json
import math
import re
import statistics

import pandas
import pytest
import torch
from helpers import REPOSITORY

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani_transformer.experiments import table3
from vaswani_transformer.model.configuration_vaswani import PAPER_VARIANTS


def results(row: str, bleu: float, perplexity: float = 5.0, **training) -> dict:
    """What train_wmt.py writes of a run, as far as it is read."""
    cost = {"by_the_papers_accounting": 4e12, "counted": 1e12, "rate": 2e10, "utilisation": 0.25}
    return {
        "run": {"commit": "abc", "hardware": "a machine"},
        "data": {"cleaning": {"kept": 29000}},
        "model": {"parameters": 1234567, **VaswaniConfig.from_variant(row).to_dict()},
        "settings": {"source_tokens": 1500, "target_tokens": 1400},
        "training": {
            "steps": 3000,
            "seconds": 200.0,
            "processes": 1,
            "resumed_from": None,
            "cost": cost,
            **training,
        },
        "validation": {
            "sentences": 1014,
            "bleu": {
                "score": bleu,
                "signature": "nrefs:1|tok:13a",
                "hypothesis_length": 11880,
                "reference_length": 12000,
            },
            "perplexity": {"perplexity": perplexity},
        },
    }


def as_in_paper(deviation: float = 0.0, sign: float = 1.0) -> dict:
    """Three seeds of every row that score what the paper's row does, or its opposite, and by a little more or less."""
    return {
        row: {
            seed: results(row, 50 + sign * bleu + deviation * step, perplexity)
            for seed, step in ((1, -1), (2, 0), (3, 1))
        }
        for row, (perplexity, bleu) in table3.PAPER_SCORES.items()
    }


def test_every_row_of_table_3_has_its_scores():
    assert list(table3.PAPER_SCORES) == list(PAPER_VARIANTS)
    # What 6.2 says of them: a single head is 0.9 BLEU worse, and the big model the best of all.
    assert table3.PAPER_SCORES["base"][1] - table3.PAPER_SCORES["A-h1"][1] == pytest.approx(0.9)
    assert max(table3.PAPER_SCORES, key=lambda row: table3.PAPER_SCORES[row][1]) == "big"
    assert min(table3.PAPER_SCORES, key=lambda row: table3.PAPER_SCORES[row][0]) == "big"


@pytest.mark.parametrize(("name", "printed"), [("base", "3.3e+18"), ("big", "2.3e+19")])
def test_time_devices_and_rate_make_what_table_2_prints(name, printed):
    cost = table3.paper_cost(name, VaswaniConfig.from_variant(name))
    assert f"{cost['by_the_papers_accounting']:.1e}" == printed
    assert cost["by_the_papers_accounting"] == pytest.approx(cost["seconds"] * cost["devices"] * cost["rate"])


@pytest.mark.parametrize("name", ["base", "big"])
def test_count_is_about_six_operations_a_parameter_and_token(name):
    with torch.device("meta"):
        model = VaswaniForConditionalGeneration(VaswaniConfig.from_variant(name))
    parameters = sum(parameter.numel() for parameter in model.parameters())  # those of the softmax, too, multiply
    tokens = 25_000 * {"base": 100_000, "big": 300_000}[name]
    cost = table3.paper_cost(name, model.config)
    assert cost["counted"] == pytest.approx(6 * parameters * tokens, rel=0.03)
    assert cost["utilisation"] == cost["counted"] / cost["by_the_papers_accounting"]


@pytest.mark.parametrize(
    ("first", "second"),
    [([1, 2, 3, 4], [1, 2, 3, 4]), ([1, 2, 3, 4, 5], [3, 1, 2, 5, 4]), ([1.5, 1.5, 0, 7, 7, 7], [2, 1, 1, 0, 9, 3])],
)
def test_rank_correlation_is_that_of_pandas_and_chance_that_of_all_orders(first, second):
    def correlation_of(values) -> float:
        return pandas.DataFrame({"first": first, "second": values}).corr("spearman").iloc[0, 1]

    correlation, share = table3.rank_correlation(first, second)
    assert correlation == pytest.approx(correlation_of(second))
    as_good = [correlation_of(order) >= correlation - 1e-9 for order in itertools.permutations(second)]
    assert share == pytest.approx(sum(as_good) / len(as_good), abs=0.02)


def test_no_rank_correlation_of_two_values_or_of_equal_ones():
    assert table3.rank_correlation([1, 2], [1, 2]) == (None, None)
    assert table3.rank_correlation([1, 1, 1], [1, 2, 3]) == (None, None)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_rows_that_differ_by_far_more_than_chance_agree_with_the_paper_or_contradict_it(sign):
    agreement = table3.compare_with_paper(as_in_paper(deviation=1e-3, sign=sign))["agreement"]
    found = agreement["bleu"]
    bleu = [bleu for _, bleu in table3.PAPER_SCORES.values()]
    differing = sum(first != second for first, second in itertools.combinations(bleu, 2))
    assert agreement["pairs"] == math.comb(len(bleu), 2)
    kinds = (found["as_in_paper"], found["against_paper"], found["tied_in_paper"])
    assert kinds == ((differing, 0, 0) if sign > 0 else (0, differing, 0))
    assert found["separated"] == differing
    assert found["rank_correlation"] == pytest.approx(sign)
    assert found["random_orders_as_good"] == (0 if sign > 0 else 1)
    # The perplexities are the paper's, and the same with every seed.
    found = agreement["perplexity"]
    perplexities = [perplexity for perplexity, _ in table3.PAPER_SCORES.values()]
    differing = sum(first != second for first, second in itertools.combinations(perplexities, 2))
    assert (found["separated"], found["as_in_paper"], found["standard_deviation"]) == (differing, differing, 0)
    assert found["rank_correlation"] == pytest.approx(1)


def test_rows_that_differ_where_the_paper_has_a_tie():
    runs = {row: as_in_paper(1e-3)[row] for row in ("base", "A-h16")}  # both have 25.8
    for run in runs["A-h16"].values():
        run["validation"]["bleu"]["score"] += 1
    found = table3.compare_with_paper(runs)["agreement"]["bleu"]
    assert (found["separated"], found["as_in_paper"], found["against_paper"], found["tied_in_paper"]) == (1, 0, 0, 1)


def test_rows_are_separate_beyond_twice_the_standard_error():
    scores = {"base": [30.0, 30.4, 30.8], "C-N2": [28.0, 28.1]}
    runs = {row: {seed: results(row, bleu) for seed, bleu in enumerate(values)} for row, values in scores.items()}
    squares = sum((len(values) - 1) * statistics.variance(values) for values in scores.values())
    pooled = math.sqrt(squares / 3)
    error = pooled * math.sqrt(1 / 3 + 1 / 2)
    for distance, expected in ((1.98 * error, 0), (2.02 * error, 1)):
        moved = copy.deepcopy(runs)
        for seed, bleu in enumerate(scores["C-N2"]):
            moved["C-N2"][seed]["validation"]["bleu"]["score"] = bleu - 28.05 + 30.4 - distance
        found = table3.compare_with_paper(moved)["agreement"]
        assert found["bleu"]["separated"] == found["bleu"]["as_in_paper"] == expected
        assert found["bleu"]["standard_deviation"] == pytest.approx(pooled)
        assert found["degrees_of_freedom"] == 3


def test_one_seed_says_nothing_of_chance():
    runs = {row: {1: seeds[1]} for row, seeds in as_in_paper().items()}
    found = table3.compare_with_paper(runs)
    assert found["agreement"]["bleu"]["separated"] is found["agreement"]["bleu"]["standard_deviation"] is None
    assert found["rows"]["base"]["bleu"]["standard_deviation"] is None
    assert "nothing is known of chance" in table3.verdict(found)


def test_rows_are_compared_with_the_base_model_or_else_with_the_first():
    runs = as_in_paper(0.5)
    found = table3.compare_with_paper({row: runs[row] for row in ("C-N2", "A-h1", "base")})
    assert (found["reference"], list(found["rows"])) == ("base", ["base", "A-h1", "C-N2"])
    row = found["rows"]["A-h1"]
    assert row["differs"] == PAPER_VARIANTS["A-h1"]
    assert row["bleu"]["difference"] == pytest.approx(-0.9)
    assert row["paper"]["bleu"]["difference"] == pytest.approx(-0.9)
    assert row["bleu"]["standard_deviation"] == pytest.approx(0.5)
    found = table3.compare_with_paper({row: runs[row] for row in ("C-N2", "A-h1")})
    assert found["reference"] == "A-h1"
    assert found["rows"]["C-N2"]["paper"]["bleu"]["difference"] == pytest.approx(23.7 - 24.9)


def test_the_cost_is_the_mean_over_seeds():
    slow = {"by_the_papers_accounting": 8e12, "counted": 1e12, "rate": 2e10, "utilisation": 0.125}
    runs = {
        "base": {
            1: results("base", 30),
            2: results("base", 30, cost=slow, seconds=400.0),
        },
    }
    cost = table3.compare_with_paper(runs)["rows"]["base"]["cost"]
    assert (cost["seconds"], cost["by_the_papers_accounting"], cost["counted"]) == (300, 6e12, 1e12)
    assert cost["utilisation"] == pytest.approx(1 / 6)


@pytest.fixture
def report() -> dict:
    runs = as_in_paper(0.25, sign=2)
    return {
        "run": {"command": "python recipes/x.py", "date": "2030-01-01", "versions": {"python": "3"}},
        "scale": {"width": 0.25, "depth": 0.5},
        "paper_costs": {name: table3.paper_cost(name, VaswaniConfig.from_variant(name)) for name in ("base", "big")},
        **table3.compare_with_paper({row: runs[row] for row in ("base", "A-h1", "C-N2")}),
    }


def test_the_report_has_every_row_beside_the_papers(report, tmp_path):
    table3.write_report(report, tmp_path)
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    for table in (table3.score_table(report), table3.cost_table(report)):
        assert {len(line) for line in table} == {len(table[0])}
    assert "| A-h1 | num_heads 1, d_k 512, d_v 512 | 1,234,567 | 3,000 | 3 | 5.29 ± 0.00 | 99.80 ± 0.25 |" in text
    assert "| 99.80 ± 0.25 | -1.80 | 0.99 | 5.29 | 24.9 | -0.9 |" in text
    assert "| C-N2 | encoder_layers 2, decoder_layers 2 | 1,234,567 | 3,000 | 3 |" in text
    assert "| base | 3.3 | 1 | 2.0e10 | 4.0e12 | 1.0e12 | 25.0% |" in text
    assert "| paper: base | 720.0 | 8 | 9.5e12 | 3.3e18 | 9.5e17 | 29.0% |" in text
    for fact in ("`python recipes/x.py`", "`abc`", "a machine", "nrefs:1|tok:13a", "29,000", "1,014", "0.25 times"):
        assert fact in text
    assert "Of 3 pairs of rows 3 differ in BLEU" in text
    assert "end too early" not in text
    assert json.loads((tmp_path / "table3.json").read_text(encoding="utf-8")) == report
    assert (tmp_path / "table3.png").read_bytes().startswith(b"\x89PNG")


def test_the_published_report_is_made_of_the_numbers_beside_it():
    published = REPOSITORY / "model_cards" / "table3.json"
    report = json.loads(published.read_text(encoding="utf-8"))
    assert published.with_suffix(".md").read_text(encoding="utf-8") == table3.as_markdown(report)
    assert published.with_suffix(".png").exists()
    assert all(re.fullmatch("[0-9a-f]{40}", commit) for commit in report["commits"]), "recorded, and clean"


def test_the_report_says_that_translations_are_short(report):
    report["rows"]["A-h1"]["length"] = 0.9
    assert "have 90% of the references' words, those of the row with the longest 99%" in table3.verdict(report)


def test_the_picture_shows_the_differences_of_both(report, monkeypatch, tmp_path):
    drawn = []
    monkeypatch.setattr(table3.Figure, "savefig", lambda figure, *args, **kwargs: drawn.append(figure))
    table3.plot_rows(report, tmp_path / "unused.png")
    axes, below = drawn[0].axes
    assert [bar.get_height() for bar in below.patches] == pytest.approx([0, 0.37, 1.19])
    (paper,) = [line for line in below.lines if line.get_label() == "paper"]
    assert list(paper.get_ydata()) == pytest.approx([0, 0.37, 1.19])
    assert [bar.get_height() for bar in axes.patches] == pytest.approx([0, -1.8, -4.2])
    (paper,) = [line for line in axes.lines if line.get_label() == "paper"]
    assert list(paper.get_ydata()) == pytest.approx([0, -0.9, -2.1])
    spread = [segment[:, 1] for segment in axes.collections[0].get_segments()]
    assert [end for ends in spread for end in ends] == pytest.approx([-0.25, 0.25, -2.05, -1.55, -4.45, -3.95])
    assert [label.get_text() for label in below.get_xticklabels()] == ["base", "A-h1", "C-N2"]

"""`recipes/benchmarks/scaling.py`: its formulas against counting, and its report against its numbers."""

import numpy as np
import pytest
import torch
from helpers import REPOSITORY, call_recipe, recipe_module

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration


@pytest.fixture(scope="module")
def scaling():
    return recipe_module("benchmarks/scaling.py")


def test_excess_is_at_most_three_percent_where_a_rank_has_enough_pairs(scaling):
    record = scaling.ScalingRecord.load(REPOSITORY / "recipes" / "benchmarks" / "scaling.json")
    assert all(row.excess <= 0.03 for row in record.balances if row.ranks == 8 or row.tokens >= 100_000)


def test_a_step_of_the_paper_takes_what_its_products_and_messages_take(scaling):
    """By counting: each token of a side meets the weights of its side, and here both sides have as many."""
    with torch.device("meta"):
        model = VaswaniForConditionalGeneration(VaswaniConfig.from_variant("base", vocab_size=37_000))
    assert model.num_parameters() / 1e6 == pytest.approx(65, rel=0.04)  # Table 3
    products = sum(module.weight.numel() for module in model.modules() if isinstance(module, torch.nn.Linear))
    compute = 6 * products * 25_000 / 8 / (0.35 * 10.6e12)  # without scores
    sent = sum(4 * model.num_parameters() / 8 for _ in range(2 * (8 - 1)))  # a chunk in each round of a ring
    row = next(row for row in scaling.step_table() if row[1] == "8 P100, fp32")
    assert [float(cell) / 1000 for cell in row[-3:-1]] == pytest.approx([compute, sent / (0.8 * 80e9)], rel=0.03)


def test_a_balance_is_that_of_the_loop_over_ranks(scaling):
    lengths = np.random.default_rng(0).integers(2, 30, size=(2, 900))
    found = scaling.balance("a", lengths, tokens=1500, ranks=4)
    sampler = scaling.TokenBudgetBatchSampler(*lengths, 1500, 1500, num_parts=4)
    slowest, mean, read = 0, 0.0, [0] * 4
    parts = list(sampler)
    for first in range(0, len(parts), 4):
        costs = []
        for rank, part in enumerate(parts[first : first + 4]):
            source, target = (len(part) * max(side[index] for index in part) for side in lengths)
            costs.append(source + 2 * target)
            read[rank] += source + target
        slowest, mean = slowest + max(costs), mean + sum(costs) / 4
    assert found.steps == len(parts) // 4
    assert found.excess == pytest.approx(slowest / mean - 1)
    assert found.excess_of_epoch == pytest.approx(max(read) / (sum(read) / 4) - 1)
    assert found.excess < found.excess_of_equal_counts


def test_measures_a_corpus_and_writes_a_report(scaling, tmp_path):
    for name in ("a.en", "a.de"):
        (tmp_path / name).write_text("".join(f"word number {number} here\n" for number in range(600)), encoding="utf-8")
    files = ("--source", tmp_path / "a.en", "--target", tmp_path / "a.de")
    call_recipe("benchmarks/scaling.py", *files, "--vocab_size", 300, "--output", tmp_path / "out")
    rows = scaling.ScalingRecord.load(tmp_path / "out" / "scaling.json").balances
    assert [(row.pairs, row.tokens, row.ranks) for row in rows[:2]] == [(600, 25_000, 8), (600, 25_000, 64)]
    shown = " ".join((tmp_path / "out" / "scaling.md").read_text(encoding="utf-8").split())
    assert f"| {tmp_path.name} | 25,000 | 8 |" in shown

"""`recipes/benchmarks/scaling.py`: its formulas against counting, and its report against its numbers."""

import sys

import numpy as np
import pytest
from helpers import REPOSITORY, recipe_module

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration


FOLDER = REPOSITORY / "recipes" / "benchmarks"


@pytest.fixture(scope="module")
def scaling():
    return recipe_module("benchmarks/scaling.py")


def test_the_report_is_made_of_the_numbers_beside_it(scaling):
    record = scaling.ScalingRecord.load(FOLDER / "scaling.json")
    assert scaling.as_markdown(record) == (FOLDER / "scaling.md").read_text(encoding="utf-8")
    assert all(row.excess <= 0.03 for row in record.balances if row.ranks == 8 or row.tokens >= 100_000)


@pytest.mark.parametrize("gpus", [2, 8, 64])
def test_an_all_reduce_takes_as_long_as_its_messages(scaling, gpus):
    """Messages of a ring, one by one: sums of one chunk a rank go round, and then the sums of all."""
    size = 1024 * gpus
    held = [[{rank} for _ in range(gpus)] for rank in range(gpus)]  # whose gradients each rank's chunks contain
    sent = 0
    for step in range(2 * (gpus - 1)):
        messages = [(rank, (rank - step) % gpus, set(held[rank][(rank - step) % gpus])) for rank in range(gpus)]
        for rank, chunk, content in messages:
            held[(rank + 1) % gpus][chunk] |= content
        sent += size // gpus  # by each rank at a time
    assert all(chunk == set(range(gpus)) for rank in held for chunk in rank)
    assert scaling.all_reduce_seconds(gpus, 100, size) == pytest.approx(sent / (0.8 * 100))


@pytest.mark.parametrize(("variant", "millions"), [("base", 65), ("big", 213)])
def test_operations_and_parameters_are_of_the_papers_models(scaling, variant, millions):
    assert scaling.count_parameters(variant) / 1e6 == pytest.approx(millions, rel=0.04)  # Table 3
    with scaling.torch.device("meta"):
        model = VaswaniForConditionalGeneration(VaswaniConfig.from_variant(variant, vocab_size=37_000))
    products = sum(
        module.weight.numel() for module in model.modules() if isinstance(module, scaling.torch.nn.Linear)
    )  # each token of a side meets the weights of its side; here both sides have as many
    seconds = 6 * products * 25_000 / 8 / (0.35 * 1e12)
    assert scaling.compute_seconds(8, 1e12, variant, 25_000) == pytest.approx(seconds, rel=0.03)  # without scores


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


def test_measures_a_corpus_and_writes_a_report(scaling, tmp_path, monkeypatch):
    for name in ("a.en", "a.de"):
        (tmp_path / name).write_text("".join(f"word number {number} here\n" for number in range(600)), encoding="utf-8")
    files = ["--source", str(tmp_path / "a.en"), "--target", str(tmp_path / "a.de")]
    output = tmp_path / "out"
    monkeypatch.setattr(sys, "argv", ["scaling.py", *files, "--vocab_size", "300", "--output", str(output)])
    monkeypatch.setattr(scaling, "BUDGETS_AND_RANKS", [(1000, 8)])
    scaling.main()
    (row,) = scaling.ScalingRecord.load(output / "scaling.json").balances
    assert (row.pairs, row.ranks) == (600, 8)
    shown = " ".join((output / "scaling.md").read_text(encoding="utf-8").split())
    assert f"| {tmp_path.name} | 1,000 | 8 |" in shown

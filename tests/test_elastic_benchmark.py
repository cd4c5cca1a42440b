"""`recipes/benchmarks/elastic.py`: the trainings that it compares, and its report."""

import sys
from pathlib import Path

import pytest
from helpers import recipe_module


def test_report_has_the_ratio_to_each_kind_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    benchmark = recipe_module("benchmarks/elastic.py")
    seconds = {"virtual_ranks": iter((3.0, 2.0, 9.0)), "gradient_accumulation_steps": iter((4.0, 5.0, 4.0))}
    whole = iter((2.0, 2.0, 2.0))
    divisions = []

    def seconds_of_training(args: object, dataset: object, tokenizer: object, division: dict[str, int]) -> float:
        divisions.append(division)
        return next(seconds[next(iter(division))]) if division else next(whole)

    monkeypatch.setattr(benchmark, "seconds_of_training", seconds_of_training)
    monkeypatch.setattr(sys, "argv", ["elastic.py", "--rounds", "3", "--output", str(tmp_path / "out")])
    benchmark.main()
    report = " ".join((tmp_path / "out" / "elastic.md").read_text(encoding="utf-8").split())
    assert "| elastic | 3.00 | 1.00 | 3.00, 2.00, 9.00 |" in report
    assert "| accumulated | 4.00 | 0.75 | 4.00, 5.00, 4.00 |" in report
    assert "| undivided | 2.00 | 1.50 | 2.00, 2.00, 2.00 |" in report
    assert divisions == [{"virtual_ranks": 8}, {"gradient_accumulation_steps": 8}, {}] * 3


@pytest.mark.system
def test_steps_are_timed() -> None:
    benchmark = recipe_module("benchmarks/elastic.py")
    found = benchmark.measure(benchmark.Arguments(rounds=1, steps=1, tokens=1500, d_model=16))
    assert found.keys() == {"elastic", "accumulated", "undivided"}
    assert all(seconds > 0 for (seconds,) in found.values())

"""Recipes that decode write on two processes what they write on one."""

import shutil
from unittest.mock import patch

import pytest
from helpers import call_recipe, run_ranks, write_pairs
from models import GOLD, make_parser

from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.runs.records import ScoreRecord
from vaswani_transformer.system import faults


RECIPES = {
    "filter.py": "--model forward --corpus text.en text.de --remove 0.34 --tokens_per_batch 30 --output {}.filtered",
    "parse.py": "--model parser --gold gold.mrg --constrained --output {}.mrg",
    "score.py": "--model forward --source text.en --reference text.de --num_beams 1 --output_dir {}.scores",
}
WRITTEN = ("filtered/kept.jsonl", "filtered/removed.jsonl", "mrg", "json")
WRITTEN += ("scores/translations.txt", "scores/bleu_by_source_length.png")


def run_recipes(name: str) -> None:
    """Call all recipes, in one process group; what they write begins with this name."""
    for recipe, options in RECIPES.items():
        call_recipe(recipe, *options.format(name).split())


@pytest.mark.system
def test_two_processes_write_what_one_does(lively_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(lively_model, "forward")
    make_parser(tmp_path / "parser")
    (tmp_path / "gold.mrg").write_text(GOLD, encoding="utf-8")
    write_pairs(phrasebook("test")[:9], tmp_path / "text.en", tmp_path / "text.de")
    run_recipes("one")
    ranks = run_ranks([__file__], 2)
    assert [rank.returncode for rank in ranks] == [0, 0], "".join(rank.stderr[-3000:] for rank in ranks)
    for name in WRITTEN:
        assert (tmp_path / f"two.{name}").read_bytes() == (tmp_path / f"one.{name}").read_bytes(), name
    (expected,), (scores,) = (
        ScoreRecord.load(f"{name}.scores/results.json").systems.values() for name in ("one", "two")
    )
    assert scores.chrf == expected.chrf
    assert scores.perplexity.perplexity == pytest.approx(expected.perplexity.perplexity, rel=1e-6)
    assert [rank.stdout.count("text.en, text.de: 9 lines") for rank in ranks] == [1, 0]


if __name__ == "__main__":
    leave_process_group = faults.leave_process_group
    with patch.object(faults, "leave_process_group"):  # the next recipe goes on in the same group
        run_recipes("two")
    leave_process_group()

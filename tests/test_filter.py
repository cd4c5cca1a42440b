"""The recipe that removes noisy pairs: what it removes is what the models find least probable."""

import json

import pytest
import torch
from helpers import call_recipe, write_pairs

from vaswani_transformer.data.phrasebook import phrasebook


PAIRS = phrasebook("test")[:9]
CORPUS = ("--corpus", "pairs.en", "pairs.de")


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_pairs(PAIRS, tmp_path / "pairs.en", tmp_path / "pairs.de")
    return tmp_path


@torch.no_grad()
def by_hand(model, tokenizer, source, target):
    """Nats per sub-word of one target, by the model's own loss."""
    return float(model(**tokenizer(source, text_target=target, return_tensors="pt")).loss)


def rows_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("is_dual", [False, True])
def test_the_least_probable_pairs_are_removed(is_dual, corpus, lively_model, loaded_model, tokenizer, capsys):
    more = ["--reverse_model", lively_model] if is_dual else []
    call_recipe("filter.py", "--model", lively_model, *more, *CORPUS, "--remove", "0.34", "--output", "o")
    forward = [by_hand(loaded_model, tokenizer, english, german) for english, german in PAIRS]
    costs = forward
    if is_dual:
        backward = [by_hand(loaded_model, tokenizer, german, english) for english, german in PAIRS]
        costs = [abs(f - r) + (f + r) / 2 for f, r in zip(forward, backward, strict=True)]
    worst = sorted(range(len(PAIRS)), key=lambda row: -costs[row])[:3]
    removed, kept = rows_of(corpus / "o" / "removed.jsonl"), rows_of(corpus / "o" / "kept.jsonl")
    assert [(row["en"], row["de"]) for row in removed] == [PAIRS[row] for row in worst]
    assert [row["cost"] for row in removed] == pytest.approx([costs[row] for row in worst], abs=1e-3)
    assert [row["forward"] for row in removed] == pytest.approx([forward[row] for row in worst], abs=1e-3)
    assert [(row["en"], row["de"]) for row in kept] == [pair for row, pair in enumerate(PAIRS) if row not in worst]
    record = json.loads((corpus / "o" / "filter.json").read_text(encoding="utf-8"))
    assert (record["pairs"], record["removed"]) == (9, 3)
    assert record["threshold"] == pytest.approx(min(costs[row] for row in worst), abs=1e-3)
    assert "6 pairs kept, 3 removed" in capsys.readouterr().out


def test_pairs_with_a_blank_side_and_repeated_ones_are_removed_first(corpus, lively_model):
    english, german = PAIRS[3]
    rows = [(" ", "Ein Hund"), *PAIRS, (english, f"{german} "), ("A dog", "")]
    write_pairs(rows, corpus / "pairs.en", corpus / "pairs.de")
    call_recipe("filter.py", "--model", lively_model, *CORPUS, "--remove", "0.25", "--output", "o")
    assert {(row["en"].strip(), row["de"]) for row in rows_of(corpus / "o" / "removed.jsonl")} == {
        ("", "Ein Hund"),
        ("A dog", ""),
        (english, f"{german} "),
    }
    assert json.loads((corpus / "o" / "filter.json").read_text(encoding="utf-8"))["useless"] == 3


@pytest.mark.parametrize(("share", "count"), [("0", 0), ("1", 9)])
def test_nothing_or_everything_is_removed(share, count, corpus, lively_model):
    call_recipe("filter.py", "--model", lively_model, *CORPUS, "--remove", share, "--output", "o")
    assert len(rows_of(corpus / "o" / "removed.jsonl")) == count
    assert len(rows_of(corpus / "o" / "kept.jsonl")) == 9 - count


def test_an_output_that_exists_is_refused_before_anything_is_read(corpus):
    (corpus / "o").mkdir()
    with pytest.raises(SystemExit, match="output: o exists already"):
        call_recipe("filter.py", "--model", "missing", "--corpus", "missing.jsonl", "--output", "o")

"""`recipes/benchmarks/pcfg.py`: the grammar it chooses, the sentences that it does not parse, the files it writes."""

import sys

import pytest
from helpers import recipe_module


GOLD = "(TOP (S (NP (DT the) (NN cat)) (VP (VBZ sees) (NP (DT a) (NN bird))) (. .)))\n"
OTHER = "(TOP (NP (DT a) (NN bird)))\n"
UNSEEN = "(TOP (NP (NN bird) (NN bird) (DT a) (DT a)))\n"


@pytest.fixture(scope="module")
def pcfg():
    """The benchmark as a module."""
    return recipe_module("benchmarks/pcfg.py")


@pytest.fixture
def run(pcfg, tmp_path, monkeypatch):
    """Runs the benchmark on trees, and gives its record and its report."""

    def call(train: str, test: str, *options: object):
        (tmp_path / "train.mrg").write_text(train, encoding="utf-8")
        (tmp_path / "test.mrg").write_text(test, encoding="utf-8")
        files = ["--train", tmp_path / "train.mrg", "--test", tmp_path / "test.mrg", "--output", tmp_path / "out"]
        monkeypatch.setattr(sys, "argv", ["pcfg.py", *map(str, (*files, *options))])
        pcfg.main()
        record = pcfg.PcfgRecord.load(tmp_path / "out" / "pcfg.json")
        return record, (tmp_path / "out" / "pcfg.md").read_text(encoding="utf-8")

    return call


ONE = ("--horizontal", 1, "--vertical", 1, "--rare", 2)


def test_trees_like_the_training_trees_are_found(run):
    record, report = run((GOLD + OTHER) * 3, GOLD + OTHER, *ONE)
    assert record.test.scores.all_sentences.f1 == pytest.approx(100)
    assert (record.test.too_long, record.test.no_parse, record.tuning) == (0, 0, [])
    assert 0 < record.right_branching.all_sentences.f1 < 100
    assert "horizontal 1, vertical 1, rare 2" in report
    assert "100.00" in report
    assert "Choice" not in report


def test_sentences_that_are_too_long_or_have_no_tree_get_the_right_branching_one(run):
    record, report = run((GOLD + OTHER) * 3, GOLD + OTHER + UNSEEN, *ONE, "--longest", 5)
    assert (record.test.too_long, record.test.no_parse) == (1, 1)
    assert "for 1 sentences of more than 5 words, and for 1 without a tree" in report
    assert (record.test.scores.unseen.sentences, record.test.scores.unseen.f1 < 100) == (1, True)
    assert record.right_branching.unseen_evalb.sentences == 1
    record, _ = run((GOLD + OTHER) * 3, GOLD + UNSEEN, *ONE, "--longest", 3)
    assert record.test.too_long == 2
    assert record.test.scores == record.right_branching


def test_the_best_grammar_on_the_last_training_trees_is_chosen(run):
    # The noun phrase of a subject is the other one's mirror image: only the parent tells which.
    gold = "(TOP (S (NP (X a) (NP (X a) (X a))) (VP (V v) (NP (NP (X a) (X a)) (X a)))))\n"
    record, report = run(gold * 9, gold, "--horizontal", 2, "--vertical", 0, 1, 2, "--rare", 2, "--tuning", 3)
    f1 = [result.scores.all_sentences.f1 for result in record.tuning]
    assert [result.grammar.vertical for result in record.tuning] == [0, 1, 2]
    assert all(result.scores.sentences == 3 for result in record.tuning)
    assert record.test.grammar == record.tuning[f1.index(max(f1))].grammar
    assert record.test.scores.all_sentences.f1 == pytest.approx(max(f1))
    assert f1[0] < max(f1)
    assert "Choice of the grammar, on 3 of the last training trees" in report

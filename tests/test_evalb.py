"""F1 of parses: the report of EVALB's own sample, nearly every column; and small cases counted by hand."""

from pathlib import Path

import pytest

from vaswani_transformer.parsing import evalb
from vaswani_transformer.parsing.evalb import ParsingScore, percent, score_parse


STATUS = {"valid": 0, "error": 1, "skip": 2}


@pytest.fixture
def sample(shared_data) -> Path:
    return shared_data / "evalb_sample"


@pytest.fixture
def report(sample) -> list[str]:
    return (sample / "sample.rsl").read_text(encoding="utf-8").splitlines()


@pytest.fixture
def sample_scores(sample, monkeypatch):
    """Scores by sample.prm: the period counts, and other labels and words, which are replaced here, are equal."""
    monkeypatch.setattr(evalb, "DELETED", evalb.DELETED - {"."})
    monkeypatch.setattr(evalb, "EQUAL_LABELS", {"TT": "T"})
    gold, parses = (
        (sample / name).read_text(encoding="utf-8").split("\n")[:24] for name in ("sample.gld", "sample.tst")
    )
    return [score_parse(tree, parse.replace(" This)", " this)")) for tree, parse in zip(gold, parses, strict=True)]


def test_columns_of_every_sentence_are_evalbs(report, sample_scores):
    for number, (score, line) in enumerate(zip(sample_scores, report[3:27], strict=True), start=1):
        recall, precision = percent(score.matched, score.gold), percent(score.matched, score.parsed)
        columns = [number, score.length, STATUS[score.status], recall, precision]
        columns += [score.matched, score.gold, score.parsed, score.words]
        columns += [score.correct_tags, percent(score.correct_tags, score.words)]
        expected = [float(column) for column in line.split()]
        del expected[8]  # crossing brackets
        assert columns == pytest.approx(expected, abs=0.005)


def test_both_summaries_are_evalbs(report, sample_scores):
    short = [score for score in sample_scores if score.length <= 40]
    for scores, title in ((sample_scores, "-- All --"), (short, "-- len<=40 --")):
        score, first = ParsingScore.from_sentences(scores), report.index(title) + 1
        expected = [float(line.split("=")[1]) for line in report[first : first + 11]]
        valid = score.sentences - score.errors - score.skipped
        values = [score.sentences, score.errors, score.skipped, valid, score.recall, score.precision]
        assert [*values, score.complete_match] == pytest.approx(expected[:7], abs=0.005)
        assert score.tagging_accuracy == pytest.approx(expected[10], abs=0.005)


def test_default_rules_are_those_of_collins(sample):
    rows = [line.split() for line in (sample / "COLLINS.prm").read_text(encoding="utf-8").splitlines()]
    values = {name: {tuple(row[1:]) for row in rows if row[:1] == [name]} for name in ("DELETE_LABEL", "EQ_LABEL")}
    assert values["DELETE_LABEL"] == {(label,) for label in evalb.DELETED}
    assert {frozenset(pair) for pair in values["EQ_LABEL"]} == {*map(frozenset, evalb.EQUAL_LABELS.items())}


def test_f1_is_the_harmonic_mean():
    gold, parse = "(S (NP (D the) (N cat)) (VP (V sat)))", "(S (NP (D the) (N cat)) (V sat))"
    score = ParsingScore.from_sentences([score_parse(gold, parse)])
    assert (score.recall, score.precision, score.f1) == pytest.approx((200 / 3, 100.0, 80.0))


def test_equal_brackets_count_as_often_as_they_occur():
    gold, parse = "(S (NP (NP (N a))))", "(S (NP (N a)))"
    score = score_parse(gold, parse)
    assert (score.matched, score.gold, score.parsed) == (2, 3, 2)
    assert score_parse(gold, gold).matched == 3


def test_a_wrong_tag_of_punctuation_is_an_error_unless_gold_tags_delete_it():
    gold, parse = "(S (N a) (, ,) (V b) (. .))", "(S (N a) (N ,) (V b) (. .))"
    assert score_parse(gold, parse).status == "error"
    score = score_parse(gold, parse, deletes_by_gold=True)
    assert (score.status, score.matched, score.words, score.correct_tags) == ("valid", 1, 2, 2)
    # With another number of words nothing says which to delete.
    assert score_parse(gold, "(S (N a) (V b) (V c))", deletes_by_gold=True).status == "error"


def test_a_bracket_with_a_space_alone_is_an_empty_word():
    assert score_parse("(TOP (S (N a)))", "(TOP (S ))").status == "error"
    assert score_parse("(TOP (S (N a) (N b)))", "(TOP (S ))").status == "error"
    assert score_parse("(TOP (S (N a)))", "(TOP (S))").status == "skip"
    assert score_parse("(TOP (S (N a)))", "( (S (N a)) )").status == "valid"


def test_equal_labels_count_as_one():
    assert score_parse("(VP (PRT (RP up)))", "(VP (ADVP (RP up)))").matched == 2
    assert score_parse("(VP (PRT (RP up)))", "(VP (NP (RP up)))").matched == 1


@pytest.mark.parametrize("parse", ["(S (N a)", "(S (N a)))", "a", "(S (N a b))", "(S a (N b))"])
def test_a_malformed_parse_is_an_error(parse):
    assert score_parse("(S (N a))", parse).status == "error"
    assert score_parse(parse, "(S (N a))").status == "error"

"""F1 of parses: the report of EVALB's own sample, every column of it; and small cases counted by hand."""

import dataclasses
import json
from pathlib import Path

import evaluate
import pytest

from vaswani_transformer.parsing import evalb
from vaswani_transformer.parsing.evalb import Evalb, EvalbRules, parsing_scores, percent, score_parse, score_parses


STATUS = {"valid": 0, "error": 1, "skip": 2}


@pytest.fixture
def sample(shared_data) -> Path:
    return shared_data / "evalb_sample"


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:24]


@pytest.fixture
def report(sample) -> list[str]:
    return (sample / "sample.rsl").read_text(encoding="utf-8").splitlines()


@pytest.fixture
def sample_scores(sample):
    rules = EvalbRules.load(sample / "sample.prm")
    return score_parses(lines(sample / "sample.gld"), lines(sample / "sample.tst"), rules)


def test_every_column_of_every_sentence_is_evalbs(report, sample_scores):
    for number, (score, line) in enumerate(zip(sample_scores, report[3:27], strict=True), start=1):
        recall, precision = percent(score.matched, score.gold), percent(score.matched, score.parsed)
        columns = [number, score.length, STATUS[score.status], recall, precision, score.matched]
        columns += [score.gold, score.parsed, score.crossing, score.words, score.correct_tags]
        columns += [percent(score.correct_tags, score.words)]
        expected = [float(column) for column in line.split()]
        assert columns == pytest.approx(expected, abs=0.005)


def test_both_summaries_are_evalbs(report, sample_scores):
    fields = ("sentences", "errors", "skipped", None, "recall", "precision", "complete_match", "average_crossing")
    fields += ("no_crossing", "two_or_less_crossing", "tagging_accuracy")
    for score, title in zip(parsing_scores(sample_scores), ("-- All --", "-- len<=40 --"), strict=True):
        first = report.index(title) + 1
        for name, line in zip(fields, report[first : first + len(fields)], strict=True):
            value = score.sentences - score.errors - score.skipped if name is None else getattr(score, name)
            assert value == pytest.approx(float(line.split("=")[1]), abs=0.005), line


def test_default_rules_are_those_of_collins(sample):
    assert EvalbRules.load(sample / "COLLINS.prm") == EvalbRules()


def test_the_metric_loads_from_its_file_and_gives_the_same(sample, sample_scores):
    metric = evaluate.load(evalb.__file__)
    predictions, references = lines(sample / "sample.tst"), lines(sample / "sample.gld")
    found = metric.compute(predictions=predictions, references=references, parameters=str(sample / "sample.prm"))
    whole, short = parsing_scores(sample_scores)
    assert found.pop("up_to_40_words") == vars(short)
    assert found == vars(whole)


def test_f1_is_the_harmonic_mean():
    gold, parse = "(S (NP (D the) (N cat)) (VP (V sat)))", "(S (NP (D the) (N cat)) (V sat))"
    found = Evalb().compute(predictions=[parse], references=[gold])
    assert (found["recall"], found["precision"]) == (pytest.approx(200 / 3), 100.0)
    assert found["f1"] == pytest.approx(80.0)
    json.dumps(found)


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


# What EVALB's new.prm adds to COLLINS.prm; nk.prm differs from it in MAX_ERROR alone.
NEW = """
MAX_ERROR 10000
DELETE_LABEL TOP
DELETE_LABEL ''
DELETE_LABEL :
QUOTE_LABEL ''
QUOTE_LABEL POS
QUOTE_LABEL :
QUOTE_TERM '
"""


@pytest.mark.parametrize(
    ("gold", "parse"),
    [
        ("(S (NP (N a) (POS ')) (VP (V b)))", "(S (NP (N a)) ('' ') (VP (V b)))"),
        ("(S (NP (N a)) ('' ') (VP (V b)))", "(S (NP (N a) (POS ')) (VP (V b)))"),
        ("(S (N a) ('' ') (N c) (NP (: /) (N b)))", "(S (N a) (NP (POS ') (N c) (POS /) (N b)))"),
        ('(S (-NONE- *) (NP (POS ") (N a)))', "(S (NP ('' \")) (N a))"),
    ],
)
def test_a_quotation_mark_that_one_tree_deletes_counts_in_both(gold, parse, tmp_path):
    (tmp_path / "new.prm").write_text(NEW + "DELETE_LABEL -NONE-\n", encoding="utf-8")
    rules = EvalbRules.load(tmp_path / "new.prm")
    assert score_parse(gold, parse, dataclasses.replace(rules, quote_labels=frozenset())).status == "error"
    # As if no tag of a mark were deleted.
    plain = dataclasses.replace(rules, deleted=frozenset({"TOP", "-NONE-"}))
    assert score_parse(gold, parse, rules) == score_parse(gold, parse, plain)
    assert score_parse(gold, parse, rules).status == "valid"


def test_words_that_both_trees_delete_stay_deleted(tmp_path):
    (tmp_path / "new.prm").write_text(NEW, encoding="utf-8")
    rules = EvalbRules.load(tmp_path / "new.prm")
    score = score_parse("(S (N a) ('' '))", "(S (N a) (: '))", rules)
    assert (score.status, score.words, score.matched) == ("valid", 1, 1)
    assert score_parse("(S (N a) (: -))", "(S (N a) (POS -))", rules).status == "error"
    assert score_parse("(S (N a) ('' '))", "(S (N a) (JJ '))", rules).status == "error"


def test_a_mark_beside_another_is_found_twice_as_by_the_program(tmp_path):
    (tmp_path / "new.prm").write_text(NEW, encoding="utf-8")
    rules = EvalbRules.load(tmp_path / "new.prm")
    assert score_parse("(S (N a) (: ') (POS /))", "(S (N a) (POS ') (POS /))", rules).status == "error"


def test_a_bracket_with_a_space_alone_is_an_empty_word():
    assert score_parse("(TOP (S (N a)))", "(TOP (S ))").status == "error"
    assert score_parse("(TOP (S (N a) (N b)))", "(TOP (S ))").status == "error"
    assert score_parse("(TOP (S (N a)))", "(TOP (S))").status == "skip"
    assert score_parse("(TOP (S (N a)))", "( (S (N a)) )").status == "valid"


def test_equal_labels_count_as_one():
    assert score_parse("(VP (PRT (RP up)))", "(VP (ADVP (RP up)))").matched == 2
    assert score_parse("(VP (PRT (RP up)))", "(VP (NP (RP up)))").matched == 1


def test_pairs_of_equal_labels_and_words_do_not_add_up():
    pairs = frozenset({frozenset({"B", "A"}), frozenset({"B", "C"})})
    rules = EvalbRules(equal_labels=pairs, equal_words=pairs)
    for one, other, is_same in (("A", "B", 1), ("B", "C", 1), ("C", "B", 1), ("A", "C", 0)):
        score = score_parse(f"({one} ({one} a) (N b))", f"({other} ({other} a) (N b))", rules)
        assert (score.matched, score.correct_tags) == (is_same, 1 + is_same)
        assert (score_parse(f"(S (N {one}))", f"(S (N {other}))", rules).status == "valid") == bool(is_same)
    # A gold phrase takes the first of the parse that is the same, even if a later one is left without.
    assert score_parse("(A (C (N a)))", "(B (A (N a)))", rules).matched == 1
    assert score_parse("(C (A (N a)))", "(B (A (N a)))", rules).matched == 2


def test_unlabeled_brackets_match_by_their_span():
    rules = EvalbRules(is_labeled=False)
    assert score_parse("(S (NP (N a)) (V b))", "(X (Y (N a)) (V b))", rules).matched == 2


@pytest.mark.parametrize("parse", ["(S (N a)", "(S (N a)))", "a", "(S (N a b))", "(S a (N b))"])
def test_a_malformed_parse_is_an_error(parse):
    assert score_parse("(S (N a))", parse).status == "error"
    assert score_parse(parse, "(S (N a))").status == "error"


@pytest.mark.parametrize("line", ["DELETE_LABEL", "EQ_LABEL ADVP", "UNKNOWN 1", "CUTOFF_LEN x"])
def test_a_wrong_line_of_a_parameter_file_is_named(line, tmp_path):
    (tmp_path / "x.prm").write_text(f"# rules\n\n{line}\n", encoding="utf-8")
    with pytest.raises(ValueError, match=rf"x.prm, line 3: '{line}'"):
        EvalbRules.load(Path(tmp_path, "x.prm"))

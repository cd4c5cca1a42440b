"""parse.py: a tree for each line, scores against gold trees; and one clear error for each mistake."""

import pytest
from helpers import call_recipe, refusal
from models import GOLD, PARSED, make_parser
from nltk import Tree
from transformers import pipeline

from vaswani_transformer.parsing.scoring import ParserScores


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_parser(tmp_path_factory.mktemp("parser"))


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join([PARSED[0], "", *PARSED[1:]]) + "\n", encoding="utf-8")
    return path


def test_a_tree_for_each_line(model, text, tmp_path):
    options = ("--model", model, "--input", text, "--output", tmp_path / "trees.mrg", "--constrained")
    call_recipe("parse.py", *options)
    lines = (tmp_path / "trees.mrg").read_text(encoding="utf-8").splitlines()
    expected = pipeline("constituency-parsing", model=str(model))(PARSED, constrained=True)
    assert lines == [expected[0]["tree"], "", *(record["tree"] for record in expected[1:])]


def test_words_may_be_divided_already(model, tmp_path):
    (tmp_path / "text.txt").write_text("can't .\n", encoding="utf-8")
    for option, words in (("false", ["ca", "n't", "."]), ("true", ["can't", "."])):
        output = tmp_path / f"{option}.mrg"
        options = ("--input", tmp_path / "text.txt", "--is_split_into_words", option)
        call_recipe("parse.py", "--model", model, *options, "--output", output)
        assert Tree.fromstring(output.read_text("utf-8")).leaves() == words


def test_trees_are_scored_against_gold_ones_also_without_those_of_training(model, tmp_path, capsys):
    first, second = GOLD.splitlines()
    for name, text in (("gold", GOLD), ("second", second), ("train", f"{first.replace('NP', 'NP-SBJ')}\n")):
        (tmp_path / f"{name}.mrg").write_text(text, encoding="utf-8")
    found = {}
    for gold in ("gold", "second"):
        options = ("--gold", tmp_path / f"{gold}.mrg", "--train", tmp_path / "train.mrg", "--constrained")
        call_recipe("parse.py", "--model", model, *options, "--output", tmp_path / f"{gold}.parsed")
        found[gold] = ParserScores.load(tmp_path / f"{gold}.json")
    parsed = [Tree.fromstring(line) for line in (tmp_path / "gold.parsed").read_text("utf-8").splitlines()]
    assert [tree.leaves() for tree in parsed] == [["The", "cat", "sat", "."], ["Go", "."]]
    assert (found["gold"].all_sentences.sentences, found["gold"].repairs) == (2, 0)
    assert found["gold"].unseen == found["second"].all_sentences
    assert found["gold"].unseen_evalb == found["second"].evalb
    text = " ".join(capsys.readouterr().out.split())
    assert "sentences whose numbers of words then differ are left out" in text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--output new.mrg --input a --train b", "train: has no effect here; without gold trees"),
        ("--output new.mrg", "input, gold: give exactly one"),
        ("--output old.mrg --input a", "output: old.mrg exists already"),
        ("--output new.mrg --gold traces.mrg", "gold: traces.mrg has no trees"),
        ("--output new.json --gold a", "output: new.json would hold the scores"),
    ],
)
def test_mistakes_are_one_line(options, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "old.mrg").write_text("no tree\n", encoding="utf-8")
    (tmp_path / "traces.mrg").write_text("((S (NP (-NONE- *))))\n", encoding="utf-8")
    assert message in refusal("parse.py", "--model", "x", *options.split())
    assert not (tmp_path / "new.mrg").exists()


def test_a_translation_model_does_not_parse(lively_model, text, tmp_path):
    with pytest.raises(SystemExit, match="is a model for translation; name one for constituency-parsing"):
        call_recipe("parse.py", "--model", lively_model, "--input", text, "--output", tmp_path / "trees.mrg")

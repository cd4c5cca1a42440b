"""Treebanks: reading with errors by file and line, normalising, and the sequences of section 6.3."""

import gzip
import itertools
from collections import Counter

import pytest
from nltk import Tree

from vaswani_transformer.model.parse_sequence_vaswani import ParseLabels, parse_of_sequence
from vaswani_transformer.parsing.evalb import score_parse
from vaswani_transformer.parsing.trees import normalize_tree, parse_tree, read_trees, tree_to_sequence


MARY = "(TOP (S (NP (NNP Mary)) (VP (VBZ sleeps)) (. .)))"


def flat(tree: Tree) -> str:
    return " ".join(str(tree).split())


def test_the_sequence_has_tags_for_words_and_labelled_closings():
    tree = parse_tree("(TOP (S (NP (NNP John)) (VP (VBZ has) (NP (DT a) (NN dog))) (. .)))")
    assert " ".join(tree_to_sequence(tree)) == "S NP NNP /NP VP VBZ NP DT NN /NP /VP . /S"
    assert " ".join(tree_to_sequence(tree, keeps_tags=False)) == "S NP XX /NP VP XX NP XX XX /NP /VP XX /S"


def test_trees_of_a_treebank_come_back_from_their_sequences(shared_data):
    craft = shared_data / "craft_treebank"
    trees = [*itertools.islice(read_trees(craft / "dev.mrg.gz"), 0, None, 3)]
    normal = [normalize_tree(tree) for tree in trees]
    sequences = [tree_to_sequence(tree) for tree in normal]
    labels = ParseLabels.from_counts(Counter(itertools.chain(*sequences)))
    for tree, sequence, before in zip(normal, sequences, trees, strict=True):
        parse = parse_of_sequence(sequence, tree.leaves(), labels)
        assert (parse.tree, parse.repairs) == (flat(tree), 0)
        # By EVALB, which removes traces and function tags itself, the normalised tree has no bracket of its own.
        is_single_word = all(len(node) == 1 for node in before.subtrees() if isinstance(node[0], str))
        if is_single_word:
            score = score_parse(flat(before), parse.tree)
            assert score.status in ("valid", "skip")
            assert score.matched == score.parsed
            assert score.correct_tags == score.words


@pytest.mark.parametrize(
    ("tree", "normal"),
    [
        ("((S (NP-SBJ-1 (NNP Mary)) (VP=2 (VBZ sleeps)) (. .)))", MARY),
        ("(S1 (S (NP (NNP Mary)) (VP (VBZ sleeps) (NP-1 (-NONE- *))) (. .)))", MARY),
        ("(S (NP (NNP Mary)) (VP (VBZ sleeps)) (. .))", MARY),
        ("(TOP (S (NP (NP (NNP Mary)) (SBAR (-NONE- 0))) (VP (VP (VBZ sleeps))) (. .)))", MARY),
        ("(S (VP (VB Go)))", "(TOP (S (VP (VB Go))))"),  # unary chains of other labels stay
        ("((S (NP (NN a)) (-LRB- -LRB-) (NP|X (NN b))))", "(TOP (S (NP (NN a)) (-LRB- -LRB-) (NP|X (NN b))))"),
        ("((NP (NN Xpd TTD)))", "(TOP (NP (NN Xpd) (NN TTD)))"),
        ("((NP (NN a)) (NP (NN b)))", "(TOP (NP (NN a)) (NP (NN b)))"),
        ("((NN a))", "(TOP (NN a))"),
        ("(ROOT Hello)", "(TOP (ROOT Hello))"),
        ("((TOP (S1 (S (NP (NNP Mary)) (VP (VBZ sleeps)) (. .)))))", MARY),
        ("(S ((NP (NNP Mary))) (VP ( (VBZ sleeps))) (. .))", MARY),
    ],
)
def test_trees_are_normalised(tree, normal):
    assert flat(normalize_tree(parse_tree(tree))) == normal


def test_a_tree_of_traces_alone_is_none():
    assert normalize_tree(parse_tree("((S (NP (-NONE- *)) (VP (-NONE- *?*))))")) is None


def test_trees_may_span_lines(tmp_path):
    path = tmp_path / "x.mrg.gz"
    with gzip.open(path, "wt", encoding="utf-8") as file:
        file.write("\n( (S (NP (NNP Mary))\n   (VP (VBZ sleeps)) (. .)) )\n\n(S (VP (VB Go)))\n")
    assert [flat(normalize_tree(tree)) for tree in read_trees(path)] == [MARY, "(TOP (S (VP (VB Go))))"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("(S (NN a))\n(S (NN b)))\n", "line 2: not one tree"),
        ("(S (NN a))\n(S (NN b)\n\n(S (NN c))\n", "line 2: not one tree"),
        ("(S (NN a))\n\n(S (NN b) ())\n", r"line 3: the bracket \( ...\) must have either words or phrases"),
        ("(S (NN a) b)\n", r"line 1: the bracket \(S ...\) must have either words or phrases"),
        ("some text\n", "line 1: not one tree"),
        ("(S (NN a))\n(S (/S (NN b)))\n", r"line 2: the bracket \(/S ...\) must have"),
    ],
)
def test_a_malformed_tree_is_named_by_file_and_line(text, message, tmp_path):
    path = tmp_path / "x.mrg"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match="x.mrg, " + message):
        list(read_trees(path))

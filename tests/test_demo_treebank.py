"""The embedded treebank."""

import itertools

from vaswani_transformer.parsing.demo_treebank import demo_treebank
from vaswani_transformer.parsing.trees import normalize_tree


def test_splits_differ_and_are_the_same_each_time():
    held_out = [list(demo_treebank(split)) for split in ("validation", "test")]
    assert held_out == [list(demo_treebank(split)) for split in ("validation", "test")]
    train = list(itertools.islice(demo_treebank("train"), 1000))
    sentences = [{" ".join(tree.leaves()) for tree in trees} for trees in (*held_out, train)]
    assert [len(each) for each in sentences] == [300, 300, 1000]
    assert not any(one & other for one, other in itertools.combinations(sentences, 2))


def test_trees_are_normal():
    for tree in demo_treebank("test"):
        assert normalize_tree(tree) == tree

"""Recombined trees use only the rules and words of the treebank, and differ between copies."""

from collections import Counter
from itertools import islice

from nltk import Tree

from vaswani_transformer.parsing.recombination import Recombiner
from vaswani_transformer.parsing.treebank import read_treebank
from vaswani_transformer.parsing.trees import parse_tree


TREES = [*islice(read_treebank("demo", "train"), 300)]


def productions(trees: list[Tree]) -> set[tuple[str, ...]]:
    """The grammar rules of some trees: (label, labels of the children), or (tag, word)."""
    return {
        (node.label(), *(child if isinstance(child, str) else child.label() for child in node))
        for tree in trees
        for node in tree.subtrees()
    }


def test_recombined_trees_have_the_rules_of_the_treebank_and_are_new():
    found = list(Recombiner(TREES).copies(3))
    assert len(found) == 3 * len(TREES)
    assert productions(found) <= productions(TREES)
    assert len(set(map(str, found)) - set(map(str, TREES))) == len(found)
    assert [str(tree) for tree in found] == [str(tree) for tree in Recombiner(TREES).copies(3)]
    assert [str(tree) for tree in found] != [str(tree) for tree in Recombiner(TREES, seed=1).copies(3)]


def test_only_phrases_under_the_same_parent_are_exchanged():
    # Two subjects and two objects, all "NP": a subject must not become an object.
    words = [("Anna", "tea"), ("Ben", "milk")]
    trees = [parse_tree(f"(TOP (S (NP (S_ {a})) (VP (V drinks) (NP (O_ {b})))))") for a, b in words]
    found = Counter((tree.leaves()[0], tree.leaves()[2]) for tree in Recombiner(trees).copies(200))
    assert found == {("Anna", "milk"): 1, ("Ben", "tea"): 1}


def test_a_phrase_without_another_of_its_length_stays():
    long = parse_tree("(TOP (S (NP (N a) (N b) (N c) (N d) (N e) (N f) (N g) (N h) (N i) (N j)) (VP (V x))))")
    short = parse_tree("(TOP (S (NP (N k)) (VP (V x))))")
    assert {len(tree.leaves()) for tree in Recombiner([long, short]).copies(100)} == {2, 11}

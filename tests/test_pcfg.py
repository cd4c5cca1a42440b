"""Grammars of treebanks: their likeliest trees beside nltk's, the classes of words, Markovisation undone."""

import math
import random
from collections import Counter

import pytest
from nltk import PCFG, Nonterminal, Production, Tree, ViterbiParser, induce_pcfg

from vaswani_transformer.parsing.pcfg import CkyParser, GrammarOptions, TreebankGrammar, WordClasses
from vaswani_transformer.parsing.trees import parse_tree


TREES = [
    "(TOP (S (NP (DT the) (NN cat)) (VP (VBZ sees) (NP (DT a) (JJ red) (NN bird))) (. .)))",
    "(TOP (S (NP (DT a) (NN bird)) (VP (VBZ sings)) (. .)))",
    "(TOP (S (NP (NNS cats)) (VP (VBP see) (NP (NP (NNS birds)) (PP (IN in) (NP (DT a) (NN tree))))) (. .)))",
    "(TOP (S (NP (DT the) (NN cat)) (VP (VBZ sees) (NP (NNS birds)) (PP (IN in) (NP (DT the) (NN tree)))) (. .)))",
    "(TOP (NP (NP (DT the) (JJ red) (NN bird)) (PP (IN in) (NP (DT the) (NN tree))) (. .)))",
    "(TOP (S (NP (NP (DT a) (NN cat)) (PP (IN in) (NP (DT a) (NN tree)))) (VP (VBZ sings)) (. .)))",
]


def random_grammar(seed: int) -> PCFG:
    """Any rules with two labels, one label (chains and cycles among them), and one word."""
    generator = random.Random(seed)
    labels = [Nonterminal(name) for name in "SABCD"]
    rules = [Production(label, [word]) for label in labels for word in "xyz" if generator.random() < 0.4]
    for parent in labels:
        rules += [Production(parent, [label]) for label in labels if label != parent and generator.random() < 0.3]
        rules += [Production(parent, generator.choices(labels, k=2)) for _ in range(3)]
    return induce_pcfg(labels[0], [rule for rule in rules for _ in range(generator.randint(1, 6))])


def score_of_tree(grammar: PCFG, tree: Tree) -> float:
    scores = {(rule.lhs(), rule.rhs()): rule.logprob() for rule in grammar.productions()}
    return sum(scores[rule.lhs(), rule.rhs()] for rule in tree.productions())


def test_the_likeliest_tree_is_as_likely_as_that_of_nltk():
    outcomes = Counter[bool]()
    for seed in range(60):
        grammar = random_grammar(seed)
        parser, reference = CkyParser(grammar), ViterbiParser(grammar, max_time=None)
        known = sorted({rule.rhs()[0] for rule in grammar.productions() if rule.is_lexical()})
        generator = random.Random(seed)
        for length in (1, 2, 3, 5):
            words = generator.choices(known, k=length)  # nltk's parser refuses others
            expected = next(iter(reference.parse(words)), None)
            found = parser.parse(words)
            outcomes[found is None] += 1
            assert (found is None) == (expected is None)
            if found is not None:
                tree, score = found
                assert score == pytest.approx(expected.logprob())
                assert score == pytest.approx(score_of_tree(grammar, tree))
                assert tree.leaves() == words
                assert tree.label() == "S"
    assert min(outcomes.values()) > 10


def test_chains_of_unary_rules_count_on_words_and_on_phrases():
    grammar = PCFG.fromstring("S -> A [1]\nA -> B [.5] | D D [.5]\nB -> C [.5] | A [.5]\nC -> D D [1]\nD -> 'x' [1]")
    tree, score = CkyParser(grammar).parse(["x", "x"])
    assert (str(tree), score) == ("(S (A (D x) (D x)))", -1)
    grammar = PCFG.fromstring("S -> A [1]\nA -> B [.9] | D D [.1]\nB -> C [1]\nC -> D D [.5] | D [.5]\nD -> 'x' [1]")
    tree, score = CkyParser(grammar).parse(["x", "x"])
    assert str(tree) == "(S (A (B (C (D x) (D x)))))"
    assert score == pytest.approx(math.log2(0.45))
    assert str(CkyParser(grammar).parse(["x"])[0]) == "(S (A (B (C (D x)))))"


def test_words_that_the_grammar_lacks_have_no_tree():
    grammar = PCFG.fromstring("S -> A A [1]\nA -> 'x' [1]")
    assert CkyParser(grammar).parse(["x", "other"]) is None
    assert CkyParser(grammar).parse(["x"]) is None
    assert CkyParser(grammar).parse(["x"] * 3) is None


@pytest.mark.parametrize("vertical", [0, 1, 2])
@pytest.mark.parametrize("horizontal", [0, 1, 2])
def test_a_grammar_of_trees_gives_the_likeliest_tree_of_nltk(horizontal, vertical):
    options = GrammarOptions(horizontal, vertical, rare=2)
    gold = [parse_tree(text) for text in TREES]
    grammar = TreebankGrammar(gold, options)
    classes = WordClasses([word for tree in gold for word in tree.leaves()], options.rare)
    rules = []
    for tree in gold:
        binary = Tree.convert(tree)
        binary.chomsky_normal_form(horzMarkov=horizontal, vertMarkov=vertical)
        rules += [
            rule if rule.is_nonlexical() else Production(rule.lhs(), [classes[rule.rhs()[0]]])
            for rule in binary.productions()
        ]
    reference = ViterbiParser(induce_pcfg(Nonterminal("TOP"), rules), max_time=None)
    for sentence in ("a cat sees birds .", "cats see birds in the tree .", "a tree sees a red bird ."):
        words = sentence.split()
        expected = next(iter(reference.parse([classes[word] for word in words])))
        _, score = grammar.parser.parse([classes[word] for word in words])
        assert score == pytest.approx(expected.logprob())
        tree = grammar.parse(words)
        assert tree.leaves() == words
        assert not any(mark in node.label() for node in tree.subtrees() for mark in "@^<>")


def test_more_ancestors_tell_the_phrases_apart():
    gold = [parse_tree(text) for text in TREES]
    labels = [len(TreebankGrammar(gold, GrammarOptions(1, vertical, 2)).parser.labels) for vertical in (0, 1, 2)]
    assert labels == sorted(set(labels))


def test_labels_of_the_penn_treebank_stay_as_they_are():
    gold = parse_tree("(TOP (S (VP (VB look) (PRT|ADVP (RP up) (-LRB- -LRB-) (X+Y x)) (NP (PRP it)) (. .))))")
    grammar = TreebankGrammar([gold, gold], GrammarOptions(1, 1, 2))
    assert grammar.parse(gold.leaves()) == gold


def test_a_sentence_that_was_seen_in_one_tree_only_gets_this_tree():
    gold = [parse_tree(text) for text in TREES]
    grammar = TreebankGrammar(gold[1:2] * 2, GrammarOptions(2, 1, 2))
    assert grammar.parse(gold[1].leaves()) == gold[1]
    assert grammar.parse(["a", "a", "a"]) is None


def test_a_word_is_its_finest_class_that_is_frequent_enough():
    words = ["cell"] * 3 + ["walking", "talking", "Bmp2", "Bmp4", "sings", "odd"]
    classes = WordClasses(words, rare=2)
    assert classes["cell"] == classes["Cell"] == "cell"
    assert classes["walking"] == classes["stalking"] == "< ing>"
    assert classes["Bmp2"] == classes["Amp9"] == "<Aa,0 mp0>"
    assert classes["sings"] == classes["odd"] == classes["bird"] == "<>"  # one of each ending, two of the shape
    assert classes["Unheard-of"] == "<>"


def test_unseen_words_are_parsed_by_the_tags_of_rare_words_like_them():
    texts = ["(TOP (NP (JJ {}ous) (NN {}ness)))", "(TOP (NP (NN {}ness) (JJ {}ous)))"]
    gold = [parse_tree(text.format(a, b)) for text in texts for a, b in (("vi", "kind"), ("ner", "dark"))]
    found = TreebankGrammar(gold, GrammarOptions(2, 1, 3)).parse(["famous", "blindness"])
    assert str(found) == "(TOP (NP (JJ famous) (NN blindness)))"


def test_the_training_trees_stay_as_they_are():
    gold = [parse_tree(text) for text in TREES]
    TreebankGrammar(gold, GrammarOptions(1, 1, 5))
    assert gold == [parse_tree(text) for text in TREES]

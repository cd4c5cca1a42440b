"""Sequences of labels: any becomes a tree over the words; constrained searches need no repair."""

import functools
import math
import random
from collections import Counter

import pytest
import torch
from nltk import Tree

from vaswani_transformer.model.parse_sequence_vaswani import LABEL_MARK, LegalParse, ParseLabels, parse_of_sequence


LABELS = ParseLabels(tags=frozenset({"DT", "NN", "VB"}), phrases=frozenset({"NP", "S", "VP"}))
EOS = 1
VOCABULARY = {"<pad>": 0, "</s>": EOS, "<unk>": 2} | {LABEL_MARK + name: 3 + i for i, name in enumerate(LABELS.names)}
NAMES = {number: entry.removeprefix(LABEL_MARK) for entry, number in VOCABULARY.items()}


def parse(sequence: str, words: str):
    return parse_of_sequence(sequence.split(), words.split(), LABELS)


def test_a_whole_sequence_needs_no_repair():
    found = parse("S NP DT NN /NP VP VB /VP /S", "the cat sat")
    assert (found.tree, found.repairs) == ("(TOP (S (NP (DT the) (NN cat)) (VP (VB sat))))", 0)


@pytest.mark.parametrize(
    ("sequence", "tree", "repairs"),
    [
        ("S NN NN", "(TOP (S (NN a) (NN b)))", 1),  # S is closed
        ("S NP NN /S NN", "(TOP (S (NP (NN a))) (NN b))", 1),  # NP is closed
        ("S NN NN NN /S", "(TOP (S (NN a) (NN b)))", 1),  # a tag too many
        ("S NP /NP NN NN /S", "(TOP (S (NN a) (NN b)))", 1),  # NP is empty
        ("S NN /NP NN /S", "(TOP (S (NN a) (NN b)))", 1),  # NP was not open
        ("S NN ??? <unk> NN /S", "(TOP (S (NN a) (NN b)))", 2),  # no labels
        ("S NP NN", "(TOP (S (NP (NN a) (XX b))))", 3),  # a word without a tag, two phrases closed
        ("S NN /S", "(TOP (S (NN a)) (XX b))", 1),
        ("", "(TOP (XX a) (XX b))", 2),
        ("/S /TOP", "(TOP (XX a) (XX b))", 4),
    ],
)
def test_repairs_are_made_and_counted(sequence, tree, repairs):
    found = parse(sequence, "a b")
    assert (found.tree, found.repairs) == (tree, repairs)


def test_brackets_are_words_too():
    found = parse("S NN NN NN /S", "( a)b -LRB-")
    assert Tree.fromstring(found.tree).leaves() == ["-LRB-", "a-RRB-b", "-LRB-"]


def test_any_sequence_becomes_a_tree_over_the_words():
    chance = random.Random(0)
    tokens = [*LABELS.names, "</s>", "word", "/", "/XX", "(", ")", ""]
    for _ in range(5000):
        words = [f"w{i}" for i in range(chance.randrange(12))]
        sequence = chance.choices(tokens, k=chance.randrange(30))
        tree = Tree.fromstring(parse_of_sequence(sequence, words, LABELS).tree)
        assert tree.leaves() == words
        assert tree.label() == "TOP"
        assert all(len(node) for node in tree.subtrees() if node is not tree)


def test_phrases_are_the_labels_that_have_a_closing_label():
    found = ParseLabels.from_counts(Counter(["S", "NN", "/S", "DT", "NP", "NN", "/NP"]))
    assert found == ParseLabels(frozenset({"NN", "DT"}), frozenset({"S", "NP"}))
    assert ParseLabels.from_vocabulary(VOCABULARY) == LABELS
    assert found.names == ["DT", "NN", "NP", "S", "/NP", "/S"]
    with pytest.raises(ValueError, match="'NP' is used as a part-of-speech tag and as a phrase"):
        ParseLabels.from_counts(Counter(["S", "NN", "/S", "NP", "NN", "/NP", "S", "NP", "/S"]))


@functools.cache
def can_end(untagged: int, depth: int, just_opened: bool, remaining: int) -> bool:
    """Whether some legal continuation ends within `remaining` tokens: a search through all of them."""
    if remaining < 1:
        return False
    if untagged == 0 and depth == 0:
        return True
    continuations = []
    if untagged:
        continuations += [(untagged - 1, depth, False), (untagged, depth + 1, True)]
    if depth and not just_opened:
        continuations.append((untagged, depth - 1, False))
    return any(can_end(*state, remaining - 1) for state in continuations)


def legal_labels(sequence: list[str], words: int, limit: int) -> set[str]:
    """Labels that may follow a legal sequence, by a stack."""
    stack: list[str] = []
    for label in sequence:
        if label in LABELS.phrases:
            stack.append(label)
        elif label.startswith("/"):
            assert stack.pop() == label[1:]
    untagged, remaining = words - sum(label in LABELS.tags for label in sequence), limit - len(sequence) - 1
    just_opened = bool(sequence) and sequence[-1] in LABELS.phrases
    legal = set()
    if untagged and can_end(untagged - 1, len(stack), False, remaining):
        legal |= LABELS.tags
    if untagged and can_end(untagged, len(stack) + 1, True, remaining):
        legal |= LABELS.phrases
    if stack and not just_opened:
        legal.add("/" + stack[-1])
    if not untagged and not stack:
        legal.add("</s>")
    return legal


def test_legal_labels_are_those_that_a_search_finds():
    chance = random.Random(1)
    for _ in range(150):
        words = [chance.randint(1, 4) for _ in range(3)]
        limits = [count + 1 + chance.randrange(6) for count in words]
        rules = LegalParse(VOCABULARY, len(VOCABULARY), EOS, torch.tensor(words), torch.tensor(limits))
        rows: list[list[str]] = [[], [], []]
        while len(rows[0]) < max(limits):
            input_ids = torch.tensor([[0, *(VOCABULARY.get(LABEL_MARK + name, EOS) for name in row)] for row in rows])
            legal = rules(input_ids, torch.zeros(3, len(VOCABULARY))).gt(-math.inf)
            for row, count, limit, found in zip(rows, words, limits, legal, strict=True):
                names = {NAMES[number] for number in found.nonzero().flatten().tolist()}
                if "</s>" not in row:
                    assert names == legal_labels(row, count, limit), row
                row.append(chance.choice(sorted(names)))

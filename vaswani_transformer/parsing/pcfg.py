"""Probabilistic context-free grammars of treebanks, and their likeliest trees: a baseline of parsing models (6.3)."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from nltk import PCFG, Nonterminal, Production, Tree, induce_pcfg

from ..model.parse_sequence_vaswani import ROOT
from .trees import words_of_tree


_MARKS = {"childChar": "@", "parentChar": "^"}  # nltk's own "|" is in labels of the Penn Treebank, as PRT|ADVP
_ANY = "<>"


@dataclass(frozen=True)
class GrammarOptions:
    """How a grammar is made of trees.

    Attributes:
        horizontal: Siblings to come that a label made by binarisation names.
        vertical: Ancestors that the label of a phrase names: 1 is its parent.
        rare: Words, and classes of words, seen less often are replaced by a coarser class.
    """

    horizontal: int
    vertical: int
    rare: int


class TreebankGrammar:
    """The grammar with the relative frequencies of some normalised trees, binarised and Markovised by nltk."""

    def __init__(self, trees: Sequence[Tree], options: GrammarOptions) -> None:
        self.classes = WordClasses((word for tree in trees for word in words_of_tree(tree)), options.rare)
        rules = (rule for tree in trees for rule in self._rules(tree, options))
        self.parser = CkyParser(induce_pcfg(Nonterminal(ROOT), rules))

    def _rules(self, tree: Tree, options: GrammarOptions) -> list[Production]:
        tree = tree.copy(deep=True)
        for node in _tags(tree):
            node[0] = self.classes[node[0]]
        tree.chomsky_normal_form(horzMarkov=options.horizontal, vertMarkov=options.vertical, **_MARKS)
        return tree.productions()

    def parse(self, words: Sequence[str]) -> Tree | None:
        """The likeliest tree of a sentence; None if the grammar has no tree for it."""
        found = self.parser.parse([self.classes[word] for word in words])
        if found is None:
            return None
        tree, _ = found
        tree.un_chomsky_normal_form(expandUnary=False, **_MARKS)
        for node, word in zip(_tags(tree), words, strict=True):
            node[0] = word
        return tree


def _tags(tree: Tree) -> Iterator[Tree]:
    """The nodes of the words, from left to right."""
    return (node for node in tree.subtrees() if isinstance(node[0], str))


class WordClasses:
    """The class of a word: itself, or the finest class of its shape and ending, that is frequent enough.

    Args:
        words: Words of a treebank, as often as they occur there.
        rare: Words that a class needs. Words that a finer class has do not count for a coarser one.
    """

    def __init__(self, words: Iterable[str], rare: int) -> None:
        classless = {word: (count, _classes(word)) for word, count in Counter(words).items()}
        self.known = {_ANY}
        for level in range(len(_classes(_ANY))):
            seen = Counter[str]()
            for count, names in classless.values():
                seen[names[level]] += count
            self.known |= {name for name, count in seen.items() if count >= rare}
            classless = {word: entry for word, entry in classless.items() if entry[1][level] not in self.known}

    def __getitem__(self, word: str) -> str:
        return next(name for name in _classes(word) if name in self.known)


def _classes(word: str) -> list[str]:
    """The word, and names of its classes from fine to coarse; the last has all words."""
    traits = {"A": word.isupper(), "Aa": word[0].isupper(), "0": bool(re.search(r"\d", word)), "-": "-" in word[1:]}
    shape = ",".join(name for name, is_so in traits.items() if is_so)
    ending = re.sub(r"\d", "0", word.lower())
    return [word, word.lower(), f"<{shape} {ending[-3:]}>", f"<{shape} {ending[-2:]}>", f"<{shape}>", _ANY]


class CkyParser:
    """Finds the likeliest tree under a grammar whose rules have two labels, one label, or one word.

    It is exact. Scores are logarithms to base 2, as nltk's.
    """

    def __init__(self, grammar: PCFG) -> None:
        rules = grammar.productions()
        binary = [rule for rule in rules if len(rule) == 2]
        unary = [rule for rule in rules if len(rule) == 1 and isinstance(rule.rhs()[0], Nonterminal)]
        lefts = {rule.rhs()[0] for rule in binary}
        others = {label for rule in rules for label in (rule.lhs(), *rule.rhs()) if isinstance(label, Nonterminal)}
        self.labels = [*sorted(lefts, key=str), *sorted(others - lefts, key=str)]
        self.lefts = len(lefts)  # so many labels, the first, are left in a binary rule
        self.number = {label: place for place, label in enumerate(self.labels)}
        self.start = self.number[grammar.start()]
        self.parent, self.binary_scores, (self.left, self.right) = self._arrays(binary, 2)
        self.unary_parent, self.unary_scores, (self.child,) = self._arrays(unary, 1)
        self.tags: dict[str, dict[int, float]] = {}
        for rule in rules:
            if isinstance(rule.rhs()[0], str):
                self.tags.setdefault(rule.rhs()[0], {})[self.number[rule.lhs()]] = rule.logprob()

    def _arrays(self, rules: Sequence[Production], size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Parents [rules], scores [rules] and children [size, rules] of rules, in the order of their parents."""
        rules = sorted(rules, key=lambda rule: self.number[rule.lhs()])
        numbers = [[self.number[label] for label in (rule.lhs(), *rule.rhs())] for rule in rules]
        parent, *children = np.array(numbers, int).reshape(-1, 1 + size).T
        return parent, np.array([rule.logprob() for rule in rules], float), np.array(children)

    def parse(self, words: Sequence[str]) -> tuple[Tree, float] | None:
        """The likeliest tree, and its score; None if the grammar has no tree for the words.

        A rule is tried on a span only if its left label ends, and its right label begins, where they can meet.
        """
        chart = _Chart(len(words), len(self.labels), self.lefts)
        first_end = np.full((len(words), self.lefts), len(words) + 1)  # of the spans of a label that begin at a word
        last_start = np.full((len(words) + 1, len(self.labels)), -1)  # of those that end before a word
        for end, word in enumerate(words, start=1):
            for start in reversed(range(end)):
                scores = chart.span(start, end)
                scores.fill(-math.inf)
                if end - start == 1:
                    tags = self.tags.get(word, {})
                    scores[[*tags]] = [*tags.values()]
                self._join(
                    chart, start, end, np.flatnonzero(first_end[start][self.left] <= last_start[end][self.right])
                )
                self._rewrite(scores)
                chart.beginning[start, end - start - 1] = scores[: self.lefts]
                is_found = scores > -math.inf
                last_start[end][is_found & (last_start[end] < 0)] = start
                first_end[start][is_found[: self.lefts] & (first_end[start] > end)] = end
        score = float(chart.span(0, len(words))[self.start])
        return None if score == -math.inf else (self._tree(chart, words, self.start, 0, len(words)), score)

    def _join(self, chart: "_Chart", start: int, end: int, rules: np.ndarray) -> None:
        """Set each label's score on a span to its best score by the given binary rules."""
        if len(rules):
            parents = self.parent[rules]
            firsts = np.flatnonzero(np.diff(parents, prepend=-1))
            best = self._splits(chart, start, end, rules).max(axis=0)
            chart.span(start, end)[parents[firsts]] = np.maximum.reduceat(best, firsts)

    def _splits(self, chart: "_Chart", start: int, end: int, rules: np.ndarray) -> np.ndarray:
        """Scores of binary rules on a span, [splits, rules]."""
        scores = np.take(chart.beginning[start, : end - start - 1], self.left[rules], axis=1)
        scores += np.take(chart.ending[end, start + 1 : end], self.right[rules], axis=1)
        scores += self.binary_scores[rules]
        return scores

    def _rewrite(self, scores: np.ndarray) -> None:
        """Raise each label's score on a span to its best score by chains of unary rules."""
        while True:
            reached = scores[self.child] + self.unary_scores
            is_better = reached > scores[self.unary_parent]
            if not is_better.any():
                return
            np.maximum.at(scores, self.unary_parent[is_better], reached[is_better])

    def _tree(self, chart: "_Chart", words: Sequence[str], label: int, start: int, end: int) -> Tree:
        """The tree with the score of a label on a span, found by trying again all that may have given the score."""
        scores, name = chart.span(start, end), str(self.labels[label])
        if end - start == 1 and self.tags.get(words[start], {}).get(label) == scores[label]:
            return Tree(name, [words[start]])
        rules = np.flatnonzero(self.parent == label)
        splits, places = np.nonzero(self._splits(chart, start, end, rules) == scores[label])
        if len(places):
            rule, middle = rules[places[0]], start + 1 + int(splits[0])
            left = self._tree(chart, words, self.left[rule], start, middle)
            return Tree(name, [left, self._tree(chart, words, self.right[rule], middle, end)])
        rules = np.flatnonzero(self.unary_parent == label)
        rule = rules[np.argmax(scores[self.child[rules]] + self.unary_scores[rules])]
        return Tree(name, [self._tree(chart, words, self.child[rule], start, end)])


class _Chart:
    """Scores of all labels on all spans of words.

    Each array is one block, freed as a whole; only existing spans occupy memory.

    Attributes:
        beginning: [words, words, lefts]: scores of the spans that begin at a word, by length, of labels that are left
            in a rule.
        ending: [words + 1, words, labels]: scores of the spans that end before a place, by first word.
    """

    def __init__(self, words: int, labels: int, lefts: int) -> None:
        self.beginning = np.empty((words, words, lefts))
        self.ending = np.empty((words + 1, words, labels))

    def span(self, start: int, end: int) -> np.ndarray:
        return self.ending[end, start]

"""Data recombination for treebanks, after that of Jia and Liang (2016) for semantic parsing.

A model overfits a small treebank after a few epochs. Recombined trees differ in every copy, and their words and phrases
keep their gold tags and labels.
"""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence

from nltk import Tree


_PHRASES, _WORDS = 0.15, 0.05  # share of phrases and of words that are exchanged
_TRIES = 10


class Recombiner:
    """Exchanges phrases for others of the same label under the same parent, and words for others of their tag.

    Args:
        trees: Normalised trees, which phrases and words are taken from.
        seed: Of the random choices.
    """

    def __init__(self, trees: Sequence[Tree], seed: int = 0) -> None:
        self._trees, self._random = trees, random.Random(seed)
        self._phrases: defaultdict[tuple[str, str], list[Tree]] = defaultdict(list)  # by label and parent's label
        self._words: defaultdict[str, list[str]] = defaultdict(list)  # by tag
        for tree in trees:
            for node in tree.subtrees(_is_phrase):
                for child in node:
                    if _is_phrase(child):
                        self._phrases[child.label(), node.label()].append(child)
                    else:
                        self._words[child.label()].append(child[0])

    def copies(self, count: int) -> Iterator[Tree]:
        """Yield `count` recombined copies of each tree."""
        for _ in range(count):
            for tree in self._trees:
                yield self._recombined(tree, _PHRASES)

    def _recombined(self, node: Tree, share: float) -> Tree:
        children = []
        for child in node:
            if not _is_phrase(child):
                children.append(Tree(child.label(), [self._word(child)]))
            elif self._random.random() < share:
                # Fewer changes within, so that most phrases remain as people wrote them.
                children.append(self._recombined(self._other(child, node.label()), share / 2))
            else:
                children.append(self._recombined(child, share))
        return Tree(node.label(), children)

    def _word(self, tagged: Tree) -> str:
        is_exchanged = tagged.label()[0].isalpha() and self._random.random() < _WORDS  # no punctuation
        return self._random.choice(self._words[tagged.label()]) if is_exchanged else tagged[0]

    def _other(self, phrase: Tree, parent: str) -> Tree:
        """A phrase of about the same number of words, so that sentences keep their lengths; if need be, the same."""
        length = len(phrase.leaves())
        for _ in range(_TRIES):
            found = self._random.choice(self._phrases[phrase.label(), parent])
            if abs(len(found.leaves()) - length) <= max(3, length // 2):
                return found
        return phrase


def _is_phrase(node: Tree) -> bool:
    """Whether a node of a normalised tree is a phrase; otherwise it is a word under its tag."""
    return not isinstance(node[0], str)

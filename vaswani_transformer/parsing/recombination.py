"""Data recombination for treebanks, after Jia and Liang (2016) for semantic parsing.

A model overfits a small treebank after a few epochs. Recombined trees differ in every copy, and their words and phrases
keep their gold tags and labels.
"""

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from hashlib import blake2b

from nltk import Tree

from .trees import tree_to_sequence


_PHRASES, _WORDS = 0.15, 0.05  # share of phrases and of words that are exchanged
_TRIES = 10  # for a new copy of a tree, and for a phrase of a similar length


class Recombiner:
    """Exchanges phrases for others of the same label under the same parent, and words for others of their tag.

    Args:
        trees: Normalised trees, the source of phrases and words.
        seed: Seed of the random choices.
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
        """Yield `count` recombined copies of each tree, all of them new; fewer if a tree allows no more."""
        known = {_digest(tree) for tree in self._trees}
        for _ in range(count):
            for tree in self._trees:
                for tries in range(1, _TRIES + 1):  # with more and more changes: a short tree often stays unchanged
                    copy = self._recombined(tree, tries * _PHRASES, tries * _WORDS)
                    if (digest := _digest(copy)) not in known:
                        known.add(digest)
                        yield copy
                        break

    def _recombined(self, node: Tree, share: float, word_share: float) -> Tree:
        children = []
        for child in node:
            if not _is_phrase(child):
                children.append(Tree(child.label(), [self._word(child, word_share)]))
            elif self._random.random() < share:
                # Fewer changes within, so that most phrases remain as people wrote them.
                children.append(self._recombined(self._other(child, node.label()), share / 2, word_share))
            else:
                children.append(self._recombined(child, share, word_share))
        return Tree(node.label(), children)

    def _word(self, tagged: Tree, share: float) -> str:
        is_exchanged = tagged.label()[0].isalpha() and self._random.random() < share  # no punctuation
        return self._random.choice(self._words[tagged.label()]) if is_exchanged else tagged[0]

    def _other(self, phrase: Tree, parent: str) -> Tree:
        """Another phrase with about as many words, to preserve lengths of sentences; or else the phrase itself."""
        length = len(phrase.leaves())
        for _ in range(_TRIES):
            other = self._random.choice(self._phrases[phrase.label(), parent])
            if abs(len(other.leaves()) - length) <= max(3, length // 2):
                return other
        return phrase


def _digest(tree: Tree) -> bytes:
    """Digest of words and labels, smaller than the tree."""
    return blake2b("\n".join((*tree.leaves(), *tree_to_sequence(tree))).encode(), digest_size=16).digest()


def _is_phrase(node: Tree) -> bool:
    """Whether a node of a normalised tree is a phrase; otherwise it is a word under its tag."""
    return not isinstance(node[0], str)

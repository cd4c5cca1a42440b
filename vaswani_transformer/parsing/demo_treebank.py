"""The embedded treebank: trees of a small grammar of English, for demonstrations and tests.

Every sentence has one tree: phrases with "of" belong to the noun before them, all others to the verb.
"""

import random
from collections.abc import Iterator

from nltk import Tree


_SIZES = {"train": 6000, "validation": 300, "test": 300}

# Expansions of each phrase, equally likely. "S1:S" is a phrase S with other expansions; "IN:of" is the word "of".
_PHRASES = {
    "S": ["NP VP .", "NP VP .", "PP , NP VP .", "S1 CC S1 .", "SBAR , NP VP ."],
    "S1:S": ["NP VP"],
    "SBAR": ["IN:because S1", "IN:when S1", "IN:although S1"],
    "SBARR:SBAR": ["WHNP S2"],
    "WHNP": ["WDT"],
    "S2:S": ["VP"],
    "NP": ["DT NN", "DT NN", "DT JJ NN", "PRP", "NNP", "NPB NPOF", "NPB SBARR", "DT NNS"],
    "NPB:NP": ["DT NN", "DT JJ NN"],
    "NPOF:PP": ["IN:of NPB"],
    "VP": ["VBD", "VBD NP", "VBD NP PP", "VBD PP", "MD VPI", "VBD SBART"],
    "VPI:VP": ["VB NP", "VB NP PP", "VB"],
    "SBART:SBAR": ["IN:that S1"],
    "PP": ["IN NPB"],
}
_RULES = {key.split(":")[0]: (key.split(":")[-1], expansions) for key, expansions in _PHRASES.items()}
_WORDS = {
    "DT": "the a this every",
    "NN": "cat dog house garden teacher river book king daughter window train city letter friend bird table",
    "NNS": "cats dogs houses teachers books kings letters friends",
    "NNP": "Mary John Berlin London Anna Peter",
    "PRP": "she he it they",
    "JJ": "old small red clever quiet strange new heavy",
    "VBD": "saw found liked sold heard followed painted knew remembered left",
    "VB": "see find like sell hear follow paint know",
    "MD": "can will must should",
    "IN": "with in near behind under without",
    "WDT": "that which",
    "CC": "and but",
    ",": ",",
    ".": ".",
}


def demo_treebank(split: str) -> Iterator[Tree]:
    """Different trees in each split, the same on each call: 6,000 for "train", 300 for "validation" and "test"."""
    chance, seen = random.Random(0), set()
    for name, size in reversed(_SIZES.items()):  # the held-out splits come first, so that they never change
        count = 0
        while count < size:
            tree = _expand("S", chance)
            sentence = " ".join(tree.leaves())
            if len(sentence.split()) <= 40 and sentence not in seen:
                seen.add(sentence)
                count += 1
                if name == split:
                    yield Tree("TOP", [tree])


def _expand(symbol: str, chance: random.Random) -> Tree:
    if symbol in _RULES:
        label, expansions = _RULES[symbol]
        return Tree(label, [_expand(child, chance) for child in chance.choice(expansions).split()])
    tag, _, word = symbol.partition(":")
    return Tree(tag, [word or chance.choice(_WORDS[tag].split())])

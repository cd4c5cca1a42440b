"""Section 6.3 of the paper: a constituency parse as a sequence of labels, and back.

The sequence of `(S (NP (NNP Mary)) (VP (VBZ sleeps)) (. .))` is `S NP NNP /NP VP VBZ /VP . /S`: a phrase opens with its
label and closes with `/` and its label; a word is its part-of-speech tag. In a vocabulary, `LABEL_MARK` stands before a
label.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from .beam_search_vaswani import SentenceProcessor


ROOT = "TOP"
UNKNOWN_TAG = "XX"  # the tag of words for which a sequence has none; Vinyals et al. (2015) write it for every tag
PARSE = "parse"  # the target language of parsers, and of the corpora that they are trained on
CLOSING = "/"
LABEL_MARK = " "  # prefix of labels in a byte-pair vocabulary, whose other entries have no space

_TAG, _OPENING, _CLOSING, _END = range(1, 5)  # kinds of tokens; 0 is any other


@dataclass(frozen=True)
class ParseLabels:
    """The labels that make up sequences.

    Attributes:
        tags: Part-of-speech tags; each stands for one word.
        phrases: Labels of phrases; each also has a closing label.
    """

    tags: frozenset[str]
    phrases: frozenset[str]

    @classmethod
    def from_counts(cls, counts: Mapping[str, int]) -> "ParseLabels":
        """Labels from their total counts over all sequences.

        Raises:
            ValueError: A label is both tag and phrase, which makes sequences ambiguous.
        """
        labels = cls._from_names(set(counts))
        for phrase in sorted(labels.phrases):
            if counts.get(phrase) != counts[CLOSING + phrase]:
                raise ValueError(f"the label {phrase!r} is used as a part-of-speech tag and as a phrase; rename one")
        return labels

    @classmethod
    def from_vocabulary(cls, vocabulary: Iterable[str]) -> "ParseLabels":
        """The labels of a tokenizer's vocabulary; empty if it has none."""
        return cls._from_names({entry[1:] for entry in vocabulary if entry.startswith(LABEL_MARK)})

    @classmethod
    def _from_names(cls, names: set[str]) -> "ParseLabels":
        phrases = frozenset(name[1:] for name in names if name.startswith(CLOSING))
        return cls(frozenset(name for name in names - phrases if not name.startswith(CLOSING)), phrases)

    @property
    def names(self) -> list[str]:
        """All labels in a fixed order: tags, then phrases, then their closing labels."""
        phrases = sorted(self.phrases)
        return [*sorted(self.tags), *phrases, *(CLOSING + phrase for phrase in phrases)]


@dataclass(frozen=True)
class Parse:
    """A well-formed tree over the words of a sentence.

    Attributes:
        tree: The tree in brackets, such as `(TOP (S (NP (NNP Mary)) (VP (VBZ sleeps)) (. .)))`.
        repairs: Number of changes that made the sequence a tree: labels dropped, brackets closed, tags added.
    """

    tree: str
    repairs: int


def parse_of_sequence(sequence: Sequence[str], words: Sequence[str], labels: ParseLabels) -> Parse:
    """Read any sequence as a tree over exactly these words.

    Each of these is a repair: a tag beyond the last word, a closing label without its opening label, or an unknown
    label is dropped; a phrase that is still open where a surrounding phrase closes, or at the end, is closed; a phrase
    without words is dropped; and a word without a tag gets "XX", in the last open phrase, or else at the end.

    The `words` have no white space; their brackets become -LRB- and -RRB-. `labels` tells tags from phrases.
    """
    leaves = [word.replace("(", "-LRB-").replace(")", "-RRB-") for word in words]
    stack, used, repairs = [[ROOT]], 0, 0  # the open phrases: the label of each, then its children in brackets

    def close() -> None:
        nonlocal repairs
        phrase = stack.pop()
        if len(phrase) > 1:
            stack[-1].append(f"({' '.join(phrase)})")
        else:
            repairs += 1

    for label in sequence:
        closed = label.removeprefix(CLOSING)
        if label in labels.phrases:
            stack.append([label])
        elif label in labels.tags and used < len(leaves):
            stack[-1].append(f"({label} {leaves[used]})")
            used += 1
        elif label.startswith(CLOSING) and any(phrase[0] == closed for phrase in stack[1:]):
            while stack[-1][0] != closed:
                repairs += 1
                close()
            close()
        else:
            repairs += 1
    untagged = [f"({UNKNOWN_TAG} {leaf})" for leaf in leaves[used:]]
    stack[-1] += untagged
    repairs += len(untagged) + len(stack) - 1
    while len(stack) > 1:
        close()
    return Parse(f"({' '.join(stack[0])})", repairs)


class LegalParse(SentenceProcessor):
    """Lets a search choose only labels that continue a well-formed parse with one tag for each word.

    A phrase contains a word, and closes only with its own label. The sequence ends when every word has its tag and
    every phrase is closed, always within the sentence's token limit.

    Args:
        vocabulary: Ids by entry, labels included.
        size: Rows of the softmax, which include all labels.
        eos_token_id: Id of EOS.
        words: `[batch]`, number of words of each sentence.
        limits: `[batch]`, tokens that each sentence may generate, EOS included; at least one more than words.
    """

    def __init__(
        self, vocabulary: Mapping[str, int], size: int, eos_token_id: int, words: torch.Tensor, limits: torch.Tensor
    ) -> None:
        labels = ParseLabels.from_vocabulary(vocabulary)
        self.depths = torch.tensor([0, 0, 1, -1, 0])  # what each kind adds to the depth
        self.kinds = torch.zeros(size, dtype=torch.long)  # [vocabulary]
        self.closings = torch.full((size,), eos_token_id)  # [vocabulary], the closing label of each opening label
        self.kinds[eos_token_id] = _END
        for tag in labels.tags:
            self.kinds[vocabulary[LABEL_MARK + tag]] = _TAG
        for phrase in labels.phrases:
            opening, closing = vocabulary[LABEL_MARK + phrase], vocabulary[LABEL_MARK + CLOSING + phrase]
            self.kinds[opening], self.kinds[closing] = _OPENING, _CLOSING
            self.closings[opening] = closing
        self.words, self.limits = words, limits

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores `[rows, vocabulary]`, minus infinity where a label is not legal after `input_ids` `[rows, length]`."""
        device, length, rows = scores.device, input_ids.shape[1], len(scores)
        self.depths, self.kinds, self.closings = (
            table.to(device) for table in (self.depths, self.kinds, self.closings)
        )
        words, limits = (
            counts.to(device).repeat_interleave(rows // len(counts)) for counts in (self.words, self.limits)
        )  # [rows]
        kinds = self.kinds[input_ids]  # [rows, length]; the start token is none of the kinds
        depths = self.depths[kinds].cumsum(-1)  # [rows, length]
        depth, last = depths[:, -1], kinds[:, -1]
        untagged = words - kinds.eq(_TAG).sum(-1)
        # The phrase to close opened right after the last position of smaller depth.
        shallower = torch.where(depths < depth.unsqueeze(-1), torch.arange(length, device=device), -1).amax(-1)
        opened = (shallower + 1).clamp(max=length - 1)
        closing = self.closings[input_ids.gather(1, opened.unsqueeze(-1)).squeeze(-1)]  # [rows]

        legal = torch.zeros(rows, 1 + _END, dtype=torch.bool, device=device)
        legal[:, _TAG] = untagged > 0
        # It must leave room for EOS, all other tags, and the closing labels of this phrase and those around it.
        legal[:, _OPENING] = (untagged > 0) & (limits - length + 1 >= untagged + depth + 3)
        legal[:, _END] = (untagged <= 0) & (depth <= 0)
        may_close = legal[:, _END] | ((depth > 0) & last.ne(_OPENING))
        is_legal = legal[:, self.kinds].scatter(1, closing.unsqueeze(-1), may_close.unsqueeze(-1))  # [rows, vocabulary]
        return scores.masked_fill(~is_legal, -math.inf)

    def select(self, sentences: torch.Tensor) -> None:
        self.words, self.limits = (counts[sentences.to(counts.device)] for counts in (self.words, self.limits))

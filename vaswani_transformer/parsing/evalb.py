"""F1 of constituency parses as the program EVALB computes it (Sekine and Collins, 1997)."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, compress
from typing import Literal


# The rules are from COLLINS.prm, the standard for the Penn Treebank. Labels that do not count: a word with such a tag
# is deleted, a phrase loses only its bracket.
DELETED = frozenset({"TOP", "-NONE-", ",", ":", "``", "''", "."})

# Labels that count as another one.
EQUAL_LABELS = {"PRT": "ADVP"}

# A word with its tag, an opening bracket with its label, or a closing bracket. "(S )" is an empty word, as in EVALB.
_PIECE = re.compile(r"\s*(?:\(([^\s()]*)\s+([^\s()]*)\s*\)|\(([^\s()]*)|(\)))")


@dataclass(frozen=True)
class SentenceScore:
    """A line of EVALB's report, without crossing brackets.

    Attributes:
        length: Words of the gold tree.
        status: "error" if words differ or a tree is malformed, "skip" without a parse.
        matched: Brackets of the parse that are also in the gold tree.
        gold: Brackets of the gold tree.
        parsed: Brackets of the parse.
        words: Words of the gold tree, except deleted ones.
        correct_tags: Words with the right tag.
    """

    length: int
    status: Literal["valid", "error", "skip"]
    matched: int = 0
    gold: int = 0
    parsed: int = 0
    words: int = 0
    correct_tags: int = 0


@dataclass(frozen=True)
class ParsingScore:
    """EVALB's summary; percentages of the valid sentences.

    Attributes:
        errors: Sentences whose words differ, or with a malformed tree.
        skipped: Sentences without a parse.
        recall: Share of the gold brackets that are in the parses.
        precision: Share of the parses' brackets that are right.
        complete_match: Share of sentences with exactly the gold brackets.
        tagging_accuracy: Share of words with the right tag.
    """

    sentences: int
    errors: int
    skipped: int
    recall: float
    precision: float
    f1: float
    complete_match: float
    tagging_accuracy: float

    @classmethod
    def from_sentences(cls, sentences: Iterable[SentenceScore]) -> "ParsingScore":
        """Sum up the sentences: counts are added before they are divided."""
        scores = list(sentences)
        valid = [score for score in scores if score.status == "valid"]
        matched = sum(score.matched for score in valid)
        recall = percent(matched, sum(score.gold for score in valid))
        precision = percent(matched, sum(score.parsed for score in valid))
        return cls(
            sentences=len(scores),
            errors=sum(score.status == "error" for score in scores),
            skipped=sum(score.status == "skip" for score in scores),
            recall=recall,
            precision=precision,
            f1=2 * recall * precision / (recall + precision) if matched else 0.0,
            complete_match=percent(sum(s.matched == s.gold == s.parsed for s in valid), len(valid)),
            tagging_accuracy=percent(sum(s.correct_tags for s in valid), sum(s.words for s in valid)),
        )


def percent(part: int, whole: int) -> float:
    """`part` of `whole` in percent; 0 of nothing."""
    return 100.0 * part / whole if whole else 0.0


Phrase = tuple[str, int, int]  # label, first word, end


@dataclass
class _Brackets:
    """A tree as EVALB reads it: words, their tags, and phrases."""

    words: list[str]
    tags: list[str]
    phrases: list[Phrase]

    def select(self, kept: Sequence[bool]) -> "_Brackets":
        """The tree with the kept words only."""
        before = [0, *accumulate(kept)]  # kept words before each word, and in total
        phrases = [(label, before[first], before[end]) for label, first, end in self.phrases]
        return _Brackets([*compress(self.words, kept)], [*compress(self.tags, kept)], phrases)

    def counted(self) -> Counter[Phrase]:
        """Number of each phrase with words, without function tags and deleted labels."""
        phrases = ((re.split("[-=]", label)[0], first, end) for label, first, end in self.phrases if first < end)
        return Counter((_canonical(label), first, end) for label, first, end in phrases if label not in DELETED)


def score_parse(gold: str, parse: str, deletes_by_gold: bool = False) -> SentenceScore:
    """Compare a parse with the gold tree, both in brackets.

    Args:
        gold: The gold tree.
        parse: A parse of the same words; empty without one.
        deletes_by_gold: Delete words of the parse according to the gold tags. EVALB deletes by each tree's own tags, so
            a sentence with a wrong tag for a punctuation mark is an error, and does not count.
    """
    reference, candidate = _read_brackets(gold), _read_brackets(parse)
    if reference is None:
        return SentenceScore(0, "error")
    kept = [tag not in DELETED for tag in reference.tags]
    error = SentenceScore(sum(tag != "-NONE-" for tag in reference.tags), "error", words=sum(kept))
    if candidate is None:
        return error
    by_gold = deletes_by_gold and len(candidate.words) == len(kept)
    candidate_kept = kept if by_gold else [tag not in DELETED for tag in candidate.tags]
    if not any(candidate_kept):
        return replace(error, status="skip")
    reference, candidate = reference.select(kept), candidate.select(candidate_kept)
    if reference.words != candidate.words:
        return error
    expected, parsed = reference.counted(), candidate.counted()
    return replace(
        error,
        status="valid",
        matched=(expected & parsed).total(),
        gold=expected.total(),
        parsed=parsed.total(),
        correct_tags=sum(_canonical(a) == _canonical(b) for a, b in zip(reference.tags, candidate.tags, strict=True)),
    )


def _read_brackets(text: str) -> _Brackets | None:
    """Read one tree, or several on a line; None if brackets do not match, or text is misplaced."""
    tree, stack, start, text = _Brackets([], [], []), list[int](), 0, text.rstrip()
    while start < len(text):
        match = _PIECE.match(text, start)
        if match is None:
            return None
        tag, word, label, _ = match.groups()
        if word is not None:
            tree.words.append(word)
            tree.tags.append(tag)
        elif label is not None:
            stack.append(len(tree.phrases))
            tree.phrases.append((label, len(tree.words), -1))
        elif stack:
            opened = stack.pop()
            tree.phrases[opened] = (*tree.phrases[opened][:2], len(tree.words))
        else:
            return None
        start = match.end()
    return None if stack else tree


def _canonical(label: str) -> str:
    return EQUAL_LABELS.get(label, label)

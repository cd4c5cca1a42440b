"""F1 of constituency parses as the program EVALB computes it, and as an `evaluate` metric."""

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Literal

import datasets
import evaluate


_CITATION = "Sekine and Collins (1997): Evalb: a bracket scoring program. https://nlp.cs.nyu.edu/evalb/"

_DESCRIPTION = """\
Recall, precision and F1 of labelled brackets, tagging accuracy and crossing brackets of constituency parses, as the
program EVALB computes them with COLLINS.prm."""

_INPUTS = """\
Args:
    predictions: Parses in brackets, one for each sentence, empty where there is none.
    references: Gold trees in brackets.
    parameters: A parameter file of EVALB; by default the rules of COLLINS.prm.
    deletes_by_gold: Delete the words that the gold tags say, of parses, too: then a mistaken tag of a punctuation mark
        makes no sentence an error, which EVALB leaves out.

Returns:
    The fields of `ParsingScore`, of all sentences, and "up_to_40_words" the same of the shorter ones."""

# A word with its tag, an opening bracket with its label, or a closing bracket. "(S )" is an empty word, as in EVALB.
_PIECE = re.compile(r"\s*(?:\(([^\s()]*)\s+([^\s()]*)\s*\)|\(([^\s()]*)|(\)))")
_QUOTES = ("'", '"', "/")  # words that parsers take for a quotation mark, or for something else


@dataclass(frozen=True)
class EvalbRules:
    """EVALB's parameter file; the defaults equal COLLINS.prm, the standard for the Penn Treebank.

    Attributes:
        deleted: Labels that do not count: a word with such a tag is deleted, a phrase loses only its bracket.
        not_measured: Tags of words that do not count for the length of a sentence.
        quote_labels: Tags that a quotation mark may have, such as POS. If only one of two trees deletes such a mark,
            the mark is kept in both.
        equal_labels: Pairs of labels that are the same.
        equal_words: Pairs of words that are the same.
        is_labeled: Whether labels of brackets must agree.
        cut_off: Longest sentence of the second group of results.
    """

    deleted: frozenset[str] = frozenset({"TOP", "-NONE-", ",", ":", "``", "''", "."})
    not_measured: frozenset[str] = frozenset({"-NONE-"})
    quote_labels: frozenset[str] = frozenset()
    equal_labels: frozenset[frozenset[str]] = frozenset({frozenset({"ADVP", "PRT"})})
    equal_words: frozenset[frozenset[str]] = frozenset()
    is_labeled: bool = True
    cut_off: int = 40

    @classmethod
    def load(cls, path: str | Path) -> "EvalbRules":
        """Read a parameter file of EVALB.

        Raises:
            ValueError: A line has an unknown parameter, or another number of values than it needs.
        """
        values: defaultdict[str, list[list[str]]] = defaultdict(list)
        for number, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines(), start=1):
            name, *given = line.split() or ["#"]
            if name.startswith("#"):
                continue
            if len(given) != _PARAMETERS.get(name) or (name == "CUTOFF_LEN" and not given[0].isdecimal()):
                raise ValueError(f"{path}, line {number}: {line.strip()!r} is no parameter of EVALB with its values")
            values[name].append(given)
        return cls(
            deleted=frozenset(label for [label] in values["DELETE_LABEL"]),
            not_measured=frozenset(label for [label] in values["DELETE_LABEL_FOR_LENGTH"]),
            quote_labels=frozenset(label for [label] in values["QUOTE_LABEL"]),
            equal_labels=frozenset(map(frozenset, values["EQ_LABEL"])),
            equal_words=frozenset(map(frozenset, values["EQ_WORD"])),
            is_labeled=values["LABELED"][-1:] != [["0"]],  # the last line counts
            cut_off=int(values["CUTOFF_LEN"][-1][0]) if values["CUTOFF_LEN"] else cls.cut_off,
        )


# Parameters and the number of their values. Three are ignored: DEBUG; MAX_ERROR, which stops the program early; and
# QUOTE_TERM, which the program does not know, either.
_IGNORED = ("DEBUG", "MAX_ERROR", "QUOTE_TERM")
_SINGLE = ("CUTOFF_LEN", "LABELED", "DELETE_LABEL", "DELETE_LABEL_FOR_LENGTH", "QUOTE_LABEL")
_PARAMETERS = {**dict.fromkeys((*_IGNORED, *_SINGLE), 1), "EQ_LABEL": 2, "EQ_WORD": 2}


@dataclass(frozen=True)
class SentenceScore:
    """A line of EVALB's report.

    Attributes:
        length: Words of the gold tree.
        status: "valid"; "error", if words differ or a tree is malformed; or "skip", if there is no parse.
        matched: Brackets of the parse that the gold tree has, too.
        gold: Brackets of the gold tree.
        parsed: Brackets of the parse.
        crossing: Brackets of the parse that overlap one of the gold tree without one holding the other.
        words: Words of the gold tree, the deleted ones aside.
        correct_tags: Words with the right tag.
    """

    length: int
    status: Literal["valid", "error", "skip"]
    matched: int = 0
    gold: int = 0
    parsed: int = 0
    crossing: int = 0
    words: int = 0
    correct_tags: int = 0


@dataclass(frozen=True)
class ParsingScore:
    """EVALB's summary; percentages of the valid sentences.

    Attributes:
        sentences: All sentences.
        errors: Sentences whose words differ, or with a malformed tree.
        skipped: Sentences without a parse.
        recall: Share of the gold brackets that were found.
        precision: Share of the parse's brackets that are right.
        f1: Harmonic mean of both.
        complete_match: Share of sentences with all brackets right and no other.
        average_crossing: Crossing brackets a sentence.
        no_crossing: Share of sentences without crossing brackets.
        two_or_less_crossing: Share of sentences with at most two.
        tagging_accuracy: Share of words with the right tag.
    """

    sentences: int
    errors: int
    skipped: int
    recall: float
    precision: float
    f1: float
    complete_match: float
    average_crossing: float
    no_crossing: float
    two_or_less_crossing: float
    tagging_accuracy: float

    @classmethod
    def of_sentences(cls, scores: Sequence[SentenceScore]) -> "ParsingScore":
        """Sum up: counts are added over sentences before they are divided."""
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
            average_crossing=sum(score.crossing for score in valid) / max(1, len(valid)),
            no_crossing=percent(sum(score.crossing == 0 for score in valid), len(valid)),
            two_or_less_crossing=percent(sum(score.crossing <= 2 for score in valid), len(valid)),
            tagging_accuracy=percent(sum(s.correct_tags for s in valid), sum(s.words for s in valid)),
        )


def percent(part: int, whole: int) -> float:
    """`part` of `whole` in percent; 0 of nothing."""
    return 100.0 * part / whole if whole else 0.0


@dataclass
class _Brackets:
    """A tree as EVALB reads it: words, their tags, and phrases as label, first word and end."""

    words: list[str]
    tags: list[str]
    phrases: list[tuple[str, int, int]]

    def kept(self, counts: Sequence[int]) -> "_Brackets":
        """The tree with each word as many times as `counts` says, mostly once or not at all."""
        before = [0, *accumulate(counts)]  # kept words before each word, and in all
        places = [place for place, count in enumerate(counts) for _ in range(count)]
        phrases = [(label, before[first], before[end]) for label, first, end in self.phrases]
        return _Brackets([self.words[place] for place in places], [self.tags[place] for place in places], phrases)

    def counted(self, rules: EvalbRules) -> list[tuple[str, int, int]]:
        """Phrases with words, without function tags and deleted labels."""
        deleted = rules.deleted.union(*(pair for pair in rules.equal_labels if pair & rules.deleted))
        phrases = [(_plain(label), first, end) for label, first, end in self.phrases if first < end]
        return [phrase for phrase in phrases if phrase[0] not in deleted]


def _plain(label: str) -> str:
    return re.split("[-=]", label)[0]


def _is_same(one: str, other: str, equal: frozenset[frozenset[str]]) -> bool:
    """Whether two names are the same or a pair of the parameter file; pairs do not add up, as in EVALB."""
    return one == other or frozenset((one, other)) in equal


def score_parse(
    gold: str, parse: str, rules: EvalbRules = EvalbRules(), deletes_by_gold: bool = False
) -> SentenceScore:
    """Compare a parse with the gold tree, both in brackets.

    Args:
        gold: The gold tree.
        parse: A parse of the same words; nothing, if there is none.
        rules: What does not count, and what is the same.
        deletes_by_gold: Delete the words that the gold tags say, of the parse, too. EVALB deletes by each tree's own
            tags, so that a sentence with a mistaken tag of a punctuation mark is an error, and counts for nothing.
    """
    try:
        theirs = _read_brackets(gold)
    except ValueError:
        return SentenceScore(0, "error")
    length = sum(tag not in rules.not_measured for tag in theirs.tags)
    kept = [int(tag not in rules.deleted) for tag in theirs.tags]
    error = SentenceScore(length, "error", words=sum(kept))
    try:
        ours = _read_brackets(parse)
    except ValueError:
        return error
    by_gold = deletes_by_gold and len(ours.words) == len(kept)
    kept_of_ours = kept if by_gold else [int(tag not in rules.deleted) for tag in ours.tags]
    if not any(kept_of_ours):
        return replace(error, status="skip")
    if sum(kept) != sum(kept_of_ours):
        _keep_quotes(theirs, kept, ours, kept_of_ours, rules)
    theirs, ours = theirs.kept(kept), ours.kept(kept_of_ours)
    if len(theirs.words) != len(ours.words):
        return error
    words, tags = (zip(*pair, strict=True) for pair in ((theirs.words, ours.words), (theirs.tags, ours.tags)))
    if not all(_is_same(*pair, rules.equal_words) for pair in words):
        return error
    expected, found = theirs.counted(rules), ours.counted(rules)
    return SentenceScore(
        length=length,
        status="valid",
        matched=_matched(expected, found, rules),
        gold=len(expected),
        parsed=len(found),
        crossing=sum(any(_cross(mine[1:], other[1:]) for other in expected) for mine in found),
        words=len(theirs.words),
        correct_tags=sum(_is_same(*pair, rules.equal_labels) for pair in tags),
    )


def _keep_quotes(
    gold: _Brackets, kept: list[int], parse: _Brackets, kept_of_parse: list[int], rules: EvalbRules
) -> None:
    """Keep each quotation mark that one tree deletes, and the other has under another tag after as many kept words.

    EVALB may find a mark twice, after a neighbour that it kept, and then counts it twice.
    """
    theirs, ours = _quotes(gold, kept, rules), _quotes(parse, kept_of_parse, rules)
    for mine, (before, place) in enumerate(ours):
        for other, (before_other, place_of_other) in enumerate(theirs):
            tag, tag_of_other = parse.tags[place], gold.tags[place_of_other]
            if before != before_other or (tag in rules.deleted) == (tag_of_other in rules.deleted):
                continue
            if tag in rules.deleted:
                kept_of_parse[place] += 1
            else:
                kept[place_of_other] += 1
            for quote in ours[mine:] if tag in rules.deleted else theirs[other:]:
                quote[0] += 1


def _quotes(tree: _Brackets, kept: Sequence[int], rules: EvalbRules) -> list[list[int]]:
    """Number of kept words before each possible quotation mark, and its place among all words."""
    tagged = enumerate(zip(tree.words, tree.tags, strict=True))
    return [
        [sum(kept[:place]), place] for place, (word, tag) in tagged if word in _QUOTES and tag in rules.quote_labels
    ]


def _read_brackets(text: str) -> _Brackets:
    """Read one tree, or several on a line.

    Raises:
        ValueError: Brackets do not match, or text stands where it cannot.
    """
    tree, stack, place, text = _Brackets([], [], []), list[int](), 0, text.rstrip()
    while place < len(text):
        match = _PIECE.match(text, place)
        if match is None:
            raise ValueError(f"no bracket at {text[place : place + 20]!r}")
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
            raise ValueError("a bracket closes that was not opened")
        place = match.end()
    if stack:
        raise ValueError("a bracket is not closed")
    return tree


def _matched(expected: list[tuple[str, int, int]], found: list[tuple[str, int, int]], rules: EvalbRules) -> int:
    """Number of gold phrases that take, in their order, the first phrase left of the parse that is the same."""
    left: dict[tuple[int, int], list[str]] = {}  # labels of the parse's phrases, by span
    for label, first, end in found:
        left.setdefault((first, end), []).append(label)
    count = 0
    for label, first, end in expected:
        labels = left.get((first, end), [])
        same = (other for other in labels if not rules.is_labeled or _is_same(label, other, rules.equal_labels))
        if (match := next(same, None)) is not None:
            labels.remove(match)
            count += 1
    return count


def _cross(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two spans overlap without one holding the other."""
    return one[0] < other[0] < one[1] < other[1] or other[0] < one[0] < other[1] < one[1]


def score_parses(
    gold: Sequence[str], parses: Sequence[str], rules: EvalbRules = EvalbRules(), deletes_by_gold: bool = False
) -> list[SentenceScore]:
    """`score_parse` of each sentence."""
    return [score_parse(tree, parse, rules, deletes_by_gold) for tree, parse in zip(gold, parses, strict=True)]


def parsing_scores(
    scores: Sequence[SentenceScore], cut_off: int = EvalbRules.cut_off
) -> tuple[ParsingScore, ParsingScore]:
    """EVALB's two summaries: of all sentences, and of those with at most `cut_off` words."""
    short = [score for score in scores if score.length <= cut_off]
    return ParsingScore.of_sentences(scores), ParsingScore.of_sentences(short)


class Evalb(evaluate.Metric):
    """Labelled F1 of constituency parses as EVALB computes it."""

    def _info(self) -> evaluate.MetricInfo:
        text = datasets.Value("string")
        return evaluate.MetricInfo(
            description=_DESCRIPTION,
            citation=_CITATION,
            inputs_description=_INPUTS,
            features=datasets.Features({"predictions": text, "references": text}),
            reference_urls=["https://aclanthology.org/H91-1060"],
        )

    def _compute(self, predictions, references, parameters=None, deletes_by_gold=False):
        rules = EvalbRules() if parameters is None else EvalbRules.load(parameters)
        scores = score_parses(references, predictions, rules, deletes_by_gold)
        whole, short = parsing_scores(scores, rules.cut_off)
        return {**asdict(whole), f"up_to_{rules.cut_off}_words": asdict(short)}

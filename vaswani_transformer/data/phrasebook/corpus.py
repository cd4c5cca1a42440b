"""The embedded corpus: English-German sentence pairs that a small grammar writes, so that training needs no download.

The German is a function of the English. There is no "you" and no "it". The simple past becomes the perfect; the simple
past of "be" and the modals becomes the preterite, and "read" has no simple past. The middle of a German clause has the
order: recipient, definite object, time, "nicht", place, governed phrase, indefinite object, predicate.

Validation and test are held out by combination. A stable hash reserves some pairs of an adjective or a verb and a noun
that it combines with. No training sentence has both words of a reserved pair; every test sentence relates such a pair.
"""

import random
import zlib
from collections.abc import Sequence
from functools import cache
from typing import TypeVar

from .grammar import Clause, compound, noun_phrase, question, statement, tied
from .lexicon import (
    ADJECTIVES,
    FREQUENCIES,
    NOUNS,
    NUMBERS,
    PAST_MODES,
    POSSESSIVES,
    PRONOUNS,
    TIES,
    TIMES,
    VERBS,
    Pair,
    Phrase,
    Verb,
    nouns_named,
    rows_of,
)


Item = TypeVar("Item")

SPLIT_SIZES = {"train": 20_000, "validation": 500, "test": 500}
_HELD_OUT_ONE_IN = 20  # of the combinations, for validation and for test each
_MAX_WORDS = 16  # of an English sentence
_SEED = 2017

# Determiners by the role of the phrase, as often as they are drawn; "/" is a number, "." no article.
_ROLE_TABLE = """
subject | the the the the the the my our his her their my a / / this
definite | the the the the the the my our his her their this
object | the the the the a a a a a my our his her their / / . . this
gift | a a a / .
negated | no no no the the my our his her their this
place | the the the the the the the a a our this
"""
# Conjunction, modes of the first and of the second clause; "-" before a conjunction whose clause may not come first.
_COMPOUND_TABLE = """
because | present present present present future can must should want | present present present must want
because | past past past past past wanted had | past past past wanted had
although | present present present present future can must should want | present present present must want
although | past past past past past wanted had | past past past wanted had
if | present present present future future can must should want | present present present want
when | present | present
when | past past past past wanted had | past
-and | present present present present future can must should want | present present present future can must
-and | past past past past past wanted had | past past past wanted had
-but | present present present present future can must should want | present present present future can must
-but | past past past past past wanted had | past past past wanted had
"""
_COMPOUNDS = [(words[0], words[1].split(), words[2].split()) for words in rows_of(_COMPOUND_TABLE)]
_ANY_MODE = _COMPOUNDS[0][1] + _COMPOUNDS[1][1]
_EXCLUSIVE = ("red green black white", "old young new", "small big", "cold hot", "fresh old")
_REPORTING = ("sagen", "glauben", "wissen")
_ACTIONS = [verb for verb in VERBS if verb not in (*_REPORTING, "sein")]
_ADJECTIVES_OF = {noun: [word for word in ADJECTIVES if noun in ADJECTIVES[word][2]] for noun in NOUNS}
_DESCRIBABLE = [noun for noun in NOUNS if len(_ADJECTIVES_OF[noun]) > 2]
_PEOPLE = nouns_named("people")


def _allows(noun: str, determiner: str) -> bool:
    group, plural = NOUNS[noun].group, NOUNS[noun].plural
    if group == "kin":
        return determiner == "the" or determiner in POSSESSIVES
    if group == "adult":  # "mein Mann" is a husband
        return determiner not in POSSESSIVES
    if group == "town":
        return determiner not in ("my", "his", "her", "their")
    return determiner not in ("a", "/") if group == "mass" else bool(plural) or determiner not in ("/", ".")


_DETERMINERS = {
    (noun, role): [determiner for determiner in determiners.split() if _allows(noun, determiner)]
    for role, determiners in rows_of(_ROLE_TABLE)
    for noun in NOUNS
}


def _clash(adjective: str, other: str) -> bool:
    """Whether two adjectives exclude each other."""
    return adjective == other or any({adjective, other} <= set(exclusive.split()) for exclusive in _EXCLUSIVE)


def _pronoun_for(phrase: Phrase) -> Phrase | None:
    """The pronoun for a person just named, if there is a clear one."""
    noun, is_plural = phrase.noun, phrase.person == 2
    if noun in PRONOUNS:
        return phrase
    if noun not in _PEOPLE or (noun == "child" and not is_plural):
        return None
    return PRONOUNS["they" if is_plural else "she" if NOUNS[noun].gender == "f" or noun == "girl" else "he"]


class _Author:
    """Draws sentences. It takes random.random() alone, whose sequence Python keeps from version to version."""

    def __init__(self, seed: int):
        self._random = random.Random(seed).random
        # Of the latest sentence: its nouns, its verbs and adjectives, and the pairs of these that belong together.
        self.nouns: set[str] = set()
        self.words: set[str] = set()
        self.related: set[Pair] = set()

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def choose(self, options: Sequence[Item]) -> Item:
        return options[int(self._random() * len(options))]

    def sentence(self) -> Pair:
        """A sentence of any kind."""
        for noted in (self.nouns, self.words, self.related):
            noted.clear()
        draw = self.choose((self.statement,) * 9 + (self.question,) * 4 + (self.compound,) * 5 + (self.report,) * 2)
        return draw()

    def statement(self) -> Pair:
        return statement(self.clause(_ANY_MODE, timed=0.6, fronted=0.4))

    def question(self) -> Pair:
        word = self.choose(("", "", "when", "why", "who"))
        subject = PRONOUNS["who"] if word == "who" else None
        likely = {"timed": 0.0, "described": 0.0} if word == "when" else {"timed": 0.4}
        return question(self.clause(_ANY_MODE, subject, negated=0.0, **likely), word)

    def compound(self) -> Pair:
        conjunction, modes, second_modes = self.choose(_COMPOUNDS)
        is_reversed = conjunction[0] != "-" and self.chance(0.35)
        timed = 0.0 if conjunction == "when" else 0.15  # "als" tells of one time: it suits neither "often" nor another
        first = self.clause(modes, timed=timed, fronted=0.0 if is_reversed else 0.4, described=0.0)
        pronoun = _pronoun_for(first.subject) if self.chance(0.6) else None
        second = self.clause(second_modes, pronoun, timed=timed, described=0.3 if pronoun else 0.0)
        return compound(first, conjunction.strip("-"), second, is_reversed)

    def report(self) -> Pair:
        subject, verb = self.subject(_PEOPLE), self.choose(_REPORTING)
        pronoun = _pronoun_for(subject) if self.chance(0.3) else None
        negated = subject.definite and verb != "wissen" and self.chance(0.2)
        return compound(Clause(subject, verb, negated=negated), "that", self.clause(_ANY_MODE, pronoun, timed=0.2))

    def clause(
        self,
        modes: Sequence[str],
        subject: Phrase | None = None,
        timed: float = 0.0,
        fronted: float = 0.0,
        negated: float = 0.15,
        described: float = 0.18,
    ) -> Clause:
        """A clause in one of the modes, of the subject given or any; the numbers are probabilities."""
        name, mode = self.choose(_ACTIONS), self.choose(modes)
        verb, is_negated = VERBS[name], mode not in ("must", "had") and self.chance(negated)
        if self.chance(described):
            return self.description(mode, subject, is_negated)
        if (subject and name == "fressen") or (mode == "past" and name == "lesen"):  # "they read": now, or then?
            return self.clause(modes, subject, timed, fronted, negated, described)
        subject = subject or self.subject(verb.subjects, "definite" if is_negated else "subject")
        self.words.add(verb.english[0])
        parts = self.complements(verb, subject, is_negated)
        if verb.places and (name in ("sitzen", "ankommen") or self.chance(0.2 if parts else 0.7)):
            tie = self.choose([tie for tie, nouns in verb.places.items() for _ in nouns])
            parts["place"] = tied(tie, self.noun_phrase(verb.places[tie], "definite" if is_negated else "place"))
        if self.chance(timed):
            is_frequency = mode in ("present", "past") and not is_negated and self.chance(0.3)
            times = [time for time in TIMES if mode in TIMES[time][1] and not (is_negated and time == "every day")]
            parts["time"] = self.choose(tuple(FREQUENCIES) if is_frequency else times)
        front = "time" if parts.get("time") in TIMES else "place" if "place" in parts and subject.noun in NOUNS else ""
        return Clause(subject, name, mode, negated=is_negated, fronted=front if self.chance(fronted) else "", **parts)

    def complements(self, verb: Verb, subject: Phrase, negated: bool) -> dict:
        """What the verb asks for, as arguments of Clause."""
        if not verb.complements or ("with" in verb.complements and self.chance(0.4)):
            return {}
        tie = self.choose(tuple(verb.complements))
        nouns = verb.complements[tie]
        if tie in TIES:
            role = "place" if tie == "into" and not negated else "definite"
            return {"governed": tied(tie, self.object(nouns, role, subject, verb))}
        recipient = self.object(_PEOPLE, "definite", subject) if tie == "give" else None
        role = "negated" if negated else "gift" if recipient else "object"
        return {"recipient": recipient, "object": self.object(nouns, role, subject, verb)}

    def description(self, mode: str, subject: Phrase | None, negated: bool) -> Clause:
        mode = "past" if mode in PAST_MODES else "future" if mode == "future" else "present"
        subject = subject or self.subject(_PEOPLE if self.chance(0.3) else _DESCRIBABLE, "definite")
        noun = "mother" if subject.noun in PRONOUNS else subject.noun  # pronouns get no age or size
        said = [word for word, related in self.related if related == subject.noun]
        options = [word for word in _ADJECTIVES_OF[noun] if not any(_clash(word, other) for other in said)]
        predicate = self.choose(options)
        self.words.add(predicate)
        self.related.add((predicate, subject.noun))
        return Clause(subject, "sein", mode, predicate=predicate, negated=negated)

    def subject(self, nouns: Sequence[str], role: str = "subject") -> Phrase:
        if "man" in nouns and self.chance(0.35):
            return PRONOUNS[self.choose(("I", "he", "she", "we", "they"))]
        return self.noun_phrase(nouns, role)

    def object(self, nouns: Sequence[str], role: str, subject: Phrase, verb: Verb | None = None) -> Phrase:
        if "man" in nouns and self.chance(0.25):  # "I see me" would have to be reflexive
            others = ("he", "she", "they") if subject.noun in ("I", "we") else ("he", "she", "they", "I", "we")
            return PRONOUNS[self.choose(others)]
        phrase = self.noun_phrase(nouns, role)
        if verb:
            self.related.add((verb.english[0], phrase.noun))
        return phrase

    def noun_phrase(self, nouns: Sequence[str], role: str) -> Phrase:
        """A phrase of one of the nouns, where possible one that the sentence does not have yet."""
        noun = self.choose([noun for noun in nouns if noun not in self.nouns] or nouns)
        determiner = self.choose(_DETERMINERS[noun, role])
        likely = 0.1 if NOUNS[noun].group in ("home", "town") else 0.25
        is_counted = NOUNS[noun].plural != "" and determiner != "a"
        plural = is_counted and (determiner in ("/", ".") or self.chance(likely))
        is_numbered = determiner == "/" or (plural and determiner not in (".", "no") and self.chance(0.2))
        number = self.choose(tuple(NUMBERS)) if is_numbered else ""
        adjective = self.choose(_ADJECTIVES_OF[noun]) if _ADJECTIVES_OF[noun] and self.chance(0.4) else ""
        self.nouns.add(noun)
        self.words.add(adjective)
        self.related.add((adjective, noun))
        return noun_phrase(noun, determiner.strip("/."), plural, number, adjective)


def _held_out() -> dict[Pair, str]:
    """The reserved combinations (adjective or verb, noun), each with the one split that may join them."""
    goes_with = [(word, nouns) for word, (_, _, nouns) in ADJECTIVES.items()]
    goes_with += [(verb.english[0], nouns) for verb in VERBS.values() for nouns in verb.complements.values()]
    pairs = [(word, noun) for word, nouns in goes_with for noun in nouns]
    remainders = {pair: zlib.crc32(" ".join(pair).encode()) % _HELD_OUT_ONE_IN for pair in pairs}
    return {pair: ("validation", "test")[remainder] for pair, remainder in remainders.items() if remainder < 2}


HELD_OUT = _held_out()


def _split_of(author: _Author) -> str | None:
    """The split that the author's latest sentence may belong to."""
    met = ((word, noun) for word in author.words for noun in author.nouns)
    splits = {HELD_OUT[pair] for pair in met if pair in HELD_OUT}
    if not splits:
        return "train"
    return splits.pop() if len(splits) == 1 and not author.related.isdisjoint(HELD_OUT) else None


@cache
def _corpus() -> dict[str, tuple[Pair, ...]]:
    author = _Author(_SEED)
    corpus: dict[str, dict[str, str]] = {split: {} for split in SPLIT_SIZES}
    while any(len(pairs) < SPLIT_SIZES[split] for split, pairs in corpus.items()):
        english, german = author.sentence()
        split = _split_of(author)
        if split and len(corpus[split]) < SPLIT_SIZES[split] and 3 <= len(english.split()) <= _MAX_WORDS:
            corpus[split].setdefault(english, german)
    return {split: tuple(pairs.items()) for split, pairs in corpus.items()}


def phrasebook(split: str) -> list[Pair]:
    """Distinct (English, German) pairs, the same on each call, machine and version of Python.

    Args:
        split: "train" (20,000 pairs), "validation" (500) or "test" (500).

    Raises:
        ValueError: There is no such split.
    """
    if split not in SPLIT_SIZES:
        raise ValueError(f"no split {split!r} in the phrasebook; choose from {', '.join(SPLIT_SIZES)}")
    return list(_corpus()[split])

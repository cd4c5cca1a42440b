"""The grammar of the embedded corpus: noun phrases and clauses, written in English and in German."""

from functools import cache
from typing import NamedTuple

from .lexicon import (
    ADJECTIVES,
    CASES,
    CONJUNCTIONS,
    FREQUENCIES,
    MODES,
    NOUNS,
    NUMBERS,
    PAST_MODES,
    POSSESSIVES,
    QUESTIONS,
    TIES,
    TIMES,
    VERBS,
    Pair,
    Phrase,
    dictionary,
)


def _paradigm(forms: str) -> dict[Pair, str]:
    """Forms by (case, gender), listed as the rows nominative, accusative, dative; p is the plural."""
    slots = ((case, gender) for case in CASES for gender in "mfnp")
    return dict(zip(slots, forms.replace("-", "").split(" "), strict=True))


_DEFINITE = _paradigm("der die das die den die das die dem der dem den")
_STRONG = _paradigm("er e es e en e es e em er em en")  # of "dieser", and of an adjective that no article precedes
_EIN = _paradigm("- e - e en e - e em er em en")
_WEAK = _paradigm("e e e en en e e en en en en en")
_MIXED = _paradigm("er e es en en e es en en en en en")
_EIN_WORDS = {"a": "ein", "no": "kein", **POSSESSIVES}
_CONTRACTIONS = dictionary("in dem:im/in das:ins/zu dem:zum/zu der:zur")


def _join(*words: str) -> str:
    return " ".join(word for word in words if word)


@cache
def noun_phrase(noun: str, determiner: str = "", plural: bool = False, number: str = "", adjective: str = "") -> Phrase:
    """A noun after the, this, a, a possessive, nothing, or the "no" that German has for "a" after a negation."""
    text = _join(number, adjective, NOUNS[noun].plural if plural else noun)
    article = determiner
    if determiner == "no":
        article = "" if plural or NOUNS[noun].group == "mass" else "a"
    if article == "a" and text[0] in "aeiou":
        article = "an"
    elif article == "this" and plural:
        article = "these"
    german = {case: _german_noun_phrase(case, noun, determiner, plural, number, adjective) for case in CASES}
    return Phrase(noun, (_join(article, text),) * 2, german, 2 if plural else 1, determiner)


def _german_noun_phrase(case: str, noun: str, determiner: str, plural: bool, number: str, adjective: str) -> str:
    slot = case, "p" if plural else NOUNS[noun].gender
    if determiner == "the":
        article, endings = _DEFINITE[slot], _WEAK
    elif determiner == "this":
        article, endings = "dies" + _STRONG[slot], _WEAK
    elif determiner:
        article, endings = _EIN_WORDS[determiner] + _EIN[slot], _MIXED
    else:
        article, endings = "", _STRONG
    singular, oblique, form = NOUNS[noun].german
    if not plural:
        form = singular if case == "nom" else oblique
    elif case == "dat" and form[-1] not in "ns":
        form += "n"
    return _join(article, NUMBERS.get(number, ""), adjective and ADJECTIVES[adjective][1] + endings[slot], form)


def tied(tie: str, phrase: Phrase) -> Pair:
    """A phrase with the preposition that ties it to the verb: "in the garden", "im Garten"."""
    preposition, case = TIES[tie]
    german = f"{preposition} {phrase.german[case]}"
    for full, contracted in _CONTRACTIONS.items():
        if phrase.determiner == "the" and german.startswith(full + " "):
            german = contracted + german.removeprefix(full)
    return f"{tie} {phrase.english[1]}", german


def _english_verb(verb: str, mode: str, person: int, needs_auxiliary: bool) -> Pair:
    """The finite word and the rest: ("reads", ""), ("does", "read"), ("wants", "to read"), ("will", "read")."""
    forms, auxiliary = VERBS[verb].english, MODES[mode][0] if mode in MODES else []
    if len(auxiliary) == 1:
        return auxiliary[0], forms[0]
    is_past = mode in PAST_MODES
    if verb == "sein":
        return (("was", "was", "were") if is_past else ("am", "is", "are"))[person], ""
    base, third, past = auxiliary or forms
    rest = f"to {forms[0]}" if auxiliary else ""
    if needs_auxiliary:
        return "did" if is_past else "does" if person == 1 else "do", _join(base, rest)
    return past if is_past else third if person == 1 else base, rest


def _german_verb(name: str, mode: str, person: int) -> tuple[str, str, str]:
    """The finite word, the end of a main clause, the end of a subordinate clause: ("ruft", "an", "anruft")."""
    verb = VERBS[name]
    if mode == "present":
        return verb.present[person], verb.prefix, verb.prefix + verb.present[person]
    if mode in MODES:
        finite, end = MODES[mode][1][person], name
    elif name == "sein":
        finite, end = ("war", "war", "waren")[person], ""
    else:
        finite, end = verb.perfect[person], verb.participle
    return finite, end, _join(end, finite)


class Clause(NamedTuple):
    """What one clause says, and how it sounds in each place of a sentence."""

    subject: Phrase
    verb: str  # German infinitive
    mode: str = "present"  # or past, or a key of MODES
    recipient: Phrase | None = None
    object: Phrase | None = None
    governed: Pair = ("", "")  # "for the teacher", "auf den Lehrer"
    predicate: str = ""  # adjective after "be"
    place: Pair = ("", "")
    time: str = ""  # a key of TIMES or FREQUENCIES
    negated: bool = False
    fronted: str = ""  # "time" or "place" where that opens a statement

    def english(self, question: bool = False) -> str:
        """Without punctuation, as a statement or with an auxiliary before the subject."""
        subject, verb = self.subject.english[0], VERBS[self.verb]
        finite, rest = _english_verb(self.verb, self.mode, self.subject.person, question or self.negated)
        frequency, time = (self.time, "") if self.time in FREQUENCIES else ("", self.time)
        return _join(
            {"time": time, "place": self.place[0]}.get(self.fronted, ""),
            *((finite, subject, frequency) if question else (subject, frequency, finite)),
            "not" if self.negated else "",
            rest,
            verb.adjacent,
            self.recipient.english[1] if self.recipient else "",
            self.object.english[1] if self.object else "",
            verb.particle,
            self.governed[0],
            self.predicate,
            self.place[0] if self.fronted != "place" else "",
            time if self.fronted != "time" else "",
        ).replace("can not", "cannot")

    def german(self, order: str = "main") -> str:
        """Without punctuation; order: main (the verb second), question (first) or subordinate (last)."""
        time = TIMES[self.time][0] if self.time in TIMES else FREQUENCIES.get(self.time, "")
        noun = self.object.german["dat" if "dat" in VERBS[self.verb].complements else "acc"] if self.object else ""
        is_definite = self.object is not None and self.object.definite
        middle = _join(
            self.recipient.german["dat"] if self.recipient else "",
            noun if is_definite else "",
            time if self.fronted != "time" else "",
            "nicht" if self.negated and (self.object is None or self.object.determiner != "no") else "",
            self.place[1] if self.fronted != "place" else "",
            self.governed[1],
            noun if not is_definite else "",
            ADJECTIVES[self.predicate][0] if self.predicate else "",
        )
        subject = self.subject.german["nom"]
        finite, end, last = _german_verb(self.verb, self.mode, self.subject.person)
        if order == "subordinate":
            return _join(subject, middle, last)
        front = {"time": time, "place": self.place[1]}.get(self.fronted, "" if order == "question" else subject)
        return _join(front, finite, subject if front != subject else "", middle, end)


def _punctuated(english: str, german: str, mark: str) -> Pair:
    return english[0].upper() + english[1:] + mark, german[0].upper() + german[1:] + mark


def statement(clause: Clause) -> Pair:
    """A sentence of one main clause."""
    return _punctuated(clause.english(), clause.german(), ".")


def question(clause: Clause, word: str = "") -> Pair:
    """A question for yes or no, after "when" or "why", or of a clause whose subject is "who"."""
    if word == "who":
        return _punctuated(clause.english(), clause.german(), "?")
    english, german = clause.english(question=True), clause.german("question")
    return _punctuated(_join(word, english), _join(QUESTIONS[word], german), "?")


def compound(first: Clause, conjunction: str, second: Clause, is_reversed: bool = False) -> Pair:
    """Two clauses. Reversed: the subordinate clause first, then the main clause, which begins with its verb."""
    german = CONJUNCTIONS[conjunction]
    if conjunction == "when" and second.mode in PAST_MODES:
        german = "als"  # once, in the past; "wenn" is for what recurs
    if conjunction in ("and", "but"):
        comma = "," if conjunction == "but" else ""
        english = f"{first.english()}{comma} {conjunction} {second.english()}"
        return _punctuated(english, f"{first.german()}{comma} {german} {second.german()}", ".")
    english, german = f"{conjunction} {second.english()}", f"{german} {second.german('subordinate')}"
    if is_reversed:
        return _punctuated(f"{english}, {first.english()}", f"{german}, {first.german('question')}", ".")
    return _punctuated(f"{first.english()} {english}", f"{first.german()}, {german}", ".")

"""The embedded corpus: English-German sentence pairs that a small grammar writes, so that training needs no download.

The German is a function of the English: there is no "you" and no "it"; the simple past becomes the perfect (of "be" and
the modals, the preterite); "read" has a past in the third person only. The middle of a German clause runs recipient,
definite object, time, "nicht", place, governed phrase, indefinite object, predicate.

Validation and test are held out by combination: a stable hash sets apart some pairs of an adjective or a verb and a noun
that it goes with. The two never meet in a training sentence, related or not; every test sentence relates such a pair.
"""

import random
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

Pair = tuple[str, str]  # (English, German)
Item = TypeVar("Item")

SPLIT_SIZES = {"train": 20_000, "validation": 500, "test": 500}
_MAX_WORDS = 16  # of an English sentence
_HELD_OUT_ONE_IN = 20  # of the combinations, for validation and for test each
_SEED = 2017

# Group: English singular, plural, German singular, plural, gender. "*" marks the n-declension, "-" a missing plural.
_NOUN_TABLE = """
adult: man men Mann Männer m; woman women Frau Frauen f
person: child children Kind Kinder n; boy boys Junge Jungen m*; girl girls Mädchen Mädchen n
person: student students Student Studenten m*; teacher teachers Lehrer Lehrer m; doctor doctors Arzt Ärzte m
person: friend friends Freund Freunde m; neighbor neighbors Nachbar Nachbarn m*
kin: brother brothers Bruder Brüder m; sister sisters Schwester Schwestern f; mother - Mutter - f; father - Vater - m
animal: dog dogs Hund Hunde m; cat cats Katze Katzen f; horse horses Pferd Pferde n; bird birds Vogel Vögel m
animal: cow cows Kuh Kühe f; pig pigs Schwein Schweine n
text: book books Buch Bücher n; letter letters Brief Briefe m; newspaper newspapers Zeitung Zeitungen f
text: poem poems Gedicht Gedichte n
food: apple apples Apfel Äpfel m; egg eggs Ei Eier n; cake cakes Kuchen Kuchen m; potato potatoes Kartoffel Kartoffeln f
dish: soup - Suppe - f
mass: milk - Milch - f; water - Wasser - n; tea - Tee - m; coffee - Kaffee - m; bread - Brot - n
clothing: hat hats Hut Hüte m; coat coats Mantel Mäntel m; dress dresses Kleid Kleider n; jacket jackets Jacke Jacken f
clothing: shoe shoes Schuh Schuhe m
furniture: table tables Tisch Tische m; chair chairs Stuhl Stühle m; lamp lamps Lampe Lampen f
portable: picture pictures Bild Bilder n; bag bags Tasche Taschen f; box boxes Kiste Kisten f
portable: key keys Schlüssel Schlüssel m
vehicle: car cars Auto Autos n; bicycle bicycles Fahrrad Fahrräder n
building: house houses Haus Häuser n; door doors Tür Türen f; window windows Fenster Fenster n
place: garden gardens Garten Gärten m; kitchen kitchens Küche Küchen f; park parks Park Parks m
place: city cities Stadt Städte f; village villages Dorf Dörfer n; forest forests Wald Wälder m
place: school schools Schule Schulen f; station stations Bahnhof Bahnhöfe m; museum museums Museum Museen n
"""
_UNIONS = {"people": "adult person kin", "thing": "furniture portable vehicle building"}

# English, German, the stem of its endings ("teuer", but "ein teures Auto"): the nouns it is said of.
_ADJECTIVE_TABLE = """
old alt alt: adult teacher doctor friend neighbor animal text clothing thing place
young jung jung: adult person animal
small klein klein: child boy girl brother sister animal food clothing thing place
big groß groß: adult boy brother sister animal food clothing thing place
friendly freundlich freundlich: people
tired müde müd: people animal
sick krank krank: people animal
happy glücklich glücklich: people
clever klug klug: people dog cat horse pig
new neu neu: student teacher doctor friend neighbor text clothing thing school station museum park
red rot rot: apple clothing furniture bag box vehicle building
green grün grün: apple clothing furniture bag box vehicle building
black schwarz schwarz: dog cat horse bird clothing furniture bag box vehicle
white weiß weiß: dog cat horse bird clothing furniture bag box vehicle building
expensive teuer teur: book cake tea coffee clothing thing
beautiful schön schön: woman girl horse cat bird poem clothing lamp picture house garden park city village forest
cold kalt kalt: milk water tea coffee soup
hot heiß heiß: milk water tea coffee soup potato
fresh frisch frisch: food milk water bread
sweet süß süß: apple cake tea coffee milk
heavy schwer schwer: furniture bag box bicycle book
interesting interessant interessant: text picture city museum
"""
# English ("+" before a word that stays at the verb, "~" before one that follows the object) | infinitive, first and third
# person, participle ("+" with sein) | subjects | complements | places. "anywhere" stands for _LOCATIONS.
_VERB_TABLE = """
read reads read | lesen lese liest gelesen | people | acc: text | in: garden kitchen park school
write writes wrote | schreiben schreibe schreibt geschrieben | people | acc: letter poem book | in: garden kitchen school
buy buys bought | kaufen kaufe kauft gekauft | people | acc: text food mass clothing thing animal | in: city village
see sees saw | sehen sehe sieht gesehen | people | acc: people animal thing | in: garden park city village forest station
look looks looked +for | suchen suche sucht gesucht | people | acc: people animal text clothing portable | in: place
find finds found | finden finde findet gefunden | people | acc: animal text clothing portable | in: place
eat eats ate | essen esse isst gegessen | people | acc: food dish bread | in: garden kitchen park
eat eats ate | fressen fresse frisst gefressen | animal | acc: food bread | in: garden kitchen
drink drinks drank | trinken trinke trinkt getrunken | people | acc: milk water tea coffee | in: garden kitchen park
visit visits visited | besuchen besuche besucht besucht | people | acc: people museum city school village | -
call calls called | an-rufen rufe ruft angerufen | people | acc: people | -
invite invites invited | ein-laden lade lädt eingeladen | people | acc: people | -
pick picks picked ~up | ab-holen hole holt abgeholt | people | acc: people | -
open opens opened | auf-machen mache macht aufgemacht | people | acc: door window bag box letter | -
close closes closed | zu-machen mache macht zugemacht | people | acc: door window bag box book | -
wear wears wore | tragen trage trägt getragen | people | acc: clothing | in: garden city park museum
try tries tried ~on | an-probieren probiere probiert anprobiert | people | acc: clothing | -
wash washes washed | waschen wasche wäscht gewaschen | people | acc: clothing dog horse car apple potato | in: garden kitchen
repair repairs repaired | reparieren repariere repariert repariert | people | acc: furniture vehicle door window | -
feed feeds fed | füttern füttere füttert gefüttert | people | acc: animal | in: garden forest village
help helps helped | helfen helfe hilft geholfen | people | dat: people | in: garden kitchen school station
thank thanks thanked | danken danke dankt gedankt | people | dat: people | -
wait waits waited | warten warte wartet gewartet | people | for: people | anywhere
give gives gave | geben gebe gibt gegeben | people | give: text food mass clothing portable animal | -
show shows showed | zeigen zeige zeigt gezeigt | people | give: text clothing portable vehicle building garden animal | -
bring brings brought | bringen bringe bringt gebracht | people | give: text food mass clothing chair lamp portable | -
sleep sleeps slept | schlafen schlafe schläft geschlafen | people animal | - | anywhere
play plays played | spielen spiele spielt gespielt | people animal | with: people animal | in: garden park kitchen forest
work works worked | arbeiten arbeite arbeitet gearbeitet | people | - | in: place
sing sings sang | singen singe singt gesungen | people bird | - | anywhere
sit sits sat | sitzen sitze sitzt gesessen | people animal | - | anywhere
get gets got +up | auf-stehen stehe steht +aufgestanden | people | - | -
go goes went | gehen gehe geht +gegangen | people | {directions} | -
run runs ran | laufen laufe läuft +gelaufen | people animal | {directions} | -
arrive arrives arrived | an-kommen komme kommt +angekommen | people | - | in: village city museum park school forest
say says said | sagen sage sagt gesagt | people | - | -
think thinks thought | glauben glaube glaubt geglaubt | people | - | -
know knows knew | wissen weiß weiß gewusst | people | - | -
be is was | sein bin ist +gewesen | people | - | -
""".replace("{directions}", "into: garden kitchen city village forest museum house; to: people park school station village")
_LOCATIONS = """in: place; behind: house school station car; in front of: house school museum car door; \
next to: window door lamp table; under: table window"""

# What ties a phrase to its verb: English preposition, German preposition, case.
_TIE_TABLE = """for auf acc; with mit dat; into in acc; to zu dat; in in dat; behind hinter dat; in front of vor dat; \
next to neben dat; under unter dat; early früh -; late spät -"""

# English, German: the modes that it goes with.
_TIME_TABLE = """
today | heute | present past future can must should want
now | jetzt | present can must should
yesterday | gestern | past wanted had
tomorrow | morgen | future can must should want
every day | jeden Tag | present past must had
last week | letzte Woche | past wanted had
on Sunday | am Sonntag | past future wanted had
in the morning | am Morgen | present past future must can
in the evening | am Abend | present past future must can want
"""

# Mode: English auxiliary, or base, third person and past of a verb with "to" | German finite forms by person.
_MODE_TABLE = """
future | will | werde wird werden
can | can | kann kann können
must | must | muss muss müssen
should | should | sollte sollte sollten
want | want wants wanted | will will wollen
wanted | want wants wanted | wollte wollte wollten
had | have has had | musste musste mussten
"""

# English subject and object, German nominative, accusative and dative, person (the index of German finite forms).
_PRONOUN_TABLE = """I me ich mich mir 0; we us wir uns uns 2; he him er ihn ihm 1; she her sie sie ihr 1; \
they them sie sie ihnen 2; who whom wer wen wem 1"""


def _dictionary(text: str) -> dict[str, str]:
    return dict(entry.split(":") for entry in text.split("/"))


POSSESSIVES = _dictionary("my:mein/our:unser/his:sein/her:ihr/their:ihr")
FREQUENCIES = _dictionary("often:oft/always:immer/sometimes:manchmal/never:nie")
NUMBERS = _dictionary(
    "two:zwei/three:drei/four:vier/five:fünf/six:sechs/seven:sieben/eight:acht/nine:neun/ten:zehn/eleven:elf/twelve:zwölf"
)
QUESTIONS = _dictionary("?:/when:wann/where:wo/why:warum/what:was")
CONJUNCTIONS = _dictionary("because:, weil/although:, obwohl/if:, wenn/when:, wenn/that:, dass/and: und/but:, aber")


class Noun(NamedTuple):
    plural: str  # English, "" where only the singular makes sense
    german: tuple[str, str, str]  # nominative singular, accusative and dative singular, plural
    gender: str  # m, f, n
    group: str


class Verb(NamedTuple):
    english: tuple[str, ...]  # base (the lemma), third person, past
    adjacent: str  # "for" in "looks for the key"
    particle: str  # "up" in "picks the child up"
    prefix: str  # "ab" in "holt das Kind ab"
    present: tuple[str, str, str]  # by person; the plural is the infinitive
    participle: str
    perfect: tuple[str, str, str]  # its auxiliary, by person
    subjects: tuple[str, ...]  # nouns
    complements: dict[str, tuple[str, ...]]  # tie: nouns
    places: dict[str, tuple[str, ...]]


class NounPhrase(NamedTuple):
    noun: str  # lemma, or a pronoun's subject form
    determiner: str = ""  # the, this, a or a possessive; "no" inside german_clause only
    plural: bool = False
    number: str = ""
    adjective: str = ""

    @property
    def person(self) -> int:
        """The index of finite forms: 0 for I, 1 for the third person singular, 2 for every plural."""
        return PRONOUNS[self.noun][-1] if self.noun in PRONOUNS else 1 + self.plural

    @property
    def definite(self) -> bool:
        return self.noun in PRONOUNS or self.determiner not in ("", "a", "no")


class Tied(NamedTuple):
    """A phrase and what ties it to the verb: an object, "in the garden"; without a phrase "early"."""

    tie: str
    phrase: NounPhrase | None = None


class Clause(NamedTuple):
    subject: NounPhrase
    verb: str  # a key of VERBS
    mode: str = "present"
    complement: Tied | None = None
    recipient: NounPhrase | None = None
    place: Tied | None = None
    time: str = ""
    frequency: str = ""
    predicate: str = ""  # adjective after "be"
    negated: bool = False
    fronted: str = ""  # "time" or "place" where that opens the statement


class Sentence(NamedTuple):
    clause: Clause
    question: str = ""  # a key of QUESTIONS, or "who", which is then the subject
    conjunction: str = ""  # a key of CONJUNCTIONS
    second: Clause | None = None
    reversed: bool = False  # the second clause comes first: "If ..., ..."


def _rows(table: str, separator: str) -> list[list[str]]:
    return [line.split(separator) for line in table.strip().splitlines()]


def _parse_nouns() -> dict[str, Noun]:
    nouns = {}
    for group, entries in _rows(_NOUN_TABLE, ": "):
        for entry in entries.split("; "):
            lemma, plural, german, german_plural, gender = entry.replace("-", "").split(" ")
            oblique = german_plural if gender.endswith("*") else german  # so for each of our weak nouns
            nouns[lemma] = Noun(plural, (german, oblique, german_plural), gender[0], group)
    return nouns


def _nouns(names: str) -> tuple[str, ...]:
    """The nouns that a list of lemmas, groups and unions of groups names, each once."""
    names = " ".join(_UNIONS.get(name, name) for name in names.split())
    return tuple(dict.fromkeys(noun for name in names.split() for noun in NOUNS if name in (noun, NOUNS[noun].group)))


def _tied_nouns(text: str) -> dict[str, tuple[str, ...]]:
    text = _LOCATIONS if text == "anywhere" else text
    return {tie: _nouns(names) for tie, names in (entry.split(": ") for entry in text.split("; ") if entry != "-")}


def _parse_verbs() -> dict[str, Verb]:
    verbs = {}
    for english, german, subjects, complements, places in _rows(_VERB_TABLE, " | "):
        base, third, past, *extra = english.split()
        extra = {word[0]: word[1:] for word in extra}
        infinitive, first, german_third, participle = german.split()
        prefix, _, stem = infinitive.rpartition("-")
        verbs[prefix + stem] = Verb(
            english=(base, third, past),
            adjacent=extra.get("+", ""),
            particle=extra.get("~", ""),
            prefix=prefix,
            present=(first, german_third, stem),
            participle=participle.lstrip("+"),
            perfect=("bin", "ist", "sind") if participle.startswith("+") else ("habe", "hat", "haben"),
            subjects=_nouns(subjects),
            complements=_tied_nouns(complements),
            places=_tied_nouns(places),
        )
    return verbs


NOUNS = _parse_nouns()
ADJECTIVES = {words.split()[0]: (*words.split()[1:], _nouns(nouns)) for words, nouns in _rows(_ADJECTIVE_TABLE, ": ")}
VERBS = _parse_verbs()  # by German infinitive: to eat is "essen" for people and "fressen" for animals
TIES = {"acc": ("", "acc"), "dat": ("", "dat"), "give": ("", "acc")}  # "give" takes a recipient in the dative, too
TIES |= {english: (german, case) for english, german, case in (tie.rsplit(" ", 2) for tie in _TIE_TABLE.split("; "))}
TIMES = {english: (german, modes.split()) for english, german, modes in _rows(_TIME_TABLE, " | ")}
MODES = {mode: (english.split(), german.split()) for mode, english, german in _rows(_MODE_TABLE, " | ")}
PRONOUNS = {
    row[0]: (row[:2], dict(zip(("nom", "acc", "dat"), row[2:5])), int(row[5]))
    for row in (entry.split() for entry in _PRONOUN_TABLE.split("; "))
}
_PAST_MODES = ("past", "wanted", "had")


def _paradigm(forms: str) -> dict[tuple[str, str], str]:
    """Forms by (case, gender), listed as the rows nominative, accusative, dative; p is the plural."""
    slots = ((case, gender) for case in ("nom", "acc", "dat") for gender in "mfnp")
    return dict(zip(slots, forms.replace("-", "").split(" "), strict=True))


_DEFINITE = _paradigm("der die das die den die das die dem der dem den")
_STRONG = _paradigm("er e es e en e es e em er em en")  # of "dieser", and of an adjective that no article precedes
_EIN = _paradigm("- e - e en e - e em er em en")
_WEAK = _paradigm("e e e en en e e en en en en en")
_MIXED = _paradigm("er e es en en e es en en en en en")
_CONTRACTIONS = _dictionary("in dem :im /in das :ins /zu dem :zum /zu der :zur ")


def _join(*words: str) -> str:
    return " ".join(word for word in words if word)


@lru_cache(maxsize=None)
def english_phrase(phrase: NounPhrase | None, subject: bool = False) -> str:
    """ "these two old dogs", "him"; nothing for None."""
    if phrase is None:
        return ""
    if phrase.noun in PRONOUNS:
        return PRONOUNS[phrase.noun][0][0 if subject else 1]
    text = _join(phrase.number, phrase.adjective, NOUNS[phrase.noun].plural if phrase.plural else phrase.noun)
    determiner = phrase.determiner
    if determiner == "a" and text[0] in "aeiou":
        determiner = "an"
    elif determiner == "this" and phrase.plural:
        determiner = "these"
    return _join(determiner, text)


@lru_cache(maxsize=None)
def german_phrase(phrase: NounPhrase | None, case: str, preposition: str = "") -> str:
    """The same in a case, after a preposition that may merge with the article: "diese zwei alten Hunde", "im Garten"."""
    if phrase is None:
        return preposition
    if phrase.noun in PRONOUNS:
        return _join(preposition, PRONOUNS[phrase.noun][1][case])
    singular, oblique, plural = NOUNS[phrase.noun].german
    slot = case, "p" if phrase.plural else NOUNS[phrase.noun].gender
    article, endings = _article(phrase.determiner, slot)
    if phrase.plural:
        noun = plural + "n" if case == "dat" and plural[-1] not in "ns" else plural
    else:
        noun = singular if case == "nom" else oblique
    adjective = ADJECTIVES[phrase.adjective][1] + endings[slot] if phrase.adjective else ""
    text = _join(preposition, article, NUMBERS.get(phrase.number, ""), adjective, noun)
    merged = next((full for full in _CONTRACTIONS if phrase.determiner == "the" and text.startswith(full)), "")
    return _CONTRACTIONS.get(merged, "") + text.removeprefix(merged)


def _article(determiner: str, slot: tuple[str, str]) -> tuple[str, dict[tuple[str, str], str]]:
    """The German determiner, and the endings of an adjective after it."""
    if determiner == "the":
        return _DEFINITE[slot], _WEAK
    if determiner == "this":
        return "dies" + _STRONG[slot], _WEAK
    if determiner == "":
        return "", _STRONG
    return {"a": "ein", "no": "kein", **POSSESSIVES}[determiner] + _EIN[slot], _MIXED


def english_verb(clause: Clause, needs_auxiliary: bool) -> tuple[str, str]:
    """The finite word and the rest: ("reads", ""), ("does", "read"), ("wants", "to read"), ("will", "read")."""
    forms, person, is_past = VERBS[clause.verb].english, clause.subject.person, clause.mode in _PAST_MODES
    auxiliary = MODES[clause.mode][0] if clause.mode in MODES else ()
    if len(auxiliary) == 1:
        return auxiliary[0], forms[0]
    if clause.verb == "sein":
        return (("was", "was", "were") if is_past else ("am", "is", "are"))[person], ""
    base, third, past = auxiliary or forms
    rest = f"to {forms[0]}" if auxiliary else ""
    if needs_auxiliary:
        return "did" if is_past else "does" if person == 1 else "do", _join(base, rest)
    return past if is_past else third if person == 1 else base, rest


def german_verb(clause: Clause) -> tuple[str, str, str]:
    """The finite word, the end of a main clause, the end of a subordinate clause: ("ruft", "an", "anruft")."""
    verb, person = VERBS[clause.verb], clause.subject.person
    if clause.mode == "present":
        return verb.present[person], verb.prefix, verb.prefix + verb.present[person]
    if clause.mode in MODES:
        finite, end = MODES[clause.mode][1][person], clause.verb
    elif clause.verb == "sein":
        finite, end = ("war", "war", "waren")[person], ""
    else:
        finite, end = verb.perfect[person], verb.participle
    return finite, end, _join(end, finite)


def english_clause(clause: Clause, question: bool = False) -> str:
    """A clause without punctuation, as a statement or with the auxiliary before the subject."""
    verb, complement, place = VERBS[clause.verb], clause.complement or Tied("acc"), clause.place or Tied("")
    finite, rest = english_verb(clause, needs_auxiliary=question or clause.negated)
    subject = english_phrase(clause.subject, subject=True)
    where = _join(place.tie, english_phrase(place.phrase))
    return _join(
        {"time": clause.time, "place": where}.get(clause.fronted, ""),
        *((finite, subject, clause.frequency) if question else (subject, clause.frequency, finite)),
        "not" if clause.negated else "",
        rest,
        verb.adjacent,
        english_phrase(clause.recipient),
        "" if TIES[complement.tie][0] == "" else complement.tie,
        english_phrase(complement.phrase),
        verb.particle,
        clause.predicate,
        "" if clause.fronted == "place" else where,
        "" if clause.fronted == "time" else clause.time,
    ).replace("can not", "cannot")


def german_clause(clause: Clause, order: str = "main") -> str:
    """A clause without punctuation; order: main (verb second), question (verb first) or subordinate (verb last)."""
    (preposition, case), phrase = TIES[(clause.complement or Tied("acc")).tie], clause.complement and clause.complement.phrase
    no = clause.negated and phrase is not None and not phrase.definite and not preposition
    complement = german_phrase(phrase._replace(determiner="no") if no else phrase, case, preposition)
    definite = phrase is not None and phrase.definite and not preposition
    time = TIMES[clause.time][0] if clause.time else FREQUENCIES.get(clause.frequency, "")
    place = german_phrase(clause.place.phrase, *reversed(TIES[clause.place.tie])) if clause.place else ""
    finite, end, last = german_verb(clause)
    middle = _join(
        german_phrase(clause.recipient, "dat"),
        complement if definite else "",
        "" if clause.fronted == "time" else time,
        "nicht" if clause.negated and not no else "",
        "" if clause.fronted == "place" else place,
        "" if definite else complement,
        ADJECTIVES[clause.predicate][0] if clause.predicate else "",
    )
    subject = german_phrase(clause.subject, "nom")
    if order == "subordinate":
        return _join(subject, middle, last)
    front = {"time": time, "place": place}.get(clause.fronted, "")
    return _join(*((finite, subject) if order == "question" else (front, finite, subject) if front else (subject, finite)), middle, end)


def render(sentence: Sentence) -> Pair:
    """The English and the German of a sentence."""
    clause, question, conjunction, second, is_reversed = sentence
    if question == "who":
        english, german, mark = english_clause(clause), german_clause(clause), "?"
    elif question:
        english = _join(question.strip("?"), english_clause(clause, question=True))
        german, mark = _join(QUESTIONS[question], german_clause(clause, "question")), "?"
    elif second is None:
        english, german, mark = english_clause(clause), german_clause(clause), "."
    else:
        english, german = _compound(clause, conjunction, second, is_reversed)
        mark = "."
    return english[0].upper() + english[1:] + mark, german[0].upper() + german[1:] + mark


def _compound(clause: Clause, conjunction: str, second: Clause, is_reversed: bool) -> Pair:
    english, german = f"{conjunction} {english_clause(second)}", CONJUNCTIONS[conjunction]
    if conjunction == "when" and second.mode in _PAST_MODES:
        german = ", als"  # once, in the past; "wenn" is for what recurs
    german += " " + german_clause(second, "main" if conjunction in ("and", "but") else "subordinate")
    if is_reversed:  # the subordinate clause fills the first place, so the verb comes next
        return f"{english}, {english_clause(clause)}", f"{german[2:]}, {german_clause(clause, 'question')}"
    comma = "," if conjunction == "but" else ""
    return f"{english_clause(clause)}{comma} {english}", german_clause(clause) + german


_PEOPLE = _nouns("people")
_ADJECTIVES_OF = {noun: [word for word in ADJECTIVES if noun in ADJECTIVES[word][2]] for noun in NOUNS}
_DESCRIBABLE = [noun for noun in NOUNS if len(_ADJECTIVES_OF[noun]) > 1]
_REPORTING = ("sagen", "glauben", "wissen")
_ACTIONS = [verb for verb in VERBS if verb not in (*_REPORTING, "sein")]
_NEEDING_PLACE = ("sitzen", "ankommen")

# Determiners by the role of the phrase, as often as they are drawn; "/" is a number, "." no article.
_ROLES = {
    "subject": "the the the the the the my our his her their my a / / this".split(),
    "object": "the the the the a a a a a my our his her their / / . . this".split(),
    "person": "the the the my our his her their a this".split(),
    "place": "the the the the the the the a a my our this".split(),
}
_NOW, _THEN = "present present present future can must should want".split(), "past past past past wanted had".split()
_REASONS = "present present present must want".split()
# Conjunction, modes of the first and the second clause, whether the second may come first.
_COMPOUNDS = (
    ("because", _NOW, _REASONS, True),
    ("because", _THEN, _THEN, True),
    ("although", _NOW, _REASONS, True),
    ("although", _THEN, _THEN, True),
    ("if", _NOW, ("present", "want"), True),
    ("when", ("present",), ("present",), True),
    ("when", _THEN, ("past",), True),
    ("and", _NOW + _THEN, _NOW + _THEN, False),
    ("but", _NOW + _THEN, _NOW + _THEN, False),
)


def _allows(noun: str, determiner: str) -> bool:
    group, plural = NOUNS[noun].group, NOUNS[noun].plural
    if group == "kin":
        return determiner == "the" or determiner in POSSESSIVES
    if group == "adult":  # "mein Mann" is a husband
        return determiner not in POSSESSIVES
    return determiner not in ("a", "/") if group == "mass" else bool(plural) or determiner not in ("/", ".")


_DETERMINERS = {
    (noun, role): [determiner for determiner in determiners if _allows(noun, determiner)]
    for role, determiners in _ROLES.items()
    for noun in NOUNS
}


def _echo(subject: NounPhrase) -> NounPhrase | None:
    """The pronoun that stands for a person named before; a child is neither "he" nor "she" here."""
    if subject.noun in PRONOUNS:
        return subject
    if subject.noun not in _PEOPLE or subject.noun == "child" and not subject.plural:
        return None
    female = NOUNS[subject.noun].gender == "f" or subject.noun == "girl"
    return NounPhrase("they" if subject.plural else "she" if female else "he")


def _negatable(clause: Clause) -> bool:
    """Whether "not" has one clear German: all but a direct object are definite, and that one is not counted."""
    phrase = clause.complement.phrase if clause.complement else None
    others = [clause.subject, clause.recipient, clause.place.phrase if clause.place else None]
    others += [phrase] if clause.complement and TIES[clause.complement.tie][0] else []
    counted = phrase is not None and phrase.number != "" and not phrase.definite
    return clause.mode not in ("must", "had") and not counted and all(other is None or other.definite for other in others)


class _Author:
    """Draws sentences. It takes random.random() alone, whose sequence Python keeps from version to version."""

    def __init__(self, seed: int):
        self._random = random.Random(seed).random

    def chance(self, probability: float) -> bool:
        return self._random() < probability

    def choose(self, options: Sequence[Item]) -> Item:
        return options[int(self._random() * len(options))]

    def noun_phrase(self, nouns: Sequence[str], role: str, avoid: str = "") -> NounPhrase:
        noun = self.choose([noun for noun in nouns if noun != avoid])
        determiner = self.choose(_DETERMINERS[noun, role])
        plural = NOUNS[noun].plural != "" and (determiner in "/." or determiner != "a" and self.chance(0.25))
        numbered = determiner == "/" or plural and determiner != "." and self.chance(0.2)
        number = self.choose(tuple(NUMBERS)) if numbered else ""
        adjective = self.choose(_ADJECTIVES_OF[noun] or [""]) if self.chance(0.4) else ""
        return NounPhrase(noun, determiner.strip("/."), plural, number, adjective)

    def subject(self, nouns: Sequence[str]) -> NounPhrase:
        if "man" in nouns and self.chance(0.35):
            return NounPhrase(self.choose(("I", "he", "she", "we", "they")))
        return self.noun_phrase(nouns, "subject")

    def object(self, nouns: Sequence[str], role: str, subject: NounPhrase) -> NounPhrase:
        if "man" in nouns and self.chance(0.25):  # "I see me" would have to be reflexive
            others = ("he", "she", "they")
            return NounPhrase(self.choose(others if subject.noun in ("I", "we") else (*others, "I", "we")))
        return self.noun_phrase(nouns, role, avoid=subject.noun)

    def clause(self, modes: Sequence[str], subject: NounPhrase | None = None, descriptive: float = 0.12) -> Clause:
        """A clause without time, of the given subject or of any."""
        if self.chance(descriptive):
            return self.description(self.choose(modes), subject)
        name, mode = self.choose(_ACTIONS), self.choose(modes)
        verb, subject_ = VERBS[name], subject or self.subject(VERBS[name].subjects)
        is_ambiguous = mode == "past" and subject_.person != 1 and verb.english[0] == verb.english[2]  # "they read"
        if is_ambiguous or subject and "man" not in verb.subjects:
            return self.clause(modes, subject, descriptive)
        clause = self.with_place(self.with_complement(Clause(subject_, name, mode)))
        return clause._replace(negated=_negatable(clause) and self.chance(0.2))

    def description(self, mode: str, subject: NounPhrase | None) -> Clause:
        mode = "past" if mode in _PAST_MODES else "future" if mode == "future" else "present"
        subject = subject or self.subject(_PEOPLE if self.chance(0.5) else _DESCRIBABLE)
        adjectives = _ADJECTIVES_OF["man" if subject.noun in PRONOUNS else subject.noun]
        predicate = self.choose([adjective for adjective in adjectives if adjective != subject.adjective])
        return Clause(subject, "sein", mode, predicate=predicate, negated=subject.definite and self.chance(0.2))

    def with_complement(self, clause: Clause) -> Clause:
        complements = VERBS[clause.verb].complements
        if not complements or "with" in complements and self.chance(0.4):
            return clause
        tie = self.choose(tuple(complements))
        phrase = self.object(complements[tie], "place" if tie == "into" else "object", clause.subject)
        recipient = self.object(_PEOPLE, "person", clause.subject) if tie == "give" else None
        return clause._replace(complement=Tied(tie, phrase), recipient=recipient)

    def with_place(self, clause: Clause) -> Clause:
        places = VERBS[clause.verb].places
        if not places or not (clause.verb in _NEEDING_PLACE or self.chance(0.2 if clause.complement else 0.7)):
            return clause
        tie = self.choose(tuple(places))
        return clause._replace(place=Tied(tie, self.noun_phrase(places[tie], "place")))

    def with_time(self, clause: Clause, fronting: bool = False) -> Clause:
        """The clause with a time or a frequency, where its German stays natural."""
        heavy = clause.recipient and clause.complement and clause.complement.phrase.definite
        if clause.verb == "sein" or heavy and not fronting:
            return clause
        if clause.mode in ("present", "past") and not clause.negated and not heavy and self.chance(0.2):
            return clause._replace(frequency=self.choose(tuple(FREQUENCIES)))
        time = self.choose([time for time in TIMES if clause.mode in TIMES[time][1]])
        return clause._replace(time=time, fronted="time" if fronting and (heavy or self.chance(0.5)) else "")

    def sentence(self) -> Sentence:
        draw = self.choose((self.statement,) * 9 + (self.question,) * 4 + (self.compound,) * 5 + (self.report,) * 2)
        return draw()

    def statement(self) -> Sentence:
        clause = self.clause(_NOW + _THEN)
        if self.chance(0.6):
            return Sentence(self.with_time(clause, fronting=True))
        return Sentence(clause._replace(fronted="place" if clause.place and self.chance(0.3) else ""))

    def question(self) -> Sentence:
        clause = self.clause(_NOW + _THEN)._replace(negated=False)
        words = ["?", "?", "when", "why"]
        changes: dict[str, dict] = {}
        if clause.place:
            changes["where"] = {"place": None}
        if clause.complement and not TIES[clause.complement.tie][0] and clause.complement.phrase.noun in _THINGS:
            changes["what"] = {"complement": None}
        if clause.subject.noun in _PEOPLE:
            changes["who"] = {"subject": NounPhrase("who")}
        word = self.choose((*words, *changes))
        clause = clause._replace(**changes.get(word, {}))
        return Sentence(clause if word == "when" or self.chance(0.6) else self.with_time(clause), word)

    def compound(self) -> Sentence:
        conjunction, modes, second_modes, reversible = self.choose(_COMPOUNDS)
        first, is_reversed = self.clause(modes), reversible and self.chance(0.35)
        echo = _echo(first.subject) if self.chance(0.6) else None
        second = self.clause(second_modes, echo, descriptive=0.3 if reversible else 0.1)
        if self.chance(0.2):
            first = self.with_time(first, fronting=not is_reversed)
        elif self.chance(0.15):
            second = self.with_time(second)
        return Sentence(first, "", conjunction, second, is_reversed)

    def report(self) -> Sentence:
        subject = self.subject(_PEOPLE)
        negated = subject.definite and self.chance(0.2)
        second = self.clause(_NOW + _THEN, _echo(subject) if self.chance(0.3) else None)
        second = self.with_time(second) if self.chance(0.2) else second
        return Sentence(Clause(subject, self.choose(_REPORTING), negated=negated), "", "that", second)


def _held_out() -> dict[Pair, str]:
    """The reserved combinations (adjective or verb, noun), each with the split that alone may join them."""
    objects = ((verb.english[0], nouns) for verb in VERBS.values() for nouns in verb.complements.values())
    splits = {}
    for word, nouns in (*objects, *((adjective, nouns) for adjective, (_, _, nouns) in ADJECTIVES.items())):
        for noun in nouns:
            remainder = zlib.crc32(f"{word} {noun}".encode()) % _HELD_OUT_ONE_IN
            if remainder < 2:
                splits[word, noun] = ("validation", "test")[remainder]
    return splits


HELD_OUT = _held_out()


def _content(clause: Clause) -> tuple[set[str], set[str], set[Pair]]:
    """The lemmas of verb and adjectives, those of the nouns, and the pairs of them that are related to each other."""
    places = [tied.phrase for tied in (clause.complement, clause.place) if tied]
    phrases = [phrase for phrase in (clause.subject, clause.recipient, *places) if phrase and phrase.noun in NOUNS]
    verb = VERBS[clause.verb].english[0]
    related = {(phrase.adjective, phrase.noun) for phrase in phrases} | {(clause.predicate, clause.subject.noun)}
    if clause.complement:
        related.add((verb, clause.complement.phrase.noun))
    return {verb, *(word for word, _ in related)}, {phrase.noun for phrase in phrases}, related


def _split_of(sentence: Sentence) -> str | None:
    """The split that a sentence may belong to: train if none of its words are held apart."""
    words, nouns, related = _content(sentence.clause)
    if sentence.second:
        words, nouns, related = (a | b for a, b in zip((words, nouns, related), _content(sentence.second)))
    splits = {HELD_OUT[pair] for pair in ((word, noun) for word in words for noun in nouns) if pair in HELD_OUT}
    if not splits:
        return "train"
    return splits.pop() if len(splits) == 1 and any(pair in HELD_OUT for pair in related) else None


@lru_cache(maxsize=1)
def _corpus() -> dict[str, tuple[Pair, ...]]:
    author, corpus = _Author(_SEED), {split: {} for split in SPLIT_SIZES}
    while any(len(pairs) < SPLIT_SIZES[split] for split, pairs in corpus.items()):
        sentence = author.sentence()
        split = _split_of(sentence)
        if split and len(corpus[split]) < SPLIT_SIZES[split]:
            english, german = render(sentence)
            if 3 <= len(english.split()) <= _MAX_WORDS:
                corpus[split].setdefault(english, german)
    return {split: tuple(pairs.items()) for split, pairs in corpus.items()}


def phrasebook(split: str) -> list[Pair]:
    """The distinct (English, German) pairs of "train" (20,000), "validation" (500) or "test" (500), always the same."""
    if split not in SPLIT_SIZES:
        raise ValueError(f"no split {split!r} in the phrasebook; choose from {', '.join(SPLIT_SIZES)}")
    return list(_corpus()[split])

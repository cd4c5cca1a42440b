"""The embedded corpus: English-German sentence pairs that a small grammar writes, so that training needs no download.

The German is a function of the English: there is no "you" and no "it"; the simple past becomes the perfect (of "be" and
the modals, the preterite) and "read" has none. The middle of a German clause runs recipient, definite object, time,
"nicht", place, governed phrase, indefinite object, predicate.

Validation and test are held out by combination: a stable hash sets apart some pairs of an adjective or a verb and a
noun that it goes with. The two never meet in a training sentence, related or not; a test sentence relates such a pair.
"""

import random
import zlib
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple, TypeVar


Pair = tuple[str, str]  # (English, German)
Item = TypeVar("Item")

SPLIT_SIZES = {"train": 20_000, "validation": 500, "test": 500}
_HELD_OUT_ONE_IN = 20  # of the combinations, for validation and for test each
_MAX_WORDS = 16  # of an English sentence
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
home: garden gardens Garten Gärten m; kitchen kitchens Küche Küchen f
town: city cities Stadt Städte f; village villages Dorf Dörfer n; forest forests Wald Wälder m; park parks Park Parks m
town: school schools Schule Schulen f; station stations Bahnhof Bahnhöfe m; museum museums Museum Museen n
"""
_UNIONS = {"people": "adult person kin", "thing": "furniture portable vehicle building", "place": "home town"}

# English, German, the stem of its endings ("teuer", but "ein teures Auto"): the nouns that it is said of.
_ADJECTIVE_TABLE = """
old alt alt: adult teacher doctor friend neighbor animal text bread clothing thing place
young jung jung: adult student teacher doctor friend neighbor animal
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

# English, "+" before a word that stays at the verb, "~" before one after the object | infinitive with its prefix, first
# and third person, participle ("+" with sein) | subjects | complements by tie | places by tie, "*" for _ANYWHERE.
_VERB_TABLE = """
read reads read | lesen lese liest gelesen | people | acc: text | in: garden kitchen park school
write writes wrote | schreiben schreibe schreibt geschrieben | people | acc: letter poem book | in: kitchen school
buy buys bought | kaufen kaufe kauft gekauft | people | acc: text food mass clothing thing animal | in: city village
see sees saw | sehen sehe sieht gesehen | people | acc: people animal thing | in: garden park city village forest
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
wash washes washed | waschen wasche wäscht gewaschen | people | acc: clothing dog horse car apple potato | in: garden
repair repairs repaired | reparieren repariere repariert repariert | people | acc: furniture vehicle door window | -
feed feeds fed | füttern füttere füttert gefüttert | people | acc: animal | in: garden forest village
help helps helped | helfen helfe hilft geholfen | people | dat: people animal | in: garden kitchen school
thank thanks thanked | danken danke dankt gedankt | people | dat: people | -
wait waits waited | warten warte wartet gewartet | people | for: people | *
give gives gave | geben gebe gibt gegeben | people | give: text food mass clothing portable animal | -
show shows showed | zeigen zeige zeigt gezeigt | people | give: text clothing portable vehicle house garden animal | -
bring brings brought | bringen bringe bringt gebracht | people | give: text food mass clothing chair lamp portable | -
sleep sleeps slept | schlafen schlafe schläft geschlafen | people animal | - | *
play plays played | spielen spiele spielt gespielt | people animal | with: people animal | in: garden park kitchen
work works worked | arbeiten arbeite arbeitet gearbeitet | people | - | in: place
sing sings sang | singen singe singt gesungen | people bird | - | *
sit sits sat | sitzen sitze sitzt gesessen | people animal | - | *
get gets got +up | auf-stehen stehe steht +aufgestanden | people | - | -
go goes went | gehen gehe geht +gegangen | people | into: home forest museum house city; to: people park school | -
run runs ran | laufen laufe läuft +gelaufen | people animal | into: home forest house; to: people station | -
arrive arrives arrived | an-kommen komme kommt +angekommen | people | - | in: village city museum park school forest
say says said | sagen sage sagt gesagt | people | - | -
think thinks thought | glauben glaube glaubt geglaubt | people | - | -
know knows knew | wissen weiß weiß gewusst | people | - | -
be is was | sein bin ist +gewesen | people | - | -
"""
_ANYWHERE = """in: place; behind: house school station car; in front of: house school museum car door; \
next to: window door lamp table; under: table"""

# What ties a phrase to its verb: English preposition, German preposition, case. An object is tied by its case alone, or
# by "give": in the accusative, beside a recipient.
_TIE_TABLE = """for auf acc; with mit dat; into in acc; to zu dat; in in dat; behind hinter dat; in front of vor dat; \
next to neben dat; under unter dat"""

# English, German, the modes that it goes with.
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
_PAST_MODES = ("past", "wanted", "had")

# English subject and object, German nominative, accusative and dative, person.
_PRONOUN_TABLE = """
I me ich mich mir 0
he him er ihn ihm 1
she her sie sie ihr 1
we us wir uns uns 2
they them sie sie ihnen 2
who whom wer wen wem 1
"""


def _dictionary(text: str) -> dict[str, str]:
    return dict(entry.split(":") for entry in text.split("/"))


_NUMBERS = _dictionary(
    "two:zwei/three:drei/four:vier/five:fünf/six:sechs/seven:sieben/eight:acht/nine:neun/ten:zehn/eleven:elf/twelve:zwölf"
)
_FREQUENCIES = _dictionary("often:oft/always:immer/sometimes:manchmal/never:nie")
_POSSESSIVES = _dictionary("my:mein/our:unser/his:sein/her:ihr/their:ihr")
_CONJUNCTIONS = _dictionary("because:weil/although:obwohl/if:wenn/when:wenn/that:dass/and:und/but:aber")
_QUESTIONS = {"": "", "when": "wann", "why": "warum"}
_CASES = ("nom", "acc", "dat")


class Noun(NamedTuple):
    plural: str  # English, "" where only the singular makes sense
    german: tuple[str, str, str]  # nominative singular, accusative and dative singular, plural
    gender: str  # m, f, n
    group: str


class Verb(NamedTuple):
    english: tuple[str, str, str]  # base (the lemma), third person, past
    adjacent: str  # "for" in "looks for the key"
    particle: str  # "up" in "picks the child up"
    prefix: str  # "ab" in "holt das Kind ab"
    present: tuple[str, str, str]  # by person
    perfect: tuple[str, str, str]  # its auxiliary
    participle: str
    subjects: tuple[str, ...]  # nouns
    complements: dict[str, tuple[str, ...]]  # nouns by tie
    places: dict[str, tuple[str, ...]]


class Phrase(NamedTuple):
    """A noun phrase or a pronoun in both languages."""

    noun: str  # its lemma, or the pronoun
    english: Pair  # as subject, as object
    german: dict[str, str]  # by case
    person: int  # the index of finite forms: 0 for I, 1 for the third person singular, 2 for every plural
    determiner: str = "the"

    @property
    def definite(self) -> bool:
        """Whether it stands early in the German clause, and is negated with "nicht" rather than "kein"."""
        return self.determiner not in ("", "a", "no")


def _rows(table: str, separator: str = " | ") -> list[list[str]]:
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
    groups = " ".join(_UNIONS.get(name, name) for name in names.split()).split()
    return tuple(dict.fromkeys(noun for name in groups for noun in NOUNS if name in (noun, NOUNS[noun].group)))


def _tied_nouns(text: str) -> dict[str, tuple[str, ...]]:
    text = _ANYWHERE if text == "*" else text
    return {tie: _nouns(names) for tie, names in (entry.split(": ") for entry in text.split("; ") if entry != "-")}


def _parse_verbs() -> dict[str, Verb]:
    verbs = {}
    for english, german, subjects, complements, places in _rows(_VERB_TABLE):
        base, third, past, extra = (english + " -").split()[:4]
        infinitive, first, german_third, participle = german.split()
        prefix, _, infinitive = infinitive.rpartition("-")
        verbs[prefix + infinitive] = Verb(
            english=(base, third, past),
            adjacent=extra[1:] if extra[0] == "+" else "",
            particle=extra[1:] if extra[0] == "~" else "",
            prefix=prefix,
            present=(first, german_third, infinitive),
            perfect=("bin", "ist", "sind") if participle[0] == "+" else ("habe", "hat", "haben"),
            participle=participle.lstrip("+"),
            subjects=_nouns(subjects),
            complements=_tied_nouns(complements),
            places=_tied_nouns(places),
        )
    return verbs


NOUNS = _parse_nouns()
ADJECTIVES = {  # German, the stem of its endings, its nouns
    english: (german, stem, _nouns(nouns))
    for (english, german, stem), nouns in ((words.split(), nouns) for words, nouns in _rows(_ADJECTIVE_TABLE, ": "))
}
VERBS = _parse_verbs()  # by German infinitive: to eat is "essen" for people and "fressen" for animals
VERBS["sein"] = VERBS["sein"]._replace(present=("bin", "ist", "sind"))  # no other plural differs from the infinitive
PRONOUNS = {
    english: Phrase(english, (english, english_object), dict(zip(_CASES, german, strict=True)), int(person))
    for english, english_object, *german, person in _rows(_PRONOUN_TABLE, " ")
}
_TIES = {english: (german, case) for english, german, case in (tie.rsplit(" ", 2) for tie in _TIE_TABLE.split("; "))}
_TIMES = {english: (german, modes.split()) for english, german, modes in _rows(_TIME_TABLE)}
_MODES = {mode: (english.split(), german.split()) for mode, english, german in _rows(_MODE_TABLE)}


def _paradigm(forms: str) -> dict[Pair, str]:
    """Forms by (case, gender), listed as the rows nominative, accusative, dative; p is the plural."""
    slots = ((case, gender) for case in _CASES for gender in "mfnp")
    return dict(zip(slots, forms.replace("-", "").split(" "), strict=True))


_DEFINITE = _paradigm("der die das die den die das die dem der dem den")
_STRONG = _paradigm("er e es e en e es e em er em en")  # of "dieser", and of an adjective that no article precedes
_EIN = _paradigm("- e - e en e - e em er em en")
_WEAK = _paradigm("e e e en en e e en en en en en")
_MIXED = _paradigm("er e es en en e es en en en en en")
_EIN_WORDS = {"a": "ein", "no": "kein", **_POSSESSIVES}
_CONTRACTIONS = _dictionary("in dem:im/in das:ins/zu dem:zum/zu der:zur")


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
    german = {case: _german_noun_phrase(case, noun, determiner, plural, number, adjective) for case in _CASES}
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
    return _join(article, _NUMBERS.get(number, ""), adjective and ADJECTIVES[adjective][1] + endings[slot], form)


def tied(tie: str, phrase: Phrase) -> Pair:
    """A phrase with the preposition that ties it to the verb: "in the garden", "im Garten"."""
    preposition, case = _TIES[tie]
    german = f"{preposition} {phrase.german[case]}"
    for full, contracted in _CONTRACTIONS.items():
        if phrase.determiner == "the" and german.startswith(full + " "):
            german = contracted + german.removeprefix(full)
    return f"{tie} {phrase.english[1]}", german


def _english_verb(verb: str, mode: str, person: int, needs_auxiliary: bool) -> Pair:
    """The finite word and the rest: ("reads", ""), ("does", "read"), ("wants", "to read"), ("will", "read")."""
    forms, auxiliary = VERBS[verb].english, _MODES[mode][0] if mode in _MODES else []
    if len(auxiliary) == 1:
        return auxiliary[0], forms[0]
    is_past = mode in _PAST_MODES
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
    if mode in _MODES:
        finite, end = _MODES[mode][1][person], name
    elif name == "sein":
        finite, end = ("war", "war", "waren")[person], ""
    else:
        finite, end = verb.perfect[person], verb.participle
    return finite, end, _join(end, finite)


class Clause(NamedTuple):
    """What one clause says, and how it sounds in each place of a sentence."""

    subject: Phrase
    verb: str  # German infinitive
    mode: str = "present"  # or past, or a key of _MODES
    recipient: Phrase | None = None
    object: Phrase | None = None
    governed: Pair = ("", "")  # "for the teacher", "auf den Lehrer"
    predicate: str = ""  # adjective after "be"
    place: Pair = ("", "")
    time: str = ""  # a key of _TIMES or _FREQUENCIES
    negated: bool = False
    fronted: str = ""  # "time" or "place" where that opens a statement

    def english(self, question: bool = False) -> str:
        """Without punctuation, as a statement or with an auxiliary before the subject."""
        subject, verb = self.subject.english[0], VERBS[self.verb]
        finite, rest = _english_verb(self.verb, self.mode, self.subject.person, question or self.negated)
        frequency, time = (self.time, "") if self.time in _FREQUENCIES else ("", self.time)
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
        time = _TIMES[self.time][0] if self.time in _TIMES else _FREQUENCIES.get(self.time, "")
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
    return _punctuated(_join(word, english), _join(_QUESTIONS[word], german), "?")


def compound(first: Clause, conjunction: str, second: Clause, is_reversed: bool = False) -> Pair:
    """Two clauses, or reversed: the subordinate one, in the first place, then the verb of the main clause."""
    german = _CONJUNCTIONS[conjunction]
    if conjunction == "when" and second.mode in _PAST_MODES:
        german = "als"  # once, in the past; "wenn" is for what recurs
    if conjunction in ("and", "but"):
        comma = "," if conjunction == "but" else ""
        english = f"{first.english()}{comma} {conjunction} {second.english()}"
        return _punctuated(english, f"{first.german()}{comma} {german} {second.german()}", ".")
    english, german = f"{conjunction} {second.english()}", f"{german} {second.german('subordinate')}"
    if is_reversed:
        return _punctuated(f"{english}, {first.english()}", f"{german}, {first.german('question')}", ".")
    return _punctuated(f"{first.english()} {english}", f"{first.german()}, {german}", ".")


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
_COMPOUNDS = [(words[0], words[1].split(), words[2].split()) for words in _rows(_COMPOUND_TABLE)]
_ANY_MODE = _COMPOUNDS[0][1] + _COMPOUNDS[1][1]
_EXCLUSIVE = ("red green black white", "old young new", "small big", "cold hot", "fresh old")
_REPORTING = ("sagen", "glauben", "wissen")
_ACTIONS = [verb for verb in VERBS if verb not in (*_REPORTING, "sein")]
_ADJECTIVES_OF = {noun: [word for word in ADJECTIVES if noun in ADJECTIVES[word][2]] for noun in NOUNS}
_DESCRIBABLE = [noun for noun in NOUNS if len(_ADJECTIVES_OF[noun]) > 2]
_PEOPLE = _nouns("people")


def _allows(noun: str, determiner: str) -> bool:
    group, plural = NOUNS[noun].group, NOUNS[noun].plural
    if group == "kin":
        return determiner == "the" or determiner in _POSSESSIVES
    if group == "adult":  # "mein Mann" is a husband
        return determiner not in _POSSESSIVES
    if group == "town":
        return determiner not in ("my", "his", "her", "their")
    return determiner not in ("a", "/") if group == "mass" else bool(plural) or determiner not in ("/", ".")


_DETERMINERS = {
    (noun, role): [determiner for determiner in determiners.split() if _allows(noun, determiner)]
    for role, determiners in _rows(_ROLE_TABLE)
    for noun in NOUNS
}


def _clash(adjective: str, other: str) -> bool:
    """Whether one thing cannot well be both."""
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
            times = [time for time in _TIMES if mode in _TIMES[time][1] and not (is_negated and time == "every day")]
            parts["time"] = self.choose(tuple(_FREQUENCIES) if is_frequency else times)
        front = "time" if parts.get("time") in _TIMES else "place" if "place" in parts and subject.noun in NOUNS else ""
        return Clause(subject, name, mode, negated=is_negated, fronted=front if self.chance(fronted) else "", **parts)

    def complements(self, verb: Verb, subject: Phrase, negated: bool) -> dict:
        """What the verb asks for, as arguments of Clause."""
        if not verb.complements or ("with" in verb.complements and self.chance(0.4)):
            return {}
        tie = self.choose(tuple(verb.complements))
        nouns = verb.complements[tie]
        if tie in _TIES:
            role = "place" if tie == "into" and not negated else "definite"
            return {"governed": tied(tie, self.object(nouns, role, subject, verb))}
        recipient = self.object(_PEOPLE, "definite", subject) if tie == "give" else None
        role = "negated" if negated else "gift" if recipient else "object"
        return {"recipient": recipient, "object": self.object(nouns, role, subject, verb)}

    def description(self, mode: str, subject: Phrase | None, negated: bool) -> Clause:
        mode = "past" if mode in _PAST_MODES else "future" if mode == "future" else "present"
        subject = subject or self.subject(_PEOPLE if self.chance(0.3) else _DESCRIBABLE, "definite")
        noun = "mother" if subject.noun in PRONOUNS else subject.noun  # of whom no age or size is told
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
        number = self.choose(tuple(_NUMBERS)) if is_numbered else ""
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

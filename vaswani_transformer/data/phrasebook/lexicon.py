"""The words of the embedded corpus: English and German forms, and the words that they combine with."""

from typing import NamedTuple


Pair = tuple[str, str]  # (English, German)


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
PAST_MODES = ("past", "wanted", "had")

# English subject and object, German nominative, accusative and dative, person.
_PRONOUN_TABLE = """
I me ich mich mir 0
he him er ihn ihm 1
she her sie sie ihr 1
we us wir uns uns 2
they them sie sie ihnen 2
who whom wer wen wem 1
"""


def dictionary(text: str) -> dict[str, str]:
    return dict(entry.split(":") for entry in text.split("/"))


NUMBERS = dictionary(
    "two:zwei/three:drei/four:vier/five:fünf/six:sechs/seven:sieben/eight:acht/nine:neun/ten:zehn/eleven:elf/twelve:zwölf"
)
FREQUENCIES = dictionary("often:oft/always:immer/sometimes:manchmal/never:nie")
POSSESSIVES = dictionary("my:mein/our:unser/his:sein/her:ihr/their:ihr")
CONJUNCTIONS = dictionary("because:weil/although:obwohl/if:wenn/when:wenn/that:dass/and:und/but:aber")
QUESTIONS = {"": "", "when": "wann", "why": "warum"}
CASES = ("nom", "acc", "dat")


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


def rows_of(table: str, separator: str = " | ") -> list[list[str]]:
    return [line.split(separator) for line in table.strip().splitlines()]


def _parse_nouns() -> dict[str, Noun]:
    nouns = {}
    for group, entries in rows_of(_NOUN_TABLE, ": "):
        for entry in entries.split("; "):
            lemma, plural, german, german_plural, gender = entry.replace("-", "").split(" ")
            oblique = german_plural if gender.endswith("*") else german  # so for each of our weak nouns
            nouns[lemma] = Noun(plural, (german, oblique, german_plural), gender[0], group)
    return nouns


def nouns_named(names: str) -> tuple[str, ...]:
    """The nouns that a list of lemmas, groups and unions of groups names, each once."""
    groups = " ".join(_UNIONS.get(name, name) for name in names.split()).split()
    return tuple(dict.fromkeys(noun for name in groups for noun in NOUNS if name in (noun, NOUNS[noun].group)))


def _tied_nouns(text: str) -> dict[str, tuple[str, ...]]:
    text = _ANYWHERE if text == "*" else text
    return {tie: nouns_named(names) for tie, names in (entry.split(": ") for entry in text.split("; ") if entry != "-")}


def _parse_verbs() -> dict[str, Verb]:
    verbs = {}
    for english, german, subjects, complements, places in rows_of(_VERB_TABLE):
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
            subjects=nouns_named(subjects),
            complements=_tied_nouns(complements),
            places=_tied_nouns(places),
        )
    return verbs


NOUNS = _parse_nouns()
ADJECTIVES = {  # German, the stem of its endings, its nouns
    english: (german, stem, nouns_named(nouns))
    for (english, german, stem), nouns in ((words.split(), nouns) for words, nouns in rows_of(_ADJECTIVE_TABLE, ": "))
}
VERBS = _parse_verbs()  # by German infinitive: to eat is "essen" for people and "fressen" for animals
VERBS["sein"] = VERBS["sein"]._replace(present=("bin", "ist", "sind"))  # no other plural differs from the infinitive
PRONOUNS = {
    english: Phrase(english, (english, english_object), dict(zip(CASES, german, strict=True)), int(person))
    for english, english_object, *german, person in rows_of(_PRONOUN_TABLE, " ")
}
TIES = {english: (german, case) for english, german, case in (tie.rsplit(" ", 2) for tie in _TIE_TABLE.split("; "))}
TIMES = {english: (german, modes.split()) for english, german, modes in rows_of(_TIME_TABLE)}
MODES = {mode: (english.split(), german.split()) for mode, english, german in rows_of(_MODE_TABLE)}

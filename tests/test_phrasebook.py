"""The embedded corpus against a second opinion: sentences and grammar tables written by hand, counts of its words."""

import hashlib
import os
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise, product
from pathlib import Path

import pytest

from vaswani_transformer.data.phrasebook import corpus as module
from vaswani_transformer.data.phrasebook import lexicon
from vaswani_transformer.data.phrasebook.corpus import phrasebook
from vaswani_transformer.data.phrasebook.grammar import Clause, compound, noun_phrase, question, statement, tied
from vaswani_transformer.data.phrasebook.lexicon import Pair, Phrase


SIZES = {"train": 20_000, "validation": 500, "test": 500}
# Run beside the phrasebook, which imports nothing but itself.
DIGEST_PROGRAM = """
import hashlib
from phrasebook import phrasebook
print(hashlib.sha256(repr([phrasebook(split) for split in ("train", "validation", "test")]).encode()).hexdigest())
"""


@pytest.fixture(scope="module")
def corpus() -> dict[str, list[Pair]]:
    return {split: phrasebook(split) for split in SIZES}


@pytest.fixture(scope="module")
def pairs(corpus) -> list[Pair]:
    return [pair for split in SIZES for pair in corpus[split]]


def words(sentence: str) -> list[str]:
    """Words, the first with a small letter."""
    return re.findall(r"\w+", sentence[0].lower() + sentence[1:])


@pytest.mark.parametrize("split", SIZES)
def test_sizes_and_distinctness(corpus, split):
    assert len(corpus[split]) == SIZES[split]
    assert len({english for english, _ in corpus[split]}) == SIZES[split]


def test_an_unknown_split_is_named_with_the_choices():
    with pytest.raises(ValueError, match=r"'dev'.*train, validation, test"):
        phrasebook("dev")


def test_a_caller_cannot_change_the_corpus():
    phrasebook("test").clear()
    assert len(phrasebook("test")) == 500


def test_splits_share_no_sentence_of_either_language(corpus):
    for first, second in [("train", "validation"), ("train", "test"), ("validation", "test")]:
        for side in (0, 1):
            assert not {pair[side] for pair in corpus[first]} & {pair[side] for pair in corpus[second]}


@pytest.mark.system
def test_another_process_with_other_hashes_writes_the_same_corpus(corpus):
    here = hashlib.sha256(repr([corpus[split] for split in SIZES]).encode()).hexdigest()
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    run = subprocess.run(
        [sys.executable, "-c", DIGEST_PROGRAM],
        cwd=Path(module.__file__).parents[1],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == here


def test_lengths(pairs):
    lengths = [len(english.split()) for english, _ in pairs]
    assert (min(lengths), max(lengths)) == (3, 16)
    assert max(len(german.split()) for _, german in pairs) <= 20
    assert 7 < sum(lengths) / len(lengths) < 10


def test_german_is_a_function_of_english(pairs):
    german_of: dict[str, str] = {}
    author = module._Author(seed=1)  # sentences that no split holds, too
    for english, german in [*pairs, *(author.sentence() for _ in range(20_000))]:
        assert german_of.setdefault(english, german) == german


def test_no_english_leaves_its_german_open(pairs):
    vocabulary = {word for english, _ in pairs for word in words(english)}
    assert not vocabulary & {"you", "your", "it", "its", "could", "would", "put", "fish"}
    assert not any("gelesen" in german for _, german in pairs)  # "they read": now, or then?


@pytest.fixture(scope="module")
def lemmas() -> dict[str, Pair]:
    """English form: its lemma, and "noun" or, of adjectives and verbs, "word"."""
    table: dict[str, Pair] = {}
    for lemma, noun in lexicon.NOUNS.items():
        table |= dict.fromkeys((lemma, noun.plural or lemma), (lemma, "noun"))
    for verb in lexicon.VERBS.values():
        table |= dict.fromkeys(verb.english, (verb.english[0], "word"))
    return table | {adjective: (adjective, "word") for adjective in lexicon.ADJECTIVES}


@pytest.fixture(scope="module")
def met(corpus, lemmas) -> dict[str, list[set[Pair]]]:
    """For each sentence all (adjective or verb, noun) of which it has both, whether they belong together or not."""

    def meetings(english: str) -> set[Pair]:
        found = [lemmas[word] for word in words(english) if word in lemmas]
        kinds = {kind: [lemma for lemma, its_kind in found if its_kind == kind] for kind in ("word", "noun")}
        return set(product(kinds["word"], kinds["noun"]))

    return {split: [meetings(english) for english, _ in corpus[split]] for split in SIZES}


def test_every_held_out_sentence_has_a_pair_that_never_meets_in_training(met):
    in_training = set().union(*met["train"])
    new = {split: [pairs - in_training for pairs in met[split]] for split in ("validation", "test")}
    assert all(all(news) for news in new.values())
    seen = {split: set().union(*met[split]) & module.HELD_OUT.keys() for split in SIZES}
    assert not seen["train"]
    assert not seen["validation"] & seen["test"]
    assert min(len(seen["validation"]), len(seen["test"])) >= 30


def test_the_new_pair_of_a_held_out_sentence_is_related(corpus, met, lemmas):
    """Judged without the grammar: verb and object, adjective and noun stand close together."""
    for split in ("validation", "test"):
        for (english, _), pairs in zip(corpus[split], met[split], strict=True):
            order = [lemmas.get(word, ("", ""))[0] for word in words(english)]
            new = [pair for pair in pairs if module.HELD_OUT.get(pair) == split]
            found = [[i for i, lemma in enumerate(order) if lemma in pair] for pair in new]
            neighbors = [two for places in found for two in pairwise(places) if order[two[0]] != order[two[1]]]
            assert min(later - earlier for earlier, later in neighbors) <= 8


def test_every_word_of_a_reserved_pair_is_trained_on_in_other_company(met):
    partners: dict[str, Counter] = {}
    for pairs in met["train"]:
        for word, noun in pairs:
            partners.setdefault(word, Counter())[noun] += 1
            partners.setdefault(noun, Counter())[word] += 1
    for lemma in {lemma for pair in module.HELD_OUT for lemma in pair}:
        assert len(partners[lemma]) >= 10
        assert partners[lemma].total() >= 100


@pytest.mark.parametrize("side", [0, 1])
def test_held_out_forms_occur_in_training(corpus, side):
    known = {word for pair in corpus["train"] for word in re.findall(r"\w+", pair[side])}
    for split in ("validation", "test"):
        forms = [word for pair in corpus[split] for word in re.findall(r"\w+", pair[side])]
        assert sum(form in known for form in forms) >= 0.999 * len(forms)


def phrase(english: str) -> Phrase:
    """The phrase that an English text names; "no" is the "a" of a negated clause."""
    pronouns = {form: pronoun for pronoun in lexicon.PRONOUNS.values() for form in pronoun.english}
    if english in pronouns:
        return pronouns[english]
    *others, last = english.split()
    singulars = {noun.plural: lemma for lemma, noun in lexicon.NOUNS.items() if noun.plural}
    parts: dict = {"noun": singulars.get(last, last), "plural": last in singulars}
    for word in others:
        kind = "adjective" if word in lexicon.ADJECTIVES else "number" if word in lexicon.NUMBERS else "determiner"
        parts[kind] = {"an": "a", "these": "this"}.get(word, word)
    return noun_phrase(**parts)


def clause(specification: str) -> Clause:
    """A clause: subject, German infinitive and further parts, each with its name."""
    subject, verb, *others = specification.split(", ")
    parts: dict = dict(part.split(": ") for part in others)
    for name in {"object", "recipient"} & parts.keys():
        parts[name] = phrase(parts[name])
    for name in {"governed", "place"} & parts.keys():
        tie = max((tie for tie in lexicon.TIES if parts[name].startswith(f"{tie} ")), key=len)
        parts[name] = tied(tie, phrase(parts[name].removeprefix(f"{tie} ")))
    return Clause(phrase(subject), verb, **parts)


def sentence(specification: str, english: str) -> Pair:
    """A clause or, between slashes, two and their conjunction; the English tells which is first, and a question."""
    first, *others = specification.split(" / ")
    opening = english.split()[0].lower()
    if others:
        conjunction, second = others
        return compound(clause(first), conjunction, clause(second), is_reversed=opening == conjunction)
    if english.endswith("?"):
        return question(clause(first), opening if opening in ("when", "why", "who") else "")
    return statement(clause(first))


# What is said, and below it how.
WRITTEN_BY_HAND = """
the old man, kaufen, object: a book, time: today
The old man buys a book today. | Der alte Mann kauft heute ein Buch.
the old man, kaufen, object: a book, time: today, fronted: time
Today the old man buys a book. | Heute kauft der alte Mann ein Buch.
the dog, schlafen, place: in the garden, fronted: place
In the garden the dog sleeps. | Im Garten schläft der Hund.
I, lesen, mode: future, object: this letter, time: in the morning, fronted: time
In the morning I will read this letter. | Am Morgen werde ich diesen Brief lesen.
the mother, trinken, object: the tea, time: never
The mother never drinks the tea. | Die Mutter trinkt den Tee nie.
the boy, sein, predicate: tired / because / he, arbeiten, mode: past
The boy is tired because he worked. | Der Junge ist müde, weil er gearbeitet hat.
we, wissen / that / the child, aufmachen, mode: must, object: the door
We know that the child must open the door. | Wir wissen, dass das Kind die Tür aufmachen muss.
the cat, fressen, object: the bread / if / I, schlafen
If I sleep, the cat eats the bread. | Wenn ich schlafe, frisst die Katze das Brot.
he, singen / when / they, essen, object: the soup
He sings when they eat the soup. | Er singt, wenn sie die Suppe essen.
he, singen, mode: past / when / she, ankommen, mode: past
He sang when she arrived. | Er hat gesungen, als sie angekommen ist.
they, gehen, governed: into the forest / although / they, sein, predicate: sick
They go into the forest although they are sick. | Sie gehen in den Wald, obwohl sie krank sind.
the father, sagen, negated: yes / that / I, sein, mode: past, predicate: clever
The father does not say that I was clever. | Der Vater sagt nicht, dass ich klug war.
the man, sitzen, place: under the table / and / the woman, singen
The man sits under the table and the woman sings. | Der Mann sitzt unter dem Tisch und die Frau singt.
I, warten, governed: for him / but / he, aufstehen, negated: yes
I wait for him, but he does not get up. | Ich warte auf ihn, aber er steht nicht auf.
she, anrufen, object: her brother
She calls her brother. | Sie ruft ihren Bruder an.
she, sein, predicate: happy / because / she, anrufen, object: her brother
She is happy because she calls her brother. | Sie ist glücklich, weil sie ihren Bruder anruft.
she, anrufen, mode: past, object: her brother
She called her brother. | Sie hat ihren Bruder angerufen.
she, anrufen, mode: want, object: her brother
She wants to call her brother. | Sie will ihren Bruder anrufen.
the teacher, abholen, mode: future, object: the students, time: tomorrow
The teacher will pick the students up tomorrow. | Der Lehrer wird die Studenten morgen abholen.
the girls, anprobieren, mode: past, object: new shoes
The girls tried new shoes on. | Die Mädchen haben neue Schuhe anprobiert.
our neighbor, einladen, object: us, time: in the evening, fronted: time
In the evening our neighbor invites us. | Am Abend lädt unser Nachbar uns ein.
three small dogs, spielen, place: in the big park
Three small dogs play in the big park. | Drei kleine Hunde spielen im großen Park.
the three small dogs, spielen, governed: with my two cats
The three small dogs play with my two cats. | Die drei kleinen Hunde spielen mit meinen zwei Katzen.
a young student, kaufen, object: an expensive car
A young student buys an expensive car. | Ein junger Student kauft ein teures Auto.
my red hat, sein, predicate: expensive
My red hat is expensive. | Mein roter Hut ist teuer.
this sick horse, fressen, object: green apples
This sick horse eats green apples. | Dieses kranke Pferd frisst grüne Äpfel.
these old women, trinken, object: hot coffee
These old women drink hot coffee. | Diese alten Frauen trinken heißen Kaffee.
he, trinken, mode: past, object: cold water
He drank cold water. | Er hat kaltes Wasser getrunken.
my tired child, trinken, mode: can, object: fresh milk
My tired child can drink fresh milk. | Mein müdes Kind kann frische Milch trinken.
I, suchen, object: our old key
I look for our old key. | Ich suche unseren alten Schlüssel.
the man, tragen, object: a black coat
The man wears a black coat. | Der Mann trägt einen schwarzen Mantel.
the woman, geben, recipient: the child, object: an egg
The woman gives the child an egg. | Die Frau gibt dem Kind ein Ei.
we, zeigen, mode: past, recipient: them, object: five heavy boxes
We showed them five heavy boxes. | Wir haben ihnen fünf schwere Kisten gezeigt.
they, helfen, object: the sick children
They help the sick children. | Sie helfen den kranken Kindern.
I, danken, object: my small sister
I thank my small sister. | Ich danke meiner kleinen Schwester.
he, helfen, mode: past, object: me
He helped me. | Er hat mir geholfen.
the bird, sitzen, place: behind the old houses
The bird sits behind the old houses. | Der Vogel sitzt hinter den alten Häusern.
she, arbeiten, place: in these new museums
She works in these new museums. | Sie arbeitet in diesen neuen Museen.
she, sehen, object: the boy
She sees the boy. | Sie sieht den Jungen.
we, helfen, object: a student
We help a student. | Wir helfen einem Studenten.
the neighbor, besuchen, object: my neighbor
The neighbor visits my neighbor. | Der Nachbar besucht meinen Nachbarn.
the horse, laufen, mode: past, governed: into the house
The horse ran into the house. | Das Pferd ist ins Haus gelaufen.
I, gehen, governed: to the school
I go to the school. | Ich gehe zur Schule.
he, gehen, governed: to the doctor
He goes to the doctor. | Er geht zum Arzt.
they, gehen, mode: past, governed: to the girls
They went to the girls. | Sie sind zu den Mädchen gegangen.
we, gehen, governed: into a garden
We go into a garden. | Wir gehen in einen Garten.
my sister, warten, governed: for a friend, place: in front of the door
My sister waits for a friend in front of the door. | Meine Schwester wartet vor der Tür auf einen Freund.
the girl, gehen, mode: past, governed: into the kitchen, time: yesterday
The girl went into the kitchen yesterday. | Das Mädchen ist gestern in die Küche gegangen.
the lamps, sein, mode: past, predicate: new
The lamps were new. | Die Lampen waren neu.
we, sein, mode: future, predicate: tired
We will be tired. | Wir werden müde sein.
I, aufstehen, mode: had
I had to get up. | Ich musste aufstehen.
the boys, schreiben, mode: should, object: a poem
The boys should write a poem. | Die Jungen sollten ein Gedicht schreiben.
they, reparieren, mode: wanted, object: the bicycle
They wanted to repair the bicycle. | Sie wollten das Fahrrad reparieren.
the man, kaufen, object: no car, negated: yes
The man does not buy a car. | Der Mann kauft kein Auto.
he, essen, mode: past, object: no red apples, negated: yes
He did not eat red apples. | Er hat keine roten Äpfel gegessen.
she, trinken, object: no cold milk, negated: yes
She does not drink cold milk. | Sie trinkt keine kalte Milch.
I, kaufen, object: the house, time: today, negated: yes
I do not buy the house today. | Ich kaufe das Haus heute nicht.
the dog, schlafen, mode: can, place: in the garden, negated: yes
The dog cannot sleep in the garden. | Der Hund kann nicht im Garten schlafen.
the cake, sein, predicate: sweet, negated: yes
The cake is not sweet. | Der Kuchen ist nicht süß.
they, zumachen, object: the window, negated: yes
They do not close the window. | Sie machen das Fenster nicht zu.
the old man, kaufen, object: a book, time: today
Does the old man buy a book today? | Kauft der alte Mann heute ein Buch?
she, anrufen, mode: past, object: her brother
Did she call her brother? | Hat sie ihren Bruder angerufen?
she, anrufen, object: her brother
Why does she call her brother? | Warum ruft sie ihren Bruder an?
we, ankommen, mode: future, place: in the village
When will we arrive in the village? | Wann werden wir im Dorf ankommen?
who, waschen, mode: past, object: the shoes
Who washed the shoes? | Wer hat die Schuhe gewaschen?
I, sein, predicate: sick
Am I sick? | Bin ich krank?
the birds, singen, time: often
Why do the birds often sing? | Warum singen die Vögel oft?
"""
LINES = WRITTEN_BY_HAND.strip().splitlines()


@pytest.mark.parametrize(("specification", "expected"), zip(LINES[::2], LINES[1::2], strict=True))
def test_sentences_written_by_hand(specification, expected):
    english, german = expected.split(" | ")
    assert sentence(specification, english) == (english, german)


def test_training_has_every_kind_of_sentence(corpus):
    counts = Counter(word for _, german in corpus["train"] for word in words(german))
    rare = "weil dass wenn obwohl als und aber wann warum wer nicht kein keinen keine ins zur zum im muss wollte ihnen"
    assert all(counts[word] >= 50 for word in rare.split(" "))


# From here on, grammar that holds of all sentences, from tables that the module does not know.
FINITE = """bin ist sind war waren habe hat haben werde wird werden kann können muss müssen sollte sollten will wollen
wollte wollten musste mussten lese liest lesen schreibe schreibt schreiben kaufe kauft kaufen sehe sieht sehen suche
sucht suchen finde findet finden esse isst essen frisst fressen trinke trinkt trinken besuche besucht besuchen rufe
ruft rufen lade lädt laden hole holt holen mache macht machen trage trägt tragen probiere probiert probieren wasche
wäscht waschen repariere repariert reparieren füttere füttert füttern helfe hilft helfen danke dankt danken warte
wartet warten gebe gibt geben zeige zeigt zeigen bringe bringt bringen schlafe schläft schlafen spiele spielt spielen
arbeite arbeitet arbeiten singe singt singen sitze sitzt sitzen stehe steht stehen gehe geht gehen laufe läuft laufen
komme kommt kommen sage sagt sagen glaube glaubt glauben weiß wissen"""
# Without "besucht", "repariert" and "anprobiert", which are finite forms as well.
PARTICIPLES = """geschrieben gekauft gesehen gesucht gefunden gegessen gefressen getrunken angerufen eingeladen abgeholt
aufgemacht zugemacht getragen gewaschen gefüttert geholfen gedankt gewartet gegeben gezeigt gebracht geschlafen gespielt
gearbeitet gesungen gesessen aufgestanden gegangen gelaufen angekommen"""
MOTION = {"aufgestanden", "gegangen", "gelaufen", "angekommen"}
PREFIXES = {
    "an": "rufe ruft rufen probiere probiert probieren komme kommt kommen",
    "ein": "lade lädt laden",
    "ab": "hole holt holen",
    "auf": "mache macht machen stehe steht stehen",
    "zu": "mache macht machen",
}
TIMES = ("heute", "jetzt", "gestern", "morgen", "jeden Tag", "letzte Woche", "am Sonntag", "am Morgen", "am Abend")
SUBORDINATING = ("weil", "dass", "wenn", "obwohl", "als")
NOUNS_BY_GENDER = {  # singulars that are not plurals as well
    "m": "Mann Freund Bruder Vater Hund Vogel Brief Apfel Hut Mantel Schuh Tisch Stuhl Garten Park Wald Tee Kaffee",
    "f": "Frau Schwester Mutter Katze Kuh Zeitung Suppe Milch Jacke Lampe Tasche Kiste Tür Küche Stadt Schule",
    "n": "Kind Pferd Schwein Buch Gedicht Ei Wasser Brot Kleid Bild Auto Fahrrad Haus Dorf Museum",
}
# Determiners of a singular, each with the ending of an adjective after it. "-" is ein, kein, mein, sein or unser.
AGREEMENT = {
    "m": "der:e dieser:e -:er den:en diesen:en -en:en dem:en diesem:en -em:en im:en zum:en",
    "f": "die:e diese:e -e:e der:en dieser:en -er:en zur:en",
    "n": "das:e dieses:e -:es dem:en diesem:en -em:en im:en zum:en ins:e",
}
NUMBERS = "zwei|drei|vier|fünf|sechs|sieben|acht|neun|zehn|elf|zwölf"
PLURALS = """Männer Frauen Kinder Jungen Mädchen Studenten Lehrer Ärzte Freunde Nachbarn Brüder Schwestern Hunde Katzen
Pferde Vögel Kühe Schweine Bücher Briefe Zeitungen Gedichte Äpfel Eier Kuchen Kartoffeln Hüte Mäntel Kleider Jacken
Schuhe Tische Stühle Lampen Bilder Taschen Kisten Schlüssel Autos Fahrräder Häuser Türen Fenster Gärten Küchen Parks
Städte Dörfer Wälder Schulen Bahnhöfe Museen"""


def clauses(german: str) -> list[list[str]]:
    """The words of each clause; no phrase of the corpus has "und" or a comma in it."""
    return [part.split() for part in re.split(r", | und |[.?]", german[0].lower() + german[1:]) if part]


def test_typography(pairs):
    for english, german in pairs:
        assert english[-1] == german[-1]
        assert re.fullmatch(r"[A-Z][a-z]*(,? [A-Za-z]+)+[.?]", english)
        assert re.fullmatch(r"[A-ZÄÖÜ][a-zäöüß]*(,? [A-Za-zÄÖÜäöüß]+)+[.?]", german)
        assert not re.search(r"[^,] (weil|dass|wenn|obwohl|als|aber)\b", german)


def test_subordinate_clauses_end_with_the_finite_verb(pairs):
    joined = {prefix + form for prefix, forms in PREFIXES.items() for form in forms.split()}
    last = Counter(part[-1] for _, german in pairs for part in clauses(german) if part[0] in SUBORDINATING)
    assert last.keys() <= joined | set(FINITE.split())
    assert last.total() > 4000
    assert sum(last[form] for form in joined) > 100


def test_the_finite_verb_comes_second(pairs):
    finite = set(FINITE.split())
    counts: Counter[str] = Counter()
    for _, german in pairs:
        first, *others = clauses(german)
        time = next((time for time in TIMES if " ".join(first).startswith(f"{time} ")), "")
        if time:
            counts["time"] += 1
            assert first[len(time.split())] in finite, german
        if first[0] in SUBORDINATING:
            counts["clause"] += 1
            assert others[0][0] in finite, german
        if german.endswith("?"):
            counts["question"] += 1
            assert first[1 if first[0] in ("wann", "warum", "wer") else 0] in finite, german
    assert len(counts) == 3
    assert min(counts.values()) > 500


def test_separated_prefixes_close_their_clause(pairs):
    owners = {form: [prefix for prefix in PREFIXES if form in PREFIXES[prefix].split()] for form in FINITE.split()}
    parts = [part for _, german in pairs for part in clauses(german)]
    separated = [(form, part[-1]) for part in parts for form in part if owners.get(form)]
    assert len(separated) > 500
    assert all(prefix in owners[form] for form, prefix in separated)


def test_perfect_takes_sein_for_motion_and_haben_for_the_rest(pairs):
    participles, found = set(PARTICIPLES.split()), set()
    for _, german in pairs:
        for part in clauses(german):
            used = participles.intersection(part)
            found |= used
            if used:
                assert bool(used & MOTION) == bool({"bin", "ist", "sind"}.intersection(part)), german
                assert bool(used & MOTION) != bool({"habe", "hat", "haben"}.intersection(part)), german
    assert found == participles


def test_determiners_and_adjectives_agree_with_singulars(pairs):
    """All but "ihr", which is a pronoun as well: "Sie gibt ihr kalte Milch." """
    endings = {gender: dict(entry.split(":") for entry in row.split()) for gender, row in AGREEMENT.items()}
    genders = {noun: gender for gender, nouns in NOUNS_BY_GENDER.items() for noun in nouns.split()}
    articles = "|".join(f"{article}" for row in endings.values() for article in row if article[0] != "-")
    ein_word = r"(?:k?ein|mein|sein|unser)(?:e|er|en|em)?"
    pattern = re.compile(rf"\b({articles}|{ein_word}) (?:([a-zäöüß]+) )?({'|'.join(genders)})\b")
    found = set()
    for _, german in pairs:
        for determiner, adjective, noun in pattern.findall(german[0].lower() + german[1:]):
            bare, gender = re.sub(r"^(k?ein|mein|sein|unser)", "-", determiner), genders[noun]
            assert bare in endings[gender], german
            assert not adjective or re.fullmatch(rf"\w+[^e]{endings[gender][bare]}", adjective), german
            found.add((bare, gender))
    assert found == {(determiner, gender) for gender in endings for determiner in endings[gender]}


def test_counted_plurals(pairs):
    """An adjective ends in -en after a determiner and in the dative, else in -e; a noun in the dative in -n or -s."""
    text = "\n".join(german[0].lower() + german[1:] for _, german in pairs)
    plurals = PLURALS.split()
    counts: Counter[tuple[bool, str]] = Counter()
    counted = re.compile(rf"(?:\b(\w+) )?\b(?:{NUMBERS}) (?:([a-zäöüß]+[^e])(en?) )?([A-ZÄÖÜ]\w+)")
    for before, adjective, ending, noun in counted.findall(text):
        assert noun in plurals or noun.removesuffix("n") in plurals
        is_determined = re.fullmatch(r"den|die|diesen?|(?:mein|sein|ihr|unser)en?", before) is not None
        if adjective:
            counts[is_determined, ending] += 1
            assert is_determined or ending == "e" or noun[-1] in "ns", (before, adjective, ending, noun)
    assert counts.keys() == {(True, "en"), (False, "e"), (False, "en")}
    assert counts[False, "e"] > 5 * counts[False, "en"]


def test_dative_plurals_weak_nouns_and_contractions(pairs):
    text = "\n".join(german for _, german in pairs)
    alike = ("Lehrer", "Schlüssel")  # "den Lehrer" is one, in the accusative
    unmarked = "|".join(plural for plural in PLURALS.split() if plural[-1] not in "ns" and plural not in alike)
    dative = rf"(?:mit|zu|den) (?:(?:den|diesen|meinen|seinen|ihren|unseren|{NUMBERS}) )*(?:[a-zäöüß]+en )?"
    assert len(re.findall(rf"\b{dative}[A-ZÄÖÜ]\w+n\b", text)) > 100
    assert not re.search(rf"\b{dative}(?:{unmarked})\b", text)
    assert not re.search(r"\b(?:den|dem|\w+e[nm]) (?:[a-zäöüß]+en )?(?:Junge|Student|Nachbar)\b", text)
    assert not re.search(r"\b(?:in dem|in das|zu dem|zu der)\b", text)

"""The embedded corpus against a second opinion: sentences written by hand, and counts of its words."""

import hashlib
import re
from collections import Counter
from itertools import pairwise, product

import pytest

from vaswani_transformer.data.phrasebook import corpus as module
from vaswani_transformer.data.phrasebook import lexicon
from vaswani_transformer.data.phrasebook.corpus import phrasebook
from vaswani_transformer.data.phrasebook.grammar import Clause, compound, noun_phrase, question, statement, tied
from vaswani_transformer.data.phrasebook.lexicon import Pair, Phrase


SIZES = {"train": 20_000, "validation": 500, "test": 500}


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


def test_the_corpus_is_that_of_all_results_so_far(corpus):
    """Python draws another seed for its hashes in each process."""
    digest = hashlib.sha256(repr([corpus[split] for split in SIZES]).encode()).hexdigest()
    assert digest == "e9a149648415bd236d984d6b8f0562f7691a85f82a19b7dd50b4146a9adde756"


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
she, anrufen, mode: past, object: her brother
She called her brother. | Sie hat ihren Bruder angerufen.
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
she, arbeiten, place: in these new museums
She works in these new museums. | Sie arbeitet in diesen neuen Museen.
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
we, sein, mode: future, predicate: tired
We will be tired. | Wir werden müde sein.
I, aufstehen, mode: had
I had to get up. | Ich musste aufstehen.
the boys, schreiben, mode: should, object: a poem
The boys should write a poem. | Die Jungen sollten ein Gedicht schreiben.
the man, kaufen, object: no car, negated: yes
The man does not buy a car. | Der Mann kauft kein Auto.
he, essen, mode: past, object: no red apples, negated: yes
He did not eat red apples. | Er hat keine roten Äpfel gegessen.
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


def test_typography(pairs):
    for english, german in pairs:
        assert english[-1] == german[-1]
        assert re.fullmatch(r"[A-Z][a-z]*(,? [A-Za-z]+)+[.?]", english)
        assert re.fullmatch(r"[A-ZÄÖÜ][a-zäöüß]*(,? [A-Za-zÄÖÜäöüß]+)+[.?]", german)
        assert not re.search(r"[^,] (weil|dass|wenn|obwohl|als|aber)\b", german)

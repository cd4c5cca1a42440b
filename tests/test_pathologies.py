"""Pathologies: planted ones are named with their lines, and people's translations have almost none."""

import gzip
import re
import unicodedata

import pytest
from helpers import REPOSITORY

from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.evaluation.pathologies import PathologyDetector, find_pathologies, numbers_agree


DATA = REPOSITORY.parent / "shared" / "data"
EN_DE = ("en", "de")
CORPORA = {
    "tatoeba_en-de/test": EN_DE,
    "tatoeba_en-fr/test": ("en", "fr"),
    "canlaws_en-fr/test": ("en", "fr"),
    "multi30k_en-de-fr/test_2016_flickr": ("de", "fr"),
    "newstest/en-de/newstest2014": EN_DE,
}


@pytest.fixture(scope="module")
def sides():
    return [list(side) for side in zip(*phrasebook("test"), strict=True)]


def test_planted_pathologies_have_their_lines(sides):
    sources, targets = sides
    planted = {
        "blank": " ",
        "copied": sources[1].upper().rstrip(".") + "!",
        "source language": phrasebook("validation")[0][0],
        "repeated": targets[3].replace(" ", " und nun und nun ", 1),
        "truncated": targets[4].split()[0],
        "numbers differ": f"{targets[5]} 1954",
    }
    translations = [*planted.values(), *targets[len(planted) :]]
    pathologies = find_pathologies(sources, translations, [[text] for text in targets], EN_DE)
    assert pathologies.lines == {kind: [line] for line, kind in enumerate(planted, 1)}
    assert pathologies.shares["blank"] == 100 / len(sources)


def test_what_equals_a_reference_or_translates_nothing_is_sound(sides):
    sources, targets = ([text, "", *side] for text, side in zip(("Tom!", "Tom."), sides, strict=True))
    references = [["Nein.", text] for text in targets]
    assert find_pathologies(sources, ["Tom?", "", *targets[2:]], references, EN_DE).lines["copied"] == []
    pathologies = find_pathologies(sources, ["Tom?", "", *targets[2:]], [["Nein."]] * len(sources), EN_DE)
    assert pathologies.lines["copied"] == [1]
    assert pathologies.lines["blank"] == []
    assert pathologies.sentences == len(sources) - 1


@pytest.mark.parametrize(
    ("source", "translation", "is_repeated"),
    [
        ("Our friends read a book.", "Unsere unsere Freunde lesen ein Buch.", True),
        ("The dog, the dog!", "Der Hund, der Hund!", False),
        ("He is very, very old.", "Er ist sehr, sehr alt.", False),
        ("He is very, very old.", "Er ist sehr sehr sehr sehr alt.", True),
        ("The men who are old sit.", "Die Männer, die die Alten sind, sitzen.", False),  # as a reference repeats
        ("I go to the house with the dog.", "Ich gehe mit dem Hund in mein Haus und mit dem Hund in mein Haus.", True),
    ],
)
def test_a_phrase_is_repeated_if_neither_the_source_nor_the_language_does(sides, source, translation, is_repeated):
    sources, targets = sides
    detector = PathologyDetector([*sources, "Hens that lay them"], [*targets, "Hennen, die die legen"], EN_DE)
    assert (detector.kind(source, translation) == "repeated") == is_repeated


DOUBLED = ["वह धीरे धीरे चलता है।", "नयी नयी किताबें", "बड़े बड़े घर", "छोटे छोटे बच्चे"]


@pytest.mark.parametrize(
    ("language", "targets", "source", "sound", "repeated"),
    [
        # Where characters are not separated, phrases of four are repeated.
        ("zh", ["我看书。"], "He reads daily.", "他天天看报。", "他每天看报他每天看报。"),
        # Combining marks belong to words.
        ("hi", ["वह खाता है।"], "Grandpa reads.", "बाबा पढ़ते हैं।", "बाबा बाबा पढ़ते हैं।"),
        # Where a language doubles words, three are repeated.
        ("hi", DOUBLED, "It is quite hot.", "बहुत गरम गरम है।", "बहुत गरम गरम गरम है।"),
    ],
)
def test_repetitions_in_other_scripts(language, targets, source, sound, repeated):
    detector = PathologyDetector(["He walks."] * len(targets), targets, ("en", language))
    assert detector.kind(source, sound) != "repeated"
    assert detector.kind(source, repeated) == "repeated"


def test_texts_are_compared_in_nfc(sides):
    sources, targets = (["Café Zoë", *side] for side in sides)
    translations = [unicodedata.normalize("NFD", "Café, Zoë!"), *targets[1:]]
    assert find_pathologies(sources, translations, [["x"]] * len(sources), EN_DE).lines["copied"] == [1]


def test_shifted_lines_do_not_predict_lengths(sides):
    sources, targets = sides
    for references, is_known in ((targets, True), (targets[1:] + targets[:1], False)):
        found = find_pathologies(sources, targets, [[text] for text in references], EN_DE)
        assert found.knows_lengths == is_known


@pytest.mark.parametrize(
    ("source", "translation", "languages"),
    [
        ("It weighs 1,000.5 kg.", "Es wiegt 1.000,5 kg.", EN_DE),
        ("1,000 people", "1 000 personnes", ("en", "fr")),
        ("1,00,000 रुपये", "100,000 rupees", ("hi", "en")),
        ("at 2:35 p.m.", "um 14:35 Uhr", EN_DE),
        ("at 12.30 a.m.", "um 0:30 Uhr", EN_DE),
        ("at eight in the evening", "um 20 Uhr", EN_DE),
        ("on 12/24/2020", "am 24.12.2020", EN_DE),
        ("१९ जुलाई १९६९", "19 July 1969", ("hi", "en")),
        ("the 1990s", "die 90er-Jahre", EN_DE),
        ("5 dogs and two cats", "fünf Hunde und 2 Katzen", EN_DE),
        ("36 hours", "trente-six heures", ("en", "fr")),
        ("World War II", "der 2. Weltkrieg", EN_DE),
        ("30 years", "treinta años", ("en", "es")),
        ("in 1984", "喺一九八四年", ("en", "yue")),
        ("$2,000,000", "zwei Millionen Dollar", EN_DE),
        ("2014年5月3日", "May 3, 2014", ("ja", "en")),
        ("am 3. 12. 2014", "le 3 décembre 2014", ("de", "fr")),
        ("5万円", "50,000 yen", ("ja", "en")),
        ("2014年有300萬人", "In 2014, 3 million people", ("yue", "en")),
        ("२.५ करोड़ लोग", "25 million people", ("hi", "en")),
    ],
)
def test_numbers_of_a_translation_may_be_written_otherwise(source, translation, languages):
    assert numbers_agree(source, translation, languages)
    assert numbers_agree(translation, source, languages[::-1])


@pytest.mark.parametrize(
    ("source", "translation", "languages"),
    [
        ("249.99 euros", "24999 Euro", EN_DE),
        ("born in 1954", "geboren 1945", EN_DE),
        ("20 euros", "200 Euro", EN_DE),
        ("call 911", "ruf an", EN_DE),
        ("2 hikers", "drei Wanderer", EN_DE),
        ("at 2:35", "um 2 Uhr", EN_DE),
        ("9" * 5000, "8" * 5000, EN_DE),  # more digits than `int` reads
        ("2014年5万円", "50,000 yen in 2015", ("ja", "en")),  # 万 is a unit that English lacks
        ("2014年5月3日", "June 3, 2014", ("ja", "en")),
    ],
)
def test_other_numbers_differ(source, translation, languages):
    assert not numbers_agree(source, translation, languages)
    assert not numbers_agree(translation, source, languages[::-1])


def test_the_tag_of_a_source_is_no_number():
    assert numbers_agree("<2de> A dog.", "Ein Hund.", EN_DE)


def test_numbers_may_be_those_of_a_reference(sides):
    sources, targets = (["It is 10 miles.", *sides[0]], ["Das sind 16 km.", *sides[1]])
    references = [[text] for text in targets]
    for translation, is_other in (("Es sind 16 km.", False), ("Das sind 17 km.", True)):
        found = find_pathologies(sources, [translation, *targets[1:]], references, EN_DE)
        assert found.lines["numbers differ"] == [1] * is_other


def lines(corpus: str, languages: tuple[str, str]) -> list[list[str]]:
    if corpus == "phrasebook":
        return [list(side) for side in zip(*phrasebook("validation"), strict=True)]
    if not DATA.exists():
        pytest.skip("needs ../shared/data")
    files = [DATA / f"{corpus}.{language}.gz" for language in languages]
    return [gzip.open(file, "rt", encoding="utf-8").read().splitlines()[:2000] for file in files]


@pytest.mark.parametrize(("corpus", "languages"), [("phrasebook", EN_DE), *CORPORA.items()])
@pytest.mark.parametrize("turn", [1, -1], ids=["forward", "back"])
def test_peoples_translations_are_sound_and_the_other_language_is_noticed(corpus, languages, turn):
    sources, targets = lines(corpus, languages)[::turn]
    half = len(sources) // 2
    detector = PathologyDetector(sources[:half], targets[:half], languages[::turn])

    def share(sources: list[str], translations: list[str], kind: str | None) -> float:
        kinds = [detector.kind(*pair) for pair in zip(sources, translations, strict=True)]
        return sum(each == kind for each in kinds) / len(kinds)

    sound = sources[half:], targets[half:]
    assert share(*sound, None) + share(*sound, "numbers differ") > 0.99
    with_digits = [pair for pair in zip(sources, targets, strict=True) if re.search(r"\d", "".join(pair))]
    agreed = [numbers_agree(*pair, languages[::turn]) for pair in with_digits]
    assert not agreed or sum(agreed) / len(agreed) > 0.94  # most others do differ: miles and kilometres
    assert share(targets[half:], sources[half:], "source language") > 0.99
    cut = [text[: len(text) // 4] for text in targets[half:]]
    assert share(sources[half:], cut, "truncated") > 0.7

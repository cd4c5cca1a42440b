"""Pathologies: planted ones are named with their lines, and people's translations have almost none."""

import gzip

import pytest
from helpers import REPOSITORY

from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.evaluation.pathologies import PathologyDetector, find_pathologies


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


def test_where_characters_are_not_separated_phrases_of_four_are_repeated():
    detector = PathologyDetector(["I read."], ["我看书。"], ("en", "zh"))
    assert detector.kind("He reads daily.", "他天天看报。") is None
    assert detector.kind("He reads daily.", "他每天看报他每天看报。") == "repeated"


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

    assert share(sources[half:], targets[half:], None) > 0.99
    assert share(targets[half:], sources[half:], "source language") > 0.99
    cut = [text[: len(text) // 4] for text in targets[half:]]
    assert share(sources[half:], cut, "truncated") > 0.7

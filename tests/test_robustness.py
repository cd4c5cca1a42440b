"""Robustness by translators of known faults, whose target language is the source language: a copy is perfect."""

import re
import unicodedata

import pytest
from sacrebleu.metrics import BLEU, CHRF

from vaswani_transformer.data.copied_strings import KINDS, copied_strings
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.evaluation.robustness import Robustness, robustness
from vaswani_transformer.evaluation.test_sets import TestSet
from vaswani_transformer.runs import scoring


SOURCES = ["", "It's a café of Tom's.", "I met Tom in 1987.", *(source for source, _ in phrasebook("test")[:37])]
INVISIBLE = 11  # the first changes


def measure(translate, sources=SOURCES, **options) -> Robustness:
    references = [[source] for source in sources]
    return robustness(sources, references, ("en", "en"), lambda texts: list(map(translate, texts)), **options)


def copied(measured: Robustness) -> dict[str, float]:
    return {kind: each.copied / each.lines for kind, each in measured.strings.items()}


def test_a_copy_copies_all_and_is_hurt_by_changes_that_remain_in_it():
    measured = measure(str)
    for row, (name, each) in enumerate(measured.changes.items()):
        assert (each.plain_bleu, each.plain_chrf) == pytest.approx((100, 100)), name
        expected = 0 if row < INVISIBLE or name == "typing errors" else each.lines
        assert each.same == expected, name  # a copy keeps capitals, tags, apostrophes and missing marks, rightly
        assert not expected or (each.bleu, each.chrf) == pytest.approx((100, 100)), name
    assert measured.changes["word joiners in words"].chrf < 70
    assert [measured.changes[name].lines for name in ("decomposed letters (NFD)", "’ for '", "lower case")] == [
        1,
        1,
        39,
    ]
    assert copied(measured) == dict.fromkeys(["numbers of the test set", *reversed(KINDS), "names"], 1.0)


def test_a_translator_that_normalizes_does_not_see_invisible_changes():
    def normalize(text: str) -> str:
        return " ".join(re.sub("[\u00ad\u200b\u2060\ufeff\u200e]", "", unicodedata.normalize("NFC", text)).split())

    changes = list(measure(normalize).changes.values())
    assert len(changes) == INVISIBLE + 6
    assert all(each.same == each.lines for each in changes[:INVISIBLE])


@pytest.mark.parametrize(
    ("translate", "share"),
    [
        (lambda text: re.sub(r"\d", "", text), {"numbers of the test set": 0, "emoji": 1, "names": 1}),
        (str.lower, {"numbers": 1, "names": 0, "URLs": 1, "e-mail addresses": 1}),
        (lambda text: text.encode("latin-1", "ignore").decode("latin-1"), {"emoji": 0, "placeholders": 1}),
        (lambda text: re.sub("[{%<]", "", text), {"placeholders": 0, "numbers": 1}),
        (lambda text: text.replace(".", ","), {"numbers": 1, "numbers of the test set": 1, "URLs": 0}),
    ],
)
def test_strings_that_a_translator_loses_are_missed(translate, share):
    found = copied(measure(translate))
    assert {kind: found[kind] for kind in share} == share


def test_changed_lines_have_sacrebleus_scores_beside_those_of_the_same_lines_unchanged():
    sources = SOURCES[1:]
    change = measure(lambda text: text if text.isupper() else text[1:], sources).changes["all capitals"]
    references, plain = [text.lower() for text in sources], [text[1:].lower() for text in sources]
    assert change.plain_bleu == pytest.approx(BLEU().corpus_score(plain, [references]).score)
    assert change.plain_chrf == pytest.approx(CHRF().corpus_score(plain, [references]).score)
    assert (change.bleu, change.chrf) == pytest.approx((100, 100))


def test_the_same_lines_are_drawn_and_translated_once():
    references, calls = [[text] for text in SOURCES], []
    for _ in range(2):
        robustness(SOURCES, references, ("en", "en"), lambda texts: calls.append(texts) or texts, lines=5)
    few, again = calls
    assert 5 * 20 < len(few) == len(set(few)) < 5 * 30
    assert few == again
    assert {kind for text in few for kind, _ in copied_strings(text)} == set(KINDS)


def test_changes_that_a_language_does_not_know_are_left_out():
    changes = measure(str, ["我们明天见面吧。", "他没有来上班。"] * 3).changes
    assert list(changes) == [
        "zero-width spaces in words",
        "word joiners in words",
        "a byte order mark",
        "a left-to-right mark",
        "<b>...</b> around",
        "no final mark",
        "typing errors",
    ]


def test_lines_without_words_are_copied_each_with_its_own_characters(monkeypatch, tokenizer):
    def copy(model, tokenizer, test_set):
        return scoring.Translations(test_set.sources)

    monkeypatch.setattr(scoring, "translate_test_set", copy)
    lines = ["14:35", "-"]
    test_set = TestSet("lines", ("en", "de"), lines, [[line] for line in lines])
    changed = scoring.measure_robustness(None, tokenizer, test_set, lines=2).changes["a byte order mark"]
    assert (changed.plain_chrf, changed.same) == (100, 0)


def test_the_tag_of_a_source_is_not_changed_and_no_number():
    sources, seen = ["<2de> A dog sleeps.", "<2de_AT>Two cats sleep here."], []
    found = robustness(sources, [["Ein Hund."], ["Katzen."]], ("en", "de"), lambda texts: seen.extend(texts) or texts)
    assert all(re.match(r"<2de> \S|<2de_AT>\S", text) for text in seen)
    assert "numbers of the test set" not in found.strings

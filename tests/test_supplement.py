import hashlib
import re
from collections import Counter
from pathlib import Path

import pytest

from vaswani_transformer.data.copied_strings import copied_strings
from vaswani_transformer.data.supplement import SPLIT_SIZES, supplement, templates, words
from vaswani_transformer.evaluation.pathologies import numbers_agree


SLOT = re.compile(r"\[([A-Za-z_]+)\d?\]")


@pytest.fixture(scope="module")
def pairs() -> list[tuple[str, str]]:
    return [pair for split in SPLIT_SIZES for pair in supplement(split)]


def test_both_sides_of_templates_and_words_have_the_same_slots():
    used = set()
    for english, german in [*templates(), *(pair for pairs in words().values() for pair in pairs)]:
        slots = [set(re.findall(f"{SLOT.pattern}|#+", text)) for text in (english, german)]
        assert slots[0] == slots[1], (english, german)
        used |= {kind.lower() for kind in SLOT.findall(english)}
    assert used == set(words())


def test_templates_and_words_are_distinct_and_have_two_sides():
    for distinct in (templates(), *words().values()):
        assert len(set(distinct)) == len(distinct)
    assert all(english.strip() == english and german.strip() == german != "" for english, german in templates())


def test_splits_have_their_sizes_and_share_no_line_of_either_language():
    for side in (0, 1):
        lines = [{pair[side] for pair in supplement(split)} for split in SPLIT_SIZES]
        assert len(set.union(*lines)) == sum(map(len, lines))
    assert {split: len(set(supplement(split))) for split in SPLIT_SIZES} == SPLIT_SIZES


def test_sentences_without_slots_are_in_train():
    assert {pair for pair in templates() if not SLOT.search(pair[0]) and "#" not in pair[0]} <= {*supplement("train")}


def test_family_names_of_validation_and_test_are_not_in_train():
    names = [set(re.findall(r"\b(?:Ms|Mr|Dr)\. ([A-Z]\w+)", str(supplement(split)))) for split in SPLIT_SIZES]
    assert all(names)
    assert len(set.union(*names)) == sum(map(len, names))


def test_no_sentence_of_the_everyday_test_set_is_in_the_supplement(pairs):
    def words_alone(text: str) -> str:
        return " ".join(re.findall(r"[^\W\d_]+", text.casefold()))

    test_set = Path(__file__).parents[1] / "model_cards" / "benchmarks" / "everyday_de_en.tsv"
    sentences = {words_alone(line.partition("\t")[2]) for line in test_set.read_text(encoding="utf-8").splitlines()}
    assert len(sentences) == 100
    assert not sentences & {words_alone(text) for pair in pairs for text in pair}


def test_no_slot_is_left_and_sentences_end_in_one_period(pairs):
    assert not [pair for pair in pairs if re.search(r"\[|\]|#|\.m\.\.|  ", " | ".join(pair))]


def test_addresses_placeholders_and_emoji_are_copied(pairs):
    def copied(text: str) -> Counter[str]:
        return Counter(match[0] for kind, match in copied_strings(text) if kind != "numbers")

    assert not [pair for pair in pairs if copied(pair[0]) != copied(pair[1])]
    assert {kind for english, _ in pairs for kind, _ in copied_strings(english)} > {"URLs", "placeholders", "emoji"}


def test_prices_dates_and_times_agree_in_the_form_of_each_language(pairs):
    assert not [pair for pair in pairs if not numbers_agree(*pair, ("en", "de"))]
    of_english = re.compile(r"\d,\d{3}\.\d|[€$£]\d|\d [ap]\.m\.")
    in_english, in_german = (sum(bool(of_english.search(text)) for text in side) for side in zip(*pairs, strict=True))
    assert (in_english > 1000, in_german) == (True, 0)


def test_the_supplement_is_that_of_all_published_results():
    digest = hashlib.sha256(repr([supplement(split) for split in SPLIT_SIZES]).encode()).hexdigest()
    assert digest == "00385ce82412488443ec9a1915e8e5f0e1bacc420b8c3e08f2da21bf8190890b"

"""Each change by example, over many random states; and what a changed corpus has in common with the unchanged one."""

import random
import re

import pytest
from datasets import Dataset

from vaswani_transformer.data.augmentation import apply_change, augment_corpus, change_pair, find_names
from vaswani_transformer.data.phrasebook import phrasebook


NAMES = ["Boston", "Titanic", "Tom"]


def changes(kind, source, target, times=200):
    """The results of one kind of change in many random states."""
    return [apply_change(kind, source, target, NAMES, random.Random(seed)) for seed in range(times)]


def corpus_of(pairs):
    return Dataset.from_list([{"translation": {"en": english, "de": german}} for english, german in pairs])


def test_a_name_is_capitalised_inside_both_sides_and_nowhere_in_lower_case():
    pairs = [
        ("I saw Tom in Boston, or Mary.", "Ich sah Tom in Boston, oder Maria."),
        ("That is a good Film, Anna.", "Das ist ein guter Film, Anna."),
        ("I like any film.", "Ich mag jeden Film."),
        ("Rome calls NATO.", "Rome ruft NATO."),
        ("It is Eve.", ""),
    ]
    assert find_names(corpus_of(pairs)) == ["Anna", "Boston", "Tom"]


@pytest.mark.parametrize(
    ("kind", "pair", "expected"),
    [
        ("capitals", ("Use %s in <b>Köln</b>.", "%s, Straße."), ("USE %s IN <b>KÖLN</b>.", "%s, STRASSE.")),
        ("capitals", ("Please call.", "请回电。"), ("PLEASE CALL.", "请回电。")),
        ("capitals", ("<b>请 Tomoki 回电。</b> www.a.org", "<b>Call Tomoki.</b> www.a.org"), None),
        ("title case", ("I don't know {name}.", "J'ignore {name}."), ("I Don't Know {name}.", "J'ignore {name}.")),
        ("title case", ("a", "ṣé ẹ̀kọ́ Le\u0301ko\u0301."), ("A", "Ṣé Ẹ̀kọ́ Le\u0301ko\u0301.")),
        ("final mark", ("Who is it?", "Qui est-ce ?"), ("Who is it", "Qui est-ce")),
        ("final mark", ("很好。", "Very good!"), ("很好", "Very good")),
        ("final mark", ("At 5 p.m.", "Um 17 Uhr."), None),
        ("quotes", ('"It\'s" it.', "C'est ça."), ("“It’s” it.", "C'est ça.")),
        ("quotes", ("“It’s” it.", "C’est ça."), ('"It\'s" it.', "C’est ça.")),
        ("typing errors", ("The cat sat.", "Die Katze saß."), None),
        ("typing errors", ("ありがとうございます。", "Thank you."), None),
        ("copies", ("It is 5, 12 or the 21st.", "Es ist der 5., 12. oder 21."), None),
        ("copies", ("Tom took Tom's car on the Titanic.", "Tom nahm Toms Auto auf die Titanic."), None),
        ("copies", ("Anna has 20 cars.", "Anna hat zwanzig Autos."), None),
    ],
)
def test_what_needs_no_chance(kind, pair, expected):
    assert set(changes(kind, *pair, times=20)) == {expected or pair}


@pytest.mark.parametrize("is_reversed", [False, True])
def test_numbers_change_alike_and_keep_shape_and_plural(is_reversed):
    """The last digit, 1 before it, a single digit before a separator, and hours stay."""
    pair = "In 1984: 1,249.99, at 14:30, 25 of 112.", "1984: 1.249,99, um 14.30 Uhr, 25 von 112."
    pair = pair[::-1] if is_reversed else pair
    changed = changes("copies", *pair)
    kept = re.compile(r"[2-9]{2}[^1]4 1 [2-9]{3} [2-9]9 14 [2-5]0 [^1]5 [2-9]12")
    for other in changed:
        assert [re.sub(r"\d", "0", text) for text in other] == [re.sub(r"\d", "0", text) for text in pair]
        source, target = (" ".join(re.findall(r"\d+", text)) for text in other)
        assert source == target
        assert kept.fullmatch(source), source
    assert len(set(changed)) > 190


def test_a_time_stays_one_beside_an_equal_number():
    for source, _ in changes("copies", "It is 9:05, 9.05.", "Es ist 9:05, 9.05."):
        assert re.fullmatch(r"It is 9:([2-5]5), 9\.\1\.", source)


def test_addresses_placeholders_and_emoji_become_others_of_their_kind():
    source, target = "Ask a@b.org, %s or www.a.org \U0001f600", "Fragen: a@b.org, %s, www.a.org \U0001f600"
    for other, translation in changes("copies", source, target):
        address, placeholder, link, emoji = re.fullmatch(r"Ask (\S+@\S+), (\S+) or (\S+) (\S+)", other).groups()
        assert translation == f"Fragen: {address}, {placeholder}, {link} {emoji}"
        assert address != "a@b.org"
        assert re.match(r"%|\{", placeholder)
        assert link != "www.a.org"


def test_names_become_others_and_tom_stays_in_other_words():
    changed = changes("copies", "Tom likes Boston.", "Boston gefällt Tom.")
    pairs = [re.fullmatch(r"(\S+) likes (\S+)\.", source).groups() for source, _ in changed]
    assert [target for _, target in changed] == [f"{place} gefällt {name}." for name, place in pairs]
    names = {name for name, _ in pairs}
    assert {"Tom", "Boston", "Titanic", "Bostanic"} < names  # from the corpus, and made of two of these
    assert any("@" in name for name in names)
    assert any("{" in name for name in names)


def test_a_made_string_is_added_to_both_sides_alike():
    changed = changes("frame", "Yes.", "Ja.")
    assert all(source.replace("Yes.", "Ja.") == target and len(source) > 4 for source, target in changed)
    added = " ".join(source for source, _ in changed)
    for part in ("<b>Yes.</b>", "@", "www.", "%s", "{", ": Yes.", "Yes. ("):
        assert part in added


def test_typing_errors_are_in_few_words_of_the_source_that_are_not_names():
    source, target = "Angela and eleven others waited yesterday for nothing at all.", "Angela und elf andere warteten."
    for other, translation in changes("typing errors", source, target):
        assert translation == target
        pairs = list(zip(source.split(), other.split(), strict=True))
        wrong = [(word, changed) for word, changed in pairs if word != changed]
        assert len(wrong) <= 1
        assert pairs[0] == ("Angela", "Angela")
        assert all(abs(len(word) - len(changed)) <= 1 and word[0] == changed[0] for word, changed in wrong)


def test_one_or_two_changes_are_made_and_a_fourth_are_capitals():
    pair = "<2de> It's a dog.", "Es ist ein Hund."
    changed = [change_pair(*pair, NAMES, random.Random(seed)) for seed in range(1000)]
    assert pair not in changed
    assert all(source.startswith("<2de> ") for source, _ in changed), "the tag stays"
    assert 0.3 < sum("HUND" in target for _, target in changed) / 1000 < 0.5  # of pairs with 1.5 changes
    assert change_pair(" ", "Ja.", NAMES, random.Random(0)) == (" ", "Ja.")


def test_a_share_of_a_corpus_is_added_whatever_the_number_of_processes():
    corpus = corpus_of(phrasebook("train")[:300])
    augmented = augment_corpus(corpus, ("en", "de"), 0.1, NAMES)
    assert augmented.to_list()[:300] == corpus.to_list()
    assert len(augmented) == 330
    assert augment_corpus(corpus, ("en", "de"), 0.1, NAMES, num_proc=2).to_list() == augmented.to_list()
    assert augment_corpus(corpus, ("en", "de"), 0, NAMES) is corpus


def test_another_direction_adds_the_same_pairs():
    blank = corpus_of([(f"line {number}", "") for number in range(50)])  # not changed
    one, other = (augment_corpus(blank, pair, 0.2, NAMES).to_list() for pair in (("en", "de"), ("de", "en")))
    assert one == other
    assert len({row["translation"]["en"] for row in one[50:]}) == 10

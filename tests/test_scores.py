"""Scores of groups of sentences, and of two systems. Their values are compared with sacreBLEU's in test_score.py."""

import unicodedata
from random import Random

import pytest
from sacrebleu.metrics import BLEU

from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.evaluation.scores import (
    bleu_by_source_length,
    paired_bootstrap,
    score_translations,
    sentence_chrf,
)


def test_groups_of_lengths_are_scored_apart():
    sources = [" ".join(["word"] * length) for length in (0, 1, 10, 11, 20, 60, 61, 200)]
    hypotheses = [f"der kleine Hund sieht heute Satz {place}" for place in range(8)]
    references = [[f"der kleine Hund sieht {word} Satz {place}"] for place, word in enumerate(["heute", "nie"] * 4)]
    groups = bleu_by_source_length(sources, hypotheses, references)
    places = {(1, 10): [0, 1, 2], (11, 20): [3, 4], (51, 60): [5], (61, None): [6, 7]}
    assert [(group.shortest, group.longest) for group in groups] == list(places)
    for group, chosen in zip(groups, places.values(), strict=True):
        texts = [hypotheses[place] for place in chosen]
        expected = score_translations(texts, [references[place] for place in chosen], ("en", "de"))
        assert group.sentences == len(chosen)
        assert group.sacrebleu == pytest.approx(expected.bleu.score)
    assert len({group.sacrebleu for group in groups}) > 2


def test_sources_without_spaces_have_a_word_for_each_character():
    (group,) = bleu_by_source_length(["\u6211\u6709iPhone\u3002 " * 4], ["a"], [["a"]])
    assert (group.shortest, group.longest) == (11, 20)


@pytest.mark.parametrize(
    ("language", "tokenizer", "words", "other"),
    [
        ("zh-Hans", "zh", "我们今天去北京看朋友。", "我们明天去北京看朋友。"),
        ("cmn", "zh", "我们今天去北京看朋友。", "我们明天去北京看朋友。"),
        ("jpn", "char", "今日は友達に会いに行きます。", "明日は友達に会いに行きます。"),
        ("deu_Latn", "13a", "Wir gehen heute nach Berlin.", "Wir gehen morgen nach Berlin."),
    ],
)
def test_text_without_spaces_has_words(language, tokenizer, words, other):
    expected = BLEU(tokenize=tokenizer).corpus_score([words], [[other]]).score
    scores = score_translations([words], [[other]], ("en", language))
    (group,) = bleu_by_source_length(["a"], [words], [[other]], language)
    (compared, _) = paired_bootstrap([other], [words], [[other]], 5, language).values()
    assert scores.bleu.score == group.sacrebleu == compared.system.score == pytest.approx(expected)
    assert expected > 20
    assert f"tok:{tokenizer}" in scores.bleu.signature


def test_text_is_compared_in_nfc():
    lines = [
        "Ọjọ́ náà dára gan-an ni.",
        "Ẹ káàárọ̀, ṣé dáadáa ni ẹ jí?",
        "L'été dernier, ils étaient à Orléans.",
        "Wir hören ihn täglich.",
    ]
    references = [[unicodedata.normalize("NFD", text)] for text in lines]
    assert all(line != text for line, (text,) in zip(lines, references, strict=True))
    scores = score_translations(lines, references, ("en", "yo"), lines)
    compared = paired_bootstrap(lines, lines, references, 5, "yo")
    groups = [group.sacrebleu for group in scores.by_source_length]
    values = [scores.bleu.score, scores.paper_bleu.score, scores.chrf.score, *sentence_chrf(lines, references), *groups]
    assert [*values, *(each.system.score for each in compared.values())] == pytest.approx([100] * (len(values) + 2))
    for each in (scores.bleu, scores.paper_bleu, scores.chrf, *compared.values()):
        assert "|norm:NFC|" in each.signature


def test_translations_that_copy_every_source_are_a_pathology():
    sources, references = zip(*((english, [german]) for english, german in phrasebook("test")[:20]), strict=True)
    scores = score_translations(sources, references, ("en", "de"), sources)
    assert scores.pathologies.shares["copied"] == 100


def test_two_sided_p_values_under_a_true_null_are_as_small_as_they_say():
    """A tenth of the pairs of equal systems differs with p < 0.1."""
    random = Random(1)
    references = [german for _, german in phrasebook("test")[:20]]
    small = 0
    for _ in range(60):
        systems: tuple[list[str], list[str]] = ([], [])
        for text in references:
            words = text.split()
            for system in systems:
                system.append(" ".join(word for word in words if random.random() < 0.8))
        found = paired_bootstrap(*systems, [[text] for text in references], 100)["BLEU"]
        small += found.two_sided_p_value < 0.1
    assert 1 <= small <= 10  # about 6


def test_a_true_difference_is_significant_and_none_is_not():
    whole = [german for _, german in phrasebook("test")[:38]]
    lines, references = [" ".join(text.split(" ")[:-1]) for text in whole], [[text] for text in whole]
    for sides in ((lines, whole), (whole, lines)):
        assert all(found.two_sided_p_value < 0.01 for found in paired_bootstrap(*sides, references, 200).values())
    for found in paired_bootstrap(lines, lines, references, 20).values():
        assert found.two_sided_p_value == 1


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_sentences_show_little(count):
    """p-values equal an exact test's: all 2^n exchanges between two equal systems are equally likely."""
    references = [[german] for _, german in phrasebook("test")[:count]]
    whole = [text for (text,) in references]
    for found in paired_bootstrap([""] * count, whole, references, 200).values():
        assert found.two_sided_p_value == 0.5 ** (count - 1)

import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st

from vaswani_transformer import VaswaniTokenizer
from vaswani_transformer.data.cleaning import clean_corpus, encode_corpus
from vaswani_transformer.data.phrasebook import phrasebook


BLANKS = ["", " ", "\t\n", "\u3000\u2028"]
PAIRS = [
    ("the man", "der Mann"),
    *((blank, "der Hund") for blank in BLANKS),
    *(("the dog", blank) for blank in BLANKS),
    ("  a cat \n", "\u3000eine  Katze"),
    ("</s>", "<pad>"),
]


def corpus_of(pairs: list[tuple[str | None, str | None]]) -> Dataset:
    return Dataset.from_list([{"translation": {"en": english, "de": german}} for english, german in pairs])


def encoded_of(lengths: list[tuple[int, int]]) -> Dataset:
    source, target = zip(*lengths, strict=True)
    return Dataset.from_dict({"row": range(len(lengths)), "source_length": source, "target_length": target})


def fate(source: int, target: int, max_length: int, max_ratio: float) -> str:
    if source == 1 or target == 1:
        return "empty"
    if source > max_length or target > max_length:
        return "too_long"
    if source > target * max_ratio or target > source * max_ratio:
        return "ratio"
    return "kept"


@settings(deadline=None, database=None)
@given(
    st.lists(st.tuples(st.integers(1, 15), st.integers(1, 15)), max_size=40),
    st.integers(2, 15),
    st.sampled_from([1.0, 1.5, 2.0, 5.0]),
)
def test_pairs_are_dropped_and_counted_by_the_first_reason(lengths, max_length, max_ratio):
    lengths = [*lengths, (2, 2)]  # one that is always kept
    fates = [fate(source, target, max_length, max_ratio) for source, target in lengths]
    cleaned, totals = clean_corpus(encoded_of(lengths), max_length, max_ratio)
    assert totals == {reason: fates.count(reason) for reason in ("empty", "too_long", "ratio", "kept")}
    assert cleaned["row"][:] == [row for row, reason in enumerate(fates) if reason == "kept"]
    assert list(zip(cleaned["source_length"], cleaned["target_length"], strict=True)) == [
        pair for pair, reason in zip(lengths, fates, strict=True) if reason == "kept"
    ]


def test_what_is_kept_can_be_cleaned_again():
    lengths = [(3, 4), (1, 9), (9, 3), (5, 5), (2, 9)]
    once, _ = clean_corpus(encoded_of(lengths), max_length=9, max_ratio=3.0)
    twice, totals = clean_corpus(once, max_length=5, max_ratio=3.0)
    assert twice["row"][:] == [0, 3]
    assert totals == {"empty": 0, "too_long": 1, "ratio": 0, "kept": 2}


def test_nothing_left_is_refused_with_the_reasons():
    counts = {"empty": 1, "too_long": 1, "ratio": 2, "kept": 0}
    with pytest.raises(ValueError, match=f"^cleaning left no sentence pair: {counts}"):
        clean_corpus(encoded_of([(300, 300), (1, 5), (2, 200), (2, 90)]))


@pytest.mark.parametrize(("source", "target"), [("en", "de"), ("de", "en")])
def test_a_corpus_is_encoded_sentence_by_sentence_without_surrounding_space(tokenizer, source, target):
    encoded = encode_corpus(corpus_of(PAIRS), tokenizer, source, target)
    assert set(encoded.column_names) == {"input_ids", "labels", "source_length", "target_length"}
    assert len(encoded) == len(PAIRS)
    for row, (english, german) in zip(encoded, PAIRS, strict=True):
        texts = (english, german) if source == "en" else (german, english)
        assert row["input_ids"] == tokenizer(texts[0].strip()).input_ids
        assert row["labels"] == tokenizer(text_target=texts[1].strip()).input_ids
        assert row["source_length"] == len(row["input_ids"])
        assert row["target_length"] == len(row["labels"])


def test_sentences_of_white_space_are_empty(tokenizer):
    cleaned, totals = clean_corpus(encode_corpus(corpus_of(PAIRS), tokenizer, "en", "de"))
    filled = [row for row, pair in enumerate(PAIRS) if all(text.strip() for text in pair)]
    assert totals == {"empty": 2 * len(BLANKS), "too_long": 0, "ratio": 0, "kept": len(filled)}
    assert cleaned["input_ids"][:] == [tokenizer(PAIRS[row][0].strip()).input_ids for row in filled]


def test_a_sentence_that_is_missing_is_empty(tokenizer):
    pairs = [("the man", "der Mann"), (None, "der Hund"), ("the dog", None), (None, None)]
    encoded = encode_corpus(corpus_of(pairs), tokenizer, "en", "de")
    assert [length == 1 for length in encoded["source_length"]] == [english is None for english, _ in pairs]
    assert [length == 1 for length in encoded["target_length"]] == [german is None for _, german in pairs]


def test_another_tokenizer_is_not_served_the_cache_of_the_first(tokenizer):
    corpus = corpus_of(phrasebook("test")[:25])
    other = VaswaniTokenizer.train((text for pair in phrasebook("test") for text in pair), 300, show_progress=False)
    for one in (tokenizer, other):
        assert encode_corpus(corpus, one, "en", "de")["input_ids"][:] == [
            one(english).input_ids for english, _ in phrasebook("test")[:25]
        ]

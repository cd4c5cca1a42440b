import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st

from vaswani_transformer import VaswaniTokenizer
from vaswani_transformer.data.cleaning import clean_corpus, encode_corpus
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.data.prepared_directory import TrainingData


BLANKS = ["", " ", "\t\n", "\u3000\u2028"]
PAIRS = [
    ("the man", "der Mann"),
    *((blank, "der Hund") for blank in BLANKS),
    *(("the dog", blank) for blank in BLANKS),
    ("  a cat \n", "\u3000eine  Katze"),
    ("</s>", "<pad>"),
]


def corpus_of(pairs: list[tuple[str, str]]) -> Dataset:
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


@pytest.mark.parametrize(
    ("augmented", "tags", "words"),
    [
        (0, None, ""),
        (100, None, "added by augmentation: 100; "),
        (0, {"de": 3}, "550 in both directions; "),
        (100, {"de": 3}, "500 in both directions; added by augmentation: 100; "),
    ],
)
def test_augmented_pairs_are_told_apart_from_dropped_ones(augmented, tags, words):
    counts = {"empty": 1, "too_long": 0, "ratio": 2, "kept": 1097} | ({"augmented": augmented} if augmented else {})
    data = TrainingData(None, None, {"train": counts}, {}, {}, tags)
    expected = f"1,097 sentence pairs ({words}dropped: empty 1, too_long 0, ratio 2)"
    assert data.describe_cleaning("train") == expected


def test_nothing_left_is_refused_with_the_reasons():
    counts = {"empty": 1, "too_long": 1, "ratio": 2, "kept": 0}
    with pytest.raises(ValueError, match=f"^cleaning left no sentence pair: {counts}"):
        clean_corpus(encoded_of([(300, 300), (1, 5), (2, 200), (2, 90)]), 256, 5.0)


@pytest.mark.parametrize(("source", "target"), [("en", "de"), ("de", "en")])
def test_a_corpus_is_encoded_sentence_by_sentence_without_surrounding_space(tokenizer, source, target):
    encoded = encode_corpus(corpus_of(PAIRS), tokenizer, source, target)
    assert set(encoded.column_names) == {"input_ids", "labels", "source_length", "target_length"}
    assert len(encoded) == len(PAIRS)
    for row, (english, german) in zip(encoded, PAIRS, strict=True):
        texts = {"en": english.strip(), "de": german.strip()}
        assert row["input_ids"] == tokenizer(texts[source]).input_ids
        assert row["labels"] == tokenizer(text_target=texts[target]).input_ids
        assert row["source_length"] == len(row["input_ids"])
        assert row["target_length"] == len(row["labels"])


def test_another_tokenizer_is_not_served_the_cache_of_the_first(tokenizer):
    corpus = corpus_of(phrasebook("test")[:25])
    other = VaswaniTokenizer.train((text for pair in phrasebook("test") for text in pair), 300, show_progress=False)
    for one in (tokenizer, other):
        assert encode_corpus(corpus, one, "en", "de")["input_ids"][:] == [
            one(english).input_ids for english, _ in phrasebook("test")[:25]
        ]

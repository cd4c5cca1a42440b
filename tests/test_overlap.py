"""How many held-out sentences stand in the training corpus, whatever their case, white space and form of Unicode."""

import pytest
from datasets import Dataset

from vaswani_transformer.data.overlap import count_in_train, describe_in_train


def corpus(*pairs: tuple[str, str]) -> Dataset:
    return Dataset.from_list([{"translation": {"en": english, "de": german}} for english, german in pairs])


TRAIN = corpus(("A dog.", "Ein Hund."), ("She grins.", "Sie grüßt."), ("", ""), ("One", "Eins"))


@pytest.mark.parametrize(
    ("pair", "pairs", "sources", "targets"),
    [
        (("A dog.", "Ein Hund."), 1, 1, 1),
        (("  a\u00a0 DOG. ", "EIN hund."), 1, 1, 1),
        (("she grins.", "Sie gru\u0308sst."), 1, 1, 1),
        (("A dog.", "Sie grüßt."), 0, 1, 1),
        (("A dog.", "Der Hund."), 0, 1, 0),
        (("A dog", "Ein Hund."), 0, 0, 1),
    ],
)
def test_a_pair_or_a_side_of_it_is_found_again(pair, pairs, sources, targets):
    counts = count_in_train(TRAIN, {"test": corpus(pair, pair, ("x", "y"), ("", " "))}, ("en", "de"))
    expected = {"sentences": 3, "pairs": 2 * pairs, "sources": 2 * sources, "targets": 2 * targets}
    assert counts == {"test": expected}


def test_each_corpus_is_counted_by_itself_and_in_words():
    held_out = {"validation": corpus(("One", "Zwei")), "test": corpus(("One", "Eins"), ("Two", "Zwei"))}
    counts = count_in_train(TRAIN, held_out, ("de", "en"))
    assert describe_in_train(counts) == (
        "0 pairs, 0 sources, 1 targets of the validation set's 1; 1 pairs, 1 sources, 1 targets of the test set's 2"
    )
    assert describe_in_train({}) == ""

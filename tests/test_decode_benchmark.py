"""What `recipes/benchmarks/decode.py` compares is the same: the sentences and their ends."""

import pytest
from helpers import recipe_module


@pytest.fixture(scope="module")
def decode():
    """The benchmark as a module."""
    pytest.importorskip("ctranslate2")
    return recipe_module("benchmarks/decode.py")


def test_every_sentence_is_in_one_batch_and_sorted_ones_are_of_similar_length(decode):
    sources = [[1] * length for length in (5, 2, 9, 2, 7, 1, 3)]
    for is_sorted in (False, True):
        batches = decode.batches(sources, 3, is_sorted)
        assert sorted(index for batch in batches for index in batch) == list(range(7))
        assert max(map(len, batches)) == 3
    assert [[len(sources[index]) for index in batch] for batch in batches] == [[9, 7, 5], [3, 2, 2], [1]]
    assert decode.batches(sources, 3, False)[0] == [0, 1, 2]


def test_output_ends_before_its_end(decode):
    assert decode.until_end([5, 6, 1, 0], 1) == [5, 6]
    assert decode.until_end([5, 6], 1) == [5, 6]

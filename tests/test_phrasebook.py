"""The embedded corpus."""

import hashlib
import re

from vaswani_transformer.data.phrasebook import SPLIT_SIZES, phrasebook


def test_splits_have_their_sizes_and_share_no_sentence_of_either_language():
    for side in (0, 1):
        sentences = {split: [pair[side] for pair in phrasebook(split)] for split in SPLIT_SIZES}
        assert {split: len(each) for split, each in sentences.items()} == SPLIT_SIZES
        distinct = [set(each) for each in sentences.values()]
        assert len(set.union(*distinct)) == sum(map(len, distinct))


def test_the_corpus_is_that_of_all_published_results():
    digest = hashlib.sha256(repr([phrasebook(split) for split in SPLIT_SIZES]).encode()).hexdigest()
    assert digest == "e9a149648415bd236d984d6b8f0562f7691a85f82a19b7dd50b4146a9adde756"


def test_a_held_out_combination_is_in_its_split_alone():
    sentences = [(split, english) for split in SPLIT_SIZES for english, _ in phrasebook(split)]
    assert {split for split, english in sentences if re.search(r"\bsmall .*\bdogs?\b", english)} == {"test"}

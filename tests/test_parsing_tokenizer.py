"""The vocabulary of a parser: text is encoded as without labels, and targets into labels."""

import pytest
from transformers import AutoTokenizer

from vaswani_transformer import VaswaniTokenizer
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.parsing.tokenizer import VaswaniParsingTokenizer


PAD, EOS, UNK = range(3)
CORPUS = [text for pair in phrasebook("validation") for text in pair]
LABELS = ["(S", ")S", "XX"]


@pytest.fixture(scope="module")
def trained() -> VaswaniParsingTokenizer:
    return VaswaniParsingTokenizer.train_with_labels(CORPUS, LABELS, 400)


@pytest.mark.parametrize("is_saved", [False, True])
def test_targets_are_labels_padded_and_cut_like_text(trained, is_saved, tmp_path):
    tokenizer = trained
    if is_saved:
        trained.save_pretrained(tmp_path)
        tokenizer = AutoTokenizer.from_pretrained(tmp_path, trust_remote_code=False)
    texts = ["(S XX XX )S", "XX <pad> </s> the"]
    encoded = tokenizer(["a", "b"], text_target=texts, padding=True, return_tensors="pt")
    rows = [[3, 5, 5, 4, EOS], [5, UNK, UNK, UNK, EOS]]  # labels follow the special tokens
    assert encoded["labels"].tolist() == rows
    assert tokenizer(text_target=texts[0], max_length=3, truncation=True).input_ids == [3, 5, EOS]
    padded = tokenizer(text_target=["XX", "XX XX"], padding=True)
    assert padded == {"input_ids": [[5, EOS, PAD], [5, 5, EOS]], "attention_mask": [[1, 1, 0], [1, 1, 1]]}


def test_text_is_encoded_as_without_labels(trained):
    plain = VaswaniTokenizer.train(CORPUS, 400 - len(LABELS), show_progress=False)
    assert len(trained) == 400
    for text in [*CORPUS[:50], "(S XX )S", "<pad> </s>"]:
        shifted = [number if number < 3 else number + len(LABELS) for number in plain(text).input_ids]
        assert trained(text).input_ids == shifted
        assert trained.decode(shifted, skip_special_tokens=True) == text


def test_a_corpus_too_small_for_the_vocabulary_names_the_size_with_labels():
    with pytest.raises(ValueError, match="entries, not 9000") as caught:
        VaswaniParsingTokenizer.train_with_labels(CORPUS[:9], LABELS, 9000)
    size = int(str(caught.value).split("supports only ")[1].split()[0])
    assert len(VaswaniParsingTokenizer.train_with_labels(CORPUS[:9], LABELS, size)) == size

"""The corpora of a run, with the tokenizer that it trains, has trained, or is given."""

import pytest

from vaswani_transformer import VaswaniTokenizer
from vaswani_transformer.data import PreparationArguments, load_corpora, load_parallel_corpus


@pytest.fixture
def args() -> PreparationArguments:
    return PreparationArguments(train=["phrasebook"], validation=["phrasebook"], vocab_size=400, tokenizer_sample=500)


def test_a_tokenizer_is_trained_once_and_then_found(args, tmp_path):
    first = load_corpora(args, tmp_path, train_tokenizer=True)
    assert len(first.tokenizer) == args.vocab_size
    again = load_corpora(args, tmp_path, train_tokenizer=False)
    assert again.tokenizer.get_vocab() == first.tokenizer.get_vocab()
    assert again.train[:5] == first.train[:5]

    corpus = load_parallel_corpus(["phrasebook"], "en", "de", "train")
    assert first.cleaning["kept"] == len(first.train) == len(corpus)
    assert list(first.text) == list(first.encoded) == ["validation"]
    row, pair = first.encoded["validation"][0], first.text["validation"][0]["translation"]
    assert first.tokenizer.decode(row["input_ids"], skip_special_tokens=True) == pair["en"]
    assert first.tokenizer.decode(row["labels"], skip_special_tokens=True) == pair["de"]
    assert (row["source_length"], row["target_length"]) == (len(row["input_ids"]), len(row["labels"]))


def test_a_given_tokenizer_is_left_as_it_is(args, tokenizer: VaswaniTokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path / "given")
    args.tokenizer = str(tmp_path / "given")
    data = load_corpora(args, tmp_path / "run", train_tokenizer=True)
    assert data.tokenizer.get_vocab() == tokenizer.get_vocab()
    assert not (tmp_path / "run").exists()


def test_what_is_too_long_is_not_trained_on(args, tokenizer: VaswaniTokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    args.tokenizer, args.max_length = str(tmp_path), 8
    data = load_corpora(args, tmp_path, train_tokenizer=False)
    assert 0 < max(data.train["source_length"]) <= 8 < max(data.encoded["validation"]["source_length"])
    assert data.cleaning["too_long"] > 0


def test_streamed_corpora_have_to_be_prepared(args, tmp_path):
    args.streaming = True
    with pytest.raises(ValueError, match=r"^streaming: .* --prepared$"):
        load_corpora(args, tmp_path, train_tokenizer=True)

"""Tokens as a reader expects them: their texts make up the sentence, and words begin where they should."""

import copy

import pytest
from foreign_models import PAIRS
from tokenizers import normalizers

from vaswani_transformer import VaswaniTokenizer
from vaswani_transformer.visualization.tokens import join_words, shown_tokens, word_starts


def words(tokenizer, text: str) -> list[str]:
    texts, continues = shown_tokens(tokenizer, tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids))
    return join_words(texts, word_starts(continues))


@pytest.mark.parametrize("model", ["bpe", "wordpiece"])
def test_words_are_runs_of_letters_digits_or_other_characters(model):
    corpus = [sentence for pair in PAIRS for sentence in pair]
    tokenizer = VaswaniTokenizer.train([*corpus, "<'3.14 / $ >"], 300 if model == "bpe" else 200, model, False)
    assert " ".join(words(tokenizer, "The old man's 314 bücher.")) == "The old man ' s 314 bücher . </s>"
    assert words(tokenizer, "/ $a$") == ["/", "$", "a", "$", "</s>"]


def test_a_character_of_several_tokens_is_shown_once(tokenizer):
    text = "thé 🐈 ฉัน 日本 \u05e9\u05dc"
    tokens = tokenizer.convert_ids_to_tokens(tokenizer(text).input_ids)
    texts, _ = shown_tokens(tokenizer, tokens)
    assert len(texts) == len(tokens)
    assert "".join(texts) == text.replace(" ", "") + "</s>"
    # Chinese and Thai write no spaces between words: each token with a letter begins one.
    assert words(tokenizer, text) == ["thé", "🐈", "ฉั", "น", "日", "本", "\u05e9\u05dc", "</s>"]


def test_white_space_and_control_characters(tokenizer):
    tokenizer = copy.deepcopy(tokenizer)  # as tokenizers of earlier versions, and of others, which keep both
    tokenizer.backend_tokenizer.normalizer = normalizers.Prepend(" ")
    assert words(tokenizer, "a  b\n") == ["a", "", "b", "", "</s>"]
    shown = "".join(words(tokenizer, "a\x07b \u202eabc"))
    assert shown == r"a\x07b\u202eabc</s>"


def test_only_the_last_token_may_have_half_a_character(tokenizer):
    texts, _ = shown_tokens(tokenizer, tokenizer.tokenize("x🐈")[:-1])
    assert "".join(texts) == "x\ufffd"

"""Perplexity against a loop over sentences."""

import math

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForSeq2SeqLM

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani_transformer.data.cleaning import encode_corpus
from vaswani_transformer.data.corpora import load_parallel_corpus
from vaswani_transformer.evaluation.perplexity import perplexity


def test_a_pair_longer_than_a_learned_table_is_named(tokenizer):
    sizes = {"d_model": 16, "d_ff": 32, "num_heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    config = VaswaniConfig(vocab_size=len(tokenizer), **sizes, position_encoding="learned", max_position_embeddings=10)
    rows = [{"translation": {"en": text, "de": "Hund"}} for text in ("dog", "dog " * 20)]
    encoded = encode_corpus(Dataset.from_list(rows), tokenizer, "en", "de")
    with pytest.raises(ValueError, match="pair 2 has 41 tokens, but the model's learned table has 10 positions"):
        perplexity(VaswaniForConditionalGeneration(config), tokenizer, encoded)


@torch.no_grad()
@pytest.mark.parametrize("tokens_per_batch", [1, 60, 10000])
def test_perplexity_is_that_of_a_loop_over_sentences(saved_model, tokenizer, tokens_per_batch):
    model = AutoModelForSeq2SeqLM.from_pretrained(saved_model).eval()
    corpus = load_parallel_corpus(["phrasebook"], "en", "de", "validation").select(range(15))
    nats, tokens = 0.0, 0
    for row in corpus["translation"]:
        source = tokenizer(row["en"], return_tensors="pt").input_ids
        target = tokenizer(row["de"]).input_ids
        logits = model(source, decoder_input_ids=torch.tensor([[0, *target[:-1]]])).logits[0].double()
        nats -= sum(float(logits[i].log_softmax(-1)[token]) for i, token in enumerate(target))
        tokens += len(target)
    encoded = encode_corpus(corpus, tokenizer, "en", "de")
    result = perplexity(model, tokenizer, encoded, tokens_per_batch)
    assert result.tokens == tokens
    assert result.nats_per_token == pytest.approx(nats / tokens, rel=1e-6)
    assert result.perplexity == pytest.approx(math.exp(nats / tokens), rel=1e-5)

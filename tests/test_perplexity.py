"""Perplexity against a loop over sentences."""

import math

import pytest
import torch
from transformers import AutoModelForSeq2SeqLM

from vaswani_transformer.data.cleaning import encode_corpus
from vaswani_transformer.data.corpora import load_parallel_corpus
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.evaluation.perplexity import perplexity
from vaswani_transformer.evaluation.test_sets import TestSet
from vaswani_transformer.runs.scoring import reference_perplexity


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


def test_perplexity_of_references_takes_batches_of_the_size_that_is_asked_for(saved_model, tokenizer):
    model, sizes = AutoModelForSeq2SeqLM.from_pretrained(saved_model), []
    model.register_forward_pre_hook(lambda _, args, inputs: sizes.append(inputs["input_ids"].numel()), with_kwargs=True)
    sources, references = zip(*((english, [german]) for english, german in phrasebook("test")[:20]), strict=True)
    reference_perplexity(model, tokenizer, TestSet("test", ("en", "de"), [*sources], [*references]), 100)
    assert len(sizes) > 2
    assert max(sizes) <= 100

"""Both step decoders give the logits of the model."""

import pytest
import torch
from models import POSITION_ENCODINGS, SOURCES, as_batch, distinct
from transformers import GenerationConfig
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.modeling_outputs import BaseModelOutput

from vaswani_transformer import VaswaniForConditionalGeneration
from vaswani_transformer.model import step_decoder_vaswani
from vaswani_transformer.model.keywords_vaswani import CACHE
from vaswani_transformer.model.step_decoder_vaswani import ForwardDecoder, IncrementalDecoder, StepDecoder


def test_prefix_is_kept_and_searched_on_from(talkative_model):
    batch, prefix = as_batch(SOURCES), torch.tensor([[0, 9, 10 + i] for i in range(len(SOURCES))])
    output = talkative_model.generate(batch, decoder_input_ids=prefix)
    assert torch.equal(output[:, :3], prefix)
    assert torch.equal(output, talkative_model.generate(batch, decoder_input_ids=prefix, use_cache=False))
    # A prefix padded on the left is the shorter prefix.
    padded, mask = torch.tensor([[0, 0, 9, 10]]), torch.tensor([[0, 1, 1, 1]])
    output = talkative_model.generate(batch[:1], decoder_input_ids=padded, decoder_attention_mask=mask)
    assert torch.equal(output[:, 1:], talkative_model.generate(batch[:1], decoder_input_ids=prefix[:1]))


def test_trees_grow_as_they_are_needed(talkative_model, monkeypatch):
    talkative_model.generation_config.max_new_tokens_over_source = 400
    expected = talkative_model.generate(as_batch(SOURCES))
    monkeypatch.setattr(step_decoder_vaswani, "BLOCK", 2)
    sizes = []
    grow = IncrementalDecoder._grow
    monkeypatch.setattr(IncrementalDecoder, "_grow", lambda decoder: (grow(decoder), sizes.append(decoder.nodes)))
    assert torch.equal(talkative_model.generate(as_batch(SOURCES)), expected)
    assert len(sizes) > 1
    assert sizes[-1] < 4 * 400  # most sentences end long before their limit


def test_a_source_of_padding_alone_scores_the_same_with_both_decoders(talkative_model):
    options = {"attention_mask": torch.tensor([[0, 0], [1, 1]]), "return_dict_in_generate": True, "output_scores": True}
    talkative_model.half().float()
    output = talkative_model.generate(torch.tensor([[0, 0], [7, 1]]), **options)
    assert output.sequences_scores.isfinite().all()
    for implementation in ("sdpa", "eager"):
        talkative_model.set_attn_implementation(implementation)
        slow = talkative_model.generate(torch.tensor([[0, 0], [7, 1]]), use_cache=False, **options)
        assert torch.equal(slow.sequences, output.sequences)
        assert torch.allclose(slow.sequences_scores, output.sequences_scores, atol=1e-4)


def test_changed_weights_are_seen_by_the_next_search(talkative_model):
    batch = as_batch(SOURCES)
    before = talkative_model.generate(batch)
    talkative_model.model.decoder.layers[0].feed_forward.fc1.weight.data.mul_(-1)
    after = talkative_model.generate(batch)
    assert not torch.equal(before, after)
    assert torch.equal(after, talkative_model.generate(batch, use_cache=False))


@pytest.mark.parametrize("kind", ["bfloat16", "float64", "autocast"])
def test_other_precisions_find_almost_the_same(talkative_model, kind):
    options = {"return_dict_in_generate": True, "output_scores": True}
    expected = talkative_model.generate(as_batch(SOURCES), **options).sequences_scores
    model = talkative_model if kind == "autocast" else talkative_model.to(getattr(torch, kind))
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == "autocast"):
        scores = model.generate(as_batch(SOURCES), **options).sequences_scores
    assert torch.allclose(scores.float(), expected, rtol=0.1)
    assert not torch.equal(scores.float(), expected)


def decoders(model: VaswaniForConditionalGeneration, source: torch.Tensor, tokens: torch.Tensor) -> list[StepDecoder]:
    """Both decoders of `model` for a beam of 3, behind the prefix `tokens` `[sentences, prefix]`."""
    mask = source.ne(0).long()
    encoded = model.get_encoder()(source, mask).last_hidden_state
    every = {"encoder_outputs": BaseModelOutput(encoded.repeat_interleave(3, 0))}
    every |= {"attention_mask": mask.repeat_interleave(3, 0)}
    given = (encoded, mask, 3, tokens.shape[1], tokens.shape[1] + 60)
    return [
        IncrementalDecoder(model.get_decoder(), model.get_output_embeddings(), *given),
        *(
            ForwardDecoder(model, {**every, **cache}, GenerationConfig(num_beams=3, use_cache=bool(cache)))
            for cache in ({}, {CACHE: EncoderDecoderCache(DynamicCache(), DynamicCache())})
        ),
    ]


@torch.no_grad()
@pytest.mark.parametrize("prefix", [1, 4])
def test_both_decoders_return_the_same_logits_for_any_parents(talkative_model, monkeypatch, prefix):
    monkeypatch.setattr(step_decoder_vaswani, "_LOGITS_ON_CPU", 100)  # several chunks
    source = as_batch(SOURCES)
    first = torch.randint(3, 40, (len(SOURCES), prefix))
    others = decoders(talkative_model, source, first)
    expected, *found = [torch.cat(list(decoder.prefill(first))) for decoder in others]
    assert expected.shape == (len(SOURCES), 40)
    for _ in range(40):
        for logits in found:
            torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)
        tokens, parents = torch.randint(2, 40, (len(SOURCES), 3)), torch.randint(3, (len(SOURCES), 3))
        expected, *found = [torch.cat(list(decoder.step(tokens, parents))) for decoder in others]
        assert expected.shape == (3 * len(SOURCES), 40)


@torch.no_grad()
@pytest.mark.parametrize("encoding", POSITION_ENCODINGS)
def test_both_decoders_know_every_position_encoding(encoding):
    model, source = distinct(position_encoding=encoding, max_position_embeddings=80), as_batch(SOURCES)
    first = torch.randint(3, 50, (len(SOURCES), 4))
    tokens, parents = torch.randint(2, 50, (len(SOURCES), 3)), torch.randint(3, (len(SOURCES), 3))
    expected, *others = [
        [torch.cat(list(decoder.prefill(first))), torch.cat(list(decoder.step(tokens, parents)))]
        for decoder in decoders(model, source, first)
    ]
    for logits in others:
        torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_selected_sentences_go_on_as_they_would_among_all(talkative_model):
    source, first = as_batch(SOURCES), torch.zeros(len(SOURCES), 1, dtype=torch.long)
    whole, *forward = decoders(talkative_model, source, first)
    selected = decoders(talkative_model, source, first)[0]
    order = list(range(len(SOURCES)))
    whole.prefill(first), selected.prefill(first)
    for left in ([0, 1, 2, 3, 4, 6], [0, 6, 2, 4], [0, 4, 2], [4]):
        selected.select([order.index(sentence) for sentence in left])
        order = left
        tokens, parents = torch.randint(2, 40, (len(SOURCES), 3)), torch.randint(3, (len(SOURCES), 3))
        expected = torch.cat(list(whole.step(tokens, parents))).unflatten(0, (-1, 3))[order]
        logits = torch.cat(list(selected.step(tokens[order], parents[order]))).unflatten(0, (-1, 3))
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)
    for decoder in forward:
        decoder.prefill(first)
        assert decoder.sentences_for(1) == len(SOURCES)  # all are needed

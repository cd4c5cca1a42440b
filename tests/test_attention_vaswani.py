"""Attention to r neighbours (section 4), under the mask of a source, and without padding; against loops and masks."""

import pytest
import torch
from models import randomize
from torch import nn
from transformers.cache_utils import DynamicCache, EncoderDecoderCache, StaticCache

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani_transformer.model.attention_vaswani import restricted_attention_forward, source_mask
from vaswani_transformer.model.modeling_vaswani import VaswaniAttention


def attention_by_loops(query, key, value, reach, is_causal, tokens, scaling):
    """Equation 1 for one query after another, over the keys that it may see."""
    past = key.shape[2] - query.shape[2]
    output, is_token = torch.zeros(*query.shape[:3], value.shape[-1]), tokens.tolist()
    for batch, head, place in torch.cartesian_prod(*map(torch.arange, query.shape[:3])).tolist():
        position = past + place
        last = position if is_causal else position + reach
        seen = [
            other
            for other in range(max(position - reach, 0), min(last, key.shape[2] - 1) + 1)
            if is_token[batch][other] or other == position
        ]
        scores = key[batch, head, seen] @ query[batch, head, place] * scaling
        output[batch, head, place] = scores.softmax(0) @ value[batch, head, seen]
    return output.transpose(1, 2)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize(("target", "past"), [(1, 0), (7, 0), (40, 0), (100, 0), (1, 60), (9, 50)])
@pytest.mark.parametrize("neighborhood", [1, 2, 16, 90, 1000])
def test_blocks_give_what_loops_give(is_causal, target, past, neighborhood):
    module = nn.Module()
    module.is_causal = is_causal
    source = past + target
    query, key, value = torch.randn(2, 3, target, 5), torch.randn(2, 3, source, 5), torch.randn(2, 3, source, 7)
    tokens = torch.ones(2, source)
    tokens[0, source - source // 4 :] = 0
    tokens[1, : source // 5] = 0
    for mask in (None, tokens):
        output, weights = restricted_attention_forward(module, query, key, value, mask, neighborhood, scaling=0.4)
        seen = torch.ones(2, source) if mask is None else mask
        expected = attention_by_loops(query, key, value, neighborhood // 2, is_causal, seen, 0.4)
        torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-5)
        assert weights is None


@pytest.fixture
def restricted(config) -> VaswaniForConditionalGeneration:
    fields = {**config.to_dict(), "attention_neighborhood": 6, "d_k": 8, "d_v": 8}
    model = VaswaniForConditionalGeneration(VaswaniConfig(**fields)).eval()
    randomize(model)
    return model.requires_grad_(False)


def padded(lengths: tuple[int, ...], left: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and mask `[batch, longest]`."""
    longest = max(lengths)
    places = torch.arange(longest)
    mask = torch.stack([places >= longest - length if left else places < length for length in lengths])
    return torch.randint(3, 37, mask.shape) * mask, mask.long()


@pytest.mark.parametrize("left", [False, True], ids=["padded right", "padded left"])
def test_the_model_gives_the_same_with_blocks_with_masks_and_alone(restricted, left):
    source, source_mask = padded((45, 9, 30), left)
    target, target_mask = padded((38, 44, 5), left)
    inputs = {"attention_mask": source_mask, "decoder_input_ids": target, "decoder_attention_mask": target_mask}
    logits = {}
    for implementation in ("sdpa", "eager", "flex_attention"):
        restricted.set_attn_implementation(implementation)
        with torch.compiler.set_stance("force_eager"):
            logits[implementation] = restricted(source, **inputs).logits
    kept = target_mask.bool()
    torch.testing.assert_close(logits["sdpa"][kept], logits["eager"][kept], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(logits["flex_attention"][kept], logits["eager"][kept], atol=1e-5, rtol=1e-5)
    restricted.set_attn_implementation("sdpa")
    for row in range(3):
        ids = source[row][source_mask[row].bool()][None]
        alone = restricted(ids, decoder_input_ids=target[row][kept[row]][None]).logits[0]
        torch.testing.assert_close(logits["sdpa"][row][kept[row]], alone, atol=1e-5, rtol=1e-5)


def test_a_position_depends_on_others_as_far_as_its_layers_reach(restricted):
    """Two encoder layers of 3 positions to each side: a change is heard 6 positions away, and no farther."""
    source = torch.randint(3, 37, (1, 40))
    changed = source.clone()
    changed[0, 20] = source[0, 20] % 34 + 3
    encoder = restricted.get_encoder()
    before, after = (encoder(ids).last_hidden_state[0] for ids in (source, changed))
    heard = (before - after).abs().amax(-1) > 1e-6
    assert heard.nonzero().flatten().tolist() == list(range(14, 27))


@pytest.mark.parametrize("kind", ["dynamic", "static"])
@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_decoding_step_by_step_equals_decoding_at_once(restricted, kind, implementation):
    restricted.set_attn_implementation(implementation)
    source, source_mask = padded((20, 9), left=False)
    target = torch.randint(3, 37, (2, 25))
    expected = restricted(source, attention_mask=source_mask, decoder_input_ids=target).logits
    if kind == "dynamic":
        caches = [DynamicCache(config=restricted.config) for _ in range(2)]
    else:
        caches = [StaticCache(config=restricted.config, max_cache_len=length) for length in (30, 20)]
    cache = EncoderDecoderCache(*caches)
    start = 0
    for length in (4, 1, 1, 7, *[1] * 12):
        step = target[:, start : start + length]
        output = restricted(source, attention_mask=source_mask, decoder_input_ids=step, past_key_values=cache)
        torch.testing.assert_close(output.logits, expected[:, start : start + length], atol=1e-5, rtol=1e-5)
        start += length


@pytest.mark.parametrize("prefix", [None, 9])
def test_beam_search_runs_the_restricted_decoder(restricted, prefix):
    """The tree of keys and values against the model's own forward, run over all tokens at each step."""
    source, mask = padded((20, 9, 33), left=False)
    given = {} if prefix is None else {"decoder_input_ids": torch.randint(3, 37, (3, prefix))}
    found = [
        restricted.generate(
            source,
            attention_mask=mask,
            num_beams=4,
            max_new_tokens=40,
            use_cache=use_cache,
            output_scores=True,
            return_dict_in_generate=True,
            **given,
        )
        for use_cache in (True, False)
    ]
    assert found[0].sequences.tolist() == found[1].sequences.tolist()
    assert found[0].sequences.shape[1] > 12
    torch.testing.assert_close(found[0].sequences_scores, found[1].sequences_scores, atol=1e-4, rtol=1e-4)


@torch.no_grad()
def test_cross_attention_masks_padding_by_sdpa_instead_of_flash_attention(config):
    """Flash attention would take the padding of the source for the target's."""
    attention = VaswaniAttention(config, is_cross=True)
    randomize(attention)
    target, source = torch.randn(2, 3, config.d_model), torch.randn(2, 5, config.d_model)
    legal = torch.tensor([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]])
    config._attn_implementation = "eager"
    additive = torch.zeros(2, 1, 1, 5).masked_fill(legal[:, None, None].eq(0), float("-inf"))
    expected, _ = attention(target, additive, encoder_hidden_states=source)
    for implementation in ("flash_attention_2", "flash_attention_3"):
        config._attn_implementation = implementation  # not installed: it must not be asked
        mask, function = source_mask(config, target, legal, source)
        output, _ = attention(target, mask, encoder_hidden_states=source, attention=function)
        torch.testing.assert_close(output, expected)


@torch.no_grad()
@pytest.mark.parametrize("left", [False, True], ids=["padded right", "padded left"])
def test_tokens_without_padding_are_encoded_as_in_a_padded_batch(model, left):
    source, mask = padded((9, 4, 6, 1), left)
    rows = []
    model.model.encoder.layers[0].feed_forward.register_forward_hook(lambda _, inputs, __: rows.append(inputs[0].shape))
    encoded = model.model.encoder.encode_tokens(source, mask)[0]
    assert rows == [(1, int(mask.sum()), model.config.d_model)]
    model.set_attn_implementation("eager")
    expected = model.model.encoder(source, mask)[0] * mask.unsqueeze(-1)
    torch.testing.assert_close(encoded, expected, atol=1e-5, rtol=1e-5)

"""Section 3 against independent references: loops, float64 formulas, torch.nn.Transformer*."""

import math
from contextlib import nullcontext

import pytest
import torch
from models import randomize
from torch import nn
from transformers import AutoModel
from transformers.cache_utils import DynamicCache, EncoderDecoderCache, StaticCache
from transformers.modeling_outputs import Seq2SeqModelOutput

from vaswani_transformer import VaswaniConfig, VaswaniForConditionalGeneration
from vaswani_transformer.model.keywords_vaswani import CACHE
from vaswani_transformer.model.modeling_vaswani import VaswaniAttention, drop_out, sinusoidal_positions


PAD, VOCABULARY = 0, 37


def padded_batch(left: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    """Sources and targets of different lengths; targets begin with the start token, which is the padding id."""
    sources = [torch.randint(3, VOCABULARY, (length,)) for length in (9, 4, 6, 1)]
    targets = [torch.cat((torch.zeros(1).long(), torch.randint(3, VOCABULARY, (n,)))) for n in (3, 7, 5, 2)]
    side = "left" if left else "right"
    return tuple(
        nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD, padding_side=side)
        for rows in (sources, targets)
    )


def multi_head(config: VaswaniConfig) -> dict:
    """The same model with head widths that the reference implementations can express."""
    return {**config.to_dict(), "d_k": 6, "d_v": 6, "vocab_size": VOCABULARY}


# Table 3: "N", "d_model", ... are in PAPER_VARIANTS; here is the column "params, x10^6".
PRINTED_MILLIONS = {"base": 65, "B-dk16": 58, "B-dk32": 60, "C-N2": 36, "C-N4": 50, "C-N8": 80}
PRINTED_MILLIONS |= {"C-d256": 28, "C-d1024": 168, "C-ff1024": 53, "C-ff4096": 90, "big": 213}


@pytest.mark.parametrize("variant", PRINTED_MILLIONS)
def test_parameter_counts_are_those_printed_in_table_3(variant):
    rows = 36000 if variant == "big" else 40960  # with the rows of the others, the big model would have 218 million
    with torch.device("meta"):
        model = VaswaniForConditionalGeneration(VaswaniConfig.from_variant(variant, vocab_size=rows))
    assert round(model.num_parameters() / 1e6) == PRINTED_MILLIONS[variant]


@torch.no_grad()
def test_attention_equals_loops_written_from_equation_1(config):
    attention = VaswaniAttention(config, is_cross=True)
    randomize(attention)
    config._attn_implementation = "eager"
    target, source = torch.randn(2, 3, config.d_model), torch.randn(2, 5, config.d_model)
    legal = torch.tensor([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]]).bool()
    mask = torch.zeros(2, 1, 1, 5).masked_fill(~legal[:, None, None], float("-inf"))

    expected = torch.zeros(2, 3, config.d_model)
    for b in range(2):
        for i in range(3):
            heads = []
            for h in range(config.num_heads):
                keys, values = slice(5 * h, 5 * h + 5), slice(7 * h, 7 * h + 7)
                query = (attention.q_proj.weight @ target[b, i] + attention.q_proj.bias)[keys]
                scores, head = {}, torch.zeros(7)
                for j in range(5):
                    if legal[b, j]:
                        key = (attention.k_proj.weight @ source[b, j] + attention.k_proj.bias)[keys]
                        scores[j] = math.exp(float(query @ key) / math.sqrt(5))
                for j, score in scores.items():
                    value = (attention.v_proj.weight @ source[b, j] + attention.v_proj.bias)[values]
                    head += score / sum(scores.values()) * value
                heads.append(head)
            expected[b, i] = attention.out_proj.weight @ torch.cat(heads) + attention.out_proj.bias

    output, weights = attention(target, mask, encoder_hidden_states=source)
    torch.testing.assert_close(output, expected, atol=1e-5, rtol=0)
    assert weights.shape == (2, config.num_heads, 3, 5)


@pytest.mark.parametrize("layout", ["sinusoidal", "sinusoidal_halves", "sinusoidal_marian"])
def test_positions_equal_the_formula_in_float64_up_to_10000(layout):
    d_model, positions = 16, [0, 1, 2, 63, 64, 777, 5000, 9999, 10000]
    encoded = sinusoidal_positions(torch.tensor(positions), d_model, layout)
    for row, position in zip(encoded, positions, strict=True):
        for i in range(d_model // 2):
            angle, sine, cosine = position / 10000 ** (2 * i / d_model), i, d_model // 2 + i
            if layout == "sinusoidal":
                sine, cosine = 2 * i, 2 * i + 1
            elif layout == "sinusoidal_halves":
                angle = position / 10000 ** (i / (d_model / 2 - 1))
            assert float(row[sine]) == pytest.approx(math.sin(angle), abs=1e-7)
            assert float(row[cosine]) == pytest.approx(math.cos(angle), abs=1e-7)


def torch_reference(model: VaswaniForConditionalGeneration, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Logits by torch's own post-norm layers, with the model's weights, embedding and positions."""
    config, weights = model.config, model.state_dict()
    common = {"dropout": 0.0, "activation": "relu", "batch_first": True, "layer_norm_eps": config.layer_norm_eps}
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(config.d_model, config.num_heads, config.d_ff, **common),
        config.encoder_layers,
        enable_nested_tensor=False,
    ).eval()
    decoder = nn.TransformerDecoder(
        nn.TransformerDecoderLayer(config.d_model, config.num_heads, config.d_ff, **common), config.decoder_layers
    ).eval()
    names = {
        "self_attn.out_proj": "self_attn.out_proj",
        "multihead_attn.out_proj": "encoder_attn.out_proj",
        "linear1": "feed_forward.fc1",
        "linear2": "feed_forward.fc2",
        "norm1": "self_attn_residual.norm",
    }
    for stack, module, norms in (
        ("encoder", encoder, {"norm2": "feed_forward_residual.norm"}),
        ("decoder", decoder, {"norm2": "encoder_attn_residual.norm", "norm3": "feed_forward_residual.norm"}),
    ):
        for name, parameter in module.named_parameters():
            _, layer, rest = name.split(".", 2)
            ours = f"model.{stack}.layers.{layer}."
            if "in_proj" in rest:
                kind = "encoder_attn" if rest.startswith("multihead") else "self_attn"
                suffix = rest.rpartition("in_proj_")[2]
                parameter.data = torch.cat([weights[f"{ours}{kind}.{p}_proj.{suffix}"] for p in "qkv"])
            else:
                theirs, _, suffix = rest.rpartition(".")
                parameter.data = weights[f"{ours}{ {**names, **norms}[theirs] }.{suffix}"].clone()

    def embed(ids: torch.Tensor) -> torch.Tensor:
        rows = weights["model.shared.weight"][ids] * math.sqrt(config.d_model)
        positions = sinusoidal_positions(torch.arange(ids.shape[1]), config.d_model)
        return torch.where(ids.eq(PAD).unsqueeze(-1), 0.0, rows) + positions

    causal = torch.ones(target.shape[1], target.shape[1]).triu(1).bool()
    padding = source.eq(PAD)
    memory = encoder(embed(source), src_key_padding_mask=padding)
    states = decoder(embed(target), memory, tgt_mask=causal, memory_key_padding_mask=padding)
    return states @ weights["model.shared.weight"].T


@torch.no_grad()
def test_logits_equal_those_of_torch_on_padded_batches(config):
    model = VaswaniForConditionalGeneration(VaswaniConfig(**multi_head(config))).eval()
    randomize(model)
    source, target = padded_batch()
    expected = torch_reference(model, source, target)
    for attention in ("eager", "sdpa"):
        model.set_attn_implementation(attention)
        logits = model(source, decoder_input_ids=target).logits
        torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("attention", ["eager", "sdpa", "flex_attention"])
@pytest.mark.parametrize("left", [False, True], ids=["padded right", "padded left"])
@pytest.mark.parametrize("encoding", ["sinusoidal", "sinusoidal_halves", "learned"])
def test_logits_of_a_sentence_do_not_depend_on_its_batch(config, attention, left, encoding):
    # flex attention takes only head widths that are powers of two
    model = VaswaniForConditionalGeneration(
        VaswaniConfig(**{**multi_head(config), "d_k": 8, "d_v": 8, "position_encoding": encoding})
    ).eval()
    randomize(model)
    model.requires_grad_(False)
    source, target = padded_batch(left)
    lengths = (4, 8, 6, 3)
    width = target.shape[1]
    columns = torch.arange(width)
    target_mask = torch.stack([columns >= width - n if left else columns < n for n in lengths]).long()
    model.set_attn_implementation(attention)
    with torch.compiler.set_stance("force_eager"):  # flex attention compiles itself, which takes most of a minute
        batched = model(source, decoder_input_ids=target, decoder_attention_mask=target_mask).logits
    model.set_attn_implementation("eager")
    for row, length in enumerate(lengths):
        kept = target_mask[row].bool()
        alone = model(source[row][source[row].ne(PAD)][None], decoder_input_ids=target[row][kept][None]).logits[0]
        assert alone.shape[0] == length
        torch.testing.assert_close(batched[row][kept], alone, atol=1e-5, rtol=1e-5)


def test_decoder_starts_from_zero_though_the_padding_row_is_trained(model):
    source = torch.randint(3, VOCABULARY, (2, 5))
    model(source, labels=torch.randint(3, VOCABULARY, (2, 4))).loss.backward()
    shared = model.model.shared
    assert shared.weight[PAD].abs().sum() > 0
    assert shared.weight.grad[PAD].abs().sum() > 0  # through the softmax
    assert shared(torch.tensor([PAD])).abs().sum() == 0
    assert not torch.allclose(shared(torch.tensor([3])), shared.weight[3])
    torch.testing.assert_close(shared(torch.tensor([3]))[0], shared.weight[3] * math.sqrt(model.config.d_model))


@torch.no_grad()
@pytest.mark.parametrize("kind", ["dynamic", "static"])
def test_decoding_step_by_step_with_a_cache_equals_decoding_at_once(model, kind):
    source, target = padded_batch()
    expected = model(source, decoder_input_ids=target).logits
    if kind == "dynamic":
        caches = [DynamicCache(config=model.config) for _ in range(2)]
    else:
        caches = [StaticCache(config=model.config, max_cache_len=length) for length in (12, source.shape[1])]
    cache = EncoderDecoderCache(*caches)
    for step in range(target.shape[1]):
        output = model(source, decoder_input_ids=target[:, step : step + 1], cache=cache, use_cache=True)
        torch.testing.assert_close(output.logits[:, 0], expected[:, step], atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_the_cache_has_both_of_its_names_in_every_part(model):
    source, target = padded_batch()
    encoded = model.get_encoder()(source, source.ne(PAD))[0]
    arguments = {"encoder_hidden_states": encoded, "encoder_attention_mask": source.ne(PAD)}
    parts = [
        (model, {"input_ids": source}, "decoder_input_ids"),
        (model.model, {"input_ids": source}, "decoder_input_ids"),
        (model.model.decoder, arguments, "input_ids"),
    ]
    for part, inputs, tokens in parts:
        expected = part(**inputs, **{tokens: target})[0][:, 3:]
        for name in ("cache", "past_key_values"):
            first = part(**inputs, **{tokens: target[:, :3]}, use_cache=True)
            is_old = name != CACHE == "cache"  # transformers' own models warn there, too
            with pytest.warns(FutureWarning, match="`past_key_values` is deprecated") if is_old else nullcontext():
                second = part(**inputs, **{tokens: target[:, 3:]}, **{name: first[CACHE]})
            torch.testing.assert_close(second[0], expected, atol=1e-5, rtol=1e-5)
        prefix = part(**inputs, **{tokens: target[:, :3]}, use_cache=True)[CACHE]
        empty = EncoderDecoderCache(DynamicCache(), DynamicCache())
        second = part(**inputs, **{tokens: target[:, 3:]}, cache=empty, past_key_values=prefix)  # as with PEFT's prefix
        torch.testing.assert_close(second[0], expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_encoded_sources_may_be_any_output_or_a_tuple(model):
    source, target = padded_batch()
    inputs = {"attention_mask": source.ne(PAD), "decoder_input_ids": target}
    encoded = model.get_encoder()(source, source.ne(PAD))
    expected, translations = model(encoder_outputs=encoded, **inputs).logits, model.generate(source, max_new_tokens=3)
    last = encoded.last_hidden_state
    for given in ((last,), [last], (last, None, None, None), {"last_hidden_state": last}, Seq2SeqModelOutput(last)):
        assert torch.equal(model(encoder_outputs=given, **inputs).logits, expected)
        found = model.generate(encoder_outputs=given, attention_mask=source.ne(PAD), max_new_tokens=3)
        assert torch.equal(found, translations)
    for given in ((), last, {"logits": last}, (last[0],)):
        for call in (model, model.generate):
            with pytest.raises(TypeError, match=r"^encoder_outputs: must be what the encoder returns, or a tuple"):
                call(encoder_outputs=given, **inputs)


@torch.no_grad()
def test_a_tuple_of_keys_and_values_is_refused_with_what_to_make_of_it(model):
    source, target = padded_batch()
    prefix = model(source, decoder_input_ids=target[:, :3], use_cache=True)[CACHE]
    parts = [part.layers for part in (prefix.self_attention_cache, prefix.cross_attention_cache)]
    layers = tuple((own.keys, own.values, cross.keys, cross.values) for own, cross in zip(*parts, strict=True))
    for call in (model, model.model, model.generate):
        with pytest.raises(TypeError, match=r"is a tuple; EncoderDecoderCache\(layers\) makes one"):
            call(source, decoder_input_ids=target[:, 3:], **{CACHE: layers})
    made = model(source, decoder_input_ids=target[:, 3:], **{CACHE: EncoderDecoderCache(layers)}).logits
    expected = model(source, decoder_input_ids=target).logits[:, 3:]
    torch.testing.assert_close(made, expected, atol=1e-5, rtol=1e-5)


def test_a_keyword_that_a_release_renames_is_an_error(model):
    """Swallowed by **kwargs, it would make every step decode its last token alone."""
    source, target = padded_batch()
    for part in (model, model.model, model.model.encoder, model.model.decoder):
        inputs = {} if part in (model.model.encoder, model.model.decoder) else {"decoder_input_ids": target}
        with pytest.raises(TypeError, match=r"does not know the keywords \['key_value_cache'\]"):
            part(source, **inputs, key_value_cache=DynamicCache())


@torch.no_grad()
def test_loss_is_the_negative_log_likelihood_of_each_label_given_those_before(model):
    source = torch.randint(3, VOCABULARY, (2, 5))
    labels = torch.tensor([[5, 6, 1], [7, 1, -100]])
    total = 0.0
    for row in range(2):
        kept = [int(label) for label in labels[row] if label != -100]
        for position, label in enumerate(kept):
            prefix = torch.tensor([[PAD, *kept[:position]]])
            probabilities = model(source[row : row + 1], decoder_input_ids=prefix).logits[0, -1].double().softmax(-1)
            total -= math.log(float(probabilities[label]))
    assert float(model(source, labels=labels).loss) == pytest.approx(total / 5, rel=1e-5)
    assert float(model(source, labels=labels, num_items_in_batch=20).loss) == pytest.approx(total / 20, rel=1e-5)


def test_weights_survive_saving_and_loading_tied(model, tmp_path):
    randomize(model)
    source, target = padded_batch()
    model.save_pretrained(tmp_path)
    loaded = VaswaniForConditionalGeneration.from_pretrained(tmp_path)
    torch.testing.assert_close(
        loaded(source, decoder_input_ids=target).logits, model(source, decoder_input_ids=target).logits
    )
    assert loaded.lm_head.weight is loaded.model.shared.weight
    assert loaded.model.encoder.embed_tokens.weight is loaded.model.decoder.embed_tokens.weight
    states = [each(source, decoder_input_ids=target)[0] for each in (AutoModel.from_pretrained(tmp_path), model.model)]
    torch.testing.assert_close(*states)


def test_gradient_checkpointing_gives_the_same_gradients(model):
    source, labels = torch.randint(3, VOCABULARY, (2, 5)), torch.randint(3, VOCABULARY, (2, 4))
    model.config.dropout = 0.0
    gradients = []
    for enable in (False, True):
        model.train()
        if enable:
            model.gradient_checkpointing_enable()
            assert model.model.encoder.layers[0].gradient_checkpointing
        model.zero_grad()
        torch.manual_seed(0)
        model(source, labels=labels).loss.backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], gradient, atol=1e-6, rtol=1e-4, msg=name)


def test_initialisation_is_that_of_the_authors_code():
    config = VaswaniConfig(vocab_size=2000, encoder_layers=1, decoder_layers=1)
    model = VaswaniForConditionalGeneration(config)
    d, ff = config.d_model, config.d_ff
    encoder, decoder = model.model.encoder.layers[0], model.model.decoder.layers[0]
    limits = {
        encoder.self_attn.q_proj: (d, 3 * d),  # Q, K, V are drawn as one matrix d -> 3d
        encoder.self_attn.v_proj: (d, 3 * d),
        decoder.self_attn.k_proj: (d, 3 * d),
        decoder.encoder_attn.q_proj: (d, d),
        decoder.encoder_attn.k_proj: (d, 2 * d),  # K, V of encoder-decoder attention as one d -> 2d
        decoder.encoder_attn.out_proj: (d, d),
        encoder.feed_forward.fc1: (d, ff),
        encoder.feed_forward.fc2: (ff, d),
    }
    for linear, (fan_in, fan_out) in limits.items():
        limit = math.sqrt(6 / (fan_in + fan_out))
        assert 0.999 * limit < float(linear.weight.abs().max()) <= limit
        assert float(linear.weight.std()) == pytest.approx(limit / math.sqrt(3), rel=0.01)  # uniform
        assert float(linear.bias.abs().max()) == 0.0
    assert float(model.model.shared.weight.std()) == pytest.approx(d**-0.5, rel=0.01)
    assert model.lm_head.weight is model.model.shared.weight


@pytest.mark.parametrize("probability", [0.1, 0.3])
def test_dropout_drops_each_of_four_neighbours_independently(probability):
    states = torch.ones(100, 2003, requires_grad=True)  # not a multiple of four elements
    dropped = drop_out(states, probability, training=True)
    dropped.sum().backward()
    assert states.grad.equal(dropped)
    assert dropped.unique().tolist() == [0.0, pytest.approx(1 / (1 - probability), rel=1e-4)]
    fours = dropped.flatten()[:200_000].view(-1, 4).eq(0)
    patterns = fours.long() @ torch.tensor([8, 4, 2, 1])
    observed = torch.bincount(patterns, minlength=16).double()
    number = torch.tensor([bin(pattern).count("1") for pattern in range(16)])  # of dropped elements in a pattern
    expected = len(fours) * probability ** number.double() * (1 - probability) ** (4 - number)
    assert ((observed - expected) ** 2 / expected).sum() < 45  # chi-square of 15 degrees: exceeded once in 10,000


@pytest.mark.parametrize(("probability", "training", "expected"), [(0.0, True, 1), (0.5, False, 1), (1.0, True, 0)])
def test_dropout_drops_nothing_in_evaluation_and_all_at_probability_one(probability, training, expected):
    assert drop_out(torch.ones(7), probability, training).eq(expected).all()

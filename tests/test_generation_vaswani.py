"""`generate`: its defaults, its options, and which step decoder it chooses."""

import copy
import math
from collections.abc import Iterator

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from models import EOS, SOURCES, as_batch, beam_search_by_definition, lively
from torch import nn
from transformers import GenerationConfig
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, AttentionMaskInterface, eager_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from vaswani_transformer import VaswaniForConditionalGeneration
from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.decoding.ensemble import Ensemble
from vaswani_transformer.model.modeling_vaswani import eager_attention_forward
from vaswani_transformer.model.step_decoder_vaswani import ForwardDecoder


@pytest.mark.parametrize("settings", [{"num_beams": 2}, {"num_beams": 1}, {"num_beams": 1, "do_sample": True}])
def test_logits_that_are_not_numbers_are_refused(model, settings):
    overflowing = copy.deepcopy(model)
    with torch.no_grad():
        overflowing.get_decoder().layers[0].feed_forward.fc2.weight.fill_(math.inf)
    with pytest.raises(ValueError, match="logits are NaN or infinite"):
        overflowing.generate(torch.tensor([[5, 6, 1], [7, 1, 0]]), **settings)


def test_source_may_be_given_as_embeddings_or_encoded(model):
    batch = torch.tensor([[7, 8, 9, 1]])
    expected = model.generate(batch)
    embeds = model.get_input_embeddings()(batch)
    assert torch.equal(model.generate(inputs_embeds=embeds), expected)
    encoded = model.get_encoder()(batch)
    for _ in range(2):  # with beams, and the caller's object stays as it was
        assert torch.equal(model.generate(encoder_outputs=encoded), expected)
    assert encoded[0].shape == (1, 4, 24)


@torch.no_grad()
def test_greedy_search_takes_the_likeliest_token_until_eos(trained, tokenizer):
    sources = tokenizer([english for english, _ in phrasebook("validation")[8:24]]).input_ids  # 8 of them learned
    expected = []
    for source in sources:
        ids = [0]
        while len(ids) <= len(source) and ids[-1] != EOS:
            logits = trained(torch.tensor([source]), decoder_input_ids=torch.tensor([ids])).logits
            ids.append(int(logits[0, -1].argmax()))
        expected.append(ids)
    assert len({len(ids) for ids in expected if ids[-1] == EOS}) > 2
    assert any(ids[-1] != EOS for ids in expected)  # cut at its limit
    for use_cache in (True, False):
        options = {"num_beams": 1, "max_new_tokens_over_source": 0, "use_cache": use_cache}
        assert torch.equal(trained.generate(as_batch(sources), **options), as_batch(expected))


def test_attentions_and_hidden_states_are_those_of_the_returned_steps(talkative_model):
    talkative_model.set_attn_implementation("eager")
    batch = as_batch(SOURCES[:2])
    options = {"return_dict_in_generate": True, "output_attentions": True, "output_hidden_states": True}
    output = talkative_model.generate(batch, decoder_input_ids=torch.tensor([[0, 9], [0, 9]]), **options)
    assert torch.equal(output.sequences, talkative_model.generate(batch, decoder_input_ids=torch.tensor([[0, 9]] * 2)))
    assert output.cross_attentions[0][0].shape == (8, 2, 2, batch.shape[1])  # two tokens of prefix at once
    assert output.cross_attentions[3][1].shape == (8, 2, 1, batch.shape[1])
    assert output.decoder_attentions[3][1].shape == (8, 2, 1, 5)
    assert output.decoder_hidden_states[3][-1].shape == (8, 1, 16)
    assert output.encoder_attentions[0].shape == (2, 2, batch.shape[1], batch.shape[1])
    assert len(output.encoder_hidden_states) == 2


def test_synced_gpus_are_refused(model):
    with pytest.raises(ValueError, match="synced_gpus: the search needs the whole model on each process"):
        model.generate(as_batch(SOURCES), synced_gpus=True)


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 1.7},
        {"no_repeat_ngram_size": 2},
        {"bad_words_ids": [[7, 7], [5]], "suppress_tokens": [9], "min_new_tokens": 6},
        {"sequence_bias": [[[7], -9.0], [[9, 17], -4.0]], "renormalize_logits": True},
        {"forced_eos_token_id": EOS, "max_new_tokens": 4},
        {"prefix_allowed_tokens_fn": lambda row, ids: [1, 5 + row, 12 + len(ids)]},
        {"max_time": 900.0, "remove_invalid_values": True},
    ],
    ids=", ".join,
)
def test_greedy_search_with_processors_is_that_of_transformers(talkative_model, settings):
    """With `return_dict_in_generate`, transformers' own loop decodes."""
    batch, settings = as_batch(SOURCES), {"num_beams": 1, **settings}
    expected = talkative_model.generate(batch, return_dict_in_generate=True, **settings).sequences
    assert torch.equal(talkative_model.generate(batch, **settings), expected)
    assert not torch.equal(talkative_model.generate(batch, num_beams=1), expected) or "max_time" in settings


@pytest.mark.parametrize("num_beams", [1, 4])
def test_a_search_ends_with_a_stop_string(trained, tokenizer, num_beams):
    source = tokenizer("The old man reads a book.", return_tensors="pt").input_ids
    ids = trained.generate(source, num_beams=num_beams)[0].tolist()
    assert len(ids) > 3
    stop = tokenizer.decode(ids[2])
    options = {"num_beams": num_beams, "stop_strings": [stop], "max_new_tokens": 20}
    found = trained.generate(source, tokenizer=tokenizer, **options)[0]
    assert tokenizer.decode(found, skip_special_tokens=True).endswith(stop)
    assert num_beams > 1 or found.tolist() == ids[:3]


def test_labels_that_a_trainer_passes_along_change_nothing(talkative_model, monkeypatch):
    batch = as_batch(SOURCES)
    expected = talkative_model.generate(batch)
    assert torch.equal(talkative_model.generate(batch, labels=batch, use_cache=False), expected)
    monkeypatch.setattr(ForwardDecoder, "prefill", None)  # the slow way is not taken
    assert torch.equal(talkative_model.generate(batch, labels=batch), expected)


FEW = SOURCES[:4]


def scores_of(model: VaswaniForConditionalGeneration) -> torch.Tensor:
    return model.generate(as_batch(FEW), return_dict_in_generate=True, output_scores=True).sequences_scores


def check_search_against_forward(model: VaswaniForConditionalGeneration, plain: torch.Tensor) -> None:
    """Beam search finds what the definition finds by calls of the whole model, and not what it found before."""
    found = [beam_search_by_definition(model, source, 4, 0.6, "never", "gnmt")[0] for source in FEW]
    scores = scores_of(model)
    assert torch.allclose(scores, torch.tensor([score for score, _ in found]), atol=1e-4)
    assert not torch.allclose(scores, plain, atol=1e-3, rtol=0)
    for (_, expected), row in zip(found, model.generate(as_batch(FEW)).tolist(), strict=True):
        assert row == [0, *expected] + [0] * (len(row) - 1 - len(expected))


class Doubled(nn.Linear):
    """Stands for adapters and quantised layers: more than its weights."""

    def forward(self, x):
        return 2 * super().forward(x)


class Wrapped(nn.Module):
    """Stands for adapters around a layer that pass on none of its attributes, as PEFT's trainable tokens."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return 2 * self.layer(x)


def test_layers_that_are_more_than_their_weights_are_called(talkative_model, monkeypatch):
    plain = scores_of(talkative_model)
    layer, other = talkative_model.model.decoder.layers
    for linear in (other.self_attn.q_proj, other.encoder_attn.out_proj, other.feed_forward.fc1):
        linear.__class__ = Doubled
    layer.self_attn.v_proj = Wrapped(layer.self_attn.v_proj)
    layer.feed_forward.fc2 = Wrapped(layer.feed_forward.fc2)
    talkative_model.lm_head = Wrapped(talkative_model.lm_head)
    talkative_model.eval()
    check_search_against_forward(talkative_model, plain)
    monkeypatch.setattr(ForwardDecoder, "prefill", None)  # adapters do not make the search slow
    talkative_model.generate(as_batch(SOURCES))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_a_quantized_model_is_searched_fast(talkative_model, monkeypatch):
    """torch's dynamic quantization leaves its layers in training mode, which changes nothing."""
    plain = scores_of(talkative_model)
    quantized = torch.ao.quantization.quantize_dynamic(talkative_model, {nn.Linear})
    with monkeypatch.context() as patch:
        patch.setattr(type(quantized), "is_unmodified", lambda self: False)
        expected = scores_of(quantized)
    monkeypatch.setattr(ForwardDecoder, "prefill", None)
    scores = scores_of(quantized)
    assert torch.allclose(scores, expected, atol=0.1)  # activations are rounded by the maximum of the whole batch
    assert not torch.allclose(scores, plain, atol=1e-3, rtol=0)


def rolled(output: object) -> object:
    """Output of a module, its last dimension rolled by one place."""
    if isinstance(output, torch.Tensor):
        return output.roll(1, -1)
    if isinstance(output, tuple):
        return (output[0].roll(1, -1), *output[1:])
    name = "logits" if "logits" in output else "last_hidden_state"
    output[name] = output[name].roll(1, -1)
    return output


MODULES = ["", "lm_head", "model.decoder.embed_tokens", "model.decoder.embed_positions", "model.decoder.layers.1"]
MODULES += ["model.decoder.layers.0.self_attn", "model.decoder.layers.1.encoder_attn.k_proj"]


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("kind", ["hook", "forward"])
def test_hooks_and_replaced_methods_have_their_effect(talkative_model, name, kind):
    plain = scores_of(talkative_model)
    module = talkative_model.get_submodule(name)
    if kind == "hook":
        module.register_forward_hook(lambda module, args, output: rolled(output))
    else:
        forward = module.forward
        module.forward = lambda *args, **kwargs: rolled(forward(*args, **kwargs))
    check_search_against_forward(talkative_model, plain)


@pytest.mark.parametrize("name", ["sharp", "sdpa"])
def test_an_attention_function_of_ones_own_has_its_effect(talkative_model, monkeypatch, name):
    def sharp(module, query, *args, **kwargs):
        return eager_attention_forward(module, 3 * query, *args, **kwargs)

    plain = scores_of(talkative_model)
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS, name, sharp)
    AttentionMaskInterface.register("sharp", eager_mask)
    monkeypatch.setitem(ALL_MASK_ATTENTION_FUNCTIONS, name, eager_mask)
    talkative_model.set_attn_implementation(name)
    check_search_against_forward(talkative_model, plain)


def test_replaced_inputs_reach_the_decoder(talkative_model):
    """Prefix tuning gives the decoder more than tokens in this way; here it is another source."""
    other = as_batch(SOURCES[::-1])
    expected = talkative_model.generate(other, max_new_tokens=9)
    encoded = talkative_model.get_encoder()(other, other.ne(0))[0].repeat_interleave(4, 0)
    prepare = talkative_model.prepare_inputs_for_generation

    def replaced(*args, **kwargs):
        another = {"encoder_outputs": (encoded,), "attention_mask": other.ne(0).repeat_interleave(4, 0)}
        return {**prepare(*args, **kwargs), **another}

    talkative_model.prepare_inputs_for_generation = replaced
    batch = as_batch(SOURCES)
    for use_cache in (True, False):
        assert torch.equal(talkative_model.generate(batch, max_new_tokens=9, use_cache=use_cache), expected)
    del talkative_model.prepare_inputs_for_generation
    assert not torch.equal(talkative_model.generate(batch, max_new_tokens=9), expected)


@pytest.fixture
def fresh_accelerate() -> Iterator[None]:
    """accelerate's state of a new process: the first to ask decides the precision for all that follow."""
    AcceleratorState._reset_state(reset_partial_state=True)
    yield
    AcceleratorState._reset_state(reset_partial_state=True)


@pytest.mark.usefixtures("fresh_accelerate")
def test_recorded_attentions_and_mixed_precision_leave_the_search_fast(talkative_model, monkeypatch):
    batch = as_batch(SOURCES)
    expected = talkative_model.generate(batch)
    talkative_model.set_attn_implementation("eager")
    talkative_model.generate(batch, output_attentions=True, return_dict_in_generate=True)  # installs hooks that stay
    monkeypatch.setattr(ForwardDecoder, "prefill", None)
    assert torch.equal(talkative_model.generate(batch), expected)
    accelerator = Accelerator(mixed_precision="bf16", cpu=True)
    prepared = accelerator.prepare_model(talkative_model, evaluation_mode=True)
    assert "forward" in vars(prepared)
    assert torch.equal(prepared.generate(batch), expected)
    assert torch.equal(accelerator.unwrap_model(prepared, keep_fp32_wrapper=False).generate(batch), expected)


def test_a_generation_config_made_without_this_package_has_the_penalty_of_transformers(talkative_model):
    batch, settings = torch.tensor([[7, 8, 1]]), {"num_beams": 3, "max_new_tokens": 20, "length_penalty": 2.0}
    expected = talkative_model.generate(batch, length_penalty_type="transformers", **settings)
    config = talkative_model.config
    ids = {name: getattr(config, name) for name in ("eos_token_id", "pad_token_id", "decoder_start_token_id")}
    talkative_model.generation_config = GenerationConfig(**settings, **ids)
    assert torch.equal(talkative_model.generate(batch), expected)
    gnmt = talkative_model.generate(batch, length_penalty_type="gnmt")
    assert torch.equal(gnmt, talkative_model.generate(batch, length_penalty_type="gnmt", **settings))


@torch.no_grad()
def test_greedy_search_of_an_ensemble_takes_the_likeliest_token_of_the_mean():
    models, ids = [lively(50, seed) for seed in (3, 4, 5)], [0]
    source, options = torch.tensor([SOURCES[0]]), {"num_beams": 1, "max_new_tokens": 11}
    while len(ids) < 12 and ids[-1] != EOS:
        every = [model(source, decoder_input_ids=torch.tensor([ids])).logits[0, -1].softmax(-1) for model in models]
        ids.append(int(torch.stack(every).mean(0).argmax()))
    alone = models[0].generate(source, **options)[0].tolist()
    together = models[0].generate(source, custom_generate=Ensemble(models[1:]), **options)[0].tolist()
    assert together == ids != alone


def test_what_an_ensemble_cannot_do_is_refused(talkative_model):
    batch, training = as_batch(SOURCES), copy.deepcopy(talkative_model).train()
    with pytest.raises(
        ValueError, match=r"^ensemble: additional model 2 has vocab_size 50, but the first model has 40$"
    ):
        talkative_model.generate(batch, custom_generate=Ensemble([talkative_model, lively(50)]))
    with pytest.raises(ValueError, match=r"^ensemble: a model has hooks or adapters, or is in training; call eval\(\)"):
        talkative_model.generate(batch, custom_generate=Ensemble([training]))
    for name in ("do_sample", "output_attentions"):
        with pytest.raises(ValueError, match=f"^ensemble: {name} is not available with several models; leave it out"):
            talkative_model.generate(batch, custom_generate=Ensemble([talkative_model]), **{name: True})

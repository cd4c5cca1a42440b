"""Adapters of PEFT and quantised weights of torchao have their effect in beam search; both packages are optional."""

from types import ModuleType

import pytest
import torch
from models import SOURCES, as_batch

from vaswani_transformer import VaswaniForConditionalGeneration
from vaswani_transformer.convert.marian import to_marian


OPTIONS = {"max_new_tokens": 12, "return_dict_in_generate": True, "output_scores": True}


@pytest.fixture
def peft() -> ModuleType:
    return pytest.importorskip("peft", reason="PEFT is not installed")


def scores(model: torch.nn.Module, **more: object) -> torch.Tensor:
    batch = as_batch(SOURCES)
    mask = batch.ne(0).long()
    return model.generate(input_ids=batch, attention_mask=mask, **{**OPTIONS, **more}).sequences_scores


def logits(model: torch.nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(as_batch(SOURCES), decoder_input_ids=torch.tensor([[0, 7, 9]] * len(SOURCES))).logits


def test_prefix_tuning_has_the_effect_that_it_has_on_marian(talkative_model, peft):
    # Marian never generates padding. All hypotheses are cut off after three tokens, and ranked in the same way.
    options = {"bad_words_ids": [[0]], "min_new_tokens": 3, "max_new_tokens": 3, "length_penalty": 0.3, "num_beams": 4}
    sizes = {"num_layers": 2, "num_attention_heads": 2, "token_dim": 16, "num_virtual_tokens": 3}
    talkative_model.generation_config.length_penalty_type = "transformers"
    plain, found = scores(talkative_model, **options), []
    for model in (talkative_model, to_marian(talkative_model)):
        tuned = peft.get_peft_model(model, peft.PrefixTuningConfig(task_type="SEQ_2_SEQ_LM", **sizes)).eval()
        torch.manual_seed(1)
        torch.nn.init.normal_(tuned.prompt_encoder["default"].embedding.weight, std=2.0)
        found.append(scores(tuned, **options))
    assert torch.allclose(found[0], found[1], atol=1e-4)
    assert not torch.allclose(found[0], plain, atol=1e-2)


@pytest.mark.parametrize("kind", ["linear", "embedding"])
def test_lora_is_seen_by_the_search(talkative_model: VaswaniForConditionalGeneration, peft, kind):
    plain = scores(talkative_model)
    targets = ["q_proj", "fc1", "out_proj"] if kind == "linear" else ["embed_tokens"]
    tuned = peft.get_peft_model(talkative_model, peft.LoraConfig(target_modules=targets, r=2)).eval()
    for name, parameter in tuned.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter)
    assert torch.allclose(scores(tuned), scores(tuned, use_cache=False), atol=1e-4)
    assert not torch.allclose(scores(tuned), plain, atol=1e-3)


def test_trainable_tokens_change_nothing_before_training(talkative_model, peft):
    """They compute embeddings from the matrix, and must find its scale; the decoder still starts from zero."""
    plain, before = scores(talkative_model), logits(talkative_model)
    config = peft.LoraConfig(target_modules=["q_proj"], trainable_token_indices=[5, 9])
    tuned = peft.get_peft_model(talkative_model, config).eval()
    assert torch.allclose(logits(tuned), before, atol=1e-4)
    assert torch.allclose(scores(tuned), plain, atol=1e-4)


def test_weights_quantised_by_torchao_are_searched_with(talkative_model):
    torchao = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    plain = scores(talkative_model)
    torchao.quantize_(talkative_model, torchao.Int8WeightOnlyConfig())
    assert type(talkative_model.model.decoder.layers[0].feed_forward.fc1) is torch.nn.Linear
    found = scores(talkative_model)
    assert torch.allclose(found, scores(talkative_model, use_cache=False), atol=1e-4)
    assert not torch.equal(found, plain)

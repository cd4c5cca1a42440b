"""Linear layers of eight bits: the products, and translation with them."""

import copy

import pytest
import torch
from torch import nn

from vaswani_transformer.data.phrasebook import phrasebook
from vaswani_transformer.decoding.decoding_arguments import GenerationArguments
from vaswani_transformer.decoding.int8 import Int8Linear, with_int8_layers


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_product_is_that_of_rounded_weights_and_inputs(has_bias):
    linear, x = nn.Linear(48, 40, bias=has_bias), torch.randn(3, 5, 48)
    linear.weight.data *= torch.logspace(-3, 3, 40).unsqueeze(-1)  # rows of very different sizes
    linear.weight.data[7] = 0
    scales = (linear.weight.abs().amax(1, keepdim=True) / 127).clamp(min=1e-30)  # [outputs, 1]
    step = (x.max() - x.min()) / 127
    zero = (-x.min() / step).round()
    weight, inputs = (linear.weight / scales).round() * scales, ((x / step + zero).round() - zero) * step
    expected = inputs @ weight.T + (linear.bias if has_bias else 0)
    found = Int8Linear(linear)(x)
    # A number halfway between two may be rounded to the other one.
    tolerance = 2 * step * weight.abs().amax(1) + 1e-5
    assert ((found - expected).abs() < tolerance).all()
    assert (found != linear(x)).any()


def test_learned_sentences_are_translated_as_before(trained, tokenizer):
    rounded = with_int8_layers(copy.deepcopy(trained))
    assert not any(isinstance(module, nn.Linear) for module in rounded.modules())
    batch = tokenizer([english for english, _ in phrasebook("validation")[:16]], return_tensors="pt", padding=True)
    for beams in (1, 4):
        assert torch.equal(rounded.generate(**batch, num_beams=beams), trained.generate(**batch, num_beams=beams))


def test_an_option_of_decoding_recipes_chooses_it(saved_model):
    args = GenerationArguments(precision="int8")
    model = args.load(args.open(str(saved_model)))
    assert isinstance(model.lm_head, Int8Linear)
    # A translation depends a little on its batch, so that one to continue must have the same batches.
    assert (args.search_settings["dtype"], args.search_settings["tokens_per_batch"]) == ("int8", 4096)

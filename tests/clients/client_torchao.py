"""torchao: quantised weights are computed with, by forward and by beam search."""

import pytest
from torch import nn
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, quantize_


@pytest.mark.parametrize("kind", [Int8WeightOnlyConfig, Int8DynamicActivationInt8WeightConfig])
def test_int8(model, translate, logits, error_of_search, kind):
    """quantize_ of all linear layers to int8"""
    plain, translations = logits(model), translate(model)
    quantize_(model, kind())
    linear = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert all(type(layer.weight) is not nn.Parameter for layer in linear)
    difference = (logits(model) - plain).abs().max().item()
    assert 0 < difference < 0.1 * plain.abs().max().item()
    error = error_of_search(model)
    found = translate(model)
    same = sum(new == old for new, old in zip(found, translations, strict=True))
    # Activations are quantised by their rows' maxima, so that padding and batches round otherwise.
    assert error < (1e-3 if kind is Int8WeightOnlyConfig else 0.1)
    assert same >= 0.75 * len(found)

"""bitsandbytes: quantised linear layers are called, by forward and by beam search."""

import pytest
from bitsandbytes.nn import Linear4bit, Linear8bitLt
from transformers import BitsAndBytesConfig

from vaswani_transformer import VaswaniForConditionalGeneration


@pytest.mark.parametrize("bits", [8, 4])
def test_quantised_on_loading(model, translate, logits, error_of_search, row, bits):
    """from_pretrained with BitsAndBytesConfig, on the CPU"""
    plain, translations = logits(model), translate(model)
    quantisation = BitsAndBytesConfig(load_in_8bit=bits == 8, load_in_4bit=bits == 4)
    quantised = VaswaniForConditionalGeneration.from_pretrained(
        model.name_or_path, trust_remote_code=False, quantization_config=quantisation, device_map="cpu"
    ).eval()
    layers = [module for module in quantised.modules() if isinstance(module, (Linear8bitLt, Linear4bit))]
    assert len(layers) > 20
    difference = (logits(quantised) - plain).abs().max().item()
    error = error_of_search(quantised)
    found = translate(quantised)
    same = sum(new == old for new, old in zip(found, translations, strict=True))
    row.evidence(layers=len(layers), logits_against_float32=difference, search_against_forward=error)
    row.evidence(same_translations=f"{same} of {len(found)}")
    assert 0 < difference < 0.3 * plain.abs().max().item()
    assert error < 0.1
    assert same >= 0.5 * len(found)

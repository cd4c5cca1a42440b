"""accelerate: weights left in CPU memory or on disk, brought in layer by layer."""

import pytest
import torch
from accelerate import cpu_offload, disk_offload


@pytest.mark.parametrize("place", ["memory", "disk"])
def test_offload(model, translate, logits, error_of_search, tmp_path, row, place):
    """cpu_offload and disk_offload: same logits and translations"""
    plain, translations = logits(model), translate(model)
    if place == "memory":
        cpu_offload(model, execution_device=torch.device("cpu"))
    else:
        disk_offload(model, str(tmp_path), execution_device=torch.device("cpu"))
    assert any(weight.device.type == "meta" for weight in model.parameters())
    difference = (logits(model) - plain).abs().max().item()
    assert difference < 1e-5
    assert translate(model) == translations
    row.evidence(logits_against_plain=difference, translations=len(translations))
    row.evidence(search_against_forward=error_of_search(model))

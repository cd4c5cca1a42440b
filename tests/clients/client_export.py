"""torch.export: the exported program computes the model's logits at other sizes."""

import pytest
import torch
from torch.export import Dim


@pytest.mark.parametrize("strict", [False, True], ids=["non-strict", "strict"])
def test_export(model, forward_inputs, row, strict):
    """torch.export of forward with a dynamic batch and lengths"""
    sizes, source, target = Dim("batch", min=2), Dim("source", min=2), Dim("target", min=2)
    arguments = forward_inputs(4)
    shapes = {name: {0: sizes, 1: target if "decoder" in name else source} for name in arguments}
    program = torch.export.export(
        model, (), {**arguments, "use_cache": False}, dynamic_shapes={**shapes, "use_cache": None}, strict=strict
    ).module()
    differences = []
    for count in (2, 4, 9):
        with torch.no_grad():
            expected, found = (run(**forward_inputs(count), use_cache=False).logits for run in (model, program))
        differences.append((expected - found).abs().max().item())
    assert max(differences) < 1e-4
    row.evidence(logits_at_batches_of_2_4_and_9=max(differences))

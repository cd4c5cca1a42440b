"""onnxruntime: `forward` through torch.onnx.export (dynamo)."""

import onnxruntime
import torch
from torch import nn
from torch.export import Dim


class Logits(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, input_ids: torch.Tensor, attention_mask: torch.Tensor, decoder_input_ids: torch.Tensor
    ) -> torch.Tensor:
        return self.model(input_ids, attention_mask, decoder_input_ids, use_cache=False).logits


def test_logits(model, forward_inputs, tmp_path, row):
    """torch.onnx.export(dynamo=True) of forward, run at other batch sizes and lengths"""
    sizes, source, target = Dim("batch", min=2), Dim("source", min=2), Dim("target", min=2)
    inputs = forward_inputs(4)
    shapes = {name: {0: sizes, 1: target if "decoder" in name else source} for name in inputs}
    file = tmp_path / "model.onnx"
    torch.onnx.export(Logits(model), kwargs=inputs, f=file, dynamo=True, dynamic_shapes=shapes, verbose=False)
    session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
    differences = []
    for count in (2, 4, 9):
        inputs = forward_inputs(count)
        (found,) = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
        with torch.no_grad():
            differences.append((Logits(model)(**inputs) - torch.from_numpy(found)).abs().max().item())
    assert max(differences) < 1e-3
    row.evidence(logits_at_batches_of_2_4_and_9=max(differences))

"""Linear layers with weights of eight bits, which a processor multiplies faster."""

import warnings

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel


class Int8Linear(nn.Module):
    """A linear layer with weights of 8 bits and a scale for each output.

    Each call rounds its inputs to 7 bits on their common range, so that a sentence depends a little on its batch.

    Args:
        linear: The layer to replace, on the CPU, in float32.
    """

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        weight = linear.weight.detach()  # [outputs, inputs]
        largest = weight.abs().amax(1).double()  # [outputs]
        scales = torch.where(largest > 0, largest / 127, 1.0)
        zeros = torch.zeros_like(scales, dtype=torch.long)  # other types mean another kind of rounding
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch intends to replace its quantized tensors
            rounded = torch.quantize_per_channel(weight, scales, zeros, 0, torch.qint8)
            self.packed = torch.ops.quantized.linear_prepack(rounded, linear.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        # Older processors add two products in 16 bits, which would overflow without `reduce_range`.
        return torch.ops.quantized.linear_dynamic(x, self.packed, reduce_range=True)


def require_int8(config: PreTrainedConfig, device: torch.device) -> None:
    """Raise a ValueError unless `with_int8_layers` serves a model of this configuration on this device."""
    if device.type != "cpu":
        raise ValueError(f"precision: int8 is for CPUs, not for {device.type}; take bf16 or fp16")
    if config.model_type != "vaswani":
        raise ValueError(f"precision: int8 is for models of this package, not for {config.model_type}")
    if not hasattr(torch, "quantize_per_channel") or torch.backends.quantized.engine == "none":
        raise ValueError("precision: this PyTorch has no products of int8; take float32, or export to CTranslate2")


def with_int8_layers(model: PreTrainedModel) -> PreTrainedModel:
    """Replace all linear layers of a model in float32 by `Int8Linear`; it can then only translate."""
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear:
                setattr(parent, name, Int8Linear(child).eval())
    return model

"""Training cost in floating point operations: counted from the shapes of batches, and estimated as in Table 2."""

from dataclasses import dataclass
from typing import Self

import torch
from transformers import PreTrainedConfig

from .precision import shortest_times


@dataclass(frozen=True, kw_only=True)
class TrainingCost:
    """Cost of a training in floating point operations.

    Attributes:
        by_the_papers_accounting: Operations by Table 2: time x devices x rate.
        counted: Operations counted from the shapes of the matrix products.
        rate: Operations per second that one device sustains.
        utilisation: `counted` divided by `by_the_papers_accounting`.
        dtype: Dtype in which `rate` was measured; None for the paper's.
    """

    by_the_papers_accounting: float
    counted: float
    rate: float
    utilisation: float
    dtype: str | None = None

    @classmethod
    def at_rate(cls, rate: float, device_seconds: float, counted: float, dtype: str | None = None) -> Self:
        """The cost by the rate of a device and the time of all devices together."""
        accounted = rate * device_seconds
        share = counted / accounted
        return cls(by_the_papers_accounting=accounted, counted=counted, rate=rate, utilisation=share, dtype=dtype)


def measure_cost(counted: float, device_seconds: float, device: torch.device, dtype: torch.dtype) -> TrainingCost:
    """Measure the rate of a device, for the cost of a training on devices of this kind.

    Call it on all processes at once, so that they share the machine as in training. The number of devices may change
    when a training resumes, so that its time is given as `device_seconds`.
    """
    name = str(dtype).removeprefix("torch.")
    return TrainingCost.at_rate(sustained_rate(device, dtype), device_seconds, counted, name)


def sustained_rate(device: torch.device | str, dtype: torch.dtype = torch.float32) -> float:
    """Measure the operations per second of large square matrix products (footnote 5 of the paper).

    For float32, TF32 is used if PyTorch is configured to use it.
    """
    device = torch.device(device)
    rows = 1024 if device.type == "cpu" else 8192
    matrix = torch.randn(rows, rows, device=device).to(dtype)  # [rows, rows]
    product = torch.empty_like(matrix)

    def multiply(_: str) -> None:
        torch.mm(matrix, matrix, out=product)
        if device.type != "cpu":
            torch.accelerator.synchronize(device)

    (seconds,) = shortest_times(["product"], multiply, seconds=0.5).values()
    return 2.0 * rows**3 / seconds


def training_flops(config: PreTrainedConfig, sentences: int, source_length: int, target_length: int) -> float:
    """Operations of the matrix products of a forward and a backward pass over a batch; a multiply-add is two.

    The backward pass takes twice as many as the forward pass: the gradients of both factors. Recomputation by gradient
    checkpointing is not counted, because it adds nothing to the training. The lengths are tokens of a sentence, padding
    included.
    """
    encoder_layer = _attention_multiply_adds(config, source_length, source_length)
    encoder_layer += 2 * source_length * config.d_model * config.d_ff
    decoder_layer = _attention_multiply_adds(config, target_length, target_length)
    decoder_layer += _attention_multiply_adds(config, target_length, source_length)
    decoder_layer += 2 * target_length * config.d_model * config.decoder_d_ff
    logits = target_length * config.d_model * config.output_vocab_size
    multiply_adds = config.encoder_layers * encoder_layer + config.decoder_layers * decoder_layer + logits
    return 3.0 * 2.0 * sentences * multiply_adds


def _attention_multiply_adds(config: PreTrainedConfig, target_length: int, source_length: int) -> int:
    """Multiply-adds of multi-head attention (3.2.2) in a sentence: `target_length` queries, `source_length` keys."""
    heads = config.num_heads * (config.d_k + config.d_v)  # W^Q and W^K have width d_k; W^V and W^O have width d_v
    projections = (target_length + source_length) * config.d_model * heads
    scores_and_values = target_length * source_length * heads
    return projections + scores_and_values

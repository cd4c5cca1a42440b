"""What a training cost in floating point operations, a multiply-add being two: as Table 2 estimates it, and counted."""

import math
import time
from typing import Any

import torch
from transformers import PreTrainedConfig


def training_flops(config: PreTrainedConfig, sentences: int, source_length: int, target_length: int) -> float:
    """Operations of the matrix products of a forward and a backward pass over a batch.

    The backward pass takes twice as many as the forward pass: the gradients of both factors. What gradient
    checkpointing computes a second time is not counted, for it adds nothing to the training.

    Args:
        config: The model's configuration.
        sentences: Number of sentence pairs in the batch.
        source_length: Tokens of a source, padding included.
        target_length: Tokens of a target, padding included.
    """
    encoder_layer = _attention_multiply_adds(config, source_length, source_length)
    encoder_layer += _feed_forward_multiply_adds(config.d_model, config.d_ff, source_length)
    decoder_layer = _attention_multiply_adds(config, target_length, target_length)
    decoder_layer += _attention_multiply_adds(config, target_length, source_length)
    decoder_layer += _feed_forward_multiply_adds(config.d_model, config.decoder_d_ff, target_length)
    logits = target_length * config.d_model * config.output_vocab_size
    multiply_adds = config.encoder_layers * encoder_layer + config.decoder_layers * decoder_layer + logits
    return 3.0 * 2.0 * sentences * multiply_adds


def _attention_multiply_adds(config: PreTrainedConfig, target_length: int, source_length: int) -> int:
    """Those of multi-head attention (3.2.2) in a sentence, from `target_length` places to `source_length` of them."""
    heads = config.num_heads * (config.d_k + config.d_v)  # W^Q and W^K, W^V and W^O are as wide
    projections = (target_length + source_length) * config.d_model * heads
    scores_and_values = target_length * source_length * heads
    return projections + scores_and_values


def _feed_forward_multiply_adds(d_model: int, d_ff: int, length: int) -> int:
    return 2 * length * d_model * d_ff


def sustained_rate(device: torch.device | str, dtype: torch.dtype = torch.float32) -> float:
    """Operations a second of large square matrix products: the measured counterpart of the paper's footnote 5.

    The quickest product of half a second counts, for other work on the machine slows some of them. Where PyTorch is set
    to compute float32 with TF32, so is this.

    Args:
        device: Where to compute.
        dtype: Type of the matrices, that in which the training multiplies.
    """
    device = torch.device(device)
    rows = 1024 if device.type == "cpu" else 8192
    matrix = torch.randn(rows, rows, device=device).to(dtype)  # [rows, rows]
    product = torch.empty_like(matrix)
    _seconds_of_product(matrix, product)  # the first one waits for libraries to load
    quickest, started = math.inf, time.perf_counter()
    while time.perf_counter() - started < 0.5:
        quickest = min(quickest, _seconds_of_product(matrix, product))
    return 2.0 * rows**3 / quickest


def _seconds_of_product(matrix: torch.Tensor, product: torch.Tensor) -> float:
    _wait_for(matrix.device)
    started = time.perf_counter()
    torch.mm(matrix, matrix, out=product)
    _wait_for(matrix.device)
    return time.perf_counter() - started


def _wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def training_cost(seconds: float, devices: int, rate: float, counted: float) -> dict[str, Any]:
    """The cost of a training by the accounting of Table 2 (6.1), time x devices x rate, beside what it computed.

    Args:
        seconds: Duration of the training.
        devices: Number of devices that trained.
        rate: Operations a second that one device sustains, such as `sustained_rate` measures.
        counted: Operations of the training, over all devices, such as a trainer's `state.total_flos`.

    Returns:
        "by_the_papers_accounting" and "counted", in operations, "rate", and "utilisation", the share of the former
        that was counted.
    """
    accounted = seconds * devices * rate
    return {
        "by_the_papers_accounting": accounted,
        "counted": counted,
        "rate": rate,
        "utilisation": counted / accounted,
    }

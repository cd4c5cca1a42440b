"""The cost of a training in floating point operations, as Table 2 estimates it, beside the operations counted."""

import math
import time
from typing import Any

import torch


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

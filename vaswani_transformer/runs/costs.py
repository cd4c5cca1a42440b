"""Training cost in floating point operations: estimated as in Table 2, and counted."""

import math
import time
from dataclasses import dataclass

import torch

from ..training.precision import DTYPES
from ..training.trainer import VaswaniTrainer


MEASURED_SECONDS = 0.5  # of matrix products, for `sustained_rate`


@dataclass(frozen=True, kw_only=True)
class TrainingCost:
    """Cost of a training in floating point operations.

    Attributes:
        by_the_papers_accounting: Operations by Table 2: time x devices x rate.
        counted: Operations counted from the shapes of the matrix products.
        rate: Operations per second that one device sustains.
        utilisation: `counted` divided by `by_the_papers_accounting`.
        dtype: Dtype in which `rate` was measured.
    """

    by_the_papers_accounting: float
    counted: float
    rate: float
    utilisation: float
    dtype: str | None = None


def measure_cost(trainer: VaswaniTrainer) -> TrainingCost:
    """Measure the cost of a training. Collective: all processes measure simultaneously, as they trained."""
    dtype = DTYPES[trainer.args.precision]
    rate = sustained_rate(trainer.args.device, dtype)
    # Device-seconds, because the number of devices may change when a training resumes.
    accounted = trainer.totals.device_seconds * rate
    return TrainingCost(
        by_the_papers_accounting=accounted,
        counted=trainer.state.total_flos,
        rate=rate,
        utilisation=trainer.state.total_flos / accounted,
        dtype=str(dtype).removeprefix("torch."),
    )


def sustained_rate(device: torch.device | str, dtype: torch.dtype = torch.float32) -> float:
    """Measure the operations per second of large square matrix products (footnote 5 of the paper).

    The fastest product in `MEASURED_SECONDS` counts, because other work on the machine slows some of them. For float32,
    TF32 is used if PyTorch is configured to use it.
    """
    device = torch.device(device)
    rows = 1024 if device.type == "cpu" else 8192
    matrix = torch.randn(rows, rows, device=device).to(dtype)  # [rows, rows]
    product = torch.empty_like(matrix)

    def multiply() -> float:
        started = time.perf_counter()
        torch.mm(matrix, matrix, out=product)
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        return time.perf_counter() - started

    multiply()  # the first product loads libraries
    fastest, started = math.inf, time.perf_counter()
    while time.perf_counter() - started < MEASURED_SECONDS:
        fastest = min(fastest, multiply())
    return 2.0 * rows**3 / fastest

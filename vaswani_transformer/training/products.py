"""Products of linear layers in float32, by oneDNN where MKL is slower."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


# Multiplications of a product that oneDNN computes faster. It takes a millisecond to prepare one of a new shape.
_LEAST = 100_000_000


def is_mkl_slow() -> bool:
    """Whether float32 products are MKL's on an AMD processor with AVX-512, where oneDNN is 1.1 to 1.2 times as fast."""
    processor = Path("/proc/cpuinfo")
    has_both = torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()
    is_wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return has_both and is_wide and processor.is_file() and "AuthenticAMD" in processor.read_text()


class OneDnnLinear(torch.autograd.Function):
    """`F.linear` and the gradient of its input by oneDNN; that of the weights is as fast by MKL."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        ctx.save_for_backward(inputs, weight)
        return _product(inputs, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (inputs, weight), (gradient,) = ctx.saved_tensors, gradients
        rows = gradient.flatten(0, -2)  # [rows, outputs]
        needs_inputs, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            _product(gradient, weight.t()) if needs_inputs else None,
            rows.t() @ inputs.flatten(0, -2) if needs_weight else None,
            rows.sum(0) if needs_bias else None,
        )


def _product(inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`F.linear` by oneDNN: the operator that `torch.compile` makes of it on a CPU."""
    return torch.ops.mkldnn._linear_pointwise(inputs, weight, bias, "none", [], "")


class OneDnnProducts(TorchFunctionMode):
    """A context in which a large `F.linear` of float32 on a CPU is `OneDnnLinear`."""

    def __torch_function__(
        self, function: Callable, types: Sequence[type], args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        is_plain = function is F.linear and not types and len(args) == 3
        is_large = is_plain and args[0].numel() * len(args[1]) > _LEAST
        is_ours = is_large and {each.dtype for each in args[:2]} == {torch.float32}
        return OneDnnLinear.apply(*args) if is_ours else function(*args, **(kwargs or {}))

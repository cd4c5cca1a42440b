"""Muon, an optimizer for the matrices of the layers (opt-in); the paper uses Adam (5.3)."""

from collections.abc import Callable, Container, Sequence
from typing import Any

import torch
import torch.distributed as dist

from .precision import usable_precisions


# Coefficients of the quintic iteration, chosen by Jordan et al. to grow small singular values fastest. Their five
# iterations take longer.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 3
_MOMENTUM = 0.95


class Muon(torch.optim.AdamW):
    """Momentum made orthogonal (Jordan et al. 2024) for matrices; Adam for embeddings, biases and norms.

    The update of a matrix has singular values of about 1, times `0.2 * sqrt(max(rows, columns))` (Liu et al. 2025). It
    is therefore as large as Adam's, and both use one learning rate.

    Args:
        groups: Parameter groups with `is_matrix`, whether Muon optimizes them, and a decoupled `weight_decay`.
        lr: Learning rate of all parameters.
        betas, eps: Adam's (5.3), for the other parameters.
        is_shared: Whether each rank computes a share of the updates, and gathers the rest. All ranks need the same
            gradients.
    """

    # A copy of an optimizer has groups and state only, so these are also attributes of the class.
    _is_shared = False
    # A gradient scaler leaves unscaling to the step of a fused Adam, which unscales only its own parameters. Set again
    # below, since Adam sets it.
    _step_supports_amp_scaling = False

    def __init__(
        self,
        groups: Sequence[dict[str, Any]],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.98),
        eps: float = 1e-9,
        is_shared: bool = False,
    ) -> None:
        others = [weights for group in groups if not group["is_matrix"] for weights in group["params"]]
        # On CPUs only; the fused kernel assumes that parameters are contiguous.
        is_fused = all(weights.device.type == "cpu" and weights.is_contiguous() for weights in others)
        super().__init__(groups, lr, betas, eps, weight_decay=0.0, fused=is_fused or None)
        self._step_supports_amp_scaling = False
        self._is_shared = is_shared

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        groups = self.param_groups
        # `Adam.step` updates all groups that it sees.
        self.param_groups = [group for group in groups if not group["is_matrix"]]
        try:
            loss = super().step(closure)
        finally:
            self.param_groups = groups
        for group in groups:
            if group["is_matrix"]:
                self._step_matrices(group)
        return loss

    def _step_matrices(self, group: dict[str, Any]) -> None:
        by_shape: dict[torch.Size, list[torch.Tensor]] = {}  # one batch per shape, because small products are slow
        for weights in group["params"]:
            if weights.grad is not None:
                by_shape.setdefault(weights.shape, []).append(weights)
        for shape, matrices in by_shape.items():
            gradients = [weights.grad for weights in matrices]
            for weights in matrices:
                if not self.state[weights]:
                    # Adam cannot load a saved state without a step.
                    self.state[weights] = {"step": torch.zeros(()), "momentum": torch.zeros_like(weights)}
            momenta = [self.state[weights]["momentum"] for weights in matrices]
            torch._foreach_lerp_(momenta, gradients, 1 - _MOMENTUM)
            updates = torch.stack(torch._foreach_lerp(gradients, momenta, _MOMENTUM))  # Nesterov's
            updates = updates.to(_fast_dtype(updates.device))  # [matrices, rows, columns]
            updates = _orthogonalize_by_ranks(updates) if self._is_shared else orthogonalize(updates)
            if group["weight_decay"]:
                torch._foreach_mul_(matrices, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(matrices, list(updates), alpha=-group["lr"] * 0.2 * max(shape) ** 0.5)


def _orthogonalize_by_ranks(matrices: torch.Tensor) -> torch.Tensor:
    """`orthogonalize` the same matrices on all ranks, `[matrices, rows, columns]`. Collective."""
    ranks = dist.get_world_size()
    share = -(-len(matrices) // ranks)
    mine = (dist.get_rank() * share + torch.arange(share)) % len(matrices)  # surplus ranks start over
    part = orthogonalize(matrices[mine]).contiguous()
    parts = [torch.empty_like(part) for _ in range(ranks)]
    dist.all_gather(parts, part)
    return torch.cat(parts)[: len(matrices)]


def _fast_dtype(device: torch.device) -> torch.dtype:
    """bfloat16, as in Jordan et al., if a device has instructions for it; else float32."""
    if device.type == "cpu":
        names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
        is_fast = any(getattr(torch.cpu, name, lambda: False)() for name in names)
    else:
        is_fast = "bf16" in usable_precisions(device)
    return torch.bfloat16 if is_fast else torch.float32


def parameter_groups(model: torch.nn.Module, weight_decay: float, decayed: Container[str]) -> list[dict[str, Any]]:
    """Groups for `Muon`: matrices of linear layers except the softmax, and all other parameters that are not frozen.

    A softmax that shares the matrix of an embedding counts as an embedding. The weight decay applies to the parameters
    that `decayed` names, as returned by `Trainer.get_decay_parameter_names`, which leaves out biases and norms.
    """
    linear = {
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and not name.endswith("lm_head")
    }
    groups: dict[tuple[bool, bool], list[torch.nn.Parameter]] = {}
    for name, weights in model.named_parameters():
        if weights.requires_grad:
            groups.setdefault((name in linear, name in decayed), []).append(weights)
    return [
        {"params": group, "is_matrix": is_matrix, "weight_decay": weight_decay if is_decayed else 0.0}
        for (is_matrix, is_decayed), group in groups.items()
    ]


def orthogonalize(matrices: torch.Tensor) -> torch.Tensor:
    """Set the singular values to about 1, at most 1.2, by Newton-Schulz iterations; the singular vectors stay.

    Args:
        matrices: `[..., rows, columns]`

    Returns:
        `[..., rows, columns]`. Singular values above about 1/30 of the matrix's norm become at least 0.65; smaller ones
        grow at least twenty-fold, relative to the norm.
    """
    if matrices.shape[-2] > matrices.shape[-1]:
        return orthogonalize(matrices.mT).mT
    a, b, c = _COEFFICIENTS
    x = matrices / (matrices.norm(dim=(-2, -1), keepdim=True) + 1e-7)  # singular values of at most 1
    for _ in range(_ITERATIONS):
        squared = x @ x.mT  # [..., rows, rows]
        x = torch.baddbmm(x, torch.baddbmm(squared, squared, squared, beta=b, alpha=c), x, beta=a)
    return x

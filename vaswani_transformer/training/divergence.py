"""Divergence: training ends at the first non-finite loss, gradient or weight, and never saves such a weight."""

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.utils import get_total_norm
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from .checkpoints import list_checkpoints


class DivergenceError(ValueError):
    """A loss, gradient or weight is not finite."""


def spread_non_finite(loss: torch.Tensor) -> torch.Tensor:
    """The loss itself; if it is not finite, its whole gradient becomes NaN.

    A sum that overflows would have finite gradients. The NaN reaches every rank with the all-reduce of the gradients,
    and needs no extra communication.
    """
    return loss * torch.where(loss.detach().isfinite(), 1.0, math.nan)


def total_norm(tensors: Iterable[torch.Tensor], norm_type: float) -> torch.Tensor:
    """The norm of some tensors together, a scalar on their device; only floating-point tensors count."""
    return get_total_norm([tensor.detach() for tensor in tensors if tensor.is_floating_point()], norm_type)


class DivergenceGuard(TrainerCallback):
    """Ends training when the norm of the gradients, or a weight, is not finite.

    After the all-reduce all ranks have the same gradients, so all of them raise at the same step. On a CPU this happens
    before the optimizer applies the gradients. On a GPU the host reads the result one step later, so as not to wait
    for the device, but always before an evaluation, a checkpoint or the end of training.

    With fp16 the gradient scaler skips steps whose gradients overflow. They count as divergence only once the loss
    scale is 1 or less.

    Raises:
        DivergenceError: From `train()`.
    """

    # A step; whether its gradients are finite, a scalar in host memory; and the event after which the scalar is valid.
    _pending: tuple[int, torch.Tensor, torch.Event | None] | None = None

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._judge(args, kwargs["optimizer"])
        gradients = [weight.grad for weight in kwargs["model"].parameters() if weight.grad is not None]
        finite, copied = total_norm(gradients, 2.0).isfinite(), None
        if finite.device.type != "cpu":
            finite = finite.to("cpu", non_blocking=True)
            copied = torch.Event(device=args.device)
            copied.record()
        self._pending = state.global_step + 1, finite, copied
        if copied is None:
            self._judge(args, kwargs["optimizer"])

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if control.should_save or control.should_evaluate or control.should_training_stop:
            self._judge(args, kwargs["optimizer"])
            self.check_weights(kwargs["model"], args, state)

    def check_weights(self, model: torch.nn.Module, args: TrainingArguments, state: TrainerState) -> None:
        """Raise DivergenceError unless all weights are finite; a weight decay of NaN spoils them at a finite loss."""
        if not total_norm(model.parameters(), math.inf).isfinite():
            raise self._error(state.global_step, "weights", args)

    def _judge(self, args: TrainingArguments, optimizer: Any) -> None:
        if self._pending is None:
            return
        (step, finite, copied), self._pending = self._pending, None
        if copied is not None:
            copied.synchronize()
        scaler = getattr(optimizer, "scaler", None)
        if not finite and (scaler is None or scaler.get_scale() <= 1):
            raise self._error(step, "loss or gradient", args)

    def _error(self, step: int, quantity: str, args: TrainingArguments) -> DivergenceError:
        before = [str(directory) for each, directory in list_checkpoints(args.output_dir).items() if each < step]
        kept = f"the last good checkpoint is {before[-1]}" if before else "there is no checkpoint before it"
        return DivergenceError(
            f"training diverged at step {step}: {quantity} not finite; {kept}; lower the learning rate"
        )

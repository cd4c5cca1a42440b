"""Section 5.3 of the paper: the learning rate of each step.

It rises linearly for `warmup_steps` steps, then falls with the inverse square root of the step number.
The authors' code calls this schedule "noam". A cooldown at the end of the training is opt-in.
"""

import math
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging

from .callbacks import TrainingTotals, may_synchronize, minutes_since, training_began


logger = logging.get_logger(__name__)

# The longest warm-up, as a share of a training's minutes. The paper's takes 4 % of its steps.
WARMUP_SHARE = 0.1
_CUT = "warmup_cut"  # name in `TrainerState.stateful_callbacks`


def noam_learning_rate(step: int, d_model: int, warmup_steps: int = 4000, factor: float = 1.0) -> float:
    """Equation 3 (5.3): `factor * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)`.

    Steps count from 1; the rate is highest at the step `warmup_steps`. In the paper, the factor is 1.

    Raises:
        ValueError: An argument is not positive.
    """
    for name, value in {"step": step, "d_model": d_model, "warmup_steps": warmup_steps, "factor": factor}.items():
        if not value > 0:
            raise ValueError(f"{name}: must be positive, is {value}")
    return factor * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


class WarmupCheck(TrainerCallback):
    """Warns if training will end before the warm-up does."""

    def __init__(self, warmup_steps: int) -> None:
        self.warmup_steps = warmup_steps

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        is_cut = _CUT in state.stateful_callbacks
        if state.is_world_process_zero and state.max_steps < self.warmup_steps and not is_cut:
            logger.warning(
                f"warmup_steps: training ends at step {state.max_steps}, before the learning rate is highest, at step "
                f"{self.warmup_steps}; set fewer, or train longer"
            )


class NoamSchedule(WarmupCheck):
    """Applies the paper's learning rate in any `Trainer`; `learning_rate` and `lr_scheduler_type` have no effect.

    The rate depends only on the trainer's step counter, so resuming does not change it. A log entry has the rate of its
    own step. Arguments and errors as in `noam_learning_rate`.
    """

    def __init__(self, warmup_steps: int = 4000, factor: float = 1.0) -> None:
        noam_learning_rate(1, 1, warmup_steps, factor)  # raises on invalid arguments
        super().__init__(warmup_steps)
        self.factor = factor

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        d_model = kwargs["model"].config.hidden_size  # its name in models of transformers
        rate = noam_learning_rate(state.global_step + 1, d_model, self.warmup_steps, self.factor)
        _set_rates(kwargs["optimizer"], kwargs["lr_scheduler"], [rate] * len(kwargs["optimizer"].param_groups))


class WarmupCooldown(TrainerCallback):
    """Ends a schedule's warm-up early, and adds a cooldown, to fit the training's time.

    A warm-up ends after its steps, or after a tenth of the minutes, if that comes first. The rate has then risen as
    steeply as the schedule asks, but not as high: post-LN layers do not learn after a steeper rise (Xiong et al. 2020).
    From there it falls with the inverse square root of the step number, as in 5.3, or stays constant. Checkpoints store
    where the warm-up was cut. A cooldown lowers the rate linearly to zero at the end; the paper averages checkpoints
    instead (6.1). The training ends after `args.max_steps`, or after the minutes, if that comes first. If a callback is
    the schedule, add this one after it.

    Args:
        warmup_steps: Steps during which the schedule's rate rises; 0 without a warm-up.
        falls: Whether the rate falls after a warm-up that was cut.
        cooldown: Share of the training during which the rate falls; 1 for all of it, 0 for no cooldown.
        minutes: Limit of `TimeLimit`; by default the steps alone count.
    """

    def __init__(
        self, warmup_steps: int = 0, falls: bool = False, cooldown: float = 0.0, minutes: float | None = None
    ) -> None:
        self.warmup_steps, self.falls = warmup_steps, falls
        self.cooldown, self.minutes = cooldown, minutes
        self._began = self._passed = 0.0
        self._rates: list[float] = []  # the schedule's

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self._began = training_began(state)
        self._passed = TrainingTotals.in_checkpoint(state)["seconds"] / 60

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        time_share = 0.0
        if self.minutes is not None:
            if may_synchronize(args, state.global_step):
                self._passed = minutes_since(self._began, args)
            time_share = self._passed / self.minutes
        left = max(0.0, 1.0 - max(state.global_step / state.max_steps, time_share))
        fall = min(1.0, left / self.cooldown) if self.cooldown else 1.0
        self._rates = [group["lr"] for group in kwargs["optimizer"].param_groups]
        if time_share >= WARMUP_SHARE:
            self._cut_warmup(state)
        fitted = [fall * rate for rate in self._rates_after_cut(state)]
        _set_rates(kwargs["optimizer"], kwargs["lr_scheduler"], fitted)

    def _cut_warmup(self, state: TrainerState) -> None:
        """Make the coming step the last of an unfinished warm-up; not if its rate is 0, as the first may be."""
        step = state.global_step + 1
        if step >= self.warmup_steps or _CUT in state.stateful_callbacks or not all(self._rates):
            return
        state.stateful_callbacks[_CUT] = {"args": {}, "attributes": {"step": step, "rates": self._rates}}
        if state.is_world_process_zero:
            logger.warning(
                f"warmup_steps: the warm-up ends after {step} of {self.warmup_steps} steps, at a tenth of max_minutes, "
                f"with a learning rate of {max(self._rates):.2g}; for a higher one, train longer or set fewer"
            )

    def _rates_after_cut(self, state: TrainerState) -> list[float]:
        """The schedule's rates or, after a cut, the rates that follow from it."""
        if _CUT not in state.stateful_callbacks:
            return self._rates
        cut = state.stateful_callbacks[_CUT]["attributes"]
        share = math.sqrt(cut["step"] / (state.global_step + 1)) if self.falls else 1.0
        return [share * rate for rate in cut["rates"]]

    def on_optimizer_step(self, *_: Any, optimizer: Optimizer, **__: Any) -> None:
        """Restore the schedule's rates, since no schedule sets them after a step that the gradient scaler skips."""
        for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate


def steps_of_warmup(state: TrainerState, warmup_steps: int) -> int:
    """Number of warm-up steps in a training; fewer than `warmup_steps` if the warm-up was cut."""
    if _CUT in state.stateful_callbacks:
        return state.stateful_callbacks[_CUT]["attributes"]["step"]
    return min(warmup_steps, state.global_step)


def _set_rates(optimizer: Optimizer, scheduler: LRScheduler, rates: list[float]) -> None:
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    scheduler._last_lr = [*rates]  # what the trainer logs

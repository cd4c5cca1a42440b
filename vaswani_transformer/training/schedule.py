"""Section 5.3 of the paper: the learning rate rises linearly for `warmup_steps` steps, then falls as the inverse square root
of the step number."""

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


def noam_learning_rate(step: int, d_model: int, warmup_steps: int = 4000, factor: float = 1.0) -> float:
    """Equation 3 (5.3): `factor * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)`.

    Args:
        step: Number of the optimizer step, from 1.
        d_model: Width of the model.
        warmup_steps: The step with the highest rate.
        factor: Multiplies the whole; 1 in the paper.
    """
    return factor * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


class NoamSchedule(TrainerCallback):
    """Applies the paper's learning rate in any `Trainer`, whatever `learning_rate` and `lr_scheduler_type` say.

    The rate that the trainer logs is the one that the logged step was made with, also after resuming.

    Args:
        warmup_steps: The step with the highest rate (paper: 4,000).
        factor: Multiplies the rate; 1 in the paper.

    Raises:
        ValueError: An argument is not positive.
    """

    def __init__(self, warmup_steps: int = 4000, factor: float = 1.0) -> None:
        if warmup_steps < 1:
            raise ValueError(f"warmup_steps: must be at least 1, is {warmup_steps}")
        if factor <= 0:
            raise ValueError(f"factor: must be positive, is {factor}")
        self.warmup_steps = warmup_steps
        self.factor = factor

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        scheduler, d_model = kwargs["lr_scheduler"], kwargs["model"].config.d_model

        def rate(steps_done: int) -> float:
            return noam_learning_rate(steps_done + 1, d_model, self.warmup_steps, self.factor)

        # The trainer has made its own LambdaLR by now, and restored it if it resumes: only its curve is replaced. Its
        # step counter starts at 0, the paper's at 1.
        groups = scheduler.optimizer.param_groups
        scheduler.base_lrs = [1.0] * len(groups)
        scheduler.lr_lambdas = [rate] * len(groups)
        scheduler._last_lr = [rate(scheduler.last_epoch)] * len(groups)
        for group in groups:
            group["lr"] = rate(scheduler.last_epoch)

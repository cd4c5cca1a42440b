"""Section 5.3 of the paper: the learning rate of each step.

It rises linearly for `warmup_steps` steps, then falls with the inverse square root of the step number.
The authors' code calls this schedule "noam".
"""

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.utils import logging


logger = logging.get_logger(__name__)


def noam_learning_rate(step: int, d_model: int, warmup_steps: int = 4000, factor: float = 1.0) -> float:
    """Equation 3 (5.3): `factor * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5)`.

    Args:
        step: Number of the optimizer step, from 1.
        d_model: Width of the model.
        warmup_steps: The step with the highest rate.
        factor: Multiplies the rate; 1 in the paper.

    Raises:
        ValueError: An argument is not positive.
    """
    for name, value in (("step", step), ("d_model", d_model), ("warmup_steps", warmup_steps), ("factor", factor)):
        if not value > 0:
            raise ValueError(f"{name}: must be positive, is {value}")
    return factor * d_model**-0.5 * min(step**-0.5, step * warmup_steps**-1.5)


class NoamSchedule(TrainerCallback):
    """Applies the paper's learning rate in any `Trainer`; `learning_rate` and `lr_scheduler_type` have no effect.

    The rate depends only on the trainer's step counter, so that resuming does not change it. A logged rate is that of
    the logged step.

    Args:
        warmup_steps: The step with the highest rate (paper: 4,000).
        factor: Multiplies the rate; 1 in the paper.

    Raises:
        ValueError: An argument is not positive.
    """

    def __init__(self, warmup_steps: int = 4000, factor: float = 1.0) -> None:
        noam_learning_rate(1, 1, warmup_steps, factor)  # raises for wrong arguments
        self.warmup_steps = warmup_steps
        self.factor = factor

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: object
    ) -> None:
        if state.is_world_process_zero and state.max_steps < self.warmup_steps:
            logger.warning(
                f"warmup_steps: training ends at step {state.max_steps}, before the learning rate is highest, at step "
                f"{self.warmup_steps}; set fewer, or train longer"
            )

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        d_model = kwargs["model"].config.hidden_size  # models of transformers have it under this name
        rate = noam_learning_rate(state.global_step + 1, d_model, self.warmup_steps, self.factor)
        groups = kwargs["optimizer"].param_groups
        for group in groups:
            group["lr"] = rate
        kwargs["lr_scheduler"]._last_lr = [rate] * len(groups)  # what the trainer logs

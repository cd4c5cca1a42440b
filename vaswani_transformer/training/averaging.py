"""Section 6.1 of the paper: the model to use is the average of the last checkpoints."""

import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast
from safetensors.torch import load_file
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR


def average_checkpoints(directories: Sequence[str | Path]) -> dict[str, torch.Tensor]:
    """Mean of the weights of several checkpoints, summed in float64 and returned in float32.

    Args:
        directories: Each with a `model.safetensors`, or the shards of one.

    Returns:
        The averaged state dict.

    Raises:
        ValueError: There are no directories, or their tensors differ in name or shape.
        FileNotFoundError: A directory has no safetensors.
    """
    if not directories:
        raise ValueError("there are no checkpoints to average; save at least one")
    total: dict[str, torch.Tensor] = {}
    for directory in directories:
        weights = _load_weights(Path(directory))
        shapes = {name: tensor.shape for name, tensor in weights.items()}
        if total and shapes != {name: tensor.shape for name, tensor in total.items()}:
            raise ValueError(f"{directory}: its tensors differ in name or shape from those of {directories[0]}")
        for name, tensor in weights.items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / len(directories)).float() for name, tensor in total.items()}


def _load_weights(directory: Path) -> dict[str, torch.Tensor]:
    files = sorted(directory.glob("model*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{directory}: there is no model.safetensors to average")
    return {name: tensor for file in files for name, tensor in load_file(file).items()}


def last_checkpoints(output_dir: str | Path, last: int) -> list[Path]:
    """The `last` newest checkpoint directories of a trainer, oldest first."""
    steps = {}
    for directory in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        if match := re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", directory.name):
            steps[int(match[1])] = directory
    return [steps[step] for step in sorted(steps)[-last:]]


class CheckpointAveraging(TrainerCallback):
    """Leaves the average of the last checkpoints in the trainer's model when training ends.

    `trainer.save_model()` then saves the average. The checkpoints themselves stay as they are, and training can be
    resumed from them.

    Args:
        last: Number of checkpoints averaged (paper: 5 for base, 20 for big); fewer if fewer were written.
        every_minutes: Also write a checkpoint whenever so many minutes have passed (paper: 10), beside those that
            `save_strategy` asks for. With it the last step is saved, too.

    Raises:
        ValueError: An argument is not positive. From `train()`: the trainer would delete the checkpoints too early
            (`save_total_limit`), write none (`save_strategy`), or replace the average (`load_best_model_at_end`).
    """

    def __init__(self, last: int = 5, every_minutes: float | None = None) -> None:
        if last < 1:
            raise ValueError(f"last: must be at least 1, is {last}")
        if every_minutes is not None and every_minutes <= 0:
            raise ValueError(f"every_minutes: must be positive, is {every_minutes}")
        self.last = last
        self.every_minutes = every_minutes
        self.averaged: list[Path] = []
        self._saved_at = 0.0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if args.save_total_limit is not None and args.save_total_limit < self.last:
            raise ValueError(f"save_total_limit: {args.save_total_limit} is too few to average {self.last}; raise it")
        if args.load_best_model_at_end:
            raise ValueError("load_best_model_at_end: it excludes the averaging of checkpoints; set one or the other")
        if args.save_strategy == "no" and self.every_minutes is None:
            raise ValueError("save_strategy: there will be no checkpoints to average; set it, or every_minutes")
        self._saved_at = time.monotonic()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.every_minutes is None:
            return
        due = torch.tensor(time.monotonic() - self._saved_at >= 60 * self.every_minutes, device=args.device).int()
        # The clocks of processes differ, but all must save at the same step.
        if broadcast(due).item() or state.global_step == state.max_steps:
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._saved_at = time.monotonic()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        PartialState().wait_for_everyone()  # the main process may still be writing the last one
        self.averaged = last_checkpoints(args.output_dir, self.last)
        model = kwargs["model"]
        # Tied weights are stored once; the names of the others are missing, and stay tied.
        missing, unexpected = model.load_state_dict(average_checkpoints(self.averaged), strict=False)
        untied = set(missing) - set(model.all_tied_weights_keys)
        if untied or unexpected:
            raise ValueError(f"{self.averaged[-1]}: not a checkpoint of this model: {sorted(untied) + unexpected}")

"""Section 6.1 of the paper: the model to use is the average of the last checkpoints."""

import json
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, logging

from .callbacks import have_passed


logger = logging.get_logger(__name__)


def average_checkpoints(directories: Iterable[str | Path]) -> dict[str, torch.Tensor]:
    """Mean of the weights of several checkpoints, summed in float64 and returned in float32.

    Args:
        directories: Each with a `model.safetensors`, or its shards and their index.

    Returns:
        The averaged state dict.

    Raises:
        ValueError: There are no directories, their tensors differ in name or shape, or a file is damaged.
        FileNotFoundError: A directory has no safetensors, or lacks a shard.
    """
    if isinstance(directories, (str, Path)):
        raise ValueError(f"directories: must be a list of checkpoints, is one path, {directories}")
    paths = [Path(directory) for directory in directories]
    if not paths:
        raise ValueError("directories: there are no checkpoints to average; save at least one")
    total: dict[str, torch.Tensor] = {}
    for path in paths:
        weights = _load_weights(path)
        if total:
            _check_same_tensors(weights, total, path, paths[0])
        for name, tensor in weights.items():
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / len(paths)).float() for name, tensor in total.items()}


def _load_weights(directory: Path) -> dict[str, torch.Tensor]:
    files, index = [directory / SAFE_WEIGHTS_NAME], directory / SAFE_WEIGHTS_INDEX_NAME
    if index.is_file() and not files[0].is_file():
        shards = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        files = [directory / shard for shard in sorted(set(shards))]
    weights = {}
    for file in files:
        if not file.is_file():
            raise FileNotFoundError(f"{directory}: there is no {file.name} to average")
        try:
            weights.update(load_file(file))
        except SafetensorError as error:
            raise ValueError(f"{file}: is damaged, and cannot be averaged: {error}") from error
    return weights


def _check_same_tensors(
    weights: dict[str, torch.Tensor], others: dict[str, torch.Tensor], directory: Path, first: Path
) -> None:
    shapes, expected = ({name: tensor.shape for name, tensor in side.items()} for side in (weights, others))
    different = sorted(name for name in shapes | expected if shapes.get(name) != expected.get(name))
    if different:
        raise ValueError(f"{directory}: differs from {first} in the name or shape of {different[0]}")


class CheckpointAveraging(TrainerCallback):
    """Leaves the average of the last checkpoints in the trainer's model when training ends.

    `trainer.save_model()` then saves the average. The checkpoints themselves stay as they are, and training can be
    resumed from them. Of those that lie in `output_dir` when training begins, only the ones up to the step at which it
    resumes count; the others are left from another run.

    Args:
        last: Number of checkpoints averaged (paper: 5 for base, 20 for big); fewer if fewer were written.
        every_minutes: Also write a checkpoint whenever so many minutes have passed (paper: 10), beside those that
            `save_strategy` asks for. With it the last step is saved, too.

    Attributes:
        averaged: The directories that were averaged, oldest first.

    Raises:
        ValueError: An argument is not positive. From `train()`: the trainer would delete the checkpoints too early
            (`save_total_limit`), write none (`save_strategy`), or replace the average (`load_best_model_at_end`).
    """

    def __init__(self, last: int = 5, every_minutes: float | None = None) -> None:
        if not last >= 1:
            raise ValueError(f"last: must be at least 1, is {last}")
        if every_minutes is not None and not every_minutes > 0:
            raise ValueError(f"every_minutes: must be positive, is {every_minutes}")
        self.last = last
        self.every_minutes = every_minutes
        self.averaged: list[Path] = []
        self._steps: set[int] = set()  # of this run's checkpoints
        self._saved_at = 0.0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.check(args)
        self._steps = {step for step in _checkpoints(args.output_dir) if step <= state.global_step}
        self._saved_at = time.monotonic()

    def check(self, args: TrainingArguments) -> None:
        """Raise the ValueError that `train()` would raise, before anything expensive is done."""
        if 0 < (args.save_total_limit or 0) < self.last:  # the trainer, too, takes 0 for no limit
            raise ValueError(f"save_total_limit: {args.save_total_limit} is too few to average {self.last}; raise it")
        if args.load_best_model_at_end:
            raise ValueError("load_best_model_at_end: it excludes the averaging of checkpoints; set one or the other")
        if args.save_strategy == "no" and self.every_minutes is None:
            raise ValueError("save_strategy: there will be no checkpoints to average; set it, or every_minutes")

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.every_minutes is None:
            return
        if have_passed(self.every_minutes, self._saved_at, args) or control.should_training_stop:
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._steps.add(state.global_step)
        self._saved_at = time.monotonic()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        PartialState().wait_for_everyone()  # the main process may still be writing the last one
        checkpoints = _checkpoints(args.output_dir)
        self.averaged = [checkpoints[step] for step in sorted(self._steps & checkpoints.keys())[-self.last :]]
        if not self.averaged:
            logger.warning("CheckpointAveraging: no checkpoint was written, so the model keeps its last weights")
            return
        # What the checkpoints lack is tied to what they have, or constant, and stays as it is.
        _, unexpected = kwargs["model"].load_state_dict(average_checkpoints(self.averaged), strict=False)
        if unexpected:
            raise ValueError(f"{self.averaged[-1]}: not a checkpoint of this model, which has no {unexpected[0]}")


def _checkpoints(output_dir: str | Path) -> dict[int, Path]:
    """The checkpoint directories of a trainer, by step."""
    found = {}
    for directory in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*"):
        if match := re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", directory.name):
            found[int(match[1])] = directory
    return found

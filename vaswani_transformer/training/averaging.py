"""Section 6.1 of the paper: the model to use is the average of the last checkpoints."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast, parse_flag_from_env
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, SaveStrategy
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, logging

from ..io.files import read_json
from ..io.typed_json import from_json
from ..launch.interruption import interruption_steps
from ..launch.processes import on_main_process
from .callbacks import have_passed
from .checkpoints import checkpoint_damage, list_checkpoints


logger = logging.get_logger(__name__)


def average_checkpoints(directories: Iterable[str | Path]) -> dict[str, torch.Tensor]:
    """Mean of the weights of several checkpoints, summed in float64 and returned in float32.

    Args:
        directories: Each with a `model.safetensors`, or its shards and their index.

    Returns:
        The averaged state dict.

    Raises:
        ValueError: There are no directories, their tensors differ in name or shape, one is not finite, or a file is
            damaged.
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
        shapes, expected = ({name: tensor.shape for name, tensor in side.items()} for side in (weights, total))
        if total and shapes != expected:
            name = min(name for name, _ in shapes.items() ^ expected.items())
            raise ValueError(f"{path}: differs from {paths[0]} in the name or shape of {name}")
        for name, tensor in weights.items():
            if not tensor.isfinite().all():
                raise ValueError(f"{path}: {name} is not finite, so training has diverged; lower the learning rate")
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / len(paths)).float() for name, tensor in total.items()}


def _load_weights(directory: Path) -> dict[str, torch.Tensor]:
    files, index = [directory / SAFE_WEIGHTS_NAME], directory / SAFE_WEIGHTS_INDEX_NAME
    if index.is_file() and not files[0].is_file():
        shards = from_json(dict[str, str], read_json(index).get("weight_map"), f"{index}: weight_map").values()
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


class CheckpointAveraging(TrainerCallback):
    """Leaves the average of the last checkpoints in the trainer's model when training ends.

    `trainer.save_model()` then saves the average. The checkpoints themselves stay as they are, and training can be
    resumed from them. Of the checkpoints in `output_dir` when training begins, only those up to the step that it
    resumes from are averaged; later ones belong to another run.

    Args:
        last: Number of checkpoints averaged (paper: 5 for base, 20 for big); fewer if fewer were written.
        every_minutes: Minutes between checkpoints (paper: 10), which are saved in addition to those of `save_strategy`.
            The last step is then saved, too.

    Attributes:
        averaged: The directories that were averaged, oldest first.

    Raises:
        ValueError: An argument is not positive. From `train()`: the trainer would delete the checkpoints too early
            (`save_total_limit`), write none (`save_strategy`), or replace the average (`load_best_model_at_end`); or
            the weights are sharded (`fsdp`).
    """

    def __init__(self, last: int = 5, every_minutes: float | None = None) -> None:
        if not last >= 1:
            raise ValueError(f"last: must be at least 1, is {last}")
        if every_minutes is not None and not every_minutes > 0:
            raise ValueError(f"every_minutes: must be positive, is {every_minutes}")
        self.last = last
        self.every_minutes = every_minutes
        self.averaged: list[Path] = []
        self._steps: set[int] = set()  # whose checkpoints belong to this run
        self._saved_at = 0.0

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        self.check(args)
        self._steps = on_main_process(lambda: self._earlier_steps(state, args.output_dir))
        self._saved_at = time.monotonic()

    def _earlier_steps(self, state: TrainerState, output_dir: str) -> set[int]:
        """Steps of the checkpoints on disk up to the one that training resumes from, without damaged ones."""
        self._steps = {each for each in list_checkpoints(output_dir) if each <= state.global_step}
        self._steps.difference_update(interruption_steps(state))
        self._usable(output_dir)
        return self._steps

    def check(self, args: TrainingArguments) -> None:
        """Raise the ValueError that `train()` would raise, before anything expensive is done."""
        if args.save_total_limit == 1 and args.metric_for_best_model is not None:
            raise ValueError("save_total_limit: with 1, the trainer deletes all but the best checkpoint; raise it")
        if args.save_strategy == SaveStrategy.BEST:
            raise ValueError("save_strategy: the last checkpoints are averaged, not the best; give steps or epoch")
        if 0 < (args.save_total_limit or 0) < self.last:  # for the trainer, too, 0 is no limit
            raise ValueError(f"save_total_limit: {args.save_total_limit} is too few to average {self.last}; raise it")
        if args.fsdp or parse_flag_from_env("ACCELERATE_USE_FSDP"):
            raise ValueError("fsdp: each rank holds a part of the weights, which cannot be averaged; train without it")
        if args.load_best_model_at_end:
            raise ValueError("load_best_model_at_end: it excludes the averaging of checkpoints; set one or the other")
        if args.save_strategy == "no" and self.every_minutes is None:
            raise ValueError(
                "save_strategy: there will be no checkpoints to average; set it, or every_minutes "
                "(in train_wmt.py save_minutes)"
            )

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.every_minutes is None:
            return
        is_due = have_passed(self.every_minutes, self._saved_at, args, state.global_step)
        if is_due or control.should_training_stop:
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.global_step in interruption_steps(state):
            return
        self._steps.add(state.global_step)
        self._saved_at = time.monotonic()

    def needed_steps(self, step: int) -> set[int]:
        """Steps of the checkpoints that would be averaged if the one of `step` were the last."""
        return set(sorted(self._steps | {step})[-self.last :])

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        PartialState().wait_for_everyone()  # the main process may still be writing the last one
        if state.global_step in interruption_steps(state):  # and then resumed only to end there
            self._steps.add(state.global_step)
        self.averaged = on_main_process(lambda: self._load_average(args.output_dir, kwargs["model"]))
        if self.averaged:
            _broadcast_weights(kwargs["model"])
        elif PartialState().is_main_process:
            logger.warning("CheckpointAveraging: no checkpoint was written, so the model keeps its last weights")

    def _load_average(self, output_dir: str, model: torch.nn.Module) -> list[Path]:
        """Load the average into the model, and return the directories that were averaged."""
        if not (directories := self._usable(output_dir)):
            return []
        # Tensors that checkpoints lack are tied to others, or constant.
        _, unexpected = model.load_state_dict(average_checkpoints(directories), strict=False)
        if unexpected:
            raise ValueError(f"{directories[-1]}: not a checkpoint of this model, which has no {unexpected[0]}")
        return directories

    def _usable(self, output_dir: str) -> list[Path]:
        """The newest checkpoints of this run, oldest first; damaged ones are named in a warning and forgotten."""
        usable: list[Path] = []
        for step in sorted(self._steps, reverse=True):
            if len(usable) == self.last:
                break
            directory = Path(output_dir, f"{PREFIX_CHECKPOINT_DIR}-{step}")
            if (damage := checkpoint_damage(directory, "model*", stock=True)) is None:
                usable.append(directory)
            else:
                logger.warning(f"{directory}: left out of the average, {damage}")
                self._steps.remove(step)
        return usable[::-1]


def checkpoints_to_average(output_dir: str | Path) -> dict[int, Path]:
    """The checkpoints of a training by step, oldest first, without those saved only because of a signal."""
    found = list_checkpoints(output_dir)
    if not found or not (path := [*found.values()][-1] / TRAINER_STATE_NAME).is_file():
        return found
    state = TrainerState.load_from_json(str(path))
    return {step: path for step, path in found.items() if step not in {*interruption_steps(state)} - {max(found)}}


def _broadcast_weights(model: torch.nn.Module) -> None:
    """Broadcast the main process's weights: other ranks may not see its checkpoints."""
    for tensor in {tensor.data_ptr(): tensor for tensor in model.state_dict().values()}.values():
        broadcast(tensor)

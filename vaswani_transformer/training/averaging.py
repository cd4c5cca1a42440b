"""Section 6.1 of the paper: the model to use is the average of the last checkpoints."""

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast
from safetensors.torch import load_file
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer import TRAINER_STATE_NAME
from transformers.trainer_utils import SaveStrategy
from transformers.utils import ADAPTER_SAFE_WEIGHTS_NAME, logging

from ..options.training import VaswaniTrainingArguments
from ..system.files import file_errors_as_os_error
from ..system.processes import on_main_process
from .callbacks import have_passed
from .checkpoints import checkpoint_damage, list_checkpoints
from .signals import signal_steps


logger = logging.get_logger(__name__)

_STATE = "checkpoints_of_run"  # name in `TrainerState.stateful_callbacks`


def average_checkpoints(directories: Iterable[str | Path]) -> dict[str, torch.Tensor]:
    """Mean of the weights of several checkpoints, summed in float64 and returned in float32.

    Each directory has `model.safetensors`, or its shards, or PEFT's `adapter_model.safetensors`.

    Raises:
        ValueError: There are no checkpoints, or one has no weights; tensors differ in name or shape, or are not finite.
        OSError: A file is damaged.
    """
    paths = [*map(Path, directories)]
    if not paths:
        raise ValueError("directories: there are no checkpoints to average")
    total: dict[str, torch.Tensor] = {}
    for path in paths:
        with file_errors_as_os_error(f"{path}: cannot be averaged"):
            files = [*path.glob("model*.safetensors")] or [*path.glob(ADAPTER_SAFE_WEIGHTS_NAME)]
            weights = {name: each for file in files for name, each in load_file(file).items()}
        if not weights:
            raise ValueError(f"{path}: has no model.safetensors, and no {ADAPTER_SAFE_WEIGHTS_NAME}")
        shapes, expected = ({name: tensor.shape for name, tensor in side.items()} for side in (weights, total))
        if total and shapes != expected:
            name = min(name for name, _ in shapes.items() ^ expected.items())
            raise ValueError(f"{path}: differs from {paths[0]} in the name or shape of {name}")
        for name, tensor in weights.items():
            if not tensor.isfinite().all():
                raise ValueError(f"{path}: {name} is not finite, so training has diverged; lower the learning rate")
            total[name] = total[name] + tensor.double() if name in total else tensor.double()
    return {name: (tensor / len(paths)).float() for name, tensor in total.items()}


class CheckpointAveraging(TrainerCallback):
    """Leaves the average of the last checkpoints in the trainer's model when training ends.

    `trainer.save_model()` then saves the average. The checkpoints themselves stay as they are, and training can be
    resumed from them. A resumed training also averages earlier checkpoints in `output_dir`, up to the one that it
    resumes from; later ones belong to another run. Damaged ones are left out, with a warning.

    In a `PeftModel`, the parameters of the active adapter are averaged; with LoRA these are A and B, separately.

    Args:
        last: Number of checkpoints averaged (paper: 5 for base, 20 for big); fewer if fewer were written.
        every_minutes: Minutes between checkpoints (paper: 10) that are saved in addition to those by `save_strategy`.
            The last step is then also saved.

    Attributes:
        averaged: Directories of the averaged checkpoints, oldest first.

    Raises:
        ValueError: From `train()`: `save_strategy` writes no checkpoints, `load_best_model_at_end` asks for other
            weights, `save_total_limit` keeps fewer than are averaged (not with `VaswaniTrainer`, which keeps those that
            are needed), or a model that is not a `PeftModel` has adapters.
    """

    def __init__(self, last: int = 5, every_minutes: float | None = None) -> None:
        self.last = last
        self.every_minutes = every_minutes
        self.averaged: list[Path] = []
        self._steps: list[int] = []  # of the checkpoints that belong to this run
        self._saved_at = 0.0

    def check(self, args: TrainingArguments) -> None:
        """Raise the ValueError that `train()` would raise, before any expensive work."""
        if args.load_best_model_at_end:
            raise ValueError("load_best_model_at_end: cannot be combined with checkpoint averaging; disable one")
        if not isinstance(args, VaswaniTrainingArguments) and 0 < (args.save_total_limit or 0) < self.last:
            raise ValueError(f"save_total_limit: must be at least {self.last}, the number of checkpoints to average")
        if args.save_strategy == SaveStrategy.NO and self.every_minutes is None:
            raise ValueError(
                "save_strategy: there will be no checkpoints to average; give steps or epoch, or every_minutes "
                "(in train_wmt.py save_minutes)"
            )

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.check(args)
        if isinstance(kwargs["model"], PreTrainedModel) and hasattr(kwargs["model"], "peft_config"):
            raise ValueError("model: adapters of add_adapter cannot be averaged; use peft.get_peft_model")
        earlier = on_main_process(lambda: [*list_checkpoints(args.output_dir)])
        self._steps = sorted(_steps_of_run(state, earlier))
        state.stateful_callbacks[_STATE] = {"args": {}, "attributes": {"steps": self._steps}}  # a list that will grow
        self._saved_at = time.monotonic()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if self.every_minutes is None:
            return
        is_due = have_passed(self.every_minutes, self._saved_at, args, state.global_step)
        if is_due or control.should_training_stop:
            control.should_save = True

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        if state.global_step not in signal_steps(state):
            self._steps.append(state.global_step)
            self._saved_at = time.monotonic()

    def needed_steps(self, step: int) -> set[int]:
        """Steps of the checkpoints that would be averaged if the one of `step` were the last."""
        return set(sorted({*self._steps, step})[-self.last :])

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        PartialState().wait_for_everyone()  # the main process may still be writing the last one
        if state.global_step in signal_steps(state):  # it may be resumed only to end there
            self._steps.append(state.global_step)
        self.averaged = on_main_process(lambda: self._load_average(args.output_dir, kwargs["model"]))
        if self.averaged:
            weights = kwargs["model"].state_dict().values()
            for tensor in {tensor.data_ptr(): tensor for tensor in weights}.values():  # tied ones once
                broadcast(tensor)  # other ranks may not see the main process's checkpoints
        elif PartialState().is_main_process:
            logger.warning("CheckpointAveraging: no checkpoint was written, so the model keeps its last weights")

    def _load_average(self, output_dir: str, model: Any) -> list[Path]:
        """Load the average into the model, and return the directories that were averaged."""
        directories: list[Path] = []
        for step, directory in reversed(list_checkpoints(output_dir).items()):
            if step not in self._steps or len(directories) == self.last:
                continue
            if (damage := checkpoint_damage(directory, needs_manifest=False)) is None:
                directories.insert(0, directory)
            else:
                logger.warning(f"{directory}: left out of the average, {damage}")
        if directories and hasattr(model, "peft_config"):  # its checkpoints do not have the base weights
            from peft import set_peft_model_state_dict  # such a model needs the package anyway

            for name in model.active_adapters:
                folders = [directory if name == "default" else directory / name for directory in directories]
                set_peft_model_state_dict(model, average_checkpoints(folders), name)
        elif directories:
            # Tensors missing from checkpoints are tied to others, or constant.
            model.load_state_dict(average_checkpoints(directories), strict=False)
        return directories


def checkpoints_to_average(output_dir: str | Path) -> dict[int, Path]:
    """The checkpoints of the run that wrote the last one, by step, except those saved only because of a signal."""
    checkpoints = list_checkpoints(output_dir)
    if not checkpoints or not (path := [*checkpoints.values()][-1] / TRAINER_STATE_NAME).is_file():
        return checkpoints
    steps = _steps_of_run(TrainerState.load_from_json(str(path)), checkpoints) | {max(checkpoints)}
    return {step: path for step, path in checkpoints.items() if step in steps}


def _steps_of_run(state: TrainerState, on_disk: Iterable[int]) -> set[int]:
    """Steps of a run's checkpoints up to a state, without those saved only because of a signal.

    Checkpoints written without `CheckpointAveraging` do not say which run they belong to; all on disk then count.
    """
    stored = (state.stateful_callbacks or {}).get(_STATE, {}).get("attributes", {}).get("steps", on_disk)
    steps = {*stored, state.global_step}  # a checkpoint stores those before it
    return {step for step in steps if 0 < step <= state.global_step} - {*signal_steps(state)}

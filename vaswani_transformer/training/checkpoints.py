"""Atomic checkpoints: staged, given a manifest, published by one rename, and verified before they are read.

OUTPUT_DIR/_incomplete/checkpoint-N/    while it is written; the remains of an interrupted save are deleted
OUTPUT_DIR/checkpoint-N/                complete: what `Seq2SeqTrainer` saves, and `manifest.json`

`Seq2SeqTrainer` saves the model, its tokenizer, the optimizer, the scheduler, the random states of every rank, the
arguments, and `trainer_state.json` with the step, the log and the states of callbacks. The manifest has the step, the
size and SHA-256 of every other file but config.json, and a digest of itself.
"""

import errno
import os
import platform
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

from accelerate import PartialState
from transformers import Seq2SeqTrainer, TrainerState
from transformers.trainer import SCHEDULER_NAME, TRAINER_STATE_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR, SaveStrategy
from transformers.utils import logging

from ..io.files import (
    MANIFEST_NAME,
    MODEL_FILES,
    Manifest,
    atomic_remove,
    file_errors_as_os_error,
    find_damage,
    publish,
)
from ..launch.processes import all_ranks_or_none, first_of_any_rank, on_main_process


logger = logging.get_logger(__name__)

STAGING_NAME = "_incomplete"  # the trainer's pushes to the Hub leave out what begins with an underscore


def list_checkpoints(output_dir: str | Path) -> dict[int, Path]:
    """The checkpoint directories of a trainer by step, oldest first, complete or not."""
    directories = [path for path in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*") if path.is_dir()]
    found = {step: path for path in directories if (step := _step_of(path)) is not None}
    return dict(sorted(found.items()))


def _step_of(directory: Path) -> int | None:
    match = re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", directory.name)
    return None if match is None else int(match[1])


def checkpoint_damage(directory: Path, pattern: str = "*", stock: bool = False) -> str | None:
    """What is wrong with a checkpoint; None if each file that matches `pattern` is as its manifest says.

    With `stock`, a checkpoint without a manifest is accepted if no sibling checkpoint has a manifest either: the stock
    trainer writes none.
    """
    beside = directory.parent.glob(f"{PREFIX_CHECKPOINT_DIR}-*/{MANIFEST_NAME}")
    if stock and directory.is_dir() and not any(beside):
        return None
    damage = find_damage(directory, pattern)
    if damage is None and _step_of(directory) not in (None, step := Manifest.load(directory).notes.get("step")):
        return f"{MANIFEST_NAME} is of step {step}"
    return damage


def find_reason_not_to_resume(directory: str | Path) -> str | None:
    """Why training cannot resume from a checkpoint; None if it can. Collective: the same on all ranks.

    One process of each machine reads the files, so that a checkpoint must be complete on every machine.
    """
    reason = None
    if PartialState().is_local_main_process:
        reason = checkpoint_damage(Path(directory))
        if reason is None:
            if SCHEDULER_NAME not in Manifest.load(Path(directory)).files:
                reason = f"was saved without {SCHEDULER_NAME} (save_only_model)"
        elif not PartialState().is_main_process:
            reason += f" on {platform.node()}"
    return first_of_any_rank(reason)


def newest_complete_checkpoint(output_dir: str | Path) -> Path | None:
    """The newest checkpoint from which training can resume, or None. Collective; a warning names those skipped."""
    names = on_main_process(lambda: [directory.name for directory in list_checkpoints(output_dir).values()])
    for directory in (Path(output_dir, name) for name in reversed(names)):
        reason = find_reason_not_to_resume(directory)
        if reason is None:
            return directory
        if PartialState().is_main_process:
            logger.warning(f"{directory}: skipped, {reason}")
    return None


def remove_incomplete(output_dir: str | Path) -> None:
    """Delete the remains of interrupted saves and deletions; a warning names each checkpoint that was not finished."""
    remains = Path(output_dir, STAGING_NAME)
    for directory in list_checkpoints(remains).values():
        logger.warning(f"{Path(output_dir, directory.name)}: skipped, the training ended while it was written")
    shutil.rmtree(remains, ignore_errors=True)


def remove_surplus(output_dir: Path, limit: int, step: int, needed: Iterable[int]) -> None:
    """Delete the oldest checkpoints beyond a limit, except those of needed steps, each atomically.

    Args:
        output_dir: Directory of the checkpoints.
        limit: Number of checkpoints to keep.
        step: Step of the newest checkpoint, which is kept. Later ones belong to another training and are not counted.
        needed: Steps whose checkpoints are kept, too.
    """
    found = {each: directory for each, directory in list_checkpoints(output_dir).items() if each <= step}
    deletable = [directory for each, directory in found.items() if each not in {step, *needed}]
    for directory in deletable[: max(0, len(found) - limit)]:
        atomic_remove(directory, output_dir / STAGING_NAME)


def publish_files(staged: Path, directory: Path) -> None:
    """Move files into a directory, each atomically, the weights last, and then the manifest."""
    files = [path for path in staged.rglob("*") if path.is_file()]
    (directory / MANIFEST_NAME).unlink(missing_ok=True)
    for path in sorted(files, key=lambda path: (path.name == MANIFEST_NAME, path.suffix == ".safetensors", path)):
        destination = directory / path.relative_to(staged)
        destination.parent.mkdir(parents=True, exist_ok=True)
        publish(path, destination)


def forget_tied_keys(model: Any, keys: Any) -> None:
    """A hook of `load_state_dict`: tied weights are saved once, and not missing."""
    keys.missing_keys[:] = [name for name in keys.missing_keys if name not in model.all_tied_weights_keys]


@runtime_checkable
class NeedsCheckpoints(Protocol):
    """A callback that reads checkpoints later."""

    def needed_steps(self, step: int) -> set[int]:
        """Steps whose checkpoints must not be deleted when the checkpoint of `step` is complete."""


class CheckpointingTrainer(Seq2SeqTrainer):
    """`Seq2SeqTrainer` whose checkpoints are atomic, and verified before training resumes from one.

    Older ones beyond `save_total_limit` are deleted when the new one is complete, except those that a callback needs.
    """

    _staging: Path | None = None  # the staging directory while a checkpoint is being written

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        """Train as `Seq2SeqTrainer.train` does; if the checkpoint is of the last step, train no further.

        Args:
            resume_from_checkpoint: A checkpoint, or True for the newest complete one in `output_dir`.

        Raises:
            ValueError: The checkpoint is incomplete or damaged, or there is none.
        """
        checkpoint = self._verified(resume_from_checkpoint) if resume_from_checkpoint else None
        if self.is_local_process_zero():
            remove_incomplete(self.args.output_dir)
        if self.args.save_on_each_node:  # transformers 5.23 writes weights on rank 0 alone
            self.model.should_save_on_this_rank = bool
        self.model.register_load_state_dict_post_hook(forget_tied_keys)
        return super().train(None if checkpoint is None else str(checkpoint), *args, **kwargs)

    def _verified(self, checkpoint: str | Literal[True]) -> Path:
        if checkpoint is True:
            found = newest_complete_checkpoint(self.args.output_dir)
            if found is None:
                raise ValueError(f"output_dir: {self.args.output_dir} holds no complete checkpoint to resume from")
            return found
        if (reason := find_reason_not_to_resume(checkpoint)) is not None:
            raise ValueError(f"resume_from_checkpoint: {checkpoint} cannot be resumed from: {reason}")
        return Path(checkpoint)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the model as `Seq2SeqTrainer.save_model` does, each file atomically, the weights last, with a manifest.

        Raises:
            OSError: A file could not be written.
        """
        directory = Path(output_dir or self.args.output_dir)
        staged = directory / STAGING_NAME / "model"
        if self._staging is None and self.args.should_save:
            with file_errors_as_os_error(f"{directory}: the model could not be written"):
                super().save_model(str(staged), _internal_call=True)
                Manifest.from_files(staged, MODEL_FILES).save(staged)
                publish_files(staged, directory)
            shutil.rmtree(staged.parent, ignore_errors=True)
        elif self._staging is not None:
            with all_ranks_or_none(f"{directory}: could not be written"):  # transformers may wait for all ranks next
                super().save_model(str(directory), _internal_call=True)
        else:
            super().save_model(str(directory), _internal_call=True)
        if self.args.push_to_hub and not _internal_call:
            self.push_to_hub(commit_message="Model save", revision=self.args.hub_revision)

    def _get_output_dir(self, trial: Any) -> str:
        return super()._get_output_dir(trial) if self._staging is None else str(self._staging)

    def _run_epoch(self, *, epoch: int, epochs_trained: int, **kwargs: Any) -> None:
        # A training that is resumed at its end; the base class would see that only after one more step.
        self.control.should_training_stop |= self.state.global_step >= self.state.max_steps
        if self.control.should_training_stop:
            return
        if epoch == epochs_trained and self.args.save_strategy != SaveStrategy.NO:
            self._rehearse()
        super()._run_epoch(epoch=epoch, epochs_trained=epochs_trained, **kwargs)

    def _rehearse(self) -> None:
        """Write a whole checkpoint and delete it, so that a save that fails does so before the first step."""
        state: TrainerState = self.state  # type: ignore[has-type]  # an attribute of the base class
        self.state = deepcopy(state)  # saving changes it
        try:
            with self._staged_checkpoint(None) as (staged, _):
                if self.args.should_save and not (self.args.save_only_model or self.optimizer.state):
                    moments = 2 * sum(weights.nbytes for weights in self.model.parameters())  # Adam's, after a step
                    if shutil.disk_usage(staged).free < moments:
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        finally:
            self.state = state

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        with self._staged_checkpoint(trial) as (staged, directory):
            if self.args.should_save:
                self._publish(staged, directory)
        if self.args.push_to_hub:
            self._push_from_checkpoint(str(directory))

    @contextmanager
    def _staged_checkpoint(self, trial: Any) -> Iterator[tuple[Path, Path]]:
        """Write a checkpoint into the staging directory, which is deleted at the end. Collective.

        Yields:
            Its directory there, and its place.

        Raises:
            OSError: A file could not be written on some rank, also in the context.
        """
        parent, name = Path(self._get_output_dir(trial)), f"{PREFIX_CHECKPOINT_DIR}-{self.state.global_step}"
        staged, directory = parent / STAGING_NAME / name, parent / name
        self._staging, failed = staged.parent, f"{directory}: could not be written"
        try:
            with all_ranks_or_none(failed):
                # Saving would create the directory again, without the run's lock and record.
                if self.args.should_save and not Path(self.args.output_dir).is_dir():
                    raise FileNotFoundError(f"{self.args.output_dir} has been deleted or renamed")
            # Every rank writes its own random state: a checkpoint is complete when all ranks have done so.
            with all_ranks_or_none(failed):
                super()._save_checkpoint(self.model, trial)
            with all_ranks_or_none(failed):
                yield staged, directory
        finally:
            self._staging = None
            if self.is_local_process_zero():
                shutil.rmtree(staged.parent, ignore_errors=True)

    def _publish(self, staged: Path, directory: Path) -> None:
        state = self.state
        if state.best_model_checkpoint == str(staged):
            state.best_model_checkpoint = str(directory)
            state.save_to_json(str(staged / TRAINER_STATE_NAME))
        Manifest.from_files(staged, step=state.global_step).save(staged)
        publish(staged, directory)  # replaces a damaged checkpoint of this step
        needed = [_step_of(Path(state.best_model_checkpoint or ""))]
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, NeedsCheckpoints):
                needed += callback.needed_steps(state.global_step)
        if (limit := self.args.save_total_limit) and limit > 0:
            remove_surplus(directory.parent, limit, state.global_step, needed)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        if self._staging is None:  # the upload runs in the background, and needs files that stay
            super()._push_from_checkpoint(checkpoint_folder)

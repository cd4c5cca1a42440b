"""Checkpoints on disk: which exist, whether they are complete, and which may be deleted.

OUTPUT_DIR/_incomplete/checkpoint-N/    while it is written; the remains of an interrupted save are deleted
OUTPUT_DIR/checkpoint-N/                complete: the files of `Seq2SeqTrainer`, and `manifest.json`

`Seq2SeqTrainer` saves the model, its tokenizer, the optimizer, the scheduler, the random states of every rank, the
arguments, and `trainer_state.json` with the step, the log and the states of callbacks. The manifest has the size and
SHA-256 of every other file except config.json. Of a PEFT model, only the adapters are saved.
"""

import re
import shutil
from collections.abc import Iterable
from pathlib import Path

from accelerate import PartialState
from transformers.trainer import SCHEDULER_NAME
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils import ADAPTER_CONFIG_NAME, CONFIG_NAME, logging

from ..system.files import atomic_remove, publish, read_json
from ..system.manifests import MANIFEST_NAME, find_damage
from ..system.processes import on_each_machine, on_main_process


logger = logging.get_logger(__name__)

STAGING_NAME = "_incomplete"  # the trainer's pushes to the Hub skip names that begin with an underscore


def list_checkpoints(output_dir: str | Path) -> dict[int, Path]:
    """The checkpoint directories of a trainer by step, oldest first, complete or not."""
    directories = [path for path in Path(output_dir).glob(f"{PREFIX_CHECKPOINT_DIR}-*") if path.is_dir()]
    names = [(re.fullmatch(rf"{PREFIX_CHECKPOINT_DIR}-(\d+)", path.name), path) for path in directories]
    return dict(sorted((int(match[1]), path) for match, path in names if match))


def checkpoint_damage(directory: Path, needs_manifest: bool = True) -> str | None:
    """Describe the damage of a checkpoint; None if each file is as its manifest says.

    A checkpoint without a manifest is damaged only if it `needs_manifest`; the stock trainer writes none.
    """
    if not needs_manifest and directory.is_dir() and not (directory / MANIFEST_NAME).is_file():
        return None
    if (damage := find_damage(directory)) is not None:
        return damage
    if not (directory / CONFIG_NAME).exists() and any(directory.rglob(ADAPTER_CONFIG_NAME)):
        return None  # PEFT's adapters have their own configuration, which is in the manifest
    try:
        read_json(directory / CONFIG_NAME, CONFIG_NAME)  # the manifest leaves it out
    except (ValueError, OSError) as error:
        return str(error)
    return None


def verify_checkpoint(directory: Path) -> None:
    """Raise a ValueError on all ranks unless training can resume from a checkpoint. Collective.

    One process of each machine reads the files, so that a checkpoint must be complete on every machine.
    """

    def verify() -> None:
        damage = checkpoint_damage(directory)
        if damage is None and not (directory / SCHEDULER_NAME).is_file():
            damage = f"was saved without {SCHEDULER_NAME} (save_only_model)"
        if damage is not None:
            raise ValueError(f"{directory}: cannot be resumed from, {damage}")

    on_each_machine(verify)


def newest_complete_checkpoint(output_dir: str | Path) -> Path | None:
    """The newest checkpoint from which training can resume, or None; a warning names skipped ones. Collective."""
    names = on_main_process(lambda: [directory.name for directory in list_checkpoints(output_dir).values()])
    for directory in (Path(output_dir, name) for name in reversed(names)):
        try:
            verify_checkpoint(directory)
        except ValueError as error:
            if PartialState().is_main_process:
                logger.warning(str(error))
        else:
            return directory
    return None


def remove_incomplete(output_dir: str | Path) -> None:
    """Delete the remains of interrupted saves and deletions; a warning names each unfinished checkpoint."""
    staging = Path(output_dir, STAGING_NAME)
    for directory in list_checkpoints(staging).values():
        logger.warning(
            f"{Path(output_dir, directory.name)}: incomplete: training stopped while it was being written; ignored"
        )
    shutil.rmtree(staging, ignore_errors=True)


def remove_surplus(output_dir: Path, limit: int, step: int, needed: Iterable[int]) -> None:
    """Delete the oldest checkpoints beyond a limit, except those of needed steps, each atomically.

    The newest is the checkpoint of `step`. Later ones belong to another training and do not count.
    """
    checkpoints = {each: directory for each, directory in list_checkpoints(output_dir).items() if each <= step}
    deletable = [directory for each, directory in checkpoints.items() if each not in {step, *needed}]
    for directory in deletable[: max(0, len(checkpoints) - limit)]:
        atomic_remove(directory, output_dir / STAGING_NAME)


def publish_files(staged: Path, directory: Path) -> None:
    """Move files into a directory, each atomically: first other files, then the weights, then the manifest.

    After a kill in between, an earlier manifest tells that the files do not belong together.
    """
    files = [path for path in staged.rglob("*") if path.is_file()]
    for path in sorted(files, key=lambda path: (path.name == MANIFEST_NAME, path.suffix == ".safetensors", path)):
        destination = directory / path.relative_to(staged)
        destination.parent.mkdir(parents=True, exist_ok=True)
        publish(path, destination)

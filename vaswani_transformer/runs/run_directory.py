"""The output directory of a training: its lock, its record, and protection from overwriting.

OUTPUT_DIR/_run.json   everything that the weights depend on; a training resumes only if it is equal
.OUTPUT_DIR.lock       held by the main process until it ends
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from transformers.utils import logging

from ..model.configuration_vaswani import VaswaniConfig
from ..options.arguments import decisive_names, decisive_values
from ..options.data import TRAINED_ON, DataArguments
from ..options.training import ModelArguments, RecipeTrainingArguments
from ..system.files import Json, atomic_write, locked, read_json
from ..system.manifests import require_same_origin
from ..system.processes import on_each_machine, on_main_process
from ..training.checkpoints import newest_complete_checkpoint
from .records import ParentModel


logger = logging.get_logger(__name__)

RECORD_NAME = "_run.json"  # names that begin with an underscore are not pushed to the Hub


def training_settings(
    data: DataArguments,
    config: VaswaniConfig,
    args: RecipeTrainingArguments,
    inputs: Mapping[str, Json],
    parent: ParentModel | None = None,
) -> dict[str, Json]:
    """The values that the weights of a training depend on, by option, as the options' `decides` declares.

    `inputs` is the result of `identify_inputs`. A precision of "auto" is left out, since it is not resolved yet.
    """
    settings: dict[str, Json] = {
        **{name: inputs.get(name) for name in (*TRAINED_ON, "tokenizer")},
        "model": None if parent is None else {"file": parent.name, "sha256": parent.sha256},
        **decisive_values(data, "data", "weights"),
        **{name: getattr(config, name) for name in decisive_names(ModelArguments, "weights")},
        **decisive_values(args, "weights"),
    }
    if args.cooldown:  # the rate would jump with another length
        settings |= {name: getattr(args, name) for name in ("max_steps", "num_train_epochs", "max_minutes")}
    if args.precision == "auto":
        del settings["precision"]
    return settings


def load_record(directory: Path) -> dict[str, Json]:
    """The settings of the training in a directory; empty without one.

    Raises:
        ValueError: The record is damaged.
    """
    path = directory / RECORD_NAME
    return read_json(path) if path.exists() else {}


@contextmanager
def open_run(
    directory: Path, settings: Mapping[str, Json], resume: bool, each_machine: bool = False
) -> Iterator[Path | None]:
    """Lock an output directory for a training that begins or resumes in it, and create it if needed. Collective.

    Trainings on other machines are excluded if the file system shares locks, as NFS does. With `each_machine`, every
    machine has its own output directory (`save_on_each_node`).

    Yields:
        The checkpoint to resume from; None to start from the beginning.

    Raises:
        ValueError: Another training holds the directory; the training to resume is missing, is a different one or has
            only damaged checkpoints; a new training would overwrite files; or as from `record_settings`.
    """
    with ExitStack() as exit_stack:

        def lock_output() -> None:
            exit_stack.enter_context(locked(directory))
            directory.mkdir(parents=True, exist_ok=True)
            if resume:
                if not load_record(directory):
                    raise ValueError(f"output_dir: {directory} holds no training to resume; leave out --resume")
            elif results := _results(directory):
                raise ValueError(
                    f"output_dir: {directory} already holds {results[0]}; choose another directory, or go on with "
                    f"--resume"
                )
            else:
                (directory / RECORD_NAME).unlink(missing_ok=True)  # left by a training without a checkpoint

        (on_each_machine if each_machine else on_main_process)(lock_output)
        record_settings(directory, settings, each_machine)
        checkpoint = newest_complete_checkpoint(directory) if resume else None
        if resume and checkpoint is None:
            if results := _results(directory):
                raise ValueError(
                    f"output_dir: {directory} holds no complete checkpoint to resume from; to start from the "
                    f"beginning, delete {', '.join(results)}"
                )
            logger.warning(f"{directory}: the training has no complete checkpoint yet, and starts from the beginning")
        yield checkpoint


def _results(directory: Path) -> list[str]:
    """Names of the files that a training would overwrite."""
    patterns = ("checkpoint-*", "model*.safetensors", "README.md")
    return sorted(path.name for pattern in patterns for path in directory.glob(pattern))


def record_settings(directory: Path, settings: Mapping[str, Json], each_machine: bool = False) -> None:
    """Add the settings of the weights to the record, or compare them with it. Collective.

    Raises:
        ValueError: A setting differs from the record, on this or another machine, or a machine does not see the record.
    """
    first = on_main_process(lambda: {**settings})
    what = f"output_dir: {directory} holds another training; it differs in"
    advice = "repeat its options and corpora, on all machines, to continue it, or choose another directory"

    def extend() -> None:
        record = load_record(directory)
        require_same_origin(record, first, what, advice)
        atomic_write(directory / RECORD_NAME, json.dumps(record | first, indent=2, ensure_ascii=False) + "\n")

    def compare() -> None:
        if not (record := load_record(directory)):
            raise ValueError(
                f"output_dir: there is no {directory} of rank 0; give one that all machines share, or "
                f"--save_on_each_node"
            )
        require_same_origin(record, settings, what, advice)

    (on_each_machine if each_machine else on_main_process)(extend)
    on_each_machine(compare)

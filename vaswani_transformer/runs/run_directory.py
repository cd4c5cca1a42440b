"""The output directory of a training: its lock, its record, and protection from overwriting.

OUTPUT_DIR/_run.json   everything that the weights depend on; a training resumes only if it is the same
.OUTPUT_DIR.lock       held by the main process until it ends
"""

import json
import platform
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
from accelerate import PartialState
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from ..data.preparation_arguments import TRAINED_ON, PreparationArguments
from ..data.training_data import TrainingData
from ..io.files import Json, locked
from ..io.manifests import content_digest, manifest_digest, require_same_manifest
from ..io.typed_json import Record
from ..launch.processes import first_message, on_each_machine, on_main_process
from ..model.configuration_vaswani import VaswaniConfig
from ..options.arguments import as_json, decisive_names, decisive_values
from ..training.checkpoints import STAGING_NAME, list_checkpoints, newest_complete_checkpoint
from .push import PUSHED
from .records import ParentModel
from .run_arguments import TRANSFORMERS_WEIGHTS, ModelArguments, RecipeTrainingArguments


logger = logging.get_logger(__name__)

RECORD_NAME = "_run.json"  # names that begin with an underscore are not pushed to the Hub

# Files and directories that a training writes at the top of its directory, except logs.
_OUTPUTS = (*PUSHED, "checkpoint-*", "training_args.bin", STAGING_NAME)


@dataclass(frozen=True)
class TrainingRecord(Record):
    """`_run.json`.

    Attributes:
        settings: What the weights depend on: the result of `training_settings`.
        data: Digests of the vocabulary and the encoded pairs; empty until the corpora are loaded.
    """

    settings: dict[str, Json]
    data: dict[str, Json] = field(default_factory=dict)


def training_settings(
    data: PreparationArguments,
    config: VaswaniConfig,
    args: RecipeTrainingArguments,
    inputs: Mapping[str, Json],
    parent: ParentModel | None = None,
) -> dict[str, Json]:
    """What the weights of a training depend on, by option: what the options say that they decide.

    Args:
        data: Corpora, cleaning and vocabulary.
        config: The model's configuration.
        args: Schedule, optimizer, seed and precision, which may be open until the corpora are loaded.
        inputs: The result of `identify_inputs`.
        parent: The saved model to start from.
    """
    settings: dict[str, Json] = {
        **{name: inputs.get(name) for name in (*TRAINED_ON, "tokenizer")},
        "model": None if parent is None else {"file": parent.name, "sha256": parent.sha256},
        **decisive_values(data, "data", "weights"),
        **{name: getattr(config, name) for name in decisive_names(ModelArguments, "weights")},
        **weight_options(args),
    }
    if args.cooldown:  # with another length, the rate would jump
        settings |= {name: getattr(args, name) for name in ("max_steps", "num_train_epochs", "max_minutes")}
    return settings


def weight_options(args: RecipeTrainingArguments) -> dict[str, Json]:
    """The options of the trainer on which the weights depend."""
    transformers = {name: as_json(getattr(args, name)) for name in TRANSFORMERS_WEIGHTS if hasattr(args, name)}
    return {**decisive_values(args, "weights"), **transformers}


def load_record(directory: Path) -> TrainingRecord | None:
    """The record of the training in a directory; None if there is none.

    Raises:
        ValueError: The record is damaged.
    """
    try:
        return TrainingRecord.load(directory / RECORD_NAME)
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"{error}; choose another output_dir") from error


def _require_usable(directory: Path, resume: bool) -> None:
    """Raise a ValueError if there is no training to resume, or if a new one would overwrite more than a record."""
    is_run = load_record(directory) is not None
    weights = _weights(directory)
    if resume and not is_run:
        lost = f", but {weights[0].name}: restore {RECORD_NAME}" if weights else "; leave out --resume"
        raise ValueError(f"output_dir: {directory} holds no training to resume{lost}")
    if not resume and is_run and weights:
        raise ValueError(f"output_dir: {directory} already holds a run; choose another, or go on with --resume")
    outputs = sorted(path.name for pattern in _OUTPUTS for path in directory.glob(pattern))
    if not is_run and outputs:
        raise ValueError(
            f"output_dir: {directory} already holds {outputs[0]}, which is not from a training there, and would be "
            f"overwritten; choose another directory"
        )


def _weights(directory: Path) -> list[Path]:
    return [*list_checkpoints(directory).values(), *directory.glob("model*.safetensors")]


@contextmanager
def open_run(
    directory: Path, settings: dict[str, Json], resume: bool, each_machine: bool = False
) -> Iterator[Path | None]:
    """Lock an output directory for a training that begins or resumes in it. Collective.

    Trainings on other machines are excluded where the file system passes locks on, as NFS does.

    Args:
        directory: Created if it does not exist.
        settings: What the weights of the training depend on.
        resume: Whether to continue the training that the directory holds.
        each_machine: Whether each machine has an output directory of its own (`save_on_each_node`).

    Yields:
        The checkpoint to resume from; None to start from the beginning.

    Raises:
        ValueError: Another training holds the directory, or a machine does not see it; there is no training to resume,
            or it is another one or has only damaged checkpoints; or a new training would overwrite files.
    """
    on_writers = on_each_machine if each_machine else on_main_process
    with ExitStack() as exit_stack:
        on_writers(lambda: exit_stack.enter_context(locked(directory)))
        on_writers(lambda: _begin_or_compare(directory, settings, resume))
        on_each_machine(lambda: directory.mkdir(parents=True, exist_ok=True))
        _require_on_all_ranks(directory)
        checkpoint = newest_complete_checkpoint(directory) if resume else None
        if resume and checkpoint is None:
            if damaged := _weights(directory):
                raise ValueError(
                    f"output_dir: {directory} holds no complete checkpoint to resume from; to start from the "
                    f"beginning, delete {damaged[0]}{' and all others' if damaged[1:] else ''}"
                )
            logger.warning(f"{directory}: the training has no complete checkpoint yet, and starts from the beginning")
        yield checkpoint


def _begin_or_compare(directory: Path, settings: dict[str, Json], resume: bool) -> None:
    """Record the training, or compare it with the record, under the lock."""
    _require_usable(directory, resume)
    if not resume:
        directory.mkdir(parents=True, exist_ok=True)
        TrainingRecord(settings).save(directory / RECORD_NAME)
        return
    before = load_record(directory).settings
    if before["precision"] == "auto":  # the training ended before it was chosen
        before["precision"] = settings["precision"]
    _compare(directory, before, settings)


def _require_on_all_ranks(directory: Path) -> None:
    """Raise a ValueError on all ranks if one does not see the record. Collective."""
    if (blind := first_message(None if (directory / RECORD_NAME).exists() else _rank())) is not None:
        raise ValueError(
            f"output_dir: {blind} does not see {directory} of rank 0; give one that all machines share, or "
            f"--save_on_each_node"
        )


def _rank() -> str:
    return f"rank {PartialState().process_index} on {platform.node()}"


def record_data(directory: Path, data: TrainingData, args: RecipeTrainingArguments) -> None:
    """Record vocabulary, encoded pairs and precision, or compare the data with those recorded. Collective.

    Raises:
        ValueError: The training was begun with another vocabulary or other sentence pairs, or another machine has
            others.
    """
    now = describe_data(data)
    require_same_on_all_ranks(now)

    def compare() -> None:
        record = load_record(directory)
        _compare(directory, record.data, now)
        settings: dict[str, Json] = {**record.settings, "precision": args.precision}
        replace(record, data=now, settings=settings).save(directory / RECORD_NAME)

    (on_each_machine if args.save_on_each_node else on_main_process)(compare)


def describe_data(data: TrainingData) -> dict[str, Json]:
    """Digests of the vocabulary, and of the lengths of the encoded training pairs."""
    lengths = sha256()
    for column in ("source_length", "target_length"):
        lengths.update(np.asarray(data.train.with_format("numpy")[column][:], dtype=np.int64).tobytes())
    return {
        "vocabulary": _vocabulary_digest(data.tokenizer),
        "training pairs": len(data.train),
        "lengths of the training pairs": lengths.hexdigest()[:16],
    }


def _vocabulary_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    content = {"vocabulary": tokenizer.get_vocab()}
    if tokenizer.is_fast:
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        for state in ("padding", "truncation"):  # set by the batch that was tokenized last
            content.pop(state, None)
    return content_digest(content)[:16]


def _compare(directory: Path, before: Mapping[str, Json], now: Mapping[str, Json]) -> None:
    what = f"output_dir: {directory} holds another training; it differs in"
    require_same_manifest(before, now, what, "repeat its options to continue it, or choose another directory")


def require_same_on_all_ranks(mine: Mapping[str, Json]) -> None:
    """Raise a ValueError on all ranks if a rank's description of what a training depends on differs. Collective."""
    first = on_main_process(lambda: mine)
    different = [
        name
        for name in {**first, **mine}
        if manifest_digest({name: first.get(name)}) != manifest_digest({name: mine.get(name)})
    ]
    message = first_message(f"{different[0]}: {_rank()} has another than rank 0" if different else None)
    if message is not None:
        raise ValueError(f"{message}; give all machines the same options, corpora and package versions")

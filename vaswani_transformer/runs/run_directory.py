"""The output directory of a training: its lock, its record, and protection from overwriting.

OUTPUT_DIR/_run.json   everything that the weights depend on; a training resumes only if it is the same
OUTPUT_DIR/_run.lock   held by the main process until it ends
"""

import json
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
from accelerate import PartialState
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from ..data.preparation_arguments import TRAINED_ON, PreparationArguments
from ..data.training_data import TrainingData
from ..io.files import Json, content_digest, make_directory, manifest_digest, require_same_manifest
from ..io.typed_json import Record
from ..launch.processes import first_of_any_rank, on_each_machine, on_main_process
from ..launch.shared_directory import locked_by_training
from ..model.configuration_vaswani import VaswaniConfig
from ..options.arguments import as_json, decisive_options, decisive_values
from ..training.arguments import VaswaniTrainingArguments
from ..training.checkpoints import STAGING_NAME, list_checkpoints, newest_complete_checkpoint
from .push import PUSHED
from .records import ParentModel
from .run_arguments import DECISIVE_OF_TRANSFORMERS, DEFAULTS, ModelArguments, RecipeTrainingArguments


logger = logging.get_logger(__name__)

RECORD_NAME = "_run.json"  # names that begin with an underscore are not pushed to the Hub

# Files and directories that a training writes at the top of its directory, except logs.
_OUTPUTS = (*PUSHED, "checkpoint-*", "training_args.bin", STAGING_NAME)


@dataclass(frozen=True)
class TrainingSettings:
    """What the weights of a training depend on, computed from what its options say that they decide.

    Attributes:
        values: Values of options by name, with inputs and the model to start from identified by their content.
        defaults: What a record stands for that lacks an option: there was none when it was written. An option of
            transformers has no default here: it may have been given, and is then not compared.
    """

    values: dict[str, Json]
    defaults: dict[str, Json]

    @classmethod
    def of(
        cls,
        data: PreparationArguments,
        config: VaswaniConfig,
        args: RecipeTrainingArguments,
        inputs: Mapping[str, Json],
        parent: ParentModel | None = None,
    ) -> "TrainingSettings":
        """Describe a training.

        Args:
            data: Corpora, cleaning and vocabulary.
            config: Of the model.
            args: Schedule, optimizer, seed and precision, which may be open until the corpora are loaded.
            inputs: The result of `identify_inputs`.
            parent: The saved model to start from.
        """
        identified = (*TRAINED_ON, "tokenizer")
        of_model = decisive_options(ModelArguments, "weights")
        of_transformers = [name for name in DECISIVE_OF_TRANSFORMERS if hasattr(args, name)]
        values: dict[str, Json] = {
            **{name: inputs.get(name) for name in identified},
            "model": None if parent is None else {"file": parent.name, "sha256": parent.sha256},
            **decisive_values(data, "data", "weights"),
            **{name: getattr(config, name) for name in of_model},
            **decisive_values(args, "weights"),
            **{name: as_json(getattr(args, name)) for name in of_transformers},
        }
        if args.cooldown:  # with another length, the rate would jump
            values |= {name: getattr(args, name) for name in ("max_steps", "num_train_epochs", "max_minutes")}
        defaults: dict[str, Json] = {
            **dict.fromkeys((*identified, "model")),
            **decisive_options(type(data), "data", "weights"),
            **{name: getattr(VaswaniConfig(), name) for name in of_model},
            **decisive_options(type(args), "weights"),
        }
        return cls(values, defaults)


@dataclass(frozen=True)
class TrainingRecord(Record):
    """`_run.json`.

    Attributes:
        settings: The values of `TrainingSettings`.
        data: Digests of the vocabulary and the encoded pairs; empty until the corpora are loaded.
    """

    settings: dict[str, Json]
    data: dict[str, Json] = field(default_factory=dict)

    @classmethod
    def of(cls, directory: Path) -> "TrainingRecord | None":
        """The record of the training in a directory; None if there is none.

        Raises:
            ValueError: The record is damaged.
        """
        try:
            record = cls.load(directory / RECORD_NAME)
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ValueError(f"{error}; choose another output_dir") from error
        settings = dict(record.settings)
        if "lr_scheduler_type" not in settings:  # earlier versions recorded what follows from both options
            rate = settings.pop("constant_learning_rate", None)
            settings["lr_scheduler_type"] = DEFAULTS["lr_scheduler_type"] if rate is None else "constant"
            settings["learning_rate"] = DEFAULTS["learning_rate"] if rate is None else rate
        if "precision" not in settings:  # nor had they this option
            on = [name for name in ("bf16", "fp16") if settings.pop(name, False)]
            settings["precision"] = on[0] if on else "float32"
        return replace(record, settings=settings)


def describe_data(data: TrainingData, args: VaswaniTrainingArguments) -> dict[str, Json]:
    """Digests of the vocabulary, and of the lengths of the encoded training pairs; the size of their batches."""
    lengths = sha256()
    for column in ("source_length", "target_length"):
        lengths.update(np.asarray(data.train.with_format("numpy")[column][:], dtype=np.int64).tobytes())
    return {
        "vocabulary": _vocabulary_digest(data.tokenizer),
        "training pairs": len(data.train),
        "lengths of the training pairs": lengths.hexdigest()[:16],
        "source_tokens": args.source_tokens,
        "target_tokens": args.target_tokens,
    }


def _vocabulary_digest(tokenizer: PreTrainedTokenizerBase) -> str:
    content = {"vocabulary": tokenizer.get_vocab()}
    if tokenizer.is_fast:
        content = json.loads(tokenizer.backend_tokenizer.to_str())
        for state in ("padding", "truncation"):  # set by the batch that was tokenized last
            content.pop(state, None)
    return content_digest(content)[:16]


@contextmanager
def open_run(
    directory: Path, settings: TrainingSettings, resume: bool, each_machine: bool = False
) -> Iterator[Path | None]:
    """Lock an output directory for a training that begins or resumes in it. Collective.

    Args:
        directory: Created if it does not exist.
        settings: Of the training.
        resume: Whether to continue the training that the directory holds.
        each_machine: Whether each machine has an output directory of its own (`save_on_each_node`).

    Yields:
        The checkpoint to resume from; None to start from the beginning.

    Raises:
        ValueError: The directory holds another run or other files; to resume, it holds no training, another one, or
            only damaged checkpoints. Also as from `make_directory` and `locked_by_training`.
    """
    on_writers = on_each_machine if each_machine else on_main_process
    on_writers(lambda: require_usable(directory, resume))  # before even a lock file is written there
    on_each_machine(lambda: make_directory("output_dir", directory))
    with locked_by_training(directory, each_machine):
        on_writers(lambda: _record(directory, settings, resume))
        checkpoint = newest_complete_checkpoint(directory) if resume else None
        if resume and checkpoint is None:
            on_writers(lambda: _require_nothing_to_lose(directory))
        yield checkpoint


def require_same_on_all_ranks(mine: Mapping[str, Json]) -> None:
    """Raise a ValueError on all ranks if a rank's description of what a training depends on differs. Collective."""
    first = on_main_process(lambda: mine)
    here = f"rank {PartialState().process_index} on {platform.node()}"
    different = (
        name
        for name in {**first, **mine}
        if (name in first) != (name in mine) or manifest_digest({"": first[name]}) != manifest_digest({"": mine[name]})
    )
    name = next(different, None)
    found = first_of_any_rank(None if name is None else f"{name}: {here} has another than rank 0")
    if found is not None:
        raise ValueError(f"{found}; give all machines the same options, corpora and package versions")


def require_usable(directory: Path, resume: bool) -> TrainingRecord | None:
    """The record of an output directory, None if there is none.

    Raises:
        ValueError: There is no training to resume, or a new one would overwrite more than a record.
    """
    record = TrainingRecord.of(directory)
    known = record is not None
    outputs = sorted(path.name for pattern in _OUTPUTS for path in directory.glob(pattern))
    if resume and not known and list_checkpoints(directory):
        raise ValueError(
            f"output_dir: {directory} has checkpoints, but no {RECORD_NAME}, which says what training they belong to; "
            f"restore the file, or choose another directory"
        )
    if resume and not known:
        raise ValueError(f"output_dir: {directory} holds no checkpoint to resume from; leave out --resume")
    if not resume and known and _trained(directory):
        raise ValueError(f"output_dir: {directory} already holds a run; choose another, or go on with --resume")
    if not resume and not known and outputs:
        raise ValueError(
            f"output_dir: {directory} already holds {outputs[0]}, which is not from a training there, and would be "
            f"overwritten; choose another directory"
        )
    return record


def _trained(directory: Path) -> list[Path]:
    return [*list_checkpoints(directory).values(), *directory.glob("model*.safetensors")]


def _require_nothing_to_lose(directory: Path) -> None:
    if remains := _trained(directory):
        raise ValueError(
            f"output_dir: {directory} holds no complete checkpoint to resume from; to start from the beginning, delete "
            f"{remains[0]}{' and all others' if remains[1:] else ''}"
        )
    logger.warning(f"{directory}: the training has no complete checkpoint yet, and starts from the beginning")


def _record(directory: Path, settings: TrainingSettings, resume: bool) -> None:
    record = require_usable(directory, resume)
    if resume:
        before = {**settings.defaults, **record.settings}
        if before["precision"] == "auto":  # the training ended before it was chosen
            before["precision"] = settings.values["precision"]
        _require_equal(directory, before, settings.values)
    else:
        TrainingRecord(settings.values).save(directory / RECORD_NAME)


def recorded_precision(directory: Path) -> str:
    """The precision of the training in a directory; "auto" if it is open yet."""
    record = TrainingRecord.of(directory)
    return str(record.settings["precision"]) if record else "auto"


def check_data(directory: Path, data: TrainingData, args: RecipeTrainingArguments) -> None:
    """Record vocabulary, encoded pairs and the size of batches, or compare them with the record; record the precision.

    Collective.

    Raises:
        ValueError: The training was begun with another vocabulary, other sentence pairs or other batches, or another
            machine has others.
    """
    now = describe_data(data, args)
    require_same_on_all_ranks(now)

    def check() -> None:
        record = TrainingRecord.of(directory)
        _require_equal(directory, record.data, now)
        settings: dict[str, Json] = {**record.settings, "precision": args.precision}
        replace(record, data=now, settings=settings).save(directory / RECORD_NAME)

    (on_each_machine if args.save_on_each_node else on_main_process)(check)


def _require_equal(directory: Path, before: Mapping[str, Json], now: Mapping[str, Json]) -> None:
    what = f"output_dir: {directory} holds another training; it differs in"
    require_same_manifest(before, now, what, "repeat its options to continue it, or choose another directory")

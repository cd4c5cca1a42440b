"""The output directory of a training: its lock, its record, and protection from overwriting.

OUTPUT_DIR/_run.json   everything that the weights depend on; a training resumes only if it is the same
OUTPUT_DIR/_lock       held by every rank until it ends
"""

import json
import os
import platform
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import TypeAlias

import numpy as np
from accelerate import PartialState
from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from ..data.corpora import identify_corpus
from ..data.preparation_arguments import TRAINED_ON, PreparationArguments
from ..data.training_data import TrainingData
from ..io.files import Json, content_digest, identify_tokenizer, make_directory, require_same_manifest, try_lock
from ..io.typed_json import Record
from ..launch.processes import first_of_any_rank, on_main_process
from ..training.checkpoints import STAGING_NAME, list_checkpoints, newest_complete_checkpoint
from ..training.trainer import VaswaniTrainingArguments


logger = logging.get_logger(__name__)

RECORD_NAME = "_run.json"  # names that begin with an underscore are not pushed to the Hub
_LOCK_NAME = "_lock"
_PATIENCE = 60.0  # seconds

# Names of what a training writes at the top of its directory, except logs.
_OUTPUTS = (
    "README.md",
    "all_results.json",
    "bleu_by_source_length.png",
    "checkpoint-*",
    "config.json",
    "generation_config.json",
    "learning_curve.png",
    "manifest.json",
    "model*.safetensors*",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "training_args.bin",
    "translations.*.txt",
    "*_vaswani.py",
    STAGING_NAME,
)

_DATA_SETTINGS = (
    "source_language",
    "target_language",
    "both_directions",
    "columns",
    "dataset_config",
    "max_length",
    "max_ratio",
    "replay_ratio",
    "synthetic_ratio",
    "tokenizer_model",
    "vocab_size",
    "tokenizer_sample",
)
# Values of settings that the records of earlier versions lack, which had no such option.
_EARLIER: dict[str, Json] = {
    "columns": None,
    "both_directions": False,
    "replay": None,
    "replay_ratio": 1.0,
    "synthetic": None,
    "synthetic_ratio": 1.0,
    "model": None,
    "constant_learning_rate": None,
    "bpe_dropout": 0.0,
}
_TRAINING_SETTINGS = (
    "source_tokens",
    "target_tokens",
    "batch_window",
    "bpe_dropout",
    "seed",
    "data_seed",
    "warmup_steps",
    "learning_rate_factor",
    "constant_learning_rate",
    "optim",
    "optim_args",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "weight_decay",
    "max_grad_norm",
    "neftune_noise_alpha",
    "bf16",
    "fp16",
    "virtual_ranks",
    "virtual_rank_threads",
    "torch_compile",
)


@dataclass(frozen=True)
class TrainingRecord(Record):
    """What the weights of a training depend on.

    Attributes:
        settings: Values of options, with the training corpora as `identify_corpus` describes them.
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
            return replace(record, settings={**_EARLIER, **record.settings})
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise ValueError(f"{error}; choose another output_dir") from error


def describe_settings(
    data: PreparationArguments, model: Mapping[str, Json], args: VaswaniTrainingArguments, known: TrainingRecord | None
) -> dict[str, Json]:
    """The settings of a training that its weights depend on.

    Args:
        data: Corpora, cleaning and vocabulary.
        model: Hyper-parameters.
        args: Budget, schedule, optimizer, seed and precision.
        known: An earlier record. Files that are unchanged since then are not read again.
    """
    before = {} if known is None else known.settings
    corpora: dict[str, Json] = {
        name: identify_corpus(source, before.get(name), data.dataset_config)
        for name, source in data.sources.items()
        if name in TRAINED_ON
    }
    tokenizer = None if data.tokenizer is None else identify_tokenizer(data.tokenizer, before.get("tokenizer"))
    return {
        **dict.fromkeys(TRAINED_ON),
        **corpora,
        **{name: getattr(data, name) for name in _DATA_SETTINGS},
        "tokenizer": tokenizer,
        **model,
        **{name: _plain(getattr(args, name)) for name in _TRAINING_SETTINGS if hasattr(args, name)},
    }


def _plain(value: object) -> Json:
    return value if isinstance(value, (bool, int, float, type(None))) else str(getattr(value, "value", value))


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


Describe: TypeAlias = Callable[["TrainingRecord | None"], dict[str, Json]]


@contextmanager
def open_run(directory: Path, describe: Describe, resume: bool) -> Iterator[Path | None]:
    """Lock an output directory for a training that begins or resumes in it. Collective.

    Args:
        directory: Created if it does not exist.
        describe: Returns the training's settings, given an earlier record; only the main process calls it.
        resume: Whether to continue the training that the directory holds.

    Yields:
        The checkpoint to resume from; None to start from the beginning.

    Raises:
        ValueError: The directory holds another run or other files; to resume, it holds no training, another one, or
            only damaged checkpoints. Also as from `locked`.
    """
    on_main_process(lambda: _require_usable(directory, resume))  # before even a lock file is written there
    with locked(directory, _PATIENCE if resume else 0.0):
        on_main_process(lambda: _record(directory, describe, resume))
        checkpoint = newest_complete_checkpoint(directory) if resume else None
        if resume and checkpoint is None:
            on_main_process(lambda: _require_nothing_to_lose(directory))
        yield checkpoint


def _require_usable(directory: Path, resume: bool) -> None:
    """Raise ValueError if there is no training to resume, or a new one would overwrite more than a record."""
    known = TrainingRecord.of(directory) is not None
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


def _trained(directory: Path) -> list[Path]:
    return [*list_checkpoints(directory).values(), *directory.glob("model*.safetensors")]


def _require_nothing_to_lose(directory: Path) -> None:
    if remains := _trained(directory):
        raise ValueError(
            f"output_dir: {directory} holds no complete checkpoint to resume from; to start from the beginning, delete "
            f"{remains[0]}{' and all others' if remains[1:] else ''}"
        )
    logger.warning(f"{directory}: the training has no complete checkpoint yet, and starts from the beginning")


def _record(directory: Path, describe: Describe, resume: bool) -> None:
    _require_usable(directory, resume)
    before = TrainingRecord.of(directory)
    settings = describe(before)
    if not resume:
        TrainingRecord(settings).save(directory / RECORD_NAME)
    elif settings.keys() - before.settings.keys():  # no option can be repeated for what the record lacks
        raise ValueError(
            f"output_dir: the training in {directory} was begun by another version of the package; "
            f"choose another directory"
        )
    else:
        _require_equal(directory, before.settings, settings)


def check_data(directory: Path, data: TrainingData, args: VaswaniTrainingArguments) -> None:
    """Record vocabulary, encoded pairs and the size of batches, or compare them with the record. Collective.

    Raises:
        ValueError: The training was begun with another vocabulary, other sentence pairs or other batches.
    """

    def check() -> None:
        record, now = TrainingRecord.of(directory), describe_data(data, args)
        _require_equal(directory, record.data, now)
        replace(record, data=now).save(directory / RECORD_NAME)

    on_main_process(check)


def _require_equal(directory: Path, before: Mapping[str, Json], now: Mapping[str, Json]) -> None:
    what = f"output_dir: {directory} holds another training; it differs in"
    require_same_manifest(before, now, what, "repeat its options to continue it, or choose another directory")


@contextmanager
def locked(directory: Path, patience: float = 0.0, sight: float = _PATIENCE) -> Iterator[None]:
    """Lock an output directory for a training. Collective.

    Every rank holds the lock, and the system releases it however the process ends. The directory is free when no rank
    of an earlier training is alive. Trainings on other machines are excluded where the file system passes `flock` on,
    as NFS does since Linux 2.6.12. Where it does not support `flock`, a warning says so.

    Args:
        directory: Created if it does not exist.
        patience: Seconds to wait for the ranks of an earlier training.
        sight: Seconds within which other machines must see what the main process has written.

    Raises:
        ValueError: Another training holds the lock, the directory cannot be created or written, or ranks on other
            machines do not see it.
    """
    path = make_directory("output_dir", directory) / _LOCK_NAME
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        token = on_main_process(lambda: _take(descriptor, directory, patience))
        if not PartialState().is_main_process:
            try_lock(descriptor, "output_dir", shared=True)
        unseen = None if _sees(path, token, sight) else f"rank {PartialState().process_index} on {platform.node()}"
        if (rank := first_of_any_rank(unseen)) is not None:
            raise ValueError(f"output_dir: {rank} does not see {directory} of rank 0; give one that all machines share")
        yield
    finally:
        os.close(descriptor)


def _take(descriptor: int, directory: Path, patience: float) -> str:
    """Lock the directory for this training, and leave a token in the file, which is returned."""
    is_free = try_lock(descriptor, "output_dir")
    if not is_free and patience:
        logger.warning(f"{directory}: waiting {patience:g} seconds for an earlier training to end")
        is_free = try_lock(descriptor, "output_dir", patience=patience)
    if not is_free:
        raise ValueError(f"output_dir: another training is at work in {directory}; wait for it, or end it")
    token = uuid.uuid4().hex
    os.pwrite(descriptor, token.encode(), 0)
    os.fsync(descriptor)
    # Sharing the lock is not atomic: if another training takes it in between, this one gives up.
    if not try_lock(descriptor, "output_dir", shared=True):
        raise ValueError(f"output_dir: another training has begun in {directory}")
    return token


def _sees(path: Path, token: str, seconds: float) -> bool:
    """Whether a file holds a token within some seconds; shared file systems may show it late."""
    deadline = time.monotonic() + seconds
    while path.read_text(encoding="utf-8") != token:
        if time.monotonic() >= deadline:
            return False
        time.sleep(0.2)
    return True

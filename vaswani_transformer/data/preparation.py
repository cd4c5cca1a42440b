"""Corpora encoded and cleaned once (5.1), into a `PreparedDirectory`.

After an interruption, the same call continues with the corpora that are missing. Memory does not grow with the corpus.
If the user names no directory, it is one in the cache of `datasets`, named by a digest of its inputs and settings.
"""

import ctypes
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from importlib.metadata import version
from pathlib import Path

import datasets
from accelerate.utils import patch_environment
from datasets import Dataset, concatenate_datasets, interleave_datasets
from transformers import PreTrainedTokenizerBase

from ..io.files import Json, atomic_directory, file_errors_as_os_error, locked
from ..io.manifests import Manifest, identify_tokenizer, manifest_digest
from ..model.saved_model import load_tokenizer
from ..model.tokenization_vaswani import VaswaniTokenizer
from ..options.arguments import decisive_values
from .cleaning import clean_corpus, encode_both_directions, encode_corpus, require_tags
from .corpora import check_parallel_corpus, identify_corpus, load_parallel_corpus, sentences, spread
from .preparation_arguments import TRAINED_ON, PreparationArguments
from .prepared_directory import TOKENIZER, PreparedDirectory, PreparedSplit, load_prepared
from .training_data import TrainingData


# What a corpus is called in a saved directory, a dataset of the Hub or the phrasebook, where not by its split.
_PARTS = {"replay": "train", "synthetic": "train", "replay_test": "test"}
_PAIRS_PER_PROCESS = 50_000  # at least; it takes seconds to encode so many
_VERSIONS = ("vaswani_transformer", "transformers", "tokenizers", "datasets")


def identify_inputs(args: PreparationArguments, known: Mapping[str, Json]) -> dict[str, Json]:
    """Describe the corpora, by split, and the "tokenizer" by their content, for records.

    Args:
        args: What is read.
        known: An earlier result. Files that are unchanged since then are not read, and those that are gone stay.
    """
    corpora: dict[str, Json] = {
        split: identify_corpus(source, known.get(split), args.dataset_config, _PARTS.get(split, split))
        for split, source in args.sources.items()
    }
    name = args.tokenizer
    return {**corpora, TOKENIZER: None if name is None else identify_tokenizer(name, known.get(TOKENIZER))}


def load_corpora(
    args: PreparationArguments, directory: str | Path | None = None, inputs: Mapping[str, Json] | None = None
) -> TrainingData:
    """Load the corpora encoded and cleaned, after preparing what is not prepared yet.

    Args:
        args: What to load, and how.
        directory: Where they are prepared; by default in the cache of `datasets`.
        inputs: The result of `identify_inputs`, if there is one.

    Raises:
        ValueError, OSError: As from `prepare_corpus` and `load_prepared`.
    """
    args = args.with_languages()
    if directory is None:
        inputs = inputs or identify_inputs(args, {})
        versions = {name: version(name) for name in _VERSIONS}
        digest = manifest_digest({**decisive_values(args, "data"), **inputs, **versions})
        directory = Path(datasets.config.HF_DATASETS_CACHE, "vaswani_transformer", digest[:32])
    prepare_corpus(directory, args, inputs)
    return load_prepared(directory, args.sources, args.ratios)


def prepare_corpus(
    directory: str | Path, args: PreparationArguments, inputs: Mapping[str, Json] | None = None
) -> dict[str, PreparedSplit]:
    """Prepare what is not prepared yet; another process that does so is waited for.

    Args:
        directory: Where to prepare the corpora.
        args: What to prepare, and how.
        inputs: The result of `identify_inputs`, if there is one.

    Raises:
        ValueError: The directory was prepared from other corpora or with other settings, and is left as it is; or as
            from `load_parallel_corpus`, `VaswaniTokenizer.train` and `clean_corpus`.
        OSError: A file is missing, or the directory has other files in it.
    """
    prepared, args = PreparedDirectory(Path(directory)), args.with_languages()
    inputs = inputs or identify_inputs(args, prepared.inputs())
    if _missing(prepared, args, inputs):
        with locked(prepared.path / "prepared", "prepared", wait=True):  # what is above may not be writable
            _prepare(prepared, args, inputs, _missing(prepared, args, inputs))
    return {split: prepared.split(split) for split in args.sources}


def _missing(prepared: PreparedDirectory, args: PreparationArguments, inputs: Mapping[str, Json]) -> list[str]:
    """The parts to prepare.

    Raises:
        ValueError, OSError: As from `prepare_corpus`.
    """
    parts = prepared.parts()
    for part in parts:
        prepared.require_same(part, _origin(part, args, inputs))
    return [part for part in (TOKENIZER, *args.sources) if part not in parts]


def _origin(part: str, args: PreparationArguments, inputs: Mapping[str, Json]) -> dict[str, Json]:
    """What a part is made of; the vocabulary, which all depend on, is that of the training corpus."""
    names = (TOKENIZER, "train", part)
    return decisive_values(args, "data") | {name: inputs[name] for name in names if name in inputs}


def _prepare(
    prepared: PreparedDirectory, args: PreparationArguments, inputs: Mapping[str, Json], missing: list[str]
) -> None:
    folder, cache_dir = prepared.path / TOKENIZER, prepared.path / "cache"
    tokenizer = load_tokenizer(args.tokenizer) if args.tokenizer and TOKENIZER in missing else None
    if TOKENIZER not in missing:
        prepared.require_undamaged([TOKENIZER])
    splits = {split: args.sources[split] for split in missing if split != TOKENIZER}
    for split, source in splits.items():
        check_parallel_corpus(source, args.languages, _PARTS.get(split, split), args.columns)
    corpora = {
        split: load_parallel_corpus(
            source,
            *args.languages,
            _PARTS.get(split, split),
            args.dataset_config,
            columns=args.columns,
            streaming=args.streaming,
            cache_dir=cache_dir,
        )
        for split, source in splits.items()
    }
    if TOKENIZER in missing:
        tokenizer = tokenizer or _learn_tokenizer(corpora["train"], args)
        require_tags(tokenizer, args.tags, args.tokenizer)
        with _writing(folder) as staged:
            tokenizer.save_pretrained(staged)
            Manifest.from_files(staged, **_origin(TOKENIZER, args, inputs)).save(staged)
    tokenizer = load_tokenizer(folder, option="prepared")
    for split, corpus in corpora.items():
        processes = min(args.num_proc or os.cpu_count() or 1, -(-len(corpus) // _PAIRS_PER_PROCESS))
        with _workers(processes) as num_proc:
            rows, cleaning = _encode(split, corpus, tokenizer, args, num_proc)
            with _writing(prepared.path / split) as staged:
                rows.save_to_disk(staged, num_proc=num_proc)
                origin = _origin(split, args, inputs)
                Manifest.from_files(staged, **origin, pairs=len(corpus), cleaning={**cleaning}).save(staged)
    shutil.rmtree(cache_dir, ignore_errors=True)


@contextmanager
def _writing(folder: Path) -> Iterator[Path]:
    with file_errors_as_os_error(f"prepared: cannot write {folder}"), atomic_directory(folder, "prepared") as staged:
        yield staged


def _learn_tokenizer(corpus: Dataset, args: PreparationArguments) -> VaswaniTokenizer:
    """A tokenizer trained on a sample of a corpus."""
    sample = corpus.select(spread(len(corpus), args.tokenizer_sample))
    return VaswaniTokenizer.train(
        sentences(sample, args.languages),
        args.vocab_size,
        args.tokenizer_model,
        show_progress=False,
        special_tokens=args.tags,
        min_frequency=args.min_frequency,
    )


def _encode(
    split: str, corpus: Dataset, tokenizer: PreTrainedTokenizerBase, args: PreparationArguments, num_proc: int | None
) -> tuple[Dataset, dict[str, int]]:
    """The encoded pairs of a corpus, and the counts of cleaning; what is scored on keeps all, and their text."""
    encode = encode_both_directions if args.both_directions else encode_corpus
    rows = encode(corpus, tokenizer, *args.languages, num_proc=num_proc)
    if split in TRAINED_ON:
        return clean_corpus(rows, args)
    text = interleave_datasets([corpus, corpus]) if args.both_directions else corpus
    return concatenate_datasets([rows, text], axis=1), {"kept": len(rows)}


@contextmanager
def _workers(count: int) -> Iterator[int | None]:
    """Prepare for `num_proc` processes of `Dataset.map`; None is this process, with the threads of the tokenizer."""
    if count == 1:
        yield None
        return
    _end_workers_with_this_process()
    with patch_environment(TOKENIZERS_PARALLELISM="false"):  # a core for each process
        yield count


@cache
def _end_workers_with_this_process() -> None:
    """Let Linux kill the processes of `Dataset.map` when this one is killed.

    They would wait for ever, and hold the lock of the directory.
    """
    if sys.platform == "linux":
        set_parent_death_signal = 1
        prctl = ctypes.CDLL(None).prctl
        os.register_at_fork(after_in_child=lambda: prctl(set_parent_death_signal, signal.SIGKILL))

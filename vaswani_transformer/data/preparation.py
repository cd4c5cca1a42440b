"""Corpora encoded and cleaned once (5.1), into a `PreparedDirectory`.

After an interruption, the same call continues with what is missing. Memory does not grow with the corpus. If the user
names no directory, it is one in the cache of `datasets`, named by a digest of its inputs and settings.
"""

import os
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from ..io.files import (
    Json,
    Manifest,
    atomic_directory,
    file_errors_as_os_error,
    identify_tokenizer,
    locked,
    make_directory,
    manifest_digest,
)
from ..model.saved_model import load_tokenizer
from ..model.tokenization_vaswani import VaswaniTokenizer
from ..options.arguments import decisive_values
from .cleaning import CleaningRules, require_kept, require_tags
from .corpora import check_parallel_corpus, has_columns, identify_corpus, load_parallel_corpus, sentences, spread
from .preparation_arguments import TRAINED_ON, PreparationArguments
from .prepared_directory import (
    FORMAT,
    RECORD_NAME,
    PreparedDirectory,
    PreparedSplit,
    load_prepared,
    package_versions,
)
from .shards import ShardFormat, sum_counts, write_shards
from .training_data import TrainingData


# What a corpus is called in a saved directory, a dataset of the Hub or the phrasebook, where not by its split.
_PARTS = {"replay": "train", "synthetic": "train", "replay_test": "test"}


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
    return {**corpora, "tokenizer": None if name is None else identify_tokenizer(name, known.get("tokenizer"))}


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
        digest = manifest_digest({**_settings(args), **inputs, "format": FORMAT, **package_versions()})
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
    path, args = Path(directory), args.with_languages()
    prepared = PreparedDirectory.open(path)
    if inputs is None:
        inputs = identify_inputs(args, prepared.inputs)
    prepared.require_same(_settings(args), inputs)
    if not all(map(prepared.has, args.sources)):
        make_directory("prepared", path)
        with locked(path / RECORD_NAME, "prepared", wait=True):  # inside: what is above may not be writable
            prepared = _prepare_missing(path, args, inputs)
    return {split: prepared.record.splits[split] for split in args.sources}


def _settings(args: PreparationArguments) -> dict[str, Json]:
    """What, beside the inputs, a directory depends on: the encoded pairs, and their division into shards."""
    return {**decisive_values(args, "data"), "pairs_per_shard": args.pairs_per_shard}


def _prepare_missing(path: Path, args: PreparationArguments, inputs: Mapping[str, Json]) -> PreparedDirectory:
    """Prepare what is missing, under the lock of the directory."""
    prepared = PreparedDirectory.open(path)  # another process may have prepared it
    prepared.require_same(_settings(args), inputs)
    cache = path / "cache"
    sources = {split: source for split, source in args.sources.items() if not prepared.has(split)}
    given, is_new = None, not prepared.tokenizer.exists()
    if is_new:
        given = None if args.tokenizer is None else load_tokenizer(args.tokenizer)
        _check_beginnings(sources, args)
    else:
        prepared.require_undamaged(())
    corpora = {
        split: load_parallel_corpus(
            source,
            *args.languages,
            _PARTS.get(split, split),
            args.dataset_config,
            columns=args.columns,
            streaming=args.streaming,
            cache_dir=cache,
        )
        for split, source in sources.items()
    }
    prepared = _begun(prepared, corpora, args, inputs)
    if is_new:
        _write_tokenizer(prepared.tokenizer, given, corpora["train"], args)
    for split, corpus in corpora.items():
        rules = CleaningRules.of(args) if split in TRAINED_ON else None
        form = ShardFormat(prepared.tokenizer, args.languages, rules, args.both_directions)
        folders = prepared.shards(split)
        write_shards(corpus, folders, args.pairs_per_shard, form, args.num_proc or os.cpu_count() or 1)
        totals = sum_counts(folders)
        if rules is not None:
            require_kept(totals)
        entry = replace(prepared.record.splits[split], cleaning=totals)
        prepared = _recorded(prepared, splits={**prepared.record.splits, split: entry})
    shutil.rmtree(cache, ignore_errors=True)
    return prepared


def _check_beginnings(sources: Mapping[str, list[str]], args: PreparationArguments) -> None:
    """Find most errors in the corpora before any of them is read to its end."""
    if args.columns and not any(map(has_columns, sources.values())):
        raise ValueError("columns: no corpus given is a table; leave the option out")
    for split, source in sources.items():
        check_parallel_corpus(source, args.languages, _PARTS.get(split, split), args.columns)


def _begun(
    prepared: PreparedDirectory, corpora: Mapping[str, Dataset], args: PreparationArguments, inputs: Mapping[str, Json]
) -> PreparedDirectory:
    """Record the settings and the numbers of pairs; return the directory with that record.

    Raises:
        ValueError: A corpus differs from an earlier call's, or a file has changed while it was read.
    """
    splits = dict(prepared.record.splits)
    for split, corpus in corpora.items():
        pairs = len(corpus)
        if split in splits and splits[split].pairs != pairs:
            raise ValueError(
                f"prepared: {split} had {splits[split].pairs} pairs when {prepared.path} was begun, and has {pairs} "
                f"now; delete the directory to prepare it anew"
            )
        splits[split] = PreparedSplit(inputs[split], pairs, shards=-(-pairs // args.pairs_per_shard))
    now = identify_inputs(replace(args, tokenizer=None), inputs)
    for split in corpora:
        if now[split] != inputs[split]:
            raise ValueError(f"{split}: a file has changed while it was read; repeat the command")
    return _recorded(prepared, settings={**_settings(args), "tokenizer": inputs["tokenizer"]}, splits=splits)


def _recorded(prepared: PreparedDirectory, **changes: Any) -> PreparedDirectory:
    """The directory after some fields of its record have changed."""
    record = replace(prepared.record, **changes)
    record.save(prepared.path / RECORD_NAME)
    return replace(prepared, record=record)


def _write_tokenizer(
    path: Path, given: PreTrainedTokenizerBase | None, corpus: Dataset, args: PreparationArguments
) -> None:
    """Save the tokenizer that was given, or else one trained on a sample of a corpus."""
    sample = corpus.select(spread(len(corpus), args.tokenizer_sample))
    tokenizer = given or VaswaniTokenizer.train(
        sentences(sample, args.languages),
        args.vocab_size,
        args.tokenizer_model,
        show_progress=False,
        special_tokens=args.tags,
        min_frequency=args.min_frequency,
    )
    require_tags(tokenizer, args.tags, args.tokenizer)
    with file_errors_as_os_error(f"prepared: cannot write {path}"), atomic_directory(path, "prepared") as staging:
        tokenizer.save_pretrained(staging)
        Manifest.of(staging).save(staging)

"""Corpora encoded and cleaned once (5.1), into a directory that `load_prepared` reads.

After an interruption, the same call continues with the missing corpora. Memory does not grow with the corpus. The
default directory is in the cache of `datasets`, named by a digest of its inputs and settings.
"""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

import datasets
from accelerate.utils import patch_environment
from datasets import Dataset, concatenate_datasets, interleave_datasets
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from ..model.languages_vaswani import language_tag
from ..model.tokenization_vaswani import VaswaniTokenizer
from ..options.arguments import decisive_values
from ..options.data import MIXED, TRAINED_ON, DataArguments
from ..system.files import Json, atomic_directory, file_errors_as_os_error, locked
from ..system.launcher import end_forks_with_this_process
from ..system.manifests import (
    TOKENIZER_FILES,
    Manifest,
    content_digest,
    digests_only,
    matching_files_digest,
    require_same_origin,
)
from ..system.processor import available_cores
from .augmentation import augment_corpus, find_names
from .cleaning import clean_corpus, encode_corpus
from .corpora import Corpus, evenly_spaced, sentences
from .corpus_languages import choose_languages
from .overlap import count_in_train
from .prepared_directory import TOKENIZER, TrainingData, load_prepared, load_tokenizer, read_notes
from .sources import find_source


_PAIRS_PER_PROCESS = 50_000  # minimum per process; encoding 50,000 pairs takes seconds
_VERSIONS = ("vaswani_transformer", "transformers", "tokenizers", "datasets")


def with_languages(args: DataArguments, model: PreTrainedConfig | None = None) -> DataArguments:
    """Fill in missing languages from the model, or from the suffixes of the files.

    Raises:
        ValueError: As from `choose_languages`.
    """
    models = [] if model is None else [model]
    source, target = choose_languages(args.sources.values(), args.source_language, args.target_language, models)
    return replace(args, source_language=source, target_language=target)


def identify_inputs(args: DataArguments) -> dict[str, Json]:
    """Describe the corpora, by split, and the "tokenizer" by their content, for records."""
    inputs: dict[str, Json] = {
        split: corpus.source.identify(corpus.split, corpus.config) for split, corpus in _corpora(args).items()
    }
    inputs[TOKENIZER] = None
    if args.tokenizer is not None:
        path = Path(args.tokenizer)
        digest = matching_files_digest(path, TOKENIZER_FILES)  # None for one on the Hub
        inputs[TOKENIZER] = {"file": str(path.absolute()), "sha256": digest} if digest else {"name": args.tokenizer}
    return inputs


def load_corpora(
    args: DataArguments, directory: str | Path | None = None, inputs: Mapping[str, Json] | None = None
) -> TrainingData:
    """Load the corpora encoded and cleaned, after preparing missing ones.

    If another process is preparing them, wait for it. A directory that was prepared from other corpora or with other
    settings stays as it is.

    Args:
        args: Options of corpora and preparation, with the languages.
        directory: Directory of the prepared corpora; by default in the cache of `datasets`.
        inputs: The result of `identify_inputs`, if it is known.

    Raises:
        ValueError: A file or the directory is damaged, or has other contents than the arguments say.
        OSError: A file is missing or cannot be written.
    """
    inputs = inputs or identify_inputs(args)
    if directory is None:
        versions = {name: version(name) for name in _VERSIONS}
        digest = content_digest(digests_only({**decisive_values(args, "data"), **inputs, **versions}))
        directory = Path(datasets.config.HF_DATASETS_CACHE, "vaswani_transformer", digest[:32])
    directory = Path(directory)
    if _missing_parts(directory, args, inputs):
        with locked(directory / "prepared", "prepared", wait=True):  # the parent may not be writable
            _prepare(directory, args, inputs, _missing_parts(directory, args, inputs))
    return load_prepared(directory, args.sources, args.ratios)


def _missing_parts(directory: Path, args: DataArguments, inputs: Mapping[str, Json]) -> list[str]:
    """The parts that are not prepared yet; raises a ValueError if one was prepared differently."""
    missing = []
    for part in (TOKENIZER, *args.sources):
        if not (directory / part).exists():
            missing.append(part)
            continue
        what = f"prepared: {directory} was prepared with other inputs or settings; it differs in"
        deleted = directory if part in (TOKENIZER, "train") else directory / part
        advice = f"name another directory, or delete {deleted} to prepare that anew"
        require_same_origin(read_notes(directory, part), _origin(part, args, inputs), what, advice)
    return missing


def _origin(part: str, args: DataArguments, inputs: Mapping[str, Json]) -> dict[str, Json]:
    """Inputs and options of a part; all parts depend on the training corpus, by the vocabulary."""
    return decisive_values(args, "data") | {name: inputs[name] for name in (TOKENIZER, "train", part) if name in inputs}


def _corpora(args: DataArguments) -> dict[str, Corpus]:
    """The corpora by split. The split also selects the part of a saved directory, a Hub dataset or an embedded corpus.

    Corpora that are mixed in are training corpora of their source, and the second test set is a test set.
    """
    parts = {**dict.fromkeys(MIXED, "train"), "replay_test": "test"}
    return {
        split: Corpus(find_source(names), args.languages, parts.get(split, split), args.dataset_config, args.columns)
        for split, names in args.sources.items()
    }


def _prepare(directory: Path, args: DataArguments, inputs: Mapping[str, Json], missing: list[str]) -> None:
    given = load_tokenizer(args.tokenizer) if args.tokenizer else None  # first: an error would come late
    splits, cache = [part for part in missing if part != TOKENIZER], directory / "cache"
    texts = _load_texts(args, splits, cache)
    train = texts["train"]
    held_out = {split: texts[split] for split in splits if split not in TRAINED_ON}
    in_train = count_in_train(train, held_out, args.languages) if held_out else {}
    names = find_names(train) if args.augment and {TOKENIZER, "train"} & {*missing} else []
    if TOKENIZER in missing:
        tokenizer = _learn_tokenizer(train, args, names) if given is None else given
        _require_tags(tokenizer, args)
        with _writing(directory / TOKENIZER, _origin(TOKENIZER, args, inputs)) as staged:
            tokenizer.save_pretrained(staged)
    tokenizer = load_tokenizer(directory / TOKENIZER, option="prepared")
    for split in splits:
        with _workers(args.num_proc, len(texts[split])) as num_proc:
            rows, cleaning = _encode(split, texts[split], tokenizer, args, names, num_proc)
            notes: dict[str, Json] = {
                **_origin(split, args, inputs),
                "cleaning": {**cleaning},
                "in_train": {**in_train.get(split, {})},
            }
            with _writing(directory / split, notes) as staged:
                rows.save_to_disk(staged, num_proc=num_proc)
    shutil.rmtree(cache, ignore_errors=True)


def _load_texts(args: DataArguments, splits: Sequence[str], cache: Path) -> dict[str, Dataset]:
    """The text of the training corpus, and of `splits`, which are all checked before any is read completely."""
    corpora = _corpora(args)
    for split in splits:
        corpora[split].check()
    return {split: corpora[split].load(cache) for split in ("train", *splits)}


@contextmanager
def _writing(folder: Path, notes: dict[str, Json]) -> Iterator[Path]:
    """A directory that becomes a part, with a manifest."""
    with file_errors_as_os_error(f"prepared: cannot write {folder}"), atomic_directory(folder, "prepared") as staged:
        yield staged
        Manifest.from_files(staged, notes=notes).save(staged)


def _tags(args: DataArguments) -> list[str]:
    """Tags of the target languages; empty with one direction."""
    return [language_tag(language) for language in args.languages] if args.both_directions else []


def _learn_tokenizer(corpus: Dataset, args: DataArguments, names: Sequence[str]) -> VaswaniTokenizer:
    sample = corpus.select(evenly_spaced(len(corpus), args.tokenizer_sample))
    augmented = augment_corpus(sample, args.languages, args.augment, names)  # for whole words in capitals
    return VaswaniTokenizer.train(
        sentences(augmented, args.languages),
        args.vocab_size,
        args.tokenizer_model,
        show_progress=False,
        special_tokens=_tags(args),
        min_frequency=args.min_frequency,
        split_digits=args.split_digits,
    )


def _require_tags(tokenizer: PreTrainedTokenizerBase, args: DataArguments) -> None:
    """Raise a ValueError if a tag of a language is no special token of the tokenizer."""
    for tag in _tags(args):
        ids = tokenizer(tag, add_special_tokens=False).input_ids
        if len(ids) != 1 or tokenizer.decode(ids, skip_special_tokens=True):
            raise ValueError(
                f"tokenizer: {args.tokenizer} has no special token {tag}, which both_directions needs; add it with "
                f"add_tokens([{tag!r}], special_tokens=True), or leave out --tokenizer to train one"
            )


def _encode(
    split: str,
    corpus: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    args: DataArguments,
    names: Sequence[str],
    num_proc: int | None,
) -> tuple[Dataset, dict[str, int]]:
    """Encode the pairs of a corpus, and count cleaning; corpora for scoring keep all pairs, and their text.

    The pairs of "train" are augmented before encoding, separately for each direction, since some changes are in the
    source alone.
    With both directions, the reverse of each pair follows it, and each source has the tag of its target language.
    Synthetic pairs are not reversed, since the model would learn to write their machine-translated side.
    """
    source_tag, target_tag = _tags(args) or (None, None)

    def encode(languages: tuple[str, str], tag: str | None) -> Dataset:
        pairs = augment_corpus(corpus, languages, args.augment, names, num_proc) if split == "train" else corpus
        return encode_corpus(pairs, tokenizer, *languages, num_proc, tag)

    rows, text = encode(args.languages, target_tag), corpus
    if args.both_directions and split != "synthetic":
        rows = interleave_datasets([rows, encode(args.languages[::-1], source_tag)])
        text = interleave_datasets([corpus, corpus])
    if split in TRAINED_ON:
        kept, counts = clean_corpus(rows, args.max_length, args.max_ratio)
        added = len(rows) - len(text)
        return kept, counts | ({"augmented": added} if added else {})
    return concatenate_datasets([rows, text], axis=1), {"kept": len(rows)}


@contextmanager
def _workers(requested: int | None, pairs: int) -> Iterator[int | None]:
    """The `num_proc` of `Dataset.map`; None means this process alone, with the threads of the tokenizer."""
    count = min(requested or available_cores(), -(-pairs // _PAIRS_PER_PROCESS))
    if count <= 1:
        yield None
        return
    end_forks_with_this_process()  # else workers would outlive a killed program, and hold the directory's lock
    with patch_environment(TOKENIZERS_PARALLELISM="false"):  # one core for each process
        yield count

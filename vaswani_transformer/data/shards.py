"""An encoded corpus on disk: shards that several processes write, each atomically, with a manifest."""

import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from multiprocessing import parent_process
from pathlib import Path

from accelerate.utils import patch_environment
from datasets import Dataset, concatenate_datasets, disable_progress_bars, interleave_datasets, load_from_disk
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from ..io.files import MANIFEST_NAME, Manifest, atomic_directory, file_errors_as_os_error
from ..model.saved_model import load_tokenizer
from .cleaning import CleaningRules, encode_both_directions, encode_corpus, filter_pairs


@dataclass(frozen=True)
class ShardFormat:
    """What a shard holds of each pair.

    Attributes:
        tokenizer: Directory of the tokenizer.
        languages: Codes of the source and target language.
        rules: What to drop; None to keep all pairs, and their text.
        both_directions: Whether each pair is followed by the reverse, both with the tag of their target language.
    """

    tokenizer: Path
    languages: tuple[str, str]
    rules: CleaningRules | None
    both_directions: bool = False


def write_shards(corpus: Dataset, folders: Sequence[Path], size: int, form: ShardFormat, num_proc: int) -> None:
    """Write the shards that are missing, each in one of several processes.

    Args:
        corpus: Rows of `translation`.
        folders: One for each `size` rows.
        size: Rows of a shard before cleaning; the last shard has fewer.
        form: What to write of them.
        num_proc: Number of processes.

    Raises:
        ChildProcessError: A process was killed.
    """
    parts = [
        (corpus.select(range(number * size, min((number + 1) * size, len(corpus)))), folder, form)
        for number, folder in enumerate(folders)
        if not folder.exists()
    ]
    if len(parts) == 1:  # in this process, with the threads of the tokenizer
        write_shard(*parts[0])
    elif parts:
        with (
            _workers(min(num_proc, len(parts))) as pool,
            tqdm(total=len(corpus), desc=f"Encoding {folders[0].parent.name}", unit="pairs", unit_scale=True) as bar,
        ):
            futures = [pool.submit(write_shard, *part) for part in parts]
            bar.update(len(corpus) - sum(len(rows) for rows, _, _ in parts))
            for future in as_completed(futures):
                bar.update(future.result())


@contextmanager
def _workers(count: int) -> Iterator[ProcessPoolExecutor]:
    """Processes that end with this one.

    Those of `Dataset.map(num_proc=...)` do not: after SIGKILL they write on, and their manager stays for ever, holding
    the lock of the directory. Besides, each call would fork and pickle the tokenizer anew.
    """
    # One core for each process; and unless it is set before the fork, tokenizers warns of its threads.
    with patch_environment(TOKENIZERS_PARALLELISM="false"):
        pool = ProcessPoolExecutor(count, initializer=_begin_worker)
        try:
            yield pool
        except BrokenProcessPool:
            raise ChildProcessError(
                "num_proc: a process that encodes was killed, perhaps for lack of memory; repeat the command to "
                "continue, with fewer processes"
            ) from None
        finally:
            pool.shutdown(cancel_futures=True)


def _begin_worker() -> None:
    disable_progress_bars()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C lets it finish the shard in hand
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent_process().join()
    os._exit(1)


def write_shard(corpus: Dataset, folder: Path, form: ShardFormat) -> int:
    """Encode pairs and save those to keep, with the counts of cleaning; returns how many were given."""
    tokenizer = _tokenizer(form.tokenizer)
    if form.both_directions:
        rows, text = encode_both_directions(corpus, tokenizer, *form.languages), interleave_datasets([corpus, corpus])
    else:
        rows, text = encode_corpus(corpus, tokenizer, *form.languages), corpus
    if form.rules is None:
        rows, counts = concatenate_datasets([rows, text], axis=1), {"kept": len(rows)}
    else:
        rows, counts = filter_pairs(rows, form.rules)
    with file_errors_as_os_error(f"prepared: cannot write {folder}"), atomic_directory(folder, "prepared") as staging:
        rows.save_to_disk(staging)
        Manifest.of(staging, **counts).save(staging)
    return len(corpus)


@cache
def _tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    return load_tokenizer(directory, option="prepared")


def read_shards(folders: Sequence[Path]) -> Dataset:
    """The rows of all shards, mapped into memory, which processes share."""
    # `datasets` saves a dataset without rows, but does not load it.
    return concatenate_datasets([load_from_disk(folder) for folder in folders if sum_counts([folder])["kept"]])


def sum_counts(folders: Sequence[Path]) -> dict[str, int]:
    """The counts of cleaning over shards.

    Raises:
        ValueError: The manifest of a shard is missing or damaged.
    """
    totals = Counter[str]()
    for folder in folders:
        try:
            counts = Manifest.load(folder).notes
        except (OSError, ValueError):
            raise ValueError(
                f"prepared: {folder}/{MANIFEST_NAME} is missing or damaged; delete {folder} to prepare it anew"
            ) from None
        totals.update({reason: int(str(count)) for reason, count in counts.items()})
    return dict(totals)

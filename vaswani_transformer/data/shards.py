"""An encoded corpus as shards on disk, each written by one of several processes, whole or not at all."""

import json
import math
import os
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import islice
from multiprocessing import parent_process
from pathlib import Path

import numpy as np
import pyarrow as pa
from datasets import Dataset, concatenate_datasets, disable_progress_bars, load_from_disk
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from ..files import seal_directory
from ..saved_model import load_tokenizer
from .cleaning import encode_pairs, which_to_keep
from .streams import Pair


_BATCH = 1000  # pairs encoded at a time
_IDS, _LENGTH = pa.list_(pa.int32()), pa.int32()
_SCHEMA = {"input_ids": _IDS, "labels": _IDS, "source_length": _LENGTH, "target_length": _LENGTH}
_TOTALS = "cleaning.json"


@dataclass(frozen=True)
class ShardFormat:
    """What is written of each pair.

    Attributes:
        tokenizer: Directory of the tokenizer.
        languages: Codes of the source and target language.
        limits: `max_length` and `max_ratio` of `clean_corpus`; None to keep all, and the text as `translation`.
        size: Pairs of a shard, but for the last; those that cleaning drops are counted.
    """

    tokenizer: Path
    languages: tuple[str, str]
    limits: tuple[int, float] | None
    size: int

    def folders(self, directory: Path, pairs: int) -> list[Path]:
        """Where the shards of that many pairs lie, in their order."""
        count = math.ceil(pairs / self.size)
        return [directory / f"shard-{number:05d}-of-{count:05d}" for number in range(count)]


def write_shards(pairs: Iterable[Pair], length: int, directory: Path, form: ShardFormat, num_proc: int) -> None:
    """Write the shards that are missing. As many as there are processes, and one, are in memory at a time.

    Args:
        pairs: Read to the end of the last missing shard.
        length: How many there are.
        directory: Where the shards are to lie.
        form: What they hold.
        num_proc: Processes that encode.

    Raises:
        ValueError: There are fewer pairs.
        ChildProcessError: A process was killed.
    """
    folders = form.folders(directory, length)
    sizes = [min(form.size, length - number * form.size) for number in range(len(folders))]
    missing = [number for number, folder in enumerate(folders) if not folder.exists()]
    if not missing:
        return
    reader, pending = iter(pairs), set[Future[int]]()
    done = length - sum(sizes[number] for number in missing)
    with (
        _workers(min(num_proc, len(missing))) as pool,
        tqdm(total=length, initial=done, desc=f"Encoding {directory.name}", unit="pairs", unit_scale=True) as bar,
    ):
        for number in range(missing[-1] + 1):
            shard = list(islice(reader, sizes[number]))
            if len(shard) < sizes[number]:
                raise ValueError(f"{directory.name}: the corpus lost pairs while it was prepared; repeat the command")
            if number in missing:
                pending = _await(pending, num_proc, bar) | {pool.submit(write_shard, shard, folders[number], form)}
        _await(pending, 0, bar)


def _await(pending: set[Future[int]], count: int, bar: tqdm) -> set[Future[int]]:
    """Those that are left when no more than `count` are."""
    while len(pending) > count:
        done, pending = wait(pending, return_when=FIRST_COMPLETED)
        for future in done:
            bar.update(future.result())
    return pending


@contextmanager
def _workers(count: int) -> Iterator[ProcessPoolExecutor]:
    parallel = os.environ.get("TOKENIZERS_PARALLELISM")
    # One core for each; and where it is not said ahead, tokenizers warns of the threads that a fork leaves behind.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        with ProcessPoolExecutor(count, initializer=_begin_worker) as pool:
            yield pool
    except BrokenProcessPool:
        raise ChildProcessError(
            "num_proc: a process that encodes was killed, perhaps for want of memory; repeat the command to go on, "
            "with fewer of them"
        ) from None
    finally:
        del os.environ["TOKENIZERS_PARALLELISM"]
        if parallel is not None:
            os.environ["TOKENIZERS_PARALLELISM"] = parallel


def _begin_worker() -> None:
    disable_progress_bars()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # what interrupts the program lets it finish the shards in hand
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Otherwise, after the program was killed, its processes would wait for work for ever."""
    parent_process().join()
    os._exit(1)


def write_shard(pairs: Sequence[Pair], folder: Path, form: ShardFormat) -> int:
    """Encode pairs and write those to keep, with the counts of cleaning; returns how many were given."""
    tables, totals = [], Counter[str]()
    for first in range(0, len(pairs), _BATCH):
        table, counts = _encode(pairs[first : first + _BATCH], form)
        tables.append(table)
        totals.update(counts)
    with whole_directory(folder) as temporary:
        Dataset(pa.concat_tables(tables)).save_to_disk(temporary)
        (temporary / _TOTALS).write_text(json.dumps(totals), encoding="utf-8")
        seal_directory(temporary)
    return len(pairs)


def _encode(pairs: Sequence[Pair], form: ShardFormat) -> tuple[pa.Table, dict[str, int]]:
    source, target = zip(*pairs, strict=True)
    columns = encode_pairs(_tokenizer(form.tokenizer), source, target)
    table = pa.table({name: pa.array(values, _SCHEMA[name]) for name, values in columns.items()})
    if form.limits is None:
        text = [dict(zip(form.languages, pair, strict=True)) for pair in pairs]
        return table.append_column("translation", pa.array(text)), {"kept": len(pairs)}
    lengths = np.asarray([columns["source_length"], columns["target_length"]])
    kept, counts = which_to_keep(lengths[0], lengths[1], *form.limits)
    return table.filter(pa.array(kept)), counts


@cache
def _tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    return load_tokenizer(directory, option="prepared")


def read_shards(folders: Sequence[Path]) -> Dataset:
    """The rows of all shards, mapped into memory, which processes share.

    Raises:
        ValueError: A shard is damaged.
    """
    # A dataset without rows can be saved, but not loaded.
    return concatenate_datasets([_read_shard(folder) for folder in folders if _totals(folder)["kept"]])


def _read_shard(folder: Path) -> Dataset:
    try:
        dataset = load_from_disk(folder)
    except (ValueError, OSError) as error:  # pyarrow's derive from these
        raise ValueError(_damaged(folder, str(error))) from error
    if len(dataset) != (kept := _totals(folder)["kept"]):
        raise ValueError(_damaged(folder, f"{len(dataset)} pairs instead of {kept}"))
    return dataset


def _damaged(folder: Path, what: str) -> str:
    return f"prepared: {folder} is damaged ({what}); delete it, and repeat the command to prepare it anew"


def sum_totals(folders: Sequence[Path]) -> dict[str, int]:
    """The counts of cleaning over all shards."""
    totals: Counter[str] = Counter()
    for folder in folders:
        totals.update(_totals(folder))
    return dict(totals)


def _totals(folder: Path) -> dict[str, int]:
    try:
        return json.loads((folder / _TOTALS).read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ValueError(_damaged(folder, str(error))) from error


@contextmanager
def whole_directory(path: Path) -> Iterator[Path]:
    """A directory to write files into that becomes `path` at the end, at once, and whole even if the power fails."""
    # Named after the process, as one that outlived its killed program may still be writing.
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    temporary.mkdir(parents=True, exist_ok=True)
    try:
        yield temporary
        for file in temporary.iterdir():
            with open(file, "rb") as written:
                os.fsync(written.fileno())
        if not path.exists():  # else another program has been quicker
            temporary.rename(path)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)

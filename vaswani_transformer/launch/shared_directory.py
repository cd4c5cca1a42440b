"""A directory that all ranks of a training hold, and see."""

import platform
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from accelerate import PartialState
from filelock import BaseFileLock, FileLock
from transformers.utils import logging

from ..io.files import acquire, make_directory
from .processes import first_of_any_rank, on_main_process


logger = logging.get_logger(__name__)


@contextmanager
def held_by_all_ranks(directory: Path, option: str = "output_dir", patience: float = 0.0) -> Iterator[None]:
    """Lock a directory for a training. Collective.

    Every rank locks a file of its own, `_lock-RANK`, because a rank may outlive the first one: stopped, or cut off, it
    would later delete what the next training writes. The system releases the locks however a process ends. Trainings
    on other machines are excluded where the file system passes `flock` on, as NFS does since Linux 2.6.12.

    Args:
        directory: Created if it does not exist.
        option: The user's name for it, with which messages begin.
        patience: Seconds to wait for each rank of an earlier training.

    Raises:
        ValueError: A rank of another training holds it, or it cannot be created or written.
    """
    make_directory(option, directory)
    rank = PartialState().process_index
    own = FileLock(directory / f"_lock-{rank}")
    with ExitStack() as held:

        def take() -> None:
            _take(own, directory, option, patience)
            held.callback(own.release)
            for file in directory.glob("_lock-*"):
                if file.name != "_lock-0":
                    other = FileLock(file)
                    _take(other, directory, option, patience)
                    other.release()

        on_main_process(take)
        if rank:
            acquire(own, directory, option)
            held.callback(own.release)
        yield


def _take(lock: BaseFileLock, directory: Path, option: str, patience: float) -> None:
    try:
        acquire(lock, directory, option)
    except ValueError:
        if not patience:
            raise
        logger.warning(f"{directory}: waiting {patience:g} seconds for an earlier training to end")
        acquire(lock, directory, option, patience)


def require_shared(file: Path, option: str = "output_dir", patience: float = 60.0) -> None:
    """Raise a ValueError on all ranks unless each of them sees what the main process has written. Collective.

    Args:
        file: What it has written.
        option: The user's name for the directory, with which the message begins.
        patience: Seconds within which a shared file system shows it on all machines.
    """
    written = on_main_process(file.read_bytes)
    deadline = time.monotonic() + patience
    while not (is_seen := file.exists() and file.read_bytes() == written) and time.monotonic() < deadline:
        time.sleep(0.2)
    unseen = None if is_seen else f"rank {PartialState().process_index} on {platform.node()}"
    if (rank := first_of_any_rank(unseen)) is not None:
        raise ValueError(f"{option}: {rank} does not see {file.parent} of rank 0; give one that all machines share")

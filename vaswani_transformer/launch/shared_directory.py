"""A directory that all ranks of a training hold, and that all machines see, or each has of its own."""

import platform
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from accelerate import PartialState
from filelock import BaseFileLock, FileLock
from transformers.utils import logging

from ..io.files import acquire
from .processes import first_of_any_rank, on_each_machine, on_main_process


logger = logging.get_logger(__name__)


@contextmanager
def held_by_all_ranks(
    directory: Path, each_machine: bool = False, option: str = "output_dir", patience: float = 0.0
) -> Iterator[None]:
    """Lock a directory for a training. Collective.

    Every rank locks a file of its own, `_lock-RANK`, because a rank may outlive the first one: stopped, or cut off, it
    would later delete what the next training writes. The system releases the locks however a process ends. Trainings
    on other machines are excluded where the file system passes `flock` on, as NFS does since Linux 2.6.12.

    Args:
        directory: It exists.
        each_machine: Whether each machine has a directory of its own of this name.
        option: The user's name for it, with which messages begin.
        patience: Seconds to wait for each rank of an earlier training.

    Raises:
        ValueError: A rank of another training holds it.
    """
    own = FileLock(directory / f"_lock-{PartialState().process_index}")
    with ExitStack() as held:

        def take() -> None:
            _take(own, directory, option, patience)
            held.callback(own.release)
            for file in directory.glob("_lock-*"):
                if file != Path(own.lock_file):
                    other = FileLock(file)
                    _take(other, directory, option, patience)
                    other.release()

        (on_each_machine if each_machine else on_main_process)(take)
        if not own.is_locked:
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


def require_shared(
    directory: Path, each_machine: bool = False, option: str = "output_dir", patience: float = 60.0
) -> None:
    """Raise a ValueError on all ranks unless each of them sees what the main process writes. Collective.

    Args:
        directory: It exists.
        each_machine: Whether each machine is to have a directory of its own instead (`save_on_each_node`).
        option: The user's name for the directory, with which the message begins.
        patience: Seconds within which a shared file system shows a file on all machines.
    """
    state = PartialState()
    rank = f"rank {state.process_index} on {platform.node()}"
    with ExitStack() as until_seen:

        def write() -> str:
            file = until_seen.enter_context(tempfile.NamedTemporaryFile(prefix="_seen-", dir=directory))
            return Path(file.name).name

        file = directory / on_main_process(write)
        if each_machine:
            is_other = state.is_local_main_process and not state.is_main_process
            found = first_of_any_rank(rank if is_other and file.exists() else None)
            problem, advice = "sees", "leave out save_on_each_node"
        else:
            deadline = time.monotonic() + patience
            while not (is_seen := file.exists()) and time.monotonic() < deadline:
                time.sleep(0.2)
            found = first_of_any_rank(None if is_seen else rank)
            problem, advice = "does not see", "give one that all machines share, or --save_on_each_node"
    if found is not None:
        raise ValueError(f"{option}: {found} {problem} {directory} of rank 0; {advice}")

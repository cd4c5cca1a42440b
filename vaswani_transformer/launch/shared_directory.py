"""The output directory of a training: locked, and seen by all machines."""

import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from accelerate import PartialState
from filelock import FileLock

from ..io.files import acquire
from .processes import first_message, on_each_machine, on_main_process


_PATIENCE = 60.0  # seconds within which a shared file system shows a file on all machines


@contextmanager
def locked_by_training(directory: Path, each_machine: bool = False) -> Iterator[None]:
    """Lock an output directory for a training. Collective.

    The main process locks the file `_run.lock` in it; the system releases the lock however the process ends. Trainings
    on other machines are excluded where the file system passes `flock` on, as NFS does since Linux 2.6.12.

    Args:
        directory: It exists.
        each_machine: Whether each machine has a directory of its own of this name (`save_on_each_node`).

    Raises:
        ValueError: Another training holds it, or a machine does not see it.
    """
    lock = FileLock(directory / "_run.lock")
    (on_each_machine if each_machine else on_main_process)(lambda: acquire(lock, directory, "output_dir"))
    try:
        deadline = time.monotonic() + _PATIENCE
        while not (is_seen := Path(lock.lock_file).exists()) and time.monotonic() < deadline:
            time.sleep(0.2)
        rank = f"rank {PartialState().process_index} on {platform.node()}"
        if (blind := first_message(None if is_seen else rank)) is not None:
            raise ValueError(
                f"output_dir: {blind} does not see {directory} of rank 0; give one that all machines share, or "
                f"--save_on_each_node"
            )
        yield
    finally:
        lock.release()

"""How a process joins those that it trains with, and parts from them."""

import gc
import os
from datetime import timedelta

import torch
from accelerate import PartialState


if torch.distributed.is_available():
    # Its functions keep, as their default, the process group that exists when they are first imported. The wrapper for
    # several processes imports them when there is one, which from then on could not end.
    import torch.distributed.nn


def join_process_group(use_cpu: bool, timeout: timedelta, backend: str | None = None) -> None:
    """Start the process group if a launcher asks for one and none exists; `TrainingArguments` then uses it.

    `TrainingArguments` starts a group of its own otherwise, on a CPU without its `ddp_timeout`.

    Args:
        use_cpu: Whether to train on the CPU.
        timeout: How long a collective operation may wait for the other processes.
        backend: As `ddp_backend`.

    Raises:
        ValueError: A backend is given, and no launcher asks for a group.
    """
    if backend is not None and "LOCAL_RANK" not in os.environ:
        raise ValueError(
            f"ddp_backend: {backend} connects several processes, this is one; start them with torchrun or accelerate "
            f"launch, or leave it out"
        )
    if not torch.distributed.is_available() or torch.distributed.is_initialized():
        return
    PartialState(cpu=use_cpu, timeout=timeout, **({} if backend is None else {"backend": backend}))


def leave_process_group() -> None:
    """End the process group, if there is one, and wait for its threads; call it when the trainer is out of scope.

    A thread that is still letting go of a tensor when the interpreter shuts down aborts the process, though all its
    work is done. The threads are waited for only when nothing refers to the group any longer, as a trainer does.
    """
    gc.collect()  # a trainer and its callbacks refer to one another
    PartialState().destroy_process_group()

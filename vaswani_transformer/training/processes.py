"""Joining and leaving the process group."""

import gc
import os
from datetime import timedelta

import torch
from accelerate import PartialState


if torch.distributed.is_available():
    # Default arguments of its functions keep the process group that exists at the first import. Imported later, by
    # `DistributedDataParallel`, they would keep the group alive, and it could not end.
    import torch.distributed.nn


def join_process_group(use_cpu: bool, timeout: timedelta, backend: str | None = None) -> None:
    """Start the process group if a launcher asks for one and none exists; `TrainingArguments` then uses it.

    Otherwise `TrainingArguments` starts a group itself, and ignores `ddp_timeout` on a CPU.

    Args:
        use_cpu: Whether to train on the CPU.
        timeout: How long a collective operation may wait for the other processes.
        backend: `ddp_backend` of `TrainingArguments`.

    Raises:
        ValueError: A backend is given, but there is no launcher.
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
    """End the process group, if there is one, and join its threads; call it when the trainer is out of scope.

    A thread that still releases a tensor while the interpreter shuts down aborts the process, although all its work is
    done. The threads are joined only when nothing refers to the group any longer, and a trainer does refer to it.
    """
    gc.collect()  # a trainer and its callbacks refer to one another
    PartialState().destroy_process_group()

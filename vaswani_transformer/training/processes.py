"""How a process parts from those that it trained with."""

import gc

import torch
from accelerate import PartialState


if torch.distributed.is_available():
    # Its functions keep, as their default, the process group that exists when they are first imported. The wrapper for
    # several processes imports them when there is one, which from then on could not end.
    import torch.distributed.nn


def leave_process_group() -> None:
    """End the process group, if there is one, and wait for its threads; call it when the trainer is out of scope.

    A thread that is still letting go of a tensor when the interpreter shuts down aborts the process, though all its
    work is done. The threads are waited for only when nothing refers to the group any longer, as a trainer does.
    """
    gc.collect()  # a trainer and its callbacks refer to one another
    PartialState().destroy_process_group()

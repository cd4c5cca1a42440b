"""`VaswaniTrainingArguments`: the paper's optimizer (5.3), and a batch size in tokens (5.1)."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from accelerate.utils import parse_flag_from_env
from transformers import Seq2SeqTrainingArguments

from ..launch.processes import join_process_group
from ..options.arguments import check_values, refuse_unused
from .training_options import TrainingOptions


@dataclass
class VaswaniTrainingArguments(TrainingOptions, Seq2SeqTrainingArguments):
    """`Seq2SeqTrainingArguments` with the paper's optimizer (5.3), and a batch size in tokens (5.1)."""

    def __post_init__(self) -> None:
        # The type checker does not see the fields of the base class.
        if self.accelerator_config is None and self.dataloader_pin_memory:  # type: ignore[has-type]
            self.accelerator_config = {"non_blocking": True}  # else each batch on its way waits for the device
        by_launcher = map(parse_flag_from_env, ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED"))
        if self.fsdp or self.deepspeed or any(by_launcher):
            raise ValueError(
                "fsdp, deepspeed: averaging and the search need the whole model on each process; leave them out"
            )
        join_process_group(self.use_cpu, timedelta(seconds=self.ddp_timeout), self.ddp_backend)
        super().__post_init__()
        check_values(self)
        if self.muon:
            names = ("optim", "optim_args", "optim_target_modules")
            refuse_unused(self, dict.fromkeys(names, "muon is the optimizer; leave one of them out"))
        if self.virtual_ranks is None:
            unused = {
                "virtual_rank_threads": "set virtual_ranks, for elastic training; or leave it out",
                "average_tokens_across_devices": "the loss is the mean over the tokens of all processes; leave it out",
            }
            refuse_unused(self, unused)
            return
        if self.gradient_accumulation_steps != 1:
            raise ValueError(
                f"gradient_accumulation_steps: must be 1 in elastic training, is {self.gradient_accumulation_steps}; "
                f"virtual_ranks alone divides a batch"
            )
        self.average_tokens_across_devices = False  # the trainer would multiply the loss by the number of processes

    @contextmanager
    def elastic_threads(self) -> Iterator[None]:
        """Fix PyTorch's number of CPU threads in elastic training, whose bits depend on it."""
        before = torch.get_num_threads()
        if self.virtual_ranks is not None:
            torch.set_num_threads(self.virtual_rank_threads)
        try:
            yield
        finally:
            torch.set_num_threads(before)

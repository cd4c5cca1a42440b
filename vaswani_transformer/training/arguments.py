"""`VaswaniTrainingArguments`: the paper's optimizer (5.3), batch sizes in tokens (5.1), elastic training."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
from accelerate.utils import parse_flag_from_env
from transformers import Seq2SeqTrainingArguments

from ..options.arguments import COUNT, NOT_NEGATIVE, POSITIVE, SHARE, Interval, check_values, option, refuse_unused
from ..system.processes import join_process_group


@dataclass
class VaswaniTrainingArguments(Seq2SeqTrainingArguments):
    """`Seq2SeqTrainingArguments` with the paper's optimizer (5.3) and batch sizes in tokens (5.1)."""

    option_group = "training"

    source_tokens: int = option(
        25000,
        "Source tokens of a global batch, over all processes and accumulation steps.",
        COUNT,
        decides="weights",
        paper=25000,
    )
    target_tokens: int = option(
        25000,
        "Target tokens of a global batch, over all processes and accumulation steps.",
        COUNT,
        decides="weights",
        paper=25000,
    )
    batch_window: int = option(
        4,
        "Number of batches among which sentences of similar length are exchanged in each epoch. More mix better; fewer "
        "pad less.",
        COUNT,
        decides="weights",
    )
    adam_beta1: float = option(0.9, "Adam's beta1 (5.3).", SHARE, decides="weights", paper=0.9)
    adam_beta2: float = option(0.98, "Adam's beta2 (5.3).", SHARE, decides="weights", paper=0.98)
    adam_epsilon: float = option(1e-9, "Adam's epsilon (5.3).", POSITIVE, decides="weights", paper=1e-9)
    muon: bool = option(
        False,
        "Optimize the matrices of the layers with Muon (Jordan et al. 2024), and the rest with Adam. Short "
        "trainings learn more with it.",
        decides="weights",
        paper=False,
    )
    ddp_find_unused_parameters: bool | None = option(
        False,
        "Look for parameters without a gradient; not needed, because every step uses every parameter.",
        decides=None,
        is_shown=False,
    )
    max_grad_norm: float = option(
        0.0, "Maximum gradient norm; 0 disables clipping.", NOT_NEGATIVE, decides="weights", paper=0.0
    )
    logging_nan_inf_filter: bool = option(
        False,
        "Log another value for a loss that is not finite; training ends at the first one anyway.",
        decides=None,
        is_shown=False,
    )
    virtual_ranks: int | None = option(
        None,
        "Elastic training: divide every global batch into this number of virtual ranks. The final weights are then the "
        "same, bit for bit, on any number of processes up to virtual_ranks, and after restarts with other numbers, "
        "given the same versions, precision, type of processor and virtual_rank_threads (on GPUs also "
        "full_determinism).",
        COUNT,
        decides="weights",
    )
    virtual_rank_threads: int = option(
        1,
        "CPU threads of each process in elastic training; the final bits depend on it.",
        Interval(minimum=1, maximum=1024),
        decides="weights",
    )

    def __post_init__(self) -> None:
        # The type checker does not see the fields of the base class.
        if self.accelerator_config is None and self.dataloader_pin_memory:  # type: ignore[has-type]
            self.accelerator_config = {"non_blocking": True}  # else each copy of a batch waits for the device
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

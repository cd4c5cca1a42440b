"""Arguments of a training from corpora to a scored model: `recipes/train_wmt.py`, and sweeps of it."""

import os
from dataclasses import dataclass, field
from datetime import timedelta

import torch

from ..arguments import COUNT, POSITIVE, SHARE, Interval, refuse_unused
from ..data import PreparationArguments
from .processes import join_process_group
from .trainer import VaswaniTrainingArguments


# Far above any model of this kind, so that a typing error is refused before memory is allocated.
SIZE = Interval(minimum=1, maximum=2**16)
LAYERS = Interval(minimum=1, maximum=1000)


# Options of the trainer that would change nothing, or not what their name says, and what to use instead.
_BY_TOKENS = "batches are measured by source_tokens and target_tokens"
_BY_SCHEDULE = "set learning_rate_factor and warmup_steps instead"
UNUSED = {
    "learning_rate": _BY_SCHEDULE,
    "lr_scheduler_type": _BY_SCHEDULE,
    "lr_scheduler_kwargs": _BY_SCHEDULE,
    "warmup_ratio": _BY_SCHEDULE,
    "per_device_train_batch_size": _BY_TOKENS,
    "auto_find_batch_size": _BY_TOKENS,
    "train_sampling_strategy": _BY_TOKENS,
    "group_by_length": _BY_TOKENS,
    "length_column_name": _BY_TOKENS,
    "dataloader_drop_last": _BY_TOKENS,
    "resume_from_checkpoint": "use --resume, which takes the newest complete checkpoint in output_dir",
    "ignore_data_skip": "a resumed training continues with the data that it has not seen; leave it out",
    "debug": "training ends at the first loss, gradient or weight that is not finite, and names the step",
    "metric_for_best_model": "the last checkpoints are averaged, see average_last",
}


@dataclass
class DataArguments(PreparationArguments):
    """Corpora, cleaning and vocabulary (5.1)."""

    prepared: str | None = field(
        default=None,
        metadata={
            "help": "Directory of the prepared corpora, for any number of runs; created if missing, see "
            "prepare_data.py. By default they are kept in the cache of datasets."
        },
    )
    license: str | None = field(default=None, metadata={"help": "License of the model, for its card, like cc-by-4.0."})
    datasets: list[str] | None = field(
        default=None, metadata={"help": "Hub ids of the corpora, for the card; by default those that were loaded."}
    )


@dataclass
class ModelArguments:
    """The model (3): a row of Table 3, and changes to it."""

    variant: str = field(default="base", metadata={"help": "Row of Table 3, such as base, big or B-dk16."})
    d_model: int | None = field(default=None, metadata={"interval": SIZE, "help": "Width of the model."})
    d_ff: int | None = field(
        default=None, metadata={"interval": SIZE, "help": "Width of the inner feed-forward layer."}
    )
    num_heads: int | None = field(default=None, metadata={"interval": SIZE, "help": "Attention heads."})
    d_k: int | None = field(default=None, metadata={"interval": SIZE, "help": "Width of a head's queries and keys."})
    d_v: int | None = field(default=None, metadata={"interval": SIZE, "help": "Width of a head's values."})
    encoder_layers: int | None = field(default=None, metadata={"interval": LAYERS, "help": "Encoder layers."})
    decoder_layers: int | None = field(default=None, metadata={"interval": LAYERS, "help": "Decoder layers."})
    dropout: float | None = field(default=None, metadata={"interval": SHARE, "help": "Residual dropout (5.4)."})
    label_smoothing: float | None = field(
        default=None, metadata={"interval": SHARE, "help": "Epsilon of the smoothed target (5.4)."}
    )
    position_encoding: str | None = field(
        default=None, metadata={"help": "'sinusoidal', 'sinusoidal_halves' or 'learned'."}
    )


@dataclass
class RecipeTrainingArguments(VaswaniTrainingArguments):
    """Schedule (5.3), averaging (6.1), and all of `Seq2SeqTrainingArguments`."""

    output_dir: str | None = field(default="runs/model", metadata={"help": "Where everything is written."})
    resume: bool = field(
        default=False,
        metadata={
            "help": "Continue from the newest complete checkpoint in output_dir, or from the beginning if there is "
            "none yet. The training must be the same, except for max_steps, num_train_epochs, max_minutes, the number "
            "of processes, gradient_accumulation_steps, average_last, validation and test, and how it is logged, "
            "evaluated, saved and pushed."
        },
    )
    warmup_steps: float = field(
        default=4000,
        metadata={
            "interval": Interval(minimum=1, maximum=2**31 - 1, whole=True),
            "help": "Steps until the learning rate is highest (5.3).",
        },
    )
    learning_rate_factor: float = field(
        default=1.0, metadata={"interval": POSITIVE, "help": "Multiplies the learning rate of 5.3."}
    )
    average_last: int = field(default=5, metadata={"interval": COUNT, "help": "Checkpoints averaged at the end (6.1)."})
    save_minutes: float | None = field(
        default=None, metadata={"interval": POSITIVE, "help": "Minutes between checkpoints (6.1: 10)."}
    )
    max_minutes: float | None = field(
        default=None, metadata={"interval": POSITIVE, "help": "Minutes after which training ends."}
    )
    ddp_timeout: int = field(
        default=600,
        metadata={
            "interval": COUNT,
            "help": "Seconds without a step, or without a heartbeat of a process, after which all end.",
        },
    )
    hub_strategy: str = field(
        default="end", metadata={"help": "When to push; only 'end', after scoring, is supported."}
    )

    def __post_init__(self) -> None:
        token = self.hub_token  # type: ignore[has-type]  # a field of the class that this one extends
        if token is not None:
            # The Hub's client reads it from there; it must not get into training_args.bin.
            os.environ["HF_TOKEN"], self.hub_token = token, None
        refuse_unused(self, UNUSED)
        self._take_precision_of_launcher()
        if not torch.accelerator.is_available():
            self.use_cpu = True  # otherwise bf16 is refused without a GPU
            self.dataloader_pin_memory = False
        if self.fp16 and self.use_cpu:
            raise ValueError("fp16: the CPU would train in float32 instead; leave it out, or choose bf16")
        if self.hub_strategy != "end":
            raise ValueError("hub_strategy: only the finished, scored model is pushed; leave it out")
        join_process_group(self.use_cpu, timedelta(days=30), self.ddp_backend)  # the watchdog ends longer waits
        super().__post_init__()

    def _take_precision_of_launcher(self) -> None:
        """Take the mixed precision of `accelerate launch`, which the trainer would use without an option."""
        precision = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
        if precision not in ("no", "bf16", "fp16"):
            raise ValueError(f"mixed_precision: {precision} of accelerate launch is not supported; choose bf16 or fp16")
        if precision != "no" and not (self.bf16 or self.fp16):
            setattr(self, precision, True)

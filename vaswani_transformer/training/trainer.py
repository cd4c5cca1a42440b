"""The trainer: what `Seq2SeqTrainer` lacks is batches measured in tokens (5.1); the rest is in callbacks and the loss."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import (
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from ..data.batching import TokenBudgetBatchSampler
from .loss import LabelSmoothedLoss


@dataclass
class VaswaniTrainingArguments(Seq2SeqTrainingArguments):
    """`Seq2SeqTrainingArguments` with the paper's optimizer (5.3), and a batch size in tokens (5.1)."""

    source_tokens: int = field(
        default=25000, metadata={"help": "Source tokens of a global batch, over all processes and accumulation steps."}
    )
    target_tokens: int = field(
        default=25000, metadata={"help": "Target tokens of a global batch, over all processes and accumulation steps."}
    )
    adam_beta1: float = field(default=0.9, metadata={"help": "Adam's beta1 (5.3)."})
    adam_beta2: float = field(default=0.98, metadata={"help": "Adam's beta2 (5.3)."})
    adam_epsilon: float = field(default=1e-9, metadata={"help": "Adam's epsilon (5.3)."})
    max_grad_norm: float = field(default=0.0, metadata={"help": "Gradient clipping; 0, none, in the paper."})


class VaswaniTrainer(Seq2SeqTrainer):
    """`Seq2SeqTrainer` on token-budget batches.

    By default it collates with `DataCollatorForSeq2Seq`, and smooths labels by `model.config.label_smoothing`. Its
    logs also have `target_tokens_per_second`, over all processes, and `padding_share`.

    Args:
        model: As in `Seq2SeqTrainer`, and so are all others.
        args: With `source_tokens` and `target_tokens`.
        train_dataset: Rows of `input_ids`, `labels`, and, lest every row be read to measure them, `source_length` and
            `target_length`.

    Raises:
        ValueError: From `train()`: the token budget cannot hold the longest sentence, or be divided (see
            `TokenBudgetBatchSampler`).
    """

    def __init__(self, model: Any, args: VaswaniTrainingArguments, **kwargs: Any) -> None:
        if kwargs.get("data_collator") is None:
            kwargs["data_collator"] = DataCollatorForSeq2Seq(kwargs["processing_class"], model=model)
        if kwargs.get("compute_loss_func") is None:
            kwargs["compute_loss_func"] = LabelSmoothedLoss(model.config.label_smoothing)
        super().__init__(model, args, **kwargs)
        self.batch_sampler: TokenBudgetBatchSampler | None = None
        self.total_target_tokens = 0  # as of the last log
        self.add_callback(_EpochOfSampler(self))
        self.restart_count()

    def get_train_dataloader(self) -> DataLoader:
        if self.train_dataset is None:
            raise ValueError("train_dataset: training needs one")
        self.batch_sampler = TokenBudgetBatchSampler(
            self._lengths("source_length", "input_ids"),
            self._lengths("target_length", "labels"),
            self.args.source_tokens,
            self.args.target_tokens,
            num_parts=self.args.world_size * self.args.gradient_accumulation_steps,
            seed=self.args.data_seed if self.args.data_seed is not None else self.args.seed,
        )
        loader = DataLoader(
            self._remove_unused_columns(self.train_dataset, description="training"),
            batch_sampler=self.batch_sampler,
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.dataloader_pin_memory,
            persistent_workers=self.args.dataloader_persistent_workers,
            prefetch_factor=self.args.dataloader_prefetch_factor,
        )
        return self.accelerator.prepare(loader)

    def _lengths(self, column: str, tokens: str) -> Sequence[int]:
        if column in self.train_dataset.column_names:
            return self.train_dataset[column]
        return [len(row) for row in self.train_dataset[tokens]]

    def get_batch_samples(self, *args: Any, **kwargs: Any) -> tuple[list, torch.Tensor | int | None]:
        batches, num_items = super().get_batch_samples(*args, **kwargs)
        if num_items is not None:
            self._target_tokens = self._target_tokens + num_items  # a tensor: counting must not wait for the device
        return batches, num_items

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        if "loss" in logs and self.batch_sampler is not None:
            tokens, elapsed = int(self._target_tokens), time.monotonic() - self._counted_since
            self.total_target_tokens += tokens
            logs["target_tokens_per_second"] = tokens / elapsed
            logs["padding_share"] = self.batch_sampler.padding_share
            self.restart_count()
        super().log(logs, start_time)

    def restart_count(self) -> None:
        """Begin to count target tokens and seconds anew."""
        self._target_tokens: torch.Tensor | float = 0.0
        self._counted_since = time.monotonic()


class _EpochOfSampler(TrainerCallback):
    """Tells the batch sampler the epoch: through the loader's wrappers the news arrives late, or, after resuming in the
    middle of an epoch on several processes, never."""

    def __init__(self, trainer: VaswaniTrainer) -> None:
        self.trainer = trainer

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self.trainer.restart_count()

    def on_epoch_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        if self.trainer.batch_sampler is not None:
            self.trainer.batch_sampler.set_epoch(int((state.epoch or 0.0) + 1e-6))

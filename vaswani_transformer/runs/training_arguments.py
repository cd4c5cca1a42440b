"""`RecipeTrainingArguments`: the options of a training recipe and all of transformers' `Seq2SeqTrainingArguments`."""

import os
from dataclasses import dataclass
from typing import cast

import torch
from transformers import Seq2SeqTrainingArguments
from transformers.training_args import OptimizerNames

from ..options.arguments import option, refuse_unused
from ..training.arguments import VaswaniTrainingArguments
from .run_arguments import Precision, RecipeTrainingOptions


# Options of the trainer that would change nothing, or not what their name says, and what to use instead.
UNUSED = {
    "bf16": "set precision",
    "fp16": "set precision",
    "per_device_train_batch_size": "batches are measured by source_tokens and target_tokens",
    "resume_from_checkpoint": "use --resume, which takes the newest complete checkpoint in output_dir",
    "predict_with_generate": "set eval_bleu instead, the number of sentences to translate",
}

_UNLIMITED = 1_000_000  # steps, more than max_minutes allow


@dataclass
class RecipeTrainingArguments(RecipeTrainingOptions, VaswaniTrainingArguments):
    """Schedule (5.3), averaging (6.1), and all of `Seq2SeqTrainingArguments`."""

    optim: OptimizerNames | str = option(
        Seq2SeqTrainingArguments.optim, "Optimizer, by transformers' name.", decides="weights"
    )

    def __post_init__(self) -> None:
        self.resolve()
        token = self.hub_token  # type: ignore[has-type]  # a field of the class that this one extends
        if token is not None:  # libraries read it from the environment; it must not get into training_args.bin
            os.environ["HF_TOKEN"], self.hub_token = token, None
        if self.full_determinism:  # read at the first product, which may come before transformers sets it
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":16:8")
        if not torch.accelerator.is_available():
            self.use_cpu = True  # otherwise bf16 is refused without a GPU
            self.dataloader_pin_memory = False
        launcher = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
        self.set_precision(launcher if self.precision == "auto" and launcher in ("bf16", "fp16") else self.precision)
        super().__post_init__()

    def resolve(self) -> None:
        """Set what depends on other options, and refuse options without effect."""
        unused = dict(UNUSED)
        if self.lr_scheduler_type == "inverse_sqrt":
            unused["learning_rate"] = "set learning_rate_factor and warmup_steps, or a constant lr_scheduler_type"
        else:
            unused["learning_rate_factor"] = "the learning rate is constant"
        if self.lr_scheduler_type == "constant":
            unused["warmup_steps"] = "the learning rate is constant"
        if self.max_steps > 0:
            unused["num_train_epochs"] = "max_steps decides; leave one of them out"
        if self.eval_strategy == "no":
            unused |= dict.fromkeys(("eval_bleu", "early_stopping_patience"), "set eval_strategy")
        refuse_unused(self, unused)
        if self.num_train_epochs is None and self.max_steps <= 0 and self.max_minutes is not None:
            self.max_steps = _UNLIMITED
            for name in ("logging_steps", "save_steps", "eval_steps"):
                if 0 < (getattr(self, name) or 0) < 1:
                    raise ValueError(f"{name}: is a share of steps, whose number max_minutes leaves open; give steps")
        if self.num_train_epochs is None:
            self.num_train_epochs = Seq2SeqTrainingArguments.num_train_epochs
        if self.early_stopping_patience is not None and self.cooldown:
            raise ValueError(
                "early_stopping_patience: would end the training before its cooldown; leave out one of them"
            )
        if self.metric_for_best_model == "bleu" and self.eval_bleu is None:
            raise ValueError("metric_for_best_model: bleu needs eval_bleu, the number of sentences to translate")
        if self.early_stopping_patience is not None and self.metric_for_best_model is None:
            self.metric_for_best_model = "loss" if self.eval_bleu is None else "bleu"

    def set_precision(self, precision: str) -> None:
        """Train in this precision; "auto" leaves it open.

        Raises:
            ValueError: It is fp16, on a CPU.
        """
        if precision == "fp16" and self.use_cpu:
            raise ValueError("fp16: the CPU would train in float32 instead; leave it out, or choose bf16")
        self.precision = cast(Precision, precision)
        self.bf16, self.fp16 = precision == "bf16", precision == "fp16"
        self.mixed_precision = precision if self.bf16 or self.fp16 else "no"  # what the trainer reads

"""Options of the model and of its training: sections 3, 5 and 6.1, and all of `Seq2SeqTrainingArguments`."""

import os
from dataclasses import dataclass
from datetime import timedelta
from typing import ClassVar, Literal, cast

import torch
from accelerate.utils import parse_flag_from_env
from transformers import PreTrainedConfig, Seq2SeqTrainingArguments
from transformers.training_args import OptimizerNames

from ..system.processes import join_process_group
from .arguments import (
    ALPHA,
    COUNT,
    NOT_NEGATIVE,
    POSITIVE,
    SEED,
    SHARE,
    Interval,
    Precision,
    check_values,
    option,
    refuse_unused,
)


# Options of the trainer that have no effect or a misleading name, and their substitutes.
_UNUSED = {
    "bf16": "set precision",
    "fp16": "set precision",
    "per_device_train_batch_size": "batches are measured by source_tokens and target_tokens",
    "resume_from_checkpoint": "use --resume, which takes the newest complete checkpoint in output_dir",
    "predict_with_generate": "set eval_bleu instead, the number of sentences to translate",
}

_UNLIMITED = 1_000_000_000  # steps; max_minutes end the training much earlier


@dataclass
class ModelArguments:
    """The model (3): a row of Table 3 with changes, or a saved model to start from."""

    option_group = "model"

    model: str | None = option(
        None,
        "Fine-tune this trained or converted model, with its weights, configuration and tokenizer: a directory, or a "
        "name on the Hub. Batches and learning rate then have other defaults.",
        decides="inputs",
        is_first=True,
    )
    variant: str = option("base", "Row of Table 3, such as base, big or B-dk16.", decides="inputs")
    d_model: int | None = option(None, "Width of the model.", COUNT, decides="weights", paper=(512, 1024))
    d_ff: int | None = option(None, "Width inside feed-forward layers.", COUNT, decides="weights", paper=(2048, 4096))
    num_heads: int | None = option(None, "Attention heads.", COUNT, decides="weights", paper=(8, 16))
    d_k: int | None = option(None, "Width of a head's queries and keys.", COUNT, decides="weights", paper=64)
    d_v: int | None = option(None, "Width of a head's values.", COUNT, decides="weights", paper=64)
    encoder_layers: int | None = option(None, "Encoder layers.", COUNT, decides="weights", paper=6)
    decoder_layers: int | None = option(None, "Decoder layers.", COUNT, decides="weights", paper=6)
    dropout: float | None = option(None, "Residual dropout (5.4).", SHARE, decides="weights", paper=(0.1, 0.3))
    attention_dropout: float | None = option(None, "Attention dropout; the paper has none.", SHARE, decides="weights")
    label_smoothing: float | None = option(None, "Label smoothing (5.4).", SHARE, decides="weights", paper=0.1)
    layer_norm_eps: float | None = option(
        None, "Epsilon of LayerNorm; with 1e-5, export.py --to marian is exact.", POSITIVE, decides="weights"
    )
    position_encoding: str | None = option(None, "'sinusoidal', 'sinusoidal_halves' or 'learned'.", decides="weights")

    def configure(self, source_language: str, target_language: str, kind: type[PreTrainedConfig]) -> PreTrainedConfig:
        """The chosen row of Table 3 with changed fields; the data determine the size of the vocabulary.

        `kind` is a class with `from_variant`, such as `VaswaniConfig`.
        """
        changes = {name: value for name, value in vars(self).items() if value is not None}
        languages = {"source_language": source_language, "target_language": target_language}
        return kind.from_variant(changes.pop("variant"), **changes, **languages)


@dataclass
class VaswaniTrainingArguments(Seq2SeqTrainingArguments):
    """`Seq2SeqTrainingArguments` with the paper's optimizer (5.3) and batch sizes in tokens (5.1)."""

    option_group = "training"

    source_tokens: int = option(25000, "Source tokens of a batch, of all processes together (5.1).", COUNT)
    target_tokens: int = option(25000, "Target tokens of a batch, of all processes together (5.1).", COUNT)
    batch_window: int = option(
        4,
        "Batches that exchange sentences of similar length; more mix better, fewer pad less.",
        COUNT,
        decides="weights",
    )
    adam_beta1: float = option(0.9, "Adam's beta1 (5.3).", SHARE, decides="weights", paper=0.9)
    adam_beta2: float = option(0.98, "Adam's beta2 (5.3).", SHARE, decides="weights", paper=0.98)
    adam_epsilon: float = option(1e-9, "Adam's epsilon (5.3).", POSITIVE, decides="weights", paper=1e-9)
    muon: bool = option(
        False,
        "Optimize the layers' matrices with Muon (Jordan et al. 2024), the rest with Adam; short trainings learn more.",
        decides="weights",
        paper=False,
    )
    ddp_find_unused_parameters: bool | None = option(
        False, "Search for parameters without a gradient; this model has none.", decides=None, is_shown=False
    )
    max_grad_norm: float = option(
        0.0, "Maximum gradient norm; 0 disables clipping.", NOT_NEGATIVE, decides="weights", paper=0.0
    )
    logging_nan_inf_filter: bool = option(
        False,
        "Hide non-finite losses in the log; training ends at the first one in any case.",
        decides=None,
        is_shown=False,
    )
    virtual_ranks: int | None = option(
        None,
        "Elastic training: divide every global batch into this number of virtual ranks. The final weights are then the "
        "same, bit for bit, on any number of processes up to virtual_ranks, and after restarts with other numbers, "
        "given the same versions, precision and type of processor (on GPUs also full_determinism). On a CPU, each "
        "process has one thread.",
        COUNT,
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
            advice = "the loss is the mean over the tokens of all processes; leave it out"
            refuse_unused(self, {"average_tokens_across_devices": advice})
            return
        if self.gradient_accumulation_steps != 1:
            raise ValueError(
                f"gradient_accumulation_steps: must be 1 in elastic training, is {self.gradient_accumulation_steps}; "
                f"virtual_ranks alone divides a batch"
            )
        self.average_tokens_across_devices = False  # the trainer would multiply the loss by the number of processes


@dataclass
class RecipeTrainingArguments(VaswaniTrainingArguments):
    """Schedule (5.3), averaging (6.1), and all of `Seq2SeqTrainingArguments`."""

    option_group = "training"

    # Of options that fine-tuning, which extends this class, sets in another way.
    _defaults: ClassVar[dict[str, float]] = {
        "source_tokens": 25000,
        "target_tokens": 25000,
        "warmup_steps": 4000,
        "learning_rate_factor": 1.0,
        "learning_rate": 5e-5,
    }

    output_dir: str | None = option("runs/model", "Where everything is written.", decides=None, is_first=True)
    resume: bool = option(
        False,
        "Continue the training in output_dir, from its newest complete checkpoint, or from its beginning without one. "
        "Options on which the weights depend must be the same; the length of the training (without cooldown), the "
        "number of processes, and how it is averaged, logged, evaluated, saved and pushed may change.",
        decides=None,
    )
    processes: int | None = option(
        None,
        "Processes on a CPU; by default `vaswani train` starts one a core, up to 8, except under a launcher.",
        COUNT,
        decides=None,
    )
    source_tokens: int = option(
        None,
        "Source tokens of a batch of all processes (5.1); by default 25000, with --model a hundredth of an epoch.",
        COUNT,
        decides="weights",
        paper=25000,
    )
    target_tokens: int = option(
        None, "Target tokens of a batch; the default is that of source_tokens.", COUNT, decides="weights", paper=25000
    )
    warmup_steps: int = option(
        None,
        "Steps of the warm-up (5.3), by default 4000; it ends at a tenth of max_minutes at the latest, then with a "
        "lower peak.",
        COUNT,
        decides="weights",
        paper=4000,
    )
    learning_rate_factor: float = option(
        None, "Multiplies the learning rate of 5.3; by default 1.", POSITIVE, decides="weights", paper=1.0
    )
    lr_scheduler_type: Literal["inverse_sqrt", "constant", "constant_with_warmup"] = option(
        None,
        "The schedule of 5.3, 'inverse_sqrt', by default; or 'constant' for learning_rate in every step, "
        "'constant_with_warmup' for a rise to it over warmup_steps. If max_minutes ends the rise early, the rate stays "
        "at the value reached. With --model the default is 'constant', unless warmup_steps or learning_rate_factor is "
        "given.",
        decides="weights",
        paper="inverse_sqrt",
    )
    learning_rate: float = option(
        None,
        "Learning rate, if it is constant; by default 5e-5, with --model the rate of 5.3 at step 100,000.",
        POSITIVE,
        decides="weights",
    )
    cooldown: float = option(
        0.0,
        "Share of the training, at its end, in which the learning rate falls to zero: of max_steps, or of max_minutes, "
        "which a resumed training must keep. With it, average_last 1 is best.",
        Interval(minimum=0, maximum=1),
        decides="weights",
        paper=0.0,
    )
    cooccurrence_embeddings: bool = option(
        False,
        "Start with embeddings that are similar for tokens of the same sentence pairs; short trainings learn more.",
        decides="weights",
        paper=False,
    )
    precision: Precision = option(
        "auto", "Precision of matrix products; 'auto' measures once which is fastest.", decides="weights"
    )
    seed: int = option(42, "Seed of the weights, the batches and dropout.", SEED, decides="weights")
    data_seed: int | None = option(None, "Seed of the batches; by default seed.", SEED, decides="weights")
    optim_args: str | None = option(None, "Options of some optimizers.", decides="weights", is_shown=False)
    optim_target_modules: list[str] | None = option(None, "Modules for GaLore.", decides="weights", is_shown=False)
    neftune_noise_alpha: float | None = option(None, "Noise on embeddings.", decides="weights", is_shown=False)
    tf32: bool | None = option(None, "Use TF32 for products in float32, on a GPU.", decides="weights", is_shown=False)
    torch_compile: bool = option(
        False,
        "Compile the training step, for batches of at most 24 shapes; on a GPU as CUDA graphs, not tried yet.",
        decides="weights",
    )
    weight_decay: float = option(0.0, "Weight decay of the optimizer.", NOT_NEGATIVE, decides="weights", paper=0.0)
    average_last: int = option(5, "Checkpoints averaged at the end (6.1).", COUNT, decides=None, paper=(5, 20))
    num_train_epochs: float = option(
        None,
        "Epochs to train, without max_steps; by default 3, or until max_minutes have passed.",
        POSITIVE,
        decides=None,
    )
    max_steps: int = option(-1, "Steps to train, instead of epochs.", decides=None)
    logging_steps: float = option(500, "Steps between logs, or their share of all steps.", decides=None)
    save_steps: float = option(500, "Steps between checkpoints, or their share of all steps.", decides=None)
    eval_steps: float | None = option(None, "Steps between evaluations, with eval_strategy steps.", decides=None)
    save_minutes: float | None = option(None, "Minutes between checkpoints (6.1: 10).", POSITIVE, decides=None)
    max_minutes: float | None = option(None, "Minutes after which training ends.", POSITIVE, decides=None)
    eval_bleu: int | None = option(
        None,
        "Sentences of the validation corpus, evenly spaced, to translate at each evaluation, which then also logs "
        "their sacreBLEU, eval_bleu; with generation_num_beams beams, by default as in 6.1.",
        COUNT,
        decides=None,
    )
    length_penalties: list[float] | None = option(
        None,
        "Alpha of the search (6.1), by default 0.6; with several values, the model is saved with the first, unless "
        "another one has a significantly higher sacreBLEU on validation (paired bootstrap, p < 0.05).",
        ALPHA,
        decides=None,
    )
    early_stopping_patience: int | None = option(
        None, "Evaluations without a better metric_for_best_model, after which training ends.", COUNT, decides=None
    )
    ddp_timeout: int = option(
        600, "Seconds that a process waits for the others, or for its own step, before all end.", COUNT, decides=None
    )
    metric_for_best_model: Literal["bleu", "loss"] | None = option(
        None, "What early_stopping_patience watches; by default bleu with eval_bleu, else loss.", decides=None
    )
    hub_strategy: Literal["end"] = option("end", "When to push: after scoring.", decides=None, is_shown=False)
    optim: OptimizerNames | str = option(
        Seq2SeqTrainingArguments.optim, "Optimizer, by transformers' name.", decides="weights"
    )

    def __post_init__(self) -> None:
        self.resolve()
        token = self.hub_token  # type: ignore[has-type]  # a field of the class that this one extends
        if token is not None:  # kept in the environment for libraries, out of training_args.bin
            os.environ["HF_TOKEN"], self.hub_token = token, None
        if self.full_determinism:  # read at the first product, perhaps before transformers sets it
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":16:8")
        if not torch.accelerator.is_available():
            self.use_cpu = True  # otherwise bf16 is refused without a GPU
            self.dataloader_pin_memory = False
        launcher = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
        self.set_precision(launcher if self.precision == "auto" and launcher in ("bf16", "fp16") else self.precision)
        super().__post_init__()

    def resolve(self) -> None:
        """Set options that depend on others, and refuse options without effect."""
        if self.lr_scheduler_type is None:
            self.lr_scheduler_type = "inverse_sqrt"
        unused = dict(_UNUSED)
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
        for name, value in self._defaults.items():
            if getattr(self, name) == value:  # a file for another schedule may state the default
                unused.pop(name, None)
        refuse_unused(self, unused)
        for name, value in self._defaults.items():
            if getattr(self, name) is None:
                setattr(self, name, value)
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
        """Train in this precision; "auto" leaves it undecided.

        Raises:
            ValueError: The precision is fp16, on a CPU.
        """
        if precision == "fp16" and self.use_cpu:
            raise ValueError("precision: fp16 needs a GPU; choose float32 or bf16")
        self.precision = cast(Precision, precision)
        self.bf16, self.fp16 = precision == "bf16", precision == "fp16"
        self.mixed_precision = precision if self.bf16 or self.fp16 else "no"  # the trainer reads it

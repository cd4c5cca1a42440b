"""Arguments of a training from corpora to a scored model: `recipes/train_wmt.py`, and sweeps of it."""

import os
from dataclasses import dataclass
from typing import Any, Literal, cast

import torch

from ..data.preparation_arguments import PreparationArguments
from ..options.arguments import COUNT, POSITIVE, SHARE, Interval, option, refuse_unused
from ..training.arguments import VaswaniTrainingArguments
from ..training.schedule import noam_learning_rate


# Far above any model of this kind, so that a typing error is refused before memory is allocated.
SIZE = Interval(minimum=1, maximum=2**16)
LAYERS = Interval(minimum=1, maximum=1000)

# Options of the trainer that would change nothing, or not what their name says, and what to use instead.
_BY_TOKENS = "batches are measured by source_tokens and target_tokens"
_BY_SCHEDULE = (
    "set learning_rate_factor and warmup_steps instead, or lr_scheduler_type to constant or constant_with_warmup, and "
    "learning_rate; with --model, give lr_scheduler_type with learning_rate"
)
UNUSED = {
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
    "predict_with_generate": "set eval_bleu instead, the number of sentences to translate",
    "generation_max_length": "the model's generation_config limits translations",
    "do_train": "this recipe trains; leave it out",
}
_OF_CONSTANT, _OF_NOAM = ("learning_rate", "lr_scheduler_type"), ("warmup_steps", "learning_rate_factor")

# Options that transformers declares, on which the weights depend.
DECISIVE_OF_TRANSFORMERS = (
    "data_seed",
    "neftune_noise_alpha",
    "optim",
    "optim_args",
    "optim_target_modules",
    "seed",
    "tf32",
    "torch_compile",
    "torch_compile_backend",
    "torch_compile_mode",
    "weight_decay",
)

# Defaults of options for which fine-tuning has its own: see `fine_tuning.py`.
DEFAULTS: dict[str, Any] = {
    "source_tokens": 25000,
    "target_tokens": 25000,
    "warmup_steps": 4000,
    "learning_rate_factor": 1.0,
    "lr_scheduler_type": "linear",
    "learning_rate": 5e-5,
}


Precision = Literal["auto", "float32", "bf16", "fp16"]


@dataclass(frozen=True)
class DataArguments(PreparationArguments):
    """Corpora, cleaning and vocabulary (5.1)."""

    prepared: str | None = option(
        None,
        "Directory of the prepared corpora, for any number of runs; created if missing, see prepare_data.py. By "
        "default they are kept in the cache of datasets.",
        decides=None,
    )
    license: str | None = option(None, "License of the model, for its card, like cc-by-4.0.", decides=None)
    domain: str | None = option(
        None, "Kind of text that it translates, in words for its card, like image captions.", decides=None
    )
    datasets: list[str] | None = option(
        None, "Hub ids of the corpora, for the card; by default those that were loaded.", decides=None
    )


@dataclass
class ModelArguments:
    """The model (3): a row of Table 3, and changes to it; or a saved model to start from."""

    model: str | None = option(
        None,
        "Fine-tune this trained or converted model, with its weights, configuration and tokenizer: a directory, or a "
        "name on the Hub.",
        decides="inputs",
    )
    variant: str = option("base", "Row of Table 3, such as base, big or B-dk16.", decides="inputs")
    d_model: int | None = option(None, "Width of the model.", SIZE, decides="weights")
    d_ff: int | None = option(None, "Width of the inner feed-forward layer.", SIZE, decides="weights")
    num_heads: int | None = option(None, "Attention heads.", SIZE, decides="weights")
    d_k: int | None = option(None, "Width of a head's queries and keys.", SIZE, decides="weights")
    d_v: int | None = option(None, "Width of a head's values.", SIZE, decides="weights")
    encoder_layers: int | None = option(None, "Encoder layers.", LAYERS, decides="weights")
    decoder_layers: int | None = option(None, "Decoder layers.", LAYERS, decides="weights")
    dropout: float | None = option(None, "Residual dropout (5.4).", SHARE, decides="weights")
    attention_dropout: float | None = option(
        None, "Dropout of attention weights; the paper has none.", SHARE, decides="weights"
    )
    label_smoothing: float | None = option(None, "Epsilon of the smoothed target (5.4).", SHARE, decides="weights")
    layer_norm_eps: float | None = option(
        None, "Epsilon of LayerNorm; with 1e-5, export.py --to marian is exact.", POSITIVE, decides="weights"
    )
    position_encoding: str | None = option(None, "'sinusoidal', 'sinusoidal_halves' or 'learned'.", decides="weights")


@dataclass
class RecipeTrainingArguments(VaswaniTrainingArguments):
    """Schedule (5.3), averaging (6.1), and all of `Seq2SeqTrainingArguments`."""

    output_dir: str | None = option("runs/model", "Where everything is written.", decides=None)
    resume: bool = option(
        False,
        "Continue from the newest complete checkpoint in output_dir, or from the beginning if there is none yet. The "
        "training must be the same, except for max_steps, num_train_epochs and max_minutes (without cooldown), early "
        "stopping, the number of processes, gradient_accumulation_steps, average_last, validation and test, and how it "
        "is logged, evaluated, saved and pushed.",
        decides=None,
    )
    # Of these six, None becomes the default, or that of fine-tuning.
    source_tokens: int = option(
        None,
        "Source tokens of a global batch, over all processes and accumulation steps; by default 25000, and with "
        "--model a hundredth of an epoch, at most 25000.",
        COUNT,
        decides="weights",
    )
    target_tokens: int = option(None, "The same of target tokens.", COUNT, decides="weights")
    warmup_steps: float = option(
        None,
        "Steps until the learning rate is highest (5.3), by default 4000; at most a tenth of max_minutes.",
        Interval(minimum=1, maximum=2**31 - 1, whole=True),
        decides="weights",
    )
    learning_rate_factor: float = option(None, "Multiplies the learning rate of 5.3.", POSITIVE, decides="weights")
    lr_scheduler_type: str = option(
        None,
        "'constant' for learning_rate in every step, 'constant_with_warmup' for a rise to it over warmup_steps; by "
        "default the schedule of 5.3, and with --model constant, unless warmup_steps or learning_rate_factor is given.",
        decides="weights",
    )
    learning_rate: float = option(
        None,
        "Learning rate, if it is constant: by default 5e-5, and with --model the rate of 5.3 at step 100,000.",
        POSITIVE,
        decides="weights",
    )
    cooldown: float = option(
        0.0,
        "Share of the training, at its end, in which the learning rate falls to zero: of max_steps, or of max_minutes, "
        "which a resumed training must keep. With it, average_last 1 is best.",
        Interval(minimum=0, maximum=1),
        decides="weights",
    )
    cooccurrence_embeddings: bool = option(
        False,
        "Start with embeddings in which tokens of the same sentence pairs are similar, instead of random ones. Short "
        "trainings learn more with them.",
        decides="weights",
    )
    precision: Precision = option(
        "auto",
        "Precision of matrix products: 'auto' measures for half a second which trains this model fastest on this "
        "machine; a resumed training keeps the choice.",
        decides="weights",
    )
    bf16: bool = option(None, "The same as --precision bf16; false, as float32.", decides=None)
    fp16: bool = option(None, "The same as --precision fp16; false, as float32.", decides=None)
    do_train: bool = option(True, "Only for scripts that name it; this recipe trains.", decides=None)
    average_last: int = option(5, "Checkpoints averaged at the end (6.1).", COUNT, decides=None)
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
        "Values of the search's alpha (6.1), by default 0.6; of several, the first is saved with the model, unless "
        "another's validation sacreBLEU is better by more than noise (paired bootstrap, p < 0.05).",
        Interval(minimum=0, maximum=100),  # as of the search
        decides=None,
    )
    early_stopping_patience: int | None = option(
        None,
        "End training after so many evaluations in which metric_for_best_model, 'bleu' or 'loss', was not better than "
        "before; by default bleu with eval_bleu, else loss. The last checkpoints are averaged in any case.",
        COUNT,
        decides=None,
    )
    ddp_timeout: int = option(
        600,
        "Seconds that a process waits for the others, or for its own step, before all end.",
        COUNT,
        decides=None,
    )
    hub_strategy: str = option("end", "When to push; only 'end', after scoring, is supported.", decides=None)

    def __post_init__(self) -> None:
        token = self.hub_token  # type: ignore[has-type]  # a field of the class that this one extends
        if token is not None:
            # The Hub's client reads it from there; it must not get into training_args.bin.
            os.environ["HF_TOKEN"], self.hub_token = token, None
        self.left_out = {name for name in DEFAULTS if getattr(self, name) is None}
        for name in self.left_out:
            setattr(self, name, DEFAULTS[name])
        by_schedule = dict.fromkeys(_OF_CONSTANT, _BY_SCHEDULE)
        if self.constant_learning_rate is not None:
            by_schedule = {
                name: "the learning rate is constant; leave it out, or override --config with the default, "
                f"--{name} {DEFAULTS[name]:g}"
                for name in _OF_NOAM
                if name != "warmup_steps" or self.lr_scheduler_type == "constant"
            }
        changed = {name for name, default in DEFAULTS.items() if getattr(self, name) != default}
        refuse_unused(self, UNUSED | {name: advice for name, advice in by_schedule.items() if name in changed})
        if self.full_determinism:  # read at the first product, which may come before transformers sets it
            os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":16:8")
        if not torch.accelerator.is_available():
            self.use_cpu = True  # otherwise bf16 is refused without a GPU
            self.dataloader_pin_memory = False
        self.set_precision(self._asked_precision())
        if self.hub_strategy != "end":
            raise ValueError("hub_strategy: only the finished, scored model is pushed; leave it out")
        self._check_metric()
        super().__post_init__()
        if self.eval_bleu is None:
            refuse_unused(self, {"generation_num_beams": "set eval_bleu, the number of sentences to translate"})
        if self.eval_strategy == "no":
            refuse_unused(self, dict.fromkeys(("eval_bleu", "early_stopping_patience"), "set eval_strategy"))

    def _check_metric(self) -> None:
        """Set the default of `metric_for_best_model`, which refers to a checkpoint in the trainer, or check it."""
        metric: str | None = self.metric_for_best_model  # type: ignore[has-type]
        if self.early_stopping_patience is None:
            refuse_unused(
                self, {"metric_for_best_model": "the last checkpoints are averaged; see early_stopping_patience"}
            )
        elif metric is None:
            self.metric_for_best_model = "loss" if self.eval_bleu is None else "bleu"
        elif metric.removeprefix("eval_") not in ("bleu", "loss"):
            raise ValueError(f"metric_for_best_model: must be bleu or loss, is {metric!r}")
        elif metric.endswith("bleu") and self.eval_bleu is None:
            raise ValueError("metric_for_best_model: bleu needs eval_bleu, the number of sentences to translate")

    def tune(self, d_model: int) -> None:
        """Set what was left out to the defaults for fine-tuning a model of this width; `fit_batches` sets the rest.

        The rate is the one with which the paper's base training ends: no warm-up, which a short training never leaves.
        """
        if self.left_out.issuperset((*_OF_NOAM, "lr_scheduler_type")):
            self.lr_scheduler_type = "constant"
        if self.constant_learning_rate is not None and "learning_rate" in self.left_out:
            self.learning_rate = float(f"{noam_learning_rate(100_000, d_model):.2g}")
        for name in self.left_out.intersection(("source_tokens", "target_tokens")):
            setattr(self, name, None)  # until the corpus is known

    @property
    def constant_learning_rate(self) -> float | None:
        """The rate of every step, after a warm-up if there is one; None for the schedule of 5.3."""
        return self.learning_rate if self.lr_scheduler_type in ("constant", "constant_with_warmup") else None

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

    def _asked_precision(self) -> str:
        """The precision that the options and `accelerate launch` ask for.

        Raises:
            ValueError: They ask for several, or the launcher for one that is not supported.
        """
        launcher = os.environ.get("ACCELERATE_MIXED_PRECISION", "no")
        if launcher not in ("no", "bf16", "fp16"):
            raise ValueError(f"mixed_precision: {launcher} of accelerate launch is not supported; choose bf16 or fp16")
        switches = {name: getattr(self, name) for name in ("bf16", "fp16") if getattr(self, name) is not None}
        asked = {name for name, is_on in switches.items() if is_on} or ({"float32"} if switches else set())
        asked |= {self.precision, launcher} - {"auto", "no"}
        if len(asked) > 1:
            raise ValueError(
                f"precision: the options precision, bf16 and fp16, and mixed_precision of accelerate launch, ask for "
                f"{' and '.join(sorted(asked))}; name one in all of them"
            )
        return next(iter(asked), "auto")

"""Options of a training from corpora to a scored model: `recipes/train_wmt.py`, and sweeps of it."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from ..data.preparation_arguments import PreparationArguments
from ..decoding.decoding_arguments import ALPHA
from ..options.arguments import COUNT, NOT_NEGATIVE, POSITIVE, SEED, SHARE, Interval, option
from ..training.training_options import TrainingOptions


if TYPE_CHECKING:
    from ..model.configuration_vaswani import VaswaniConfig

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
    attribution: str | None = option(None, "Whom the corpora are from, in words for the card.", decides=None)
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
        "name on the Hub. Batches and learning rate then have other defaults.",
        decides="inputs",
    )
    variant: str = option("base", "Row of Table 3, such as base, big or B-dk16.", decides="inputs")
    d_model: int | None = option(None, "Width of the model.", COUNT, decides="weights", paper=(512, 1024))
    d_ff: int | None = option(
        None, "Width of the inner feed-forward layer.", COUNT, decides="weights", paper=(2048, 4096)
    )
    num_heads: int | None = option(None, "Attention heads.", COUNT, decides="weights", paper=(8, 16))
    d_k: int | None = option(None, "Width of a head's queries and keys.", COUNT, decides="weights", paper=64)
    d_v: int | None = option(None, "Width of a head's values.", COUNT, decides="weights", paper=64)
    encoder_layers: int | None = option(None, "Encoder layers.", COUNT, decides="weights", paper=6)
    decoder_layers: int | None = option(None, "Decoder layers.", COUNT, decides="weights", paper=6)
    dropout: float | None = option(None, "Residual dropout (5.4).", SHARE, decides="weights", paper=(0.1, 0.3))
    attention_dropout: float | None = option(
        None, "Dropout of attention weights; the paper has none.", SHARE, decides="weights"
    )
    label_smoothing: float | None = option(
        None, "Epsilon of the smoothed target (5.4).", SHARE, decides="weights", paper=0.1
    )
    layer_norm_eps: float | None = option(
        None, "Epsilon of LayerNorm; with 1e-5, export.py --to marian is exact.", POSITIVE, decides="weights"
    )
    position_encoding: str | None = option(None, "'sinusoidal', 'sinusoidal_halves' or 'learned'.", decides="weights")

    def configure(self, source_language: str, target_language: str, kind: type["VaswaniConfig"]) -> "VaswaniConfig":
        """The chosen row of Table 3 with changed fields; the data decide the size of the vocabulary."""
        changes = {name: value for name, value in vars(self).items() if value is not None}
        languages = {"source_language": source_language, "target_language": target_language}
        return kind.from_variant(changes.pop("variant"), **changes, **languages)


@dataclass
class RecipeTrainingOptions(TrainingOptions):
    """Schedule (5.3) and averaging (6.1)."""

    output_dir: str | None = option("runs/model", "Where everything is written.", decides=None)
    resume: bool = option(
        False,
        "Continue the training in output_dir, from its newest complete checkpoint, or from its beginning without one. "
        "Options on which the weights depend must be the same; the length of the training (without cooldown), the "
        "number of processes, and how it is averaged, logged, evaluated, saved and pushed may change.",
        decides=None,
    )
    processes: int | None = option(
        None,
        "Processes on a CPU, which divide every batch; by default `vaswani train` starts one for each core, up to 8. A "
        "launcher, or a GPU, decides instead.",
        COUNT,
        decides=None,
    )
    warmup_steps: int = option(
        4000,
        "Steps until the learning rate is highest (5.3). A tenth of max_minutes ends them earlier; the rate then has "
        "risen as steeply, but not as high.",
        COUNT,
        decides="weights",
        paper=4000,
    )
    learning_rate_factor: float = option(
        1.0, "Multiplies the learning rate of 5.3.", POSITIVE, decides="weights", paper=1.0
    )
    lr_scheduler_type: Literal["inverse_sqrt", "constant", "constant_with_warmup"] = option(
        "inverse_sqrt",
        "The schedule of 5.3; or 'constant' for learning_rate in every step, 'constant_with_warmup' for a rise to it "
        "over warmup_steps. If max_minutes cut the rise short, the rate stays where it is.",
        decides="weights",
        paper="inverse_sqrt",
    )
    learning_rate: float = option(5e-5, "Learning rate, if it is constant.", POSITIVE, decides="weights")
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
        "Start with embeddings in which tokens of the same sentence pairs are similar, instead of random ones. Short "
        "trainings learn more with them.",
        decides="weights",
        paper=False,
    )
    precision: Precision = option(
        "auto",
        "Precision of matrix products: 'auto' measures for half a second which trains this model fastest on this "
        "machine; a resumed training keeps the choice.",
        decides="weights",
    )
    seed: int = option(42, "Seed of the weights, the batches and dropout.", SEED, decides="weights")
    data_seed: int | None = option(None, "Seed of the batches; by default seed.", SEED, decides="weights")
    optim_args: str | None = option(None, "Options of some optimizers.", decides="weights", is_shown=False)
    optim_target_modules: list[str] | None = option(
        None, "Modules that GaLore optimizes.", decides="weights", is_shown=False
    )
    neftune_noise_alpha: float | None = option(
        None, "Noise on embeddings (NEFTune).", decides="weights", is_shown=False
    )
    tf32: bool | None = option(None, "Use TF32 for products in float32, on a GPU.", decides="weights", is_shown=False)
    torch_compile: bool = option(False, "Compile the model; faster on a GPU.", decides="weights")
    weight_decay: float = option(0.0, "Weight decay of the optimizer.", NOT_NEGATIVE, decides="weights", paper=0.0)
    average_last: int = option(5, "Checkpoints averaged at the end (6.1).", COUNT, decides=None, paper=(5, 20))
    num_train_epochs: float = option(
        None, "Epochs to train, without max_steps; by default 3, or until max_minutes have passed.", decides=None
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
        "Values of the search's alpha (6.1), by default 0.6; of several, the first is saved with the model, unless "
        "another's validation sacreBLEU is better by more than noise (paired bootstrap, p < 0.05).",
        ALPHA,
        decides=None,
    )
    early_stopping_patience: int | None = option(
        None,
        "End training after this number of evaluations in which metric_for_best_model was not better than before. The "
        "last checkpoints are averaged in any case.",
        COUNT,
        decides=None,
    )
    ddp_timeout: int = option(
        600,
        "Seconds that a process waits for the others, or for its own step, before all end.",
        COUNT,
        decides=None,
    )
    metric_for_best_model: Literal["bleu", "loss"] | None = option(
        None, "What early_stopping_patience watches; by default bleu with eval_bleu, else loss.", decides=None
    )
    hub_strategy: Literal["end"] = option("end", "When to push: after scoring.", decides=None, is_shown=False)

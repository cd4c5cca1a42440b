"""Options of the data and of the model of a training: `recipes/train_wmt.py`, and sweeps of it."""

from dataclasses import dataclass

from ..data.preparation_arguments import PreparationArguments
from ..model.configuration_vaswani import VaswaniConfig
from ..options.arguments import COUNT, POSITIVE, SHARE, option


@dataclass(frozen=True)
class DataArguments(PreparationArguments):
    """Corpora, cleaning and vocabulary (5.1)."""

    option_group = "data"

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
    """The model (3): a row of Table 3 with changes, or a saved model to start from."""

    option_group = "model"

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

    def configure(self, source_language: str, target_language: str, kind: type[VaswaniConfig]) -> VaswaniConfig:
        """The chosen row of Table 3 with changed fields; the data determine the size of the vocabulary."""
        changes = {name: value for name, value in vars(self).items() if value is not None}
        languages = {"source_language": source_language, "target_language": target_language}
        return kind.from_variant(changes.pop("variant"), **changes, **languages)

"""The hyper-parameters of the model: section 3 of the paper, and Table 3's variations of them."""

from typing import Any, ClassVar, Literal

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from .pipeline_vaswani import install_translation_task


# Rows of Table 3, as differences from the base model. Label smoothing (rows D) concerns training alone; it is included
# so that one name selects the whole row.
PAPER_VARIANTS: dict[str, dict[str, Any]] = {
    "base": {},
    "A-h1": {"num_heads": 1, "d_k": 512, "d_v": 512},
    "A-h4": {"num_heads": 4, "d_k": 128, "d_v": 128},
    "A-h16": {"num_heads": 16, "d_k": 32, "d_v": 32},
    "A-h32": {"num_heads": 32, "d_k": 16, "d_v": 16},
    "B-dk16": {"d_k": 16},
    "B-dk32": {"d_k": 32},
    "C-N2": {"encoder_layers": 2, "decoder_layers": 2},
    "C-N4": {"encoder_layers": 4, "decoder_layers": 4},
    "C-N8": {"encoder_layers": 8, "decoder_layers": 8},
    "C-d256": {"d_model": 256, "d_k": 32, "d_v": 32},
    "C-d1024": {"d_model": 1024, "d_k": 128, "d_v": 128},
    "C-ff1024": {"d_ff": 1024},
    "C-ff4096": {"d_ff": 4096},
    "D-drop0.0": {"dropout": 0.0},
    "D-drop0.2": {"dropout": 0.2},
    "D-ls0.0": {"label_smoothing": 0.0},
    "D-ls0.2": {"label_smoothing": 0.2},
    "E-learned": {"position_encoding": "learned"},
    "big": {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3},
}

_COUNTS = ["vocab_size", "target_vocab_size", "d_model", "d_ff", "decoder_d_ff", "num_heads", "d_k", "d_v"]
_COUNTS += ["encoder_layers", "decoder_layers", "max_position_embeddings", "attention_neighborhood", "longest_source"]
_PROBABILITIES = ("dropout", "attention_dropout", "activation_dropout", "label_smoothing")


# Whether this file runs as remote code, without the package. It is loaded first, so it registers the pipeline task.
_IS_REMOTE_CODE = __name__.startswith("transformers_modules.")
if _IS_REMOTE_CODE:
    install_translation_task()


@strict
class VaswaniConfig(PreTrainedConfig):
    """Configuration of the Transformer of "Attention Is All You Need"; the defaults are the base model's.

    Args:
        vocab_size: Rows of the matrix shared by source, target and softmax (5.1: about 37,000 for English-German).
        d_model: Width of every sub-layer's output (3.1).
        d_ff: Width of the inner feed-forward layer (3.3).
        num_heads: Number h of parallel attention heads (3.2.2).
        d_k: Width of a head's queries and keys, any number (Table 3, B); `None` means `d_model / num_heads`.
        d_v: Width of a head's values, any number; `None` means `d_model / num_heads`.
        encoder_layers: Number N of encoder layers (3.1).
        decoder_layers: Number N of decoder layers (3.1).
        dropout: On each sub-layer's output and on the sum of embedding and position (5.4).
        attention_dropout: On the attention weights; 0 in the paper's experiments.
        activation_dropout: Inside the feed-forward layer; 0 in the paper's experiments.
        label_smoothing: Epsilon of the training target (5.4). Read by the trainer; `forward` ignores it.
        layer_norm_eps: Added to the variance; the authors' code has 1e-6.
        attention_bias: Whether the four projections of attention have biases, as the authors' code of June 2017 did.
        position_encoding: "sinusoidal" is the formula of 3.5, sines and cosines interleaved; "sinusoidal_halves" is
            the layout of the authors' code, all sines before all cosines; "learned" is row E of Table 3;
            "sinusoidal_marian" is Marian's layout, all sines before all cosines, with the paper's frequencies.
        max_position_embeddings: Rows of a learned position table. Sinusoids have no such limit.
        attention_neighborhood: r of section 4: self-attention sees only `r // 2` positions to each side. `None` means
            all positions, as in the paper's experiments.
        tie_word_embeddings: Whether the embeddings of source and target and the softmax share one matrix (3.4).

    Facts about a trained model:

    Args:
        source_language: Code of the source language, such as "en"; `None` if unknown. `pipeline("translation")` rejects
            any other.
        target_language: Code of the target language.
        language_tags: Id of the tag of each language, such as "<2de>". The model translates between these languages,
            and each source begins with the tag of its target. `None` means one direction, and no tags.
        longest_source: Number of tokens in the longest training source, EOS included; `None` if unknown.
            `pipeline("translation")` warns of longer ones.
        confidence_curve: Points of a translation's mean log-probability a token and its expected chrF, both ascending,
            as `score.py --confidence` measures them. A model of several directions has such a curve for each target
            language. `None` if unknown.
        confidence_tokens: Fewest and most tokens of the translations that were measured, one pair for each curve.
        confidence_search: `num_beams` and `length_penalty` with which all curves were measured.
        alignment_heads: Layer and head, from 0, of the encoder-decoder attentions whose mean aligns words; `None` means
            all heads of the last layer.

    For models converted from other toolkits, see `vaswani_transformer.convert`; the defaults are the paper's:

    Args:
        activation: Activation of the inner feed-forward layer (3.3), by its name in transformers.
        decoder_d_ff: Width of the inner feed-forward layer of the decoder; `None` means `d_ff`.
        target_vocab_size: Size of a separate target vocabulary; `None` means that it is shared. If given, only the
            target's embedding and the softmax share a matrix.
        position_offset: Position of the first token with sinusoids, 0 in the paper; fairseq counts from
            `pad_token_id` + 1.
        logits_bias: Whether the softmax has a bias. It is a buffer, as in MarianMT: training does not change it, unless
            `model.lm_head.bias` is replaced by an `nn.Parameter`.
        zero_padding_embedding: Whether padding, which is also the decoder's start token, embeds as zero.

    Raises:
        ValueError: A value is invalid. The message starts with the field's name.
    """

    model_type = "vaswani"
    # The task of such a model, and its classes in the code files of a saved directory.
    task = "translation"
    code: ClassVar[dict[str, str]] = {
        "AutoConfig": "configuration_vaswani.VaswaniConfig",
        "AutoModel": "modeling_vaswani.VaswaniModel",
        "AutoModelForSeq2SeqLM": "modeling_vaswani.VaswaniForConditionalGeneration",
    }
    pipeline_code = "pipeline_vaswani.VaswaniTranslationPipeline"
    keys_to_ignore_at_inference = ["cache", "past_key_values"]  # the cache since, and before, transformers 5.24
    attribute_map = {
        "activation_function": "activation",
        "hidden_size": "d_model",
        "intermediate_size": "d_ff",
        "encoder_ffn_dim": "d_ff",
        "decoder_ffn_dim": "decoder_d_ff",
        "num_attention_heads": "num_heads",
        "encoder_attention_heads": "num_heads",
        "decoder_attention_heads": "num_heads",
        "head_dim": "d_k",
        "num_hidden_layers": "encoder_layers",
    }

    vocab_size: int = 37000
    d_model: int = 512
    d_ff: int = 2048
    num_heads: int = 8
    d_k: int | None = None
    d_v: int | None = None
    encoder_layers: int = 6
    decoder_layers: int = 6
    dropout: float | int = 0.1
    attention_dropout: float | int = 0.0
    activation_dropout: float | int = 0.0
    label_smoothing: float | int = 0.1
    layer_norm_eps: float = 1e-6
    attention_bias: bool = True
    position_encoding: Literal["sinusoidal", "sinusoidal_halves", "sinusoidal_marian", "learned"] = "sinusoidal"
    max_position_embeddings: int = 1024
    attention_neighborhood: int | None = None
    source_language: str | None = None
    target_language: str | None = None
    language_tags: dict[str, int] | None = None
    longest_source: int | None = None
    confidence_curve: list[list[float]] | dict[str, list[list[float]]] | None = None
    confidence_tokens: list[int] | dict[str, list[int]] | None = None
    confidence_search: dict[str, int | float] | None = None
    alignment_heads: list[list[int]] | None = None
    activation: str = "relu"
    decoder_d_ff: int | None = None
    target_vocab_size: int | None = None
    position_offset: int = 0
    logits_bias: bool = False
    zero_padding_embedding: bool = True
    use_cache: bool = True
    is_encoder_decoder: bool = True
    tie_word_embeddings: bool = True
    pad_token_id: int | None = 0
    eos_token_id: int | list[int] | None = 1
    bos_token_id: int | None = None
    decoder_start_token_id: int | None = 0

    @classmethod
    def from_variant(cls, name: str, **overrides: Any) -> "VaswaniConfig":
        """The configuration of a row of Table 3.

        Args:
            name: A key of `PAPER_VARIANTS`, such as "base", "big" or "B-dk16".
            overrides: Fields that override the row's.

        Raises:
            ValueError: There is no such row.
        """
        if name not in PAPER_VARIANTS:
            raise ValueError(f"variant: there is no {name!r} in Table 3; choose from {', '.join(PAPER_VARIANTS)}")
        return cls(**{**PAPER_VARIANTS[name], **overrides})

    @property
    def output_vocab_size(self) -> int:
        """Rows of the softmax."""
        return self.vocab_size if self.target_vocab_size is None else self.target_vocab_size

    @property
    def max_positions(self) -> int | None:
        """Number of tokens in the longest possible sequence; None if unlimited, as with sinusoids (3.5)."""
        return self.max_position_embeddings if self.position_encoding == "learned" else None

    def __post_init__(self, **kwargs: Any) -> None:
        # Resolve Hugging Face's names before anything is derived: transformers sets them last.
        for name in kwargs.keys() & self.attribute_map.keys():
            setattr(self, self.attribute_map[name], kwargs.pop(name))
        if self.decoder_d_ff is None:
            self.decoder_d_ff = self.d_ff
        for field in ("d_k", "d_v"):
            if getattr(self, field) is None:
                if self.num_heads < 1 or self.d_model % self.num_heads:
                    raise ValueError(
                        f"num_heads: {self.num_heads} heads do not divide d_model = {self.d_model}; "
                        f"change one of them, or give {field}"
                    )
                setattr(self, field, self.d_model // self.num_heads)
        self._validate()
        # Saved with every model, but set in remote code only: otherwise transformers would ask the package's users for
        # trust_remote_code.
        kwargs.pop("custom_pipelines", None)
        if _IS_REMOTE_CODE:
            self.custom_pipelines = self._pipelines()
        super().__post_init__(**kwargs)

    def to_dict(self) -> dict[str, Any]:
        """The fields, and the names of the code files that `save_pretrained` copies."""
        return {**super().to_dict(), "auto_map": dict(self.code), "custom_pipelines": self._pipelines()}

    def _pipelines(self) -> dict[str, dict[str, str | list[str]]]:
        """The model's only task, which transformers infers if the caller names none."""
        return {self.task: {"impl": self.pipeline_code, "pt": ["AutoModelForSeq2SeqLM"], "type": "text"}}

    def _validate(self) -> None:
        for field in _COUNTS:
            if getattr(self, field) is not None and getattr(self, field) < 1:
                raise ValueError(f"{field}: must be at least 1, is {getattr(self, field)}")
        for field in _PROBABILITIES:
            if not 0 <= getattr(self, field) < 1:
                raise ValueError(f"{field}: must be at least 0 and below 1, is {getattr(self, field)}")
        if self.position_encoding.startswith("sinusoidal") and self.d_model % 2:
            raise ValueError(f"d_model: must be even for sinusoidal positions, is {self.d_model}")
        ends = self.eos_token_id if isinstance(self.eos_token_id, list) else [self.eos_token_id]
        tokens = (self.pad_token_id, self.decoder_start_token_id, *ends)
        if not all(token in range(self.output_vocab_size) for token in tokens):
            raise ValueError("pad_token_id, eos_token_id, decoder_start_token_id: must be ids in the vocabulary")


def drop_measurements(config: PreTrainedConfig) -> None:
    """Forget the confidence and the heads for alignment, which were measured for other weights."""
    for name in ("confidence_curve", "confidence_tokens", "confidence_search", "alignment_heads"):
        setattr(config, name, None)

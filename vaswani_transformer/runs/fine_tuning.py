"""Fine-tuning: a training that starts from a saved model, with its weights, configuration and tokenizer."""

from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from ..data.preparation_arguments import PreparationArguments
from ..data.training_data import TrainingData
from ..io.manifests import matching_files_digest
from ..model.saved_model import SavedModel, open_model
from ..model.target_tokenizer import encodes_targets
from ..options.arguments import COUNT, POSITIVE, RecipeParser, option, refuse_unused
from ..training.schedule import noam_learning_rate
from .records import ParentModel, RunRecord
from .run_arguments import DataArguments, ModelArguments, RecipeTrainingArguments


Data = TypeVar("Data", bound=PreparationArguments)

# Options of the model that change no weight's shape or meaning.
_CHANGEABLE = ("dropout", "attention_dropout", "label_smoothing", "layer_norm_eps")
_TOKENIZER = ("tokenizer", "tokenizer_model", "vocab_size", "min_frequency", "tokenizer_sample")


@dataclass
class FineTuningArguments(RecipeTrainingArguments):
    """Schedule (5.3), averaging (6.1), and all of `Seq2SeqTrainingArguments`, with the defaults of fine-tuning.

    The rate is the one with which the paper's base training ends, without a warm-up, which a short training never
    leaves. With the paper's batches, an epoch of a small corpus would be a single one.
    """

    source_tokens: int = option(
        None, "Source tokens of a global batch; by default a hundredth of an epoch.", COUNT, decides="weights"
    )
    target_tokens: int = option(
        None, "Target tokens of a global batch; by default a hundredth of an epoch.", COUNT, decides="weights"
    )
    lr_scheduler_type: Literal["inverse_sqrt", "constant", "constant_with_warmup"] = option(
        None,
        "By default constant, or the schedule of 5.3 if warmup_steps or learning_rate_factor is given.",
        decides="weights",
    )
    learning_rate: float = option(
        None, "Learning rate, if it is constant; by default that of 5.3 at step 100,000.", POSITIVE, decides="weights"
    )

    def __post_init__(self) -> None:
        if self.lr_scheduler_type is None:
            is_constant = (self.warmup_steps, self.learning_rate_factor) == (4000, 1.0)
            self.lr_scheduler_type = "constant" if is_constant else "inverse_sqrt"
        refuse_unused(self, {"cooccurrence_embeddings": "the model to start from has embeddings; leave it out"})
        super().__post_init__()

    def fit(self, d_model: int, data: TrainingData) -> None:
        """Set what was left out: the rate by the model's width, the batches by the corpus.

        A batch has at least 16 times the tokens of the longest sentence, and at most the paper's 25,000.
        """
        if self.learning_rate is None:
            self.learning_rate = float(f"{noam_learning_rate(100_000, d_model):.2g}")
        for side in ("source", "target"):
            if getattr(self, f"{side}_tokens") is None:
                lengths = np.asarray(data.train[f"{side}_length"][:])
                first = min((corpus.first for corpus in data.mixed.values()), default=len(lengths))
                pairs = first + sum(corpus.drawn for corpus in data.mixed.values())
                longest = int(lengths.max())
                tokens = max(round(lengths.mean() * pairs / 100), 16 * longest)
                setattr(self, f"{side}_tokens", max(min(tokens, 25000), longest))


def parse_training(argv: list[str] | None = None) -> tuple[DataArguments, ModelArguments, RecipeTrainingArguments]:
    """The options of a training; with `--model`, those that are left out have the defaults of fine-tuning."""
    parser = RecipeParser((DataArguments, ModelArguments, RecipeTrainingArguments))
    if parser.read(argv).model is not None:
        parser = RecipeParser((DataArguments, ModelArguments, FineTuningArguments))
    return parser.parse(argv)


def open_parent(args: ModelArguments, data: Data) -> tuple[SavedModel | None, Data]:
    """Open the saved model to start from, if one was named, and resolve the languages.

    Its configuration gets the changes of `args` and the languages.

    Returns:
        The model, or None, and `data` with the languages and the model's tokenizer.

    Raises:
        ValueError: As from `open_model` or `with_languages`; or an option contradicts the model, such as its languages;
            or its tokenizer cannot encode targets.
    """
    if args.model is None:
        return None, data.with_languages()
    architecture = {field.name for field in fields(args)}.difference(("model", *_CHANGEABLE))
    decided = f"the configuration of --model decides it; only {', '.join(_CHANGEABLE)} may differ"
    refuse_unused(args, dict.fromkeys(architecture, decided))
    refuse_unused(data, dict.fromkeys(_TOKENIZER, "the tokenizer of --model is used"))
    parent = open_model(args.model, model_type="vaswani")
    config = parent.config
    data = data.with_languages(config)
    source, target = config.source_language or data.languages[0], config.target_language or data.languages[1]
    if (source, target) != data.languages:
        raise ValueError(f"source_language, target_language: {args.model} translates from {source} to {target}")
    if bool(config.language_tags) != data.both_directions:
        raise ValueError(
            f"both_directions: give --both_directions {str(bool(config.language_tags)).lower()}, as the model"
        )
    if not encodes_targets(parent.tokenizer):
        raise ValueError(f"model: {args.model}: its tokenizer has two vocabularies, and encodes with the source's only")
    changes = {name: getattr(args, name) for name in _CHANGEABLE if getattr(args, name) is not None}
    for name, value in {**changes, "source_language": source, "target_language": target}.items():
        setattr(config, name, value)
    # What was measured on the parent's weights.
    config.confidence_curve = config.confidence_search = config.alignment_heads = None
    config.alignment_shift = False
    return parent, replace(data, tokenizer=args.model)


def describe_parent(name: str, parent: SavedModel) -> ParentModel:
    """Describe a saved model to start from, which is called `name`; by its repository if its training pushed it."""
    digest, repository = matching_files_digest(parent.directory, ["*.safetensors"]), None
    with suppress(FileNotFoundError, ValueError):  # a model of something else, or converted
        repository = RunRecord.load(parent.directory / "all_results.json").run.repository
    is_on_hub = repository is not None or not Path(name).is_dir()
    return ParentModel(name=repository or name, is_on_hub=is_on_hub, sha256=str(digest))

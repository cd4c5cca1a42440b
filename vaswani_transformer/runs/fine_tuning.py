"""Fine-tuning: training that starts from a saved model, with its weights, configuration and tokenizer."""

from argparse import Namespace
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
from transformers import GenerationConfig, PreTrainedConfig

from ..data.preparation import with_languages
from ..data.prepared_directory import TrainingData
from ..decoding.saved_model import SavedModel, open_model
from ..model.configuration_vaswani import drop_measurements
from ..model.scores_vaswani import for_targets
from ..options.arguments import refuse_unused
from ..options.data import VOCABULARY, DataArguments
from ..options.parser import RecipeParser
from ..options.training import ModelArguments, RecipeTrainingArguments
from ..system.manifests import matching_files_digest
from ..system.messages import errors_begin_with
from ..training.schedule import noam_learning_rate
from .records import ParentModel, RunRecord


# Options of the model that do not change the shape or meaning of weights.
_CHANGEABLE = ("dropout", "attention_dropout", "label_smoothing", "layer_norm_eps")


@dataclass
class FineTuningArguments(RecipeTrainingArguments):
    """Options of a training that starts from a model, which have other defaults.

    By default a batch holds a hundredth of an epoch, and the learning rate is constant: the rate of section 5.3 at step
    100,000. With `warmup_steps` or `learning_rate_factor`, the rate follows the schedule of 5.3.
    """

    # `fit` sets the others.
    _defaults = {name: RecipeTrainingArguments._defaults[name] for name in ("warmup_steps", "learning_rate_factor")}

    def resolve(self) -> None:
        refuse_unused(self, {"cooccurrence_embeddings": "the model to start from has embeddings; leave it out"})
        if self.lr_scheduler_type is None and self.warmup_steps is None and self.learning_rate_factor is None:
            self.lr_scheduler_type = "constant"
        super().resolve()

    def fit(self, d_model: int, data: TrainingData) -> None:
        """Set missing options: the rate by the model's width, the batches by the corpus.

        The rate is the final rate of the paper's base training.
        """
        if self.learning_rate is None:
            self.learning_rate = float(f"{noam_learning_rate(100_000, d_model):.2g}")
        if self.source_tokens is None:
            self.source_tokens = _batch_tokens(data, "source_length")
        if self.target_tokens is None:
            self.target_tokens = _batch_tokens(data, "target_length")


def _batch_tokens(data: TrainingData, lengths: str) -> int:
    """A hundredth of an epoch's tokens, but at least 16 times the longest sentence's, and at most the paper's 25,000.

    With the paper's batches, an epoch of a small corpus would have a single batch.
    """
    tokens = np.asarray(data.train[lengths][:])
    longest = int(tokens.max())
    pairs = min((corpus.first for corpus in data.mixed.values()), default=len(tokens))
    pairs += sum(corpus.drawn for corpus in data.mixed.values())
    return max(longest, min(25000, max(16 * longest, round(tokens.mean() * pairs / 100))))


def read_training_options(
    argv: list[str] | None = None, shown: Collection[str] | None = None
) -> tuple[RecipeParser, Namespace]:
    """Read the options of a training; with `--model`, its arguments are `FineTuningArguments`.

    `--help` shows the options named in `shown`, by default all.

    Returns:
        The parser, and the options for its `fill`.
    """
    parser = RecipeParser((DataArguments, ModelArguments, RecipeTrainingArguments), shown)
    options = parser.read(argv)
    if options.model is not None:
        parser.dataclass_types = [DataArguments, ModelArguments, FineTuningArguments]
    return parser, options


def open_parent(args: ModelArguments, data: DataArguments) -> tuple[SavedModel | None, DataArguments]:
    """Open the saved model to start from, if one was named, and resolve the languages.

    Returns:
        The model or None, with the changes of `args` in its configuration; and `data` with the languages and the
        model's tokenizer.

    Raises:
        ValueError: As from `open_model` or `with_languages`; or an option contradicts the model, for example its
            languages; or its tokenizer cannot encode targets; or its generation_config cannot be saved.
    """
    if args.model is None:
        return None, with_languages(data)
    architecture = {each.name for each in fields(args)}.difference(("model", *_CHANGEABLE))
    decided = f"the configuration of --model decides it; only {', '.join(_CHANGEABLE)} may differ"
    refuse_unused(args, dict.fromkeys(architecture, decided))
    refuse_unused(data, dict.fromkeys(("tokenizer", *VOCABULARY), "the tokenizer of --model is used"))
    parent = open_model(args.model, model_type="vaswani")
    with errors_begin_with(f"{parent.place}: generation_config.json"):
        GenerationConfig.from_pretrained(parent.directory).validate(strict=True)  # as saving does
    data = with_languages(data, parent.config)
    _require_directions(parent, data)
    for_targets(parent.tokenizer)  # refuses a tokenizer that cannot encode them
    _reconfigure(parent.config, args, data.languages)
    return parent, replace(data, tokenizer=args.model)


def _require_directions(parent: SavedModel, data: DataArguments) -> None:
    """Raise a ValueError unless the model translates in the directions of the data, if its directions are known."""
    config, (source, target) = parent.config, data.languages
    directions = config.source_language or source, config.target_language or target
    if data.languages not in (directions, directions[::-1] if config.language_tags else directions):
        raise ValueError(
            f"source_language, target_language: {parent.name} translates from {directions[0]} to {directions[1]}"
        )
    if (has_both := bool(config.language_tags)) != data.both_directions:
        raise ValueError(f"both_directions: give --both_directions {str(has_both).lower()}, as the model")


def _reconfigure(config: PreTrainedConfig, args: ModelArguments, languages: tuple[str, str]) -> None:
    """Set the changes and the languages, and drop measurements of the parent's weights."""
    config.source_language, config.target_language = languages
    for name in _CHANGEABLE:
        if getattr(args, name) is not None:
            setattr(config, name, getattr(args, name))
    drop_measurements(config)


def describe_parent(name: str, parent: SavedModel) -> ParentModel:
    """Describe a saved model to start from, by `name`, or by its repository if its training pushed it."""
    digest, repository = matching_files_digest(parent.directory, ["*.safetensors"]), None
    with suppress(FileNotFoundError, ValueError):  # not a translation model of ours, or converted
        repository = RunRecord.load(parent.directory / "all_results.json").run.repository
    is_on_hub = repository is not None or not Path(name).is_dir()
    return ParentModel(name=repository or name, is_on_hub=is_on_hub, sha256=str(digest))

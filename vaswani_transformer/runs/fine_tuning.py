"""Fine-tuning: a training that starts from a saved model, with its weights, configuration and tokenizer."""

from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import TypeVar

import numpy as np

from ..data.preparation_arguments import PreparationArguments
from ..data.training_data import TrainingData
from ..io.files import matching_files_digest
from ..model.saved_model import SavedModel, open_model
from ..model.tokenization_vaswani import encodes_targets
from ..options.arguments import refuse_unused
from .records import ParentModel, RunRecord
from .run_arguments import ModelArguments, RecipeTrainingArguments


Data = TypeVar("Data", bound=PreparationArguments)

# Options of the model that change no weight's shape or meaning.
_CHANGEABLE = ("model", "dropout", "attention_dropout", "label_smoothing", "layer_norm_eps")
_UNUSED_OF_MODEL = {
    each.name: f"the configuration of --model decides it; only {', '.join(_CHANGEABLE[1:])} may differ"
    for each in fields(ModelArguments)
    if each.name not in _CHANGEABLE
}
_UNUSED_OF_DATA = dict.fromkeys(
    ("tokenizer", "tokenizer_model", "vocab_size", "min_frequency", "tokenizer_sample"),
    "the tokenizer of --model is used",
)


def open_parent(args: ModelArguments, data: Data, training: RecipeTrainingArguments) -> tuple[SavedModel | None, Data]:
    """Check the saved model to start from, if one was named, and resolve the languages.

    Its configuration gets the changes of `args` and the languages, and `training` the defaults of fine-tuning.

    Returns:
        The model, or None, and `data` with the languages and the model's tokenizer.

    Raises:
        ValueError: As from `open_model` or `with_languages`; or an option contradicts the model, such as its languages;
            or its tokenizer cannot encode targets.
    """
    if args.model is None:
        return None, data.with_languages()
    refuse_unused(args, _UNUSED_OF_MODEL)
    refuse_unused(data, _UNUSED_OF_DATA)
    parent = open_model(args.model, model_type="vaswani")
    config, languages = parent.config, ("source_language", "target_language")
    data = data.with_languages(config)
    theirs = [getattr(config, name) or getattr(data, name) for name in languages]
    if theirs != list(data.languages):
        raise ValueError(
            f"{', '.join(languages)}: are {'-'.join(data.languages)}, but {args.model} translates {'-'.join(theirs)}; "
            f"give --source_language {theirs[0]} --target_language {theirs[1]}"
        )
    if bool(config.language_tags) != data.both_directions:
        has = "has both directions; give --both_directions true" if config.language_tags else "has one direction"
        raise ValueError(f"both_directions: is {str(data.both_directions).lower()}, but {args.model} {has}")
    tokenizer = parent.tokenizer
    if not encodes_targets(tokenizer):
        raise ValueError(f"model: {args.model}: its tokenizer has two vocabularies, and encodes with the source's only")
    for name in (*_CHANGEABLE[1:], *languages):
        value = getattr(data if name in languages else args, name)
        if value is not None:
            setattr(config, name, value)
    config.confidence_curve = config.alignment_heads = None  # measured on the parent's weights
    training.tune(config.d_model)
    return parent, replace(data, tokenizer=args.model)


def fit_batches(args: RecipeTrainingArguments, data: TrainingData) -> None:
    """Set the size of batches, where it was left out: a hundredth of an epoch, and at least 16 of the longest sentence.

    With the paper's batches, an epoch of a small corpus would be a single batch.
    """
    for side in ("source", "target"):
        if getattr(args, f"{side}_tokens") is None:
            lengths = np.asarray(data.train[f"{side}_length"][:])
            first = min((corpus.first for corpus in data.mixed.values()), default=len(lengths))
            pairs = first + sum(corpus.drawn for corpus in data.mixed.values())
            fitted = max(round(lengths.mean() * pairs / 100), 16 * int(lengths.max()))
            setattr(args, f"{side}_tokens", max(min(fitted, 25000), int(lengths.max())))


def describe_parent(name: str, parent: SavedModel) -> ParentModel:
    """Describe a saved model to start from, which is called `name`; by its repository if its training pushed it."""
    digest, repository = matching_files_digest(parent.directory, ["*.safetensors"]), None
    with suppress(FileNotFoundError, ValueError):  # a model of something else, or converted
        repository = RunRecord.load(parent.directory / "all_results.json").run.repository
    is_on_hub = repository is not None or not Path(name).is_dir()
    return ParentModel(name=repository or name, is_on_hub=is_on_hub, sha256=str(digest))

"""Fine-tuning: a training that starts from a saved model, with its weights, configuration and tokenizer."""

from contextlib import suppress
from dataclasses import fields
from pathlib import Path

from transformers import FSMTTokenizer

from ..arguments import refuse_unused
from ..data import PreparationArguments
from ..files import matching_files_digest
from ..saved_model import SavedModel, open_model
from ..training.run_arguments import ModelArguments
from .records import ParentModel, RunRecord


# Options of the model that change no weight's shape or meaning.
_CHANGEABLE = ("model", "dropout", "attention_dropout", "label_smoothing", "layer_norm_eps")
_UNUSED_OF_MODEL = {
    each.name: f"the configuration of --model decides it; only {', '.join(_CHANGEABLE[1:])} may differ"
    for each in fields(ModelArguments)
    if each.name not in _CHANGEABLE
}
_UNUSED_OF_DATA = dict.fromkeys(
    ("tokenizer", "tokenizer_model", "vocab_size", "tokenizer_sample"), "the tokenizer of --model is used"
)


def open_parent(args: ModelArguments, data: PreparationArguments) -> SavedModel | None:
    """Check the saved model to start from; None if no model was named.

    Its configuration gets the changes of `args` and the languages of `data`, and `data` its tokenizer.

    Raises:
        ValueError: As from `open_model`; or an option contradicts the model, such as its languages; or its tokenizer
            cannot encode targets.
    """
    if args.model is None:
        return None
    refuse_unused(args, _UNUSED_OF_MODEL)
    refuse_unused(data, _UNUSED_OF_DATA)
    parent = open_model(args.model, model_type="vaswani", parses=False)
    config, languages = parent.config, ("source_language", "target_language")
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
    # `encoder` has the ids of source tokens, `decoder` the tokens of target ids.
    if (
        isinstance(tokenizer, FSMTTokenizer)
        and {n: token for token, n in tokenizer.encoder.items()} != tokenizer.decoder
    ):
        raise ValueError(f"model: {args.model}: its tokenizer has two vocabularies, and encodes with the source's only")
    for name in (*_CHANGEABLE[1:], *languages):
        value = getattr(data if name in languages else args, name)
        if value is not None:
            setattr(config, name, value)
    data.tokenizer = args.model
    return parent


def describe_parent(name: str, parent: SavedModel) -> ParentModel:
    """Describe a saved model to start from, which is called `name`; by its repository if its training pushed it."""
    digest, repository = matching_files_digest(parent.directory, ["*.safetensors"]), None
    with suppress(FileNotFoundError, ValueError):  # a model of something else, or converted
        repository = RunRecord.load(parent.directory / "all_results.json").run.repository
    is_on_hub = repository is not None or not Path(name).is_dir()
    return ParentModel(name=repository or name, is_on_hub=is_on_hub, sha256=str(digest))

"""Opens a saved model and its tokenizer for the recipes, after checking their files.

transformers asks on standard input whether it may run a model's code, initialises missing weights at random, and builds
a model of any size that a configuration states. Here remote code runs only if the caller trusts it. The files must
agree: the sizes in the configuration with the header of the weights, the tokenizer with both.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from huggingface_hub import snapshot_download
from safetensors import safe_open
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from ..io.files import MANIFEST_NAME, MODEL_FILES, Json, find_damage, read_json
from .parsing_vaswani import VaswaniForConstituencyParsing


_WEIGHTS = "model.safetensors"
_PICKLED = "pytorch_model.bin"
_INDEX = "model.safetensors.index.json"
_GENERATION = "generation_config.json"

# Files to download from a repository on the Hub.
_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.spm")

# Without any of these, `generate` ends every translation at 20 tokens.
_LENGTH_LIMITS = ("max_new_tokens_over_source", "max_new_tokens", "max_length")

_ORIGINAL = "copy it from the model's original"
_REMEDY = f"{_ORIGINAL}, or save the model again"

# Limit of numbers in a configuration that exceed all dimensions of the weights, such as a maximum length.
_LARGEST_NUMBER = 2**14

# Ranges of integers in a generation_config; larger ones would exhaust memory.
_RANGES = {
    "max_new_tokens_over_source": (0, 2**20),
    "max_new_tokens": (1, 2**20),
    "max_length": (1, 2**20),
    "num_beams": (1, 2**10),
    "num_return_sequences": (1, 2**10),
}

# Multiples to which vocabularies are padded, for faster matrix products.
_PADDED_TO = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class SavedModel:
    """A saved model that has passed the checks of `open_model`.

    Attributes:
        directory: Directory of its files, downloaded for a name on the Hub.
        config: Its configuration.
        tokenizer: Its tokenizer.
        is_pickled: Whether its weights are pickled, instead of safetensors.
        trust_remote_code: Whether its remote code may run.
    """

    directory: Path
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase
    is_pickled: bool = False
    trust_remote_code: bool = False

    def load(self, dtype: str | torch.dtype = "auto") -> PreTrainedModel:
        """Load the model on the CPU, in evaluation mode; "auto" is the dtype of the saved weights."""
        return AutoModelForSeq2SeqLM.from_pretrained(
            self.directory,
            config=self.config,
            dtype=dtype,
            trust_remote_code=self.trust_remote_code,
            use_safetensors=not self.is_pickled,
        ).eval()


def open_model(
    name: str | Path,
    *,
    option: str = "model",
    model_type: str | None = None,
    parses: bool | None = None,
    tokenizer_class: type[PreTrainedTokenizerBase] = AutoTokenizer,
    to_convert: bool = False,
    trust_remote_code: bool = False,
) -> SavedModel:
    """Check a saved encoder-decoder model and load its tokenizer.

    Args:
        name: Directory of the model, or its name on the Hub.
        option: Option of the recipe that named the model; messages start with it.
        model_type: Required `model_type` in config.json; by default any encoder-decoder's.
        parses: Whether the model must be a parser (6.3), or must not be one; None accepts both.
        tokenizer_class: Class that loads the tokenizer.
        to_convert: Accept pickled weights, without running code in them, and do not check the generation_config.
        trust_remote_code: Whether the model's remote code may run.

    Raises:
        ValueError: There is no such model, it needs untrusted remote code, or its files are damaged, incomplete or
            inconsistent, or have weights that are not finite. The message is one line.
    """
    directory = _directory(name, option, trust_remote_code, to_convert)
    with _refusing(option, name):
        files = _weight_files(directory, to_convert)
        config = _configuration(directory, [shape for file in files for shape in _shapes(file)], trust_remote_code)
        if config.model_type == "vaswani" and (directory / MANIFEST_NAME).exists():
            _check_manifest(directory)
        if model_type not in (None, config.model_type):
            raise ValueError(f"is of type {config.model_type!r}, not {model_type!r}")
        if not to_convert and (config.model_type == "vaswani" or (directory / _GENERATION).exists()):
            _check_limits(_read_object(directory / _GENERATION))  # before transformers, which ignores a damaged one
        loaded = _tokenizer(directory, trust_remote_code, tokenizer_class)
        saved = SavedModel(directory, config, loaded, files[0].name == _PICKLED, trust_remote_code)
        model = _on_meta_device(saved)
        if parses is not None and parses != isinstance(model, VaswaniForConstituencyParsing):
            other = "translates; use translate.py, or name a parser"
            raise ValueError(other if parses else "is a parser; use parse.py, or name a translation model")
        if not to_convert:
            _check_generation(model)
        _check_fit(saved.tokenizer, model)
        is_quantized = getattr(config, "quantization_config", None) is not None
        for file in files:
            require_finite(_read_tensors(file), file.name, is_floating_point=not (to_convert or is_quantized))
    return saved


def require_finite(weights: Iterable[tuple[str, torch.Tensor]], place: str, *, is_floating_point: bool = False) -> None:
    """Raise a ValueError of one line if a weight is infinite or NaN.

    Args:
        weights: Names and tensors.
        place: Origin of the weights, such as a file name; the message starts with it.
        is_floating_point: Also refuse weights of other dtypes, which loading would convert.
    """
    for name, weight in weights:
        if is_floating_point and not weight.is_floating_point():
            raise ValueError(f"{place}: {name} is of type {weight.dtype}, not floating-point; {_REMEDY}")
        if weight.is_floating_point() and not torch.isfinite(weight).all():
            raise ValueError(
                f"{place}: {name} has values that are not finite; the training diverged or the file is damaged: take "
                f"an earlier checkpoint"
            )


def load_tokenizer(name: str | Path, *, option: str = "tokenizer") -> PreTrainedTokenizerBase:
    """Load a tokenizer alone, without running remote code.

    Raises:
        ValueError: There is none, it is damaged, or it needs remote code. The message is one line.
    """
    with _refusing(option, name):
        return _tokenizer(name, trust_remote_code=False, tokenizer_class=AutoTokenizer)


@contextmanager
def _refusing(option: str, name: str | Path) -> Iterator[None]:
    """Turn any exception into a one-line ValueError that names the option and the model."""
    try:
        yield
    except Exception as error:  # libraries raise almost any type for a file that they cannot use
        text = " ".join(str(error).split())
        kind = "" if type(error) is ValueError and text else f"{type(error).__name__}: "
        raise ValueError(f"{option}: {name}: {kind}{text[:400]}") from error


def _directory(name: str | Path, option: str, trust_remote_code: bool, to_convert: bool) -> Path:
    if name and Path(name).is_dir():
        return Path(name)
    patterns = [*_FILES, *(["*.py"] if trust_remote_code else []), *([_PICKLED] if to_convert else [])]
    try:
        return Path(snapshot_download(str(name), allow_patterns=patterns))
    except (ValueError, OSError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ValueError(f"{option}: {name} is no saved model, and the Hub does not provide it ({reason})") from error


def _read_object(path: Path) -> dict[str, Json]:
    try:
        return read_json(path, path.name)
    except FileNotFoundError:
        raise ValueError(f"has no {path.name}; {_REMEDY}") from None
    except ValueError as error:
        raise ValueError(f"{error}; {_ORIGINAL}") from None


def _configuration(directory: Path, shapes: list[list[int]], trust_remote_code: bool) -> PreTrainedConfig:
    settings = _read_object(directory / "config.json")
    model_type = settings.get("model_type")
    is_known = isinstance(model_type, str) and model_type in CONFIG_MAPPING
    if not is_known and not (trust_remote_code and "auto_map" in settings):
        if "auto_map" in settings:
            raise ValueError(
                f"its model_type {model_type!r} needs remote code, which is not run; if you trust that code, and this "
                f"program has the option, give --trust_remote_code"
            )
        raise ValueError(f"config.json: transformers knows no model_type {model_type!r}")
    _check_sizes(settings, shapes)
    for key, value in settings.items():
        if key.endswith("attn_implementation") and "/" in str(value):
            raise ValueError(f"config.json: {key} {value!r} is code on the Hub, which is not run; remove the key")
        if key == "transformers_weights":
            raise ValueError(f"config.json: {key} names other weights than {_WEIGHTS}; remove the key")
    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=trust_remote_code)
    except Exception as error:  # a configuration class may raise any type for a value of a wrong type
        raise ValueError(f"config.json cannot be used ({type(error).__name__}: {error})") from error
    if is_known and not (config.is_encoder_decoder and type(config) in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING):
        raise ValueError(f"config.json: model_type {model_type!r} is not an encoder-decoder, which translation needs")
    return config


def _check_manifest(directory: Path) -> None:
    """Refuse files that differ from the manifest; those of a checkpoint that are not the model's are not read."""
    if (damage := find_damage(directory, *MODEL_FILES)) is not None:
        raise ValueError(f"{damage}; {_ORIGINAL}, or, if the change is meant, delete {MANIFEST_NAME} beside it")


def _check_sizes(settings: Mapping[str, Json], shapes: list[list[int]]) -> None:
    """Refuse sizes that the weights cannot have, before a constructor computes large tables for them.

    Args:
        settings: A configuration, or a nested part of one.
        shapes: Shapes of all tensors of the weights.
    """
    largest = max((dimension for shape in shapes for dimension in shape), default=0)
    for name, value in settings.items():
        if isinstance(value, dict):
            _check_sizes(value, shapes)
        if type(value) is not int:
            continue
        if name.endswith("layers") and value > len(shapes):  # a layer has at least one tensor
            raise ValueError(f"config.json: {name} is {value}, but the weights have only {len(shapes)} tensors")
        if value > max(_LARGEST_NUMBER, largest):
            raise ValueError(f"config.json: {name} is {value}, but no dimension of the weights exceeds {largest}")


def _weight_files(directory: Path, to_convert: bool) -> list[Path]:
    """The files of the weights, in transformers' order of preference."""
    if (directory / _WEIGHTS).exists():
        return [directory / _WEIGHTS]
    if not (directory / _INDEX).exists():
        if to_convert and (directory / _PICKLED).exists():
            return [directory / _PICKLED]
        if any(directory.glob("pytorch_model*.bin")):
            raise ValueError("its weights are pickled, which can run code; save them as safetensors")
        raise ValueError(f"has no weights ({_WEIGHTS}); {_REMEDY}")
    shards = _read_object(directory / _INDEX).get("weight_map")
    if not isinstance(shards, dict) or not shards or not all(isinstance(shard, str) for shard in shards.values()):
        raise ValueError(f"{_INDEX} is damaged: it has no weight_map; {_ORIGINAL}")
    names = sorted(set(map(str, shards.values())))
    for name in names:
        if Path(name).name != name or not (directory / name).is_file():
            raise ValueError(f"{_INDEX} names {name}, which is missing; {_ORIGINAL}")
    return [directory / name for name in names]


def _shapes(file: Path) -> list[list[int]]:
    """Shapes of the tensors in a file; for safetensors, from the header, which also shows a truncated file."""
    try:
        if file.name == _PICKLED:
            return [list(tensor.shape) for _, tensor in _read_tensors(file)]
        with safe_open(file, "pt") as weights:
            return [weights.get_slice(name).get_shape() for name in weights.keys()]  # noqa: SIM118 - no mapping
    except Exception as error:  # neither library has a public exception for damaged files
        raise ValueError(f"{file.name} is damaged or cut off ({error}); {_ORIGINAL}") from error


def _read_tensors(file: Path) -> Iterator[tuple[str, torch.Tensor]]:
    if file.name == _PICKLED:
        yield from torch.load(file, map_location="cpu", weights_only=True).items()
        return
    with safe_open(file, "pt") as weights:
        for name in weights.keys():  # noqa: SIM118 - no mapping
            yield name, weights.get_tensor(name)


def _on_meta_device(saved: SavedModel) -> PreTrainedModel:
    """Build the model on the meta device; raise ValueError if names or shapes differ from the files'."""
    with _quiet():
        model, found = AutoModelForSeq2SeqLM.from_pretrained(
            saved.directory,
            device_map="meta",  # allocates nothing, and reads headers only
            ignore_mismatched_sizes=True,  # reported below
            output_loading_info=True,
            trust_remote_code=saved.trust_remote_code,
            use_safetensors=not saved.is_pickled,
        )
    if mismatched := sorted(found["mismatched_keys"]):
        name, stored, expected = mismatched[0]
        raise ValueError(
            f"config.json does not fit the weights: {name} is {list(stored)} in the file, {list(expected)} by "
            f"config.json, and {len(mismatched) - 1} more differ"
        )
    for kind, verb in (("missing_keys", "lacks"), ("unexpected_keys", "has")):
        if names := sorted(found[kind]):
            raise ValueError(
                f"config.json does not fit the weights: contrary to it, the file {verb} {names[0]} and "
                f"{len(names) - 1} more"
            )
    return model


def has_length_limit(settings: Mapping[str, object]) -> bool:
    """Whether the fields of a generation_config limit the length of translations."""
    return any(settings.get(name) is not None for name in _LENGTH_LIMITS)


def _check_limits(settings: Mapping[str, Json]) -> None:
    if not has_length_limit(settings):
        raise ValueError(
            f"{_GENERATION} has no length limit ({', '.join(_LENGTH_LIMITS)}), so that translations would end at 20 "
            f"tokens; {_REMEDY}"
        )


def _check_generation(model: PreTrainedModel) -> None:
    """Refuse a generation_config with which translations would be cut off, never end, or exhaust memory."""
    _check_limits(vars(model.generation_config))
    if wrong := next(_mistakes(model.generation_config, model.config), None):
        raise ValueError(f"{_GENERATION} {wrong}; {_REMEDY}")


def _mistakes(generation: GenerationConfig, config: PreTrainedConfig) -> Iterator[str]:
    """Mistakes in a generation_config, as predicates of a sentence about it."""
    values = vars(generation)
    for name, (least, most) in _RANGES.items():
        value = values.get(name)
        if value is not None and not (type(value) is int and least <= value <= most):
            yield f"has {value!r} as {name}, which must be a whole number from {least} to {most}"
    if values.get("max_length") == 20 and values.get("max_new_tokens_over_source") is not None:
        yield "has transformers' default max_length of 20, which would cut translations"
    if generation.eos_token_id is None:
        yield "has no eos_token_id, so that no translation would end"
    if (kind := values.get("length_penalty_type", "transformers")) not in ("gnmt", "transformers"):
        yield f"has the length_penalty_type {kind!r}; there are 'gnmt' and 'transformers'"
    alpha = generation.length_penalty
    if alpha is not None and not (type(alpha) in (int, float) and abs(alpha) <= 100):
        yield f"has {alpha!r} as length_penalty, which must be a number from -100 to 100"
    if config.model_type == "vaswani":
        for name in ("eos_token_id", "pad_token_id", "decoder_start_token_id"):
            if values[name] != getattr(config, name):
                yield f"has {values[name]} as {name}, but config.json has {getattr(config, name)}"
    vocabulary = getattr(config, "output_vocab_size", None) or config.vocab_size
    for name in ("forced_bos_token_id", "forced_eos_token_id"):
        value = values.get(name)
        for token in value if isinstance(value, list) else [value]:
            if token is not None and not (type(token) is int and 0 <= token < vocabulary):
                yield f"has {token!r} as {name}, but the vocabulary has {vocabulary} entries"
    for name in ("max_time", "return_dict_in_generate", "is_assistant"):
        if values.get(name):
            yield f"sets {name}, with which whole files cannot be translated"


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' loading report; the caller raises one line instead."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


def _tokenizer(
    name: str | Path, trust_remote_code: bool, tokenizer_class: type[PreTrainedTokenizerBase]
) -> PreTrainedTokenizerBase:
    try:
        tokenizer = tokenizer_class.from_pretrained(name, trust_remote_code=trust_remote_code)
        tokenizer.decode(tokenizer("a").input_ids)  # an option of a wrong type fails only in use
        return tokenizer
    except Exception as error:  # transformers and tokenizers raise almost any type for a file that they cannot use
        for file in Path(name).glob("*token*.json"):
            _read_object(file)  # names the file and the line that are damaged
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"its tokenizer cannot be loaded ({type(error).__name__}: {reason})") from error


def _check_fit(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> None:
    """Refuse a tokenizer with ids beyond the embedding or, for models of this package, other size or special ids."""
    config = model.config
    entries = 1 + max(tokenizer.get_vocab().values(), default=-1)
    rows = model.get_input_embeddings().weight.shape[0]
    is_ours = config.model_type == "vaswani"
    if entries > rows or (is_ours and all(rows != -(-entries // multiple) * multiple for multiple in _PADDED_TO)):
        raise ValueError(f"the tokenizer does not fit: it has {entries} entries, the model's vocabulary {rows}")
    for name in ("pad_token_id", "eos_token_id") if is_ours else ():
        theirs, ours = getattr(tokenizer, name), getattr(config, name)
        if theirs is None and name == "eos_token_id":
            theirs = tokenizer.sep_token_id  # what FSMT's tokenizer ends sentences with
        if theirs not in (ours if isinstance(ours, list) else [ours]):
            raise ValueError(f"the tokenizer does not fit: its {name} is {theirs}, the model's {ours}")

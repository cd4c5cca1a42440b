"""Opens saved models for the recipes, after checking their files.

transformers asks on standard input whether it may run a model's code, initialises missing weights at random, and builds
a model of any size that a configuration states. Here remote code runs only if the caller trusts it, and the files must
agree: `open_model` compares configuration, tokenizer and the names and shapes of the weights, and `SavedModel.load`
reads the weights, once.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import snapshot_download
from safetensors import SafetensorError, safe_open
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from ..io.files import MANIFEST_NAME, MODEL_FILES, Json, atomic_write, find_damage, locked, read_json
from .configuration_vaswani import VaswaniConfig
from .search_options_vaswani import LENGTH_FIELDS


_PICKLED = "pytorch_model.bin"
_GENERATION = "generation_config.json"

# Files to download from a repository on the Hub.
_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.spm")

_REMEDY = "copy it from the model's original, or save the model again"

# Largest numbers in a configuration, by a part of their names: constructors compute layers and tables of positions.
_LARGEST = {"layers": 2**9, "position": 2**16, "": 2**20}

# Multiples to which vocabularies are padded, for faster matrix products.
_PADDED_TO = (1, 2, 4, 8, 16, 32, 64, 128)


@dataclass(frozen=True)
class SavedModel:
    """A saved model that has passed the checks of `open_model`.

    Attributes:
        place: The option that named it, and its name; errors start with it.
        directory: Directory of its files, downloaded for a name on the Hub.
        config: Its configuration.
        tokenizer: Its tokenizer.
        is_pickled: Whether its weights are pickled, instead of safetensors.
        trust_remote_code: Whether its remote code may run.
    """

    place: str
    directory: Path
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase
    is_pickled: bool = False
    trust_remote_code: bool = False

    def load(self, dtype: str | torch.dtype = "auto") -> PreTrainedModel:
        """Read the weights, onto the CPU; the model is in evaluation mode.

        Args:
            dtype: Of the model; "auto" is the dtype of the saved weights.

        Raises:
            ValueError: A weight is not finite. The message is one line.
        """
        with _refusing(self.place):
            model = self._build(dtype=dtype)
            require_finite(model.state_dict().items(), "its weights")
        return model.eval()

    def update_config(self, **fields: object) -> None:
        """Change fields of the configuration in the directory, atomically; a dict is added to the field's entries.

        Other programs that do so wait meanwhile, so that none loses what another has written.
        """
        path = self.directory / "config.json"
        with locked(path, "model", wait=True):
            content: dict[str, object] = {**read_json(path)}
            for name, value in fields.items():
                before = content.get(name)
                content[name] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
            atomic_write(path, json.dumps(content, indent=2, sort_keys=True) + "\n")

    def require_own(self, what: str) -> None:
        """Raise a ValueError unless `update_config` can keep `what`: in a directory, and a model of this package."""
        if self.config.model_type != "vaswani":
            raise ValueError(f"{self.place}: is of another package, and cannot keep {what}; convert it, see convert.py")
        if Path(self.place.partition(": ")[2]) != self.directory:  # it was downloaded
            raise ValueError(f"{self.place}: must be a directory, which will keep {what}; download it first")

    def _build(self, **options: Any) -> PreTrainedModel:
        """Build the model by transformers' `options`; raise a ValueError if names or shapes differ from the files'."""
        try:
            with _quiet():
                model, found = AutoModelForSeq2SeqLM.from_pretrained(
                    self.directory,
                    config=self.config,
                    ignore_mismatched_sizes=True,  # reported below
                    output_loading_info=True,
                    trust_remote_code=self.trust_remote_code,
                    use_safetensors=not self.is_pickled,  # pickled weights can run code
                    **options,
                )
        except (OSError, SafetensorError) as error:
            raise ValueError(f"its weights cannot be read ({error}); {_REMEDY}") from error
        if model.generation_config.eos_token_id == [self.config.eos_token_id]:  # so the Trainer before 5.23 leaves it
            model.generation_config.eos_token_id = self.config.eos_token_id
        differences = [("has other shapes of", sorted(name for name, *_ in found["mismatched_keys"]))]
        differences += [("lacks", sorted(found["missing_keys"])), ("also has", sorted(found["unexpected_keys"]))]
        for verb, names in differences:
            if names:
                raise ValueError(
                    f"config.json does not fit the weights: contrary to it, the file {verb} {names[0]} and "
                    f"{len(names) - 1} more; {_REMEDY}"
                )
        return model


def open_model(
    name: str | Path,
    *,
    option: str = "model",
    model_type: str | None = None,
    task: str | None = None,
    tokenizer_class: type[PreTrainedTokenizerBase] = AutoTokenizer,
    to_convert: bool = False,
    trust_remote_code: bool = False,
) -> SavedModel:
    """Check a saved encoder-decoder model and load its tokenizer; its weights are not read yet.

    Args:
        name: Directory of the model, or its name on the Hub.
        option: Option of the recipe that named the model; messages start with it.
        model_type: Required `model_type` in config.json; by default any encoder-decoder's.
        task: What the model must be for, such as "translation"; None accepts any.
        tokenizer_class: Class that loads the tokenizer.
        to_convert: Accept pickled weights, without running code in them, and do not check the generation_config.
        trust_remote_code: Whether the model's remote code may run.

    Raises:
        ValueError: There is no such model, it needs untrusted remote code, or its files are damaged, incomplete or
            inconsistent. The message is one line.
    """
    place = f"{option}: {name}"
    directory = _directory(name, option, trust_remote_code, to_convert)
    with _refusing(place):
        config = _configuration(directory, trust_remote_code)
        is_ours = isinstance(config, VaswaniConfig)
        if is_ours and (directory / MANIFEST_NAME).exists() and (damage := find_damage(directory, *MODEL_FILES)):
            raise ValueError(f"{damage}; {_REMEDY}, or, if the change is meant, delete {MANIFEST_NAME} beside it")
        if model_type not in (None, config.model_type):
            raise ValueError(f"is of type {config.model_type!r}, not {model_type!r}")
        its_task = getattr(config, "task", "translation")
        if task not in (None, its_task):
            raise ValueError(f"is a model for {its_task}; name one for {task}")
        if not to_convert and (is_ours or (directory / _GENERATION).exists()):
            # Before transformers, which ignores a damaged one.
            require_length_limit(_read_object(directory / _GENERATION))
        tokenizer = _tokenizer(directory, trust_remote_code, tokenizer_class)
        is_pickled = to_convert and not any(directory.glob("*.safetensors"))
        saved = SavedModel(place, directory, config, tokenizer, is_pickled, trust_remote_code)
        model = saved._build(device_map="meta")  # allocates nothing, and reads headers only
        if not to_convert:
            _check_generation(model)
            if getattr(config, "quantization_config", None) is None:
                _require_floating_point(directory)
        _check_fit(tokenizer, model)
    return saved


def load_tokenizer(name: str | Path, *, option: str = "tokenizer") -> PreTrainedTokenizerBase:
    """Load a tokenizer alone, without running remote code.

    Raises:
        ValueError: There is none, it is damaged, or it needs remote code. The message is one line.
    """
    with _refusing(f"{option}: {name}"):
        return _tokenizer(name, trust_remote_code=False, tokenizer_class=AutoTokenizer)


def require_finite(weights: Iterable[tuple[str, torch.Tensor]], place: str) -> None:
    """Raise a ValueError of one line, which starts with `place`, if one of the named weights is infinite or NaN."""
    for name, weight in weights:
        if weight.is_floating_point() and not torch.isfinite(weight).all():
            raise ValueError(
                f"{place}: {name} has values that are not finite: the training diverged, the file is damaged, or "
                f"{weight.dtype} is too narrow; take an earlier checkpoint, or another dtype"
            )


def require_length_limit(settings: Mapping[str, object], place: str = "") -> None:
    """Raise a ValueError if the fields of a generation_config let `generate` end every translation at 20 tokens.

    Its message starts with `place`.
    """
    if all(settings.get(name) is None for name in LENGTH_FIELDS):
        raise ValueError(
            f"{place}{_GENERATION} has no length limit ({', '.join(LENGTH_FIELDS)}), so that translations would end at "
            f'20 tokens; add one to it, as "max_length": 512'
        )


@contextmanager
def _refusing(place: str) -> Iterator[None]:
    """Turn any exception into a one-line ValueError that starts with `place`."""
    try:
        yield
    except Exception as error:  # libraries raise almost any type for a file that they cannot use
        text = " ".join(str(error).split())
        kind = "" if type(error) is ValueError and text else f"{type(error).__name__}: "
        raise ValueError(f"{place}: {kind}{text[:400]}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence transformers' loading report; the caller raises one line instead."""
    verbosity = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)


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
        raise ValueError(f"{error}; {_REMEDY}") from None


def _configuration(directory: Path, trust_remote_code: bool) -> PreTrainedConfig:
    settings = _read_object(directory / "config.json")
    _check_sizes(settings)
    for key, value in settings.items():
        if key == "transformers_weights" or (key.endswith("attn_implementation") and "/" in str(value)):
            raise ValueError(f"config.json: {key} {value!r} is not in this directory, and is not used; remove the key")
    try:
        config = AutoConfig.from_pretrained(directory, trust_remote_code=trust_remote_code)
    except Exception as error:  # a configuration class may raise any type for a value of a wrong type
        raise ValueError(f"config.json cannot be used ({type(error).__name__}: {error})") from error
    if not config.is_encoder_decoder:
        raise ValueError(f"config.json: {config.model_type!r} is not an encoder-decoder, which translation needs")
    return config


def _check_sizes(settings: Mapping[str, Json]) -> None:
    """Refuse numbers in a configuration, or a part of one, for which a constructor would take minutes or all memory."""
    for name, value in settings.items():
        if isinstance(value, dict):
            _check_sizes(value)
        elif type(value) is int and value > next(most for part, most in _LARGEST.items() if part in name):
            raise ValueError(f"config.json: {name} is {value}, more than any model has; {_REMEDY}")


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


def _require_floating_point(directory: Path) -> None:
    """Refuse weights of other types, which loading would convert; the header of a file tells them."""
    for file in directory.glob("model*.safetensors"):
        with safe_open(file, "pt") as weights:
            for name in weights.keys():  # noqa: SIM118 - no mapping
                if "F" not in (dtype := weights.get_slice(name).get_dtype()):  # such as F32 and BF16
                    raise ValueError(f"{file.name}: {name} is of type {dtype}, not floating-point; {_REMEDY}")


def _check_generation(model: PreTrainedModel) -> None:
    """Refuse a generation_config with which translations would be cut off, never end, or exhaust memory."""
    config, settings = model.config, vars(model.generation_config)
    require_length_limit(settings)
    tokens = range(getattr(config, "output_vocab_size", None) or config.vocab_size)
    lengths, counts = range(1, 2**20 + 1), range(1, 2**10 + 1)
    allowed: dict[str, Sequence[object]] = {
        "max_new_tokens_over_source": range(2**20 + 1),
        "max_new_tokens": lengths,
        "max_length": lengths,
        "num_beams": counts,
        "num_return_sequences": counts,
        "length_penalty_type": ("gnmt", "transformers"),
        "eos_token_id": tokens,
        "forced_bos_token_id": tokens,
        "forced_eos_token_id": tokens,
        "max_time": (),
        "return_dict_in_generate": (False,),
        "is_assistant": (False,),
    }
    wrong = {name for name, values in allowed.items() if not _are_among(settings.get(name), values)}
    alpha = settings.get("length_penalty")
    if alpha is not None and not (type(alpha) in (int, float) and abs(alpha) <= 100):
        wrong.add("length_penalty")
    if settings.get("max_length") == 20 and settings.get("max_new_tokens_over_source") is not None:
        wrong.add("max_length")  # transformers' default, which would cut translations
    if settings.get("length_penalty_type", "gnmt") is None:
        wrong.add("length_penalty_type")
    if settings.get("eos_token_id") is None:
        wrong.add("eos_token_id")
    if isinstance(config, VaswaniConfig):
        ids = ("eos_token_id", "pad_token_id", "decoder_start_token_id")
        wrong |= {name for name in ids if settings[name] != getattr(config, name)}
    if wrong:
        name = min(wrong)
        raise ValueError(
            f"{_GENERATION} has {settings[name]!r} as {name}, with which the model cannot translate; {_REMEDY}"
        )


def _are_among(found: object, allowed: Sequence[object]) -> bool:
    """Whether a value, or each value of a list, is None or allowed; a range has integers only."""
    values = found if isinstance(found, list) else [found]
    return all(value is None or (value in allowed and not isinstance(value, float)) for value in values)


def _check_fit(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> None:
    """Refuse a tokenizer with ids beyond the embedding or, for models of this package, other size or special ids."""
    config = model.config
    entries = 1 + max(tokenizer.get_vocab().values(), default=-1)
    rows = model.get_input_embeddings().weight.shape[0]
    is_ours = isinstance(config, VaswaniConfig)
    if entries > rows or (is_ours and all(rows != -(-entries // multiple) * multiple for multiple in _PADDED_TO)):
        raise ValueError(f"the tokenizer does not fit: it has {entries} entries, the model's vocabulary {rows}")
    for name in ("pad_token_id", "eos_token_id") if is_ours else ():
        theirs, ours = getattr(tokenizer, name), getattr(config, name)
        if theirs is None and name == "eos_token_id":
            theirs = tokenizer.sep_token_id  # what FSMT's tokenizer ends sentences with
        if theirs not in (ours if isinstance(ours, list) else [ours]):
            raise ValueError(f"the tokenizer does not fit: its {name} is {theirs}, the model's {ours}")

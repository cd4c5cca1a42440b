"""Opens saved models for the recipes, after checking their files.

transformers initialises missing weights at random, and asks on standard input whether it may run a model's code. Here
weights and tokenizer must fit the configuration, all files must match their manifest, and code must be trusted.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from accelerate import PartialState
from huggingface_hub import snapshot_download
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from ..model.configuration_vaswani import VaswaniConfig
from ..model.languages_vaswani import Directions
from ..model.search_options_vaswani import LENGTH_FIELDS
from ..options.arguments import Precision
from ..system.files import atomic_write, locked, read_json
from ..system.manifests import MANIFEST_NAME, MODEL_FILES, find_damage
from ..system.messages import errors_begin_with
from ..system.processor import keep_freed_memory, warn_of_slow_bfloat16


_PICKLED = "pytorch_model.bin"
_GENERATION = "generation_config.json"

# Files to download from a repository on the Hub.
_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.spm")

# PyTorch's names of precisions.
_DTYPES = {"auto": "auto", "float32": "float32", "bf16": "bfloat16", "fp16": "float16"}

_REMEDY = "copy it from the model's original, or save the model again"


@dataclass(frozen=True)
class SavedModel:
    """A saved model that has passed the checks of `open_model`.

    Attributes:
        place: The option with its name, and the name; errors start with it.
        name: Its directory, or its name on the Hub.
        directory: Directory of its files; for a name on the Hub, the downloaded ones.
        is_pickled: Whether its weights are pickled, instead of safetensors.
        trust_remote_code: Whether its remote code may run.
    """

    place: str
    name: str
    directory: Path
    config: PreTrainedConfig
    tokenizer: PreTrainedTokenizerBase
    is_pickled: bool = False
    trust_remote_code: bool = False

    def load(self, dtype: str | torch.dtype = "auto") -> PreTrainedModel:
        """Read the weights, onto the CPU; the model is in evaluation mode.

        Args:
            dtype: The model's dtype; "auto" means its configuration's, or else the saved weights'.

        Raises:
            ValueError: Weights do not fit the configuration, or are not finite.
        """
        with errors_begin_with(self.place):
            model, report = AutoModelForSeq2SeqLM.from_pretrained(
                self.directory,
                config=self.config,
                dtype=dtype,
                ignore_mismatched_sizes=True,  # reported below
                output_loading_info=True,
                trust_remote_code=self.trust_remote_code,
                use_safetensors=not self.is_pickled,  # pickled weights can run code
            )
            for difference in ("missing_keys", "unexpected_keys", "mismatched_keys"):
                if names := sorted(map(str, report[difference])):
                    raise ValueError(f"config.json does not fit the weights: {difference} {names[0]} ...; {_REMEDY}")
            require_finite(model.state_dict().items(), "its weights")
        if model.generation_config.eos_token_id == [self.config.eos_token_id]:  # by Trainer before 5.23
            model.generation_config.eos_token_id = self.config.eos_token_id
        return model.eval()

    def load_to_decode(self, precision: Precision) -> PreTrainedModel:
        """Load the model onto this process's device, in a precision of the options; see `load`."""
        device = PartialState().device
        model = self.load(_DTYPES[precision]).to(device)
        if device.type == "cpu":
            keep_freed_memory()
            if model.dtype == torch.bfloat16:
                warn_of_slow_bfloat16()
        return model

    def tagged(self, text: str, target_language: str | None) -> str:
        """Put the tag of a language before a text, if the model has tags; raises the ValueErrors of `Directions`."""
        directions = Directions(self.config)
        return directions.tagged(text, directions.tag(None, target_language))

    def update_config(self, **fields: object) -> None:
        """Change fields of the configuration in the directory, atomically; a dict is merged into the field's entries.

        Other programs that do so wait meanwhile, so that none overwrites another's changes.
        """
        path = self.directory / "config.json"
        with locked(path, "model", wait=True):
            content: dict[str, object] = {**read_json(path)}
            for name, value in fields.items():
                before = content.get(name)
                content[name] = {**before, **value} if isinstance(before, dict) and isinstance(value, dict) else value
            atomic_write(path, json.dumps(content, indent=2, sort_keys=True) + "\n")

    def require_updatable(self, what: str) -> None:
        """Raise a ValueError unless `update_config` can store `what`: a model of this package, in a local directory."""
        if self.config.model_type != "vaswani" or Path(self.name) != self.directory:
            raise ValueError(
                f"{self.place}: must be a directory with a model of this package, which will keep {what}; download or "
                "convert it first"
            )


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
    """Check a saved encoder-decoder model and load its tokenizer; its weights are not loaded yet.

    Args:
        name: Directory of the model, or its name on the Hub.
        option: Option of the recipe that named the model; messages start with it.
        model_type: Required `model_type` in config.json; by default any encoder-decoder's.
        task: Required task of the model, such as "translation"; None accepts any.
        tokenizer_class: Class that loads the tokenizer.
        to_convert: Accept pickled weights, without running code in them, and a generation_config without a limit.
        trust_remote_code: Whether the model's remote code may run.

    Raises:
        ValueError: There is no such model, it needs untrusted remote code, or its files are damaged, incomplete or
            inconsistent. The message is one line.
    """
    place = f"{option}: {name}"
    with errors_begin_with(place):
        code, pickled = ["*.py"] if trust_remote_code else [], [_PICKLED] if to_convert else []
        directory = _local_directory(str(name), [*_FILES, *code, *pickled])
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
            _require_length_limit(directory)
        tokenizer = tokenizer_class.from_pretrained(directory, trust_remote_code=trust_remote_code)
        _check_fit(tokenizer, config)
        is_pickled = to_convert and not any(directory.glob("*.safetensors"))
    return SavedModel(place, str(name), directory, config, tokenizer, is_pickled, trust_remote_code)


def require_finite(weights: Iterable[tuple[str, torch.Tensor]], place: str) -> None:
    """Raise a one-line ValueError that starts with `place` if one of the named weights is infinite or NaN."""
    for name, weight in weights:
        if weight.is_floating_point() and not torch.isfinite(weight).all():
            raise ValueError(
                f"{place}: {name} has values that are not finite: the training diverged, the file is damaged, or "
                f"{weight.dtype} is too narrow; take an earlier checkpoint, or another dtype"
            )


def _local_directory(name: str, patterns: list[str]) -> Path:
    """The directory of a model, downloaded if it is on the Hub, with the files that match `patterns`."""
    directory = Path(name)
    if not name or not directory.is_dir():
        try:
            directory = Path(snapshot_download(name, allow_patterns=patterns))
        except (ValueError, OSError) as error:
            reason = str(error).partition(". ")[0]  # the rest is advice on the Hub
            raise ValueError(f"is neither a directory nor an accessible repository on the Hub ({reason})") from error
    if not (directory / "config.json").exists():
        raise ValueError("is no model, since it has no config.json")
    return directory


def _require_length_limit(directory: Path) -> None:
    search = read_json(directory / _GENERATION, _GENERATION)
    if all(search.get(name) is None for name in LENGTH_FIELDS):
        raise ValueError(
            f"{_GENERATION} has no length limit ({', '.join(LENGTH_FIELDS)}), so that translations would end at 20 "
            f'tokens; add one to it, as "max_length": 512'
        )


def _configuration(directory: Path, trust_remote_code: bool) -> PreTrainedConfig:
    settings = read_json(directory / "config.json", "config.json")
    if "/" in str(settings.get("attn_implementation")):  # transformers would download and run it
        raise ValueError("config.json: attn_implementation names code on the Hub, which is not loaded; remove the key")
    config = AutoConfig.from_pretrained(directory, trust_remote_code=trust_remote_code)
    if not config.is_encoder_decoder:
        raise ValueError(f"config.json: {config.model_type!r} is not an encoder-decoder, which translation needs")
    return config


def _check_fit(tokenizer: PreTrainedTokenizerBase, config: PreTrainedConfig) -> None:
    """Refuse a tokenizer with ids beyond the embedding or, for models of this package, with other special ids."""
    entries, rows = 1 + max(tokenizer.get_vocab().values(), default=-1), getattr(config, "vocab_size", None)
    if rows is not None and entries > rows:
        raise ValueError(f"the tokenizer does not fit: it has {entries} entries, the model's vocabulary {rows}")
    for name in ("pad_token_id", "eos_token_id") if isinstance(config, VaswaniConfig) else ():
        expected, actual = getattr(config, name), getattr(tokenizer, name)
        if actual is None and name == "eos_token_id":
            actual = tokenizer.sep_token_id  # FSMT's tokenizer ends sentences with it
        if actual not in (expected if isinstance(expected, list) else [expected]):
            raise ValueError(f"the tokenizer does not fit: its {name} is {actual}, the model's {expected}")

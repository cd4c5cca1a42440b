"""Exported models that replace the model: the engines by name, and the cache of exports."""

import re
import shutil
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from huggingface_hub.constants import HF_HOME
from torch.nn.utils.rnn import pad_sequence
from transformers import MarianMTModel, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..model.generation_vaswani import search_options
from ..model.languages_vaswani import Directions
from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from ..model.search_options_vaswani import set_options
from ..model.translation_vaswani import warn_once
from ..system.files import locked
from ..system.manifests import Manifest, content_digest, find_damage, require_same_origin
from .engine import SEARCH, Engine, export_manifest, most_positions, origin


logger = logging.get_logger(__name__)

EXPORTS = Path(HF_HOME, "vaswani")  # made on first use

# Names of engines to export to. Any other name is a directory.
_TYPES = "int8|int8_float32|int8_float16|int8_bfloat16|int16|float16|bfloat16|float32"
_NAME = re.compile(rf"ctranslate2(:({_TYPES}))?|onnx")

# Prefixes of fields of config.json that change no export.
_NOT_EXPORTED = ("_", "alignment_", "confidence_", "transformers_version")


class ExportedModel:
    """An export that searches in place of its model, with the model's beams, alpha and length limit.

    Args:
        name: "ctranslate2", "ctranslate2:int8" or another dtype of weights, or "onnx", for an export in the cache of
            Hugging Face, which is made on first use; or the directory of an export by recipes/export.py.
        model: The model. CTranslate2 computes on its device, other engines on the CPU.
        tokenizer: Its tokenizer.

    Attributes:
        batches, calls: As in `Engine`.

    Raises:
        ImportError: The engine is not installed.
        ValueError: The engine cannot express the model; or the directory is not an export, is damaged, or was made
            from another model.
    """

    def __init__(self, name: str | Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self.model = model
        try:
            if is_engine_name(str(name)):
                directory = exported(str(name), model, tokenizer)
            else:
                directory = _require_export_of(model, tokenizer, Path(name))
            self.engine = open_engine(directory, model.device)
        except ImportError as error:
            raise ImportError(f'engine: {error}; run `pip install -e ".[export]"`, for ONNX ".[onnx]"') from error
        except (RuntimeError, OSError) as error:
            raise ValueError(f"engine: {error}") from error
        self.batches, self.calls = self.engine.batches, self.engine.calls
        self._positions = most_positions(directory)

    def generate(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **options: Any) -> torch.Tensor:
        """The translations of each source, the best first: `[batch * num_return_sequences, 1 + target]`.

        Each has the start token, then tokens up to EOS, then padding. Sources longer than the engine's positions lose
        their last tokens, with one warning.

        Args:
            input_ids: `[batch, source]`
            attention_mask: `[batch, source]`, 1 for tokens, 0 for padding.
            options: Keywords of `generate`; options that engines lack must be None or False.

        Raises:
            ValueError: An option is set that engines lack; or the model has several directions, and a source has no
                language tag.
        """
        for name in options.keys() - SEARCH:
            if options[name] is not None and options[name] is not False:
                raise ValueError(f"{name}: not supported with an engine; remove it, or translate without an engine")
        config, positions = self.model.config, self._positions
        Directions(config).require_tagged(input_ids)
        sources = [ids[mask.bool()].tolist() for ids, mask in zip(input_ids, attention_mask, strict=True)]
        if any(len(source) > positions for source in sources):
            warn_once(
                f"a sentence has more tokens than the export takes, {positions}; the rest is not translated; split it"
            )
            sources = [ids if len(ids) <= positions else [*ids[: positions - 1], ids[-1]] for ids in sources]
        search = search_options(self.model, options)
        search = replace(search, limit=replace(search.limit, positions=positions))
        start = config.decoder_start_token_id
        rows = [torch.tensor([start, *ids]) for ranked in self.engine.n_best(sources, search) for ids in ranked]
        return pad_sequence(rows, batch_first=True, padding_value=config.pad_token_id).to(input_ids.device)


def is_engine_name(name: str) -> bool:
    """Whether a name is an engine to export to on first use, not a directory."""
    return _NAME.fullmatch(name) is not None


def engine_identity(name: str) -> str:
    """The name of an engine itself, or the digest of all files of an export.

    Raises:
        ValueError: `name` is neither an engine nor the directory of an export.
    """
    if is_engine_name(name):
        return name
    files = _manifest(Path(name)).files
    return f"sha256 {content_digest({file: digest for file, (_, digest) in files.items()})}"


def _manifest(directory: Path) -> Manifest:
    if (manifest := export_manifest(directory)) is None:
        raise ValueError(
            f"engine: {directory} is not an exported model; choose ctranslate2, ctranslate2:int8, onnx or a directory "
            "written by recipes/export.py"
        )
    return manifest


def import_exporter(name: str) -> ModuleType:
    """The module that exports to an engine, by its `export`; a sentence has at most its `POSITIONS` tokens."""
    if name == "ctranslate2":
        from . import ctranslate2

        return ctranslate2
    if name == "marian":
        from . import marian

        return marian
    from . import onnx

    return onnx


def open_engine(directory: Path, device: torch.device) -> Engine:
    """The engine of an export by recipes/export.py."""
    if (directory / "model.bin").is_file():
        from .ctranslate2 import CTranslate2Translator

        options = {"device": "cuda", "device_index": device.index or 0} if device.type == "cuda" else {}
        return CTranslate2Translator(directory, **options)
    from .transformers_engine import TransformersTranslator

    if any(directory.glob("onnx/*.onnx")):
        from .onnx import OnnxModel

        return TransformersTranslator(OnnxModel(directory), "onnxruntime")
    return TransformersTranslator(MarianMTModel.from_pretrained(directory, trust_remote_code=False).eval(), "MarianMT")


def exported(name: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Path:
    """The export of a model in the cache of Hugging Face, made on first use or if damaged.

    Its name is the digest of everything that it depends on: weights, tokenizer, configuration, generation_config, and
    the versions of the package and of the engine's library.

    Raises:
        ImportError, ValueError: As `ExportedModel`.
    """
    _require_exportable(name, model)
    kind, _, quantization = name.partition(":")
    exporter = import_exporter(kind)
    versions = [version(name) for name in exporter.LIBRARIES]
    fields = [each for each in model.config.to_diff_dict().items() if not each[0].startswith(_NOT_EXPORTED)]
    options = sorted(f"{name}={value!r}" for name, value in (*fields, *set_options(model.generation_config).items()))
    digest = content_digest([origin(model, tokenizer), *versions, *options])
    directory = EXPORTS / f"{digest[:32]}-{name.replace(':', '-')}"
    if find_damage(directory) is None:
        return directory
    with locked(EXPORTS / "exports", "engine", wait=True):
        if (damage := find_damage(directory)) is not None:
            occasion = f"again ({damage})" if directory.exists() else "once"
            logger.warning(f"engine: exporting the model to {name} {occasion}: {directory}")
            shutil.rmtree(directory, ignore_errors=True)
            exporter.export(model, tokenizer, directory, **({"quantization": quantization} if quantization else {}))
    return directory


def _require_exportable(name: str, model: PreTrainedModel) -> None:
    """Raise a ValueError unless the model is of this package, without adapters."""
    if model.config.model_type != "vaswani":
        raise ValueError(f"engine: {name} takes models of this package, and not {model.config.model_type}")
    with torch.device("meta"):
        plain = VaswaniForConditionalGeneration(model.config)
    if plain.state_dict().keys() != model.state_dict().keys():
        raise ValueError(f"engine: {name} cannot export adapter weights; merge adapters first")


def _require_export_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, directory: Path) -> Path:
    """The directory; raises a ValueError unless it is a complete export of this model and its tokenizer."""
    recorded = _manifest(directory).notes
    if (damage := find_damage(directory)) is not None:
        raise ValueError(f"engine: {directory}: {damage}; export the model again with --force")
    origins = origin(model, tokenizer)
    del origins["package"]
    what = f"engine: {directory} was exported from another model, or in another dtype; it differs in"
    require_same_origin(recorded, origins, what, "export this model again")
    return directory

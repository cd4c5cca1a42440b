"""The engines: their names, what exports to them, and what opens exports."""

import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from huggingface_hub.constants import HF_HOME

from ..io.digests import matching_files_digest
from ..model.search_options_vaswani import SearchOptions
from .output import is_export


# Exports that are made on first use.
CACHE = Path(HF_HOME, "vaswani")

# What is exported to by its name. Everything else is a directory.
_TYPES = "int8|int8_float32|int8_float16|int8_bfloat16|int16|float16|bfloat16|float32"
_NAME = re.compile(rf"ctranslate2(:({_TYPES}))?|onnx")

_FILES = ("*.bin", "*.safetensors", "onnx/*.onnx", "*config.json", "token*.json", "*vocab*", "vmap.txt")


class Engine(Protocol):
    """An exported model that translates: `CTranslate2Translator`, `OnnxTranslator` or `MarianTranslator`."""

    @property
    def rule(self) -> Mapping[str, Any]:
        """Keywords with which `generate` of our model searches by the engine's rules."""
        ...

    def hypotheses(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        """The best hypothesis of each source; sources and hypotheses are token ids with EOS."""
        ...

    def n_best(self, sources: Sequence[Sequence[int]], search: SearchOptions | None = None) -> list[list[list[int]]]:
        """The best hypotheses of each source, the best first; by default by the export's generation_config."""
        ...


def is_engine_name(name: str) -> bool:
    """Whether this names an engine to export to on first use, not a directory."""
    return _NAME.fullmatch(name) is not None


def no_export(name: str | Path) -> ValueError:
    """The error for a name of `--engine` that is neither an engine nor an export."""
    return ValueError(
        f"engine: {name} is no export; name ctranslate2, ctranslate2:int8, onnx, or a directory that "
        "recipes/export.py made"
    )


def engine_digest(directory: str | Path) -> str:
    """Digest of the files that translations by an export depend on."""
    return f"sha256 {matching_files_digest(Path(directory), _FILES)}"


def import_exporter(name: str) -> tuple[Callable[..., Path], int]:
    """The function that exports to an engine, and the tokens of its longest sentence; imports the engine's library."""
    if name == "ctranslate2":
        from . import ctranslate2

        return ctranslate2.export_ctranslate2, ctranslate2.POSITIONS
    from . import marian

    if name == "marian":
        return marian.export_marian, marian.POSITIONS
    from .onnx import export_onnx

    return export_onnx, marian.POSITIONS


def open_engine(directory: Path, device: torch.device) -> Engine:
    """The engine of an export by recipes/export.py."""
    if (directory / "model.bin").is_file():
        from .ctranslate2_search import CTranslate2Translator

        place = {"device": "cuda", "device_index": device.index or 0} if device.type == "cuda" else {}
        return CTranslate2Translator(directory, **place)
    if any(directory.glob("onnx/*.onnx")):
        from .onnx import OnnxTranslator

        return OnnxTranslator(directory)
    if is_export(directory):
        from .marian import MarianTranslator

        return MarianTranslator(directory)
    raise no_export(directory)

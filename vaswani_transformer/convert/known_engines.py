"""The engines: their names, what exports to them and opens exports, and which were opened before; without torch."""

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from huggingface_hub.constants import HF_HOME

from ..io.digests import content_digest, matching_files_digest
from ..io.files import atomic_write
from ..io.manifests import MANIFEST_NAME, MODEL_FILES
from ..model.search_options_vaswani import SearchOptions
from .output import is_export


if TYPE_CHECKING:
    import torch


# Exports that are made on first use, and for each model and engine that were opened together, the place of the export.
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


def open_engine(directory: Path, device: "torch.device") -> Engine:
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


def remember_export(model: Path, engine: str, export: Path) -> None:
    """Keep the place of an export that was opened, by this name of the engine, with a model that passed all checks."""
    with suppress(OSError):  # without the record, the model is read once more
        CACHE.mkdir(parents=True, exist_ok=True)
        atomic_write(_record(model, engine), str(export.resolve()))


def remembered_export(model: Path, engine: str) -> Path | None:
    """The export that was opened with the same files of a model and of an engine before; None if none was."""
    try:
        place = _record(model, engine).read_text(encoding="utf-8")
    except OSError:
        return None
    # A record is found by a directory's content, which may have been elsewhere when it was opened.
    return Path(place if is_engine_name(engine) else engine)


def _record(model: Path, engine: str) -> Path:
    files = matching_files_digest(model, ("generation_config.json", MANIFEST_NAME, *MODEL_FILES))
    digest = content_digest([files, engine if is_engine_name(engine) else engine_digest(engine)])
    return CACHE / f"{digest[:32]}.opened"

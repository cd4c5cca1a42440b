"""Engines by name, and the exports that were opened with a model: what is known of them without reading the model."""

import re
from contextlib import suppress
from pathlib import Path

from huggingface_hub.constants import HF_HOME

from ..io.digests import content_digest, matching_files_digest
from ..io.files import atomic_write
from ..io.manifests import MANIFEST_NAME, MODEL_FILES


# Exports that are made on first use, and for each model and engine that were opened together, the place of the export.
CACHE = Path(HF_HOME, "vaswani")

# What is exported to by its name. Everything else is a directory.
_TYPES = "int8|int8_float32|int8_float16|int8_bfloat16|int16|float16|bfloat16|float32"
_NAME = re.compile(rf"ctranslate2(:({_TYPES}))?|onnx")

_FILES = ("*.bin", "*.safetensors", "onnx/*.onnx", "*config.json", "token*.json", "*vocab*", "vmap.txt")


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


def remember_export(model: Path, engine: str, export: Path) -> None:
    """Keep the place of an export that was opened, by this name of the engine, with a model that passed all checks."""
    with suppress(OSError):  # without the record, the model is read once more
        CACHE.mkdir(parents=True, exist_ok=True)
        atomic_write(_record(model, engine), str(export.resolve()))


def remembered_export(model: Path, engine: str) -> Path | None:
    """The export that was opened with the same files of a model and of an engine before; None if none was."""
    try:
        return Path(_record(model, engine).read_text(encoding="utf-8"))
    except OSError:
        return None


def _record(model: Path, engine: str) -> Path:
    files = matching_files_digest(model, ("generation_config.json", MANIFEST_NAME, *MODEL_FILES))
    digest = content_digest([files, engine if is_engine_name(engine) else engine_digest(engine)])
    return CACHE / f"{digest[:32]}.opened"

"""An exported model in place of the model that it was made of, for translation."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase

from ..io.files import matching_files_digest
from ..model.languages_vaswani import require_tags


_FILES = ("*.bin", "onnx/*.onnx", "*config.json", "token*.json", "*vocab*", "vmap.txt")


class SearchingEngine(Protocol):
    """What translates: `CTranslate2Translator` or `OnnxTranslator`."""

    tokenizer: PreTrainedTokenizerBase

    def hypotheses(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        """The best hypothesis of each source; sources and hypotheses are token ids with EOS."""
        ...


class ExportedModel:
    """An export with the `generate` that `translate_in_batches` calls; how it searches was decided by the export.

    Args:
        directory: The exported directory.
        config: Of the model that was exported.
        tokenizer: Of this model.
        device: Where CTranslate2 computes; onnxruntime does on the CPU.

    Raises:
        ImportError: The engine is not installed.
        ValueError: The directory is no export to CTranslate2 or ONNX, or its vocabulary is not the model's.
    """

    def __init__(
        self, directory: str | Path, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, device: torch.device
    ) -> None:
        self.engine, self.config = _open_engine(Path(directory), device), config
        self.generation_config = GenerationConfig.from_pretrained(directory)
        self.device, self.dtype = torch.device("cpu"), torch.float32  # of the tensors that `generate` takes and returns
        if self.engine.tokenizer.get_vocab() != tokenizer.get_vocab():
            raise ValueError(f"engine: {directory} was not made of this model, which has another vocabulary")

    def generate(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **_: Any) -> torch.Tensor:
        """The best translation of each source, `[batch, 1 + target]`: the start token, then up to the EOS, padded.

        Sources with more tokens than the engine has positions lose the last ones.

        Args:
            input_ids: `[batch, source]`
            attention_mask: `[batch, source]`, 1 for tokens, 0 for padding.

        Raises:
            ValueError: The model has several directions, and a source does not begin with the tag of a language.
        """
        require_tags(self.config, input_ids)
        start, end, padding = (getattr(self.config, f"{name}_token_id") for name in ("decoder_start", "eos", "pad"))
        longest = self.engine.tokenizer.model_max_length
        sources = [ids[mask.bool()].tolist() for ids, mask in zip(input_ids, attention_mask, strict=True)]
        cut = [ids if len(ids) <= longest else [*ids[: longest - 1], end] for ids in sources]
        rows = [torch.tensor([start, *ids]) for ids in self.engine.hypotheses(cut)]
        return pad_sequence(rows, batch_first=True, padding_value=padding)


def require_export(directory: Path) -> Literal["ctranslate2", "onnx"]:
    """The engine of an exported directory; raises a ValueError if it is none."""
    if (directory / "model.bin").is_file():
        return "ctranslate2"
    if any(directory.glob("onnx/*.onnx")):
        return "onnx"
    raise ValueError(f"engine: {directory} is no export to CTranslate2 or ONNX; make one with recipes/export.py")


def _open_engine(directory: Path, device: torch.device) -> SearchingEngine:
    if require_export(directory) == "ctranslate2":
        from .ctranslate2 import CTranslate2Translator

        place = {"device": "cuda", "device_index": device.index or 0} if device.type == "cuda" else {}
        return CTranslate2Translator(directory, **place)
    from .onnx import OnnxTranslator

    return OnnxTranslator(directory)


def engine_digest(directory: str | Path) -> str:
    """Digest of the files that translations by an export depend on."""
    return f"sha256 {matching_files_digest(Path(directory), _FILES)}"

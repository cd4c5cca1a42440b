"""Engines: exported models that translate, and one in place of the model that it was made of."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, GenerationConfig, PreTrainedConfig, PreTrainedTokenizerBase
from transformers.utils import logging

from ..io.digests import matching_files_digest
from ..model.languages_vaswani import Directions
from .output import is_export


logger = logging.get_logger(__name__)

_FILES = ("*.bin", "*.safetensors", "onnx/*.onnx", "*config.json", "token*.json", "*vocab*", "vmap.txt")

# What an engine does in any case; it has no other options of `generate`.
_PLAIN = {"num_return_sequences": 1, "return_dict_in_generate": False}


class Engine(Protocol):
    """An exported model that translates: `CTranslate2Translator`, `OnnxTranslator` or `MarianTranslator`."""

    @property
    def rule(self) -> Mapping[str, Any]:
        """Keywords with which `generate` of our model searches by the engine's rules."""
        ...

    def hypotheses(self, sources: Sequence[Sequence[int]]) -> list[list[int]]:
        """The best hypothesis of each source; sources and hypotheses are token ids with EOS."""
        ...


class ExportedModel:
    """An export with the `generate` that `translate_in_batches` calls; how it searches was decided by the export.

    Args:
        directory: An export by recipes/export.py.
        config: Configuration of the model that was exported.
        tokenizer: Its tokenizer.
        device: Where CTranslate2 computes; others compute on the CPU.

    Raises:
        ImportError: The engine is not installed.
        ValueError: The directory is no such export, or its vocabulary is not the model's.
    """

    def __init__(
        self, directory: str | Path, config: PreTrainedConfig, tokenizer: PreTrainedTokenizerBase, device: torch.device
    ) -> None:
        self.engine, self.config = open_engine(Path(directory), device), config
        self.generation_config = GenerationConfig.from_pretrained(directory)
        self.device, self.dtype = torch.device("cpu"), torch.float32  # as the tensors of `generate`
        exported = AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
        if exported.get_vocab() != tokenizer.get_vocab():
            raise ValueError(f"engine: {directory} was not made of this model, which has another vocabulary")
        self._positions = exported.model_max_length

    def generate(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **options: Any) -> torch.Tensor:
        """The best translation of each source, `[batch, 1 + target]`: the start token, then up to the EOS, padded.

        Sources with more tokens than the engine has positions lose the last ones, and a warning says so once.

        Args:
            input_ids: `[batch, source]`
            attention_mask: `[batch, source]`, 1 for tokens, 0 for padding.
            options: Options of `generate` that an engine lacks; each must be None or have the value of a plain call.

        Raises:
            ValueError: An option is set; or the model has several directions, and a source has no tag of a language.
        """
        for name, value in options.items():
            if value not in (None, _PLAIN.get(name)):
                raise ValueError(f"{name}: the export has decided how the engine searches; leave it out")
        Directions(self.config).require_tagged(input_ids)
        start, end = self.config.decoder_start_token_id, self.config.eos_token_id
        sources = [ids[mask.bool()].tolist() for ids, mask in zip(input_ids, attention_mask, strict=True)]
        if any(len(ids) > self._positions for ids in sources):
            logger.warning_once(
                f"a sentence has more tokens than the export takes, {self._positions}; the rest of it is not "
                "translated; divide it"
            )
        cut = [ids if len(ids) <= self._positions else [*ids[: self._positions - 1], end] for ids in sources]
        rows = [torch.tensor([start, *ids]) for ids in self.engine.hypotheses(cut)]
        return pad_sequence(rows, batch_first=True, padding_value=self.config.pad_token_id)


def open_engine(directory: Path, device: torch.device) -> Engine:
    """The engine of an export by recipes/export.py."""
    if (directory / "model.bin").is_file():
        from .ctranslate2 import CTranslate2Translator

        place = {"device": "cuda", "device_index": device.index or 0} if device.type == "cuda" else {}
        return CTranslate2Translator(directory, **place)
    if any(directory.glob("onnx/*.onnx")):
        from .onnx import OnnxTranslator

        return OnnxTranslator(directory)
    if is_export(directory):
        from .marian import MarianTranslator

        return MarianTranslator(directory)
    raise ValueError(f"engine: {directory} is no export; make one with recipes/export.py")


def engine_digest(directory: str | Path) -> str:
    """Digest of the files that translations by an export depend on."""
    return f"sha256 {matching_files_digest(Path(directory), _FILES)}"

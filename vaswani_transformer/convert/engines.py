"""An exported model in place of the model that it was made of."""

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase
from transformers.utils import logging

from ..io.digests import content_digest
from ..io.files import Json, locked
from ..model.generation_vaswani import search_options
from ..model.languages_vaswani import Directions
from ..model.search_options_vaswani import LENGTH_FIELDS
from . import known_engines
from .known_engines import import_exporter, is_engine_name, open_engine
from .length_batches import cut_to_positions


logger = logging.get_logger(__name__)

# Options of `generate` that engines have, too.
_SEARCH = {"num_beams", "length_penalty", "num_return_sequences", *LENGTH_FIELDS}

# Fields of a configuration, by their beginnings, that change no export.
_NOT_EXPORTED = ("_", "alignment_", "confidence_", "transformers_version")


class ExportedModel:
    """An export that searches in place of the model that it was made of.

    How many beams, which alpha and limit is decided as for the model: by its generation_config, and by keywords.

    Args:
        name: "ctranslate2", "ctranslate2:int8" or another dtype of weights, or "onnx", for an export in the cache of
            Hugging Face, which is made on first use; or the directory of an export by recipes/export.py.
        model: The model. CTranslate2 computes on its device, other engines on the CPU.
        tokenizer: Its tokenizer.

    Attributes:
        directory: The directory of the export.

    Raises:
        ImportError: The engine is not installed.
        ValueError: The engine cannot express the model; the directory is no export; or its vocabulary is not the
            model's.
    """

    def __init__(self, name: str | Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self.model = model
        self.directory = Path(name)
        try:
            self.directory = exported(name, model, tokenizer)
            self.engine = open_engine(self.directory, model.device)
        except ImportError as error:
            raise ImportError(f'engine: {error}; run `pip install -e ".[export]"`, for ONNX ".[onnx]"') from error
        except (RuntimeError, OSError) as error:
            raise ValueError(f"engine: {error}; remove {self.directory} if it is damaged") from error
        stock = AutoTokenizer.from_pretrained(self.directory, trust_remote_code=False)
        if stock.get_vocab() != tokenizer.get_vocab():
            raise ValueError(f"engine: {self.directory} was not made of this model, which has another vocabulary")
        self._positions = stock.model_max_length

    def generate(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, **options: Any) -> torch.Tensor:
        """The translations of each source, the best first: `[batch * num_return_sequences, 1 + target]`.

        Each is the start token, then tokens up to the EOS, padded. Sources with more tokens than the engine has
        positions lose the last ones, and a warning says so once.

        Args:
            input_ids: `[batch, source]`
            attention_mask: `[batch, source]`, 1 for tokens, 0 for padding.
            options: Keywords of `generate`; those that engines lack must be None or False.

        Raises:
            ValueError: An option is set that engines lack; or the model has several directions, and a source has no tag
                of a language.
        """
        for name in options.keys() - _SEARCH:
            if options[name] is not None and options[name] is not False:
                raise ValueError(f"{name}: engines have no such option; leave it out, or translate without an engine")
        config, search = self.model.config, search_options(self.model, options)
        search = replace(search, limit=replace(search.limit, positions=self._positions))
        Directions(config).require_tagged(input_ids)
        start = config.decoder_start_token_id
        sources = [ids[mask.bool()].tolist() for ids, mask in zip(input_ids, attention_mask, strict=True)]
        cut = cut_to_positions(sources, self._positions, logger.warning_once)
        rows = [torch.tensor([start, *ids]) for ranked in self.engine.n_best(cut, search) for ids in ranked]
        return pad_sequence(rows, batch_first=True, padding_value=config.pad_token_id).to(input_ids.device)


def exported(name: str | Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> Path:
    """The directory of a model's export; for an engine's name in the cache of Hugging Face, and made on first use.

    There it is named by the digest of all that it is made of, so that a model with other weights has another.

    Raises:
        ImportError, ValueError: As `ExportedModel`.
    """
    if not is_engine_name(str(name)):
        return Path(name)
    kind, _, quantization = str(name).partition(":")
    if model.config.model_type != "vaswani":
        raise ValueError(f"engine: {name} takes models of this package, and not {model.config.model_type}")
    with torch.device("meta"):
        plain = type(model)(model.config)
    if plain.state_dict().keys() != model.state_dict().keys():
        raise ValueError(f"engine: {name} has no place for other weights than a plain model's; merge adapters first")
    export, _ = import_exporter(kind)
    directory = known_engines.CACHE / f"{_digest(model, tokenizer)[:32]}-{str(name).replace(':', '-')}"
    if not directory.exists():
        with locked(known_engines.CACHE / "exports", "engine", wait=True):
            if not directory.exists():
                logger.warning(f"engine: {name} is made of the model, once: {directory}")
                export(model, tokenizer, directory, **({"quantization": quantization} if quantization else {}))
    return directory


def _digest(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    """Digest of weights, vocabulary, architecture and generation_config, wherever they were loaded from."""
    weights: dict[str, Json] = {}
    for name, weight in model.state_dict().items():
        content = weight.detach().cpu().reshape(-1).view(torch.uint8).numpy()
        weights[name] = hashlib.sha256(content).hexdigest()
    fields = (*model.config.to_diff_dict().items(), *model.generation_config.to_diff_dict().items())
    options = sorted(f"{name}={value!r}" for name, value in fields if not name.startswith(_NOT_EXPORTED))
    return content_digest([weights, tokenizer.get_vocab(), *options])

"""The interface of all engines; and the directory of an export, with a manifest and a tokenizer for other clients."""

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from tokenizers import Regex, Tokenizer, decoders
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from .. import __version__
from ..model.configuration_vaswani import VaswaniConfig
from ..model.search_options_vaswani import LENGTH_FIELDS, SearchOptions, set_options
from ..model.tokenization_vaswani import VaswaniTokenizer
from ..system.files import Json, atomic_directory, read_json
from ..system.manifests import Manifest, content_digest


# Vocabulary entry of an embedding row that no token uses. Text never produces it, since no run contains an inner space.
UNUSED = "<unused {}>"

# Options of the search that an engine takes at each call; an export keeps the others.
SEARCH = {"num_beams", "length_penalty", "num_return_sequences", *LENGTH_FIELDS}


class Engine(ABC):
    """An exported model that searches: `CTranslate2Translator`, or `TransformersTranslator` for ONNX and MarianMT.

    Attributes:
        rule: Keywords with which `generate` of our model searches by the engine's rules.
        batches: Number of batches to pass in one call; the engine distributes them over its threads.
        calls: Number of calls to make at the same time, so that its threads never wait for the next one.
    """

    rule: Mapping[str, Any]
    batches: int = 1
    calls: int = 1

    def hypotheses(self, sources: Sequence[Sequence[int]], **options: Any) -> list[list[int]]:
        """The best hypothesis of each source; sources and hypotheses are token ids with EOS. Arguments as `n_best`."""
        return [ranked[0] for ranked in self.n_best(sources, **options)]

    @abstractmethod
    def n_best(self, sources: Sequence[Sequence[int]], search: SearchOptions | None = None) -> list[list[list[int]]]:
        """The best hypotheses of each source, the best first.

        Args:
            sources: Token ids of each source, EOS included.
            search: Beams, hypotheses, alpha and limit; by default as in the export's generation_config.
        """


def export_manifest(directory: Path) -> Manifest | None:
    """The manifest of an export; None if the directory is not an export, or its manifest is damaged."""
    try:
        manifest = Manifest.load(directory)
    except (OSError, ValueError):
        return None
    return manifest if manifest.notes.get("is_export") is True else None


def most_positions(directory: Path) -> int:
    """Most tokens of a sentence that an export takes."""
    return cast(int, read_json(directory / "tokenizer_config.json")["model_max_length"])


@contextmanager
def export_directory(
    output: Path, force: bool, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> Iterator[Path]:
    """Yield a directory to write an export into, which becomes `output` at the end.

    Its manifest records the model and tokenizer that it was made from.

    Args:
        output: The directory to create.
        force: Whether to replace an earlier export.
        model, tokenizer: The model and tokenizer to export; they are not changed.

    Raises:
        FileExistsError: `output` exists, and `force` is false or it is not an export.
        ValueError: Another process is writing `output`; or the model has several EOS tokens.
    """
    if not isinstance(model.config.eos_token_id, int):
        raise ValueError(f"eos_token_id: an exported model has one EOS token, not {model.config.eos_token_id}")
    if force and output.exists() and export_manifest(output) is None:
        raise FileExistsError(f"output: {output} is not an exported model, so it is kept; name another directory")
    with atomic_directory(output, replace=force) as directory:
        yield directory
        notes = {"is_export": True, **origin(model, tokenizer)}
        Manifest.from_files(directory, notes=notes, has_config=True).save(directory)


def origin(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> dict[str, Json]:
    """Describe the origin of an export: digests of weights, tokenizer and fixed search options, and our version.

    The weights are those in float32; an engine takes the other options of the search at each call.
    """
    weights: dict[str, Json] = {}
    for name, weight in model.state_dict().items():
        content = weight.detach().float().cpu().reshape(-1).view(torch.uint8).numpy()
        weights[name] = hashlib.sha256(content).hexdigest()
    rules: dict[str, Json] = {**tokenizer.get_vocab()}
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        rules = _tokenizer_state(tokenizer)
    options = set_options(model.generation_config).items()
    search = {name: repr(value) for name, value in options if name not in SEARCH}
    digests: dict[str, dict[str, Any]] = {"weights": weights, "tokenizer": rules, "search": search}
    return {**{name: content_digest(value) for name, value in digests.items()}, "package": __version__}


def _tokenizer_state(tokenizer: PreTrainedTokenizerFast) -> dict[str, Any]:
    """The content of `tokenizer.json`, without the padding and truncation of the last call."""
    return {**json.loads(tokenizer.backend_tokenizer.to_str()), "padding": None, "truncation": None}


def require_fields(config: VaswaniConfig, values: Mapping[str, object], target: str) -> None:
    """Raise a ValueError if a field has a value other than the only one that `target` supports."""
    for field, value in values.items():
        if getattr(config, field) != value:
            raise ValueError(f"{field}: must be {value!r} for {target}, is {getattr(config, field)!r}")


def save_stock_tokenizer(tokenizer: PreTrainedTokenizerBase, directory: Path, positions: int) -> None:
    """Save a tokenizer so that transformers 4 and 5, `tokenizers` and transformers.js read it without this package.

    The last two do not support `split_special_tokens`: they find special tokens in text if these are in the list of
    added tokens. `tokenizer.json` therefore has them as plain entries, which are found only where the pre-tokenizer
    leaves them whole. Its decoder always drops them, and the rows of the model that no token uses, regardless of
    `skip_special_tokens`.

    Args:
        tokenizer: The tokenizer; it is not changed.
        directory: Where to save it.
        positions: Most tokens of a sequence.
    """
    tokenizer.save_pretrained(directory)
    if not isinstance(tokenizer, VaswaniTokenizer):
        return
    path = directory / "tokenizer_config.json"
    settings = {
        **read_json(path),
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": VaswaniTokenizer.model_input_names,  # version 4 would add token_type_ids
        "model_max_length": positions,
        "clean_up_tokenization_spaces": False,  # transformers.js would remove spaces before punctuation
    }
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    state = _tokenizer_state(tokenizer)
    if not tokenizer.split_special_tokens:
        Tokenizer.from_str(json.dumps(state)).save(str(directory / "tokenizer.json"))
        return
    entries, added = state["model"]["vocab"], state["added_tokens"]
    silent = [token["content"] for token in added if token["special"] and token["content"] in entries]
    state["added_tokens"] = [token for token in added if token["content"] not in silent]
    backend = Tokenizer.from_str(json.dumps(state))
    names = "|".join([*map(re.escape, silent), UNUSED.format(r"\d+")])
    rest = [] if backend.decoder is None else [backend.decoder]
    backend.decoder = decoders.Sequence([decoders.Replace(Regex(f"^(?:{names})$"), ""), *rest])
    backend.save(str(directory / "tokenizer.json"))

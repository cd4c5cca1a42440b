"""The directory of an export: its manifest, and a tokenizer for clients without this package."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from .. import __version__
from ..model.configuration_vaswani import VaswaniConfig
from ..model.tokenization_vaswani import VaswaniTokenizer
from ..system.files import Json, atomic_directory
from ..system.manifests import Manifest, content_digest


PARITY = "parity.json"

# The entry for a row of the model that no token uses. No run of text contains a space inside.
UNUSED = "<unused {}>"


# The only values of these fields that other toolkits support.
PLAIN: dict[str, object] = {
    "attention_neighborhood": None,
    "target_vocab_size": None,
    "logits_bias": False,
    "position_offset": 0,
}


def is_export(directory: Path) -> bool:
    """Whether a directory is an export, by its manifest."""
    try:
        return Manifest.load(directory).notes.get("is_export") is True
    except (OSError, ValueError):
        return False


@contextmanager
def export_directory(
    output: Path, force: bool, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase
) -> Iterator[Path]:
    """Yield a directory to write an export into, which becomes `output` at the end.

    Its manifest records the model and tokenizer that it was made from.

    Args:
        output: The directory to create.
        force: Whether to replace an earlier export.
        model, tokenizer: The model and tokenizer to export.

    Raises:
        FileExistsError: `output` exists, and `force` is false or it is not an export.
        ValueError: Another process is writing `output`.
    """
    if force and output.exists() and not is_export(output):
        raise FileExistsError(f"output: {output} is not an exported model, so it is kept; name another directory")
    with atomic_directory(output, replace=force) as directory:
        yield directory
        Manifest.from_files(directory, ("**/*",), True, is_export=True, **origin(model, tokenizer)).save(directory)


def origin(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> dict[str, Json]:
    """Describe the origin of an export: digests of the float32 weights and of the tokenizer, and our version."""
    weights: dict[str, Json] = {}
    for name, weight in model.state_dict().items():
        content = weight.detach().float().cpu().reshape(-1).view(torch.uint8).numpy()
        weights[name] = hashlib.sha256(content).hexdigest()
    rules: dict[str, Json] = {**tokenizer.get_vocab()}
    if isinstance(tokenizer, PreTrainedTokenizerFast):
        rules = json.loads(tokenizer.backend_tokenizer.to_str())
        rules["padding"] = rules["truncation"] = None  # left by the last call
    return {"weights": content_digest(weights), "tokenizer": content_digest(rules), "package": __version__}


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
    settings = json.loads(path.read_text(encoding="utf-8"))
    settings |= {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_input_names": VaswaniTokenizer.model_input_names,  # version 4 would add token_type_ids
        "model_max_length": positions,
        "clean_up_tokenization_spaces": False,  # transformers.js would remove spaces before punctuation
    }
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    state["padding"] = state["truncation"] = None  # left by the last call
    if not tokenizer.split_special_tokens:
        Tokenizer.from_str(json.dumps(state)).save(str(directory / "tokenizer.json"))
        return
    entries = state["model"]["vocab"]
    silent = [token["content"] for token in state["added_tokens"] if token["special"] and token["content"] in entries]
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] not in silent]
    backend = Tokenizer.from_str(json.dumps(state))
    names = "|".join([*map(re.escape, silent), UNUSED.format(r"\d+")])
    rest = [] if backend.decoder is None else [backend.decoder]
    backend.decoder = decoders.Sequence([decoders.Replace(Regex(f"^(?:{names})$"), ""), *rest])
    backend.save(str(directory / "tokenizer.json"))

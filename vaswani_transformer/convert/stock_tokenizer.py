"""The files of a tokenizer for clients other than this package."""

import json
import re
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders
from transformers import PreTrainedTokenizerBase

from ..model.tokenization_vaswani import VaswaniTokenizer


# The entry for a row of the model that no token uses. Text has no run with a space inside.
UNUSED = "<unused {}>"


def save_stock_tokenizer(tokenizer: PreTrainedTokenizerBase, directory: Path, positions: int) -> None:
    """Save a tokenizer so that transformers 4 and 5, `tokenizers` and transformers.js read it without this package.

    The last two know no `split_special_tokens`: they find special tokens in text if these are in the list of added
    tokens. `tokenizer.json` therefore has them as plain entries, which are found only where the pre-tokenizer leaves
    them whole. A decoder drops them, whatever `skip_special_tokens` is, and the rows of the model that no token uses.

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
    if not tokenizer.split_special_tokens:
        return
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    entries = state["model"]["vocab"]
    silent = [token["content"] for token in state["added_tokens"] if token["special"] and token["content"] in entries]
    state["added_tokens"] = [token for token in state["added_tokens"] if token["content"] not in silent]
    state["padding"] = state["truncation"] = None  # left by the last call
    backend = Tokenizer.from_str(json.dumps(state))
    names = "|".join([*map(re.escape, silent), UNUSED.format(r"\d+")])
    rest = [] if backend.decoder is None else [backend.decoder]
    backend.decoder = decoders.Sequence([decoders.Replace(Regex(f"^(?:{names})$"), ""), *rest])
    backend.save(str(directory / "tokenizer.json"))

"""Padding as the last entry of the vocabulary, as in Marian."""

import copy
import json

import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerBase

from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from ..model.tokenization_vaswani import VaswaniTokenizer
from .stock_tokenizer import UNUSED


# Weights with one row per entry of the vocabulary, by the ends of their names.
_ROWS_OF_VOCABULARY = ("shared.weight", "embed_tokens.weight", "lm_head.weight", "lm_head.bias")


def padding_last(
    model: VaswaniForConditionalGeneration, tokenizer: PreTrainedTokenizerBase
) -> tuple[VaswaniForConditionalGeneration, PreTrainedTokenizerBase]:
    """The model and its tokenizer with one entry more, padding; all other entries keep their ids.

    CTranslate2's converter for MarianMT removes the last row, because Marian's own models have padding there. Rows of
    the model without an entry of the tokenizer, padding's former one among them, get one that no text has, so that
    padding is the last of both.

    Returns:
        A new model and a new tokenizer; or the same two, if padding is the last id, the target vocabulary has another
        size or the tokenizer is not a byte-pair or word-piece `VaswaniTokenizer`.
    """
    padding, size = model.config.pad_token_id, model.config.vocab_size
    is_dictionary = isinstance(tokenizer, VaswaniTokenizer) and isinstance(
        tokenizer.backend_tokenizer.model, (models.BPE, models.WordPiece)
    )
    if padding == size - 1 or model.config.target_vocab_size is not None or not is_dictionary:
        return model, tokenizer
    config, search = copy.deepcopy(model.config), copy.deepcopy(model.generation_config)
    config.vocab_size = size + 1
    for settings in (config, search):
        for name in ("pad_token_id", "decoder_start_token_id"):
            if getattr(settings, name) == padding:
                setattr(settings, name, size)
    longer = VaswaniForConditionalGeneration(config).to(model.dtype).eval()
    weights = model.state_dict()
    for name in weights:
        if name.endswith(_ROWS_OF_VOCABULARY):
            weights[name] = torch.cat((weights[name], weights[name][padding : padding + 1]))  # [vocabulary + 1, ...]
    longer.load_state_dict(weights)
    longer.generation_config = search
    return longer, _with_padding_at(size, tokenizer)


def _with_padding_at(size: int, tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The tokenizer with padding as entry `size`, behind entries for all smaller ids."""
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    entries = {number: entry for entry, number in tokenizer.get_vocab().items()}
    entries[size] = entries.pop(tokenizer.pad_token_id)
    # All are entries of the model, because `tokenizers` numbers others anew.
    state["model"]["vocab"] = {entries.get(number, UNUSED.format(number)): number for number in range(size + 1)}
    for token in state["added_tokens"]:
        if token["content"] == tokenizer.pad_token:
            token["id"] = size
    state["padding"] = state["truncation"] = None  # of the last call
    changed = copy.deepcopy(tokenizer)
    changed._tokenizer = Tokenizer.from_str(json.dumps(state))
    return changed

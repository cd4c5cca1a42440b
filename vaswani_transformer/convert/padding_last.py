"""Reorders the vocabulary of a model and its tokenizer as in Marian: EOS first, padding last."""

import copy
import json
from typing import Any

from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerBase

from ..model.modeling_vaswani import VaswaniForConditionalGeneration
from ..model.tokenization_vaswani import VaswaniTokenizer
from .stock_tokenizer import UNUSED


# Weights with one row per entry of the vocabulary, by the ends of their names.
_ROWS_OF_VOCABULARY = ("shared.weight", "embed_tokens.weight", "lm_head.weight", "lm_head.bias")

# Fields of config and generation_config with ids of tokens: an id or nested lists of ids.
_ID_FIELDS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id")
_SEARCH_FIELDS = (
    *_ID_FIELDS,
    "forced_bos_token_id",
    "forced_eos_token_id",
    "bad_words_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
)


def padding_last(
    model: VaswaniForConditionalGeneration, tokenizer: PreTrainedTokenizerBase
) -> tuple[VaswaniForConditionalGeneration, PreTrainedTokenizerBase]:
    """The model and its tokenizer with padding as the last id; each entry behind it moves down by one.

    Translations are the same. CTranslate2's converter for MarianMT removes the last row, because Marian's own models
    have padding there. Rows of the model without an entry of the tokenizer get one, which no text has, so that padding
    is the last of both.

    Returns:
        A new model and a new tokenizer; or the same two, if padding is the last id, the target vocabulary has another
        size or the tokenizer is not a byte-pair or word-piece `VaswaniTokenizer`.

    Raises:
        ValueError: The generation_config has a `sequence_bias`, whose ids are not renumbered.
    """
    config = model.config
    padding, size = config.pad_token_id, config.vocab_size
    is_dictionary = isinstance(tokenizer, VaswaniTokenizer) and isinstance(
        tokenizer.backend_tokenizer.model, (models.BPE, models.WordPiece)
    )
    if padding == size - 1 or config.target_vocab_size is not None or not is_dictionary:
        return model, tokenizer
    if getattr(model.generation_config, "sequence_bias", None):
        raise ValueError("generation_config: sequence_bias names tokens by id, and the export has other ids; remove it")
    order = [token for token in range(size) if token != padding] + [padding]
    return _renumbered_model(model, order), _renumbered_tokenizer(tokenizer, order)


def _renumbered_model(model: VaswaniForConditionalGeneration, order: list[int]) -> VaswaniForConditionalGeneration:
    """The model whose token `n` is token `order[n]` of `model`."""
    ids = {old: new for new, old in enumerate(order)}
    config, search = copy.deepcopy(model.config), copy.deepcopy(model.generation_config)
    for settings, fields in ((config, _ID_FIELDS), (search, _SEARCH_FIELDS)):
        for field in fields:
            setattr(settings, field, _renumbered(getattr(settings, field, None), ids))
    if config.language_tags:
        config.language_tags = {code: ids[tag] for code, tag in config.language_tags.items()}
    renumbered = VaswaniForConditionalGeneration(config).to(model.dtype).eval()
    weights = model.state_dict()
    renumbered.load_state_dict(
        {name: weight[order] if name.endswith(_ROWS_OF_VOCABULARY) else weight for name, weight in weights.items()}
    )
    renumbered.generation_config = search
    return renumbered


def _renumbered(value: Any, ids: dict[int, int]) -> Any:
    """The new ids of an id or of nested lists of ids."""
    return [_renumbered(each, ids) for each in value] if isinstance(value, list) else ids.get(value, value)


def _renumbered_tokenizer(tokenizer: PreTrainedTokenizerBase, order: list[int]) -> PreTrainedTokenizerBase:
    """The tokenizer whose entry `n` is entry `order[n]` of `tokenizer`."""
    ids = {old: new for new, old in enumerate(order)}
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    entries = {number: entry for entry, number in tokenizer.get_vocab().items()}
    # All are entries of the model, because `tokenizers` numbers others anew.
    state["model"]["vocab"] = {entries.get(old, UNUSED.format(old)): new for new, old in enumerate(order)}
    for token in state["added_tokens"]:
        token["id"] = ids[token["id"]]
    for special in state["post_processor"]["special_tokens"].values():
        special["ids"] = _renumbered(special["ids"], ids)
    state["padding"] = state["truncation"] = None  # of the last call
    renumbered = copy.deepcopy(tokenizer)
    renumbered._tokenizer = Tokenizer.from_str(json.dumps(state))
    return renumbered

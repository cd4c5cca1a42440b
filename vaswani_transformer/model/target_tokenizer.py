"""Encoding of targets by tokenizers of transformers; FSMT's treats source and target differently."""

import copy

from transformers import FSMTTokenizer, PreTrainedTokenizerBase


def encodes_targets(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Whether a tokenizer can encode targets; FSMTTokenizer can only if its two vocabularies are equal."""
    if not isinstance(tokenizer, FSMTTokenizer):
        return True
    # `encoder` has the ids of source tokens, `decoder` the tokens of target ids.
    return {number: token for token, number in tokenizer.encoder.items()} == tokenizer.decoder


def for_targets(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The tokenizer to call with `text_target`: FSMTTokenizer splits words by the rules of its source language only.

    Raises:
        ValueError: It has two vocabularies, and encodes with the source's only.
    """
    if not encodes_targets(tokenizer):
        raise ValueError("target: the model's tokenizer has two vocabularies, and encodes with the source's only")
    if isinstance(tokenizer, FSMTTokenizer):
        tokenizer = copy.copy(tokenizer)
        tokenizer.src_lang = tokenizer.tgt_lang
    return tokenizer

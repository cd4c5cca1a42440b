"""Tokens as text, each on its own."""

from collections.abc import Iterable

from transformers import PreTrainedTokenizerBase


def token_texts(tokenizer: PreTrainedTokenizerBase, tokens: Iterable[int]) -> list[str]:
    """The text of each token, with its leading space if it begins a word.

    A token that holds only a part of a character's bytes keeps its name in the vocabulary.
    """
    anchor = tokenizer("a", add_special_tokens=False).input_ids  # a space at the start of a text would be stripped
    start = len(_decode(tokenizer, anchor))
    known: dict[int, str] = {}
    for token in tokens:
        if token not in known:
            text = _decode(tokenizer, [*anchor, token])[start:]
            known[token] = text if text and "\ufffd" not in text else tokenizer.convert_ids_to_tokens(token)
    return [known[token] for token in tokens]


def _decode(tokenizer: PreTrainedTokenizerBase, tokens: list[int]) -> str:
    return tokenizer.decode(tokens, clean_up_tokenization_spaces=False)

"""Tokens for display: the text of each token, and the words that they make up."""

import unicodedata
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import groupby, pairwise

from transformers import FSMTTokenizer, MarianTokenizer, PreTrainedTokenizerBase

from ..model.scores_vaswani import added_texts, begins_unspaced_word
from ..system.messages import printable


def shown_tokens(tokenizer: PreTrainedTokenizerBase, tokens: Sequence[str]) -> tuple[list[str], list[bool]]:
    """The text of each token, and whether it continues the word of the token before it.

    The texts of a word's tokens concatenate to the word. Words begin after white space, where letters, digits and other
    characters meet, and with each token of a script that writes no spaces. If byte-level tokens divide a character, the
    last token has it, and the others may have an empty text. White space alone also has an empty text. Control
    characters are escaped.

    `tokens` are entries of the vocabulary. A special token is a word, and its text is its name.
    """
    special = set(tokenizer.all_special_tokens)
    texts: list[str] = []
    continues: list[bool] = []
    for is_special, group in groupby(tokens, special.__contains__):
        run = list(group)
        spaced = [f" {name}" for name in run] if is_special else _spaced_texts(tokenizer, run)
        texts += [printable(text.strip()) for text in spaced]
        continues += _continuations(spaced)
    return texts, continues


def _spaced_texts(tokenizer: PreTrainedTokenizerBase, tokens: list[str]) -> list[str]:
    """The text of each token, with the white space before it."""
    if isinstance(tokenizer, MarianTokenizer):
        return [token.replace("\u2581", " ") for token in tokens]
    if isinstance(tokenizer, FSMTTokenizer):  # it marks ends of words
        ends = [False, *(token.endswith("</w>") for token in tokens)]
        return [" " * after_end + token.removesuffix("</w>") for after_end, token in zip(ends, tokens, strict=False)]
    return added_texts([tokenizer.convert_tokens_to_string(tokens[:stop]) for stop in range(1, len(tokens) + 1)])


def _continuations(spaced: list[str]) -> list[bool]:
    """Whether each token continues a word, given the tokens' texts with the white space before them."""
    continues: list[bool] = []
    word = ""  # as far as it is known
    for text in spaced:
        begins = not continues or text[:1].isspace()
        if word.strip() and text.strip():
            begins = begins or _kind(word.strip()[-1]) != _kind(text[0])
            begins = begins or begins_unspaced_word(text, word.strip())
        word = text if begins else word + text
        continues.append(not begins)
    return continues


def _kind(character: str) -> str:
    """Kind of a character: letter or mark, number, or other, as in the runs of `VaswaniTokenizer`."""
    return {"L": "letter", "M": "letter", "N": "number"}.get(unicodedata.category(character)[0], "other")


def word_starts(continues: Sequence[bool]) -> list[int]:
    """The index of each word's first token."""
    return [index for index, is_inside in enumerate(continues) if not is_inside]


def join_words(tokens: Sequence[str], starts: Sequence[int]) -> list[str]:
    """The text of each word; `starts` has the indices of the first tokens."""
    return ["".join(tokens[start:stop]) for start, stop in pairwise([*starts, len(tokens)])]


def token_texts(tokenizer: PreTrainedTokenizerBase, tokens: Iterable[int]) -> list[str]:
    """The text of each token, with its leading space if it begins a word.

    A token that holds only a part of a character's bytes keeps its name in the vocabulary.
    """
    decode = partial(tokenizer.decode, clean_up_tokenization_spaces=False)
    anchor = tokenizer("a", add_special_tokens=False).input_ids  # a space at the start of a text would be stripped
    start = len(decode(anchor))
    texts = ((token, decode([*anchor, token])[start:]) for token in tokens)
    return [text if text and "\ufffd" not in text else tokenizer.convert_ids_to_tokens(token) for token, text in texts]

"""BPE-dropout (Provilkov et al., 2020): random segmentations of encoded text.

The dropout of the `tokenizers` library cannot be seeded.
"""

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import pairwise
from random import Random
from typing import TypeAlias

from tokenizers import models
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from ..model.tokenization_vaswani import EOS, PAD, UNK, VaswaniTokenizer, is_vaswani_backend


_CACHED = 1 << 17  # words, and states of words, whose merges are kept

_Pieces: TypeAlias = tuple[int, ...]  # of a word
_Path: TypeAlias = list[_Pieces]


class BpeDropout:
    """Samples segmentations of encoded text by Algorithm 1 of the paper.

    A step drops each possible merge of two neighbours in a word with the given probability, and applies the best of the
    others. A word is done when no merge is left. Special tokens stay whole.

    Args:
        tokenizer: A byte-pair vocabulary of `VaswaniTokenizer.train`, from whose ids the text can be restored.
        probability: From 0, the tokenizer's own encoding, to 1, single bytes (Provilkov et al.: 0.1).

    Attributes:
        samples_targets: Whether targets are text: each entry of the vocabulary is made of bytes.

    Raises:
        ValueError: The tokenizer is of another kind.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None, probability: float) -> None:
        if not (
            isinstance(tokenizer, VaswaniTokenizer)
            and isinstance(tokenizer.backend_tokenizer.model, models.BPE)
            and is_vaswani_backend(tokenizer.backend_tokenizer)
        ):
            raise ValueError(
                "bpe_dropout: samples sub-words of a byte-pair vocabulary of VaswaniTokenizer.train, and of no other; "
                "leave it out"
            )
        self.probability = probability
        backend = tokenizer.backend_tokenizer
        vocabulary = backend.get_vocab(with_added_tokens=False)
        self._eos = tokenizer.eos_token_id
        self._pre_tokenizer = backend.pre_tokenizer
        merges = json.loads(backend.to_str())["model"]["merges"]
        self._merges = {
            (vocabulary[left], vocabulary[right]): (rank, vocabulary[left + right])
            for rank, (left, right) in enumerate(merges)
        }
        letter_bytes = {letter: byte for byte, letter in bytes_to_unicode().items()}
        others = {entry for entry in vocabulary if not letter_bytes.keys() >= set(entry)}
        self.samples_targets = not others
        self._bytes = {
            vocabulary[entry]: bytes(letter_bytes[letter] for letter in entry)
            for entry in vocabulary.keys() - others - {PAD, EOS, UNK}
        }
        self._letters = {entry: vocabulary[entry] for entry in letter_bytes}
        learned = {*self._letters.values(), *(merged for _, merged in self._merges.values())}
        self._special = {entry: (number,) for entry, number in vocabulary.items() if number not in learned}

    def sample(self, ids: Sequence[int], generator: Random, probability: float | None = None) -> list[int]:
        """Sample another encoding of the same text.

        Args:
            ids: A sentence as the tokenizer encodes it, with or without EOS.
            generator: Source of randomness.
            probability: Dropout of merges, instead of `self.probability`.

        Raises:
            ValueError: The ids are no text.
        """
        probability = self.probability if probability is None else probability
        end = [self._eos] if len(ids) and ids[-1] == self._eos else []
        sampled: list[int] = []
        try:
            text = b"".join([self._bytes[number] for number in ids[: len(ids) - len(end)]])
            # A word has a space only at its start, so that what is between spaces can be split on its own.
            start, *parts = text.split(b" ")
            for words in [self._split_words(start), *[self._split_words(b" " + part) for part in parts]]:
                for path in words:
                    sampled += self._sample_word(path, generator.random, probability)
        except (KeyError, UnicodeDecodeError):
            raise ValueError(
                "bpe_dropout: a sentence of the training corpus is not as this tokenizer encodes text; encode it anew, "
                "without truncation"
            ) from None
        return sampled + end

    @lru_cache(_CACHED)  # noqa: B019 - keeps the object alive; a training has one
    def _split_words(self, text: bytes) -> list[_Path]:
        return [self._path(word) for word, _ in self._pre_tokenizer.pre_tokenize_str(text.decode())]

    def _path(self, word: str) -> _Path:
        """The pieces of a word before its first merge, and after each one if none is dropped."""
        path: _Path = [self._special.get(word) or tuple([self._letters[letter] for letter in word])]
        while possible := self._possible_merges(path[-1]):
            path.append(_merge(path[-1], *possible[0]))
        return path

    def _sample_word(self, path: _Path, random: Callable[[], float], probability: float) -> _Pieces:
        keep, number = 1.0 - probability, random()
        if number < keep ** (len(path) - 1):  # the probability that the best merge is never dropped
            return path[-1]
        step = 0
        while number < keep ** (step + 1):
            step += 1
        pieces, dropped = path[step], 1  # here it was dropped for the first time
        while True:
            for place, merged in self._possible_merges(pieces)[dropped:]:
                # The best first, so that the others need not be drawn.
                if random() >= probability:
                    pieces, dropped = _merge(pieces, place, merged), 0
                    break
            else:
                return pieces

    @lru_cache(_CACHED)  # noqa: B019 - as above
    def _possible_merges(self, pieces: _Pieces) -> list[tuple[int, int]]:
        """Place and result of each merge of two neighbours, in the order of the merge table, then of places."""
        ranked = []
        for place, pair in enumerate(pairwise(pieces)):
            if (merge := self._merges.get(pair)) is not None:
                rank, merged = merge
                ranked.append((rank, place, merged))
        return [(place, merged) for _, place, merged in sorted(ranked)]


def _merge(pieces: _Pieces, place: int, merged: int) -> _Pieces:
    return (*pieces[:place], merged, *pieces[place + 2 :])

"""BPE-dropout (Provilkov et al., 2020): sub-words of the training pairs (5.1), sampled anew in each epoch.

A sample depends only on the seed, the epoch and the index of a pair, not on the process or worker that reads it.
The dropout of the `tokenizers` library cannot be seeded.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from random import Random
from typing import TypeAlias

import numpy as np
import torch
from datasets import Dataset
from tokenizers import models
from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from ..model.tokenization_vaswani import EOS, PAD, UNK, VaswaniTokenizer, is_vaswani_backend
from .batching import TokenBudgetBatchSampler
from .corpora import spread


_CACHED = 1 << 17  # words, and states of words, whose merges are kept
_SAMPLE = 2000  # pairs on which lengths are measured
_DEVIATIONS = 2.5  # from the mean length to the bound

_SIDES = ("input_ids", "labels")

Pair: TypeAlias = dict[str, list[int]]
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
        ValueError: The probability is another number, or it is another tokenizer.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None, probability: float) -> None:
        if not 0 <= probability <= 1:
            raise ValueError(f"bpe_dropout: must be at least 0 and at most 1, is {probability}")
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
        byte_of = {letter: byte for byte, letter in bytes_to_unicode().items()}
        others = {entry for entry in vocabulary if not byte_of.keys() >= set(entry)}
        self.samples_targets = not others
        self._bytes = {
            vocabulary[entry]: bytes(byte_of[letter] for letter in entry)
            for entry in vocabulary.keys() - others - {PAD, EOS, UNK}
        }
        self._letters = {entry: vocabulary[entry] for entry in byte_of}
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
            for words in [self._words_of(start), *[self._words_of(b" " + part) for part in parts]]:
                for path in words:
                    sampled += self._sample_word(path, generator.random, probability)
        except (KeyError, UnicodeDecodeError):
            raise ValueError(
                "bpe_dropout: a sentence of the training corpus is not as this tokenizer encodes text; encode it anew, "
                "without truncation"
            ) from None
        return sampled + end

    @lru_cache(_CACHED)  # noqa: B019 - keeps the object alive; a training has one
    def _words_of(self, text: bytes) -> list[_Path]:
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


class ResampledPairs(torch.utils.data.Dataset):
    """Training pairs whose sub-words are sampled anew in each epoch; the index of one is (epoch, row).

    No side gets longer than its bound, so that batches can be planned. A side that would is drawn again with half the
    probability, then with a quarter; after that it stays as the tokenizer encodes it. The bounds lie 2.5 standard
    deviations above the mean length, as measured on 2,000 pairs.

    Args:
        pairs: Encoded pairs; only `input_ids` and `labels` are read.
        lengths: Tokens of each source and of each target.
        limits: Upper limits of the bounds of sources and of targets; no bound is below the length itself.
        dropout: Samples the sub-words.
        seed: With epoch and row, the only source of randomness.

    Attributes:
        bounds: Greatest number of tokens of each source and of each target, in any epoch.
    """

    def __init__(
        self,
        pairs: Dataset,
        lengths: tuple[Sequence[int], Sequence[int]],
        limits: tuple[float, float],
        dropout: BpeDropout,
        seed: int,
    ) -> None:
        self.pairs = pairs.select_columns([*_SIDES])
        self.dropout = dropout
        self.seed = seed
        source, target = (np.asarray(side[:]) for side in lengths)
        unbounded = np.full(len(pairs), np.iinfo(np.int64).max)
        self.bounds = unbounded, unbounded  # while lengths are measured
        sample = spread(len(pairs), _SAMPLE)
        sampled = self.__getitems__([(0, row) for row in sample.tolist()])

        def bounds(before: np.ndarray, side: str, limit: float) -> np.ndarray:
            after = np.asarray([len(pair[side]) for pair in sampled])
            highest = np.maximum(before, limit)
            return np.clip(_length_bounds(before, before[sample], after), before, highest).astype(np.int64)

        self.bounds = bounds(source, "input_ids", limits[0]), bounds(target, "labels", limits[1])

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: tuple[int, int]) -> Pair:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[tuple[int, int]]) -> list[Pair]:
        """The pairs of a micro-batch."""
        pairs = self.pairs.__getitems__([row for _, row in indices])
        for (epoch, row), pair in zip(indices, pairs, strict=True):
            generator = Random(f"{self.seed} {epoch} {row}")
            for side, bounds in zip(_SIDES, self.bounds, strict=True):
                if side == "input_ids" or self.dropout.samples_targets:
                    pair[side] = self._draw(pair[side], bounds[row], generator)
        return pairs

    def _draw(self, ids: list[int], bound: int, generator: Random) -> list[int]:
        for share in (1.0, 0.5, 0.25):
            sampled = self.dropout.sample(ids, generator, share * self.dropout.probability)
            if len(sampled) <= bound:
                return sampled
        return ids


def _length_bounds(lengths: np.ndarray, before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """A bound for each length, given the lengths of a sample before and after sampling.

    A length is the sum over words, so that its standard deviation grows with its square root.
    """
    growth = after.sum() / before.sum()
    deviation = np.sqrt(np.mean((after - growth * before) ** 2 / np.maximum(before, 1)))
    return np.ceil(growth * lengths + _DEVIATIONS * deviation * np.sqrt(lengths))


class EpochBatches:
    """Micro-batches of `ResampledPairs`: each row with the epoch of the batch sampler."""

    def __init__(self, batches: TokenBudgetBatchSampler) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[tuple[int, int]]]:
        epoch = self.batches.epoch
        for batch in self.batches:
            yield [(epoch, row) for row in batch]

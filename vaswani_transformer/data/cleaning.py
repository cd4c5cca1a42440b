"""Encoding sentence pairs, and the filter that drops the hopeless ones and counts them by reason."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase


def encode_corpus(
    corpus: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    source_language: str,
    target_language: str,
    num_proc: int | None = None,
) -> Dataset:
    """Turn text into sub-word ids, both sides ending in EOS, white space around sentences removed.

    Returns:
        Rows of `input_ids`, `labels`, and their lengths `source_length`, `target_length`, EOS included.
    """
    languages = (source_language, target_language)

    def encode(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        source, target = ([pair[language] or "" for pair in batch["translation"]] for language in languages)
        return encode_pairs(tokenizer, source, target)

    return corpus.map(encode, batched=True, remove_columns=corpus.column_names, num_proc=num_proc, desc="Encoding")


def encode_pairs(
    tokenizer: PreTrainedTokenizerBase, source: Sequence[str], target: Sequence[str]
) -> dict[str, list[Any]]:
    """The columns of `encode_corpus` for these sentences and their translations."""
    source_ids, target_ids = (tokenizer([text.strip() for text in side]).input_ids for side in (source, target))
    return {
        "input_ids": source_ids,
        "labels": target_ids,
        "source_length": [len(ids) for ids in source_ids],
        "target_length": [len(ids) for ids in target_ids],
    }


def clean_corpus(encoded: Dataset, max_length: int = 256, max_ratio: float = 5.0) -> tuple[Dataset, dict[str, int]]:
    """Drop pairs that cannot teach anything.

    Args:
        encoded: The result of `encode_corpus`.
        max_length: Longest sentence kept on either side, in sub-words with EOS.
        max_ratio: Longest side over shortest side, in sub-words with EOS, beyond which a pair is no translation.

    Returns:
        The kept pairs, and how many were dropped as "empty", "too_long" and "ratio", and how many "kept".

    Raises:
        ValueError: Nothing is left.
    """
    # A slice, because a column is quick to read only at once.
    source, target = (np.asarray(encoded[column][:]) for column in ("source_length", "target_length"))
    kept, totals = which_to_keep(source, target, max_length, max_ratio)
    require_kept(totals)
    return encoded.select(np.flatnonzero(kept)), totals


def which_to_keep(
    source: np.ndarray, target: np.ndarray, max_length: int, max_ratio: float
) -> tuple[np.ndarray, dict[str, int]]:
    """A mask of the pairs of these lengths, `[pairs]` each, that `clean_corpus` keeps, and its counts."""
    shorter, longer = np.minimum(source, target), np.maximum(source, target)
    empty = shorter <= 1  # EOS alone
    too_long = ~empty & (longer > max_length)
    ratio = ~empty & ~too_long & (longer > max_ratio * shorter)
    kept = ~(empty | too_long | ratio)
    counts = {"empty": empty, "too_long": too_long, "ratio": ratio, "kept": kept}
    return kept, {reason: int(mask.sum()) for reason, mask in counts.items()}


def require_kept(totals: dict[str, int]) -> None:
    """Refuse a corpus of which cleaning left nothing."""
    if totals["kept"] == 0:
        raise ValueError(f"cleaning left no sentence pair: {totals}; check that the files belong together")

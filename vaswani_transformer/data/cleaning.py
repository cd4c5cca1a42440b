"""Encoding of sentence pairs, and the cleaning rules, which count what they drop by reason."""

from collections.abc import Sequence

import numpy as np
from datasets import Dataset, Features, List, Value, interleave_datasets
from transformers import PreTrainedTokenizerBase

from ..model.batches_vaswani import for_targets
from ..model.languages_vaswani import language_tag, with_tag


_IDS, _LENGTH = List(Value("int32")), Value("int32")
_FEATURES = Features({"input_ids": _IDS, "labels": _IDS, "source_length": _LENGTH, "target_length": _LENGTH})


def encode_corpus(
    corpus: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    source_language: str,
    target_language: str,
    num_proc: int | None = None,
    source_tag: str | None = None,
) -> Dataset:
    """Turn text into sub-word ids, both sides ending in EOS, white space around sentences removed.

    `source_tag` begins every source that is not blank; see `languages_vaswani`.

    Returns:
        Rows of `input_ids`, `labels`, and their lengths `source_length`, `target_length`, EOS included.
    """

    target_tokenizer = for_targets(tokenizer)

    def encode(batch: dict[str, list[dict[str, str | None]]]) -> dict[str, list]:
        sources, targets = (
            [(pair[language] or "").strip() for pair in batch["translation"]]
            for language in (source_language, target_language)
        )
        sources = [with_tag(text, source_tag) for text in sources]
        source, target = tokenizer(sources).input_ids, target_tokenizer(text_target=targets).input_ids
        lengths = {"source_length": [len(ids) for ids in source], "target_length": [len(ids) for ids in target]}
        return {"input_ids": source, "labels": target, **lengths}

    return corpus.map(
        encode,
        batched=True,
        remove_columns=corpus.column_names,
        features=_FEATURES,
        num_proc=num_proc,
        desc="Encoding",
    )


def encode_both_directions(
    corpus: Dataset, tokenizer: PreTrainedTokenizerBase, source_language: str, target_language: str
) -> Dataset:
    """Encode each pair, and after it its reverse, both with the tag of their target language."""
    directions = (source_language, target_language), (target_language, source_language)
    return interleave_datasets(
        [encode_corpus(corpus, tokenizer, *each, source_tag=language_tag(each[1])) for each in directions]
    )


def require_tags(tokenizer: PreTrainedTokenizerBase, tags: Sequence[str], name: str | None) -> None:
    """Raise a ValueError if a tag is no special token of a tokenizer, which was given by this name."""
    for tag in tags:
        ids = tokenizer(tag, add_special_tokens=False).input_ids
        if len(ids) != 1 or tokenizer.decode(ids, skip_special_tokens=True):
            raise ValueError(
                f"tokenizer: {name} has no special token {tag}, which both_directions needs; add it with "
                f"add_tokens([{tag!r}], special_tokens=True), or leave out the tokenizer, so that one is trained"
            )


def clean_corpus(encoded: Dataset, max_length: int = 256, max_ratio: float = 5.0) -> tuple[Dataset, dict[str, int]]:
    """Drop pairs with an empty side, too long a side, or sides of too different lengths.

    Args:
        encoded: The result of `encode_corpus`.
        max_length: Longest sentence kept on either side, in sub-words with EOS.
        max_ratio: Longest side over shortest side, in sub-words with EOS; pairs above this ratio are dropped.

    Returns:
        The kept pairs, and how many were dropped as "empty", "too_long" and "ratio", and how many "kept".

    Raises:
        ValueError: Nothing is left.
    """
    kept, totals = filter_pairs(encoded, max_length, max_ratio)
    require_kept(totals)
    return kept, totals


def filter_pairs(encoded: Dataset, max_length: int, max_ratio: float) -> tuple[Dataset, dict[str, int]]:
    """Clean a part of a corpus, which may leave nothing. Each rule is one mask with a name in `counts`."""
    # A slice: reading a column of a dataset row by row is slow.
    source, target = (np.asarray(encoded[column][:]) for column in ("source_length", "target_length"))
    shorter, longer = np.minimum(source, target), np.maximum(source, target)
    empty = shorter <= 1  # EOS alone
    too_long = ~empty & (longer > max_length)
    ratio = ~empty & ~too_long & (longer > max_ratio * shorter)
    kept = ~(empty | too_long | ratio)
    counts = {"empty": empty, "too_long": too_long, "ratio": ratio, "kept": kept}
    return encoded.select(np.flatnonzero(kept)), {reason: int(mask.sum()) for reason, mask in counts.items()}


def require_kept(totals: dict[str, int]) -> None:
    """Raise a ValueError if cleaning left nothing of a corpus."""
    if totals["kept"] == 0:
        raise ValueError(f"cleaning left no sentence pair: {totals}; check that the files belong together")

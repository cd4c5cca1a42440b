"""Encoding of sentence pairs, and their cleaning, which counts dropped pairs by reason."""

import numpy as np
from datasets import Dataset, Features, List, Value
from transformers import PreTrainedTokenizerBase

from ..model.languages_vaswani import with_tag
from ..model.scores_vaswani import for_targets


def encode_corpus(
    corpus: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    source_language: str,
    target_language: str,
    num_proc: int | None = None,
    source_tag: str | None = None,
) -> Dataset:
    """Turn text into sub-word ids, both sides ending in EOS, white space around sentences removed.

    Every source that is not blank begins with `source_tag`; see `languages_vaswani`.

    Returns:
        Rows of `input_ids`, `labels`, and their lengths `source_length`, `target_length`, EOS included.
    """
    ids, length = List(Value("int32")), Value("int32")
    features = Features({"input_ids": ids, "labels": ids, "source_length": length, "target_length": length})
    target_tokenizer = for_targets(tokenizer)

    def encode(batch: dict[str, list[dict[str, str]]]) -> dict[str, list]:
        sources, targets = (
            [pair[language].strip() for pair in batch["translation"]] for language in (source_language, target_language)
        )
        sources = [with_tag(text, source_tag) for text in sources]
        source, target = tokenizer(sources).input_ids, target_tokenizer(text_target=targets).input_ids
        lengths = {"source_length": [len(ids) for ids in source], "target_length": [len(ids) for ids in target]}
        return {"input_ids": source, "labels": target, **lengths}

    columns = corpus.column_names
    return corpus.map(
        encode, batched=True, remove_columns=columns, features=features, num_proc=num_proc, desc="Encoding"
    )


def clean_corpus(encoded: Dataset, max_length: int, max_ratio: float) -> tuple[Dataset, dict[str, int]]:
    """Drop pairs with an empty side, too long a side, or sides of too different lengths.

    A pair counts for the first rule that drops it. A new rule is a mask in `reasons`; its limit is an option.

    Returns:
        The kept pairs; and the numbers of pairs dropped as "empty", "too_long" and "ratio", and "kept".
    """
    # A slice: reading a column of a dataset row by row is slow.
    source, target = (np.asarray(encoded[column][:]) for column in ("source_length", "target_length"))
    shorter, longer = np.minimum(source, target), np.maximum(source, target)
    reasons = {
        "empty": shorter <= 1,  # EOS alone
        "too_long": longer > max_length,
        "ratio": longer > max_ratio * shorter,
    }
    kept, counts = np.full(len(source), True), dict[str, int]()
    for reason, is_dropped in reasons.items():
        counts[reason] = int((kept & is_dropped).sum())
        kept &= ~is_dropped
    counts["kept"] = int(kept.sum())
    if not kept.any():
        raise ValueError(f"cleaning left no sentence pair: {counts}; check that the files belong together")
    return encoded.select(np.flatnonzero(kept)), counts

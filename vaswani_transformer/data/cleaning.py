"""Encoding of sentence pairs, and the cleaning rules, which count what they drop by reason."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from datasets import Dataset, Features, List, Value
from transformers import PreTrainedTokenizerBase

from ..model.languages_vaswani import with_tag
from ..model.tokenization_vaswani import for_targets
from ..options.arguments import COUNT, Interval, option


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
        features=features,
        num_proc=num_proc,
        desc="Encoding",
    )


@dataclass(frozen=True)
class CleaningRules:
    """Rules that drop pairs of an encoded corpus; their limits are options of the recipes.

    A new rule is a mask in `reasons` and, if it has a limit, a field.
    """

    option_group = "data"

    max_length: int = option(256, "Longest sentence trained on, in sub-words.", COUNT, decides="data")
    max_ratio: float = option(
        5.0, "Longest side over shortest side of a pair trained on.", Interval(minimum=1), decides="data"
    )

    def reasons(self, source: np.ndarray, target: np.ndarray) -> dict[str, np.ndarray]:
        """`[pairs]` whether each rule drops a pair, by the rule's name in reports.

        Args:
            source: `[pairs]` lengths in sub-words with EOS.
            target: `[pairs]` lengths of the targets.
        """
        shorter, longer = np.minimum(source, target), np.maximum(source, target)
        return {
            "empty": shorter <= 1,  # EOS alone
            "too_long": longer > self.max_length,
            "ratio": longer > self.max_ratio * shorter,
        }


def clean_corpus(encoded: Dataset, rules: CleaningRules | None = None) -> tuple[Dataset, dict[str, int]]:
    """Drop pairs with an empty side, too long a side, or sides of too different lengths.

    A pair counts for the first rule that drops it. By default, the rules are `CleaningRules()`.

    Returns:
        The kept pairs; and the numbers of pairs dropped as "empty", "too_long" and "ratio", and "kept".
    """
    # A slice: reading a column of a dataset row by row is slow.
    source, target = (np.asarray(encoded[column][:]) for column in ("source_length", "target_length"))
    kept, counts = np.full(len(source), True), dict[str, int]()
    for reason, is_dropped in (rules or CleaningRules()).reasons(source, target).items():
        counts[reason] = int((kept & is_dropped).sum())
        kept &= ~is_dropped
    counts["kept"] = int(kept.sum())
    if not kept.any():
        raise ValueError(f"cleaning left no sentence pair: {counts}; check that the files belong together")
    return encoded.select(np.flatnonzero(kept)), counts


def describe_cleaning(counts: Mapping[str, int]) -> str:
    """Number of sentence pairs kept, and dropped by reason."""
    dropped = ", ".join(f"{reason} {count:,}" for reason, count in counts.items() if reason != "kept")
    return f"{counts['kept']:,} sentence pairs (dropped: {dropped})"

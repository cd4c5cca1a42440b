"""What a model is trained and scored on, encoded."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from ..model.languages_vaswani import language_tag
from .mixing import MixedCorpus


@dataclass(frozen=True)
class TrainingData:
    """What a model is trained on, and scored on.

    Attributes:
        tokenizer: The tokenizer that encoded them.
        train: Encoded pairs, cleaned: the training corpus, then the corpora that are mixed in.
        cleaning: How many pairs of the training corpus cleaning dropped, by reason, and how many it "kept".
        text: Held-out corpora, by split.
        encoded: The same, encoded. In both directions, "test_reverse" is the reverse of "test".
        language_tags: Ids of the tags, by language; None if there is one direction, and no tags.
        mixed: The corpora that are mixed in, by name.
    """

    tokenizer: PreTrainedTokenizerBase
    train: Dataset
    cleaning: dict[str, int]
    text: dict[str, Dataset]
    encoded: dict[str, Dataset]
    language_tags: dict[str, int] | None = None
    mixed: dict[str, MixedCorpus] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        tokenizer: PreTrainedTokenizerBase,
        train: Dataset,
        cleaning: dict[str, int],
        held_out: Mapping[str, Dataset],
        directions: Sequence[str],
        mixed: dict[str, MixedCorpus],
    ) -> "TrainingData":
        """Separate text and its encoding, and directions: languages if pairs and their reverses alternate, or none."""
        splits = dict(held_out)
        if directions:
            splits = {
                split + suffix: rows.select(range(first, len(rows), 2))
                for split, rows in held_out.items()
                for first, suffix in enumerate(("", "_reverse"))
            }
        return cls(
            tokenizer=tokenizer,
            train=train,
            cleaning=cleaning,
            text={split: rows.select_columns("translation") for split, rows in splits.items()},
            encoded={split: rows.remove_columns("translation") for split, rows in splits.items()},
            language_tags={code: tokenizer.convert_tokens_to_ids(language_tag(code)) for code in directions} or None,
            mixed=mixed,
        )

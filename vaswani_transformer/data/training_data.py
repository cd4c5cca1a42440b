"""What a model is trained and scored on, encoded."""

from dataclasses import dataclass, field

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

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

"""Section 6.3 of the paper: a vocabulary whose sources are words and whose targets are labels of parses."""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BatchEncoding, PreTrainedTokenizerFast

from ..model.languages_vaswani import one_at_a_time
from ..model.parse_sequence_vaswani import LABEL_MARK
from ..model.tokenization_vaswani import PAD, UNK, VaswaniTokenizer, replace_vocabulary


_FIRST_LABEL = 3  # after the special tokens


class VaswaniParsingTokenizer(VaswaniTokenizer):
    """A byte-pair vocabulary of words, with the labels of parses directly after its special tokens.

    Only targets, given as `text_target`, are encoded into labels, separated by white space. A model whose
    `target_vocab_size` is the number of labels plus 3 can generate nothing else.
    """

    @classmethod
    def train_with_labels(
        cls, corpus_iterator: Iterable[str], labels: Sequence[str], vocab_size: int
    ) -> "VaswaniParsingTokenizer":
        """Learn a vocabulary of `vocab_size` entries, the labels included, from the words of sentences.

        Raises:
            ValueError: As from `VaswaniTokenizer.train`.
        """
        tokenizer = cls.train(corpus_iterator, vocab_size, show_progress=False, reserved=len(labels))
        backend = tokenizer.backend_tokenizer
        vocabulary = {
            entry: number if number < _FIRST_LABEL else number + len(labels)
            for entry, number in backend.get_vocab().items()
        }
        # No merges lead to these entries, so text cannot name them.
        vocabulary |= {LABEL_MARK + label: number for number, label in enumerate(labels, _FIRST_LABEL)}
        replace_vocabulary(backend, vocabulary)
        return tokenizer

    @cached_property
    def _labels(self) -> PreTrainedTokenizerFast:
        """The tokenizer of targets."""
        labels = {entry[1:]: number for entry, number in self.get_vocab().items() if entry.startswith(LABEL_MARK)}
        padding = f" {PAD}"  # no word of a text equals it, since it has a space
        entries = {padding: self.pad_token_id, UNK: self.unk_token_id, **labels}
        backend = Tokenizer(models.WordLevel(entries, unk_token=UNK))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        backend.post_processor = self.backend_tokenizer.post_processor
        options = {"split_special_tokens": True, "model_input_names": self.model_input_names}
        return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token=padding, **options)

    @one_at_a_time
    def __call__(
        self, text: Any = None, text_pair: Any = None, text_target: Any = None, *args: Any, **kwargs: Any
    ) -> BatchEncoding:
        """Encode words and labels; see `transformers.PreTrainedTokenizerBase.__call__`."""
        if text_target is None:
            return super().__call__(text, text_pair, None, *args, **kwargs)
        for name in ("model_max_length", "padding_side", "truncation_side"):
            setattr(self._labels, name, getattr(self, name))
        targets = self._labels(None, None, text_target, *args, **kwargs)
        if text is None:
            return targets
        encoded = super().__call__(text, text_pair, None, *args, **kwargs)
        encoded["labels"] = targets["input_ids"]
        return encoded

"""Section 5.1 of the paper: one vocabulary shared by source and target, of byte-pair encodings or of word-pieces."""

import unicodedata
from collections.abc import Iterable, Iterator
from typing import Literal

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast


PAD, EOS, UNK = "<pad>", "</s>", "<unk>"  # ids 0, 1, 2

# A word with the space before it, a number, a run of other signs, or a single white-space character. A run ends at 100
# characters, for the word-piece search is quadratic in its length. Nothing is dropped, so joining the runs gives the text back.
_RUNS = Regex(r" ?[\p{L}\p{M}]{1,100}| ?\p{N}{1,100}| ?[^\s\p{L}\p{M}\p{N}]{1,100}|\s")

# No run has a space behind its first character, so that no text can be mistaken for a marked continuation.
_CONTINUATION = "# "


class VaswaniTokenizer(PreTrainedTokenizerFast):
    """The shared vocabulary of section 5.1; `train` makes one, `from_pretrained` loads it.

    Encoding ends every sentence, source or target, in EOS. Decoding gives back the NFC-normalised text exactly: any
    Unicode text with "bpe", which falls back to bytes; with "wordpiece", wherever no character is unknown. The names
    of special tokens are ordinary text where they occur in a sentence.
    """

    model_input_names = ["input_ids", "attention_mask"]

    @classmethod
    def train(
        cls,
        corpus_iterator: Iterable[str],
        vocab_size: int = 37000,
        model: Literal["bpe", "wordpiece"] = "bpe",
        show_progress: bool = True,
    ) -> "VaswaniTokenizer":
        """Learn a vocabulary from sentences of both languages.

        Args:
            corpus_iterator: Sentences, source and target alike; read once.
            vocab_size: Number of entries, the three special ones included (paper: 37,000 and 32,000).
            model: "bpe" (the paper's English-German) or "wordpiece" (its English-French).
            show_progress: Whether to draw progress bars.

        Raises:
            ValueError: The corpus is empty or too small for so many entries, or the model is unknown.
        """
        if model not in ("bpe", "wordpiece"):
            raise ValueError(f'model: must be "bpe" or "wordpiece", is {model!r}')
        build = _byte_pair_encoding if model == "bpe" else _word_pieces
        backend, trainer = build(vocab_size, show_progress)
        if model == "wordpiece":
            corpus_iterator = _with_every_character_inside_a_word(corpus_iterator)
        backend.train_from_iterator(corpus_iterator, trainer)
        learned = backend.get_vocab_size()
        if learned < vocab_size:
            raise ValueError(
                f"vocab_size: the corpus supports only {learned} entries, not {vocab_size}; "
                f"ask for {learned} or fewer, or train on more text"
            )
        if learned > vocab_size:
            raise ValueError(
                f"vocab_size: {vocab_size} cannot even hold the {learned} characters and special tokens of a "
                f'"{model}" vocabulary of this corpus; ask for more'
            )
        backend.post_processor = processors.TemplateProcessing(
            single=f"$A {EOS}", pair=f"$A {EOS} $B {EOS}", special_tokens=[(EOS, backend.token_to_id(EOS))]
        )
        return cls(
            tokenizer_object=backend, pad_token=PAD, eos_token=EOS, unk_token=UNK, split_special_tokens=True
        )


def _byte_pair_encoding(vocab_size: int, show_progress: bool) -> tuple[Tokenizer, trainers.Trainer]:
    backend = Tokenizer(models.BPE())
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Prepend(" ")])
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_RUNS, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, EOS, UNK],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=show_progress,
    )
    return backend, trainer


def _word_pieces(vocab_size: int, show_progress: bool) -> tuple[Tokenizer, trainers.Trainer]:
    longest_run = 101
    backend = Tokenizer(
        models.WordPiece(unk_token=UNK, continuing_subword_prefix=_CONTINUATION, max_input_chars_per_word=longest_run)
    )
    backend.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Prepend(" ")])
    backend.pre_tokenizer = pre_tokenizers.Split(_RUNS, "isolated")
    backend.decoder = decoders.Sequence(
        [decoders.Replace(Regex("^" + _CONTINUATION), ""), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size,
        special_tokens=[PAD, EOS, UNK],
        limit_alphabet=1000,  # of the rest, rare in any one pair of languages, each would cost two entries
        continuing_subword_prefix=_CONTINUATION,
        show_progress=show_progress,
    )
    return backend, trainer


def _with_every_character_inside_a_word(corpus_iterator: Iterable[str]) -> Iterator[str]:
    """The corpus, and a last line that doubles every character of it.

    A character has one entry at the start of a word and another inside: only those that were seen are learned, and a
    word with the other would be unknown.
    """
    characters: set[str] = set()
    for sentence in corpus_iterator:
        characters.update(unicodedata.normalize("NFC", sentence))
        yield sentence
    yield " ".join(2 * character for character in sorted(characters) if not character.isspace())

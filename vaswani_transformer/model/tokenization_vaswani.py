"""Section 5.1 of the paper: one vocabulary shared by source and target, byte-pair or word-piece."""

import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Literal, TextIO

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging

from .languages_vaswani import INVISIBLE, is_language_tag, one_at_a_time


_logger = logging.get_logger(__name__)

PAD, EOS, UNK = "<pad>", "</s>", "<unk>"  # ids 0, 1, 2

# White space, as Python's \s; JavaScript's is another one.
_SPACES = r"[\u0009-\u000d\u001c-\u0020\u0085\u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"
_NORMALIZER = normalizers.Sequence(
    [
        normalizers.Replace(Regex(INVISIBLE), ""),
        normalizers.NFC(),
        normalizers.Replace(Regex(_SPACES), " "),
        normalizers.Strip(),
        normalizers.Prepend(" "),
    ]
)

# Pre-tokenization: runs of letters, of digits or of other characters, each with one space before it. Saved tokenizers
# that keep other white space split it into single characters. A run has at most 100 characters, because word-piece
# search is quadratic in its length. Nothing is dropped: the concatenated runs are the text.
_LETTERS, _DIGITS, _OTHERS = r"[\p{L}\p{M}]", r"\p{N}", r"[^\s\p{L}\p{M}\p{N}]"
_LONGEST_RUN = 101  # with its space

# The start of a text, in a notation that JavaScript also knows.
_START = r"(?<![\s\S])"

# Prefix of word-pieces that continue a run. A run has a space only at its start, so that no text contains the prefix.
_CONTINUATION = "# "

# Most characters in a word-piece vocabulary. Any others are rare in a pair of languages, and each takes two entries.
_MAX_CHARACTERS = 1000


class VaswaniTokenizer(PreTrainedTokenizerFast):
    """The shared vocabulary of section 5.1; `train` learns one, `from_pretrained` loads it.

    Encoding normalises text: NFC, one space for white space of any kind and length, none at the ends, and no invisible
    characters, such as soft hyphens and byte order marks. It appends EOS to every sentence, source or target. Decoding
    restores the normalised text exactly: any text with "bpe", which falls back to bytes; with "wordpiece", text
    without unknown characters. A tokenizer that an earlier version saved keeps its normalization. "<pad>",
    "</s>" and "<unk>" in a sentence are ordinary text. Special tokens added later are encoded as one token, also by
    transformers' plain fast tokenizer, and `decode(..., skip_special_tokens=True)` drops them. Language tags, such as
    "<2de>", are special tokens at the start of a text, and ordinary text elsewhere.

    Several threads may use one tokenizer; it encodes for one thread at a time.
    """

    model_input_names = ["input_ids", "attention_mask"]

    __call__ = one_at_a_time(PreTrainedTokenizerFast.__call__)
    encode = one_at_a_time(PreTrainedTokenizerFast.encode)
    tokenize = one_at_a_time(PreTrainedTokenizerFast.tokenize)

    @classmethod
    def train(
        cls,
        corpus_iterator: Iterable[str],
        vocab_size: int = 37000,
        model: Literal["bpe", "wordpiece"] = "bpe",
        show_progress: bool = True,
        special_tokens: Sequence[str] = (),
        min_frequency: int | None = None,
        reserved: int = 0,
        split_digits: bool = False,
    ) -> "VaswaniTokenizer":
        """Learn a vocabulary from sentences of both languages.

        Args:
            corpus_iterator: Source and target sentences; read once, for "wordpiece" into a temporary file.
            vocab_size: Number of entries, the three special ones included (paper: 37,000 and 32,000).
            model: "bpe" (the paper's English-German) or "wordpiece" (its English-French), which knows the 1,000 most
                frequent characters of the corpus.
            show_progress: Whether to draw progress bars.
            special_tokens: The last entries. Each is one token wherever text names it, a language tag such as "<2de>"
                only at the start of a text; and `decode(..., skip_special_tokens=True)` drops it.
            min_frequency: How often a piece must occur in the corpus. The vocabulary may then have fewer entries.
            reserved: Number of entries, among `vocab_size`, that the caller adds.
            split_digits: Whether each digit is one token, so that a model learns to copy any number.

        Raises:
            ValueError: The corpus has too many characters for `vocab_size` or, without `min_frequency`, too little
                text; `model` is unknown; or a special token is invalid, see `add_tokens`.
        """
        if model not in ("bpe", "wordpiece"):
            raise ValueError(f'model: must be "bpe" or "wordpiece", is {model!r}')
        special_tokens = list(dict.fromkeys(special_tokens))
        others = len(special_tokens) + reserved
        learn = _learn_byte_pairs if model == "bpe" else _learn_word_pieces
        learner = Tokenizer(models.BPE() if model == "bpe" else models.WordPiece())
        learner.normalizer = _NORMALIZER
        learner.pre_tokenizer = _pre_tokenizer(learner.model, split_digits=split_digits)
        backend = learn(learner, corpus_iterator, max(vocab_size - others, 0), show_progress, min_frequency or 0)
        learned = backend.get_vocab_size() + others
        if learned < vocab_size and min_frequency is None:
            raise ValueError(
                f"vocab_size: the corpus supports only {learned} entries, not {vocab_size}; "
                f"ask for {learned} or fewer, or train on more text"
            )
        if learned > vocab_size:
            raise ValueError(
                f"vocab_size: {vocab_size} cannot hold the {learned} characters and special tokens of a "
                f'"{model}" vocabulary of this corpus; ask for {learned} or more'
            )
        backend.post_processor = processors.TemplateProcessing(
            single=f"$A {EOS}", pair=f"$A {EOS} $B {EOS}", special_tokens=[(EOS, backend.token_to_id(EOS))]
        )
        tokenizer = cls(
            tokenizer_object=backend, pad_token=PAD, eos_token=EOS, unk_token=UNK, split_special_tokens=True
        )
        tokenizer.add_tokens(special_tokens, special_tokens=True)
        return tokenizer

    def add_tokens(
        self, new_tokens: str | AddedToken | Sequence[str | AddedToken], special_tokens: bool = False
    ) -> int:
        """Add tokens at the end of the vocabulary; see `transformers.PreTrainedTokenizerBase.add_tokens`.

        Raises:
            ValueError: A special token cannot be one entry of this vocabulary: it has white space or more than 100
                characters, is not NFC-normalised or, with "bpe", not ASCII; or ordinary tokens were added before it.
        """
        tokens = [new_tokens] if isinstance(new_tokens, (str, AddedToken)) else list(new_tokens)
        special = [str(token) for token in tokens if special_tokens or getattr(token, "special", False)]
        entries = self.backend_tokenizer.get_vocab(with_added_tokens=False)
        new = [token for token in dict.fromkeys(special) if token not in entries]
        # The backend recognizes all special tokens in text or none, so that new ones become entries of its model.
        if new and self.split_special_tokens and _is_vaswani_backend(self.backend_tokenizer):
            # Loading numbers ordinary tokens after the model's entries; one more entry would change their ids.
            if ordinary := set(self.get_vocab()) - set(entries):
                raise ValueError(
                    f"special token {new[0]!r}: {min(ordinary)!r} was added before it as an ordinary token; begin "
                    f"with the tokenizer as it was trained, and add the special tokens first"
                )
            _learn_special_tokens(self.backend_tokenizer, new)
        return super().add_tokens(tokens, special_tokens=special_tokens)


def _pre_tokenizer(
    model: models.Model, special: Sequence[str] = (), split_digits: bool = False
) -> pre_tokenizers.PreTokenizer:
    """Splits text into runs and `special` tokens."""
    runs, lengths = [], {_LETTERS: 100, _DIGITS: 1 if split_digits else 100, _OTHERS: 100}
    name = _alternation(special, tag_start=_START)
    if special:
        runs, lengths = [f"(?:{name})"], {f"(?:(?!{name}){kind})": longest for kind, longest in lengths.items()}
    runs += [f" ?{kind}{{1,{longest}}}" for kind, longest in lengths.items()]
    split = pre_tokenizers.Split(Regex("|".join([*runs, r"\s"])), "isolated")
    if not isinstance(model, models.BPE):
        return split
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _alternation(special: Sequence[str], tag_start: str = "") -> str:
    """A pattern that matches the longest of the names, language tags only after the pattern `tag_start`."""
    longest_first = sorted(special, key=len, reverse=True)
    return "|".join((tag_start if is_language_tag(name) else "") + re.escape(name) for name in longest_first)


def _added_special_tokens(backend: Tokenizer) -> list[str]:
    """Special tokens that were added to the vocabulary after `train`."""
    vocabulary = backend.get_vocab(with_added_tokens=False)
    added = [token.content for token in backend.get_added_tokens_decoder().values() if token.special]
    return [name for name in added if name in vocabulary and name not in (PAD, EOS, UNK)]


def _is_vaswani_backend(backend: Tokenizer) -> bool:
    """Whether `train` made this tokenizer, rather than another library."""
    special = _added_special_tokens(backend)
    expected = [repr(_pre_tokenizer(backend.model, special, split_digits)) for split_digits in (False, True)]
    return isinstance(backend.model, (models.BPE, models.WordPiece)) and repr(backend.pre_tokenizer) in expected


def _learn_special_tokens(backend: Tokenizer, names: list[str]) -> None:
    """Make each name one entry of the model, which no other text can produce."""
    is_byte_pair = isinstance(backend.model, models.BPE)
    for name in names:
        is_piece = re.fullmatch(rf"\S{{1,{_LONGEST_RUN - 1}}}", name) and name.isprintable()
        is_normal = normalizers.NFC().normalize_str(name) == name
        if not (is_piece and is_normal and (name.isascii() or not is_byte_pair)):
            raise ValueError(
                f"special token {name!r}: must have 1 to 100 characters and no white space, be NFC-normalised and, in "
                "a byte-pair vocabulary, ASCII"
            )
    added = _added_special_tokens(backend)
    split_digits = repr(backend.pre_tokenizer) == repr(_pre_tokenizer(backend.model, added, split_digits=True))
    special = [*added, *names]
    first = max(backend.get_vocab().values()) + 1
    entries = {name: number for number, name in enumerate(names, first)}
    options = {"ignore_merges": True} if is_byte_pair else {}  # no merges lead to the new entries
    replace_vocabulary(backend, backend.get_vocab(with_added_tokens=False) | entries, **options)
    backend.pre_tokenizer = _pre_tokenizer(backend.model, special, split_digits)
    # No space is prepended to a special token at the start of a sentence.
    no_space = normalizers.Replace(Regex(rf"{_START} (?={_alternation(special)})"), "")
    steps = list(backend.normalizer)[: -1 if added else None]  # without the one for the special tokens so far
    backend.normalizer = normalizers.Sequence([*steps, no_space])


def replace_vocabulary(backend: Tokenizer, vocabulary: dict[str, int], **options: Any) -> None:
    """Replace the entries of a tokenizer's model, which its Python interface cannot do, and its options."""
    state = json.loads(backend.to_str())
    state["model"] |= {"vocab": vocabulary, **options}
    backend.model = Tokenizer.from_str(json.dumps(state)).model


def _learn_byte_pairs(
    backend: Tokenizer, corpus: Iterable[str], vocab_size: int, show_progress: bool, min_frequency: int
) -> Tokenizer:
    backend.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip(" ", 1, 0)])
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=min_frequency,
        special_tokens=[PAD, EOS, UNK],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=show_progress,
    )
    backend.train_from_iterator(corpus, trainer)
    return backend


def _learn_word_pieces(
    learner: Tokenizer, corpus: Iterable[str], vocab_size: int, show_progress: bool, min_frequency: int
) -> Tokenizer:
    with tempfile.TemporaryFile("w+", encoding="utf-8") as copy:
        characters = _frequent_characters(corpus, copy)
        if len(characters) == _MAX_CHARACTERS:
            _warn_of_lost_text(map(json.loads, copy), set(characters), learner.pre_tokenizer)
            copy.seek(0)
        # A character needs one entry for the start of a run and one for inside it. Left to the trainer, the latter
        # would be numbered in the order of a hash table, which differs between processes.
        inside = [_CONTINUATION + character for character in characters if character != " "]
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab_size,
            min_frequency=min_frequency,
            special_tokens=[PAD, EOS, UNK, *inside],
            initial_alphabet=characters,
            limit_alphabet=len(characters),
            continuing_subword_prefix=_CONTINUATION,
            show_progress=show_progress,
        )
        learner.train_from_iterator(map(json.loads, copy), trainer)
    backend = Tokenizer(
        models.WordPiece(
            learner.get_vocab(),
            unk_token=UNK,
            continuing_subword_prefix=_CONTINUATION,
            max_input_chars_per_word=_LONGEST_RUN,
        )
    )
    backend.add_special_tokens([PAD, EOS, UNK])
    backend.normalizer = learner.normalizer
    backend.pre_tokenizer = learner.pre_tokenizer
    backend.decoder = decoders.Sequence(
        [decoders.Replace(Regex("^" + _CONTINUATION), ""), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return backend


def _frequent_characters(corpus: Iterable[str], copy: TextIO) -> list[str]:
    """Characters for a word-piece vocabulary, most frequent first; writes the corpus to `copy` to read it again."""
    counts: Counter[str] = Counter()
    for sentence in corpus:
        counts.update(_NORMALIZER.normalize_str(sentence))
        copy.write(json.dumps(sentence) + "\n")
    copy.seek(0)
    return sorted(counts, key=lambda character: (-counts[character], character))[:_MAX_CHARACTERS]


def _warn_of_lost_text(corpus: Iterable[str], known: set[str], pre_tokenizer: pre_tokenizers.PreTokenizer) -> None:
    """Warn if runs with characters that are not `known`, which become "<unk>", make up 0.1 % of the text or more."""
    total = lost = 0
    for text in map(_NORMALIZER.normalize_str, corpus):
        total += len(text)
        if not known.issuperset(text):
            lost += sum(len(run) for run, _ in pre_tokenizer.pre_tokenize_str(text) if not known.issuperset(run))
    if lost >= total / 1000:
        _logger.warning(
            f"wordpiece: the vocabulary has {_MAX_CHARACTERS:,} characters, and the corpus has more, so that "
            f"{lost / total:.1%} of its text becomes {UNK}; use bpe, which knows every character"
        )

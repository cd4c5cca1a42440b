"""The corpora of one run, encoded and kept in the cache of `datasets` (5.1); see preparation.py for those of many."""

from pathlib import Path

from accelerate import PartialState
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from ..model.tokenization_vaswani import VaswaniTokenizer
from ..saved_model import load_tokenizer
from .cleaning import clean_corpus, encode_corpus
from .corpora import evenly, load_parallel_corpus, sentences
from .preparation import PreparationArguments, TrainingData


def load_corpora(args: PreparationArguments, directory: str | Path, train_tokenizer: bool) -> TrainingData:
    """Load, encode and clean the corpora.

    Args:
        args: What to load, and how.
        directory: Where the run's tokenizer lies, unless `args` give another.
        train_tokenizer: Whether it is trained first, by the main process, and saved there.

    Raises:
        ValueError: They cannot be loaded, or nothing is left to train on: as from `load_parallel_corpus`,
            `VaswaniTokenizer.train` and `clean_corpus`.
        OSError: A file is missing.
    """
    if args.streaming:
        raise ValueError("streaming: what is read through the network must be kept; name a directory with --prepared")
    corpora = {
        split: load_parallel_corpus(source, *args.languages, split, args.dataset_config, args.num_proc)
        for split, source in args.sources.items()
    }
    if args.tokenizer is None and train_tokenizer and PartialState().is_main_process:
        _train_tokenizer(corpora["train"], args).save_pretrained(directory)
    # Loaded by all, since the cache of the encoded corpus is found by what the tokenizer is made of.
    tokenizer = load_tokenizer(args.tokenizer or directory)
    encoded = {
        split: encode_corpus(corpus, tokenizer, *args.languages, args.num_proc) for split, corpus in corpora.items()
    }
    train, cleaning = clean_corpus(encoded.pop("train"), args.max_length, args.max_ratio)
    return TrainingData(tokenizer, train, cleaning, {split: corpora[split] for split in encoded}, encoded)


def _train_tokenizer(corpus: Dataset, args: PreparationArguments) -> PreTrainedTokenizerBase:
    sample = corpus.select(list(evenly(range(len(corpus)), len(corpus), args.tokenizer_sample)))
    return VaswaniTokenizer.train(sentences(sample, args.languages), args.vocab_size, args.tokenizer_model)

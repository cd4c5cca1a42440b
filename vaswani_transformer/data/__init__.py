"""Section 5.1 of the paper: sentence pairs, their cleaning, and batches of them."""

from ..io.lazy_names import lazy_names


__all__, __getattr__ = lazy_names(
    __name__,
    {
        "PreparationArguments": "preparation_arguments",
        "TokenBudgetBatchSampler": "batching",
        "TrainingData": "training_data",
        "clean_corpus": "cleaning",
        "encode_corpus": "cleaning",
        "load_corpora": "preparation",
        "load_parallel_corpus": "corpora",
        "load_prepared": "prepared_directory",
        "prepare_corpus": "preparation",
        "sentences": "corpora",
    },
)

"""Held-out sentences that also occur in the training corpus, which a model may have memorized."""

from collections.abc import Iterator, Mapping, Sequence
from unicodedata import normalize

from datasets import Dataset


def count_in_train(
    train: Dataset, held_out: Mapping[str, Dataset], languages: Sequence[str]
) -> dict[str, dict[str, int]]:
    """Count the sentences of held-out corpora that the training corpus has.

    Case, white space and the form of Unicode are ignored. Memory grows with the held-out corpora alone.

    Returns:
        For each held-out corpus, the number of "sentences" that are not blank, and of "pairs", "sources" and "targets"
        that the training corpus has.
    """
    pairs = {split: [pair for pair in _pairs(corpus, languages) if all(pair)] for split, corpus in held_out.items()}
    distinct = {pair for each in pairs.values() for pair in each}
    missing: list[set] = [distinct, *({pair[side] for pair in distinct} for side in (0, 1))]
    for pair in _pairs(train, languages):
        for texts, text in zip(missing, (pair, *pair), strict=True):
            texts.discard(text)
    return {
        split: {
            "sentences": len(each),
            "pairs": sum(pair not in missing[0] for pair in each),
            "sources": sum(source not in missing[1] for source, _ in each),
            "targets": sum(target not in missing[2] for _, target in each),
        }
        for split, each in pairs.items()
    }


def describe_in_train(counts: Mapping[str, Mapping[str, int]]) -> str:
    """The result of `count_in_train` in words; empty without held-out corpora."""
    return "; ".join(
        f"{each['pairs']:,} pairs, {each['sources']:,} sources, {each['targets']:,} targets of the {split} set's "
        f"{each['sentences']:,}"
        for split, each in counts.items()
    )


def _pairs(corpus: Dataset, languages: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The pairs, in the form in which they are compared."""
    source, target = languages
    for batch in corpus.iter(batch_size=1000):
        for pair in batch["translation"]:
            yield _comparable(pair[source]), _comparable(pair[target])


def _comparable(text: str) -> str:
    return " ".join(normalize("NFC", text).casefold().split())

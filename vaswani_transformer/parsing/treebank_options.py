"""Options of treebanks (6.3), which are parsed without the code that reads treebanks."""

from dataclasses import dataclass

from ..options.arguments import COUNT, option


@dataclass(frozen=True)
class TreebankOptions:
    """Treebanks, their preparation and their vocabulary."""

    option_group = "data"

    train: list[str] | None = option(
        None, "Files of gold trees (plain, .gz, .bz2, .xz), or the embedded 'demo'.", decides="inputs"
    )
    silver: list[str] | None = option(None, "Files of a parser's own trees, to train on as well.", decides="inputs")
    gold_copies: int = option(
        1, "How often the gold trees count in an epoch, beside the silver ones.", COUNT, decides="inputs"
    )
    validation: list[str] | None = option(None, "As train.", decides="inputs")
    test: list[str] | None = option(None, "As train.", decides="inputs")
    source_language: str = option("en", "Code of the language of the words.", decides="data")
    vocab_size: int = option(16_000, "Entries of the vocabulary, labels included.", COUNT, decides="data")
    keeps_tags: bool = option(
        True, "Write words as their tags; otherwise as XX, as Vinyals et al. (2015) did.", decides="inputs"
    )

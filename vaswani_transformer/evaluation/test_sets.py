"""Test sets from files or, by name, from sacreBLEU; the variants of newstest2014."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from pathlib import Path

import sacrebleu
from sacrebleu.utils import SACREBLEU_DIR

from ..data.text_files import read_lines


_VARIANTS = {3003: "full", 2737: "filtered"}

# Digests of English sentences that are in both variants for every language pair.
_DIGESTS = {"68fc434da998ebde", "ea0eb6db2d703810", "9b4732563cb28881"}


@dataclass(frozen=True)
class TestSet:
    """Lines to translate and score.

    Attributes:
        name: sacreBLEU's name and the languages, or the names of the files.
        languages: Codes of the source and target language.
        source_file: File of the source sentences, if given.
        reference_files: Files of the references.
        sources: Source sentences, if given.
        references: One or several for each sentence, the same number for all.
    """

    name: str
    languages: tuple[str, str]
    source_file: Path | None
    reference_files: list[Path]
    sources: list[str] | None
    references: list[list[str]]

    @cached_property
    def newstest2014(self) -> str | None:
        """The result of `newstest2014_variant`."""
        return newstest2014_variant(self.name, self.sources or [], [texts[0] for texts in self.references])

    def __str__(self) -> str:
        lines = f"{len(self.references):,} lines"
        if self.newstest2014 is None:
            return f"{self.name}: {lines}"
        others = "neither the full 3,003 nor the filtered 2,737: its BLEU is not comparable with published values"
        return f"newstest2014: {lines} ({others if self.newstest2014 == 'altered' else self.newstest2014})"

    def read_hypotheses(self, path: Path) -> list[str]:
        """Read translations of the test set; raises a ValueError if their number differs."""
        return _read_as_many("hypotheses", path, self.reference_files[0], len(self.references))


def read_test_set(
    source: Path | None, references: Sequence[Path], languages: tuple[str, str], name: str | None = None
) -> TestSet:
    """Read a test set from its files.

    The default name is made of the file names. Each file of references has one translation of every sentence.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The files differ in their numbers of lines, or have none.
    """
    first, *others = references
    lines = _read("reference", first)
    if not lines:
        raise ValueError(f"reference: {first} has no lines")
    streams = [lines, *(_read_as_many("reference", file, first, len(lines)) for file in others)]
    return TestSet(
        name=name or ", ".join(file.name for file in (source, *references) if file),
        languages=languages,
        source_file=source,
        reference_files=[*references],
        sources=_read_as_many("source", source, first, len(lines)) if source else None,
        references=[list(texts) for texts in zip(*streams, strict=True)],
    )


def read_text(text: str, references: str | None) -> tuple[list[str], list[str] | None]:
    """The lines of the option `text`, and their translations, if there are any.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The text is blank, or there are more or fewer translations.
    """
    lines = _read("text", Path(text))
    if not any(map(str.strip, lines)):
        raise ValueError(f"text: there is nothing in {text} to translate")
    if references is None:
        return lines, None
    return lines, _read_as_many("references", Path(references), Path(text), len(lines))


def _read(option: str, path: Path) -> list[str]:
    if not path.is_file():
        raise FileNotFoundError(f"{option}: there is no file {path}")
    return list(read_lines(path))


def _read_as_many(option: str, path: Path, reference: Path, count: int) -> list[str]:
    lines = _read(option, path)
    if len(lines) != count:
        raise ValueError(
            f"{path} has {len(lines)} lines but {reference} has {count}; line n of one must translate line n of the "
            f"other"
        )
    return lines


def sacrebleu_test_set(name: str, languages: tuple[str, str]) -> TestSet:
    """Read a test set of sacreBLEU, downloading it unless it is in sacreBLEU's cache.

    Raises:
        ValueError: There is no such test set, or not for these languages.
        ConnectionError: It cannot be downloaded.
    """
    pair = "-".join(languages)
    if name not in sacrebleu.get_available_testsets():
        raise ValueError(
            f"test_set: sacreBLEU has no {name!r}; `sacrebleu --list` names all; newstest2013 is called wmt13, and "
            f"newstest2014 wmt14/full or, filtered, wmt14"
        )
    pairs = sacrebleu.get_langpairs_for_testset(name)
    if pair not in pairs:
        raise ValueError(f"source_language, target_language: {name} has no {pair}, only {', '.join(sorted(pairs))}")
    try:
        source = sacrebleu.get_source_file(name, pair)
        references = sacrebleu.get_reference_files(name, pair)
    except (OSError, SystemExit) as error:
        raise ConnectionError(
            f"test_set: {name} is not in {SACREBLEU_DIR} and cannot be downloaded ({error}); run `sacrebleu --download "
            f"{name} -l {pair}` where there is a network, or give --source and --reference"
        ) from None
    return read_test_set(Path(source), list(map(Path, references)), languages, f"{name}, {pair}")


def newstest2014_variant(name: str, *sides: Sequence[str]) -> str | None:
    """The variant of newstest2014, if a test set is one; BLEU is not comparable across variants.

    Args:
        name: Name of the set or of its file. A name that contains "newstest2014" identifies the set.
        sides: The lines of its source and of its reference. English lines identify the set under any name.

    Returns:
        "full" (3,003 lines), "filtered" (2,737), "altered" (any other number); None for another set.
    """
    named = "newstest2014" in name
    if not (named or any({_digest(line) for line in side} >= _DIGESTS for side in sides)):
        return None
    return _VARIANTS.get(len(sides[-1]), "altered")


def _digest(line: str) -> str:
    """Digest of letters and digits only, so that quotes, spaces and tokenization do not matter."""
    return sha256("".join(re.findall(r"\w", line.lower())).encode()).hexdigest()[:16]

"""Test sets from files or, by name, from sacreBLEU."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import sacrebleu

from ..data.text_files import read_lines
from ..model.languages_vaswani import base_language


@dataclass(frozen=True)
class TestSet:
    """Lines to translate and score.

    Attributes:
        name: sacreBLEU's name and the languages, or the names of the files.
        languages: Codes of the source and target language.
        sources: Source sentences; None if unknown.
        references: One or several for each sentence, the same number for all.
    """

    name: str
    languages: tuple[str, str]
    sources: list[str] | None
    references: list[list[str]]

    def __str__(self) -> str:
        return f"{self.name}: {len(self.references):,} lines"

    def read_hypotheses(self, path: str | Path) -> list[str]:
        """Read translations of the test set; raises a ValueError if their number differs."""
        return _read_as_many(path, self.name, len(self.references))


def read_test_set(
    source: str | Path | None,
    references: Sequence[str | Path],
    languages: tuple[str, str],
    name: str | None = None,
) -> TestSet:
    """Read a test set from its files.

    The default name combines the file names. Each file of references has one translation of every sentence.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The files differ in their numbers of lines, or have no text.
    """
    first, *others = references
    lines, _ = read_text(first)
    streams = [lines, *(_read_as_many(file, str(first), len(lines)) for file in others)]
    return TestSet(
        name=name or ", ".join(Path(file).name for file in (source, *references) if file),
        languages=languages,
        sources=_read_as_many(source, str(first), len(lines)) if source else None,
        references=[list(texts) for texts in zip(*streams, strict=True)],
    )


def read_text(text: str | Path, references: str | None = None) -> tuple[list[str], list[str] | None]:
    """The lines of a text, and their translations, if a file has them.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The text is blank, or there are more or fewer translations.
    """
    lines = list(read_lines(Path(text)))
    if not any(map(str.strip, lines)):
        raise ValueError(f"{text} has no text; name another file")
    return lines, None if references is None else _read_as_many(references, str(text), len(lines))


def _read_as_many(path: str | Path, other: str, count: int) -> list[str]:
    lines = list(read_lines(Path(path)))
    if len(lines) != count:
        raise ValueError(f"{path} has {len(lines)} lines but {other} has {count}; line n of one must translate line n")
    return lines


def sacrebleu_test_set(name: str, languages: tuple[str, str]) -> TestSet:
    """Read a test set of sacreBLEU, downloading it unless it is in sacreBLEU's cache.

    Raises:
        ValueError: There is no such test set, not for these languages, or it cannot be downloaded.
    """
    pair = "-".join(map(base_language, languages))
    try:
        source = sacrebleu.get_source_file(name, pair)
        references = sacrebleu.get_reference_files(name, pair)
    except (Exception, SystemExit) as error:  # sacreBLEU's errors have no narrower type
        raise ValueError(
            f"test_set: sacreBLEU does not provide {name} for {pair} ({error}); `sacrebleu --list` names all, "
            f"newstest2013 as wmt13, newstest2014 as wmt14/full; without network, give --source and --reference"
        ) from error
    return read_test_set(source, references, languages, f"{name}, {pair}")

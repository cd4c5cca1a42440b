"""The source and the target language of corpora: by options, by models, and by the names of text files."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import langcodes
from transformers import PreTrainedConfig

from ..model.languages_vaswani import Directions, base_language, is_same_language, language_name, standard_code
from .sources import Names, TextFiles, find_source
from .text_files import COMPRESSED


_CODE = re.compile(r"[a-z]{2,3}(_\w+|-[A-Z]\w*)?")  # "de-en" is a pair
_OTHER_SUFFIXES = ("src", "in", "sh")  # also codes, of a Sardinian dialect and, formerly, of Indonesian and Serbian


def choose_languages(
    corpora: Iterable[Names],
    source: str | None = None,
    target: str | None = None,
    models: Sequence[PreTrainedConfig] = (),
    is_required: bool = False,
) -> tuple[str, str]:
    """Settle the source and the target language of corpora.

    A language that is not given is the first model's, or else that of the suffix of two text files, such as train.en
    and train.de. If that model has several directions and no language is given, the suffixes choose among them.

    Args:
        corpora: The corpora, by their files or names.
        source, target: Codes of the languages, if they are given.
        models: Configurations of models that must translate between the languages.
        is_required: Whether to refuse a first model of several directions if nothing chooses one of them; otherwise its
            default direction counts.

    Raises:
        ValueError: A language is not known, is given by name instead of its code, or contradicts a suffix or a model;
            or both are the same.
    """
    for option, name in (("source_language", source), ("target_language", target)):
        if name and not langcodes.tag_is_valid(standard_code(name)):
            with suppress(LookupError):
                raise ValueError(f"{option}: {name} is the name of a language; give its code, {langcodes.find(name)}")
    suffixes = list(_suffixes(corpora))
    if models:
        directions = Directions(models[0])
        if source is None and target is None and getattr(models[0], "language_tags", None):
            codes = {side: code for side, _, code in suffixes}
            source, target = codes.get(0), codes.get(1)
        defaults = directions.languages(directions.tag(source, target, is_required))
        source, target = source or defaults[0], target or defaults[1]
    for config in models:
        Directions(config).tag(source, target)
    return _agreed(suffixes, source, target)


def _agreed(suffixes: Iterable[tuple[int, Path, str]], source: str | None, target: str | None) -> tuple[str, str]:
    """The languages, completed by suffixes; raises a ValueError unless they are known, different and agree."""
    options, languages = ("source_language", "target_language"), [source, target]
    for side, file, code in suffixes:
        language = languages[side] = languages[side] or code
        if language_in_name(language) and not is_same_language(code, language):
            raise ValueError(
                f"{options[side]}: is {language}, but {file} is in {code}; give the source first, or the languages "
                f"of the corpora"
            )
    if missing := [option for option, language in zip(options, languages, strict=True) if not language]:
        raise ValueError(
            f"{', '.join(missing)}: cannot be inferred from the suffix of a text file, such as train.en; give "
            f"{' and '.join(f'--{option}' for option in missing)}"
        )
    first, second = map(str, languages)
    if standard_code(first) == standard_code(second):
        raise ValueError(f"{', '.join(options)}: both are {first!r}; name two languages")
    return first, second


def _suffixes(corpora: Iterable[Names]) -> Iterator[tuple[int, Path, str]]:
    """Text files that are named after a language: the side, 0 for the source; the file; and the code."""
    for source in map(find_source, corpora):
        files = (source.source, source.target) if isinstance(source, TextFiles) else ()
        for side, file in enumerate(files):
            if (code := language_in_name(file.name)) is not None:
                yield side, file, code


def language_in_name(name: str) -> str | None:
    """The language code at the end of a file's name, before suffixes of archives; None without one.

    Since "new", "raw" and "tgt" are codes, a three-letter code counts only if it has a two-letter equivalent, or the
    language has at least ten million speakers.
    """
    parts = [part for part in name.split(".") if f".{part.lower()}" not in (*COMPRESSED, ".txt")]
    code = parts[-1] if parts else ""
    code = code.lower() if code.isupper() else code
    if not _CODE.fullmatch(code) or language_name(code) == code:
        return None
    base = base_language(code)
    is_likely = len(base) == 2 or len(code) > 3 or langcodes.get(base).speaking_population() >= 1e7
    return code if is_likely and code not in _OTHER_SUFFIXES else None

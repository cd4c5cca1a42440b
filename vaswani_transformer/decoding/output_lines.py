"""Translations as recipes/translate.py writes them: lines of text or of JSON."""

import json
from collections.abc import Mapping

from ..model.languages_vaswani import Directions
from .translation_options import TranslationOptions


class OutputLines:
    """Makes lines of translations.

    Args:
        directions: The model's.
        options: What to write.

    Raises:
        ValueError: The output is JSON, and no language is named of a model of several directions.
    """

    def __init__(self, directions: Directions, options: TranslationOptions) -> None:
        self._directions = directions
        self._columns: tuple[str, str] | None = None  # for source and target in JSON
        if options.writes_json:
            source, target = directions.languages(directions.tag(None, options.target_language, is_required=True))
            self._columns = source or "source", target or "target"

    def line(self, source: str, translation: str, facts: Mapping[str, object]) -> bytes:
        """The line of a translation, line feed included.

        In JSON it has the `facts`, and the source without the tag of a language, which training adds itself.
        """
        # One line for every tool, because some take U+2028 and similar characters for line ends.
        text = " ".join(translation.splitlines())
        if self._columns is not None:
            source = " ".join(self._directions.split(source)[1].splitlines())
            text = json.dumps({self._columns[0]: source, self._columns[1]: text, **facts}, ensure_ascii=False)
        return text.encode() + b"\n"

"""Translation of lines into lines of text or of JSON, as recipes/translate.py writes them."""

import json

import numpy as np
import torch
from tqdm.auto import tqdm

from ..engines.exported_model import ExportedModel
from ..model.languages_vaswani import Directions
from ..model.pipeline_vaswani import Translation, translate_in_batches
from .ensemble import Ensemble
from .phrases import with_forced_words
from .saved_model import SavedModel
from .translation_options import TranslationOptions


class LineTranslator:
    """Translates lists of lines, with models that are loaded once.

    Args:
        models: The model, followed by the other models of an ensemble.
        options: Options of translation.

    Raises:
        ValueError: The output is JSON, and no target language is named for a model with several directions.
    """

    def __init__(self, models: list[SavedModel], options: TranslationOptions) -> None:
        saved, *ensemble = models
        self._options, self._tokenizer = options, saved.tokenizer
        self._directions = Directions(saved.config)
        self._columns: tuple[str, str] | None = None  # for source and target in JSON
        if options.writes_json:
            tag = self._directions.tag(None, options.target_language, is_required=True)
            source, target = self._directions.languages(tag)
            self._columns = source or "source", target or "target"
        self.model = options.load(saved)
        self._generate_kwargs = with_forced_words(options.generate_kwargs, saved.tokenizer)
        if options.engine is not None:
            self._generate_kwargs["engine"] = ExportedModel(options.engine, self.model, saved.tokenizer).generate
        if ensemble:
            self._generate_kwargs["custom_generate"] = Ensemble([options.load(each) for each in ensemble])

    def translate(self, number: int, lines: list[str], bar: tqdm | None = None) -> list[bytes]:
        """Translate a list of lines, stripped of white space as in training.

        Samples depend on the `number` of the list and the seed, not on the process or on other lists. The `bar` counts
        the lines.

        Returns:
            For each line in order, a line for each of its `num_return_sequences` translations, line feed included.
        """
        options = self._options
        torch.manual_seed(int(np.random.SeedSequence([options.seed, number]).generate_state(1)[0]))
        sources = [line.strip() for line in lines]
        translations: list[list[bytes]] = [[] for _ in sources]
        for indices, hypotheses in translate_in_batches(
            self.model,
            self._tokenizer,
            sources,
            options.tokens_per_batch,
            target_language=options.target_language,
            split_sentences=options.split_sentences,
            return_scores=options.return_scores,
            return_alignment=options.return_alignment,
            **self._generate_kwargs,
        ):
            for index, each in zip(indices, hypotheses, strict=True):
                translations[index] = [self._line(sources[index], translation) for translation in each]
            if bar is not None:
                bar.update(len(indices))
        return [line for each in translations for line in each]

    def _line(self, source: str, translation: Translation) -> bytes:
        """The line of a translation: its text; or JSON with the scores, and the source without a language tag."""
        text = _one_line(translation.text)
        if self._columns is not None:
            source_column, target_column = self._columns
            record = {source_column: _one_line(self._directions.split(source)[1]), target_column: text}
            scores = translation.score.line if translation.score else {}
            text = json.dumps({**record, **scores}, ensure_ascii=False)
        return text.encode() + b"\n"


def _one_line(text: str) -> str:
    """Replace U+2028 and similar characters, which some tools take for line ends."""
    return " ".join(text.splitlines())

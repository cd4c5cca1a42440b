"""Translation of lines into lines of text or of JSON, as recipes/translate.py writes them."""

import json
from collections.abc import Mapping

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
        self._output = OutputLines(Directions(saved.config), options)
        self.model = options.load(saved)
        self._generate_kwargs = with_forced_words(options.generate_kwargs, saved.tokenizer)
        if options.engine is not None:
            engine = ExportedModel(options.engine, self.model, saved.tokenizer)
            self._generate_kwargs["engine"] = engine.generate
        if ensemble:
            self._generate_kwargs["custom_generate"] = Ensemble([options.load(each) for each in ensemble])

    def translate(self, number: int, lines: list[str], bar: tqdm | None = None) -> list[bytes]:
        """Translate a list of lines, stripped of white space as in training.

        Samples depend on the `number` of the list and the seed, not on the process or on other lists. The `bar` counts
        the lines.

        Returns:
            For each line in order, the output of `OutputLines` for each of its `num_return_sequences` translations.
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
        return self._output.line(source, translation.text, translation.score.line if translation.score else {})


class OutputLines:
    """Formats translations as lines.

    Args:
        directions: Directions of the model.
        options: Options of the output.

    Raises:
        ValueError: The output is JSON, and no target language is named for a model with several directions.
    """

    def __init__(self, directions: Directions, options: TranslationOptions) -> None:
        self._directions = directions
        self._columns: tuple[str, str] | None = None  # for source and target in JSON
        if options.writes_json:
            source, target = directions.languages(directions.tag(None, options.target_language, is_required=True))
            self._columns = source or "source", target or "target"

    def line(self, source: str, translation: str, facts: Mapping[str, object]) -> bytes:
        """The line of a translation, line feed included.

        In JSON it has the `facts`, and the source without a language tag, which training adds itself.
        """
        # Some tools take U+2028 and similar characters for line ends.
        text = " ".join(translation.splitlines())
        if self._columns is not None:
            source = " ".join(self._directions.split(source)[1].splitlines())
            text = json.dumps({self._columns[0]: source, self._columns[1]: text, **facts}, ensure_ascii=False)
        return text.encode() + b"\n"

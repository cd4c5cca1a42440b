"""Translation of lines into lines of text or of JSON, as recipes/translate.py writes them."""

import json
from collections.abc import Iterator

import numpy as np
import torch
from accelerate import PartialState
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from ..convert.engines import ExportedModel
from ..model.ensemble import Ensemble
from ..model.languages_vaswani import split_tag
from ..model.pipeline_vaswani import in_order, translate_in_batches
from ..model.saved_model import SavedModel
from ..model.scores_vaswani import TranslationScore
from .translation_options import TranslationOptions


class LineTranslator:
    """Translates lists of lines, with models that are loaded once.

    Args:
        models: The model, followed by the other models of an ensemble.
        options: How to translate.
    """

    def __init__(self, models: list[SavedModel], options: TranslationOptions) -> None:
        saved, *ensemble = models
        self.tokenizer = saved.tokenizer
        self.model: PreTrainedModel | ExportedModel
        if options.engine is None:
            self.model = options.load(saved)
        else:
            self.model = ExportedModel(options.engine, saved.config, saved.tokenizer, PartialState().device)
        self._options, self._columns = options, options.columns(saved.config)
        self._generate_kwargs = options.generate_kwargs
        if ensemble:
            self._generate_kwargs["custom_generate"] = Ensemble([options.load(each) for each in ensemble])

    def translate(self, number: int, lines: list[str], bar: tqdm | None = None) -> list[bytes]:
        """Translate a list of lines, stripped of white space as in training.

        Args:
            number: What is sampled depends on this number and the seed, not on the process or on other lists.
            lines: The lines.
            bar: Counts the lines.

        Returns:
            For each line in order, a line for each of its `num_return_sequences` translations, line feed included. In
            JSON the source is without the tag of a language, which training adds itself.
        """
        options, config = self._options, self.model.config
        torch.manual_seed(int(np.random.SeedSequence([options.seed, number]).generate_state(1)[0]))
        sentences = [line.strip() for line in lines]

        def batches() -> Iterator[tuple[list[int], list[list]]]:
            for batch in translate_in_batches(
                self.model,
                self.tokenizer,
                sentences,
                options.tokens_per_batch,
                target_language=options.target_language,
                split_sentences=options.split_sentences,
                return_scores=options.return_scores,
                return_alignment=options.return_alignment,
                **self._generate_kwargs,
            ):
                yield batch
                if bar is not None:
                    bar.update(len(batch[0]))

        sources = sentences if self._columns is None else [split_tag(config, sentence)[1] for sentence in sentences]
        translations = zip(sources, in_order(batches()), strict=True)
        return [_line(source, each, self._columns) for source, hypotheses in translations for each in hypotheses]


def _line(source: str, hypothesis: str | tuple[str, TranslationScore], columns: tuple[str, str] | None) -> bytes:
    target, score = hypothesis if isinstance(hypothesis, tuple) else (hypothesis, None)
    # One line for every tool, because some take U+2028 and similar characters for line ends.
    source, target = (" ".join(text.splitlines()) for text in (source, target))
    if columns is not None:
        facts = {} if score is None else score.line
        target = json.dumps({columns[0]: source, columns[1]: target, **facts}, ensure_ascii=False)
    return target.encode() + b"\n"

"""Translation of lines by an export for CTranslate2 alone; it imports no torch, which takes seconds."""

import logging
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

from tokenizers import Tokenizer
from tqdm.auto import tqdm

from ..convert.known_engines import remembered_export
from ..convert.length_batches import cut_to_positions
from ..io.files import read_json
from ..launch.memory import keep_freed_memory
from ..model.languages_vaswani import Directions, require_text, split_paragraphs, warn_of_long_sentences
from ..model.search_options_vaswani import SearchOptions, similar_length_batches
from .output_lines import OutputLines
from .translation_options import TranslationOptions


if TYPE_CHECKING:
    from ..convert.ctranslate2_search import CTranslate2Translator

_warn_once = cache(logging.getLogger(__name__).warning)


def open_remembered_engine(options: TranslationOptions) -> "EngineTranslator | None":
    """The export in the cache that translates as the options ask; None if they need the model, or torch.

    The model has passed all checks when its export was opened first, and its files are the same since.
    """
    model = Path(options.model)
    needs_model = options.return_scores or options.return_alignment or options.trust_remote_code
    if options.engine is None or needs_model or not model.is_dir():
        return None
    export = remembered_export(model, options.engine)
    if export is None or not (export / "model.bin").is_file():
        return None
    try:
        import ctranslate2

        from ..convert.ctranslate2_search import CTranslate2Translator

        if ctranslate2.get_cuda_device_count():  # torch chooses the device
            return None
        engine = CTranslate2Translator(export)
    except (ImportError, OSError, RuntimeError):  # which the model's own way to the engine explains
        return None
    keep_freed_memory()
    return EngineTranslator(model, engine, Tokenizer.from_file(str(export / "tokenizer.json")), options)


class EngineTranslator:
    """Translates lists of lines as `LineTranslator` does by an engine, from the files of model and export alone.

    Args:
        model: Directory of the model, of this package.
        engine: Its export.
        tokenizer: The export's.
        options: How to translate.

    Attributes:
        config: The fields of the model's configuration that its file has.

    Raises:
        ValueError: The model does not translate into the language; or the output is JSON, and none is named.
    """

    def __init__(
        self, model: Path, engine: "CTranslate2Translator", tokenizer: Tokenizer, options: TranslationOptions
    ) -> None:
        self._engine, self._tokenizer, self._options = engine, tokenizer, options
        self.config = SimpleNamespace(**read_json(model / "config.json"))
        self._directions = Directions(self.config)
        self._tag = self._directions.tag(None, options.target_language)
        self._output = OutputLines(self._directions, options)
        fields = read_json(model / "generation_config.json")
        self._search = SearchOptions.from_fields({**fields, **options.generate_kwargs}, engine.positions)

    def translate(self, number: int, lines: list[str], bar: tqdm | None = None) -> list[bytes]:
        """Translate a list of lines, as `LineTranslator.translate`; the `number` decides nothing."""
        sources, returned = [line.strip() for line in lines], self._search.num_return_sequences
        texts = [
            self._directions.tagged(require_text(source, f"text {index}"), self._tag)
            for index, source in enumerate(sources)
        ]
        paragraphs = None
        if self._options.split_sentences:
            obstacles = ["num_return_sequences"] if returned > 1 else []
            paragraphs = split_paragraphs(self._directions, texts, obstacles, _warn_once)
        if paragraphs is None:
            ranked = self._translate(texts)
        else:
            best = (ranks[0] for ranks in self._translate([each for part in paragraphs for each in part.sentences]))
            ranked = [[part.join([next(best) for _ in part.sentences])] for part in paragraphs]
        if bar is not None:
            bar.update(len(lines))
        return [
            self._output.line(source, text, {}) for source, texts in zip(sources, ranked, strict=True) for text in texts
        ]

    def _translate(self, sentences: list[str]) -> list[list[str]]:
        """The n-best translations of each sentence; a blank sentence has empty ones."""
        search, engine = self._search, self._engine
        translations = [[""] * search.num_return_sequences for _ in sentences]
        filled = [index for index, sentence in enumerate(sentences) if sentence.strip()]
        encoded = [each.ids for each in self._tokenizer.encode_batch([sentences[index] for index in filled])]
        longest = getattr(self.config, "longest_source", None)
        warn_of_long_sentences(map(len, encoded), longest, _warn_once)
        sources = cut_to_positions(encoded, engine.positions, _warn_once)
        lengths = [len(source) for source in sources]
        for batch in similar_length_batches(lengths, search.batch_tokens, self._options.tokens_per_batch):
            hypotheses = engine.n_best([sources[row] for row in batch], search)
            for row, ranked in zip(batch, hypotheses, strict=True):
                translations[filled[row]] = self._tokenizer.decode_batch(ranked)
        return translations
